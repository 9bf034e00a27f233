"""Executors that wrap each other: for those who build their own chain of policies.

`ToolProcessor` has all of this in one object and in an order that is right. The
executors here run over anything that has `async execute(calls)`, each adds one policy,
and the order is the user's: the outermost one decides first. Around a retry = once per
call; inside of it = once per attempt. So, from the outside: cache, retry, breaker, rate
limit, `ToolExecutor`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from executionkit.backends import CacheInterface, InMemoryCache
from executionkit.calls import ReturnOrder, ToolCall, ToolResult
from executionkit.engine.breaker import BreakerConfig, CircuitState
from executionkit.engine.retry import RetryConfig
from executionkit.tools._caching import CachingToolExecutor
from executionkit.tools._policy_marks import rate_limited, retryable
from executionkit.tools._tool_state import (
    CircuitBreakerInterface,
    RateLimiter,
    RateLimiterInterface,
    ToolCircuitBreaker,
)
from executionkit.tools._wrappers import (
    CircuitBreakerExecutor,
    RateLimitedToolExecutor,
    RetryableToolExecutor,
)
from executionkit.tools._wrapping import Executor, ToolWrapper
from executionkit.tools.middleware.cache import cacheable

if TYPE_CHECKING:
    from executionkit.tools.registry import ToolRegistry
    from executionkit.tools.strategies import ExecutionStrategy

__all__ = (
    "CacheInterface",
    "CachingToolExecutor",
    "CircuitBreakerConfig",
    "CircuitBreakerExecutor",
    "CircuitBreakerInterface",
    "CircuitState",
    "Executor",
    "InMemoryCache",
    "RateLimitedToolExecutor",
    "RateLimiter",
    "RateLimiterInterface",
    "RetryConfig",
    "RetryableToolExecutor",
    "ToolCircuitBreaker",
    "ToolExecutor",
    "ToolWrapper",
    "cacheable",
    "rate_limited",
    "retryable",
)

CircuitBreakerConfig: TypeAlias = BreakerConfig
"""Another name of `BreakerConfig`."""

_DEFAULT_SECONDS: Final = 30.0


class ToolExecutor:
    """Runs calls by a strategy: the innermost executor.

    Args:
        registry: The tools. None = those of `strategy`.
        default_timeout: Seconds that one call may run, for tools that say nothing else.
            None = as `strategy` says, else 30.
        strategy: Where tools run. None = in this process.
        strategy_kwargs: More arguments for the strategy that is made when none is
            given, e.g. `{"max_concurrency": 4}`.

    Raises:
        ValueError: Without registry and strategy, or when a strategy is given together
            with `strategy_kwargs`.
    """

    def __init__(
        self,
        registry: ToolRegistry | None = None,
        default_timeout: float | None = None,
        strategy: ExecutionStrategy | None = None,
        strategy_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        from executionkit.tools.processor import ToolProcessor
        from executionkit.tools.strategies.inprocess import InProcessStrategy

        if strategy is None:
            if registry is None:
                msg = (
                    "give a `registry` or a `strategy`: without them there are no tools"
                )
                raise ValueError(msg)
            strategy = InProcessStrategy(
                registry, default_timeout, **(strategy_kwargs or {})
            )
        elif strategy_kwargs:
            msg = "`strategy_kwargs` are for the strategy that is made; one was given"
            raise ValueError(msg)
        if registry is None:
            registry = getattr(strategy, "registry", None)
        seconds = default_timeout
        if seconds is None:
            seconds = getattr(strategy, "default_timeout", None) or _DEFAULT_SECONDS
        self.registry: ToolRegistry | None = registry
        self.strategy: ExecutionStrategy = strategy
        self.default_timeout: float = seconds
        self._runner: ToolProcessor | ToolWrapper = (
            ToolProcessor(registry, strategy, seconds)
            if hasattr(strategy, "start")
            else ToolWrapper(strategy)  # it has `run`, and looks after itself
        )

    @property
    def supports_streaming(self) -> bool:
        """Whether items of streaming tools come one by one."""
        return bool(getattr(self.strategy, "supports_streaming", False))

    async def execute(
        self,
        calls: Sequence[ToolCall],
        timeout: float | None = None,
        use_cache: bool = True,  # noqa: FBT001, FBT002 - the older API's argument
        *,
        return_order: ReturnOrder | str = ReturnOrder.COMPLETION,
    ) -> list[ToolResult]:
        """Run `calls` at once; failures are results.

        Args:
            calls: The calls.
            timeout: Seconds for each call. None = as the tool, or `default_timeout`,
                says.
            use_cache: Accepted, because all executors do; there is no cache here.
            return_order: As they finish, or as they were given.
        """
        if timeout is None and isinstance(self._runner, ToolWrapper):
            timeout = self.default_timeout
        return await self._runner.execute(
            calls, timeout, use_cache, return_order=return_order
        )

    async def stream_execute(
        self, calls: Sequence[ToolCall], timeout: float | None = None
    ) -> AsyncGenerator[ToolResult]:
        """Run `calls`; results as they come, and each item of streaming tools before."""
        if isinstance(self._runner, ToolWrapper):
            limit = self.default_timeout if timeout is None else timeout
            async for result in self.strategy.stream_run(calls, limit):
                yield result
            return
        stream = self._runner.astream(list(calls), timeout)
        try:
            async for result in stream:
                yield result
        finally:
            await stream.aclose()

    async def shutdown(self) -> None:
        """Shut down the strategy: new calls are refused, running ones cancelled."""
        await self.strategy.shutdown()
