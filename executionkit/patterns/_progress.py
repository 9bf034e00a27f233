"""Notices a tool loop that goes round in circles."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ("ProgressWatch",)

_LONGEST_CYCLE: Final = 4
_encode = json.JSONEncoder(sort_keys=True, default=repr).encode


class ProgressWatch:
    """Compares rounds: the same calls with the same results, again and again.

    A round's signature is the multiset of its (tool, canonical arguments, result).
    When the last `repeats` groups of 1 to 4 rounds are equal, nothing new can come of
    it. Polling whose results change is never stopped.

    Args:
        repeats: Equal groups in a row that count as no progress, at least 2. None =
            never.
    """

    def __init__(self, repeats: int | None) -> None:
        self._repeats = repeats
        self._rounds: deque[int] = deque(maxlen=_LONGEST_CYCLE * (repeats or 1))

    def add(self, calls: Iterable[tuple[str, Mapping[str, Any], str]]) -> bool:
        """Book a round; True when the loop makes no progress any more."""
        repeats = self._repeats
        if repeats is None:
            return False
        found = sorted((name, _canonical(given), text) for name, given, text in calls)
        self._rounds.append(hash(tuple(found)))
        newest_first = list(reversed(self._rounds))
        return any(
            _cycles(newest_first, length, repeats)
            for length in range(1, _LONGEST_CYCLE + 1)
        )


def _cycles(rounds: list[int], length: int, repeats: int) -> bool:
    needed = length * repeats
    if len(rounds) < needed:
        return False
    return all(rounds[i] == rounds[i - length] for i in range(length, needed))


def _canonical(arguments: Mapping[str, Any]) -> str:
    try:
        return _encode(dict(arguments))
    except (TypeError, ValueError, RecursionError):
        return repr(arguments)
