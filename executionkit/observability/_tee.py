"""Several sinks at once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Sequence
from typing import Any

from executionkit.observability._events import TraceCallback, TraceEvent, log_once

__all__ = ("TeeTraceSink",)


class TeeTraceSink:
    """Gives each event to several sinks, in order; one that fails stops no other.

    Args:
        *sinks: Sync or async callbacks, as `trace=` takes them.

    Raises:
        TypeError: When one cannot be called.
    """

    def __init__(self, *sinks: TraceCallback) -> None:
        for place, sink in enumerate(sinks):
            given: object = sink
            if not callable(given):
                msg = f"`sinks[{place}]` must be callable, got {type(given).__name__}"
                raise TypeError(msg)
        self._sinks: Sequence[TraceCallback] = sinks

    def __call__(self, event: TraceEvent) -> Awaitable[None] | None:
        waiting: list[tuple[Any, Awaitable[None]]] = []
        for sink in self._sinks:
            try:
                outcome = sink(event)
            except Exception as exc:  # noqa: BLE001 - a sink never changes the others
                log_once(sink, exc)
                continue
            if outcome is not None and inspect.isawaitable(outcome):
                waiting.append((sink, outcome))
        return _await_all(waiting) if waiting else None


async def _await_all(waiting: Sequence[tuple[Any, Awaitable[None]]]) -> None:
    done = 0
    try:
        for sink, outcome in waiting:
            done += 1
            try:
                await outcome
            except asyncio.CancelledError as exc:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                log_once(sink, exc)  # the sink's own
            except Exception as exc:  # noqa: BLE001 - a sink never changes the others
                log_once(sink, exc)
    finally:
        for _, left in waiting[done:]:
            if inspect.iscoroutine(left):
                left.close()
