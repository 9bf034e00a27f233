"""What a provider takes from around it: deadline, trace headers, spans."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from executionkit.anthropic import AnthropicProvider
from executionkit.context import ExecutionContext, execution_scope
from executionkit.errors import (
    DeadlineExceededError,
    PermanentError,
    ProviderTimeoutError,
    StreamError,
)
from executionkit.provider import Provider
from executionkit.testing import FakeClock
from executionkit.testing.http import (
    ScriptedServer,
    json_reply,
    no_reply,
    sse_reply,
)

USER = [{"role": "user", "content": "hi"}]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OK = json_reply(
    {
        "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
)


def chunk(content: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"delta": {"content": content}, "finish_reason": finish}
    return {"choices": [choice], **more}


class TestDeadline:
    @pytest.mark.req("provider.deadline")
    async def test_the_nearer_limit_holds(self, fake_clock: FakeClock) -> None:
        async with ScriptedServer(no_reply()) as server:
            provider = Provider(server.url, "m", timeout=10.0)
            for given, seconds, kind in (
                (3.0, 3.0, DeadlineExceededError),
                (99.0, 10.0, ProviderTimeoutError),
            ):
                with execution_scope(ExecutionContext().with_timeout(given)):
                    call = asyncio.create_task(provider.complete(USER))
                await server.received(len(server.requests) + 1)
                await fake_clock.advance(seconds - 0.1)
                assert not call.done()
                await fake_clock.advance(0.2)
                with pytest.raises(kind):
                    async with asyncio.timeout(5):
                        await call
            await provider.aclose()

    @pytest.mark.req("provider.deadline")
    async def test_a_stream_obeys_it_too(self, fake_clock: FakeClock) -> None:
        async with ScriptedServer(
            sse_reply([chunk("a")], done=None, ending="hang")
        ) as server:
            provider = Provider(server.url, "m", timeout=10.0)
            with execution_scope(ExecutionContext().with_timeout(3.0)):
                stream = provider.stream(USER)
                assert await anext(stream) == "a"
                reading = asyncio.create_task(anext_of(stream))
                await asyncio.sleep(0)
                await fake_clock.advance(3.1)
                with pytest.raises(DeadlineExceededError, match="deadline"):
                    async with asyncio.timeout(5):
                        await reading
            await provider.aclose()

    @pytest.mark.req("provider.deadline")
    async def test_without_time_left_nothing_is_sent(
        self, fake_clock: FakeClock
    ) -> None:
        async with ScriptedServer(OK) as server, Provider(server.url, "m") as provider:
            with execution_scope(ExecutionContext().with_timeout(1.0)):
                await fake_clock.advance(1.0)
                with pytest.raises(DeadlineExceededError, match="was not sent"):
                    await provider.complete(USER)
                with pytest.raises(DeadlineExceededError, match="was not sent"):
                    await anext(provider.stream(USER))
            assert server.requests == []
            await provider.complete(USER)


async def anext_of(stream: Any) -> Any:
    return await anext(stream)


@pytest.mark.req("provider.trace-headers")
async def test_requests_carry_the_trace_and_nothing_else_of_the_context() -> None:
    context = ExecutionContext(
        traceparent=TRACE, tracestate="a=b", user_id="u1", tenant_id="t1"
    )
    async with (
        ScriptedServer(OK) as server,
        Provider(server.url, "m") as provider,
        AnthropicProvider("m", base_url=server.url) as other,
    ):
        with execution_scope(context):
            await provider.complete(USER)
            with pytest.raises(Exception, match="content blocks"):
                await other.complete(USER)
        await provider.complete(USER)
        with execution_scope(ExecutionContext(user_id="u1")):
            await provider.complete(USER)
    for request in server.requests[:2]:
        assert request.headers["traceparent"] == TRACE
        assert request.headers["tracestate"] == "a=b"
    for request in server.requests[2:]:
        assert "traceparent" not in request.headers
    for request in server.requests:
        assert "u1" not in "".join(request.headers.values())
        assert "t1" not in "".join(request.headers.values())


class TestSpans:
    @pytest.fixture
    def spans(self) -> Iterator[Any]:
        trace = pytest.importorskip("opentelemetry.sdk.trace")
        export = pytest.importorskip(
            "opentelemetry.sdk.trace.export.in_memory_span_exporter"
        )
        processors = pytest.importorskip("opentelemetry.sdk.trace.export")
        api: Any = pytest.importorskip("opentelemetry.trace")
        exporter = export.InMemorySpanExporter()
        tracing = trace.TracerProvider()
        tracing.add_span_processor(processors.SimpleSpanProcessor(exporter))
        before = api._TRACER_PROVIDER
        api._TRACER_PROVIDER = tracing
        try:
            yield exporter.get_finished_spans
        finally:
            api._TRACER_PROVIDER = before
            tracing.shutdown()

    @pytest.mark.req("provider.spans")
    async def test_a_call_is_one_span_with_its_tokens(self, spans: Any) -> None:
        async with (
            ScriptedServer([OK, json_reply({}, status=400)]) as server,
            Provider(server.url, "m1") as provider,
        ):
            await provider.complete(USER)
            with pytest.raises(PermanentError):
                await provider.complete(USER)
        good, bad = spans()
        assert good.name == "llm.call"
        assert good.attributes["llm.model"] == "m1"
        assert good.attributes["llm.input_tokens"] == 3
        assert good.attributes["llm.output_tokens"] == 2
        assert good.status.is_ok
        assert not bad.status.is_ok
        assert bad.attributes["error.type"] == "PermanentError"

    @pytest.mark.req("OB-02", "OB-03", "provider.spans")
    async def test_a_stream_is_one_span_however_it_ends(self, spans: Any) -> None:
        """OB-03: an error inside of a 200. OB-02: closed from another task."""
        usage = {"prompt_tokens": 3, "completion_tokens": 1}
        frames = [chunk("a", usage=usage), chunk("b")]
        replies = [
            sse_reply([*frames, chunk("", "stop")]),
            sse_reply([*frames, {"error": {"message": "boom"}}]),
            sse_reply(frames, done=None, ending="hang"),
        ]
        async with (
            ScriptedServer(replies) as server,
            Provider(server.url, "m1") as provider,
        ):
            assert [text async for text in provider.stream(USER)] == ["a", "b", ""]
            with pytest.raises(StreamError):
                _ = [text async for text in provider.stream(USER)]
            stream = provider.stream(USER)
            await asyncio.create_task(anext_of(stream))
            await asyncio.create_task(stream.aclose())
        complete, failed, left = spans()
        assert complete.status.is_ok
        assert failed.attributes["error.type"] == "StreamError"
        assert not failed.status.is_ok
        assert left.status.is_ok
        for span in (complete, failed, left):
            assert span.attributes["llm.input_tokens"] == 3
