"""Blocking functions run in threads of their own and never hold anything up."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from executionkit._threads import ThreadPool, run_in_thread

LIMIT = 5


async def test_a_value_and_an_error_come_back_to_the_caller() -> None:
    pool = ThreadPool()
    assert await pool.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0)


async def test_the_callers_context_is_seen_inside_and_not_changed() -> None:
    variable = contextvars.ContextVar("variable", default="outside")
    pool = ThreadPool()

    def inside() -> str:
        seen = variable.get()
        variable.set("changed")
        return seen

    variable.set("mine")
    assert await pool.run(inside) == "mine"
    assert variable.get() == "mine"


async def test_an_idle_thread_is_used_again() -> None:
    pool = ThreadPool()
    names = {await pool.run(lambda: threading.current_thread().name) for _ in range(5)}
    assert len(names) <= 2  # the next call may come before the thread is idle


@pytest.mark.req("TX-02")
async def test_overrunning_threads_are_abandoned_counted_and_hold_nobody_up() -> None:
    """TX-02: 50 calls overrun, the next one still runs at once."""
    pool = ThreadPool()
    release = threading.Event()
    tasks = [asyncio.create_task(pool.run(release.wait, LIMIT)) for _ in range(50)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert pool.stats().abandoned == 50
    async with asyncio.timeout(LIMIT):
        assert await pool.run(lambda: "quick") == "quick"
        release.set()
        while pool.stats().abandoned:
            await asyncio.to_thread(release.wait, 0.001)
    assert pool.stats().busy == 0


async def test_a_function_that_raises_stop_iteration_does_not_hang() -> None:
    def odd() -> None:
        raise StopIteration(3)

    with pytest.raises(RuntimeError, match="StopIteration"):
        async with asyncio.timeout(LIMIT):
            await ThreadPool().run(odd)


async def test_idle_threads_end() -> None:
    pool = ThreadPool(idle_seconds=0.001)
    await pool.run(lambda: None)
    async with asyncio.timeout(LIMIT):
        while pool.stats().idle:
            await asyncio.sleep(0)


async def test_no_more_threads_stay_idle_than_asked_for() -> None:
    pool = ThreadPool(max_idle=1)
    barrier = threading.Barrier(4)
    async with asyncio.timeout(LIMIT):
        await asyncio.gather(*(pool.run(barrier.wait, LIMIT) for _ in range(4)))
    assert pool.stats().idle <= 1


async def test_a_forked_child_does_not_wait_for_its_parents_threads() -> None:
    pool = ThreadPool()
    await pool.run(lambda: None)
    pool._pid = -1  # as in a forked child: the listed threads do not exist there
    async with asyncio.timeout(LIMIT):
        assert await pool.run(lambda: "fresh") == "fresh"


def test_a_loop_closed_before_the_end_is_no_problem() -> None:
    pool = ThreadPool()
    release = threading.Event()

    async def leave() -> None:
        task = asyncio.create_task(pool.run(release.wait, LIMIT))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    release.set()
    assert asyncio.run(pool.run(lambda: 1)) == 1


@pytest.mark.req("threads.bounded")
async def test_beyond_a_bound_of_overrunning_functions_nothing_new_begins() -> None:
    """TX-02: leaked threads are bounded."""
    pool = ThreadPool(max_abandoned=3)
    release = threading.Event()
    tasks = [asyncio.create_task(pool.run(release.wait, LIMIT)) for _ in range(3)]
    await asyncio.sleep(0)
    assert await pool.run(lambda: "others go on") == "others go on"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    with pytest.raises(RuntimeError, match="3 functions that overran"):
        await pool.run(lambda: "never")
    assert pool.stats().busy == 0
    release.set()
    async with asyncio.timeout(LIMIT):
        while pool.stats().abandoned:
            await asyncio.to_thread(release.wait, 0.001)
        assert await pool.run(lambda: "again") == "again"


async def test_any_name_may_be_a_keyword_of_the_function() -> None:
    pool = ThreadPool()
    made: dict[str, int] = await pool.run(dict, function=1, self=2, args=3)
    assert made == {"function": 1, "self": 2, "args": 3}
    assert await run_in_thread(dict, function=1) == {"function": 1}
