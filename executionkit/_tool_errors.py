"""The tool side of the error tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from executionkit._error_base import ExecutionKitError, portable, text_of
from executionkit._error_codes import BulkheadLimitType, ErrorCode
from executionkit._error_info import ErrorInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = (
    "BulkheadFullError",
    "BulkheadLimitType",
    "MCPConnectionError",
    "MCPError",
    "MCPTimeoutError",
    "ParserError",
    "StateStoreError",
    "ToolCancelledError",
    "ToolCircuitOpenError",
    "ToolExecutionError",
    "ToolIdempotencyError",
    "ToolNotFoundError",
    "ToolProcessorError",
    "ToolRateLimitedError",
    "ToolReentrantError",
    "ToolRegistrationError",
    "ToolTimeoutError",
    "ToolValidationError",
)


class ToolProcessorError(ExecutionKitError):
    """Anything that goes wrong on the tool side.

    Args:
        message: What happened.
        code: Its stable name.
        details: JSON-like facts, safe to log.
        original_error: The exception that the tool raised, when there is one.
        retry_after_ms: Milliseconds to wait before trying again.
    """

    default_code = ErrorCode.TOOL_EXECUTION_FAILED
    tells_attempts = False  # they stand in the result

    def __init__(
        self,
        message: str = "",
        code: ErrorCode | None = None,
        details: Mapping[str, Any] | None = None,
        original_error: BaseException | None = None,
        retry_after_ms: float | None = None,
    ) -> None:
        super().__init__(message)
        self._code = code or self.default_code
        self.details: dict[str, Any] = dict(details or {})
        self.original_error = original_error
        if retry_after_ms is not None:
            self.retry_after = retry_after_ms / 1000

    @property
    def code(self) -> ErrorCode:
        return self._code

    @property
    def retry_after_ms(self) -> int | None:
        """`retry_after` in whole milliseconds."""
        return None if self.retry_after is None else round(self.retry_after * 1000)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, (cls, args, state) = super().__reduce__()
        if self.original_error is not None:
            state["original_error"] = portable(self.original_error)
        return rebuild, (cls, args, state)

    def to_error_info(self) -> ErrorInfo:
        """The error as the value that a `ToolResult` carries."""
        return ErrorInfo.from_exception(self)

    def to_dict(self) -> dict[str, Any]:
        """The error as JSON-like data."""
        return {
            "error": type(self).__name__,
            "code": self.code.value,
            "category": self.category.value,
            "message": self.message,
            "retryable": self.retryable,
            "retry_after_ms": self.retry_after_ms,
            "details": dict(self.details),
        }


class ToolNotFoundError(ToolProcessorError):
    """No tool of that name; `details["suggestions"]` has up to three close names."""

    default_code = ErrorCode.TOOL_NOT_FOUND

    def __init__(
        self,
        tool_name: str,
        namespace: str = "default",
        available_tools: Iterable[str] = (),
        available_namespaces: Iterable[str] = (),
    ) -> None:
        import difflib

        tools = list(available_tools)
        close = difflib.get_close_matches(tool_name, tools, n=3, cutoff=0.6)
        hint = f"; did you mean {', '.join(map(repr, close))}?" if close else ""
        super().__init__(
            f"Tool '{tool_name}' not found in namespace '{namespace}'{hint}",
            details={
                "tool_name": tool_name,
                "namespace": namespace,
                "available_tools": tools,
                "available_namespaces": list(available_namespaces),
                "suggestions": close,
            },
        )


class ToolExecutionError(ToolProcessorError):
    """The tool raised; `original_error` is what it raised."""

    def __init__(
        self,
        tool_name: str,
        original_error: BaseException | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        why = "unknown error"
        if original_error is not None:
            why = f"{type(original_error).__name__}: {text_of(original_error)}"
        super().__init__(
            f"Tool '{tool_name}' failed: {why}",
            details={"tool_name": tool_name, **(details or {})},
            original_error=original_error,
        )


class ToolTimeoutError(ToolProcessorError):
    """The tool ran longer than its timeout (seconds)."""

    default_code = ErrorCode.TOOL_TIMEOUT

    def __init__(self, tool_name: str, timeout: float, attempts: int = 1) -> None:
        super().__init__(
            f"Tool '{tool_name}' timed out after {timeout}s (attempts: {attempts})",
            details={"tool_name": tool_name, "timeout": timeout, "attempts": attempts},
        )
        self.attempts = attempts


class ToolValidationError(ToolProcessorError):
    """Arguments or a result do not match the tool's schema."""

    default_code = ErrorCode.TOOL_VALIDATION_ERROR

    def __init__(
        self, tool_name: str, errors: Any = None, validation_type: str = "arguments"
    ) -> None:
        super().__init__(
            f"Tool '{tool_name}' {validation_type} are not valid: {errors}",
            details={
                "tool_name": tool_name,
                "validation_type": validation_type,
                "errors": errors,
            },
        )


class ParserError(ToolProcessorError):
    """A text could not be read as tool calls."""

    default_code = ErrorCode.PARSER_ERROR

    def __init__(
        self, message: str, parser_name: str = "", input_sample: str = ""
    ) -> None:
        sample = input_sample[:200] + ("..." if len(input_sample) > 200 else "")
        super().__init__(
            message, details={"parser_name": parser_name, "input_sample": sample}
        )


class ToolRateLimitedError(ToolProcessorError):
    """No permit can be had before the deadline, or the tool's own service said so."""

    default_code = ErrorCode.TOOL_RATE_LIMITED

    def __init__(
        self,
        tool_name: str,
        retry_after: float | None = None,
        limit: int | None = None,
        period: float | None = None,
    ) -> None:
        rate = "" if limit is None else f" ({limit} per {period}s)"
        when = "" if retry_after is None else f"; next permit in {retry_after:.3f}s"
        ms = None if retry_after is None else retry_after * 1000
        super().__init__(
            f"Tool '{tool_name}' is rate limited{rate}{when}",
            details={
                "tool_name": tool_name,
                "limit": limit,
                "period": period,
                "retry_after_ms": ms,
            },
            retry_after_ms=ms,
        )


class ToolCircuitOpenError(ToolProcessorError):
    """The tool's circuit breaker is open: the call was not tried."""

    default_code = ErrorCode.TOOL_CIRCUIT_OPEN

    def __init__(
        self, tool_name: str, failure_count: int = 0, reset_timeout: float | None = None
    ) -> None:
        when = "" if reset_timeout is None else f" (reset in {reset_timeout:.1f}s)"
        ms = None if reset_timeout is None else reset_timeout * 1000
        super().__init__(
            f"Tool '{tool_name}' circuit breaker is open "
            f"(failures: {failure_count}){when}",
            details={
                "tool_name": tool_name,
                "failure_count": failure_count,
                "reset_timeout": reset_timeout,
                "retry_after_ms": ms,
            },
            retry_after_ms=ms,
        )


class BulkheadFullError(ToolProcessorError):
    """No slot was free in time; `limit_type` says which limit was full."""

    default_code = ErrorCode.BULKHEAD_FULL

    def __init__(
        self,
        tool_name: str,
        namespace: str = "default",
        limit_type: BulkheadLimitType = BulkheadLimitType.TOOL,
        limit: int = 0,
        timeout: float | None = None,
    ) -> None:
        waited = "" if timeout is None else f" after waiting {timeout}s"
        super().__init__(
            f"Bulkhead full for '{tool_name}': {limit_type.value} limit "
            f"({limit}) reached{waited}",
            details={
                "tool_name": tool_name,
                "namespace": namespace,
                "limit_type": limit_type.value,
                "limit": limit,
                "timeout": timeout,
            },
        )
        self.tool_name = tool_name
        self.namespace = namespace
        self.limit_type = limit_type
        self.limit = limit
        self.timeout = timeout


class ToolCancelledError(ToolProcessorError):
    """The runtime itself called the tool off (shutdown, skip, lost race)."""

    default_code = ErrorCode.TOOL_CANCELLED


class ToolIdempotencyError(ToolProcessorError):
    """An idempotency key stands in the way of the call; nothing was run.

    `reason` (also in `details`) says why: `"conflict"` (the key belongs to a call with
    another tool or other arguments), `"in_progress"` (another process is still at it),
    `"in_doubt"` (the first call was broken off after it had started),
    `"not_kept"` (it is done, but its value could not be stored), or
    `"not_comparable"` (the arguments have no canonical form).
    """

    default_code = ErrorCode.TOOL_IDEMPOTENCY_CONFLICT

    def __init__(
        self, tool_name: str, idempotency_key: str, reason: str, why: str
    ) -> None:
        super().__init__(
            f"Tool '{tool_name}' was not run: idempotency key {idempotency_key!r} {why}",
            details={
                "tool_name": tool_name,
                "idempotency_key": idempotency_key,
                "reason": reason,
            },
        )
        self.reason = reason


class ToolReentrantError(ToolProcessorError):
    """A tool called itself with equal arguments, where equal calls run once."""

    default_code = ErrorCode.TOOL_REENTRANT

    def __init__(self, tool_name: str) -> None:
        super().__init__(
            f"Tool '{tool_name}' was not run: it would wait for an equal call that "
            "waits for it; call it with other arguments, or uncached",
            details={"tool_name": tool_name},
        )


class StateStoreError(ToolProcessorError):
    """A shared store of state (cache, limits, keys) failed or did not answer in time."""

    default_code = ErrorCode.STATE_STORE_FAILED


class ToolBlockedError(ToolProcessorError):
    """A guard refused the call, or refused to hand out its output.

    Args:
        tool_name: The tool's full name.
        guard: The name of the guard that said no.
        reason: Its words, without secrets.
        stage: `"call"` when the tool was not started, `"output"` when it had run.
        details: More facts of the guard, without secrets.
    """

    default_code = ErrorCode.TOOL_BLOCKED

    def __init__(
        self,
        tool_name: str,
        guard: str = "",
        reason: str = "",
        stage: str = "call",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        what = "The output of tool" if stage == "output" else "Tool"
        super().__init__(
            f"{what} '{tool_name}' was blocked by the guard '{guard}': {reason}",
            details={
                **(details or {}),
                "tool_name": tool_name,
                "guard": guard,
                "reason": reason,
                "stage": stage,
            },
        )
        self.tool_name = tool_name
        self.guard = guard
        self.reason = reason
        self.stage = stage


class ToolRegistrationError(ToolProcessorError):
    """A tool cannot be registered as asked."""

    default_code = ErrorCode.TOOL_REGISTRATION_FAILED


class MCPError(ToolProcessorError):
    """An MCP server answered with an error."""

    default_code = ErrorCode.MCP_SERVER_ERROR

    def __init__(
        self,
        server_name: str,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            f"MCP server '{server_name}': {reason or 'error'}",
            details={"server_name": server_name, "reason": reason, **(details or {})},
        )


class MCPConnectionError(MCPError):
    """The connection to an MCP server failed or is gone."""

    default_code = ErrorCode.MCP_CONNECTION_FAILED


class MCPTimeoutError(MCPError):
    """An MCP server did not answer in time (seconds)."""

    default_code = ErrorCode.MCP_TIMEOUT

    def __init__(self, server_name: str, operation: str, timeout: float) -> None:
        super().__init__(
            server_name,
            f"{operation} timed out after {timeout}s",
            details={"operation": operation, "timeout": timeout},
        )
