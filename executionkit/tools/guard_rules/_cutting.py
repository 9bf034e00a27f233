"""How a value is measured and cut without becoming something else in silence."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Set as AbstractSet
from typing import Any, Final

__all__ = ("cut_bytes", "cut_json", "cut_text", "encode", "shrink", "text_size")

_SHARE: Final = 2 / 3  # of what may be kept, for the head


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (AbstractSet, tuple)):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: getattr(value, item.name) for item in dataclasses.fields(value)
        }
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("latin-1")
    return repr(value)


_encode = json.JSONEncoder(ensure_ascii=False, default=_plain).encode


def encode(value: Any) -> str:
    """`value` as JSON text; what is no JSON as its `repr`.

    Raises:
        ValueError: When it holds itself.
        RecursionError: When it is nested too deep.
    """
    try:
        return _encode(value)
    except TypeError:  # keys that are no texts
        return repr(value)


def text_size(text: str) -> int:
    """The bytes of `text` in UTF-8."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-8", "surrogatepass"))


def cut_text(text: str, most: int, note: str) -> str:
    """The head and the tail of `text` with `note` between, in at most `most` bytes.

    Cut between characters; of a note that does not fit itself the head is kept.
    """
    room = most - text_size(note)
    if room <= 0:
        return _head(note, most)
    head = _head(text, int(room * _SHARE))
    return f"{head}{note}{_tail(text, room - text_size(head))}"


def _head(text: str, room: int) -> str:
    raw = text[: max(room, 0)].encode("utf-8", "surrogatepass")
    while 0 < room < len(raw) and 0x80 <= raw[room] < 0xC0:
        room -= 1
    return raw[: max(room, 0)].decode("utf-8", "surrogatepass")


def _tail(text: str, room: int) -> str:
    if room <= 0:
        return ""
    raw = text[-room:].encode("utf-8", "surrogatepass")[-room:]
    start = 0
    while start < len(raw) and 0x80 <= raw[start] < 0xC0:
        start += 1
    return raw[start:].decode("utf-8", "surrogatepass")


def cut_bytes(data: bytes, most: int, note: str) -> bytes:
    """The same for bytes."""
    mark = note.encode()
    room = most - len(mark)
    if room <= 0:
        return mark[:most]
    head = data[: int(room * _SHARE)]
    return head + mark + data[len(data) - (room - len(head)) :]


def cut_json(text: str, most: int, note: str) -> dict[str, str]:
    """An object with the head and the tail of a JSON text, in at most `most` bytes.

    The pieces are texts: the object is valid JSON, and says that the original is gone.
    """
    empty = {"truncated": note, "head": "", "tail": ""}
    room = most - text_size(encode(empty))
    if room <= 0:
        return {"truncated": note}
    while True:
        head = _head(text, int(room * _SHARE))
        tail = _tail(text, room - int(room * _SHARE))
        cut = {"truncated": note, "head": head, "tail": tail}
        over = text_size(encode(cut)) - most
        if over <= 0 or room <= 0:
            return cut
        # Quotes and backslashes take two bytes inside of a JSON text.
        room = min(room - 1, room * most // (most + over) - 1)


class _Shrinker:
    __slots__ = ("_items", "_string", "changes")

    def __init__(self, items: int | None, string: int | None) -> None:
        self._items = items
        self._string = string
        self.changes: int = 0

    def visit(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        mapping = isinstance(value, Mapping)
        if not mapping and not isinstance(value, (list, tuple, set, frozenset)):
            return value
        if depth <= 0:
            self.changes += 1
            kind = "object" if mapping else "list"
            return f"[... {kind} with {len(value)} items left out: nested too deep ...]"
        if mapping:
            return self._mapping(value, depth - 1)
        return self._list(list(value), depth - 1, value)

    def _text(self, value: str) -> str:
        if self._string is None or len(value) <= self._string:
            return value
        self.changes += 1
        note = (
            f"[... {len(value) - self._string} of {len(value)} characters left out ...]"
        )
        head = int(self._string * _SHARE)
        tail = self._string - head
        return f"{value[:head]}{note}{value[len(value) - tail :] if tail else ''}"

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[Any, Any]:
        most = self._items
        cut: dict[Any, Any] = {}
        for key, item in value.items():
            if most is not None and len(cut) >= most:
                self.changes += 1
                cut["[truncated]"] = (
                    f"{len(value) - most} of {len(value)} members left out"
                )
                break
            cut[key] = self.visit(item, depth)
        return cut

    def _list(self, items: list[Any], depth: int, original: Any) -> Any:
        most = self._items
        if most is None or len(items) <= most:
            cut = [self.visit(item, depth) for item in items]
            return tuple(cut) if type(original) is tuple else cut
        self.changes += 1
        head = most - most // 3
        note = f"[... {len(items) - most} of {len(items)} items left out ...]"
        first = [self.visit(item, depth) for item in items[:head]]
        last = [self.visit(item, depth) for item in items[len(items) - most + head :]]
        return [*first, note, *last]


def shrink(
    value: Any, *, depth: int, items: int | None, string: int | None
) -> tuple[Any, int]:
    """A copy in which each list, object and text keeps to its cap.

    Args:
        value: JSON-like data.
        depth: Levels that are kept.
        items: Members that a list or an object keeps. None = all.
        string: Characters that a text keeps. None = all.

    Returns:
        The copy, and at how many places something was left out.
    """
    shrinker = _Shrinker(items, string)
    cut = shrinker.visit(value, depth)
    return cut, shrinker.changes
