"""Opens TCP connections: names, several addresses, staggered attempts.

Names are looked up in threads that the library owns. The loop's default executor is
small and shared: a few blocking functions of the user would hold up every new
connection, and a lookup that hangs would hold up the end of `asyncio.run`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

from executionkit._threads import run_in_thread

if TYPE_CHECKING:
    from executionkit._clock import Clock

__all__ = ("Address", "Resolver", "open_socket", "resolve")

Address: TypeAlias = tuple[int, tuple[Any, ...]]
"""The family and what `connect` takes."""

_LOOKUP_SECONDS = 30.0
"""How long the addresses of a name are kept."""

_MAX_NAMES = 256
_STAGGER_SECONDS = 0.25
"""Head start of an address before the next is tried beside it (RFC 8305)."""


class Resolver:
    """Looks names up, each once at a time, and remembers the answers for a while.

    Belongs to one loop.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[float, Sequence[Address]]] = {}
        self._running: dict[tuple[str, int], asyncio.Task[Sequence[Address]]] = {}

    async def lookup(self, host: str, port: int, clock: Clock) -> Sequence[Address]:
        """The addresses of `host`, in the order in which to try them.

        Raises:
            OSError: The name cannot be resolved.
        """
        numeric = _if_numeric(host, port)
        if numeric:
            return numeric
        key = host, port
        known = self._known.get(key)
        if known is not None and clock.monotonic() < known[0]:
            return known[1]
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(run_in_thread(resolve, host, port))
            self._running[key] = task
            task.add_done_callback(lambda done: self._finished(key, done))
        # Shielded: others may wait for the same answer.
        addresses = await asyncio.shield(task)
        if len(self._known) >= _MAX_NAMES:
            self._known.clear()
        self._known[key] = clock.monotonic() + _LOOKUP_SECONDS, addresses
        return addresses

    def _finished(
        self, key: tuple[str, int], task: asyncio.Task[Sequence[Address]]
    ) -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # seen, even if all who waited have left

    def forget(self, host: str, port: int) -> None:
        """Look the name up again next time; its addresses did not work."""
        self._known.pop((host, port), None)

    def close(self) -> None:
        """Stop waiting for lookups that are still running."""
        for task in list(self._running.values()):
            task.cancel()


def _if_numeric(host: str, port: int) -> Sequence[Address]:
    if ":" in host:
        return [(socket.AF_INET6, (host, port, 0, 0))]
    try:
        socket.inet_pton(socket.AF_INET, host)
    except OSError:
        return ()
    return [(socket.AF_INET, (host, port))]


def resolve(host: str, port: int) -> Sequence[Address]:
    """The addresses of `host`, in the order in which to try them. Blocks.

    Raises:
        OSError: The name cannot be resolved.
    """
    known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    found: list[Address] = [(family, address) for family, _, _, _, address in known]
    if not found:
        msg = f"no address found for `{host}`"
        raise OSError(msg)
    # Families take turns, so that a broken one costs one head start and no more.
    first = [item for item in found if item[0] == found[0][0]]
    other = [item for item in found if item[0] != found[0][0]]
    pairs = chain.from_iterable(zip_longest(first, other))
    return [item for item in pairs if item is not None]


async def open_socket(
    resolver: Resolver, host: str, port: int, clock: Clock
) -> socket.socket:
    """A connected, non-blocking socket to `host`.

    Raises:
        OSError: None of its addresses accepts a connection; the first one's reason.
    """
    addresses = await resolver.lookup(host, port, clock)
    try:
        if len(addresses) == 1:
            return await _connect(addresses[0])
        return await _race(addresses, clock)
    except OSError:
        resolver.forget(host, port)
        raise


async def _connect(address: Address) -> socket.socket:
    family, where = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)  # noqa: FBT003 - the system's name and order
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.get_running_loop().sock_connect(sock, where)
    except BaseException:
        sock.close()
        raise
    return sock


async def _race(addresses: Sequence[Address], clock: Clock) -> socket.socket:
    waiting = deque(addresses)
    running: set[asyncio.Task[socket.socket]] = set()
    failures: list[OSError] = []
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.ensure_future(_connect(waiting.popleft())))
            head_start = _STAGGER_SECONDS if waiting else None
            done = await _first_done(running, head_start, clock)
            running -= done
            winner = _take_winner(done, failures)
            if winner is not None:
                return winner
    finally:
        await _drop(running)
    raise failures[0]


async def _first_done(
    running: set[asyncio.Task[socket.socket]], seconds: float | None, clock: Clock
) -> set[asyncio.Task[socket.socket]]:
    scope = clock.timeout(seconds)
    try:
        async with scope:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        return {task for task in running if task.done()}
    return done


def _take_winner(
    done: set[asyncio.Task[socket.socket]], failures: list[OSError]
) -> socket.socket | None:
    winner: socket.socket | None = None
    for task in done:
        error = task.exception()
        if error is None:
            if winner is None:
                winner = task.result()
            else:
                task.result().close()
        elif isinstance(error, OSError):
            failures.append(error)
        else:
            raise error
    return winner


async def _drop(tasks: set[asyncio.Task[socket.socket]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and task.exception() is None:
            task.result().close()
