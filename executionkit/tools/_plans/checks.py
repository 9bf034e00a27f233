"""Whether a plan is one for these calls. Everything here happens before anything runs."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from executionkit.tools._plans.references import find_references
from executionkit.tools.scheduling import (
    ExecutionPlan,
    GreedyDagScheduler,
    PlanError,
    SchedulingConstraints,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from executionkit.tools._plans.references import ResultOf
    from executionkit.tools.scheduling import SchedulerPolicy, ToolCallSpec

__all__ = ("check_plan", "make_plan", "references_of")

_SHOWN = 10


def make_plan(
    calls: Sequence[ToolCallSpec],
    plan: ExecutionPlan | None,
    constraints: SchedulingConstraints,
    scheduler: SchedulerPolicy | None,
    context: Mapping[str, object] | None,
) -> ExecutionPlan:
    """The plan that is given, or the one that the scheduler makes.

    Raises:
        PlanError: When the scheduler can make none.
        TypeError: When both are given, or it is no `ExecutionPlan`.
    """
    if plan is not None and scheduler is not None:
        msg = "give `plan` or `scheduler`, not both: a scheduler makes the plan"
        raise TypeError(msg)
    if plan is None:
        plan = (scheduler or GreedyDagScheduler()).plan(calls, constraints, context)
    given: object = plan
    if not isinstance(given, ExecutionPlan):
        msg = f"a plan must be an ExecutionPlan, got {type(given).__name__}"
        raise TypeError(msg)
    return plan


def check_plan(calls: Sequence[ToolCallSpec], plan: ExecutionPlan) -> None:
    """Check that `plan` names each call once, and no call before one that it needs.

    Raises:
        PlanError: Otherwise, with all there is: `unknown_calls`, `missing_calls`,
            `wrong_order` (id to the ids of later stages that it needs) in `details`.
    """
    stage_of = {
        call_id: number for number, stage in enumerate(plan.stages) for call_id in stage
    }
    skipped = set(plan.skip)
    known = {call.call_id for call in calls}
    unknown = [name for name in (*stage_of, *plan.skip) if name not in known]
    missing = [name for name in known if name not in stage_of and name not in skipped]
    missing.sort()
    wrong: dict[str, list[str]] = {}
    for call in calls:
        own = stage_of.get(call.call_id)
        if own is None:
            continue
        late = [name for name in call.depends_on if stage_of.get(name, -1) > own]
        if late:
            wrong[call.call_id] = late
    parts = [
        _part("it names ids that are no call", unknown),
        _part("it names these calls neither in a stage nor in `skip`", missing),
        _part("its stages put calls before what they need", list(wrong)),
    ]
    if any(parts):
        details = {
            "unknown_calls": unknown,
            "missing_calls": missing,
            "wrong_order": wrong,
        }
        msg = f"the plan does not fit the calls: {'; '.join(filter(None, parts))}"
        raise PlanError(
            msg, details={key: value for key, value in details.items() if value}
        )


def references_of(calls: Sequence[ToolCallSpec]) -> dict[str, tuple[ResultOf, ...]]:
    """The references in the arguments, by the id of the call; none = not in it.

    Raises:
        PlanError: When one makes no sense, or means a call that is not in `depends_on`
            (`missing_dependencies`, id to ids, and `bad_references`, id to a text).
    """
    found: dict[str, tuple[ResultOf, ...]] = {}
    missing: dict[str, list[str]] = {}
    bad: dict[str, str] = {}
    for call in calls:
        if not call.args:
            continue
        try:
            references = find_references(call.args)
        except ValueError as exc:
            bad[call.call_id] = str(exc)
            continue
        if references:
            found[call.call_id] = references
            names = dict.fromkeys(item.call_id for item in references)
            if late := [name for name in names if name not in call.depends_on]:
                missing[call.call_id] = late
    parts = [
        _part(
            "results used by calls that do not depend on them (add them to `depends_on`)",
            [
                f"{key!r} uses {', '.join(map(repr, ids))}"
                for key, ids in missing.items()
            ],
            quote=False,
        ),
        _part(
            "references that make no sense",
            [f"in {key!r}, {why}" for key, why in bad.items()],
            quote=False,
        ),
    ]
    if any(parts):
        details = {"missing_dependencies": missing, "bad_references": bad}
        msg = f"the arguments cannot be filled: {'; '.join(filter(None, parts))}"
        raise PlanError(
            msg, details={key: value for key, value in details.items() if value}
        )
    return found


def _part(title: str, names: Sequence[str], *, quote: bool = True) -> str:
    if not names:
        return ""
    shown = ", ".join(repr(n) if quote else n for n in islice(names, _SHOWN))
    more = len(names) - _SHOWN
    return f"{title}: {shown}" + (f" and {more} more" if more > 0 else "")
