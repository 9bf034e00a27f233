"""The parser is total and linear: whatever is said, it answers, in good time."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from executionkit._wire.common import collect_calls
from executionkit.calls import CallProblem, ToolCall
from executionkit.tools.parsing import DEFAULT_PARSERS, ParsedCalls, parse_calls
from executionkit.tools.parsing.result import settle_plain
from executionkit.tools.parsing.shapes import read_declared

NAME = st.text("abcxyz_-.", min_size=1, max_size=8)
TEXT = st.text(max_size=12) | st.sampled_from(
    ["'/>", '"/>', "</tool>", "<tool name=", "&quot;", "\\", "{", "[1]", "```", "é😀"]
)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
ARGUMENTS = st.dictionaries(TEXT, VALUE, max_size=3)
CALLS = st.lists(st.tuples(NAME, ARGUMENTS), min_size=1, max_size=3)
PROSE = st.text("abc .,:;!?\n", max_size=30)
PIECES = [
    "<tool ", "<tool name=", '<tool name="a" ', "args='", "/>", ">", "</tool>", "'", '"', "\\", "{", "}", "[", "]",
    ":", ",", '{"name": "a"', '"arguments": ', "{}", '"tool_calls": [', "<tool_call>", "</tool_call>", "<function=a>",
    "<parameter=b>", "</parameter>", "</function>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<think>", "</think>",
    "```json\n", "```", "<｜tool▁call▁begin｜>a", "<｜tool▁sep｜>", "<|tool_call_begin|>a", "<|tool_call_argument_begin|>",  # noqa: RUF001
    "<|python_tag|>[", "a(", "x=", "(", ")", "'''", '""" ', "None", "-", "1", "<|python_start|>a.call(", "<|python_end|>",
    '<invoke name="a">', '<parameter name="b">', '<parameter name="b" string="false">', "</invoke>", "<arg_key>a</arg_key>",
    "<tool_call>a", "<arg_value>", "</arg_value>", "<|channel|>", "<|start|>assistant", " to=functions.a", "<|message|>",
    "<|call|>", "\ud800", "\x00", "9" * 50, "1e999", "NaN", "&quot;", "\n", " ", "a", '"id": "x", ', '"type": "function", ',
]  # fmt: skip
KEYS = st.sampled_from(
    ["tool_calls", "function", "name", "arguments", "id", "type", "content", "choices", "message", "delta", "role",
     "input", "args", "parts", "candidates", "output", "function_call", "functionCall", "index", "text", "tool",
     "namespace", "call_id", "item", "content_block", "partial_json", "status", "object", "custom", "x"]
)  # fmt: skip
WORDS = st.sampled_from(
    ["function", "tool_use", "function_call", "custom_tool_call", "message", "text", "assistant", "user", "length",
     "chat.completion.chunk", "content_block_start", "content_block_delta", "response.output_item.done", "{}", "{", ""]
)  # fmt: skip
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | WORDS
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=5)
        | st.dictionaries(st.integers() | st.none(), inner, max_size=1)
    ),
    max_leaves=15,
)


def tag(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool name='{name}' args='{json.dumps(arguments)}'/>"


def escaped_tag(name: str, arguments: dict[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    for char, entity in (("&", "&amp;"), ('"', "&quot;"), ("'", "&#x27;")):
        text = text.replace(char, entity)
    text = text.replace("<", "&lt;").replace(">", "&gt;")
    return f'<tool name="{name}" args="{text}" />'


def plain(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def hermes(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{plain(name, arguments)}\n</tool_call>"


def function(name: str, arguments: dict[str, Any]) -> str:
    return f"<function={name}>{json.dumps(arguments)}</function>"


def mistral(name: str, arguments: dict[str, Any]) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}"


def harmony(name: str, arguments: dict[str, Any]) -> str:
    given = json.dumps(arguments)
    return f"<|channel|>commentary to={name} json<|message|>{given}<|call|>"


FORMS = [tag, escaped_tag, plain, hermes, function, harmony, mistral]


def check(found: ParsedCalls) -> None:
    assert all(isinstance(call, ToolCall) for call in found.calls)
    assert all(isinstance(problem, CallProblem) for problem in found.problems)
    ids = [c.id if isinstance(c, ToolCall) else c.call_id for c in found.entries]
    assert all(ids)
    assert len(set(ids)) == len(ids) == len(found)
    for problem in found.problems:
        assert problem.message
        assert found.entries[problem.index] is problem
        assert len(problem.raw) <= 800


@pytest.mark.req("parsing.total")
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_no_text_makes_it_raise(text: str) -> None:
    check(parse_calls(text))
    check(parse_calls(text, parsers=DEFAULT_PARSERS))
    check(parse_calls({"choices": [{"message": {"content": text}}]}))
    check(parse_calls([{"function": {"name": "f", "arguments": text}}]))


@pytest.mark.req("parsing.total")
@given(st.binary(max_size=60) | st.text().map(lambda t: t.encode("utf-8", "replace")))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    check(parse_calls(data))


@pytest.mark.req("parsing.total")
@given(st.lists(ANYTHING, max_size=4) | st.dictionaries(KEYS, ANYTHING, max_size=6))
def test_no_data_make_it_raise(data: Any) -> None:
    check(parse_calls(data))
    check(parse_calls(data, parsers=DEFAULT_PARSERS))
    check(parse_calls({"tool_calls": data}))
    try:
        text = json.dumps(data)
    except (TypeError, ValueError):
        return
    check(parse_calls(text))


@pytest.mark.req("parsing.total", "T-29")
@given(CALLS, st.sampled_from(FORMS), PROSE, PROSE, PROSE)
def test_every_call_survives_in_prose(
    calls: list[tuple[str, dict[str, Any]]],
    form: Any,
    before: str,
    between: str,
    after: str,
) -> None:
    if form is mistral:
        after = between = ""
    # In a tag an entity means what XML says.
    assume(form is not tag or "&" not in json.dumps(calls))
    text = f"\n{between}\n".join([form(name, given) for name, given in calls])
    found = parse_calls(f"{before}\n{text}\n{after}")
    assert not found.problems
    assert [(c.name, c.arguments) for c in found.calls] == calls
    # JSON texts keep what is equal but not the same (1 and 1.0) apart.
    assert [json.dumps(dict(c.arguments)) for c in found.calls] == [
        json.dumps(given) for _, given in calls
    ]


@pytest.mark.req("parsing.total", "T-29")
@given(st.sampled_from(FORMS[:-1]), st.data())
def test_the_siblings_of_a_mutilated_call_survive(form: Any, data: Any) -> None:
    broken = form("broken", {"text": "some words", "n": [1, {"k": 2}]})
    at = data.draw(st.integers(0, len(broken)))
    mutilated = broken[:at] + data.draw(st.sampled_from(["", "x", "\x00"]))
    assume(not mutilated.rstrip().endswith(":"))  # then the next is its value
    first, last = form("first", {"a": 1}), form("last", {"b": 2})
    found = parse_calls(f"{first}\n{mutilated}\n{last}")
    names = [call.name for call in found.calls]
    assert names[0] == "first"
    assert names[-1] == "last"
    for call in found.calls[1:-1]:
        assert call.name == "broken"
        assert call.arguments == {"text": "some words", "n": [1, {"k": 2}]}


@pytest.mark.req("parsing.total")
@given(st.lists(ANYTHING.filter(lambda entry: isinstance(entry, dict)), max_size=4))
def test_the_short_way_gives_what_the_long_way_gives(entries: list[Any]) -> None:
    usual = [{"id": "a", "function": {"name": "f", "arguments": '{"x": [1.5]}'}}]
    raw = [read_declared(entry) for entry in [*usual, *entries]]
    short = settle_plain(raw)
    if short is not None:
        whole = collect_calls(raw)
        assert not whole.problems
        for one, other in zip(short, whole.calls, strict=True):
            assert one == replace(other, id=one.id)
            assert type(one.arguments) is type(other.arguments)
        given = [entry.id for entry in raw]
        for call, call_id in zip(short, given, strict=True):
            assert call_id is None or call.id == call_id


@pytest.mark.req("parsing.total")
@pytest.mark.parametrize("depth", [100, 1000, 100_000])
def test_nesting_without_end_is_no_call_that_can_be_run(depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    for reply in (
        deep,
        "[" * depth,
        plain("f", {}).replace("{}", deep),
        [{"function": {"name": "f", "arguments": deep}}],
        f"<tool name='f' args='{deep}'/>",
        hermes("f", {}).replace("{}", deep),
    ):
        found = parse_calls(reply)
        check(found)
        assert depth == 100 or not found.calls
    value: Any = {}
    for _ in range(min(depth, 20_000)):
        value = {"a": value}
    check(parse_calls([{"tool": "f", "arguments": value}]))


@pytest.mark.req("parsing.total")
def test_a_full_stack_is_no_reason_to_raise() -> None:
    def down(left: int) -> ParsedCalls:
        return parse_calls(hermes("f", {"a": [1]})) if left == 0 else down(left - 1)

    used = len(__import__("inspect").stack())
    for room in range(40, 130, 3):
        check(down(sys.getrecursionlimit() - used - room))


def steps(text: str) -> int:
    """Lines of Python that reading a text takes: work, without a clock."""
    count = 0

    def local(*_: object) -> Any:
        nonlocal count
        count += 1
        return local

    before = sys.gettrace()
    sys.settrace(local)
    try:
        check(parse_calls(text))
    finally:
        sys.settrace(before)
    return count


HOSTILE = [
    "<tool ", "<tool name=", '<tool name="', "<tool name='a' args='", '<tool name="a" args=\'{"x', '<tool name="a">{',
    "{", "}", "[", "```json\n", '"', "'", "word ", "<", "<tool_call>", '<tool_call>{"', "[TOOL_CALLS]", "[TOOL_CALLS]a",
    '[TOOL_CALLS][{"', "<function=a>", "<function=a>{", "<function=a><parameter=b>", "<think>", "</think>", "<|python_tag|>{\"",
    "<|python_tag|>[a(", "<|python_tag|>[a(x=", "<|python_tag|>[a(x=[", "<|python_tag|>[a(x='", "<|python_tag|>a(x=1);",
    "<|python_tag|>[a(x=1)\n", "<|python_start|>a.call(x=", "<tool_call>a", "<tool_call>a<arg_key>b</arg_key><arg_value>",
    '<invoke name="a">', '<invoke name="a"><parameter name="b">', '<parameter name="b">c</parameter>', "<|channel|>",
    "<|channel|>a to=b<|message|>", "<|channel|>a to=b<|message|>{", "<|start|>user<|message|>", "<|channel|>analysis<|message|>",
    '{"name":', '{"name": "a", "arguments": {', '[{"name":', '{"a": "name"', '{"name":"a","arguments":{}} ', "&quot;", "\\",
]  # fmt: skip


@pytest.mark.req("parsing.total")
@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_takes_linear_work(piece: str) -> None:
    size = 10_000
    short, long = (steps(piece * (n // len(piece))) for n in (size, 4 * size))
    assert long <= 4.3 * short + 500


@pytest.mark.req("parsing.total")
@pytest.mark.parametrize(
    ("begin", "piece", "end"),
    [
        ("<function=a>", "<parameter=k{}>x</parameter>", "</function>"),
        ("<invoke name='a'>", "<parameter name='k{}'>x</parameter>", "</invoke>"),
        (
            "<tool_call>a",
            "<arg_key>k{}</arg_key><arg_value></arg_value>",
            "</tool_call>",
        ),
        ("<function=a><parameter=b>", "<function=a{}>", "</parameter></function>"),
        ("<|python_tag|>[a(x=[", "{}, [], ''", "])]"),
        ("<|python_tag|>[a(", "k{}=['', None],", ")]"),
        ("<|python_tag|>[a(x=[", "[{}],", "None])]"),
        ("<|python_tag|>[a(x=", "[{}", ""),
        ("<|python_tag|>[a(x=f", "[]{}", "]"),
        ("<|python_tag|>[", "a(k{}=1),", "]"),
        ("<|python_tag|>[", "a(k{}=f(1)),", "]"),
        ("<|python_tag|>", "a.call(k{}=f(1));", ""),
        ("<|python_tag|>", "a(k{}=1);", "x"),
    ],
)
def test_one_long_call_takes_linear_work(begin: str, piece: str, end: str) -> None:
    short, long = (
        steps(begin + "".join([piece.format(n) for n in range(count)]) + end)
        for count in (250, 1000)
    )
    assert long <= 4.3 * short + 500


@pytest.mark.req("parsing.total")
def test_ten_megabytes_are_read() -> None:
    big = "word <tool " * 500_000 + tag("f", {"text": "x" * 5_000_000})
    (call,) = parse_calls(big).calls
    assert len(call.arguments["text"]) == 5_000_000


@pytest.mark.req("parsing.total")
def test_broken_calls_without_end_are_cut_short_and_said() -> None:
    found = parse_calls("<tool name='a' args='{x}'/>" * 1000)
    assert len(found.problems) == 102
    assert "not read" in found.problems[-1].message
