"""What a store of state promises, whoever keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import (
    Any,
    Final,
    Literal,
    Protocol,
    TypeAlias,
    TypeGuard,
    runtime_checkable,
)

from executionkit._frozen import sealed
from executionkit.backends._limits import BreakerBackend, LimiterBackend

__all__ = (
    "MISS",
    "CacheBackend",
    "CacheEntry",
    "CacheInterface",
    "CacheStats",
    "Missing",
    "StateBackend",
    "SyncCacheBackend",
    "is_sync_cache",
)


class Missing(Enum):
    """The type of `MISS`."""

    MISS = "miss"


MISS: Final = Missing.MISS
"""What a store answers when it has nothing; None is a value like any other."""


class CacheEntry:
    """One stored value."""

    __slots__ = ("_value", "expires_at", "size")

    def __init__(self, value: Any, expires_at: float, size: int = 0) -> None:
        self._value = value
        self.expires_at: float = expires_at
        """When it ends, on the clock of the store; `inf` = never."""
        self.size: int = size
        """Bytes, roughly; 0 where the store does not count them."""

    @property
    def value(self) -> Any:
        """The value, deeply read-only, or a copy that nobody else has."""
        return self._value


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """What a store has done since it was made, and what it holds."""

    hits: int = 0
    misses: int = 0
    sets: int = 0
    invalidations: int = 0
    """Entries removed on request."""

    expirations: int = 0
    """Entries removed because their time was over."""

    evictions: int = 0
    """Entries removed because there was no room."""

    entry_count: int = 0
    tool_count: int = 0
    """Tools that have an entry."""

    implemented: bool = True
    """False when the store does not count."""

    @property
    def hit_rate(self) -> float:
        """Hits per lookup, 0.0 to 1.0; 0.0 before the first."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else 0.0


@runtime_checkable
class CacheBackend(Protocol):
    """Keeps the results of calls.

    A key is a text of four lines: the tool's name, its version, whose it is, and the
    arguments, each without line breaks (see `executionkit.tools`). A store may keep a
    hash of the last three, as long as `invalidate` finds what it promises.
    Values are JSON-like, None among them. All times are seconds.
    """

    async def get(self, key: str) -> CacheEntry | Missing:
        """The entry of `key`, or `MISS`. An entry whose time is over is none."""
        ...

    async def set(self, key: str, value: Any, ttl: float | None) -> bool:
        """Keep `value` for `ttl` seconds (None = no end).

        Returns:
            False when the value cannot be kept; an older one is gone then, too.
        """
        ...

    async def reserve(
        self, key: str, value: Any, ttl: float | None
    ) -> CacheEntry | Missing:
        """Keep `value` unless the key has an entry: one atomic step for all processes.

        Returns:
            `MISS` when it was kept; else the entry that stood in the way.
        """
        ...

    async def delete(self, key: str) -> bool:
        """Remove one entry; whether there was one."""
        ...

    async def invalidate(self, tool: str, arguments: str | None = None) -> int:
        """Remove a tool's entries, of all versions and callers; how many there were.

        Args:
            tool: The tool's full name.
            arguments: The last line of the keys; None = whatever it is.
        """
        ...

    async def clear(self) -> None:
        """Remove everything."""
        ...

    async def stats(self) -> CacheStats:
        """Counts, for display."""
        ...


CacheInterface: TypeAlias = CacheBackend
"""Another name of `CacheBackend`."""


@runtime_checkable
class SyncCacheBackend(CacheBackend, Protocol):
    """A store in this process: it also answers at once, without a step of the loop."""

    def get_now(self, key: str) -> CacheEntry | Missing:
        """As `get`."""
        ...

    def set_now(self, key: str, value: Any, ttl: float | None) -> bool:
        """As `set`."""
        ...

    def reserve_now(
        self, key: str, value: Any, ttl: float | None
    ) -> CacheEntry | Missing:
        """As `reserve`."""
        ...

    def delete_now(self, key: str) -> bool:
        """As `delete`."""
        ...


def is_sync_cache(backend: CacheBackend) -> TypeGuard[SyncCacheBackend]:
    """Whether `backend` is a `SyncCacheBackend`."""
    names = ("get_now", "set_now", "reserve_now", "delete_now")
    return all(callable(getattr(backend, name, None)) for name in names)


class StateBackend(Protocol):
    """A place where state is kept; what `open_backend` gives."""

    kind: Literal["memory", "redis", "sqlite"]
    """What it is made of."""

    def cache(self, name: str = "cache") -> CacheBackend:
        """The cache of that name; the same one each time."""
        ...

    def limiter(self, name: str = "ratelimit") -> LimiterBackend:
        """The limits of that name; the same ones each time."""
        ...

    def breakers(self, name: str = "circuitbreaker") -> BreakerBackend:
        """The circuits of that name; the same ones each time."""
        ...

    async def close(self) -> None:
        """Let go of connections. What is stored stays where it outlives the process."""
        ...
