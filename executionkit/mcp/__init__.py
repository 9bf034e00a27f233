"""Tools over the Model Context Protocol: a server for any registry, and a client.

`python -m executionkit.mcp` serves over standard input and output.
"""

from __future__ import annotations

from executionkit.mcp.client import (
    HttpServer,
    MCPConnection,
    MCPConnections,
    MCPOptions,
    MCPRequestError,
    MCPResultError,
    MCPToolError,
    SseServer,
    StdioServer,
    add_mcp_server,
)
from executionkit.mcp.server import (
    Exchange,
    MCPServer,
    Prompt,
    PromptArgument,
    ProtocolError,
    Resource,
    ServerOptions,
    current_exchange,
    handle_message,
    serve,
    serve_stdio,
)

__all__ = (
    "Exchange",
    "HttpServer",
    "MCPConnection",
    "MCPConnections",
    "MCPOptions",
    "MCPRequestError",
    "MCPResultError",
    "MCPServer",
    "MCPToolError",
    "Prompt",
    "PromptArgument",
    "ProtocolError",
    "Resource",
    "ServerOptions",
    "SseServer",
    "StdioServer",
    "add_mcp_server",
    "current_exchange",
    "handle_message",
    "serve",
    "serve_stdio",
)
