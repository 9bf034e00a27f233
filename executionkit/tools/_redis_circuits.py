"""Circuits by the name of a tool, on a Redis server, for many processes."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from executionkit._clock import get_clock
from executionkit.backends import MemoryBreakers
from executionkit.engine.breaker import BreakerConfig, CircuitState
from executionkit.errors import StateStoreError, ToolCircuitOpenError
from executionkit.tools._redis_limits import DEFAULT_REDIS_URL, redis_at
from executionkit.tools._tool_state import Circuits
from executionkit.tools._wrappers import CircuitBreakerExecutor
from executionkit.tools._wrapping import KnownTool
from executionkit.tools.middleware._shared import Outage, Reports, SharedBreakerLayer
from executionkit.tools.middleware._store import OnError, check_on_error
from executionkit.tools.middleware.breaker import shown_state

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.backends import BreakerBackend, BreakerLease, Outcome

__all__ = (
    "RedisCircuitBreaker",
    "RedisCircuitBreakerConfig",
    "RedisCircuitBreakerExecutor",
    "create_redis_circuit_breaker",
    "create_redis_circuit_breaker_executor",
)

_MAX_OPEN_CALLS: Final = 10_000

RedisCircuitBreakerConfig: TypeAlias = BreakerConfig
"""Another name of `BreakerConfig`."""


class RedisCircuitBreaker:
    """One circuit per tool, for all processes together.

    Keys are `{prefix}:{tool}:state` (a hash), `{prefix}:{tool}:failures` and
    `{prefix}:{tool}:probes` (sorted sets), and `{prefix}:index` with the names. All of
    them end by themselves. A probe that nobody reports gives its place back.

    Args:
        redis: A `redis.asyncio.Redis`, an address, or a `RedisBackend`.
        default_config: For tools that `tool_configs` does not name. None = the defaults.
        tool_configs: By full name, bare name, or glob.
        key_prefix: What the keys begin with. For a cluster write it in braces.
        on_error: While the server does not answer: `"local"` (the circuits of this
            process), `"open"` (calls pass), `"closed"` (calls fail).
        clock: None = the clock of the current context.

    Raises:
        TypeError: When a configuration is no `BreakerConfig`.
        ValueError: For an address that cannot be read.
    """

    def __init__(
        self,
        redis: Any,
        *,
        default_config: BreakerConfig | None = None,
        tool_configs: Mapping[str, BreakerConfig] | None = None,
        key_prefix: str = "circuitbreaker",
        on_error: OnError = "local",
        clock: Clock | None = None,
    ) -> None:
        check_on_error(on_error)
        self._clock = clock or get_clock()
        # Only its settings: the circuits themselves are on the server.
        self._configs = Circuits(default_config, tool_configs, self._clock)
        self._server = redis_at(redis)
        self._store = self._server.breakers_under(key_prefix, self._clock)
        self._outage = Outage(on_error, self._clock)
        self._reports = Reports()
        self._layers: dict[str, SharedBreakerLayer] = {}
        self._local = MemoryBreakers(self._clock) if on_error == "local" else None
        self._open: dict[str, deque[tuple[object, BreakerBackend, BreakerLease]]] = {}

    def layer(self, record: Any) -> SharedBreakerLayer:
        """The layer of one tool."""
        name: str = record.full_name
        found = self._layers.get(name)
        if found is None:
            found = SharedBreakerLayer(
                self._store,
                name,
                self._configs.config(record.names),
                self._outage,
                self._reports,
                self._clock,
            )
            if len(self._layers) < _MAX_OPEN_CALLS:
                self._layers[name] = found
        return found

    async def can_execute(self, tool: str) -> bool:
        """Whether `tool` may be called now; when it may, report how that ended.

        Raises:
            StateStoreError: When the server does not answer and `on_error` is
                `"closed"`.
        """
        name, config = self._config(tool)
        store: BreakerBackend = self._store
        try:
            try:
                lease = await store.before(name, config)
            except StateStoreError:
                if self._outage.mode == "closed":
                    raise
                if self._local is None:
                    return True
                store = self._local
                lease = await store.before(name, config)
        except ToolCircuitOpenError:
            return False
        calls = self._open.setdefault(name, deque(maxlen=_MAX_OPEN_CALLS))
        calls.append((_task(), store, lease))
        return True

    async def record_success(self, tool: str) -> None:
        """The call worked."""
        await self._report(tool, "success")

    async def record_failure(self, tool: str) -> None:
        """The call failed in a way that counts. Counts without `can_execute`, too."""
        await self._report(tool, "failure")

    async def release(self, tool: str) -> None:
        """The call says nothing about the tool: cancelled, or never sent."""
        await self._report(tool, "abandoned")

    async def get_state(self, tool: str) -> dict[str, Any]:
        """How the circuit of a tool stands; one that was never called is closed.

        `opened_at` is monotonic time of this process; `time_until_half_open` is 0 when
        probes are due, and None unless the circuit is open.

        Raises:
            StateStoreError: When the server does not answer; so do the methods below.
        """
        await self._reports.flush()
        name, config = self._config(tool)
        return shown_state(await self._store.snapshot(name, config), config)

    async def get_all_states(self) -> dict[str, dict[str, Any]]:
        """`get_state` of each tool whose circuit has something to remember."""
        await self._reports.flush()
        names = await self._store.states()
        return {name: await self.get_state(name) for name in names}

    async def reset(self, tool: str) -> None:
        """Close the circuit of a tool and forget its failures."""
        await self._reports.flush()
        name, _ = self._config(tool)
        self._open.pop(name, None)
        await self._store.reset(name)

    async def reset_all(self) -> int:
        """Close all circuits; how many had something to remember."""
        await self._reports.flush()
        self._open.clear()
        names = await self._store.states()
        for name in names:
            await self._store.reset(name)
        return len(names)

    async def aclose(self) -> None:
        """Let go of the connection; the next question makes a new one."""
        await self._reports.flush()
        await self._server.close()

    def _config(self, tool: str) -> tuple[str, BreakerConfig]:
        names = KnownTool(tool, "default").names
        return names[0], self._configs.config(names)

    async def _report(self, tool: str, outcome: Outcome) -> None:
        name, config = self._config(tool)
        try:
            found = self._lease(name)
            if found is not None:
                store, lease = found
                await store.report(lease, outcome)
                return
            shown = await self._store.snapshot(name, config)
            if shown.state is CircuitState.CLOSED:
                lease = await self._store.before(name, config)
                await self._store.report(lease, outcome)
        except (StateStoreError, ToolCircuitOpenError):
            return  # a lost report changes no call: leases and windows end

    def _lease(self, name: str) -> tuple[BreakerBackend, BreakerLease] | None:
        """The oldest open call of this task, else the oldest one."""
        calls = self._open.get(name)
        if not calls:
            return None
        task = _task()
        found = next((item for item in calls if item[0] == task), calls[0])
        calls.remove(found)
        if not calls:
            del self._open[name]
        return found[1:]


class RedisCircuitBreakerExecutor(CircuitBreakerExecutor):
    """Refuses calls of a tool that keeps failing, in all processes.

    Args:
        executor: The executor inside.
        circuit_breaker: Decides.
        clock: None = the clock of the current context.

    Raises:
        TypeError: When `circuit_breaker` is of another kind.
    """

    _machine = "redis_circuit_breaker"

    def __init__(
        self,
        executor: object,
        circuit_breaker: RedisCircuitBreaker,
        *,
        clock: Clock | None = None,
    ) -> None:
        given: object = circuit_breaker
        if not isinstance(given, RedisCircuitBreaker):
            msg = f"`circuit_breaker` must be a RedisCircuitBreaker, got {given!r:.80}"
            raise TypeError(msg)
        super().__init__(executor, circuit_breaker=circuit_breaker, clock=clock)
        self._redis = circuit_breaker

    def get_circuit_states(self) -> Any:
        """To be awaited: `get_all_states` of the circuits."""
        return self._redis.get_all_states()

    def reset_circuit(self, tool: str) -> Awaitable[None]:
        """To be awaited: close the circuit of a tool and forget its failures."""
        return self._redis.reset(tool)


async def create_redis_circuit_breaker(
    redis_url: str = DEFAULT_REDIS_URL, **settings: Any
) -> RedisCircuitBreaker:
    """A `RedisCircuitBreaker` at an address; `settings` are its arguments.

    Raises:
        StateStoreError: When the server does not answer.
    """
    server = redis_at(redis_url)
    await server.ping()
    return RedisCircuitBreaker(server, **settings)


async def create_redis_circuit_breaker_executor(
    executor: object, redis_url: str = DEFAULT_REDIS_URL, **settings: Any
) -> RedisCircuitBreakerExecutor:
    """`executor` inside of a `RedisCircuitBreaker`; `settings` are its arguments.

    Raises:
        StateStoreError: When the server does not answer.
    """
    breaker = await create_redis_circuit_breaker(redis_url, **settings)
    return RedisCircuitBreakerExecutor(executor, breaker)


def _task() -> object:
    task = asyncio.current_task()
    return None if task is None else weakref.ref(task)
