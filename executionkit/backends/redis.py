"""State on a Redis server (or Valkey), shared by many processes.

`open_backend("redis://host:6379/0")` needs no package. A client of the package `redis`
can be given instead: for a cluster, a sentinel, or credentials that change.

The clock of the server counts, each decision is one question, and all that is asked in
one turn of the event loop goes out together over one connection. Every key ends by
itself. When the server does not answer in time, what was asked raises
`StateStoreError`; the next question tries it anew. What a tool call does then is said
by `on_state_error` of the `ToolProcessor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from executionkit.backends._redis.address import parse_address
from executionkit.backends._redis.breakers import RedisBreakers
from executionkit.backends._redis.cache import RedisCache
from executionkit.backends._redis.keys import head_of
from executionkit.backends._redis.limiter import RedisLimiter
from executionkit.backends._redis.resp import Question, to_bytes
from executionkit.backends._redis.scripts import SERVER_TIME, Scripts
from executionkit.backends._redis.wire import AddressWire, ClientWire, checked
from executionkit.engine._checks import check_number

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit.backends._redis.wire import Wire

__all__ = ("RedisBackend", "RedisBreakers", "RedisCache", "RedisLimiter")

DEFAULT_PREFIX: Final = "executionkit"
DEFAULT_TIMEOUT: Final = 1.0


class RedisBackend:
    """State on a server.

    Args:
        url: `redis://[user:password@]host[:port][/db]`, `rediss://` for TLS,
            `unix:///path` for a socket. Options of the address: `db`, `prefix`,
            `timeout`, and `ssl_ca_certs`, a file of trusted authorities.
        client: In place of `url`: a `redis.asyncio.Redis`, one of a `Sentinel`, or a
            `redis.asyncio.RedisCluster`. It is not closed, and serves one event loop.
        prefix: What all keys begin with. None = that of `url`, else `executionkit`.
        timeout: Seconds that a question may take, the connection included. None = that
            of `url`, else 1.
        clock: Measures waits in this process. None = the clock of the current context.

    Raises:
        TypeError: When not just one of `url` and `client` is given.
        ValueError: When the address cannot be read, or a number is out of range.
    """

    kind: Literal["memory", "redis", "sqlite"] = "redis"

    def __init__(
        self,
        url: str | None = None,
        *,
        client: Any = None,
        prefix: str | None = None,
        timeout: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        if (url is None) == (client is None):
            msg = "give either `url` or `client`"
            raise TypeError(msg)
        address = None if url is None else parse_address(url)
        if address is not None:
            prefix = address.prefix if prefix is None else prefix
            timeout = address.timeout if timeout is None else timeout
        limit = DEFAULT_TIMEOUT if timeout is None else timeout
        check_number("timeout", limit, above=True)
        self._prefix = DEFAULT_PREFIX if prefix is None else prefix
        head_of(self._prefix, "cache")
        self.address: str = "a client" if address is None else address.shown
        """Where the server is, without who logs in."""
        self._clock = clock
        self._scripts = Scripts.on(SERVER_TIME)
        self._wire: Wire = (
            ClientWire(client, limit)
            if address is None
            else AddressWire(address, limit)
        )
        self._stores: dict[tuple[str, str], Any] = {}

    def __repr__(self) -> str:
        return f"RedisBackend({self.address!r}, prefix={self._prefix!r})"

    def cache(self, name: str = "cache") -> RedisCache:
        """The cache of that name; the same one each time."""
        head = head_of(self._prefix, name)
        found: RedisCache | None = self._stores.get(("cache", name))
        if found is None:
            open_head = head.removesuffix(b"}:")  # each tool has a slot of its own
            found = RedisCache(self._wire, self._scripts, open_head)
            self._stores["cache", name] = found
        return found

    def limiter(self, name: str = "ratelimit") -> RedisLimiter:
        """The limits of that name; the same ones each time."""
        head = head_of(self._prefix, name)
        found: RedisLimiter | None = self._stores.get(("limiter", name))
        if found is None:
            found = RedisLimiter(self._wire, self._scripts, head, clock=self._clock)
            self._stores["limiter", name] = found
        return found

    def breakers(self, name: str = "circuitbreaker") -> RedisBreakers:
        """The circuits of that name; the same ones each time."""
        head = head_of(self._prefix, name)
        found: RedisBreakers | None = self._stores.get(("breakers", name))
        if found is None:
            found = RedisBreakers(self._wire, self._scripts, head, clock=self._clock)
            self._stores["breakers", name] = found
        return found

    def limiter_under(
        self, key_prefix: str, clock: Clock | None = None
    ) -> RedisLimiter:
        """Limits whose keys are the prefix, a colon, and the key of the rule."""
        head = to_bytes(f"{key_prefix}:")
        clock = clock or self._clock
        return RedisLimiter(
            self._wire, self._scripts, head, by_period=False, clock=clock
        )

    def breakers_under(
        self, key_prefix: str, clock: Clock | None = None
    ) -> RedisBreakers:
        """Circuits whose keys are the prefix, a colon, the name, and what it is."""
        head = to_bytes(f"{key_prefix}:")
        clock = clock or self._clock
        return RedisBreakers(self._wire, self._scripts, head, clock=clock)

    async def ping(self) -> None:
        """Whether the server answers.

        Raises:
            StateStoreError: When it does not.
        """
        checked(await self._wire.ask(Question((b"PING",))))

    async def close(self) -> None:
        """Let go of the connections; what is stored stays, and can be asked anew."""
        await self._wire.close()
