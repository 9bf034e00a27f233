"""The counting behind a bulkhead: pools of slots, and which calls need which."""

from __future__ import annotations

import math
from collections import OrderedDict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from executionkit.engine._loans import Loans
from executionkit.engine._permits import Desk
from executionkit.errors import BulkheadFullError, BulkheadLimitType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from executionkit._clock import Clock
    from executionkit.engine._loans import Holder
    from executionkit.engine._permits import Waiter
    from executionkit.engine.bulkhead import BulkheadConfig

__all__ = ("DEFAULT_NAMESPACE", "Pool", "Route", "Slots")

DEFAULT_NAMESPACE = "default"
"""Tools in it have no prefix."""

_MAX_ROUTES = 1024


class Pool:
    """Slots of one level."""

    __slots__ = ("active", "kind", "limit", "waiting")

    def __init__(self, kind: BulkheadLimitType, limit: int | None) -> None:
        self.kind: BulkheadLimitType = kind
        self.limit: int | None = limit
        self.active: int = 0
        self.waiting: int = 0

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.active >= self.limit

    def due(self, _cost: float, /) -> float:
        return math.inf if self.is_full else -math.inf

    def estimate(self, _total: float, now: float, /) -> float:
        return now

    def take(self, _cost: float, _now: float, /) -> None:
        self.active += 1

    def started(self, _cost: float, _now: float, /) -> None:
        """Nothing to do: a slot is used from the moment it is granted."""

    def put_back(self, _cost: float, _now: float, /) -> None:
        self.active -= 1


class Route(Pool):
    """A tool in a namespace: its own count, and the pools that its calls need.

    The calls of all pools are the sums over their routes, so limits can change while
    calls run.
    """

    __slots__ = (
        "acquired",
        "is_pinned",
        "namespace",
        "peak",
        "rejected",
        "released",
        "resources",
        "timeouts",
        "tool",
        "wait_time",
    )

    def __init__(self, tool: str, namespace: str) -> None:
        super().__init__(BulkheadLimitType.TOOL, None)
        self.tool: str = tool
        self.namespace: str = namespace
        self.resources: tuple[Pool, ...] = (self,)
        self.acquired: int = 0
        self.is_pinned: bool = False
        self.released: int = 0
        self.rejected: int = 0
        self.timeouts: int = 0
        self.peak: int = 0
        self.wait_time: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """What limits may call it, the most precise first."""
        tool, space = self.tool, self.namespace
        if space == DEFAULT_NAMESPACE:
            return (tool,)
        if tool.startswith(f"{space}."):
            return (tool, tool[len(space) + 1 :])
        return (f"{space}.{tool}", tool)

    @property
    def scarce(self) -> Pool:
        """The pool of the tool itself: its own, or the one it shares."""
        return self if self.limit is not None else self.resources[1]

    def count_start(self) -> None:
        self.acquired += 1
        if self.active > self.peak:
            self.peak = self.active


class Slots:
    """All pools, and the one queue of those who wait for slots."""

    __slots__ = (
        "_clock",
        "_config",
        "_desk",
        "_loans",
        "_pools",
        "_routes",
        "namespace_limits",
        "tool_limits",
    )

    def __init__(self, config: BulkheadConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._desk = Desk(clock)
        self._loans = Loans()
        self._pools: dict[tuple[BulkheadLimitType, str], Pool] = {}
        # The most recently used last; names come from outside, so it is bounded.
        self._routes: OrderedDict[tuple[str, str], Route] = OrderedDict()
        self.tool_limits: dict[str, int] = dict(config.tool_limits)
        self.namespace_limits: dict[str, int] = dict(config.namespace_limits)

    def find(self, tool: str, namespace: str) -> Route | None:
        """What is known of a tool; None when it was not called, or long ago."""
        return self._routes.get((namespace, tool))

    def routes(self) -> Iterator[Route]:
        """What is known of all tools."""
        return iter(self._routes.values())

    def route(self, tool: str, namespace: str) -> Route:
        """What is known of a tool, made when it is new."""
        key = (namespace, tool)
        routes = self._routes
        route = routes.get(key)
        if route is not None:
            routes.move_to_end(key)
            return route
        route = Route(tool, namespace)
        route.resources = self.resources_of(route)
        if len(routes) >= _MAX_ROUTES:
            self._forget_one()
        routes[key] = route
        return route

    def pin(self, tool: str, namespace: str) -> Route:
        """What is known of a tool, kept for good; for those whose number is bounded."""
        route = self.route(tool, namespace)
        route.is_pinned = True
        return route

    def try_pass(self, route: Route) -> bool:
        """As `try_enter`, for who has the route at hand."""
        pools = route.resources
        for pool in pools:
            if pool.limit is not None and pool.active >= pool.limit:
                return False
        for pool in pools:
            pool.active += 1
        route.acquired += 1
        if route.active > route.peak:
            route.peak = route.active
        return True

    def try_enter(self, tool: str, namespace: str) -> Route | None:
        """Take a slot of every level; None when one is full.

        It overtakes nobody: who waits and could be served has been served already.
        """
        route = self.route(tool, namespace)
        return route if self.try_pass(route) else None

    async def enter(
        self,
        tool: str,
        namespace: str,
        timeout: float | None,
        call: Holder | None = None,
    ) -> Route:
        """Wait for a slot of every level, after `try_enter` has found none.

        Args:
            tool: The tool's name.
            namespace: The namespace it lives in.
            timeout: Seconds to wait at most; None = no limit.
            call: Who asks, when it may use the slots of its callers.

        Raises:
            BulkheadFullError: When they cannot be had.
        """
        route = self.route(tool, namespace)
        if call is None:
            waiter = self._desk.enter(route, route, 1)
        else:
            claim = self._loans.claim(route, call)
            key = route if claim is route else claim
            waiter = self._desk.enter(key, claim, 1)
        if not waiter.granted:
            await self._wait(route, waiter, timeout)
        route.count_start()
        return route

    def leave(self, route: Route, call: Holder | None = None) -> None:
        """Give the slots back, and what `call` has lent or borrowed of them."""
        if call is not None:
            self._loans.end(call)
        route.released += 1
        for pool in route.resources:
            pool.active -= 1
        if self._desk.lanes:
            self._desk.pump()

    def rebuild(self) -> None:
        """Apply changed limits to all calls to come; running ones keep counting."""
        self._loans.suspend()
        self._pools.clear()
        for route in self._routes.values():
            route.resources = self.resources_of(route)
        for route in self._routes.values():
            for pool in route.resources[1:]:
                pool.active += route.active
                pool.waiting += route.waiting
        self._loans.resume()
        self._desk.pump()

    def resources_of(self, route: Route) -> tuple[Pool, ...]:
        """The pools that a call of `route` needs, the narrowest first."""
        pools: list[Pool] = [route]
        shared = self._shared_pool(route.names)
        if shared is None:
            route.limit = self._config.default_limit
        else:
            route.limit = None
            pools.append(shared)
        space = self.namespace_limits.get(route.namespace)
        if space is not None:
            kind = BulkheadLimitType.NAMESPACE
            pools.append(self._pool(kind, route.namespace, space))
        if self._config.global_limit is not None:
            kind = BulkheadLimitType.GLOBAL
            pools.append(self._pool(kind, "", self._config.global_limit))
        return tuple(pools)

    def _shared_pool(self, names: tuple[str, ...]) -> Pool | None:
        for name in names:
            if name in self.tool_limits:
                kind = BulkheadLimitType.TOOL
                return self._pool(kind, name, self.tool_limits[name])
        for name in names:
            for glob, limit in self._config.patterns.items():
                if fnmatchcase(name, glob):
                    return self._pool(BulkheadLimitType.PATTERN, glob, limit)
        return None

    def _pool(self, kind: BulkheadLimitType, key: str, limit: int) -> Pool:
        pool = self._pools.get((kind, key))
        if pool is None:
            pool = self._pools[kind, key] = Pool(kind, limit)
        return pool

    async def _wait(self, route: Route, waiter: Waiter, timeout: float | None) -> None:
        refusal = self._refusal(route, timeout)
        if refusal is not None:
            self._desk.withdraw(waiter)
            route.rejected += 1
            raise refusal
        began = self._clock.monotonic()
        for pool in route.resources:
            pool.waiting += 1
        try:
            granted = await self._desk.wait(waiter, timeout)
        finally:
            for pool in route.resources:
                pool.waiting -= 1
            route.wait_time += self._clock.monotonic() - began
        if not granted:
            route.timeouts += 1
            raise _full(route, timeout)

    def _refusal(self, route: Route, timeout: float | None) -> BulkheadFullError | None:
        """Why a call that found no slot may not even wait for one."""
        if timeout is not None and timeout <= 0:
            return _full(route, timeout)
        depth = self._config.max_queue_depth
        if depth is not None and any(
            pool.waiting >= depth and (pool.is_full or pool is route.scarce)
            for pool in route.resources
        ):
            kind = BulkheadLimitType.QUEUE_DEPTH
            return BulkheadFullError(route.tool, route.namespace, kind, depth)
        return None

    def _forget_one(self) -> None:
        for key, route in self._routes.items():
            if not (route.active or route.waiting or route.is_pinned):
                del self._routes[key]
                return


def _full(route: Route, timeout: float | None) -> BulkheadFullError:
    # Behind an older call of the same tool, the levels are those that stop that one.
    full = next((pool for pool in route.resources if pool.is_full), route.scarce)
    return BulkheadFullError(
        route.tool, route.namespace, full.kind, full.limit or 0, timeout
    )
