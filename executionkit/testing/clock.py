"""A clock that tests move by hand, or that jumps when everybody waits."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from executionkit._clock import use_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

    from executionkit._clock import TimerHandle

__all__ = ("FakeClock", "settle")

_SETTLE_ROUNDS = 50
# Sums of floats miss the due time by a few units in the last place.
_ROUNDING = 1e-9


async def settle(rounds: int = _SETTLE_ROUNDS) -> None:
    """Let every task that can run do so, `rounds` times."""
    for _ in range(rounds):
        await asyncio.sleep(0)


class _Timer:
    """Like `asyncio.TimerHandle`: runs its callback on its loop, in its context."""

    __slots__ = ("_callback", "_context", "cancelled", "loop")

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._context = contextvars.copy_context()
        self.loop = asyncio.get_running_loop()
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def fire(self) -> None:
        self.loop.call_soon(self._run, context=self._context)

    def _run(self) -> None:
        if not self.cancelled:
            self._callback()


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
        self._watched: asyncio.AbstractEventLoop | None = None
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

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        timer = _Timer(callback)
        if seconds <= 0:
            timer.fire()
            return timer
        due = self._now + seconds
        heapq.heappush(self._timers, (due, next(self._ids), timer))
        if self._auto and self._watched is not timer.loop:
            self._watched = timer.loop
            timer.loop.call_soon(self._jump_when_idle)
        return timer

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        return _FakeTimeout(self, None if seconds is None else self._now + seconds)

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
        while self._timers and self._timers[0][0] <= limit + _ROUNDING:
            due, _, timer = heapq.heappop(self._timers)
            if timer.cancelled or timer.loop.is_closed():
                continue
            self._now = max(self._now, due)
            timer.fire()
            return True
        return False

    def _jump_when_idle(self) -> None:
        loop = asyncio.get_running_loop()
        # The loop has no public "is anything ready"; without the private queue the
        # check degrades to "after every callback that is ready now".
        waiting = any(not _is_jump(item) for item in getattr(loop, "_ready", ()))
        if waiting or self._fire_next(float("inf")):
            loop.call_soon(self._jump_when_idle)
        elif self._watched is loop:
            self._watched = None


def _is_jump(handle: object) -> bool:
    """Whether it is a clock that waits for all others: two must not wait in a circle."""
    callback = getattr(handle, "_callback", None)
    return getattr(callback, "__func__", None) is FakeClock._jump_when_idle  # noqa: SLF001


class _FakeTimeout(asyncio.Timeout):  # type: ignore[misc]  # final for type checkers only
    """`asyncio.timeout` on a fake clock: same states, other source of time."""

    def __init__(self, clock: FakeClock, when: float | None) -> None:
        super().__init__(None)
        self._clock = clock
        self._due = when
        self._timer: TimerHandle | None = None

    def when(self) -> float | None:
        return self._due

    def reschedule(self, when: float | None) -> None:
        super().reschedule(None)
        self._stop()
        self._due = when
        if when is not None:
            self._timer = self._clock.call_later(
                when - self._clock.monotonic(), self._expire
            )

    async def __aenter__(self) -> Self:
        due = self._due
        await super().__aenter__()
        self.reschedule(due)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self._stop()
        await super().__aexit__(exc_type, exc_val, exc_tb)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        super().reschedule(asyncio.get_running_loop().time())
