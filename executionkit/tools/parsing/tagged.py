"""Forms with a tag for each argument. What stands between two tags is text.

| name | form |
|---|---|
| function | `<function=name><parameter=key>value</parameter></function>` (Qwen) |
| invoke | `<invoke name="name"><parameter name="key">value</parameter></invoke>` (Anthropic, MiniMax, DeepSeek; also with a prefix) |
| glm | `<tool_call>name <arg_key>key</arg_key><arg_value>value</arg_value></tool_call>` |

A text for an argument that takes none is decoded later, by the schema of the tool.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from executionkit._wire.common import RawCall
from executionkit.engine._json.strict import skip_space
from executionkit.engine.json_extraction import loads_json
from executionkit.tools.parsing.page import Mark, Page

__all__ = ("FUNCTION", "TAGGED", "Style", "read_parameters")

_UNFINISHED: Final = "it is not complete: `{}` is missing"
_INNER: Final = "a value holds `{}`, with which another call begins"


class Style(NamedTuple):
    """How one form writes arguments."""

    begin: re.Pattern[str]
    """The beginning of a call."""

    parameter: re.Pattern[str]
    """What stands before a value; `key`, and `kind` (false = the value is JSON)."""

    value_end: re.Pattern[str]
    end: re.Pattern[str]
    """What may close a call."""

    own_end: re.Pattern[str]
    """What closes no other form."""

    close: str
    """What should have closed it, in words."""

    lines: bool = False
    """A line break at both ends of a value is no part of it."""


FUNCTION: Final = Style(
    re.compile(r"<function="),
    re.compile(r"\s*+<parameter=[\"']?(?P<key>[^<>\s\"']{1,200}+)(?P<kind>)[\"']?>"),
    re.compile(r"</parameter>(?=\s*+(?:<parameter=|</function>|</tool_call>))"),
    re.compile(r"</(?:function|tool_call)>"),
    re.compile(r"</function>"),
    "</function>",
    lines=True,
)
"""The one that `forms` reads the name of."""

_PREFIX: Final = "(?:[A-Za-z][\\w-]{0,19}+:|｜DSML｜)??"  # noqa: RUF001
_IN_QUOTES: Final = "(?:\"([^\"<>\\s]{1,200}+)\"|'([^'<>\\s]{1,200}+)')"
INVOKE: Final = Style(
    re.compile(rf"<{_PREFIX}invoke name="),
    re.compile(
        rf"\s*+<{_PREFIX}parameter name=[\"'](?P<key>[^<>\"']{{1,200}}+)[\"']"
        r"(?: string=[\"'](?P<kind>true|false)[\"'])?\s*+>"
    ),
    re.compile(
        rf"</{_PREFIX}parameter>(?=\s*+(?:<{_PREFIX}parameter name=|</{_PREFIX}invoke>))"
    ),
    re.compile(rf"</{_PREFIX}invoke>"),
    re.compile(rf"</{_PREFIX}invoke>"),
    "</invoke>",
)
GLM: Final = Style(
    re.compile(r"<tool_call>"),
    re.compile(
        r"\s*+<arg_key>(?P<key>[^<>]{1,200}+)(?P<kind>)</arg_key>\s*+<arg_value>"
    ),
    re.compile(r"</arg_value>(?=\s*+(?:<arg_key>|</tool_call>))"),
    re.compile(r"</tool_call>"),
    re.compile(r"</tool_call>"),
    "</tool_call>",
)

_INVOKE: Final = re.compile(
    rf"<(?>{_PREFIX}invoke name={_IN_QUOTES}\s*+>\s*+)"
    rf"(?=</?+{_PREFIX}(?:parameter name=|invoke>)|\Z)"
)
_GLM: Final = re.compile(
    r"<tool_call>\s*+([\w.:-]{1,200}+)\s*+(?=<arg_key>|</tool_call>)"
)


def read_parameters(page: Page, style: Style, name: str, start: int, at: int) -> int:
    """Read the arguments of a call, and what closes it.

    Args:
        page: The text, and where what is found is put.
        style: The form.
        name: The name of the tool.
        start: Where the call begins.
        at: Where its arguments begin.

    Returns:
        Where reading goes on.
    """
    text = page.text
    following = style.begin.search(text, at)
    limit = len(text) if following is None else following.start()
    arguments: dict[str, Any] = {}
    why = ""
    while opening := style.parameter.match(text, at, limit):
        close = style.value_end.search(text, opening.end(), limit)
        if close is None:
            break
        value = text[opening.end() : close.start()]
        if style.lines:
            value = value.removeprefix("\n").removesuffix("\n")
        if opening["key"] in arguments:
            why = why or f"the parameter `{opening['key']}` is given twice"
        arguments[opening["key"]] = value
        if opening["kind"] == "false":
            try:
                arguments[opening["key"]] = loads_json(value)
            except ValueError as exc:
                why = why or f"the parameter `{opening['key']}` is {exc}"
        at = close.end()
    end = style.end.match(text, skip_space(text, at))
    if end is not None and not why:
        page.add(RawCall(None, name, arguments))
        return end.end()
    return _fail(page, style, name, start, at, limit, why)


def _fail(
    page: Page, style: Style, name: str, start: int, at: int, limit: int, why: str
) -> int:
    close = style.end.search(page.text, at, limit)
    stop = limit
    if close is not None:
        stop = close.end()
    elif not why and limit < len(page.text):
        stop = page.partners(style.begin, style.own_end).get(start, limit)
        if stop > limit:
            # Whose value is it? What stands inside of a value is never run.
            why = _INNER.format(style.begin.match(page.text, limit)[0])  # type: ignore[index]
    page.fail(start, stop, why or _UNFINISHED.format(style.close), name=name)
    return stop


def _read_invoke(page: Page, found: re.Match[str]) -> int:
    return read_parameters(
        page, INVOKE, found[1] or found[2], found.start(), found.end()
    )


def _read_glm(page: Page, found: re.Match[str]) -> int:
    return read_parameters(page, GLM, found[1], found.start(), found.end())


TAGGED: Final = (
    Mark("invoke", "invoke name=", _INVOKE.search, _read_invoke),
    Mark("glm", "<tool_call>", _GLM.search, _read_glm),
)
"""Those that have no other way to write arguments."""
