"""Calls in worker processes, against `ProcessPoolExecutor` doing the same.

Run: `python -m bench subprocess`. Both sides have two workers, and take turns in one
run; the medians of the rounds are compared.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from executionkit.calls import ToolCall
from executionkit.tools.registry import create_registry
from executionkit.tools.strategies import SubprocessStrategy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ROUNDS = 9
CALLS = 300
BATCH = 1000
LARGE = "x" * 1_000_000
LARGE_CALLS = 40
GRACE = 1.0


def add(a: int, b: int) -> int:
    return a + b


def echo(text: str) -> str:
    return text


def spin() -> None:
    while True:
        pass


def _strategy() -> SubprocessStrategy:
    registry = create_registry()
    for function in (add, echo, spin):
        registry.add(function)
    return SubprocessStrategy(
        registry, max_workers=2, worker_init_timeout=30, grace=GRACE
    )


async def _p50(one: Callable[[], Awaitable[Any]], calls: int) -> float:
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        await one()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def _span(one: Callable[[], Awaitable[Any]], calls: int) -> float:
    began = time.perf_counter()
    await one()
    return (time.perf_counter() - began) / calls


async def _turns(
    ours: Callable[[], Awaitable[float]], limit: Callable[[], Awaitable[float]]
) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    await ours()
    await limit()
    for number in range(ROUNDS):
        for side in (0, 1) if number % 2 else (1, 0):
            times[side].append(await (ours, limit)[side]())
    return statistics.median(times[0]), statistics.median(times[1])


def _row(name: str, pair: tuple[float, float], target: float) -> dict[str, Any]:
    ours, limit = pair
    return {
        "name": name,
        "ours": ours,
        "limit": limit,
        "ratio": ours / limit,
        "target": target,
        "met": ours / limit <= target,
    }


async def _measure() -> list[dict[str, Any]]:
    strategy = _strategy()
    loop = asyncio.get_running_loop()
    # Spawned: forking a process with threads is what nobody should do.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        call = ToolCall(name="add", arguments={"a": 1, "b": 2})
        large = ToolCall(name="echo", arguments={"text": LARGE})

        async def many_of_theirs() -> None:
            await asyncio.gather(
                *[loop.run_in_executor(pool, add, 1, 2) for _ in range(BATCH)]
            )

        calls = [call] * BATCH
        found = [
            _row(
                "subprocess: warm call, p50",
                await _turns(
                    lambda: _p50(lambda: strategy.run([call]), CALLS),
                    lambda: _p50(lambda: loop.run_in_executor(pool, add, 1, 2), CALLS),
                ),
                0.5,
            ),
            _row(
                "subprocess: 1,000 calls, 2 workers, each",
                await _turns(
                    lambda: _span(lambda: strategy.run(calls), BATCH),
                    lambda: _span(many_of_theirs, BATCH),
                ),
                0.5,
            ),
            _row(
                "subprocess: 1 MB argument and result, p50",
                await _turns(
                    lambda: _p50(lambda: strategy.run([large]), LARGE_CALLS),
                    lambda: _p50(
                        lambda: loop.run_in_executor(pool, echo, LARGE), LARGE_CALLS
                    ),
                ),
                1.1,
            ),
        ]
    began = time.perf_counter()
    (result,) = await strategy.run([ToolCall(name="spin")], timeout=1.0)
    span = time.perf_counter() - began
    assert result.error == "Timeout after 1.0s", result.error
    (after,) = await strategy.run([call])
    assert after.result == 3
    assert after.pid != result.pid
    found.append(
        _row("subprocess: busy loop, timeout 1 s, grace 1 s", (span, 1.0), 1.0 + GRACE)
    )
    await strategy.shutdown()
    return [*found, await _cold()]


async def _cold() -> dict[str, Any]:
    """From nothing to the first result, against a bare interpreter."""
    ours, limit = [], []
    for _ in range(ROUNDS):
        strategy = _strategy()
        began = time.perf_counter()
        await strategy.warm()
        ours.append((time.perf_counter() - began) / 2)
        await strategy.shutdown()
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "pass")
        await process.wait()
        limit.append(time.perf_counter() - began)
    pair = statistics.median(ours), statistics.median(limit)
    row = _row("subprocess: worker ready (of two at once), bare interpreter", pair, 2.5)
    row["met"] = pair[0] <= 0.150
    return row


def rows() -> list[dict[str, Any]]:
    return asyncio.run(_measure())


if __name__ == "__main__":
    for row in rows():
        print(
            f"{row['name']:55} {row['ours'] * 1e6:12.1f} us {row['limit'] * 1e6:12.1f} us "
            f"{row['ratio']:6.2f} (target {row['target']})"
        )
