"""Parsers by name: ours, the names of an older library, and those of other packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final, Protocol, runtime_checkable

from executionkit._redact import redact_exception_text
from executionkit.calls import CallProblem, new_id
from executionkit.errors import ErrorCode, ParserError
from executionkit.tools.parsing.data import kind_of, read_value
from executionkit.tools.parsing.result import NOTHING, ParsedCalls, Reading, settle
from executionkit.tools.parsing.text import (
    FORM_NAMES,
    has_form,
    load_whole,
    read_forms,
    read_pythonic,
)

__all__ = (
    "DEFAULT_PARSERS",
    "ENTRY_POINT_GROUP",
    "ToolCallParser",
    "resolve_parsers",
    "run_parsers",
)

ENTRY_POINT_GROUP: Final = "executionkit.parsers"
"""Where another package names its parsers in its metadata."""

_SAMPLE: Final = 200


@runtime_checkable
class ToolCallParser(Protocol):
    """Finds tool calls in one format."""

    @property
    def name(self) -> str:
        """By which it is chosen."""
        ...

    def matches(self, data: object) -> bool:
        """Whether `data` may have this format; a quick look, which may be wrong."""
        ...

    def parse(self, data: object) -> ParsedCalls | None:
        """The calls in `data`; None when there are none in this format."""
        ...


# Name -> words without which no JSON text has such a call.
_DATA_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "openai": ('"tool_calls"', '"function"'),
    "function_call": ('"function_call"',),
    "responses": ('"function_call"', '"custom_tool_call"'),
    "anthropic": ('"tool_use"',),
    "gemini": ('"functionCall"', '"function_call"'),
    "json": ('"name"', '"tool'),
    "stream": ('"delta"', '"content_block"', '"response.'),
}


class _Parser:
    """What all of ours share."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name: str = name

    def __repr__(self) -> str:
        return f"<parser {self.name!r}>"


class _DataParser(_Parser):
    """Reads one format of data, also as JSON text, whole or in prose."""

    __slots__ = ()

    def matches(self, data: object) -> bool:
        if isinstance(data, str):
            return any(word in data for word in _DATA_WORDS[self.name])
        return kind_of(data) == self.name

    def parse(self, data: object) -> ParsedCalls | None:
        if isinstance(data, str):
            return self._parse_text(data)
        found = settle(read_value(data)) if kind_of(data) == self.name else NOTHING
        return found or None

    def _parse_text(self, text: str) -> ParsedCalls | None:
        whole = load_whole(text)
        if whole is not None:
            entries = self._read_json(whole)
        else:
            entries = read_forms(text, self._read_json, ()).entries
        return settle(Reading(entries), from_json=True) or None

    def _read_json(self, value: object) -> list[Any]:
        if kind_of(value) != self.name:
            return []
        found = read_value(value, made_by="model")
        return [] if found is None else found.entries


class _FormParser(_Parser):
    """Reads one text form that is not JSON."""

    __slots__ = ()

    def matches(self, data: object) -> bool:
        return isinstance(data, str) and has_form(data, self.name)

    def parse(self, data: object) -> ParsedCalls | None:
        if not isinstance(data, str):
            return None
        page = read_forms(data, _any_json, (self.name,))
        return settle(Reading(page.entries), from_json=True) or None


class _PythonicParser(_Parser):
    """Reads a text that is a list of calls as a whole, whatever their names are."""

    __slots__ = ()

    def matches(self, data: object) -> bool:
        return isinstance(data, str) and data.lstrip()[:1] == "["

    def parse(self, data: object) -> ParsedCalls | None:
        if not isinstance(data, str):
            return None
        return settle(Reading(read_pythonic(data, None)), from_json=True) or None


def _any_json(value: object) -> list[Any]:
    found = read_value(value, made_by="model")
    return [] if found is None else found.entries


DEFAULT_PARSERS: Final[tuple[ToolCallParser, ...]] = (
    *(_DataParser(name) for name in ("stream", "openai", "function_call")),
    *(_DataParser(name) for name in ("responses", "anthropic", "gemini")),
    *(_FormParser(name) for name in FORM_NAMES),
    _DataParser("json"),
)
"""All parsers of this library, in the order in which they are asked."""

_OWN: Final[Mapping[str, ToolCallParser]] = {
    parser.name: parser for parser in (*DEFAULT_PARSERS, _PythonicParser("pythonic"))
}
_OLDER_NAMES: Final[Mapping[str, str]] = {
    "FunctionCallPlugin": "function_call",
    "JsonToolPlugin": "json",
    "OpenAIToolPlugin": "openai",
    "XmlToolPlugin": "xml",
}


def resolve_parsers(
    parsers: Iterable[str | ToolCallParser],
) -> tuple[ToolCallParser, ...]:
    """The parsers that are meant by names or given as objects, in that order.

    Names of other packages are those of the entry point group `executionkit.parsers`;
    they are looked up only when a name is none of ours.

    Args:
        parsers: `"openai"`, `"xml"`, ..., `"pythonic"` for `[f(a=1)]` without any word
            around it (it is asked only when it is named), the older names `"XmlToolPlugin"`,
            `"OpenAIToolPlugin"`, `"JsonToolPlugin"`, `"FunctionCallPlugin"`, or objects.

    Raises:
        ValueError: When a name is unknown; never is one dropped silently.
        TypeError: When an object is no parser.
        ParserError: When the parser of another package cannot be loaded.
    """
    if isinstance(parsers, str):
        msg = f"`parsers` must be a list of names or parsers; pass [{parsers!r}]"
        raise TypeError(msg)
    return tuple([_resolve(given) for given in parsers])


def _resolve(given: str | ToolCallParser) -> ToolCallParser:
    if isinstance(given, str):
        own = _OWN.get(_OLDER_NAMES.get(given, given))
        return _foreign(given) if own is None else own
    return _checked(given, str(given))


def _checked(given: object, shown: str) -> ToolCallParser:
    made = given() if isinstance(given, type) else given
    if not isinstance(made, ToolCallParser):
        msg = (
            f"`{shown[:_SAMPLE]}` is no parser: it needs `name`, `matches(data)` and "
            "`parse(data)`"
        )
        raise TypeError(msg)
    return made


def _foreign(name: str) -> ToolCallParser:
    known = entry_points(group=ENTRY_POINT_GROUP)
    for point in known:
        if point.name == name:
            try:
                loaded = point.load()
            except Exception as exc:
                msg = f"the parser {name!r} ({point.value}) cannot be loaded: {exc}"
                raise ParserError(msg, name) from exc
            return _checked(loaded, point.value)
    names = sorted({*_OWN, *_OLDER_NAMES, *known.names})
    msg = f"unknown parser {name!r}; known are {', '.join(names)}"
    raise ValueError(msg)


def run_parsers(
    parsers: Iterable[ToolCallParser], data: object, given: object
) -> ParsedCalls:
    """What the first parser that finds something finds.

    Args:
        parsers: In the order of asking.
        data: The reply as text or plain data, for our own parsers.
        given: The reply as it was handed in, for others.
    """
    failures: list[CallProblem] = []
    for parser in parsers:
        source = data if isinstance(parser, _Parser) else given
        try:
            found: Any = parser.parse(source) if parser.matches(source) else None
            if found is not None and not isinstance(found, ParsedCalls):
                msg = f"`parse` must return ParsedCalls or None, got {type(found)}"
                raise TypeError(msg)  # noqa: TRY301 - told like any other failure
        except Exception as exc:  # noqa: BLE001 - a plug-in may do anything
            failures.append(_failure(parser, exc, len(failures)))
            continue
        if isinstance(found, ParsedCalls) and found:
            return found
    return ParsedCalls((), tuple(failures)) if failures else NOTHING


def _failure(parser: ToolCallParser, error: Exception, index: int) -> CallProblem:
    return CallProblem(
        call_id=new_id(),
        name="",
        message=f"the parser {parser.name!r} failed: {type(error).__name__}: "
        f"{redact_exception_text(error)}",
        index=index,
        code=ErrorCode.PARSER_ERROR,
    )
