"""The first step of a generator, taken without the event loop's knowledge."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from typing import Any, Self

import pytest

from executionkit._http.unhooked import unhooked_next

pytestmark = pytest.mark.req("stream.left-open")


class Counted:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __enter__(self) -> Self:
        self.before = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self.seen.append, lambda _: None)
        return self

    def __exit__(self, *_: object) -> None:
        sys.set_asyncgen_hooks(*self.before)


async def two(waits: asyncio.Future[Any] | None = None) -> AsyncGenerator[int, None]:
    if waits is not None:
        await waits
    yield 1
    yield 2


async def around(inner: AsyncGenerator[int, None]) -> AsyncGenerator[int, None]:
    async for item in inner:
        yield item


async def test_it_is_the_first_item_and_no_hook_is_called() -> None:
    with Counted() as hooks:
        items = around(two())
        assert await unhooked_next(items) == 1
        assert hooks.seen == []
        assert [item async for item in items] == [2]
        assert hooks.seen == []
        assert [item async for item in two()] == [1, 2]
        assert len(hooks.seen) == 1  # the hooks are back


async def test_it_waits_and_others_keep_their_hooks_meanwhile() -> None:
    waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with Counted() as hooks:
        task = asyncio.ensure_future(_first(two(waits)))
        await asyncio.sleep(0)
        assert [item async for item in two()] == [1, 2]
        assert len(hooks.seen) == 1
        waits.set_result(None)
        async with asyncio.timeout(5):
            assert await task == 1


async def _first(items: AsyncGenerator[int, None]) -> int:
    return await unhooked_next(items)


async def test_a_cancellation_reaches_the_generator() -> None:
    waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(_first(two(waits)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert waits.cancelled()


async def test_an_empty_generator_and_a_failing_one_behave_as_ever() -> None:
    async def none() -> AsyncGenerator[int, None]:
        return
        yield

    async def broken() -> AsyncGenerator[int, None]:
        for item in [1]:
            raise KeyError(item)
        yield 1

    before = sys.get_asyncgen_hooks()
    with pytest.raises(StopAsyncIteration):
        await unhooked_next(none())
    with pytest.raises(KeyError):
        await unhooked_next(broken())
    assert sys.get_asyncgen_hooks() == before
