"""Permits of several resources at once: atomic, oldest first, none lost.

A resource is anything that can be short: a rate limit, a pool of slots. A caller needs
all of its resources in the same moment or none: nothing is held while waiting.

Callers that need the same resources wait in one lane, in order. A `Desk` serves the
lanes that share a resource: the oldest caller whose resources are all there goes first,
and one that waits for a scarce resource does not stop those who do not need it.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from executionkit._clock import Clock, TimerHandle

__all__ = ("Claim", "Desk", "Resource", "Waiter")


class Resource(Protocol):
    """Something that can be short. Times are monotonic seconds."""

    def due(self, cost: float, /) -> float:
        """When `cost` can be had; `inf` when an event must happen first."""
        ...

    def estimate(self, total: float, now: float, /) -> float:
        """A time before which the last of `total` units cannot be had."""
        ...

    def take(self, cost: float, now: float, /) -> None:
        """Hold `cost` for a caller that has not gone on yet."""
        ...

    def started(self, cost: float, now: float, /) -> None:
        """The caller has gone on."""
        ...

    def put_back(self, cost: float, now: float, /) -> None:
        """The caller is gone and never went on."""
        ...


class Claim(Protocol):
    """What a lane asks for; read anew each time, so it may change meanwhile."""

    @property
    def resources(self) -> Sequence[Resource]:
        """All that is needed at once."""
        ...


class Waiter:
    """One caller at the desk."""

    __slots__ = ("cost", "expires", "future", "granted", "lane", "ticket")

    def __init__(self, lane: _Lane, ticket: int, cost: float) -> None:
        self.lane: _Lane = lane
        self.ticket: int = ticket
        self.cost: float = cost
        self.granted: bool = False
        self.expires: float = math.inf
        self.future: asyncio.Future[bool] | None = None

    @property
    def is_gone(self) -> bool:
        """Cancelled or timed out, and not yet resumed to say so itself."""
        return self.future is not None and self.future.done()

    def resolve(self, *, granted: bool) -> None:
        """Wake the caller."""
        self.granted = granted
        if self.future is not None:
            self.future.set_result(granted)


class _Lane:
    """Callers that need the same resources, oldest first."""

    __slots__ = ("claim", "key", "queued", "waiters")

    def __init__(self, key: Hashable, claim: Claim) -> None:
        self.key: Hashable = key
        self.claim: Claim = claim
        self.queued: float = 0.0
        # Not a dict: taking from its front again and again is quadratic.
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()

    def add(self, waiter: Waiter) -> None:
        self.waiters[waiter.ticket] = waiter
        self.queued += waiter.cost

    def remove(self, waiter: Waiter) -> None:
        if self.waiters.pop(waiter.ticket, None) is not None:
            self.queued -= waiter.cost

    @property
    def first(self) -> Waiter:
        return next(iter(self.waiters.values()))


class _Nothing:
    resources: tuple[Resource, ...] = ()


_MOVED = _Lane("moved", _Nothing())


class Desk:
    """Serves the callers of some resources. For one event loop; not thread-safe.

    `lanes` is empty as long as nobody waits: callers may then help themselves. A desk
    that was joined to another one never looks empty.
    """

    __slots__ = ("_clock", "_timer", "_wake_at", "lanes", "parent", "ticket")

    def __init__(self, clock: Clock) -> None:
        self.lanes: dict[Hashable, _Lane] = {}
        self._clock = clock
        self.parent: Desk | None = None
        self.ticket: int = 0
        self._timer: TimerHandle | None = None
        self._wake_at = math.inf

    def now(self) -> float:
        """The time on the desk's clock."""
        return self._clock.monotonic()

    def root(self) -> Desk:
        """The desk that serves now in the place of this one; mostly itself."""
        desk = self
        while desk.parent is not None:
            desk = desk.parent
        return desk

    def join(self, other: Desk) -> Desk:
        """Serve the callers of both desks at one of them; it is returned."""
        desk, other = self.root(), other.root()
        if desk is not other:
            other.arm(math.inf, 0.0)
            other.parent = desk
            desk.lanes.update(other.lanes)
            desk.ticket = max(desk.ticket, other.ticket)
            other.lanes = {_MOVED.key: _MOVED}
            desk.pump()
        return desk

    def enter(self, key: Hashable, claim: Claim, cost: float) -> Waiter:
        """Ask for `cost` of each resource of `claim`; see `granted` of the result.

        A waiter that was not granted must be given to `wait` or `withdraw`.
        """
        desk = self.root()
        lane = desk.lanes.get(key)
        waits_behind = lane is not None
        if lane is None:
            lane = desk.lanes[key] = _Lane(key, claim)
        desk.ticket += 1
        waiter = Waiter(lane, desk.ticket, cost)
        lane.add(waiter)
        if not waits_behind:  # behind others nothing can have become possible
            desk.pump()
        if waiter.granted:
            desk.start(waiter)
        return waiter

    async def wait(self, waiter: Waiter, timeout: float | None) -> bool:
        """Wait until it is granted; False when `timeout` seconds pass before."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiter.future = future
        timer = None
        if timeout is not None:
            waiter.expires = self._clock.monotonic() + timeout
            timer = self._clock.call_later(timeout, lambda: self._expire(waiter))
        try:
            granted = await future
        except BaseException:
            self._leave(waiter)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if granted:
            self.root().start(waiter)
        else:
            self.withdraw(waiter)
        return granted

    def withdraw(self, waiter: Waiter) -> None:
        """Take a waiter that was not granted out of its lane."""
        desk = self.root()
        lane = waiter.lane
        lane.remove(waiter)
        if not lane.waiters and desk.lanes.get(lane.key) is lane:
            del desk.lanes[lane.key]
        desk.pump()

    def ahead(self, key: Hashable) -> float:
        """The sum of the costs that wait in the lane `key`."""
        lane = self.root().lanes.get(key)
        return 0.0 if lane is None else lane.queued

    def waiting(self, key: Hashable) -> int:
        """How many callers wait in the lane `key`."""
        lane = self.root().lanes.get(key)
        return 0 if lane is None else len(lane.waiters)

    def pump(self) -> None:
        """Serve everybody who can be served; called after whatever changed.

        A caller that lacks one resource only has the next claim on it. One that lacks
        several holds up nobody.
        """
        if not self.lanes:
            self.arm(math.inf, 0.0)
            return
        now = self._clock.monotonic()
        lanes = list(self.lanes.values())
        heads = [(lane.first.ticket, order) for order, lane in enumerate(lanes)]
        heapify(heads)
        claimed: set[Resource] = set()
        wake = math.inf
        while heads:
            order = heads[0][1]
            lane = lanes[order]
            due = _serve(lane, claimed, now)
            if due is not None:
                wake = min(wake, due)
                heappop(heads)
            elif lane.waiters:
                heapreplace(heads, (lane.first.ticket, order))
            else:
                del self.lanes[lane.key]
                heappop(heads)
        self.arm(wake, now)

    def recheck(self) -> None:
        """Dismiss at once those who can no longer be served before their timeout."""
        now = self._clock.monotonic()
        for lane in self.lanes.values():
            total = 0.0
            for waiter in list(lane.waiters.values()):
                total += waiter.cost
                at = max(r.estimate(total, now) for r in lane.claim.resources)
                if at > waiter.expires and not waiter.is_gone:
                    waiter.resolve(granted=False)
                    total -= waiter.cost
        self.pump()

    def start(self, waiter: Waiter) -> None:
        now = self._clock.monotonic()
        for resource in waiter.lane.claim.resources:
            resource.started(waiter.cost, now)
        # Without a timer the others wait for just this: that somebody goes on.
        if self.lanes and self._timer is None:
            self.pump()

    def _leave(self, waiter: Waiter) -> None:
        if not waiter.granted:
            self.withdraw(waiter)
            return
        now = self._clock.monotonic()
        for resource in waiter.lane.claim.resources:
            resource.put_back(waiter.cost, now)
        self.root().pump()

    def arm(self, wake: float, now: float) -> None:
        if wake == self._wake_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake_at = wake
        if wake < math.inf:
            self._timer = self._clock.call_later(wake - now, self._ring)

    def _expire(self, waiter: Waiter) -> None:
        self.root().pump()  # what is due in this very moment is still in time
        if not waiter.is_gone:
            waiter.resolve(granted=False)

    def _ring(self) -> None:
        self._timer = None
        self._wake_at = math.inf
        self.pump()


def _serve(lane: _Lane, claimed: set[Resource], now: float) -> float | None:
    """Serve the head of a lane. None: it is out of the lane; else when to look again."""
    waiter = lane.first
    if waiter.is_gone:
        lane.remove(waiter)
        return None
    cost = waiter.cost
    resources = lane.claim.resources
    due = -math.inf
    lacking: list[Resource] = []
    for resource in resources:
        at = resource.due(cost)
        if at > now:
            due = max(due, at)
            lacking.append(resource)
        elif resource in claimed:
            lacking.append(resource)
    if not lacking:
        for resource in resources:
            resource.take(cost, now)
        lane.remove(waiter)
        waiter.resolve(granted=True)
        return None
    if len(lacking) == 1:
        claimed.add(lacking[0])
    # Lacking only what an older one claims: that one's time is the time to look again.
    return due if due > now else math.inf
