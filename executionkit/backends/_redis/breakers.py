"""Circuits of many processes; the decisions are those of `engine.breaker`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from executionkit._clock import get_clock
from executionkit.backends._limits import BreakerLease, Outcome
from executionkit.backends._redis.asker import Asker
from executionkit.backends._redis.keys import Ids, short
from executionkit.backends._redis.line import micros
from executionkit.backends._redis.resp import Question, Reply
from executionkit.backends._redis.wire import checked
from executionkit.engine.breaker import BreakerSnapshot, CircuitState

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.backends._redis.link import Then
    from executionkit.backends._redis.scripts import Scripts
    from executionkit.backends._redis.wire import Wire
    from executionkit.engine.breaker import BreakerConfig

__all__ = ("RedisBreakers",)

_LEAST_LEASE: Final = 60.0
_LIFE: Final = 3600.0  # seconds that a quiet circuit is remembered beyond its times
_MOST_LIFE: Final = 1e9
_MAX_ASKERS: Final = 1024


class RedisBreakers:
    """Circuits that many processes share; see `BreakerBackend`.

    A healthy circuit takes no room on the server. The place of a probe is a lease: when
    its process dies it comes back after `probe_lease` seconds, by default
    `reset_timeout`, or 60 if that is more.

    Args:
        wire: Reaches the server.
        scripts: What runs there.
        head: What the keys begin with.
        clock: Measures slow calls. None = the clock of the current context.
    """

    def __init__(
        self, wire: Wire, scripts: Scripts, head: bytes, *, clock: Clock | None = None
    ) -> None:
        self.wire: Wire = wire
        self._scripts = scripts
        self._clock = clock or get_clock()
        self._head = head
        self._ids = Ids()
        self._askers: dict[tuple[int, str, int], Asker] = {}

    async def before(self, key: str, config: BreakerConfig) -> BreakerLease:
        """Admit a call.

        Raises:
            StateStoreError: When the server does not answer.
            ToolCircuitOpenError: When the circuit is open or all probes are out.
        """
        asker = self._asker(key, config)
        caller = asker.join(self._ids.new())
        try:
            epoch = await caller.future
        except asyncio.CancelledError:
            asker.leave(caller)
            raise
        started = None
        if config.timeout_threshold is not None:
            started = self._clock.monotonic()
        return BreakerLease(key, config, [(caller.token, epoch, started)])

    async def report(self, lease: BreakerLease, outcome: Outcome) -> None:
        """Say how an admitted call ended.

        Raises:
            StateStoreError: When the server does not answer.
        """
        told = self._tell(lease, outcome)
        if told is not None:
            checked(await told)

    async def snapshot(self, key: str, config: BreakerConfig) -> BreakerSnapshot:
        """What a circuit looks like; one that was never asked for is closed."""
        arguments = [*self._common(key, config), _window(config)]
        question = self._scripts.snapshot.question(
            self._keys(key), arguments, again=arguments
        )
        reply = checked(await self.wire.ask(question))
        state = CircuitState(_text(reply[0]))
        failures, successes, probes, ago = (int(number) for number in reply[1:])
        opened = None if ago < 0 else self._clock.monotonic() - ago / 1e6
        left = None
        if state is CircuitState.OPEN:
            left = max(0.0, config.reset_timeout - ago / 1e6)
        return BreakerSnapshot(state, failures, successes, probes, opened, left)

    async def states(self) -> Mapping[str, str]:
        """The state of every circuit that has something to remember, by key."""
        question = self._scripts.listed.question([self._index], [], again=[])
        names = [_raw(name) for name in checked(await self.wire.ask(question))]
        asked = [
            self.wire.ask(Question((b"HGET", self._head + name + b":state", b"state")))
            for name in names
        ]
        found = [checked(reply) for reply in await asyncio.gather(*asked)]
        return {
            _text(name): "closed" if state is None else _text(state)
            for name, state in zip(names, found, strict=True)
        }

    async def reset(self, key: str | None = None) -> None:
        """Close a circuit and forget its failures; None = all of this store."""
        names = [key] if key is not None else list(await self.states())
        for name in names:
            arguments = [b"%d" % int(_LIFE * 1000), short(name)]
            question = self._scripts.reset.question(
                self._keys(name), arguments, again=arguments
            )
            checked(await self.wire.ask(question))

    def ask(
        self, key: str, config: BreakerConfig, tokens: list[bytes], then: Then
    ) -> None:
        """Ask for the admission of some callers."""
        reset = config.reset_timeout
        arguments = [
            *self._common(key, config),
            b"%d" % micros(reset) if reset else b"0",
            b"%d" % config.half_open_max_calls,
            b"%d" % micros(_lease(config)),
            *tokens,
        ]
        question = self._scripts.before.question(
            self._keys(key), arguments, again=arguments
        )
        self.wire.tell(question, then)

    def give_back(
        self, key: str, config: BreakerConfig, token: bytes, epoch: int
    ) -> None:
        """The caller of an admitted call is gone: a probe's place comes back at once."""
        late = BreakerLease(key, config, [(token, epoch, None)])
        told = self._tell(late, "abandoned", is_minor=True)
        if told is not None:
            told.add_done_callback(_ignore)

    # --- inside ----------------------------------------------------------------------
    def _asker(self, key: str, config: BreakerConfig) -> Asker:
        loop = asyncio.get_running_loop()
        place = (id(loop), key, id(config))
        asker = self._askers.get(place)
        if asker is None or asker.loop is not loop or asker.config is not config:
            if len(self._askers) >= _MAX_ASKERS:
                self._askers.clear()  # those in use live on until they are answered
            asker = self._askers[place] = Asker(self, key, config, loop)
        return asker

    @property
    def _index(self) -> bytes:
        return self._head + b"index"

    def _keys(self, key: str) -> list[bytes]:
        stem = self._head + short(key)
        kinds = (b":state", b":failures", b":probes")
        return [*(stem + kind for kind in kinds), self._index]

    def _common(self, key: str, config: BreakerConfig) -> list[bytes]:
        longest = config.reset_timeout + (config.failure_window or 0) + _lease(config)
        life = min(longest, _MOST_LIFE) + _LIFE
        return [b"%d" % int(life * 1000), short(key)]

    def _tell(
        self, lease: BreakerLease, outcome: Outcome, *, is_minor: bool = False
    ) -> asyncio.Future[Reply] | None:
        if not lease.token:
            return None
        token, epoch, started = lease.token.pop()
        config = lease.config
        if outcome == "success" and self._was_slow(config, started):
            outcome = "failure"
        arguments = [
            *self._common(lease.key, config),
            token,
            b"%d" % epoch,
            outcome.encode(),
            b"%d" % config.failure_threshold,
            b"%d" % config.success_threshold,
            _window(config),
        ]
        question = self._scripts.report.question(
            self._keys(lease.key), arguments, again=arguments, is_minor=is_minor
        )
        return self.wire.ask(question)

    def _was_slow(self, config: BreakerConfig, started: float | None) -> bool:
        limit = config.timeout_threshold
        if limit is None or started is None:
            return False
        return self._clock.monotonic() - started > limit


def _ignore(told: asyncio.Future[Reply]) -> None:
    """A lost report changes no call: leases end by themselves."""
    if not told.cancelled():
        told.exception()


def _lease(config: BreakerConfig) -> float:
    if config.probe_lease is not None:
        return config.probe_lease
    return max(config.reset_timeout, _LEAST_LEASE)


def _window(config: BreakerConfig) -> bytes:
    if config.failure_window is None:
        return b"-1"
    return b"%d" % micros(config.failure_window)


def _raw(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value)
