"""Spans and metrics of OpenTelemetry, with its real SDK."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from executionkit import (
    ExecutionContext,
    LLMResponse,
    Provider,
    ProviderError,
    RateLimitError,
    RetryConfig,
    Step,
    StreamError,
    SubprocessStrategy,
    Tool,
    ToolCall,
    ToolProcessor,
    Workflow,
    consensus,
    execution_scope,
    react_loop,
)
from executionkit.cost import CostTracker
from executionkit.observability import trace_headers
from executionkit.patterns.base import checked_complete, checked_stream
from executionkit.testing import (
    FakeClock,
    ScriptedProvider,
    ScriptedServer,
    json_reply,
    tool_call_reply,
)
from executionkit.tools.registry import create_registry
from tests.tools import isolation_tools

KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
ASK = [{"role": "user", "content": "hello"}]
THERE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Otel:
    """The SDK, keeping all in memory."""

    def __init__(self) -> None:
        sdk = pytest.importorskip("opentelemetry.sdk.trace")
        export = pytest.importorskip("opentelemetry.sdk.trace.export")
        memory: Any = pytest.importorskip(
            "opentelemetry.sdk.trace.export.in_memory_span_exporter"
        )
        metrics = pytest.importorskip("opentelemetry.sdk.metrics")
        readers: Any = pytest.importorskip("opentelemetry.sdk.metrics.export")
        self.exporter = memory.InMemorySpanExporter()
        self.tracing = sdk.TracerProvider()
        self.tracing.add_span_processor(export.SimpleSpanProcessor(self.exporter))
        self.reader = readers.InMemoryMetricReader()
        self.metering = metrics.MeterProvider([self.reader])

    @property
    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())

    def named(self, start: str) -> list[Any]:
        return [span for span in self.spans if span.name.startswith(start)]

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        data = self.reader.get_metrics_data()
        return [
            (dict(point.attributes), point)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def otel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Otel]:
    made = Otel()
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", made.tracing)
    monkeypatch.setattr(
        "opentelemetry.metrics._internal._METER_PROVIDER", made.metering
    )
    monkeypatch.delenv(
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", raising=False
    )
    yield made
    made.tracing.shutdown()
    made.metering.shutdown()


def reply(text: str = "yes", **more: Any) -> LLMResponse:
    usage = {"prompt_tokens": 10, "completion_tokens": 4}
    return LLMResponse(text, usage=usage, model="m-2025", id="r-1", **more)


def chat_reply(text: str = "", **more: Any) -> Any:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    choice = {"message": {"role": "assistant", "content": text, **more}}
    return json_reply(
        {"choices": [{**choice, "finish_reason": "stop"}], "usage": usage}
    )


async def on_loop(n: int) -> int:
    await asyncio.sleep(0)
    return n


def in_thread(n: int) -> int:
    return n


@pytest.mark.req("OB-01", "otel.tree")
class TestTree:
    async def test_tools_on_the_loop_in_threads_and_in_workers(
        self, otel: Otel
    ) -> None:
        """OB-01: ten calls of one turn, wherever they run."""
        threads = ToolProcessor(create_registry(on_loop, in_thread))
        worker = SubprocessStrategy(max_workers=1)
        workers = ToolProcessor(
            create_registry(isolation_tools.traceparent_seen), strategy=worker
        )
        from opentelemetry import trace

        tracer = trace.get_tracer("test")
        try:
            with tracer.start_as_current_span("turn") as turn:
                calls = [
                    ToolCall(str(n), "on_loop" if n % 2 else "in_thread", {"n": n})
                    for n in range(8)
                ]
                await threads.execute(calls)
                seen = await workers.execute(
                    [ToolCall(str(n), "traceparent_seen") for n in (8, 9)]
                )
        finally:
            await workers.close()
            await worker.shutdown()
        parent = turn.get_span_context()
        spans = otel.named("execute_tool ")
        assert len(spans) == 10
        for span in spans:
            assert span.context.trace_id == parent.trace_id
            assert span.parent.span_id == parent.span_id
            assert span.attributes["gen_ai.operation.name"] == "execute_tool"
            assert span.attributes["gen_ai.tool.type"] == "function"
        by_id = {span.attributes["gen_ai.tool.call.id"]: span for span in spans}
        # What a worker does on goes on in the trace, below the call's own span.
        for result in seen:
            context = by_id[str(result.call_id)].context
            assert str(result.result).rpartition("-")[0] == (
                f"00-{context.trace_id:032x}-{context.span_id:016x}"
            )

    async def test_agent_chat_request_and_tool(self, otel: Otel) -> None:
        function = {"name": "on_loop", "arguments": '{"n": 1}'}
        calls = [{"id": "c1", "type": "function", "function": function}]
        async with (
            ScriptedServer(
                [chat_reply(tool_calls=calls), chat_reply("done")]
            ) as server,
            Provider(server.url, "m1") as provider,
        ):
            tool = Tool("on_loop", "", {"type": "object"}, on_loop)
            await react_loop(provider, "?", [tool])
            headers = [request.headers["traceparent"] for request in server.requests]
        [agent] = otel.named("invoke_agent react_loop")
        chats, requests = otel.named("chat m1"), otel.named("llm.call")
        [tool_span] = otel.named("execute_tool on_loop")
        assert agent.parent is None
        for span in (*chats, tool_span):
            assert span.parent.span_id == agent.context.span_id
        for chat, request, header in zip(chats, requests, headers, strict=True):
            assert request.parent.span_id == chat.context.span_id
            assert header.split("-")[2] in {
                f"{chat.context.span_id:016x}",
                f"{request.context.span_id:016x}",
            }
        assert agent.attributes["gen_ai.agent.name"] == "react_loop"
        assert {span.context.trace_id for span in otel.spans} == {
            agent.context.trace_id
        }

    async def test_workflows_steps_and_what_they_ask(self, otel: Otel) -> None:
        async def ask(_context: Any) -> Any:
            return await consensus(
                ScriptedProvider(lambda _: reply()), "?", num_samples=2
            )

        await Workflow([Step("s", ask)]).run()
        [flow], [step] = otel.named("invoke_workflow workflow"), otel.named("workflow")
        [vote] = otel.named("invoke_workflow consensus")
        assert step.parent.span_id == flow.context.span_id
        assert vote.parent.span_id == step.context.span_id
        chats = otel.named("chat")
        assert [chat.parent.span_id for chat in chats] == [vote.context.span_id] * 2

    async def test_the_callers_trace_goes_on(self, otel: Otel) -> None:
        """W3C Trace Context, in and out."""
        with execution_scope(ExecutionContext(traceparent=THERE, tracestate="a=1")):
            await consensus(ScriptedProvider(lambda _: reply()), "?", num_samples=1)
            from opentelemetry import trace

            with trace.get_tracer("t").start_as_current_span("mine") as mine:
                here = trace_headers()
        [vote] = otel.named("invoke_workflow")
        assert f"{vote.context.trace_id:032x}" == THERE.split("-")[1]
        assert f"{vote.parent.span_id:016x}" == THERE.split("-")[2]
        assert here["traceparent"].split("-")[2] == (
            f"{mine.get_span_context().span_id:016x}"
        )

    async def test_events_and_spans_have_the_same_ids(self, otel: Otel) -> None:
        events: list[Any] = []
        processor = ToolProcessor(create_registry(on_loop), trace=events.append)
        await processor.execute([ToolCall("1", "on_loop", {"n": 1})])
        [span] = otel.named("execute_tool")
        assert events[0].payload["span_id"] == f"{span.context.span_id:016x}"


@pytest.mark.req("otel.attributes")
class TestAttributes:
    async def test_a_call_has_those_of_the_conventions(self, otel: Otel) -> None:
        provider = ScriptedProvider([reply()])
        options: dict[str, Any] = {
            "temperature": 0.5,
            "max_tokens": 9,
            "seed": 1,
            "stop": ["x"],
        }
        await checked_complete(
            provider, ASK, CostTracker(), None, None, model="m1", **options
        )
        [span] = otel.named("chat m1")
        assert span.kind.name == "CLIENT"
        assert dict(span.attributes) == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "ScriptedProvider",
            "gen_ai.request.model": "m1",
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.max_tokens": 9,
            "gen_ai.request.seed": 1,
            "gen_ai.request.stop_sequences": ("x",),
            "gen_ai.response.model": "m-2025",
            "gen_ai.response.id": "r-1",
            "gen_ai.response.finish_reasons": ("stop",),
            "gen_ai.usage.input_tokens": 10,
            "gen_ai.usage.output_tokens": 4,
            "executionkit.attempts": 1,
        }
        assert span.status.is_ok

    async def test_retries_and_waits_are_events_of_the_span(
        self, otel: Otel, auto_clock: FakeClock
    ) -> None:
        script: list[Any] = [RateLimitError("429", retry_after=3.0), reply()]
        await checked_complete(ScriptedProvider(script), ASK, CostTracker(), None, None)
        [span] = otel.named("chat")
        assert span.attributes["executionkit.attempts"] == 2
        retry, wait = span.events
        assert (retry.name, retry.attributes["delay"]) == ("retry", 3.0)
        assert (wait.name, dict(wait.attributes)) == (
            "wait",
            {"reason": "retry_after", "duration": 3.0},
        )

    @pytest.mark.req("OB-03", "OB-04")
    async def test_a_failure_is_an_error_without_secrets(self, otel: Otel) -> None:
        provider = ScriptedProvider([ProviderError(f"bad key {KEY}")])
        with pytest.raises(ProviderError):
            await consensus(provider, "?", num_samples=1, retry=RetryConfig(0))
        for span in otel.spans:
            assert span.status.status_code.name == "ERROR"
            assert span.attributes["error.type"] == "ProviderError"
            assert KEY not in span.to_json()
        assert len(otel.spans) == 2

    async def test_a_call_of_no_pattern_is_one_span_with_all(self, otel: Otel) -> None:
        async with (
            ScriptedServer([chat_reply("hi")]) as server,
            Provider(server.url, "m1") as provider,
        ):
            await provider.complete(ASK)
        [span] = otel.spans
        facts = span.attributes
        assert facts["gen_ai.operation.name"] == "chat"
        assert facts["gen_ai.provider.name"] == "openai"
        assert facts["server.address"] == "127.0.0.1"
        assert facts["gen_ai.usage.input_tokens"] == facts["llm.input_tokens"] == 3
        [(dimensions, point)] = otel.points("gen_ai.client.operation.duration")
        assert (dimensions["gen_ai.request.model"], point.count) == ("m1", 1)


@pytest.mark.req("otel.content", "OB-05")
class TestContent:
    async def run(self) -> None:
        tool = Tool("on_loop", "", {"type": "object"}, on_loop)
        arguments = {"n": 1}
        provider = ScriptedProvider(
            [tool_call_reply(("on_loop", arguments)), reply(f"secret is {KEY}")]
        )
        await react_loop(provider, f"my words, {KEY}", [tool])
        processor = ToolProcessor(create_registry(on_loop))
        await processor.execute([ToolCall("1", "on_loop", {"n": 77_077})])

    async def test_it_is_left_out(self, otel: Otel) -> None:
        await self.run()
        text = " ".join(span.to_json() for span in otel.spans)
        assert "my words" not in text
        assert "secret is" not in text
        assert "77077" not in text
        assert KEY not in text

    async def test_it_is_there_when_asked_for_without_secrets(
        self, otel: Otel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY"
        )
        await self.run()
        last = otel.named("chat")[-1].attributes
        asked = json.loads(last["gen_ai.input.messages"])
        assert asked[0]["role"] == "user"
        assert asked[0]["parts"][0]["content"].startswith("my words")
        assert asked[-1]["parts"][0]["type"] == "tool_call_response"
        [said] = json.loads(last["gen_ai.output.messages"])
        assert said["parts"][0]["content"].startswith("secret is")
        tools = otel.named("execute_tool")
        assert json.loads(tools[-1].attributes["gen_ai.tool.call.arguments"]) == {
            "n": 77_077
        }
        assert tools[-1].attributes["gen_ai.tool.call.result"] == "77077"
        assert KEY not in " ".join(span.to_json() for span in otel.spans)


class Speaker:
    """Streams what it is told to."""

    def __init__(self, *pieces: Any) -> None:
        self.pieces = pieces

    async def stream(
        self, _messages: Any, *, usage_sink: Any = None, **_options: Any
    ) -> AsyncIterator[str]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece
        usage_sink.append(reply("".join(map(str, self.pieces))))


@pytest.mark.req("OB-02", "OB-03", "otel.streams")
class TestStreams:
    async def open(self, *pieces: Any) -> Any:
        provider: Any = Speaker(*pieces)
        return await checked_stream(provider, ASK, CostTracker(), None, RetryConfig(0))

    async def test_a_whole_one_has_its_usage(self, otel: Otel) -> None:
        stream = await self.open("a", "b")
        assert [text async for text in stream] == ["a", "b"]
        [span] = otel.spans
        assert span.attributes["gen_ai.usage.output_tokens"] == 4
        assert span.attributes["gen_ai.request.stream"] is True
        assert span.status.is_ok

    async def test_one_that_breaks_is_an_error_with_the_tokens_so_far(
        self, otel: Otel
    ) -> None:
        stream = await self.open("abcdefgh", StreamError("boom"))
        with pytest.raises(StreamError):
            _ = [text async for text in stream]
        [span] = otel.spans
        assert span.attributes["error.type"] == "StreamError"
        assert span.attributes["gen_ai.usage.output_tokens"] == 2
        [(dimensions, _)] = otel.points("gen_ai.client.operation.duration")
        assert dimensions["error.type"] == "StreamError"

    async def test_it_ends_once_wherever_it_is_closed(
        self, otel: Otel, caplog: pytest.LogCaptureFixture
    ) -> None:
        from opentelemetry import trace

        caplog.set_level(logging.DEBUG)
        async with asyncio.timeout(5):
            stream = await self.open("a", "b")
            texts = aiter(stream)
            assert await asyncio.create_task(first(texts)) == "a"
            assert not trace.get_current_span().get_span_context().is_valid
            await asyncio.create_task(stream.aclose())
            await stream.aclose()
            dropped = await self.open("a", "b")
            async for _ in dropped:
                break
            del dropped
            gc.collect()
            await asyncio.sleep(0)
        assert len(otel.spans) == 2
        assert all(span.status.is_ok for span in otel.spans)
        assert "detach" not in caplog.text.lower()

    async def test_one_that_is_refused_ends_too(self, otel: Otel) -> None:
        with pytest.raises(Exception, match="budget"):
            from executionkit import TokenUsage

            provider: Any = Speaker("a")
            await checked_stream(
                provider, ASK, CostTracker(), TokenUsage(llm_calls=-1), None
            )
        [span] = otel.spans
        assert span.attributes["error.type"] == "BudgetExhaustedError"


async def first(texts: Any) -> str:
    return str(await anext(texts))


@pytest.mark.req("otel.metrics")
class TestMetrics:
    async def test_calls_tokens_waits_and_retries(
        self, otel: Otel, auto_clock: FakeClock
    ) -> None:
        script: list[Any] = [RateLimitError("429", retry_after=3.0), reply()]
        await checked_complete(
            ScriptedProvider(script), ASK, CostTracker(), None, None, model="m1"
        )
        base = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "ScriptedProvider",
            "gen_ai.request.model": "m1",
            "gen_ai.response.model": "m-2025",
        }
        [(facts, point)] = otel.points("gen_ai.client.operation.duration")
        assert (facts, point.sum, point.count) == (base, 3.0, 1)
        assert point.explicit_bounds[:3] == (0.01, 0.02, 0.04)
        tokens = {
            facts["gen_ai.token.type"]: point.sum
            for facts, point in otel.points("gen_ai.client.token.usage")
        }
        assert tokens == {"input": 10, "output": 4}
        [(facts, point)] = otel.points("executionkit.wait.duration")
        assert (facts, point.sum) == ({"executionkit.wait.reason": "retry_after"}, 3.0)
        [(facts, point)] = otel.points("executionkit.retries")
        assert (facts["error.type"], point.value) == ("LLM_RATE_LIMITED", 1)
        [(_, point)] = otel.points("executionkit.in_flight")
        assert point.value == 0

    async def test_tools_their_cache_and_their_failures(self, otel: Otel) -> None:
        async def broken(n: int) -> int:
            raise OSError(n)

        processor = ToolProcessor(create_registry(on_loop, broken), enable_caching=True)
        for call in (
            ToolCall("1", "on_loop", {"n": 1}),
            ToolCall("2", "on_loop", {"n": 1}),
            ToolCall("3", "broken", {"n": 1}),
            ToolCall("4", "invented-name", {"n": 1}),
        ):
            await processor.execute([call])
        runs = {
            (f["gen_ai.tool.name"], f.get("error.type")): p.count
            for f, p in otel.points("gen_ai.execute_tool.duration")
        }
        assert runs == {
            ("on_loop", None): 2,
            ("broken", "OSError"): 1,
            # Names that a model invents are no names of metrics: they never end.
            ("_unknown", "TOOL_NOT_FOUND"): 1,
        }
        lookups = {
            (f["gen_ai.tool.name"], f["executionkit.cache.result"]): p.value
            for f, p in otel.points("executionkit.cache.lookups")
        }
        assert lookups == {
            ("on_loop", "miss"): 1,
            ("on_loop", "hit"): 1,
            ("broken", "miss"): 1,
        }

    async def test_runs_of_patterns(self, otel: Otel) -> None:
        await consensus(ScriptedProvider(lambda _: reply()), "?", num_samples=1)
        [(facts, point)] = otel.points("gen_ai.invoke_workflow.duration")
        assert (facts["executionkit.pattern"], point.count) == ("consensus", 1)


class Receiver(BaseHTTPRequestHandler):
    """Takes what an OTLP exporter sends."""

    got: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.got.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: Any) -> None:
        return


@pytest.mark.req("otel.otlp")
async def test_a_real_receiver_gets_the_tree_over_http(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporters = pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    )
    wire = pytest.importorskip(
        "opentelemetry.proto.collector.trace.v1.trace_service_pb2"
    )
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    got: list[tuple[str, bytes]] = []
    handler = type("Handler", (Receiver,), {"got": got})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        provider = sdk.TracerProvider()
        exporter = exporters.OTLPSpanExporter(endpoint=url, timeout=5)
        provider.add_span_processor(export.SimpleSpanProcessor(exporter))
        monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
        await consensus(ScriptedProvider(lambda _: reply()), "?", num_samples=1)
        await asyncio.to_thread(provider.shutdown)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
    spans: dict[str, Any] = {}
    for path, body in got:
        assert path == "/v1/traces"
        message = wire.ExportTraceServiceRequest.FromString(body)
        for resource in message.resource_spans:
            for scope in resource.scope_spans:
                assert scope.scope.name == "executionkit"
                spans.update((span.name, span) for span in scope.spans)
    assert spans.keys() == {"invoke_workflow consensus", "chat"}
    assert spans["chat"].parent_span_id == spans["invoke_workflow consensus"].span_id


@pytest.mark.req("trace.spans-optional")
async def test_without_an_sdk_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from executionkit.observability import _scope, nobody_watches

    assert nobody_watches()
    monkeypatch.setattr(_scope, "new_span_id", None)  # whoever made one would fail
    await consensus(ScriptedProvider(lambda _: reply()), "?", num_samples=1)
    await ToolProcessor(create_registry(on_loop)).execute(
        [ToolCall("1", "on_loop", {"n": 1})]
    )
    assert trace_headers() == {}
