"""Every fault that llmock knows, over both APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from executionkit import RetryConfig, Tool, consensus, map_reduce, react_loop
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

USER = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
# A server that asks for a longer wait than `max_delay` is not asked again at all.
QUICK = RetryConfig(max_retries=5, base_delay=0.001, max_delay=2.0)
SOON = 0.02

Mocked = tuple[Any, Any]


async def collect(stream: Any, into: list[str]) -> None:
    async with asyncio.timeout(10):
        async for text in stream:
            into.append(text)


def weather_tool(calls: list[str]) -> Tool:
    async def weather(city: str) -> str:
        calls.append(city)
        return f"sunny in {city}"

    return Tool("weather", "The weather of a city.", SCHEMA, weather)


@pytest.mark.req("chaos.statuses")
class TestStatuses:
    @pytest.mark.parametrize("seconds", [0.25, 2.5, 7.0])
    async def test_429_says_when_to_come_back(
        self, mocked: Mocked, seconds: float
    ) -> None:
        provider, llmock = mocked
        llmock.rate_limit(times=1, retry_after=seconds)
        with pytest.raises(RateLimitError) as caught:
            await provider.complete(USER)
        assert caught.value.retry_after == seconds
        assert caught.value.retry_after_known

    async def test_a_real_quota_says_the_real_wait(self, mocked: Mocked) -> None:
        provider, llmock = mocked
        llmock.limits(rpm=2)
        await provider.complete(USER)
        await provider.complete(USER)
        with pytest.raises(RateLimitError) as caught:
            await provider.complete(USER)
        assert 0 < (caught.value.retry_after or 0) <= 60

    @pytest.mark.parametrize("status", [408, 409, 500, 502, 503, 504, 529])
    async def test_what_passes_may_be_retried(
        self, mocked: Mocked, status: int
    ) -> None:
        provider, llmock = mocked
        llmock.fail(status)
        with pytest.raises(ProviderError, match=str(status)) as caught:
            await provider.complete(USER)
        assert caught.value.retryable
        assert (await provider.complete(USER)).content

    @pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
    async def test_what_does_not_pass_may_not(
        self, mocked: Mocked, status: int
    ) -> None:
        provider, llmock = mocked
        llmock.fail(status)
        with pytest.raises(PermanentError, match=str(status)) as caught:
            await provider.complete(USER)
        assert not caught.value.retryable

    async def test_a_prompt_that_is_too_long_is_permanent(self, mocked: Mocked) -> None:
        provider, llmock = mocked
        llmock.context_overflow()
        with pytest.raises(PermanentError, match="context length"):
            await provider.complete(USER)

    async def test_a_stream_fails_like_a_plain_call(self, mocked: Mocked) -> None:
        provider, llmock = mocked
        for status, kind in ((429, RateLimitError), (503, ProviderError)):
            llmock.fail(status, retry_after=2.0)
            with pytest.raises(kind) as caught:
                await anext(provider.stream(USER))
            assert caught.value.retry_after == 2.0
            assert caught.value.partial_text == ""


@pytest.mark.req("chaos.transport")
class TestTime:
    async def test_an_answer_that_is_late(
        self, mocked: Mocked, make: Callable[..., Any], form: str
    ) -> None:
        _, llmock = mocked
        root = llmock.url if form == "openai" else f"{llmock.url}/anthropic"
        llmock.delay(5)
        async with make(root, timeout=0.3) as provider:
            with pytest.raises(ProviderTimeoutError, match="`timeout`"):
                await provider.complete(USER)

    async def test_a_stream_that_stalls(
        self, mocked: Mocked, make: Callable[..., Any], form: str
    ) -> None:
        _, llmock = mocked
        root = llmock.url if form == "openai" else f"{llmock.url}/anthropic"
        llmock.stall(after_chunks=3, seconds=5)
        async with make(root, idle_timeout=0.3) as provider:
            with pytest.raises(ProviderTimeoutError, match="`idle_timeout`"):
                async for _ in provider.stream(USER):
                    pass

    async def test_a_first_token_that_is_late(
        self, mocked: Mocked, make: Callable[..., Any], form: str
    ) -> None:
        _, llmock = mocked
        root = llmock.url if form == "openai" else f"{llmock.url}/anthropic"
        llmock.slow_first_token(5)
        async with make(root, timeout=0.3) as provider:
            with pytest.raises(ProviderTimeoutError):
                await anext(provider.stream(USER))

    async def test_a_slow_drip_is_only_slow(self, mocked: Mocked, read: Any) -> None:
        provider, llmock = mocked
        whole = await provider.complete(USER)
        llmock.pace(10)
        assert "".join(await read(provider.stream(USER))) == whole.content


@pytest.mark.req("chaos.streams")
class TestBrokenStreams:
    @pytest.mark.parametrize(
        ("fault", "kinds"),
        [
            ("disconnect", (ProviderConnectionError,)),
            ("truncate", (StreamError,)),
            ("corrupt", (StreamError, BadResponseError)),
        ],
    )
    @pytest.mark.parametrize("after", [1, 4])
    async def test_none_of_them_ends_well(
        self, mocked: Mocked, fault: str, kinds: tuple[type[LLMError], ...], after: int
    ) -> None:
        provider, llmock = mocked
        getattr(llmock, fault)(after_chunks=after)
        sink: list[Any] = []
        got: list[str] = []
        with pytest.raises(kinds) as caught:
            await collect(provider.stream(USER, usage_sink=sink), got)
        assert sink == []
        assert caught.value.retryable
        assert caught.value.partial_text == "".join(got)

    async def test_the_next_call_is_as_good_as_new(
        self, mocked: Mocked, read: Any
    ) -> None:
        provider, llmock = mocked
        llmock.disconnect(after_chunks=2)
        with pytest.raises(ProviderConnectionError):
            await read(provider.stream(USER))
        whole = await provider.complete(USER)
        assert "".join(await read(provider.stream(USER))) == whole.content


@pytest.mark.req("chaos.tools")
class TestToolCalls:
    async def test_broken_arguments_are_a_problem_not_a_call(
        self, mocked: Mocked
    ) -> None:
        provider, llmock = mocked
        llmock.break_tool_call("malformed_arguments")
        response = await provider.complete(USER, tools=[weather_tool([]).to_schema()])
        assert response.has_tool_calls or response.problems
        for problem in response.problems:
            assert problem.name == "weather"

    async def test_the_loop_survives_broken_arguments(self, mocked: Mocked) -> None:
        provider, llmock = mocked
        calls: list[str] = []
        llmock.break_tool_call("malformed_arguments")
        llmock.call_tool("weather", {"city": "Paris"})
        llmock.call_tool("weather", {"city": "Paris"})
        llmock.reply("It is sunny.", times=None)
        result = await react_loop(
            provider, "What is the weather?", [weather_tool(calls)], retry=QUICK
        )
        assert result.value == "It is sunny."
        assert calls
        assert set(calls) == {"Paris"}

    async def test_the_loop_survives_an_unknown_tool(self, mocked: Mocked) -> None:
        provider, llmock = mocked
        llmock.break_tool_call("unknown_tool")
        result = await react_loop(
            provider, "What is the weather?", [weather_tool([])], retry=QUICK
        )
        assert result.value
        seen = [
            m["content"] for m in result.metadata["messages"] if m["role"] == "tool"
        ]
        assert any("nknown tool" in text for text in seen)

    async def test_the_loop_survives_failures_between_its_rounds(
        self, mocked: Mocked
    ) -> None:
        provider, llmock = mocked
        calls: list[str] = []
        llmock.fail(503, retry_after=SOON)
        llmock.call_tool("weather", {"city": "Rome"})
        llmock.reply("Sunny.", times=None)
        result = await react_loop(
            provider, "What is the weather?", [weather_tool(calls)], retry=QUICK
        )
        assert (result.value, calls) == ("Sunny.", ["Rome"])
        assert result.cost.llm_calls == 3
        llmock.assert_resilient()


@pytest.mark.req("chaos.patterns")
class TestPatterns:
    async def test_a_vote_comes_through_a_storm(self, mocked: Mocked) -> None:
        provider, llmock = mocked
        llmock.rate_limit(times=2, retry_after=0.05)
        for status in (500, 503, 529):
            llmock.fail(status, retry_after=SOON)
        result = await consensus(
            provider, "hello", num_samples=4, retry=QUICK, max_concurrency=2
        )
        assert result.score == 1.0
        assert result.cost.llm_calls == 4 + 5
        llmock.assert_resilient()

    async def test_an_outage_is_told_with_what_it_cost(self, mocked: Mocked) -> None:
        provider, llmock = mocked
        llmock.fail(503, times=None, retry_after=SOON)
        few = RetryConfig(max_retries=2, base_delay=0.001)
        with pytest.raises(ProviderError, match="503") as caught:
            await consensus(provider, "hello", num_samples=1, retry=few)
        assert caught.value.cost.llm_calls == 3
        assert len(llmock.requests) == 3

    async def test_a_permanent_failure_is_asked_once(self, mocked: Mocked) -> None:
        provider, llmock = mocked
        llmock.fail(401, times=None)
        with pytest.raises(PermanentError) as caught:
            await map_reduce(
                provider,
                ["one"],
                map_prompt_template="{item}",
                reduce_prompt_template="{mapped_outputs}",
                retry=QUICK,
            )
        assert caught.value.cost.llm_calls == 1
        assert len(llmock.requests) == 1

    async def test_the_wait_that_the_server_asks_for_is_kept(
        self, mocked: Mocked
    ) -> None:
        provider, llmock = mocked
        llmock.rate_limit(times=1, retry_after=0.4)
        result = await consensus(provider, "hello", num_samples=1, retry=QUICK)
        assert result.cost.llm_calls == 2
        llmock.assert_resilient(strict=True)
