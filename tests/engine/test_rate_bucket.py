"""Rate limits: exact, first in first out, nothing lost when somebody leaves."""

from __future__ import annotations

import asyncio
import math
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.engine.rate_bucket import (
    Limiter,
    LimiterStats,
    PermitTimeoutError,
    SlidingWindow,
    TokenBucket,
    WindowUsage,
)
from executionkit.testing import FakeClock, settle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.usefixtures("loop_errors")

T0 = 1000.0


async def crowd(
    clock: FakeClock, size: int, acquire: Callable[[], Awaitable[None]]
) -> list[tuple[int, float]]:
    """`size` tasks that ask at once: (number, seconds until it went on), as they do."""
    starts: list[tuple[int, float]] = []
    began = clock.monotonic()

    async def one(number: int) -> None:
        await acquire()
        starts.append((number, clock.monotonic() - began))

    async with asyncio.timeout(5):
        await asyncio.gather(*[one(number) for number in range(size)])
    return starts


async def start(awaitable: Awaitable[None]) -> asyncio.Task[None]:
    task = asyncio.ensure_future(awaitable)
    await settle(3)
    assert isinstance(task, asyncio.Task)
    return task


def worst_window(times: list[float], period: float) -> int:
    """The most starts in any half-open window of `period`."""
    return max(sum(t <= u < t + period for u in times) for t in times)


# --- construction and arguments ----------------------------------------------------


@pytest.mark.req("D-40", "LM-03", "limits.validated")
@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: TokenBucket(0.0), "rate"),
        (lambda: TokenBucket(-1.0), "rate"),
        (lambda: TokenBucket(math.nan), "rate"),
        (lambda: TokenBucket(math.inf), "rate"),
        (lambda: TokenBucket(True), "rate"),
        (lambda: TokenBucket(1.0, 0.99), "capacity"),
        (lambda: TokenBucket(1.0, math.inf), "capacity"),
        (lambda: SlidingWindow(0, 1.0), "limit"),
        (lambda: SlidingWindow(-1, 1.0), "limit"),
        (lambda: SlidingWindow(1.5, 1.0), "limit"),  # type: ignore[arg-type]
        (lambda: SlidingWindow(True, 1.0), "limit"),
        (lambda: SlidingWindow(1, 0.0), "period"),
        (lambda: SlidingWindow(1, math.nan), "period"),
    ],
)
def test_a_senseless_limit_is_refused(make: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()


def make_bucket(clock: FakeClock) -> Limiter:
    return TokenBucket(2.0, 2.0, clock=clock)


def make_window(clock: FakeClock) -> Limiter:
    return SlidingWindow(2, 1.0, clock=clock)


both = pytest.mark.parametrize("make", [make_bucket, make_window])


@pytest.mark.req("LM-03", "limits.validated")
@both
@pytest.mark.parametrize("cost", [3, -1, math.nan, math.inf, True])
async def test_a_cost_that_can_never_be_had_fails_at_once(make: Any, cost: Any) -> None:
    """LM-03: more than the limit holds, or no sensible number."""
    limiter = make(FakeClock())
    if cost is True:  # one permit, however it is spelled
        await limiter.acquire(cost)
        return
    with pytest.raises(ValueError, match=r"tokens|cost"):
        await limiter.acquire(cost)
    with pytest.raises(ValueError, match=r"tokens|cost"):
        limiter.try_acquire(cost)
    with pytest.raises(ValueError, match=r"tokens|cost"):
        limiter.wait_time(cost)
    with pytest.raises(ValueError, match=r"tokens|cost"):
        limiter.refund(cost)
    assert limiter.stats().available == 2


@pytest.mark.req("LM-03")
@both
async def test_a_cost_of_zero_is_free_even_when_nothing_is_left(make: Any) -> None:
    limiter = make(FakeClock())
    await limiter.acquire(2)
    await limiter.acquire(0)
    assert limiter.try_acquire(0)
    limiter.refund(0)
    assert limiter.stats().available == 0


@pytest.mark.req("limits.validated")
@both
async def test_a_timeout_that_is_no_number_is_refused(make: Any) -> None:
    limiter = make(FakeClock())
    await limiter.acquire(2)
    with pytest.raises(ValueError, match="timeout"):
        await limiter.acquire(timeout=math.nan)
    assert limiter.stats().waiting == 0


async def test_the_clock_of_the_context_is_the_default(fake_clock: FakeClock) -> None:
    window = SlidingWindow(1, 1.0)
    await window.acquire()
    assert window.now() == fake_clock.monotonic()
    assert window.reset_time() == fake_clock.monotonic() + 1.0


def test_limits_can_be_read() -> None:
    clock = FakeClock()
    bucket, window = (
        TokenBucket(2.0, 3.0, clock=clock),
        SlidingWindow(4, 5.0, clock=clock),
    )
    assert (bucket.rate, bucket.capacity) == (2.0, 3.0)
    assert (window.limit, window.period) == (4, 5.0)


# --- the bucket ----------------------------------------------------------------------


@pytest.mark.req("bucket.pace")
async def test_the_bucket_starts_full_and_then_paces() -> None:
    clock = FakeClock(auto=True)
    bucket = TokenBucket(2.0, 3.0, clock=clock)
    starts = await crowd(clock, 6, bucket.acquire)
    assert [number for number, _ in starts] == [0, 1, 2, 3, 4, 5]
    assert [at for _, at in starts] == pytest.approx([0, 0, 0, 0.5, 1.0, 1.5])


@pytest.mark.req("bucket.pace")
async def test_an_idle_bucket_fills_to_its_capacity_and_no_further() -> None:
    clock = FakeClock(auto=True)
    bucket = TokenBucket(1.0, 2.0, clock=clock)
    await bucket.acquire(2.0)
    await clock.sleep(100.0)
    starts = await crowd(clock, 4, bucket.acquire)
    assert [at for _, at in starts] == pytest.approx([0, 0, 1.0, 2.0])


@pytest.mark.req("bucket.pace")
async def test_tokens_may_be_taken_in_parts_and_in_bulk() -> None:
    clock = FakeClock(auto=True)
    bucket = TokenBucket(1.0, 4.0, clock=clock)
    await bucket.acquire(3.5)
    assert bucket.stats().available == pytest.approx(0.5)
    began = clock.monotonic()
    await bucket.acquire(4.0)
    assert clock.monotonic() - began == pytest.approx(3.5)


@pytest.mark.req("bucket.pace")
@given(
    st.floats(0.1, 1e4),
    st.floats(1.0, 50.0),
    st.lists(
        st.tuples(st.floats(0.0, 2.0), st.integers(1, 5)), min_size=1, max_size=12
    ),
)
def test_no_interval_has_more_than_a_burst_and_the_inflow(
    rate: float, capacity: float, arrivals: list[tuple[float, int]]
) -> None:
    clock = FakeClock(auto=True)
    times: list[float] = []

    async def course() -> None:
        bucket = TokenBucket(rate, capacity, clock=clock)

        async def one() -> None:
            await bucket.acquire()
            times.append(clock.monotonic())

        tasks = []
        for pause, count in arrivals:
            await clock.sleep(pause)
            tasks += [asyncio.ensure_future(one()) for _ in range(count)]
            await settle(2)
        await asyncio.gather(*tasks)

    asyncio.run(course())
    for i, first in enumerate(times):
        for j, last in enumerate(times[i:], 1):
            assert j <= capacity + rate * (last - first) + 1e-6


@pytest.mark.req("D-40", "limits.fifo")
@pytest.mark.parametrize("rate", [3.0, 1e3, 1e6, 0.37])
async def test_every_waiter_is_served_in_order_at_its_own_time(rate: float) -> None:
    clock = FakeClock(auto=True)
    bucket = TokenBucket(rate, clock=clock)
    starts = await crowd(clock, 200, bucket.acquire)
    assert [number for number, _ in starts] == list(range(200))
    # The bound is the rounding of a clock that reads 1000 s, once per grant.
    assert [at for _, at in starts] == pytest.approx(
        [n / rate for n in range(200)], abs=1e-9
    )


@pytest.mark.req("D-40", "bucket.cooldown")
async def test_after_a_cooldown_one_goes_first_and_the_others_at_the_rate() -> None:
    """D-40: no full burst onto a server that has just recovered."""
    clock = FakeClock(auto=True)
    bucket = TokenBucket(2.0, 4.0, clock=clock)
    bucket.drain(3.0)
    assert bucket.stats() == LimiterStats(0.0, 0, 3.0)
    starts = await crowd(clock, 4, bucket.acquire)
    assert [at for _, at in starts] == pytest.approx([3.0, 3.5, 4.0, 4.5])


@pytest.mark.req("bucket.cooldown")
async def test_a_short_cooldown_of_an_empty_bucket_keeps_the_pace() -> None:
    clock = FakeClock(auto=True)
    bucket = TokenBucket(0.1, clock=clock)
    await bucket.acquire()
    bucket.drain(1.0)
    assert bucket.wait_time() == pytest.approx(10.0)


@pytest.mark.req("bucket.cooldown")
@both
async def test_a_cooldown_is_extended_and_never_shortened(make: Any) -> None:
    clock = FakeClock()
    limiter = make(clock)
    limiter.drain(5.0)
    limiter.drain(1.0)
    assert limiter.wait_time() == pytest.approx(5.0)
    await clock.advance(2.0)
    assert limiter.wait_time() == pytest.approx(3.0)
    limiter.drain(4.0)
    assert limiter.wait_time() == pytest.approx(4.0)
    limiter.drain(0.0)
    assert limiter.wait_time() == pytest.approx(4.0)
    assert limiter.stats().available == 0


@pytest.mark.req("bucket.cooldown")
@both
async def test_a_cooldown_stops_those_who_find_permits_left(make: Any) -> None:
    clock = FakeClock(auto=True)
    limiter = make(clock)
    limiter.drain(3.0)
    assert not limiter.try_acquire()
    assert limiter.stats().available == 0
    starts = await crowd(clock, 1, limiter.acquire)
    assert starts == [(0, 3.0)]
    assert limiter.stats().waiting == 0


@pytest.mark.req("bucket.cooldown")
@both
async def test_a_cooldown_is_over_at_its_very_end(make: Any) -> None:
    clock = FakeClock()
    limiter = make(clock)
    limiter.drain(3.0)
    await clock.advance(3.0)
    assert limiter.stats().available >= 1
    assert limiter.try_acquire()


@pytest.mark.req("bucket.cooldown")
async def test_an_extended_cooldown_still_ends_with_one_token() -> None:
    clock = FakeClock(auto=True)
    bucket = TokenBucket(10.0, 5.0, clock=clock)
    bucket.drain(1.0)
    bucket.drain(2.0)
    starts = await crowd(clock, 3, bucket.acquire)
    assert [at for _, at in starts] == pytest.approx([2.0, 2.1, 2.2])


@pytest.mark.req("D-40", "bucket.cooldown")
@both
@pytest.mark.parametrize("seconds", [-100.0, -0.001, math.nan, math.inf, "1", True])
def test_a_senseless_cooldown_is_refused_and_changes_nothing(
    make: Any, seconds: Any
) -> None:
    limiter = make(FakeClock())
    with pytest.raises(ValueError, match="seconds"):
        limiter.drain(seconds)
    assert limiter.stats().available == 2


@pytest.mark.req("bucket.cooldown")
async def test_a_cooldown_of_zero_costs_nothing() -> None:
    bucket = TokenBucket(1.0, 3.0, clock=FakeClock())
    bucket.drain(0)
    assert bucket.stats().available == 3.0


@pytest.mark.req("bucket.cooldown")
@both
async def test_waiters_stay_in_order_through_a_cooldown(make: Any) -> None:
    clock = FakeClock(auto=True)
    limiter = make(clock)
    await limiter.acquire(2)

    async def drain() -> None:
        await clock.sleep(0.25)
        limiter.drain(5.0)

    side = asyncio.ensure_future(drain())
    starts = await crowd(clock, 5, limiter.acquire)
    await side
    assert [number for number, _ in starts] == list(range(5))
    assert starts[0][1] == pytest.approx(5.25)


# --- the window ----------------------------------------------------------------------


@pytest.mark.req("LM-02", "window.exact")
async def test_a_hundred_waiters_never_pass_ten_per_window() -> None:
    """LM-02: all released at once; every start takes one permit."""
    clock = FakeClock(auto=True)
    window = SlidingWindow(10, 1.0, clock=clock)
    starts = await crowd(clock, 100, window.acquire)
    times = [at for _, at in starts]
    assert [number for number, _ in starts] == list(range(100))
    assert worst_window(times, 1.0) == 10
    assert times == pytest.approx([float(n // 10) for n in range(100)])


@pytest.mark.req("LM-04", "window.exact")
async def test_the_reset_time_is_that_of_the_oldest_start() -> None:
    """LM-04: limit 3 per 60 s, starts at 0, 10, 50; asked at 55."""
    clock = FakeClock(0.0)
    window = SlidingWindow(3, 60.0, clock=clock)
    assert window.reset_time() is None
    for pause in (0.0, 10.0, 40.0):
        await clock.advance(pause)
        await window.acquire()
    await clock.advance(5.0)
    assert window.reset_time() == 60.0
    assert window.wait_time() == pytest.approx(5.0)
    assert window.wait_time(2) == pytest.approx(15.0)
    assert window.wait_time(3) == pytest.approx(55.0)
    await clock.advance(5.0)
    assert window.reset_time() == 70.0
    assert window.wait_time() == 0.0


@pytest.mark.req("LM-07", "window.exact")
async def test_late_starts_still_count_when_the_first_has_left() -> None:
    """LM-07: limit 10 per hour; 1 at 0:00, 8 at 0:59, then 9 at 1:01: two fit."""
    clock = FakeClock(0.0)
    window = SlidingWindow(10, 3600.0, clock=clock)
    assert window.try_acquire()
    await clock.advance(59 * 60.0)
    assert all(window.try_acquire() for _ in range(8))
    await clock.advance(2 * 60.0)
    assert window.usage() == WindowUsage(8, 10, 3600.0)
    assert window.usage().remaining == 2
    assert [window.try_acquire() for _ in range(9)] == [True] * 2 + [False] * 7


@pytest.mark.req("window.exact")
async def test_a_start_leaves_the_window_exactly_after_the_period() -> None:
    clock = FakeClock(0.0)
    window = SlidingWindow(1, 2.0, clock=clock)
    assert window.try_acquire()
    await clock.advance(1.999)
    assert not window.try_acquire()
    assert window.usage().used == 1
    await clock.advance(0.001)
    assert window.usage().used == 0
    assert window.try_acquire()


@pytest.mark.req("window.exact")
async def test_the_period_begins_when_the_caller_goes_on() -> None:
    """A caller that the loop resumes late is counted when it starts, not before."""
    clock = FakeClock(0.0)
    window = SlidingWindow(1, 1.0, clock=clock)
    await window.acquire()
    task = await start(window.acquire())
    follower = await start(window.acquire())

    # Others delay the waiter between its grant and its start.
    clock.call_later(1.0, lambda: None)
    await settle()
    clock._now = 1.0
    window.desk.pump()
    assert window.usage().used == 1
    assert window.due(1) == math.inf
    assert window.wait_time() == 2.0  # behind the follower
    clock._now = 1.7
    await settle(3)
    assert task.done()
    assert window.reset_time() == 2.7
    follower.cancel()
    await settle(3)


@pytest.mark.req("window.exact", "limits.fifo")
@pytest.mark.parametrize("used", [0, 2])
async def test_a_newcomer_does_not_take_what_was_granted_and_not_yet_used(
    used: int,
) -> None:
    clock = FakeClock(0.0)
    window = SlidingWindow(used + 1, 1.0, clock=clock)
    await window.acquire()
    if used:
        await clock.advance(0.5)
        await window.acquire(used)
    waiter = await start(window.acquire())
    clock._now += 1.0 - clock._now
    window.desk.pump()  # granted; nobody waits any more, nobody has gone on yet
    assert not window.desk.lanes
    assert not window.try_acquire()
    newcomer = asyncio.ensure_future(window.acquire())
    await settle(5)
    assert waiter.done()
    assert not newcomer.done()
    newcomer.cancel()
    await settle(3)


@pytest.mark.req("window.exact")
async def test_a_cost_above_one_counts_as_so_many_starts() -> None:
    clock = FakeClock(auto=True)
    window = SlidingWindow(4, 1.0, clock=clock)
    await window.acquire(3)
    assert window.usage().used == 3
    began = clock.monotonic()
    await window.acquire(2)
    assert clock.monotonic() - began == pytest.approx(1.0)
    assert window.usage().used == 2
    await window.acquire(2)
    assert window.usage().remaining == 0


@pytest.mark.req("window.exact")
async def test_reset_forgets_starts_and_cooldown_and_serves_waiters() -> None:
    clock = FakeClock()
    window = SlidingWindow(1, 60.0, clock=clock)
    await window.acquire()
    window.drain(600.0)
    task = await start(window.acquire())
    assert window.stats() == LimiterStats(0, 1, 660.0)
    window.reset()
    await settle(3)
    assert task.done()
    assert window.usage().used == 1


@pytest.mark.req("window.exact")
def test_the_check_costs_the_same_whatever_the_window_holds() -> None:
    """No walk over the starts: the deque is only touched at its ends."""

    class Counting(SlidingWindow):
        def __len__(self) -> int:
            return len(self._stamps)

    clock = FakeClock(0.0)
    window = Counting(50_000, 3600.0, clock=clock)
    for _ in range(50_000):
        assert window.try_acquire()
    assert not window.try_acquire()
    assert len(window) == 50_000
    clock._now = 3600.0
    assert window.try_acquire()
    # One has gone for one that came; the expired others are not swept in one go.
    assert len(window) == 50_000


# --- refusing, asking, giving back -----------------------------------------------------


@pytest.mark.req("limits.timeout")
@both
async def test_a_wait_that_is_too_long_fails_at_once_with_the_time_it_takes(
    make: Any,
) -> None:
    clock = FakeClock()
    limiter = make(clock)
    await limiter.acquire(2)
    with pytest.raises(PermitTimeoutError) as caught:
        await limiter.acquire(timeout=0.4)
    assert caught.value.retry_after == pytest.approx(limiter.wait_time())
    assert caught.value.retry_after >= 0.5
    assert isinstance(caught.value, TimeoutError)
    assert limiter.stats().waiting == 0
    assert clock.pending == 0


@pytest.mark.req("limits.timeout")
@both
async def test_a_wait_that_fits_is_waited_out(make: Any) -> None:
    clock = FakeClock(auto=True)
    limiter = make(clock)
    await limiter.acquire(2)
    await limiter.acquire(timeout=1.0)
    assert clock.monotonic() in {T0 + 0.5, T0 + 1.0}
    assert clock.pending == 0


@pytest.mark.req("limits.timeout")
@both
@pytest.mark.parametrize("timeout", [0, 0.0, -1.0])
async def test_a_timeout_of_zero_tries_once(make: Any, timeout: float) -> None:
    limiter = make(FakeClock())
    await limiter.acquire(2, timeout=timeout)
    with pytest.raises(PermitTimeoutError):
        await limiter.acquire(timeout=timeout)


@pytest.mark.req("limits.timeout")
@both
async def test_an_infinite_timeout_is_none(make: Any) -> None:
    clock = FakeClock(auto=True)
    limiter = make(clock)
    await limiter.acquire(2)
    await limiter.acquire(timeout=math.inf)


@pytest.mark.req("limits.timeout")
async def test_those_ahead_count_towards_the_wait() -> None:
    clock = FakeClock()
    window = SlidingWindow(2, 1.0, clock=clock)
    await window.acquire(2)
    tasks = [await start(window.acquire()) for _ in range(5)]
    # Two per second: the sixth in line is served after 3 s.
    assert window.wait_time() == pytest.approx(3.0)
    with pytest.raises(PermitTimeoutError) as caught:
        await window.acquire(timeout=2.9)
    assert caught.value.retry_after == pytest.approx(3.0)
    last = await start(window.acquire(timeout=3.0))
    await clock.advance(3.0)
    await asyncio.gather(*tasks, last)


@pytest.mark.req("limits.timeout")
@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 9), st.floats(0.0, 0.9))
def test_the_estimate_is_the_time_that_it_takes(
    limit: int, used: int, ahead: int, pause: float
) -> None:
    async def course() -> None:
        clock = FakeClock(0.0)
        window = SlidingWindow(limit, 1.0, clock=clock)
        for _ in range(min(used, limit)):
            await window.acquire()
        await clock.advance(pause)
        tasks = [await start(window.acquire()) for _ in range(ahead)]
        wait = window.wait_time()
        task = await start(window.acquire())
        began = clock.monotonic()
        ended: list[float] = []
        task.add_done_callback(lambda _t: ended.append(clock.monotonic()))
        await clock.advance(20.0)
        await asyncio.gather(*tasks, task)
        assert ended[0] - began == pytest.approx(wait, abs=1e-6)

    asyncio.run(course())


@pytest.mark.req("limits.timeout")
async def test_a_timeout_that_ends_in_the_queue_leaves_it() -> None:
    """The estimate is a lower bound: a cost above one may take longer."""
    clock = FakeClock()
    window = SlidingWindow(3, 1.0, clock=clock)
    await window.acquire(2)
    await clock.advance(0.5)
    big = await start(window.acquire(3))
    small = await start(window.acquire(timeout=1.0))
    await clock.advance(1.0)  # the big one went on, its window is not over
    assert big.done()
    with pytest.raises(PermitTimeoutError) as caught:
        await small
    assert caught.value.retry_after == pytest.approx(0.5)
    assert window.stats().waiting == 0
    assert clock.pending == 0


@pytest.mark.req("limits.timeout", "bucket.cooldown")
@both
async def test_a_cooldown_dismisses_those_who_cannot_be_served_in_time(
    make: Any,
) -> None:
    clock = FakeClock()
    limiter = make(clock)
    await limiter.acquire(2)
    hasty = await start(limiter.acquire(timeout=1.5))
    patient = await start(limiter.acquire())
    short = await start(limiter.acquire(timeout=2.0))
    gone = await start(limiter.acquire(timeout=2.0))
    gone.cancel()
    limiter.drain(30.0)
    await settle()
    for task in (hasty, short):
        with pytest.raises(PermitTimeoutError) as caught:
            await task
        assert caught.value.retry_after >= 30.0
    assert not patient.done()
    assert limiter.stats().waiting == 1
    await clock.advance(30.0)
    assert patient.done()


@pytest.mark.req("limits.timeout")
async def test_a_cooldown_that_leaves_time_dismisses_nobody() -> None:
    clock = FakeClock()
    bucket = TokenBucket(1.0, clock=clock)
    await bucket.acquire()
    task = await start(bucket.acquire(timeout=5.0))
    bucket.drain(5.0)
    await clock.advance(5.0)
    assert task.done()
    await task


@pytest.mark.req("limits.timeout", "bucket.cooldown")
async def test_a_cooldown_dismisses_those_too_far_back_and_no_others() -> None:
    clock = FakeClock()
    bucket = TokenBucket(1.0, clock=clock)
    await bucket.acquire()
    first = await start(bucket.acquire(timeout=6.0))
    second = await start(bucket.acquire(timeout=6.0))
    third = await start(bucket.acquire(timeout=6.6))
    bucket.drain(5.5)
    await settle()
    with pytest.raises(PermitTimeoutError):
        await second  # in 6.5 s
    assert not third.done()  # moved up to 6.5 s
    await clock.advance(6.5)
    assert first.done()
    assert third.done()


@pytest.mark.req("limits.fifo")
@both
async def test_nobody_overtakes_those_who_wait(make: Any) -> None:
    clock = FakeClock()
    limiter = make(clock)
    await limiter.acquire()
    big = await start(limiter.acquire(2))
    assert not limiter.try_acquire()
    small = await start(limiter.acquire())
    ended: dict[str, float] = {}
    big.add_done_callback(lambda _t: ended.setdefault("big", clock.monotonic()))
    small.add_done_callback(lambda _t: ended.setdefault("small", clock.monotonic()))
    await clock.advance(3.0)
    assert list(ended) == ["big", "small"]
    assert ended["small"] >= ended["big"] + 0.5


@pytest.mark.req("limits.refund")
@both
async def test_a_refund_serves_the_next_waiter_at_once(make: Any) -> None:
    clock = FakeClock()
    limiter = make(clock)
    await limiter.acquire(2)
    task = await start(limiter.acquire())
    limiter.refund()
    await settle(3)
    assert task.done()
    assert limiter.stats().available == 0


@pytest.mark.req("limits.refund")
@both
async def test_a_refund_makes_no_more_than_the_limit(make: Any) -> None:
    limiter = make(FakeClock())
    limiter.refund()
    assert limiter.stats().available == 2
    await limiter.acquire()
    limiter.refund(2)
    assert limiter.stats().available == 2


@pytest.mark.req("limits.refund", "bucket.cooldown")
async def test_a_refund_in_a_cooldown_brings_no_burst() -> None:
    clock = FakeClock(auto=True)
    bucket = TokenBucket(1.0, 5.0, clock=clock)
    await bucket.acquire(3.0)
    bucket.drain(2.0)
    bucket.refund(3.0)
    starts = await crowd(clock, 3, bucket.acquire)
    assert [at for _, at in starts] == pytest.approx([2.0, 3.0, 4.0])


@pytest.mark.req("limits.refund", "window.exact")
async def test_a_refund_never_lets_a_window_overflow() -> None:
    """The start that is given back may be older than others that really happened."""
    clock = FakeClock(0.0)
    window = SlidingWindow(2, 10.0, clock=clock)
    await window.acquire()  # at 0, given back later
    await clock.advance(5.0)
    await window.acquire()  # at 5, real
    window.refund()
    assert window.try_acquire()  # at 5, real
    await clock.advance(5.0)  # at 10 the first one would have left the window
    assert not window.try_acquire()
    await clock.advance(5.0)
    assert window.try_acquire()


@pytest.mark.req("limits.refund", "window.exact")
async def test_a_permit_that_has_left_the_window_is_worth_nothing() -> None:
    clock = FakeClock(0.0)
    window = SlidingWindow(1, 1.0, clock=clock)
    await window.acquire()
    since = window.now()
    await clock.advance(1.0)
    await window.acquire()
    window.refund(since=since)
    assert not window.try_acquire()
    window.refund(since=window.now())
    assert window.try_acquire()


@pytest.mark.req("LM-10", "limits.refund")
@both
@pytest.mark.parametrize("order", ["grant-cancel", "cancel-grant"])
async def test_a_waiter_cancelled_in_the_tick_of_its_grant_loses_nothing(
    make: Any, order: str
) -> None:
    """LM-10: one permit, waiters B and C; grant and cancel B in the same iteration."""
    clock = FakeClock()
    limiter = make(clock)
    await limiter.acquire(2)
    b = await start(limiter.acquire())
    c = await start(limiter.acquire())
    if order == "grant-cancel":
        limiter.refund()
        b.cancel()
    else:
        b.cancel()
        limiter.refund()
    await settle(5)
    assert b.cancelled()
    assert c.done()
    assert not c.cancelled()
    assert limiter.stats().available == 0


@pytest.mark.req("D-40", "limits.refund")
@both
async def test_those_behind_a_cancelled_waiter_move_up(make: Any) -> None:
    clock = FakeClock()
    limiter = make(clock)
    await limiter.acquire(2)
    first = await start(limiter.acquire())
    rest = [await start(limiter.acquire()) for _ in range(2)]
    first.cancel()
    await settle(3)
    assert limiter.stats().waiting == 2
    await clock.advance(1.0)
    assert all(task.done() for task in rest)
    assert limiter.stats().waiting == 0
    assert clock.pending == 0


@pytest.mark.req("limits.refund")
@both
async def test_the_last_waiter_to_leave_stops_the_timer(make: Any) -> None:
    clock = FakeClock()
    limiter = make(clock)
    await limiter.acquire(2)
    task = await start(limiter.acquire())
    assert clock.pending == 1
    task.cancel()
    await settle(3)
    assert clock.pending == 0


@pytest.mark.req("limits.fifo", "T-16")
async def test_each_waiter_is_woken_once_and_by_one_timer() -> None:
    clock = FakeClock(auto=True)
    armed: list[float] = []
    real = clock.call_later

    def counted(seconds: float, callback: Callable[[], None]) -> Any:
        armed.append(seconds)
        return real(seconds, callback)

    clock.call_later = counted  # type: ignore[method-assign]
    bucket = TokenBucket(100.0, clock=clock)
    await crowd(clock, 200, bucket.acquire)
    assert len(armed) <= 2 * 200  # a rounding may need a second look


def test_an_error_of_the_wait_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(PermitTimeoutError("no", 2.5)))
    assert str(error) == "no"
    assert error.retry_after == 2.5


@pytest.mark.req("limits.loops")
def test_a_limiter_serves_one_loop_after_the_other() -> None:
    clock = FakeClock()
    window = SlidingWindow(1, 1.0, clock=clock)

    async def use() -> None:
        task = asyncio.ensure_future(window.acquire())
        waiter = asyncio.ensure_future(window.acquire())
        await settle(3)
        assert task.done()
        assert not waiter.done()
        waiter.cancel()  # as the end of a loop does

    asyncio.run(use())
    assert window.stats().waiting == 0
    clock._now += 1.0
    asyncio.run(use())


# --- random courses --------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 3)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("advance"), st.floats(0.01, 1.5)),
        st.tuples(st.just("tick"), st.integers(1, 3)),
        st.tuples(st.just("refund"), st.integers(0, 30)),
        st.tuples(st.just("try"), st.just(1)),
    ),
    max_size=40,
)


class Course:
    """Random users of one limiter, and what must hold whatever they do."""

    def __init__(self, limiter: Limiter, clock: FakeClock) -> None:
        self.limiter: Any = limiter
        self.clock = clock
        self.tasks: list[asyncio.Task[None]] = []
        self.costs: list[int] = []
        self.started: list[tuple[int, float]] = []
        self.given_back: set[int] = set()
        self.tries: set[int] = set()

    async def one(self, number: int, cost: int) -> None:
        await self.limiter.acquire(cost)
        self.started.append((number, self.clock.monotonic()))

    async def step(self, kind: str, value: Any) -> None:
        if kind == "ask":
            self.costs.append(value)
            number = len(self.tasks)
            self.tasks.append(asyncio.ensure_future(self.one(number, value)))
        elif kind == "cancel" and self.tasks:
            self.tasks[value % len(self.tasks)].cancel()
        elif kind == "advance":
            await self.clock.advance(value)
        elif kind == "tick":
            await settle(value)
        elif kind == "refund" and self.started:
            number, since = self.started[value % len(self.started)]
            if number not in self.given_back:
                self.given_back.add(number)
                self.limiter.refund(self.costs[number], since=since)
        elif kind == "try" and self.limiter.try_acquire():
            number = len(self.tasks)
            self.costs.append(1)
            self.tries.add(number)
            self.tasks.append(asyncio.ensure_future(asyncio.sleep(0)))
            self.started.append((number, self.clock.monotonic()))

    def real_starts(self) -> list[float]:
        return sorted(
            at
            for number, at in self.started
            if number not in self.given_back
            for _ in range(self.costs[number])
        )

    async def end(self) -> None:
        await self.clock.advance(200.0)
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        assert all(
            result is None or isinstance(result, asyncio.CancelledError)
            for result in results
        )
        assert self.limiter.stats().waiting == 0
        assert not self.limiter.desk.lanes
        assert self.clock.pending == 0
        asked = [number for number, _ in self.started if number not in self.tries]
        assert asked == sorted(asked)


@pytest.mark.req("LM-10", "window.exact", "limits.fifo", "limits.refund")
@settings(max_examples=150, deadline=None)
@given(st.integers(3, 5), STEPS)
def test_no_course_breaks_the_window(limit: int, steps: list[tuple[str, Any]]) -> None:
    async def play() -> None:
        clock = FakeClock()
        window = SlidingWindow(limit, 1.0, clock=clock)
        course = Course(window, clock)
        for kind, value in steps:
            await course.step(kind, value)
        await course.end()
        assert window.usage().used == 0
        assert window._pending == 0
        times = course.real_starts()
        if times:
            assert worst_window(times, 1.0 - 1e-9) <= limit

    asyncio.run(play())


@pytest.mark.req("LM-10", "bucket.pace", "limits.fifo", "limits.refund")
@settings(max_examples=150, deadline=None)
@given(st.floats(3.0, 6.0), STEPS)
def test_no_course_breaks_the_bucket(
    capacity: float, steps: list[tuple[str, Any]]
) -> None:
    async def play() -> None:
        clock = FakeClock()
        bucket = TokenBucket(2.0, capacity, clock=clock)
        course = Course(bucket, clock)
        for kind, value in steps:
            await course.step(kind, value)
        await course.end()
        assert bucket.stats().available == pytest.approx(capacity)
        if any(kind == "refund" for kind, _ in steps):
            return
        times = course.real_starts()
        for i, first in enumerate(times):
            for j, last in enumerate(times[i:], 1):
                assert j <= capacity + 2.0 * (last - first) + 1e-6

    asyncio.run(play())
