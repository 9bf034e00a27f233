"""Running many calls at once, in bounded number, with nothing left behind.

Whatever way a fan-out ends (success, failure, cancellation, the consumer walks away),
every task that it started has ended before it returns, and coroutines that it was given
and never started are closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from typing import Any, Generic, TypeAlias, TypeVar

from executionkit._constants import DEFAULT_MAX_CONCURRENCY
from executionkit.engine._checks import check_int

__all__ = ("Job", "gather_resilient", "gather_strict", "map_bounded")

T = TypeVar("T")
_I = TypeVar("_I")

Job: TypeAlias = Awaitable[T] | Callable[[], Awaitable[T]]
"""A coroutine or another awaitable, or a function that makes one when its turn comes."""


async def gather_strict(
    coros: Iterable[Job[T]], max_concurrency: int = DEFAULT_MAX_CONCURRENCY
) -> list[T]:
    """Run all jobs, all or nothing.

    At the first failure the other running jobs are cancelled and awaited, and the jobs
    that were not started are dropped.

    Args:
        coros: The jobs. An iterator is read only as jobs can start; a generator is
            closed when it is not needed to its end.
        max_concurrency: How many run at once, at least 1.

    Returns:
        The results in the order of the jobs.

    Raises:
        Exception: What the failed job raised.
        ExceptionGroup: When several failed before they could be stopped.
        ValueError: When `max_concurrency` is less than 1.
    """
    fan = _gathering(coros, max_concurrency)
    results: dict[int, T] = {}
    broken: asyncio.Task[T] | None = None
    try:
        while broken is None:
            ready = await fan.next()
            if ready is None:
                return [results[index] for index in range(len(results))]
            index, task = ready
            if task.cancelled() or task.exception() is not None:
                broken = task
            else:
                results[index] = task.result()
    finally:
        rest = await fan.close()
    raise _failure_of([broken, *rest])


async def gather_resilient(
    coros: Iterable[Job[T]], max_concurrency: int = DEFAULT_MAX_CONCURRENCY
) -> list[T | BaseException]:
    """Run all jobs; a failure is a value in the place of the result.

    A `CancelledError` that a job raised by itself is such a value, too. When the caller
    is cancelled, all jobs are cancelled and awaited, and the cancellation goes on.

    Args:
        coros: The jobs. An iterator is read only as jobs can start.
        max_concurrency: How many run at once, at least 1.

    Returns:
        The results and exceptions in the order of the jobs.

    Raises:
        ValueError: When `max_concurrency` is less than 1.
    """
    fan = _gathering(coros, max_concurrency)
    results: dict[int, T | BaseException] = {}
    try:
        while (ready := await fan.next()) is not None:
            results[ready[0]] = _outcome(ready[1])
    finally:
        await fan.close()
    return [results[index] for index in range(len(results))]


def map_bounded(
    fn: Callable[[_I], Awaitable[T]],
    items: Iterable[_I] | AsyncIterable[_I],
    limit: int = DEFAULT_MAX_CONCURRENCY,
    *,
    ordered: bool = False,
    window: int | None = None,
) -> AsyncGenerator[tuple[int, T | BaseException], None]:
    """Call `fn` for each item, `limit` at once, and yield what comes of it.

    Yields `(index, result)`, or `(index, exception)` for a call that failed; an error
    of `items` itself is raised after the outcomes of the calls that were started.
    Memory stays bounded whatever the number of items: an item is taken only when there
    is room for its outcome. Leave early through `contextlib.aclosing`: closing the
    iterator cancels and awaits what is in flight, and closes `items` if it is a
    generator.

    Args:
        fn: The async function.
        items: Any iterable or async iterable; it may be endless.
        limit: Calls at once, at least 1.
        ordered: True = in the order of the items; False = as the calls end.
        window: Calls that run or have ended and wait to be taken, together; at least
            `limit`. None = twice `limit`. With `ordered`, how far the calls may run
            ahead of a slow one.

    Raises:
        ValueError: When `limit` or `window` is out of range.
    """
    check_int("limit", limit, 1)
    if window is not None:
        check_int("window", window, limit)

    async def call(item: _I) -> T:
        return await fn(item)

    width = 2 * limit if window is None else window
    return _outcomes(_Fan(items, call, limit, width, ordered=ordered))


async def _outcomes(
    fan: _Fan[_I, T],
) -> AsyncGenerator[tuple[int, T | BaseException], None]:
    try:
        while (ready := await fan.next()) is not None:
            yield ready[0], _outcome(ready[1])
    finally:
        await fan.close()


class _Fan(Generic[_I, T]):
    """Starts jobs from a source as there is room, and hands out the ended tasks."""

    __slots__ = (
        "_count",
        "_drop",
        "_ended",
        "_feeder",
        "_is_done",
        "_items",
        "_later",
        "_limit",
        "_next",
        "_ordered",
        "_problem",
        "_room",
        "_running",
        "_source",
        "_start",
        "_waker",
        "_window",
    )

    def __init__(
        self,
        source: Iterable[_I] | AsyncIterable[_I],
        start: Callable[[_I], Coroutine[Any, Any, T]],
        limit: int,
        window: int,
        *,
        ordered: bool = False,
        drop: Callable[[_I], None] | None = None,
    ) -> None:
        self._source = source
        self._start = start
        self._limit = limit
        self._window = window
        self._ordered = ordered
        self._drop = drop
        self._items: Iterator[_I] | AsyncIterator[_I] | None = None
        self._feeder: asyncio.Task[None] | None = None
        self._running: dict[asyncio.Task[T], int] = {}
        # Ended tasks that were not taken yet; those that must wait for their turn.
        self._ended: deque[tuple[int, asyncio.Task[T]]] = deque()
        self._later: dict[int, asyncio.Task[T]] = {}
        self._count = 0
        self._next = 0
        self._is_done = False
        self._problem: BaseException | None = None
        self._waker: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    async def next(self) -> tuple[int, asyncio.Task[T]] | None:
        """The next ended task and its index; None when there is nothing more."""
        if self._items is None:
            self._open()
        while not self._ended:
            if self._is_done and not self._running:
                if self._problem is not None:
                    raise self._problem
                return None
            self._waker = asyncio.get_running_loop().create_future()
            try:
                await self._waker
            finally:
                self._waker = None
        ready = self._ended.popleft()
        self._refill()
        return ready

    async def close(self) -> list[asyncio.Task[T]]:
        """Cancel and await all that runs; returns the tasks that nobody took.

        A cancellation that comes meanwhile is passed on to the tasks, and raised at
        the end.
        """
        self._is_done = True
        waiting: list[asyncio.Task[Any]] = list(self._running)
        if self._feeder is not None:
            waiting.append(self._feeder)
        stop: asyncio.CancelledError | None = None
        for task in waiting:
            task.cancel()
        while waiting:
            try:
                await asyncio.wait(waiting)
            except asyncio.CancelledError as exc:
                stop = exc
                for task in waiting:
                    task.cancel()
            waiting = [task for task in waiting if not task.done()]
        rest = [task for _, task in self._ended] + list(self._later.values())
        rest += self._running
        self._running.clear()
        for task in rest:
            if not task.cancelled():
                task.exception()  # seen: nothing is reported as never retrieved
        await self._close_source()
        if stop is not None:
            raise stop
        return rest

    def _open(self) -> None:
        if isinstance(self._source, AsyncIterable):
            items = aiter(self._source)
            self._items = items
            self._feeder = asyncio.get_running_loop().create_task(self._feed(items))
        else:
            self._items = iter(self._source)
            self._refill()

    def _has_room(self) -> bool:
        running = len(self._running)
        kept = len(self._ended) + len(self._later)
        return running < self._limit and running + kept < self._window

    def _refill(self) -> None:
        if self._room is not None and not self._room.done() and self._has_room():
            self._room.set_result(None)
        items = self._items
        while not self._is_done and isinstance(items, Iterator) and self._has_room():
            try:
                item = next(items)
            except StopIteration:
                self._is_done = True
            except BaseException as exc:  # noqa: BLE001 - raised by `next`
                self._problem = exc
                self._is_done = True
            else:
                self._launch(item)

    async def _feed(self, items: AsyncIterator[_I]) -> None:
        try:
            while True:
                if not self._has_room():
                    self._room = asyncio.get_running_loop().create_future()
                    await self._room
                self._launch(await anext(items))
        except StopAsyncIteration:
            pass
        except BaseException as exc:  # noqa: BLE001 - raised by `next`; `close` asks no more
            self._problem = exc
        self._is_done = True
        self._wake()

    def _launch(self, item: _I) -> None:
        task = asyncio.get_running_loop().create_task(self._start(item))
        self._running[task] = self._count
        self._count += 1
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[T]) -> None:
        index = self._running.pop(task, None)
        if index is None:
            return  # `close` has it
        if not self._ordered:
            self._ended.append((index, task))
        else:
            self._later[index] = task
            while self._next in self._later:
                self._ended.append((self._next, self._later.pop(self._next)))
                self._next += 1
        self._refill()
        self._wake()

    def _wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    async def _close_source(self) -> None:
        items = self._items
        if isinstance(items, Generator):
            items.close()
        elif isinstance(items, AsyncGenerator):
            await items.aclose()
        elif self._drop is not None and isinstance(self._source, Collection):
            # All jobs exist already; those that nobody will start are lost now.
            for item in items if isinstance(items, Iterator) else ():
                self._drop(item)


def _gathering(coros: Iterable[Job[T]], max_concurrency: int) -> _Fan[Job[T], T]:
    try:
        check_int("max_concurrency", max_concurrency, 1)
    except ValueError:
        if isinstance(coros, Collection):
            for job in coros:
                _drop(job)
        raise
    return _Fan(coros, _begin, max_concurrency, 2 * max_concurrency, drop=_drop)


def _begin(job: Job[T]) -> Coroutine[Any, Any, T]:
    # A coroutine becomes a task as it is: cancelled before its first step, it is
    # closed with the task, while one inside a wrapper would never be awaited.
    return job if isinstance(job, Coroutine) else _await(job)


async def _await(job: Job[T]) -> T:
    return await (job if isinstance(job, Awaitable) else job())


def _drop(job: object) -> None:
    if isinstance(job, Coroutine):
        job.close()


def _outcome(task: asyncio.Task[T]) -> T | BaseException:
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    return task.result() if error is None else error


def _failure_of(tasks: list[asyncio.Task[T]]) -> BaseException:
    failures = [
        error
        for task in tasks
        if not task.cancelled() and (error := task.exception()) is not None
    ]
    if not failures:
        return asyncio.CancelledError()
    if len(failures) == 1:
        return failures[0]
    return BaseExceptionGroup(f"{len(failures)} jobs failed", failures)
