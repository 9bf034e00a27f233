"""What all rate limiters share: the queue, the refund, taking from several at once."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executionkit._clock import get_clock
from executionkit.engine._checks import check_number
from executionkit.engine._permits import Desk
from executionkit.types import sealed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executionkit._clock import Clock

__all__ = (
    "Limiter",
    "LimiterStats",
    "PermitTimeoutError",
    "acquire_all",
    "queue_up",
    "try_acquire_all",
)

# Said to a caller who finds everything free, but claimed by somebody who came before.
_LEAST_WAIT = 0.001


class PermitTimeoutError(TimeoutError):
    """No permit can be had within the timeout; `retry_after` seconds are needed.

    Layers turn it into the error of their own kind.
    """

    def __init__(self, message: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@sealed
@dataclass(frozen=True, slots=True)
class LimiterStats:
    """What a limiter looks like right now."""

    available: float
    """Permits that could be had at once; 0 during a cooldown."""

    waiting: int
    """Callers in the queue that need this limiter alone."""

    retry_after: float
    """Seconds until one more permit could be had; 0.0 = now."""


class _Claim:
    __slots__ = ("resources",)

    def __init__(self, resources: tuple[Limiter, ...]) -> None:
        self.resources = resources


class Limiter(ABC):
    """What all limiters share. Times are monotonic seconds of the limiter's clock.

    The methods with positional-only arguments are the limiter's part in serving a
    queue; callers need the others.
    """

    __slots__ = ("_clock", "_desk", "_key")

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock or get_clock()
        self._desk = Desk(self._clock)
        self._key = (self,)

    @abstractmethod
    def check_cost(self, cost: float, /) -> None:
        """Refuse a cost that could never be granted.

        Raises:
            ValueError: When `cost` is negative, above the limit, or not a number.
        """

    @abstractmethod
    def due(self, cost: float, /) -> float:
        """When `cost` can be had by the next in line; `inf` = after some event."""

    @abstractmethod
    def estimate(self, total: float, now: float, /) -> float:
        """A time before which the last of `total` units cannot be had."""

    @abstractmethod
    def take(self, cost: float, now: float, /) -> None:
        """Hold `cost` for a caller that has not gone on yet."""

    @abstractmethod
    def started(self, cost: float, now: float, /) -> None:
        """The caller has gone on."""

    @abstractmethod
    def put_back(self, cost: float, now: float, /) -> None:
        """The caller is gone and never went on."""

    @abstractmethod
    def give_up(self, cost: float, now: float, since: float | None, /) -> None:
        """A caller that went on at `since` (None = unknown) did not use its permit."""

    @abstractmethod
    def cool_down(self, seconds: float, now: float, /) -> None:
        """Admit nobody for `seconds`."""

    @property
    def desk(self) -> Desk:
        """Where callers of this limiter wait."""
        self._desk = self._desk.root()
        return self._desk

    def wait_time(self, cost: float = 1) -> float:
        """Seconds that a caller who came now would wait at least; 0.0 = none."""
        self.check_cost(cost)
        return _wait_time(self._key, cost)

    def refund(self, cost: float = 1, *, since: float | None = None) -> None:
        """Give back a permit that was granted and not used; waiters move up.

        Args:
            cost: What was taken.
            since: When it was had (`now()` at that time). Needed when that may be
                longer ago than a window lasts: such a permit is worth nothing any
                more. None = just now.
        """
        self.check_cost(cost)
        now = self._clock.monotonic()
        if cost:
            self.give_up(cost, now, since)
            self.desk.pump()

    def drain(self, seconds: float) -> None:
        """Admit nobody for `seconds`; a cooldown is only ever extended.

        Waiters whose timeout ends before they could be served now fail at once.

        Raises:
            ValueError: When `seconds` is negative or not finite.
        """
        if check_number("seconds", seconds) > 0:
            self.cool_down(seconds, self._clock.monotonic())
            self.desk.recheck()

    def now(self) -> float:
        """The time on the limiter's clock."""
        return self._clock.monotonic()

    def ready(self, cost: float, now: float, /) -> bool:
        """Whether nobody waits and `cost` can be had at once."""
        return not self._desk.lanes and self.due(cost) <= now

    def _try(self, cost: float) -> bool:
        now = self._clock.monotonic()
        if self.ready(cost, now):
            self.take(cost, now)
            self.started(cost, now)
            return True
        return bool(self.desk.lanes) and _try_in_line(self._key, cost)


async def acquire_all(
    limiters: Sequence[Limiter], cost: int = 1, *, timeout: float | None = None
) -> None:
    """Take `cost` from all of `limiters` in the same moment.

    Nothing is consumed in one while another one is waited for, and a call that waits
    for a scarce limiter does not hold up the calls that do not need it. Give a permit
    back with `refund` of each.

    Args:
        limiters: In any order; they must share one clock.
        cost: Taken from each.
        timeout: Seconds to wait at most. None = no limit; 0 = do not wait.

    Raises:
        PermitTimeoutError: At once, when they cannot be had in time.
        ValueError: When one of them could never grant `cost`.
    """
    key = _distinct(limiters)
    if not _take_at_once(key, cost):
        await queue_up(key, cost, timeout)


def try_acquire_all(limiters: Sequence[Limiter], cost: int = 1) -> float:
    """Take `cost` from all of `limiters` if it can be had at once.

    Returns:
        0.0 when taken; else the seconds to wait at least, and nothing was taken.
    """
    key = _distinct(limiters)
    if _take_at_once(key, cost) or _try_in_line(key, cost):
        return 0.0
    return max(_wait_time(key, cost), _LEAST_WAIT)


async def queue_up(
    key: tuple[Limiter, ...], cost: float, timeout: float | None
) -> None:
    """Wait for `cost` of each of `key`; the way of those who could not help themselves.

    Raises:
        PermitTimeoutError: At once, when it cannot be had within `timeout` seconds.
    """
    if timeout is not None and math.isnan(timeout):
        msg = "`timeout` must be a number of seconds or None, got nan"
        raise ValueError(msg)
    if timeout == math.inf:
        timeout = None
    desk = _common_desk(key)
    if timeout is not None and _wait_time(key, cost) > max(0.0, timeout):
        raise _too_late(key, cost, timeout)
    waiter = desk.enter(key, _Claim(key), cost)
    if waiter.granted:
        return
    if timeout is not None and timeout <= 0:
        desk.withdraw(waiter)
        raise _too_late(key, cost, timeout)
    if not await desk.wait(waiter, timeout):
        raise _too_late(key, cost, timeout)


def _distinct(limiters: Sequence[Limiter]) -> tuple[Limiter, ...]:
    if len(limiters) == 2 and limiters[0] is not limiters[1]:
        return tuple(limiters)
    return tuple(dict.fromkeys(limiters))


def _try_in_line(key: tuple[Limiter, ...], cost: float) -> bool:
    """Take what is free and not claimed by somebody who waits already."""
    desk = _common_desk(key)
    waiter = desk.enter(key, _Claim(key), cost)
    if not waiter.granted:
        desk.withdraw(waiter)
    return waiter.granted


def _take_at_once(key: tuple[Limiter, ...], cost: int) -> bool:
    if cost != 1:
        for limiter in key:
            limiter.check_cost(cost)
    if not key or not cost:
        return True
    now = key[0].now()
    for limiter in key:
        if not limiter.ready(cost, now):
            return False
    for limiter in key:
        limiter.take(cost, now)
        limiter.started(cost, now)
    return True


def _common_desk(key: tuple[Limiter, ...]) -> Desk:
    desk = key[0].desk
    for limiter in key[1:]:
        desk = desk.join(limiter.desk)
    return desk


def _wait_time(key: tuple[Limiter, ...], cost: float) -> float:
    desk = _common_desk(key)
    now = desk.now()
    total = desk.ahead(key) + cost
    return max(0.0, *(limiter.estimate(total, now) - now for limiter in key))


def _too_late(
    key: tuple[Limiter, ...], cost: float, timeout: float | None
) -> PermitTimeoutError:
    wait = max(_wait_time(key, cost), _LEAST_WAIT)
    msg = f"No permit within {timeout}s: the next one can be had in {wait:.3f}s"
    return PermitTimeoutError(msg, wait)
