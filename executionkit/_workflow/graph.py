"""The graph of steps: checked as a whole before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from executionkit.errors import WorkflowError
from executionkit.tools._scheduling.graph import PlanError
from executionkit.tools._scheduling.ready import ReadyQueue
from executionkit.tools._scheduling.values import ToolCallSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from executionkit._workflow.values import Node

__all__ = ("ancestors_of", "check_graph", "longest_chain", "queue_of")

_SHOWN: Final = 10


def queue_of(nodes: Iterable[Node]) -> ReadyQueue:
    """The steps in the order in which they can start, as others end.

    First those with the longest chain of steps behind them.

    Raises:
        PlanError: When there is no such order.
    """
    calls = [ToolCallSpec(node.name, "step", depends_on=node.needs) for node in nodes]
    return ReadyQueue(calls, default_est_ms=1)


def check_graph(nodes: Sequence[Node]) -> None:
    """Refuse steps that cannot be brought into any order.

    Raises:
        WorkflowError: One for all that is wrong.
    """
    try:
        queue_of(nodes)
    except PlanError as exc:
        raise _refusal(exc.details or {}) from None


def _refusal(details: Mapping[str, Any]) -> WorkflowError:
    twice = details.get("duplicate_ids", [])
    selves = details.get("self_dependencies", [])
    unknown = details.get("unknown_dependencies", {})
    cycles = details.get("cycles", [])
    facts = {
        "duplicate_names": twice,
        "self_dependencies": selves,
        "unknown_dependencies": unknown,
        "cycles": cycles,
    }
    parts: list[str] = []
    if twice:
        parts.append(f"step names must be unique, given more than once: {_list(twice)}")
    if selves:
        parts.append(f"steps that depend on themselves: {_list(selves)}")
    for name, missing in list(unknown.items())[:_SHOWN]:
        parts.append(f"{name!r} depends on unknown steps: {_list(missing)}")
    if len(unknown) > _SHOWN:
        parts.append(f"{len(unknown) - _SHOWN} more steps depend on unknown ones")
    parts += [f"a cycle: {_list(members)}" for members in cycles[:_SHOWN]]
    if len(cycles) > _SHOWN:
        parts.append(f"{len(cycles) - _SHOWN} more cycles")
    return WorkflowError(
        f"the dependencies could not be resolved: {'; '.join(parts)}",
        metadata={key: value for key, value in facts.items() if value},
    )


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def ancestors_of(node: Node, by_name: Mapping[str, Node]) -> list[str]:
    """All that `node` depends on, directly or not; nearest first, each one once."""
    found = dict.fromkeys(node.needs)
    todo = list(found)
    for name in todo:  # grows while it is walked
        for other in by_name[name].needs:
            if other not in found:
                found[other] = None
                todo.append(other)
    return todo


def longest_chain(nodes: Sequence[Node]) -> int:
    """The number of steps in the longest chain of a checked graph."""
    needs = {node.name: node.needs for node in nodes}
    queue = queue_of(nodes)
    depth: dict[str, int] = {}
    while (call := queue.next_ready()) is not None:
        name = call.call_id
        depth[name] = 1 + max([depth[other] for other in needs[name]], default=0)
        queue.finish(name, ok=True)
    return max(depth.values(), default=0)
