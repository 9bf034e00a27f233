"""A tool at work: its time limit, its end, and what becomes of one that does not end."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Coroutine, Generator, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from executionkit.errors import (
    DeadlineExceededError,
    ToolCancelledError,
    ToolTimeoutError,
)
from executionkit.tools._exits import odd_failure
from executionkit.tools._leaving import leave_behind

if TYPE_CHECKING:
    from executionkit._clock import Clock, TimerHandle
    from executionkit.tools._batch import Batch
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("GRACE_SECONDS", "Running", "Workshop", "out_of_time", "wait_within")

GRACE_SECONDS: Final = 1.0
"""How long a cancelled tool may take to end before it is left behind."""

SHUT_DOWN: Final = "System is shutting down"
CANCELLED: Final = "Execution was cancelled"

_log = logging.getLogger("executionkit")


class _Reason(StrEnum):
    TIMEOUT = "timeout"
    DEADLINE = "deadline"
    SHUTDOWN = "shutdown"


_MAX_QUEUES: Final = 64
_LONG_QUEUE: Final = 256


def out_of_time(request: ToolRequest, what: str) -> Exception:
    """The error of a call whose time as a whole is over.

    Args:
        request: The call.
        what: What became of it, in words: "was stopped", "was not started".
    """
    name = request.call.name
    if request.limit is not None:
        return ToolTimeoutError(name, request.limit, attempts=request.attempts)
    msg = f"Tool '{name}' {what}: the deadline of the request has passed"
    return DeadlineExceededError(msg)


class _Expiry:
    """Tools with the same time limit, oldest first, and one timer for them all.

    A timer for each would cost more than many a tool takes. What has ended is dropped
    from the front when the next one comes, and everywhere when the queue has doubled.
    """

    __slots__ = ("_clock", "_limit", "_most", "_queue", "_timer")

    def __init__(self, clock: Clock, limit: float) -> None:
        self._clock = clock
        self._limit = limit
        self._queue: deque[tuple[float, Running]] = deque()
        self._timer: TimerHandle | None = None
        self._most = _LONG_QUEUE

    def add(self, item: Running) -> None:
        queue = self._queue
        while queue and queue[0][1].task is None:
            queue.popleft()
        if len(queue) > self._most:
            self._sweep()
        queue.append((self._clock.monotonic() + self._limit, item))
        if self._timer is None:
            self._timer = self._clock.call_later(self._limit, self._ring)

    def _sweep(self) -> None:
        """Drop what has ended behind one that still runs."""
        queue = self._queue
        at_work = [entry for entry in queue if entry[1].task is not None]
        queue.clear()
        queue.extend(at_work)
        self._most = max(_LONG_QUEUE, 2 * len(queue))

    def _ring(self) -> None:
        queue = self._queue
        now = self._clock.monotonic()
        while queue and (queue[0][1].task is None or queue[0][0] <= now):
            item = queue.popleft()[1]
            if item.task is not None:
                item.stop(_Reason.TIMEOUT)
        self._timer = None
        if queue:
            self._timer = self._clock.call_later(queue[0][0] - now, self._ring)


class Workshop:
    """All tools at work for one strategy, and whether new ones may begin."""

    __slots__ = (
        "_expiries",
        "_loop",
        "abandoned",
        "batches",
        "clock",
        "grace",
        "is_closed",
        "offset",
        "pid",
        "running",
        "spoilt",
    )

    def __init__(self, clock: Clock, grace: float = GRACE_SECONDS) -> None:
        self.clock: Clock = clock
        self.grace: float = grace
        self.running: set[Running] = set()
        """Tools that wait for something right now."""
        self.abandoned: int = 0
        """Tools that did not end when they were cancelled, and run on by themselves."""
        self.batches: set[Batch] = set()
        """What has begun and not ended."""
        self.spoilt: set[asyncio.Task[Any]] = set()
        """Tasks that a tool was left behind in: time limits of its own that it still
        has would cancel whatever ran there next."""
        self.is_closed: bool = False
        self._expiries: dict[float, _Expiry] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.look_around()

    def look_around(self) -> None:
        """Read what holds for all calls that begin now: process, date, event loop.

        Raises:
            RuntimeError: When calls still run on another event loop.
        """
        self.pid: int = os.getpid()
        self.offset: float = self.clock.wall() - self.clock.monotonic()
        """Wall-clock time minus monotonic time."""
        loop = asyncio._get_running_loop()  # noqa: SLF001 - None instead of an error
        if loop is not self._loop:
            if self._loop is not None and not self._loop.is_closed() and self.batches:
                msg = (
                    "calls still run on another event loop: tools serve one event loop "
                    "after the other, not two at once. Use one processor (or strategy) "
                    "for each event loop"
                )
                raise RuntimeError(msg)
            self._loop = loop
            self._expiries = {}  # their timers belong to the old loop
            self.running = set()
            self.batches = set()

    def watch(self, item: Running, limit: float) -> TimerHandle | None:
        """Have `item` stopped after `limit` seconds."""
        expiry = self._expiries.get(limit)
        if expiry is None:
            if len(self._expiries) >= _MAX_QUEUES:
                return self.clock.call_later(limit, lambda: item.stop(_Reason.TIMEOUT))
            expiry = self._expiries[limit] = _Expiry(self.clock, limit)
        expiry.add(item)
        return None

    def reopen(self) -> None:
        """Let calls begin again."""
        self.is_closed = False

    async def close(self, seconds: float) -> None:
        """Refuse new calls, cancel the running ones, and wait for their ends.

        Args:
            seconds: How long to wait at most.
        """
        self.look_around()
        self.is_closed = True
        for batch in self.batches:
            batch.interrupt()
        items = list(self.running)
        ends = [item.ended() for item in items]
        for item in items:
            item.stop(_Reason.SHUTDOWN)
        try:
            await wait_within(ends, seconds, self.clock)
        finally:
            for item in items:
                item.leave()


class Running:
    """A tool that did not end in its first step; await it for its value.

    When its time is over it is cancelled, as with `asyncio.timeout`: a value that it
    still returns counts. One that does not end within the grace period is left
    behind: it goes on in a task of its own, and nobody waits for it.

    Args:
        request: The call.
        coro: The tool's coroutine after its first step.
        waits_for: What that step handed to the event loop.
        shop: Where it is booked.
    """

    __slots__ = (
        "_cancels",
        "_coro",
        "_ended",
        "_reason",
        "_request",
        "_shop",
        "_timer",
        "_waits_for",
        "is_left",
        "task",
    )

    def __init__(
        self,
        request: ToolRequest,
        coro: Coroutine[Any, Any, Any],
        waits_for: Any,
        shop: Workshop,
    ) -> None:
        self._request = request
        self._coro: Any = coro
        self._waits_for = waits_for
        self._shop = shop
        self._cancels = 0
        self._reason: _Reason | None = None
        self._timer: TimerHandle | None = None
        self._ended: asyncio.Future[None] | None = None
        self.is_left: bool = False
        self.task: asyncio.Task[Any] | None = None
        """The task that waits for it; None before and after."""

    def __await__(self) -> Generator[Any, Any, Any]:
        send = self._coro.send
        waits_for, self._waits_for = self._waits_for, None
        thrown: BaseException | None = None
        self.task = asyncio.current_task()
        self._shop.running.add(self)
        self._arm()
        try:
            while True:
                thrown, sent = None, None
                try:
                    sent = yield waits_for
                except BaseException as exc:  # noqa: BLE001 - handed on to the tool
                    thrown = exc
                waits_for = send(sent) if thrown is None else self._throw(thrown)
        except StopIteration as stop:
            if self._reason is not None:
                self._request.warn(
                    f"it ended after it was told to stop ({self._reason})"
                )
            return stop.value
        except asyncio.CancelledError as exc:
            if self._reason is None or self._is_called_off():
                raise
            raise self._error(self._reason, exc) from exc
        except BaseException as exc:
            failure = self._failure(exc)
            if failure is None or isinstance(thrown, GeneratorExit):
                raise
            raise failure from exc
        finally:
            self._end()

    def stop(self, reason: _Reason) -> None:
        """Cancel it; leave it behind when the grace period is over."""
        if self._reason is not None or self.is_left or self.task is None:
            return
        self._reason = reason
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._shop.clock.call_later(self._shop.grace, self.leave)
        self._cancel()

    def leave(self) -> None:
        """Wait for it no longer."""
        if self.task is not None and not self.is_left:
            self.is_left = True
            self._cancel()

    def ended(self) -> asyncio.Future[None]:
        """Done when nobody waits for it any more."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
        return self._ended

    def _arm(self) -> None:
        request, shop = self._request, self._shop
        limit = request.timeout
        if request.deadline is not None:
            left = request.deadline - shop.clock.monotonic()
            if limit is None or left < limit:
                self._timer = shop.clock.call_later(
                    left, lambda: self.stop(_Reason.DEADLINE)
                )
                return
        if limit is not None:
            self._timer = shop.watch(self, limit)

    def _cancel(self) -> None:
        task = self.task
        if task is not None:
            # By the tool itself, which shuts down what runs it: such a request waits
            # for the next step of the task, and whoever has that one answers it.
            self._cancels += task is not asyncio.current_task()
            task.cancel()

    def _is_called_off(self) -> bool:
        """Whether somebody else has cancelled the task, too."""
        return self.task is not None and self.task.cancelling() > self._cancels

    def _throw(self, exc: BaseException) -> Any:
        if isinstance(exc, GeneratorExit):
            self._coro.close()
            raise exc
        if self.is_left:
            self._let_go(exc)
            raise exc
        return self._coro.throw(exc)

    def _end(self) -> None:
        self._shop.running.discard(self)
        task, self.task = self.task, None
        self._coro = None
        if self._timer is not None:
            self._timer.cancel()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        if self._cancels and task is not None:
            # The task goes on with other calls: our own requests are answered.
            for _ in range(self._cancels):
                task.uncancel()

    def _failure(self, exc: BaseException) -> BaseException | None:
        """What to raise in the place of what the tool raised; None = that itself."""
        if isinstance(exc, (KeyboardInterrupt, SystemExit)):
            return None
        if self._is_called_off():  # neither tried again nor held against the tool
            return asyncio.CancelledError()
        if self._reason is _Reason.SHUTDOWN:
            return self._error(self._reason, exc)
        return odd_failure(exc, self._request.call.name)

    def _error(self, reason: _Reason, exc: BaseException) -> Exception:
        request = self._request
        name = request.call.name
        if reason is _Reason.TIMEOUT:
            limit = request.timeout or 0.0
            return ToolTimeoutError(name, limit, attempts=request.attempts)
        if reason is _Reason.DEADLINE:
            return out_of_time(request, "was stopped")
        return ToolCancelledError(CANCELLED, original_error=exc)

    def _let_go(self, exc: BaseException) -> None:
        """Leave the coroutine to a task of its own, with one more cancellation."""
        shop = self._shop
        _log.warning(
            "tool '%s' did not end when it was cancelled; it is left behind",
            self._request.call.name,
        )
        if self.task is not None:
            shop.spoilt.add(self.task)
            self.task.add_done_callback(shop.spoilt.discard)
        leave_behind(self._coro, exc, shop)


async def wait_within(
    futures: Iterable[asyncio.Future[Any]], seconds: float, clock: Clock
) -> set[asyncio.Future[Any]]:
    """Wait until all are done, for `seconds` at most; what is not done is returned."""
    pending = {item for item in futures if not item.done()}
    if not pending:
        return pending
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_later(
        seconds, lambda: None if over.done() else over.set_result(None)
    )
    try:
        while pending and not over.done():
            _, waiting = await asyncio.wait(
                {*pending, over}, return_when=asyncio.FIRST_COMPLETED
            )
            pending = waiting - {over}
    finally:
        timer.cancel()
        over.cancel()
    return pending
