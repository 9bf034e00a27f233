"""State for each run, bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from executionkit.context import get_current_context

__all__ = ("MAX_SCOPES", "Scopes", "current_scope")

S = TypeVar("S")

MAX_SCOPES: Final = 10_000
"""Runs whose state is kept at once; the one used longest ago is forgotten first."""


def current_scope() -> str | None:
    """What tells runs apart: the request id of the context; None = there is none."""
    context = get_current_context()
    return None if context is None else context.request_id


class Scopes(Generic[S]):
    """One state for each run."""

    __slots__ = ("_kept", "_make", "_most")

    def __init__(self, make: Callable[[], S], most: int = MAX_SCOPES) -> None:
        self._make = make
        self._most = most
        self._kept: dict[str | None, S] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def seen(self, scope: str | None) -> S | None:
        """The state of a run, if there is one; touches nothing."""
        return self._kept.get(scope)

    def get(self, scope: str | None) -> S:
        """The state of a run, made when there is none."""
        kept = self._kept
        state = kept.pop(scope, None)  # put at the end: used last
        if state is None:
            state = self._make()
            if len(kept) >= self._most:
                del kept[next(iter(kept))]
        kept[scope] = state
        return state

    def forget(self, scope: str | None) -> None:
        self._kept.pop(scope, None)

    def clear(self) -> None:
        self._kept.clear()
