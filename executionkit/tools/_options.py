"""What a processor is told, turned into options once: presence enables a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from executionkit._constants import DefaultInt, DefaultSeconds
from executionkit.backends import open_backend
from executionkit.engine.breaker import BreakerConfig
from executionkit.engine.bulkhead import BulkheadConfig
from executionkit.engine.retry import RetryConfig
from executionkit.errors import ExecutionKitError
from executionkit.tools.middleware.breaker import BreakerOptions
from executionkit.tools.middleware.cache import CacheOptions, IdempotencyOptions
from executionkit.tools.middleware.rate_limit import RateLimitOptions
from executionkit.types import freeze_mapping, sealed

if TYPE_CHECKING:
    from executionkit.backends import StateBackend
    from executionkit.calls import ToolCall
    from executionkit.tools.middleware._base import Middleware
    from executionkit.tools.middleware._store import OnError

__all__ = (
    "DEFAULT_PROCESSOR_TIMEOUT",
    "ProcessorOptions",
    "ToolPolicy",
    "may_be_retried",
    "tool_retry",
)

DEFAULT_PROCESSOR_TIMEOUT: Final = 10.0
"""Seconds that one attempt of a tool may run."""


def may_be_retried(exc: Exception) -> bool:
    """The default for tools: whether trying again can help, judged by the type.

    Errors of this library know it themselves. What a tool raises may be tried again.
    """
    return exc.retryable if isinstance(exc, ExecutionKitError) else True


def tool_retry(config: RetryConfig) -> RetryConfig:
    """`config` with the tools' own default in place of the models'."""
    if config.retryable == RetryConfig.__dataclass_fields__["retryable"].default:
        return replace(config, retryable=may_be_retried)
    return config


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """Settings for a tool or for all tools that match a pattern; None = not set here."""

    timeout: float | None = None
    """Seconds that one attempt may run; `inf` = no limit."""

    max_retries: int | None = None
    """Attempts after the first; 0 = none. Setting it turns retries on."""

    def __post_init__(self) -> None:
        if self.timeout is not None:
            _check_seconds("timeout", self.timeout)
        if self.max_retries is not None:
            _check_count("max_retries", self.max_retries)


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorOptions:
    """How calls are run. None = that layer does not exist."""

    timeout: float | None = DEFAULT_PROCESSOR_TIMEOUT
    max_concurrency: int | None = None
    cache: CacheOptions | None = None
    retry: RetryConfig | None = None
    breaker: BreakerOptions | None = None
    rate_limit: RateLimitOptions | None = None
    bulkhead: BulkheadConfig | None = None
    idempotency: IdempotencyOptions | None = None
    guards: tuple[Any, ...] = ()
    middleware: tuple[Middleware, ...] = ()
    policies: Mapping[str, ToolPolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.timeout is not None:
            _check_seconds("default_timeout", self.timeout)
        if self.max_concurrency is not None:
            _check_count("max_concurrency", self.max_concurrency, least=1)
        for name, policy in self.policies.items():
            given: object = policy
            if not isinstance(given, ToolPolicy):
                msg = f"`policies[{name!r}]` must be a ToolPolicy, got {given!r}"
                raise TypeError(msg)
        object.__setattr__(self, "policies", freeze_mapping(self.policies))


def cache_options(
    enable: bool | None,  # noqa: FBT001 - called with names
    ttl: float,
    cache: Any,
    key_fn: Callable[[ToolCall], object] | None,
) -> CacheOptions | None:
    """The cache's options; None when it is off.

    Args:
        enable: The switch; None = on when anything else is given.
        ttl: Seconds that results live.
        cache: A backend, or `CacheOptions` (they say everything themselves).
        key_fn: Normalises a call's arguments for its key.
    """
    given = cache is not None or key_fn is not None or is_chosen(ttl)
    if not (given if enable is None else enable):
        return None
    if isinstance(cache, CacheOptions):
        return cache
    return CacheOptions(ttl=ttl, backend=cache, cache_key_fn=key_fn)


def is_chosen(number: Any) -> bool:
    """Whether somebody said so, and be it what is the default anyway."""
    return not isinstance(number, (DefaultInt, DefaultSeconds))


def retry_options(
    enable: bool | None,  # noqa: FBT001 - called with names
    max_retries: int,
    config: RetryConfig | None,
    base_delay: float | None,
) -> RetryConfig | None:
    """How tools are retried; None when they are not."""
    given: object = config
    if given is not None and not isinstance(given, RetryConfig):
        msg = f"`retry_config` must be a RetryConfig, got {given!r}"
        raise TypeError(msg)
    said = config is not None or base_delay is not None or is_chosen(max_retries)
    if not (said if enable is None else enable):
        return None
    if not is_chosen(max_retries):
        max_retries = int(max_retries)
    chosen = config or RetryConfig(max_retries=max_retries)
    if base_delay is not None:
        chosen = replace(chosen, base_delay=base_delay)
    return tool_retry(chosen)


def rate_options(
    enable: bool | None,  # noqa: FBT001 - called with names
    global_limit: int | None,
    tool_limits: Mapping[str, tuple[int, float]] | None,
    options: RateLimitOptions | None = None,
) -> RateLimitOptions | None:
    """The rate limits; None when they are off. `options` say everything themselves."""
    asked: object = options
    if asked is not None and not isinstance(asked, RateLimitOptions):
        msg = f"`rate_limits` must be RateLimitOptions, got {asked!r}"
        raise TypeError(msg)
    if options is not None:
        return None if enable is False else options
    given = global_limit is not None or bool(tool_limits)
    if not (given if enable is None else enable):
        return None
    return RateLimitOptions(global_limit=global_limit, tool_limits=tool_limits or {})


def breaker_options(
    enable: bool | None,  # noqa: FBT001 - called with names
    threshold: int,
    reset_timeout: float,
    config: Any,
) -> BreakerOptions | None:
    """The circuit breakers; None when they are off."""
    said = config is not None or is_chosen(threshold) or is_chosen(reset_timeout)
    if not (said if enable is None else enable):
        return None
    if isinstance(config, BreakerOptions):
        return config
    if config is not None and not isinstance(config, BreakerConfig):
        msg = (
            "`circuit_breaker_config` must be a BreakerConfig or BreakerOptions, got "
            f"{config!r}"
        )
        raise TypeError(msg)
    if not is_chosen(threshold):
        threshold = int(threshold)
    default = config or BreakerConfig(
        failure_threshold=threshold, reset_timeout=reset_timeout
    )
    return BreakerOptions(default=default)


def bulkhead_options(
    enable: bool | None,  # noqa: FBT001 - called with names
    config: BulkheadConfig | None,
) -> BulkheadConfig | None:
    """The bulkhead's limits; None when it is off."""
    given: object = config
    if given is not None and not isinstance(given, BulkheadConfig):
        msg = f"`bulkhead_config` must be a BulkheadConfig, got {given!r}"
        raise TypeError(msg)
    if not (config is not None if enable is None else enable):
        return None
    return config or BulkheadConfig()


def opened(state: StateBackend | str | None) -> StateBackend | None:
    """The place of state: itself, or the one at an address.

    Raises:
        TypeError: When it is none.
        ValueError: For an address that cannot be read.
    """
    if isinstance(state, str):
        return open_backend(state)
    needed = ("cache", "limiter", "breakers", "close")
    if state is not None and not all(hasattr(state, name) for name in needed):
        msg = (
            "`state` must be an address or what `open_backend(url)` gives, got "
            f"{type(state).__name__}"
        )
        raise TypeError(msg)
    return state


def shared(
    options: ProcessorOptions, state: StateBackend | None, on_error: OnError
) -> ProcessorOptions:
    """`options` whose cache, limits and circuits are kept in `state`.

    What has a backend of its own keeps it. None = everything is kept in this process.
    """
    if state is None:
        return options
    cache, breaker, limits = options.cache, options.breaker, options.rate_limit
    once = options.idempotency or IdempotencyOptions()
    if once.backend is None:
        once = replace(once, backend=state.cache("idempotency"))
    if cache is not None and cache.backend is None:
        cache = replace(cache, backend=state.cache(), on_error=on_error)
    if breaker is not None and breaker.backend is None:
        breaker = replace(breaker, backend=state.breakers(), on_error=on_error)
    if limits is not None and limits.backend is None:
        limits = replace(limits, backend=state.limiter(), on_error=on_error)
    return replace(
        options, cache=cache, breaker=breaker, rate_limit=limits, idempotency=once
    )


def as_tuple(name: str, items: Iterable[Any] | None) -> tuple[Any, ...]:
    """`items` as a tuple; one alone is refused with a hint."""
    if items is None:
        return ()
    if not isinstance(items, Iterable) or isinstance(items, (str, bytes)):
        msg = f"`{name}` must be a list, got {items!r:.80}; write `{name}=[...]`"
        raise TypeError(msg)
    return tuple(items)


def _check_seconds(name: str, value: Any) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or math.isnan(value) or not value > 0:
        msg = f"`{name}` must be > 0 seconds, or None; got {value!r}"
        raise ValueError(msg)


def _check_count(name: str, value: Any, least: int = 0) -> None:
    if type(value) is not int or value < least:
        msg = f"`{name}` must be an int >= {least}, or None; got {value!r}"
        raise ValueError(msg)
