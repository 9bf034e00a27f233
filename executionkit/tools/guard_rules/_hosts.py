"""What host a text means to the most generous reader, and whether it is a public one.

Resolvers, browsers and HTTP clients read more than `127.0.0.1` as an address:
`2130706433`, `0x7f.1`, `0177.0.0.1`, full-width digits, `[::ffff:7f00:1]`. All of it is
read here, and where two readers differ, both readings count. The address blocks are
those of the IANA special-purpose registries, kept here because the tables of
`ipaddress` differ between Python versions.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, TypeAlias
from urllib.parse import unquote

from executionkit.types import sealed

__all__ = (
    "Address",
    "Host",
    "domain_of",
    "embedded_addresses",
    "is_local_name",
    "is_public",
    "matches",
    "read_host",
)

Address: TypeAlias = IPv4Address | IPv6Address

_V4_BLOCKED: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carriers' NAT; also metadata at 100.100.100.200
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # metadata of one cloud, in public space
        "169.254.0.0/16",  # link-local; also metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; also metadata at 192.0.0.192
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # old 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
_V6_PUBLIC: Final = IPv6Network("2000::/3")
_V6_BLOCKED: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)
_NAT64: Final = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL: Final = IPv6Network("64:ff9b:1::/48")

_LOCAL_SUFFIXES: Final = (
    "localhost",
    "localdomain",
    "local",
    "internal",
    "intranet",
    "private",
    "corp",
    "home",
    "home.arpa",
    "lan",
    "svc",
    # names of anybody's choice that resolve to whatever stands in them, or to loopback
    "nip.io",
    "sslip.io",
    "xip.io",
    "traefik.me",
    "backname.io",
    "1u.ms",
    "rbndr.us",
    "rebind.network",
    "localtest.me",
    "lvh.me",
    "vcap.me",
    "lacolhost.com",
    "local.gd",
    "localho.st",
    "lcl.host",
    "fuf.me",
    "yoogle.com",
)

_IGNORED: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff\t\r\n]"
)
_DOTS: Final = re.compile("[\u3002\uff0e\uff61]")
_HEX: Final = re.compile(r"0x[0-9a-f]*")
_OCTAL: Final = re.compile(r"0[0-7]*")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_QUAD_IN_NAME: Final = re.compile(
    r"(?<![0-9])([0-9]{1,3})[.-]([0-9]{1,3})[.-]([0-9]{1,3})[.-]([0-9]{1,3})(?![0-9])"
)
_TWO_READINGS: Final = re.compile("[\u00df\u1e9e\u03c2]")
_MAX_HOST: Final = 1024
_MAX_UNQUOTES: Final = 3


@sealed
@dataclass(frozen=True, slots=True)
class Host:
    """What a text means as a host."""

    name: str
    """In lower case, ASCII, without trailing dots; empty when there is none."""

    addresses: tuple[Address, ...] = ()
    """The addresses it is read as; empty for a name."""

    problem: str = ""
    """Why it cannot be read for sure; empty when it can."""

    public: bool = field(init=False, default=True)
    """Whether all the addresses are of the open internet, or the name may be one there
    (a name without a dot may)."""

    texts: tuple[str, ...] = field(init=False, default=())
    """What lists are compared with: the addresses, else the name."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        if self.addresses:
            put(self, "public", all(map(is_public, self.addresses)))
        else:
            put(self, "public", not is_local_name(self.name))
        put(self, "texts", tuple(map(str, self.addresses)) or (self.name,))


def _plain(text: str) -> str:
    for _ in range(_MAX_UNQUOTES):
        if "%" not in text:
            break
        text = unquote(text, errors="replace")
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _IGNORED.sub("", text))
        text = "".join(
            str(unicodedata.decimal(char)) if char.isdecimal() else char
            for char in _DOTS.sub(".", text)
        )
    return _IGNORED.sub("", text).strip().lower().rstrip(".")


@lru_cache(maxsize=2048)
def read_host(text: str) -> Host:
    """The host that `text` names: a name, an address in any spelling, `[IPv6]`.

    Without a scheme, user or path. A port after a colon is left out.
    """
    if len(text) > _MAX_HOST:
        return Host("", problem="it is too long for a host")
    zone_free = re.sub(r"%(?:25)?[a-z0-9_.~-]*(?=\]|$)", "", text, flags=re.IGNORECASE)
    host = _plain(zone_free if ":" in text else text)
    if host.startswith("["):
        inner, bracket, rest = host[1:].partition("]")
        if not bracket or (rest and not re.fullmatch(r":[0-9]*", rest)):
            return Host(host, problem="its brackets are broken")
        return _read_v6(inner)
    if host.count(":") > 1:
        return _read_v6(host)
    name, _, port = host.partition(":")
    if port and not re.fullmatch(r"[0-9]{1,5}", port):
        return Host(name, problem="its port is no number")
    name = name.rstrip(".")
    if not name:
        return Host("", problem="it is empty")
    last = name.rpartition(".")[2]
    if _NUMBER.fullmatch(last):
        return _read_v4(name)
    return _read_name(name)


def _read_v6(text: str) -> Host:
    try:
        return Host(text, (IPv6Address(text.partition("%")[0]),))
    except ValueError:
        return Host(text, problem="it is no IPv6 address")


def _read_v4(text: str) -> Host:
    """As `inet_aton` reads it, and as those do who take leading zeros for decimal."""
    parts = text.split(".")
    if len(parts) > 4:
        return Host(text, problem="it is no IPv4 address, though it ends in a number")
    found = {
        address
        for decimal_zeros in (False, True)
        if (address := _v4_of(parts, decimal_zeros=decimal_zeros)) is not None
    }
    if not found:
        return Host(text, problem="it is no IPv4 address, though it ends in a number")
    return Host(text, tuple(sorted(found)))


def _v4_of(parts: list[str], *, decimal_zeros: bool) -> IPv4Address | None:
    total = 0
    for index, part in enumerate(parts):
        number = _number(part, decimal_zeros=decimal_zeros)
        is_last = index == len(parts) - 1
        room = 8 * (5 - len(parts)) if is_last else 8
        if number is None or number >= 1 << room:
            return None
        total = (total << room) + number
    return IPv4Address(total)


def _number(part: str, *, decimal_zeros: bool) -> int | None:
    if len(part) > 64:
        return None
    if _HEX.fullmatch(part):
        return int(part[2:] or "0", 16)
    if not part.isdigit():
        return None
    if part.startswith("0") and not decimal_zeros:
        return int(part, 8) if _OCTAL.fullmatch(part) else None
    return int(part)


def _read_name(name: str) -> Host:
    if _TWO_READINGS.search(name):
        return Host(name, problem="clients read one of its letters in two ways")
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii")
        except UnicodeError:
            return Host(name, problem="it is no host name")
    if len(name) > 253 or not all(map(_LABEL.fullmatch, name.split("."))):
        return Host(name, problem="it is no host name")
    return Host(name)


def domain_of(text: str) -> str:
    """A domain as lists compare it: `Exämple.com.` -> `xn--exmple-cua.com`.

    Raises:
        ValueError: When it is no host name and no address.
    """
    host = read_host(text)
    if host.problem:
        msg = f"{text!r} cannot be used as a host: {host.problem}"
        raise ValueError(msg)
    return str(host.addresses[0]) if host.addresses else host.name


def matches(name: str, domain: str) -> bool:
    """Whether `name` is `domain` or below it; `*.domain` takes only what is below."""
    if domain.startswith("*."):
        return name.endswith(domain[1:])
    return name == domain or name.endswith(f".{domain}")


def embedded_addresses(address: IPv6Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses that traffic to `address` may end at."""
    raw = int(address)
    low = IPv4Address(raw & 0xFFFFFFFF)
    middle = (raw >> 32) & 0xFFFFFFFF
    found: list[IPv4Address] = []
    if raw >> 48 in {0, 0xFFFF}:  # ::a.b.c.d, ::ffff:a.b.c.d, ::ffff:0:a.b.c.d
        found.append(low)
    if address in _NAT64 or address in _NAT64_LOCAL:
        found.append(low)
    if middle & 0xFDFFFFFF == 0x5EFE:  # ISATAP
        found.append(low)
    if raw >> 112 == 0x2002:  # 6to4
        found.append(IPv4Address((raw >> 80) & 0xFFFFFFFF))
    if raw >> 96 == 0x20010000:  # Teredo: server, and the client, turned over
        found.append(IPv4Address((raw >> 64) & 0xFFFFFFFF))
        found.append(IPv4Address(~raw & 0xFFFFFFFF))
    return tuple(found)


def is_public(address: Address) -> bool:
    """Whether `address` is one of the open internet, whatever is embedded in it."""
    if isinstance(address, IPv4Address):
        return not any(address in block for block in _V4_BLOCKED)
    embedded = embedded_addresses(address)
    if not all(map(is_public, embedded)):
        return False
    if address in _NAT64 or address.ipv4_mapped is not None:
        return True
    return address in _V6_PUBLIC and not any(address in block for block in _V6_BLOCKED)


def is_local_name(name: str) -> bool:
    """Whether a host name belongs to a local network, or can be made to lead into one."""
    if any(matches(name, suffix) for suffix in _LOCAL_SUFFIXES):
        return True
    return any(
        max(numbers) <= 255 and not is_public(IPv4Address(bytes(numbers)))
        for found in _QUAD_IN_NAME.finditer(name)
        if (numbers := [int(number) for number in found.groups()])
    )
