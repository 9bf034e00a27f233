"""Scripts on a real server against their models in the engine: the same decisions."""

from __future__ import annotations

import asyncio
import bisect
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from executionkit.backends import LimitRule, MemoryBreakers, MemoryLimiter
from executionkit.backends._redis.resp import Question
from executionkit.backends._redis.scripts import Scripts
from executionkit.backends.redis import RedisBackend
from executionkit.engine.breaker import BreakerConfig
from executionkit.engine.rate_bucket import PermitTimeoutError
from executionkit.errors import ToolCircuitOpenError
from executionkit.testing import FakeClock, settle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TEST_TIME = "local now = tonumber(redis.call('GET', '~clock') or '1700000000000000')\n"
START = 1_700_000_000_000_000
quick = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class World:
    """One clock for a server and for this process."""

    def __init__(self, url: str) -> None:
        self.clock = FakeClock()
        self.redis = RedisBackend(url, clock=self.clock, timeout=20)
        self.redis._scripts = Scripts.on(TEST_TIME)
        self.micros = START

    async def command(self, *arguments: bytes) -> Any:
        return await self.redis._wire.ask(Question(arguments))

    async def move(self, seconds: float) -> None:
        for _ in range(4):
            await self.redis.ping()
        self.micros += round(seconds * 1e6)
        await self.command(b"SET", b"~clock", b"%d" % self.micros)
        await self.clock.advance(seconds)
        for _ in range(4):
            await self.redis.ping()
            await settle(3)


def run(url: str, body: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World(url)
        try:
            await world.command(b"FLUSHALL")
            await body(world)
        finally:
            await world.redis.close()

    asyncio.run(main())


# --- circuits ------------------------------------------------------------------------
configs = st.builds(
    BreakerConfig,
    failure_threshold=st.integers(1, 3),
    success_threshold=st.integers(1, 3),
    reset_timeout=st.sampled_from([0.0, 1.0, 5.0]),
    half_open_max_calls=st.integers(1, 3),
    failure_window=st.sampled_from([None, 2.0, 6.0]),
    timeout_threshold=st.sampled_from([None, 1.5]),
    probe_lease=st.sampled_from([3.0, 1000.0]),
)
circuit_steps = st.lists(
    st.one_of(
        st.just(("before", 0)),
        st.tuples(
            st.sampled_from(["success", "failure", "abandoned"]), st.integers(0, 5)
        ),
        st.tuples(st.just("move"), st.sampled_from([1, 2, 3, 5])),
        st.just(("reset", 0)),
    ),
    min_size=5,
    max_size=40,
)


async def admitted(store: Any, config: BreakerConfig) -> tuple[Any, Any]:
    try:
        return await store.before("a", config), None
    except ToolCircuitOpenError as exc:
        return None, (exc.details["failure_count"], exc.details["reset_timeout"])


def shown(snapshot: Any) -> tuple[Any, ...]:
    left, opened = snapshot.time_until_half_open, snapshot.opened_at
    return (
        snapshot.state,
        snapshot.failure_count,
        snapshot.success_count,
        snapshot.half_open_calls,
        None if opened is None else pytest.approx(opened, abs=1e-3),
        None if left is None else pytest.approx(left, abs=1e-3),
    )


@pytest.mark.req("redis.circuits")
@quick
@given(config=configs, steps=circuit_steps)
def test_circuits_decide_as_their_model_does(
    redis_server: Any, config: BreakerConfig, steps: list[tuple[str, int]]
) -> None:
    async def body(world: World) -> None:
        ours, model = world.redis.breakers(), MemoryBreakers(world.clock)
        leases: list[tuple[Any, Any]] = []
        for step, number in steps:
            if step == "move":
                await world.move(number)
            elif step == "reset":
                await ours.reset("a")
                await model.reset("a")
            elif step == "before":
                mine, refusal = await admitted(ours, config)
                theirs, other = await admitted(model, config)
                assert refusal == other
                if mine is not None:
                    leases.append((mine, theirs))
            elif leases:
                mine, theirs = leases.pop(number % len(leases))
                await ours.report(mine, step)  # type: ignore[arg-type]
                await model.report(theirs, step)  # type: ignore[arg-type]
            one, two = (
                await ours.snapshot("a", config),
                await model.snapshot("a", config),
            )
            assert shown(one) == shown(two), (step, number)

    run(redis_server.url, body)


@pytest.mark.req("redis.leases")
def test_a_probe_that_lost_its_lease_counts_no_more(redis_server: Any) -> None:
    async def body(world: World) -> None:
        config = BreakerConfig(failure_threshold=1, reset_timeout=0.0, probe_lease=5.0)
        breakers = world.redis.breakers()
        await breakers.report(await breakers.before("a", config), "failure")
        late = await breakers.before("a", config)
        await world.move(4)
        with pytest.raises(ToolCircuitOpenError):
            await breakers.before("a", config)
        await world.move(1)
        await breakers.before("a", config)
        await breakers.report(late, "success")
        shown = await breakers.snapshot("a", config)
        assert (shown.success_count, shown.half_open_calls) == (0, 1)

    run(redis_server.url, body)


# --- limits --------------------------------------------------------------------------
TOOL, ALL, OTHER = (
    LimitRule("tool:a", 2, 3.0),
    LimitRule("global", 3, 4.0),
    LimitRule("tool:b", 1, 2.0),
)
GROUPS = ((TOOL,), (TOOL, ALL), (OTHER, ALL), (ALL,))
limit_steps = st.lists(
    st.one_of(
        st.tuples(st.just("try"), st.integers(0, 3), st.integers(1, 1)),
        st.tuples(st.just("refund"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("move"), st.sampled_from([1, 2, 3, 4]), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


@pytest.mark.req("redis.limits")
@quick
@given(steps=limit_steps)
def test_without_waiting_limits_decide_as_their_model_does(
    redis_server: Any, steps: list[tuple[str, int, int]]
) -> None:
    async def attempt(store: Any, group: Any, cost: int) -> Any:
        try:
            return await store.acquire(group, cost=cost, timeout=0), None
        except PermitTimeoutError as exc:
            return None, exc.retry_after

    async def body(world: World) -> None:
        ours, model = world.redis.limiter(), MemoryLimiter(world.clock)
        permits: list[tuple[Any, Any]] = []
        for step, number, cost in steps:
            if step == "move":
                await world.move(number)
            elif step == "try":
                group = GROUPS[number]
                mine, wait = await attempt(ours, group, cost)
                theirs, other = await attempt(model, group, cost)
                assert (mine is None) == (theirs is None)
                assert wait == (other and pytest.approx(other, abs=2e-3))
                if mine is not None:
                    permits.append((mine, theirs))
            elif permits:
                mine, theirs = permits.pop(number % len(permits))
                await ours.refund(mine)
                await model.refund(theirs)
            for rule in (TOOL, ALL, OTHER):
                assert await ours.usage(rule) == await model.usage(rule)

    run(redis_server.url, body)


waits = st.lists(
    st.one_of(
        st.tuples(
            st.just("wait"),
            st.integers(0, 3),
            st.sampled_from([None, 0.5, 2.5, 7.0, 30.0]),
        ),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.none()),
        st.tuples(st.just("refund"), st.integers(0, 20), st.none()),
        st.tuples(st.just("move"), st.sampled_from([1, 2, 3]), st.none()),
    ),
    min_size=10,
    max_size=50,
)


def worst(starts: list[float], period: float) -> int:
    """The most starts in any half-open window."""
    times = sorted(starts)
    return max(
        (bisect.bisect_left(times, t + period - 1e-6) - i for i, t in enumerate(times)),
        default=0,
    )


@pytest.mark.req("redis.limits", "redis.fifo")
@quick
@given(steps=waits)
def test_no_window_is_ever_over_its_limit_and_lines_keep_their_order(
    redis_server: Any, steps: list[tuple[str, int, Any]]
) -> None:
    async def body(world: World) -> None:
        # Two processes: nothing but the server is common to them.
        others = RedisBackend(redis_server.url, clock=world.clock, timeout=20)
        others._scripts = Scripts.on(TEST_TIME)
        stores = [world.redis.limiter(), others.limiter()]
        starts: dict[int, tuple[float, Any, Any]] = {}
        order: dict[tuple[int, int], list[int]] = {}
        tasks: list[asyncio.Task[None]] = []

        async def call(number: int, store: int, group: int, timeout: Any) -> None:
            try:
                permit = await stores[store].acquire(GROUPS[group], timeout=timeout)
            except PermitTimeoutError:
                return
            starts[number] = (world.clock.monotonic(), permit, stores[store])
            if timeout is None:
                order.setdefault((store, group), []).append(number)

        for number, (step, which, timeout) in enumerate(steps):
            if step == "wait":
                coroutine = call(number, number % 2, which, timeout)
                tasks.append(asyncio.create_task(coroutine))
                await settle(2)
            elif step == "cancel" and tasks:
                tasks[which % len(tasks)].cancel()
            elif step == "refund" and starts:
                chosen = sorted(starts)[which % len(starts)]
                _, permit, store = starts.pop(chosen)
                await store.refund(permit)
            elif step == "move":
                for _ in range(which * 2):
                    await others.ping()
                    await world.move(0.5)
        for _ in range(200):
            if all(task.done() for task in tasks):
                break
            await others.ping()
            await world.move(0.5)
        assert all(task.done() for task in tasks), "nobody waits for ever"
        for rule in (TOOL, ALL, OTHER):
            times = [t for t, permit, _ in starts.values() if rule in permit.rules]
            assert worst(times, rule.period) <= rule.limit, rule
        for line in order.values():
            assert line == sorted(line)
        for store in stores:
            assert all(line.is_empty for line in store._lines.values())
        await others.close()

    run(redis_server.url, body)


@pytest.mark.req("redis.limits")
def test_a_promised_start_counts_for_those_who_come_before_it(
    redis_server: Any,
) -> None:
    async def body(world: World) -> None:
        limiter = world.redis.limiter()
        for _ in range(2):
            await limiter.acquire((TOOL, ALL))
        promised = asyncio.create_task(limiter.acquire((TOOL, ALL)))  # in 3 seconds
        for _ in range(3):
            await settle()
            await world.redis.ping()
        # A third start now would be the fourth of the 4 seconds around the promise.
        with pytest.raises(PermitTimeoutError) as refused:
            await limiter.acquire((ALL,), timeout=0)
        assert refused.value.retry_after == pytest.approx(4, abs=0.01)
        await world.move(3)
        await promised
        await world.move(1)
        await limiter.acquire((ALL,), timeout=0)

    run(redis_server.url, body)
