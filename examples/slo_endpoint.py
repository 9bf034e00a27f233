"""An endpoint that answers within 2 seconds, whatever its service does.

    PYTHONPATH=. python3 examples/slo_endpoint.py

Ten minutes of traffic against a service that is slow at times, fails at times, gets a
burst in minute 4 and is down in minutes 7 and 8: once with nothing but a long timeout,
once with the recipe. Time is simulated, so that it takes a moment.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from executionkit import (
    BreakerConfig,
    BulkheadConfig,
    ExecutionContext,
    ToolProcessor,
    ToolRegistry,
    create_registry,
    tool,
)
from executionkit.testing import FakeClock

Make = Callable[[ToolRegistry], ToolProcessor]

SLO = 2.0
"""Seconds in which 95 of 100 requests have to be answered."""

MINUTES = 10
BURST, DOWN = 4, (7, 8)


@dataclass
class Service:
    """What the tool calls: usually quick, at times slow, broken or gone."""

    clock: FakeClock
    began: float = 0.0
    calls: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    async def answer(self, query: str) -> str:
        self.calls += 1
        luck = self.chance.random()
        if int((self.clock.monotonic() - self.began) // 60) in DOWN:
            await self.clock.sleep(30)
            raise ConnectionError("no answer")
        if luck < 0.04:
            await self.clock.sleep(20)
        elif luck < 0.08:
            await self.clock.sleep(0.05)
            raise ConnectionError("lost")
        await self.clock.sleep(0.1 + 0.3 * self.chance.random())
        return f"pages about {query}"


def make_registry(service: Service) -> ToolRegistry:
    registry = create_registry()

    @tool(name="external_api", registry=registry, side_effects="read")
    async def external_api(query: str) -> str:
        """Searches somewhere else."""
        return await service.answer(query)

    return registry


def bare(registry: ToolRegistry) -> ToolProcessor:
    return ToolProcessor(registry, default_timeout=30)


def recipe(registry: ToolRegistry) -> ToolProcessor:
    return ToolProcessor(
        registry,
        default_timeout=0.9,  # two attempts and the pause between fit into the SLO
        enable_retries=True,
        max_retries=1,
        retry_base_delay=0.1,
        tool_rate_limits={"external_api": (60, 60)},  # what the service allows us
        bulkhead_config=BulkheadConfig(
            default_limit=10,
            tool_limits={"external_api": 5},
            acquisition_timeout=0.5,  # do not wait long for a slot
            max_queue_depth=20,  # nor in a long queue
        ),
        circuit_breaker_config=BreakerConfig(failure_threshold=5, reset_timeout=20),
        enable_caching=True,
        cache_ttl=60,
    )


@dataclass
class Report:
    seconds: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    def percentile(self, share: float) -> float:
        ranked = sorted(self.seconds)
        return ranked[math.ceil(share * len(ranked)) - 1]


def arrivals(chance: random.Random) -> list[float]:
    """Seconds at which requests come: about one a second, and a burst of 40."""
    steady = [chance.uniform(0, 60 * MINUTES) for _ in range(60 * MINUTES)]
    return sorted(steady + [60 * BURST + chance.random() for _ in range(40)])


async def serve(
    processor: ToolProcessor,
    clock: FakeClock,
    report: Report,
    query: str,
    budget: float,
) -> None:
    """One request of the endpoint."""
    began = clock.monotonic()
    context = ExecutionContext.with_deadline(budget)
    call = {"tool": "external_api", "arguments": {"query": query}}
    [result] = await processor.process(call, context=context)
    report.seconds.append(clock.monotonic() - began)
    report.outcomes["cached" if result.cached else result.error_code or "answered"] += 1


async def simulate(name: str, make: Make, budget: float) -> None:
    clock, report, chance = FakeClock(auto=True), Report(), random.Random(1)
    with clock.installed():
        service = Service(clock, clock.monotonic())
        processor = make(make_registry(service))
        async with processor, asyncio.TaskGroup() as group:
            for at in arrivals(chance):
                wait = service.began + at - clock.monotonic()
                if wait > 0:
                    await clock.sleep(wait)
                query = f"topic {chance.randrange(150)}"
                group.create_task(serve(processor, clock, report, query, budget))
    p50, p95, worst = (report.percentile(share) for share in (0.5, 0.95, 1.0))
    kept = "kept" if p95 <= SLO else "MISSED"
    print(f"\n{name}: p95 of {SLO:g} s {kept}")
    print(f"  p50 {p50:.2f} s, p95 {p95:.2f} s, worst {worst:.2f} s")
    print(f"  {len(report.seconds)} requests, {service.calls} calls of the service")
    for outcome, count in report.outcomes.most_common():
        print(f"  {count:>6} {outcome}")


async def main() -> None:
    print(f"{MINUTES} minutes; a burst in minute {BURST}, down in minutes {DOWN}")
    await simulate("A long timeout, nothing else", bare, 60)
    await simulate("The recipe", recipe, SLO)


if __name__ == "__main__":
    asyncio.run(main())
