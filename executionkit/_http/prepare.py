"""Checks a request and brings it into the form that every backend sends.

What cannot be sent is refused here, before a backend sees it: their own messages show
the offending value, and that value may be a key.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from executionkit._redact import redact_url
from executionkit.errors import PermanentError

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from executionkit._clock import Clock
    from executionkit._http.values import HttpRequest, HttpTimeouts

__all__ = ("Call", "Target", "parse_target", "prepare")

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NAME_OR_IPV4 = re.compile(r"[A-Za-z0-9._-]+")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+")
_UNSAFE_IN_PATH = re.compile(r"[^!$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]")
_SAFE_IN_PATH = "!$%&'()*+,-./:;=?@[]_~"
_CONTROL_OR_SPACE = re.compile(r"[\x00-\x20\x7f]")

_SET_BY_TRANSPORT = frozenset(
    {"connection", "content-length", "expect", "te", "transfer-encoding", "upgrade"}
)
_BODY_EXPECTED = frozenset({"PATCH", "POST", "PUT"})
_HARMLESS = frozenset(
    {"accept", "accept-encoding", "content-type", "host", "user-agent"}
)
_MIN_SECRET = 6
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL."""

    scheme: str
    host: str
    """In ASCII; an IPv6 address without brackets."""

    port: int
    authority: str
    """The value of `Host`."""

    path: str
    """With the query; what stands in the request line."""

    credentials: str | None
    """The `Authorization` that the URL's user and password stand for."""

    @property
    def url(self) -> str:
        """The URL without credentials and fragment."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def origin(self) -> tuple[str, str, int]:
        """Requests with the same origin can share a connection."""
        return self.scheme, self.host, self.port


@dataclass(slots=True, eq=False)
class Call:
    """A request that can be sent, and the limits it runs under."""

    method: str
    target: Target
    headers: dict[str, str]
    """Without `Content-Length`, and without `Host` unless the caller gave one."""

    body: bytes
    timeouts: HttpTimeouts
    clock: Clock
    names_host: bool
    """Whether the caller gave a `Host` of its own."""

    scope: asyncio.Timeout
    """Runs while the request is sent, and while `send` reads the body."""

    once: bool = False
    """See `HttpRequest.once`."""

    aborted: bool = False
    """Whether the scope was ended because the transport was closed."""

    def abort(self) -> None:
        """End the request now: its transport is being closed."""
        self.aborted = True
        # The base's method, for a scope may run on a clock that stands still.
        with suppress(RuntimeError):  # it is ending by itself
            asyncio.Timeout.reschedule(self.scope, 0.0)

    @property
    def needs_length(self) -> bool:
        """Whether a `Content-Length` must be sent."""
        return bool(self.body) or self.method in _BODY_EXPECTED

    @property
    def shown_url(self) -> str:
        """The URL as it may appear in a message."""
        return redact_url(self.target.url)

    def secrets(self) -> tuple[str, ...]:
        """What must never appear in a message: values of headers and of the query."""
        from urllib.parse import parse_qsl

        query = self.target.path.partition("?")[2]
        found = [value for _, value in parse_qsl(query)]
        for name, value in self.headers.items():
            if name.lower() not in _HARMLESS:
                found += [value, *value.split()]
        return tuple(text for text in found if len(text) >= _MIN_SECRET)


def prepare(
    request: HttpRequest, timeouts: HttpTimeouts, clock: Clock, *, encodings: str
) -> Call:
    """Check `request` and complete it.

    Args:
        request: The caller's request.
        timeouts: Its limits.
        clock: What they are measured with.
        encodings: `Accept-Encoding`, unless the caller gave one.

    Raises:
        PermanentError: It cannot be sent as it is. No message shows a header's value.
    """
    method = request.method
    if _TOKEN.fullmatch(method) is None:
        msg = "`method` of the request is not an HTTP method, for example `POST`"
        raise PermanentError(msg)
    target = parse_target(request.url)
    headers = _checked_headers(request.headers)
    present = {name.lower() for name in headers}
    if target.credentials is not None and "authorization" not in present:
        headers["Authorization"] = target.credentials
    if "accept" not in present:
        headers["Accept"] = "*/*"
    if "accept-encoding" not in present:
        headers["Accept-Encoding"] = encodings
    if "user-agent" not in present:
        headers["User-Agent"] = "executionkit"
    return Call(
        method.upper(),
        target,
        headers,
        request.body,
        timeouts,
        clock,
        "host" in present,
        clock.timeout(timeouts.total),
        request.once,
    )


def _checked_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    checked: dict[str, str] = {}
    for name, value in headers.items():
        _check_name(name)
        if not isinstance(value, str):
            msg = f"value of header `{name}` must be text, got {type(value).__name__}"
            raise PermanentError(msg)
        if not (value.isascii() and value.isprintable()):
            _refuse_unless_tabs(name, value)
        checked[name] = value.strip(" \t")
    return checked


@lru_cache(maxsize=256)
def _check_name(name: Any) -> None:
    if not isinstance(name, str) or _TOKEN.fullmatch(name) is None:
        msg = "a header's name holds characters that are not allowed there"
        raise PermanentError(msg)
    if name.lower() in _SET_BY_TRANSPORT:
        msg = f"header `{name}` is set by the transport; leave it out"
        raise PermanentError(msg)


def _refuse_unless_tabs(name: str, value: str) -> None:
    if not value.isascii():
        msg = f"value of header `{name}` holds characters outside of ASCII; encode it"
        raise PermanentError(msg)
    if not value.replace("\t", "").isprintable():
        msg = (
            f"value of header `{name}` holds a line break or another control "
            "character; a key read from a file often ends in one: strip it"
        )
        raise PermanentError(msg)


@lru_cache(maxsize=256)
def parse_target(url: str) -> Target:
    """Parse an absolute URL.

    Raises:
        PermanentError: It is no URL that a request can be sent to.
    """
    from urllib.parse import quote, urlsplit

    # `urlsplit` drops line breaks silently, so look before.
    if _CONTROL_OR_SPACE.search(url) is not None:
        msg = "`url` of the request holds a space or a control character; quote it"
        raise PermanentError(msg)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
        reason = "its host or port is malformed"
    else:
        reason = _why_not(parts)
    if reason:
        msg = f"`url` of the request cannot be used: {reason}; got {redact_url(url)}"
        raise PermanentError(msg)
    host = _ascii_host(parts.hostname or "")
    path = parts.path or "/"
    if parts.query:
        path = f"{path}?{parts.query}"
    if _UNSAFE_IN_PATH.search(path) is not None:
        path = quote(path, safe=_SAFE_IN_PATH)
    shown = f"[{host}]" if ":" in host else host
    default = _PORTS[parts.scheme]
    return Target(
        parts.scheme,
        host,
        port or default,
        shown if port in {None, default} else f"{shown}:{port}",
        path,
        _basic(parts.username, parts.password),
    )


def _why_not(parts: SplitResult) -> str:
    host = parts.hostname or ""
    if parts.port == 0:
        return "there is no port 0"
    if parts.scheme not in _PORTS:
        return "the scheme must be 'http' or 'https'"
    if not host:
        return "it names no host"
    if ":" in host:
        return "" if _IPV6.fullmatch(host) else "the IPv6 address is malformed"
    if host.isascii() and _NAME_OR_IPV4.fullmatch(host) is None:
        return "the host holds characters that are not allowed there"
    return "" if _ascii_host(host) else "the host name cannot be written in ASCII"


def _ascii_host(host: str) -> str:
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        return ""


def _basic(user: str | None, password: str | None) -> str | None:
    if user is None and password is None:
        return None
    from base64 import b64encode
    from urllib.parse import unquote

    pair = f"{unquote(user or '')}:{unquote(password or '')}"
    return f"Basic {b64encode(pair.encode()).decode('ascii')}"
