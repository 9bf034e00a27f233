"""One call in a worker, from the parent's side."""

from __future__ import annotations

import pickle  # nosec B403 - of our own child
from typing import TYPE_CHECKING, Any, Final

from executionkit._error_base import text_of
from executionkit.errors import ToolCancelledError
from executionkit.tools._isolation import protocol
from executionkit.tools._isolation.errors import (
    RemoteToolError,
    RemoteTraceback,
    SerializationError,
    WorkerCrashedError,
    WorkerStartError,
)
from executionkit.tools._isolation.plain import read_plain
from executionkit.tools._running import CANCELLED
from executionkit.tools._streaming import _kept as keep_items

if TYPE_CHECKING:
    from executionkit.tools._isolation.pool import Pool
    from executionkit.tools._isolation.process import WorkerProcess
    from executionkit.tools._isolation.recipe import Recipe
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("Job",)

_TRIES: Final = 3
_DYING_SECONDS: Final = 0.5
_OUT_OF_MEMORY: Final = "MemoryError"
_CANCELLED: Final = "asyncio.exceptions.CancelledError"


class Job:
    """A call that has a worker, or waits for one.

    Args:
        frame: What makes a worker run it.
        recipe: How its tool gets into a worker.
        pool: Where workers come from.
    """

    __slots__ = (
        "_frame",
        "_has_begun",
        "_is_done",
        "_kept",
        "_pool",
        "_recipe",
        "_taken",
        "worker",
    )

    def __init__(self, frame: list[Any], recipe: Recipe, pool: Pool) -> None:
        self._frame = frame
        self._recipe = recipe
        self._pool = pool
        self._has_begun = False
        self._is_done = False
        self._kept: Any = None
        self._taken = 0  # items that the worker has not been told of
        self.worker: WorkerProcess | None = None

    async def get_worker(self) -> None:
        """Wait for a worker; errors as `Pool.get` says."""
        self.worker = await self._pool.get(self._recipe)

    async def run(self, request: ToolRequest) -> Any:
        """What the tool gives.

        Cancelled, it ends the worker first, with everything that the tool has begun.

        Raises:
            Exception: What the tool raised, or what became of the worker.
        """
        self._has_begun = True
        worker = await self._begun()
        request.pid = worker.pid
        try:
            while True:
                heard = worker.heard() or await worker.receive()
                if heard[0] != protocol.ITEM:
                    return await self._ended(worker, *heard)
                await self._hand_on(worker, heard[1], request)
        finally:
            if not self._is_done and not self._has_ended(worker):
                await worker.end(self._pool.options.grace)
            worker.is_busy = False

    def give_back(self) -> None:
        """The call has ended, or will not be run."""
        worker, self.worker = self.worker, None
        if worker is not None:
            if not self._has_begun:
                worker.is_busy = False  # it was only reserved
            self._pool.put(worker)

    async def _begun(self) -> WorkerProcess:
        frame = self._frame
        self._frame = []  # its memory is not needed while the tool runs
        for _ in range(_TRIES):
            worker = self.worker
            if worker is not None:
                try:
                    worker.calls += 1
                    worker.send(frame)
                    return worker
                except OSError:  # it died while it was idle
                    self.worker = None
                    worker.kill()
                    self._pool.put(worker)
            await self.get_worker()
        self.give_back()
        msg = "Worker processes end before they get a call; see their output"
        raise WorkerStartError(msg)

    def _has_ended(self, worker: WorkerProcess) -> bool:
        """Whether the end of the call came with its cancellation."""
        while (heard := worker.heard()) is not None:
            if heard[0] in (protocol.DONE, protocol.FAIL):
                return True
        return False

    async def _ended(self, worker: WorkerProcess, kind: int, value: Any) -> Any:
        if kind == protocol.DONE:
            self._is_done = True
            worker.size = value[1]
            return value[0]
        if kind == protocol.FAIL:
            self._is_done = True
            worker.size = value[5]
            worker.is_spent = value[1] == _OUT_OF_MEMORY
            raise self._failure(worker, *value[:5])
        if kind == protocol.UNREADABLE:
            self._is_done = value[0] == protocol.DONE
            raise SerializationError(self._recipe.name, "result", text_of(value[1]))
        # Its socket may have ended a moment before itself.
        await worker.ended_within(_DYING_SECONDS)
        await worker.end(0)
        self._is_done = True
        if self._pool.is_closed:
            raise ToolCancelledError(CANCELLED)
        raise WorkerCrashedError(self._recipe.name, worker.exit_code)

    async def _hand_on(
        self, worker: WorkerProcess, item: Any, request: ToolRequest
    ) -> None:
        if self._kept is None:
            self._kept = keep_items(request)
        self._kept.append(item)
        if request.emit is not None:
            taken = request.emit(request, item)
            if taken is not None:
                await taken
        self._taken += 1
        if self._taken < protocol.WINDOW // 2:
            return
        try:
            worker.send(protocol.pack(protocol.ACK, self._taken))
        except OSError:
            return  # its end is heard by the reader
        self._taken = 0

    def _failure(
        self,
        worker: WorkerProcess,
        what: str,
        kind: str,
        text: str,
        trace: str,
        pickled: bytes | None,
    ) -> Exception:
        name = self._recipe.name
        error: BaseException | None = None
        if what != "raised":
            error = SerializationError(name, what, f"{kind}: {text}")
        elif kind == _CANCELLED:
            return ToolCancelledError(CANCELLED)
        elif pickled is not None:
            try:
                error = _loads(pickled, plain=worker.is_fenced)
            except Exception:  # noqa: BLE001 - unpickling runs foreign code
                error = None
        if not isinstance(error, Exception) or isinstance(error, StopIteration):
            error = RemoteToolError(name, kind, text)
        error.__cause__ = RemoteTraceback(trace)
        return error


def _loads(pickled: bytes, *, plain: bool) -> Any:
    if plain:
        return read_plain(pickled)
    return pickle.loads(pickled)  # noqa: S301 # nosec B301 - our own child's
