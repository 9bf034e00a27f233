"""Cancelling a tool loop, a conversation or a stream at every turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from executionkit._llm import LLMResponse
from executionkit.approval import ApprovalGate, ApprovalRequest
from executionkit.calls import ToolCall, ToolResult
from executionkit.cost import collecting_lost_cost
from executionkit.kit import Kit
from executionkit.observability import TraceEvent
from executionkit.patterns import react_loop
from executionkit.testing import Request, ScriptedProvider, settle, tool_call_reply
from executionkit.types import TokenUsage, Tool

LIMIT = 5
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}

Everywhere = Callable[..., Awaitable[int]]
Checker = Callable[[Sequence[Any]], None]
Made = tuple[Coroutine[Any, Any, Any], Callable[[bool], None]]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Scene:
    """A model, tools, a gate and a sink that all take a few turns of the loop."""

    def __init__(self, strictly: Checker, calls: int, *, simple: bool) -> None:
        self.strictly = strictly
        self.simple = simple
        self.replies: list[Any] = [
            tool_call_reply(*(("work", {"n": n}) for n in range(calls)), usage=USAGE),
            tool_call_reply(("work", {"n": 9}), usage=USAGE),
            LLMResponse("done", usage=USAGE),
        ]
        self.provider = ScriptedProvider(self.answer)
        self.answered = 0
        self.began: list[int] = []
        self.done: list[int] = []
        self.started: list[str] = []
        self.ended: list[str] = []
        self.transcript: list[dict[str, Any]] = []
        self.lost: list[TokenUsage] = []

    async def answer(self, request: Request) -> LLMResponse:
        await turns(2)
        self.answered += 1
        reply: LLMResponse = self.replies[request.number - 1]
        return reply

    async def work(self, n: int) -> int:
        self.began.append(n)
        await turns(1 + n % 3)
        self.done.append(n)
        return n

    async def decide(self, _request: ApprovalRequest) -> bool:
        await turns(1)
        return True

    async def sink(self, event: TraceEvent) -> None:
        where = {
            "tool_call_start": self.started,
            "tool_call_end": self.ended,
            "llm_call_start": self.started,
            "llm_call_end": self.ended,
            "llm_call_error": self.ended,
        }[event.kind]
        where.append(event.kind)
        await turns(1)

    @property
    def options(self) -> dict[str, Any]:
        own: dict[str, Any] = {"on_checkpoint": self.checkpoint}
        if not self.simple:
            gate = ApprovalGate(self.decide)
            own |= {"trace": self.sink, "approval_gate": gate}
        return own

    async def checkpoint(self, _index: int, state: dict[str, Any]) -> None:
        self.strictly(state["messages"])
        await turns(1)

    @property
    def tool(self) -> Tool:
        return Tool("work", "", {"type": "object"}, self.work)

    def check_history(self) -> None:
        self.strictly(self.transcript)
        answers = [m["content"] for m in self.transcript if m["role"] == "tool"]
        real = [text for text in answers if "cancelled" not in text]
        # What was done is on record. (A tool that a cancel hits between its last step
        # and the loop's next turn was cancelled in its own view, too.)
        assert len(real) == len(self.done)

    def check_pairs(self) -> None:
        assert len(self.started) == len(self.ended)

    def check_cost(self, cost: TokenUsage) -> None:
        # The tokens of a reply that a cancel met on its way are unknown.
        assert cost.llm_calls == len(self.provider.requests)
        assert cost.input_tokens in {10 * self.answered, 10 * (self.answered - 1)}

    def loop(self) -> Made:
        async def run() -> Any:
            with collecting_lost_cost(self.lost.append):
                return await react_loop(
                    self.provider,
                    "?",
                    [self.tool],
                    transcript=self.transcript,
                    **self.options,
                )

        def check(cancelled: bool) -> None:
            if not self.transcript:  # cancelled before it began
                assert not self.provider.requests
                return
            self.check_history()
            self.check_pairs()
            if cancelled:
                assert len(self.lost) == 1
                self.check_cost(self.lost[0])
            else:
                assert not self.lost

        return run(), check


@pytest.mark.req("TX-10")
@pytest.mark.parametrize("again_after", [None, 0, 1, 2])
@pytest.mark.parametrize("simple", [True, False])
@pytest.mark.parametrize("calls", [1, 3, 12])
async def test_a_cancelled_loop_leaves_order(
    calls: int,
    simple: bool,
    again_after: int | None,
    everywhere: Everywhere,
    strictly: Checker,
) -> None:
    """TX-10: no task left, the history is well-formed, the cost is booked once."""

    def make() -> Made:
        return Scene(strictly, calls, simple=simple).loop()

    assert await everywhere(make, again_after=again_after) > 10


@pytest.mark.req("TX-10")
async def test_a_conversation_goes_on_after_a_cancel(strictly: Checker) -> None:
    """TX-10: a real result for what was done, "cancelled" for the other."""
    first_done = asyncio.Event()

    async def quick() -> str:
        first_done.set()
        return "made"

    async def slow() -> str:
        await asyncio.sleep(LIMIT)
        return "never"

    schema: dict[str, Any] = {"type": "object"}
    tools = [Tool("quick", "", schema, quick), Tool("slow", "", schema, slow)]
    reply = tool_call_reply(("quick", {}), ("slow", {}))
    transcript: list[dict[str, Any]] = []
    task = asyncio.create_task(
        react_loop(ScriptedProvider([reply]), "?", tools, transcript=transcript)
    )
    async with asyncio.timeout(LIMIT):
        await first_done.wait()
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    strictly(transcript)
    answers = {
        m["tool_call_id"]: m["content"] for m in transcript if "tool_call_id" in m
    }
    assert answers["call-1"] == "made"
    assert "cancelled" in answers["call-2"]
    provider = ScriptedProvider(["ok"])
    asked = [*transcript, {"role": "user", "content": "and now?"}]
    result = await react_loop(provider, messages=asked)
    assert result.metadata["history_repairs"] == 0
    strictly(provider.requests[0].messages)


@pytest.mark.req("TX-09")
async def test_no_tool_acts_after_the_run_has_failed(strictly: Checker) -> None:
    """TX-09: when a policy ends the run, every other call has ended before."""
    acted: list[str] = []
    waiting = asyncio.Event()

    async def slow() -> None:
        waiting.set()
        await turns(50)
        acted.append("too late")

    class Strict:
        """A runner whose policy is to stop the run."""

        async def tool_schemas(self) -> list[dict[str, Any]]:
            return [Tool(n, "", {}, slow).to_schema() for n in ("slow", "fatal")]

        async def run_calls(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
            if calls[0].name == "slow":
                await slow()
                return [ToolResult("slow")]
            await waiting.wait()
            from executionkit.errors import DeadlineExceededError

            msg = "no time left"
            raise DeadlineExceededError(msg)

    transcript: list[dict[str, Any]] = []
    reply = tool_call_reply(("slow", {}), ("fatal", {}), usage=USAGE)
    with pytest.raises(Exception, match="no time left") as caught:
        await react_loop(
            ScriptedProvider([reply]), "?", Strict(), transcript=transcript
        )
    await turns(100)
    assert acted == []
    assert caught.value.cost == TokenUsage(10, 2, 1)  # type: ignore[attr-defined]
    strictly(transcript)


class Talk:
    """A kit in the middle of a conversation; everything takes a few turns."""

    def __init__(self, strictly: Checker) -> None:
        self.scene = Scene(strictly, 3, simple=True)
        self.kit = Kit(self.scene.provider)
        self.kit.messages = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "hi"},
        ]

    def turn(self) -> Made:
        async def run() -> Any:
            return await self.kit.turn("work", [self.scene.tool])

        def check(cancelled: bool) -> None:
            kit, scene = self.kit, self.scene
            scene.check_cost(kit.usage)
            if kit.last_transcript:
                scene.transcript = [dict(m) for m in kit.last_transcript]
                scene.check_history()
            if cancelled:
                assert [m["content"] for m in kit.messages] == ["hello", "hi"]
            else:
                assert len(kit.messages) == len(kit.last_transcript) > 6
            scene.strictly(kit.messages)

        return run(), check


@pytest.mark.parametrize("again_after", [None, 0, 1])
async def test_a_cancelled_turn_is_paid_for_and_not_part_of_the_conversation(
    again_after: int | None, everywhere: Everywhere, strictly: Checker
) -> None:
    def make() -> Made:
        return Talk(strictly).turn()

    assert await everywhere(make, again_after=again_after) > 10


class Stream:
    """A streamed reply that is read to its end; everything takes a few turns."""

    def __init__(self) -> None:
        self.sent = 0
        self.closed = 0
        self.kinds: list[str] = []
        self.read: list[str] = []
        self.kit = Kit(self)

    async def complete(self, *_args: Any, **_kwargs: Any) -> LLMResponse:
        raise NotImplementedError

    async def stream(
        self,
        _messages: Any,
        *,
        usage_sink: list[LLMResponse],
        **_kwargs: Any,
    ) -> AsyncIterator[str]:
        self.sent += 1
        try:
            await turns(2)
            for number in range(3):
                yield f"word{number} "
                await turns(1)
            usage_sink.append(LLMResponse("all", usage=USAGE))
        finally:
            self.closed += 1
            await turns(1)

    async def sink(self, event: TraceEvent) -> None:
        self.kinds.append(event.kind)
        await turns(1)

    def reading(self) -> Made:
        async def run() -> None:
            stream = await self.kit.stream_consensus("a question", trace=self.sink)
            async with stream:
                async for piece in stream:
                    self.read.append(piece)
                    await turns(1)

        def check(cancelled: bool) -> None:
            assert self.sent == self.closed == self.kit.usage.llm_calls
            assert self.kinds.count("llm_call_start") == len(self.kinds) / 2
            if not cancelled:
                assert self.kit.usage == TokenUsage(10, 2, 1)
            elif self.sent:
                assert self.kit.usage.input_tokens > 0

        return run(), check


@pytest.mark.req("D-17")
@pytest.mark.parametrize("again_after", [None, 0, 1, 2])
async def test_a_cancelled_stream_is_closed_and_paid_for(
    again_after: int | None, everywhere: Everywhere
) -> None:
    """D-17: tokens of a partial stream were never recorded."""

    def make() -> Made:
        return Stream().reading()

    assert await everywhere(make, again_after=again_after) > 10


@pytest.mark.req("react.tool-groups")
@pytest.mark.parametrize("leaf", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("threaded", [False, True])
def test_an_exit_inside_a_group_leaves_alone(
    leaf: type[BaseException], threaded: bool
) -> None:
    def stop() -> str:
        msg = "several"
        raise BaseExceptionGroup(msg, [ValueError("x"), leaf()])

    async def stop_later() -> str:
        return stop()

    work = Tool("stop", "Stops", {"type": "object"}, stop if threaded else stop_later)
    provider = ScriptedProvider([tool_call_reply(("stop", {})), "never"])
    with pytest.raises(leaf) as caught:
        asyncio.run(react_loop(provider, "q", [work]))
    assert type(caught.value) is leaf
    assert "also: ValueError: x" in caught.value.__notes__


@pytest.mark.req("react.tool-groups")
async def test_a_cancellation_inside_a_group_is_the_tools_own_failure() -> None:
    async def stop() -> str:
        msg = "several"
        raise BaseExceptionGroup(msg, [asyncio.CancelledError()])

    provider = ScriptedProvider([tool_call_reply(("stop", {})), "done"])
    work = Tool("stop", "Stops", {"type": "object"}, stop)
    result = await react_loop(provider, "q", [work])
    assert result.value == "done"
