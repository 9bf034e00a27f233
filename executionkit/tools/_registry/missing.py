"""The errors for names that are not there, made with bounded work."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from executionkit.errors import ErrorCode, ToolNotFoundError, ToolProcessorError
from executionkit.tools._registry.names import DEFAULT_NAMESPACE

__all__ = ("AmbiguousToolError", "NameIndex", "not_found")

_ALL: Final = 200
"""Up to so many names all are compared."""

_NEAR: Final = 32
_LISTED: Final = 50
_SHOWN: Final = 20
_CANDIDATES: Final = 20
_LONGEST: Final = 128


class AmbiguousToolError(ToolNotFoundError):
    """A bare name that several namespaces have; `details["candidates"]` lists them.

    Args:
        tool_name: The name.
        candidates: Full names of tools that it may mean.
    """

    def __init__(self, tool_name: str, candidates: Iterable[str] = ()) -> None:
        found = list(candidates)
        shown = ", ".join(found[:_CANDIDATES])
        more = (
            f" and {len(found) - _CANDIDATES} more" if len(found) > _CANDIDATES else ""
        )
        # Not its parent: there is nothing to be guessed at.
        ToolProcessorError.__init__(
            self,
            f"Tool '{tool_name}' is ambiguous: it is in {len(found)} namespaces; say "
            f"which one: {shown}{more}",
            ErrorCode.TOOL_NOT_FOUND,
            {
                "tool_name": tool_name,
                "namespace": DEFAULT_NAMESPACE,
                "candidates": found[:_LISTED],
                "available_tools": found[:_LISTED],
                "available_namespaces": [],
                "suggestions": found[:3],
            },
        )


class NameIndex:
    """Finds names like a given one without looking at all of them.

    Where there are many, the sorted neighbours of the name and of the name read
    backwards are compared: they share its beginning or its end. The sorted lists are
    renewed when more than a sixteenth of the names may have changed; the newest names
    are always looked at.
    """

    __slots__ = ("_backward", "_forward", "_version")

    def __init__(self) -> None:
        self._forward: list[str] = []
        self._backward: list[str] = []
        self._version: int | None = None

    def near(self, name: str, names: dict[str, Any], version: int) -> list[str]:
        """Names worth comparing with `name`.

        Args:
            name: What was asked for.
            names: All names, the newest last.
            version: Grows with each change of `names`.
        """
        if len(names) <= _ALL:
            return list(names)
        self._renew(names, version)
        found = dict.fromkeys(_around(self._forward, name))
        backward = _around(self._backward, name[::-1])
        found.update(dict.fromkeys(item[::-1] for item in backward))
        found.update(dict.fromkeys(islice(reversed(names), _NEAR)))
        return [item for item in found if item in names]

    def _renew(self, names: dict[str, Any], version: int) -> None:
        slack = len(names) // 16
        if self._version is not None and version - self._version <= slack:
            return
        self._forward = sorted(names)
        self._backward = sorted(item[::-1] for item in names)
        self._version = version


def _around(names: Sequence[str], name: str) -> Sequence[str]:
    place = bisect_left(names, name)
    return names[max(0, place - _NEAR) : place + _NEAR]


def not_found(
    name: str,
    namespace: str,
    candidates: Mapping[str, str],
    available: Sequence[str],
    namespaces: Iterable[str],
) -> ToolNotFoundError:
    """The error for a name that no tool has; lists at most 50 names.

    Args:
        name: What was asked for.
        namespace: Where; `default` = anywhere.
        candidates: What to compare `name` with -> the full name of the tool it means.
        available: Names that could be called.
        namespaces: The namespaces there are.
    """
    import difflib

    # Comparing takes the product of both lengths.
    text = name[:_LONGEST]
    close = difflib.get_close_matches(text, candidates, n=6, cutoff=0.6)
    suggestions = list(dict.fromkeys(candidates[item] for item in close))[:3]
    is_anywhere = namespace == DEFAULT_NAMESPACE
    where = "any namespace" if is_anywhere else f"namespace '{namespace[:_LONGEST]}'"
    hint = f"; did you mean {' or '.join(suggestions)}?" if suggestions else "."
    more = ", ..." if len(available) > _SHOWN else ""
    shown = f"{', '.join(available[:_SHOWN])}{more}" if available else "none"
    error = ToolNotFoundError(name, namespace)
    error.args = (f"Tool '{text}' not found in {where}{hint} Available tools: {shown}",)
    error.details.update(
        available_tools=list(available[:_LISTED]),
        available_namespaces=list(islice(namespaces, _LISTED)),
        suggestions=suggestions,
    )
    return error
