"""Steps of foreign asynchronous generators that the event loop is not told of.

A loop that ends closes all asynchronous generators it knows, each in a task of its own.
Generators that stand inside of each other, as those of httpx do, are then closed twice
at once, which is logged as an error. Whoever closes the outermost one needs no help.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Generator
from typing import Any, Generic, TypeVar

__all__ = ("unhooked_next",)

_T = TypeVar("_T")


class unhooked_next(Generic[_T]):  # noqa: N801 - awaited like a function
    """`await unhooked_next(items)` is `await anext(items)`, for the first item.

    Generators begun in the step up to the first suspension are not reported.
    """

    __slots__ = ("_items",)

    def __init__(self, items: AsyncIterator[_T]) -> None:
        self._items = items

    def __await__(self) -> Generator[Any, Any, _T]:
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, None)
        try:
            step = self._items.__anext__().__await__()
            waiting = next(step)
        except StopIteration as done:
            item: _T = done.value
            return item
        finally:
            sys.set_asyncgen_hooks(*hooks)
        rest: _T = yield from _go_on(step, waiting)
        return rest


def _go_on(step: Any, waiting: Any) -> Generator[Any, Any, Any]:
    """The rest of `yield from step`, which waits for `waiting` already."""
    while True:
        try:
            sent = yield waiting
        except GeneratorExit:
            if hasattr(step, "close"):
                step.close()
            raise
        except BaseException as exc:  # handed on, cancellations too
            if not hasattr(step, "throw"):  # no generator: an awaitable of its own kind
                raise
            try:
                waiting = step.throw(exc)
            except StopIteration as done:
                return done.value
            continue
        try:
            waiting = step.send(sent) if sent is not None else next(step)
        except StopIteration as done:
            return done.value
