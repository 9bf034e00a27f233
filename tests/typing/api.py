"""What users' type checkers must see. Checked by mypy, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, assert_type

from executionkit import (
    OMIT,
    AnthropicProvider,
    CostLimit,
    CostTracker,
    EvalCase,
    EvalComparison,
    EvalReport,
    EvalTrial,
    FallbackProvider,
    HedgeOptions,
    Kit,
    LLMProvider,
    LLMResponse,
    LocalProvider,
    MockProvider,
    Plan,
    PlanResult,
    PlanStep,
    Prices,
    Provider,
    ProviderStatus,
    RetryConfig,
    Router,
    RouteRule,
    Step,
    StreamEvent,
    StreamingProvider,
    TextDelta,
    ToolCallingProvider,
    TraceEvent,
    VotingStrategy,
    Workflow,
    WorkflowCheckpoint,
    WorkflowResult,
    checked_complete,
    checked_stream,
    compare_reports,
    consensus,
    consensus_sync,
    live_provider_from_env,
    make_plan,
    map_reduce,
    pipe,
    react_loop,
    refine_loop,
    run_eval_suite,
    structured,
    structured_sync,
)
from executionkit._clock import Clock, SystemClock, get_clock, use_clock
from executionkit.calls import (
    CallProblem,
    ErrorInfo,
    ToolCall,
    ToolResult,
    ToolRunner,
    render_result,
)
from executionkit.errors import (
    ErrorCategory,
    ErrorCode,
    ExecutionKitError,
    LLMError,
    MissingExtraError,
    PatternError,
    ProviderError,
    RateLimitError,
    ToolProcessorError,
    require,
)
from executionkit.testing import FakeClock
from executionkit.types import (
    PatternResult,
    StreamingPatternResult,
    TokenUsage,
    Tool,
    freeze,
    thaw,
)


async def weather(city: str, *, days: int = 1) -> dict[str, Any]:
    return {"city": city, "days": days}


def blocking(city: str) -> str:
    return city


def values() -> None:
    assert_type(PatternResult("x"), PatternResult[str])
    assert_type(PatternResult([1]).value, list[int])
    assert_type(PatternResult[float](1.5).value, float)
    assert_type(PatternResult("x").score, float | None)
    assert_type(PatternResult("x").cost, TokenUsage)
    assert_type(PatternResult("x").metadata, Mapping[str, Any])
    assert_type(TokenUsage(1, 2, 3) + TokenUsage(cache_read_tokens=1), TokenUsage)
    assert_type(freeze({"a": 1}), Any)
    assert_type(thaw({"a": 1}), Any)


def values_refuse() -> None:
    result = PatternResult("x")
    result.value = "y"  # type: ignore[misc]
    result.metadata["a"] = 1  # type: ignore[index]
    TokenUsage(1, 2, 3, 4)  # type: ignore[call-arg]
    TokenUsage() + 1  # type: ignore[operator]
    ToolCall("i", "t").arguments["a"] = 1  # type: ignore[index]


def tools() -> None:
    schema: dict[str, Any] = {"type": "object"}
    assert_type(Tool("t", "d", schema, weather).to_schema(), dict[str, Any])
    assert_type(Tool("t", "d", schema, blocking).timeout, float | None)
    Tool("t", "d", schema, weather, None, tags=frozenset({"a"}), idempotent=True)
    Tool("t", "d", schema, weather, 5.0, "namespace")  # type: ignore[call-arg]


def calls(call: ToolCall, problem: CallProblem) -> None:
    assert_type(call.tool, str)
    assert_type(call.arguments, Mapping[str, Any])
    assert_type(ToolCall(tool="t").id, str)
    assert_type(problem.to_observation(), str)
    assert_type(problem.position, int | None)
    assert_type(render_result([1]), str)


def results(result: ToolResult, call: ToolCall) -> None:
    assert_type(result.error_info, ErrorInfo | None)
    assert_type(result.error_code, ErrorCode | None)
    assert_type(result.error_category, ErrorCategory | None)
    assert_type(ToolResult.failure(call, TimeoutError()), ToolResult)
    assert_type(result.to_dict(), dict[str, Any])


class Runner:
    """A user's own runner satisfies the protocol by its shape."""

    async def tool_schemas(self) -> list[dict[str, Any]]:
        return []

    async def run_calls(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        return [ToolResult(call.name, call_id=call.id) for call in calls]


def runner() -> ToolRunner:
    return Runner()


def errors(error: ExecutionKitError) -> None:
    assert_type(error.code, ErrorCode)
    assert_type(error.category, ErrorCategory)
    assert_type(error.cost, TokenUsage)
    assert_type(error.retry_after, float | None)
    assert_type(error.attempts, int)
    if isinstance(error, ToolProcessorError):
        assert_type(error.retry_after_ms, int | None)
        assert_type(error.details, dict[str, Any])
    tree: list[type[ExecutionKitError]] = [LLMError, PatternError, ToolProcessorError]
    model: list[type[LLMError]] = [RateLimitError, ProviderError]
    missing: type[ImportError] = MissingExtraError
    del tree, model, missing
    assert_type(require("json", extra="x"), ModuleType)


def clocks() -> None:
    own: list[Clock] = [SystemClock(), FakeClock(), get_clock()]
    with use_clock(own[0]) as clock:
        assert_type(clock, Clock)
    with FakeClock(auto=True).installed() as fake:
        assert_type(fake, FakeClock)
        assert_type(fake.pending, int)


async def streams(result: StreamingPatternResult) -> None:
    async with result as same:
        assert_type(same, StreamingPatternResult)
        async for part in same:
            assert_type(part, str)
    stream: AsyncIterator[str] = result.text_stream
    assert_type(result.cost, TokenUsage)
    del stream


@dataclass
class City:
    name: str


class Parrot:
    """A user's own provider satisfies the protocol by its shape."""

    async def complete(
        self, messages: Sequence[dict[str, Any]], **kwargs: Any
    ) -> LLMResponse:
        return LLMResponse(str(messages[-1]["content"]))


class Silent:
    async def ask(self) -> None: ...


def score(text: str, provider: LLMProvider) -> float:
    return float(len(text))


def watch(event: TraceEvent) -> None:
    assert_type(event.kind, str)


async def patterns(provider: Provider) -> None:
    limit = TokenUsage(llm_calls=3)
    vote = await consensus(provider, "q", num_samples=3, strategy="majority")
    assert_type(vote, PatternResult[str])
    await consensus(provider, "q", strategy=VotingStrategy.UNANIMOUS, max_cost=limit)
    assert_type((await refine_loop(provider, "q", evaluator=score)).value, str)
    assert_type((await react_loop(provider, "q", runner())).value, str)
    await react_loop(provider, messages=[{"role": "user", "content": "q"}], tools=[])
    mapped = await map_reduce(
        provider,
        ["a"],
        map_prompt_template="{item}",
        reduce_prompt_template="{mapped_outputs}",
        on_error="collect",
        trace=watch,
    )
    assert_type(mapped.value, str)
    step = partial(consensus, max_cost=limit)
    assert_type(await pipe(provider, "q", step, refine_loop), PatternResult[Any])
    # Options of the API pass through, under any name.
    await consensus(provider, "q", temperature=OMIT, seed=3, stop=["x"])


async def answers_of_a_type(provider: Provider) -> None:
    assert_type((await structured(provider, "q", schema=City)).value, City)
    assert_type((await structured(provider, "q", schema=int)).value, int)
    assert_type((await structured(provider, "q", schema={"type": "array"})).value, Any)
    assert_type((await structured(provider, "q")).value, Any)


def from_ordinary_code(provider: Provider) -> None:
    assert_type(consensus_sync(provider, "q"), PatternResult[str])
    assert_type(structured_sync(provider, "q").value, Any)
    assert_type(structured_sync(provider, "q", schema=City).value, City)


async def patterns_refuse(provider: Provider) -> None:
    await consensus(Silent(), "q")  # type: ignore[arg-type]
    await consensus(provider, 3)  # type: ignore[arg-type]
    await consensus(provider, "q", 3)  # type: ignore[call-arg]
    await consensus(provider, "q", max_cost=5)  # type: ignore[arg-type]
    await consensus(provider, "q", retry=3)  # type: ignore[arg-type]
    await map_reduce(provider, ["a"])  # type: ignore[call-arg]
    await react_loop(provider, "q", [blocking])  # type: ignore[list-item]
    await react_loop(provider, "q", tool_mode="xml")  # type: ignore[arg-type]


async def limits(provider: Provider) -> None:
    prices = Prices(input=3, output=15.0, cache_read=0.3)
    limit = CostLimit(llm_calls=5, money=1, prices=prices, request_input_tokens=9)
    await consensus(provider, "q", max_cost=limit)
    await pipe(provider, "q", consensus, max_budget=limit)
    assert_type(limit.money, float | None)
    assert_type(limit + TokenUsage(), TokenUsage)
    assert_type(prices.cost(TokenUsage()), float)


def limits_refuse() -> None:
    Prices(3, 15)  # type: ignore[call-arg]
    CostLimit(money="1")  # type: ignore[arg-type]
    RetryConfig(retryable=3)  # type: ignore[arg-type]


async def kits(provider: Provider) -> None:
    async with Kit(provider) as kit:
        assert_type(kit, Kit)
        assert_type(await kit.consensus("q"), PatternResult[str])
        assert_type(await kit.structured("q"), PatternResult[Any])
        assert_type((await kit.structured("q", schema=City)).value, City)
        assert_type(await kit.stream_consensus("q"), StreamingPatternResult)
        assert_type(kit.usage, TokenUsage)


def providers(local: LocalProvider) -> None:
    own = Provider("http://h", "m", "key", timeout=3)
    claude = AnthropicProvider("m", "key", base_url="http://h")
    assert_type(Provider.from_env(model="m"), Provider)
    assert_type(AnthropicProvider.from_env(), AnthropicProvider)
    every: list[LLMProvider] = [own, claude, local, MockProvider(["a"]), Parrot()]
    calling: list[ToolCallingProvider] = [own, claude]
    streaming: list[StreamingProvider] = [own, claude]
    assert_type(own.connection_counts.failed, int)
    del every, calling, streaming


def providers_refuse(provider: Provider) -> None:
    Provider("http://h")  # type: ignore[call-arg]
    Provider("http://h", "m", default_temperature="hot")  # type: ignore[arg-type]
    AnthropicProvider("m", default_max_tokens=None)  # type: ignore[arg-type]
    provider.model = "other"  # type: ignore[misc]
    streaming: StreamingProvider = Parrot()  # type: ignore[assignment]
    calling: ToolCallingProvider = Parrot()  # type: ignore[assignment]
    del streaming, calling


async def replies(provider: Provider, messages: list[dict[str, Any]]) -> None:
    reply = await provider.complete(messages, temperature=0.2, seed=3)
    assert_type(reply, LLMResponse)
    assert_type(reply.content, str)
    assert_type(reply.tool_calls, tuple[ToolCall, ...])
    async with provider.stream(messages) as texts:
        async for text in texts:
            assert_type(text, str)
    async for event in provider.stream_events(messages):
        assert_type(event, StreamEvent)
        if isinstance(event, TextDelta):
            assert_type(event.text, str)


async def patterns_of_ones_own(
    provider: Provider, messages: list[dict[str, Any]]
) -> None:
    tracker = CostTracker()
    reply = await checked_complete(provider, messages, tracker, TokenUsage(), None)
    assert_type(reply, LLMResponse)
    stream = await checked_stream(provider, messages, tracker, CostLimit(), None)
    assert_type(stream, StreamingPatternResult)
    assert_type(tracker.to_usage(), TokenUsage)


async def steps(context: dict[str, Any]) -> PatternResult[str]:
    return PatternResult(str(context))


async def workflows() -> None:
    workflow = Workflow([Step("a", steps), Step("b", lambda c: c["a"], ("a",))])
    kept: list[WorkflowCheckpoint] = []
    result = await workflow.run({"x": 1}, checkpoint_fn=kept.append, trace=watch)
    assert_type(result, WorkflowResult)
    assert_type(result.outputs, Mapping[str, Any])
    assert_type(result.cost, TokenUsage)
    assert_type(workflow.steps, tuple[Step, ...])
    assert_type(WorkflowCheckpoint.from_dict(kept[0].to_dict()), WorkflowCheckpoint)
    Step("a", steps, "b")  # type: ignore[arg-type]
    Step("a", steps, timeout="1")  # type: ignore[arg-type]
    Workflow([steps])  # type: ignore[list-item]
    Workflow([], on_failure="ignore")  # type: ignore[arg-type]
    await workflow.run(resume_from={})  # type: ignore[arg-type]


async def plans(provider: Provider) -> None:
    plan = Plan([PlanStep("a", "do it", steps)])
    assert_type(await plan.execute(), PlanResult)
    made = await make_plan(provider, "goal", {"a": lambda words, context: words})
    assert_type(made, PatternResult[Plan])
    PlanStep("a", steps)  # type: ignore[call-arg, arg-type]


async def routes(provider: Provider) -> None:
    rule = RouteRule("long", provider, lambda prompt, context: len(prompt) > 9)
    router = Router(rules=[rule], fallback=Parrot())
    assert_type(router.select("q", tier="gold"), LLMProvider)
    assert_type(await router.match("q", {"tier": "gold"}), RouteRule | None)
    assert_type(await router.run(consensus, "q", num_samples=3), PatternResult[str])
    Router([rule], Parrot())  # type: ignore[call-arg]


async def evals() -> None:
    def run(trial: EvalTrial) -> int:
        return trial.seed

    cases = [EvalCase("a", run, lambda value: value > 0), EvalCase("b", dict, bool)]
    report = await run_eval_suite(cases, trials=3, on_progress=print)
    assert_type(report, EvalReport)
    assert_type(report.interval(), tuple[float, float])
    assert_type(compare_reports(report, report), EvalComparison)
    assert_type(live_provider_from_env(), Provider | None)
    await run_eval_suite(cases, trials="3")  # type: ignore[arg-type]


async def fallbacks(provider: Provider) -> None:
    several = FallbackProvider(
        [provider, Parrot()],
        on=lambda failure: (
            failure.retryable if isinstance(failure, ExecutionKitError) else False
        ),
        hedge=HedgeOptions(delay=0.5),
    )
    FallbackProvider({"a": provider, "b": several}, on=RateLimitError, max_attempts=3)
    assert_type(await consensus(several, "q", num_samples=1), PatternResult[str])
    assert_type(await several.complete([]), LLMResponse)
    assert_type([text async for text in several.stream([])], list[str])
    assert_type([event async for event in several.stream_events([])], list[StreamEvent])
    assert_type(several.status(), tuple[ProviderStatus, ...])
    FallbackProvider([Silent()])  # type: ignore[list-item]
    FallbackProvider([provider], hedge=0.5)  # type: ignore[arg-type]
