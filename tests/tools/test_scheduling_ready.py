"""The queue that an executor asks: order, pools, failures."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from executionkit.tools.scheduling import (
    GreedyDagScheduler,
    PlanError,
    ReadyQueue,
    SchedulingConstraints,
    ToolCallSpec,
    ToolMetadata,
)


def spec(
    call_id: str,
    *needs: str,
    pool: str = "p",
    weight: int = 1,
    est_ms: int | None = None,
    priority: int = 0,
) -> ToolCallSpec:
    metadata = ToolMetadata(pool, weight, est_ms, None, priority)
    return ToolCallSpec(call_id, "t", {}, metadata, needs)


def drain(queue: ReadyQueue) -> list[str]:
    """The ids of all calls that can start now."""
    ids: list[str] = []
    while (call := queue.next_ready()) is not None:
        ids.append(call.call_id)
    return ids


@st.composite
def graphs(draw: st.DrawFn) -> list[ToolCallSpec]:
    count = draw(st.integers(0, 16))
    calls: list[ToolCallSpec] = []
    for number in range(count):
        size = min(number, 3)
        earlier = st.lists(
            st.integers(0, max(number - 1, 0)), max_size=size, unique=True
        )
        calls.append(
            spec(
                f"c{number}",
                *[f"c{n}" for n in draw(earlier)],
                pool=draw(st.sampled_from("abc")),
                weight=draw(st.integers(1, 3)),
                est_ms=draw(st.none() | st.integers(0, 9)),
                priority=draw(st.integers(-1, 1)),
            )
        )
    return draw(st.permutations(calls))


limits_of_pools = st.dictionaries(st.sampled_from("abc"), st.integers(3, 5))


def behind(calls: list[ToolCallSpec], roots: set[str]) -> set[str]:
    found: set[str] = set()
    while True:
        more = {
            call.call_id
            for call in calls
            if (roots | found).intersection(call.depends_on)
        } - found
        if not more:
            return found - roots
        found |= more


@pytest.mark.req("ready.once", "ready.pools", "ready.failure")
@given(graphs(), limits_of_pools, st.randoms(use_true_random=False), st.booleans())
def test_every_call_runs_once_in_time_within_its_pool_or_is_skipped(
    calls: list[ToolCallSpec],
    limits: dict[str, int],
    chance: random.Random,
    keep_on: bool,
) -> None:
    planned = {call.call_id for call in calls if chance.random() < 0.1}
    queue = ReadyQueue(calls, limits, skip=planned, continue_on_error=keep_on)
    never = planned | behind(calls, planned)
    assert set(queue.skipped) == never
    by_id = {call.call_id: call for call in calls}
    running: list[ToolCallSpec] = []
    ended: set[str] = set()
    failed: set[str] = set()
    while not queue.is_done:
        call = queue.next_ready() if chance.random() < 0.8 or not running else None
        if call is not None:
            assert call is by_id[call.call_id]
            assert ended.issuperset(call.depends_on)
            assert call.call_id not in ended | never
            assert call not in running
            running.append(call)
        elif running:
            _nothing_fits_or_was_asked(queue, calls, running, ended, never, limits)
            over = running.pop(chance.randrange(len(running)))
            ok = chance.random() < 0.7
            told = queue.finish(over.call_id, ok=ok)
            ended.add(over.call_id)
            lost: set[str] = set()
            if not ok:
                failed.add(over.call_id)
                lost = set() if keep_on else behind(calls, {over.call_id}) - never
            assert list(told) == [c.call_id for c in calls if c.call_id in lost]
            never |= lost
        else:
            pytest.fail("the queue stands still")
        used: Counter[str] = Counter()
        for item in running:
            used[item.metadata.pool] += item.metadata.weight
        assert all(used[pool] <= limit for pool, limit in limits.items())
        assert queue.running == len(running)
    assert not running
    assert queue.next_ready() is None
    assert ended | never == set(by_id)
    assert not ended & never
    assert set(queue.skipped) == never
    assert len(queue.skipped) == len(never)


def _nothing_fits_or_was_asked(
    queue: ReadyQueue,
    calls: list[ToolCallSpec],
    running: list[ToolCallSpec],
    ended: set[str],
    never: set[str],
    limits: dict[str, int],
) -> None:
    """Take all there is: then no ready call may fit, and the best one went first."""
    while True:
        used: Counter[str] = Counter()
        for item in running:
            used[item.metadata.pool] += item.metadata.weight
        busy = {item.call_id for item in running}
        could = [
            call
            for call in calls
            if call.call_id not in busy | ended | never
            and ended.issuperset(call.depends_on)
            and used[call.metadata.pool] + call.metadata.weight
            <= limits.get(call.metadata.pool, 10**9)
        ]
        call = queue.next_ready()
        if call is None:
            assert not could
            return
        top = max(item.metadata.priority for item in could)
        assert call in could
        assert call.metadata.priority == top
        running.append(call)


@pytest.mark.req("ready.order")
def test_priority_then_the_longer_chain_then_submission_goes_first() -> None:
    calls = [
        spec("short", est_ms=5),
        spec("twin", est_ms=5),
        spec("root", est_ms=1),
        spec("leaf", "root", est_ms=9),
        spec("urgent", est_ms=0, priority=1),
    ]
    assert drain(ReadyQueue(calls)) == ["urgent", "root", "short", "twin"]
    unknown = ReadyQueue([spec("a", est_ms=50), spec("b")], default_est_ms=49)
    assert drain(unknown) == ["a", "b"]
    assert drain(ReadyQueue([spec("a", est_ms=50), spec("b")])) == ["b", "a"]


@pytest.mark.req("ready.once", "T-27")
def test_a_call_starts_the_moment_its_own_dependencies_are_done() -> None:
    queue = ReadyQueue([spec("a"), spec("b", "a"), spec("slow"), spec("c", "slow")])
    assert drain(queue) == ["a", "slow"]
    assert queue.finish("a", ok=True) == ()
    assert drain(queue) == ["b"]  # no stage: `slow` still runs
    assert not queue.is_done


@pytest.mark.req("ready.pools")
def test_a_light_call_does_not_wait_behind_a_heavy_one() -> None:
    calls = [
        spec("first", weight=2, priority=3),
        spec("heavy", weight=3, priority=2),
        spec("light", priority=1),
        spec("other", pool="q"),
    ]
    queue = ReadyQueue(calls, {"p": 3})
    assert drain(queue) == ["first", "light", "other"]
    queue.finish("first", ok=True)
    assert drain(queue) == []
    queue.finish("light", ok=True)
    assert drain(queue) == ["heavy"]


@pytest.mark.req("ready.failure")
def test_a_failure_skips_what_needs_it_once_unless_told_otherwise() -> None:
    calls = [spec("c", "b"), spec("a"), spec("b", "a"), spec("d", "a", "x"), spec("x")]
    queue = ReadyQueue(calls)
    assert drain(queue) == ["a", "x"]
    assert queue.finish("a", ok=False) == ("c", "b", "d")
    assert queue.finish("x", ok=False) == ()
    assert queue.is_done
    assert queue.skipped == ("c", "b", "d")
    stubborn = ReadyQueue(calls, continue_on_error=True)
    drain(stubborn)
    assert stubborn.finish("a", ok=False) == ()
    assert drain(stubborn) == ["b"]


@pytest.mark.req("ready.failure")
def test_what_a_plan_skips_is_never_handed_out() -> None:
    calls = [spec("late", est_ms=900), spec("next", "late"), spec("ok", est_ms=1)]
    plan = GreedyDagScheduler().plan(calls, SchedulingConstraints(deadline_ms=1000))
    queue = ReadyQueue(calls, skip=plan.skip, continue_on_error=True)
    assert drain(queue) == ["ok"]
    queue.finish("ok", ok=True)
    assert queue.is_done
    assert queue.skipped == plan.skip == ("late", "next")
    # A plan of another scheduler may name the first one only.
    assert ReadyQueue(calls, skip=["late"]).skipped == ("late", "next")


@pytest.mark.req("ready.once")
def test_what_cannot_be_is_refused() -> None:
    queue = ReadyQueue([spec("a"), spec("b", "a")])
    for call_id, state in (("a", "not started"), ("nobody", "unknown")):
        with pytest.raises(ValueError, match=f"'{call_id}' .* it is {state}"):
            queue.finish(call_id, ok=True)
    drain(queue)
    queue.finish("a", ok=False)
    for call_id, state in (("a", "finished"), ("b", "skipped")):
        with pytest.raises(ValueError, match=f"'{call_id}' .* it is {state}"):
            queue.finish(call_id, ok=True)
    with pytest.raises(ValueError, match="`skip` names 'x'"):
        ReadyQueue([spec("a")], skip=["x"])
    with pytest.raises(ValueError, match=r"pool_limits\['p'\] must be >= 1"):
        ReadyQueue([spec("a")], {"p": 0})
    with pytest.raises(PlanError, match="depend on themselves"):
        ReadyQueue([spec("a", "a")])
    with pytest.raises(PlanError, match="heavier than their pool"):
        ReadyQueue([spec("a", weight=2)], {"p": 1})
    with pytest.raises(TypeError, match="ToolCallSpec"):
        ReadyQueue(["a"])  # type: ignore[list-item]
    assert ReadyQueue([]).is_done


@pytest.mark.req("plan.large")
def test_a_long_chain_needs_no_recursion() -> None:
    count = 100_000
    calls = [spec("0")] + [spec(str(n), str(n - 1)) for n in range(1, count)]
    queue = ReadyQueue(calls, {"p": 1})
    for _ in range(count // 2):
        call = queue.next_ready()
        assert call is not None
        queue.finish(call.call_id, ok=True)
    call = queue.next_ready()
    assert call is not None
    assert len(queue.finish(call.call_id, ok=False)) == count // 2 - 1
    assert queue.is_done
