"""Where arguments name a host: URLs in texts, and arguments whose name says so."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from executionkit._constants import MAX_JSON_DEPTH
from executionkit.tools.guard_rules._hosts import Host, read_host

__all__ = ("Target", "nothing_in", "targets_in")

_WEB: Final = frozenset({"http", "https", "ws", "wss", "ftp"})
"""Schemes that clients also accept with one slash, or none, before the host."""

_KINDS: Final = MappingProxyType(
    {
        "url": "url",
        "urls": "url",
        "href": "url",
        "hrefs": "url",
        "webhook": "url",
        "webhooks": "url",
        "uri": "path",
        "uris": "path",
        "endpoint": "path",
        "endpoints": "path",
        "host": "host",
        "hostname": "host",
        "ip": "host",
        "proxy": "host",
        "hosts": "hosts",
        "hostnames": "hosts",
        "ips": "hosts",
        "proxies": "hosts",
    }
)
"""The last word of an argument's name -> what it holds. A number under "hosts" is a
count, in a list of hosts it is an address; a "path" may be one without a host."""
_FILLERS: Final = frozenset({"address", "addresses", "addr", "name", "names"})
_PLURAL: Final = re.compile(r"URLs|URIs|IPs")
_WORD: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")

_BEFORE_COLON: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]{1,30}\Z")
_WEB_AT_END: Final = re.compile(r"(?:https?|wss?|ftp)\Z", re.IGNORECASE)
_AFTER_COLON: Final = re.compile(
    r"([\\/]*)([^\s\"'<>`{}|^]{0,1200})"  # more than a host may have
)
_END: Final = re.compile(r"[/?#]")
_SCHEME: Final = re.compile(
    r"([A-Za-z][A-Za-z0-9+.\-]{0,30}):(?![0-9]{1,5}(?:[/?#\\]|$))"
)
_BARE: Final = re.compile(
    r"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.%]+\]|localhost\.?)"
    r"(?::[0-9]{1,5})?(?:/.*)?",
    re.IGNORECASE | re.DOTALL,
)
_ODD_KEYS: Final = frozenset({"localhost"})
_BEGINNINGS: Final = frozenset("/\\[lL0123456789")
_PLAIN: Final = frozenset({int, float, bool, type(None)})
_LIST: Final = re.compile(r"[,;\s]+")
_SPACE: Final = re.compile(r"[\t\r\n]")


class Target(NamedTuple):
    """A place in the arguments that names a host, or at least a scheme."""

    place: str
    """Where: `request.url`, `hosts[0]`."""

    scheme: str = ""
    host: Host | None = None
    trick: str = ""
    """`"userinfo"` or `"a backslash"`, when such a thing stands before the host."""

    maybe_path: bool = False
    """Whether a host without a dot may just as well be a path or plain words."""


@lru_cache(maxsize=2048)
def _kind(key: str) -> str:
    """What the name of an argument says: a value of `_KINDS`, or nothing."""
    text = _PLURAL.sub(lambda found: found[0].capitalize(), key[-200:])
    words = [word.lower() for word in _WORD.findall(text)]
    if len(words) > 1 and words[-1] in _FILLERS:
        words.pop()
    return _KINDS.get(words[-1], "") if words else ""


def nothing_in(arguments: Mapping[str, Any]) -> bool:
    """A quick look: True = certainly neither a URL nor a host in `arguments`."""
    for key, value in arguments.items():
        kind = type(value)
        if kind is str:
            if _kind(key) or not _is_harmless(value):
                return False
        elif kind not in _PLAIN or _kind(key):
            return False
        if not key.isidentifier() or key in _ODD_KEYS:
            return False
    return True


def targets_in(
    arguments: Mapping[str, Any], *, scan_text: bool = True
) -> Iterator[Target]:
    """All hosts and URLs in `arguments`.

    Raises:
        ValueError: When they are nested deeper than JSON may be.
    """
    todo: list[tuple[Any, str, str, int]] = [(arguments, "", "", 0)]
    while todo:
        value, place, kind, depth = todo.pop()
        if isinstance(value, str):
            yield from _in_string(value, place, kind, scan_text=scan_text)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                name = key if isinstance(key, str) else str(key)
                yield from _in_string(name, place or name, "", scan_text=scan_text)
                below = f"{place}.{name}" if place else name
                todo.append((item, below, _kind(name), depth + 1))
        elif isinstance(value, (list, tuple, set, frozenset)):
            one = "host" if kind == "hosts" else kind
            for index, item in enumerate(value):
                todo.append((item, f"{place}[{index}]", one, depth + 1))
        elif isinstance(value, (bytes, bytearray)):
            text = bytes(value).decode("latin-1")
            yield from _in_string(text, place, kind, scan_text=scan_text)
        elif kind == "host" and type(value) in {int, float}:
            yield Target(place, host=read_host(repr(value)))
        if depth > MAX_JSON_DEPTH:
            msg = f"arguments are nested deeper than {MAX_JSON_DEPTH} levels"
            raise ValueError(msg)


def _in_string(
    text: str, place: str, kind: str, *, scan_text: bool
) -> Iterator[Target]:
    if not kind and _is_harmless(text):
        return
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    whole = _SPACE.sub("", text).strip(" \0\x0b\x0c\x1c\x1d\x1e\x1f")
    if kind:
        for part in _LIST.split(whole) if kind.startswith("host") else (whole,):
            yield from _named(part, place, kind)
    elif whole.startswith(("//", "\\\\", "/\\", "\\/")) or _BARE.fullmatch(whole):
        yield from _authority("", whole, place, maybe_path=True)
    for candidate in _readings(text, whole):
        done = bool(kind) and candidate is whole  # by `_named`
        yield from _in_text(candidate, place, scan_text=scan_text, skip_first=done)


def _is_harmless(text: str) -> bool:
    """A quick look: True = certainly no URL, and no host by itself."""
    if ":" in text or "%" in text or not text.isascii():
        return False
    first = text.lstrip()[:1] if text[:1] <= " " else text[0]
    return first not in _BEGINNINGS


def _in_text(
    text: str, place: str, *, scan_text: bool, skip_first: bool
) -> Iterator[Target]:
    colon = text.find(":")
    while colon >= 0:
        start, scheme = _scheme_before(text, colon)
        if scheme and start == 0:
            rest = "" if skip_first else _whole_rest(text, colon + 1)
            if rest:
                yield from _authority(scheme, rest, place)
        elif scheme and scan_text:
            found = _AFTER_COLON.match(text, colon + 1)
            slashes, rest = found.groups() if found else ("", "")
            rest = _cut(rest)
            if slashes or rest:
                yield from _authority(scheme, slashes + rest, place)
        # From here, not from the end: there may be a URL inside of the URL.
        colon = text.find(":", colon + 1)


def _scheme_before(text: str, colon: int) -> tuple[int, str]:
    """The start of the scheme in front of a colon, and the scheme; empty = none."""
    after = text[colon + 1 : colon + 3]
    head = text[max(0, colon - 31) : colon]
    web = _WEB_AT_END.search(head)
    if web is None and (len(after) < 2 or after.strip("/\\")):
        return colon, ""
    found = _BEFORE_COLON.search(head)
    if found is None:
        return colon, ""
    start = colon - len(found[0])
    if start > 0 and web is not None:  # in a text nobody reads "it.https" as a scheme
        return colon - len(web[0]), web[0].lower()
    if web is not None and web[0] != found[0] and after.strip("/\\"):
        return colon, ""  # "xhttp:y"
    return start, found[0].lower()


def _whole_rest(text: str, at: int) -> str:
    """What stands behind the scheme of a text that begins with one."""
    whole = text[at:]
    slashes = len(whole) - len(whole.lstrip("/\\"))
    if "@" in _END.split(whole[slashes:], maxsplit=1)[0]:
        return whole  # some clients let white space and quotes stand before "@"
    found = _AFTER_COLON.match(text, at)
    return found[0] if found else ""


def _readings(text: str, whole: str) -> Iterator[str]:
    """The texts to look for URLs in: as it is, without line breaks, unquoted."""
    yield whole
    if whole != text:
        yield text
    lower = text.lower() if "%" in text else ""
    if "%3a" in lower or "%2f" in lower:
        yield unquote(text)


def _cut(rest: str) -> str:
    """The rest of a URL inside of a longer text, without the punctuation around it."""
    if rest.startswith("["):
        return rest
    return re.split(r"[,;)\]]", rest, maxsplit=1)[0].rstrip(".:!*")


def _named(text: str, place: str, kind: str) -> Iterator[Target]:
    """The host of an argument whose name says that it has one."""
    if not text:
        return
    found = _SCHEME.match(text)
    if found:
        scheme = found[1].lower()
        rest = text[found.end() :]
        if rest.startswith(("/", "\\")) or scheme in _WEB:
            yield from _authority(scheme, rest, place)
            return
        if not _looks_like_v6(text):
            yield Target(place, scheme=scheme)
            return
    slashes = len(text) - len(text.lstrip("/\\"))
    if slashes == 1 or text[0] in "?#":
        return  # a path
    maybe_path = kind == "path"
    yield from _authority("", text, place, maybe_path=maybe_path)


def _looks_like_v6(text: str) -> bool:
    return text.count(":") > 1 and not read_host(text).problem


def _authority(
    scheme: str, rest: str, place: str, *, maybe_path: bool = False
) -> Iterator[Target]:
    """What the part of a URL behind its scheme says."""
    bare = rest.lstrip("/\\")
    if scheme and scheme not in _WEB and len(rest) - len(bare) > 2:
        bare = ""  # file:///path
    rest = bare
    loose = _END.split(rest, maxsplit=1)[0]
    strict, backslash, _ = loose.partition("\\")
    if not loose:
        if scheme:
            yield Target(place, scheme=scheme)
        return
    trick = "userinfo" if "@" in loose else ""
    if backslash and (scheme or trick):
        trick = "a backslash"
    host = read_host(strict.rpartition("@")[2])
    yield Target(place, scheme, host, trick, maybe_path)
    # Careless readers end the host at a slash alone.
    until_slash = rest.partition("/")[0]
    if until_slash != loose and "@" in until_slash:
        other = read_host(until_slash.rpartition("@")[2])
        if other.addresses:
            yield Target(place, scheme, other, "", maybe_path)
