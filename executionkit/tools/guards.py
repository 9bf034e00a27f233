"""Guards: what may say no before a tool runs, and before its output is handed out.

A guard is any object with a `name` and one or both of

- `check(call, record)`: before the tool runs,
- `check_output(call, record, value)`: after it returned.

Both give a `GuardResult`, or an awaitable of one. A guard that raises, or gives
anything else, blocks: a rule that cannot decide lets nothing pass.

Optional methods: `peek(call, record)`, the verdict without counting it (asked by dry
runs in the place of `check`); `refund(call, record)`, called when a call that `check`
admitted was never started; `check_error(call, record, error)`, told that a call failed.
The rules that come with the library are in `guard_rules`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from executionkit.tools._guard_pass import (
    ChainResult,
    Pass,
    Step,
    failed_guard,
    in_time,
    now,
    peek_steps,
)
from executionkit.tools._guard_values import (
    ALLOWED,
    BaseGuard,
    EnforcementLevel,
    Guard,
    GuardResult,
    GuardVerdict,
)

if TYPE_CHECKING:
    from executionkit.calls import ToolCall
    from executionkit.tools._record import ToolRecord

__all__ = (
    "BaseGuard",
    "ChainResult",
    "EnforcementLevel",
    "Guard",
    "GuardChain",
    "GuardResult",
    "GuardVerdict",
)


class GuardChain:
    """Guards in an order: the first block ends it, repairs feed the guards behind.

    When a call is blocked, what the guards before had counted is given back.

    Args:
        guards: First to last; a chain among them stands for its guards. Put what hides
            secrets before what cuts outputs: half a secret can no longer be recognised.
        enforcement: A lower level than a guard's own lowers it.

    Raises:
        TypeError: When a guard has no `name`, or none of the two checks.
    """

    def __init__(
        self,
        guards: Iterable[Any],
        *,
        enforcement: EnforcementLevel = EnforcementLevel.BLOCK,
    ) -> None:
        self.guards: tuple[Any, ...] = tuple(guards)
        self.enforcement: EnforcementLevel = EnforcementLevel(enforcement)
        self.before: tuple[Step, ...] = self._steps("check")
        """Asked before a call. Not for users."""
        self.after: tuple[Step, ...] = self._steps("check_output")
        """Asked after it. Not for users."""

    @classmethod
    def create_default(cls) -> GuardChain:
        """What is sensible for most tools, with fresh state.

        Unknown arguments are refused, and private network addresses, and endless loops
        of equal calls; the budget of the `ExecutionContext` is kept; secrets in outputs
        are hidden; outputs above 256 KiB are cut.
        """
        from executionkit.tools import guard_rules as rules

        return cls(
            (
                rules.SchemaGuard(),
                rules.NetworkGuard(),
                rules.RunawayGuard(),
                rules.BudgetGuard(),
                rules.SensitiveDataGuard(),
                rules.OutputSizeGuard(),
            )
        )

    def _steps(self, method: str) -> tuple[Step, ...]:
        steps: list[Step] = []
        for guard in self.guards:
            if isinstance(guard, GuardChain):
                steps.extend(self._steps_of(guard, method))
                continue
            _check_guard(guard)
            check = getattr(guard, method, None)
            inherited = getattr(type(guard), method, None) is getattr(BaseGuard, method)
            own = EnforcementLevel(getattr(guard, "enforcement", "block"))
            levels = (own, self.enforcement)
            if check is None or inherited or EnforcementLevel.OFF in levels:
                continue
            steps.append(Step(guard, check, warns=EnforcementLevel.WARN in levels))
        return tuple(steps)

    def _steps_of(self, chain: GuardChain, method: str) -> list[Step]:
        if self.enforcement is EnforcementLevel.OFF:
            return []
        warns = self.enforcement is EnforcementLevel.WARN
        steps = chain.before if method == "check" else chain.after
        return [
            Step(step.guard, step.check, warns=warns or step.warns) for step in steps
        ]

    # --- for the layer ----------------------------------------------------------
    def begin(self, call: ToolCall, record: ToolRecord) -> Pass | None:
        """None = plainly allowed by all. Not for users."""
        at = 0
        for step in self.before:
            try:
                answer = step.check(call, record)
            except Exception as exc:  # noqa: BLE001 - a failed guard blocks
                answer = failed_guard(exc)
            if answer is not ALLOWED:
                course = Pass(self.before, call, record, None, output=False)
                course.resume(at, answer)
                return course
            at += 1  # noqa: SIM113 - `enumerate` costs a third more
        return None

    def begin_output(
        self, call: ToolCall, record: ToolRecord, value: Any
    ) -> Pass | None:
        """The same for an output. Not for users."""
        at = 0
        for step in self.after:
            try:
                answer = step.check(call, record, value)
            except Exception as exc:  # noqa: BLE001 - a failed guard blocks
                answer = failed_guard(exc)
            if answer is not ALLOWED:
                course = Pass(self.after, call, record, value, output=True)
                course.resume(at, answer)
                return course
            at += 1  # noqa: SIM113 - `enumerate` costs a third more
        return None

    # --- for users --------------------------------------------------------------
    def check_all(self, call: ToolCall, record: ToolRecord) -> ChainResult:
        """What the guards say of `call`.

        Raises:
            TypeError: When one of them has to wait; use `check_all_async`.
        """
        return now(self.begin(call, record), call, None, "check_all_async")

    async def check_all_async(self, call: ToolCall, record: ToolRecord) -> ChainResult:
        """What the guards say of `call`."""
        return await in_time(self.begin(call, record), call, None)

    def check_output_all(
        self, call: ToolCall, record: ToolRecord, value: Any
    ) -> ChainResult:
        """What the guards say of the output `value`.

        Raises:
            TypeError: When one of them has to wait; use `check_output_all_async`.
        """
        found = self.begin_output(call, record, value)
        return now(found, call, value, "check_output_all_async")

    async def check_output_all_async(
        self, call: ToolCall, record: ToolRecord, value: Any
    ) -> ChainResult:
        """What the guards say of the output `value`."""
        return await in_time(self.begin_output(call, record, value), call, value)

    async def peek(
        self, call: ToolCall, record: ToolRecord
    ) -> tuple[tuple[str, GuardResult], ...]:
        """(name, verdict) of every guard before the call; nothing is counted.

        It does not stop at a block; repairs feed the guards behind.
        """
        return tuple([item async for item in peek_steps(self.before, call, record)])


def _check_guard(guard: Any) -> None:
    kind = type(guard).__name__
    if isinstance(guard, type):
        msg = f"{guard.__name__} is a class; put an instance into the chain"
        raise TypeError(msg)
    if not isinstance(getattr(guard, "name", None), str):
        msg = f"{kind} is no guard: it has no `name` (a text)"
        raise TypeError(msg)
    methods = [getattr(guard, name, None) for name in ("check", "check_output")]
    if not any(callable(method) for method in methods):
        msg = f"{kind} is no guard: give it `check(call, record)` or `check_output`"
        raise TypeError(msg)
