"""The choice among the values of one text, made while they are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from executionkit.engine._json.rank import (
    Rank,
    Region,
    Weight,
    is_part,
    net_depth,
    region_of,
    same_json,
    weight_of,
)
from executionkit.types import JsonValue

__all__ = ("Choice", "Sighting")


class Sighting(NamedTuple):
    """A place where JSON is, readable or not."""

    value: JsonValue
    start: int
    end: int
    repairs: tuple[str, ...] = ()
    problem: str = ""
    """Why it cannot be used; empty when it can."""

    cut: bool = False
    """It is cut off at the end of the text."""

    firm: bool = True
    """It is JSON, or was meant to be; not only something like it."""


class Choice:
    """The best value so far; values are shown to it from left to right."""

    def __init__(self, text: str, prefer: Callable[[JsonValue], bool] | None) -> None:
        self.best: Sighting | None = None
        self.tied = False
        """Another value, different, has the rank of the best one."""

        self.candidates = 0
        """Values that were seen and can be used."""

        self._text = text
        self._prefer = prefer
        self._rank: Rank | None = None
        self._last_end = 0
        self._last_region = Region.PROSE
        self._depth = 0
        self._depth_from = 0
        self._broken = False

    @property
    def weight(self) -> Weight:
        """The weight of the best value."""
        return Weight.MARK if self._rank is None else self._rank.weight

    def forget(self) -> None:
        """Begin anew: all that was seen was reasoning."""
        self.best = self._rank = None
        self.tied = self._broken = False
        self.candidates = self._depth = 0

    def break_off(self) -> None:
        """Take note that a bracket was opened that was certainly meant to be JSON."""
        self._broken = True

    def see(self, seen: Sighting, weight: Weight | None = None) -> None:
        """Weigh one more value against the best one so far."""
        start, end = seen.start, seen.end
        region = region_of(self._text, start, end)
        if self._is_part(seen, region) or self._is_subscript(seen):
            return
        region = self._shared_region(start, end, region)
        preferred = False
        if not seen.problem:
            self.candidates += 1
            preferred = self._prefer is not None and bool(self._prefer(seen.value))
        if weight is None:
            weight = weight_of(seen.value, end - start, region)
        rank = Rank(preferred, weight, region, type(seen.value) is dict)
        best, best_rank = self.best, self._rank
        if best is None or best_rank is None or rank > best_rank:
            self.best, self._rank, self.tied = seen, rank, False
        elif rank == best_rank:
            self.tied = self.tied or not self._same(seen, best)
            if seen.firm >= best.firm:
                self.best = seen

    def _same(self, one: Sighting, other: Sighting) -> bool:
        if any(seen.problem and not seen.repairs for seen in (one, other)):
            return False  # what is not readable is the same as nothing
        if self._text[one.start : one.end] == self._text[other.start : other.end]:
            return True
        return same_json(one.value, other.value)

    def _is_part(self, seen: Sighting, region: Region) -> bool:
        """Whether a value is only a part of something around it."""
        text, start, end = self._text, seen.start, seen.end
        self._depth += net_depth(text, self._depth_from, start)
        self._depth_from = start if seen.problem else end
        if self._depth <= 0 or region > Region.PROSE:
            self._depth = 0
            self._broken = False
        if self._broken and seen.repairs and not seen.problem:
            return True  # two doubts are one too many
        return is_part(text, start, end, depth=self._depth, broken=self._broken)

    def _is_subscript(self, seen: Sighting) -> bool:
        value, start = seen.value, seen.start
        if start == 0 or type(value) is not list or len(value) != 1:
            return False
        before = self._text[start - 1]
        return type(value[0]) is int and (before.isalnum() or before in "_)]")

    def _shared_region(self, start: int, end: int, region: Region) -> Region:
        """The region of a value that may follow another one in a fence: JSON Lines."""
        if self._last_region is Region.JSON_FENCE and region is Region.PROSE:
            between = self._text[self._last_end : start]
            if not between.strip(" \t\r\n,;"):
                region = Region.JSON_FENCE
        self._last_end, self._last_region = end, region
        return region
