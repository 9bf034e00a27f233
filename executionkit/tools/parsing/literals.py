"""Calls and values as Python writes them: `name(key="text", n=3, deep=[1, {"a": None}])`.

Nothing is ever evaluated. What is read are literals that JSON can say too: texts, finite
numbers, `True`, `False`, `None` (also as JSON spells them), lists, tuples (as lists) and
dicts with texts as keys. Everything else, a name, an operator, an f-string, is an error.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Any, Final, NoReturn

from executionkit._constants import MAX_JSON_DEPTH
from executionkit.engine._json.strict import Failure, attempt_near
from executionkit.tools.parsing.page import MAX_WORDS, Page

__all__ = ("CALL_NAME", "LiteralError", "LiteralReader", "skip_blank")

CALL_NAME: Final = r"[A-Za-z_][\w.-]{0,199}+"
"""The name of a tool in front of a bracket."""

_STRING: Final = (
    r'(?:"""(?:[^"\\]++|\\.|"(?!""))*+"""|\'\'\'(?:[^\'\\]++|\\.|\'(?!\'\'))*+\'\'\''
    r'|"(?!"")(?:[^"\\\n]++|\\.)*+"|\'(?!\'\')(?:[^\'\\\n]++|\\.)*+\')'
)
_TOKEN: Final = re.compile(
    rf"\s*+(?:(?P<string>{_STRING})"
    r"|(?P<number>[+-]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+)"
    r"|(?P<word>[^\W\d]\w*+)|(?P<sign>[\[\](){},:]))",
    re.DOTALL,
)
_NAME: Final = re.compile(rf"\s*+({CALL_NAME})\s*+\(")
_KEY: Final = re.compile(r"\s*+([^\W\d]\w*+)\s*+=(?!=)")
_SPACE: Final = re.compile(r"\s*+")
_BRACKETS: Final = re.compile(rf"[\[({{]++|[\])}}]++|{_STRING}|[\"']", re.DOTALL)
_WORDS: Final = {
    "False": False,
    "None": None,
    "True": True,
    "false": False,
    "null": None,
    "true": True,
}
_ESCAPE: Final = re.compile(
    r"\\(?:(\r?\n)|([\\'\"abfnrtv])|([0-7]{1,3}+)|x([0-9a-fA-F]{2})"
    r"|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([xuUN])|.)",
    re.DOTALL,
)
_LETTERS: Final = {
    **{char: char for char in "\\'\""},
    **dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)),
}
_SURROGATES: Final = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")
_HOW: Final = "write its arguments as `key=value` with plain values"


class LiteralError(ValueError):
    """It is no literal.

    Args:
        reason: Why, in words for the model.
        at: Where reading stopped.
        cut: The text ended too early.
    """

    def __init__(self, reason: str, at: int, *, cut: bool = False) -> None:
        super().__init__(reason)
        self.at = at
        self.cut = cut


class LiteralReader:
    """Reads calls on a page.

    Args:
        page: The text, and how many words of it may still be read.
    """

    __slots__ = ("_page", "text")

    def __init__(self, page: Page) -> None:
        self._page = page
        self.text: str = page.text

    def name(self, at: int) -> re.Match[str] | None:
        """The name of a call that begins at `at`; the match ends behind its bracket."""
        return _NAME.match(self.text, at)

    def arguments(self, start: int) -> tuple[dict[str, Any], int]:
        """Read `key=value, ...)`.

        Args:
            start: The position after the opening bracket.

        Returns:
            The arguments, and the position after the closing bracket.

        Raises:
            LiteralError: When it is anything else.
        """
        text, at = self.text, start
        found: dict[str, Any] = {}
        while True:
            at = skip_blank(text, at)
            if text.startswith(")", at):
                return found, at + 1
            key = _KEY.match(text, at)
            if key is None:
                self._fail(f"an argument has no name; {_HOW}", at)
            if key[1] in found:
                self._fail(f"the argument `{key[1]}` is given twice", at)
            found[key[1]], at = self._argument(key.end())
            at = self._comma(at, ")")

    def skip(self, start: int, stop: int) -> int:
        """The position after the bracket that closes what opens before `start`.

        -1 when there is none before `stop`.
        """
        depth = 1
        page = self._page
        for found in _BRACKETS.finditer(self.text, start, stop):
            page.words -= 1
            run = found[0]
            if page.words < 0 or run in {'"', "'"}:
                return -1  # a text that never ends
            if run[0] in "[({":
                depth += len(run)
            elif run[0] in "])}":
                if len(run) >= depth:
                    return found.start() + depth
                depth -= len(run)
        return -1

    def _argument(self, at: int) -> tuple[Any, int]:
        at = skip_blank(self.text, at)
        if self.text[at : at + 1] in {"[", "{"}:
            # Most values are JSON as well, which is read a hundred times as fast.
            outcome = attempt_near(self.text, at)
            if not isinstance(outcome, Failure):
                return outcome
            if outcome.cut:
                self._fail("it is not complete", len(self.text))
        return self._value(at, MAX_JSON_DEPTH)

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        token = self._token(at)
        end = token.end()
        kind = token.lastgroup
        word = token[kind or 0]
        if kind == "string":
            return self._text_of(word, end), end
        if kind == "number":
            return self._number(word, end), end
        if kind == "word":
            if word not in _WORDS:
                self._fail(f"`{word[:60]}` is no plain value; {_HOW}", end - len(word))
            return _WORDS[word], end
        if word in "])},:":
            self._fail("a value is missing", end - 1)
        if not depth:
            self._fail(f"nested deeper than {MAX_JSON_DEPTH} levels", end)
        if word == "{":
            return self._dict(end, depth - 1)
        return self._list(end, "]" if word == "[" else ")", depth - 1)

    def _list(self, at: int, close: str, depth: int) -> tuple[Any, int]:
        items: list[Any] = []
        comma = False
        while True:
            at = skip_blank(self.text, at)
            if self.text.startswith(close, at):
                if close == ")" and len(items) == 1 and not comma:
                    return items[0], at + 1  # a value in brackets
                return items, at + 1
            item, after = self._value(at, depth)
            items.append(item)
            at = self._comma(after, close)
            comma = self.text.startswith(",", at - 1)

    def _dict(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while True:
            at = skip_blank(self.text, at)
            if self.text.startswith("}", at):
                return found, at + 1
            key, after = self._value(at, depth)
            if type(key) is not str:
                self._fail("the keys of a dict must be texts", at)
            after = skip_blank(self.text, after)
            if not self.text.startswith(":", after):
                self._fail("a `:` is missing", after)
            found[key], at = self._value(after + 1, depth)
            at = self._comma(at, "}")

    def _comma(self, at: int, close: str) -> int:
        """Step over the comma behind an item; the closing bracket may come, too."""
        at = skip_blank(self.text, at)
        if self.text.startswith(",", at):
            return at + 1
        if not self.text.startswith(close, at):
            self._fail(f"`,` or `{close}` is missing", at)
        return at

    def _token(self, at: int) -> re.Match[str]:
        self._page.words -= 1
        if self._page.words < 0:
            msg = f"the calls of a text have more than {MAX_WORDS} words"
            raise LiteralError(msg, at)
        found = _TOKEN.match(self.text, at)
        if found is None:
            at = skip_blank(self.text, at)
            if self.text[at : at + 1] in {'"', "'"}:
                self._fail("a text has no end", len(self.text))
            self._fail(f"no plain value begins here; {_HOW}", at)
        return found

    def _text_of(self, quoted: str, end: int) -> str:
        size = 3 if quoted[:3] in {'"""', "'''"} else 1
        text = quoted[size:-size]
        if "\\" not in text:
            return text

        def char(found: re.Match[str]) -> str:
            line, letter, octal, *codes, unknown = found.groups()
            if line is not None:
                return ""
            if letter is not None:
                return _LETTERS[letter]
            if octal is not None:
                return chr(int(octal, 8))
            code = next(filter(None, codes), None)
            if code is not None and int(code, 16) <= 0x10FFFF:
                return chr(int(code, 16))
            if code is not None or unknown is not None:
                self._fail(f"`{found[0]}` means no character", end - len(quoted))
            return found[0]

        text = _ESCAPE.sub(char, text)
        return _SURROGATES.sub(_joined, text)

    def _number(self, word: str, end: int) -> int | float:
        digits = word.lstrip("+-")
        if digits.isdigit():
            if digits[0] == "0" and digits.strip("0"):
                self._fail("a number begins with 0", end)
            try:
                return int(word)
            except ValueError:
                self._fail("a number has too many digits", end)
        value = float(word)
        if not isfinite(value):
            self._fail("a number is too great", end)
        return value

    def _fail(self, reason: str, at: int) -> NoReturn:
        raise LiteralError(reason, at, cut=at >= len(self.text))


def skip_blank(text: str, start: int) -> int:
    """The position of the first character from `start` on that is no white space."""
    return _SPACE.match(text, start).end()  # type: ignore[union-attr]


def _joined(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16", "surrogatepass").decode("utf-16")
