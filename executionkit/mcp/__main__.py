"""`python -m executionkit.mcp`: serve the reasoning patterns, or any tools."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from typing import Final

from executionkit.mcp._server.loading import load_server
from executionkit.mcp.server import MCPServer, serve_stdio

_END_SECONDS: Final = 0.45


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m executionkit.mcp",
        description="Serve tools over the Model Context Protocol.",
    )
    parser.add_argument(
        "--tools",
        metavar="MODULE[:NAME]",
        help="tools to serve: a registry, a processor, a server, a list of tools, or "
        "a function that gives one of them; without it, the reasoning patterns",
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve streamable HTTP at /mcp there, not standard input and output",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="HOST",
        help="a name under which the HTTP server may be reached; may be repeated",
    )
    parser.add_argument("--name", help="what the server says it is called")
    return parser


async def _run(options: argparse.Namespace) -> None:
    server: MCPServer = load_server(options.tools, options.name)
    async with server:
        if options.http is None:
            await serve_stdio(server=server, signals=True, on_end=_limit_the_end)
        else:
            from executionkit.mcp.http import HTTPOptions, run_http

            where = HTTPOptions(allowed_hosts=tuple(options.allow_host))
            await run_http(
                server, options.http, where, signals=True, on_end=_limit_the_end
            )


def _limit_the_end() -> None:
    # A tool that does not end must not keep the process.
    watchdog = threading.Timer(_END_SECONDS, os._exit, (0,))
    watchdog.daemon = True
    watchdog.start()


def main(arguments: list[str] | None = None) -> int:
    """Serve until the input ends, or a signal; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        asyncio.run(_run(options))
    except KeyboardInterrupt:
        return 0
    except (ImportError, AttributeError, TypeError, ValueError, OSError) as exc:
        sys.stderr.write(f"mcp: {exc}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
