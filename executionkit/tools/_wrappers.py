"""Executors that limit, refuse and repeat calls on their way to another executor."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from executionkit.calls import ToolResult
from executionkit.engine._attempts import Attempts
from executionkit.engine.breaker import BreakerConfig
from executionkit.engine.retry import RetryConfig
from executionkit.errors import ErrorCode, ToolCircuitOpenError, ToolProcessorError
from executionkit.tools._core import may_repeat
from executionkit.tools._lookup import resolve
from executionkit.tools._options import tool_retry
from executionkit.tools._policy_marks import retry_mark
from executionkit.tools._registry.done import Done
from executionkit.tools._settle import failed_result
from executionkit.tools._tool_state import (
    CircuitBreakerInterface,
    Circuits,
    RateLimiter,
    RateLimiterInterface,
    ToolCircuitBreaker,
)
from executionkit.tools._wrapping import KnownTool, ToolWrapper, checked, failure_of
from executionkit.tools.middleware.breaker import BreakerLayer

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.tools.middleware._base import ToolRequest

__all__ = (
    "CircuitBreakerExecutor",
    "RateLimitedToolExecutor",
    "RetryableToolExecutor",
)


class RateLimitedToolExecutor(ToolWrapper):
    """Each call waits for its permit; only calls of limited tools wait.

    A permit that cannot be had within `timeout`, or before the deadline of the current
    context, fails the call at once as rate limited, with the time to come back. One
    that was not used, because the call never reached its tool, is given back.

    Args:
        executor: The executor inside.
        limiter: A `RateLimiter`, or anything with `async wait(tool)`.
        clock: None = the clock of the current context.
    """

    def __init__(
        self,
        executor: object,
        limiter: RateLimiter | RateLimiterInterface,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(executor, clock=clock)
        given: object = limiter
        if not isinstance(given, RateLimiterInterface):
            msg = f"`limiter` must have `async wait(tool)`, got {given!r:.80}"
            raise TypeError(msg)
        self.limiter: RateLimiter | RateLimiterInterface = limiter

    async def _handle(self, request: ToolRequest) -> ToolResult:
        if isinstance(self.limiter, RateLimiter):
            layer = self.limiter.layer(request.record)
            if layer is None:
                return await self._send(request)
            return await self._through(layer, request)
        await self._wait(self.limiter, request)
        return await self._send(request)

    async def _wait(self, limiter: RateLimiterInterface, request: ToolRequest) -> None:
        watch = self._clock.timeout(self._left(request))
        try:
            async with watch:
                await limiter.wait(request.full_name)
        except TimeoutError as exc:
            if not watch.expired():
                raise
            msg = f"Tool '{request.full_name}' is rate limited: no permit came in time"
            raise ToolProcessorError(msg, ErrorCode.TOOL_RATE_LIMITED) from exc


class CircuitBreakerExecutor(ToolWrapper):
    """Refuses calls of a tool that keeps failing, until a probe succeeds.

    A probe's place belongs to its call: whatever else ends meanwhile neither frees it
    nor closes the circuit. Refusals, wrong arguments, unknown tools and cancellations
    count for nothing.

    Args:
        executor: The executor inside.
        default_config: For tools that `tool_configs` does not name. None = the defaults.
        tool_configs: By full name, bare name, or glob.
        circuit_breaker: Decides in place of circuits of its own; then the settings are
            its matter.
        clock: None = the clock of the current context.

    Raises:
        TypeError: When a configuration is no `CircuitBreakerConfig`.
    """

    def __init__(
        self,
        executor: object,
        *,
        default_config: BreakerConfig | None = None,
        tool_configs: Mapping[str, BreakerConfig] | None = None,
        circuit_breaker: CircuitBreakerInterface | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(executor, clock=clock)
        own = default_config is not None or tool_configs is not None
        if circuit_breaker is not None and own:
            msg = "give `circuit_breaker` its settings itself, or leave it out"
            raise TypeError(msg)
        self.circuit_breaker: CircuitBreakerInterface | None = circuit_breaker
        """What decides; None = the circuits of this executor."""
        self._circuits = Circuits(default_config, tool_configs, self._clock)

    _machine = "circuit_breaker"

    def get_circuit_states(self) -> dict[str, dict[str, Any]]:
        """How each circuit stands, by the tool's full name.

        Returns:
            For each `state`, `failure_count`, `success_count`, `opened_at`,
            `half_open_calls`, `time_until_half_open` and `config`. Empty when a
            `circuit_breaker` of another kind decides: ask that.
        """
        breaker = self.circuit_breaker
        if breaker is None:
            return self._circuits.states()
        return breaker.states() if isinstance(breaker, ToolCircuitBreaker) else {}

    def reset_circuit(self, tool: str) -> Awaitable[None]:
        """Close the circuit of a tool and forget its failures.

        Done when it returns, with or without `await`; only a `circuit_breaker` of
        another kind has to be awaited.

        Args:
            tool: The full name.
        """
        breaker = self.circuit_breaker
        if breaker is None:
            self._circuits.reset(KnownTool(tool, "default").names)
        elif isinstance(breaker, ToolCircuitBreaker):
            breaker.reset_now(tool)
        else:
            reset: Any = getattr(breaker, "reset", None)
            if reset is not None:
                ended: Awaitable[None] = reset(tool)
                return ended
        return Done(None)

    async def _handle(self, request: ToolRequest) -> ToolResult:
        breaker = self.circuit_breaker
        try:
            if breaker is None:
                circuit = self._circuits.get(request.record.names)
                return await self._through(BreakerLayer(circuit), request)
            layer: Any = getattr(breaker, "layer", None)
            if layer is not None:
                return await self._through(layer(request.record), request)
            if not await breaker.can_execute(request.full_name):
                raise await _refusal(breaker, request.full_name)
        except ToolCircuitOpenError as exc:
            refused = failed_result(request.call, exc, attempts=0)
            return replace(refused, machine=self._machine, pid=0)
        return await self._reported(breaker, request)

    async def _reported(
        self, breaker: CircuitBreakerInterface, request: ToolRequest
    ) -> ToolResult:
        name = request.full_name
        release: Any = getattr(breaker, "release", None)
        try:
            result = await self._send(request)
        except BaseException:
            if release is not None:
                await release(name)
            raise
        failure = failure_of(result)
        if failure is None:
            await breaker.record_success(name)
        elif result.attempts and _DEFAULT_BREAKER.is_failure(failure):
            await breaker.record_failure(name)
        elif release is not None:
            await release(name)
        return result


_DEFAULT_BREAKER: Final = BreakerConfig()


async def _refusal(breaker: CircuitBreakerInterface, name: str) -> ToolCircuitOpenError:
    get_state: Any = getattr(breaker, "get_state", None)
    if get_state is None:
        return ToolCircuitOpenError(name)
    state = await get_state(name)
    return ToolCircuitOpenError(
        name, state["failure_count"], state["time_until_half_open"]
    )


class RetryableToolExecutor(ToolWrapper):
    """Tries failed calls again, where that can help.

    Refusals, wrong arguments, unknown tools and cancellations are not tried again, nor
    what an executor inside has given up on. Where the registry says that a tool writes
    and may not be repeated, a call that was begun is not. `timeout` bounds all attempts
    and pauses together; a pause that would end after it is not begun.

    Args:
        executor: The executor inside.
        default_config: For tools that `tool_configs` does not name. None = 3 retries.
        tool_configs: By full name, bare name, or glob; before `@retryable`, globs after.
        clock: None = the clock of the current context.

    Raises:
        TypeError: When a configuration is no `RetryConfig`.
    """

    def __init__(
        self,
        executor: object,
        *,
        default_config: RetryConfig | None = None,
        tool_configs: Mapping[str, RetryConfig] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(executor, clock=clock)
        default = RetryConfig() if default_config is None else default_config
        checked("default_config", {"": default}, RetryConfig)
        configs = checked("tool_configs", tool_configs, RetryConfig)
        self.default_config: RetryConfig = tool_retry(default)
        self.tool_configs: Mapping[str, RetryConfig] = {
            name: tool_retry(config) for name, config in configs.items()
        }

    def _config(self, record: Any) -> RetryConfig:
        own = retry_mark(record.source)
        if own is None and record.tool.max_retries is not None:
            own = replace(self.default_config, max_retries=record.tool.max_retries)
        return resolve(self.tool_configs, record.names, own, self.default_config)

    async def _handle(self, request: ToolRequest) -> ToolResult:
        record = request.record
        config = self._config(record)
        repeats = may_repeat(record)
        run = Attempts(config, self._clock, None, request.deadline)
        await run.first_attempt()
        while True:
            result = await self._send(request)
            request.attempts += result.attempts
            failure = failure_of(result)
            if failure is None or (result.attempts and not repeats):
                break
            if result.attempts > 1:
                break  # the executor inside has retried it: retries do not multiply
            if not await run.next_attempt(failure):
                break
        return _counted(result, request.attempts, run.number - 1)


def _counted(result: ToolResult, attempts: int, retries: int) -> ToolResult:
    """`result` with all attempts, and with words about the retries that did not help."""
    if not retries:
        return result
    info = result.error_info
    if info is None:
        return replace(result, attempts=attempts)
    text = f"Max retries reached ({retries}): {result.error}"
    info = replace(info, message=text)
    return replace(result, attempts=attempts, error=text, error_info=info)
