"""Long lists, page by page. A cursor holds all that is needed to go on."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Any

from executionkit.mcp._constants import INVALID_PARAMS
from executionkit.mcp._server.messages import ProtocolError

__all__ = ("page",)

_MAX_CURSOR = 65_536


def page(
    items: Sequence[Any], cursor: object, size: int, key: Callable[[Any], str]
) -> tuple[Sequence[Any], str | None]:
    """The items after `cursor`, and the cursor of the next page.

    When the list has changed meanwhile, the page begins after the item that was the
    last one, wherever it stands now; when that is gone, where it stood.

    Args:
        items: The whole list.
        cursor: What the client sent; None = the beginning.
        size: Items on a page.
        key: The name of an item; each has another one.

    Raises:
        ProtocolError: When the cursor is none of ours.
    """
    start = 0 if cursor is None else _after(items, cursor, key)
    end = start + size
    if end >= len(items):
        return items[start:], None
    return items[start:end], _cursor(end, key(items[end - 1]))


def _cursor(index: int, last: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([index, last]).encode()).decode()


def _after(items: Sequence[Any], cursor: object, key: Callable[[Any], str]) -> int:
    try:
        if not isinstance(cursor, str) or len(cursor) > _MAX_CURSOR:
            raise ValueError  # noqa: TRY301 - all that is wrong ends at one place
        raw = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
        index, last = json.loads(raw)
        if type(index) is not int or not isinstance(last, str) or index < 1:
            raise ValueError  # noqa: TRY301
    except (ValueError, TypeError, binascii.Error, RecursionError) as exc:
        raise ProtocolError(INVALID_PARAMS, "Invalid params: unknown `cursor`") from exc
    if index <= len(items) and key(items[index - 1]) == last:
        return index
    for place, item in enumerate(items):
        if key(item) == last:
            return place + 1
    return min(index - 1, len(items))
