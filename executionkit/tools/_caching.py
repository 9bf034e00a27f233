"""The executor that answers calls from the results of equal calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from executionkit.calls import ToolCall, ToolResult, make_result
from executionkit.errors import ToolProcessorError
from executionkit.tools._record import Kind
from executionkit.tools._settle import failed_result
from executionkit.tools._wrapping import KnownTool, ToolWrapper, failure_of
from executionkit.tools.middleware.cache import CacheLayer, CacheOptions

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.backends import CacheInterface
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("CachingToolExecutor",)


class CachingToolExecutor(ToolWrapper):
    """Answers a call from the results of equal calls; equal calls in flight run once.

    Cached are the successes of every tool, but not of those whose metadata says that
    they write, stream, or must not be cached.

    Args:
        executor: The executor inside.
        cache: Where results are kept, e.g. `InMemoryCache()`.
        default_ttl: Seconds that a result lives. None = as the cache itself does it.
        tool_ttls: Seconds for single tools, by full name or bare name.
        cacheable_tools: Only these tools, by full name or bare name, and these for
            certain, unless they stream or say `cacheable=False`. None = as said above.
        clock: None = the clock of the current context.

    Raises:
        TypeError: When `cache` lacks methods of a `CacheInterface`.
        ValueError: For a time that is not above 0.
    """

    def __init__(
        self,
        executor: object,
        cache: CacheInterface,
        *,
        default_ttl: float | None = None,
        tool_ttls: Mapping[str, float | None] | None = None,
        cacheable_tools: Collection[str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(executor, clock=clock)
        options = CacheOptions(
            ttl=default_ttl, tool_ttls=tool_ttls or {}, backend=cache
        )
        self.cache: CacheInterface = cache
        # Keys of idempotency are the matter of whoever runs the tool.
        self._layer = CacheLayer(options, idempotency=None, clock=self._clock)
        self._chosen: frozenset[str] | None = None
        if cacheable_tools is not None:
            self._chosen = frozenset(cacheable_tools)

    async def invalidate(
        self, tool: str, arguments: Mapping[str, Any] | None = None
    ) -> int:
        """Forget the results of a tool, or of its calls with just these arguments.

        Returns:
            How many results were forgotten.
        """
        return await self._layer.invalidate(tool, arguments)

    def _tool(self, call: ToolCall) -> Any:
        record = super()._tool(call)
        if self._chosen is None or record.tool.cacheable is not None:
            return record
        return _Chosen(record, is_chosen=not self._chosen.isdisjoint(record.names))

    async def _handle(self, request: ToolRequest) -> ToolResult:
        results: list[ToolResult] = []

        async def send(request: ToolRequest) -> Any:
            result = await self._send(request)
            results.append(result)
            failure = failure_of(result)
            if failure is not None:
                raise failure
            return result if result.is_partial else result.result

        try:
            value = await self._layer(request, send)
        except Exception as exc:
            if results:
                return results[-1]
            if isinstance(exc, ToolProcessorError):
                return failed_result(request.call, exc, attempts=0)
            raise
        warnings = tuple(request.warnings or ())
        if results:
            own = results[-1]
            return (
                replace(own, warnings=(*own.warnings, *warnings)) if warnings else own
            )
        if isinstance(value, ToolResult):
            return replace(value, call_id=request.call.id, cached=True)
        return make_result(
            request.call,
            value,
            self._clock.wall(),
            attempts=0,
            cached=True,
            machine="cache",
            warnings=warnings,
        )


class _Chosen(KnownTool):
    """A tool of which the user said whether it is cached."""

    __slots__ = ()

    def __init__(self, record: Any, *, is_chosen: bool) -> None:
        super().__init__(record.name, record.namespace)
        self.kind: Kind = record.kind
        self.source: object = record.source
        self.tool = replace(record.tool, cacheable=is_chosen)
