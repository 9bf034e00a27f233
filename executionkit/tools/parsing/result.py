"""What reading a reply gives: calls, and entries that are no calls that can be run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from executionkit._constants import MAX_JSON_DEPTH
from executionkit._frozen import FrozenDict, FrozenList, freeze_mapping, sealed
from executionkit._wire.common import RawCall, collect_calls
from executionkit.calls import CallProblem, ToolCall
from executionkit.engine._json.strict import scan
from executionkit.engine._schema.values import NotJsonError, is_plain, to_plain

__all__ = (
    "NOTHING",
    "Found",
    "ParsedCalls",
    "Reading",
    "settle",
    "settle_calls",
    "settle_plain",
)

_ATOMS: Final = frozenset({bool, str, type(None)})
_HUGE: Final = 10**4300  # as in `is_plain`
_BIG: Final = 2**63  # quick to compare with
_ID_BYTES: Final = 12
_ID_CHARS: Final = 2 * _ID_BYTES

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
"""A reply without any call."""


@dataclass(slots=True)
class Reading:
    """What one reader found, before ids and arguments are looked at."""

    entries: list[Found] = field(default_factory=list)
    truncated: bool = False
    """The token limit cut the reply off."""

    text: str = ""
    """What the model said in words, when no call was found in it."""


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


def settle(reading: Reading | None, *, from_json: bool = False) -> ParsedCalls:
    """Sort what was found into calls and problems: ids, arguments, order.

    Args:
        reading: What was found.
        from_json: The arguments were read from JSON, so what JSON cannot say (a number
            too great for a float) makes a problem. Values of a program stay as they are.
    """
    if reading is None or not reading.entries:
        return NOTHING
    if not reading.truncated:
        calls = settle_plain(reading.entries)
        if calls is not None:
            return ParsedCalls(calls)
    raw = [_to_raw(entry) for entry in reading.entries]
    if from_json:
        raw = [_checked(entry) for entry in raw]
    found = collect_calls(raw, truncated=reading.truncated)
    return ParsedCalls(found.calls, found.problems)


def _checked(entry: RawCall) -> RawCall:
    given = entry.arguments
    if entry.problem or not isinstance(given, dict) or is_plain(given):
        return entry
    try:
        to_plain(given)
    except NotJsonError as exc:
        why = f"arguments were not valid JSON: a value {exc}"
        return entry._replace(problem=why, arguments=None)
    return entry


class _OddError(Exception):
    """An entry that needs a closer look."""


def _frozen(value: Any, depth: int) -> Any:
    """A read-only twin of a JSON value, made in the one step that also checks it."""
    kind = type(value)
    if kind is dict and depth:
        return FrozenDict(
            {
                key: item
                if type(item) in _ATOMS or (type(item) is int and -_BIG < item < _BIG)
                else _frozen(item, depth - 1)
                for key, item in value.items()
            }
        )
    if kind is list and depth:
        return FrozenList(
            [
                item if type(item) in _ATOMS else _frozen(item, depth - 1)
                for item in value
            ]
        )
    if (kind is int and -_HUGE < value < _HUGE) or (kind is float and isfinite(value)):
        return value
    raise _OddError


def _arguments(given: object) -> FrozenDict | None:
    if given is None or given == "":
        return None
    if type(given) is str:
        value, end = scan(given, 0)
        if end != len(given):
            raise _OddError
        given = value
    if type(given) is not dict:
        raise _OddError
    "".join(given)  # a TypeError when a key is no text
    return _frozen(given, MAX_JSON_DEPTH)  # type: ignore[no-any-return]


class _Draft:
    """A `ToolCall` in the making: the same slots, and open.

    What is put in is checked already, so it need not pass through the constructor.
    """

    __slots__ = tuple(item.name for item in fields(ToolCall))


_NO_ARGUMENTS: Final = freeze_mapping()


def _call(call_id: str, name: str, arguments: FrozenDict | None) -> ToolCall:
    draft: Any = _Draft()
    draft.id = call_id
    draft.name = name
    draft.arguments = MappingProxyType(arguments) if arguments else _NO_ARGUMENTS
    draft.namespace = "default"
    draft.idempotency_key = None
    draft.__class__ = ToolCall
    return draft  # type: ignore[no-any-return]


def settle_plain(entries: Sequence[Found]) -> tuple[ToolCall, ...] | None:
    """The calls, when nothing at all is odd about any of them; else None.

    This is the usual case and the fast one; `collect_calls` knows all the others, and
    gives the same for this one.
    """
    calls: list[ToolCall] = []
    used: set[str] = set()
    fresh = ""
    try:
        for place, entry in enumerate(entries):
            call_id, name, given, problem, incomplete, space, key, _ = entry  # type: ignore[misc]
            if problem or incomplete or space is not None or key is not None:
                return None
            if type(name) is not str or not name or name[0] <= " " or name[-1] <= " ":
                return None
            if call_id is None:
                if not fresh:
                    fresh = os.urandom(_ID_BYTES * len(entries)).hex()
                call_id = f"call_{fresh[place * _ID_CHARS : (place + 1) * _ID_CHARS]}"
            elif type(call_id) is not str or not call_id or call_id in used:
                return None
            used.add(call_id)
            calls.append(_call(call_id, name, _arguments(given)))
    except (_OddError, TypeError, ValueError, StopIteration, RecursionError):
        return None
    return tuple(calls)


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
