"""Who asks: what is known of the client of a session, or of a single request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from executionkit.mcp._constants import (
    INVALID_PARAMS,
    LOG_LEVELS,
    META_CAPABILITIES,
    META_CLIENT,
    META_LOG_LEVEL,
    META_VERSION,
    MODERN_VERSIONS,
    UNSUPPORTED_VERSION,
)
from executionkit.mcp._server.messages import Message, ProtocolError

__all__ = ("Outlet", "Peer", "is_modern", "modern_peer", "object_of")


class Outlet(Protocol):
    """Where messages to the client go, in order."""

    @property
    def full(self) -> bool:
        """Whether so much waits that what may be lost should not be added."""
        ...

    def put(self, message: Message | list[Message]) -> None:
        """Hand over a message; never waits, never raises."""
        ...

    async def drain(self) -> None:
        """Wait until the client has taken enough to go on."""
        ...

    def pause(self) -> None:
        """Close the connection that messages take; the client comes back for more."""
        ...


@dataclass(slots=True)
class Peer:
    """A client, as far as it has said who it is."""

    version: str
    """The protocol version that it speaks."""

    modern: bool = False
    """Whether that is a version without sessions."""

    info: Mapping[str, Any] = field(default_factory=dict)
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    log_level: str | None = "info"
    """The least severe message that it wants; None = none at all."""

    def wants(self, level: str) -> bool:
        """Whether the client wants log messages of that level."""
        if self.log_level is None or level not in LOG_LEVELS:
            return False
        return LOG_LEVELS.index(level) >= LOG_LEVELS.index(self.log_level)


def is_modern(params: Mapping[str, Any]) -> bool:
    """Whether a request says its protocol version itself."""
    meta = params.get("_meta")
    return isinstance(meta, Mapping) and META_VERSION in meta


def object_of(params: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object under `key`; an empty one when there is none.

    Raises:
        ProtocolError: When it is something else.
    """
    found = params.get(key)
    if found is None and key not in params:
        return {}
    if not isinstance(found, dict):
        raise ProtocolError(INVALID_PARAMS, f"Invalid params: `{key}` is no object")
    return found


def modern_peer(params: Mapping[str, Any]) -> Peer:
    """The client of a request that says it all itself.

    Raises:
        ProtocolError: When something is missing, or the version is not offered.
    """
    meta = params.get("_meta")
    if not isinstance(meta, Mapping):
        raise ProtocolError(INVALID_PARAMS, "Invalid params: `_meta` is missing")
    for key in (META_VERSION, META_CAPABILITIES):
        if key not in meta:
            raise ProtocolError(
                INVALID_PARAMS, f"Invalid params: no `{key}` in `_meta`"
            )
    version, able = meta[META_VERSION], meta[META_CAPABILITIES]
    if not isinstance(version, str) or not isinstance(able, Mapping):
        msg = f"Invalid params: `{META_VERSION}` or `{META_CAPABILITIES}` in `_meta`"
        raise ProtocolError(INVALID_PARAMS, msg)
    if version not in MODERN_VERSIONS:
        data = {"supported": list(MODERN_VERSIONS), "requested": version}
        raise ProtocolError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    info = meta.get(META_CLIENT)
    level = meta.get(META_LOG_LEVEL)
    if level is not None and level not in LOG_LEVELS:
        msg = (
            f"Invalid params: `{META_LOG_LEVEL}` must be one of {', '.join(LOG_LEVELS)}"
        )
        raise ProtocolError(INVALID_PARAMS, msg)
    return Peer(
        version=version,
        modern=True,
        info=info if isinstance(info, Mapping) else {},
        capabilities=able,
        log_level=level,
    )
