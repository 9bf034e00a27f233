"""State in this process: fast, bounded, gone with the process."""

from __future__ import annotations

import copy
import json
import sys
from collections import OrderedDict
from datetime import date, datetime, timedelta
from math import inf
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal

from executionkit._clock import get_clock
from executionkit._frozen import FrozenDict, FrozenList, freeze, thaw
from executionkit.backends._protocols import MISS, CacheEntry, CacheStats, Missing
from executionkit.backends.memory_limits import MemoryBreakers, MemoryLimiter

if TYPE_CHECKING:
    from collections.abc import Collection

    from executionkit._clock import Clock

__all__ = ("InMemoryCache", "MemoryBackend", "check_ttl", "own")

_ATOMS: Final = frozenset(
    {str, int, float, bool, NoneType, bytes, complex, date, datetime, timedelta}
)
_SEQUENCES: Final = frozenset({FrozenList, tuple, frozenset})
_SWEEP_EVERY: Final = 16
_COUNTED: Final[tuple[str, ...]] = ("invalidations", "expirations", "evictions")


class _Copied(CacheEntry):
    """The entry of a value that could be changed: everybody gets a copy."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        return _copy(self._value)


def _is_fixed(value: Any) -> bool:
    """Whether nothing in a frozen value can be changed."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is FrozenDict:
        return _are_fixed(value) and _are_fixed(value.values())
    return kind in _SEQUENCES and _are_fixed(value)


def _are_fixed(values: Collection[Any]) -> bool:
    return _ATOMS.issuperset(map(type, values)) or all(map(_is_fixed, values))


def _copy(value: Any) -> Any:
    # Frozen containers copy to themselves, with what they hold.
    return freeze(copy.deepcopy(thaw(value)))


def own(value: Any) -> CacheEntry | None:
    """`value` as an entry that its maker can no longer change, without an end.

    JSON-like values are frozen. Of anything else a copy is kept, and each reader gets
    a copy of that. None when it cannot be copied (a generator, a lock, a connection).
    """
    if type(value) in _ATOMS:
        return CacheEntry(value, inf)
    try:
        frozen = freeze(value)
        if _is_fixed(frozen):
            return CacheEntry(frozen, inf)
        return _Copied(_copy(frozen), inf)
    except Exception:  # noqa: BLE001 - copying runs foreign code, which may do anything
        return None


def _size(value: Any) -> int:
    """Bytes that a value takes, roughly: what its containers hold is counted too."""
    size = sys.getsizeof(value, 64)
    if isinstance(value, dict):
        return size + sum(_size(k) + _size(item) for k, item in value.items())
    if isinstance(value, (list, tuple, frozenset)):
        return size + sum(map(_size, value))
    return size


def _check_cap(name: str, value: Any) -> None:
    if value is not None and (type(value) is not int or value < 1):
        msg = f"`{name}` must be an int >= 1 or None (no limit), got {value!r}"
        raise ValueError(msg)


def check_ttl(name: str, ttl: Any) -> float | None:
    """`ttl` when it is a number of seconds above 0, or None (no end)."""
    if ttl is None:
        return None
    is_number = isinstance(ttl, (int, float)) and not isinstance(ttl, bool)
    if not is_number or not ttl > 0:
        msg = f"`{name}` must be > 0 seconds, or None for no end; got {ttl!r}"
        raise ValueError(msg)
    return None if ttl == inf else float(ttl)


class InMemoryCache:
    """A cache in this process: the least recently used entry makes room for a new one.

    Used by one thread at a time.

    Args:
        max_entries: Entries at most. None = no limit.
        default_ttl: Seconds that an entry lives when `set` does not say. None = no end.
        max_bytes: Bytes of keys and values at most, roughly counted. None = no limit.
            A value that is larger than all of it is not kept.
        clock: None = the clock of the current context.

    Raises:
        ValueError: When a number is out of range.
    """

    __slots__ = (
        "_bytes",
        "_counts",
        "_entries",
        "_max_bytes",
        "_max_entries",
        "_now",
        "_to_sweep",
        "default_ttl",
        "hits",
        "misses",
        "sets",
    )

    def __init__(
        self,
        max_entries: int | None = 10_000,
        default_ttl: float | None = 300.0,
        max_bytes: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        _check_cap("max_entries", max_entries)
        _check_cap("max_bytes", max_bytes)
        self.default_ttl: float | None = check_ttl("default_ttl", default_ttl)
        """Seconds; None = no end."""
        self._max_entries = sys.maxsize if max_entries is None else max_entries
        self._max_bytes = max_bytes
        self._now = (clock if clock is not None else get_clock()).monotonic
        self._entries: OrderedDict[str, CacheEntry] = OrderedDict()
        self._bytes = 0
        self._to_sweep: list[str] = []
        self.hits: int = 0
        """Lookups that found something."""
        self.misses: int = 0
        """Lookups that found nothing."""
        self.sets: int = 0
        """Values that were kept."""
        self._counts: dict[str, int] = dict.fromkeys(_COUNTED, 0)

    def __len__(self) -> int:
        return len(self._entries)

    # --- at once -----------------------------------------------------------------
    def get_now(self, key: str) -> CacheEntry | Missing:
        """The entry of `key`, or `MISS`."""
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return MISS
        if entry.expires_at <= self._now():
            self._drop(key, "expirations")
            self.misses += 1
            return MISS
        self._entries.move_to_end(key)
        self.hits += 1
        return entry

    def set_now(self, key: str, value: Any, ttl: float | None) -> bool:
        """Keep `value`; False when it cannot be kept."""
        entry = own(value)
        if entry is None:
            self.delete_now(key)
            return False
        return self.put(key, entry, ttl)

    def put(self, key: str, entry: CacheEntry, ttl: float | None) -> bool:
        """Keep an entry that `own` made, for `ttl` seconds (None = no end)."""
        now = self._now()
        entry.expires_at = inf if ttl is None else now + ttl
        limit = self._max_bytes
        if limit is not None and not self._make_room(key, entry, limit):
            return False
        entries = self._entries
        if key in entries:
            entries.move_to_end(key)
        entries[key] = entry
        self.sets += 1
        if not self.sets % _SWEEP_EVERY:
            self._sweep(now)
        if len(entries) > self._max_entries:
            self._bytes -= entries.popitem(last=False)[1].size
            self._counts["evictions"] += 1
        return True

    def reserve_now(
        self, key: str, value: Any, ttl: float | None
    ) -> CacheEntry | Missing:
        """Keep `value` unless there is an entry; that entry, or `MISS` when kept."""
        found = self.get_now(key)
        if found is MISS:
            self.set_now(key, value, ttl)
        return found

    def delete_now(self, key: str) -> bool:
        """Remove one entry; whether there was one."""
        return self._drop(key, "invalidations")

    # --- the same as coroutines ----------------------------------------------------
    async def get(self, key: str) -> CacheEntry | Missing:
        """The entry of `key`, or `MISS`."""
        return self.get_now(key)

    async def set(
        self, key: str, value: Any, ttl: float | Missing | None = MISS
    ) -> bool:
        """Keep `value`; `ttl` left out = `default_ttl`, None = no end."""
        seconds = self.default_ttl if ttl is MISS else check_ttl("ttl", ttl)
        return self.set_now(key, value, seconds)

    async def reserve(
        self, key: str, value: Any, ttl: float | None
    ) -> CacheEntry | Missing:
        """Keep `value` unless there is an entry; that entry, or `MISS` when kept."""
        return self.reserve_now(key, value, ttl)

    async def delete(self, key: str) -> bool:
        """Remove one entry; whether there was one."""
        return self.delete_now(key)

    async def invalidate(self, tool: str, arguments: str | None = None) -> int:
        """Remove a tool's entries; with `arguments` only those with that last line."""
        head = json.dumps(tool, ensure_ascii=False) + "\n"
        tail = "" if arguments is None else f"\n{arguments}"
        doomed = [
            key
            for key in self._entries
            if key.startswith(head) and (not tail or key.endswith(tail))
        ]
        for key in doomed:
            self._drop(key, "invalidations")
        return len(doomed)

    async def clear(self) -> None:
        """Remove everything; the counts stay."""
        self._counts["invalidations"] += len(self._entries)
        self._entries.clear()
        self._to_sweep.clear()
        self._bytes = 0

    async def stats(self) -> CacheStats:
        """What it has done so far, and what it holds."""
        tools = {key.partition("\n")[0] for key in self._entries}
        counts = self._counts
        return CacheStats(
            hits=self.hits,
            misses=self.misses,
            sets=self.sets,
            invalidations=counts["invalidations"],
            expirations=counts["expirations"],
            evictions=counts["evictions"],
            entry_count=len(self._entries),
            tool_count=len(tools),
        )

    # --- inside ----------------------------------------------------------------------
    def _drop(self, key: str, why: str) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._bytes -= entry.size
        self._counts[why] += 1
        return True

    def _make_room(self, key: str, entry: CacheEntry, limit: int) -> bool:
        old = self._entries.pop(key, None)
        if old is not None:
            self._bytes -= old.size
        entry.size = _size(key) + _size(entry._value) + 64  # noqa: SLF001 - not a copy
        if entry.size > limit:
            return False
        self._bytes += entry.size
        while self._bytes > limit:
            self._drop(next(iter(self._entries)), "evictions")
        return True

    def _sweep(self, now: float) -> None:
        """Look at as many entries as there were new ones: each comes round in time."""
        todo = self._to_sweep
        known = self._entries.get
        for key in todo[-_SWEEP_EVERY:]:
            entry = known(key)
            if entry is not None and entry.expires_at <= now:
                self._drop(key, "expirations")
        del todo[-_SWEEP_EVERY:]
        if not todo:
            self._to_sweep = list(self._entries)


class MemoryBackend:
    """State of this process; a new one knows nothing of the others.

    Args:
        clock: None = the clock of the current context.
    """

    kind: Literal["memory", "redis", "sqlite"] = "memory"

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._caches: dict[str, InMemoryCache] = {}
        self._limiters: dict[str, MemoryLimiter] = {}
        self._breakers: dict[str, MemoryBreakers] = {}

    def cache(self, name: str = "cache") -> InMemoryCache:
        """The cache of that name; the same one each time."""
        found = self._caches.get(name)
        if found is None:
            found = self._caches[name] = InMemoryCache(clock=self._clock)
        return found

    def limiter(self, name: str = "ratelimit") -> MemoryLimiter:
        """The limits of that name; the same ones each time."""
        found = self._limiters.get(name)
        if found is None:
            found = self._limiters[name] = MemoryLimiter(self._clock)
        return found

    def breakers(self, name: str = "circuitbreaker") -> MemoryBreakers:
        """The circuits of that name; the same ones each time."""
        found = self._breakers.get(name)
        if found is None:
            found = self._breakers[name] = MemoryBreakers(self._clock)
        return found

    async def close(self) -> None:
        """Forget everything."""
        self._limiters.clear()
        self._breakers.clear()
        for cache in self._caches.values():
            await cache.clear()
