"""The scripted provider: a list, a generator or a function decides what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from executionkit._llm import (
    LLMProvider,
    LLMResponse,
    StreamingProvider,
    ToolCallingProvider,
)
from executionkit.errors import PermanentError, StreamError
from executionkit.patterns import consensus, react_loop
from executionkit.testing import Request, ScriptedProvider, tool_call_reply

MESSAGES = [{"role": "user", "content": "hi"}]


async def ask(provider: ScriptedProvider, **options: Any) -> str:
    return (await provider.complete(MESSAGES, **options)).content


async def all_of(stream: Any) -> list[str]:
    return [piece async for piece in stream]


@pytest.mark.req("testing.scripted-provider")
class TestScripts:
    def test_it_is_every_kind_of_provider(self) -> None:
        provider: Any = ScriptedProvider([])
        assert isinstance(provider, LLMProvider)
        assert isinstance(provider, ToolCallingProvider)
        assert isinstance(provider, StreamingProvider)

    async def test_a_list(self) -> None:
        provider = ScriptedProvider(["a", LLMResponse("b"), PermanentError("401")])
        assert await ask(provider) == "a"
        assert await ask(provider) == "b"
        with pytest.raises(PermanentError):
            await ask(provider)

    async def test_a_generator_may_look_at_what_was_asked(self) -> None:
        asked: list[Request] = []

        def script() -> Iterator[str]:
            yield "first"
            yield f"second of {len(asked)}"

        provider = ScriptedProvider(script())
        asked = provider.requests
        assert [await ask(provider), await ask(provider)] == ["first", "second of 2"]

    async def test_an_async_generator(self) -> None:
        async def script() -> AsyncIterator[str]:
            yield "first"
            await asyncio.sleep(0)
            yield "second"

        provider = ScriptedProvider(script())
        assert [await ask(provider), await ask(provider)] == ["first", "second"]
        with pytest.raises(AssertionError, match="request 3"):
            await ask(provider)

    async def test_a_function(self) -> None:
        provider = ScriptedProvider(lambda request: f"{request.number}: {request.last}")
        assert [await ask(provider), await ask(provider)] == ["1: hi", "2: hi"]

    async def test_an_async_function(self) -> None:
        async def script(request: Request) -> LLMResponse:
            await asyncio.sleep(0)
            return LLMResponse(request.last)

        assert await ask(ScriptedProvider(script)) == "hi"

    async def test_a_script_that_has_run_out_fails_the_test(self) -> None:
        provider = ScriptedProvider(["a"])
        await ask(provider)
        with pytest.raises(AssertionError, match="no reply for request 2"):
            await ask(provider)

    @pytest.mark.parametrize("reply", [None, 3, b"x"])
    async def test_a_reply_of_another_kind_is_named(self, reply: Any) -> None:
        with pytest.raises(TypeError, match="a reply must be"):
            await ask(ScriptedProvider([reply]))

    def test_a_text_is_no_script(self) -> None:
        text: Any = "hello"
        with pytest.raises(TypeError, match="list of replies"):
            ScriptedProvider(text)

    async def test_texts_have_the_usage_given(self) -> None:
        provider = ScriptedProvider(["a", LLMResponse("b")], usage={"input_tokens": 3})
        assert (await provider.complete(MESSAGES)).input_tokens == 3
        assert (await provider.complete(MESSAGES)).input_tokens == 0

    async def test_calls_have_ids_of_their_own(self) -> None:
        reply = tool_call_reply(("add", {"a": 1}), ("now", {}), content="hm")
        assert [(c.id, c.name, dict(c.arguments)) for c in reply.tool_calls] == [
            ("call-1", "add", {"a": 1}),
            ("call-2", "now", {}),
        ]
        assert (reply.content, reply.finish_reason) == ("hm", "tool_calls")


@pytest.mark.req("testing.scripted-provider")
class TestRecords:
    async def test_every_request_is_recorded_as_it_was_sent(self) -> None:
        provider = ScriptedProvider(["a"])
        messages = [{"role": "user", "content": "hi", "extra": [1]}]
        tools: list[dict[str, Any]] = [{"type": "function"}]
        await provider.complete(
            messages, temperature=0.1, max_tokens=5, tools=tools, seed=2
        )
        messages[0]["extra"].append(2)  # type: ignore[attr-defined]
        (request,) = provider.requests
        assert request.number == 1
        assert request.messages == [{"role": "user", "content": "hi", "extra": [1]}]
        assert (request.temperature, request.max_tokens) == (0.1, 5)
        assert request.tools == tools
        assert request.options == {"seed": 2}
        assert request.last == "hi"

    async def test_it_counts_what_is_asked_at_once(self) -> None:
        async def script(_request: Request) -> str:
            for _ in range(3):
                await asyncio.sleep(0)
            return "a"

        provider = ScriptedProvider(script)
        await consensus(provider, "?", num_samples=7, max_concurrency=3)
        assert (provider.active, provider.peak) == (0, 3)

    async def test_it_counts_right_after_failures_and_cancels(self) -> None:
        hold = asyncio.Event()

        async def script(request: Request) -> str:
            if request.number == 1:
                raise PermanentError
            await hold.wait()
            return "a"

        provider = ScriptedProvider(script)
        with pytest.raises(PermanentError):
            await ask(provider)
        task = asyncio.create_task(ask(provider))
        await asyncio.sleep(0)
        assert provider.active == 1
        task.cancel()
        await asyncio.wait([task])
        assert provider.active == 0

    async def test_it_need_not_call_tools(self) -> None:
        provider = ScriptedProvider(["a"], supports_tools=False)
        with pytest.raises(TypeError, match="supports_tools"):
            await react_loop(provider, "?")


@pytest.mark.req("testing.scripted-provider")
class TestStreams:
    async def test_a_reply_comes_word_by_word(self) -> None:
        provider = ScriptedProvider([LLMResponse("one two  three", usage={"a": 1})])
        sink: list[LLMResponse] = []
        pieces = await all_of(provider.stream(MESSAGES, usage_sink=sink, seed=1))
        assert pieces == ["one ", "two  ", "three"]
        assert sink[0].usage == {"a": 1}
        assert provider.requests[0].options == {"seed": 1}
        assert provider.active == 0

    async def test_pieces_of_ones_own_and_a_break_in_the_middle(self) -> None:
        provider = ScriptedProvider([["Hel", "lo", StreamError("cut")], ["a", "b"]])
        seen: list[str] = []

        async def read() -> None:
            async for piece in provider.stream(MESSAGES):
                seen.append(piece)

        with pytest.raises(StreamError):
            await read()
        assert seen == ["Hel", "lo"]
        sink: list[LLMResponse] = []
        assert await all_of(provider.stream(MESSAGES, usage_sink=sink)) == ["a", "b"]
        assert sink[0].content == "ab"

    async def test_pieces_are_one_text_without_a_stream(self) -> None:
        provider = ScriptedProvider([["a", "b"], ["a", StreamError("cut")]])
        assert await ask(provider) == "ab"
        with pytest.raises(StreamError):
            await ask(provider)
