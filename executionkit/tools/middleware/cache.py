"""The cache of results: an equal call is answered without running the tool.

What is cached: results of every tool but those that write or destroy, stream, or say
`cacheable=False`. Errors and partial results never are; None and empty results are.
Calls are equal when tool, version, arguments (by type, too) and the tenant and user of
the current context are. Equal calls that are in flight run once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from executionkit._clock import get_clock
from executionkit._error_base import ExecutionKitError
from executionkit._error_codes import ErrorCategory
from executionkit._keys import canonical, key_prefix, scope_of
from executionkit.backends import (
    CacheBackend,
    CacheEntry,
    InMemoryCache,
    SyncCacheBackend,
    is_sync_cache,
)
from executionkit.backends.memory import own
from executionkit.calls import ToolCall, ToolResult
from executionkit.context import get_current_context
from executionkit.errors import ToolProcessorError
from executionkit.tools.middleware._cache_options import (
    CacheOptions,
    cacheable,
    invalidate_cache,
    is_cacheable,
)
from executionkit.tools.middleware._flights import (
    LEAD,
    Flight,
    Flights,
    again,
    is_leaders_own,
)
from executionkit.tools.middleware._once import IdempotencyOptions, Once
from executionkit.tools.middleware._store import SafeStore, Watches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from executionkit._clock import Clock
    from executionkit.tools._record import ToolRecord
    from executionkit.tools.middleware._base import Next, ToolRequest

__all__ = (
    "LEAD",
    "CacheLayer",
    "CacheOptions",
    "Flight",
    "IdempotencyOptions",
    "cacheable",
    "invalidate_cache",
)

_MAX_RECORDS: Final = 4096
_MAX_FAILURES: Final = 1000
_RESULTS: Final = (ToolResult, dict)
_ATOMS: Final = frozenset({str, int, float, bool, type(None)})
_UNCOPYABLE: Final = "the result cannot be copied, so it is not cached"
_ONCE: Final = IdempotencyOptions()


class _Plan:
    """What is worked out once for a tool."""

    __slots__ = ("prefix", "ttl")

    def __init__(self, prefix: str | None, ttl: float | None) -> None:
        self.prefix: str | None = prefix  # None = not cached
        self.ttl: float | None = ttl


class CacheLayer:
    """The layer of the cache and of idempotency keys.

    `await layer(request, nxt)` does all of it. The parts are for a call path that wants
    to stay synchronous, and only for calls without idempotency key over a backend with
    `is_sync`: `key`; then `lookup`; on a miss `join`; a flight is to be waited for with
    `wait`; without one, or with `LEAD` from `wait`, run the tool and end with exactly
    one of `done` and `failed`.

    Belongs to one event loop at a time.

    Args:
        options: None = no cache; idempotency keys may still be honoured.
        idempotency: None = idempotency keys mean nothing.
        clock: None = the clock of the current context.
        watches: Tell of outages of the stores. None = each store by itself.
    """

    name = "cache"

    def __init__(
        self,
        options: CacheOptions | None,
        *,
        idempotency: IdempotencyOptions | None = _ONCE,
        clock: Clock | None = None,
        watches: Watches | None = None,
    ) -> None:
        self._clock = clock if clock is not None else get_clock()
        self._options = options
        given = options or CacheOptions()
        self._key_fn = given.cache_key_fn
        self._negative_ttl = given.negative_ttl
        backend = given.backend
        if backend is None:
            backend = InMemoryCache(clock=self._clock)
        self.backend: CacheBackend = backend
        """Where results are kept."""
        self._sync: SyncCacheBackend | None = None
        self._safe: SafeStore | None = None
        if is_sync_cache(backend):
            self._sync = backend
        else:
            watch = None if watches is None else watches.of(backend)
            self._safe = SafeStore(backend, given.on_error, self._clock, watch=watch)
        self._memory = backend if isinstance(backend, InMemoryCache) else None
        self._failures = InMemoryCache(_MAX_FAILURES, clock=self._clock)
        self._flights = Flights(self._clock)
        self._plans: dict[ToolRecord, _Plan] = {}
        self._once: Once | None = None
        if idempotency is not None:
            self._once = Once(idempotency, self._clock, watches)

    @property
    def is_sync(self) -> bool:
        """Whether `lookup` and `done` never have to wait."""
        return self._sync is not None

    def caches(self, record: ToolRecord) -> bool:
        """Whether results of this tool are cached."""
        return self._plan(record).prefix is not None

    def honours_key(self, request: ToolRequest) -> bool:
        """Whether the call has an idempotency key that counts: use `await layer(...)`."""
        return self._once is not None and request.call.idempotency_key is not None

    def _plan(self, record: ToolRecord) -> _Plan:
        plan = self._plans.get(record)
        if plan is None:
            if len(self._plans) >= _MAX_RECORDS:
                self._plans.clear()
            plan = self._plans[record] = self._make_plan(record)
        return plan

    def _make_plan(self, record: ToolRecord) -> _Plan:
        options = self._options
        if options is None or not is_cacheable(record):
            return _Plan(None, None)
        ttl = getattr(record.source, "_cache_ttl", None) or options.ttl
        for name in (record.name, record.full_name):
            if name in options.tool_ttls:
                ttl = options.tool_ttls[name]
        return _Plan(key_prefix(record.full_name, record.tool.version), ttl)

    # --- the parts --------------------------------------------------------------------
    def key(self, request: ToolRequest) -> str | None:
        """The key of the call's result; None = the call is not cached."""
        if not request.use_cache:
            return None
        plan = self._plans.get(request.record) or self._plan(request.record)
        prefix = plan.prefix
        if prefix is None:
            return None
        if self._key_fn is None:
            text = canonical(request.call.arguments)
        else:
            text = self._custom(request.call, request)
        if text is None:
            return None
        context = get_current_context()
        if context is None:
            return f"{prefix}\n{text}"
        return f"{prefix}{scope_of(context)}\n{text}"

    def _custom(self, call: ToolCall, request: ToolRequest | None) -> str | None:
        assert self._key_fn is not None  # noqa: S101 # nosec B101 - asked before
        try:
            counted = self._key_fn(call)
        except Exception as exc:  # noqa: BLE001 - a user's function may raise anything
            if request is not None:
                request.warn(
                    f"`cache_key_fn` raised {type(exc).__name__}; the call is not cached"
                )
            return None
        return None if counted is None else canonical(counted)

    def lookup(self, key: str) -> CacheEntry | None:
        """What is known of `key`, from a backend with `is_sync`; `entry.value` is it.

        Raises:
            Exception: The error that is kept for it, when errors are.
        """
        assert self._sync is not None  # noqa: S101 # nosec B101 - promised by the caller
        found = self._sync.get_now(key)
        if isinstance(found, CacheEntry):
            return found
        if self._negative_ttl is not None:
            self._raise_known(key)
        return None

    async def lookup_slow(
        self, key: str, request: ToolRequest | None = None
    ) -> CacheEntry | None:
        """As `lookup`, from any backend. Lead a flight first: equal calls ask once.

        Raises:
            StateStoreError: When the backend fails and `on_error` is `"closed"`.
        """
        if self._safe is None:
            return self.lookup(key)
        if self._negative_ttl is not None:
            self._raise_known(key)
        return await self._safe.get(key, request)

    def _raise_known(self, key: str) -> None:
        found = self._failures.get_now(key)
        if isinstance(found, CacheEntry):
            raise again(found.value.error)

    def join(self, key: str) -> Flight | None:
        """The equal call in flight, to be waited for; None = you lead now."""
        return self._flights.join(key)

    async def wait(self, flight: Flight, request: ToolRequest) -> Any:
        """What the leader's call gives; `LEAD` = the leader is gone, you lead now.

        A follower shares the leader's error, unless that was about the leader alone
        (it was cancelled, or its deadline left no time).

        Raises:
            DeadlineExceededError: When the deadline of `request` passes first.
            ToolReentrantError: When the leader waits for `request`.
            Exception: The leader's error.
        """
        return await self._flights.wait(flight, request)

    def done(
        self, key: str, request: ToolRequest, value: Any
    ) -> Awaitable[None] | None:
        """The leader's call gave `value`: keep it, and tell the followers."""
        request.leads = None
        entry = own(value)
        if self._sync is None:
            return self._done_slow(key, request, entry)
        flight = self._flights.get(key)
        if flight is None or not flight.stale:
            if entry is None:
                request.warn(_UNCOPYABLE)
            elif type(value) in _ATOMS or _is_kept(value):
                plan = self._plans.get(request.record) or self._plan(request.record)
                ttl = plan.ttl
                if self._memory is not None:
                    self._memory.put(key, entry, ttl)
                else:
                    self._sync.set_now(key, entry.value, ttl)
        if flight is None:
            self._flights.end_alone(key)
        else:
            self._flights.land(key, entry)
        return None

    async def _done_slow(
        self, key: str, request: ToolRequest, entry: CacheEntry | None
    ) -> None:
        # The flight stays until the store has it: nobody may miss it in between.
        try:
            flight = self._flights.get(key)
            stale = flight is not None and flight.stale
            if entry is None:
                request.warn(_UNCOPYABLE)
            elif self._safe is not None and _is_kept(entry.value) and not stale:
                ttl = self._plan(request.record).ttl
                await self._safe.set(key, entry.value, ttl, request)
        finally:
            self._flights.land(key, entry)

    def failed(self, key: str, request: ToolRequest, exc: BaseException) -> None:
        """The leader's call failed: its followers share the error, or one takes over."""
        request.leads = None
        if is_leaders_own(exc, request, self._clock):
            self._flights.hand_on(key)
            return
        if self._negative_ttl is not None and _is_of_the_tool(exc):
            entry = CacheEntry(_Failure(exc), 0.0)
            self._failures.put(key, entry, self._negative_ttl)
        self._flights.crash(key, exc)

    # --- the whole ---------------------------------------------------------------------
    async def __call__(self, request: ToolRequest, nxt: Next, /) -> Any:
        """The value of `request`, from the cache, from an equal call, or from `nxt`.

        Raises:
            ToolIdempotencyError: When the call's idempotency key forbids to run it.
        """
        if self._once is not None and request.call.idempotency_key is not None:
            return await self._once.run(request, nxt)
        key = self.key(request)
        if key is None:
            return await nxt(request)
        if self._sync is not None:
            found = self.lookup(key)
            if found is not None:
                request.cached = True
                return found.value
        flight = self._flights.join(key)
        if flight is not None:
            value = await self._flights.wait(flight, request)
            if value is not LEAD:
                request.cached = True
                return value
        return await self._lead(key, request, nxt)

    async def _lead(self, key: str, request: ToolRequest, nxt: Next) -> Any:
        request.leads = key
        try:
            if self._sync is None:
                found = await self.lookup_slow(key, request)
                if found is not None:
                    request.cached = True
                    request.leads = None
                    self._flights.land(key, found)
                    return found.value
            value = await nxt(request)
        except BaseException as exc:
            self.failed(key, request, exc)
            raise
        storing = self.done(key, request, value)
        if storing is not None:
            await storing
        return value

    async def invalidate(
        self, tool: str, arguments: Mapping[str, Any] | None = None
    ) -> int:
        """Forget the results of a tool, or of its calls with just these arguments.

        Calls in flight end as they would, and their results are not kept.

        Args:
            tool: The tool's full name.
            arguments: None = all. Compared as calls are, `cache_key_fn` included.

        Returns:
            How many results were forgotten.
        """
        text: str | None = None
        if arguments is not None:
            if self._key_fn is None:
                text = canonical(arguments)
            else:
                text = self._custom(ToolCall("", tool, arguments), None)
            if text is None:
                return 0  # such a call is never cached
        head = key_prefix(tool, "").partition("\n")[0] + "\n"
        self._flights.mark_stale(head, "" if text is None else f"\n{text}")
        await self._failures.invalidate(tool, text)
        if self._safe is not None:
            return await self._safe.invalidate(tool, text)
        return await self.backend.invalidate(tool, text)


class _Failure:
    """A kept error; not copied, as exceptions of others may not allow it."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException = error


def _is_kept(value: Any) -> bool:
    """Whether a value is a success: not an error or a part in the dress of a value."""
    if not isinstance(value, _RESULTS):
        return True
    if isinstance(value, ToolResult):
        return value.is_success and not value.is_partial
    return value.get("isError") is not True  # as MCP servers say it


def _is_of_the_tool(exc: BaseException) -> bool:
    """Whether the tool itself failed, and not a policy before it."""
    if isinstance(exc, ExecutionKitError):
        execution = exc.category is ErrorCategory.EXECUTION
        return execution and isinstance(exc, ToolProcessorError)
    return isinstance(exc, Exception)
