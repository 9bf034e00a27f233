"""The executors, limits and circuits of the older library, on a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from executionkit.calls import ToolCall
from executionkit.engine.breaker import BreakerConfig, CircuitState
from executionkit.errors import ErrorCode, StateStoreError, ToolRateLimitedError
from executionkit.execution.wrappers import (
    CircuitBreakerSettings,
    RateLimitedToolExecutor,
    RateLimiterSettings,
    RedisCircuitBreaker,
    RedisCircuitBreakerConfig,
    RedisCircuitBreakerExecutor,
    RedisRateLimiter,
    WrapperBackend,
    create_circuit_breaker,
    create_production_executor,
    create_rate_limiter,
    create_redis_circuit_breaker,
    create_redis_circuit_breaker_executor,
    create_redis_rate_limiter,
)
from executionkit.tools._redis_limits import redis_at
from executionkit.tools.registry import create_registry
from executionkit.tools.strategies import InProcessStrategy


class Tools:
    def __init__(self) -> None:
        self.broken = True
        self.runs = 0

        async def expensive_api() -> str:
            self.runs += 1
            if self.broken:
                msg = "down"
                raise ConnectionError(msg)
            return "up"

        self.strategy = InProcessStrategy(create_registry(expensive_api))


def calls(n: int = 1) -> list[ToolCall]:
    return [ToolCall(f"c{i}", "expensive_api") for i in range(n)]


@pytest.mark.req("factory.redis", "redis.limits", "redis.circuits")
@pytest.mark.parametrize("backend", [WrapperBackend.REDIS, "auto"])
async def test_the_documented_example_is_shared_by_all_who_make_it(
    redis_server: Any, backend: Any
) -> None:
    tools = Tools()

    async def make() -> Any:
        return await create_production_executor(
            tools.strategy,
            circuit_breaker_backend=backend,
            rate_limiter_backend=backend,
            redis_url=redis_server.url,
            circuit_breaker_settings=CircuitBreakerSettings(failure_threshold=5),
            rate_limiter_settings=RateLimiterSettings(
                global_limit=100, tool_limits={"expensive_api": (10, 60.0)}
            ),
            key_prefix="myapp",
        )

    first, second = await make(), await make()
    assert {item.error for item in await first.execute(calls(5))} == {"down"}
    states = await second.executor.get_circuit_states()
    assert states["expensive_api"]["state"] is CircuitState.OPEN
    [refused] = await second.execute(calls())
    assert refused.error_code is ErrorCode.TOOL_CIRCUIT_OPEN
    assert refused.machine == "redis_circuit_breaker"
    assert tools.runs == 5
    usage = await second.limiter.get_usage("expensive_api")
    assert usage["expensive_api"]["limit"] == 10
    assert usage["global"] == {
        "used": usage["expensive_api"]["used"],
        "limit": 100,
        "period": 60.0,
        "remaining": 100 - usage["expensive_api"]["used"],
    }
    tools.broken = False
    await second.executor.reset_circuit("expensive_api")
    [result] = await first.execute(calls())
    assert result.result == "up"
    keys = set(redis_server.command("KEYS", "*"))
    assert {b"myapp:ratelimit:global", b"myapp:ratelimit:tool:expensive_api"} <= keys
    clients = redis_server.command("CLIENT", "LIST").decode().splitlines()
    assert sum("name=executionkit" in line for line in clients) == 1
    await first.limiter.aclose()


@pytest.mark.req("redis.circuits", "T-25")
async def test_circuits_by_the_names_of_tools(redis_server: Any) -> None:
    config = RedisCircuitBreakerConfig(failure_threshold=2, reset_timeout=60.0)
    breaker = RedisCircuitBreaker(
        redis_server.url,
        default_config=config,
        tool_configs={"quick": BreakerConfig(failure_threshold=1, reset_timeout=0.0)},
        key_prefix="myapp:circuitbreaker",
    )
    assert await breaker.can_execute("search")
    await breaker.record_failure("search")
    await breaker.record_failure("search")  # without asking first
    assert not await breaker.can_execute("search")
    state = await breaker.get_state("search")
    assert (state["state"], state["failure_count"]) == (CircuitState.OPEN, 2)
    assert state["time_until_half_open"] == pytest.approx(60, abs=20)
    assert state["config"]["failure_threshold"] == 2
    assert (await breaker.get_state("unknown"))["state"] is CircuitState.CLOSED

    await breaker.record_failure("quick")
    assert await breaker.can_execute("quick"), "a probe"
    assert not await breaker.can_execute("quick"), "just one"
    await breaker.release("quick")
    for _ in range(2):
        assert await breaker.can_execute("quick")
        await breaker.record_success("quick")
    assert (await breaker.get_state("quick"))["state"] is CircuitState.CLOSED
    await breaker.record_success("quick")

    states = await breaker.get_all_states()
    assert {name: s["state"] for name, s in states.items()} == {
        "search": CircuitState.OPEN
    }
    keys = redis_server.command("KEYS", "myapp:circuitbreaker:search:*")
    assert set(keys) == {
        b"myapp:circuitbreaker:search:state",
        b"myapp:circuitbreaker:search:failures",
    }
    assert await breaker.reset_all() == 1
    assert await breaker.can_execute("search")
    await breaker.reset("search")
    await breaker.aclose()


@pytest.mark.req("redis.limits", "T-24")
async def test_limits_by_the_names_of_tools(redis_server: Any) -> None:
    limiter = RedisRateLimiter(
        redis_server.url,
        global_limit=3,
        tool_limits={"slow": (2, 60.0)},
        key_prefix="myapp:ratelimit",
    )
    for _ in range(2):
        await limiter.wait("slow", timeout=0)
    with pytest.raises(ToolRateLimitedError) as refused:
        await limiter.wait("slow", timeout=0)
    assert 0 < (refused.value.retry_after_ms or 0) <= 60_000
    assert await limiter.check_limits("slow") == (False, True)
    await limiter.wait("other")
    assert await limiter.check_limits("other") == (True, False)
    usage = await limiter.get_usage()
    assert {name: item["used"] for name, item in usage.items()} == {
        "global": 3,
        "slow": 2,
    }
    await limiter.reset("slow")
    assert (await limiter.get_usage("slow"))["slow"]["used"] == 0
    assert (await limiter.get_usage("slow"))["global"]["used"] == 3
    await limiter.reset(None)
    assert (await limiter.get_usage())["global"]["used"] == 0
    await limiter.aclose()
    await limiter.aclose()


@pytest.mark.req("factory.redis")
async def test_a_client_and_the_factories_make_the_same(redis_server: Any) -> None:
    redis = pytest.importorskip("redis.asyncio")
    client = redis.Redis(unix_socket_path=str(redis_server.socket))
    tools, url = Tools(), redis_server.url
    limiter = RedisRateLimiter(client, global_limit=100)
    breaker = RedisCircuitBreaker(client, default_config=BreakerConfig(2))
    protected = RedisCircuitBreakerExecutor(
        RateLimitedToolExecutor(tools.strategy, limiter), breaker
    )
    await protected.execute(calls(2))
    shared = await create_redis_circuit_breaker_executor(
        tools.strategy, url, default_config=BreakerConfig(2)
    )
    [refused] = await shared.execute(calls())
    assert refused.error_code is ErrorCode.TOOL_CIRCUIT_OPEN
    for made in (
        await create_redis_rate_limiter(url, global_limit=100),
        await create_rate_limiter("redis", redis_url=url, global_limit=100),
    ):
        assert isinstance(made, RedisRateLimiter)
        assert (await made.get_usage())["global"]["used"] == 2
    for circuits in (
        await create_redis_circuit_breaker(url),
        await create_circuit_breaker("redis", redis_url=url),
    ):
        assert isinstance(circuits, RedisCircuitBreaker)
        assert not await circuits.can_execute("expensive_api")
    assert redis_at(url) is redis_at(url)
    await limiter.aclose()
    assert await client.ping()
    await client.aclose()
    await redis_at(url).close()
    with pytest.raises(TypeError, match="RedisCircuitBreaker"):
        RedisCircuitBreakerExecutor(tools.strategy, object())  # type: ignore[arg-type]


@pytest.mark.req("LM-23", "T-26")
@pytest.mark.parametrize(
    ("mode", "outcome"),
    [("local", ["ok", "wait", "ok"]), ("open", ["ok"] * 3), ("closed", ["error"] * 3)],
)
async def test_both_go_on_as_set_while_the_server_is_gone(
    own_server: Any, mode: Any, outcome: list[str]
) -> None:
    limiter = RedisRateLimiter(own_server.url, global_limit=1, on_error=mode)
    breaker = RedisCircuitBreaker(
        own_server.url, default_config=BreakerConfig(1), on_error=mode
    )
    own_server.kill()

    async def wait(tool: str) -> str:
        try:
            await limiter.wait(tool, timeout=0)
        except ToolRateLimitedError:
            return "wait"
        except StateStoreError:
            return "error"
        return "ok"

    async def ask() -> str:
        try:
            return "ok" if await breaker.can_execute("a") else "wait"
        except StateStoreError:
            return "error"

    async with asyncio.timeout(20):
        # One limit for all tools, also where this process stands in.
        assert [await wait("a"), await wait("b"), await ask()] == outcome
        await breaker.record_failure("a")
        assert await ask() == {"local": "wait", "open": "ok", "closed": "error"}[mode]
        await limiter.aclose()
        await breaker.aclose()


@pytest.mark.req("factory.redis", "T-26")
async def test_without_a_server_auto_is_memory_and_redis_an_error() -> None:
    nowhere = "unix:///no/such/socket"
    made = await create_rate_limiter("auto", redis_url=nowhere, global_limit=1)
    assert not isinstance(made, RedisRateLimiter)
    for make in (
        create_rate_limiter("redis", redis_url=nowhere),
        create_redis_rate_limiter(nowhere),
        create_redis_circuit_breaker(nowhere),
    ):
        with pytest.raises(StateStoreError, match="cannot be reached"):
            await make
