"""Plans: what is promised by name, number and message."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from executionkit.errors import ErrorCategory, ToolProcessorError
from executionkit.tools.scheduling import (
    ExecutionPlan,
    GreedyDagScheduler,
    PlanError,
    SchedulerPolicy,
    SchedulingConstraints,
    SkipCause,
    SkipReason,
    ToolCallSpec,
    ToolMetadata,
)


def spec(
    call_id: str, *needs: str, timeout: int | None = None, **metadata: Any
) -> ToolCallSpec:
    return ToolCallSpec(
        call_id,
        "tool",
        metadata=ToolMetadata(**metadata),
        depends_on=needs,
        timeout_ms=timeout,
    )


def plan(
    *calls: ToolCallSpec, scheduler: GreedyDagScheduler | None = None, **limits: Any
) -> ExecutionPlan:
    return (scheduler or GreedyDagScheduler()).plan(
        calls, SchedulingConstraints(**limits)
    )


def causes(made: ExecutionPlan) -> dict[str, str]:
    assert tuple(reason.call_id for reason in made.skip_reasons) == made.skip
    return {reason.call_id: reason.reason for reason in made.skip_reasons}


def document_calls() -> list[ToolCallSpec]:
    return [
        ToolCallSpec(
            call_id="fetch-users",
            tool_name="web.fetch",
            args={"url": "/api/users"},
            metadata=ToolMetadata(pool="web", est_ms=300, priority=10),
        ),
        ToolCallSpec(
            call_id="fetch-orders",
            tool_name="web.fetch",
            args={"url": "/api/orders"},
            metadata=ToolMetadata(pool="web", est_ms=300, priority=10),
        ),
        ToolCallSpec(
            call_id="transform",
            tool_name="compute.transform",
            depends_on=("fetch-users", "fetch-orders"),
            metadata=ToolMetadata(pool="compute", est_ms=500, priority=10),
        ),
        ToolCallSpec(
            call_id="store",
            tool_name="db.write",
            depends_on=("transform",),
            metadata=ToolMetadata(pool="db", est_ms=200, priority=10),
        ),
        ToolCallSpec(
            call_id="analytics",
            tool_name="analytics.log",
            depends_on=("store",),
            metadata=ToolMetadata(pool="analytics", est_ms=100, priority=0),
        ),
    ]


class TestExample:
    @pytest.mark.req("plan.example")
    def test_the_example_of_the_document_gives_its_plan(self) -> None:
        made = GreedyDagScheduler().plan(
            document_calls(),
            SchedulingConstraints(
                deadline_ms=1500,
                max_cost=1.0,
                pool_limits={"web": 2, "db": 1, "compute": 1},
            ),
        )
        assert made.stages == (
            ("fetch-users", "fetch-orders"),
            ("transform",),
            ("store",),
        )
        assert made.skip == ("analytics",)
        assert causes(made) == {"analytics": "deadline_exceeded"}
        assert made.per_call_timeout_ms == {
            "fetch-users": 450,
            "fetch-orders": 450,
            "transform": 750,
            "store": 300,
        }
        assert made.critical_path_ms == 1000
        assert made.estimated_total_ms == 1000
        assert made.pool_utilization == {"web": 2, "compute": 1, "db": 1}
        assert made.total_stages == 3
        assert made.all_scheduled_calls == {
            "fetch-users",
            "fetch-orders",
            "transform",
            "store",
        }

    @pytest.mark.req("plan.example")
    def test_with_more_time_nothing_of_it_is_skipped(self) -> None:
        made = GreedyDagScheduler().plan(
            document_calls(),
            SchedulingConstraints(deadline_ms=1750, pool_limits={"web": 2}),
        )
        assert made.skip == ()
        assert made.stages[-1] == ("analytics",)

    @pytest.mark.req("plan.protocol")
    def test_a_policy_of_the_user_needs_no_base_class(self) -> None:
        class Own:
            def plan(
                self, calls: Any, constraints: Any, context: Any = None
            ) -> ExecutionPlan:
                return ExecutionPlan(stages=(tuple(c.call_id for c in calls),))

        own: SchedulerPolicy = Own()
        assert isinstance(own, SchedulerPolicy)
        assert isinstance(GreedyDagScheduler(), SchedulerPolicy)
        made = own.plan(document_calls()[:2], SchedulingConstraints(), {"a": 1})
        assert made.stages == (("fetch-users", "fetch-orders"),)
        assert made.skip == ()
        assert made.critical_path_ms is None
        assert made.estimated_total_ms is None

    def test_no_calls_make_an_empty_plan(self) -> None:
        made = plan(deadline_ms=10, max_cost=1, pool_limits={"a": 1})
        assert made == ExecutionPlan(critical_path_ms=0, estimated_total_ms=0)
        assert plan() == made


class TestMistakes:
    @pytest.mark.req("WF-01", "plan.errors")
    def test_an_id_given_twice_is_refused_though_it_hides_a_cycle(self) -> None:
        with pytest.raises(PlanError) as caught:
            plan(spec("A", "A"), spec("A"))
        assert caught.value.details == {
            "duplicate_ids": ["A"],
            "self_dependencies": ["A"],
        }
        with pytest.raises(PlanError) as caught:
            plan(spec("A", "B"), spec("B", "A"), spec("A"))
        assert caught.value.details == {
            "duplicate_ids": ["A"],
            "cycles": [["A", "B"]],
        }

    @pytest.mark.req("WF-02", "T-27", "plan.errors")
    def test_all_mistakes_are_in_one_error_that_names_the_members_only(self) -> None:
        calls = [
            spec("lost", "nope", "gone"),
            spec("A", "C"),
            spec("B", "A"),
            spec("C", "B"),
            spec("behind", "A"),
            spec("far-behind", "behind", "lost"),
            spec("before"),
            spec("D"),
            spec("X", "Y", "before"),
            spec("Y", "X"),
            spec("self", "self"),
            spec("twin"),
            spec("twin"),
            spec("big", pool="p", weight=3),
        ]
        with pytest.raises(PlanError) as caught:
            plan(*calls, pool_limits={"p": 2})
        error = caught.value
        assert error.details == {
            "duplicate_ids": ["twin"],
            "self_dependencies": ["self"],
            "unknown_dependencies": {"lost": ["nope", "gone"]},
            "cycles": [["A", "B", "C"], ["X", "Y"]],
            "too_heavy": {"big": "weight 3 in pool 'p' of 2"},
        }
        for healthy in ("'D'", "behind", "before"):
            assert healthy not in str(error)
        for member in ("'nope'", "'A', 'B', 'C'", "'X', 'Y'", "'self'", "'twin'"):
            assert member in str(error)

    @pytest.mark.req("plan.errors")
    def test_members_are_listed_as_submitted_whatever_the_priorities(self) -> None:
        with pytest.raises(PlanError) as caught:
            plan(spec("a", "b"), spec("b", "a", priority=9))
        assert caught.value.details == {"cycles": [["a", "b"]]}

    @pytest.mark.req("plan.errors")
    def test_the_error_is_a_value_error_and_is_not_tried_again(self) -> None:
        with pytest.raises(PlanError) as caught:
            plan(spec("a", "a"))
        error = caught.value
        assert isinstance(error, ValueError)
        assert isinstance(error, ToolProcessorError)
        assert error.category is ErrorCategory.VALIDATION
        assert not error.retryable
        twin = pickle.loads(pickle.dumps(error))
        assert (str(twin), twin.details) == (str(error), error.details)

    @pytest.mark.req("plan.errors")
    def test_the_message_stays_short_and_the_details_complete(self) -> None:
        ring = [spec(str(n), str((n + 1) % 50_000)) for n in range(50_000)]
        with pytest.raises(PlanError) as caught:
            plan(*ring)
        assert len(str(caught.value)) < 400
        assert "49990 more" in str(caught.value)
        assert len(caught.value.details["cycles"][0]) == 50_000

    @pytest.mark.req("plan.errors")
    def test_only_specs_can_be_planned(self) -> None:
        with pytest.raises(TypeError, match="ToolCallSpec values, got 'a'"):
            GreedyDagScheduler().plan(["a"], SchedulingConstraints())  # type: ignore[list-item]

    @pytest.mark.req("WF-05")
    def test_one_tool_may_be_called_many_times(self) -> None:
        made = GreedyDagScheduler().plan(
            [
                ToolCallSpec("f", "same"),
                ToolCallSpec("g", "other", depends_on=("f",)),
                ToolCallSpec("f'", "same", depends_on=("g",)),
            ],
            SchedulingConstraints(),
        )
        assert made.stages == (("f",), ("g",), ("f'",))


class TestDeadline:
    @pytest.mark.req("T-27", "plan.skip-deadline")
    def test_calls_beside_each_other_do_not_add_up(self) -> None:
        made = plan(*[spec(str(n), est_ms=100) for n in range(20)], deadline_ms=1000)
        assert made.skip == ()
        assert made.estimated_total_ms == 100
        assert made.total_stages == 1

    @pytest.mark.req("plan.skip-deadline")
    def test_a_full_pool_makes_optional_calls_late(self) -> None:
        calls = [spec(str(n), est_ms=100) for n in range(20)]
        made = plan(*calls, deadline_ms=1000, pool_limits={"default": 2})
        assert made.skip == ("16", "17", "18", "19")
        assert set(causes(made).values()) == {SkipCause.DEADLINE_EXCEEDED}
        assert made.estimated_total_ms == 800

    @pytest.mark.req("plan.skip-deadline")
    @pytest.mark.parametrize(
        ("est", "skipped"), [(800, False), (801, True), (1000, True), (0, False)]
    )
    def test_an_optional_call_may_end_at_the_threshold_and_not_after(
        self, est: int, skipped: bool
    ) -> None:
        made = plan(spec("a", est_ms=est), spec("b", est_ms=1), deadline_ms=1000)
        assert ("a" in made.skip) is skipped
        assert "b" not in made.skip

    @pytest.mark.req("plan.skip-deadline")
    def test_required_calls_are_kept_however_late_they_are(self) -> None:
        made = plan(
            spec("late", est_ms=5000, priority=1),
            spec("later", "late", est_ms=5000, priority=1),
            spec("optional", "late", est_ms=1, priority=-1),
            deadline_ms=1000,
        )
        assert made.skip == ("optional",)
        assert made.critical_path_ms == 10_000

    @pytest.mark.req("plan.skip-cascade")
    def test_what_needs_a_skipped_call_is_skipped_whatever_its_priority(self) -> None:
        made = plan(
            spec("far", "near", est_ms=1, priority=9),
            spec("root", est_ms=900),
            spec("near", "root", est_ms=1),
            spec("free", est_ms=1),
            spec("both", "free", "root", est_ms=1),
            deadline_ms=1000,
        )
        assert made.stages == (("free",),)
        assert causes(made) == {
            "far": "dependency_skipped",
            "root": "deadline_exceeded",
            "near": "dependency_skipped",
            "both": "dependency_skipped",
        }
        details = {reason.call_id: reason.detail for reason in made.skip_reasons}
        assert details["near"] == "needs 'root', which is skipped"
        assert details["root"] == "would end after 900 ms; optional calls have 800 ms"
        assert made.critical_path_ms == made.estimated_total_ms == 1

    @pytest.mark.req("plan.skip-deadline")
    def test_the_threshold_is_a_share_of_the_time_that_is_left(self) -> None:
        calls = [spec("a", est_ms=700), spec("b", est_ms=900)]
        made = plan(*calls, now_ms=50_000, deadline_ms=51_000)
        assert made.skip == ("b",)
        whole = plan(
            *calls,
            now_ms=50_000,
            deadline_ms=51_000,
            scheduler=GreedyDagScheduler(skip_threshold_ratio=1),
        )
        assert whole.skip == ()
        # 0.29 * 100 is a little less than 29 in floats.
        exact = GreedyDagScheduler(skip_threshold_ratio=0.29)
        assert plan(spec("a", est_ms=29), deadline_ms=100, scheduler=exact).skip == ()

    @pytest.mark.req("plan.skip-deadline")
    @pytest.mark.parametrize("deadline", [100, 50])
    def test_when_no_time_is_left_only_required_calls_stay(self, deadline: int) -> None:
        made = plan(
            spec("optional", est_ms=0),
            spec("required", est_ms=0, priority=1, timeout=5),
            now_ms=100,
            deadline_ms=deadline,
        )
        assert made.skip == ("optional",)
        assert made.per_call_timeout_ms == {"required": 0}

    @pytest.mark.req("plan.skip-deadline")
    def test_without_a_deadline_nothing_is_late(self) -> None:
        assert plan(spec("a", est_ms=10**9)).skip == ()

    @pytest.mark.req("plan.skip-deadline")
    def test_several_calls_of_one_limited_pool_are_no_sure_thing(self) -> None:
        def calls(pool: str) -> list[ToolCallSpec]:
            first = [spec(f"f{n}", est_ms=100, pool=pool, priority=1) for n in range(4)]
            needs = [call.call_id for call in first]
            return [*first, spec("sum", *needs, est_ms=100)]

        # 4 slots of which 3 are counted on: 400 ms of work take 134 ms, not 100.
        limits: dict[str, Any] = {"deadline_ms": 292, "pool_limits": {"web": 4}}
        assert plan(*calls("web"), **limits).skip == ("sum",)
        assert plan(*calls("other"), **limits).skip == ()
        roomy: dict[str, Any] = {"deadline_ms": 293, "pool_limits": {"web": 4}}
        assert plan(*calls("web"), **roomy).skip == ()
        alone = [spec("f", est_ms=100, pool="web"), spec("sum", "f", est_ms=100)]
        assert plan(*alone, deadline_ms=250, pool_limits={"web": 2}).skip == ()

    @pytest.mark.req("T-27", "plan.estimates")
    def test_an_estimate_of_0_is_0_and_a_missing_one_the_default(self) -> None:
        made = plan(spec("a", est_ms=0), spec("b", "a"))
        assert made.critical_path_ms == made.estimated_total_ms == 1000
        short = GreedyDagScheduler(default_est_ms=7)
        assert plan(spec("a"), scheduler=short).critical_path_ms == 7


class TestBudget:
    @pytest.mark.req("T-27", "plan.skip-cost")
    def test_the_budget_holds_for_required_calls_too(self) -> None:
        made = plan(
            spec("dear", cost=2, priority=9),
            spec("cheap", cost=1, priority=8),
            spec("more", "dear", cost=0.5, priority=9),
            max_cost=1,
        )
        assert made.stages == (("cheap",),)
        assert causes(made) == {"dear": "cost_exceeded", "more": "dependency_skipped"}
        assert made.skip_reasons[0].detail == "costs 2; 1 of 1 is left"

    @pytest.mark.req("plan.skip-cost")
    def test_optional_calls_do_not_spend_what_required_ones_need(self) -> None:
        made = plan(
            spec("first", est_ms=1, cost=1),
            spec("free", est_ms=1),
            spec("slow", est_ms=500),
            spec("needed", "slow", cost=4, priority=1),
            spec("last", "needed", cost=1),
            max_cost=4.5,
        )
        assert made.skip == ("first", "last")
        assert "needed" in made.all_scheduled_calls
        assert (
            plan(
                spec("first", cost=1), spec("needed", cost=4, priority=1), max_cost=5
            ).skip
            == ()
        )

    @pytest.mark.req("plan.skip-cost")
    def test_nothing_is_set_aside_for_a_required_call_that_is_skipped(self) -> None:
        made = plan(
            spec("late", est_ms=900),
            spec("needed", "late", cost=4, priority=1),
            spec("wait", est_ms=1),
            spec("optional", "wait", est_ms=1, cost=4),
            deadline_ms=1000,
            max_cost=4,
            pool_limits={"default": 3},
        )
        assert made.skip == ("late", "needed")
        assert plan(
            spec("a-dear", est_ms=1, cost=9, priority=2),
            spec("b-wait", est_ms=1),
            spec("c-optional", "b-wait", est_ms=1, cost=4),
            max_cost=4,
        ).skip == ("a-dear",)

    @pytest.mark.req("plan.skip-cost")
    def test_sums_of_prices_are_not_missed_by_a_rounding_error(self) -> None:
        calls = [spec("a", cost=0.1), spec("b", cost=0.2)]
        assert plan(*calls, max_cost=0.3).skip == ()
        assert plan(*calls, spec("c", cost=1e-6), max_cost=0.3).skip == ("c",)
        assert plan(*calls, spec("c", cost=0), max_cost=0).skip == ("a", "b")


class TestTimeouts:
    @pytest.mark.req("T-27", "plan.retries", "plan.timeouts")
    def test_own_limits_are_kept_without_a_deadline(self) -> None:
        call = ToolCallSpec("a", "t", timeout_ms=70, max_retries=0)
        for deadline in (None, 10_000):
            made = plan(call, spec("b"), deadline_ms=deadline)
            assert made.per_call_max_retries == {"a": 0}
            assert made.per_call_timeout_ms["a"] == 70
        assert plan(call, spec("b")).per_call_timeout_ms == {"a": 70}

    @pytest.mark.req("T-27", "plan.timeouts")
    def test_a_chain_cannot_outlive_the_deadline(self) -> None:
        chain = [spec("0", est_ms=500, priority=1)]
        chain += [spec(str(n), str(n - 1), est_ms=500, priority=1) for n in range(1, 9)]
        made = plan(*chain, deadline_ms=1000)
        assert 990 <= sum(made.per_call_timeout_ms.values()) <= 1000

    @pytest.mark.req("plan.timeouts")
    def test_own_timeouts_are_kept_where_they_fit(self) -> None:
        made = plan(
            spec("a", est_ms=10, timeout=700, priority=1),
            spec("b", "a", est_ms=100, priority=1),
            spec("alone", timeout=9000, priority=1),
            deadline_ms=1600,
        )
        assert made.per_call_timeout_ms == {"a": 700, "b": 200, "alone": 1600}

    @pytest.mark.req("plan.timeouts")
    def test_own_timeouts_that_do_not_fit_only_shorten(self) -> None:
        made = plan(
            spec("a", est_ms=100, timeout=900, priority=1),
            spec("b", "a", est_ms=300, timeout=900, priority=1),
            spec("c", "b", est_ms=100, timeout=10, priority=1),
            deadline_ms=1000,
        )
        found = made.per_call_timeout_ms
        assert sum(found.values()) <= 1000
        assert found["c"] == 10
        assert found["a"] >= 100
        assert found["b"] >= 300

    @pytest.mark.req("plan.timeouts")
    def test_a_call_of_0_ms_and_a_call_in_haste_get_a_millisecond(self) -> None:
        calls = [
            spec("zero", est_ms=0, priority=1),
            spec("huge", "zero", est_ms=10**9, priority=1),
            spec("end", "huge", est_ms=0, priority=1),
        ]
        assert plan(*calls, deadline_ms=10).per_call_timeout_ms == {
            "zero": 1,
            "huge": 7,
            "end": 1,
        }
        assert set(plan(*calls, deadline_ms=2).per_call_timeout_ms.values()) == {1}

    @pytest.mark.req("plan.timeouts", "plan.retries")
    def test_skipped_calls_have_neither_timeout_nor_retries(self) -> None:
        late = ToolCallSpec(
            "late", "t", metadata=ToolMetadata(est_ms=5000), max_retries=3
        )
        made = plan(late, spec("a", est_ms=1), deadline_ms=1000)
        assert made.per_call_max_retries == {}
        assert made.per_call_timeout_ms == {"a": 1000}


class TestPools:
    @pytest.mark.req("plan.stages")
    def test_stages_keep_the_limits_of_pools(self) -> None:
        calls = [spec(f"w{n}", pool="web") for n in range(3)]
        calls += [spec(f"f{n}", pool="free") for n in range(4)]
        made = plan(*calls, pool_limits={"web": 2, "unused": 1})
        assert made.stages == (("w0", "w1", "f0", "f1", "f2", "f3"), ("w2",))
        assert made.pool_utilization == {"free": 4, "web": 2}
        assert made.estimated_total_ms == 2000
        assert made.critical_path_ms == 1000

    @pytest.mark.req("plan.stages")
    def test_a_weight_takes_that_many_slots(self) -> None:
        calls = [spec(str(n), pool="p", weight=2, est_ms=10) for n in range(3)]
        made = plan(*calls, spec("x", pool="p", est_ms=10), pool_limits={"p": 3})
        assert made.stages == (("0", "x"), ("1",), ("2",))
        assert made.estimated_total_ms == 30
        assert made.pool_utilization == {"p": 3}
        assert plan(*calls).pool_utilization == {"p": 6}
        two = plan(*calls[:2], pool_limits={"p": 3})
        assert two.stages == (("0",), ("1",))

    @pytest.mark.req("plan.stages")
    def test_a_pool_with_few_calls_in_many_stages_costs_little(self) -> None:
        # A table of stages per pool would be of 20,000 * 20,000 / 2 places.
        count = 20_000
        calls = [spec("0", pool="0")]
        calls += [spec(str(n), str(n - 1), pool=str(n)) for n in range(1, count)]
        made = plan(*calls, pool_limits={str(n): 1 for n in range(count)})
        assert made.total_stages == count

    @pytest.mark.req("plan.order")
    def test_priority_then_the_shorter_then_the_earlier_goes_first(self) -> None:
        made = plan(
            spec("late", est_ms=5),
            spec("long", est_ms=9, priority=2),
            spec("early", est_ms=5),
            spec("short", est_ms=3, priority=2),
            pool_limits={"default": 1},
        )
        assert made.stages == (("short",), ("long",), ("late",), ("early",))
        assert plan(spec("z"), spec("a"), spec("m", priority=1)).stages == (
            ("m", "z", "a"),
        )

    @pytest.mark.req("plan.order")
    def test_the_plan_does_not_depend_on_the_hash_seed(self) -> None:
        code = (
            "from executionkit.tools.scheduling import *\n"
            "s = [ToolCallSpec(f'c{n}', 't', depends_on=(f'c{n // 3}',) if n else (),"
            " metadata=ToolMetadata(pool=f'p{n % 7}', est_ms=n % 5 * 90))"
            " for n in range(90)]\n"
            "print(GreedyDagScheduler().plan(s, SchedulingConstraints(deadline_ms=900,"
            " max_cost=1, pool_limits={'p1': 1, 'p2': 2, 'p3': 1})))"
        )
        shown = {
            subprocess.run(
                [sys.executable, "-c", code],
                check=True,
                capture_output=True,
                timeout=20,
                env={"PYTHONHASHSEED": seed},
            ).stdout
            for seed in ("0", "1", "77")
        }
        assert len(shown) == 1
        assert b"deadline_exceeded" in shown.pop()


class TestValues:
    @pytest.mark.req("plan.values")
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: ToolMetadata(pool=""), "`pool` must be a text"),
            (lambda: ToolMetadata(weight=0), "weight must be >= 1, got 0"),
            (lambda: ToolMetadata(weight=True), "`weight` must be an int, got True"),
            (lambda: ToolMetadata(est_ms=-1), "est_ms must be >= 0, got -1"),
            (lambda: ToolMetadata(cost=-0.5), "cost must be >= 0.0, got -0.5"),
            (lambda: ToolMetadata(cost=float("nan")), "`cost` must be finite"),
            (lambda: ToolMetadata(priority=1.5), "`priority` must be an int"),  # type: ignore[arg-type]
            (lambda: ToolCallSpec("", "t"), "`call_id` must be a text"),
            (lambda: ToolCallSpec("a", ""), "`tool_name` must be a text"),
            (lambda: ToolCallSpec("a", "t", []), "`args` must be a mapping"),  # type: ignore[arg-type]
            (lambda: ToolCallSpec("a", "t", {}, {}), "must be a ToolMetadata"),  # type: ignore[arg-type]
            (lambda: ToolCallSpec("a", "t", depends_on="bc"), "a tuple or a list"),  # type: ignore[arg-type]
            (lambda: ToolCallSpec("a", "t", depends_on={"b"}), "a tuple or a list"),  # type: ignore[arg-type]
            (lambda: ToolCallSpec("a", "t", depends_on=("",)), "must hold call ids"),
            (lambda: ToolCallSpec("a", "t", timeout_ms=0), "timeout_ms must be >= 1"),
            (lambda: ToolCallSpec("a", "t", max_retries=-1), "max_retries must be >="),
            (lambda: SchedulingConstraints(deadline_ms=1.5), "`deadline_ms` must be"),  # type: ignore[arg-type]
            (lambda: SchedulingConstraints(max_cost=-1), "max_cost must be >= 0"),
            (lambda: SchedulingConstraints(now_ms=-1), "now_ms must be >= 0"),
            (
                lambda: SchedulingConstraints(pool_limits={"web": 0}),
                r"pool_limits\['web'\] must be >= 1, got 0",
            ),
            (lambda: SkipReason("a", "because"), "one of deadline_exceeded, cost"),  # type: ignore[arg-type]
            (lambda: ExecutionPlan(stages=("ab",)), "`stages` must be a tuple or"),  # type: ignore[arg-type]
            (lambda: ExecutionPlan(stages=((1,),)), "must hold call ids"),  # type: ignore[arg-type]
            (lambda: ExecutionPlan(stages=(("a",),), skip=("a",)), "once: 'a'"),
            (lambda: ExecutionPlan(stages=(("a",), ("a",))), "once: 'a'"),
            (lambda: ExecutionPlan(per_call_timeout_ms={"a": -1}), "must be >= 0"),
            (lambda: ExecutionPlan(critical_path_ms=-1), "must be >= 0"),
            (
                lambda: ExecutionPlan(
                    skip_reasons=(SkipReason("a", SkipCause.COST_EXCEEDED),)
                ),
                "must explain calls of `skip`",
            ),
            (lambda: GreedyDagScheduler(-1), "default_est_ms must be >= 0"),
            (lambda: GreedyDagScheduler(1, 0), "skip_threshold_ratio must be > 0"),
            (lambda: GreedyDagScheduler(1, 1.01), "skip_threshold_ratio must be <= 1"),
        ],
    )
    def test_a_value_that_cannot_work_is_refused(self, make: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            make()

    @pytest.mark.req("plan.values")
    def test_the_defaults_are_those_of_the_document(self) -> None:
        assert ToolMetadata() == ToolMetadata("default", 1, None, None, 0)
        made = ToolCallSpec("a", "t")
        assert made == ToolCallSpec("a", "t", {}, ToolMetadata(), (), None, None)
        assert SchedulingConstraints() == SchedulingConstraints(None, None, {}, 0)
        assert GreedyDagScheduler() == GreedyDagScheduler(1000, 0.8)
        assert ExecutionPlan() == ExecutionPlan((), {}, {}, (), (), None, None, {})
        assert list(SkipCause) == [
            "deadline_exceeded",
            "cost_exceeded",
            "dependency_skipped",
        ]

    @pytest.mark.req("plan.values")
    def test_values_are_deeply_read_only_and_survive_pickling(self) -> None:
        args = {"deep": [1, {"deeper": 2}]}
        call = ToolCallSpec("a", "t", args, depends_on=["b", "c", "b"])  # type: ignore[arg-type]
        args["deep"].append(3)
        assert call.args == {"deep": [1, {"deeper": 2}]}
        assert call.depends_on == ("b", "c")
        with pytest.raises(TypeError):
            call.args["deep"][1]["deeper"] = 3
        with pytest.raises(FrozenInstanceError):
            call.call_id = "b"  # type: ignore[misc]
        limits = {"p": 1}
        constraints = SchedulingConstraints(10, 1.0, limits)
        limits["p"] = 0
        assert constraints.pool_limits == {"p": 1}
        made = GreedyDagScheduler().plan(
            [spec("a", timeout=3), spec("late", est_ms=90)], constraints
        )
        with pytest.raises(TypeError):
            made.per_call_timeout_ms["a"] = 1  # type: ignore[index]
        loose = ExecutionPlan(stages=[["a"], ["b"]], skip=["c"])  # type: ignore[arg-type]
        assert (loose.stages, loose.skip) == ((("a",), ("b",)), ("c",))
        assert SkipReason("a", "cost_exceeded").reason is SkipCause.COST_EXCEEDED  # type: ignore[arg-type]
        for value in (call, constraints, made, loose, GreedyDagScheduler()):
            twin = pickle.loads(pickle.dumps(value))
            assert twin == value
            assert hash(twin) == hash(value)
