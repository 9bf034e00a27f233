"""Tenants that share a process and nothing else.

    PYTHONPATH=. python3 examples/multi_tenant.py

Each tenant has a registry (its tier's tools) and one processor that lives as long as the
tenant: its own slots, limits, circuits and cache. A processor made for each request
would begin with empty limits each time. The context says who asks, down to the tools.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack

from executionkit import (
    BudgetGuard,
    BulkheadConfig,
    ExecutionContext,
    ToolProcessor,
    ToolRegistry,
    create_registry,
    get_current_context,
    tool,
)

TIERS = {
    "free": {"slots": 2, "queue": 10, "per_minute": 30},
    "premium": {"slots": 20, "queue": 100, "per_minute": 200},
}
TENANTS = {"acme": "premium", "globex": "free", "initech": "free"}


@tool(name="web.search", registry=create_registry(), side_effects="read")
async def search(query: str) -> str:
    """Searches the tenant's own pages."""
    await asyncio.sleep(0.02)
    context = get_current_context()
    tenant = context.tenant_id if context else None
    return f"{tenant}: pages about {query}"


@tool(name="db.report", registry=create_registry(), side_effects="read")
async def report(month: int) -> str:
    """Adds up a month; premium only."""
    await asyncio.sleep(0.02)
    return f"the sum of month {month}"


def registry_of(tier: str) -> ToolRegistry:
    return (
        create_registry(search, report)
        if tier == "premium"
        else create_registry(search)
    )


def processor_of(tier: str) -> ToolProcessor:
    limits = TIERS[tier]
    return ToolProcessor(
        registry_of(tier),
        default_timeout=5,
        global_rate_limit=limits["per_minute"],
        bulkhead_config=BulkheadConfig(
            default_limit=limits["slots"],
            patterns={"db.*": 1},
            global_limit=limits["slots"],
            max_queue_depth=limits["queue"],
        ),
        enable_caching=True,
        guards=[BudgetGuard(max_calls=50)],  # of one request
    )


class Tenants:
    """One processor for each tenant, made when the tenant first comes."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._processors: dict[str, ToolProcessor] = {}

    async def handle(
        self, tenant: str, user: str, calls: list[dict[str, object]]
    ) -> Counter[str]:
        """One request: how its calls ended."""
        processor = self._processors.get(tenant)
        if processor is None:
            processor = self._processors[tenant] = processor_of(TENANTS[tenant])
            await self._stack.enter_async_context(processor)
        context = ExecutionContext.with_deadline(2.0, tenant_id=tenant, user_id=user)
        results = await processor.process(calls, context=context)
        return Counter(
            str(result.error_code or ("cached" if result.cached else result.result))
            for result in results
        )


def show(title: str, ended: Counter[str]) -> None:
    print(f"\n{title}")
    for what, count in ended.most_common(4):
        print(f"  {count:>3} x {what}")


async def main() -> None:
    async with AsyncExitStack() as stack:
        tenants = Tenants(stack)
        cats: dict[str, object] = {"tool": "web.search", "arguments": {"query": "cats"}}
        month: dict[str, object] = {"tool": "db.report", "arguments": {"month": 3}}

        for tenant in ("acme", "globex"):
            ended = await tenants.handle(tenant, "ada", [cats, month])
            show(f"{tenant} ({TENANTS[tenant]}) searches and wants a report", ended)

        flood: list[dict[str, object]] = [
            {"tool": "web.search", "arguments": {"query": f"topic {number}"}}
            for number in range(40)
        ]
        began = time.perf_counter()
        flooding = asyncio.create_task(tenants.handle("globex", "bob", flood))
        await asyncio.sleep(0)
        await tenants.handle("initech", "eve", [cats])
        quick = time.perf_counter() - began
        ended = Counter(
            {code: n for code, n in (await flooding).items() if code.isupper()}
        )
        show(
            "globex sends 40 calls at once: what is above its queue fails at once",
            ended,
        )
        print(f"  initech, asking meanwhile, waited {quick:.2f} s")

        show("acme asks again", await tenants.handle("acme", "ada", [cats]))
        show("another user of acme", await tenants.handle("acme", "eve", [cats]))


if __name__ == "__main__":
    asyncio.run(main())
