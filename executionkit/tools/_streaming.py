"""Streaming tools: each item is handed on as it comes; the last one is the value."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator
from typing import TYPE_CHECKING, Any, Final

from executionkit.calls import ToolResult, new_id, render_result

if TYPE_CHECKING:
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("Drain", "Emitter", "collect", "drain", "put", "shown_items")

ITEMS: Final = "items"
"""Where a request keeps what its tool has yielded."""

_MAX_KEPT: Final = 100
_MAX_UNREAD: Final = 64
_log = logging.getLogger("executionkit")


def _kept(request: ToolRequest) -> deque[Any]:
    if request.state is None:
        request.state = {}
    kept: deque[Any] = deque(maxlen=_MAX_KEPT)
    request.state[ITEMS] = kept
    return kept


def shown_items(request: ToolRequest) -> list[Any] | None:
    """The newest items, as far as they are JSON; None when there are none."""
    kept = None if request.state is None else request.state.get(ITEMS)
    return [_as_json(item) for item in kept] if kept else None


def _as_json(item: Any) -> Any:
    try:
        render_result(item)
    except (TypeError, ValueError, RecursionError):
        return type(item).__name__
    return item


async def collect(stream: AsyncIterator[Any], request: ToolRequest) -> Any:
    """Run an async generator to its end; its last item.

    The next item is asked for when the one before has been taken: a slow reader slows
    the tool down. Whatever happens, the generator is closed.
    """
    kept = _kept(request)
    last: Any = None
    try:
        async for item in stream:
            last = item
            kept.append(item)
            if request.emit is not None:
                taken = request.emit(request, item)
                if taken is not None:
                    await taken
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    return last


class Drain:
    """A sync generator in a thread, and its reader on the event loop."""

    def __init__(self, request: ToolRequest, loop: asyncio.AbstractEventLoop) -> None:
        self._request = request
        self._loop = loop
        self._kept = _kept(request)
        self._left = False
        # A generator must not be faster than its reader for ever: memory is finite.
        self._room = threading.Semaphore(_MAX_UNREAD)
        self._unread: deque[Any] = deque()
        self._reader: asyncio.Task[None] | None = None
        self._outcome: Any = None

    def ended(self, outcome: Any) -> Any:
        """In the thread: `outcome`, which nobody may want any more."""
        self._outcome = outcome
        if self._left:
            self._drop()
        return outcome

    def leave(self) -> None:
        """Nobody waits any more: the generator ends at its next item."""
        self._left = True
        self._room.release()

    def run(self, generator: Generator[Any, Any, Any]) -> Any:
        """In the thread: what the generator returns, else its last item."""
        last: Any = None
        try:
            while not self._left:
                try:
                    last = next(generator)
                except StopIteration as stop:
                    return last if stop.value is None else stop.value
                self._kept.append(last)
                if self._request.emit is not None:
                    self._room.acquire()
                    self._loop.call_soon_threadsafe(self._take, last)
        finally:
            generator.close()
        return None

    async def all_read(self) -> None:
        """Wait until every item has been taken."""
        while self._reader is not None:
            await asyncio.shield(self._reader)

    def stop_reading(self) -> None:
        """Drop what was not taken."""
        self.leave()
        self._drop()
        self._unread.clear()
        if self._reader is not None:
            self._reader.cancel()

    def _drop(self) -> None:
        # A coroutine that is never awaited would be warned of as the tool's mistake.
        if inspect.iscoroutine(self._outcome):
            self._outcome.close()

    def _take(self, item: Any) -> None:
        if self._left:
            return
        self._unread.append(item)
        if self._reader is None:
            # Not by the loop's factory: an eager one would have read before it returns.
            self._reader = asyncio.Task(self._read(), loop=self._loop)

    async def _read(self) -> None:
        emit = self._request.emit
        try:
            while self._unread and emit is not None:
                taken = emit(self._request, self._unread.popleft())
                if taken is not None:
                    await taken
                self._room.release()
        finally:
            self._reader = None


def drain(outcome: Any, box: Drain) -> Any:
    """In the thread: run what a plain function gave, when that is a generator."""
    if isinstance(outcome, Generator) and not inspect.isawaitable(outcome):
        outcome = box.run(outcome)
    return box.ended(outcome)


def put(
    queue: asyncio.Queue[ToolResult | None], result: ToolResult
) -> Awaitable[None] | None:
    """Put a result in; what is returned, when there is no room, must be awaited."""
    if queue.full():
        return queue.put(result)
    queue.put_nowait(result)
    return None


class Emitter:
    """Makes a partial result of each item of a streaming tool."""

    __slots__ = ("_queue",)

    def __init__(self, queue: asyncio.Queue[ToolResult | None]) -> None:
        self._queue = queue

    def __call__(self, request: ToolRequest, item: Any) -> Awaitable[None] | None:
        if request.stream_id is None:
            request.stream_id = new_id()
        call = request.call
        result = ToolResult(
            tool=call.name,
            result=item,
            call_id=call.id,
            is_partial=True,
            stream_id=request.stream_id,
            attempts=request.attempts,
        )
        return put(self._queue, result)
