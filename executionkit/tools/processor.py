"""`ToolProcessor`: what a model said goes in, results come out."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any, Self

from executionkit._clock import get_clock
from executionkit._constants import DefaultInt, DefaultSeconds
from executionkit.calls import ReturnOrder, ToolCall, ToolResult
from executionkit.engine._checks import check_int
from executionkit.tools import _options as given
from executionkit.tools._as_runner import RunnerHalf
from executionkit.tools._asked import check_strategy, context_of, seconds
from executionkit.tools._bulk import BatchProgress, close_source, counted, read_calls
from executionkit.tools._core import Core
from executionkit.tools._dry_run import DryRun, dry_run
from executionkit.tools._runs import RunOptions, run_calls, stream_calls
from executionkit.tools._trace import Tracer
from executionkit.tools.parsing import (
    DEFAULT_PARSERS,
    ParsedCalls,
    parse_calls,
    resolve_parsers,
)
from executionkit.tools.plan_run import PlanRunner

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.backends import StateBackend
    from executionkit.context import ExecutionContext
    from executionkit.engine.bulkhead import BulkheadConfig
    from executionkit.engine.retry import RetryConfig
    from executionkit.observability import TraceCallback
    from executionkit.tools._options import ToolPolicy
    from executionkit.tools._runs import Override
    from executionkit.tools.middleware import Middleware
    from executionkit.tools.middleware._store import OnError
    from executionkit.tools.middleware.cache import IdempotencyOptions
    from executionkit.tools.middleware.rate_limit import RateLimitOptions
    from executionkit.tools.registry import ToolRegistry
    from executionkit.tools.strategies import ExecutionStrategy

__all__ = ("ToolProcessor",)


class ToolProcessor(PlanRunner, RunnerHalf):
    """Finds the tool calls in what a model said and runs them.

    All calls of a batch run at once, whatever layers are on. A failure is a result, and
    only the caller's own cancellation is raised: then the tools are cancelled too, and
    awaited (a second at most; one that does not end is left behind and counted).

    It serves one event loop after the other; two at once need a processor each, and a
    second one is refused while calls run on the first.

    Every layer is off unless it is asked for. A switch left at None is on when a setting
    of its layer is given.

    Args:
        registry: The tools. None = the default registry, where `@tool` puts them.
        strategy: Where tools run. None = in this process; closed with the processor.
            One that is given stays open.
        default_timeout: Seconds that one attempt may run, for tools and patterns that
            say nothing else; the clock starts when the tool starts. None = no limit.
        max_concurrency: Calls at once. Calls that a tool makes in turn run in its place.
            None = no limit.
        enable_caching: Keep results; default off. See `cache`.
        cache_ttl: Seconds that results live.
        enable_rate_limiting: Default off.
        global_rate_limit: Starts of all tools together in any 60 seconds.
        tool_rate_limits: (starts, seconds) by full name, bare name, or glob.
        enable_retries: Default off. Only failures that trying again can help; what
            writes is not repeated after it has begun, unless it is `idempotent`.
        max_retries: Attempts after the first.
        retry_config: How to retry; replaces `max_retries`.
        enable_circuit_breaker: Default off. One circuit per tool.
        circuit_breaker_threshold: Failures that open a circuit.
        circuit_breaker_timeout: Seconds that it stays open.
        parser_plugins: Names of parsers, or parsers. None = all that are built in.
        bulkhead_config: Limits of calls at once.
        enable_bulkhead: Default off.
        retry_base_delay: Seconds: upper bound of the first pause between attempts.
        circuit_breaker_config: A `BreakerConfig` or `BreakerOptions`; replaces the two
            numbers above.
        rate_limits: `RateLimitOptions`; replaces the two settings above.
        cache: Where results are kept (a `CacheBackend`), or `CacheOptions`.
        cache_key_fn: Called with a call; what it returns stands for the arguments.
        idempotency: How long calls with an idempotency key are remembered, and where.
        guards: Asked before and after each call, in order.
        middleware: Layers of your own, around all others but the trace, outermost first.
        policies: Time limits and retries by full name, bare name, or glob.
        state: Where cache, limits and circuits are kept when others share them, e.g.
            `open_backend(url)`, which is not closed, or the address itself. None = in
            this process.
        on_state_error: What happens while it does not answer: `"local"` (this process
            stands in), `"open"` (no limit), `"closed"` (calls fail).
        trace: Receives an event at the start and the end of each call.
        show_arguments: Whether arguments are in these events, redacted.
        clock: None = the clock of the current context.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is one setting
        self,
        registry: ToolRegistry | None = None,
        strategy: ExecutionStrategy | None = None,
        default_timeout: float | None = given.DEFAULT_PROCESSOR_TIMEOUT,
        max_concurrency: int | None = None,
        enable_caching: bool | None = None,  # noqa: FBT001
        cache_ttl: float = DefaultSeconds(300),
        enable_rate_limiting: bool | None = None,  # noqa: FBT001
        global_rate_limit: int | None = None,
        tool_rate_limits: Mapping[str, tuple[int, float]] | None = None,
        enable_retries: bool | None = None,  # noqa: FBT001
        max_retries: int = DefaultInt(3),
        retry_config: RetryConfig | None = None,
        enable_circuit_breaker: bool | None = None,  # noqa: FBT001
        circuit_breaker_threshold: int = DefaultInt(5),
        circuit_breaker_timeout: float = DefaultSeconds(60),
        parser_plugins: Iterable[Any] | None = None,
        bulkhead_config: BulkheadConfig | None = None,
        enable_bulkhead: bool | None = None,  # noqa: FBT001
        retry_base_delay: float | None = None,
        *,
        circuit_breaker_config: Any = None,
        rate_limits: RateLimitOptions | None = None,
        cache: Any = None,
        cache_key_fn: Callable[[ToolCall], object] | None = None,
        idempotency: IdempotencyOptions | None = None,
        guards: Iterable[Any] | None = None,
        middleware: Iterable[Middleware] | None = None,
        policies: Mapping[str, ToolPolicy] | None = None,
        state: StateBackend | str | None = None,
        on_state_error: OnError = "local",
        trace: TraceCallback | None = None,
        show_arguments: bool = False,
        clock: Clock | None = None,
    ) -> None:
        options = given.ProcessorOptions(
            timeout=default_timeout,
            max_concurrency=max_concurrency,
            cache=given.cache_options(enable_caching, cache_ttl, cache, cache_key_fn),
            retry=given.retry_options(
                enable_retries, max_retries, retry_config, retry_base_delay
            ),
            breaker=given.breaker_options(
                enable_circuit_breaker,
                circuit_breaker_threshold,
                circuit_breaker_timeout,
                circuit_breaker_config,
            ),
            rate_limit=given.rate_options(
                enable_rate_limiting, global_rate_limit, tool_rate_limits, rate_limits
            ),
            bulkhead=given.bulkhead_options(enable_bulkhead, bulkhead_config),
            idempotency=idempotency,
            guards=given.as_tuple("guards", guards),
            middleware=given.as_tuple("middleware", middleware),
            policies=policies or {},
        )
        store = given.opened(state)
        super().__init__(registry, given.shared(options, store, on_state_error))
        self._own_store = store if isinstance(state, str) else None
        check_strategy(strategy)
        self._strategy = strategy
        self._clock = clock or get_clock()
        self._tracer = Tracer(trace, show_arguments=show_arguments)
        self._core: Core | None = None
        self._chosen: tuple[Any, ...] | None = None
        if parser_plugins is not None:
            chosen = given.as_tuple("parser_plugins", parser_plugins)
            self._chosen = resolve_parsers(chosen)
        self.parsers: tuple[Any, ...] = self._chosen or DEFAULT_PARSERS

    # --- running --------------------------------------------------------------------
    async def process(
        self,
        data: object,
        timeout: float | None = None,
        use_cache: bool = True,  # noqa: FBT001, FBT002 - the document's own order
        request_id: str | None = None,
        context: ExecutionContext | None = None,
        return_order: ReturnOrder | str | None = None,
    ) -> list[ToolResult]:
        """Find the calls in `data` and run them.

        Args:
            data: Text, a dict, a list, calls, or a provider's response.
            timeout: Seconds for each call as a whole: waiting, attempts and pauses.
                None = no such limit; the limit of each attempt stands anyway.
            use_cache: Whether results may come from the cache and be kept in it.
            request_id: The id of the request, for the context that tools see.
            context: The whole context; its deadline bounds everything.
            return_order: `"completion"` (the default) or `"submission"`.

        Returns:
            One result for each call, also for calls that could not be read. Match them
            by `call_id`.

        Raises:
            ValueError: When `return_order` or `timeout` is unknown.
        """
        parsed = self._parse(data)
        options = RunOptions(
            timeout=seconds(timeout),
            use_cache=use_cache,
            context=context_of(context, request_id),
            order=ReturnOrder(return_order or ReturnOrder.COMPLETION),
        )
        return await run_calls(self._ready().paths, parsed.entries, options)

    async def process_text(
        self,
        text: str,
        timeout: float | None = None,
        use_cache: bool = True,  # noqa: FBT001, FBT002 - the document's own order
        request_id: str | None = None,
    ) -> list[ToolResult]:
        """`process` for a text."""
        return await self.process(text, timeout, use_cache, request_id)

    async def execute(
        self,
        calls: Sequence[ToolCall],
        timeout: float | None = None,
        use_cache: bool = True,  # noqa: FBT001, FBT002 - the document's own order
        *,
        context: ExecutionContext | None = None,
        return_order: ReturnOrder | str = ReturnOrder.COMPLETION,
        overrides: Mapping[str, Override] | None = None,
    ) -> list[ToolResult]:
        """Run calls as they are; for the arguments see `process`.

        Args:
            calls: The calls.
            timeout: Seconds for each call as a whole.
            use_cache: Whether results may come from the cache and be kept in it.
            context: The request's context.
            return_order: `"completion"` or `"submission"`.
            overrides: What is different for single calls, by call id.
        """
        options = RunOptions(
            timeout=seconds(timeout),
            use_cache=use_cache,
            context=context,
            order=_order(return_order),
            overrides=overrides,
        )
        return await run_calls(self._ready().paths, calls, options)

    async def astream(
        self,
        data: object,
        timeout: float | None = None,
        use_cache: bool = True,  # noqa: FBT001, FBT002 - the document's own order
        request_id: str | None = None,
        context: ExecutionContext | None = None,
    ) -> AsyncGenerator[ToolResult]:
        """Like `process`, and results come as they are there.

        Items of streaming tools come one by one before, as results with `is_partial`.
        Tools go on only as fast as results are taken. Leaving the loop, closing the
        generator, or a timeout around it cancels what still runs.
        """
        parsed = self._parse(data)
        options = RunOptions(
            timeout=seconds(timeout),
            use_cache=use_cache,
            context=context_of(context, request_id),
        )
        stream = stream_calls(self._ready().paths, parsed.entries, options)
        try:
            async for result in stream:
                yield result
        finally:
            await stream.aclose()

    async def process_batch(
        self,
        calls: Iterable[Any] | AsyncIterable[Any],
        *,
        max_in_flight: int = 64,
        timeout: float | None = None,
        use_cache: bool = True,
        context: ExecutionContext | None = None,
        on_progress: Callable[[BatchProgress], Awaitable[None] | None] | None = None,
    ) -> AsyncGenerator[ToolResult]:
        """Run any number of calls from a source, in bounded memory.

        The source is read only as fast as calls end and results are taken.

        Args:
            calls: `ToolCall`s, dicts, or anything else that `process` reads as one or
                more calls; an async source is fine.
            max_in_flight: Calls at once, at least 1.
            timeout: Seconds for each call, from when it is taken from the source.
            use_cache: Whether results may come from the cache and be kept in it.
            context: The request's context.
            on_progress: Called after each result.
        """
        options = RunOptions(
            timeout=seconds(timeout),
            use_cache=use_cache,
            context=context,
            from_start=True,
        )
        core = self._ready()
        check_int("max_in_flight", max_in_flight, 1)
        source: Any = read_calls(calls, self._parse)
        stream = stream_calls(core.paths, source, options, max_in_flight)
        counter = counted(stream, on_progress, self._clock)
        try:
            async for result in counter:
                yield result
        finally:
            await counter.aclose()
            await stream.aclose()
            await close_source(source)

    async def dry_run(
        self, data: object, context: ExecutionContext | None = None
    ) -> list[DryRun]:
        """What would happen to the calls in `data`; nothing is run or counted."""
        parsed = self._parse(data)
        return await dry_run(self._ready(), parsed, context)

    # --- life -----------------------------------------------------------------------
    async def initialize(self) -> None:
        """Get ready; every other method does it by itself."""
        self._ready()

    async def close(self) -> None:
        """Stop what runs and empty the cache; a later call begins anew.

        Only what is the processor's own: a strategy that was given stays open, and a
        store that was given (`cache`, `state`) keeps what it has; the connection to an
        address (`state="redis://..."`) ends. Idempotent.
        """
        core, self._core = self._core, None
        if core is None:
            return
        cache = self.options.cache
        try:
            if core.cache is not None and cache is not None and cache.backend is None:
                await core.cache.backend.clear()
        finally:
            try:
                if self._strategy is None:
                    await core.strategy.shutdown()
            finally:
                if self._own_store is not None:
                    await core.flush()
                    await self._own_store.close()

    async def __aenter__(self) -> Self:
        await self.initialize()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def _parse(self, data: object) -> ParsedCalls:
        names = self.registry.call_names
        return parse_calls(data, parsers=self._chosen, tools=names)

    def _ready(self) -> Core:
        core = self._core
        if core is None:
            strategy = self._strategy
            if strategy is None:
                from executionkit.tools.strategies.inprocess import InProcessStrategy

                strategy = InProcessStrategy(
                    self.registry,
                    max_concurrency=self.options.max_concurrency,
                    clock=self._clock,
                )
            core = self._core = Core(
                self.registry, strategy, self.options, self._tracer, self._clock
            )
        return core


def _order(asked: ReturnOrder | str) -> ReturnOrder:
    return asked if type(asked) is ReturnOrder else ReturnOrder(asked)
