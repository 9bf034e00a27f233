"""What the document states of tools, statement by statement, in its own words and order.

Not here: statements about isolated processes, Redis and MCP.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from enum import Enum
from typing import Any

import pytest

from executionkit._keys import idempotency_key
from executionkit.backends import CacheBackend, InMemoryCache
from executionkit.calls import ReturnOrder, ToolCall, ToolResult
from executionkit.context import (
    ExecutionContext,
    execution_scope,
    get_current_context,
)
from executionkit.engine.bulkhead import Bulkhead, BulkheadConfig
from executionkit.errors import BulkheadFullError, BulkheadLimitType, ErrorCode
from executionkit.testing import FakeClock, settle
from executionkit.tools._options import ToolPolicy
from executionkit.tools._runs import Override
from executionkit.tools.decorators import (
    get_default_registry,
    initialize,
    register_tool,
    reset_registry,
    tool,
)
from executionkit.tools.factories import (
    CircuitBreakerSettings,
    RateLimiterSettings,
    WrapperBackend,
    create_production_executor,
)
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import ToolRegistry, create_registry
from executionkit.tools.scheduling import (
    ExecutionPlan,
    GreedyDagScheduler,
    SchedulingConstraints,
    ToolCallSpec,
    ToolMetadata,
)
from executionkit.tools.strategies import InProcessStrategy

SEARCH = '<tool name="search" args=\'{"query": "Python"}\'/>'


@pytest.fixture(autouse=True)
def registry_of_the_process() -> Iterator[None]:
    reset_registry()
    yield
    reset_registry()


class Api:
    """`slow_api`, `medium_api`, `fast_api` of the document's examples."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.starts = 0
        self.active = 0
        self.peak = 0
        self.cancelled = 0

    def registry(self) -> ToolRegistry:
        registry = create_registry()
        for name, ms in (("slow_api", 500), ("medium_api", 200), ("fast_api", 50)):
            registry.add(self._tool(ms / 1000), name)
        return registry

    def _tool(self, seconds: float) -> Any:
        async def api(query: str = "") -> str:
            self.starts += 1
            self.active += 1
            self.peak = max(self.peak, self.active)
            try:
                await self.clock.sleep(seconds)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            finally:
                self.active -= 1
            return query

        return api


CALLS = [
    ToolCall(id="call-1", tool="slow_api", arguments={"query": "complex"}),
    ToolCall(id="call-2", tool="medium_api", arguments={"query": "medium"}),
    ToolCall(id="call-3", tool="fast_api", arguments={"query": "simple"}),
]


def searching() -> tuple[ToolRegistry, list[str]]:
    ran: list[str] = []

    async def search(query: str) -> str:
        ran.append(query)
        return query

    return create_registry(search), ran


@pytest.mark.req("T-SEED-01")
async def test_caching_is_off_by_default() -> None:
    registry, ran = searching()
    async with ToolProcessor(registry) as p:
        results = [*await p.process(SEARCH), *await p.process(SEARCH)]
    assert [result.cached for result in results] == [False, False]
    assert ran == ["Python"] * 2


@pytest.mark.req("T-SEED-02")
async def test_retries_are_off_by_default(auto_clock: FakeClock) -> None:
    async def fails() -> None:
        raise ConnectionError

    async with ToolProcessor(create_registry(fails)) as p:
        [result] = await p.process([{"tool": "fails"}])
    assert (result.attempts, auto_clock.sleeps) == (1, [])


@pytest.mark.req("T-SEED-03")
async def test_the_second_identical_process_is_cached() -> None:
    registry, ran = searching()
    async with ToolProcessor(registry, enable_caching=True, cache_ttl=300) as p:
        results1 = await p.process(SEARCH)
        results2 = await p.process(SEARCH)
    assert results1[0].cached is False
    assert results2[0].cached is True
    assert ran == ["Python"]


@pytest.mark.req("T-SEED-04")
def test_the_idempotency_key_is_a_sha256_of_tool_and_arguments() -> None:
    def key(*args: Any, **more: Any) -> str:
        found = idempotency_key(ToolCall(*args, **more))
        assert found is not None
        assert len(bytes.fromhex(found)) == hashlib.sha256().digest_size
        return found

    one = key("1", "search", {"a": 1, "b": [2]})
    assert one == key("2", "search", {"b": [2], "a": 1})
    others = {
        key("1", "find", {"a": 1, "b": [2]}),
        key("1", "search", {"a": 1, "b": ["2"]}),
        key("1", "search", {"a": 1}),
        key("1", "search", {"a": 1, "b": [2]}, namespace="web"),
    }
    assert len(others | {one}) == 5
    assert key("1", "web.search", {}) == key("1", "search", {}, namespace="web")


@pytest.mark.req("T-SEED-05")
async def test_a_cache_backend_of_the_users_own_is_used() -> None:
    class Counting(InMemoryCache):
        asked = 0

        def get_now(self, key: str) -> Any:
            self.asked += 1
            return super().get_now(key)

    backend = Counting()
    assert isinstance(backend, CacheBackend)
    registry, ran = searching()

    def without_time(call: ToolCall) -> object:
        return {k: v for k, v in call.arguments.items() if k != "query"}

    async with ToolProcessor(
        registry, cache=backend, cache_key_fn=without_time
    ) as processor:
        await processor.execute([ToolCall(None, "search", {"query": "t=1"})])
        [hit] = await processor.execute([ToolCall(None, "search", {"query": "t=2"})])
        assert (hit.cached, hit.result, ran) == (True, "t=1", ["t=1"])
        assert backend.asked == 2


@pytest.mark.req("T-SEED-06")
async def test_calls_run_in_parallel_and_come_in_completion_order(
    auto_clock: FakeClock,
) -> None:
    api = Api(auto_clock)
    began = auto_clock.monotonic()
    results = await ToolProcessor(api.registry()).process(CALLS)
    assert [result.call_id for result in results] == ["call-3", "call-2", "call-1"]
    assert (api.peak, auto_clock.monotonic()) == (3, began + 0.5)


@pytest.mark.req("T-SEED-07")
@pytest.mark.parametrize(
    ("order", "tools"),
    [
        ("completion", ["fast_api", "medium_api", "slow_api"]),
        ("submission", ["slow_api", "medium_api", "fast_api"]),
    ],
)
async def test_return_order_is_honoured(
    auto_clock: FakeClock, order: str, tools: list[str]
) -> None:
    async with ToolProcessor(Api(auto_clock).registry()) as processor:
        calls = [
            {"tool": "slow_api", "arguments": {"query": "complex"}},
            {"tool": "medium_api", "arguments": {"query": "medium"}},
            {"tool": "fast_api", "arguments": {"query": "simple"}},
        ]
        results = await processor.process(calls, return_order=order)
    assert [result.tool for result in results] == tools


@pytest.mark.req("T-SEED-08")
def test_return_order_is_a_text_enumeration() -> None:
    assert issubclass(ReturnOrder, str)
    assert issubclass(ReturnOrder, Enum)
    assert {item.name: item.value for item in ReturnOrder} == {
        "COMPLETION": "completion",
        "SUBMISSION": "submission",
    }


@pytest.mark.req("T-SEED-09")
async def test_every_result_has_the_id_of_its_call(auto_clock: FakeClock) -> None:
    async def fails() -> None:
        raise ConnectionError

    async def hangs(n: int = 0) -> None:
        await asyncio.Event().wait()

    async def streams() -> AsyncIterator[int]:
        yield 1
        yield 2

    registry = create_registry(fails, hangs, streams)
    processor = ToolProcessor(
        registry,
        default_timeout=1,
        enable_caching=True,
        enable_circuit_breaker=True,
        circuit_breaker_threshold=2,
        bulkhead_config=BulkheadConfig(tool_limits={"hangs": 1}, acquisition_timeout=0),
    )
    kinds: dict[str, str] = {
        "failed": "fails",
        "timed out": "hangs",
        "unknown": "nothing",
        "streamed": "streams",
    }
    calls = [ToolCall(key, name) for key, name in kinds.items()]
    calls.append(ToolCall("wrong", "fails", {"x": 1}))
    calls.append(ToolCall("no slot", "hangs", {"n": 1}))
    found = {result.call_id: result for result in await processor.process(calls)}
    assert set(found) == {call.id for call in calls}
    assert found["no slot"].error_code is ErrorCode.BULKHEAD_FULL
    await processor.process([ToolCall(None, "fails")])
    [rejected] = await processor.process([ToolCall("rejected", "fails")])
    assert rejected.error_code is ErrorCode.TOOL_CIRCUIT_OPEN
    assert rejected.call_id == "rejected"
    streamed = [r async for r in processor.astream([ToolCall("s", "streams")])]
    assert [result.call_id for result in streamed] == ["s", "s", "s"]


@pytest.mark.req("T-SEED-10")
async def test_astream_gives_output_as_it_comes_and_is_cancelled_by_a_timeout(
    auto_clock: FakeClock,
) -> None:
    closed = asyncio.Event()

    async def slow_report(n: int) -> AsyncIterator[int]:
        try:
            for i in range(n):
                yield i
                await auto_clock.sleep(2)
        finally:
            closed.set()

    events: list[tuple[Any, float]] = []
    async with ToolProcessor(create_registry(slow_report), default_timeout=60.0) as p:
        with pytest.raises(TimeoutError):
            async with auto_clock.timeout(5.0):
                async for event in p.astream(
                    '<tool name="slow_report" args=\'{"n": 1000000}\'/>'
                ):
                    events.append((event.result, auto_clock.monotonic()))
        assert closed.is_set()
        assert (await p.stats()).active == 0
    assert events == [(0, 1000.0), (1, 1002.0), (2, 1004.0)]


@pytest.mark.req("T-SEED-11")
async def test_a_deadline_around_processing_cancels_the_tools(
    auto_clock: FakeClock,
) -> None:
    api = Api(auto_clock)
    async with ToolProcessor(api.registry(), default_timeout=60.0) as p:
        with pytest.raises(TimeoutError):
            async with auto_clock.timeout(0.1):
                await p.process(CALLS)
        assert (api.cancelled, api.active) == (2, 0)


@pytest.mark.req("T-SEED-12")
async def test_a_cancelled_tool_gives_a_result_and_nothing_propagates(
    fake_clock: FakeClock,
) -> None:
    api = Api(fake_clock)
    strategy = InProcessStrategy(api.registry())
    running = asyncio.create_task(strategy.run(CALLS))
    await settle()
    await strategy.shutdown()
    results = await running
    assert {result.error for result in results} == {"Execution was cancelled"}
    assert all("cancelled" in str(result.error).lower() for result in results)
    assert api.cancelled == 3
    [late] = await strategy.run(CALLS[:1])
    assert late.error == "System is shutting down"


@pytest.mark.req("T-SEED-17")
async def test_strategies_run_stream_and_limit(auto_clock: FakeClock) -> None:
    api = Api(auto_clock)
    strategy = InProcessStrategy(api.registry(), max_concurrency=2)
    results = await strategy.run(CALLS)
    assert [result.call_id for result in results] == ["call-2", "call-3", "call-1"]
    assert api.peak == 2
    assert strategy.supports_streaming
    started: list[str] = []

    async def on_start(call: ToolCall) -> None:
        started.append(call.id)
        if call.id == "call-2":
            raise LookupError  # decides nothing

    stream = strategy.stream_run(CALLS, on_tool_start=on_start)
    completed = [result.call_id async for result in stream]
    assert completed == ["call-2", "call-3", "call-1"]
    assert started == ["call-1", "call-2", "call-3"]


@pytest.mark.req("T-SEED-18")
async def test_rate_limits_per_tool_and_one_per_minute_over_all(
    auto_clock: FakeClock,
) -> None:
    api = Api(auto_clock)
    processor = ToolProcessor(
        api.registry(),
        enable_rate_limiting=True,
        global_rate_limit=6,
        tool_rate_limits={"slow_api": (2, 10)},
    )
    batch = [ToolCall(None, name) for name in ["slow_api"] * 4 + ["fast_api"] * 4]
    results = await processor.execute(batch, timeout=5)
    assert sum(result.is_success for result in results) == 6
    refused = [(r.tool, r.retry_after_ms) for r in results if not r.is_success]
    assert refused == [("slow_api", 10_000)] * 2


@pytest.mark.req("T-SEED-19")
async def test_the_most_specific_setting_wins(auto_clock: FakeClock) -> None:
    registry = create_registry()
    for name in ("mcp.a", "mcp.b", "mcp.c", "other"):

        async def hangs() -> None:
            await asyncio.Event().wait()

        registry.add(hangs, name)
    processor = ToolProcessor(
        registry,
        default_timeout=30.0,
        policies={"mcp.*": ToolPolicy(timeout=5), "mcp.b": ToolPolicy(timeout=3)},
    )
    calls = [ToolCall(name, name) for name in ("mcp.a", "mcp.b", "mcp.c", "other")]
    results = await processor.execute(calls, overrides={"mcp.c": Override(timeout=0.5)})
    assert {result.call_id: result.duration for result in results} == {
        "mcp.c": 0.5,
        "mcp.b": 3,
        "mcp.a": 5,
        "other": 30,
    }


@pytest.mark.req("T-SEED-20")
async def test_dotted_names_are_split_unless_a_namespace_is_given() -> None:
    class MyTool:
        async def execute(self) -> str:
            return "mine"

    registry = create_registry()
    await registry.register_tool(MyTool, name="web.fetch_user")
    await registry.register_tool(MyTool, name="a.b", namespace="custom")
    found = [(item.namespace, item.name) for item in await registry.list_tools()]
    assert found == [("web", "fetch_user"), ("custom", "a.b")]
    processor = ToolProcessor(registry)
    for call in (
        ToolCall(None, "web.fetch_user"),
        ToolCall(None, "fetch_user", namespace="web"),
        ToolCall(None, "custom.a.b"),
    ):
        [result] = await processor.execute([call])
        assert result.result == "mine"


@pytest.mark.req("T-SEED-21")
async def test_the_decorator_takes_dotted_names() -> None:
    @tool(name="web.fetch_user")
    class FetchUserTool:
        async def execute(self, user_id: str) -> dict[str, str]:
            return {"user_id": user_id}

    assert inspect.isclass(FetchUserTool)
    assert await initialize() is get_default_registry()
    async with ToolProcessor() as processor:
        [result] = await processor.process(
            [{"tool": "web.fetch_user", "arguments": {"user_id": "123"}}]
        )
    assert result.to_dict()["result"] == {"user_id": "123"}
    assert get_default_registry().find("web.fetch_user") is not None


@pytest.mark.req("T-SEED-22")
async def test_a_decorated_class_keeps_its_name_in_another_registry() -> None:
    @register_tool(name="basic_search")
    class BasicSearch:
        async def execute(self, query: str) -> str:
            return query

    registry = create_registry()
    await registry.register_tool(BasicSearch)
    [result] = await ToolProcessor(registry).process(
        '<tool name="basic_search" args=\'{"query": "test"}\'/>'
    )
    assert result.result == "test"


@pytest.mark.req("T-SEED-23")
async def test_list_tools_gives_plain_names() -> None:
    class Basic:
        async def execute(self) -> None: ...

    registry = create_registry()
    await registry.register_tool(Basic, name="core.basic")
    await registry.register_tool(Basic, name="premium.advanced")
    assert await ToolProcessor(registry).list_tools() == ["basic", "advanced"]


@pytest.mark.req("T-SEED-24")
async def test_the_bulkhead_of_the_processor_limits_tools(
    auto_clock: FakeClock,
) -> None:
    api = Api(auto_clock)
    config = BulkheadConfig(tool_limits={"slow_api": 2})
    async with ToolProcessor(
        api.registry(), enable_bulkhead=True, bulkhead_config=config
    ) as processor:
        results = await processor.execute([ToolCall(None, "slow_api")] * 10)
        assert isinstance(processor.bulkhead, Bulkhead)
        stats = processor.bulkhead.get_stats("slow_api")
    assert len(results) == 10
    assert api.peak == 2
    assert stats is not None
    assert (stats.acquired, stats.peak_active) == (10, 2)


@pytest.mark.req("T-SEED-25")
async def test_a_queue_that_is_too_deep_fails_fast(fake_clock: FakeClock) -> None:
    bulkhead = Bulkhead(BulkheadConfig(default_limit=1, max_queue_depth=1))

    async def hold() -> None:
        async with bulkhead.acquire("slow_api"):
            await fake_clock.sleep(1)

    tasks = [asyncio.create_task(hold()) for _ in range(2)]
    await settle()
    with pytest.raises(BulkheadFullError) as caught:
        await hold()
    assert caught.value.limit_type is BulkheadLimitType.QUEUE_DEPTH
    assert caught.value.limit == 1
    await fake_clock.advance(2)
    await asyncio.gather(*tasks)


@pytest.mark.req("T-SEED-26")
async def test_the_limit_of_a_pattern_is_shared(fake_clock: FakeClock) -> None:
    bulkhead = Bulkhead(BulkheadConfig(patterns={"db.*": 3}))
    inside = 0

    async def hold(name: str) -> None:
        nonlocal inside
        async with bulkhead.acquire(name):
            inside += 1
            await fake_clock.sleep(1)

    names = ["db.read", "db.write", "db.backup", "db.read", "database.query"]
    tasks = [asyncio.create_task(hold(name)) for name in names]
    await settle()
    assert inside == 4  # three of the pattern, and one that it does not match
    await fake_clock.advance(2)
    await asyncio.gather(*tasks)


@pytest.mark.req("T-SEED-27")
async def test_the_queue_depth_is_the_number_of_waiters(fake_clock: FakeClock) -> None:
    api = Api(fake_clock)
    config = BulkheadConfig(tool_limits={"slow_api": 2})
    processor = ToolProcessor(api.registry(), bulkhead_config=config)
    assert processor.bulkhead is not None
    assert await processor.bulkhead.get_queue_depth("slow_api") == 0
    running = asyncio.create_task(processor.execute([ToolCall(None, "slow_api")] * 2))
    await settle()
    assert await processor.bulkhead.get_queue_depth("slow_api") == 0
    more = asyncio.create_task(processor.execute([ToolCall(None, "slow_api")] * 7))
    await settle()
    assert await processor.bulkhead.get_queue_depth("slow_api") == 7
    await fake_clock.advance(5)
    await asyncio.gather(running, more)
    assert await processor.bulkhead.get_queue_depth("slow_api") == 0


@pytest.mark.req("T-SEED-28")
def test_limits_are_exact_then_first_pattern_then_default() -> None:
    bulkhead = Bulkhead(
        BulkheadConfig(
            default_limit=10,
            tool_limits={"db.critical": 1},
            patterns={"mcp.notion.*": 2, "mcp.*": 5, "db.*": 3, "*_api": 4},
        )
    )
    expected = {
        "db.critical": 1,
        "db.read": 3,
        "other_tool": 10,
        "mcp.notion.search": 2,
        "mcp.github.issues": 5,
        "slow_api": 4,
        "api_client": 10,
        "database.query": 10,
    }
    assert {name: bulkhead.get_tool_limit(name) for name in expected} == expected


@pytest.mark.req("T-SEED-30")
async def test_failures_are_counted_in_a_sliding_window(fake_clock: FakeClock) -> None:
    runs = 0

    async def fails() -> None:
        nonlocal runs
        runs += 1
        raise ConnectionError

    executor = await create_production_executor(
        InProcessStrategy(create_registry(fails)),
        circuit_breaker_backend=WrapperBackend.MEMORY,
        circuit_breaker_settings=CircuitBreakerSettings(
            failure_threshold=3, reset_timeout=60.0, failure_window=10.0
        ),
    )
    for wait in (0, 6, 6, 6):  # never three within ten seconds
        await fake_clock.advance(wait)
        await executor.execute([ToolCall(None, "fails")])
    assert runs == 4
    await executor.execute([ToolCall(None, "fails")])
    [refused] = await executor.execute([ToolCall(None, "fails")])
    assert refused.error_code is ErrorCode.TOOL_CIRCUIT_OPEN
    assert runs == 5


@pytest.mark.req("T-SEED-32")
async def test_a_production_executor_executes_calls(auto_clock: FakeClock) -> None:
    api = Api(auto_clock)
    executor = await create_production_executor(
        InProcessStrategy(api.registry()),
        circuit_breaker_settings=CircuitBreakerSettings(
            failure_threshold=5,
            success_threshold=2,
            reset_timeout=60.0,
            failure_window=60.0,
        ),
        rate_limiter_settings=RateLimiterSettings(
            global_limit=100, global_period=60.0, tool_limits={"slow_api": (2, 60.0)}
        ),
    )
    results: list[ToolResult] = await executor.execute(CALLS)
    assert {result.call_id: result.result for result in results} == {
        "call-1": "complex",
        "call-2": "medium",
        "call-3": "simple",
    }
    assert api.peak == 3
    began = auto_clock.monotonic()
    await executor.execute([ToolCall(None, "slow_api")] * 2)
    assert auto_clock.monotonic() >= began + 59


@pytest.mark.req("T-SEED-33")
async def test_the_context_has_the_documented_parts(auto_clock: FakeClock) -> None:
    ctx = ExecutionContext(
        request_id="req-12345",
        user_id="user-alice",
        tenant_id="acme-corp",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        budget=100.0,
    )
    headers = ctx.to_headers()
    assert headers["X-Request-ID"] == "req-12345"
    assert headers["X-Tenant-ID"] == "acme-corp"
    back = ExecutionContext.from_headers(headers)
    assert (back.request_id, back.user_id, back.tenant_id, back.budget) == (
        *("req-12345", "user-alice", "acme-corp"),
        100.0,
    )
    timed = ExecutionContext.with_deadline(seconds=30, user_id="user-bob")
    found: Any = (timed.remaining_time, timed.is_expired, timed.elapsed_time)
    assert found == (30, False, 0)
    assert timed.to_headers()["X-Deadline-Seconds"] in {"30", "30.0", "30.000"}
    await auto_clock.sleep(31)
    found = (timed.remaining_time, timed.is_expired, timed.elapsed_time)
    assert found == (0, True, pytest.approx(31))
    assert ctx.with_span("child-span-id").span_id == "child-span-id"
    more = ctx.with_metadata(operation="search").with_metadata(priority="high")
    assert more.to_dict()["metadata"] == {"operation": "search", "priority": "high"}
    assert ctx.with_budget(50.0).budget == 50.0
    async with execution_scope(ctx):
        assert get_current_context() is ctx
    assert get_current_context() is None
    assert isinstance(timed.deadline, datetime)


def example() -> list[ToolCallSpec]:
    def spec(
        key: str, name: str, needs: tuple[str, ...], pool: str, est: int, priority: int
    ) -> ToolCallSpec:
        metadata = ToolMetadata(pool=pool, est_ms=est, priority=priority)
        return ToolCallSpec(
            call_id=key, tool_name=name, depends_on=needs, metadata=metadata
        )

    fetches = ("fetch-users", "fetch-orders")
    return [
        spec("fetch-users", "web.fetch", (), "web", 300, 10),
        spec("fetch-orders", "web.fetch", (), "web", 300, 10),
        spec("transform", "compute.transform", fetches, "compute", 500, 10),
        spec("store", "db.write", ("transform",), "db", 200, 10),
        spec("analytics", "analytics.log", ("store",), "analytics", 100, 0),
    ]


@pytest.mark.req("T-SEED-35")
def test_the_schedulers_example_has_its_stages_and_skips_analytics() -> None:
    constraints = SchedulingConstraints(
        deadline_ms=1500, max_cost=1.0, pool_limits={"web": 2, "db": 1, "compute": 1}
    )
    plan = GreedyDagScheduler().plan(example(), constraints)
    assert plan.stages == (("fetch-users", "fetch-orders"), ("transform",), ("store",))
    assert plan.skip == ("analytics",)
    assert plan.per_call_timeout_ms["fetch-users"] >= 300


@pytest.mark.req("T-SEED-36")
def test_a_plan_hands_on_the_retries_of_its_calls() -> None:
    calls = [
        ToolCallSpec(call_id="a", tool_name="x", max_retries=2),
        ToolCallSpec(call_id="b", tool_name="x", max_retries=0),
        ToolCallSpec(call_id="c", tool_name="x"),
    ]
    plan = GreedyDagScheduler().plan(calls, SchedulingConstraints())
    assert dict(plan.per_call_max_retries) == {"a": 2, "b": 0}


@pytest.mark.req("T-SEED-19", "T-SEED-36")
async def test_what_a_plan_says_of_a_call_wins_over_every_setting(
    auto_clock: FakeClock,
) -> None:
    starts: list[str] = []

    async def hangs(key: str) -> None:
        starts.append(key)
        await asyncio.Event().wait()

    registry = create_registry()
    registry.add(hangs, timeout=7.0, max_retries=4)
    processor = ToolProcessor(
        registry,
        enable_retries=True,
        retry_base_delay=0.0,
        policies={"hangs": ToolPolicy(timeout=5, max_retries=3)},
    )
    calls = [
        ToolCallSpec(call_id=key, tool_name="hangs", args={"key": key})
        for key in ("planned", "usual")
    ]
    plan = ExecutionPlan(
        stages=(("planned", "usual"),),
        per_call_timeout_ms={"planned": 500},
        per_call_max_retries={"planned": 1},
    )
    outcome = await processor.execute_plan(calls, plan)
    planned, usual = outcome.results["planned"], outcome.results["usual"]
    assert (planned.attempts, planned.duration) == (2, 1.0)
    assert (usual.attempts, usual.duration) == (4, 20.0)
    assert sorted(starts) == ["planned"] * 2 + ["usual"] * 4


@pytest.mark.req("T-SEED-37")
@pytest.mark.parametrize("continue_on_error", [False, True])
async def test_what_needs_a_failed_call_is_skipped_unless_errors_are_allowed(
    continue_on_error: bool,
) -> None:
    ran: list[str] = []

    async def step(key: str) -> str:
        ran.append(key)
        if key == "fetch-users":
            raise ConnectionError
        return key

    needs = {"fetch-users": (), "transform": ("fetch-users",), "store": ("transform",)}
    calls = [
        ToolCallSpec(call_id=key, tool_name="step", args={"key": key}, depends_on=of)
        for key, of in needs.items()
    ]
    processor = ToolProcessor(create_registry(step))
    outcome = await processor.execute_plan(calls, continue_on_error=continue_on_error)
    codes = {key: result.error_code for key, result in outcome.results.items()}
    skipped = None if continue_on_error else ErrorCode.SKIPPED_DEPENDENCY_FAILED
    assert codes == {
        "fetch-users": ErrorCode.TOOL_CONNECTION_FAILED,
        "transform": skipped,
        "store": skipped,
    }
    assert ran == (list(needs) if continue_on_error else ["fetch-users"])


@pytest.mark.req("T-SEED-38")
async def test_retry_base_delay_starts_fast(auto_clock: FakeClock) -> None:
    async def fails() -> None:
        raise ConnectionError

    async with ToolProcessor(
        create_registry(fails), enable_retries=True, max_retries=1, retry_base_delay=0.1
    ) as processor:
        [result] = await processor.process([{"tool": "fails"}])
    assert result.attempts == 2
    assert len(auto_clock.sleeps) == 1
    assert auto_clock.sleeps[0] <= 0.1


@pytest.mark.req("T-SEED-39")
async def test_patterns_with_colons_are_plain_globs(fake_clock: FakeClock) -> None:
    bulkhead = Bulkhead(
        BulkheadConfig(default_limit=5, patterns={"web:acme:*": 3, "db:acme:*": 1})
    )
    assert bulkhead.get_tool_limit("web:acme:fetch") == 3
    assert bulkhead.get_tool_limit("db:acme:read") == 1
    assert bulkhead.get_tool_limit("web:globex:fetch") == 5
    api = Api(fake_clock)
    registry = create_registry()
    registry.add(api.registry().resolve("slow_api").source, "web:acme:fetch")
    processor = ToolProcessor(registry, bulkhead_config=bulkhead.config)
    running = asyncio.create_task(
        processor.execute([ToolCall(None, "web:acme:fetch")] * 9)
    )
    await settle()
    assert api.active == 3
    await fake_clock.advance(5)
    assert len(await running) == 9
