"""A server made with the SDK: run in process, over HTTP, or as a program."""

import asyncio
import base64
import os
import sys
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import (
    AudioContent,
    CallToolResult,
    ImageContent,
    TextContent,
    ToolAnnotations,
)

PIXEL = base64.b64encode(b"pixel").decode()


def make() -> MCPServer:
    """A fresh server."""
    app = MCPServer("real")

    @app.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @app.tool()
    async def slow(n: int, ctx: Context) -> str:
        for step in range(n):
            await ctx.report_progress(step + 1, n)
        return "done"

    @app.tool()
    async def forever(mark: str) -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            os.close(os.open(mark, os.O_CREAT))
            raise
        return "x"

    @app.tool(annotations=ToolAnnotations(destructive_hint=True, idempotent_hint=True))
    def wipe() -> str:
        raise ToolError("no such disk")

    @app.tool()
    def look() -> CallToolResult:
        return CallToolResult(
            content=[
                TextContent(type="text", text="a pixel"),
                ImageContent(type="image", data=PIXEL, mime_type="image/png"),
                AudioContent(type="audio", data=PIXEL, mime_type="audio/wav"),
            ]
        )

    @app.tool()
    def words() -> list[str]:
        return ["one", "two"]

    @app.tool()
    async def grow(name: str, ctx: Context) -> str:
        def more(x: int) -> int:
            return x * 2

        app.add_tool(more, name=name)
        await ctx.notify_tools_changed()
        return "ok"

    @app.tool()
    def meta(ctx: Context) -> dict[str, Any]:
        return dict(ctx.request_context.meta or {})

    @app.tool()
    def die() -> str:
        os._exit(3)

    return app


if __name__ == "__main__":
    made = make()
    if len(sys.argv) > 1:
        made.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        made.run()
