"""Time limits of one request, on the library's clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from executionkit._clock import Clock

__all__ = ("Limit", "LimitReachedError", "within")

_T = TypeVar("_T")

Limit: TypeAlias = Literal["connect", "idle", "total"]
"""A field of `HttpTimeouts`."""


class LimitReachedError(Exception):
    """One of the three time limits ended the request; never leaves this package."""

    def __init__(self, *, which: Limit) -> None:
        super().__init__(which)
        self.which: Limit = which


async def within(
    clock: Clock, seconds: float | None, which: Limit, step: Callable[[], Awaitable[_T]]
) -> _T:
    """Run `step`, cancelling it after `seconds` (None = never).

    Raises:
        LimitReachedError: Time was up. A `TimeoutError` of `step` itself passes through:
            the operating system has one of its own.
    """
    if seconds is None:
        return await step()
    scope = clock.timeout(seconds)
    try:
        async with scope:
            return await step()
    except TimeoutError:
        if scope.expired():
            raise LimitReachedError(which=which) from None
        raise
