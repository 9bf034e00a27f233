"""Ctrl-C and SIGTERM before a command has begun; loads next to nothing."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Any, Self

__all__ = ("EarlyStop", "Stopped", "is_ignored")


class Stopped(KeyboardInterrupt):
    """A signal ends what is being done.

    Not a bare KeyboardInterrupt: when one of these leaves `exec`, as in the making of
    a dataclass, the interpreter ends by the signal later, whoever has caught it.
    """


def is_ignored(signum: int) -> bool:
    """Whether whoever started the process wants this signal to be ignored."""
    return signal.getsignal(signum) is signal.SIG_IGN


class EarlyStop:
    """While it is entered, the signals raise `Stopped` and are told on stderr.

    Handlers that are not the default ones, and other threads than the main one, are
    left alone.

    Args:
        is_program: Whether the second signal may end the process.
    """

    def __init__(self, *, is_program: bool = True) -> None:
        self._is_program = is_program
        self.signum: int = 0
        """The signal that came; 0 = none."""

        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                old = signal.getsignal(signum)
                if old in {signal.SIG_DFL, signal.default_int_handler}:
                    self._old[signum] = old
                    signal.signal(signum, self._on_signal)
        return self

    def __exit__(self, *_exc: object) -> None:
        for signum, old in self._old.items():
            if signal.getsignal(signum) == self._on_signal:
                signal.signal(signum, old)

    def _on_signal(self, signum: int, _frame: object) -> None:
        if self.signum and self._is_program:
            os._exit(128 + signum)
        self.signum = signum
        word = "interrupted" if signum == signal.SIGINT else "terminated"
        with suppress(OSError):
            os.write(2, f"executionkit: {word}\n".encode())
        raise Stopped
