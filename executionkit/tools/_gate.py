"""A gate: so many calls at once, first come, first served."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from executionkit.engine._loans import Loans
from executionkit.engine._permits import Desk
from executionkit.engine._slots import Pool
from executionkit.errors import BulkheadLimitType
from executionkit.tools._running import out_of_time
from executionkit.tools.middleware._base import Layer

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from contextvars import Context

    from executionkit._clock import Clock
    from executionkit.tools._batch import Batch
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("Gate", "entered")

_ENTERED: Final[ContextVar[tuple[Gate, ...]]] = ContextVar("gates")


class Gate(Layer):
    """Lets a number of calls in at once; the others wait as long as they have time.

    Args:
        name: What it is called in a path's description.
        limit: Calls at once.
        clock: Measures the wait.
        lends: Whether a call may use the place of the call that makes it.
    """

    __slots__ = (
        "_clock",
        "_desk",
        "_loans",
        "_pool",
        "hungry",
        "looks",
        "name",
        "resources",
    )

    def __init__(
        self, name: str, limit: int, clock: Clock, *, lends: bool = False
    ) -> None:
        self.name: str = name
        self._loans = Loans() if lends else None
        self._clock = clock
        self._pool = Pool(BulkheadLimitType.GLOBAL, limit)
        self._desk = Desk(clock)
        self.looks: bool = False
        """Whether it is about to look; a loop that ended may have left it so."""
        self.resources: tuple[Pool, ...] = (self._pool,)
        self.hungry: dict[Batch, None] = {}
        """Batches that have begun fewer calls than they could, for want of room."""

    @property
    def lends(self) -> bool:  # type: ignore[override]
        """Whether a call may use the place of the call that makes it."""
        return self._loans is not None

    @property
    def active(self) -> int:
        """Calls inside."""
        return self._pool.active

    @property
    def room(self) -> int:
        """How many calls that came now would not have to wait."""
        pool = self._pool
        return 0 if self._desk.lanes else (pool.limit or 0) - pool.active

    @property
    def waiting(self) -> int:
        """Calls in front of it."""
        return self._desk.waiting(self)

    def enter(self, request: ToolRequest, /) -> Awaitable[None] | None:
        if request.inside and self in request.inside:
            return None
        pool = self._pool
        if not pool.is_full and not self._desk.lanes:
            pool.active += 1
            if self._loans is not None:
                request.places = (*request.places, self)
            return None
        return self._wait(request)

    def leave(self, request: ToolRequest, _exc: BaseException | None, /) -> None:
        if request.inside and self in request.inside:
            return
        if self._loans is not None:
            self._loans.end(request)
            request.places = tuple(one for one in request.places if one is not self)
        self._pool.active -= 1
        if self._desk.lanes:
            self._desk.pump()
        if self.hungry and not self.looks:
            # Later: who left takes the next call itself, if its call is at its end.
            self.looks = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self.looks = False
        if self.room > 0:
            hungry, self.hungry = self.hungry, {}
            for batch in hungry:
                batch.look_again()

    async def _wait(self, request: ToolRequest) -> None:
        began = self._clock.monotonic()
        timeout = None
        if request.deadline is not None:
            timeout = max(0.0, request.deadline - began)
        claim: Any = self
        if self._loans is not None and request.caller is not None:
            claim = self._loans.claim(self, request)
        waiter = self._desk.enter(claim, claim, 1)
        if not waiter.granted:
            try:
                granted = await self._desk.wait(waiter, timeout)
            finally:
                request.waited("slot", self._clock.monotonic() - began)
            if not granted:
                raise out_of_time(request, "was not started")
        if self._loans is not None:
            request.places = (*request.places, self)


def entered(gates: tuple[Gate, ...], context: Context) -> tuple[Gate, ...]:
    """Which of `gates` the caller is inside of; calls run in `context` are inside of all.

    A tool that calls tools in turn has a place already. Would its calls have to wait
    for another one, all places could be held by tools that wait for each other.
    """
    before = context.get(_ENTERED)
    if before is None:
        context.run(_ENTERED.set, gates)
        return ()
    context.run(_ENTERED.set, (*before, *(g for g in gates if g not in before)))
    return tuple(gate for gate in gates if gate in before)
