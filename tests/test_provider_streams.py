"""Streams over real sockets: how they end, break, stall and are left."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest

from executionkit._llm import (
    LLMResponse,
    StreamEnd,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    UsageUpdate,
)
from executionkit.errors import (
    BadResponseError,
    LLMError,
    PermanentError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    StreamError,
)
from executionkit.provider import Provider
from executionkit.testing import FakeClock
from executionkit.testing.http import (
    Gate,
    Reply,
    ScriptedServer,
    drip,
    json_reply,
    raw_reply,
    reset_reply,
    sse_reply,
)

KEY = "tops3cret-value-17"
USER = [{"role": "user", "content": "hi"}]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
TRANSPORTS = ["aiohttp", "httpx2", "stdlib"]


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name != "stdlib":
        pytest.importorskip(name)
    return name


def chunk(content: str | None = None, finish: str | None = None, **more: Any) -> Any:
    delta = {} if content is None else {"content": content}
    return {"id": "r1", "choices": [{"delta": delta, "finish_reason": finish}], **more}


USAGE_CHUNK = {"choices": [], "usage": USAGE}
HELLO = [chunk(""), chunk("he"), chunk("llo"), chunk(finish="stop"), USAGE_CHUNK]


async def collect(stream: Any, into: list[Any] | None = None) -> list[Any]:
    items: list[Any] = [] if into is None else into
    async with asyncio.timeout(5):
        async for item in stream:
            items.append(item)
    return items


class Reading:
    """A task that reads a stream, and lets the test wait for what it has read."""

    def __init__(self, stream: Any) -> None:
        self.items: list[str] = []
        self._more = asyncio.Event()
        self.task = asyncio.create_task(self._read(stream))

    async def _read(self, stream: Any) -> list[str]:
        async for item in stream:
            self.items.append(item)
            self._more.set()
        return self.items

    async def has(self, text: str) -> None:
        async with asyncio.timeout(5):
            while "".join(self.items) != text:
                self._more.clear()
                await self._more.wait()


class TestEnd:
    async def test_text_comes_in_pieces_and_the_response_at_the_end(
        self, transport: str
    ) -> None:
        sink: list[LLMResponse] = []
        async with (
            ScriptedServer(sse_reply(HELLO)) as server,
            Provider(server.url, "m", KEY, transport=transport) as provider,
        ):
            stream = provider.stream(USER, usage_sink=sink, stop=["x"])
            assert sink == []
            assert await collect(stream) == ["", "he", "llo"]
        (response,) = sink
        assert response.content == "hello"
        assert response.usage == USAGE
        assert response.finish_reason == "stop"
        assert stream.partial_response() is response
        (request,) = server.requests
        assert request.headers["accept"] == "text/event-stream"
        sent = request.json()
        assert sent["stream"] is True
        assert sent["stream_options"] == {"include_usage": True}
        assert sent["stop"] == ["x"]

    async def test_events_are_typed(self) -> None:
        call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
        frames = [
            chunk("a"),
            {"choices": [{"delta": {"tool_calls": [call]}}]},
            chunk(finish="tool_calls"),
            USAGE_CHUNK,
        ]
        sink: list[LLMResponse] = []
        async with (
            ScriptedServer(sse_reply(frames)) as server,
            Provider(server.url, "m") as provider,
        ):
            events: list[StreamEvent] = await collect(
                provider.stream_events(USER, usage_sink=sink)
            )
        assert events == [
            TextDelta("a"),
            ToolCallDelta(0, "c", "f", "{}"),
            UsageUpdate(USAGE),
            StreamEnd(sink[0]),
        ]
        assert sink[0].tool_calls[0].name == "f"

    async def test_options_can_turn_the_usage_off(self) -> None:
        from executionkit.provider import OMIT

        async with (
            ScriptedServer(sse_reply(HELLO)) as server,
            Provider(server.url, "m") as provider,
        ):
            await collect(provider.stream(USER, stream_options=OMIT))
        assert "stream_options" not in server.requests[0].json()

    @pytest.mark.req("ST-13", "D-18")
    async def test_a_clean_end_without_a_mark_is_incomplete(
        self, transport: str
    ) -> None:
        """ST-13: and told from a reset."""
        frames = [chunk("a"), chunk("b"), chunk("c")]
        sink: list[LLMResponse] = []
        async with (
            ScriptedServer(sse_reply(frames, done=None)) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            stream = provider.stream(USER, usage_sink=sink)
            with pytest.raises(StreamError, match="incomplete stream") as caught:
                await collect(stream)
        assert caught.value.partial_text == "abc"
        assert not isinstance(caught.value, ProviderConnectionError)
        assert sink == []
        assert stream.partial_response().content == "abc"
        assert stream.partial_response().finish_reason == "incomplete"

    @pytest.mark.req("ST-14")
    async def test_done_ends_it_though_the_socket_stays_open(
        self, transport: str
    ) -> None:
        """ST-14: nothing after it is waited for, or read."""
        async with (
            ScriptedServer(sse_reply(HELLO, ending="hang")) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            assert "".join(await collect(provider.stream(USER))) == "hello"

    @pytest.mark.req("D-18")
    async def test_text_after_done_is_not_part_of_it(self) -> None:
        """D-18."""
        late = b"data: [DONE]\n\ndata: " + json.dumps(chunk("late")).encode() + b"\n\n"
        async with (
            ScriptedServer(sse_reply([*HELLO, late], done=None)) as server,
            Provider(server.url, "m") as provider,
        ):
            assert "".join(await collect(provider.stream(USER))) == "hello"

    @pytest.mark.req("ST-10", "D-18")
    async def test_a_character_may_be_cut_anywhere(self, transport: str) -> None:
        """ST-10: the same text for every cut. D-18: other line ends are just text."""
        text = "€😀\u2028\u0085\x0b"
        frame = json.dumps(chunk(text), ensure_ascii=False).encode()
        body = b"data: " + frame + b"\r\n\r\ndata: [DONE]\r\n\r\n"
        start = body.index("€".encode())
        replies = [
            Reply(200, {}, [body[:cut], body[cut:]], framing="chunked")
            for cut in range(start - 1, start + 14)
        ]
        async with (
            ScriptedServer(replies) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            for _ in replies:
                assert await collect(provider.stream(USER)) == [text]

    @pytest.mark.req("ST-10")
    async def test_a_character_that_is_really_cut_off_is_an_error(self) -> None:
        """ST-10: never U+FFFD."""
        frame = json.dumps(chunk("€"), ensure_ascii=False).encode()
        cut = b"data: " + frame[: frame.index("€".encode()) + 2]
        async with (
            ScriptedServer(sse_reply([chunk("a"), cut], done=None)) as server,
            Provider(server.url, "m") as provider,
        ):
            with pytest.raises(StreamError, match="UTF-8") as caught:
                await collect(provider.stream(USER))
        assert caught.value.partial_text == "a"

    @pytest.mark.req("D-18")
    async def test_a_plain_answer_to_a_stream_request_is_the_reply(
        self, transport: str
    ) -> None:
        """D-18: whatever the content type says."""
        message = {"message": {"content": "hello"}, "finish_reason": "length"}
        payload = {"choices": [message], "usage": USAGE}
        body = b"\n \n" + json.dumps(payload).encode()
        for kind in ("application/json", "text/event-stream"):
            sink: list[LLMResponse] = []
            reply = Reply(200, {"content-type": kind}, [body[:9], body[9:]])
            async with (
                ScriptedServer(reply) as server,
                Provider(server.url, "m", transport=transport) as provider,
            ):
                assert await collect(provider.stream(USER, usage_sink=sink)) == [
                    "hello"
                ]
            assert sink[0].was_truncated
            assert sink[0].usage == USAGE

    @pytest.mark.req("D-42")
    async def test_many_pieces_are_put_together(self) -> None:
        """D-42: joined once; the bench measures that it is linear."""
        body = b"".join(
            b"data: " + json.dumps(chunk(f"{number} ")).encode() + b"\n\n"
            for number in range(20_000)
        )
        async with (
            ScriptedServer(sse_reply([body])) as server,
            Provider(server.url, "m") as provider,
        ):
            stream = provider.stream(USER)
            texts = await collect(stream)
        assert "".join(texts) == stream.partial_response().content
        assert len(texts) == 20_000


class TestErrors:
    @pytest.mark.req("ST-12", "D-18")
    async def test_an_error_first_is_as_good_as_a_status(self, transport: str) -> None:
        """ST-12: retryable, and nothing was yielded before it."""
        frame = {"error": {"message": "boom", "type": "overloaded_error"}}
        async with (
            ScriptedServer(sse_reply([chunk(""), frame], done=None)) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            stream = provider.stream(USER)
            items: list[str] = []
            with pytest.raises(ProviderError, match="boom") as caught:
                await collect(stream, items)
        assert type(caught.value) is ProviderError
        assert items == []
        assert not stream.started

    @pytest.mark.req("ST-11", "OB-03")
    async def test_an_error_later_has_the_text_until_then(self) -> None:
        """ST-11."""
        frames = [chunk("so "), chunk("far"), {"error": {"message": "boom"}}]
        sink: list[LLMResponse] = []
        async with (
            ScriptedServer(sse_reply(frames)) as server,
            Provider(server.url, "m") as provider,
        ):
            with pytest.raises(StreamError, match="boom") as caught:
                await collect(provider.stream(USER, usage_sink=sink))
        assert caught.value.partial_text == "so far"
        assert sink == []

    @pytest.mark.req("D-18", "D-12")
    @pytest.mark.parametrize(
        ("reply", "kind"),
        [
            (json_reply({"error": "boom"}, status=400), PermanentError),
            (json_reply({"error": "boom"}, status=429), RateLimitError),
            (json_reply({"error": "boom"}, status=503), ProviderError),
            (Reply(302, {"location": "http://h.example/boom"}), PermanentError),
            (json_reply({"error": {"message": "boom"}}), PermanentError),
            (Reply(200, {}, b"<html><title>boom</title></html>"), BadResponseError),
            (Reply(200, {}, b'{"choices": "boom"'), BadResponseError),
            (Reply(200, {}, b""), StreamError),
            (Reply(200, {}, b"boom"), StreamError),
        ],
    )
    async def test_an_answer_that_is_no_stream_is_a_typed_error(
        self, transport: str, reply: Reply, kind: type[LLMError]
    ) -> None:
        """D-18: it never ends normally with no text."""
        async with (
            ScriptedServer(reply) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            with pytest.raises(LLMError) as caught:
                await collect(provider.stream(USER))
        assert type(caught.value) is kind
        assert len(server.requests) == 1

    @pytest.mark.req("HT-09", "D-13")
    @pytest.mark.parametrize("ending", ["cut", "reset"])
    async def test_a_connection_that_dies_has_the_text_until_then(
        self, transport: str, ending: Any
    ) -> None:
        """HT-09: before and after the first delta."""
        gate = Gate()
        for frames, text in (([], ""), ([chunk("so "), chunk("far"), gate], "so far")):
            reply = sse_reply(frames, done=None, ending=ending)
            async with (
                ScriptedServer(reply) as server,
                Provider(server.url, "m", transport=transport) as provider,
            ):
                reading = Reading(provider.stream(USER))
                await reading.has(text)
                gate.open()
                with pytest.raises(
                    ProviderConnectionError, match="Transport failure"
                ) as caught:
                    await reading.task
            assert caught.value.partial_text == text
            assert not isinstance(caught.value, StreamError)

    @pytest.mark.parametrize("reply", [reset_reply(), raw_reply(b"")])
    async def test_a_connection_that_dies_at_once_is_an_error(
        self, transport: str, reply: Reply
    ) -> None:
        async with (
            ScriptedServer(reply) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            with pytest.raises(ProviderConnectionError, match="Transport failure"):
                await collect(provider.stream(USER))

    async def test_a_connection_that_dies_after_the_end_does_no_harm(
        self, transport: str
    ) -> None:
        """The reply is paid for and complete; only its usage may be missing."""
        gate = Gate()
        reply = sse_reply([chunk("a", "stop"), gate], done=None, ending="reset")
        sink: list[LLMResponse] = []
        async with (
            ScriptedServer(reply) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            stream = provider.stream(USER, usage_sink=sink)
            assert await anext(stream) == "a"
            gate.open()
            assert await collect(stream) == []
        assert sink[0].content == "a"
        assert "broke after the end" in sink[0].notes[0]


class TestStalls:
    @pytest.mark.req("ST-16")
    async def test_silence_ends_it_and_names_the_setting(
        self, transport: str, fake_clock: FakeClock
    ) -> None:
        """ST-16: the limit and its setting."""
        gate = Gate()
        async with ScriptedServer(sse_reply([chunk("a"), gate])) as server:
            provider = Provider(server.url, "m", idle_timeout=5.0, transport=transport)
            stream = provider.stream(USER)
            assert await anext(stream) == "a"
            await gate.arrived()
            reading = asyncio.create_task(collect(stream))
            await fake_clock.advance(4.9)
            assert not reading.done()
            await fake_clock.advance(0.2)
            with pytest.raises(ProviderTimeoutError, match="within 5 s") as caught:
                await reading
            await server.disconnected()
            await provider.aclose()
        assert "`idle_timeout` of the provider" in str(caught.value)
        assert caught.value.partial_text == "a"

    @pytest.mark.req("ST-16", "D-16")
    async def test_a_drip_is_no_silence_but_the_total_limit_holds(
        self, transport: str, fake_clock: FakeClock
    ) -> None:
        """ST-16: one byte every half limit."""
        gate = Gate()
        body = b"data: " + json.dumps(chunk("a" * 100)).encode()
        reply = Reply(200, {}, drip(body, gate), framing="chunked")
        async with ScriptedServer(reply) as server:
            provider = Provider(
                server.url, "m", timeout=10.0, idle_timeout=5.0, transport=transport
            )
            reading = asyncio.create_task(collect(provider.stream(USER)))
            for arrived in range(1, 5):
                await gate.arrived(arrived)
                await fake_clock.advance(2.45)
                assert not reading.done()
                gate.release()
            await gate.arrived(5)
            await fake_clock.advance(0.3)
            with pytest.raises(ProviderTimeoutError, match="within 10 s") as caught:
                await reading
            await provider.aclose()
        assert "`timeout` of the provider" in str(caught.value)


class TestLeaving:
    """ST-18: whoever stops reading ends the request."""

    @pytest.fixture
    def hanging(self) -> Reply:
        return sse_reply([chunk("a", usage=USAGE)], done=None, ending="hang")

    @pytest.mark.req("ST-18", "D-17")
    async def test_leaving_the_block_aborts_it(
        self, transport: str, hanging: Reply
    ) -> None:
        sink: list[LLMResponse] = []
        async with (
            ScriptedServer(hanging) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            async with provider.stream(USER, usage_sink=sink) as stream:
                async for text in stream:
                    assert text == "a"
                    break
            await server.disconnected()
            assert sink == []
            part = stream.partial_response()
            assert (part.content, part.usage) == ("a", USAGE)
            assert [item async for item in stream] == []

    @pytest.mark.req("ST-18", "D-17")
    async def test_closing_aborts_it_once_and_again(
        self, transport: str, hanging: Reply
    ) -> None:
        async with (
            ScriptedServer(hanging) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            stream = provider.stream_events(USER)
            assert await anext(stream) == TextDelta("a")
            await stream.aclose()
            await server.disconnected()
            await stream.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    @pytest.mark.req("ST-18", "D-17")
    async def test_dropping_the_last_reference_aborts_it(
        self, transport: str, hanging: Reply
    ) -> None:
        async with (
            ScriptedServer(hanging) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            async for _ in provider.stream(USER):
                break
            gc.collect()
            await server.disconnected()

    @pytest.mark.req("ST-18", "D-17")
    async def test_cancelling_the_reader_aborts_it(
        self, transport: str, hanging: Reply
    ) -> None:
        async with (
            ScriptedServer(hanging) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            stream = provider.stream(USER)
            reading = Reading(stream)
            await reading.has("a")
            reading.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading.task
            await server.disconnected()
            assert stream.partial_response().content == "a"

    @pytest.mark.req("ST-18")
    async def test_a_read_that_timed_out_has_closed_it(
        self, transport: str, hanging: Reply
    ) -> None:
        """ST-18: documented; `wait_for(anext(stream), ...)`."""
        async with (
            ScriptedServer(hanging) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            stream = provider.stream(USER)
            assert await anext(stream) == "a"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.01)
            await server.disconnected()
            assert await collect(stream) == []

    @pytest.mark.req("ST-18")
    async def test_another_task_can_close_it(
        self, transport: str, hanging: Reply
    ) -> None:
        """The waiting reader sees a normal end."""
        async with (
            ScriptedServer(hanging) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            stream = provider.stream(USER)
            reading = Reading(stream)
            await reading.has("a")
            await asyncio.sleep(0)  # the reader waits for the next one
            await stream.aclose()
            async with asyncio.timeout(5):
                assert await reading.task == ["a"]
            await server.disconnected()

    @pytest.mark.req("ST-18")
    async def test_closing_while_it_opens_leaves_nothing(self, transport: str) -> None:
        gate = Gate()
        async with (
            ScriptedServer(sse_reply(HELLO, hold=gate)) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            stream = provider.stream(USER)
            reading = asyncio.create_task(collect(stream))
            await gate.arrived()
            await stream.aclose()
            gate.open()
            assert await reading == []

    async def test_one_that_was_never_read_sends_nothing(self, hanging: Reply) -> None:
        async with (
            ScriptedServer(hanging) as server,
            Provider(server.url, "m") as provider,
        ):
            stream = provider.stream(USER)
            assert stream.partial_response().content == ""
            await stream.aclose()
            del stream
            provider.stream(USER)
            assert server.requests == []

    @pytest.mark.req("D-42")
    async def test_a_slow_reader_slows_the_server_down(self, transport: str) -> None:
        """D-42: nothing is piled up here."""
        frame = b"data: " + json.dumps(chunk("x" * 60_000)).encode() + b"\n\n"
        gate = Gate()
        pieces = [*[frame] * 1000, gate]  # 60 MB
        async with (
            ScriptedServer(sse_reply(pieces)) as server,
            Provider(server.url, "m", transport=transport) as provider,
        ):
            stream = provider.stream(USER)
            await anext(stream)
            with pytest.raises(TimeoutError):
                await gate.arrived(timeout=0.3)
            gate.open()
            async with asyncio.timeout(20):
                texts = [text async for text in stream]
        assert len(texts) == 999

    @pytest.mark.req("OB-02")
    async def test_it_may_be_closed_from_another_context(self, hanging: Reply) -> None:
        """OB-02: entered in one task, closed in another, nothing is logged."""
        async with (
            ScriptedServer(hanging) as server,
            Provider(server.url, "m") as provider,
        ):
            stream = provider.stream(USER)
            await asyncio.create_task(collect_one(stream))
            await asyncio.create_task(stream.aclose())
            await server.disconnected()


async def collect_one(stream: Any) -> None:
    await anext(stream)


def logged_at_the_end(transport: str, *, events: bool) -> list[str]:
    """What is logged when a loop ends with a stream that was left and never closed."""
    logged: list[str] = []
    kept: list[Any] = []

    async def leave() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, facts: logged.append(str(facts)))
        chunks = [{"choices": [{"delta": {"content": str(n)}}]} for n in range(50)]
        async with ScriptedServer(sse_reply(chunks)) as server:
            provider = Provider(server.url, "m", transport=transport)
            open_it: Any = provider.stream_events if events else provider.stream
            stream = open_it([{"role": "user", "content": "q"}])
            async for _ in stream:
                break
            kept.append(stream)

    asyncio.run(leave())
    kept.clear()
    gc.collect()
    return logged


@pytest.mark.req("stream.left-open")
@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("transport", ["stdlib", "aiohttp", "httpx2", "httpx"])
def test_a_stream_that_is_left_open_ends_with_the_loop_quietly(
    transport: str, events: bool
) -> None:
    if transport != "stdlib":
        pytest.importorskip(transport)
    assert logged_at_the_end(transport, events=events) == []
