"""Default values and caps: each has one name and this one place."""

from __future__ import annotations

from typing import Final

__all__ = (
    "DEFAULT_MAX_CONCURRENCY",
    "DEFAULT_MAX_TOKENS",
    "DEFAULT_TOOL_TIMEOUT",
    "MAX_COOLDOWN",
    "MAX_ERROR_CHARS",
    "MAX_ERROR_DETAIL_CHARS",
    "MAX_JSON_DEPTH",
    "MAX_PROBLEM_CHARS",
    "MAX_RESPONSE_BYTES",
    "MAX_TOKEN_COUNT",
    "SIDE_EFFECTS",
    "DefaultInt",
    "DefaultSeconds",
)

DEFAULT_MAX_TOKENS: Final = 4096
"""Output tokens that a pattern asks for per model call."""

DEFAULT_MAX_CONCURRENCY: Final = 10
"""Model or tool calls of one pattern in flight at once."""


class DefaultSeconds(float):
    """Seconds that nobody chose: a plain number that more specific settings replace."""

    __slots__ = ()

    def __repr__(self) -> str:
        return float.__repr__(self)


class DefaultInt(int):
    """A whole number that nobody chose."""

    __slots__ = ()

    def __repr__(self) -> str:
        return int.__repr__(self)


SIDE_EFFECTS: Final = ("none", "read", "write", "destructive", "unknown")
"""What `side_effects` of a tool may say."""

DEFAULT_TOOL_TIMEOUT: Final = DefaultSeconds(30.0)
"""Seconds that one tool call may run."""

MAX_COOLDOWN: Final = 60.0
"""Seconds that one server's hint may make a shared limiter pause for all its callers."""

MAX_ERROR_CHARS: Final = 4000
"""Characters of an exception's text that are kept in results, errors, logs and traces;
the exception itself keeps its own."""

MAX_ERROR_DETAIL_CHARS: Final = 500
"""Characters of a server's error text that are kept in a message."""

MAX_PROBLEM_CHARS: Final = 800
"""Characters of unreadable tool arguments that are shown to the model."""

MAX_JSON_DEPTH: Final = 128
"""Nesting depth above which JSON from a model or a server is refused.

Freezing, copying and encoding a value take up to three Python frames a level, and the
interpreter allows a thousand."""

MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one response body, or of one streamed line, that are read at most."""

MAX_TOKEN_COUNT: Final = 1_000_000_000
"""A token count above this is taken for garbage."""
