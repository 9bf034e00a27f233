"""Which calls are part of a plan: the deadline and the budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from executionkit.tools._scheduling.values import SkipCause, SkipReason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from executionkit.tools._scheduling.graph import Graph
    from executionkit.tools._scheduling.values import (
        SchedulingConstraints,
        ToolCallSpec,
    )

__all__ = ("Admission", "crowded_starts", "remaining_ms")

# Sums of prices such as 0.1 are not exact; a budget is not missed by a rounding error.
_ROUNDING = 1e-9


def remaining_ms(constraints: SchedulingConstraints) -> int | None:
    """Milliseconds from now to the deadline, at least 0. None = no deadline."""
    if constraints.deadline_ms is None:
        return None
    return max(0, constraints.deadline_ms - constraints.now_ms)


class Admission:
    """Decides on each call once, at its estimated start; remembers why it said no.

    Deadline: an optional call (priority 0 and below) that would end after `ratio` of
    the time left is skipped. Budget: no call is scheduled that would take the sum over
    `max_cost`; what required calls (priority above 0) cost is set aside first.
    """

    __slots__ = (
        "_budget",
        "_calls",
        "_crowded",
        "_graph",
        "_latest",
        "_lengths",
        "_reserved",
        "_spent",
        "causes",
    )

    def __init__(
        self,
        graph: Graph,
        calls: Sequence[ToolCallSpec],
        lengths: Sequence[int],
        constraints: SchedulingConstraints,
        ratio: float,
    ) -> None:
        self.causes: dict[int, tuple[SkipCause, str]] = {}
        """Number of each skipped call, with the reason and its words."""
        self._graph = graph
        self._calls = calls
        self._lengths = lengths
        self._budget = constraints.max_cost
        self._spent = 0.0
        self._reserved = 0.0
        if self._budget is not None:
            required = [c.metadata for c in calls if c.metadata.priority > 0]
            self._reserved = math.fsum([meta.cost or 0 for meta in required])
        left = remaining_ms(constraints)
        self._latest: int | None = None
        self._crowded: Sequence[int] | None = None
        if left is not None:
            # With no time left not even a call of 0 ms is in time.
            self._latest = math.floor(left * ratio + _ROUNDING) if left else -1
            if constraints.pool_limits:
                limits = constraints.pool_limits
                self._crowded = crowded_starts(graph, calls, lengths, limits, ratio)

    def __call__(self, rank: int, start: int, /) -> bool:
        meta = self._calls[rank].metadata
        if self._latest is not None and meta.priority <= 0:
            if self._crowded is not None:
                start = max(start, self._crowded[rank])
            end = start + self._lengths[rank]
            if end > self._latest:
                why = f"would end after {end} ms; optional calls have {self._latest} ms"
                self._skip(rank, SkipCause.DEADLINE_EXCEEDED, why)
                return False
        if self._budget is not None and meta.cost:
            return self._charge(rank, meta.cost, self._budget)
        return True

    def _charge(self, rank: int, cost: float, budget: float) -> bool:
        if self._calls[rank].metadata.priority > 0:
            self._reserved -= cost
            taken = self._spent
        else:
            taken = self._spent + max(0.0, self._reserved)
        if taken + cost <= budget + budget * _ROUNDING:
            self._spent += cost
            return True
        # Given back: `_skip` takes it away for each call that it leaves out.
        if self._calls[rank].metadata.priority > 0:
            self._reserved += cost
        why = f"costs {cost:g}; {max(0.0, budget - taken):g} of {budget:g} is left"
        self._skip(rank, SkipCause.COST_EXCEEDED, why)
        return False

    def _skip(self, rank: int, cause: SkipCause, why: str) -> None:
        causes = self.causes
        causes[rank] = cause, why
        todo = [rank]
        while todo:
            node = todo.pop()
            meta = self._calls[node].metadata
            if meta.cost and meta.priority > 0:
                self._reserved -= meta.cost
            for child in self._graph.children[node]:
                if child not in causes:
                    needs = f"needs {self._calls[node].call_id!r}, which is skipped"
                    causes[child] = SkipCause.DEPENDENCY_SKIPPED, needs
                    todo.append(child)

    def reasons(self, order: Sequence[int]) -> tuple[SkipReason, ...]:
        """Why calls are skipped, as submitted (`order`: rank to place)."""
        return tuple(
            [
                SkipReason(self._calls[rank].call_id, *self.causes[rank])
                for rank in sorted(self.causes, key=order.__getitem__)
            ]
        )


def crowded_starts(
    graph: Graph,
    calls: Sequence[ToolCallSpec],
    lengths: Sequence[int],
    limits: Mapping[str, int],
    ratio: float,
) -> list[int]:
    """The start of each call when others use the limited pools too.

    Where a call waits for several of one limited pool, only `ratio` of the pool's slots
    (rounded down, at least 1) are counted on for them. This is what the example of the
    requirement document takes: two calls of 300 ms in a pool of 2 are no sure 300 ms
    for what optional work may count on.
    """
    starts = [0] * len(calls)
    index = graph.index
    for rank in graph.order:
        parents = [index[name] for name in calls[rank].depends_on]
        if not parents:
            continue
        begin = max([starts[parent] + lengths[parent] for parent in parents])
        if len(parents) > 1:
            crowds: dict[str, list[int]] = {}
            for parent in parents:
                pool = calls[parent].metadata.pool
                if pool in limits:
                    crowds.setdefault(pool, []).append(parent)
            for pool, crowd in crowds.items():
                weights = [calls[parent].metadata.weight for parent in crowd]
                slots = max(int(limits[pool] * ratio + _ROUNDING), *weights, 1)
                work = sum(
                    [lengths[p] * w for p, w in zip(crowd, weights, strict=True)]
                )
                first = min([starts[parent] for parent in crowd])
                begin = max(begin, first - (-work // slots))
        starts[rank] = begin
    return starts
