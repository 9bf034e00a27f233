"""The standard streams as byte streams of the event loop.

Each has a thread of its own: that works for pipes, files, terminals and sockets alike,
and changes nothing about the descriptors, which other processes may share.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final

__all__ = ("PipeReader", "PipeWriter", "taken_standard_streams")

_CHUNK: Final = 65_536
_MAX_CHUNKS: Final = 16
_HIGH: Final = 1024 * 1024


def _wait_for(fd: int, *, write: bool) -> None:
    """A descriptor that somebody made non-blocking is not ready yet."""
    select.select([] if write else [fd], [fd] if write else [], [], 1.0)


class PipeReader:
    """Reads a descriptor; the thread never holds more than a megabyte."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._room = threading.Semaphore(_MAX_CHUNKS)
        self._ended = False
        threading.Thread(target=self._run, name="mcp-stdin", daemon=True).start()

    async def read(self, n: int, /) -> bytes:  # noqa: ARG002 - a chunk is small enough
        """The next bytes; none at the end."""
        if self._ended:
            return b""
        data = await self._chunks.get()
        self._room.release()
        self._ended = not data
        return data

    def _run(self) -> None:
        data = b"-"
        while data:
            self._room.acquire()
            try:
                data = os.read(self._fd, _CHUNK)
            except BlockingIOError:
                _wait_for(self._fd, write=False)
                self._room.release()
                continue
            except (OSError, ValueError):
                data = b""
            try:
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, data)
            except RuntimeError:  # the loop has ended
                return


class PipeWriter:
    """Writes a descriptor; `drain` waits while more than a megabyte is unwritten."""

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        self._fd = fd
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Condition()
        self._waiting: list[bytes] = []
        self._size = 0
        self._broken = False
        self._room = asyncio.Event()
        self._room.set()
        threading.Thread(target=self._run, name="mcp-stdout", daemon=True).start()

    @property
    def full(self) -> bool:
        """Whether more than a megabyte is unwritten."""
        return self._size > _HIGH

    def write(self, data: bytes, /) -> None:
        """Take `data`.

        Raises:
            BrokenPipeError: When nobody reads any more.
        """
        with self._lock:
            if self._broken:
                msg = "nobody reads what is written"
                raise BrokenPipeError(msg)
            self._waiting.append(data)
            self._size += len(data)
            if self._size > _HIGH:
                self._room.clear()
            self._lock.notify()

    async def drain(self) -> None:
        """Wait until there is room for more."""
        await self._room.wait()

    async def flush(self, seconds: float) -> None:
        """Wait until everything is written; `seconds` at most."""
        done = self._loop.create_future()
        threading.Thread(
            target=self._wait_empty, args=(seconds, done), daemon=True
        ).start()
        await asyncio.wait({done}, timeout=seconds)

    def _wait_empty(self, seconds: float, done: asyncio.Future[None]) -> None:
        with self._lock:
            self._lock.wait_for(lambda: not self._size or self._broken, seconds)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(done.cancel)

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting:
                    self._lock.wait()
                data = b"".join(self._waiting)
                self._waiting.clear()
            broken = not self._write_all(data)
            with self._lock:
                self._size = 0 if broken else self._size - len(data)
                self._broken = broken
                self._lock.notify_all()
            try:
                self._loop.call_soon_threadsafe(self._written)
            except RuntimeError:  # the loop has ended
                return
            if broken:
                return

    def _write_all(self, data: bytes) -> bool:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                _wait_for(self._fd, write=True)
            except (OSError, ValueError):
                return False
        return True

    def _written(self) -> None:
        if self._size <= _HIGH:
            self._room.set()
        if self._broken:
            self._on_broken()


@contextmanager
def taken_standard_streams() -> Generator[tuple[int, int]]:
    """Take standard input and output away from everybody else, for a while.

    What prints, in this process or in one that it starts, writes to standard error;
    what reads standard input finds it empty. The two descriptors that are given are
    not inherited by other processes.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    empty = os.open(os.devnull, os.O_RDWR)
    taken: list[int] = []
    try:
        for fd in (0, 1):
            try:
                taken.append(os.dup(fd))
            except OSError:  # closed; then nothing comes, and nobody listens
                taken.append(os.dup(empty))
        os.dup2(empty, 0)
        try:
            os.dup2(2, 1)
        except OSError:
            os.dup2(empty, 1)
        yield taken[0], taken[1]
    finally:
        with suppress(Exception):
            sys.stdout.flush()  # still to standard error
        for fd, kept in zip((0, 1), taken, strict=False):
            with suppress(OSError):
                os.dup2(kept, fd, inheritable=True)
        # The copies stay open: a thread may be in the middle of reading one.
        os.close(empty)
