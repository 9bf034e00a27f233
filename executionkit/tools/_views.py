"""What one can see of a processor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from executionkit.tools._stats import ProcessorStats, stats_of
from executionkit.tools.decorators import get_default_registry
from executionkit.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from executionkit.engine.bulkhead import Bulkhead, BulkheadConfig
    from executionkit.engine.retry import RetryConfig
    from executionkit.tools._core import Core
    from executionkit.tools._options import ProcessorOptions
    from executionkit.tools.strategies import ExecutionStrategy

__all__ = ("ProcessorViews",)


class ProcessorViews(ABC):
    """The looking half of `ToolProcessor`.

    Args:
        registry: The tools; None = the default registry.
        options: Which layers there are.

    Raises:
        TypeError: When `registry` is none.
    """

    def __init__(
        self, registry: ToolRegistry | None, options: ProcessorOptions
    ) -> None:
        given: object = registry
        if given is not None and not isinstance(given, ToolRegistry):
            msg = (
                f"`registry` must be a ToolRegistry, got {type(given).__name__}; "
                "`create_registry(...)` makes one of tools"
            )
            raise TypeError(msg)
        self._registry = registry
        self.options: ProcessorOptions = options
        """What the constructor's settings came to; None = that layer is off."""

    @abstractmethod
    def _ready(self) -> Core:
        """The machine, made when it is first needed."""

    @property
    def registry(self) -> ToolRegistry:
        """The tools."""
        if self._registry is None:
            self._registry = get_default_registry()
        return self._registry

    @property
    def default_timeout(self) -> float | None:
        """Seconds that one attempt may run; None = no limit."""
        return self.options.timeout

    @property
    def max_concurrency(self) -> int | None:
        """Calls at once; None = no limit."""
        return self.options.max_concurrency

    @property
    def enable_caching(self) -> bool:
        """Whether results are kept."""
        return self.options.cache is not None

    @property
    def cache_ttl(self) -> float | None:
        """Seconds that results live; None = no end, or no cache."""
        return None if self.options.cache is None else self.options.cache.ttl

    @property
    def enable_rate_limiting(self) -> bool:
        """Whether starts are limited."""
        return self.options.rate_limit is not None

    @property
    def global_rate_limit(self) -> int | None:
        """Starts of all tools together per minute; None = no limit."""
        limits = self.options.rate_limit
        return None if limits is None else limits.global_limit

    @property
    def tool_rate_limits(self) -> Mapping[str, tuple[int, float]]:
        """(starts, seconds) by name."""
        limits = self.options.rate_limit
        return {} if limits is None else limits.tool_limits

    @property
    def enable_retries(self) -> bool:
        """Whether failed calls are tried again."""
        return self.options.retry is not None

    @property
    def retry_config(self) -> RetryConfig | None:
        """How they are; None = not at all."""
        return self.options.retry

    @property
    def max_retries(self) -> int:
        """Attempts after the first."""
        return 0 if self.options.retry is None else self.options.retry.max_retries

    @property
    def enable_circuit_breaker(self) -> bool:
        """Whether there are circuit breakers."""
        return self.options.breaker is not None

    @property
    def bulkhead_config(self) -> BulkheadConfig | None:
        """The limits of calls at once; None = there is no bulkhead."""
        return self.options.bulkhead

    @property
    def enable_bulkhead(self) -> bool:
        """Whether there is a bulkhead."""
        return self.options.bulkhead is not None

    @property
    def strategy(self) -> ExecutionStrategy:
        """What runs tools."""
        return self._ready().strategy

    @property
    def bulkhead(self) -> Bulkhead | None:
        """The bulkhead; None when it is off."""
        if self.options.bulkhead is None:
            return None
        return self._ready().bulkheads.bulkhead

    @property
    def executor(self) -> Self:
        """The object that has `execute`: the processor itself."""
        return self

    async def list_tools(self) -> list[str]:
        """The bare names of all tools, of all namespaces."""
        return [record.name for record in self.registry.records()]

    async def get_tool_count(self) -> int:
        """How many tools there are."""
        return len(await self.list_tools())

    async def stats(self) -> ProcessorStats:
        """What has happened and how things stand."""
        return await stats_of(self._ready())

    def describe(self, tool: str | None = None) -> dict[str, tuple[str, ...]]:
        """The layers around each tool, outermost first, by full name.

        Args:
            tool: One tool's name. None = all tools.
        """
        core = self._ready()
        if tool is not None:
            path = core.paths.find(tool, "default")
            return {path.record.full_name: path.layers}
        records = self.registry.records()
        return {item.full_name: core.build(item).layers for item in records}
