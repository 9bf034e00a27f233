"""Estimated starts: what runs beside what when pools have limits."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executionkit.tools._scheduling.graph import Graph
    from executionkit.tools._scheduling.lanes import Lanes

__all__ = ("Admits", "Schedule", "list_schedule", "start_when_ready")


class Admits(Protocol):
    """Decides, at its estimated start, whether a call is part of the plan."""

    def __call__(self, rank: int, start: int, /) -> bool: ...


class Schedule(NamedTuple):
    """When each call starts, and in which stage it stands; -1 = left out."""

    starts: list[int]
    stages: list[int]


def list_schedule(
    graph: Graph, lengths: Sequence[int], lanes: Lanes, admits: Admits | None
) -> Schedule:
    """Each call starts as soon as its dependencies and its pool allow.

    The calls of `graph` stand in order of rank. All that ends at one moment is over
    before anything starts at that moment.
    """
    count = len(lengths)
    children = graph.children
    waiting = graph.waiting.copy()
    starts = [-1] * count
    started: list[int] = []
    running: list[int] = []  # end * count + rank: one number instead of a pair
    add, take, release = lanes.add, lanes.take, lanes.release
    now = 0
    for rank, need in enumerate(waiting):
        if not need:
            add(rank)
    while True:
        while (rank := take()) >= 0:
            if admits is None or admits(rank, now):
                starts[rank] = now
                started.append(rank)
                heappush(running, (now + lengths[rank]) * count + rank)
            else:
                release(rank)
        if not running:
            return Schedule(starts, _pack(graph, started, lanes))
        now = running[0] // count
        after = (now + 1) * count
        while running and running[0] < after:
            rank = heappop(running) % count
            release(rank)
            for child in children[rank]:
                waiting[child] -= 1
                if not waiting[child]:
                    add(child)


def _pack(graph: Graph, started: Sequence[int], lanes: Lanes) -> list[int]:
    """Each call in the first stage behind its dependencies where its pool has room."""
    children = graph.children
    count = len(graph.waiting)
    earliest = [0] * count
    stages = [-1] * count
    place = lanes.first_fit()
    for rank in started:
        stage = stages[rank] = place(rank, earliest[rank])
        for child in children[rank]:
            if earliest[child] <= stage:
                earliest[child] = stage + 1
    return stages


def start_when_ready(
    graph: Graph, lengths: Sequence[int], admits: Admits | None
) -> Schedule:
    """The same without limits: a call starts when the last one that it needs ends."""
    children = graph.children
    starts = [0] * len(lengths)
    stages = [0] * len(lengths)
    for rank in graph.order:
        start = starts[rank]
        if admits is not None and (start < 0 or not admits(rank, start)):
            # -1 is final: what needs a call that is left out is left out too.
            starts[rank] = stages[rank] = -1
            for child in children[rank]:
                starts[child] = -1
            continue
        end = start + lengths[rank]
        behind = stages[rank] + 1
        for child in children[rank]:
            if 0 <= starts[child] < end:
                starts[child] = end
            if stages[child] < behind:
                stages[child] = behind
    return Schedule(starts, stages)
