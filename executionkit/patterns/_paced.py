"""Permits that are fresh: first room in the budget, then a permit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from executionkit._clock import get_clock
from executionkit.context import remaining_deadline
from executionkit.engine._attempts import refund_of
from executionkit.engine.rate_bucket import PermitTimeoutError
from executionkit.errors import DeadlineExceededError
from executionkit.observability import tell_wait

if TYPE_CHECKING:
    from executionkit.engine.retry import RateLimitStrategy
    from executionkit.observability import TraceCallback

__all__ = ("PacedRoom", "take_permit")


async def take_permit(limiter: Any, trace: TraceCallback | None) -> None:
    """Wait for a permit for a whole run; who watches is told how long that took.

    Raises:
        DeadlineExceededError: At once, when the permit would come too late.
    """
    clock, left = get_clock(), remaining_deadline()
    began = clock.monotonic()
    if left is None:
        await limiter.acquire()
    else:
        try:
            await limiter.acquire(timeout=left)
        except PermitTimeoutError as exc:
            msg = (
                f"The deadline is in {left:.3f}s and the next permit of `rate_limiter` "
                f"in {exc.retry_after:.3f}s; nothing was sent"
            )
            error = DeadlineExceededError(msg)
            error.retry_after = exc.retry_after
            raise error from exc
    await tell_wait(trace, "permit", clock.monotonic() - began)


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
