"""Find the JSON in a text: every place where it could begin, and which one counts.

One pass from left to right. A value that parses is stepped over whole, so that brackets,
fences and tags in its strings mean nothing. Where parsing fails, the search goes on
inside: behind the bracket when it never was JSON (`{5" pipe}`), where it broke when it
was (`{"a": 1, oops`), because what stands before is a part of something broken and no
answer. Work is linear in the text: looking twice is paid from a budget.

A broken value that could be mended, or that was cut off, still takes part in the choice:
when it outranks all that is readable, there is no answer rather than another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from executionkit.engine._json.marks import (
    BROKEN_JSON,
    LOOSE_OPENER,
    OPENER,
    reasoning_tag,
)
from executionkit.engine._json.rank import (
    Rank,
    Region,
    Weight,
    fence_end,
    is_part,
    net_depth,
    region_of,
    same_json,
    weight_of,
)
from executionkit.engine._json.repair import mend
from executionkit.engine._json.strict import (
    TOO_DEEP,
    Failure,
    Reading,
    attempt,
    attempt_near,
    skip_space,
    skip_tokens,
    too_deep,
)
from executionkit.engine._json.strings import UnreadableError
from executionkit.types import JsonValue

__all__ = ("Scan", "Sighting")

_CUT: Final = "cut off at the end of the text"
_CLOSING: Final = "close"
_MANY_FAILURES: Final = 16
"""From here on failures must be cheap."""

_MAX_PLACES: Final = 16_384
"""After so many values only the end of the text is searched, where answers are."""

_FAILURE_PLACES: Final = 4
"""A failure costs as much as so many values."""

_TAIL: Final = 65_536
_MAX_BAD_MENDS: Final = 64
_MAX_OPEN_FENCES: Final = 64
"""After so many fences without end, no further end is looked for."""

_STRICT_MEND: Final = 65_536
"""Characters that are read to see whether broken JSON could be mended."""

_STUB: Final = 80
"""A container cut off this soon is one, whatever its beginning."""


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


def _needs(repairs: tuple[str, ...]) -> str:
    return f"not valid JSON without repair ({'; '.join(repairs[:3])})"


class Scan:
    """One search through one text; `run` it once, then read the outcome."""

    def __init__(
        self,
        text: str,
        *,
        repair: bool = False,
        close: bool = False,
        prefer: Callable[[JsonValue], bool] | None = None,
        known: tuple[int, JsonValue, int] | None = None,
    ) -> None:
        self.best: Sighting | None = None
        self.candidates = 0
        self.work = 0
        """Characters that were parsed in vain; at most a few times the text."""

        self._text = text
        self._repair = repair
        self._may_close = close
        self._prefer = prefer
        self._known = known
        self._rank: Rank | None = None
        self._tied = False
        self._unfinished = False
        self._places = 0
        self._failures = 0
        self._bad_mends = 0
        self._skipped = False
        self._lead = skip_space(text, text.startswith("\ufeff"))
        self._tag: re.Match[str] | None = None
        self._tag_known = False
        self._last_end = 0
        self._last_region = Region.PROSE
        self._fence_end = 0
        self._open_fences = 0
        self._broken_from = -1
        self._broken_depth = 0

    def run(self) -> Scan:
        """Search the whole text."""
        text = self._text
        opener = LOOSE_OPENER if self._repair else OPENER
        pos = 0
        while found := opener.search(text, pos):
            start = found.end() - 1
            pos = self._after_reasoning(start)
            if pos == start:
                pos = self._look(start, fenced=found.end() - found.start() > 1)
            if self._places > _MAX_PLACES:
                if self._skipped:
                    break
                self._skipped = True
                self._places = 0
                pos = max(pos, len(text) - _TAIL)
        self._after_reasoning(len(text))
        if self.best and self.weight < Weight.BROKEN and not self._repair:
            self._doubt()
        return self

    def _doubt(self) -> None:
        """Take no footnote for the answer where the answer is almost JSON."""
        loose = Scan(self._text, repair=True).run()
        best = loose.best
        if best and best.repairs and loose.weight > self.weight:
            self.best = best._replace(problem=_needs(best.repairs))

    @property
    def ambiguous(self) -> bool:
        """Whether the best value is only one of several, as far as was looked."""
        return self._tied or self._skipped or self._bad_mends >= _MAX_BAD_MENDS

    @property
    def problem(self) -> str:
        """Why there is no answer, as far as that can be told."""
        if self.best is not None:
            return f"what begins at character {self.best.start} is {self.best.problem}"
        if self._unfinished:
            return "the reasoning never ends"
        return "nothing that opens one can be read"

    @property
    def weight(self) -> Weight:
        """The weight of the best value."""
        return Weight.MARK if self._rank is None else self._rank.weight

    def _after_reasoning(self, start: int) -> int:
        """Where to go on: `start`, or the end of the reasoning that it is in."""
        text = self._text
        if not self._tag_known:
            self._tag_known = True
            self._tag = reasoning_tag(text, 0)
        while self._tag and self._tag.start() < start:
            tag: re.Match[str] | None = self._tag
            while tag and not tag[_CLOSING]:
                tag = reasoning_tag(text, tag.end())
            if tag is None:
                self._unfinished = True
                self._tag = None
                return len(text)
            if tag is self._tag:  # its opening tag was in the prompt
                self._forget()
            self._tag = reasoning_tag(text, tag.end())
            if tag.end() > start:
                return tag.end()
        return start

    def _forget(self) -> None:
        self.best = self._rank = None
        self._tied = False
        self.candidates = 0
        self._broken_from = -1

    def _look(self, start: int, *, fenced: bool) -> int:
        """Read what opens at `start`; the position to go on from."""
        outcome = self._attempt(start)
        if isinstance(outcome, Failure):
            self._failures += 1
            self._places += _FAILURE_PLACES
            return self._look_inside(start, outcome, fenced=fenced)
        self._places += 1
        value, end = outcome
        deep = TOO_DEEP if too_deep(value, end - start) else ""
        notes = self._doubled_brace(start) if self._repair else ()
        self._see(Sighting(value, start, end, notes, deep))
        return self._step_over(end)

    def _attempt(self, start: int) -> Reading | Failure:
        if self._known and self._known[0] == start:
            return self._known[1:]
        if self._failures < _MANY_FAILURES:
            return attempt(self._text, start)
        return attempt_near(self._text, start)

    def _doubled_brace(self, start: int) -> tuple[str, ...]:
        for doubled in ("{", '{"'):
            if self._text.endswith(doubled, 0, start):
                return (f"ignored a doubled opening brace at {start - len(doubled)}",)
        return ()

    def _step_over(self, end: int) -> int:
        if self._tag and self._tag.start() < end:
            self._tag = reasoning_tag(self._text, end)
        return end

    def _look_inside(self, start: int, failure: Failure, *, fenced: bool) -> int:
        """Deal with a bracket that opens nothing valid."""
        text = self._text
        meant = fenced or BROKEN_JSON.match(text, start) is not None
        deep = failure.reason == TOO_DEEP
        at, reason, cut = failure
        if at < 0:
            meant = True
            at, closed = skip_tokens(text, start)
            cut = not closed and at >= len(text)
        self.work += at - start
        if (meant or self._repair) and not deep:
            end = self._mend(start, meant=meant)
            if end:
                return self._step_over(end)
        cut = cut and (meant or self._is_stub(start))
        if cut:
            self._see_broken(start, len(text), _CUT, cut=True)
        elif deep:
            self._see_broken(start, at, TOO_DEEP)
        elif meant:
            problem = f"broken at character {at}: {reason}"
            self._see_broken(start, at, problem, weight=Weight.BROKEN)
        if meant and self._broken_from < 0:
            self._broken_from, self._broken_depth = start, 0
        return self._resume(start, at, meant=meant)

    def _is_stub(self, start: int) -> bool:
        return len(self._text) - start <= _STUB or start <= self._lead

    def _resume(self, start: int, at: int, *, meant: bool) -> int:
        at = max(at, start + 1)
        if self.work > 2 * len(self._text) + 4096:
            return at
        if not meant:
            return start + 1
        # A string that ends where it should not may have begun where it should not:
        # {"a": 1, "b": "oops}. Corrected: {"a": 2}
        read = self._text[start:at].rstrip()
        quote = read.rfind('"', 0, -1) if read.endswith('"') else -1
        return start + quote + 1 if quote > 0 else at

    def _mend(self, start: int, *, meant: bool) -> int:
        """Read something broken; its end, or 0 when it is not readable."""
        if self._bad_mends >= _MAX_BAD_MENDS:
            return 0
        text = self._text
        stop = self._end_of_fence(start)
        if not self._repair:
            stop = min(stop, start + _STRICT_MEND)
        try:
            mended = mend(text, start, stop, close=self._may_close)
        except UnreadableError as error:
            self._bad_mends += 1
            self.work += error.at - start
            if error.ended and meant:
                cut = stop == len(text)
                self._see_broken(start, stop, _CUT if cut else str(error), cut=cut)
            return 0
        value, end, repairs = mended
        problem = "" if self._repair else _needs(repairs)
        self._see(Sighting(value, start, end, repairs, problem, firm=meant))
        return end

    def _end_of_fence(self, start: int) -> int:
        text = self._text
        if start < self._fence_end:
            return self._fence_end
        stop = len(text)
        if self._open_fences < _MAX_OPEN_FENCES:
            stop = fence_end(text, start)
            if stop < len(text):
                self._fence_end = stop
            else:
                self._open_fences += 1
        return stop

    def _see_broken(
        self,
        start: int,
        end: int,
        problem: str,
        *,
        cut: bool = False,
        weight: Weight = Weight.CONTENT,
    ) -> None:
        stand_in: JsonValue = {} if self._text[start] == "{" else []
        self._see(Sighting(stand_in, start, end, problem=problem, cut=cut), weight)

    def _see(self, seen: Sighting, weight: Weight | None = None) -> None:
        """Weigh one more value against the best one so far."""
        if self._is_inside_broken(seen) or self._is_subscript(seen):
            return
        start, end = seen.start, seen.end
        region = self._region(start, end)
        preferred = False
        if not seen.problem:
            self.candidates += 1
            preferred = self._prefer is not None and bool(self._prefer(seen.value))
        if weight is None:
            weight = weight_of(seen.value, end - start, region)
        rank = Rank(preferred, weight, region, type(seen.value) is dict)
        best, best_rank = self.best, self._rank
        if best is None or best_rank is None or rank > best_rank:
            self.best, self._rank, self._tied = seen, rank, False
        elif rank == best_rank:
            self._tied = self._tied or not self._same(seen, best)
            if seen.firm >= best.firm:
                self.best = seen

    def _same(self, one: Sighting, other: Sighting) -> bool:
        if one.problem or other.problem:
            return False
        if self._text[one.start : one.end] == self._text[other.start : other.end]:
            return True
        return same_json(one.value, other.value)

    def _is_inside_broken(self, seen: Sighting) -> bool:
        """Whether a value is only a part of something broken before it."""
        since = self._broken_from
        if since < 0:
            return False
        self._broken_depth += net_depth(self._text, since, seen.start)
        self._broken_from = seen.start if seen.problem else seen.end
        if self._broken_depth <= 0:
            self._broken_from = -1
            return False
        return is_part(self._text, seen.start, seen.end)

    def _is_subscript(self, seen: Sighting) -> bool:
        value, start = seen.value, seen.start
        if start == 0 or type(value) is not list or len(value) != 1:
            return False
        before = self._text[start - 1]
        return type(value[0]) is int and (before.isalnum() or before in "_)]")

    def _region(self, start: int, end: int) -> Region:
        region = region_of(self._text, start, end)
        if self._last_region is Region.JSON_FENCE and region is Region.PROSE:
            between = self._text[self._last_end : start]
            if not between.strip(" \t\r\n,;"):  # JSON Lines in one fence
                region = Region.JSON_FENCE
        self._last_end, self._last_region = end, region
        return region
