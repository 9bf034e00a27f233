"""Notices a tool loop that goes round in circles."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ("ProgressWatch",)

_LONGEST_CYCLE = 4
_encode = json.JSONEncoder(sort_keys=True, default=repr).encode


class ProgressWatch:
    """Compares rounds: the same calls with the same results, again and again.

    A round's signature is the set of its (tool, canonical arguments, result). When
    the last `repeats` groups of 1 to 4 rounds are equal, nothing new can come of it.
    Polling whose results change is never stopped.

    Args:
        repeats: Equal groups in a row that count as no progress. None = never.
    """

    def __init__(self, repeats: int | None) -> None:
        self._repeats = repeats
        self._rounds: list[int] = []

    def add(self, calls: Iterable[tuple[str, Mapping[str, Any], str]]) -> bool:
        """Book a round; True when the loop makes no progress any more."""
        if self._repeats is None:
            return False
        signature = hash(
            tuple(
                sorted(
                    (name, _canonical(arguments), result)
                    for name, arguments, result in calls
                )
            )
        )
        self._rounds.append(signature)
        return any(self._cycles(length) for length in range(1, _LONGEST_CYCLE + 1))

    def _cycles(self, length: int) -> bool:
        assert self._repeats is not None  # noqa: S101 - narrowed by the caller
        needed = length * self._repeats
        if len(self._rounds) < needed:
            return False
        tail = self._rounds[-needed:]
        return all(tail[i] == tail[i - length] for i in range(length, needed))


def _canonical(arguments: Mapping[str, Any]) -> str:
    try:
        return _encode(dict(arguments))
    except (TypeError, ValueError):
        return repr(arguments)
