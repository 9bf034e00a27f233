"""Reliable, composable calls to language models and to tools.

Everything public is importable from here and loaded on first use, so the import
itself costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executionkit._llm import (
        OMIT as OMIT,
        LLMProvider as LLMProvider,
        LLMResponse as LLMResponse,
        ReasoningDelta as ReasoningDelta,
        StreamEnd as StreamEnd,
        StreamEvent as StreamEvent,
        StreamingProvider as StreamingProvider,
        TextDelta as TextDelta,
        ToolCallDelta as ToolCallDelta,
        ToolCallingProvider as ToolCallingProvider,
        UsageUpdate as UsageUpdate,
    )
    from executionkit._mock import MockProvider as MockProvider
    from executionkit._sync import (
        consensus_sync as consensus_sync,
        map_reduce_sync as map_reduce_sync,
        pipe_sync as pipe_sync,
        react_loop_sync as react_loop_sync,
        refine_loop_sync as refine_loop_sync,
        structured_sync as structured_sync,
    )
    from executionkit.anthropic import AnthropicProvider as AnthropicProvider
    from executionkit.approval import (
        ApprovalCallback as ApprovalCallback,
        ApprovalDecision as ApprovalDecision,
        ApprovalGate as ApprovalGate,
        ApprovalRequest as ApprovalRequest,
    )
    from executionkit.calls import (
        CallProblem as CallProblem,
        ErrorInfo as ErrorInfo,
        ReturnOrder as ReturnOrder,
        ToolCall as ToolCall,
        ToolResult as ToolResult,
        ToolRunner as ToolRunner,
    )
    from executionkit.compose import PatternStep as PatternStep, pipe as pipe
    from executionkit.context import (
        ContextHeader as ContextHeader,
        ContextKey as ContextKey,
        ExecutionContext as ExecutionContext,
        execution_scope as execution_scope,
        get_current_context as get_current_context,
        set_current_context as set_current_context,
    )
    from executionkit.cost import (
        CostLimit as CostLimit,
        CostTracker as CostTracker,
        Prices as Prices,
        estimate_cost as estimate_cost,
    )
    from executionkit.engine.breaker import (
        BreakerConfig as BreakerConfig,
        CircuitBreaker as CircuitBreaker,
    )
    from executionkit.engine.bulkhead import (
        Bulkhead as Bulkhead,
        BulkheadConfig as BulkheadConfig,
        BulkheadStats as BulkheadStats,
    )
    from executionkit.engine.convergence import (
        ConvergenceDetector as ConvergenceDetector,
    )
    from executionkit.engine.json_extraction import extract_json as extract_json
    from executionkit.engine.rate_bucket import (
        SlidingWindow as SlidingWindow,
        TokenBucket as TokenBucket,
    )
    from executionkit.engine.retry import (
        DEFAULT_RETRY as DEFAULT_RETRY,
        RetryConfig as RetryConfig,
    )
    from executionkit.engine.schema import SchemaError as SchemaError
    from executionkit.engine.voting import (
        answer_normalizer as answer_normalizer,
        casefold_normalizer as casefold_normalizer,
        numeric_normalizer as numeric_normalizer,
    )
    from executionkit.errors import (
        ApprovalDeniedError as ApprovalDeniedError,
        ApprovalTimeoutError as ApprovalTimeoutError,
        BadResponseError as BadResponseError,
        BudgetExhaustedError as BudgetExhaustedError,
        BulkheadFullError as BulkheadFullError,
        BulkheadLimitType as BulkheadLimitType,
        ConsensusFailedError as ConsensusFailedError,
        DeadlineExceededError as DeadlineExceededError,
        ErrorCategory as ErrorCategory,
        ErrorCode as ErrorCode,
        EvaluatorError as EvaluatorError,
        ExecutionKitError as ExecutionKitError,
        LLMError as LLMError,
        MaxIterationsError as MaxIterationsError,
        MissingExtraError as MissingExtraError,
        NoProgressError as NoProgressError,
        PatternError as PatternError,
        PermanentError as PermanentError,
        ProviderConnectionError as ProviderConnectionError,
        ProviderError as ProviderError,
        ProviderTimeoutError as ProviderTimeoutError,
        RateLimitError as RateLimitError,
        RequestTooLargeError as RequestTooLargeError,
        StreamError as StreamError,
    )
    from executionkit.kit import Kit as Kit
    from executionkit.local import LocalProvider as LocalProvider
    from executionkit.observability import (
        JsonlTraceSink as JsonlTraceSink,
        MemoryTraceSink as MemoryTraceSink,
        TraceCallback as TraceCallback,
        TraceEvent as TraceEvent,
        emit_trace as emit_trace,
    )
    from executionkit.patterns._generators import ProgressCallback as ProgressCallback
    from executionkit.patterns._history import Summarizer as Summarizer
    from executionkit.patterns.base import (
        checked_complete as checked_complete,
        checked_stream as checked_stream,
        validate_score as validate_score,
    )
    from executionkit.patterns.consensus import consensus as consensus
    from executionkit.patterns.map_reduce import map_reduce as map_reduce
    from executionkit.patterns.react_loop import react_loop as react_loop
    from executionkit.patterns.refine_loop import refine_loop as refine_loop
    from executionkit.patterns.structured import structured as structured
    from executionkit.provider import Provider as Provider
    from executionkit.types import (
        CheckpointCallback as CheckpointCallback,
        Evaluator as Evaluator,
        PatternResult as PatternResult,
        StreamingPatternResult as StreamingPatternResult,
        TerminationReason as TerminationReason,
        TokenUsage as TokenUsage,
        Tool as Tool,
        VotingStrategy as VotingStrategy,
        thaw as thaw,
    )

__version__ = "1.0.0"

_HOMES = {
    "_llm": (
        "LLMProvider LLMResponse OMIT ReasoningDelta StreamEnd StreamEvent "
        "StreamingProvider TextDelta ToolCallDelta ToolCallingProvider UsageUpdate"
    ),
    "_mock": "MockProvider",
    "_sync": (
        "consensus_sync map_reduce_sync pipe_sync react_loop_sync refine_loop_sync "
        "structured_sync"
    ),
    "anthropic": "AnthropicProvider",
    "approval": "ApprovalCallback ApprovalDecision ApprovalGate ApprovalRequest",
    "calls": "CallProblem ErrorInfo ReturnOrder ToolCall ToolResult ToolRunner",
    "compose": "PatternStep pipe",
    "context": (
        "ContextHeader ContextKey ExecutionContext execution_scope "
        "get_current_context set_current_context"
    ),
    "cost": "CostLimit CostTracker Prices estimate_cost",
    "engine.breaker": "BreakerConfig CircuitBreaker",
    "engine.bulkhead": "Bulkhead BulkheadConfig BulkheadStats",
    "engine.convergence": "ConvergenceDetector",
    "engine.json_extraction": "extract_json",
    "engine.rate_bucket": "SlidingWindow TokenBucket",
    "engine.retry": "DEFAULT_RETRY RetryConfig",
    "engine.schema": "SchemaError",
    "engine.voting": "answer_normalizer casefold_normalizer numeric_normalizer",
    "errors": (
        "ApprovalDeniedError ApprovalTimeoutError BadResponseError "
        "BudgetExhaustedError BulkheadFullError BulkheadLimitType "
        "ConsensusFailedError DeadlineExceededError ErrorCategory ErrorCode "
        "EvaluatorError ExecutionKitError LLMError MaxIterationsError "
        "MissingExtraError NoProgressError PatternError PermanentError "
        "ProviderConnectionError ProviderError ProviderTimeoutError RateLimitError "
        "RequestTooLargeError StreamError"
    ),
    "kit": "Kit",
    "local": "LocalProvider",
    "observability": (
        "JsonlTraceSink MemoryTraceSink TraceCallback TraceEvent emit_trace"
    ),
    "patterns._generators": "ProgressCallback",
    "patterns._history": "Summarizer",
    "patterns.base": "checked_complete checked_stream validate_score",
    "patterns.consensus": "consensus",
    "patterns.map_reduce": "map_reduce",
    "patterns.react_loop": "react_loop",
    "patterns.refine_loop": "refine_loop",
    "patterns.structured": "structured",
    "provider": "Provider",
    "types": (
        "CheckpointCallback Evaluator PatternResult StreamingPatternResult "
        "TerminationReason TokenUsage Tool VotingStrategy thaw"
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = tuple(sorted([*_HOME_OF, "__version__"]))  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        msg = f"module 'executionkit' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(f"executionkit.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
