"""Tools that call tools in turn: nothing waits for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit._threads import run_in_thread
from executionkit.backends import InMemoryCache
from executionkit.calls import ToolCall, ToolResult
from executionkit.engine.bulkhead import BulkheadConfig
from executionkit.errors import ErrorCode, ToolReentrantError
from executionkit.testing import FakeClock, settle
from executionkit.tools._nesting import MAKES_CALLS
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry
from executionkit.tools.strategies import InProcessStrategy

if TYPE_CHECKING:
    from executionkit.engine._slots import Slots

WAIT = 20
LEVELS: dict[str, BulkheadConfig] = {
    "tool": BulkheadConfig(default_limit=1),
    "named": BulkheadConfig(tool_limits={"nested": 1}),
    "pattern": BulkheadConfig(patterns={"n*": 1}),
    "namespace": BulkheadConfig(namespace_limits={"default": 1}),
    "global": BulkheadConfig(global_limit=1),
    "two": BulkheadConfig(default_limit=2, global_limit=2),
    "all": BulkheadConfig(
        default_limit=1, namespace_limits={"default": 1}, global_limit=1
    ),
}


def call(name: str, place: int = 0, /, **arguments: Any) -> ToolCall:
    return ToolCall(f"c{place}", name, arguments)


def limited(config: BulkheadConfig, *tools: Any, **options: Any) -> ToolProcessor:
    registry = create_registry(*tools)
    return ToolProcessor(
        registry, enable_bulkhead=True, bulkhead_config=config, **options
    )


async def ended(work: Awaitable[list[ToolResult]]) -> list[ToolResult]:
    return await asyncio.wait_for(work, WAIT)


def slots_of(processor: ToolProcessor) -> Slots:
    return processor._ready().bulkheads.bulkhead.slots


def check_all_free(processor: ToolProcessor) -> None:
    slots = slots_of(processor)
    for route in slots.routes():
        assert route.acquired == route.released
        assert [(pool.active, pool.waiting) for pool in route.resources] == [
            (0, 0) for _ in route.resources
        ]
    assert not slots._loans._open
    assert not slots._desk.lanes


async def directly(processor: ToolProcessor, made: ToolCall) -> ToolResult:
    [result] = await processor.process([made])
    return result


async def in_task(processor: ToolProcessor, made: ToolCall) -> ToolResult:
    return await asyncio.create_task(directly(processor, made))


async def in_thread(processor: ToolProcessor, made: ToolCall) -> ToolResult:
    loop = asyncio.get_running_loop()

    def ask() -> ToolResult:
        waiting = asyncio.run_coroutine_threadsafe(directly(processor, made), loop)
        return waiting.result(WAIT)

    return await run_in_thread(ask)


WAYS = [directly, in_task, in_thread]


# --- slots ----------------------------------------------------------------------------
@pytest.mark.req("nesting.slots")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("config", LEVELS.values(), ids=LEVELS)
async def test_a_tool_may_call_itself_inside_of_any_limit(
    config: BulkheadConfig, way: Callable[..., Awaitable[ToolResult]]
) -> None:
    async def nested(depth: int) -> int:
        if not depth:
            return 0
        result = await way(processor, call("nested", depth=depth - 1))
        assert result.is_success, result.error
        return int(result.result) + 1

    processor = limited(config, nested)
    calls = [call("nested", n, depth=4) for n in range(4)]
    results = await ended(processor.process(calls))
    assert [result.result for result in results] == [4] * 4
    check_all_free(processor)


@pytest.mark.req("nesting.slots")
async def test_plain_functions_lend_their_threads() -> None:
    loop = asyncio.get_running_loop()

    def nested(depth: int) -> int:
        if not depth:
            return 0
        made = directly(processor, call("nested", depth=depth - 1))
        result = asyncio.run_coroutine_threadsafe(made, loop).result(WAIT)
        assert result.is_success, result.error
        return int(result.result) + 1

    strategy = InProcessStrategy(create_registry(nested), max_threads=1)
    processor = ToolProcessor(strategy.registry, strategy)
    calls = [call("nested", n, depth=3) for n in range(3)]
    results = await ended(processor.process(calls))
    assert [result.result for result in results] == [3] * 3
    assert (strategy._thread_gate.active, strategy._thread_gate.waiting) == (0, 0)


@pytest.mark.req("nesting.one-at-a-time")
@pytest.mark.parametrize(("limit", "most"), [(1, 1), (2, 2), (3, 3)])
async def test_a_slot_is_lent_to_one_call_at_a_time(
    limit: int, most: int, fake_clock: FakeClock
) -> None:
    at_work: list[int] = []
    peaks: list[int] = []

    async def leaf(n: int) -> None:
        at_work.append(n)
        peaks.append(len(at_work))
        await fake_clock.sleep(1)
        at_work.remove(n)

    async def start() -> int:
        leaves = [call("leaf", n, n=n) for n in range(7)]
        return sum(result.is_success for result in await processor.process(leaves))

    processor = limited(BulkheadConfig(global_limit=limit), start, leaf)
    running = asyncio.ensure_future(processor.process([call("start")]))
    for _ in range(7):
        await settle()
        await fake_clock.advance(1)
    [result] = await running
    assert result.result == 7
    assert max(peaks) == most
    check_all_free(processor)


@pytest.mark.req("nesting.one-at-a-time")
async def test_others_wait_for_the_call_and_all_that_it_calls(
    fake_clock: FakeClock,
) -> None:
    seen: list[str] = []

    async def leaf(name: str) -> None:
        seen.append(name)
        await fake_clock.sleep(1)

    async def start() -> None:
        await processor.process([call("leaf", name="inner")])
        seen.append("start goes on")
        await fake_clock.sleep(1)

    processor = limited(BulkheadConfig(global_limit=1), start, leaf)
    running = asyncio.ensure_future(processor.process([call("start")]))
    await settle()
    other = asyncio.ensure_future(processor.process([call("leaf", name="other")]))
    for _ in range(3):
        await settle()
        await fake_clock.advance(1)
    await asyncio.gather(running, other)
    assert seen == ["inner", "start goes on", "other"]
    check_all_free(processor)


@pytest.mark.req("nesting.outliving")
async def test_a_call_that_outlives_its_caller_keeps_the_slot(
    fake_clock: FakeClock,
) -> None:
    seen: list[str] = []
    left: list[asyncio.Task[Any]] = []

    async def leaf(name: str) -> None:
        seen.append(name)
        await fake_clock.sleep(1)

    async def start() -> None:
        inner = processor.process([call("leaf", name="inner")])
        left.append(asyncio.ensure_future(inner))
        await settle()

    processor = limited(BulkheadConfig(global_limit=1), start, leaf)
    await ended(processor.process([call("start")]))
    other = asyncio.ensure_future(processor.process([call("leaf", name="other")]))
    await settle()
    assert seen == ["inner"]
    await fake_clock.advance(1)
    assert seen == ["inner", "other"]
    await fake_clock.advance(1)
    await asyncio.gather(other, *left)
    check_all_free(processor)


@pytest.mark.req("nesting.outliving", "nesting.one-at-a-time")
async def test_who_ends_hands_a_borrowed_slot_on_to_who_has_it_from_him() -> None:
    left, gate = asyncio.Event(), asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []
    at_work: list[str] = []

    async def outer() -> None:
        await directly(processor, call("middle"))
        left.set()
        await gate.wait()

    async def middle() -> None:
        work = processor.process([call("leaf", n) for n in range(3)])
        tasks.append(asyncio.create_task(work))
        while not at_work:
            await asyncio.sleep(0)

    async def leaf() -> None:
        at_work.append("leaf")
        assert len(at_work) == 1
        await gate.wait()
        at_work.remove("leaf")

    processor = limited(BulkheadConfig(global_limit=1), outer, middle, leaf)
    async with asyncio.timeout(WAIT):
        whole = asyncio.create_task(processor.process([call("outer")]))
        await left.wait()
        await settle()
        assert at_work == ["leaf"]
        gate.set()
        assert (await whole)[0].is_success
        results = await tasks[0]
    assert [result.error for result in results] == [None] * 3
    check_all_free(processor)


@pytest.mark.req("nesting.outliving")
async def test_who_has_ended_lends_nothing() -> None:
    """A task that a tool has left behind waits as everybody does."""
    go = asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    async def leaf() -> str:
        return "leaf"

    async def hold() -> None:
        await go.wait()

    async def late() -> list[ToolResult]:
        await started.wait()
        return await processor.process([call("leaf")])

    async def start() -> None:
        left.append(asyncio.ensure_future(late()))

    started = asyncio.Event()
    processor = limited(BulkheadConfig(global_limit=1), start, leaf, hold)
    await ended(processor.process([call("start")]))
    holding = asyncio.ensure_future(processor.process([call("hold")]))
    await settle()
    started.set()
    await settle()
    assert not left[0].done()
    go.set()
    await asyncio.gather(holding, *left)
    check_all_free(processor)


@pytest.mark.req("nesting.cancel")
@pytest.mark.parametrize("steps", range(12))
async def test_cancelled_borrowers_and_lenders_give_everything_back(
    steps: int,
) -> None:
    async def leaf() -> None:
        await asyncio.sleep(0)

    async def start() -> None:
        await processor.process([call("leaf", n) for n in range(3)])

    processor = limited(BulkheadConfig(global_limit=1, default_limit=2), start, leaf)
    running = asyncio.ensure_future(processor.process([call("start"), call("start")]))
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await settle()
    check_all_free(processor)
    [result] = await ended(processor.process([call("start")]))
    assert result.is_success


@pytest.mark.req("nesting.slots", "bulkhead.live")
@pytest.mark.parametrize("limit", [1, 2, None])
async def test_limits_may_change_while_slots_are_lent(
    limit: int | None, fake_clock: FakeClock
) -> None:
    at_work: list[int] = []

    async def leaf(n: int) -> None:
        at_work.append(n)
        await fake_clock.sleep(1)
        at_work.remove(n)

    async def start() -> None:
        await processor.process([call("leaf", n, n=n) for n in range(4)])

    config = BulkheadConfig(
        namespace_limits={"default": 1}, tool_limits={"leaf": 1}, default_limit=1
    )
    processor = limited(config, start, leaf)
    running = asyncio.ensure_future(processor.process([call("start")]))
    await settle()
    bulkhead = processor._ready().bulkheads.bulkhead
    bulkhead.configure_namespace("default", limit)
    bulkhead.configure_tool("leaf", limit)
    await settle()
    assert len(at_work) == (limit or 1)
    for _ in range(4):
        await settle()
        await fake_clock.advance(1)
    await running
    check_all_free(processor)


@pytest.mark.req("nesting.slots", "bulkhead.live")
async def test_counts_stay_right_when_limits_change_in_the_middle() -> None:
    async def nested(depth: int) -> int:
        if depth == 2:
            bulkhead.configure_namespace("default", 3)
        if not depth:
            return 0
        return 1 + int(
            (await directly(processor, call("nested", depth=depth - 1))).result
        )

    processor = limited(BulkheadConfig(default_limit=1), nested)
    bulkhead = processor._ready().bulkheads.bulkhead
    [result] = await ended(processor.process([call("nested", depth=4)]))
    assert result.result == 4
    check_all_free(processor)


@pytest.mark.req("nesting.bounded")
@pytest.mark.parametrize("limits", [{"default_timeout": 5}, {}])
async def test_calls_that_hold_what_others_need_end_with_their_time(
    limits: dict[str, float], fake_clock: FakeClock
) -> None:
    both = asyncio.Barrier(2)

    async def other(name: str) -> str | None:
        await both.wait()
        return (await directly(processor, call(name, name="x"))).error

    async def a(name: str) -> str | None:
        return None if name == "x" else await other("b")

    async def b(name: str) -> str | None:
        return None if name == "x" else await other("a")

    config = BulkheadConfig(default_limit=1, acquisition_timeout=None if limits else 2)
    options: dict[str, Any] = {"default_timeout": None, **limits}
    processor = limited(config, a, b, **options)
    calls = [call("a", 1, name=""), call("b", 2, name="")]
    running = asyncio.ensure_future(processor.process(calls))
    await settle()
    assert not running.done()
    await fake_clock.advance(5)
    results = await ended(running)
    if limits:
        assert {r.error_code for r in results} == {ErrorCode.TOOL_TIMEOUT}
    else:  # one gives up; the other one gets what it held
        assert any("Bulkhead full" in str(result.result) for result in results)
        assert all(result.is_success for result in results)
    check_all_free(processor)


TREES: Any = st.recursive(
    st.just(()), lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple)
)


@pytest.mark.req("nesting.slots", "nesting.one-at-a-time")
@given(
    trees=st.lists(TREES, min_size=1, max_size=4),
    limit=st.integers(1, 3),
    level=st.integers(0, 3),
)
@settings(max_examples=60)  # fmt: skip
def test_any_tree_of_calls_ends_inside_of_its_limit(
    trees: list[Any], limit: int, level: int
) -> None:
    at_work = 0

    async def node(tree: list[Any]) -> int:
        nonlocal at_work
        at_work += 1
        assert at_work <= limit
        await asyncio.sleep(0)
        at_work -= 1
        if not tree:
            return 1
        made = [call("node", n, tree=inner) for n, inner in enumerate(tree)]
        return 1 + sum(int(r.result) for r in await processor.process(made))

    config = [
        BulkheadConfig(default_limit=limit),
        BulkheadConfig(patterns={"*": limit}),
        BulkheadConfig(namespace_limits={"default": limit}),
        BulkheadConfig(global_limit=limit),
    ][level]
    processor = limited(config, node)
    made = [call("node", n, tree=tree) for n, tree in enumerate(trees)]
    results = asyncio.run(ended(processor.process(made, return_order="submission")))
    assert [result.result for result in results] == [size(tree) for tree in trees]
    check_all_free(processor)


def size(tree: Any) -> int:
    return 1 + sum(size(inner) for inner in tree)


@pytest.mark.req("nesting.outliving")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"bulkhead_config": BulkheadConfig(global_limit=1)}, {"enable_caching": True}],
)
async def test_a_chain_of_tasks_keeps_no_calls_alive(
    options: dict[str, Any], fails: bool
) -> None:
    left: list[asyncio.Task[Any]] = []
    lengths: list[int] = []

    async def again(n: int) -> None:
        found, length = MAKES_CALLS.get(), 0
        while found is not None:
            found, length = found.caller, length + 1
        lengths.append(length)

        async def later() -> None:
            await settle()
            await processor.process([call("again", n=n - 1)])

        if n:
            left.append(asyncio.ensure_future(later()))
        if fails:
            raise RuntimeError

    processor = ToolProcessor(create_registry(again), **options)
    await ended(processor.process([call("again", n=9)]))
    while len(lengths) < 10:
        await asyncio.wait_for(left[-1], WAIT)
    assert lengths == [1] * 10


# --- equal calls ----------------------------------------------------------------------
class Slow(InMemoryCache):
    """A cache that has to be waited for, as one over a network."""

    is_sync = False


CACHES: dict[str, dict[str, Any]] = {
    "memory": {"enable_caching": True},
    "waiting": {},
    "with retries": {"enable_caching": True, "enable_retries": True},
}


@pytest.mark.req("nesting.equal-calls")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", CACHES.values(), ids=CACHES)
async def test_a_cached_tool_that_calls_itself_is_told_so(
    options: dict[str, Any], way: Callable[..., Awaitable[ToolResult]]
) -> None:
    seen: list[ToolResult] = []

    async def first(n: int) -> str:
        seen.append(await way(processor, call("second", n=n)))
        return "first"

    async def second(n: int) -> str:
        seen.append(await way(processor, call("first", n=n)))
        return "second"

    options = options or {"cache": Slow()}
    processor = ToolProcessor(create_registry(first, second), **options)
    [result] = await ended(processor.process([call("first", n=1)]))
    assert result.result == "first"
    inner, outer = seen
    assert isinstance(inner.exception, ToolReentrantError)
    assert (inner.error_code, inner.attempts) == (ErrorCode.TOOL_REENTRANT, 0)
    assert not inner.retryable
    assert outer.result == "second"
    [again] = await ended(processor.process([call("first", n=1)]))
    assert again.cached


@pytest.mark.req("nesting.equal-calls")
async def test_other_arguments_are_another_call() -> None:
    async def count(n: int) -> int:
        if not n:
            return 0
        result = await directly(processor, call("count", n=n - 1))
        return 1 + int(result.result)

    processor = ToolProcessor(create_registry(count), enable_caching=True)
    results = await ended(processor.process([call("count", n, n=5) for n in range(3)]))
    assert [result.result for result in results] == [5] * 3


@pytest.mark.req("nesting.equal-calls")
async def test_equal_calls_of_two_processors_are_two_calls() -> None:
    def making(tool: Any) -> ToolProcessor:
        return ToolProcessor(create_registry(tool), enable_caching=True)

    async def ask_outer(n: int) -> str:
        return f"outer, {(await directly(inner, call('ask', n=n))).result}"

    async def ask_inner(n: int) -> str:
        await go.wait()
        return f"inner {n}"

    go = asyncio.Event()

    ask_outer.__name__ = ask_inner.__name__ = "ask"
    inner, outer = making(ask_inner), making(ask_outer)
    first = asyncio.ensure_future(inner.process([call("ask", n=1)]))
    second = asyncio.ensure_future(outer.process([call("ask", n=1)]))
    await settle()
    go.set()
    [result] = await ended(second)
    assert result.result == "outer, inner 1"
    await first


@pytest.mark.req("nesting.equal-calls")
async def test_two_calls_that_wait_for_each_other_are_told_so() -> None:
    both = asyncio.Barrier(2)
    seen: list[ToolResult] = []

    async def ask(other: str) -> str:
        await both.wait()
        seen.append(await directly(processor, call(other)))
        return other

    async def a() -> str:
        return await ask("b")

    async def b() -> str:
        return await ask("a")

    processor = ToolProcessor(create_registry(a, b), enable_caching=True)
    results = await ended(processor.process([call("a", 1), call("b", 2)]))
    assert sorted(str(result.result) for result in results) == ["a", "b"]
    refused, served = seen
    assert refused.error_code is ErrorCode.TOOL_REENTRANT
    assert served.cached
    assert served.is_success


@pytest.mark.req("nesting.equal-calls")
async def test_a_follower_that_takes_over_leads_its_own_calls() -> None:
    begun: list[int] = []
    seen: list[ToolResult] = []

    async def twice() -> str:
        begun.append(1)
        if len(begun) == 1:
            await asyncio.Event().wait()
        seen.append(await directly(processor, call("twice")))
        return "done"

    processor = ToolProcessor(create_registry(twice), enable_caching=True)
    first = asyncio.ensure_future(processor.process([call("twice")]))
    await settle()
    second = asyncio.ensure_future(processor.process([call("twice")]))
    await settle()
    first.cancel()
    [result] = await ended(second)
    assert (result.result, len(begun)) == ("done", 2)
    assert seen[0].error_code is ErrorCode.TOOL_REENTRANT


@pytest.mark.req("nesting.equal-calls", "cache.single-flight")
async def test_equal_calls_of_one_tool_wait_for_one_another() -> None:
    runs: list[int] = []

    async def leaf(n: int) -> int:
        runs.append(n)
        await asyncio.sleep(0)
        return n

    async def start(mark: int) -> list[Any]:
        made = [call("leaf", place, n=7) for place in range(3)]
        return [result.result for result in await processor.process(made)]

    processor = ToolProcessor(create_registry(start, leaf), enable_caching=True)
    made = [call("start", n, mark=n) for n in range(3)]
    results = await ended(processor.process(made))
    assert [list(result.result) for result in results] == [[7] * 3] * 3
    assert runs == [7]


@pytest.mark.req("nesting.equal-calls")
async def test_an_idempotency_key_does_not_wait_for_itself() -> None:
    seen: list[ToolResult] = []

    async def pay(n: int) -> str:
        seen.append(await directly(processor, paying()))
        return "paid"

    def paying() -> ToolCall:
        return ToolCall("c", "pay", {"n": 1}, idempotency_key="k")

    processor = ToolProcessor(create_registry(pay))
    [result] = await ended(processor.process([paying()]))
    assert result.result == "paid"
    assert seen[0].error_code is ErrorCode.TOOL_REENTRANT
    [again] = await ended(processor.process([paying()]))
    assert again.cached
