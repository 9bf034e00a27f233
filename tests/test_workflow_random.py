"""Workflows of any shape: what must hold for every graph, failure and interruption."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit import (
    EvaluatorError,
    PatternResult,
    Step,
    TokenUsage,
    Workflow,
    WorkflowCheckpoint,
    WorkflowError,
)
from executionkit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Coroutine

CALL = TokenUsage(llm_calls=1)
few = settings(max_examples=60)


@dataclass
class Graph:
    """Step n depends on some of the steps before it; given in a shuffled order."""

    needs: list[list[int]]
    seconds: list[int]
    order: list[int]
    wrong: set[int] = field(default_factory=set)
    unwanted: set[int] = field(default_factory=set)
    optional: set[int] = field(default_factory=set)

    @property
    def size(self) -> int:
        return len(self.needs)


@st.composite
def graphs(draw: st.DrawFn, most: int = 9) -> Graph:
    size = draw(st.integers(1, most))
    needs = [
        sorted(draw(st.sets(st.integers(0, n - 1), max_size=3))) if n else []
        for n in range(size)
    ]
    seconds = draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    order = draw(st.permutations(range(size)))
    some = st.sets(st.integers(0, size - 1), max_size=2)
    return Graph(needs, seconds, order, draw(some), draw(some), draw(some))


class World:
    """Runs the steps of a graph and notes what happens."""

    def __init__(self, graph: Graph, *, faults: bool = False) -> None:
        self.graph = graph
        self.clock = FakeClock(auto=True)
        self.began: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self.runs: list[int] = []
        self.now = self.peak = 0
        self.faults = faults

    def steps(self) -> list[Step]:
        return [self._step(number) for number in self.graph.order]

    def _step(self, number: int) -> Step:
        async def run(context: dict[str, Any]) -> PatternResult[int]:
            for need in self.graph.needs[number]:
                assert context[f"s{need}"] == need
            self.runs.append(number)
            self.began[number] = self.clock.monotonic()
            self.now += 1
            self.peak = max(self.peak, self.now)
            try:
                await self.clock.sleep(self.graph.seconds[number])
            finally:
                self.now -= 1
                self.ended[number] = self.clock.monotonic()
            if self.faults and number in self.graph.wrong:
                raise ValueError(number)
            return PatternResult(number, cost=CALL)

        unwanted = self.faults and number in self.graph.unwanted
        needs = tuple(f"s{need}" for need in self.graph.needs[number])
        return Step(
            f"s{number}",
            run,
            needs,
            when=lambda _c: not unwanted,
            may_fail=number in self.graph.optional,
        )

    def go(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def main() -> Any:
            async with asyncio.timeout(20):
                return await work

        with self.clock.installed():
            return asyncio.run(main())


@pytest.mark.req("workflow.dataflow")
@given(graph=graphs(), limit=st.sampled_from([1, 2, 3, None]))
@few
def test_each_step_runs_once_when_its_inputs_are_there(
    graph: Graph, limit: int | None
) -> None:
    world = World(graph)
    result = world.go(Workflow(world.steps(), max_concurrency=limit).run())
    assert result.outputs == {f"s{n}": n for n in range(graph.size)}
    assert list(result.outputs) == [f"s{n}" for n in graph.order]
    assert result.cost.llm_calls == graph.size
    assert sorted(world.runs) == list(range(graph.size))
    assert limit is None or world.peak <= limit
    for number, needs in enumerate(graph.needs):
        ready = max((world.ended[need] for need in needs), default=1000.0)
        assert world.began[number] >= ready
        if limit is None:  # no barrier of any kind
            assert world.began[number] == ready


@pytest.mark.req("workflow.failure")
@given(
    graph=graphs(),
    policy=st.sampled_from(["stop", "cancel", "continue"]),
    limit=st.sampled_from([1, 2, None]),
)
@few
def test_every_step_is_accounted_for(
    graph: Graph, policy: Any, limit: int | None
) -> None:
    world = World(graph, faults=True)
    workflow = Workflow(world.steps(), max_concurrency=limit, on_failure=policy)

    async def run() -> tuple[dict[str, Any], TokenUsage]:
        try:
            result = await workflow.run()
        except EvaluatorError as exc:
            return exc.metadata, exc.cost
        facts = {
            "outputs": dict(result.outputs),
            "skipped": result.skipped,
            "failed": tuple(result.failures),
            "not_run": (),
        }
        return facts, result.cost

    facts, cost = world.go(run())
    parts = [set(facts[key]) for key in ("outputs", "failed", "skipped", "not_run")]
    everything = {f"s{n}" for n in range(graph.size)}
    assert set().union(*parts) == everything
    assert sum(map(len, parts)) == graph.size
    assert world.now == 0
    wrong = {f"s{n}" for n in graph.wrong - graph.optional}
    assert ("step" in facts) == bool(set(facts["failed"]) & wrong)
    assert cost.llm_calls == len(facts["outputs"])
    if policy == "continue":
        good: set[int] = set()
        for number, needs in enumerate(graph.needs):
            if good.issuperset(needs) and number not in graph.unwanted | graph.wrong:
                good.add(number)
        assert set(facts["outputs"]) == {f"s{n}" for n in good}
        assert not facts["not_run"]
    if policy == "stop":
        # Whatever began has an outcome.
        assert {f"s{n}" for n in world.runs} == parts[0] | parts[1]


@pytest.mark.req("workflow.resume")
@given(graph=graphs(most=6))
@few
def test_from_every_checkpoint_the_rest_runs_and_nothing_else(graph: Graph) -> None:
    world = World(graph)
    kept: list[WorkflowCheckpoint] = [WorkflowCheckpoint(0, {})]
    workflow = Workflow(world.steps())
    whole = world.go(workflow.run(checkpoint_fn=kept.append))
    assert len(kept) == graph.size + 1
    for checkpoint in kept:
        data = WorkflowCheckpoint.from_dict(checkpoint.to_dict())
        world.runs.clear()
        result = world.go(workflow.run(resume_from=data))
        assert result.outputs == whole.outputs
        rest = {n for n in range(graph.size) if f"s{n}" not in checkpoint.outputs}
        assert sorted(world.runs) == sorted(rest)
        # Paid work that had not been kept was lost, and is in the sum.
        assert result.cost.llm_calls == checkpoint.cost.llm_calls + len(rest)


@pytest.mark.req("workflow.cancel")
@given(graph=graphs(), moment=st.integers(0, 12), limit=st.sampled_from([1, 2, None]))
@few
def test_cancelled_at_any_moment_nothing_runs_on_and_nothing_done_is_lost(
    graph: Graph, moment: int, limit: int | None
) -> None:
    world = World(graph)
    kept: list[WorkflowCheckpoint] = [WorkflowCheckpoint(0, {})]
    workflow = Workflow(world.steps(), max_concurrency=limit)

    async def run() -> None:
        task = asyncio.create_task(workflow.run(checkpoint_fn=kept.append))
        await world.clock.sleep(moment + 0.5)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert world.now == 0
        assert asyncio.all_tasks() == {asyncio.current_task()} | _mains()

    def _mains() -> set[Any]:
        return {task for task in asyncio.all_tasks() if task.get_name() == "Task-1"}

    world.go(run())
    done = {
        f"s{n}"
        for n, end in world.ended.items()
        if end - world.began[n] == graph.seconds[n]
    }
    assert set(kept[-1].outputs) == done


@pytest.mark.req("workflow.check")
@given(
    st.integers(1, 6).flatmap(
        lambda size: st.lists(
            st.sets(st.integers(0, size), max_size=2), min_size=size, max_size=size
        )
    )
)
def test_a_graph_is_refused_exactly_when_it_has_no_order(needs: list[set[int]]) -> None:
    def has_order() -> bool:
        done: set[int] = set()
        while len(done) < len(needs):
            more = {n for n, some in enumerate(needs) if some <= done} - done
            if not more:
                return False
            done |= more
        return True

    steps = [
        Step(f"s{n}", lambda _c: None, tuple(f"s{m}" for m in sorted(some)))
        for n, some in enumerate(needs)
    ]
    if has_order():
        Workflow(steps)
        return
    with pytest.raises(WorkflowError) as caught:
        Workflow(steps)
    facts = caught.value.metadata
    selves = [f"s{n}" for n, some in enumerate(needs) if n in some]
    assert facts.get("self_dependencies", []) == selves
    unknown = {f"s{n}" for n, some in enumerate(needs) if len(needs) in some}
    assert set(facts.get("unknown_dependencies", {})) == unknown
