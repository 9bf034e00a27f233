"""Who may start now: the best of the ready calls whose pool has room for it."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from executionkit.tools._scheduling.values import ToolMetadata

__all__ = ("Lanes",)


class Lanes:
    """Ready calls, known by their rank (0 is the best), queued by pool and weight.

    Calls of one pool and weight form a lane: if one of them fits, its best does. So the
    best of each lane that fits is on offer in one heap, and no call that fits has to
    wait behind a heavier one that does not. All calls of unlimited pools are lane 0,
    always on offer.

    `add` and `take` cost O(log n); `release` O(log n) for each weight of the pool.
    """

    __slots__ = (
        "_free",
        "_heaps",
        "_lane_of",
        "_lanes_in",
        "_need",
        "_offered",
        "_pool_in",
        "offer",
    )

    def __init__(
        self, metadata: Sequence[ToolMetadata], limits: Mapping[str, int]
    ) -> None:
        self._lane_of = [0] * len(metadata)
        self.offer: list[int] = []
        """When it is empty, `take` has nothing. To be read only."""
        self._free: list[int] = [0]
        self._heaps: list[list[int]] = [[]]
        self._need: list[int] = [0]
        self._offered: list[int] = [-1]
        self._pool_in: list[int] = [0]
        self._lanes_in: list[list[int]] = [[]]
        if limits:
            self._sort_out(metadata, limits)

    def _sort_out(
        self, metadata: Sequence[ToolMetadata], limits: Mapping[str, int]
    ) -> None:
        lanes: dict[tuple[str, int], int] = {}
        pools: dict[str, int] = {}
        for rank, meta in enumerate(metadata):
            pool, weight = meta.pool, meta.weight
            if pool not in limits:
                continue
            lane = lanes.get((pool, weight))
            if lane is None:
                number = pools.setdefault(pool, len(self._free))
                if number == len(self._free):
                    self._free.append(limits[pool])
                    self._lanes_in.append([])
                lane = lanes[pool, weight] = len(self._heaps)
                self._heaps.append([])
                self._need.append(weight)
                self._offered.append(-1)
                self._pool_in.append(number)
                self._lanes_in[number].append(lane)
            self._lane_of[rank] = lane

    def add(self, rank: int) -> None:
        """A call has become ready."""
        lane = self._lane_of[rank]
        if lane:
            heap = self._heaps[lane]
            heappush(heap, rank)
            fits = self._need[lane] <= self._free[self._pool_in[lane]]
            if not fits or heap[0] != rank:
                return
            self._offered[lane] = rank
        heappush(self.offer, rank)

    def take(self) -> int:
        """The best call that fits; it takes its slots. -1 = none fits."""
        offer = self.offer
        while offer:
            rank = heappop(offer)
            lane = self._lane_of[rank]
            if not lane:
                return rank
            heap = self._heaps[lane]
            if not heap or heap[0] != rank:
                continue  # on offer twice, and already taken
            pool = self._pool_in[lane]
            need = self._need[lane]
            room = self._free[pool] - need
            if room < 0:
                self._offered[lane] = -1
                continue
            self._free[pool] = room
            heappop(heap)
            if heap and need <= room:
                self._offered[lane] = heap[0]
                heappush(offer, heap[0])
            return rank
        return -1

    def release(self, rank: int) -> None:
        """A call that was taken is over; its slots are free again."""
        lane = self._lane_of[rank]
        if not lane:
            return
        pool = self._pool_in[lane]
        free = self._free[pool] = self._free[pool] + self._need[lane]
        for other in self._lanes_in[pool]:
            heap = self._heaps[other]
            if heap and self._need[other] <= free and self._offered[other] != heap[0]:
                self._offered[other] = heap[0]
                heappush(self.offer, heap[0])

    def first_fit(self) -> Callable[[int, int], int]:
        """A function from (rank, earliest stage) to the first stage with room for it.

        It fills the stages as it is asked. Per lane, stages without room for its weight
        are jumped over by links that get shorter with use, so a question costs next to
        nothing. To be called while nothing is taken.
        """
        limits = self._free.copy()
        lane_of, pool_in, needs = self._lane_of, self._pool_in, self._need
        # Dicts: a pool may occur in few of very many stages.
        rooms: list[dict[int, int]] = [{} for _ in limits]
        links: list[dict[int, int]] = [{} for _ in needs]

        def place(rank: int, earliest: int) -> int:
            lane = lane_of[rank]
            if not lane:
                return earliest
            pool = pool_in[lane]
            room, link, need = rooms[pool], links[lane], needs[lane]
            stage = link.get(earliest, earliest)
            while stage in link or (free := room.get(stage, limits[pool])) < need:
                stage = link.setdefault(stage, stage + 1)
            room[stage] = free - need
            room[stage] = free - need
            while (step := link.get(earliest, stage)) < stage:
                link[earliest] = stage
                earliest = step
            return stage

        return place
