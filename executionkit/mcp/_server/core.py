"""What all clients of a server share: what is offered, limits, who is told of changes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from executionkit._clock import get_clock
from executionkit.mcp._constants import INVALID_PARAMS, META_SERVER
from executionkit.mcp._server.messages import ProtocolError, decode, encode
from executionkit.mcp._server.offers import Prompt, Resource, Table
from executionkit.types import sealed

if TYPE_CHECKING:
    from executionkit.mcp._server.calling import ToolSource
    from executionkit.mcp._server.peer import Peer

__all__ = ("Core", "Listener", "ServerOptions")

_CHECK_SECONDS: Final = 0.25
_STATE_SECONDS: Final = 3600.0


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The limits of a server."""

    max_concurrency: int = 64
    """Calls that run at once, of all clients."""

    max_waiting: int = 256
    """Requests of one client that run or wait; then no more of it is read until one
    of them ends."""

    max_message_bytes: int = 16 * 1024 * 1024
    """Bytes of one message. A longer one is refused, and what follows it is served."""

    page_size: int = 100
    """Entries on one page of a list."""

    grace: float = 0.3
    """Seconds that calls may go on when the input has ended."""

    cache_seconds: float = 0.0
    """How long clients of 2026-07-28 may keep lists and resources. 0 = not at all."""

    def __post_init__(self) -> None:
        for name in (
            "max_concurrency",
            "max_waiting",
            "max_message_bytes",
            "page_size",
        ):
            value = getattr(self, name)
            if value < 1:
                msg = f"`{name}` must be at least 1, got {value!r}"
                raise ValueError(msg)
        for name in ("grace", "cache_seconds"):
            value = getattr(self, name)
            if not 0 <= value <= 86_400:
                msg = f"`{name}` must be seconds from 0 to a day, got {value!r}"
                raise ValueError(msg)


class Listener(Protocol):
    """A client that is told of changes."""

    def list_changed(self, kind: str) -> None:
        """A list is not what it was: `tools`, `resources` or `prompts`."""
        ...

    def resource_updated(self, uri: str) -> None:
        """A resource is not what it was."""
        ...


class Core:
    """What a server offers, and to whom it has to say that this has changed."""

    def __init__(
        self,
        tools: ToolSource,
        *,
        name: str,
        version: str,
        instructions: str | None,
        resources: Iterable[Resource],
        prompts: Iterable[Prompt],
        options: ServerOptions,
        fixed: bool,
    ) -> None:
        self.tools: ToolSource = tools
        self.name: str = name
        self.version: str = version
        self.instructions: str | None = instructions
        self.resources: Table[Resource] = Table(resources)
        self.prompts: Table[Prompt] = Table(prompts)
        self.options: ServerOptions = options
        self.fixed: bool = fixed
        """Whether there are tools alone, and always the same."""
        self.listeners: set[Listener] = set()
        self._seen = self._versions()
        self._secret = os.urandom(32)
        self._slots: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def slots(self) -> asyncio.Semaphore:
        """Taken by each call while it runs."""
        loop = asyncio.get_running_loop()
        if self._slots is None or self._loop is not loop:
            self._loop = loop
            self._slots = asyncio.Semaphore(self.options.max_concurrency)
        return self._slots

    def info(self) -> dict[str, Any]:
        """Who the server is."""
        return {"name": self.name, "version": self.version}

    def capabilities(self, peer: Peer) -> dict[str, Any]:
        """What the server can do for that client."""
        if self.fixed:
            return {"tools": {}}
        found: dict[str, Any] = {"tools": {"listChanged": True}, "logging": {}}
        if self.resources.version or len(self.resources):
            found["resources"] = {"listChanged": True, "subscribe": True}
        if self.prompts.version or len(self.prompts):
            found["prompts"] = {"listChanged": True}
        completes = any(
            one.complete is not None for one in self.resources.all()
        ) or any(one.complete is not None for one in self.prompts.all())
        if completes and peer.version > "2024-11-05":
            found["completions"] = {}
        return found

    def finish(self, result: dict[str, Any], peer: Peer) -> dict[str, Any]:
        """`result` with what newer versions say in each."""
        if peer.modern:
            result.setdefault("resultType", "complete")
            meta = result.get("_meta")
            result["_meta"] = {**(meta or {}), META_SERVER: self.info()}
        return result

    # --- changes ---
    def _versions(self) -> dict[str, int]:
        return {
            "tools": self.tools.version,
            "resources": self.resources.version,
            "prompts": self.prompts.version,
        }

    def check_changes(self) -> None:
        """Tell those who listen what has changed since the last time."""
        now = self._versions()
        if now == self._seen:
            return
        changed = [kind for kind, version in now.items() if version != self._seen[kind]]
        self._seen = now
        for listener in tuple(self.listeners):
            for kind in changed:
                listener.list_changed(kind)

    async def watch(self) -> None:
        """Look for changes for ever: registries tell nobody of theirs."""
        clock = get_clock()
        while True:
            await clock.sleep(_CHECK_SECONDS)
            self.check_changes()

    def resource_updated(self, uri: str) -> None:
        """Tell those who listen that a resource has changed."""
        for listener in tuple(self.listeners):
            listener.resource_updated(uri)

    # --- state that the client keeps ---
    def seal(self, purpose: str, state: object) -> str:
        """`state` as a text that only this server can have written."""
        body = encode([state, get_clock().wall()])
        return f"{_text(body)}.{_text(self._mark(purpose, body))}"

    def unseal(self, purpose: str, sealed_text: object) -> Any:
        """What `seal` was given.

        Raises:
            ProtocolError: When it was made by somebody else, for something else, or
                more than an hour ago.
        """
        try:
            body, mark = [
                urlsafe_b64decode(part.encode("ascii"))
                for part in str(sealed_text).split(".")
            ]
            genuine = hmac.compare_digest(mark, self._mark(purpose, body))
            # Only the very text that was written: base64 has loose ends.
            genuine = genuine and sealed_text == f"{_text(body)}.{_text(mark)}"
            state, then = decode(body) if genuine else (None, 0.0)
        except (ValueError, TypeError, ProtocolError):
            genuine, state, then = False, None, 0.0
        if not genuine or get_clock().wall() - then > _STATE_SECONDS:
            raise ProtocolError(INVALID_PARAMS, "Invalid params: `requestState`")
        return state

    def _mark(self, purpose: str, body: bytes) -> bytes:
        whole = purpose.encode("utf-8", "surrogatepass") + b"\0" + body
        return hmac.digest(self._secret, whole, hashlib.sha256)


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode("ascii")
