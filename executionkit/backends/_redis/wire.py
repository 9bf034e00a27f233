"""How stores reach their server: by its address, or through a client of yours."""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import TYPE_CHECKING, Any, Final, Protocol

from executionkit._clock import SystemClock
from executionkit.backends._redis.link import Link, Then
from executionkit.backends._redis.resp import Question, Reply, ReplyError, to_bytes
from executionkit.errors import StateStoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from executionkit.backends._redis.address import Address

__all__ = (
    "AddressWire",
    "ClientWire",
    "Script",
    "Wire",
    "checked",
    "escaped",
    "failure",
)

_REAL: Final = SystemClock()
_inherited: list[object] = []
"""Connections of a parent process: never touched, never closed, never collected."""


class Wire(Protocol):
    """Carries questions to a server."""

    def ask(self, question: Question) -> asyncio.Future[Reply]:
        """The reply to come; a `StateStoreError` when there is none in time."""
        ...

    def tell(self, question: Question, then: Then) -> None:
        """Hand the reply, or the `StateStoreError`, to `then`, without a future."""
        ...

    def scan(self, pattern: bytes) -> AsyncIterator[bytes]:
        """The keys that match a glob."""
        ...

    async def close(self) -> None:
        """Let go of what was opened."""
        ...


class AddressWire:
    """One connection per event loop, made when it is first needed.

    In a child of `fork` the connections of the parent are left alone.

    Args:
        address: Where the server is.
        timeout: Seconds that a question may take.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._links: dict[asyncio.AbstractEventLoop, Link] = {}
        self._process = os.getpid()

    def link(self) -> Link:
        """The connection of the running loop."""
        if self._process != os.getpid():
            _inherited.append(self._links)
            self._links, self._process = {}, os.getpid()
        loop = asyncio.get_running_loop()
        link = self._links.get(loop)
        if link is None:
            for other in [each for each in self._links if each.is_closed()]:
                del self._links[other]
            link = self._links[loop] = Link(self._address, self._timeout)
        return link

    def ask(self, question: Question) -> asyncio.Future[Reply]:
        return self.link().ask(question)

    def tell(self, question: Question, then: Then) -> None:
        self.link().tell(question, then)

    async def scan(self, pattern: bytes) -> AsyncIterator[bytes]:
        cursor: Any = b"0"
        while True:
            arguments = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"1000")
            cursor, keys = checked(await self.ask(Question(arguments)))
            for key in keys:
                yield key
            if cursor == b"0":
                return

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        links, self._links = self._links, {}
        if self._process != os.getpid():
            _inherited.append(links)
            return
        for other, link in links.items():
            if other is loop:
                await link.close()
            elif not other.is_closed():
                other.call_soon_threadsafe(link.drop)


class ClientWire:
    """Asks through a client of the package `redis`, which stays its owner's.

    Args:
        client: A `redis.asyncio.Redis` (also one of a `Sentinel`) or `RedisCluster`.
        timeout: Seconds that a question may take.
    """

    def __init__(self, client: Any, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._tasks: set[asyncio.Future[Reply]] = set()

    def ask(self, question: Question) -> asyncio.Future[Reply]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        task = loop.create_task(self._answer(question, future))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return future

    def tell(self, question: Question, then: Then) -> None:
        self.ask(question).add_done_callback(
            lambda done: then(done.exception() or done.result())
        )

    async def scan(self, pattern: bytes) -> AsyncIterator[bytes]:
        async for key in self._client.scan_iter(match=pattern, count=1000):
            yield to_bytes(key)

    async def close(self) -> None:
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _answer(self, question: Question, future: asyncio.Future[Reply]) -> None:
        try:
            async with _REAL.timeout(self._timeout):
                reply = await self._send(question)
        except Exception as exc:  # noqa: BLE001 - a driver may raise anything
            if not future.done():
                msg = f"Redis did not answer ({type(exc).__name__})"
                future.set_exception(StateStoreError(msg, original_error=exc))
            return
        if not future.done():
            future.set_result(reply)

    async def _send(self, question: Question) -> Reply:
        name, *rest = question.arguments
        try:
            return await self._client.execute_command(name.decode(), *rest)
        except Exception as exc:
            names = {kind.__name__ for kind in type(exc).__mro__}
            if question.fallback is not None and "NoScriptError" in names:
                return await self._send(question.fallback)
            if "ResponseError" in names:
                return ReplyError(str(exc))
            raise


class Script:
    """A script that the server runs in one step.

    Args:
        source: Lua; `now` is the server's time in microseconds.
        time: What sets `now`.
    """

    __slots__ = ("_sha", "_source")

    def __init__(self, source: str, time: str) -> None:
        self._source = (time + source).encode()
        sha = hashlib.sha1(
            self._source, usedforsecurity=False
        )  # the server's name for it
        self._sha = sha.hexdigest().encode()

    def question(
        self,
        keys: Sequence[bytes],
        arguments: Sequence[bytes],
        *,
        again: Sequence[bytes] | None = None,
        is_minor: bool = False,
    ) -> Question:
        """What to ask.

        Args:
            keys: The keys that it touches.
            arguments: The rest.
            again: The arguments when it is asked again after a lost reply. None = it is
                not asked again.
            is_minor: Whether it is not worth a connection of its own.
        """
        count = b"%d" % len(keys)
        rest = (count, *keys, *arguments)
        second = None
        if again is not None:
            last = (count, *keys, *again)
            full = Question((b"EVAL", self._source, *last))
            second = Question((b"EVALSHA", self._sha, *last), full)
        full = Question((b"EVAL", self._source, *rest), again=second)
        return Question((b"EVALSHA", self._sha, *rest), full, second, is_minor)


def checked(reply: Reply) -> Any:
    """A reply that is no error.

    Raises:
        StateStoreError: When it is one.
    """
    if isinstance(reply, ReplyError):
        raise failure(reply)
    return reply


def failure(exc: Exception) -> StateStoreError:
    """An exception of its own for each who hears of a failure."""
    text = str(exc)
    if isinstance(exc, ReplyError):
        text = f"Redis refused a command: {text[:200]}{_hint(exc.code)}"
    return StateStoreError(text, original_error=exc)


def _hint(code: str) -> str:
    if code in {"MOVED", "CROSSSLOT", "ASK"}:
        return "; for a cluster give a `redis.asyncio.RedisCluster` as the client"
    return ""


def escaped(key: bytes) -> bytes:
    """`key` in a glob: it matches itself."""
    return b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in key)
