"""Many failures as one error, and what they say without secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from executionkit._error_base import twin_of
from executionkit._redact import redact_exception_text
from executionkit.errors import (
    ExecutionKitError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
)

if TYPE_CHECKING:
    from executionkit.engine.retry import RetryConfig

__all__ = (
    "Siblings",
    "describe",
    "first_of_group",
    "lost_connection",
    "names_itself",
    "own_failure",
)

_MAX_TEXT: Final = 500
_MAX_NOTES: Final = 20


def describe(exc: BaseException, secrets: Iterable[str] = ()) -> str:
    """Type and text of an exception, in bounded length, without secrets."""
    name, said = type(exc).__name__, redact_exception_text(exc, secrets=secrets)
    if isinstance(exc, ExecutionKitError):  # whoever quotes it counts for itself
        said = said.removesuffix(exc.sent_words) or name
    if len(said) > _MAX_TEXT:
        said = f"{said[:_MAX_TEXT]}..."
    return name if said == name else f"{name}: {said}"


class Siblings:
    """Calls side by side: the first fatal failure is raised, the others noted on it.

    Args:
        secrets: Texts that must not appear in the notes.
        is_fatal: Whether a failure ends them all. None = each does.
    """

    __slots__ = ("_failures", "_is_fatal", "_secrets")

    def __init__(
        self,
        secrets: Iterable[str],
        is_fatal: Callable[[BaseException], bool] | None = None,
    ) -> None:
        self._failures: list[Exception] = []
        self._secrets = tuple(secrets)
        self._is_fatal = is_fatal

    def check(self) -> None:
        """Begin nothing more once they are doomed.

        Raises:
            CancelledError: One of them has failed; whoever runs them will be told.
        """
        if self._failures:
            raise asyncio.CancelledError

    def add(self, failure: Exception) -> None:
        """One of them has failed."""
        if self._is_fatal is None or self._is_fatal(failure):
            self._failures.append(failure)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the others on a library error that leaves the block.

        All calls must have ended by then.
        """
        try:
            yield
        except ExecutionKitError as exc:
            _note_others(exc, self._failures, self._secrets)
            raise


def _note_others(
    chosen: BaseException, all_of_them: Iterable[BaseException], secrets: Iterable[str]
) -> None:
    others = [exc for exc in all_of_them if exc is not chosen]
    for other in others[:_MAX_NOTES]:
        chosen.add_note(f"also: {describe(other, secrets)}")
    if len(others) > _MAX_NOTES:
        chosen.add_note(f"also: {len(others) - _MAX_NOTES} more failures")


def own_failure(exc: BaseException, secrets: Iterable[str] = ()) -> BaseException:
    """What a provider raised, as a failure that belongs to one run alone.

    Of a group the first (see `first_of_group`); a library error as a copy (see
    `twin_of`); a lost connection or a timeout as the library error for it, with the
    original as its cause. Anything else as it is.
    """
    if isinstance(exc, ExecutionKitError):
        return twin_of(exc)
    if isinstance(exc, BaseExceptionGroup):
        exc = first_of_group(exc, secrets)
    return lost_connection(exc, secrets) if isinstance(exc, OSError) else exc


def lost_connection(exc: OSError, secrets: Iterable[str] = ()) -> ProviderError:
    """A raw error of the network as the error of this library for it."""
    late = isinstance(exc, TimeoutError)  # a kind of OSError
    kind = ProviderTimeoutError if late else ProviderConnectionError
    failure = kind(f"The provider failed: {describe(exc, secrets)}")
    for note in getattr(exc, "__notes__", ()):
        failure.add_note(note)
    failure.__cause__ = exc
    return failure


def names_itself(retry: RetryConfig, exc: OSError) -> bool:
    """Whether `retry` wants to see the raw error, because it names its type."""
    try:
        return retry.should_retry(exc)
    except Exception:  # noqa: BLE001 - a user's predicate; whoever retries tells of it
        return False


def first_of_group(
    group: BaseExceptionGroup[BaseException], secrets: Iterable[str] = ()
) -> BaseException:
    """One error for a group, the rest as notes on it.

    What is no `Exception` (an interrupt, a cancellation) comes first, then the first
    library error (as a copy, see `twin_of`), then whatever came first.
    """
    flat = list(_flatten(group))
    fatal = [exc for exc in flat if not isinstance(exc, Exception)]
    known = [exc for exc in flat if isinstance(exc, ExecutionKitError)]
    chosen = (fatal or known or flat)[0]
    rest = [exc for exc in flat if exc is not chosen]
    if isinstance(chosen, ExecutionKitError):
        chosen = twin_of(chosen)
    _note_others(chosen, rest, secrets)
    return chosen


def _flatten(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            yield from _flatten(exc)
        else:
            yield exc
