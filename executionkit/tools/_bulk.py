"""Very many calls: reading a source, and counting what comes out."""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from executionkit.calls import ToolCall, ToolResult
from executionkit.tools.parsing import parse_calls
from executionkit.types import sealed

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.calls import CallProblem

Entry: TypeAlias = "ToolCall | CallProblem"

__all__ = ("BatchProgress", "counted", "read_calls")


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """How far a batch is."""

    done: int
    """Calls that have ended."""

    failed: int
    """Those of them that failed."""

    seconds: float
    """Since the batch began."""

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.done / self.seconds if self.seconds > 0 else 0.0


def read_calls(
    source: Iterable[Any] | AsyncIterable[Any], parsers: Sequence[Any] | None
) -> Iterator[Entry] | AsyncIterator[Entry]:
    """The calls of a source, read one item at a time.

    Raises:
        TypeError: When it is no source of calls.
    """
    if isinstance(source, AsyncIterable):
        return _read_async(source, parsers)
    if isinstance(source, (str, bytes)) or not isinstance(source, Iterable):
        msg = (
            f"`calls` must be an iterable of calls, got {type(source).__name__}; for "
            "one text or message use `process`"
        )
        raise TypeError(msg)
    return _read(source, parsers)


def _read(source: Iterable[Any], parsers: Sequence[Any] | None) -> Iterator[Entry]:
    for item in source:
        if type(item) is ToolCall:
            yield item
        else:
            yield from parse_calls(item, parsers=parsers).entries


async def _read_async(
    source: AsyncIterable[Any], parsers: Sequence[Any] | None
) -> AsyncIterator[Entry]:
    async for item in source:
        if type(item) is ToolCall:
            yield item
        else:
            for call in parse_calls(item, parsers=parsers).entries:
                yield call


async def counted(
    results: AsyncIterator[ToolResult],
    report: Callable[[BatchProgress], Awaitable[None] | None] | None,
    clock: Clock,
) -> AsyncGenerator[ToolResult]:
    """`results`, with a report after each of them."""
    began = clock.monotonic()
    done = failed = 0
    async for result in results:
        # An error is the end of its call; what a stream had given by then makes the
        # result partial, too.
        ended = result.error is not None or not result.is_partial
        if report is not None and ended:
            done += 1
            failed += not result.is_success
            seconds = clock.monotonic() - began
            told = report(BatchProgress(done=done, failed=failed, seconds=seconds))
            if inspect.isawaitable(told):
                await told
        yield result
