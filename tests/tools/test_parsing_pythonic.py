"""Calls as Python writes them: which texts are calls, and what their values are."""

from __future__ import annotations

import ast
import sys
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit._llm import LLMResponse
from executionkit.calls import ToolCall
from executionkit.tools.parsing import ParsedCalls, parse_calls
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import ToolRegistry, create_registry

TOOLS = {"f", "g", "web.fetch"}
WHOLE = '[f(city="Oslo", days=3), g()]'
EXPECTED: list[tuple[str, Any]] = [("f", {"city": "Oslo", "days": 3}), ("g", {})]


def shown(found: ParsedCalls) -> list[tuple[str, Any]]:
    assert not found.problems, found.problems
    return [(call.name, dict(call.arguments)) for call in found.calls]


def value_of(text: str) -> Any:
    [(_, arguments)] = shown(parse_calls(f"<|python_tag|>[f(x={text})]"))
    return arguments["x"]


@pytest.mark.req("parsing.pythonic")
@pytest.mark.parametrize(
    "reply",
    [
        WHOLE,
        f"\n {WHOLE}\n",
        f"{WHOLE}<|eot_id|>",
        WHOLE.encode(),
        LLMResponse(WHOLE),
        {"role": "assistant", "content": WHOLE},
        {"role": "assistant", "content": [{"type": "text", "text": WHOLE}]},
        {"choices": [{"message": {"content": WHOLE}, "finish_reason": "stop"}]},
        {"choices": [{"text": WHOLE}]},
        [{"choices": [{"index": 0, "delta": {"content": WHOLE}}]}],
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": WHOLE}],
    ],
)
def test_a_list_of_calls_alone_counts_when_its_first_name_is_known(
    reply: object,
) -> None:
    assert shown(parse_calls(reply, tools=TOOLS)) == EXPECTED
    assert parse_calls(reply) == ParsedCalls()
    assert parse_calls(reply, tools={"g"}) == ParsedCalls()
    assert parse_calls(reply, tools=()) == ParsedCalls()


@pytest.mark.req("parsing.pythonic")
@pytest.mark.parametrize(
    "text",
    [
        f"I would write {WHOLE}",
        f"{WHOLE} does it.",
        f"{WHOLE}\n{WHOLE}",
        f"`{WHOLE}`",
        "[f(a=1) for x in y]",
        "[f(a=1), x]",
        "[f(a=1)](http://example.org)",
        "[f (see below)]: a note",
        "[f]",
        "[]",
        "f(a=1)",
        "(f(a=1),)",
        '["f(a=1)"]',
        f"<think>{WHOLE}</think>",
        "[h(a=1), f()]",
    ],
)
def test_other_python_is_only_spoken_of(text: str) -> None:
    found = parse_calls(text, tools=TOOLS)
    assert not found.calls
    assert not found.problems or text.startswith("[f (")


@pytest.mark.req("parsing.pythonic")
def test_a_parser_that_is_named_asks_for_no_names() -> None:
    assert shown(parse_calls(WHOLE, parsers=["pythonic"])) == EXPECTED
    assert parse_calls(WHOLE, parsers=["llama", "json"]) == ParsedCalls()
    assert parse_calls({"a": 1}, parsers=["pythonic"]) == ParsedCalls()
    assert parse_calls("[1]", parsers=["pythonic"]) == ParsedCalls()


@pytest.mark.req("parsing.pythonic", "parsing.no-guess")
def test_what_cannot_be_read_costs_one_call() -> None:
    found = parse_calls("[f(a=1), g(b=oops), x(c=2)]", tools=TOOLS)
    assert [(call.name, dict(call.arguments)) for call in found.calls] == [
        ("f", {"a": 1}),
        ("x", {"c": 2}),
    ]
    [problem] = found.problems
    assert (problem.name, problem.index, problem.raw) == ("g", 1, "g(b=oops)")
    assert "`oops` is no plain value" in problem.message
    assert problem.position == 4
    cut = parse_calls('[f(a=1), g(b="', tools=TOOLS)
    assert [call.name for call in cut.calls] == ["f"]
    assert [(p.name, p.message) for p in cut.problems] == [("g", "it is not complete")]


@pytest.mark.req("parsing.pythonic")
async def test_a_processor_knows_its_tools() -> None:
    def fetch(url: str, tries: int = 1) -> str:
        return f"{url} {tries}"

    registry = create_registry()
    registry.add(fetch, namespace="web")
    async with ToolProcessor(registry) as processor:
        for name in ("fetch", "web.fetch", "web__fetch", "default.fetch"):
            said = f"[{name}(url='x', tries=2), {name}(url='y')]"
            results = await processor.process(said, return_order="submission")
            known = name != "default.fetch"
            assert [r.result for r in results] == (["x 2", "y 1"] if known else [])
            stream = processor.process_batch([said] if known else [])
            assert len([r async for r in stream]) == 2 * known
    assert "" not in registry.call_names


@pytest.mark.req("parsing.pythonic")
def test_a_name_of_two_namespaces_is_known_too() -> None:
    registry = ToolRegistry()
    for space in ("a", "b"):
        registry.add(lambda: None, "same", namespace=space)
    assert len(parse_calls("[same()]", tools=registry.call_names).calls) == 1
    assert not parse_calls("[other()]", tools=registry.call_names)


@pytest.mark.req("parsing.pythonic")
@pytest.mark.parametrize(
    "text",
    [
        "1", "-1", "+1", "0", "00", "12345678901234567890123", "1.5", "-.5", "1.", "1e3", "1E-3", "-0.0", "[]", "{}",
        "()", "(1,)", "(1, 2)", "(1)", "[1, 2,]", "{'a': 1, \"b\": [None, True, False]}", "{'a': {'b': ()}, }",
        "''", '""', "'it\\'s'", '"a\\"b"', "'a\\nb\\t\\\\'", "'\\x41\\u00e9\\U0001F600\\101\\0'", "'''a\n'b''\n'''",
        '"""a "b" ""c"""', "'\\d\\ '", "'a\\\nb'", "'<|x|>'", "\"),]['\"", "[ 1 ,\n 2 ]", "'é😀'",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")
def test_values_mean_what_they_mean_in_python(text: str) -> None:
    expected = ast.literal_eval(text)
    found = value_of(text)
    tuples = isinstance(expected, tuple)
    assert found == (list(expected) if tuples else expected) or "(" in text
    assert repr(found).replace("[", "(").replace("]", ")").replace(",)", ")") == repr(
        expected
    ).replace("[", "(").replace("]", ")").replace(",)", ")")


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.req("parsing.pythonic")
@given(st.dictionaries(st.sampled_from(["a", "b", "été"]), PLAIN))
def test_what_repr_writes_is_read_back(arguments: dict[str, Any]) -> None:
    given_ = ", ".join([f"{key}={value!r}" for key, value in arguments.items()])
    found = shown(parse_calls(f"[f({given_}),]", tools=TOOLS))
    assert found == [("f", arguments)]
    assert repr(found[0][1]) == repr(arguments)


@pytest.mark.req("parsing.pythonic", "parsing.no-guess")
@pytest.mark.parametrize(
    "text",
    [
        "x", "f()", "1 + 1", "-x", "--1", "1_000", "0x10", "007", "1j", "1.2.3", "1e999", "-1e999", "nan", "inf",
        "{1}", "{1: 2}", "{'a'}", "{'a': 1 'b': 2}", "{**x}", "[*x]", "[1 2]", "[,]", "f'{x}'", "b'x'", "r'x'", "'a' 'b'",
        "'\\x4'", "'\\u12'", "'\\N{DASH}'", "'\\U00110000'", "'a\nb'", "...", "lambda: 1", "a.b", "'a' + 'b'", "1 if x else 2",
        "", "=1", ")", "]", "9" * 5000, "not True", "[1](2)", "'a'.upper()", "1,", "1, 2", "x:=1", "True()", "NoneX",
        "__import__('os').system('x')", "\x00", "[" * 200 + "]" * 200, "{'a': 1}['a']",
    ],
)  # fmt: skip
def test_what_is_no_value_is_no_argument(text: str) -> None:
    if text == "1,":
        assert value_of(text) == 1  # a comma behind the last argument
        return
    found = parse_calls(f"<|python_tag|>[f(x={text}), g()]")
    assert "f" not in [call.name for call in found.calls]
    assert "f" in [problem.name for problem in found.problems]


@pytest.mark.req("parsing.pythonic", "parsing.no-guess")
@pytest.mark.parametrize(
    "given_", ["1", "*x", "**{'a': 1}", "a=1, a=2", "a=1 b=2", "a==1"]
)
def test_each_argument_has_a_name_of_its_own(given_: str) -> None:
    [problem] = parse_calls(f"<|python_start|>[f({given_})]").problems
    assert problem.name == "f"


@pytest.mark.req("parsing.pythonic", "parsing.total")
def test_reading_is_bounded() -> None:
    found = parse_calls("<|python_tag|>[" + "f(a='', b=None), " * 100_000)
    assert 1000 < len(found.calls) < 10_000
    assert "more than 10000 words" in found.problems[-1].message
    found = parse_calls("<|python_tag|>[" + "f(x), " * 1000)
    assert "not read" in found.problems[-1].message
    found = parse_calls("[" + "f(x), " * 1000, tools=TOOLS)
    assert "not read" in found.problems[-1].message
    found = parse_calls("<|python_tag|>f(a=1, b=x)\n" * 1000)
    assert [problem.name for problem in found.problems] == [""]
    assert "not read" in found.problems[0].message
    big = "x" * 5_000_000
    assert len(value_of(f"'''{big}'''")) == len(value_of(f"['{big}']")[0]) == len(big)


@pytest.mark.req("parsing.pythonic", "parsing.total")
@given(st.text("[](){},=:'\"\\ fgx1.-N<|>\n", max_size=40))
def test_no_text_makes_it_raise(text: str) -> None:
    for reply in (
        f"[f({text}",
        f"<|python_tag|>[f(a={text}",
        f"<|python_tag|>f.call{text}",
    ):
        found = parse_calls(reply, tools=TOOLS)
        assert all(isinstance(call, ToolCall) for call in found.calls)


@pytest.mark.req("parsing.total")
def test_a_full_stack_is_no_reason_to_raise() -> None:
    def down(left: int) -> ParsedCalls:
        if left:
            return down(left - 1)
        return parse_calls("[f(a=[(1, {'b': ()})])]", tools=TOOLS)

    used = len(__import__("inspect").stack())
    for room in range(40, 130, 3):
        assert down(sys.getrecursionlimit() - used - room)


@pytest.mark.req("parsing.no-guess")
@pytest.mark.parametrize(
    "text",
    [
        "<function=write><parameter=text>a <function=rm></function> b</parameter></function>",
        "<function=write><parameter=text><function=rm><parameter=x>1</parameter></function></parameter></function>",
        '<invoke name="write"><parameter name="text"><invoke name="rm"></invoke></parameter></invoke>',
        "<tool_call>write<arg_key>text</arg_key><arg_value><tool_call>rm</tool_call></arg_value></tool_call>",
    ],
)
def test_a_call_inside_of_an_argument_never_runs(text: str) -> None:
    found = parse_calls(text)
    assert not found.calls
    [problem] = found.problems
    assert problem.name == "write"
    assert "another call begins" in problem.message
