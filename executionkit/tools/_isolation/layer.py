"""The layer in front of workers: a call passes it when a worker has its tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from executionkit.tools._isolation.job import Job
from executionkit.tools._running import out_of_time
from executionkit.tools.middleware._base import Layer

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from executionkit._clock import Clock
    from executionkit.tools._gate import Gate
    from executionkit.tools._isolation.pool import Pool
    from executionkit.tools._isolation.recipe import Recipe
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("JOB", "WorkerLayer")

JOB: Final = "executionkit.job"
"""Where a request keeps its job."""


class WorkerLayer(Layer):
    """Waits for a worker, so that waiting is no part of the time a tool runs.

    Args:
        recipe: How the tool gets into a worker.
        pool: The workers.
        gate: Lets as many calls in as there may be workers.
        clock: Measures deadlines.
    """

    __slots__ = ("_clock", "_gate", "_pool", "_recipe", "name")

    def __init__(self, recipe: Recipe, pool: Pool, gate: Gate, clock: Clock) -> None:
        self._recipe = recipe
        self._pool = pool
        self._gate = gate
        self._clock = clock
        self.name: str = "worker"

    def enter(self, request: ToolRequest, /) -> Awaitable[None] | None:
        # Pickled before it waits: what cannot be sent fails at once.
        key = self._pool.key(self._recipe.payload())
        job = Job(self._recipe.frame(key, request), self._recipe, self._pool)
        if request.state is None:
            request.state = {}
        request.state[JOB] = job
        waiting = self._gate.enter(request)
        if waiting is None:
            job.worker = self._pool.take(key)
            if job.worker is not None:
                return None
        return self._wait(request, job, waiting)

    def leave(self, request: ToolRequest, exc: BaseException | None, /) -> None:
        if request.state is not None:
            job: Job = request.state.pop(JOB)
            job.give_back()
        self._gate.leave(request, exc)

    async def _wait(
        self, request: ToolRequest, job: Job, waiting: Awaitable[None] | None
    ) -> None:
        if waiting is not None:
            await waiting
        try:
            left: float | None = None
            if request.deadline is not None:
                left = request.deadline - self._clock.monotonic()
            try:
                async with self._clock.timeout(left):
                    await job.get_worker()
            except TimeoutError:
                raise out_of_time(request, "was not started") from None
        except BaseException as exc:
            job.give_back()
            self._gate.leave(request, exc)
            raise
