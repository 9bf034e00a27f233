"""Asking a server to hold its reply to a JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from executionkit.errors import LLMError, PermanentError

__all__ = ("json_format", "refuses_request", "supports_format")

_REFUSED: Final = frozenset({400, 415, 422})


def supports_format(provider: object) -> bool:
    """Whether the provider says that it constrains replies to a schema."""
    return getattr(provider, "supports_response_format", False) is True


def json_format(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The `response_format` of OpenAI's API for a schema."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


def refuses_request(failure: LLMError) -> bool:
    """Whether a server refused how it was asked, so that another way may do.

    A wrong key, a missing model and the like are no reason to ask again.
    """
    if not isinstance(failure, PermanentError):
        return False
    return failure.metadata.get("status") in _REFUSED
