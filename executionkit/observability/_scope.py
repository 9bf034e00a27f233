"""What is being watched right now: the span that work belongs to.

The current span is task-local (`contextvars`): tasks and threads that are begun inside
of it inherit it, so whatever is told there names the right parent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from executionkit._clock import get_clock
from executionkit.context import get_current_context
from executionkit.errors import ExecutionKitError
from executionkit.observability._events import TraceCallback, TraceEvent, emit_trace
from executionkit.observability._meters import measure_wait, nobody_measures
from executionkit.observability._spans import NO_SPAN, SpanScope, nobody_records

__all__ = (
    "LEAST_WAIT",
    "Scope",
    "current_scope",
    "error_name",
    "new_span_id",
    "nobody_watches",
    "note_replay",
    "note_wait",
    "tell_wait",
)

LEAST_WAIT: Final = 0.001
"""Seconds; what takes less is no wait that anybody wants to see."""

_GRACE: Final = 1.0
"""Seconds that the end of cancelled work waits for its trace callback."""

_NO_LABELS: Final[Mapping[str, Any]] = MappingProxyType({})
_PARENT: Final = slice(36, 52)  # of a `traceparent`: version-trace-parent-flags


def error_name(exc: BaseException) -> str:
    """What a failure is called: the code of a library error, else its type."""
    return exc.code.value if isinstance(exc, ExecutionKitError) else type(exc).__name__


def new_span_id() -> str:
    """A fresh id of 16 hex digits, as W3C Trace Context has them."""
    return os.urandom(8).hex()


class Scope:
    """One thing that is being watched, from its start to its end.

    Args:
        sink: Receives its events; None = nobody listens to events.
        secrets: Values that must not appear in them.
        labels: Facts that its waits and attempts are told with: to whom they belong,
            for readers that do not know spans.
        span: Its span of OpenTelemetry, not begun yet.
    """

    __slots__ = (
        "_before",
        "_pending",
        "has_waited",
        "is_call",
        "is_open_to_runner",
        "is_replayed",
        "labels",
        "more",
        "parent_id",
        "requests",
        "root",
        "secrets",
        "sink",
        "span",
        "span_id",
        "trace_id",
    )

    def __init__(
        self,
        sink: TraceCallback | None,
        secrets: Iterable[str] = (),
        labels: Mapping[str, Any] = _NO_LABELS,
        span: SpanScope = NO_SPAN,
    ) -> None:
        before = _current.get()
        self.sink: TraceCallback | None = sink
        self.secrets: Iterable[str] = secrets
        self.labels: Mapping[str, Any] = labels
        self.span: SpanScope = span
        self.span_id: str = new_span_id()
        self.parent_id: str | None = (
            _remote_parent() if before is None else before.span_id
        )
        self.root: Scope = self if before is None else before.root
        """The outermost one around it."""
        self.trace_id: str | None = None
        """Of a root: the id of a trace that begins here, once somebody needs it."""
        self.is_call: bool = False
        """Whether it is a model call: requests inside of it are its attempts."""
        self.is_open_to_runner: bool = False
        """Whether it is a call that is handed to a runner: where that tells the same
        sink, it goes on with this span instead of one of its own."""
        self.more: dict[str, Any] = {}
        """Facts of the runner about the end."""
        self.is_replayed: bool = False
        """Whether its outcome came from a journal: nothing was done."""
        self.has_waited: bool = False
        """Whether a wait was noted since it began."""
        self.requests: int = 0
        """Of a model call: the requests that were noted by `attempted`."""
        self._before = before
        self._pending: list[TraceEvent] | None = None

    def begin(self) -> None:
        """Begin the span of OpenTelemetry; the ids of both are the same then."""
        if self.span is not NO_SPAN:
            self.span.__enter__()
            self.span_id = self.span.span_id or self.span_id

    def end(self, exc: BaseException | None) -> None:
        """End it: well, or with `exc`."""
        self.span.__exit__(None if exc is None else type(exc), exc, None)

    def enter(self) -> None:
        """From now on, what the running task does belongs to this."""
        self._before = _current.get()
        _current.set(self)
        self.span.make_current()

    def leave(self) -> None:
        """What was current before is so again; in the task that has entered."""
        _current.set(self._before)
        self.span.restore()

    def waited(self, reason: str, seconds: float) -> None:
        """Note a wait that is over now; it is told with the next event.

        Waits end where a permit or a slot was just had: no sink may hold that up.

        Args:
            reason: `"permit"`, `"slot"`, `"backoff"`, `"retry_after"`, `"breaker"` or
                `"approval"`.
            seconds: How long; less than a millisecond is no wait.
        """
        if seconds < LEAST_WAIT:
            return
        self.has_waited = True
        self.span.tell("wait", {"reason": reason, "duration": seconds})
        measure_wait(reason, seconds)
        if self.sink is None:
            return
        facts = {
            **self.labels,
            "parent_id": self.span_id,
            "reason": reason,
            "duration": seconds,
        }
        self._note("wait", facts)

    def attempted(
        self, number: int, seconds: float, error: str, facts: Mapping[str, Any]
    ) -> None:
        """Note an attempt that is over now; it is told with the next event.

        Args:
            number: From 1.
            seconds: How long it took.
            error: Why it brought nothing.
            facts: More of it; `requests` = how many it has sent, if not one.
        """
        self.requests += facts.get("requests", 1)
        if self.sink is None:
            return
        told = {**self.labels, "parent_id": self.span_id, "attempt": number, **facts}
        self._note("attempt", {**told, "duration": seconds, "error": error})

    def _note(self, kind: str, facts: dict[str, Any]) -> None:
        if self._pending is None:
            self._pending = []
        self._pending.append(TraceEvent(kind, facts))

    async def tell(self, kind: str, facts: dict[str, Any]) -> None:
        """Emit an event of this span, and the waits that were noted before it."""
        facts["span_id"] = self.span_id
        facts["parent_id"] = self.parent_id
        await self._emit(kind, facts)

    async def tell_briefly(self, kind: str, facts: dict[str, Any]) -> None:
        """The same; a callback that hangs holds the end up for a second only."""
        with suppress(TimeoutError):
            async with get_clock().timeout(_GRACE):
                await self.tell(kind, facts)

    async def tell_attempt(
        self, number: int, seconds: float, error: str | None = None
    ) -> None:
        """Emit that an attempt, one of several inside of this span, has ended."""
        facts: dict[str, Any] = {
            **self.labels,
            "parent_id": self.span_id,
            "attempt": number,
            "duration": seconds,
        }
        if error is not None:
            facts["error"] = error
        await self._emit("attempt", facts)

    def renew(self) -> None:
        """Be a new thing with the same parent."""
        self.span_id = new_span_id()

    async def _emit(self, kind: str, facts: dict[str, Any]) -> None:
        if self.sink is None:
            return
        # First: whoever is cancelled in here has told of it, and tells of its end.
        await emit_trace(self.sink, TraceEvent(kind, facts), secrets=self.secrets)
        if self._pending is not None:
            pending, self._pending = self._pending, None
            for wait in pending:
                await emit_trace(self.sink, wait, secrets=self.secrets)


_current: ContextVar[Scope | None] = ContextVar("executionkit_scope", default=None)


def current_scope() -> Scope | None:
    """What the running task belongs to; None = nobody watches."""
    return _current.get()


def nobody_watches() -> bool:
    """Whether neither spans nor metrics of OpenTelemetry are set up."""
    return nobody_records() and nobody_measures()


def note_replay(tool_call_id: str) -> None:
    """Note that the outcome of the tool call that is under way came from a journal."""
    scope = _current.get()
    if scope is not None and scope.labels.get("tool_call_id") == tool_call_id:
        scope.is_replayed = True


def note_wait(reason: str, seconds: float) -> None:
    """Note a wait of the current scope; see `Scope.waited`."""
    scope = _current.get()
    if scope is not None:
        scope.waited(reason, seconds)


async def tell_wait(sink: TraceCallback | None, reason: str, seconds: float) -> None:
    """Tell of a wait that is over now, and that came before what it made wait.

    It belongs to the current scope, if any. A callback that hangs holds it up for a
    second only.
    """
    if seconds < LEAST_WAIT:
        return
    scope = _current.get()
    if scope is None:
        measure_wait(reason, seconds)
    else:
        scope.waited(reason, seconds)
    if sink is None or (scope is not None and scope.sink is sink):
        return
    facts: dict[str, Any] = {
        "parent_id": _remote_parent() if scope is None else scope.span_id,
        "reason": reason,
        "duration": seconds,
    }
    with suppress(TimeoutError):
        async with get_clock().timeout(_GRACE):
            await emit_trace(sink, TraceEvent("wait", facts))


def _remote_parent() -> str | None:
    """The span of the caller in another process, where the context names one."""
    context = get_current_context()
    if context is None or context.traceparent is None:
        return None
    return context.traceparent[_PARENT]
