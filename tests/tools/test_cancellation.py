"""Cancelling: at every moment, whatever a tool does with it, and what is left after it."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from executionkit.calls import ToolCall, ToolResult
from executionkit.engine.breaker import CircuitState
from executionkit.engine.bulkhead import BulkheadConfig
from executionkit.errors import ErrorCode
from executionkit.testing import FakeClock, settle
from executionkit.tools._core import Core
from executionkit.tools._record import ToolRecord
from executionkit.tools.guards import GuardResult, GuardVerdict
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import ToolRegistry, create_registry
from executionkit.tools.strategies import InProcessStrategy

ALL_LAYERS: dict[str, Any] = {
    "max_concurrency": 2,
    "enable_caching": True,
    "enable_retries": True,
    "retry_base_delay": 0.1,
    "enable_circuit_breaker": True,
    "circuit_breaker_threshold": 1000,
    "enable_rate_limiting": True,
    "global_rate_limit": 10_000,
    "bulkhead_config": BulkheadConfig(default_limit=2),
}


def call(name: str, place: int = 0, /, **arguments: Any) -> ToolCall:
    return ToolCall(f"c{place}", name, arguments)


async def taken(stream: AsyncIterator[ToolResult]) -> list[ToolResult]:
    return [result async for result in stream]


def core_of(processor: ToolProcessor) -> Core:
    return processor._ready()


def assert_nothing_is_held(processor: ToolProcessor) -> None:
    """Everything that a call takes is back."""
    core = core_of(processor)
    shop = core.shop
    assert not shop.running
    assert not shop.batches
    assert not shop.spoilt
    for gate in core.paths.gates:
        assert (gate.active, gate.waiting, dict(gate.hungry)) == (0, 0, {})
    assert not len(core.once._flights)
    if isinstance(core.strategy, InProcessStrategy):
        assert core.strategy._thread_gate.active == 0


async def assert_nothing_runs() -> None:
    """No task but the test's own is left."""
    await settle(3)
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Work:
    """Tools of many manners; each says when it starts and when it ends."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.started: list[str] = []
        self.open = 0

    def _begin(self, name: str) -> None:
        self.started.append(name)
        self.open += 1

    def _end(self) -> None:
        self.open -= 1

    async def sleeps(self, n: int = 0) -> int:
        self._begin("sleeps")
        try:
            await self.clock.sleep(0.1)
            return n
        finally:
            self._end()

    async def steps(self, n: int = 0) -> int:
        self._begin("steps")
        try:
            for _ in range(4):
                await asyncio.sleep(0)
            return n
        finally:
            self._end()

    async def fails(self, n: int = 0) -> int:
        self._begin("fails")
        try:
            await asyncio.sleep(0)
            raise ConnectionError(n)
        finally:
            self._end()

    async def items(self, n: int = 0) -> AsyncIterator[int]:
        self._begin("items")
        try:
            for item in range(n, n + 4):
                yield item
                await asyncio.sleep(0)
        finally:
            self._end()

    async def swallows(self, n: int = 0) -> int:
        self._begin("swallows")
        try:
            await self.clock.sleep(5)
        except asyncio.CancelledError:
            return n
        finally:
            self._end()
        return n

    async def delays(self, n: int = 0) -> int:
        self._begin("delays")
        try:
            await self.clock.sleep(5)
        finally:
            try:
                await self.clock.sleep(0.2)
            finally:
                self._end()
        return n

    async def raises_in_cleanup(self, n: int = 0) -> int:
        self._begin("raises_in_cleanup")
        try:
            await self.clock.sleep(5)
        except asyncio.CancelledError:
            raise ValueError(n) from None
        finally:
            self._end()
        return n

    async def uncancels(self, n: int = 0) -> int:
        self._begin("uncancels")
        try:
            await self.clock.sleep(5)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            raise
        finally:
            self._end()
        return n

    async def cancels_itself(self, n: int = 0) -> int:
        self._begin("cancels_itself")
        try:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
            return n
        finally:
            self._end()

    async def raises_cancelled(self, n: int = 0) -> int:
        self._begin("raises_cancelled")
        try:
            await asyncio.sleep(0)
            raise asyncio.CancelledError(n)
        finally:
            self._end()

    async def has_its_own_limit(self, n: int = 0) -> int:
        self._begin("has_its_own_limit")
        try:
            async with self.clock.timeout(0.05):
                await self.clock.sleep(5)
        finally:
            self._end()
        return n

    def registry(self) -> ToolRegistry:
        return create_registry(*(getattr(self, name) for name in MANNERS))


MANNERS = (
    "sleeps",
    "steps",
    "fails",
    "items",
    "swallows",
    "delays",
    "raises_in_cleanup",
    "uncancels",
    "cancels_itself",
    "raises_cancelled",
    "has_its_own_limit",
)
WAYS: dict[str, Callable[[ToolProcessor, list[ToolCall]], Awaitable[Any]]] = {
    "process": lambda p, calls: p.process(calls),
    "astream": lambda p, calls: taken(p.astream(calls)),
    "process_batch": lambda p, calls: taken(p.process_batch(calls, max_in_flight=3)),
}


async def cancelled_after(steps: int, task: asyncio.Task[Any]) -> bool:
    """Cancel `task` after so many turns of the loop; whether it was still there."""
    for _ in range(steps):
        await asyncio.sleep(0)
    there = task.cancel()
    await asyncio.wait([task])
    return there


# --- at every step --------------------------------------------------------------------
@pytest.mark.req("T-RUN-01")
@pytest.mark.parametrize("layers", [{}, ALL_LAYERS], ids=["plain", "all layers"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_cancellation_at_any_step_reaches_the_caller_when_all_tools_have_ended(
    auto_clock: FakeClock, way: str, layers: dict[str, Any]
) -> None:
    for steps in range(24):
        work = Work(auto_clock)
        processor = ToolProcessor(work.registry(), **layers)
        calls = [call(name, place) for place, name in enumerate(MANNERS)]
        task = asyncio.ensure_future(WAYS[way](processor, calls))
        assert await cancelled_after(steps, task)
        assert task.cancelled()
        assert work.open == 0
        before = len(work.started)
        assert_nothing_is_held(processor)
        await auto_clock.sleep(60)
        assert len(work.started) == before
    await assert_nothing_runs()


@pytest.mark.req("T-RUN-01")
@pytest.mark.parametrize("name", MANNERS)
async def test_a_cancellation_while_a_tool_runs_is_never_its_result_nor_a_new_attempt(
    fake_clock: FakeClock, name: str
) -> None:
    work = Work(fake_clock)
    processor = ToolProcessor(work.registry(), **ALL_LAYERS)
    task = asyncio.ensure_future(processor.process([call(name)]))
    await settle(1)
    await settle(1)
    task.cancel()
    await fake_clock.advance(0.3)
    assert task.cancelled()
    await fake_clock.advance(60)
    assert work.started == [name]
    assert work.open == 0
    assert_nothing_is_held(processor)


@pytest.mark.req("T-RUN-01", "T-RUN-02")
async def test_what_a_tool_raises_when_it_is_called_off_is_counted_by_no_breaker(
    fake_clock: FakeClock,
) -> None:
    work = Work(fake_clock)
    processor = ToolProcessor(
        work.registry(), enable_circuit_breaker=True, circuit_breaker_threshold=1
    )
    for name in ("sleeps", "raises_in_cleanup", "uncancels"):
        task = asyncio.ensure_future(processor.process([call(name)]))
        await settle()
        task.cancel()
        await settle()
        assert task.cancelled()
        breakers = core_of(processor).breakers
        assert breakers is not None
        assert breakers.get_circuit_states()[name] is CircuitState.CLOSED


@pytest.mark.req("T-RUN-02")
async def test_a_limit_that_passes_while_a_call_is_called_off_starts_nothing_again(
    fake_clock: FakeClock,
) -> None:
    work = Work(fake_clock)
    processor = ToolProcessor(
        work.registry(), default_timeout=0.2, max_retries=5, enable_retries=True
    )
    task = asyncio.ensure_future(processor.process([call("delays")]))
    await fake_clock.advance(0.1)
    task.cancel()  # its cleaning up takes until 0.3, the limit is at 0.2
    await fake_clock.advance(0.25)
    assert task.cancelled()
    await fake_clock.advance(60)
    assert work.started == ["delays"]


@pytest.mark.req("T-RUN-01")
async def test_a_tool_that_does_not_end_is_left_behind_after_the_grace_period(
    fake_clock: FakeClock,
) -> None:
    go = asyncio.Event()

    async def stubborn() -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    strategy = InProcessStrategy(create_registry(stubborn), grace=1.0)
    task = asyncio.ensure_future(strategy.run([call("stubborn")]))
    await settle()
    task.cancel()
    await fake_clock.advance(0.9)
    assert not task.done()
    await fake_clock.advance(0.2)
    assert task.cancelled()
    assert strategy.abandoned == 1
    go.set()
    await settle()
    assert strategy.abandoned == 0
    await assert_nothing_runs()


@pytest.mark.req("T-RUN-01")
@pytest.mark.parametrize("between", range(6))
async def test_a_second_cancellation_ends_the_waiting_and_leaves_nothing(
    fake_clock: FakeClock, between: int
) -> None:
    work = Work(fake_clock)
    processor = ToolProcessor(work.registry(), **ALL_LAYERS)
    calls = [call(name, place) for place, name in enumerate(("delays", "swallows"))]
    task = asyncio.ensure_future(processor.process(calls))
    await settle()
    task.cancel()
    await settle(between)
    task.cancel()
    await settle()
    assert task.cancelled() is (between > 0)  # two in one moment are one
    await fake_clock.advance(60)
    assert task.cancelled()
    assert work.open == 0
    assert_nothing_is_held(processor)
    await assert_nothing_runs()


# --- while waiting for something ------------------------------------------------------
class SlowGuard:
    """A guard that asks somebody else."""

    name = "slow"

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    async def check(self, _call: ToolCall, _record: ToolRecord) -> GuardResult:
        await self.clock.sleep(1)
        return GuardResult(GuardVerdict.ALLOW)


PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "a permit": ({"tool_rate_limits": {"sleeps": (1, 60.0)}}, "sleeps"),
    "a slot": ({"bulkhead_config": BulkheadConfig(default_limit=1)}, "sleeps"),
    "the gate": ({"max_concurrency": 1}, "sleeps"),
    "the next attempt": ({"enable_retries": True, "retry_base_delay": 9.0}, "fails"),
    "an equal call": ({"enable_caching": True}, "sleeps"),
}


@pytest.mark.req("T-RUN-03")
@pytest.mark.parametrize("where", PLACES)
async def test_a_call_that_waits_is_cancelled_and_gives_back_its_place(
    fake_clock: FakeClock, where: str
) -> None:
    options, name = PLACES[where]
    work = Work(fake_clock)
    processor = ToolProcessor(work.registry(), **options)
    first = asyncio.ensure_future(processor.process([call(name)]))
    await settle()
    second = asyncio.ensure_future(processor.process([call(name)] * 2))
    await settle()
    third = asyncio.ensure_future(processor.process([call(name)]))
    await settle()
    second.cancel()
    await settle()
    assert second.cancelled()
    for _ in range(20):
        await fake_clock.advance(30)
    assert first.done()
    assert third.done()
    assert len(third.result()) == 1
    assert_nothing_is_held(processor)
    await assert_nothing_runs()


@pytest.mark.req("T-RUN-03")
async def test_a_call_is_cancelled_while_a_guard_thinks(fake_clock: FakeClock) -> None:
    work = Work(fake_clock)
    processor = ToolProcessor(work.registry(), guards=[SlowGuard(fake_clock)])
    task = asyncio.ensure_future(processor.process([call("sleeps")]))
    await settle()
    task.cancel()
    await settle()
    assert task.cancelled()
    await fake_clock.advance(10)
    assert not work.started


@pytest.mark.req("T-RUN-03")
async def test_a_cancelled_leader_hands_the_call_on_to_who_waits_for_it(
    fake_clock: FakeClock,
) -> None:
    work = Work(fake_clock)
    processor = ToolProcessor(work.registry(), enable_caching=True)
    leads = asyncio.ensure_future(processor.process([call("sleeps")]))
    await settle()
    follows = asyncio.ensure_future(processor.process([call("sleeps")]))
    await settle()
    leads.cancel()
    await fake_clock.advance(1)
    assert leads.cancelled()
    assert follows.result()[0].is_success
    assert work.started == ["sleeps", "sleeps"]
    assert_nothing_is_held(processor)


# --- a tool's own cancellations -------------------------------------------------------
@pytest.mark.req("T-RUN-04")
@pytest.mark.parametrize("name", ["cancels_itself", "raises_cancelled"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_tools_own_cancellation_is_its_result_and_no_matter_of_others(
    auto_clock: FakeClock, way: str, name: str
) -> None:
    work = Work(auto_clock)
    processor = ToolProcessor(work.registry(), enable_retries=True)
    names = ["sleeps", name, "steps", name, name, "sleeps"]
    found = await WAYS[way](processor, [call(n, i) for i, n in enumerate(names)])
    by_id = {result.call_id: result for result in found}
    assert [by_id[f"c{i}"].is_success for i in range(6)] == [n != name for n in names]
    assert by_id["c1"].error_code == ErrorCode.TOOL_CANCELLED
    assert work.started.count(name) == 3


@pytest.mark.req("T-RUN-04")
@pytest.mark.parametrize("source", ["iterable", "async"])
async def test_a_tool_that_cancels_its_task_and_returns_loses_no_result(
    source: str,
) -> None:
    async def own(n: int = 0) -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return n

    calls = [call("own", place, n=place) for place in range(200)]

    async def one_by_one() -> AsyncIterator[ToolCall]:
        for item in calls:
            yield item

    processor = ToolProcessor(create_registry(own))
    given = calls if source == "iterable" else one_by_one()
    found = []
    async for result in processor.process_batch(given):
        found.append(result.result)
        await settle(2)  # the queue is full most of the time
    assert sorted(found) == list(range(200))


@pytest.mark.req("T-RUN-04")
@pytest.mark.parametrize("source", ["iterable", "async"])
async def test_the_call_after_one_that_cancelled_its_task_runs_well(
    source: str,
) -> None:
    async def own() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "own"

    async def steps() -> str:
        await asyncio.sleep(0)
        return "steps"

    calls = [call("own"), call("steps", 1), call("own", 2), call("steps", 3)]

    async def one_by_one() -> AsyncIterator[ToolCall]:
        for item in calls:
            yield item

    processor = ToolProcessor(create_registry(own, steps))
    given = calls if source == "iterable" else one_by_one()
    results = await taken(processor.process_batch(given, max_in_flight=1))
    assert [result.result for result in results] == ["own", "steps", "own", "steps"]


@pytest.mark.req("T-RUN-04")
@pytest.mark.parametrize("kind", ["timeout", "group"])
async def test_time_limits_and_groups_of_a_tool_work_in_it(
    auto_clock: FakeClock, kind: str
) -> None:
    async def works() -> str:
        try:
            if kind == "timeout":
                async with auto_clock.timeout(0.1):
                    await auto_clock.sleep(5)
            else:
                async with asyncio.TaskGroup() as group:
                    group.create_task(auto_clock.sleep(5))
                    raise KeyError(kind)
        except (TimeoutError, ExceptionGroup):
            await auto_clock.sleep(0.1)
            return "handled"
        return "unhandled"

    processor = ToolProcessor(create_registry(works))
    results = await processor.process([call("works", place) for place in range(3)])
    assert [result.result for result in results] == ["handled"] * 3


@pytest.mark.req("T-RUN-04")
async def test_a_time_limit_in_a_tool_that_was_left_behind_ends_no_other_call() -> None:
    clock = FakeClock()
    go = asyncio.Event()
    limit: asyncio.Timeout | None = None

    async def stubborn() -> None:
        nonlocal limit
        async with asyncio.timeout(None) as limit:
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    continue

    async def good() -> str:
        await clock.sleep(0.3)
        return "good"

    strategy = InProcessStrategy(
        create_registry(stubborn, good), 0.5, max_concurrency=1, clock=clock
    )
    calls = [call("stubborn"), call("good", 1)]
    running = asyncio.ensure_future(strategy.run(calls, None, "submission"))
    await clock.advance(1.6)  # its limit, and the grace; now the other one runs
    assert limit is not None
    limit.reschedule(asyncio.get_running_loop().time() - 1)
    await settle()
    await clock.advance(0.3)
    results = await asyncio.wait_for(running, 5)
    assert results[0].error_code == ErrorCode.TOOL_TIMEOUT
    assert results[1].result == "good"
    go.set()
    await settle()


@pytest.mark.req("T-RUN-04")
@pytest.mark.parametrize("way", WAYS)
async def test_a_worker_that_a_stranger_cancels_is_missed_by_the_caller(
    way: str,
) -> None:
    """Fewer results than calls without an error would be taken for all of them."""

    async def steps(n: int) -> int:
        await asyncio.sleep(0)
        return n

    processor = ToolProcessor(create_registry(steps))
    mine = asyncio.all_tasks()
    calls = [call("steps", n, n=n) for n in range(3)]
    running = asyncio.ensure_future(WAYS[way](processor, calls))
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - mine - {running}:
        if "_work" in repr(task.get_coro()):
            task.cancel()  # before it has begun
    with pytest.raises(asyncio.CancelledError):
        await running
    await assert_nothing_runs()


# --- timeouts around, shutdowns -------------------------------------------------------
@pytest.mark.req("T-RUN-01")
@pytest.mark.parametrize("way", WAYS)
async def test_time_limits_around_a_run_nest(auto_clock: FakeClock, way: str) -> None:
    work = Work(auto_clock)
    processor = ToolProcessor(work.registry())
    inner = outer = False
    try:
        async with auto_clock.timeout(0.5):
            try:
                async with auto_clock.timeout(0.05):
                    await WAYS[way](processor, [call("swallows"), call("sleeps", 1)])
            except TimeoutError:
                inner = True
            await auto_clock.sleep(5)
    except TimeoutError:
        outer = True
    assert (inner, outer, work.open) == (True, True, 0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.req("T-RUN-05")
@pytest.mark.parametrize("where", PLACES)
async def test_a_shutdown_ends_calls_that_wait_for_something_else(
    fake_clock: FakeClock, where: str
) -> None:
    options, name = PLACES[where]
    work = Work(fake_clock)
    processor = ToolProcessor(work.registry(), **options)
    running = asyncio.ensure_future(
        processor.process([call(name, n) for n in range(4)])
    )
    await settle()
    began = fake_clock.monotonic()
    core = core_of(processor)
    await processor.close()
    results = await asyncio.wait_for(running, 5)
    assert fake_clock.monotonic() == began
    assert not any(result.is_success for result in results)
    assert len({result.call_id for result in results}) == 4
    assert {result.error for result in results} <= {
        "Execution was cancelled",
        "System is shutting down",
    }
    await fake_clock.advance(100)
    assert len(work.started) <= 4
    assert not core.shop.running
    assert not core.shop.batches


@pytest.mark.req("T-RUN-05")
async def test_a_tool_that_raises_while_it_is_shut_down_is_not_tried_again(
    fake_clock: FakeClock,
) -> None:
    work = Work(fake_clock)
    processor = ToolProcessor(
        work.registry(), enable_retries=True, retry_base_delay=50.0
    )
    running = asyncio.ensure_future(processor.process([call("raises_in_cleanup")]))
    await settle()
    await processor.close()
    [result] = await asyncio.wait_for(running, 5)
    assert result.error_code == ErrorCode.TOOL_CANCELLED
    assert isinstance(result.exception, Exception)
    assert isinstance(result.exception.__cause__, ValueError)


@pytest.mark.req("T-RUN-05")
async def test_a_shutdown_loses_no_result_that_waits_for_its_reader() -> None:
    async def many(n: int = 0) -> int:
        return n

    strategy = InProcessStrategy(create_registry(many))
    stream = strategy.stream_run([call("many", n, n=n) for n in range(300)])
    first = await anext(stream)
    await settle()  # the queue is full
    await strategy.shutdown()
    found = [first, *await taken(stream)]
    assert len({result.call_id for result in found}) == 300
    good = [result for result in found if result.is_success]
    assert len(good) >= 64
    assert {r.error for r in found if r.error} == {"System is shutting down"}


@pytest.mark.req("T-RUN-05")
async def test_a_cancelled_shutdown_still_leaves_nobody_waiting(
    fake_clock: FakeClock,
) -> None:
    work = Work(fake_clock)
    processor = ToolProcessor(work.registry())
    running = asyncio.ensure_future(processor.process([call("delays")]))
    await settle()
    closing = asyncio.ensure_future(processor.close())
    await settle()
    closing.cancel()
    await settle()
    assert closing.cancelled()
    [result] = await asyncio.wait_for(running, 5)
    assert result.error == "Execution was cancelled"
    await fake_clock.advance(10)


@pytest.mark.req("T-RUN-05")
@pytest.mark.parametrize("steps", range(3))
@pytest.mark.parametrize("afterwards", [False, True])
async def test_a_tool_that_closes_its_own_processor_ends_and_so_do_the_others(
    fake_clock: FakeClock, steps: int, *, afterwards: bool
) -> None:
    async def closes() -> str:
        for _ in range(steps):
            await asyncio.sleep(0)
        await processor.close()
        if afterwards:
            await asyncio.sleep(0)
        return "closed"

    work = Work(fake_clock)
    registry = work.registry()
    registry.add(closes)
    processor = ToolProcessor(registry)
    calls = [call("sleeps"), call("closes", 1), call("sleeps", 2)]
    running = asyncio.ensure_future(processor.execute(calls, return_order="submission"))
    await settle()
    results = await asyncio.wait_for(running, 5)
    assert [result.call_id for result in results] == ["c0", "c1", "c2"]
    assert results[0].error == "Execution was cancelled"
    assert results[1].result in {"closed", None}
    assert results[2].error in {"Execution was cancelled", "System is shutting down"}
    assert work.open == 0


# --- in the same moment ---------------------------------------------------------------
@pytest.mark.req("T-RUN-20")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", ["end", "cancel"])
@pytest.mark.parametrize("steps", range(4))
async def test_a_call_that_ends_when_it_is_cancelled_is_done_or_undone(
    way: str, first: str, steps: int
) -> None:
    """What was done is kept where results are kept: the next caller does not repeat it."""
    may_end = asyncio.Event()
    runs, effects = 0, 0

    async def works() -> str:
        nonlocal runs, effects
        runs += 1
        await may_end.wait()
        effects += 1
        return "done"

    processor = ToolProcessor(create_registry(works), enable_caching=True)
    task = asyncio.ensure_future(WAYS[way](processor, [call("works")]))
    await settle()
    for what in ("end", "cancel") if first == "end" else ("cancel", "end"):
        if what == "end":
            may_end.set()
        else:
            task.cancel()
        await settle(steps)
    await asyncio.wait([task])
    ended_before = not task.cancelled()
    may_end.set()
    [result] = await processor.process([call("works")])
    assert result.result == "done"
    assert effects == 1
    assert result.cached is (runs == 1)
    assert ended_before <= (first == "end")
    assert_nothing_is_held(processor)


@pytest.mark.req("T-RUN-20")
@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.3])
async def test_a_call_that_ends_at_its_limit_is_in_time_or_has_no_effect(
    auto_clock: FakeClock, seconds: float
) -> None:
    effects: list[float] = []

    async def works() -> str:
        await auto_clock.sleep(seconds)
        effects.append(auto_clock.monotonic())
        return "done"

    processor = ToolProcessor(create_registry(works), None, 0.2, enable_retries=False)
    [result] = await processor.process([call("works")])
    await auto_clock.sleep(10)
    assert len(effects) == result.is_success
    if seconds != 0.2:
        assert result.is_success is (seconds < 0.2)


# --- threads --------------------------------------------------------------------------
@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.req("T-RUN-06")
@pytest.mark.parametrize("way", WAYS)
async def test_a_cancelled_call_leaves_its_thread_and_holds_nothing(
    release: threading.Event, way: str
) -> None:
    began = threading.Barrier(3)

    def blocks(n: int = 0) -> int:
        began.wait(5)
        release.wait(5)
        return n

    processor = ToolProcessor(create_registry(blocks), max_concurrency=2)
    calls = [call("blocks", place) for place in range(2)]
    task = asyncio.ensure_future(WAYS[way](processor, calls))
    await asyncio.to_thread(began.wait, 5)
    task.cancel()
    await asyncio.wait_for(asyncio.wait([task]), 5)
    assert task.cancelled()
    assert_nothing_is_held(processor)
    strategy = core_of(processor).strategy
    assert isinstance(strategy, InProcessStrategy)
    assert strategy.abandoned == 2
    release.set()
    async with asyncio.timeout(5):
        while strategy.abandoned:
            await asyncio.sleep(0.001)
    await assert_nothing_runs()


@pytest.mark.req("T-RUN-06")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_what_a_thread_gives_too_late_is_dropped_without_a_warning(
    release: threading.Event, when: str
) -> None:
    began = threading.Event()
    given: list[Any] = []

    async def inner() -> None:
        pass

    def gives() -> Any:
        began.set()
        if when == "before":
            release.wait(5)
        given.append(inner())
        return given[0]

    strategy = InProcessStrategy(create_registry(gives))
    task = asyncio.ensure_future(strategy.run([call("gives")]))
    await settle(2)
    assert began.wait(5)
    if when == "after":
        while not given:
            pass  # the loop stands still: the thread's answer is on its way to it
    task.cancel()
    await asyncio.wait_for(asyncio.wait([task]), 5)
    release.set()
    async with asyncio.timeout(5):
        while (
            not given
            or strategy.abandoned
            or inspect.getcoroutinestate(given[0]) != (inspect.CORO_CLOSED)
        ):
            await asyncio.sleep(0.001)


@pytest.mark.req("T-RUN-06")
@pytest.mark.parametrize("steps", range(0, 12, 2))
async def test_a_cancelled_generator_in_a_thread_runs_its_finally(steps: int) -> None:
    closed = threading.Event()
    began = threading.Event()

    def endless() -> Iterator[int]:
        began.set()
        n = 0
        try:
            while True:
                yield n
                n += 1
        finally:
            closed.set()

    processor = ToolProcessor(create_registry(endless))
    stream = processor.astream([call("endless")])

    async def read() -> None:
        async for _ in stream:
            await asyncio.sleep(0)

    task = asyncio.ensure_future(read())
    assert await asyncio.to_thread(began.wait, 5)
    assert await cancelled_after(steps, task)
    assert task.cancelled()
    await stream.aclose()
    assert await asyncio.to_thread(closed.wait, 5)
    await assert_nothing_runs()


# --- places and room ------------------------------------------------------------------
@pytest.mark.req("T-RUN-07")
@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_runs_long_holds_up_no_other_when_there_is_room(
    fake_clock: FakeClock, way: str
) -> None:
    started: dict[str, float] = {}

    async def work(name: str, seconds: float) -> None:
        started[name] = fake_clock.monotonic() - 1000.0
        await fake_clock.sleep(seconds)

    processor = ToolProcessor(create_registry(work), None, None, max_concurrency=2)
    first = asyncio.ensure_future(
        processor.process([call("work", n, name=f"a{n}", seconds=1) for n in range(2)])
    )
    await settle()
    calls = [
        call("work", 0, name="long", seconds=600),
        call("work", 1, name="short", seconds=1),
        call("work", 2, name="last", seconds=1),
    ]
    second = asyncio.ensure_future(WAYS[way](processor, calls))
    await fake_clock.advance(5)
    assert first.done()
    assert started == {"a0": 0, "a1": 0, "long": 1, "short": 1, "last": 2}
    second.cancel()
    await fake_clock.advance(1)
    assert_nothing_is_held(processor)


@pytest.mark.req("T-RUN-08")
async def test_ended_calls_do_not_wait_for_the_limit_of_one_that_runs_long(
    fake_clock: FakeClock,
) -> None:
    async def hangs() -> None:
        await fake_clock.sleep(1e6)

    async def tiny() -> None:
        await asyncio.sleep(0)

    processor = ToolProcessor(create_registry(hangs, tiny), None, 3600.0)
    hanging = asyncio.ensure_future(processor.process([call("hangs")]))
    await settle()
    for _ in range(30):
        await processor.process([call("tiny", n) for n in range(100)])
    [expiry] = core_of(processor).shop._expiries.values()
    assert len(expiry._queue) < 600
    await fake_clock.advance(3600)
    [result] = await asyncio.wait_for(hanging, 5)
    assert result.error_code == ErrorCode.TOOL_TIMEOUT


# --- at random ------------------------------------------------------------------------
@pytest.mark.req("T-RUN-01", "T-RUN-09")
async def test_limits_hold_after_five_hundred_cancellations_in_any_order(
    auto_clock: FakeClock,
) -> None:
    chance = random.Random(7)
    work = Work(auto_clock)
    processor = ToolProcessor(
        work.registry(), **{**ALL_LAYERS, "max_concurrency": 3, "enable_caching": False}
    )
    peak = 0
    for _ in range(50):
        tasks = [
            asyncio.ensure_future(
                processor.process(
                    [
                        call(chance.choice(MANNERS), n)
                        for n in range(chance.randrange(5))
                    ]
                )
            )
            for _ in range(10)
        ]
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        for task in chance.sample(tasks, 10):
            peak = max(peak, work.open)
            task.cancel()
            if chance.random() < 0.5:
                await auto_clock.sleep(chance.choice([0, 0.04, 0.3]))
        await asyncio.wait(tasks)
        assert all(task.cancelled() or task.exception() is None for task in tasks)
        assert_nothing_is_held(processor)
    assert 0 < peak <= 3
    results = await processor.process([call("steps", n, n=n) for n in range(10)])
    assert all(result.is_success for result in results)
    await assert_nothing_runs()
