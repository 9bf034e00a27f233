"""Parsers by name, as objects, and from other packages."""

from __future__ import annotations

import importlib.metadata
import json
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from executionkit.calls import ToolCall
from executionkit.errors import ErrorCode, ParserError
from executionkit.tools.parsing import (
    DEFAULT_PARSERS,
    ParsedCalls,
    ToolCallParser,
    parse_calls,
    plugins,
    resolve_parsers,
)

XML = "<tool name='f'/>"
CHAT = {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}


class Shout:
    """Takes `CALL f` for a call."""

    name = "shout"

    def matches(self, data: object) -> bool:
        return isinstance(data, str) and data.startswith("CALL ")

    def parse(self, data: object) -> ParsedCalls | None:
        return ParsedCalls((ToolCall("1", str(data)[5:]),))


class Broken(Shout):
    name = "broken"

    def parse(self, data: object) -> ParsedCalls | None:
        raise LookupError("no")


def names(reply: object, *parsers: Any) -> list[str]:
    return [call.name for call in parse_calls(reply, parsers=parsers).calls]


@pytest.mark.req("parsing.plug-ins")
def test_parsers_are_chosen_by_name() -> None:
    assert names(XML, "xml") == ["f"]
    assert names(XML, "openai", "json") == []
    assert names(CHAT, "openai") == ["f"]
    assert names(json.dumps(CHAT), "openai") == ["f"]
    assert names(f"Sure: {json.dumps(CHAT)}", "openai") == ["f"]
    assert names(CHAT, "xml", "json", "anthropic") == []
    assert names(CHAT, "xml", "openai") == ["f"]


@pytest.mark.req("parsing.plug-ins")
def test_the_first_parser_that_finds_something_decides() -> None:
    text = XML + '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
    assert names(text, "hermes", "xml") == ["g"]
    assert names(text, "xml", "hermes") == ["f"]
    assert names(text, *DEFAULT_PARSERS) == ["f"]
    assert [call.name for call in parse_calls(text).calls] == ["f", "g"]


@pytest.mark.req("parsing.plug-ins")
@pytest.mark.parametrize(
    ("older", "reply"),
    [
        ("XmlToolPlugin", XML),
        ("OpenAIToolPlugin", json.dumps(CHAT)),
        ("JsonToolPlugin", '{"tool_calls": [{"tool": "f", "arguments": {}}]}'),
        ("FunctionCallPlugin", '{"function_call": {"name": "f", "arguments": "{}"}}'),
    ],
)
def test_the_older_names_are_known(older: str, reply: str) -> None:
    assert names(reply, older) == ["f"]


@pytest.mark.req("parsing.plug-ins")
def test_every_parser_of_ours_can_be_named() -> None:
    for parser in DEFAULT_PARSERS:
        assert isinstance(parser, ToolCallParser)
        assert resolve_parsers([parser.name]) == (parser,)
        assert parser.name in repr(parser)
        replies: list[object] = ["", None, {}, [], 5, "text", XML]
        for reply in replies:
            parser.matches(reply)
            assert not (parser.parse(reply) or ParsedCalls()).problems


@pytest.mark.req("parsing.plug-ins")
def test_what_is_a_call_already_needs_no_parser() -> None:
    call = ToolCall("1", "f")
    assert names(call, "xml") == names([call], "xml") == ["f"]


@pytest.mark.req("parsing.plug-ins")
def test_objects_are_parsers() -> None:
    assert names("CALL me", Shout(), "xml") == ["me"]
    assert names(XML, Shout(), "xml") == ["f"]
    with pytest.raises(TypeError, match="is no parser"):
        resolve_parsers([object()])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="list of names"):
        resolve_parsers("xml")
    with pytest.raises(TypeError, match="a reply must be"):
        parse_calls(5, parsers=["xml"])


@pytest.mark.req("parsing.plug-ins", "parsing.total")
def test_a_parser_that_fails_costs_only_itself() -> None:
    assert names("CALL me", Broken(), Shout()) == ["me"]
    (problem,) = parse_calls("CALL me", parsers=[Broken(), "xml"]).problems
    assert problem.code is ErrorCode.PARSER_ERROR
    assert "broken" in problem.message

    class Wrong(Shout):
        def parse(self, data: object) -> Any:
            return [data]

    (problem,) = parse_calls("CALL me", parsers=[Wrong()]).problems
    assert "ParsedCalls" in problem.message


@pytest.mark.req("parsing.plug-ins")
def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown parser 'xlm'.*XmlToolPlugin.*xml"):
        parse_calls(XML, parsers=["xlm"])


@pytest.mark.req("parsing.plug-ins")
def test_parsers_of_other_packages_are_found_by_entry_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    group = "executionkit.parsers"
    monkeypatch.setattr(plugins, "_Shout", Shout, raising=False)
    points = EntryPoints(
        [
            EntryPoint("shout", f"{plugins.__name__}:_Shout", group),
            EntryPoint("gone", "no_such_module:Parser", group),
            EntryPoint("odd", "json:dumps", group),
        ]
    )

    def entry_points(**given: str) -> EntryPoints:
        asked.append(given["group"])
        return points

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.setattr(plugins, "entry_points", entry_points)
    assert names(XML, "xml") == ["f"]
    assert asked == []
    assert names("CALL me", "shout") == ["me"]
    assert asked == [group]
    with pytest.raises(ParserError, match="cannot be loaded"):
        resolve_parsers(["gone"])
    with pytest.raises(TypeError, match="is no parser"):
        resolve_parsers(["odd"])
    with pytest.raises(ValueError, match="shout"):
        resolve_parsers(["nobody"])
