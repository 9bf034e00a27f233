"""Consensus: who votes, who wins, what is saved, and how it fails."""

from __future__ import annotations

import asyncio
import gc
import unicodedata
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit import (
    BudgetExhaustedError,
    ConsensusFailedError,
    ExecutionContext,
    ExecutionKitError,
    Kit,
    LLMResponse,
    MockProvider,
    PermanentError,
    ProviderError,
    RetryConfig,
    TokenUsage,
    TraceEvent,
    VotingStrategy,
    consensus,
    execution_scope,
)
from executionkit.engine.voting import (
    answer_normalizer,
    numeric_normalizer,
    tally_votes,
)
from executionkit.errors import DeadlineExceededError, EvaluatorError
from executionkit.observability import MemoryTraceSink
from executionkit.testing import FakeClock, Request, ScriptedProvider, settle

LIMIT = 5
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
ONCE = RetryConfig(max_retries=0)


def answers(*texts: str | LLMResponse | BaseException) -> ScriptedProvider:
    return ScriptedProvider(texts, usage=USAGE)


def cut(text: str) -> LLMResponse:
    return LLMResponse(text, finish_reason="length", usage=USAGE)


async def vote(*texts: Any, **kwargs: Any) -> Any:
    return await consensus(answers(*texts), "?", num_samples=len(texts), **kwargs)


class Doors:
    """A provider whose replies come in the order in which the test lets them."""

    def __init__(self, *texts: str | BaseException) -> None:
        self.texts = texts
        self.doors = [asyncio.Event() for _ in texts]
        self.cancelled: list[int] = []
        self.provider = ScriptedProvider(self.answer, usage=USAGE)

    async def answer(self, request: Request) -> str | BaseException:
        number = request.number - 1
        try:
            await self.doors[number].wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        return self.texts[number]

    async def open(self, *numbers: int) -> None:
        for number in numbers:
            self.doors[number].set()
            await settle(5)


class TestAnswers:
    """The texts that were paid for are kept, whatever becomes of the vote."""

    @pytest.mark.req("consensus.answers-kept")
    async def test_an_error_carries_the_answers_that_came(self) -> None:
        with pytest.raises(BudgetExhaustedError) as caught:
            await consensus(
                answers("a", "b", "c"), "?", max_cost=TokenUsage(llm_calls=2)
            )
        assert caught.value.metadata["answers"] == ("a", "b")

    @pytest.mark.req("consensus.answers-kept")
    async def test_what_does_not_vote_is_among_them(self) -> None:
        with pytest.raises(ConsensusFailedError) as caught:
            await vote(cut("half"), "", cut("of it"))
        assert caught.value.metadata["answers"] == ("half", "", "of it")

    @pytest.mark.req("consensus.answers-kept")
    async def test_an_answer_that_the_normalizer_cannot_take_is_among_them(
        self,
    ) -> None:
        with pytest.raises(EvaluatorError) as caught:
            await vote("no number", normalizer=lambda text: str(int(text)))
        assert caught.value.metadata["answers"] == ("no number",)

    @pytest.mark.req("consensus.answers-kept")
    async def test_they_stand_in_the_order_of_the_samples(self) -> None:
        doors = Doors("first", "second", "third")
        task = asyncio.create_task(consensus(doors.provider, "?", num_samples=3))
        await settle()
        await doors.open(2, 0, 1)
        async with asyncio.timeout(LIMIT):
            result = await task
        assert result.metadata["answers"] == ("first", "second", "third")


class TestVote:
    @pytest.mark.req("consensus.majority")
    async def test_the_answer_of_most_samples_wins(self) -> None:
        result = await vote("no", "yes", "yes", "no", "yes")
        assert (result.value, result.score) == ("yes", 0.6)
        assert result.metadata == {
            "agreement_ratio": 0.6,
            "unique_responses": 2,
            "tie_count": 1,
            "votes": 5,
            "empty_samples": 0,
            "truncated_samples": 0,
            "samples_used": 5,
            "samples_saved": 0,
            "answers": ("no", "yes", "yes", "no", "yes"),
            "over_budget": False,
        }
        assert result.cost == TokenUsage(50, 10, 5)
        assert str(result) == "yes"

    @pytest.mark.req("consensus.requests")
    async def test_each_sample_is_the_same_single_user_message(self) -> None:
        provider = answers("a", "a", "a")
        await consensus(provider, "why?", num_samples=3, seed=7, max_tokens=9)
        for request in provider.requests:
            assert request.messages == [{"role": "user", "content": "why?"}]
            assert (request.temperature, request.max_tokens) == (0.9, 9)
            assert request.options == {"seed": 7}

    @pytest.mark.req("consensus.requests")
    async def test_the_defaults_are_five_samples_of_4096_tokens(self) -> None:
        provider = MockProvider(["yes"])
        result = await consensus(provider, "?")
        assert provider.call_count == result.cost.llm_calls == 5
        assert provider.last_call is not None
        assert provider.last_call.max_tokens == 4096

    @pytest.mark.req("consensus.ties")
    async def test_a_tie_goes_to_the_answer_of_the_earliest_sample(self) -> None:
        result = await vote("b", "a", "a", "b")
        assert (result.value, result.metadata["tie_count"]) == ("b", 2)

    @pytest.mark.req("consensus.ties")
    async def test_the_order_of_arrival_decides_nothing(self) -> None:
        for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 1, 3, 0]):
            doors = Doors("b", "a", "a", "b")
            task = asyncio.create_task(consensus(doors.provider, "?", num_samples=4))
            await settle()
            await doors.open(*order)
            assert (await task).value == "b"

    @pytest.mark.req("consensus.ties")
    async def test_the_winner_is_written_as_in_its_earliest_sample(self) -> None:
        doors = Doors("Paris", "paris", "PARIS")
        task = asyncio.create_task(
            consensus(doors.provider, "?", num_samples=3, normalizer=answer_normalizer)
        )
        await settle()
        await doors.open(2, 1, 0)
        assert (await task).value == "Paris"

    @pytest.mark.req("consensus.unanimous")
    async def test_unanimous_wants_all_voters_to_agree(self) -> None:
        result = await vote("yes", " yes\n", "", strategy="unanimous")
        assert (result.value, result.score) == ("yes", 1.0)
        assert result.metadata["tie_count"] == 0
        with pytest.raises(
            ConsensusFailedError, match="2 distinct responses"
        ) as caught:
            await vote("yes", "no", "yes", strategy=VotingStrategy.UNANIMOUS)
        assert caught.value.cost == TokenUsage(30, 6, 3)
        assert caught.value.attempts == 3
        assert caught.value.metadata["votes"] == 3

    @pytest.mark.req("D-39")
    async def test_what_looks_the_same_is_the_same(self) -> None:
        """D-39: Unicode forms, invisible characters and white space."""
        composed, split = "caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9")
        result = await vote(
            composed, split, f"\ufeff{composed}", f"{split}\u200b ", "x"
        )
        assert (result.score, result.metadata["unique_responses"]) == (0.8, 2)

    @pytest.mark.req("D-39", "consensus.no-vote")
    async def test_empty_answers_do_not_vote(self) -> None:
        """D-39: three empty answers do not beat two real ones."""
        result = await vote("", "  ", "yes", "\n", "yes")
        assert (result.value, result.score) == ("yes", 1.0)
        assert result.metadata["empty_samples"] == 3
        assert result.metadata["votes"] == 2

    @pytest.mark.req("D-39", "D-28", "consensus.no-vote")
    async def test_answers_cut_off_at_the_token_limit_do_not_vote(self) -> None:
        result = await vote(cut("the answ"), cut("the answ"), "the answer")
        assert result.value == "the answer"
        assert result.metadata["truncated_samples"] == 2

    @pytest.mark.req("consensus.no-vote", "D-03")
    async def test_when_nobody_can_vote_that_is_said_with_the_cost(self) -> None:
        with pytest.raises(
            ConsensusFailedError, match="None of 3 samples can vote: 1 empty, 2 cut off"
        ) as caught:
            await vote("", cut("a"), cut("b"))
        assert caught.value.cost == TokenUsage(20, 4, 3) + TokenUsage(10, 2)
        assert caught.value.metadata["truncated_samples"] == 2

    @pytest.mark.req("consensus.normalizer", "RP-02")
    async def test_numbers_group_by_value_only_when_asked_for(self) -> None:
        """RP-02: `-3` is not `3`; `0.50`, `.5` and `1/2` are one on request."""
        assert (await vote("-3", "-3", "3")).value == "-3"
        plain = await vote("0.50", ".5", "1/2")
        assert plain.metadata["unique_responses"] == 3
        grouped = await vote("0.50", ".5", "1/2", normalizer=numeric_normalizer)
        assert (grouped.value, grouped.score) == ("0.50", 1.0)

    @pytest.mark.req("consensus.normalizer", "RP-04")
    async def test_a_normalizer_may_group_by_a_part_of_the_answer(self) -> None:
        """RP-04: `42/ok, 42/bad, 7/ok`: the key is the answer only."""
        result = await vote(
            "7/ok", "42/ok", "42/bad", normalizer=lambda text: text.split("/")[0]
        )
        assert result.value == "42/ok"

    @pytest.mark.req("consensus.normalizer", "D-03")
    async def test_a_failing_normalizer_is_an_error_with_the_cost(self) -> None:
        def broken(_text: str) -> str:
            raise KeyError("x")

        with pytest.raises(EvaluatorError, match="The normalizer failed") as caught:
            await vote("a", "b", normalizer=broken)
        assert caught.value.cost.llm_calls == 1

    @pytest.mark.req("consensus.normalizer")
    @pytest.mark.parametrize("given", [None, ["a"], 4.2, "async"])
    async def test_a_normalizer_that_gives_no_text_is_an_error_with_the_cost(
        self, given: object
    ) -> None:
        """An async one too: no two coroutines are equal, so each vote stood alone."""

        async def later(text: str) -> str:
            return text

        wrong: Any = lambda text: later(text) if given == "async" else given  # noqa: E731
        with pytest.raises(
            EvaluatorError, match=r"The normalizer.*returns? a? ?text"
        ) as caught:
            await vote("a", "a", normalizer=wrong)
        assert caught.value.cost.llm_calls == 1

    @pytest.mark.req("consensus.normalizer")
    async def test_an_async_normalizer_is_refused_before_any_call(self) -> None:
        async def later(text: str) -> str:
            return text

        provider = answers("a")
        with pytest.raises(TypeError, match="`normalizer` must be a plain function"):
            await consensus(provider, "?", normalizer=later)  # type: ignore[arg-type]
        assert not provider.requests

    @pytest.mark.req("consensus.strategies-listed")
    async def test_an_unknown_strategy_is_told_the_choices(self) -> None:
        with pytest.raises(ValueError, match=r"'most' is not a valid.*'majority' or"):
            await vote("a", strategy="most")

    @given(
        st.lists(st.sampled_from(["a", "b", "c", "", "CUT"]), min_size=1, max_size=8),
        st.sampled_from(list(VotingStrategy)),
        st.integers(1, 8),
    )
    def test_it_is_the_plain_tally_of_the_answers_that_can_vote(
        self, texts: list[str], strategy: VotingStrategy, at_once: int
    ) -> None:
        script = [cut("x") if text == "CUT" else text for text in texts]
        voters = [text for text in texts if text not in {"", "CUT"}]
        try:
            expected = tally_votes(voters, strategy)
        except (ValueError, ConsensusFailedError):
            expected = None
        run = vote(*script, strategy=strategy, max_concurrency=at_once)
        try:
            result = asyncio.run(run)
        except ConsensusFailedError:
            assert expected is None
        else:
            assert expected is not None
            assert result.value == expected.winner
            assert result.score == expected.agreement_ratio
            assert result.metadata["tie_count"] == expected.tie_count


class TestEarlyStop:
    @pytest.mark.req("consensus.early-stop")
    async def test_it_stops_when_the_winner_cannot_be_caught(self) -> None:
        doors = Doors("a", "a", "a", "b", "b")
        task = asyncio.create_task(consensus(doors.provider, "?", early_stop=True))
        await settle()
        await doors.open(0, 3, 1)
        assert not task.done()
        await doors.open(2)
        async with asyncio.timeout(LIMIT):
            result = await task
        assert (result.value, result.score) == ("a", 0.75)
        assert result.metadata["samples_used"] == 4
        assert result.metadata["samples_saved"] == 1
        assert doors.cancelled == [4]
        assert doors.provider.active == 0
        assert result.cost == TokenUsage(40, 8, 5)

    @pytest.mark.req("consensus.early-stop")
    @pytest.mark.parametrize(("at_once", "made"), [(1, 5), (3, 6)])
    async def test_calls_that_are_saved_are_not_even_made(
        self, at_once: int, made: int
    ) -> None:
        async def answer(_request: Request) -> str:
            await settle(2)
            return "a"

        provider = ScriptedProvider(answer)
        result = await consensus(
            provider, "?", num_samples=9, max_concurrency=at_once, early_stop=True
        )
        assert len(provider.requests) == result.cost.llm_calls == made
        assert result.metadata["samples_used"] == made

    @pytest.mark.req("consensus.early-stop")
    async def test_a_tie_that_may_still_come_is_waited_for(self) -> None:
        """The earliest sample has not arrived: it could win the tie."""
        doors = Doors("b", "a", "a", "b")
        task = asyncio.create_task(
            consensus(doors.provider, "?", num_samples=4, early_stop=True)
        )
        await settle()
        await doors.open(1, 2)
        assert not task.done()
        await doors.open(3, 0)
        assert (await task).value == "b"

    @pytest.mark.req("consensus.early-stop")
    async def test_broken_unanimity_ends_it(self) -> None:
        doors = Doors("a", "b", "a", "a")
        task = asyncio.create_task(
            consensus(
                doors.provider,
                "?",
                num_samples=4,
                strategy="unanimous",
                early_stop=True,
            )
        )
        await settle()
        await doors.open(0, 1)
        async with asyncio.timeout(LIMIT):
            with pytest.raises(ConsensusFailedError) as caught:
                await task
        assert sorted(doors.cancelled) == [2, 3]
        assert caught.value.metadata["samples_saved"] == 2

    @pytest.mark.req("consensus.early-stop", "D-38")
    async def test_the_trace_of_a_saved_call_is_a_pair_too(self) -> None:
        doors = Doors("a", "a", "a")
        sink = MemoryTraceSink()
        task = asyncio.create_task(
            consensus(doors.provider, "?", num_samples=3, early_stop=True, trace=sink)
        )
        await settle()
        await doors.open(0, 1)
        await task
        assert Counter(sink.kinds) == {
            "llm_call_start": 3,
            "llm_call_end": 2,
            "llm_call_error": 1,
            "pattern_start": 1,
            "pattern_end": 1,
        }

    @given(
        st.lists(st.sampled_from("abc"), min_size=1, max_size=9),
        st.randoms(use_true_random=False),
        st.booleans(),
    )
    def test_it_changes_no_winner_whatever_the_order_of_arrival(
        self, texts: list[str], chance: Any, unanimous: bool
    ) -> None:
        order = list(range(len(texts)))
        chance.shuffle(order)
        strategy = "unanimous" if unanimous else "majority"

        async def run() -> str | None:
            doors = Doors(*texts)
            task = asyncio.create_task(
                consensus(
                    doors.provider,
                    "?",
                    num_samples=len(texts),
                    max_concurrency=len(texts),
                    strategy=strategy,
                    early_stop=True,
                )
            )
            await settle(5)
            await doors.open(*order)
            try:
                return (await task).value
            except ConsensusFailedError:
                return None

        try:
            expected: str | None = tally_votes(texts, strategy).winner
        except ConsensusFailedError:
            expected = None
        assert asyncio.run(run()) == expected


class TestConcurrency:
    @pytest.mark.parametrize(("limit", "peak"), [(1, 1), (3, 3), (50, 12)])
    @pytest.mark.req("consensus.concurrency")
    async def test_the_limit_is_kept_and_reached(self, limit: int, peak: int) -> None:
        async def answer(_request: Request) -> str:
            await settle(3)
            return "yes"

        provider = ScriptedProvider(answer)
        await consensus(provider, "?", num_samples=12, max_concurrency=limit)
        assert provider.peak == peak

    @pytest.mark.req("consensus.concurrency")
    async def test_five_are_in_flight_by_default(self) -> None:
        async def answer(_request: Request) -> str:
            await settle(3)
            return "yes"

        provider = ScriptedProvider(answer)
        await consensus(provider, "?", num_samples=20)
        assert provider.peak == 5


class TestValidation:
    @pytest.mark.parametrize(
        "bad",
        [
            {"num_samples": 0},
            {"num_samples": -1},
            {"num_samples": True},
            {"num_samples": 2.5},
            {"max_concurrency": 0},
            {"max_tokens": 0},
            {"strategy": "most"},
            {"max_cost": TokenUsage(llm_calls=-2)},
        ],
    )
    @pytest.mark.req("consensus.validated")
    async def test_bad_arguments_are_refused_before_any_call(
        self, bad: dict[str, Any]
    ) -> None:
        provider = MockProvider(["x"])
        with pytest.raises(ValueError, match=next(iter(bad)) + "|most|llm_calls"):
            await consensus(provider, "?", **bad)
        assert provider.call_count == 0


class TestFailures:
    @pytest.mark.req("D-02", "D-03")
    async def test_an_exhausted_budget_is_one_error_with_cost(self) -> None:
        """D-02: five samples, two calls allowed."""
        with pytest.raises(BudgetExhaustedError) as caught:
            await consensus(MockProvider(["x"]), "?", max_cost=TokenUsage(llm_calls=2))
        assert caught.value.cost.llm_calls == caught.value.attempts == 2
        assert not isinstance(caught.value, BaseExceptionGroup)

    @pytest.mark.req("D-02", "D-03")
    async def test_five_refusals_are_one_error_the_others_noted(self) -> None:
        """D-02: HTTP 401 five times."""

        async def answer(request: Request) -> BaseException:
            await asyncio.sleep(0)
            return PermanentError(f"HTTP 401, sample {request.number}")

        provider = ScriptedProvider(answer)
        with pytest.raises(PermanentError, match="sample 1") as caught:
            await consensus(provider, "?")
        assert caught.value.cost.llm_calls == 5
        notes = caught.value.__notes__
        assert [note for note in notes if note.startswith("also:")] == [
            f"also: PermanentError: HTTP 401, sample {n}" for n in range(2, 6)
        ]
        assert str(caught.value).endswith(" (requests sent: 5)")

    @pytest.mark.req("D-03", "consensus.fails-fast")
    async def test_the_first_failure_cancels_the_rest_and_keeps_the_facts(self) -> None:
        """D-03: the fourth sample fails after three paid ones."""
        doors = Doors("a", "a", "b", PermanentError("HTTP 400"), "a")
        task = asyncio.create_task(consensus(doors.provider, "?", num_samples=5))
        await settle()
        await doors.open(0, 1, 2, 3)
        async with asyncio.timeout(LIMIT):
            with pytest.raises(PermanentError) as caught:
                await task
        assert caught.value.cost == TokenUsage(30, 6, 5)
        assert caught.value.metadata["votes"] == 3
        assert doors.cancelled == [4]

    @pytest.mark.req("D-03")
    async def test_a_kit_counts_what_a_failed_run_has_cost(self) -> None:
        kit = Kit(answers("a", "b", "c", "d", "e"))
        with pytest.raises(ConsensusFailedError):
            await kit.consensus("?", strategy="unanimous")
        assert kit.usage == TokenUsage(50, 10, 5)

    @pytest.mark.req("consensus.fails-fast")
    async def test_a_foreign_exception_passes_as_it_is(self) -> None:
        error = RuntimeError("a bug of the provider")
        kit = Kit(answers("a", error))
        with pytest.raises(RuntimeError) as caught:
            await kit.consensus("?", num_samples=2, max_concurrency=1)
        assert caught.value is error
        assert kit.usage == TokenUsage(10, 2, 2)

    @pytest.mark.req("D-29")
    async def test_a_failing_fan_out_leaves_no_coroutine_unawaited(self) -> None:
        """D-29: warnings are errors here."""
        with pytest.raises(ProviderError):
            await consensus(
                MockProvider(exception=ProviderError("down")),
                "?",
                num_samples=20,
                retry=ONCE,
            )
        gc.collect()

    @pytest.mark.req("HT-12")
    async def test_no_retries_and_one_sample_is_exactly_one_request(self) -> None:
        """HT-12: a caller that asks for 0 retries gets exactly 1 request."""
        provider = MockProvider(exception=ProviderError("down"))
        with pytest.raises(ProviderError):
            await consensus(provider, "?", num_samples=1, retry=ONCE)
        assert provider.call_count == 1


class TestBudgetAndDeadline:
    @pytest.mark.req("D-09", "budget.tokens-overshoot-by-one-response-at-most")
    async def test_samples_at_once_pass_a_token_limit_by_one_response_at_most(
        self,
    ) -> None:
        """D-09: limit 100, ten calls of 100 at once."""

        async def answer(_request: Request) -> LLMResponse:
            await settle(2)
            return LLMResponse("x", usage={"completion_tokens": 100})

        for max_tokens in (100, None):
            provider = ScriptedProvider(answer)
            with pytest.raises(BudgetExhaustedError) as caught:
                await consensus(
                    provider,
                    "?",
                    num_samples=10,
                    max_concurrency=10,
                    max_tokens=max_tokens,
                    max_cost=TokenUsage(0, 150),
                )
            assert caught.value.cost.output_tokens == 200

    @pytest.mark.req("budget.example")
    async def test_the_example_of_the_guide_fits_its_budget(self) -> None:
        result = await consensus(
            answers(*["yes"] * 5),
            "Return only 'yes' or 'no': is 17 prime?",
            num_samples=5,
            max_cost=TokenUsage(input_tokens=5_000, output_tokens=1_000, llm_calls=8),
        )
        assert result.value == "yes"
        assert result.cost.llm_calls == 5

    @pytest.mark.req("LM-19")
    async def test_a_paid_answer_over_the_budget_is_returned_and_flagged(self) -> None:
        """LM-19: budget 100 tokens, the reply costs 140."""
        provider = ScriptedProvider(
            [LLMResponse("x", usage={"completion_tokens": 140})]
        )
        result = await consensus(
            provider, "?", num_samples=1, max_cost=TokenUsage(0, 100)
        )
        assert result.value == "x"
        assert result.metadata["over_budget"] is True

    @pytest.mark.req("patterns.deadline")
    async def test_the_deadline_ends_all_samples(self, fake_clock: FakeClock) -> None:
        doors = Doors("a", "a", "a")
        async with execution_scope(ExecutionContext().with_timeout(2.0)):
            task = asyncio.create_task(consensus(doors.provider, "?", num_samples=3))
        await settle()
        await doors.open(0)
        await fake_clock.advance(2.0)
        with pytest.raises(DeadlineExceededError) as caught:
            await task
        assert sorted(doors.cancelled) == [1, 2]
        assert caught.value.cost == TokenUsage(10, 2, 3)
        assert caught.value.metadata["votes"] == 1

    @pytest.mark.req("patterns.deadline")
    async def test_nothing_is_sent_when_the_deadline_has_passed(
        self, fake_clock: FakeClock
    ) -> None:
        provider = MockProvider(["x"])
        async with execution_scope(ExecutionContext().with_timeout(1.0)):
            await fake_clock.advance(2.0)
            with pytest.raises(DeadlineExceededError, match="no request was sent"):
                await consensus(provider, "?")
        assert provider.call_count == 0


@pytest.mark.req("patterns.cancel")
@pytest.mark.parametrize("again_after", [None, 0, 2])
@pytest.mark.parametrize("early_stop", [False, True])
async def test_cancelled_anywhere_it_leaves_nothing_and_books_once(
    everywhere: Any, again_after: int | None, early_stop: bool
) -> None:
    def make() -> Any:
        starts: list[str] = []
        ends: list[str] = []
        replied = 0

        async def answer(request: Request) -> str:
            nonlocal replied
            await settle(request.number)
            replied += 1
            return "a"

        async def sink(event: TraceEvent) -> None:
            if event.kind.endswith("_start"):
                starts.append(event.kind)
            elif event.kind != "wait":
                ends.append(event.kind)
            await asyncio.sleep(0)

        provider = ScriptedProvider(answer, usage=USAGE)
        kit = Kit(provider)

        def check(_cancelled: bool) -> None:
            assert provider.active == 0
            assert len(starts) == len(ends)
            assert kit.usage == TokenUsage(
                10 * replied, 2 * replied, len(provider.requests)
            )

        run = kit.consensus(
            "?", num_samples=4, max_concurrency=3, early_stop=early_stop, trace=sink
        )
        return run, check

    assert await everywhere(make, again_after=again_after) > 5


@pytest.mark.req("D-08")
async def test_a_failing_sink_changes_nothing() -> None:
    """D-08: the same result, the same cost."""

    def broken(_event: TraceEvent) -> None:
        raise OSError("disk full")

    quiet = await vote("a", "b", "a")
    traced = await vote("a", "b", "a", trace=broken)
    assert traced == quiet


@pytest.mark.req("call.own-errors")
async def test_one_error_object_in_two_runs_at_once_is_two_errors() -> None:
    error = PermanentError("no")

    async def run(fine: int) -> ExecutionKitError:
        with pytest.raises(PermanentError) as caught:
            await consensus(
                answers(*["a"] * fine, error), "?", num_samples=9, max_concurrency=1
            )
        return caught.value

    first, second = await asyncio.gather(run(1), run(3))
    assert (first.cost.llm_calls, second.cost.llm_calls) == (2, 4)
    assert (first.metadata["votes"], second.metadata["votes"]) == (1, 3)
    assert error.metadata == {}
