"""Requests that the server sends to its client, and the answers to them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from executionkit.mcp._constants import SERVER_BUSY
from executionkit.mcp._server.messages import Id, Incoming, ProtocolError, notification

if TYPE_CHECKING:
    from executionkit.mcp._server.peer import Outlet

__all__ = ("Questions",)

_MAX_OPEN: Final = 256


class _ClientError(Exception):
    """The client answered with an error."""


class Questions:
    """The open questions to one client."""

    def __init__(self) -> None:
        self.asked: asyncio.Event = asyncio.Event()
        """Set while a question is open."""
        self._open: dict[Id, asyncio.Future[Any]] = {}
        self._count = 0

    async def ask(self, method: str, params: Mapping[str, Any], outlet: Outlet) -> Any:
        """Send a request, and wait for its answer.

        Raises:
            ProtocolError: When too many are open.
        """
        if len(self._open) >= _MAX_OPEN:
            raise ProtocolError(SERVER_BUSY, "Too many open questions to the client")
        self._count += 1
        name = f"ek-{self._count}"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[name] = future
        self.asked.set()
        outlet.put(
            {"jsonrpc": "2.0", "id": name, "method": method, "params": dict(params)}
        )
        try:
            return await future
        except asyncio.CancelledError:
            outlet.put(notification("notifications/cancelled", {"requestId": name}))
            raise
        finally:
            del self._open[name]
            if not self._open:
                self.asked.clear()

    def answered(self, incoming: Incoming) -> None:
        """Take an answer; one to an unknown question is dropped."""
        future = None if incoming.id is None else self._open.get(incoming.id)
        if future is None or future.done():
            return
        if "error" in incoming.message:
            told = incoming.message["error"]
            said = told.get("message") if isinstance(told, Mapping) else None
            future.set_exception(_ClientError(f"the client refused: {said}"))
        else:
            future.set_result(incoming.message.get("result"))
