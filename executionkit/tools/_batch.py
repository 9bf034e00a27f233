"""Many calls at once: workers that take the next call in their own task.

One worker begins. As long as the calls it takes end without waiting, it runs them all;
whenever one waits, the next worker is started, up to the limit. So a call that waits
for a permit, a slot or its tool holds up no other one, and calls that wait for nothing
cost no task.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
)
from contextvars import Context, copy_context
from inspect import CORO_CREATED, getcoroutinestate
from types import coroutine
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from executionkit.calls import ToolCall, ToolResult
from executionkit.tools._running import wait_within
from executionkit.tools._settle import cancelled_result, odd_result

if TYPE_CHECKING:
    from executionkit.tools._gate import Gate
    from executionkit.tools._running import Workshop
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("BREATH", "Batch", "OpenCall", "Sink")

BREATH: Final = 256
"""Calls in a row that end at once, after which the event loop gets a turn."""

OpenCall: TypeAlias = "Callable[[int, Any], tuple[Callable[[ToolRequest], Any], ToolRequest] | ToolResult]"
"""Gives what makes the first step of a call, and its request; or the result of a call
that cannot run. The first step gives the result, or a coroutine of it."""

Sink: TypeAlias = "Callable[[int, ToolResult], Awaitable[None] | None]"
"""Takes the result of the call at a place; what it returns is awaited."""


class Batch:
    """Runs the calls of one source. Use once.

    Args:
        source: (place, call) of each call, or calls that have to be waited for; read
            only as fast as calls are run.
        open_call: Gives what runs a call and its request, or its result.
        sink: Takes the results as they come.
        shop: Where tools at work are booked.
        total: How many calls there are, when that is known.
        gate: What all calls have to pass in the end: while it is full, no further
            ones need to be begun.
        limit: Calls begun at once; None = no limit.
        context: The context variables that each call gets a copy of.
    """

    __slots__ = (
        "_apart",
        "_begun",
        "_context",
        "_done",
        "_error",
        "_failure",
        "_fresh",
        "_gate",
        "_limit",
        "_open",
        "_reading",
        "_shop",
        "_sink",
        "_source",
        "_tasks",
        "_total",
        "is_cancelled",
    )

    def __init__(
        self,
        source: Iterator[tuple[int, Any]] | AsyncIterator[Any],
        open_call: OpenCall,
        sink: Sink,
        shop: Workshop,
        *,
        total: float = math.inf,
        gate: Gate | None = None,
        limit: int | None = None,
        context: Context | None = None,
    ) -> None:
        self._source = source
        self._open = open_call
        self._sink = sink
        self._shop = shop
        self._total = total
        self._gate = gate
        self._begun = 0
        self._fresh = 0  # workers that have not begun
        self._limit = math.inf if limit is None else limit
        self._context = copy_context() if context is None else context
        self._tasks: set[asyncio.Task[None]] = set()
        self._apart: set[asyncio.Task[None]] = set()
        """Workers that wait for the source or for a reader, and not for a call."""
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failure: BaseException | None = None
        """What a tool left with that is no result."""
        self._error: BaseException | None = None
        """What the source raised; raised again when what has begun has ended."""
        self._reading: asyncio.Lock | None = None
        self.is_cancelled: bool = False
        shop.look_around()

    def start(self) -> None:
        """Let the first worker begin."""
        self._shop.batches.add(self)
        if self._gate is not None:
            self._gate.looks = False
        self._hire()

    async def run(self) -> None:
        """Run all calls; when the caller is cancelled, so are they, and awaited."""
        self.start()
        await self.join()

    def look_again(self) -> None:
        """There is room again where there was none."""
        if self._tasks and self._done.get_loop() is asyncio.get_running_loop():
            self._waits()

    def interrupt(self) -> None:
        """End the calls that wait for something else than their tool; others go on."""
        at_work = {item.task for item in self._shop.running}
        for task in self._tasks - self._apart - at_work:
            if getcoroutinestate(task.get_coro()) != CORO_CREATED:  # type: ignore[arg-type]
                task.cancel()

    async def join(self) -> None:
        """Wait for the end of all calls; when the caller is cancelled, so are they."""
        try:
            await self._done
        except asyncio.CancelledError:
            self._done = asyncio.get_running_loop().create_future()
            await self.cancel()
            raise
        if self._failure is not None:
            await self.cancel()  # nobody gets the results of the others
            raise self._failure
        if self._error is not None:
            raise self._error

    def _is_fatal(self, exc: BaseException) -> bool:
        """Whether what the source raised ends the calls at work, too."""
        return self.is_cancelled or isinstance(exc, (KeyboardInterrupt, SystemExit))

    async def cancel(self) -> None:
        """Cancel the calls at work, and wait for their ends: a grace period at most.

        Cancelled itself, it waits no longer.
        """
        self.is_cancelled = True
        self._total = 0
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        clock, grace = self._shop.clock, self._shop.grace
        try:
            left = await wait_within(tasks, grace, clock)
        finally:
            for item in list(self._shop.running):
                if item.task in tasks:
                    item.leave()
        if left:
            await wait_within(left, grace, clock)

    def _hire(self) -> None:
        # Not by the loop's factory: with an eager one each worker would begin inside
        # of the one before, and a thousand of them overflow the stack.
        task = asyncio.Task(self._work(), loop=asyncio.get_running_loop())
        self._tasks.add(task)
        self._fresh += 1
        task.add_done_callback(self._dismissed)

    def _dismissed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._apart.discard(task)
        if not task.cancelled():
            self._failure = self._failure or task.exception()
        elif not self.is_cancelled:  # by nobody here: results may be missing
            self._failure = self._failure or asyncio.CancelledError()
        if self._failure is not None and not self._done.done():
            self._done.set_result(None)
        if self._tasks:
            return
        self._shop.batches.discard(self)
        if self._gate is not None:
            self._gate.hungry.pop(self, None)
        if not self._done.done():
            self._done.set_result(None)

    def _waits(self) -> None:
        """A call has to wait: somebody else takes the next one."""
        gate = self._gate
        if self._begun >= self._total or len(self._tasks) >= self._limit:
            return
        if gate is None or gate.room > self._fresh:
            self._hire()
        else:  # its workers may all wait elsewhere when there is room
            gate.hungry[self] = None

    async def _work(self) -> None:  # noqa: C901 - calls cost time here
        self._fresh -= 1
        if isinstance(self._source, AsyncIterator):
            await self._work_and_wait(self._source)
            return
        task: Any = asyncio.current_task()
        sink, begin, spoilt = self._sink, self._begin, self._shop.spoilt
        in_a_row = 0
        call: Any = None
        try:
            for place, call in self._source:
                self._begun += 1
                result = begin(place, call)
                if type(result) is not ToolResult:
                    try:
                        result = await result
                    except GeneratorExit as exc:
                        result = self._closed(call, exc)
                    in_a_row = 0
                    if spoilt and task in spoilt:
                        self._hire()
                        await self._hand_out(place, result, task)
                        return
                taken = sink(place, result)
                if taken is not None:
                    self._waits()
                    await self._hand_out(place, result, task, taken)
                call = None  # noqa: PLW2901 - now it is the source that may fail
                in_a_row += 1
                if in_a_row >= BREATH:
                    in_a_row = 0
                    await _breathe()
                if self.is_cancelled:
                    return
                if task.cancelling():
                    await self._answer(task)
        except BaseException as exc:
            if call is not None or self._is_fatal(exc):
                raise
            self._error = self._error or exc
        self._total = 0

    async def _work_and_wait(self, source: AsyncIterator[Any]) -> None:
        """The same for a source that has to be waited for; one worker reads at a time."""
        task: Any = asyncio.current_task()
        reading = self._reading = self._reading or asyncio.Lock()
        while True:
            self._apart.add(task)
            async with reading:
                if self.is_cancelled or not self._total:
                    return
                try:
                    call = await anext(source)
                except StopAsyncIteration:
                    self._total = 0
                    return
                except BaseException as exc:
                    if self._is_fatal(exc):
                        raise
                    self._error = self._error or exc
                    self._total = 0
                    return
                place, self._begun = self._begun, self._begun + 1
            self._apart.discard(task)
            self._waits()
            result = self._begin(place, call)
            if type(result) is not ToolResult:
                try:
                    result = await result
                except GeneratorExit as exc:
                    result = self._closed(call, exc)
            if task in self._shop.spoilt:
                self._hire()
                await self._hand_out(place, result, task)
                return
            await self._hand_out(place, result, task)
            if task.cancelling():
                await self._answer(task)

    async def _hand_out(
        self,
        place: int,
        result: ToolResult,
        task: asyncio.Task[None],
        taken: Awaitable[None] | None = None,
    ) -> None:
        """Wait until a result is taken, whatever the tool does to the task it ran in."""
        self._apart.add(task)
        taken = taken or self._sink(place, result)
        while taken is not None:
            if self.is_cancelled:  # nobody takes results any more
                if isinstance(taken, Coroutine):
                    taken.close()
                break
            try:
                await taken
            except asyncio.CancelledError:
                if self.is_cancelled:
                    raise
                await self._answer(task)
                taken = self._sink(place, result)
            else:
                break
        self._apart.discard(task)

    async def _answer(self, task: asyncio.Task[Any]) -> None:
        """A tool has cancelled the task it ran in: that is no matter of other calls."""
        try:
            await _breathe()
        except asyncio.CancelledError:
            if self.is_cancelled:
                raise
        while task.cancelling():
            task.uncancel()

    def _begin(self, place: int, call: ToolCall) -> Any:
        """The result of a call that ends at once; else what is left of it."""
        opened = self._open(place, call)
        if isinstance(opened, ToolResult):
            return opened
        first, request = opened
        context = self._context.copy()
        try:
            coro = context.run(first, request)
            if type(coro) is ToolResult:
                return coro
            waits_for = context.run(coro.send, None)
        except StopIteration as stop:
            return stop.value
        except asyncio.CancelledError as exc:
            return cancelled_result(request, exc, self._shop)
        except BaseException as exc:  # noqa: BLE001 - raised again if need be
            return odd_result(request.call, exc, request.attempts)
        self._waits()
        return self._rest(request, context, coro, waits_for)

    @coroutine
    def _rest(
        self,
        request: ToolRequest,
        context: Context,
        coro: Coroutine[Any, Any, ToolResult],
        waits_for: Any,
    ) -> Generator[Any, Any, Any]:
        """Step the rest of a call, each step in the call's own context."""
        run, send = context.run, coro.send
        thrown: BaseException | None = None
        try:
            while True:
                thrown, sent = None, None
                try:
                    sent = yield waits_for
                except BaseException as exc:  # noqa: BLE001 - handed on to the call
                    thrown = exc
                if isinstance(thrown, GeneratorExit):
                    coro.close()
                    raise thrown  # noqa: TRY301 - as it came
                if thrown is None:
                    waits_for = run(send, sent)
                else:
                    waits_for = run(coro.throw, thrown)
        except StopIteration as stop:
            return stop.value
        except asyncio.CancelledError as exc:
            # Who cancels the batch says so first: any other one is the tool's own.
            if self.is_cancelled:
                raise
            return cancelled_result(request, exc, self._shop)
        except BaseException as exc:
            if isinstance(thrown, GeneratorExit):
                raise
            return odd_result(request.call, exc, request.attempts)

    def _closed(self, call: Any, exc: GeneratorExit) -> ToolResult:
        """The result of a call that a `GeneratorExit` came to while it waited."""
        loop = asyncio._get_running_loop()  # noqa: SLF001 - None instead of an error
        if loop is None or asyncio.current_task(loop) not in self._tasks:
            raise exc  # the event loop has ended, and closes what is left
        return odd_result(call, exc, attempts=1)


@coroutine
def _breathe() -> Generator[None, None, None]:
    """Give the event loop a turn."""
    yield
