"""Streams of results: nothing is lost, nobody runs ahead, and what is left ends."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from executionkit.calls import ToolCall, ToolResult
from executionkit.errors import ErrorCode
from executionkit.testing import FakeClock, settle
from executionkit.tools._bulk import BatchProgress
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from executionkit.tools.strategies import InProcessStrategy

UNREAD = 64
"""Results that may wait for their reader."""


def call(name: str, place: int = 0, /, **arguments: Any) -> ToolCall:
    return ToolCall(f"c{place}", name, arguments)


async def taken(stream: AsyncIterator[ToolResult]) -> list[ToolResult]:
    return [result async for result in stream]


def items_of(results: list[ToolResult], call_id: str = "c0") -> list[Any]:
    return [r.result for r in results if r.is_partial and r.call_id == call_id]


async def numbers(upto: int) -> AsyncIterator[int]:
    """So many numbers, without a wait between them."""
    for n in range(upto):
        yield n


def plain_numbers(upto: int) -> Iterator[int]:
    """The same in a thread."""
    yield from range(upto)


async def echo(n: int = 0) -> int:
    return n


# --- nothing is lost ------------------------------------------------------------------
@pytest.mark.req("T-RUN-10")
@pytest.mark.parametrize("upto", [0, 1, 2, 63, 64, 65, 1000])
@pytest.mark.parametrize("name", ["numbers", "plain_numbers"])
@pytest.mark.parametrize("by", ["processor", "strategy"])
async def test_every_item_of_an_instant_generator_comes_in_order(
    by: str, name: str, upto: int
) -> None:
    registry = create_registry(numbers, plain_numbers)
    calls = [call(name, upto=upto), call(name, 1, upto=upto)]
    if by == "processor":
        stream: Any = ToolProcessor(registry).astream(calls)
    else:
        stream = InProcessStrategy(registry).stream_run(calls)
    results = await asyncio.wait_for(taken(stream), 20)
    for call_id in ("c0", "c1"):
        mine = [result for result in results if result.call_id == call_id]
        assert items_of(results, call_id) == list(range(upto))
        assert not mine[-1].is_partial
        assert mine[-1].result == (upto - 1 if upto else None)
        assert len({r.stream_id for r in mine if r.is_partial}) == (upto > 0)


@pytest.mark.req("T-RUN-10")
async def test_one_place_is_enough_for_ten_streaming_calls() -> None:
    processor = ToolProcessor(create_registry(numbers), max_concurrency=1)
    calls = [call("numbers", place, upto=100) for place in range(10)]
    results = await asyncio.wait_for(taken(processor.astream(calls)), 10)
    assert len(results) == 10 * 101
    order = [key for key, _ in itertools.groupby(r.call_id for r in results)]
    assert order == [f"c{place}" for place in range(10)]


@pytest.mark.req("T-RUN-10")
async def test_two_streams_at_once_mix_up_nothing() -> None:
    processor = ToolProcessor(create_registry(numbers), max_concurrency=2)
    first = processor.astream([call("numbers", 1, upto=150)])
    second = processor.astream([call("numbers", 2, upto=150)])
    found: dict[str, list[Any]] = {"c1": [], "c2": []}
    async with asyncio.timeout(10):
        for _ in range(150):
            for stream in (first, second):
                result = await anext(stream)
                found[str(result.call_id)].append(result.result)
    assert found == {"c1": list(range(150)), "c2": list(range(150))}
    ends = await taken(first) + await taken(second)
    assert [(r.call_id, r.is_partial) for r in ends] == [("c1", False), ("c2", False)]


@pytest.mark.req("T-RUN-10")
async def test_a_stream_within_a_stream_ends() -> None:
    async def outer(upto: int) -> AsyncIterator[int]:
        async for result in processor.astream([call("numbers", upto=upto)]):
            yield result.result

    processor = ToolProcessor(create_registry(numbers, outer), max_concurrency=1)
    results = await asyncio.wait_for(
        taken(processor.astream([call("outer", upto=100)])), 10
    )
    assert items_of(results) == [*range(100), 99]


# --- nobody runs ahead ----------------------------------------------------------------
@pytest.mark.req("T-RUN-11")
async def test_a_tool_is_only_so_much_faster_than_its_reader() -> None:
    made = 0

    async def many() -> AsyncIterator[int]:
        nonlocal made
        for n in range(10_000):
            made += 1
            yield n

    stream = ToolProcessor(create_registry(many)).astream([call("many")])
    for read in range(1, 200):
        await anext(stream)
        await settle(3)
        assert made <= read + UNREAD + 1
    await stream.aclose()


@pytest.mark.req("T-RUN-11")
async def test_a_generator_in_a_thread_is_only_so_much_faster_than_its_reader() -> None:
    made = 0
    closed = threading.Event()

    def many() -> Iterator[int]:
        nonlocal made
        try:
            for n in range(100_000):
                made += 1
                yield n
        finally:
            closed.set()

    stream = ToolProcessor(create_registry(many)).astream([call("many")])
    for read in range(1, 300):
        await anext(stream)
        assert made <= read + 2 * UNREAD + 1
    await stream.aclose()
    assert await asyncio.to_thread(closed.wait, 5)
    assert made < 1000


@pytest.mark.req("T-RUN-11")
@pytest.mark.parametrize("source", ["iterable", "async"])
async def test_a_hundred_thousand_calls_are_never_there_at_once(source: str) -> None:
    total = 100_000 if source == "iterable" else 20_000

    def calls() -> Iterator[ToolCall]:
        for n in range(total):
            made = ToolCall(str(n), "echo", {"n": n})
            yield made

    async def calls_later() -> AsyncIterator[ToolCall]:
        for made in calls():
            yield made

    given: Any = calls() if source == "iterable" else calls_later()
    processor = ToolProcessor(create_registry(echo))
    done, peak = 0, 0
    async for result in processor.process_batch(given, max_in_flight=16):
        assert result.is_success
        done += 1
        if done % 10_000 == 0:
            kinds = (ToolCall, ToolResult)
            peak = max(peak, sum(type(o) in kinds for o in gc.get_objects()))
    assert done == total
    assert peak < 1000


# --- what is left ends ----------------------------------------------------------------
@pytest.mark.req("T-RUN-12")
@pytest.mark.parametrize("way", ["astream", "process_batch", "stream_run"])
@pytest.mark.parametrize("leave", ["aclose", "cancel", "forget", "raise"])
async def test_leaving_a_stream_ends_its_tools_at_once(leave: str, way: str) -> None:
    closed: list[int] = []
    forever = asyncio.Event()

    async def waits(n: int) -> AsyncIterator[int]:
        try:
            yield n
            await forever.wait()
        finally:
            await asyncio.sleep(0)
            closed.append(n)

    registry = create_registry(waits)
    calls = [call("waits", n, n=n) for n in range(5)]

    def stream_of() -> Any:
        if way == "stream_run":
            return InProcessStrategy(registry).stream_run(calls)
        return getattr(ToolProcessor(registry), way)(calls)

    async def read() -> None:
        stream = stream_of()
        number = 0
        async for _ in stream:
            number += 1
            if number == 5:
                if leave == "raise":
                    raise KeyError(leave)
                if leave == "aclose":
                    await stream.aclose()
                    assert sorted(closed) == list(range(5))
                    # One task is the test's, one is this one.
                    assert len(asyncio.all_tasks()) == 2
                if leave != "cancel":
                    return

    task = asyncio.ensure_future(read())
    await settle()
    if leave == "cancel":
        task.cancel()
    await asyncio.wait_for(asyncio.wait([task]), 5)
    assert task.cancelled() is (leave == "cancel")
    if leave == "raise":
        assert isinstance(task.exception(), KeyError)
    del task
    gc.collect()
    await settle()
    assert sorted(closed) == list(range(5))
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.req("T-RUN-12")
@pytest.mark.parametrize("way", ["astream", "process_batch"])
async def test_a_stream_that_nobody_reads_begins_nothing(way: str) -> None:
    ran = False

    async def runs() -> None:
        nonlocal ran
        ran = True

    stream = getattr(ToolProcessor(create_registry(runs)), way)([call("runs")])
    await settle()
    await stream.aclose()
    assert not ran
    assert [result async for result in stream] == []


@pytest.mark.req("T-RUN-12")
async def test_a_reader_that_left_hears_nothing_of_a_source_that_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def source() -> Iterator[ToolCall]:
        yield call("echo", n=1)
        raise KeyError("source")

    stream = ToolProcessor(create_registry(echo)).process_batch(source())
    await anext(stream)
    await settle()
    await stream.aclose()
    del stream
    gc.collect()
    await settle()
    assert not caplog.records


@pytest.mark.req("T-RUN-12")
async def test_a_tool_that_swallows_its_cancellation_waits_for_no_reader_that_left(
    fake_clock: FakeClock,
) -> None:
    async def swallows(n: int) -> int:
        try:
            await fake_clock.sleep(100)
        except asyncio.CancelledError:
            return n
        return n

    registry = create_registry(swallows, echo, numbers)
    calls = [call("swallows", n, n=n) for n in range(100)]
    stream = ToolProcessor(registry).astream([*calls, call("numbers", 100, upto=200)])
    await anext(stream)
    await settle()  # the queue is full
    closing = asyncio.ensure_future(stream.aclose())
    await fake_clock.advance(3)
    assert closing.done()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- errors in the middle -------------------------------------------------------------
@pytest.mark.req("T-RUN-13")
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_an_error_after_two_items_keeps_them(kind: str) -> None:
    async def breaks() -> AsyncIterator[str]:
        yield "one"
        yield "two"
        raise ConnectionError("gone")

    def breaks_too() -> Iterator[str]:
        yield "one"
        yield "two"
        raise ConnectionError("gone")

    tool = breaks if kind == "async" else breaks_too
    processor = ToolProcessor(create_registry(tool))
    results = await taken(processor.astream([call(tool.__name__)]))
    assert [result.result for result in results[:2]] == ["one", "two"]
    assert results[2].error == "gone"
    assert list(results[2].result) == ["one", "two"]
    [whole] = await processor.process([call(tool.__name__)])
    assert list(whole.result) == ["one", "two"]
    assert isinstance(whole.exception, ConnectionError)


@pytest.mark.req("T-RUN-13")
async def test_a_limit_in_the_middle_of_a_stream_keeps_what_came(
    auto_clock: FakeClock,
) -> None:
    closed = False

    async def slow() -> AsyncIterator[int]:
        nonlocal closed
        try:
            for n in range(10):
                yield n
                await auto_clock.sleep(1)
        finally:
            closed = True

    processor = ToolProcessor(create_registry(slow), None, 2.5)
    results = await taken(processor.astream([call("slow")]))
    assert items_of(results[:-1]) == [0, 1, 2]
    assert results[-1].error_code == ErrorCode.TOOL_TIMEOUT
    assert list(results[-1].result) == [0, 1, 2]
    assert closed


# --- sources --------------------------------------------------------------------------
@pytest.mark.req("T-RUN-14")
@pytest.mark.parametrize("kind", ["iterable", "async", "iterator that goes on"])
@pytest.mark.parametrize(
    "error",
    [KeyError("source"), asyncio.CancelledError("source")],
    ids=["error", "own"],
)
async def test_a_source_that_raises_ends_the_stream_when_all_it_gave_has_ended(
    auto_clock: FakeClock, error: BaseException, kind: str
) -> None:
    async def sleeps(seconds: float) -> float:
        await auto_clock.sleep(seconds)
        return seconds

    given = [call("sleeps", n, seconds=float(n)) for n in range(5)]

    def source() -> Iterator[ToolCall]:
        yield from given
        raise error

    async def later() -> AsyncIterator[ToolCall]:
        for item in given:
            yield item
        raise error

    class Stubborn:
        """Raises again and again."""

        def __init__(self) -> None:
            self.left = list(given)

        def __iter__(self) -> Iterator[ToolCall]:
            return self

        def __next__(self) -> ToolCall:
            if not self.left:
                raise error
            return self.left.pop(0)

    sources: dict[str, Any] = {"iterable": source(), "async": later()}
    calls = sources.get(kind) or Stubborn()
    processor = ToolProcessor(create_registry(sleeps))
    found = []
    with pytest.raises(type(error)):
        async for result in processor.process_batch(calls):
            found.append(result.result)
    assert found == [0.0, 1.0, 2.0, 3.0, 4.0]
    await settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.req("T-RUN-14")
@pytest.mark.parametrize("awaited", [False, True])
async def test_progress_is_told_after_each_result_and_its_errors_reach_the_caller(
    *, awaited: bool
) -> None:
    told: list[BatchProgress] = []

    def tell(progress: BatchProgress) -> None:
        told.append(progress)
        if progress.done == 4:
            raise KeyError("progress")

    async def tell_later(progress: BatchProgress) -> None:
        await asyncio.sleep(0)
        tell(progress)

    async def odd(n: int) -> int:
        if n % 2:
            raise ValueError(n)
        return n

    processor = ToolProcessor(create_registry(odd))
    stream = processor.process_batch(
        (call("odd", n, n=n) for n in range(10)),
        on_progress=tell_later if awaited else tell,
    )
    found = []
    with pytest.raises(KeyError, match="progress"):
        async for result in stream:
            found.append(result.call_id)
    assert [(p.done, p.failed) for p in told] == [(1, 0), (2, 1), (3, 1), (4, 2)]
    assert len(found) == 3
    await settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.req("T-RUN-05", "T-RUN-14")
async def test_a_shutdown_does_not_cancel_the_source() -> None:
    more = asyncio.Event()
    source_ended: list[str] = []

    async def source() -> AsyncIterator[ToolCall]:
        try:
            for n in range(5):
                yield call("waits", n)
            await more.wait()
            yield call("waits", 5)
            source_ended.append("well")
        finally:
            source_ended.append("finally")

    async def waits() -> None:
        await asyncio.Event().wait()

    processor = ToolProcessor(create_registry(waits))
    running = asyncio.ensure_future(taken(processor.process_batch(source())))
    await settle()
    await processor.close()
    await settle()
    assert source_ended == []
    more.set()
    results = await asyncio.wait_for(running, 5)
    assert source_ended == ["well", "finally"]
    assert [result.error for result in results] == [
        *["Execution was cancelled"] * 5,
        "System is shutting down",
    ]


@pytest.mark.req("T-RUN-14")
async def test_a_list_that_grows_meanwhile_is_run_as_it_was_given() -> None:
    calls: list[ToolCall] = []

    async def adds(n: int) -> int:
        calls.append(call("adds", 9, n=9))
        await asyncio.sleep(0)
        return n

    calls.extend(call("adds", n, n=n) for n in range(3))
    processor = ToolProcessor(create_registry(adds))
    results = await processor.execute(calls, return_order="submission")
    assert [result.result for result in results] == [0, 1, 2]
    del calls[3:]
    streamed = await taken(InProcessStrategy(processor.registry).stream_run(calls))
    assert len(streamed) == 3
