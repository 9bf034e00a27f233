"""What all steps of one run share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from executionkit._clock import get_clock
from executionkit.cost import Budget, CostTracker
from executionkit.errors import JournalError
from executionkit.observability import (
    NO_SPAN,
    Scope,
    SpanScope,
    TraceCallback,
    nobody_records,
)

if TYPE_CHECKING:
    from executionkit._workflow.record import StepsRecord
    from executionkit._workflow.values import Node
    from executionkit.approval import ApprovalGate
    from executionkit.types import TokenUsage

__all__ = ("Shared", "is_tolerated")


class Shared:
    """What all steps of one run share."""

    __slots__ = (
        "_keep_on",
        "_slots",
        "budget",
        "gate",
        "is_closed",
        "kind",
        "record",
        "trace",
        "tracker",
    )

    def __init__(
        self,
        kind: str,
        *,
        max_concurrency: int | None,
        max_cost: TokenUsage | None,
        keep_on: bool,
        gate: ApprovalGate | None,
        trace: TraceCallback | None,
        record: StepsRecord | None = None,
    ) -> None:
        self.kind = kind
        self.tracker = CostTracker()
        self.budget = Budget.from_usage(max_cost)
        self.gate = gate
        self.trace = trace
        self.record = record
        self._keep_on = keep_on
        self.is_closed = False
        """True = nothing more begins."""
        self._slots = (
            None if max_concurrency is None else asyncio.Semaphore(max_concurrency)
        )

    def has_failed(self, node: Node, failure: Exception) -> None:
        """Close the run at once, unless it goes on after failures of such a step."""
        if not (self._keep_on or is_tolerated(node, failure)):
            self.is_closed = True

    async def enter(self, scope: Scope | None) -> None:
        """Wait for a place among the attempts that run at once."""
        if self._slots is None:
            return
        if scope is None or not self._slots.locked():
            await self._slots.acquire()
            return
        now = get_clock().monotonic
        began = now()
        await self._slots.acquire()
        scope.waited("slot", now() - began)

    def leave(self) -> None:
        """Give the place back."""
        if self._slots is not None:
            self._slots.release()

    def step_id(self, name: str) -> str:
        """The id of a step: the same in every run of the same program."""
        return f"{self.kind}:{name}"

    def scope(self, name: str) -> Scope | None:
        """The span of a step; None when nobody watches."""
        if self.trace is None and nobody_records():
            return None
        labels = {"step": name, "call_id": self.step_id(name)}
        span: SpanScope = NO_SPAN
        if not nobody_records():
            word = self.kind.replace("_", " ")
            span = SpanScope(f"{word} {name}", {"executionkit.step.name": name})
        return Scope(self.trace, labels=labels, span=span)

    async def tell(
        self, event: str, name: str, scope: Scope | None = None, **facts: Any
    ) -> None:
        """Emit a trace event of a step."""
        scope = scope or self.scope(name)
        if scope is not None:
            payload = {"step": name, "call_id": self.step_id(name), **facts}
            await scope.tell(f"{self.kind}_{event}", payload)


def is_tolerated(node: Node, failure: BaseException) -> bool:
    """Whether the run goes on as if the step had been left out."""
    return node.may_fail and not isinstance(failure, JournalError)
