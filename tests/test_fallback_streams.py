"""Streams over several providers: changed only while nothing was handed out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from executionkit import (
    AllProvidersFailedError,
    DeadlineExceededError,
    ExecutionContext,
    FallbackProvider,
    LLMResponse,
    PermanentError,
    ProviderError,
    RetryConfig,
    StreamEnd,
    StreamError,
    StreamingProvider,
    TextDelta,
    TokenUsage,
    UsageUpdate,
    checked_stream,
    execution_scope,
)
from executionkit.cost import CostTracker
from executionkit.testing import FakeClock, ScriptedProvider

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator

MESSAGES = [{"role": "user", "content": "12345678"}]
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}
ONCE = RetryConfig(max_retries=0)


def says(*replies: Any) -> ScriptedProvider:
    return ScriptedProvider(replies, usage=USAGE)


async def read(stream: AsyncIterable[Any]) -> list[Any]:
    return [item async for item in stream]


class Events:
    """Gives the events that it was made with; an exception among them is raised."""

    def __init__(self, *events: Any) -> None:
        self._events = events
        self.closed = 0

    async def complete(self, *_: Any, **__: Any) -> LLMResponse:
        raise AssertionError

    async def stream_events(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        try:
            for event in self._events:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            self.closed += 1


@pytest.mark.req("fallback.streams")
class TestStreams:
    async def test_a_failure_before_the_first_text_goes_to_the_next(self) -> None:
        provider = FallbackProvider(
            {"a": says([ProviderError("x")]), "b": says(["Par", "is"])}
        )
        sink: list[LLMResponse] = []
        stream = provider.stream(MESSAGES, usage_sink=sink)
        assert [stream.answered_by] == [None]
        assert await read(stream) == ["Par", "is"]
        assert stream.answered_by == "b"
        (response,) = sink
        assert (response.content, response.answered_by) == ("Paris", "b")
        assert response.besides == TokenUsage(llm_calls=1)

    async def test_a_failure_after_the_first_text_is_raised(self) -> None:
        second = says("never")
        provider = FallbackProvider([says(["Par", StreamError("broke")]), second])
        stream = provider.stream(MESSAGES)
        assert await anext(stream) == "Par"
        with pytest.raises(StreamError, match="broke") as caught:
            await anext(stream)
        assert caught.value.attempts == 1
        assert not second.requests
        assert await read(stream) == []

    async def test_empty_texts_wait_and_keep_their_order(self) -> None:
        provider = FallbackProvider(
            [says(["", ProviderError("x")]), says(["", "", "a"])]
        )
        assert await read(provider.stream(MESSAGES)) == ["", "", "a"]

    async def test_an_empty_stream_is_an_answer(self) -> None:
        second = says("never")
        provider = FallbackProvider([says([]), second])
        assert await read(provider.stream(MESSAGES)) == []
        assert not second.requests

    async def test_what_fails_everywhere_is_raised(self) -> None:
        provider = FallbackProvider([says([PermanentError("401")]), says("never")])
        with pytest.raises(PermanentError):
            await read(provider.stream(MESSAGES))

    async def test_when_nobody_streams_one_error_says_so(self) -> None:
        provider = FallbackProvider([says([ProviderError("x")]) for _ in range(2)])
        with pytest.raises(AllProvidersFailedError) as caught:
            await read(provider.stream(MESSAGES))
        assert caught.value.attempts == 2

    async def test_those_that_cannot_stream_are_passed_over(self) -> None:
        mute = Events()
        provider = FallbackProvider([mute, says(["a"])])
        assert isinstance(provider, StreamingProvider)
        assert await read(provider.stream(MESSAGES)) == ["a"]
        with pytest.raises(TypeError, match="StreamingProvider"):
            await checked_stream(
                FallbackProvider([mute]), MESSAGES, CostTracker(), None, ONCE
            )

    async def test_no_time_is_left(self) -> None:
        clock = FakeClock()
        with clock.installed():
            context = ExecutionContext.with_deadline(1)
            await clock.advance(2)
            first = says("never")
            with execution_scope(context), pytest.raises(DeadlineExceededError):
                await read(FallbackProvider([first]).stream(MESSAGES))
        assert not first.requests


@pytest.mark.req("fallback.streams")
class TestEvents:
    async def test_usage_waits_until_something_is_said(self) -> None:
        first = Events(UsageUpdate({"prompt_tokens": 1}), StreamError("overloaded"))
        whole = LLMResponse("a", usage=USAGE)
        second = Events(UsageUpdate({}), TextDelta("a"), StreamEnd(whole))
        provider = FallbackProvider({"x": first, "y": second})
        got = await read(provider.stream_events(MESSAGES))
        assert got[:2] == [UsageUpdate({}), TextDelta("a")]
        response = got[2].response
        assert (response.content, response.answered_by) == ("a", "y")
        assert response.besides == TokenUsage(llm_calls=1)
        assert first.closed == 1

    async def test_a_stream_that_failed_is_closed_before_the_next_is_asked(
        self,
    ) -> None:
        class Source:
            closed = 0

            def __aiter__(self) -> Source:
                return self

            async def __anext__(self) -> str:
                raise ProviderError("x")

            async def aclose(self) -> None:
                self.closed += 1
                raise OSError

        class Broken(Events):
            source = Source()

            async def stream(self, *_: Any, **__: Any) -> Source:
                return self.source

        broken = Broken()
        provider = FallbackProvider([broken, says(["a"])])
        assert await read(provider.stream(MESSAGES)) == ["a"]
        assert broken.source.closed == 1

    async def test_leaving_early_closes_the_source(self) -> None:
        source = Events(TextDelta("a"), TextDelta("b"))
        async with FallbackProvider([source]).stream_events(MESSAGES) as stream:
            assert await anext(stream) == TextDelta("a")
        assert source.closed == 1
        assert await read(stream) == []
        assert stream.partial_response().content == "a"


@pytest.mark.req("fallback.streams")
class TestAccount:
    async def test_a_checked_stream_counts_each_request_once(self) -> None:
        provider = FallbackProvider([says([ProviderError("x")]), says(["a", "b"])])
        tracker = CostTracker()
        result = await checked_stream(provider, MESSAGES, tracker, None, ONCE)
        assert await read(result) == ["a", "b"]
        assert tracker.to_usage() == TokenUsage(10, 5, 2)

    async def test_one_that_fails_before_the_first_text(self) -> None:
        provider = FallbackProvider([says([ProviderError("x")]) for _ in range(3)])
        tracker = CostTracker()
        result = await checked_stream(provider, MESSAGES, tracker, None, ONCE)
        with pytest.raises(AllProvidersFailedError) as caught:
            await read(result)
        assert tracker.to_usage() == TokenUsage(llm_calls=3)
        assert caught.value.attempts == 3

    async def test_one_that_breaks_off_is_estimated(self) -> None:
        broken = says(["1234", ProviderError("y")])
        provider = FallbackProvider([says([ProviderError("x")]), broken])
        tracker = CostTracker()
        result = await checked_stream(provider, MESSAGES, tracker, None, ONCE)
        with pytest.raises(ProviderError) as caught:
            await read(result)
        assert tracker.to_usage() == TokenUsage(2, 1, 2)
        assert caught.value.metadata["partial_text"] == "1234"

    async def test_one_that_is_cancelled_while_it_opens(self) -> None:
        started = asyncio.Event()

        async def hang(_request: Any) -> Any:
            started.set()
            await asyncio.Event().wait()

        last = ScriptedProvider(hang)
        provider = FallbackProvider([says([ProviderError("x")]), last])
        tracker = CostTracker()
        result = await checked_stream(provider, MESSAGES, tracker, None, ONCE)
        reading = asyncio.create_task(read(result))
        async with asyncio.timeout(5):
            await started.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert tracker.call_count == 2
        assert last.active == 0
