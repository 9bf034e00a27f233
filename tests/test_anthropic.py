"""`AnthropicProvider` over real sockets."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from executionkit._llm import (
    LLMProvider,
    LLMResponse,
    StreamEnd,
    StreamingProvider,
    TextDelta,
    ToolCallingProvider,
    usage_of,
)
from executionkit.anthropic import AnthropicProvider
from executionkit.errors import (
    LLMError,
    PermanentError,
    ProviderError,
    RateLimitError,
    StreamError,
)
from executionkit.testing.http import ScriptedServer, json_reply, sse_reply

KEY = "tops3cret-value-17"
USER = [{"role": "user", "content": "hi"}]
USAGE = {"input_tokens": 4, "cache_read_input_tokens": 2455, "output_tokens": 23}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "model": "claude-x",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "usage": USAGE,
}
EVENTS: list[tuple[str, Any]] = [
    (
        "message_start",
        {
            "type": "message_start",
            "message": {**MESSAGE, "usage": {**USAGE, "output_tokens": 1}},
        },
    ),
    (
        "content_block_start",
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
    ),
    ("ping", {"type": "ping"}),
    *(
        (
            "content_block_delta",
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": text},
            },
        )
        for text in ("he", "llo")
    ),
    ("content_block_stop", {"type": "content_block_stop", "index": 0}),
    (
        "message_delta",
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 23},
        },
    ),
    ("message_stop", {"type": "message_stop"}),
]
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "out", "schema": {"type": "object", "properties": {}}},
}


def provider_for(
    server: ScriptedServer, path: str = "", **settings: Any
) -> AnthropicProvider:
    return AnthropicProvider("claude-x", KEY, base_url=server.url + path, **settings)


class TestValue:
    def test_it_is_a_provider_of_every_kind(self) -> None:
        provider = AnthropicProvider("claude-x")
        assert isinstance(provider, LLMProvider)
        assert isinstance(provider, ToolCallingProvider)
        assert isinstance(provider, StreamingProvider)
        assert provider.supports_tools is True
        assert provider.base_url == "https://api.anthropic.com"
        assert provider.default_temperature is None
        assert provider.default_max_tokens == 4096

    @pytest.mark.req("OB-04")
    def test_it_is_a_value_that_hides_its_key(self) -> None:
        provider = AnthropicProvider("claude-x", f" {KEY}\n")
        assert repr(provider) == (
            "AnthropicProvider(model='claude-x', api_key='***', "
            "base_url='https://api.anthropic.com')"
        )
        assert provider == pickle.loads(pickle.dumps(provider))
        assert hash(provider) == hash(AnthropicProvider("claude-x", KEY))
        with pytest.raises(ValueError, match="header `x-api-key`") as caught:
            AnthropicProvider("claude-x", f"{KEY}\nx")
        assert KEY not in str(caught.value)


class TestRequest:
    @pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
    async def test_it_posts_to_the_messages_api(self, path: str) -> None:
        async with (
            ScriptedServer(json_reply(MESSAGE)) as server,
            provider_for(server, path, headers={"anthropic-beta": "b"}) as provider,
        ):
            response = await provider.complete(
                [{"role": "system", "content": "be brief"}, *USER], top_k=3
            )
        assert response.content == "hello"
        (request,) = server.requests
        assert request.path == "/v1/messages"
        assert request.headers["x-api-key"] == KEY
        assert request.headers["anthropic-version"] == "2023-06-01"
        assert request.headers["anthropic-beta"] == "b"
        assert "authorization" not in request.headers
        assert request.json() == {
            "model": "claude-x",
            "system": "be brief",
            "messages": USER,
            "max_tokens": 4096,
            "top_k": 3,
        }

    async def test_a_gateways_path_and_query_are_kept(self) -> None:
        async with (
            ScriptedServer(json_reply(MESSAGE)) as server,
            provider_for(server, "/gw/anthropic?team=a") as provider,
        ):
            await provider.complete(USER)
        assert server.requests[0].path == "/gw/anthropic/v1/messages?team=a"

    @pytest.mark.req("anthropic.response-format")
    async def test_a_json_answer_is_forced_and_comes_back_as_text(self) -> None:
        used = {"type": "tool_use", "id": "t", "name": "out", "input": {"n": 1}}
        reply = json_reply({**MESSAGE, "content": [used], "stop_reason": "tool_use"})
        async with ScriptedServer(reply) as server, provider_for(server) as provider:
            response = await provider.complete(USER, response_format=FORMAT)
            streamed = [
                text async for text in provider.stream(USER, response_format=FORMAT)
            ]
        assert json.loads(response.content) == {"n": 1}
        assert json.loads("".join(streamed)) == {"n": 1}
        assert server.requests[0].json()["tool_choice"] == {
            "type": "tool",
            "name": "out",
        }


class TestStream:
    @pytest.mark.req("RS-04")
    async def test_a_stream_says_the_same_as_a_whole_answer(self) -> None:
        """RS-04: text, usage and reason."""
        sink: list[LLMResponse] = []
        replies = [sse_reply(EVENTS, done=None, ending="hang"), json_reply(MESSAGE)]
        async with ScriptedServer(replies) as server, provider_for(server) as provider:
            texts = [text async for text in provider.stream(USER, usage_sink=sink)]
            whole = await provider.complete(USER)
        assert texts == ["he", "llo"]
        (streamed,) = sink
        assert usage_of(streamed) == usage_of(whole)
        assert usage_of(streamed).input_tokens == 2459
        assert streamed.content == whole.content
        assert streamed.finish_reason == whole.finish_reason
        assert streamed.parts == whole.parts
        assert server.requests[0].json()["stream"] is True
        assert "stream_options" not in server.requests[0].json()

    async def test_events_are_typed(self) -> None:
        async with (
            ScriptedServer(sse_reply(EVENTS, done=None)) as server,
            provider_for(server) as provider,
        ):
            events = [event async for event in provider.stream_events(USER)]
        assert TextDelta("he") in events
        assert isinstance(events[-1], StreamEnd)

    @pytest.mark.req("ST-13")
    async def test_an_end_without_a_mark_is_incomplete(self) -> None:
        """ST-13: no `message_stop`."""
        async with (
            ScriptedServer(sse_reply(EVENTS[:5], done=None)) as server,
            provider_for(server) as provider,
        ):
            with pytest.raises(StreamError, match="incomplete stream") as caught:
                _ = [text async for text in provider.stream(USER)]
        assert caught.value.partial_text == "hello"

    @pytest.mark.req("ST-11", "ST-12")
    async def test_an_error_event_is_an_error(self) -> None:
        failing = {
            "type": "error",
            "error": {"type": "overloaded_error", "message": "boom"},
        }
        for before, kind in ((EVENTS[:3], ProviderError), (EVENTS[:4], StreamError)):
            reply = sse_reply([*before, ("error", failing)], done=None)
            async with (
                ScriptedServer(reply) as server,
                provider_for(server) as provider,
            ):
                with pytest.raises(ProviderError, match="boom") as caught:
                    _ = [text async for text in provider.stream(USER)]
            assert type(caught.value) is kind


@pytest.mark.req("D-12")
@pytest.mark.parametrize(
    ("status", "error_type", "kind"),
    [
        (529, "overloaded_error", ProviderError),
        (500, "api_error", ProviderError),
        (429, "rate_limit_error", RateLimitError),
        (400, "invalid_request_error", PermanentError),
        (401, "authentication_error", PermanentError),
        (413, "request_too_large", PermanentError),
    ],
)
async def test_statuses_are_typed_errors(
    status: int, error_type: str, kind: type[LLMError]
) -> None:
    body = {"type": "error", "error": {"type": error_type, "message": f"boom {KEY}"}}
    reply = json_reply(
        body, status=status, headers={"retry-after": "3", "request-id": "r"}
    )
    async with ScriptedServer(reply) as server, provider_for(server) as provider:
        with pytest.raises(kind, match="boom") as caught:
            await provider.complete(USER)
    error = caught.value
    assert type(error) is kind
    assert KEY not in str(error)
    assert error.metadata["type"] == error_type
    assert error.metadata["request_id"] == "r"
    if kind is not PermanentError:
        assert error.retry_after == 3
