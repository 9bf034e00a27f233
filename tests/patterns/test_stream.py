"""Checked streams: budget, retries, deadline, accounts and events."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from executionkit._llm import LLMResponse
from executionkit._mock import MockProvider
from executionkit.context import ExecutionContext, execution_scope
from executionkit.cost import Budget, CostTracker
from executionkit.engine.rate_bucket import TokenBucket
from executionkit.engine.retry import RetryConfig
from executionkit.errors import (
    BadResponseError,
    BudgetExhaustedError,
    DeadlineExceededError,
    PermanentError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    StreamError,
)
from executionkit.observability import MemoryTraceSink
from executionkit.patterns.base import checked_stream
from executionkit.provider import Provider
from executionkit.testing import (
    FakeClock,
    Gate,
    ScriptedServer,
    settle,
    sse_reply,
)
from executionkit.types import StreamingPatternResult, TokenUsage

LIMIT = 5
ASKED: list[dict[str, Any]] = [
    {"role": "user", "content": "a question of forty chars, more or less."}
]
SENT = 10
USAGE = {"prompt_tokens": 7, "completion_tokens": 3}


class Speaker:
    """Streams what a script says: texts, errors, and things to wait for."""

    def __init__(self, *scripts: list[Any], usage: Any = USAGE) -> None:
        self.scripts = list(scripts)
        self.usage = usage
        self.requests: list[dict[str, Any]] = []
        self.closed = 0

    async def complete(self, *_args: Any, **_kwargs: Any) -> LLMResponse:
        raise NotImplementedError

    async def stream(
        self, messages: Any, *, usage_sink: list[LLMResponse], **options: Any
    ) -> AsyncIterator[str]:
        self.requests.append({"messages": messages, **options})
        text = ""
        try:
            for step in self.scripts.pop(0):
                if isinstance(step, BaseException):
                    raise step
                if callable(step):
                    await step()
                else:
                    text += step
                    yield step
            if self.usage is not None:
                usage_sink.append(LLMResponse(text, usage=self.usage))
        finally:
            self.closed += 1


async def opened(
    provider: Any,
    tracker: CostTracker | None = None,
    budget: TokenUsage | None = None,
    retry: RetryConfig | None = None,
    trace: Any = None,
    **options: Any,
) -> StreamingPatternResult:
    return await checked_stream(
        provider, ASKED, tracker or CostTracker(), budget, retry, trace, **options
    )


async def all_of(stream: StreamingPatternResult) -> str:
    return "".join([piece async for piece in stream])


async def read_into(seen: list[str], stream: StreamingPatternResult) -> None:
    async for piece in stream:
        seen.append(piece)


@pytest.mark.req("stream.checked")
class TestAWholeStream:
    async def test_the_text_comes_in_pieces_and_the_cost_at_the_end(self) -> None:
        speaker = Speaker(["Hel", "lo"])
        stream = await opened(speaker, temperature=0.5)
        assert stream.metadata == {"streaming": True}
        assert stream.cost == TokenUsage(llm_calls=1)
        assert speaker.requests == []
        assert [piece async for piece in stream] == ["Hel", "lo"]
        assert stream.cost == TokenUsage(7, 3, 1)
        assert speaker.requests == [{"messages": ASKED, "temperature": 0.5}]
        assert [piece async for piece in stream] == []

    async def test_it_is_traced_in_a_pair(self) -> None:
        sink = MemoryTraceSink()
        tracker = CostTracker()
        stream = await opened(Speaker(["Hel", "lo"]), tracker, trace=sink)
        assert sink.kinds == ["llm_call_start"]
        await all_of(stream)
        assert sink.kinds == ["llm_call_start", "llm_call_end"]
        end = sink.events[1].payload
        assert (end["content"], end["input_tokens"], end["output_tokens"]) == (
            "Hello",
            7,
            3,
        )
        assert end["cost"] == TokenUsage(7, 3, 1)
        assert end["call_id"] == sink.events[0].payload["call_id"] != ""
        assert end["duration"] >= 0.0
        assert "closed_early" not in end

    async def test_empty_pieces_and_streams_are_fine(self) -> None:
        assert await all_of(await opened(Speaker(["", "a", ""]))) == "a"
        assert await all_of(await opened(Speaker([]))) == ""

    async def test_a_server_that_tells_no_usage_costs_a_call(self) -> None:
        tracker = CostTracker()
        sink: list[LLMResponse] = []
        speaker = Speaker(["text"], usage={})
        await all_of(await opened(speaker, tracker))
        assert tracker.to_usage() == TokenUsage(0, 0, 1)
        assert sink == []

    async def test_a_stream_without_a_last_word_is_estimated(self) -> None:
        tracker = CostTracker()
        await all_of(await opened(Speaker(["12345678"], usage=None), tracker))
        assert tracker.to_usage() == TokenUsage(SENT, 2, 1)

    async def test_it_works_with_the_mock(self) -> None:
        tracker = CostTracker()
        mock = MockProvider(["two words"])
        assert await all_of(await opened(mock, tracker)) == "two words"
        assert tracker.to_usage() == TokenUsage(0, 2, 1)

    async def test_a_stream_written_as_a_coroutine_works(self) -> None:
        class Wrapped(Speaker):
            async def stream(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
                await asyncio.sleep(0)
                return super().stream(*args, **kwargs)

        assert await all_of(await opened(Wrapped(["a", "b"]))) == "ab"


@pytest.mark.req("stream.refusals")
class TestRefusals:
    async def test_a_provider_that_cannot_stream(self) -> None:
        with pytest.raises(TypeError, match="object is not a StreamingProvider"):
            await opened(object())

    @pytest.mark.parametrize(
        ("budget", "label"),
        [
            (TokenUsage(llm_calls=1), "LLM call"),
            (TokenUsage(input_tokens=5), "Input token"),
            (TokenUsage(output_tokens=5), "Output token"),
            (TokenUsage(llm_calls=-1), "LLM call"),
        ],
    )
    async def test_a_spent_budget_refuses_before_returning(
        self, budget: TokenUsage, label: str
    ) -> None:
        tracker = CostTracker()
        tracker.add_usage(TokenUsage(5, 5, 1))
        sink = MemoryTraceSink()
        with pytest.raises(BudgetExhaustedError, match=f"{label} budget") as caught:
            await opened(Speaker(), tracker, budget, trace=sink)
        assert caught.value.cost == TokenUsage(5, 5, 1)
        assert sink.kinds == ["llm_call_refused"]

    async def test_a_passed_deadline(self, auto_clock: FakeClock) -> None:
        async with execution_scope(ExecutionContext.with_deadline(1)):
            await auto_clock.sleep(2)
            with pytest.raises(DeadlineExceededError, match="no request was sent"):
                await opened(Speaker())

    @pytest.mark.parametrize("made", [None, "text", [1]])
    async def test_a_stream_that_is_none(self, made: Any) -> None:
        class Odd:
            def stream(self, *_args: Any, **_kwargs: Any) -> Any:
                return made

        tracker = CostTracker()
        stream = await opened(Odd(), tracker, retry=RetryConfig(max_retries=0))
        with pytest.raises(BadResponseError, match="async iterator of text") as caught:
            await all_of(stream)
        assert caught.value.cost.llm_calls == 1

    async def test_pieces_that_are_no_texts(self) -> None:
        sink = MemoryTraceSink()
        tracker = CostTracker()
        stream = await opened(_Odd(), tracker, trace=sink)
        with pytest.raises(BadResponseError, match="gave a int instead") as caught:
            await all_of(stream)
        assert caught.value.cost.llm_calls == 1
        assert caught.value.partial_text == "fine"
        assert sink.kinds[-1] == "llm_call_error"


class _Odd:
    async def stream(self, *_args: Any, **_kwargs: Any) -> AsyncIterator[Any]:
        yield "fine"
        yield 7


@pytest.mark.req("ST-12", "HT-09")
class TestFailures:
    async def test_before_the_first_text_it_is_tried_again(
        self, auto_clock: FakeClock
    ) -> None:
        """ST-12: invisible to the reader."""
        sink = MemoryTraceSink()
        tracker = CostTracker()
        speaker = Speaker([RateLimitError("429")], [ProviderError("503")], ["ok"])
        assert await all_of(await opened(speaker, tracker, trace=sink)) == "ok"
        assert tracker.to_usage() == TokenUsage(7, 3, 3)
        assert speaker.closed == 3
        # Without waits: a pause of less than a millisecond is none.
        assert [kind for kind in sink.kinds if kind != "wait"] == [
            "llm_call_start",
            "llm_call_error",
            "llm_call_retry",
            "llm_call_start",
            "llm_call_error",
            "llm_call_retry",
            "llm_call_start",
            "llm_call_end",
        ]
        numbers = [e.payload["attempt"] for e in sink.events if e.kind != "wait"]
        assert numbers == [1, 1, 1, 2, 2, 2, 3, 3]

    async def test_no_retries_means_one_request(self) -> None:
        """HT-12."""
        speaker = Speaker([ProviderError("503")])
        with pytest.raises(ProviderError) as caught:
            await all_of(await opened(speaker, retry=RetryConfig(max_retries=0)))
        assert len(speaker.requests) == caught.value.attempts == 1

    async def test_what_is_final_is_not_tried_again(self) -> None:
        speaker = Speaker([PermanentError("401")])
        tracker = CostTracker()
        with pytest.raises(PermanentError) as caught:
            await all_of(await opened(speaker, tracker))
        assert caught.value.cost == tracker.to_usage() == TokenUsage(llm_calls=1)

    async def test_after_text_it_is_raised_with_the_text(self) -> None:
        """HT-09: not retried silently."""
        broken = ProviderConnectionError("reset")
        speaker = Speaker(["Hello", " wor", broken], ["never"])
        sink = MemoryTraceSink()
        tracker = CostTracker()
        stream = await opened(speaker, tracker, trace=sink)
        seen: list[str] = []
        with pytest.raises(ProviderConnectionError) as caught:
            await read_into(seen, stream)
        assert "".join(seen) == caught.value.partial_text == "Hello wor"
        assert caught.value.metadata["partial_text"] == "Hello wor"
        assert caught.value.cost == tracker.to_usage() == TokenUsage(SENT, 3, 1)
        assert len(speaker.requests) == caught.value.attempts == 1
        assert sink.kinds == ["llm_call_start", "llm_call_error"]
        assert sink.events[1].payload["error_type"] == "ProviderConnectionError"
        assert [piece async for piece in stream] == []

    async def test_the_providers_own_error_stays_as_it_was(self) -> None:
        for script in (["text"], []):
            broken = StreamError("broke")
            tracker = CostTracker()
            stream = await opened(
                Speaker([*script, broken]), tracker, retry=RetryConfig(max_retries=0)
            )
            with pytest.raises(StreamError) as caught:
                await all_of(stream)
            assert caught.value is not broken
            assert caught.value.cost.llm_calls == 1
            assert broken.cost == TokenUsage()
            assert broken.attempts == 0
            assert caught.value.__traceback__ is not None

    async def test_foreign_errors_pass_as_they_are(self) -> None:
        tracker = CostTracker()
        with pytest.raises(ZeroDivisionError):
            await all_of(await opened(Speaker(["ab", ZeroDivisionError()]), tracker))
        assert tracker.to_usage() == TokenUsage(SENT, 1, 1)

    @pytest.mark.parametrize("script", [[], ["text"]])
    async def test_a_group_is_never_raised(self, script: list[str]) -> None:
        """D-02."""
        both = [OSError("disk"), ProviderError("503")]
        group = ExceptionGroup("several", both)
        stream = await opened(
            Speaker([*script, group]), retry=RetryConfig(max_retries=0)
        )
        with pytest.raises(ProviderError) as caught:
            await all_of(stream)
        assert any("disk" in note for note in caught.value.__notes__)
        assert caught.value.cost.llm_calls == 1

    async def test_a_spent_budget_ends_the_retries(self, auto_clock: FakeClock) -> None:
        sink = MemoryTraceSink()
        speaker = Speaker([ProviderError("503")], ["never"])
        budget = TokenUsage(llm_calls=1)
        with pytest.raises(BudgetExhaustedError, match="retry dispatch"):
            await all_of(await opened(speaker, None, budget, trace=sink))
        assert len(speaker.requests) == 1
        assert sink.kinds == [
            "llm_call_start",
            "llm_call_error",
            "llm_call_retry",
            "llm_call_refused",
            "wait",
        ]

    async def test_an_error_while_closing_does_not_hide_the_first(self) -> None:
        class Sticky:
            def __init__(self, steps: list[Any]) -> None:
                self.steps = iter(steps)

            def stream(self, *_args: Any, **_kwargs: Any) -> Any:
                return self

            async def __anext__(self) -> str:
                step = next(self.steps)
                if isinstance(step, BaseException):
                    raise step
                return str(step)

            async def aclose(self) -> None:
                raise OSError

        for steps in ([PermanentError("first")], ["text", PermanentError("first")]):
            with pytest.raises(PermanentError, match="first"):
                await all_of(await opened(Sticky(steps)))
        stream = await opened(Sticky(["text"]))
        assert await anext(stream.text_stream) == "text"
        await stream.aclose()


@pytest.mark.req("D-17")
class TestLeavingEarly:
    """D-17: tokens of a partial stream were never recorded, no terminal event."""

    async def test_closing_is_paid_for_and_told(self) -> None:
        sink = MemoryTraceSink()
        tracker = CostTracker()
        speaker = Speaker(["12345678", "rest"])
        async with await opened(speaker, tracker, trace=sink) as stream:
            assert await anext(stream.text_stream) == "12345678"
        assert speaker.closed == 1
        assert stream.cost == tracker.to_usage() == TokenUsage(SENT, 2, 1)
        assert sink.kinds == ["llm_call_start", "llm_call_end"]
        assert sink.events[1].payload["closed_early"] is True
        await stream.aclose()
        assert len(sink.events) == 2
        assert tracker.to_usage() == TokenUsage(SENT, 2, 1)

    async def test_what_was_never_begun_costs_nothing(self) -> None:
        sink = MemoryTraceSink()
        tracker = CostTracker()
        speaker = Speaker(["text"])
        async with await opened(speaker, tracker, trace=sink):
            assert tracker.call_count == 1
        assert tracker.to_usage() == TokenUsage()
        assert speaker.requests == []
        assert sink.kinds == ["llm_call_start", "llm_call_end"]

    async def test_usage_that_the_server_told_is_taken(self) -> None:
        class Telling(Speaker):
            def stream(self, *args: Any, **kwargs: Any) -> Any:
                inner = super().stream(*args, **kwargs)

                class Source:
                    def partial_response(self) -> LLMResponse:
                        return LLMResponse("12", usage={"input_tokens": 99})

                    async def __anext__(self) -> str:
                        return await anext(inner)

                    async def aclose(self) -> None:
                        await inner.aclose()  # type: ignore[attr-defined]

                return Source()

        tracker = CostTracker()
        async with await opened(Telling(["12345678"]), tracker) as stream:
            await anext(stream.text_stream)
        assert tracker.to_usage() == TokenUsage(99, 0, 1)

    async def test_a_read_that_times_out_closes_the_stream(self) -> None:
        """ST-18: as documented."""
        never = asyncio.Event()
        speaker = Speaker(["1234", never.wait])
        tracker = CostTracker()
        sink = MemoryTraceSink()
        stream = await opened(speaker, tracker, trace=sink)
        assert await anext(stream.text_stream) == "1234"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream.text_stream), 0.01)
        assert speaker.closed == 1
        assert tracker.to_usage() == TokenUsage(SENT, 1, 1)
        assert sink.kinds == ["llm_call_start", "llm_call_error"]
        assert [piece async for piece in stream] == []

    @pytest.mark.parametrize("script", [[], ["1234"]])
    async def test_another_task_may_close_it(self, script: list[str]) -> None:
        waiting = asyncio.Event()
        go_on = asyncio.Event()

        async def wait() -> None:
            waiting.set()
            await go_on.wait()

        speaker = Speaker([*script, wait, "late"])
        tracker = CostTracker()
        sink = MemoryTraceSink()
        stream = await opened(speaker, tracker, trace=sink)
        reader = asyncio.create_task(all_of(stream))
        async with asyncio.timeout(LIMIT):
            await waiting.wait()
            await stream.aclose()
            assert tracker.to_usage() == TokenUsage(SENT, len(script), 1)
            go_on.set()
            assert await reader == "".join(script)
        assert speaker.closed == 1
        assert tracker.to_usage() == TokenUsage(SENT, len(script), 1)
        assert sink.kinds == ["llm_call_start", "llm_call_end"]

    async def test_closing_in_the_pause_before_a_retry_sends_nothing_more(
        self, fake_clock: FakeClock
    ) -> None:
        speaker = Speaker([RateLimitError("429", retry_after=30)], ["never"])
        tracker = CostTracker()
        sink = MemoryTraceSink()
        stream = await opened(speaker, tracker, trace=sink)
        reader = asyncio.create_task(all_of(stream))
        await settle()
        await stream.aclose()
        await fake_clock.advance(31)
        assert await reader == ""
        assert len(speaker.requests) == 1
        assert tracker.to_usage() == TokenUsage(llm_calls=1)
        assert sink.kinds == ["llm_call_start", "llm_call_error", "llm_call_retry"]

    async def test_closing_while_it_waits_for_room_sends_nothing_more(
        self, fake_clock: FakeClock
    ) -> None:
        tracker = CostTracker()
        budget = TokenUsage(output_tokens=100)
        other = await tracker.admit(Budget.from_usage(budget), output_tokens=90)
        speaker = Speaker([ProviderError("503")], ["never"])
        sink = MemoryTraceSink()
        stream = await opened(speaker, tracker, budget, trace=sink, max_tokens=50)
        reader = asyncio.create_task(all_of(stream))
        async with asyncio.timeout(LIMIT):
            await settle()
            assert sink.kinds[-1] == "llm_call_retry"
            await fake_clock.advance(2)
            await stream.aclose()
            other.keep()
            assert await reader == ""
        assert len(speaker.requests) == 1
        assert tracker.to_usage() == TokenUsage(llm_calls=2)
        assert sink.kinds.count("llm_call_start") == sink.kinds.count("llm_call_error")

    async def test_closing_while_it_opens_reads_nothing(self) -> None:
        opening = asyncio.Event()
        go_on = asyncio.Event()

        class Slow(Speaker):
            async def stream(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
                opening.set()
                await go_on.wait()
                return super().stream(*args, **kwargs)

        speaker = Slow(["never"])
        stream = await opened(speaker)
        reader = asyncio.create_task(all_of(stream))
        async with asyncio.timeout(LIMIT):
            await opening.wait()
            await stream.aclose()
            go_on.set()
            assert await reader == ""
        assert speaker.requests == []

    async def test_other_ways_out_are_paid_for(self) -> None:
        class WayOutError(BaseException):
            pass

        tracker = CostTracker()
        with pytest.raises(WayOutError):
            await all_of(await opened(Speaker(["1234", WayOutError()]), tracker))
        assert tracker.to_usage() == TokenUsage(SENT, 1, 1)

    async def test_waiting_for_a_permit_costs_nothing(
        self, fake_clock: FakeClock
    ) -> None:
        bucket = TokenBucket(rate=0.1)
        await bucket.acquire()
        tracker = CostTracker()
        sink = MemoryTraceSink()
        speaker = Speaker(["never"])
        retry = RetryConfig(rate_limit_strategy=bucket)
        stream = await opened(speaker, tracker, retry=retry, trace=sink)
        reader = asyncio.create_task(all_of(stream))
        await settle()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert tracker.to_usage() == TokenUsage()
        assert speaker.requests == []
        assert sink.kinds == ["llm_call_start", "llm_call_error"]

    async def test_dropping_it_leaves_no_trouble(
        self, recwarn: pytest.WarningsRecorder
    ) -> None:
        """OB-02: break early and let the collector finish it."""
        problems: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: problems.append(context))
        speaker = Speaker(["a", "b"])
        stream: Any = await opened(speaker)
        async for _piece in stream:
            break
        del stream
        gc.collect()
        await settle()
        assert speaker.closed == 1
        assert problems == []
        assert not recwarn.list


@pytest.mark.req("stream.deadline")
class TestTheDeadline:
    @pytest.mark.parametrize("script", [[], ["1234"]])
    async def test_it_ends_a_stream_wherever_it_is(
        self, script: list[str], auto_clock: FakeClock
    ) -> None:
        speaker = Speaker([*script, lambda: auto_clock.sleep(100), "late"])
        tracker = CostTracker()
        sink = MemoryTraceSink()
        async with execution_scope(ExecutionContext.with_deadline(10)):
            stream = await opened(speaker, tracker, trace=sink)
        with pytest.raises(DeadlineExceededError, match="deadline") as caught:
            await all_of(stream)
        assert auto_clock.monotonic() == 1010
        assert speaker.closed == 1
        assert caught.value.cost == TokenUsage(SENT, len(script), 1)
        assert caught.value.metadata["partial_text"] == "".join(script)
        assert sink.kinds == ["llm_call_start", "llm_call_error"]

    async def test_a_stream_in_time_is_untouched(self, auto_clock: FakeClock) -> None:
        async with execution_scope(ExecutionContext.with_deadline(10)):
            stream = await opened(Speaker(["a", lambda: auto_clock.sleep(5), "b"]))
            assert await all_of(stream) == "ab"

    async def test_own_timeouts_of_the_provider_are_not_taken_for_it(self) -> None:
        async with execution_scope(ExecutionContext.with_deadline(1000)):
            stream = await opened(Speaker(["a", TimeoutError("own")]))
            with pytest.raises(ProviderTimeoutError, match="own"):
                await all_of(stream)

    @pytest.mark.parametrize("retryable", [None, (ConnectionError,)])
    @pytest.mark.req("call.raw-network-errors")
    async def test_a_raw_network_error_is_retried_and_carries_the_cost(
        self, auto_clock: FakeClock, retryable: Any
    ) -> None:
        raw = ConnectionResetError("reset")
        sink = MemoryTraceSink()
        retry = RetryConfig(max_retries=1)
        if retryable:
            retry = RetryConfig(max_retries=1, retryable=retryable)
        stream = await opened(Speaker([raw], [raw]), retry=retry, trace=sink)
        with pytest.raises(ProviderConnectionError, match="reset") as caught:
            await all_of(stream)
        assert caught.value.__cause__ is raw
        assert caught.value.cost.llm_calls == caught.value.attempts == 2
        # Without waits: a pause of less than a millisecond is none.
        assert [kind for kind in sink.kinds if kind != "wait"] == [
            "llm_call_start",
            "llm_call_error",
            "llm_call_retry",
            "llm_call_start",
            "llm_call_error",
        ]

    async def test_no_retry_begins_that_could_not_end(
        self, auto_clock: FakeClock
    ) -> None:
        speaker = Speaker([RateLimitError("429", retry_after=30)], ["never"])
        async with execution_scope(ExecutionContext.with_deadline(10)):
            stream = await opened(speaker)
            with pytest.raises(RateLimitError):
                await all_of(stream)
        assert auto_clock.monotonic() < 1010


@pytest.mark.req("stream.budget")
async def test_a_held_reservation_is_given_back_on_every_way_out() -> None:
    """Two streams within one budget of calls: what was not sent may be sent later."""
    tracker = CostTracker()
    budget = TokenUsage(llm_calls=2)
    first = await opened(Speaker(["a"]), tracker, budget)
    second = await opened(Speaker(["b"]), tracker, budget)
    with pytest.raises(BudgetExhaustedError):
        await opened(Speaker(["c"]), tracker, budget)
    await first.aclose()
    third = await opened(Speaker(["d"]), tracker, budget)
    assert await all_of(second) + await all_of(third) == "bd"
    assert tracker.call_count == 2


@pytest.mark.req("stream.dropped", "D-17")
@pytest.mark.parametrize("read", [0, 1])
async def test_a_stream_that_is_dropped_settles_its_account(read: int) -> None:
    """Broken out of and never closed: paid for what was read, its room given back."""
    tracker = CostTracker()
    budget = TokenUsage(llm_calls=1, output_tokens=100)
    stream = await opened(Speaker(["12345678", "more"]), tracker, budget)
    for _ in range(read):
        await anext(stream.text_stream)
    del stream
    gc.collect()
    spent = TokenUsage(SENT, 2, 1) if read else TokenUsage()
    assert tracker.to_usage() == spent
    await asyncio.sleep(0)  # the generator is closed by the loop


def chunk(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


@pytest.mark.req("D-17")
@pytest.mark.parametrize("transport", ["aiohttp", "httpx2", "stdlib"])
@pytest.mark.parametrize("how", ["cancel", "close", "close-elsewhere"])
async def test_leaving_a_real_stream_closes_the_connection(
    transport: str, how: str
) -> None:
    if transport != "stdlib":
        pytest.importorskip(transport)
    gate = Gate()
    reply = sse_reply([chunk("12345678"), gate, chunk("late")])
    async with asyncio.timeout(LIMIT), ScriptedServer(reply) as server:
        provider = Provider(f"{server.url}/v1", "m", transport=transport)
        tracker = CostTracker()
        async with provider:
            stream = await opened(provider, tracker)
            assert await anext(stream.text_stream) == "12345678"
            reader = asyncio.ensure_future(anext(stream.text_stream))
            await gate.arrived()
            await settle()
            if how == "cancel":
                reader.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reader
            elif how == "close-elsewhere":
                await stream.aclose()
                with pytest.raises(StopAsyncIteration):
                    await reader
            else:
                reader.cancel()
                await asyncio.wait([reader])
                await stream.aclose()
            assert tracker.to_usage() == TokenUsage(SENT, 2, 1)
        gate.open()
