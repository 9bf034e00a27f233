"""OpenAI's chat completions: what is sent, and what a whole answer says."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from executionkit._llm import OMIT, LLMResponse, usage_of
from executionkit._wire.common import RawCall, collect_calls, encode_body
from executionkit._wire.openai import chat_body, parse_completion
from executionkit.errors import (
    BadResponseError,
    LLMError,
    PermanentError,
    ProviderError,
    RateLimitError,
)
from executionkit.types import Tool, freeze

USER = {"role": "user", "content": "hi"}
NO_ARGUMENTS_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "now", "arguments": ""},
}


def body_of(
    *messages: Any,
    temperature: object = None,
    max_tokens: object = None,
    tools: Any = None,
    **options: Any,
) -> dict[str, Any]:
    return chat_body(
        "m",
        messages or (USER,),
        temperature=temperature,
        max_tokens=max_tokens,
        tools=tools,
        options=options,
    )


def reply(
    message: object = None, finish: object = "stop", **more: Any
) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": finish}], **more}


def read(message: object = None, finish: object = "stop", **more: Any) -> LLMResponse:
    return parse_completion(reply(message, finish, **more))


def call(
    arguments: object, call_id: object = "c1", name: object = "f"
) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


class TestBody:
    def test_it_holds_what_was_asked_for(self) -> None:
        body = body_of(
            temperature=0.5, max_tokens=9, tools=[{"type": "function"}], seed=3
        )
        assert body == {
            "model": "m",
            "messages": [USER],
            "temperature": 0.5,
            "max_tokens": 9,
            "tools": [{"type": "function"}],
            "seed": 3,
        }

    @pytest.mark.req("D-41", "provider.omit")
    def test_anything_can_be_left_out(self) -> None:
        """D-41: temperature and max_tokens included."""
        assert set(body_of()) == {"model", "messages"}
        body = body_of(temperature=OMIT, max_tokens=OMIT, seed=OMIT, tools=[])
        assert set(body) == {"model", "messages"}

    @pytest.mark.req("D-41", "provider.options")
    def test_options_win_over_everything(self) -> None:
        body = body_of(temperature=0.5, max_tokens=9, model="other", max_tokens_=1)
        assert body["model"] == "other"
        body = body_of(max_tokens=9, max_completion_tokens=5)
        assert "max_tokens" not in body
        assert body["max_completion_tokens"] == 5

    @pytest.mark.req("D-41")
    def test_a_generator_of_tools_is_read_once_and_whole(self) -> None:
        assert len(body_of(tools=({"n": n} for n in range(3)))["tools"]) == 3
        assert "tools" not in body_of(tools=iter(()))

    @pytest.mark.req("TC-07")
    def test_empty_arguments_go_out_as_an_object(self) -> None:
        """TC-07: and the caller's message is left alone."""
        message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [NO_ARGUMENTS_CALL],
        }
        before = copy.deepcopy(message)
        sent = body_of(message)["messages"][0]
        assert sent["tool_calls"][0]["function"]["arguments"] == "{}"
        assert message == before

    @pytest.mark.req("TC-18")
    def test_a_replayed_message_with_calls_has_a_content(self) -> None:
        """TC-18: the key is present with null."""
        sent = body_of({"role": "assistant", "tool_calls": [call("{}")]})["messages"][0]
        assert sent["content"] is None
        assert "content" in sent

    def test_thinking_blocks_stay_here(self) -> None:
        sent = body_of({"role": "assistant", "content": "a", "thinking_blocks": [1]})
        assert sent["messages"] == [{"role": "assistant", "content": "a"}]

    def test_frozen_values_tools_and_lone_surrogates_can_be_sent(self) -> None:
        tool = Tool("f", "d", {"type": "object"}, print)
        body = body_of(
            freeze({"role": "user", "content": "\ud800 é"}),
            tools=[tool],
            stop=frozenset("a"),
        )
        sent = json.loads(encode_body(body))
        assert sent["messages"][0]["content"] == "\ud800 é"
        assert sent["tools"][0]["function"]["name"] == "f"
        assert sent["stop"] == ["a"]

    def test_what_is_not_json_is_refused_here(self) -> None:
        with pytest.raises(TypeError, match="a object cannot be sent"):
            encode_body(body_of(seed=object()))
        with pytest.raises(ValueError, match="JSON"):
            encode_body(body_of(seed=float("nan")))
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        with pytest.raises(ValueError, match="nested too deeply"):
            encode_body(body_of(seed=deep))


class TestText:
    @pytest.mark.req("TC-19", "provider.parsing")
    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ("a", "a"),
            (None, ""),
            ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
            (["a", {"type": "output_text", "text": {"value": "b"}}], "ab"),
            ([{"value": "v"}, {"type": "image", "text": "no"}, 3, None], "v"),
            ({"type": "text", "text": "a"}, "a"),
            (42, "42"),
            (True, "True"),
        ],
    )
    def test_content_is_text_whatever_its_form(
        self, content: object, text: str
    ) -> None:
        """TC-19, TC-18: parts are joined, null is empty."""
        assert read({"content": content}).content == text

    def test_parts_are_kept(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]
        assert read({"content": parts}).parts == tuple(parts)
        assert read({"content": "a"}).parts == ()

    @pytest.mark.req("D-41", "provider.parsing")
    def test_refusal_and_reasoning_are_kept(self) -> None:
        """D-41."""
        response = read({"content": None, "refusal": "no", "reasoning_content": "hm"})
        assert (response.refusal, response.reasoning) == ("no", "hm")
        assert read({"content": "a", "reasoning": "hm"}).reasoning == "hm"
        parts = [
            {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
            {"type": "refusal", "refusal": "no"},
            {"type": "text", "text": "a"},
        ]
        response = read({"content": parts})
        assert (response.content, response.reasoning, response.refusal) == (
            "a",
            "hm",
            "no",
        )
        response = read({"content": "a", "refusal": "", "reasoning": 3})
        assert (response.refusal, response.reasoning) == (None, None)

    def test_the_older_completions_form_is_read(self) -> None:
        response = parse_completion(
            {"choices": [{"text": "a", "finish_reason": "stop"}]}
        )
        assert response.content == "a"

    def test_id_model_and_raw_are_kept(self) -> None:
        response = read({"content": "a"}, id="r1", model="m1", extra=[{"x": 1}])
        assert (response.id, response.model) == ("r1", "m1")
        assert response.raw["extra"] == [{"x": 1}]
        with pytest.raises(TypeError):
            response.raw["extra"].append(1)

    def test_more_choices_are_noted(self) -> None:
        payload = reply({"content": "a"})
        payload["choices"] *= 2
        assert "2 choices" in parse_completion(payload).notes[0]


class TestFinishReason:
    @pytest.mark.req("RS-06", "D-41")
    @pytest.mark.parametrize(
        ("finish", "reason"),
        [
            ("stop", "stop"),
            (None, "unknown"),
            ("", "unknown"),
            (3, "unknown"),
            ("x", "x"),
        ],
    )
    def test_null_is_unknown(self, finish: object, reason: str) -> None:
        """RS-06, D-41: never the text `None`."""
        assert read({"content": "a"}, finish).finish_reason == reason

    def test_left_out_it_is_stop(self) -> None:
        response = parse_completion({"choices": [{"message": {"content": "a"}}]})
        assert response.finish_reason == "stop"


class TestUsage:
    @pytest.mark.req("RS-02")
    def test_usage_inside_the_choice_counts_once(self) -> None:
        """RS-02."""
        payload = reply({"content": "a"})
        payload["choices"][0]["usage"] = {"prompt_tokens": 3, "completion_tokens": 2}
        assert usage_of(parse_completion(payload)).input_tokens == 3
        payload["usage"] = {"prompt_tokens": 3, "completion_tokens": 2}
        assert usage_of(parse_completion(payload)).input_tokens == 3

    @pytest.mark.req("D-12", "provider.parsing")
    @pytest.mark.parametrize(
        "usage",
        [
            None,
            [],
            "x",
            {"prompt_tokens": None},
            {"prompt_tokens": -1},
            {"prompt_tokens": "9"},
            {"prompt_tokens": True},
            {"prompt_tokens": 10**12},
            {"prompt_tokens": 1.5, "prompt_tokens_details": 3},
        ],
    )
    def test_odd_usage_never_costs_the_reply(self, usage: object) -> None:
        """D-12: kept as it is, counted as zero."""
        response = read({"content": "paid for"}, usage=usage)
        assert response.content == "paid for"
        assert usage_of(response).input_tokens == 0
        assert response.usage == (usage if isinstance(usage, dict) else {})

    def test_a_whole_float_is_a_count(self) -> None:
        assert usage_of(read({}, usage={"prompt_tokens": 12.0})).input_tokens == 12

    def test_cached_and_reasoning_tokens_are_counted(self) -> None:
        usage = {
            "prompt_tokens": 100,
            "completion_tokens": 50,
            "prompt_tokens_details": {"cached_tokens": 80},
            "completion_tokens_details": {"reasoning_tokens": 30},
        }
        spent = usage_of(read({}, usage=usage))
        assert (spent.cache_read_tokens, spent.reasoning_tokens) == (80, 30)
        assert (spent.input_tokens, spent.output_tokens) == (100, 50)

    @pytest.mark.req("RS-03")
    def test_a_gateways_cache_counts_are_not_added_twice(self) -> None:
        """RS-03: `prompt_tokens` has them already."""
        usage = {"prompt_tokens": 12307, "cache_creation_input_tokens": 12304}
        spent = usage_of(read({}, usage=usage))
        assert (spent.input_tokens, spent.cache_write_tokens) == (12307, 12304)


class TestCalls:
    def test_calls_are_read_in_order(self) -> None:
        message = {
            "content": None,
            "tool_calls": [call('{"a": 1}'), call({"b": 2}, "c2", "g")],
        }
        response = read(message, "tool_calls")
        assert [(c.id, c.name, dict(c.arguments)) for c in response.tool_calls] == [
            ("c1", "f", {"a": 1}),
            ("c2", "g", {"b": 2}),
        ]
        assert response.problems == ()

    @pytest.mark.req("TC-01")
    @pytest.mark.parametrize("arguments", ["", "  ", None, "{}", {}])
    def test_no_arguments_are_an_empty_object(self, arguments: object) -> None:
        """TC-01: a common way to call a tool without parameters."""
        response = read({"tool_calls": [call(arguments)]}, "tool_calls")
        assert dict(response.tool_calls[0].arguments) == {}

    @pytest.mark.req("TC-02", "TC-03", "provider.broken-arguments")
    def test_a_broken_call_leaves_its_siblings_alone(self) -> None:
        """TC-02, TC-03: it is never run with other arguments."""
        cut = '{"path": "/srv/a.txt", "body": "half a sen'
        calls = [
            call('{"n": 1}', "c1"),
            call(cut, "c2", "write"),
            call('{"n": 3}', "c3"),
        ]
        response = read({"tool_calls": calls}, "tool_calls")
        assert [c.id for c in response.tool_calls] == ["c1", "c3"]
        (problem,) = response.problems
        assert (problem.call_id, problem.name, problem.index) == ("c2", "write", 1)
        assert problem.raw == cut
        assert problem.length == len(cut)
        assert problem.position is not None
        assert "write" in problem.to_observation()

    @pytest.mark.req("TC-03", "TC-05", "provider.broken-arguments")
    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            ('{"scope": "tmp",, }', "were not valid JSON"),
            ('{"{"ids": [4, 5]}', "were not valid JSON"),
            ("{'a': 1}", "were not valid JSON"),
            ("[1]", "decode to a JSON object"),
            ("3", "decode to a JSON object"),
            ('"text"', ""),
            (3, "dict or JSON string"),
            ([1], "dict or JSON string"),
            ('{"a": NaN}', ""),
            ("[" * 100_000, ""),
            ('{"a": ' + "9" * 5000 + "}", ""),
        ],
    )
    def test_unreadable_arguments_are_a_problem(
        self, arguments: object, why: str
    ) -> None:
        """TC-03, TC-05: told to the model, not guessed, not raised."""
        response = read({"tool_calls": [call(arguments)]}, "tool_calls")
        assert response.tool_calls == ()
        (problem,) = response.problems
        assert problem.call_id == "c1"
        assert why in problem.message
        assert len(problem.raw) <= 800

    @pytest.mark.req("TC-08", "TC-10")
    def test_arguments_encoded_twice_are_decoded_and_texts_stay_texts(self) -> None:
        """TC-08, TC-10."""
        twice = json.dumps(json.dumps({"city": "Oslo"}))
        assert read({"tool_calls": [call(twice)]}).tool_calls[0].arguments == {
            "city": "Oslo"
        }
        for body in ('{"a": 1}', "42", "true"):
            response = read({"tool_calls": [call(json.dumps({"body": body}))]})
            assert response.tool_calls[0].arguments == {"body": body}

    @pytest.mark.req("TC-12")
    def test_of_two_equal_ids_the_second_is_renamed(self) -> None:
        """TC-12: the first keeps its id, the change is noted, nothing collides."""
        ids = ["fn:301", "fn:301", "fn:301-2", "fn:301"]
        calls = [call(f'{{"n": {n}}}', i) for n, i in enumerate(ids)]
        response = read({"tool_calls": calls})
        assert [c.id for c in response.tool_calls] == [
            *("fn:301", "fn:301-3", "fn:301-2", "fn:301-4")
        ]
        assert [c.arguments["n"] for c in response.tool_calls] == [0, 1, 2, 3]
        assert "'fn:301'" in response.notes[0]
        assert read({"tool_calls": calls}).tool_calls == response.tool_calls

    @pytest.mark.req("TC-12", "wire.ids-linear")
    def test_many_equal_ids_are_renamed_in_linear_work(self) -> None:
        """Counted in names tried: a server may send thousands of calls with one id."""
        tried = 0

        class Given(str):
            __slots__ = ()

            def __format__(self, spec: str) -> str:
                nonlocal tried
                tried += 1
                return str.__format__(self, spec)

        many = [RawCall(Given("call"), "f", {}) for _ in range(500)]
        found = collect_calls([*many, RawCall("call-300", "f", {})])
        assert len({item.id for item in found.calls}) == 501
        assert tried < 1100

    @pytest.mark.req("TC-14")
    @pytest.mark.parametrize("given", [None, "", [], {}, True])
    def test_a_missing_id_is_made(self, given: object) -> None:
        """TC-14."""
        first, second = read({"tool_calls": [call("{}", given)] * 2}).tool_calls
        assert first.id
        assert second.id
        assert first.id != second.id

    @pytest.mark.req("TC-14")
    def test_an_id_without_its_key_is_made_and_a_number_is_kept(self) -> None:
        response = read({"tool_calls": [{"function": {"name": "f"}}, call("{}", 7)]})
        assert response.tool_calls[0].id
        assert response.tool_calls[1].id == "7"

    @pytest.mark.req("TC-16")
    @pytest.mark.parametrize("finish", ["stop", None, "other", "tool_calls"])
    def test_calls_count_whatever_the_finish_reason(self, finish: object) -> None:
        """TC-16."""
        message = {
            "content": "let me look",
            "tool_calls": [call("{}"), call("{}", "c2")],
        }
        assert len(read(message, finish).tool_calls) == 2

    @pytest.mark.req("TC-16", "TC-02")
    @pytest.mark.parametrize("last", ['{"a": "hal', "", None])
    def test_in_a_truncated_reply_only_complete_calls_run(self, last: object) -> None:
        """TC-16: empty arguments at the end of it are not complete either."""
        calls = [call("", "c1"), call('{"a": 1}', "c2"), call(last, "c3")]
        response = read({"content": "x", "tool_calls": calls}, "length")
        assert response.was_truncated
        assert [c.id for c in response.tool_calls] == ["c1", "c2"]
        assert [p.call_id for p in response.problems] == ["c3"]
        assert "cut off" in response.problems[0].message

    @pytest.mark.req("TC-16")
    def test_a_complete_last_call_of_a_truncated_reply_runs(self) -> None:
        response = read({"tool_calls": [call('{"a": 1}')]}, "length")
        assert len(response.tool_calls) == 1

    @pytest.mark.req("TC-17")
    def test_announced_calls_that_are_not_there_are_none(self) -> None:
        """TC-17: the loop sees neither text nor calls."""
        response = read({"content": "", "tool_calls": []}, "tool_calls")
        assert (response.content, response.tool_calls, response.problems) == (
            "",
            (),
            (),
        )
        assert response.finish_reason == "tool_calls"

    def test_the_older_function_call_is_read(self) -> None:
        message = {
            "content": None,
            "function_call": {"name": "f", "arguments": '{"a":1}'},
        }
        (only,) = read(message, "function_call").tool_calls
        assert (only.name, dict(only.arguments)) == ("f", {"a": 1})
        assert only.id

    def test_a_tool_with_free_text_gets_it_as_input(self) -> None:
        custom = {"id": "c", "type": "custom", "custom": {"name": "py", "input": "1+1"}}
        (only,) = read({"tool_calls": [custom]}).tool_calls
        assert only.arguments == {"input": "1+1"}

    @pytest.mark.req("provider.broken-calls")
    @pytest.mark.parametrize(
        ("calls", "why"),
        [
            ("x", "payload was not a list"),
            ({"id": "c"}, "payload was not a list"),
            ([3], "payload was not an object"),
            ([{"id": "c", "function": "f"}], "function payload was not an object"),
            ([{"id": "c", "function": {"arguments": "{}"}}], "name was missing"),
            ([call("{}", name="  ")], "name was missing"),
            ([call("{}", name=3)], "name was missing"),
        ],
    )
    def test_a_call_that_is_none_is_a_problem_beside_something_usable(
        self, calls: object, why: str
    ) -> None:
        """Alone it is an error: no answer could be paired with it."""
        with pytest.raises(BadResponseError, match=why):
            read({"content": None, "tool_calls": calls})
        beside_text = read({"content": "text", "tool_calls": calls})
        assert why in beside_text.problems[0].message
        if isinstance(calls, list):
            beside_call = read({"tool_calls": [*calls, call("{}", "ok")]})
            assert [c.id for c in beside_call.tool_calls] == ["ok"]
            assert why in beside_call.problems[0].message
            beside_broken = read({"tool_calls": [*calls, call("{", "broken")]})
            assert len(beside_broken.problems) == 2

    @pytest.mark.req("OB-04")
    def test_a_key_in_unreadable_arguments_is_not_shown(self) -> None:
        key = "my-very-own-key"
        payload = reply({"tool_calls": [call('{"k": "' + key)]})
        (problem,) = parse_completion(payload, (key,)).problems
        assert key not in repr(problem)

    @pytest.mark.req("TC-02", "TC-18")
    def test_the_reply_as_a_message_pairs_every_call(self) -> None:
        """Broken calls keep their places and ids, with arguments that parse."""
        calls = [call("{", "a"), call('{"n": 1}', "b"), call("{", "c"), call("", "d")]
        message = read({"content": "", "tool_calls": calls}).to_message()
        assert message["content"] is None
        assert [c["id"] for c in message["tool_calls"]] == ["a", "b", "c", "d"]
        texts = [c["function"]["arguments"] for c in message["tool_calls"]]
        assert [json.loads(text) for text in texts] == [{}, {"n": 1}, {}, {}]


class TestBadAnswers:
    @pytest.mark.req("D-13", "HT-08", "provider.total")
    @pytest.mark.parametrize(
        ("payload", "why"),
        [
            (None, "not a JSON object"),
            ([], "not a JSON object"),
            ("x", "not a JSON object"),
            ({}, "did not include any choices"),
            ({"choices": None}, "did not include any choices"),
            ({"choices": []}, "did not include any choices"),
            ({"choices": {}}, "did not include any choices"),
            ({"choices": ["x"]}, "was not an object"),
            ({"choices": [{}]}, "message` of the answer was not an object"),
            ({"choices": [{"message": None}]}, "was not an object"),
            ({"choices": [{"message": "x"}]}, "was not an object"),
        ],
    )
    def test_another_shape_is_a_bad_response(self, payload: Any, why: str) -> None:
        """D-13: typed, never an AttributeError."""
        with pytest.raises(BadResponseError, match=why) as caught:
            parse_completion(payload)
        assert isinstance(caught.value, ProviderError)
        assert caught.value.retry_limit == 1

    @pytest.mark.req("D-12")
    @pytest.mark.parametrize(
        ("payload", "kind"),
        [
            ({"error": {"message": "boom"}}, PermanentError),
            (
                {"error": {"message": "boom", "code": 429}, "choices": []},
                RateLimitError,
            ),
            ([{"error": {"message": "boom", "code": 503}}], ProviderError),
            (
                {
                    "choices": [
                        {"error": {"message": "boom", "code": 502}, "message": {}}
                    ]
                },
                ProviderError,
            ),
            ({"object": "error", "message": "boom", "code": 400}, PermanentError),
        ],
    )
    def test_an_error_object_in_a_200_is_that_error(
        self, payload: Any, kind: type[LLMError]
    ) -> None:
        """D-12."""
        with pytest.raises(kind, match="boom"):
            parse_completion(payload)

    def test_null_errors_beside_an_answer_are_nothing(self) -> None:
        payload = reply({"content": "a"}, error=None)
        payload["choices"][0]["error"] = None
        assert parse_completion(payload).content == "a"
