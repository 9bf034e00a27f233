"""The text forms of open models: each begins with a word of its own.

| name | form |
|---|---|
| hermes | `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen) |
| function | `<function=name>{...}</function>` (Llama 3); the same in `tagged` |
| mistral | `[TOOL_CALLS] [{...}]`, `[TOOL_CALLS]name[ARGS]{...}`, `[TOOL_CALLS]name{...}` |
| deepseek | call begin, name, separator, `{...}`, call end, each a word of its own |
| kimi | `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>` |
| harmony | `<|channel|>commentary to=functions.name<|message|>{...}<|call|>` (gpt-oss) |

`tagged` has those with a tag for each argument, `pythonic` those that look like Python.
"""

from __future__ import annotations

import re
from typing import Final

from executionkit._wire.common import RawCall
from executionkit.engine._json.strict import Failure, attempt_near, skip_space
from executionkit.tools.parsing.page import MAX_BROKEN, Mark, Page
from executionkit.tools.parsing.pythonic import LLAMA
from executionkit.tools.parsing.tagged import FUNCTION, TAGGED, read_parameters

__all__ = ("FORMS",)

_OBJECT: Final = r"\{\s*+[\"}]"
_HERMES_END: Final = "</tool_call>"
_FUNCTION_END: Final = "</function>"

_HERMES: Final = re.compile(rf"<tool_call>\s*+(?={_OBJECT}|\[\s*+{_OBJECT})")
_FUNCTION: Final = re.compile(r"<function=[\"']?([^<>\s\"'{]{1,200}+)[\"']?>\s*+")
_MISTRAL: Final = re.compile(
    rf"\[TOOL_CALLS\]\s*+(?:(?=\[\s*+{_OBJECT}|{_OBJECT})"
    rf"|([\w.:-]{{1,200}}+)\s*+(?:\[CALL_ID\]\s*+([^\[\]\s{{]{{1,200}}+)\s*+)?"
    rf"(?:\[ARGS\]\s*+(?=\{{)|(?={_OBJECT})))"
)
_DEEPSEEK: Final = re.compile(
    r"<｜tool▁call▁begin｜>\s*+(?:function<｜tool▁sep｜>\s*+(?!\{))?"  # noqa: RUF001
    r"([^<\s｜{]{1,200}+)\s*+"  # noqa: RUF001
    r"(?:<｜tool▁sep｜>\s*+)?(?:```(?:json)?\s*+)?"  # noqa: RUF001
)
_KIMI: Final = re.compile(
    r"<\|tool_call_begin\|>\s*+([^\s<|]{1,200}+)\s*+<\|tool_call_argument_begin\|>\s*+"
)
_KIMI_NAME: Final = re.compile(r"(?:functions\.)?(.+?)(?::[0-9]+)?")
_HARMONY: Final = re.compile(
    r"<\|(?P<kind>start|channel)\|>(?P<head>[^<]{0,400}+)"
    r"(?:<\|channel\|>(?P<channel>[^<]{0,400}+))?+"
    r"(?:<\|constrain\|>[^<]{0,40}+)?+<\|message\|>\s*+"
)
_RECIPIENT: Final = re.compile(r"\bto=(?:functions\.)?([^\s<]{1,200}+)")
_PEOPLE: Final = frozenset({"all", "assistant", "user"})
_HARMONY_END: Final = re.compile(r"<\|(?:call|end|start|channel|return)\|>")
_MORE_JSON: Final = frozenset('{["}],:')
_UNFINISHED: Final = "it is not complete: `{}` is missing"


def _ahead(text: str, close: str, start: int, *stops: str) -> tuple[int, bool]:
    """Where `close` stands before any of `stops`, and True; else where those begin."""
    limit = len(text)
    for stop in stops:
        at = text.find(stop, start, limit)
        limit = limit if at < 0 else at
    end = text.find(close, start, limit) if close else -1
    return (limit, not close) if end < 0 else (end, True)


def _read_hermes(page: Page, found: re.Match[str]) -> int:
    text, start = page.text, found.end()
    outcome = attempt_near(text, start)
    end = start
    if isinstance(outcome, Failure):
        end, closed = _ahead(text, _HERMES_END, start, "<tool_call>")
        if not closed:
            why = _UNFINISHED.format(_HERMES_END)
            page.fail(start, end, why, at=outcome.at)
            return end
    after, why = page.read_objects(start, end)
    if why:
        return after
    rest = skip_space(text, after)
    # The end is missing where it is the text at which a server stops.
    if rest >= len(text) or text.startswith("<", rest):
        return after
    page.entries.pop()
    end, _ = _ahead(text, _HERMES_END, after, "<tool_call>")
    page.fail(start, end, "more text follows the object", at=rest)
    return end


def _body(
    page: Page,
    start: int,
    close: str,
    *stops: str,
    name: str,
    call_id: str | None = None,
) -> int:
    """Read an object of arguments and the word that closes it."""
    text = page.text
    if text.startswith("{", start):
        outcome = attempt_near(text, start)
        if isinstance(outcome, Failure):
            at, why = outcome.at, f"arguments were not valid JSON: {outcome.reason}"
        else:
            at = skip_space(text, outcome[1])
            if text[at : at + 1] not in _MORE_JSON or text.startswith(stops, at):
                page.add(RawCall(call_id, name, outcome[0]))
                return outcome[1]
            why = "more text follows the arguments"
    else:
        at, why = -1, "arguments must be a JSON object"
    end, closed = _ahead(text, close, start, *stops)
    raw = text[start:end]
    if closed and not raw.strip():
        page.add(RawCall(call_id, name))
    else:
        if not closed:
            why = _UNFINISHED.format(close)
        page.fail(start, end, why, name=name, call_id=call_id, at=at)
    return end


def _read_function(page: Page, found: re.Match[str]) -> int:
    text, start = page.text, found.end()
    if text.startswith("<parameter=", start):
        return read_parameters(page, FUNCTION, found[1], found.start(), start)
    if not text.startswith("{", start):
        end, closed = _ahead(text, _FUNCTION_END, start, "<function=")
        if not closed and text[start:end].strip():
            return start  # a text that speaks of it
    return _body(page, start, _FUNCTION_END, "<function=", name=found[1])


def _read_mistral(page: Page, found: re.Match[str]) -> int:
    text, start = page.text, found.end()
    if found[1]:
        stops = ("[TOOL_CALLS]", "</s>")
        return _body(page, start, "", *stops, name=found[1], call_id=found[2])
    end, _ = _ahead(text, "", start, "[TOOL_CALLS]")
    if text.startswith("{", start):
        return page.read_objects(start, end)[0]
    outcome = attempt_near(text, start)
    if not isinstance(outcome, Failure):
        page.entries += page.read_json(outcome[0])
        return outcome[1]
    # One of them is broken: read them one by one, so that the others survive.
    at = skip_space(text, start + 1)
    while text.startswith("{", at) and page.broken <= MAX_BROKEN:
        one = attempt_near(text, at)
        if isinstance(one, Failure):
            stop = _next_entry(text, at, end)
            page.fail(at, stop, f"it is not valid JSON: {one.reason}", at=one.at)
            at = stop
        else:
            page.entries += page.read_json(one[0])
            at = skip_space(text, one[1])
        if text.startswith(",", at):
            at = skip_space(text, at + 1)
    return at


def _next_entry(text: str, start: int, end: int) -> int:
    """Where the entry after a broken one begins, in a list of calls."""
    stop = text.find('{"', start + 1, end)
    while stop >= 0:
        before = stop - 1
        while text[before].isspace():
            before -= 1
        if text[before] == ",":
            return stop
        stop = text.find('{"', stop + 1, end)
    return end


def _read_deepseek(page: Page, found: re.Match[str]) -> int:
    close = "<｜tool▁call▁end｜>"  # noqa: RUF001
    return _body(page, found.end(), close, "<｜tool▁call▁begin｜>", name=found[1])  # noqa: RUF001


def _read_kimi(page: Page, found: re.Match[str]) -> int:
    name = _KIMI_NAME.fullmatch(found[1])
    return _body(
        page,
        found.end(),
        "<|tool_call_end|>",
        "<|tool_call_begin|>",
        name=found[1] if name is None else name[1],
        call_id=found[1],
    )


def _read_harmony(page: Page, found: re.Match[str]) -> int:
    """A message of one channel: a call when it goes to a tool."""
    head, channel = found["head"], found["channel"] or ""
    of_model = found["kind"] == "channel" or head.strip().startswith("assistant")
    recipient = _RECIPIENT.search(channel) or _RECIPIENT.search(head)
    if recipient is not None and recipient[1] in _PEOPLE:
        recipient = None
    if not of_model or recipient is None:
        words = (channel or head).split(None, 1)
        if of_model and words[:1] != ["analysis"]:
            return found.end()
        # Thoughts, and what others than the model said.
        after = _HARMONY_END.search(page.text, found.end())
        return len(page.text) if after is None else after.start()
    if page.text.startswith("<|call|>", found.end()):
        page.add(RawCall(None, recipient[1]))
        return found.end()
    return _body(page, found.end(), "<|call|>", "<|", name=recipient[1])


FORMS: Final = (
    Mark("hermes", "<tool_call>", _HERMES.search, _read_hermes),
    Mark("function", "<function=", _FUNCTION.search, _read_function),
    *TAGGED,
    LLAMA,
    Mark("mistral", "[tool_calls]", _MISTRAL.search, _read_mistral),
    Mark("deepseek", "<｜tool▁call▁begin｜>", _DEEPSEEK.search, _read_deepseek),  # noqa: RUF001
    Mark("kimi", "<|tool_call_begin|>", _KIMI.search, _read_kimi),
    Mark("harmony", "<|message|>", _HARMONY.search, _read_harmony),
)
"""All of them."""
