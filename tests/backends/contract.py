"""What every store must do: derive a class and give it `backend` and `clock`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.backends import MISS, CacheBackend, CacheEntry

if TYPE_CHECKING:
    from executionkit.testing import FakeClock


def key(tool: str, arguments: str = "{}", *, version: str = "1", who: str = "") -> str:
    return f'"{tool}"\n"{version}"\n{who}\n{arguments}'


async def value_of(backend: CacheBackend, name: str) -> Any:
    found = await backend.get(name)
    return found.value if isinstance(found, CacheEntry) else MISS


class CacheContract:
    """Fixtures of the derived class: `backend`, and the `clock` that it runs on."""

    async def test_what_was_kept_is_found_and_nothing_else(
        self, backend: CacheBackend
    ) -> None:
        assert isinstance(backend, CacheBackend)
        assert await backend.get(key("a")) is MISS
        assert await backend.set(key("a"), {"n": [1, 2.0, "x"]}, 60)
        assert await value_of(backend, key("a")) == {"n": [1, 2.0, "x"]}
        assert await backend.get(key("b")) is MISS

    @pytest.mark.parametrize("value", [None, "", 0, False, [], {}])
    async def test_none_and_empty_values_are_values(
        self, backend: CacheBackend, value: Any
    ) -> None:
        await backend.set(key("a"), value, 60)
        found = await value_of(backend, key("a"))
        assert found == value
        assert type(found) is type(value) or isinstance(found, type(value))

    async def test_a_second_set_replaces_value_and_time(
        self, backend: CacheBackend, clock: FakeClock
    ) -> None:
        await backend.set(key("a"), 1, 10)
        await clock.advance(9)
        await backend.set(key("a"), 2, 10)
        await clock.advance(9)
        assert await value_of(backend, key("a")) == 2

    async def test_an_entry_ends_when_its_time_is_over(
        self, backend: CacheBackend, clock: FakeClock
    ) -> None:
        await backend.set(key("a"), 1, 10)
        await backend.set(key("b"), 1, None)
        await clock.advance(9.5)
        assert await value_of(backend, key("a")) == 1
        await clock.advance(0.5)
        assert await backend.get(key("a")) is MISS
        await clock.advance(1e7)
        assert await value_of(backend, key("b")) == 1

    async def test_only_the_first_of_many_reserves(
        self, backend: CacheBackend, clock: FakeClock
    ) -> None:
        found = await asyncio.gather(
            *(backend.reserve(key("a"), number, 10) for number in range(20))
        )
        assert [entry for entry in found if entry is MISS] == [MISS]
        winner = found.index(MISS)
        others = [entry.value for entry in found if isinstance(entry, CacheEntry)]
        assert others == [winner] * 19
        await clock.advance(10)
        assert await backend.reserve(key("a"), "new", 10) is MISS
        assert await value_of(backend, key("a")) == "new"

    async def test_delete_says_whether_there_was_something(
        self, backend: CacheBackend
    ) -> None:
        await backend.set(key("a"), 1, None)
        assert await backend.delete(key("a")) is True
        assert await backend.delete(key("a")) is False
        assert await backend.get(key("a")) is MISS

    async def test_invalidate_finds_all_of_a_tool_and_nothing_of_another(
        self, backend: CacheBackend
    ) -> None:
        mine = [
            key("a"),
            key("a", version="2"),
            key("a", who='["t","u"]'),
            key("a", '{"n":1}'),
        ]
        others = [key("ab"), key("n.a"), key("b", '{"a":1}')]
        for name in mine + others:
            await backend.set(name, 1, None)
        assert await backend.invalidate("a", '{"n":1}') == 1
        assert await backend.get(mine[3]) is MISS
        assert await backend.invalidate("a", "{}") == 3
        await backend.set(mine[0], 1, None)
        assert await backend.invalidate("a") == 1
        assert await backend.invalidate("a") == 0
        assert [await value_of(backend, name) for name in others] == [1, 1, 1]

    async def test_clear_removes_everything(self, backend: CacheBackend) -> None:
        for tool in ("a", "b"):
            await backend.set(key(tool), 1, None)
        await backend.clear()
        assert [await backend.get(key(tool)) for tool in ("a", "b")] == [MISS, MISS]

    async def test_nobody_can_change_what_is_stored(
        self, backend: CacheBackend
    ) -> None:
        value: dict[str, Any] = {"n": [1], "o": [{"p": {2}}]}
        await backend.set(key("a"), value, None)
        value["n"].append(2)
        value["o"][0]["q"] = 1
        found = await value_of(backend, key("a"))
        assert found["n"] == [1]
        assert "q" not in found["o"][0]
        with contextlib.suppress(TypeError):  # read-only is as good as a copy
            found["n"].append(3)
        assert (await value_of(backend, key("a")))["n"] == [1]

    async def test_the_counts_are_true(
        self, backend: CacheBackend, clock: FakeClock
    ) -> None:
        assert (await backend.stats()).hit_rate == 0.0
        for name in (key("a"), key("a", "[]"), key("b")):
            await backend.set(name, 1, 10)
        await backend.set(key("c"), 1, None)
        await backend.get(key("a"))
        await backend.get(key("z"))
        await backend.delete(key("b"))
        await clock.advance(10)
        await backend.get(key("a"))
        await backend.get(key("a", "[]"))
        stats = await backend.stats()
        if stats.implemented:
            assert (stats.hits, stats.misses, stats.sets) == (1, 3, 4)
            assert (stats.invalidations, stats.expirations) == (1, 2)
            assert (stats.entry_count, stats.tool_count) == (1, 1)
            assert stats.hit_rate == 0.25
