"""Data that should be JSON and nothing else; and what strict reading is made of."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit._constants import MAX_JSON_DEPTH
from executionkit.engine._json.strict import (
    Failure,
    attempt,
    attempt_near,
    skip_tokens,
    too_deep,
)
from executionkit.engine.json_extraction import loads_json
from tests.engine.test_json_extraction import nasty, values

TOO_MANY = MAX_JSON_DEPTH + 1


def refusal(data: Any, **options: Any) -> str:
    with pytest.raises(ValueError, match="not valid JSON") as caught:
        loads_json(data, **options)
    error = caught.value
    assert type(error) is ValueError
    assert error.__context__ is None
    return str(error)


# --- loads_json ----------------------------------------------------------------------------


@pytest.mark.req("json.loads")
@pytest.mark.parametrize("text", ["1 ", " 1", "\n[1]\r\n\t"])
def test_white_space_around_a_value_is_none_of_it(text: str) -> None:
    assert loads_json(text) == json.loads(text)


@pytest.mark.req("json.loads")
@given(values)
def test_it_reads_what_json_reads(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=1, ensure_ascii=False)):
        for data in (text, f" \n{text}\t\r\n", f"\ufeff {text}"):
            assert loads_json(data) == value
            raw = data.encode("utf-8", "surrogatepass")
            if not any("\ud800" <= char <= "\udfff" for char in data):
                assert loads_json(raw) == value
                assert loads_json(bytearray(raw)) == value


@pytest.mark.req("json.loads")
@settings(max_examples=300)
@given(nasty | st.text() | st.binary())
def test_it_raises_nothing_but_a_small_value_error(data: str | bytes) -> None:
    error: ValueError = ValueError("")
    try:
        value = loads_json(data)
    except ValueError as refused:
        error = refused
    else:
        assert value == json.loads(data)
    assert type(error) is ValueError
    assert len(str(error)) < 300


@pytest.mark.req("json.loads")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("", "Expecting value at line 1 column 1 (character 0)"),
        ("  ", "Expecting value at line 1 column 3 (character 2)"),
        ("oops", "Expecting value at line 1 column 1"),
        ('{"a": 1,\n "b" 2}', "Expecting ':' delimiter at line 2 column 6"),
        ('{"a": 1} x', "Extra data at line 1 column 10"),
        ("[1]]", "Extra data at line 1 column 4"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b"\xff\xfe{\x00}\x00", "byte 0 is not UTF-8"),
        ('{"a": 1}'.encode("utf-16-le"), "Expecting property name"),
        ("9" * 5000, "digits"),
        ("[" * 100_000, "deeper than"),
        ("[" * 200_000 + "]" * 200_000, "deeper than"),
        (b"[" * TOO_MANY + b"]" * TOO_MANY, f"deeper than {MAX_JSON_DEPTH} levels"),
        ('{"a":' * TOO_MANY + "1" + "}" * TOO_MANY, "deeper than"),
    ],
)
def test_what_is_not_json_is_refused_in_words(data: str | bytes, words: str) -> None:
    assert words in refusal(data)


@pytest.mark.req("json.loads")
def test_the_error_does_not_keep_the_text() -> None:
    message = refusal("[" + "1," * 100_000 + "oops]")
    assert len(message) < 200


@pytest.mark.req("json.loads")
def test_integers_are_exact_and_the_last_of_duplicate_keys_counts() -> None:
    digits = "7" * (sys.get_int_max_str_digits() or 4000)
    assert loads_json(digits) == int(digits)
    assert loads_json('{"a": 1, "b": 9007199254740993, "a": 2}') == {
        "a": 2,
        "b": 9007199254740993,
    }


@pytest.mark.req("json.loads", "json.depth")
def test_the_depth_is_the_callers_choice() -> None:
    assert loads_json("[[[]]]", max_depth=3) == [[[]]]
    assert "deeper than 2 levels" in refusal("[[[]]]", max_depth=2)
    assert "deeper than 0 levels" in refusal("[]", max_depth=0)
    assert loads_json("1", max_depth=0) == 1
    assert loads_json("[" * 300 + "]" * 300, max_depth=300)


# --- depth ---------------------------------------------------------------------------------


def _nested(item: str, levels: int) -> str:
    text = "1"
    for _ in range(levels):
        text = item.replace("%s", text)
    return text


@pytest.mark.req("json.depth")
@pytest.mark.parametrize(
    "item",
    [
        "[%s]",
        '{"k": %s}',
        '{"next": %s, "value": 1}',
        '{"a": 1, "b": [1, 2, 3], "n": %s}',
        "[%s, [], {}]",
        "[[], %s, []]",
        '["]", "}", %s]',
        '{"long": "' + "text " * 20 + '", "n": %s}',
        "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, %s]",
    ],
)
def test_a_chain_is_found_out_whatever_hangs_on_it(item: str) -> None:
    for levels, deep in ((MAX_JSON_DEPTH - 8, False), (MAX_JSON_DEPTH + 12, True)):
        text = _nested(item, levels)
        assert too_deep(json.loads(text), text, 0, len(text)) is deep


@pytest.mark.req("json.depth")
def test_a_wide_value_is_not_searched_for_ever() -> None:
    row = {"id": 1, "tags": [[1], [2]], "meta": {"a": {"b": 1}}}
    wide = [row] * 5000
    text = json.dumps(wide)
    assert not too_deep(wide, text, 0, len(text))
    tail = json.loads("[" * 200 + "]" * 200)
    assert too_deep([*wide, tail], text, 0, len(text))
    assert too_deep({"a": wide, "b": tail}, text, 0, len(text))
    hidden = {"a": tail, "b": wide}
    assert not too_deep(hidden, text, 0, len(text)), "an effort without bound"


# --- reading at a place --------------------------------------------------------------------


@pytest.mark.req("json.linear")
@settings(max_examples=200)
@given(values, nasty, st.integers(0, 3))
def test_looking_through_a_window_sees_the_same(
    value: Any, after: str, growth: int
) -> None:
    padding = '"' + "x" * (500 * growth) + '"'
    for text in (
        f"[{padding}, {json.dumps(value)}]{after}",
        f"[{padding}, {after}",
        f'{{"k": {padding} {after}',
    ):
        whole = attempt(text, 0)
        moved = attempt_near(f"ab\n{text}", 3)
        if isinstance(whole, Failure):
            at = whole.at if whole.at < 0 else whole.at + 3
            assert moved == (at, *whole[1:])
        else:
            assert moved == (whole[0], whole[1] + 3)


@pytest.mark.req("json.linear")
@pytest.mark.parametrize(
    ("text", "end", "closed"),
    [
        ("[NaN] [1]", 5, True),
        ('[[NaN, "]"], {"a": [}]] x', 23, True),
        ("[[NaN] x", 7, False),
        ("[NaN, oops]", 6, False),
        ("[NaN, oops]" + " " * 3000, 6, False),
        ("[NaN", 4, False),
        ('[NaN, "open', 11, False),
        ('[NaN, "open\n x', 6, False),
        ("[" * 3000 + "NaN" + "]" * 3000 + " [1]", 6003, True),
        ('[NaN, "' + "x" * 5000 + '"] [1]', 5009, True),
        ("[NaN, " + "9" * 5000 + "] [1]", 5007, True),
        ("[NaN, " + "true, " * 1000 + "oops]", 6006, False),
    ],
)
def test_a_container_is_stepped_over_by_its_brackets(
    text: str, end: int, closed: bool
) -> None:
    assert skip_tokens(text, 0) == (end, closed)
    assert skip_tokens("{" + text, 1) == (end + 1, closed)
