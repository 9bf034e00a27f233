"""Where words go: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from math import isfinite
from typing import Any, TextIO

from executionkit._redact import redact, redact_value
from executionkit.types import TokenUsage, thaw

__all__ = ("ConfigError", "Console", "Exit", "UsageError", "as_json", "cost_json")


class Exit(IntEnum):
    """The exit codes."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONFIG = 3
    INTERRUPTED = 130
    READER_GONE = 141


class UsageError(Exception):
    """The command was called in a wrong way."""


class ConfigError(Exception):
    """No provider, or one that cannot be used as it is configured."""


class Console:
    """Writes results and notes.

    Standard output belongs to results: what tools print goes to standard error while a
    command runs (see `_app`).

    Args:
        quiet: Whether notes and progress are left out; errors are not.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.out: TextIO = sys.stdout
        self.quiet = quiet
        self.secrets: tuple[str, ...] = ()

    @property
    def has_terminal(self) -> bool:
        """Whether a person sees what is written to standard error."""
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def show_cursor(self) -> None:
        """Undo what a progress bar does to a terminal, before an end by force."""
        if self.has_terminal:
            with suppress(OSError, ValueError):
                sys.stderr.write("\x1b[?25h")
                sys.stderr.flush()

    def result(self, text: str) -> None:
        """A line of the result; there at once.

        Raises:
            BrokenPipeError: When nobody reads any more.
        """
        self.out.write(_writable(text if text.endswith("\n") else text + "\n"))
        self.out.flush()

    def json(self, value: Any, *, indent: int | None = None) -> None:
        """A value as a result."""
        self.result(as_json(value, indent=indent))

    def note(self, text: str) -> None:
        """What is good to know."""
        if not self.quiet:
            self.error(text)

    def error(self, text: str) -> None:
        """What must be known; secrets are hidden."""
        with suppress(OSError, ValueError):
            sys.stderr.write(_writable(f"{redact(text, secrets=self.secrets)}\n"))
            sys.stderr.flush()

    def clean(self, value: Any) -> Any:
        """A value about a run, with secrets hidden."""
        return redact_value(thaw(value), secrets=self.secrets)


def as_json(value: Any, *, indent: int | None = None) -> str:
    """JSON on one line (or indented); what JSON does not know is written as text."""
    plain = thaw(value)
    try:
        text = _dumps(plain, indent)
    except ValueError:  # NaN and infinity, which JSON does not have
        text = _dumps(_finite(plain), indent)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a pair of surrogates, which UTF-8 does not have
        return json.dumps(json.loads(text), indent=indent)
    return text


def _dumps(value: Any, indent: int | None) -> str:
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, indent=indent, default=_other
    )


def _finite(value: Any) -> Any:
    """`value` with a text in the place of each number that JSON does not have."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _writable(text: str) -> str:
    """`text` with a question mark for what UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _other(value: object) -> Any:
    if isinstance(value, TokenUsage):
        return cost_json(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


def cost_json(usage: TokenUsage, money: float | None = None) -> dict[str, Any]:
    """What was spent, for JSON."""
    found: dict[str, Any] = {
        "llm_calls": usage.llm_calls,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
    }
    for name in ("cache_read_tokens", "cache_write_tokens", "reasoning_tokens"):
        if getattr(usage, name):
            found[name] = getattr(usage, name)
    if money is not None:
        found["money"] = round(money, 8)
    return found
