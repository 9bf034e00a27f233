"""A second request for a slow one: when, how often, and what becomes of the loser."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit import (
    AllProvidersFailedError,
    BreakerConfig,
    FallbackProvider,
    HedgeOptions,
    LLMResponse,
    PermanentError,
    ProviderError,
    RateLimitError,
    RetryConfig,
    TokenUsage,
    consensus,
)
from executionkit._fallback import Latencies
from executionkit.cost import CostTracker
from executionkit.patterns.base import checked_complete
from executionkit.testing import FakeClock, ScriptedProvider, settle

MESSAGES = [{"role": "user", "content": "12345678"}]
"""About two tokens."""

USAGE = {"prompt_tokens": 10, "completion_tokens": 5}
ONCE = RetryConfig(max_retries=0)
FAST = HedgeOptions(delay=1.0, max_share=1.0)


@pytest.fixture
def clock() -> Any:
    fake = FakeClock(auto=True)
    with fake.installed():
        yield fake


class Timed:
    """Answers after some seconds, and knows what became of its requests."""

    def __init__(self, clock: FakeClock, *steps: Any) -> None:
        self._clock = clock
        self._steps = list(steps)
        self.cancelled = self.ended = 0
        self.requests = 0
        self.wait_at_end = 0.0

    async def complete(self, *_: Any, **__: Any) -> LLMResponse:
        self.requests += 1
        seconds, reply = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        try:
            await self._clock.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            if self.wait_at_end:
                await self._clock.sleep(self.wait_at_end)
            raise
        finally:
            self.ended += 1
        if isinstance(reply, BaseException):
            raise reply
        return LLMResponse(reply, usage=USAGE)


@pytest.mark.req("fallback.hedge")
class TestHedge:
    async def test_a_quick_answer_is_not_hedged(self, clock: FakeClock) -> None:
        first, second = Timed(clock, (0.9, "one")), Timed(clock, (0, "two"))
        provider = FallbackProvider([first, second], hedge=FAST)
        assert (await provider.complete(MESSAGES)).content == "one"
        assert second.requests == 0
        assert clock.pending == 0

    async def test_the_loser_is_cancelled_awaited_and_counted(
        self, clock: FakeClock
    ) -> None:
        first, second = Timed(clock, (60, "one")), Timed(clock, (2, "two"))
        first.wait_at_end = 0.5
        provider = FallbackProvider({"a": first, "b": second}, hedge=FAST)
        began = clock.monotonic()
        response = await provider.complete(MESSAGES)
        assert (response.content, response.answered_by) == ("two", "b")
        assert (first.cancelled, first.ended) == (1, 1)
        assert clock.monotonic() - began == 3.5
        assert response.besides == TokenUsage(2, 0, 1)

    async def test_the_first_may_win_all_the_same(self, clock: FakeClock) -> None:
        first, second = Timed(clock, (2, "one")), Timed(clock, (60, "two"))
        provider = FallbackProvider({"a": first, "b": second}, hedge=FAST)
        response = await provider.complete(MESSAGES)
        assert response.answered_by == "a"
        assert (second.cancelled, second.ended) == (1, 1)

    async def test_two_answers_at_once_are_both_paid(self, clock: FakeClock) -> None:
        gate = asyncio.Event()

        async def answer(_request: Any) -> str:
            await gate.wait()
            return "x"

        both = [ScriptedProvider(answer, usage=USAGE) for _ in range(2)]
        provider = FallbackProvider({"a": both[0], "b": both[1]}, hedge=FAST)
        clock.call_later(5, gate.set)
        tracker = CostTracker()
        response = await checked_complete(provider, MESSAGES, tracker, None, ONCE)
        assert response.answered_by == "a"
        assert tracker.to_usage() == TokenUsage(20, 10, 2)

    async def test_a_pattern_counts_each_request_once(self, clock: FakeClock) -> None:
        first, second = Timed(clock, (60, "one")), Timed(clock, (2, "two"))
        provider = FallbackProvider([first, second], hedge=FAST)
        result = await consensus(provider, "12345678", num_samples=1)
        assert result.cost == TokenUsage(12, 5, 2)

    @pytest.mark.parametrize("failure", [ProviderError("x"), PermanentError("401")])
    async def test_a_hedge_that_fails_ends_nothing(
        self, clock: FakeClock, failure: Exception
    ) -> None:
        first, second = Timed(clock, (5, "one")), Timed(clock, (1, failure))
        provider = FallbackProvider([first, second], hedge=FAST)
        response = await provider.complete(MESSAGES)
        assert response.content == "one"
        assert response.besides == TokenUsage(llm_calls=1)

    async def test_when_the_first_fails_the_hedge_may_answer(
        self, clock: FakeClock
    ) -> None:
        first, second = Timed(clock, (2, ProviderError("x"))), Timed(clock, (9, "two"))
        third = Timed(clock, (0, "three"))
        provider = FallbackProvider([first, second, third], hedge=FAST)
        assert (await provider.complete(MESSAGES)).content == "two"
        assert third.requests == 0

    async def test_when_both_fail_the_third_is_asked(self, clock: FakeClock) -> None:
        first = Timed(clock, (2, ProviderError("x")))
        second = Timed(clock, (9, PermanentError("401")))
        third = Timed(clock, (0, "three"))
        provider = FallbackProvider([first, second, third], hedge=FAST)
        response = await provider.complete(MESSAGES)
        assert response.content == "three"
        assert response.besides == TokenUsage(llm_calls=2)

    async def test_when_all_fail_one_error_says_so(self, clock: FakeClock) -> None:
        first = Timed(clock, (2, ProviderError("x")))
        second = Timed(clock, (9, ProviderError("y")))
        provider = FallbackProvider([first, second], hedge=FAST)
        with pytest.raises(AllProvidersFailedError) as caught:
            await provider.complete(MESSAGES)
        assert caught.value.attempts == 2

    async def test_what_fails_everywhere_ends_the_hedge_too(
        self, clock: FakeClock
    ) -> None:
        first, second = Timed(clock, (2, PermanentError("400"))), Timed(clock, (9, "x"))
        provider = FallbackProvider([first, second], hedge=FAST)
        with pytest.raises(PermanentError) as caught:
            await provider.complete(MESSAGES)
        assert second.cancelled == 1
        assert caught.value.attempts == 2
        assert caught.value.cost == TokenUsage(2, 0, 2)

    async def test_a_quick_failure_is_an_ordinary_fallback(
        self, clock: FakeClock
    ) -> None:
        first, second = Timed(clock, (0, RateLimitError("x"))), Timed(clock, (0, "two"))
        provider = FallbackProvider([first, second], hedge=FAST)
        assert (await provider.complete(MESSAGES)).content == "two"
        assert provider.status()[1].resting == 0

    async def test_a_hedge_keeps_to_max_attempts_and_open_circuits(
        self, clock: FakeClock
    ) -> None:
        first, second = Timed(clock, (5, "one")), Timed(clock, (0, "two"))
        provider = FallbackProvider([first, second], hedge=FAST, max_attempts=1)
        assert (await provider.complete(MESSAGES)).content == "one"
        assert second.requests == 0
        second = Timed(clock, (0, ProviderError("x")))
        provider = FallbackProvider(
            [first, second], hedge=FAST, breakers=BreakerConfig(failure_threshold=1)
        )
        for _ in range(3):
            assert (await provider.complete(MESSAGES)).content == "one"
        assert second.requests == 1

    async def test_costs_that_a_loser_leaves_behind_are_counted(
        self, clock: FakeClock
    ) -> None:
        class Voting:
            """A provider made of a pattern."""

            async def complete(self, *_: Any, **__: Any) -> LLMResponse:
                inner = Timed(clock, (0, "a"), (0, "a"), (60, "b"))
                result = await consensus(inner, "Hi", num_samples=3, max_concurrency=1)
                return LLMResponse(result.value)

        provider = FallbackProvider([Voting(), Timed(clock, (2, "two"))], hedge=FAST)
        response = await provider.complete(MESSAGES)
        assert response.content == "two"
        assert response.besides == TokenUsage(20, 10, 3)


@pytest.mark.req("fallback.hedge-cancel")
class TestCancel:
    async def test_a_cancellation_leaves_after_both_have_ended(self) -> None:
        clock = FakeClock()
        first, second = Timed(clock, (60, "one")), Timed(clock, (60, "two"))
        first.wait_at_end = second.wait_at_end = 3
        tracker = CostTracker()
        with clock.installed():
            provider = FallbackProvider([first, second], hedge=FAST)
            running = asyncio.create_task(
                checked_complete(provider, MESSAGES, tracker, None, ONCE)
            )
            await clock.advance(2)
            assert (first.requests, second.requests) == (1, 1)
            running.cancel()
            await clock.advance(2)
            assert not running.done()
            await clock.advance(1)
            assert running.cancelled()
        assert (first.ended, second.ended) == (1, 1)
        assert tracker.to_usage() == TokenUsage(llm_calls=2)

    async def test_a_second_cancellation_reaches_those_that_linger(self) -> None:
        clock = FakeClock()
        first, second = Timed(clock, (60, "one")), Timed(clock, (2, "two"))
        first.wait_at_end = 1000
        with clock.installed():
            provider = FallbackProvider([first, second], hedge=FAST)
            running = asyncio.create_task(provider.complete(MESSAGES))
            await clock.advance(4)
            assert (second.ended, first.ended) == (1, 0)
            running.cancel()
            await settle()
            assert running.cancelled()
        assert first.ended == 1

    async def test_a_call_cancelled_at_its_start_leaves_no_probe(
        self, clock: FakeClock
    ) -> None:
        first = Timed(clock, (0, ProviderError("x")), (0, "well"))
        provider = FallbackProvider(
            [first],
            hedge=FAST,
            breakers=BreakerConfig(failure_threshold=1, reset_timeout=5),
        )
        with pytest.raises(ProviderError):
            await provider.complete(MESSAGES)
        await clock.sleep(5)
        running = asyncio.create_task(provider.complete(MESSAGES))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await provider.complete(MESSAGES)).content == "well"


@pytest.mark.req("fallback.hedge-share")
class TestShare:
    @given(
        calls=st.integers(1, 60),
        share=st.sampled_from([0.05, 0.25, 1.0]),
        burst=st.integers(1, 3),
    )
    async def test_hedges_are_a_bounded_share_of_the_calls(
        self, calls: int, share: float, burst: int
    ) -> None:
        clock = FakeClock(auto=True)
        with clock.installed():
            first, second = Timed(clock, (5, "one")), Timed(clock, (1, "two"))
            hedge = HedgeOptions(delay=1.0, max_share=share, burst=burst)
            provider = FallbackProvider([first, second], hedge=hedge)
            for _ in range(calls):
                await provider.complete(MESSAGES)
        assert second.requests <= burst + share * calls
        assert second.requests >= min(calls, burst)

    async def test_the_delay_is_the_quantile_of_what_was_seen(
        self, clock: FakeClock
    ) -> None:
        steps = [(float(n), "one") for n in range(1, 21)]
        first = Timed(clock, *steps, (100, "late"))
        second = Timed(clock, (1, "two"))
        hedge = HedgeOptions(min_samples=20, max_share=1.0)
        provider = FallbackProvider([first, second], hedge=hedge)
        assert provider.status()[0].latency is None
        for _ in range(20):
            await provider.complete(MESSAGES)
        assert second.requests == 0
        assert provider.status()[0].latency == 19
        began = clock.monotonic()
        assert (await provider.complete(MESSAGES)).content == "two"
        assert clock.monotonic() - began == 20
        # The one that lost is known to take 20 s at least.
        assert provider.status()[0].latency == 20

    @given(
        st.lists(st.floats(0, 100), max_size=60),
        st.integers(1, 10),
        st.integers(0, 20),
        st.floats(0.01, 1),
    )
    def test_the_quantile_covers_its_share_of_the_latest(
        self, values: list[float], least: int, more: int, quantile: float
    ) -> None:
        options = HedgeOptions(
            quantile=quantile, min_samples=least, window=least + more
        )
        latencies = Latencies(options)
        for value in values:
            latencies.add(value)
        kept = values[-options.window :]
        found = latencies.quantile()
        if len(kept) < least:
            assert found is None
            return
        assert found in kept
        assert sum(value <= found for value in kept) >= quantile * len(kept)
        assert sum(value < found for value in kept) < quantile * len(kept)

    @pytest.mark.parametrize(
        "settings",
        [
            {"delay": -1},
            {"quantile": 0},
            {"quantile": 1.1},
            {"min_samples": 0},
            {"min_samples": 30, "window": 20},
            {"max_share": 0},
            {"max_share": 2},
            {"burst": 0},
        ],
    )
    def test_settings_that_make_no_sense_are_refused(
        self, settings: dict[str, Any]
    ) -> None:
        with pytest.raises(ValueError, match=r"must be|window"):
            HedgeOptions(**settings)
