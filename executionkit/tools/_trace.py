"""Telling trace sinks and OpenTelemetry about calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from executionkit._redact import redact_value
from executionkit.observability import TraceEvent, emit_trace, nobody_records, tool_span
from executionkit.types import thaw

if TYPE_CHECKING:
    from executionkit.calls import ToolResult
    from executionkit.observability import SpanScope, TraceCallback
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("Traced", "Tracer")


class Tracer:
    """Makes the events and the span of each call.

    Args:
        sink: Receives `tool_call_start` and `tool_call_end`; None = spans only.
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
        call = request.call
        if self._sink is not None:
            arguments: Any = dict.fromkeys(call.arguments, "[redacted]")
            if self._show:
                arguments = redact_value(thaw(call.arguments))
            facts = {**_facts(request), "arguments": arguments}
            await emit_trace(self._sink, TraceEvent.create("tool_call_start", facts))
        return Traced(self, request, tool_span(call.name, call.id))

    async def ended(
        self, request: ToolRequest, result: ToolResult | None, exc: BaseException | None
    ) -> None:
        """The call has left the path."""
        if self._sink is None:
            return
        facts = _facts(request)
        facts["attempts"] = request.attempts
        facts["cached"] = request.cached
        if result is not None:
            facts["duration"] = result.duration
            if result.error_code is not None:
                facts["error"] = result.error_code.value
        elif exc is not None:
            facts["error"] = type(exc).__name__
        await emit_trace(self._sink, TraceEvent.create("tool_call_end", facts))


class Traced:
    """One call that is being watched."""

    __slots__ = ("_request", "_span", "_tracer")

    def __init__(self, tracer: Tracer, request: ToolRequest, span: SpanScope) -> None:
        self._tracer = tracer
        self._request = request
        self._span = span
        span.__enter__()

    async def end(self, result: ToolResult | None, exc: BaseException | None) -> None:
        """Tell the end once."""
        kind = None if exc is None else type(exc)
        self._span.__exit__(kind, exc, None)
        await self._tracer.ended(self._request, result, exc)


def _facts(request: ToolRequest) -> dict[str, Any]:
    call = request.call
    return {"tool": request.full_name, "tool_call_id": call.id, "index": request.index}
