"""Plans: steps with an instruction each, one after another, written by you or a model.

```python
plan = Plan([PlanStep("find", "Find the facts", find), PlanStep("write", "...", write)])
result = await plan.execute({"topic": "otters"})
result.outputs["write"]
```

A plan that a model writes names actions that you offer. It is read strictly and checked
as a whole; nothing of it runs before that.

```python
made = await make_plan(provider, "Write about otters", {"search": search, "write": write})
result = await made.value.execute()
```
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from executionkit._arguments import check_callable, check_prompt, shown
from executionkit._constants import DEFAULT_MAX_CONCURRENCY
from executionkit._workflow.entry import Request, run_steps
from executionkit._workflow.graph import check_graph, longest_chain
from executionkit._workflow.parsing import plan_schema, read_plan, refuse_plan
from executionkit._workflow.values import (
    Node,
    StepFunction,
    StepsResult,
    check_step,
    names_of,
)
from executionkit.engine._checks import check_int
from executionkit.errors import WorkflowError
from executionkit.patterns.structured import structured
from executionkit.types import PatternResult, TokenUsage, freeze_mapping, sealed

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider
    from executionkit.approval import ApprovalGate
    from executionkit.engine.retry import RetryConfig
    from executionkit.journal import Journal
    from executionkit.observability import TraceCallback

__all__ = ("Plan", "PlanAction", "PlanResult", "PlanStep", "make_plan")

PlanAction: TypeAlias = Callable[[str, dict[str, Any]], "Awaitable[Any] | Any"]
"""What a step of a written plan does: `(instruction, context) -> value`; the context is
that of a `PlanStep`, the first line of its docstring tells the model what it is for."""

_MAX_STEPS: Final = 32
_MAX_CHARS: Final = 20_000


@sealed
@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a plan.

    Raises:
        TypeError: For a field of a wrong kind.
        ValueError: For an empty name, or a timeout that is not > 0.
    """

    name: str
    instruction: str
    """What is to be done, in words; for whoever approves it."""

    run: StepFunction
    """As for a `Step` of a workflow."""

    metadata: Mapping[str, Any] = field(default_factory=freeze_mapping)
    """More facts for whoever approves it."""

    _: KW_ONLY

    depends_on: tuple[str, ...] | None = None
    """Names of the steps whose outputs it needs. None = the step before it."""

    retry: RetryConfig | None = None
    """How a failed attempt is repeated. None = it is not."""

    timeout: float | None = None
    """Seconds that one attempt may take. None = no limit."""

    in_thread: bool = False
    """True = `run` blocks: it gets a thread, which cannot be stopped."""

    idempotent: bool = False
    """Whether doing it twice does no more than once; see `Step`."""

    def __post_init__(self) -> None:
        check_step("step of a plan", self)
        instruction: object = self.instruction
        if not isinstance(instruction, str):
            msg = (
                f"`instruction` of {self.name!r} must be a str, got "
                f"{shown(instruction)}"
            )
            raise TypeError(msg)
        object.__setattr__(self, "metadata", freeze_mapping(self.metadata))
        if self.depends_on is not None:
            names = names_of(self.name, self.depends_on)
            object.__setattr__(self, "depends_on", names)


@sealed
@dataclass(frozen=True, slots=True)
class PlanResult(StepsResult):
    """What a plan returns: `outputs` and `cost`; the other fields stay empty.

    With a journal `replayed` and `replayed_cost` too.
    """


class Plan:
    """Steps that run one after another, each seeing the outputs of those before.

    Steps that name their own `depends_on` run as those of a `Workflow` do: as soon as
    these are done, side by side, and see only what they depend on.

    Args:
        steps: The steps, in order.

    Raises:
        WorkflowError: A `ValueError` that lists names given twice, unknown names, and
            the members of each cycle.
        TypeError: When something in `steps` is no `PlanStep`.
    """

    def __init__(self, steps: Iterable[PlanStep]) -> None:
        given: tuple[Any, ...] = tuple(steps)
        for step in given:
            if not isinstance(step, PlanStep):
                msg = f"`steps` must hold PlanStep values, got {shown(step)}"
                raise TypeError(msg)
        self._steps: tuple[PlanStep, ...] = given
        self._nodes = tuple(_nodes_of(self._steps))
        check_graph(self._nodes)

    @property
    def steps(self) -> tuple[PlanStep, ...]:
        """The steps, in the order given."""
        return self._steps

    @classmethod
    def parse(
        cls,
        source: str | Mapping[str, Any],
        actions: Mapping[str, PlanAction],
        *,
        max_steps: int = _MAX_STEPS,
        max_depth: int = _MAX_STEPS,
        max_chars: int = _MAX_CHARS,
        retry: RetryConfig | None = None,
        timeout: float | None = None,
        idempotent: Collection[str] = (),
    ) -> Plan:
        """The plan that a model wrote.

        It has the form `{"steps": [{"name": ..., "instruction": ..., "action": ...,
        "depends_on": [...]}]}`; `depends_on` may be left out and then means the step
        before. JSON is read strictly: unknown keys, keys given twice and NaN are
        refused, and nothing is repaired or guessed.

        Args:
            source: JSON text, or the data that was parsed from it.
            actions: What steps may do, by name.
            max_steps: Steps at most, at least 1.
            max_depth: Steps in the longest chain at most, at least 1.
            max_chars: Characters of the text, and of each part of a step, at most.
            retry: How a failed attempt at a step is repeated. None = it is not.
            timeout: Seconds that one attempt at a step may take. None = no limit.
            idempotent: Names of the actions that do no more when they are done twice.

        Raises:
            WorkflowError: A `ValueError` that lists all that is wrong.
            TypeError: When `actions` holds something that is no function.
            ValueError: For a limit below 1.
        """
        _check_actions(actions)
        for name, limit in (
            ("max_steps", max_steps),
            ("max_depth", max_depth),
            ("max_chars", max_chars),
        ):
            check_int(name, limit, 1)
        written = read_plan(source, actions, max_steps=max_steps, max_chars=max_chars)
        plan = cls(
            PlanStep(
                item.name,
                item.instruction,
                functools.partial(actions[item.action], item.instruction),
                {"action": item.action},
                depends_on=item.depends_on,
                retry=retry,
                timeout=timeout,
                idempotent=item.action in idempotent,
            )
            for item in written
        )
        depth = longest_chain(plan._nodes)
        if depth > max_depth:
            refuse_plan([f"a chain of {depth} steps, allowed are {max_depth}"])
        return plan

    async def execute(
        self,
        initial_context: Mapping[str, Any] | None = None,
        *,
        trace: TraceCallback | None = None,
        approval_gate: ApprovalGate | None = None,
        max_cost: TokenUsage | None = None,
        journal: Journal | None = None,
    ) -> PlanResult:
        """Run the steps; at the first failure nothing more begins.

        Args:
            initial_context: Values that every step sees; no key may be a step's name.
            trace: Receives `plan_step_start`, then `_end` or `_error`, with `_retry`
                between. All have `step` and a `call_id`, the same in each run.
            approval_gate: Asked before each step, with the action `plan_step`.
            max_cost: Once that much is spent no further attempt begins.
            journal: Keeps outputs, attempts and approvals; see `Workflow.run`. A plan
                that a model wrote must be the same in every run: keep it, too.

        Returns:
            The outputs of all steps, next to the initial context.

        Raises:
            ExecutionKitError: What a step raised, with the cost of the whole run, and
                in `metadata`: `step`, `failed`, `not_run`, and `outputs` (of the
                finished steps).
            EvaluatorError: When a step raised any other exception (its cause), or the
                callback of the gate did.
            ApprovalDeniedError: When a step was not allowed.
            InDoubtError: See `Workflow.run`.
            JournalMismatchError: See `Workflow.run`.
            ValueError: When a key of `initial_context` is the name of a step.
            TypeError: For an argument of the wrong kind.
        """
        request = Request(
            initial_context=initial_context,
            trace=trace,
            gate=approval_gate,
            max_cost=max_cost,
            max_concurrency=DEFAULT_MAX_CONCURRENCY,
            on_failure="stop",
            done={},
            journal=journal,
        )
        ended = await run_steps("plan_step", self._nodes, request)
        return PlanResult(
            ended.outputs,
            ended.cost,
            ended.skipped,
            replayed=ended.replayed,
            replayed_cost=ended.replayed_cost,
        )


async def make_plan(
    provider: LLMProvider,
    goal: str,
    actions: Mapping[str, PlanAction],
    *,
    max_steps: int = _MAX_STEPS,
    max_depth: int = _MAX_STEPS,
    step_retry: RetryConfig | None = None,
    step_timeout: float | None = None,
    idempotent: Collection[str] = (),
    **options: Any,
) -> PatternResult[Plan]:
    """Have a model write a plan. Nothing of the plan is run.

    Whatever is wrong with the plan is told to the model, as `structured` does.

    Args:
        provider: Writes the plan.
        goal: What the plan is to reach.
        actions: What steps may do, by name.
        max_steps: Steps at most, at least 1.
        max_depth: Steps in the longest chain at most, at least 1.
        step_retry: How a failed attempt at a step is repeated. None = it is not.
        step_timeout: Seconds that one attempt at a step may take. None = no limit.
        idempotent: Names of the actions that do no more when they are done twice.
        **options: For `structured`: `max_retries`, `max_cost`, `trace`, ...

    Returns:
        The plan, and the cost and metadata of `structured`.

    Raises:
        PatternError: When no reply was a plan that can be used.
        ExecutionKitError: See `structured`.
        TypeError: When `actions` holds something that is no function.
        ValueError: When there are no actions, or for a limit below 1.
    """
    check_prompt("goal", goal)
    _check_actions(actions)
    check_int("max_steps", max_steps, 1)
    check_int("max_depth", max_depth, 1)

    def read(value: Any) -> Plan:
        return Plan.parse(
            value,
            actions,
            max_steps=max_steps,
            max_depth=max_depth,
            retry=step_retry,
            timeout=step_timeout,
            idempotent=idempotent,
        )

    def check(value: Any) -> str | None:
        try:
            read(value)
        except WorkflowError as exc:
            return exc.message
        return None

    written = await structured(
        provider,
        _request(goal, actions),
        schema=plan_schema(list(actions), max_steps),
        validator=check,
        **options,
    )
    return PatternResult(
        read(written.value), written.score, written.cost, written.metadata
    )


def _request(goal: str, actions: Mapping[str, PlanAction]) -> str:
    lines = [f"- {name}{_purpose(action)}" for name, action in actions.items()]
    return (
        "Write a plan that reaches the goal below. Each step has a unique `name`, an "
        "`instruction` that says in words what is to be done, and the `action` that "
        "does it. `depends_on` names the steps whose results it needs; leave it out "
        "when that is just the step before.\n\nActions:\n"
        + "\n".join(lines)
        + f"\n\nGoal:\n{goal}"
    )


def _purpose(action: PlanAction) -> str:
    words = inspect.getdoc(action) if inspect.isroutine(action) else None
    return f": {words.splitlines()[0]}" if words else ""


def _check_actions(actions: object) -> None:
    if not isinstance(actions, Mapping):
        msg = f"`actions` must be a mapping of names to functions, got {shown(actions)}"
        raise TypeError(msg)
    if not actions:
        msg = "`actions` is empty: no plan could do anything"
        raise ValueError(msg)
    for name, action in actions.items():
        check_callable(f"actions[{name!r}]", action)


def _nodes_of(steps: Iterable[PlanStep]) -> Iterable[Node]:
    before: tuple[str, ...] = ()
    for step in steps:
        yield Node(
            name=step.name,
            run=step.run,
            needs=before if step.depends_on is None else step.depends_on,
            facts=freeze_mapping({"instruction": step.instruction, **step.metadata}),
            retry=step.retry,
            timeout=step.timeout,
            in_thread=step.in_thread,
            idempotent=step.idempotent,
        )
        before = (step.name,)
