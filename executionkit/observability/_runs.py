"""Telling those who watch about one run of a pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from executionkit._clock import get_clock
from executionkit.observability._meters import measure_run, track_in_flight
from executionkit.observability._scope import Scope, error_name, nobody_watches
from executionkit.observability._spans import NO_SPAN, SpanScope, nobody_records

if TYPE_CHECKING:
    from types import TracebackType

    from executionkit.observability._events import TraceCallback
    from executionkit.types import TokenUsage

__all__ = ("PatternTrace", "watched")

# Nothing may be awaited any more when one of these ends a coroutine.
_OPERATIONS: Final = {"react_loop": "invoke_agent"}
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
    if trace is None and nobody_watches():
        return None
    return PatternTrace(pattern, trace, tracker)


class PatternTrace:
    """The pair of events of one run.

    Args:
        pattern: Its name.
        trace: Receives the events; None = spans only.
        tracker: Says what the run has cost.
    """

    __slots__ = ("_began", "_operation", "_pattern", "_scope", "_tracker")

    def __init__(
        self, pattern: str, trace: TraceCallback | None, tracker: Account
    ) -> None:
        self._pattern = pattern
        self._tracker = tracker
        # A tool loop is an agent; every other pattern is a workflow with a fixed course.
        self._operation = _OPERATIONS.get(pattern, "invoke_workflow")
        labels = {"pattern": pattern}
        self._scope = Scope(trace, labels=labels, span=self._span())
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

    def _span(self) -> SpanScope:
        if nobody_records():
            return NO_SPAN
        kind = "agent" if self._operation == "invoke_agent" else "workflow"
        facts = {
            "gen_ai.operation.name": self._operation,
            f"gen_ai.{kind}.name": self._pattern,
        }
        return SpanScope(f"{self._operation} {self._pattern}", facts)

    async def started(self) -> None:
        """The run begins: what is told from here on belongs to it."""
        self._scope.begin()
        self._scope.enter()
        track_in_flight(self._operation, 1)
        self._began = get_clock().monotonic()
        await self._scope.tell("pattern_start", {"pattern": self._pattern})

    async def ended(self, exc: BaseException | None) -> None:
        """The run is over: well, or with `exc`."""
        scope, took = self._scope, get_clock().monotonic() - self._began
        scope.leave()
        cost = self._tracker.to_usage()
        scope.span.set(
            {
                "gen_ai.usage.input_tokens": cost.input_tokens,
                "gen_ai.usage.output_tokens": cost.output_tokens,
                "executionkit.llm_calls": cost.llm_calls,
            }
        )
        scope.end(exc)
        error = None if exc is None else error_name(exc)
        track_in_flight(self._operation, -1)
        measure_run(
            self._operation, took, {"executionkit.pattern": self._pattern}, error
        )
        if isinstance(exc, _FATAL):
            return
        facts: dict[str, Any] = {
            "pattern": self._pattern,
            "duration": took,
            "cost": cost,
        }
        if error is not None:
            facts["error"] = error
        # The callback may be the very thing that hangs: it cannot hold up the end.
        await self._scope.tell_briefly("pattern_end", facts)
