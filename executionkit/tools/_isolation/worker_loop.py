"""The event loop of a worker: made for its first async tool, and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextvars import Context
from typing import Any

__all__ = ("Tasks",)


class Tasks:
    """Runs one awaitable after the other, each in the context of its call.

    Args:
        stopped: What is raised when one was cancelled with `cancel`.
    """

    def __init__(self, stopped: type[BaseException]) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._stopped = stopped
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    def cancel(self) -> bool:
        """Cancel what runs, from a signal handler; False when nothing can be."""
        task = self._task
        if task is None or self._is_cancelled:
            return False
        self._is_cancelled = True
        task.cancel()
        self._loop.call_soon_threadsafe(lambda: None)  # wakes it up
        return True

    def run(self, awaitable: Awaitable[Any], context: Context) -> Any:
        """The value of `awaitable`; what it left running is cancelled and awaited."""
        loop = self._loop
        self._task = loop.create_task(_awaited(awaitable), context=context)
        try:
            return loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            if self._is_cancelled:
                raise self._stopped from None
            raise
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._task = None


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
