"""Sinks for trace events: memory, and a file."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Self

from executionkit._redact import redact_value
from executionkit.observability._events import TraceEvent, log_once
from executionkit.types import JsonValue, TokenUsage

__all__ = ("JsonlTraceSink", "MemoryTraceSink", "jsonable")


class MemoryTraceSink:
    """Keeps the newest events in memory; for tests and notebooks.

    Args:
        max_events: How many are kept (>= 1); the oldest are dropped and counted.
    """

    def __init__(self, max_events: int = 10_000) -> None:
        if max_events < 1:
            msg = f"`max_events` must be >= 1, got {max_events}"
            raise ValueError(msg)
        self._events: deque[TraceEvent] = deque(maxlen=max_events)
        self._seen = 0

    def __call__(self, event: TraceEvent) -> None:
        self._events.append(event)
        self._seen += 1

    @property
    def events(self) -> list[TraceEvent]:
        """The events that are kept, oldest first; a new list each time."""
        return list(self._events)

    @property
    def kinds(self) -> list[str]:
        """The kinds of the events that are kept, oldest first."""
        return [event.kind for event in self._events]

    @property
    def dropped(self) -> int:
        """Events that are not kept any more."""
        return self._seen - len(self._events)

    def clear(self) -> None:
        """Forget all events."""
        self._events.clear()
        self._seen = 0


_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_OWNER_ONLY: Final = 0o600


class JsonlTraceSink:
    """Appends each event to a file as one line of JSON, written out at once.

    Several tasks, threads and processes may append to one file. An event that cannot
    be written is counted and logged (once), and the run goes on. The file is opened
    with the first event, readable by its owner only.

    Args:
        path: The file; its folder must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given: object = path
        if not isinstance(given, (str, os.PathLike)):
            msg = f"`path` must be a str or a path, got {type(given).__name__}"
            raise TypeError(msg)
        self._path = os.fspath(path)
        self._lock = threading.Lock()
        self._file: int | None = None
        self._closer: weakref.finalize[Any, Any] | None = None
        self._failed = 0
        self._is_inside = False

    @property
    def path(self) -> str:
        """The file."""
        return self._path

    @property
    def failed(self) -> int:
        """Events that could not be written."""
        return self._failed

    def __call__(self, event: TraceEvent) -> None:
        try:
            line = _json_line(event)
            with self._lock:
                self._write(line)
        except (OSError, ValueError, TypeError, RecursionError) as exc:
            self._failed += 1
            log_once(self, exc)

    def close(self) -> None:
        """Close the file; another event opens it again."""
        with self._lock:
            if self._closer is not None:
                self._closer()
            self._file = self._closer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        if self._file is None:
            self._file = os.open(
                self._path, _APPEND | getattr(os, "O_BINARY", 0), _OWNER_ONLY
            )
            self._closer = weakref.finalize(self, os.close, self._file)
            self._is_inside = _ends_inside_a_line(self._path)
        if self._is_inside:
            line = b"\n" + line
        # One write: lines of several processes never mix.
        written = os.write(self._file, line)
        if written < len(line):
            self._is_inside = self._is_inside or written > 0
            msg = f"only {written} of {len(line)} bytes could be written"
            raise OSError(msg)
        self._is_inside = False


def _ends_inside_a_line(path: str) -> bool:
    """Whether a process died while it wrote the last line."""
    with open(path, "rb") as file:  # noqa: PTH123 - a path in any form
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _json_line(event: TraceEvent) -> bytes:
    record = {"time": event.time, "kind": event.kind, "request_id": event.request_id}
    record["payload"] = jsonable(redact_value(event.payload))
    return json.dumps(record, default=str).encode("ascii") + b"\n"


def jsonable(value: Any) -> JsonValue:
    """Plain data as JSON allows it: text keys, no NaN, no infinity."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, TokenUsage):
        return dataclasses.asdict(value)
    if isinstance(value, Enum):
        return jsonable(value.value)
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
