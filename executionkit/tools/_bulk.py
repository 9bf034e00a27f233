"""Very many calls: reading a source, and counting what comes out."""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from executionkit.calls import CallProblem, ToolCall, ToolResult, new_id
from executionkit.types import sealed

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.tools.parsing import ParsedCalls

Entry: TypeAlias = "ToolCall | CallProblem"
Parse: TypeAlias = "Callable[[object], ParsedCalls]"

__all__ = ("BatchProgress", "close_source", "counted", "read_calls")


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
    source: Iterable[Any] | AsyncIterable[Any], parse: Parse
) -> Iterator[Entry] | AsyncIterator[Entry]:
    """The calls of a source, read one item at a time.

    Raises:
        TypeError: When it is no source of calls.
    """
    if isinstance(source, AsyncIterable):
        return _read_async(source, parse)
    no_source = isinstance(source, (str, bytes, Mapping, ToolCall))
    if no_source or not isinstance(source, Iterable):
        msg = (
            f"`calls` must be an iterable of calls, got {type(source).__name__}; for "
            "one text, message or call use `process`"
        )
        raise TypeError(msg)
    return _read(source, parse)


def _entries(place: int, item: Any, parse: Parse) -> Iterable[Entry]:
    """The calls of one item; one that holds none is a problem of its own."""
    why = "it holds no tool call"
    try:
        entries = parse(item).entries
    except TypeError as exc:
        why, entries = str(exc), ()
    if entries:
        return entries
    text = item if isinstance(item, str) else repr(item)
    return (
        CallProblem(
            call_id=new_id(), name="", message=f"item {place}: {why}", raw=text[:800]
        ),
    )


def _read(source: Iterable[Any], parse: Parse) -> Iterator[Entry]:
    try:
        for place, item in enumerate(source):
            if type(item) is ToolCall:
                yield item
            else:
                yield from _entries(place, item, parse)
    finally:
        if isinstance(source, Generator):
            source.close()


async def _read_async(source: AsyncIterable[Any], parse: Parse) -> AsyncIterator[Entry]:
    place = 0
    try:
        async for item in source:
            if type(item) is ToolCall:
                yield item
            else:
                for call in _entries(place, item, parse):
                    yield call
            place += 1
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()


async def close_source(source: Any) -> None:
    """Close what `read_calls` gave: its own source is closed with it."""
    if isinstance(source, AsyncGenerator):
        await source.aclose()
    elif isinstance(source, Generator):
        source.close()


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
