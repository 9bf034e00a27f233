"""Serving standard input and output, and ending in time."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final

from executionkit.mcp._server.pipes import (
    PipeReader,
    PipeWriter,
    taken_standard_streams,
)

__all__ = ("run_stdio", "stopped_by_signals")

_CANCEL_SECONDS: Final = 0.25
_FLUSH_SECONDS: Final = 0.15


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Generator[None]:
    """Call `stop` for SIGTERM and SIGINT, for a while."""
    loop = asyncio.get_running_loop()
    wanted = [signal.SIGTERM, signal.SIGINT]
    set_here: list[signal.Signals] = []
    before: dict[signal.Signals, Any] = {}
    for one in wanted:
        try:
            loop.add_signal_handler(one, stop)
            set_here.append(one)
        except (NotImplementedError, RuntimeError, ValueError):
            with contextlib.suppress(ValueError):  # not the main thread
                before[one] = signal.signal(
                    one, lambda *_: loop.call_soon_threadsafe(stop)
                )
    try:
        yield
    finally:
        for one in set_here:
            loop.remove_signal_handler(one)
        for one, handler in before.items():
            signal.signal(one, handler)


async def run_stdio(
    serve: Callable[[PipeReader, PipeWriter], Coroutine[Any, Any, None]]
    | Callable[[Any, Any], Awaitable[None]],
    *,
    signals: bool,
    on_end: Callable[[], None] | None = None,
) -> None:
    """Run `serve` over the standard streams, until it ends, nobody reads, or a signal.

    Args:
        serve: Takes a reader and a writer.
        signals: Whether SIGTERM and SIGINT end it.
        on_end: Called when the end begins.
    """
    stop = asyncio.Event()
    with contextlib.ExitStack() as stack:
        in_fd, out_fd = stack.enter_context(taken_standard_streams())
        if signals:
            stack.enter_context(stopped_by_signals(stop.set))
        writer = PipeWriter(out_fd, stop.set)
        reader = PipeReader(in_fd)
        task = asyncio.ensure_future(serve(reader, writer))
        waiter = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if on_end is not None:
                on_end()
            waiter.cancel()
            reader.close()
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
            await writer.flush(_FLUSH_SECONDS)
            writer.close()
        if task.done() and not task.cancelled() and task.exception() is not None:
            kind = type(task.exception()).__name__
            sys.stderr.write(f"mcp: the server failed: {kind}\n")
