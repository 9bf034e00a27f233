"""The transport on httpx2 or httpx: one client with the SDKs, hooks, user's own clients."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from executionkit._http.attempt import Attempt
from executionkit._http.base import KEEPALIVE_SECONDS, BaseTransport
from executionkit._http.limits import LimitReachedError
from executionkit._http.proxies import EnvironmentProxies, Proxy
from executionkit._http.unhooked import unhooked_next
from executionkit.errors import PermanentError

if TYPE_CHECKING:
    import ssl
    from types import ModuleType

    from executionkit._http.prepare import Call

__all__ = ("HttpxTransport",)

_CONNECT_LIMITS = frozenset({"ConnectTimeout", "PoolTimeout"})

_attempt: ContextVar[Attempt | None] = ContextVar("executionkit_httpx", default=None)
_ours: ContextVar[bool] = ContextVar("executionkit_httpx_ours", default=False)


class _Discreet(logging.Filter):
    """Keeps keys out of what the libraries log of requests of ours.

    httpx logs addresses, whose query may hold a key; httpcore logs the headers of
    replies and pieces of broken ones, in which a server may echo it. Of others'
    requests nothing is changed.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if not _ours.get():
            return True
        if record.name.startswith("httpcore"):
            if str(record.msg).startswith("receive_response"):
                record.msg = str(record.msg).partition(" ")[0]
        elif isinstance(record.args, tuple):
            record.args = tuple(_without_query(item) for item in record.args)
        return True


_discreet = _Discreet()


def _without_query(value: object) -> object:
    """What a log shows of `value`: an address without its query, the rest as it is."""
    if isinstance(value, (int, float)):
        return value
    return str(value).partition("?")[0]


def _be_discreet() -> None:
    """Attach the filter, once, to the loggers that tell of single requests."""
    for httpx, httpcore in (("httpx", "httpcore"), ("httpx2", "httpcore2")):
        for name in (httpx, f"{httpcore}.http11", f"{httpcore}.http2"):
            logging.getLogger(name).addFilter(_discreet)


class _Stream:
    """A connection of httpcore that reports to the attempt it serves."""

    __slots__ = ("_attempt", "_served", "_stream")

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._served = False
        self._attempt: Attempt | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data: bytes = await self._stream.read(max_bytes, timeout)
        if data and self._attempt is not None:
            self._attempt.heard = True
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        attempt = _attempt.get()
        if attempt is not self._attempt and attempt is not None:
            self._attempt = attempt
            attempt.reused = self._served
            self._served = True
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> _Stream:
        try:
            return _Stream(
                await _connecting(
                    lambda: self._stream.start_tls(
                        ssl_context, server_hostname, timeout
                    )
                )
            )
        except BaseException:  # httpcore forgets the socket when this is cancelled
            await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            # httpcore asks this of idle connections, and drops those that are.
            attempt = _attempt.get()
            if attempt is not None and attempt.fresh and self._served:
                return True
        return self._stream.get_extra_info(info)


class _Network:
    """The network of httpcore, with our connect limit and `_Stream`s."""

    __slots__ = ("_network",)

    def __init__(self, network: Any) -> None:
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> _Stream:
        return _Stream(
            await _connecting(
                lambda: self._network.connect_tcp(
                    host, port, timeout, local_address, socket_options
                )
            )
        )

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> Any:
        return await self._network.connect_unix_socket(path, timeout, socket_options)

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


async def _connecting(step: Any) -> Any:
    attempt = _attempt.get()
    if attempt is None:
        return await step()
    call = attempt.call
    seconds = call.timeouts.connect
    if seconds is None:
        return await attempt.dial(None, step)
    # TCP and TLS are separate steps for httpcore, and one limit for us.
    if attempt.link is None:
        attempt.link = call.clock.monotonic() + seconds
    left = attempt.link - call.clock.monotonic()
    return await attempt.dial(left, step)


@lru_cache(maxsize=256)
def _url(library: ModuleType, text: str) -> Any:
    return library.URL(text)


class _Clients:
    """The clients of one loop: one for each proxy, and one without."""

    __slots__ = ("_by_proxy", "_given", "_library", "_proxies", "_tls")

    def __init__(
        self, library: ModuleType, tls: ssl.SSLContext | None, given: Any
    ) -> None:
        self._library = library
        self._tls = tls
        self._given = given
        self._proxies = EnvironmentProxies()
        self._by_proxy: dict[Proxy | None, Any] = {}

    def for_call(self, call: Call) -> Any:
        """The client that `call` goes through."""
        if self._given is not None:
            return self._given
        proxy = self._proxies.for_target(call.target)
        client = self._by_proxy.get(proxy)
        if client is None:
            client = self._by_proxy[proxy] = self._make(proxy)
        return client

    def names_whole_url(self, call: Call) -> bool:
        """Whether the request line may have to hold the whole URL (for a proxy)."""
        if call.target.scheme == "https":
            return False
        return self._given is not None or bool(self._proxies.for_target(call.target))

    def _make(self, proxy: Proxy | None) -> Any:
        library = self._library
        try:
            transport = library.AsyncHTTPTransport(
                verify=True if self._tls is None else self._tls,
                # `BaseTransport` limits, and its waiting is not connecting.
                limits=library.Limits(
                    max_connections=None,
                    max_keepalive_connections=None,
                    keepalive_expiry=KEEPALIVE_SECONDS,
                ),
                proxy=self._proxy(proxy),
            )
        except (ImportError, ValueError):
            kind = "" if proxy is None else proxy.scheme
            msg = (
                f"the environment asks for a `{kind}` proxy, which `{library.__name__}` "
                f"cannot use as installed; install `{library.__name__}[socks]` for SOCKS"
            )
            raise PermanentError(msg) from None
        # There is no public way to hand a network to this class. Without the hook, the
        # connect limit is kept by httpx itself and a stale connection is not retried.
        pool: Any = getattr(transport, "_pool", None)
        network = getattr(pool, "_network_backend", None)
        if network is not None:
            pool._network_backend = _Network(network)  # noqa: SLF001
        return library.AsyncClient(
            transport=transport, timeout=None, trust_env=False, follow_redirects=False
        )

    def _proxy(self, proxy: Proxy | None) -> Any:
        if proxy is None:
            return None
        tls = self._tls if proxy.scheme == "https" else None
        return self._library.Proxy(proxy.url, ssl_context=tls)

    async def close(self) -> None:
        """Close those that are ours."""
        for client in self._by_proxy.values():
            await client.aclose()


class _Response:
    """A response of httpx; a `RawResponse`."""

    __slots__ = (
        "_begun",
        "_body",
        "_ready",
        "_response",
        "complete",
        "headers",
        "status",
    )

    def __init__(self, response: Any) -> None:
        self.status: int = response.status_code
        headers: dict[str, str] = {}
        for raw_name, raw_value in response.headers.raw:
            name = raw_name.decode("latin-1").lower()
            value = raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        self.headers = headers
        self.complete = False
        self._response = response
        self._ready = b""
        self._begun = False
        self._body: AsyncIterator[bytes] | None = None
        if response.is_stream_consumed:
            # A mocked transport made it, and httpx has read and decoded it already.
            self._ready = response.content
            self.complete = not self._ready
            headers.pop("content-encoding", None)
        else:
            self._body = response.aiter_raw()

    def take(self) -> bytes:
        data, self._ready = self._ready, b""
        self.complete = self.complete or bool(data)
        return data

    async def more(self) -> bytes:
        body: Any = self._body
        token = _ours.set(True)
        try:
            if not self._begun:
                self._begun = True
                first: bytes = await unhooked_next(body)
                if first:
                    return first
            data: bytes
            async for data in body:
                if data:
                    return data
        except StopAsyncIteration:
            pass
        finally:
            _ours.reset(token)
        self.complete = True
        return b""

    async def abort(self) -> None:
        await self._response.aclose()
        body: Any = self._body
        # The loop does not do it; nobody may be reading from it now.
        if not getattr(body, "ag_running", True):
            await body.aclose()


class HttpxTransport(BaseTransport[_Clients]):
    """HTTP/1.1 by httpx2 or httpx.

    Args:
        library: The module, `httpx2` or `httpx`.
        max_connections: See `BaseTransport`.
        max_response_bytes: See `BaseTransport`.
        tls: Instead of the library's default context.
        client: An `AsyncClient`, or what behaves like one, to use instead of one per
            loop. It works on its own loop only, keeps its settings, and is not closed
            by `aclose`.
    """

    def __init__(
        self,
        library: ModuleType,
        *,
        max_connections: int,
        max_response_bytes: int,
        tls: ssl.SSLContext | None = None,
        client: Any = None,
    ) -> None:
        super().__init__(
            max_connections=max_connections, max_response_bytes=max_response_bytes
        )
        self.name = library.__name__
        self._library = library
        self._tls = tls
        self._client = client

    def _new_client(self) -> _Clients:
        _be_discreet()
        return _Clients(self._library, self._tls, self._client)

    @staticmethod
    async def _close_client(client: _Clients) -> None:
        await client.close()

    async def _start(self, client: _Clients, call: Call, attempt: Attempt) -> _Response:
        library = self._library
        limits = {
            "connect": call.timeouts.connect,
            "read": None,
            "write": None,
            "pool": None,
        }
        extensions: dict[str, Any] = {"timeout": limits}
        address, mark, _query = call.target.url.partition("?")
        if mark and not client.names_whole_url(call):
            # httpx logs the address of each request, and a query may hold a key. The
            # address goes without it, the request line has it.
            extensions["target"] = call.target.path.encode("ascii")
        else:
            address = call.target.url
        request = library.Request(
            call.method,
            _url(library, address),
            headers=call.headers,
            content=call.body,
            extensions=extensions,
        )
        token, mine = _attempt.set(attempt), _ours.set(True)
        try:
            response = await client.for_call(call).send(
                request, stream=True, follow_redirects=False
            )
        except Exception as exc:
            if any(kind.__name__ in _CONNECT_LIMITS for kind in type(exc).__mro__):
                raise LimitReachedError(which="connect") from None
            raise
        finally:
            _attempt.reset(token)
            _ours.reset(mine)
        return _Response(response)
