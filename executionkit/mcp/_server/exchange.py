"""What a tool can say to the client while it works, and ask it."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from executionkit.errors import ErrorCode, ToolProcessorError
from executionkit.mcp._constants import INVALID_PARAMS, LOG_LEVELS, MISSING_CAPABILITY
from executionkit.mcp._server.messages import Id, Message, ProtocolError, notification
from executionkit.mcp._server.peer import Outlet, Peer

__all__ = ("Exchange", "InputRequiredError", "current_exchange", "enter_exchange")

_current: ContextVar[Exchange | None] = ContextVar("executionkit_mcp", default=None)

_CAPABILITY: Final = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}


class InputRequiredError(ToolProcessorError):
    """The tool cannot go on without answers; the client asks again with them.

    Args:
        requests: What is asked, by a key for each.
        state: Comes back with the answers.
    """

    default_code = ErrorCode.TOOL_VALIDATION_ERROR  # one that is never tried again

    def __init__(
        self, requests: Mapping[str, Mapping[str, Any]], state: object = None
    ) -> None:
        super().__init__("the client is asked first")
        self.requests: dict[str, Any] = dict(requests)
        self.state: object = state


class Exchange:
    """The conversation about one request; `current_exchange()` finds it.

    Everything may be called from the tool's thread too, `ask` only from the event loop.
    After the request has been answered nothing more is sent.
    """

    __slots__ = (
        "_ask_client",
        "_done",
        "_last",
        "_loop",
        "_outlet",
        "_thread",
        "answers",
        "failure",
        "id",
        "peer",
        "state",
        "token",
    )

    def __init__(
        self,
        peer: Peer,
        outlet: Outlet,
        request_id: Id,
        params: Mapping[str, Any],
        ask_client: Callable[[str, Mapping[str, Any], Outlet], Awaitable[Any]] | None,
    ) -> None:
        self.peer: Peer = peer
        """The client."""
        self.id: Id = request_id
        """The request's id."""
        meta = params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, Mapping) else None
        self.token: Id | None = token if type(token) in (str, int) else None
        """What the client calls the progress of this request; None = it wants none."""
        self.answers: dict[str, Any] = _answers(params)
        """What the client answered, by key; before 2026-07-28 always empty."""
        self.state: Any = None
        """What `ask` was given before the client answered; its integrity is checked."""
        self.failure: ProtocolError | InputRequiredError | None = None
        """What the tool stopped with, when that is a matter of the protocol."""
        self._outlet = outlet
        self._ask_client = ask_client
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._done = False
        self._last = -math.inf

    # --- saying ---
    def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Tell how far the work is; nothing happens when the client did not ask.

        Args:
            progress: Grows from one call to the next; when it does not, nothing is sent.
            total: What `progress` will be in the end; None = unknown.
            message: In words; clients before 2025-03-26 do not get it.
        """
        if self.token is None or not self._last < progress < math.inf:
            return
        self._last = progress
        params: dict[str, Any] = {"progressToken": self.token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None and self.peer.version >= "2025-03-26":
            params["message"] = message
        self._say(notification("notifications/progress", params))

    def log(self, data: object, level: str = "info", logger: str | None = None) -> None:
        """Send a log message, if the client wants that level.

        Args:
            data: A text, or anything that is JSON.
            level: One of the eight of syslog, in lower case.
            logger: The name of who says it.

        Raises:
            ValueError: When there is no such level.
        """
        if level not in LOG_LEVELS:
            msg = f"`level` must be one of {', '.join(LOG_LEVELS)}, got {level!r}"
            raise ValueError(msg)
        if not self.peer.wants(level):
            return
        params: dict[str, Any] = {"level": level, "data": data}
        if logger is not None:
            params["logger"] = logger
        self._say(notification("notifications/message", params))

    def pause_stream(self) -> None:
        """Close the connection over which this request is answered, to save it.

        A client of 2025-11-25 over HTTP comes back for the rest; others keep theirs.
        """
        if not self.peer.modern and self.peer.version >= "2025-11-25":
            self._outlet.pause()

    async def drain(self) -> None:
        """Wait until the client has taken what was said."""
        await self._outlet.drain()

    def _say(self, message: Message) -> None:
        if threading.get_ident() == self._thread:
            self._put(message)
        elif not self._done:
            self._loop.call_soon_threadsafe(self._put, message)

    def _put(self, message: Message) -> None:
        # Late words are dropped: a client may have forgotten the request by now. So
        # are words that nobody reads in time; the result never is.
        if not self._done and not self._outlet.full:
            self._outlet.put(message)

    def close(self) -> None:
        """The request is being answered: from now on nothing is said."""
        self._done = True

    # --- asking ---
    def require(self, *capabilities: str) -> None:
        """Make sure that the client can do these.

        Raises:
            ProtocolError: When it cannot; raise it on.
        """
        missing = [name for name in capabilities if name not in self.peer.capabilities]
        if missing:
            self.failure = ProtocolError(
                MISSING_CAPABILITY if self.peer.modern else INVALID_PARAMS,
                f"The client lacks what this needs: {', '.join(missing)}",
                {"requiredCapabilities": {name: {} for name in missing}},
            )
            raise self.failure

    async def ask(
        self, requests: Mapping[str, Mapping[str, Any]], *, state: object = None
    ) -> dict[str, Any]:
        """Ask the client's user, model or host; the answers by key.

        From 2026-07-28 on the tool is stopped here and begun again when the answers
        are there; what it knows by then it gives as `state` and finds in `self.state`.
        Clients before it are asked at once.

        Args:
            requests: For each key `{"method": ..., "params": ...}`, with the methods
                `elicitation/create`, `sampling/createMessage` and `roots/list`.
            state: JSON-like; signed, not encrypted.

        Raises:
            ProtocolError: When the client cannot be asked; raise it on.
            InputRequiredError: To stop the tool; raise it on.
        """
        self.require(*sorted({_CAPABILITY[one["method"]] for one in requests.values()}))
        if not self.peer.modern:
            return await self._ask_now(requests)
        if all(isinstance(self.answers.get(key), Mapping) for key in requests):
            return {key: self.answers[key] for key in requests}
        self.failure = InputRequiredError(requests, state)
        raise self.failure

    async def _ask_now(
        self, requests: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        if self._ask_client is None:
            self.failure = ProtocolError(
                INVALID_PARAMS, "The client cannot be asked over this connection"
            )
            raise self.failure
        found: dict[str, Any] = {}
        for key, one in requests.items():
            params = one.get("params") or {}
            found[key] = await self._ask_client(one["method"], params, self._outlet)
        return found

    async def elicit(self, message: str, schema: Mapping[str, Any]) -> Any:
        """Ask the user to fill in a form; `{"action": ..., "content": ...}`.

        Raises:
            ProtocolError: As `ask` says.
            InputRequiredError: As `ask` says.
        """
        params = {"mode": "form", "message": message, "requestedSchema": dict(schema)}
        if self.peer.version < "2025-11-25":
            del params["mode"]
        one = {"method": "elicitation/create", "params": params}
        return (await self.ask({"form": one}))["form"]

    async def sample(self, prompt: str, max_tokens: int) -> Any:
        """Ask the client's model; a message with `role` and `content`.

        Raises:
            ProtocolError: As `ask` says.
            InputRequiredError: As `ask` says.
        """
        words = {"role": "user", "content": {"type": "text", "text": prompt}}
        params = {"messages": [words], "maxTokens": max_tokens}
        one = {"method": "sampling/createMessage", "params": params}
        return (await self.ask({"sample": one}))["sample"]


def _answers(params: Mapping[str, Any]) -> dict[str, Any]:
    found = params.get("inputResponses")
    return dict(found) if isinstance(found, Mapping) else {}


def current_exchange() -> Exchange | None:
    """The conversation about the request that is being served; None outside of one."""
    return _current.get()


def enter_exchange(exchange: Exchange) -> None:
    """Make `exchange` the current one of this task."""
    _current.set(exchange)
