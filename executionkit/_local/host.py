"""The threads that run the engine, and what keeps them from harm.

The engine answers a request on the thread that asks, and can be stopped only from
inside its callback. So each of `parallel` daemon threads runs one request at a time,
requests wait in line before them, and a request nobody waits for any more stops at the
engine's next token. Three facts about the engine shape the rest:

- It crashes the process when the interpreter ends while it is generating. Hence an exit
  handler, registered when the engine is loaded: it stops all requests and waits.
- A forked child has none of its threads: a call to it, and the destruction of any
  engine there, would hang for ever. A child never touches its parent's engine; it loads
  its own when used, and leaves that one to the end of the process.
- It is stopped by dropping the last reference, so nothing else may keep one.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from executionkit._threads import run_in_thread
from executionkit.errors import ProviderConnectionError

__all__ = ("Build", "Engine", "EngineHost", "Job", "ModelInfo")

_END_SECONDS: Final = 10.0
"""How long closing, or the end of the process, waits for running requests to stop."""

_first_process = 0
"""The process that first loaded an engine; in its forked children engines never end."""

_PROGRESS: Final = b'"prompt_progress"'
_CLOSED: Final = "the local model was closed while the request was running"


class Engine(Protocol):
    """What is used of the native engine."""

    def handle_chat_completions(
        self, body: bytes, callback: Callable[[bytes], bool], /
    ) -> object:
        """Answer, calling back with each piece; True from there stops it."""
        ...


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known about a loaded model. It does not keep the engine alive."""

    address: str
    """The engine's own HTTP server, e.g. `http://127.0.0.1:46355`."""

    native_tools: bool
    """Whether the model's chat template knows tools."""

    parameters: int
    """The size of the model; 0 = unknown."""


Build: TypeAlias = Callable[[], tuple[Engine, ModelInfo]]
"""Makes the engine; called on a thread of the host."""


class Job:
    """One request: pieces go from the engine's thread to the loop that asked.

    Args:
        body: The request as JSON. None = only load the engine.
    """

    __slots__ = ("_loop", "_pieces", "body", "info", "stopped")

    def __init__(self, body: bytes | None) -> None:
        self.body = body
        self.stopped = False
        self.info: ModelInfo | None = None
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    def stop(self) -> None:
        """Nobody waits any more: end at the next token, or never begin."""
        self.stopped = True

    async def next(self) -> bytes | None:
        """The next piece; None = that was all.

        Raises:
            ValueError: What the engine said when it refused the request.
            ExecutionKitError: The engine could not be loaded, or was closed.
        """
        piece = await self._pieces.get()
        if isinstance(piece, Exception):
            raise piece
        return piece

    def give(self, piece: bytes) -> bool:
        """Called by the engine with each piece; True tells it to stop."""
        if not self.stopped and _PROGRESS not in piece:
            self._send(piece)
        return self.stopped

    def end(self, failure: Exception | None = None) -> None:
        """Nothing more comes."""
        self._send(failure)

    def _send(self, item: bytes | Exception | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, item)
        except RuntimeError:
            self.stopped = True  # the caller's loop is closed


class _Crew:
    """The threads of one engine, from its first request to its close."""

    def __init__(self, build: Build, size: int) -> None:
        self.pid = os.getpid()
        self.finished = threading.Event()
        self._build = build
        self._loading = threading.Lock()
        self._loaded: tuple[Engine, ModelInfo] | None = None
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._running: set[Job] = set()
        self._closed = False
        self._alive = size
        atexit.register(self.at_exit)
        for number in range(size):
            name = f"executionkit-local-{number + 1}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """Stop what runs, refuse what waits; does not wait itself."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for job in self._running:
                job.stop()
                job.end(ProviderConnectionError(_CLOSED))
        for _ in range(self._alive):
            self._jobs.put(None)

    def abandon(self) -> None:
        """Give the engine up without ever destroying it."""
        loaded, self._loaded = self._loaded, None
        atexit.unregister(self.at_exit)
        if loaded is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded[0]))

    def at_exit(self) -> None:
        """The interpreter ends."""
        if self.pid == os.getpid():
            self.close()
            if self.finished.wait(_END_SECONDS):
                return
        self.abandon()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                break
            self._run(job)
            del job
        with self._lock:
            self._alive -= 1
            if self._alive:
                return
        if _first_process in {0, os.getpid()}:
            self._loaded = None  # the engine ends here
            atexit.unregister(self.at_exit)
        else:
            self.abandon()
        self.finished.set()

    def _run(self, job: Job) -> None:
        with self._lock:
            closed = self._closed
            if not closed:
                self._running.add(job)
        failure = ProviderConnectionError(_CLOSED) if closed else self._ask(job)
        with self._lock:
            self._running.discard(job)
        job.end(failure)

    def _ask(self, job: Job) -> Exception | None:
        try:
            engine, job.info = self._engine()
        except Exception as exc:  # noqa: BLE001 - the edge: carried to the caller
            return exc
        if job.body is None or job.stopped:
            return None
        try:
            engine.handle_chat_completions(job.body, job.give)
        except Exception as exc:  # noqa: BLE001 - the edge: native code raises anything
            # A new error: the traceback of the engine's would keep the engine alive.
            return ValueError(str(exc) or type(exc).__name__)
        return None

    def _engine(self) -> tuple[Engine, ModelInfo]:
        global _first_process  # noqa: PLW0603 - one native library per process
        with self._loading:
            if self._loaded is None:
                self._loaded = self._build()
                if not _first_process:
                    _first_process = os.getpid()
                    atexit.register(_leave)
            return self._loaded


def _leave() -> None:
    """The interpreter ends: a forked child must not run the library's destructors.

    They wait for threads that only the parent has. glibc calls what `on_exit` was given
    before them, with the exit status, which `_exit` takes as it is.
    """
    if os.getpid() != _first_process:
        libc = ctypes.CDLL(None)
        if hasattr(libc, "on_exit"):
            libc.on_exit(libc["_exit"], None)


class EngineHost:
    """One engine, shared by all loops and threads of the process.

    It is loaded by the first request, closed by `close`, and loaded again by a request
    after that.

    Args:
        build: Makes the engine.
        parallel: Requests that run at once; more wait in line.
    """

    def __init__(self, build: Build, parallel: int) -> None:
        self._build = build
        self._parallel = parallel
        self._lock = threading.Lock()
        self._crew: _Crew | None = None

    def submit(self, body: bytes) -> Job:
        """Put a request in line."""
        job = Job(body)
        self._hire().submit(job)
        return job

    async def load(self) -> ModelInfo:
        """Load the engine, if it is not, and say what it is.

        Raises:
            MissingExtraError: A package is missing.
            PermanentError: The model cannot be loaded.
        """
        job = Job(None)
        self._hire().submit(job)
        try:
            await job.next()
        finally:
            job.stop()
        if job.info is None:
            raise ProviderConnectionError(_CLOSED)
        return job.info

    def close(self) -> None:
        """Stop all requests and end the engine; does not wait for it."""
        self._dismiss()

    async def aclose(self) -> None:
        """Stop all requests, end the engine, and wait (a few seconds at most)."""
        crew = self._dismiss()
        if crew is not None:
            await run_in_thread(crew.finished.wait, _END_SECONDS)

    def _hire(self) -> _Crew:
        if self._crew is not None and self._crew.pid != os.getpid():
            # A forked child. The parent's lock may be held for ever.
            self._lock = threading.Lock()
            self._crew.abandon()
            self._crew = None
        with self._lock:
            if self._crew is None:
                self._crew = _Crew(self._build, self._parallel)
            return self._crew

    def _dismiss(self) -> _Crew | None:
        with self._lock:
            crew, self._crew = self._crew, None
        if crew is None:
            return None
        if crew.pid != os.getpid():
            crew.abandon()
            return None
        crew.close()
        return crew
