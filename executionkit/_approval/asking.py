"""Calls the callback that decides, bounds the wait, and reads what it says."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeAlias

from executionkit._approval.values import (
    PARKED,
    ApprovalDecision,
    ApprovalRequest,
    Parked,
    named,
)
from executionkit._clock import Clock, get_clock
from executionkit._threads import run_in_thread
from executionkit.context import remaining_deadline
from executionkit.errors import (
    ApprovalPendingError,
    ApprovalTimeoutError,
    DeadlineExceededError,
)

__all__ = ("ApprovalCallback", "Asker", "TimeoutPolicy")

_GRACE_SECONDS: Final = 1.0

ApprovalCallback: TypeAlias = Callable[
    [ApprovalRequest],
    "ApprovalDecision | bool | Parked | Awaitable[ApprovalDecision | bool | Parked]",
]
"""Decides about a request, or says `PARKED`. Async, or sync: then it runs in a thread
of its own."""

TimeoutPolicy: TypeAlias = Literal["raise", "deny", "approve"]
"""What no answer in time means."""


class Asker:
    """Asks a callback, for a limited time.

    Args:
        callback: Decides.
        timeout: Seconds to wait; None = no limit.
        on_timeout: What no answer means.
        clock: Measures the waiting; None = the clock of the current context.
    """

    def __init__(
        self,
        callback: ApprovalCallback,
        timeout: float | None,
        on_timeout: TimeoutPolicy,
        clock: Clock | None,
    ) -> None:
        self._callback = callback
        self._on_loop = _is_async(callback)
        self.timeout = timeout
        self.on_timeout: TimeoutPolicy = on_timeout
        self._clock = clock
        self.left_behind: set[asyncio.Task[object]] = set()
        """Callbacks that ignored their cancellation, and still run."""

    async def ask(self, request: ApprovalRequest) -> ApprovalDecision:
        """What the callback decides; see `ApprovalGate.request`."""
        left = remaining_deadline()
        seconds, by_deadline = self.timeout, False
        if left is not None and (seconds is None or left < seconds):
            seconds, by_deadline = left, True
        try:
            if seconds is None:
                return _decided(await self._call(request), request)
            if seconds > 0:
                return _decided(await self._ask_within(request, seconds), request)
        except _NoAnswerError:
            pass
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return ApprovalDecision(
                approved=False, reason="the approval callback was cancelled"
            )
        if by_deadline:
            msg = f"the deadline passed before {named(request)} was approved"
            raise DeadlineExceededError(msg)
        return self._unanswered(request)

    def _unanswered(self, request: ApprovalRequest) -> ApprovalDecision:
        if self.on_timeout == "raise":
            msg = f"nobody approved {named(request)} within {self.timeout}s"
            raise ApprovalTimeoutError(msg)
        return ApprovalDecision(
            approved=self.on_timeout == "approve",
            reason=f"no answer within {self.timeout}s",
        )

    async def _call(self, request: ApprovalRequest) -> object:
        outcome: object
        if self._on_loop:
            outcome = self._callback(request)
        else:
            outcome = await _call_in_thread(self._callback, request)
        while True:
            if isinstance(outcome, concurrent.futures.Future):
                outcome = await asyncio.wrap_future(outcome)
            elif inspect.isawaitable(outcome):
                outcome = await outcome
            else:
                return outcome

    async def _ask_within(self, request: ApprovalRequest, seconds: float) -> object:
        # A task of its own, so that a callback that ignores its cancellation cannot
        # hold the gate, and a TimeoutError of the callback is not taken for the gate's.
        clock = self._clock or get_clock()
        task = asyncio.create_task(self._call(request))
        try:
            await _wait(task, seconds, clock)
            if task.done():
                return task.result()
        except BaseException:
            await self._end(task, clock)
            raise
        await self._end(task, clock)
        raise _NoAnswerError

    async def _end(self, task: asyncio.Task[object], clock: Clock) -> None:
        if task.done():
            return
        self.left_behind.add(task)
        task.add_done_callback(self._forget)
        task.cancel()
        await _wait(task, _GRACE_SECONDS, clock)

    def _forget(self, task: asyncio.Task[object]) -> None:
        self.left_behind.discard(task)
        if not task.cancelled():
            task.exception()  # seen, and too late to matter


class _NoAnswerError(Exception):
    """The gate's own time-out; never leaves this module."""


async def _wait(task: asyncio.Task[object], seconds: float, clock: Clock) -> None:
    """Wait until `task` is done or `seconds` are over."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fire() -> None:
        if not over.done():
            over.set_result(None)

    timer = clock.call_later(seconds, fire)
    try:
        first: set[asyncio.Future[Any]] = {task, over}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        over.cancel()


async def _call_in_thread(
    callback: ApprovalCallback, request: ApprovalRequest
) -> object:
    gone = False

    def call() -> object:
        outcome = callback(request)
        if gone and inspect.iscoroutine(outcome):
            outcome.close()  # nobody will await it
        return outcome

    try:
        return await run_in_thread(call)
    except asyncio.CancelledError:
        gone = True
        raise


def _is_async(callback: object) -> bool:
    """Whether calling it gives a coroutine at once, so that no thread is needed."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    try:
        inner: Any = inspect.unwrap(callback) if callable(callback) else callback
    except ValueError:  # a ring of wrappers
        inner = callback
    candidates = (callback, inner, getattr(callback, "__call__", None))  # noqa: B004
    return any(inspect.iscoroutinefunction(candidate) for candidate in candidates)


def _decided(outcome: object, request: ApprovalRequest) -> ApprovalDecision:
    if isinstance(outcome, ApprovalDecision):
        if outcome.request_id not in {"", request.id} or (
            outcome.digest and outcome.digest != request.digest
        ):
            reason = "the decision was made for another request"
            return ApprovalDecision(approved=False, reason=reason)
        return outcome
    if isinstance(outcome, bool):
        return ApprovalDecision(approved=outcome)
    if outcome is PARKED:
        msg = f"{named(request)} waits for an answer (id {request.id})"
        raise ApprovalPendingError(msg, requests=[request])
    reason = (
        f"the approval callback returned {type(outcome).__name__}, "
        "not an ApprovalDecision or a bool"
    )
    return ApprovalDecision(approved=False, reason=reason)
