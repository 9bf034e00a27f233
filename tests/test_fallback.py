"""Several providers as one: who is asked, what it costs, what is said in the end."""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import pickle
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit import (
    AllProvidersFailedError,
    BadResponseError,
    BreakerConfig,
    BudgetExhaustedError,
    DeadlineExceededError,
    ExecutionContext,
    FallbackProvider,
    HedgeOptions,
    LLMError,
    LLMResponse,
    PermanentError,
    Provider,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    RetryConfig,
    Step,
    StreamError,
    TokenUsage,
    Tool,
    ToolCircuitOpenError,
    Workflow,
    consensus,
    execution_scope,
    map_reduce,
    react_loop,
    refine_loop,
    structured,
)
from executionkit._llm import Owned
from executionkit.cost import CostTracker
from executionkit.engine._rounds import requests_left
from executionkit.engine.retry import with_retry
from executionkit.patterns.base import checked_complete
from executionkit.testing import FakeClock, ScriptedProvider, tool_call_reply
from executionkit.testing.http import ScriptedServer, json_reply

MESSAGES = [{"role": "user", "content": "Hi"}]
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}
ONCE = RetryConfig(max_retries=0)
ROOT = Path(__file__).resolve().parent.parent


def says(*texts: Any, **options: Any) -> ScriptedProvider:
    return ScriptedProvider(texts, usage=USAGE, **options)


def always(reply: Any, **options: Any) -> ScriptedProvider:
    return ScriptedProvider(lambda _request: reply, usage=USAGE, **options)


def limited(seconds: float = 1.0, *, known: bool = True) -> RateLimitError:
    return RateLimitError("slow down", retry_after=seconds, retry_after_known=known)


@pytest.fixture
def clock() -> Any:
    fake = FakeClock()
    with fake.installed():
        yield fake


@pytest.mark.req("fallback.order")
class TestOrder:
    async def test_the_first_one_answers_and_the_others_are_left_alone(self) -> None:
        first, second = says("one"), says("two")
        provider = FallbackProvider({"a": first, "b": second})
        response = await provider.complete(MESSAGES)
        assert (response.content, response.answered_by) == ("one", "a")
        assert response.besides == TokenUsage()
        assert not second.requests

    @pytest.mark.req("HT-13")
    async def test_a_rate_limit_reaches_the_fallback_at_once(
        self, clock: FakeClock
    ) -> None:
        first, second = always(limited(75)), always("fine")
        provider = FallbackProvider({"a": first, "b": second})
        result = await consensus(provider, "Hi", num_samples=1)
        assert result.value == "fine"
        assert clock.sleeps == []
        response = await provider.complete(MESSAGES)
        assert response.answered_by == "b"
        assert len(first.requests) == 1  # it rests for 75 s

    @pytest.mark.parametrize(
        "failure",
        [
            limited(),
            ProviderError("502"),
            ProviderConnectionError("gone"),
            ProviderTimeoutError("late"),
            BadResponseError("html"),
            StreamError("broke"),
            ToolCircuitOpenError("inner", 5, 3.0),
            ConnectionResetError("reset"),
            TimeoutError(),
            ExceptionGroup("two", [ProviderError("x"), ValueError("y")]),
        ],
        ids=lambda failure: type(failure).__name__,
    )
    async def test_what_may_work_elsewhere_goes_to_the_next(
        self, failure: Exception
    ) -> None:
        provider = FallbackProvider([says(failure), says("fine")])
        assert (await provider.complete(MESSAGES)).content == "fine"

    @pytest.mark.parametrize(
        "failure",
        [
            PermanentError("401"),
            BudgetExhaustedError("nothing left"),
            DeadlineExceededError("too late"),
            ValueError("a mistake"),
        ],
        ids=lambda failure: type(failure).__name__,
    )
    async def test_what_fails_everywhere_is_raised(self, failure: Exception) -> None:
        second = says("never")
        with pytest.raises(type(failure)) as caught:
            await FallbackProvider([says(failure), second]).complete(MESSAGES)
        assert not second.requests
        assert str(caught.value) == str(failure)

    async def test_an_error_that_ends_it_tells_of_those_before(self) -> None:
        provider = FallbackProvider(
            {"a": says(ProviderError("502")), "b": says(PermanentError("401"))}
        )
        with pytest.raises(PermanentError) as caught:
            await provider.complete(MESSAGES)
        assert caught.value.attempts == 2
        assert caught.value.__notes__ == ["before: a: ProviderError: 502"]

    async def test_an_answer_that_is_none_goes_to_the_next(self) -> None:
        class Odd:
            async def complete(self, *_: Any, **__: Any) -> Any:
                return "text"

        provider = FallbackProvider([Odd(), says("fine")])
        response = await provider.complete(MESSAGES)
        assert response.content == "fine"
        assert response.besides == TokenUsage(llm_calls=1)

    async def test_a_refusal_is_an_answer(self) -> None:
        refusal = LLMResponse("", refusal="I will not")
        provider = FallbackProvider([says(refusal), says("never")])
        assert (await provider.complete(MESSAGES)).refusal == "I will not"

    async def test_options_are_handed_on_and_none_is_added(self) -> None:
        first, second = says(ProviderError("x")), says("fine")
        provider = FallbackProvider([first, second])
        await provider.complete(MESSAGES, temperature=0.0, seed=7)
        for inner in (first, second):
            (request,) = inner.requests
            assert (request.temperature, request.max_tokens) == (0.0, None)
            assert request.options == {"seed": 7}

    async def test_a_provider_in_a_provider_says_the_whole_path(self) -> None:
        inner = FallbackProvider({"x": says(limited()), "y": says("fine")}, name="in")
        provider = FallbackProvider([says(ProviderError("x")), inner])
        response = await provider.complete(MESSAGES)
        assert response.answered_by == "in/y"
        assert response.besides == TokenUsage(llm_calls=2)

    async def test_the_payload_is_taken_over_unread(self) -> None:
        payload = {"a": [1]}
        reply = LLMResponse("x", raw=Owned(payload), usage=USAGE, id="7")
        response = await FallbackProvider([says(reply)]).complete(MESSAGES)
        assert response.raw["a"][0] == 1
        assert (response.id, response.usage) == ("7", USAGE)
        assert reply.answered_by is None
        assert pickle.loads(pickle.dumps(response)) == response


@pytest.mark.req("fallback.on")
class TestOn:
    async def test_types_can_be_chosen(self) -> None:
        provider = FallbackProvider([says(PermanentError("402")), says("fine")])
        with pytest.raises(PermanentError):
            await provider.complete(MESSAGES)
        provider = FallbackProvider(
            [says(PermanentError("402")), says("fine")], on=PermanentError
        )
        assert (await provider.complete(MESSAGES)).content == "fine"
        provider = FallbackProvider(
            [says(ConnectionResetError()), says("fine")], on=(OSError,)
        )
        assert (await provider.complete(MESSAGES)).content == "fine"

    async def test_a_predicate_can_choose(self) -> None:
        provider = FallbackProvider(
            [says(PermanentError("402")), says("fine")], on=lambda e: "402" in str(e)
        )
        assert (await provider.complete(MESSAGES)).content == "fine"

    async def test_a_predicate_that_fails_hides_nothing(self) -> None:
        provider = FallbackProvider(
            [says(ProviderError("x")), says("never")], on=lambda _: bool(1 / 0)
        )
        with pytest.raises(ProviderError, match="x") as caught:
            await provider.complete(MESSAGES)
        assert "ZeroDivisionError" in caught.value.__notes__[0]

    async def test_a_budget_is_final_whatever_is_chosen(self) -> None:
        second = says("never")
        provider = FallbackProvider(
            [says(BudgetExhaustedError("out")), second], on=Exception
        )
        with pytest.raises(BudgetExhaustedError):
            await provider.complete(MESSAGES)
        assert not second.requests

    async def test_a_reply_that_was_cut_off_can_be_no_answer(self) -> None:
        cut = LLMResponse("half", finish_reason="length", usage=USAGE)
        whole = LLMResponse("whole", usage=USAGE)
        kept = await FallbackProvider([says(cut), says(whole)]).complete(MESSAGES)
        assert kept.content == "half"
        provider = FallbackProvider([says(cut), says(whole)], on_truncated=True)
        response = await provider.complete(MESSAGES)
        assert response.content == "whole"

    @pytest.mark.parametrize("later", ["cut", "permanent", "none"])
    async def test_a_cut_reply_is_better_than_none(self, later: str) -> None:
        cut = LLMResponse("half", finish_reason="length", usage=USAGE)
        others: dict[str, Any] = {
            "cut": cut,
            "permanent": PermanentError("401"),
            "none": ProviderError("x"),
        }
        provider = FallbackProvider([says(cut), says(others[later])], on_truncated=True)
        response = await provider.complete(MESSAGES)
        assert response.content == "half"
        spent = TokenUsage(10, 5, 1) if later == "cut" else TokenUsage(llm_calls=1)
        assert response.besides == spent


@pytest.mark.req("fallback.exhausted")
class TestNobodyAnswers:
    async def test_the_error_lists_all_with_what_was_sent(self) -> None:
        retried = ProviderError("down")
        retried.attempts = 4
        provider = FallbackProvider(
            {"a": says(limited(9)), "b": says(retried)}, name="chat"
        )
        with pytest.raises(AllProvidersFailedError) as caught:
            await provider.complete(MESSAGES)
        error = caught.value
        assert [(f.name, f.requests, f.code) for f in error.failures] == [
            ("a", 1, "LLM_RATE_LIMITED"),
            ("b", 4, "LLM_PROVIDER_ERROR"),
        ]
        assert error.attempts == 5
        assert error.cost == TokenUsage(llm_calls=5)
        assert not error.retries_exhausted
        assert "`chat`" in str(error)
        assert "a (1 sent): RateLimitError: slow down" in str(error)
        assert "requests sent: 5" in str(error)
        assert isinstance(error.__cause__, ProviderError)
        twin = pickle.loads(pickle.dumps(error))
        assert twin.failures == error.failures

    async def test_secrets_are_not_shown(self) -> None:
        first = says(ProviderError("bad key hush-hush-12345"))
        first.api_key = "hush-hush-12345"  # type: ignore[attr-defined]
        provider = FallbackProvider([first, says(ProviderError("x"))])
        assert provider.known_secrets == ("hush-hush-12345",)
        with pytest.raises(AllProvidersFailedError) as caught:
            await provider.complete(MESSAGES)
        assert "hush-hush" not in str(caught.value)

    async def test_the_error_of_the_only_one_is_its_own(self) -> None:
        with pytest.raises(RateLimitError) as caught:
            await FallbackProvider([says(limited(7))]).complete(MESSAGES)
        assert caught.value.retry_after == 7
        assert not caught.value.retries_exhausted

    async def test_attempts_are_shared(self) -> None:
        retried = ProviderError("down")
        retried.attempts = 2
        third = says("never")
        provider = FallbackProvider(
            {"a": says(retried), "b": says(limited()), "c": third}, max_attempts=3
        )
        with pytest.raises(AllProvidersFailedError) as caught:
            await provider.complete(MESSAGES)
        assert not third.requests
        assert caught.value.failures[2].reason.startswith("not asked, `max_attempts=3`")
        assert caught.value.failures[2].requests == 0

    async def test_one_attempt_is_one_request(self) -> None:
        first, second = always(limited()), always("never")
        provider = FallbackProvider([first, second], max_attempts=1)
        with pytest.raises(AllProvidersFailedError):
            await consensus(provider, "Hi", num_samples=1, retry=ONCE)
        assert len(first.requests) == 1
        assert not second.requests

    @given(
        outcomes=st.lists(
            st.sampled_from(["ok", "limit", "down", "bad"]), min_size=1, max_size=5
        ),
        most=st.none() | st.integers(1, 5),
    )
    async def test_what_is_counted_is_what_was_sent(
        self, outcomes: list[str], most: int | None
    ) -> None:
        replies = {
            "ok": "fine",
            "limit": limited(),
            "down": ProviderError("x"),
            "bad": PermanentError("401"),
        }
        inner = [says(replies[outcome]) for outcome in outcomes]
        provider = FallbackProvider(inner, max_attempts=most)
        tracker = CostTracker()
        ended = [i for i, kind in enumerate(outcomes) if kind in {"ok", "bad"}]
        until = min((ended[0] + 1 if ended else len(inner)), most or len(inner))
        call = checked_complete(provider, MESSAGES, tracker, None, ONCE)
        if outcomes[until - 1] == "ok":
            assert (await call).content == "fine"
        else:
            with pytest.raises(LLMError) as caught:
                await call
            assert caught.value.attempts == until
        sent = sum(len(one.requests) for one in inner)
        assert sent == until == tracker.call_count
        answers = int(outcomes[until - 1] == "ok")
        assert tracker.to_usage() == TokenUsage(10 * answers, 5 * answers, sent)


def twice(retries: int = 3, **options: Any) -> RetryConfig:
    return RetryConfig(retries, 0.0, **options)


@pytest.mark.req("fallback.rounds")
class TestRounds:
    """Retries around a fallback ask again, within one count of requests."""

    @pytest.mark.parametrize("most", [None, 4, 6])
    async def test_a_blip_behind_a_dead_provider_is_retried(
        self, most: int | None
    ) -> None:
        dead, blip = always(ProviderError("503")), says(ProviderError("502"), "well")
        provider = FallbackProvider({"a": dead, "b": blip}, max_attempts=most)
        result = await consensus(provider, "Hi", num_samples=1, retry=twice())
        assert result.value == "well"
        assert (len(dead.requests), len(blip.requests)) == (2, 2)
        assert result.cost == TokenUsage(10, 5, 4)

    async def test_one_that_asked_for_time_is_not_asked_in_the_next_round(
        self, clock: FakeClock
    ) -> None:
        busy, blip = always(limited(75)), says(ProviderError("502"), "well")
        provider = FallbackProvider({"a": busy, "b": blip})
        result = await consensus(provider, "Hi", num_samples=1, retry=twice())
        assert result.value == "well"
        assert (len(busy.requests), len(blip.requests)) == (1, 2)

    @pytest.mark.req("HT-12")
    @pytest.mark.parametrize(
        ("count", "retries", "most", "sent"),
        [
            (2, 0, None, 2),
            (2, 3, None, 5),
            (3, 3, None, 6),
            (5, 1, None, 6),
            (2, 3, 1, 1),
            (2, 3, 2, 2),
            (2, 3, 3, 3),
            (2, 3, 100, 8),
            (1, 3, None, 4),
            (1, 3, 2, 2),
        ],
    )
    async def test_retries_do_not_multiply(
        self, count: int, retries: int, most: int | None, sent: int
    ) -> None:
        inner = [always(ProviderError("503")) for _ in range(count)]
        provider = FallbackProvider(inner, max_attempts=most)
        with pytest.raises(ProviderError) as caught:
            await consensus(provider, "Hi", num_samples=1, retry=twice(retries))
        assert sum(len(one.requests) for one in inner) == sent
        assert caught.value.attempts == sent
        assert caught.value.cost.llm_calls == sent
        said = f"requests sent: {sent}" if sent > 1 else "503"
        assert said in str(caught.value)

    @pytest.mark.req("HT-12")
    async def test_an_inner_fallback_takes_part_in_the_count(self) -> None:
        inner = [always(ProviderError("503")) for _ in range(3)]
        provider = FallbackProvider({"x": inner[0], "in": FallbackProvider(inner[1:])})
        with pytest.raises(AllProvidersFailedError) as caught:
            await consensus(provider, "Hi", num_samples=1, retry=twice())
        assert [len(one.requests) for one in inner] == [2, 2, 1]
        assert caught.value.attempts == 5

    @pytest.mark.req("HT-12")
    async def test_a_provider_that_retries_by_itself_has_the_last_word(self) -> None:
        class Retrying:
            def __init__(self) -> None:
                self.inner = always(ProviderError("503"))

            async def complete(self, messages: Any, **_: Any) -> LLMResponse:
                return await with_retry(self.inner.complete, twice(), messages)

        first, second = Retrying(), Retrying()
        provider = FallbackProvider([first, second], max_attempts=100)
        with pytest.raises(AllProvidersFailedError) as caught:
            await consensus(provider, "Hi", num_samples=1, retry=twice())
        assert len(first.inner.requests) == len(second.inner.requests) == 4
        assert caught.value.attempts == 8
        (note,) = caught.value.__notes__
        assert note.startswith("Not retried: a provider has retried by itself")

    @pytest.mark.parametrize(
        ("most", "words"),
        [
            (3, "3, and `max_attempts=3` allow no more"),
            (None, "5, and 2 providers and `max_retries=3` allow no more"),
        ],
    )
    async def test_a_note_says_why_nothing_more_is_sent(
        self, most: int | None, words: str
    ) -> None:
        inner = [always(ProviderError("503")) for _ in range(2)]
        provider = FallbackProvider(inner, max_attempts=most)
        with pytest.raises(AllProvidersFailedError) as caught:
            await consensus(provider, "Hi", num_samples=1, retry=twice())
        assert caught.value.__notes__ == [f"Not retried: requests sent: {words}"]
        assert caught.value.retries_exhausted

    async def test_a_failure_that_asks_nobody_else_is_counted_as_well(self) -> None:
        first, second = always(limited(0.0)), always(ProviderError("503"))
        provider = FallbackProvider([first, second], on=RateLimitError)
        with pytest.raises(ProviderError) as caught:
            await consensus(provider, "Hi", num_samples=1, retry=twice())
        assert caught.value.attempts == 5
        assert len(first.requests) + len(second.requests) == 5

    async def test_a_step_that_is_retried_asks_again(self) -> None:
        dead, blip = always(ProviderError("503")), says(ProviderError("502"), "well")
        provider = FallbackProvider({"a": dead, "b": blip})

        async def ask(_: Any) -> Any:
            return await consensus(provider, "Hi", num_samples=1, retry=ONCE)

        result = await Workflow([Step("ask", ask, retry=twice())]).run()
        assert result.outputs["ask"] == "well"
        assert (len(dead.requests), len(blip.requests)) == (2, 2)

    async def test_only_the_round_after_it_is_bounded(self) -> None:
        provider = FallbackProvider([always(ProviderError("503"))] * 2)
        seen: list[int | None] = []

        async def work() -> None:
            seen.append(requests_left())
            if len(seen) == 1:
                await provider.complete(MESSAGES)
            raise ProviderError("of another kind")

        with pytest.raises(ProviderError, match="another"):
            await with_retry(work, twice())
        assert seen == [None, 3, None, None]

    async def test_a_call_after_it_is_free_again(self) -> None:
        first = says(*[ProviderError("503")] * 2, "a", *[ProviderError("503")] * 2)
        second = says(*[ProviderError("503")] * 2, "b")
        provider = FallbackProvider([first, second], max_attempts=5)
        assert (await consensus(provider, "Hi", num_samples=1, retry=twice())).value
        assert requests_left() is None
        response = await consensus(provider, "Hi", num_samples=1, retry=ONCE)
        assert response.value == "b"


@pytest.mark.req("fallback.rest")
class TestRest:
    async def test_one_that_asked_for_time_is_passed_over_until_then(
        self, clock: FakeClock
    ) -> None:
        first, second = says(limited(30), "back"), says("b1", "b2")
        provider = FallbackProvider({"a": first, "b": second}, clock=clock)
        assert (await provider.complete(MESSAGES)).content == "b1"
        await clock.advance(29.5)
        assert provider.status()[0].resting == 0.5
        assert (await provider.complete(MESSAGES)).content == "b2"
        assert len(first.requests) == 1
        await clock.advance(0.6)
        assert (await provider.complete(MESSAGES)).content == "back"

    async def test_when_all_rest_nothing_is_sent_and_the_error_says_how_long(
        self, clock: FakeClock
    ) -> None:
        first, second = always(limited(30)), always(limited(20))
        provider = FallbackProvider([first, second])
        tracker = CostTracker()
        with pytest.raises(AllProvidersFailedError):
            await checked_complete(provider, MESSAGES, tracker, None, ONCE)
        with pytest.raises(AllProvidersFailedError) as caught:
            await checked_complete(provider, MESSAGES, tracker, None, ONCE)
        assert caught.value.retry_after == 20
        assert len(first.requests) == len(second.requests) == 1
        assert caught.value.attempts == 0
        assert tracker.call_count == 2
        assert not caught.value.retries_exhausted
        outer = FallbackProvider({"all": provider, "last": says(ProviderError("x"))})
        with pytest.raises(AllProvidersFailedError) as caught:
            await outer.complete(MESSAGES)
        assert [f.requests for f in caught.value.failures] == [0, 1]
        assert caught.value.attempts == 1
        assert "for 30s more" in caught.value.failures[0].reason
        assert clock.sleeps == []

    async def test_a_pattern_waits_for_the_first_that_is_back(
        self, clock: FakeClock
    ) -> None:
        first, second = says(limited(30), "late"), says(limited(20), "early")
        provider = FallbackProvider([first, second])
        with pytest.raises(AllProvidersFailedError):
            await provider.complete(MESSAGES)
        waiting = asyncio.create_task(consensus(provider, "Hi", num_samples=1))
        await clock.advance(25)
        assert (await waiting).value == "early"

    async def test_neither_late_answers_nor_shorter_hints_shorten_a_rest(
        self, clock: FakeClock
    ) -> None:
        gates = [asyncio.Event() for _ in range(3)]
        replies: list[Any] = [limited(30), "late", limited(5)]

        async def answer(request: Any) -> Any:
            await gates[request.number - 1].wait()
            return replies[request.number - 1]

        first = ScriptedProvider(answer)
        provider = FallbackProvider({"a": first, "b": always("spare")}, clock=clock)
        calls = [asyncio.create_task(provider.complete(MESSAGES)) for _ in gates]
        async with asyncio.timeout(5):
            for call, gate in zip(calls, gates, strict=True):
                gate.set()
                await call
        assert provider.status()[0].resting == 30
        assert (await provider.complete(MESSAGES)).answered_by == "b"

    async def test_one_that_gave_no_time_comes_last_and_is_asked_if_need_be(
        self, clock: FakeClock
    ) -> None:
        first = says(limited(known=False), "again")
        second = says("b1", ProviderError("down"))
        provider = FallbackProvider([first, second], clock=clock)
        assert (await provider.complete(MESSAGES)).content == "b1"
        assert (await provider.complete(MESSAGES)).content == "again"
        assert len(second.requests) == 2


@pytest.mark.req("fallback.breakers")
class TestBreakers:
    async def test_an_open_circuit_is_passed_over_at_once(
        self, clock: FakeClock
    ) -> None:
        first = says(ProviderError("x"), ProviderError("x"), "well")
        second = always("spare")
        provider = FallbackProvider(
            [first, second],
            breakers=BreakerConfig(
                failure_threshold=2, success_threshold=1, reset_timeout=10
            ),
        )
        for _ in range(4):
            assert (await provider.complete(MESSAGES)).content == "spare"
        assert len(first.requests) == 2
        assert provider.status()[0].circuit == "open"
        await clock.advance(10)
        assert (await provider.complete(MESSAGES)).content == "well"
        assert provider.status()[0].circuit == "closed"

    async def test_when_all_are_open_the_error_says_when_to_come_back(
        self, clock: FakeClock
    ) -> None:
        config = BreakerConfig(failure_threshold=1, reset_timeout=10)
        provider = FallbackProvider([always(ProviderError("x"))] * 2, breakers=config)
        with pytest.raises(AllProvidersFailedError):
            await provider.complete(MESSAGES)
        await clock.advance(4)
        with pytest.raises(AllProvidersFailedError) as caught:
            await provider.complete(MESSAGES)
        assert caught.value.retry_after == 6
        assert [f.requests for f in caught.value.failures] == [0, 0]
        assert "circuit is open" in caught.value.failures[0].reason

    async def test_a_cancelled_probe_gives_its_place_back(
        self, clock: FakeClock
    ) -> None:
        started = asyncio.Event()

        async def answer(request: Any) -> Any:
            if request.number == 1:
                return ProviderError("x")
            if request.number == 2:
                started.set()
                await asyncio.Event().wait()
            return "well"

        config = BreakerConfig(failure_threshold=1, reset_timeout=10)
        provider = FallbackProvider([ScriptedProvider(answer)], breakers=config)
        with pytest.raises(ProviderError):
            await provider.complete(MESSAGES)
        await clock.advance(10)
        probe = asyncio.create_task(provider.complete(MESSAGES))
        async with asyncio.timeout(5):
            await started.wait()
        probe.cancel()
        with pytest.raises(asyncio.CancelledError):
            await probe
        assert (await provider.complete(MESSAGES)).content == "well"


@pytest.mark.req("fallback.deadline")
class TestDeadline:
    async def test_nobody_is_asked_when_no_time_is_left(self, clock: FakeClock) -> None:
        first = says("never")
        context = ExecutionContext.with_deadline(5)
        await clock.advance(6)
        with (
            execution_scope(context),
            pytest.raises(DeadlineExceededError) as caught,
        ):
            await FallbackProvider([first]).complete(MESSAGES)
        assert not first.requests
        assert caught.value.attempts == 0

    async def test_a_slow_one_is_ended_by_the_deadline(self, clock: FakeClock) -> None:
        async def hang(_request: Any) -> Any:
            await asyncio.Event().wait()

        slow = ScriptedProvider(hang)
        provider = FallbackProvider([says(ProviderError("x")), slow])
        with execution_scope(ExecutionContext.with_deadline(5)):
            running = asyncio.create_task(provider.complete(MESSAGES))
        await clock.advance(5)
        with pytest.raises(DeadlineExceededError) as caught:
            await running
        assert caught.value.attempts == 2
        assert slow.active == 0


@pytest.mark.req("fallback.patterns")
class TestPatterns:
    async def test_consensus_counts_every_request_once(self) -> None:
        first, second = always(ProviderError("x")), always("yes")
        provider = FallbackProvider([first, second])
        result = await consensus(provider, "Hi", num_samples=3)
        assert result.value == "yes"
        assert result.cost == TokenUsage(30, 15, 6)

    async def test_structured(self) -> None:
        provider = FallbackProvider([says(limited()), says('{"a": 1}')])
        result = await structured(provider, "Hi")
        assert result.value == {"a": 1}
        assert result.cost == TokenUsage(10, 5, 2)

    async def test_react_loop_asks_those_that_can_call_tools(self) -> None:
        async def run(a: int, b: int) -> str:
            return str(a + b)

        add = Tool("add", "Adds.", {"type": "object"}, run)
        mute = says("never", supports_tools=False)
        call = tool_call_reply(("add", {"a": 1, "b": 2}), usage=USAGE)
        able = says(call, ProviderError("x"))
        last = says("three")
        provider = FallbackProvider([mute, able, last])
        assert provider.supports_tools
        result = await react_loop(provider, "1 + 2?", tools=[add])
        assert result.value == "three"
        assert result.cost == TokenUsage(20, 10, 3)
        assert not mute.requests

    async def test_without_tools_all_can_answer_and_with_them_nobody(self) -> None:
        mute = says("hello", supports_tools=False)
        provider = FallbackProvider([mute])
        assert not provider.supports_tools
        assert (await provider.complete(MESSAGES)).content == "hello"
        with pytest.raises(AllProvidersFailedError, match="cannot do what is asked"):
            await provider.complete(MESSAGES, tools=[{"type": "function"}])

    async def test_map_reduce(self) -> None:
        first = says(ProviderError("x"), "b", "all")
        provider = FallbackProvider([first, says("a")])
        result = await map_reduce(
            provider,
            ["one", "two"],
            map_prompt_template="{item}",
            reduce_prompt_template="{mapped_outputs}",
            max_concurrency=1,
        )
        assert result.value == "all"
        assert result.cost == TokenUsage(30, 15, 4)

    async def test_the_tokens_of_a_discarded_reply_are_counted(self) -> None:
        cut = LLMResponse("half", finish_reason="length", usage=USAGE)
        provider = FallbackProvider([says(cut), says("whole")], on_truncated=True)
        result = await consensus(provider, "Hi", num_samples=1)
        assert result.value == "whole"
        assert result.cost == TokenUsage(20, 10, 2)

    async def test_a_cancelled_call_has_counted_what_was_sent(self) -> None:
        started = asyncio.Event()

        async def hang(_request: Any) -> Any:
            started.set()
            await asyncio.Event().wait()

        provider = FallbackProvider([says(ProviderError("x")), ScriptedProvider(hang)])
        tracker = CostTracker()
        running = asyncio.create_task(
            checked_complete(provider, MESSAGES, tracker, None, ONCE)
        )
        async with asyncio.timeout(5):
            await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert tracker.call_count == 2


class Closing:
    def __init__(self, failure: Exception | None = None) -> None:
        self.closed = 0
        self._failure = failure

    async def complete(self, messages: Any, **_: Any) -> LLMResponse:
        return LLMResponse("x")

    async def aclose(self) -> None:
        self.closed += 1
        if self._failure is not None:
            raise self._failure


@pytest.mark.req("fallback.settings")
class TestSettings:
    async def test_each_is_closed_once_also_when_one_fails(self) -> None:
        first, second = Closing(OSError("stuck")), Closing()
        with pytest.raises(OSError, match="stuck"):
            async with FallbackProvider([first, second, first, says("x")]):
                pass
        assert (first.closed, second.closed) == (1, 1)

    def test_names_are_unique(self) -> None:
        first = says()
        first.model = "m"  # type: ignore[attr-defined]
        provider = FallbackProvider([first, first, says()])
        assert list(provider.providers) == ["m", "m#2", "ScriptedProvider"]
        assert repr(provider) == "FallbackProvider(m, m#2, ScriptedProvider)"

    def test_what_all_or_one_can_do(self) -> None:
        first, second = says(), says()
        provider = FallbackProvider([first, second])
        found = provider.default_max_tokens, provider.supports_response_format
        assert found == (None, False)
        for inner, most in ((first, 10), (second, 20)):
            inner.default_max_tokens = most  # type: ignore[attr-defined]
            inner.supports_response_format = True  # type: ignore[attr-defined]
        found = provider.default_max_tokens, provider.supports_response_format
        assert found == (20, True)

    @pytest.mark.parametrize(
        ("settings", "kind"),
        [
            ({"providers": []}, ValueError),
            ({"providers": "ab"}, TypeError),
            ({"providers": 3}, TypeError),
            ({"providers": [object()]}, TypeError),
            ({"max_attempts": 0}, ValueError),
            ({"on": "ProviderError"}, TypeError),
            ({"on": [1]}, TypeError),
            ({"breakers": True}, TypeError),
            ({"hedge": 0.5}, TypeError),
        ],
    )
    def test_a_setting_that_cannot_be_used_is_refused(
        self, settings: dict[str, Any], kind: type[Exception]
    ) -> None:
        given: dict[str, Any] = {"providers": [says()], **settings}
        with pytest.raises(kind):
            FallbackProvider(given.pop("providers"), **given)


@pytest.mark.req("fallback.docs")
def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "fallback.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, Any] = {}

    async def run() -> None:
        for block in blocks:
            code = compile(
                block, "fallback.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            )
            outcome = eval(code, names)
            if inspect.isawaitable(outcome):
                await outcome

    asyncio.run(run())
    said = re.findall(r"^# prints: (.*)$", text, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == said


def chat(text: str) -> Any:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json_reply({"id": "1", "model": "m", "choices": [choice], "usage": USAGE})


RUNS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "consensus": lambda provider: consensus(provider, "Hi", num_samples=3),
    "structured": lambda provider: structured(provider, "Hi"),
    "map_reduce": lambda provider: map_reduce(
        provider,
        ["Hi", "Ho"],
        map_prompt_template="{item}",
        reduce_prompt_template="{mapped_outputs}",
    ),
    "refine_loop": lambda provider: refine_loop(provider, "Hi", max_iterations=0),
    "react_loop": lambda provider: react_loop(provider, "Hi"),
}


@pytest.mark.req("HT-13", "fallback.answered-by")
@pytest.mark.parametrize("name", RUNS)
async def test_the_result_of_a_pattern_says_who_answered(name: str) -> None:
    asked = itertools.count()

    def said(request: Any) -> Any:
        return limited() if next(asked) else '{"score": 9}'

    first, second = ScriptedProvider(said), always('{"score": 9}')
    result = await RUNS[name](FallbackProvider({"a": first, "b": second}))
    count = len(second.requests)
    found = {"a": 1, "b": count} if count else {"a": 1}
    assert result.metadata["answered_by"] == found
    assert "answered_by" not in (await RUNS[name](always('{"score": 9}'))).metadata


@pytest.mark.req("HT-13")
class TestOverHttp:
    async def test_an_always_limited_server_and_a_healthy_one(self) -> None:
        refusal = json_reply(
            {"error": {"message": "slow down"}},
            status=429,
            headers={"retry-after": "75"},
        )
        async with (
            ScriptedServer(lambda _: refusal) as busy,
            ScriptedServer(lambda _: chat("fine")) as healthy,
            FallbackProvider(
                {"a": Provider(busy.url, "m"), "b": Provider(healthy.url, "m")}
            ) as provider,
        ):
            async with asyncio.timeout(10):
                result = await consensus(provider, "Hi", num_samples=3)
                response = await provider.complete(MESSAGES)
            assert result.value == "fine"
            sent = len(busy.requests) + len(healthy.requests) - 1
            assert result.cost == TokenUsage(30, 15, sent)
            assert response.answered_by == "b"
            assert len(healthy.requests) == 4

    @pytest.mark.req("fallback.hedge")
    async def test_the_request_that_lost_is_closed(self) -> None:
        held = json_reply({}, hold=asyncio.Event())
        async with ScriptedServer(lambda _: held) as stuck:

            async def answer(_request: Any) -> Any:
                await stuck.received()
                return chat("fine")

            async with (
                ScriptedServer(answer) as healthy,
                FallbackProvider(
                    [Provider(stuck.url, "m"), Provider(healthy.url, "m")],
                    hedge=HedgeOptions(delay=0.0),
                ) as provider,
            ):
                tracker = CostTracker()
                async with asyncio.timeout(10):
                    response = await checked_complete(
                        provider, MESSAGES, tracker, None, ONCE
                    )
                    await stuck.disconnected()
            assert response.content == "fine"
            assert tracker.call_count == 2
