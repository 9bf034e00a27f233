"""Idempotency keys: two calls with one key are one effect."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from executionkit._frozen import sealed
from executionkit._keys import fingerprint, scope_of
from executionkit.backends import (
    CacheBackend,
    CacheEntry,
    InMemoryCache,
    SyncCacheBackend,
    is_sync_cache,
)
from executionkit.backends.memory import check_ttl, own
from executionkit.context import get_current_context
from executionkit.errors import ToolIdempotencyError, ToolTimeoutError
from executionkit.tools.middleware._flights import LEAD, Flights, is_leaders_own
from executionkit.tools.middleware._store import (
    ON_ERROR,
    OnError,
    SafeStore,
    Watches,
    check_no_address,
)

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.tools.middleware._base import Next, ToolRequest

__all__ = ("IdempotencyOptions", "Once")

_MAX_KEYS: Final = 100_000
_FIRST_POLL: Final = 0.05
_LONGEST_POLL: Final = 1.0


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyOptions:
    """How long the outcome of a call with an idempotency key answers for the key.

    Raises:
        TypeError: When `backend` lacks methods of a `CacheBackend`.
        ValueError: For a time that is not above 0, or an unknown `on_error`.
    """

    ttl: float | None = 86_400.0
    """Seconds that a success is kept. None = no end."""

    lease: float | None = 3_600.0
    """Seconds that a started call blocks its key when its process dies: longer than
    any call runs, or the call may run twice. None = no end."""

    backend: CacheBackend | None = None
    """None = in this process, the last 100 000 keys. A shared one holds for all
    processes."""

    on_error: OnError = "closed"
    """When `backend` fails: `"closed"` = the call fails and nothing is run, `"local"` =
    the key holds for this process alone, `"open"` = the key holds for nobody."""

    def __post_init__(self) -> None:
        check_ttl("ttl", self.ttl)
        check_ttl("lease", self.lease)
        check_backend(self.backend, self.on_error)


_METHODS: Final = ("get", "set", "reserve", "delete", "invalidate", "clear", "stats")


def check_backend(backend: object, on_error: object) -> None:
    """Refuse what cannot be a backend, or a rule for one.

    Raises:
        TypeError: When a method is missing.
        ValueError: When `on_error` is unknown.
    """
    # By what can be called: the check of a protocol does not see what a proxy passes on.
    check_no_address(backend, "cache")
    missing = [n for n in _METHODS if not callable(getattr(backend, n, None))]
    if backend is not None and (missing or isinstance(backend, type)):
        msg = (
            f"`backend` must have the methods of a `CacheBackend` ({', '.join(_METHODS)}"
            f"), got {type(backend).__name__}"
        )
        raise TypeError(msg)
    if on_error not in ON_ERROR:
        msg = f"`on_error` must be one of {', '.join(ON_ERROR)}, got {on_error!r}"
        raise ValueError(msg)


class _Slot(NamedTuple):
    """One key: where it is kept, and the call that it belongs to."""

    key: str
    mark: str


class Once:
    """Runs a call with an idempotency key at most once.

    - Equal calls while it runs wait for it (this process) or ask again and again
      (another process), within their deadline.
    - A success is kept and answers later calls.
    - The same key with another tool or other arguments is refused.
    - A failure frees the key: the same call may be tried again. Not so when a call was
      cancelled or timed out after it had started, and the tool is neither idempotent
      nor read-only: the effect is in doubt, and the key stays blocked.

    Keys of different tenants and users are different keys.
    """

    __slots__ = ("_clock", "_flights", "_options", "_shared", "_store")

    def __init__(
        self,
        options: IdempotencyOptions,
        clock: Clock,
        watches: Watches | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._flights = Flights(clock)
        backend = options.backend
        if backend is None:
            backend = InMemoryCache(_MAX_KEYS, None, clock=clock)
        self._store: SyncCacheBackend | None = None
        self._shared: SafeStore | None = None
        if is_sync_cache(backend):
            self._store = backend
        else:
            watch = None if watches is None else watches.of(backend)
            self._shared = SafeStore(backend, options.on_error, clock, watch=watch)

    async def run(self, request: ToolRequest, nxt: Next) -> Any:
        """The value of the one call that the key stands for.

        Raises:
            ToolIdempotencyError: When the key forbids to run it.
        """
        slot = self._slot(request)
        flight = self._flights.join(slot.key, slot.mark)
        if flight is not None:
            if flight.mark != slot.mark:
                raise _conflict(request)
            value = await self._flights.wait(flight, request)
            if value is not LEAD:
                request.cached = True
                return value
        request.leads = slot.key
        try:
            value = await self._lead(slot, request, nxt)
        except BaseException as exc:
            request.leads = None
            if is_leaders_own(exc, request, self._clock):
                self._flights.hand_on(slot.key)
            else:
                self._flights.crash(slot.key, exc)
            raise
        request.leads = None
        self._flights.land(slot.key, own(value))
        return value

    def _slot(self, request: ToolRequest) -> _Slot:
        call = request.call
        mark = fingerprint(request.record.full_name, call.arguments)
        if mark is None:
            why = "cannot be honoured: an argument has no canonical form to compare"
            raise _refusal(request, "not_comparable", why)
        scope = scope_of(get_current_context())
        name = json.dumps(call.idempotency_key, ensure_ascii=False)
        return _Slot(f"#idempotency\n{scope}\n\n{name}", mark)

    async def _lead(self, slot: _Slot, request: ToolRequest, nxt: Next) -> Any:
        known = await self._reserve(slot, request)
        if known is not None:
            request.cached = True
            return known["value"]
        try:
            value = await nxt(request)
        except BaseException as exc:
            if _is_in_doubt(exc, request):
                await self._put(slot, request, "in_doubt")
            else:
                await self._free(slot, request)
            raise
        await self._put(slot, request, "done", value)
        return value

    async def _reserve(self, slot: _Slot, request: ToolRequest) -> Any:
        """None when the key is ours now; else the record of the finished call."""
        record = {"state": "running", "mark": slot.mark}
        lease = self._options.lease
        pause = _FIRST_POLL
        while True:
            found: Any = None
            if self._store is not None:
                found = self._store.reserve_now(slot.key, record, lease)
            elif self._shared is not None:
                found = await self._shared.reserve(slot.key, record, lease, request)
            if not isinstance(found, CacheEntry):
                return None
            known = found.value
            if known["mark"] != slot.mark:
                raise _conflict(request)
            if known["state"] != "running":
                return _finished(known, request)
            pause = self._next_pause(pause, request)
            await self._clock.sleep(pause)

    def _next_pause(self, pause: float, request: ToolRequest) -> float:
        if request.deadline is not None:
            left = request.deadline - self._clock.monotonic()
            if left <= pause:
                why = "belongs to a call that is still running elsewhere"
                raise _refusal(request, "in_progress", why)
        return min(pause * 2, _LONGEST_POLL)

    async def _put(
        self, slot: _Slot, request: ToolRequest, state: str, value: Any = None
    ) -> None:
        record = {"state": state, "mark": slot.mark, "value": value}
        if not await self._set(slot.key, record, request):
            record = {"state": "not_kept", "mark": slot.mark, "value": None}
            await self._set(slot.key, record, request)

    async def _set(self, key: str, record: Any, request: ToolRequest) -> bool:
        ttl = self._options.ttl
        if self._store is not None:
            return self._store.set_now(key, record, ttl)
        return self._shared is not None and await self._shared.set(
            key, record, ttl, request
        )

    async def _free(self, slot: _Slot, request: ToolRequest) -> None:
        if self._store is not None:
            self._store.delete_now(slot.key)
        elif self._shared is not None:
            await self._shared.delete(slot.key, request)


def _finished(known: Any, request: ToolRequest) -> Any:
    if known["state"] == "in_doubt":
        why = (
            "belongs to a call that was broken off after it had started; look whether "
            "it took effect, then use a new key"
        )
        raise _refusal(request, "in_doubt", why)
    if known["state"] == "not_kept":
        why = "belongs to a call that succeeded, whose value could not be kept"
        raise _refusal(request, "not_kept", why)
    return known


def _is_in_doubt(exc: BaseException, request: ToolRequest) -> bool:
    if request.record.tool.is_repeatable or not request.started:
        return False
    return isinstance(exc, ToolTimeoutError) or not isinstance(exc, Exception)


def _conflict(request: ToolRequest) -> ToolIdempotencyError:
    why = "was used for another tool or other arguments; use a new key for a new call"
    return _refusal(request, "conflict", why)


def _refusal(request: ToolRequest, reason: str, why: str) -> ToolIdempotencyError:
    key = request.call.idempotency_key or ""
    return ToolIdempotencyError(request.record.full_name, key, reason, why)
