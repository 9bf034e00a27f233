"""What `@tool` leaves on a class or function, so that any registry knows its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from executionkit._frozen import freeze_mapping, sealed

__all__ = ("MARK", "POLICIES", "Mark", "mark_of", "policies_of", "put_mark")

MARK: Final = "_tool_registration_info"
"""The attribute."""

POLICIES: Final = "_tool_policies"
"""The attribute with the metadata that `@retryable` and `@rate_limited` say."""


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How a class or function was decorated."""

    name: str
    namespace: str = "default"
    metadata: Mapping[str, Any] = field(default_factory=freeze_mapping)
    """What was said of it; its description too."""


def mark_of(source: object) -> Mark | None:
    """The mark of a class or function, or of an object's class; heirs have none."""
    for holder in (source, type(source)):
        own = getattr(holder, "__dict__", None)
        mark = None if own is None else own.get(MARK)
        if isinstance(mark, Mark):
            return mark
    return None


def policies_of(source: object) -> Mapping[str, Any] | None:
    """What `@retryable` and `@rate_limited` say of a tool; heirs have it too."""
    found = getattr(source, POLICIES, None)
    return found if isinstance(found, Mapping) else None


def put_mark(source: Any, mark: Mark) -> None:
    """Leave a mark; what takes no attributes stays as it is."""
    try:
        setattr(source, MARK, mark)
        if not hasattr(source, "tool_name"):
            source.tool_name = mark.name
    except (AttributeError, TypeError):
        return
