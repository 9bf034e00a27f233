"""What of a run of steps is on record: attempts, approvals, and the graph."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from executionkit._clock import Clock, get_clock
from executionkit._journal.values import part
from executionkit._keys import canonical
from executionkit.approval import ApprovalDecision, ApprovalGate, ApprovalRequest
from executionkit.errors import (
    ApprovalPendingError,
    BudgetExhaustedError,
    DeadlineExceededError,
)
from executionkit.journal import Effect, Journal, Outcome, shown
from executionkit.types import TokenUsage

if TYPE_CHECKING:
    import asyncio

    from executionkit._clock import TimerHandle
    from executionkit._workflow.values import Node

__all__ = ("ResumedClock", "StepsRecord")

_ENDS = (ApprovalPendingError, BudgetExhaustedError, DeadlineExceededError)
"""Failures that come from outside: the next run may fare better."""


class StepsRecord:
    """One run of steps, as a part of a journal.

    Args:
        journal: The journal.
        kind: `workflow_step` or `plan_step`.
    """

    __slots__ = ("_journal", "replayed", "replayed_cost")

    def __init__(self, journal: Journal, kind: str) -> None:
        self._journal = journal.enter(kind.removesuffix("_step"))
        self.replayed: int = 0
        """Attempts whose outcome came from the journal."""

        self.replayed_cost: TokenUsage = TokenUsage()
        """What these had cost."""

    def note_replayed(self, cost: TokenUsage) -> None:
        """The outcome of an attempt came from the journal."""
        self.replayed += 1
        self.replayed_cost += cost

    async def check_graph(self, nodes: Sequence[Node]) -> None:
        """Refuse another graph than that of the earlier runs.

        Raises:
            JournalMismatchError: When steps came, went, or depend on others now.
        """
        graph = sorted(
            [node.name, sorted(node.needs), node.on_skipped, node.may_fail]
            for node in nodes
        )

        async def do() -> None:
            return None

        effect = Effect(
            place="graph",
            kind="graph",
            asked=graph,
            words=shown("steps", {name: needs for name, needs, *_ in graph}),
            is_repeatable=True,
        )
        await self._journal.perform(effect, do)

    async def attempt(
        self,
        node: Node,
        number: int,
        given: Mapping[str, Any],
        do: Callable[[], Awaitable[Outcome]],
    ) -> Outcome:
        """The outcome of one attempt at a step: that on record, or that of `do`."""
        effect = Effect(
            place=_place(node, number),
            kind="step",
            asked=[node.name, _told(given)],
            words=shown(f"{node.name}, attempt {number}"),
            is_repeatable=node.idempotent,
            keeps=lambda failure: not isinstance(failure, _ENDS),
        )
        return await self._journal.perform(effect, do)

    async def give_up(self, node: Node, number: int) -> None:
        """The run ends with the failure of this attempt: the next one repeats it."""
        await self._journal.give_up(_place(node, number))

    async def failed_at(self, node: Node, number: int) -> float | None:
        """When an attempt has failed; wall-clock seconds."""
        return await self._journal.ended_at(_place(node, number))

    async def ask(self, node: Node, gate: Any, request: ApprovalRequest) -> Any:
        """The decision on record, or that of the gate; what it raises."""
        place = f"{part(node.name)}:approval"
        name = self._journal.scope(place).idempotency_key
        asked = replace(request, run_id=self._journal.run)

        async def do() -> Any:
            if isinstance(gate, ApprovalGate):
                return await gate.require(asked, effect=name)
            return await gate.require(asked)

        effect = Effect(
            place=place,
            kind="approval",
            asked=[request.action, request.subject, _told(request.arguments or {})],
            words=shown(f"{request.action} {request.subject}"),
            is_repeatable=True,
            keeps=lambda failure: node.may_fail and not isinstance(failure, _ENDS),
            pack=_pack,
            unpack=ApprovalDecision.from_dict,
        )
        return (await self._journal.perform(effect, do)).value


def _place(node: Node, number: int) -> str:
    return f"{part(node.name)}:{number}"


def _told(given: Mapping[str, Any]) -> dict[str, str]:
    """What a step is called with; what has no canonical form counts by its type."""
    return {
        name: canonical(value) or f"<{type(value).__qualname__}>"
        for name, value in given.items()
    }


def _pack(decision: Any) -> dict[str, Any]:
    if isinstance(decision, ApprovalDecision):
        return decision.to_dict()
    return ApprovalDecision(approved=True).to_dict()  # `require` has let it through


class ResumedClock:
    """A clock for pauses between attempts, the first of which were made earlier.

    The time since an attempt failed is a part of the pause after it.
    """

    __slots__ = ("_clock", "failed_at")

    def __init__(self) -> None:
        self._clock: Clock = get_clock()
        self.failed_at: float | None = None
        """When the latest attempt failed, when that was in an earlier run."""

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall(self) -> float:
        return self._clock.wall()

    async def sleep(self, seconds: float) -> None:
        if self.failed_at is not None:
            seconds -= max(0.0, self._clock.wall() - self.failed_at)
            self.failed_at = None
        await self._clock.sleep(max(0.0, seconds))

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        return self._clock.call_later(seconds, callback)

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        return self._clock.timeout(seconds)
