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
from typing import Final

from executionkit.engine._json.choice import Choice, Sighting
from executionkit.engine._json.marks import (
    BROKEN,
    JSON_AHEAD,
    LOOSE_BROKEN,
    LOOSE_OPENER,
    OPENER,
    reasoning_tag,
)
from executionkit.engine._json.rank import Weight, fence_end
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

__all__ = ("Scan",)

_CUT: Final = "cut off at the end of the text"
_CLOSING: Final = "close"
_MANY_FAILURES: Final = 16
"""From here on failures must be cheap."""

_MAX_PLACES: Final = 4096
"""After so many values only the end of the text is searched, where answers are."""

_FAILURE_PLACES: Final = 2
"""A failure costs as much as so many values."""

_TAILS: Final = (2048, 65_536)
"""How much the end is, from last to first: even that may be full of such values."""

_MAX_BAD_MENDS: Final = 64
_MAX_OPEN_FENCES: Final = 64
"""After so many fences without end, no further end is looked for."""

_STRICT_MEND: Final = 65_536
"""Characters that are read to see whether broken JSON could be mended."""

_STUB: Final = 80
"""A container cut off this soon is one, whatever its beginning."""


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
        known: tuple[int, JsonValue, int, bool] | None = None,
    ) -> None:
        self.choice = Choice(text, prefer)
        self.work = 0
        """Characters that were parsed in vain; at most a few times the text."""

        self._text = text
        self._max_work = 2 * len(text) + 4096
        self._repair = repair
        self._may_close = close
        self._known = known
        self._unfinished = False
        self._places = 0
        self._failures = 0
        self._bad_mends = 0
        self._tails = list(_TAILS)
        self._lead = skip_space(text, text.startswith("\ufeff"))
        self._tag: re.Match[str] | None = None
        self._tag_known = False
        self._fence_end = 0
        self._open_fences = 0

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
            if self._places > _MAX_PLACES and self._tails:
                pos = max(pos, len(text) - self._tails.pop())
                self._places = 0
        self._after_reasoning(len(text))
        if self.best and self.choice.weight < Weight.BROKEN and not self._repair:
            self._doubt()
        return self

    def _doubt(self) -> None:
        """Take no footnote for the answer where the answer is almost JSON."""
        loose = Scan(self._text, repair=True).run().choice
        best = loose.best
        if best and best.repairs and loose.weight > self.choice.weight:
            self.choice.best = best._replace(problem=_needs(best.repairs))

    @property
    def best(self) -> Sighting | None:
        """The answer, or what stands in its place; None when there is neither."""
        return self.choice.best

    @property
    def ambiguous(self) -> bool:
        """Whether the best value is only one of several, as far as was looked."""
        skipped = len(self._tails) < len(_TAILS)
        unsure = skipped or self._bad_mends >= _MAX_BAD_MENDS
        return self.choice.tied or unsure

    @property
    def problem(self) -> str:
        """Why there is no answer, as far as that can be told."""
        best = self.best
        if best is not None:
            return f"what begins at character {best.start} is {best.problem}"
        if self._unfinished:
            return "the reasoning never ends"
        return "nothing that opens one can be read"

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
                self.choice.forget()
            self._tag = reasoning_tag(text, tag.end())
            if tag.end() > start:
                return tag.end()
        return start

    def _look(self, start: int, *, fenced: bool) -> int:
        """Read what opens at `start`; the position to go on from."""
        outcome = self._attempt(start)
        if isinstance(outcome, Failure):
            self._failures += 1
            self._places += _FAILURE_PLACES
            return self._look_inside(start, outcome, fenced=fenced)
        self._places += 1
        value, end = outcome
        deep = TOO_DEEP if too_deep(value, self._text, start, end) else ""
        notes = self._doubled_brace(start) if self._repair else ()
        self.choice.see(Sighting(value, start, end, notes, deep))
        return self._step_over(end)

    def _attempt(self, start: int) -> Reading | Failure:
        if self._known and self._known[0] == start:
            return self._known[1], self._known[2]
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
        broken = LOOSE_BROKEN if self._repair else BROKEN
        meant = (
            fenced
            or broken.match(text, start) is not None
            or self._has_first_item(start)
        )
        deep = failure.reason == TOO_DEEP
        at, reason, cut = failure
        if at < 0:
            meant = True
            at, closed = skip_tokens(text, start)
            cut = not closed and at >= len(text)
        self.work += at - start
        whole = cut and at >= len(text)  # the text is valid as far as it goes
        if (meant or self._repair) and not deep and (self._may_close or not whole):
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
        if cut and whole:
            return at  # all that is in it is a part of it
        if meant:
            self.choice.break_off()
        return self._resume(start, at, meant=meant)

    def _has_first_item(self, start: int) -> bool:
        """Whether an array begins with a whole container that has something to follow."""
        text = self._text
        first = skip_space(text, start + 1)
        if text[start] != "[" or not text.startswith(("{", "["), first):
            return False
        if self.work > self._max_work:
            return False
        outcome = attempt_near(text, first)
        if isinstance(outcome, Failure):
            self.work += max(outcome.at - first, 0)
            return False
        self.work += outcome[1] - first
        return JSON_AHEAD.match(text, skip_space(text, outcome[1])) is not None

    def _is_stub(self, start: int) -> bool:
        return len(self._text) - start <= _STUB or start <= self._lead

    def _resume(self, start: int, at: int, *, meant: bool) -> int:
        at = max(at, start + 1)
        if self.work > self._max_work:
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
        firm = meant and BROKEN.match(text, start) is not None
        self.choice.see(Sighting(value, start, end, repairs, problem, firm=firm))
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
        self.choice.see(
            Sighting(stand_in, start, end, problem=problem, cut=cut), weight
        )
