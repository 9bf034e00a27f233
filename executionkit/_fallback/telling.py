"""Telling those who watch a call of a request in it that brought nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from executionkit.observability import current_scope, model_name, provider_name

if TYPE_CHECKING:
    from executionkit._fallback.members import Member

__all__ = ("tell_attempt",)


def tell_attempt(
    member: Member,
    options: Mapping[str, Any],
    number: int,
    seconds: float,
    error: str,
    facts: Mapping[str, int],
) -> None:
    """Note one request of the model call that is under way.

    Args:
        member: Was asked.
        options: With these.
        number: Of the request in this call, from 1.
        seconds: How long it took.
        error: Why it is no answer.
        facts: More of it.
    """
    scope = current_scope()
    if scope is None or not scope.is_call:
        return
    told: dict[str, Any] = {
        "member": member.name,
        "provider": provider_name(member.provider),
        **facts,
    }
    model = model_name(member.provider, options)
    if model is not None:
        told["model"] = model
    scope.attempted(number, seconds, error, told)
