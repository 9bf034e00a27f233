"""What reading a reply gives: calls, and entries that are no calls that can be run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from executionkit._frozen import sealed
from executionkit._wire.common import RawCall, collect_calls
from executionkit.calls import CallProblem, ToolCall

__all__ = ("NOTHING", "Found", "ParsedCalls", "Reading", "settle", "settle_calls")

Found: TypeAlias = RawCall | ToolCall
"""One entry of a reply before it is settled."""


@sealed
@dataclass(frozen=True, slots=True)
class ParsedCalls:
    """The tool calls of one reply."""

    calls: tuple[ToolCall, ...] = ()
    """The calls that can be run, in order of appearance, each with an id of its own."""

    problems: tuple[CallProblem, ...] = ()
    """The calls that cannot be run; `index` is the place among all entries."""

    @property
    def entries(self) -> tuple[ToolCall | CallProblem, ...]:
        """Calls and problems in the order in which the model wrote them."""
        if not self.problems:
            return self.calls
        size = len(self.calls) + len(self.problems)
        places: list[ToolCall | CallProblem | None] = [None] * size
        homeless: list[ToolCall | CallProblem] = []
        for problem in self.problems:
            if 0 <= problem.index < size and places[problem.index] is None:
                places[problem.index] = problem
            else:
                homeless.append(problem)
        rest = iter([*self.calls, *homeless])
        return tuple([next(rest) if place is None else place for place in places])

    def __bool__(self) -> bool:
        """Whether there is anything: a call or a problem."""
        return bool(self.calls or self.problems)

    def __len__(self) -> int:
        """The number of entries: calls and problems."""
        return len(self.calls) + len(self.problems)


NOTHING: Final = ParsedCalls()


@dataclass(slots=True)
class Reading:
    """What one reader found, before ids and arguments are looked at."""

    entries: list[Found] = field(default_factory=list)
    truncated: bool = False
    """The token limit cut the reply off."""


def _to_raw(entry: Found) -> RawCall:
    if isinstance(entry, RawCall):
        return entry
    return RawCall(
        entry.id,
        entry.name,
        entry.arguments,
        namespace=entry.namespace,
        idempotency_key=entry.idempotency_key,
    )


def settle(reading: Reading | None) -> ParsedCalls:
    """Sort what was found into calls and problems: ids, arguments, order."""
    if reading is None or not reading.entries:
        return NOTHING
    raw = [_to_raw(entry) for entry in reading.entries]
    found = collect_calls(raw, truncated=reading.truncated)
    return ParsedCalls(found.calls, found.problems)


def settle_calls(
    calls: Iterable[ToolCall], problems: Sequence[CallProblem] = ()
) -> ParsedCalls:
    """Calls that are calls already: the same objects, but for ids that come again."""
    given = ParsedCalls(tuple(calls), tuple(problems))
    names = [call.id for call in given.calls]
    names += [problem.call_id for problem in given.problems]
    known = set(names)
    if len(known) == len(names) and "" not in known and None not in known:
        return given
    raw = [
        _to_raw(entry)
        if isinstance(entry, ToolCall)
        else RawCall(entry.call_id, entry.name, problem=entry.message)
        for entry in given.entries
    ]
    found = collect_calls(raw)
    broken = [
        replace(old, call_id=new.call_id, index=new.index)
        for old, new in zip(given.problems, found.problems, strict=False)
    ]
    return ParsedCalls(found.calls, tuple(broken))
