"""The course of one step: condition, approval, attempts, outcome."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from executionkit._clock import get_clock
from executionkit._threads import run_in_thread
from executionkit._workflow.values import StepsResult
from executionkit.approval import ApprovalRequest
from executionkit.context import remaining_deadline
from executionkit.cost import Budget, CostTracker, collecting_lost_cost
from executionkit.engine.retry import RetryConfig, run_with_retry
from executionkit.errors import (
    ApprovalPendingError,
    ExecutionKitError,
    PatternError,
    StepTimeoutError,
)
from executionkit.observability import Scope, TraceCallback, error_name
from executionkit.patterns.base import calling_user
from executionkit.types import PatternResult, TokenUsage, freeze, thaw

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from executionkit._workflow.values import Node
    from executionkit.approval import ApprovalGate

__all__ = ("PENDING", "SKIPPED", "Course", "Shared")

PENDING: Final = object()
"""The output of a step that has none yet."""

SKIPPED: Final = object()
"""The outcome of a step whose condition said no."""

_ONCE: Final = RetryConfig(max_retries=0)
_GRACE: Final = 1.0


class Shared:
    """What all steps of one run share."""

    __slots__ = (
        "_keep_on",
        "_slots",
        "budget",
        "gate",
        "is_closed",
        "kind",
        "trace",
        "tracker",
    )

    def __init__(
        self,
        kind: str,
        *,
        max_concurrency: int | None,
        max_cost: TokenUsage | None,
        keep_on: bool,
        gate: ApprovalGate | None,
        trace: TraceCallback | None,
    ) -> None:
        self.kind = kind
        self.tracker = CostTracker()
        self.budget = Budget.from_usage(max_cost)
        self.gate = gate
        self.trace = trace
        self._keep_on = keep_on
        self.is_closed = False
        """True = nothing more begins."""
        self._slots = (
            None if max_concurrency is None else asyncio.Semaphore(max_concurrency)
        )

    def has_failed(self, node: Node) -> None:
        """Close the run at once, unless it goes on after failures of such a step."""
        if not (self._keep_on or node.may_fail):
            self.is_closed = True

    async def enter(self) -> None:
        """Wait for a place among the attempts that run at once."""
        if self._slots is not None:
            await self._slots.acquire()

    def leave(self) -> None:
        """Give the place back."""
        if self._slots is not None:
            self._slots.release()

    def step_id(self, name: str) -> str:
        """The id of a step: the same in every run of the same program."""
        return f"{self.kind}:{name}"

    def scope(self, name: str) -> Scope | None:
        """The span of a step; None when nobody watches."""
        if self.trace is None:
            return None
        return Scope(self.trace, labels={"step": name, "call_id": self.step_id(name)})

    async def tell(
        self, event: str, name: str, scope: Scope | None = None, **facts: Any
    ) -> None:
        """Emit a trace event of a step."""
        scope = scope or self.scope(name)
        if scope is not None:
            payload = {"step": name, "call_id": self.step_id(name), **facts}
            await scope.tell(f"{self.kind}_{event}", payload)


class Course:
    """One step on its way through a run.

    Args:
        node: The step.
        shared: Of the run.
        context: Makes the dict that the step is called with; a new one each time.
    """

    __slots__ = (
        "_approved",
        "_began",
        "_context",
        "_is_called_off",
        "_node",
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
        if scope is not None:
            scope.enter()  # for good: each step has a task of its own
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
                shared.has_failed(node)
                msg = f"step {node.name!r} was cancelled by something inside of it"
                raise PatternError(msg) from exc
            except ApprovalPendingError:
                raise  # other steps go on; what waits for this one does not begin
            except Exception:
                # Here, not when the scheduler hears of it: a place that is free now
                # must not be taken in between.
                shared.has_failed(node)
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
                decision: Any = await shared.gate.require(request)
            self._approved = getattr(decision, "arguments", None)

    async def _outcome(self) -> Any:
        # The one place where an outcome comes from: whoever records outcomes looks
        # `step_id` up here, before anything is done.
        shared, node = self._shared, self._node
        clock = get_clock()
        left = remaining_deadline()
        deadline = None if left is None else clock.monotonic() + left
        try:
            with calling_user(f"step {node.name!r}"):
                output = await run_with_retry(
                    self._attempt,
                    node.retry or _ONCE,
                    deadline=deadline,
                    on_retry=self._on_retry,
                    on_wait=None if self._scope is None else self._scope.waited,
                )
        except Exception as exc:
            if not isinstance(exc, ApprovalPendingError):
                shared.has_failed(node)
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

    async def _attempt(self, number: int) -> Any:
        shared, scope = self._shared, self._scope
        now = get_clock().monotonic
        asked = began = now()
        await shared.enter()
        if scope is not None:
            scope.waited("slot", now() - asked)
        self.at_work = True
        try:
            await self._begin()
            began = now()
            shared.tracker.has_room(shared.budget)  # raises when nothing is left
            output = await self._booked()
        except Exception as exc:
            if scope is not None and self._node.retry is not None:
                await scope.tell_attempt(number, now() - began, error_name(exc))
            raise
        finally:
            self.at_work = False
            shared.leave()
        if scope is not None and number > 1:
            await scope.tell_attempt(number, now() - began)
        return output

    async def _begin(self) -> None:
        if self._shared.is_closed:
            self._is_called_off = True
            raise asyncio.CancelledError
        if self._began is None:
            self._began = get_clock().monotonic()
            await self._shared.tell("start", self._node.name, self._scope)

    async def _booked(self) -> Any:
        tracker = self._shared.tracker
        try:
            output = self._unwrapped(await self._call_in_time())
        except ExecutionKitError as exc:
            tracker.add_usage(exc.cost)
            self.last_failure = exc
            raise
        except Exception as exc:
            self.last_failure = exc
            raise
        self.output = output
        return output

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

    def _unwrapped(self, output: Any) -> Any:
        if isinstance(output, PatternResult):
            self._shared.tracker.add_usage(output.cost)
            return output.value  # frozen already
        if isinstance(output, StepsResult):
            self._shared.tracker.add_usage(output.cost)
            return freeze(dict(output.outputs))
        return freeze(output)
