"""Base URLs: checked once, extended by a path, and their secrets known."""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import (
    SplitResult,
    parse_qsl,
    quote,
    unquote,
    urlsplit,
    urlunsplit,
)

from executionkit._redact import PLACEHOLDER, redact_url

__all__ = ("Target", "target_of")

_SAFE: Final = "/?:@!$&'()*+,;=-._~%"
_AUTHORITY_END: Final = re.compile(r"[/?#]")
_NO_HOST: Final = "needs a host (and a port from 0 to 65535, if any)"
_MIN_SECRET_CHARS: Final = 4


class Target(NamedTuple):
    """Where requests go."""

    url: str
    """With the API's path, without the user's name and password."""

    authorization: str
    """What the user's name and password in the URL mean as a header; may be empty."""

    secrets: tuple[str, ...]
    """Parts of the URL that must not be shown."""


def _refuse(base_url: str, why: str) -> ValueError:
    shown = _hide_port(redact_url(base_url))
    return ValueError(f"`base_url` {why}, got {shown!r}")


def _hide_port(url: str) -> str:
    """`url` without a port that is no number: that is a password without its host."""
    scheme, mark, rest = url.partition("://")
    where = _AUTHORITY_END.split(rest, maxsplit=1)[0]
    host, colon, port = where.rpartition(":")
    if not colon or not port or port.isdigit() or "]" in port:
        return url
    return f"{scheme}{mark}{host}:{PLACEHOLDER}{rest[len(where) :]}"


def _check(base_url: str) -> None:
    scheme = base_url.partition("://")[0].lower() if "://" in base_url else ""
    if scheme not in {"http", "https"}:
        raise _refuse(base_url, "scheme must be 'http' or 'https'")
    if any(char.isspace() or not char.isprintable() for char in base_url):
        raise _refuse(base_url, "must not contain spaces or control characters")


def _split(url: str) -> tuple[SplitResult, str, int | None] | None:
    """`url` in parts, its host, its port; None when it has no usable host and port."""
    # What is raised here has the port in its text, which may be a password.
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.hostname:
            return parts, parts.hostname, parts.port
    return None


def target_of(base_url: str, path: str) -> Target:
    """The address of `path` under `base_url`; a query of the base stays at the end.

    Args:
        base_url: `http(s)://[user:password@]host[:port][/path][?query]`.
        path: Begins with a slash.

    Raises:
        ValueError: When `base_url` is not a usable address.
    """
    text = base_url.strip()
    _check(text)
    address = _split(text)
    if address is None:
        raise _refuse(text, _NO_HOST)
    parts, host, port = address
    where = f"[{host}]" if ":" in host else host
    if port is not None:
        where += f":{port}"
    if parts.path.rstrip("/").endswith(path):
        raise _refuse(text, f"must not end in {path!r}, which is added to it")
    whole_path = quote(parts.path.rstrip("/"), safe=_SAFE) + path
    query = quote(parts.query, safe=_SAFE)
    full = urlunsplit((parts.scheme, where, whole_path, query, ""))
    secrets = [
        value
        for name, value in parse_qsl(parts.query)
        if len(value) >= _MIN_SECRET_CHARS and "version" not in name.lower()
    ]
    authorization = ""
    if parts.username is not None or parts.password is not None:
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        token = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
        authorization = f"Basic {token}"
        secrets += [password, token]
    return Target(full, authorization, tuple(secrets))
