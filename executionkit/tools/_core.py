"""The machine behind a processor: options and a strategy become paths, once."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from executionkit._clock import get_clock
from executionkit._constants import DefaultSeconds
from executionkit.engine.retry import RetryConfig
from executionkit.tools._gate import Gate
from executionkit.tools._lookup import exact, matching, unmatched
from executionkit.tools._options import tool_retry
from executionkit.tools._path import Counts, PathParts, ToolPath
from executionkit.tools._policy_marks import retry_mark
from executionkit.tools._running import Workshop
from executionkit.tools._runs import Paths
from executionkit.tools.middleware._shared import SharedBreakerLayer, SharedRateLayer
from executionkit.tools.middleware._store import Watches
from executionkit.tools.middleware.breaker import Breakers
from executionkit.tools.middleware.bulkhead import Bulkheads
from executionkit.tools.middleware.cache import CacheLayer, IdempotencyOptions
from executionkit.tools.middleware.guards import GuardLayer
from executionkit.tools.middleware.rate_limit import RateLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from executionkit._clock import Clock
    from executionkit.tools._options import ProcessorOptions, ToolPolicy
    from executionkit.tools._record import ToolRecord
    from executionkit.tools._trace import Tracer
    from executionkit.tools.middleware._base import Layer, ToolRequest
    from executionkit.tools.registry import ToolRegistry
    from executionkit.tools.strategies._base import ExecutionStrategy

__all__ = ("Core", "may_repeat")

_log = logging.getLogger("executionkit")
_NOT_REPEATABLE = frozenset({"write", "destructive"})


class Core:
    """Everything that calls of one processor share.

    Args:
        registry: Where names are looked up.
        strategy: What runs tools.
        options: Which layers there are.
        tracer: Tells sinks about calls; None = nobody listens.
        clock: None = the clock of the current context.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        strategy: ExecutionStrategy,
        options: ProcessorOptions,
        tracer: Tracer | None = None,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or get_clock()
        self.registry: ToolRegistry = registry
        self.options: ProcessorOptions = options
        self.strategy: ExecutionStrategy = strategy
        shop = getattr(strategy, "shop", None)
        self.shop: Workshop = shop if isinstance(shop, Workshop) else Workshop(clock)
        self.counts: dict[str, Counts] = {}
        self.watches: Watches = Watches()
        self.once: CacheLayer = CacheLayer(
            options.cache,
            idempotency=options.idempotency or IdempotencyOptions(),
            clock=clock,
            watches=self.watches,
        )
        """The cache, and what is known of idempotency keys."""
        self.cache: CacheLayer | None = None if options.cache is None else self.once
        self.guards: GuardLayer | None = None
        if options.guards:
            self.guards = GuardLayer(options.guards)
        self.breakers: Breakers | None = None
        if options.breaker is not None:
            self.breakers = Breakers(options.breaker, clock, self.watches)
        self.rate_limits: RateLimits | None = None
        if options.rate_limit is not None:
            self.rate_limits = RateLimits(options.rate_limit, clock, self.watches)
        self.bulkheads: Bulkheads = Bulkheads(options.bulkhead, clock)
        self._is_checked = False
        self._clock = clock
        self._tracer = tracer
        self.paths: Paths = Paths(registry, self.build, self.shop)
        self.paths.tracer = tracer
        # Calls at once are limited where they run, not where they begin: a call that
        # waits for a permit or for its own tool must not hold the place of another.
        self._gate: Gate | None = None
        self.paths.gate = getattr(strategy, "gate", None)
        limit = options.max_concurrency
        if limit is not None and limit != getattr(strategy, "max_concurrency", None):
            self._gate = self.paths.gate = Gate("concurrency", limit, clock)
        gates = (getattr(strategy, "gate", None), self._gate)
        self.paths.gates = tuple(gate for gate in gates if gate is not None)

    def build(self, record: ToolRecord) -> ToolPath:
        """The path of one tool."""
        if not self._is_checked:
            self._is_checked = True
            self._tell_of_misspelt()
        parts = PathParts(
            start=self._starter(record),
            function=self._function(record),
            shop=self.shop,
            timeout=self._timeout(record),
            guards=self.guards,
            cache=self.once if self.once.caches(record) else None,
            once=self.once,
            retry=self._retry(record),
            repeats=may_repeat(record),
            layers=self._layers(record),
            middleware=self.options.middleware,
            tracer=self._tracer,
        )
        counts = self.counts.setdefault(record.full_name, Counts())
        return ToolPath(record, parts, counts)

    def _tell_of_misspelt(self) -> None:
        """Log settings that concern no tool: a misspelt limit would limit nothing."""
        options = self.options
        named: dict[str, Mapping[str, Any]] = {"policies": options.policies}
        if options.rate_limit is not None:
            named["tool_rate_limits"] = options.rate_limit.tool_limits
        if options.breaker is not None:
            named["circuit breakers"] = options.breaker.tools
        if options.cache is not None:
            named["tool_ttls of the cache"] = options.cache.tool_ttls
        if options.bulkhead is not None:
            named["tool_limits of the bulkhead"] = options.bulkhead.tool_limits
            named["patterns of the bulkhead"] = options.bulkhead.patterns
        if not any(named.values()):
            return
        names = {name for record in self.registry.records() for name in record.names}
        for where, settings in named.items():
            for key, close in unmatched(settings, names):
                hint = f"; did you mean {', '.join(close)}?" if close else ""
                _log.warning(
                    "%s: %r concerns no tool that is registered now%s", where, key, hint
                )

    async def flush(self) -> None:
        """Wait until shared stores have been told everything."""
        for policy in (self.breakers, self.rate_limits):
            if policy is not None:
                await policy.reports.flush()

    def _layers(self, record: ToolRecord) -> tuple[Layer, ...]:
        circuit = None if self.breakers is None else self.breakers.bind(record)
        limits = self._rate_layer(record)
        if isinstance(circuit, SharedBreakerLayer) and isinstance(
            limits, SharedRateLayer
        ):
            circuit.lead(limits)
        found: list[Layer | None] = [circuit, limits]
        found.append(self.bulkheads.bind(record))
        gates: Any = getattr(self.strategy, "gates", None)
        found += gates(record) if gates is not None else ()
        found.append(self._gate)
        return tuple(layer for layer in found if layer is not None)

    def _rate_layer(self, record: ToolRecord) -> Layer | None:
        if self.rate_limits is None:
            if record.tool.rate_limit is None:
                return None
            from executionkit.tools.middleware.rate_limit import RateLimitOptions

            self.rate_limits = RateLimits(RateLimitOptions(), self._clock)
        return self.rate_limits.bind(record)

    def _timeout(self, record: ToolRecord) -> float | None:
        """Seconds per attempt: exact policy > tool > pattern > default."""
        policies = self.options.policies
        own = record.tool.timeout
        chosen = _of(exact(policies, record.names), "timeout")
        if chosen is None and not isinstance(own, DefaultSeconds):
            return own
        if chosen is None:
            chosen = _of(matching(policies, record.names), "timeout")
        if chosen is None:
            chosen = self.options.timeout
        return None if chosen is None or math.isinf(chosen) else chosen

    def _retry(self, record: ToolRecord) -> RetryConfig | None:
        """How a tool is retried: exact policy > tool > pattern > default."""
        policies = self.options.policies
        marked = retry_mark(record.source)
        config = marked or self.options.retry
        chosen: int | None = _of(exact(policies, record.names), "max_retries")
        if chosen is None:
            chosen = record.tool.max_retries
        if chosen is None:
            chosen = _of(matching(policies, record.names), "max_retries")
        if chosen is None:
            return config
        return replace(config or tool_retry(RetryConfig()), max_retries=chosen)

    def _function(self, record: ToolRecord) -> Any:
        function: Any = getattr(self.strategy, "function", None)
        return None if function is None else function(record)

    def _starter(
        self, record: ToolRecord
    ) -> Callable[[ToolRequest], Coroutine[Any, Any, Any]]:
        starter: Any = getattr(self.strategy, "starter", None)
        if starter is not None:
            return starter(record)  # type: ignore[no-any-return]
        start = self.strategy.start

        def begin(request: ToolRequest) -> Coroutine[Any, Any, Any]:
            return _awaited(start(request))

        return begin


async def _awaited(begun: Awaitable[Any]) -> Any:
    return await begun


def _of(policy: ToolPolicy | None, name: str) -> Any:
    return None if policy is None else getattr(policy, name)


def may_repeat(record: ToolRecord) -> bool:
    """Whether a call that was begun and failed may be begun again.

    What writes is not repeated unless its author says that it may be: after a lost
    answer nobody knows whether the effect is there.
    """
    tool = record.tool
    if tool.idempotent or tool.max_retries is not None:
        return True
    return tool.side_effects not in _NOT_REPEATABLE
