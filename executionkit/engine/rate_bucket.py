"""Rate limits that callers wait for: a smooth bucket and an exact window.

- `TokenBucket(rate, capacity)` paces: `rate` per second on average. Like every bucket
  it can admit twice its capacity within the time that it takes to fill.
- `SlidingWindow(limit, period)` counts: never more than `limit` starts in any window
  of `period` seconds.

Both are first in, first out: a waiter is woken once, at its own time; when one is
cancelled the later ones move up. `acquire_all` takes from several limiters at once, and
from none of them while it waits. Limiters are for one event loop at a time and are not
thread-safe.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executionkit.engine._checks import check_int, check_number
from executionkit.engine._limiter import (
    Limiter,
    LimiterStats,
    PermitTimeoutError,
    acquire_all,
    queue_up,
    try_acquire_all,
)
from executionkit.types import sealed

if TYPE_CHECKING:
    from executionkit._clock import Clock

__all__ = (
    "Limiter",
    "LimiterStats",
    "PermitTimeoutError",
    "SlidingWindow",
    "TokenBucket",
    "WindowUsage",
    "acquire_all",
    "try_acquire_all",
)


class TokenBucket(Limiter):
    """Paces callers: `rate` tokens per second flow in, up to `capacity`.

    The bucket starts full. After `drain` (a cooldown, e.g. the `Retry-After` of a 429)
    it comes back with one token at most: one caller first, the others at `rate`, and
    no burst onto a server that has just recovered.

    Args:
        rate: Tokens per second, above 0.
        capacity: Tokens it holds at most, at least 1; the size of a burst.
        clock: None = the clock of the current context.
    """

    __slots__ = ("_capacity", "_level", "_rate", "_stamp")

    def __init__(
        self, rate: float, capacity: float = 1.0, *, clock: Clock | None = None
    ) -> None:
        super().__init__(clock)
        self._rate = check_number("rate", rate, above=True)
        self._capacity = check_number("capacity", capacity, 1.0)
        # The level belongs to the moment `_stamp`, which lies ahead in a cooldown.
        self._level = self._capacity
        self._stamp = self._clock.monotonic()

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self._rate

    @property
    def capacity(self) -> float:
        """Tokens it holds at most."""
        return self._capacity

    async def acquire(
        self, tokens: float = 1.0, *, timeout: float | None = None
    ) -> None:
        """Wait for `tokens` and take them; 0 takes nothing and never waits.

        Args:
            tokens: At most `capacity`.
            timeout: Seconds to wait at most. None = no limit; 0 = do not wait.

        Raises:
            PermitTimeoutError: At once, when they cannot be had in time.
            ValueError: When `tokens` is negative or above the capacity.
        """
        if tokens != 1:
            self.check_cost(tokens)
            if not tokens:
                return
        now = self._clock.monotonic()
        if not self._desk.lanes and self.due(tokens) <= now:
            self.take(tokens, now)
            return
        await queue_up(self._key, tokens, timeout)

    def try_acquire(self, tokens: float = 1.0) -> bool:
        """Take `tokens` if they can be had at once and nobody waits for them."""
        self.check_cost(tokens)
        return not tokens or self._try(tokens)

    def stats(self) -> LimiterStats:
        """A snapshot."""
        now = self._clock.monotonic()
        self._refill(now)
        level = self._level if self._stamp <= now else 0.0
        return LimiterStats(level, self.desk.waiting(self._key), self.wait_time())

    def check_cost(self, cost: float, /) -> None:
        if check_number("tokens", cost) > self._capacity:
            msg = (
                f"`tokens` is {cost}, more than the capacity {self._capacity}: "
                "the bucket never holds so many"
            )
            raise ValueError(msg)

    def due(self, cost: float, /) -> float:
        if self._level >= cost:
            return self._stamp
        return self._stamp + (cost - self._level) / self._rate

    def estimate(self, total: float, now: float, /) -> float:
        return max(now, self.due(total))

    def take(self, cost: float, now: float, /) -> None:
        self._refill(now)
        # Rounding may leave a hair less than what was due.
        self._level = max(0.0, self._level - cost)

    def started(self, _cost: float, _now: float, /) -> None:
        """Nothing to do: a bucket counts what it gives, not when it is used."""

    def put_back(self, cost: float, now: float, /) -> None:
        self._refill(now)
        full = self._capacity if self._stamp <= now else 1.0
        self._level = max(self._level, min(full, self._level + cost))

    def give_up(self, cost: float, now: float, _since: float | None, /) -> None:
        self.put_back(cost, now)

    def cool_down(self, seconds: float, now: float, /) -> None:
        self._refill(now)
        start = max(now, self._stamp)
        end = max(start, now + seconds)
        inflow = (end - start) * self._rate
        self._level = min(1.0, max(self._level, inflow))
        self._stamp = end

    def _refill(self, now: float) -> None:
        if now > self._stamp:
            inflow = (now - self._stamp) * self._rate
            self._level = min(self._capacity, self._level + inflow)
            self._stamp = now


@sealed
@dataclass(frozen=True, slots=True)
class WindowUsage:
    """How much of a window is used."""

    used: int
    limit: int
    period: float
    """Seconds."""

    @property
    def remaining(self) -> int:
        return self.limit - self.used


class SlidingWindow(Limiter):
    """Counts callers: never more than `limit` starts in any `period` seconds.

    A window is half open: a start at `t` no longer counts at `t + period`. The check
    takes the same time whatever the length of the window; the starts of the last
    `period` are kept, so `limit` bounds the memory.

    Args:
        limit: Starts per window, at least 1.
        period: Length of the window in seconds, above 0.
        clock: None = the clock of the current context.
    """

    __slots__ = ("_blocked_until", "_limit", "_pending", "_period", "_stamps")

    def __init__(
        self, limit: int, period: float, *, clock: Clock | None = None
    ) -> None:
        super().__init__(clock)
        self._limit = check_int("limit", limit, 1)
        self._period = check_number("period", period, above=True)
        self._stamps: deque[float] = deque()
        # Granted to callers that have not gone on yet: their start is still to come,
        # and only then their `period` seconds begin.
        self._pending = 0
        self._blocked_until = -math.inf

    @property
    def limit(self) -> int:
        """Starts per window."""
        return self._limit

    @property
    def period(self) -> float:
        """Length of the window in seconds."""
        return self._period

    async def acquire(self, cost: int = 1, *, timeout: float | None = None) -> None:
        """Wait until `cost` starts fit into the window; 0 never waits.

        Args:
            cost: Starts that this call stands for, at most `limit`.
            timeout: Seconds to wait at most. None = no limit; 0 = do not wait.

        Raises:
            PermitTimeoutError: At once, when it cannot be had in time.
            ValueError: When `cost` is negative or above the limit.
        """
        if cost != 1:
            self.check_cost(cost)
            if not cost:
                return
        if self._desk.lanes or not self._admit(cost):
            await queue_up(self._key, cost, timeout)

    def try_acquire(self, cost: int = 1) -> bool:
        """Take `cost` if it can be had at once and nobody waits for it."""
        self.check_cost(cost)
        return not cost or self._try(cost)

    def start_now(self, now: float) -> bool:
        """Count one start at `now` if it fits and nobody waits for it."""
        stamps = self._stamps
        excess = len(stamps) + self._pending + 1 - self._limit
        if self._blocked_until > now or self._desk.lanes:
            return False
        if excess > 0:
            if excess > len(stamps) or stamps[excess - 1] + self._period > now:
                return False
            for _ in range(excess):
                stamps.popleft()
        stamps.append(now)
        return True

    def take_back(self) -> None:
        """Undo the `start_now` that was the last thing to happen here."""
        self._stamps.pop()

    def usage(self) -> WindowUsage:
        """How much of the window is used right now."""
        self._forget(self._clock.monotonic())
        used = len(self._stamps) + self._pending
        return WindowUsage(used, self._limit, self._period)

    def reset_time(self) -> float | None:
        """When the oldest start leaves the window (monotonic); None = unused."""
        self._forget(self._clock.monotonic())
        return self._stamps[0] + self._period if self._stamps else None

    def reset(self) -> None:
        """Forget all starts and cooldowns; waiters are served anew."""
        self._stamps.clear()
        self._blocked_until = -math.inf
        self.desk.pump()

    def stats(self) -> LimiterStats:
        """A snapshot."""
        blocked = self._blocked_until > self._clock.monotonic()
        available = 0 if blocked else self.usage().remaining
        return LimiterStats(available, self.desk.waiting(self._key), self.wait_time())

    def check_cost(self, cost: float, /) -> None:
        if check_int("cost", cost, 0) > self._limit:
            msg = (
                f"`cost` is {cost}, more than the limit {self._limit} per "
                f"{self._period}s: it never fits into a window"
            )
            raise ValueError(msg)

    def due(self, cost: float, /) -> float:
        stamps = self._stamps
        excess = len(stamps) + self._pending + int(cost) - self._limit
        if excess <= 0:
            return self._blocked_until
        if excess > len(stamps):
            return math.inf
        return max(self._blocked_until, stamps[excess - 1] + self._period)

    def estimate(self, total: float, now: float, /) -> float:
        # The n-th start cannot come before `period` after the (n - limit)-th one.
        known = len(self._stamps) + self._pending
        index = known + int(total) - 1 - self._limit
        rounds = 0
        if index >= known:
            rounds = (index - known) // self._limit + 1
            index -= rounds * self._limit
        base = max(now, self._blocked_until)
        if index >= len(self._stamps):
            base = max(base, now + self._period)
        elif index >= 0:
            base = max(base, self._stamps[index] + self._period)
        return base + rounds * self._period

    def take(self, cost: float, _now: float, /) -> None:
        stamps = self._stamps
        for _ in range(len(stamps) + self._pending + int(cost) - self._limit):
            stamps.popleft()  # `due` saw that these have left the window
        self._pending += int(cost)

    def started(self, cost: float, now: float, /) -> None:
        self._pending -= int(cost)
        self._stamps.extend([now] * int(cost))

    def put_back(self, cost: float, _now: float, /) -> None:
        self._pending -= int(cost)

    def give_up(self, cost: float, now: float, since: float | None, /) -> None:
        if since is not None and since + self._period <= now:
            return
        self._forget(now)
        stamps = self._stamps
        for _ in range(min(int(cost), len(stamps))):
            if since is not None and since in stamps:
                stamps.remove(since)
            else:
                # Which start it was is not known. Without the oldest of the window
                # instead, what is left is never earlier than the truth.
                stamps.popleft()

    def cool_down(self, seconds: float, now: float, /) -> None:
        self._blocked_until = max(self._blocked_until, now + seconds)

    def _admit(self, cost: int) -> bool:
        """Count `cost` starts now if they fit: `due`, `take` and `started` in one."""
        now = self._clock.monotonic()
        stamps = self._stamps
        excess = len(stamps) + self._pending + cost - self._limit
        if self._blocked_until > now or excess > len(stamps):
            return False
        if excess > 0:
            if stamps[excess - 1] + self._period > now:
                return False
            for _ in range(excess):
                stamps.popleft()
        for _ in range(cost):
            stamps.append(now)
        return True

    def _forget(self, now: float) -> None:
        stamps = self._stamps
        while stamps and stamps[0] + self._period <= now:
            stamps.popleft()
