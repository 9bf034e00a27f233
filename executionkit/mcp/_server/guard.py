"""What an HTTP request must say before anybody looks at its message."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from executionkit.mcp._constants import HEADER_MISMATCH, META_VERSION
from executionkit.mcp._server.messages import ProtocolError
from executionkit.mcp._server.wire import WireError

if TYPE_CHECKING:
    from executionkit.mcp._server.core import Core
    from executionkit.mcp._server.messages import Incoming
    from executionkit.mcp._server.wire import Head

__all__ = ("HostGuard", "accepts", "check_modern_headers", "is_loopback")

_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_BASE64: Final = re.compile(r"=\?base64\?(.*)\?=")
_NUMBER: Final = re.compile(r"-?[0-9]{1,300}(?:\.0{1,300})?")
_NAMES: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_VERSION: Final = "mcp-protocol-version"
_METHOD: Final = "mcp-method"
_NAME: Final = "mcp-name"
_ONCE: Final = frozenset({_VERSION, _METHOD, _NAME})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class HostGuard:
    """Refuses requests that a page in somebody's browser made.

    A name of an attacker that leads to this machine stands in `Host`, and its page in
    `Origin`: both must be known.

    Args:
        hosts: Names under which the server may be reached, without port; `*` = any.
        origins: Whole origins beside those, such as `https://app.example`.
    """

    def __init__(self, hosts: Iterable[str], origins: Iterable[str]) -> None:
        self._hosts = frozenset(_bracketed(host.lower()) for host in hosts)
        self._origins = frozenset(origin.lower() for origin in origins)

    @classmethod
    def local(cls, hosts: Iterable[str], origins: Iterable[str]) -> HostGuard:
        """The same, and this machine's own names."""
        return cls((*_LOOPBACK, *hosts), origins)

    def check(self, head: Head) -> None:
        """Let a request pass.

        Raises:
            WireError: When it may not.
        """
        if "*" in self._hosts:
            return
        if _without_port(head.headers.get("host", "").lower()) not in self._hosts:
            raise WireError(403, "this `Host` is not served")
        origin = head.headers.get("origin")
        if origin is None or origin.lower() in self._origins:
            return
        try:
            parts = urlsplit(origin.lower())
            known = _without_port(parts.netloc) in self._hosts
        except ValueError:
            known = False
        if not known:
            raise WireError(403, "this `Origin` is not served")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def accepts(head: Head, kind: str) -> bool:
    """Whether the client takes a response of that type."""
    wanted = head.headers.get("accept", "*/*").lower()
    group = kind.partition("/")[0]
    offered = {part.partition(";")[0].strip() for part in wanted.split(",")}
    return bool(offered & {kind, f"{group}/*", "*/*"})


def decoded(value: str) -> str | None:
    """A header's value as it was meant; None when it is malformed."""
    found = _BASE64.fullmatch(value)
    if found is None:
        return value
    try:
        data = base64.b64decode(found[1].encode("ascii"), validate=True)
        if base64.b64encode(data).decode("ascii") != found[1]:
            return None
        return data.decode("utf-8")
    except (ValueError, binascii.Error):
        return None


def _mismatch(name: str) -> ProtocolError:
    msg = f"Header mismatch: `{name}` does not say what the body says"
    return ProtocolError(HEADER_MISMATCH, msg)


def check_modern_headers(core: Core, head: Head, incoming: Incoming) -> None:
    """Make sure that the headers say what the body says.

    Raises:
        ProtocolError: When they do not.
    """
    headers, params = head.headers, incoming.params
    for name in head.repeated & _ONCE:
        raise _mismatch(name)
    meta = params.get("_meta")
    if not isinstance(meta, Mapping) or META_VERSION not in meta:
        return  # refused for what is missing, by who reads it
    said = {_VERSION: headers.get(_VERSION), _METHOD: headers.get(_METHOD)}
    meant = {_VERSION: meta[META_VERSION], _METHOD: incoming.method}
    key = _NAMES.get(incoming.method)
    if key is not None and isinstance(params.get(key), str):
        said[_NAME] = decoded(headers.get(_NAME, ""))
        meant[_NAME] = params[key]
    for name, value in meant.items():
        if said[name] != value:
            raise _mismatch(name)
    if incoming.method == "tools/call":
        _check_arguments(core, head, params)


def _check_arguments(core: Core, head: Head, params: Mapping[str, Any]) -> None:
    name, arguments = params.get("name"), params.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        return
    try:
        schema = core.tools.find(name).tool.parameters
    except ProtocolError:
        return
    for path, token, kind in _marked(schema, ()):
        header = f"mcp-param-{token.lower()}"
        given = head.headers.get(header)
        value: Any = arguments
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        said = None if given is None else decoded(given)
        if header in head.repeated or (given is not None and said is None):
            raise _mismatch(header)
        if (given is None) != (value is None):
            raise _mismatch(header)
        if said is not None and not _same(said, value, kind):
            raise _mismatch(header)


def _marked(
    schema: object, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str, object]]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return
    for name, inner in properties.items():
        if not isinstance(inner, Mapping):
            continue
        here = (*path, str(name))
        token = inner.get("x-mcp-header")
        if isinstance(token, str) and token:
            yield here, token, inner.get("type")
        yield from _marked(inner, here)


def _same(said: str, value: object, kind: object) -> bool:
    if isinstance(value, bool):
        return said == ("true" if value else "false")
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if kind == "integer" and whole and _NUMBER.fullmatch(said) is not None:
        return int(said.partition(".")[0]) == value
    return isinstance(value, (str, int, float)) and said == str(value)
