"""Tools in worker processes: what crashes or hangs takes nothing else with it."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from executionkit._clock import get_clock
from executionkit._constants import DefaultSeconds
from executionkit._frozen import sealed
from executionkit.calls import ReturnOrder, ToolCall, ToolResult
from executionkit.tools._gate import Gate
from executionkit.tools._isolation.errors import (
    RemoteToolError,
    RemoteTraceback,
    SerializationError,
    WorkerCrashedError,
    WorkerStartError,
)
from executionkit.tools._isolation.layer import JOB, WorkerLayer
from executionkit.tools._isolation.loading import find
from executionkit.tools._isolation.options import PoolOptions
from executionkit.tools._isolation.pool import Pool
from executionkit.tools._isolation.recipe import Recipe
from executionkit.tools._isolation.sandbox import Sandbox
from executionkit.tools._isolation.signals import ChainedSignals
from executionkit.tools._lookup import most_specific
from executionkit.tools._path import PathParts, ToolPath
from executionkit.tools._running import Workshop
from executionkit.tools._runs import Paths, RunOptions, run_calls, stream_calls
from executionkit.tools.strategies.inprocess import _count, _seconds

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.tools._record import ToolRecord
    from executionkit.tools.middleware._base import Layer, ToolRequest
    from executionkit.tools.registry import ToolRegistry

__all__ = (
    "IsolatedStrategy",
    "RemoteToolError",
    "RemoteTraceback",
    "Sandbox",
    "SerializationError",
    "SubprocessStrategy",
    "ToolLimits",
    "WorkerCrashedError",
    "WorkerStartError",
)

_SHUTDOWN_SECONDS: Final = 2.0
_KILL_SECONDS: Final = 2.0
"""More than a worker takes to end after SIGKILL."""


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """Limits of the operating system for one call in a worker; None = no limit.

    They stop accidents, not attacks: a tool that means harm could lift them. A tool
    over `memory` gets a `MemoryError`, over `cpu` its worker is killed, over the
    others an `OSError`.
    """

    memory: int | None = None
    """Bytes of address space that the call may add to what its worker has."""

    cpu: float | None = None
    """Seconds of CPU time, rounded up to whole ones."""

    file_size: int | None = None
    """Bytes of the largest file that it may write."""

    open_files: int | None = None
    """Descriptors that the worker may have; it has about 6 of its own."""

    def __post_init__(self) -> None:
        for name in ("memory", "file_size", "open_files"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                msg = (
                    f"`{name}` must be an int >= 1, or None for no limit; got {value!r}"
                )
                raise ValueError(msg)
        cpu: object = self.cpu
        if cpu is not None and (
            isinstance(cpu, bool) or not isinstance(cpu, (int, float)) or not cpu > 0
        ):
            msg = f"`cpu` must be > 0 seconds, or None for no limit; got {cpu!r}"
            raise ValueError(msg)


class SubprocessStrategy:
    """Runs each call in a worker process, one at a time per worker.

    A tool is sent by name: a worker imports its module. So it must be at the top level
    of a module, or an object that can be pickled (each worker then has its own copy of
    the object). What the main script does must stand under
    `if __name__ == "__main__":`, as with `multiprocessing`.

    A call over its time gets SIGTERM (async tools are cancelled, `finally` blocks of
    others run), after `grace` seconds SIGKILL, with all that it has started; when its
    result is there, nothing of it runs any more. (On Linux that holds for processes
    that have left the group of their worker too, if they keep its environment.) A
    worker that dies fails the call it ran, and no other one. POSIX only.

    Waiting for a worker counts against the deadline of a call, not against its timeout:
    a call that never got one says `attempts=0`.

    Args:
        registry: Where names are looked up. None = the default registry.
        max_workers: Worker processes, and so calls at once.
        default_timeout: Seconds per call for tools that say nothing else; None = 30.
        worker_init_timeout: Seconds for a worker to start, and to import a tool.
        warm_pool: Whether the first call starts all workers; else they are started
            as they are needed.
        grace: Seconds between SIGTERM and SIGKILL.
        max_calls_per_worker: Calls after which a worker is replaced; None = never.
        max_worker_bytes: Resident memory above which a worker is replaced after a
            call; None = never.
        limits: Limits of the system by tool name or pattern (`"files.*"`).
        sandbox: What tools may touch: files, network. None = all. Where the system
            cannot fence them in, no worker starts.
        context_vars: Import paths (`"package.module:NAME"`) of `ContextVar`s that
            travel with each call. The `ExecutionContext` always does.
        env: Environment of the workers; None = that of this process.
        install_signal_handlers: Whether SIGTERM and SIGINT end the workers before
            they do what they did before. Put in place by the first call, in the main
            thread; taken back by `shutdown`.
        clock: None = the clock of the current context.

    Raises:
        NotImplementedError: On systems without process groups (Windows).
        ValueError: For a setting that makes no sense.
    """

    def __init__(  # noqa: PLR0913 - settings, each with a default
        self,
        registry: ToolRegistry | None = None,
        *,
        max_workers: int = 4,
        default_timeout: float | None = None,
        worker_init_timeout: float = 5.0,
        warm_pool: bool = False,
        grace: float = 1.0,
        max_calls_per_worker: int | None = None,
        max_worker_bytes: int | None = None,
        limits: Mapping[str, ToolLimits] | None = None,
        sandbox: Sandbox | None = None,
        context_vars: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        install_signal_handlers: bool = False,
        clock: Clock | None = None,
    ) -> None:
        if os.name != "posix":
            msg = (
                "SubprocessStrategy needs a POSIX system (process groups, signals); "
                "use InProcessStrategy here"
            )
            raise NotImplementedError(msg)
        if isinstance(grace, bool) or not grace >= 0:
            msg = f"`grace` must be >= 0 seconds, got {grace!r}"
            raise ValueError(msg)
        self.registry: ToolRegistry | None = registry
        self.default_timeout: float = _seconds("default_timeout", default_timeout)
        self.max_workers: int = _count("max_workers", max_workers) or 4
        self.warm_pool: bool = warm_pool
        self.shop: Workshop = Workshop(clock or get_clock(), grace + _KILL_SECONDS)
        """Where tools at work are booked."""
        self.gate: Gate = Gate("workers", self.max_workers, self.shop.clock)
        self.limits: dict[str, ToolLimits] = dict(limits or {})
        self._variables = {path: _variable(path) for path in context_vars}
        options = PoolOptions(
            size=self.max_workers,
            start_seconds=_seconds("worker_init_timeout", worker_init_timeout),
            grace=grace,
            max_calls=_count("max_calls_per_worker", max_calls_per_worker),
            max_bytes=_count("max_worker_bytes", max_worker_bytes),
            is_warm=warm_pool,
            fence="" if sandbox is None else _fence(sandbox),
            env=env,
        )
        self._signals: ChainedSignals | None = None
        if install_signal_handlers:
            self._signals = ChainedSignals(_stopper(self))
        begin = None if self._signals is None else self._signals.install
        self._pool = Pool(options, begin)
        self._paths: Paths | None = None

    @property
    def supports_streaming(self) -> bool:
        return True

    @property
    def active(self) -> int:
        """Calls that have a worker, or one that is ended."""
        return self.gate.active

    @property
    def is_pool_ready(self) -> bool:
        """Whether workers listen: all of them with `warm_pool`, else one."""
        wanted = self.max_workers if self.warm_pool else 1
        return not self._pool.is_closed and self._pool.ready >= wanted

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The process ids of the workers that live."""
        return tuple(item.pid for item in self._pool.workers if not item.is_dead)

    async def warm(self) -> None:
        """Start all workers, and wait until they listen.

        Raises:
            ToolProcessorError: When one does not start, or after `shutdown`.
        """
        await self._pool.warm()

    def gates(self, record: ToolRecord) -> tuple[Layer, ...]:
        """What a call of this tool has to pass before it may run: it gets a worker."""
        limits = most_specific(self.limits, record.names)
        bounds = None
        if limits is not None:
            bounds = (limits.memory, limits.cpu, limits.file_size, limits.open_files)
        tell_size = self._pool.options.max_bytes is not None
        recipe = Recipe(record, bounds, self._variables, tell_size=tell_size)
        return (WorkerLayer(recipe, self._pool, self.gate, self.shop.clock),)

    def starter(
        self, _record: ToolRecord
    ) -> Callable[[ToolRequest], Coroutine[Any, Any, Any]]:
        """How calls of a tool are begun."""
        return self.start

    def start(self, request: ToolRequest, /) -> Coroutine[Any, Any, Any]:
        """Begin one attempt; see `ExecutionStrategy`."""
        if request.state is None or JOB not in request.state:
            return self._start_alone(request)
        return request.state[JOB].run(request)  # type: ignore[no-any-return]

    async def run(
        self,
        calls: Sequence[ToolCall],
        timeout: float | None = None,
        return_order: ReturnOrder | str = ReturnOrder.COMPLETION,
    ) -> list[ToolResult]:
        """Run `calls` at once, each with its own result; failures are results.

        Args:
            calls: The calls.
            timeout: Seconds per call, waiting for its turn included.
            return_order: As they finish, or as they were given.

        Raises:
            ValueError: When `return_order` is unknown.
        """
        options = RunOptions(timeout=timeout, order=ReturnOrder(return_order))
        return await run_calls(self._own_paths(), calls, options)

    async def execute(
        self, calls: Sequence[ToolCall], *, timeout: float | None = None
    ) -> list[ToolResult]:
        """The same as `run`."""
        return await self.run(calls, timeout)

    def stream_run(
        self,
        calls: Sequence[ToolCall],
        timeout: float | None = None,
        on_tool_start: Callable[[ToolCall], Awaitable[None] | None] | None = None,
    ) -> AsyncIterator[ToolResult]:
        """Run `calls`; results as they come, and each item of streaming tools before.

        Args:
            calls: The calls.
            timeout: Seconds per call, waiting for its turn included.
            on_tool_start: Called, and awaited, right before a call begins; what it
                raises is logged.
        """
        options = RunOptions(timeout=timeout, on_tool_start=on_tool_start)
        return stream_calls(self._own_paths(), calls, options)

    async def shutdown(self) -> None:
        """Refuse new calls, stop the running ones, end the workers. Idempotent.

        Running tools have 2 seconds to end, the workers then 1 more. Cancelled calls
        have the result "Execution was cancelled", new ones "System is shutting down".
        """
        try:
            await self.shop.close(_SHUTDOWN_SECONDS)
        finally:
            if self._signals is not None:
                self._signals.restore()
            await self._pool.close()

    async def close(self) -> None:
        """The same as `shutdown`."""
        await self.shutdown()

    async def _start_alone(self, request: ToolRequest) -> Any:
        """One attempt for a caller that has not passed the gates."""
        layer = self.gates(request.record)[0]
        waiting = layer.enter(request)
        if waiting is not None:
            await waiting
        try:
            value = await self.start(request)
        except BaseException as exc:
            layer.leave(request, exc)
            raise
        layer.leave(request, None)
        return value

    def _own_paths(self) -> Paths:
        if self._paths is None:
            registry = self.registry
            if registry is None:
                from executionkit.tools.decorators import get_default_registry

                registry = self.registry = get_default_registry()
            self._paths = Paths(registry, self._path, self.shop)
            self._paths.gate = self.gate
        return self._paths

    def _path(self, record: ToolRecord) -> ToolPath:
        own = record.tool.timeout
        parts = PathParts(
            start=self.start,
            shop=self.shop,
            timeout=self.default_timeout if isinstance(own, DefaultSeconds) else own,
            layers=self.gates(record),
        )
        return ToolPath(record, parts)


IsolatedStrategy = SubprocessStrategy
"""The same under the name of what it is for."""


def _stopper(strategy: SubprocessStrategy) -> Callable[[], None]:
    seen = weakref.ref(strategy)

    def stop() -> None:
        """In a signal handler: no new calls, and no workers any more."""
        found = seen()
        if found is not None:
            found.shop.is_closed = True
            found._pool.kill()  # noqa: SLF001 - its own

    return stop


def _fence(sandbox: Sandbox) -> str:
    return json.dumps([sandbox.read, sandbox.write, sandbox.network])


def _variable(path: str) -> ContextVar[Any]:
    module, _, name = path.partition(":")
    try:
        found = find(module, name, "get").__self__ if name else None
    except (ImportError, AttributeError):
        found = None
    if not isinstance(found, ContextVar):
        msg = (
            f"`context_vars` must name ContextVars as 'package.module:NAME', and "
            f"{path!r} is none"
        )
        raise ValueError(msg)
    return found
