"""The callers of one event loop that need the same windows, first come, first served.

The head of the line asks for those behind it, too. What fits now is counted now. The
first that does not fit is promised its moment and counted there, so nobody has to ask
again: one question a permit at most, whatever the number of callers.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Final

from executionkit.backends._redis.wire import failure
from executionkit.engine.rate_bucket import PermitTimeoutError
from executionkit.errors import StateStoreError

if TYPE_CHECKING:
    from executionkit._clock import TimerHandle
    from executionkit.backends._limits import LimitRule
    from executionkit.backends._redis.limiter import RedisLimiter
    from executionkit.backends._redis.resp import Reply

__all__ = ("Line", "Waiter", "micros")

_BATCH: Final = 64
_MOST: Final = 1e15  # microseconds, about 30 years
_LEAST_WAIT: Final = 0.001
_SLOW: Final = 0.25


def micros(seconds: float) -> int:
    """Whole microseconds, at least one."""
    return max(1, int(min(seconds * 1e6, _MOST)))


def _patience(seconds: float) -> int:
    """Microseconds that a caller waits at most; -1 = for ever."""
    if seconds == math.inf:
        return -1
    return micros(seconds) if seconds > 0 else 0


def _now() -> float:
    # Answers of a server take real time, whatever clock the waits are on.
    return asyncio.get_running_loop().time()


class Waiter:
    """One caller in a line."""

    __slots__ = ("cost", "expires", "future", "token")

    def __init__(self, cost: int, expires: float) -> None:
        self.cost: int = cost
        self.expires: float = expires
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.token: bytes = b""


class Line:
    """The callers of one event loop that need the same windows, first come first."""

    def __init__(self, limiter: RedisLimiter, rules: tuple[LimitRule, ...]) -> None:
        self._limiter = limiter
        self._rules = rules
        self._keys = [limiter.key(rule) for rule in rules]
        self._windows: list[bytes] = []
        for rule in rules:
            self._windows += [b"%d" % rule.limit, b"%d" % micros(rule.period)]
        self._waiters: deque[Waiter] = deque()
        self._promised: Waiter | None = None
        self._timer: TimerHandle | None = None
        self._due = -math.inf
        self._back: list[bytes] = []
        self._is_asking = False
        self._asked_at = 0.0
        self._is_stale = False

    @property
    def is_empty(self) -> bool:
        return not (self._waiters or self._is_asking or self._promised)

    @property
    def keys(self) -> list[bytes]:
        return self._keys

    def join(self, waiter: Waiter) -> None:
        """Stand in line; refused at once when it cannot be in time."""
        self._waiters.append(waiter)
        if self._promised is not None:
            self._dismiss_late()
        self._ask()

    def leave(self, waiter: Waiter) -> None:
        """The caller has gone away."""
        if waiter is self._promised:
            self._again()
            self._limiter.recheck(self._keys, self)
        elif waiter in self._waiters:
            self._waiters.remove(waiter)

    def gone(self, waiter: Waiter) -> None:
        """The caller was cancelled, perhaps with its permit in hand."""
        done = waiter.future
        if done.cancelled() or done.exception() is not None:
            self.leave(waiter)
            return
        self._back += [waiter.token, b"%d" % waiter.cost]
        self.again()
        self._ask()
        self._limiter.recheck(self._keys, self)

    def expire(self, waiter: Waiter) -> None:
        """The time to wait is over."""
        if waiter is self._promised and self._due <= self._limiter.clock.monotonic():
            self._ring()  # what is due in this very moment is still in time
        if waiter.future.done():
            return
        if self._is_asking and _now() - self._asked_at > _SLOW:
            msg = "Redis did not answer before the time to wait was over"
            waiter.future.set_exception(StateStoreError(msg))
        else:
            self._refuse(waiter, _LEAST_WAIT)
        self.leave(waiter)

    def again(self) -> None:
        """Something became free: what was promised may be had sooner."""
        self._is_stale = self._is_asking
        self._again()

    # --- inside ----------------------------------------------------------------------
    def _again(self) -> None:
        """Give a promise back, and ask for a new one in the same step."""
        waiter, self._promised = self._promised, None
        if waiter is None:
            return
        self._stop_timer()
        self._back += [waiter.token, b"%d" % waiter.cost]
        if not waiter.future.done():
            self._waiters.appendleft(waiter)
        self._ask()

    def _ask(self) -> None:
        if self._is_asking or self._promised is not None:
            return
        if not self._waiters and not self._back:
            return
        count = min(_BATCH, len(self._waiters))
        callers = [self._waiters.popleft() for _ in range(count)]
        self._is_asking, self._asked_at, self._is_stale = True, _now(), False
        name = self._limiter.ids.new()
        tail, mine = list(self._windows), list[bytes]()
        now = self._limiter.clock.monotonic()
        for number, waiter in enumerate(callers, 1):
            waiter.token = b"%b:%d" % (name, number)
            cost = b"%d" % waiter.cost
            tail += [cost, b"%d" % _patience(waiter.expires - now)]
            mine += [waiter.token, cost]
        back, self._back = self._back, []
        first = [name, b"%d" % (len(back) // 2), *back, *tail]
        # Asked again, it takes back first what it may already have been given.
        both = [*back, *mine]
        second = [name, b"%d" % (len(both) // 2), *both, *tail]
        question = self._limiter.scripts.acquire.question(
            self._keys, first, again=second, is_minor=not callers
        )
        self._limiter.wire.tell(question, lambda reply: self._answered(callers, reply))

    def _answered(self, callers: list[Waiter], replies: Reply) -> None:
        self._is_asking = False
        if isinstance(replies, Exception):
            self._fail(callers, replies)
            return
        rest = callers[len(replies) :]
        self._waiters.extendleft(reversed(rest))
        unused: list[Waiter] = []
        for waiter, wait in zip(callers, replies, strict=False):
            if wait < 0:
                self._refuse(waiter, -wait / 1000)
            elif waiter.future.done():
                unused.append(waiter)
            elif wait == 0:
                waiter.future.set_result(waiter.token)
            else:
                self._promise(waiter, wait / 1000)
        for waiter in unused:
            self._back += [waiter.token, b"%d" % waiter.cost]
        if self._promised is not None and (unused or self._is_stale):
            self._again()
        self._ask()
        if unused:
            self._limiter.recheck(self._keys, self)

    def _promise(self, waiter: Waiter, wait: float) -> None:
        clock = self._limiter.clock
        self._promised = waiter
        self._due = clock.monotonic() + wait
        self._timer = clock.call_later(wait, self._ring)
        self._dismiss_late()

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _ring(self) -> None:
        waiter, self._promised = self._promised, None
        self._stop_timer()
        if waiter is not None and not waiter.future.done():
            waiter.future.set_result(waiter.token)
        self._ask()

    def _dismiss_late(self) -> None:
        """Refuse those who certainly cannot start in time.

        Of the starts from the promised one on, no more than `limit` fit into a period:
        that is the least that those behind have to wait.
        """
        head = self._promised
        if head is None or all(w.expires == math.inf for w in self._waiters):
            return
        now = self._limiter.clock.monotonic()
        ahead = head.cost
        for waiter in list(self._waiters):
            last = ahead + waiter.cost - 1
            rounds = max((last // r.limit) * r.period for r in self._rules)
            if self._due + rounds > waiter.expires:
                self._waiters.remove(waiter)
                self._refuse(waiter, max(_LEAST_WAIT, self._due + rounds - now))
            else:
                ahead += waiter.cost

    def _refuse(self, waiter: Waiter, seconds: float) -> None:
        if not waiter.future.done():
            msg = f"No permit in time: the next one can be had in {seconds:.3f}s"
            waiter.future.set_exception(PermitTimeoutError(msg, seconds))

    def _fail(self, callers: list[Waiter], exc: Exception) -> None:
        # Those behind them would hear the same, only later.
        everybody = [*callers, *self._waiters]
        self._waiters.clear()
        for waiter in everybody:
            if not waiter.future.done():
                waiter.future.set_exception(failure(exc))
