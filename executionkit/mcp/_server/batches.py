"""Answers that go back together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executionkit.mcp._server.messages import Message
    from executionkit.mcp._server.peer import Outlet

__all__ = ("Answers",)


class Answers:
    """Collects the answers of a batch; everything else goes on at once."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._found: list[Message] = []

    @property
    def full(self) -> bool:
        """As the outlet inside says."""
        return self._outlet.full

    def put(self, message: Message | list[Message]) -> None:
        """Keep an answer; hand on anything else."""
        if isinstance(message, dict) and "method" not in message:
            self._found.append(message)
        else:
            self._outlet.put(message)

    async def drain(self) -> None:
        """As the outlet inside does."""
        await self._outlet.drain()

    def pause(self) -> None:
        """As the outlet inside does."""
        self._outlet.pause()

    async def finish(self, tasks: list[asyncio.Task[None]]) -> None:
        """When all of `tasks` are done, send what there is to send."""
        if tasks:
            await asyncio.wait(tasks)
        if self._found:
            self._outlet.put(list(self._found))
        await self._outlet.drain()
