"""Who asks one circuit in one event loop: those who come meanwhile are asked for together."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from executionkit.backends._redis.wire import failure
from executionkit.errors import ToolCircuitOpenError

if TYPE_CHECKING:
    from executionkit.backends._redis.breakers import RedisBreakers
    from executionkit.backends._redis.resp import Reply
    from executionkit.engine.breaker import BreakerConfig

__all__ = ("Asker", "Caller")

_BATCH: Final = 256


class Caller:
    """One call that waits for its admission, which is the epoch of the circuit."""

    __slots__ = ("future", "token")

    def __init__(self, token: bytes, future: asyncio.Future[int]) -> None:
        self.token: bytes = token
        self.future: asyncio.Future[int] = future


class Asker:
    """Asks one circuit for one event loop, first come first served.

    Args:
        store: Puts the questions.
        key: The name of the circuit.
        config: When it opens and closes.
        loop: Of the callers.
    """

    __slots__ = ("_is_asking", "_key", "_store", "_waiting", "config", "loop")

    def __init__(
        self,
        store: RedisBreakers,
        key: str,
        config: BreakerConfig,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._store = store
        self._key = key
        self.config: BreakerConfig = config
        self.loop: asyncio.AbstractEventLoop = loop
        self._waiting: list[Caller] = []
        self._is_asking = False

    def join(self, token: bytes) -> Caller:
        """Ask for one more caller."""
        caller = Caller(token, self.loop.create_future())
        self._waiting.append(caller)
        if not self._is_asking:
            self._ask()
        return caller

    def leave(self, caller: Caller) -> None:
        """A caller was cancelled, perhaps in the very moment of its admission."""
        done = caller.future
        if done.cancelled() or done.exception() is not None:
            return
        self._store.give_back(self._key, self.config, caller.token, done.result())

    def _ask(self) -> None:
        callers = [each for each in self._waiting[:_BATCH] if not each.future.done()]
        del self._waiting[:_BATCH]
        if not callers:
            return
        self._is_asking = True
        tokens = [caller.token for caller in callers]
        self._store.ask(
            self._key, self.config, tokens, lambda reply: self._heard(callers, reply)
        )

    def _heard(self, callers: list[Caller], reply: Reply) -> None:
        self._is_asking = False
        if isinstance(reply, Exception):
            for caller in [*callers, *self._waiting]:
                if not caller.future.done():
                    caller.future.set_exception(failure(reply))
            self._waiting.clear()
            return
        epoch, failures, wait, admitted = map(int, reply)
        for number, caller in enumerate(callers):
            if number >= admitted:
                if not caller.future.done():
                    caller.future.set_exception(self._refusal(failures, wait))
            elif caller.future.done():
                self._store.give_back(self._key, self.config, caller.token, epoch)
            else:
                caller.future.set_result(epoch)
        if self._waiting:
            self._ask()

    def _refusal(self, failures: int, wait: int) -> ToolCircuitOpenError:
        seconds = wait / 1000 if wait else self.config.reset_timeout
        known = seconds if seconds < math.inf else None
        return ToolCircuitOpenError(self._key, failures, known)
