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

    def __call__(self, number: int, start: int, /) -> bool: ...


class Schedule(NamedTuple):
    """When each call starts, and in which stage it stands; -1 = left out."""

    starts: list[int]
    stages: list[int]


def list_schedule(
    graph: Graph,
    lengths: Sequence[int],
    order: Sequence[int],
    lanes: Lanes,
    admits: Admits | None,
) -> Schedule:
    """Each call starts as soon as its dependencies and its pool allow.

    `order` has the numbers of the calls by rank, the best first; `lanes` knows ranks.
    All that ends at one moment is over before anything starts at that moment.
    """
    count = len(lengths)
    children = graph.children
    waiting = graph.waiting.copy()
    starts = [-1] * count
    rank_of = _inverse(order)
    started: list[int] = []
    running: list[int] = []  # end * count + number: one number instead of a pair
    add, take, release, offer = lanes.add, lanes.take, lanes.release, lanes.offer
    now = 0
    for number in [number for number in graph.order if not waiting[number]]:
        add(rank_of[number])
    while True:
        while offer and (rank := take()) >= 0:
            number = order[rank]
            if admits is None or admits(number, now):
                starts[number] = now
                started.append(number)
                heappush(running, (now + lengths[number]) * count + number)
            else:
                release(rank)
        if not running:
            return Schedule(starts, _pack(graph, started, rank_of, lanes))
        now = running[0] // count
        after = (now + 1) * count
        while running and running[0] < after:
            number = heappop(running) % count
            release(rank_of[number])
            for child in children[number]:
                left = waiting[child] = waiting[child] - 1
                if not left:
                    add(rank_of[child])


def _inverse(order: Sequence[int]) -> list[int]:
    rank_of = [0] * len(order)
    for rank, number in enumerate(order):
        rank_of[number] = rank
    return rank_of


def _pack(
    graph: Graph, started: Sequence[int], rank_of: Sequence[int], lanes: Lanes
) -> list[int]:
    """Each call in the first stage behind its dependencies where its pool has room."""
    children = graph.children
    count = len(rank_of)
    earliest = [0] * count
    stages = [-1] * count
    place = lanes.first_fit()
    for number in started:
        stage = stages[number] = place(rank_of[number], earliest[number])
        for child in children[number]:
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
    for number in graph.order:
        start = starts[number]
        if admits is not None and (start < 0 or not admits(number, start)):
            # -1 is final: what needs a call that is left out is left out too.
            starts[number] = stages[number] = -1
            for child in children[number]:
                starts[child] = -1
            continue
        end = start + lengths[number]
        behind = stages[number] + 1
        for child in children[number]:
            if 0 <= starts[child] < end:
                starts[child] = end
            if stages[child] < behind:
                stages[child] = behind
    return Schedule(starts, stages)
