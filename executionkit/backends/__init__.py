"""Stores of state: what one process, or many, remember between calls.

`open_backend("memory://")` opens one by its address. A class of yours that has the
methods of `CacheBackend` is as good as those here.
"""

from __future__ import annotations

from executionkit.backends._limits import (
    BreakerBackend,
    BreakerLease,
    LimiterBackend,
    LimitPermit,
    LimitRule,
    Outcome,
)
from executionkit.backends._protocols import (
    MISS,
    CacheBackend,
    CacheEntry,
    CacheInterface,
    CacheStats,
    Missing,
    StateBackend,
    SyncCacheBackend,
    is_sync_cache,
)
from executionkit.backends.memory import InMemoryCache, MemoryBackend
from executionkit.backends.memory_limits import MemoryBreakers, MemoryLimiter

__all__ = (
    "MISS",
    "BreakerBackend",
    "BreakerLease",
    "CacheBackend",
    "CacheEntry",
    "CacheInterface",
    "CacheStats",
    "InMemoryCache",
    "LimitPermit",
    "LimitRule",
    "LimiterBackend",
    "MemoryBackend",
    "MemoryBreakers",
    "MemoryLimiter",
    "Missing",
    "Outcome",
    "StateBackend",
    "SyncCacheBackend",
    "is_sync_cache",
    "open_backend",
)


def open_backend(url: str) -> StateBackend:
    """The store at `url`.

    Args:
        url: `memory://`: in this process, gone with it; each call gives a new store.
            `redis://host:6379/0`, `rediss://...`, `unix:///path`: on a Redis server,
            shared by all who open it; see `executionkit.backends.redis`.

    Raises:
        ValueError: For an address of another kind, or one that cannot be read.
    """
    scheme, mark, rest = url.partition("://")
    if mark and scheme.lower() == "memory":
        if rest:
            msg = f"`url` {url!r}: memory has no address; use 'memory://'"
            raise ValueError(msg)
        return MemoryBackend()
    if mark and scheme.lower() in {"redis", "rediss", "unix", "redis+unix"}:
        from executionkit.backends.redis import RedisBackend

        return RedisBackend(url)
    # Not the whole address: it may hold a password.
    shown = f"{scheme}://..." if mark else repr(url[:40])
    msg = f"`url` {shown} is of no known kind; use 'memory://' or 'redis://host:6379/0'"
    raise ValueError(msg)
