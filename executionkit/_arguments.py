"""Checks of what a caller hands in, before anything is spent.

Each costs an `isinstance` or a `callable`. A refusal is a `TypeError` that names the
parameter, what it was given, and what to give instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from executionkit._redact import redact
from executionkit.engine.retry import RetryConfig
from executionkit.types import TokenUsage

__all__ = (
    "check_budget",
    "check_callable",
    "check_limiter",
    "check_messages",
    "check_prompt",
    "check_provider",
    "check_retry",
    "check_trace",
    "shown",
)

_MOST_SHOWN: Final = 80


def shown(value: object) -> str:
    """What `value` looks like in a message: at most 80 characters, no secrets."""
    try:
        text = repr(value)
    except Exception as exc:  # noqa: BLE001 - a user's `__repr__` may do anything
        text = f"<{type(value).__name__}, whose repr raised {type(exc).__name__}>"
    # Hide first: half a secret is not recognised any more.
    text = redact(text[: _MOST_SHOWN * 50])
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def check_callable(name: str, value: object, *, hint: str = "") -> None:
    """Refuse what cannot be called; None is refused too.

    Args:
        name: The parameter.
        value: What it was given.
        hint: What to give instead.

    Raises:
        TypeError: When `value` is not callable.
    """
    if not callable(value):
        _refuse(name, "be callable", value, hint)


def check_budget(name: str, value: object) -> None:
    """Refuse a budget that is not a `TokenUsage`; None = no limit.

    Raises:
        TypeError: When it is not.
    """
    if value is None or isinstance(value, TokenUsage):
        return
    hint = "`TokenUsage(llm_calls=...)` limits calls, `output_tokens=...` tokens"
    if isinstance(value, int) and not isinstance(value, bool):
        hint = f"to limit calls, pass `TokenUsage(llm_calls={value})`"
    elif isinstance(value, Mapping):
        hint = "pass `TokenUsage(**...)`"
    _refuse(name, "be a TokenUsage or None", value, hint)


def check_retry(name: str, value: object) -> None:
    """Refuse a retry setting that is not a `RetryConfig`; None = the default.

    Raises:
        TypeError: When it is not.
    """
    if value is None or isinstance(value, RetryConfig):
        return
    hint = "for example `RetryConfig(max_retries=3)`"
    if isinstance(value, int) and not isinstance(value, bool):
        hint = f"pass `RetryConfig(max_retries={value})`"
    _refuse(name, "be a RetryConfig or None", value, hint)


def check_provider(value: object) -> None:
    """Refuse what is not a provider: it has an async method `complete`.

    Raises:
        TypeError: When it is not; a class instead of an object is told apart.
    """
    if isinstance(value, type):
        hint = f"pass an object: `{value.__name__}(...)`"
        _refuse("provider", "be a provider, not a class", value, hint)
    if not callable(getattr(value, "complete", None)):
        hint = "for example `Provider(base_url, model)`; it needs an async `complete`"
        _refuse("provider", "be a provider", value, hint)


def check_limiter(name: str, value: object) -> None:
    """Refuse what gives no permits; None = no limiter.

    Raises:
        TypeError: When it has no method `acquire`.
    """
    gives = callable(getattr(value, "acquire", None)) and not isinstance(value, type)
    if value is None or gives:
        return
    hint = "for example `TokenBucket(rate=5)`, five permits a second"
    _refuse(name, "be a limiter or None", value, hint)


def check_messages(name: str, value: object) -> None:
    """Refuse what is no list of messages; None = none.

    Raises:
        TypeError: When it is a text, one message alone, or holds anything else.
    """
    hint = 'for example [{"role": "user", "content": "Hello"}]'
    if value is None:
        return
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        _refuse(name, "be a list of messages", value, hint)
    if isinstance(value, Sequence):  # an iterator can be read only once
        for place, message in enumerate(value):
            if not isinstance(message, Mapping):
                _refuse(f"{name}[{place}]", "be a message (an object)", message, hint)


def check_prompt(name: str, value: object) -> None:
    """Refuse a prompt that is not text; an empty one is fine.

    Raises:
        TypeError: When it is not; a list of messages is told apart.
    """
    if isinstance(value, str):
        return
    hint = "pass one text"
    if _is_messages(value):
        hint = "a conversation goes to `react_loop(..., messages=...)`"
    _refuse(name, "be a str", value, hint)


def check_trace(value: object) -> None:
    """Refuse a trace callback that cannot be called; None = no trace.

    Raises:
        TypeError: When it cannot, or is a class (each event would make an object); for
            a path the sink that writes files is named.
    """
    if value is None or (callable(value) and not isinstance(value, type)):
        return
    hint = "pass a function that takes a `TraceEvent`"
    if isinstance(value, type):
        hint = f"pass an object: `{value.__name__}(...)`"
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        hint = "to write a file, pass `JsonlTraceSink(path)`"
    _refuse("trace", "be callable or None", value, hint)


def _is_messages(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) > 0
        and all(isinstance(item, Mapping) and "role" in item for item in value)
    )


def _refuse(name: str, wanted: str, value: object, hint: str) -> NoReturn:
    got = f"{shown(value)} ({type(value).__name__})" if value is not None else "None"
    msg = f"`{name}` must {wanted}, got {got}"
    raise TypeError(f"{msg}; {hint}" if hint else msg)
