"""A kit: every pattern over one provider, a limiter, usage, and a conversation."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from executionkit._llm import LLMResponse
from executionkit._mock import MockProvider
from executionkit.context import ExecutionContext, execution_scope
from executionkit.engine.rate_bucket import SlidingWindow, TokenBucket
from executionkit.errors import (
    BudgetExhaustedError,
    ConsensusFailedError,
    DeadlineExceededError,
    MaxIterationsError,
    PermanentError,
    StreamError,
)
from executionkit.kit import Kit
from executionkit.observability import MemoryTraceSink
from executionkit.patterns import consensus, react_loop
from executionkit.testing import (
    FakeClock,
    Request,
    ScriptedProvider,
    settle,
    tool_call_reply,
)
from executionkit.types import PatternResult, TokenUsage, Tool

LIMIT = 5
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
ONE = TokenUsage(10, 2, 1)


async def double(n: int) -> int:
    return 2 * n


DOUBLE = Tool("double", "", {"type": "object"}, double)


def call(n: int = 1) -> LLMResponse:
    return tool_call_reply(("double", {"n": n}), usage=USAGE)


def answering(text: str = "4") -> Callable[[Request], LLMResponse]:
    return lambda _request: LLMResponse(text, usage=USAGE)


async def read(kit: Kit) -> str:
    stream = await kit.stream_consensus("?")
    return "".join([piece async for piece in stream])


async def read_react(kit: Kit) -> str:
    stream = await kit.stream_react_loop("?", [DOUBLE])
    return "".join([piece async for piece in stream])


METHODS: dict[str, Callable[[Kit], Coroutine[Any, Any, Any]]] = {
    "consensus": lambda kit: kit.consensus("?", num_samples=3),
    "refine": lambda kit: kit.refine("?", max_iterations=0),
    "structured": lambda kit: kit.structured("?", max_retries=0),
    "map_reduce": lambda kit: kit.map_reduce(
        ["a", "b"],
        map_prompt_template="{item}",
        reduce_prompt_template="{mapped_outputs}",
    ),
    "pipe": lambda kit: kit.pipe("?", consensus, num_samples=2),
    "react": lambda kit: kit.react("?", [DOUBLE]),
    "turn": lambda kit: kit.turn("?", [DOUBLE]),
    "stream_consensus": read,
    "stream_react_loop": read_react,
}

CALLS = {
    "consensus": 3,
    "refine": 1,
    "structured": 1,
    "map_reduce": 3,
    "pipe": 2,
    "react": 1,
    "turn": 1,
    "stream_consensus": 1,
    "stream_react_loop": 1,
}


def provider_for(name: str) -> ScriptedProvider:
    text = '{"a": 1}' if name == "structured" else "5"
    return ScriptedProvider(answering(text))


@pytest.mark.req("kit.usage")
class TestUsage:
    @pytest.mark.parametrize("name", METHODS)
    async def test_every_method_counts(self, name: str) -> None:
        provider = provider_for(name)
        kit = Kit(provider)
        await METHODS[name](kit)
        calls = CALLS[name]
        assert kit.usage == TokenUsage(10 * calls, 2 * calls, calls)
        assert len(provider.requests) == calls

    async def test_costs_add_up(self) -> None:
        kit = Kit(ScriptedProvider(answering()))
        first = await kit.consensus("?", num_samples=3)
        second = await kit.refine("?", max_iterations=0)
        assert kit.usage == first.cost + second.cost

    @pytest.mark.parametrize("name", METHODS)
    async def test_it_can_be_turned_off(self, name: str) -> None:
        kit = Kit(provider_for(name), track_cost=False)
        await METHODS[name](kit)
        assert kit.usage == TokenUsage()

    @pytest.mark.parametrize("name", METHODS)
    @pytest.mark.req("D-03")
    async def test_what_failed_had_its_price(self, name: str) -> None:
        """D-03: `Kit.usage` stayed 0."""
        kit = Kit(MockProvider(exception=PermanentError("401")))
        with pytest.raises(PermanentError) as caught:
            await METHODS[name](kit)
        assert kit.usage == caught.value.cost
        assert kit.usage.llm_calls >= 1

    @pytest.mark.req("D-02")
    async def test_one_error_for_many_failures(self) -> None:
        """D-02: an ExceptionGroup escaped, and nothing was counted."""
        kit = Kit(ScriptedProvider(answering()))
        with pytest.raises(BudgetExhaustedError) as caught:
            await kit.consensus("?", num_samples=5, max_cost=TokenUsage(llm_calls=2))
        assert kit.usage == caught.value.cost == TokenUsage(20, 4, 2)

    async def test_a_vote_that_fails_was_paid_for(self) -> None:
        kit = Kit(ScriptedProvider(["a", "b"], usage=USAGE))
        with pytest.raises(ConsensusFailedError):
            await kit.consensus("?", num_samples=2, strategy="unanimous")
        assert kit.usage == TokenUsage(20, 4, 2)

    async def test_foreign_errors_do_not_hide_what_was_spent(self) -> None:
        kit = Kit(ScriptedProvider([call(), ZeroDivisionError()]))
        with pytest.raises(ZeroDivisionError):
            await kit.react("?", [DOUBLE])
        assert kit.usage == TokenUsage(10, 2, 2)

    async def test_calls_through_its_provider_are_not_counted(self) -> None:
        kit = Kit(ScriptedProvider(answering()))
        await consensus(kit.provider, "?", num_samples=2)
        assert kit.usage == TokenUsage()

    async def test_a_kit_inside_a_tool_of_another_counts_for_itself(self) -> None:
        inner = Kit(ScriptedProvider(answering("inner")))

        async def ask() -> str:
            return (await inner.consensus("?", num_samples=2)).value

        script: list[Any] = [tool_call_reply(("ask", {}), usage=USAGE), "outer"]
        outer = Kit(ScriptedProvider(script, usage=USAGE))
        await outer.react("?", [Tool("ask", "", {"type": "object"}, ask)])
        assert inner.usage == TokenUsage(20, 4, 2)
        assert outer.usage == TokenUsage(20, 4, 2)


@pytest.mark.req("kit.limiter", "D-19")
class TestTheLimiter:
    @pytest.mark.parametrize("name", METHODS)
    async def test_each_method_takes_one_permit(
        self, name: str, fake_clock: FakeClock
    ) -> None:
        """D-19: streams skipped it, `structured` did not exist."""
        bucket = TokenBucket(rate=0.001, capacity=5)
        kit = Kit(provider_for(name), rate_limiter=bucket)
        await METHODS[name](kit)
        assert bucket.stats().available == pytest.approx(4)

    async def test_five_streams_are_paced(self, auto_clock: FakeClock) -> None:
        bucket = TokenBucket(rate=0.5)
        kit = Kit(ScriptedProvider(answering()), rate_limiter=bucket)
        for _ in range(5):
            await read(kit)
        assert auto_clock.monotonic() == 1000 + 8

    async def test_a_window_will_do(self, auto_clock: FakeClock) -> None:
        kit = Kit(ScriptedProvider(answering()), rate_limiter=SlidingWindow(2, 10))
        await asyncio.gather(*(kit.consensus("?", num_samples=1) for _ in range(4)))
        assert auto_clock.monotonic() == 1010

    @pytest.mark.req("trace.attempts-and-waits")
    @pytest.mark.parametrize("name", ["consensus", "turn", "stream_consensus"])
    async def test_a_wait_is_told_of(self, name: str, auto_clock: FakeClock) -> None:
        """It comes before the run, and belongs to whatever the run belongs to."""
        sink = MemoryTraceSink()
        kit = Kit(provider_for(name), rate_limiter=TokenBucket(rate=0.5))
        runs: dict[str, Any] = {
            "consensus": lambda: kit.consensus("?", num_samples=1, trace=sink),
            "turn": lambda: kit.turn("?", trace=sink),
            "stream_consensus": lambda: kit.stream_consensus("?", trace=sink),
        }
        for _ in range(2):
            await runs[name]()
        (wait,) = [event for event in sink.events if event.kind == "wait"]
        assert wait.payload == {"parent_id": None, "reason": "permit", "duration": 2.0}

    @pytest.mark.req("trace.attempts-and-waits", "trace.hanging-sink")
    async def test_a_wait_inside_of_a_tool_is_the_tools(
        self, auto_clock: FakeClock
    ) -> None:
        sink, other = MemoryTraceSink(), MemoryTraceSink()
        kit = Kit(ScriptedProvider(answering()), rate_limiter=TokenBucket(rate=0.5))

        async def ask(**_arguments: Any) -> str:
            for trace in (sink, sink, other):
                await kit.consensus("?", num_samples=1, trace=trace)
            return "asked"

        tools = [Tool("ask", "Asks.", {"type": "object"}, ask)]
        provider = ScriptedProvider([tool_call_reply(("ask", {})), "done"])
        await react_loop(provider, "?", tools, trace=sink)
        (tool,) = [e for e in sink.events if e.kind == "tool_call_start"]
        own = [e.payload["parent_id"] for e in sink.events if e.kind == "wait"]
        others = [e.payload["parent_id"] for e in other.events if e.kind == "wait"]
        span = tool.payload["span_id"]
        assert (own, others) == ([span, span], [span])

    @pytest.mark.req("trace.hanging-sink")
    async def test_a_sink_that_hangs_holds_no_run_up(
        self, auto_clock: FakeClock
    ) -> None:
        async def hang(event: Any) -> None:
            if event.kind == "wait":
                await asyncio.Event().wait()

        kit = Kit(ScriptedProvider(answering()), rate_limiter=TokenBucket(rate=0.5))
        for _ in range(2):
            assert (await kit.consensus("?", num_samples=1, trace=hang)).value

    @pytest.mark.req("D-29")
    async def test_a_cancelled_wait_leaves_nothing(self, fake_clock: FakeClock) -> None:
        """D-29: a coroutine that was never awaited."""
        bucket = TokenBucket(rate=0.001)
        await bucket.acquire()
        kit = Kit(ScriptedProvider(answering()), rate_limiter=bucket)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for method in METHODS.values():
                task = asyncio.create_task(method(kit))
                await settle()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert kit.usage == TokenUsage()

    async def test_a_wait_beyond_the_deadline_fails_at_once(
        self, auto_clock: FakeClock
    ) -> None:
        bucket = TokenBucket(rate=0.01)
        await bucket.acquire()
        provider = ScriptedProvider(answering())
        kit = Kit(provider, rate_limiter=bucket)
        async with execution_scope(ExecutionContext.with_deadline(5)):
            for method in (METHODS["consensus"], METHODS["stream_consensus"]):
                with pytest.raises(DeadlineExceededError, match="permit") as caught:
                    await method(kit)
                assert caught.value.retry_after == pytest.approx(100)
        assert auto_clock.monotonic() == 1000
        assert provider.requests == []

    async def test_what_cannot_work_takes_no_permit(self) -> None:
        bucket = TokenBucket(rate=0.001, capacity=2)
        silent: Any = type("Silent", (), {"complete": print})()
        kit = Kit(silent, rate_limiter=bucket)
        for method in ("react", "turn", "stream_consensus", "stream_react_loop"):
            with pytest.raises(TypeError):
                await METHODS[method](kit)
        assert bucket.stats().available == pytest.approx(2)


@pytest.mark.req("kit.conversation")
class TestTheConversation:
    async def test_turns_follow_each_other(self) -> None:
        provider = ScriptedProvider([call(4), "8", "you're welcome"])
        kit = Kit(provider)
        assert (await kit.turn("Twice 4?", [DOUBLE])).value == "8"
        assert (await kit.turn("Thanks")).value == "you're welcome"
        roles = [message["role"] for message in kit.messages]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        assert provider.requests[2].messages == kit.messages[:5]
        assert kit.messages == list(kit.last_transcript)

    async def test_it_begins_with_what_is_given(self) -> None:
        given = [{"role": "system", "content": "Be brief."}]
        kit = Kit(ScriptedProvider(["ok"]), messages=given)
        await kit.turn("hi")
        assert given == [{"role": "system", "content": "Be brief."}]
        assert [m["role"] for m in kit.messages] == ["system", "user", "assistant"]

    async def test_the_list_may_be_changed_between_turns(self) -> None:
        provider = ScriptedProvider(["a", "b"])
        kit = Kit(provider)
        await kit.turn("one")
        kit.messages = [{"role": "system", "content": "new"}]
        kit.messages.append({"role": "user", "content": "x"})
        await kit.turn("two")
        assert [m["content"] for m in provider.requests[1].messages] == [
            "new",
            "x",
            "two",
        ]

    async def test_its_messages_are_plain_and_its_own(self) -> None:
        kit = Kit(ScriptedProvider([call(), "x"]))
        result = await kit.turn("?", [DOUBLE])
        kit.messages[1]["tool_calls"].clear()
        assert result.metadata["messages"][1]["tool_calls"]
        assert kit.last_transcript[1]["tool_calls"]

    @pytest.mark.req("D-32")
    async def test_two_turns_at_once_wait_for_each_other(self) -> None:
        """D-32: one of them was lost."""
        active = peak = 0

        async def model(request: Request) -> str:
            nonlocal active, peak
            active += 1
            peak = max(peak, active)
            await settle(3)
            active -= 1
            return f"answer to {request.last}"

        kit = Kit(ScriptedProvider(model))
        await asyncio.gather(*(kit.turn(f"question {n}") for n in range(5)))
        assert peak == 1
        assert len(kit.messages) == 10
        for n in range(5):
            asked, answered = kit.messages[2 * n : 2 * n + 2]
            assert answered["content"] == f"answer to {asked['content']}"

    @pytest.mark.req("D-32")
    async def test_a_failed_turn_leaves_its_transcript(self) -> None:
        """D-32: a documented retry executed the payment twice."""
        kit = Kit(ScriptedProvider([call(4), PermanentError("401"), "ok"]))
        await kit_turn_fails(kit)
        assert kit.messages == []
        roles = [message["role"] for message in kit.last_transcript]
        assert roles == ["user", "assistant", "tool"]
        assert kit.last_transcript[2]["content"] == "8"
        with pytest.raises(TypeError):
            kit.last_transcript[2]["content"] = "x"  # type: ignore[index]
        kit.messages = [dict(message) for message in kit.last_transcript]
        assert (await kit.turn("go on")).value == "ok"

    async def test_a_turn_refused_at_the_door_keeps_its_question(self) -> None:
        kit = Kit(ScriptedProvider([]))
        with pytest.raises(ValueError, match="max_rounds"):
            await kit.turn("hm?", max_rounds=0)
        assert kit.last_transcript[-1]["content"] == "hm?"
        assert kit.messages == []

    def test_one_kit_serves_loop_after_loop(self) -> None:
        async def model(request: Request) -> str:
            await settle(3)
            return "ok"

        kit = Kit(ScriptedProvider(model))

        async def both() -> None:
            await asyncio.gather(kit.turn("a"), kit.turn("b"))

        asyncio.run(both())
        asyncio.run(both())
        assert len(kit.messages) == 8

    async def test_without_tool_calls_of_its_own_there_is_the_json_mode(self) -> None:
        provider = ScriptedProvider(['{"answer": "ok"}'] * 2, supports_tools=False)
        kit = Kit(provider)
        with pytest.raises(TypeError, match="ToolCallingProvider"):
            await kit.turn("?", [DOUBLE])
        with pytest.raises(TypeError, match="ToolCallingProvider"):
            await kit.react("?", [DOUBLE])
        assert (await kit.turn("?", [DOUBLE], tool_mode="json")).value == "ok"
        assert (await kit.react("?", [DOUBLE], tool_mode="json")).value == "ok"


async def kit_turn_fails(kit: Kit) -> None:
    with pytest.raises(PermanentError):
        await kit.turn("pay", [DOUBLE])


@pytest.mark.req("kit.streams")
class TestStreams:
    async def test_the_cost_is_added_when_the_stream_ends(self) -> None:
        kit = Kit(ScriptedProvider(answering("one two three")))
        stream = await kit.stream_consensus("?")
        assert stream.metadata == {"streaming": True}
        assert kit.usage == TokenUsage()
        assert "".join([piece async for piece in stream]) == "one two three"
        assert kit.usage == stream.cost == ONE
        await stream.aclose()
        assert kit.usage == ONE

    async def test_the_cost_is_added_when_the_stream_is_left(self) -> None:
        kit = Kit(ScriptedProvider(answering("one two three")))
        async with await kit.stream_consensus("?") as stream:
            await anext(stream.text_stream)
        assert kit.usage == stream.cost
        assert kit.usage.llm_calls == 1
        assert kit.usage.output_tokens > 0

    @pytest.mark.req("stream.dropped", "D-17")
    async def test_the_cost_is_added_when_the_stream_is_dropped(self) -> None:
        kit = Kit(ScriptedProvider(answering("one two three")))
        stream = await kit.stream_consensus("?")
        async for _ in stream:
            break
        del stream
        gc.collect()
        assert kit.usage.llm_calls == 1
        assert kit.usage.output_tokens > 0

    async def test_a_stream_that_never_began_cost_nothing(self) -> None:
        kit = Kit(ScriptedProvider(answering()))
        async with await kit.stream_consensus("?"):
            pass
        assert kit.usage == TokenUsage()

    async def test_a_stream_that_breaks_was_paid_for(self) -> None:
        class Breaking(MockProvider):
            async def stream(self, *_args: Any, **_kwargs: Any) -> AsyncIterator[str]:
                yield "12345678"
                raise StreamError

        kit = Kit(Breaking())
        with pytest.raises(StreamError) as caught:
            await read(kit)
        assert caught.value.cost == kit.usage
        assert (kit.usage.llm_calls, kit.usage.output_tokens) == (1, 2)

    async def test_options_reach_the_provider(self) -> None:
        provider = ScriptedProvider(answering())
        kit = Kit(provider)
        stream = await kit.stream_consensus("?", seed=3, temperature=None)
        assert "".join([piece async for piece in stream]) == "4"
        asked = provider.requests[0]
        assert (asked.temperature, asked.max_tokens) == (None, 4096)
        assert asked.options == {"seed": 3}
        await read_react(kit)
        assert provider.requests[1].temperature == 0.3
        assert provider.requests[1].tools is None

    @pytest.mark.parametrize("method", ["stream_consensus", "stream_react_loop"])
    async def test_slips_are_refused(self, method: str) -> None:
        provider = ScriptedProvider(answering())
        kit = Kit(provider)
        slips: list[dict[str, Any]] = [{"max_token": 1}, {"temprature": 1}]
        for slip in [*slips, {"messages": []}]:
            with pytest.raises(TypeError):
                await getattr(kit, method)("?", **slip)
        with pytest.raises(ValueError, match="max_tokens"):
            await getattr(kit, method)("?", max_tokens=0)
        assert provider.requests == []

    async def test_a_provider_without_streams_is_refused(self) -> None:
        class Plain:
            async def complete(self, *_args: Any, **_kwargs: Any) -> LLMResponse:
                return LLMResponse("x")

        kit = Kit(Plain())
        for method in (read, read_react):
            with pytest.raises(TypeError, match="StreamingProvider"):
                await method(kit)

    async def test_a_spent_budget_is_refused(self) -> None:
        kit = Kit(ScriptedProvider(answering()))
        with pytest.raises(BudgetExhaustedError):
            await kit.stream_consensus("?", max_cost=TokenUsage(llm_calls=-1))
        assert kit.usage == TokenUsage()


class Closing(MockProvider):
    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


@pytest.mark.req("kit.closes")
async def test_leaving_the_kit_closes_its_provider() -> None:
    provider = Closing()
    async with Kit(provider) as kit:
        assert kit.provider is provider
        assert provider.closed == 0
    assert provider.closed == 1
    async with Kit(MockProvider()):
        pass


@pytest.mark.req("kit.usage")
@pytest.mark.parametrize(
    "name", [name for name in METHODS if not name.startswith("stream")]
)
async def test_a_cancelled_method_is_paid_for(name: str) -> None:
    """What was sent counts once, whenever the cancel comes."""

    async def model(_request: Request) -> LLMResponse:
        await settle(2)
        return LLMResponse('{"a": 1}' if name == "structured" else "5", usage=USAGE)

    for ticks in range(0, 40, 3):
        provider = ScriptedProvider(model)
        kit = Kit(provider)
        task: asyncio.Task[PatternResult[Any]] = asyncio.create_task(METHODS[name](kit))
        for _ in range(ticks):
            await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(LIMIT):
            await asyncio.wait([task])
        assert kit.usage.llm_calls == len(provider.requests)
        if not task.cancelled():
            assert kit.usage.input_tokens == 10 * CALLS[name]


@pytest.mark.req("kit.usage")
async def test_rounds_that_ran_out_were_paid_for() -> None:
    kit = Kit(ScriptedProvider(call(n) for n in range(9)))
    with pytest.raises(MaxIterationsError):
        await kit.react("?", [DOUBLE], max_rounds=2)
    assert kit.usage == TokenUsage(20, 4, 2)
