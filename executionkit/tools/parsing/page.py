"""Reading a text once from its beginning to its end: a page, and marks on it.

Each kind of mark knows where it stands next. The nearest one is read, reading goes on
behind it, and so the time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from executionkit._wire.common import RawCall
from executionkit.engine._json.marks import reasoning_tag
from executionkit.engine._json.strict import Failure, attempt_near, skip_space

__all__ = (
    "MAX_BROKEN",
    "MAX_WORDS",
    "Mark",
    "Page",
    "ReadJson",
    "has_reasoning",
    "read_marks",
)

MAX_BROKEN: Final = 100
"""Broken calls after which the rest of a text is not read; the last problem says so."""

ReadJson: TypeAlias = Callable[[object], list[Any]]
"""From a JSON value to the calls in it."""

MAX_WORDS: Final = 10_000
"""Words and brackets of program text that are read at most; JSON does not count."""

_TOO_MANY: Final = "too many broken calls; the rest of the text was not read"
_SHOWN: Final = 4000
_NAME: Final = re.compile(r'"(?:name|tool)"\s*+:\s*+"([^"\\\s]{1,200}+)"')
_ID: Final = re.compile(r'"(?:call_)?id"\s*+:\s*+"([^"\\\s]{1,200}+)"')
_THOUGHTS: Final = ("think", "thought", "reasoning", "scratchpad")


class Page:
    """A text while it is read, and what was found on it."""

    __slots__ = (
        "_partners",
        "broken",
        "entries",
        "read_json",
        "stopped",
        "text",
        "words",
    )

    def __init__(self, text: str, read_json: ReadJson) -> None:
        self.text: str = text
        self.read_json: ReadJson = read_json
        self.entries: list[Any] = []
        self.broken: int = 0
        self.stopped: int = -1
        """Where reading was given up; -1 = it was not."""
        self.words: int = MAX_WORDS
        """Words of program text that may still be read."""
        self._partners: dict[object, dict[int, int]] = {}

    def add(self, call: RawCall) -> None:
        self.entries.append(call)

    def fail(
        self,
        start: int,
        end: int,
        problem: str,
        *,
        name: object = None,
        call_id: object = None,
        at: int = -1,
    ) -> None:
        """Report a call that cannot be read.

        Args:
            start: Where its text begins.
            end: The position after it.
            problem: Why, in words for the model.
            name: Its name; None = whatever the text says.
            call_id: Its id; None = whatever the text says.
            at: Where reading stopped; -1 = unknown.
        """
        self.broken += 1
        raw = self.text[start:end]
        head = raw[:_SHOWN]
        if name is None and (found := _NAME.search(head)):
            name = found[1]
        if call_id is None and (found := _ID.search(head)):
            call_id = found[1]
        position = at - start if at >= start else None
        self.entries.append(
            RawCall(call_id, name, raw, problem=problem, position=position)
        )

    def tell_stop(self) -> None:
        """Report that the rest was not read, when it was not."""
        if self.stopped >= 0:
            end = len(self.text)
            self.fail(self.stopped, end, _TOO_MANY, name="", call_id="")

    def partners(
        self, begin: re.Pattern[str], end: re.Pattern[str]
    ) -> Mapping[int, int]:
        """Where what begins somewhere has ended, by its start; like brackets, nested.

        Looked up once for each kind of beginning. Both patterns begin with `<`.
        """
        known = self._partners.get(begin)
        if known is None:
            known = self._partners[begin] = {}
            if end.search(self.text) is None:
                return known
            opened: list[int] = []
            both = re.compile(f"<(?:({begin.pattern[1:]})|{end.pattern[1:]})")
            for found in both.finditer(self.text):
                if found[1] is not None:
                    opened.append(found.start())
                elif opened:
                    known[opened.pop()] = found.end()
        return known

    def read_objects(self, start: int, end: int) -> tuple[int, str]:
        """Read the calls in JSON values that stand one behind the other.

        Args:
            start: Where the first bracket is.
            end: Where the text of a broken value is taken to end.

        Returns:
            The position after the last value, and what was wrong with it.
        """
        at = start
        while True:
            outcome = attempt_near(self.text, at)
            if isinstance(outcome, Failure):
                why = f"it is not valid JSON: {outcome.reason}"
                if outcome.cut or outcome.at >= len(self.text):
                    why = "it is not complete"
                self.fail(at, max(end, at + 1), why, at=outcome.at)
                return max(end, at + 1), why
            value, after = outcome
            found = self.read_json(value)
            if found:
                self.entries += found
            else:
                self.fail(at, after, "there is no name and no arguments in it")
            at = skip_space(self.text, after)
            if self.text[at : at + 1] in {";", ","}:
                at = skip_space(self.text, at + 1)
            if self.text[at : at + 1] != "{":
                return after, ""


Find: TypeAlias = Callable[[str, int], "re.Match[str] | None"]


class Mark(NamedTuple):
    """One kind of beginning of a call in a text."""

    name: str
    literal: str
    """What is in every text that has such a mark; compared in lower case."""

    find: Find
    read: Callable[[Page, re.Match[str]], int]
    """Read what begins at a match; returns where reading goes on."""


def has_reasoning(lowered: str) -> bool:
    """Whether a text in lower case may have a block of reasoning."""
    return any(word in lowered for word in _THOUGHTS)


def _read_reasoning(page: Page, found: re.Match[str]) -> int:
    if found["close"]:
        # It was opened before the text begins, by the template of the model.
        page.entries.clear()
        return found.end()
    tag: re.Match[str] | None = found
    while tag is not None and not tag["close"]:
        tag = reasoning_tag(page.text, tag.end())
    return len(page.text) if tag is None else tag.end()


_REASONING: Final = Mark("", "", reasoning_tag, _read_reasoning)


def read_marks(page: Page, marks: Sequence[Mark], *, reasoning: bool) -> None:
    """Read all that begins with one of `marks`, outside of reasoning.

    Args:
        page: Where what is found is put.
        marks: Those that may be in the text.
        reasoning: Whether there may be blocks of reasoning.
    """
    text = page.text
    kinds = [_REASONING, *marks] if reasoning else list(marks)
    ahead = [(mark, mark.find(text, 0)) for mark in kinds]
    position = 0
    while True:
        best: re.Match[str] | None = None
        chosen: Mark | None = None
        for place, (mark, found) in enumerate(ahead):
            if found is not None and found.start() < position:
                found = mark.find(text, position)  # noqa: PLW2901 - passed over
                ahead[place] = (mark, found)
            if found is not None and (best is None or found.start() < best.start()):
                best, chosen = found, mark
        if best is None or chosen is None:
            return
        position = max(chosen.read(page, best), best.end())
        if page.broken > MAX_BROKEN:
            page.stopped = position
        if page.stopped >= 0:
            return
