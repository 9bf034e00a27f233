"""Tools of other servers, as tools of ours.

```python
registry = create_registry()
connection = await add_mcp_server(
    registry, StdioServer("python", ["server.py"]), name="files"
)
async with connection, ToolProcessor(registry) as processor:
    await processor.process('<tool name="files.read" args="{}"/>')
```

Each tool of the server becomes a `Tool` whose function sends the call. All layers of a
processor are around it as they are around a local tool. The SDK of the protocol does
the talking: `pip install 'executionkit[mcp]'`.

What can go wrong, and which class says so:

| class | what | tried again by a retry layer |
|---|---|---|
| `MCPToolError` | the tool says that it failed; its words are the text | no |
| `MCPResultError` | the answer does not fit the tool's own schema | no |
| `MCPRequestError` | the server refused the request as wrong | no |
| `MCPError` | the server answered with another error | as for local tools |
| `MCPTimeoutError` | no answer and no progress, or too long in all | when safe |
| `MCPConnectionError` | the connection failed or is gone | when safe, or never sent |

Safe: the tool only reads, or is idempotent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from executionkit.errors import require
from executionkit.mcp._client.connection import MCPConnection
from executionkit.mcp._client.failures import (
    MCPRequestError,
    MCPResultError,
    MCPToolError,
)
from executionkit.mcp._client.servers import (
    HttpServer,
    MCPOptions,
    SseServer,
    StdioServer,
    Token,
    read_server,
)
from executionkit.mcp._client.tools import Selection

if TYPE_CHECKING:
    from executionkit.tools.registry import ToolRegistry

__all__ = (
    "HttpServer",
    "MCPConnection",
    "MCPConnections",
    "MCPOptions",
    "MCPRequestError",
    "MCPResultError",
    "MCPToolError",
    "SseServer",
    "StdioServer",
    "Token",
    "add_mcp_server",
)

_ODD: Final = re.compile(r"[^A-Za-z0-9_-]+")


async def add_mcp_server(  # noqa: PLR0913 - each is one setting
    registry: ToolRegistry,
    server: Any,
    *,
    name: str,
    prefix: str = "",
    namespace: str | None = None,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    timeout: float | None = None,
    headers: Mapping[str, str] | None = None,
    token: Token | None = None,
    options: MCPOptions | None = None,
) -> MCPConnection:
    """Connect to a server and put its tools into a registry.

    Args:
        registry: Gets the tools, and follows the server's changes to them.
        server: A URL (streamable HTTP), `StdioServer`, `HttpServer`, `SseServer`, or a
            server object of the SDK, which then runs in this process.
        name: What the server is called in errors; not empty.
        prefix: Put before the name of each tool, with a `_`.
        namespace: Where the tools stand. None = that of the name, or `default` when
            there is a prefix.
        include: Only these tools: names or globs, as the server says them.
        exclude: Not these.
        overrides: Metadata by the server's name of a tool, stronger than its hints:
            `{"search": {"side_effects": "read", "rate_limit": (10, 1.0)}}`.
        timeout: Seconds that a call may go without an answer or progress. None = what
            `options` says, 30.
        headers: For a URL: sent with each request.
        token: For a URL: a bearer token, or an async function that gives it.
        options: Everything else.

    Returns:
        The connection; close it, or use it in `async with`.

    Raises:
        MissingExtraError: When the SDK is not installed.
        MCPConnectionError: When there is no such server, or it ends at once.
        MCPTimeoutError: When connecting takes longer than it may.
        TypeError: When `server` is none.
        ValueError: When `name`, `prefix` or an option is not usable.
    """
    require("mcp", extra="mcp")
    require("mcp.client.client", extra="mcp")
    chosen = options or MCPOptions()
    if timeout is not None:
        chosen = _with_timeout(chosen, timeout)
    space = _ODD.sub("_", name).strip("_")
    if not space:
        msg = f"`name` of a server needs a letter or a digit, got {name!r}"
        raise ValueError(msg)
    if namespace is None:
        namespace = "default" if prefix else space
    selection = Selection(
        namespace=namespace,
        prefix=prefix,
        include=include if isinstance(include, str) else tuple(include),  # type: ignore[arg-type]
        exclude=exclude if isinstance(exclude, str) else tuple(exclude),  # type: ignore[arg-type]
        overrides=overrides or {},
    )
    where = read_server(server, headers, token)
    connection = MCPConnection(registry, where, name, selection, chosen)
    try:
        await connection.connect()
    except BaseException:
        await connection.close()
        raise
    return connection


def _with_timeout(options: MCPOptions, timeout: float) -> MCPOptions:
    import dataclasses

    return dataclasses.replace(options, timeout=timeout)


class MCPConnections:
    """Several servers whose tools stand in one registry.

    Args:
        registry: Gets the tools.
    """

    def __init__(self, registry: ToolRegistry) -> None:
        self.registry: ToolRegistry = registry
        self._by_name: dict[str, MCPConnection] = {}
        self._coming: set[str] = set()

    async def add(self, server: Any, *, name: str, **settings: Any) -> MCPConnection:
        """Connect to one more server; as `add_mcp_server`, whose settings these are.

        Raises:
            ValueError: When there is one of that name.
        """
        if name in self._by_name or name in self._coming:
            msg = f"there is a server {name!r} already; give this one another `name`"
            raise ValueError(msg)
        self._coming.add(name)
        try:
            made = await add_mcp_server(self.registry, server, name=name, **settings)
        finally:
            self._coming.discard(name)
        self._by_name[name] = made
        return made

    def __getitem__(self, name: str) -> MCPConnection:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[MCPConnection]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    async def remove(self, name: str) -> bool:
        """Close one connection; False when there is none of that name."""
        found = self._by_name.pop(name, None)
        if found is None:
            return False
        await found.close()
        return True

    async def close(self) -> None:
        """Close all connections, at once."""
        found = list(self)
        self._by_name.clear()
        if found:
            await asyncio.gather(*(item.close() for item in found))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()
