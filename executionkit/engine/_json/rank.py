"""Which of several JSON values in one text is the answer.

From the strongest reason to the weakest:

1. The caller's own preference (it fits the schema, say).
2. What it is: content; then an echoed JSON Schema; then a short list of numbers; then
   what prose is full of: `[1]`, `[]`, `{}`. Alone in a fence these are content.
3. Where it stands: a fence that says `json`; another fence that holds nothing else;
   prose.
4. An object before an array.
5. The last one: drafts and examples come first.

Values that differ and are equal in all but the last point make a text ambiguous.
"""

from __future__ import annotations

import re
from enum import IntEnum
from json.encoder import JSONEncoder
from typing import Any, Final, NamedTuple

from executionkit.engine._json.strings import KEY_AHEAD
from executionkit.types import JsonValue

__all__ = (
    "GOES_ON",
    "Rank",
    "Region",
    "fence_end",
    "is_part",
    "net_depth",
    "region_of",
    "same_json",
)


class Region(IntEnum):
    """Where a value stands."""

    PROSE = 1
    FENCE = 2
    JSON_FENCE = 3


class Weight(IntEnum):
    """How much a value looks like an answer."""

    MARK = 1
    """`[1]`, `[]` or `{}` in prose: a footnote, a subscript, a way to say "nothing"."""

    NUMBERS = 2
    SCHEMA = 3
    BROKEN = 4
    """Meant to be JSON and beyond repair: if nothing but the above is left, the answer
    is lost, and not one of those."""

    CONTENT = 5


class Rank(NamedTuple):
    """The place of a value among others; the greater one is the answer."""

    preferred: bool
    weight: Weight
    region: Region
    is_object: bool


_encode = JSONEncoder(sort_keys=True).encode
_NEAR: Final = 120
_SHORT: Final = 12
"""Characters of an array of numbers that could be a citation."""

_QUOTES: Final = ('"', "'", "\u201d", "\u2019")
GOES_ON: Final = frozenset(",]}")
"""What follows a value that is a part of something."""

_BEFORE_PART: Final = frozenset((",", "[", "{", *_QUOTES))
_ENDS_VALUE: Final = re.compile(r"[\"'\]}0-9]\Z|\b(?:true|false|null)\Z")
_FENCE_BEFORE: Final = re.compile(
    r"(?P<run>`{3,}|~{3,})[ \t]*(?P<name>[\w.+#-]*)(?P<rest>[^\n`]*)\Z"
)
_FENCE_LINE: Final = re.compile(r"\n[ \t>]*+(`{3,}|~{3,})")
_JSON_NAMES: Final = ("json", "ndjson", "geojson")


def _fence_before(text: str, start: int) -> tuple[str, str]:
    """The run and the language of the fence whose body begins at `start`, if any."""
    head = text[max(0, start - _NEAR) : start]
    if "```" not in head and "~~~" not in head:
        return "", ""
    line = head.rstrip()
    found = _FENCE_BEFORE.search(line)
    if found is None or (found["rest"].strip() and "\n" not in head[len(line) :]):
        return "", ""
    return found["run"], found["name"].lower()


def region_of(text: str, start: int, end: int) -> Region:
    """Where the text from `start` to `end` stands."""
    run, name = _fence_before(text, start)
    if not run:
        return Region.PROSE
    if name.startswith(_JSON_NAMES):
        return Region.JSON_FENCE
    # A bare run can close the fence before. So it must be closed right after the value.
    rest = text[end : end + _NEAR].strip()
    return Region.FENCE if not rest or rest.startswith(run) else Region.PROSE


def fence_end(text: str, start: int) -> int:
    """Where the fence ends whose body begins at `start`; without one, the text's end."""
    run, _ = _fence_before(text, start)
    if run:
        for line in _FENCE_LINE.finditer(text, start):
            if line[1].startswith(run):
                return line.start()
    return len(text)


def _is_schema(value: dict[str, Any]) -> bool:
    if "$schema" in value or "$defs" in value:
        return True
    kind = value.get("type")
    if kind == "object":
        return isinstance(value.get("properties"), dict)
    return kind == "array" and isinstance(value.get("items"), dict)


def weight_of(value: JsonValue, size: int, region: Region) -> Weight:
    """The weight of a value that takes `size` characters."""
    if isinstance(value, dict) and _is_schema(value):
        return Weight.SCHEMA
    if region > Region.PROSE:
        return Weight.CONTENT
    if not value:
        return Weight.MARK
    if isinstance(value, dict) or size > _SHORT:
        return Weight.CONTENT
    if any(type(item) is not int for item in value):
        return Weight.CONTENT
    return Weight.MARK if len(value) == 1 else Weight.NUMBERS


def net_depth(text: str, start: int, end: int) -> int:
    """Brackets opened less brackets closed between two positions."""
    opened = text.count("{", start, end) + text.count("[", start, end)
    return opened - text.count("}", start, end) - text.count("]", start, end)


def is_part(text: str, start: int, end: int, *, depth: int, broken: bool) -> bool:
    """Whether a value stands as if it were a member or an item of something around it.

    `"a": {...}` in an unclosed bracket is a part, `Corrected: {...}` is not.

    Args:
        text: The text.
        start: Where the value begins.
        end: Where it ends.
        depth: Brackets that are open before it.
        broken: Whether one of them opens what was certainly meant to be JSON.
    """
    rest = text[end : end + _NEAR].lstrip()
    goes_on = rest[:1] in GOES_ON
    if depth == 0 and not goes_on:
        return False
    if goes_on and rest[0] == "," and KEY_AHEAD.match(rest[1:].lstrip()):
        return True
    head = text[max(0, start - _NEAR) : start].rstrip()
    mark, before = head[-1:], head[:-1].rstrip()
    if mark == ":" and before.endswith(_QUOTES):
        return goes_on or depth > 0
    if depth == 0:
        return False
    if not broken:
        item = mark == "," and _ENDS_VALUE.search(before) is not None
        return (goes_on and item) or (mark == "{" and depth > 1)
    if mark in _BEFORE_PART:
        return True
    return goes_on and (mark == ":" or _ENDS_VALUE.search(head) is not None)


def same_json(one: JsonValue, other: JsonValue) -> bool:
    """Whether two values are the same JSON: `1`, `1.0` and `true` are three values."""
    return bool(one == other) and _encode(one) == _encode(other)
