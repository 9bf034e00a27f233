"""Calls in a text: JSON as a whole, tags, the forms of open models, JSON in prose."""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import Any, Final

from executionkit.engine.json_extraction import loads_json
from executionkit.tools.parsing.forms import FORMS
from executionkit.tools.parsing.page import (
    Mark,
    Page,
    ReadJson,
    has_reasoning,
)
from executionkit.tools.parsing.prose import may_hold_json_calls, read_page
from executionkit.tools.parsing.pythonic import read_bare
from executionkit.tools.parsing.tag import TAG, TAG_ANY_CASE, read_tags

__all__ = (
    "FORM_NAMES",
    "has_form",
    "load_whole",
    "read_forms",
    "read_pythonic",
    "read_text",
)

FORM_NAMES: Final = (TAG.name, *(form.name for form in FORMS))
"""The names of all forms that are not JSON."""

_BLANK: Final = "\ufeff \t\r\n"


def load_whole(text: str) -> Any:
    """The object or array that a text is as a whole; None when it is none."""
    start = text[:64].lstrip(_BLANK)[:1]
    if not start and len(text) > 64:
        start = text.lstrip(_BLANK)[:1]
    if start not in {"{", "["} or not start:
        return None
    try:
        return loads_json(text)
    except ValueError:
        return None


def _marks(text: str, lowered: str, names: Collection[str] | None) -> list[Mark]:
    marks = [
        form
        for form in FORMS
        if form.literal in lowered and (names is None or form.name in names)
    ]
    if TAG.literal in lowered and (names is None or TAG.name in names):
        small = text.count(TAG.literal) == lowered.count(TAG.literal)
        marks.append(TAG if small else TAG_ANY_CASE)
    return marks


def has_form(text: str, name: str) -> bool:
    """Whether a text has the word with which a form begins."""
    return bool(_marks(text, text.lower(), (name,)))


def read_forms(text: str, read_json: ReadJson, names: Collection[str] | None) -> Page:
    """What stands in a text that is not JSON as a whole.

    Args:
        text: What a model wrote.
        read_json: Finds the calls in a JSON value.
        names: The forms to look for, and JSON not at all; None = all forms, and JSON
            where there is none of them; empty = JSON alone.
    """
    page = Page(text, read_json)
    json = may_hold_json_calls(text)
    marks: list[Mark] = []
    reasoning = False
    if "<" in text or "[TOOL_CALLS]" in text:
        lowered = text.lower()
        marks = _marks(text, lowered, names)
        reasoning = has_reasoning(lowered)
    if marks or (json and not names):
        read_page(page, marks, only_forms=bool(names), reasoning=reasoning)
    return page


def read_text(text: str, read_json: ReadJson) -> list[Any]:
    """The calls in a text, in order, with those that cannot be read.

    A text that is JSON as a whole is read as such. Otherwise forms count before JSON in
    prose: a model that calls in a form may also speak of the call in JSON.
    """
    whole = load_whole(text)
    if whole is not None:
        return read_json(whole)
    tags = read_tags(text)
    return read_forms(text, read_json, None).entries if tags is None else tags


def read_pythonic(text: str, tools: Container[str] | None) -> list[Any]:
    """The calls of a text that is `[name(key=value), ...]` as a whole.

    Args:
        text: What a model wrote.
        tools: The first call must be of one of them; None = of any.
    """
    page = Page(text, _no_json)
    read_bare(page, tools)
    return page.entries


def _no_json(_value: object) -> list[Any]:
    return []
