"""Running a plan: order, pools, failures, limits, cancellation."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from executionkit.calls import ToolResult
from executionkit.context import ExecutionContext, get_current_context
from executionkit.engine.breaker import CircuitState
from executionkit.engine.retry import RetryConfig
from executionkit.errors import ErrorCategory, ErrorCode, ToolProcessorError
from executionkit.testing import FakeClock, settle
from executionkit.tools._options import ToolPolicy
from executionkit.tools.plan_run import ResultOf, ToolPlanResult
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from executionkit.tools.scheduling import (
    ExecutionPlan,
    GreedyDagScheduler,
    PlanError,
    SchedulingConstraints,
    SkipReason,
    ToolCallSpec,
    ToolMetadata,
)


class Work:
    """A tool that takes as long as it is told, fails when it is told, and notes all."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.log: list[tuple[str, str, float]] = []
        self.active: set[str] = set()
        self.began = clock.monotonic()

    async def execute(
        self, name: str, ms: int = 0, fails: bool = False, failures: int = 0
    ) -> str:
        self._note("start", name)
        self.active.add(name)
        try:
            if ms:
                await self.clock.sleep(ms / 1000)
            tries = sum(kind == "start" and who == name for kind, who, _ in self.log)
            if fails or tries <= failures:
                raise RuntimeError(f"{name} is broken")
        finally:
            self.active.discard(name)
            self._note("end", name)
        return f"result of {name}"

    def _note(self, kind: str, name: str) -> None:
        at = round((self.clock.monotonic() - self.began) * 1000)
        self.log.append((kind, name, at))

    def at(self, kind: str, name: str) -> int:
        """Milliseconds of the last such event."""
        return round([t for k, n, t in self.log if (k, n) == (kind, name)][-1])

    @property
    def started(self) -> list[str]:
        return [name for kind, name, _ in self.log if kind == "start"]


@pytest.fixture
def work(auto_clock: FakeClock) -> Work:
    return Work(auto_clock)


def processor(work: Work, **settings: Any) -> ToolProcessor:
    registry = create_registry()
    registry.add(work, "work")
    return ToolProcessor(registry, **settings)


def spec(
    name: str,
    *needs: str,
    ms: int = 100,
    pool: str = "default",
    weight: int = 1,
    cost: float | None = None,
    priority: int = 1,
    timeout_ms: int | None = None,
    max_retries: int | None = None,
    **args: Any,
) -> ToolCallSpec:
    return ToolCallSpec(
        name,
        "work",
        {"name": name, "ms": ms, **args},
        ToolMetadata(pool, weight, ms, cost, priority),
        needs,
        timeout_ms,
        max_retries,
    )


def codes(outcome: ToolPlanResult) -> dict[str, ErrorCode | None]:
    return {name: result.error_code for name, result in outcome.results.items()}


# --- the document ---------------------------------------------------------------------
def document_calls() -> list[ToolCallSpec]:
    def of(pool: str, est_ms: int, priority: int = 10) -> ToolMetadata:
        return ToolMetadata(pool=pool, est_ms=est_ms, priority=priority)

    return [
        ToolCallSpec(
            call_id="fetch-users",
            tool_name="web.fetch",
            args={"url": "/api/users"},
            metadata=of("web", 300),
        ),
        ToolCallSpec(
            call_id="fetch-orders",
            tool_name="web.fetch",
            args={"url": "/api/orders"},
            metadata=of("web", 300),
        ),
        ToolCallSpec(
            call_id="transform",
            tool_name="compute.transform",
            depends_on=("fetch-users", "fetch-orders"),
            metadata=of("compute", 500),
        ),
        ToolCallSpec(
            call_id="store",
            tool_name="db.write",
            depends_on=("transform",),
            metadata=of("db", 200),
        ),
        ToolCallSpec(
            call_id="analytics",
            tool_name="analytics.log",
            depends_on=("store",),
            metadata=of("analytics", 100, 0),
        ),
    ]


DOCUMENT_LIMITS = SchedulingConstraints(
    deadline_ms=1500,
    max_cost=1.0,
    pool_limits={"web": 2, "db": 1, "compute": 1},
)


def document_processor(clock: FakeClock, broken: str = "") -> ToolProcessor:
    registry = create_registry()

    async def fetch(url: str) -> str:
        if url == broken:
            raise ConnectionError(url)
        await clock.sleep(0.3)
        return url

    async def transform() -> str:
        await clock.sleep(0.5)
        return "transformed"

    async def write() -> str:
        await clock.sleep(0.2)
        return "written"

    async def log() -> str:
        return "logged"

    registry.add(fetch, namespace="web")
    registry.add(transform, namespace="compute")
    registry.add(write, namespace="db")
    registry.add(log, namespace="analytics")
    return ToolProcessor(registry)


@pytest.mark.req("planrun.example", "T-37")
async def test_the_example_of_the_document_runs(auto_clock: FakeClock) -> None:
    outcome = await document_processor(auto_clock).execute_plan(
        document_calls(), constraints=DOCUMENT_LIMITS
    )
    assert outcome.order == ("fetch-users", "fetch-orders", "transform", "store")
    assert outcome.skipped == outcome.plan.skip == ("analytics",)
    assert outcome.makespan == pytest.approx(1.0)
    assert outcome.is_success
    assert tuple(outcome.results) == tuple(c.call_id for c in document_calls())
    skipped = outcome.results["analytics"]
    assert skipped.error_code is ErrorCode.SKIPPED_PLANNED
    assert skipped.error_info is not None
    assert skipped.error_info.details["reason"] == "deadline_exceeded"
    assert skipped.attempts == 0


@pytest.mark.req("planrun.example", "planrun.failure", "T-37")
async def test_a_failed_fetch_skips_what_needs_it(auto_clock: FakeClock) -> None:
    outcome = await document_processor(auto_clock, "/api/users").execute_plan(
        document_calls(), constraints=DOCUMENT_LIMITS
    )
    assert outcome.failed == ("fetch-users",)
    assert outcome.succeeded == ("fetch-orders",)
    assert outcome.skipped == ("transform", "store", "analytics")
    for name in ("transform", "store"):
        result = outcome.results[name]
        assert result.error_code == "SKIPPED_DEPENDENCY_FAILED"
        assert result.error_category is ErrorCategory.CANCELLED
        assert not result.retryable
        assert result.attempts == 0
        assert result.error_info is not None
        assert result.error_info.details["failed_dependency"] == "fetch-users"
        assert result.call_id == name
    assert not outcome.is_success


@pytest.mark.req("planrun.example", "planrun.continue", "T-37")
async def test_continue_on_error_runs_what_needs_it(auto_clock: FakeClock) -> None:
    outcome = await document_processor(auto_clock, "/api/users").execute_plan(
        document_calls(), constraints=DOCUMENT_LIMITS, continue_on_error=True
    )
    assert outcome.failed == ("fetch-users",)
    assert outcome.succeeded == ("fetch-orders", "transform", "store")
    assert outcome.skipped == ("analytics",)


# --- order and pools ------------------------------------------------------------------
@pytest.mark.req("planrun.order")
async def test_a_call_starts_the_moment_what_it_needs_is_done(work: Work) -> None:
    calls = [spec("short", ms=10), spec("long", ms=500), spec("next", "short")]
    plan = GreedyDagScheduler().plan(calls, SchedulingConstraints())
    assert plan.stages == (("short", "long"), ("next",))
    outcome = await processor(work).execute_plan(calls, plan)
    assert work.at("start", "next") == 10
    assert outcome.order == ("short", "next", "long")
    assert outcome.makespan == pytest.approx(0.5)


@pytest.mark.req("planrun.order")
async def test_all_that_is_ready_runs_at_once(work: Work) -> None:
    calls = [spec("root")] + [spec(f"c{n}", "root") for n in range(50)]
    outcome = await processor(work).execute_plan(calls)
    assert outcome.makespan == pytest.approx(0.2)
    assert {work.at("start", f"c{n}") for n in range(50)} == {100}


@pytest.mark.req("planrun.pools")
async def test_pools_and_weights_hold_while_the_plan_runs(work: Work) -> None:
    calls = [spec(f"c{n}", pool="db", weight=2 if n == 0 else 1) for n in range(5)]
    limits = SchedulingConstraints(pool_limits={"db": 2})
    outcome = await processor(work).execute_plan(calls, constraints=limits)
    assert outcome.makespan == pytest.approx(0.3)
    assert [work.at("start", f"c{n}") for n in range(5)] == [0, 100, 100, 200, 200]


@pytest.mark.req("planrun.pools")
async def test_the_processors_own_limit_holds_and_better_calls_go_first(
    work: Work,
) -> None:
    calls = [spec(f"c{n}", priority=n) for n in range(6)]
    outcome = await processor(work, max_concurrency=2).execute_plan(calls)
    assert outcome.makespan == pytest.approx(0.3)
    assert work.started == ["c5", "c4", "c3", "c2", "c1", "c0"]


@pytest.mark.req("planrun.pools")
async def test_another_batch_at_the_gate_does_not_make_a_plan_serial(
    work: Work,
) -> None:
    own = processor(work, max_concurrency=4)
    other = asyncio.ensure_future(
        own.process(
            [{"tool": "work", "arguments": {"name": f"o{n}", "ms": 50}} for n in "1234"]
        )
    )
    await settle(5)
    outcome = await own.execute_plan([spec(f"c{n}") for n in range(4)])
    await other
    assert outcome.makespan == pytest.approx(0.15)


@pytest.mark.req("planrun.cheap")
async def test_a_long_chain_needs_no_recursion_and_one_task(work: Work) -> None:
    count = 3000
    calls = [
        spec(f"c{n}", *([f"c{n - 1}"] if n else []), ms=n % 2) for n in range(count)
    ]
    peak = 0

    def see(_result: ToolResult) -> None:
        nonlocal peak
        peak = max(peak, len(asyncio.all_tasks()))

    outcome = await processor(work).execute_plan(calls, on_result=see)
    assert len(outcome.succeeded) == count
    assert peak <= 3


@pytest.mark.req("WF-05")
async def test_one_tool_may_be_called_by_many_calls(work: Work) -> None:
    outcome = await processor(work).execute_plan(
        [spec("f"), spec("g", "f"), spec("f2", "g")]
    )
    assert outcome.order == ("f", "g", "f2")


async def test_a_plan_of_nothing_is_a_success(work: Work) -> None:
    outcome = await processor(work).execute_plan([])
    assert outcome.is_success
    assert (outcome.results, outcome.order) == ({}, ())


# --- what is refused before anything runs ---------------------------------------------
class Scheduler:
    """Makes the plan it was given."""

    def __init__(self, plan: Any) -> None:
        self.made = plan
        self.context: Mapping[str, object] | None = None

    def plan(
        self,
        calls: Sequence[ToolCallSpec],
        constraints: SchedulingConstraints,
        context: Mapping[str, object] | None = None,
    ) -> ExecutionPlan:
        self.context = context
        made: ExecutionPlan = self.made
        return made


REFUSED: dict[str, tuple[list[ToolCallSpec], tuple[tuple[str, ...], ...], str]] = {
    "order": ([spec("a"), spec("b", "a")], (("b",), ("a",)), "wrong_order"),
    "missing": ([spec("a"), spec("b")], (("a",),), "missing_calls"),
    "unknown": ([spec("a")], (("a", "x"),), "unknown_calls"),
    "twice": ([spec("a"), spec("a")], (("a",),), "duplicate_ids"),
    "cycle": ([spec("a", "b"), spec("b", "a")], (("a", "b"),), "cycles"),
    "nobody": ([spec("a", "x")], (("a",),), "unknown_dependencies"),
}


@pytest.mark.req("planrun.refused", "WF-01", "WF-02", "T-27")
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("how", ["plan", "scheduler"])
async def test_a_plan_that_does_not_fit_runs_nothing(
    work: Work, case: str, how: str
) -> None:
    calls, stages, key = REFUSED[case]
    plan = ExecutionPlan(stages=stages)
    with pytest.raises(PlanError) as caught:
        if how == "plan":
            await processor(work).execute_plan(calls, plan)
        else:
            await processor(work).execute_plan(calls, scheduler=Scheduler(plan))
    assert key in caught.value.details
    assert not work.log


@pytest.mark.req("planrun.refused")
async def test_a_skip_of_an_unknown_call_is_refused(work: Work) -> None:
    with pytest.raises(PlanError, match="'x'"):
        await processor(work).execute_plan([], ExecutionPlan(skip=("x",)))


@pytest.mark.req("planrun.refused")
async def test_a_plan_and_a_scheduler_are_one_too_many(work: Work) -> None:
    own = processor(work)
    with pytest.raises(TypeError, match="not both"):
        await own.execute_plan([], ExecutionPlan(), scheduler=GreedyDagScheduler())
    with pytest.raises(TypeError, match="ExecutionPlan"):
        await own.execute_plan([], scheduler=Scheduler("no plan"))


@pytest.mark.req("planrun.scheduler")
async def test_a_scheduler_of_ones_own_may_put_all_into_one_stage(work: Work) -> None:
    calls = [spec("b", "a"), spec("a")]
    scheduler = Scheduler(ExecutionPlan(stages=(("b", "a"),)))
    outcome = await processor(work).execute_plan(
        calls, scheduler=scheduler, context=ExecutionContext(user_id="u")
    )
    assert outcome.order == ("a", "b")
    assert scheduler.context is not None
    assert scheduler.context["user_id"] == "u"


@pytest.mark.req("planrun.scheduler")
async def test_stages_are_no_barriers_and_add_no_order(work: Work) -> None:
    plan = ExecutionPlan(stages=(("a",), ("b",)))
    outcome = await processor(work).execute_plan([spec("a"), spec("b")], plan)
    assert work.at("start", "b") == 0
    assert outcome.plan is plan


# --- what is skipped ------------------------------------------------------------------
@pytest.mark.req("planrun.skip", "WF-15")
@pytest.mark.parametrize("continue_on_error", [False, True])
async def test_a_skipped_call_takes_what_needs_it_with_it_and_nothing_else(
    work: Work, continue_on_error: bool
) -> None:
    calls = [spec("a"), spec("b", "a"), spec("c"), spec("d", "c")]
    plan = ExecutionPlan(
        stages=(("c",), ("b", "d")),
        skip=("a",),
        skip_reasons=(SkipReason("a", "cost_exceeded", "too dear"),),  # type: ignore[arg-type]
    )
    outcome = await processor(work).execute_plan(
        calls, plan, continue_on_error=continue_on_error
    )
    assert outcome.skipped == ("a", "b")
    assert outcome.succeeded == ("c", "d")
    reasons = [outcome.results[n].error_info for n in "ab"]
    assert [r.details["reason"] for r in reasons if r is not None] == [
        "cost_exceeded",
        "dependency_skipped",
    ]
    assert "too dear" in (outcome.results["a"].error or "")


@pytest.mark.req("planrun.failure")
async def test_a_failure_skips_only_what_needs_it(work: Work) -> None:
    calls = [
        spec("bad", fails=True),
        spec("x", "bad"),
        spec("y", "x", "good"),
        spec("good"),
        spec("z", "good"),
    ]
    outcome = await processor(work).execute_plan(calls)
    assert outcome.skipped == ("x", "y")
    assert outcome.succeeded == ("good", "z")
    details = [outcome.results[n].error_info for n in "xy"]
    assert [d.details["failed_dependency"] for d in details if d] == ["bad", "bad"]
    assert [d.details["failed_code"] for d in details if d] == [
        "TOOL_EXECUTION_FAILED"
    ] * 2


@pytest.mark.req("planrun.failure")
async def test_skipped_calls_count_for_no_circuit(work: Work) -> None:
    own = processor(work, enable_circuit_breaker=True, circuit_breaker_threshold=3)
    calls = [spec("bad", fails=True)] + [spec(f"c{n}", "bad") for n in range(20)]
    await own.execute_plan(calls)
    outcome = await own.execute_plan([spec("good")])
    assert outcome.is_success
    stats = await own.stats()
    assert stats.circuits is not None
    assert set(stats.circuits.values()) == {CircuitState.CLOSED}
    assert stats.tools["work"].calls == 2


@pytest.mark.req("planrun.failure")
async def test_an_unknown_tool_is_a_failure_of_its_call(work: Work) -> None:
    calls = [ToolCallSpec("a", "nope", max_retries=2), spec("b", "a"), spec("c")]
    outcome = await processor(work).execute_plan(calls)
    assert codes(outcome) == {
        "a": ErrorCode.TOOL_NOT_FOUND,
        "b": ErrorCode.SKIPPED_DEPENDENCY_FAILED,
        "c": None,
    }


# --- limits ---------------------------------------------------------------------------
@pytest.mark.req("planrun.deadline")
async def test_what_cannot_start_before_the_deadline_fails(work: Work) -> None:
    calls = [
        spec("a", ms=300),
        spec("b", "a", ms=300),
        spec("c", "b"),
        spec("free", ms=50),
    ]
    plan = ExecutionPlan(stages=(("a", "free"), ("b",), ("c",)))
    outcome = await processor(work).execute_plan(
        calls,
        plan,
        constraints=SchedulingConstraints(deadline_ms=10_400, now_ms=10_000),
    )
    assert codes(outcome) == {
        "a": None,
        "b": ErrorCode.DEADLINE_EXCEEDED,
        "c": ErrorCode.SKIPPED_DEPENDENCY_FAILED,
        "free": None,
    }
    assert outcome.results["b"].attempts == 1
    assert outcome.makespan == pytest.approx(0.4)


@pytest.mark.req("planrun.deadline")
@pytest.mark.parametrize("continue_on_error", [False, True])
async def test_what_waits_for_a_pool_too_long_is_never_started(
    work: Work, continue_on_error: bool
) -> None:
    calls = [spec(f"c{n}", ms=300, pool="p") for n in range(4)] + [spec("d", "c3")]
    plan = ExecutionPlan(stages=(tuple(f"c{n}" for n in range(4)), ("d",)))
    outcome = await processor(work).execute_plan(
        calls,
        plan,
        constraints=SchedulingConstraints(deadline_ms=300, pool_limits={"p": 1}),
        continue_on_error=continue_on_error,
    )
    assert outcome.succeeded in {("c0",), ("c3",)}  # the longer chain goes first
    for name in ("c1", "c2"):
        assert outcome.results[name].error_code is ErrorCode.DEADLINE_EXCEEDED
        assert outcome.results[name].attempts == 0
    assert len(work.started) == 1


@pytest.mark.req("planrun.deadline")
async def test_no_time_left_starts_nothing(work: Work) -> None:
    own = processor(work)
    outcome = await own.execute_plan(
        [spec("a"), spec("b", priority=0)],
        constraints=SchedulingConstraints(deadline_ms=5, now_ms=5),
    )
    assert codes(outcome) == {
        "a": ErrorCode.DEADLINE_EXCEEDED,
        "b": ErrorCode.SKIPPED_PLANNED,
    }
    assert not work.log
    assert (await own.stats()).calls == 0  # not even guards or limits saw it


@pytest.mark.req("planrun.deadline")
async def test_the_nearer_deadline_of_request_and_plan_counts(
    auto_clock: FakeClock,
) -> None:
    seen: list[tuple[str | None, float | None]] = []

    async def look() -> None:
        context = get_current_context()
        assert context is not None
        seen.append((context.user_id, context.remaining_time))

    own = ToolProcessor(create_registry(look))
    calls = [ToolCallSpec("a", "look", metadata=ToolMetadata(priority=1))]
    for seconds in (0.2, 5.0):
        context = ExecutionContext.with_deadline(seconds, user_id="u")
        await own.execute_plan(
            calls, context=context, constraints=SchedulingConstraints(deadline_ms=1000)
        )
    await own.execute_plan(calls, constraints=SchedulingConstraints(deadline_ms=1000))
    assert [user for user, _ in seen] == ["u", "u", None]
    assert [left for _, left in seen] == pytest.approx([0.2, 1.0, 1.0], abs=1e-3)
    assert get_current_context() is None


@pytest.mark.req("planrun.cost")
async def test_optional_calls_that_do_not_fit_the_budget_are_skipped(
    work: Work,
) -> None:
    calls = [
        spec("a", cost=0.4, priority=0),
        spec("b", cost=0.3, priority=0),
        spec("needs-b", "b", priority=0),
        spec("must", "a", cost=0.5),
    ]
    plan = ExecutionPlan(stages=(("a", "b"), ("needs-b", "must")))
    outcome = await processor(work).execute_plan(
        calls,
        plan,
        constraints=SchedulingConstraints(max_cost=1.0),
        continue_on_error=True,
    )
    assert outcome.skipped == ("b", "needs-b")
    reasons = [outcome.results[name].error_info for name in outcome.skipped]
    assert [r.details["reason"] for r in reasons if r] == [
        "cost_exceeded",
        "dependency_skipped",
    ]
    assert outcome.cost == pytest.approx(0.9)
    assert outcome.is_success


@pytest.mark.req("planrun.cost")
async def test_calls_that_never_started_cost_nothing(work: Work) -> None:
    calls = [
        ToolCallSpec("a", "nope", metadata=ToolMetadata(cost=0.9)),
        spec("b", cost=0.9, priority=0, fails=True),
        spec("c", "b", cost=5.0),
    ]
    plan = ExecutionPlan(stages=(("a", "b"), ("c",)))
    outcome = await processor(work).execute_plan(
        calls, plan, constraints=SchedulingConstraints(max_cost=6.0)
    )
    assert outcome.failed == ("a", "b")
    assert outcome.cost == pytest.approx(0.9)


@pytest.mark.req("planrun.cost")
async def test_what_is_set_aside_for_skipped_calls_is_free_again(work: Work) -> None:
    calls = [
        spec("bad", fails=True, ms=10),
        spec("dear", "bad", cost=1.0),
        spec("first", ms=50),
        spec("cheap", "first", cost=0.5, priority=0),
        spec("late", "first", cost=0.9),
    ]
    plan = ExecutionPlan(stages=(("bad", "first"), ("dear", "cheap", "late")))
    outcome = await processor(work).execute_plan(
        calls, plan, constraints=SchedulingConstraints(max_cost=1.4)
    )
    assert outcome.succeeded == ("first", "cheap", "late")
    assert outcome.cost == pytest.approx(1.4)


@pytest.mark.req("planrun.cost")
async def test_a_required_call_does_not_break_the_budget_either(work: Work) -> None:
    plan = ExecutionPlan(stages=(("a", "b"),))
    outcome = await processor(work).execute_plan(
        [spec("a", cost=0.7), spec("b", cost=0.7)],
        plan,
        constraints=SchedulingConstraints(max_cost=1.0),
    )
    assert outcome.skipped == ("b",)


# --- precedence -----------------------------------------------------------------------
@pytest.mark.req("planrun.precedence")
async def test_the_timeout_of_the_plan_comes_before_all_others(work: Work) -> None:
    own = processor(
        work, default_timeout=0.05, policies={"work": ToolPolicy(timeout=0.02)}
    )
    calls = [spec("a", ms=300), spec("b", ms=300), spec("c", ms=300, timeout_ms=100)]
    plan = ExecutionPlan(
        stages=(("a", "b", "c"),), per_call_timeout_ms={"a": 400, "b": 200}
    )
    outcome = await own.execute_plan(calls, plan)
    assert outcome.succeeded == ("a",)
    assert [work.at("end", name) for name in "abc"] == [300, 200, 100]
    assert outcome.results["b"].error_code is ErrorCode.TOOL_TIMEOUT
    outcome = await own.execute_plan([spec("d", ms=300)])
    assert work.at("end", "d") - work.at("start", "d") == 20


@pytest.mark.req("planrun.precedence")
async def test_the_retries_of_the_plan_come_before_all_others(work: Work) -> None:
    own = processor(
        work,
        retry_config=RetryConfig(max_retries=1, base_delay=0.0, max_delay=0.0),
        policies={"work": ToolPolicy(max_retries=2)},
    )
    calls = [
        spec("usual", failures=9),
        spec("more", failures=3),
        spec("none", failures=9),
        spec("wish", failures=9, max_retries=4),
    ]
    plan = ExecutionPlan(
        stages=(("usual", "more", "none", "wish"),),
        per_call_max_retries={"more": 3, "none": 0},
    )
    outcome = await own.execute_plan(calls, plan)
    attempts = {name: result.attempts for name, result in outcome.results.items()}
    assert attempts == {"usual": 3, "more": 4, "none": 1, "wish": 5}
    assert outcome.succeeded == ("more",)


@pytest.mark.req("planrun.precedence")
async def test_retries_of_a_plan_need_no_retry_layer(work: Work) -> None:
    outcome = await processor(work).execute_plan(
        [spec("a", failures=1, max_retries=1), spec("b", failures=1)]
    )
    assert outcome.succeeded == ("a",)
    assert outcome.results["a"].attempts == 2


@pytest.mark.req("planrun.layers")
async def test_calls_of_a_plan_go_through_all_layers(work: Work) -> None:
    events: list[str] = []
    own = processor(
        work, enable_caching=True, trace=lambda event: events.append(event.kind)
    )
    same = [
        ToolCallSpec(name, "work", {"name": "x"}, depends_on=needs)
        for name, needs in (("a", ()), ("b", ("a",)))
    ]
    outcome = await own.execute_plan(same)
    assert outcome.results["b"].cached
    assert work.started == ["x"]
    pair = ["tool_call_start", "tool_call_end"]
    assert events == ["pattern_start", *pair, *pair, "pattern_end"]


class Told:
    """Notes which results it is told of; sets an event at one of them."""

    def __init__(self, until: str) -> None:
        self.ids: list[str | None] = []
        self.event = asyncio.Event()
        self._until = until

    def __call__(self, result: ToolResult) -> None:
        self.ids.append(result.call_id)
        if result.call_id == self._until:
            self.event.set()


# --- watching, and the end ------------------------------------------------------------
@pytest.mark.req("planrun.results")
@pytest.mark.parametrize("is_async", [False, True])
async def test_each_result_is_told_once_as_it_comes(work: Work, is_async: bool) -> None:
    told: list[str | None] = []

    def now(result: ToolResult) -> None:
        told.append(result.call_id)

    async def later(result: ToolResult) -> None:
        await settle(2)
        told.append(result.call_id)

    calls = [
        spec("bad", fails=True),
        spec("x", "bad"),
        spec("y", "bad"),
        spec("ok", ms=200),
        spec("out"),
    ]
    plan = ExecutionPlan(stages=(("bad", "ok"), ("x", "y")), skip=("out",))
    outcome = await processor(work).execute_plan(
        calls, plan, on_result=later if is_async else now
    )
    assert told == ["out", "bad", "x", "y", "ok"]
    assert set(told) == set(outcome.results)


@pytest.mark.req("planrun.results")
async def test_a_slow_listener_holds_up_no_other_call(work: Work) -> None:
    async def slow(_result: ToolResult) -> None:
        await work.clock.sleep(10)

    calls = [spec("a", ms=1), spec("b", "a", ms=1), spec("c", "b", ms=1)]
    await processor(work).execute_plan(calls, on_result=slow)
    assert work.at("end", "c") == 3


@pytest.mark.req("planrun.results")
async def test_a_listener_that_raises_is_logged_and_decides_nothing(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    def now(_result: ToolResult) -> None:
        raise ValueError("no")

    async def later(_result: ToolResult) -> None:
        raise ValueError("no")

    async def gone(_result: ToolResult) -> None:
        raise asyncio.CancelledError

    calls = [spec("a"), spec("b", "a")]
    with caplog.at_level(logging.WARNING, "executionkit"):
        for listener in (now, later, gone):
            outcome = await processor(work).execute_plan(calls, on_result=listener)
            assert outcome.succeeded == ("a", "b")
    assert sum("on_result" in text for text in caplog.messages) >= 4


@pytest.mark.req("planrun.results")
async def test_the_outcome_is_a_value(work: Work) -> None:
    outcome = await processor(work).execute_plan([spec("b", "a"), spec("a")])
    assert tuple(outcome.results) == ("b", "a")
    assert outcome.succeeded == ("b", "a")
    assert outcome.order == ("a", "b")
    with pytest.raises(TypeError):
        outcome.results["a"] = None  # type: ignore[index]
    with pytest.raises(AttributeError):
        outcome.cost = 1.0  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(outcome)) == outcome


@pytest.mark.req("planrun.cancel")
async def test_cancelling_the_caller_cancels_and_awaits_what_runs(work: Work) -> None:
    told = Told("a")
    calls = [spec("a", ms=10), spec("b", ms=500), spec("c", "b"), spec("d", ms=500)]
    task = asyncio.ensure_future(processor(work).execute_plan(calls, on_result=told))
    await told.event.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not work.active
    assert set(work.started) == {"a", "b", "d"}
    assert told.ids == ["a"]


@pytest.mark.req("planrun.cancel", "WF-13")
async def test_what_ends_while_it_is_cancelled_counts(auto_clock: FakeClock) -> None:
    began = asyncio.Event()

    async def stubborn() -> str:
        began.set()
        try:
            await auto_clock.sleep(100)
        except asyncio.CancelledError:
            return "done all the same"
        return "never"

    told: list[Any] = []
    task = asyncio.ensure_future(
        ToolProcessor(create_registry(stubborn)).execute_plan(
            [
                ToolCallSpec("a", "stubborn"),
                ToolCallSpec("b", "stubborn", {}, depends_on=("a",)),
            ],
            on_result=lambda result: told.append((result.call_id, result.result)),
        )
    )
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == [("a", "done all the same")]


@pytest.mark.req("planrun.cancel", "WF-13")
async def test_a_listener_that_was_told_may_finish(work: Work) -> None:
    kept: list[str | None] = []
    telling = asyncio.Event()

    async def keep(result: ToolResult) -> None:
        telling.set()
        await work.clock.sleep(0.5)
        kept.append(result.call_id)

    task = asyncio.ensure_future(
        processor(work).execute_plan([spec("a", ms=0), spec("b")], on_result=keep)
    )
    await telling.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert kept == ["a"]


@pytest.mark.req("planrun.cancel")
async def test_a_listener_that_never_ends_is_given_up(work: Work) -> None:
    telling = asyncio.Event()

    async def hang(_result: ToolResult) -> None:
        telling.set()
        await asyncio.Event().wait()

    began = work.clock.monotonic()
    task = asyncio.ensure_future(
        processor(work).execute_plan([spec("a", ms=0)], on_result=hang)
    )
    await telling.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.clock.monotonic() - began < 5
    await settle(5)
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.req("WF-14")
async def test_a_cancel_before_the_first_step_starts_nothing(work: Work) -> None:
    task = asyncio.ensure_future(processor(work).execute_plan([spec("a")]))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not work.log


@pytest.mark.req("WF-14")
async def test_each_call_that_began_has_the_id_it_was_given(work: Work) -> None:
    told = Told("c1")
    calls = [spec(f"c{n}", *([f"c{n - 1}"] if n else [])) for n in range(5)]
    task = asyncio.ensure_future(processor(work).execute_plan(calls, on_result=told))
    await told.event.wait()
    await settle(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told.ids == ["c0", "c1"]
    assert work.started == ["c0", "c1", "c2"]


@pytest.mark.req("WF-11")
async def test_a_plan_goes_on_when_one_who_waits_for_it_goes_away(work: Work) -> None:
    running = asyncio.ensure_future(
        processor(work).execute_plan([spec("a"), spec("b", "a")])
    )

    async def wait() -> ToolPlanResult:
        return await asyncio.shield(running)

    waiting = asyncio.ensure_future(wait())
    await settle(3)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    outcome = await running
    assert outcome.succeeded == ("a", "b")


@pytest.mark.req("WF-12")
def test_the_same_plan_runs_in_the_same_order_each_time() -> None:
    async def run() -> tuple[tuple[str, ...], list[tuple[str, str, float]]]:
        clock = FakeClock(auto=True)
        with clock.installed():
            work = Work(clock)
            calls = [spec(f"c{n}", ms=(n * 7) % 5 + 1) for n in range(12)]
            calls += [spec(f"d{n}", f"c{n}", f"c{n + 1}", ms=3) for n in range(11)]
            own = processor(work, max_concurrency=3)
            outcome = await own.execute_plan(calls)
            return outcome.order, work.log

    first = asyncio.run(run())
    for _ in range(20):
        assert asyncio.run(run()) == first


@pytest.mark.req("planrun.cancel")
async def test_closing_the_processor_ends_the_plan(work: Work) -> None:
    own = processor(work)
    task = asyncio.ensure_future(
        own.execute_plan([spec("a", ms=500), spec("b", "a"), spec("c", ms=500)])
    )
    while len(work.started) < 2:
        await settle(1)
    await own.close()
    outcome = await task
    assert codes(outcome) == {
        "a": ErrorCode.TOOL_CANCELLED,
        "b": ErrorCode.SKIPPED_DEPENDENCY_FAILED,
        "c": ErrorCode.TOOL_CANCELLED,
    }


@pytest.mark.req("planrun.failure")
async def test_a_tool_that_cancels_itself_is_a_failure_of_its_call(
    auto_clock: FakeClock,
) -> None:
    async def quit_() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await auto_clock.sleep(1)

    async def fine() -> int:
        await auto_clock.sleep(0.01)
        return 1

    calls = [ToolCallSpec("a", "quit_"), ToolCallSpec("b", "fine", depends_on=("a",))]
    outcome = await ToolProcessor(create_registry(quit_, fine)).execute_plan(
        calls, continue_on_error=True
    )
    assert codes(outcome) == {"a": ErrorCode.TOOL_CANCELLED, "b": None}


async def test_a_tool_that_speaks_of_skips_has_only_failed() -> None:
    async def odd() -> None:
        raise ToolProcessorError("odd", ErrorCode.SKIPPED_PLANNED)

    outcome = await ToolProcessor(create_registry(odd)).execute_plan(
        [ToolCallSpec("a", "odd", args={}, metadata=ToolMetadata(cost=1.0))]
    )
    assert outcome.failed == ("a",)
    assert outcome.order == ("a",)
    assert ResultOf("a").pointer == ""
