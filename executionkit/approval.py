"""Asking before something is done: requests, decisions, and the gate between.

A gate fails closed. Only a clear yes is a yes: `True`, or a decision that says
`approved`. Anything else, an error and a missing answer included, stops the action,
unless the gate was told that silence means consent.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import math
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from executionkit._clock import Clock, get_clock
from executionkit._constants import MAX_ERROR_DETAIL_CHARS
from executionkit._redact import redact
from executionkit._threads import run_in_thread
from executionkit.context import remaining_deadline
from executionkit.errors import (
    ApprovalDeniedError,
    ApprovalTimeoutError,
    DeadlineExceededError,
)
from executionkit.types import JsonValue, freeze_mapping, sealed

__all__ = (
    "ApprovalCallback",
    "ApprovalDecision",
    "ApprovalGate",
    "ApprovalRequest",
    "TimeoutPolicy",
)

_GRACE_SECONDS: Final = 1.0
_SUBJECT_CHARS: Final = 200


@sealed
@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What somebody is asked to allow."""

    action: str
    """The kind of action: `tool_call`, `workflow_step`, `plan_step`, ..."""

    subject: str
    """What it is done with: the name of the tool or the step."""

    metadata: Mapping[str, JsonValue] = field(default_factory=freeze_mapping)
    """Facts to decide by, arguments among them. Kept deeply read-only."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", freeze_mapping(self.metadata))

    @classmethod
    def create(
        cls,
        action: str,
        subject: str,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> ApprovalRequest:
        """A request with optional metadata."""
        return cls(action, subject, metadata or {})


@sealed
@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """The answer to a request.

    Raises:
        TypeError: When `approved` is not a bool: "no" would count as a yes.
    """

    approved: bool
    reason: str = ""
    """Why; secrets in it are hidden, and at most 500 characters are kept."""

    def __post_init__(self) -> None:
        approved: object = self.approved
        if not isinstance(approved, bool):
            msg = f"`approved` must be True or False, got {approved!r}"
            raise TypeError(msg)
        object.__setattr__(self, "reason", _shown(self.reason, MAX_ERROR_DETAIL_CHARS))


ApprovalCallback: TypeAlias = Callable[
    [ApprovalRequest],
    "ApprovalDecision | bool | Awaitable[ApprovalDecision | bool]",
]
"""Decides about a request. Async, or sync: then it runs in a thread of its own."""

TimeoutPolicy: TypeAlias = Literal["raise", "deny", "approve"]
"""What no answer in time means."""


class ApprovalGate:
    """Asks a callback, and lets through only what it allows.

    An exception of the callback passes to the caller; the action is not done then. A
    sync callback may block: it runs in a thread, and one that never returns delays
    neither other work nor the exit of the process. The deadline of the current
    `ExecutionContext` bounds the waiting too.

    Args:
        callback: Decides; returns an `ApprovalDecision` or a bool, or an awaitable of
            one. Any other answer is a no.
        timeout_seconds: Seconds to wait for the answer (> 0). None = no limit.
        on_timeout: What no answer means: `"raise"` an `ApprovalTimeoutError`,
            `"deny"`, or `"approve"` (which warns: the gate fails open).
        clock: Measures the waiting; None = the clock of the current context.

    Raises:
        TypeError: When `callback` cannot be called.
        ValueError: For a wrong `timeout_seconds` or `on_timeout`.
    """

    def __init__(
        self,
        callback: ApprovalCallback,
        *,
        timeout_seconds: float | None = None,
        on_timeout: TimeoutPolicy = "raise",
        clock: Clock | None = None,
    ) -> None:
        given: object = callback
        if not callable(given):
            msg = f"`callback` must be callable, got {callback!r}"
            raise TypeError(msg)
        _check_timeout(timeout_seconds)
        if on_timeout not in get_args(TimeoutPolicy):
            msg = (
                f"`on_timeout` must be 'raise', 'deny' or 'approve', got {on_timeout!r}"
            )
            raise ValueError(msg)
        if on_timeout == "approve":
            warnings.warn(
                "`on_timeout='approve'` is fail-open: what nobody answers is done, with "
                "all the privileges that it has; use 'deny' or 'raise'",
                UserWarning,
                stacklevel=2,
            )
        self._callback = callback
        self._on_loop = _is_async(callback)
        self._timeout = timeout_seconds
        self._on_timeout: TimeoutPolicy = on_timeout
        self._clock = clock
        self._left_behind: set[asyncio.Task[object]] = set()

    @classmethod
    def allow_all(cls) -> ApprovalGate:
        """A gate that allows everything."""

        async def allow(_request: ApprovalRequest) -> ApprovalDecision:
            return ApprovalDecision(approved=True)

        return cls(allow)

    @classmethod
    def deny_all(cls, reason: str = "denied") -> ApprovalGate:
        """A gate that denies everything."""

        async def deny(_request: ApprovalRequest) -> ApprovalDecision:
            return ApprovalDecision(approved=False, reason=reason)

        return cls(deny)

    @property
    def timeout_seconds(self) -> float | None:
        """Seconds to wait for an answer; None = no limit."""
        return self._timeout

    @property
    def on_timeout(self) -> TimeoutPolicy:
        """What no answer means."""
        return self._on_timeout

    async def request(self, request: ApprovalRequest) -> ApprovalDecision:
        """Ask, and give the answer back.

        Raises:
            ApprovalTimeoutError: When nobody answered and the policy is `"raise"`.
            DeadlineExceededError: When the deadline of the request came first.
            Exception: What the callback raised.
        """
        left = remaining_deadline()
        seconds, by_deadline = self._timeout, False
        if left is not None and (seconds is None or left < seconds):
            seconds, by_deadline = left, True
        try:
            if seconds is None:
                return _decided(await self._ask(request))
            if seconds > 0:
                return _decided(await self._ask_within(request, seconds))
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
            msg = f"the deadline passed before {_named(request)} was approved"
            raise DeadlineExceededError(msg)
        return self._unanswered(request)

    async def require(self, request: ApprovalRequest) -> ApprovalDecision:
        """Ask, and return only when it is allowed.

        Raises:
            ApprovalDeniedError: When it is not.
            ApprovalTimeoutError: See `request`.
            DeadlineExceededError: See `request`.
            Exception: What the callback raised.
        """
        decision = await self.request(request)
        if not decision.approved:
            why = f": {decision.reason}" if decision.reason else ""
            msg = f"{_named(request)} was denied{why}"
            raise ApprovalDeniedError(msg)
        return decision

    def _unanswered(self, request: ApprovalRequest) -> ApprovalDecision:
        if self._on_timeout == "raise":
            msg = f"nobody approved {_named(request)} within {self._timeout}s"
            raise ApprovalTimeoutError(msg)
        return ApprovalDecision(
            approved=self._on_timeout == "approve",
            reason=f"no answer within {self._timeout}s",
        )

    async def _ask(self, request: ApprovalRequest) -> object:
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
        task = asyncio.create_task(self._ask(request))
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
        self._left_behind.add(task)
        task.add_done_callback(self._forget)
        task.cancel()
        await _wait(task, _GRACE_SECONDS, clock)

    def _forget(self, task: asyncio.Task[object]) -> None:
        self._left_behind.discard(task)
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


def _decided(outcome: object) -> ApprovalDecision:
    if isinstance(outcome, ApprovalDecision):
        return outcome
    if isinstance(outcome, bool):
        return ApprovalDecision(approved=outcome)
    reason = (
        f"the approval callback returned {type(outcome).__name__}, "
        "not an ApprovalDecision or a bool"
    )
    return ApprovalDecision(approved=False, reason=reason)


def _named(request: ApprovalRequest) -> str:
    action = _shown(request.action, _SUBJECT_CHARS)
    return f"{action} '{_shown(request.subject, _SUBJECT_CHARS)}'"


def _shown(text: object, most: int) -> str:
    shown = "" if text is None else redact(str(text))
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def _check_timeout(seconds: float | None) -> None:
    if seconds is None:
        return
    number: object = seconds
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        msg = f"`timeout_seconds` must be a number or None, got {seconds!r}"
        raise ValueError(msg)
    if not (seconds > 0 and math.isfinite(seconds)):
        msg = f"`timeout_seconds` must be > 0 and finite, got {seconds!r}"
        raise ValueError(msg)
