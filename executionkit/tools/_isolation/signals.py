"""Signal handlers that end the workers, and then do what was done before."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ("ChainedSignals",)

_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


class ChainedSignals:
    """Handles SIGTERM and SIGINT until it is taken back.

    Args:
        then: Called first, with nothing; what handled the signal before comes after,
            so that the program ends as it would have.
    """

    __slots__ = ("_before", "_then")

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Put the handlers in place; only the main thread can, others do nothing."""
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        for number in _NUMBERS:
            self._before[number] = signal.signal(number, self._on_signal)

    def restore(self) -> None:
        """Put back what was there, unless somebody has put something else there."""
        if threading.current_thread() is not threading.main_thread():
            return
        before, self._before = self._before, {}
        for number, handler in before.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        self._then()
        if callable(before):
            before(number, frame)
        elif before != signal.SIG_IGN:
            self.restore()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
