"""Threads that the library owns, for functions that block.

The event loop's default executor is shared with everything else in the process and is
small; a function that overruns its limit would hold one of its threads for good. Here
each call gets an idle daemon thread or a new one, an overrunning thread is abandoned
(it ends by itself when its function returns), and none delays the exit of the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from executionkit.types import sealed

__all__ = ("ThreadPool", "ThreadStats", "run_in_thread", "thread_stats")

_T = TypeVar("_T")


@sealed
@dataclass(frozen=True, slots=True)
class ThreadStats:
    """How many threads there are."""

    busy: int
    """Threads that run a function whose caller still waits."""

    idle: int
    """Threads waiting for work; they end after a while."""

    abandoned: int
    """Threads whose caller has gone while the function still runs."""


class ThreadPool:
    """Daemon threads for blocking functions; grows as needed, idle ones end.

    Args:
        max_idle: Threads kept waiting for more work.
        idle_seconds: Seconds after which an idle thread ends.
        max_abandoned: Functions that may overrun at once; beyond that no new one is
            begun, for threads are finite.
        name: Prefix of the threads' names.
    """

    def __init__(
        self,
        *,
        max_idle: int = 8,
        idle_seconds: float = 10.0,
        max_abandoned: int = 1000,
        name: str = "executionkit",
    ) -> None:
        self._max_idle = max_idle
        self._idle_seconds = idle_seconds
        self._max_abandoned = max_abandoned
        self._name = name
        self._lock = threading.Lock()
        self._idle: deque[_Worker] = deque()
        self._busy = 0
        self._abandoned = 0
        self._made = 0
        self._pid = os.getpid()

    def stats(self) -> ThreadStats:
        """A snapshot of the counts."""
        with self._lock:
            return ThreadStats(self._busy, len(self._idle), self._abandoned)

    async def run(
        self, function: Callable[..., _T], /, *args: Any, **kwargs: Any
    ) -> _T:
        """Run `function` in a thread, with the caller's context variables.

        When the caller is cancelled the thread is abandoned: the function cannot be
        stopped, its outcome is dropped, and no other call waits for it.

        Raises:
            RuntimeError: When too many abandoned functions still run.
        """
        loop = asyncio.get_running_loop()
        job = _Job(loop, contextvars.copy_context(), function, args, kwargs)
        self._dispatch(job)
        try:
            value = await job.outcome
        except asyncio.CancelledError:
            self._abandon(job)
            raise
        if type(value) is _Exit:
            raise value.error
        return value  # type: ignore[no-any-return]

    def _dispatch(self, job: _Job) -> None:
        if self._pid != os.getpid():
            self._forget_parent()
        with self._lock:
            if self._abandoned >= self._max_abandoned:
                msg = (
                    f"{self._abandoned} functions that overran their limits still run; "
                    "no further one is begun (run what may hang in another process)"
                )
                raise RuntimeError(msg)
            worker = self._idle.pop() if self._idle else None
            if worker is None:
                self._made += 1
                worker = _Worker(self, f"{self._name}-{self._made}")
            self._busy += 1
        worker.give(job)

    def _forget_parent(self) -> None:
        # A forked child inherits the lists but none of the threads.
        self._lock = threading.Lock()
        self._idle.clear()
        self._busy = self._abandoned = 0
        self._pid = os.getpid()

    def _abandon(self, job: _Job) -> None:
        with self._lock:
            if not job.finished and not job.abandoned:
                job.abandoned = True
                self._busy -= 1
                self._abandoned += 1

    def _finished(self, worker: _Worker, job: _Job) -> bool:
        """Book the end of `job`; True when the worker shall wait for more."""
        with self._lock:
            job.finished = True
            if job.abandoned:
                self._abandoned -= 1
            else:
                self._busy -= 1
            if len(self._idle) >= self._max_idle:
                return False
            self._idle.append(worker)
            return True

    def _retire(self, worker: _Worker) -> bool:
        """Take an idle worker out; False when it has just been given a job."""
        with self._lock:
            try:
                self._idle.remove(worker)
            except ValueError:
                return False
            return True


class _Exit:
    """A `GeneratorExit` on its way: a future that held it would close its reader."""

    __slots__ = ("error",)

    def __init__(self, error: GeneratorExit) -> None:
        self.error: GeneratorExit = error


class _Job:
    __slots__ = (
        "_args",
        "_context",
        "_function",
        "_kwargs",
        "_loop",
        "abandoned",
        "finished",
        "outcome",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._loop = loop
        self._context = context
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self.abandoned = False
        self.finished = False
        self.outcome: asyncio.Future[Any] = loop.create_future()

    def run(self) -> Callable[[], None]:
        """Call the function; returns what hands its outcome to the loop."""
        try:
            value = self._context.run(self._function, *self._args, **self._kwargs)
        except BaseException as exc:  # noqa: BLE001 - carried to the caller's task
            error = exc
            if isinstance(exc, StopIteration):  # a future refuses to hold one
                error = RuntimeError(f"function raised StopIteration: {exc}")
                error.__cause__ = exc
            if isinstance(exc, GeneratorExit):
                carried = _Exit(exc)
                return lambda: self._deliver(carried, None)
            return lambda: self._deliver(None, error)
        return lambda: self._deliver(value, None)

    def hand_over(self, deliver: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(deliver)
        except RuntimeError:
            return  # the caller's loop is closed: nobody waits any more

    def _deliver(self, value: Any, error: BaseException | None) -> None:
        if self.outcome.done():
            return
        if error is None:
            self.outcome.set_result(value)
        else:
            self.outcome.set_exception(error)


class _Worker:
    __slots__ = ("_jobs", "_pool")

    def __init__(self, pool: ThreadPool, name: str) -> None:
        self._pool = pool
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        threading.Thread(target=self._loop, name=name, daemon=True).start()

    def give(self, job: _Job) -> None:
        self._jobs.put(job)

    def _loop(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._pool._idle_seconds)  # noqa: SLF001
            except queue.Empty:
                if self._pool._retire(self):  # noqa: SLF001
                    return
                continue
            deliver = job.run()
            again = self._pool._finished(self, job)  # noqa: SLF001
            job.hand_over(deliver)
            del job, deliver
            if not again:
                return


_shared = ThreadPool()


async def run_in_thread(
    function: Callable[..., _T], /, *args: Any, **kwargs: Any
) -> _T:
    """Run a blocking function in a thread of the shared pool; see `ThreadPool.run`."""
    return await _shared.run(function, *args, **kwargs)


def thread_stats() -> ThreadStats:
    """Counts of the shared pool; `abandoned` shows functions that overran."""
    return _shared.stats()
