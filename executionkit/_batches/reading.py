"""What both services' results have in common: from a payload to an item."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from executionkit._batches.values import BatchItem, BatchItemStatus
from executionkit._llm import LLMResponse
from executionkit._usage import response_usage
from executionkit._wire.failures import Failure, excerpt
from executionkit.errors import LLMError
from executionkit.types import TokenUsage

__all__ = ("answered", "malformed", "number", "refused", "seconds", "word")


_LATEST = 1e12
"""Seconds: a date beyond is none."""


def answered(
    custom_id: str, payload: Any, parse: Callable[[Any], LLMResponse]
) -> BatchItem:
    """The item of a request that the model answered.

    Args:
        custom_id: Of the request.
        payload: The answer's JSON.
        parse: Reads it.
    """
    usage = payload.get("usage") if isinstance(payload, Mapping) else None
    try:
        response = parse(payload)
    except (LLMError, RecursionError) as exc:
        failed = malformed(custom_id, str(exc), "malformed_message")
        # It cannot be read, but it was paid for.
        spent = LLMResponse("", usage=usage if isinstance(usage, dict) else {})
        return replace(failed, cost=_cost(spent))
    return BatchItem(custom_id, BatchItemStatus.SUCCEEDED, response, _cost(response))


def _cost(response: LLMResponse) -> TokenUsage:
    return response_usage(response) + TokenUsage(llm_calls=1)


def malformed(
    custom_id: str, why: str, error_type: str = "malformed_result"
) -> BatchItem:
    """The item of a request whose result cannot be read."""
    return BatchItem(
        custom_id, BatchItemStatus.ERRORED, error=why, error_type=error_type
    )


def refused(
    custom_id: str,
    status: BatchItemStatus,
    failure: Failure | None = None,
    secrets: tuple[str, ...] = (),
) -> BatchItem:
    """The item of a request that has no answer, and why."""
    if failure is None:
        return BatchItem(custom_id, status, error=f"the request is {status}")
    kind = failure.code if failure.kind in {"", failure.code} else failure.kind
    said = f"HTTP {failure.status}: " if failure.status >= 300 else ""
    words = excerpt(failure.detail, secrets=secrets) or "no reason was given"
    return BatchItem(
        custom_id,
        status,
        error=said + words,
        error_type=excerpt(kind, secrets=secrets),
    )


def word(value: object) -> str:
    """A text of a service's object; empty when it is none."""
    return value if isinstance(value, str) else ""


def number(value: object) -> int:
    """A count of a service's object; 0 when it is none."""
    return value if type(value) is int and value > 0 else 0


def seconds(value: object) -> float | None:
    """A date of a service's object, in wall-clock seconds; None when it is none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if abs(value) < _LATEST else None
    if not isinstance(value, str) or len(value) > 64:
        return None
    from datetime import UTC, datetime

    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
