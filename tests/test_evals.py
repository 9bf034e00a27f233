"""Evals: verdicts, suites, trials, what the numbers mean, and what is written."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
import xml.etree.ElementTree as ET
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit import (
    ConversationScript,
    EvalCase,
    EvalProgress,
    EvalReport,
    EvalResult,
    EvalTrial,
    ExecutionContext,
    Kit,
    PatternResult,
    Provider,
    ProviderError,
    TokenUsage,
    Turn,
    compare_reports,
    consensus,
    execution_scope,
    live_provider_from_env,
    run_conversation_script,
    run_eval_suite,
)
from executionkit.cost import collecting_lost_cost
from executionkit.evals import (
    LIVE_EVAL_MIN_ACCURACY,
    TrialResult,
    bootstrap_interval,
    mcnemar_exact,
    pass_at_k,
    pass_hat_k,
    read_jsonl,
    wilson_interval,
)
from executionkit.testing import FakeClock, ScriptedProvider, settle

if TYPE_CHECKING:
    from collections.abc import Callable

ONE = TokenUsage(10, 2, 1)


def case(name: str, value: Any = 1, check: Any = lambda _value: None) -> EvalCase:
    return EvalCase(name, lambda: value, check)


def fails(_value: Any) -> str:
    return "no good"


async def only(*cases: EvalCase, **options: Any) -> EvalResult:
    report = await run_eval_suite(cases, **options)
    assert report.total == 1
    return report.results[0]


def results(*passed: bool) -> EvalReport:
    return EvalReport(
        tuple(
            EvalResult(f"c{n}", ok, trials=(TrialResult(ok),))
            for n, ok in enumerate(passed)
        )
    )


class Maybe:
    """Neither True nor False, but as good as one of them."""

    def __init__(self, *, truth: bool) -> None:
        self.truth = truth

    def __bool__(self) -> bool:
        return self.truth

    def __repr__(self) -> str:
        return f"Maybe({self.truth})"


@pytest.mark.req("evals.verdicts")
class TestVerdicts:
    @pytest.mark.req("D-31")
    @pytest.mark.parametrize(
        ("verdict", "passed", "reason"),
        [
            (None, True, "passed"),
            (True, True, "passed"),
            ("", True, "passed"),
            (1, True, "passed"),
            (Maybe(truth=True), True, "passed"),
            (False, False, "check returned False"),
            (0, False, "check returned 0"),
            (Maybe(truth=False), False, "check returned Maybe(False)"),
            ("too short", False, "too short"),
        ],
    )
    @pytest.mark.parametrize("is_async", [False, True])
    async def test_a_check_accepts_or_says_why_not(
        self, verdict: Any, passed: bool, reason: str, is_async: bool
    ) -> None:
        async def later(_value: Any) -> Any:
            await asyncio.sleep(0)
            return verdict

        check = later if is_async else lambda _value: verdict
        result = await only(case("a", check=check))
        assert (result.passed, result.reason) == (passed, reason)

    async def test_run_may_be_sync_or_async_and_its_value_is_checked(self) -> None:
        async def later() -> int:
            return 2

        seen: list[Any] = []
        report = await run_eval_suite(
            [
                EvalCase("sync", lambda: 1, seen.append),
                EvalCase("async", later, seen.append),
                EvalCase("closure", lambda n=3: n, seen.append),
            ]
        )
        assert report.passed
        assert seen == [1, 2, 3]

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (ValueError("bad"), "ValueError: bad"),
            (KeyError(), "KeyError"),
            (asyncio.CancelledError(), "CancelledError"),
            (TimeoutError("own"), "TimeoutError: own"),
            (
                OSError("key sk-abcdefghijklmnopqrstuvwx123456 refused"),
                "OSError: key [REDACTED] refused",
            ),
        ],
    )
    async def test_an_exception_is_a_failure_and_the_suite_goes_on(
        self, error: BaseException, reason: str
    ) -> None:
        def boom(*_args: Any) -> Any:
            raise error

        report = await run_eval_suite(
            [EvalCase("run", boom, lambda _v: None), case("check", 1, boom), case("c")]
        )
        assert [result.passed for result in report.results] == [False, False, True]
        assert [result.reason for result in report.failures] == [reason, reason]

    async def test_the_verdict_of_a_model_counts_with_its_cost(self) -> None:
        async def judge(_value: Any) -> PatternResult[str]:
            return PatternResult("off topic", cost=ONE)

        result = await only(case("a", PatternResult("x", cost=ONE), judge))
        assert (result.passed, result.reason) == (False, "off topic")
        assert result.cost == ONE + ONE

    def test_interrupts_are_no_failures(self) -> None:
        def stop() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            asyncio.run(run_eval_suite([EvalCase("a", stop, fails)]))


@pytest.mark.req("evals.report")
class TestReports:
    def test_it_counts(self) -> None:
        report = results(*[True] * 7, False, False)
        assert (report.total, report.passed_count, report.failed_count) == (9, 7, 2)
        assert [result.name for result in report.failures] == ["c7", "c8"]
        assert report.accuracy == pytest.approx(7 / 9)
        assert report.summary() == "7/9 passed (77.8% accuracy)"
        assert not report.passed
        assert results(True, True).passed

    @pytest.mark.parametrize(
        ("least", "enough"), [(None, False), (0.7, True), (7 / 9, True), (0.8, False)]
    )
    def test_what_is_enough(self, least: float | None, enough: bool) -> None:
        done = results(*[True] * 7, False, False).results
        assert EvalReport(done, least).accuracy_passed is enough
        assert results(True).accuracy_passed

    @pytest.mark.req("D-31")
    async def test_nothing_run_is_nothing_passed(self) -> None:
        report = await run_eval_suite([])
        assert (report.total, report.accuracy, report.passed) == (0, 0.0, False)
        assert not report.accuracy_passed
        assert report.summary() == "0/0 passed (0.0% accuracy)"

    def test_values_can_be_kept(self) -> None:
        report = results(True, False)
        assert pickle.loads(pickle.dumps(report)) == report
        result = EvalResult("a", True, "passed", {"n": [1]})
        assert result == EvalResult(
            "a", passed=True, reason="passed", metadata={"n": [1]}
        )
        assert result.pass_rate == 1.0
        with pytest.raises(TypeError):
            result.metadata["n"].append(2)


@pytest.mark.req("evals.suite")
class TestSuites:
    async def test_cases_run_one_after_another_in_their_order(self) -> None:
        log: list[str] = []

        def run(name: str) -> Callable[[], Any]:
            async def body() -> None:
                log.append(f"+{name}")
                await settle(3)
                log.append(f"-{name}")

            return body

        report = await run_eval_suite(
            [EvalCase(name, run(name), lambda _v: None, {"n": name}) for name in "ab"],
            min_accuracy=0.5,
        )
        assert log == ["+a", "-a", "+b", "-b"]
        assert [result.metadata for result in report.results] == [
            {"n": "a"},
            {"n": "b"},
        ]
        assert report.min_accuracy == 0.5

    async def test_no_more_run_at_once_than_allowed(self) -> None:
        now = peak = 0

        async def run() -> None:
            nonlocal now, peak
            now += 1
            peak = max(peak, now)
            await settle(3)
            now -= 1

        cases = [EvalCase(f"c{n}", run, lambda _v: None) for n in range(6)]
        report = await run_eval_suite(cases, max_concurrency=4, trials=3)
        assert peak == 4
        assert [result.name for result in report.results] == [f"c{n}" for n in range(6)]

    async def test_costs_come_together(self) -> None:
        provider = ScriptedProvider(
            ["a", "b"] * 2, usage={"prompt_tokens": 5, "completion_tokens": 1}
        )

        def boom() -> None:
            raise ProviderError("x", cost=ONE)

        def unanimous() -> Any:
            return consensus(provider, "?", num_samples=2, strategy="unanimous")

        def voted() -> Any:
            return consensus(provider, "?", num_samples=2)

        report = await run_eval_suite(
            [
                EvalCase("error", boom, fails),
                EvalCase("failed", unanimous, fails),
                EvalCase("check", voted, fails),
            ]
        )
        two = TokenUsage(10, 2, 2)
        assert [result.cost for result in report.results] == [ONE, two, two]
        assert report.cost == ONE + two + two

    async def test_a_trial_has_its_limit(self, auto_clock: FakeClock) -> None:
        async def slow(_value: Any = None) -> None:
            await auto_clock.sleep(100)

        report = await run_eval_suite(
            [EvalCase("run", slow, fails), case("check", 1, slow)], timeout=5
        )
        assert {result.reason for result in report.results} == {"timed out after 5s"}
        assert [result.duration for result in report.results] == [5, 5]

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"cases": [1]}, TypeError),
            ({"min_accuracy": 1.5}, ValueError),
            ({"min_accuracy": -1}, ValueError),
            ({"trials": 0}, ValueError),
            ({"max_concurrency": 0}, ValueError),
            ({"timeout": 0}, ValueError),
            ({"max_cost": 3}, TypeError),
            ({"on_progress": 3}, TypeError),
        ],
    )
    async def test_what_cannot_work_is_refused_before_anything_runs(
        self, options: dict[str, Any], error: type[Exception]
    ) -> None:
        ran: list[int] = []
        cases = [EvalCase("a", lambda: ran.append(1), fails)]
        with pytest.raises(error):
            await run_eval_suite(options.pop("cases", cases), **options)
        assert not ran

    def test_cases_are_checked(self) -> None:
        with pytest.raises(TypeError, match="name"):
            EvalCase(1, print, fails)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="run of 'a'"):
            EvalCase("a", 1, fails)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="check of 'a'"):
            EvalCase("a", print, True)  # type: ignore[arg-type]

    async def test_a_cancellation_ends_what_is_in_flight(self) -> None:
        ended: list[int] = []
        lost: list[TokenUsage] = []

        async def endless(trial: EvalTrial) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(trial.number)

        cases = [
            case("paid", PatternResult(1, cost=ONE)),
            EvalCase("endless", endless, fails),
        ]
        with collecting_lost_cost(lost.append):
            task = asyncio.create_task(
                run_eval_suite(cases, trials=2, max_concurrency=2)
            )
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sorted(ended) == [0, 1]
        assert lost == [ONE + ONE]

    async def test_a_case_that_cancels_its_task_has_failed(self) -> None:
        async def odd() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

        report = await run_eval_suite([EvalCase("odd", odd, fails), case("b")])
        assert [result.passed for result in report.results] == [False, True]


@pytest.mark.req("evals.trials")
class TestTrials:
    async def test_a_case_passes_when_every_trial_does(self) -> None:
        def run(trial: EvalTrial) -> int:
            return trial.number

        def check(value: int) -> str:
            return f"{value} is odd" if value % 2 else ""

        result = await only(EvalCase("a", run, check), trials=5)
        assert not result.passed
        assert result.reason == "2 of 5 trials failed; the first: 1 is odd"
        assert [trial.passed for trial in result.trials] == [True, False] * 2 + [True]
        assert result.pass_rate == pytest.approx(0.6)
        assert (await only(EvalCase("b", run, lambda _v: None), trials=3)).passed

    @pytest.mark.req("evals.seeds")
    async def test_seeds_depend_on_nothing_but_suite_case_and_trial(self) -> None:
        def seeds_of(report: EvalReport) -> dict[str, list[int]]:
            return {r.name: [t.seed for t in r.trials] for r in report.results}

        def run(trial: EvalTrial) -> int:
            return trial.seed

        cases = [EvalCase(name, run, lambda _v: None) for name in "abc"]
        first = seeds_of(await run_eval_suite(cases, trials=4))
        again = seeds_of(await run_eval_suite(cases[::-1], trials=4, max_concurrency=5))
        other = seeds_of(await run_eval_suite(cases, trials=4, seed=1))
        assert first == again
        assert first["a"] == [1252016353, *first["a"][1:]]
        every = [seed for seeds in (*first.values(), *other.values()) for seed in seeds]
        assert len(set(every)) == len(every)
        assert all(0 <= seed < 2**31 for seed in every)

    def test_pass_hat_and_pass_at_are_the_shares_of_all_choices(self) -> None:
        for trials in range(1, 7):
            for passes in range(trials + 1):
                for k in range(1, trials + 1):
                    outcomes = [n < passes for n in range(trials)]
                    choices = list(combinations(outcomes, k))
                    every = sum(map(all, choices)) / len(choices)
                    some = sum(map(any, choices)) / len(choices)
                    assert pass_hat_k(trials, passes, k) == pytest.approx(every)
                    assert pass_at_k(trials, passes, k) == pytest.approx(some)

    def test_the_report_takes_the_mean_over_cases(self) -> None:
        def result(passes: int) -> EvalResult:
            trials = tuple(TrialResult(n < passes) for n in range(4))
            return EvalResult("c", passes == 4, trials=trials)

        report = EvalReport((result(4), result(2), result(0)))
        assert report.pass_hat(1) == pytest.approx(0.5)
        assert report.pass_hat(2) == pytest.approx((1 + 1 / 6) / 3)
        assert report.pass_at(2) == pytest.approx((1 + 5 / 6) / 3)
        with pytest.raises(ValueError, match="k=5"):
            report.pass_hat(5)
        with pytest.raises(ValueError, match="no results"):
            EvalReport(()).pass_at(1)
        for bad in ((0, 0, 1), (2, 3, 1), (2, 1, 0)):
            with pytest.raises(ValueError, match=r"trials|k must"):
                pass_hat_k(*bad)


@pytest.mark.req("evals.intervals")
class TestIntervals:
    @pytest.mark.parametrize(
        ("successes", "total", "confidence", "low", "high"),
        [
            # R: prop.test(x, n, conf.level, correct = FALSE)$conf.int
            (8, 10, 0.95, 0.4901625, 0.9433178),
            (0, 10, 0.95, 0.0, 0.2775328),
            (10, 10, 0.95, 0.7224672, 1.0),
            (50, 100, 0.95, 0.4038315, 0.5961685),
            (0, 0, 0.95, 0.0, 1.0),
        ],
    )
    def test_known_values(
        self, successes: int, total: int, confidence: float, low: float, high: float
    ) -> None:
        got = wilson_interval(successes, total, confidence=confidence)
        assert got == pytest.approx((low, high), abs=1e-6)

    @given(
        st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
        st.floats(0.5, 0.999),
    )
    def test_they_solve_the_score_equation(
        self, counts: tuple[int, int], confidence: float
    ) -> None:
        """Both ends are as far from the rate as the score test just allows."""
        from statistics import NormalDist

        total, successes = counts
        rate = successes / total
        z = NormalDist().inv_cdf((1 + confidence) / 2)
        low, high = wilson_interval(successes, total, confidence=confidence)
        assert 0 <= low <= rate <= high <= 1
        for end in (low, high):
            spread = z * math.sqrt(end * (1 - end) / total)
            if 0 < end < 1:
                assert abs(rate - end) == pytest.approx(spread, abs=1e-9)

    def test_the_report_takes_cases_for_the_unit(self) -> None:
        report = results(*[True] * 8, False, False)
        assert report.interval() == wilson_interval(8, 10)
        assert report.interval(confidence=0.5) == wilson_interval(8, 10, confidence=0.5)

    @pytest.mark.parametrize("args", [(3, 2), (-1, 2), (1, -1)])
    def test_counts_make_sense(self, args: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match=r"successes|total"):
            wilson_interval(*args)
        for confidence in (0, 1, 2, math.nan):
            with pytest.raises(ValueError, match="confidence"):
                wilson_interval(1, 2, confidence=confidence)

    def test_the_bootstrap_repeats_itself(self) -> None:
        values = [0.0, 1.0, 0.5, 0.25] * 10
        first = bootstrap_interval(values, seed=3)
        assert first == bootstrap_interval(values, seed=3)
        assert first != bootstrap_interval(values, seed=4)
        mean = sum(values) / len(values)
        assert first[0] < mean < first[1]
        spread = 1.96 * math.sqrt(sum((v - mean) ** 2 for v in values)) / len(values)
        assert first == pytest.approx((mean - spread, mean + spread), abs=0.02)
        narrow = bootstrap_interval(values, confidence=0.5)
        assert narrow[1] - narrow[0] < first[1] - first[0]
        assert bootstrap_interval([2.0]) == (2.0, 2.0)
        with pytest.raises(ValueError, match="empty"):
            bootstrap_interval([])
        with pytest.raises(ValueError, match="resamples"):
            bootstrap_interval([1.0], resamples=10)


@pytest.mark.req("evals.compare")
class TestComparisons:
    @pytest.mark.parametrize(
        ("first", "second", "p"),
        [
            # R: binom.test(min(b, c), b + c)$p.value
            (0, 0, 1.0),
            (1, 0, 1.0),
            (0, 6, 0.03125),
            (1, 9, 0.02148438),
            (5, 5, 1.0),
            (12, 3, 0.03515625),
        ],
    )
    def test_mcnemar_is_a_fair_coin(self, first: int, second: int, p: float) -> None:
        assert mcnemar_exact(first, second) == pytest.approx(p, abs=1e-8)
        assert mcnemar_exact(second, first) == mcnemar_exact(first, second)

    def test_many_pairs_do_not_overflow(self) -> None:
        assert mcnemar_exact(2000, 2000) == 1.0
        assert mcnemar_exact(1900, 2100) == pytest.approx(0.00166, abs=1e-4)

    def test_cases_are_paired_by_name(self) -> None:
        first = EvalReport(
            (
                *results(True, True, False, False).results,
                EvalResult("gone", passed=True),
            )
        )
        second = EvalReport(
            (
                EvalResult("new", passed=True),
                *reversed(results(True, False, True, False).results),
            )
        )
        found = compare_reports(first, second)
        assert (found.both, found.only_first, found.only_second, found.neither) == (
            1,
            1,
            1,
            1,
        )
        assert (found.improved, found.broken) == (("c2",), ("c1",))
        assert found.unpaired == ("gone", "new")
        assert found.total == 4
        assert found.difference == 0.0
        assert found.p_value == 1.0
        assert not found.is_significant

    def test_a_clear_difference_is_seen(self) -> None:
        found = compare_reports(results(*[False] * 10), results(*[True] * 10))
        assert found.is_significant
        assert found.p_value == pytest.approx(2 / 2**10)
        assert (found.difference, found.interval) == (1.0, (1.0, 1.0))
        assert found.summary() == (
            "second - first: +100.0% [+100.0%, +100.0%] over 10 cases; 10 improved, "
            "0 broken, p = 0.00195"
        )
        back = compare_reports(results(*[True] * 10), results(*[False] * 10))
        assert back.difference == -1.0

    def test_shares_of_trials_count_in_the_difference(self) -> None:
        def report(*passes: int) -> EvalReport:
            return EvalReport(
                tuple(
                    EvalResult(
                        f"c{n}",
                        count == 4,
                        trials=tuple(TrialResult(k < count) for k in range(4)),
                    )
                    for n, count in enumerate(passes)
                )
            )

        found = compare_reports(report(1, 2, 3), report(2, 3, 3), seed=5)
        assert found.difference == pytest.approx(0.5 / 3)
        assert found.neither == 3
        assert found == compare_reports(report(1, 2, 3), report(2, 3, 3), seed=5)

    def test_what_cannot_be_paired_is_refused(self) -> None:
        twice = EvalReport((EvalResult("a", passed=True), EvalResult("a", passed=True)))
        with pytest.raises(ValueError, match=r"more than once: \['a'\]"):
            compare_reports(twice, results(True))
        with pytest.raises(ValueError, match="no case in common"):
            compare_reports(EvalReport((EvalResult("x", passed=True),)), results(True))
        with pytest.raises(ValueError, match="confidence"):
            compare_reports(results(True), results(True), confidence=1)


@pytest.mark.req("evals.budget")
class TestStopping:
    async def test_results_up_to_the_budget_are_kept(self) -> None:
        ran: list[str] = []

        def run(name: str) -> Callable[[], Any]:
            def body() -> PatternResult[int]:
                ran.append(name)
                return PatternResult(1, cost=ONE)

            return body

        cases = [EvalCase(name, run(name), lambda _v: None) for name in "abcd"]
        report = await run_eval_suite(
            cases, trials=2, max_cost=TokenUsage(llm_calls=5), min_accuracy=0.1
        )
        assert ran == ["a", "a", "b", "b", "c"]
        assert [result.name for result in report.results] == ["a", "b"]
        assert [(r.name, len(r.trials)) for r in report.partial] == [("c", 1)]
        assert report.not_run == ("d",)
        assert report.stopped == "budget"
        assert report.cost.llm_calls == 5
        assert report.accuracy == 1.0
        assert not report.passed
        assert not report.accuracy_passed
        assert report.summary() == (
            "2/2 passed (100.0% accuracy); stopped (budget) with 2 cases left"
        )

    async def test_a_budget_that_is_just_enough_stops_nothing(self) -> None:
        paid = case("a", PatternResult(1, cost=ONE))
        report = await run_eval_suite([paid], max_cost=TokenUsage(llm_calls=1))
        assert report.passed
        assert not report.stopped

    async def test_the_deadline_stops_too(self, auto_clock: FakeClock) -> None:
        async def run() -> None:
            await auto_clock.sleep(2)

        cases = [EvalCase(f"c{n}", run, lambda _v: None) for n in range(4)]
        with execution_scope(ExecutionContext.with_deadline(5)):
            report = await run_eval_suite(cases)
        assert report.total == 2
        assert report.not_run == ("c2", "c3")
        assert report.stopped == "deadline"


@pytest.mark.req("evals.progress")
class TestProgress:
    @pytest.mark.parametrize("is_async", [False, True])
    async def test_each_trial_is_told(self, is_async: bool) -> None:
        seen: list[EvalProgress] = []

        async def later(progress: EvalProgress) -> None:
            seen.append(progress)

        await run_eval_suite(
            [case("a", PatternResult(1, cost=ONE)), case("b", 1, fails)],
            trials=2,
            on_progress=later if is_async else seen.append,
        )
        told = [(p.done, p.total, p.name, p.trial.passed) for p in seen]
        assert told == [
            (1, 4, "a", True),
            (2, 4, "a", True),
            (3, 4, "b", False),
            (4, 4, "b", False),
        ]
        assert [p.cost.llm_calls for p in seen] == [1, 2, 2, 2]

    async def test_who_watches_changes_nothing(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(_progress: EvalProgress) -> None:
            raise OSError("no screen")

        report = await run_eval_suite([case("a"), case("b")], on_progress=broken)
        assert report.passed
        assert len(caplog.records) == 1
        assert "no screen" in caplog.text


@pytest.mark.req("evals.output")
class TestOutput:
    async def report(self) -> EvalReport:
        def run(trial: EvalTrial) -> PatternResult[int]:
            return PatternResult(trial.number, cost=TokenUsage(1, 2, 1))

        return await run_eval_suite(
            [
                EvalCase("a", run, lambda _v: None, {"tags": ["x"]}),
                EvalCase(
                    'b <&"\n', run, lambda v: "\x00\u2028 <bad>" if v.value else ""
                ),
                EvalCase("c", run, fails),
                EvalCase("d", run, fails),
            ],
            trials=2,
            max_cost=TokenUsage(llm_calls=5),
            min_accuracy=0.9,
        )

    async def test_json_lines_go_there_and_back(self) -> None:
        report = await self.report()
        text = report.to_jsonl()
        rows = [json.loads(line) for line in text.splitlines()]
        assert [row.get("name") for row in rows] == ["a", 'b <&"\n', "c", None]
        assert rows[1]["reason"] == "1 of 2 trials failed; the first: \x00\u2028 <bad>"
        assert read_jsonl(text) == report
        assert compare_reports(report, read_jsonl(text)).difference == 0

    @pytest.mark.parametrize(
        "odd",
        [
            float("nan"),
            float("-inf"),
            pytest.param(10**5000, id="big"),
            b"x",
            {1: {b"k": 2}},
            {(1, 2): 3},
            "\ud800",
        ],
    )
    async def test_a_report_is_written_whatever_its_facts_are(self, odd: Any) -> None:
        cases = [EvalCase("a", lambda: 1, lambda _value: True, {"odd": odd})]
        report = await run_eval_suite(cases)
        for line in report.to_jsonl().splitlines():
            json.loads(line, parse_constant=pytest.fail)
        assert read_jsonl(report.to_jsonl()).results[0].passed

    async def test_junit_is_what_ci_systems_read(self) -> None:
        report = await self.report()
        root = ET.fromstring(report.to_junit(name="smoke"))
        assert root.tag == "testsuite"
        counts = {
            key: root.get(key) for key in ("name", "tests", "failures", "skipped")
        }
        assert counts == {
            "name": "smoke",
            "tests": "4",
            "failures": "1",
            "skipped": "2",
        }
        cases = list(root)
        assert [item.get("name") for item in cases] == ["a", 'b <&"\n', "c", "d"]
        assert {item.get("classname") for item in cases} == {"smoke"}
        failure = cases[1].find("failure")
        assert failure is not None
        assert str(failure.get("message")).endswith("\ufffd\u2028 <bad>")
        assert cases[0].find("failure") is None
        skipped = cases[3].find("skipped")
        assert skipped is not None
        assert skipped.get("message") == "stopped: budget"

    @given(st.text(), st.text())
    @settings(max_examples=100)
    def test_any_text_makes_sound_xml_and_json(self, name: str, reason: str) -> None:
        report = EvalReport((EvalResult(name, False, reason),))
        root = ET.fromstring(report.to_junit(name=name))
        assert len(root) == 1
        assert len(report.to_jsonl().splitlines()) == 2

    def test_secrets_are_hidden(self) -> None:
        key = "sk-abcdefghijklmnopqrstuvwx123456"
        report = EvalReport(
            (EvalResult("a", False, f"sent {key}", {"api_key": key, "x": object()}),)
        )
        assert key not in report.to_jsonl()
        assert key not in report.to_junit()

    @pytest.mark.parametrize("line", ["{", "[]", "{}", '{"kind": "case"}'])
    def test_what_is_no_report_is_refused_with_its_line(self, line: str) -> None:
        with pytest.raises(ValueError, match="line 2"):
            read_jsonl(f"\n{line}\n")


@pytest.mark.req("evals.conversation")
class TestConversations:
    async def test_each_turn_is_judged_and_none_stops_the_others(self) -> None:
        provider = ScriptedProvider(
            ["hello", ProviderError("down"), "bye"],
            usage={"prompt_tokens": 1, "completion_tokens": 1},
        )
        script = ConversationScript(
            "chat",
            (
                Turn("hi", lambda result: str(result) == "hello"),
                Turn("how?", lambda _r: None),
                Turn("ciao", lambda result: result.value == "bye"),
            ),
        )
        from executionkit import RetryConfig

        kit = Kit(provider)
        report = await run_conversation_script(
            script, kit, retry=RetryConfig(max_retries=0)
        )
        assert [result.name for result in report.results] == [
            "chat[0]",
            "chat[1]",
            "chat[2]",
        ]
        assert [result.passed for result in report.results] == [True, False, True]
        assert report.failures[0].reason == "ProviderError: down"
        assert report.cost == kit.usage
        said = [message["content"] for message in provider.requests[2].messages]
        assert said == ["hi", "hello", "ciao"]

    async def test_checks_may_be_async(self) -> None:
        async def check(result: PatternResult[str]) -> str:
            return "" if result.value == "hello" else "rude"

        script = ConversationScript("chat", (Turn("hi", check), Turn("hi", check)))
        report = await run_conversation_script(
            script, Kit(ScriptedProvider(["hello", "what"]))
        )
        assert [result.reason for result in report.results] == ["passed", "rude"]

    def test_scripts_are_checked(self) -> None:
        with pytest.raises(TypeError):
            Turn(1, fails)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            Turn("hi", None)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            ConversationScript(1, ())  # type: ignore[arg-type]


@pytest.mark.req("evals.live")
class TestLive:
    def test_they_are_off_unless_switched_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert LIVE_EVAL_MIN_ACCURACY == 0.9
        for value in ("", "0", "true"):
            monkeypatch.setenv("EXECUTIONKIT_LIVE_EVAL", value)
            assert live_provider_from_env() is None
        monkeypatch.delenv("EXECUTIONKIT_LIVE_EVAL")
        assert live_provider_from_env() is None

    def test_what_is_missing_is_named(self) -> None:
        on = {"EXECUTIONKIT_LIVE_EVAL": "1"}
        with pytest.raises(ValueError, match="BASE_URL, EXECUTIONKIT_MODEL"):
            live_provider_from_env(environ=on)
        with pytest.raises(ValueError, match="MODEL") as caught:
            live_provider_from_env(environ={**on, "EXECUTIONKIT_BASE_URL": "http://h"})
        assert "BASE_URL" not in str(caught.value)

    def test_the_provider_is_the_one_of_the_environment(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("EXECUTIONKIT_LIVE_EVAL", "1")
        monkeypatch.setenv("EXECUTIONKIT_BASE_URL", "http://localhost:1/v1")
        monkeypatch.setenv("EXECUTIONKIT_MODEL", "tiny")
        monkeypatch.delenv("EXECUTIONKIT_API_KEY", raising=False)
        assert live_provider_from_env() == Provider("http://localhost:1/v1", "tiny")
        monkeypatch.setenv("EXECUTIONKIT_API_KEY", "key")
        keyed = Provider("http://localhost:1/v1", "tiny", "key")
        assert live_provider_from_env() == keyed
