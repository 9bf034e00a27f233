"""JSON out of what models and servers send.

`extract_json` and `find_json` look for an object or an array in a text that may hold
prose, fences, reasoning and remarks; `loads_json` reads data that should be JSON and
nothing else. All of them are deterministic, take time linear in the text, and never
raise `RecursionError`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from executionkit._constants import MAX_JSON_DEPTH
from executionkit.engine._json.marks import OPENER, reasoning_tag
from executionkit.engine._json.repair import LITERALS
from executionkit.engine._json.scan import Scan
from executionkit.engine._json.strict import (
    SHORT,
    Failure,
    attempt,
    attempt_near,
    count_brackets,
    loads_json,
    scan,
    skip_space,
    too_deep,
)
from executionkit.types import JsonValue, sealed

__all__ = ("JsonFinding", "extract_json", "find_json", "loads_json")


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFinding:
    """What `find_json` found. The value is fresh and may be changed."""

    value: JsonValue
    """The answer; None when it is `truncated`."""

    start: int
    """Where its text begins, in characters."""

    end: int
    """The position after its text."""

    repairs: tuple[str, ...] = ()
    """What had to be mended, in words; empty when it is valid JSON as it stands."""

    candidates: int = 1
    """Readable values that were seen, footnotes like `[1]` included."""

    ambiguous: bool = False
    """Another value, different, has the same right to be the answer."""

    truncated: bool = False
    """The answer is cut off at the end of the text, so there is no value."""


_FENCE: Final = re.compile(r"(`{3,}|~{3,})(?:json[\w-]*)?[ \t]*\n?", re.IGNORECASE)
_WORD: Final = re.compile(r"\w+")
_BLANK: Final = "\ufeff \t\r\n"
_PLAIN_REST: Final = re.compile(r"(?!\s*+[,\]}])[^{\[<]*+\Z")
_SHOWN: Final = 300


def extract_json(text: str) -> dict[str, JsonValue] | list[JsonValue]:
    """The object or array that a text holds, strictly parsed.

    When the text is JSON as a whole, that is it. Otherwise all values outside of
    reasoning (`<think>...</think>`) are weighed: content before an echoed JSON Schema,
    both before footnotes like `[1]` and empty brackets in prose; a fence that says
    `json` before another fence, and that before prose; an object before an array; the
    last one before earlier ones. A part of something broken is never the answer, and
    where broken or cut-off JSON has the best claim there is no answer.

    Integers are exact, `NaN` is refused, of duplicate keys the last one counts.

    Args:
        text: What a model wrote.

    Raises:
        ValueError: When there is no valid answer; the message says why, in brief.
    """
    try:
        first = _first_value(text)
        if first is not None and first[3]:
            return first[1]  # type: ignore[no-any-return]
        search = Scan(text, known=first).run()
    except RecursionError:
        # The caller's own stack is almost full; nothing can be said about the text.
        problem = "the call stack is full"
    else:
        if search.best is not None and not search.best.problem:
            return search.best.value  # type: ignore[no-any-return]
        problem = search.problem
    msg = f"no valid JSON object or array in the text: {problem[:_SHOWN]}"
    raise ValueError(msg)


def find_json(
    text: str,
    *,
    repair: bool = False,
    close: bool = False,
    prefer: Callable[[JsonValue], bool] | None = None,
    allow_scalar: bool = False,
) -> JsonFinding | None:
    """Find the answer in a text and tell how certain it is.

    The choice is that of `extract_json`. Parsing comes first, repair second: what is
    valid is never changed, and a repair never guesses (see `JsonFinding.repairs`).

    Args:
        text: What a model wrote.
        repair: Read what is almost JSON as well: literals and quotes of Python,
            comments, trailing or missing commas, unquoted keys, and more.
        close: With `repair`, add brackets that are missing at the end if the last value
            is complete. Something may be lost: ask for it only where that is harmless.
        prefer: Says whether a value is what is wanted (it fits the schema, say); such
            values come before all others.
        allow_scalar: Accept a number, a string, `true`, `false` or `null` that is the
            whole text outside of reasoning, or alone in its last fence.

    Returns:
        None when there is nothing readable. A finding that is `ambiguous` has picked
        the last of several equals; one that is `truncated` has no value.
    """
    try:
        return (
            (_find_scalar(text, repair=repair) if allow_scalar else None)
            or (_find_encoded(text, close=close, prefer=prefer) if repair else None)
            or _find_in(text, repair=repair, close=close and repair, prefer=prefer)
        )
    except RecursionError:
        # The caller's own stack is almost full; nothing can be said about the text.
        return None


def _first_value(text: str) -> tuple[int, JsonValue, int, bool] | None:
    """What the first bracket opens: start, value, end, and True when it is settled.

    It is settled when nothing else in the text could be JSON, reasoning, or something
    around it. That is the common case, so it takes two searches and no more.
    """
    brace = text.find("{")
    bracket = text.find("[") if brace < 0 else text.find("[", 0, brace)
    start = brace if bracket < 0 else bracket
    if start < 0 or text.find("<", 0, start) >= 0:
        return None
    try:
        value, end = scan(text, start)
    except (StopIteration, ValueError, RecursionError):
        return None
    size = end - start
    if size != len(text) and (
        _PLAIN_REST.match(text, end) is None
        or (len(value) == 1 and type(value) is list)  # perhaps a subscript
    ):
        return start, value, end, False
    # A level takes two brackets. The rest of `too_deep` is for what has many.
    if size <= 2 * MAX_JSON_DEPTH or (
        size <= SHORT and count_brackets(text) <= 2 * MAX_JSON_DEPTH
    ):
        return start, value, end, True
    return start, value, end, not too_deep(value, text, start, end)


def _find_in(
    text: str,
    *,
    repair: bool,
    close: bool,
    prefer: Callable[[JsonValue], bool] | None,
) -> JsonFinding | None:
    first = _first_value(text)
    if first is not None and first[3]:
        return JsonFinding(value=first[1], start=first[0], end=first[2])
    search = Scan(text, repair=repair, close=close, prefer=prefer, known=first)
    return _finding(search.run())


def _finding(search: Scan) -> JsonFinding | None:
    best = search.best
    if best is None or (best.problem and not best.cut):
        return None
    return JsonFinding(
        value=None if best.cut else best.value,
        start=best.start,
        end=best.end,
        repairs=best.repairs,
        candidates=search.choice.candidates,
        ambiguous=search.ambiguous and not best.cut,
        truncated=best.cut,
    )


def _find_encoded(
    text: str, *, close: bool, prefer: Callable[[JsonValue], bool] | None
) -> JsonFinding | None:
    """Find the answer in a text that is a JSON string as a whole."""
    start = len(text) - len(text.lstrip(_BLANK))
    if not text.startswith('"', start):
        return None
    outcome = attempt(text, start)
    if isinstance(outcome, Failure) or text[outcome[1] :].strip(_BLANK):
        return None
    inner = find_json(outcome[0], repair=True, close=close, prefer=prefer)
    if inner is None:
        return None
    note = f"decoded the string that holds the JSON, at {start}"
    return replace(inner, start=start, end=outcome[1], repairs=(note, *inner.repairs))


def _find_scalar(text: str, *, repair: bool) -> JsonFinding | None:
    visible = 0
    tag = reasoning_tag(text, 0)
    while tag:
        visible = tag.end() if tag["close"] else len(text)
        tag = reasoning_tag(text, tag.end())
    for start in sorted({0, visible}):
        found = _scalar_at(text, start, repair=repair)
        if found and not text[found.end :].strip(_BLANK):
            return found
    last: JsonFinding | None = None
    for fence in _FENCE.finditer(text, visible):
        found = _scalar_at(text, fence.end(), repair=repair)
        if found and text.startswith(fence[1], skip_space(text, found.end)):
            last = found
    return None if last and OPENER.search(text, last.end) else last


def _scalar_at(text: str, start: int, *, repair: bool) -> JsonFinding | None:
    begin = skip_space(text, start)
    if text[begin : begin + 1] in {"{", "["}:
        return None
    outcome = attempt_near(text, begin)
    if not isinstance(outcome, Failure):
        return JsonFinding(value=outcome[0], start=begin, end=outcome[1])
    word = _WORD.match(text, begin)
    if not repair or word is None or word.group() not in LITERALS:
        return None
    value = LITERALS[word.group()]
    note = f"changed {word.group()} to {json.dumps(value)} at {begin}"
    return JsonFinding(value=value, start=begin, end=word.end(), repairs=(note,))
