"""The workers of one strategy: taken, given back, replaced, ended."""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import TYPE_CHECKING, Any, Final

from executionkit.errors import ToolCancelledError
from executionkit.tools._isolation import protocol
from executionkit.tools._isolation.errors import (
    RemoteTraceback,
    SerializationError,
    WorkerStartError,
    how_it_ended,
)
from executionkit.tools._isolation.loading import IMPORTS_MAIN
from executionkit.tools._isolation.process import REAL_TIME, WorkerProcess
from executionkit.tools._isolation.recipe import where_main_is
from executionkit.tools._running import SHUT_DOWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from executionkit.tools._isolation.options import PoolOptions
    from executionkit.tools._isolation.recipe import Recipe

__all__ = ("Pool",)

_MAX_KEYS: Final = 1024
_LAST_SECONDS: Final = 1.0


class Pool:
    """Starts workers when they are needed, and replaces those that end.

    How many calls there are at once is limited by whoever takes workers: no more may
    be out than `options.size`.

    Args:
        options: How workers are kept.
        begin: Called once, before the first worker is started.
    """

    def __init__(
        self, options: PoolOptions, begin: Callable[[], None] | None = None
    ) -> None:
        self.options: PoolOptions = options
        self.workers: set[WorkerProcess] = set()
        self.is_closed: bool = False
        self._idle: list[WorkerProcess] = []
        self._keys: dict[bytes, int] = {}
        self._last_key = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._begin = begin
        self._is_guarded = False

    @property
    def ready(self) -> int:
        """Workers that listen."""
        return sum(item.is_ready and not item.is_dead for item in self.workers)

    def key(self, payload: bytes) -> int:
        """The number by which workers know a tool."""
        found = self._keys.get(payload)
        if found is None:
            if len(self._keys) >= _MAX_KEYS:
                self._keys.clear()
            self._last_key += 1
            found = self._keys[payload] = self._last_key
        return found

    # --- taking and giving back ---

    def take(self, key: int) -> WorkerProcess | None:
        """An idle worker that has the tool; None = `get` has to be awaited."""
        if asyncio.get_running_loop() is not self._loop:
            return None
        for place in range(len(self._idle) - 1, -1, -1):
            worker = self._idle[place]
            if key in worker.loaded and not worker.is_dead:
                del self._idle[place]
                worker.is_busy = True
                return worker
        return None

    async def get(self, recipe: Recipe) -> WorkerProcess:
        """A worker that has the tool; started when none is idle.

        Raises:
            WorkerStartError: When it could not be started.
            SerializationError: When it cannot import the tool.
            ToolCancelledError: When the pool is closed.
        """
        payload = recipe.payload()
        key = self.key(payload)
        self._adopt()
        is_last = False
        while True:
            self._check_open()
            worker = self._any() or self._start()
            try:
                await self._until_ready(worker, is_last=is_last)
            except asyncio.CancelledError:
                self._idle.append(worker)  # it goes on starting
                raise
            if worker.is_dead:
                is_last = True  # one may die of something else; two hardly do
                continue
            worker.is_busy = True
            if key not in worker.loaded:
                message = (key, payload, recipe.files)
                if not await self._load(worker, message, recipe.name, is_last=is_last):
                    is_last = True
                    continue
            return worker

    def put(self, worker: WorkerProcess) -> None:
        """Give a worker back; one that is dead, or has done enough, is replaced."""
        options = self.options
        if worker.is_busy and not worker.is_dead:
            return  # somebody is ending it
        if not worker.is_dead:
            is_spent = (
                worker.is_spent
                or (options.max_calls is not None and worker.calls >= options.max_calls)
                or (options.max_bytes is not None and worker.size > options.max_bytes)
            )
            if not is_spent:
                self._idle.append(worker)
                return
            self._dismiss(worker)
        else:
            worker.kill()  # it may have died between its answer and now
            if worker.is_reaped():
                self.workers.discard(worker)  # else it is looked at again later
        if not self.is_closed and self._alive() < options.size:
            try:
                self._idle.append(self._start())
            except WorkerStartError:
                return  # the next call tries again, and says why

    async def warm(self) -> None:
        """Start all workers, and wait until they listen.

        Raises:
            WorkerStartError: When one does not.
            ToolCancelledError: When the pool is closed.
        """
        self._adopt()
        self._check_open()
        self._fill()
        for worker in list(self.workers):
            if not worker.is_ready:
                await self._until_ready(worker)

    # --- the end ---

    async def close(self) -> None:
        """End all workers, and wait for that: one second, then they are killed."""
        self.is_closed = True
        self._idle.clear()
        workers = list(self.workers)
        for worker in workers:
            worker.dismiss()
        due = REAL_TIME.monotonic() + _LAST_SECONDS
        try:
            for worker in workers:
                await worker.ended_within(due - REAL_TIME.monotonic())
        finally:
            for worker in workers:
                worker.kill()
        for worker in workers:
            await worker.end(0)
            self.workers.discard(worker)
        if self._ending:
            await asyncio.wait(set(self._ending))

    def kill(self) -> None:
        """SIGKILL to all; for ends without an event loop."""
        self.is_closed = True
        self._idle.clear()
        _kill_all(self.workers, os.getpid())

    def forget(self) -> None:
        """In a forked child: the workers are the parent's."""
        for worker in self.workers:
            worker.forget()
        self.workers.clear()
        self._idle.clear()
        self._loop = None

    # --- inside ---

    def _check_open(self) -> None:
        if self.is_closed:
            raise ToolCancelledError(SHUT_DOWN)

    def _adopt(self) -> None:
        """Hear the workers on the loop that runs now."""
        loop = asyncio.get_running_loop()
        before = self._loop
        if loop is before:
            return
        if before is not None and before.is_running():
            msg = (
                "a SubprocessStrategy serves one event loop at a time, and another one "
                "is still running; give each loop a strategy of its own"
            )
            raise WorkerStartError(msg)
        self._loop = loop
        self._ending.clear()  # tasks of the old loop, which are no more
        for worker in list(self.workers):
            if worker.is_busy or worker.is_dead:
                worker.kill_from_anywhere()  # its call went with the old loop
                worker.wait(_LAST_SECONDS)
                self.workers.discard(worker)
            else:
                worker.detach()
                worker.attach(loop)
        self._idle = [item for item in self._idle if item in self.workers]
        if self.options.is_warm and not self.is_closed:
            self._fill()

    def _fill(self) -> None:
        self._prune()
        while self._alive() < self.options.size:
            self._idle.append(self._start())

    def _alive(self) -> int:
        return sum(not item.is_dead for item in self.workers)

    def _prune(self) -> None:
        for worker in [item for item in self.workers if item.is_dead]:
            if not worker.is_busy:
                worker.kill()
            if worker.is_reaped():
                self.workers.discard(worker)
        self._idle = [item for item in self._idle if not item.is_dead]

    def _any(self) -> WorkerProcess | None:
        self._prune()
        for place in range(len(self._idle) - 1, -1, -1):
            if self._idle[place].is_ready:
                return self._idle.pop(place)
        return self._idle.pop() if self._idle else None

    def _start(self) -> WorkerProcess:
        if os.environ.get(IMPORTS_MAIN):
            msg = (
                "a worker process was about to start workers of its own while it "
                "imported the main script; put what the script does under "
                '`if __name__ == "__main__":`'
            )
            raise WorkerStartError(msg)
        if not self._is_guarded:
            self._guard()
        try:
            worker = WorkerProcess(where_main_is(), self.options)
        except OSError as exc:
            msg = f"Worker process could not be started: {exc}"
            raise WorkerStartError(msg, original_error=exc) from exc
        worker.attach(asyncio.get_running_loop())
        self.workers.add(worker)
        return worker

    def _guard(self) -> None:
        """See to it that no worker outlives the pool or the process."""
        self._is_guarded = True
        if self._begin is not None:
            self._begin()
        weakref.finalize(self, _kill_all, self.workers, os.getpid())
        seen = weakref.ref(self)

        def in_child() -> None:
            pool = seen()
            if pool is not None:
                pool.forget()

        os.register_at_fork(after_in_child=in_child)

    async def _until_ready(
        self, worker: WorkerProcess, *, is_last: bool = True
    ) -> None:
        """Wait until a worker listens; it may have died then, unless `is_last`."""
        if worker.is_ready:
            return
        seconds = self.options.start_seconds
        try:
            async with REAL_TIME.timeout(seconds):
                is_there = await worker.until_ready()
        except TimeoutError:
            await self._discard(worker)
            msg = (
                f"Worker process did not get ready within {seconds:g}s "
                "(`worker_init_timeout`)"
            )
            raise WorkerStartError(msg) from None
        if not is_there:
            heard = worker.heard()
            await self._discard(worker)
            self._check_open()
            if heard is not None and heard[0] == protocol.REFUSED:
                msg = f"Worker process has no sandbox: {heard[1]}"
                raise WorkerStartError(msg)
            if not is_last:
                return
            msg = f"Worker process did not start: {how_it_ended(worker.exit_code)}"
            raise WorkerStartError(msg)

    async def _load(
        self, worker: WorkerProcess, message: Any, name: str, *, is_last: bool
    ) -> bool:
        """Have a worker import a tool.

        False when it died, and may have been dying before: not the tool's fault then.
        """
        seconds = self.options.start_seconds
        try:
            worker.send(protocol.pack(protocol.LOAD, message))
            async with REAL_TIME.timeout(seconds):
                kind, value = await worker.receive()
        except TimeoutError:
            await self._discard(worker)
            msg = (
                f"Worker process did not import tool '{name}' within {seconds:g}s "
                "(`worker_init_timeout`)"
            )
            raise WorkerStartError(msg) from None
        except OSError:
            kind, value = protocol.DIED, None
        except BaseException:
            await self._discard(worker)
            self.put(worker)
            raise
        if kind == protocol.LOADED:
            if len(worker.loaded) >= protocol.MAX_LOADED:
                worker.loaded.clear()
            worker.loaded.add(message[0])
            return True
        if kind == protocol.FAIL:
            worker.is_busy = False
            self.put(worker)
            raise _not_loaded(name, value)
        await self._discard(worker)
        self._check_open()
        if not is_last:
            return False
        ended = how_it_ended(worker.exit_code)
        msg = f"Worker process did not import tool '{name}': {ended}"
        raise WorkerStartError(msg)

    async def _discard(self, worker: WorkerProcess) -> None:
        await worker.ended_within(0.0 if not worker.is_dead else _LAST_SECONDS)
        await worker.end(0)
        self.workers.discard(worker)

    def _dismiss(self, worker: WorkerProcess) -> None:
        """Let a worker end by itself, in a task of its own."""
        self.workers.discard(worker)
        task = asyncio.get_running_loop().create_task(
            worker.end(_LAST_SECONDS, politely=True)
        )
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _not_loaded(name: str, value: Any) -> Exception:
    _, kind, text, trace, _, _ = value
    why = f"a worker could not import it: {kind}: {text}"
    remedy = "its module must be importable without side effects"
    error = SerializationError(name, "tool", why, remedy)
    error.__cause__ = RemoteTraceback(trace)
    return error


def _kill_all(workers: set[WorkerProcess], owner: int) -> None:
    if os.getpid() != owner:
        return
    doomed = list(workers)
    workers.clear()
    for worker in doomed:
        worker.kill_from_anywhere()
    for worker in doomed:
        worker.wait(_LAST_SECONDS)
