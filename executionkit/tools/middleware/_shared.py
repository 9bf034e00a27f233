"""Layers over stores of limits and circuits that many processes share.

Asking takes a round trip, so these layers always wait; where both are there, limits and
circuit are asked in the same moment, and one round trip is enough. What is reported afterwards goes
out beside the call, which does not wait for it. A store that fails is treated as set:

- `"local"`: limits and circuits of this process stand in; they are kept warm.
- `"open"`: as if there were no limit.
- `"closed"`: the call fails with `StateStoreError`.

After a failure the store is left alone for a second, then asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from executionkit.backends import MemoryBreakers
from executionkit.engine.rate_bucket import PermitTimeoutError
from executionkit.errors import ToolCircuitOpenError, ToolRateLimitedError
from executionkit.tools.middleware._base import Layer
from executionkit.tools.middleware._store import Watch

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.backends import (
        BreakerBackend,
        BreakerLease,
        LimiterBackend,
        LimitPermit,
        LimitRule,
        MemoryLimiter,
        Outcome,
    )
    from executionkit.engine.breaker import BreakerConfig
    from executionkit.tools.middleware._base import ToolRequest
    from executionkit.tools.middleware._store import OnError

__all__ = ("Outage", "Reports", "SharedBreakerLayer", "SharedRateLayer")

_TIMEOUT: Final = 1.0
_PAUSE: Final = 1.0
_LIMIT: Final = "limit permit"
_CIRCUIT: Final = "circuit lease"
_BEGUN: Final = "begun permit"


class Reports:
    """What is being told to stores beside the calls."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, report: Coroutine[Any, Any, None]) -> None:
        """Tell it now, without waiting."""
        task = asyncio.get_running_loop().create_task(report)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Wait until everything has been told."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))


class Outage:
    """Whether a store answers, and what happens when it does not.

    Args:
        mode: What to do meanwhile.
        clock: Measures the pause.
        watch: Tells of it, together with all else that is kept on that server.
    """

    __slots__ = ("_clock", "_is_down", "_quiet_until", "_watch", "mode")

    def __init__(self, mode: OnError, clock: Clock, watch: Watch | None = None) -> None:
        self.mode: OnError = mode
        self._watch = watch or Watch()
        self._clock = clock
        self._is_down = False
        self._quiet_until = float("-inf")

    @property
    def is_on(self) -> bool:
        """Whether the store is left alone for now."""
        return self._clock.monotonic() < self._quiet_until

    def answered(self) -> None:
        """The store works."""
        if self._is_down:
            self._is_down = False
            self._watch.answered()

    def failed(self, exc: Exception, request: ToolRequest) -> None:
        """The store failed: warn once, and leave it alone for a while.

        Raises:
            StateStoreError: When nothing may run without it.
        """
        self._quiet_until = self._clock.monotonic() + _PAUSE
        self._watch.failed(exc, self.mode)
        if not self._is_down:
            self._is_down = True
            request.warn(self._watch.told(self.mode))
        self.refuse(exc)

    def refuse(self, exc: Exception | None = None) -> None:
        """Refuse the call, where that is what the mode says.

        Raises:
            StateStoreError: When nothing may run without the store.
        """
        if self.mode == "closed":
            raise self._watch.refusal(exc)


def _keep(request: ToolRequest, name: str, value: Any) -> None:
    if request.state is None:
        request.state = {}
    request.state[name] = value


def _take(request: ToolRequest, name: str) -> Any:
    return None if request.state is None else request.state.pop(name, None)


class SharedRateLayer(Layer):
    """Takes a permit of limits that a store keeps.

    Args:
        store: Where they are kept.
        rules: The limits of the tool.
        outage: What happens when the store does not answer.
        reports: Takes the refunds.
        clock: For deadlines.
        local: The limits of this process, of all tools; they stand in for the store.
    """

    __slots__ = ("_clock", "_local", "_outage", "_reports", "_rules", "_store")

    name = "rate_limit"

    def __init__(
        self,
        store: LimiterBackend,
        rules: tuple[LimitRule, ...],
        outage: Outage,
        reports: Reports,
        clock: Clock,
        local: MemoryLimiter | None,
    ) -> None:
        self._store = store
        self._rules = rules
        self._outage = outage
        self._reports = reports
        self._clock = clock
        self._local = local

    def enter(self, request: ToolRequest, /) -> Awaitable[None]:
        return self._acquire(request)

    def begin(self, request: ToolRequest) -> None:
        """Ask already now for what `enter` will wait for."""
        if not self._outage.is_on:
            asked = self._store.acquire(self._rules, timeout=self._left(request))
            task = asyncio.ensure_future(asked)
            task.add_done_callback(_heard)
            _keep(request, _BEGUN, task)

    def call_off(self, request: ToolRequest) -> None:
        """Take back what was begun and not waited for."""
        task: asyncio.Future[LimitPermit] | None = _take(request, _BEGUN)
        if task is None or task.cancel() or task.cancelled() or task.exception():
            return
        self._reports.send(_quietly(self._store.refund(task.result())))

    def leave(self, request: ToolRequest, exc: BaseException | None, /) -> None:
        permit: LimitPermit | None = _take(request, _LIMIT)
        if permit is not None and exc is not None and not request.started:
            self._reports.send(_quietly(self._store.refund(permit)))

    def _left(self, request: ToolRequest) -> float | None:
        if request.deadline is None:
            return None
        return max(0.0, request.deadline - self._clock.monotonic())

    async def _acquire(self, request: ToolRequest) -> None:
        began = self._clock.monotonic()
        timeout = self._left(request)
        begun = _take(request, _BEGUN)
        try:
            if self._outage.is_on and begun is None:
                self._outage.refuse()
            else:
                asked = begun or self._store.acquire(self._rules, timeout=timeout)
                try:
                    permit = await asked
                except (PermitTimeoutError, ValueError):
                    raise
                except Exception as exc:  # noqa: BLE001 - a driver may raise anything
                    self._outage.failed(exc, request)
                else:
                    self._outage.answered()
                    _keep(request, _LIMIT, permit)
                    await self._warm()
                    return
            if self._local is not None:
                await self._local.acquire(self._rules, timeout=timeout)
        except PermitTimeoutError as exc:
            rule = self._rules[0]
            raise ToolRateLimitedError(
                request.full_name, exc.retry_after, rule.limit, rule.period
            ) from exc
        finally:
            request.waited("permit", self._clock.monotonic() - began)

    async def _warm(self) -> None:
        """Count the start in this process, too, where there is room for it."""
        if self._local is not None:
            try:
                await self._local.acquire(self._rules, timeout=0)
            except PermitTimeoutError:
                return


class SharedBreakerLayer(Layer):
    """Asks a circuit that a store keeps.

    Args:
        store: Where it is kept.
        key: The circuit's name.
        config: When it opens and closes.
        outage: What happens when the store does not answer.
        reports: Takes the reports.
        clock: For the stand-in.
    """

    __slots__ = ("_config", "_is_open", "_key", "_limits", "_local", "_outage", "_reports", "_store")  # fmt: skip

    name = "breaker"

    def __init__(
        self,
        store: BreakerBackend,
        key: str,
        config: BreakerConfig,
        outage: Outage,
        reports: Reports,
        clock: Clock,
    ) -> None:
        self._store = store
        self._key = key
        self._config = config
        self._outage = outage
        self._reports = reports
        self._local = MemoryBreakers(clock) if outage.mode == "local" else None
        self._limits: SharedRateLayer | None = None
        self._is_open = False

    def lead(self, limits: SharedRateLayer) -> None:
        """Have `limits`, the next layer, ask together with this one."""
        self._limits = limits

    def enter(self, request: ToolRequest, /) -> Awaitable[None]:
        return self._admit(request)

    def leave(self, request: ToolRequest, exc: BaseException | None, /) -> None:
        if self._limits is not None:
            self._limits.call_off(request)
        leases: tuple[BreakerLease | None, BreakerLease | None] | None
        leases = _take(request, _CIRCUIT)
        if leases is None:
            return
        outcome = self._outcome(request, exc)
        shared, local = leases
        self._reports.send(self._report(shared, local, outcome))

    async def _report(
        self,
        shared: BreakerLease | None,
        local: BreakerLease | None,
        outcome: Outcome,
    ) -> None:
        if local is not None and self._local is not None:
            await self._local.report(local, outcome)
        if shared is not None:
            await _quietly(self._store.report(shared, outcome))

    async def _admit(self, request: ToolRequest) -> None:
        # An open circuit will most likely refuse: then there is nothing to ask for.
        if self._limits is None or self._is_open:
            await self._ask(request)
            return
        self._limits.begin(request)
        try:
            await self._ask(request)
        except BaseException:
            self._limits.call_off(request)
            raise

    async def _ask(self, request: ToolRequest) -> None:
        shared: BreakerLease | None = None
        if self._outage.is_on:
            self._outage.refuse()
        else:
            try:
                shared = await self._store.before(self._key, self._config)
            except ToolCircuitOpenError:
                self._is_open = True
                raise
            except Exception as exc:  # noqa: BLE001 - a driver may raise anything
                self._outage.failed(exc, request)
            else:
                self._is_open = False
                self._outage.answered()
        local = None
        if self._local is not None:
            try:
                local = await self._local.before(self._key, self._config)
            except ToolCircuitOpenError:
                if shared is None:
                    raise
        _keep(request, _CIRCUIT, (shared, local))

    def _outcome(self, request: ToolRequest, exc: BaseException | None) -> Outcome:
        if exc is None:
            return "success"
        if not request.started or not isinstance(exc, Exception):
            return "abandoned"
        try:
            failed = self._config.is_failure(exc)
        except Exception:  # noqa: BLE001 - a user's function must not hide `exc`
            failed = True
        return "failure" if failed else "abandoned"


def _heard(task: asyncio.Future[Any]) -> None:
    """Whoever wanted to know may be gone."""
    if not task.cancelled():
        task.exception()


async def _quietly(report: Awaitable[None]) -> None:
    """A report that is lost changes no call: windows and leases end by themselves."""
    try:
        await report
    except Exception:  # noqa: BLE001 - see above
        return
