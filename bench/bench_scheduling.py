"""Planning calls with dependencies, against Kahn's algorithm with a heap by hand.

Run: `python -m bench.bench_scheduling`. The limit finds an order by priority, the stage
and the estimated end of each call, and that there is a cycle; no pools, no deadline, no
budget, no timeouts. Both sides run in turns; the median of the rounds is taken, in
seconds of the processor.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from executionkit.tools.scheduling import (
    GreedyDagScheduler,
    ReadyQueue,
    SchedulingConstraints,
    ToolCallSpec,
    ToolMetadata,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
SIZES = (100, 1_000, 10_000, 100_000)
RATIO = 2.5
SECONDS = 1.5
EXPONENT = 1.35
SCHEDULER = GreedyDagScheduler()

Calls = list[ToolCallSpec]


def _kahn(calls: Calls) -> tuple[list[list[str]], int]:
    index = {call.call_id: number for number, call in enumerate(calls)}
    children: list[list[int]] = [[] for _ in calls]
    waiting = [0] * len(calls)
    for number, call in enumerate(calls):
        for name in call.depends_on:
            children[index[name]].append(number)
            waiting[number] += 1
    keys = [
        (-call.metadata.priority, call.metadata.est_ms or 1000, number)
        for number, call in enumerate(calls)
    ]
    ready = [keys[number] for number, count in enumerate(waiting) if not count]
    heapify(ready)
    stage_of = [0] * len(calls)
    ends = [0] * len(calls)
    stages: list[list[str]] = []
    done = 0
    while ready:
        _, est, number = heappop(ready)
        done += 1
        stage = stage_of[number]
        if stage == len(stages):
            stages.append([])
        stages[stage].append(calls[number].call_id)
        end = ends[number] = ends[number] + est
        for child in children[number]:
            if ends[child] < end:
                ends[child] = end
            if stage_of[child] <= stage:
                stage_of[child] = stage + 1
            waiting[child] -= 1
            if not waiting[child]:
                heappush(ready, keys[child])
    if done < len(calls):
        raise ValueError("cycle")
    return stages, max(ends)


def _chain(count: int) -> Calls:
    return [
        ToolCallSpec(str(n), "t", depends_on=(str(n - 1),) if n else ())
        for n in range(count)
    ]


def _fan_out(count: int) -> Calls:
    return [
        ToolCallSpec(str(n), "t", depends_on=("0",) if n else ()) for n in range(count)
    ]


def _metadata(chance: random.Random) -> ToolMetadata:
    return ToolMetadata(
        pool=f"p{chance.randrange(5)}",
        est_ms=chance.randrange(1, 1000),
        priority=chance.randrange(3),
    )


def _random(count: int) -> Calls:
    chance = random.Random(1)
    calls: Calls = []
    for n in range(count):
        needs = (
            {str(chance.randrange(n)) for _ in range(chance.randrange(4))} if n else ()
        )
        meta = _metadata(chance)
        calls.append(ToolCallSpec(str(n), "t", {}, meta, tuple(needs)))
    return calls


def _layers(count: int) -> Calls:
    chance = random.Random(2)
    width = max(10, math.isqrt(count))
    calls: Calls = []
    for n in range(count):
        base = n // width * width - width
        needs = {str(base + chance.randrange(width)) for _ in range(3 * (n >= width))}
        meta = _metadata(chance)
        calls.append(ToolCallSpec(str(n), "t", {}, meta, tuple(sorted(needs))))
    return calls


FREE = SchedulingConstraints()
POOLS = SchedulingConstraints(
    pool_limits={"default": 1, "p0": 1, "p1": 1, "p2": 10, "p3": 100}
)
ALL = SchedulingConstraints(
    deadline_ms=10**9,
    max_cost=1.0,
    pool_limits={"default": 10, "p0": 10, "p1": 10, "p2": 10},
)
SHAPES: dict[str, tuple[Callable[[int], Calls], SchedulingConstraints]] = {
    "chain": (_chain, FREE),
    "fan-out": (_fan_out, FREE),
    "random": (_random, FREE),
    "layers": (_layers, FREE),
    "chain, pool of 1": (_chain, POOLS),
    "fan-out, pool of 1": (_fan_out, POOLS),
    "random, pools": (_random, POOLS),
    "layers, pools": (_layers, POOLS),
    "random, deadline, budget, pools": (_random, ALL),
}


def _timed(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def _compare(
    ours: Callable[[], object], limit: Callable[[], object], loops: int
) -> tuple[float, float]:
    """Median seconds of both sides, run in turns."""
    times: tuple[list[float], list[float]] = ([], [])

    def many(work: Callable[[], object]) -> None:
        for _ in range(loops):
            work()

    for number in range(ROUNDS):
        for side in (0, 1) if number % 2 else (1, 0):
            work = (ours, limit)[side]
            times[side].append(_timed(lambda work=work: many(work)) / loops)
    return statistics.median(times[0]), statistics.median(times[1])


def _row(name: str, ours: float, limit: float, ratio: float, target: float) -> Any:
    return {
        "name": name,
        "ours": ours,
        "limit": limit,
        "ratio": ratio,
        "target": target,
        "met": ratio <= target,
    }


def _shape(name: str) -> list[dict[str, Any]]:
    make, constraints = SHAPES[name]
    found: list[dict[str, Any]] = []
    seconds: dict[int, float] = {}
    for size in SIZES:
        calls = make(size)
        ours, limit = _compare(
            lambda calls=calls: SCHEDULER.plan(calls, constraints),
            lambda calls=calls: _kahn(calls),
            max(1, 20_000 // size),
        )
        seconds[size] = ours
        if size in {100, 100_000}:
            title = f"17 plan of {size:,}: {name}"
            found.append(_row(title, ours, limit, ours / limit, RATIO))
    last = seconds[SIZES[-1]]
    exponent = math.log10(last / seconds[SIZES[-2]])
    found.append(_row(f"17 {name}: seconds", last, SECONDS, last, SECONDS))
    before = seconds[SIZES[-2]]
    found.append(_row(f"17 {name}: exponent", last, before, exponent, EXPONENT))
    return found


def _dispatch(queue: ReadyQueue) -> None:
    while not queue.is_done:
        call = queue.next_ready()
        if call is None:
            raise ValueError("nothing is ready")
        queue.finish(call.call_id, ok=True)


def _ready() -> list[dict[str, Any]]:
    calls = _random(100_000)
    limits = POOLS.pool_limits
    ours, limit = _compare(
        lambda: _dispatch(ReadyQueue(calls, limits)), lambda: _kahn(calls), 1
    )
    return [_row("18 dispatch of 100,000: random", ours, limit, ours / limit, 4.0)]


def rows() -> list[dict[str, Any]]:
    """All measurements: name, ours, limit (seconds), ratio, target, met."""
    found = [row for name in SHAPES for row in _shape(name)]
    return found + _ready()


def main() -> None:
    for row in rows():
        print(
            f"{row['name']:56} ours {row['ours'] * 1e3:9.2f} ms  limit "
            f"{row['limit'] * 1e3:9.2f} ms  ratio {row['ratio']:6.2f}  "
            f"target <= {row['target']:4.2f}  {'ok' if row['met'] else 'MISSED'}"
        )


if __name__ == "__main__":
    main()
