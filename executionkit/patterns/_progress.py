"""Notices a tool loop that goes round in circles."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ("ProgressWatch",)

_LONGEST_CYCLE: Final = 4
_encode = json.JSONEncoder(sort_keys=True, default=repr).encode


class ProgressWatch:
    """Compares rounds: the same calls with the same results, again and again.

    A round is the multiset of its (tool, arguments, result); the order of keys in the
    arguments means nothing. When the last `repeats` groups of 1 to 4 rounds are equal,
    nothing new can come of it. Polling whose results change is never stopped.

    Args:
        repeats: Equal groups in a row that count as no progress, at least 2. None =
            never.
    """

    def __init__(self, repeats: int | None) -> None:
        self._repeats = repeats
        self._rounds: deque[_Round] = deque(maxlen=_LONGEST_CYCLE * (repeats or 1))

    def add(self, calls: Sequence[tuple[str, Mapping[str, Any], str]]) -> bool:
        """Book a round; True when the loop makes no progress any more."""
        repeats = self._repeats
        if repeats is None:
            return False
        self._rounds.append(_Round(calls))
        newest_first = list(reversed(self._rounds))
        return any(
            _cycles(newest_first, length, repeats)
            for length in range(1, _LONGEST_CYCLE + 1)
        )


class _Round:
    """What a round did. Arguments are looked at only when all else is the same."""

    __slots__ = ("_arguments", "_calls", "_results")

    def __init__(self, calls: Sequence[tuple[str, Mapping[str, Any], str]]) -> None:
        self._results = sorted([hash((name, text)) for name, _, text in calls])
        self._calls = [(hash((name, text)), given) for name, given, text in calls]
        self._arguments: list[tuple[int, str]] | None = None

    def same_as(self, other: _Round) -> bool:
        return self._results == other._results and self._all() == other._all()

    def _all(self) -> list[tuple[int, str]]:
        if self._arguments is None:
            self._arguments = sorted(
                (result, _canonical(given)) for result, given in self._calls
            )
        return self._arguments


def _cycles(rounds: Sequence[_Round], length: int, repeats: int) -> bool:
    needed = length * repeats
    if len(rounds) < needed:
        return False
    return all(rounds[i].same_as(rounds[i - length]) for i in range(length, needed))


def _canonical(arguments: Mapping[str, Any]) -> str:
    try:
        return _encode(dict(arguments))
    except (TypeError, ValueError, RecursionError):
        return repr(arguments)
