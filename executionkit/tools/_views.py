"""What one can see of a processor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from executionkit.tools._stats import ProcessorStats, stats_of
from executionkit.tools.decorators import get_default_registry
from executionkit.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from executionkit.engine.bulkhead import Bulkhead
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
