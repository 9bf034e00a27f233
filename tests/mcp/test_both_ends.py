"""Our client and our server, at the two ends of a pipe and of an HTTP connection."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.calls import ToolCall
from executionkit.context import ExecutionContext, get_current_context
from executionkit.mcp import MCPServer
from executionkit.mcp.client import StdioServer, add_mcp_server
from executionkit.mcp.http import HTTPServer
from executionkit.observability import MemoryTraceSink
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import create_registry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

pytest.importorskip("mcp", reason="needs the extra `mcp`")

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 20.0
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SCHEMA = {"type": "object", "properties": {"tenant": {"type": "string"}}}


async def who() -> dict[str, Any]:
    """Tells whose request it is."""
    found = get_current_context()
    assert found is not None
    trace = (found.traceparent or "").split("-")[1]
    late = found.remaining_time is not None
    return {"tenant": found.tenant_id, "trace": trace, "late": late}


async def count(n: int) -> AsyncGenerator[Any]:
    """Count."""
    for number in range(1, n + 1):
        yield {"progress": number, "total": n}


async def fail() -> str:
    """Fails."""
    message = "it broke"
    raise RuntimeError(message)


@pytest.mark.req("mcp.server.context", "mcp.server.structured")
async def test_context_data_and_failures_cross_over_http() -> None:
    there = create_registry(count, fail)
    there.add(who, result_schema=SCHEMA)
    here = create_registry()
    server = MCPServer(tools=there)
    async with asyncio.timeout(SECONDS), server, HTTPServer(server) as http:
        connection = await add_mcp_server(here, http.url, name="far")
        async with connection, ToolProcessor(here) as processor:
            context = ExecutionContext.with_timeout(
                60, tenant_id="t1", traceparent=TRACE
            )
            (result,) = await processor.execute(
                [ToolCall(name="who", namespace="far")],
                context=context,
            )
            assert result.error is None, result.error
            assert result.result == {
                "tenant": "t1",
                "trace": TRACE.split("-")[1],
                "late": True,
            }
            calls = [
                ToolCall("f", "fail", namespace="far"),
                ToolCall("x", "count", {"n": "many"}, namespace="far"),
            ]
            results = await processor.execute(calls, return_order="submission")
            assert "it broke" in (results[0].error or "")
            assert "`n`" in (results[1].error or "")
            there.remove("fail")
            server.check_changes()
            while here.find("fail", "far") is not None:
                await asyncio.sleep(0.01)


@pytest.mark.req("mcp.server.stdio", "SP-09")
async def test_tools_that_print_are_called_over_a_pipe() -> None:
    here = create_registry()
    there = StdioServer(
        sys.executable,
        ("-m", "executionkit.mcp", "--tools", "tests.mcp.stdio_tools"),
        cwd=str(ROOT),
    )
    async with asyncio.timeout(SECONDS):
        connection = await add_mcp_server(here, there, name="near")
        async with connection, ToolProcessor(here) as processor:
            calls = [ToolCall(name="noisy", namespace="near") for _ in range(5)]
            results = await processor.execute(calls)
            assert [one.result for one in results] == ["quiet"] * 5
            (died,) = await processor.execute([ToolCall(name="die", namespace="near")])
            assert died.error is not None


@pytest.mark.req("trace.over-mcp")
async def test_the_call_here_is_the_parent_of_the_call_there() -> None:
    """Also without a context: the trace begins with the call."""
    here_sink, there_sink = MemoryTraceSink(), MemoryTraceSink()
    there = ToolProcessor(create_registry(count), trace=there_sink)
    here = create_registry()
    server = MCPServer(tools=there)
    async with asyncio.timeout(SECONDS), server, HTTPServer(server) as http:
        connection = await add_mcp_server(here, http.url, name="far")
        async with connection, ToolProcessor(here, trace=here_sink) as processor:
            for context in (None, ExecutionContext(traceparent=TRACE)):
                await processor.execute(
                    [ToolCall("1", "count", {"n": 1}, namespace="far")],
                    context=context,
                )
    await there.close()
    ours = [e.payload for e in here_sink.events if e.kind == "tool_call_start"]
    theirs = [e.payload for e in there_sink.events if e.kind == "tool_call_start"]
    assert [f["parent_id"] for f in theirs] == [f["span_id"] for f in ours]
    assert [f["parent_id"] for f in ours] == [None, TRACE.split("-")[2]]


@pytest.mark.req("otel.tree", "trace.over-mcp")
async def test_spans_make_one_tree_over_both_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory: Any = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter"
    )
    exporter = memory.InMemorySpanExporter()
    tracing = sdk.TracerProvider()
    tracing.add_span_processor(export.SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", tracing)
    here = create_registry()
    server = MCPServer(tools=create_registry(count))
    async with asyncio.timeout(SECONDS), server, HTTPServer(server) as http:
        connection = await add_mcp_server(here, http.url, name="far")
        async with connection, ToolProcessor(here) as processor:
            await processor.execute([ToolCall("1", "count", {"n": 1}, namespace="far")])
    spans = exporter.get_finished_spans()
    tracing.shutdown()
    [ours] = [span for span in spans if span.name == "execute_tool far.count"]
    [theirs] = [span for span in spans if span.name == "execute_tool count"]
    assert ours.parent is None
    assert theirs.context.trace_id == ours.context.trace_id
    # The client of the package `mcp` may make a span of its own in between.
    by_id = {span.context.span_id: span for span in spans}
    above, at = [], theirs
    while at.parent is not None:
        at = by_id[at.parent.span_id]
        above.append(at.name)
    assert above[-1] == ours.name
    assert len(above) <= 2, above
