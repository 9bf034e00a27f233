"""Anthropic's Messages API: what is sent, and what a whole answer says."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from executionkit._llm import OMIT, LLMResponse, usage_of
from executionkit._wire.anthropic_content import ToolIds, to_tool, to_tool_choice
from executionkit._wire.anthropic_reply import parse_message
from executionkit._wire.anthropic_request import (
    AnswerTool,
    messages_body,
    to_anthropic_messages,
)
from executionkit._wire.common import encode_body
from executionkit.errors import (
    BadResponseError,
    LLMError,
    PermanentError,
    ProviderError,
    RateLimitError,
)
from executionkit.types import Tool, freeze

PNG = "data:image/png;base64,iVBORw0="
FUNCTION = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def turns(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return to_anthropic_messages(messages)[1]


def body_of(
    *messages: dict[str, Any], tools: Any = None, **options: Any
) -> tuple[dict[str, Any], AnswerTool | None]:
    return messages_body(
        "claude",
        messages or ({"role": "user", "content": "hi"},),
        temperature=None,
        max_tokens=100,
        tools=tools,
        options=options,
    )


def call(call_id: str, arguments: object = "{}") -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": "f", "arguments": arguments},
    }


def message_of(
    *blocks: object, stop: object = "end_turn", **more: Any
) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": list(blocks),
        "stop_reason": stop,
        **more,
    }


def read(*blocks: object, stop: object = "end_turn", **more: Any) -> LLMResponse:
    return parse_message(message_of(*blocks, stop=stop, **more))


def use(
    call_id: object = "t1", name: object = "f", given: object = None
) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


class TestMessages:
    def test_system_messages_are_gathered(self) -> None:
        system, sent = to_anthropic_messages(
            [
                {"role": "system", "content": "a"},
                {"role": "user", "content": "hi"},
                {"role": "developer", "content": "b"},
            ]
        )
        assert system == "a\n\nb"
        assert sent == [{"role": "user", "content": "hi"}]

    def test_cache_marks_survive(self) -> None:
        marked = {
            "type": "text",
            "text": "long",
            "cache_control": {"type": "ephemeral"},
        }
        system, sent = to_anthropic_messages(
            [
                {"role": "system", "content": [marked]},
                {"role": "user", "content": [marked, {"type": "text", "text": "b"}]},
            ]
        )
        assert system == [marked]
        assert sent[0]["content"][0] == marked

    def test_a_conversation_with_tools_is_translated(self) -> None:
        got = turns(
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": "ok",
                "tool_calls": [call("a", '{"x": 1}')],
            },
            {"role": "tool", "tool_call_id": "a", "content": "22 C"},
            {"role": "assistant", "content": "it is 22 C"},
        )
        assert got == [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "ok"},
                    {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "22 C"}
                ],
            },
            {"role": "assistant", "content": "it is 22 C"},
        ]

    def test_results_and_what_follows_are_one_message_with_results_first(self) -> None:
        got = turns(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call("a"), call("b")],
            },
            {"role": "user", "content": "wait"},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": None},
            {"role": "user", "content": "and now?"},
        )
        assert [turn["role"] for turn in got] == ["assistant", "user"]
        kinds = [block["type"] for block in got[1]["content"]]
        assert kinds == ["tool_result", "tool_result", "text", "text"]
        assert got[1]["content"][1]["content"] == []

    def test_results_with_parts_and_errors_are_translated(self) -> None:
        (turn,) = turns(
            {
                "role": "tool",
                "tool_call_id": "a",
                "content": [
                    {"type": "text", "text": "see"},
                    {"type": "image_url", "image_url": {"url": PNG}},
                ],
                "is_error": True,
                "cache_control": {"type": "ephemeral"},
            }
        )
        (block,) = turn["content"]
        assert block["is_error"] is True
        assert block["cache_control"] == {"type": "ephemeral"}
        assert [part["type"] for part in block["content"]] == ["text", "image"]

    @pytest.mark.parametrize(
        ("part", "block"),
        [
            (
                {"type": "image_url", "image_url": {"url": PNG}},
                {
                    "type": "image",
                    "source": {
                        "type": "base64",
                        "media_type": "image/png",
                        "data": "iVBORw0=",
                    },
                },
            ),
            (
                {"type": "image_url", "image_url": "https://x.example/a.png"},
                {
                    "type": "image",
                    "source": {"type": "url", "url": "https://x.example/a.png"},
                },
            ),
            (
                {
                    "type": "file",
                    "file": {
                        "file_data": "data:application/pdf;base64,AA==",
                        "filename": "a.pdf",
                    },
                },
                {
                    "type": "document",
                    "source": {
                        "type": "base64",
                        "media_type": "application/pdf",
                        "data": "AA==",
                    },
                    "title": "a.pdf",
                },
            ),
            ({"type": "input_text", "text": "a"}, {"type": "text", "text": "a"}),
            ({"type": "refusal", "refusal": "no"}, {"type": "text", "text": "no"}),
            ({"type": "search_result", "x": 1}, {"type": "search_result", "x": 1}),
        ],
    )
    def test_parts_are_translated(
        self, part: dict[str, Any], block: dict[str, Any]
    ) -> None:
        assert turns({"role": "user", "content": ["a", part]})[0]["content"][1] == block

    def test_what_is_empty_is_left_out(self) -> None:
        """The API refuses empty texts."""
        assert (
            turns(
                {"role": "user", "content": ["", {"type": "text", "text": ""}]},
                {"role": "assistant", "content": ""},
                {"role": "assistant", "content": None},
            )
            == []
        )

    @pytest.mark.req("anthropic.thinking")
    def test_a_reply_with_thinking_can_be_sent_back(self) -> None:
        """Signatures are untouched, in front of the rest."""
        blocks = [
            {"type": "thinking", "thinking": "hm", "signature": "s=="},
            {"type": "redacted_thinking", "data": "xx"},
            {"type": "text", "text": "ok"},
            use("t1", "f", {"x": 1}),
        ]
        message = read(*blocks, stop="tool_use").to_message()
        (turn,) = turns(message)
        assert turn == {"role": "assistant", "content": blocks}
        encode_body(turn)

    def test_own_blocks_pass_through_once(self) -> None:
        blocks = [{"type": "text", "text": "ok"}, use("t1", "f", {"x": 1})]
        message = {"role": "assistant", "content": blocks, "tool_calls": [call("t1")]}
        assert turns(message)[0]["content"] == blocks

    def test_foreign_ids_are_made_acceptable_and_stay_paired(self) -> None:
        got = turns(
            {"role": "assistant", "tool_calls": [call("fn:1"), call("fn_1"), call("")]},
            {"role": "tool", "tool_call_id": "fn_1", "content": "B"},
            {"role": "tool", "tool_call_id": "fn:1", "content": "A"},
            {"role": "tool", "tool_call_id": "", "content": "C"},
        )
        ids = [block["id"] for block in got[0]["content"]]
        assert len(set(ids)) == 3
        assert all(set(i) <= set("fn_1call-2") for i in ids)
        results = {b["tool_use_id"]: b["content"] for b in got[1]["content"]}
        assert [results[i] for i in ids] == ["A", "B", "C"]

    @pytest.mark.req("TC-13")
    def test_an_id_used_again_in_a_later_turn_is_another_call(self) -> None:
        """TC-13: three rounds, each result next to its own call; the API wants distinct ids."""
        rounds = [
            message
            for answer in ("A", "B", "C")
            for message in (
                {"role": "assistant", "tool_calls": [call("search:0")]},
                {"role": "tool", "tool_call_id": "search:0", "content": answer},
            )
        ]
        got = turns(*rounds)
        assert [turn["role"] for turn in got] == ["assistant", "user"] * 3
        calls = [turn["content"][0]["id"] for turn in got[::2]]
        results = [turn["content"][0] for turn in got[1::2]]
        assert len(set(calls)) == 3
        assert [result["tool_use_id"] for result in results] == calls
        assert [result["content"] for result in results] == ["A", "B", "C"]

    def test_a_result_without_a_call_keeps_its_id(self) -> None:
        (turn,) = turns({"role": "tool", "tool_call_id": "x", "content": "A"})
        assert turn["content"][0]["tool_use_id"] == "x"

    @pytest.mark.req("TC-02", "TC-07")
    @pytest.mark.parametrize("arguments", ["", None, "{broken", "[1]", 3])
    def test_unreadable_arguments_go_back_as_an_empty_object(
        self, arguments: object
    ) -> None:
        """TC-07; the call itself was answered with what was wrong with it."""
        (turn,) = turns({"role": "assistant", "tool_calls": [call("a", arguments)]})
        assert turn["content"][0]["input"] == {}

    def test_the_callers_messages_are_left_alone(self) -> None:
        messages: list[dict[str, Any]] = [
            {"role": "assistant", "content": "a", "tool_calls": [call("x:1", "")]},
            {"role": "tool", "tool_call_id": "x:1", "content": "1"},
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
        ]
        before = copy.deepcopy(messages)
        turns(*messages)
        assert messages == before
        turns(*freeze(messages))

    def test_a_message_that_cannot_be_translated_is_refused(self) -> None:
        with pytest.raises(TypeError, match="`content`"):
            turns({"role": "user", "content": 3})
        with pytest.raises(TypeError, match="content part"):
            turns({"role": "user", "content": [3]})
        with pytest.raises(TypeError, match="`tool_calls`"):
            turns({"role": "assistant", "tool_calls": [3]})


class TestBody:
    def test_options_are_translated(self) -> None:
        body, answer = body_of(
            stop="END",
            user="u1",
            max_completion_tokens=7,
            stream_options={"include_usage": True},
            top_k=3,
            thinking={"type": "enabled", "budget_tokens": 1024},
        )
        assert answer is None
        assert body == {
            "model": "claude",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 7,
            "stop_sequences": ["END"],
            "metadata": {"user_id": "u1"},
            "top_k": 3,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        }
        assert body_of(stop=["A", "B"])[0]["stop_sequences"] == ["A", "B"]

    @pytest.mark.req("provider.options", "provider.omit")
    def test_unknown_options_pass_and_win(self) -> None:
        body, _ = body_of(seed=3, model="other", system="mine", max_tokens_x=OMIT)
        assert (body["seed"], body["model"], body["system"]) == (3, "other", "mine")
        assert "max_tokens_x" not in body

    @pytest.mark.parametrize(
        ("tool", "sent"),
        [
            (
                FUNCTION,
                {"name": "f", "description": "d", "input_schema": {"type": "object"}},
            ),
            (
                {"type": "function", "function": {"name": "f", "strict": True}},
                {
                    "name": "f",
                    "input_schema": {"type": "object", "properties": {}},
                    "strict": True,
                },
            ),
            (
                {**FUNCTION, "cache_control": {"type": "ephemeral"}},
                {
                    "name": "f",
                    "description": "d",
                    "input_schema": {"type": "object"},
                    "cache_control": {"type": "ephemeral"},
                },
            ),
            (
                {"type": "web_search_1", "name": "w"},
                {"type": "web_search_1", "name": "w"},
            ),
        ],
    )
    def test_tools_are_translated(
        self, tool: dict[str, Any], sent: dict[str, Any]
    ) -> None:
        assert to_tool(tool) == sent

    def test_a_tool_object_can_be_offered(self) -> None:
        body, _ = body_of(tools=[Tool("f", "d", {"type": "object"}, print)])
        assert body["tools"][0]["input_schema"] == {"type": "object"}
        assert "tool_choice" not in body
        assert "tools" not in body_of(tools=[])[0]

    @pytest.mark.parametrize(
        ("choice", "parallel", "sent"),
        [
            (None, None, None),
            (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
            ("auto", None, {"type": "auto"}),
            ("required", None, {"type": "any"}),
            ("none", False, {"type": "none"}),
            (
                {"type": "function", "function": {"name": "f"}},
                False,
                {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            ),
            ({"type": "any"}, True, {"type": "any"}),
        ],
    )
    def test_tool_choice_is_translated(
        self, choice: object, parallel: object, sent: object
    ) -> None:
        assert to_tool_choice(choice, parallel=parallel) == sent

    def test_a_tool_choice_of_no_kind_is_refused(self) -> None:
        with pytest.raises(ValueError, match="`tool_choice`"):
            to_tool_choice("sometimes")

    @pytest.mark.req("anthropic.response-format")
    def test_a_json_schema_becomes_a_tool_that_must_be_called(self) -> None:
        wanted = {
            "type": "json_schema",
            "json_schema": {"name": "out", "schema": SCHEMA},
        }
        body, answer = body_of(response_format=wanted)
        assert answer == AnswerTool("out", wrapped=False)
        assert body["tools"][0]["input_schema"] == SCHEMA
        assert body["tool_choice"] == {"type": "tool", "name": "out"}
        assert "response_format" not in body

    @pytest.mark.req("anthropic.response-format")
    def test_beside_other_tools_one_of_all_must_be_called(self) -> None:
        wanted = {"type": "json_object"}
        body, answer = body_of(response_format=wanted, tools=[FUNCTION])
        assert answer == AnswerTool("respond", wrapped=False)
        assert body["tool_choice"] == {"type": "any"}
        body, _ = body_of(response_format=wanted, tools=[FUNCTION], tool_choice="auto")
        assert body["tool_choice"] == {"type": "auto"}
        body, _ = body_of(response_format=wanted, thinking={"type": "enabled"})
        assert body["tool_choice"] == {"type": "auto"}

    @pytest.mark.req("anthropic.response-format")
    def test_a_schema_of_another_type_is_wrapped_with_its_definitions(self) -> None:
        schema = {"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {}}}
        wanted = {"type": "json_schema", "json_schema": {"schema": schema, "name": "f"}}
        body, answer = body_of(response_format=wanted, tools=[FUNCTION])
        assert answer == AnswerTool("f_", wrapped=True)
        sent = body["tools"][1]["input_schema"]
        assert sent["type"] == "object"
        assert sent["properties"]["value"] == schema
        assert sent["$defs"] == {"a": {}}

    def test_a_text_format_is_nothing(self) -> None:
        body, answer = body_of(response_format={"type": "text"})
        assert answer is None
        assert set(body) == {"model", "messages", "max_tokens"}


class TestReply:
    def test_text_thinking_and_calls_are_read(self) -> None:
        response = read(
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "a"},
            {"type": "server_tool_use", "id": "x"},
            {"type": "text", "text": "b", "citations": []},
            use("t1", "f", {"x": 1}),
            stop="tool_use",
        )
        assert (response.content, response.reasoning) == ("ab", "hm")
        assert [(c.id, c.name, dict(c.arguments)) for c in response.tool_calls] == [
            ("t1", "f", {"x": 1})
        ]
        assert response.finish_reason == "tool_use"
        assert (response.id, response.model) == ("msg_1", "claude-x")
        assert len(response.parts) == 5
        assert response.raw["stop_reason"] == "tool_use"

    @pytest.mark.parametrize(
        ("stop", "reason", "truncated"),
        [
            ("end_turn", "end_turn", False),
            ("max_tokens", "max_tokens", True),
            ("model_context_window_exceeded", "model_context_window_exceeded", True),
            ("pause_turn", "pause_turn", False),
            (None, "unknown", False),
            (3, "unknown", False),
        ],
    )
    def test_stop_reasons_are_verbatim(
        self, stop: object, reason: str, truncated: bool
    ) -> None:
        response = read({"type": "text", "text": "a"}, stop=stop)
        assert (response.finish_reason, response.was_truncated) == (reason, truncated)

    def test_a_refusal_is_marked(self) -> None:
        assert read(stop="refusal").refusal
        assert read({"type": "text", "text": "no"}, stop="refusal").refusal == "no"
        details = {"type": "refusal", "explanation": "because"}
        assert read(stop="refusal", stop_details=details).refusal == "because"

    @pytest.mark.req("RS-03")
    def test_cache_tokens_are_counted_apart_and_in_sum(self) -> None:
        """RS-03: input is the sum of the three fields."""
        usage = {
            "input_tokens": 3,
            "cache_creation_input_tokens": 12304,
            "cache_read_input_tokens": 0,
            "output_tokens": 550,
        }
        spent = usage_of(read(usage=usage))
        assert (spent.input_tokens, spent.output_tokens) == (12307, 550)
        assert (spent.cache_write_tokens, spent.cache_read_tokens) == (12304, 0)
        price = (
            (spent.input_tokens - spent.cache_write_tokens - spent.cache_read_tokens)
            * 3
            + spent.cache_write_tokens * 3.75
            + spent.cache_read_tokens * 0.30
            + spent.output_tokens * 15
        )
        assert price / 1e6 == pytest.approx(0.0544, abs=5e-5)

    @pytest.mark.req("TC-16")
    def test_a_call_at_the_end_of_a_truncated_reply_is_not_run(self) -> None:
        """TC-16: only what could be parsed of it is shown."""
        response = read(use("a", "f", {}), use("b", "f", {"x": 1}), stop="max_tokens")
        assert [c.id for c in response.tool_calls] == ["a"]
        assert [p.call_id for p in response.problems] == ["b"]
        response = read(
            use("a", "f", {}), {"type": "text", "text": "t"}, stop="max_tokens"
        )
        assert len(response.tool_calls) == 1

    @pytest.mark.req("TC-01", "TC-02", "TC-12", "TC-14")
    def test_calls_follow_the_same_rules(self) -> None:
        response = read(
            use("a", "f", None),
            use("a", "f", '{"x": 1}'),
            use(None, "f", {}),
            use("d", "f", "{broken"),
            use("e", None, {}),
            stop="tool_use",
        )
        assert [c.id for c in response.tool_calls][:2] == ["a", "a-2"]
        assert len(response.tool_calls) == 3
        assert [p.call_id for p in response.problems] == ["d", "e"]
        with pytest.raises(BadResponseError, match="name was missing"):
            read(use("e", "", {}))

    @pytest.mark.req("anthropic.response-format")
    def test_the_answer_tool_comes_back_as_text(self) -> None:
        payload = message_of(use("t", "out", {"n": 1}), stop="tool_use")
        response = parse_message(payload, answer=AnswerTool("out", wrapped=False))
        assert json.loads(response.content) == {"n": 1}
        assert response.tool_calls == ()
        assert response.finish_reason == "end_turn"
        payload = message_of(use("t", "out", {"value": [1]}), use("u"), stop="tool_use")
        response = parse_message(payload, answer=AnswerTool("out", wrapped=True))
        assert json.loads(response.content) == [1]
        assert [c.id for c in response.tool_calls] == ["u"]
        assert response.finish_reason == "tool_use"

    @pytest.mark.req("D-12", "D-13")
    @pytest.mark.parametrize(
        ("payload", "kind"),
        [
            ({"type": "error", "error": {"type": "overloaded_error"}}, ProviderError),
            ({"type": "error", "error": {"type": "rate_limit_error"}}, RateLimitError),
            (
                {"type": "error", "error": {"type": "invalid_request_error"}},
                PermanentError,
            ),
            ({"type": "error", "error": {"type": "api_error"}}, ProviderError),
            ({}, BadResponseError),
            (None, BadResponseError),
            ([], BadResponseError),
            ({"content": None}, BadResponseError),
            ({"content": {}}, BadResponseError),
        ],
    )
    def test_another_shape_is_a_typed_error(
        self, payload: Any, kind: type[LLMError]
    ) -> None:
        with pytest.raises(LLMError) as caught:
            parse_message(payload)
        assert type(caught.value) is kind

    def test_odd_blocks_do_no_harm(self) -> None:
        response = read(3, None, {}, {"type": "text"}, {"type": "text", "text": 3})
        assert response.content == "3"
        assert parse_message({"content": "plain"}).content == "plain"


@pytest.mark.req("TC-13", "wire.ids-linear")
def test_an_id_used_in_many_turns_is_renamed_in_linear_work() -> None:
    """TC-13, counted in looks at the names taken; the pairs stay pairs."""
    looks = 0

    class Taken(set[str]):
        def __contains__(self, name: object) -> bool:
            nonlocal looks
            looks += 1
            return super().__contains__(name)

    ids = ToolIds()
    ids._taken = Taken()
    sent = [ids.call("search:0") for _ in range(500)]
    assert len(set(sent)) == 500
    assert [ids.result("search:0") for _ in range(500)] == sent
    assert looks < 1100
