"""What holds for every plan, whatever its shape."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.calls import ToolResult
from executionkit.errors import ErrorCode
from executionkit.testing import FakeClock, settle
from executionkit.tools.plan_run import ResultOf, ToolPlanResult
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from executionkit.tools.scheduling import (
    ExecutionPlan,
    SchedulingConstraints,
    ToolCallSpec,
    ToolMetadata,
)


@st.composite
def graphs(draw: st.DrawFn) -> list[ToolCallSpec]:
    calls: list[ToolCallSpec] = []
    for number in range(draw(st.integers(0, 12))):
        names = [call.call_id for call in calls]
        needs: list[str] = []
        if names:
            some = st.lists(st.sampled_from(names), max_size=3, unique=True)
            needs = draw(some)
        args: dict[str, Any] = {
            "name": f"c{number}",
            "ms": draw(st.sampled_from([0, 0, 1, 2, 5])),
            "fails": draw(st.sampled_from([False, False, False, True])),
        }
        uses = draw(st.booleans())
        if needs and uses:
            args["given"] = [ResultOf(needs[0], ("name",))]
        calls.append(
            ToolCallSpec(
                f"c{number}",
                "work",
                args,
                ToolMetadata(
                    draw(st.sampled_from("abc")),
                    draw(st.integers(1, 3)),
                    draw(st.none() | st.integers(0, 5)),
                    None,
                    draw(st.integers(0, 2)),
                ),
                tuple(needs),
            )
        )
    return draw(st.permutations(calls))


pools = st.dictionaries(st.sampled_from("abc"), st.integers(3, 4))


class Run:
    """Runs one plan on a clock of its own, and checks it at each step."""

    def __init__(
        self, calls: list[ToolCallSpec], limits: dict[str, int], most: int | None
    ) -> None:
        self.calls = {call.call_id: call for call in calls}
        self.limits = limits
        self.most = most
        self.active: dict[str, int] = {}
        self.problems: list[str] = []
        self.log: list[str] = []
        self.told: list[str | None] = []

    async def work(
        self, name: str, ms: int, fails: bool, given: list[str] | None = None
    ) -> dict[str, str]:
        call = self.calls[name]
        self.demand(name not in self.log, f"{name} runs once")
        self.demand(set(self.told).issuperset(call.depends_on), f"{name} waits")
        self.demand(given in (None, [*call.depends_on[:1]]), f"{name} gets {given}")
        self.log.append(name)
        self.active[name] = call.metadata.weight
        self.check()
        try:
            if ms:
                await self.clock.sleep(ms / 1000)
            if fails:
                raise RuntimeError(name)
        finally:
            del self.active[name]
        return {"name": name}

    def check(self) -> None:
        self.demand(self.most is None or len(self.active) <= self.most, "concurrency")
        taken: dict[str, int] = {}
        for name, weight in self.active.items():
            pool = self.calls[name].metadata.pool
            taken[pool] = taken.get(pool, 0) + weight
        for pool, limit in self.limits.items():
            self.demand(taken.get(pool, 0) <= limit, f"pool {pool}")

    def demand(self, good: bool, what: str) -> None:
        # Raised inside of a tool it would be a result like any other.
        if not good:
            self.problems.append(what)

    def tell(self, result: ToolResult) -> None:
        self.told.append(result.call_id)

    async def start(self, **options: Any) -> ToolPlanResult:
        self.clock = FakeClock(auto=True)
        own = ToolProcessor(
            create_registry(self.work), max_concurrency=self.most, clock=self.clock
        )
        async with own:
            outcome = await own.execute_plan(
                list(self.calls.values()),
                constraints=SchedulingConstraints(pool_limits=self.limits),
                on_result=self.tell,
                **options,
            )
        assert not self.problems
        return outcome

    def behind(self, roots: set[str]) -> set[str]:
        """All that needs one of `roots`, directly or not."""
        found: set[str] = set()
        for name in sorted(self.calls, key=lambda name: int(name[1:])):
            if (roots | found).intersection(self.calls[name].depends_on):
                found.add(name)
        return found


def broken(calls: list[ToolCallSpec]) -> set[str]:
    return {call.call_id for call in calls if call.args["fails"]}


@pytest.mark.req("planrun.order", "planrun.pools", "planrun.failure", "planrun.results")
@settings(max_examples=70, deadline=None)
@given(graphs(), pools, st.none() | st.integers(1, 3))
def test_failures_skip_exactly_what_is_behind_them(
    calls: list[ToolCallSpec], limits: dict[str, int], most: int | None
) -> None:
    run = Run(calls, limits, most)
    outcome = asyncio.run(run.start())
    ids = [call.call_id for call in calls]
    expected = run.behind(broken(calls))
    assert list(outcome.results) == ids
    assert sorted(map(str, run.told)) == sorted(ids)
    assert set(outcome.skipped) == expected
    assert set(outcome.failed) == broken(calls) - expected
    assert set(outcome.order) == set(ids) - expected == set(run.log)
    for name in expected:
        result = outcome.results[name]
        assert result.error_code is ErrorCode.SKIPPED_DEPENDENCY_FAILED
        assert result.error_info is not None
        root = result.error_info.details["failed_dependency"]
        assert root in outcome.failed
        assert name in run.behind({root})
    assert not run.active


@pytest.mark.req("planrun.continue", "planrun.result-of")
@settings(max_examples=40, deadline=None)
@given(graphs(), pools)
def test_continue_on_error_runs_all_whose_arguments_are_there(
    calls: list[ToolCallSpec], limits: dict[str, int]
) -> None:
    run = Run(calls, limits, None)
    outcome = asyncio.run(run.start(continue_on_error=True))
    bad: set[str] = set()
    for name in sorted(run.calls, key=lambda name: int(name[1:])):
        call = run.calls[name]
        if "given" in call.args and call.depends_on[0] in bad:
            bad.add(name)
            code = ErrorCode.TOOL_ARGUMENT_ERROR
            assert outcome.results[name].error_code is code
        elif call.args["fails"]:
            bad.add(name)
    assert set(outcome.failed) == bad
    assert not outcome.skipped


@pytest.mark.req("planrun.skip")
@settings(max_examples=40, deadline=None)
@given(graphs(), st.sets(st.sampled_from([f"c{n}" for n in range(12)])), st.booleans())
def test_planned_skips_take_exactly_what_is_behind_them(
    calls: list[ToolCallSpec], skip: set[str], go_on: bool
) -> None:
    run = Run(calls, {}, None)
    ids = [call.call_id for call in calls]
    out = skip.intersection(ids)
    stages = tuple(
        (name,) for name in sorted(set(ids) - out, key=lambda name: int(name[1:]))
    )
    plan = ExecutionPlan(stages=stages, skip=tuple(sorted(out)))
    outcome = asyncio.run(run.start(plan=plan, continue_on_error=go_on))
    planned = {
        name
        for name, result in outcome.results.items()
        if result.error_code is ErrorCode.SKIPPED_PLANNED
    }
    assert planned == out | run.behind(out)
    assert set(outcome.results) == set(ids)


@pytest.mark.req("planrun.cancel")
@settings(max_examples=50, deadline=None)
@given(graphs(), pools, st.none() | st.integers(1, 3), st.integers(0, 40))
def test_a_cancel_at_any_moment_leaves_nothing_running(
    calls: list[ToolCallSpec],
    limits: dict[str, int],
    most: int | None,
    moment: int,
) -> None:
    run = Run(calls, limits, most)

    async def cancelled() -> None:
        task = asyncio.ensure_future(run.start())
        for _ in range(moment):
            await asyncio.sleep(0)
            if moment % 2 and getattr(run, "clock", None) and run.active:
                await run.clock.advance(0.001)
        done = task.done()
        task.cancel()
        try:
            await asyncio.wait_for(task, 5)
        except asyncio.CancelledError:
            assert not done
        assert not run.active
        assert not run.problems
        began = len(run.log)
        await settle(5)
        assert len(run.log) == began
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert len(set(run.told)) == len(run.told)

    asyncio.run(cancelled())


@pytest.mark.req("WF-12")
@settings(max_examples=20, deadline=None)
@given(graphs(), pools, st.none() | st.integers(1, 3))
def test_the_order_is_the_same_each_time(
    calls: list[ToolCallSpec], limits: dict[str, int], most: int | None
) -> None:
    runs = [Run(calls, limits, most) for _ in range(3)]
    outcomes = [asyncio.run(run.start()) for run in runs]
    assert len({outcome.order for outcome in outcomes}) == 1
    assert runs[0].log == runs[1].log == runs[2].log
    assert runs[0].told == runs[1].told == runs[2].told
