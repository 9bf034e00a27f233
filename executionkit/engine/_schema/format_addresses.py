"""The formats that name a place: mail addresses, hosts, IP addresses, URIs, IRIs."""

from __future__ import annotations

import re
from typing import Final

from executionkit.engine._schema.format_idn import is_idn_label

__all__ = (
    "is_email",
    "is_hostname",
    "is_idn_email",
    "is_idn_hostname",
    "is_ipv4",
    "is_ipv6",
    "is_iri",
    "is_iri_reference",
    "is_uri",
    "is_uri_reference",
    "is_uri_template",
)

_MAX_HOST: Final = 253
_MAX_LOCAL: Final = 64
_MAX_MAIL: Final = 254

_LABEL: Final = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_IDN_DOTS: Final = "[.\u3002\uff0e\uff61]"  # RFC 3490, section 3.1
_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
# Above U+10F7FF nothing is taken: there `jsonschema-rs` is given lone surrogates.
_BEYOND: Final = "\x80-\ud7ff\ue000-\U0010f7ff"
_ATEXT: Final = "A-Za-z0-9!#$%&'*+/=?^_`{|}~-"
_QUOTED: Final = r'"(?:[ !#-\[\]-~{more}]|\\[ -~])*"'

_PERCENT: Final = "%[0-9A-Fa-f]{2}"
_SUB: Final = "!$&'()*+,;="
_PLAIN: Final = r"A-Za-z0-9\-._~"
_PLANES: Final = "".join(
    f"{chr(0x10000 * plane + (0x1000 if plane == 14 else 0))}"
    f"-{chr(0x10000 * plane + 0xFFFD)}"
    for plane in range(1, 15)
)
_UCS: Final = "\xa0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef" + _PLANES
_PRIVATE: Final = "\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010f7ff"
_PARTS: Final = (
    r"(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?"  # appendix B
)
_LITERAL: Final = rf"[!#$&'(-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]"  # erratum 6937: `'`
_NAME: Final = f"(?:[A-Za-z0-9_]|{_PERCENT})"
_VARIABLE: Final = rf"{_NAME}(?:\.?{_NAME})*(?::[1-9][0-9]{{0,3}}|\*)?"
_TEMPLATE: Final = (
    rf"(?:{_LITERAL}|{_PERCENT}"
    rf"|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
)


def is_hostname(text: str) -> bool:
    """A name of RFC 1123, section 2.1: ASCII labels, no dot at the end."""
    if len(text) > _MAX_HOST:
        return False
    return all(re.fullmatch(_LABEL, label) for label in text.split("."))


def is_idn_hostname(text: str) -> bool:
    """A name of RFC 5890, section 2.3.2.3: ASCII labels, and U-labels of RFC 5892.

    The rule for labels that run in two directions (RFC 5893) is not checked.
    """
    if len(text) > _MAX_HOST:
        return False
    return all(
        re.fullmatch(_LABEL, label) if _is_plain_label(label) else is_idn_label(label)
        for label in re.split(_IDN_DOTS, text)
    )


def _is_plain_label(label: str) -> bool:
    return label.isascii() and label[2:4] != "--"


def is_ipv4(text: str) -> bool:
    """A dotted quad of RFC 2673, section 3.2, without leading zeros."""
    return re.fullmatch(rf"{_BYTE}(?:\.{_BYTE}){{3}}", text) is not None


def is_ipv6(text: str) -> bool:
    """An address of RFC 4291, section 2.2, without a zone."""
    if len(text) > 45 or text.count("::") > 1 or ":::" in text:
        return False
    head, gap, tail = text.partition("::")
    groups = [part for side in (head, tail) if side for part in side.split(":")]
    size = len(groups)
    if groups and "." in groups[-1] and not text.endswith("::"):
        if not is_ipv4(groups.pop()):
            return False
        size += 1
    if not all(re.fullmatch("[0-9A-Fa-f]{1,4}", group) for group in groups):
        return False
    return size <= 7 if gap else size == 8


def is_email(text: str) -> bool:
    """`Mailbox` of RFC 5321, section 4.1.2."""
    return text.isascii() and _is_mailbox(text, "")


def is_idn_email(text: str) -> bool:
    """`Mailbox` of RFC 6531, section 3.3."""
    return _is_mailbox(text, _BEYOND)


def _is_mailbox(text: str, more: str) -> bool:
    if len(text) > _MAX_MAIL:
        return False
    local, _, domain = text.rpartition("@")
    atom = f"[{more}{_ATEXT}]+"
    quoted = _QUOTED.replace("{more}", more)
    if len(local.encode("utf-8", "surrogatepass")) > _MAX_LOCAL:
        return False
    if not re.fullmatch(rf"{atom}(?:\.{atom})*|{quoted}", local):
        return False
    if domain[:1] == "[" and domain[-1:] == "]":
        inner = domain[1:-1]
        if inner[:5].lower() == "ipv6:":
            return is_ipv6(inner[5:])
        return is_ipv4(inner)
    return is_idn_hostname(domain) if more else is_hostname(domain)


def is_uri(text: str) -> bool:
    """`URI` of RFC 3986, section 3: with a scheme."""
    return text.isascii() and _is_reference(text, "", "", absolute=True)


def is_uri_reference(text: str) -> bool:
    """`URI-reference` of RFC 3986, section 4.1."""
    return text.isascii() and _is_reference(text, "", "", absolute=False)


def is_iri(text: str) -> bool:
    """`IRI` of RFC 3987, section 2.2: with a scheme."""
    return _is_reference(text, _UCS, _PRIVATE, absolute=True)


def is_iri_reference(text: str) -> bool:
    """`IRI-reference` of RFC 3987, section 2.2."""
    return _is_reference(text, _UCS, _PRIVATE, absolute=False)


def is_uri_template(text: str) -> bool:
    """`URI-Template` of RFC 6570, section 2."""
    return re.fullmatch(_TEMPLATE, text) is not None


def _of(characters: str, text: str) -> bool:
    return re.fullmatch(f"(?:[{characters}]|{_PERCENT})*", text) is not None


def _is_reference(text: str, more: str, private: str, *, absolute: bool) -> bool:
    found = re.fullmatch(_PARTS, text, re.DOTALL)
    if found is None:  # pragma: no cover - it matches any text
        return False
    scheme, authority, path, query, fragment = found.groups()
    if scheme is None:
        # The first segment would be read as a scheme.
        if absolute or (authority is None and ":" in path.partition("/")[0]):
            return False
    elif not re.fullmatch("[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return False
    if authority is not None and not _is_authority(authority, more):
        return False
    inside = f"{_PLAIN}{_SUB}:@/{more}"
    return (
        _of(inside, path)
        and _of(f"{inside}?{private}", query or "")
        and _of(f"{inside}?", fragment or "")
    )


def _is_authority(text: str, more: str) -> bool:
    user, _, place = text.rpartition("@")
    if not _of(f"{_PLAIN}{_SUB}:{more}", user):
        return False
    if place.startswith("["):
        host, closed, rest = place[1:].partition("]")
        future = rf"[vV][0-9A-Fa-f]+\.[{_PLAIN}{_SUB}:]+"
        if not closed or not (is_ipv6(host) or re.fullmatch(future, host)):
            return False
        return re.fullmatch("(?::[0-9]*)?", rest) is not None
    host, _, port = place.partition(":")
    return _of(f"{_PLAIN}{_SUB}{more}", host) and bool(re.fullmatch("[0-9]*", port))
