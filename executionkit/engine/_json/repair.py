"""Read a JSON container that is almost JSON, and say in words what was mended.

A repair never guesses a value. Where the text has two readings (`{"k": "the "x", y"}`)
or something is missing (`[1,, 2]`, `[1, ...]`, `{"a": hello}`), reading fails. What is
mended has one reading: literals and quotes of Python, typographic quotes, comments,
trailing commas, missing commas, unquoted keys, quotes, line breaks and lone backslashes
inside of strings, a remark between members, a text whose quotes are all escaped.
Brackets that are missing at the end are added only when that is asked for.

The reader keeps its own stack, and the work it does is linear in what it reads.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from executionkit._constants import MAX_JSON_DEPTH
from executionkit.engine._json.marks import JSON_AHEAD
from executionkit.engine._json.strict import (
    SPACE,
    TOO_DEEP,
    Failure,
    attempt,
    attempt_near,
    skip_space,
    too_deep,
)
from executionkit.engine._json.strings import (
    COMMENT,
    KEY_AHEAD,
    QUOTES,
    Place,
    UnreadableError,
    read_string,
)
from executionkit.types import JsonValue

__all__ = ("LITERALS", "Mended", "mend")

_MAX_NOTES: Final = 64

_EXTRA: Final = re.compile(
    rf"(?P<comment>{COMMENT})"
    r"|(?:(?![ \t\n\r])\s|[\ufeff\u200b-\u200d\u2060])++"
)
_BARE_KEY: Final = re.compile(r"([A-Za-z_$][\w$-]{0,99}+|[0-9]{1,20}+)\s*+:")
_REMARK: Final = re.compile(r'[A-Za-z][\w ()-]{0,199}+(?="[^"\\\n]*+"\s*+:)')
_ATOM: Final = re.compile(r"[^\s,:{}\[\]\"'/#]++")
_NUMBER: Final = re.compile(
    r"-?(?:0|[1-9][0-9]*)(?P<float>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
)
_NUMBER_5: Final = re.compile(
    r"(?P<sign>[+-]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)"
    r"|(?:(?:0|[1-9][0-9]*)(?P<dot>\.[0-9]*)?|(?P<bare>\.[0-9]+))"
    r"(?P<exponent>[eE][+-]?[0-9]+)?)"
)
LITERALS: Final[dict[str, bool | None]] = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
    "TRUE": True,
    "FALSE": False,
    "NULL": None,
    "NaN": None,
}
"""Words that are read as JSON literals."""

_ITEM_START: Final = frozenset("-0123456789tfnTFN") | QUOTES
_RAW_SPACE: Final = {9: "\\t", 10: "\\n", 13: "\\r"}
_ESCAPED: Final = re.compile(r'[\[{][\s\[{]*+\\"')
_ESCAPED_RUN: Final = re.compile(r'(?:[^"\\]++|\\.)*+')


class Mended(NamedTuple):
    """A container that could be read."""

    value: JsonValue
    end: int
    repairs: tuple[str, ...]


class _Frame:
    """A container that is open."""

    __slots__ = ("closer", "comma", "container", "key")

    def __init__(self, opener: str) -> None:
        self.container: Any = {} if opener == "{" else []
        self.closer = "}" if opener == "{" else "]"
        self.key = ""
        self.comma = -1
        """Where the comma is that has nothing after it yet; -1 = none."""

    def put(self, value: JsonValue) -> None:
        if self.closer == "}":
            self.container[self.key] = value
        else:
            self.container.append(value)


def mend(text: str, start: int, stop: int, *, close: bool = False) -> Mended:
    """Read the container that opens at `start`; what follows it is not looked at.

    Args:
        text: The text.
        start: Where its opening bracket is.
        stop: Where the text ends.
        close: Add brackets that are missing at the end, if the last value is complete.

    Raises:
        UnreadableError: When it has no reading, or more than one.
    """
    if _ESCAPED.match(text, start, stop):
        return _mend_escaped(text, start, stop)
    reader = _Reader(text, stop, close=close)
    mended = reader.read(start)
    if too_deep(mended.value, text, start, mended.end):
        raise UnreadableError(start, TOO_DEEP)
    return mended


def _mend_escaped(text: str, start: int, stop: int) -> Mended:
    run = _ESCAPED_RUN.match(text, start, stop).group().rstrip()  # type: ignore[union-attr]
    inner = attempt(f'"{run.translate(_RAW_SPACE)}"', 0)
    if not isinstance(inner, Failure):
        outcome = attempt(inner[0], 0)
        if not isinstance(outcome, Failure) and outcome[1] == len(inner[0]):
            note = f"removed the backslashes before quotes from {start} on"
            return Mended(outcome[0], start + len(run), (note,))
    raise UnreadableError(start, "a text with escaped quotes that is not JSON")


class _Reader:
    def __init__(self, text: str, stop: int, *, close: bool) -> None:
        self._text = text
        self._stop = stop
        self._may_close = close
        self._stack: list[_Frame] = []
        self._start = 0
        self._root: Any = None
        self._wants_item = True
        self._last_end = 0
        self._trailing = -1
        self._wasted = 0
        self._inner_quotes = False
        self._notes: list[str] = []
        self._more = 0

    def read(self, start: int) -> Mended:
        self._start = start
        pos = self._open(start)
        self._root = self._stack[0].container
        while self._stack:
            pos = self._blank(pos)
            if pos >= self._stop:
                self._finish()
            elif self._wants_item:
                pos = self._item(pos)
            else:
                pos = self._next(pos)
        self._check_rest()
        if self._more:
            self._notes.append(f"{self._more} more repairs")
        return Mended(self._root, self._last_end, tuple(self._notes))

    def _note(self, what: str, at: int) -> None:
        if len(self._notes) < _MAX_NOTES:
            self._notes.append(f"{what} at {at}")
        else:
            self._more += 1

    def _blank(self, pos: int) -> int:
        """Skip white space, and what stands for it."""
        text = self._text
        while True:
            pos = SPACE.match(text, pos).end()  # type: ignore[union-attr]
            extra = _EXTRA.match(text, pos, self._stop)
            if extra is None:
                return pos
            if not extra["comment"]:
                self._note("removed an odd space", pos)
            elif extra.end() < self._stop:
                self._note("removed a comment", pos)
            else:
                raise UnreadableError(pos, "a comment that may hold the rest")
            pos = extra.end()

    def _need(self, pos: int) -> int:
        pos = self._blank(pos)
        if pos >= self._stop:
            raise UnreadableError(pos, "an unfinished member", ended=True)
        return pos

    def _open(self, pos: int) -> int:
        if len(self._stack) >= MAX_JSON_DEPTH:
            raise UnreadableError(pos, TOO_DEEP)
        frame = _Frame(self._text[pos])
        if self._stack:
            self._stack[-1].put(frame.container)
        self._stack.append(frame)
        self._wants_item = True
        return pos + 1

    def _close(self, pos: int) -> int:
        self._stack.pop()
        return self._done(pos + 1)

    def _done(self, end: int) -> int:
        self._wants_item = False
        self._last_end = end
        return end

    def _finish(self) -> None:
        """Deal with the end of the text inside of a container."""
        if self._wants_item or not self._may_close:
            raise UnreadableError(self._stop, "missing brackets", ended=True)
        missing = "".join(frame.closer for frame in reversed(self._stack))
        self._note(f"added the missing {missing}", self._last_end)
        self._stack.clear()

    def _check_rest(self) -> None:
        """Refuse to have ended too early."""
        text, end = self._text, self._last_end
        rest = skip_space(text, end)
        ahead = text[rest : min(rest + 1, self._stop)]
        if ahead == ",":
            rest = skip_space(text, rest + 1)
            goes_on = JSON_AHEAD.match(text, rest, self._stop) is not None
        elif ahead in QUOTES:
            goes_on = text[self._start - 1 : self._start] != ahead
        else:
            goes_on = ahead in {"]", "}", ":"} or (rest == end and ahead.isalnum())
        if self._inner_quotes:
            # {"a": "say "x"} now"}: the bracket may belong to the string.
            line = text.find("\n", end, self._stop)
            line = self._stop if line < 0 else line
            goes_on = goes_on or any(text.find(m, end, line) >= 0 for m in '"}]')
        if goes_on:
            raise UnreadableError(end, "more text that may belong to it")

    def _item(self, pos: int) -> int:
        frame = self._stack[-1]
        if self._text[pos] == frame.closer:
            if frame.comma >= 0:
                self._note("removed a trailing comma", frame.comma)
                self._trailing = pos + 1
            return self._close(pos)
        frame.comma = -1
        if frame.closer == "}":
            frame.key, pos = self._key(pos)
            colon = self._need(pos)  # a key ends only before one
            pos = self._need(colon + 1)
        return self._value(pos)

    def _next(self, pos: int) -> int:
        """Read what follows a value."""
        frame = self._stack[-1]
        mark = self._text[pos]
        if mark == frame.closer:
            return self._close(pos)
        self._wants_item = True
        if mark == ",":
            frame.comma = pos
            return pos + 1
        if not self._lacks_comma(frame, pos):
            raise UnreadableError(pos, f"an unexpected {mark!r}")
        self._note("inserted a missing comma", pos)
        return pos

    def _lacks_comma(self, frame: _Frame, pos: int) -> bool:
        if self._last_end == self._trailing:  # [1,] 2: or is the bracket too much?
            return False
        if frame.closer == "}":
            return KEY_AHEAD.match(self._text, pos, self._stop) is not None
        mark = self._text[pos]
        # [1 2] could be 12, and ["a" "b"] one string; not so on two lines.
        new_line = "\n" in self._text[self._last_end : pos]
        if mark in "{[":
            return new_line or self._text[self._last_end - 1] in "}]"
        return new_line and mark in _ITEM_START

    def _key(self, pos: int) -> tuple[str, int]:
        remark = _REMARK.match(self._text, pos, self._stop)
        if remark:
            self._note(f"removed the text {remark.group().strip()[:40]!r}", pos)
            pos = remark.end()
        if self._text[pos] in QUOTES:
            return self._string(pos, Place.KEY)
        bare = _BARE_KEY.match(self._text, pos, self._stop)
        if bare is None:
            raise UnreadableError(pos, "something that is not a key")
        self._note(f"quoted the key {bare[1][:40]}", pos)
        return bare[1], bare.end(1)

    def _string(self, pos: int, place: Place) -> tuple[str, int]:
        found = read_string(self._text, pos, self._stop, place)
        for note in found.notes:
            self._note(note, pos)
        self._inner_quotes |= found.inner > 0
        return found.value, found.end

    def _value(self, pos: int) -> int:
        mark = self._text[pos]
        frame = self._stack[-1]
        if mark in "{[":
            return self._container(pos)
        if mark in QUOTES:
            place = Place.MEMBER if frame.closer == "}" else Place.ITEM
            value, end = self._string(pos, place)
        else:
            value, end = self._atom(pos)
        frame.put(value)
        return self._done(end)

    def _container(self, pos: int) -> int:
        """Read a container by the strict scanner, else open it.

        A failure there is work for nothing; it may be twice what has been read.
        """
        if self._wasted <= 2 * (pos - self._start) + 1024:
            outcome = attempt_near(self._text, pos)
            if not isinstance(outcome, Failure):
                value, end = outcome
                self._stack[-1].put(value)
                return self._done(end)
            if outcome.at < 0:
                self._wasted += self._stop - pos
            else:
                self._wasted += outcome.at - pos
        return self._open(pos)

    def _atom(self, pos: int) -> tuple[JsonValue, int]:
        found = _ATOM.match(self._text, pos, self._stop)
        if found is None:
            raise UnreadableError(pos, f"an unexpected {self._text[pos]!r}")
        # Where a line ends with the fence, the value is whole.
        if found.end() >= self._stop and not self._text.startswith("\n", self._stop):
            raise UnreadableError(pos, "an unfinished value", ended=True)
        word = found.group()
        if word in LITERALS:
            value = LITERALS[word]
            if not word.islower():
                shown = "null" if value is None else str(value).lower()
                self._note(f"changed {word} to {shown}", pos)
            return value, found.end()
        try:
            return self._number(word, pos), found.end()
        except ValueError as error:
            if isinstance(error, UnreadableError):
                raise
            raise UnreadableError(pos, "a number that is too long") from error

    def _number(self, word: str, pos: int) -> int | float:
        number = _NUMBER.fullmatch(word)
        if number:
            return float(word) if number["float"] else int(word)
        loose = _NUMBER_5.fullmatch(word)
        if loose is None:
            raise UnreadableError(pos, f"the bare word {word[:40]!r}")
        self._note(f"rewrote the number {word[:40]}", pos)
        sign = -1 if loose["sign"] == "-" else 1
        if loose["hex"]:
            return sign * int(loose["hex"], 16)
        if loose["dot"] or loose["bare"] or loose["exponent"]:
            return float(word)
        return int(word)
