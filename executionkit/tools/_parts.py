"""What the path of a tool is made of, and what is counted on it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executionkit.engine.retry import RetryConfig
    from executionkit.tools._running import Workshop
    from executionkit.tools._trace import Tracer
    from executionkit.tools.middleware._base import Layer, Middleware, ToolRequest
    from executionkit.tools.middleware.cache import CacheLayer
    from executionkit.tools.middleware.guards import GuardLayer

__all__ = ("Counts", "PathParts")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathParts:
    """What a path is made of. What is not there costs nothing."""

    start: Callable[[ToolRequest], Coroutine[Any, Any, Any]]
    """The strategy: begins the tool."""

    function: Callable[..., Coroutine[Any, Any, Any]] | None = None
    """The tool's coroutine function, when that is all there is to `start`."""

    shop: Workshop
    """Where the tools at work are booked."""

    timeout: float | None = None
    """Seconds per attempt; None = no limit."""

    guards: GuardLayer | None = None
    cache: CacheLayer | None = None
    once: CacheLayer | None = None
    """Honours idempotency keys, also where nothing is cached."""

    retry: RetryConfig | None = None
    layers: tuple[Layer, ...] = ()
    """Around each attempt, outermost first."""

    middleware: tuple[Middleware, ...] = ()
    """Layers of the user, around everything else."""

    tracer: Tracer | None = None

    repeats: bool = True
    """Whether a call that was begun and failed may be begun again."""


class Counts:
    """What became of the calls of one tool."""

    __slots__ = ("cached", "calls", "failures", "retries")

    def __init__(self) -> None:
        self.calls: int = 0
        self.failures: int = 0
        self.cached: int = 0
        self.retries: int = 0
