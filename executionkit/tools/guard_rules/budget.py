"""The rule that counts calls and cost."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from executionkit.context import get_current_context
from executionkit.engine._checks import check_int, check_number
from executionkit.tools._guard_values import BaseGuard, EnforcementLevel, GuardResult
from executionkit.tools.guard_rules._scopes import MAX_SCOPES, Scopes

if TYPE_CHECKING:
    from executionkit.calls import ToolCall
    from executionkit.tools._record import ToolRecord

__all__ = ("BudgetGuard",)

_PASS = GuardResult.allow()
_SLACK: Final = 1 + 1e-9  # sums of fractions are not exact: ten times 0.1 is 1.0


class _Spent:
    __slots__ = ("calls", "cost", "tools", "turn")

    def __init__(self) -> None:
        self.calls: int = 0
        self.turn: int = 0
        self.cost: float = 0.0
        self.tools: dict[str, int] = {}


class BudgetGuard(BaseGuard):
    """At most so many calls and so much cost in a run.

    A run is what shares a `request_id` of the `ExecutionContext`; calls without a
    context are one run, until `reset`. A call is counted when it is admitted, so the
    limits hold when many calls are dispatched at once. It is given back when another
    guard blocks it, or when it fails before the tool was started; a call that ran, well
    or not, and one that the cache answered stay counted.

    Args:
        max_calls: Calls in a run. None = no limit, 0 = none at all.
        max_calls_per_turn: Calls until the next `start_turn`.
        per_tool: Calls of one tool in a run, by full name, bare name, or glob
            (`web.*`); the first of these three that fits counts.
        max_cost: Units of `Tool.cost` in a run.
        use_context_budget: Whether `ExecutionContext.budget` limits the cost too.
        max_runs: Runs that are remembered; the one used longest ago is forgotten first.
        enforcement: How far its word goes.

    Raises:
        ValueError: When a limit is negative or no number.
    """

    name = "budget"

    def __init__(
        self,
        *,
        max_calls: int | None = None,
        max_calls_per_turn: int | None = None,
        per_tool: Mapping[str, int] | None = None,
        max_cost: float | None = None,
        use_context_budget: bool = True,
        max_runs: int = MAX_SCOPES,
        enforcement: EnforcementLevel = EnforcementLevel.BLOCK,
    ) -> None:
        super().__init__(enforcement=enforcement)
        self._max_calls = _limit("max_calls", max_calls)
        self._max_turn = _limit("max_calls_per_turn", max_calls_per_turn)
        self._max_cost = (
            None if max_cost is None else check_number("max_cost", max_cost)
        )
        self._per_tool: dict[str, int] = {
            name: check_int(f"per_tool[{name!r}]", limit, 0)
            for name, limit in (per_tool or {}).items()
        }
        self._globs = tuple(name for name in self._per_tool if set(name) & set("*?["))
        self._use_context = use_context_budget
        self._runs: Scopes[_Spent] = Scopes(_Spent, check_int("max_runs", max_runs, 1))
        self._counts_all = bool(self._per_tool) or any(
            limit is not None
            for limit in (self._max_calls, self._max_turn, self._max_cost)
        )

    def check(self, call: ToolCall, record: ToolRecord, /) -> GuardResult:  # noqa: ARG002 - the interface
        """Count the call, or say which limit is reached."""
        scope, budget = self._where()
        if budget is None and not self._counts_all:
            return _PASS
        spent = self._runs.get(scope)
        problem = self._problem(spent, record, budget)
        if problem is not None:
            return problem
        spent.calls += 1
        spent.turn += 1
        spent.cost += record.tool.cost
        if self._per_tool and self._tool_limit(record) is not None:
            name = record.full_name
            spent.tools[name] = spent.tools.get(name, 0) + 1
        return _PASS

    def peek(self, call: ToolCall, record: ToolRecord, /) -> GuardResult:  # noqa: ARG002 - the interface
        """What `check` would say; counts nothing."""
        scope, budget = self._where()
        spent = self._runs.seen(scope) or _Spent()
        return self._problem(spent, record, budget) or _PASS

    def refund(self, call: ToolCall, record: ToolRecord, /) -> None:  # noqa: ARG002 - the interface
        """Give back what `check` counted for a call that was never started."""
        spent = self._runs.seen(self._where()[0])
        if spent is None:
            return
        spent.calls = max(0, spent.calls - 1)
        spent.turn = max(0, spent.turn - 1)
        spent.cost = max(0.0, spent.cost - record.tool.cost)
        name = record.full_name
        if spent.tools.get(name):
            spent.tools[name] -= 1

    def start_turn(self) -> None:
        """Begin a new turn of the current run."""
        spent = self._runs.seen(self._where()[0])
        if spent is not None:
            spent.turn = 0

    def reset(self) -> None:
        """Forget the current run (with no context: the calls without one)."""
        self._runs.forget(self._where()[0])

    @property
    def usage(self) -> dict[str, Any]:
        """What the current run has used: `calls`, `turn`, `cost`, `tools`."""
        spent = self._runs.seen(self._where()[0]) or _Spent()
        return {
            "calls": spent.calls,
            "turn": spent.turn,
            "cost": spent.cost,
            "tools": dict(spent.tools),
        }

    def _where(self) -> tuple[str | None, float | None]:
        context = get_current_context()
        if context is None:
            return None, None
        return context.request_id, context.budget if self._use_context else None

    def _problem(
        self, spent: _Spent, record: ToolRecord, budget: float | None
    ) -> GuardResult | None:
        if self._max_calls is not None and spent.calls >= self._max_calls:
            return _reached("calls", "tool calls in this run", self._max_calls)
        if self._max_turn is not None and spent.turn >= self._max_turn:
            return _reached("turn", "tool calls in this turn", self._max_turn)
        if self._per_tool:
            limit = self._tool_limit(record)
            if limit is not None and spent.tools.get(record.full_name, 0) >= limit:
                what = f"calls of '{record.full_name}' in this run"
                return _reached("tool", what, limit)
        cost = record.tool.cost
        if cost > 0:
            for name, most in (("cost", self._max_cost), ("context", budget)):
                if most is not None and spent.cost + cost > most * _SLACK:
                    return _reached(name, "cost units in this run", most)
        return None

    def _tool_limit(self, record: ToolRecord) -> int | None:
        limits = self._per_tool
        limit = limits.get(record.full_name)
        if limit is None:
            limit = limits.get(record.name)
        if limit is None:
            for glob in self._globs:
                if fnmatchcase(record.full_name, glob):
                    return limits[glob]
        return limit


def _limit(name: str, value: int | None) -> int | None:
    return None if value is None else check_int(name, value, 0)


def _reached(name: str, what: str, limit: float) -> GuardResult:
    return GuardResult.block(
        f"limit reached: {limit:g} {what}; do not call it again",
        {"limit_type": name, "limit": limit},
    )
