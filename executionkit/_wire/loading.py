"""JSON from a server, with a depth that everything after it can take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from executionkit._constants import MAX_JSON_DEPTH
from executionkit.engine.json_extraction import loads_json

if TYPE_CHECKING:
    from executionkit.types import JsonValue

__all__ = ("load_reply",)

_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")


def load_reply(text: str | bytes) -> JsonValue:
    """The value in `text`, nested at most `MAX_JSON_DEPTH` deep; exactly that.

    Raises:
        ValueError: When it is no JSON, or nested deeper.
    """
    value = loads_json(text)
    if _may_be_deep(text) and _is_deep(value):
        msg = f"nested deeper than {MAX_JSON_DEPTH} levels"
        raise ValueError(msg)
    return value


def _may_be_deep(text: str | bytes) -> bool:
    """Whether looking at each value is worth it; costs next to nothing."""
    if len(text) <= 2 * MAX_JSON_DEPTH:  # a level takes two brackets
        return False
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    brackets = data.translate(_ONE_KIND, _NOT_BRACKETS)
    # Each round takes away the innermost level. Brackets inside of texts may stop it
    # early; then the values decide.
    for _ in range(MAX_JSON_DEPTH):
        left = brackets.replace(b"[]", b"")
        if not left:
            return False
        if len(left) == len(brackets):
            return True
        brackets = left
    return True


def _is_deep(value: JsonValue) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_JSON_DEPTH):
        inside: list[Any] = []
        for item in level:
            if type(item) is dict:
                inside += item.values()
            elif type(item) is list:
                inside += item
        if not inside:
            return False
        level = inside
    return any(type(item) is dict or type(item) is list for item in level)
