"""Which of the things in a text is the answer, and when there is none."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit._constants import MAX_JSON_DEPTH
from executionkit.engine.json_extraction import JsonFinding, extract_json, find_json

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = '{"type": "object", "properties": {"answer": {"type": "integer"}}}'

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
)
values = st.recursive(
    scalars,
    lambda inside: (
        st.lists(inside, max_size=4)
        | st.dictionaries(st.text(max_size=8), inside, max_size=4)
    ),
    max_leaves=12,
)
containers = st.lists(values, max_size=4) | st.dictionaries(
    st.text(max_size=8), values, max_size=4
)
nasty = st.text(
    alphabet=st.sampled_from(
        list("{}[]\",:\\'`~#/<>\n \t0123456789.-eEtrufalsnNx\u201c")
    ),
    max_size=80,
)


def refusal(text: str) -> str:
    with pytest.raises(ValueError, match="no valid JSON object or array") as caught:
        extract_json(text)
    return str(caught.value)


def finding(text: str, **options: Any) -> JsonFinding:
    found = find_json(text, **options)
    assert found is not None
    return found


# --- one value -----------------------------------------------------------------------------


@pytest.mark.req("json.strict")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ("[]", []),
        ("{}", {}),
        (' \n\t{"a": [1, {"b": null}]}\r\n ', {"a": [1, {"b": None}]}),
        ('\ufeff{"a": 1}', {"a": 1}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        (
            '{"a": 123456789012345678901234567890}',
            {"a": 123456789012345678901234567890},
        ),
        ('{"a": 1.0, "b": 1e3, "c": true}', {"a": 1.0, "b": 1000.0, "c": True}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
    ],
)
def test_a_text_that_is_json_is_that_json(text: str, value: object) -> None:
    assert extract_json(text) == value


@pytest.mark.req("json.strict")
@given(containers)
def test_what_was_dumped_is_found_again(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False)):
        assert extract_json(text) == value
        found = finding(text, repair=True)
        assert found.value == value
        assert (found.repairs, found.ambiguous, found.truncated) == ((), False, False)
        assert (found.start, found.end) == (0, len(text))


@pytest.mark.req("json.strict")
@settings(max_examples=200)
@given(
    containers,
    st.text(alphabet="abc .,!?\n-*_()", max_size=30),
    st.text(alphabet="abc .!?\n-*_()", max_size=30),
)
def test_a_value_in_prose_or_fences_is_found(
    value: Any, before: str, after: str
) -> None:
    text = json.dumps(value)
    shapes = [
        f"{before} {text} {after}",
        f"{before}\n```json\n{text}\n```\n{after}",
        f"{before}\n~~~JSON\n{text}\n~~~\n{after}",
        f"{before}\n```\n{text}\n```\n{after}",
        f"`````\n{text}\n`````",
        f'<think>{before} {{"draft": 1}}</think>\n{text}',
    ]
    for shown in shapes:
        assert extract_json(shown) == value
        found = finding(shown)
        assert json.loads(shown[found.start : found.end]) == value
        assert not found.ambiguous


@pytest.mark.req("json.total")
@settings(max_examples=400)
@given(nasty | st.text())
def test_any_text_gives_a_value_or_a_value_error(text: str) -> None:
    error = ""
    try:
        assert isinstance(extract_json(text), (dict, list))
    except ValueError as refused:
        error = str(refused)
    assert len(error) < 500
    for repair, close in ((False, False), (True, False), (True, True)):
        for scalar in (False, True):
            found = find_json(text, repair=repair, close=close, allow_scalar=scalar)
            if found is not None and not found.truncated:
                json.dumps(found.value)
                assert 0 <= found.start < found.end <= len(text)


@pytest.mark.req("json.strict")
@pytest.mark.parametrize(
    "text",
    [
        "arr[0] is it",
        "",
        "   ",
        "none",
        "42",
        '"text"',
        "true",
        "null",
        "{",
        "[",
        "{]",
        "}{",
    ],
)
def test_a_text_without_an_object_or_array_is_refused(text: str) -> None:
    refusal(text)


@pytest.mark.req("D-20")
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_json_number_is_refused(word: str) -> None:
    refusal(f'{{"a": {word}}}')
    refusal(f"[{word}]")
    refusal(f'Result: {{"a": [{word}], "b": {{"c": 1}}}}')


@pytest.mark.req("json.strict")
def test_an_integer_of_too_many_digits_is_refused() -> None:
    huge = "9" * 5000
    assert "digits" in refusal(f'{{"a": {huge}}}')
    assert extract_json(f'{{"a": {huge}}} but rather {{"a": 1}}') == {"a": 1}


@pytest.mark.req("json.total")
def test_the_message_is_short_and_says_where() -> None:
    message = refusal('{"name": "x", "n": 1,}' + " " * 5000)
    assert "trailing comma at 20" in message
    assert len(message) < 400
    assert "broken at character 6" in refusal('{"a": <int>}')
    assert "cut off" in refusal('{"a": [1, 2')
    assert "reasoning never ends" in refusal('<think>{"a": 1}')


@pytest.mark.req("json.finding")
def test_a_finding_is_a_value() -> None:
    found = finding('So: {"a": [1]}.')
    assert found == JsonFinding(value={"a": [1]}, start=4, end=14)
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(FrozenInstanceError):
        found.value = 1  # type: ignore[misc]
    assert (found.repairs, found.candidates) == ((), 1)


# --- the choice ----------------------------------------------------------------------------


@pytest.mark.req("D-20", "JX-11", "JX-12")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('As noted in [1], the answer is {"answer": 42}', {"answer": 42}),
        ('Start from [] and {} and get {"answer": 42}', {"answer": 42}),
        ('{"answer": 42} or [] or {}', {"answer": 42}),
        ("arr[0] and x_[2] give [3, 4]", [3, 4]),
        ('arr[0] gives {"a": 1}', {"a": 1}),
        ("see (a)[1]: [true]", [True]),
        ('Use { to open. Answer: {"a": 1}', {"a": 1}),
        ('Use [ to open. Answer: {"a": 1}', {"a": 1}),
        ('{5" pipe} then {"a": 1}', {"a": 1}),
        ('{answer: {"a": 1}}', {"a": 1}),
        ('{{"a": 1}}', {"a": 1}),
        ('{this} and see {"a": 1}', {"a": 1}),
        ('He said {"hi there. Then the answer: {"a": 1}', {"a": 1}),
        ('The set {"x", "y"} and {"a": 1}', {"a": 1}),
        ('["quoted" words] and {"a": 1}', {"a": 1}),
        ('Here is `the` result: {"a": 1}', {"a": 1}),
        ('Result: {"a": 1}. See note [1].', {"a": 1}),
        ('```json\n{"a": 1}\n```\nSee [docs] }', {"a": 1}),
        ('[1](http://x) then {"a": 1}', {"a": 1}),
        ('See [1, 2]. Names: ["x", "y"]. See [3].', ["x", "y"]),
        ("The answer is [4, 8]. See [1].", [4, 8]),
        ("The answer is [7].", [7]),
        ("The result is [].", []),
        ("The result is {}.", {}),
        ('Format {"a": <int>}. Answer: {"a": 1}', {"a": 1}),
        ('Answer: {"a": 1}. Format was {"a": <int>}', {"a": 1}),
        ('First {"a": 1}, then {"a": 2}', {"a": 2}),
        ('print({"a": 1})', {"a": 1}),
        ('The "answer": {"a": 1} it is', {"a": 1}),
    ],
)
def test_the_answer_is_told_from_what_prose_is_full_of(
    text: str, value: object
) -> None:
    assert extract_json(text) == value


@pytest.mark.req("D-20")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('<think>{"answer": 1}</think>{"answer": 2}', {"answer": 2}),
        ('<THINKING>[1, {"a": 2}]</THINKING >\n{"a": 1}', {"a": 1}),
        ('{"draft": 1}</think>\n{"a": 1}', {"a": 1}),
        ('<think>a</think>{"a": 1}<reasoning>{"b": 1}</reasoning>', {"a": 1}),
        ('<think>a <think> b</think>{"a": 1}', {"a": 1}),
        ('{"a": 1} <think> {"b": 2}', {"a": 1}),
        ('{"a": 1} [2] <think> {"b": 2}', {"a": 1}),
        ('I do not use `<think>`: {"a": 1}', {"a": 1}),
        ('Here: {"html": "<think>"} and so on', {"html": "<think>"}),
        ('Here [2]: {"html": "<think>"} and {"b": 1}', {"b": 1}),
        ('<b>Bold</b> {"a": 1} <i>x</i>', {"a": 1}),
    ],
)
def test_reasoning_holds_no_answer(text: str, value: object) -> None:
    assert extract_json(text) == value


@pytest.mark.req("D-20")
@pytest.mark.parametrize(
    "text",
    [
        '<think>{"a": 1}</think> nothing',
        '<think>{"a": 1}',
        'x <think> {"a": 1} and more',
        '{"a": 1}</think>',
        '{"a": 1} [2] </think>',
    ],
)
def test_reasoning_alone_is_no_answer(text: str) -> None:
    refusal(text)
    assert find_json(text, repair=True) is None


@pytest.mark.req("D-20")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f'```json\n{SCHEMA}\n```\n```json\n{{"answer": 1}}\n```', {"answer": 1}),
        (f'```json\n{{"answer": 1}}\n```\nby\n```json\n{SCHEMA}\n```', {"answer": 1}),
        (f'By {SCHEMA} it is {{"answer": 1}}', {"answer": 1}),
        (f'{{"answer": 1}} follows {SCHEMA}', {"answer": 1}),
        ('{"type": "array", "items": {}} gives ["a"]', ["a"]),
        ('{"$schema": "x"}, {"answer": 1}', {"answer": 1}),
        ('{"$defs": {}} gives {"type": "object"}', {"type": "object"}),
        (f"The schema is {SCHEMA}", json.loads(SCHEMA)),
        (f"{SCHEMA}\n", json.loads(SCHEMA)),
    ],
)
def test_an_echoed_schema_is_not_the_answer(text: str, value: object) -> None:
    assert extract_json(text) == value


@pytest.mark.req("D-20", "JX-10")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"x": 0} and\n```json\n{"a": 1}\n```\nnot {"b": 2}', {"a": 1}),
        ('{"x": 0} and\n```\n{"a": 1}\n```\nnot {"b": 2}', {"a": 1}),
        ('{"x": 0} and\n```json5 title="x"\n{"a": 1}\n```\nnot {"b": 2}', {"a": 1}),
        ('```\n{"a": 1}\n```\n```json\n{"b": 2}\n```', {"b": 2}),
        ('```json\n{"b": 2}\n```\n```\n{"a": 1}\n```', {"b": 2}),
        ('```json {"a": 1}``` and {"b": 2}', {"a": 1}),
        ('```python\nprint({"a": 1})\n```\nprints {"b": 2} [1]', {"b": 2}),
        ('```\ncode\n```\n{"a": 1}\nthen {"b": 2}', {"b": 2}),
        ('No {"price": 1}:\n```json\n[]\n```', []),
        ('~~~json\n{"a": 1}\n~~~\nnot {"b": 2}', {"a": 1}),
        ('````\n{"answer": "use ``` here"}\n````', {"answer": "use ``` here"}),
        ('````md\n```json\n{"a": 1}\n```\n````\nnot {"b": 2}', {"a": 1}),
        ('```json\n{"a": "```"}\n```\nnot {"b": 2}', {"a": "```"}),
        ('```json\n{"a": 1}', {"a": 1}),
        ('  - x\n    ```json\n    {"a": 1}\n    ```\n  - {"b": 2}', {"a": 1}),
        ('Use ```code``` then {"a": 1} or {"b": 2}', {"b": 2}),
    ],
)
def test_a_fence_comes_before_prose(text: str, value: object) -> None:
    assert extract_json(text) == value


@pytest.mark.req("json.ambiguous")
@pytest.mark.parametrize(
    ("text", "ambiguous", "candidates"),
    [
        ('{"a": 1}\n{"a": 2}', True, 2),
        ('{"a": 1}\n{"a": 1}', False, 2),
        ('{"a": 1, "b": 2}\n{"b":2, "a":1}', False, 2),
        ('{"a": 1}\n{"a": 1.0}', True, 2),
        ('{"a": 1}\n{"a": true}', True, 2),
        ('{"a": 1}\n["a"]', False, 2),
        ('{"a": 1} and [1] and []', False, 3),
        ('```json\n{"a": 1}\n```\n{"a": 2}', False, 2),
        ('```json\n{"a": 1}\n{"a": 2}\n```', True, 2),
        ('```json\n{"a": 1}\n```\n```json\n{"a": 2}\n```', True, 2),
        ('{"a": 1, oops} but {"a": 2}', False, 1),
        ('{"a": 1,} but {"a": 2}', True, 1),
        ('{"a": 1,} so {"a": 1}', False, 1),
        ('{"a": 1, b} so {"a": 1}', False, 1),
        ("```json\n[1\n```\n```json\n[]\n```", True, 1),
    ],
)
def test_several_answers_with_the_same_right_are_ambiguous(
    text: str, ambiguous: bool, candidates: int
) -> None:
    found = finding(text)
    assert (found.ambiguous, found.candidates) == (ambiguous, candidates)


@pytest.mark.req("json.ambiguous")
def test_what_the_caller_prefers_comes_first() -> None:
    text = '```json\n{"a": 1}\n```\nor {"b": 2} or {"b": 3} or [1]'
    wants: Callable[[Any], bool] = lambda value: "b" in value  # noqa: E731
    found = finding(text, prefer=wants)
    assert found.value == {"b": 3}
    assert found.ambiguous
    assert finding(text, prefer=lambda value: value == {"b": 2}).value == {"b": 2}
    assert finding(text, prefer=lambda _: False).value == {"a": 1}
    assert finding('{"b": 1}', prefer=lambda _: False).value == {"b": 1}


# --- what is broken ------------------------------------------------------------------------


@pytest.mark.req("json.no-part")
@pytest.mark.parametrize(
    "text",
    [
        '{"name": "x", "meta": {"a": 1},}',
        '{"name": "x", "meta": {"a": 1}, oops}',
        '{"name": oops, "meta": {"a": 1}}',
        '{"name" "x", "meta": {"a": 1}}',
        '{"name": "x" "meta": {"a": 1}}',
        '{"name: "x", "meta": {"a": 1}}',
        '{"name: [{"a": 1}, {"b": 2}]}',
        '{"": oops, "meta": {"a": 1}}',
        '[{"a": 1}, {"b": 2} oops]',
        '[{"a": 1} {"b": 2}]',
        '[{"a": 1} 5]',
        "[[1, 2], [3 4]]",
        '[{}, {"a": 1}, oops]',
        '["x", {"a": 1}, oops]',
        '["x" {"a": 1}]',
        '["x, {"a": 1}]',
        '[, {"a": 1}]',
        '[{, {"a": 1}]',
        '[5 {"a": 1}]',
        '{"a": "b"}, "c": {"d": 1}}',
        '"a": {"b": 1}, "c": {"d": 2}}',
        '"a": {"b": 1}, "c": 2',
        '{"b": 1}, "c": 2}',
        '{"a": oops, "meta": {"b": 1} and so on',
        '{"a": oops, "meta": 5 {"b": 1}}',
        '[{"a": 1}, oops {}]',
        '{"a": {"b": [NaN, {"c": 1}]}, "d": {"e": 1}}',
        "{'ids': [10000, 20000, 30000]}",
        "{'ids': oops, 'more': {\"a\": 1}}",
        "['x', {\"a\": 1}, oops]",
        '{"a": "the "x", y", "b": {"c": 1}}',
    ],
)
def test_a_part_of_something_broken_is_no_answer(text: str) -> None:
    refusal(text)
    refusal(f"Result: {text} as asked")
    refusal(f"```json\n{text}\n```")


@pytest.mark.req("json.no-part")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "b": [1, 2\n\nAgain: {"a": 1, "b": [1, 2]}', {"a": 1, "b": [1, 2]}),
        ('{"a": oops} was wrong. Corrected: {"a": 1}', {"a": 1}),
        ('{"a": "oops}. Corrected: {"a": 2, "b": "x"}', {"a": 2, "b": "x"}),
        ('{"a": 1, oops. Corrected: {"a": 2}', {"a": 2}),
        ('[1, 2, oops] then {"a": 1}', {"a": 1}),
        ('[see {"a": 1}]', {"a": 1}),
        ('[see, {"a": 1}]', {"a": 1}),
        ('The values 5, {"a": 1}, and so on', {"a": 1}),
        ('x {"a": 1}, "b" is more', {"a": 1}),
        ('} ] {"a": oops} gives ["x"], I see', ["x"]),
    ],
)
def test_an_answer_after_something_broken_is_found(text: str, value: object) -> None:
    assert extract_json(text) == value


@pytest.mark.req("json.no-part")
@pytest.mark.parametrize(
    "text",
    [
        "As noted in [1]: ```json\n{'answer': 42}\n```",
        "As noted in [1]: ```json\n{answer: 42}\n```",
        "See [1]. Result: {'answer': 42}",
        "See [1]. Result: {answer: 42}",
        'As noted in [1], it is {"a": <x>, "b": 2}',
        f"By {SCHEMA}: {{answer: 1}}",
        f'```json\n{SCHEMA}\n```\n```json\n{{"answer": <oops>}}\n```',
        '```json\n{"answer": 42,}\n```\nlike {"answer": 1}',
        '```json\n{"answer": [1, 2\n```\nlike {"answer": 1}',
        'Like {"answer": 1}: {"answer": 42,}',
        'Like {"answer": 1}: {"answer": 4',
    ],
)
def test_a_footnote_or_an_example_does_not_stand_in_for_a_broken_answer(
    text: str,
) -> None:
    refusal(text)


@pytest.mark.req("json.truncated")
@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "b": [1, 2',
        '{"a": 1, "b": [1, 2]',
        '{"a": "half a sen',
        '{"a": 1,',
        '{"a":',
        '{"a',
        '["x", "y',
        '[["x"]',
        "[[0.056]",
        '[{"id": 1}, {"id": 2}',
        '[{"id": 1}',
        'Here: {"a": {"b": 1}',
        'Draft {"a": 1}. Final: {"a": 2, "b',
        '```json\n{"a": 1, "b": "x',
        '\ufeff  {"a long first key that goes on and on and on until the text ends, more '
        "than eighty characters",
        '{"a": tru',
        "[" * 5000,
        '[{"a":' * 5000,
    ],
)
def test_an_answer_that_is_cut_off_is_told(text: str) -> None:
    assert "cut off" in refusal(text)
    for repair in (False, True):
        found = finding(text, repair=repair)
        assert found.truncated
        assert found.value is None
        assert not found.ambiguous


@pytest.mark.req("json.truncated")
@settings(max_examples=150)
@given(containers, st.data())
def test_no_cut_text_gives_a_value(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    for repair in (False, True):
        found = find_json(cut, repair=repair)
        assert found is None or found.truncated
    with pytest.raises(ValueError, match="no valid JSON"):
        extract_json(cut)


@pytest.mark.req("json.truncated")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('```json\n{"a": 1}\n```\nthen {"b": [2', {"a": 1}),
        ('{"a": 1} [', {"a": 1}),
        ('{"a": 1} {"b', None),
    ],
)
def test_a_cut_off_rest_matters_only_where_it_could_be_the_answer(
    text: str, value: object
) -> None:
    found = finding(text)
    assert found.value == value
    assert found.truncated == (value is None)


@pytest.mark.req("json.depth", "D-21")
def test_what_is_nested_too_deep_is_refused() -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")):
        levels = MAX_JSON_DEPTH // (2 if len(closing) == 2 else 1)
        good = opening * levels + ("1" if closing != "]" else "") + closing * levels
        assert extract_json(good)
        assert extract_json(f"Result: {good}.")
        for count in (levels + 1, 1000, 100_000):
            deep = opening * count + "1" + closing * count
            assert "deeper than" in refusal(deep)
            refusal(f"Result: {deep} [2]")
            assert extract_json(f'{deep} but rather {{"ok": true}}') == {"ok": True}


@pytest.mark.req("json.depth", "D-21")
def test_a_deep_list_behind_its_neighbours_is_refused() -> None:
    for item in ('{"next": %s, "value": 1}', "[1, 2, 3, %s, {}, []]", '[%s, "x", "y"]'):
        text = "1"
        for _ in range(300):
            text = item.replace("%s", text)
        refusal(text)


@pytest.mark.req("json.depth")
def test_a_full_call_stack_gives_no_recursion_error() -> None:
    seen: list[str] = []

    def fill() -> None:
        try:
            fill()
        except RecursionError:
            if not seen:
                for work in (extract_json, find_json):
                    try:
                        seen.append(repr(work('See [1] {"a": [[[[1]]]]}')))
                    except ValueError as error:
                        seen.append(str(error))
            raise

    with pytest.raises(RecursionError):
        fill()


# --- scalars -------------------------------------------------------------------------------


@pytest.mark.req("JX-17")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        (" -1.5e3\n", -1500.0),
        ("0", 0),
        ("false", False),
        ("null", None),
        ('""', ""),
        ('"<think>"', "<think>"),
        ('"see {\\"a\\": 1}"', 'see {"a": 1}'),
        ("[]", []),
        ("{}", {}),
        ("```json\n42\n```", 42),
        ("Answer:\n```\n0\n```\nDone.", 0),
        ("```json\n1\n```\n~~~\n2\n~~~", 2),
        ("<think>1</think>\n\n7", 7),
        ("<think>1</think>\n```json\n7\n```", 7),
        ("was 3</think> 7", 7),
        ('```json\n1\n```\nand {"a": 1}', {"a": 1}),
    ],
)
def test_a_scalar_that_is_all_there_is_can_be_accepted(
    text: str, value: object
) -> None:
    found = finding(text, allow_scalar=True)
    assert found.value == value
    assert type(found.value) is type(value)


@pytest.mark.req("JX-17")
@pytest.mark.parametrize(
    "text",
    [
        "The answer is 42",
        "42 apples",
        "<think>42",
        "NaN",
        "9" * 5000,
        '"open',
        "True",
        "```json\n42 or 43\n```",
        "```json\n",
    ],
)
def test_a_scalar_in_prose_is_no_answer(text: str) -> None:
    assert find_json(text, allow_scalar=True) is None


@pytest.mark.req("JX-17")
def test_scalars_have_to_be_asked_for() -> None:
    assert find_json("42") is None
    assert find_json("```json\n42\n```", repair=True) is None


@pytest.mark.req("JX-05", "JX-17")
@pytest.mark.parametrize(("word", "value"), [("True", True), ("None", None)])
def test_a_scalar_of_python_is_mended_when_asked(word: str, value: object) -> None:
    found = finding(f"```\n{word}\n```", allow_scalar=True, repair=True)
    assert found.value is value
    assert found.repairs == (f"changed {word} to {json.dumps(value)} at 4",)
    assert find_json("Nonesuch", allow_scalar=True, repair=True) is None
