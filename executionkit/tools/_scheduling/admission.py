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
        self._latest: int | None = None
        self._crowded: Sequence[int] | None = None
        left = remaining_ms(constraints)
        # With no time left not even a call of 0 ms is in time.
        latest = -1 if not left else math.floor(left * ratio + _ROUNDING)
        if left is not None and (latest < 0 or _work(calls, lengths) > latest):
            self._latest = latest
            limits = constraints.pool_limits
            if limits:
                self._crowded = crowded_starts(graph, calls, lengths, limits, ratio)

    def __call__(self, number: int, start: int, /) -> bool:
        meta = self._calls[number].metadata
        if self._latest is not None and meta.priority <= 0:
            if self._crowded is not None:
                start = max(start, self._crowded[number])
            end = start + self._lengths[number]
            if end > self._latest:
                why = f"would end after {end} ms; optional calls have {self._latest} ms"
                self._skip(number, SkipCause.DEADLINE_EXCEEDED, why)
                return False
        if self._budget is not None and meta.cost:
            return self._charge(number, meta.cost, self._budget)
        return True

    def _charge(self, number: int, cost: float, budget: float) -> bool:
        if self._calls[number].metadata.priority > 0:
            self._reserved -= cost
            taken = self._spent
        else:
            taken = self._spent + max(0.0, self._reserved)
        if taken + cost <= budget + budget * _ROUNDING:
            self._spent += cost
            return True
        # Given back: `_skip` takes it away for each call that it leaves out.
        if self._calls[number].metadata.priority > 0:
            self._reserved += cost
        why = f"costs {cost:g}; {max(0.0, budget - taken):g} of {budget:g} is left"
        self._skip(number, SkipCause.COST_EXCEEDED, why)
        return False

    def _skip(self, number: int, cause: SkipCause, why: str) -> None:
        causes = self.causes
        causes[number] = cause, why
        todo = [number]
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

    def reasons(self) -> tuple[SkipReason, ...]:
        """Why calls are skipped, in the order in which they were given."""
        return tuple(
            [
                SkipReason(self._calls[number].call_id, *self.causes[number])
                for number in sorted(self.causes)
            ]
        )


def _work(calls: Sequence[ToolCallSpec], lengths: Sequence[int]) -> int:
    """Milliseconds when nothing runs beside anything: no call can end later."""
    return sum(
        [n * call.metadata.weight for n, call in zip(lengths, calls, strict=True)]
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
    for number in graph.order:
        names = calls[number].depends_on
        if not names:
            continue
        begin = 0
        crowds: dict[str, list[int]] = {}
        for name in names:
            parent = index[name]
            end = starts[parent] + lengths[parent]
            if end > begin:
                begin = end
            pool = calls[parent].metadata.pool
            if pool in limits:
                crowds.setdefault(pool, []).append(parent)
        for pool, crowd in crowds.items():
            if len(crowd) > 1:
                weights = [calls[parent].metadata.weight for parent in crowd]
                slots = max(int(limits[pool] * ratio + _ROUNDING), *weights)
                work = sum(
                    [lengths[p] * w for p, w in zip(crowd, weights, strict=True)]
                )
                first = min([starts[parent] for parent in crowd])
                begin = max(begin, first - (-work // slots))
        starts[number] = begin
    return starts
