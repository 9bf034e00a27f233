"""The one owner of a connection: a task that makes it, holds it, and takes it down."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from executionkit._clock import get_clock
from executionkit._error_base import twin_of
from executionkit._redact import describe_exception, redact_exception_text
from executionkit.context import set_current_context
from executionkit.errors import ExecutionKitError, MCPError, MCPTimeoutError
from executionkit.mcp._client import failures
from executionkit.mcp._client.link import Link
from executionkit.mcp._client.watch import CURRENT, Watch
from executionkit.tools._running import wait_within

if TYPE_CHECKING:
    from executionkit.mcp._client.servers import MCPOptions

__all__ = ("Owner",)

_MARGIN: Final = 1.0
_log = logging.getLogger("executionkit")


class Owner:
    """Holds the connection to one server, in a task of its own.

    What the SDK opens has to be closed in the task that opened it. Here that is one
    task, whoever asks and in whatever order.

    Args:
        name: The server's name.
        server: What to connect to.
        options: Limits.
        on_tools: Given the list of tools, and those that cannot be read, at first and
            after each change; says whether that changed anything.
    """

    def __init__(
        self,
        name: str,
        server: Any,
        options: MCPOptions,
        on_tools: Callable[[list[Any], dict[str, str]], bool],
    ) -> None:
        self.name: str = name
        self.link: Link | None = None
        """The connection; it may be lost."""
        self.number: int = 0
        """Counts the connections made, from 1."""
        self.is_closing: bool = False
        self.last_words: str = ""
        """What the last process wrote to standard error."""
        self._server = server
        self._options = options
        self._on_tools = on_tools
        self._opening: asyncio.Future[Link] | None = None
        self._handshake: Watch | None = None
        self._wake = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        context.run(set_current_context, None)  # it serves many requests, not this one
        self._task = self.loop.create_task(
            self._live(), name=f"executionkit mcp {name}", context=context
        )

    async def current(self) -> Link:
        """The connection; made when there is none, once for all who wait for it.

        Raises:
            MCPConnectionError: When there is none to be had.
            MCPTimeoutError: After `connect_timeout`.
        """
        if asyncio.get_running_loop() is not self.loop:
            why = "it belongs to another event loop; connect in the one that calls"
            raise failures.lost(self.name, why)
        link = self.link
        if link is not None and link.lost is None:
            return link
        if self.is_closing or self._task.done():
            raise failures.lost(self.name, "the connection was closed")
        if self._opening is None:
            self._opening = self.loop.create_future()
            self._wake.set()
        try:
            return await asyncio.shield(self._opening)
        except ExecutionKitError as exc:
            # All who waited get it: each marks its own.
            raise twin_of(exc) from exc.__cause__

    async def load(self, link: Link) -> bool:
        """Ask for the list of tools; whether that changed anything.

        Raises:
            MCPError: When there is none.
        """
        seconds = self._options.connect_timeout
        try:
            async with get_clock().timeout(seconds):
                listed = await link.tools()
        except TimeoutError as exc:
            raise MCPTimeoutError(self.name, "listing tools", seconds) from exc
        except ExecutionKitError:
            raise
        except Exception as exc:
            if link.lost is not None:
                raise link.loss(None) from exc
            why = f"listing tools failed: {redact_exception_text(exc)}"
            raise MCPError(self.name, why) from exc
        return not self.is_closing and self._on_tools(listed, link.spoilt)

    async def close(self) -> None:
        """End the connection; within `close_timeout` and a second, whatever happens."""
        if not self.is_closing:
            self.is_closing = True
            self._wake.set()
            if self.link is not None:
                self.link.end("it was closed here")
            if self._handshake is not None:
                self._handshake.fail(failures.lost(self.name, "it was closed"))
        task = self._task
        if task.done() or asyncio.current_task() is task:
            return
        clock = get_clock()
        if await wait_within([task], self._options.close_timeout + _MARGIN, clock):
            task.cancel()
            if await wait_within([task], _MARGIN, clock):
                _log.warning("MCP server '%s' did not let go; it is left", self.name)

    async def _live(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self.is_closing:
                    break
                if self._opening is not None:
                    await self._one_link()
        finally:
            self.is_closing = True
            self._on_tools([], {})
            self._fail_opening(failures.lost(self.name, "the connection was closed"))

    async def _one_link(self) -> None:
        """One connection, from beginning to end."""
        watch = Watch(get_clock(), self._options.connect_timeout, None)
        CURRENT.set(watch)
        self._handshake = watch
        link: Link | None = None
        error: ExecutionKitError | None = None
        try:
            link = Link(self.number + 1, self.name, self._server, self._options)
            await self._hold(link, watch)
        except asyncio.CancelledError:
            error = failures.lost(self.name, "the connection was cancelled")
            raise
        except BaseException as exc:
            leaf = failures.first_leaf(exc)
            if not isinstance(leaf, Exception):
                raise leaf from exc
            error = self._why_not(link, watch, leaf)
        finally:
            self._leave(link, error)

    async def _hold(self, link: Link, watch: Watch) -> None:
        helpers: list[asyncio.Task[None]] = []
        try:
            async with watch.limit, link.client:
                link.ready()
                self._on_tools(await link.tools(), link.spoilt)
                watch.limit.reschedule(None)
                watch.end()
                self._publish(link)
                helpers = [
                    self.loop.create_task(self._keep_up(link)),
                    self.loop.create_task(link.follow()),
                ]
                await link.over.wait()
                await _stop(helpers)
                due = get_clock().monotonic() + self._options.close_timeout
                watch.limit.reschedule(due)
        finally:
            await _stop(helpers)

    async def _keep_up(self, link: Link) -> None:
        """Follow what the server says of its tools."""
        while True:
            await link.changed.wait()
            link.changed.clear()
            try:
                await self.load(link)
            except ExecutionKitError as exc:
                _log.warning("the tools of MCP server '%s' are old: %s", self.name, exc)

    def _publish(self, link: Link) -> None:
        self._handshake = None
        self.number = link.number
        self.link = link
        if self.is_closing:
            link.over.set()
        opening, self._opening = self._opening, None
        if opening is not None and not opening.done():
            opening.set_result(link)

    def _leave(self, link: Link | None, error: ExecutionKitError | None) -> None:
        self._handshake = None
        if link is not None:
            link.end("" if error is None else str(error))
            if link.wire is not None:
                self.last_words = link.wire.stderr
        if link is not None and self.link is link:
            self.link = None
        else:
            why = failures.lost(self.name, "the connection was closed")
            self._fail_opening(error or why)
        if self._opening is not None:
            self._wake.set()

    def _fail_opening(self, error: ExecutionKitError) -> None:
        opening, self._opening = self._opening, None
        if opening is not None and not opening.done():
            opening.set_exception(error)
            opening.exception()  # read, even when nobody waits any more

    def _why_not(
        self, link: Link | None, watch: Watch, exc: Exception
    ) -> ExecutionKitError:
        """Why there is no connection."""
        if isinstance(exc, ExecutionKitError):
            return exc
        known = "" if link is None or link.wire is None else link.wire.describe()
        if isinstance(exc, TimeoutError) and watch.failure is None:
            operation = f"connecting ({known})" if known else "connecting"
            return MCPTimeoutError(self.name, operation, self._options.connect_timeout)
        status = watch.status
        if isinstance(watch.failure, ExecutionKitError):
            return watch.failure
        if watch.failure is not None:
            kind = type(watch.failure).__name__
            why = f"{kind}: {redact_exception_text(watch.failure)}"
        elif status is not None and status >= 400:
            why = f"the server answered HTTP {status}"
        else:
            gone = known and link is not None and link.lost is not None
            said = f"{type(exc).__name__}: {redact_exception_text(exc)}"
            why = known if gone else f"{said} ({known})" if known else said
        error = failures.lost(self.name, f"connecting failed: {why}")
        if status is not None:
            error.details["status"] = status
            error.retry_after = watch.retry_after
        error.original_error = exc
        return error


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            text = describe_exception(failure)
            _log.error("following an MCP server failed: %s", text)
    tasks.clear()
