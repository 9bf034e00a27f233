"""The course of one step: condition, approval, attempts, outcome."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from executionkit._clock import get_clock
from executionkit._threads import run_in_thread
from executionkit._workflow.shared import Shared, is_tolerated
from executionkit._workflow.values import StepsResult
from executionkit.approval import ApprovalRequest
from executionkit.context import remaining_deadline
from executionkit.cost import collecting_lost_cost
from executionkit.engine.retry import RetryConfig, run_with_retry
from executionkit.errors import (
    ApprovalPendingError,
    ExecutionKitError,
    JournalError,
    PatternError,
    StepTimeoutError,
)
from executionkit.observability import error_name
from executionkit.patterns.base import calling_user
from executionkit.types import PatternResult, TokenUsage, freeze, thaw

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from executionkit._workflow.record import ResumedClock, StepsRecord
    from executionkit._workflow.values import Node
    from executionkit.observability import Scope

__all__ = ("PENDING", "SKIPPED", "Course")

PENDING: Final = object()
"""The output of a step that has none yet."""

SKIPPED: Final = object()
"""The outcome of a step whose condition said no."""

_ONCE: Final = RetryConfig(max_retries=0)
_GRACE: Final = 1.0
_NOTHING: Final = TokenUsage()

_Made: TypeAlias = tuple[Any, TokenUsage]
"""What a step gave, and what that cost."""


class Course:
    """One step on its way through a run.

    Args:
        node: The step.
        shared: Of the run.
        context: Makes the dict that the step is called with; a new one each time.
    """

    __slots__ = (
        "_approved",
        "_attempt_began",
        "_began",
        "_context",
        "_is_called_off",
        "_node",
        "_number",
        "_resumed",
        "_scope",
        "_shared",
        "at_work",
        "last_failure",
        "output",
    )

    def __init__(
        self, node: Node, shared: Shared, context: Callable[[], dict[str, Any]]
    ) -> None:
        self._node = node
        self._shared = shared
        self._context = context
        self._approved: Mapping[str, Any] | None = None
        self._began: float | None = None
        self._is_called_off = False
        self._attempt_began: float | None = None
        self._number = 0
        self._resumed: ResumedClock | None = None
        self._scope: Scope | None = None
        self.at_work = False
        """True while the function of the step runs; a run that stops lets it end."""
        self.last_failure: Exception | None = None
        """Of the latest attempt, while the step waits for its next one."""
        self.output: Any = PENDING
        """What the step gave, from the moment it did; telling a sink comes after."""

    async def run(self) -> Any:
        """Go all the way; returns the output, deeply read-only, or `SKIPPED`."""
        shared, node = self._shared, self._node
        self._scope = scope = shared.scope(node.name)
        if scope is None:
            return await self._run()
        scope.begin()
        scope.enter()  # for good: each step has a task of its own
        try:
            output = await self._run()
        except BaseException as exc:
            scope.end(exc)
            raise
        scope.end(None)
        return output

    async def _run(self) -> Any:
        shared, node = self._shared, self._node
        with collecting_lost_cost(shared.tracker.add_usage):
            try:
                if not await self._is_wanted():
                    await shared.tell(
                        "skipped", node.name, self._scope, reason="condition"
                    )
                    return SKIPPED
                await self._ask()
                return await self._outcome()
            except asyncio.CancelledError as exc:
                task = asyncio.current_task()
                if self._is_called_off or (task is not None and task.cancelling()):
                    raise
                msg = f"step {node.name!r} was cancelled by something inside of it"
                failure = PatternError(msg)
                shared.has_failed(node, failure)
                raise failure from exc
            except ApprovalPendingError:
                raise  # other steps go on; what waits for this one does not begin
            except Exception as exc:
                # Here, not when the scheduler hears of it: a place that is free now
                # must not be taken in between.
                shared.has_failed(node, exc)
                raise

    async def _is_wanted(self) -> bool:
        node = self._node
        if node.when is None:
            return True
        with calling_user(f"condition of step {node.name!r}"):
            verdict: Any = node.when(self._context())
            if inspect.isawaitable(verdict):
                verdict = await verdict
            return bool(verdict)

    async def _ask(self) -> None:
        shared, node = self._shared, self._node
        if shared.gate is not None:
            request = ApprovalRequest(
                shared.kind, node.name, node.facts, arguments=self._context()
            )
            with calling_user(f"approval of step {node.name!r}"):
                decision: Any
                if shared.record is None:
                    decision = await shared.gate.require(request)
                else:
                    decision = await shared.record.ask(node, shared.gate, request)
            self._approved = getattr(decision, "arguments", None)

    async def _outcome(self) -> Any:
        shared, node = self._shared, self._node
        clock = get_clock() if shared.record is None else self._resumed_clock()
        left = remaining_deadline()
        deadline = None if left is None else clock.monotonic() + left
        try:
            with calling_user(f"step {node.name!r}"):
                output = await run_with_retry(
                    self._attempt,
                    node.retry or _ONCE,
                    clock=clock,
                    deadline=deadline,
                    on_retry=self._on_retry,
                    on_wait=None if self._scope is None else self._scope.waited,
                )
        except Exception as exc:
            if not isinstance(exc, ApprovalPendingError):
                shared.has_failed(node, exc)
                if shared.record is not None and not is_tolerated(node, exc):
                    await shared.record.give_up(node, self._number)
            await self._failed(exc)
            raise
        except BaseException as exc:
            await self._failed(exc)
            raise
        if shared.trace is not None and self._began is not None:
            took = clock.monotonic() - self._began
            await shared.tell("end", node.name, self._scope, duration=took)
        return output

    async def _failed(self, exc: BaseException) -> None:
        if self._began is None:
            return  # there was no start either
        facts: dict[str, Any] = {"error_type": type(exc).__name__}
        facts["error"] = error_name(exc)
        if isinstance(exc, ExecutionKitError):
            facts["code"] = exc.code.value
        facts["duration"] = get_clock().monotonic() - self._began
        # The callback may be the very thing that hangs: it cannot hold up the end.
        with suppress(TimeoutError):
            async with get_clock().timeout(_GRACE):
                await self._shared.tell("error", self._node.name, self._scope, **facts)

    async def _on_retry(self, attempt: int, exc: Exception, delay: float) -> None:
        facts = {"attempt": attempt, "delay": delay, "error_type": type(exc).__name__}
        await self._shared.tell("retry", self._node.name, self._scope, **facts)

    def _resumed_clock(self) -> ResumedClock:
        from executionkit._workflow.record import ResumedClock

        self._resumed = ResumedClock()
        return self._resumed

    async def _attempt(self, number: int) -> Any:
        shared, scope = self._shared, self._scope
        self._count(number)
        now = get_clock().monotonic
        await shared.enter(scope)
        self.at_work = True
        try:
            self._leave_if_closed()
            if shared.record is not None:
                output = await self._booked(partial(self._on_record, shared.record))
            else:
                await self._begin()
                output = await self._booked(self._work)
        except Exception as exc:
            began = self._attempt_began
            if scope is not None and self._node.retry is not None and began is not None:
                await scope.tell_attempt(number, now() - began, error_name(exc))
            raise
        finally:
            self.at_work = False
            shared.leave()
        began = self._attempt_began
        if scope is not None and number > 1 and began is not None:
            await scope.tell_attempt(number, now() - began)
        return output

    def _count(self, number: int) -> None:
        self._number = number
        self._attempt_began = None

    def _leave_if_closed(self) -> None:
        if self._shared.is_closed:
            self._is_called_off = True
            raise asyncio.CancelledError

    async def _begin(self) -> None:
        shared = self._shared
        if self._began is None:
            self._began = get_clock().monotonic()
            await shared.tell("start", self._node.name, self._scope)
        self._attempt_began = get_clock().monotonic()
        shared.tracker.has_room(shared.budget)  # raises when nothing is left

    async def _work(self) -> _Made:
        return _unwrapped(await self._call_in_time())

    async def _on_record(self, record: StepsRecord) -> _Made:
        """The outcome of this attempt in an earlier run, or that of doing it now."""
        from executionkit.journal import Outcome

        made: _Made | None = None
        has_begun = False

        async def do() -> Outcome:
            nonlocal has_begun, made
            has_begun = True
            try:
                await self._begin()
            except ExecutionKitError as exc:
                exc.cost = _NOTHING  # none of this attempt
                raise
            made = await self._work()
            return Outcome(*made)

        node, number = self._node, self._number
        try:
            outcome = await record.attempt(node, number, self._given(), do)
        except asyncio.CancelledError:
            if made is not None:  # it is on record: that was not broken off
                self._shared.tracker.add_usage(made[1])
                self.output = made[0]
            raise
        except Exception as exc:
            if not has_begun and not isinstance(exc, JournalError):
                cost = exc.cost if isinstance(exc, ExecutionKitError) else _NOTHING
                record.note_replayed(cost)
            if not has_begun and self._resumed is not None:
                self._resumed.failed_at = await record.failed_at(node, number)
            raise
        if outcome.is_replayed:
            record.note_replayed(outcome.cost)
            await self._shared.tell("replayed", node.name, self._scope, attempt=number)
        return freeze(outcome.value), outcome.cost

    async def _booked(self, work: Callable[[], Awaitable[_Made]]) -> Any:
        tracker = self._shared.tracker
        try:
            value, cost = await work()
        except ExecutionKitError as exc:
            tracker.add_usage(exc.cost)
            self.last_failure = exc
            raise
        except Exception as exc:
            self.last_failure = exc
            raise
        tracker.add_usage(cost)
        self.output = value
        return value

    async def _call_in_time(self) -> Any:
        node = self._node
        if node.timeout is None:
            return await self._call()
        limit = get_clock().timeout(node.timeout)
        try:
            async with limit:
                return await self._call()
        except TimeoutError as exc:
            if not limit.expired():
                raise  # the step's own
            msg = (
                f"step {node.name!r} took longer than its `timeout` of {node.timeout}s"
            )
            raise StepTimeoutError(msg) from exc

    async def _call(self) -> Any:
        node = self._node
        if node.in_thread:
            output = await run_in_thread(node.run, self._given())
        else:
            output = node.run(self._given())
        return await output if inspect.isawaitable(output) else output

    def _given(self) -> dict[str, Any]:
        """What the step is called with: what was approved, when that was changed."""
        if self._approved is None:
            return self._context()
        return {key: thaw(value) for key, value in self._approved.items()}


def _unwrapped(output: Any) -> _Made:
    if isinstance(output, PatternResult):
        return output.value, output.cost  # frozen already
    if isinstance(output, StepsResult):
        return freeze(dict(output.outputs)), output.cost
    return freeze(output), _NOTHING
