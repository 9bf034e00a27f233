"""Results of calls that many processes share; see `CacheBackend`."""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any, Final

from executionkit.backends._protocols import MISS, CacheEntry, CacheStats, Missing
from executionkit.backends._redis.codec import decode, encode
from executionkit.backends._redis.keys import Ids
from executionkit.backends._redis.resp import Question, to_bytes
from executionkit.backends._redis.wire import checked, escaped
from executionkit.backends.memory import check_ttl

if TYPE_CHECKING:
    from executionkit.backends._redis.scripts import Scripts
    from executionkit.backends._redis.wire import Wire

__all__ = ("RedisCache",)

_BATCH: Final = 500
_MAX_BYTES: Final = 8 * 1024 * 1024
_LONGEST: Final = 1e12  # milliseconds, about 30 years


class RedisCache:
    """Results of calls on a server, for many processes.

    Only what JSON can say is kept, and tuples, sets, bytes, dates and complex numbers;
    of anything else `set` says that it was not kept. An entry that cannot be read, or
    that somebody else wrote, is none.

    Args:
        wire: Reaches the server.
        scripts: What runs there.
        head: What the keys begin with; a hash tag that is left open.
        max_bytes: Bytes of one value at most.
    """

    def __init__(
        self,
        wire: Wire,
        scripts: Scripts,
        head: bytes,
        *,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        self.wire: Wire = wire
        self._scripts = scripts
        self._head = head
        self._max_bytes = max_bytes
        self._ids = Ids()
        self._counts = dict.fromkeys(("hits", "misses", "sets", "invalidations"), 0)

    async def get(self, key: str) -> CacheEntry | Missing:
        """The entry of `key`, or `MISS`."""
        entry = self._place(key)[0]
        question = Question((b"GET", entry), again=Question((b"GET", entry)))
        found = _entry(checked(await self.wire.ask(question)))
        self._counts["misses" if found is MISS else "hits"] += 1
        return found

    async def set(self, key: str, value: Any, ttl: float | None) -> bool:
        """Keep `value` for `ttl` seconds; False when it has no form to keep it in."""
        data = self._data(value)
        if data is None:
            await self.delete(key)
            return False
        await self._keep(b"set", key, data, ttl)
        self._counts["sets"] += 1
        return True

    async def reserve(
        self, key: str, value: Any, ttl: float | None
    ) -> CacheEntry | Missing:
        """Keep `value` unless there is an entry; that entry, or `MISS` when kept.

        Raises:
            TypeError: When `value` has no form to keep it in.
        """
        data = self._data(value)
        if data is None:
            msg = f"a value of type {type(value).__name__} cannot be kept in Redis"
            raise TypeError(msg)
        nonce, old = await self._keep(b"reserve", key, data, ttl)
        if old is None or to_bytes(old).partition(b"|")[2].startswith(nonce):
            self._counts["sets"] += 1
            return MISS
        found = _entry(old)
        if found is MISS:  # unreadable: it must not stand in the way for ever
            await self.set(key, value, ttl)
        return found

    async def delete(self, key: str) -> bool:
        """Remove one entry; whether there was one."""
        entry, index, member = self._place(key)
        question = self._scripts.drop.question([index, entry], [member])
        there = bool(checked(await self.wire.ask(question)))
        self._counts["invalidations"] += there
        return there

    async def invalidate(self, tool: str, arguments: str | None = None) -> int:
        """Remove a tool's entries; with `arguments` only those with that last line."""
        stem = self._stem(json.dumps(tool, ensure_ascii=False))
        listing = Question((b"ZRANGE", stem + b"index", b"0", b"-1"))
        members = [to_bytes(m) for m in checked(await self.wire.ask(listing))]
        if arguments is not None:
            head = _digest(arguments) + b":"
            members = [member for member in members if member.startswith(head)]
        count = 0
        for start in range(0, len(members), _BATCH):
            some = members[start : start + _BATCH]
            entries = [stem + member.partition(b":")[2] for member in some]
            question = self._scripts.drop.question([stem + b"index", *entries], some)
            count += checked(await self.wire.ask(question))
        self._counts["invalidations"] += count
        return count

    async def clear(self) -> None:
        """Remove everything of this cache."""
        async for key in self.wire.scan(escaped(self._head) + b"*"):
            checked(await self.wire.ask(Question((b"DEL", key))))

    async def stats(self) -> CacheStats:
        """What this process has done; what all of them hold is not counted."""
        return CacheStats(**self._counts, implemented=False)

    # --- inside ----------------------------------------------------------------------
    def _stem(self, tool_line: str) -> bytes:
        return self._head + b":" + _digest(tool_line) + b"}:"

    def _place(self, key: str) -> tuple[bytes, bytes, bytes]:
        """The keys of an entry and of its tool's index, and its member there."""
        stem = self._stem(key.partition("\n")[0])
        name = _digest(key)
        member = _digest(key.rpartition("\n")[2]) + b":" + name
        return stem + name, stem + b"index", member

    def _data(self, value: Any) -> bytes | None:
        data = encode(value)
        return None if data is None or len(data) > self._max_bytes else data

    async def _keep(
        self, mode: bytes, key: str, data: bytes, ttl: float | None
    ) -> tuple[bytes, Any]:
        seconds = check_ttl("ttl", ttl)
        ms = -1
        if seconds is not None:
            ms = max(1, math.ceil(min(seconds * 1000, _LONGEST)))
        entry, index, member = self._place(key)
        nonce = self._ids.new() + b"|"
        arguments = [mode, nonce + data, b"%d" % ms, member]
        question = self._scripts.keep.question(
            [entry, index], arguments, again=arguments
        )
        return nonce, checked(await self.wire.ask(question))


def _digest(text: str) -> bytes:
    return hashlib.sha256(to_bytes(text)).hexdigest()[:40].encode()


def _entry(data: Any) -> CacheEntry | Missing:
    """A stored text as an entry: when it ends, who wrote it, and the value."""
    if data is None:
        return MISS
    ends, _, rest = to_bytes(data).partition(b"|")
    try:
        expires = int(ends) / 1e6 or math.inf
        value = decode(rest.partition(b"|")[2])
    except ValueError:
        return MISS
    return CacheEntry(value, expires, len(rest))
