"""An answer that is there already, for callers who await it and for those who forget."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, NoReturn, TypeVar

__all__ = ("Done",)

_T = TypeVar("_T")


class Done(Coroutine[Any, Any, _T], Generic[_T]):
    """The outcome of work that was done at once: `value`, or `await` it.

    It may be awaited any number of times or not at all, and be given to `asyncio.run`,
    `create_task` and `gather`.
    """

    __slots__ = ("value",)

    def __init__(self, value: _T) -> None:
        self.value: _T = value
        """The outcome."""

    def __await__(self) -> Generator[Any, Any, _T]:
        yield from ()  # makes it a generator
        return self.value

    def send(self, value: Any, /) -> NoReturn:  # noqa: ARG002 - the protocol has it
        """End at once, as a coroutine does."""
        raise StopIteration(self.value)

    def throw(self, typ: Any, val: Any = None, tb: Any = None, /) -> NoReturn:  # noqa: ARG002 - the protocol has them
        """Raise what is thrown in: there is nothing to clean up."""
        raise typ

    def close(self) -> None:
        """Nothing to close."""

    def __repr__(self) -> str:
        return f"Done({self.value!r})"
