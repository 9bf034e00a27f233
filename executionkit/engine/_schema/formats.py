"""The formats of JSON Schema: what `format` asks of a text.

One table for all validators, so that a schema means the same with every package and
without. Each predicate takes one look at each character and never raises. A name that
is not in the table is an annotation that asks nothing, as the standard has it.

https://json-schema.org/draft/2020-12/json-schema-validation#section-7.3
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from executionkit.engine._schema.format_addresses import (
    is_email,
    is_hostname,
    is_idn_email,
    is_idn_hostname,
    is_ipv4,
    is_ipv6,
    is_iri,
    is_iri_reference,
    is_uri,
    is_uri_reference,
    is_uri_template,
)
from executionkit.engine._schema.format_regex import is_regex

__all__ = ("FORMATS", "has_format", "words_of_format")

_DATE: Final = "([0-9]{4})-([0-9]{2})-([0-9]{2})"
_TIME: Final = (
    r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]+)?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_CLOCK: Final = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DAYS: Final = (
    "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"  # no Y..D
)
_DURATION: Final = f"P(?:[0-9]+W|{_DAYS}(?:{_CLOCK})?|{_CLOCK})"
_UUID: Final = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_ORIGIN: Final = "(?:0|[1-9][0-9]*)(?:[+-][1-9][0-9]*)?"
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_date(text: str) -> bool:
    """`full-date` of RFC 3339, section 5.6, a day that the calendar has."""
    found = re.fullmatch(_DATE, text)
    if found is None:
        return False
    year, month, day = map(int, found.groups())
    if not 1 <= month <= 12:
        return False
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 1 <= day <= _MONTH_DAYS[month - 1] + (leap and month == 2)


def is_time(text: str) -> bool:
    """`full-time` of RFC 3339, section 5.6: with an offset.

    A leap second is one only at 23:59 UTC.
    """
    found = re.fullmatch(_TIME, text)
    if found is None:
        return False
    hour, minute, second = map(int, found.groups()[:3])
    sign, off_hour, off_minute = found.groups("0")[3:]
    if hour > 23 or minute > 59 or second > 60:
        return False
    if int(off_hour) > 23 or int(off_minute) > 59:
        return False
    if second < 60:
        return True
    offset = 60 * int(off_hour) + int(off_minute)
    utc = 60 * hour + minute + (offset if sign == "-" else -offset)
    return utc % 1440 == 1439


def is_date_time(text: str) -> bool:
    """`date-time` of RFC 3339, section 5.6: with an offset."""
    return text[10:11] in {"T", "t"} and is_date(text[:10]) and is_time(text[11:])


def is_duration(text: str) -> bool:
    """`duration` of RFC 3339, appendix A: units in order, none left out between."""
    return re.fullmatch(_DURATION, text) is not None


def is_uuid(text: str) -> bool:
    """The text form of RFC 9562, section 4, of any version."""
    return re.fullmatch(_UUID, text) is not None


def is_json_pointer(text: str) -> bool:
    """`json-pointer` of RFC 6901, section 3."""
    return text[:1] in {"", "/"} and re.search("~(?![01])", text) is None


def is_relative_json_pointer(text: str) -> bool:
    """A pointer of draft-bhutton-relative-json-pointer-00, section 3."""
    found = re.match(_ORIGIN, text)
    if found is None:
        return False
    rest = text[found.end() :]
    return rest == "#" or is_json_pointer(rest)


_KNOWN: Final[dict[str, tuple[Callable[[str], bool], str]]] = {
    "date": (is_date, "a date such as 2018-11-13 (RFC 3339)"),
    "date-time": (
        is_date_time,
        "a date and time with offset such as 2018-11-13T20:20:39Z (RFC 3339)",
    ),
    "duration": (is_duration, "a duration such as P3D or PT1H30M (RFC 3339)"),
    "email": (is_email, "an e-mail address (RFC 5321)"),
    "hostname": (is_hostname, "a host name (RFC 1123)"),
    "idn-email": (is_idn_email, "an e-mail address (RFC 6531)"),
    "idn-hostname": (is_idn_hostname, "a host name (RFC 5890)"),
    "ipv4": (is_ipv4, "an IPv4 address (RFC 2673)"),
    "ipv6": (is_ipv6, "an IPv6 address (RFC 4291)"),
    "iri": (is_iri, "an IRI with a scheme (RFC 3987)"),
    "iri-reference": (is_iri_reference, "an IRI or a relative reference (RFC 3987)"),
    "json-pointer": (is_json_pointer, "a JSON Pointer such as /a/0 (RFC 6901)"),
    "regex": (is_regex, "a regular expression (ECMA-262)"),
    "relative-json-pointer": (
        is_relative_json_pointer,
        "a relative JSON Pointer such as 1/a",
    ),
    "time": (is_time, "a time with offset such as 20:20:39Z (RFC 3339)"),
    "uri": (is_uri, "a URI with a scheme such as https://example.com/ (RFC 3986)"),
    "uri-reference": (is_uri_reference, "a URI or a relative reference (RFC 3986)"),
    "uri-template": (is_uri_template, "a URI template such as /a/{b} (RFC 6570)"),
    "uuid": (is_uuid, "a UUID such as 2eb8aa08-aa98-11ea-b4aa-73b441d16380 (RFC 9562)"),
}

FORMATS: Final[Mapping[str, Callable[[str], bool]]] = MappingProxyType(
    {name: predicate for name, (predicate, _) in _KNOWN.items()}
)
"""Name -> whether a text has this format."""


def has_format(name: str, value: Any) -> bool:
    """Whether `format: name` allows a value; what is no text is always allowed."""
    predicate = FORMATS.get(name)
    return predicate is None or not isinstance(value, str) or predicate(value)


def words_of_format(name: Any) -> str:
    """What a known format asks for, in words."""
    return _KNOWN[name][1] if name in _KNOWN else f"a text of the format `{name}`"
