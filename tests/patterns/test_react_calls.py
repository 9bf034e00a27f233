"""The tool loop and the calls that models really make."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from executionkit._json_tools import parse_offer
from executionkit._llm import LLMResponse
from executionkit._wire.openai import parse_completion
from executionkit.calls import CallProblem, ToolCall
from executionkit.errors import BadResponseError, ErrorCode
from executionkit.patterns import react_loop
from executionkit.patterns._react_round import Round, cap_text, read_calls
from executionkit.testing import ScriptedProvider, tool_call_reply
from executionkit.types import PatternResult, TerminationReason, Tool

if TYPE_CHECKING:
    from collections.abc import Callable

    Checker = Callable[[Any], None]

OBJECT: dict[str, Any] = {"type": "object"}


def recorder(
    name: str = "note", parameters: dict[str, Any] | None = None
) -> tuple[Tool, list[dict[str, Any]]]:
    """A tool that remembers what it was called with."""
    seen: list[dict[str, Any]] = []

    async def execute(**arguments: Any) -> str:
        seen.append(arguments)
        return f"noted {len(seen)}"

    return Tool(name, "", parameters or OBJECT, execute), seen


def wire(*calls: dict[str, Any], reason: str | None = "tool_calls") -> LLMResponse:
    """A reply as it comes from a server of OpenAI's kind."""
    message = {"role": "assistant", "content": None, "tool_calls": list(calls)}
    return parse_completion(
        {"choices": [{"message": message, "finish_reason": reason}]}
    )


def wire_call(call_id: Any, name: str, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def texts(result: PatternResult[str]) -> list[str]:
    return [m["content"] for m in result.metadata["messages"] if m["role"] == "tool"]


@pytest.mark.req("TC-01", "TC-07")
async def test_empty_arguments_run_a_tool_that_needs_none_and_go_back_as_an_object(
    strictly: Checker,
) -> None:
    """TC-01 a, TC-07."""
    tool, seen = recorder()
    provider = ScriptedProvider([wire(wire_call("a", "note", "")), "x"])
    await react_loop(provider, "?", [tool])
    assert seen == [{}]
    sent = provider.requests[1].messages
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == "{}"
    strictly(sent)


@pytest.mark.req("TC-01")
async def test_empty_arguments_name_the_parameter_that_is_missing() -> None:
    """TC-01 b."""
    tool, seen = recorder(parameters={"type": "object", "required": ["city"]})
    provider = ScriptedProvider([wire(wire_call("a", "note", "")), "x"])
    result = await react_loop(provider, "?", [tool])
    assert seen == []
    assert "Missing required argument `city`" in texts(result)[0]


@pytest.mark.req("TC-02", "TC-16")
async def test_a_cut_call_is_answered_and_the_others_run(strictly: Checker) -> None:
    """TC-02; TC-16 `length`: only calls whose arguments are complete may run."""
    tool, seen = recorder("write")
    half = '{"path": "/srv/a.txt", "body": "half a sen' + "x" * 5000
    reply = wire(
        wire_call("1", "write", '{"n": 1}'),
        wire_call("2", "write", half),
        wire_call("3", "write", '{"n": 3}'),
        reason="length",
    )
    provider = ScriptedProvider([reply, "x"])
    with pytest.warns(UserWarning, match="truncated"):
        result = await react_loop(provider, "?", [tool])
    assert seen == [{"n": 1}, {"n": 3}]
    sent = provider.requests[1].messages
    strictly(sent)
    answers = {m["tool_call_id"]: m["content"] for m in sent if m["role"] == "tool"}
    assert answers["1"] == "noted 1"
    assert answers["3"] == "noted 2"
    assert "'write' was not run" in answers["2"]
    assert "/srv/a.txt" in answers["2"]
    assert str(len(half)) in answers["2"]
    assert len(answers["2"]) < 1100
    assert result.metadata["truncated_responses"] == 1
    assert result.metadata["tool_calls_made"] == ["write", "write"]
    codes = [item.error_code for item in result.metadata["tool_results"]]
    assert codes == [None, ErrorCode.TOOL_ARGUMENT_ERROR, None]


@pytest.mark.req("TC-03")
async def test_broken_json_is_never_taken_for_no_arguments() -> None:
    """TC-03: falling back to `{}` would purge everything."""
    tool, seen = recorder("purge")
    reply = wire(wire_call("a", "purge", '{"scope": "tmp",, }'))
    result = await react_loop(ScriptedProvider([reply, "x"]), "?", [tool])
    assert seen == []
    assert result.metadata["tools_never_called"] is False


@pytest.mark.req("TC-08", "TC-10")
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (json.dumps('{"city": "Oslo"}'), {"city": "Oslo"}),
        ('{"body": "{\\"a\\": 1}"}', {"body": '{"a": 1}'}),
        ('{"body": "42"}', {"body": "42"}),
        ('{"body": "true"}', {"body": "true"}),
    ],
)
async def test_the_object_is_decoded_and_texts_inside_stay_texts(
    arguments: str, wanted: dict[str, Any]
) -> None:
    """TC-08, TC-10."""
    tool, seen = recorder()
    await react_loop(
        ScriptedProvider([wire(wire_call("a", "note", arguments)), "x"]), "?", [tool]
    )
    assert seen == [wanted]


@pytest.mark.req("TC-12")
async def test_an_id_that_comes_twice_is_renamed_the_second_time(
    strictly: Checker,
) -> None:
    """TC-12, with a provider of one's own that does not rename."""
    tool, seen = recorder()
    reply = LLMResponse(
        "",
        (
            ToolCall("fn:301", "note", {"n": 1}),
            ToolCall("fn:301", "note", {"n": 2}),
            ToolCall("fn:301-2", "note", {"n": 3}),
        ),
    )
    provider = ScriptedProvider([reply, "x"])
    await react_loop(provider, "?", [tool])
    assert seen == [{"n": 1}, {"n": 2}, {"n": 3}]
    sent = provider.requests[1].messages
    ids = [call["id"] for call in sent[1]["tool_calls"]]
    assert ids[0] == "fn:301"
    assert ids[2] == "fn:301-2"
    assert [m["tool_call_id"] for m in sent[2:]] == ids
    strictly(sent)


@pytest.mark.req("TC-13")
async def test_an_id_may_come_again_in_a_later_turn(strictly: Checker) -> None:
    """TC-13."""
    tool, _ = recorder()
    replies = [
        LLMResponse("", (ToolCall("search:0", "note", {"n": n}),)) for n in range(3)
    ]
    provider = ScriptedProvider([*replies, "x"])
    result = await react_loop(provider, "?", [tool])
    sent = provider.requests[3].messages
    strictly(sent)
    assert [m["role"] for m in sent] == ["user", *["assistant", "tool"] * 3]
    assert texts(result) == ["noted 1", "noted 2", "noted 3"]
    again = ScriptedProvider(["y"])
    later = await react_loop(again, messages=result.metadata["messages"])
    assert later.metadata["history_repairs"] == 0
    strictly(again.requests[0].messages)


@pytest.mark.req("TC-14")
@pytest.mark.parametrize("call_id", [None, ""])
async def test_a_missing_id_is_made_once(call_id: Any, strictly: Checker) -> None:
    """TC-14: the same id for call and result, also after saving and loading."""
    tool, _ = recorder()
    reply = wire(wire_call(call_id, "note", "{}"), wire_call(call_id, "note", "{}"))
    provider = ScriptedProvider([reply, "x"])
    result = await react_loop(provider, "?", [tool])
    sent = provider.requests[1].messages
    strictly(sent)
    loaded = json.loads(json.dumps(result.metadata["messages"]))
    again = ScriptedProvider(["y"])
    await react_loop(again, messages=loaded)
    assert again.requests[0].messages[:4] == sent


async def test_ids_that_are_no_texts_become_texts(strictly: Checker) -> None:
    tool, seen = recorder()
    odd: Any = 7
    reply = LLMResponse("", (ToolCall(odd, "note", {}), ToolCall("7", "note", {})))
    provider = ScriptedProvider([reply, "x"])
    await react_loop(provider, "?", [tool])
    assert len(seen) == 2
    strictly(provider.requests[1].messages)


@pytest.mark.req("TC-15")
async def test_an_unknown_tool_is_answered_with_what_there_is(
    strictly: Checker,
) -> None:
    """TC-15."""
    tool, seen = recorder("get_weather")
    replies = [
        tool_call_reply(("get_weathr", {})),
        tool_call_reply(("get weather!", {})),
        tool_call_reply(("\u5929\u6c17", {})),
        tool_call_reply(("w" * 300, {})),
    ]
    provider = ScriptedProvider([*replies, "x"])
    result = await react_loop(provider, "?", [tool])
    assert result.value == "x"
    assert seen == []
    for text in texts(result):
        assert text.startswith("Error: Unknown tool '")
        assert text.endswith("Available tools: get_weather")
    assert "'get weather!'" in texts(result)[1]
    strictly(provider.requests[-1].messages)
    assert result.metadata["rounds"] == 5


@pytest.mark.req("TC-16")
@pytest.mark.parametrize("reason", ["stop", None, "other"])
async def test_calls_run_whatever_the_finish_reason_says(reason: str | None) -> None:
    """TC-16."""
    tool, seen = recorder()
    reply = wire(
        wire_call("a", "note", "{}"), wire_call("b", "note", "{}"), reason=reason
    )
    result = await react_loop(ScriptedProvider([reply, "x"]), "?", [tool])
    assert len(seen) == 2
    assert result.metadata["truncated_responses"] == 0


@pytest.mark.req("TC-18")
async def test_no_content_beside_calls_is_sent_back_as_null() -> None:
    """TC-18."""
    tool, _ = recorder()
    bare = {"role": "assistant", "tool_calls": [wire_call("a", "note", "{}")]}
    reply = parse_completion({"choices": [{"message": bare}]})
    provider = ScriptedProvider([reply, "x"])
    await react_loop(provider, "?", [tool])
    assert provider.requests[1].messages[1]["content"] is None


@pytest.mark.req("TC-19")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([{"type": "text", "text": "22 C"}], "22 C"),
        ([{"type": "text", "text": "2"}, {"type": "output_text", "text": "2"}], "22"),
        (None, ""),
        ({"a": [1, None]}, '{"a": [1, null]}'),
        (True, "true"),
        (1.5, "1.5"),
        ("caf\u00e9", "caf\u00e9"),
    ],
)
async def test_results_reach_the_model_as_text(value: Any, text: str) -> None:
    """TC-19; D-27: a dict was shown as its Python repr."""

    async def give() -> Any:
        return value

    reply = tool_call_reply(("give", {}))
    tool = Tool("give", "", OBJECT, give)
    result = await react_loop(ScriptedProvider([reply, "x"]), "?", [tool])
    assert texts(result) == [text]


@pytest.mark.req("TC-20")
async def test_a_text_envelope_that_never_ends_is_no_answer(strictly: Checker) -> None:
    """TC-20: the model is told."""
    tool, _ = recorder("search")
    half = '<tool_call>{"name": "search", "arguments": {"q": "tide"}'
    provider = ScriptedProvider([half, "The tide is high."])
    result = await react_loop(provider, "?", [tool])
    assert result.value == "The tide is high."
    assert "not complete" in provider.requests[1].last
    strictly(result.metadata["messages"])


async def test_a_text_that_speaks_of_an_envelope_is_an_answer() -> None:
    text = "Write <tool_call>{...}</tool_call> to call."
    tool, _ = recorder()
    assert (await react_loop(ScriptedProvider([text]), "?", [tool])).value == text
    bare = "<tool_call> opens an envelope"
    assert (await react_loop(ScriptedProvider([bare]), "?")).value == bare


NULLABLE = {
    "type": "object",
    "properties": {
        "name": {"type": ["string", "null"]},
        "free": True,
        "count": {"type": "integer"},
    },
    "required": ["name", "free", "count"],
    "additionalProperties": False,
}


@pytest.mark.req("D-04")
async def test_valid_arguments_of_every_kind_reach_the_tool() -> None:
    """D-04: a list of types disabled a tool, `3.0` was no integer."""
    tool, seen = recorder(parameters=NULLABLE)
    given: list[dict[str, Any]] = [
        {"name": None, "free": [1], "count": 3},
        {"name": "x", "free": None, "count": 3.0},
    ]
    reply = tool_call_reply(*(("note", item) for item in given))
    await react_loop(ScriptedProvider([reply, "x"]), "?", [tool])
    assert seen == given


@pytest.mark.req("D-05")
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"const": 1}, 2),
        ({"not": {"type": "string"}}, "x"),
        ({"$ref": "#/$defs/n"}, "x"),
        ({"exclusiveMaximum": 3}, 3),
        ({"multipleOf": 2}, 3),
        ({"type": "array", "maxItems": 1}, [1, 2]),
        ({"uniqueItems": True}, [1, 1]),
        ({"additionalProperties": {"type": "string"}}, {"a": 1}),
        ({"patternProperties": {"^a": {"type": "string"}}}, {"a": 1}),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}),
        ({"if": {"type": "integer"}, "then": {"minimum": 5}}, 3),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}),
        ({"minProperties": 1}, {}),
        ({"type": "string"}, True),
        ({"type": "integer"}, True),
        ({"enum": ["a", "b"]}, "c"),
    ],
)
async def test_invalid_arguments_never_reach_the_tool(schema: Any, value: Any) -> None:
    """D-05: the tool ran with arguments that its schema forbids."""
    parameters = {
        "type": "object",
        "properties": {"v": schema},
        "$defs": {"n": {"type": "integer"}},
    }
    tool, seen = recorder(parameters=parameters)
    provider = ScriptedProvider([tool_call_reply(("note", {"v": value})), "x"])
    result = await react_loop(provider, "?", [tool])
    assert seen == []
    assert texts(result)[0].startswith("Tool 'note' argument error: ")


@pytest.mark.req("react.own-providers")
async def test_calls_of_another_type_are_refused_with_the_cost() -> None:
    odd: Any = ({"id": "a", "name": "note"},)
    tool, _ = recorder()
    provider = ScriptedProvider([LLMResponse("", odd)])
    with pytest.raises(BadResponseError, match="`ToolCall`s, got") as caught:
        await react_loop(provider, "?", [tool])
    assert caught.value.cost.llm_calls == 1


@pytest.mark.req("LM-21")
class TestLimits:
    """LM-21: limits hold under parallel dispatch; the rest is told."""

    @staticmethod
    def slow(name: str) -> tuple[Tool, list[int]]:
        seen: list[int] = []

        async def execute(n: int) -> int:
            await asyncio.sleep(0)
            seen.append(n)
            return n

        return Tool(name, "", OBJECT, execute), seen

    async def test_of_eight_calls_at_once_three_run(self, strictly: Checker) -> None:
        tool, seen = self.slow("web")
        reply = tool_call_reply(*(("web", {"n": n}) for n in range(8)))
        provider = ScriptedProvider([reply, tool_call_reply(("web", {"n": 9})), "x"])
        result = await react_loop(provider, "?", [tool], max_tool_calls=3)
        assert sorted(seen) == [0, 1, 2]
        assert result.metadata["rejected_tool_calls"] == 6
        assert all("limit" in text for text in texts(result)[3:])
        strictly(provider.requests[2].messages)

    async def test_one_tool_may_run_once(self) -> None:
        web, seen = self.slow("web")
        other, others = self.slow("other")
        reply = tool_call_reply(
            *((name, {"n": n}) for n in range(4) for name in ("web", "other"))
        )
        result = await react_loop(
            ScriptedProvider([reply, "x"]),
            "?",
            [web, other],
            tool_call_limits={"web": 1},
        )
        assert seen == [0]
        assert sorted(others) == [0, 1, 2, 3]
        assert texts(result)[2] == "Not run: the limit of calls to 'web' is reached."

    async def test_none_at_all(self) -> None:
        tool, seen = self.slow("web")
        reply = tool_call_reply(("web", {"n": 1}))
        await react_loop(ScriptedProvider([reply, "x"]), "?", [tool], max_tool_calls=0)
        assert seen == []

    async def test_calls_over_the_limit_of_a_round_name_both_numbers(self) -> None:
        tool, seen = self.slow("web")
        reply = tool_call_reply(*(("web", {"n": n}) for n in range(5)))
        result = await react_loop(
            ScriptedProvider([reply, "x"]), "?", [tool], max_tool_calls_per_round=2
        )
        assert sorted(seen) == [0, 1]
        assert "5 tool calls" in texts(result)[2]
        assert "limit is 2" in texts(result)[2]
        assert "fewer" in texts(result)[2]
        assert result.metadata["rejected_tool_calls"] == 3


@pytest.mark.req("react.json-mode")
class TestTheJsonMode:
    """For servers and templates without native tool calls."""

    @staticmethod
    def call(name: str, **arguments: Any) -> str:
        return json.dumps({"tool": name, "arguments": arguments})

    async def test_calls_and_answers_are_json(self, strictly: Checker) -> None:
        tool, seen = recorder()
        script = [self.call("note", n=1), '{"answer": "done"}']
        provider = ScriptedProvider(script, supports_tools=False)
        result = await react_loop(provider, "?", [tool], tool_mode="json")
        assert result.value == "done"
        assert seen == [{"n": 1}]
        strictly(result.metadata["messages"])
        for asked in provider.requests:
            assert asked.tools is None
            assert "tool_choice" not in asked.options
            assert asked.options["response_format"]["type"] == "json_schema"
            assert all(m["role"] != "tool" for m in asked.messages)
            assert all("tool_calls" not in m for m in asked.messages)
        assert "noted 1" in str(provider.requests[1].messages)

    async def test_a_forced_call_is_forced_once(self) -> None:
        tool, _ = recorder()
        script = [self.call("note"), '{"answer": "done"}']
        provider = ScriptedProvider(script, supports_tools=False)
        await react_loop(
            provider, "?", [tool], tool_mode="json", tool_choice="required"
        )
        first, second = (
            json.dumps(item.options["response_format"]) for item in provider.requests
        )
        assert '"answer"' not in first
        assert '"answer"' in second

    async def test_no_call_wanted_asks_for_plain_text(self) -> None:
        tool, _ = recorder()
        provider = ScriptedProvider(["plain"], supports_tools=False)
        result = await react_loop(
            provider, "?", [tool], tool_mode="json", tool_choice="none"
        )
        assert result.value == "plain"
        assert provider.requests[0].options == {}

    async def test_a_format_of_ones_own_is_the_format_of_the_answer(self) -> None:
        tool, _ = recorder()
        schema = {"type": "object", "properties": {"sum": {"type": "integer"}}}
        wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        provider = ScriptedProvider(['{"answer": {"sum": 3}}'], supports_tools=False)
        result = await react_loop(
            provider, "?", [tool], tool_mode="json", response_format=wanted
        )
        assert json.loads(result.value) == {"sum": 3}
        sent = provider.requests[0].options["response_format"]
        branches = sent["json_schema"]["schema"]["anyOf"]
        assert branches[0]["properties"]["answer"] == schema

    @pytest.mark.parametrize("kind", ["text", "json_object"])
    async def test_other_formats_are_understood(self, kind: str) -> None:
        tool, _ = recorder()
        provider = ScriptedProvider(['{"answer": "x"}'], supports_tools=False)
        result = await react_loop(
            provider, "?", [tool], tool_mode="json", response_format={"type": kind}
        )
        assert result.value == "x"

    async def test_a_format_that_cannot_be_an_answer_is_refused(self) -> None:
        tool, _ = recorder()
        provider = ScriptedProvider(["x"], supports_tools=False)
        with pytest.raises(ValueError, match="response_format"):
            await react_loop(
                provider,
                "?",
                [tool],
                tool_mode="json",
                response_format={"type": "grammar"},
            )

    async def test_a_cut_call_is_told_to_the_model(self) -> None:
        tool, seen = recorder()
        cut = LLMResponse('{"tool": "note", "arguments": {"n": 1}', (), "length")
        provider = ScriptedProvider([cut, '{"answer": "x"}'], supports_tools=False)
        with pytest.warns(UserWarning, match="truncated"):
            result = await react_loop(provider, "?", [tool], tool_mode="json")
        assert seen == []
        assert "cut off" in texts(result)[0]

    async def test_a_server_that_ignores_the_format_gives_a_plain_answer(self) -> None:
        tool, _ = recorder()
        provider = ScriptedProvider(["It is 4."], supports_tools=False)
        result = await react_loop(provider, "?", [tool], tool_mode="json")
        assert result.value == "It is 4."
        assert result.metadata["tools_never_called"] is True
        assert result.metadata["termination_reason"] is TerminationReason.NATURAL

    async def test_without_tools_nothing_is_asked_for(self) -> None:
        provider = ScriptedProvider(["hello"], supports_tools=False)
        result = await react_loop(provider, "?", tool_mode="json")
        assert result.value == "hello"
        assert provider.requests[0].options == {}

    @given(st.text(max_size=60))
    def test_any_text_can_be_read(self, text: str) -> None:
        tool, _ = recorder()
        response = LLMResponse(text)
        content, calls, problems = parse_offer(text, [tool.to_schema()])
        assert isinstance(content, str)
        assert all(isinstance(item, ToolCall) for item in calls)
        assert all(isinstance(item, CallProblem) for item in problems)
        assert read_calls(response) == []


IDS = st.one_of(st.none(), st.sampled_from(["", "a", "a-2", "b", "a-3", "a-2-2"]))


@given(st.lists(st.tuples(IDS, st.booleans(), st.integers(-2, 12)), max_size=12))
def test_whatever_ids_a_reply_has_the_block_is_well_formed(
    items: list[tuple[str | None, bool, int]],
) -> None:
    made: list[ToolCall] = []
    problems: list[CallProblem] = []
    for call_id, readable, index in items:
        if readable:
            made.append(ToolCall(call_id, "note", {}))
        else:
            problem = CallProblem(
                call_id=call_id or "", name="note", message="", index=index
            )
            problems.append(problem)
    calls = read_calls(LLMResponse("", tuple(made), problems=tuple(problems)))
    assert len(calls) == len(items)
    assert [c for c in calls if isinstance(c, ToolCall)] == [
        ToolCall(c.id, "note", {}) for c in calls if isinstance(c, ToolCall)
    ]
    work = Round("", calls, [None] * len(calls))
    block = work.messages(100, {"note"})
    ids = [call["id"] for call in block[0]["tool_calls"]]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    assert [m["tool_call_id"] for m in block[1:]] == ids
    first_seen = [i for i, _, _ in items if i]
    for call_id in set(first_seen):
        assert call_id in ids  # the first one keeps its id


def test_many_equal_ids_are_no_burden() -> None:
    """Linear: 20 000 of them take no time to speak of."""
    reply = LLMResponse("", tuple(ToolCall("a", "note", {}) for _ in range(20_000)))
    calls = read_calls(reply)
    assert len({c.id for c in calls if isinstance(c, ToolCall)}) == 20_000


@pytest.mark.req("TX-16")
class TestCutting:
    @given(st.text(max_size=400), st.integers(1, 300))
    def test_the_limit_holds_and_short_texts_stay(self, text: str, limit: int) -> None:
        shown, cut = cap_text(text, limit)
        assert cut == (len(text) > limit)
        assert len(shown) <= limit
        if not cut:
            assert shown == text
        elif limit > 12:
            assert shown.endswith("\n[truncated]")

    def test_head_and_tail_stay_and_the_size_is_told(self) -> None:
        text = "head" + "x" * 10_000 + "tail"
        shown, _ = cap_text(text, 500)
        assert shown.startswith("head")
        assert shown.endswith("tail\n[truncated]")
        assert "10008 characters in all" in shown
