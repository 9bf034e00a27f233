"""A clock that tests move by hand, or that jumps when everybody waits."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING

from executionkit._clock import use_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ("FakeClock", "settle")

_SETTLE_ROUNDS = 50


async def settle(rounds: int = _SETTLE_ROUNDS) -> None:
    """Let every task that can run do so, `rounds` times."""
    for _ in range(rounds):
        await asyncio.sleep(0)


class _Timer:
    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """A `Clock` whose time moves only when the test says so.

    Args:
        start: The monotonic time at the beginning, seconds.
        wall: The wall time at the beginning, seconds since 1970-01-01 UTC.
        auto: When True, time jumps to the next timer whenever the event loop has
            nothing else to do: waits take no real time and keep their order. Not for
            tests with real sockets or threads, whose work the loop cannot see.

    `sleeps` lists the durations of all sleeps, in the order in which they began.
    Use `with clock.installed():` to make it the default of everything inside.
    """

    def __init__(
        self, start: float = 1000.0, *, wall: float = 1.7e9, auto: bool = False
    ) -> None:
        self._now = start
        self._offset = wall - start
        self._auto = auto
        self._timers: list[tuple[float, int, _Timer]] = []
        self._ids = itertools.count()
        self._checking = False
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self._offset

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not done.done():
                done.set_result(None)

        timer = self.call_later(seconds, wake)
        try:
            await done
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        due = self._now + max(0.0, seconds)
        heapq.heappush(self._timers, (due, next(self._ids), timer))
        if self._auto and not self._checking:
            self._checking = True
            asyncio.get_running_loop().call_soon(self._jump_when_idle)
        return timer

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        limit = asyncio.timeout(None)
        if seconds is not None:
            self.call_later(seconds, lambda: _expire(limit))
        return limit

    @property
    def pending(self) -> int:
        """Timers that have not fired and were not cancelled."""
        return sum(not timer.cancelled for _, _, timer in self._timers)

    async def advance(self, seconds: float) -> None:
        """Move time by `seconds`, firing timers in order, letting tasks run between."""
        await settle()
        target = self._now + seconds
        while self._fire_next(target):
            await settle()
        self._now = max(self._now, target)
        await settle()

    @contextmanager
    def installed(self) -> Generator[FakeClock]:
        """Make this clock the default inside the block."""
        with use_clock(self):
            yield self

    def _fire_next(self, limit: float) -> bool:
        while self._timers and self._timers[0][0] <= limit:
            due, _, timer = heapq.heappop(self._timers)
            if timer.cancelled:
                continue
            self._now = max(self._now, due)
            timer.callback()
            return True
        return False

    def _jump_when_idle(self) -> None:
        loop = asyncio.get_running_loop()
        # The loop has no public "is anything ready"; without the private queue the
        # check degrades to "after every callback that is ready now".
        if getattr(loop, "_ready", None):
            loop.call_soon(self._jump_when_idle)
            return
        if self._fire_next(float("inf")):
            loop.call_soon(self._jump_when_idle)
        else:
            self._checking = False


def _expire(limit: asyncio.Timeout) -> None:
    # A timeout that was left already, or never entered, has nothing to expire.
    try:
        limit.reschedule(asyncio.get_running_loop().time())
    except RuntimeError:
        return
