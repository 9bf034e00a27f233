"""Tools that are generators: each value is progress, the last one is the result."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from executionkit._redact import describe_exception
from executionkit.calls import ToolCall, render_result

if TYPE_CHECKING:
    import asyncio

__all__ = ("Progress", "ProgressCallback")

ProgressCallback: TypeAlias = Callable[[ToolCall, Any], None]
"""Called on the event loop with each item that a generator tool yields."""

_MAX_ITEMS: Final = 100
_MAX_UNREAD: Final = 64
_log = logging.getLogger("executionkit")


class Progress:
    """Takes what a generator yields: keeps it, reports it, closes the generator."""

    def __init__(
        self,
        call: ToolCall,
        report: ProgressCallback | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._call = call
        self._report = report
        self._loop = loop
        self._kept: deque[Any] = deque(maxlen=_MAX_ITEMS)
        self._left = False
        # A generator must not be faster than the loop for ever: memory is finite.
        self._room = threading.Semaphore(_MAX_UNREAD)

    def leave(self) -> None:
        """Nobody waits any more: a generator in a thread ends at its next value."""
        self._left = True
        self._room.release()

    def items(self) -> list[Any]:
        """The newest values, as far as they are JSON; else their types' names."""
        return [_as_json(item) for item in list(self._kept)]

    async def collect(self, generator: AsyncGenerator[Any, Any]) -> Any:
        last: Any = None
        try:
            async for item in generator:
                last = item
                self._kept.append(item)
                self._tell(item)
        finally:
            await generator.aclose()
        return last

    def drain(self, generator: Generator[Any, Any, Any]) -> Any:
        """Run a sync generator to its end; what it returns counts more than yields."""
        last: Any = None
        try:
            while not self._left:
                try:
                    last = next(generator)
                except StopIteration as stop:
                    return last if stop.value is None else stop.value
                self._kept.append(last)
                if self._report is not None:
                    self._room.acquire()
                    self._loop.call_soon_threadsafe(self._read, last)
        finally:
            generator.close()
        return None

    def _read(self, item: Any) -> None:
        self._room.release()
        self._tell(item)

    def _tell(self, item: Any) -> None:
        if self._report is None or self._left:
            return
        try:
            self._report(self._call, item)
        except Exception as exc:  # noqa: BLE001 - a user's callback must not end the tool
            _log.warning("the progress callback failed: %s", describe_exception(exc))


def _as_json(item: Any) -> Any:
    try:
        render_result(item)
    except (TypeError, ValueError, RecursionError):
        return type(item).__name__
    return item
