"""Limits of the operating system around one call, set in the worker."""

from __future__ import annotations

import math
import os
import resource
import signal
from typing import Any, Final

__all__ = ("Bounds", "resident_bytes", "set_bounds", "take_back")

Bounds = tuple["int | None", "float | None", "int | None", "int | None"]
"""(bytes of memory, seconds of CPU, bytes per file, open files); None = no limit."""

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def _pages(place: int) -> int:
    """A number of `/proc/self/statm` in bytes; 0 where there is none."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - pathlib is slow to import
            return int(file.read().split()[place]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def resident_bytes() -> int:
    """What the process has in memory; its peak where the present is not told."""
    return _pages(1) or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def set_bounds(bounds: Bounds) -> list[tuple[int, Any]]:
    """Set the soft limits for a call; what they were before.

    Memory and CPU count from here: what the worker has and has used already is not the
    call's. A call over its CPU time gets SIGXCPU, and ends the worker.

    Raises:
        ValueError: When the system refuses one.
        OSError: The same.
    """
    memory, cpu, file_size, files = bounds
    wanted: list[tuple[int, float | None]] = [
        (resource.RLIMIT_AS, None if memory is None else _pages(0) + memory),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NOFILE, files),
    ]
    if cpu is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        total = math.ceil(used.ru_utime + used.ru_stime + cpu)
        wanted.append((resource.RLIMIT_CPU, total))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    before: list[tuple[int, Any]] = []
    for kind, value in wanted:
        if value is None:
            continue
        soft, hard = resource.getrlimit(kind)
        before.append((kind, (soft, hard)))
        bound = int(value)
        if hard != resource.RLIM_INFINITY:
            bound = min(bound, hard)
        resource.setrlimit(kind, (bound, hard))
    return before


def take_back(before: list[tuple[int, Any]]) -> None:
    """Set the limits to what they were."""
    for kind, values in before:
        resource.setrlimit(kind, values)
