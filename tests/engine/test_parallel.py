"""Fan-outs: bounded, in order, and with nothing left behind however they end."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import warnings
import weakref
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.engine.parallel import gather_resilient, gather_strict, map_bounded
from executionkit.testing import FakeClock, settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

pytestmark = pytest.mark.usefixtures("loop_errors")

both = pytest.mark.parametrize("gather", [gather_strict, gather_resilient])


class Room:
    """Counts who is inside, and lets them out one by one."""

    def __init__(self) -> None:
        self.inside = 0
        self.peak = 0
        self.entered: list[int] = []
        self.left: list[int] = []
        self.cancelled: list[int] = []
        self.doors: dict[int, asyncio.Event] = {}

    async def enter(self, number: int) -> int:
        self.inside += 1
        self.peak = max(self.peak, self.inside)
        self.entered.append(number)
        door = self.doors.setdefault(number, asyncio.Event())
        try:
            await door.wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            self.inside -= 1
            self.left.append(number)
        return number * 10

    def let_out(self, *numbers: int) -> None:
        for number in numbers:
            self.doors[number].set()


async def value(number: int) -> int:
    await asyncio.sleep(0)
    return number


async def fail(error: BaseException) -> int:
    await asyncio.sleep(0)
    raise error


def never_awaited(run: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
        gc.collect()
    return [str(item.message) for item in caught]


# --- both gathers --------------------------------------------------------------------


@both
@pytest.mark.req("parallel.order")
async def test_results_come_in_the_order_of_the_jobs(gather: Any) -> None:
    room = Room()
    task = asyncio.ensure_future(gather([room.enter(n) for n in range(5)]))
    await settle(3)
    for number in (3, 0, 4, 1, 2):
        room.let_out(number)
        await settle(3)
    assert await task == [0, 10, 20, 30, 40]


@both
@pytest.mark.req("parallel.bounded")
async def test_no_more_than_the_limit_run_at_once(gather: Any) -> None:
    room = Room()
    task = asyncio.ensure_future(gather([room.enter(n) for n in range(9)], 3))
    await settle(3)
    assert room.entered == [0, 1, 2]
    room.let_out(1)
    await settle(3)
    assert room.entered == [0, 1, 2, 3]
    for number in range(9):
        room.doors.setdefault(number, asyncio.Event()).set()
    assert await task == [n * 10 for n in range(9)]
    assert room.peak == 3


@both
@pytest.mark.req("parallel.bounded")
async def test_ten_run_at_once_by_default(gather: Any) -> None:
    room = Room()
    task = asyncio.ensure_future(gather([room.enter(n) for n in range(12)]))
    await settle(3)
    assert room.inside == 10
    task.cancel()
    await settle(3)


@both
async def test_no_jobs_give_no_results(gather: Any) -> None:
    assert await gather([]) == []
    assert await gather(iter(())) == []


@both
@pytest.mark.req("parallel.jobs")
async def test_a_job_is_an_awaitable_or_makes_one(gather: Any) -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.set_result(3)
    jobs = [value(1), lambda: value(2), future, asyncio.ensure_future(value(4))]
    assert await gather(jobs, 2) == [1, 2, 3, 4]


@both
@pytest.mark.req("parallel.jobs")
async def test_an_iterator_is_read_only_as_jobs_can_start(gather: Any) -> None:
    room = Room()
    made: list[int] = []

    def jobs() -> Iterator[Coroutine[Any, Any, int]]:
        for number in range(100):
            made.append(number)
            yield room.enter(number)

    task = asyncio.ensure_future(gather(jobs(), 2))
    await settle(3)
    assert made == [0, 1]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert made == [0, 1]


@both
@pytest.mark.req("D-29", "parallel.bounded")
@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_senseless_limit_is_refused_and_the_jobs_are_closed(
    gather: Any, limit: Any
) -> None:
    def run() -> None:
        with pytest.raises(ValueError, match="max_concurrency"):
            asyncio.run(gather([value(n) for n in range(3)], limit))
        with pytest.raises(ValueError, match="max_concurrency"):
            asyncio.run(gather((value(n) for n in range(3)), limit))

    assert never_awaited(run) == []


@both
@pytest.mark.req("parallel.cancel")
async def test_the_caller_s_cancellation_ends_all_jobs_first(gather: Any) -> None:
    room = Room()
    task = asyncio.ensure_future(gather([room.enter(n) for n in range(6)], 3))
    await settle(3)
    task.cancel("stop")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert room.cancelled == [0, 1, 2]
    assert room.inside == 0
    assert room.entered == [0, 1, 2]


@both
@pytest.mark.req("parallel.cancel")
async def test_a_slow_cleanup_is_awaited_even_through_a_second_cancellation(
    gather: Any,
) -> None:
    log: list[str] = []
    gate = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            log.append("first")
            try:
                await gate.wait()
            except asyncio.CancelledError:
                log.append("second")
            await asyncio.sleep(0)
            log.append("clean")
            raise

    task = asyncio.ensure_future(gather([stubborn]))
    await settle(3)
    task.cancel()
    await settle(3)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["first", "second", "clean"]


@both
@pytest.mark.req("parallel.cancel")
async def test_a_job_that_ends_in_the_tick_of_a_second_cancellation_is_not_missed(
    gather: Any,
) -> None:
    gate = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()

    task = asyncio.ensure_future(gather([stubborn]))
    await settle(3)
    task.cancel()
    await settle(3)
    gate.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@both
@pytest.mark.req("parallel.cancel")
async def test_a_timeout_around_it_is_a_timeout(gather: Any) -> None:
    clock = FakeClock(auto=True)
    room = Room()
    with pytest.raises(TimeoutError):
        async with clock.timeout(1.0):
            await gather([room.enter(1)])
    assert room.cancelled == [1]


@both
@pytest.mark.req("D-29", "parallel.cancel")
def test_cancelled_at_any_step_no_coroutine_is_forgotten(gather: Any) -> None:
    async def run(steps: int) -> None:
        jobs = [value(n) for n in range(6)]
        task = asyncio.ensure_future(gather(jobs, 2))
        await settle(steps)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    # With no step at all the gather itself never began to run.
    for steps in range(1, 12):
        assert never_awaited(lambda steps=steps: asyncio.run(run(steps))) == []  # type: ignore[misc]


@both
@pytest.mark.req("parallel.context")
async def test_each_job_has_a_context_of_its_own(gather: Any) -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="-")
    seen: list[str] = []

    async def job(mine: str) -> None:
        seen.append(name.get())
        name.set(mine)
        await asyncio.sleep(0)
        seen.append(name.get())

    name.set("caller")
    await gather([job("a"), job("b"), job("c")], 1)
    assert seen == ["caller", "a", "caller", "b", "caller", "c"]
    assert name.get() == "caller"


@both
async def test_an_error_of_the_iterator_is_raised_after_the_jobs(gather: Any) -> None:
    done: list[int] = []

    def jobs() -> Iterator[Coroutine[Any, Any, None]]:
        async def job() -> None:
            await asyncio.sleep(0)
            done.append(1)

        yield job()
        raise LookupError("source")

    with pytest.raises(LookupError, match="source"):
        await gather(jobs())
    assert done == [1]


@both
async def test_an_iterator_that_always_fails_is_asked_once(gather: Any) -> None:
    class Broken:
        asked = 0

        def __iter__(self) -> Broken:
            return self

        def __next__(self) -> Any:
            self.asked += 1
            if self.asked > 99:
                raise StopIteration
            raise LookupError("source")

    broken = Broken()
    with pytest.raises(LookupError):
        await gather(broken)
    assert broken.asked == 1


@both
async def test_something_that_is_no_job_fails_as_one(gather: Any) -> None:
    jobs: list[Any] = [value(1), 3]
    if gather is gather_resilient:
        assert isinstance((await gather(jobs))[1], TypeError)
    else:
        with pytest.raises(TypeError):
            await gather(jobs)
    with pytest.raises(TypeError):
        await gather(3)


# --- gather_strict ---------------------------------------------------------------------


@pytest.mark.req("parallel.strict")
async def test_the_first_failure_stops_the_others() -> None:
    room = Room()
    error = LookupError("no")
    jobs = [room.enter(0), fail(error), room.enter(2), room.enter(3)]
    with pytest.raises(LookupError) as caught:
        await gather_strict(jobs, 3)
    assert caught.value is error
    # 3 was started when the failed job made room, before anybody saw the failure.
    assert set(room.cancelled) >= {0, 2}
    assert room.inside == 0


@pytest.mark.req("D-29", "parallel.strict")
def test_jobs_that_never_start_are_closed() -> None:
    """D-29: a failing fan-out of 20 leaves no un-awaited coroutine."""

    def run() -> None:
        jobs: list[Any] = [fail(LookupError("no")), *[value(n) for n in range(18)]]
        jobs.insert(9, lambda: value(0))
        with pytest.raises(LookupError):
            asyncio.run(gather_strict(jobs, 2))

    assert never_awaited(run) == []


@pytest.mark.req("parallel.strict")
async def test_a_generator_of_jobs_is_closed_when_one_fails() -> None:
    closed: list[bool] = []

    def jobs() -> Iterator[Coroutine[Any, Any, int]]:
        try:
            for _ in range(100):
                yield fail(LookupError("no"))
        finally:
            closed.append(True)

    with pytest.raises(LookupError):
        await gather_strict(jobs(), 1)
    assert closed == [True]


@pytest.mark.req("parallel.strict", "parallel.cancel")
async def test_a_cancellation_while_the_others_are_stopped_wins() -> None:
    gate = asyncio.Event()

    async def slow_to_stop() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()

    task = asyncio.ensure_future(
        gather_strict([slow_to_stop(), fail(LookupError("a"))])
    )
    await settle(5)
    assert not task.done()
    task.cancel()
    await settle(3)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.req("parallel.strict")
async def test_several_failures_are_a_group() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await gather_strict([fail(LookupError("a")), fail(OSError("b"))])
    assert [type(error) for error in caught.value.exceptions] == [LookupError, OSError]
    assert "2 jobs failed" in str(caught.value)


@pytest.mark.req("parallel.strict")
async def test_a_failure_while_being_stopped_joins_the_group() -> None:
    async def breaks_when_stopped() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("cleanup")

    with pytest.raises(ExceptionGroup) as caught:
        await gather_strict([breaks_when_stopped(), fail(LookupError("a"))])
    assert [str(error) for error in caught.value.exceptions] == ["a", "cleanup"]


@pytest.mark.req("parallel.strict")
async def test_a_cancellation_that_a_job_raises_itself_is_a_failure() -> None:
    room = Room()
    with pytest.raises(asyncio.CancelledError):
        await gather_strict([room.enter(0), fail(asyncio.CancelledError())])
    assert room.cancelled == [0]
    with pytest.raises(LookupError):
        await gather_strict([fail(asyncio.CancelledError()), fail(LookupError("a"))])


class Stop(BaseException):
    """Not an `Exception`."""


@pytest.mark.req("parallel.strict")
async def test_what_is_no_exception_is_raised_too() -> None:
    with pytest.raises(Stop):
        await gather_strict([value(1), fail(Stop())])
    with pytest.raises(BaseExceptionGroup):
        await gather_strict([fail(Stop()), fail(LookupError("a"))])


@pytest.mark.req("parallel.strict")
async def test_an_exception_may_be_a_result() -> None:
    error = LookupError("a value")

    async def job() -> Exception:
        return error

    assert await gather_strict([job(), job()]) == [error, error]


# --- gather_resilient --------------------------------------------------------------------


@pytest.mark.req("parallel.resilient")
async def test_failures_are_values_in_their_places() -> None:
    error = LookupError("no")
    jobs = [value(1), fail(error), value(3), fail(asyncio.CancelledError())]
    results = await gather_resilient(jobs, 2)
    assert results[:3] == [1, error, 3]
    assert isinstance(results[3], asyncio.CancelledError)


# --- map_bounded -----------------------------------------------------------------------


async def astream(items: Iterator[int] | list[int]) -> AsyncIterator[int]:
    for item in items:
        await asyncio.sleep(0)
        yield item


sources = pytest.mark.parametrize(
    "make", [list, iter, astream], ids=["list", "iter", "async"]
)


@sources
@pytest.mark.req("map.outcomes")
async def test_every_item_has_one_outcome(make: Any) -> None:
    error = LookupError("three")

    async def work(item: int) -> int:
        await asyncio.sleep(0)
        if item == 3:
            raise error
        if item == 4:
            raise asyncio.CancelledError
        return item * item

    seen = {
        index: out async for index, out in map_bounded(work, make([1, 2, 3, 4, 5]), 2)
    }
    assert isinstance(seen.pop(3), asyncio.CancelledError)
    assert seen == {0: 1, 1: 4, 2: error, 4: 25}


@sources
@pytest.mark.req("map.order")
async def test_outcomes_come_as_they_end_or_in_order(make: Any) -> None:
    for ordered, expected in ((False, [2, 1, 0]), (True, [0, 1, 2])):
        room = Room()
        order: list[int] = []

        async def consume(
            room: Room = room, order: list[int] = order, o: bool = ordered
        ) -> None:
            async for index, _ in map_bounded(
                room.enter, make([0, 1, 2]), 3, ordered=o
            ):
                order.append(index)

        task = asyncio.ensure_future(consume())
        await settle(12)
        for number in (2, 1, 0):
            room.let_out(number)
            await settle(5)
        await task
        assert order == expected


@sources
@pytest.mark.req("map.bounded")
async def test_items_are_taken_only_when_there_is_room(make: Any) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    async def work(item: int) -> int:
        return item

    outcomes = map_bounded(
        work, make(items()) if make is not list else items(), 2, window=3
    )
    assert taken == []
    async with aclosing(outcomes):
        await anext(outcomes)
        await settle()
        # One was taken away, three have ended or run, nobody asked for more.
        assert len(taken) == 4
        await anext(outcomes)
        await settle()
        assert len(taken) == 5


class Item:
    """Something whose life can be watched."""


@sources
@pytest.mark.req("map.bounded")
async def test_many_items_need_no_more_memory_than_few(make: Any) -> None:
    alive: weakref.WeakSet[Item] = weakref.WeakSet()

    def items() -> Iterator[Any]:
        for _ in range(10_000):
            item = Item()
            alive.add(item)
            yield item

    async def work(item: Any) -> Any:
        await asyncio.sleep(0)
        return item

    count = most = 0
    source = items() if make is list else make(items())
    async with asyncio.timeout(20):
        async for _ in map_bounded(work, source, 8):
            count += 1
            most = max(most, len(alive))
    assert count == 10_000
    assert most <= 2 * 8 + 3


@pytest.mark.req("map.order", "map.bounded")
async def test_a_slow_first_call_bounds_how_far_the_others_run_ahead() -> None:
    room = Room()
    outcomes = map_bounded(room.enter, range(100), 2, ordered=True, window=4)
    first = asyncio.ensure_future(anext(outcomes))
    await settle(3)
    for number in (1, 2, 3):
        room.let_out(number)
        await settle(3)
    assert room.entered == [0, 1, 2, 3]
    room.let_out(0)
    assert await first == (0, 0)
    assert [await anext(outcomes) for _ in range(3)] == [(1, 10), (2, 20), (3, 30)]
    await outcomes.aclose()


@sources
@pytest.mark.req("map.early-stop")
async def test_leaving_early_cancels_and_awaits_what_is_in_flight(make: Any) -> None:
    room = Room()
    room.doors[0] = asyncio.Event()
    room.doors[0].set()
    async with aclosing(map_bounded(room.enter, make(list(range(50))), 3)) as outcomes:
        async for index, _ in outcomes:
            assert index == 0
            await settle(8)
            break
    assert sorted(room.cancelled) == [1, 2, 3]
    assert room.inside == 0
    assert len(room.entered) == 4


@pytest.mark.req("map.early-stop")
async def test_leaving_early_closes_a_generator_and_spares_a_collection() -> None:
    closed: list[str] = []

    def sync_items() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            closed.append("sync")

    async def async_items() -> AsyncIterator[int]:
        try:
            for item in range(10**9):
                yield item
        finally:
            closed.append("async")

    async def suspended_items() -> AsyncIterator[int]:
        try:
            yield 0
            await asyncio.Event().wait()
        finally:
            closed.append("suspended")

    for items in (sync_items(), async_items(), suspended_items(), range(10**9)):
        async with aclosing(map_bounded(value, items, 2)) as outcomes:
            await anext(outcomes)
    assert closed == ["sync", "async", "suspended"]


@pytest.mark.req("map.early-stop")
async def test_an_iterator_that_nobody_reads_starts_nothing() -> None:
    room = Room()
    outcomes = map_bounded(room.enter, [1, 2, 3], 2)
    await settle(3)
    await outcomes.aclose()
    assert room.entered == []


@sources
@pytest.mark.req("map.early-stop")
async def test_a_cancelled_consumer_leaves_nothing_running(make: Any) -> None:
    room = Room()

    async def consume() -> None:
        async for _ in map_bounded(room.enter, make(list(range(9))), 3):
            pass

    task = asyncio.ensure_future(consume())
    await settle(12)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(room.cancelled) == [0, 1, 2]


@pytest.mark.req("map.outcomes")
async def test_an_error_of_the_source_comes_after_the_outcomes() -> None:
    def sync_items() -> Iterator[int]:
        yield 1
        yield 2
        raise LookupError("source")

    async def async_items() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise LookupError("source")

    async def cancelling_items() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise asyncio.CancelledError

    for items, error in (
        (sync_items(), LookupError),
        (async_items(), LookupError),
        (cancelling_items(), asyncio.CancelledError),
    ):
        outcomes = map_bounded(value, items, 4, ordered=True)
        assert [await anext(outcomes), await anext(outcomes)] == [(0, 1), (1, 2)]
        with pytest.raises(error):
            await anext(outcomes)


@pytest.mark.req("map.outcomes")
async def test_a_function_that_raises_before_it_awaits_fails_its_item_only() -> None:
    def work(item: int) -> Any:
        if item == 1:
            raise LookupError("early")
        return value(item)

    seen = {index: out async for index, out in map_bounded(work, [0, 1, 2], 2)}
    assert seen[0] == 0
    assert isinstance(seen[1], LookupError)
    assert seen[2] == 2


@pytest.mark.req("map.bounded")
@pytest.mark.parametrize(
    ("limit", "window", "match"),
    [(0, None, "limit"), (True, None, "limit"), (2, 1, "window"), (2, 2.5, "window")],
)
def test_senseless_bounds_are_refused_before_anything_runs(
    limit: Any, window: Any, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        map_bounded(value, [1], limit, window=window)


@settings(max_examples=100, deadline=None)
@pytest.mark.req("map.outcomes", "map.order", "map.bounded")
@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=25),
    st.integers(1, 5),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
)
def test_any_mix_of_speeds_and_failures_gives_one_outcome_each(
    jobs: list[tuple[int, bool]], limit: int, extra: int, ordered: bool, is_async: bool
) -> None:
    running = peak = 0

    async def work(job: tuple[int, bool]) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        try:
            for _ in range(job[0]):
                await asyncio.sleep(0)
        finally:
            running -= 1
        if job[1]:
            raise LookupError(str(job[0]))
        return job[0]

    async def feed() -> AsyncIterator[tuple[int, bool]]:
        for job in jobs:
            yield job

    async def run() -> list[tuple[int, Any]]:
        items = feed() if is_async else jobs
        outcomes = map_bounded(
            work, items, limit, ordered=ordered, window=limit + extra
        )
        return [pair async for pair in outcomes]

    seen = asyncio.run(run())
    assert peak <= limit
    assert sorted(index for index, _ in seen) == list(range(len(jobs)))
    if ordered:
        assert [index for index, _ in seen] == list(range(len(jobs)))
    for index, outcome in seen:
        assert isinstance(outcome, LookupError) == jobs[index][1]
