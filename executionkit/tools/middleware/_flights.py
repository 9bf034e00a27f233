"""Equal calls in flight run once: one leads, the others wait for what it brings."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

from executionkit._clock import get_clock
from executionkit._error_base import ExecutionKitError, twin_of
from executionkit.errors import (
    BulkheadFullError,
    DeadlineExceededError,
    ToolCancelledError,
    ToolRateLimitedError,
    ToolReentrantError,
    ToolTimeoutError,
)
from executionkit.tools._nesting import waits_for_itself

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.backends import CacheEntry
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("LEAD", "Flight", "Flights", "Lead", "again", "is_leaders_own")


class Lead(Enum):
    """The type of `LEAD`."""

    LEAD = "lead"


LEAD: Final = Lead.LEAD
"""What `wait` gives to the follower that has to run the call itself now."""

_Outcome = Literal["lead", "value", "error"]


class Flight:
    """A call that is running, and who waits for it."""

    __slots__ = ("entry", "error", "key", "mark", "stale", "waiters")

    def __init__(self, key: str, mark: str = "") -> None:
        self.key: str = key
        self.mark: str = mark
        """What its key alone does not tell."""
        self.waiters: list[asyncio.Future[_Outcome]] | None = None
        """In the order in which they came; None = nobody yet."""
        self.entry: CacheEntry | None = None
        self.error: BaseException | None = None
        self.stale: bool = False
        """True when the result must not be kept: it was invalidated on the way."""


def again(error: BaseException) -> BaseException:
    """The error to raise for a second caller: notes and tracebacks are not shared."""
    return twin_of(error) if isinstance(error, ExecutionKitError) else error


class Flights:
    """All calls in flight, by key. Belongs to one event loop at a time."""

    __slots__ = ("_clock", "_flights", "_nested")

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock if clock is not None else get_clock()
        # None = nobody has joined yet, as is most often so.
        self._flights: dict[str, Flight | None] = {}
        # Those who wait, and were called by a call that others may wait for.
        self._nested: dict[ToolRequest, str] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def join(self, key: str, mark: str = "") -> Flight | None:
        """The flight of an equal call; None = there is none, and now you lead one."""
        flights = self._flights
        if key not in flights:
            flights[key] = Flight(key, mark) if mark else None
            return None
        return flights[key] or self._board(key)

    def _board(self, key: str) -> Flight:
        flight = self._flights[key] = Flight(key)
        return flight

    def get(self, key: str) -> Flight | None:
        """The flight of `key` when somebody has joined it or marked it; else None."""
        return self._flights.get(key)

    def end_alone(self, key: str) -> None:
        """A flight ends that `get` knows nothing of: there is nobody to tell."""
        self._flights.pop(key, None)

    def mark_stale(self, head: str, tail: str = "") -> None:
        """Keep nothing of the flights whose keys begin and end so."""
        for key, flight in list(self._flights.items()):
            if key.startswith(head) and key.endswith(tail):
                (flight or self._board(key)).stale = True

    async def wait(self, flight: Flight, request: ToolRequest) -> Any:
        """What the leader's call gives; `LEAD` when `request` has to run now.

        Raises:
            DeadlineExceededError: When the deadline of `request` passes first.
            ToolReentrantError: When the leader waits for `request`.
        """
        if request.caller is None:
            value = await self._wait(flight, request.deadline)
        else:
            if waits_for_itself(request, flight.key, self._nested.items()):
                raise ToolReentrantError(request.full_name)
            self._nested[request] = flight.key
            try:
                value = await self._wait(flight, request.deadline)
            finally:
                del self._nested[request]
        if value is LEAD:
            request.leads = flight.key
        return value

    async def _wait(self, flight: Flight, deadline: float | None) -> Any:
        waiter: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        if flight.waiters is None:
            flight.waiters = []
        flight.waiters.append(waiter)
        timer = None
        if deadline is not None:
            left = deadline - self._clock.monotonic()
            timer = self._clock.call_later(left, lambda: _expire(waiter))
        try:
            outcome = await waiter
        except asyncio.CancelledError:
            # Cancelled after it was told to lead: somebody else has to.
            if waiter.done() and not waiter.cancelled() and _is_lead(waiter):
                self._hand_on(flight)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if outcome == "lead":
            return LEAD
        if outcome == "error":
            assert flight.error is not None  # noqa: S101 # nosec B101 - set before
            raise again(flight.error)
        assert flight.entry is not None  # noqa: S101 # nosec B101 - set before
        return flight.entry.value

    def land(self, key: str, entry: CacheEntry | None) -> None:
        """The leader has a value; None = one that cannot be shared, so others run."""
        if entry is None:
            self.hand_on(key)
            return
        flight = self._flights.pop(key, None)
        if flight is not None and flight.waiters is not None:
            flight.entry = entry
            _tell(flight, "value")

    def crash(self, key: str, error: BaseException) -> None:
        """The leader's call failed: its followers share the error."""
        flight = self._flights.pop(key, None)
        if flight is not None and flight.waiters is not None:
            flight.error = error
            _tell(flight, "error")

    def hand_on(self, key: str) -> None:
        """The leader is gone without an outcome: the next in line leads."""
        flight = self._flights.get(key)
        if flight is not None:
            self._hand_on(flight)
        else:
            self.end_alone(key)

    def _hand_on(self, flight: Flight) -> None:
        waiters = flight.waiters or []
        while waiters:
            waiter = waiters.pop(0)
            if not waiter.done():
                waiter.set_result("lead")
                return
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]


def _is_lead(waiter: asyncio.Future[_Outcome]) -> bool:
    return waiter.exception() is None and waiter.result() == "lead"


def _expire(waiter: asyncio.Future[_Outcome]) -> None:
    if not waiter.done():
        msg = (
            "the deadline passed while an equal call was running; nothing was run "
            "for this one"
        )
        waiter.set_exception(DeadlineExceededError(msg))


def _tell(flight: Flight, outcome: _Outcome) -> None:
    for waiter in flight.waiters or ():
        if not waiter.done():
            waiter.set_result(outcome)


def is_leaders_own(error: BaseException, request: ToolRequest, clock: Clock) -> bool:
    """Whether a failure is about the leader and not about the call.

    It was cancelled, or its deadline left no time: a follower may have more of it.
    """
    if not isinstance(error, Exception):
        return True
    if isinstance(error, (ToolCancelledError, DeadlineExceededError)):
        return True
    deadline = request.deadline
    if deadline is None:
        return False
    if isinstance(error, ToolTimeoutError):
        return clock.monotonic() >= deadline
    return isinstance(error, (ToolRateLimitedError, BulkheadFullError))
