"""Telling those who watch about one run of a pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from executionkit._clock import get_clock
from executionkit.observability import Scope, error_name, nobody_records

if TYPE_CHECKING:
    from types import TracebackType

    from executionkit.observability import TraceCallback
    from executionkit.types import TokenUsage

__all__ = ("PatternTrace", "watched")

# Nothing may be awaited any more when one of these ends a coroutine.
_FATAL: Final = (GeneratorExit, KeyboardInterrupt, SystemExit)


class Account(Protocol):
    """Knows what a run has cost so far; a `CostTracker`, say."""

    def to_usage(self) -> TokenUsage:
        """Calls and tokens."""
        ...


def watched(
    pattern: str, trace: TraceCallback | None, tracker: Account
) -> PatternTrace | None:
    """What tells of a run; None when nobody watches."""
    if trace is None and nobody_records():
        return None
    return PatternTrace(pattern, trace, tracker)


class PatternTrace:
    """The pair of events of one run.

    Args:
        pattern: Its name.
        trace: Receives the events; None = spans only.
        tracker: Says what the run has cost.
    """

    __slots__ = ("_began", "_pattern", "_scope", "_tracker")

    def __init__(
        self, pattern: str, trace: TraceCallback | None, tracker: Account
    ) -> None:
        self._pattern = pattern
        self._tracker = tracker
        self._scope = Scope(trace, labels={"pattern": pattern})
        self._began = 0.0

    async def __aenter__(self) -> None:
        await self.started()

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        exc: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self.ended(exc)

    async def started(self) -> None:
        """The run begins: what is told from here on belongs to it."""
        self._scope.enter()
        self._began = get_clock().monotonic()
        await self._scope.tell("pattern_start", {"pattern": self._pattern})

    async def ended(self, exc: BaseException | None) -> None:
        """The run is over: well, or with `exc`."""
        self._scope.leave()
        if isinstance(exc, _FATAL):
            return
        facts: dict[str, Any] = {
            "pattern": self._pattern,
            "duration": get_clock().monotonic() - self._began,
            "cost": self._tracker.to_usage(),
        }
        if exc is not None:
            facts["error"] = error_name(exc)
        # The callback may be the very thing that hangs: it cannot hold up the end.
        await self._scope.tell_briefly("pattern_end", facts)
