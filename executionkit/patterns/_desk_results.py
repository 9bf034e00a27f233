"""Results of calls for which no tool gave one."""

from __future__ import annotations

from executionkit._clock import get_clock
from executionkit.calls import CallProblem, ErrorInfo, ToolCall, ToolResult
from executionkit.errors import ErrorCode, ToolTimeoutError

__all__ = ("failed_result", "refused_result", "timed_out_result", "unreadable_result")


def unreadable_result(problem: CallProblem) -> ToolResult:
    """The answer to a call that could not be read."""
    info = ErrorInfo.from_code(problem.code, problem.to_observation())
    return ToolResult(
        tool=problem.name or "unknown",
        error_info=info,
        call_id=problem.call_id,
        attempts=0,
    )


def refused_result(
    call: ToolCall, code: ErrorCode, text: str, exc: BaseException | None = None
) -> ToolResult:
    """The answer to a call that was not run."""
    now = get_clock().wall()
    return ToolResult(
        tool=call.name,
        error_info=ErrorInfo.from_code(code, text),
        call_id=call.id,
        exception=exc,
        start_time=now,
        end_time=now,
        attempts=0,
    )


def failed_result(call: ToolCall, exc: BaseException) -> ToolResult:
    """The answer to a call whose tool, or runner, raised `exc`."""
    kind = type(exc).__name__
    code = ErrorCode.TOOL_EXECUTION_FAILED
    details = {"tool_name": call.name, "type": kind}
    return ToolResult(
        tool=call.name,
        error_info=ErrorInfo.from_code(
            code, f"Tool '{call.name}' failed: {kind}", details
        ),
        call_id=call.id,
        exception=exc,
    )


def timed_out_result(call: ToolCall, seconds: float) -> ToolResult:
    """The answer to a call that took too long."""
    error = ToolTimeoutError(call.name, seconds)
    text = f"Tool execution timed out after {seconds}s"
    return ToolResult.failure(
        call, ErrorInfo.from_code(error.code, text, error.details)
    )
