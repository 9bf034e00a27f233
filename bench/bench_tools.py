"""What the tool runtime costs per call, beside a `gather` behind a semaphore.

Run: `python -m bench.bench_tools`. Only the ratios mean something: both sides run in
turns in the same process, and the median of the rounds is taken. Times are of the
processor's clock, so that other work on the machine does not count.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

from executionkit.calls import ToolCall
from executionkit.context import ExecutionContext
from executionkit.engine.bulkhead import BulkheadConfig
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

LIMIT = 50
SIZES = (1, 100, 1_000, 10_000)
MANY = 100_000
_HUGE = 10**9


async def noop(q: str, n: int) -> int:
    """Ends at once."""
    return n


async def waits(q: str, n: int) -> int:
    """Suspends once."""
    await asyncio.sleep(0)
    return n


TOOLS = {"no-op": noop, "suspending": waits}


async def _by_hand(tool: Callable[..., Awaitable[int]], size: int) -> list[int]:
    semaphore = asyncio.Semaphore(LIMIT)

    async def one(number: int) -> int:
        async with semaphore:
            return await tool(q="a", n=number)

    return await asyncio.gather(*[one(number) for number in range(size)])


def _bare() -> ToolProcessor:
    return ToolProcessor(create_registry(*TOOLS.values()), max_concurrency=LIMIT)


def _all_on(*, caching: bool) -> ToolProcessor:
    return ToolProcessor(
        create_registry(*TOOLS.values()),
        max_concurrency=LIMIT,
        enable_caching=caching,
        enable_retries=True,
        enable_circuit_breaker=True,
        global_rate_limit=_HUGE,
        tool_rate_limits={"noop": (_HUGE, 60), "waits": (_HUGE, 60)},
        bulkhead_config=BulkheadConfig(
            default_limit=_HUGE,
            namespace_limits={"default": _HUGE},
            global_limit=_HUGE,
        ),
    )


def _calls(name: str, size: int, salt: int) -> list[ToolCall]:
    return [ToolCall(str(n), name, {"q": f"{salt}", "n": n}) for n in range(size)]


async def _row(
    title: str,
    processor: ToolProcessor,
    kind: str,
    size: int,
    target: float,
    *,
    hits: bool = False,
) -> dict[str, Any]:
    tool = TOOLS[kind]
    context = ExecutionContext(tenant_id="bench")
    times: tuple[list[float], list[float]] = ([], [])
    rounds = max(9, min(400, 3_000 // size))
    await processor.execute(_calls(tool.__name__, size, -1), context=context)
    for number in range(rounds):
        calls = _calls(tool.__name__, size, -1 if hits else number)
        for side in (0, 1) if number % 2 else (1, 0):
            began = time.process_time()
            if side:
                await _by_hand(tool, size)
            else:
                await processor.execute(calls, context=context)
            times[side].append(time.process_time() - began)
    ours, limit = (statistics.median(side) / size for side in times)
    return {
        "name": f"{title}, {kind}, {size:,} calls",
        "ours": ours,
        "limit": limit,
        "ratio": ours / limit,
        "target": target,
        "met": ours / limit <= target,
    }


async def _overhead() -> list[dict[str, Any]]:
    rows = []
    for kind, few, many in (("no-op", 1.6, 0.5), ("suspending", 2.2, 1.1)):
        for size in SIZES:
            target = many if size >= 1_000 else few
            rows.append(await _row("1 bare", _bare(), kind, size, target))
    for kind, few, many in (("no-op", 1.8, 0.7), ("suspending", 2.5, 1.3)):
        for size in SIZES:
            target = many if size >= 1_000 else few
            on = _all_on(caching=False)
            rows.append(await _row("2 all but the cache", on, kind, size, target))
        for size in SIZES:
            target = many if size >= 1_000 else few
            on = _all_on(caching=True)
            rows.append(await _row("2 all, cache misses", on, kind, size, target))
    for kind in TOOLS:
        for size in SIZES:
            on = _all_on(caching=True)
            rows.append(await _row("3 all, cache hits", on, kind, size, 0.7, hits=True))
    return rows


async def _memory() -> list[dict[str, Any]]:
    """Bytes per call and its result, and the peak of a batch from an iterator."""
    processor = _bare()
    gc.collect()
    tracemalloc.start()
    calls = _calls("noop", MANY, 0)
    results = await processor.execute(calls)
    held = tracemalloc.get_traced_memory()[0]
    each = held / len(results)
    del calls, results
    gc.collect()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    async for _ in processor.process_batch(_stream()):
        pass
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return [
        _bytes("4 memory per call, 100,000 calls (KB)", each / 1024, 0.88, 1.2),
        _bytes("4 memory of 100,000 calls from an iterator (MB)", peak / 2**20, 30, 30),
    ]


def _stream() -> Iterator[ToolCall]:
    for number in range(MANY):
        yield ToolCall(str(number), "noop", {"q": "a", "n": number})


def _bytes(name: str, ours: float, limit: float, target: float) -> dict[str, Any]:
    return {
        "name": name,
        "ours": ours,
        "limit": limit,
        "ratio": ours / limit,
        "target": target,
        "met": ours <= target,
    }


def rows() -> list[dict[str, Any]]:
    """All rows."""
    return asyncio.run(_overhead()) + asyncio.run(_memory())


if __name__ == "__main__":
    for row in rows():
        print(f"{row['name']:60} {row['ratio']:6.2f} (target {row['target']})")
