"""What is mended, what is told about it, and what is left alone."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit._constants import MAX_JSON_DEPTH
from executionkit.engine._json.repair import mend
from executionkit.engine._json.strings import UnreadableError
from executionkit.engine.json_extraction import JsonFinding, extract_json, find_json
from tests.engine.test_json_extraction import containers

words = st.text(alphabet="abc de", max_size=5)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inside: (
        st.lists(inside, max_size=4) | st.dictionaries(words, inside, max_size=4)
    ),
    max_leaves=10,
)
documents = st.lists(plain, min_size=1, max_size=4) | st.dictionaries(
    words, plain, min_size=1, max_size=4
)


def mended(text: str, **options: Any) -> JsonFinding:
    found = find_json(text, repair=True, **options)
    assert found is not None
    assert not found.truncated
    return found


def unreadable(text: str, **options: Any) -> None:
    found = find_json(text, repair=True, **options)
    assert found is None or found.truncated, found


# --- what is mended ------------------------------------------------------------------------


@pytest.mark.req("JX-04", "JX-05", "JX-20", "JX-21", "TC-05", "TC-08")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        # JX-04 and its kind: quotes in a string
        ('{"a": "x"yz"w"}', {"a": 'x"yz"w'}),
        ('{"a":"7"8"}', {"a": '7"8'}),
        ('{"a": "7""}', {"a": '7"'}),
        ('{"a": "say "hi"", "b": 1}', {"a": 'say "hi"', "b": 1}),
        ('{"a": "say "hi" to", "b": 1}', {"a": 'say "hi" to', "b": 1}),
        ('["x", "7"8"]', ["x", '7"8']),
        ('["say "hi" to", "x"]', ['say "hi" to', "x"]),
        ('[{"s": "7" pipe"}, {"s": "8" pipe"}]', [{"s": '7" pipe'}, {"s": '8" pipe'}]),
        # JX-05 and its kind: Python
        (
            "[{'id': None, 'ok': True, 'name': '12\"34\"'}]",
            [{"id": None, "ok": True, "name": '12"34"'}],
        ),
        ("{'a': 'it\\'s', 'b': \"it's\"}", {"a": "it's", "b": "it's"}),
        ("{'a': 'it's fine', 'b': 'x'}", {"a": "it's fine", "b": "x"}),
        ("['it's', 'b']", ["it's", "b"]),
        ("{'a': '\\x41\\U0001f600\\u00e9'}", {"a": "A\U0001f600\u00e9"}),
        ("{1: 'a', b_2: False}", {"1": "a", "b_2": False}),
        ("[True, FALSE, NULL, None]", [True, False, None, None]),
        ('{"a": NaN}', {"a": None}),
        # typographic quotes
        ("{\u201ca\u201d: \u201cb \u201cc\u201d d\u201d}", {"a": "b \u201cc\u201d d"}),
        ("{\u2018a\u2019: \u2018it\u2019s\u2019}", {"a": "it\u2019s"}),
        ('{"a": "\u201cb\u201d",}', {"a": "\u201cb\u201d"}),
        ("{\u201ea\u201c: \u201e\\\u201cb\\\u201c\u201c}", {"a": "\u201cb\u201c"}),
        # JX-20: trailing commas
        (
            '{"fix": "use [a, b,]", "tags": ["x",],}',
            {"fix": "use [a, b,]", "tags": ["x"]},
        ),
        ('{"a": [{"b": 1,},\n],\n}', {"a": [{"b": 1}]}),
        # JX-21: comments and remarks
        ('[ "a )"  // c1\n]', ["a )"]),
        ('{ "k": "v", SIDE REMARK "k2": "v2" }', {"k": "v", "k2": "v2"}),
        ('{NOTE (x) "k": 1}', {"k": 1}),
        ('{/* a */ "k": /* b */ 1 // c\n, # d\n "l": 2}', {"k": 1, "l": 2}),
        ('{"k": "http://x" // "y"\n}', {"k": "http://x"}),
        ('{// first\n "k": 1}', {"k": 1}),
        ("[ /* none */ ]", []),
        ("{ # none\n}", {}),
        # missing commas
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}),
        ('{"a": "b" "c": "d"}', {"a": "b", "c": "d"}),
        ('{"a": {"x": 1} "b": [1]\n"c": null}', {"a": {"x": 1}, "b": [1], "c": None}),
        ('[{"a": 1} {"b": 2}]', [{"a": 1}, {"b": 2}]),
        ('["a"\n"b"\n[1]\n2]', ["a", "b", [1], 2]),
        # keys without quotes
        ('{answer: {"a": 1}}', {"answer": {"a": 1}}),
        ('{"a": 1, $b-c: 2}', {"a": 1, "$b-c": 2}),
        # line breaks and lone backslashes in strings
        ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"}),
        ('{"re": "\\d+\\.\\w"}', {"re": "\\d+\\.\\w"}),
        ('{"path": "C:\\Users\\\\x"}', {"path": "C:\\Users\\x"}),
        ('{"a": "it\\\'s"}', {"a": "it's"}),
        # numbers of JSON5
        ("[.5, 5., +1, -.5e1, 0x1F, -0xa]", [0.5, 5.0, 1, -5.0, 31, -10]),
        # spaces that are none
        ('{"a":\u00a01,\u200b"b":\ufeff2}', {"a": 1, "b": 2}),
        # doubled brackets, doubled encoding
        ('{"{"ids": [4, 5]}', {"ids": [4, 5]}),
        ('{{"a": 1}}', {"a": 1}),
        ('"{\\"city\\": \\"Oslo\\"}"', {"city": "Oslo"}),
        ('"\\"{\\\\\\"a\\\\\\": 1}\\""', {"a": 1}),
        ("\"{'a': 1}\"", {"a": 1}),
        ('{\\"a\\": \\"b\\",\n \\"n\\": [1, {\\"c\\": \\"d\\\\n\\"}]}', None),
        ('[{\\"a\\": 1}]', [{"a": 1}]),
        # in a text
        ("As noted in [1]: ```json\n{'answer': 42,}\n```\nSee {x}.", {"answer": 42}),
        ("The result is {'a': 1}, because.", {"a": 1}),
        ("The result is '{'a': 1}'.", {"a": 1}),
        ("{'a': oops} was wrong: {'a': 1}", {"a": 1}),
        ("} ] {'a': oops} was wrong: {'a': 1}", {"a": 1}),
        ("Draft {'a': 1}\nFinal:\n```\n{'a': 2}\n```", {"a": 2}),
    ],
)
def test_what_has_one_reading_is_read(text: str, value: object) -> None:
    if value is None:
        value = {"a": "b", "n": [1, {"c": "d\n"}]}
    found = mended(text)
    assert found.value == value
    assert json.dumps(found.value) == json.dumps(value)
    assert found.repairs
    assert not found.ambiguous


@pytest.mark.req("JX-04", "JX-21", "json.no-guess")
@pytest.mark.parametrize(
    "text",
    [
        # two readings
        '{"k": "the "x", y"}',
        '{"k": "the keys "a", "b": both", "n": 1}',
        '{"k": "add "x": "y", ok?", "n": 1}',
        '{"k": "use "x"} here", "n": 1}',
        '{"k": "say "hi" now"} or "so"',
        '{"q": "Is "yes" "no": which", "n": 1}',
        '{"k": "a "b" c" "d": 1}',
        '["a "b", "c" d"]',
        '["a "b", "c"]',
        '["a", "b" "c"]',
        '["a" "b"]',
        '["a" true, "b"]',
        '["a, "b"]',
        '[", "b"]',
        '["a "b" c"\n"d"]',
        '{"a": ""x"}',
        '{"a": "x""}',
        '["" b "]',
        '{"a "b": 1}',
        "{'it's': 1}",
        '{"a": "x\n"b": "y"}',
        '{"a": "one\n"two" three"}',
        '{"a": "\\alpha\\nu"}',
        '{"a": "x\\\ny"}',
        '{"a": "\\u12"}',
        "[1 2]",
        '[1 "a"]',
        "[1 {'a': 1}]",
        "[None [1]]",
        '[{"a": 1} 5]',
        '{"a": [1], } "b": 2}',
        '{"a": [1,] "b": 2}',
        "[1, ], 2]",
        "{'a': 1}}",
        "{'a': 1}: x",
        "{'a': 1}x",
        "{'a': 1}\"",
        "[1 // c ]",
        "{'a': 1}, 'b': 2}",
        # something is missing
        '{"scope": "tmp",, }',
        "[1,, 2]",
        "[, 1]",
        '{, "a": 1}',
        "[1, 2, ...]",
        '{"a": 1, ... "b": 2}',
        '{"a": hello}',
        '{"a": undefined}',
        '{"a": }',
        '{"a" 1}',
        '{"a": 1; "b": 2}',
        '{"a", "b"}',
        '{a": 1}',
        '{"a: 1}',
        '{"a": b"}',
        "{some words: 1}",
        '{"k": 1, a remark}',
        # no value at all
        '{"a": Infinity}',
        '{"a": -Infinity}',
        '{"a": 007}',
        '{"a": 1_000}',
        '{"a": 0x}',
        '{"a": e5}',
        '{"a": .}',
        '{"a": ' + "9" * 5000 + ",}",
        '{"a": None5}',
        # brackets that do not fit
        '{"a": [1, 2}, "b": 3}',
        '{"a": 1]',
        '["a": 1]',
        '["a"}, 1]',
        '{"a": 1 /* no end }',
        '{\\"a\\": oops}',
        '{\\"a\\": \\d}',
        '{\\"a\\": 1} and more',
        '{\\"a\\": "b"}',
        '{\\"a\\": \\',
    ],
)
def test_what_has_two_readings_or_lacks_something_is_not_read(text: str) -> None:
    unreadable(text)
    unreadable(f"Result: {text}")
    with pytest.raises(ValueError, match="no valid JSON"):
        extract_json(text)


@pytest.mark.req("json.no-part", "json.no-guess")
@pytest.mark.parametrize(
    "text",
    [
        "{'x': oops, 'ids': [10000, 20000, 30000]}",
        "{'x': oops, 'in': {'a': 1}}",
        '{x: oops, "in": {"a": 1}}',
        "{x: oops, in: [{'a': 1}, 5]}",
        "[{'a': 1}, {'b': oops}]",
        '[{{"a": 1}]',
        '{x: 1 {"a": 1}}',
        "{'x': oops see {'b': 1}}",
        "{'x': oops see {'b': 1} and so on",
        "{'x': oops see {}}",
    ],
)
def test_no_part_of_the_unreadable_is_taken(text: str) -> None:
    unreadable(text)


@pytest.mark.req("json.no-guess")
def test_a_comment_that_may_hold_the_end_is_not_a_cut() -> None:
    assert find_json("[1, 2 // c ]", repair=True) is None
    assert find_json("[1, 2 # c ]", repair=True) is None


# --- what is told --------------------------------------------------------------------------


@pytest.mark.req("json.repairs-told", "JX-21")
@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        ('{"a": 1}', ()),
        ('{"a": 1,}', ("removed a trailing comma at 7",)),
        (
            'See {"a": [1,],}',
            ("removed a trailing comma at 12", "removed a trailing comma at 14"),
        ),
        ("[1 // c\n]", ("removed a comment at 3",)),
        ('{"a": 1 "b": 2}', ("inserted a missing comma at 8",)),
        ('{"k": 1, SO "l": 2}', ("removed the text 'SO' at 9",)),
        ("{a: 1}", ("quoted the key a at 1",)),
        ("{'a': 1}", ("changed single quotes to double quotes at 1",)),
        ("{\u201ca\u201d: 1}", ("changed typographic quotes to straight ones at 1",)),
        ('{"a": None}', ("changed None to null at 6",)),
        ('{"a": +1}', ("rewrote the number +1 at 6",)),
        ('{"a": "7"8"}', ("escaped quotes inside of a string at 6",)),
        (
            '{"a": "x\ny"}',
            ("escaped a line break or control character inside of a string at 6",),
        ),
        ('{"a": "\\d"}', ("doubled a backslash inside of a string at 6",)),
        ('{"a": "\\x41"}', ("changed an escape \\x inside of a string at 6",)),
        ('{"a":\u00a01}', ("removed an odd space at 5",)),
        ('{{"a": 1}}', ("ignored a doubled opening brace at 0",)),
        ('{"{"a": 1}', ("ignored a doubled opening brace at 0",)),
        ('{\\"a\\": 1}', ("removed the backslashes before quotes from 0 on",)),
        (' "{\\"a\\": 1}" ', ("decoded the string that holds the JSON, at 1",)),
    ],
)
def test_each_repair_is_told_with_its_place(
    text: str, repairs: tuple[str, ...]
) -> None:
    assert mended(text).repairs == repairs


@pytest.mark.req("json.repairs-told")
def test_very_many_repairs_are_counted() -> None:
    found = mended("[" + "None, " * 200 + "]")
    assert len(found.repairs) == 65
    assert found.repairs[-1] == "137 more repairs"


@pytest.mark.req("json.repairs-told")
def test_parsing_comes_first_and_a_repair_only_when_asked() -> None:
    assert mended('Object {x: 1} is {"x": 1}').repairs == ()
    assert mended('{"x": 1} is {x: 1}').repairs == ()
    assert find_json("{x: 1}") is None
    assert find_json('{"x": 1,}') is None
    assert find_json('"{\\"a\\": 1}"') is None


@pytest.mark.req("json.ambiguous")
@pytest.mark.parametrize(
    "text", ["{'a': 1} or {'a': 2}", '{"a": 1} or {"a": 2,}', '{a: 1} or {"a": 2}']
)
def test_repaired_values_can_be_ambiguous(text: str) -> None:
    found = mended(text)
    assert found.ambiguous
    assert found.value == {"a": 2}
    assert found.candidates == 2


@pytest.mark.req("TC-08")
@pytest.mark.parametrize(
    "text", ['"no JSON"', '"{\\"a\\": 1}" and more', '"open', '"{\\"a\\": oops}"']
)
def test_a_string_without_json_holds_none(text: str) -> None:
    found = find_json(text, repair=True)
    assert found is None or found.end < len(text) - 1


# --- missing brackets ----------------------------------------------------------------------


@pytest.mark.req("json.truncated", "json.no-guess")
@pytest.mark.parametrize(
    ("text", "value", "note"),
    [
        ('{"a": {"b": 1}', {"a": {"b": 1}}, "added the missing } at 14"),
        ('{"a": {"b": "x"', {"a": {"b": "x"}}, "added the missing }} at 15"),
        ("[[1], [2]\n", [[1], [2]], "added the missing ] at 9"),
        ('```json\n{"a": [1\n```', {"a": [1]}, "added the missing ]} at 16"),
        ('````json\n{"a": [1\n```\n````', None, ""),
        ('~~~json\n{"a": [null\n~~~\nx', {"a": [None]}, "added the missing ]} at 19"),
    ],
)
def test_missing_brackets_are_added_only_when_asked(
    text: str, value: object, note: str
) -> None:
    unreadable(text)
    if value is None:
        unreadable(text, close=True)
        return
    found = mended(text, close=True)
    assert found.value == value
    assert found.repairs == (note,)
    with_close_alone = find_json(text, close=True)
    assert with_close_alone is None or with_close_alone.truncated


@pytest.mark.req("json.truncated")
def test_each_value_of_a_fence_ends_with_the_fence_at_last() -> None:
    text = '```json\n{"a": 1,}\n{"b": [null\n```\nand more'
    found = mended(text, close=True)
    assert found.value == {"b": [None]}
    assert found.ambiguous


@pytest.mark.req("json.truncated", "json.no-guess")
@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1',
        '{"a": [1, 2',
        '{"a": tru',
        '{"a": "half a sen',
        '{"a": "x",',
        '{"a": {',
        '{"a":',
        '{"a"',
        '{"a": "x\\',
        "{'a",
    ],
)
def test_half_a_value_is_never_completed(text: str) -> None:
    unreadable(text, close=True)


# --- properties ----------------------------------------------------------------------------


@pytest.mark.req("JX-05")
@settings(max_examples=200)
@given(containers)
def test_what_python_prints_is_read_back(value: Any) -> None:
    found = mended(repr(value))
    assert found.value == value
    assert json.dumps(found.value) == json.dumps(value)


@pytest.mark.req("JX-20", "JX-21")
@settings(max_examples=150)
@given(documents, st.data())
def test_damage_with_one_reading_is_undone(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value, indent=1)
    lines = text.split("\n")
    # Where a comma is lacking, a bare key or odd quotes behind a text would be open to
    # a second reading; such damage is drawn only where the commas stand.
    lacking = data.draw(st.booleans())
    kinds = ["comma", "comment"] if lacking else ["comma", "comment", "key", "quotes"]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(lines) - 1))
        line = lines[place]
        kind = data.draw(st.sampled_from(kinds))
        if kind == "comma" and lacking:
            lines[place] = line.removesuffix(",")
        elif kind == "comma":
            more = "" if line.endswith(("{", "[", ",")) else ","
            lines[place] = line + more if place < len(lines) - 1 else line
        elif kind == "comment":
            lines[place] = f"{line} // so" if place < len(lines) - 1 else line
        elif kind == "key":
            lines[place] = re.sub(r'^( *)"([a-e]+)":', r"\1\2:", line)
        else:
            lines[place] = re.sub(r'"([a-e ]*)"', "\u201c\\1\u201d", line)
    found = find_json("\n".join(lines), repair=True)
    assert found is not None
    assert found.value == value


@pytest.mark.req("json.no-guess", "json.no-part")
@settings(max_examples=300)
@given(documents, st.data())
def test_a_lost_or_doubled_mark_gives_the_value_or_none(
    value: Any, data: st.DataObject
) -> None:
    text = json.dumps(value, indent=data.draw(st.sampled_from([None, 1])))
    tokens = [
        found
        for found in re.finditer(r'"[^"]*"|[\[\]{},:]', text)
        # The outermost brackets and two numbers side by side leave no trace.
        if 0 < found.start() < len(text) - 1
        and not (found.group() == "," and text[found.start() - 1].isalnum())
    ]
    if not tokens:
        return
    token = data.draw(st.sampled_from(tokens))
    place = token.start() if data.draw(st.booleans()) else token.end() - 1
    broken = text[:place] + text[place + 1 :]
    if data.draw(st.booleans()) and text[place] in ',:"':
        broken = text[:place] + text[place] + text[place:]
    found = find_json(broken, repair=True)
    if found is not None and not found.truncated and not found.ambiguous:
        assert found.value == value or token.group() in "[]{}"


# --- the reader itself ---------------------------------------------------------------------


@pytest.mark.req("json.depth")
def test_the_reader_keeps_to_the_depth() -> None:
    more = MAX_JSON_DEPTH + 1
    with pytest.raises(ValueError, match="deeper than"):
        mend("[" * more + "None" + "]" * more, 0, 2 * more + 4)
    deep_child = "[" * MAX_JSON_DEPTH + "1" + "]" * MAX_JSON_DEPTH
    with pytest.raises(ValueError, match="deeper than"):
        mend(f"[{deep_child},]", 0, len(deep_child) + 3)
    assert mend("[[[None]]]", 0, 10).value == [[[None]]]


@pytest.mark.req("json.no-guess")
def test_the_reader_stops_where_its_text_stops() -> None:
    text = '[None, {"a": 1}, "b"]'
    for stop in range(1, len(text)):
        with pytest.raises(UnreadableError):
            mend(text, 0, stop)
    assert mend(text, 0, len(text)).end == len(text)
