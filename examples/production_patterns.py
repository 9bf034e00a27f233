"""All patterns of the tool runtime in one service.

    PYTHONPATH=. python3 examples/production_patterns.py

A scoped registry, slots, retries, a circuit, a cache, guards, a trace, a context with a
deadline; calls of a model, an effect that happens once, a stream that is cut off, a
plan, and what the processor has counted in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from executionkit import (
    BulkheadConfig,
    ExecutionContext,
    GuardChain,
    MemoryTraceSink,
    ResultOf,
    SchedulingConstraints,
    ToolCall,
    ToolCallSpec,
    ToolMetadata,
    ToolProcessor,
    ToolRegistry,
    create_registry,
    tool,
)


def make_registry() -> ToolRegistry:
    registry = create_registry()
    failures = iter([True])

    @tool(name="web.fetch", registry=registry, side_effects="read")
    async def fetch(path: str) -> list[int]:
        """Fetches rows; fails the first time."""
        await asyncio.sleep(0.01)
        if next(failures, False):
            raise ConnectionError("lost")
        return [len(path), 2, 3]

    @tool(name="compute.total", registry=registry, side_effects="none")
    def total(rows: list[int]) -> int:
        """Adds up, in a thread."""
        return sum(rows)

    @tool(name="db.write", registry=registry, side_effects="write")
    async def write(key: str, value: int) -> str:
        """Writes a row."""
        return f"{key} = {value}"

    @tool(name="log.tail", registry=registry)
    async def tail() -> AsyncIterator[str]:
        """Gives lines without end."""
        try:
            for number in range(1_000_000):
                yield f"line {number}"
                await asyncio.sleep(0.01)
        finally:
            print("  the tool was closed")

    return registry


async def calls_of_a_model(processor: ToolProcessor, context: ExecutionContext) -> None:
    said = """Let me look.
    <tool name="web.fetch" args='{"path": "/users"}'/>
    <tool name="web.fetch" args='{"path": "/users"}'/>
    <tool name="web.fetch" args='{"paht": "/orders"}'/>"""
    for result in await processor.process(
        said, context=context, return_order="submission"
    ):
        how = f"attempts {result.attempts}, cached {result.cached}"
        print(f"  {result.error or list(result.result)} ({how})")


async def an_effect_that_happens_once(processor: ToolProcessor) -> None:
    order = {"key": "order-17", "value": 3}
    for _ in range(2):
        call = ToolCall(name="db.write", arguments=order, idempotency_key="order-17")
        [result] = await processor.execute([call])
        print(f"  {result.result} (written {'before' if result.cached else 'now'})")


async def a_stream_with_a_deadline(processor: ToolProcessor) -> None:
    lines = 0
    try:
        async with asyncio.timeout(0.05):
            async for _ in processor.astream({"tool": "log.tail"}):
                lines += 1
    except TimeoutError:
        print(f"  cut off after {'some' if lines else 'no'} lines")


async def a_plan(processor: ToolProcessor, context: ExecutionContext) -> None:
    must, may = ToolMetadata(est_ms=50, priority=1), ToolMetadata(est_ms=5000)
    rows = {"rows": ResultOf("orders")}
    stored = {"key": "total", "value": ResultOf("sum")}
    calls = [
        ToolCallSpec("orders", "web.fetch", {"path": "/orders"}, must),
        ToolCallSpec("sum", "compute.total", rows, must, depends_on=("orders",)),
        ToolCallSpec("store", "db.write", stored, must, depends_on=("sum",)),
        ToolCallSpec("audit", "web.fetch", {"path": "/audit"}, may),
    ]
    outcome = await processor.execute_plan(
        calls, constraints=SchedulingConstraints(deadline_ms=2000), context=context
    )
    for name, result in outcome.results.items():
        print(f"  {name:<7} {result.error or result.result}")


async def main() -> None:
    sink = MemoryTraceSink()
    async with ToolProcessor(
        make_registry(),
        default_timeout=1.0,
        enable_retries=True,
        retry_base_delay=0.01,
        enable_circuit_breaker=True,
        tool_rate_limits={"web.*": (100, 60)},
        bulkhead_config=BulkheadConfig(
            default_limit=10, patterns={"db.*": 2}, max_queue_depth=20
        ),
        enable_caching=True,
        guards=[GuardChain.create_default()],
        trace=sink,
    ) as processor:
        context = ExecutionContext.with_deadline(5, user_id="ada", tenant_id="acme")
        print("What a call of web.fetch passes:")
        print("  " + " > ".join(processor.describe("web.fetch")["web.fetch"]))
        print("\nCalls of a model: one retried, one shared, one refused")
        await calls_of_a_model(processor, context)
        print("\nAn effect that happens once")
        await an_effect_that_happens_once(processor)
        print("\nA stream with a deadline")
        await a_stream_with_a_deadline(processor)
        print("\nA plan; what is optional and too long is left out")
        await a_plan(processor, context)
        stats = await processor.stats()
        print(
            f"\n{stats.calls} calls, {stats.failures} failed, {stats.cached} from the "
            f"cache, {stats.retries} retries, {len(sink.events)} trace events"
        )


if __name__ == "__main__":
    asyncio.run(main())
