"""Time is linear: shown by counting the characters that are read, not by a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.engine._json import repair as repair_module, scan as scan_module
from executionkit.engine._json.repair import Mended, mend
from executionkit.engine._json.strict import Failure
from executionkit.engine._json.strings import UnreadableError
from executionkit.engine.json_extraction import extract_json, find_json

if TYPE_CHECKING:
    from types import ModuleType

HOSTILE = [
    "{",
    "[",
    '[{"a":',
    "```json\n",
    "```json\n{",
    "```json\n{'a': 1, x\n",
    "~~~json [",
    "{this} and see ",
    "prose without anything, ",
    "[x]",
    "[1]",
    "[1] [2, ",
    "{}",
    '{"',
    '["',
    '{"a":"',
    '{"a": 1 x ',
    '{"a": 1} ',
    '{"a": 1,} ',
    "{'a': 1} ",
    "{'a': 1 x ",
    "{a: 'b' c ",
    "[1,",
    "[NaN,",
    "[NaN] ",
    "[" + "9" * 5000 + "] ",
    "[[1] x",
    "[" * 300 + " x ",
    "[" * 300 + '{"k": "' + "v" * 3000 + '"} x ',
    "[" * 2000 + "]" * 2000 + " ",
    "<think>",
    '<think>{"a": 1}</think>',
    '{"a": 1}</think>',
    '{"a": "//',
    '{"a": "b" c "',
    '{"a": "b"c"',
    '["a" "',
    "\\",
    '{\\"a\\": ',
    '{"a": {"a": 1}, x',
    "\u201c{",
    "{/* ",
    "[ // \n",
]


ATTEMPTS = 200_000
"""Characters that a bounded number of attempts to mend may cost, whatever the size."""


class Reads:
    """What was read while a text was searched."""

    def __init__(self) -> None:
        self.characters = 0
        self.places = 0

    def note(self, start: int, end: int) -> None:
        self.places += 1
        self.characters += max(end - start, 0)


def count_reads(patch: pytest.MonkeyPatch) -> Reads:
    """Count what is read from now on."""
    counter = Reads()

    def counted(module: ModuleType, name: str) -> None:
        read = getattr(module, name)

        def count(text: str, start: int) -> Any:
            outcome = read(text, start)
            end = outcome.at if isinstance(outcome, Failure) else outcome[1]
            counter.note(start, end)
            return outcome

        patch.setattr(module, name, count)

    def counted_mend(text: str, start: int, stop: int, *, close: bool) -> Mended:
        try:
            mended = mend(text, start, stop, close=close)
        except UnreadableError as error:
            counter.note(start, error.at)
            raise
        counter.note(start, mended.end)
        return mended

    counted(scan_module, "attempt")
    counted(scan_module, "attempt_near")
    counted(repair_module, "attempt_near")
    patch.setattr(scan_module, "mend", counted_mend)
    return counter


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return count_reads(monkeypatch)


def search(text: str, *, repair: bool) -> None:
    if repair:
        find_json(text, repair=True)
        return
    try:
        extract_json(text)
    except ValueError:
        return


@pytest.mark.req("json.linear", "D-21", "D-44")
@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_is_read_a_few_times_at_most(
    reads: Reads, piece: str, repair: bool
) -> None:
    size = 60_000
    text = (piece * (size // len(piece) + 1))[:size]
    search(text, repair=repair)
    assert reads.characters <= 8 * size + ATTEMPTS
    assert reads.places <= 2 * size


@pytest.mark.req("json.linear", "D-21", "D-44")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=5), st.booleans())
def test_any_mix_of_it_is_too(pieces: list[str], repair: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        counter = count_reads(patch)
        size = 20_000
        piece = "".join(pieces)
        text = (piece * (size // len(piece) + 1))[:size]
        search(text, repair=repair)
        assert counter.characters <= 8 * size + ATTEMPTS


@pytest.mark.req("json.linear")
@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize(
    "noise", ["[1] ", '{"a": 1 x ', '{"b": 1} ', "{'a': 1 x ", '{"a": 1,} ']
)
def test_after_very_many_values_only_the_end_is_searched(
    reads: Reads, noise: str, repair: bool
) -> None:
    text = noise * 100_000 + '\n```json\n{"answer": 42}\n```\n'
    found = find_json(text, repair=repair)
    assert found is not None
    assert found.value == {"answer": 42}
    assert found.ambiguous, "what was not looked at may be an answer too"
    assert reads.places < 20_000


@pytest.mark.req("json.linear", "D-21", "D-44")
@pytest.mark.parametrize("opening", ["{", "[", '[{"a":', "{this} ", "[x] "])
def test_an_answer_behind_hostile_text_is_found(opening: str) -> None:
    text = opening * 5000 + 'end\n{"answer": 42}'
    assert extract_json(text) == {"answer": 42}
