"""How long each call of a plan may take, so that no chain outlives the deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executionkit.tools._scheduling.graph import longest_through

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executionkit.tools._scheduling.graph import Graph
    from executionkit.tools._scheduling.values import ToolCallSpec

__all__ = ("call_timeouts",)


def call_timeouts(
    graph: Graph,
    calls: Sequence[ToolCallSpec],
    lengths: Sequence[int],
    starts: Sequence[int],
    remaining: int | None,
) -> dict[str, int]:
    """Milliseconds for each scheduled call (`starts` is not below 0).

    Without a deadline: the calls' own timeouts alone. With one, each call gets the share
    of the remaining time that it has in the longest chain through it; so the timeouts
    along any chain come to the remaining time at most. Own timeouts are kept where the
    longest chain of them fits; where it does not, the estimates share the time, and an
    own timeout can only shorten. The least timeout is 1 ms, and 0 when no time is left.
    """
    alive = [number for number, start in enumerate(starts) if start >= 0]
    wishes = [call.timeout_ms for call in calls]
    if remaining is None:
        return {
            calls[number].call_id: wish
            for number in alive
            if (wish := wishes[number]) is not None
        }
    shares = _shares(graph, lengths, wishes, starts, remaining) if remaining else starts
    timeouts: dict[str, int] = {}
    for number in alive:
        share = shares[number] if remaining else 0
        wish = wishes[number]
        timeouts[calls[number].call_id] = share if wish is None else min(wish, share)
    return timeouts


def _shares(
    graph: Graph,
    lengths: Sequence[int],
    wishes: Sequence[int | None],
    starts: Sequence[int],
    remaining: int,
) -> list[int]:
    # A call of 0 ms needs a timeout too; a skipped one has no share.
    needs = [
        (length or 1) if start >= 0 else 0
        for length, start in zip(lengths, starts, strict=True)
    ]
    if any(wishes):
        asked = [
            need if not need or wish is None else min(wish, remaining)
            for need, wish in zip(needs, wishes, strict=True)
        ]
        through = longest_through(graph, asked)
        if max(through) <= remaining:
            return _in_proportion(asked, through, remaining)
        needs = [
            need if wish is None else min(need, wish)
            for need, wish in zip(needs, wishes, strict=True)
        ]
    through = longest_through(graph, needs)
    if max(through, default=0) <= remaining:
        return _in_proportion(needs, through, remaining)
    # Too little time: 1 ms for each call of a chain, the rest in proportion.
    depth = longest_through(graph, [min(need, 1) for need in needs])
    return [
        1 + need * max(0, remaining - calls) // (whole or 1)
        for need, whole, calls in zip(needs, through, depth, strict=True)
    ]


def _in_proportion(
    needs: Sequence[int], through: Sequence[int], remaining: int
) -> list[int]:
    return [
        need * remaining // whole if whole else 0
        for need, whole in zip(needs, through, strict=True)
    ]
