"""The books of a running plan: which call is next, what became of each."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from executionkit._error_codes import ErrorCode
from executionkit._redact import describe_exception
from executionkit.calls import ErrorInfo, ToolCall, ToolResult
from executionkit.errors import DeadlineExceededError, ToolProcessorError
from executionkit.tools._plans.references import fill, part_of
from executionkit.tools._settle import failed_result
from executionkit.tools.scheduling import ReadyQueue, SkipCause

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.tools._plans.references import ResultOf
    from executionkit.tools.scheduling import (
        ExecutionPlan,
        SchedulingConstraints,
        ToolCallSpec,
    )

__all__ = ("Desk", "OnResult")

OnResult: TypeAlias = Callable[[ToolResult], Awaitable[None] | None]
"""Told of each result once; what it returns is awaited."""

# Sums of prices such as 0.1 are not exact; a budget is not missed by a rounding error.
_ROUNDING = 1e-9
_log = logging.getLogger("executionkit")


class Desk:
    """Hands out calls, fills in their arguments, books their results.

    Args:
        calls: All calls.
        plan: Which of them are left out, and why.
        constraints: Pools and budget.
        references: The references in arguments, by call id.
        continue_on_error: Whether a failed call releases what needs it.
        due: Monotonic time after which no call begins; None = never.
        clock: Measures that.
        on_result: Told of each result.

    Raises:
        PlanError: When the calls cannot be brought into any order.
    """

    __slots__ = (
        "_budget",
        "_calls",
        "_clock",
        "_dropped",
        "_due",
        "_on_result",
        "_paid",
        "_plan",
        "_references",
        "_reserved",
        "order",
        "queue",
        "results",
        "spent",
    )

    def __init__(
        self,
        calls: Sequence[ToolCallSpec],
        plan: ExecutionPlan,
        constraints: SchedulingConstraints,
        references: Mapping[str, tuple[ResultOf, ...]],
        clock: Clock,
        *,
        continue_on_error: bool,
        due: float | None,
        on_result: OnResult | None,
    ) -> None:
        self.queue: ReadyQueue = ReadyQueue(
            calls,
            constraints.pool_limits,
            skip=plan.skip,
            continue_on_error=continue_on_error,
        )
        self.results: dict[str, ToolResult] = {}
        """What is known so far."""
        self.order: list[str] = []
        """Calls that have ended, in that order; without skipped ones."""
        self.spent: float = 0.0
        """What the calls that were started cost."""
        self._calls = {call.call_id: call for call in calls}
        self._paid: dict[str, float] = {}  # by calls that run
        self._dropped: set[str] = set()
        self._plan = plan
        self._references = references
        self._clock = clock
        self._due = due
        self._on_result = on_result
        self._budget = constraints.max_cost
        # What required calls cost is set aside, as it is when plans are made.
        self._reserved = math.fsum([_required_cost(call) for call in calls])

    def skip_planned(self) -> list[ToolResult]:
        """The results of all calls that the plan leaves out."""
        reasons = {reason.call_id: reason for reason in self._plan.skip_reasons}
        named = set(self._plan.skip)
        found: list[ToolResult] = []
        for call_id in self.queue.skipped:
            reason = reasons.get(call_id)
            if reason is not None:
                text, cause = reason.detail, reason.reason.value
            elif call_id in named:
                text, cause = "the plan leaves it out", "planned"
            else:
                text = "a call that it needs is left out"
                cause = SkipCause.DEPENDENCY_SKIPPED.value
            found.append(self._left_out(call_id, cause, text))
        return found

    def prepare(self, spec: ToolCallSpec) -> ToolCall | ToolResult:
        """The call as it is to be run, or its result when it cannot be."""
        required = _required_cost(spec)
        if required:
            self._reserved -= required
        if self._due is not None and self._clock.monotonic() >= self._due:
            return _too_late(spec)
        cost = spec.metadata.cost
        if cost and not self._pay(
            spec.call_id, cost, 0.0 if required else self._reserved
        ):
            self._dropped.add(spec.call_id)
            left = max(0.0, (self._budget or 0.0) - self.spent)
            why = f"it costs {cost:g}, and {left:g} of {self._budget:g} is left"
            return _skipped(spec, SkipCause.COST_EXCEEDED.value, why)
        args: Any = spec.args
        if spec.call_id in self._references:
            try:
                args = self._filled(spec)
            except ToolProcessorError as exc:
                return _cannot_run(spec, exc)
        return ToolCall(spec.call_id, spec.tool_name, args)

    def settle(self, spec: ToolCallSpec, result: ToolResult) -> list[ToolResult]:
        """Book the end of a call; all results that came of it, its own first."""
        call_id = spec.call_id
        self.results[call_id] = result
        if self._paid:
            cost = self._paid.pop(call_id, 0.0)
            if not result.attempts:  # never started, or known from before
                self.spent = max(0.0, self.spent - cost)
        if self._dropped and call_id in self._dropped:
            self._dropped.discard(call_id)
            why = f"it needs {call_id!r}, which is left out"
            cause = SkipCause.DEPENDENCY_SKIPPED.value
            ids = self.queue.drop(call_id)
            return [result, *[self._left_out(other, cause, why) for other in ids]]
        self.order.append(call_id)
        ids = self.queue.finish(call_id, ok=result.error is None)
        return [result, *[self._not_reached(other, result) for other in ids]]

    def tell(self, results: Sequence[ToolResult]) -> Awaitable[None] | None:
        """Tell of `results`; what is returned is the rest of it, to be awaited."""
        if self._on_result is None:
            return None
        rest = iter(results)
        for result in rest:
            told = self._call(self._on_result, result)
            if told is not None:
                return self._tell_on(self._on_result, told, rest)
        return None

    def _call(self, on_result: OnResult, result: ToolResult) -> Awaitable[None] | None:
        try:
            told = on_result(result)
        except Exception as exc:  # noqa: BLE001 - it does not decide about calls
            _log.warning("`on_result` failed: %s", describe_exception(exc))
            return None
        return told if inspect.isawaitable(told) else None

    async def _tell_on(
        self,
        on_result: OnResult,
        told: Awaitable[None] | None,
        rest: Iterator[ToolResult],
    ) -> None:
        while True:
            try:
                if told is not None:
                    await told
            except Exception as exc:  # noqa: BLE001 - a user's callback, as above
                _log.warning("`on_result` failed: %s", describe_exception(exc))
            following = next(rest, None)
            if following is None:
                return
            told = self._call(on_result, following)

    def _pay(self, call_id: str, cost: float, reserved: float) -> bool:
        budget = self._budget
        if budget is not None:
            taken = self.spent + max(0.0, reserved)
            if taken + cost > budget + budget * _ROUNDING:
                return False
        self._paid[call_id] = cost
        self.spent += cost
        return True

    def _filled(self, spec: ToolCallSpec) -> Mapping[str, Any]:
        """The arguments with results in the place of references.

        Raises:
            ToolProcessorError: When a result or a part of it is not there.
        """
        try:
            args = fill(spec.args, self._look_up)
        except RecursionError:
            msg = "the arguments are nested too deep to be filled"
            raise ToolProcessorError(msg, ErrorCode.TOOL_ARGUMENT_ERROR) from None
        if isinstance(args, Mapping):
            return args
        msg = f"arguments must be a mapping, got a {type(args).__name__} as a whole"
        raise ToolProcessorError(msg, ErrorCode.TOOL_ARGUMENT_ERROR)

    def _look_up(self, reference: ResultOf) -> Any:
        result = self.results[reference.call_id]
        if result.error is None:
            return part_of(reference, result.result)
        msg = f"an argument needs the result of {reference.call_id!r}, which failed"
        raise ToolProcessorError(
            msg,
            ErrorCode.TOOL_ARGUMENT_ERROR,
            {"result_of": reference.call_id, "path": reference.pointer},
        )

    def _left_out(self, call_id: str, cause: str, text: str) -> ToolResult:
        spec = self._calls[call_id]
        self._reserved -= _required_cost(spec)
        result = self.results[call_id] = _skipped(spec, cause, text)
        return result

    def _not_reached(self, call_id: str, failed: ToolResult) -> ToolResult:
        spec = self._calls[call_id]
        self._reserved -= _required_cost(spec)
        msg = (
            f"Tool '{spec.tool_name}' was not run: it needs {failed.call_id!r}, "
            "which failed"
        )
        code = ErrorCode.SKIPPED_DEPENDENCY_FAILED
        details = {
            "failed_dependency": failed.call_id,
            "failed_code": str(failed.error_code),
        }
        result = self.results[call_id] = _unrun(spec, code, msg, details)
        return result


def _required_cost(spec: ToolCallSpec) -> float:
    meta = spec.metadata
    return meta.cost or 0.0 if meta.priority > 0 else 0.0


def _unrun(
    spec: ToolCallSpec, code: ErrorCode, message: str, details: Mapping[str, Any]
) -> ToolResult:
    info = ErrorInfo.from_code(code, message, details)
    return ToolResult(
        tool=spec.tool_name, call_id=spec.call_id, error_info=info, attempts=0
    )


def _skipped(spec: ToolCallSpec, cause: str, text: str) -> ToolResult:
    why = f": {text}" if text else ""
    msg = f"Tool '{spec.tool_name}' was not run{why}"
    details = {"reason": cause, "detail": text}
    return _unrun(spec, ErrorCode.SKIPPED_PLANNED, msg, details)


def _too_late(spec: ToolCallSpec) -> ToolResult:
    msg = f"Tool '{spec.tool_name}' was not started: the deadline has passed"
    return _cannot_run(spec, DeadlineExceededError(msg))


def _cannot_run(spec: ToolCallSpec, exc: Exception) -> ToolResult:
    call = ToolCall(spec.call_id, spec.tool_name)
    return failed_result(call, exc, attempts=0)
