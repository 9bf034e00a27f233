"""Which proxy the environment asks for, the same answer for every backend.

Reads what `urllib` reads: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY` in either
case, and the system's settings on Windows and macOS.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executionkit._http.prepare import Target

__all__ = ("EnvironmentProxies", "Proxy")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy and how to log in there."""

    url: str
    """With credentials, if it has any."""

    scheme: str
    host: str
    port: int
    credentials: str | None
    """The value of `Proxy-Authorization`."""


class EnvironmentProxies:
    """The environment's proxies, as they were when this was made."""

    def __init__(self) -> None:
        self._proxies = _read_environment()
        self._chosen: dict[tuple[str, str, int], Proxy | None] = {}

    def for_target(self, target: Target) -> Proxy | None:
        """The proxy for requests to `target`; None = go there directly.

        Raises:
            PermanentError: The proxy's URL cannot be used.
        """
        if not self._proxies:
            return None
        origin = target.origin
        if origin not in self._chosen:
            if len(self._chosen) >= 1024:
                self._chosen.clear()
            self._chosen[origin] = self._choose(target)
        return self._chosen[origin]

    def http_for_target(self, target: Target, backend: str) -> Proxy | None:
        """The same, for a backend that speaks to HTTP proxies only.

        Raises:
            PermanentError: The proxy is of another kind, or its URL cannot be used.
        """
        proxy = self.for_target(target)
        if proxy is None or proxy.scheme in {"http", "https"}:
            return proxy
        from executionkit.errors import PermanentError

        msg = (
            f"the environment asks for a `{proxy.scheme}` proxy, which the transport "
            f"`{backend}` does not speak; use `httpx2[socks]`, or unset the proxy"
        )
        raise PermanentError(msg)

    def _choose(self, target: Target) -> Proxy | None:
        from urllib.request import proxy_bypass

        url = self._proxies.get(target.scheme) or self._proxies.get("all")
        if not url or proxy_bypass(target.authority):
            return None
        return parse_proxy(url)


def _read_environment() -> Mapping[str, str]:
    named = any(name.lower().endswith("_proxy") for name in os.environ)
    if not named and sys.platform not in {"darwin", "win32"}:
        return {}  # the import below is not cheap
    from urllib.request import getproxies

    return getproxies()


@lru_cache(maxsize=32)
def parse_proxy(url: str) -> Proxy:
    """Parse a proxy's URL; `host:port` alone means `http://host:port`.

    Raises:
        PermanentError: It is no URL of a proxy.
    """
    from base64 import b64encode
    from urllib.parse import unquote, urlsplit

    from executionkit._redact import redact_url
    from executionkit.errors import PermanentError

    full = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(full)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
        parts = urlsplit("")
    if not host:
        msg = f"the proxy that the environment names cannot be used: {redact_url(full)}"
        raise PermanentError(msg)
    credentials = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        credentials = f"Basic {b64encode(pair.encode()).decode('ascii')}"
    default = 443 if parts.scheme == "https" else 80
    return Proxy(full, parts.scheme, host, port or default, credentials)
