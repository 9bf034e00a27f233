"""A server whose tools stand in a registry, and the calls to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from executionkit.errors import MCPConnectionError
from executionkit.mcp._client import failures
from executionkit.mcp._client.link import Gone
from executionkit.mcp._client.owner import Owner
from executionkit.mcp._client.tools import RemoteTool, Selection, Shelf

if TYPE_CHECKING:
    from executionkit.mcp._client.servers import MCPOptions
    from executionkit.mcp._client.watch import Progress
    from executionkit.tools.registry import ToolRegistry

__all__ = ("MCPConnection",)

_MAX_UNREAD: Final = 256


class MCPConnection:
    """A server whose tools stand in a registry; `add_mcp_server` makes it.

    One task of its own holds the connection, from the handshake to the end: closing
    works from any task and in any order. A connection that is lost is made anew by the
    first call that needs it, once for all calls that wait; a call that was on its way
    is sent again only when its tool reads, or is idempotent. It belongs to the event
    loop in which it was made.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        server: Any,
        name: str,
        selection: Selection,
        options: MCPOptions,
    ) -> None:
        self.name: str = name
        self.options: MCPOptions = options
        self._shelf = Shelf(
            registry, name, selection, self._functions, trusted=options.trust_hints
        )
        self._owner = Owner(name, server, options, self._shelf.update)

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        return (
            f"<{type(self).__name__} {self.name!r}, {state}, {len(self.tools)} tools>"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    # --- what it is ---

    @property
    def tools(self) -> Mapping[str, str]:
        """The server's name of each tool -> its full name in the registry."""
        return {name: tool.full_name for name, tool in self._shelf.tools.items()}

    @property
    def problems(self) -> Mapping[str, str]:
        """Tools that could not be registered, by the server's name, and why."""
        return dict(self._shelf.problems)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection right now."""
        link = self._owner.link
        return link is not None and link.lost is None

    @property
    def is_closed(self) -> bool:
        """Whether it was closed: it connects no more."""
        return self._owner.is_closing

    @property
    def generation(self) -> int:
        """Counts the connections made, from 1."""
        return self._owner.number

    @property
    def client(self) -> Any:
        """The SDK's `Client` of the connection, for resources, prompts and the rest.

        Raises:
            MCPConnectionError: When there is none; `await connection.connect()`.
        """
        link = self._owner.link
        if link is None or link.lost is not None:
            raise failures.lost(self.name, "not connected; `await connect()` first")
        return link.client

    @property
    def pid(self) -> int | None:
        """The process of a server that was started here, while it is connected."""
        link = self._owner.link
        return None if link is None or link.wire is None else link.wire.pid

    @property
    def stderr(self) -> str:
        """The last 8 KiB that the server wrote to standard error, secrets masked."""
        link = self._owner.link
        if link is None or link.wire is None:
            return self._owner.last_words
        return link.wire.stderr

    # --- what it does ---

    async def connect(self) -> None:
        """Connect, unless there is a connection.

        Raises:
            MCPConnectionError: When that fails; says why.
            MCPTimeoutError: After `connect_timeout`.
        """
        await self._owner.current()

    async def refresh(self) -> bool:
        """Ask for the list of tools; whether the registry changed.

        Raises:
            MCPError: When the server gives none.
        """
        return await self._owner.load(await self._owner.current())

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a tool by the server's own name, without a processor around it.

        Raises:
            MCPError: As `executionkit.mcp.client` says.
        """
        tool = self._shelf.tools.get(name)
        if tool is None:
            known = ", ".join(sorted(self._shelf.tools)) or "none"
            why = f"there is no tool '{name}'; there are: {known}"
            raise failures.MCPRequestError(self.name, why)
        return await self._call(tool, dict(arguments or {}))

    async def close(self) -> None:
        """Take the tools out of the registry and end the connection.

        Calls that wait fail. Returns within `close_timeout` and two seconds, whatever
        the server does; a program that does not end is killed. Idempotent.
        """
        self._shelf.clear()
        await self._owner.close()

    # --- calls ---

    def _functions(
        self, tool: RemoteTool
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """What runs a tool, and what runs it and gives its progress, too."""

        async def execute(**arguments: Any) -> Any:
            return await self._call(tool, arguments)

        async def stream(**arguments: Any) -> AsyncIterator[Any]:
            async for item in self._stream(tool, arguments):
                yield item

        return execute, stream

    async def _call(
        self, tool: RemoteTool, arguments: dict[str, Any], tell: Progress | None = None
    ) -> Any:
        link = await self._owner.current()
        try:
            return await link.call(tool, arguments, tell)
        except Gone as gone:
            first = gone
        if self._owner.is_closing or not (first.untouched or tool.is_safe):
            raise first.error
        try:
            link = await self._owner.current()
            return await link.call(tool, arguments, tell)
        except Gone as gone:
            raise gone.error from first.error
        except MCPConnectionError as exc:
            raise exc from first.error

    async def _stream(
        self, tool: RemoteTool, arguments: dict[str, Any]
    ) -> AsyncIterator[Any]:
        """The progress of a call as it is told, then its value."""
        items: deque[Any] = deque(maxlen=_MAX_UNREAD)  # who is slow misses the oldest
        news = asyncio.Event()

        def tell(item: dict[str, Any]) -> None:
            items.append(item)
            news.set()

        task = asyncio.ensure_future(self._call(tool, arguments, tell))
        task.add_done_callback(lambda _: news.set())
        try:
            while not task.done() or items:
                await news.wait()
                news.clear()
                while items:
                    yield items.popleft()
            yield task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # read, even when nobody waits for the value
