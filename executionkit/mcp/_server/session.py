"""One client: what it sent becomes answers, each once, many at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from executionkit.mcp._constants import (
    BATCH_VERSION,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LATEST_LEGACY,
    LEGACY_VERSIONS,
    LOG_LEVELS,
    SERVER_BUSY,
)
from executionkit.mcp._server.asking import Questions
from executionkit.mcp._server.batches import Answers
from executionkit.mcp._server.exchange import (
    Exchange,
    InputRequiredError,
    enter_exchange,
)
from executionkit.mcp._server.listening import Subscription
from executionkit.mcp._server.messages import (
    Id,
    Incoming,
    Kind,
    Message,
    ProtocolError,
    decode,
    failure,
    notification,
    read_message,
    response,
)
from executionkit.mcp._server.methods import (
    Call,
    Method,
    find_method,
    input_required,
    state_purpose,
)
from executionkit.mcp._server.peer import Peer, is_modern, modern_peer, object_of

if TYPE_CHECKING:
    from executionkit.mcp._server.core import Core
    from executionkit.mcp._server.peer import Outlet

__all__ = ("Session",)

_MAX_BATCH: Final = 100
_MAX_URIS: Final = 1000
_IN_USE: Final = "Invalid request: `id` is in use"
_END_SECONDS: Final = 0.2
_log = logging.getLogger("executionkit")


class Session:
    """Serves one client.

    Args:
        core: What is offered.
        outlet: Where messages go that belong to no request.
        peer: The client, when it is known already; None = it has to say `initialize`.
        can_ask: Whether the client can be asked things.
    """

    def __init__(
        self,
        core: Core,
        outlet: Outlet,
        peer: Peer | None = None,
        *,
        can_ask: bool = True,
    ) -> None:
        self.peer: Peer | None = peer
        self.running: dict[Id, asyncio.Task[None]] = {}
        """The requests that are being served, by id."""
        self._core = core
        self._outlet = outlet
        self._can_ask = can_ask
        self._batches: set[asyncio.Task[None]] = set()
        self._unwanted: set[Id] = set()
        self._questions = Questions()
        self._uris: set[str] = set()
        self._declared: dict[str, Any] = {}
        self._closing = asyncio.Event()

    # --- coming in ---
    async def receive_bytes(self, data: bytes | bytearray | None) -> None:
        """Serve what was sent, whatever it is; None = it was too long to be read."""
        try:
            if data is None:
                limit = self._core.options.max_message_bytes
                msg = f"Invalid request: longer than {limit} bytes"
                raise ProtocolError(INVALID_REQUEST, msg)  # noqa: TRY301
            await self.receive(decode(data), self._outlet)
        except ProtocolError as exc:
            self._outlet.put(failure(exc.id, exc))
        except Exception as exc:  # noqa: BLE001 - nothing that comes in ends a server
            _log.warning("an MCP message was not served: %s", type(exc).__name__)
            self._outlet.put(failure(None, _internal(exc)))
        await self._outlet.drain()

    async def receive(
        self,
        message: object,
        outlet: Outlet,
        headers: Mapping[str, str] | None = None,
    ) -> asyncio.Task[None] | None:
        """Serve a message or a batch.

        Waits while too many requests of this client are under way.

        Returns:
            The task that answers; None when everything has been said.
        """
        if isinstance(message, list):
            return await self._receive_batch(message, outlet, headers)
        return await self._receive_one(message, outlet, headers)

    async def _receive_batch(
        self, items: list[object], outlet: Outlet, headers: Mapping[str, str] | None
    ) -> asyncio.Task[None] | None:
        version = None if self.peer is None else self.peer.version
        if version != BATCH_VERSION or not items or len(items) > _MAX_BATCH:
            why = "is empty" if not items else f"has more than {_MAX_BATCH} messages"
            if version != BATCH_VERSION:
                why = "is not part of this protocol version"
            error = ProtocolError(INVALID_REQUEST, f"Invalid request: a batch {why}")
            outlet.put(failure(None, error))
            return None
        answers = Answers(outlet)
        tasks = [
            await self._receive_one(item, answers, headers, in_batch=True)
            for item in items
        ]
        task = asyncio.create_task(answers.finish([one for one in tasks if one]))
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)
        return task

    async def _receive_one(
        self,
        message: object,
        outlet: Outlet,
        headers: Mapping[str, str] | None,
        *,
        in_batch: bool = False,
    ) -> asyncio.Task[None] | None:
        try:
            incoming = read_message(message)
        except ProtocolError as exc:
            outlet.put(failure(exc.id, exc))
            return None
        if incoming.kind is Kind.RESPONSE:
            self._questions.answered(incoming)
            return None
        if incoming.id is None:
            self._notified(incoming)
            return None
        try:
            return await self._request(incoming, outlet, headers, in_batch=in_batch)
        except ProtocolError as exc:
            outlet.put(failure(incoming.id, exc))
        except Exception as exc:  # noqa: BLE001 - an answer is owed, whatever happens
            _log.warning("%r failed: %s", incoming.method[:200], type(exc).__name__)
            outlet.put(failure(incoming.id, _internal(exc)))
        return None

    def _notified(self, incoming: Incoming) -> None:
        if incoming.method != "notifications/cancelled":
            return
        wanted = incoming.params.get("requestId")
        if not isinstance(wanted, (str, int)) or isinstance(wanted, bool):
            return
        task = self.running.get(wanted)
        if task is not None:
            self._unwanted.add(wanted)
            task.cancel()

    # --- requests ---
    async def _request(
        self,
        incoming: Incoming,
        outlet: Outlet,
        headers: Mapping[str, str] | None,
        *,
        in_batch: bool,
    ) -> asyncio.Task[None] | None:
        assert incoming.id is not None  # noqa: S101 - it is a request
        core, params, name = self._core, incoming.params, incoming.method
        if incoming.id in self.running:
            raise ProtocolError(INVALID_REQUEST, _IN_USE)
        if is_modern(params) or name == "server/discover":
            peer = modern_peer(params)
        elif self.peer is None:
            if name == "initialize" and not in_batch:
                outlet.put(response(incoming.id, self._initialize(params)))
                return None
            if name == "ping":
                outlet.put(response(incoming.id, {}))
                return None
            raise ProtocolError(INVALID_REQUEST, "Invalid request: not initialized yet")
        else:
            peer = self.peer
        if name == "initialize" and not peer.modern:
            raise ProtocolError(INVALID_REQUEST, "Invalid request: initialized already")
        method = find_method(core, peer, name)
        call = Call(core, peer, params, headers)
        if name in _OWN:
            outlet.put(response(incoming.id, self._own(name, params)))
            return None
        if not method.slow:
            result = core.finish(await method.run(call), peer)
            outlet.put(response(incoming.id, result))
            return None
        return await self._start(incoming, method, call, outlet)

    def _initialize(self, params: Mapping[str, Any]) -> dict[str, Any]:
        asked = params.get("protocolVersion")
        if not isinstance(asked, str):
            msg = "Invalid params: `protocolVersion` must be a text"
            raise ProtocolError(INVALID_PARAMS, msg)
        info, able = params.get("clientInfo"), params.get("capabilities")
        self.peer = peer = Peer(
            version=asked if asked in LEGACY_VERSIONS else LATEST_LEGACY,
            info=info if isinstance(info, Mapping) else {},
            capabilities=able if isinstance(able, Mapping) else {},
        )
        self._core.listeners.add(self)
        self._declared = self._core.capabilities(peer)
        result: dict[str, Any] = {
            "protocolVersion": peer.version,
            "capabilities": self._declared,
            "serverInfo": self._core.info(),
        }
        if self._core.instructions is not None:
            result["instructions"] = self._core.instructions
        return result

    def _own(self, name: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The methods that change this session, not what is offered."""
        assert self.peer is not None  # noqa: S101 - it is no modern method
        if name == "logging/setLevel":
            level = params.get("level")
            if level not in LOG_LEVELS:
                msg = f"Invalid params: `level` must be one of {', '.join(LOG_LEVELS)}"
                raise ProtocolError(INVALID_PARAMS, msg)
            self.peer.log_level = level
            return {}
        uri = params.get("uri")
        if not isinstance(uri, str):
            raise ProtocolError(INVALID_PARAMS, "Invalid params: `uri` must be a text")
        if name == "resources/unsubscribe":
            self._uris.discard(uri)
        elif len(self._uris) >= _MAX_URIS and uri not in self._uris:
            raise ProtocolError(SERVER_BUSY, f"More than {_MAX_URIS} subscriptions")
        else:
            self._uris.add(uri)
        return {}

    async def _start(
        self, incoming: Incoming, method: Method, call: Call, outlet: Outlet
    ) -> asyncio.Task[None]:
        assert incoming.id is not None  # noqa: S101 - it is a request
        params = call.params
        object_of(params, "inputResponses")
        exchange = Exchange(
            call.peer,
            outlet,
            incoming.id,
            params,
            self._questions.ask if self._can_ask and not call.peer.modern else None,
        )
        if "requestState" in params and call.peer.modern:
            purpose = state_purpose(incoming.method, params)
            exchange.state = self._core.unseal(purpose, params["requestState"])
        call.exchange = exchange
        await self._room()
        if incoming.id in self.running:  # the same id came meanwhile
            raise ProtocolError(INVALID_REQUEST, _IN_USE)
        task = asyncio.create_task(self._serve(incoming, method, call, outlet))
        self.running[incoming.id] = task
        return task

    async def _room(self) -> None:
        """Wait until another request may begin.

        Raises:
            ProtocolError: When those that run wait for the client: then nothing must
                be waited for here, for its answers have to be read.
        """
        limit = self._core.options.max_waiting
        while len(self.running) >= limit:
            if self._questions.asked.is_set():
                msg = f"More than {limit} requests at once"
                raise ProtocolError(SERVER_BUSY, msg)
            asked = asyncio.ensure_future(self._questions.asked.wait())
            try:
                await asyncio.wait(
                    {asked, *self.running.values()},
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                asked.cancel()

    async def _serve(
        self, incoming: Incoming, method: Method, call: Call, outlet: Outlet
    ) -> None:
        exchange = call.exchange
        assert exchange is not None and incoming.id is not None  # noqa: S101, PT018
        enter_exchange(exchange)
        try:
            answer = await self._outcome(incoming, method, call, outlet)
            exchange.close()
            outlet.put(answer)
            await outlet.drain()
        except asyncio.CancelledError:
            if incoming.id not in self._unwanted:
                raise
            # The client does not want it any more: nothing is said.
        finally:
            exchange.close()
            self._unwanted.discard(incoming.id)
            self.running.pop(incoming.id, None)

    async def _outcome(
        self, incoming: Incoming, method: Method, call: Call, outlet: Outlet
    ) -> Message:
        try:
            if incoming.method == "subscriptions/listen":
                result = await self._listen(incoming, call, outlet)
            else:
                async with self._core.slots:
                    result = await method.run(call)
        except InputRequiredError as exc:
            result = input_required(call, incoming.method, exc)
        except ProtocolError as exc:
            return failure(incoming.id, exc)
        except Exception as exc:  # noqa: BLE001 - an answer is owed, whatever happens
            _log.warning("%r failed: %s", incoming.method[:200], type(exc).__name__)
            return failure(incoming.id, _internal(exc))
        return response(incoming.id, self._core.finish(result, call.peer))

    async def _listen(
        self, incoming: Incoming, call: Call, outlet: Outlet
    ) -> dict[str, Any]:
        assert incoming.id is not None  # noqa: S101 - it is a request
        able = self._core.capabilities(call.peer)
        subscription = Subscription(outlet, incoming.id, call.params, able)
        self._core.listeners.add(subscription)
        try:
            subscription.begin()
            await self._closing.wait()
        finally:
            self._core.listeners.discard(subscription)
        return subscription.result()

    # --- going out ---
    def list_changed(self, kind: str) -> None:
        """Tell the client that a list is not what it was."""
        if kind in self._declared:
            self._outlet.put(notification(f"notifications/{kind}/list_changed"))

    def resource_updated(self, uri: str) -> None:
        """Tell the client about a resource that it asked about."""
        if uri in self._uris:
            params = {"uri": uri}
            self._outlet.put(notification("notifications/resources/updated", params))

    # --- ending ---
    async def finish(self, grace: float) -> None:
        """Let what runs go on for `grace` seconds, then cancel it. Never raises."""
        self._core.listeners.discard(self)
        self._closing.set()
        tasks = {*self.running.values(), *self._batches}
        if tasks and grace:
            await asyncio.wait(tasks, timeout=grace)
        tasks = {task for task in tasks if not task.done()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_END_SECONDS)


_OWN: Final = frozenset(
    {"logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
)


def _internal(exc: BaseException) -> ProtocolError:
    # Its text may hold anything; the type is enough to look for it.
    return ProtocolError(INTERNAL_ERROR, f"Internal error: {type(exc).__name__}")
