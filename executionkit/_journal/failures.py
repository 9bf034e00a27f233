"""Failures as JSON-like data and back.

A failure comes back as what it was when its class is one that is loaded here: the class
is looked up, never imported, and made without its `__init__`. Otherwise it comes back
as a `RecordedError` with the same text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from executionkit._error_base import ExecutionKitError, text_of
from executionkit.errors import JournalValueError, RecordedError

__all__ = ("pack_error", "unpack_error")

_MAX_CAUSES: Final = 4
_MAX_NOTES: Final = 20


def pack_error(
    error: BaseException, pack: Callable[[Any], Any], depth: int = 0
) -> dict[str, Any]:
    """A failure as data; what of it cannot be kept is left out.

    Args:
        error: The failure.
        pack: Makes JSON-like data; raises `JournalValueError`.
        depth: Of causes.
    """
    kind = type(error)
    data: dict[str, Any] = {
        "module": kind.__module__,
        "type": kind.__qualname__,
        "text": text_of(error),
    }
    try:
        data["args"] = pack(list(error.args))
    except JournalValueError:
        data["args"] = None  # it cannot be made again, only quoted
    data["state"] = _state(error, pack)
    notes = getattr(error, "__notes__", None)
    if notes:
        data["notes"] = [str(note) for note in notes[:_MAX_NOTES]]
    if error.__cause__ is not None and depth < _MAX_CAUSES:
        data["cause"] = pack_error(error.__cause__, pack, depth + 1)
    return data


def _state(error: BaseException, pack: Callable[[Any], Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in vars(error).items():
        if name == "__notes__":
            continue
        try:
            kept[name] = pack(value)
        except JournalValueError:
            if name == "metadata":
                kept[name] = _parts(value, pack)
    return kept


def _parts(facts: Any, pack: Callable[[Any], Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in facts.items():
        try:
            kept[name] = pack(value)
        except JournalValueError:
            continue
    return kept


def unpack_error(data: dict[str, Any], unpack: Callable[[Any], Any]) -> BaseException:
    """The failure that `pack_error` wrote."""
    error = _made(data, unpack) or RecordedError(data["text"], data["type"])
    for note in data.get("notes", ()):
        error.add_note(note)
    cause = data.get("cause")
    if cause is not None:
        error.__cause__ = unpack_error(cause, unpack)
    return error


def _made(data: dict[str, Any], unpack: Callable[[Any], Any]) -> BaseException | None:
    kind: Any = sys.modules.get(data["module"])
    for name in data["type"].split("."):
        kind = getattr(kind, name, None)
    given = data["args"]
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or given is None:
        return None
    args = tuple(unpack(given))
    state = {name: unpack(value) for name, value in data["state"].items()}
    try:
        error = kind.__new__(kind, *args)
        error.args = args
        error.__dict__.update(state)
        if issubclass(kind, ExecutionKitError):
            _complete(error)
        return error if text_of(error) == data["text"] else None
    except Exception:  # noqa: BLE001 - a foreign class may do anything
        return None


def _complete(error: Any) -> None:
    """What every error of this library has, also when it could not be kept."""
    for name, value in vars(ExecutionKitError()).items():
        error.__dict__.setdefault(name, value)
