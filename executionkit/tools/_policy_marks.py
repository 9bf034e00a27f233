"""Marks by which a tool says how it is retried and limited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from executionkit.engine._checks import check_int, check_number
from executionkit.engine.retry import RetryConfig
from executionkit.tools._options import tool_retry
from executionkit.tools._registry.marks import POLICIES, mark_of

__all__ = ("rate_limited", "retry_mark", "retryable")

_T = TypeVar("_T", bound=Callable[..., Any])
_RETRY: Final = "_retry_config"


def retryable(
    max_retries: int = 3,
    base_delay: float = 1.0,
    max_delay: float = 60.0,
    *,
    config: RetryConfig | None = None,
) -> Callable[[_T], _T]:
    """Mark a tool (class or function): its failed calls are tried again.

    That holds in a processor whose retries are off, too, and says that a tool which
    writes may be repeated. Stands below `@tool`.

    Args:
        max_retries: Attempts after the first; 0 = none.
        base_delay: Seconds: upper bound of the first pause.
        max_delay: Seconds: upper bound of every pause.
        config: All settings at once; replaces the others.

    Raises:
        ValueError: For a number out of range.
        TypeError: When the tool is registered already.
    """
    chosen = config or RetryConfig(max_retries, base_delay, max_delay)

    def mark(target: _T) -> _T:
        _put(target, "retryable", "max_retries", chosen.max_retries)
        setattr(target, _RETRY, tool_retry(chosen))
        return target

    return mark


def rate_limited(limit: int, period: float = 60.0) -> Callable[[_T], _T]:
    """Mark a tool (class or function): at most so many starts in any window of time.

    Stands below `@tool`.

    Args:
        limit: Starts, at least 1.
        period: Seconds, above 0.

    Raises:
        ValueError: For a number out of range.
        TypeError: When the tool is registered already.
    """
    check_int("limit", limit, 1)
    check_number("period", period, above=True)

    def mark(target: _T) -> _T:
        _put(target, "rate_limited", "rate_limit", (limit, period))
        target._rate_limit = limit  # type: ignore[attr-defined] # noqa: SLF001
        target._rate_period = period  # type: ignore[attr-defined] # noqa: SLF001
        return target

    return mark


def retry_mark(source: object) -> RetryConfig | None:
    """How `@retryable` says that a tool is retried; None when it says nothing."""
    found = getattr(source, _RETRY, None)
    return found if isinstance(found, RetryConfig) else None


def _put(target: Any, decorator: str, name: str, value: Any) -> None:
    if mark_of(target) is not None:
        msg = (
            f"`@{decorator}` comes too late: `{target.__qualname__}` is registered "
            "already; write it below `@tool`"
        )
        raise TypeError(msg)
    # A fresh mapping: a class must not write into that of its base.
    setattr(target, POLICIES, {**getattr(target, POLICIES, {}), name: value})
