"""Telling trace sinks and OpenTelemetry about calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from executionkit._redact import redact_value
from executionkit.errors import ErrorCode
from executionkit.observability import (
    NO_SPAN,
    Scope,
    ToolSpan,
    count_cache,
    count_retry,
    current_scope,
    error_name,
    nobody_watches,
    refused_span,
    watched,
)
from executionkit.types import TokenUsage, thaw

if TYPE_CHECKING:
    from executionkit.calls import ToolCall, ToolResult
    from executionkit.observability import PatternTrace, TraceCallback
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("Traced", "Tracer")

_BLOCKED: Final = frozenset(
    {
        ErrorCode.TOOL_BLOCKED,
        ErrorCode.APPROVAL_DENIED,
        ErrorCode.APPROVAL_PENDING,
        ErrorCode.APPROVAL_TIMEOUT,
    }
)
_UNKNOWN: Final = ErrorCode.TOOL_NOT_FOUND
_REDACTED: Final = "[redacted]"


class _NoModel:
    """The account of what asks no model."""

    def to_usage(self) -> TokenUsage:
        """Nothing."""
        return TokenUsage()


class Tracer:
    """Makes the events and the span of each call.

    Args:
        sink: Receives `tool_call_start`, `tool_call_end`, and what happens in between;
            None = spans only.
        show_arguments: Whether argument values are in the events. They are redacted.
    """

    __slots__ = ("_show", "_sink")

    def __init__(
        self, sink: TraceCallback | None = None, *, show_arguments: bool = False
    ) -> None:
        self._sink = sink
        self._show = show_arguments

    def is_active(self) -> bool:
        """Whether anybody listens right now; asked once per batch."""
        return self._sink is not None or not nobody_watches()

    def plan(self) -> PatternTrace | None:
        """A plan of calls begins, to which they belong; None when nobody watches."""
        return watched("tool_plan", self._sink, _NoModel())

    async def begin(self, request: ToolRequest) -> Traced:
        """The call enters the path."""
        traced = request.traced = Traced(self._sink, request)
        if self._sink is not None and not traced.is_inner:
            facts = _facts(request.call, request.full_name, request.index)
            facts["arguments"] = self._shown(request.call)
            await traced.scope.tell("tool_call_start", facts)
        return traced

    async def refused(self, call: ToolCall, index: int, result: ToolResult) -> None:
        """A call was answered before it could enter a path."""
        bare = call.namespace in {"", "default"}
        name = call.name if bare else f"{call.namespace}.{call.name}"
        scope = Scope(self._sink)
        facts = _facts(call, name, index)
        shown = self._shown(call)
        await scope.tell("tool_call_start", {**facts, "arguments": shown})
        refused_span(call, result, known=result.error_code is not _UNKNOWN)
        facts.update(attempts=0, cached=False, **_outcome(result))
        await scope.tell("tool_call_end", facts)

    def _shown(self, call: ToolCall) -> Any:
        if self._show:
            return redact_value(thaw(call.arguments))
        return dict.fromkeys(call.arguments, _REDACTED)


class Traced:
    """One call that is being watched.

    Args:
        sink: Receives its events; None = spans only.
        request: The call.
    """

    __slots__ = ("_began", "_request", "_told", "is_inner", "scope")

    def __init__(self, sink: TraceCallback | None, request: ToolRequest) -> None:
        call = request.call
        self._request = request
        self._began: float | None = None
        self._told = told = ToolSpan(call, request.full_name)
        told.begin()
        outer = _open_scope(sink, call)
        self.is_inner: bool = outer is not None
        """Whether `react_loop` tells the same sink of the call."""
        if outer is not None:
            self.scope: Scope = outer
            outer.span = told.span
            told.span.make_current()
            return
        labels = {"tool_call_id": call.id}
        self.scope = Scope(sink, labels=labels, span=told.span)
        self.scope.span_id = told.span.span_id or self.scope.span_id
        self.scope.enter()

    def begins(self, now: float) -> None:
        """The tool is about to be started, at `now` on the monotonic clock."""
        self._began = now

    async def attempt_failed(self, exc: BaseException, now: float) -> None:
        """An attempt that others may follow has ended with `exc`."""
        if self._began is not None:
            await self._tell_attempt(now, error_name(exc))

    def on_retry(self, number: int, exc: Exception, delay: float) -> None:
        """Another attempt follows the one that ended with `exc`."""
        count_retry("execute_tool", error_name(exc))
        told = {"attempt": number, "delay": delay, "error.type": error_name(exc)}
        self.scope.span.tell("retry", told)

    async def end(
        self, result: ToolResult | None, exc: BaseException | None, now: float
    ) -> None:
        """Tell the end once."""
        request = self._request
        if self.is_inner:
            self.scope.span = NO_SPAN
            self._told.span.restore()
        else:
            self.scope.leave()
        entered = now if request.began is None else request.began
        self._told.end(result, exc, now - entered)
        if request.is_cacheable:
            count_cache(hit=request.cached, tool=request.full_name)
        if self.scope.sink is None:
            return
        # The only attempt of a call that never waited is the call itself.
        if self._began is not None and (request.attempts > 1 or self.scope.has_waited):
            await self._tell_attempt(now, None if exc is None else error_name(exc))
        more = _more(request)
        if self.is_inner:
            self.scope.more = more
            return
        facts = {**_facts(request.call, request.full_name, request.index), **more}
        facts["attempts"] = request.attempts
        facts["cached"] = request.cached
        if result is not None:
            facts["duration"] = result.duration
            facts.update(_outcome(result))
        elif exc is not None:
            facts.update(error=type(exc).__name__, blocked=False)
            facts["duration"] = now - entered
        await self.scope.tell("tool_call_end", facts)

    async def _tell_attempt(self, now: float, error: str | None) -> None:
        began, self._began = self._began, None
        if began is not None:
            await self.scope.tell_attempt(self._request.attempts, now - began, error)


def _open_scope(sink: TraceCallback | None, call: ToolCall) -> Scope | None:
    """The span of the same call, where somebody else tells the same sink of it."""
    outer = current_scope()
    if sink is None or outer is None or not outer.is_open_to_runner:
        return None
    if outer.sink != sink or outer.labels.get("tool_call_id") != call.id:
        return None
    outer.is_open_to_runner = False
    return outer


def _more(request: ToolRequest) -> dict[str, Any]:
    """What only the runner knows of a call."""
    more: dict[str, Any] = {}
    if request.is_cacheable:
        more["cacheable"] = True
    if request.circuit is not None:
        more["circuit"] = request.circuit.state.value
    if request.pid:
        more["process"] = request.pid
    return more


def _facts(call: ToolCall, name: str, index: int) -> dict[str, Any]:
    return {"tool_name": name, "tool": name, "tool_call_id": call.id, "index": index}


def _outcome(result: ToolResult) -> dict[str, Any]:
    code = result.error_code
    facts: dict[str, Any] = {"blocked": code in _BLOCKED}
    if code is not None:
        facts["error"] = code.value
    return facts
