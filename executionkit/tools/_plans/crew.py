"""The workers that run a plan: each takes the next call that is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from executionkit.calls import ToolCall, ToolResult
from executionkit.tools._batch import BREATH, Batch, OpenCall, breathe
from executionkit.tools._running import wait_within

if TYPE_CHECKING:
    from contextvars import Context

    from executionkit.tools._plans.desk import Desk
    from executionkit.tools._runs import Paths

__all__ = ("Crew",)


class Crew(Batch):
    """Runs the calls that a desk hands out, until it has no more. Use once.

    One worker begins. Whenever a call has to wait and another one is ready, the next
    worker is started; one that finds nothing ready ends. So there is never a task for a
    call that waits for what it needs, and a chain of any length is one worker's.

    Args:
        desk: Hands out calls, takes results.
        open_call: As for a batch.
        paths: Where tools at work are booked, and how many may be.
        context: The context variables that each call gets a copy of.
    """

    __slots__ = ("_desk", "_least", "_telling")

    def __init__(
        self, desk: Desk, open_call: OpenCall, paths: Paths, context: Context
    ) -> None:
        gate = paths.gate
        super().__init__(
            iter(()), open_call, _nothing, paths.shop, gate=gate, context=context
        )
        self._desk = desk
        # So many may stand in front of the gate: others may be inside for long.
        self._least = 0 if gate is None else gate.resources[0].limit or 0
        self._telling: set[asyncio.Future[None]] = set()

    async def cancel(self) -> None:
        """Cancel the calls at work and wait for their ends, a grace period at most.

        Callbacks that were told of a result may finish within that time.
        """
        try:
            await super().cancel()
        finally:
            left = set(self._telling)
            for told in left:
                told.cancel()
        if left:
            await wait_within({*left, *self._tasks}, self._shop.grace, self._shop.clock)

    def _waits(self) -> None:
        gate = self._gate
        if (
            not self._fresh
            and not self.is_cancelled
            and self._desk.queue.has_ready
            and (gate is None or gate.room > 0 or len(self._tasks) < self._least)
        ):
            self._hire()

    async def _work(self) -> None:
        self._fresh -= 1
        task: Any = asyncio.current_task()
        desk = self._desk
        next_ready = desk.queue.next_ready
        in_a_row = 0
        while (spec := next_ready()) is not None:
            result: Any = desk.prepare(spec)
            if type(result) is ToolCall:
                result = self._begin(0, result)
                if type(result) is not ToolResult:
                    result = await result
                    in_a_row = 0
            told = desk.tell(desk.settle(spec, result))
            if told is not None:
                self._waits()
                await self._told(told)
            in_a_row += 1
            if in_a_row >= BREATH:
                in_a_row = 0
                await breathe()
            if self.is_cancelled:
                return
            if task.cancelling():
                await self._answer(task)

    async def _told(self, told: Awaitable[None]) -> None:
        """Wait for a callback; one that knows of a result is not cut off by a cancel."""
        inner: asyncio.Future[None] = asyncio.ensure_future(told)
        self._telling.add(inner)
        try:
            await asyncio.shield(inner)
        except asyncio.CancelledError:
            if inner.done() and not self.is_cancelled:
                return  # the callback's own
            await asyncio.wait({inner})
            raise
        finally:
            self._telling.discard(inner)


def _nothing(_place: int, _result: ToolResult) -> None:
    """Results go to the desk."""
