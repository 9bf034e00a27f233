"""Plans of random graphs: what holds for every one of them."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, strategies as st

from executionkit.tools.scheduling import (
    ExecutionPlan,
    GreedyDagScheduler,
    PlanError,
    SchedulingConstraints,
    ToolCallSpec,
    ToolMetadata,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

POOLS = ("a", "b", "c")


@st.composite
def graphs(draw: st.DrawFn, most: int = 14) -> list[ToolCallSpec]:
    """Calls in an order that need not be the order of their dependencies."""
    count = draw(st.integers(0, most))
    calls: list[ToolCallSpec] = []
    for number in range(count):
        size = min(number, 3)
        earlier = st.lists(
            st.integers(0, max(number - 1, 0)), max_size=size, unique=True
        )
        calls.append(
            ToolCallSpec(
                f"c{number}",
                "tool",
                depends_on=tuple([f"c{n}" for n in draw(earlier)]),
                metadata=ToolMetadata(
                    pool=draw(st.sampled_from(POOLS)),
                    weight=draw(st.integers(1, 2)),
                    est_ms=draw(st.none() | st.integers(0, 40)),
                    cost=draw(st.none() | st.integers(0, 4)),
                    priority=draw(st.integers(-1, 2)),
                ),
                timeout_ms=draw(st.none() | st.integers(1, 60)),
                max_retries=draw(st.none() | st.integers(0, 3)),
            )
        )
    return draw(st.permutations(calls))


limits_of_pools = st.dictionaries(st.sampled_from(POOLS), st.integers(2, 4))
constraints = st.builds(
    SchedulingConstraints,
    deadline_ms=st.none() | st.integers(0, 200),
    max_cost=st.none() | st.integers(0, 12),
    pool_limits=limits_of_pools,
    now_ms=st.integers(0, 20),
)
SCHEDULER = GreedyDagScheduler(default_est_ms=25)


def length(call: ToolCallSpec) -> int:
    return 25 if call.metadata.est_ms is None else call.metadata.est_ms


def longest_chain(
    calls: Sequence[ToolCallSpec], lengths: dict[str, int]
) -> dict[str, int]:
    """The end of each call when nothing has to queue; only calls in `lengths`."""
    by_id = {call.call_id: call for call in calls}
    ends: dict[str, int] = {}

    def end(call_id: str) -> int:
        if call_id not in ends:
            needs = by_id[call_id].depends_on
            ends[call_id] = lengths[call_id] + max(map(end, needs), default=0)
        return ends[call_id]

    for call_id in lengths:
        end(call_id)
    return ends


def played(calls: Sequence[ToolCallSpec], limits: dict[str, int]) -> int:
    """The end of the last call, played through millisecond by millisecond."""
    ranked = sorted(calls, key=lambda call: (-call.metadata.priority, length(call)))
    ends: dict[str, int] = {}
    now = 0
    while len(ends) < len(calls):
        over = {call_id for call_id, end in ends.items() if end <= now}
        begun: set[str] = set()
        for call in ranked:
            meta = call.metadata
            used = sum(
                c.metadata.weight
                for c in calls
                if c.metadata.pool == meta.pool
                and c.call_id in ends
                and c.call_id not in over
            )
            if (
                call.call_id not in ends
                and over.issuperset(call.depends_on)
                and used + meta.weight <= limits.get(meta.pool, 10**9)
            ):
                ends[call.call_id] = now + length(call)
                begun.add(call.call_id)
        # A call of 0 ms may let another one start in the same moment.
        now += not begun
    return max(ends.values(), default=0)


@pytest.mark.req("plan.complete", "plan.stages", "plan.retries", "T-27")
@given(graphs(), constraints)
def test_every_call_is_scheduled_or_skipped_and_stages_keep_the_limits(
    calls: list[ToolCallSpec], limits: SchedulingConstraints
) -> None:
    made = SCHEDULER.plan(calls, limits)
    by_id = {call.call_id: call for call in calls}
    scheduled = made.all_scheduled_calls
    assert scheduled | set(made.skip) == set(by_id)
    assert not scheduled & set(made.skip)
    assert sum(map(len, made.stages)) + len(made.skip) == len(calls)
    assert list(made.skip) == [c.call_id for c in calls if c.call_id in made.skip]
    assert tuple(reason.call_id for reason in made.skip_reasons) == made.skip
    done: set[str] = set()
    peaks: Counter[str] = Counter()
    for stage in made.stages:
        assert stage
        assert all(done.issuperset(by_id[call_id].depends_on) for call_id in stage)
        done.update(stage)
        used: Counter[str] = Counter()
        for call_id in stage:
            used[by_id[call_id].metadata.pool] += by_id[call_id].metadata.weight
        assert all(used[pool] <= limit for pool, limit in limits.pool_limits.items())
        peaks |= used
    assert made.pool_utilization == peaks
    assert made.per_call_max_retries == {
        call.call_id: call.max_retries
        for call in calls
        if call.max_retries is not None and call.call_id in scheduled
    }


@pytest.mark.req("plan.skip-deadline", "plan.skip-cost", "plan.skip-cascade")
@given(graphs(), constraints)
def test_every_skip_has_its_reason(
    calls: list[ToolCallSpec], limits: SchedulingConstraints
) -> None:
    made = SCHEDULER.plan(calls, limits)
    by_id = {call.call_id: call for call in calls}
    skipped = set(made.skip)
    for item in made.skip_reasons:
        call = by_id[item.call_id]
        behind = bool(skipped.intersection(call.depends_on))
        assert (item.reason == "dependency_skipped") is behind
        if item.reason == "deadline_exceeded":
            assert limits.deadline_ms is not None
            assert call.metadata.priority <= 0
        if item.reason == "cost_exceeded":
            assert limits.max_cost is not None
            assert call.metadata.cost
    for call_id in made.all_scheduled_calls:
        assert not skipped.intersection(by_id[call_id].depends_on)
    spent = sum(by_id[c].metadata.cost or 0 for c in made.all_scheduled_calls)
    if limits.max_cost is not None:
        assert spent <= limits.max_cost
        required = sum(c.metadata.cost or 0 for c in calls if c.metadata.priority > 0)
        if required <= limits.max_cost:
            dear = {r.call_id for r in made.skip_reasons if r.reason == "cost_exceeded"}
            assert all(by_id[call_id].metadata.priority <= 0 for call_id in dear)
    if limits.deadline_ms is None and limits.max_cost is None:
        assert not skipped


@pytest.mark.req("plan.skip-deadline", "plan.estimates")
@given(graphs(), st.integers(1, 200))
def test_without_pools_exactly_the_late_optional_calls_are_skipped(
    calls: list[ToolCallSpec], deadline: int
) -> None:
    made = SCHEDULER.plan(calls, SchedulingConstraints(deadline_ms=deadline))
    ends = longest_chain(calls, {call.call_id: length(call) for call in calls})
    late = {
        call.call_id
        for call in calls
        if call.metadata.priority <= 0 and ends[call.call_id] > deadline * 0.8 + 1e-9
    }
    while True:  # what needs a late one; what is late behind a skipped one stays in
        more = {c.call_id for c in calls if late.intersection(c.depends_on)} - late
        if not more:
            break
        late |= more
    assert set(made.skip) == late


@pytest.mark.req("plan.estimates")
@given(graphs(most=9), limits_of_pools)
def test_the_estimated_end_is_what_playing_it_through_gives(
    calls: list[ToolCallSpec], limits: dict[str, int]
) -> None:
    made = SCHEDULER.plan(calls, SchedulingConstraints(pool_limits=limits))
    assert made.estimated_total_ms == played(calls, limits)
    ends = longest_chain(calls, {call.call_id: length(call) for call in calls})
    assert made.critical_path_ms == max(ends.values(), default=0)
    assert made.critical_path_ms <= made.estimated_total_ms
    free = SCHEDULER.plan(calls, SchedulingConstraints())
    assert free.estimated_total_ms == made.critical_path_ms


@pytest.mark.req("plan.timeouts", "T-27")
@given(graphs(), st.integers(1, 200), limits_of_pools)
def test_timeouts_along_a_chain_fit_into_the_time_that_is_left(
    calls: list[ToolCallSpec], left: int, limits: dict[str, int]
) -> None:
    made = SCHEDULER.plan(
        calls,
        SchedulingConstraints(deadline_ms=left + 7, now_ms=7, pool_limits=limits),
    )
    by_id = {call.call_id: call for call in calls}
    timeouts = dict(made.per_call_timeout_ms)
    assert timeouts.keys() == made.all_scheduled_calls
    for call_id, timeout in timeouts.items():
        assert 1 <= timeout <= min(left, by_id[call_id].timeout_ms or left)
    depth = max(longest_chain(calls, dict.fromkeys(timeouts, 1)).values(), default=0)
    ends = longest_chain(calls, timeouts)
    if depth <= left:
        assert max(ends.values(), default=0) <= left
    wishes = {c: by_id[c].timeout_ms or max(length(by_id[c]), 1) for c in timeouts}
    if max(longest_chain(calls, wishes).values(), default=0) <= left:
        assert all(timeouts[c] >= wishes[c] for c in timeouts)


@pytest.mark.req("plan.order")
@given(graphs(), constraints, st.randoms(use_true_random=False))
def test_the_order_of_submission_only_breaks_ties(
    calls: list[ToolCallSpec], limits: SchedulingConstraints, chance: random.Random
) -> None:
    made = SCHEDULER.plan(calls, limits)
    assert SCHEDULER.plan(tuple(calls), limits, {"any": 1}) == made
    shuffled = calls.copy()
    chance.shuffle(shuffled)
    other = SCHEDULER.plan(shuffled, limits)
    if not made.skip and not other.skip:
        assert other.critical_path_ms == made.critical_path_ms
    distinct = {(c.metadata.priority, length(c)) for c in calls}
    if len(distinct) == len(calls):
        assert _unordered(other) == _unordered(made)


def _unordered(made: ExecutionPlan) -> tuple[object, ...]:
    return (
        made.stages,
        made.per_call_timeout_ms,
        # Of several skipped dependencies any one may be named.
        {(item.call_id, item.reason) for item in made.skip_reasons},
        made.critical_path_ms,
        made.estimated_total_ms,
    )


@pytest.mark.req("plan.errors")
@given(
    st.lists(
        st.tuples(st.sampled_from("ABCDEF"), st.lists(st.sampled_from("ABCDEFG"))),
        max_size=8,
    )
)
@example([("A", ["B"]), ("B", ["A"]), ("C", ["A", "C", "G"])])
def test_every_mistake_is_found_and_no_healthy_call_is_blamed(
    pairs: list[tuple[str, list[str]]],
) -> None:
    calls = [ToolCallSpec(name, "t", depends_on=tuple(ns)) for name, ns in pairs]
    needs: dict[str, set[str]] = {}
    for name, names in pairs:
        needs.setdefault(name, set()).update(names)
    reach = {name: set(names) for name, names in needs.items()}
    for _ in needs:
        for found in reach.values():
            found.update(*[reach.get(n, ()) for n in list(found)])
    twice = sorted(n for n, k in Counter(n for n, _ in pairs).items() if k > 1)
    selves = sorted(name for name, names in needs.items() if name in names)
    unknown = {n: {x for x in xs if x not in needs} for n, xs in needs.items()}
    partners = {
        name: frozenset(o for o in needs if o in reach[name] and name in reach[o])
        for name in needs
    }
    cycles = {part for part in partners.values() if len(part) > 1}
    try:
        SCHEDULER.plan(calls, SchedulingConstraints())
    except PlanError as error:
        details = error.details
    else:
        details = {}
    assert sorted(details.get("duplicate_ids", [])) == twice
    assert sorted(details.get("self_dependencies", [])) == selves
    assert {
        name: set(names)
        for name, names in details.get("unknown_dependencies", {}).items()
    } == {name: names for name, names in unknown.items() if names}
    assert {frozenset(part) for part in details.get("cycles", [])} == cycles


@pytest.mark.req("plan.large")
@pytest.mark.parametrize("shape", ["chain", "fan", "layers"])
@pytest.mark.parametrize("limit", [None, 1])
def test_many_calls_are_planned_without_recursion(
    shape: str, limit: int | None
) -> None:
    count = 20_000
    needs: Callable[[int], tuple[str, ...]] = {
        "chain": lambda n: (str(n - 1),) if n else (),
        "fan": lambda n: ("0",) if n else (),
        "layers": lambda n: (
            (str(n - 100), str(n // 100 * 100 - 100)) if n >= 100 else ()
        ),
    }[shape]
    calls = [ToolCallSpec(str(n), "t", depends_on=needs(n)) for n in range(count)]
    made = SCHEDULER.plan(
        calls,
        SchedulingConstraints(
            deadline_ms=10**9, pool_limits={"default": limit} if limit else {}
        ),
    )
    assert not made.skip
    depth = {"chain": count, "fan": 2, "layers": count // 100}[shape]
    assert made.critical_path_ms == 25 * depth
    assert made.total_stages == (count if limit else depth)
    assert made.estimated_total_ms == 25 * (count if limit else depth)
