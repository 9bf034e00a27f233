"""Exact windows of many processes: who must wait is told when, and waits just once."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Final

from executionkit._clock import get_clock
from executionkit.backends._limits import LimitPermit, LimitRule
from executionkit.backends._redis.keys import Ids, short
from executionkit.backends._redis.line import Line, Waiter, micros
from executionkit.backends._redis.resp import Question
from executionkit.backends._redis.wire import checked, escaped
from executionkit.engine._checks import check_int
from executionkit.engine.rate_bucket import WindowUsage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executionkit._clock import Clock
    from executionkit.backends._redis.scripts import Scripts
    from executionkit.backends._redis.wire import Wire

__all__ = ("RedisLimiter",)

_MAX_LINES: Final = 1024


class RedisLimiter:
    """Windows that many processes share; see `LimiterBackend`.

    The server's clock counts. A permit that is given back is free for others at once,
    but a caller of another process that was already promised a later moment keeps it.

    Args:
        wire: Reaches the server.
        scripts: What runs there.
        head: What the keys begin with.
        by_period: Whether windows of different lengths under one name are apart.
        clock: Measures waits. None = the clock of the current context.
    """

    def __init__(
        self,
        wire: Wire,
        scripts: Scripts,
        head: bytes,
        *,
        by_period: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.wire: Wire = wire
        self.scripts: Scripts = scripts
        self.clock: Clock = clock or get_clock()
        self.ids: Ids = Ids()
        self._head = head
        self._by_period = by_period
        self._lines: dict[Any, Line] = {}
        self._quick: dict[tuple[int, int], tuple[Any, Any, Line]] = {}

    async def acquire(
        self,
        rules: Sequence[LimitRule],
        *,
        cost: int = 1,
        timeout: float | None = None,
    ) -> LimitPermit:
        """Wait until `cost` starts fit into every window, and count them in all.

        Raises:
            PermitTimeoutError: When they cannot be had in time.
            StateStoreError: When the server does not answer.
            ValueError: When `cost` is above a limit.
        """
        wanted = tuple(rules)
        if cost != 1:
            _check_cost(wanted, cost)
        if not wanted or not cost:
            return LimitPermit(wanted, cost)
        expires = math.inf
        if timeout is not None:
            timeout = max(0.0, timeout)
            expires = self.clock.monotonic() + timeout
        waiter = Waiter(cost, expires)
        line = self._line(wanted)
        timer = None
        if timeout and expires < math.inf:
            timer = self.clock.call_later(timeout, lambda: line.expire(waiter))
        line.join(waiter)
        try:
            token = await waiter.future
        except asyncio.CancelledError:
            line.gone(waiter)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return LimitPermit(wanted, cost, [token])

    async def refund(self, permit: LimitPermit) -> None:
        """Take back starts that did not happen. Late and repeated refunds do nothing.

        Raises:
            StateStoreError: When the server does not answer.
        """
        if not permit.token:
            return
        token = permit.token.pop()
        keys = [self.key(rule) for rule in permit.rules]
        await self._take_back(keys, token, permit.cost)

    async def usage(self, rule: LimitRule) -> WindowUsage:
        """How much of a window is used right now."""
        arguments = [b"%d" % micros(rule.period)]
        question = self.scripts.usage.question(
            [self.key(rule)], arguments, again=arguments
        )
        used = checked(await self.wire.ask(question))
        return WindowUsage(int(used), rule.limit, rule.period)

    async def reset(self, key: str | None = None) -> None:
        """Forget the starts under a key; None = all of this store."""
        name = self._head if key is None else self._head + short(key)
        pattern = escaped(name)
        if key is None or self._by_period:
            pattern += b"*" if key is None else b":*us"
        found = [each async for each in self.wire.scan(pattern)]
        for each in found:
            tail = each[len(name) :]
            if key is None or not self._by_period or tail.count(b":") == 1:
                checked(await self.wire.ask(Question((b"DEL", each))))
        self.recheck(None)

    def key(self, rule: LimitRule) -> bytes:
        """Where a window is kept."""
        name = self._head + short(rule.key)
        return b"%b:%dus" % (name, micros(rule.period)) if self._by_period else name

    def recheck(self, keys: list[bytes] | None, but: Line | None = None) -> None:
        """Something became free in these windows (None = all)."""
        loop = asyncio.get_running_loop()
        for (where, _), line in list(self._lines.items()):
            if where is not loop or line is but:
                continue
            if keys is None or not set(keys).isdisjoint(line.keys):
                line.again()

    def _line(self, rules: tuple[LimitRule, ...]) -> Line:
        loop = asyncio.get_running_loop()
        # Layers give the same tuple each time: that is quicker than its hash.
        place = (id(loop), id(rules))
        known = self._quick.get(place)
        if known is not None and known[0] is loop and known[1] is rules:
            return known[2]
        line = self._lines.get((loop, rules))
        if line is None:
            self._make_room()
            line = self._lines[loop, rules] = Line(self, rules)
        if len(self._quick) >= _MAX_LINES:
            self._quick.clear()
        self._quick[place] = (loop, rules, line)
        return line

    def _make_room(self) -> None:
        """Forget lines of loops that are over, and, when there are many, empty ones."""
        many = len(self._lines) >= _MAX_LINES
        for place, line in list(self._lines.items()):
            if place[0].is_closed() or (many and line.is_empty):
                del self._lines[place]
                self._quick.clear()

    async def _take_back(self, keys: list[bytes], token: bytes, cost: int) -> None:
        members = [b"%b:%d" % (token, number) for number in range(1, cost + 1)]
        asked = [self.wire.ask(Question((b"ZREM", key, *members))) for key in keys]
        removed = [checked(reply) for reply in await asyncio.gather(*asked)]
        if any(removed):
            self.recheck(keys)


def _check_cost(rules: tuple[LimitRule, ...], cost: int) -> None:
    check_int("cost", cost, 0)
    for rule in rules:
        if cost > rule.limit:
            msg = (
                f"`cost` is {cost}, more than the limit {rule.limit} per "
                f"{rule.period}s: it never fits into a window"
            )
            raise ValueError(msg)
