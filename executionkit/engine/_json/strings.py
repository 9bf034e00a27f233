"""Strings that are almost JSON: where they end, and what they say.

A quote ends a string when what follows it can only follow a string: a colon after a key,
a comma, a closing bracket or the next key after a value. Any other quote is a part of
the text. Where that leaves two readings, reading fails.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Final, NamedTuple

from executionkit.engine._json.strict import STRING, Failure, attempt

__all__ = (
    "COMMENT",
    "KEY_AHEAD",
    "QUOTED",
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
COMMENT: Final = (
    r"(?:(?://|\#[ #!])[^\n]{0,2000}+(?=\n|\Z)"
    r"|/\*(?:[^*]|\*(?!/)){0,2000}+\*/)"
)
"""A comment of C, or of Python or YAML; the bound keeps many open ones cheap."""

_QUIET: Final = re.compile(rf"(?:[\s\ufeff\u200b-\u200d\u2060]++|{COMMENT})*+")

QUOTED: Final = (
    rf"(?:{STRING}|'(?:[^'\\\n]|\\.)*+'"
    rf"|[{_DOUBLE}][^{_DOUBLE}\n]*+[{_DOUBLE}]|[{_SINGLE}][^{_SINGLE}\n]*+[{_SINGLE}])"
)
"""The shape of a string in quotes of any kind."""

KEY_AHEAD: Final = re.compile(rf"{QUOTED}\s*+:")
"""A quoted key with its colon."""

_SPECIAL: Final = re.compile(
    r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|[\s\S])"
    r"|[\"\x00-\x1f]"
)
_LETTER_ESCAPES: Final = frozenset("bfnrtu")
_MAX_INNER: Final = 64
_STRUCTURE: Final = frozenset("{}[]:,")
_CLOSERS: Final = {Place.KEY: ":", Place.MEMBER: ",}", Place.ITEM: ",]"}
_NEAR: Final = 40
_ITEM_START: Final = frozenset("{[-0123456789tfnTFN") | QUOTES


def _follows(text: str, after: int, stop: int, place: Place) -> str:
    """What stands behind a quote and proves that it closes; empty when text does.

    Raises:
        UnreadableError: When it could as well open or close another string.
    """
    at = _QUIET.match(text, after, stop).end()  # type: ignore[union-attr]
    if at >= stop:
        return "end"
    mark = text[at]
    if mark in _CLOSERS[place]:
        return mark
    if place is Place.ITEM and mark in _ITEM_START and "\n" in text[after:at]:
        return "line"
    if place is Place.MEMBER and KEY_AHEAD.match(text, at, stop):
        return "key"
    apart = at > after and mark in QUOTES
    if mark in _STRUCTURE or apart or (place is Place.ITEM and _opens(text, after - 1)):
        raise UnreadableError(after - 1, "a quote that could belong to two strings")
    return ""


def _opens(text: str, quote: int) -> bool:
    """Whether a quote stands where an item of an array could begin."""
    return text[max(0, quote - _NEAR) : quote].rstrip().endswith((",", "["))


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
    if inner and _is_doubtful(text, (start, at), inner, after, place):
        raise UnreadableError(start, "a string whose end is not certain")
    value, notes = _text_of(text[start + 1 : at], start, lines=not inner)
    if _STYLES[opening]:
        notes.insert(0, _STYLES[opening])
    if inner:
        notes.append("escaped quotes inside of a string")
    return TextString(value, at + 1, tuple(notes), inner)


def _is_doubtful(
    text: str, quotes: tuple[int, int], inner: int, after: str, place: Place
) -> bool:
    """Whether quotes in a string could mean that it is not one string, or not that one.

    `["a "b", "c" d"]` may be one, two or three strings. In `""x"` a quote may be
    doubled by mistake, while `"7""` is seven inches.
    """
    if after in {"key", "line"}:
        return True
    if inner % 2 == 0:
        return False
    start, end = quotes
    inside = text[start + 1 : end].strip()
    doubled = inside[0] in QUOTES or (
        inside[-1] in QUOTES and not inside[-2:-1].isdigit()
    )
    return doubled or (after == "," and place is Place.ITEM)


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
    if kind in "xU" and len(piece) > 2:
        notes[f"changed an escape \\{kind} inside of a string"] = None
        return json.dumps(chr(int(piece.lstrip("\\xU"), 16)))[1:-1]
    if kind in QUOTES and kind != '"':
        notes["removed a backslash before a quote inside of a string"] = None
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
