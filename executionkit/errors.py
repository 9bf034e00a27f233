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
|     |- StreamError               a stream that broke, ended early or said "error"
|     `- AllProvidersFailedError   no provider of a `FallbackProvider` answered
|- PatternError                    the pattern's own rule was broken
|  |- BudgetExhaustedError         `max_cost` leaves no room for the next call
|  |  `- RequestTooLargeError      one request sends more than `max_cost` allows it
|  |- ConsensusFailedError         the samples do not agree, or none can vote
|  |- MaxIterationsError           the round limit was reached
|  |  `- NoProgressError           the same rounds came again and again
|  |- EvaluatorError               a user's evaluator or validator failed
|  |- DeadlineExceededError        the deadline of the request leaves no time
|  |- StepTimeoutError             an attempt at a step took longer than its limit
|  `- WorkflowError                steps that cannot be run as given (also ValueError)
|- ApprovalDeniedError             a person or a rule said no
|  `- ApprovalInvalidError         an answer for something else, or a used one
|- ApprovalTimeoutError            nobody answered in time
|- ApprovalPendingError            somebody will answer later: run again then
|- JournalError                    a journal cannot be used
|  |- JournalLockedError           somebody else is at work on the same run
|  |- JournalMismatchError         the program is not the one that is on record
|  |- InDoubtError                 had begun when a run broke off: done or not?
|  `- JournalValueError            a value cannot be kept (also ValueError)
|- RecordedError                   a failure on record, of a type unknown here
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
   |- ToolBlockedError           a guard refused the call or its output
   |- ToolRegistrationError
   |- ToolIdempotencyError       the call's idempotency key forbids to run it
   |- ToolReentrantError         it would wait for itself: an equal call is above it
   |- StateStoreError            a shared store of state failed
   `- MCPError
      |- MCPConnectionError
      `- MCPTimeoutError
```

Every error has `code`, `category`, `retryable`, `retry_after` and `cost`, and
survives pickling. Decide by type or `code`, never by the text of a message.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from executionkit._approval_errors import (
    ApprovalDeniedError,
    ApprovalInvalidError,
    ApprovalPendingError,
    ApprovalTimeoutError,
)
from executionkit._error_base import ExecutionKitError
from executionkit._error_codes import (
    ERROR_CODE_TO_CATEGORY,
    NON_RETRYABLE_CATEGORIES,
    RETRYABLE_CATEGORIES,
    ErrorCategory,
    ErrorCode,
    get_category_for_code,
    is_retryable_category,
)
from executionkit._journal_errors import (
    InDoubtError,
    JournalError,
    JournalLockedError,
    JournalMismatchError,
    JournalValueError,
    RecordedError,
)
from executionkit._tool_errors import (
    BulkheadFullError,
    BulkheadLimitType,
    MCPConnectionError,
    MCPError,
    MCPTimeoutError,
    ParserError,
    StateStoreError,
    ToolBlockedError,
    ToolCancelledError,
    ToolCircuitOpenError,
    ToolExecutionError,
    ToolIdempotencyError,
    ToolNotFoundError,
    ToolProcessorError,
    ToolRateLimitedError,
    ToolReentrantError,
    ToolRegistrationError,
    ToolTimeoutError,
    ToolValidationError,
)
from executionkit.types import sealed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from executionkit.types import TokenUsage

__all__ = (
    "ERROR_CODE_TO_CATEGORY",
    "NON_RETRYABLE_CATEGORIES",
    "RETRYABLE_CATEGORIES",
    "AllProvidersFailedError",
    "ApprovalDeniedError",
    "ApprovalInvalidError",
    "ApprovalPendingError",
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
    "InDoubtError",
    "JournalError",
    "JournalLockedError",
    "JournalMismatchError",
    "JournalValueError",
    "LLMError",
    "MCPConnectionError",
    "MCPError",
    "MCPTimeoutError",
    "MaxIterationsError",
    "MissingExtraError",
    "NoProgressError",
    "ParserError",
    "PatternError",
    "PermanentError",
    "ProviderConnectionError",
    "ProviderError",
    "ProviderFailure",
    "ProviderTimeoutError",
    "RateLimitError",
    "RecordedError",
    "RequestTooLargeError",
    "StateStoreError",
    "StepTimeoutError",
    "StreamError",
    "ToolBlockedError",
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
    "WorkflowError",
    "get_category_for_code",
    "is_retryable_category",
    "require",
)


class LLMError(ExecutionKitError):
    """Talking to a model failed."""

    default_code = ErrorCode.LLM_ERROR
    partial_text: str = ""
    """What had been received of a streamed answer until then."""


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
    retry_limit: ClassVar[int | None] = 1


class StreamError(ProviderError):
    """A stream reported an error, broke, or ended before it was complete."""

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


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFailure:
    """Why one provider of several gave no answer."""

    name: str
    requests: int
    """Requests that were sent to it; 0 when it was passed over."""

    reason: str
    """Its error, or why it was passed over; without secrets."""

    code: ErrorCode | None = None
    """The code of its error; None when it was passed over, or the error has none."""


class AllProvidersFailedError(ProviderError):
    """No provider of a `FallbackProvider` answered.

    `retry_after` says when the first of them can be asked again, if all have to rest.
    """

    def __init__(
        self,
        message: str = "",
        *,
        failures: Sequence[ProviderFailure] = (),
        cost: TokenUsage | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, cost=cost, metadata=metadata)
        self.failures: tuple[ProviderFailure, ...] = tuple(failures)
        """One for each provider, in their order."""


class PatternError(ExecutionKitError):
    """A pattern's own rule was broken."""

    default_code = ErrorCode.PATTERN_FAILED


class BudgetExhaustedError(PatternError):
    """`max_cost` leaves no room for the next call."""

    default_code = ErrorCode.BUDGET_EXHAUSTED


class RequestTooLargeError(BudgetExhaustedError):
    """One request would send more than `CostLimit.request_input_tokens`."""


class ConsensusFailedError(PatternError):
    """The samples do not agree as asked, or none of them can vote."""

    default_code = ErrorCode.CONSENSUS_FAILED


class MaxIterationsError(PatternError):
    """The round limit was reached before the model finished."""

    default_code = ErrorCode.MAX_ITERATIONS


class NoProgressError(MaxIterationsError):
    """A tool loop went round in circles: equal calls, equal results."""


class EvaluatorError(PatternError):
    """A user's evaluator, validator, normaliser or callback failed."""

    default_code = ErrorCode.EVALUATOR_FAILED


class DeadlineExceededError(PatternError):
    """The deadline of the request leaves no time for the next step."""

    default_code = ErrorCode.DEADLINE_EXCEEDED


class StepTimeoutError(PatternError):
    """An attempt at a step of a workflow or a plan took longer than its `timeout`."""

    default_code = ErrorCode.STEP_TIMEOUT


class WorkflowError(PatternError, ValueError):
    """Steps that cannot be run as they are given; nothing has been run.

    One error reports all there is. `metadata` holds, for those kinds that occur,
    `duplicate_names` and `self_dependencies` (lists of names), `unknown_dependencies`
    (name to the names that do not exist), `cycles` (lists of members, without what only
    waits for them), and `problems` (texts, of a plan that was parsed).
    """

    default_code = ErrorCode.CONFIGURATION_ERROR


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
        missing = exc.name or module
        wanted = module == missing or module.startswith(f"{missing}.")
        what = f"`{module}` is" if wanted else f"`{module}` needs `{missing}`, which is"
        msg = f"{what} not installed; run: pip install 'executionkit[{extra}]'"
        raise MissingExtraError(msg, extra=extra) from exc
