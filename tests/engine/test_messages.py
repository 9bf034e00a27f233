"""Chat messages: fresh dicts, fit to be sent, the caller's objects untouched."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit.calls import ToolCall
from executionkit.engine.messages import (
    assistant_message,
    assistant_tool_calls_message,
    copy_message,
    system_message,
    tool_message,
    user_message,
)
from executionkit.types import freeze


def wire(arguments: Any) -> dict[str, Any]:
    return {
        "id": "c1",
        "type": "function",
        "function": {"name": "now", "arguments": arguments},
    }


@pytest.mark.req("messages.shapes")
def test_each_role_has_its_shape() -> None:
    assert system_message("a") == {"role": "system", "content": "a"}
    assert user_message("a") == {"role": "user", "content": "a"}
    assert assistant_message("a") == {"role": "assistant", "content": "a"}
    assert tool_message("c1", "a") == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "a",
    }


@pytest.mark.req("messages.fresh")
@pytest.mark.parametrize("make", [system_message, user_message, assistant_message])
def test_content_parts_are_copied(make: Any) -> None:
    parts = [{"type": "text", "text": "a", "more": {"deep": [1]}}]
    for given_parts in (parts, freeze(parts)):
        message = make(given_parts)
        message["content"][0]["more"]["deep"].append(2)
        message["content"].append("x")
        assert (
            given_parts
            == parts
            == [{"type": "text", "text": "a", "more": {"deep": [1]}}]
        )


@pytest.mark.req("messages.shapes")
def test_calls_are_written_in_the_wire_s_form() -> None:
    calls = [
        ToolCall("c1", "find", {"q": "é", "deep": {"n": [1, None, True]}}),
        ToolCall("c2", "now"),
    ]
    message = assistant_tool_calls_message("look", calls)
    assert message["role"] == "assistant"
    assert message["content"] == "look"
    first, second = message["tool_calls"]
    assert first["id"] == "c1"
    assert first["type"] == "function"
    assert first["function"]["name"] == "find"
    assert json.loads(first["function"]["arguments"]) == {
        "q": "é",
        "deep": {"n": [1, None, True]},
    }
    assert "é" in first["function"]["arguments"]
    assert second["function"] == {"name": "now", "arguments": "{}"}


@pytest.mark.req("messages.shapes")
@pytest.mark.parametrize("content", ["", None])
def test_no_text_beside_the_calls_is_null(content: str | None) -> None:
    assert assistant_tool_calls_message(content, [])["content"] is None


@pytest.mark.req("TC-07", "messages.arguments")
@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ("", "{}"),
        (" \n", "{}"),
        (None, "{}"),
        ('{"a": 1}', '{"a": 1}'),
        ({"a": "é"}, '{"a": "é"}'),
        ({}, "{}"),
    ],
)
def test_empty_arguments_go_out_as_an_empty_object(arguments: Any, sent: str) -> None:
    """TC-07: also in a message of the caller's, which is not changed."""
    call = wire(arguments)
    before = copy.deepcopy(call)
    made = assistant_tool_calls_message("", [call])
    assert made["tool_calls"] == [wire(sent)]
    message = freeze({"role": "assistant", "content": None, "tool_calls": [call]})
    assert copy_message(message)["tool_calls"] == [wire(sent)]
    assert call == before


@pytest.mark.req("messages.fresh")
def test_a_copied_message_shares_nothing_with_its_original() -> None:
    original: dict[str, Any] = {
        "role": "assistant",
        "content": [{"text": "a"}],
        "tool_calls": [wire("{}"), "odd", {"id": "x"}, {"function": "odd"}],
        "extra": {"a": [1]},
    }
    before = copy.deepcopy(original)
    copied = copy_message(original)
    assert copied == original
    copied["content"][0]["text"] = "b"
    copied["tool_calls"][0]["function"]["name"] = "b"
    copied["extra"]["a"].append(2)
    assert original == before


@pytest.mark.parametrize("calls", [None, "text", 3])
def test_a_message_without_a_list_of_calls_is_copied_as_it_is(calls: Any) -> None:
    message = {"role": "assistant", "content": "a", "tool_calls": calls}
    assert copy_message(message) == message
    assert copy_message({"role": "user"}) == {"role": "user"}


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_arguments_survive_the_wire(arguments: dict[str, Any]) -> None:
    message = assistant_tool_calls_message("", [ToolCall("c", "t", arguments)])
    sent = message["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == arguments


@given(JSON)
def test_copying_never_fails_and_never_changes_the_original(value: Any) -> None:
    message = {"role": "assistant", "tool_calls": value, "x": value}
    before = copy.deepcopy(message)
    copied = copy_message(message)
    assert message == before
    assert copied["x"] == value
    json.dumps(copied)
