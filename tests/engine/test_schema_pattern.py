"""Patterns: ECMAScript's meaning, linear time, and no guess at what is not read."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.engine._schema.pattern import Pattern, compile_pattern
from executionkit.engine._schema.regex import PatternError, parse_pattern, to_python
from executionkit.engine.schema import compile_schema

pytestmark = pytest.mark.req("schema.patterns")


def in_python(source: str, text: str) -> bool:
    return re.search(to_python(parse_pattern(source)), text) is not None


# (pattern, texts that match, texts that do not)
MATCHES: list[tuple[str, list[str], list[str]]] = [
    ("", ["", "a"], []),
    ("a", ["a", "bab"], ["", "b"]),
    ("^a", ["ab"], ["ba", ""]),
    ("a$", ["ba"], ["ab", "a\n"]),
    ("^$", [""], ["\n", "a"]),
    ("$^", [""], ["a"]),
    ("^a|b$", ["ax", "xb"], ["xax"]),
    ("^(a|b)c$", ["ac", "bc"], ["abc", "c"]),
    ("^(?:a|)c$", ["ac", "c"], ["bc"]),
    ("(^|,)x(,|$)", ["x", "a,x", "x,b"], ["ax", "xa"]),
    ("^a*$", ["", "aaa"], ["b"]),
    ("^a+$", ["a", "aaa"], ["", "ab"]),
    ("^a?b$", ["b", "ab"], ["aab"]),
    ("^a*?b$", ["b", "aab"], ["a"]),
    ("^a{2}$", ["aa"], ["a", "aaa"]),
    ("^a{2,}$", ["aa", "aaaa"], ["a"]),
    ("^a{1,2}$", ["a", "aa"], ["", "aaa"]),
    ("^a{0}b$", ["b"], ["ab"]),
    ("^(ab){1,2}c{0,1}$", ["ab", "ababc"], ["c", "ababab"]),
    ("^(a*)*b$", ["b", "aab"], ["a"]),
    ("^.$", ["a", "\u00e9", "\U0001f600", "\u0085"], ["\n", "\r", "\u2028", "", "ab"]),
    (r"^\d$", ["0", "9"], ["a", "\u0663"]),
    (r"^\D$", ["a", "\u0663"], ["0"]),
    (r"^\w$", ["a", "Z", "_", "5"], ["-", "\u00e9"]),
    (r"^\W$", ["-", "\u00e9"], ["a"]),
    (
        r"^\s$",
        [" ", "\t", "\u00a0", "\ufeff", "\u2003", "\u2028"],
        ["\u0085", "\u200b", "a"],
    ),
    (r"^\S$", ["a", "\u0085"], [" ", "\ufeff"]),
    ("^[abc]$", ["a", "c"], ["d", ""]),
    ("^[^abc]$", ["d", "\n"], ["a"]),
    ("^[a-c]$", ["a", "b"], ["d", "-"]),
    ("^[a-a]$", ["a"], ["b", "-"]),
    ("^[a-]$", ["a", "-"], ["b"]),
    ("^[-a]$", ["a", "-"], ["b"]),
    (r"^[\w-]$", ["a", "-"], ["+"]),
    (r"^[\d\s]$", ["1", " "], ["a"]),
    (r"^[^\d\s]$", ["a"], ["1", " "]),
    (r"^[\]\\^]$", ["]", "\\", "^"], ["["]),
    ("^[[.*+?(){}|$]$", ["[", ".", "*", "$", "|", "{"], ["a"]),
    ("^[a-cb-e]$", ["d"], ["f"]),
    (r"^[^\x00-a]$", ["b", "\U0010ffff"], ["\x00", "a"]),
    (r"^[^b-\u{10ffff}]$", ["a", "\x00"], ["b", "\U0010ffff"]),
    (r"^[^\s\S]?$", [""], ["a", " "]),
    (r"^\.\*\+\?\(\)\[\]\{\}\|\/\^\$\\$", [".*+?()[]{}|/^$\\"], ["a"]),
    (r"^\-\@\_\ \#\:$", ["-@_ #:"], [""]),
    (r"^\t\n\r\v\f$", ["\t\n\r\v\f"], ["t"]),
    (r"^\x41\u0042\u{43}\u{1F600}$", ["ABC\U0001f600"], ["x41"]),
    (r"^\cA\cz$", ["\x01\x1a"], ["cA"]),
    (r"^[\t\x41-\x43]$", ["\t", "B"], ["x"]),
    ("^(?<year>[0-9]{4})-(?<m>[0-9]{2})$", ["2024-01"], ["24-01"]),
    ("a}]", ["a}]"], ["a"]),
    ("^[a-z0-9]+(-[a-z0-9]+)*$", ["a-b-c1"], ["-a", "a--b"]),
    (r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$", ["a@b.io"], ["a@b", "a@@b.io"]),
    ("^#?([a-f0-9]{6}|[a-f0-9]{3})$", ["#a3c113", "fff"], ["#a3c11", "ffff"]),
]


@pytest.mark.parametrize(("source", "yes", "no"), MATCHES)
def test_a_pattern_matches_what_it_should(
    source: str, yes: list[str], no: list[str]
) -> None:
    pattern = Pattern(source)
    for text in yes:
        assert pattern.search(text)
        assert in_python(source, text)
    for text in no:
        assert not pattern.search(text)
        assert not in_python(source, text)


@pytest.mark.parametrize(("source", "yes", "no"), MATCHES)
def test_the_rust_validator_reads_the_patterns_of_the_table_alike(
    source: str, yes: list[str], no: list[str]
) -> None:
    pytest.importorskip("jsonschema_rs")
    check = compile_schema({"pattern": source}, backend="jsonschema-rs").validate
    assert all(not check(text) for text in yes)
    assert all(check(text) for text in no)


UNREAD = [
    *("(", "a)", "(?:a", "[", "[a", "[]", "[^]", "*", "a|*", "^*", "$+", "a**", "a++"),
    *("a+*", "a{2}{3}", "a{", "a{,2}", "a{x}", "a{2,1}", "a{1001}", "a{99999}", "{"),
    *(r"\b", r"a\B", r"(a)\1", r"(?<n>a)\k<n>", r"\p{L}", r"\P{L}", r"\A", r"\z"),
    *(r"\0", r"\e", r"\a", r"\h", r"\<", r"\>", "\\", r"\c", r"\c1", r"\x4", r"\u12"),
    *(r"\u{110000}", r"\ud83d\ude00", r"\u{}", r"[\b]", r"[\d-z]", r"[a-\d]", "[z-a]"),
    *("[a--b]", "[a&&b]", "[a||b]", "[a~~b]", "(?i)a", "(?i:a)", "(?#c)a", "(?P<n>a)"),
    *(
        "(?<1>a)",
        "(?>a)",
        "(?",
        "(?=a)*",
        "(?=a",
        "[a",
        r"[\q]",
        r"\é",
        "a{1,2",
        "()" * 0 + "(" * 60,
    ),
]


@pytest.mark.parametrize("source", UNREAD)
def test_what_is_not_read_is_refused(source: str) -> None:
    with pytest.raises(PatternError):
        parse_pattern(source)


@pytest.mark.parametrize("source", ["(?=a)a", "(?!a)b", "(?<=a)b", "(?<!a)b"])
def test_look_around_is_for_the_validators_with_an_engine(source: str) -> None:
    parse_pattern(source)
    with pytest.raises(PatternError, match="look-around"):
        Pattern(source)


@pytest.mark.parametrize("source", ["((a{1000}){1000}){1000}", "(a{1000}){3}"])
def test_a_pattern_may_not_grow_without_end(source: str) -> None:
    with pytest.raises(PatternError, match="too long"):
        Pattern(source)


def test_the_longest_counts_work() -> None:
    pattern = Pattern("^a{1,1000}$")
    assert pattern.search("a" * 1000)
    assert not pattern.search("a" * 1001)
    assert not pattern.search("")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("^(a+)+$", "a" * 50_000 + "b"),
        ("^(a|a)*$", "a" * 50_000 + "b"),
        ("(a*)*(a*)*(a*)*c", "a" * 50_000),
        (".*.*.*=.*", "x" * 50_000),
        ("^([a-z]+)*[0-9]$", "a" * 50_000),
        ("(x+x+)+y", "x" * 50_000),
    ],
)
def test_no_text_makes_a_pattern_slow(source: str, text: str) -> None:
    """Steps, not seconds, are counted: each character is looked at once."""
    pattern = Pattern(source)
    steps = 0
    step = pattern._step

    def counted(state: Any, character: str) -> Any:
        nonlocal steps
        steps += 1
        return step(state, character)

    pattern._step = counted  # type: ignore[method-assign]
    assert not pattern.search(text)
    assert steps < 200


def test_memory_stays_bounded_while_matching() -> None:
    from executionkit.engine._schema import pattern as module

    pattern = Pattern("(a|b)*a(a|b){12}c")
    text = "".join("ab"[(number * number) % 7 % 2] for number in range(20_000))
    other = "".join(chr(0x4E00 + number % 20_000) for number in range(60_000))
    assert not pattern.search(text)
    assert not pattern.search(other)
    assert len(pattern._states) <= module._MAX_STATES
    assert pattern._edges <= module._MAX_EDGES
    assert pattern.search("a" * 14 + "c")


def test_a_pattern_is_compiled_once() -> None:
    assert compile_pattern("^abc$") is compile_pattern("^abc$")


@pytest.mark.parametrize(
    "source",
    [r"\s", r"\S", r"\d", r"\D", r"\w", r"\W", ".", "[^a]", r"[^\s\w]", r"[\s\S]"],
)
def test_character_classes_agree_on_every_character(source: str) -> None:
    pytest.importorskip("jsonschema_rs")
    anchored = f"^{source}$"
    check = compile_schema({"pattern": anchored}, backend="jsonschema-rs").validate
    pattern = Pattern(anchored)
    python = re.compile(to_python(parse_pattern(anchored)))
    for code in (*range(0x3100), *range(0xFE00, 0x10100), 0x1F600, sys.maxunicode):
        character = chr(code)
        matched = pattern.search(character)
        assert matched is (python.search(character) is not None)
        assert matched is (not check(character))


atoms = st.sampled_from(
    ["a", "b", "c", ".", r"\d", r"\w", r"\s", "[ab]", "[^a]", "[a-c]", "1", " ", r"\."]
)


def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map(lambda text: f"({text})")
    unit = atoms | group
    counted = st.tuples(
        unit, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,1}", "{2,}", "*?"])
    ).map("".join)
    return (
        st.lists(unit | counted, max_size=3).map("".join)
        | st.tuples(inner, inner).map("|".join)
        | inner.map(lambda text: f"^(?:{text})$")
        | inner.map(lambda text: f"^{text}")
        | inner.map(lambda text: f"{text}$")
    )


patterns = st.recursive(atoms, grow, max_leaves=5)
samples = st.text("abc1 .\n\u00e9", max_size=6)


@settings(deadline=None, max_examples=500)
@given(patterns, st.lists(samples, min_size=1, max_size=6))
def test_generated_patterns_mean_the_same_to_all(source: str, texts: list[str]) -> None:
    pytest.importorskip("jsonschema_rs")
    try:
        pattern = Pattern(source)
    except PatternError:
        return  # a repeated anchor
    check = compile_schema({"pattern": source}, backend="jsonschema-rs").validate
    for text in texts:
        matched = pattern.search(text)
        assert matched is in_python(source, text)
        assert matched is (not check(text))


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=12))
def test_any_text_is_a_pattern_or_refused(source: str) -> None:
    try:
        pattern = Pattern(source)
    except PatternError:
        return
    re.compile(to_python(parse_pattern(source)))
    pattern.search("some text")


class TestThroughTheBackends:
    @pytest.mark.parametrize("backend", ["jsonschema", "subset"])
    @pytest.mark.parametrize("source", [r"\bword\b", r"(a)\1", r"^\p{L}+$", "(?i)a"])
    @pytest.mark.parametrize("place", ["pattern", "patternProperties"])
    def test_an_unread_pattern_fails_closed(
        self, source: str, place: str, backend: str
    ) -> None:
        pytest.importorskip("jsonschema")
        schema: dict[str, Any] = {"pattern": source}
        if place == "patternProperties":
            schema = {"patternProperties": {source: True}}
        check = compile_schema({"properties": {"a": schema}}, backend=backend)
        for value in ({"a": "x"}, None):
            (problem,) = check.validate(value)
            assert place in problem.message
            assert "pip install 'executionkit[jsonschema]'" in problem.message

    def test_patterns_that_look_like_each_other_keep_apart(self) -> None:
        pytest.importorskip("jsonschema")
        both = {"allOf": [{"pattern": "^a"}, {"pattern": r"^[\x61]"}]}
        assert compile_schema(both, backend="jsonschema").validate("b") != []
        schema = {
            "patternProperties": {"^a": {"type": "integer"}},
            "properties": {"b": {"$ref": "#/patternProperties/^a"}},
        }
        (problem,) = compile_schema(schema, backend="jsonschema").validate({"b": 1})
        assert "`/properties/b/$ref`" in problem.message

    def test_look_around_works_in_both_full_validators(self) -> None:
        pytest.importorskip("jsonschema_rs")
        pytest.importorskip("jsonschema")
        for backend in ("jsonschema-rs", "jsonschema"):
            check = compile_schema({"pattern": "^(?=.*[0-9])(?!x).+$"}, backend=backend)
            assert check.validate("a1") == []
            assert check.validate("ab") != []
            assert check.validate("x1") != []
        check = compile_schema({"pattern": "(?<=a*)b"}, backend="jsonschema")
        assert "pip install" in str(check.validate("ab")[0])

    def test_a_rewritten_pattern_is_shown_as_it_was_written(self) -> None:
        pytest.importorskip("jsonschema")
        check = compile_schema({"pattern": r"^\d+$"}, backend="jsonschema")
        (problem,) = check.validate("a")
        assert problem.message == r'must match the pattern "^\\d+$"'
