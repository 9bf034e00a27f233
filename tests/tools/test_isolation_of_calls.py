"""Calls that share tasks, threads, loops and processors, and nothing else."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from executionkit.calls import ToolCall, ToolResult
from executionkit.context import ExecutionContext, get_current_context
from executionkit.errors import ErrorCode
from executionkit.testing import FakeClock, settle
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from executionkit.tools.strategies import InProcessStrategy

WAIT = 20
SEEN: ContextVar[str] = ContextVar("seen", default="nothing")


def call(name: str, place: int = 0, /, **arguments: Any) -> ToolCall:
    return ToolCall(f"c{place}", name, arguments)


async def taken(stream: AsyncIterator[ToolResult]) -> list[ToolResult]:
    return [result async for result in stream]


WAYS: dict[str, Callable[[ToolProcessor, list[ToolCall]], Awaitable[Any]]] = {
    "process": lambda p, calls: p.process(calls),
    "astream": lambda p, calls: taken(p.astream(calls)),
    "process_batch": lambda p, calls: taken(p.process_batch(calls)),
}


async def at_once(mark: str) -> str:
    before = SEEN.get()
    SEEN.set(mark)
    return before


async def later(mark: str) -> str:
    before = SEEN.get()
    SEEN.set(mark)
    await asyncio.sleep(0)
    assert SEEN.get() == mark
    SEEN.set(mark + mark)
    await asyncio.sleep(0)
    assert SEEN.get() == mark + mark
    return before


def in_thread(mark: str) -> str:
    before = SEEN.get()
    SEEN.set(mark)
    return before


async def items(mark: str) -> AsyncIterator[str]:
    before = SEEN.get()
    SEEN.set(mark)
    yield "item"
    await asyncio.sleep(0)
    assert SEEN.get() == mark
    yield before


def items_in_thread(mark: str) -> Iterator[str]:
    before = SEEN.get()
    SEEN.set(mark)
    yield "item"
    assert SEEN.get() == mark
    yield before


KINDS = (at_once, later, in_thread, items, items_in_thread)
NAMES = tuple(kind.__name__ for kind in KINDS)


# --- context variables ----------------------------------------------------------------
@pytest.mark.req("T-RUN-16")
@pytest.mark.parametrize(
    "layers", [{}, {"enable_retries": True, "guards": []}], ids=str
)
@pytest.mark.parametrize("way", WAYS)
async def test_what_one_call_sets_no_other_sees(way: str, layers: Any) -> None:
    SEEN.set("the caller's")
    processor = ToolProcessor(create_registry(*KINDS), max_concurrency=3, **layers)
    calls = [call(NAMES[n % len(NAMES)], n, mark=f"{n}") for n in range(4 * len(NAMES))]
    results = await asyncio.wait_for(WAYS[way](processor, calls), WAIT)
    ends = [result for result in results if not result.is_partial]
    assert len(ends) == len(calls)
    assert {result.result for result in ends} == {"the caller's"}
    assert SEEN.get() == "the caller's"


async def who_async() -> str | None:
    await asyncio.sleep(0)
    context = get_current_context()
    return None if context is None else context.request_id


def who_sync() -> str | None:
    context = get_current_context()
    return None if context is None else context.request_id


async def who_stream() -> AsyncIterator[str | None]:
    yield "item"
    await asyncio.sleep(0)
    yield who_sync()


def who_stream_sync() -> Iterator[str | None]:
    yield "item"
    yield who_sync()


@pytest.mark.req("T-RUN-16")
@pytest.mark.parametrize("way", ["process", "astream", "process_batch", "execute"])
async def test_each_kind_of_tool_sees_the_context_of_its_own_request(way: str) -> None:
    tools = (who_async, who_sync, who_stream, who_stream_sync)
    processor = ToolProcessor(create_registry(*tools))

    async def ask(name: str) -> set[Any]:
        calls = [call(tool.__name__, n) for n, tool in enumerate(tools)]
        context = ExecutionContext(request_id=name)
        given: Any = getattr(processor, way)(calls, context=context)
        results = await given if way in {"process", "execute"} else await taken(given)
        return {result.result for result in results if not result.is_partial}

    found = await asyncio.wait_for(
        asyncio.gather(*(ask(f"r{n}") for n in range(5))), WAIT
    )
    assert found == [{f"r{n}"} for n in range(5)]
    assert get_current_context() is None


# --- event loops ----------------------------------------------------------------------
LIMITED: dict[str, Any] = {
    "max_concurrency": 2,
    "enable_caching": True,
    "enable_retries": True,
    "enable_circuit_breaker": True,
    "enable_rate_limiting": True,
    "global_rate_limit": 100_000,
    "enable_bulkhead": True,
}


async def _all_kinds(processor: ToolProcessor, mark: str) -> list[Any]:
    calls = [call(NAMES[n % 5], n, mark=f"{mark}{n}") for n in range(10)]
    results = await asyncio.wait_for(processor.process(calls), WAIT)
    assert all(result.is_success for result in results)
    return [result.result for result in results]


@pytest.mark.req("T-RUN-17")
def test_one_processor_serves_one_loop_after_the_other() -> None:
    processor = ToolProcessor(create_registry(*KINDS), default_timeout=5, **LIMITED)
    for turn in range(3):
        assert asyncio.run(_all_kinds(processor, f"{turn}-")) == ["nothing"] * 10


@pytest.mark.req("T-RUN-17")
def test_a_loop_that_ended_with_calls_at_work_leaves_nothing_for_the_next() -> None:
    never = threading.Event()

    async def hangs() -> None:
        await asyncio.Event().wait()

    def hangs_in_thread() -> None:
        never.wait(WAIT)

    processor = ToolProcessor(
        create_registry(*KINDS, hangs, hangs_in_thread), default_timeout=60
    )

    async def leave() -> None:
        running = asyncio.ensure_future(
            processor.process([call("hangs"), call("hangs_in_thread", 1)])
        )
        await settle()
        assert not running.done()

    loop = asyncio.new_event_loop()  # closed as it is: nobody cancels what runs there
    loop.run_until_complete(leave())
    loop.close()
    assert asyncio.run(_all_kinds(processor, "next")) == ["nothing"] * 10

    async def close() -> None:
        await asyncio.wait_for(processor.close(), WAIT)

    asyncio.run(close())
    never.set()


@pytest.mark.req("T-RUN-17")
def test_two_loops_at_once_are_told_apart_before_anything_goes_wrong() -> None:
    begun, go = threading.Event(), threading.Event()
    answers: list[Any] = []

    async def waits() -> str:
        begun.set()
        while not go.is_set():
            await asyncio.sleep(0.001)
        return "ended"

    async def quick() -> str:
        return "quick"

    processor = ToolProcessor(create_registry(waits, quick))

    def first() -> None:
        answers.extend(asyncio.run(processor.process([call("waits")])))

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(WAIT)
    with pytest.raises(RuntimeError, match="one processor"):
        asyncio.run(processor.process([call("quick")]))
    with pytest.raises(RuntimeError, match="one processor"):
        asyncio.run(taken(processor.astream([call("quick")])))
    go.set()
    thread.join(WAIT)
    assert [answer.result for answer in answers] == ["ended"]
    [after] = asyncio.run(processor.process([call("quick")]))
    assert after.result == "quick"


@pytest.mark.req("T-RUN-17")
def test_two_loops_with_a_processor_each_share_a_registry() -> None:
    registry = create_registry(*KINDS)
    found: list[Any] = []

    def work(mark: str) -> None:
        processor = ToolProcessor(registry, **LIMITED)
        for turn in range(5):
            found.append(asyncio.run(_all_kinds(processor, f"{mark}{turn}")))

    threads = [threading.Thread(target=work, args=(mark,)) for mark in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert found == [["nothing"] * 10] * 15


def _loops() -> dict[str, Any]:
    found: dict[str, Any] = {"plain": {}, "debug": {"debug": True}}
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        found["uvloop"] = {"loop_factory": uvloop.new_event_loop}
    return found


def _eager(loop: asyncio.AbstractEventLoop) -> None:
    factory: Any = getattr(asyncio, "eager_task_factory", None)
    loop.set_task_factory(factory)


async def _everything(clock: FakeClock) -> None:
    """Streams, threads, limits, cancellations and abandoned tools on one loop."""

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await clock.sleep(100)

    async def numbers() -> AsyncIterator[int]:
        for n in range(200):
            yield n

    def numbers_in_thread() -> Iterator[int]:
        yield from range(200)

    tools = (*KINDS, stubborn, numbers, numbers_in_thread)
    processor = ToolProcessor(
        create_registry(*tools), clock=clock, default_timeout=1.0, max_concurrency=3
    )
    assert await _all_kinds(processor, "x") == ["nothing"] * 10
    for name in ("numbers", "numbers_in_thread"):
        results = await asyncio.wait_for(taken(processor.astream([call(name)])), WAIT)
        assert [r.result for r in results] == [*range(200), 199]
        stream = processor.astream([call(name)])
        await anext(stream)
        await stream.aclose()
    running = asyncio.ensure_future(processor.process([call("stubborn")]))
    await clock.advance(1.0)
    await clock.advance(1.0)
    [result] = await asyncio.wait_for(running, WAIT)
    assert result.error_code == ErrorCode.TOOL_TIMEOUT
    running = asyncio.ensure_future(processor.process([call("later", mark="y")] * 5))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    await clock.advance(200)
    await settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.req("T-RUN-17")
@pytest.mark.parametrize("kind", _loops())
def test_it_works_on_every_kind_of_loop(kind: str) -> None:
    with asyncio.Runner(**_loops()[kind]) as runner:
        runner.run(_everything(FakeClock()))


@pytest.mark.req("T-RUN-17")
@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are newer")
def test_it_works_with_eager_tasks() -> None:
    with asyncio.Runner() as runner:
        _eager(runner.get_loop())
        runner.run(_everything(FakeClock()))


@pytest.mark.req("T-RUN-17")
async def test_the_reader_of_a_thread_is_no_matter_of_the_loops_task_factory() -> None:
    made: list[Any] = []
    loop = asyncio.get_running_loop()

    def factory(owner: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(coro)
        return asyncio.Task(coro, loop=owner, **options)

    def numbers() -> Iterator[int]:
        yield from range(10)

    async def many() -> int:
        await asyncio.sleep(0)
        return 1

    processor = ToolProcessor(create_registry(numbers, many))
    loop.set_task_factory(factory)
    try:
        await processor.process([call("many", n) for n in range(50)])
        assert not made  # an eager one would begin each worker inside of the last
        results = await taken(processor.astream([call("numbers")]))
    finally:
        loop.set_task_factory(None)
    assert [result.result for result in results] == [*range(10), 9]
    assert [coro.__name__ for coro in made] == ["_finish"]


# --- odd tools ------------------------------------------------------------------------
@pytest.mark.req("T-RUN-18")
@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_tool_that_recurses_without_end_is_one_failed_call(
    *, in_thread: bool
) -> None:
    async def deep(n: int = 0) -> Any:
        return await deep(n)

    def deep_sync(n: int = 0) -> Any:
        return deep_sync(n)

    async def good() -> str:
        await asyncio.sleep(0)
        return "good"

    processor = ToolProcessor(create_registry(deep, deep_sync, good))
    name = "deep_sync" if in_thread else "deep"
    calls = [call("good", 0), call(name, 1), call("good", 2)]
    results = await processor.execute(calls, return_order="submission")
    assert [result.result for result in results] == ["good", None, "good"]
    assert isinstance(results[1].exception, RecursionError)


@pytest.mark.req("T-RUN-18")
async def test_a_value_that_is_work_to_be_done_is_handed_on_and_not_run() -> None:
    """Only a plain function may give an awaitable, which is awaited for it."""
    future = asyncio.get_running_loop().create_future()
    future.set_result("later")
    error = ValueError("a value")
    generator = (n for n in range(3))

    async def gives(what: str) -> Any:
        return {"future": future, "error": error, "generator": generator}[what]

    async def inner() -> str:
        return "awaited"

    def gives_coroutine() -> Any:
        return inner()

    def gives_generator() -> Any:
        return (n for n in range(3))

    processor = ToolProcessor(create_registry(gives, gives_coroutine, gives_generator))
    for what, value in (("future", future), ("error", error), ("generator", generator)):
        [result] = await processor.process([call("gives", what=what)])
        assert result.result is value
        assert result.is_success
        if what != "error":
            with pytest.raises(TypeError, match="cannot be written"):
                result.to_observation()
    [result] = await processor.process([call("gives_coroutine")])
    assert result.result == "awaited"
    results = await taken(processor.astream([call("gives_generator")]))
    assert [r.result for r in results] == [0, 1, 2, 2]


@pytest.mark.req("T-RUN-18")
async def test_ten_thousand_calls_wait_at_once() -> None:
    go = asyncio.Event()

    async def waits(n: int) -> int:
        await go.wait()
        return n

    strategy = InProcessStrategy(create_registry(waits))
    running = asyncio.ensure_future(
        strategy.run([call("waits", n, n=n) for n in range(10_000)])
    )
    async with asyncio.timeout(WAIT):
        while strategy.active < 10_000:
            await asyncio.sleep(0)
        go.set()
        results = await running
    assert sorted(result.result for result in results) == list(range(10_000))
    assert strategy.active == 0


# --- calls that make calls ------------------------------------------------------------
@pytest.mark.req("T-RUN-19")
@pytest.mark.parametrize("depth", [1, 5, 200])
@pytest.mark.parametrize("limit", [None, 1, 2])
async def test_a_tool_may_call_tools_whatever_the_limit(
    limit: int | None, depth: int
) -> None:
    async def nested(depth: int) -> int:
        if not depth:
            return 0
        [result] = await processor.process([call("nested", depth=depth - 1)])
        assert result.is_success, result.error
        return int(result.result) + 1

    processor = ToolProcessor(create_registry(nested), None, None, limit)
    calls = [call("nested", n, depth=depth) for n in range(3)]
    results = await asyncio.wait_for(processor.process(calls), WAIT)
    assert [result.result for result in results] == [depth] * 3
    for gate in processor._ready().paths.gates:
        assert (gate.active, gate.waiting) == (0, 0)


@pytest.mark.req("T-RUN-19")
async def test_two_processors_that_call_each_other_end() -> None:
    async def ping(n: int) -> int:
        if not n:
            return 0
        [result] = await second.process([call("pong", n=n - 1)])
        return int(result.result) + 1

    async def pong(n: int) -> int:
        if not n:
            return 0
        [result] = await taken(first.astream([call("ping", n=n - 1)]))
        return int(result.result) + 1

    strategy = InProcessStrategy(create_registry(ping), max_concurrency=1)
    first = ToolProcessor(strategy.registry, strategy, None, 1)
    second = ToolProcessor(create_registry(pong), None, None, 1)
    [result] = await asyncio.wait_for(first.process([call("ping", n=20)]), WAIT)
    assert result.result == 20


@pytest.mark.req("T-RUN-19")
async def test_calls_of_a_tool_count_as_its_own_and_others_still_wait(
    fake_clock: FakeClock,
) -> None:
    at_work: list[str] = []

    async def leaf(name: str) -> None:
        at_work.append(name)
        await fake_clock.sleep(1)
        at_work.remove(name)

    async def start() -> None:
        await processor.process([call("leaf", n, name=f"l{n}") for n in (1, 2)])

    processor = ToolProcessor(create_registry(leaf, start), None, None, 1)
    nested = asyncio.ensure_future(processor.process([call("start")]))
    await settle()
    other = asyncio.ensure_future(processor.process([call("leaf", name="other")]))
    await settle()
    assert at_work == ["l1", "l2"]
    await fake_clock.advance(1)
    assert nested.done()
    assert at_work == ["other"]
    await fake_clock.advance(1)
    assert other.done()
