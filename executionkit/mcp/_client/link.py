"""One connection from its handshake to its end, and the calls on it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from executionkit._clock import get_clock
from executionkit._redact import redact_exception_text
from executionkit.context import get_current_context
from executionkit.errors import MCPConnectionError, MCPError, require
from executionkit.mcp._client import failures
from executionkit.mcp._client.http import HttpWire
from executionkit.mcp._client.results import answer_text, blocks_of, value_of
from executionkit.mcp._client.servers import HttpServer, SseServer, StdioServer
from executionkit.mcp._client.stdio import StdioWire
from executionkit.mcp._client.watch import CURRENT, Progress, Watch
from executionkit.observability import trace_headers

if TYPE_CHECKING:
    from executionkit.mcp._client.servers import MCPOptions
    from executionkit.mcp._client.tools import RemoteTool

__all__ = ("META_PREFIX", "Gone", "Link")

META_PREFIX: Final = "executionkit/"
"""Before the name of a context header, in the metadata of a request."""

_W3C: Final = frozenset({"traceparent", "tracestate"})
"""What the protocol itself has names for."""

_CLOSED: Final = -32000
_NO_SESSION: Final = frozenset({400, 404})
_AUTH: Final = frozenset({401, 403})
_NOT_NOW: Final = 429
_MAX_TEXT: Final = 2000
_MAX_PAGES: Final = 1000
_MAX_TOOLS: Final = 10_000
_log = logging.getLogger("executionkit")


class Gone(Exception):  # noqa: N818 - never leaves this folder
    """A call met a connection that is gone.

    Args:
        error: What to raise when the call is not sent again.
        untouched: Whether the server has certainly not begun with it.
    """

    def __init__(self, error: Exception, *, untouched: bool) -> None:
        super().__init__()
        self.error: Exception = error
        self.untouched: bool = untouched


class Link:
    """One connection.

    Args:
        number: Counts the connections to one server, from 1.
        name: The server's name, for errors.
        server: What to connect to.
        options: Limits.
    """

    def __init__(
        self, number: int, name: str, server: Any, options: MCPOptions
    ) -> None:
        self.number: int = number
        self.name: str = name
        self.options: MCPOptions = options
        self.lost: str | None = None
        """Why it is gone; None while it is not."""
        self.over: asyncio.Event = asyncio.Event()
        """Set when it is to be taken down."""
        self.changed: asyncio.Event = asyncio.Event()
        """Set when the server says that its tools are others now."""
        self._calls = 0
        self._is_retired = False
        self.check: Any = None
        """The SDK's check of a result against the tool's schema."""
        self.wire = self._wire(server)
        self.client: Any = self._client(server)
        self._sdk_error: type[Exception] = require("mcp", extra="mcp").MCPError

    def _wire(self, server: Any) -> StdioWire | HttpWire | None:
        if isinstance(server, StdioServer):
            return StdioWire(server, self.options, self.end)
        if isinstance(server, (HttpServer, SseServer)):
            return HttpWire(server, self.options, self.end)
        return None

    def _client(self, server: Any) -> Any:
        target = server if self.wire is None else self.wire.target
        return require("mcp", extra="mcp").Client(
            target,
            mode=self.options.mode,
            cache=None,
            message_handler=self._hear,
            **self.options.client,
        )

    def end(self, why: str = "") -> None:
        """The connection is gone, or is to be."""
        if self.lost is None:
            self.lost = why
        self.over.set()

    def retire(self, why: str) -> None:
        """Take no new calls; end when those that run have ended, or in some seconds."""
        if self.lost is None:
            self.lost = why
            self._is_retired = True
            get_clock().call_later(self.options.close_timeout, self.over.set)

    async def _hear(self, message: Any) -> None:
        types: Any = require("mcp.types", extra="mcp")
        if isinstance(message, types.ToolListChangedNotification):
            self.changed.set()

    def ready(self) -> None:
        """The handshake is done."""
        session = self.client.session
        # The SDK raises away what the tool said when it does not fit the schema.
        self.check = session.validate_tool_result
        session.validate_tool_result = _no_check

    async def follow(self) -> None:
        """Hear of changed tools, where the protocol has no messages without a request."""
        capabilities = self.client.server_capabilities
        tools: Any = getattr(capabilities, "tools", None)
        versions: Any = require("mcp_types.version", extra="mcp")
        modern = self.client.protocol_version in versions.MODERN_PROTOCOL_VERSIONS
        if not modern or not getattr(tools, "list_changed", False):
            return
        pause = 1.0
        while not self.over.is_set():
            try:
                async with self.client.listen(tools_list_changed=True) as events:
                    if pause != 1.0:
                        self.changed.set()  # what happened meanwhile is not told
                    pause = 1.0
                    async for _ in events:
                        self.changed.set()
            except Exception as exc:  # noqa: BLE001 - calls go on without it
                _log.debug("MCP server '%s' stopped telling: %r", self.name, exc)
            await get_clock().sleep(pause)
            pause = min(pause * 2, 60.0)

    @property
    def spoilt(self) -> dict[str, str]:
        """Tools that the last list had and that cannot be read, and why."""
        return {} if self.wire is None else dict(self.wire.spoilt)

    async def tools(self) -> list[Any]:
        """All tools of the server, page by page.

        Raises:
            MCPError: When the pages have no end.
        """
        found: list[Any] = []
        seen: set[str] = set()
        if self.wire is not None:
            self.wire.spoilt.clear()
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self.client.list_tools(cursor=cursor)
            found.extend(page.tools)
            cursor = page.next_cursor
            if cursor is None:
                return found
            if cursor in seen or len(found) > _MAX_TOOLS:
                break
            seen.add(cursor)
        msg = f"its list of tools has no end ({len(found)} tools, then the same page again)"
        raise MCPError(self.name, msg)

    async def call(
        self, tool: RemoteTool, arguments: dict[str, Any], tell: Progress | None
    ) -> Any:
        """The value of one call.

        Raises:
            Gone: When the connection is gone.
            ExecutionKitError: As `executionkit.mcp.client` says.
        """
        options = self.options
        watch = Watch(get_clock(), options.timeout, options.max_total, tell)
        token = CURRENT.set(watch)
        self._calls += 1
        try:
            async with watch.limit:
                # The callback is what makes the SDK send a progress token.
                result = await self.client.call_tool(
                    tool.name,
                    arguments,
                    progress_callback=watch.progress,
                    meta=self._meta(),
                )
        except TimeoutError as exc:
            raise self._timed_out(watch, tool, exc) from exc
        except self._sdk_error as exc:
            raise self._failure(watch, tool, exc) from exc
        except Exception as exc:
            raise self._odd(watch, tool, exc) from exc
        finally:
            watch.end()
            CURRENT.reset(token)
            self._calls -= 1
            if self._is_retired and not self._calls:
                self.over.set()
        if result.is_error:
            error = failures.MCPToolError(self.name, tool.name, *_said(result))
            error.retries_exhausted = True  # it was answered: nothing was lost
            raise error
        if tool.has_schema:
            await self._fits(tool, result)
        return value_of(result)

    def _meta(self) -> Any:
        if not self.options.send_context:
            return None
        context = get_current_context()
        told = {} if context is None else context.to_headers()
        told.update(trace_headers())
        return {
            name if name in _W3C else META_PREFIX + name: value
            for name, value in told.items()
        } or None

    async def _fits(self, tool: RemoteTool, result: Any) -> None:
        try:
            await self.check(tool.name, result)
        except RuntimeError as exc:
            why = str(exc).partition("\n")[0][:_MAX_TEXT]
            raise failures.MCPResultError(
                self.name, tool.name, why, *_said(result)
            ) from exc

    def is_lost(self, watch: Watch) -> bool:
        """Whether an exchange failed because nobody is there any more."""
        return self.lost is not None or watch.failure is not None

    def loss(self, watch: Watch | None, fallback: str = "") -> MCPConnectionError:
        """The error of a connection that is gone."""
        found: list[str] = []
        if watch is not None and watch.failure is not None:
            failure = watch.failure
            kind = type(failure).__name__
            found.append(f"{kind}: {redact_exception_text(failure)}")
        elif self.wire is not None:
            found.append(self.wire.describe())
        why = "; ".join(text for text in (self.lost or "", *found) if text)
        what = why or fallback or "the connection is closed"
        return failures.lost(self.name, f"the connection is gone: {what}")

    def _timed_out(self, watch: Watch, tool: RemoteTool, exc: Exception) -> Exception:
        if watch.failure is not None:  # not the time: `Watch.fail`
            return self._gone(watch, tool)
        if not watch.limit.expired():
            return self._odd(watch, tool, exc)
        return _unsafe(watch.error(self.name, tool.name), tool)

    def _failure(self, watch: Watch, tool: RemoteTool, exc: Any) -> Exception:
        """The error for what the SDK raised: from the server, or about it."""
        status = watch.status
        if watch.has_session and status in _NO_SESSION and exc.code != -32602:
            self.retire(f"the server does not know the session (HTTP {status})")
            return Gone(self.loss(None), untouched=True)
        if self.is_lost(watch):
            return self._gone(watch, tool)
        if exc.code == _CLOSED and self._is_ours(watch):
            error = failures.lost(self.name, f"the answer was lost: {exc.message}")
            return Gone(_unsafe(error, tool), untouched=False)
        if status is not None and (
            status >= 500 or status in _AUTH or status == _NOT_NOW
        ):
            return self._http_error(watch, tool, status)
        return failures.refused(self.name, exc, status)

    def _is_ours(self, watch: Watch) -> bool:
        """Whether the SDK made up an error that says "closed": servers may send it, too."""
        if self.wire is None:
            return self.over.is_set()
        if not self.wire.is_http:
            return False  # the end of the process would be known
        if watch.status is None:
            self.end("the connection takes no more requests")
        return watch.has_ended or watch.status is None

    def _http_error(self, watch: Watch, tool: RemoteTool, status: int) -> Exception:
        error = failures.lost(
            self.name, f"the server answered HTTP {status}", status=status
        )
        error.retry_after = watch.retry_after
        if status in _AUTH:
            error.retries_exhausted = True  # as wrong the next time
            return error
        return error if status == _NOT_NOW else _unsafe(error, tool)

    def _gone(self, watch: Watch, tool: RemoteTool) -> Exception:
        failure = watch.failure
        untouched = failure is not None and self._never_sent(failure)
        error = self.loss(watch)
        if self.lost is None:
            # Over HTTP there is nothing to connect anew: the next request tries again.
            return error if untouched else _unsafe(error, tool)
        return Gone(error if untouched else _unsafe(error, tool), untouched=untouched)

    @staticmethod
    def _never_sent(failure: Exception) -> bool:
        httpx2: Any = require("httpx2", extra="mcp")
        if not isinstance(failure, httpx2.HTTPError):
            return True  # it came from a token function, or from a login
        never = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
        return isinstance(failure, never)

    def _odd(self, watch: Watch, tool: RemoteTool, exc: Exception) -> Exception:
        """The error for what the SDK should not raise, and an answer it cannot read."""
        if self.is_lost(watch):
            return self._gone(watch, tool)
        pydantic: Any = require("pydantic", extra="mcp")
        text = " ".join(redact_exception_text(exc).split())[:_MAX_TEXT]
        if isinstance(exc, pydantic.ValidationError):
            text = f"its answer to '{tool.name}' is not what the protocol says: {text}"
        else:
            text = f"{type(exc).__name__}: {text}"
        error = MCPError(self.name, text, {"tool_name": tool.name})
        error.original_error = exc
        return _unsafe(error, tool)


async def _no_check(_name: str, _result: Any) -> None:
    """In the place of the SDK's check, which comes later here."""


def _said(result: Any) -> tuple[str, list[Any], Any]:
    return answer_text(result), blocks_of(result), result.structured_content


def _unsafe(error: MCPError, tool: RemoteTool) -> MCPError:
    """`error` of a call that may have had its effect: repeated only where that is safe."""
    if not tool.is_safe:
        error.retries_exhausted = True
    return error
