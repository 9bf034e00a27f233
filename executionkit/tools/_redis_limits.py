"""Limits by the name of a tool, on a Redis server, for many processes."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from executionkit.backends.redis import RedisBackend
from executionkit.tools._tool_state import RateLimiter
from executionkit.tools._wrapping import KnownTool
from executionkit.tools.middleware._store import OnError
from executionkit.tools.middleware.rate_limit import RateLimitOptions, RateLimits

if TYPE_CHECKING:
    from executionkit._clock import Clock

__all__ = (
    "DEFAULT_REDIS_URL",
    "RedisRateLimiter",
    "create_redis_rate_limiter",
    "redis_at",
)

DEFAULT_REDIS_URL: Final = "redis://localhost:6379/0"
"""Where Redis is looked for."""

_opened: weakref.WeakValueDictionary[str, RedisBackend] = weakref.WeakValueDictionary()


def redis_at(redis: Any) -> RedisBackend:
    """The server of an address, a client, or itself; one connection per address.

    Raises:
        ValueError: When the address cannot be read.
    """
    if isinstance(redis, RedisBackend):
        return redis
    if not isinstance(redis, str):
        return RedisBackend(client=redis)
    found = _opened.get(redis)
    if found is None:
        found = _opened[redis] = RedisBackend(redis)
    return found


class RedisRateLimiter(RateLimiter):
    """How many calls may start in any window of time, in all processes together.

    Keys are `{prefix}:global` and `{prefix}:tool:{name}`, sorted sets of starts in
    microseconds of the server's clock. For a cluster write the prefix in braces.

    Args:
        redis: A `redis.asyncio.Redis`, an address, or a `RedisBackend`.
        global_limit: Starts of all tools together per `global_period`. None = no limit.
        global_period: Seconds.
        tool_limits: (starts, seconds) by full name, bare name, or glob.
        key_prefix: What the keys begin with.
        on_error: While the server does not answer: `"local"` (the limits of this
            process), `"open"` (no limit), `"closed"` (calls fail).
        clock: None = the clock of the current context.

    Raises:
        ValueError: For a limit below 1, a period that is not above 0, or an address
            that cannot be read.
    """

    def __init__(
        self,
        redis: Any,
        *,
        global_limit: int | None = None,
        global_period: float = 60.0,
        tool_limits: Mapping[str, tuple[int, float]] | None = None,
        key_prefix: str = "ratelimit",
        on_error: OnError = "local",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            global_limit=global_limit,
            global_period=global_period,
            tool_limits=tool_limits,
            clock=clock,
        )
        self._server = redis_at(redis)
        self._store = self._server.limiter_under(key_prefix, self._clock)
        options = RateLimitOptions(
            global_limit=global_limit,
            global_period=global_period,
            tool_limits=tool_limits or {},
            backend=self._store,
            on_error=on_error,
        )
        self._limits = RateLimits(options, self._clock)
        self._names = tuple(options.tool_limits)

    def layer(self, record: Any) -> Any:
        """The layer of one tool; None when no limit concerns it."""
        return self._limits.bind(record)

    async def check_limits(self, tool: str) -> tuple[bool, bool]:
        """(all tools' limit is reached, the tool's own is reached); takes nothing.

        Raises:
            StateStoreError: When the server does not answer; so do the methods below.
        """
        reached = {"global": False, "tool": False}
        for rule in self._rules(tool):
            usage = await self._store.usage(rule)
            reached[rule.key.partition(":")[0]] = usage.used >= usage.limit
        return reached["global"], reached["tool"]

    async def get_usage(self, tool: str | None = None) -> dict[str, dict[str, Any]]:
        """`used`, `limit`, `period` and `remaining`: of `"global"`, and by name.

        Args:
            tool: Also this tool's, where it has a limit. None = all that have a name.
        """
        named: dict[str, Any] = {}
        for name in self._names if tool is None else (tool,):
            for rule in self._rules(name):
                named["global" if rule.key == "global" else name] = rule
        for rule in self._rules(""):
            named["global"] = rule
        usage: dict[str, dict[str, Any]] = {}
        for name, rule in named.items():
            item = await self._store.usage(rule)
            usage[name] = {
                "used": item.used,
                "limit": item.limit,
                "period": item.period,
                "remaining": item.remaining,
            }
        return usage

    async def reset(self, tool: str | None = None) -> None:
        """Forget the starts of a tool; None = all starts."""
        if tool is None:
            await self._store.reset()
            return
        for rule in self._rules(tool):
            if rule.key != "global":
                await self._store.reset(rule.key)

    async def aclose(self) -> None:
        """Let go of the connection; the next question makes a new one."""
        await self._limits.reports.flush()
        await self._server.close()

    def _rules(self, tool: str) -> Any:
        known: Any = KnownTool(tool, "default")
        return self._limits.rules(known)


async def create_redis_rate_limiter(
    redis_url: str = DEFAULT_REDIS_URL, **settings: Any
) -> RedisRateLimiter:
    """A `RedisRateLimiter` at an address; `settings` are its arguments.

    Raises:
        StateStoreError: When the server does not answer.
    """
    server = redis_at(redis_url)
    await server.ping()
    return RedisRateLimiter(server, **settings)
