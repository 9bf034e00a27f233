"""One worker process, as its parent sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess  # nosec B404 - for its objects
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from executionkit._clock import SystemClock
from executionkit.tools._isolation import protocol
from executionkit.tools._isolation.protocol import Assembler, BrokenFrameError, Frame
from executionkit.tools._isolation.spawn import exit_descriptor, spawn
from executionkit.tools._isolation.strays import kill_strays

if TYPE_CHECKING:
    from collections.abc import Callable

    from executionkit.tools._isolation.options import PoolOptions

__all__ = ("REAL_TIME", "WorkerProcess")

REAL_TIME: Final = SystemClock()
"""Processes live in real time, whatever clock a test has put in place."""

_SOCKET_BYTES: Final = 1 << 20
_KILLED_SECONDS: Final = 1.0
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.02
_LAST_LOOKS: Final = 5


class WorkerProcess:
    """A child process in a session of its own, and the socket to it.

    Args:
        main_script: Where the main script is, see `where_main_is`.
        options: How it is kept.

    Raises:
        OSError: When it cannot be started.
    """

    __slots__ = (
        "__weakref__",
        "_assembler",
        "_exit_fd",
        "_inbox",
        "_lifeline",
        "_loop",
        "_mark",
        "_popen",
        "_ready",
        "_socket",
        "_to_send",
        "_waiter",
        "calls",
        "is_busy",
        "is_dead",
        "is_fenced",
        "is_ready",
        "is_spent",
        "loaded",
        "pid",
        "size",
    )

    def __init__(self, main_script: str, options: PoolOptions) -> None:
        ours, theirs = socket.socketpair()
        try:
            reading, writing = os.pipe()
        except OSError:
            ours.close()
            theirs.close()
            raise
        try:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
            ours.setblocking(False)  # noqa: FBT003 - the socket's own signature
            self._mark = os.urandom(8).hex()
            ends = theirs.fileno(), reading
            self._popen = spawn(ends, main_script, options, self._mark)
        except BaseException:
            ours.close()
            os.close(writing)
            raise
        finally:
            theirs.close()
            os.close(reading)
        self.pid: int = self._popen.pid
        self.is_fenced: bool = bool(options.fence)
        """Whether what it sends is not trusted."""
        self._socket = ours
        self._lifeline = writing
        self._exit_fd = exit_descriptor(self.pid)
        self._assembler = Assembler()
        self._inbox: deque[tuple[int, Any]] = deque()
        self._to_send: list[memoryview] = []
        self._waiter: asyncio.Future[None] | None = None
        self._ready: list[asyncio.Future[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_ready: bool = False
        """Whether it has said that it listens."""
        self.is_dead: bool = False
        """Whether it has ended, or its socket has."""
        self.is_busy: bool = False
        """Whether somebody waits for what it does."""
        self.is_spent: bool = False
        """Whether it is to get no further calls."""
        self.loaded: set[int] = set()
        """The tools that it has."""
        self.calls: int = 0
        """Calls it was given."""
        self.size: int = 0
        """Resident bytes after its last call, where that is asked for."""

    # --- the event loop that hears it ---

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Be heard on `loop`."""
        self._loop = loop
        loop.add_reader(self._socket.fileno(), self._on_bytes)
        if self._exit_fd is not None:
            loop.add_reader(self._exit_fd, self._on_exit)

    def detach(self) -> None:
        """Be heard no more; the loop may be closed already."""
        loop, self._loop = self._loop, None
        if loop is None or loop.is_closed():
            return
        loop.remove_reader(self._socket.fileno())
        loop.remove_writer(self._socket.fileno())
        if self._exit_fd is not None:
            loop.remove_reader(self._exit_fd)

    def _on_bytes(self) -> None:
        assembler = self._assembler
        try:
            while True:
                room = assembler.room()
                count = self._socket.recv_into(room)
                if not count:
                    self._gone()
                    return
                assembler.add(count)
                while (frame := assembler.next()) is not None:
                    self._take(frame)
                if count < len(room):
                    return
        except BlockingIOError:
            return
        except (OSError, BrokenFrameError, MemoryError):
            self._gone()

    def _on_exit(self) -> None:
        """It has ended; what it said before still counts."""
        if not self.is_dead:
            self._on_bytes()
        self._gone()

    def _take(self, frame: Frame) -> None:
        if frame.kind == protocol.READY:
            self.is_ready = True
            self._tell_ready()
            return
        try:
            item = (frame.kind, frame.value(plain=self.is_fenced))
        except Exception as exc:  # noqa: BLE001 - unpickling runs foreign code
            item = (protocol.UNREADABLE, (frame.kind, exc))
        self._inbox.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _gone(self) -> None:
        if not self.is_dead:
            self._say_dead()
            if not self.is_busy:
                self.kill()

    def _say_dead(self) -> None:
        """Nothing more will be heard of it; whoever waits for it is told."""
        if self.is_dead:
            return
        self.is_dead = True
        self.detach()
        self._inbox.append((protocol.DIED, None))
        self._tell_ready()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _tell_ready(self) -> None:
        waiting, self._ready = self._ready, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # --- talking with it ---

    async def until_ready(self) -> bool:
        """Wait until it listens; False when it has ended."""
        if not self.is_ready and not self.is_dead:
            future = asyncio.get_running_loop().create_future()
            self._ready.append(future)
            await future
        return not self.is_dead

    def send(self, parts: list[Any]) -> None:
        """Send a frame; what the socket does not take at once follows later.

        Raises:
            OSError: When the worker is gone, and has got none of it.
        """
        for number, part in enumerate(parts):
            if self._to_send:
                self._to_send.append(memoryview(part).cast("B"))
                continue
            try:
                sent = self._socket.send(part)
            except BlockingIOError:
                sent = 0
            except OSError:
                if not number:
                    raise
                return  # its end is heard by the reader
            size = memoryview(part).nbytes
            if sent < size:
                self._to_send.append(memoryview(part).cast("B")[sent:])
                if self._loop is not None:
                    self._loop.add_writer(self._socket.fileno(), self._on_room)

    def _on_room(self) -> None:
        waiting = self._to_send
        try:
            while waiting:
                sent = self._socket.send(waiting[0])
                if sent < waiting[0].nbytes:
                    waiting[0] = waiting[0][sent:]
                    return
                del waiting[0]
        except BlockingIOError:
            return
        except OSError:
            waiting.clear()  # its end is heard by the reader
        if self._loop is not None:
            self._loop.remove_writer(self._socket.fileno())

    def heard(self) -> tuple[int, Any] | None:
        """What it has said and nobody has taken."""
        return self._inbox.popleft() if self._inbox else None

    async def receive(self) -> tuple[int, Any]:
        """What it says next: the kind and the value."""
        if not self._inbox:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._inbox.popleft()

    # --- its end ---

    @property
    def exit_code(self) -> int | None:
        """As `subprocess` has it; None while it runs."""
        return self._popen.returncode

    def has_ended(self) -> bool:
        """Whether the process has ended. It is not reaped: its id stays its own."""
        if self._popen.returncode is not None:
            return True
        look: Callable[..., Any] | None = getattr(os, "waitid", None)
        if look is None:
            return self._popen.poll() is not None
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return look(os.P_PID, self.pid, flags) is not None
        except ChildProcessError:
            return True

    def is_reaped(self) -> bool:
        """Whether it has ended and nothing of it is left, not even a zombie."""
        return self._popen.poll() is not None

    async def ended_within(self, seconds: float) -> bool:
        """Wait for its end, `seconds` at most."""
        due = REAL_TIME.monotonic() + seconds
        pause = _FIRST_PAUSE
        while not self.has_ended():
            left = due - REAL_TIME.monotonic()
            if left <= 0:
                return False
            await REAL_TIME.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE)
        return True

    def signal(self, number: int) -> None:
        """Send a signal to it and all processes of its group."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    async def end(self, grace: float, *, politely: bool = False) -> None:
        """Stop it and all of its group: SIGTERM, `grace` seconds, SIGKILL.

        When this returns (or is cancelled), nothing of it runs any more.

        Args:
            grace: Seconds between the two signals; 0 = SIGKILL at once.
            politely: True closes its socket in place of SIGTERM: it runs nothing now.
        """
        try:
            if grace > 0 and not self.has_ended():
                if politely:
                    self.dismiss()
                else:
                    self.signal(signal.SIGTERM)
                await self.ended_within(grace)
        finally:
            self.kill()
        await self.ended_within(_KILLED_SECONDS)
        self._popen.poll()
        for _ in range(_LAST_LOOKS):
            try:
                os.killpg(self.pid, 0)
            except OSError:
                return
            await REAL_TIME.sleep(_FIRST_PAUSE)

    def kill(self) -> None:
        """SIGKILL to it, its group, and all that its call has started; no waiting."""
        self._say_dead()
        self.signal(signal.SIGKILL)
        if self.is_busy and self._lifeline >= 0:
            kill_strays(self._mark)
        self._close()
        if self._popen.poll() is None:
            self._reap_later()

    def kill_from_anywhere(self) -> None:
        """`kill`, also where another thread runs the loop that hears it."""
        loop = self._loop
        if loop is not None and loop.is_running():
            self.signal(signal.SIGKILL)
            with contextlib.suppress(RuntimeError):  # it is closed at this moment
                loop.call_soon_threadsafe(self.kill)
        else:
            self._loop = None  # and its selector forgets with the descriptors
            self.kill()

    def dismiss(self) -> None:
        """Let it end by itself: it reads that there is nothing more to do."""
        self._say_dead()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def wait(self, seconds: float) -> None:
        """Block until it is reaped; for ends without an event loop."""
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            self._popen.wait(seconds)

    def forget(self) -> None:
        """In a forked child: close the copies; the process is the parent's."""
        self.is_dead = True
        self._loop = None
        self._popen.returncode = 0
        self._close()

    def _reap_later(self) -> None:
        # SIGKILL takes a moment, and nobody may be left to wait for it.
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        poll = self._popen.poll
        for pause in (0.005, 0.05, 0.5):
            loop.call_later(pause, poll)

    def _close(self) -> None:
        if self._lifeline < 0:
            return
        self.detach()
        self._socket.close()
        os.close(self._lifeline)
        self._lifeline = -1
        if self._exit_fd is not None:
            os.close(self._exit_fd)
            self._exit_fd = None
