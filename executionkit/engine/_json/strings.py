"""Strings that are almost JSON: where they end, and what they say.

A quote ends a string when what follows it can only follow a string: a colon after a key,
a comma, a closing bracket or the next key after a value. Any other quote is a part of
the text. Where that leaves two readings, reading fails.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from executionkit.engine._json.strict import STRING, Failure, attempt

__all__ = (
    "KEY_AHEAD",
    "QUOTES",
    "Place",
    "TextString",
    "UnreadableError",
    "read_string",
)


class UnreadableError(ValueError):
    """The text has no reading, or two, as JSON."""

    def __init__(self, at: int, why: str, *, ended: bool = False) -> None:
        super().__init__(f"{why} at {at}")
        self.at = at
        """Where reading stopped."""

        self.ended = ended
        """All was readable up to where the text (or its fence) ends."""


class Place(Enum):
    """Where a string stands; this says what may follow it."""

    KEY = "key"
    MEMBER = "member"
    """A value in an object."""

    ITEM = "item"
    """A value in an array."""


class TextString(NamedTuple):
    """A string that has been read."""

    value: str
    end: int
    """The position after its closing quote."""

    notes: tuple[str, ...] = ()
    """What was mended."""

    inner: int = 0
    """Quotes of its own kind that were taken for a part of it."""


_SINGLE: Final = "\u2018\u2019\u201a\u201b"
_DOUBLE: Final = "\u201c\u201d\u201e\u201f"
_TYPOGRAPHIC: Final = "changed typographic quotes to straight ones"
_STYLES: Final = {
    '"': "",
    "'": "changed single quotes to double quotes",
    **dict.fromkeys(_SINGLE + _DOUBLE, _TYPOGRAPHIC),
}

QUOTES: Final = frozenset(_STYLES)
"""The characters that may open a string."""


def _up_to(closing: str) -> re.Pattern[str]:
    return re.compile(rf"[^\\{closing}]*+(?:\\.[^\\{closing}]*+)*+", re.DOTALL)


_UP_TO: Final = {
    '"': _up_to('"'),
    "'": _up_to("'"),
    **dict.fromkeys(_SINGLE, _up_to(_SINGLE)),
    **dict.fromkeys(_DOUBLE, _up_to(_DOUBLE)),
}

_STRICT: Final = re.compile(STRING)
_QUIET: Final = re.compile(
    r"(?:[\s\ufeff\u200b-\u200d\u2060]++|(?://|\#)[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+"
)

KEY_AHEAD: Final = re.compile(
    rf"""(?:{STRING}|'[^'\\\n]*+'|[{_DOUBLE}][^{_DOUBLE}\n]*+[{_DOUBLE}])\s*+:"""
)
"""A quoted key with its colon."""

_SPECIAL: Final = re.compile(
    r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[\s\S])|[\"\x00-\x1f]"
)
_LETTER_ESCAPES: Final = frozenset("bfnrtu")
_MAX_INNER: Final = 64
_VALUE_START: Final = frozenset('{["-0123456789tfnTFN') | QUOTES


def _follows(text: str, after: int, stop: int, place: Place) -> str:
    """What stands behind a quote and proves that it closes; empty when nothing does."""
    at = _QUIET.match(text, after, stop).end()  # type: ignore[union-attr]
    if at >= stop:
        return "end"
    mark = text[at]
    if place is Place.KEY:
        return mark if mark == ":" else ""
    if mark == ",":
        return mark
    if place is Place.MEMBER:
        if mark == ":":
            raise UnreadableError(after - 1, "a quote that could begin or end a key")
        if mark == "}":
            return mark
        return "key" if KEY_AHEAD.match(text, at, stop) else ""
    if mark == "]":
        return mark
    return "line" if mark in _VALUE_START and "\n" in text[after:at] else ""


def read_string(text: str, start: int, stop: int, place: Place) -> TextString:
    """Read the string whose opening quote is at `start`.

    Raises:
        UnreadableError: When its end or its text is not certain.
    """
    if text[start] == '"':
        strict = _STRICT.match(text, start, stop)
        if strict and _follows(text, strict.end(), stop, place):
            outcome = attempt(strict.group(), 0)
            if not isinstance(outcome, Failure):
                return TextString(str(outcome[0]), strict.end())
    return _read_loose(text, start, stop, place)


def _read_loose(text: str, start: int, stop: int, place: Place) -> TextString:
    opening = text[start]
    up_to = _UP_TO[opening]
    at = start + 1
    inner = apostrophes = 0
    while True:
        at = up_to.match(text, at, stop).end()  # type: ignore[union-attr]
        if at >= stop:
            raise UnreadableError(start, "a string without end", ended=True)
        if text[at] == "\\":  # the last character before `stop`
            at += 1
            continue
        after = _follows(text, at + 1, stop, place)
        if after:
            break
        if opening != '"' and text[at - 1].isalnum() and text[at + 1].isalnum():
            apostrophes += 1
        else:
            inner += 1
        if place is Place.KEY or inner + apostrophes > _MAX_INNER:
            raise UnreadableError(start, "a string whose end is not certain")
        at += 1
    if inner and (
        after in {"key", "line"} or (after == "," and _is_odd_item(place, inner))
    ):
        raise UnreadableError(start, "a string whose end is not certain")
    value, notes = _text_of(text[start + 1 : at], start, lines=not inner)
    if _STYLES[opening]:
        notes.insert(0, _STYLES[opening])
    if inner:
        notes.append("escaped quotes inside of a string")
    return TextString(value, at + 1, tuple(notes), inner)


def _is_odd_item(place: Place, inner: int) -> bool:
    # ["a "b", "c" d"]: one, two or three strings.
    return place is Place.ITEM and inner % 2 == 1


def _text_of(raw: str, start: int, *, lines: bool) -> tuple[str, list[str]]:
    """The text that `raw` stands for, and what had to be mended in it."""
    if not _SPECIAL.search(raw):
        return raw, []
    notes: dict[str, None] = {}
    escapes: set[str] = set()

    def rewrite(found: re.Match[str]) -> str:
        piece = found.group()
        if piece == '"':
            return '\\"'
        if len(piece) == 1:
            if piece in "\r\n" and not lines:
                raise UnreadableError(start, "a string whose end is not certain")
            notes["escaped a line break or control character inside of a string"] = None
            return f"\\u{ord(piece):04x}"
        return _escape(piece, start, escapes, notes)

    body = _SPECIAL.sub(rewrite, raw)
    if "\\" in escapes and escapes & _LETTER_ESCAPES:
        # "\alpha\nu": is the second one a line break or a backslash as well?
        raise UnreadableError(start, "a string with doubtful backslashes")
    outcome = attempt(f'"{body}"', 0)
    if isinstance(outcome, Failure):
        raise UnreadableError(start, outcome.reason)
    return str(outcome[0]), list(notes)


def _escape(piece: str, start: int, escapes: set[str], notes: dict[str, None]) -> str:
    """The JSON for one backslash and what follows it."""
    kind = piece[1]
    if kind == "x" and len(piece) > 2:
        notes[r"changed \x to \u00 inside of a string"] = None
        return f"\\u00{piece[2:]}"
    if kind in QUOTES and kind != '"':
        return kind
    if kind in '"\\/':
        return piece
    if kind in _LETTER_ESCAPES:
        escapes.add(kind)
        return piece
    if kind.isspace():
        raise UnreadableError(start, "a string with a backslash before white space")
    escapes.add("\\")
    notes["doubled a backslash inside of a string"] = None
    return f"\\\\{kind}"
