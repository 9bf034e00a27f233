"""Bulkheads: slots on every level, all at once or none, and none ever lost."""

from __future__ import annotations

import asyncio
import math
import pickle
from dataclasses import FrozenInstanceError
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.engine._loans import Loans
from executionkit.engine._slots import Pool, Route
from executionkit.engine.bulkhead import Bulkhead, BulkheadConfig, BulkheadStats
from executionkit.errors import BulkheadFullError, BulkheadLimitType
from executionkit.testing import FakeClock, settle

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.usefixtures("loop_errors")

TOOL, PATTERN = BulkheadLimitType.TOOL, BulkheadLimitType.PATTERN
NAMESPACE, GLOBAL = BulkheadLimitType.NAMESPACE, BulkheadLimitType.GLOBAL
QUEUE = BulkheadLimitType.QUEUE_DEPTH


class Calls:
    """Calls that hold a slot until they are let go."""

    def __init__(self, bulkhead: Bulkhead) -> None:
        self.bulkhead = bulkhead
        self.inside: list[str] = []
        self.peak = 0

    async def _one(
        self,
        name: str,
        tool: str,
        namespace: str,
        go: asyncio.Event,
        timeout: float | None,
    ) -> None:
        async with self.bulkhead.acquire(tool, namespace, timeout):
            self.inside.append(name)
            self.peak = max(self.peak, len(self.inside))
            try:
                await go.wait()
            finally:
                self.inside.remove(name)

    async def start(
        self,
        tool: str,
        namespace: str = "default",
        *,
        name: str = "",
        timeout: float | None = None,
    ) -> Call:
        go = asyncio.Event()
        task = asyncio.ensure_future(
            self._one(name or tool, tool, namespace, go, timeout)
        )
        await settle(4)
        return Call(task, go)


class Call:
    def __init__(self, task: asyncio.Task[None], go: asyncio.Event) -> None:
        self.task = task
        self._go = go

    async def finish(self) -> None:
        self._go.set()
        async with asyncio.timeout(5):
            await self.task
        await settle(4)

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await settle(4)

    @property
    def error(self) -> BulkheadFullError:
        error = self.task.exception()
        assert isinstance(error, BulkheadFullError)
        return error


def calls(clock: FakeClock | None = None, **options: Any) -> Calls:
    return Calls(Bulkhead(BulkheadConfig(**options), clock=clock or FakeClock()))


async def finish(*started: Call) -> None:
    for call in started:
        await call.finish()


# --- configuration ---------------------------------------------------------------------


@pytest.mark.req("bulkhead.config")
def test_the_defaults_are_the_documented_ones() -> None:
    config = BulkheadConfig()
    assert config.default_limit == 10
    assert config.tool_limits == config.patterns == config.namespace_limits == {}
    assert config.global_limit is None
    assert config.acquisition_timeout is None
    assert config.max_queue_depth is None
    assert config.enable_metrics is True
    assert BulkheadConfig(1, {"a": 2}, {"b*": 3}, {"n": 4}, 5, 6.0, 7, False) == (
        BulkheadConfig(
            default_limit=1,
            tool_limits={"a": 2},
            patterns={"b*": 3},
            namespace_limits={"n": 4},
            global_limit=5,
            acquisition_timeout=6.0,
            max_queue_depth=7,
            enable_metrics=False,
        )
    )


@pytest.mark.req("bulkhead.config")
def test_a_config_is_read_only_to_its_depth() -> None:
    limits = {"a": 2}
    config = BulkheadConfig(tool_limits=limits)
    limits["a"] = 99
    assert config.tool_limits == {"a": 2}
    with pytest.raises(TypeError):
        config.tool_limits["a"] = 1  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        config.default_limit = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.req("bulkhead.config", "T-18")
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"default_limit": 0}, "default_limit"),
        ({"default_limit": 1.5}, "default_limit"),
        ({"tool_limits": {"a": 0}}, r"tool_limits\['a'\]"),
        ({"patterns": {"a*": -1}}, r"patterns\['a\*'\]"),
        ({"namespace_limits": {"n": True}}, r"namespace_limits\['n'\]"),
        ({"global_limit": 0}, "global_limit"),
        ({"acquisition_timeout": -0.1}, "acquisition_timeout"),
        ({"acquisition_timeout": math.inf}, "acquisition_timeout"),
        ({"max_queue_depth": -1}, "max_queue_depth"),
    ],
)
def test_a_senseless_limit_is_refused_by_name(
    options: Mapping[str, Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        BulkheadConfig(**options)


@pytest.mark.req("bulkhead.names")
@pytest.mark.parametrize(
    ("tool", "namespace", "limit"),
    [
        ("db.critical", "default", 1),
        ("critical", "db", 1),
        ("db.critical", "db", 1),
        ("db.read", "default", 3),
        ("read", "db", 3),
        ("database.query", "default", 10),
        ("mcp.notion.search", "default", 2),
        ("notion.search", "mcp", 2),
        ("mcp.github.issues", "default", 5),
        ("slow_api", "default", 4),
        ("slow_api", "anything", 4),
        ("api_client", "default", 10),
        ("default", "default", 10),
        ("bare", "x", 7),
        ("x.bare", "x", 7),
        ("X.Bare", "x", 10),
        ("dig", "default", 10),
    ],
)
def test_a_name_is_matched_as_dotted_first_and_then_bare(
    tool: str, namespace: str, limit: int
) -> None:
    bulkhead = Bulkhead(
        BulkheadConfig(
            tool_limits={"db.critical": 1, "bare": 7},
            patterns={
                "db.*": 3,
                "mcp.notion.*": 2,
                "mcp.*": 5,
                "*_api": 4,
                "default.*": 9,
            },
        ),
        clock=FakeClock(),
    )
    assert bulkhead.get_tool_limit(tool, namespace) == limit


@pytest.mark.req("bulkhead.names")
def test_the_first_pattern_that_matches_wins() -> None:
    for patterns, limit in (({"a*": 1, "ab*": 2}, 1), ({"ab*": 2, "a*": 1}, 2)):
        bulkhead = Bulkhead(BulkheadConfig(patterns=patterns), clock=FakeClock())
        assert bulkhead.get_tool_limit("abc") == limit


# --- the levels --------------------------------------------------------------------------


@pytest.mark.req("bulkhead.levels")
@pytest.mark.parametrize(
    ("options", "first", "second", "kind", "limit"),
    [
        ({"default_limit": 1}, ("a", "n"), ("a", "n"), TOOL, 1),
        ({"tool_limits": {"a": 1}}, ("a", "n"), ("a", "n"), TOOL, 1),
        ({"tool_limits": {"a": 1}}, ("a", "n"), ("a", "m"), TOOL, 1),
        ({"tool_limits": {"n.a": 1}}, ("a", "n"), ("a", "n"), TOOL, 1),
        ({"patterns": {"n.*": 1}}, ("a", "n"), ("b", "n"), PATTERN, 1),
        ({"namespace_limits": {"n": 1}}, ("a", "n"), ("b", "n"), NAMESPACE, 1),
        ({"global_limit": 1}, ("a", "n"), ("b", "m"), GLOBAL, 1),
    ],
)
async def test_a_full_level_is_named(
    options: dict[str, Any],
    first: tuple[str, str],
    second: tuple[str, str],
    kind: BulkheadLimitType,
    limit: int,
) -> None:
    running = calls(**options)
    one = await running.start(*first)
    two = await running.start(*second, timeout=0)
    assert two.error.limit_type is kind
    assert two.error.limit == limit
    assert two.error.timeout == 0
    assert (two.error.tool_name, two.error.namespace) == second
    await one.finish()
    three = await running.start(*second, timeout=0)
    await three.finish()


@pytest.mark.req("bulkhead.levels")
@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ({"default_limit": 1}, ("a", "n"), ("b", "n")),
        ({"default_limit": 1}, ("a", "n"), ("a", "m")),
        ({"tool_limits": {"n.a": 1}}, ("a", "n"), ("a", "m")),
        ({"patterns": {"n.*": 1}}, ("a", "n"), ("a", "m")),
        ({"namespace_limits": {"n": 1}}, ("a", "n"), ("a", "m")),
    ],
)
async def test_a_level_stops_only_those_it_concerns(
    options: dict[str, Any], first: tuple[str, str], second: tuple[str, str]
) -> None:
    running = calls(**options)
    one = await running.start(*first)
    two = await running.start(*second, timeout=0)
    await finish(one, two)


@pytest.mark.req("T-18", "bulkhead.levels")
async def test_all_tools_of_a_pattern_share_its_slots() -> None:
    """T-18: `db.*: 3` allows three calls in all, not three per tool."""
    running = calls(patterns={"db.*": 3})
    started = [await running.start(f"db.{n}") for n in range(15)]
    assert len(running.inside) == 3
    for call in started:
        await call.finish()
    assert running.peak == 3


@pytest.mark.req("T-18", "bulkhead.levels")
async def test_waiters_of_a_saturated_tool_hold_nothing_that_others_need() -> None:
    """T-18: four waiters of one tool do not use up the global slots."""
    running = calls(tool_limits={"slow": 1}, namespace_limits={"n": 3}, global_limit=4)
    slow = [await running.start("slow", "n") for _ in range(5)]
    others = [await running.start(f"quick{n}", "n", timeout=0) for n in range(2)]
    more = await running.start("quick", "m", timeout=0)
    assert len(running.inside) == 4
    await finish(*others, more, *slow)


@pytest.mark.req("bulkhead.fifo")
async def test_the_oldest_waiter_that_fits_goes_first() -> None:
    running = calls(tool_limits={"a": 1}, global_limit=2)
    a, b = await running.start("a"), await running.start("b")
    waiters = [
        await running.start(tool, name=f"{tool}{n}") for n, tool in enumerate("aabba")
    ]
    assert sorted(running.inside) == ["a", "b"]
    await b.finish()
    assert sorted(running.inside) == ["a", "b2"]  # a0 waits for `a`, not for all
    await a.finish()
    assert sorted(running.inside) == ["a0", "b2"]
    await waiters[0].finish()
    assert sorted(running.inside) == ["a1", "b2"]
    await waiters[1].finish()
    assert sorted(running.inside) == ["b2", "b3"]
    await waiters[2].finish()
    assert sorted(running.inside) == ["a4", "b3"]
    await finish(waiters[3], waiters[4])


@pytest.mark.req("bulkhead.fifo")
async def test_nobody_overtakes_a_waiter_of_the_same_tool() -> None:
    running = calls(default_limit=1)
    first = await running.start("a")
    waiter = await running.start("a", name="waiter")
    first._go.set()
    late = await running.start("a", name="late")
    assert running.inside == ["waiter"]
    await finish(waiter, late)


# --- waiting -------------------------------------------------------------------------------


@pytest.mark.req("bulkhead.timeout")
async def test_a_wait_ends_with_its_timeout_and_names_the_full_level() -> None:
    clock = FakeClock()
    running = calls(clock, default_limit=1, global_limit=9, acquisition_timeout=2.0)
    first = await running.start("a")
    waiter = await running.start("a")
    hasty = await running.start("a", timeout=0.5)
    await clock.advance(0.5)
    assert hasty.error.timeout == 0.5
    assert not waiter.task.done()
    await clock.advance(1.5)
    assert waiter.error.limit_type is TOOL
    assert waiter.error.limit == 1
    assert waiter.error.timeout == 2.0
    assert clock.pending == 0
    stats = running.bulkhead.get_stats("a")
    assert stats is not None
    assert (stats.timeouts, stats.rejected, stats.waiting) == (2, 0, 0)
    assert stats.total_wait_time == pytest.approx(2.5)
    await first.finish()


@pytest.mark.req("T-18", "bulkhead.timeout")
@pytest.mark.parametrize("timeout", [0, -1.0])
async def test_a_timeout_of_zero_tries_once(timeout: float) -> None:
    running = calls(default_limit=1)
    first = await running.start("a", timeout=timeout)
    second = await running.start("a", timeout=timeout)
    assert second.error.limit_type is TOOL
    await first.finish()
    stats = running.bulkhead.get_stats("a")
    assert stats is not None
    assert (stats.rejected, stats.timeouts) == (1, 0)


@pytest.mark.req("bulkhead.timeout")
async def test_a_configured_timeout_of_zero_tries_once_and_infinity_waits() -> None:
    clock = FakeClock()
    running = calls(clock, default_limit=1, acquisition_timeout=0)
    first = await running.start("a")
    second = await running.start("a")
    assert second.error.limit_type is TOOL
    third = await running.start("a", timeout=math.inf)
    await clock.advance(1e6)
    assert not third.task.done()
    await finish(first, third)
    with pytest.raises(ValueError, match="timeout"):
        running.bulkhead.acquire("a", timeout=math.nan)


@pytest.mark.req("T-18", "bulkhead.timeout")
async def test_timeouts_leave_no_trace_in_the_counts() -> None:
    """T-18: after two timeouts the active count was -1."""
    clock = FakeClock()
    running = calls(clock, default_limit=1)
    first = await running.start("a")
    for _ in range(2):
        late = await running.start("a", timeout=1.0)
        await clock.advance(1.0)
        assert late.error.timeout == 1.0
    await first.finish()
    stats = running.bulkhead.get_stats("a")
    assert stats == BulkheadStats("a", "default", 1, 1, 0, 2, 0, 1, 2.0, 0)


@pytest.mark.req("bulkhead.timeout")
async def test_a_slot_that_comes_free_at_the_very_end_is_had() -> None:
    clock = FakeClock()
    running = calls(clock, default_limit=1)
    first = await running.start("a")
    waiter = await running.start("a", timeout=1.0)
    clock.call_later(1.0, first._go.set)
    await clock.advance(0.999)
    first._go.set()
    await settle(4)
    assert running.inside == ["a"]
    await clock.advance(1.0)
    await waiter.finish()


@pytest.mark.req("T-18", "bulkhead.queue-depth")
async def test_one_waiter_too_many_fails_at_once() -> None:
    """T-18: the depth counts those who wait, not those who run."""
    running = calls(default_limit=2, max_queue_depth=2)
    active = [await running.start("a") for _ in range(2)]
    assert await running.bulkhead.get_queue_depth("a") == 0
    waiting = [await running.start("a") for _ in range(2)]
    assert await running.bulkhead.get_queue_depth("a") == 2
    refused = await running.start("a")
    assert refused.error.limit_type is QUEUE
    assert refused.error.limit == 2
    assert refused.error.timeout is None
    other = await running.start("b", timeout=0)
    await active[0].finish()
    again = await running.start("a")
    assert not again.task.done()
    await finish(active[1], *waiting, again, other)
    stats = running.bulkhead.get_stats("a")
    assert stats is not None
    assert (stats.rejected, stats.acquired, stats.released) == (1, 5, 5)


@pytest.mark.req("bulkhead.queue-depth")
async def test_a_depth_of_zero_means_no_queue() -> None:
    running = calls(default_limit=1, max_queue_depth=0)
    first = await running.start("a")
    assert (await running.start("a")).error.limit_type is QUEUE
    await first.finish()


@pytest.mark.req("bulkhead.queue-depth")
async def test_tools_of_a_pattern_share_its_queue() -> None:
    running = calls(patterns={"db.*": 1}, max_queue_depth=1)
    first = await running.start("db.a")
    waiter = await running.start("db.b")
    assert (await running.start("db.c")).error.limit_type is QUEUE
    assert await running.bulkhead.get_queue_depth("db.b") == 1
    assert await running.bulkhead.get_queue_depth("db.c") == 0
    await finish(first, waiter)


@pytest.mark.req("bulkhead.queue-depth")
async def test_the_depth_of_a_name_is_summed_over_namespaces() -> None:
    running = calls(default_limit=1)
    started = [await running.start("a", space) for space in ("n", "n", "m", "m", "m")]
    depth = running.bulkhead.get_queue_depth
    assert await depth("a") == 3
    assert await depth("a", "n") == 1
    assert await depth("n.a") == 1
    assert await depth("a", "other") == 0
    await finish(*started)


# --- cancellation ----------------------------------------------------------------------------


@pytest.mark.req("bulkhead.cancel")
async def test_a_cancelled_call_gives_its_slots_back() -> None:
    running = calls(default_limit=1, global_limit=1)
    first = await running.start("a")
    waiter = await running.start("b")
    await first.cancel()
    assert running.inside == ["b"]
    await waiter.finish()


@pytest.mark.req("LM-10", "bulkhead.cancel")
@pytest.mark.parametrize("order", ["release-cancel", "cancel-release"])
async def test_a_waiter_cancelled_in_the_tick_of_its_grant_loses_nothing(
    order: str,
) -> None:
    """LM-10: one slot, waiters B and C; release and cancel B in the same iteration."""
    bulkhead = Bulkhead(BulkheadConfig(default_limit=1), clock=FakeClock())
    running = Calls(bulkhead)
    held = bulkhead.acquire("a")
    await held.__aenter__()
    b, c = await running.start("a", name="b"), await running.start("a", name="c")
    if order == "release-cancel":
        await held.__aexit__(None, None, None)
        b.task.cancel()
    else:
        b.task.cancel()
        await held.__aexit__(None, None, None)
    await settle(5)
    assert b.task.cancelled()
    assert running.inside == ["c"]
    await c.finish()
    stats = bulkhead.get_stats("a")
    assert stats is not None
    assert (stats.current_active, stats.waiting, stats.acquired) == (0, 0, 2)


@pytest.mark.req("bulkhead.cancel")
async def test_a_slot_is_given_back_once() -> None:
    bulkhead = Bulkhead(clock=FakeClock())
    slot = bulkhead.acquire("a")
    await slot.__aexit__(None, None, None)
    await slot.__aenter__()
    await slot.__aexit__(None, None, None)
    await slot.__aexit__(None, None, None)
    stats = bulkhead.get_stats("a")
    assert stats is not None
    assert (stats.acquired, stats.released, stats.current_active) == (1, 1, 0)


@pytest.mark.req("bulkhead.cancel")
async def test_an_error_inside_gives_the_slot_back() -> None:
    bulkhead = Bulkhead(BulkheadConfig(default_limit=1), clock=FakeClock())
    for _ in range(3):
        with pytest.raises(LookupError):
            async with bulkhead.acquire("a", timeout=0):
                raise LookupError


# --- changing limits while calls run ------------------------------------------------------------


@pytest.mark.req("T-18", "bulkhead.live")
async def test_a_lowered_limit_counts_the_calls_that_run() -> None:
    """T-18: lowering 2 to 1 while two run let a third one in."""
    running = calls(tool_limits={"a": 2})
    first, second = await running.start("a"), await running.start("a")
    running.bulkhead.configure_tool("a", 1)
    assert running.bulkhead.get_tool_limit("a") == 1
    assert (await running.start("a", timeout=0)).error.limit == 1
    await first.finish()
    assert (await running.start("a", timeout=0)).error.limit == 1
    await second.finish()
    third = await running.start("a", timeout=0)
    await third.finish()


@pytest.mark.req("bulkhead.live")
async def test_a_raised_limit_lets_waiters_in_at_once() -> None:
    running = calls(default_limit=1)
    started = [await running.start("a") for _ in range(4)]
    assert len(running.inside) == 1
    running.bulkhead.configure_tool("a", 3)
    await settle(4)
    assert len(running.inside) == 3
    await finish(*started)


@pytest.mark.req("bulkhead.live")
async def test_a_namespace_limit_that_is_new_counts_the_calls_that_run() -> None:
    running = calls()
    first, second = await running.start("a", "n"), await running.start("b", "n")
    running.bulkhead.configure_namespace("n", 2)
    assert running.bulkhead.get_namespace_limit("n") == 2
    assert running.bulkhead.get_namespace_limit("m") is None
    waiter = await running.start("c", "n")
    assert sorted(running.inside) == ["a", "b"]
    await first.finish()
    assert sorted(running.inside) == ["b", "c"]
    running.bulkhead.configure_namespace("n", None)
    third = await running.start("d", "n", timeout=0)
    await finish(second, waiter, third)
    stats = running.bulkhead.get_all_stats()
    assert {s.current_active for s in stats.values()} == {0}


@pytest.mark.req("bulkhead.live")
async def test_a_tool_may_leave_its_pattern_and_come_back() -> None:
    running = calls(patterns={"db.*": 1})
    first = await running.start("db.a")
    waiter = await running.start("db.a")
    running.bulkhead.configure_tool("db.a", 2)
    await settle(4)
    assert running.inside == ["db.a"] * 2
    other = await running.start("db.b", timeout=0)  # alone in its pattern now
    assert len(running.inside) == 3
    running.bulkhead.configure_tool("db.a", None)
    assert running.bulkhead.get_tool_limit("db.a") == 1
    assert (await running.start("db.b", timeout=0)).error.limit_type is PATTERN
    await finish(first, waiter, other)
    last = await running.start("db.b", timeout=0)
    assert (await running.start("db.a", timeout=0)).error.limit_type is PATTERN
    await last.finish()


@pytest.mark.req("bulkhead.live", "bulkhead.queue-depth")
async def test_waiters_keep_counting_through_a_change_of_limits() -> None:
    running = calls(patterns={"db.*": 1}, max_queue_depth=2)
    started = [await running.start("db.a") for _ in range(2)]
    running.bulkhead.configure_namespace("n", 3)
    started.append(await running.start("db.b"))
    assert (await running.start("db.c")).error.limit_type is QUEUE
    await finish(*started)
    assert {s.waiting for s in running.bulkhead.get_all_stats().values()} == {0}


@pytest.mark.req("bulkhead.live")
async def test_a_waiter_that_is_granted_and_cancelled_across_a_change_loses_nothing() -> (
    None
):
    running = calls(patterns={"db.*": 1}, global_limit=5)
    first = await running.start("db.a")
    waiter = await running.start("db.a")
    running.bulkhead.configure_tool("db.a", 2)  # grants the waiter, not yet resumed
    waiter.task.cancel()
    running.bulkhead.configure_tool("db.a", None)
    await settle(4)
    await first.finish()
    again = await running.start("db.b", timeout=0)
    await again.finish()
    assert {s.current_active for s in running.bulkhead.get_all_stats().values()} == {0}


@pytest.mark.req("bulkhead.live")
@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_senseless_new_limit_is_refused(limit: Any) -> None:
    bulkhead = Bulkhead(clock=FakeClock())
    with pytest.raises(ValueError, match="limit"):
        bulkhead.configure_tool("a", limit)
    with pytest.raises(ValueError, match="limit"):
        bulkhead.configure_namespace("n", limit)
    assert bulkhead.get_tool_limit("a") == 10


# --- what is known ---------------------------------------------------------------------------


@pytest.mark.req("bulkhead.levels")
def test_nobody_knows_when_a_slot_comes_free() -> None:
    pool = Pool(TOOL, 1)
    pool.take(1, 0.0)
    assert pool.due(1) == math.inf
    assert pool.estimate(5, 3.0) == 3.0  # no better bound than now
    caller = SimpleNamespace(places=(Route("a", "n"),), loans=None, caller=None)
    caller.places[0].limit = 1
    caller.places[0].take(1, 0.0)
    call: Any = SimpleNamespace(places=(), loans=None, caller=caller)
    [lent] = Loans().claim(caller.places[0], call).resources
    assert lent.due(1) == -math.inf
    assert lent.estimate(5, 3.0) == 3.0


@pytest.mark.req("nesting.cancel")
async def test_who_is_cancelled_with_a_lent_slot_in_the_hand_gives_it_back() -> None:
    def holder(caller: Any = None) -> Any:
        return SimpleNamespace(places=(), loans=None, caller=caller)

    slots = Bulkhead(BulkheadConfig(global_limit=1)).slots
    caller, taken = holder(), slots.try_enter("a", "n")
    assert taken is not None
    caller.places = (taken,)
    first = holder(caller)
    lent = await slots.enter("b", "n", None, first)
    waiting = asyncio.ensure_future(slots.enter("b", "n", None, holder(caller)))
    await settle()
    slots.leave(lent, first)  # grants it
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert lent.resources[-1].active == 1  # the caller goes on
    async with asyncio.timeout(5):
        lent = await slots.enter("b", "n", None, third := holder(caller))
    slots.leave(lent, third)
    slots.leave(taken, caller)
    assert [pool.active for pool in (*lent.resources, taken)] == [0, 0, 0]


@pytest.mark.req("bulkhead.stats")
async def test_the_counters_tell_what_happened() -> None:
    clock = FakeClock()
    running = calls(clock, default_limit=2)
    assert running.bulkhead.get_stats("a") is None
    assert running.bulkhead.config.default_limit == 2
    started = [await running.start("a", "n") for _ in range(3)]
    assert running.bulkhead.get_stats("a", "n") == BulkheadStats(
        "a", "n", 2, 0, 0, 0, 2, 2, 0.0, 1
    )
    await clock.advance(1.5)
    await finish(*started)
    await finish(await running.start("a", "n"))
    assert running.bulkhead.get_all_stats() == {
        "n.a": BulkheadStats("a", "n", 4, 4, 0, 0, 0, 2, 1.5, 0)
    }


@pytest.mark.req("bulkhead.bounded")
async def test_invented_names_use_bounded_memory() -> None:
    bulkhead = Bulkhead(clock=FakeClock())
    async with bulkhead.acquire("busy"):
        for number in range(3000):
            async with bulkhead.acquire(f"invented{number}"):
                pass
        async with bulkhead.acquire("invented2999"):
            stats = bulkhead.get_all_stats()
            assert len(stats) <= 1024
            assert stats["default.busy"].current_active == 1
            assert stats["default.invented2999"].acquired == 2
    assert bulkhead.get_stats("invented0") is None


@pytest.mark.req("bulkhead.bounded")
async def test_names_with_calls_in_flight_are_never_forgotten() -> None:
    running = calls(default_limit=1)
    async with asyncio.timeout(20):
        started = []
        for number in range(1030):
            slot = running.bulkhead.acquire(f"t{number}")
            await slot.__aenter__()
            started.append(slot)
        assert len(running.bulkhead.get_all_stats()) == 1030
        with pytest.raises(BulkheadFullError):
            async with running.bulkhead.acquire("t0", timeout=0):
                pass
        for slot in started:
            await slot.__aexit__(None, None, None)


async def test_a_recently_used_name_outlives_an_older_one() -> None:
    bulkhead = Bulkhead(clock=FakeClock())
    for name in (
        "old",
        "used",
        *[f"t{n}" for n in range(1022)],
        "used",
        "new",
        "newer",
    ):
        async with bulkhead.acquire(name):
            pass
    assert bulkhead.get_stats("old") is None
    assert bulkhead.get_stats("used") is not None


async def test_the_clock_of_the_context_is_the_default(fake_clock: FakeClock) -> None:
    bulkhead = Bulkhead(BulkheadConfig(default_limit=1))
    async with bulkhead.acquire("a"):
        task = asyncio.ensure_future(bulkhead.acquire("a", timeout=5.0).__aenter__())
        await fake_clock.advance(5.0)
        with pytest.raises(BulkheadFullError):
            await task


# --- any course of events ------------------------------------------------------------------

NAMES = [("a", "n"), ("b", "n"), ("p.x", "default"), ("p.y", "default"), ("a", "m")]

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(0, 4), st.sampled_from([None, 0, 1.0])),
        st.tuples(st.just("finish"), st.integers(0, 30), st.none()),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.none()),
        st.tuples(st.just("advance"), st.floats(0.1, 1.0), st.none()),
        st.tuples(st.just("tick"), st.integers(1, 3), st.none()),
        st.tuples(
            st.just("tool"),
            st.sampled_from(["a", "p.x"]),
            st.sampled_from([None, 1, 3]),
        ),
        st.tuples(st.just("space"), st.just("n"), st.sampled_from([None, 1, 4])),
    ),
    max_size=40,
)


@pytest.mark.req("LM-10", "bulkhead.cancel", "bulkhead.levels", "bulkhead.live")
@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_no_course_breaks_a_level_or_loses_a_slot(
    steps: list[tuple[str, Any, Any]],
) -> None:
    async def play() -> None:
        clock = FakeClock()
        bulkhead = Bulkhead(
            BulkheadConfig(
                default_limit=2,
                tool_limits={"b": 1},
                patterns={"p.*": 2},
                namespace_limits={"n": 2},
                global_limit=4,
                max_queue_depth=3,
            ),
            clock=clock,
        )
        inside: list[tuple[str, str]] = []
        tasks: list[tuple[asyncio.Task[None], asyncio.Event]] = []
        changed = False

        async def one(
            name: tuple[str, str], go: asyncio.Event, timeout: float | None
        ) -> None:
            async with bulkhead.acquire(*name, timeout):
                inside.append(name)
                try:
                    await go.wait()
                finally:
                    inside.remove(name)

        def check() -> None:
            for name in NAMES:
                stats = bulkhead.get_stats(*name)
                count = inside.count(name)
                # A granted caller that has not resumed is counted already.
                assert stats is None or count <= stats.current_active
            if changed:
                return
            assert len(inside) <= 4
            assert sum(space == "n" for _, space in inside) <= 2
            assert sum(tool.startswith("p.") for tool, _ in inside) <= 2
            assert inside.count(("b", "n")) <= 1

        for kind, value, extra in steps:
            if kind == "call":
                go = asyncio.Event()
                tasks.append((asyncio.ensure_future(one(NAMES[value], go, extra)), go))
            elif kind == "finish" and tasks:
                tasks[value % len(tasks)][1].set()
            elif kind == "cancel" and tasks:
                tasks[value % len(tasks)][0].cancel()
            elif kind == "advance":
                await clock.advance(value)
            elif kind == "tick":
                await settle(value)
            elif kind == "tool":
                changed = True
                bulkhead.configure_tool(value, extra)
            elif kind == "space":
                changed = True
                bulkhead.configure_namespace(value, extra)
            check()
        await settle()
        for name in NAMES:
            stats = bulkhead.get_stats(*name)
            assert stats is None or stats.current_active == inside.count(name)
        for _, go in tasks:
            go.set()
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(
                *[t for t, _ in tasks], return_exceptions=True
            )
        for outcome in outcomes:
            assert outcome is None or isinstance(
                outcome, (BulkheadFullError, asyncio.CancelledError)
            )
        for stats in bulkhead.get_all_stats().values():
            assert stats.current_active == stats.waiting == 0
            assert stats.acquired == stats.released
        await settle(3)
        assert clock.pending == 0
        # Every level is as free as at first.
        bulkhead.configure_tool("a", None)
        bulkhead.configure_tool("p.x", None)
        bulkhead.configure_namespace("n", 2)
        held = [bulkhead.acquire(*name, 0) for name in (*NAMES[:1], *NAMES[2:])]
        for slot in held:
            await slot.__aenter__()
        with pytest.raises(BulkheadFullError):
            await bulkhead.acquire("c", timeout=0).__aenter__()
        for slot in held:
            await slot.__aexit__(None, None, None)

    asyncio.run(play())
