"""Plans for tool calls that depend on each other: order, limits, what to leave out.

```python
scheduler = GreedyDagScheduler()
plan = scheduler.plan(
    [
        ToolCallSpec("fetch", "web.fetch", {"url": "/users"}),
        ToolCallSpec("store", "db.write", depends_on=("fetch",)),
    ],
    SchedulingConstraints(deadline_ms=5000, pool_limits={"default": 4}),
)
plan.stages  # (("fetch",), ("store",))
```

Nothing here runs a call or reads a clock. `ReadyQueue` is what an executor asks while a
plan runs: it hands a call out the moment its dependencies are done.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING

from executionkit._frozen import FrozenDict, sealed
from executionkit.engine._checks import check_int, check_number
from executionkit.tools._scheduling.admission import Admission, remaining_ms
from executionkit.tools._scheduling.graph import (
    PlanError,
    build_graph,
    checked_calls,
    longest,
)
from executionkit.tools._scheduling.lanes import Lanes
from executionkit.tools._scheduling.ready import ReadyQueue
from executionkit.tools._scheduling.simulate import list_schedule, start_when_ready
from executionkit.tools._scheduling.timeouts import call_timeouts
from executionkit.tools._scheduling.values import (
    ExecutionPlan,
    SchedulerPolicy,
    SchedulingConstraints,
    SkipCause,
    SkipReason,
    ToolCallSpec,
    ToolMetadata,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = (
    "ExecutionPlan",
    "GreedyDagScheduler",
    "PlanError",
    "ReadyQueue",
    "SchedulerPolicy",
    "SchedulingConstraints",
    "SkipCause",
    "SkipReason",
    "ToolCallSpec",
    "ToolMetadata",
)


@sealed
@dataclass(frozen=True, slots=True)
class GreedyDagScheduler:
    """Starts every call as early as its dependencies and its pool allow.

    Among calls that could start, the higher priority goes first, then the shorter
    estimate, then the one submitted earlier. Times are estimated by playing that through:
    calls run beside each other, up to the limit of their pool.

    - **Deadline**: a call of priority 0 or below that would end after
      `skip_threshold_ratio` of the time left is skipped. Where it waits for several calls
      of one limited pool, only that share of the pool's slots is counted on for them. A
      call of priority above 0 is never skipped for the deadline; give what it needs a
      priority above 0 too.
    - **Budget**: `max_cost` holds for all calls. The cost of calls of priority above 0 is
      set aside first; when these alone are too dear, those that would start last are
      skipped. A plan never costs more than `max_cost`.
    - What needs a skipped call is skipped, whatever its priority.

    O((calls + dependencies) log calls) in time.
    """

    default_est_ms: int = 1000
    """Milliseconds for calls without an estimate."""

    skip_threshold_ratio: float = 0.8
    """The share of the time left that optional calls may count on; above 0, at most 1."""

    def __post_init__(self) -> None:
        check_int("default_est_ms", self.default_est_ms, 0)
        check_number("skip_threshold_ratio", self.skip_threshold_ratio, above=True)
        if self.skip_threshold_ratio > 1:
            msg = f"skip_threshold_ratio must be <= 1, got {self.skip_threshold_ratio}"
            raise ValueError(msg)

    def plan(
        self,
        calls: Sequence[ToolCallSpec],
        constraints: SchedulingConstraints,
        context: Mapping[str, object] | None = None,
    ) -> ExecutionPlan:
        """The plan for `calls`. The same input gives the same plan in every process.

        Args:
            calls: The calls, in any order.
            constraints: Deadline, budget, limits of pools.
            context: Not used by this scheduler.

        Raises:
            PlanError: Ids given twice, unknown dependencies, cycles, calls heavier than
                their pool: all of them in one error, before anything runs.
            TypeError: When something in `calls` is no `ToolCallSpec`.
        """
        del context
        given = checked_calls(calls)
        metadata = [call.metadata for call in given]
        limits = _used_limits(metadata, constraints.pool_limits)
        graph = build_graph(given, limits)
        lengths = self._lengths(metadata)
        order = _by_rank(metadata, lengths)
        left = remaining_ms(constraints)
        admission = None
        if left is not None or constraints.max_cost is not None:
            ratio = self.skip_threshold_ratio
            admission = Admission(graph, given, lengths, constraints, ratio)
        if limits or constraints.max_cost is not None:
            lanes = Lanes([metadata[number] for number in order], limits)
            starts, stage_of = list_schedule(graph, lengths, order, lanes, admission)
        else:
            starts, stage_of = start_when_ready(graph, lengths, admission)
        reasons = admission.reasons() if admission else ()
        if reasons:
            lengths = [n if s >= 0 else 0 for n, s in zip(lengths, starts, strict=True)]
        stages = _named(given, order, stage_of)
        # A skipped call adds nothing: it starts at -1 and has no length.
        total = max(0, max(map(add, starts, lengths), default=0))
        return ExecutionPlan(
            stages=stages,
            per_call_timeout_ms=FrozenDict(
                call_timeouts(graph, given, lengths, starts, left)
            ),
            per_call_max_retries=FrozenDict(_retries(given, starts)),
            skip=tuple([reason.call_id for reason in reasons]),
            skip_reasons=reasons,
            critical_path_ms=longest(graph, lengths) if limits else total,
            estimated_total_ms=total,
            pool_utilization=_utilization(metadata, stage_of, stages),
        )

    def _lengths(self, metadata: Sequence[ToolMetadata]) -> list[int]:
        unknown = self.default_est_ms
        return [unknown if meta.est_ms is None else meta.est_ms for meta in metadata]


def _by_rank(metadata: Sequence[ToolMetadata], lengths: Sequence[int]) -> list[int]:
    """Numbers of the calls, the best first (sorting is stable)."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    priorities = [meta.priority for meta in metadata]
    order.sort(key=priorities.__getitem__, reverse=True)
    return order


def _used_limits(
    metadata: Sequence[ToolMetadata], limits: Mapping[str, int]
) -> dict[str, int]:
    """Limits of the pools that occur."""
    used = {meta.pool for meta in metadata} if limits else set[str]()
    return {pool: limit for pool, limit in limits.items() if pool in used}


def _named(
    calls: Sequence[ToolCallSpec], order: Sequence[int], stage_of: Sequence[int]
) -> tuple[tuple[str, ...], ...]:
    stages: list[list[str]] = [[] for _ in range(max(stage_of, default=-1) + 1)]
    for number in order:
        stage = stage_of[number]
        if stage >= 0:
            stages[stage].append(calls[number].call_id)
    return tuple([tuple(stage) for stage in stages])


def _retries(calls: Sequence[ToolCallSpec], starts: Sequence[int]) -> dict[str, int]:
    return {
        call.call_id: call.max_retries
        for call, start in zip(calls, starts, strict=True)
        if call.max_retries is not None and start >= 0
    }


def _utilization(
    metadata: Sequence[ToolMetadata],
    stage_of: Sequence[int],
    stages: Sequence[Sequence[str]],
) -> dict[str, int]:
    """The most slots of each pool in one stage, pools by name."""
    names = sorted({meta.pool for meta in metadata})
    if len(names) == 1 and {meta.weight for meta in metadata} == {1}:
        return {names[0]: max(map(len, stages))} if stages else {}
    base = {pool: number for number, pool in enumerate(names)}
    slots: dict[int, int] = {}
    for meta, stage in zip(metadata, stage_of, strict=True):
        if stage >= 0:
            key = stage * len(names) + base[meta.pool]
            slots[key] = slots.get(key, 0) + meta.weight
    peaks = [0] * len(names)
    for key, taken in slots.items():
        if taken > peaks[key % len(names)]:
            peaks[key % len(names)] = taken
    return {pool: peak for pool, peak in zip(names, peaks, strict=True) if peak}
