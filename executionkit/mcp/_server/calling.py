"""The tools of a registry, as an MCP server lists and runs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from executionkit._redact import redact
from executionkit.calls import ToolCall, ToolResult, render_result
from executionkit.context import ContextHeader, ExecutionContext
from executionkit.errors import ToolProcessorError
from executionkit.mcp._constants import INVALID_PARAMS
from executionkit.mcp._server.content import call_result, has_structure
from executionkit.mcp._server.exchange import InputRequiredError
from executionkit.mcp._server.messages import ProtocolError
from executionkit.tools.export import to_mcp
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import Kind, ToolRegistry, create_registry

if TYPE_CHECKING:
    from executionkit.mcp._server.exchange import Exchange
    from executionkit.tools.registry import ToolRecord

__all__ = ("ToolSource", "context_of")

_STREAMS: Final = (Kind.ASYNC_STREAM, Kind.SYNC_STREAM)
_MAX_MESSAGE_CHARS: Final = 2000
_PREFIX: Final = "executionkit/"
_HEADERS: Final = frozenset(header.value.lower() for header in ContextHeader)


def context_of(
    meta: object, headers: Mapping[str, str] | None
) -> ExecutionContext | None:
    """The context that came with a request, in `_meta` or in HTTP headers.

    Args:
        meta: The request's `_meta`; its entries win. Their names are those of the
            headers, with `executionkit/` before them or not.
        headers: The HTTP headers, names in lower case.
    """
    found = {key: value for key, value in (headers or {}).items() if key in _HEADERS}
    if isinstance(meta, Mapping):
        for key, value in meta.items():
            name = str(key).removeprefix(_PREFIX).lower()
            if name in _HEADERS and isinstance(value, (str, int, float)):
                found[name] = str(value)
    return ExecutionContext.from_headers(found) if found else None


class ToolSource:
    """Lists and runs tools.

    Args:
        tools: A registry, a processor around one, or tools as a registry takes them.
    """

    def __init__(self, tools: ToolRegistry | ToolProcessor | Iterable[object]) -> None:
        self.processor: ToolProcessor
        if isinstance(tools, ToolProcessor):
            self.processor = tools
        elif isinstance(tools, ToolRegistry):
            self.processor = ToolProcessor(tools)
        else:
            self.processor = ToolProcessor(create_registry(*tools))
        self._own = not isinstance(tools, ToolProcessor)
        self._lists: dict[str, tuple[int, list[dict[str, Any]]]] = {}

    @property
    def version(self) -> int:
        """Grows when the tools change."""
        return self.processor.registry.version

    async def close(self) -> None:
        """Stop what runs, unless the processor is somebody else's."""
        if self._own:
            await self.processor.close()

    def listed(self, version: str) -> list[dict[str, Any]]:
        """The tools, with what that version of the protocol knows of them."""
        registry = self.processor.registry
        known = self._lists.get(version)
        if known is None or known[0] != registry.version:
            seen = registry.version
            known = (seen, [_entry(item, version) for item in registry.listed()])
            self._lists[version] = known
        return known[1]

    def find(self, name: str) -> ToolRecord:
        """The tool that the client means.

        Raises:
            ProtocolError: When there is none.
        """
        try:
            return self.processor.registry.resolve(name)
        except ToolProcessorError as exc:
            msg = f"Unknown tool: {redact(name)[:200]}"
            raise ProtocolError(INVALID_PARAMS, msg) from exc

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        exchange: Exchange,
        context: ExecutionContext | None,
    ) -> dict[str, Any]:
        """Run a tool; the result of `tools/call`.

        Raises:
            ProtocolError: When there is no such tool, or the tool says so.
            InputRequiredError: When the client has to be asked first.
        """
        record = self.find(name)
        call = ToolCall(
            name=record.name, arguments=arguments, namespace=record.namespace
        )
        streams = record.kind in _STREAMS or record.stream is not None
        if exchange.token is not None and streams:
            result = await self._stream(call, exchange, context)
        else:
            result = (await self.processor.execute([call], context=context))[0]
        if isinstance(result.exception, (ProtocolError, InputRequiredError)):
            raise result.exception
        if exchange.failure is not None and not result.is_success:
            raise exchange.failure
        data = record.metadata
        schema = None if data is None else data.result_schema
        return call_result(result, schema, exchange.peer.version)

    async def _stream(
        self, call: ToolCall, exchange: Exchange, context: ExecutionContext | None
    ) -> ToolResult:
        """Run a streaming tool; each of its items is progress."""
        count = 0
        result: ToolResult | None = None
        stream = self.processor.astream([call], context=context)
        try:
            async for result in stream:
                if result.is_partial:
                    count += 1
                    _tell(exchange, result.result, count)
                    await exchange.drain()
        finally:
            await stream.aclose()
        assert result is not None  # noqa: S101 - every call has a result
        return result


def _tell(exchange: Exchange, item: Any, count: int) -> None:
    if isinstance(item, Mapping):
        done, total = item.get("progress"), item.get("total")
        if _is_number(done):
            words = item.get("message")
            exchange.progress(
                done,
                total if _is_number(total) else None,
                words if isinstance(words, str) else None,
            )
            return
    try:
        words = redact(render_result(item))[:_MAX_MESSAGE_CHARS]
    except TypeError:
        words = type(item).__name__
    exchange.progress(count, None, words)


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)


def _entry(record: ToolRecord, version: str) -> dict[str, Any]:
    entry = to_mcp(record)
    data = record.metadata
    schema = None if data is None else data.result_schema
    if not has_structure(schema, version):
        entry.pop("outputSchema", None)
    if version < "2025-06-18":
        entry.pop("title", None)
    if version < "2025-03-26":
        entry.pop("annotations", None)
    return entry
