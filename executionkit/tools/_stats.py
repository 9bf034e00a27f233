"""How a processor stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executionkit.backends import CacheStats
from executionkit.engine.breaker import CircuitState
from executionkit.engine.bulkhead import BulkheadStats
from executionkit.engine.rate_bucket import WindowUsage
from executionkit.types import freeze_mapping, sealed

if TYPE_CHECKING:
    from executionkit.tools._core import Core

__all__ = ("ProcessorStats", "ToolStats", "stats_of")


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStats:
    """What became of the calls of one tool."""

    calls: int = 0
    failures: int = 0
    cached: int = 0
    retries: int = 0


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorStats:
    """A snapshot of a processor."""

    calls: int
    """Calls that entered the path."""

    failures: int
    cached: int
    retries: int

    active: int
    """Tools that run right now and wait for something."""

    abandoned: int
    """Tools that did not end when they had to, and run on by themselves."""

    tools: Mapping[str, ToolStats]
    """By full name."""

    refused: int
    """Calls that entered no path: of unknown tools, unreadable ones, and those that
    the context's budget has no room for. Not among `calls`."""

    cache: CacheStats | None
    """The cache's own counts; None when it is off."""

    circuits: Mapping[str, CircuitState] | None
    rate_limits: Mapping[str, WindowUsage] | None
    bulkhead: Mapping[str, BulkheadStats] | None

    state_outages: int = 0
    """How often a shared store of state stopped answering."""

    state_error: str | None = None
    """Why it does not answer right now, without secrets; None when it does."""

    def __post_init__(self) -> None:
        for name in ("tools", "circuits", "rate_limits", "bulkhead"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, freeze_mapping(value))


async def stats_of(core: Core) -> ProcessorStats:
    """How things stand in `core`."""
    tools = {
        name: ToolStats(
            calls=item.calls,
            failures=item.failures,
            cached=item.cached,
            retries=item.retries,
        )
        for name, item in core.counts.items()
    }
    left = getattr(core.strategy, "abandoned", None)
    return ProcessorStats(
        calls=sum(item.calls for item in tools.values()),
        failures=sum(item.failures for item in tools.values()),
        cached=sum(item.cached for item in tools.values()),
        retries=sum(item.retries for item in tools.values()),
        active=len(core.shop.running),
        abandoned=left if isinstance(left, int) else core.shop.abandoned,
        tools=tools,
        refused=core.paths.refused,
        cache=None if core.cache is None else await core.cache.backend.stats(),
        circuits=None if core.breakers is None else core.breakers.get_circuit_states(),
        rate_limits=None if core.rate_limits is None else core.rate_limits.get_usage(),
        bulkhead=core.bulkheads.bulkhead.get_all_stats(),
        state_outages=core.watches.outages,
        state_error=core.watches.reason,
    )
