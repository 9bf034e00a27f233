"""Telling trace sinks and OpenTelemetry about calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from executionkit._redact import redact_value
from executionkit.errors import ErrorCode
from executionkit.observability import (
    Scope,
    error_name,
    nobody_records,
    tool_span,
)
from executionkit.types import thaw

if TYPE_CHECKING:
    from executionkit.calls import ToolCall, ToolResult
    from executionkit.observability import TraceCallback
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
_REDACTED: Final = "[redacted]"


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
        return self._sink is not None or not nobody_records()

    async def begin(self, request: ToolRequest) -> Traced:
        """The call enters the path."""
        traced = request.traced = Traced(self._sink, request)
        if self._sink is not None:
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
        with tool_span(call.name, call.id) as span:
            if span is not None and result.error_code is not None:
                span.set_attribute("error.type", result.error_code.value)
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

    __slots__ = ("_began", "_request", "_span", "scope")

    def __init__(self, sink: TraceCallback | None, request: ToolRequest) -> None:
        call = request.call
        self._request = request
        self._began: float | None = None
        self.scope: Scope = Scope(sink, labels={"tool_call_id": call.id})
        self._span = tool_span(call.name, call.id)
        self.scope.enter()
        self._span.__enter__()

    def begins(self, now: float) -> None:
        """The tool is about to be started, at `now` on the monotonic clock."""
        self._began = now

    async def attempt_failed(self, exc: BaseException, now: float) -> None:
        """An attempt that others may follow has ended with `exc`."""
        if self._began is not None:
            await self._tell_attempt(now, error_name(exc))

    async def end(
        self, result: ToolResult | None, exc: BaseException | None, now: float
    ) -> None:
        """Tell the end once."""
        kind = None if exc is None else type(exc)
        self._span.__exit__(kind, exc, None)
        self.scope.leave()
        if self.scope.sink is None:
            return
        request = self._request
        # The only attempt of a call that never waited is the call itself.
        if self._began is not None and (request.attempts > 1 or self.scope.has_waited):
            await self._tell_attempt(now, None if exc is None else error_name(exc))
        facts = _facts(request.call, request.full_name, request.index)
        facts["attempts"] = request.attempts
        facts["cached"] = request.cached
        if request.pid:
            facts["process"] = request.pid
        if result is not None:
            facts["duration"] = result.duration
            facts.update(_outcome(result))
        elif exc is not None:
            facts.update(error=type(exc).__name__, blocked=False)
            if request.began is not None:
                facts["duration"] = now - request.began
        await self.scope.tell("tool_call_end", facts)

    async def _tell_attempt(self, now: float, error: str | None) -> None:
        began, self._began = self._began, None
        if began is not None:
            await self.scope.tell_attempt(self._request.attempts, now - began, error)


def _facts(call: ToolCall, name: str, index: int) -> dict[str, Any]:
    return {"tool_name": name, "tool": name, "tool_call_id": call.id, "index": index}


def _outcome(result: ToolResult) -> dict[str, Any]:
    code = result.error_code
    facts: dict[str, Any] = {"blocked": code in _BLOCKED}
    if code is not None:
        facts["error"] = code.value
    return facts
