"""The standard streams as byte streams of the event loop.

This works for pipes, files, terminals and sockets alike, and changes nothing about the
descriptors, which other processes may share.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final

__all__ = ("PipeReader", "PipeWriter", "taken_standard_streams")

_CHUNK: Final = 65_536
_MAX_CHUNKS: Final = 16
_HIGH: Final = 1024 * 1024
_PIECE: Final = 4096


def _wait_for(fd: int, *, write: bool) -> None:
    """A descriptor that somebody made non-blocking is not ready yet."""
    select.select([] if write else [fd], [fd] if write else [], [], 1.0)


def _is_pipe(fd: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


class PipeReader:
    """Reads a descriptor; holds a megabyte at most.

    The event loop tells when there is something in a pipe or a socket; for anything
    else, and where the loop cannot, a thread waits.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._room = threading.Semaphore(_MAX_CHUNKS)
        self._ended = False
        self._watched = False
        self._threaded = not (_is_pipe(fd) and self._watch())
        if self._threaded:
            threading.Thread(target=self._run, name="mcp-stdin", daemon=True).start()

    async def read(self, n: int, /) -> bytes:  # noqa: ARG002 - a chunk is small enough
        """The next bytes; none at the end."""
        if self._ended:
            return b""
        if not self._threaded and not self._watched and self._chunks.empty():
            self._watch()
        data = await self._chunks.get()
        if self._threaded:
            self._room.release()
        self._ended = not data
        return data

    def close(self) -> None:
        """Watch the descriptor no more."""
        if self._watched:
            self._watched = False
            self._loop.remove_reader(self._fd)

    def _watch(self) -> bool:
        try:
            self._loop.add_reader(self._fd, self._ready)
        except (NotImplementedError, OSError, ValueError):
            return False
        self._watched = True
        return True

    def _ready(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._chunks.put_nowait(data)
        if not data or self._chunks.qsize() >= _MAX_CHUNKS:
            self.close()

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


def _poller(fd: int) -> select.poll | None:
    if not _is_pipe(fd) or not hasattr(select, "poll"):
        return None
    found = select.poll()
    found.register(fd, select.POLLOUT)
    return found


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
        self._closed = False
        self._poll = _poller(fd)
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
            data = self._write_now(data)
            if not data:
                return
            self._waiting.append(data)
            self._size += len(data)
            if self._size > _HIGH:
                self._room.clear()
            self._lock.notify()

    def _write_now(self, data: bytes) -> bytes:
        """Write a short message at once, when that cannot block; what is left of it.

        A pipe that is ready takes as much in one piece, and it spares the way over the
        thread.
        """
        if self._poll is None or self._size or len(data) > _PIECE:
            return data
        if self._poll.poll(0) != [(self._fd, select.POLLOUT)]:
            return data
        try:
            return data[os.write(self._fd, data) :]
        except OSError:
            return data  # the thread finds out what it is

    async def drain(self) -> None:
        """Wait until there is room for more."""
        await self._room.wait()

    def close(self) -> None:
        """Nothing more is written, but what is under way."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()

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
                    if self._closed:
                        return
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
