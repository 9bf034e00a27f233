"""How the cache is set, and marks of tools that it reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from executionkit._frozen import freeze_mapping, sealed
from executionkit._keys import canonical
from executionkit.backends import CacheBackend
from executionkit.backends.memory import check_ttl
from executionkit.calls import ToolCall
from executionkit.tools._record import Kind
from executionkit.tools.middleware._once import check_backend
from executionkit.tools.middleware._store import OnError

if TYPE_CHECKING:
    from executionkit.tools._record import ToolRecord

__all__ = ("CacheOptions", "cacheable", "invalidate_cache", "is_cacheable")

_T = TypeVar("_T", bound=Callable[..., Any])
_STREAMS: Final = frozenset({Kind.ASYNC_STREAM, Kind.SYNC_STREAM})
_CHANGES: Final = frozenset({"write", "destructive"})


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Which results are kept, where, and for how long.

    Raises:
        TypeError: When `backend` lacks methods of a `CacheBackend`.
        ValueError: For a time that is not above 0, or an unknown `on_error`.
    """

    ttl: float | None = 300.0
    """Seconds that a result is kept. None = no end."""

    tool_ttls: Mapping[str, float | None] = field(default_factory=freeze_mapping)
    """Seconds for single tools, by full name or else by bare name. They go before what
    `@cacheable(ttl=...)` says, and that before `ttl`."""

    cache_key_fn: Callable[[ToolCall], Any] | None = None
    """What of a call counts: gives the arguments to compare, without the volatile ones
    (times, random ids). None from it = this call is not cached. When it raises, the
    call is not cached and its result has a warning."""

    backend: CacheBackend | None = None
    """Where results are kept. None = in this process, 10 000 entries."""

    negative_ttl: float | None = None
    """Seconds that a failure of the tool itself is kept, in this process. None (the
    default) = errors are not cached."""

    on_error: OnError = "local"
    """When `backend` fails: `"local"` = a cache of this process stands in, `"open"` =
    tools run uncached, `"closed"` = cached tools fail with `StateStoreError`."""

    def __post_init__(self) -> None:
        check_ttl("ttl", self.ttl)
        check_ttl("negative_ttl", self.negative_ttl)
        for name, ttl in self.tool_ttls.items():
            check_ttl(f"tool_ttls[{name!r}]", ttl)
        check_backend(self.backend, self.on_error)
        object.__setattr__(self, "tool_ttls", freeze_mapping(self.tool_ttls))


def is_cacheable(record: ToolRecord) -> bool:
    """Whether results of a tool are cached, where caching is on."""
    tool = record.tool
    if tool.streaming or record.kind in _STREAMS:
        return False
    if tool.cacheable is not None:
        return tool.cacheable
    if getattr(record.source, "_cacheable", False) is True:
        return True
    return tool.side_effects not in _CHANGES


def cacheable(ttl: float | None = None) -> Callable[[_T], _T]:
    """Mark a tool (class or function): its results may be cached.

    Not needed for tools that only read. It says yes for a tool that writes, too.

    Args:
        ttl: Seconds that its results are kept. None = as the cache is set.

    Raises:
        ValueError: When `ttl` is not above 0.
    """
    seconds = check_ttl("ttl", ttl)

    def mark(target: _T) -> _T:
        target._cacheable = True  # type: ignore[attr-defined] # noqa: SLF001
        target._cache_ttl = seconds  # type: ignore[attr-defined] # noqa: SLF001
        return target

    return mark


def invalidate_cache(
    tool: str, arguments: Mapping[str, Any] | None = None
) -> Callable[[CacheBackend], Awaitable[int]]:
    """A function that forgets results of a tool in the cache it is given.

    Where results are normalised by `cache_key_fn`, use `CacheLayer.invalidate`.

    Args:
        tool: The tool's full name.
        arguments: None = all results of the tool; else those of just these arguments,
            of all versions and callers.

    Returns:
        `async (cache) -> int`, the number of results that were forgotten.
    """
    text = None if arguments is None else canonical(arguments)

    async def forget(cache: CacheBackend) -> int:
        if arguments is not None and text is None:
            return 0  # such a call is never cached
        return await cache.invalidate(tool, text)

    return forget
