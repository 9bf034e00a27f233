"""The HTTP layer: one transport protocol, three implementations, an SSE reader.

| name | needs | notes |
|---|---|---|
| `aiohttp` | extra `fast` | taken when installed |
| `httpx2`, `httpx` | extra `httpx` | the client of the SDKs; several times the CPU |
| `stdlib` | nothing | always there, and the leanest, see `bench/bench_http.py` |

All three behave alike, down to the errors; one suite of tests holds them to that. They
speak HTTP/1.1, never follow redirects, keep no cookies, read no `.netrc`, honour the
proxies of the environment, and decode gzip and deflate.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any, Final

from executionkit._constants import MAX_RESPONSE_BYTES
from executionkit._http.sse import SseDecoder, SseEvent, iter_sse
from executionkit._http.values import (
    ConnectionCounts,
    HttpRequest,
    HttpResponse,
    HttpStream,
    HttpTimeouts,
    HttpTransport,
)
from executionkit.errors import require

if TYPE_CHECKING:
    import ssl

__all__ = (
    "TRANSPORTS",
    "ConnectionCounts",
    "HttpRequest",
    "HttpResponse",
    "HttpStream",
    "HttpTimeouts",
    "HttpTransport",
    "SseDecoder",
    "SseEvent",
    "iter_sse",
    "open_transport",
)

TRANSPORTS: Final = ("aiohttp", "httpx2", "httpx", "stdlib")
"""The names of the transports, the best one first."""

_EXTRAS = {"aiohttp": "fast", "httpx2": "httpx", "httpx": "httpx"}
_VARIABLE = "EXECUTIONKIT_HTTP"


def open_transport(
    name: str | None = None,
    *,
    max_connections: int = 1000,
    client: object | None = None,
    tls: ssl.SSLContext | None = None,
    max_response_bytes: int = MAX_RESPONSE_BYTES,
) -> HttpTransport:
    """Make a transport. It opens nothing before the first request.

    Args:
        name: `"aiohttp"`, `"httpx2"`, `"httpx"` or `"stdlib"`. None = what the
            environment variable `EXECUTIONKIT_HTTP` says, else the first of these that
            is installed.
        max_connections: Requests of one loop in flight at once; more wait for their turn,
            bounded by their total limit.
        client: An `aiohttp.ClientSession`, or an `AsyncClient` of httpx2 or httpx, or
            what behaves like one. It keeps its settings (proxies, certificates), works
            on its own loop only, and is not closed by `aclose`.
        tls: The TLS context, for own certificates. None = the backend's default, which
            trusts the system's (httpx: certifi's) and checks host names.
        max_response_bytes: The cap for one body, decompressed.

    Raises:
        MissingExtraError: The one that was asked for is not installed.
        ValueError: There is none of that name, or `max_connections` is below 1.
    """
    chosen = _kind_of(client) if client is not None else _choose(name)
    options: dict[str, Any] = {
        "max_connections": max_connections,
        "max_response_bytes": max_response_bytes,
        "tls": tls,
    }
    if chosen == "stdlib":
        from executionkit._http.stdlib import StdlibTransport

        return StdlibTransport(**options)
    library = require(chosen, extra=_EXTRAS[chosen])
    if chosen == "aiohttp":
        from executionkit._http.aiohttp import AiohttpTransport

        session: Any = client
        return AiohttpTransport(**options, session=session)
    from executionkit._http.httpx import HttpxTransport

    return HttpxTransport(library, **options, client=client)


def _choose(name: str | None) -> str:
    asked = name or os.environ.get(_VARIABLE, "").strip() or None
    if asked is None:
        return next(each for each in TRANSPORTS if _is_installed(each))
    if asked in TRANSPORTS:
        return asked
    where = "`name`" if name else f"environment variable `{_VARIABLE}`"
    choices = ", ".join(f"`{each}`" for each in TRANSPORTS)
    msg = f"{where} is {asked!r}, which is no HTTP transport; choose one of {choices}"
    raise ValueError(msg)


def _is_installed(name: str) -> bool:
    return name == "stdlib" or importlib.util.find_spec(name) is not None


def _kind_of(client: object) -> str:
    """The backend that knows how to use a client of the caller's."""
    families = {kind.__module__.partition(".")[0] for kind in type(client).__mro__}
    for name in ("aiohttp", "httpx2", "httpx"):
        if name in families:
            return name
    if hasattr(client, "send") and hasattr(client, "aclose"):
        return "httpx2" if _is_installed("httpx2") else "httpx"
    msg = (
        "`client` must be an aiohttp `ClientSession` or an httpx `AsyncClient`, "
        f"got {type(client).__name__}"
    )
    raise ValueError(msg)
