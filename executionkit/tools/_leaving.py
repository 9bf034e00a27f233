"""Tools that do not end when they are cancelled: they go on in tasks of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from executionkit.tools._running import Workshop

__all__ = ("leave_behind",)

# Tasks are referred to weakly by the event loop; these have nobody else.
_LEFT_BEHIND: Final[set[asyncio.Task[None]]] = set()


def leave_behind(
    coro: Coroutine[Any, Any, Any], exc: BaseException, shop: Workshop
) -> None:
    """Let `coro` go on alone, beginning with `exc` thrown into it; count it."""
    shop.abandoned += 1
    task = asyncio.create_task(_alone(coro, exc))
    _LEFT_BEHIND.add(task)
    task.add_done_callback(lambda done: _forget(done, shop))


def _forget(task: asyncio.Task[None], shop: Workshop) -> None:
    _LEFT_BEHIND.discard(task)
    shop.abandoned -= 1
    if not task.cancelled():
        task.exception()


class _Rest:
    """What is left of a coroutine, beginning with an exception thrown into it."""

    def __init__(self, coro: Coroutine[Any, Any, Any], exc: BaseException) -> None:
        self._coro = coro
        self._exc: BaseException | None = exc

    def __await__(self) -> Generator[Any, Any, Any]:
        thrown, self._exc = self._exc, None
        sent: Any = None
        while True:
            try:
                if thrown is None:
                    waits_for = self._coro.send(sent)
                else:
                    waits_for = self._coro.throw(thrown)
            except StopIteration:
                return
            thrown = None
            try:
                sent = yield waits_for
            except GeneratorExit:
                self._coro.close()
                raise
            except BaseException as exc:  # noqa: BLE001 - handed on to the tool
                thrown = exc


async def _alone(coro: Coroutine[Any, Any, Any], exc: BaseException) -> None:
    await _Rest(coro, exc)
