"""Reading traces: lines and events become records; what cannot be read is counted."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from executionkit._redact import redact, redact_value
from executionkit.observability import TraceEvent
from executionkit.types import TokenUsage

__all__ = ("Reader", "Record", "Source", "number", "seconds")

Source: TypeAlias = (
    str
    | os.PathLike[str]
    | Iterable["str | os.PathLike[str] | TraceEvent | Mapping[str, Any]"]
)
"""A file, several files, or events; the file `-` is standard input."""

_MAX_LINE: Final = 16 * 1024 * 1024
_MAX_SECONDS: Final = 4e9  # a century: microseconds of it are exact in a browser
_MAX_MEMO: Final = 4096
_MAX_MEMO_TEXT: Final = 256
_MAX_PAYLOAD: Final = 16_384
_HEX_ID: Final = re.compile(r"[0-9a-f]{16}")

# Keys of the events of this library whose values say nothing secret: numbers, and
# names. `test_plain_keys_are_no_secret_names` asks the redactor about each.
_NUMBERS: Final = frozenset(
    [
        "duration",
        "attempts",
        "attempt",
        "requests",
        "input_tokens",
        "output_tokens",
        "cached_tokens",
        "usd",
        "cached",
        "blocked",
        "process",
        "index",
        "delay",
        "llm_calls",
        "cache_read_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
    ]
)
_NAMES: Final = frozenset(
    [
        "model",
        "provider",
        "member",
        "tool_name",
        "tool",
        "tool_call_id",
        "call_id",
        "pattern",
        "step",
        "reason",
        "error",
        "error_type",
        "error_code",
        "code",
    ]
)


@dataclasses.dataclass(slots=True)
class Record:
    """One event, redacted."""

    time: float
    kind: str
    request_id: str | None
    payload: dict[str, Any]


class Reader:
    """Reads events one after the other, in bounded memory.

    Args:
        secrets: Values that are known to be secret; what is known by its shape or its
            name is hidden in any case.
        max_text: Characters of one text of a payload that are kept.
    """

    def __init__(self, *, secrets: Iterable[str] = (), max_text: int = 4096) -> None:
        self._secrets = (secrets,) if isinstance(secrets, str) else tuple(secrets)
        self._max_text = max_text
        self._memo: dict[str, str] = {}
        self._time = 0.0
        self.events = 0
        """Events that were read."""
        self.skipped = 0
        """Lines and values that are no event."""
        self.cut = False
        """Whether the last line of a file has no end: its writer may still write."""
        self.names: list[str] = []
        """The files."""

    def records(self, source: Source) -> Iterator[Record]:
        """All events of `source`.

        Raises:
            OSError: When a file cannot be read.
            TypeError: For a source of another kind.
        """
        if isinstance(source, (str, os.PathLike)):
            yield from self._file(source)
            return
        if isinstance(source, (bytes, Mapping)) or not isinstance(source, Iterable):
            msg = (
                "`source` must be a path, or an iterable of paths or events, got "
                f"{type(source).__name__}"
            )
            raise TypeError(msg)
        for item in source:
            if isinstance(item, (str, os.PathLike)):
                yield from self._file(item)
            else:
                yield from self._one(item)

    def clean(self, text: str) -> str:
        """`text` without secrets."""
        known = self._memo.get(text)
        if known is None:
            known = redact(text, secrets=self._secrets)
            if len(text) <= _MAX_MEMO_TEXT:
                if len(self._memo) >= _MAX_MEMO:
                    self._memo.clear()
                self._memo[text] = known
        return known

    def _file(self, path: str | os.PathLike[str]) -> Iterator[Record]:
        if os.fspath(path) == "-":
            self.names.append("standard input")
            yield from self._lines(sys.stdin.buffer)
            return
        self.names.append(self.clean(Path(path).name))
        with Path(path).open("rb") as file:
            yield from self._lines(file)

    def _lines(self, file: IO[bytes]) -> Iterator[Record]:
        first = True
        while line := file.readline(_MAX_LINE):
            whole = line.endswith(b"\n")
            if first:
                line = line.removeprefix(b"\xef\xbb\xbf")
                first = False
            if not whole and len(line) >= _MAX_LINE:
                while (rest := file.readline(_MAX_LINE)) and not rest.endswith(b"\n"):
                    pass
                self.skipped += 1
                continue
            if line.strip():
                yield from self._one(_parsed(line), whole=whole)

    def _one(self, item: object, *, whole: bool = True) -> Iterator[Record]:
        if isinstance(item, TraceEvent):
            item = {
                "time": item.time,
                "kind": item.kind,
                "request_id": item.request_id,
                "payload": item.payload,
            }
        kind = item.get("kind") if isinstance(item, Mapping) else None
        if not isinstance(item, Mapping) or not isinstance(kind, str):
            if whole:
                self.skipped += 1
            else:
                self.cut = True
            return
        self.events += 1
        time = seconds(item.get("time"))
        if time is not None:
            self._time = time
        request = item.get("request_id")
        payload = item.get("payload")
        yield Record(
            self._time,
            self.clean(kind)[:_MAX_MEMO_TEXT],
            self.clean(request) if isinstance(request, str) else None,
            self._payload(payload) if isinstance(payload, Mapping) else {},
        )

    def _payload(self, payload: Mapping[Any, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        rest: dict[Any, Any] = {}
        for key, value in payload.items():
            if isinstance(value, TokenUsage):
                kept[str(key)] = dataclasses.asdict(value)
            elif key in _NAMES and type(value) is str:
                kept[key] = self.clean(value)[: self._max_text]
            elif _is_plain(key, value):
                kept[key] = value
            else:
                rest[key] = value
        if rest:
            shown = redact_value(rest, secrets=self._secrets)
            # Cut after hiding: half a secret can no longer be recognised.
            room = _Room(self._max_text, _MAX_PAYLOAD)
            kept.update({str(key): room.cut(item) for key, item in shown.items()})
        return kept


def _parsed(line: bytes) -> object:
    try:
        return json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _is_plain(key: object, value: object) -> bool:
    """Whether there is nothing to hide in a value."""
    if value is None or type(value) is bool:
        return True
    if key in {"span_id", "parent_id"}:
        return type(value) is str and _HEX_ID.fullmatch(value) is not None
    if key == "cost" and isinstance(value, Mapping):
        return all(
            name in _NUMBERS and _is_finite(item) for name, item in value.items()
        )
    return key in _NUMBERS and _is_finite(value)


def _is_finite(value: object) -> bool:
    return type(value) in {int, float} and number(value) is not None


def number(value: object) -> float | None:
    """A finite number as a float; None for all else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) < float("inf") else None


def seconds(value: object) -> float | None:
    """A number of seconds, or a time, that a page can show; None for all else."""
    found = number(value)
    return found if found is not None and abs(found) <= _MAX_SECONDS else None


class _Room:
    """Makes plain, short data: text keys, no NaN, so many characters at most."""

    def __init__(self, text: int, total: int) -> None:
        self._text = text
        self._left = total

    def cut(self, value: Any, depth: int = 12) -> Any:
        if value is None or type(value) is bool:
            return value
        if isinstance(value, (int, float)) and not isinstance(value, Enum):
            return value if number(value) is not None else str(value)[:64]
        if isinstance(value, Mapping) and depth:
            return self._mapping(value, depth)
        if isinstance(value, (list, tuple)) and depth:
            return self._list(value, depth)
        return self._cut_text(str(value.value if isinstance(value, Enum) else value))

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, item in value.items():
            if self._left <= 0:
                found["…"] = f"{len(value) - len(found)} more"
                break
            found[self._cut_text(str(key))] = self.cut(item, depth - 1)
        return found

    def _list(self, value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        found: list[Any] = []
        for item in value:
            if self._left <= 0:
                found.append(f"… {len(value) - len(found)} more")
                break
            found.append(self.cut(item, depth - 1))
        return found

    def _cut_text(self, text: str) -> str:
        room = max(min(self._text, self._left), 32)
        self._left -= len(text) + 8
        if len(text) <= room:
            return text
        return f"{text[:room]}… [{len(text) - room} more characters]"
