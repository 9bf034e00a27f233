"""Time and chance: the only reader of the clock, the only sleeper.

Everything that waits takes a `Clock`. Without one it uses `get_clock()`, which is
the system's clock unless a test has put another in place with `use_clock()`
(see `executionkit.testing.FakeClock`).
"""

from __future__ import annotations

import asyncio
import random as _random
import time as _time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = (
    "Clock",
    "Random",
    "SystemClock",
    "TimerHandle",
    "default_random",
    "get_clock",
    "use_clock",
)


class TimerHandle(Protocol):
    """What `Clock.call_later` returns: a timer that can be called off."""

    def cancel(self) -> None: ...


@runtime_checkable
class Clock(Protocol):
    """Reads time and waits. All durations are seconds."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; for durations and deadlines."""
        ...

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC; for display, dates, and other machines."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds`; zero or less yields to the event loop once."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """Call `callback` on the running loop after `seconds`."""
        ...

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        """A context manager like `asyncio.timeout`, on this clock."""
        ...


class SystemClock:
    """The real clock, on the running event loop."""

    __slots__ = ()

    def monotonic(self) -> float:
        return _time.monotonic()

    def wall(self) -> float:
        return _time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        return asyncio.get_running_loop().call_later(max(0.0, seconds), callback)

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        return asyncio.timeout(None if seconds is None else max(0.0, seconds))


Random = _random.Random
"""The type of a source of chance; `Random(7)` makes a run repeatable."""

_SYSTEM_CLOCK = SystemClock()
_clock: ContextVar[Clock] = ContextVar("executionkit_clock", default=_SYSTEM_CLOCK)


def get_clock() -> Clock:
    """The clock of the current context; the system's unless replaced."""
    return _clock.get()


@contextmanager
def use_clock(clock: Clock) -> Generator[Clock]:
    """Make `clock` the default inside the block (for this task and its children)."""
    token = _clock.set(clock)
    try:
        yield clock
    finally:
        _clock.reset(token)


def default_random() -> float:
    """A float in [0, 1) from the shared source; jitter needs no more than that."""
    return _random.random()  # noqa: S311 - jitter, not a secret
