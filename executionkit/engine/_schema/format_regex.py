"""The format `regex`: the syntax of ECMA-262, section 22.2.1, in its Unicode mode.

A text may have this format and still be a `pattern` that some validators cannot check.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ("is_regex",)

_CODE: Final = (
    r"x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{0*(?:[0-9A-Fa-f]{1,5}|10[0-9A-Fa-f]{4})\}"
)
_SET: Final = r"[dDwWsS]|[pP]\{[A-Za-z0-9_]+(?:=[A-Za-z0-9_]+)?\}"
# Any punctuation may be escaped, although the Unicode mode allows less of it.
_ONE: Final = rf"{_CODE}|[tnrvf]|0(?![0-9])|c[A-Za-z]|[^A-Za-z0-9\s\x80-\U0010ffff]"
_REPEAT: Final = r"(?:[*+?]|\{([0-9]+)(,([0-9]*))?\})\??"
_OPEN: Final = r"\((?:\?(?::|=|!|<=|<!|<([^>]*)>))?"
_SIMPLE: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0, "b": 8}


class _WrongError(Exception):
    """The text is no regular expression."""


def is_regex(text: str) -> bool:
    """Whether a text is a `Pattern` of ECMA-262."""
    try:
        _Scanner(text).run()
    except _WrongError:
        return False
    return True


class _Scanner:
    """Goes through a pattern once, from left to right.

    Args:
        text: The pattern.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._opened: list[bool] = []
        """For each open group: whether it may be repeated."""

        self._groups = 0
        self._names: set[str] = set()
        self._wanted_names: set[str] = set()
        self._wanted_group = 0

    def run(self) -> None:
        repeatable = False
        while self._at < len(self._text):
            repeatable = self._step(self._text[self._at], repeatable)
        if self._opened or self._wanted_names - self._names:
            raise _WrongError
        if self._wanted_group > self._groups:
            raise _WrongError

    def _take(self, pattern: str) -> re.Match[str]:
        found = re.compile(pattern).match(self._text, self._at)
        if found is None:
            raise _WrongError
        self._at = found.end()
        return found

    def _step(self, character: str, repeatable: bool) -> bool:  # noqa: FBT001
        """Read one term; whether the term may be repeated."""
        if character in "*+?{":
            if not repeatable:
                raise _WrongError
            low, ranged, high = self._take(_REPEAT).groups()
            if ranged and high and _number(high) < _number(low):
                raise _WrongError
            return False
        if character == "(":
            self._open()
            return False
        if character == ")":
            self._at += 1
            if not self._opened:
                raise _WrongError
            return self._opened.pop()
        if character == "[":
            self._take(r"\[\^?")
            self._members()
            return True
        if character == "\\":
            return self._escape()
        if character in "]}":
            raise _WrongError
        self._at += 1
        return character not in "^$|"

    def _open(self) -> None:
        found = self._take(_OPEN)
        name = found[1]
        if name is not None:
            if not name.replace("$", "_").isidentifier() or name in self._names:
                raise _WrongError
            self._names.add(name)
        elif self._text[self._at : self._at + 1] == "?":
            raise _WrongError
        captures = name is not None or found[0] == "("
        self._groups += captures
        self._opened.append(captures or found[0] == "(?:")

    def _escape(self) -> bool:
        found = self._take(rf"\\(?:([bB])|k<([^>]*)>|([1-9][0-9]*)|{_SET}|{_ONE})")
        edge, name, number = found.groups()
        if name is not None:
            self._wanted_names.add(name)
        if number is not None:
            self._wanted_group = max(self._wanted_group, _number(number))
        return edge is None

    def _members(self) -> None:
        """Read the members of a class, and its end."""
        while True:
            if self._text[self._at : self._at + 1] == "]":
                self._at += 1
                return
            low = self._member()
            if self._text[self._at : self._at + 1] != "-":
                continue
            if self._text[self._at + 1 : self._at + 2] == "]":
                self._at += 1  # the hyphen stands for itself
                continue
            self._at += 1
            high = self._member()
            if low < 0 or high < low:
                raise _WrongError

    def _member(self) -> int:
        """The code of one member of a class; -1 for a set of characters."""
        found = self._take(rf"[^\\]|\\(?:(?P<set>{_SET})|(?P<one>b|{_ONE}))")
        if found["set"] is not None:
            return -1
        one = found["one"]
        if one is None:
            return ord(found[0])
        if one[0] in "xu" and len(one) > 1:
            return int(one[1:].strip("{}"), 16)
        if one[0] == "c" and len(one) > 1:
            return ord(one[1]) % 32
        return _SIMPLE.get(one, ord(one[0]))


def _number(digits: str) -> int:
    """A count; every one that is too great to matter is the same."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) < 16 else 10**16
