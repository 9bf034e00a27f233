"""What a tool has started and what has left the process group of its worker."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Final

__all__ = ("MARK", "kill_strays")

MARK: Final = "EXECUTIONKIT_WORKER"
"""In the environment of a worker and of all that it starts: which worker it is."""

_PROC: Final = "/proc"
_PASSES: Final = 3


def kill_strays(mark: str) -> None:
    """SIGKILL to all processes that have the mark of a worker in their environment.

    A signal to the group does not reach one that has begun a session or a group of its
    own, as browsers do. What empties its environment is not found, and nothing is
    where there is no `/proc`.
    """
    wanted = f"{MARK}={mark}".encode()
    for _ in range(_PASSES):  # they may have started others meanwhile
        found = [pid for pid in _processes() if wanted in _environment(pid)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208 - pathlib makes an object of each
    except OSError:
        return []


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"{_PROC}/{pid}/environ", "rb") as file:  # noqa: PTH123 - the same
            return file.read().split(b"\0")
    except OSError:  # it has gone, or is somebody else's
        return []
