"""Calls as Python writes them: the texts of Llama, with and without a word of their own.

| form | a call when |
|---|---|
| `<|python_tag|>` or `<|python_start|>`, then `[f(a=1), g()]` | always |
| the same, then `f.call(a=1)` or `f(a=1)` | it can be read: the rest is program text |
| the same, then JSON objects, `;` between them | always |
| `[f(a=1), g()]` alone | it is the whole text, and the first name is that of a tool |

A list of calls in prose, or one of names that nobody knows, is only spoken of.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

from executionkit._wire.common import RawCall
from executionkit.tools.parsing.literals import (
    CALL_NAME,
    LiteralError,
    LiteralReader,
    skip_blank,
)
from executionkit.tools.parsing.page import MAX_BROKEN, Mark, Page

__all__ = ("LLAMA", "read_bare")

_MARK: Final = re.compile(
    rf"<\|python_(?:tag|start)\|>\s*+(?=\{{\s*+[\"}}]|\[\s*+(?:\{{|{CALL_NAME}\s*+\()"
    rf"|{CALL_NAME}\s*+\()"
)
_BARE: Final = re.compile(rf"\s*+(?=\[\s*+({CALL_NAME})\s*+\()")
_SURE: Final = re.compile(rf"({CALL_NAME})(?<=\.call)\(\s*+[^\W\d]\w*+\s*+=(?!=)")
_OF_PROGRAM: Final = 20
"""Words that looking at a program costs, so that many of them are not looked at."""

_NOT_WHOLE: Final = "it is not complete"
_NO_CALL: Final = "no call begins here: write `name(key=value)`"


def _read_list(page: Page, start: int, stop: int, *, marked: bool) -> int:
    """Read `[f(a=1), g()]`; what cannot be read is one problem, the others are calls.

    Args:
        page: The text, and where what is found is put.
        start: The position of the bracket.
        stop: Where it must have ended.
        marked: What is no call at all is a problem, too.

    Returns:
        The position after it, or after all that could belong to it.
    """
    reader = LiteralReader(page)
    text, at = page.text, start + 1
    while page.broken <= MAX_BROKEN:
        at = skip_blank(text, at)
        if text.startswith("]", at):
            return at + 1
        name = reader.name(at)
        if name is None:
            whole = at < stop
            if whole and not marked:
                return at
            page.fail(at, stop, _NO_CALL if whole else _NOT_WHOLE, at=at)
            return max(at, stop)
        at = _read_one(page, reader, name, stop)
        if at < 0:
            return stop
        at = skip_blank(text, at)
        if text.startswith(",", at):
            at += 1
        elif not text.startswith("]", at):
            return at
    page.stopped = at
    return at


def _read_one(page: Page, reader: LiteralReader, name: re.Match[str], stop: int) -> int:
    """Read one call of a list; -1 when it has no end."""
    try:
        arguments, end = reader.arguments(name.end())
    except LiteralError as error:
        why = _NOT_WHOLE if error.cut else str(error)
        end = reader.skip(name.end(), stop)
        page.fail(
            name.start(1), stop if end < 0 else end, why, name=name[1], at=error.at
        )
        return end
    page.add(RawCall(None, name[1], arguments))
    return end


def _read_marked(page: Page, found: re.Match[str]) -> int:
    text, start = page.text, found.end()
    if page.words < 0:
        page.stopped = found.start()
        return start
    stop = text.find("<|", start)
    stop = len(text) if stop < 0 else stop
    if text.startswith("{", start):
        return page.read_objects(start, stop)[0]
    if not text.startswith("[", start):
        return _read_expressions(page, start, stop)
    if text.startswith("{", skip_blank(text, start + 1)):
        return page.read_objects(start, stop)[0]
    return _read_list(page, start, stop, marked=True)


def _read_expressions(page: Page, start: int, stop: int) -> int:
    """Read `f.call(a=1); g(b=2)`, when that is all there is."""
    reader = LiteralReader(page)
    text, at = page.text, start
    found: list[RawCall] = []
    while at < stop:
        name = reader.name(at)
        if name is None:
            return start
        try:
            arguments, after = reader.arguments(name.end())
        except LiteralError as error:
            sure = _SURE.match(text, at)
            if sure is None:
                page.words -= _OF_PROGRAM
                return start  # a program
            page.entries += found
            why = _NOT_WHOLE if error.cut else str(error)
            called = sure[1].removesuffix(".call")
            page.fail(at, stop, why, name=called, at=error.at)
            return stop
        found.append(RawCall(None, name[1].removesuffix(".call"), arguments))
        at = skip_blank(text, after)
        if text.startswith(";", at):
            at = skip_blank(text, at + 1)
        stop = max(stop, at)
        if text.startswith("<|", at):
            break
    page.entries += found
    return at


LLAMA: Final = Mark("llama", "<|python_", _MARK.search, _read_marked)
"""What follows a word of its own."""


def read_bare(page: Page, tools: Container[str] | None) -> None:
    """Read a text that is a list of calls as a whole, and nothing else.

    Args:
        page: The text, and where what is found is put.
        tools: Names of tools; the first call must be of one of them. None = of any.
    """
    found = _BARE.match(page.text)
    if found is None or (tools is not None and found[1] not in tools):
        return
    end = _read_list(page, found.end(), len(page.text), marked=False)
    rest = skip_blank(page.text, end)
    whole = rest >= len(page.text) or page.text.startswith("<|", rest)
    if not whole and page.stopped < 0:
        page.entries.clear()
        return
    page.tell_stop()
