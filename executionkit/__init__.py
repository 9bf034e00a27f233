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
    )
    from executionkit._llm import (
        LLMProvider as LLMProvider,
    )
    from executionkit._llm import (
        LLMResponse as LLMResponse,
    )
    from executionkit._llm import (
        ReasoningDelta as ReasoningDelta,
    )
    from executionkit._llm import (
        StreamEnd as StreamEnd,
    )
    from executionkit._llm import (
        StreamEvent as StreamEvent,
    )
    from executionkit._llm import (
        StreamingProvider as StreamingProvider,
    )
    from executionkit._llm import (
        TextDelta as TextDelta,
    )
    from executionkit._llm import (
        ToolCallDelta as ToolCallDelta,
    )
    from executionkit._llm import (
        ToolCallingProvider as ToolCallingProvider,
    )
    from executionkit._llm import (
        UsageUpdate as UsageUpdate,
    )
    from executionkit._mock import MockProvider as MockProvider
    from executionkit._sync import (
        consensus_sync as consensus_sync,
    )
    from executionkit._sync import (
        map_reduce_sync as map_reduce_sync,
    )
    from executionkit._sync import (
        pipe_sync as pipe_sync,
    )
    from executionkit._sync import (
        react_loop_sync as react_loop_sync,
    )
    from executionkit._sync import (
        refine_loop_sync as refine_loop_sync,
    )
    from executionkit._sync import (
        structured_sync as structured_sync,
    )
    from executionkit.anthropic import AnthropicProvider as AnthropicProvider
    from executionkit.approval import (
        ApprovalDecision as ApprovalDecision,
    )
    from executionkit.approval import (
        ApprovalGate as ApprovalGate,
    )
    from executionkit.approval import (
        ApprovalRequest as ApprovalRequest,
    )
    from executionkit.calls import (
        CallProblem as CallProblem,
    )
    from executionkit.calls import (
        ErrorInfo as ErrorInfo,
    )
    from executionkit.calls import (
        ReturnOrder as ReturnOrder,
    )
    from executionkit.calls import (
        ToolCall as ToolCall,
    )
    from executionkit.calls import (
        ToolResult as ToolResult,
    )
    from executionkit.calls import (
        ToolRunner as ToolRunner,
    )
    from executionkit.compose import PatternStep as PatternStep
    from executionkit.compose import pipe as pipe
    from executionkit.context import (
        ContextHeader as ContextHeader,
    )
    from executionkit.context import (
        ContextKey as ContextKey,
    )
    from executionkit.context import (
        ExecutionContext as ExecutionContext,
    )
    from executionkit.context import (
        execution_scope as execution_scope,
    )
    from executionkit.context import (
        get_current_context as get_current_context,
    )
    from executionkit.context import (
        set_current_context as set_current_context,
    )
    from executionkit.cost import (
        CostTracker as CostTracker,
    )
    from executionkit.cost import (
        estimate_cost as estimate_cost,
    )
    from executionkit.engine.breaker import (
        BreakerConfig as BreakerConfig,
    )
    from executionkit.engine.breaker import (
        CircuitBreaker as CircuitBreaker,
    )
    from executionkit.engine.bulkhead import (
        Bulkhead as Bulkhead,
    )
    from executionkit.engine.bulkhead import (
        BulkheadConfig as BulkheadConfig,
    )
    from executionkit.engine.bulkhead import (
        BulkheadStats as BulkheadStats,
    )
    from executionkit.engine.convergence import (
        ConvergenceDetector as ConvergenceDetector,
    )
    from executionkit.engine.json_extraction import extract_json as extract_json
    from executionkit.engine.rate_bucket import (
        SlidingWindow as SlidingWindow,
    )
    from executionkit.engine.rate_bucket import (
        TokenBucket as TokenBucket,
    )
    from executionkit.engine.retry import (
        DEFAULT_RETRY as DEFAULT_RETRY,
    )
    from executionkit.engine.retry import (
        RetryConfig as RetryConfig,
    )
    from executionkit.errors import (
        ApprovalDeniedError as ApprovalDeniedError,
    )
    from executionkit.errors import (
        ApprovalTimeoutError as ApprovalTimeoutError,
    )
    from executionkit.errors import (
        BadResponseError as BadResponseError,
    )
    from executionkit.errors import (
        BudgetExhaustedError as BudgetExhaustedError,
    )
    from executionkit.errors import (
        BulkheadFullError as BulkheadFullError,
    )
    from executionkit.errors import (
        BulkheadLimitType as BulkheadLimitType,
    )
    from executionkit.errors import (
        ConsensusFailedError as ConsensusFailedError,
    )
    from executionkit.errors import (
        DeadlineExceededError as DeadlineExceededError,
    )
    from executionkit.errors import (
        ErrorCategory as ErrorCategory,
    )
    from executionkit.errors import (
        ErrorCode as ErrorCode,
    )
    from executionkit.errors import (
        EvaluatorError as EvaluatorError,
    )
    from executionkit.errors import (
        ExecutionKitError as ExecutionKitError,
    )
    from executionkit.errors import (
        LLMError as LLMError,
    )
    from executionkit.errors import (
        MaxIterationsError as MaxIterationsError,
    )
    from executionkit.errors import (
        MissingExtraError as MissingExtraError,
    )
    from executionkit.errors import (
        NoProgressError as NoProgressError,
    )
    from executionkit.errors import (
        PatternError as PatternError,
    )
    from executionkit.errors import (
        PermanentError as PermanentError,
    )
    from executionkit.errors import (
        ProviderConnectionError as ProviderConnectionError,
    )
    from executionkit.errors import (
        ProviderError as ProviderError,
    )
    from executionkit.errors import (
        ProviderTimeoutError as ProviderTimeoutError,
    )
    from executionkit.errors import (
        RateLimitError as RateLimitError,
    )
    from executionkit.errors import (
        StreamError as StreamError,
    )
    from executionkit.kit import Kit as Kit
    from executionkit.local import LocalProvider as LocalProvider
    from executionkit.observability import (
        JsonlTraceSink as JsonlTraceSink,
    )
    from executionkit.observability import (
        MemoryTraceSink as MemoryTraceSink,
    )
    from executionkit.observability import (
        TraceCallback as TraceCallback,
    )
    from executionkit.observability import (
        TraceEvent as TraceEvent,
    )
    from executionkit.observability import (
        emit_trace as emit_trace,
    )
    from executionkit.patterns.base import (
        checked_complete as checked_complete,
    )
    from executionkit.patterns.base import (
        checked_stream as checked_stream,
    )
    from executionkit.patterns.base import (
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
    )
    from executionkit.types import (
        Evaluator as Evaluator,
    )
    from executionkit.types import (
        PatternResult as PatternResult,
    )
    from executionkit.types import (
        StreamingPatternResult as StreamingPatternResult,
    )
    from executionkit.types import (
        TerminationReason as TerminationReason,
    )
    from executionkit.types import (
        TokenUsage as TokenUsage,
    )
    from executionkit.types import (
        Tool as Tool,
    )
    from executionkit.types import (
        VotingStrategy as VotingStrategy,
    )
    from executionkit.types import (
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
    "approval": "ApprovalDecision ApprovalGate ApprovalRequest",
    "calls": "CallProblem ErrorInfo ReturnOrder ToolCall ToolResult ToolRunner",
    "compose": "PatternStep pipe",
    "context": (
        "ContextHeader ContextKey ExecutionContext execution_scope "
        "get_current_context set_current_context"
    ),
    "cost": "CostTracker estimate_cost",
    "engine.breaker": "BreakerConfig CircuitBreaker",
    "engine.bulkhead": "Bulkhead BulkheadConfig BulkheadStats",
    "engine.convergence": "ConvergenceDetector",
    "engine.json_extraction": "extract_json",
    "engine.rate_bucket": "SlidingWindow TokenBucket",
    "engine.retry": "DEFAULT_RETRY RetryConfig",
    "errors": (
        "ApprovalDeniedError ApprovalTimeoutError BadResponseError "
        "BudgetExhaustedError BulkheadFullError BulkheadLimitType "
        "ConsensusFailedError DeadlineExceededError ErrorCategory ErrorCode "
        "EvaluatorError ExecutionKitError LLMError MaxIterationsError "
        "MissingExtraError NoProgressError PatternError PermanentError "
        "ProviderConnectionError ProviderError ProviderTimeoutError RateLimitError "
        "StreamError"
    ),
    "kit": "Kit",
    "local": "LocalProvider",
    "observability": (
        "JsonlTraceSink MemoryTraceSink TraceCallback TraceEvent emit_trace"
    ),
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
