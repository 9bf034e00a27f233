"""The table of promises and the tests that prove them: no gap, in either direction."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parent

SOURCES = frozenset(
    {
        "architecture document",
        "execution controls document",
        "field case",
        "known trap",
        "own promise",
        "production patterns document",
        "spec",
    }
)

FIELDS = {"id", "text", "source"}
AN_ID = re.compile(
    r"[A-Z]{1,3}(-[A-Z]+)?-\d+[a-z]?|[a-z][a-z0-9-]*(\.[a-z0-9][a-z0-9-]*)+"
)


def table() -> list[dict[str, Any]]:
    text = (TESTS / "requirements.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text).get("req", [])
    assert isinstance(entries, list)
    return entries


def _is_req(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in {
        "pytest.mark.req",
        "mark.req",
    }


def markers(source: str) -> Iterator[tuple[int, ast.expr]]:
    """(line, argument) of each marker: on a function, a class, a module, a parameter."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _is_req(node):
            for argument in node.args:
                yield node.lineno, argument


def named() -> dict[str, list[str]]:
    """Where each id is named: id -> places."""
    places: dict[str, list[str]] = {}
    for file in sorted(TESTS.rglob("test_*.py")):
        for line, argument in markers(file.read_text(encoding="utf-8")):
            where = f"{file.relative_to(TESTS)}:{line}"
            ok = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            assert ok, f"{where}: the ids of a marker are plain strings"
            places.setdefault(ast.literal_eval(argument), []).append(where)
    return places


@pytest.mark.req("house.requirements")
def test_every_promise_is_proved_by_a_test() -> None:
    unproved = {entry["id"] for entry in table()} - named().keys()
    assert not unproved, f"no test names: {sorted(unproved)}"


@pytest.mark.req("house.requirements")
def test_every_marker_names_a_promise_of_the_table() -> None:
    known = {entry["id"] for entry in table()}
    unknown = {key: places for key, places in named().items() if key not in known}
    assert not unknown, f"not in requirements.toml: {unknown}"


@pytest.mark.req("house.requirements")
def test_no_promise_is_listed_twice() -> None:
    twice = [key for key, n in Counter(e["id"] for e in table()).items() if n > 1]
    assert not twice


@pytest.mark.req("house.requirements")
def test_every_promise_says_what_and_where_it_comes_from() -> None:
    for entry in table():
        assert set(entry) == FIELDS, entry
        assert AN_ID.fullmatch(entry["id"]), f"odd id: {entry['id']!r}"
        assert entry["text"].strip().endswith((".", "!", "?")), entry
        assert entry["source"] in SOURCES, entry


def test_markers_are_found_wherever_they_stand() -> None:
    source = """
import pytest
pytestmark = [pytest.mark.asyncio, pytest.mark.req("a.a")]
@pytest.mark.req("b.b", "c.c")
class TestIt:
    @pytest.mark.req("d.d")
    def test(self): ...
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.req("e.e"))])
async def test_x(x): ...
"""
    found = sorted(ast.literal_eval(argument) for _, argument in markers(source))
    assert found == ["a.a", "b.b", "c.c", "d.d", "e.e"]
