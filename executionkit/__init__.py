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
    from executionkit._mock import (
        MockProvider as MockProvider,
    )
    from executionkit._sync import (
        consensus_batch_sync as consensus_batch_sync,
        consensus_sync as consensus_sync,
        map_batch_sync as map_batch_sync,
        map_reduce_sync as map_reduce_sync,
        pipe_sync as pipe_sync,
        react_loop_sync as react_loop_sync,
        refine_loop_sync as refine_loop_sync,
        run_batch_sync as run_batch_sync,
        structured_sync as structured_sync,
    )
    from executionkit.anthropic import (
        AnthropicProvider as AnthropicProvider,
    )
    from executionkit.approval import (
        PARKED as PARKED,
        ApprovalCallback as ApprovalCallback,
        ApprovalDecision as ApprovalDecision,
        ApprovalGate as ApprovalGate,
        ApprovalRecord as ApprovalRecord,
        ApprovalRequest as ApprovalRequest,
        ApprovalState as ApprovalState,
        ApprovalStore as ApprovalStore,
        MemoryApprovalStore as MemoryApprovalStore,
        SQLiteApprovalStore as SQLiteApprovalStore,
    )
    from executionkit.backends import (
        CacheBackend as CacheBackend,
        InMemoryCache as InMemoryCache,
        open_backend as open_backend,
    )
    from executionkit.batches import (
        AnthropicBatchClient as AnthropicBatchClient,
        BatchClient as BatchClient,
        BatchCounts as BatchCounts,
        BatchItem as BatchItem,
        BatchItemStatus as BatchItemStatus,
        BatchLimits as BatchLimits,
        BatchRequest as BatchRequest,
        BatchResult as BatchResult,
        BatchState as BatchState,
        BatchStatus as BatchStatus,
        OpenAIBatchClient as OpenAIBatchClient,
        cancel_batch as cancel_batch,
        collect_batch as collect_batch,
        consensus_batch as consensus_batch,
        map_batch as map_batch,
        run_batch as run_batch,
        submit_batch as submit_batch,
        wait_for_batch as wait_for_batch,
    )
    from executionkit.calls import (
        CallProblem as CallProblem,
        ErrorInfo as ErrorInfo,
        ReturnOrder as ReturnOrder,
        ToolCall as ToolCall,
        ToolResult as ToolResult,
        ToolRunner as ToolRunner,
    )
    from executionkit.compose import (
        PatternStep as PatternStep,
        pipe as pipe,
    )
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
    from executionkit.engine.json_extraction import (
        extract_json as extract_json,
    )
    from executionkit.engine.rate_bucket import (
        SlidingWindow as SlidingWindow,
        TokenBucket as TokenBucket,
    )
    from executionkit.engine.retry import (
        DEFAULT_RETRY as DEFAULT_RETRY,
        RetryConfig as RetryConfig,
    )
    from executionkit.engine.schema import (
        SchemaError as SchemaError,
    )
    from executionkit.engine.voting import (
        answer_normalizer as answer_normalizer,
        casefold_normalizer as casefold_normalizer,
        numeric_normalizer as numeric_normalizer,
    )
    from executionkit.errors import (
        AllProvidersFailedError as AllProvidersFailedError,
        ApprovalDeniedError as ApprovalDeniedError,
        ApprovalInvalidError as ApprovalInvalidError,
        ApprovalPendingError as ApprovalPendingError,
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
        InDoubtError as InDoubtError,
        JournalError as JournalError,
        JournalLockedError as JournalLockedError,
        JournalMismatchError as JournalMismatchError,
        JournalValueError as JournalValueError,
        LLMError as LLMError,
        MaxIterationsError as MaxIterationsError,
        MissingExtraError as MissingExtraError,
        NoProgressError as NoProgressError,
        ParserError as ParserError,
        PatternError as PatternError,
        PermanentError as PermanentError,
        ProviderConnectionError as ProviderConnectionError,
        ProviderError as ProviderError,
        ProviderFailure as ProviderFailure,
        ProviderTimeoutError as ProviderTimeoutError,
        RateLimitError as RateLimitError,
        RecordedError as RecordedError,
        RequestTooLargeError as RequestTooLargeError,
        StateStoreError as StateStoreError,
        StepTimeoutError as StepTimeoutError,
        StreamError as StreamError,
        ToolBlockedError as ToolBlockedError,
        ToolCancelledError as ToolCancelledError,
        ToolCircuitOpenError as ToolCircuitOpenError,
        ToolExecutionError as ToolExecutionError,
        ToolIdempotencyError as ToolIdempotencyError,
        ToolNotFoundError as ToolNotFoundError,
        ToolProcessorError as ToolProcessorError,
        ToolRateLimitedError as ToolRateLimitedError,
        ToolReentrantError as ToolReentrantError,
        ToolRegistrationError as ToolRegistrationError,
        ToolTimeoutError as ToolTimeoutError,
        ToolValidationError as ToolValidationError,
        WorkflowError as WorkflowError,
    )
    from executionkit.evals import (
        ConversationScript as ConversationScript,
        EvalCase as EvalCase,
        EvalComparison as EvalComparison,
        EvalProgress as EvalProgress,
        EvalReport as EvalReport,
        EvalResult as EvalResult,
        EvalTrial as EvalTrial,
        Turn as Turn,
        compare_reports as compare_reports,
        live_provider_from_env as live_provider_from_env,
        run_conversation_script as run_conversation_script,
        run_eval_suite as run_eval_suite,
    )
    from executionkit.fallback import (
        DEFAULT_FALLBACK as DEFAULT_FALLBACK,
        FallbackProvider as FallbackProvider,
        FallbackStream as FallbackStream,
        HedgeOptions as HedgeOptions,
        ProviderStatus as ProviderStatus,
    )
    from executionkit.journal import (
        EffectState as EffectState,
        Journal as Journal,
        JournalEntry as JournalEntry,
        JournalStore as JournalStore,
        MemoryJournalStore as MemoryJournalStore,
        SQLiteJournalStore as SQLiteJournalStore,
        current_journal as current_journal,
    )
    from executionkit.kit import (
        Kit as Kit,
    )
    from executionkit.local import (
        LocalProvider as LocalProvider,
    )
    from executionkit.observability import (
        JsonLogFormatter as JsonLogFormatter,
        JsonlTraceSink as JsonlTraceSink,
        LoggingTraceSink as LoggingTraceSink,
        MemoryTraceSink as MemoryTraceSink,
        PrometheusMetrics as PrometheusMetrics,
        TeeTraceSink as TeeTraceSink,
        TraceCallback as TraceCallback,
        TraceEvent as TraceEvent,
        emit_trace as emit_trace,
    )
    from executionkit.patterns._generators import (
        ProgressCallback as ProgressCallback,
    )
    from executionkit.patterns._history import (
        Summarizer as Summarizer,
    )
    from executionkit.patterns.base import (
        checked_complete as checked_complete,
        checked_stream as checked_stream,
        validate_score as validate_score,
    )
    from executionkit.patterns.consensus import (
        consensus as consensus,
    )
    from executionkit.patterns.map_reduce import (
        map_reduce as map_reduce,
    )
    from executionkit.patterns.react_loop import (
        react_loop as react_loop,
    )
    from executionkit.patterns.refine_loop import (
        refine_loop as refine_loop,
    )
    from executionkit.patterns.structured import (
        structured as structured,
    )
    from executionkit.planning import (
        Plan as Plan,
        PlanResult as PlanResult,
        PlanStep as PlanStep,
        make_plan as make_plan,
    )
    from executionkit.provider import (
        Provider as Provider,
    )
    from executionkit.routing import (
        Router as Router,
        RouteRule as RouteRule,
    )
    from executionkit.tools._bulk import (
        BatchProgress as BatchProgress,
    )
    from executionkit.tools._dry_run import (
        DryRun as DryRun,
    )
    from executionkit.tools._options import (
        ToolPolicy as ToolPolicy,
    )
    from executionkit.tools._runs import (
        Override as Override,
    )
    from executionkit.tools._stats import (
        ProcessorStats as ProcessorStats,
        ToolStats as ToolStats,
    )
    from executionkit.tools.config import (
        ProcessorConfig as ProcessorConfig,
    )
    from executionkit.tools.decorators import (
        ToolRegistryProvider as ToolRegistryProvider,
        ensure_registrations as ensure_registrations,
        get_default_registry as get_default_registry,
        initialize as initialize,
        register_fn_tool as register_fn_tool,
        register_langchain_tool as register_langchain_tool,
        register_tool as register_tool,
        reset_registry as reset_registry,
        tool as tool,
    )
    from executionkit.tools.export import (
        ToolNames as ToolNames,
        to_anthropic as to_anthropic,
        to_mcp as to_mcp,
        to_openai as to_openai,
    )
    from executionkit.tools.factories import (
        CircuitBreakerSettings as CircuitBreakerSettings,
        RateLimiterSettings as RateLimiterSettings,
        WrapperBackend as WrapperBackend,
        create_circuit_breaker as create_circuit_breaker,
        create_production_executor as create_production_executor,
        create_rate_limiter as create_rate_limiter,
    )
    from executionkit.tools.guard_rules import (
        ApprovalGuard as ApprovalGuard,
        BudgetGuard as BudgetGuard,
        NetworkGuard as NetworkGuard,
        OutputSizeGuard as OutputSizeGuard,
        RunawayGuard as RunawayGuard,
        SchemaGuard as SchemaGuard,
        SensitiveDataGuard as SensitiveDataGuard,
        SideEffectGuard as SideEffectGuard,
        TagGuard as TagGuard,
    )
    from executionkit.tools.guards import (
        BaseGuard as BaseGuard,
        EnforcementLevel as EnforcementLevel,
        Guard as Guard,
        GuardChain as GuardChain,
        GuardResult as GuardResult,
        GuardVerdict as GuardVerdict,
    )
    from executionkit.tools.middleware import (
        Layer as Layer,
        Middleware as Middleware,
        ToolRequest as ToolRequest,
    )
    from executionkit.tools.middleware.breaker import (
        BreakerOptions as BreakerOptions,
    )
    from executionkit.tools.middleware.cache import (
        CacheOptions as CacheOptions,
    )
    from executionkit.tools.middleware.rate_limit import (
        RateLimitOptions as RateLimitOptions,
    )
    from executionkit.tools.parsing import (
        ParsedCalls as ParsedCalls,
        ToolCallParser as ToolCallParser,
        parse_calls as parse_calls,
    )
    from executionkit.tools.plan_run import (
        ResultOf as ResultOf,
        ToolPlanResult as ToolPlanResult,
    )
    from executionkit.tools.processor import (
        ToolProcessor as ToolProcessor,
    )
    from executionkit.tools.registry import (
        AmbiguousToolError as AmbiguousToolError,
        ToolInfo as ToolInfo,
        ToolRegistry as ToolRegistry,
        create_registry as create_registry,
    )
    from executionkit.tools.scheduling import (
        ExecutionPlan as ExecutionPlan,
        GreedyDagScheduler as GreedyDagScheduler,
        PlanError as PlanError,
        SchedulerPolicy as SchedulerPolicy,
        SchedulingConstraints as SchedulingConstraints,
        SkipReason as SkipReason,
        ToolCallSpec as ToolCallSpec,
        ToolMetadata as ToolMetadata,
    )
    from executionkit.tools.strategies import (
        ExecutionStrategy as ExecutionStrategy,
        InProcessStrategy as InProcessStrategy,
        IsolatedStrategy as IsolatedStrategy,
        Sandbox as Sandbox,
        SubprocessStrategy as SubprocessStrategy,
        ToolLimits as ToolLimits,
    )
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
    from executionkit.workflow import (
        Step as Step,
        Workflow as Workflow,
        WorkflowCheckpoint as WorkflowCheckpoint,
        WorkflowResult as WorkflowResult,
    )

__version__ = "1.0.0"

_HOMES = {
    "_llm": (
        "LLMProvider LLMResponse OMIT ReasoningDelta StreamEnd StreamEvent "
        "StreamingProvider TextDelta ToolCallDelta ToolCallingProvider UsageUpdate"
    ),
    "_mock": "MockProvider",
    "_sync": (
        "consensus_batch_sync consensus_sync map_batch_sync map_reduce_sync pipe_sync "
        "react_loop_sync refine_loop_sync run_batch_sync structured_sync"
    ),
    "anthropic": "AnthropicProvider",
    "approval": (
        "ApprovalCallback ApprovalDecision ApprovalGate ApprovalRecord "
        "ApprovalRequest ApprovalState ApprovalStore MemoryApprovalStore PARKED "
        "SQLiteApprovalStore"
    ),
    "backends": "CacheBackend InMemoryCache open_backend",
    "batches": (
        "AnthropicBatchClient BatchClient BatchCounts BatchItem BatchItemStatus "
        "BatchLimits BatchRequest BatchResult BatchState BatchStatus "
        "OpenAIBatchClient cancel_batch collect_batch consensus_batch map_batch "
        "run_batch submit_batch wait_for_batch"
    ),
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
        "AllProvidersFailedError ApprovalDeniedError ApprovalInvalidError "
        "ApprovalPendingError ApprovalTimeoutError "
        "BadResponseError "
        "BudgetExhaustedError BulkheadFullError BulkheadLimitType "
        "ConsensusFailedError DeadlineExceededError ErrorCategory ErrorCode "
        "EvaluatorError ExecutionKitError InDoubtError JournalError "
        "JournalLockedError JournalMismatchError JournalValueError LLMError "
        "MaxIterationsError "
        "MissingExtraError NoProgressError ParserError PatternError PermanentError "
        "ProviderConnectionError ProviderError ProviderFailure ProviderTimeoutError "
        "RateLimitError RecordedError "
        "RequestTooLargeError StateStoreError StepTimeoutError StreamError "
        "ToolBlockedError "
        "ToolCancelledError ToolCircuitOpenError ToolExecutionError "
        "ToolIdempotencyError ToolNotFoundError ToolProcessorError "
        "ToolRateLimitedError ToolReentrantError ToolRegistrationError "
        "ToolTimeoutError ToolValidationError WorkflowError"
    ),
    "evals": (
        "ConversationScript EvalCase EvalComparison EvalProgress EvalReport EvalResult "
        "EvalTrial Turn compare_reports live_provider_from_env "
        "run_conversation_script run_eval_suite"
    ),
    "fallback": (
        "DEFAULT_FALLBACK FallbackProvider FallbackStream HedgeOptions ProviderStatus"
    ),
    "journal": (
        "EffectState Journal JournalEntry JournalStore MemoryJournalStore "
        "SQLiteJournalStore current_journal"
    ),
    "kit": "Kit",
    "local": "LocalProvider",
    "observability": (
        "JsonLogFormatter JsonlTraceSink LoggingTraceSink MemoryTraceSink "
        "PrometheusMetrics TeeTraceSink TraceCallback TraceEvent emit_trace"
    ),
    "patterns._generators": "ProgressCallback",
    "patterns._history": "Summarizer",
    "patterns.base": "checked_complete checked_stream validate_score",
    "patterns.consensus": "consensus",
    "patterns.map_reduce": "map_reduce",
    "patterns.react_loop": "react_loop",
    "patterns.refine_loop": "refine_loop",
    "patterns.structured": "structured",
    "planning": "Plan PlanResult PlanStep make_plan",
    "provider": "Provider",
    "routing": "RouteRule Router",
    "tools._bulk": "BatchProgress",
    "tools._dry_run": "DryRun",
    "tools._options": "ToolPolicy",
    "tools._runs": "Override",
    "tools._stats": "ProcessorStats ToolStats",
    "tools.config": "ProcessorConfig",
    "tools.decorators": (
        "ToolRegistryProvider ensure_registrations get_default_registry initialize "
        "register_fn_tool register_langchain_tool register_tool reset_registry tool"
    ),
    "tools.export": "ToolNames to_anthropic to_mcp to_openai",
    "tools.factories": (
        "CircuitBreakerSettings RateLimiterSettings WrapperBackend "
        "create_circuit_breaker create_production_executor create_rate_limiter"
    ),
    "tools.guard_rules": (
        "ApprovalGuard BudgetGuard NetworkGuard OutputSizeGuard RunawayGuard "
        "SchemaGuard SensitiveDataGuard SideEffectGuard TagGuard"
    ),
    "tools.guards": (
        "BaseGuard EnforcementLevel Guard GuardChain GuardResult GuardVerdict"
    ),
    "tools.middleware": "Layer Middleware ToolRequest",
    "tools.middleware.breaker": "BreakerOptions",
    "tools.middleware.cache": "CacheOptions",
    "tools.middleware.rate_limit": "RateLimitOptions",
    "tools.parsing": "ParsedCalls ToolCallParser parse_calls",
    "tools.plan_run": "ResultOf ToolPlanResult",
    "tools.processor": "ToolProcessor",
    "tools.registry": "AmbiguousToolError ToolInfo ToolRegistry create_registry",
    "tools.scheduling": (
        "ExecutionPlan GreedyDagScheduler PlanError SchedulerPolicy "
        "SchedulingConstraints SkipReason ToolCallSpec ToolMetadata"
    ),
    "tools.strategies": (
        "ExecutionStrategy InProcessStrategy IsolatedStrategy Sandbox "
        "SubprocessStrategy ToolLimits"
    ),
    "types": (
        "CheckpointCallback Evaluator PatternResult StreamingPatternResult "
        "TerminationReason TokenUsage Tool VotingStrategy thaw"
    ),
    "workflow": "Step Workflow WorkflowCheckpoint WorkflowResult",
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
