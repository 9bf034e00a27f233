"""Executors made in one call, and circuits and limits by the names of tools."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.calls import ToolCall
from executionkit.engine.breaker import BreakerConfig
from executionkit.errors import ErrorCode, ExecutionKitError, StateStoreError
from executionkit.testing import FakeClock
from executionkit.tools.executors import (
    CircuitBreakerExecutor,
    CircuitBreakerInterface,
    CircuitState,
    RateLimitedToolExecutor,
    RateLimiter,
    RateLimiterInterface,
    RetryableToolExecutor,
    RetryConfig,
    ToolCircuitBreaker,
    ToolWrapper,
)
from executionkit.tools.factories import (
    CircuitBreakerSettings,
    RateLimiterSettings,
    WrapperBackend,
    create_circuit_breaker,
    create_production_executor,
    create_rate_limiter,
)
from executionkit.tools.registry import create_registry
from executionkit.tools.strategies import InProcessStrategy

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    fake = FakeClock(auto=True)
    with fake.installed():
        yield fake


class Tools:
    """A registry with a tool that fails on demand."""

    def __init__(self) -> None:
        self.runs = 0
        self.broken = True

        async def expensive_api() -> str:
            self.runs += 1
            if self.broken:
                raise ConnectionError("down")
            return "up"

        self.strategy = InProcessStrategy(create_registry(expensive_api))


def calls(n: int = 1) -> list[ToolCall]:
    return [ToolCall(f"c{i}", "expensive_api") for i in range(n)]


NOWHERE = "unix:///no/such/socket"
MEMORIES = [WrapperBackend.MEMORY, WrapperBackend.AUTO, "memory", "auto"]


@pytest.mark.req("factory.production")
@pytest.mark.req("T-26")
@pytest.mark.parametrize("backend", MEMORIES)
async def test_the_documented_example_without_a_server(
    clock: FakeClock, backend: WrapperBackend
) -> None:
    tools = Tools()
    executor = await create_production_executor(
        tools.strategy,
        circuit_breaker_backend=backend,
        rate_limiter_backend=backend,
        redis_url=NOWHERE,
        circuit_breaker_settings=CircuitBreakerSettings(
            failure_threshold=5,
            success_threshold=2,
            reset_timeout=60.0,
            failure_window=60.0,
        ),
        rate_limiter_settings=RateLimiterSettings(
            global_limit=100,
            global_period=60.0,
            tool_limits={"expensive_api": (10, 60.0)},
        ),
    )
    results = await executor.execute(calls(5))
    assert [item.error for item in results] == ["down"] * 5
    [refused] = await executor.execute(calls())
    assert refused.error_code is ErrorCode.TOOL_CIRCUIT_OPEN
    assert tools.runs == 5
    assert isinstance(executor, RateLimitedToolExecutor)
    assert isinstance(executor.limiter, RateLimiter)
    used = await executor.limiter.get_usage("expensive_api")
    assert used["expensive_api"]["used"] == 5  # a refused call gave its permit back
    tools.broken = False
    await clock.sleep(60)
    for _ in range(2):
        [result] = await executor.execute(calls())
        assert result.result == "up"
    shown = executor.executor.get_circuit_states()["expensive_api"]
    assert shown["state"] is CircuitState.CLOSED


@pytest.mark.req("factory.production")
async def test_the_limits_of_the_settings_hold(clock: FakeClock) -> None:
    tools = Tools()
    tools.broken = False
    executor = await create_production_executor(
        tools.strategy,
        rate_limiter_settings=RateLimiterSettings(
            global_limit=3, global_period=10, tool_limits={"expensive_api": (2, 5)}
        ),
    )
    began = clock.monotonic()
    await executor.execute(calls(3))
    assert clock.monotonic() - began == pytest.approx(5)
    [result] = await executor.execute(calls(), timeout=1)
    assert result.error_code is ErrorCode.TOOL_RATE_LIMITED


@pytest.mark.req("factory.production")
async def test_layers_can_be_left_out() -> None:
    tools = Tools()

    async def made(breaker: bool, limiter: bool) -> ToolWrapper:
        return await create_production_executor(
            tools.strategy,
            enable_circuit_breaker=breaker,
            enable_rate_limiter=limiter,
        )

    both = await made(True, True)
    assert isinstance(both, RateLimitedToolExecutor)
    assert isinstance(both.executor, CircuitBreakerExecutor)
    assert both.executor.executor is tools.strategy
    assert isinstance(await made(True, False), CircuitBreakerExecutor)
    limiter = await made(False, True)
    assert isinstance(limiter, RateLimitedToolExecutor)
    assert limiter.executor is tools.strategy
    for executor in (both, limiter, await made(False, False)):
        [result] = await executor.execute(calls(), 5.0, False)
        assert result.error == "down"


@pytest.mark.req("factory.production")
async def test_retries_go_around_and_each_attempt_counts(clock: FakeClock) -> None:
    tools = Tools()
    executor = RetryableToolExecutor(
        await create_production_executor(
            tools.strategy,
            circuit_breaker_settings=CircuitBreakerSettings(failure_threshold=2),
        ),
        default_config=RetryConfig(max_retries=5),
    )
    [result] = await executor.execute(calls())
    assert tools.runs == 2
    assert result.error_code is ErrorCode.TOOL_CIRCUIT_OPEN


@pytest.mark.req("factory.production")
async def test_settings_of_single_tools(clock: FakeClock) -> None:
    tools = Tools()
    executor = await create_production_executor(
        tools.strategy,
        circuit_breaker_settings=CircuitBreakerSettings(
            tool_configs={"expensive_*": {"failure_threshold": 1, "reset_timeout": 3}}
        ),
        enable_rate_limiter=False,
    )
    await executor.execute(calls())
    [refused] = await executor.execute(calls())
    assert refused.retry_after_ms == 3000


@pytest.mark.req("factory.production")
async def test_failures_outside_of_the_window_do_not_count(clock: FakeClock) -> None:
    tools = Tools()
    executor = await create_production_executor(
        tools.strategy,
        circuit_breaker_settings=CircuitBreakerSettings(2, failure_window=5),
    )
    for _ in range(4):
        [result] = await executor.execute(calls())
        assert result.error == "down"
        await clock.sleep(6)


@pytest.mark.req("factory.redis")
@pytest.mark.req("T-26")
async def test_a_store_that_is_not_there_is_refused_with_what_works() -> None:
    tools = Tools()
    redis = WrapperBackend.REDIS
    for make in (
        create_circuit_breaker(redis, redis_url=NOWHERE),
        create_rate_limiter("redis", redis_url=NOWHERE),
        create_production_executor(
            tools.strategy, circuit_breaker_backend=redis, redis_url=NOWHERE
        ),
        create_production_executor(
            tools.strategy, rate_limiter_backend=redis, redis_url=NOWHERE
        ),
    ):
        with pytest.raises(StateStoreError, match=r"WrapperBackend\.MEMORY") as caught:
            await make
        assert isinstance(caught.value, ExecutionKitError)
    # What is left out needs no store.
    await create_production_executor(
        tools.strategy,
        circuit_breaker_backend=redis,
        redis_url=NOWHERE,
        enable_circuit_breaker=False,
    )
    with pytest.raises(ValueError, match="memcached"):
        await create_rate_limiter("memcached")


@pytest.mark.req("factory.production")
def test_settings_are_values_and_checked() -> None:
    circuits = CircuitBreakerSettings(2, tool_configs={"t": {"reset_timeout": 1}})
    assert pickle.loads(pickle.dumps(circuits)) == circuits
    assert circuits.to_configs() == {"t": BreakerConfig(2, reset_timeout=1)}
    limits = RateLimiterSettings(5, tool_limits={"t": (1, 2)})
    assert pickle.loads(pickle.dumps(limits)) == limits
    with pytest.raises(TypeError, match="tool_configs"):
        CircuitBreakerSettings(tool_configs={"t": {"threshold": 1}})
    with pytest.raises(ValueError, match="failure_threshold"):
        CircuitBreakerSettings(0)
    with pytest.raises(ValueError, match="tool_limits"):
        RateLimiterSettings(tool_limits={"t": 5})  # type: ignore[dict-item]


@pytest.mark.req("factory.direct")
async def test_unknown_settings_are_refused() -> None:
    with pytest.raises(TypeError, match="threshold"):
        await create_circuit_breaker(threshold=1)
    with pytest.raises(TypeError, match="limit"):
        await create_rate_limiter(limit=1)


async def breaker(**given: Any) -> ToolCircuitBreaker:
    made = await create_circuit_breaker(
        WrapperBackend.MEMORY, key_prefix="myapp:circuitbreaker", **given
    )
    assert isinstance(made, CircuitBreakerInterface)
    assert isinstance(made, ToolCircuitBreaker)
    return made


@pytest.mark.req("factory.direct")
@pytest.mark.req("T-17")
async def test_a_circuit_by_name_does_not_wedge_after_a_probe(clock: FakeClock) -> None:
    made = await breaker(failure_threshold=1, success_threshold=3, reset_timeout=10)
    assert await made.can_execute("t")
    await made.record_failure("t")
    assert not await made.can_execute("t")
    await clock.sleep(10)
    for _ in range(3):
        assert (await made.get_state("t"))["state"] != "closed"
        assert await made.can_execute("t")
        assert not await made.can_execute("t")  # the one place is taken
        await made.record_success("t")
    assert (await made.get_state("t"))["state"] == "closed"


@pytest.mark.req("factory.direct")
@pytest.mark.req("T-17")
@pytest.mark.parametrize("probe_first", [False, True])
async def test_a_report_of_an_old_call_is_not_that_of_a_probe(
    clock: FakeClock, probe_first: bool
) -> None:
    made = await breaker(failure_threshold=1, success_threshold=1, reset_timeout=10)
    go = asyncio.Event()

    async def old_call() -> None:
        assert await made.can_execute("t")
        await go.wait()
        await made.record_success("t")

    async with asyncio.timeout(5):
        old = asyncio.ensure_future(old_call())
        await asyncio.sleep(0)
        assert await made.can_execute("t")
        await made.record_failure("t")
        await clock.sleep(10)
        assert await made.can_execute("t")  # the probe
        if probe_first:
            await made.record_success("t")
            assert (await made.get_state("t"))["state"] == "closed"
            go.set()
            await old
            return
        go.set()
        await old
        assert (await made.get_state("t"))["state"] == "half_open"
        assert not await made.can_execute("t")
        await made.record_success("t")
    assert (await made.get_state("t"))["state"] == "closed"


@pytest.mark.req("factory.direct")
@pytest.mark.req("T-17")
async def test_a_probe_that_nobody_reports_gives_its_place_back(
    clock: FakeClock,
) -> None:
    made = await breaker(failure_threshold=1, reset_timeout=10)
    await made.record_failure("t")  # without asking first: it counts
    await clock.sleep(10)
    assert await made.can_execute("t")
    assert not await made.can_execute("t")
    await made.release("t")
    assert await made.can_execute("t")
    await clock.sleep(10)
    assert await made.can_execute("t")


@pytest.mark.req("factory.direct")
async def test_states_are_shown_and_reset(clock: FakeClock) -> None:
    made = await breaker(failure_threshold=2, reset_timeout=30)
    fresh = await made.get_state("my_tool")
    assert (fresh["state"], fresh["failure_count"]) == ("closed", 0)
    assert fresh["time_until_half_open"] is None
    assert fresh["config"]["failure_threshold"] == 2
    assert await made.get_all_states() == {}
    for _ in range(2):
        await made.can_execute("my_tool")
        await made.record_failure("my_tool")
    await made.can_execute("web.other")
    states = await made.get_all_states()
    assert {tool: state["state"] for tool, state in states.items()} == {
        "my_tool": "open",
        "web.other": "closed",
    }
    assert states["my_tool"]["time_until_half_open"] == pytest.approx(30)
    await made.reset("my_tool")
    assert (await made.get_state("my_tool"))["failure_count"] == 0
    assert await made.reset_all() == 2
    await made.reset("never called")


@pytest.mark.req("factory.direct")
@pytest.mark.req("T-36")
async def test_invented_names_cost_bounded_memory() -> None:
    made = await breaker(failure_threshold=1)
    await made.record_failure("real")
    for n in range(3000):
        await made.can_execute(f"t{n}")
    assert len(await made.get_all_states()) <= 1024
    assert len(made._open) <= 1025
    assert (await made.get_state("real"))["state"] == "open"


@pytest.mark.req("factory.direct")
async def test_circuits_and_limits_go_around_a_strategy_by_hand(
    clock: FakeClock,
) -> None:
    tools = Tools()
    limiter = await create_rate_limiter(
        global_limit=100, tool_limits={"expensive_api": (5, 60.0)}
    )
    assert isinstance(limiter, RateLimiterInterface)
    made = await breaker(failure_threshold=5)
    limited = RateLimitedToolExecutor(tools.strategy, limiter)
    protected = CircuitBreakerExecutor(limited, circuit_breaker=made)
    results = await protected.execute(calls(5))
    assert [item.error for item in results] == ["down"] * 5
    assert (await made.get_state("expensive_api"))["state"] == "open"
    assert protected.get_circuit_states() == await made.get_all_states()
    _done = protected.reset_circuit("expensive_api")
    assert (await made.get_state("expensive_api"))["state"] == "closed"


_EVENTS = st.lists(
    st.tuples(st.sampled_from(["ask", "good", "bad", "gone"]), st.integers(0, 12)),
    max_size=40,
)


@pytest.mark.req("factory.direct")
@settings(max_examples=60, deadline=None)
@given(_EVENTS)
async def test_no_order_of_reports_wedges_a_circuit(
    events: list[tuple[str, int]],
) -> None:
    fake = FakeClock(auto=True)
    with fake.installed():
        made = ToolCircuitBreaker(
            default_config=BreakerConfig(2, success_threshold=1, reset_timeout=10)
        )
        for event, seconds in events:
            if event == "ask":
                await made.can_execute("t")
            elif event == "good":
                await made.record_success("t")
            elif event == "bad":
                await made.record_failure("t")
            else:
                await made.release("t")
            await fake.sleep(seconds)
        await fake.sleep(20)
        assert await made.can_execute("t")
