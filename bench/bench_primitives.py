"""Cost of the engine's primitives against the same work written by hand.

Run: `python -m bench.bench_primitives`. Only the ratios mean something: both sides run
in turns in the same process, and the median of the rounds is taken.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from executionkit.engine.breaker import CircuitBreaker
from executionkit.engine.bulkhead import Bulkhead, BulkheadConfig
from executionkit.engine.rate_bucket import SlidingWindow
from executionkit.engine.retry import RetryConfig, with_retry
from executionkit.errors import ProviderError, RateLimitError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ROUNDS = 9
LOOPS = 20_000


async def _compare(
    ours: Callable[[], Awaitable[None]],
    limit: Callable[[], Awaitable[None]],
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """Median seconds of both sides, run in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    await ours()
    await limit()
    for number in range(rounds):
        for side in (0, 1) if number % 2 else (1, 0):
            began = clock()
            await (ours, limit)[side]()
            times[side].append(clock() - began)
    return statistics.median(times[0]), statistics.median(times[1])


def _row(
    name: str, pair: tuple[float, float], target: float, each: int = LOOPS
) -> dict[str, Any]:
    ours, limit = pair
    return {
        "name": name,
        "ours": ours / each,
        "limit": limit / each,
        "ratio": ours / limit,
        "target": target,
        "met": ours / limit <= target,
    }


async def _noop(value: int) -> int:
    return value


async def _by_hand(
    fn: Callable[..., Awaitable[Any]], config: RetryConfig, *args: Any, **kwargs: Any
) -> Any:
    attempt = 0
    while True:
        try:
            return await fn(*args, **kwargs)
        except (RateLimitError, ProviderError):
            attempt += 1
            if attempt > config.max_retries:
                raise
            cap = min(config.base_delay * 2.0 ** (attempt - 1), config.max_delay)
            await asyncio.sleep(random.uniform(0, cap))


async def retry_success() -> dict[str, Any]:
    config = RetryConfig()

    async def ours() -> None:
        for _ in range(LOOPS):
            await with_retry(_noop, config, 1)

    async def limit() -> None:
        for _ in range(LOOPS):
            await _by_hand(_noop, config, 1)

    return _row("10a retry, success path", await _compare(ours, limit), 1.8)


async def retry_once() -> dict[str, Any]:
    config = RetryConfig(base_delay=0.001)
    tasks = 1_000

    def flaky() -> Callable[[], Awaitable[None]]:
        failed = False

        async def call() -> None:
            nonlocal failed
            if not failed:
                failed = True
                raise ProviderError("once")

        return call

    async def ours() -> None:
        await asyncio.gather(*[with_retry(flaky(), config) for _ in range(tasks)])

    async def limit() -> None:
        await asyncio.gather(*[_by_hand(flaky(), config) for _ in range(tasks)])

    pair = await _compare(ours, limit, clock=time.process_time)
    return _row("10b retry, 1,000 tasks each failing once (CPU)", pair, 1.3, tasks)


class _Gcra:
    def __init__(self, limit: int, period: float) -> None:
        self.step = period / limit
        self.slack = period
        self.at = 0.0

    async def acquire(self) -> None:
        now = time.monotonic()
        at = max(self.at, now)
        wait = at - now - self.slack
        if wait > 0:
            await asyncio.sleep(wait)
        self.at = at + self.step


async def window_acquire() -> dict[str, Any]:
    used = 10_000
    size = used + LOOPS * (ROUNDS + 2)
    window = SlidingWindow(size, 3600.0)
    gcra = _Gcra(size * 2, 3600.0)
    for _ in range(used):
        await window.acquire()

    async def ours() -> None:
        for _ in range(LOOPS):
            await window.acquire()

    async def limit() -> None:
        for _ in range(LOOPS):
            await gcra.acquire()

    return _row(
        "11 exact window, 10,000 and more used", await _compare(ours, limit), 4.0
    )


class _TimerPerGrant:
    """A sleep to its own due time per waiter: first in, first out, no cancellation."""

    def __init__(self, limit: int, period: float) -> None:
        self.due: deque[float] = deque(maxlen=limit)
        self.period = period

    async def acquire(self) -> None:
        now = time.monotonic()
        full = len(self.due) == self.due.maxlen
        at = max(now, self.due[0] + self.period) if full else now
        self.due.append(at)
        if at > now:
            woken = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(at - now, woken.set_result, None)
            await woken


async def window_waiters() -> list[dict[str, Any]]:
    tasks, limit_of, period = 1_000, 50, 0.02
    order_breaks = 0
    worst = 0

    async def crowd(limiter: SlidingWindow | _TimerPerGrant) -> list[tuple[int, float]]:
        starts: list[tuple[int, float]] = []

        async def one(number: int) -> None:
            await limiter.acquire()
            starts.append((number, time.monotonic()))

        await asyncio.gather(*[one(number) for number in range(tasks)])
        return starts

    async def ours() -> None:
        nonlocal order_breaks, worst
        starts = await crowd(SlidingWindow(limit_of, period))
        numbers = [number for number, _ in starts]
        order_breaks += sum(a > b for a, b in pairwise(numbers))
        # The caller's reading of the clock comes a little after the limiter's.
        times = [at for _, at in starts]
        for index in range(tasks - limit_of):
            gap = times[index + limit_of] - times[index]
            worst += gap < period - 0.001

    async def limit() -> None:
        await crowd(_TimerPerGrant(limit_of, period))

    pair = await _compare(ours, limit, rounds=7, clock=time.process_time)
    return [
        _row("12a 1,000 waiters on one window (CPU)", pair, 1.5, tasks),
        _counted("12b order breaks", order_breaks),
        _counted("12c starts above the limit in a window", worst),
    ]


def _counted(name: str, count: int) -> dict[str, Any]:
    return {
        "name": name,
        "ours": count,
        "limit": 0,
        "ratio": float(count),
        "target": 0.0,
        "met": count == 0,
    }


class _Counter:
    def __init__(self) -> None:
        self.failures = 0

    async def run(self, fn: Callable[[], Awaitable[Any]]) -> Any:
        if self.failures >= 5:
            raise RuntimeError("open")
        try:
            result = await fn()
        except Exception:
            self.failures += 1
            raise
        self.failures = 0
        return result


async def breaker_closed() -> dict[str, Any]:
    breaker = CircuitBreaker()
    counter = _Counter()

    async def call() -> None:
        return None

    async def ours() -> None:
        for _ in range(LOOPS):
            await breaker.run(call)

    async def limit() -> None:
        for _ in range(LOOPS):
            await counter.run(call)

    return _row("13 breaker, closed", await _compare(ours, limit), 3.0)


async def bulkhead_free() -> dict[str, Any]:
    bulkhead = Bulkhead(
        BulkheadConfig(
            tool_limits={"a": 4},
            namespace_limits={"n": 8},
            global_limit=16,
            acquisition_timeout=5.0,
        )
    )
    semaphore = asyncio.Semaphore(4)

    async def ours() -> None:
        for _ in range(LOOPS):
            async with bulkhead.acquire("a", "n"):
                pass

    async def limit() -> None:
        for _ in range(LOOPS):
            async with semaphore:
                pass

    return _row(
        "14 bulkhead, three levels with timeout", await _compare(ours, limit), 3.0
    )


async def _all() -> list[dict[str, Any]]:
    return [
        await retry_success(),
        await retry_once(),
        await window_acquire(),
        *await window_waiters(),
        await breaker_closed(),
        await bulkhead_free(),
    ]


def rows() -> list[dict[str, Any]]:
    """All measurements: name, ours, limit (seconds each), ratio, target, met."""
    return asyncio.run(_all())


def main() -> None:
    for row in rows():
        print(
            f"{row['name']:48} ours {row['ours'] * 1e6:9.3f} us  limit "
            f"{row['limit'] * 1e6:9.3f} us  ratio {row['ratio']:6.2f}  "
            f"target <= {row['target']:4.1f}  {'ok' if row['met'] else 'MISSED'}"
        )


if __name__ == "__main__":
    main()
