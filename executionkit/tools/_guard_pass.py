"""The course of one call through a chain of guards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from executionkit._frozen import freeze_mapping, sealed
from executionkit.calls import ToolCall
from executionkit.tools._guard_values import GuardResult, GuardVerdict

if TYPE_CHECKING:
    from executionkit.tools._record import ToolRecord

__all__ = (
    "ChainResult",
    "Pass",
    "Step",
    "failed_guard",
    "in_time",
    "now",
    "peek_steps",
    "refund_all",
)


class Step:
    """One guard as the chain calls it."""

    __slots__ = ("check", "check_error", "guard", "name", "peek", "refund", "warns")

    def __init__(self, guard: Any, check: Any, *, warns: bool) -> None:
        self.guard: Any = guard
        self.name: str = guard.name
        self.check: Any = check
        self.peek = getattr(guard, "peek", None) or check
        self.refund = getattr(guard, "refund", None)
        self.check_error = getattr(guard, "check_error", None)
        self.warns: bool = warns


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ChainResult:
    """What all guards together say."""

    verdict: GuardVerdict
    """BLOCK, else REPAIR, else WARN, else ALLOW, whatever came up."""

    guard: str = ""
    """The guard that blocked."""

    reason: str = ""
    """Why it blocked."""

    details: Mapping[str, Any] = field(default_factory=freeze_mapping)
    """What the blocking guard added."""

    call: ToolCall
    """The call, with all repairs."""

    value: Any = None
    """The output, with all repairs; None when there is none yet."""

    warnings: tuple[str, ...] = ()
    """Warnings and the reasons of repairs, each after its guard's name."""

    @property
    def blocked(self) -> bool:
        return self.verdict is GuardVerdict.BLOCK


class Pass:
    """The course of one call through the guards, once one did not allow plainly."""

    __slots__ = (
        "blocked",
        "call",
        "output",
        "record",
        "repaired",
        "steps",
        "unenforced",
        "value",
        "waits",
        "warnings",
    )

    def __init__(
        self,
        steps: tuple[Step, ...],
        call: ToolCall,
        record: ToolRecord,
        value: Any,
        *,
        output: bool,
    ) -> None:
        self.steps: tuple[Step, ...] = steps
        self.call: ToolCall = call
        self.record: ToolRecord = record
        self.value: Any = value
        self.output: bool = output
        self.blocked: tuple[Step, GuardResult] | None = None
        self.repaired: bool = False
        self.waits: tuple[int, Awaitable[Any]] | None = None
        """The guard that must wait, and what for; None = all is said."""
        self.unenforced: list[Step] = []
        """Guards whose block became a warning: they admitted (counted) nothing."""
        self.warnings: list[str] = []

    def resume(self, at: int, answer: Any) -> None:
        """Go on with what the guard at `at` said, to the end or until one must wait."""
        self.waits = None
        while True:
            if not isinstance(answer, GuardResult):
                if isinstance(answer, Awaitable):
                    self.waits = (at, answer)
                    return
                answer = no_result(answer)
            self._take(at, answer)
            at += 1
            if self.blocked is not None or at == len(self.steps):
                return
            answer = self._ask(self.steps[at])

    async def finish(self) -> None:
        """Wait for those guards that must wait."""
        while self.waits is not None:
            at, waiting = self.waits
            try:
                answer: Any = await waiting
            except Exception as exc:  # noqa: BLE001 - a failed guard blocks
                answer = failed_guard(exc)
            except BaseException:
                self._refund(at)
                raise
            if not isinstance(answer, GuardResult):
                answer = no_result(answer)
            self.resume(at, answer)

    def _ask(self, step: Step) -> Any:
        try:
            if self.output:
                return step.check(self.call, self.record, self.value)
            return step.check(self.call, self.record)
        except Exception as exc:  # noqa: BLE001 - a failed guard blocks
            return failed_guard(exc)

    def _take(self, at: int, result: GuardResult) -> None:
        step = self.steps[at]
        verdict = result.verdict
        if verdict is GuardVerdict.REPAIR:
            try:
                self._repair(result)
            except Exception as exc:  # noqa: BLE001 - a failed guard blocks
                result, verdict = failed_guard(exc), GuardVerdict.BLOCK
        if verdict is GuardVerdict.BLOCK:
            if step.warns:
                self.unenforced.append(step)
                self.warnings.append(f"{step.name}: {result.reason}")
            else:
                self.blocked = (step, result)
                self._refund(at)
        elif result.reason and verdict is not GuardVerdict.ALLOW:
            self.warnings.append(f"{step.name}: {result.reason}")

    def _repair(self, result: GuardResult) -> None:
        if self.output:
            if result.repaired_output is ...:
                msg = "a repair of an output needs `output`"
                raise ValueError(msg)
            self.value = result.repaired_output
        else:
            self.call = repaired(self.call, result)
        self.repaired = True

    def _refund(self, before: int) -> None:
        if self.output:
            return
        refund_all(self.steps[:before], self.unenforced, self.call, self.record)

    def give_back(self) -> None:
        """Give back what was counted before the guard that must wait."""
        if self.waits is not None:
            self._refund(self.waits[0])

    def public(self) -> ChainResult:
        """What users see of it."""
        verdict = GuardVerdict.ALLOW
        if self.blocked is not None:
            step, result = self.blocked
            return ChainResult(
                verdict=GuardVerdict.BLOCK,
                guard=step.name,
                reason=result.reason,
                details=result.details,
                call=self.call,
                value=self.value,
                warnings=tuple(self.warnings),
            )
        if self.repaired:
            verdict = GuardVerdict.REPAIR
        elif self.warnings:
            verdict = GuardVerdict.WARN
        return ChainResult(
            verdict=verdict,
            call=self.call,
            value=self.value,
            warnings=tuple(self.warnings),
        )


def failed_guard(exc: BaseException) -> GuardResult:
    """What a guard that raised has said. Its words may hold secrets: they are not kept."""
    return GuardResult.block(
        f"the guard failed with {type(exc).__name__}; what it cannot judge does not pass",
        {"error_type": type(exc).__name__},
    )


def no_result(answer: object) -> GuardResult:
    """What a guard that gave something else than a result has said."""
    _close(answer)
    return GuardResult.block(
        f"the guard gave a {type(answer).__name__}; it must give a GuardResult"
    )


def with_arguments(call: ToolCall, arguments: Mapping[str, Any]) -> ToolCall:
    """The same call with other arguments."""
    return ToolCall(
        call.id,
        call.name,
        arguments,
        namespace=call.namespace,
        idempotency_key=call.idempotency_key,
    )


def repaired(call: ToolCall, result: GuardResult) -> ToolCall:
    """The call as a guard repaired it.

    Raises:
        ValueError: When the verdict has no arguments.
    """
    if result.repaired_arguments is None:
        msg = "a repair of a call needs `arguments`"
        raise ValueError(msg)
    return with_arguments(call, result.repaired_arguments)


def refund_all(
    steps: Iterable[Step],
    unenforced: Iterable[Step],
    call: ToolCall,
    record: ToolRecord,
) -> list[str]:
    """Give back what `steps` counted for a call that did not start.

    Returns:
        A line for each guard that failed to; it must not replace the call's own error.
    """
    failed: list[str] = []
    for step in steps:
        if step.refund is not None and step not in unenforced:
            try:
                step.refund(call, record)
            except Exception as exc:  # noqa: BLE001 - see above
                failed.append(f"{step.name}: `refund` failed with {type(exc).__name__}")
    return failed


def now(found: Pass | None, call: ToolCall, value: Any, name: str) -> ChainResult:
    """The result of a course that must not wait."""
    if found is None:
        return _plain(call, value)
    if found.waits is not None:
        _close(found.waits[1])
        found.give_back()
        msg = f"a guard of the chain has to wait; use `{name}`"
        raise TypeError(msg)
    return found.public()


async def in_time(found: Pass | None, call: ToolCall, value: Any) -> ChainResult:
    """The result of a course that may wait."""
    if found is None:
        return _plain(call, value)
    await found.finish()
    return found.public()


def _close(answer: object) -> None:
    if isinstance(answer, Coroutine):
        answer.close()


def _plain(call: ToolCall, value: Any) -> ChainResult:
    return ChainResult(verdict=GuardVerdict.ALLOW, call=call, value=value)


async def peek_steps(
    steps: tuple[Step, ...], call: ToolCall, record: ToolRecord
) -> AsyncIterator[tuple[str, GuardResult]]:
    """What each guard would say, without counting it."""
    for step in steps:
        try:
            answer = step.peek(call, record)
            if isinstance(answer, Awaitable):
                answer = await answer
            if not isinstance(answer, GuardResult):
                answer = no_result(answer)
            if answer.verdict is GuardVerdict.REPAIR:
                call = repaired(call, answer)
        except Exception as exc:  # noqa: BLE001 - a failed guard blocks
            answer = failed_guard(exc)
        if step.warns and answer.verdict is GuardVerdict.BLOCK:
            answer = GuardResult.warn(answer.reason, answer.details)
        yield step.name, answer
