"""One checked call: budget, retries, deadline, trace, and whose errors are whose."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import traceback
from collections.abc import Sequence
from typing import Any, Self

import pytest

import executionkit
from executionkit import (
    BudgetExhaustedError,
    CostTracker,
    ExecutionContext,
    ExecutionKitError,
    LLMResponse,
    PermanentError,
    Provider,
    ProviderError,
    RateLimitError,
    RetryConfig,
    SlidingWindow,
    TokenBucket,
    TokenUsage,
    TraceEvent,
    checked_complete,
    consensus,
    execution_scope,
    map_reduce,
    refine_loop,
    structured,
)
from executionkit.anthropic import AnthropicProvider
from executionkit.cost import Budget
from executionkit.engine.retry import with_retry
from executionkit.errors import (
    BadResponseError,
    DeadlineExceededError,
    ProviderConnectionError,
    ProviderTimeoutError,
)
from executionkit.observability import MemoryTraceSink
from executionkit.patterns._call import known_secrets
from executionkit.provider import OMIT
from executionkit.testing import FakeClock, Request, ScriptedProvider
from executionkit.testing.http import Reply, ScriptedServer, json_reply

LIMIT = 5
ASK = [{"role": "user", "content": "x" * 40}]
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
ONCE = RetryConfig(max_retries=0)
KEY = "custom-key-7f3a91c2"


def reply(sent: int = 10, made: int = 2, text: str = "yes") -> LLMResponse:
    return LLMResponse(text, usage={"prompt_tokens": sent, "completion_tokens": made})


class Raiser:
    """Fails in the same way each time, with the very same object."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.requests = 0

    async def complete(self, messages: Sequence[Any], **_options: Any) -> LLMResponse:
        self.requests += 1
        raise self.error


class Calls:
    """A tracker, its budget, and calls through it."""

    def __init__(self, provider: Any, budget: TokenUsage | None = None) -> None:
        self.provider = provider
        self.budget = budget
        self.tracker = CostTracker()
        self.sink = MemoryTraceSink()

    async def __call__(
        self, retry: RetryConfig | None = None, **options: Any
    ) -> LLMResponse:
        return await checked_complete(
            self.provider, ASK, self.tracker, self.budget, retry, self.sink, **options
        )


class TestBudget:
    @pytest.mark.parametrize(
        ("limits", "spent", "words"),
        [
            (TokenUsage(1, 1, 1), TokenUsage(1, 1, 1), "LLM call budget exhausted"),
            (TokenUsage(1, 1, 9), TokenUsage(1, 1, 1), "Input token budget exhausted"),
            (TokenUsage(9, 1, 9), TokenUsage(1, 1, 1), "Output token budget exhausted"),
        ],
    )
    @pytest.mark.req("call.budget-order")
    async def test_limits_are_checked_in_the_order_calls_input_output(
        self, limits: TokenUsage, spent: TokenUsage, words: str
    ) -> None:
        calls = Calls(ScriptedProvider([]), limits)
        calls.tracker.add_usage(spent)
        with pytest.raises(BudgetExhaustedError, match=words) as caught:
            await calls()
        assert "before dispatch" in str(caught.value)
        assert caught.value.cost == spent
        assert caught.value.metadata == {"budget": limits}
        assert calls.provider.requests == []

    @pytest.mark.parametrize("name", ["llm_calls", "input_tokens", "output_tokens"])
    @pytest.mark.req("budget.minus-one-is-exhausted")
    async def test_minus_one_blocks_the_first_request(self, name: str) -> None:
        calls = Calls(ScriptedProvider([]), TokenUsage(**{name: -1}))
        with pytest.raises(BudgetExhaustedError, match="forwarded from pipe"):
            await calls()
        assert calls.provider.requests == []

    @pytest.mark.req("budget.zero-is-no-limit")
    async def test_zero_is_no_limit(self) -> None:
        calls = Calls(ScriptedProvider([reply(10**6, 10**6)] * 3), TokenUsage(0, 0, 0))
        for _ in range(3):
            await calls()
        assert calls.tracker.to_usage() == TokenUsage(3 * 10**6, 3 * 10**6, 3)

    @pytest.mark.req("budget.blocks-at-the-limit")
    async def test_a_call_is_blocked_once_recorded_usage_reaches_the_limit(
        self,
    ) -> None:
        calls = Calls(ScriptedProvider([reply(50, 1)] * 3), TokenUsage(100))
        await calls()
        await calls()
        with pytest.raises(BudgetExhaustedError, match="100 of 100"):
            await calls()

    @pytest.mark.req("budget.response-may-pass-the-limit")
    async def test_a_response_may_pass_a_token_limit_and_blocks_the_next_call(
        self,
    ) -> None:
        calls = Calls(ScriptedProvider([reply(1, 5000)]), TokenUsage(0, 10))
        assert (await calls(max_tokens=8)).content == "yes"
        assert calls.tracker.to_usage().output_tokens == 5000
        with pytest.raises(BudgetExhaustedError):
            await calls()

    @pytest.mark.req("budget.retries-take-slots")
    async def test_every_dispatched_retry_takes_another_slot(
        self, auto_clock: FakeClock
    ) -> None:
        calls = Calls(Raiser(ProviderError("down")), TokenUsage(llm_calls=2))
        with pytest.raises(BudgetExhaustedError, match="before retry dispatch") as e:
            await calls(RetryConfig(max_retries=3))
        assert calls.provider.requests == 2
        assert e.value.cost.llm_calls == e.value.attempts == 2
        assert isinstance(e.value.__context__, ProviderError)

    @pytest.mark.parametrize("field", ["input_tokens", "output_tokens"])
    @pytest.mark.req("D-09")
    async def test_a_retry_is_not_sent_when_the_tokens_are_spent_meanwhile(
        self, field: str, auto_clock: FakeClock
    ) -> None:
        """D-09: 500 of 100 recorded between the attempts."""
        tracker = CostTracker()

        async def answer(_request: Request) -> BaseException:
            tracker.add_usage(TokenUsage(500, 500))
            return ProviderError("down")

        provider = ScriptedProvider(answer)
        with pytest.raises(BudgetExhaustedError, match="before retry dispatch"):
            await checked_complete(
                provider, ASK, tracker, TokenUsage(**{field: 100}), None
            )
        assert len(provider.requests) == 1

    @pytest.mark.req("D-09")
    async def test_the_budget_is_checked_after_the_wait_for_a_permit(
        self, auto_clock: FakeClock
    ) -> None:
        """D-09: the second call waits behind a bucket while the first one spends all.

        Its permit is there for the next caller.
        """
        bucket = TokenBucket(rate=1.0, capacity=1.0)
        paced = RetryConfig(rate_limit_strategy=bucket)
        begun = auto_clock.monotonic()

        async def answer(_request: Request) -> LLMResponse:
            await auto_clock.sleep(0.5)
            return reply(10, 500)

        calls = Calls(ScriptedProvider(answer), TokenUsage(0, 100))
        outcomes = await asyncio.gather(
            *(calls(paced, max_tokens=10) for _ in range(2)), return_exceptions=True
        )
        assert [type(item) for item in outcomes] == [LLMResponse, BudgetExhaustedError]
        assert auto_clock.monotonic() - begun == 1.0
        await bucket.acquire()
        assert auto_clock.monotonic() - begun == 1.0

    @pytest.mark.req("budget.fresh-permits")
    async def test_a_permit_is_taken_when_there_is_room_not_long_before(
        self, auto_clock: FakeClock
    ) -> None:
        """Calls that waited for room do not go out together, against the limit."""
        window = SlidingWindow(1, 1.0)
        paced = RetryConfig(rate_limit_strategy=window)
        begun = auto_clock.monotonic()
        times: list[float] = []

        async def answer(request: Request) -> LLMResponse:
            times.append(round(auto_clock.monotonic() - begun, 3))
            if request.number == 1:
                await auto_clock.sleep(10.0)
            return reply(1, 10)

        calls = Calls(ScriptedProvider(answer), TokenUsage(0, 100))
        await asyncio.gather(*(calls(paced, max_tokens=100) for _ in range(4)))
        assert times == [0.0, 10.0, 11.0, 12.0]
        assert calls.tracker.to_usage() == TokenUsage(4, 40, 4)

    @pytest.mark.req("budget.fresh-permits")
    async def test_a_permit_that_comes_when_the_room_is_gone_is_given_back(
        self, auto_clock: FakeClock
    ) -> None:
        bucket = TokenBucket(rate=1.0, capacity=1.0)
        await bucket.acquire()
        paced = RetryConfig(rate_limit_strategy=bucket)
        begun = auto_clock.monotonic()
        times: list[float] = []

        async def answer(_request: Request) -> LLMResponse:
            times.append(round(auto_clock.monotonic() - begun, 3))
            await auto_clock.sleep(4.0)
            return reply(1, 10)

        calls = Calls(ScriptedProvider(answer), TokenUsage(0, 100))
        await asyncio.gather(*(calls(paced, max_tokens=60) for _ in range(2)))
        assert times == [1.0, 5.0]

    @pytest.mark.req("budget.fresh-permits", "D-10")
    async def test_a_token_limit_and_a_rate_limit_get_along(
        self, auto_clock: FakeClock
    ) -> None:
        """Retries, cooldowns, deadlines and refunds are what they were."""
        bucket = TokenBucket(rate=1.0, capacity=2.0)
        paced = RetryConfig(base_delay=0.0, rate_limit_strategy=bucket)
        script: list[Any] = [RateLimitError("busy", retry_after=3.0), reply(1, 200)]
        calls = Calls(ScriptedProvider(script), TokenUsage(0, 100))
        begun = auto_clock.monotonic()
        await calls(paced, max_tokens=10)
        assert auto_clock.monotonic() - begun == pytest.approx(3.0)
        left = bucket.stats().available
        with pytest.raises(BudgetExhaustedError):
            await calls(paced, max_tokens=10)
        assert bucket.stats().available == left
        slow = RetryConfig(rate_limit_strategy=SlidingWindow(1, 60.0))
        fresh = Calls(ScriptedProvider([reply()]), TokenUsage(0, 100))
        async with execution_scope(ExecutionContext().with_timeout(5.0)):
            await fresh(slow)
            with pytest.raises(DeadlineExceededError, match="nothing was sent"):
                await fresh(slow)

    @pytest.mark.req("D-09", "retry.never-retried")
    async def test_a_budget_error_is_not_retried_even_when_all_errors_are(
        self, fake_clock: FakeClock
    ) -> None:
        everything = RetryConfig(retryable=(Exception,))
        calls = Calls(ScriptedProvider([]), TokenUsage(llm_calls=-1))
        with pytest.raises(BudgetExhaustedError):
            await calls(everything)
        assert fake_clock.sleeps == []

    @pytest.mark.parametrize(
        ("default", "options", "room"),
        [
            (None, {"max_tokens": 40}, 40),
            (None, {"max_completion_tokens": 30, "max_tokens": 40}, 30),
            (50, {}, 50),
            (50, {"max_tokens": OMIT}, 50),
            (True, {"max_tokens": None}, 4096),
            (None, {}, 4096),
        ],
    )
    @pytest.mark.req("budget.reservation")
    async def test_a_call_reserves_the_output_that_it_may_make(
        self, default: Any, options: dict[str, Any], room: int
    ) -> None:
        inside = asyncio.Event()
        finish = asyncio.Event()

        async def answer(_request: Request) -> str:
            inside.set()
            await finish.wait()
            return "yes"

        provider: Any = ScriptedProvider(answer)
        if default is not None:
            provider.default_max_tokens = default
        calls = Calls(provider, TokenUsage(0, 10_000))
        task = asyncio.create_task(calls(**options))
        async with asyncio.timeout(LIMIT):
            await inside.wait()
        limits = Budget.from_usage(calls.budget)
        fits = calls.tracker.admit_now(limits, output_tokens=10_000 - room)
        assert fits is not None
        fits.refund()
        assert calls.tracker.admit_now(limits, output_tokens=10_001 - room) is None
        finish.set()
        await task

    @pytest.mark.req("budget.reservation")
    async def test_the_input_reservation_counts_text_tool_calls_and_tools(self) -> None:
        provider = ScriptedProvider(["yes"])
        tracker = CostTracker()
        seen: list[int] = []
        admit = tracker.admit

        async def spy(*args: Any, **kwargs: Any) -> Any:
            seen.append(kwargs["input_tokens"])
            return await admit(*args, **kwargs)

        tracker = _Spied(spy)
        call = {"id": "1", "function": {"name": "f", "arguments": "y" * 400}}
        asked: dict[str, Any] = {"role": "assistant", "content": None}
        messages = [*ASK, {**asked, "tool_calls": [call]}]
        await checked_complete(
            provider, messages, tracker, TokenUsage(10_000), None, tools=[call]
        )
        assert 210 <= seen[0] <= 260

    @pytest.mark.req("budget.calls-are-exact")
    async def test_concurrent_calls_never_share_the_last_slot(self) -> None:
        calls = Calls(ScriptedProvider(lambda _: "yes"), TokenUsage(llm_calls=3))
        outcomes = await asyncio.gather(
            *(calls() for _ in range(20)), return_exceptions=True
        )
        assert sum(isinstance(item, LLMResponse) for item in outcomes) == 3
        assert len(calls.provider.requests) == 3

    @pytest.mark.req("budget.no-wait-for-oneself")
    async def test_a_task_never_waits_for_a_call_of_its_own(self) -> None:
        """A model asked while the same task reads a stream would wait for ever."""
        calls = Calls(ScriptedProvider(["one two three", "yes"]), TokenUsage(0, 100))
        stream = await executionkit.checked_stream(
            calls.provider, ASK, calls.tracker, calls.budget, None
        )
        async with asyncio.timeout(LIMIT), stream:
            first = await anext(stream.text_stream)
            assert (await calls()).content == "yes"
            assert [first, *[text async for text in stream]] == [
                "one ",
                "two ",
                "three",
            ]


class _Spied(CostTracker):
    def __init__(self, spy: Any) -> None:
        super().__init__()
        self._spy = spy

    async def admit(self, *args: Any, **kwargs: Any) -> Any:
        return await self._spy(*args, **kwargs)


class TestRetries:
    @pytest.mark.parametrize(("retries", "sent"), [(0, 1), (1, 2), (3, 4)])
    @pytest.mark.req("retry.attempts", "HT-12")
    async def test_the_number_of_dispatched_attempts(
        self, retries: int, sent: int, auto_clock: FakeClock
    ) -> None:
        calls = Calls(Raiser(ProviderError("down")))
        with pytest.raises(ProviderError) as caught:
            await calls(RetryConfig(max_retries=retries))
        assert calls.provider.requests == caught.value.attempts == sent
        assert caught.value.cost == TokenUsage(0, 0, sent)

    @pytest.mark.req("retry.attempts")
    async def test_the_default_is_four_attempts(self, auto_clock: FakeClock) -> None:
        calls = Calls(Raiser(ProviderError("down")))
        with pytest.raises(ProviderError):
            await calls()
        assert calls.provider.requests == 4

    @pytest.mark.parametrize(
        "error",
        [
            PermanentError("HTTP 402", metadata={"status": 402}),
            PermanentError("HTTP 410", metadata={"status": 410}),
            PermanentError("HTTP 501", metadata={"status": 501}),
            ValueError("a bug"),
        ],
    )
    @pytest.mark.req("D-12")
    async def test_what_cannot_work_is_sent_once(
        self, error: Exception, auto_clock: FakeClock
    ) -> None:
        """D-12: permanent outcomes are not paid for four times."""
        calls = Calls(Raiser(error))
        with pytest.raises(type(error)):
            await calls()
        assert calls.provider.requests == 1

    @pytest.mark.req("HT-08")
    async def test_a_bad_response_is_tried_once_more(
        self, auto_clock: FakeClock
    ) -> None:
        """HT-08: 200 whose body is not the promised JSON."""
        calls = Calls(Raiser(BadResponseError("not JSON")))
        with pytest.raises(BadResponseError):
            await calls()
        assert calls.provider.requests == 2

    @pytest.mark.req("HT-02")
    async def test_a_hint_beyond_the_cap_fails_at_once_and_is_on_the_error(
        self, fake_clock: FakeClock
    ) -> None:
        """HT-02: `Retry-After: 75` with pauses of at most 60 s."""
        calls = Calls(Raiser(RateLimitError("busy", retry_after=75.0)))
        with pytest.raises(RateLimitError) as caught:
            await calls()
        assert (calls.provider.requests, caught.value.retry_after) == (1, 75.0)
        assert fake_clock.sleeps == []

    @pytest.mark.req("HT-02")
    async def test_a_hint_beyond_the_deadline_fails_at_once(
        self, fake_clock: FakeClock
    ) -> None:
        """HT-02: `Retry-After: 86400` with 60 s left."""
        calls = Calls(Raiser(RateLimitError("busy", retry_after=86_400.0)))
        patient = RetryConfig(max_delay=100_000.0)
        async with execution_scope(ExecutionContext().with_timeout(60.0)):
            with pytest.raises(RateLimitError) as caught:
                await calls(patient)
        assert (calls.provider.requests, caught.value.retry_after) == (1, 86_400.0)
        assert fake_clock.sleeps == []

    @pytest.mark.parametrize("retries", [0, 1])
    @pytest.mark.req("D-10")
    async def test_a_429_cools_the_bucket_down_also_after_the_last_attempt(
        self, retries: int, auto_clock: FakeClock
    ) -> None:
        """D-10: the next acquisition waits for `retry_after`."""
        bucket = TokenBucket(rate=100.0, capacity=100.0)
        paced = RetryConfig(max_retries=retries, rate_limit_strategy=bucket)
        calls = Calls(Raiser(RateLimitError("busy", retry_after=1.0)))
        with pytest.raises(RateLimitError):
            await calls(paced)
        before = auto_clock.monotonic()
        await bucket.acquire()
        assert auto_clock.monotonic() - before == pytest.approx(1.0)

    @pytest.mark.req("retry.permit")
    async def test_each_attempt_takes_a_permit(self, auto_clock: FakeClock) -> None:
        bucket = TokenBucket(rate=1.0, capacity=4.0)
        calls = Calls(ScriptedProvider([ProviderError("down"), "yes"]))
        await calls(RetryConfig(rate_limit_strategy=bucket, base_delay=0.0))
        assert bucket.stats().available == pytest.approx(2.0, abs=0.01)

    @pytest.mark.req("HT-12")
    async def test_a_layer_below_that_gave_up_is_not_repeated(
        self, auto_clock: FakeClock
    ) -> None:
        """HT-12: the provider retries 3 times itself, the pattern 3 times: 4 requests."""
        bottom = Raiser(ProviderError("down"))

        class Retrying:
            async def complete(self, messages: Any, **options: Any) -> LLMResponse:
                config = RetryConfig()
                return await with_retry(bottom.complete, config, messages, **options)

        calls = Calls(Retrying())
        with pytest.raises(ProviderError) as caught:
            await calls(RetryConfig(max_retries=3))
        assert bottom.requests == caught.value.attempts == 4
        assert str(caught.value).count("(requests sent: 4)") == 1


class TestDeadline:
    @pytest.mark.req("call.deadline")
    async def test_nothing_is_sent_when_nothing_is_left(
        self, fake_clock: FakeClock
    ) -> None:
        calls = Calls(ScriptedProvider([]))
        async with execution_scope(ExecutionContext().with_timeout(1.0)):
            await fake_clock.advance(1.0)
            with pytest.raises(DeadlineExceededError, match="no request was sent") as e:
                await calls()
        assert calls.provider.requests == []
        assert (e.value.attempts, e.value.cost) == (0, TokenUsage())
        assert calls.sink.kinds == ["llm_call_refused"]

    @pytest.mark.req("call.deadline")
    async def test_a_call_is_cut_off_at_the_deadline(
        self, fake_clock: FakeClock
    ) -> None:
        never = asyncio.Event()

        async def answer(_request: Request) -> str:
            await never.wait()
            return "late"

        calls = Calls(ScriptedProvider(answer))
        async with execution_scope(ExecutionContext().with_timeout(3.0)):
            task = asyncio.create_task(calls())
        await fake_clock.advance(2.9)
        assert not task.done()
        await fake_clock.advance(0.2)
        with pytest.raises(DeadlineExceededError, match="in the middle of a call") as e:
            await task
        assert (e.value.attempts, e.value.cost.llm_calls) == (1, 1)
        assert calls.sink.kinds == ["llm_call_start", "llm_call_error"]
        assert calls.provider.active == 0

    @pytest.mark.req("call.deadline")
    async def test_a_retry_that_does_not_fit_is_not_waited_for(
        self, fake_clock: FakeClock
    ) -> None:
        calls = Calls(Raiser(RateLimitError("busy", retry_after=5.0)))
        async with execution_scope(ExecutionContext().with_timeout(3.0)):
            with pytest.raises(RateLimitError):
                await calls()
        assert (calls.provider.requests, fake_clock.sleeps) == (1, [])

    @pytest.mark.req("call.deadline")
    async def test_a_permit_that_does_not_fit_is_not_waited_for(
        self, fake_clock: FakeClock
    ) -> None:
        bucket = TokenBucket(rate=0.1, capacity=1.0)
        await bucket.acquire()
        calls = Calls(ScriptedProvider([]))
        async with execution_scope(ExecutionContext().with_timeout(3.0)):
            with pytest.raises(DeadlineExceededError):
                await calls(RetryConfig(rate_limit_strategy=bucket))
        assert calls.provider.requests == []
        assert calls.sink.kinds == ["llm_call_refused"]

    @pytest.mark.req("call.deadline")
    async def test_waiting_for_room_in_the_budget_ends_at_the_deadline(
        self, fake_clock: FakeClock
    ) -> None:
        calls = Calls(ScriptedProvider([]), TokenUsage(0, 100))
        held = await calls.tracker.admit(
            Budget.from_usage(calls.budget), output_tokens=100
        )
        async with execution_scope(ExecutionContext().with_timeout(3.0)):
            task = asyncio.create_task(calls())
        await fake_clock.advance(3.0)
        with pytest.raises(DeadlineExceededError, match="before the next call"):
            await task
        assert calls.sink.kinds == ["llm_call_refused"]
        held.refund()
        assert calls.tracker.to_usage() == TokenUsage()

    async def test_a_timeout_of_the_provider_itself_is_no_deadline(
        self, fake_clock: FakeClock
    ) -> None:
        calls = Calls(Raiser(TimeoutError("mine")))
        async with execution_scope(ExecutionContext().with_timeout(3.0)):
            with pytest.raises(ProviderTimeoutError, match="mine"):
                await calls(ONCE)

    @pytest.mark.req("trace.hanging-sink")
    async def test_a_sink_that_hangs_holds_a_call_up_until_the_deadline_only(
        self, fake_clock: FakeClock
    ) -> None:
        never = asyncio.Event()
        seen: list[str] = []

        async def sink(event: TraceEvent) -> None:
            seen.append(event.kind)
            await never.wait()

        tracker = CostTracker()
        async with execution_scope(ExecutionContext().with_timeout(3.0)):
            call = checked_complete(
                ScriptedProvider([]), ASK, tracker, None, None, sink
            )
            task = asyncio.create_task(call)
        await fake_clock.advance(3.0)
        assert not task.done()
        await fake_clock.advance(1.0)
        assert task.done()
        with pytest.raises(DeadlineExceededError):
            await task
        assert seen[:2] == ["llm_call_start", "llm_call_error"]
        assert tracker.to_usage() == TokenUsage()


class TestRawFailures:
    """What a provider of one's own lets out of its network code."""

    @pytest.mark.parametrize(
        ("raw", "kind"),
        [
            (ConnectionResetError("reset"), ProviderConnectionError),
            (OSError("no route"), ProviderConnectionError),
            (TimeoutError("late"), ProviderTimeoutError),
            (ExceptionGroup("two", [OSError("a")]), ProviderConnectionError),
        ],
    )
    @pytest.mark.req("call.raw-network-errors")
    async def test_a_lost_connection_is_retried_and_carries_the_cost(
        self, raw: Exception, kind: type[ProviderError], auto_clock: FakeClock
    ) -> None:
        calls = Calls(Raiser(raw))
        with pytest.raises(kind, match="The provider failed: ") as caught:
            await calls(RetryConfig(max_retries=2))
        error = caught.value
        assert error.cost == TokenUsage(0, 0, 3)
        assert (error.attempts, error.retries_exhausted) == (3, True)
        assert isinstance(error.__cause__, OSError)
        assert calls.sink.kinds.count("llm_call_error") == 3
        assert "llm_call_refused" not in calls.sink.kinds

    @pytest.mark.parametrize(
        "retryable", [(ConnectionError,), lambda exc: isinstance(exc, OSError)]
    )
    @pytest.mark.req("call.raw-network-errors")
    async def test_who_names_the_raw_type_in_retry_still_has_it_retried(
        self, retryable: Any, auto_clock: FakeClock
    ) -> None:
        raw = ConnectionResetError("reset")
        calls = Calls(Raiser(raw))
        with pytest.raises(ProviderConnectionError) as caught:
            await calls(RetryConfig(max_retries=2, retryable=retryable))
        assert caught.value.__cause__ is raw
        assert caught.value.cost == TokenUsage(0, 0, 3)
        assert (caught.value.attempts, caught.value.retries_exhausted) == (3, True)
        assert "llm_call_refused" not in calls.sink.kinds

    @pytest.mark.req("call.raw-network-errors")
    async def test_a_mistake_of_the_provider_stays_what_it_is(self) -> None:
        calls = Calls(Raiser(ZeroDivisionError("mine")))
        with pytest.raises(ZeroDivisionError):
            await calls()
        assert calls.tracker.call_count == 1

    @pytest.mark.req("call.raw-network-errors")
    async def test_an_error_of_a_rate_limit_is_none_of_the_provider(self) -> None:
        class Broken(TokenBucket):
            async def acquire(self, *_: Any, **__: Any) -> None:
                raise OSError("no store")

        calls = Calls(ScriptedProvider(["never"]))
        limit = Broken(rate=1.0, capacity=1.0)
        with pytest.raises(OSError, match=r"^no store"):
            await calls(RetryConfig(rate_limit_strategy=limit))

    @pytest.mark.req("call.raw-network-errors", "OB-04")
    async def test_the_key_is_not_in_the_new_text(self) -> None:
        """OB-04: the raw text may hold the URL with the key."""
        provider: Any = Raiser(OSError("refused sk-this-is-a-secret-key-123"))
        provider.api_key = "sk-this-is-a-secret-key-123"
        with pytest.raises(ProviderConnectionError) as caught:
            await Calls(provider)(ONCE)
        assert "secret-key" not in str(caught.value)


class TestTrace:
    @pytest.mark.req("call.trace")
    async def test_a_call_is_a_start_and_an_end_with_the_facts(
        self, fake_clock: FakeClock
    ) -> None:
        calls = Calls(ScriptedProvider([reply(10, 2)]))
        await calls()
        start, end = calls.sink.events
        ids = {
            name: start.payload[name] for name in ("call_id", "span_id", "parent_id")
        }
        assert start == TraceEvent(
            "llm_call_start",
            {
                "attempt": 1,
                "cost": TokenUsage(0, 0, 1),
                "provider": "ScriptedProvider",
                **ids,
            },
        )
        assert end == TraceEvent(
            "llm_call_end",
            {
                "attempt": 1,
                "cost": TokenUsage(10, 2, 1),
                "input_tokens": 10,
                "output_tokens": 2,
                "content": "yes",
                "duration": 0.0,
                "attempts": 1,
                "provider": "ScriptedProvider",
                **ids,
            },
        )

    @pytest.mark.req("D-38", "call.trace")
    async def test_each_attempt_has_its_own_pair(self, auto_clock: FakeClock) -> None:
        """D-38: three starts are three ends."""
        script: list[Any] = [ProviderError("1"), ProviderError("2"), "yes"]
        calls = Calls(ScriptedProvider(script))
        await calls()
        events = [event for event in calls.sink.events if event.kind != "wait"]
        assert [(event.kind, event.payload["attempt"]) for event in events] == [
            ("llm_call_start", 1),
            ("llm_call_error", 1),
            ("llm_call_retry", 1),
            ("llm_call_start", 2),
            ("llm_call_error", 2),
            ("llm_call_retry", 2),
            ("llm_call_start", 3),
            ("llm_call_end", 3),
        ]
        error = calls.sink.events[1]
        assert error.payload["error_type"] == "ProviderError"
        assert error.payload["cost"] == TokenUsage(0, 0, 1)

    @pytest.mark.req("call.trace-pairs")
    async def test_the_attempts_of_a_call_share_an_id_and_calls_do_not(
        self, auto_clock: FakeClock
    ) -> None:
        async def answer(request: Request) -> Any:
            await asyncio.sleep(0)
            return ProviderError("once") if request.number <= 2 else "yes"

        sink = MemoryTraceSink()
        await consensus(ScriptedProvider(answer), "?", num_samples=2, trace=sink)
        seen: dict[str, list[str]] = {}
        for event in sink.events[1:-1]:
            seen.setdefault(event.payload["call_id"], []).append(event.kind)
        first = ["llm_call_start", "llm_call_error", "llm_call_retry"]
        second = ["llm_call_start", "wait", "llm_call_end"]
        assert list(seen.values()) == [first + second] * 2

    @pytest.mark.req("call.trace-pairs")
    async def test_an_attempt_tells_how_long_it_took_and_how_it_failed(
        self, auto_clock: FakeClock
    ) -> None:
        took = iter([2.0, 3.0])

        async def answer(request: Request) -> Any:
            await auto_clock.sleep(next(took))
            return RateLimitError("429") if request.number == 1 else "yes"

        async def slow(_event: TraceEvent) -> None:
            await auto_clock.sleep(10.0)
            events.append(_event)

        events: list[TraceEvent] = []
        tracker = CostTracker()
        provider = ScriptedProvider(answer)
        await checked_complete(provider, ASK, tracker, None, None, slow)
        error, retry, end = (events[place].payload for place in (1, 2, 5))
        assert (error["duration"], end["duration"]) == (2.0, 3.0)
        assert error["error_code"] == retry["error_code"] == "LLM_RATE_LIMITED"
        assert "error_code" not in end

    @pytest.mark.req("call.trace-pairs")
    async def test_only_errors_of_the_library_have_a_code(self) -> None:
        calls = Calls(Raiser(KeyError("x")))
        with pytest.raises(KeyError):
            await calls(ONCE)
        error = calls.sink.events[1].payload
        assert (error["error_type"], error["error_code"]) == ("KeyError", None)

    @pytest.mark.req("D-38", "call.trace")
    async def test_a_call_that_is_not_sent_is_refused_not_failed(self) -> None:
        """D-38: no error without a start."""
        calls = Calls(ScriptedProvider([]), TokenUsage(llm_calls=-1))
        with pytest.raises(BudgetExhaustedError):
            await calls()
        (event,) = calls.sink.events
        assert event.kind == "llm_call_refused"
        assert event.payload == {
            "call_id": event.payload["call_id"],
            "error_code": "BUDGET_EXHAUSTED",
            "error_type": "BudgetExhaustedError",
            "cost": TokenUsage(),
            "span_id": event.payload["span_id"],
            "parent_id": None,
        }

    @pytest.mark.parametrize("usage", [{"prompt_tokens": "x"}, {"prompt_tokens": -1}])
    @pytest.mark.req("D-38", "usage.senseless-count-never-loses-a-reply")
    async def test_senseless_usage_still_ends_the_call(
        self, usage: dict[str, Any]
    ) -> None:
        calls = Calls(ScriptedProvider([LLMResponse("yes", usage=usage)]))
        assert (await calls()).content == "yes"
        assert calls.sink.kinds == ["llm_call_start", "llm_call_end"]

    @pytest.mark.parametrize("wrong", ["text", None, {"content": "x"}])
    @pytest.mark.req("call.wrong-reply", "D-38")
    async def test_something_else_than_a_response_is_named_and_closes_the_pair(
        self, wrong: Any
    ) -> None:
        class Wrong:
            async def complete(self, messages: Any, **_: Any) -> Any:
                return wrong

        calls = Calls(Wrong())
        with pytest.raises(BadResponseError, match=r"Wrong\.complete\(\) must return"):
            await calls(ONCE)
        assert calls.sink.kinds == ["llm_call_start", "llm_call_error"]
        assert calls.tracker.to_usage() == TokenUsage(0, 0, 1)

    @pytest.mark.req("D-38")
    async def test_a_cancelled_call_ends_with_an_error_event(self) -> None:
        inside = asyncio.Event()

        async def answer(_request: Request) -> str:
            inside.set()
            await asyncio.Event().wait()
            return "never"

        calls = Calls(ScriptedProvider(answer))
        task = asyncio.create_task(calls())
        async with asyncio.timeout(LIMIT):
            await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert calls.sink.kinds == ["llm_call_start", "llm_call_error"]
        assert calls.sink.events[1].payload["error_type"] == "CancelledError"
        assert calls.tracker.to_usage() == TokenUsage(0, 0, 1)

    @pytest.mark.req("D-08")
    async def test_a_failing_sink_changes_nothing(
        self, caplog: pytest.LogCaptureFixture, auto_clock: FakeClock
    ) -> None:
        """D-08: the paid answer is kept."""

        async def broken(_event: TraceEvent) -> None:
            raise OSError("disk full")

        provider = ScriptedProvider([ProviderError("once"), reply()])
        tracker = CostTracker()
        got = await checked_complete(provider, ASK, tracker, None, None, broken)
        assert got.content == "yes"
        assert tracker.to_usage() == TokenUsage(10, 2, 2)
        assert len(caplog.records) == 1

    @pytest.mark.parametrize("where", ["api_key", "known_secrets"])
    @pytest.mark.req("OB-04", "call.secrets")
    async def test_the_key_of_any_provider_is_hidden_in_traces(
        self, where: str
    ) -> None:
        """OB-04: also when a server sends it back in an answer."""

        class Echo:
            async def complete(self, messages: Any, **_: Any) -> LLMResponse:
                return LLMResponse(f"you said {KEY}")

        provider = Echo()
        setattr(provider, where, KEY if where == "api_key" else (KEY,))
        calls = Calls(provider)
        assert KEY in (await calls()).content
        end = calls.sink.events[-1]
        assert end.payload["content"] == "you said [REDACTED]"
        assert KEY not in repr(calls.sink.events)

    @pytest.mark.parametrize("junk", [None, 5, b"bytes", [None, 3], object()])
    @pytest.mark.req("call.secrets")
    async def test_a_senseless_key_attribute_is_no_matter(self, junk: Any) -> None:
        class Odd:
            known_secrets = junk
            api_key = junk

            async def complete(self, messages: Any, **_: Any) -> LLMResponse:
                return reply()

        assert (await Calls(Odd())()).content == "yes"


@pytest.mark.req("call.secrets")
def test_the_providers_say_what_must_not_be_shown() -> None:
    openai = Provider("https://user:pass-5521@host/v1", "m", f" {KEY} ")
    assert {KEY, f"Bearer {KEY}", "pass-5521"} <= set(known_secrets(openai))
    headers = {"X-Proxy-Token": "proxy-token-77"}
    claude = AnthropicProvider("m", api_key=KEY, headers=headers)
    assert {KEY, "proxy-token-77"} <= set(known_secrets(claude))
    assert KEY not in repr(openai) + repr(claude)

    class Broken:
        @property
        def api_key(self) -> str:
            raise OSError("no keyring")

    assert known_secrets(Broken()) == known_secrets(object()) == ()


class TestErrors:
    """An error belongs to the run that it ends, whoever holds the object."""

    @pytest.mark.req("call.own-errors")
    async def test_an_error_object_that_a_provider_raises_again_is_never_written_on(
        self, auto_clock: FakeClock
    ) -> None:
        error = ProviderError("down", metadata={"status": 503})
        error.add_note("from the provider")
        state = copy.deepcopy(error.__dict__)
        provider = Raiser(error)
        seen: list[ExecutionKitError] = []
        for number in (1, 2):
            calls = Calls(provider)
            with pytest.raises(ProviderError) as caught:
                await calls(RetryConfig(max_retries=number))
            seen.append(caught.value)
        assert [item.attempts for item in seen] == [2, 3]
        assert [item.cost.llm_calls for item in seen] == [2, 3]
        assert error.__dict__ == state
        assert seen[0] is not error
        assert seen[0].metadata is not error.metadata
        assert seen[0].metadata == {"status": 503}
        assert "from the provider" in seen[0].__notes__

    @pytest.mark.req("call.own-errors")
    async def test_runs_at_once_over_one_error_object_do_not_mix(self) -> None:
        error = PermanentError("no")

        class Slow:
            async def complete(self, messages: Any, **_: Any) -> LLMResponse:
                await asyncio.sleep(0)
                if "fail" in messages[0]["content"]:
                    raise error
                return reply()

        async def run(drafts: int) -> ExecutionKitError:
            async def score(_text: str, _provider: object) -> float:
                return 0.1

            prompts = iter(["draft"] * drafts + ["fail"])

            class Turning:
                async def complete(self, messages: Any, **_: Any) -> LLMResponse:
                    return await Slow().complete([{"content": next(prompts)}])

            with pytest.raises(PermanentError) as caught:
                await refine_loop(
                    Turning(), "x", evaluator=score, patience=9, max_iterations=9
                )
            return caught.value

        first, second = await asyncio.gather(run(1), run(4))
        assert (first.cost.llm_calls, second.cost.llm_calls) == (2, 5)
        assert len(first.metadata["score_history"]) == 1
        assert len(second.metadata["score_history"]) == 4
        assert error.cost == TokenUsage()

    @pytest.mark.req("call.own-errors")
    async def test_the_copy_keeps_traceback_cause_and_context(self) -> None:
        class Chained:
            async def complete(self, messages: Any, **_: Any) -> LLMResponse:
                try:
                    raise KeyError("inner")
                except KeyError as exc:
                    raise ProviderError("outer") from exc

        with pytest.raises(ProviderError) as caught:
            await Calls(Chained())(ONCE)
        assert isinstance(caught.value.__cause__, KeyError)
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert any(frame.name == "complete" for frame in frames)
        assert "During handling" not in "".join(
            traceback.format_exception(caught.value)
        )

    @pytest.mark.req("call.own-errors")
    async def test_the_copy_keeps_what_was_being_handled(self) -> None:
        class Handling:
            async def complete(self, messages: Any, **_: Any) -> LLMResponse:
                try:
                    raise KeyError("inner")
                except KeyError:
                    raise ProviderError("outer")  # noqa: B904 - that is the point

        with pytest.raises(ProviderError) as caught:
            await Calls(Handling())(ONCE)
        assert caught.value.__cause__ is None
        assert isinstance(caught.value.__context__, KeyError)

    @pytest.mark.req("call.own-errors")
    async def test_an_error_class_with_arguments_of_its_own_still_leaves(self) -> None:
        class Special(ProviderError):
            def __new__(cls, code: int, *, detail: str) -> Self:
                return super().__new__(cls)

            def __init__(self, code: int, *, detail: str) -> None:
                super().__init__(f"{code}: {detail}")

        with pytest.raises(Special, match="7: odd") as caught:
            await Calls(Raiser(Special(7, detail="odd")))(ONCE)
        assert caught.value.cost == TokenUsage(0, 0, 1)

    @pytest.mark.req("D-02", "call.groups")
    async def test_a_group_of_failures_in_a_provider_is_one_error(
        self, auto_clock: FakeClock
    ) -> None:
        """D-02: what a provider's own task group raises is unwrapped, and retried."""

        class Grouping:
            requests = 0

            async def complete(self, messages: Any, **_: Any) -> LLMResponse:
                self.requests += 1
                raise ExceptionGroup(
                    "g", [ValueError("a"), ExceptionGroup("h", [ProviderError("b")])]
                )

        provider = Grouping()
        with pytest.raises(ProviderError, match="b") as caught:
            await Calls(provider)(RetryConfig(max_retries=1))
        assert provider.requests == 2
        assert "also: ValueError: a" in caught.value.__notes__

    @pytest.mark.req("call.base-exceptions")
    async def test_what_is_no_exception_passes_and_keeps_its_slot(self) -> None:
        class Stop(BaseException):
            pass

        calls = Calls(Raiser(Stop("now")))
        with pytest.raises(Stop):
            await calls()
        assert calls.provider.requests == 1
        assert calls.tracker.to_usage() == TokenUsage(0, 0, 1)
        assert calls.sink.kinds == ["llm_call_start", "llm_call_error"]

    @pytest.mark.req("call.base-exceptions")
    async def test_a_cancellation_of_the_providers_own_passes_and_is_not_retried(
        self,
    ) -> None:
        calls = Calls(Raiser(asyncio.CancelledError()))
        with pytest.raises(asyncio.CancelledError):
            await calls()
        assert calls.provider.requests == 1

    @pytest.mark.req("call.base-exceptions")
    def test_closing_an_unfinished_call_awaits_nothing(self) -> None:
        class Pending:
            async def complete(self, messages: Any, **_: Any) -> LLMResponse:
                await _suspend()
                return reply()

        async def sink(_event: TraceEvent) -> None:
            await _suspend()

        calls = Calls(Pending())
        calls.sink = sink  # type: ignore[assignment]
        coroutine = calls()
        coroutine.send(None)  # in the sink
        coroutine.send(None)  # in the provider
        coroutine.close()
        assert calls.tracker.to_usage() == TokenUsage(0, 0, 1)

    async def test_failures_leave_no_garbage_that_only_the_collector_finds(
        self,
    ) -> None:
        calls = Calls(Raiser(PermanentError("only here")))
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                with contextlib.suppress(PermanentError):
                    await calls()
            found = [
                item
                for item in gc.get_objects()
                if type(item) is PermanentError and str(item) == "only here"
            ]
        finally:
            gc.enable()
        assert found == [calls.provider.error]


class _Suspended:
    def __await__(self) -> Any:
        yield None


async def _suspend() -> None:
    await _Suspended()


@pytest.mark.req("call.cancel")
class TestCancellation:
    @pytest.mark.parametrize("again_after", [None, 0, 1, 3])
    @pytest.mark.parametrize("limited", [False, True])
    async def test_a_call_cancelled_anywhere_leaves_nothing_held(
        self,
        everywhere: Any,
        again_after: int | None,
        limited: bool,
    ) -> None:
        def make() -> Any:
            started: list[int] = []
            ended: list[int] = []
            dispatched: list[int] = []
            answered: list[int] = []

            async def answer(request: Request) -> Any:
                dispatched.append(request.number)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                if request.number == 1:
                    return ProviderError("once")
                answered.append(request.number)
                return reply(10, 2)

            async def sink(event: TraceEvent) -> None:
                if event.kind == "llm_call_start":
                    started.append(event.payload["attempt"])
                elif event.kind in {"llm_call_end", "llm_call_error"}:
                    ended.append(event.payload["attempt"])
                await asyncio.sleep(0)
                await asyncio.sleep(0)

            bucket = TokenBucket(rate=1.0, capacity=4.0) if limited else None
            retry = RetryConfig(base_delay=0.0, rate_limit_strategy=bucket)
            tracker = CostTracker()
            budget = TokenUsage(1000, 1000, 10) if limited else None
            provider = ScriptedProvider(answer)

            def check(cancelled: bool) -> None:
                assert started == ended
                assert tracker._in_flight == tracker._reserved_output == 0
                assert not tracker._owners
                assert tracker._reserved_input == 0
                usage = tracker.to_usage()
                assert usage.llm_calls == len(dispatched)
                if not cancelled:
                    assert usage == TokenUsage(10, 2, 2)

            call = checked_complete(
                provider, ASK, tracker, budget, retry, sink, max_tokens=5
            )
            return call, check

        assert await everywhere(make, again_after=again_after) > 8

    async def test_a_call_cancelled_while_it_waits_for_room_leaves_the_queue(
        self, everywhere: Any
    ) -> None:
        def make() -> Any:
            tracker = CostTracker()
            budget = Budget.from_usage(TokenUsage(0, 100))
            provider = ScriptedProvider(lambda _: reply())

            async def holder() -> None:
                held = await tracker.admit(budget, output_tokens=100)
                try:
                    for _ in range(4):
                        await asyncio.sleep(0)
                finally:
                    held.settle(TokenUsage(0, 1))

            async def both() -> None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(holder())
                    group.create_task(
                        checked_complete(
                            provider, ASK, tracker, budget, None, max_tokens=50
                        )
                    )

            def check(_cancelled: bool) -> None:
                assert not tracker._waiters
                assert not tracker._owners
                assert tracker.call_count <= 2

            return both(), check

        await everywhere(make)


def said(text: str, **more: Any) -> Reply:
    choice = {"message": {"content": text}, "finish_reason": "stop"}
    return json_reply({"choices": [choice], **more})


class TestOverHttp:
    """The same through a real provider and a socket."""

    @pytest.mark.parametrize(
        "answer",
        [
            json_reply({"error": {"message": "pay"}}, status=402),
            json_reply({"error": {"message": "gone"}}, status=410),
            json_reply({"error": {"message": "type"}}, status=415),
            json_reply({"error": {"message": "never"}}, status=501),
            Reply(302, {"location": "/elsewhere"}),
            json_reply({"error": {"code": "insufficient_quota"}}, status=429),
        ],
    )
    @pytest.mark.req("D-12")
    async def test_what_cannot_work_is_sent_once(self, answer: Reply) -> None:
        """D-12: a permanent outcome is one request, with the cost on the error."""
        async with (
            ScriptedServer(answer) as server,
            Provider(server.url, "m", KEY) as provider,
            asyncio.timeout(LIMIT),
        ):
            with pytest.raises(PermanentError) as caught:
                await consensus(provider, "?", num_samples=1)
            assert len(server.requests) == 1
        assert caught.value.cost.llm_calls == caught.value.attempts == 1

    @pytest.mark.parametrize("usage", [None, {"prompt_tokens": 12.0}, "junk", {}])
    @pytest.mark.req("D-12", "usage.senseless-count-never-loses-a-reply")
    async def test_odd_usage_loses_no_answer(self, usage: Any) -> None:
        async with (
            ScriptedServer(said("yes", usage=usage)) as server,
            Provider(server.url, "m") as provider,
            asyncio.timeout(LIMIT),
        ):
            result = await consensus(provider, "?", num_samples=1)
            assert len(server.requests) == 1
        assert result.value == "yes"

    @pytest.mark.parametrize("status", [400, 401, 500])
    @pytest.mark.req("OB-04", "call.secrets")
    async def test_no_pattern_shows_the_key(self, status: int) -> None:
        """OB-04: not in errors, notes, metadata, or trace events."""
        sink = MemoryTraceSink()
        answer = json_reply({"error": {"message": f"bad {KEY}"}}, status=status)
        templates: dict[str, Any] = {
            "map_prompt_template": "{item}",
            "reduce_prompt_template": "{mapped_outputs}",
        }
        shown: list[str] = []
        async with (
            ScriptedServer(answer) as server,
            Provider(server.url, "m", KEY) as provider,
            asyncio.timeout(LIMIT),
        ):
            for run in (
                consensus(provider, "?", retry=ONCE, trace=sink),
                refine_loop(provider, "?", retry=ONCE, trace=sink),
                structured(provider, "?", retry=ONCE, trace=sink),
                map_reduce(provider, ["a", "b"], retry=ONCE, trace=sink, **templates),
            ):
                with pytest.raises(ExecutionKitError) as caught:
                    await run
                error = caught.value
                shown += traceback.format_exception(error)
                shown.append(repr(vars(error)))
        assert KEY not in "".join(shown) + repr(sink.events)

    @pytest.mark.req("structured.native-format")
    async def test_a_server_that_refuses_a_format_is_asked_without(self) -> None:
        refusal = json_reply({"error": {"message": "no json_schema"}}, status=400)
        async with (
            ScriptedServer([refusal, said("[1]")]) as server,
            Provider(server.url, "m", supports_response_format=True) as provider,
            asyncio.timeout(LIMIT),
        ):
            result = await structured(provider, "?", schema=list[int])
            first, second = [request.json() for request in server.requests]
        assert result.value == [1]
        assert first["response_format"]["type"] == "json_schema"
        assert "response_format" not in second
