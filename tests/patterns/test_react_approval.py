"""Approval and tracing of tool calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from executionkit._llm import LLMResponse
from executionkit.approval import ApprovalDecision, ApprovalGate, ApprovalRequest
from executionkit.calls import CallProblem, ToolCall
from executionkit.context import ExecutionContext, execution_scope
from executionkit.errors import (
    ApprovalDeniedError,
    ApprovalTimeoutError,
    DeadlineExceededError,
    ErrorCode,
    ProviderError,
)
from executionkit.observability import MemoryTraceSink, TraceEvent
from executionkit.patterns import react_loop
from executionkit.testing import FakeClock, ScriptedProvider, settle, tool_call_reply
from executionkit.types import PatternResult, Tool

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}},
    "required": ["amount"],
}


class Bank:
    """Pays, and remembers what it paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.tool = Tool("pay", "Pays.", SCHEMA, self.pay)

    async def pay(self, amount: int) -> str:
        self.paid.append(amount)
        return "paid"


def pay(*amounts: Any) -> LLMResponse:
    return tool_call_reply(*(("pay", {"amount": amount}) for amount in amounts))


def texts(result: PatternResult[str]) -> list[str]:
    return [m["content"] for m in result.metadata["messages"] if m["role"] == "tool"]


@pytest.mark.req("react.approval")
class TestApproval:
    async def test_a_no_becomes_an_observation_and_nothing_happens(self) -> None:
        bank = Bank()
        provider = ScriptedProvider([pay(5), "I was not allowed to."])
        gate = ApprovalGate.deny_all("too much")
        result = await react_loop(provider, "?", [bank.tool], approval_gate=gate)
        assert bank.paid == []
        assert texts(result) == ["Tool 'pay' blocked by approval: too much"]
        (made,) = result.metadata["tool_results"]
        assert (made.error_code, made.attempts) == (ErrorCode.APPROVAL_DENIED, 0)

    async def test_a_no_without_a_reason(self) -> None:
        bank = Bank()
        gate = ApprovalGate(lambda _request: False)
        result = await react_loop(
            ScriptedProvider([pay(5), "x"]), "?", [bank.tool], approval_gate=gate
        )
        assert texts(result) == ["Tool 'pay' blocked by approval"]

    async def test_the_request_says_what_is_asked(self) -> None:
        seen: list[ApprovalRequest] = []

        async def decide(request: ApprovalRequest) -> bool:
            seen.append(request)
            return True

        bank = Bank()
        await react_loop(
            ScriptedProvider([pay(5), "x"]),
            "?",
            [bank.tool],
            approval_gate=ApprovalGate(decide),
        )
        facts = {"tool_call_id": "call-1", "arguments": {"amount": 5}}
        assert seen == [ApprovalRequest("tool_call", "pay", facts)]
        assert bank.paid == [5]

    @pytest.mark.req("D-27")
    async def test_nobody_is_asked_about_what_cannot_run(self) -> None:
        """D-27: a human was asked to approve unknown tools and invalid arguments."""
        asked: list[str] = []

        async def decide(request: ApprovalRequest) -> bool:
            asked.append(request.subject)
            return True

        bank = Bank()
        reply = LLMResponse(
            "",
            (
                ToolCall("a", "pay", {"amount": "five"}),
                ToolCall("b", "sell", {}),
                ToolCall("c", "pay", {"amount": 1}),
                ToolCall("d", "pay", {"amount": 2}),
            ),
            problems=(CallProblem(call_id="e", name="pay", message="cut", index=4),),
        )
        await react_loop(
            ScriptedProvider([reply, "x"]),
            "?",
            [bank.tool],
            approval_gate=ApprovalGate(decide),
            max_tool_calls=3,
        )
        assert asked == ["pay"]
        assert bank.paid == [1]

    async def test_some_may_and_some_may_not(self) -> None:
        async def decide(request: ApprovalRequest) -> bool:
            return bool(request.metadata["arguments"]["amount"] < 10)

        bank = Bank()
        result = await react_loop(
            ScriptedProvider([pay(1, 50, 2), "x"]),
            "?",
            [bank.tool],
            approval_gate=ApprovalGate(decide),
        )
        assert bank.paid == [1, 2]
        assert texts(result) == ["paid", "Tool 'pay' blocked by approval", "paid"]

    @pytest.mark.req("D-08")
    @pytest.mark.parametrize("amounts", [(1,), (1, 2)])
    async def test_silence_raises_when_the_policy_says_so(
        self,
        amounts: tuple[int, ...],
        fake_clock: FakeClock,
        strictly: Callable[[Any], None],
    ) -> None:
        """D-08: the raise policy never raised, it became an observation."""

        async def decide(request: ApprovalRequest) -> bool:
            if request.metadata["arguments"]["amount"] == 1:
                await fake_clock.sleep(1000)
            return True

        bank = Bank()
        sink = MemoryTraceSink()
        gate = ApprovalGate(decide, timeout_seconds=10, on_timeout="raise")
        transcript: list[dict[str, Any]] = []
        provider = ScriptedProvider(
            [pay(*amounts)], usage={"prompt_tokens": 3, "completion_tokens": 1}
        )
        task = asyncio.create_task(
            react_loop(
                provider,
                "?",
                [bank.tool],
                approval_gate=gate,
                trace=sink,
                transcript=transcript,
            )
        )
        await fake_clock.advance(11)
        with pytest.raises(ApprovalTimeoutError) as caught:
            await task
        assert caught.value.cost.llm_calls == 1
        assert 1 not in bank.paid
        strictly(transcript)
        strictly(caught.value.metadata["messages"])
        if len(amounts) == 2:
            assert bank.paid == [2]
            assert transcript[-1]["content"] == "paid"
        ends = [e for e in sink.events if e.kind == "tool_call_end"]
        assert "ApprovalTimeoutError" in [e.payload.get("error") for e in ends]

    async def test_silence_is_a_no_when_the_policy_says_so(
        self, auto_clock: FakeClock
    ) -> None:
        async def decide(_request: ApprovalRequest) -> bool:
            await auto_clock.sleep(1000)
            return True

        bank = Bank()
        gate = ApprovalGate(decide, timeout_seconds=10, on_timeout="deny")
        result = await react_loop(
            ScriptedProvider([pay(1), "x"]), "?", [bank.tool], approval_gate=gate
        )
        assert texts(result) == ["Tool 'pay' blocked by approval: no answer within 10s"]

    async def test_the_deadline_ends_the_waiting(self, auto_clock: FakeClock) -> None:
        async def decide(_request: ApprovalRequest) -> bool:
            await auto_clock.sleep(1000)
            return True

        bank = Bank()
        async with execution_scope(ExecutionContext.with_deadline(5)):
            with pytest.raises(DeadlineExceededError) as caught:
                await react_loop(
                    ScriptedProvider([pay(1)]),
                    "?",
                    [bank.tool],
                    approval_gate=ApprovalGate(decide),
                )
        assert caught.value.cost.llm_calls == 1
        assert bank.paid == []

    @pytest.mark.parametrize("kind", [OSError, ProviderError, asyncio.CancelledError])
    async def test_a_broken_gate_is_no_consent(self, kind: type[BaseException]) -> None:
        async def decide(_request: ApprovalRequest) -> bool:
            raise kind

        bank = Bank()
        result = await react_loop(
            ScriptedProvider([pay(1), "x"]),
            "?",
            [bank.tool],
            approval_gate=ApprovalGate(decide),
        )
        assert bank.paid == []
        (text,) = texts(result)
        assert text.startswith("Tool 'pay' ")
        (made,) = result.metadata["tool_results"]
        assert made.error_code is ErrorCode.APPROVAL_DENIED
        if kind is OSError:
            assert text.startswith("Tool 'pay' failed: OSError")
            assert "not run" in text
            assert isinstance(made.exception, OSError)

    async def test_a_denial_that_is_raised_is_a_no(self) -> None:
        async def decide(_request: ApprovalRequest) -> bool:
            msg = "not today"
            raise ApprovalDeniedError(msg)

        bank = Bank()
        result = await react_loop(
            ScriptedProvider([pay(1), "x"]),
            "?",
            [bank.tool],
            approval_gate=ApprovalGate(decide),
        )
        assert texts(result) == ["Tool 'pay' blocked by approval: not today"]

    async def test_a_gate_of_ones_own_must_say_true(self) -> None:
        class Odd(ApprovalGate):
            # Written before `effect` was there.
            async def request(  # type: ignore[override]
                self, _request: ApprovalRequest
            ) -> Any:
                return type("Answer", (), {"approved": "no", "reason": ""})()

        bank = Bank()
        gate = Odd(lambda _request: ApprovalDecision(approved=True))
        await react_loop(
            ScriptedProvider([pay(1), "x"]), "?", [bank.tool], approval_gate=gate
        )
        assert bank.paid == []


def shown(event: TraceEvent) -> dict[str, Any]:
    return {"kind": event.kind, **event.payload}


def tool_events(sink: MemoryTraceSink) -> list[TraceEvent]:
    return [event for event in sink.events if event.kind.startswith("tool_call")]


@pytest.mark.req("react.trace")
class TestTracing:
    async def run(self, *replies: Any, **options: Any) -> MemoryTraceSink:
        sink = MemoryTraceSink()
        provider = ScriptedProvider([*replies, "x"])
        await react_loop(provider, "?", [Bank().tool], trace=sink, **options)
        return sink

    async def test_each_call_starts_and_ends(self) -> None:
        sink = await self.run(pay(5))
        start, end = (shown(event) for event in tool_events(sink))
        assert start["span_id"] == end["span_id"] != start["parent_id"]
        for told in (start, end):
            del told["span_id"], told["parent_id"]
        assert end.pop("duration") >= 0
        assert [start, end] == [
            {
                "kind": "tool_call_start",
                "tool_name": "pay",
                "tool_call_id": "call-1",
                "arguments": {"amount": "[redacted]"},
            },
            {
                "kind": "tool_call_end",
                "tool_name": "pay",
                "tool_call_id": "call-1",
                "attempts": 1,
                "cached": False,
                "blocked": False,
            },
        ]
        assert sink.kinds == [
            "pattern_start",
            "llm_call_start",
            "llm_call_end",
            "tool_call_start",
            "tool_call_end",
            "llm_call_start",
            "llm_call_end",
            "pattern_end",
        ]

    async def test_arguments_are_shown_on_request_but_no_secrets(self) -> None:
        schema = {"type": "object"}

        async def log_in(**_arguments: Any) -> None:
            return None

        sink = MemoryTraceSink()
        arguments = {"user": "ada", "password": "correct horse", "n": [1]}
        await react_loop(
            ScriptedProvider([tool_call_reply(("log_in", arguments)), "x"]),
            "?",
            [Tool("log_in", "", schema, log_in)],
            trace=sink,
            redact_trace_args=False,
        )
        start = tool_events(sink)[0].payload["arguments"]
        assert (start["user"], start["n"]) == ("ada", [1])
        assert "correct horse" not in str(start)

    @pytest.mark.req("D-38")
    async def test_every_way_a_call_can_go_is_paired(self) -> None:
        """D-38."""

        async def broken() -> None:
            raise OSError

        bank = Bank()
        sink = MemoryTraceSink()

        async def decide(request: ApprovalRequest) -> bool:
            if request.subject == "odd":
                raise OSError
            return request.subject != "no"

        names = ("pay", "broken", "no", "odd", "unknown", "over", "over")
        schema: dict[str, Any] = {"type": "object"}
        tools = [
            Tool(name, "", schema, broken) for name in ("broken", "no", "odd", "over")
        ]
        reply = tool_call_reply(*((name, {}) for name in names))
        await react_loop(
            ScriptedProvider([reply, "x"]),
            "?",
            [bank.tool, *tools],
            trace=sink,
            approval_gate=ApprovalGate(decide),
            max_tool_calls_per_round=6,
        )
        ends = {}
        started = []
        for event in tool_events(sink):
            call_id = event.payload["tool_call_id"]
            if event.kind == "tool_call_start":
                started.append(call_id)
            else:
                assert call_id in started
                assert call_id not in ends
                ends[call_id] = event.payload
        assert sorted(ends) == sorted(started)
        assert len(started) == 6  # the one over the limit never started
        facts = {
            names[int(call_id[5:]) - 1]: (end["blocked"], end.get("error"))
            for call_id, end in ends.items()
        }
        assert facts == {
            "pay": (False, "TOOL_ARGUMENT_ERROR"),
            "broken": (False, "TOOL_EXECUTION_FAILED"),
            "no": (True, "APPROVAL_DENIED"),
            "odd": (True, "APPROVAL_DENIED"),
            "unknown": (False, "TOOL_NOT_FOUND"),
            "over": (False, "TOOL_EXECUTION_FAILED"),
        }

    @pytest.mark.req("D-08")
    @pytest.mark.parametrize("kind", ["tool_call_start", "tool_call_end"])
    async def test_a_failing_sink_changes_nothing(self, kind: str) -> None:
        """D-08: the payment ran and the model was told `failed: OSError`."""

        async def sink(event: TraceEvent) -> None:
            if event.kind == kind:
                raise OSError

        bank = Bank()
        result = await react_loop(
            ScriptedProvider([pay(5), "x"]), "?", [bank.tool], trace=sink
        )
        assert bank.paid == [5]
        assert texts(result) == ["paid"]

    @pytest.mark.parametrize("where", ["tool_call_start", "tool_call_end", "tool"])
    @pytest.mark.parametrize("amounts", [(1,), (1, 2)])
    async def test_a_cancelled_call_ends_too(
        self, where: str, amounts: tuple[int, ...], strictly: Callable[[Any], None]
    ) -> None:
        """D-38: start without end on cancel."""
        stuck = asyncio.Event()
        kinds: list[str] = []

        async def sink(event: TraceEvent) -> None:
            if event.kind.startswith("tool"):
                kinds.append(event.kind)
            if event.kind == where and not stuck.is_set():
                stuck.set()
                await asyncio.sleep(5)

        async def slow(amount: int) -> int:
            if where == "tool":
                stuck.set()
                await asyncio.sleep(5)
            return amount

        transcript: list[dict[str, Any]] = []
        task = asyncio.create_task(
            react_loop(
                ScriptedProvider([pay(*amounts), "x"]),
                "?",
                [Tool("pay", "", SCHEMA, slow)],
                trace=sink,
                transcript=transcript,
            )
        )
        async with asyncio.timeout(5):
            await stuck.wait()
            await settle()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert kinds.count("tool_call_start") == kinds.count("tool_call_end")
        assert kinds.count("tool_call_start") == len(amounts)
        strictly(transcript)

    @pytest.mark.parametrize("amounts", [(1,), (1, 2)])
    async def test_a_sink_that_hangs_does_not_hold_up_a_cancel(
        self, amounts: tuple[int, ...], fake_clock: FakeClock
    ) -> None:
        never = asyncio.Event()

        async def sink(event: TraceEvent) -> None:
            if event.kind.startswith("tool"):
                await never.wait()

        task = asyncio.create_task(
            react_loop(
                ScriptedProvider([pay(*amounts)]), "?", [Bank().tool], trace=sink
            )
        )
        await settle()
        task.cancel()
        await settle()
        assert not task.done()
        await fake_clock.advance(1)
        assert task.cancelled()
