"""The calls as a graph of numbers: built, checked, measured. Nothing here recurses."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from executionkit._error_codes import ErrorCode
from executionkit._tool_errors import ToolProcessorError
from executionkit.tools._scheduling.values import ToolCallSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = (
    "Graph",
    "PlanError",
    "build_graph",
    "checked_calls",
    "longest_through",
    "tails",
)

_SHOWN = 10


class PlanError(ToolProcessorError, ValueError):
    """The calls cannot be brought into any order; nothing has been run.

    One error reports all there is. `details` holds, for those kinds that occur,
    `duplicate_ids` and `self_dependencies` (lists of ids), `unknown_dependencies` (id to
    the ids that do not exist), `cycles` (lists of members, without what only waits for
    them) and `too_heavy` (id to a text).
    """

    default_code = ErrorCode.TOOL_VALIDATION_ERROR


class Graph:
    """Calls as the numbers 0 to n - 1, in the order given."""

    __slots__ = ("children", "index", "order", "waiting")

    def __init__(
        self,
        index: dict[str, int],
        children: list[list[int]],
        waiting: list[int],
        order: list[int],
    ) -> None:
        self.index: dict[str, int] = index
        """Call id to number."""
        self.children: list[list[int]] = children
        """Who waits for it. Those without share one empty list."""
        self.waiting: list[int] = waiting
        """For how many calls it waits."""
        self.order: list[int] = order
        """An order in which nothing stands before what it needs."""


def checked_calls(calls: Sequence[ToolCallSpec]) -> tuple[ToolCallSpec, ...]:
    """`calls` as a tuple.

    Raises:
        TypeError: When something in it is no `ToolCallSpec`.
    """
    given = tuple(calls)
    if not set(map(type, given)) <= {ToolCallSpec}:
        wrong = next(call for call in given if type(call) is not ToolCallSpec)
        msg = f"`calls` must hold ToolCallSpec values, got {wrong!r}"
        raise TypeError(msg)
    return given


def build_graph(calls: Sequence[ToolCallSpec], limits: Mapping[str, int]) -> Graph:
    """The graph of `calls`, in O(calls + dependencies).

    Raises:
        PlanError: Ids given twice, unknown ids, cycles, calls heavier than their pool.
    """
    index = {call.call_id: number for number, call in enumerate(calls)}
    nobody: list[int] = []
    children = [nobody] * len(calls)
    sound = len(index) == len(calls) and not (limits and _too_heavy(calls, limits))
    waiting = _link(calls, index, children) if sound else []
    order = _topological(children, waiting)
    if len(order) < len(calls):
        raise _refusal(calls, limits)
    return Graph(index, children, waiting, order)


def _link(
    calls: Sequence[ToolCallSpec], index: dict[str, int], children: list[list[int]]
) -> list[int]:
    """Fill `children`; for how many calls each one waits. Empty = an unknown id."""
    waiting = [0] * len(calls)
    for number, call in enumerate(calls):
        names = call.depends_on
        if not names:
            continue
        waiting[number] = len(names)
        for name in names:
            parent = index.get(name)
            if parent is None:
                return []
            known = children[parent]
            if known:
                known.append(number)
            else:
                children[parent] = [number]
    return waiting


def _topological(children: list[list[int]], waiting: list[int]) -> list[int]:
    order = [number for number, count in enumerate(waiting) if not count]
    left = waiting.copy()
    for number in order:  # grows while it is walked
        for child in children[number]:
            left[child] -= 1
            if not left[child]:
                order.append(child)
    return order


def _too_heavy(
    calls: Sequence[ToolCallSpec], limits: Mapping[str, int]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for call in calls:
        meta = call.metadata
        if meta.weight > 1 and meta.weight > limits.get(meta.pool, meta.weight):
            found[call.call_id] = (
                f"weight {meta.weight} in pool {meta.pool!r} of {limits[meta.pool]}"
            )
    return found


def _refusal(calls: Sequence[ToolCallSpec], limits: Mapping[str, int]) -> PlanError:
    """All that is wrong, in one error. Calls of one id are taken together."""
    needs: dict[str, list[str]] = {}
    twice: dict[str, None] = {}
    for call in calls:
        if call.call_id in needs:
            twice[call.call_id] = None
        needs.setdefault(call.call_id, []).extend(call.depends_on)
    unknown = {
        call_id: missing
        for call_id, names in needs.items()
        if (missing := [name for name in names if name not in needs])
    }
    selves = [call_id for call_id, names in needs.items() if call_id in names]
    cycles = _cycles(needs)
    heavy = _too_heavy(calls, limits)
    parts = [
        _part("ids given to more than one call (name each one apart)", twice),
        _part("calls that depend on themselves", selves),
        _part(
            "dependencies that are no call of the plan",
            [f"{key!r} needs {_shown(names)}" for key, names in unknown.items()],
            quote=False,
        ),
        _part("cycles", [_shown(members) for members in cycles], quote=False),
        _part(
            "calls heavier than their pool",
            [f"{key!r} ({why})" for key, why in heavy.items()],
            quote=False,
        ),
    ]
    details = {
        "duplicate_ids": list(twice),
        "self_dependencies": selves,
        "unknown_dependencies": unknown,
        "cycles": cycles,
        "too_heavy": heavy,
    }
    return PlanError(
        f"the calls cannot be planned: {'; '.join(filter(None, parts))}",
        details={key: value for key, value in details.items() if value},
    )


def _shown(names: Iterable[str], *, quote: bool = True) -> str:
    rest = iter(names)
    first = [repr(name) if quote else name for name in islice(rest, _SHOWN)]
    more = sum(1 for _ in rest)
    return ", ".join(first) + (f" and {more} more" if more else "")


def _part(title: str, names: Iterable[str], *, quote: bool = True) -> str:
    shown = _shown(names, quote=quote)
    return f"{title}: {shown}" if shown else ""


def _cycles(needs: Mapping[str, list[str]]) -> list[list[str]]:
    """The strongly connected components of two calls and more (Tarjan, with a stack)."""
    place = {call_id: number for number, call_id in enumerate(needs)}
    names = list(needs)
    edges = [[place[n] for n in needs[name] if n in place] for name in names]
    seen = [-1] * len(names)
    low = [0] * len(names)
    open_ = bytearray(len(names))
    path: list[int] = []
    found: list[list[int]] = []
    clock = 0
    for root in range(len(names)):
        todo = [] if seen[root] >= 0 else [(root, iter(edges[root]))]
        while todo:
            node, rest = todo[-1]
            if seen[node] < 0:
                seen[node] = low[node] = clock
                clock += 1
                path.append(node)
                open_[node] = 1
            for other in rest:
                if seen[other] < 0:
                    todo.append((other, iter(edges[other])))
                    break
                if open_[other]:
                    low[node] = min(low[node], seen[other])
            else:
                todo.pop()
                if todo:
                    above = todo[-1][0]
                    low[above] = min(low[above], low[node])
                if low[node] == seen[node]:
                    _close(node, path, open_, found)
    return [[names[node] for node in sorted(part)] for part in sorted(found, key=min)]


def _close(
    node: int, path: list[int], open_: bytearray, found: list[list[int]]
) -> None:
    part: list[int] = []
    while not part or part[-1] != node:
        part.append(path.pop())
        open_[part[-1]] = 0
    if len(part) > 1:
        found.append(part)


def tails(graph: Graph, lengths: Sequence[int]) -> list[int]:
    """For each call the length of the longest chain that begins with it."""
    children = graph.children
    tail = list(lengths)
    for node in reversed(graph.order):
        kids = children[node]
        if kids:
            tail[node] += max([tail[kid] for kid in kids])
    return tail


def longest(graph: Graph, lengths: Sequence[int]) -> int:
    """The length of the longest chain; 0 when there is no call."""
    children = graph.children
    head = [0] * len(lengths)
    for node in graph.order:
        reach = head[node] + lengths[node]
        head[node] = reach
        for kid in children[node]:
            if head[kid] < reach:
                head[kid] = reach
    return max(head, default=0)


def longest_through(graph: Graph, lengths: Sequence[int]) -> list[int]:
    """For each call the length of the longest chain that it is part of.

    A skipped call counts as 0: all behind it are skipped too, so that it adds nothing
    to a chain of scheduled ones.
    """
    children = graph.children
    total = tails(graph, lengths)
    head = [0] * len(total)
    for node in graph.order:
        start = head[node]
        reach = start + lengths[node]
        for kid in children[node]:
            if head[kid] < reach:
                head[kid] = reach
        total[node] += start
    return total
