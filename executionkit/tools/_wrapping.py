"""What executors around other executors share: one call at a time, many at once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from executionkit._clock import get_clock
from executionkit.calls import ReturnOrder, ToolCall, ToolResult
from executionkit.context import remaining_deadline
from executionkit.errors import (
    ErrorCode,
    ToolExecutionError,
    ToolProcessorError,
    ToolTimeoutError,
)
from executionkit.tools._batch import Batch
from executionkit.tools._record import Kind
from executionkit.tools._registry.names import DEFAULT_NAMESPACE, full_name
from executionkit.tools._running import Workshop, out_of_time
from executionkit.tools._settle import failed_result
from executionkit.tools.middleware._base import ToolRequest
from executionkit.types import Tool

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.tools.middleware._base import Layer

__all__ = (
    "Executor",
    "KnownTool",
    "ToolWrapper",
    "checked",
    "failure_of",
    "known_tool",
    "registry_of",
)

_MAX_KNOWN: Final = 1024
_MAX_CHAIN: Final = 32


@runtime_checkable
class Executor(Protocol):
    """Runs calls; failures are results."""

    async def execute(
        self,
        calls: Sequence[ToolCall],
        timeout: float | None = None,
        use_cache: bool = True,  # noqa: FBT001, FBT002 - the older API's argument
    ) -> list[ToolResult]:
        """One result for each of `calls`; `timeout` in seconds, for each call."""
        ...


def _nothing() -> None:
    """Stands for the function of a tool that nobody registered."""


_UNKNOWN: Final = Tool("unknown", "", {}, _nothing)


class KnownTool:
    """What an executor knows of a tool without a registry: its names.

    It stands in for a `ToolRecord` where a layer needs no more than that.
    """

    __slots__ = ("full_name", "kind", "name", "names", "namespace", "source", "tool")

    def __init__(self, name: str, namespace: str) -> None:
        if namespace == DEFAULT_NAMESPACE and "." in name:
            namespace, _, name = name.partition(".")
        self.name: str = name
        self.namespace: str = namespace
        self.full_name: str = full_name(name, namespace)
        self.names: tuple[str, ...] = tuple(dict.fromkeys((self.full_name, name)))
        self.kind: Kind = Kind.ASYNC
        self.source: object = None
        self.tool: Tool = _UNKNOWN


def known_tool(call: ToolCall, executor: object) -> Any:
    """The record of the tool that a call means, or what stands in for it.

    Args:
        call: The call.
        executor: Its `registry` is asked, or that of what is inside of it.
    """
    registry = registry_of(executor)
    if registry is not None:
        try:
            return registry.resolve(call.name, call.namespace)
        except ToolProcessorError:
            pass  # the inner executor says so, in its own words
    return KnownTool(call.name, call.namespace)


def registry_of(executor: Any) -> Any:
    """The registry of an executor or of what is inside of it; None without one."""
    for _ in range(_MAX_CHAIN):
        registry = getattr(executor, "registry", None)
        if hasattr(registry, "resolve"):
            return registry
        inner = getattr(executor, "executor", None) or getattr(
            executor, "strategy", None
        )
        if inner is None or inner is executor:
            return None
        executor = inner
    return None


def failure_of(result: ToolResult) -> Exception | None:
    """What a result failed with; None when it is a success."""
    if result.is_success:
        return None
    if isinstance(result.exception, Exception):
        return result.exception
    info = result.error_info
    if info is None:
        return ToolProcessorError(result.error or "")
    error = ToolProcessorError(
        info.message, info.code, info.details, retry_after_ms=info.retry_after_ms
    )
    error.retries_exhausted = not info.retryable  # what it says of itself is believed
    return error


class _Inner:
    """How the executor inside is called: by which method, with what."""

    __slots__ = ("_method", "_takes_cache", "takes_timeout")

    def __init__(self, executor: Any) -> None:
        method = _method_of(executor)
        self._method: Callable[..., Awaitable[Sequence[ToolResult]]] = method
        names = _parameters(method)
        self.takes_timeout: bool = "timeout" in names
        self._takes_cache = "use_cache" in names

    async def run(
        self, call: ToolCall, timeout: float | None, *, use_cache: bool
    ) -> ToolResult:
        """The result of one call, under its own id."""
        given: dict[str, Any] = {}
        if timeout is not None and self.takes_timeout:
            given["timeout"] = timeout
        if self._takes_cache:
            given["use_cache"] = use_cache
        return _own_result(call, await self._method([call], **given))


def _method_of(executor: Any) -> Any:
    for name in ("execute", "run"):
        method = getattr(executor, name, None)
        if callable(method) and not isinstance(executor, type):
            return method
    msg = f"`executor` must be an object with `async execute(calls)`, got {executor!r:.80}"
    raise TypeError(msg)


def _parameters(method: Any) -> frozenset[str]:
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return frozenset()
    if any(item.kind is item.VAR_KEYWORD for item in parameters.values()):
        return frozenset({*parameters, "timeout", "use_cache"})
    return frozenset(parameters)


def _own_result(call: ToolCall, results: Sequence[ToolResult]) -> ToolResult:
    """The result among `results` that belongs to `call`: the last one, for streams."""
    for result in reversed(results):
        if result.call_id == call.id:
            return result
    for result in reversed(results):
        if result.call_id is None:
            return replace(result, call_id=call.id)
    msg = f"the executor inside gave no result for the call {call.id!r}"
    raise ToolExecutionError(call.name, RuntimeError(msg))


class ToolWrapper:
    """An executor around another one.

    All calls of a batch begin at once, each alone; what one waits for holds up no other
    one. `timeout` is the time of one call as a whole, in seconds: waits, attempts and
    pauses. Failures are results; only the caller's own cancellation is raised, after
    the calls were cancelled and awaited.

    Args:
        executor: Any object with `async execute(calls)` or `async run(calls)`.
            `timeout` and `use_cache` are handed on when it takes them; where it takes
            no `timeout`, it is cancelled when the time is over.
        clock: None = the clock of the current context.

    Raises:
        TypeError: When `executor` has no such method.
    """

    def __init__(self, executor: object, *, clock: Clock | None = None) -> None:
        self._inner = _Inner(executor)
        self.executor: Any = executor
        """The one inside."""
        self._clock: Clock = clock or get_clock()
        self._shop = Workshop(self._clock)
        self._known: dict[tuple[str, str], Any] = {}
        self._version: int | None = None

    async def execute(
        self,
        calls: Sequence[ToolCall],
        timeout: float | None = None,
        use_cache: bool = True,  # noqa: FBT001, FBT002 - the older API's argument
        *,
        return_order: ReturnOrder | str = ReturnOrder.COMPLETION,
    ) -> list[ToolResult]:
        """Run `calls`.

        Args:
            calls: The calls.
            timeout: Seconds for each call as a whole. None = no limit but the deadline
                of the current context.
            use_cache: Whether results may come from a cache and be kept in it.
            return_order: As they finish, or as they were given. Match results by
                `call_id`.

        Raises:
            ValueError: When `return_order` is unknown, or `timeout` is negative.
        """
        order = ReturnOrder(return_order)
        if timeout is not None and not timeout >= 0:
            msg = f"`timeout` must be >= 0 seconds, or None; got {timeout!r}"
            raise ValueError(msg)
        given = list(calls)
        if not given:
            return []
        left = remaining_deadline()
        now = self._clock.monotonic()
        limits = [seconds for seconds in (timeout, left) if seconds is not None]
        deadline = now + min(limits) if limits else None
        version = getattr(registry_of(self.executor), "version", None)
        if version != self._version:
            self._known, self._version = {}, version

        def begin(place: int, call: Any) -> Any:
            request = ToolRequest(call, self._tool(call), timeout)
            request.index = place
            request.deadline = deadline
            request.limit = timeout
            request.use_cache = use_cache
            return self._run, request

        done: dict[int, ToolResult] = {}
        batch = Batch(
            iter(enumerate(given)),
            begin,
            done.__setitem__,
            self._shop,
            total=len(given),
            context=copy_context(),
        )
        await batch.run()
        if order is ReturnOrder.SUBMISSION:
            return [done[place] for place in range(len(given))]
        return list(done.values())

    async def shutdown(self) -> None:
        """Shut down the executor inside, where it can be."""
        for name in ("shutdown", "close"):
            method = getattr(self.executor, name, None)
            if callable(method):
                ended: Any = method()
                if inspect.isawaitable(ended):
                    await ended
                return

    # --- for those that derive from it ---
    async def _handle(self, request: ToolRequest) -> ToolResult:
        """What is done around `self._send(request)`."""
        return await self._send(request)

    async def _send(self, request: ToolRequest) -> ToolResult:
        """Hand a call to the executor inside; every failure of it is a result."""
        call, inner = request.call, self._inner
        left = self._left(request)
        if left is not None and left <= 0:
            error = out_of_time(request, "was not started")
            return failed_result(call, error, attempts=0)
        # Without a limit of the caller's, the one inside keeps its own.
        handed_on = left if inner.takes_timeout and request.limit is not None else None
        watch = self._clock.timeout(left if handed_on is None else None)
        try:
            async with watch:
                result = await inner.run(call, handed_on, use_cache=request.use_cache)
        except TimeoutError as exc:
            error = out_of_time(request, "was stopped") if watch.expired() else exc
            return failed_result(call, error, attempts=1)
        except Exception as exc:  # noqa: BLE001 - a failure is a result
            return failed_result(call, exc, attempts=1)
        return self._in_own_words(request, result, left)

    def _left(self, request: ToolRequest) -> float | None:
        if request.deadline is None:
            return None
        return request.deadline - self._clock.monotonic()

    def _in_own_words(
        self, request: ToolRequest, result: ToolResult, left: float | None
    ) -> ToolResult:
        """A timeout names what the caller gave, not the rest that was handed on."""
        limit = request.limit
        if result.error_code is not ErrorCode.TOOL_TIMEOUT or limit in {None, left}:
            return result
        rest = self._left(request)
        if limit is None or rest is None or rest > 0:
            return result
        error = ToolTimeoutError(request.call.name, limit, result.attempts)
        told = failed_result(request.call, error, attempts=result.attempts)
        return replace(result, error=told.error, error_info=told.error_info)

    async def _through(self, layer: Layer, request: ToolRequest) -> ToolResult:
        """Hand a call on through a layer of the runtime.

        Raises:
            ExecutionKitError: When the layer refuses it.
        """
        waiting = layer.enter(request)
        if waiting is not None:
            await waiting
        try:
            result = await self._send(request)
        except BaseException as exc:
            # Cancelled: whether the tool had begun is not known, so it counts.
            request.started = True
            layer.leave(request, exc)
            raise
        request.started = result.attempts > 0
        layer.leave(request, failure_of(result))
        return result

    def _tool(self, call: ToolCall) -> Any:
        key = (call.name, call.namespace)
        known = self._known.get(key)
        if known is None:
            known = known_tool(call, self.executor)
            if len(self._known) < _MAX_KNOWN:
                self._known[key] = known
        return known

    async def _run(self, request: ToolRequest) -> ToolResult:
        try:
            return await self._handle(request)
        except Exception as exc:  # noqa: BLE001 - a refusal is a result
            return failed_result(request.call, exc, attempts=0)


def checked(name: str, settings: Mapping[str, Any] | None, kind: type) -> Any:
    """`settings` by name, each of them a `kind`.

    Raises:
        TypeError: When one is not.
    """
    for tool, value in (settings or {}).items():
        if not isinstance(value, kind):
            msg = f"`{name}[{tool!r}]` must be a {kind.__name__}, got {value!r:.80}"
            raise TypeError(msg)
    return settings or {}
