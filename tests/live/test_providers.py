"""Both providers over every transport, against a real model behind a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from executionkit._llm import LLMResponse, StreamEnd, TextDelta
from executionkit.errors import PermanentError, ProviderTimeoutError

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

USER = [{"role": "user", "content": "Say hello to Anna."}]
STORY = [{"role": "user", "content": "Tell a long story about a dragon."}]
LONG = 1200
ENDINGS = {"stop", "length", "end_turn", "max_tokens"}


@pytest.mark.req("live.providers")
async def test_an_answer_has_text_tokens_and_a_reason(provider: Any) -> None:
    response = await provider.complete(USER, max_tokens=12)
    assert response.content.strip()
    assert response.input_tokens > 5
    assert 0 < response.output_tokens <= 12
    assert response.finish_reason in ENDINGS
    assert response.model


@pytest.mark.req("live.providers")
async def test_a_stream_gives_the_same_text_piece_by_piece(provider: Any) -> None:
    options = {"max_tokens": 12, "temperature": 0}
    whole = await provider.complete(USER, **options)
    sink: list[LLMResponse] = []
    stream = provider.stream(USER, usage_sink=sink, **options)
    pieces = [piece async for piece in stream]
    assert len(pieces) > 2
    assert "".join(pieces) == whole.content
    (response,) = sink
    assert response.content == whole.content
    assert response.finish_reason == whole.finish_reason
    assert response.output_tokens == whole.output_tokens
    assert response.input_tokens == whole.input_tokens


@pytest.mark.req("live.providers")
async def test_events_end_with_the_whole_answer(provider: Any) -> None:
    events = [e async for e in provider.stream_events(USER, max_tokens=8)]
    assert isinstance(events[-1], StreamEnd)
    text = "".join(e.text for e in events if isinstance(e, TextDelta))
    assert text == events[-1].response.content


@pytest.mark.req("live.cancellation")
async def test_a_closed_stream_stops_the_model(provider: Any, server: Any) -> None:
    stream = provider.stream(STORY, max_tokens=LONG)
    for _ in range(3):
        await anext(stream)
    assert await asyncio.to_thread(server.busy)
    await stream.aclose()
    async with asyncio.timeout(5):
        await server.until(busy=False)


@pytest.mark.req("live.cancellation")
async def test_a_cancelled_reader_stops_the_model(provider: Any, server: Any) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in provider.stream(STORY, max_tokens=LONG):
            begun.set()

    task = asyncio.create_task(read())
    async with asyncio.timeout(20):
        await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        await server.until(busy=False)


@pytest.mark.req("live.cancellation")
async def test_a_timeout_stops_the_model(make: Callable[..., Any], server: Any) -> None:
    async with make(timeout=0.5) as provider:
        with pytest.raises(ProviderTimeoutError, match="`timeout`"):
            async for _ in provider.stream(STORY, max_tokens=LONG):
                pass
    async with asyncio.timeout(5):
        await server.until(busy=False)


@pytest.mark.req("live.cancellation")
async def test_a_cancelled_call_is_free_before_the_server_is(
    provider: Any, server: Any
) -> None:
    # This server goes on with an answer that is not streamed, whoever has left: the
    # caller must not wait for it.
    task = asyncio.create_task(provider.complete(STORY, max_tokens=80))
    await server.until(busy=True)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server.busy)
    await server.until(busy=False)


@pytest.mark.req("live.errors")
async def test_a_wrong_key_is_permanent_and_not_shown(make: Callable[..., Any]) -> None:
    async with make(api_key="wrong-key-12345") as provider:
        with pytest.raises(PermanentError, match="401") as caught:
            await provider.complete(USER)
    assert "wrong-key" not in str(caught.value)


@pytest.mark.req("live.errors")
async def test_a_prompt_that_is_too_long_is_permanent(provider: Any) -> None:
    long = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(PermanentError, match="context size"):
        await provider.complete(long)
    with pytest.raises(PermanentError, match="context size"):
        await anext(provider.stream(long))


@pytest.mark.req("live.loops")
def test_two_loops_in_two_threads_share_a_provider(make: Callable[..., Any]) -> None:
    provider = make()
    answers: list[str] = []

    async def ask() -> None:
        response = await provider.complete(USER, max_tokens=6)
        answers.append(response.content)

    threads = [threading.Thread(target=lambda: asyncio.run(ask())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 2
    assert all(answers)


@pytest.mark.req("live.loops")
async def test_many_calls_at_once_all_come_back(provider: Any) -> None:
    calls = [provider.complete(USER, max_tokens=4) for _ in range(8)]
    responses = await asyncio.gather(*calls)
    assert all(response.output_tokens > 0 for response in responses)
