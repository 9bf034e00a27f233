"""An MCP server on the standard library: the reasoning patterns, or any registry.

    await serve(registry)                   # standard input and output
    async with MCPServer(tools=registry) as server:
        await server.serve(reader, writer)  # any pair of byte streams

It speaks 2024-11-05, 2025-03-26, 2025-06-18 and 2025-11-25, and 2026-07-28 without a
handshake. `executionkit.mcp.http` serves the same over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from executionkit.mcp._constants import LATEST_LEGACY
from executionkit.mcp._server.calling import ToolSource
from executionkit.mcp._server.core import Core, ServerOptions
from executionkit.mcp._server.exchange import Exchange, current_exchange
from executionkit.mcp._server.lines import LineOutlet, lines
from executionkit.mcp._server.messages import ProtocolError
from executionkit.mcp._server.offers import Prompt, PromptArgument, Resource
from executionkit.mcp._server.peer import Peer
from executionkit.mcp._server.session import Session
from executionkit.mcp._server.stdio import run_stdio
from executionkit.mcp.tools import ProviderFactory, Reasoning, reasoning_registry

if TYPE_CHECKING:
    from executionkit.mcp._server.lines import ByteReader, ByteWriter
    from executionkit.mcp._server.messages import Message
    from executionkit.tools.processor import ToolProcessor
    from executionkit.tools.registry import ToolRegistry

__all__ = (
    "Exchange",
    "MCPServer",
    "Prompt",
    "PromptArgument",
    "ProtocolError",
    "Resource",
    "ServerOptions",
    "current_exchange",
    "handle_message",
    "serve",
    "serve_stdio",
)


class MCPServer:
    """Offers tools to the clients of the Model Context Protocol.

    Without `tools` it offers the reasoning patterns: `consensus` and `react_loop`.

    Args:
        provider_factory: Makes the provider of the reasoning patterns. None = from the
            environment; see `executionkit.mcp.tools`.
        tools: A registry, a processor around one (then calls go through its layers),
            or tools as `create_registry` takes them.
        name: What the server says it is called.
        version: What it says its version is. None = that of this package.
        instructions: What a model should know of it.
        resources: What can be read.
        prompts: Conversations to begin with.
        options: Limits.

    Raises:
        ToolRegistrationError: When one of `tools` is none.
    """

    def __init__(
        self,
        provider_factory: ProviderFactory | None = None,
        *,
        tools: ToolRegistry | ToolProcessor | Iterable[object] | None = None,
        name: str = "executionkit",
        version: str | None = None,
        instructions: str | None = None,
        resources: Iterable[Resource] = (),
        prompts: Iterable[Prompt] = (),
        options: ServerOptions | None = None,
    ) -> None:
        self._reasoning = Reasoning(provider_factory) if tools is None else None
        if self._reasoning is not None:
            tools = reasoning_registry(self._reasoning)
        assert tools is not None  # noqa: S101 - one of the two
        if version is None:
            from executionkit import __version__

            version = __version__
        resources, prompts = tuple(resources), tuple(prompts)
        self._core = Core(
            ToolSource(tools),
            name=name,
            version=version,
            instructions=instructions,
            resources=resources,
            prompts=prompts,
            options=options or ServerOptions(),
            fixed=self._reasoning is not None and not resources and not prompts,
        )
        self._answers = _Silent()
        self._session: Session | None = None

    @property
    def core(self) -> Core:
        """What all its clients share; for the transports."""
        return self._core

    # --- what is offered ---
    def add_resource(self, resource: Resource) -> None:
        """Offer a resource, or put it in the place of that of the same URI."""
        self._core.resources.add(resource)
        self._core.check_changes()

    def remove_resource(self, uri: str) -> bool:
        """Take a resource away; False when there was none."""
        found = self._core.resources.remove(uri)
        self._core.check_changes()
        return found

    def add_prompt(self, prompt: Prompt) -> None:
        """Offer a prompt, or put it in the place of that of the same name."""
        self._core.prompts.add(prompt)
        self._core.check_changes()

    def remove_prompt(self, name: str) -> bool:
        """Take a prompt away; False when there was none."""
        found = self._core.prompts.remove(name)
        self._core.check_changes()
        return found

    def resource_updated(self, uri: str) -> None:
        """Tell the clients that asked about it that a resource has changed."""
        self._core.resource_updated(uri)

    def check_changes(self) -> None:
        """Tell the clients now that the registry has changed; else within 0.25 s."""
        self._core.check_changes()

    # --- serving ---
    async def handle_message(self, message: object) -> Message | list[Message] | None:
        """Serve one message of a client that has no connection; the answer to it.

        All messages given to one server are one session, which begins with
        `initialize`. Notifications to the client are dropped.
        """
        if self._session is None:
            self._session = Session(self._core, self._answers, can_ask=False)
        return await _one_answer(self._session, message)

    async def serve(self, reader: ByteReader, writer: ByteWriter) -> None:
        """Serve one client over a pair of byte streams, until the input ends.

        Nothing that comes in makes it end before, or raise. When the input has ended,
        calls may go on for `options.grace` seconds; then they are cancelled.

        Args:
            reader: Such as an `asyncio.StreamReader`.
            writer: Such as an `asyncio.StreamWriter`; it is not closed.
        """
        core, outlet = self._core, LineOutlet(writer)
        session = Session(core, outlet)
        watch = None if core.fixed else asyncio.create_task(core.watch())
        grace = 0.0
        try:
            async for line in lines(reader, core.options.max_message_bytes):
                await session.receive_bytes(line)
                if outlet.closed:
                    break
            else:
                grace = core.options.grace
        finally:
            if watch is not None:
                watch.cancel()
            await session.finish(grace)
            await outlet.drain()

    async def close(self) -> None:
        """Stop what runs, and let go of what the server made itself. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.finish(0.0)
        await self._core.tools.close()
        if self._reasoning is not None:
            await self._reasoning.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


class _Silent:
    """For a client that has no connection."""

    full = True

    def put(self, message: object) -> None:
        """Nobody is there to hear it."""

    async def drain(self) -> None:
        """Nothing is ever unread."""

    def pause(self) -> None:
        """There is no connection."""


class _Answer(_Silent):
    """Keeps the answer of one message."""

    def __init__(self) -> None:
        self.found: Any = None

    def put(self, message: object) -> None:
        if isinstance(message, list) or (
            isinstance(message, dict) and "method" not in message
        ):
            self.found = message


async def _one_answer(
    session: Session, message: object
) -> Message | list[Message] | None:
    answer = _Answer()
    task = await session.receive(message, answer)
    if task is not None:
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
    found: Message | list[Message] | None = answer.found
    return found


async def handle_message(
    message: object, provider_factory: ProviderFactory | None = None
) -> Message | list[Message] | None:
    """Serve one message with the reasoning patterns, as if `initialize` had been said.

    Args:
        message: A decoded JSON-RPC message.
        provider_factory: As for `MCPServer`.

    Returns:
        The answer; None when there is none to give.
    """
    async with MCPServer(provider_factory) as server:
        peer = Peer(version=LATEST_LEGACY)
        session = Session(server.core, _Silent(), peer, can_ask=False)
        return await _one_answer(session, message)


async def serve_stdio(
    provider_factory: ProviderFactory | None = None,
    *,
    server: MCPServer | None = None,
    signals: bool = False,
    on_end: Callable[[], None] | None = None,
) -> None:
    """Serve standard input and output until the input ends.

    Meanwhile what prints, in this process or one that it starts, writes to standard
    error, and standard input is empty for everybody else.

    Args:
        provider_factory: As for `MCPServer`.
        server: The server; None = one of the reasoning patterns, closed at the end.
        signals: Whether SIGTERM and SIGINT end it too.
        on_end: Called when the end begins.
    """
    if server is not None:
        await run_stdio(server.serve, signals=signals, on_end=on_end)
        return
    async with MCPServer(provider_factory) as own:
        await run_stdio(own.serve, signals=signals, on_end=on_end)


async def serve(
    tools: ToolRegistry | ToolProcessor | Iterable[object],
    *,
    name: str = "executionkit",
    version: str | None = None,
    instructions: str | None = None,
    resources: Iterable[Resource] = (),
    prompts: Iterable[Prompt] = (),
    options: ServerOptions | None = None,
    signals: bool = False,
) -> None:
    """Serve tools over standard input and output until the input ends.

    Args:
        tools: As for `MCPServer`, and so are the others.
        name: What the server says it is called.
        version: What it says its version is.
        instructions: What a model should know of it.
        resources: What can be read.
        prompts: Conversations to begin with.
        options: Limits.
        signals: Whether SIGTERM and SIGINT end it too.

    Raises:
        ToolRegistrationError: When one of `tools` is none.
    """
    async with MCPServer(
        tools=tools,
        name=name,
        version=version,
        instructions=instructions,
        resources=resources,
        prompts=prompts,
        options=options,
    ) as server:
        await serve_stdio(server=server, signals=signals)
