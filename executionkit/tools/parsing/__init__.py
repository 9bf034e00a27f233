"""Finding tool calls in whatever a model said.

`parse_calls` takes a text, data, calls, or the answer of a provider, and gives the calls
in it and, apart from them, the calls that cannot be run. It is total: nothing that a
model can say makes it raise, and it takes time linear in the size of what was said.

Arguments are never guessed. Those that are missing or empty are `{}`; those that cannot
be read are a problem of that one call, and its siblings are calls all the same.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from executionkit._llm import LLMResponse
from executionkit.calls import CallProblem, ToolCall
from executionkit.tools.parsing.data import read_value
from executionkit.tools.parsing.objects import to_data
from executionkit.tools.parsing.plugins import (
    DEFAULT_PARSERS,
    ENTRY_POINT_GROUP,
    ToolCallParser,
    resolve_parsers,
    run_parsers,
)
from executionkit.tools.parsing.result import (
    NOTHING,
    ParsedCalls,
    Reading,
    settle,
    settle_calls,
)
from executionkit.tools.parsing.text import read_pythonic, read_text

__all__ = (
    "DEFAULT_PARSERS",
    "ENTRY_POINT_GROUP",
    "ParsedCalls",
    "ToolCallParser",
    "parse_calls",
    "resolve_parsers",
)

_LOST: Final = "\ufffd"
_NOT_UTF8: Final = "the reply is not UTF-8, and characters of this call are lost"
_TOO_DEEP: Final = "the reply is nested too deeply to be read"


def parse_calls(
    data: object,
    *,
    parsers: Sequence[str | ToolCallParser] | None = None,
    tools: Container[str] | None = None,
) -> ParsedCalls:
    """The tool calls in what a model said.

    Formats: OpenAI chat completions and Responses, Anthropic messages and blocks, Gemini
    contents, streamed events of these as a list, objects with `name` or `tool` and
    arguments, the tag `<tool name="N" args='{...}'/>`, JSON in prose and in fences,
    Hermes, Qwen, Llama, Mistral, DeepSeek, Kimi, GLM and gpt-oss texts, and those of
    older Anthropic models. What stands in a block of reasoning (`<think>`) is no call. A
    list of messages gives the calls of its last one only: earlier ones have been
    answered. `[name(key=value)]`, which may be any list in Python, is a call only as the
    whole text and when `tools` has its first name.

    Args:
        data: A text (bytes are UTF-8), a mapping, a list or tuple of mappings or
            `ToolCall`s, a `ToolCall`, an `LLMResponse`, the answer object of another
            library, or None.
        parsers: The parsers to ask, in order; the first that finds something decides.
            None = all of ours. Names are allowed, see `resolve_parsers`.
        tools: The names of the tools there are; a mapping by name will do. Calls of
            others are found all the same.

    Returns:
        Calls and problems. Ids are kept; missing ones are made, and of two equal ones
        the second is renamed (`-2`). Equal calls stay two calls.

    Raises:
        TypeError: When `data` is something that holds no reply at all, like a number.
        ValueError: When a name in `parsers` is unknown.
    """
    if parsers is not None:
        return _selected(data, resolve_parsers(parsers))
    try:
        if type(data) is dict:
            return _settle(read_value(data), tools)
        if isinstance(data, str):
            return _from_text(data, tools)
        return _from_other(data, tools)
    except RecursionError:
        return _unreadable()


def _from_text(text: str, tools: Container[str] | None) -> ParsedCalls:
    entries = read_text(text, _of_json)
    if not entries and tools is not None:
        entries = read_pythonic(text, tools)
    return settle(Reading(entries), from_json=True)


def _settle(reading: Reading | None, tools: Container[str] | None) -> ParsedCalls:
    if reading is not None and reading.text and tools is not None:
        reading.entries += read_pythonic(reading.text, tools)
    return settle(reading)


def _of_json(value: object) -> list[Any]:
    found = read_value(value, made_by="model")
    return [] if found is None else found.entries


def _from_other(data: object, tools: Container[str] | None) -> ParsedCalls:
    if isinstance(data, (list, tuple)) and data and _are_calls(data):
        return settle_calls(data)
    if isinstance(data, (bytes, bytearray)):
        return _from_bytes(bytes(data), tools)
    plain = _plain(data)
    if isinstance(plain, ParsedCalls):
        return plain
    if isinstance(plain, str):
        return _from_text(plain, tools)
    return _settle(read_value(plain), tools)


def _are_calls(items: Sequence[Any]) -> bool:
    return all(isinstance(item, ToolCall) for item in items)


def _plain(data: object) -> Any:
    """A reply as a text, a mapping or a list; or as calls when it has them already.

    Raises:
        TypeError: When it is none of them.
    """
    if data is None:
        return ""
    if isinstance(data, (str, Mapping, ParsedCalls)):
        return data
    if isinstance(data, ToolCall):
        return settle_calls((data,))
    if isinstance(data, LLMResponse):
        return _of_response(data)
    if isinstance(data, (bytes, bytearray)):
        return bytes(data).decode("utf-8", "replace")
    made = to_data(data)
    if isinstance(made, (Mapping, list, tuple)):
        return made
    msg = (
        "a reply must be a text, a mapping, a list, a ToolCall or the answer of a "
        f"provider, got {type(data).__name__}"
    )
    raise TypeError(msg)


def _of_response(reply: LLMResponse) -> Any:
    if not reply.tool_calls and not reply.problems:
        return reply.content if isinstance(reply.content, str) else ""
    if _are_calls(reply.tool_calls):
        return settle_calls(reply.tool_calls, reply.problems)
    return to_data(list(reply.tool_calls))


def _from_bytes(data: bytes, tools: Container[str] | None) -> ParsedCalls:
    try:
        return _from_text(data.decode("utf-8"), tools)
    except UnicodeDecodeError:
        pass
    found = _from_text(data.decode("utf-8", "replace"), tools)
    good: list[ToolCall] = []
    broken: list[CallProblem] = []
    for index, entry in enumerate(found.entries):
        if isinstance(entry, CallProblem):
            broken.append(entry)
        elif _LOST in f"{entry.id}{entry.name}{entry.arguments!r}":
            broken.append(
                CallProblem(
                    call_id=entry.id, name=entry.name, message=_NOT_UTF8, index=index
                )
            )
        else:
            good.append(entry)
    return ParsedCalls(tuple(good), tuple(broken))


def _selected(data: object, parsers: Sequence[ToolCallParser]) -> ParsedCalls:
    try:
        plain = _plain(data)
    except TypeError:
        if all(parser in DEFAULT_PARSERS for parser in parsers):
            raise
        plain = None  # another package may know what it is
    if isinstance(plain, ParsedCalls):
        return plain  # what is a call already needs no parser
    if isinstance(plain, (list, tuple)) and plain and _are_calls(plain):
        return settle_calls(plain)
    try:
        return run_parsers(parsers, plain, data)
    except RecursionError:
        return _unreadable()


def _unreadable() -> ParsedCalls:
    problem = CallProblem(call_id="", name="", message=_TOO_DEEP)
    return settle_calls((), (problem,)) or NOTHING
