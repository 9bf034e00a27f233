"""Every fault that aimock knows, over both APIs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from executionkit import RetryConfig, Tool, consensus, react_loop
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

TEXT = "This is a text of some length that comes in pieces."
QUICK = RetryConfig(max_retries=4, base_delay=0.001, max_delay=2.0)


def ask(word: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": word}]


async def collect(stream: Any, into: list[str]) -> None:
    async with asyncio.timeout(10):
        async for text in stream:
            into.append(text)


@pytest.fixture
async def provider(aimock: str, make: Callable[..., Any]) -> AsyncIterator[Any]:
    async with make(aimock) as made:
        yield made


FAULTS: list[tuple[str, type[LLMError]]] = [
    ("rate-limited", RateLimitError),
    ("limited", RateLimitError),
    ("overloaded", ProviderError),
    ("server-error", ProviderError),
    ("unavailable", ProviderError),
    ("dropped", ProviderError),
    ("disconnected", ProviderConnectionError),
    ("malformed", BadResponseError),
    ("unauthenticated", PermanentError),
    ("forbidden", PermanentError),
    ("bad-request", PermanentError),
]


@pytest.mark.req("chaos.statuses", "chaos.transport")
class TestFaults:
    @pytest.mark.parametrize(("word", "kind"), FAULTS)
    async def test_of_an_answer(
        self, provider: Any, word: str, kind: type[LLMError]
    ) -> None:
        with pytest.raises(LLMError) as caught:
            await provider.complete(ask(word))
        assert type(caught.value) is kind
        assert caught.value.retryable is (kind is not PermanentError)
        assert "key-1" not in str(caught.value)

    @pytest.mark.parametrize(("word", "kind"), FAULTS)
    async def test_of_a_stream_that_never_began(
        self, provider: Any, word: str, kind: type[LLMError]
    ) -> None:
        with pytest.raises(LLMError) as caught:
            await anext(provider.stream(ask(word)))
        assert type(caught.value) is kind
        assert caught.value.partial_text == ""

    async def test_the_wait_is_known_when_it_is_said(self, provider: Any) -> None:
        with pytest.raises(RateLimitError) as caught:
            await provider.complete(ask("rate-limited"))
        assert caught.value.retry_after == 7.0
        assert caught.value.retry_after_known

    async def test_a_late_answer(self, aimock: str, make: Callable[..., Any]) -> None:
        async with make(aimock, timeout=0.3) as provider:
            with pytest.raises(ProviderTimeoutError, match="`timeout`"):
                await provider.complete(ask("late"))
            with pytest.raises(ProviderTimeoutError, match="`timeout`"):
                await anext(provider.stream(ask("late")))


@pytest.mark.req("chaos.streams")
class TestBrokenStreams:
    @pytest.mark.parametrize("word", ["cut-off", "broken-off"])
    async def test_a_lost_connection_keeps_the_text(
        self, provider: Any, word: str
    ) -> None:
        got: list[str] = []
        with pytest.raises((ProviderConnectionError, StreamError)) as caught:
            await collect(provider.stream(ask(word)), got)
        assert caught.value.partial_text == "".join(got)
        assert TEXT.startswith("".join(got))
        assert "".join(got) != TEXT

    async def test_a_drip_that_takes_too_long(
        self, aimock: str, make: Callable[..., Any]
    ) -> None:
        got: list[str] = []
        async with make(aimock, timeout=1.0) as provider:
            with pytest.raises(ProviderTimeoutError, match="`timeout`") as caught:
                await collect(provider.stream(ask("dripping")), got)
        assert caught.value.partial_text == "".join(got)
        assert TEXT.startswith("".join(got))

    async def test_a_pause_that_is_too_long(
        self, aimock: str, make: Callable[..., Any]
    ) -> None:
        async with make(aimock, idle_timeout=0.15) as provider:
            with pytest.raises(ProviderTimeoutError, match="`idle_timeout`"):
                async for _ in provider.stream(ask("dripping")):
                    pass


@pytest.mark.req("chaos.patterns")
class TestPatterns:
    async def test_a_vote_retries_what_passes(
        self, provider: Any, form: str, transport: str
    ) -> None:
        result = await consensus(
            provider, f"flaky-{form}-{transport}", num_samples=1, retry=QUICK
        )
        assert result.value == TEXT
        assert result.cost.llm_calls == 3

    async def test_a_vote_gives_up_with_what_it_cost(self, provider: Any) -> None:
        few = RetryConfig(max_retries=1, base_delay=0.001)
        with pytest.raises(ProviderConnectionError) as caught:
            await consensus(provider, "disconnected", num_samples=1, retry=few)
        assert caught.value.cost.llm_calls == 2

    async def test_a_tool_loop(self, provider: Any) -> None:
        async def weather(city: str) -> str:
            return f"sunny in {city}"

        schema = {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        }
        tool = Tool("weather", "The weather of a city.", schema, weather)
        result = await react_loop(provider, "weather", [tool], retry=QUICK)
        assert result.value == "It is sunny in Paris."
        assert list(result.metadata["tool_calls_made"]) == ["weather"]
        assert result.cost.llm_calls == 2
