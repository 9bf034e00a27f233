"""Running a plan: every call starts the moment what it needs is done.

```python
processor = ToolProcessor(registry)
outcome = await processor.execute_plan(
    [
        ToolCallSpec("fetch", "web.fetch", {"url": "/users"}),
        ToolCallSpec(
            "store", "db.write", {"rows": ResultOf("fetch")}, depends_on=("fetch",)
        ),
    ],
    constraints=SchedulingConstraints(deadline_ms=5000, pool_limits={"default": 4}),
)
outcome.results["store"].result
```

The stages of a plan are no barriers, and order that goes beyond the dependencies is not
kept: what must wait for a call says so in `depends_on`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from executionkit._frozen import freeze_mapping, sealed
from executionkit.calls import ToolResult
from executionkit.context import (
    ExecutionContext,
    get_current_context,
    remaining_deadline,
    set_current_context,
)
from executionkit.engine.retry import RetryConfig
from executionkit.errors import ToolProcessorError
from executionkit.tools._asked import request_context
from executionkit.tools._options import tool_retry
from executionkit.tools._plans.checks import check_plan, make_plan, references_of
from executionkit.tools._plans.crew import Crew
from executionkit.tools._plans.desk import Desk, OnResult
from executionkit.tools._plans.references import ResultOf
from executionkit.tools._runs import Opener, Override, RunOptions
from executionkit.tools._scheduling.admission import remaining_ms
from executionkit.tools.scheduling import (
    ExecutionPlan,
    SchedulerPolicy,
    SchedulingConstraints,
    ToolCallSpec,
)

if TYPE_CHECKING:
    from contextvars import Context

    from executionkit.tools._core import Core

__all__ = ("PlanRunner", "ResultOf", "ToolPlanResult", "run_plan")


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlanResult:
    """What became of a plan: one result for each call, whether it ran or not."""

    results: Mapping[str, ToolResult]
    """By call id, in the order in which the calls were given."""

    succeeded: tuple[str, ...]
    """Ids in the order given, as in the next two."""

    failed: tuple[str, ...]
    """Calls that ran and failed, and those that could not be started: too late, or an
    argument was not there."""

    skipped: tuple[str, ...]
    """Calls that were not run because the plan or the budget left them out
    (`SKIPPED_PLANNED`; the `SkipCause` is `details["reason"]`), or because a call that
    they need failed (`SKIPPED_DEPENDENCY_FAILED`; its id is
    `details["failed_dependency"]`)."""

    order: tuple[str, ...]
    """Calls that succeeded or failed, in the order in which they ended."""

    cost: float
    """The sum of `ToolMetadata.cost` over the calls that were started."""

    plan: ExecutionPlan
    makespan: float
    """Seconds from the start to the end of the last call."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "results", freeze_mapping(self.results))

    @property
    def is_success(self) -> bool:
        """True when no call failed, and not all of them were left out."""
        return not self.failed and (bool(self.succeeded) or not self.results)


class PlanRunner(ABC):
    """The half of `ToolProcessor` that runs plans."""

    __slots__ = ()

    @abstractmethod
    def _ready(self) -> Core:
        """The machine, made when it is first needed."""

    async def execute_plan(
        self,
        calls: Sequence[ToolCallSpec],
        plan: ExecutionPlan | None = None,
        *,
        constraints: SchedulingConstraints | None = None,
        scheduler: SchedulerPolicy | None = None,
        continue_on_error: bool = False,
        context: ExecutionContext | None = None,
        on_result: OnResult | None = None,
    ) -> ToolPlanResult:
        """Run calls that depend on each other, each one as soon as it can.

        Every call goes through all layers of the processor. What the plan says of its
        timeout and its retries comes before all other settings; where the plan says
        nothing, the wish of the `ToolCallSpec` does. Among calls that could start, the
        higher priority goes first, then the longer chain that waits behind it.

        A failed call skips all that needs it, directly or not. Arguments may hold
        `ResultOf`; a part of a result that is not there is that call's own failure.

        When the caller is cancelled, so are the running calls, and awaited (a grace
        period at most); a call that had ended before was told to `on_result`.

        Args:
            calls: All calls, in any order.
            plan: What to run. None = ask the scheduler.
            constraints: `pool_limits` and `max_cost` hold while the plan runs (a call
                that does not fit the budget is skipped; what required calls cost is set
                aside for them). `deadline_ms - now_ms` counts from the start: what runs
                then is stopped, what could not start fails (`DEADLINE_EXCEEDED`).
            scheduler: Makes the plan. None = `GreedyDagScheduler()`.
            continue_on_error: Whether what needs a failed call is run anyway. What
                needs a skipped call is skipped even so.
            context: The request's context; its deadline counts too.
            on_result: Called with each result as it comes, also with those of skipped
                calls; may be async. When it raises, a warning is logged.

        Raises:
            PlanError: Before anything runs: calls that cannot be ordered, a plan that
                does not name each call once or puts one in a stage before what it
                needs, a `ResultOf` of a call that is not in `depends_on`.
            TypeError: When both `plan` and `scheduler` are given.
        """
        limits = constraints or SchedulingConstraints()
        return await run_plan(
            self._ready(),
            calls,
            plan,
            limits,
            scheduler,
            continue_on_error=continue_on_error,
            context=context,
            on_result=on_result,
        )


async def run_plan(
    core: Core,
    calls: Sequence[ToolCallSpec],
    plan: ExecutionPlan | None,
    constraints: SchedulingConstraints,
    scheduler: SchedulerPolicy | None = None,
    *,
    continue_on_error: bool = False,
    context: ExecutionContext | None = None,
    on_result: OnResult | None = None,
) -> ToolPlanResult:
    """`ToolProcessor.execute_plan` for the machine behind a processor."""
    given = tuple(calls)
    current = context or get_current_context()
    facts = None if current is None else current.to_dict()
    plan = make_plan(given, plan, constraints, scheduler, facts)
    check_plan(given, plan)
    course = _Course(
        given, plan, constraints, references_of(given), continue_on_error, on_result
    )
    trace = None if core.paths.tracer is None else core.paths.tracer.plan()
    async with trace or nullcontext():
        return await course.run(core, context)


@dataclass(frozen=True, slots=True)
class _Course:
    """A plan that has been checked, and how it is to run."""

    calls: tuple[ToolCallSpec, ...]
    plan: ExecutionPlan
    constraints: SchedulingConstraints
    references: Mapping[str, tuple[ResultOf, ...]]
    continue_on_error: bool
    on_result: OnResult | None

    async def run(self, core: Core, context: ExecutionContext | None) -> ToolPlanResult:
        clock = core.shop.clock
        began = clock.monotonic()
        variables = request_context(context)
        due = _deadline(variables, self.constraints, began)
        desk = Desk(
            self.calls,
            self.plan,
            self.constraints,
            self.references,
            clock,
            continue_on_error=self.continue_on_error,
            due=due,
            on_result=self.on_result,
        )
        overrides = _overrides(core, self.calls, self.plan)
        options = RunOptions(overrides=overrides, items=False)
        opener = Opener(core.paths, options, variables)
        crew = Crew(desk, _Bounded(opener, due), core.paths, variables)
        told = desk.tell(desk.skip_planned())
        if told is not None:
            await told
        await crew.run()
        return _outcome(self.calls, desk, self.plan, clock.monotonic() - began)


class _Bounded:
    """Opens calls with the plan's own deadline."""

    __slots__ = ("_due", "_open")

    def __init__(self, open_call: Opener, due: float | None) -> None:
        self._open = open_call
        self._due = due

    def __call__(self, place: int, call: Any) -> Any:
        opened = self._open(place, call)
        if self._due is not None and type(opened) is tuple:
            opened[1].deadline = self._due
        return opened


def _deadline(
    variables: Context, constraints: SchedulingConstraints, now: float
) -> float | None:
    """When all must be over, monotonic; tools see it in their context too."""
    outer = variables.run(remaining_deadline)
    own = remaining_ms(constraints)
    if own is None:
        return None if outer is None else now + outer
    seconds = own / 1000
    if outer is not None and outer <= seconds:
        return now + outer
    current = variables.run(get_current_context)
    bounded = ExecutionContext.with_deadline(seconds)
    if current is not None:
        bounded = replace(current, deadline=bounded.deadline)
    variables.run(set_current_context, bounded)
    return now + seconds


def _overrides(
    core: Core, calls: Sequence[ToolCallSpec], plan: ExecutionPlan
) -> dict[str, Override] | None:
    """What the plan says of single calls, by id."""
    timeouts, retries = plan.per_call_timeout_ms, plan.per_call_max_retries
    found: dict[str, Override] = {}
    known: dict[tuple[str, int | None, int | None], Override] = {}
    for call in calls:
        timeout = timeouts.get(call.call_id, call.timeout_ms)
        count = retries.get(call.call_id, call.max_retries)
        if timeout is None and count is None:
            continue
        key = call.tool_name if count is not None else "", timeout, count
        override = known.get(key)
        if override is None:
            override = known[key] = Override(
                timeout=None if timeout is None else timeout / 1000,
                retry=None if count is None else _retry(core, call.tool_name, count),
            )
        found[call.call_id] = override
    return found or None


def _retry(core: Core, name: str, count: int) -> RetryConfig:
    """The tool's own way to retry, with another number of attempts."""
    try:
        own = core.paths.find(name, "default").parts.retry
    except ToolProcessorError:
        own = None  # the call itself will say that there is no such tool
    return replace(own or tool_retry(RetryConfig()), max_retries=count)


def _outcome(
    calls: Sequence[ToolCallSpec], desk: Desk, plan: ExecutionPlan, seconds: float
) -> ToolPlanResult:
    results = desk.results
    ids = [call.call_id for call in calls]
    skipped = set(desk.queue.skipped)
    ran = [call_id for call_id in ids if call_id not in skipped]
    return ToolPlanResult(
        results={call_id: results[call_id] for call_id in ids},
        succeeded=tuple([name for name in ran if results[name].error is None]),
        failed=tuple([name for name in ran if results[name].error is not None]),
        skipped=tuple([name for name in ids if name in skipped]),
        order=tuple(desk.order),
        cost=desk.spent,
        plan=plan,
        makespan=seconds,
    )
