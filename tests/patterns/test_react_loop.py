"""The tool loop: what it asks, what it reports, when it stops."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from executionkit._llm import LLMResponse
from executionkit._mock import MockProvider
from executionkit.calls import ToolCall
from executionkit.context import ExecutionContext, execution_scope
from executionkit.engine.retry import RetryConfig, with_retry
from executionkit.errors import (
    BudgetExhaustedError,
    DeadlineExceededError,
    MaxIterationsError,
    NoProgressError,
    PermanentError,
    ProviderError,
    RateLimitError,
)
from executionkit.patterns import react_loop
from executionkit.testing import (
    FakeClock,
    Request,
    ScriptedProvider,
    tool_call_reply,
)
from executionkit.types import (
    PatternResult,
    TerminationReason,
    TokenUsage,
    Tool,
)

if TYPE_CHECKING:
    from collections.abc import Callable

OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
ONE_OF_EACH = {"prompt_tokens": 10, "completion_tokens": 2}


async def double(number: int) -> int:
    return 2 * number


NUMBER = {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
    "additionalProperties": False,
}
DOUBLE = Tool("double", "Doubles a number.", NUMBER, double)


def calls(number: int, **more: Any) -> LLMResponse:
    return tool_call_reply(("double", {"number": number}), usage=ONE_OF_EACH, **more)


def texts(result: PatternResult[str]) -> list[str]:
    """The observations of a run."""
    return [m["content"] for m in result.metadata["messages"] if m["role"] == "tool"]


@pytest.mark.req("react.rounds")
class TestTheRounds:
    async def test_the_model_calls_and_then_answers(
        self, strictly: Callable[[Any], None]
    ) -> None:
        provider = ScriptedProvider([calls(4), "8"])
        result = await react_loop(provider, "Twice 4?", [DOUBLE])
        assert result.value == "8"
        assert result.score is None
        assert [item.last for item in provider.requests] == ["Twice 4?", "8"]
        strictly(provider.requests[1].messages)

    async def test_the_request_offers_the_tools_and_the_sampling(self) -> None:
        provider = ScriptedProvider(["8"])
        await react_loop(provider, "?", [DOUBLE])
        asked = provider.requests[0]
        assert asked.tools == [DOUBLE.to_schema()]
        assert (asked.temperature, asked.max_tokens) == (0.3, 4096)
        assert asked.messages == [{"role": "user", "content": "?"}]

    async def test_each_call_gets_one_answer_in_the_order_of_the_calls(self) -> None:
        reply = tool_call_reply(*(("double", {"number": n}) for n in range(5)))
        provider = ScriptedProvider([reply, "done"])
        result = await react_loop(provider, "?", [DOUBLE])
        assert texts(result) == ["0", "2", "4", "6", "8"]
        answered = [m["tool_call_id"] for m in provider.requests[1].messages[2:]]
        assert answered == [f"call-{n}" for n in range(1, 6)]

    async def test_a_conversation_goes_on_and_is_not_changed(self) -> None:
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Twice 4?"},
        ]
        before = json.dumps(messages)
        provider = ScriptedProvider([calls(4), "8"])
        result = await react_loop(provider, tools=[DOUBLE], messages=messages)
        assert json.dumps(messages) == before
        assert provider.requests[0].messages == messages
        assert len(result.metadata["messages"]) == 5

    async def test_tools_may_come_from_a_generator(self) -> None:
        """D-41: a generator of tools made every call unknown."""
        provider = ScriptedProvider([calls(1), calls(2), "done"])
        result = await react_loop(provider, "?", (tool for tool in [DOUBLE]))
        assert texts(result) == ["2", "4"]

    async def test_without_tools_it_is_one_question(self) -> None:
        provider = ScriptedProvider(["yes"])
        result = await react_loop(provider, "?", tool_choice="auto")
        assert result.value == "yes"
        assert provider.requests[0].tools is None
        assert provider.requests[0].options == {}

    def test_the_name_in_the_package_is_the_function(self) -> None:
        module = importlib.import_module("executionkit.patterns.react_loop")
        assert module.react_loop is react_loop
        assert sys.modules["executionkit.patterns"].react_loop is react_loop


@pytest.mark.req("react.metadata")
class TestTheResult:
    async def test_it_tells_how_the_run_went(self) -> None:
        reply = tool_call_reply(
            ("double", {"number": 1}), ("double", {"number": 2}), usage=ONE_OF_EACH
        )
        provider = ScriptedProvider([reply, calls(3), "done"], usage=ONE_OF_EACH)
        result = await react_loop(provider, "?", [DOUBLE])
        facts = dict(result.metadata)
        messages = facts.pop("messages")
        results = facts.pop("tool_results")
        assert facts == {
            "rounds": 3,
            "tool_calls_made": ["double"] * 3,
            "rejected_tool_calls": 0,
            "truncated_responses": 0,
            "truncated_observations": 0,
            "messages_trimmed": 0,
            "summarized": 0,
            "termination_reason": TerminationReason.NATURAL,
            "tools_offered": 1,
            "tools_never_called": False,
            "history_repairs": 0,
            "over_budget": False,
        }
        assert result.cost == TokenUsage(30, 6, 3)
        assert isinstance(messages, tuple)
        assert messages[-1] == {"role": "assistant", "content": "done"}
        assert [item.result for item in results] == [2, 4, 6]

    async def test_nothing_in_it_can_be_changed(self) -> None:
        """D-33: dicts of the transcript could be changed."""
        result = await react_loop(ScriptedProvider([calls(1), "x"]), "?", [DOUBLE])
        with pytest.raises(TypeError):
            result.metadata["messages"][0]["role"] = "system"
        with pytest.raises(TypeError):
            result.metadata["messages"][1]["tool_calls"][0]["id"] = "x"
        with pytest.raises(TypeError):
            result.metadata["rounds"] = 0  # type: ignore[index]

    async def test_tools_that_were_offered_and_never_called_are_reported(self) -> None:
        result = await react_loop(ScriptedProvider(["I cannot"]), "?", [DOUBLE])
        assert result.metadata["tools_never_called"] is True
        without = await react_loop(ScriptedProvider(["I cannot"]), "?")
        assert without.metadata["tools_never_called"] is False

    async def test_results_are_kept_whole_when_observations_are_cut(self) -> None:
        async def talk() -> str:
            return "a" * 5000

        tool = Tool("talk", "", OBJECT, talk)
        reply = tool_call_reply(("talk", {}))
        result = await react_loop(
            ScriptedProvider([reply, "x"]), "?", [tool], max_observation_chars=200
        )
        assert len(texts(result)[0]) == 200
        assert result.metadata["truncated_observations"] == 1
        assert len(result.metadata["tool_results"][0].result) == 5000

    async def test_a_refusal_is_handed_on(self) -> None:
        reply = LLMResponse("", refusal="I will not")
        result = await react_loop(ScriptedProvider([reply]), "?")
        assert result.metadata["refusal"] == "I will not"
        assert result.metadata["termination_reason"] is TerminationReason.NATURAL


@pytest.mark.req("react.endings")
class TestHowItEnds:
    async def test_too_many_rounds_is_an_error_with_everything_so_far(
        self, strictly: Callable[[Any], None]
    ) -> None:
        """TX-11: no call is left without a result, so a summary can be asked for."""
        provider = ScriptedProvider(calls(n) for n in range(9))
        with pytest.raises(MaxIterationsError, match="max_rounds") as caught:
            await react_loop(provider, "?", [DOUBLE], max_rounds=2)
        error = caught.value
        assert error.cost == TokenUsage(20, 4, 2)
        assert error.metadata["termination_reason"] is TerminationReason.MAX_ITERATIONS
        assert error.metadata["rounds"] == 2
        assert len(error.metadata["tool_results"]) == 2
        history = error.metadata["messages"]
        strictly(history)
        closing = ScriptedProvider(["in short: no"])
        asked = [*history, {"role": "user", "content": "Sum up."}]
        result = await react_loop(closing, messages=asked)
        assert result.metadata["history_repairs"] == 0
        strictly(closing.requests[0].messages)

    @pytest.mark.req("TX-11")
    async def test_a_call_in_the_only_round_is_answered(
        self, strictly: Callable[[Any], None]
    ) -> None:
        with pytest.raises(MaxIterationsError) as caught:
            await react_loop(ScriptedProvider([calls(1)]), "?", [DOUBLE], max_rounds=1)
        strictly(caught.value.metadata["messages"])

    @pytest.mark.req("TC-17")
    @pytest.mark.parametrize("reason", ["tool_calls", "stop", "unknown"])
    async def test_an_empty_reply_ends_the_run_with_its_own_reason(
        self, reason: str
    ) -> None:
        """TC-17: exactly one model call, no loop."""
        provider = ScriptedProvider([LLMResponse("", (), reason)])
        result = await react_loop(provider, "?", [DOUBLE])
        assert len(provider.requests) == 1
        assert result.metadata["termination_reason"] is TerminationReason.EMPTY_REPLY

    async def test_a_truncated_answer_is_flagged_and_warned_about(self) -> None:
        provider = ScriptedProvider([LLMResponse("half an ans", (), "length")])
        with pytest.warns(UserWarning, match="truncated"):
            result = await react_loop(provider, "?")
        assert result.metadata["truncated_responses"] == 1
        assert result.metadata["termination_reason"] is TerminationReason.TRUNCATED

    @pytest.mark.req("LM-19")
    async def test_a_paid_answer_over_budget_is_returned_and_flagged(self) -> None:
        """LM-19: the reply is valid and paid; only the next request is refused."""
        usage = {"prompt_tokens": 100, "completion_tokens": 40}
        provider = ScriptedProvider(["fine"], usage=usage)
        budget = TokenUsage(output_tokens=30)
        result = await react_loop(provider, "?", max_cost=budget)
        assert result.value == "fine"
        assert result.metadata["over_budget"] is True

    async def test_an_exhausted_budget_ends_the_run_with_what_was_done(self) -> None:
        provider = ScriptedProvider([calls(1), calls(2), "never asked for"])
        budget = TokenUsage(llm_calls=2)
        with pytest.raises(BudgetExhaustedError) as caught:
            await react_loop(provider, "?", [DOUBLE], max_cost=budget)
        assert caught.value.cost == TokenUsage(20, 4, 2)
        assert caught.value.metadata["budget"] == budget
        assert caught.value.metadata["termination_reason"] is None
        assert len(caught.value.metadata["messages"]) == 5
        assert len(provider.requests) == 2

    async def test_a_failing_model_leaves_cost_and_conversation(self) -> None:
        """D-03: the money that was spent disappeared from errors of the model."""
        provider = ScriptedProvider([calls(1), PermanentError("401")])
        with pytest.raises(PermanentError) as caught:
            await react_loop(provider, "?", [DOUBLE])
        assert caught.value.cost == TokenUsage(10, 2, 2)
        assert caught.value.metadata["tool_calls_made"] == ["double"]
        assert len(caught.value.metadata["messages"]) == 3

    async def test_the_transcript_is_kept_also_when_it_fails(self) -> None:
        transcript: list[dict[str, Any]] = [{"role": "user", "content": "old"}]
        provider = ScriptedProvider([calls(1), PermanentError("401")])
        with pytest.raises(PermanentError):
            await react_loop(provider, "?", [DOUBLE], transcript=transcript)
        assert [m["role"] for m in transcript] == ["user", "assistant", "tool"]
        assert transcript[0]["content"] == "?"

    async def test_the_list_of_messages_may_be_the_transcript(self) -> None:
        history: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
        provider = ScriptedProvider([calls(1), "two"])
        await react_loop(provider, tools=[DOUBLE], messages=history, transcript=history)
        assert [m["role"] for m in history] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]

    @pytest.mark.req("react.deadline")
    async def test_the_deadline_of_the_context_ends_it(
        self, auto_clock: FakeClock
    ) -> None:
        async def slow(number: int) -> int:
            await auto_clock.sleep(7)
            return number

        tool = Tool("double", "", NUMBER, slow)
        provider = ScriptedProvider([calls(1), calls(2), "never"])
        async with execution_scope(ExecutionContext.with_deadline(10)):
            with pytest.raises(DeadlineExceededError) as caught:
                await react_loop(provider, "?", [tool])
        results = caught.value.metadata["tool_results"]
        assert [item.result for item in results] == [1]
        assert "cancelled" in caught.value.metadata["messages"][-1]["content"]
        assert caught.value.cost.llm_calls == 2
        assert auto_clock.monotonic() == 1010


@pytest.mark.req("TX-18")
class TestCircles:
    """TX-18: the same call for ever."""

    @staticmethod
    def tool(answers: Any) -> Tool:
        async def execute(**_arguments: Any) -> Any:
            return next(answers)

        return Tool("exec", "", {"type": "object"}, execute)

    async def test_equal_rounds_end_the_run_with_partial_results(self) -> None:
        replies = iter(
            [
                tool_call_reply(("exec", {"cmd": "x", "dir": "/"})),
                tool_call_reply(("exec", {"dir": "/", "cmd": "x"})),
            ]
            * 4
        )
        provider = ScriptedProvider(replies)
        with pytest.raises(NoProgressError, match="max_repeated_rounds") as caught:
            await react_loop(provider, "?", [self.tool(iter([""] * 9))])
        assert isinstance(caught.value, MaxIterationsError)
        facts = caught.value.metadata
        assert facts["termination_reason"] is TerminationReason.NO_PROGRESS
        assert facts["rounds"] == 4
        assert len(facts["tool_results"]) == 4
        assert caught.value.cost.llm_calls == 4

    async def test_polling_with_changing_results_goes_on(self) -> None:
        reply = tool_call_reply(("exec", {"cmd": "status"}))
        provider = ScriptedProvider([*[reply] * 7, "ready"])
        result = await react_loop(
            provider, "?", [self.tool(iter(range(9)))], max_rounds=9
        )
        assert result.value == "ready"

    async def test_a_cycle_of_two_is_found_too(self) -> None:
        a = tool_call_reply(("exec", {"cmd": "a"}))
        b = tool_call_reply(("exec", {"cmd": "b"}))
        provider = ScriptedProvider([a, b] * 9)
        with pytest.raises(NoProgressError) as caught:
            await react_loop(provider, "?", [self.tool(iter([""] * 40))], max_rounds=20)
        assert caught.value.metadata["rounds"] == 8

    async def test_it_can_be_turned_off(self) -> None:
        reply = tool_call_reply(("exec", {}))
        with pytest.raises(MaxIterationsError) as caught:
            await react_loop(
                ScriptedProvider([reply] * 9),
                "?",
                [self.tool(iter([""] * 9))],
                max_rounds=9,
                max_repeated_rounds=None,
            )
        assert not isinstance(caught.value, NoProgressError)


@pytest.mark.req("react.validation")
class TestWhatIsRefusedBeforeAnythingIsPaid:
    @staticmethod
    async def refused(kind: type[Exception], match: str, **kwargs: Any) -> None:
        provider = ScriptedProvider(["x"])
        kwargs = {"prompt": "?", "tools": [DOUBLE], **kwargs}
        with pytest.raises(kind, match=match):
            await react_loop(provider, **kwargs)
        assert provider.requests == []

    @pytest.mark.parametrize(
        "name",
        [
            "max_rounds",
            "max_tool_calls_per_round",
            "max_observation_chars",
            "max_history_messages",
            "max_tool_concurrency",
        ],
    )
    @pytest.mark.parametrize("value", [0, -1, 1.5, True])
    async def test_counts_below_one(self, name: str, value: Any) -> None:
        await self.refused(ValueError, f"{name} must be >= 1", **{name: value})

    @pytest.mark.parametrize("value", [0, -1, 1.5, True])
    async def test_a_senseless_output_limit(self, value: Any) -> None:
        await self.refused(ValueError, "max_tokens`? must be", max_tokens=value)

    @pytest.mark.parametrize("value", [1, 0, True, 2.0])
    async def test_repeats_below_two(self, value: Any) -> None:
        match = "max_repeated_rounds must be >= 2"
        await self.refused(ValueError, match, max_repeated_rounds=value)

    @pytest.mark.parametrize("value", [0, -1.0, float("nan")])
    async def test_a_senseless_timeout(self, value: float) -> None:
        await self.refused(ValueError, "tool_timeout must be > 0", tool_timeout=value)

    @pytest.mark.parametrize("value", [-1, 1.5, True])
    async def test_senseless_call_limits(self, value: Any) -> None:
        await self.refused(ValueError, "max_tool_calls", max_tool_calls=value)
        limits = {"double": value}
        await self.refused(ValueError, "'double'", tool_call_limits=limits)

    async def test_a_limit_for_a_tool_that_is_not_on_offer(self) -> None:
        match = r"'doubel', which is not on offer \(double\)"
        await self.refused(ValueError, match, tool_call_limits={"doubel": 1})

    async def test_tools_of_one_name_each_named_once(self) -> None:
        tools = [DOUBLE, DOUBLE, DOUBLE]
        match = r"tool names must be unique.*\['double'\]"
        await self.refused(ValueError, match, tools=tools)

    async def test_what_is_no_tool(self) -> None:
        await self.refused(TypeError, "`Tool` objects, got function", tools=[double])

    async def test_a_schema_that_is_none_names_the_tool(self) -> None:
        broken = Tool("odd", "", {"type": "nonsense"}, double)
        provider = ScriptedProvider(["x"])
        with pytest.raises(ValueError, match="schema") as caught:
            await react_loop(provider, "?", [broken])
        assert any("'odd'" in note for note in caught.value.__notes__)

    async def test_both_prompt_and_messages(self) -> None:
        messages = [{"role": "user", "content": "?"}]
        await self.refused(ValueError, "not both", messages=messages)

    async def test_neither_prompt_nor_messages(self) -> None:
        match = "requires either prompt or messages"
        await self.refused(ValueError, match, prompt=None)

    async def test_an_empty_conversation(self) -> None:
        await self.refused(ValueError, "non-empty", prompt=None, messages=[])

    async def test_an_unknown_mode(self) -> None:
        await self.refused(ValueError, "tool_mode", tool_mode="xml")

    async def test_a_budget_that_makes_no_sense(self) -> None:
        await self.refused(ValueError, "llm_calls", max_cost=TokenUsage(llm_calls=-2))

    async def test_a_gate_that_is_none(self) -> None:
        gate = lambda _request: True  # noqa: E731
        await self.refused(TypeError, "approval_gate", approval_gate=gate)

    async def test_a_provider_that_cannot_call_tools(self) -> None:
        provider = ScriptedProvider(["x"], supports_tools=False)
        with pytest.raises(TypeError, match=r"ToolCallingProvider.*supports_tools"):
            await react_loop(provider, "?", [DOUBLE])

    @pytest.mark.parametrize("slip", ["max_round", "temprature", "aproval_gate"])
    async def test_a_slip_in_a_parameter(self, slip: str) -> None:
        await self.refused(TypeError, f"{slip}.*did you mean", **{slip: 1})


@pytest.mark.req("react.options")
class TestOptionsForTheProvider:
    async def test_unknown_ones_are_passed_on_with_every_request(self) -> None:
        """D-41: patterns took no extra options for the provider."""
        provider = ScriptedProvider([calls(1), "x"])
        given: dict[str, Any] = {
            "seed": 7,
            "stop": ["\n"],
            "parallel_tool_calls": False,
            "top_p": 0.9,
        }
        await react_loop(provider, "?", [DOUBLE], **given)
        assert [item.options for item in provider.requests] == [given, given]

    @pytest.mark.parametrize(
        "choice",
        ["required", "any", {"type": "function", "function": {"name": "double"}}],
    )
    async def test_a_forced_call_is_forced_once(self, choice: Any) -> None:
        """Otherwise the model could never answer."""
        provider = ScriptedProvider([calls(1), "x"])
        await react_loop(provider, "?", [DOUBLE], tool_choice=choice)
        first, second = provider.requests
        assert first.options == {"tool_choice": choice}
        assert second.options == {}

    @pytest.mark.parametrize("choice", ["auto", "none", {"type": "auto"}])
    async def test_a_free_choice_stays(self, choice: Any) -> None:
        provider = ScriptedProvider([calls(1), "x"])
        await react_loop(provider, "?", [DOUBLE], tool_choice=choice)
        assert provider.requests[1].options == {"tool_choice": choice}

    async def test_none_leaves_the_providers_default(self) -> None:
        provider = ScriptedProvider(["x"])
        await react_loop(provider, "?", temperature=None, max_tokens=None)
        assert provider.requests[0].temperature is None
        assert provider.requests[0].max_tokens is None


@pytest.mark.req("react.retry")
class TestRetries:
    @pytest.mark.req("HT-12")
    async def test_no_retries_means_one_request(self) -> None:
        """HT-12: a caller that asks for no retries gets exactly one request."""
        provider = MockProvider(exception=RateLimitError("429", retry_after=1.0))
        with pytest.raises(RateLimitError) as caught:
            await react_loop(provider, "?", retry=RetryConfig(max_retries=0))
        assert provider.call_count == 1
        assert caught.value.cost.llm_calls == 1

    async def test_the_final_error_says_how_many_requests_were_sent(
        self, auto_clock: FakeClock
    ) -> None:
        provider = MockProvider(exception=ProviderError("503"))
        with pytest.raises(ProviderError) as caught:
            await react_loop(provider, "?", retry=RetryConfig(max_retries=2))
        assert provider.call_count == caught.value.attempts == 3
        assert caught.value.cost.llm_calls == 3

    @pytest.mark.req("HT-12")
    async def test_layers_of_retries_do_not_multiply(
        self, auto_clock: FakeClock
    ) -> None:
        """HT-12: a provider that retries by itself has the last word."""
        sent: list[int] = []

        async def always_full() -> LLMResponse:
            sent.append(1)
            msg = "429"
            raise RateLimitError(msg, retry_after=0.1)

        async def patient(_request: Request) -> LLMResponse:
            return await with_retry(always_full, RetryConfig(max_retries=3))

        provider = ScriptedProvider(patient)
        with pytest.raises(RateLimitError) as caught:
            await react_loop(provider, "?", retry=RetryConfig(max_retries=3))
        assert len(sent) == caught.value.attempts == 4
        assert str(caught.value).count("(requests sent: 4)") == 1

    async def test_a_failure_in_between_is_repaired(
        self, auto_clock: FakeClock
    ) -> None:
        provider = ScriptedProvider([calls(1), ProviderError("503"), "two"])
        result = await react_loop(provider, "?", [DOUBLE])
        assert result.value == "two"
        assert result.cost.llm_calls == 3
        assert result.metadata["rounds"] == 2


@pytest.mark.req("react.checkpoint")
class TestCheckpoints:
    async def test_each_round_with_calls_is_told(self) -> None:
        seen: list[tuple[int, dict[str, Any]]] = []
        provider = ScriptedProvider([calls(1, content="hm"), calls(2), "x"])
        await react_loop(
            provider, "?", [DOUBLE], on_checkpoint=lambda i, s: seen.append((i, s))
        )
        assert [index for index, _ in seen] == [0, 1]
        state = seen[1][1]
        assert state["round"] == 1
        assert state["tool_calls_made"] == ["double", "double"]
        assert state["cost"] == {
            "input_tokens": 20,
            "output_tokens": 4,
            "llm_calls": 2,
        }
        assert seen[0][1]["last_response"] == "hm"
        assert len(state["messages"]) == 5
        json.dumps(state)

    async def test_its_state_is_its_own(self) -> None:
        def vandal(_index: int, state: dict[str, Any]) -> None:
            for message in state["messages"]:
                message.get("tool_calls", []).clear()
                message["content"] = "gone"

        provider = ScriptedProvider([calls(1), "x"])
        result = await react_loop(provider, "?", [DOUBLE], on_checkpoint=vandal)
        assert texts(result) == ["2"]
        assert provider.requests[1].messages[1]["tool_calls"]

    async def test_a_failing_one_changes_nothing(self) -> None:
        async def broken(_index: int, _state: dict[str, Any]) -> None:
            raise OSError

        provider = ScriptedProvider([calls(1), "x"])
        result = await react_loop(provider, "?", [DOUBLE], on_checkpoint=broken)
        assert result.value == "x"


@pytest.mark.req("react.thinking")
async def test_thinking_blocks_go_back_with_the_calls_they_led_to() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    reply = LLMResponse(
        "",
        (ToolCall("c", "double", {"number": 1}),),
        "tool_use",
        parts=(thought, {"type": "tool_use"}),
    )
    provider = ScriptedProvider([reply, "two"])
    result = await react_loop(provider, "?", [DOUBLE])
    assert provider.requests[1].messages[1]["thinking_blocks"] == [thought]
    assert result.metadata["messages"][1]["thinking_blocks"] == [thought]


@pytest.mark.req("react.endings")
async def test_warnings_turned_into_errors_do_not_lose_the_cost() -> None:
    provider = ScriptedProvider([LLMResponse("half", (), "length")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="truncated"):
            await react_loop(provider, "?")
