"""Arguments that are the results of other calls."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from executionkit._error_codes import ErrorCode
from executionkit._frozen import FrozenDict, FrozenList, sealed, thaw
from executionkit.errors import ToolProcessorError

__all__ = ("ResultOf", "fill", "find_references", "part_of")

KEY: Final = "$result_of"
_SHOWN: Final = 10
_MAX_DIGITS: Final = 20
_ATOMS: Final = frozenset({bool, bytes, complex, float, int, str, type(None)})
_ROWS: Final = (list, FrozenList, tuple)


@sealed
@dataclass(frozen=True, slots=True)
class ResultOf:
    """Stands in `ToolCallSpec.args`, at any depth, for the result of another call.

    As JSON it is `{"$result_of": "fetch", "path": "/users/0"}`, with a JSON pointer
    (RFC 6901); in arguments that form means the same. The other call must be one of
    `depends_on`.

    Raises:
        ValueError: For an empty id, or a path that is no row of keys and places.
    """

    call_id: str
    """The call whose result is meant."""

    path: tuple[str | int, ...] = ()
    """Keys of mappings and places in lists, from the outside in; empty = all of it."""

    def __post_init__(self) -> None:
        given: object = self.call_id
        if not isinstance(given, str) or not given:
            msg = f"`call_id` must be a text that is not empty, got {given!r}"
            raise ValueError(msg)
        path: object = self.path
        if not isinstance(path, (list, tuple)) or not all(map(_is_step, path)):
            msg = (
                f"`path` must be a tuple of keys and places (>= 0), got {path!r}; for "
                "a JSON pointer use `ResultOf.from_json`"
            )
            raise ValueError(msg)
        object.__setattr__(self, "path", tuple(path))

    @property
    def pointer(self) -> str:
        """The path as a JSON pointer; empty = all of the result."""
        return "".join(
            f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in self.path
        )

    def to_json(self) -> dict[str, str]:
        """The form that JSON can hold."""
        data = {KEY: self.call_id}
        if self.path:
            data["path"] = self.pointer
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ResultOf:
        """What `to_json` wrote.

        Raises:
            ValueError: For other keys, or a path that is no JSON pointer.
        """
        others = sorted(map(repr, set(data) - {KEY, "path"}))
        if KEY not in data or others:
            msg = f"{KEY!r} may have `path` beside it, nothing else; got {_row(others)}"
            raise ValueError(msg)
        return cls(data[KEY], _steps(data.get("path", "")))


def _is_step(step: object) -> bool:
    return type(step) is str or (type(step) is int and step >= 0)


def _steps(pointer: object) -> tuple[str, ...]:
    if not isinstance(pointer, str) or (pointer and pointer[0] != "/"):
        msg = f"`path` must be a JSON pointer such as '/users/0', got {pointer!r}"
        raise ValueError(msg)
    steps = pointer.split("/")[1:]
    if any("~" in step.replace("~0", "").replace("~1", "") for step in steps):
        msg = f"in a JSON pointer `~` is written `~0`, and `/` `~1`; got {pointer!r}"
        raise ValueError(msg)
    return tuple([step.replace("~1", "/").replace("~0", "~") for step in steps])


def find_references(args: Mapping[str, Any]) -> tuple[ResultOf, ...]:
    """All references in `args`, each once.

    Raises:
        ValueError: When the JSON form of one makes no sense.
    """
    todo = [value for value in args.values() if type(value) not in _ATOMS]
    if KEY in args:
        todo.append(ResultOf.from_json(args))
    found: dict[ResultOf, None] = {}
    while todo:
        value = todo.pop()
        if type(value) is ResultOf:
            found[value] = None
        elif isinstance(value, (dict, MappingProxyType)):
            if KEY in value:
                found[ResultOf.from_json(value)] = None
            else:
                todo += [item for item in value.values() if type(item) not in _ATOMS]
        elif type(value) in _ROWS:
            todo += [item for item in value if type(item) not in _ATOMS]
    return tuple(found)


def fill(value: Any, look_up: Callable[[ResultOf], Any]) -> Any:
    """A copy of `value` with what `look_up` gives in the place of each reference."""
    if type(value) in _ATOMS:
        return value
    if type(value) is ResultOf:
        return look_up(value)
    if isinstance(value, (dict, MappingProxyType)):
        if KEY in value:
            return look_up(ResultOf.from_json(value))
        return {key: fill(item, look_up) for key, item in value.items()}
    if type(value) in _ROWS:
        items = [fill(item, look_up) for item in value]
        return tuple(items) if type(value) is tuple else items
    return value


def part_of(reference: ResultOf, result: Any) -> Any:
    """The part of `result` that is meant; nothing that changes it changes the result.

    Raises:
        ToolProcessorError: `TOOL_ARGUMENT_ERROR`: there is no such part, or it can be
            neither shared nor copied.
    """
    value = result
    for depth, step in enumerate(reference.path):
        found, value = _step(value, step)
        if not found:
            raise _missing(reference, depth, value)
    if _is_plain(value):
        return value
    try:
        return copy.deepcopy(thaw(value))
    except Exception as exc:
        msg = (
            f"the result of {reference.call_id!r} cannot be an argument: a "
            f"{type(value).__name__} in it cannot be copied"
        )
        raise _refused(msg, reference) from exc


def _step(value: Any, step: str | int) -> tuple[bool, Any]:
    """(True, the part), or (False, where it was looked for)."""
    if isinstance(value, Mapping):
        for key in (step, str(step)):
            if key in value:
                return True, value[key]
    elif type(value) in _ROWS:
        text = str(step)
        # A pointer's places are written in one way: no sign, no leading zero.
        if text.isascii() and text.isdigit() and (text[0] != "0" or text == "0"):
            # More digits than any list has items could not be read at all.
            place = int(text) if len(text) < _MAX_DIGITS else len(value)
            if place < len(value):
                return True, value[place]
    return False, value


def _is_plain(value: Any) -> bool:
    """Whether it is read-only all the way down."""
    todo = [value]
    while todo:
        item = todo.pop()
        kind = type(item)
        if kind in _ATOMS:
            continue
        if kind is FrozenDict:
            todo += item.values()
        elif kind in {FrozenList, tuple, frozenset}:
            todo += item
        else:
            return False
    return True


def _missing(reference: ResultOf, depth: int, where: Any) -> ToolProcessorError:
    if isinstance(where, Mapping):
        there = f"its keys are {_row([repr(key) for key in where])}"
    elif type(where) in _ROWS:
        there = f"it has {len(where)} items"
    else:
        there = f"a {type(where).__name__} has no parts"
    step = reference.path[depth]
    at = ResultOf(reference.call_id, reference.path[:depth]).pointer
    where_text = f" at {at!r}" if at else ""
    msg = (
        f"an argument needs {reference.pointer!r} of the result of "
        f"{reference.call_id!r}, and there is no {step!r}{where_text}: {there}"
    )
    return _refused(msg, reference)


def _refused(message: str, reference: ResultOf) -> ToolProcessorError:
    return ToolProcessorError(
        message,
        code=ErrorCode.TOOL_ARGUMENT_ERROR,
        details={"result_of": reference.call_id, "path": reference.pointer},
    )


def _row(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return (
        ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    ) or "none"
