"""What patterns stand on: spending, lent providers, options, and the guide's examples."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import logging
import pickle
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import pytest

from executionkit import (
    BudgetExhaustedError,
    CostTracker,
    ExecutionContext,
    Kit,
    LLMProvider,
    LLMResponse,
    MockProvider,
    PatternResult,
    PermanentError,
    ProviderError,
    RateLimitError,
    RetryConfig,
    StreamingProvider,
    TokenBucket,
    TokenUsage,
    Tool,
    ToolCallingProvider,
    TraceEvent,
    checked_complete,
    consensus,
    execution_scope,
    map_reduce,
    pipe,
    react_loop,
    refine_loop,
    structured,
    validate_score,
)
from executionkit.cost import Budget, collecting_lost_cost
from executionkit.errors import (
    DeadlineExceededError,
    EvaluatorError,
    PatternError,
)
from executionkit.observability import MemoryTraceSink
from executionkit.patterns._failures import describe
from executionkit.patterns.base import (
    TrackedProvider,
    calling_user,
    check_max_tokens,
    check_options,
    check_positive,
    check_temperature,
    first_of_group,
    run_checkpoint,
    spending,
)
from executionkit.provider import OMIT
from executionkit.testing import FakeClock, Request, ScriptedProvider, settle

LIMIT = 5
ASK = [{"role": "user", "content": "x" * 40}]
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
ONCE = RetryConfig(max_retries=0)
KEY = "custom-key-7f3a91c2"


def reply(sent: int = 10, made: int = 2, text: str = "yes") -> LLMResponse:
    return LLMResponse(text, usage={"prompt_tokens": sent, "completion_tokens": made})


class _Suspended:
    def __await__(self) -> Any:
        yield None


async def _suspend() -> None:
    await _Suspended()


class TestManyFailures:
    def test_a_long_text_and_a_long_list_are_cut(self) -> None:
        group = ExceptionGroup("g", [ValueError("x" * 9000) for _ in range(50)])
        first = first_of_group(group)
        assert len(first.__notes__) == 21
        assert all(len(note) < 600 for note in first.__notes__)
        assert first.__notes__[-1] == "also: 29 more failures"

    def test_an_interrupt_comes_before_everything_else(self) -> None:
        stop = KeyboardInterrupt()
        group = BaseExceptionGroup("g", [PermanentError("no"), stop])
        assert first_of_group(group) is stop


class TestSpending:
    @pytest.mark.req("patterns.cost-on-errors", "D-03")
    def test_a_library_error_carries_cost_requests_and_facts(self) -> None:
        tracker = CostTracker()
        tracker.add_usage(TokenUsage(5, 6, 7))
        with (
            pytest.raises(PatternError) as caught,
            spending(tracker, metadata=lambda: {"a": 1}),
        ):
            raise PatternError("no", metadata={"a": 0, "b": 2})
        assert caught.value.cost == TokenUsage(5, 6, 7)
        assert caught.value.attempts == 7
        assert caught.value.metadata == {"a": 1, "b": 2}
        assert str(caught.value).endswith(" (requests sent: 7)")
        assert not hasattr(caught.value, "__notes__")

    @pytest.mark.parametrize(
        "error", [KeyError("x"), asyncio.CancelledError(), KeyboardInterrupt()]
    )
    @pytest.mark.req("cost.cancelled-runs-are-not-forgotten")
    def test_the_cost_of_other_ends_goes_to_whoever_adds_up(
        self, error: BaseException
    ) -> None:
        booked: list[TokenUsage] = []
        tracker = CostTracker()
        tracker.reserve_call()
        with (
            pytest.raises(type(error)),
            collecting_lost_cost(booked.append),
            spending(tracker),
        ):
            raise error
        assert booked == [TokenUsage(0, 0, 1)]

    @pytest.mark.req("D-02", "call.groups")
    async def test_no_exception_group_leaves_it(self) -> None:
        tracker = CostTracker()
        tracker.reserve_call()
        group = ExceptionGroup("g", [KeyError("x"), PermanentError("no")])
        with pytest.raises(PermanentError) as caught:
            async with spending(tracker, metadata=lambda: {"a": 1}):
                raise group
        assert caught.value.cost == TokenUsage(0, 0, 1)
        assert caught.value.metadata == {"a": 1}
        assert caught.value.__cause__ is group
        assert "also: KeyError: 'x'" in caught.value.__notes__
        booked: list[TokenUsage] = []
        with (
            pytest.raises(KeyError),
            collecting_lost_cost(booked.append),
            spending(tracker),
        ):
            raise ExceptionGroup("g", [KeyError("x")])
        assert booked == [TokenUsage(0, 0, 1)]

    @pytest.mark.req("patterns.deadline")
    async def test_the_deadline_bounds_all_that_is_inside(
        self, fake_clock: FakeClock
    ) -> None:
        tracker = CostTracker()
        tracker.add_usage(TokenUsage(1, 2, 3))

        async def work() -> None:
            async with spending(tracker, metadata=lambda: {"got": "this far"}):
                await asyncio.Event().wait()

        async with execution_scope(ExecutionContext().with_timeout(2.0)):
            task = asyncio.create_task(work())
        await fake_clock.advance(2.0)
        with pytest.raises(DeadlineExceededError) as caught:
            await task
        assert caught.value.cost == TokenUsage(1, 2, 3)
        assert caught.value.metadata == {"got": "this far"}

    async def test_a_callers_cancellation_is_no_deadline(
        self, fake_clock: FakeClock
    ) -> None:
        async def work() -> None:
            async with spending(CostTracker()):
                await asyncio.Event().wait()

        async with execution_scope(ExecutionContext().with_timeout(2.0)):
            task = asyncio.create_task(work())
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert fake_clock.pending == 0

    def test_an_abandoned_block_closed_from_another_context_says_nothing(self) -> None:
        async def work() -> None:
            with spending(CostTracker()):
                await _suspend()

        coroutine = work()
        contextvars.copy_context().run(coroutine.send, None)
        contextvars.copy_context().run(coroutine.close)

    @pytest.mark.req("D-03", "patterns.user-functions")
    def test_a_failure_of_a_users_function_is_one_kind_of_error(self) -> None:
        with (
            pytest.raises(EvaluatorError, match="judge failed: KeyError: 'x'") as e,
            calling_user("judge"),
        ):
            raise KeyError("x")
        assert isinstance(e.value.__cause__, KeyError)

    @pytest.mark.req("OB-04", "patterns.user-functions")
    def test_its_text_shows_no_secret(self) -> None:
        with (
            pytest.raises(EvaluatorError) as caught,
            calling_user("judge", secrets=(KEY,)),
        ):
            raise ValueError(f"refused {KEY} and sk-proj-abcdefgh12345678")
        assert KEY not in str(caught.value)
        assert "abcdefgh12345678" not in str(caught.value)

    @pytest.mark.req("patterns.user-functions", "call.own-errors")
    def test_a_library_error_of_a_users_function_passes_as_a_copy(self) -> None:
        error = PermanentError("mine")
        with pytest.raises(PermanentError) as caught, calling_user("judge"):
            raise error
        assert caught.value is not error
        with pytest.raises(PermanentError), calling_user("judge"):
            raise ExceptionGroup("g", [KeyError("a"), error])
        with pytest.raises(EvaluatorError, match="KeyError"), calling_user("judge"):
            raise ExceptionGroup("g", [KeyError("a")])


class TestTrackedProvider:
    def lent(
        self, provider: Any, budget: TokenUsage | None = None
    ) -> tuple[TrackedProvider, CostTracker, MemoryTraceSink]:
        tracker, sink = CostTracker(), MemoryTraceSink()
        limits = Budget.from_usage(budget)
        return TrackedProvider(provider, tracker, limits, ONCE, sink), tracker, sink

    @pytest.mark.req("D-43", "patterns.lent-provider")
    async def test_its_calls_are_counted_limited_and_traced(self) -> None:
        """D-43: what an evaluator spends is the run's."""
        provider = ScriptedProvider([reply(), reply()])
        lent, tracker, sink = self.lent(provider, TokenUsage(llm_calls=1))
        got = await lent.complete(ASK, temperature=0.5, max_tokens=7, tools=[], seed=1)
        assert got.content == "yes"
        (request,) = provider.requests
        assert (request.temperature, request.max_tokens) == (0.5, 7)
        assert (request.tools, request.options) == ([], {"seed": 1})
        assert tracker.to_usage() == TokenUsage(10, 2, 1)
        with pytest.raises(BudgetExhaustedError):
            await lent.complete(ASK)
        assert sink.kinds == ["llm_call_start", "llm_call_end", "llm_call_refused"]

    @pytest.mark.req("patterns.lent-provider")
    async def test_its_streams_are_counted_limited_and_traced_too(self) -> None:
        provider = ScriptedProvider(["one two"], usage=USAGE)
        lent, tracker, sink = self.lent(provider, TokenUsage(llm_calls=1))
        responses: list[LLMResponse] = []
        pieces = [text async for text in lent.stream(ASK, usage_sink=responses, seed=1)]
        assert pieces == ["one ", "two"]
        assert [item.content for item in responses] == ["one two"]
        assert provider.requests[0].options == {"seed": 1}
        assert tracker.to_usage() == TokenUsage(10, 2, 1)
        assert sink.kinds == ["llm_call_start", "llm_call_end"]
        with pytest.raises(BudgetExhaustedError):
            await anext(lent.stream(ASK))

    @pytest.mark.req("patterns.lent-provider")
    def test_it_is_what_the_provider_behind_it_is(self) -> None:
        able, _, _ = self.lent(ScriptedProvider([]))
        assert isinstance(able, LLMProvider)
        assert isinstance(able, ToolCallingProvider)
        assert isinstance(able, StreamingProvider)
        assert able.supports_tools
        assert able.requests == []

        class Plain:
            name = "plain"

            async def complete(self, messages: Any, **_: Any) -> LLMResponse:
                return reply()

            def stream_events(self) -> None: ...

        plain, _, _ = self.lent(Plain())
        assert not plain.supports_tools
        assert not isinstance(plain, StreamingProvider)
        assert plain.name == "plain"
        for missing in ("stream", "stream_events", "_private"):
            with pytest.raises(AttributeError, match=missing):
                getattr(plain, missing)

    def test_it_can_be_copied(self) -> None:
        lent, _, _ = self.lent(ScriptedProvider([]))
        assert copy.copy(lent).supports_tools

    @pytest.mark.req("patterns.lent-provider", "budget.no-wait-for-oneself")
    async def test_an_evaluator_may_stream_and_ask_at_once_under_a_token_limit(
        self,
    ) -> None:
        async def score(_text: str, provider: Any) -> float:
            heard: list[str] = []
            async for piece in provider.stream(ASK):
                heard.append(piece)
                await provider.complete(ASK)
            return 1.0 if heard == ["a ", "b"] else 0.0

        provider = ScriptedProvider(lambda _: LLMResponse("a b", usage=USAGE))
        async with asyncio.timeout(LIMIT):
            result = await refine_loop(
                provider, "x", evaluator=score, max_cost=TokenUsage(0, 1000)
            )
        assert result.score == 1.0
        assert result.cost == TokenUsage(40, 8, 4)


def parameters_of(function: Any) -> set[str]:
    kinds = (inspect.Parameter.VAR_KEYWORD,)
    parameters = inspect.signature(function).parameters.values()
    return {item.name for item in parameters if item.kind not in kinds}


async def call(pattern: Any, *, provider: Any, prompt: Any = "x", **kwargs: Any) -> Any:
    if pattern is not map_reduce:
        return await pattern(provider, prompt, **kwargs)
    templates = {
        "map_prompt_template": "{item}",
        "reduce_prompt_template": "{mapped_outputs}",
    }
    return await map_reduce(provider, ["a"], **{**templates, **kwargs})


PATTERNS: list[Any] = [consensus, map_reduce, react_loop, refine_loop, structured]

# The options of the APIs that are in use.
KNOWN_OPTIONS = [
    "audio",
    "cache_control",
    "chat_template_kwargs",
    "extra_body",
    "extra_headers",
    "frequency_penalty",
    "function_call",
    "functions",
    "grammar",
    "guided_json",
    "json_schema",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_new_tokens",
    "max_output_tokens",
    "metadata",
    "min_p",
    "min_tokens",
    "mirostat",
    "modalities",
    "models",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "provider_options",
    "reasoning",
    "reasoning_effort",
    "repetition_penalty",
    "response_format",
    "route",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "stop_sequences",
    "store",
    "system",
    "thinking",
    "tool_choice",
    "top_k",
    "top_logprobs",
    "top_p",
    "transforms",
    "user",
    "verbosity",
    "web_search_options",
]


class TestOptions:
    @pytest.mark.parametrize("pattern", PATTERNS)
    @pytest.mark.req("patterns.options")
    def test_the_options_of_the_apis_go_through(self, pattern: Any) -> None:
        check_options(pattern, dict.fromkeys(KNOWN_OPTIONS))

    @pytest.mark.parametrize(
        ("pattern", "slip", "meant"),
        [
            (consensus, "num_sample", "num_samples"),
            (consensus, "max_token", "max_tokens"),
            (consensus, "normaliser", "normalizer"),
            (consensus, "max_concurency", "max_concurrency"),
            (refine_loop, "max_iteration", "max_iterations"),
            (refine_loop, "targetscore", "target_score"),
            (structured, "max_retry", "max_retries"),
            (structured, "validators", "validator"),
            (map_reduce, "map_template_prompt", None),
            (map_reduce, "map_prompt_templat", "map_prompt_template"),
            (react_loop, "max_round", "max_rounds"),
        ],
    )
    @pytest.mark.req("patterns.options")
    def test_a_slip_is_named_with_what_was_meant(
        self, pattern: Any, slip: str, meant: str | None
    ) -> None:
        if meant is None:
            check_options(pattern, {slip: 1})
            return
        with pytest.raises(TypeError, match=f"{slip!r}; did you mean {meant!r}"):
            check_options(pattern, {slip: 1})

    @pytest.mark.req("patterns.foreign-options")
    def test_no_parameter_of_another_pattern_ends_at_the_provider(self) -> None:
        """Nor one of `pipe`, `Kit` or `RetryConfig`; the owner is named."""
        owners: list[Any] = [*PATTERNS, pipe, Kit, RetryConfig]
        for pattern in PATTERNS:
            own = parameters_of(pattern)
            for owner in owners:
                for name in parameters_of(owner) - own - {"tools", "messages"}:
                    with pytest.raises(TypeError, match=f"'{name}'|`{name}`"):
                        check_options(pattern, {name: 1})

    @pytest.mark.parametrize(
        ("pattern", "name", "remedy"),
        [
            (consensus, "samples", "did you mean 'num_samples'"),
            (consensus, "max_budget", "did you mean 'max_cost'"),
            (consensus, "budget", "did you mean 'max_cost'"),
            (consensus, "max_calls", r"max_cost=TokenUsage\(llm_calls=...\)"),
            (consensus, "max_retries", r"retry=RetryConfig\(max_retries=...\)"),
            (consensus, "timeout", r"Provider\(timeout=...\)"),
            (consensus, "deadline", "ExecutionContext.with_deadline"),
            (consensus, "max_rounds", "belongs to `react_loop`"),
            (consensus, "schema", "belongs to `structured`"),
            (react_loop, "max_iterations", "did you mean 'max_rounds'"),
            (react_loop, "max_tool_rounds", "did you mean 'max_rounds'"),
            (react_loop, "gate", "did you mean 'approval_gate'"),
            (react_loop, "samples", "belongs to `consensus`, as `num_samples`"),
            (refine_loop, "max_rounds", "did you mean 'max_iterations'"),
            (structured, "gate", "belongs to `react_loop`, as `approval_gate`"),
        ],
    )
    @pytest.mark.req("patterns.foreign-options")
    def test_a_foreign_name_is_told_where_it_belongs(
        self, pattern: Any, name: str, remedy: str
    ) -> None:
        with pytest.raises(TypeError, match=f"{pattern.__name__}.*{name!r}.*{remedy}"):
            check_options(pattern, {name: 1})

    @pytest.mark.parametrize(
        "value",
        [TokenUsage(llm_calls=1), RetryConfig(), print, lambda _: "x", int],
    )
    @pytest.mark.req("patterns.foreign-options")
    def test_a_value_that_no_request_can_carry_is_refused(self, value: Any) -> None:
        with pytest.raises(TypeError, match="`limits` goes to the provider"):
            check_options(consensus, {"limits": value})

    @pytest.mark.req("patterns.foreign-options")
    def test_tools_are_for_the_tool_loop_but_those_of_a_server_go_through(
        self,
    ) -> None:
        tool = Tool("t", "d", {"type": "object"}, execute=lambda: "x")
        for value in (tool, [tool], (tool,)):
            with pytest.raises(TypeError, match=r"react_loop\(..., tools="):
                check_options(consensus, {"tools": value})
        check_options(consensus, {"tools": [{"type": "web_search"}]})

    @pytest.mark.req("patterns.foreign-options")
    def test_an_option_may_be_left_out(self) -> None:
        check_options(consensus, {"seed": OMIT})

    @pytest.mark.parametrize("name", ["messages", "stream_options", "usage_sink"])
    def test_what_a_pattern_sets_itself_cannot_be_passed(self, name: str) -> None:
        with pytest.raises(TypeError, match=name):
            check_options(consensus, {name: 1})

    @pytest.mark.req("D-41", "patterns.options")
    async def test_limits_and_temperature_can_be_left_out(self) -> None:
        """D-41: a server for reasoning models refuses both."""
        provider = ScriptedProvider(lambda _: '{"a": 1}')
        left_out: dict[str, Any] = {"temperature": OMIT, "max_tokens": OMIT}
        await consensus(provider, "x", num_samples=1, **left_out)
        await refine_loop(provider, "x", max_iterations=0, **left_out)
        await structured(provider, "x", **left_out)
        await map_reduce(
            provider,
            ["a"],
            map_prompt_template="{item}",
            reduce_prompt_template="{mapped_outputs}",
            **left_out,
        )
        assert len(provider.requests) == 5
        for request in provider.requests:
            seen: tuple[Any, Any] = (request.temperature, request.max_tokens)
            assert seen == (OMIT, OMIT)

    @pytest.mark.parametrize("bad", [0, -1, True, 1.0, "4"])
    @pytest.mark.req("patterns.max-tokens")
    def test_a_senseless_max_tokens_is_refused(self, bad: Any) -> None:
        with pytest.raises(ValueError, match="max_tokens"):
            check_max_tokens(bad)

    @pytest.mark.parametrize("good", [1, 10**9, None, OMIT])
    def test_a_usual_max_tokens_passes(self, good: Any) -> None:
        check_max_tokens(good)

    @pytest.mark.parametrize("bad", [0, True, 2.0])
    def test_check_positive_names_the_argument(self, bad: Any) -> None:
        with pytest.raises(ValueError, match="rounds must be >= 1"):
            check_positive(good=3, rounds=bad)

    def test_check_positive_tells_a_wrong_type_from_a_wrong_number(self) -> None:
        with pytest.raises(ValueError, match="an integer, got '5', which is a str"):
            check_positive(rounds="5")  # type: ignore[arg-type]


@pytest.mark.req("patterns.max-tokens")
async def test_every_pattern_refuses_a_max_tokens_below_one() -> None:
    provider = MockProvider()
    templates: dict[str, Any] = {
        "map_prompt_template": "{item}",
        "reduce_prompt_template": "{mapped_outputs}",
    }
    for make in (
        lambda: consensus(provider, "x", max_tokens=0),
        lambda: refine_loop(provider, "x", max_tokens=0),
        lambda: structured(provider, "x", max_tokens=0),
        lambda: react_loop(provider, "x", max_tokens=0),
        lambda: map_reduce(provider, [], max_tokens=0, **templates),
    ):
        with pytest.raises(ValueError, match="max_tokens must be >= 1"):
            await make()
    assert provider.call_count == 0


class TestArguments:
    """What cannot work is refused before anything is sent."""

    @pytest.mark.parametrize("pattern", PATTERNS)
    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("provider", None, "`provider` must be a provider"),
            ("provider", "gpt-4", "`provider` must be a provider"),
            ("provider", MockProvider, "not a class.*pass an object"),
            ("max_cost", 5, r"`TokenUsage\(llm_calls=5\)`"),
            ("retry", 3, r"`RetryConfig\(max_retries=3\)`"),
            ("trace", "run.jsonl", r"JsonlTraceSink\(path\)"),
            ("temperature", "hot", "`temperature` must be a number, None.*'hot'"),
            ("temperature", True, "`temperature` must be a number"),
        ],
    )
    @pytest.mark.req("patterns.arguments-checked")
    async def test_an_argument_of_the_wrong_kind_is_named_with_the_remedy(
        self, pattern: Any, name: str, value: object, words: str
    ) -> None:
        provider = MockProvider()
        with pytest.raises(TypeError, match=words):
            await call(pattern, **{"provider": provider, name: value})
        assert provider.call_count == 0

    @pytest.mark.parametrize("pattern", [consensus, refine_loop, structured])
    @pytest.mark.parametrize("prompt", [None, 3, ["a"], ASK])
    @pytest.mark.req("patterns.arguments-checked")
    async def test_a_prompt_is_a_text(self, pattern: Any, prompt: object) -> None:
        provider = MockProvider()
        words = "messages=" if prompt is ASK else "`prompt` must be a str"
        with pytest.raises(TypeError, match=words):
            await call(pattern, provider=provider, prompt=prompt)
        assert provider.call_count == 0

    @pytest.mark.parametrize(
        ("pattern", "name"),
        [
            (consensus, "normalizer"),
            (refine_loop, "evaluator"),
            (refine_loop, "on_checkpoint"),
            (structured, "validator"),
        ],
    )
    @pytest.mark.req("patterns.arguments-checked")
    async def test_a_function_can_be_called(self, pattern: Any, name: str) -> None:
        with pytest.raises(TypeError, match=f"`{name}` must be callable.*pass a func"):
            await call(pattern, provider=MockProvider(), **{name: "x"})

    @pytest.mark.req("patterns.arguments-checked")
    async def test_a_template_is_a_text(self) -> None:
        with pytest.raises(TypeError, match="`map_prompt_template` must be a str"):
            await call(map_reduce, provider=MockProvider(), map_prompt_template=3)

    @pytest.mark.req("patterns.arguments-checked")
    async def test_an_empty_prompt_is_fine(self) -> None:
        result = await consensus(MockProvider(["a"]), "", num_samples=1)
        assert result.value == "a"

    @pytest.mark.parametrize("good", [0, 1.5, None, OMIT])
    def test_a_usual_temperature_passes(self, good: Any) -> None:
        check_temperature(good)


class TestScore:
    @pytest.mark.parametrize("good", [0, 1, 0.0, 0.5, 1.0])
    @pytest.mark.req("patterns.score")
    def test_a_number_from_zero_to_one_is_a_score(self, good: float) -> None:
        assert validate_score(good) == good

    @pytest.mark.parametrize(
        "bad", [-0.1, 1.1, float("nan"), float("inf"), True, "0.5", None, 1j]
    )
    @pytest.mark.req("patterns.score")
    def test_everything_else_is_none(self, bad: Any) -> None:
        with pytest.raises(ValueError, match="Invalid evaluator score"):
            validate_score(bad)

    def test_any_real_number_counts(self) -> None:
        from fractions import Fraction

        assert validate_score(Fraction(1, 2)) == 0.5  # type: ignore[arg-type]


class TestCheckpoint:
    @pytest.mark.req("patterns.checkpoints")
    async def test_it_may_be_sync_or_async_or_missing(self) -> None:
        seen: list[tuple[int, dict[str, Any]]] = []

        async def later(index: int, state: dict[str, Any]) -> None:
            await asyncio.sleep(0)
            seen.append((index, state))

        def now(index: int, state: dict[str, Any]) -> None:
            seen.append((index, state))

        await run_checkpoint(None, 0, {}, context="x")
        await run_checkpoint(now, 1, {"a": 1}, context="x")
        await run_checkpoint(later, 2, {"b": 2}, context="x")
        assert seen == [(1, {"a": 1}), (2, {"b": 2})]

    @pytest.mark.req("patterns.checkpoints")
    async def test_its_failure_is_logged_and_changes_nothing(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(_index: int, _state: dict[str, Any]) -> None:
            raise OSError("disk full")

        with caplog.at_level(logging.WARNING, "executionkit"):
            await run_checkpoint(broken, 0, {}, context="refine_loop")
        assert "checkpoint callback of refine_loop failed" in caplog.text


async def my_pattern(
    provider: LLMProvider,
    prompt: str,
    *,
    max_cost: TokenUsage | None = None,
    **_kwargs: Any,
) -> PatternResult[str]:
    """A pattern as users write it."""
    tracker = CostTracker()
    response = await checked_complete(
        provider,
        [{"role": "user", "content": prompt}],
        tracker,
        max_cost,
        None,
        temperature=0.2,
    )
    return PatternResult(
        response.content.upper(),
        cost=tracker.to_usage(),
        metadata=MappingProxyType({"length": len(response.content)}),
    )


class MyProvider:
    """A provider as users write it: no inheritance."""

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> LLMResponse:
        return LLMResponse(f"re: {messages[-1]['content']}", usage=USAGE)


class TestExtensionPoints:
    @pytest.mark.req("patterns.own-provider")
    async def test_any_class_with_the_method_is_a_provider(self) -> None:
        assert isinstance(MyProvider(), LLMProvider)
        assert not isinstance(MyProvider(), ToolCallingProvider)
        result = await consensus(MyProvider(), "hi", num_samples=2)
        assert (result.value, result.cost) == ("re: hi", TokenUsage(20, 4, 2))

    @pytest.mark.req("patterns.own-pattern")
    async def test_a_pattern_of_ones_own_works_alone_and_in_a_pipe(self) -> None:
        alone = await my_pattern(MyProvider(), "a")
        assert (alone.value, alone.metadata["length"]) == ("RE: A", 5)
        both = await pipe(
            MyProvider(),
            "a",
            my_pattern,
            my_pattern,
            max_budget=TokenUsage(llm_calls=2),
        )
        assert both.value == "RE: RE: A"
        assert both.cost == TokenUsage(20, 4, 2)
        with pytest.raises(BudgetExhaustedError):
            await pipe(
                MyProvider(),
                "a",
                *[my_pattern] * 3,
                max_budget=TokenUsage(llm_calls=2),
            )

    @pytest.mark.req("patterns.own-evaluator")
    async def test_an_evaluator_of_ones_own_scores_with_the_same_provider(self) -> None:
        async def judge(text: str, provider: LLMProvider) -> float:
            response = await provider.complete([{"role": "user", "content": text}])
            return validate_score(0.95 if response.content else 0.0)

        result = await refine_loop(MyProvider(), "hi", evaluator=judge)
        assert (result.value, result.score) == ("re: hi", 0.95)
        assert result.cost.llm_calls == 2


@pytest.mark.req("patterns.results")
async def test_the_results_of_all_patterns_are_read_only_and_travel() -> None:
    """D-33: they can be cached, compared, copied and sent to another process."""
    provider = ScriptedProvider(lambda _: '{"a": [1]}')

    async def half(_text: str, _provider: object) -> float:
        return 0.5

    results: list[PatternResult[Any]] = [
        await consensus(provider, "x"),
        await refine_loop(provider, "x", evaluator=half, max_iterations=2),
        await structured(provider, "x"),
        await map_reduce(
            provider,
            ["a"],
            map_prompt_template="{item}",
            reduce_prompt_template="{mapped_outputs}",
        ),
    ]
    for result in results:
        assert pickle.loads(pickle.dumps(result)) == result
        assert copy.deepcopy(result) == result
        hash(result)
        with pytest.raises(TypeError):
            result.metadata["new"] = 1  # type: ignore[index]
        for value in result.metadata.values():
            assert not isinstance(value, list) or _refuses_change(value)
    with pytest.raises(TypeError):
        results[2].value["a"].append(2)


def _refuses_change(value: list[Any]) -> bool:
    try:
        value.append(1)
    except TypeError:
        return True
    return False


class TestGuide:
    """The examples of the guide to execution controls, as they stand there."""

    @pytest.mark.req("guide.retries")
    async def test_retries(self, auto_clock: FakeClock) -> None:
        retry = RetryConfig(
            max_retries=2,
            base_delay=0.5,
            max_delay=10.0,
            exponential_base=2.0,
            retryable=(RateLimitError, ProviderError),
        )
        provider = ScriptedProvider([ProviderError("1"), ProviderError("2"), "yes"])
        result = await consensus(provider, "?", num_samples=1, retry=retry)
        assert (result.value, result.cost.llm_calls) == ("yes", 3)
        first, second = auto_clock.sleeps
        assert 0 <= first <= 0.5
        assert 0 <= second <= 1.0

    @pytest.mark.req("guide.pace-each-attempt")
    async def test_pace_each_provider_attempt(self, auto_clock: FakeClock) -> None:
        bucket = TokenBucket(rate=2.0, capacity=4.0)
        retry = RetryConfig(rate_limit_strategy=bucket)
        times: list[float] = []

        async def answer(_request: Request) -> str:
            times.append(auto_clock.monotonic())
            return "yes"

        begun = auto_clock.monotonic()
        await consensus(
            ScriptedProvider(answer),
            "?",
            num_samples=6,
            max_concurrency=6,
            retry=retry,
        )
        waited = [round(moment - begun, 3) for moment in sorted(times)]
        assert waited == [0, 0, 0, 0, 0.5, 1.0]

    @pytest.mark.req("guide.pace-kit")
    async def test_pace_top_level_kit_methods(self, auto_clock: FakeClock) -> None:
        """One token for a call of a method, whatever it dispatches."""
        bucket = TokenBucket(rate=2.0, capacity=4.0)
        kit = Kit(ScriptedProvider(lambda _: "yes"), rate_limiter=bucket)
        await kit.consensus("?", num_samples=5)
        assert bucket.stats().available == pytest.approx(3.0)

    @pytest.mark.req("guide.cumulative-usage")
    async def test_cumulative_usage(self) -> None:
        kit = Kit(ScriptedProvider(lambda _: "9", usage=USAGE))
        first = await kit.consensus("Return only the result of 6 * 7.", num_samples=3)
        second = await kit.refine("Explain that result.", max_iterations=2)
        assert first.cost == TokenUsage(30, 6, 3)
        assert kit.usage == first.cost + second.cost
        await kit.provider.complete(ASK)
        assert kit.usage == first.cost + second.cost

    @pytest.mark.req("guide.trace")
    async def test_trace_execution(self) -> None:
        seen: list[tuple[str, dict[str, Any]]] = []

        async def handle_trace(event: TraceEvent) -> None:
            seen.append((event.kind, dict(event.payload)))

        leak = "use sk-proj-Ab12Cd34Ef56Gh78Ij90 for that"
        await consensus(
            ScriptedProvider([leak]), "?", num_samples=1, trace=handle_trace
        )
        kinds = ["pattern_start", "llm_call_start", "llm_call_end", "pattern_end"]
        assert [kind for kind, _ in seen] == kinds
        assert seen[2][1]["content"] == "use [REDACTED] for that"


@pytest.mark.req("retry.final-error", "HT-12")
async def test_an_error_that_quotes_another_counts_once() -> None:
    inner = ProviderError("down")
    inner.attempts = 2
    tracker = CostTracker()
    for _ in range(3):
        tracker.reserve_call()
    with (
        pytest.raises(EvaluatorError) as caught,
        spending(tracker),
        calling_user("validator"),
    ):
        raise ValueError(describe(inner))
    assert str(caught.value).count("requests sent") == 1
    assert str(caught.value).endswith("ProviderError: down (requests sent: 3)")
