"""The providers against a second, independent fake of both APIs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from executionkit.anthropic import AnthropicProvider
from executionkit.errors import (
    ProviderConnectionError,
    ProviderError,
    RateLimitError,
    StreamError,
)
from executionkit.provider import Provider, StreamEnd

pytest.importorskip("llmock")

USER = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]


@pytest.fixture(params=["openai", "anthropic"])
def provider(request: pytest.FixtureRequest, llmock: Any) -> Any:
    if request.param == "openai":
        return Provider(llmock.url + "/v1", "gpt-4o", "x")
    return AnthropicProvider(
        "claude-sonnet-4-5", "x", base_url=llmock.url + "/anthropic"
    )


async def read(stream: Any, into: list[Any]) -> None:
    async with asyncio.timeout(10):
        async for item in stream:
            into.append(item)


async def test_text_and_calls_come_back_whole_and_streamed(provider: Any) -> None:
    async with provider:
        whole = await provider.complete(USER)
        events: list[Any] = []
        await read(provider.stream_events(USER), events)
        assert isinstance(events[-1], StreamEnd)
        assert whole.content
        assert events[-1].response.content == whole.content
        asked = await provider.complete(USER, tools=TOOLS)
        await read(provider.stream_events(USER, tools=TOOLS), events)
    (call,) = asked.tool_calls
    assert (call.name, type(call.arguments["a"])) == ("f", int)
    assert events[-1].response.tool_calls[0].arguments == call.arguments


async def test_failures_are_typed(provider: Any, llmock: Any) -> None:
    async with provider:
        llmock.rate_limit(times=1, retry_after=0.3)
        with pytest.raises(RateLimitError) as limited:
            await provider.complete(USER)
        assert limited.value.retry_after == 0.3
        openai = isinstance(provider, Provider)
        llmock.fail(529, times=1, provider="openai" if openai else "anthropic")
        with pytest.raises(ProviderError, match="HTTP 529"):
            await provider.complete(USER)


@pytest.mark.req("HT-09", "ST-13")
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("disconnect", ProviderConnectionError),
        ("truncate", StreamError),
        ("corrupt", StreamError),
    ],
)
async def test_broken_streams_are_told_apart(
    provider: Any, llmock: Any, fault: str, kind: type[ProviderError]
) -> None:
    """HT-09, ST-13: as another server breaks them."""
    getattr(llmock, fault)(after_chunks=2)
    items: list[str] = []
    async with provider:
        with pytest.raises(kind) as caught:
            await read(provider.stream(USER), items)
    assert type(caught.value) is kind
    assert caught.value.partial_text == "".join(items)


@pytest.mark.req("provider.broken-arguments")
async def test_broken_arguments_are_a_problem(llmock: Any) -> None:
    llmock.break_tool_call("malformed_arguments")
    async with Provider(llmock.url + "/v1", "gpt-4o", "x") as provider:
        response = await provider.complete(USER, tools=TOOLS)
    assert response.tool_calls == ()
    assert response.problems[0].name == "f"
