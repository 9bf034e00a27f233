"""Asking a service again when a request fails in a way that passes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from executionkit._clock import default_random, get_clock
from executionkit.context import remaining_deadline
from executionkit.errors import (
    DeadlineExceededError,
    ExecutionKitError,
    PermanentError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)

__all__ = ("MAX_SUBMITS", "Patience", "is_missing", "passes")

_T = TypeVar("_T")
_MAX_DELAY: Final = 60.0
MAX_SUBMITS: Final = 4
"""Attempts to make one batch."""

_LAST_LOOK: Final = 1.0
"""Seconds that the last look at a batch may take when the time is up."""


def passes(error: ExecutionKitError) -> bool:
    """Whether the same request may succeed later."""
    kinds = (RateLimitError, ProviderError)
    return isinstance(error, kinds) and not error.retries_exhausted


def is_missing(error: ExecutionKitError) -> bool:
    """Whether the service does not know what was asked for."""
    return isinstance(error, PermanentError) and error.metadata.get("status") == 404


class Patience:
    """How long one batch is worth asking for.

    Args:
        interval: Seconds between two looks at it, and of the first backoff.
        grace: Seconds for which a 404 is taken for "not yet".
        max_failures: Requests in a row that may fail.
        timeout: Seconds for all of it. None = no limit but the context's deadline.
    """

    def __init__(
        self,
        *,
        interval: float,
        grace: float,
        max_failures: int,
        timeout: float | None,
    ) -> None:
        self.interval = interval
        self._grace = grace
        self._max_failures = max_failures
        self.timeout = timeout
        self._clock = get_clock()
        self._due = None if timeout is None else self._clock.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds until time is up; None = never."""
        own = None if self._due is None else self._due - self._clock.monotonic()
        limits = [one for one in (own, remaining_deadline()) if one is not None]
        return min(limits, default=None)

    async def rest(self, batch_id: str) -> None:
        """Wait until it is time to look again.

        Raises:
            ProviderTimeoutError: When time is up.
            DeadlineExceededError: When that of the context is.
        """
        left = self.left()
        if left is not None and left <= 0:
            raise self.too_late(batch_id)
        await self._clock.sleep(
            self.interval if left is None else min(self.interval, left)
        )

    def too_late(self, batch_id: str) -> ExecutionKitError:
        """The error for a batch that takes too long."""
        if self._due is not None and self._due <= self._clock.monotonic():
            return ProviderTimeoutError(
                f"batch `{batch_id}` did not end within {self.timeout:g} s; it goes on, "
                "wait for it again by its id, with a larger `timeout`"
            )
        return DeadlineExceededError(
            f"batch `{batch_id}` did not end before the deadline of the context; it "
            "goes on, wait for it again by its id"
        )

    async def look(self, work: Callable[[], Awaitable[_T]], batch_id: str) -> _T:
        """`ask`, with a limit for a server that does not answer."""
        left = self.left()
        scope = self._clock.timeout(None if left is None else max(left, _LAST_LOOK))
        try:
            async with scope:
                return await self.ask(work)
        except TimeoutError:
            if not scope.expired():
                raise
        raise self.too_late(batch_id)

    async def ask(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """The outcome of `work`, tried again while its failure may pass.

        Raises:
            ExecutionKitError: The last failure, when it does not, or not in time.
        """
        failures = 0
        missing_since: float | None = None
        while True:
            try:
                return await work()
            except ExecutionKitError as exc:
                failure = exc
            now = self._clock.monotonic()
            if is_missing(failure):
                missing_since = now if missing_since is None else missing_since
                if now - missing_since >= self._grace:
                    raise failure
                delay = min(self.interval, self._grace)
            elif passes(failure) and failures < self._max_failures:
                failures += 1
                delay = self.backoff(failures, failure)
            else:
                if failures:
                    failure.add_note(f"{failures + 1} requests in a row failed")
                raise failure
            await self.pause(delay, failure)

    def backoff(self, failures: int, failure: ExecutionKitError) -> float:
        """Seconds to wait after so many failures; never less than the server asks for.

        Half of `min(interval * 2**(failures - 1), 60)`, and up to as much by chance.
        """
        most = min(self.interval * 2.0 ** min(failures - 1, 30), _MAX_DELAY)
        delay = most * (0.5 + 0.5 * default_random())
        known = getattr(failure, "retry_after_known", True)
        hint = failure.retry_after if known else None
        return max(delay, hint or 0.0)

    async def pause(self, seconds: float, failure: ExecutionKitError) -> None:
        """Wait before the next attempt.

        Raises:
            ExecutionKitError: `failure`, when there is no time for one.
        """
        left = self.left()
        if left is not None and seconds >= left:
            failure.add_note(
                f"not tried again: {max(left, 0.0):g} s were left, and the next attempt "
                f"was due in {seconds:g} s"
            )
            raise failure
        await self._clock.sleep(seconds)
