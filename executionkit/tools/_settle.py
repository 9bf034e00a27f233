"""The outer edge of the call path: exceptions become results, once, by their type."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from executionkit._redact import redact, redact_exception_text, redact_value
from executionkit.calls import ErrorInfo, ToolResult
from executionkit.errors import (
    BudgetExhaustedError,
    ErrorCode,
    ToolCancelledError,
    ToolNotFoundError,
    ToolProcessorError,
    ToolTimeoutError,
)
from executionkit.tools._exits import odd_failure
from executionkit.tools._machine import machine_name
from executionkit.tools._running import CANCELLED

if TYPE_CHECKING:
    from executionkit.calls import CallProblem, ToolCall
    from executionkit.tools._running import Workshop
    from executionkit.tools.middleware._base import ToolRequest

__all__ = (
    "cancelled_result",
    "failed_result",
    "odd_result",
    "over_budget_result",
    "unreadable_result",
    "unusable_result",
)


def failed_result(  # noqa: PLR0913 - the facts of a result, all by name
    call: ToolCall,
    exc: BaseException,
    *,
    attempts: int,
    start_time: float = 0.0,
    duration: float = 0.0,
    retried: bool = False,
    partial: Any = None,
    warnings: tuple[str, ...] = (),
    pid: int = 0,
) -> ToolResult:
    """The result of a call that ended with `exc`.

    Args:
        call: The call.
        exc: What ended it; kept as the result's `exception`.
        attempts: How often the tool was started.
        start_time: Wall-clock seconds.
        duration: Seconds.
        retried: Whether a retry layer gave up on it.
        partial: Items that a streaming tool gave before.
        warnings: For the result.
        pid: The process that the tool ran in; 0 = this one.
    """
    info = ErrorInfo.from_exception(exc)
    text = _text(exc, call)
    if retried and attempts > 1:
        text = f"Max retries reached ({attempts - 1}): {text}"
    details = redact_value(dict(info.details), is_error=True)
    info = replace(info, message=text, details=details)
    return ToolResult(
        tool=call.name,
        result=partial,
        error=text,
        call_id=call.id,
        error_info=info,
        exception=exc,
        start_time=start_time,
        end_time=start_time + duration,
        duration=duration,
        attempts=attempts,
        is_partial=partial is not None,
        machine=machine_name(),
        pid=pid or os.getpid(),
        warnings=warnings,
    )


def unreadable_result(problem: CallProblem) -> ToolResult:
    """The result of a call that could not be read."""
    details = {"raw": problem.raw, "length": problem.length}
    if problem.position is not None:
        details["position"] = problem.position
    info = ErrorInfo.from_code(
        problem.code, redact(problem.to_observation()), redact_value(details)
    )
    return ToolResult(
        tool=problem.name or "unknown",
        call_id=problem.call_id,
        error_info=info,
        attempts=0,
    )


def cancelled_result(
    request: ToolRequest, exc: BaseException, shop: Workshop
) -> ToolResult:
    """The result of a call that was cancelled by itself, or by a shutdown."""
    error = ToolCancelledError(CANCELLED, original_error=exc)
    began = request.began
    return failed_result(
        request.call,
        error,
        attempts=request.attempts,
        start_time=0.0 if began is None else began + shop.offset,
        duration=0.0 if began is None else shop.clock.monotonic() - began,
    )


def odd_result(call: ToolCall, exc: BaseException, attempts: int) -> ToolResult:
    """The result of a call that was ended by what is no `Exception`.

    Raises:
        BaseException: What is to end the program.
    """
    failure = odd_failure(exc, call.name)
    if failure is None:
        raise exc
    failure.__cause__ = exc
    if not isinstance(failure, Exception):
        raise failure
    return failed_result(call, failure, attempts=attempts)


def unusable_result(call: ToolCall, value: object, exc: Exception) -> Exception:
    """The error of a tool whose value cannot be kept."""
    msg = (
        f"Tool '{call.name}' returned a {type(value).__name__} that is no result: "
        f"{redact_exception_text(exc)}"
    )
    return ToolProcessorError(
        msg, ErrorCode.TOOL_RESULT_ERROR, {"tool_name": call.name}, exc
    )


def over_budget_result(call: ToolCall, cost: float, left: float) -> ToolResult:
    """The result of a call that costs more than is left of the request's budget."""
    msg = (
        f"Tool '{call.name}' was not run: it costs {cost:g} units, and {left:g} of the "
        "request's budget are left"
    )
    return failed_result(call, BudgetExhaustedError(msg), attempts=0)


def _text(exc: BaseException, call: ToolCall) -> str:
    if isinstance(exc, ToolTimeoutError):
        return f"Timeout after {exc.details.get('timeout')}s"
    if isinstance(exc, ToolNotFoundError):
        return _not_found(exc, call)
    if isinstance(exc, asyncio.CancelledError):
        return CANCELLED
    return redact_exception_text(exc)


def _not_found(exc: ToolNotFoundError, call: ToolCall) -> str:
    if "candidates" in exc.details:  # there are several, and the text says which
        return redact_exception_text(exc)
    if exc.details.get("tool_name") not in {call.name, None} and "." not in call.name:
        return redact_exception_text(exc)  # the tool's own, about something else
    space = exc.details.get("namespace", "default")
    where = "any namespace" if space == "default" else f"namespace '{space}'"
    close = exc.details.get("suggestions") or ()
    hint = f"; did you mean {', '.join(map(repr, close))}?" if close else ""
    return f"Tool '{call.name}' not found in {where}{hint}"
