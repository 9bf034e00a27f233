"""Reads the regular expressions of JSON Schema (ECMAScript, by code point).

The tree can be written as a Python pattern with the same meaning; `_schema.pattern`
makes an automaton of it. What the known validators read differently, or what is an
error in ECMAScript's Unicode mode, is refused: word boundaries, back references,
property escapes, inline flags, possessive quantifiers, empty classes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

__all__ = (
    "Alternatives",
    "Characters",
    "Edge",
    "Look",
    "Node",
    "PatternError",
    "Repeat",
    "Sequence",
    "parse_pattern",
    "to_python",
)

_MAX_DEPTH: Final = 50
_MAX_COUNT: Final = 1000
_LAST: Final = 0x10FFFF

Ranges: TypeAlias = tuple[tuple[int, int], ...]

_DIGITS: Final[Ranges] = ((0x30, 0x39),)
_WORD: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
# ECMA-262, WhiteSpace and LineTerminator.
_SPACE: Final[Ranges] = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
_LINE_ENDS: Final[Ranges] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_CLASSES: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "v": "\v", "f": "\f"}
# Punctuation that stands for itself behind a backslash. `<` and `>` are not here:
# some engines read them as word boundaries.
_ESCAPABLE: Final = frozenset("^$\\.*+?()[]{}|/-!\"#%&',:;=@_`~ ")
_DOUBLED: Final = frozenset("&-|~")
_SPECIAL: Final = frozenset("^$\\.*+?()[{|")


class PatternError(ValueError):
    """A pattern is malformed, or uses what is not read here."""


@dataclass(frozen=True, slots=True)
class Characters:
    """One character out of a set of ranges."""

    ranges: Ranges
    """Sorted (first, last) code points that neither touch nor overlap."""

    def has(self, code: int) -> bool:
        """Whether the code point is in the set."""
        index = bisect_right(self.ranges, (code, _LAST)) - 1
        return index >= 0 and code <= self.ranges[index][1]


@dataclass(frozen=True, slots=True)
class Edge:
    """The start of the text, or its end."""

    end: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One of them."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The same thing `least` to `most` times; None = no upper bound."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Look:
    """A look ahead or behind; `opening` is what it is written with."""

    opening: str
    part: Node


Node: TypeAlias = Characters | Edge | Sequence | Alternatives | Repeat | Look


def _merge(ranges: list[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _negate(ranges: Ranges) -> Ranges:
    gaps: list[tuple[int, int]] = []
    start = 0
    for first, last in ranges:
        if first > start:
            gaps.append((start, first - 1))
        start = last + 1
    if start <= _LAST:
        gaps.append((start, _LAST))
    return tuple(gaps)


def _one(character: str) -> Characters:
    return Characters(((ord(character), ord(character)),))


def parse_pattern(source: str) -> Node:
    """The syntax tree of a pattern.

    Raises:
        PatternError: When the text is no pattern, or uses what is not read here.
    """
    reader = _Reader(source)
    node = reader.alternatives(0)
    if reader.more():
        reader.fail("a `)` without its `(`")
    return node


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0

    def more(self) -> bool:
        return self._at < len(self._source)

    def fail(self, what: str) -> NoReturn:
        msg = f"{what} at character {self._at} of the pattern"
        raise PatternError(msg)

    def _take(self, text: str) -> bool:
        found = self._source.startswith(text, self._at)
        if found:
            self._at += len(text)
        return found

    def _next(self) -> str:
        if not self.more():
            self.fail("an end too early")
        self._at += 1
        return self._source[self._at - 1]

    def alternatives(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            self.fail("groups nested too deeply")
        parts = [self._sequence(depth)]
        while self._take("|"):
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else Alternatives(tuple(parts))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.more() and self._source[self._at] not in "|)":
            parts.append(self._quantified(self._atom(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _atom(self, depth: int) -> Node:
        character = self._next()
        if character not in _SPECIAL:
            return _one(character)
        if character == "^":
            return Edge(end=False)
        if character == "$":
            return Edge(end=True)
        if character == ".":
            return Characters(_negate(_LINE_ENDS))
        if character == "[":
            return self._class()
        if character == "(":
            return self._group(depth)
        if character == "\\":
            return Characters(self._escape())
        return self.fail(f"a `{character}` with nothing to repeat")

    def _group(self, depth: int) -> Node:
        opening = self._opening()
        inner = self.alternatives(depth + 1)
        if not self._take(")"):
            self.fail("a group that is not closed")
        return Look(opening, inner) if opening else inner

    def _opening(self) -> str:
        """Read what stands behind `(`; a look-around's sign, or an empty text."""
        if not self._take("?"):
            return ""
        for sign in ("=", "!", "<=", "<!"):
            if self._take(sign):
                return sign
        if self._take(":"):
            return ""
        named = re.compile(r"<[A-Za-z_][A-Za-z0-9_]*>").match(self._source, self._at)
        if named is None:
            self.fail("a kind of group that is not read here")
        self._at = named.end()
        return ""

    def _quantified(self, atom: Node) -> Node:
        counts = self._counts()
        if counts is None:
            return atom
        if isinstance(atom, (Edge, Look)):
            self.fail("a repeated assertion")
        self._take("?")  # lazy or greedy: the same when only the verdict counts
        if self.more() and self._source[self._at] in "*+?{":
            self.fail("a repeated repetition")
        return Repeat(atom, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return counts
        if not self._take("{"):
            return None
        found = re.compile(r"([0-9]{1,4})(,?)([0-9]{0,4})\}").match(
            self._source, self._at
        )
        if found is None or (found[3] and not found[2]):
            self.fail("a `{` that starts no count")
        self._at = found.end()
        least = int(found[1])
        most = int(found[3]) if found[3] else None if found[2] else least
        if max(least, most or 0) > _MAX_COUNT or (most is not None and most < least):
            self.fail("a count that is out of order or too great")
        return least, most

    def _escape(self) -> Ranges:
        """The characters of an escape; the backslash is read already."""
        character = self._next()
        lower = character.lower()
        if lower in _CLASSES:
            ranges = _CLASSES[lower]
            return ranges if character == lower else _negate(ranges)
        code = ord(self._escaped_character(character))
        return ((code, code),)

    def _escaped_character(self, character: str) -> str:
        if character in _ESCAPABLE:
            return character
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "c":
            letter = self._next()
            if letter.isascii() and letter.isalpha():
                return chr(ord(letter) % 32)
        if character in "xu":
            return self._hex_character(character)
        return self.fail(f"the escape `\\{character}`, which is not read here")

    def _hex_character(self, kind: str) -> str:
        form = "[0-9A-Fa-f]{2}" if kind == "x" else r"[0-9A-Fa-f]{4}|\{[0-9A-Fa-f]+\}"
        found = re.compile(form).match(self._source, self._at)
        code = int(found[0].strip("{}"), 16) if found else _LAST + 1
        if found is None or code > _LAST or 0xD800 <= code <= 0xDFFF:
            self.fail(f"a `\\{kind}` that names no character")
        self._at = found.end()
        return chr(code)

    def _class(self) -> Characters:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            ranges.extend(self._class_part())
        if not ranges:
            self.fail("an empty class")
        merged = _merge(ranges)
        return Characters(_negate(merged) if negated else merged)

    def _class_part(self) -> Ranges:
        first = self._class_atom()
        if not self._source.startswith("-", self._at):
            return first
        if self._source.startswith("-]", self._at):
            return first
        self._at += 1
        last = self._class_atom()
        low, high = first[0][0], last[-1][1]
        single = first == ((low, low),) and last == ((high, high),)
        if not single or low > high:
            self.fail("a range that is out of order")
        return ((low, high),)

    def _class_atom(self) -> Ranges:
        character = self._next()
        if character == "\\":
            return self._escape()
        if character in _DOUBLED and self._source.startswith(character, self._at):
            self.fail(f"a doubled `{character}` in a class")
        return ((ord(character), ord(character)),)


def to_python(node: Node) -> str:
    """The pattern for Python's `re` (no flags) that has the meaning of the tree."""
    if isinstance(node, Characters):
        return _python_class(node)
    if isinstance(node, Edge):
        return r"\Z" if node.end else "^"
    if isinstance(node, Sequence):
        return "".join(to_python(part) for part in node.parts)
    if isinstance(node, Alternatives):
        return f"(?:{'|'.join(to_python(part) for part in node.parts)})"
    if isinstance(node, Look):
        return f"(?{node.opening}{to_python(node.part)})"
    most = "" if node.most is None else str(node.most)
    return f"(?:{to_python(node.part)}){{{node.least},{most}}}"


def _python_class(node: Characters) -> str:
    if not node.ranges:
        return "(?!)"
    shown = "".join(
        _python_character(first)
        + (f"-{_python_character(last)}" if last > first else "")
        for first, last in node.ranges
    )
    return f"[{shown}]"


def _python_character(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\U{code:08x}"
