"""What a layer sees, and the two forms of a layer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from executionkit.calls import ToolCall
    from executionkit.engine._loans import Loan
    from executionkit.engine.breaker import CircuitBreaker, Ticket
    from executionkit.engine.retry import RetryConfig
    from executionkit.tools._record import ToolRecord
    from executionkit.tools._trace import Traced

__all__ = (
    "DEFAULT_ORDER",
    "Layer",
    "Middleware",
    "Next",
    "ToolRequest",
    "compose",
)

DEFAULT_ORDER: Final = (
    "trace",
    "guards",
    "validation",
    "cache",
    "retry",
    "breaker",
    "rate_limit",
    "bulkhead",
    "timeout",
    "strategy",
)
"""Outermost first. Outside of `retry` = once per call; inside = once per attempt."""


class ToolRequest:
    """One call on its way through the layers; lives as long as the call.

    Layers may read all of it and change `call`, `timeout` and `deadline`. `state` is
    for layers of users: anything, under a name of their own.
    """

    # Not slots: what most calls never set is a default of the class and costs nothing.

    arguments: dict[str, Any] | None = None
    """The arguments as the tool gets them; None until they are validated."""
    deadline: float | None = None
    """Monotonic time after which nothing of this call may wait or run."""
    limit: float | None = None
    """Seconds that the caller gave for the whole call, where that set the deadline."""
    index: int = 0
    """The place among the calls of the batch, from 0."""
    use_cache: bool = True
    retry: RetryConfig | None = None
    """How this call is retried, when it is not as the tool says."""
    began: float | None = None
    """Monotonic time at which it entered the path."""
    is_special: bool = False
    """Whether the call brings retries or an idempotency key of its own."""
    attempts: int = 0
    """How often the tool was started."""
    started: bool = False
    """Whether the tool was started in this attempt."""
    pid: int = 0
    """The process that the tool was started in; 0 = this one."""
    cached: bool = False
    """Whether the value came from the cache, or from an equal call in flight."""
    warnings: list[str] | None = None
    """What guards warned of."""
    emit: Callable[[ToolRequest, Any], Awaitable[None] | None] | None = None
    """Takes the items of a streaming tool; None = nobody listens."""
    stream_id: str | None = None
    """Joins the items of one streaming call."""
    state: dict[str, Any] | None = None
    is_cacheable: bool = False
    """Whether results of the tool are kept; set for calls that are watched."""
    circuit: CircuitBreaker | None = None
    """The tool's circuit, if it has one here; set for calls that are watched."""
    traced: Traced | None = None
    """Takes what is told of the call; None = nobody watches."""
    inside: tuple[Layer, ...] = ()
    """Gates that the tool which makes this call has passed for it."""
    caller: ToolRequest | None = None
    """The call whose tool makes this one, when that holds what this one may need."""
    places: tuple[Any, ...] = ()
    """Whose slots it has."""
    loans: list[Loan] | None = None
    """Slots that it uses of its callers, and they of it."""
    leads: str | None = None
    """The key for which equal calls wait for this one."""
    # What the built-in layers keep between `enter` and `leave`.
    ticket: Ticket | None = None
    permit_time: float | None = None

    def __init__(
        self, call: ToolCall, record: ToolRecord, timeout: float | None
    ) -> None:
        self.call: ToolCall = call
        """What was asked for. A guard may put a repaired one in its place."""
        self.record: ToolRecord = record
        """The tool."""
        self.timeout: float | None = timeout
        """Seconds that one attempt may run; None = no limit."""

    @property
    def full_name(self) -> str:
        """`namespace.name`; the bare name in the default namespace."""
        return self.record.full_name

    def waited(self, reason: str, seconds: float) -> None:
        """Note a wait that is over now; see `Scope.waited`."""
        if self.traced is not None:
            self.traced.scope.waited(reason, seconds)

    def warn(self, text: str) -> None:
        """Keep a warning for the result's details."""
        if self.warnings is None:
            self.warnings = []
        self.warnings.append(text)


Next: TypeAlias = Callable[[ToolRequest], Awaitable[Any]]
"""The rest of the path: gives the tool's value or raises."""


class Middleware(Protocol):
    """A layer of the general form."""

    async def __call__(self, request: ToolRequest, nxt: Next, /) -> Any:
        """Do something around `await nxt(request)`; return the call's value.

        Call `nxt` once; not at all to answer in its place; again to try again.
        """
        ...


class Layer:
    """A layer made of two plain functions.

    `enter` admits the call: it returns None, or an awaitable when it has to wait, or
    raises to refuse. When `enter` raised (or was cancelled while it waited), `leave` is
    not called for this layer; what it took it must have given back. `leave` is called
    once for each `enter` that succeeded, innermost first, and must not raise.
    """

    __slots__ = ()

    name: str = "layer"
    """Where it stands in `DEFAULT_ORDER`."""

    is_moment: bool = False
    """Whether what it gives is meant for the moment in which the tool begins, as a
    permit of a rate limit is; then it has `give_back` and `retake`."""

    lends: bool = False
    """Whether calls that a tool makes may use the slot that its own call has here."""

    def give_back(self, request: ToolRequest, /) -> None:
        """`request` has to wait further in: it holds nothing meanwhile."""

    def retake(self, _request: ToolRequest, /) -> bool:
        """Have again, at once, what was given back; False when it cannot be had now."""
        return True

    def enter(self, request: ToolRequest, /) -> Awaitable[None] | None:
        """Admit `request`.

        Raises:
            ExecutionKitError: To refuse it.
        """

    def leave(self, request: ToolRequest, exc: BaseException | None, /) -> None:
        """`request` has ended: with `exc`, or well when that is None."""

    async def __call__(self, request: ToolRequest, nxt: Next, /) -> Any:
        """The same as a `Middleware`."""
        waiting = self.enter(request)
        if waiting is not None:
            await waiting
        try:
            value = await nxt(request)
        except BaseException as exc:
            self.leave(request, exc)
            raise
        self.leave(request, None)
        return value


def compose(layers: Sequence[Middleware], core: Next) -> Next:
    """`layers` around `core`, outermost first."""
    for layer in reversed(layers):
        core = _bind(layer, core)
    return core


def _bind(layer: Middleware, nxt: Next) -> Next:
    async def step(request: ToolRequest) -> Any:
        return await layer(request, nxt)

    return step
