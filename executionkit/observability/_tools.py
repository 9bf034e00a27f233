"""The span and the metrics of one tool call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from executionkit.observability._genai import captures_content, shown
from executionkit.observability._meters import measure_run, track_in_flight
from executionkit.observability._spans import NO_SPAN, SpanScope, tool_span
from executionkit.types import thaw

if TYPE_CHECKING:
    from executionkit.calls import ToolCall, ToolResult

__all__ = ("ToolSpan", "refused_span")


class ToolSpan:
    """One tool call, retries included, as OpenTelemetry sees it.

    Args:
        call: The call.
        name: The tool's full name; None = as the call says.
    """

    __slots__ = ("_call", "_name", "span")

    def __init__(self, call: ToolCall, name: str | None = None) -> None:
        self._call = call
        self._name = name or call.name
        self.span: SpanScope = tool_span(self._name, call.id)

    def begin(self) -> None:
        """The call begins."""
        track_in_flight("execute_tool", 1)
        if self.span is not NO_SPAN:
            self.span.__enter__()
            if captures_content():
                arguments = shown(thaw(self._call.arguments))
                self.span.set({"gen_ai.tool.call.arguments": arguments})

    def end(
        self, result: ToolResult | None, exc: BaseException | None, seconds: float
    ) -> None:
        """It is over: with a result, which may be a failure, or with `exc`."""
        track_in_flight("execute_tool", -1)
        error = None if exc is None else type(exc).__qualname__
        if result is not None:
            self._tell_result(result)
            if error is None and result.error_code is not None:
                error = result.error_code.value
        if error is not None and result is not None:
            self.span.fail(error, str(result.error))
        else:
            self.span.__exit__(None if exc is None else type(exc), exc, None)
        measure_run("execute_tool", seconds, {"gen_ai.tool.name": self._name}, error)

    def _tell_result(self, result: ToolResult) -> None:
        if self.span is NO_SPAN:
            return
        facts: dict[str, Any] = {"executionkit.attempts": result.attempts}
        if result.cached:
            facts["executionkit.cached"] = True
        if result.error_code is not None:
            facts["executionkit.error.code"] = result.error_code.value
        elif captures_content():
            facts["gen_ai.tool.call.result"] = shown(thaw(result.result))
        self.span.set(facts)


def refused_span(call: ToolCall, result: ToolResult, *, known: bool = False) -> None:
    """Tell of a call that was answered before any tool could begin.

    Args:
        call: The call.
        result: The answer.
        known: Whether there is such a tool. Invented names would make metrics endless.
    """
    span = tool_span(call.name, call.id)
    error = "refused" if result.error_code is None else result.error_code.value
    if span is not NO_SPAN:
        span.__enter__()
        span.fail(error, str(result.error))
    name = call.name if known else "_unknown"
    measure_run("execute_tool", 0.0, {"gen_ai.tool.name": name}, error)
