"""Executors with one policy each, and factories of them."""

from __future__ import annotations

from executionkit.tools._redis_circuits import (
    RedisCircuitBreaker,
    RedisCircuitBreakerConfig,
    RedisCircuitBreakerExecutor,
    create_redis_circuit_breaker,
    create_redis_circuit_breaker_executor,
)
from executionkit.tools._redis_limits import (
    RedisRateLimiter,
    create_redis_rate_limiter,
)
from executionkit.tools.executors import (
    CacheInterface,
    CachingToolExecutor,
    CircuitBreakerConfig,
    CircuitBreakerExecutor,
    CircuitBreakerInterface,
    CircuitState,
    Executor,
    InMemoryCache,
    RateLimitedToolExecutor,
    RateLimiter,
    RateLimiterInterface,
    RetryableToolExecutor,
    RetryConfig,
    ToolCircuitBreaker,
    ToolExecutor,
    ToolWrapper,
    cacheable,
    rate_limited,
    retryable,
)
from executionkit.tools.factories import (
    CircuitBreakerSettings,
    RateLimiterSettings,
    WrapperBackend,
    create_circuit_breaker,
    create_production_executor,
    create_rate_limiter,
)

__all__ = (
    "CacheInterface",
    "CachingToolExecutor",
    "CircuitBreakerConfig",
    "CircuitBreakerExecutor",
    "CircuitBreakerInterface",
    "CircuitBreakerSettings",
    "CircuitState",
    "Executor",
    "InMemoryCache",
    "RateLimitedToolExecutor",
    "RateLimiter",
    "RateLimiterInterface",
    "RateLimiterSettings",
    "RedisCircuitBreaker",
    "RedisCircuitBreakerConfig",
    "RedisCircuitBreakerExecutor",
    "RedisRateLimiter",
    "RetryConfig",
    "RetryableToolExecutor",
    "ToolCircuitBreaker",
    "ToolExecutor",
    "ToolWrapper",
    "WrapperBackend",
    "cacheable",
    "create_circuit_breaker",
    "create_production_executor",
    "create_rate_limiter",
    "create_redis_circuit_breaker",
    "create_redis_circuit_breaker_executor",
    "create_redis_rate_limiter",
    "rate_limited",
    "retryable",
)
