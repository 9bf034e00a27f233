"""Which setting of a tool counts: one place for all of them.

The most specific one: the call's own (a plan's `per_call_timeout_ms`, an argument), then
what is configured under the tool's exact name, then what the tool itself says, then the
first pattern that matches, then the default. Names match in full first
(`namespace.name`), then bare.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

__all__ = (
    "exact",
    "exact_item",
    "matching",
    "matching_item",
    "most_specific",
    "resolve",
    "unmatched",
)

T = TypeVar("T")

_GLOB = frozenset("*?[")


def exact_item(settings: Mapping[str, T], names: Sequence[str]) -> tuple[str, T] | None:
    """(key, value) of the setting under one of the names themselves."""
    for name in names:
        if name in settings:
            return name, settings[name]
    return None


def matching_item(
    settings: Mapping[str, T], names: Sequence[str]
) -> tuple[str, T] | None:
    """(pattern, value) of the first pattern that matches; `*` crosses dots."""
    for name in names:
        for pattern, value in settings.items():
            if not _GLOB.isdisjoint(pattern) and fnmatchcase(name, pattern):
                return pattern, value
    return None


def unmatched(
    settings: Iterable[str], names: Collection[str]
) -> list[tuple[str, list[str]]]:
    """(entry, up to three close names) of each entry that concerns none of `names`.

    A pattern may be there for tools of others who share the settings.
    """
    import difflib

    found: list[tuple[str, list[str]]] = []
    for key in settings:
        if key in names or not _GLOB.isdisjoint(key):
            continue
        found.append((key, difflib.get_close_matches(key, names, n=3)))
    return found


def exact(settings: Mapping[str, T], names: Sequence[str]) -> T | None:
    """The setting under one of the names themselves; None when there is none."""
    found = exact_item(settings, names)
    return None if found is None else found[1]


def matching(settings: Mapping[str, T], names: Sequence[str]) -> T | None:
    """The setting of the first pattern that matches; None when there is none."""
    found = matching_item(settings, names)
    return None if found is None else found[1]


def most_specific(settings: Mapping[str, T], names: Sequence[str]) -> T | None:
    """The setting under the exact name, else that of the first pattern, else None."""
    found = exact(settings, names)
    return matching(settings, names) if found is None else found


def resolve(
    settings: Mapping[str, T], names: Sequence[str], own: T | None, default: T
) -> T:
    """The value of a setting for one tool.

    Args:
        settings: By name or pattern.
        names: The tool's names, the full one first.
        own: What the tool says of itself; None = nothing.
        default: For everything else.
    """
    found = exact(settings, names)
    if found is None:
        found = own
    if found is None:
        found = matching(settings, names)
    return default if found is None else found
