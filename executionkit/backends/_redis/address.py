"""Where a server is, read from an address whose password nobody else gets to see."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    import ssl

__all__ = ("Address", "parse_address")

SCHEMES: Final = ("redis", "rediss", "unix", "redis+unix")
_OPTIONS: Final = ("db", "prefix", "timeout", "ssl_ca_certs")


@dataclass(frozen=True, slots=True)
class Address:
    """One server, and who speaks to it."""

    host: str = "localhost"
    port: int = 6379
    path: str | None = None
    """A Unix socket in place of host and port."""

    db: int = 0
    username: str | None = None
    password: str | None = None
    is_tls: bool = False
    ssl_ca_certs: str | None = None
    """A file of the authorities that are trusted. None = those of the system."""

    prefix: str | None = None
    timeout: float | None = None

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    @property
    def shown(self) -> str:
        """The address without who logs in."""
        if self.path is not None:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "rediss" if self.is_tls else "redis"
        return f"{scheme}://{host}:{self.port}/{self.db}"

    def tls(self) -> ssl.SSLContext | None:
        """What checks the server's certificate; None without TLS."""
        if not self.is_tls:
            return None
        import ssl

        return ssl.create_default_context(cafile=self.ssl_ca_certs)


def parse_address(url: str) -> Address:
    """`redis://[[user]:password@]host[:port][/db][?options]`.

    `rediss://` is the same over TLS, `unix://[user:password@]/path` a Unix socket.
    Options are `db`, `prefix`, `timeout` (seconds) and `ssl_ca_certs` (a file).

    Raises:
        ValueError: When it cannot be read; the text never holds the address.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        msg = "`url` cannot be read; write 'redis://host:6379/0'"
        raise ValueError(msg) from exc
    if parts.scheme not in SCHEMES:
        msg = f"`url` must begin with one of {', '.join(f'{s}://' for s in SCHEMES)}"
        raise ValueError(msg)
    options = _options(parts.query)
    is_unix = parts.scheme.endswith("unix")
    path = unquote(parts.path)
    if is_unix and not path.strip("/"):
        msg = "`url` of a Unix socket needs a path; write 'unix:///run/redis.sock'"
        raise ValueError(msg)
    if not is_unix and path.strip("/"):
        options.setdefault("db", path.strip("/"))
    return Address(
        host=parts.hostname or "localhost",
        port=6379 if port is None else port,
        path=path if is_unix else None,
        db=_db(options.get("db", "0")),
        username=_text(parts.username),
        password=_text(parts.password),
        is_tls=parts.scheme == "rediss",
        ssl_ca_certs=options.get("ssl_ca_certs"),
        prefix=options.get("prefix"),
        timeout=_seconds(options.get("timeout")),
    )


def _text(part: str | None) -> str | None:
    return unquote(part) if part else None


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        shown = ", ".join(repr(name[:40]) for name in unknown)
        msg = f"`url` has unknown options {shown}; there are {', '.join(_OPTIONS)}"
        raise ValueError(msg)
    return options


def _db(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        msg = f"`url`: the database must be a number >= 0, got {text[:40]!r}"
        raise ValueError(msg)
    return int(text)


def _seconds(text: Any) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        msg = f"`url`: `timeout` must be > 0 seconds, got {text[:40]!r}"
        raise ValueError(msg)
    return seconds
