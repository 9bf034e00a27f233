"""Executors with limits and circuits around a strategy, made in one call.

The state is kept in this process, or on a Redis server that many processes share;
`WrapperBackend.AUTO` takes the server when one answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from executionkit._frozen import freeze_mapping, sealed
from executionkit.engine.breaker import BreakerConfig
from executionkit.errors import StateStoreError
from executionkit.tools._redis_circuits import (
    RedisCircuitBreaker,
    RedisCircuitBreakerExecutor,
)
from executionkit.tools._redis_limits import (
    DEFAULT_REDIS_URL,
    RedisRateLimiter,
    redis_at,
)
from executionkit.tools._tool_state import (
    CircuitBreakerInterface,
    RateLimiter,
    RateLimiterInterface,
    ToolCircuitBreaker,
)
from executionkit.tools._wrappers import CircuitBreakerExecutor, RateLimitedToolExecutor
from executionkit.tools._wrapping import ToolWrapper
from executionkit.tools.middleware.rate_limit import RateLimitOptions

if TYPE_CHECKING:
    from executionkit.backends.redis import RedisBackend

__all__ = (
    "DEFAULT_REDIS_URL",
    "CircuitBreakerSettings",
    "RateLimiterSettings",
    "WrapperBackend",
    "create_circuit_breaker",
    "create_production_executor",
    "create_rate_limiter",
)

_BREAKER_PREFIX: Final = "circuitbreaker"
_LIMITER_PREFIX: Final = "ratelimit"


class WrapperBackend(StrEnum):
    """Where limits and circuits keep their state."""

    MEMORY = "memory"
    """In this process."""

    REDIS = "redis"
    """On a Redis server, shared by many processes."""

    AUTO = "auto"
    """On the Redis server when one answers, else in this process."""


@sealed
@dataclass(frozen=True, slots=True)
class CircuitBreakerSettings:
    """When circuits open and close.

    Raises:
        TypeError: For an unknown name in `tool_configs`.
        ValueError: For a number out of range.
    """

    failure_threshold: int = 5
    """Failures that open a circuit, without a success between them."""

    success_threshold: int = 2
    """Successful probes that close it."""

    reset_timeout: float = 60.0
    """Seconds that it stays open."""

    half_open_max_calls: int = 1
    """Probes at once."""

    failure_window: float | None = 60.0
    """Seconds after which a failure no longer counts. None = never."""

    tool_configs: Mapping[str, BreakerConfig | Mapping[str, Any]] | None = None
    """By full name, bare name, or glob: what is different, `{"failure_threshold": 2}`,
    or a whole `BreakerConfig`."""

    def __post_init__(self) -> None:
        if self.tool_configs is not None:
            object.__setattr__(self, "tool_configs", freeze_mapping(self.tool_configs))
        self.to_configs()

    def to_config(self) -> BreakerConfig:
        """The settings of tools that `tool_configs` does not name."""
        return BreakerConfig(
            failure_threshold=self.failure_threshold,
            success_threshold=self.success_threshold,
            reset_timeout=self.reset_timeout,
            half_open_max_calls=self.half_open_max_calls,
            failure_window=self.failure_window,
        )

    def to_configs(self) -> dict[str, BreakerConfig]:
        """The settings of single tools."""
        default = self.to_config()
        made: dict[str, BreakerConfig] = {}
        for name, given in (self.tool_configs or {}).items():
            if isinstance(given, BreakerConfig):
                made[name] = given
                continue
            try:
                made[name] = replace(default, **given)
            except TypeError as exc:
                msg = f"`tool_configs[{name!r}]`: {exc}; got {given!r:.200}"
                raise TypeError(msg) from exc
        return made


@sealed
@dataclass(frozen=True, slots=True)
class RateLimiterSettings:
    """How many calls may start in any window of time.

    Raises:
        ValueError: When a limit is not written as (starts, seconds).
    """

    global_limit: int | None = None
    """Starts of all tools together per `global_period`. None = no limit."""

    global_period: float = 60.0
    """Seconds."""

    tool_limits: Mapping[str, tuple[int, float]] | None = None
    """(starts, seconds) by full name, bare name, or glob."""

    def __post_init__(self) -> None:
        if self.tool_limits is not None:
            checked = RateLimitOptions(tool_limits=self.tool_limits)
            object.__setattr__(self, "tool_limits", checked.tool_limits)


class _Store(Protocol):
    """Makes what keeps its state in one place."""

    def circuit_breaker(
        self, settings: CircuitBreakerSettings, key_prefix: str, /
    ) -> CircuitBreakerInterface: ...

    def rate_limiter(
        self, settings: RateLimiterSettings, key_prefix: str, /
    ) -> RateLimiterInterface: ...


class _MemoryStore:
    """In this process: nothing is shared, so prefixes mean nothing."""

    def circuit_breaker(
        self, settings: CircuitBreakerSettings, _key_prefix: str, /
    ) -> ToolCircuitBreaker:
        return ToolCircuitBreaker(
            default_config=settings.to_config(), tool_configs=settings.to_configs()
        )

    def rate_limiter(
        self, settings: RateLimiterSettings, _key_prefix: str, /
    ) -> RateLimiter:
        return RateLimiter(
            global_limit=settings.global_limit,
            global_period=settings.global_period,
            tool_limits=settings.tool_limits,
        )


class _RedisStore:
    """On a server; one connection for all that is made of one address."""

    def __init__(self, server: RedisBackend) -> None:
        self._server = server

    def circuit_breaker(
        self, settings: CircuitBreakerSettings, key_prefix: str, /
    ) -> RedisCircuitBreaker:
        return RedisCircuitBreaker(
            self._server,
            default_config=settings.to_config(),
            tool_configs=settings.to_configs(),
            key_prefix=key_prefix,
        )

    def rate_limiter(
        self, settings: RateLimiterSettings, key_prefix: str, /
    ) -> RedisRateLimiter:
        return RedisRateLimiter(
            self._server,
            global_limit=settings.global_limit,
            global_period=settings.global_period,
            tool_limits=settings.tool_limits,
            key_prefix=key_prefix,
        )


async def _open_store(backend: WrapperBackend | str, redis_url: str) -> _Store:
    """The one place that knows which stores there are.

    Raises:
        StateStoreError: For REDIS, when no server answers.
        ValueError: For an unknown name.
    """
    chosen = WrapperBackend(backend)
    if chosen is WrapperBackend.MEMORY:
        return _MemoryStore()
    server = redis_at(redis_url)
    try:
        await server.ping()
    except StateStoreError as exc:
        await server.close()
        if chosen is WrapperBackend.AUTO:
            return _MemoryStore()
        msg = (
            f"`WrapperBackend.REDIS`: {exc}; start the server, say where it is with "
            "`redis_url`, or use `WrapperBackend.MEMORY` (limits and circuits per "
            "process)"
        )
        raise StateStoreError(msg, original_error=exc) from exc
    return _RedisStore(server)


async def create_circuit_breaker(
    backend: WrapperBackend | str = WrapperBackend.MEMORY,
    *,
    redis_url: str = DEFAULT_REDIS_URL,
    key_prefix: str | None = None,
    **settings: Any,
) -> CircuitBreakerInterface:
    """Circuits by the names of tools: `can_execute`, then one report.

    Args:
        backend: Where their state is.
        redis_url: For REDIS and AUTO.
        key_prefix: What keys in a shared store begin with. None = `circuitbreaker`.
        settings: As for `CircuitBreakerSettings`.

    Raises:
        StateStoreError: For REDIS, when no server answers.
        TypeError: For an unknown setting.
        ValueError: For a number out of range, or an unknown `backend`.
    """
    store = await _open_store(backend, redis_url)
    return store.circuit_breaker(
        CircuitBreakerSettings(**settings), key_prefix or _BREAKER_PREFIX
    )


async def create_rate_limiter(
    backend: WrapperBackend | str = WrapperBackend.MEMORY,
    *,
    redis_url: str = DEFAULT_REDIS_URL,
    key_prefix: str | None = None,
    **settings: Any,
) -> RateLimiterInterface:
    """Permits by the names of tools: `wait`.

    Args:
        backend: Where its state is.
        redis_url: For REDIS and AUTO.
        key_prefix: What keys in a shared store begin with. None = `ratelimit`.
        settings: As for `RateLimiterSettings`.

    Raises:
        StateStoreError: For REDIS, when no server answers.
        TypeError: For an unknown setting.
        ValueError: For a number out of range, or an unknown `backend`.
    """
    store = await _open_store(backend, redis_url)
    return store.rate_limiter(
        RateLimiterSettings(**settings), key_prefix or _LIMITER_PREFIX
    )


async def create_production_executor(  # noqa: PLR0913 - the older API's arguments
    strategy: object,
    *,
    circuit_breaker_backend: WrapperBackend | str = WrapperBackend.MEMORY,
    rate_limiter_backend: WrapperBackend | str = WrapperBackend.MEMORY,
    redis_url: str = DEFAULT_REDIS_URL,
    circuit_breaker_settings: CircuitBreakerSettings | None = None,
    rate_limiter_settings: RateLimiterSettings | None = None,
    enable_circuit_breaker: bool = True,
    enable_rate_limiter: bool = True,
    key_prefix: str | None = None,
) -> ToolWrapper:
    """`strategy` inside of circuit breakers inside of a rate limiter.

    A call that an open circuit refuses gives its permit back. To try failed calls
    again, put a `RetryableToolExecutor` around the result.

    Args:
        strategy: A strategy, or any executor.
        circuit_breaker_backend: Where circuits are.
        rate_limiter_backend: Where limits are.
        redis_url: For REDIS and AUTO.
        circuit_breaker_settings: None = the defaults.
        rate_limiter_settings: None = no limits.
        enable_circuit_breaker: False leaves the circuits out.
        enable_rate_limiter: False leaves the limiter out.
        key_prefix: What keys in a shared store begin with, e.g. `myapp`; followed by
            `:circuitbreaker` and `:ratelimit`. None = these alone.

    Raises:
        StateStoreError: For REDIS, when no server answers.
        TypeError: When `strategy` can run no calls.
        ValueError: For an unknown backend.
    """
    executor: Any = strategy
    head = "" if key_prefix is None else f"{key_prefix}:"
    if enable_circuit_breaker:
        circuits = circuit_breaker_settings or CircuitBreakerSettings()
        store = await _open_store(circuit_breaker_backend, redis_url)
        if isinstance(store, _MemoryStore):
            # Circuits of its own tie a probe to its call, without going by names.
            executor = CircuitBreakerExecutor(
                executor,
                default_config=circuits.to_config(),
                tool_configs=circuits.to_configs(),
            )
        else:
            breaker = store.circuit_breaker(circuits, head + _BREAKER_PREFIX)
            executor = (
                RedisCircuitBreakerExecutor(executor, breaker)
                if isinstance(breaker, RedisCircuitBreaker)
                else CircuitBreakerExecutor(executor, circuit_breaker=breaker)
            )
    if enable_rate_limiter:
        limits = rate_limiter_settings or RateLimiterSettings()
        store = await _open_store(rate_limiter_backend, redis_url)
        limiter = store.rate_limiter(limits, head + _LIMITER_PREFIX)
        executor = RateLimitedToolExecutor(executor, limiter)
    return executor if isinstance(executor, ToolWrapper) else ToolWrapper(executor)
