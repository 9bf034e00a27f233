"""A tool's value as text for a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any, Final

__all__ = ("render_result",)

_TEXT_TYPES: Final = ("text", "output_text")
_WRITTEN: Final = frozenset({("decimal", "Decimal"), ("uuid", "UUID")})


def render_result(value: Any) -> str:
    """A tool's value as text for a model.

    Text stays as it is, None becomes an empty string, a list of text parts
    (`{"type": "text", "text": ...}`) their joined text, anything else JSON. In it, dates
    and times are written in ISO 8601, decimals, UUIDs and paths as text, enum
    members as their values, dataclasses and pydantic models as objects.

    Raises:
        TypeError: When the value cannot be written as JSON.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and value and all(_is_text_part(part) for part in value):
        return "".join(part["text"] for part in value)
    try:
        return _encode(value)
    except (ValueError, RecursionError) as exc:
        # NaN, infinity, a cycle, or nesting without end.
        msg = f"a {type(value).__name__} cannot be written as JSON: {exc}"
        raise TypeError(msg) from exc


def _plain(value: Any) -> Any:
    """What stands for a value in JSON, where nobody can take it for something else."""
    if isinstance(value, Mapping):
        return dict(value)
    kind = type(value)
    if isinstance(value, Enum):
        return value.value
    home = kind.__module__.partition(".")[0]
    if home == "datetime" and hasattr(value, "isoformat"):
        return value.isoformat()
    if (home, kind.__name__) in _WRITTEN or isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json")
    msg = (
        f"a {type(value).__name__} cannot be written as JSON; return text, numbers, "
        "lists, dicts or None from a tool"
    )
    raise TypeError(msg)


# `json.dumps` with options builds an encoder for each call; this one is built once.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain).encode


def _is_text_part(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and part.get("type") in _TEXT_TYPES
        and isinstance(part.get("text"), str)
    )
