"""Permits of several limiters in the same moment, or of none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.engine.rate_bucket import (
    Limiter,
    PermitTimeoutError,
    SlidingWindow,
    TokenBucket,
    acquire_all,
    try_acquire_all,
)
from executionkit.testing import FakeClock, settle

pytestmark = pytest.mark.usefixtures("loop_errors")


async def start(coro: Any) -> asyncio.Task[None]:
    task: asyncio.Task[None] = asyncio.ensure_future(coro)
    await settle(3)
    return task


def windows(clock: FakeClock, *limits: int) -> list[SlidingWindow]:
    return [SlidingWindow(limit, 1.0, clock=clock) for limit in limits]


@pytest.mark.req("T-15", "limits.together")
async def test_nothing_is_consumed_while_one_is_missing() -> None:
    clock = FakeClock()
    tool, everything = windows(clock, 1, 10)
    await acquire_all([tool, everything])
    task = await start(acquire_all([tool, everything]))
    assert tool.usage().used == 1
    assert everything.usage().used == 1
    task.cancel()
    await settle(3)
    assert everything.usage().used == 1
    assert everything.stats().waiting == tool.stats().waiting == 0
    assert clock.pending == 0


@pytest.mark.req("T-15", "limits.together")
async def test_a_call_that_waits_for_its_own_limit_holds_nobody_up() -> None:
    """The fast tool does not wait behind the limited one, whoever asked first."""
    clock = FakeClock()
    limited, fast, everything = windows(clock, 1, 100, 3)
    await acquire_all([limited, everything])
    slow = [await start(acquire_all([limited, everything])) for _ in range(4)]
    await acquire_all([fast, everything])
    await acquire_all([everything])
    assert everything.usage().used == 3
    assert not any(task.done() for task in slow)
    for _ in range(4):
        await clock.advance(1.0)
    assert all(task.done() for task in slow)


@pytest.mark.req("limits.together", "limits.fifo")
async def test_the_oldest_who_can_be_served_goes_first() -> None:
    clock = FakeClock()
    one, two, everything = windows(clock, 9, 9, 1)
    await everything.acquire()
    order: list[str] = []

    async def call(name: str, *limiters: Limiter) -> None:
        await acquire_all(limiters)
        order.append(name)

    tasks = [
        await start(call("a", one, everything)),
        await start(call("b", two, everything)),
        await start(call("c", everything)),
        await start(call("d", one, everything)),
        await start(call("e", two, everything)),
    ]
    for _ in range(5):
        await clock.advance(1.0)
    assert order == ["a", "b", "c", "d", "e"]
    await asyncio.gather(*tasks)


@pytest.mark.req("limits.together", "limits.fifo")
async def test_permits_that_come_free_together_go_to_the_oldest_of_all_lanes() -> None:
    clock = FakeClock()
    one, two, everything = windows(clock, 9, 9, 3)
    await everything.acquire(3)
    order: list[str] = []

    async def call(name: str, *limiters: Limiter) -> None:
        await acquire_all(limiters)
        order.append(name)

    tasks = [
        await start(call("a", one, everything)),
        await start(call("b", two, everything)),
        await start(call("c", one, everything)),
        await start(call("d", one, everything)),
        await start(call("e", two, everything)),
    ]
    everything.refund(3)
    await settle(4)
    assert order == ["a", "b", "c"]
    await clock.advance(1.0)
    assert order == ["a", "b", "c", "d", "e"]
    await asyncio.gather(*tasks)


@pytest.mark.req("limits.together")
async def test_the_order_of_the_limiters_does_not_matter() -> None:
    """Opposite orders cannot wait for each other."""
    clock = FakeClock(auto=True)
    a, b = windows(clock, 1, 1)
    done = []

    async def call(*limiters: Limiter) -> None:
        await acquire_all(limiters)
        done.append(clock.monotonic())

    async with asyncio.timeout(5):
        await asyncio.gather(*[call(a, b) if n % 2 else call(b, a) for n in range(6)])
    assert done == pytest.approx([1000.0 + n for n in range(6)])


@pytest.mark.req("limits.together")
async def test_kinds_may_be_mixed_and_refunded() -> None:
    clock = FakeClock(auto=True)
    bucket = TokenBucket(1.0, 2.0, clock=clock)
    window = SlidingWindow(3, 10.0, clock=clock)
    await acquire_all([bucket, window], 2)
    assert bucket.stats().available == 0.0
    assert window.usage().used == 2
    for limiter in (bucket, window):
        limiter.refund(2)
    assert try_acquire_all([bucket, window], 2) == 0.0
    assert try_acquire_all([bucket, window]) == pytest.approx(1.0)
    assert try_acquire_all([bucket, window], 2) == pytest.approx(10.0)
    await acquire_all([bucket, window])
    assert clock.monotonic() == 1001.0


@pytest.mark.req("limits.together")
async def test_one_limiter_named_twice_is_taken_once() -> None:
    (window,) = windows(FakeClock(), 5)
    await acquire_all([window, window])
    assert window.usage().used == 1
    await acquire_all([])
    await acquire_all([window], 0)
    assert window.usage().used == 1


@pytest.mark.req("LM-03", "limits.together")
async def test_a_cost_above_one_of_the_limits_fails_and_takes_nothing() -> None:
    small, large = windows(FakeClock(), 2, 9)
    with pytest.raises(ValueError, match="never fits"):
        await acquire_all([large, small], 3)
    with pytest.raises(ValueError, match="never fits"):
        try_acquire_all([large, small], 3)
    (single,) = windows(FakeClock(), 1)
    with pytest.raises(ValueError, match="never fits"):
        await acquire_all([large, single], 2)
    assert large.usage().used == 0


@pytest.mark.req("limits.together", "limits.timeout")
async def test_the_wait_is_that_of_the_scarcest() -> None:
    clock = FakeClock()
    tool = SlidingWindow(1, 60.0, clock=clock)
    (everything,) = windows(clock, 1)
    await acquire_all([tool, everything])
    with pytest.raises(PermitTimeoutError) as caught:
        await acquire_all([tool, everything], timeout=30.0)
    assert caught.value.retry_after == pytest.approx(60.0)
    task = await start(acquire_all([tool, everything], timeout=60.0))
    await clock.advance(60.0)
    assert task.done()
    await task


@pytest.mark.req("limits.together")
async def test_what_an_older_call_claims_is_not_free() -> None:
    clock = FakeClock()
    tool, everything, third = windows(clock, 4, 4, 4)
    await acquire_all([tool, everything], 2)
    big = await start(acquire_all([tool], 3))  # lacks `tool` alone, so claims it
    other = await start(acquire_all([tool, everything], 3))
    assert try_acquire_all([tool, everything]) > 0.0
    assert not tool.try_acquire()
    assert not everything.try_acquire(3)
    assert everything.try_acquire(2)
    with pytest.raises(PermitTimeoutError) as caught:
        await acquire_all([tool, third], timeout=0)
    assert caught.value.retry_after > 0.0
    await clock.advance(1.0)
    assert big.done()
    assert not other.done()
    await clock.advance(1.0)
    assert other.done()


@pytest.mark.req("limits.together")
async def test_who_lacks_two_limiters_holds_up_nobody() -> None:
    clock = FakeClock()
    tool, everything = windows(clock, 4, 4)
    await acquire_all([tool, everything], 2)
    big = await start(acquire_all([tool, everything], 3))  # lacks both
    await acquire_all([tool])
    await acquire_all([everything])
    assert tool.usage().used == everything.usage().used == 3
    await clock.advance(1.0)
    assert big.done()


@pytest.mark.req("limits.together", "bucket.cooldown")
async def test_a_cooldown_of_one_dismisses_those_who_need_it_too() -> None:
    clock = FakeClock()
    bucket = TokenBucket(1.0, clock=clock)
    (window,) = windows(clock, 1)
    await acquire_all([bucket, window])
    task = await start(acquire_all([bucket, window], timeout=2.0))
    bucket.drain(30.0)
    await settle()
    with pytest.raises(PermitTimeoutError) as caught:
        await task
    assert caught.value.retry_after == pytest.approx(30.0)


@pytest.mark.req("limits.together")
@pytest.mark.parametrize("waits", [False, True])
async def test_a_call_for_two_leaves_their_waiters_served(waits: bool) -> None:
    """Their queues are joined by somebody who waits himself, or is refused."""
    clock = FakeClock()
    a, b = windows(clock, 1, 3)
    await b.acquire(2)
    ended: list[int] = []

    async def call(number: int, cost: int) -> None:
        await b.acquire(cost)
        ended.append(number)

    await a.acquire()
    tasks = [await start(call(number, 3)) for number in range(3)]
    joiner: asyncio.Task[None] | None = None
    if waits:
        joiner = await start(acquire_all([a, b]))
    else:
        with pytest.raises(PermitTimeoutError):
            await acquire_all([a, b], timeout=0)
    assert clock.pending == 1
    tasks += [await start(call(number, 1)) for number in range(3, 6)]
    assert ended == []  # one permit is left, and the first in line claims it
    await clock.advance(1.0)
    assert ended == [0]
    if joiner is not None:
        joiner.cancel()
    await clock.advance(3.0)
    assert ended == [0, 1, 2, 3, 4, 5]
    assert a.desk is b.desk
    await asyncio.gather(*tasks)


@pytest.mark.req("limits.together")
async def test_a_claimed_limiter_is_free_again_when_its_claimant_leaves() -> None:
    clock = FakeClock()
    (window,) = windows(clock, 3)
    bucket = TokenBucket(0.001, 9.0, clock=clock)
    await window.acquire(1)
    big = await start(acquire_all([window, bucket], 3))
    small = await start(acquire_all([window], 1))
    assert not small.done()
    big.cancel()
    await settle(4)
    assert small.done()


@pytest.mark.req("limits.together")
async def test_limiters_meet_while_others_wait_already() -> None:
    """Two queues become one when a call needs both; nobody is forgotten."""
    clock = FakeClock()
    a, b, c = windows(clock, 1, 1, 1)
    for limiter in (a, b, c):
        await limiter.acquire()
    tasks = [
        await start(a.acquire()),
        await start(b.acquire()),
        await start(c.acquire()),
        await start(acquire_all([a, b])),
        await start(acquire_all([b, c])),
        await start(a.acquire()),
        await start(c.acquire()),
    ]
    assert a.desk is b.desk is c.desk
    assert a.stats().waiting == 2
    tasks[2].cancel()
    for _ in range(4):
        await clock.advance(1.0)
    await settle()
    assert all(task.done() for task in tasks)
    assert clock.pending == 0
    assert not a.desk.lanes
    assert a.try_acquire()
    assert c.try_acquire()


@pytest.mark.req("LM-10", "limits.together", "window.exact")
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.sets(st.integers(0, 2), min_size=1)),
            st.tuples(st.just("cancel"), st.integers(0, 30)),
            st.tuples(st.just("advance"), st.floats(0.01, 1.5)),
            st.tuples(st.just("tick"), st.integers(1, 3)),
        ),
        max_size=40,
    )
)
def test_no_course_breaks_any_of_the_windows(steps: list[tuple[str, Any]]) -> None:
    async def play() -> None:
        clock = FakeClock()
        limits = (1, 2, 3)
        limiters = windows(clock, *limits)
        tasks: list[asyncio.Task[None]] = []
        starts: list[tuple[int, frozenset[int], float]] = []

        async def one(number: int, which: frozenset[int]) -> None:
            await acquire_all([limiters[i] for i in sorted(which)])
            starts.append((number, which, clock.monotonic()))

        for kind, value in steps:
            if kind == "ask":
                call = one(len(tasks), frozenset(value))
                tasks.append(asyncio.ensure_future(call))
            elif kind == "cancel" and tasks:
                tasks[value % len(tasks)].cancel()
            elif kind == "advance":
                await clock.advance(value)
            elif kind == "tick":
                await settle(value)
        await clock.advance(100.0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert clock.pending == 0
        for index, limiter in enumerate(limiters):
            assert not limiter.desk.lanes
            assert limiter.usage().used == 0
            times = [at for _, which, at in starts if index in which]
            for at in times:
                inside = sum(at <= other < at + 1.0 - 1e-9 for other in times)
                assert inside <= limits[index]
        for which in {which for _, which, _ in starts}:
            same = [number for number, other, _ in starts if other == which]
            assert same == sorted(same)

    asyncio.run(play())
