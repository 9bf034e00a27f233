r"""The XML tag: `<tool name="N" args='{...}'/>`, and the pair `<tool name="N">{...}</tool>`.

Attributes stand in any order, in either quote. The arguments are JSON: as it is, with
entities (`&quot;`), or with its quotes escaped (`\"`). Where an attribute is well-formed
XML, entities in it mean what XML says; where it is not (a bare `<` or `&`), it is taken
as it stands.
"""

from __future__ import annotations

import html
import re
from typing import Any, Final

from executionkit._wire.common import RawCall
from executionkit.engine._json.strict import (
    Failure,
    attempt,
    attempt_near,
    scan,
    skip_space,
)
from executionkit.tools.parsing.page import Mark, Page

__all__ = ("TAG", "TAG_ANY_CASE", "read_tags")

_OPENING: Final = r"<tool\s++(?=[\w.:-]++\s*+=\s*+[^\s<])"
_OPEN: Final = re.compile(_OPENING)
_OPEN_ANY_CASE: Final = re.compile(_OPENING, re.IGNORECASE)
_USUAL: Final = re.compile(
    r"\s*+<tool name=([\"'])([^\"'<>&\s]++)\1 args=([\"'])(?=\{)", re.IGNORECASE
)
_ATTRIBUTE: Final = re.compile(r"\s*+([\w.:-]++)\s*+=\s*+([\"'])")
_TAIL: Final = re.compile(r"\s*+(?:/?>|[\w.:-]++\s*+=)")
_CLOSE: Final = re.compile(r"\s*+(/?)>")
_END_TAG: Final = re.compile(r"</tool\s*+>", re.IGNORECASE)
_UNTIL: Final = {
    quote: re.compile(rf"(?:[^{quote}\\]|\\.)*+{quote}", re.DOTALL) for quote in "\"'"
}
_LAST: Final = {quote: re.compile(rf"{quote}\s*+/?>") for quote in "\"'"}
_ENTITY: Final = re.compile(
    r"&(?:quot|apos|amp|lt|gt|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});"
)
_BARE: Final = re.compile(rf"<|&(?!{_ENTITY.pattern[1:]})")
_ARGUMENTS: Final = frozenset({"args", "arguments", "input", "parameters"})
_NAMES: Final = ("name", "tool")
_MAX_ATTRIBUTE: Final = 2000
_UNFINISHED: Final = "the tag `<tool ...>` is not complete"
_TWICE: Final = "the tag gives its arguments twice"
_QUOTES: Final = "an attribute of the tag is not in quotes"


def _unescape(text: str) -> str:
    return _ENTITY.sub(lambda found: html.unescape(found[0]), text)


def _unescape_value(value: Any) -> Any:
    if isinstance(value, str):
        return _unescape(value) if "&" in value else value
    if isinstance(value, dict):
        return {_unescape(key): _unescape_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unescape_value(item) for item in value]
    return value


def _as_xml(value: Any, raw: str) -> Any:
    """A value that was read from `raw`, with entities as XML reads them."""
    if "&" not in raw or _BARE.search(raw):
        return value
    return _unescape_value(value)


def _load(text: str) -> Any:
    """The object in a text; None when it is no object."""
    start = skip_space(text, 0)
    outcome = attempt(text, start)
    if isinstance(outcome, Failure) or skip_space(text, outcome[1]) < len(text):
        return None
    value = outcome[0]
    if isinstance(value, str):  # encoded once too often
        outcome = attempt(value, skip_space(value, 0))
        value = None if isinstance(outcome, Failure) else outcome[0]
    return value if isinstance(value, dict) else None


def _decode(raw: str) -> Any:
    """The arguments in `raw`, in any of the ways in which they are escaped; else `raw`."""
    if not raw.strip():
        return raw
    value = _load(raw)
    if value is not None:
        return _as_xml(value, raw)
    plain = _unescape(raw)
    if plain != raw:
        value = _load(plain)
        if value is not None:
            return value
    if '\\"' in plain or "\\'" in plain:
        value = _load(f'"{plain}"')
        if value is None:
            value = _load(plain.replace('\\"', '"').replace("\\'", "'"))
        if value is not None:
            return value
    return raw


class _Tag:
    """One tag while it is read."""

    __slots__ = ("args", "at", "attributes", "page", "problem", "start", "text")

    def __init__(self, page: Page, found: re.Match[str]) -> None:
        self.page: Page = page
        self.text = page.text
        self.start = found.start()
        self.at = found.end()
        self.attributes: dict[str, str] = {}
        self.args: Any = None
        self.problem: str = ""

    def read(self) -> int:
        """Read it; returns where it ends."""
        while not self.problem:
            found = _ATTRIBUTE.match(self.text, self.at)
            if found is None:
                break
            self._read_attribute(found[1].lower(), found[2], found.end())
        given_args = self.args is not None
        name = next((self.attributes[k] for k in _NAMES if self.attributes.get(k)), "")
        if not self.problem:
            close = _CLOSE.match(self.text, self.at)
            if close is None:
                unquoted = self.text[self.at - 1 : self.at] not in {'"', "'"}
                self.problem = _QUOTES if unquoted else _UNFINISHED
            else:
                self.at = close.end()
                if not close[1]:
                    self._read_body()
        if not name and not given_args:
            self.page.broken += bool(self.problem)
            return self.at  # some other tag of that name, or prose
        if self.problem:
            end = max(self.at, self._limit(self.at))
            if self.problem == _TWICE:
                end = self.at
            self.page.fail(self.start, end, self.problem, name=name)
            return self.at
        self.page.broken += isinstance(self.args, str) and bool(self.args.strip())
        given = self.attributes.get
        call_id = given("id") or given("call_id")
        space, key = given("namespace"), given("idempotency_key")
        self.page.add(
            RawCall(call_id, name, self.args, namespace=space, idempotency_key=key)
        )
        return self.at

    def _limit(self, start: int) -> int:
        """Where the next tag opens; the end of the text when there is none."""
        found = _OPEN_ANY_CASE.search(self.text, start)
        return len(self.text) if found is None else found.start()

    def _read_attribute(self, key: str, quote: str, start: int) -> None:
        if key in _ARGUMENTS:
            self._read_arguments(quote, start)
            return
        end = self.text.find(quote, start, start + _MAX_ATTRIBUTE)
        if end < 0 or self.text.find("<tool", start, end) >= 0:
            self.problem, self.at = _UNFINISHED, start
            return
        self.attributes.setdefault(key, _unescape(self.text[start:end]))
        self.at = end + 1

    def _read_arguments(self, quote: str, start: int) -> None:
        if self.args is not None:
            self.problem = _TWICE
        text = self.text
        begin = skip_space(text, start)
        if text[begin : begin + 1] in {"{", "["}:
            outcome = attempt_near(text, begin)
            if not isinstance(outcome, Failure):
                end = skip_space(text, outcome[1])
                if text.startswith(quote, end) and _TAIL.match(text, end + 1):
                    raw = text[start:end]
                    value = outcome[0]
                    good = isinstance(value, dict)
                    self.args = _as_xml(value, raw) if good else raw
                    self.at = end + 1
                    return
        self._read_escaped(quote, start)

    def _read_escaped(self, quote: str, start: int) -> None:
        """Arguments that are no plain JSON: they end at a quote, not at a bracket."""
        text, limit = self.text, self._limit(start)
        found = _UNTIL[quote].match(text, start, limit)
        if found is not None and _TAIL.match(text, found.end()):
            self.args = _decode(text[start : found.end() - 1])
            self.at = found.end()
            if isinstance(self.args, dict) or not self.args.strip():
                return
        last = _LAST[quote].search(text, start, limit)
        if last is not None:
            self.args = _decode(text[start : last.start()])
            self.at = last.start() + 1
        elif self.args is None:
            self.args = text[start:limit]
            self.problem, self.at = _UNFINISHED, start

    def _read_body(self) -> None:
        """What stands between `<tool ...>` and `</tool>`."""
        text = self.text
        begin = skip_space(text, self.at)
        value: Any = None
        if text.startswith("{", begin):
            outcome = attempt_near(text, begin)
            if not isinstance(outcome, Failure):
                end = skip_space(text, outcome[1])
                close = _END_TAG.match(text, end)
                if close is not None:
                    value = _as_xml(outcome[0], text[begin:end])
                    self._take_body(value, close.end())
                    return
        close = _END_TAG.search(text, begin, self._limit(begin))
        if close is None:
            self.problem = "`</tool>` is missing, so the tag is not complete"
            return
        raw = text[begin : close.start()]
        self._take_body(_decode(raw) if raw.strip() else None, close.end())

    def _take_body(self, value: Any, end: int) -> None:
        self.at = end
        if value is None:
            return
        if self.args is not None and self.args != "":
            self.problem = _TWICE
        self.args = value


def _read_usual(text: str, start: int, entries: list[Any]) -> int:
    """Read tags as they are usually written, one behind the other: the short way.

    Returns:
        Where the last of them ends; `start` when there is none.
    """
    while usual := _USUAL.match(text, start):
        begin = usual.end()
        try:
            value, end = scan(text, begin)
        except (StopIteration, ValueError, RecursionError):
            break
        closed = text.startswith("/>", end + 1) and text[end] == usual[3]
        if not closed or text.find("&", begin, end) >= 0:
            break
        entries.append(RawCall(None, usual[2], value))
        start = end + 3
    return start


def read_tags(text: str) -> list[Any] | None:
    """The calls of a text that is such tags and nothing else; None = it is not."""
    entries: list[Any] = []
    end = _read_usual(text, 0, entries)
    return entries if entries and not text[end:].strip() else None


def _read_tag(page: Page, found: re.Match[str]) -> int:
    start = found.start()
    end = _read_usual(page.text, start, page.entries)
    return end if end > start else _Tag(page, found).read()


def _find_any_case(text: str, start: int) -> re.Match[str] | None:
    return _OPEN_ANY_CASE.search(text, start)


def _find(text: str, start: int) -> re.Match[str] | None:
    return _OPEN.search(text, start)


TAG: Final = Mark("xml", "<tool", _find, _read_tag)
"""The tag in small letters, which is found faster."""

TAG_ANY_CASE: Final = Mark("xml", "<tool", _find_any_case, _read_tag)
"""The tag in letters of any case."""
