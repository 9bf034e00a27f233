"""The mock: canned replies, recorded calls."""

from __future__ import annotations

from typing import Any

import pytest

from executionkit._llm import (
    LLMProvider,
    LLMResponse,
    StreamingProvider,
    ToolCallingProvider,
)
from executionkit._mock import MockProvider
from executionkit.errors import ProviderError

MESSAGES = [{"role": "user", "content": "hi"}]


async def all_of(stream: Any) -> list[str]:
    return [piece async for piece in stream]


@pytest.mark.req("mock.provider")
class TestTheMock:
    def test_it_is_every_kind_of_provider(self) -> None:
        mock = MockProvider()
        assert isinstance(mock, LLMProvider)
        assert isinstance(mock, ToolCallingProvider)
        assert isinstance(mock, StreamingProvider)
        assert mock.supports_tools is True

    async def test_replies_come_round_and_round(self) -> None:
        mock = MockProvider(["a", LLMResponse("b", finish_reason="length")])
        made = [await mock.complete(MESSAGES) for _ in range(3)]
        assert [item.content for item in made] == ["a", "b", "a"]
        assert made[1].finish_reason == "length"

    async def test_without_replies_it_says_nothing(self) -> None:
        assert (await MockProvider().complete(MESSAGES)).content == ""

    async def test_calls_are_recorded(self) -> None:
        mock = MockProvider(["a"])
        assert (mock.call_count, mock.last_call) == (0, None)
        messages = list(MESSAGES)
        await mock.complete(messages, temperature=0.5, max_tokens=7, tools=[{}], seed=1)
        messages.append({"role": "user", "content": "later"})
        assert mock.call_count == len(mock.calls) == 1
        call = mock.last_call
        assert call is not None
        assert call.messages == MESSAGES
        assert (call.temperature, call.max_tokens) == (0.5, 7)
        assert call.tools == [{}]
        assert call.kwargs == {"seed": 1}
        await mock.complete(MESSAGES)
        assert mock.calls[1].tools is None

    async def test_an_exception_is_raised_and_the_call_recorded(self) -> None:
        error = ProviderError("503")
        mock = MockProvider(["never"], exception=error)
        with pytest.raises(ProviderError) as caught:
            await mock.complete(MESSAGES)
        assert caught.value is error
        assert mock.call_count == 1

    async def test_complete_never_waits(self) -> None:
        with pytest.raises(StopIteration):
            MockProvider(["a"]).complete(MESSAGES).send(None)

    async def test_a_stream_comes_character_by_character(self) -> None:
        mock = MockProvider(["two words"])
        sink: list[LLMResponse] = []
        stream = mock.stream(MESSAGES, usage_sink=sink, seed=1)
        assert mock.call_count == 1
        assert mock.calls[0].kwargs == {"seed": 1, "stream": True}
        assert sink == []
        assert await all_of(stream) == list("two words")
        (response,) = sink
        assert response.content == "two words"
        assert response.usage == {"prompt_tokens": 0, "completion_tokens": 2}

    async def test_usage_of_ones_own_is_kept(self) -> None:
        usage = {"prompt_tokens": 5}
        sink: list[LLMResponse] = []
        mock = MockProvider([LLMResponse("a", usage=usage, refusal="no")])
        await all_of(mock.stream(MESSAGES, usage_sink=sink))
        assert sink[0].usage == usage
        await all_of(MockProvider([""]).stream(MESSAGES, usage_sink=sink))
        assert sink[1].output_tokens == 0

    async def test_the_rest_of_a_reply_is_kept_too(self) -> None:
        sink: list[LLMResponse] = []
        mock = MockProvider([LLMResponse("a", refusal="no", model="m")])
        await all_of(mock.stream(MESSAGES, usage_sink=sink))
        assert (sink[0].refusal, sink[0].model) == ("no", "m")
        assert sink[0].output_tokens == 1

    async def test_streams_opened_together_have_replies_of_their_own(self) -> None:
        mock = MockProvider(["a", "b"])
        first, second = mock.stream(MESSAGES), mock.stream(MESSAGES)
        assert await all_of(second) == ["b"]
        assert await all_of(first) == ["a"]

    async def test_a_stream_raises_when_it_is_read(self) -> None:
        mock = MockProvider(exception=ProviderError("503"))
        stream = mock.stream(MESSAGES)
        assert mock.call_count == 1
        with pytest.raises(ProviderError):
            await all_of(stream)
