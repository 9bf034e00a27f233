"""Anthropic's streamed messages, put together block by block."""

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
    usage_of,
)
from executionkit._wire.anthropic_reply import parse_message
from executionkit._wire.anthropic_request import AnswerTool
from executionkit._wire.anthropic_stream import MessageAssembler
from executionkit.errors import BadResponseError, ProviderError, StreamError

STOP = {"type": "message_stop"}


def start(**usage: Any) -> dict[str, Any]:
    message = {"id": "msg_1", "model": "claude-x", "content": [], "usage": usage}
    return {"type": "message_start", "message": message}


def opened(block: dict[str, Any], index: object = 0) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(kind: str, index: object = 0, **content: Any) -> dict[str, Any]:
    body = {"type": kind, **content}
    return {"type": "content_block_delta", "index": index, "delta": body}


def text(value: str, index: object = 0) -> dict[str, Any]:
    return delta("text_delta", index, text=value)


def given(fragment: str, index: object = 0) -> dict[str, Any]:
    return delta("input_json_delta", index, partial_json=fragment)


def closed(index: object = 0) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def end(reason: object = "end_turn", **usage: Any) -> dict[str, Any]:
    body = {"stop_reason": reason, "stop_sequence": None}
    return {"type": "message_delta", "delta": body, "usage": usage}


def call(call_id: str = "t1", name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}, **more}


def assemble(
    *frames: dict[str, Any], answer: AnswerTool | None = None
) -> tuple[LLMResponse, list[StreamEvent]]:
    assembler = MessageAssembler(answer=answer)
    events: list[StreamEvent] = []
    for frame in frames:
        events += assembler.feed(str(frame.get("type")), json.dumps(frame))
    return assembler.finish(), events


def texts(events: list[StreamEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_text_is_put_together() -> None:
    response, events = assemble(
        start(input_tokens=4),
        opened({"type": "text", "text": ""}),
        {"type": "ping"},
        text("he"),
        text("llo"),
        closed(),
        {"type": "something_new"},
        end(output_tokens=2),
        STOP,
    )
    assert response.content == texts(events) == "hello"
    assert response.finish_reason == "end_turn"
    assert (response.id, response.model) == ("msg_1", "claude-x")
    assert usage_of(response).output_tokens == 2


@pytest.mark.req("RS-04")
def test_usage_of_both_events_is_one_usage() -> None:
    """RS-04: cache reads at the start, output at the end; the same as not streamed."""
    counts = {"cache_read_input_tokens": 2455, "input_tokens": 4, "output_tokens": 1}
    streamed, _ = assemble(
        start(**counts), end(output_tokens=23, input_tokens=None), STOP
    )
    usage = {**counts, "output_tokens": 23}
    whole = parse_message({"content": [], "usage": usage})
    assert usage_of(streamed) == usage_of(whole)
    assert usage_of(streamed).input_tokens == 2459
    assert usage_of(streamed).cache_read_tokens == 2455


@pytest.mark.req("ST-07", "TC-01")
def test_fragments_are_parsed_once_at_the_end() -> None:
    """ST-07: and a block without fragments is an empty object."""
    response, events = assemble(
        opened(call("t1"), 0),
        given('{"pa', 0),
        given('th": "a"', 0),
        given(', "n": 2}', 0),
        closed(0),
        opened(call("t2", "g"), 1),
        closed(1),
        end("tool_use"),
        STOP,
    )
    assert [(c.id, c.name, dict(c.arguments)) for c in response.tool_calls] == [
        ("t1", "f", {"path": "a", "n": 2}),
        ("t2", "g", {}),
    ]
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    assert deltas[0] == ToolCallDelta(0, "t1", "f", "")
    assert "".join(d.arguments for d in deltas) == '{"path": "a", "n": 2}'
    assert deltas[-1] == ToolCallDelta(1, "t2", "g", "")


@pytest.mark.req("ST-06")
def test_an_input_in_the_first_event_counts_once() -> None:
    """ST-06."""
    response, _ = assemble(
        opened(call(input={"a": 1})), closed(), end("tool_use"), STOP
    )
    assert dict(response.tool_calls[0].arguments) == {"a": 1}
    response, _ = assemble(opened(call(input={"a": 1})), given('{"a": 1}'), end(), STOP)
    assert dict(response.tool_calls[0].arguments) == {"a": 1}


@pytest.mark.req("ST-01", "ST-02", "ST-04")
@pytest.mark.parametrize("index", [None, "0", 5])
def test_odd_indexes_do_no_harm(index: object) -> None:
    """ST-02 null, ST-04 gaps."""
    response, _ = assemble(
        opened({"type": "text", "text": "a"}, index),
        text("b", index),
        opened(call("t1"), None if index is None else 9),
        given('{"a": 1}', None if index is None else 9),
        end("tool_use"),
        STOP,
    )
    assert response.content == "ab"
    assert dict(response.tool_calls[0].arguments) == {"a": 1}


def test_blocks_may_be_interleaved_and_begin_without_a_start() -> None:
    response, _ = assemble(
        text("a", 0),
        opened(call("t1"), 1),
        text("b", 0),
        given('{"a": 1}', 1),
        text("c", 2),
        end(),
        STOP,
    )
    assert response.content == "abc"
    assert response.tool_calls[0].arguments == {"a": 1}
    with pytest.raises(BadResponseError, match="name was missing"):
        assemble(given("{}"), end("tool_use"), STOP)


@pytest.mark.req("anthropic.thinking")
def test_thinking_keeps_its_signature() -> None:
    response, events = assemble(
        opened({"type": "thinking", "thinking": "", "signature": ""}, 0),
        delta("thinking_delta", 0, thinking="h"),
        delta("thinking_delta", 0, thinking="m"),
        delta("signature_delta", 0, signature="s1"),
        delta("signature_delta", 0, signature="=="),
        closed(0),
        opened({"type": "redacted_thinking", "data": "xx"}, 1),
        opened({"type": "text", "text": ""}, 2),
        text("a", 2),
        delta("citations_delta", 2, citation={}),
        end(),
        STOP,
    )
    assert response.reasoning == "hm"
    assert ReasoningDelta("h") in events
    assert response.parts[0] == {
        "type": "thinking",
        "thinking": "hm",
        "signature": "s1==",
    }
    assert response.to_message()["thinking_blocks"] == list(response.parts[:2])


class TestEnd:
    @pytest.mark.req("ST-13")
    def test_an_end_without_a_mark_is_incomplete(self) -> None:
        """ST-13: no `message_stop`, no stop reason."""
        with pytest.raises(StreamError, match="incomplete stream") as caught:
            assemble(start(), text("a"), text("b"), text("c"))
        assert caught.value.partial_text == "abc"

    def test_message_stop_says_that_nothing_more_will_come(self) -> None:
        assembler = MessageAssembler()
        assembler.feed("message_stop", json.dumps(STOP))
        assert assembler.complete

    @pytest.mark.req("TC-16", "TC-02")
    @pytest.mark.parametrize("fragment", ["", '{"a": "hal'])
    def test_a_cut_off_call_is_a_problem(self, fragment: str) -> None:
        """TC-16."""
        frames = [opened(call("t1"), 0), given("{}", 0), opened(call("t2"), 1)]
        response, _ = assemble(
            *frames, given(fragment, 1), closed(1), end("max_tokens"), STOP
        )
        assert [c.id for c in response.tool_calls] == ["t1"]
        (problem,) = response.problems
        assert (problem.call_id, problem.raw) == ("t2", fragment)
        assert "cut off" in problem.message

    def test_a_complete_last_call_of_a_truncated_reply_runs(self) -> None:
        response, _ = assemble(
            opened(call()), given('{"a": 1}'), end("max_tokens"), STOP
        )
        assert len(response.tool_calls) == 1

    def test_a_part_is_marked(self) -> None:
        assembler = MessageAssembler()
        assembler.feed("", json.dumps(start(input_tokens=4)))
        assembler.feed("", json.dumps(text("a")))
        part = assembler.partial()
        assert (part.content, part.finish_reason) == ("a", "incomplete")
        assert usage_of(part).input_tokens == 4


@pytest.mark.req("ST-11", "ST-12")
def test_error_events_are_errors() -> None:
    """ST-12 first, ST-11 after content."""
    failing = {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "boom"},
    }
    with pytest.raises(ProviderError, match="boom") as caught:
        assemble(start(), failing)
    assert type(caught.value) is ProviderError
    with pytest.raises(StreamError, match="boom") as caught:
        assemble(start(), text("so far"), failing)
    assert caught.value.partial_text == "so far"


@pytest.mark.req("anthropic.response-format")
class TestAnswerTool:
    def test_its_input_streams_as_text(self) -> None:
        response, events = assemble(
            opened(call(name="out")),
            given('{"n"'),
            given(": 1}"),
            closed(),
            end("tool_use"),
            STOP,
            answer=AnswerTool("out", wrapped=False),
        )
        assert response.content == texts(events) == '{"n": 1}'
        assert response.finish_reason == "end_turn"
        assert response.tool_calls == ()

    def test_a_wrapped_one_comes_at_its_end(self) -> None:
        response, events = assemble(
            opened(call(name="out")),
            given('{"value": [1'),
            given(", 2]}"),
            closed(),
            opened(call("t2"), 1),
            end("tool_use"),
            STOP,
            answer=AnswerTool("out", wrapped=True),
        )
        assert json.loads(texts(events)) == [1, 2]
        assert response.content == texts(events)
        assert [c.id for c in response.tool_calls] == ["t2"]

    def test_one_that_came_at_once_is_text_too(self) -> None:
        response, events = assemble(
            opened(call(name="out", input={"n": 1})),
            closed(),
            end("tool_use"),
            STOP,
            answer=AnswerTool("out", wrapped=False),
        )
        assert json.loads(response.content) == {"n": 1}
        assert response.content == texts(events)

    def test_a_cut_off_one_is_a_truncated_text(self) -> None:
        response, _ = assemble(
            opened(call(name="out")),
            given('{"n": '),
            end("max_tokens"),
            STOP,
            answer=AnswerTool("out", wrapped=False),
        )
        assert response.content == '{"n": '
        assert response.was_truncated


@pytest.mark.parametrize(
    "frame",
    [
        {},
        {"type": 3},
        {"type": "message_start"},
        {"type": "message_start", "message": {"id": 3, "model": 3, "usage": 3}},
        {"type": "content_block_start"},
        {"type": "content_block_delta"},
        {"type": "content_block_delta", "delta": {"type": ["x"]}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": 3}},
        {"type": "content_block_stop", "index": {}},
        {"type": "message_delta", "delta": 3, "usage": 3},
        opened({"type": "text", "text": 3}),
        opened({"type": "thinking", "thinking": 3}),
    ],
)
def test_odd_events_do_no_harm(frame: dict[str, Any]) -> None:
    response, _ = assemble(
        frame, opened({"type": "text"}, 1), text("a", 1), end(), STOP
    )
    assert response.content.endswith("a")
