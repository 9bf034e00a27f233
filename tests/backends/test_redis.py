"""Stores on a real server: the suites of the protocols, and what only servers do."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

    from executionkit.backends import BreakerBackend, CacheBackend, LimiterBackend
    from executionkit.backends.redis import RedisBackend


def _load(name: str) -> ModuleType:
    # Files of tests are no packages here; the suites are found by path.
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


limits: Any = _load("limits_contract")
cache: Any = _load("contract")


@pytest.fixture
def clock(server_clock: Any) -> Any:
    return server_clock


@pytest.mark.req("stores.limits", "redis.limits")
class TestRedisLimiter(limits.LimiterContract):  # type: ignore[misc]
    @pytest.fixture
    def limiter(self, redis_backend: RedisBackend) -> LimiterBackend:
        return redis_backend.limiter()


@pytest.mark.req("stores.circuits", "redis.circuits")
class TestRedisBreakers(limits.BreakerContract):  # type: ignore[misc]
    @pytest.fixture
    def breakers(self, redis_backend: RedisBackend) -> BreakerBackend:
        return redis_backend.breakers()


@pytest.mark.req("backends.cache-contract", "redis.cache")
class TestRedisCache(cache.CacheContract):  # type: ignore[misc]
    @pytest.fixture
    def backend(self, redis_backend: RedisBackend) -> CacheBackend:
        return redis_backend.cache()
