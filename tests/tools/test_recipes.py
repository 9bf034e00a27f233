"""The examples and recipes of the production patterns document, as users would type them.

The code keeps the document's shape; what it prints there is asserted here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from executionkit import (
    Bulkhead,
    BulkheadConfig,
    BulkheadFullError,
    BulkheadLimitType,
    ErrorCode,
    ExecutionContext,
    InProcessStrategy,
    ReturnOrder,
    ToolCall,
    ToolProcessor,
    ToolRegistry,
    ToolResult,
    create_registry,
    execution_scope,
    get_current_context,
    initialize,
    tool,
)
from executionkit.testing import FakeClock, settle
from executionkit.tools.decorators import get_default_registry, reset_registry


@pytest.fixture(autouse=True)
def registry_of_the_process() -> Iterator[None]:
    reset_registry()
    yield
    reset_registry()


class Service:
    """Something behind a tool that notes how it is called."""

    def __init__(
        self, clock: FakeClock, seconds: float = 0.0, failures: int = 0
    ) -> None:
        self.clock = clock
        self.seconds = seconds
        self.failures = failures
        self.starts: list[float] = []
        self.seen: list[tuple[str | None, str | None]] = []
        self.active = 0
        self.peak = 0

    async def call(self, **arguments: Any) -> dict[str, Any]:
        self.starts.append(self.clock.monotonic())
        ctx = get_current_context()
        if ctx is not None:
            self.seen.append((ctx.tenant_id, ctx.user_id))
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            await self.clock.sleep(self.seconds)
        finally:
            self.active -= 1
        if self.failures:
            self.failures -= 1
            raise ConnectionError
        return arguments

    def tool(self) -> Any:
        async def execute(q: str = "") -> dict[str, Any]:
            return await self.call(q=q)

        return execute


@pytest.mark.req("recipe.idempotency")
async def test_idempotency_via_caching() -> None:
    @tool(name="search")
    class Search:
        async def execute(self, query: str) -> dict[str, str]:
            return {"query": query}

    assert await initialize() is get_default_registry()
    async with ToolProcessor(enable_caching=True, cache_ttl=300) as p:
        # LLM retries the same call (common with streaming or errors)
        call1 = '<tool name="search" args=\'{"query": "Python"}\'/>'
        call2 = '<tool name="search" args=\'{"query": "Python"}\'/>'  # Identical

        results1 = await p.process(call1)  # Executes
        results2 = await p.process(call2)  # Cache hit! (idempotency key match)

        assert results1[0].cached == False  # noqa: E712 - the document's own words
        assert results2[0].cached == True  # noqa: E712
        assert results1[0].result == results2[0].result


@pytest.mark.req("recipe.deadline")
async def test_cancellation_and_deadlines(auto_clock: FakeClock) -> None:
    cleaned_up = asyncio.Event()

    @tool(name="slow_report")
    async def slow_report(n: int) -> AsyncIterator[str]:
        try:
            for i in range(n):
                yield f"line {i}"
                await auto_clock.sleep(1.5)
        finally:
            cleaned_up.set()

    assert await initialize() is get_default_registry()
    chunks: list[Any] = []
    message = ""
    async with ToolProcessor(default_timeout=60.0) as p:
        try:
            # Hard deadline for the whole batch (e.g., user request budget)
            async with auto_clock.timeout(5.0):
                async for event in p.astream(
                    '<tool name="slow_report" args=\'{"n": 1000000}\'/>'
                ):
                    chunks.append(event.result)
        except TimeoutError:
            message = "Request cancelled: deadline exceeded"
            # Processor automatically cancels the tool and cleans up
            assert cleaned_up.is_set()
    assert message
    assert chunks == ["line 0", "line 1", "line 2", "line 3"]


@pytest.mark.req("recipe.deadline")
async def test_astream_under_the_event_loops_own_timeout() -> None:
    cleaned_up = asyncio.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    chunks: list[Any] = []
    async with ToolProcessor(create_registry(endless)) as p:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):  # real time: the wait has no other end
                async for event in p.astream([{"tool": "endless"}]):
                    chunks.append(event.result)
        assert cleaned_up.is_set()
    assert chunks == [1]


@pytest.mark.req("recipe.cancelled-results")
async def test_handling_cancellation_in_results(fake_clock: FakeClock) -> None:
    class CancellableTool:
        async def execute(self, **kwargs: Any) -> dict[str, str]:
            for _ in range(100):
                await fake_clock.sleep(0.1)  # Yield point - can be cancelled here
            return {"result": "done"}

    async def failing() -> None:
        msg = "no such table"
        raise LookupError(msg)

    async def working() -> str:
        return "fine"

    registry = create_registry(failing, working)
    await registry.register_tool(CancellableTool, name="cancellable")
    strategy = InProcessStrategy(registry)
    calls = [ToolCall(None, name) for name in ("cancellable", "failing", "working")]
    running = asyncio.create_task(strategy.run(calls))
    await settle()
    await strategy.shutdown()
    log: list[str] = []
    for result in await running:
        if result.error and "cancelled" in result.error.lower():
            log.append(f"Tool {result.tool} was cancelled")
        elif result.error:
            log.append(f"Tool {result.tool} failed: {result.error}")
        else:
            log.append(f"{result.result}")
    assert sorted(log) == [
        "Tool cancellable was cancelled",
        "Tool failing failed: no such table",
        "fine",
    ]


@pytest.mark.req("recipe.overrides")
async def test_per_tool_policy_overrides(auto_clock: FakeClock) -> None:
    expensive, fast = Service(auto_clock), Service(auto_clock, failures=1)

    @tool(name="expensive_api")
    async def expensive_api(q: str) -> dict[str, Any]:
        return await expensive.call(q=q)

    @tool(name="fast_local")
    async def fast_local(data: str) -> dict[str, Any]:
        return await fast.call(data=data)

    assert await initialize() is get_default_registry()
    async with ToolProcessor(
        default_timeout=30.0,
        enable_retries=True,
        max_retries=2,
        enable_rate_limiting=True,
        global_rate_limit=120,  # 120 requests/min across all tools
        tool_rate_limits={
            "expensive_api": (5, 60),  # 5 requests per 60 seconds
            "fast_local": (1000, 60),  # 1000 requests per 60 seconds
        },
    ) as p:
        # Tools run with their specific policies
        results = await p.process("""
            <tool name="expensive_api" args='{"q":"abc"}'/>
            <tool name="fast_local" args='{"data":"xyz"}'/>
        """)
        assert {result.tool: result.to_dict()["result"] for result in results} == {
            "expensive_api": {"q": "abc"},
            "fast_local": {"data": "xyz"},
        }
        assert {result.tool: result.attempts for result in results} == {
            "expensive_api": 1,
            "fast_local": 2,
        }
        more = [ToolCall(None, "expensive_api", {"q": str(n)}) for n in range(6)]
        results = await p.execute(more, timeout=10)
        refused = [result for result in results if not result.is_success]
        assert len(refused) == 2
        assert {r.error_code for r in refused} == {ErrorCode.TOOL_RATE_LIMITED}


def apis(clock: FakeClock) -> ToolRegistry:
    registry = create_registry()
    for name, seconds in (("slow_api", 0.5), ("medium_api", 0.2), ("fast_api", 0.05)):

        async def execute(query: str, seconds: float = seconds) -> str:
            await clock.sleep(seconds)
            return query

        registry.add(execute, name)
    return registry


CALLS = [
    ToolCall(id="call-1", tool="slow_api", arguments={"query": "complex"}),  # 500ms
    ToolCall(id="call-2", tool="medium_api", arguments={"query": "medium"}),  # 200ms
    ToolCall(id="call-3", tool="fast_api", arguments={"query": "simple"}),  # 50ms
]


@pytest.mark.req("recipe.parallel")
async def test_parallel_execution_and_streaming(auto_clock: FakeClock) -> None:
    strategy = InProcessStrategy(apis(auto_clock))

    # Results return as: fast_api, medium_api, slow_api (completion order)
    results = await strategy.run(CALLS)
    assert [(result.call_id, result.tool) for result in results] == [
        ("call-3", "fast_api"),
        ("call-2", "medium_api"),
        ("call-1", "slow_api"),
    ]

    events: list[str] = []

    async def on_start(call: ToolCall) -> None:
        events.append(f"Starting: {call.id}")

    async for result in strategy.stream_run(CALLS, on_tool_start=on_start):
        events.append(f"Completed: {result.call_id}")
    assert events == [
        *("Starting: call-1", "Starting: call-2", "Starting: call-3"),
        *("Completed: call-3", "Completed: call-2", "Completed: call-1"),
    ]

    # Limit to 2 concurrent tools (others queue)
    strategy = InProcessStrategy(apis(auto_clock), max_concurrency=2)
    began = auto_clock.monotonic()
    results = await strategy.run(CALLS)
    assert [result.call_id for result in results] == ["call-2", "call-3", "call-1"]
    assert auto_clock.monotonic() == began + 0.5


@pytest.mark.req("recipe.order")
async def test_return_order(auto_clock: FakeClock) -> None:
    async with ToolProcessor(apis(auto_clock)) as processor:
        calls = [
            {"tool": "slow_api", "arguments": {"query": "complex"}},
            {"tool": "medium_api", "arguments": {"query": "medium"}},
            {"tool": "fast_api", "arguments": {"query": "simple"}},
        ]
        results = await processor.process(calls, return_order="completion")
        assert [r.result for r in results] == ["simple", "medium", "complex"]
        results = await processor.process(calls, return_order="submission")
        assert [r.result for r in results] == ["complex", "medium", "simple"]
        results = await processor.process(CALLS, return_order=ReturnOrder.SUBMISSION)
        assert [r.call_id for r in results] == [call.id for call in CALLS]


@pytest.mark.req("recipe.dotted-names")
async def test_dotted_names_for_namespacing() -> None:
    class FetchUser:
        async def execute(self, user_id: str) -> dict[str, str]:
            return {"user_id": user_id}

    registry = create_registry()
    await registry.register_tool(FetchUser, name="web.fetch_user")
    processor = ToolProcessor(registry=registry)
    result = await processor.process(
        [{"tool": "web.fetch_user", "arguments": {"user_id": "123"}}]
    )
    assert result[0].to_dict()["result"] == {"user_id": "123"}
    same = create_registry()
    await same.register_tool(FetchUser, name="fetch_user", namespace="web")
    assert await same.list_tools() == await registry.list_tools()


@pytest.mark.req("recipe.scoped")
async def test_scoped_registries_complete_example() -> None:
    @tool(name="basic_search")
    class BasicSearch:
        async def execute(self, query: str) -> dict[str, Any]:
            return {"results": [f"Basic result for: {query}"]}

    @tool(name="premium_search")
    class PremiumSearch:
        async def execute(self, query: str, depth: int = 10) -> dict[str, Any]:
            return {"results": [f"Premium result for: {query}"], "depth": depth}

    # Free tier: basic tools only
    free_registry = create_registry()
    await free_registry.register_tool(BasicSearch)

    # Premium tier: all tools
    premium_registry = create_registry()
    await premium_registry.register_tool(BasicSearch)
    await premium_registry.register_tool(PremiumSearch)

    # Process requests with appropriate registry
    free_processor = ToolProcessor(registry=free_registry)
    premium_processor = ToolProcessor(registry=premium_registry)

    async with free_processor, premium_processor:
        # Free user can only use basic_search
        free_result = await free_processor.process(
            '<tool name="basic_search" args=\'{"query": "test"}\'/>'
        )

        # Premium user can use premium_search
        premium = (
            '<tool name="premium_search" args=\'{"query": "test", "depth": 20}\'/>'
        )
        premium_result = await premium_processor.process(premium)
        assert free_result[0].to_dict()["result"] == {
            "results": ["Basic result for: test"]
        }
        assert premium_result[0].to_dict()["result"] == {
            "results": ["Premium result for: test"],
            "depth": 20,
        }
        [refused] = await free_processor.process(premium)
        assert refused.error_code is ErrorCode.TOOL_NOT_FOUND
    assert await free_processor.list_tools() == ["basic_search"]


@pytest.mark.req("recipe.bulkheads")
async def test_bulkheads(fake_clock: FakeClock) -> None:
    # Configure per-tool concurrency limits
    config = BulkheadConfig(
        default_limit=10,  # Default: 10 concurrent per tool
        tool_limits={"slow_api": 2},  # Slow API: max 2 concurrent
        namespace_limits={"external": 5},  # External namespace: max 5 total
        global_limit=50,  # System-wide: max 50 concurrent
        acquisition_timeout=5.0,  # Wait up to 5s for a slot
        max_queue_depth=100,  # Max waiters before fail-fast
    )
    bulkhead = Bulkhead(config)

    async def use(seconds: float) -> None:
        async with bulkhead.acquire("slow_api", namespace="external"):
            await fake_clock.sleep(seconds)

    tasks = [asyncio.create_task(use(1)) for _ in range(3)]
    await fake_clock.advance(3)
    await asyncio.gather(*tasks)
    stats = bulkhead.get_stats("slow_api", "external")
    assert stats is not None
    assert (stats.peak_active, stats.total_wait_time) == (2, 1)

    tasks = [asyncio.create_task(use(9)) for _ in range(2)]
    await settle()
    waiting = asyncio.create_task(use(1))
    await settle()
    assert await bulkhead.get_queue_depth("slow_api") == 1
    await fake_clock.advance(5)
    with pytest.raises(BulkheadFullError) as caught:
        await waiting
    assert caught.value.limit_type is BulkheadLimitType.TOOL
    assert (caught.value.limit, caught.value.timeout) == (2, 5.0)

    # Update limits at runtime
    bulkhead.configure_tool("slow_api", limit=5)
    bulkhead.configure_namespace("external", limit=10)
    await asyncio.wait_for(use(0), 5)
    await fake_clock.advance(5)
    await asyncio.gather(*tasks)


@pytest.mark.req("recipe.context")
async def test_execution_context(auto_clock: FakeClock) -> None:
    log: list[str] = []

    class MyTool:
        async def execute(self, query: str) -> dict[str, str]:
            ctx = get_current_context()
            user = ctx.user_id if ctx else "anonymous"
            tenant = ctx.tenant_id if ctx else "default"
            log.append(f"Processing {query} for {user} in tenant {tenant}")
            return {"result": f"Processed for {user}"}

    registry = create_registry()
    await registry.register_tool(MyTool, name="my_tool")
    ctx = ExecutionContext.with_deadline(
        seconds=30, user_id="user-bob", tenant_id="other-corp"
    )
    tool_calls = [{"tool": "my_tool", "arguments": {"query": "test"}}]
    async with ToolProcessor(registry) as processor:
        await processor.process(tool_calls, context=ctx)
        await processor.process(tool_calls)
        # All tool calls in this scope see the context
        async with execution_scope(ctx):
            await processor.process(tool_calls)
    assert log == [
        "Processing test for user-bob in tenant other-corp",
        "Processing test for anonymous in tenant default",
        "Processing test for user-bob in tenant other-corp",
    ]
    assert auto_clock.sleeps == []


@pytest.mark.req("recipe.slo")
async def test_slo_recipe_of_two_seconds(auto_clock: FakeClock) -> None:
    external = Service(auto_clock, seconds=0.3, failures=1)
    hanging = Service(auto_clock, seconds=60)
    registry = create_registry()
    registry.add(external.tool(), "external_api")
    registry.add(hanging.tool(), "hanging")
    async with ToolProcessor(
        registry,
        # Timeouts: Leave headroom for retries
        default_timeout=1.5,  # Tool timeout (retries happen within 2s budget)
        # Retries: Fast retries for transient failures
        enable_retries=True,
        max_retries=1,  # One retry max (fits in 2s with 1.5s timeout)
        retry_base_delay=0.1,  # Start fast
        # Rate limiting: Protect downstream services
        enable_rate_limiting=True,
        global_rate_limit=100,  # 100 req/min across all tools
        tool_rate_limits={
            "external_api": (10, 60),  # 10/min for expensive external calls
        },
        # Bulkheads: Prevent slow tools from starving fast ones
        enable_bulkhead=True,
        bulkhead_config=BulkheadConfig(
            default_limit=10,
            tool_limits={"external_api": 2},  # Limit external calls
            acquisition_timeout=0.5,  # Fail fast if pool saturated
            max_queue_depth=20,  # Backpressure
        ),
        # Caching: Reduce repeated calls
        enable_caching=True,
        cache_ttl=60,  # 1 minute for most tools
    ) as processor:
        layers = processor.describe("external_api")["external_api"]
        assert [name for name in layers if name in {"cache", "retry", "bulkhead"}] == [
            "cache",
            "retry",
            "bulkhead",
        ]
        began = auto_clock.monotonic()
        tool_calls = [ToolCall(None, "external_api", {"q": str(n)}) for n in range(4)]
        results = await processor.process(tool_calls)
        assert auto_clock.monotonic() <= began + 2
        assert all(result.is_success for result in results)
        assert external.peak == 2
        assert len(external.starts) == 5
        [hit] = await processor.process(tool_calls[:1])
        assert hit.cached
        deadline = ExecutionContext.with_deadline(2)
        [late] = await processor.process([{"tool": "hanging"}], context=deadline)
        assert not late.is_success
        assert late.duration == pytest.approx(2)


def register_tools_for_tier(registry: ToolRegistry, tier: str, web: Service) -> None:
    registry.add(web.tool(), "web:acme:fetch")
    if tier != "free":
        registry.add(web.tool(), "premium")


def create_tenant_processor(tenant_id: str, tier: str, web: Service) -> ToolProcessor:
    # Tenant-specific registry (tool access by tier)
    registry = create_registry()
    register_tools_for_tier(registry, tier, web)

    # Tenant-specific bulkhead with namespaced pools
    config = BulkheadConfig(
        default_limit=5 if tier == "free" else 20,
        patterns={
            f"web:{tenant_id}:*": 3 if tier == "free" else 10,
            f"db:{tenant_id}:*": 1 if tier == "free" else 3,
        },
        global_limit=10 if tier == "free" else 50,
        max_queue_depth=5 if tier == "free" else 20,
    )

    return ToolProcessor(
        registry=registry,
        enable_bulkhead=True,
        bulkhead_config=config,
        enable_rate_limiting=True,
        global_rate_limit=30 if tier == "free" else 200,
    )


@pytest.mark.req("recipe.multi-tenant")
@pytest.mark.parametrize(("tier", "peak", "queue"), [("free", 3, 5), ("pro", 10, 20)])
async def test_multi_tenant_recipe(
    auto_clock: FakeClock, tier: str, peak: int, queue: int
) -> None:
    web = Service(auto_clock, seconds=1)

    async def handle_request(
        tenant_id: str, user_id: str, tool_calls: Any
    ) -> list[ToolResult]:
        processor = create_tenant_processor(tenant_id, tier, web)
        ctx = ExecutionContext(request_id="req-1", user_id=user_id, tenant_id=tenant_id)
        async with processor:
            return await processor.process(tool_calls, context=ctx)

    fetches = [ToolCall(None, "web:acme:fetch", {"q": str(n)}) for n in range(40)]
    results = await handle_request("acme", "alice", fetches)
    assert web.peak == peak
    assert sum(result.is_success for result in results) == peak + queue
    assert {r.error_code for r in results if not r.is_success} == {
        ErrorCode.BULKHEAD_FULL
    }
    assert set(web.seen) == {("acme", "alice")}
    [result] = await handle_request("acme", "alice", [{"tool": "premium"}])
    assert result.is_success is (tier != "free")


@pytest.mark.req("recipe.combined")
async def test_all_patterns_combined(auto_clock: FakeClock) -> None:
    services = {
        tenant: Service(auto_clock, seconds=1, failures=1)
        for tenant in ("acme", "globex")
    }

    def get_tenant_registry(tenant_id: str) -> ToolRegistry:
        registry = create_registry()
        registry.add(services[tenant_id].tool(), "external_api")
        return registry

    tool_calls = [
        ToolCall(f"c{n}", "external_api", {"q": str(n // 2)}) for n in range(12)
    ]

    async def handle_request(
        tenant_id: str, user_id: str, request_num: int
    ) -> list[ToolResult]:
        # 1. Get tenant-specific registry
        registry = get_tenant_registry(tenant_id)

        # 2. Configure bulkheads for this tenant
        bulkhead_config = BulkheadConfig(
            default_limit=10, tool_limits={"external_api": 3}, global_limit=50
        )

        # 3. Create processor with all features
        processor = ToolProcessor(
            registry=registry,
            enable_bulkhead=True,
            bulkhead_config=bulkhead_config,
            enable_caching=True,
            enable_retries=True,
        )

        # 4. Create execution context
        ctx = ExecutionContext(
            request_id=f"req-{request_num}", user_id=user_id, tenant_id=tenant_id
        )

        # 5. Process with full production features
        async with processor:
            return await processor.process(tool_calls, context=ctx)

    both = await asyncio.gather(
        handle_request("acme", "alice", 1), handle_request("globex", "bob", 2)
    )
    for (tenant, service), user, results in zip(
        services.items(), ("alice", "bob"), both, strict=True
    ):
        assert len(results) == 12
        assert all(result.is_success for result in results)
        assert sum(result.cached for result in results) == 6
        assert len(service.starts) == 7  # six different calls, one of them twice
        assert service.peak == 3
        assert set(service.seen) == {(tenant, user)}
        assert sum(result.attempts == 2 for result in results) == 1
