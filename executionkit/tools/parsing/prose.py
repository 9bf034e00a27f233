"""Calls as JSON in prose or in fences, any number of them.

Each object or array in the text is read once. What is plain data is passed over as a
whole, so that nothing inside of it is taken for a call. Where JSON is broken, reading
goes on inside of it: what stands beside a broken call survives, and the broken one is
reported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from executionkit.engine._json.marks import OPENER
from executionkit.engine._json.strict import (
    TOO_DEEP,
    Failure,
    attempt_near,
    skip_tokens,
)
from executionkit.tools.parsing.page import Mark, Page, read_marks

__all__ = ("may_hold_json_calls", "read_page")

_WORDS: Final = (
    '"name"',
    '"tool',
    '"function',
    '"call_id"',
)
_ENTRY: Final = re.compile(
    r'\{\s*+"(?:id|type|index|name|tool|tool_name|function|functionCall|call_id)"\s*+:'
)
_LIST: Final = re.compile(
    r'\{\s*+"(?:tool_calls|function_call|choices|output|message|role|content)"\s*+:'
)
_SIGN: Final = re.compile(
    r'"(?:arguments|args|parameters|input|function|functionCall|tool_calls'
    r'|function_call|tool)"\s*+:'
)
_NAMED: Final = re.compile(r'"(?:name|tool)"\s*+:\s*+"')
_MAX_FAILURES: Final = 600
_MAX_DEEP: Final = 3
"""Times that something nested without end is looked into."""

_ROOM: Final = 50_000
_SIGN_AHEAD: Final = 300
_NOT_JSON: Final = "the call is not valid JSON: {}"
_NOT_WHOLE: Final = "the call is not complete"


def may_hold_json_calls(text: str) -> bool:
    """Whether a text has a word without which no JSON is a call."""
    return any(word in text for word in _WORDS)


class _Found:
    """Calls in one value, or a broken object that looks like a call."""

    __slots__ = ("at", "calls", "is_list", "start", "why")

    def __init__(self, start: int, calls: list[Any], why: str = "") -> None:
        self.start: int = start
        self.calls: list[Any] = calls
        self.why: str = why
        self.at: int = -1
        self.is_list: bool = False


class _Search:
    """The state of one search; what it finds stands on the page as `_Found`."""

    __slots__ = ("deep", "effort", "failures", "open_until", "page")

    def __init__(self, page: Page) -> None:
        self.page: Page = page
        self.effort = 4 * len(page.text) + _ROOM
        self.failures: int = 0
        self.deep: int = 0
        self.open_until: int = -1

    def find(self, text: str, start: int) -> re.Match[str] | None:
        if self.failures <= _MAX_FAILURES:
            return OPENER.search(text, start)
        if self.failures <= 2 * _MAX_FAILURES:
            return _ENTRY.search(text, start)
        if _SIGN.search(text, start):
            self.page.stopped = start
        return None

    def read(self, page: Page, found: re.Match[str]) -> int:
        text = page.text
        at = found.start() if found[0][-1] == ":" else found.end() - 1
        if at < self.open_until and _is_member(text, at):
            self.failures += 1
            return at + 1  # a part of the broken call around it
        outcome = attempt_near(text, at)
        if isinstance(outcome, Failure):
            return self._fail(at, outcome)
        calls = page.read_json(outcome[0])
        if calls:
            page.entries.append(_Found(at, calls))
        return outcome[1]

    def _fail(self, at: int, failure: Failure) -> int:
        page = self.page
        self.failures += 1
        is_entry = _ENTRY.match(page.text, at) is not None
        self.deep += failure.reason == TOO_DEEP
        if failure.reason == TOO_DEEP and self.deep <= _MAX_DEEP and not is_entry:
            return at + 1
        stop = failure.at if failure.at >= 0 else skip_tokens(page.text, at)[0]
        stop = max(stop, at + 1)
        self.effort -= stop - at
        if is_entry or _LIST.match(page.text, at):
            # Before the place where reading stopped, or soon after it in what has a name.
            named = _NAMED.search(page.text, at, stop + _SIGN_AHEAD)
            sign = _SIGN.search(page.text, at, stop + bool(named) * _SIGN_AHEAD)
            if sign is None and failure.reason == TOO_DEEP:
                return stop  # there is no call inside of it
            # In a list of calls what is cut off early was a call too.
            if sign or (page.entries and failure.cut and is_entry):
                broken = _Found(at, [], _NOT_JSON.format(failure.reason))
                broken.why = _NOT_WHOLE if failure.cut else broken.why
                broken.at, broken.is_list = failure.at, not is_entry
                page.entries.append(broken)
                page.broken += 1
                if is_entry:
                    self.open_until = stop
        inside = self.effort > 0 and (
            failure.reason != TOO_DEEP or self.deep <= _MAX_DEEP
        )
        return at + 1 if inside else stop


def _settle(page: Page) -> None:
    """Turn what was found into entries, now that it is known what follows what."""
    found, page.entries = page.entries, []
    for place, item in enumerate(found):
        following = found[place + 1] if place + 1 < len(found) else None
        if item.calls:
            page.entries += item.calls
        elif not (item.is_list and following is not None):
            end = len(page.text)
            if following is not None:
                end = following.start
            fence = page.text.find("```", item.start, end)
            end = fence if fence >= 0 else end
            page.fail(item.start, end, item.why, at=item.at)


def _is_member(text: str, at: int) -> bool:
    """Whether what begins at `at` is the value of a key."""
    before = at - 1
    while before >= 0 and text[before] in " \t\r\n":
        before -= 1
    return before >= 0 and text[before] == ":"


def read_page(
    page: Page, marks: Sequence[Mark], *, only_forms: bool, reasoning: bool
) -> None:
    """Read what stands in a text in some forms, or else as JSON, outside of reasoning.

    A form inside of a JSON object is a part of that object. Where a form is found, JSON
    beside it is only spoken of.

    Args:
        page: The text, and where what is found is put.
        marks: The forms that may be in it.
        only_forms: Calls as JSON do not count.
        reasoning: Whether it may have blocks of reasoning.
    """
    search = _Search(page)
    json = Mark("json", "", search.find, search.read)
    read_marks(page, [*marks, json], reasoning=reasoning)
    in_forms = [entry for entry in page.entries if not isinstance(entry, _Found)]
    if in_forms or only_forms:
        page.entries = in_forms
    else:
        _settle(page)
    page.tell_stop()
