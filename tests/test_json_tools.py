"""Tools as JSON for models that have none: what is asked for, and how it is read back."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit._json_tools import called_tools, offer, parse_offer
from executionkit.calls import ToolCall
from executionkit.types import Tool, freeze


def tool(name: str, about: str = "", **properties: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
            },
        },
    }


ADD = tool("add", "Add two numbers.", a={"type": "number"}, b={"type": "number"})
FIND = tool("find", "Look something up.", word={"type": "string"})
ASK = [{"role": "user", "content": "What is 2 + 3?"}]


def asked_call(call_id: str = "c1", arguments: str = '{"a": 2, "b": 3}') -> Any:
    function = {"name": "add", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


ROUND: list[dict[str, Any]] = [
    *ASK,
    {"role": "assistant", "content": None, "tool_calls": [asked_call()]},
    {"role": "tool", "tool_call_id": "c1", "content": "5"},
]


def schema_of(made: Any) -> dict[str, Any]:
    wanted = made.response_format
    assert wanted["type"] == "json_schema"
    schema: dict[str, Any] = wanted["json_schema"]["schema"]
    return schema


@pytest.mark.req("json-tools.offer")
class TestTheOffer:
    def test_the_reply_is_an_answer_or_one_of_the_calls(self) -> None:
        answer, add, find = schema_of(offer([ADD, FIND], None, ASK))["anyOf"]
        assert answer["properties"] == {"answer": {"type": "string"}}
        assert add["properties"]["tool"] == {"const": "add"}
        assert add["properties"]["arguments"] == ADD["function"]["parameters"]
        assert find["properties"]["tool"] == {"const": "find"}
        for branch in (answer, add, find):
            assert branch["required"] == list(branch["properties"])
            assert branch["additionalProperties"] is False

    def test_the_tools_are_told_in_a_system_message(self) -> None:
        made = offer([ADD, FIND], "auto", ASK)
        first, second = made.messages
        assert first["role"] == "system"
        wanted = '{"tool": "add", "arguments": {"a": number, "b": number}}'
        assert f"{wanted} - Add two numbers." in first["content"]
        assert '{"answer": "..."}' in first["content"]
        assert second == ASK[0]

    def test_a_system_message_is_kept_in_front(self) -> None:
        messages = [{"role": "system", "content": "Be brief."}, *ASK]
        made = offer([ADD], None, messages)
        assert made.messages[0]["content"].startswith("Be brief.\n\nTools:\n")
        assert len(made.messages) == 2

    def test_a_system_message_of_parts_gets_one_more(self) -> None:
        parts = [{"type": "text", "text": "Be brief."}]
        made = offer([ADD], None, [{"role": "system", "content": parts}, *ASK])
        kept, added = made.messages[0]["content"]
        assert kept == parts[0]
        assert added["text"].startswith("Tools:")

    def test_the_given_messages_are_never_changed(self) -> None:
        messages = [{"role": "system", "content": "x"}, *ROUND]
        before = copy.deepcopy(messages)
        made = offer([ADD], None, messages)
        made.messages[0]["content"] = "changed"
        assert messages == before

    def test_frozen_messages_and_tools_will_do(self) -> None:
        made = offer(freeze([ADD]), None, freeze(ROUND))
        json.dumps([made.messages, made.response_format])

    def test_a_tool_object_will_do(self) -> None:
        own = Tool("add", "Adds.", ADD["function"]["parameters"], print)
        made = offer([own], "required", ASK)
        assert schema_of(made)["properties"]["tool"] == {"const": "add"}

    def test_the_form_of_anthropic_will_do(self) -> None:
        own = {"name": "add", "input_schema": ADD["function"]["parameters"]}
        made = offer([own], "required", ASK)
        assert schema_of(made)["properties"]["tool"] == {"const": "add"}

    def test_a_tool_without_parameters_takes_none(self) -> None:
        made = offer([{"name": "now"}], "required", ASK)
        arguments = schema_of(made)["properties"]["arguments"]
        assert arguments == {"type": "object", "properties": {}}
        assert '{"tool": "now", "arguments": {}}' in made.messages[0]["content"]

    def test_optional_and_described_arguments_are_shown_as_such(self) -> None:
        own = tool(
            "weather",
            city={"type": "string", "description": "name of the city"},
            unit={"enum": ["C", "F"]},
            days={"type": ["integer", "null"]},
            extra={},
        )
        own["function"]["parameters"]["required"] = ["city"]
        text = offer([own], None, ASK).messages[0]["content"]
        assert (
            '{"city": string (name of the city), "unit"?: "C"|"F", '
            '"days"?: integer|null, "extra"?: any}'
        ) in text

    def test_a_tool_without_a_name_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no `name`"):
            offer([{"function": {}}], None, ASK)


@pytest.mark.req("json-tools.choice")
class TestTheChoice:
    @pytest.mark.parametrize(
        "choice", ["required", "any", {"type": "required"}, {"type": "any"}]
    )
    def test_required_leaves_no_way_to_answer(self, choice: Any) -> None:
        made = offer([ADD, FIND], choice, ASK)
        branches = schema_of(made)["anyOf"]
        assert [b["properties"]["tool"]["const"] for b in branches] == ["add", "find"]
        assert "answer" not in made.messages[0]["content"]

    @pytest.mark.parametrize("choice", ["none", {"type": "none"}])
    def test_none_asks_for_plain_text(self, choice: Any) -> None:
        made = offer([ADD], choice, ASK)
        assert made.response_format is None
        assert made.messages == ASK

    def test_no_tools_ask_for_plain_text(self) -> None:
        assert offer([], None, ASK) == (ASK, None)

    @pytest.mark.parametrize(
        "choice",
        [
            {"type": "function", "function": {"name": "find"}},
            {"type": "tool", "name": "find"},
        ],
    )
    def test_a_named_tool_is_the_only_one(self, choice: Any) -> None:
        made = offer([ADD, FIND], choice, ASK)
        assert schema_of(made)["properties"]["tool"] == {"const": "find"}
        assert '"add"' not in made.messages[0]["content"]

    def test_a_name_that_is_not_on_offer_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"'other'.*add, find"):
            offer([ADD, FIND], {"type": "tool", "name": "other"}, ASK)

    @pytest.mark.parametrize("choice", ["sometimes", 7, [], {"type": "function"}])
    def test_any_other_choice_is_refused(self, choice: Any) -> None:
        with pytest.raises(ValueError, match="`tool_choice` is"):
            offer([ADD], choice, ASK)

    def test_an_answer_may_have_a_schema_of_its_own(self) -> None:
        number = {"type": "number"}
        made = offer([ADD], None, ASK, answer=number)
        assert schema_of(made)["anyOf"][0]["properties"] == {"answer": number}
        assert schema_of(offer([], None, ASK, answer=number)) == number


@pytest.mark.req("json-tools.facts")
class TestEarlierRounds:
    def test_a_result_becomes_a_fact_of_its_question(self) -> None:
        made = offer([ADD], None, ROUND)
        assert [message["role"] for message in made.messages] == ["system", "user"]
        assert made.messages[1]["content"] == "Facts: add(a=2, b=3) = 5\nWhat is 2 + 3?"

    def test_the_closing_question_asks_for_the_facts(self) -> None:
        (message,) = offer([ADD], "none", ROUND).messages
        assert message["content"] == (
            "Facts: add(a=2, b=3) = 5\n"
            "Answer in one short sentence from the facts: What is 2 + 3?"
        )

    def test_facts_stay_with_the_question_they_belong_to(self) -> None:
        messages = [
            *ROUND,
            {"role": "assistant", "content": "It is 5."},
            {"role": "user", "content": "Thanks. And twice that?"},
        ]
        made = offer([], None, messages).messages
        assert [message["role"] for message in made] == ["user", "assistant", "user"]
        assert made[0]["content"].startswith("Facts: add(a=2, b=3) = 5\nWhat")
        assert made[2] == messages[-1]

    def test_several_results_keep_their_order(self) -> None:
        messages: list[Any] = [
            *ASK,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [asked_call(), asked_call("c2", "{}")],
            },
            {"role": "tool", "tool_call_id": "c2", "content": "second"},
            {"role": "tool", "tool_call_id": "c1", "content": "first"},
        ]
        (message,) = offer([], None, messages).messages
        assert message["content"].startswith(
            "Facts: add() = second\nadd(a=2, b=3) = first\n"
        )

    def test_a_question_of_parts_gets_one_more(self) -> None:
        parts = [{"type": "text", "text": "What is 2 + 3?"}]
        messages: list[Any] = [{"role": "user", "content": parts}, *ROUND[1:]]
        (message,) = offer([], None, messages).messages
        assert message["content"][0]["text"].startswith("Facts: ")
        assert message["content"][1] == parts[0]

    def test_broken_history_is_shown_as_it_is(self) -> None:
        messages: list[Any] = [
            {"role": "tool", "content": [{"type": "text", "text": "lost"}]},
            {"role": "assistant", "tool_calls": [asked_call("c9", "{oops"), "junk"]},
            {"role": "tool", "tool_call_id": "c9", "content": None},
        ]
        (message,) = offer([], None, messages).messages
        assert message["role"] == "user"
        assert "tool() = lost\nadd({oops) = " in message["content"]

    def test_the_tools_called_for_the_newest_question_are_known(self) -> None:
        assert called_tools(ROUND) == ["add"]
        assert called_tools([*ROUND, *ROUND[1:]]) == ["add", "add"]
        assert called_tools([*ROUND, *ASK]) == []


@pytest.mark.req("json-tools.parse")
class TestReadingBack:
    def test_an_answer(self) -> None:
        assert parse_offer('{"answer": "It is 5."}') == ("It is 5.", (), ())

    def test_an_answer_with_a_schema_comes_as_json(self) -> None:
        assert parse_offer('{"answer": {"n": [1, "é"]}}').content == '{"n": [1, "é"]}'

    def test_a_call(self) -> None:
        read = parse_offer('{"tool": "add", "arguments": {"a": 2, "b": 3}}', [ADD])
        assert read.content == ""
        assert read.problems == ()
        (call,) = read.calls
        assert (call.name, dict(call.arguments)) == ("add", {"a": 2, "b": 3})
        assert call.id

    def test_each_call_has_an_id_of_its_own(self) -> None:
        text = '{"tool": "add", "arguments": {}}'
        assert parse_offer(text).calls[0].id != parse_offer(text).calls[0].id

    def test_several_calls_in_a_list(self) -> None:
        text = '[{"tool": "add", "arguments": {}}, {"tool": "find", "arguments": {}}]'
        assert [call.name for call in parse_offer(text).calls] == ["add", "find"]

    def test_a_call_of_an_unknown_tool_is_a_call(self) -> None:
        (call,) = parse_offer('{"tool": "other", "arguments": {}}', [ADD]).calls
        assert call.name == "other"

    def test_the_common_other_spellings_are_read(self) -> None:
        text = '```json\n{"name": "add", "parameters": {"a": 1}}\n```'
        (call,) = parse_offer(text, [ADD]).calls
        assert call == ToolCall(call.id, "add", {"a": 1})
        text = '{"tool": "add", "arguments": "{\\"a\\": 1}"}'
        assert dict(parse_offer(text).calls[0].arguments) == {"a": 1}

    def test_an_object_with_a_name_is_not_a_call_of_something_else(self) -> None:
        text = '{"name": "Anna", "age": 31}'
        assert parse_offer(text, [ADD]) == (text, (), ())

    def test_a_call_without_arguments_has_none(self) -> None:
        assert dict(parse_offer('{"tool": "now"}').calls[0].arguments) == {}

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [("[1]", "not a JSON object"), ('"{a"', "not valid JSON"), ("7", "object")],
    )
    def test_bad_arguments_are_a_problem(self, arguments: str, why: str) -> None:
        read = parse_offer(f'{{"tool": "add", "arguments": {arguments}}}', [ADD])
        assert read.calls == ()
        (problem,) = read.problems
        assert why in problem.message
        assert problem.name == "add"

    def test_plain_text_is_an_answer(self) -> None:
        assert parse_offer("It is 5.").content == "It is 5."
        assert parse_offer("As in [1], it is 5.").content == "As in [1], it is 5."
        assert parse_offer("").content == ""

    def test_an_answer_that_was_cut_off_keeps_its_text(self) -> None:
        assert parse_offer('{"answer": "It is\\n\\u00e9 fi').content == "It is\né fi"
        assert parse_offer('{"answer": "half \\u00').content.startswith("half ")

    def test_a_call_that_was_cut_off_is_a_problem(self) -> None:
        read = parse_offer('{"tool": "add", "arguments": {"a": 12', [ADD])
        assert read.calls == ()
        (problem,) = read.problems
        assert problem.name == "add"
        assert "cut off" in problem.message

    @given(st.text() | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
    def test_any_text_is_read(self, text: str) -> None:
        read = parse_offer(text, [ADD])
        assert isinstance(read.content, str)

    @given(
        st.dictionaries(
            st.sampled_from(["tool", "name", "arguments", "answer", "parameters"]),
            st.none()
            | st.text(max_size=5)
            | st.integers()
            | st.lists(st.integers(), max_size=2)
            | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
            | st.just("add"),
        )
    )
    def test_any_object_is_read(self, value: dict[str, Any]) -> None:
        read = parse_offer(json.dumps(value), [ADD])
        assert sum([bool(read.calls), bool(read.problems), bool(read.content)]) <= 1
