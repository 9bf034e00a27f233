"""Spans of tool calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from executionkit.observability import TOOL_SPAN_NAME, _spans, tool_span
from executionkit.patterns import react_loop
from executionkit.testing import ScriptedProvider, settle, tool_call_reply
from executionkit.types import Tool

OBJECT: dict[str, Any] = {"type": "object"}


class Recorder:
    """OpenTelemetry's SDK, writing to memory."""

    def __init__(self) -> None:
        sdk = pytest.importorskip("opentelemetry.sdk.trace")
        export = pytest.importorskip("opentelemetry.sdk.trace.export")
        memory = pytest.importorskip(
            "opentelemetry.sdk.trace.export.in_memory_span_exporter"
        )
        self.api = pytest.importorskip("opentelemetry.trace")
        self.exporter = memory.InMemorySpanExporter()
        self.provider = sdk.TracerProvider()
        self.provider.add_span_processor(export.SimpleSpanProcessor(self.exporter))

    @property
    def tools(self) -> list[Any]:
        return [
            s
            for s in self.exporter.get_finished_spans()
            if s.name.startswith("execute_tool ")
        ]


@pytest.fixture
def otel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    recorder = Recorder()
    api = SimpleNamespace(
        get_tracer=recorder.provider.get_tracer,
        get_tracer_provider=lambda: recorder.provider,
        ProxyTracerProvider=recorder.api.ProxyTracerProvider,
        StatusCode=recorder.api.StatusCode,
    )
    monkeypatch.setattr(_spans, "_opentelemetry", lambda: api)
    yield recorder
    recorder.provider.shutdown()


@pytest.mark.req("OB-01")
@pytest.mark.parametrize("traced", [True, False])
async def test_ten_parallel_tools_are_ten_spans_of_the_turn(
    otel: Recorder, traced: bool
) -> None:
    """OB-01: async and threaded tools alike."""

    async def on_loop(n: int) -> int:
        await asyncio.sleep(0)
        return n

    tools = [
        Tool("on_loop", "", OBJECT, on_loop),
        Tool("in_thread", "", OBJECT, lambda n: n),
    ]
    names = ("on_loop", "in_thread") * 5
    reply = tool_call_reply(*((name, {"n": n}) for n, name in enumerate(names)))
    tracer = otel.provider.get_tracer("user")
    sink = (lambda _event: None) if traced else None
    with tracer.start_as_current_span("turn") as turn:
        await react_loop(ScriptedProvider([reply, "x"]), "?", tools, trace=sink)
    assert len(otel.tools) == 10
    context = turn.get_span_context()
    [agent] = [
        span
        for span in otel.exporter.get_finished_spans()
        if span.name == "invoke_agent react_loop"
    ]
    assert agent.parent.span_id == context.span_id
    for span in otel.tools:
        assert span.context.trace_id == context.trace_id
        assert span.parent.span_id == agent.context.span_id
        assert span.status.is_ok
    found = {dict(span.attributes)["tool.call_id"] for span in otel.tools}
    assert found == {f"call-{n}" for n in range(1, 11)}
    assert {dict(s.attributes)["tool.name"] for s in otel.tools} == set(names)


@pytest.mark.req("OB-01", "TX-15")
async def test_failures_are_marked(otel: Recorder) -> None:
    """TX-15: the span of a result that is no JSON is marked failed, too."""

    async def broken() -> None:
        msg = "password=hunter2hunter2"
        raise OSError(msg)

    async def odd() -> object:
        return object()

    async def hang() -> None:
        await asyncio.sleep(5)

    tools = [
        Tool("broken", "", OBJECT, broken),
        Tool("odd", "", OBJECT, odd),
        Tool("hang", "", OBJECT, hang, 0.01),
    ]
    reply = tool_call_reply(("broken", {}), ("odd", {}), ("hang", {}), ("none", {}))
    await react_loop(ScriptedProvider([reply, "x"]), "?", tools)
    spans = {dict(span.attributes)["tool.name"]: span for span in otel.tools}
    assert set(spans) == {"broken", "odd", "hang", "none"}
    assert dict(spans["none"].attributes)["error.type"] == "TOOL_NOT_FOUND"
    assert not any(span.status.is_ok for span in spans.values())
    assert dict(spans["broken"].attributes)["error.type"] == "OSError"
    assert "hunter2" not in str(spans["broken"].status.description)
    assert "returned object" in spans["odd"].status.description


@pytest.mark.req("OB-01")
async def test_what_a_tool_does_is_inside_of_its_span(otel: Recorder) -> None:
    """And nothing of it is current for anybody else afterwards."""
    tracer = otel.provider.get_tracer("user")

    async def work() -> None:
        with tracer.start_as_current_span("inside"):
            await settle(2)

    reply = tool_call_reply(("work", {}), ("work", {}))
    tool = Tool("work", "", OBJECT, work)
    with tracer.start_as_current_span("turn") as turn:
        await react_loop(ScriptedProvider([reply, "x"]), "?", [tool])
    inside = [s for s in otel.exporter.get_finished_spans() if s.name == "inside"]
    wanted = {span.context.span_id for span in otel.tools}
    assert {span.parent.span_id for span in inside} == wanted
    assert len(wanted) == 2
    assert {s.context.trace_id for s in inside} == {turn.get_span_context().trace_id}
    assert not otel.api.get_current_span().get_span_context().is_valid


@pytest.mark.req("OB-01")
def test_without_an_sdk_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TOOL_SPAN_NAME == "execute_tool"
    monkeypatch.setattr(_spans, "_opentelemetry", lambda: None)
    with tool_span("t", "c") as span:
        assert span is None

    class Proxy:
        pass

    api = SimpleNamespace(get_tracer_provider=Proxy, ProxyTracerProvider=Proxy)
    monkeypatch.setattr(_spans, "_opentelemetry", lambda: api)
    first = tool_span("t", "c")
    assert first is tool_span("u", "d")
    with first as span:
        assert span is None
