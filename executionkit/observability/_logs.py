"""Trace events as structured logs, with the standard library alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from executionkit._redact import redact, redact_value
from executionkit.observability._events import TraceEvent
from executionkit.observability._sinks import jsonable

__all__ = ("JsonLogFormatter", "LoggingTraceSink")

_SHORT: Final = ("pattern", "model", "tool_name", "step", "reason", "attempt")
_LONG: Final = frozenset({"content", "arguments"})


class LoggingTraceSink:
    """Writes each event to a logger; no handler and no level is set.

    The record's message is for people; its attribute `event` holds all facts (`kind`,
    `request_id`, and the payload), for a formatter such as `JsonLogFormatter`. Replies
    and arguments are left out unless `show_content` asks for them.

    Args:
        logger: The logger, or its name.
        level: For events of what goes well.
        error_level: For events that tell of a failure.
        show_content: Whether replies and arguments are among the facts.
    """

    def __init__(
        self,
        logger: logging.Logger | str = "executionkit.trace",
        *,
        level: int = logging.INFO,
        error_level: int = logging.WARNING,
        show_content: bool = False,
    ) -> None:
        self._logger: logging.Logger = (
            logging.getLogger(logger) if isinstance(logger, str) else logger
        )
        self._level = level
        self._error_level = error_level
        self._show_content = show_content

    def __call__(self, event: TraceEvent) -> None:
        payload = event.payload
        failed = payload.get("error") or payload.get("error_type")
        level = self._error_level if failed else self._level
        if not self._logger.isEnabledFor(level):
            return
        facts: dict[str, Any] = {"kind": event.kind, "request_id": event.request_id}
        for key, value in redact_value(payload).items():
            if self._show_content or key not in _LONG:
                facts[key] = jsonable(value)
        self._logger.log(level, "%s", _words(event.kind, facts), extra={"event": facts})


class JsonLogFormatter(logging.Formatter):
    """One line of JSON for each record: time, level, logger, message, and its `event`.

    Credentials are hidden. Of an exception its type and text are shown, no traceback:
    that may hold values of variables.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "time": record.created,
            "level": record.levelname,
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        event: object = getattr(record, "event", None)
        if isinstance(event, Mapping):
            line["event"] = jsonable(redact_value(event))
        if record.exc_info and record.exc_info[1] is not None:
            exc = record.exc_info[1]
            line["error"] = redact(f"{type(exc).__name__}: {exc}")
        return json.dumps(line, default=str)


def _words(kind: str, facts: Mapping[str, Any]) -> str:
    """The event in words: what it is, of whom, how long, and what went wrong."""
    words = [kind]
    words += [str(facts[name]) for name in _SHORT if facts.get(name) is not None]
    if isinstance(facts.get("duration"), (int, float)):
        words.append(f"{facts['duration']:.3f}s")
    failed = facts.get("error") or facts.get("error_type")
    if failed:
        words.append(f"failed: {failed}")
    return " ".join(words)
