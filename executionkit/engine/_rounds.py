"""The requests that one call over several providers may send, its retries included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

__all__ = ("Shared", "at_most", "least", "requests_left", "shared_by")

_ATTRIBUTE: Final = "shared_requests"

_left: ContextVar[int | None] = ContextVar("executionkit_requests_left", default=None)


class Shared(NamedTuple):
    """What a call over several providers shares with the retries around it."""

    providers: int
    """Those that could be asked."""

    most: int | None
    """Requests of all rounds at most; None = one for each provider and each retry."""

    def total(self, max_retries: int) -> int:
        """Requests of all rounds at most."""
        return self.providers + max_retries if self.most is None else self.most

    def words(self, max_retries: int) -> str:
        """What allows no more than `total`."""
        if self.most is not None:
            return f"`max_attempts={self.most}`"
        return f"{self.providers} providers and `max_retries={max_retries}`"

    def write_on(self, exc: BaseException) -> None:
        """Tell it to the retry layers that see `exc`."""
        exc.__dict__[_ATTRIBUTE] = self


def shared_by(exc: BaseException) -> Shared | None:
    """What was written on `exc`; None when it is no failure of several providers."""
    found = exc.__dict__.get(_ATTRIBUTE)
    return found if isinstance(found, Shared) else None


def requests_left() -> int | None:
    """Requests that this round may still send; None = no retry layer says so."""
    return _left.get()


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """Within it, a call over several providers sends so many requests at most."""
    token = _left.set(count)
    try:
        yield
    finally:
        _left.reset(token)


def least(one: int | None, other: int | None) -> int | None:
    """The smaller limit; None = no limit."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
