"""The one redactor: what every error text, log line, span and trace goes through.

Values that the caller knows to be secret go first, in every encoding in which they
travel; then come shapes that only secrets have, and values with a telling name (see
`shapes` and `names`). Redact before cutting a text: half a secret can no
longer be recognised.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Set as AbstractSet
from datetime import date, time, timedelta
from enum import Enum
from functools import lru_cache
from numbers import Number
from typing import Any, Final
from urllib.parse import quote, quote_plus

from executionkit._constants import MAX_ERROR_CHARS
from executionkit._error_base import said, shortened
from executionkit._redact.names import (
    is_secret_like,
    is_secret_query,
    name_kind,
    named_secrets,
)
from executionkit._redact.shapes import (
    PLACEHOLDER,
    Span,
    shaped_secrets,
    userinfo_length,
)
from executionkit.types import JsonValue, TokenUsage

__all__ = (
    "PLACEHOLDER",
    "TRUNCATED",
    "describe_exception",
    "redact",
    "redact_exception_text",
    "redact_headers",
    "redact_url",
    "redact_value",
)

TRUNCATED: Final = "[truncated]"
"""What stands in the place of data that is too deep or too large to look through."""

_MIN_SECRET = 4
_LOOKED_THROUGH: Final = 4 * MAX_ERROR_CHARS
_ROUNDS = 4  # masking one secret may bring another one's parts together
_PARAMETER = re.compile(r"([?&;#])([^=&;#]*+)=([^&;#]*+)")
_BASE64 = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_="
)


def redact(text: str, *, secrets: Iterable[str] = ()) -> str:
    """`text` with every secret replaced by `[REDACTED]`.

    Args:
        text: Any text; the time is linear in its length.
        secrets: Values that are known to be secret; those shorter than 4 characters
            are ignored. They are also found URL-encoded, base64-encoded, and escaped
            as JSON or by `repr`.

    Returns:
        `text` itself when nothing was found. Redacting twice changes nothing more.
    """
    if secrets:
        text = _without_known(text, _as_tuple(secrets))
    for _ in range(_ROUNDS):
        spans = _find(text)
        if not spans:
            break
        masked = _mask(text, spans)
        if masked == text:
            break
        text = masked
    return text


def _find(text: str) -> list[Span]:
    lower = text.lower()
    if len(lower) != len(text):  # one Turkish letter grows; places must agree
        lower = text.replace("\u0130", "I").lower()
    return [*shaped_secrets(text, lower), *named_secrets(text, lower)]


def _mask(text: str, spans: list[Span]) -> str:
    spans.extend(found.span() for found in re.finditer(re.escape(PLACEHOLDER), text))
    spans.sort()
    parts: list[str] = []
    done = -1
    for start, end in spans:
        if start > done:
            parts.append(text[max(done, 0) : start])
            parts.append(PLACEHOLDER)
        done = max(done, end)
    parts.append(text[max(done, 0) :])
    return "".join(parts)


# --- known values ---------------------------------------------------------------
def _as_tuple(secrets: Iterable[str]) -> tuple[str, ...]:
    return (secrets,) if isinstance(secrets, str) else tuple(filter(None, secrets))


def _without_known(text: str, secrets: tuple[str, ...]) -> str:
    plain, encoded = _forms(secrets)
    for form in plain:
        if form in text:
            # What stands for a secret is never taken apart by a value like "ACTED".
            parts = text.split(PLACEHOLDER)
            text = PLACEHOLDER.join(part.replace(form, PLACEHOLDER) for part in parts)
    for core in encoded:
        if core in text:
            text = _mask(text, _base64_runs(text, core))
    return text


@lru_cache(maxsize=64)
def _forms(secrets: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The spellings of known values, longest first, and their base64 cores."""
    values: set[str] = set()
    for secret in secrets:
        values.update((secret, secret.strip()))
        values.update(
            piece for piece in secret.split() if len(piece) >= 2 * _MIN_SECRET
        )
    values = {value for value in values if len(value) >= _MIN_SECRET}
    plain = {form for value in values for form in _spellings(value)}
    encoded = {core for value in values for core in _base64_cores(value)}
    return tuple(sorted(plain, key=len, reverse=True)), tuple(sorted(encoded))


def _spellings(value: str) -> Iterable[str]:
    raw = value.encode("utf-8", "surrogatepass")
    escaped = {quote(raw, safe=""), quote(raw), quote_plus(raw)}
    lower = {
        re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), form) for form in escaped
    }
    dumped = {
        json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)
    }
    slashes = {form.replace("/", "\\/") for form in dumped}
    return {value, repr(value)[1:-1], *escaped, *lower, *dumped, *slashes}


def _base64_cores(value: str) -> Iterable[str]:
    """What base64 makes of `value` at each of the three places it can stand.

    The first and last characters also depend on what stands around it, and are left
    out.
    """
    raw = value.encode("utf-8", "surrogatepass")
    for shift in range(3):
        length = (shift + len(raw)) // 3 * 4
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            core = encode(b"\0" * shift + raw).decode()[(0, 2, 3)[shift] : length]
            if len(core) >= 2 * _MIN_SECRET:
                yield core


def _base64_runs(text: str, core: str) -> list[Span]:
    spans: list[Span] = []
    done = 0
    at = text.find(core)
    while at >= 0:
        start, end = at, at + len(core)
        while start > done and text[start - 1] in _BASE64:
            start -= 1
        while end < len(text) and text[end] in _BASE64:
            end += 1
        spans.append((start, end))
        done = end
        at = text.find(core, done)
    return spans


# --- URLs, headers, exceptions ----------------------------------------------------
def redact_url(url: str, *, secrets: Iterable[str] = ()) -> str:
    """`url` without its user, its password, and the values of secret parameters.

    Unlike in running text, values of any length are hidden. Any text is accepted.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    length = userinfo_length(rest)
    if length:
        rest = PLACEHOLDER + rest[length:]
    rest = _PARAMETER.sub(_hide_parameter, rest)
    return redact(scheme + mark + rest, secrets=secrets)


def _hide_parameter(found: re.Match[str]) -> str:
    mark, name, value = found.groups()
    hidden = value and is_secret_query(name, value)
    return f"{mark}{name}={PLACEHOLDER if hidden else value}"


def redact_headers(
    headers: Mapping[str, JsonValue], *, secrets: Iterable[str] = ()
) -> dict[str, JsonValue]:
    """A copy of `headers` whose credentials (`Authorization`, cookies, ...) are hidden."""
    known = _as_tuple(secrets)
    shown: dict[str, JsonValue] = {}
    for name, value in headers.items():
        shown.update(redact_value({name: value}, secrets=known))
    return shown


def redact_exception_text(exc: BaseException, *, secrets: Iterable[str] = ()) -> str:
    """The text of `exc`, redacted; the name of its type when it has none.

    At most `MAX_ERROR_CHARS` characters, and a word on what is missing. Only its own
    text: causes and tracebacks are for the caller to leave out.
    """
    return _redact_and_cut(said(exc), _as_tuple(secrets)) or type(exc).__name__


def describe_exception(exc: BaseException, *, secrets: Iterable[str] = ()) -> str:
    """For logs: the type of `exc`, its text as above, and where it was raised."""
    text = redact_exception_text(exc, secrets=secrets)
    trace, place = exc.__traceback__, ""
    while trace is not None:
        place = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(exc).__name__}: {text}{place}"


def _redact_and_cut(text: str, secrets: tuple[str, ...]) -> str:
    """The beginning of a text that may be endless, with no half of a secret at its end.

    More than is kept is looked through: a secret that begins inside of what is kept is
    still whole, or long enough to be known.
    """
    if len(text) <= MAX_ERROR_CHARS:
        return redact(text, secrets=secrets)
    return shortened(redact(text[:_LOOKED_THROUGH], secrets=secrets), len(text))


# --- structures -----------------------------------------------------------------
def redact_value(
    value: JsonValue,
    *,
    secrets: Iterable[str] = (),
    max_depth: int = 32,
    max_items: int = 100_000,
    is_error: bool = False,
) -> JsonValue:
    """A copy of JSON-like data in which secrets are hidden by name and by pattern.

    Mappings become dicts, lists and sets become lists, tuples stay tuples,
    dataclasses become dicts of their fields, other objects their redacted `repr`.
    Numbers, None, enum members, dates and `TokenUsage` stay what they are.

    Args:
        value: The data.
        secrets: Values that are known to be secret (see `redact`).
        max_depth: Levels that are looked through; deeper ones become `[truncated]`.
        max_items: Values that are looked through; the rest becomes `[truncated]`.
        is_error: Whether it is about an error: texts have `MAX_ERROR_CHARS` characters
            at most then.
    """
    walk = _Walk(_as_tuple(secrets), max_items, is_error=is_error)
    return walk.visit(value, max_depth, hide=False)


_KEPT = (int, float, Number, Enum, TokenUsage, date, time, timedelta, type(None))


class _Walk:
    """One walk through a structure; counts what it has seen."""

    def __init__(
        self, secrets: tuple[str, ...], items_left: int, *, is_error: bool
    ) -> None:
        self._secrets = secrets
        self._left = items_left
        self._is_error = is_error

    def visit(self, value: Any, depth: int, *, hide: bool) -> Any:
        self._left -= 1
        if isinstance(value, str) and not isinstance(value, Enum):
            if hide and value and value.upper() != PLACEHOLDER:
                return PLACEHOLDER
            return self._text(value)
        if isinstance(value, _KEPT):
            # A PIN has four digits at least; a number of secrets is not one.
            pin = hide and type(value) is int and value >= 1000
            return PLACEHOLDER if pin else value
        if depth <= 0 or self._left < 0:
            return TRUNCATED
        return self._visit_container(value, depth - 1, hide=hide)

    def _text(self, value: str) -> str:
        if self._is_error:
            return _redact_and_cut(value, self._secrets)
        return redact(value, secrets=self._secrets)

    def _visit_container(self, value: Any, depth: int, *, hide: bool) -> Any:
        if isinstance(value, Mapping):
            return self._visit_mapping(value, depth, hide=hide)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value) if field.repr]
            fields = {name: getattr(value, name, None) for name in names}
            return self._visit_mapping(fields, depth, hide=hide)
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
            pair = self._visit_mapping({value[0]: value[1]}, depth, hide=hide)
            return next(iter(pair.items()))
        if isinstance(value, (list, tuple, AbstractSet)):
            items: list[Any] = []
            for item in value:
                if self._left <= 0:
                    items.append(TRUNCATED)
                    break
                items.append(self.visit(item, depth, hide=hide))
            return tuple(items) if isinstance(value, tuple) else items
        if isinstance(value, (bytes, bytearray)):
            text = bytes(value).decode("latin-1")
            return self.visit(text, depth, hide=hide).encode("latin-1")
        if isinstance(value, BaseException):
            return f"{type(value).__name__}: {redact_exception_text(value, secrets=self._secrets)}"
        return self._text(_safe_repr(value))

    def _visit_mapping(
        self, value: Mapping[Any, Any], depth: int, *, hide: bool
    ) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        # {"name": "Authorization", "value": "..."}: how archives write headers.
        named = value.get("name")
        twin = (
            isinstance(named, str)
            and "value" in value
            and _is_secret_name(named, "", value)
        )
        schema = "type" in value or "$ref" in value or "properties" in value
        for key, item in value.items():
            if self._left <= 0:
                result[TRUNCATED] = TRUNCATED
                break
            name = key if isinstance(key, str) else str(key)
            secret = (hide and not schema) or _is_secret_name(name, item, value)
            secret = secret or (twin and name == "value")
            shown = self._text(key) if isinstance(key, str) else key
            if shown in result:  # two keys that look alike now
                shown = f"{shown} ({len(result)})"
            result[shown] = self.visit(item, depth, hide=secret)
        return result


def _is_secret_name(name: str, item: Any, siblings: Mapping[Any, Any]) -> bool:
    kind = name_kind(name)
    if kind == "key":
        return isinstance(item, str) and is_secret_like(item, 8)
    if kind == "token" and "logprob" in siblings:
        return False
    return kind != ""


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - foreign code; telemetry must not fail by it
        return f"<{type(value).__name__}>"
