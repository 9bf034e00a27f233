"""The stores of this process, and how a store is opened by its address."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from executionkit.backends import (
    MISS,
    CacheBackend,
    CacheEntry,
    CacheStats,
    InMemoryCache,
    MemoryBackend,
    Missing,
    is_sync_cache,
    open_backend,
)
from executionkit.testing import FakeClock
from executionkit.types import FrozenDict

if TYPE_CHECKING:
    from types import ModuleType


def _contract() -> ModuleType:
    # Files of tests are no packages here; the suite of the contract is found by path.
    path = Path(__file__).with_name("contract.py")
    spec = importlib.util.spec_from_file_location("backend_contract", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


contract: Any = _contract()
key = contract.key


class SlowCache:
    """Any store, with a step of the loop before and after each answer."""

    def __init__(self, inner: CacheBackend) -> None:
        self.inner = inner

    async def get(self, key: str) -> CacheEntry | Missing:
        await asyncio.sleep(0)
        found = await self.inner.get(key)
        await asyncio.sleep(0)
        return found

    async def set(self, key: str, value: Any, ttl: float | None) -> bool:
        await asyncio.sleep(0)
        return await self.inner.set(key, value, ttl)

    async def reserve(
        self, key: str, value: Any, ttl: float | None
    ) -> CacheEntry | Missing:
        await asyncio.sleep(0)
        found = await self.inner.reserve(key, value, ttl)
        await asyncio.sleep(0)
        return found

    async def delete(self, key: str) -> bool:
        await asyncio.sleep(0)
        return await self.inner.delete(key)

    async def invalidate(self, tool: str, arguments: str | None = None) -> int:
        await asyncio.sleep(0)
        return await self.inner.invalidate(tool, arguments)

    async def clear(self) -> None:
        await self.inner.clear()

    async def stats(self) -> CacheStats:
        return await self.inner.stats()


@pytest.mark.req("backends.cache-contract", "cache.stats")
class TestInMemoryCache(contract.CacheContract):  # type: ignore[misc]
    @pytest.fixture
    def backend(self, clock: FakeClock) -> CacheBackend:
        return InMemoryCache(clock=clock)


@pytest.mark.req("backends.cache-contract")
class TestSlowStore(contract.CacheContract):  # type: ignore[misc]
    @pytest.fixture
    def backend(self, clock: FakeClock) -> CacheBackend:
        return SlowCache(InMemoryCache(clock=clock))


@pytest.mark.req("backends.cache-contract")
class TestOpenedStore(contract.CacheContract):  # type: ignore[misc]
    @pytest.fixture
    def backend(self, clock: FakeClock) -> CacheBackend:
        with clock.installed():
            return open_backend("memory://").cache()


@pytest.mark.req("T-13", "cache.bounded")
async def test_fifty_thousand_keys_leave_no_more_than_the_limit() -> None:
    cache = InMemoryCache(max_entries=1000)
    for number in range(50_000):
        cache.set_now(key("t", str(number)), number, None)
    stats = await cache.stats()
    assert len(cache) == stats.entry_count == 1000
    assert (stats.sets, stats.evictions) == (50_000, 49_000)
    assert await cache.get(key("t", "48999")) is MISS
    assert await contract.value_of(cache, key("t", "49000")) == 49_000


@pytest.mark.req("T-13", "cache.bounded")
async def test_expired_entries_are_swept_though_nobody_asks_for_them(
    clock: FakeClock,
) -> None:
    cache = InMemoryCache(max_entries=None, clock=clock)
    for number in range(5000):
        cache.set_now(f"old{number}", number, 10)
    await clock.advance(10)
    for number in range(11_000):
        cache.set_now(f"new{number}", number, None)
    assert len(cache) == 11_000
    assert (await cache.stats()).expirations == 5000
    assert len(cache._to_sweep) <= 11_000


async def test_the_least_recently_used_entry_makes_room() -> None:
    cache = InMemoryCache(max_entries=2)
    await cache.set("a", 1)
    await cache.set("b", 2)
    await cache.get("a")
    await cache.set("c", 3)
    assert await cache.get("b") is MISS
    await cache.set("a", 4)  # a new value counts as a use
    await cache.set("d", 5)
    assert await cache.get("c") is MISS
    assert await contract.value_of(cache, "a") == 4


@pytest.mark.req("cache.bounded")
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400)), min_size=1, max_size=40)
)
async def test_the_bytes_stay_within_the_limit(steps: list[tuple[int, int]]) -> None:
    cache = InMemoryCache(max_entries=None, max_bytes=1200)
    for number, size in steps:
        cache.set_now(str(number), "x" * size, None)
        assert cache._bytes <= 1200
        assert cache._bytes == sum(e.size for e in cache._entries.values())
    cache.set_now("huge", ["x" * 5000], None)
    assert await cache.get("huge") is MISS
    await cache.clear()
    assert cache._bytes == 0


async def test_a_value_too_large_drops_the_older_one() -> None:
    cache = InMemoryCache(max_bytes=1000)
    assert await cache.set("a", 1)
    assert not await cache.set("a", "x" * 2000)
    assert await cache.get("a") is MISS


async def test_the_default_time_counts_when_none_is_given(clock: FakeClock) -> None:
    cache = InMemoryCache(clock=clock)
    await cache.set("a", 1)
    await cache.set("b", 1, None)
    await clock.advance(299)
    assert await contract.value_of(cache, "a") == 1
    await clock.advance(1)
    assert await cache.get("a") is MISS
    assert await contract.value_of(cache, "b") == 1
    forever = InMemoryCache(default_ttl=float("inf"), clock=clock)
    assert forever.default_ttl is None


@dataclass
class Box:
    items: list[int] = field(default_factory=list)


@pytest.mark.req("T-12", "cache.values-fixed")
@pytest.mark.parametrize(
    "wrap",
    [
        lambda box: box,
        lambda box: {"box": box},
        lambda box: FrozenDict({"box": box}),
        lambda box: [(box,)],
    ],
)
async def test_objects_are_copied_on_the_way_in_and_out(wrap: Any) -> None:
    def inner(value: Any) -> Box:
        while not isinstance(value, Box):
            value = value["box"] if isinstance(value, dict) else value[0]
        return value

    cache = InMemoryCache()
    box = Box([1])
    assert await cache.set("a", wrap(box))
    box.items.append(2)
    first = inner(await contract.value_of(cache, "a"))
    assert first == Box([1])
    first.items.append(3)
    assert inner(await contract.value_of(cache, "a")) == Box([1])


@pytest.mark.parametrize("make", [threading.Lock, lambda: (n for n in [1])])
async def test_what_cannot_be_copied_is_not_kept(make: Any) -> None:
    cache = InMemoryCache()
    await cache.set("a", 1)
    assert await cache.set("a", [make()]) is False
    assert await cache.get("a") is MISS


async def test_a_value_that_holds_itself_is_not_kept() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert await InMemoryCache().set("a", loop) is False


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_entries": 0}, "`max_entries` must be an int >= 1"),
        ({"max_entries": True}, "`max_entries` must be an int >= 1"),
        ({"max_bytes": -1}, "`max_bytes` must be an int >= 1"),
        ({"default_ttl": 0}, "`default_ttl` must be > 0 seconds"),
        ({"default_ttl": float("nan")}, "`default_ttl` must be > 0 seconds"),
        ({"default_ttl": "5"}, "`default_ttl` must be > 0 seconds"),
    ],
)
def test_numbers_out_of_range_are_refused(options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        InMemoryCache(**options)


def test_a_store_that_answers_at_once_is_known_as_such() -> None:
    assert is_sync_cache(InMemoryCache())
    assert not is_sync_cache(SlowCache(InMemoryCache()))


@pytest.mark.req("backends.open")
async def test_memory_is_opened_by_its_address_and_forgets_when_closed() -> None:
    backend = open_backend("memory://")
    assert isinstance(backend, MemoryBackend)
    assert backend.kind == "memory"
    cache = backend.cache("a")
    assert backend.cache("a") is cache
    assert backend.cache("b") is not cache
    assert open_backend("memory://").cache("a") is not cache
    await cache.set("k", 1, None)
    await backend.close()
    assert await cache.get("k") is MISS


@pytest.mark.req("backends.open")
@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://:secret@host:x", "cannot be read"),
        ("memory://host", "memory has no address"),
        ("ftp://u:secret@host", "no known kind"),
        ("memory", "no known kind"),
        ("", "no known kind"),
    ],
)
def test_an_unknown_address_is_refused_without_its_secrets(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        open_backend(url)
    assert "secret" not in str(caught.value)
