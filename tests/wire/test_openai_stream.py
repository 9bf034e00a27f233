"""OpenAI's streamed chat completions, put together piece by piece."""

from __future__ import annotations

import json
from typing import Any

import pytest

from executionkit._llm import (
    LLMResponse,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    UsageUpdate,
    usage_of,
)
from executionkit._wire import openai_calls
from executionkit._wire.openai import parse_completion
from executionkit._wire.openai_stream import ChatAssembler
from executionkit.errors import (
    BadResponseError,
    LLMError,
    PermanentError,
    ProviderError,
    RateLimitError,
    StreamError,
)

DONE = "[DONE]"
KEY = "tops3cret-value-17"


def chunk(delta: object = None, finish: object = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"id": "r1", "model": "m1", "choices": [choice], **more}


def piece(
    arguments: object = None,
    *,
    index: object = ...,
    call_id: object = ...,
    name: object = ...,
) -> dict[str, Any]:
    function = {} if name is ... else {"name": name}
    if arguments is not None:
        function["arguments"] = arguments
    entry: dict[str, Any] = {"function": function}
    if index is not ...:
        entry["index"] = index
    if call_id is not ...:
        entry["id"] = call_id
    return entry


def pieces(*entries: object) -> dict[str, Any]:
    return chunk({"tool_calls": list(entries)})


def assemble(*frames: object) -> tuple[LLMResponse, list[StreamEvent]]:
    assembler = ChatAssembler(secrets=(KEY,))
    events: list[StreamEvent] = []
    for frame in frames:
        text = frame if isinstance(frame, str) else json.dumps(frame)
        events += assembler.feed("message", text)
    return assembler.finish(), events


def calls_of(*entries: object) -> list[tuple[str, str, dict[str, Any]]]:
    """The calls of a stream with one chunk for each entry."""
    response, _ = assemble(*map(pieces, entries), chunk(finish="tool_calls"), DONE)
    assert response.problems == ()
    return [(c.id, c.name, dict(c.arguments)) for c in response.tool_calls]


def test_text_is_put_together() -> None:
    response, events = assemble(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "he"}),
        chunk({"content": "llo"}),
        chunk(finish="stop"),
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        DONE,
    )
    assert response.content == "hello"
    assert response.finish_reason == "stop"
    assert (response.id, response.model) == ("r1", "m1")
    assert usage_of(response).output_tokens == 2
    texts = [event.text for event in events if isinstance(event, TextDelta)]
    assert texts == ["", "he", "llo"]
    assert UsageUpdate({"prompt_tokens": 3, "completion_tokens": 2}) in events


@pytest.mark.req("D-18", "D-41")
def test_what_a_whole_answer_has_a_stream_keeps_too() -> None:
    """D-18: finish reason; D-41: refusal and reasoning."""
    response, events = assemble(
        chunk({"reasoning_content": "hm"}),
        chunk({"reasoning": "m"}),
        chunk({"refusal": "n"}),
        chunk({"refusal": "o"}),
        chunk({"content": [{"type": "text", "text": "a"}]}),
        chunk(finish="length"),
        DONE,
    )
    assert response.reasoning == "hmm"
    assert response.refusal == "no"
    assert response.content == "a"
    assert response.was_truncated
    assert ReasoningDelta("hm") in events


@pytest.mark.req("D-18", "RS-02")
def test_usage_may_come_anywhere() -> None:
    """D-18: before the last delta. RS-02: inside the choice. The last one counts."""
    inside = chunk({"content": "b"}, finish="stop")
    inside["choices"][0]["usage"] = {"completion_tokens": 2}
    response, _ = assemble(
        chunk({"content": "a"}, usage={"completion_tokens": 1}), inside, DONE
    )
    assert response.content == "ab"
    assert usage_of(response).output_tokens == 2
    assert response.raw["choices"][0]["usage"] == {"completion_tokens": 2}


def test_further_samples_are_not_mixed_in() -> None:
    other = chunk({"content": "X"})
    other["choices"][0]["index"] = 1
    response, _ = assemble(chunk({"content": "a"}), other, chunk(finish="stop"), DONE)
    assert response.content == "a"


@pytest.mark.req("D-18", "RS-06")
def test_a_null_reason_after_the_end_changes_nothing() -> None:
    """D-18: the length that cut the reply off stays known."""
    after = chunk({"content": ""})
    after["choices"][0]["finish_reason"] = None
    after["usage"] = {"completion_tokens": 2}
    response, _ = assemble(chunk({"content": "a"}), chunk(finish="length"), after, DONE)
    assert response.finish_reason == "length"
    assert response.was_truncated


def test_a_message_in_place_of_a_delta_is_read() -> None:
    frame = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}
    assert assemble(frame)[0].content == "a"
    assert (
        assemble({"choices": [{"text": "a", "finish_reason": "stop"}]})[0].content
        == "a"
    )


class TestEnd:
    @pytest.mark.req("ST-13", "D-18")
    def test_an_end_without_a_mark_is_incomplete(self) -> None:
        """ST-13: never a normal stop."""
        with pytest.raises(StreamError, match="incomplete stream") as caught:
            assemble(
                chunk({"content": "a"}),
                chunk({"content": "b"}),
                chunk({"content": "c"}),
            )
        assert caught.value.partial_text == "abc"
        with pytest.raises(StreamError, match="incomplete stream"):
            assemble()

    def test_either_mark_is_enough(self) -> None:
        assert assemble(chunk({"content": "a"}, "stop"))[0].finish_reason == "stop"
        assert assemble(chunk({"content": "a"}), DONE)[0].finish_reason == "unknown"
        bare = {"choices": [{"delta": {"content": "a"}}]}
        assert assemble(bare, DONE)[0].finish_reason == "stop"
        assert assemble(DONE)[0].content == ""

    @pytest.mark.req("ST-14")
    def test_done_says_that_nothing_more_will_come(self) -> None:
        """ST-14."""
        assembler = ChatAssembler()
        assembler.feed("message", json.dumps(chunk({"content": "a"})))
        assert not assembler.complete
        assembler.feed("message", " [DONE] ".strip())
        assert assembler.complete

    def test_a_part_is_marked_and_its_usage_is_only_what_is_known(self) -> None:
        assembler = ChatAssembler()
        assembler.feed("message", json.dumps(chunk({"content": "a", "reasoning": "r"})))
        part = assembler.partial()
        assert (part.content, part.reasoning, part.id) == ("a", "r", "r1")
        assert part.finish_reason == "incomplete"
        assert part.usage == {}
        assembler.feed(
            "message", json.dumps({"choices": [], "usage": {"prompt_tokens": 2}})
        )
        assert usage_of(assembler.partial()).input_tokens == 2
        assembler.feed("message", DONE)
        assert assembler.finish() is assembler.partial()


class TestErrors:
    @pytest.mark.req("ST-12", "D-18")
    @pytest.mark.parametrize(
        ("frame", "kind"),
        [
            ({"error": {"message": "boom", "type": "overloaded_error"}}, ProviderError),
            ({"error": {"message": "boom", "code": 429}}, RateLimitError),
            ({"error": {"message": "boom"}}, StreamError),
            ({"error": "boom"}, StreamError),
            ({"object": "error", "message": "boom", "code": 500}, ProviderError),
            ({"error": {"message": "boom", "code": 401}}, PermanentError),
        ],
    )
    def test_an_error_first_is_the_error_of_a_plain_call(
        self, frame: object, kind: type[LLMError]
    ) -> None:
        """ST-12: with no content before it can be retried unseen; blanks do not count."""
        for before in ((), (chunk({"role": "assistant", "content": ""}),)):
            with pytest.raises(kind, match="boom") as caught:
                assemble(*before, frame)
            assert type(caught.value) is kind

    @pytest.mark.req("ST-11", "D-18", "OB-03")
    @pytest.mark.parametrize(
        "start",
        [
            {"content": "so far"},
            {"reasoning": "hm"},
            {"tool_calls": [piece("{", name="f")]},
        ],
    )
    def test_an_error_after_content_is_a_stream_error(
        self, start: dict[str, Any]
    ) -> None:
        """ST-11: with the text until then."""
        frame = {"error": {"message": f"boom {KEY}", "type": "overloaded_error"}}
        with pytest.raises(StreamError, match="boom") as caught:
            assemble(chunk(start), frame)
        assert caught.value.partial_text == start.get("content", "")
        assert KEY not in str(caught.value)

    def test_an_error_inside_a_choice_counts(self) -> None:
        frame = chunk()
        frame["choices"][0]["error"] = {"message": "boom", "code": 502}
        with pytest.raises(ProviderError, match="boom"):
            assemble(frame)

    def test_an_event_named_error_is_one_whatever_it_says(self) -> None:
        for data in ('{"detail": "boom"}', "boom"):
            with pytest.raises(StreamError, match="boom"):
                ChatAssembler().feed("error", data)

    @pytest.mark.req("provider.total")
    @pytest.mark.parametrize("data", ["{", "x", "3", "[]", "null", "[DONE", ""])
    def test_an_event_that_is_no_object_is_a_stream_error(self, data: str) -> None:
        with pytest.raises(StreamError, match="non-JSON"):
            ChatAssembler().feed("message", data)

    @pytest.mark.parametrize(
        "frame",
        [
            {},
            {"choices": 3},
            {"choices": [3]},
            {"choices": [{"delta": 3}]},
            {"choices": [{"delta": {"content": 3, "refusal": 3, "reasoning": 3}}]},
            {"choices": [{"index": "x", "finish_reason": 3}]},
            {"id": 3, "model": 3, "usage": 3, "choices": []},
            {"error": None},
        ],
    )
    def test_odd_chunks_do_no_harm(self, frame: object) -> None:
        response, _ = assemble(frame, chunk({"content": "a"}, "stop"), DONE)
        assert response.content.endswith("a")

    def test_a_call_piece_that_is_no_object_is_a_stream_error(self) -> None:
        with pytest.raises(StreamError, match="payload was not an object"):
            assemble(chunk({"tool_calls": [3]}))
        with pytest.raises(StreamError, match="payload was not an object"):
            assemble(chunk({"tool_calls": "x"}))


class TestWholeAnswer:
    @pytest.mark.req("D-18")
    def test_a_whole_answer_is_the_reply(self) -> None:
        """D-18: plain JSON in answer to `stream=true`."""
        assembler = ChatAssembler()
        message = {"content": "a", "reasoning": "r"}
        payload = {"choices": [{"message": message}], "usage": {"prompt_tokens": 1}}
        events = assembler.whole(payload)
        assert events == [
            ReasoningDelta("r"),
            TextDelta("a"),
            UsageUpdate({"prompt_tokens": 1}),
        ]
        assert assembler.complete
        assert assembler.finish().content == "a"

    def test_a_whole_error_is_that_error(self) -> None:
        with pytest.raises(PermanentError):
            ChatAssembler().whole({"error": {"message": "boom"}})
        with pytest.raises(BadResponseError):
            ChatAssembler().whole([])


class TestCallPieces:
    @pytest.mark.req("ST-01", "ST-02")
    @pytest.mark.parametrize("index", [..., None, "0", 0, 7])
    def test_one_call_in_pieces(self, index: object) -> None:
        """ST-01 without an index, ST-02 with null."""
        assert calls_of(
            piece("", index=index, call_id="c1", name="f"),
            piece('{"pa', index=index),
            piece('th": "a"}', index=index),
        ) == [("c1", "f", {"path": "a"})]

    @pytest.mark.req("ST-01", "ST-02")
    @pytest.mark.parametrize("index", [..., None])
    def test_two_calls_without_an_index(self, index: object) -> None:
        assert calls_of(
            piece("", index=index, call_id="c1", name="f"),
            piece('{"a": 1}', index=index),
            piece("", index=index, call_id="c2", name="g"),
            piece('{"b"', index=index),
            piece(": 2}", index=index),
        ) == [("c1", "f", {"a": 1}), ("c2", "g", {"b": 2})]

    def test_pieces_are_found_by_their_id(self) -> None:
        assert calls_of(
            piece("", call_id="c1", name="f"),
            piece("", call_id="c2", name="g"),
            piece('{"a"', call_id="c1"),
            piece('{"b"', call_id="c2"),
            piece(": 1}", call_id="c1"),
            piece(": 2}", call_id="c2"),
        ) == [("c1", "f", {"a": 1}), ("c2", "g", {"b": 2})]

    @pytest.mark.req("ST-04")
    def test_indexes_may_have_gaps(self) -> None:
        """ST-04: no placeholders, in that order."""
        assert calls_of(
            piece('{"n": 1}', index=1, call_id="c1", name="f"),
            piece('{"n": 3}', index=3, call_id="c3", name="f"),
        ) == [("c1", "f", {"n": 1}), ("c3", "f", {"n": 3})]

    def test_pieces_may_be_interleaved(self) -> None:
        assert calls_of(
            piece("", index=0, call_id="c1", name="f"),
            piece("", index=1, call_id="c2", name="g"),
            piece('{"a"', index=0),
            piece('{"b"', index=1),
            piece(": 1}", index=0),
            piece(": 2}", index=1),
        ) == [("c1", "f", {"a": 1}), ("c2", "g", {"b": 2})]

    @pytest.mark.req("ST-06")
    def test_arguments_in_the_first_piece_appear_once(self) -> None:
        """ST-06: also when a server closes with all of them again."""
        first = piece('{"a": 1}', index=0, call_id="c1", name="f")
        assert calls_of(first) == [("c1", "f", {"a": 1})]
        assert calls_of(first, first) == [("c1", "f", {"a": 1})]
        split = [piece('{"a"', index=0, call_id="c1", name="f"), piece(": 1}", index=0)]
        assert calls_of(*split, piece('{"a": 1}', index=0)) == [("c1", "f", {"a": 1})]

    def test_the_id_and_name_may_be_repeated_with_every_piece(self) -> None:
        assert calls_of(
            piece('{"a"', index=0, call_id="c1", name="f"),
            piece(": 1", index=0, call_id="c1", name="f"),
            piece("}", index=0, call_id="c1", name="f"),
        ) == [("c1", "f", {"a": 1})]

    def test_every_call_under_one_index_is_told_by_its_id(self) -> None:
        assert calls_of(
            piece('{"a": 1}', index=0, call_id="c1", name="f"),
            piece('{"a": 2}', index=0, call_id="c2", name="f"),
        ) == [("c1", "f", {"a": 1}), ("c2", "f", {"a": 2})]

    @pytest.mark.req("TC-14")
    def test_without_ids_a_whole_call_ends_where_the_next_begins(self) -> None:
        got = calls_of(
            piece('{"a": 1}', index=0, name="f"),
            piece('{"a": 2}', index=0, name="f"),
            piece("{}", index=0, name="g"),
        )
        assert [(name, arguments) for _, name, arguments in got] == [
            *(("f", {"a": 1}), ("f", {"a": 2}), ("g", {}))
        ]
        assert len({call_id for call_id, _, _ in got}) == 3

    def test_a_name_in_pieces_is_joined(self) -> None:
        assert calls_of(
            piece(index=0, call_id="c1", name="get_"),
            piece(index=0, name="weather"),
            piece("{}", index=0),
        ) == [("c1", "get_weather", {})]

    def test_an_object_as_arguments_is_whole(self) -> None:
        assert calls_of(piece({"a": 1}, index=0, call_id="c", name="f")) == [
            ("c", "f", {"a": 1})
        ]

    def test_the_older_function_call_is_assembled(self) -> None:
        response, events = assemble(
            chunk({"function_call": {"name": "f", "arguments": ""}}),
            chunk({"function_call": {"arguments": '{"a":'}}),
            chunk({"function_call": {"arguments": "1}"}}),
            chunk(finish="function_call"),
        )
        (only,) = response.tool_calls
        assert (only.name, dict(only.arguments)) == ("f", {"a": 1})
        assert ToolCallDelta(0, None, "f", "") in events

    def test_a_tool_with_free_text_is_assembled(self) -> None:
        first = {"index": 0, "id": "c", "custom": {"name": "py", "input": "{1"}}
        rest = {"index": 0, "custom": {"input": "}"}}
        response, _ = assemble(pieces(first), pieces(rest), DONE)
        assert response.tool_calls[0].arguments == {"input": "{1}"}

    @pytest.mark.req("TC-01", "TC-02", "TC-16")
    @pytest.mark.parametrize("last", ['{"a": "hal', ""])
    def test_a_cut_off_call_is_a_problem(self, last: str) -> None:
        """TC-02, TC-16: the same as in a whole answer."""
        response, _ = assemble(
            pieces(piece("", index=0, call_id="c1", name="f")),
            pieces(piece(last, index=1, call_id="c2", name="g")),
            chunk(finish="length"),
            DONE,
        )
        assert [c.id for c in response.tool_calls] == ["c1"]
        assert [p.call_id for p in response.problems] == ["c2"]

    def test_events_number_the_calls_by_appearance(self) -> None:
        _, events = assemble(
            pieces(piece('{"a"', index=5, call_id="c1", name="f")),
            pieces(
                piece(": 1}", index=5), piece("{}", index=9, call_id="c2", name="g")
            ),
            DONE,
        )
        assert [event for event in events if isinstance(event, ToolCallDelta)] == [
            ToolCallDelta(0, "c1", "f", '{"a"'),
            ToolCallDelta(0, None, None, ": 1}"),
            ToolCallDelta(1, "c2", "g", "{}"),
        ]

    @pytest.mark.req("D-42")
    def test_looking_whether_a_call_is_whole_stays_linear(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """D-42: a text full of braces is looked at a few times, not at each piece."""
        looked: list[str] = []

        def counted(text: str) -> Any:
            looked.append(text)
            return json.loads(text)

        monkeypatch.setattr(openai_calls, "loads_json", counted)
        braces = [piece("{}", index=0) for _ in range(3000)]
        (only,) = calls_of(
            piece('{"code": "{}', index=0, call_id="c", name="f"),
            *braces,
            piece('"}', index=0),
        )
        assert only[2]["code"] == "{}" * 3001
        assert len(looked) <= 8


def test_both_transports_read_a_reply_alike() -> None:
    """The same reply, whole and streamed."""
    whole = parse_completion(
        {
            "id": "r1",
            "model": "m1",
            "choices": [
                {
                    "message": {
                        "content": "text",
                        "tool_calls": [
                            {"id": "a", "function": {"name": "f", "arguments": ""}},
                            {"id": "a", "function": {"name": "f", "arguments": "{x"}},
                        ],
                    },
                    "finish_reason": "tool_calls",
                }
            ],
        }
    )
    streamed, _ = assemble(
        chunk({"content": "te"}),
        chunk({"content": "xt"}),
        pieces(piece("", index=0, call_id="a", name="f")),
        pieces(piece("{", index=1, call_id="a", name="f")),
        pieces(piece("x", index=1)),
        chunk(finish="tool_calls"),
        DONE,
    )
    assert streamed.tool_calls == whole.tool_calls
    assert streamed.problems == whole.problems
    assert streamed.notes == whole.notes
    assert streamed.content == whole.content
