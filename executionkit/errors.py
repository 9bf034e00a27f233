"""The whole error tree: model side, pattern side, tool side.

```text
ExecutionKitError
|- LLMError                        talking to a model failed
|  |- RateLimitError               HTTP 429; carries `retry_after`
|  |- PermanentError               will fail again: 400, 401, 403, 404, ...
|  `- ProviderError                may work next time: 5xx, dropped connections
|     |- ProviderConnectionError   refused, reset, closed, cut off in the body
|     |- ProviderTimeoutError      a connect, idle or total limit was reached
|     |- BadResponseError          an answer that is not what the API promises
|     `- StreamError               a stream that broke, ended early or said "error"
|- PatternError                    the pattern's own rule was broken
|  |- BudgetExhaustedError         `max_cost` leaves no room for the next call
|  |- ConsensusFailedError         the samples do not agree, or none can vote
|  |- MaxIterationsError           the round limit was reached
|  |- EvaluatorError               a user's evaluator or validator failed
|  `- DeadlineExceededError        the deadline of the request leaves no time
|- ApprovalDeniedError
|- ApprovalTimeoutError
|- MissingExtraError               an optional package is not installed (also ImportError)
`- ToolProcessorError              the tool side
   |- ToolNotFoundError
   |- ToolExecutionError
   |- ToolTimeoutError
   |- ToolValidationError
   |- ParserError
   |- ToolRateLimitedError
   |- ToolCircuitOpenError
   |- BulkheadFullError
   |- ToolCancelledError
   |- ToolRegistrationError
   `- MCPError
      |- MCPConnectionError
      `- MCPTimeoutError
```

Every error has `code`, `category`, `retryable`, `retry_after` and `cost`, and
survives pickling. Decide by type or `code`, never by the text of a message.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from executionkit.types import TokenUsage

if TYPE_CHECKING:
    from types import ModuleType

__all__ = (
    "ERROR_CODE_TO_CATEGORY",
    "NON_RETRYABLE_CATEGORIES",
    "RETRYABLE_CATEGORIES",
    "ApprovalDeniedError",
    "ApprovalTimeoutError",
    "BadResponseError",
    "BudgetExhaustedError",
    "BulkheadFullError",
    "BulkheadLimitType",
    "ConsensusFailedError",
    "DeadlineExceededError",
    "ErrorCategory",
    "ErrorCode",
    "EvaluatorError",
    "ExecutionKitError",
    "LLMError",
    "MCPConnectionError",
    "MCPError",
    "MCPTimeoutError",
    "MaxIterationsError",
    "MissingExtraError",
    "ParserError",
    "PatternError",
    "PermanentError",
    "ProviderConnectionError",
    "ProviderError",
    "ProviderTimeoutError",
    "RateLimitError",
    "StreamError",
    "ToolCancelledError",
    "ToolCircuitOpenError",
    "ToolExecutionError",
    "ToolNotFoundError",
    "ToolProcessorError",
    "ToolRateLimitedError",
    "ToolRegistrationError",
    "ToolTimeoutError",
    "ToolValidationError",
    "get_category_for_code",
    "is_retryable_category",
    "require",
)


class ErrorCategory(StrEnum):
    """What kind of failure it is; decides whether trying again can help."""

    RATE_LIMIT = "rate_limit"
    CIRCUIT_OPEN = "circuit_open"
    BULKHEAD_FULL = "bulkhead_full"
    TIMEOUT = "timeout"
    EXECUTION = "execution"
    CONNECTION = "connection"
    VALIDATION = "validation"
    NOT_FOUND = "not_found"
    CANCELLED = "cancelled"
    CONFIGURATION = "configuration"
    BUDGET = "budget"
    APPROVAL = "approval"


class ErrorCode(StrEnum):
    """A stable name for each failure; the value equals the name."""

    # model and pattern side
    LLM_ERROR = "LLM_ERROR"
    LLM_RATE_LIMITED = "LLM_RATE_LIMITED"
    LLM_PERMANENT = "LLM_PERMANENT"
    LLM_PROVIDER_ERROR = "LLM_PROVIDER_ERROR"
    LLM_CONNECTION_FAILED = "LLM_CONNECTION_FAILED"
    LLM_TIMEOUT = "LLM_TIMEOUT"
    LLM_BAD_RESPONSE = "LLM_BAD_RESPONSE"
    LLM_STREAM_FAILED = "LLM_STREAM_FAILED"
    PATTERN_FAILED = "PATTERN_FAILED"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    CONSENSUS_FAILED = "CONSENSUS_FAILED"
    MAX_ITERATIONS = "MAX_ITERATIONS"
    EVALUATOR_FAILED = "EVALUATOR_FAILED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    APPROVAL_DENIED = "APPROVAL_DENIED"
    APPROVAL_TIMEOUT = "APPROVAL_TIMEOUT"
    MISSING_EXTRA = "MISSING_EXTRA"
    # tool side
    TOOL_RATE_LIMITED = "TOOL_RATE_LIMITED"
    TOOL_CIRCUIT_OPEN = "TOOL_CIRCUIT_OPEN"
    BULKHEAD_FULL = "BULKHEAD_FULL"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    TOOL_TIMEOUT = "TOOL_TIMEOUT"
    MCP_TIMEOUT = "MCP_TIMEOUT"
    TOOL_EXECUTION_FAILED = "TOOL_EXECUTION_FAILED"
    MCP_SERVER_ERROR = "MCP_SERVER_ERROR"
    MCP_CONNECTION_FAILED = "MCP_CONNECTION_FAILED"
    MCP_TRANSPORT_ERROR = "MCP_TRANSPORT_ERROR"
    TOOL_VALIDATION_ERROR = "TOOL_VALIDATION_ERROR"
    TOOL_ARGUMENT_ERROR = "TOOL_ARGUMENT_ERROR"
    TOOL_RESULT_ERROR = "TOOL_RESULT_ERROR"
    PARSER_ERROR = "PARSER_ERROR"
    PARSER_INVALID_FORMAT = "PARSER_INVALID_FORMAT"
    TOOL_NOT_FOUND = "TOOL_NOT_FOUND"
    TOOL_CANCELLED = "TOOL_CANCELLED"
    TOOL_REGISTRATION_FAILED = "TOOL_REGISTRATION_FAILED"
    CONFIGURATION_ERROR = "CONFIGURATION_ERROR"


_C = ErrorCategory
ERROR_CODE_TO_CATEGORY: Mapping[ErrorCode, ErrorCategory] = {
    ErrorCode.LLM_ERROR: _C.EXECUTION,
    ErrorCode.LLM_RATE_LIMITED: _C.RATE_LIMIT,
    ErrorCode.LLM_PERMANENT: _C.VALIDATION,
    ErrorCode.LLM_PROVIDER_ERROR: _C.EXECUTION,
    ErrorCode.LLM_CONNECTION_FAILED: _C.CONNECTION,
    ErrorCode.LLM_TIMEOUT: _C.TIMEOUT,
    ErrorCode.LLM_BAD_RESPONSE: _C.EXECUTION,
    ErrorCode.LLM_STREAM_FAILED: _C.CONNECTION,
    ErrorCode.PATTERN_FAILED: _C.VALIDATION,
    ErrorCode.BUDGET_EXHAUSTED: _C.BUDGET,
    ErrorCode.CONSENSUS_FAILED: _C.VALIDATION,
    ErrorCode.MAX_ITERATIONS: _C.BUDGET,
    ErrorCode.EVALUATOR_FAILED: _C.VALIDATION,
    ErrorCode.DEADLINE_EXCEEDED: _C.BUDGET,
    ErrorCode.APPROVAL_DENIED: _C.APPROVAL,
    ErrorCode.APPROVAL_TIMEOUT: _C.APPROVAL,
    ErrorCode.MISSING_EXTRA: _C.CONFIGURATION,
    ErrorCode.TOOL_RATE_LIMITED: _C.RATE_LIMIT,
    ErrorCode.TOOL_CIRCUIT_OPEN: _C.CIRCUIT_OPEN,
    ErrorCode.BULKHEAD_FULL: _C.BULKHEAD_FULL,
    ErrorCode.RESOURCE_EXHAUSTED: _C.BULKHEAD_FULL,
    ErrorCode.TOOL_TIMEOUT: _C.TIMEOUT,
    ErrorCode.MCP_TIMEOUT: _C.TIMEOUT,
    ErrorCode.TOOL_EXECUTION_FAILED: _C.EXECUTION,
    ErrorCode.MCP_SERVER_ERROR: _C.EXECUTION,
    ErrorCode.MCP_CONNECTION_FAILED: _C.CONNECTION,
    ErrorCode.MCP_TRANSPORT_ERROR: _C.CONNECTION,
    ErrorCode.TOOL_VALIDATION_ERROR: _C.VALIDATION,
    ErrorCode.TOOL_ARGUMENT_ERROR: _C.VALIDATION,
    ErrorCode.TOOL_RESULT_ERROR: _C.VALIDATION,
    ErrorCode.PARSER_ERROR: _C.VALIDATION,
    ErrorCode.PARSER_INVALID_FORMAT: _C.VALIDATION,
    ErrorCode.TOOL_NOT_FOUND: _C.NOT_FOUND,
    ErrorCode.TOOL_CANCELLED: _C.CANCELLED,
    ErrorCode.TOOL_REGISTRATION_FAILED: _C.CONFIGURATION,
    ErrorCode.CONFIGURATION_ERROR: _C.CONFIGURATION,
}
"""The category of each code."""

RETRYABLE_CATEGORIES = frozenset(
    {
        _C.RATE_LIMIT,
        _C.CIRCUIT_OPEN,
        _C.BULKHEAD_FULL,
        _C.TIMEOUT,
        _C.EXECUTION,
        _C.CONNECTION,
    }
)
"""Categories in which the same request may succeed later."""

NON_RETRYABLE_CATEGORIES = frozenset(ErrorCategory) - RETRYABLE_CATEGORIES
"""Categories in which the same request fails again."""


def get_category_for_code(code: ErrorCode) -> ErrorCategory:
    """The category that `code` belongs to."""
    return ERROR_CODE_TO_CATEGORY[code]


def is_retryable_category(category: ErrorCategory) -> bool:
    """Whether the same request may succeed later."""
    return category in RETRYABLE_CATEGORIES


def _rebuild(
    cls: type[ExecutionKitError], args: tuple[Any, ...], state: dict[str, Any]
) -> ExecutionKitError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ExecutionKitError(Exception):
    """The root of all errors that this library raises on purpose.

    Args:
        message: What happened, with the value and the remedy.
        cost: What had been spent when it happened; zero when unknown.
        metadata: Facts about the failed run (partial results among them).
    """

    default_code: ClassVar[ErrorCode] = ErrorCode.LLM_ERROR
    retry_limit: ClassVar[int | None] = None
    """Retries that make sense for this kind of failure at most. None = no own limit."""

    def __init__(
        self,
        message: str = "",
        *,
        cost: TokenUsage | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.cost: TokenUsage = cost if cost is not None else TokenUsage()
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.attempts: int = 0
        """Requests or calls that were really dispatched; 0 when not counted."""
        self.retries_exhausted: bool = False
        """True once a retry layer gave up on it: outer layers do not try again."""
        self._retry_after: float | None = None

    @property
    def code(self) -> ErrorCode:
        """The stable name of the failure."""
        return self.default_code

    @property
    def category(self) -> ErrorCategory:
        """The kind of failure."""
        return ERROR_CODE_TO_CATEGORY[self.code]

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.category in RETRYABLE_CATEGORIES

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait before trying again, when the other side said so."""
        return self._retry_after

    @retry_after.setter
    def retry_after(self, seconds: float | None) -> None:
        self._retry_after = seconds

    @property
    def message(self) -> str:
        """The text of the error."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())


class LLMError(ExecutionKitError):
    """Talking to a model failed."""


class RateLimitError(LLMError):
    """The provider answered 429: too many requests.

    Args:
        message: What happened.
        retry_after: Seconds the server asks to wait; 1.0 when it did not say.
        retry_after_known: Whether the server said so itself.
        cost: Spent so far.
        metadata: More facts.
    """

    default_code = ErrorCode.LLM_RATE_LIMITED

    def __init__(
        self,
        message: str = "",
        *,
        retry_after: float = 1.0,
        retry_after_known: bool = True,
        cost: TokenUsage | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, cost=cost, metadata=metadata)
        self.retry_after = retry_after
        self.retry_after_known = retry_after_known


class PermanentError(LLMError):
    """The same request will fail again: do not retry."""

    default_code = ErrorCode.LLM_PERMANENT


class ProviderError(LLMError):
    """The request failed, but may work next time."""

    default_code = ErrorCode.LLM_PROVIDER_ERROR


class ProviderConnectionError(ProviderError):
    """The connection was refused, reset, closed, or ended inside a body."""

    default_code = ErrorCode.LLM_CONNECTION_FAILED


class ProviderTimeoutError(ProviderError):
    """A time limit was reached; the message names which one and its setting."""

    default_code = ErrorCode.LLM_TIMEOUT


class BadResponseError(ProviderError):
    """The server answered something that its API does not promise."""

    default_code = ErrorCode.LLM_BAD_RESPONSE
    retry_limit = 1


class StreamError(ProviderError):
    """A stream reported an error, broke, or ended before it was complete.

    `partial_text` holds the text received until then.
    """

    default_code = ErrorCode.LLM_STREAM_FAILED

    def __init__(
        self,
        message: str = "",
        *,
        partial_text: str = "",
        cost: TokenUsage | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, cost=cost, metadata=metadata)
        self.partial_text = partial_text


class PatternError(ExecutionKitError):
    """A pattern's own rule was broken."""

    default_code = ErrorCode.PATTERN_FAILED


class BudgetExhaustedError(PatternError):
    """`max_cost` leaves no room for the next call."""

    default_code = ErrorCode.BUDGET_EXHAUSTED


class ConsensusFailedError(PatternError):
    """The samples do not agree as asked, or none of them can vote."""

    default_code = ErrorCode.CONSENSUS_FAILED


class MaxIterationsError(PatternError):
    """The round limit was reached before the model finished."""

    default_code = ErrorCode.MAX_ITERATIONS


class EvaluatorError(PatternError):
    """A user's evaluator, validator, normaliser or callback failed."""

    default_code = ErrorCode.EVALUATOR_FAILED


class DeadlineExceededError(PatternError):
    """The deadline of the request leaves no time for the next step."""

    default_code = ErrorCode.DEADLINE_EXCEEDED


class ApprovalDeniedError(ExecutionKitError):
    """An approval gate said no."""

    default_code = ErrorCode.APPROVAL_DENIED


class ApprovalTimeoutError(ExecutionKitError):
    """Nobody answered an approval request in time."""

    default_code = ErrorCode.APPROVAL_TIMEOUT


class MissingExtraError(ExecutionKitError, ImportError):
    """An optional package is needed and not installed."""

    default_code = ErrorCode.MISSING_EXTRA

    def __init__(self, message: str = "", *, extra: str = "") -> None:
        super().__init__(message)
        self.extra = extra


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional package, or say how to install it.

    Args:
        module: The module's import name.
        extra: The extra of this distribution that brings it.

    Raises:
        MissingExtraError: When it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        msg = (
            f"`{module}` is not installed; "
            f"run: pip install 'executionkit[{extra}]'"
        )
        raise MissingExtraError(msg, extra=extra) from exc


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

    def to_dict(self) -> dict[str, Any]:
        """The error as JSON-like data."""
        return {
            "error": type(self).__name__,
            "code": self.code.value,
            "category": self.category.value,
            "message": str(self),
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
        why = f"{type(original_error).__name__}: {original_error}"
        super().__init__(
            f"Tool '{tool_name}' failed: {why if original_error else 'unknown error'}",
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
        self,
        tool_name: str,
        errors: Any = None,
        validation_type: str = "arguments",
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
    """No permit can be had before the deadline."""

    default_code = ErrorCode.TOOL_RATE_LIMITED

    def __init__(
        self,
        tool_name: str,
        retry_after: float | None = None,
        limit: int | None = None,
        period: float | None = None,
    ) -> None:
        when = "" if retry_after is None else f"; next permit in {retry_after:.3f}s"
        ms = None if retry_after is None else retry_after * 1000
        super().__init__(
            f"Tool '{tool_name}' is rate limited ({limit} per {period}s){when}",
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


class BulkheadLimitType(StrEnum):
    """Which limit of a bulkhead was full."""

    TOOL = "tool"
    PATTERN = "pattern"
    NAMESPACE = "namespace"
    GLOBAL = "global"
    QUEUE_DEPTH = "queue_depth"


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


class ToolRegistrationError(ToolProcessorError):
    """A tool cannot be registered as asked."""

    default_code = ErrorCode.TOOL_REGISTRATION_FAILED


class MCPError(ToolProcessorError):
    """An MCP server answered with an error."""

    default_code = ErrorCode.MCP_SERVER_ERROR

    def __init__(
        self, server_name: str, reason: str = "", details: Mapping[str, Any] | None = None
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
