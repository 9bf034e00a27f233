"""Faults that a runtime of this design has had: each one, with what is right."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executionkit.calls import ReturnOrder, ToolCall, ToolResult
from executionkit.context import ExecutionContext, execution_scope
from executionkit.engine.breaker import BreakerConfig
from executionkit.engine.bulkhead import BulkheadConfig
from executionkit.engine.retry import RetryConfig
from executionkit.errors import ErrorCode, ToolRegistrationError
from executionkit.testing import FakeClock, settle
from executionkit.tools.decorators import get_default_registry, reset_registry, tool
from executionkit.tools.guard_rules import NetworkGuard
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import ToolRegistry, create_registry
from executionkit.tools.strategies import InProcessStrategy

LAYERS: dict[str, dict[str, Any]] = {
    "cache": {"enable_caching": True},
    "retries": {"enable_retries": True},
    "breaker": {"enable_circuit_breaker": True},
    "rate limit": {"enable_rate_limiting": True, "global_rate_limit": 1000},
    "bulkhead": {"enable_bulkhead": True},
}
COMBINATIONS = [
    names
    for size in range(len(LAYERS) + 1)
    for names in itertools.combinations(LAYERS, size)
    if size in {0, 1, 2, len(LAYERS)}
]


def with_layers(names: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for name in names for key, value in LAYERS[name].items()}


class Sleeper:
    """Sleeps on a fake clock; what it does after waking is an effect."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.started: list[float] = []
        self.effects: list[float] = []
        self.cleaned = 0

    async def execute(self, seconds: float = 0.0) -> float:
        self.started.append(seconds)
        try:
            await self.clock.sleep(seconds)
        finally:
            self.cleaned += 1
        self.effects.append(seconds)
        return seconds


def sleeper(clock: FakeClock) -> tuple[Sleeper, ToolRegistry]:
    work = Sleeper(clock)
    registry = create_registry()
    registry.add(work, "sleeper")
    return work, registry


def sleeps(*seconds: float) -> list[ToolCall]:
    return [ToolCall(f"c{i}", "sleeper", {"seconds": n}) for i, n in enumerate(seconds)]


async def one(processor: ToolProcessor, name: str, **arguments: Any) -> ToolResult:
    [result] = await processor.process([{"tool": name, "arguments": arguments}])
    return result


async def taken(stream: AsyncIterator[ToolResult]) -> list[ToolResult]:
    return [result async for result in stream]


# --- 01, 02: parallel, and cached -----------------------------------------------------
@pytest.mark.req("T-TRAP-01", "T-SEED-06")
@pytest.mark.parametrize("names", COMBINATIONS, ids="+".join)
async def test_calls_of_a_batch_start_at_once_whatever_is_on(
    auto_clock: FakeClock, names: tuple[str, ...]
) -> None:
    _work, registry = sleeper(auto_clock)
    processor = ToolProcessor(registry, **with_layers(names))
    began = auto_clock.monotonic()
    results = await processor.execute(sleeps(0.4, 0.3, 0.1))
    assert auto_clock.monotonic() == began + 0.4
    assert [result.call_id for result in results] == ["c2", "c1", "c0"]


@pytest.mark.req("T-TRAP-02", "T-SEED-03")
async def test_the_second_equal_call_comes_from_the_cache() -> None:
    runs = 0

    async def search(query: str) -> str:
        nonlocal runs
        runs += 1
        return query

    async with ToolProcessor(create_registry(search), enable_caching=True) as p:
        call = '<tool name="search" args=\'{"query": "Python"}\'/>'
        first, second = await p.process(call), await p.process(call)
    assert (first[0].cached, second[0].cached, runs) == (False, True, 1)
    assert first[0].result == second[0].result == "Python"


# --- 04: one signature ----------------------------------------------------------------
@pytest.mark.req("T-TRAP-04")
@pytest.mark.parametrize("order", [None, *ReturnOrder])
@pytest.mark.parametrize("given", [False, True])
async def test_every_way_in_takes_the_same_arguments(order: Any, given: bool) -> None:
    async def echo(text: str) -> str:
        return text

    registry = create_registry(echo)
    strategy = InProcessStrategy(registry) if given else None
    processor = ToolProcessor(registry, strategy)
    call = ToolCall("a", "echo", {"text": "x"})
    found = [
        await processor.process([call], 5, True, "r1", None, order),
        await processor.execute([call], 5, True, return_order=order or "completion"),
        await taken(processor.astream([call], 5, True, "r1")),
        await taken(processor.process_batch([call], timeout=5)),
        list(await processor.run_calls([call])),
    ]
    assert [[r.result for r in results] for results in found] == [["x"]] * 5


# --- 06, 07: cancellation -------------------------------------------------------------
WAYS: dict[str, Callable[[ToolProcessor, list[ToolCall]], Any]] = {
    "process": lambda p, calls: p.process(calls),
    "execute": lambda p, calls: p.execute(calls),
    "run_calls": lambda p, calls: p.run_calls(calls),
    "astream": lambda p, calls: taken(p.astream(calls)),
    "process_batch": lambda p, calls: taken(p.process_batch(calls)),
}


@pytest.mark.req("T-TRAP-06", "T-TRAP-07", "T-SEED-11", "T-SEED-12")
@pytest.mark.parametrize("names", [(), tuple(LAYERS)], ids=["plain", "all layers"])
@pytest.mark.parametrize("way", WAYS)
async def test_cancelling_the_caller_cancels_the_tools_and_waits_for_their_ends(
    fake_clock: FakeClock, way: str, names: tuple[str, ...]
) -> None:
    work, registry = sleeper(fake_clock)
    processor = ToolProcessor(registry, **with_layers(names))
    task = asyncio.ensure_future(WAYS[way](processor, sleeps(0.4, 0.3, 0.5)))
    await settle()
    assert len(work.started) == 3
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert work.cleaned == 3
    await fake_clock.advance(10)
    assert work.effects == []
    assert len(work.started) == 3
    assert (await processor.stats()).active == 0


@pytest.mark.req("T-TRAP-06", "T-SEED-11")
@pytest.mark.parametrize("way", WAYS)
async def test_a_deadline_around_the_call_cancels_the_tools(
    auto_clock: FakeClock, way: str
) -> None:
    work, registry = sleeper(auto_clock)
    processor = ToolProcessor(registry)
    with pytest.raises(TimeoutError):
        async with auto_clock.timeout(0.1):
            await WAYS[way](processor, sleeps(0.4, 0.3, 0.5))
    assert work.cleaned == 3
    await auto_clock.sleep(5)
    assert work.effects == []


@pytest.mark.req("T-TRAP-06", "T-SEED-10")
@pytest.mark.parametrize("how", ["break", "aclose", "cancel", "raise"])
async def test_a_reader_that_leaves_a_stream_cancels_what_still_runs(
    auto_clock: FakeClock, how: str
) -> None:
    work, registry = sleeper(auto_clock)
    stream = ToolProcessor(registry).astream(sleeps(0.1, 3, 4))

    async def read() -> None:
        async for _ in stream:
            if how == "raise":
                raise LookupError
            if how == "cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            elif how == "break":
                break
            else:
                await stream.aclose()

    reading = asyncio.create_task(read())
    await asyncio.wait([reading])
    await stream.aclose()
    assert reading.cancelled() is (how == "cancel")
    assert work.cleaned == 3
    await auto_clock.sleep(10)
    assert work.effects == [0.1]


@pytest.mark.req("T-TRAP-06")
async def test_a_reader_that_leaves_a_full_queue_leaves_nothing_running() -> None:
    closed = asyncio.Event()

    async def many() -> AsyncIterator[int]:
        try:
            for n in range(1000):
                yield n
        finally:
            closed.set()

    stream = ToolProcessor(create_registry(many)).astream([{"tool": "many"}])
    async for _ in stream:
        break
    await settle()  # the queue fills
    await stream.aclose()
    assert closed.is_set()
    await settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.req("T-TRAP-07")
async def test_a_shutdown_ends_a_call_at_once_and_for_good(
    fake_clock: FakeClock,
) -> None:
    work, registry = sleeper(fake_clock)
    processor = ToolProcessor(registry, enable_retries=True)
    running = asyncio.create_task(processor.execute(sleeps(5, 5)))
    await settle()
    began = fake_clock.monotonic()
    await processor.close()
    results = await running
    assert fake_clock.monotonic() == began
    assert [result.error for result in results] == ["Execution was cancelled"] * 2
    assert {result.error_code for result in results} == {ErrorCode.TOOL_CANCELLED}
    assert {result.attempts for result in results} == {1}
    assert len(work.started) == 2


@pytest.mark.req("T-TRAP-07")
async def test_a_call_that_pauses_before_its_next_attempt_ends_with_a_shutdown(
    fake_clock: FakeClock,
) -> None:
    runs = 0

    async def fails() -> None:
        nonlocal runs
        runs += 1
        raise ConnectionError

    processor = ToolProcessor(
        create_registry(fails), enable_retries=True, retry_base_delay=50.0
    )
    running = asyncio.create_task(one(processor, "fails"))
    await settle()
    await processor.close()
    await fake_clock.advance(60)
    result = await asyncio.wait_for(running, 5)
    assert not result.is_success
    assert (runs, result.attempts) == (1, 1)


# --- 08, 09, 10: streaming ------------------------------------------------------------
@pytest.mark.req("T-TRAP-08", "T-SEED-17")
@pytest.mark.parametrize(("limit", "number"), [(1, 1), (1, 3), (4, 8), (2, 50)])
@pytest.mark.parametrize("by", ["processor", "strategy"])
async def test_a_stream_with_limited_concurrency_ends(
    auto_clock: FakeClock, limit: int, number: int, by: str
) -> None:
    work, registry = sleeper(auto_clock)
    calls = sleeps(*[0.1] * number)
    if by == "processor":
        stream: Any = ToolProcessor(registry, max_concurrency=limit).astream(calls)
    else:
        strategy = InProcessStrategy(registry, max_concurrency=limit)
        stream = strategy.stream_run(calls)
    began = auto_clock.monotonic()
    results = await asyncio.wait_for(taken(stream), 5)
    assert len(results) == len(work.effects) == number
    rounds = -(-number // limit)
    assert auto_clock.monotonic() == pytest.approx(began + 0.1 * rounds)


class Streaming:
    supports_streaming = True

    def __init__(self, clock: FakeClock, items: int, pause: str) -> None:
        self.clock = clock
        self.items = items
        self.pause = pause

    async def execute(self) -> str:
        return "whole"

    async def stream_execute(self) -> AsyncIterator[int]:
        for n in range(self.items):
            yield n
            if self.pause == "between":
                await self.clock.sleep(0.1)
        if self.pause == "after":
            await self.clock.sleep(1)


@pytest.mark.req("T-TRAP-09", "T-TRAP-10", "T-SEED-10")
@pytest.mark.parametrize("pause", ["never", "between", "after"])
@pytest.mark.parametrize("items", [0, 1, 5, 10, 300])
async def test_a_stream_gives_every_item_and_ends_with_its_tool(
    auto_clock: FakeClock, items: int, pause: str
) -> None:
    registry = create_registry()
    registry.add(Streaming(auto_clock, items, pause), "stream")
    processor = ToolProcessor(registry, default_timeout=60)
    results = await asyncio.wait_for(
        taken(processor.astream([ToolCall("s", "stream")])), 5
    )
    parts = [result for result in results if result.is_partial]
    assert [part.result for part in parts] == list(range(items))
    assert {part.call_id for part in results} == {"s"}
    assert len({part.stream_id for part in parts}) == min(items, 1)
    assert all(part.is_success for part in results)
    assert [result.is_partial for result in results[len(parts) :]] == [False]


@pytest.mark.req("T-TRAP-09")
async def test_a_streaming_tool_that_hangs_ends_at_its_limit(
    auto_clock: FakeClock,
) -> None:
    closed = asyncio.Event()

    async def hangs() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.set()

    processor = ToolProcessor(create_registry(hangs), default_timeout=2)
    results = await taken(processor.astream([{"tool": "hangs"}]))
    assert [(r.result, r.error) for r in results[:1]] == [(1, None)]
    assert results[-1].error == "Timeout after 2s"
    assert results[-1].result == [1]
    assert closed.is_set()


# --- 11, 12, 13: the cache ------------------------------------------------------------
@pytest.mark.req("T-TRAP-11")
async def test_the_cache_pairs_results_with_their_own_calls(
    auto_clock: FakeClock,
) -> None:
    async def echo(text: str, seconds: float) -> str:
        await auto_clock.sleep(seconds)
        return text

    processor = ToolProcessor(create_registry(echo), enable_caching=True)
    batch = [
        ToolCall("a", "echo", {"text": "A", "seconds": 2}),
        ToolCall("b", "echo", {"text": "B", "seconds": 1}),
    ]
    for cached in (False, True):
        found = {
            r.call_id: (r.result, r.cached) for r in await processor.execute(batch)
        }
        assert found == {"a": ("A", cached), "b": ("B", cached)}


@pytest.mark.req("T-TRAP-12", "CA-09")
async def test_only_equal_calls_have_one_result() -> None:
    seen: list[Any] = []

    async def keep(value: Any = "absent") -> int:
        seen.append(value)
        return len(seen)

    processor = ToolProcessor(create_registry(keep), enable_caching=True)
    values: list[Any] = [
        *(1, 1.0, True, "1", None, "absent", [1], ["1"], ["a,b"], ["a", "b"], [[]]),
        *({"a": 1}, {"a": None}, {}, {"1": 1}, {"a": {"b": 1}}, "a", [], "", 0, False),
    ]
    for n, value in enumerate(values, 1):
        [result] = await processor.execute(
            [ToolCall(f"c{n}", "keep", {"value": value})]
        )
        assert (result.result, result.cached) == (n, False), value
    [absent] = await processor.execute([ToolCall("x", "keep")])
    assert not absent.cached
    again = {"b": 1, "a": [1, {"d": 1, "c": 2}]}
    turned = {"a": [1, {"c": 2, "d": 1}], "b": 1}
    [first] = await processor.execute([ToolCall("p", "keep", {"value": again})])
    [second] = await processor.execute([ToolCall("q", "keep", {"value": turned})])
    assert (second.cached, second.result, second.call_id) == (True, first.result, "q")


@pytest.mark.req("T-TRAP-12", "CA-08")
@pytest.mark.parametrize("value", [None, "", [], {}, 0, False], ids=repr)
async def test_empty_results_are_results(value: Any) -> None:
    runs = 0

    async def give() -> Any:
        nonlocal runs
        runs += 1
        return value

    processor = ToolProcessor(create_registry(give), enable_caching=True)
    first, second = await one(processor, "give"), await one(processor, "give")
    assert (first.cached, second.cached, runs) == (False, True, 1)
    assert first.result == second.result == value


@pytest.mark.req("T-TRAP-12")
async def test_a_value_that_is_not_json_costs_no_other_call_its_result() -> None:
    async def keep(value: Any) -> int:
        return len(value)

    processor = ToolProcessor(create_registry(keep), enable_caching=True)
    odd: list[Any] = [{1: "a", "b": 2}, b"1", {"x"}, Path("a"), {(1, 2): 3}, object()]
    batch = [ToolCall("good", "keep", {"value": [1, 2]})]
    batch += [ToolCall(str(i), "keep", {"value": v}) for i, v in enumerate(odd)]
    good, *others = await processor.execute(batch, return_order="submission")
    assert (good.call_id, good.result) == ("good", 2)
    codes = [result.error_code for result in others]
    assert codes == [ErrorCode.TOOL_VALIDATION_ERROR] * len(odd)


@pytest.mark.req("T-TRAP-13")
@pytest.mark.parametrize("in_one_batch", [True, False])
async def test_equal_calls_at_once_run_once(
    auto_clock: FakeClock, in_one_batch: bool
) -> None:
    work, registry = sleeper(auto_clock)
    processor = ToolProcessor(registry, enable_caching=True)
    same = [ToolCall(f"c{i}", "sleeper", {"seconds": 1}) for i in range(50)]
    if in_one_batch:
        results = await processor.execute(same)
    else:
        batches = [processor.execute([call]) for call in same]
        results = [r for [r] in await asyncio.gather(*batches)]
    assert len(work.started) == 1
    assert {result.result for result in results} == {1}
    assert sum(result.cached for result in results) == 49
    assert len({result.call_id for result in results}) == 50


# --- 16: waiting in line --------------------------------------------------------------
@pytest.mark.req("T-TRAP-16")
async def test_calls_get_their_permits_in_the_order_they_came(
    auto_clock: FakeClock,
) -> None:
    order: list[int] = []

    async def note(n: int) -> None:
        order.append(n)

    processor = ToolProcessor(
        create_registry(note), default_timeout=None, tool_rate_limits={"note": (7, 1)}
    )
    await processor.execute([ToolCall(None, "note", {"n": n}) for n in range(200)])
    assert order == list(range(200))


# --- 28, 30: contexts and names -------------------------------------------------------
@pytest.mark.req("T-TRAP-28")
async def test_one_scope_serves_many_tasks_and_calls(auto_clock: FakeClock) -> None:
    work, registry = sleeper(auto_clock)
    processor = ToolProcessor(registry)
    scope = execution_scope(ExecutionContext(tenant_id="acme"))

    async def run() -> bool:
        async with scope:
            return (await one(processor, "sleeper", seconds=1)).is_success

    assert all(await asyncio.gather(run(), run()))
    assert len(work.effects) == 2


@pytest.mark.req("T-TRAP-30", "T-SEED-20")
async def test_a_call_that_names_a_namespace_runs_no_tool_of_another() -> None:
    async def a() -> str:
        return "a"

    async def b() -> str:
        return "b"

    registry = create_registry()
    registry.add(b, "secret", "tenant_b")
    processor = ToolProcessor(registry)
    for call in (
        ToolCall(None, "secret", namespace="tenant_a"),
        ToolCall(None, "tenant_a.secret"),
    ):
        [result] = await processor.execute([call])
        assert result.error_code is ErrorCode.TOOL_NOT_FOUND
    assert (await one(processor, "secret")).result == "b"
    registry.add(a, "secret", "tenant_a")
    ambiguous = await one(processor, "secret")
    assert not ambiguous.is_success
    assert "tenant_a.secret" in str(ambiguous.error)
    assert "tenant_b.secret" in str(ambiguous.error)
    assert (await one(processor, "tenant_a.secret")).result == "a"


@pytest.mark.req("T-TRAP-30", "T-SEED-21")
async def test_a_decorated_tool_is_there_without_initialisation() -> None:
    reset_registry()
    try:

        @tool(name="web.fetch_user")
        class FetchUser:
            async def execute(self, user_id: str, *, full: bool = False) -> str:
                return f"{user_id} {full}"

        assert isinstance(FetchUser, type)
        result = await one(ToolProcessor(), "web.fetch_user", user_id="7")
        assert result.result == "7 False"
        schema = get_default_registry().resolve("web.fetch_user").tool.parameters
        assert list(schema["required"]) == ["user_id"]
    finally:
        reset_registry()


@pytest.mark.req("T-TRAP-30")
def test_a_second_tool_of_one_name_and_what_is_no_tool_are_refused() -> None:
    async def a() -> None: ...

    async def b() -> None: ...

    registry = create_registry()
    registry.add(a, "x")
    with pytest.raises(ToolRegistrationError, match="replace=True"):
        registry.add(b, "x")
    with pytest.raises(ToolRegistrationError):
        registry.add(3, "three")
    assert registry.remove("x")


# --- 31, 32, 36: time -----------------------------------------------------------------
@pytest.mark.req("T-TRAP-31", "T-SEED-11")
@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("names", [(), tuple(LAYERS)], ids=["plain", "all layers"])
async def test_a_deadline_bounds_a_whole_batch_with_all_its_waiting(
    auto_clock: FakeClock, limit: int | None, names: tuple[str, ...]
) -> None:
    work, registry = sleeper(auto_clock)
    processor = ToolProcessor(registry, max_concurrency=limit, **with_layers(names))
    began = auto_clock.monotonic()
    results = await processor.execute(
        sleeps(2.0, 2.1, 2.2, 2.3, 2.4), context=ExecutionContext.with_deadline(0.5)
    )
    assert auto_clock.monotonic() == began + 0.5
    assert {r.error_code for r in results} == {ErrorCode.DEADLINE_EXCEEDED}
    begun = sum(result.attempts for result in results)
    assert begun == len(work.started) == (1 if limit else 5)


@pytest.mark.req("T-TRAP-31", "T-TRAP-36")
async def test_slow_cleaning_up_stretches_no_time_limit(
    auto_clock: FakeClock,
) -> None:
    cleaned: list[float] = []

    async def cleans_up() -> None:
        try:
            await auto_clock.sleep(100)
        finally:
            await auto_clock.sleep(0.5)
            cleaned.append(auto_clock.monotonic())

    processor = ToolProcessor(create_registry(cleans_up), default_timeout=0.2)
    result = await one(processor, "cleans_up")
    assert result.error == "Timeout after 0.2s"
    assert cleaned == [1000.7]


@pytest.mark.req("T-TRAP-31", "T-TRAP-36")
async def test_a_tool_that_ignores_its_cancellation_is_left_behind(
    auto_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    may_end = asyncio.Event()
    ignored = 0

    async def stays() -> None:
        nonlocal ignored
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                ignored += 1

    processor = ToolProcessor(create_registry(stays), default_timeout=0.2)
    began = auto_clock.monotonic()
    result = await one(processor, "stays")
    assert result.error == "Timeout after 0.2s"
    assert auto_clock.monotonic() == began + 1.2  # the grace period is a second
    assert ignored
    assert (await processor.stats()).abandoned == 1
    assert "stays" in caplog.text
    may_end.set()
    await settle()
    assert (await processor.stats()).abandoned == 0


@pytest.mark.req("T-TRAP-32")
async def test_the_real_error_is_reported_and_not_the_time_that_ran_out(
    auto_clock: FakeClock,
) -> None:
    async def pay() -> None:
        msg = "card declined"
        raise RuntimeError(msg)

    config = RetryConfig(3, base_delay=1.0, retryable=(RuntimeError,))
    processor = ToolProcessor(create_registry(pay), retry_config=config)
    result: ToolResult | None = None
    for _ in range(20):  # the pause is random
        [result] = await processor.execute([ToolCall(None, "pay")], timeout=0.3)
        assert "card declined" in str(result.error)
        assert result.error_code is ErrorCode.TOOL_EXECUTION_FAILED
        assert isinstance(result.exception, RuntimeError)
        assert result.duration <= 0.3
    assert result is not None


@pytest.mark.req("T-TRAP-32")
async def test_a_tools_own_not_found_is_no_unknown_tool(auto_clock: FakeClock) -> None:
    runs = 0

    async def find() -> None:
        nonlocal runs
        runs += 1
        msg = "customer not found"
        raise KeyError(msg)

    processor = ToolProcessor(create_registry(find), enable_retries=True)
    result = await one(processor, "find")
    assert result.error_code is ErrorCode.TOOL_EXECUTION_FAILED
    assert result.retryable
    assert runs == 4
    assert isinstance(result.exception, KeyError)
    assert auto_clock.sleeps


@pytest.mark.req("T-TRAP-36")
async def test_no_pause_is_longer_than_max_delay(auto_clock: FakeClock) -> None:
    async def fails() -> None:
        raise ConnectionError

    config = RetryConfig(30, base_delay=4.0, max_delay=10.0)
    processor = ToolProcessor(create_registry(fails), retry_config=config)
    assert (await one(processor, "fails")).attempts == 31
    assert len(auto_clock.sleeps) == 30
    assert max(auto_clock.sleeps) <= 10
    assert RetryConfig(9999).get_delay(1100) <= 60


@pytest.mark.req("T-TRAP-36", "T-TRAP-41")
async def test_invented_names_leave_nothing_behind(auto_clock: FakeClock) -> None:
    work, registry = sleeper(auto_clock)
    processor = ToolProcessor(
        registry,
        circuit_breaker_config=BreakerConfig(),
        bulkhead_config=BulkheadConfig(),
        global_rate_limit=10_000,
        enable_caching=True,
    )
    await one(processor, "sleeper")
    before = await processor.stats()
    for n in range(500):
        result = await one(processor, f"invented.name{n}")
        assert result.error_code is ErrorCode.TOOL_NOT_FOUND
    after = await processor.stats()
    assert after.refused == before.refused + 500  # told by a number alone
    assert replace(after, refused=before.refused) == before
    assert list(after.tools) == ["sleeper"]
    assert len(work.started) == 1


# --- 33, 40: what an import and a failure do to the process ---------------------------
def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )


@pytest.mark.req("T-TRAP-33", "T-TRAP-40")
def test_neither_import_nor_failure_touch_logging_warnings_and_signals() -> None:
    done = run_python(
        """
        import asyncio, logging, signal, warnings
        names = [s for s in signal.Signals]
        def state():
            root = logging.getLogger()
            found = [list(warnings.filters), list(root.handlers), list(root.filters)]
            found += [[signal.getsignal(s) for s in names], root.level]
            for name in logging.root.manager.loggerDict:
                if name.startswith("executionkit"):
                    logger = logging.getLogger(name)
                    found.append((list(logger.handlers), list(logger.filters)))
            return found
        asyncio.run(asyncio.sleep(0))
        before = state()
        from executionkit.tools.processor import ToolProcessor
        from executionkit.tools.registry import create_registry
        async def pay(card: str, api_key: str) -> None:
            raise RuntimeError("declined: " + card + " " + api_key)
        async def main():
            async with ToolProcessor(create_registry(pay)) as p:
                return await p.process([{"tool": "pay", "arguments": {
                    "card": "4111111111111111",
                    "api_key": "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"}}])
        [result] = asyncio.run(main())
        after = [item for item in state() if item != ([], [])]
        assert after == before, (before, after)
        assert not result.is_success
        print(result.error)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("declined")
    assert "sk-proj-abcdef" not in done.stdout


@pytest.mark.req("T-TRAP-33")
def test_a_forgotten_await_is_still_warned_of() -> None:
    done = run_python(
        """
        import warnings
        warnings.simplefilter("default")
        import executionkit.tools.processor
        async def forgotten(): ...
        forgotten()
        """
    )
    assert "never awaited" in done.stderr


# --- 38: guards -----------------------------------------------------------------------
@pytest.mark.req("T-TRAP-38")
@pytest.mark.parametrize(
    "host",
    ["2130706433", "0x7f000001", "localhost.", "0", "127.0.0.1.nip.io", "[::1]"],
)
async def test_a_private_address_is_refused_however_it_is_written(host: str) -> None:
    async def fetch(url: str) -> str:
        return url

    processor = ToolProcessor(create_registry(fetch), guards=[NetworkGuard()])
    result = await one(processor, "fetch", url=f"https://{host}/admin")
    assert result.error_code is ErrorCode.TOOL_BLOCKED
    assert (await one(processor, "fetch", url="https://example.com/")).is_success
