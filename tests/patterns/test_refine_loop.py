"""Refinement: the best draft comes back, with an honest word on why it ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit import (
    BudgetExhaustedError,
    ConsensusFailedError,
    ExecutionContext,
    Kit,
    LLMResponse,
    MockProvider,
    PermanentError,
    ProviderError,
    RetryConfig,
    TokenUsage,
    TraceEvent,
    consensus,
    execution_scope,
    refine_loop,
)
from executionkit.errors import DeadlineExceededError, EvaluatorError
from executionkit.observability import MemoryTraceSink
from executionkit.testing import FakeClock, Request, ScriptedProvider, settle

USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
ONCE = RetryConfig(max_retries=0)
KEY = "custom-key-7f3a91c2"
not_bare = pytest.mark.filterwarnings("ignore:.*not a bare number")

# How many things are under way after each event.
CHANGE = {
    "pattern_start": 1,
    "pattern_end": -1,
    "llm_call_start": 1,
    "llm_call_end": -1,
    "llm_call_error": -1,
}


def drafts() -> ScriptedProvider:
    """Writes draft 1, draft 2, ..."""
    return ScriptedProvider(lambda request: f"draft {request.number}", usage=USAGE)


class Scores:
    """An evaluator that gives scores one after another, and keeps what it saw."""

    def __init__(self, *scores: Any) -> None:
        self.left = list(scores)
        self.seen: list[str] = []

    async def __call__(self, text: str, _provider: object) -> Any:
        self.seen.append(text)
        score = self.left.pop(0)
        if isinstance(score, BaseException):
            raise score
        return score


class TestLoop:
    @pytest.mark.req("RP-06", "D-43")
    async def test_the_best_draft_comes_back_not_the_last(self) -> None:
        """RP-06: scores 0.5, 0.8, 0.6, 0.55, limit 4."""
        result = await refine_loop(
            drafts(),
            "x",
            evaluator=Scores(0.5, 0.8, 0.6, 0.55),
            max_iterations=3,
        )
        assert (result.value, result.score) == ("draft 2", 0.8)
        assert result.metadata["score_history"] == (0.5, 0.8, 0.6, 0.55)
        assert result.metadata["stop_reason"] == "max_iterations"
        assert result.metadata["iterations"] == 3
        assert result.metadata["converged"] is False
        assert "unjudged_text" not in result.metadata
        assert result.cost == TokenUsage(40, 8, 4)

    @pytest.mark.req("RP-07")
    async def test_only_the_score_decides_and_every_draft_is_scored(self) -> None:
        """RP-07: threshold 0.8; 0.7 goes on, 0.9 stops."""
        evaluator = Scores(0.7, 0.9)
        result = await refine_loop(
            drafts(), "x", evaluator=evaluator, target_score=0.8, max_iterations=1
        )
        assert evaluator.seen == ["draft 1", "draft 2"]
        assert (result.value, result.score) == ("draft 2", 0.9)
        assert result.metadata["stop_reason"] == "target_reached"
        assert result.metadata["converged"] is True

    @pytest.mark.req("RP-07")
    async def test_without_improvements_nobody_is_asked_to_judge(self) -> None:
        """RP-07: limit 0 costs no evaluator call."""
        provider = drafts()
        evaluator = Scores()
        result = await refine_loop(provider, "x", evaluator=evaluator, max_iterations=0)
        assert (result.value, result.score) == ("draft 1", None)
        assert result.metadata["stop_reason"] == "max_iterations"
        assert result.metadata["score_history"] == ()
        assert (evaluator.seen, len(provider.requests)) == ([], 1)
        assert (await refine_loop(drafts(), "x", max_iterations=0)).cost.llm_calls == 1

    @pytest.mark.req("refine.target")
    async def test_a_first_draft_that_is_good_enough_is_all(self) -> None:
        result = await refine_loop(drafts(), "x", evaluator=Scores(0.9))
        assert result.metadata == {
            "iterations": 0,
            "converged": True,
            "stop_reason": "target_reached",
            "score_history": (0.9,),
            "truncated_responses": 0,
            "over_budget": False,
        }

    @pytest.mark.req("refine.requests")
    async def test_an_improvement_is_asked_of_the_best_draft_with_its_score(
        self,
    ) -> None:
        provider = drafts()
        await refine_loop(
            provider,
            "the task",
            evaluator=Scores(0.5, 0.4, 0.95),
            seed=1,
            max_tokens=9,
        )
        first, second, third = provider.requests
        assert first.messages == [{"role": "user", "content": "the task"}]
        for request in (second, third):
            task, best, wish = request.messages
            assert task == first.messages[0]
            assert best == {"role": "assistant", "content": "draft 1"}
            assert "0.50" in wish["content"]
            assert "only" in wish["content"]
        for request in provider.requests:
            assert (request.temperature, request.max_tokens) == (0.7, 9)
            assert request.options == {"seed": 1}

    @pytest.mark.req("refine.best")
    async def test_an_equal_score_does_not_replace_the_best(self) -> None:
        result = await refine_loop(
            drafts(), "x", evaluator=Scores(0.5, 0.5), max_iterations=1
        )
        assert result.value == "draft 1"

    @pytest.mark.req("D-43", "refine.stalled")
    async def test_a_stall_below_the_target_is_not_called_converged(self) -> None:
        """D-43: three drafts at 0.2 are a stall."""
        result = await refine_loop(
            drafts(), "x", evaluator=Scores(*[0.2] * 9), patience=3, max_iterations=8
        )
        assert result.metadata["stop_reason"] == "stalled"
        assert result.metadata["converged"] is False
        assert result.metadata["iterations"] == 3

    @pytest.mark.req("D-43", "refine.stalled")
    async def test_swinging_below_the_best_is_a_stall_too(self) -> None:
        """D-43: it does not run all twenty rounds."""
        swing = [0.8] + [0.3, 0.6] * 10
        result = await refine_loop(
            drafts(), "x", evaluator=Scores(*swing), max_iterations=20
        )
        assert result.metadata["iterations"] == 3
        assert (result.value, result.score) == ("draft 1", 0.8)

    @pytest.mark.req("refine.stalled")
    async def test_small_gains_count_as_nothing(self) -> None:
        slow = [0.50, 0.505, 0.51, 0.515, 0.52]
        result = await refine_loop(
            drafts(), "x", evaluator=Scores(*slow), patience=2, max_iterations=9
        )
        assert result.metadata["iterations"] == 2
        assert result.metadata["stop_reason"] == "stalled"

    @pytest.mark.req("D-28")
    async def test_drafts_that_were_cut_off_are_counted(self) -> None:
        provider = ScriptedProvider(
            [LLMResponse("a", finish_reason="length"), LLMResponse("b")]
        )
        result = await refine_loop(
            provider, "x", evaluator=Scores(0.1, 0.2), max_iterations=1
        )
        assert result.metadata["truncated_responses"] == 1

    @given(
        st.lists(st.floats(0, 1), min_size=2, max_size=8),
        st.floats(0, 1),
        st.integers(1, 4),
    )
    def test_the_result_is_the_first_best_of_what_was_judged(
        self, scores: list[float], target: float, patience: int
    ) -> None:
        run = refine_loop(
            drafts(),
            "x",
            evaluator=Scores(*scores),
            target_score=target,
            patience=patience,
            max_iterations=len(scores) - 1,
        )
        result = asyncio.run(run)
        history = result.metadata["score_history"]
        best = max(history)
        assert result.score == best
        assert result.value == f"draft {history.index(best) + 1}"
        assert result.metadata["converged"] == (best >= target)
        assert result.metadata["iterations"] == len(history) - 1
        assert max(history[:-1], default=-1.0) < target


class TestValidation:
    @pytest.mark.parametrize(
        "bad",
        [
            {"target_score": 1.1},
            {"target_score": -0.1},
            {"target_score": float("nan")},
            {"max_iterations": -1},
            {"max_iterations": 2.5},
            {"patience": 0},
            {"delta_threshold": -0.1},
            {"max_eval_chars": 0},
            {"max_tokens": 0},
        ],
    )
    @pytest.mark.req("refine.validated")
    async def test_bad_arguments_are_refused_before_any_call(
        self, bad: dict[str, Any]
    ) -> None:
        provider = MockProvider(["x"])
        with pytest.raises(ValueError, match=next(iter(bad))):
            await refine_loop(provider, "x", **bad)
        assert provider.call_count == 0


def judged(*script: Any, able: bool = False) -> ScriptedProvider:
    provider: Any = ScriptedProvider(script, usage=USAGE)
    provider.supports_response_format = able
    return provider  # type: ignore[no-any-return]


class TestBuiltInJudge:
    @pytest.mark.req("refine.judge")
    async def test_it_asks_the_same_provider_in_the_same_account(self) -> None:
        provider = judged("draft", "5", "better", "9")
        sink = MemoryTraceSink()
        result = await refine_loop(provider, "x", trace=sink)
        assert (result.value, result.score) == ("better", 0.9)
        assert result.cost == TokenUsage(40, 8, 4)
        assert sink.kinds[1:-1] == ["llm_call_start", "llm_call_end"] * 4
        judge = provider.requests[1]
        assert (judge.temperature, judge.max_tokens) == (0.1, 16)
        assert "<response_to_rate>\ndraft\n" in judge.messages[1]["content"]

    @pytest.mark.req("refine.judge")
    async def test_it_counts_in_the_same_budget(self) -> None:
        with pytest.raises(BudgetExhaustedError) as caught:
            await refine_loop(judged("draft"), "x", max_cost=TokenUsage(llm_calls=1))
        assert caught.value.metadata["best_text"] == "draft"
        assert caught.value.metadata["best_score"] is None

    @pytest.mark.req("refine.judge")
    async def test_it_sees_no_more_than_max_eval_chars(self) -> None:
        provider = judged("abcdef", "10")
        await refine_loop(provider, "x", max_eval_chars=3)
        assert "\nabc\n" in provider.requests[1].messages[1]["content"]

    @not_bare
    @pytest.mark.req("D-24", "D-03", "refine.judge-fails")
    async def test_a_judge_without_a_rating_loses_no_draft(self) -> None:
        """D-24: `N/A` twice; the draft and its cost come back."""
        result = await refine_loop(judged("draft", "N/A", "great"), "x")
        assert (result.value, result.score) == ("draft", None)
        assert result.metadata["stop_reason"] == "evaluator_failed"
        assert result.metadata["converged"] is False
        assert "no rating, twice" in result.metadata["evaluator_error"]
        assert "unjudged_text" not in result.metadata
        assert result.cost == TokenUsage(30, 6, 3)

    @pytest.mark.req("D-03", "refine.judge-fails")
    async def test_a_failing_judge_call_loses_no_draft(self) -> None:
        """D-03: also not the one that it could not judge."""
        provider = judged("first", "5", "second", ProviderError("HTTP 500"))
        result = await refine_loop(provider, "x", retry=ONCE)
        assert (result.value, result.score) == ("first", 0.5)
        assert result.metadata["stop_reason"] == "evaluator_failed"
        assert result.metadata["unjudged_text"] == "second"
        assert result.metadata["iterations"] == 1
        assert result.metadata["evaluator_error"] == "ProviderError: HTTP 500"

    @pytest.mark.req("OB-04")
    async def test_the_key_is_not_in_the_judges_error(self) -> None:
        provider: Any = judged("first", PermanentError(f"{KEY} was refused"))
        provider.api_key = KEY
        result = await refine_loop(provider, "x")
        assert "PermanentError" in result.metadata["evaluator_error"]
        assert KEY not in repr(result)


class TestCustomEvaluator:
    @pytest.mark.req("refine.custom-fails", "D-03")
    async def test_one_that_raises_is_an_error_with_the_best_draft(self) -> None:
        evaluator = Scores(0.4, 0.6, KeyError("a bug"))
        with pytest.raises(
            EvaluatorError, match="evaluator failed: KeyError"
        ) as caught:
            await refine_loop(drafts(), "x", evaluator=evaluator)
        error = caught.value
        assert isinstance(error.__cause__, KeyError)
        assert error.cost == TokenUsage(30, 6, 3)
        assert error.metadata["best_text"] == "draft 2"
        assert error.metadata["best_score"] == 0.6
        assert error.metadata["score_history"] == (0.4, 0.6)
        assert error.metadata["unjudged_text"] == "draft 3"

    @pytest.mark.parametrize("score", [1.5, -0.1, float("nan"), "0.5", None, True])
    @pytest.mark.req("refine.custom-fails")
    async def test_a_senseless_score_is_such_an_error(self, score: Any) -> None:
        with pytest.raises(EvaluatorError, match="Invalid evaluator score") as caught:
            await refine_loop(drafts(), "x", evaluator=Scores(score))
        assert caught.value.metadata["best_text"] == "draft 1"
        assert caught.value.cost.llm_calls == 1

    @pytest.mark.req("D-43", "refine.custom-spends")
    async def test_what_it_spends_is_the_runs(self) -> None:
        """D-43: six calls are six in the account, and the budget holds for them."""

        async def judge(text: str, provider: Any) -> float:
            response = await provider.complete([{"role": "user", "content": text}])
            return float(response.content)

        script = ["a", "0.1", "b", "0.2", "c", "0.3"]
        result = await refine_loop(
            judged(*script), "x", evaluator=judge, max_iterations=2
        )
        assert result.cost == TokenUsage(60, 12, 6)
        provider = judged(*script)
        with pytest.raises(BudgetExhaustedError) as caught:
            await refine_loop(
                provider, "x", evaluator=judge, max_cost=TokenUsage(llm_calls=5)
            )
        assert len(provider.requests) == caught.value.cost.llm_calls == 5
        assert caught.value.metadata["best_text"] == "b"
        assert caught.value.metadata["unjudged_text"] == "c"

    @pytest.mark.req("refine.judge-fails")
    async def test_its_failing_model_call_loses_no_draft(self) -> None:
        async def judge(text: str, provider: Any) -> float:
            await provider.complete([{"role": "user", "content": text}])
            return 0.0

        result = await refine_loop(
            judged("draft", PermanentError("HTTP 400")), "x", evaluator=judge
        )
        assert (result.value, result.score) == ("draft", None)
        assert result.metadata["stop_reason"] == "evaluator_failed"

    @pytest.mark.req("refine.custom-fails")
    async def test_a_pattern_that_fails_inside_of_it_is_its_failure(self) -> None:
        """And the facts of the inner run do not hide those of the outer one."""

        async def panel(text: str, provider: Any) -> float:
            result = await consensus(provider, text, strategy="unanimous")
            return float(result.value)

        script = ["draft", "0.1", "0.2", "0.3", "0.4", "0.5"]
        with pytest.raises(EvaluatorError, match="ConsensusFailedError") as caught:
            await refine_loop(judged(*script), "x", evaluator=panel)
        assert isinstance(caught.value.__cause__, ConsensusFailedError)
        assert caught.value.cost == TokenUsage(60, 12, 6)
        assert caught.value.metadata["best_text"] == "draft"

    @pytest.mark.req("patterns.nested")
    async def test_a_pattern_inside_of_it_is_booked_once(self) -> None:
        async def panel(text: str, provider: Any) -> float:
            result = await consensus(provider, text, num_samples=3)
            return float(result.value)

        kit = Kit(judged("draft", "1.0", "1.0", "1.0"))
        result = await kit.refine("x", evaluator=panel)
        assert result.cost == kit.usage == TokenUsage(40, 8, 4)

    @pytest.mark.req("patterns.nested")
    async def test_an_inner_error_keeps_no_fact_that_the_outer_run_states(self) -> None:
        async def inner(text: str, provider: Any) -> float:
            result = await refine_loop(provider, text, evaluator=Scores(0.9))
            await provider.complete([])
            return result.score or 0.0

        script = ["outer draft", "inner draft", "x"]
        with pytest.raises(BudgetExhaustedError) as caught:
            await refine_loop(
                judged(*script), "x", evaluator=inner, max_cost=TokenUsage(llm_calls=2)
            )
        assert caught.value.metadata["best_text"] == "outer draft"

    @pytest.mark.req("refine.sync-evaluator")
    async def test_it_need_not_be_async(self) -> None:
        evaluator: Any = lambda text, _provider: 1.0 if text else 0.0  # noqa: E731
        assert (await refine_loop(drafts(), "x", evaluator=evaluator)).score == 1.0

    async def test_its_own_cancellation_passes(self) -> None:
        with pytest.raises(asyncio.CancelledError):
            await refine_loop(drafts(), "x", evaluator=Scores(asyncio.CancelledError()))


class TestDraftFails:
    @pytest.mark.req("D-03", "D-43", "refine.draft-fails")
    async def test_the_best_draft_is_on_the_error(self) -> None:
        provider = judged("first", PermanentError("HTTP 400"))
        with pytest.raises(PermanentError) as caught:
            await refine_loop(provider, "x", evaluator=Scores(0.85))
        assert caught.value.metadata["best_text"] == "first"
        assert caught.value.metadata["best_score"] == 0.85
        assert caught.value.cost == TokenUsage(10, 2, 2)
        assert "unjudged_text" not in caught.value.metadata

    @pytest.mark.req("D-43", "refine.draft-fails")
    async def test_a_budget_that_ends_after_a_good_draft_does_not_lose_it(self) -> None:
        """D-43: a draft of 0.89 is on the error."""
        with pytest.raises(BudgetExhaustedError) as caught:
            await refine_loop(
                drafts(), "x", evaluator=Scores(0.89), max_cost=TokenUsage(llm_calls=1)
            )
        assert caught.value.metadata["best_text"] == "draft 1"
        assert caught.value.metadata["budget"] == TokenUsage(llm_calls=1)

    @pytest.mark.req("refine.draft-fails")
    async def test_without_any_draft_there_is_none_to_carry(self) -> None:
        with pytest.raises(PermanentError) as caught:
            await refine_loop(judged(PermanentError("HTTP 400")), "x")
        assert caught.value.metadata == {}


class TestCheckpoints:
    @pytest.mark.req("refine.checkpoints")
    async def test_each_judged_draft_is_reported(self) -> None:
        seen: list[Any] = []
        await refine_loop(
            drafts(),
            "x",
            evaluator=Scores(0.5, 0.4, 0.95),
            on_checkpoint=lambda index, state: seen.append((index, state)),
        )
        assert seen == [
            (
                number,
                {
                    "iteration": number,
                    "current_text": f"draft {number + 1}",
                    "current_score": score,
                    "cost": {
                        "input_tokens": 10 * (number + 1),
                        "output_tokens": 2 * (number + 1),
                        "llm_calls": number + 1,
                    },
                },
            )
            for number, score in enumerate([0.5, 0.4, 0.95])
        ]

    @pytest.mark.req("patterns.checkpoints")
    async def test_a_failing_checkpoint_changes_nothing(self) -> None:
        async def broken(_index: int, _state: dict[str, Any]) -> None:
            raise OSError("disk full")

        result = await refine_loop(
            drafts(), "x", evaluator=Scores(1.0), on_checkpoint=broken
        )
        assert result.value == "draft 1"


class TestDeadlineAndCancellation:
    @pytest.mark.parametrize("where", ["evaluator", "checkpoint"])
    @pytest.mark.req("patterns.deadline")
    async def test_the_deadline_bounds_evaluators_and_checkpoints(
        self, where: str, fake_clock: FakeClock
    ) -> None:
        async def hang(*_: Any) -> float:
            if where == "evaluator":
                await asyncio.Event().wait()
            return 0.5

        async def checkpoint(_index: int, _state: dict[str, Any]) -> None:
            await asyncio.Event().wait()

        async with execution_scope(ExecutionContext().with_timeout(2.0)):
            task = asyncio.create_task(
                refine_loop(drafts(), "x", evaluator=hang, on_checkpoint=checkpoint)
            )
        await fake_clock.advance(2.0)
        with pytest.raises(DeadlineExceededError) as caught:
            await task
        assert caught.value.metadata["best_text"] == "draft 1"
        assert caught.value.cost == TokenUsage(10, 2, 1)

    @pytest.mark.req("patterns.deadline", "refine.judge-fails")
    async def test_a_deadline_in_the_judges_call_is_no_failing_judge(
        self, fake_clock: FakeClock
    ) -> None:
        async def answer(request: Request) -> str:
            if request.number == 2:
                await asyncio.Event().wait()
            return "draft"

        async with execution_scope(ExecutionContext().with_timeout(2.0)):
            task = asyncio.create_task(refine_loop(ScriptedProvider(answer), "x"))
        await fake_clock.advance(2.0)
        with pytest.raises(DeadlineExceededError) as caught:
            await task
        assert caught.value.metadata["best_text"] == "draft"

    @pytest.mark.req("patterns.deadline")
    async def test_the_runs_deadline_is_no_failing_judge_whichever_timer_is_first(
        self, fake_clock: FakeClock
    ) -> None:
        async def late(_text: str, _provider: object) -> float:
            fake_clock._now += 5.0  # no timer has fired yet
            raise DeadlineExceededError("late")

        async with execution_scope(ExecutionContext().with_timeout(2.0)):
            with pytest.raises(DeadlineExceededError, match="late"):
                await refine_loop(drafts(), "x", evaluator=late)

    @pytest.mark.req("refine.judge-fails")
    async def test_a_deadline_of_the_evaluators_own_is_a_failing_judge(
        self, auto_clock: FakeClock
    ) -> None:
        async def answer(request: Request) -> str:
            if request.number == 2:
                await asyncio.Event().wait()
            return "draft"

        async def impatient(text: str, provider: Any) -> float:
            async with execution_scope(ExecutionContext().with_timeout(1.0)):
                await provider.complete([{"role": "user", "content": text}])
            return 1.0

        async with execution_scope(ExecutionContext().with_timeout(60.0)):
            result = await refine_loop(
                ScriptedProvider(answer), "x", evaluator=impatient
            )
        assert (result.value, result.score) == ("draft", None)
        assert "DeadlineExceededError" in result.metadata["evaluator_error"]

    @pytest.mark.req("patterns.cancel")
    @pytest.mark.parametrize("again_after", [None, 1])
    async def test_cancelled_anywhere_it_leaves_nothing_and_books_once(
        self, everywhere: Any, again_after: int | None
    ) -> None:
        def make() -> Any:
            open_calls = replied = 0

            async def answer(request: Request) -> str:
                nonlocal replied
                await settle(2)
                replied += 1
                return f"0.{request.number}"

            async def judge(text: str, provider: Any) -> float:
                await asyncio.sleep(0)
                response = await provider.complete([{"role": "user", "content": text}])
                return float(response.content)

            async def sink(event: TraceEvent) -> None:
                nonlocal open_calls
                open_calls += CHANGE.get(event.kind, 0)
                await asyncio.sleep(0)

            async def checkpoint(_index: int, _state: dict[str, Any]) -> None:
                await asyncio.sleep(0)

            provider = ScriptedProvider(answer, usage=USAGE)
            kit = Kit(provider)

            def check(_cancelled: bool) -> None:
                assert (provider.active, open_calls) == (0, 0)
                assert kit.usage == TokenUsage(
                    10 * replied, 2 * replied, len(provider.requests)
                )

            run = kit.refine(
                "x",
                evaluator=judge,
                max_iterations=2,
                trace=sink,
                on_checkpoint=checkpoint,
            )
            return run, check

        assert await everywhere(make, again_after=again_after) > 10
