"""JSON lines of a body that may be large: one at a time, each one on its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from executionkit._constants import MAX_RESPONSE_BYTES
from executionkit._wire.failures import excerpt
from executionkit._wire.loading import load_reply

__all__ = ("MAX_LINE_BYTES", "parsed", "split_lines")

MAX_LINE_BYTES: Final = MAX_RESPONSE_BYTES
_SHOWN: Final = 200


async def split_lines(
    pieces: AsyncGenerator[bytes], *, limit: int = MAX_LINE_BYTES
) -> AsyncGenerator[tuple[int, bytes | None]]:
    """(number, line) of each line that is not blank; None for one that is too long.

    Lines end at a line feed alone: a JSON text may hold every other separator that
    Unicode knows.

    Args:
        pieces: The body; closed at the end.
        limit: Bytes of a line.
    """
    number = 1
    parts: list[bytes] = []
    size = 0
    async with aclosing(pieces):
        async for piece in pieces:
            *whole, rest = piece.split(b"\n")
            for end in whole:
                size += len(end)
                line = None if size > limit else b"".join([*parts, end])
                if line is None or line.strip():
                    yield number, line
                number += 1
                parts, size = [], 0
            size += len(rest)
            if size > limit:
                parts = []  # its memory; the rest of it is only counted
            elif rest:
                parts.append(rest)
    last = b"".join(parts)
    if size > limit:
        yield number, None
    elif last.strip():
        yield number, last


def parsed(
    number: int, line: bytes | None, secrets: tuple[str, ...]
) -> dict[str, Any] | str:
    """The object of a line, or what is wrong with it."""
    if line is None:
        return f"line {number} is longer than {MAX_LINE_BYTES} bytes"
    try:
        found = load_reply(line)
    except ValueError as exc:
        why = f"not valid JSON: {exc}"
    else:
        if isinstance(found, dict):
            return found
        why = "no JSON object"
    begin = line[:_SHOWN].decode("utf-8", "replace")
    return excerpt(f"line {number} is {why}; it begins: {begin}", secrets=secrets)
