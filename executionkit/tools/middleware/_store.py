"""A shared store that may fail or hang: how much of that a call sees."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Literal

from executionkit._redact import redact_exception_text
from executionkit.backends import MISS, CacheBackend, CacheEntry, InMemoryCache
from executionkit.errors import StateStoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from executionkit._clock import Clock
    from executionkit.tools.middleware._base import ToolRequest

__all__ = (
    "ON_ERROR",
    "OnError",
    "SafeStore",
    "Watch",
    "Watches",
    "check_no_address",
    "check_on_error",
)

OnError = Literal["local", "open", "closed"]
ON_ERROR: Final = ("local", "open", "closed")

_log = logging.getLogger("executionkit")


def check_on_error(mode: object) -> None:
    """Refuse what is no rule for failures.

    Raises:
        ValueError: When it is none.
    """
    if mode not in ON_ERROR:
        msg = f"`on_error` must be one of {', '.join(ON_ERROR)}, got {mode!r}"
        raise ValueError(msg)


def check_no_address(backend: object, part: str) -> None:
    """Refuse an address where a store is wanted; it may hold a password: not shown.

    Raises:
        TypeError: When it is one.
    """
    if isinstance(backend, str):
        msg = (
            "`backend` must be a store, got a str; for an address write "
            f"`open_backend(url).{part}()`, or give `state=url` to the processor"
        )
        raise TypeError(msg)


class Watch:
    """Whether one server of shared state answers: logged once per outage, and counted."""

    __slots__ = ("is_down", "outages", "reason")

    def __init__(self) -> None:
        self.is_down: bool = False
        self.outages: int = 0
        self.reason: str = ""
        """Why it failed last, without secrets."""

    def failed(self, exc: Exception, mode: OnError) -> None:
        """It did not answer, or refused."""
        text = redact_exception_text(exc)
        if not isinstance(exc, StateStoreError) and text != type(exc).__name__:
            text = f"{type(exc).__name__}: {text}"
        self.reason = text
        if not self.is_down:
            self.is_down = True
            self.outages += 1
            _log.warning("%s", self.told(mode))

    def answered(self) -> None:
        """It works again."""
        if self.is_down:
            self.is_down = False
            _log.info("the shared store of state answers again, after: %s", self.reason)

    def told(self, mode: OnError) -> str:
        """What a warning says."""
        return (
            f"a shared store of state failed ({self.reason}); going on as set: {mode}"
        )

    def refusal(self, exc: Exception | None) -> StateStoreError:
        """Why a call fails that must not run without the store."""
        why = f" ({self.reason})" if self.reason else ""
        msg = f"a shared store of state failed{why}, and nothing runs without it"
        return StateStoreError(msg, original_error=exc)


class Watches:
    """One `Watch` per server, whatever is kept there."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[int, tuple[object, Watch]] = {}

    def of(self, store: object) -> Watch:
        """That of the server where `store` is."""
        server: object = getattr(store, "wire", store)
        return self._found.setdefault(id(server), (server, Watch()))[1]

    @property
    def outages(self) -> int:
        """How often a server stopped answering."""
        return sum(watch.outages for _, watch in self._found.values())

    @property
    def reason(self) -> str | None:
        """Why a server does not answer now; None when all do."""
        down = [watch.reason for _, watch in self._found.values() if watch.is_down]
        return "; ".join(down) or None


class SafeStore:
    """A store behind a time limit and a rule for its failures.

    - `"local"`: a cache of this process stands in; it is kept warm all the time.
    - `"open"`: as if the store were empty.
    - `"closed"`: the call fails with `StateStoreError`.

    After a failure the store is left alone for `pause` seconds, then asked again. The
    first call that sees an outage gets a warning, the others do not.
    """

    __slots__ = ("_clock", "_down", "_local", "_mode", "_pause", "_quiet_until", "_store", "_timeout", "_watch")  # fmt: skip

    def __init__(
        self,
        store: CacheBackend,
        on_error: OnError,
        clock: Clock,
        *,
        timeout: float = 1.0,
        pause: float = 1.0,
        watch: Watch | None = None,
    ) -> None:
        self._watch = watch or Watch()
        self._store = store
        self._mode: OnError = on_error
        self._clock = clock
        self._timeout = timeout
        self._pause = pause
        self._local = InMemoryCache(clock=clock) if on_error == "local" else None
        self._down = False
        self._quiet_until = float("-inf")

    @property
    def is_down(self) -> bool:
        """Whether the last thing it was asked failed."""
        return self._down

    async def get(
        self, key: str, request: ToolRequest | None = None
    ) -> CacheEntry | None:
        """The entry of `key`; None when there is none, or nobody can tell."""
        found = await self._ask(lambda: self._store.get(key), request)
        if found is None and self._local is not None:
            found = self._local.get_now(key)
        return found if isinstance(found, CacheEntry) else None

    async def set(
        self, key: str, value: Any, ttl: float | None, request: ToolRequest | None
    ) -> bool:
        """Keep `value`; False when nobody could."""
        kept = False
        if self._local is not None:
            kept = self._local.set_now(key, value, ttl)
        # An outage must not undo a call that has already succeeded: never "closed".
        stored = await self._ask(
            lambda: self._store.set(key, value, ttl), request, may_refuse=False
        )
        return kept if stored is None else stored

    async def reserve(
        self, key: str, value: Any, ttl: float | None, request: ToolRequest
    ) -> CacheEntry | None:
        """Keep `value` unless there is an entry; that entry, or None when kept."""
        found = await self._ask(lambda: self._store.reserve(key, value, ttl), request)
        if isinstance(found, CacheEntry) or self._local is None:
            return found if isinstance(found, CacheEntry) else None
        known = self._local.reserve_now(key, value, ttl)
        if not isinstance(known, CacheEntry):
            return None
        if found is MISS:
            # Done here during an outage: the store learns of it now.
            await self.set(key, known.value, ttl, request)
        return known

    async def delete(self, key: str, request: ToolRequest) -> None:
        """Remove an entry, where that is possible."""
        if self._local is not None:
            self._local.delete_now(key)
        await self._ask(lambda: self._store.delete(key), request, may_refuse=False)

    async def invalidate(self, tool: str, arguments: str | None) -> int:
        """Remove entries of a tool; how many there were.

        Raises:
            StateStoreError: When the store failed: its entries are still there.
        """
        here = 0
        if self._local is not None:
            here = await self._local.invalidate(tool, arguments)
        try:
            async with self._clock.timeout(self._timeout):
                return max(here, await self._store.invalidate(tool, arguments))
        except asyncio.CancelledError:
            raise
        except Exception as exc:
            msg = f"the entries of '{tool}' could not be removed from the shared store"
            raise StateStoreError(msg, original_error=exc) from exc

    async def _ask(
        self,
        ask: Callable[[], Awaitable[Any]],
        request: ToolRequest | None,
        *,
        may_refuse: bool = True,
    ) -> Any:
        """What the store says; None when it does not answer."""
        now = self._clock.monotonic()
        if now < self._quiet_until:
            return self._failed(None, request, may_refuse=may_refuse)
        limit = self._timeout
        if request is not None and request.deadline is not None and may_refuse:
            limit = min(limit, request.deadline - now)
        try:
            async with self._clock.timeout(limit):
                answer = await ask()
        except Exception as exc:  # noqa: BLE001 - a driver may raise anything
            self._quiet_until = self._clock.monotonic() + self._pause
            return self._failed(exc, request, may_refuse=may_refuse)
        if self._down:
            self._down = False
            self._watch.answered()
        return answer

    def _failed(
        self, exc: Exception | None, request: ToolRequest | None, *, may_refuse: bool
    ) -> None:
        first, self._down = not self._down, True
        if exc is not None:
            self._watch.failed(exc, self._mode)
        if first and request is not None:
            request.warn(self._watch.told(self._mode))
        if self._mode == "closed" and may_refuse:
            raise self._watch.refusal(exc) from exc
