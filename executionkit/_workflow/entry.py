"""From the arguments of a run to its outcome, for workflows and plans alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from executionkit._arguments import check_budget, check_trace, shown
from executionkit._workflow.run import StepsRun
from executionkit._workflow.shared import Shared
from executionkit.types import TokenUsage, freeze, sealed

if TYPE_CHECKING:
    from executionkit._workflow.record import StepsRecord
    from executionkit._workflow.values import FailurePolicy, Node
    from executionkit.approval import ApprovalGate
    from executionkit.journal import Journal
    from executionkit.observability import TraceCallback

__all__ = ("Done", "Request", "Snapshot", "run_steps")

Snapshot = Callable[[Mapping[str, Any], TokenUsage], Any]
"""Makes a checkpoint of the outputs of finished steps and the cost so far."""


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a run was asked for."""

    initial_context: Mapping[str, Any] | None
    trace: TraceCallback | None
    gate: ApprovalGate | None
    max_cost: TokenUsage | None
    max_concurrency: int | None
    on_failure: FailurePolicy
    done: Mapping[str, Any]
    """Outputs of steps that were finished in an earlier run."""

    spent: TokenUsage = field(default_factory=TokenUsage)
    """The cost of the earlier run."""

    journal: Journal | None = None


@sealed
@dataclass(frozen=True, slots=True)
class Done:
    """What came of a run."""

    outputs: Mapping[str, Any]
    cost: TokenUsage
    skipped: tuple[str, ...]
    failures: Mapping[str, str]
    replayed: int = 0
    replayed_cost: TokenUsage = field(default_factory=TokenUsage)


async def run_steps(
    kind: str,
    nodes: Sequence[Node],
    request: Request,
    snapshot: Snapshot | None = None,
    checkpoint_fn: Callable[[Any], Awaitable[None] | None] | None = None,
) -> Done:
    """Run a checked graph of steps.

    Args:
        kind: The action that approvals name, and the first words of trace events.
        nodes: The steps.
        request: What was asked for.
        snapshot: Makes the checkpoint for `checkpoint_fn` and for errors. None =
            there are none.
        checkpoint_fn: Called with a checkpoint after each step.
    """
    check_trace(request.trace)
    check_budget("max_cost", request.max_cost)
    _check_gate(request.gate)
    context = _checked_context(request.initial_context, nodes)
    shared = Shared(
        kind,
        max_concurrency=request.max_concurrency,
        max_cost=request.max_cost,
        keep_on=request.on_failure == "continue",
        gate=request.gate,
        trace=request.trace,
        record=None if request.journal is None else _record(request.journal, kind),
    )
    if shared.record is not None:
        await shared.record.check_graph(nodes)
    tracker = shared.tracker
    tracker.add_usage(request.spent)

    def take(outputs: Mapping[str, Any]) -> Any:
        assert snapshot is not None  # noqa: S101 - nobody asks then
        return snapshot(outputs, tracker.to_usage())

    def save(outputs: Mapping[str, Any]) -> Any:
        assert checkpoint_fn is not None  # noqa: S101 - nobody asks then
        return checkpoint_fn(take(outputs))

    def more_facts() -> dict[str, Any]:
        return {} if snapshot is None else {"checkpoint": take(run.outputs)}

    run = StepsRun(
        nodes,
        shared,
        context=context,
        done=request.done,
        cancel_at_work=request.on_failure == "cancel",
        save=None if checkpoint_fn is None else save,
    )
    await run.run(more_facts)
    outputs = {**context, **run.outputs}
    ended = outputs, tracker.to_usage(), run.skipped, run.failures
    if shared.record is None:
        return Done(*ended)
    return Done(*ended, shared.record.replayed, shared.record.replayed_cost)


def _record(journal: object, kind: str) -> StepsRecord:
    # Only with a journal: it takes a while to import.
    from executionkit._workflow.record import StepsRecord
    from executionkit.journal import Journal

    if not isinstance(journal, Journal):
        msg = (
            f"`journal` must be a Journal or None, got {shown(journal)}; for example "
            "`Journal.open(path, run=...)`"
        )
        raise TypeError(msg)
    return StepsRecord(journal, kind)


def _checked_context(
    context: Mapping[str, Any] | None, nodes: Sequence[Node]
) -> dict[str, Any]:
    given: Any = {} if context is None else context
    if not isinstance(given, Mapping):
        msg = f"`initial_context` must be a mapping or None, got {shown(given)}"
        raise TypeError(msg)
    taken = [node.name for node in nodes if node.name in given]
    if taken:
        msg = (
            f"`initial_context` has keys that are names of steps: {taken!r}; rename one "
            "or the other"
        )
        raise ValueError(msg)
    return {key: freeze(value) for key, value in given.items()}


def _check_gate(gate: object) -> None:
    if gate is not None and not callable(getattr(gate, "require", None)):
        msg = (
            f"`approval_gate` must be an ApprovalGate or None, got {shown(gate)}; "
            "for example `ApprovalGate(callback)`"
        )
        raise TypeError(msg)
