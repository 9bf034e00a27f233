"""The system's clock, and the fake one that keeps the same contract."""

from __future__ import annotations

import asyncio
import contextvars
import time
from typing import Any

import pytest

from executionkit._clock import (
    Clock,
    SystemClock,
    default_random,
    get_clock,
    use_clock,
)
from executionkit.testing import FakeClock, settle


@pytest.fixture(params=["system", "fake by hand", "fake, automatic"])
def clock(request: pytest.FixtureRequest) -> Clock:
    """Every clock that there is; for what needs no time to pass."""
    if request.param == "system":
        return SystemClock()
    return FakeClock(auto="automatic" in request.param)


class TestContract:
    def test_it_is_a_clock(self, clock: Clock) -> None:
        assert isinstance(clock, Clock)

    def test_monotonic_time_does_not_go_back(self, clock: Clock) -> None:
        first = clock.monotonic()
        assert clock.monotonic() >= first

    @pytest.mark.parametrize("seconds", [0.0, -1.0])
    async def test_a_sleep_of_nothing_yields_once(
        self, clock: Clock, seconds: float
    ) -> None:
        order: list[str] = []
        other = asyncio.create_task(asyncio.to_thread(lambda: None))
        asyncio.get_running_loop().call_soon(order.append, "other")
        async with asyncio.timeout(5):
            await clock.sleep(seconds)
            order.append("me")
            await other
        assert order == ["other", "me"]

    @pytest.mark.parametrize("seconds", [0.0, -1.0])
    async def test_a_timer_of_nothing_fires_without_time_passing(
        self, clock: Clock, seconds: float
    ) -> None:
        fired = asyncio.Event()
        clock.call_later(seconds, fired.set)
        assert not fired.is_set()
        async with asyncio.timeout(5):
            await fired.wait()

    async def test_a_timer_that_was_called_off_does_not_fire(
        self, clock: Clock
    ) -> None:
        fired: list[int] = []
        for seconds in (0.0, 0.001):
            clock.call_later(seconds, lambda: fired.append(1)).cancel()
        await settle()
        if isinstance(clock, FakeClock):
            await clock.advance(1)
        assert not fired

    async def test_a_timer_runs_in_the_context_that_set_it(self, clock: Clock) -> None:
        var = contextvars.ContextVar("var", default="outside")
        seen: list[str] = []
        fired = asyncio.Event()

        def look() -> None:
            seen.append(var.get())
            fired.set()

        async def inside() -> None:
            var.set("inside")
            clock.call_later(0.001, look)

        await asyncio.create_task(inside())
        if isinstance(clock, FakeClock):
            await clock.advance(1)
        async with asyncio.timeout(5):
            await fired.wait()
        assert seen == ["inside"]

    async def test_no_timeout_never_expires(self, clock: Clock) -> None:
        async with clock.timeout(None) as limit:
            await settle()
        assert limit.when() is None
        assert not limit.expired()

    @pytest.mark.parametrize("seconds", [0.0, -1.0])
    async def test_a_timeout_of_nothing_expires_at_the_first_wait(
        self, clock: Clock, seconds: float
    ) -> None:
        async with asyncio.timeout(5):
            with pytest.raises(TimeoutError):
                async with clock.timeout(seconds) as limit:
                    await asyncio.Event().wait()
        assert limit.expired()

    async def test_a_block_that_ends_in_time_leaves_no_timer(
        self, clock: Clock
    ) -> None:
        async with clock.timeout(60) as limit:
            await settle()
        assert not limit.expired()
        if isinstance(clock, FakeClock):
            before = clock.monotonic()
            assert clock.pending == 0
            await settle()
            assert clock.monotonic() == before

    async def test_a_cancellation_from_outside_is_not_a_timeout(
        self, clock: Clock
    ) -> None:
        async def wait() -> None:
            async with clock.timeout(60):
                await asyncio.Event().wait()

        task = asyncio.create_task(wait())
        await settle(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_a_timeout_can_be_entered_once(self, clock: Clock) -> None:
        limit = clock.timeout(60)
        with pytest.raises(RuntimeError):
            limit.reschedule(None)
        async with limit:
            pass
        with pytest.raises(RuntimeError):
            await limit.__aenter__()


class TestSystemClock:
    def test_it_reads_the_clocks_of_the_system(self) -> None:
        clock = SystemClock()
        assert abs(clock.monotonic() - time.monotonic()) < 60
        assert abs(clock.wall() - time.time()) < 60

    async def test_a_sleep_ends(self) -> None:
        before = time.monotonic()
        async with asyncio.timeout(5):
            await SystemClock().sleep(0.001)
        assert time.monotonic() - before >= 0.001

    async def test_a_timer_fires(self) -> None:
        fired = asyncio.Event()
        SystemClock().call_later(0.001, fired.set)
        async with asyncio.timeout(5):
            await fired.wait()

    def test_chance_is_a_number_below_one(self) -> None:
        numbers = {default_random() for _ in range(100)}
        assert len(numbers) > 1
        assert all(0.0 <= number < 1.0 for number in numbers)


class TestChoice:
    def test_the_system_s_clock_is_the_default(self) -> None:
        assert isinstance(get_clock(), SystemClock)

    @pytest.mark.req("clock.replaceable")
    async def test_another_clock_holds_inside_of_the_block_and_its_tasks(self) -> None:
        fake = FakeClock()

        async def ask() -> Clock:
            return get_clock()

        with use_clock(fake) as used:
            assert used is fake
            assert get_clock() is fake
            assert await asyncio.create_task(ask()) is fake
        assert isinstance(get_clock(), SystemClock)

    @pytest.mark.req("clock.replaceable")
    async def test_a_clock_of_one_task_is_not_seen_by_another(self) -> None:
        inside, done = asyncio.Event(), asyncio.Event()

        async def one() -> None:
            with FakeClock().installed():
                inside.set()
                await done.wait()

        task = asyncio.create_task(one())
        async with asyncio.timeout(5):
            await inside.wait()
            assert isinstance(get_clock(), SystemClock)
            done.set()
            await task

    async def test_the_fixture_reaches_the_test(self, fake_clock: FakeClock) -> None:
        assert get_clock() is fake_clock


class TestByHand:
    def test_time_stands_still_until_it_is_moved(self) -> None:
        clock = FakeClock(5.0, wall=100.0)
        assert clock.monotonic() == clock.monotonic() == 5.0
        assert clock.wall() == 100.0

    async def test_moving_it_moves_both_times(self) -> None:
        clock = FakeClock(5.0, wall=100.0)
        await clock.advance(2.5)
        assert clock.monotonic() == 7.5
        assert clock.wall() == 102.5

    async def test_sleepers_wake_in_order_each_at_its_time(self) -> None:
        clock = FakeClock(0.0)
        woke: list[tuple[str, float]] = []

        async def sleeper(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            woke.append((name, clock.monotonic()))

        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            for name, seconds in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("b2", 2.0)):
                group.create_task(sleeper(name, seconds))
            await clock.advance(0.5)
            assert not woke
            assert clock.pending == 4
            await clock.advance(2.0)
            assert woke == [("a", 1.0), ("b", 2.0), ("b2", 2.0)]
            assert clock.monotonic() == 2.5
            await clock.advance(1.0)
        assert woke[-1] == ("c", 3.0)
        assert clock.sleeps == [3.0, 1.0, 2.0, 2.0]

    async def test_a_timer_set_while_time_moves_fires_in_the_same_move(self) -> None:
        clock = FakeClock(0.0)
        woke: list[float] = []

        async def twice() -> None:
            for _ in range(2):
                await clock.sleep(1.0)
                woke.append(clock.monotonic())

        task = asyncio.create_task(twice())
        await clock.advance(10.0)
        await task
        assert woke == [1.0, 2.0]

    async def test_ten_steps_of_a_tenth_are_one_second(self) -> None:
        clock = FakeClock(0.0)
        task = asyncio.create_task(clock.sleep(1.0))
        for _ in range(10):
            await clock.advance(0.1)
        assert task.done()

    async def test_a_cancelled_sleeper_leaves_no_timer(self) -> None:
        clock = FakeClock()
        task = asyncio.create_task(clock.sleep(1.0))
        await settle()
        assert clock.pending == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert clock.pending == 0

    async def test_a_timeout_expires_at_its_time(self) -> None:
        clock = FakeClock(0.0)
        ended: list[float] = []

        async def wait() -> None:
            try:
                async with clock.timeout(2.0):
                    await asyncio.Event().wait()
            except TimeoutError:
                ended.append(clock.monotonic())

        task = asyncio.create_task(wait())
        await clock.advance(1.9)
        assert not task.done()
        await clock.advance(1.0)
        await task
        assert ended == [2.0]

    async def test_a_timeout_counts_from_its_making_and_can_be_moved(self) -> None:
        clock = FakeClock(0.0)
        limit = clock.timeout(2.0)
        await clock.advance(1.0)
        assert limit.when() == 2.0
        async with limit:
            limit.reschedule(5.0)
            assert limit.when() == 5.0
            await clock.advance(3.0)
            assert not limit.expired()
        assert clock.pending == 0

    async def test_the_inner_of_two_timeouts_expires_alone(self) -> None:
        clock = FakeClock(0.0)
        seen: list[str] = []

        async def wait() -> None:
            async with clock.timeout(10.0):
                try:
                    async with clock.timeout(1.0):
                        await asyncio.Event().wait()
                except TimeoutError:
                    seen.append("inner")
                await clock.sleep(1.0)
                seen.append("after")

        task = asyncio.create_task(wait())
        await clock.advance(5.0)
        await task
        assert seen == ["inner", "after"]

    async def test_an_error_in_a_timer_goes_to_the_loop_and_hurts_nobody(self) -> None:
        clock = FakeClock()
        caught: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, facts: caught.append(facts))
        clock.call_later(1.0, lambda: 1 / 0)  # type: ignore[arg-type]
        task = asyncio.create_task(clock.sleep(2.0))
        await clock.advance(3.0)
        await task
        assert isinstance(caught[0]["exception"], ZeroDivisionError)


class TestAutomatic:
    async def test_waits_take_no_time_and_keep_their_order(self) -> None:
        clock = FakeClock(0.0, auto=True)
        woke: list[tuple[int, float]] = []

        async def sleeper(number: int) -> None:
            await clock.sleep(number * 1000.0)
            woke.append((number, clock.monotonic()))

        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            for number in (3, 1, 2):
                group.create_task(sleeper(number))
        assert woke == [(1, 1000.0), (2, 2000.0), (3, 3000.0)]

    async def test_time_does_not_jump_while_somebody_works(self) -> None:
        clock = FakeClock(0.0, auto=True)

        async def work() -> float:
            for _ in range(200):
                await asyncio.sleep(0)
            return clock.monotonic()

        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            group.create_task(clock.sleep(1.0))
            worker = group.create_task(work())
        assert worker.result() == 0.0
        assert clock.monotonic() == 1.0

    async def test_two_clocks_do_not_wait_for_each_other(self) -> None:
        first, second = FakeClock(0.0, auto=True), FakeClock(0.0, auto=True)
        first.call_later(30.0, lambda: None)
        async with asyncio.timeout(5):
            await asyncio.gather(second.sleep(2.0), first.sleep(1.0))
        assert (first.monotonic(), second.monotonic()) >= (1.0, 2.0)

    async def test_a_timeout_beats_a_longer_sleep(self) -> None:
        clock = FakeClock(0.0, auto=True)
        async with asyncio.timeout(5):
            with pytest.raises(TimeoutError):
                async with clock.timeout(10.0):
                    await clock.sleep(60.0)
        assert clock.monotonic() == 10.0

    def test_it_serves_one_loop_after_the_other(self) -> None:
        clock = FakeClock(0.0, auto=True)

        async def nap() -> None:
            before = clock.monotonic()
            clock.call_later(500.0, lambda: None)
            async with asyncio.timeout(5):
                await clock.sleep(1.0)
            assert clock.monotonic() == before + 1.0

        for _ in range(3):
            asyncio.run(nap())
        assert clock.sleeps == [1.0, 1.0, 1.0]
