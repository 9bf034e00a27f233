"""The workers that run a plan: each takes the next call that is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from executionkit.calls import ToolCall, ToolResult
from executionkit.tools._batch import BREATH, Batch, OpenCall
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

    __slots__ = ("_desk", "_telling")

    def __init__(
        self, desk: Desk, open_call: OpenCall, paths: Paths, context: Context
    ) -> None:
        shop, gate = paths.shop, paths.gate
        super().__init__(
            iter(()), open_call, _nothing, shop, gate=gate, context=context
        )
        self._desk = desk
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
        # A worker that has not begun takes what is ready, and calls the next one.
        if not self._fresh and self._desk.queue.has_ready:
            super()._waits()

    async def _work(self) -> None:
        self._fresh -= 1
        task: Any = asyncio.current_task()
        desk, spoilt = self._desk, self._shop.spoilt
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
                await self._told(told, task)
            if spoilt and task in spoilt:
                self._hire()
                return
            in_a_row += 1
            if in_a_row >= BREATH:
                in_a_row = 0
                await self._answer(task)
            if self.is_cancelled:
                return
            if task.cancelling():
                await self._answer(task)

    async def _told(self, told: Awaitable[None], task: asyncio.Task[None]) -> None:
        """Wait for a callback; one that knows of a result is not cut off by a cancel."""
        inner: asyncio.Future[None] = asyncio.ensure_future(told)
        self._telling.add(inner)
        self._apart.add(task)
        while not inner.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({inner})
        self._telling.discard(inner)
        self._apart.discard(task)


def _nothing(_place: int, _result: ToolResult) -> None:
    """Results go to the desk."""
