"""Names of keys: any text becomes one, short, under the prefix of its store."""

from __future__ import annotations

import hashlib
import itertools
import os
from typing import Final

from executionkit.backends._redis.resp import to_bytes

__all__ = ("Ids", "head_of", "short")

_MAX_NAME: Final = 256


def short(name: str) -> bytes:
    """`name` as a part of a key; a long one keeps its beginning and gets a digest."""
    data = to_bytes(name)
    if len(data) <= _MAX_NAME:
        return data
    digest = hashlib.sha256(data).hexdigest().encode()
    return data[: _MAX_NAME - len(digest) - 1] + b"~" + digest


def head_of(prefix: str, store: str) -> bytes:
    """What the keys of a store begin with; a hash tag keeps them in one slot.

    Raises:
        ValueError: When a name has a brace, which would end the tag early.
    """
    for what, name in (("prefix", prefix), ("name", store)):
        if not name or "{" in name or "}" in name:
            msg = f"`{what}` must be a text without braces, got {name!r:.80}"
            raise ValueError(msg)
    return b"{%b:%b}:" % (short(prefix), short(store))


class Ids:
    """Names that nobody else in the world gives."""

    __slots__ = ("_count", "_process", "_stem")

    def __init__(self) -> None:
        self._process = -1
        self._stem = b""
        self._count = itertools.count()

    def new(self) -> bytes:
        """The next one."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._stem = os.urandom(9).hex().encode()
        return b"%b.%x" % (self._stem, next(self._count))
