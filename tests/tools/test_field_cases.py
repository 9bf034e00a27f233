"""Failures that others had in production, run against the processor."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

import pytest

from executionkit.calls import ToolCall, ToolResult
from executionkit.context import ExecutionContext
from executionkit.errors import ErrorCode, ToolExecutionError
from executionkit.observability import TraceEvent
from executionkit.patterns.react_loop import react_loop
from executionkit.testing import FakeClock, ScriptedProvider, settle, tool_call_reply
from executionkit.tools.guard_rules import OutputSizeGuard, RunawayGuard
from executionkit.tools.middleware.cache import CacheOptions
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from executionkit.tools.strategies import InProcessStrategy

WAIT = 5.0


async def one(processor: ToolProcessor, name: str, /, **arguments: Any) -> ToolResult:
    [result] = await processor.process([{"tool": name, "arguments": arguments}])
    return result


# --- F. tools -------------------------------------------------------------------------
@pytest.mark.req("TX-01")
async def test_blocking_functions_run_beside_each_other_and_freeze_nothing() -> None:
    meeting = threading.Barrier(3)
    ticks = 0

    def blocks() -> str:
        meeting.wait(WAIT)  # passes only when both and the ticker are there
        return threading.current_thread().name

    async def ticker() -> int:
        nonlocal ticks
        for _ in range(100):
            await asyncio.sleep(0)
            ticks += 1
        await asyncio.get_running_loop().run_in_executor(None, meeting.wait, WAIT)
        return ticks

    processor = ToolProcessor(create_registry(blocks, ticker))
    calls = [ToolCall(None, name) for name in ("blocks", "blocks", "ticker")]
    results = await asyncio.wait_for(processor.execute(calls), WAIT)
    assert all(result.is_success for result in results)
    threads = {result.result for result in results if result.tool == "blocks"}
    assert len(threads) == 2
    assert threading.current_thread().name not in threads
    assert ticks == 100


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.req("TX-02")
async def test_fifty_threads_left_behind_hold_up_no_other_tool(
    fake_clock: FakeClock, stop: threading.Event
) -> None:
    begun = threading.Semaphore(0)

    def hangs() -> None:
        begun.release()
        stop.wait(30)

    def quick() -> str:
        return "done"

    processor = ToolProcessor(create_registry(hangs, quick), default_timeout=0.1)
    running = asyncio.create_task(processor.execute([ToolCall(None, "hangs")] * 50))
    await settle()
    for _ in range(50):
        assert await asyncio.to_thread(begun.acquire, timeout=WAIT)
    await fake_clock.advance(0.1)
    results = await asyncio.wait_for(running, WAIT)
    assert [result.error for result in results] == ["Timeout after 0.1s"] * 50
    assert (await processor.stats()).abandoned == 50
    quickly = await asyncio.wait_for(one(processor, "quick"), WAIT)
    assert quickly.result == "done"
    stop.set()
    for _ in range(500):
        if not (await processor.stats()).abandoned:
            break
        await asyncio.to_thread(threading.Event().wait, 0.01)
    assert (await processor.stats()).abandoned == 0


@pytest.mark.req("TX-02")
async def test_the_number_of_threads_at_work_is_bounded(stop: threading.Event) -> None:
    lock = threading.Lock()
    active = peak = 0

    def works() -> None:
        nonlocal active, peak
        with lock:
            active += 1
            peak = max(peak, active)
        stop.wait(WAIT)
        with lock:
            active -= 1

    async def quick() -> str:
        return "done"

    registry = create_registry(works, quick)
    strategy = InProcessStrategy(registry, max_threads=3)
    processor = ToolProcessor(registry, strategy)
    calls = [ToolCall(None, "works")] * 12
    running = asyncio.create_task(processor.execute(calls))
    await settle()
    assert (await processor.stats()).active == 3
    assert (await one(processor, "quick")).result == "done"
    stop.set()
    results = await asyncio.wait_for(running, WAIT)
    assert all(result.is_success for result in results)
    assert peak <= 3


@pytest.mark.req("TX-04")
async def test_what_a_tool_does_after_its_time_changes_no_result(
    fake_clock: FakeClock, stop: threading.Event
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def late() -> None:
        begun.set()
        stop.wait(WAIT)
        ended.set()
        msg = "too late"
        raise RuntimeError(msg)

    processor = ToolProcessor(create_registry(late), default_timeout=1)
    running = asyncio.create_task(one(processor, "late"))
    await settle()
    assert await asyncio.to_thread(begun.wait, WAIT)
    await fake_clock.advance(1)
    result = await running
    before = (result, await processor.stats())
    stop.set()
    assert await asyncio.to_thread(ended.wait, WAIT)
    await settle()
    after = await processor.stats()
    assert before[0].error == result.error == "Timeout after 1s"
    assert (after.calls, after.failures) == (before[1].calls, before[1].failures)


@pytest.mark.req("TX-06")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("in_thread", [False, True])
def test_an_exit_of_the_program_is_no_output_of_a_tool(
    kind: type[BaseException], in_thread: bool
) -> None:
    async def leaves() -> None:
        raise kind(3)

    def leaves_in_thread() -> None:
        raise kind(3)

    async def fine() -> None: ...

    leaving: Any = leaves_in_thread if in_thread else leaves
    registry = create_registry(fine)
    registry.add(leaving, "leaves")

    async def main() -> Any:
        calls = [ToolCall(None, "fine"), ToolCall(None, "leaves")]
        with contextlib.suppress(kind):  # it ends the event loop, and comes here again
            return await ToolProcessor(registry).execute(calls)

    with pytest.raises(kind):
        asyncio.run(main())


class Odd(BaseException):
    """As those of other event loops and of test runners."""


ODD: dict[str, BaseException] = {
    "generator": GeneratorExit("odd"),
    "own": Odd("odd"),
    "group": BaseExceptionGroup("odd", [Odd("odd"), ValueError()]),
}


async def odd_at_once(exc: BaseException) -> None:
    raise exc


async def odd_later(exc: BaseException) -> None:
    await asyncio.sleep(0)
    raise exc


async def odd_in_task(exc: BaseException) -> None:
    await asyncio.create_task(odd_later(exc))


async def odd_stream(exc: BaseException) -> AsyncIterator[int]:
    yield 1
    raise exc


def odd_in_thread(exc: BaseException) -> None:
    raise exc


@pytest.mark.req("results.odd-exceptions")
@pytest.mark.parametrize("options", [{}, {"enable_caching": True, "max_retries": 1}])
@pytest.mark.parametrize(
    "tool", [odd_at_once, odd_later, odd_in_task, odd_stream, odd_in_thread]
)
@pytest.mark.parametrize("exc", ODD.values(), ids=ODD)
async def test_what_is_no_exception_fails_one_call_and_no_other(
    exc: BaseException, tool: Any, options: dict[str, Any]
) -> None:
    go = asyncio.Event()

    async def fine(n: int) -> int:
        await go.wait()
        return n

    async def fails() -> None:
        try:
            await tool(exc=exc)
        finally:
            go.set()

    def fails_in_thread() -> None:
        loop.call_soon_threadsafe(go.set)
        raise exc

    async def fails_in_stream() -> AsyncIterator[int]:
        go.set()
        async for item in odd_stream(exc):
            yield item

    loop = asyncio.get_running_loop()
    named: dict[Any, Any] = {
        odd_in_thread: fails_in_thread,
        odd_stream: fails_in_stream,
    }
    registry = create_registry(fine)
    registry.add(named.get(tool, fails), "fails", metadata={"side_effects": "read"})
    if options:
        options = {**options, "retry_base_delay": 0.0}
    processor = ToolProcessor(registry, **options)
    calls = [
        ToolCall("a", "fine", {"n": 1}),
        ToolCall("b", "fails"),
        ToolCall("c", "fine", {"n": 2}),
    ]
    work = processor.process(calls, return_order="submission")
    one, odd, two = await asyncio.wait_for(work, 5)
    assert (one.result, two.result) == (1, 2)
    assert odd.error_code is ErrorCode.TOOL_EXECUTION_FAILED
    assert isinstance(odd.exception, ToolExecutionError)
    assert odd.exception.original_error is exc
    assert odd.exception.__cause__ is exc
    assert "odd" in (odd.error or "")
    assert 1 <= odd.attempts <= 1 + options.get("max_retries", 0)
    closed = tool is odd_in_task and isinstance(exc, GeneratorExit)
    assert (await processor.stats()).failures == (0 if closed else 1)


@pytest.mark.req("results.odd-exceptions")
@pytest.mark.parametrize("waits", [False, True])
async def test_what_a_layer_raises_that_is_no_exception_is_that_calls_error(
    waits: bool,
) -> None:
    async def layer(request: Any, nxt: Any) -> Any:
        if waits:
            await asyncio.sleep(0)
        if request.call.id == "odd":
            raise Odd
        return await nxt(request)

    async def fine() -> str:
        return "fine"

    processor = ToolProcessor(create_registry(fine), middleware=[layer])
    calls = [ToolCall("odd", "fine"), ToolCall("b", "fine")]
    odd, other = await processor.process(calls, return_order="submission")
    assert isinstance(odd.exception, ToolExecutionError)
    assert other.result == "fine"


@pytest.mark.req("TX-06")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_exit_inside_of_a_group_ends_the_program_too(
    kind: type[BaseException],
) -> None:
    async def leaves() -> None:
        await asyncio.sleep(0)
        raise BaseExceptionGroup("", [ValueError(), BaseExceptionGroup("", [kind(3)])])

    async def main() -> Any:
        return await ToolProcessor(create_registry(leaves)).execute(
            [ToolCall(None, "leaves")]
        )

    with pytest.raises(kind):
        asyncio.run(main())


WAYS: dict[str, Any] = {
    "process": lambda p, calls: p.process(calls),
    "astream": lambda p, calls: taken(p.astream(calls)),
    "process_batch": lambda p, calls: taken(p.process_batch(calls)),
}


async def taken(stream: AsyncIterator[ToolResult]) -> list[ToolResult]:
    return [result async for result in stream]


@pytest.mark.req("TX-09", "results.odd-exceptions")
@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_what_ends_a_batch_ends_its_other_calls_first(
    way: str, in_thread: bool
) -> None:
    effects: list[str] = []

    async def leaves() -> None:
        await asyncio.sleep(0)
        raise SystemExit(3)

    def leaves_in_thread() -> None:
        raise SystemExit(3)

    async def writes() -> None:
        try:
            await asyncio.Event().wait()
            effects.append("written")
        finally:
            effects.append("cleaned up")

    async def main() -> None:
        registry = create_registry(writes)
        registry.add(leaves_in_thread if in_thread else leaves, "leaves")
        processor = ToolProcessor(registry, default_timeout=None)
        calls = [ToolCall(None, "writes"), ToolCall(None, "leaves")]
        await asyncio.wait_for(WAYS[way](processor, calls), WAIT)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert effects == ["cleaned up"]


@pytest.mark.req("TX-09")
@pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError])
async def test_a_source_that_breaks_ends_its_batch_when_its_calls_have_ended(
    auto_clock: FakeClock, error: type[BaseException]
) -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    def source() -> Iterator[ToolCall]:
        yield ToolCall("1", "hangs")
        raise error

    processor = ToolProcessor(create_registry(hangs), default_timeout=5)
    ended: list[str | None] = []
    with pytest.raises(error):
        async for result in processor.process_batch(source()):
            ended.append(result.call_id)
    assert ended == ["1"]
    assert (await processor.stats()).active == 0


@pytest.mark.req("TX-08")
@pytest.mark.parametrize("how", ["raise", "cancel itself", "inner task"])
async def test_a_cancellation_of_one_tool_is_its_own_matter(
    auto_clock: FakeClock, how: str
) -> None:
    async def good(n: int) -> int:
        await auto_clock.sleep(n)
        return n

    async def bad() -> None:
        await auto_clock.sleep(1)
        if how == "raise":
            raise asyncio.CancelledError
        if how == "cancel itself":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await auto_clock.sleep(1)
        else:
            inner = asyncio.ensure_future(asyncio.Event().wait())
            await asyncio.sleep(0)
            inner.cancel()
            await inner

    processor = ToolProcessor(create_registry(good, bad), max_concurrency=3)
    calls = [
        ToolCall("1", "good", {"n": 1}),
        ToolCall("2", "bad"),
        ToolCall("3", "good", {"n": 3}),
        ToolCall("4", "good", {"n": 4}),
    ]
    results = {r.call_id: r for r in await processor.process(calls)}
    assert [results[key].result for key in "134"] == [1, 3, 4]
    assert results["2"].error_code is ErrorCode.TOOL_CANCELLED
    assert results["2"].error == "Execution was cancelled"
    assert (await one(processor, "good", n=0)).result == 0


@pytest.mark.req("TX-15")
@pytest.mark.parametrize(
    "value", [dict, print, object()], ids=["class", "function", ""]
)
async def test_a_value_that_no_model_can_read_is_told_by_tool_and_type(
    value: object,
) -> None:
    async def odd() -> Any:
        return value

    provider = ScriptedProvider([tool_call_reply(("odd", {})), "done"])
    result = await react_loop(provider, "go", tools=ToolProcessor(create_registry(odd)))
    assert result.value == "done"
    answer = str(provider.requests[1].messages[-1]["content"])
    assert "odd" in answer
    assert type(value).__name__ in answer


@pytest.mark.req("TX-16")
async def test_one_cap_for_every_output() -> None:
    async def large() -> str:
        return "a" + "\N{BUG}" * 1_000_000 + "z"

    processor = ToolProcessor(
        create_registry(large), guards=[OutputSizeGuard(max_bytes=10_000)]
    )
    result = await one(processor, "large")
    assert len(result.to_observation().encode()) <= 10_500
    assert result.to_observation().startswith("a\N{BUG}")
    assert result.is_success


@pytest.mark.req("TX-17")
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("fails", [False, True])
async def test_items_are_progress_and_the_last_one_is_the_value(
    is_async: bool, fails: bool
) -> None:
    closed: list[str] = []

    def steps() -> Generator[str]:
        try:
            yield "one"
            yield "two"
            if fails:
                msg = "broke"
                raise RuntimeError(msg)
            yield "value"
        finally:
            closed.append("closed")

    async def async_steps() -> AsyncIterator[str]:
        for item in steps():
            yield item

    registry = create_registry()
    registry.add(async_steps if is_async else steps, "steps")
    processor = ToolProcessor(registry)
    result = await one(processor, "steps")
    parts = [r async for r in processor.astream([ToolCall(None, "steps")])]
    if fails:
        assert (result.error, list(result.result)) == ("broke", ["one", "two"])
        assert [part.result for part in parts[:2]] == ["one", "two"]
        assert parts[-1].error == "broke"
    else:
        assert (result.result, result.error) == ("value", None)
        shown = [(part.result, part.is_partial) for part in parts]
        assert shown == [
            *[(item, True) for item in ("one", "two", "value")],
            ("value", False),
        ]
    assert closed == ["closed"] * 2


@pytest.mark.req("TX-17")
@pytest.mark.parametrize("is_async", [True, False])
async def test_leaving_early_runs_the_end_of_a_generator(is_async: bool) -> None:
    closed = threading.Event()

    def steps() -> Generator[int]:
        try:
            yield from itertools.count()
        finally:
            closed.set()

    async def async_steps() -> AsyncIterator[int]:
        try:
            for n in itertools.count():
                yield n
                await asyncio.sleep(0)
        finally:
            closed.set()

    registry = create_registry()
    registry.add(async_steps if is_async else steps, "steps")
    stream = ToolProcessor(registry, default_timeout=None).astream({"tool": "steps"})
    first = await asyncio.wait_for(anext(stream), WAIT)
    assert first.result == 0
    await stream.aclose()
    assert await asyncio.to_thread(closed.wait, WAIT)


@pytest.mark.req("TX-18")
async def test_the_same_call_for_ever_is_stopped() -> None:
    async def nothing(cmd: str) -> str:
        return ""

    processor = ToolProcessor(create_registry(nothing), guards=[RunawayGuard()])
    seen: list[ToolResult] = []
    for _ in range(20):
        result = await one(processor, "nothing", cmd="x")
        seen.append(result)
        if not result.is_success:
            break
    assert seen[-1].error_code is ErrorCode.TOOL_BLOCKED


# --- K. caching and idempotency -------------------------------------------------------
@pytest.mark.req("CA-03")
async def test_equal_arguments_of_other_tools_tenants_and_versions_are_apart() -> None:
    ran: list[str] = []

    async def weather(city: str) -> str:
        ran.append("weather")
        return f"sun in {city}"

    async def news(city: str) -> str:
        ran.append("news")
        return f"rain in {city}"

    registry = create_registry(weather, news)
    processor = ToolProcessor(registry, enable_caching=True)

    async def ask(name: str, tenant: str | None = None) -> tuple[Any, bool]:
        context = None if tenant is None else ExecutionContext(tenant_id=tenant)
        call = ToolCall(None, name, {"city": "X"})
        [result] = await processor.execute([call], context=context)
        return result.result, result.cached

    assert await ask("weather") == ("sun in X", False)
    assert await ask("news") == ("rain in X", False)
    assert await ask("weather", "acme") == ("sun in X", False)
    assert await ask("weather", "globex") == ("sun in X", False)
    assert await ask("weather", "acme") == ("sun in X", True)
    registry.add(weather, "weather", replace=True, version="2.0.0")
    assert await ask("weather") == ("sun in X", False)
    assert ran == ["weather", "news", "weather", "weather", "weather"]


def pay(amounts: list[int], clock: FakeClock) -> Any:
    async def pay(amount: int) -> int:
        amounts.append(amount)
        await clock.sleep(1)
        return len(amounts)

    return pay


def keyed(amount: int, key: str | None = "k1") -> ToolCall:
    return ToolCall(None, "pay", {"amount": amount}, idempotency_key=key)


@pytest.mark.req("CA-04")
@pytest.mark.parametrize("caching", [False, True])
async def test_a_key_used_for_other_arguments_is_a_conflict(
    auto_clock: FakeClock, caching: bool
) -> None:
    amounts: list[int] = []
    registry = create_registry()
    registry.add(pay(amounts, auto_clock), side_effects="write")
    processor = ToolProcessor(registry, enable_caching=caching)
    [first] = await processor.execute([keyed(10)])
    [again] = await processor.execute([keyed(10)])
    [other] = await processor.execute([keyed(99)])
    assert (first.result, again.result, again.cached) == (1, 1, True)
    assert other.error_code is ErrorCode.TOOL_IDEMPOTENCY_CONFLICT
    assert not other.retryable
    [fresh] = await processor.execute([keyed(99, "k2")])
    assert fresh.result == 2
    assert amounts == [10, 99]


@pytest.mark.req("CA-05")
async def test_two_calls_with_one_key_at_once_are_one_effect(
    auto_clock: FakeClock,
) -> None:
    amounts: list[int] = []
    registry = create_registry()
    registry.add(pay(amounts, auto_clock), side_effects="write")
    processor = ToolProcessor(registry)
    results = await processor.execute([keyed(10), keyed(10), keyed(10)])
    assert amounts == [10]
    assert [result.result for result in results] == [1, 1, 1]
    assert sum(result.cached for result in results) == 2


@pytest.mark.req("CA-08")
async def test_errors_are_not_cached_unless_that_is_asked_for(
    fake_clock: FakeClock,
) -> None:
    runs = 0

    async def flaky() -> dict[str, Any]:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ConnectionError
        return {"isError": runs == 2, "n": runs}

    registry = create_registry(flaky)
    processor = ToolProcessor(registry, enable_caching=True)
    found = [await one(processor, "flaky") for _ in range(4)]
    assert [result.cached for result in found] == [False, False, False, True]
    assert runs == 3

    async def broken() -> None:
        nonlocal runs
        runs += 1
        msg = "no"
        raise ValueError(msg)

    runs = 0
    negative = ToolProcessor(
        create_registry(broken), cache=CacheOptions(negative_ttl=5)
    )
    for wait, expected in ((0, 1), (4, 1), (2, 2)):
        await fake_clock.advance(wait)
        assert (await one(negative, "broken")).error == "no"
        assert runs == expected


# --- G. waiters -----------------------------------------------------------------------
@pytest.mark.req("LM-10")
@pytest.mark.parametrize("order", ["release first", "cancel first"])
async def test_a_waiter_that_leaves_when_its_turn_comes_hands_it_on(
    fake_clock: FakeClock, order: str
) -> None:
    release = asyncio.Event()
    ran: list[str] = []

    async def work(name: str) -> None:
        ran.append(name)
        if name == "a":
            await release.wait()

    registry = create_registry()
    registry.add(work, concurrency_limit=1)
    processor = ToolProcessor(registry, default_timeout=None)
    tasks = {
        name: asyncio.create_task(one(processor, "work", name=name)) for name in "abc"
    }
    await settle()
    assert ran == ["a"]
    if order == "release first":
        release.set()
        tasks["b"].cancel()
    else:
        tasks["b"].cancel()
        release.set()
    with contextlib.suppress(asyncio.CancelledError):
        await tasks["b"]
    assert (await asyncio.wait_for(tasks["c"], WAIT)).is_success
    assert "c" in ran
    assert (await asyncio.wait_for(one(processor, "work", name="d"), WAIT)).is_success
    assert fake_clock.pending == 0


# --- L. observability -----------------------------------------------------------------
@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What OpenTelemetry exports, in the memory."""
    trace = pytest.importorskip("opentelemetry.trace")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter"
    )
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


@pytest.mark.req("OB-01")
async def test_parallel_tools_have_spans_under_that_of_their_caller(
    spans: Any,
) -> None:
    from opentelemetry import trace

    async def in_loop(n: int) -> int:
        await asyncio.sleep(0)
        return n

    def in_thread(n: int) -> int:
        return n

    processor = ToolProcessor(create_registry(in_loop, in_thread))
    calls = [
        ToolCall(f"c{n}", "in_loop" if n % 2 else "in_thread", {"n": n})
        for n in range(10)
    ]
    with trace.get_tracer("test").start_as_current_span("turn") as turn:
        await processor.process(calls)
        parent = turn.get_span_context()
    finished = [s for s in spans.get_finished_spans() if s.name != "turn"]
    assert {span.attributes["tool.call_id"] for span in finished} == {
        call.id for call in calls
    }
    assert len(finished) == 10
    assert {span.context.trace_id for span in finished} == {parent.trace_id}
    assert {span.parent.span_id for span in finished} == {parent.span_id}


@pytest.mark.req("OB-02")
async def test_a_stream_closed_from_another_task_ends_its_span_once(
    spans: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps() -> AsyncIterator[int]:
        for n in itertools.count():
            yield n
            await asyncio.sleep(0)

    stream = ToolProcessor(create_registry(steps)).astream([ToolCall("s", "steps")])
    await asyncio.create_task(asyncio.wait_for(anext(stream), WAIT))
    await asyncio.create_task(stream.aclose())
    finished = spans.get_finished_spans()
    assert [span.attributes["tool.call_id"] for span in finished] == ["s"]
    assert "detach" not in caplog.text


@pytest.mark.req("OB-03")
async def test_a_failed_call_leaves_a_span_with_an_error(spans: Any) -> None:
    async def boom() -> None:
        msg = "key sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD is bad"
        raise RuntimeError(msg)

    await one(ToolProcessor(create_registry(boom)), "boom")
    [span] = spans.get_finished_spans()
    assert span.status.status_code.name == "ERROR"
    assert "sk-proj-abc" not in f"{span.status.description} {span.events}"


@pytest.mark.req("OB-04")
async def test_no_key_in_the_text_of_an_error_reaches_anybody(
    auto_clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    key = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"

    async def fetch() -> None:
        msg = f"GET https://api.example.com/?api_key={key} failed"
        raise ConnectionError(msg)

    events: list[TraceEvent] = []
    caplog.set_level("DEBUG")
    processor = ToolProcessor(
        create_registry(fetch), enable_retries=True, trace=events.append
    )
    result = await one(processor, "fetch")
    assert result.attempts == 4
    told = [result.error, str(result), repr(result), repr(result.to_dict())]
    told += [repr(events), caplog.text, *capfd.readouterr()]
    assert key not in " ".join(map(str, told))
    assert auto_clock.sleeps
    assert "fetch" in sys.intern(result.tool)
