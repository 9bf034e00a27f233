"""What a docstring says: the description, and the words for each parameter.

Reads the Google, NumPy and Sphinx styles, also mixed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = ("parse_docstring",)

_PARAMETERS: Final = frozenset(
    {
        "args",
        "arguments",
        "attributes",
        "keyword args",
        "keyword arguments",
        "other parameters",
        "parameters",
        "params",
    }
)
_OTHERS: Final = frozenset(
    {
        "example",
        "examples",
        "note",
        "notes",
        "raise",
        "raises",
        "references",
        "return",
        "returns",
        "see also",
        "side effects",
        "todo",
        "warning",
        "warnings",
        "warns",
        "yield",
        "yields",
    }
)
_ENTRY: Final = re.compile(
    r"(?P<names>\*{0,2}\w+(?:,\s*\*{0,2}\w+)*)"
    r"\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*:\s*(?P<text>.*)"
)
_NUMPY_ENTRY: Final = re.compile(
    r"(?P<names>\*{0,2}\w+(?:,\s*\*{0,2}\w+)*)\s*(?::.*)?(?P<text>)"
)
_FIELD: Final = re.compile(
    r":(?P<kind>[a-z]+)(?:\s+(?P<about>[^:]*?))?\s*:(?:\s+(?P<text>.*))?"
)
_FIELD_PARAMETERS: Final = frozenset(
    {"arg", "argument", "key", "keyword", "param", "parameter"}
)
_FIELD_OTHERS: Final = frozenset(
    {
        "except",
        "exception",
        "raise",
        "raises",
        "return",
        "returns",
        "rtype",
        "type",
        "yields",
    }
)


def parse_docstring(text: object) -> tuple[str, dict[str, str]]:
    """(description, parameter -> its words) of a docstring.

    The description is what stands before the first section. Line breaks inside of a
    parameter's words become spaces.
    """
    from inspect import cleandoc

    lines = cleandoc(text).splitlines() if isinstance(text, str) else []
    described: list[str] = []
    words: dict[str, list[str]] = {}
    in_front = True
    at = 0
    while at < len(lines):
        end = _field_end(lines, at)
        if end:
            _read_field(lines[at:end], words)
        else:
            title, start = _section(lines, at)
            if title:
                end = _section_end(lines, start)
                if title in _PARAMETERS:
                    numpy = start - at == 2
                    _read_entries(lines[start:end], words, numpy=numpy)
            elif in_front:
                described.append(lines[at])
        in_front = in_front and not end
        at = max(end, at + 1)
    joined = {name: " ".join(parts).strip() for name, parts in words.items()}
    return "\n".join(described).strip(), {k: v for k, v in joined.items() if v}


def _field_end(lines: list[str], at: int) -> int:
    """Where the Sphinx field that starts at a line ends; 0 = there is none."""
    field = _FIELD.fullmatch(lines[at])
    if field is None or field["kind"] not in _FIELD_PARAMETERS | _FIELD_OTHERS:
        return 0
    end = at + 1
    while end < len(lines) and lines[end].startswith((" ", "\t")):
        end += 1
    return end


def _read_field(lines: list[str], words: dict[str, list[str]]) -> None:
    field = _FIELD.fullmatch(lines[0])
    if field is None or field["kind"] not in _FIELD_PARAMETERS or not field["about"]:
        return
    name = field["about"].split()[-1].lstrip("*")
    words[name] = [field["text"] or "", *(line.strip() for line in lines[1:])]


def _section(lines: list[str], at: int) -> tuple[str, int]:
    """(title, first line of its text) of the section at a line; title empty = none."""
    title = lines[at].strip().lower()
    if lines[at].startswith((" ", "\t")):
        return "", at
    if title.endswith(":") and title[:-1].rstrip() in _PARAMETERS | _OTHERS:
        return title[:-1].rstrip(), at + 1
    below = lines[at + 1].strip() if at + 1 < len(lines) else ""
    if title in _PARAMETERS | _OTHERS and len(below) >= 3 and set(below) == {"-"}:
        return title, at + 2
    return "", at


def _section_end(lines: list[str], start: int) -> int:
    for at in range(start, len(lines)):
        if _section(lines, at)[0] or _field_end(lines, at):
            return at
    return len(lines)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _read_entries(
    lines: list[str], words: dict[str, list[str]], *, numpy: bool
) -> None:
    entry = _NUMPY_ENTRY if numpy else _ENTRY
    base: int | None = None
    names: list[str] = []
    for line in _filled(lines):
        base = _indent(line) if base is None else base
        found = entry.fullmatch(line.strip()) if _indent(line) == base else None
        if found is not None:
            names = [name.strip().lstrip("*") for name in found["names"].split(",")]
            for name in names:
                words[name] = [found["text"]]
        elif _indent(line) < base or (numpy and _indent(line) == base):
            return
        else:
            for name in names:
                words[name].append(line.strip())


def _filled(lines: list[str]) -> Iterator[str]:
    return (line for line in lines if line.strip())
