"""Steps that depend on each other, each one run as soon as it can.

```python
workflow = Workflow(
    [
        Step("facts", lambda ctx: consensus(provider, ctx["question"])),
        Step("answer", write, depends_on=("facts",), timeout=30),
    ]
)
result = await workflow.run({"question": "..."})
result.outputs["answer"]
```

There are no waves: a step starts the moment all that it depends on is done. It sees
the initial context and the outputs of what it depends on, directly or not, and nothing
that merely happened to be finished; so a run does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args

from executionkit._arguments import check_callable, shown
from executionkit._constants import DEFAULT_MAX_CONCURRENCY
from executionkit._workflow.entry import Request, run_steps
from executionkit._workflow.graph import check_graph
from executionkit._workflow.values import (
    Condition,
    FailurePolicy,
    MissingInput,
    Node,
    StepFunction,
    StepsResult,
    check_step,
    names_of,
)
from executionkit.engine._checks import check_int
from executionkit.types import TokenUsage, freeze_mapping, sealed, thaw

if TYPE_CHECKING:
    from executionkit.approval import ApprovalGate
    from executionkit.engine.retry import RetryConfig
    from executionkit.journal import Journal
    from executionkit.observability import TraceCallback

__all__ = (
    "CheckpointFn",
    "Step",
    "Workflow",
    "WorkflowCheckpoint",
    "WorkflowResult",
)

_COUNTS: Final = ("input_tokens", "output_tokens", "llm_calls")


@sealed
@dataclass(frozen=True, slots=True)
class Step:
    """One step of a workflow. Its name is what it is: one function may serve many.

    Raises:
        TypeError: For a field of a wrong kind.
        ValueError: For an empty name, an unknown choice, or a timeout that is not > 0.
    """

    name: str
    run: StepFunction
    """Async, or sync and quick: it runs on the event loop unless `in_thread`. A
    `PatternResult` counts as its `value`, and its cost is added up."""

    depends_on: tuple[str, ...] = ()
    """Names of the steps whose outputs it needs."""

    metadata: Mapping[str, Any] = field(default_factory=freeze_mapping)
    """Facts for whoever approves it."""

    _: KW_ONLY

    when: Condition | None = None
    """Asked when the step could start; False leaves it out. None = always."""

    on_skipped: MissingInput = "skip"
    """When something it depends on has no output, because that was left out (or failed
    and the run goes on): `"skip"` leaves it out too, `"run"` runs it without."""

    retry: RetryConfig | None = None
    """How a failed attempt is repeated. None = it is not. An error on which a retry
    inside of the step gave up is not tried again; `StepTimeoutError` and errors of your
    own must be in `retryable`."""

    timeout: float | None = None
    """Seconds that one attempt may take, from the moment it starts. None = no limit. A
    step that ends all the same in the moment it is cancelled counts as done."""

    in_thread: bool = False
    """True = `run` blocks: it gets a thread, which cannot be stopped."""

    may_fail: bool = False
    """True = the run goes on when it fails or is denied, as if it had been left out; the
    result names it in `failures`."""

    idempotent: bool = False
    """Whether doing it twice does no more than once, because it only reads, or because
    all that it does is on record itself. For runs with a journal: it is done again when
    a run broke off in its middle."""

    def __post_init__(self) -> None:
        check_step("step", self)
        object.__setattr__(self, "depends_on", names_of(self.name, self.depends_on))
        object.__setattr__(self, "metadata", freeze_mapping(self.metadata))
        if self.when is not None:
            check_callable(f"when of {self.name!r}", self.when)
        if self.on_skipped not in get_args(MissingInput):
            msg = f"`on_skipped` must be 'skip' or 'run', got {shown(self.on_skipped)}"
            raise ValueError(msg)


@sealed
@dataclass(frozen=True, slots=True)
class WorkflowCheckpoint:
    """Where a run stands: enough to go on from here, in another process too."""

    step_index: int
    """How many steps are done; for display only."""

    outputs: Mapping[str, Any]
    """What the finished steps returned, by name. The initial context is not in it."""

    cost: TokenUsage = field(default_factory=TokenUsage)
    """What had been spent."""

    def __post_init__(self) -> None:
        check_int("step_index", self.step_index, 0)
        object.__setattr__(self, "outputs", freeze_mapping(self.outputs))

    def to_dict(self) -> dict[str, Any]:
        """The checkpoint as plain data; JSON when the outputs are."""
        extra = [
            item.name
            for item in fields(TokenUsage)
            if item.name not in _COUNTS and getattr(self.cost, item.name)
        ]
        return {
            "step_index": self.step_index,
            "outputs": thaw(dict(self.outputs)),
            "cost": {name: getattr(self.cost, name) for name in (*_COUNTS, *extra)},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WorkflowCheckpoint:
        """What `to_dict` gave.

        Raises:
            ValueError: Naming what is missing or wrong.
        """
        given: Any = data
        if not isinstance(given, Mapping):
            msg = f"a checkpoint must be a mapping, got {shown(given)}"
            raise ValueError(msg)
        for name in ("step_index", "outputs", "cost"):
            if name not in given:
                msg = f"the checkpoint has no `{name}`"
                raise ValueError(msg)
        for name in ("outputs", "cost"):
            if not isinstance(given[name], Mapping):
                msg = f"`{name}` of a checkpoint must be a mapping, got {given[name]!r}"
                raise ValueError(msg)
        return cls(given["step_index"], given["outputs"], _usage(given["cost"]))


def _usage(cost: Mapping[str, Any]) -> TokenUsage:
    counts: dict[str, int] = {}
    for item in fields(TokenUsage):
        if item.name in cost:
            counts[item.name] = check_int(f"cost.{item.name}", cost[item.name], 0)
        elif item.name in _COUNTS:
            msg = f"the checkpoint has no `cost.{item.name}`"
            raise ValueError(msg)
    return TokenUsage(**counts)


CheckpointFn: TypeAlias = "Callable[[WorkflowCheckpoint], Awaitable[None] | None]"
"""Called with each checkpoint of a run; sync or async."""


@sealed
@dataclass(frozen=True, slots=True)
class WorkflowResult(StepsResult):
    """What a workflow returns: `outputs`, `cost`, `skipped`, `failures`.

    With a journal `replayed` and `replayed_cost` too.
    """


class Workflow:
    """A graph of steps, checked as a whole before anything runs.

    A workflow may be run any number of times, also at once.

    Args:
        steps: The steps, in any order.
        max_concurrency: Attempts at work at once, at least 1. None = no limit. A step
            that waits (for its inputs, an approval, its next attempt) takes no place.
        on_failure: What the failure of a step means for the others. `"stop"`: nothing
            more begins, and steps at work end, with their outputs kept. `"cancel"`:
            those are cancelled. `"continue"`: whatever does not need the failed step
            still runs. In any case the error is raised when no step runs any more.

    Raises:
        WorkflowError: A `ValueError` that lists names given twice, unknown names in
            `depends_on`, steps that need themselves, and the members of each cycle.
        TypeError: When something in `steps` is no `Step`.
        ValueError: For a senseless `max_concurrency` or `on_failure`.
    """

    def __init__(
        self,
        steps: Iterable[Step],
        *,
        max_concurrency: int | None = DEFAULT_MAX_CONCURRENCY,
        on_failure: FailurePolicy = "stop",
    ) -> None:
        given: tuple[Any, ...] = tuple(steps)
        for step in given:
            if not isinstance(step, Step):
                msg = f"`steps` must hold Step values, got {shown(step)}"
                raise TypeError(msg)
        if max_concurrency is not None:
            check_int("max_concurrency", max_concurrency, 1)
        if on_failure not in get_args(FailurePolicy):
            msg = (
                "`on_failure` must be 'stop', 'cancel' or 'continue', got "
                f"{shown(on_failure)}"
            )
            raise ValueError(msg)
        self._steps: tuple[Step, ...] = given
        self._max_concurrency = max_concurrency
        self._on_failure: FailurePolicy = on_failure
        self._nodes = tuple(_node(step) for step in given)
        check_graph(self._nodes)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, in the order given."""
        return self._steps

    async def run(
        self,
        initial_context: Mapping[str, Any] | None = None,
        *,
        trace: TraceCallback | None = None,
        approval_gate: ApprovalGate | None = None,
        checkpoint_fn: CheckpointFn | None = None,
        resume_from: WorkflowCheckpoint | None = None,
        max_cost: TokenUsage | None = None,
        journal: Journal | None = None,
    ) -> WorkflowResult:
        """Run all steps.

        A cancellation of the caller, and the deadline of the current context, cancel
        the steps and wait for them; what was finished is checkpointed. To let a run go
        on when the one who waits for it leaves, give it a task of its own and await
        that through `asyncio.shield`.

        Args:
            initial_context: Values that every step sees; no key may be a step's name.
            trace: Receives `workflow_step_start`, then `_end` or `_error`, with
                `_retry` between, and `workflow_step_skipped`. All have `step` and a
                `call_id`, the same in each run.
            approval_gate: Asked before each step, with the action `workflow_step`.
            checkpoint_fn: Called (sync or async) with a `WorkflowCheckpoint` after each
                step, before what waits for it starts. What it raises is raised as it
                is, once the steps at work have ended.
            resume_from: Steps in its `outputs` are not run again, and its cost counts.
                What is no step of this workflow is left out.
            max_cost: Once that much is spent no further attempt begins. It does not
                limit a step by itself: give its patterns a `max_cost` for that.
            journal: Keeps the outputs, attempts and approvals, so that a run that broke
                off goes on where it was. Outputs must be JSON-like, or values of this
                library. A step that had begun is run again when it is `idempotent`. A
                step that failed for good is tried once more by the next run. Conditions
                and callbacks are called again.

        Returns:
            The outputs of all steps, next to the initial context.

        Raises:
            ExecutionKitError: What a step raised, with the cost of the whole run, and
                in `metadata`: `step` (the first that failed), `failed`, `skipped`,
                `not_run`, `outputs` (of the finished steps), and `checkpoint`, to be
                given as `resume_from`. Other failures are noted on it.
            EvaluatorError: When a step raised any other exception (its cause), and when
                a condition or the callback of the gate did; metadata as above.
            ApprovalDeniedError: When a step was not allowed; as above.
            InDoubtError: When a step had begun as an earlier run broke off, and may not
                be repeated.
            JournalMismatchError: When the journal is that of another graph, or of other
                inputs.
            ValueError: When there is both a journal and `resume_from`, or a key of `initial_context` is the name of a step.
            TypeError: For an argument of the wrong kind.
        """
        if journal is not None and resume_from is not None:
            msg = "give `journal` or `resume_from`, not both: each knows what is done"
            raise ValueError(msg)
        done, spent = self._resumed(resume_from)
        if checkpoint_fn is not None:
            hint = "pass a function that takes a WorkflowCheckpoint"
            check_callable("checkpoint_fn", checkpoint_fn, hint=hint)
        request = Request(
            initial_context=initial_context,
            trace=trace,
            gate=approval_gate,
            max_cost=max_cost,
            max_concurrency=self._max_concurrency,
            on_failure=self._on_failure,
            done=done,
            spent=spent,
            journal=journal,
        )
        ended = await run_steps(
            "workflow_step", self._nodes, request, _snapshot, checkpoint_fn
        )
        return WorkflowResult(
            ended.outputs,
            ended.cost,
            ended.skipped,
            ended.failures,
            replayed=ended.replayed,
            replayed_cost=ended.replayed_cost,
        )

    def _resumed(self, earlier: Any) -> tuple[Mapping[str, Any], TokenUsage]:
        """The outputs and the cost that a run begins with."""
        if earlier is None:
            return {}, TokenUsage()
        if not isinstance(earlier, WorkflowCheckpoint):
            msg = (
                f"`resume_from` must be a WorkflowCheckpoint or None, got "
                f"{shown(earlier)}; read data with `WorkflowCheckpoint.from_dict(...)`"
            )
            raise TypeError(msg)
        return earlier.outputs, earlier.cost


def _snapshot(outputs: Mapping[str, Any], cost: TokenUsage) -> WorkflowCheckpoint:
    return WorkflowCheckpoint(len(outputs), outputs, cost)


def _node(step: Step) -> Node:
    return Node(
        name=step.name,
        run=step.run,
        needs=step.depends_on,
        facts=freeze_mapping({"depends_on": list(step.depends_on), **step.metadata}),
        when=step.when,
        on_skipped=step.on_skipped,
        retry=step.retry,
        timeout=step.timeout,
        in_thread=step.in_thread,
        may_fail=step.may_fail,
        idempotent=step.idempotent,
    )
