"""Permits that are fresh: first room in the budget, then a permit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from executionkit.engine._attempts import refund_of

if TYPE_CHECKING:
    from executionkit.engine.retry import RateLimitStrategy

__all__ = ("PacedRoom",)


class PacedRoom:
    """A rate limit for calls that may have to wait for room in a token budget.

    A call that took its permit first and then waited for other calls to be settled
    would send long after its permit was given: several of them together, against the
    limit. So it waits for room, takes a permit, and gives that back when the room is
    gone by then.

    Args:
        strategy: The rate limit.
        room: Waits until there is room; raises when there will be none.
        has_room: Whether there is room right now; raises when there will be none.
    """

    __slots__ = ("_has_room", "_refund", "_room", "_strategy")

    def __init__(
        self,
        strategy: RateLimitStrategy,
        room: Callable[[], Awaitable[None]],
        has_room: Callable[[], bool],
    ) -> None:
        self._strategy: Any = strategy
        self._room = room
        self._has_room = has_room
        self._refund: Callable[[], object] = int  # nothing to give back yet

    async def acquire(self, timeout: float | None = None) -> None:
        """Wait for room and a permit; nothing is awaited after the last look."""
        while True:
            await self._room()
            if timeout is None:
                await self._strategy.acquire()
            else:
                await self._strategy.acquire(timeout=timeout)
            self._refund = refund_of(self._strategy)
            try:
                if self._has_room():
                    return
            except BaseException:
                self._refund()
                raise
            self._refund()

    def drain(self, seconds: float) -> None:
        """Give no permit for `seconds`."""
        self._strategy.drain(seconds)

    def refund(self) -> None:
        """Give the permit back."""
        self._refund()
