"""The main program of a worker process: one call after the other, until the parent goes.

Everything a worker does begins with a frame of its parent. It ends when the socket
ends; when the parent dies while a tool runs, the kernel kills its process group.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle  # nosec B403 - between a parent and its own child
import signal
import sys
from contextvars import Context, copy_context
from types import FrameType, TracebackType
from typing import Any, Final

from executionkit._constants import MAX_ERROR_CHARS
from executionkit.tools._isolation import protocol
from executionkit.tools._isolation.loading import load, stand_in_for_main
from executionkit.tools._isolation.protocol import Assembler, Frame, pack

__all__ = ("Channel", "Stopped", "Worker", "main")

_F_SETSIG: Final = 10  # of Linux; not in the module `fcntl`
_IS_LINUX: Final = sys.platform == "linux"
_STOPPED: Final = 128 + signal.SIGTERM
_DIED_WITH_PARENT: Final = 128 + signal.SIGKILL


class Stopped(BaseException):
    """SIGTERM came while a tool ran: its `finally` blocks run, and the worker ends."""


class _UnsendableError(Exception):
    """An item cannot be pickled; its cause says why."""


class Channel:
    """The worker's end of the socket; everything here blocks.

    Args:
        fd: The socket.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._assembler = Assembler()
        self.window: int = 0
        """Items that may be sent before the next acknowledgement."""
        self.is_waiting: bool = False
        """Whether a tool stands still until the parent has taken an item."""

    def send(self, kind: int, value: object) -> None:
        """Send a frame.

        Raises:
            Exception: Whatever the pickling of `value` raises; nothing is sent then.
        """
        self.send_parts(pack(kind, value))

    def send_parts(self, parts: list[Any]) -> None:
        """Send what `pack` gave."""
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(self._fd, view) :]

    def read(self) -> Frame | None:
        """The next frame; None when the parent has closed its end."""
        assembler = self._assembler
        while (frame := assembler.next()) is None:
            count = os.readv(self._fd, [assembler.room()])
            if not count:
                return None
            assembler.add(count)
        return frame

    def send_item(self, item: object) -> None:
        """Send an item; wait while too many of them have not been taken."""
        try:
            parts = pack(protocol.ITEM, item)
        except Exception as exc:
            raise _UnsendableError from exc
        while not self.window:
            self.is_waiting = True
            frame = self.read()
            self.is_waiting = False
            if frame is None:
                raise Stopped
            if frame.kind == protocol.ACK:
                self.window += frame.value()
        self.window -= 1
        self.send_parts(parts)


class Worker:
    """What a worker has, and what it does with each frame.

    Args:
        channel: The way to the parent.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._tools: dict[int, tuple[Any, Any]] = {}
        self._tasks: Any = None  # made for the first async tool
        self._is_at_work = False

    def on_terminate(self, _number: int, _frame: FrameType | None) -> None:
        """SIGTERM: end at once, but let the tool clean up."""
        if not self._is_at_work:
            os._exit(_STOPPED)
        if self._channel.is_waiting or self._tasks is None or not self._tasks.cancel():
            raise Stopped

    def serve(self) -> None:
        """Do what the parent says until it closes its end."""
        while (frame := self._channel.read()) is not None:
            if frame.kind == protocol.CALL:
                self._call(frame)
            elif frame.kind == protocol.LOAD:
                self._load(frame)

    def _load(self, frame: Frame) -> None:
        try:
            key, payload, files = frame.value()
            if len(self._tools) >= protocol.MAX_LOADED:
                self._tools.clear()
            self._tools[key] = load(payload, files)
            # A module may have put its own in place.
            signal.signal(signal.SIGTERM, self.on_terminate)
        except Exception as exc:  # noqa: BLE001 - importing runs foreign code
            self._fail("load", exc)
        except SystemExit as exc:
            self._fail("load", exc)
        else:
            self._channel.send(protocol.LOADED, key)

    def _call(self, frame: Frame) -> None:
        try:
            key, streams, arguments, told, tell_size = frame.value()
            context = _context_of(*told) if told else copy_context()
            bounds = told[2] if told else None
        except Exception as exc:  # noqa: BLE001 - unpickling runs foreign code
            self._fail("arguments", exc)
            return
        finally:
            del frame
        function = self._tools[key][1 if streams else 0]
        before: Any = None
        self._channel.window = protocol.WINDOW
        what = "raised"
        try:
            self._is_at_work = True
            try:
                if bounds is not None:
                    from executionkit.tools._isolation.limits import set_bounds

                    before = set_bounds(bounds)
                value = self._run(function, arguments, context)
            finally:
                self._is_at_work = False
                if before:
                    from executionkit.tools._isolation.limits import take_back

                    take_back(before)
            what = "result"
            parts = pack(protocol.DONE, (value, _size() if tell_size else 0))
        except Stopped:
            _leave()
        except _UnsendableError as exc:
            self._fail("result", exc.__cause__ or exc, tell_size=tell_size)
        except BaseException as exc:  # noqa: BLE001 - whatever a tool raises is its failure
            self._fail(what, exc, tell_size=tell_size)
        else:
            self._channel.send_parts(parts)

    def _run(self, function: Any, arguments: dict[str, Any], context: Context) -> Any:
        outcome = context.run(function, **arguments)
        kind = type(outcome)
        if kind in _PLAIN:
            return outcome
        if hasattr(kind, "__anext__") and hasattr(kind, "athrow"):
            return self._on_loop(_drain_async(outcome, self._channel), context)
        if hasattr(kind, "__next__") and hasattr(kind, "throw"):
            return _drain(outcome, self._channel, context)
        if hasattr(kind, "__await__"):
            return self._on_loop(outcome, context)
        return outcome

    def _on_loop(self, coro: Any, context: Context) -> Any:
        if self._tasks is None:
            from executionkit.tools._isolation.worker_loop import Tasks

            self._tasks = Tasks(Stopped)
        return self._tasks.run(coro, context)

    def _fail(self, what: str, exc: BaseException, *, tell_size: bool = False) -> None:
        size = _size() if tell_size else 0
        try:
            pickled: bytes | None = pickle.dumps(exc)
        except Exception:  # noqa: BLE001 - pickling runs foreign code
            pickled = None
        trace = _trace(exc)
        kind = type(exc)
        name = kind.__qualname__
        if kind.__module__ != "builtins":
            name = f"{kind.__module__}.{name}"
        try:
            text = str(exc)[:MAX_ERROR_CHARS]
        except Exception:  # noqa: BLE001 - the exception's own code
            text = ""
        self._channel.send(protocol.FAIL, (what, name, text, trace, pickled, size))


_PLAIN: Final = frozenset({type(None), str, int, float, bool, dict, list, tuple, bytes})


def _drain(generator: Any, channel: Channel, context: Context) -> Any:
    """Run a generator, sending its items; what it returns, else its last item."""
    last: Any = None
    try:
        while True:
            try:
                last = context.run(next, generator)
            except StopIteration as stop:
                return last if stop.value is None else stop.value
            channel.send_item(last)
    finally:
        context.run(generator.close)


async def _drain_async(stream: Any, channel: Channel) -> Any:
    last: Any = None
    try:
        async for item in stream:
            last = item
            channel.send_item(item)
    finally:
        await stream.aclose()
    return last


def _context_of(
    context: Any, variables: dict[str, Any] | None, _bounds: object
) -> Context:
    """What this request brings, in a copy of what the worker began with."""
    made = copy_context()
    if context is not None:
        from executionkit.context import set_current_context

        made.run(set_current_context, context)
    for path, value in (variables or {}).items():
        from executionkit.tools._isolation.loading import find

        module, _, name = path.partition(":")
        made.run(find(module, name, "set"), value)
    return made


def _size() -> int:
    from executionkit.tools._isolation.limits import resident_bytes

    return resident_bytes()


def _trace(exc: BaseException) -> str:
    """The traceback as text, without the frames of the worker itself."""
    import traceback

    trace: TracebackType | None = exc.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        return "".join(traceback.format_exception(type(exc), exc, trace))
    except Exception:  # noqa: BLE001 - formatting calls foreign code
        return ""


def _leave() -> None:
    """End at once: the parent waits for that, and what a tool began must not go on."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # may be closed, or no file
            stream.flush()
    os._exit(_STOPPED)


def _tie_to_parent(fd: int) -> None:
    """Die with the parent, whatever this process does at that moment.

    Nobody writes to the pipe: its only event is that the parent is gone. The kernel
    then kills the whole process group, tools' own children included.
    """
    if _IS_LINUX:
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(fd, _F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
        try:
            gone = not os.read(fd, 1)  # it may have been gone before
        except BlockingIOError:
            gone = False
        if gone:
            os._exit(_DIED_WITH_PARENT)
        return
    import threading

    def watch() -> None:
        os.read(fd, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _fence(fence: str, channel: Channel) -> bool:
    """Build the sandbox; when that cannot be done, say so."""
    import json

    from executionkit.tools._isolation.sandbox import SandboxError, fence_in

    try:
        fence_in(*json.loads(fence))
    except (SandboxError, OSError) as exc:
        channel.send(protocol.REFUSED, str(exc))
        return False
    return True


def main(fd: int, lifeline: int, main_script: str, fence: str) -> None:
    """Be a worker.

    Args:
        fd: The socket to the parent.
        lifeline: The pipe that ends when the parent does.
        main_script: Where the parent's main script is; empty = it has none.
        fence: What the sandbox allows, as JSON; empty = there is none.
    """
    os.set_inheritable(fd, False)  # noqa: FBT003 - its signature
    os.set_inheritable(lifeline, False)  # noqa: FBT003
    _tie_to_parent(lifeline)
    channel = Channel(fd)
    worker = Worker(channel)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # The terminal's interrupt is the parent's matter.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, worker.on_terminate)
    stand_in_for_main(main_script)
    # The parent may close its end at any moment.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if fence and not _fence(fence, channel):
            return
        channel.send(protocol.READY, os.getpid())
        worker.serve()
