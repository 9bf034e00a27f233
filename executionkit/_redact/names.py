"""Secrets that are known by the name in front of them: `password: ...`, `?sig=...`.

Strong names give any value away. Weak ones (`token`, `key`, `auth`) give away only
what does not read like words, so that `token limit exceeded` and `key:customer_id`
are left alone. Values are judged by their first characters and read to their end
only when they are hidden: the time is linear in the text's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

from executionkit._redact.shapes import PLACEHOLDER, Span, end_of, words

__all__ = ("is_secret_like", "is_secret_query", "name_kind", "named_secrets")

_MASK_HEAD = PLACEHOLDER[:-1]  # a value's trailing "]" is cut off as punctuation
_MIN_VALUE = 4  # shorter values stay: they are words far more often than secrets
_HEAD = 64  # characters of a value that are looked at to judge it
_TAIL_MARKS = ".,;:!?)]}>\\"

_ROOTS = (
    "pass",
    "pwd",
    "secret",
    "credential",
    "key",
    "token",
    "auth",
    "cookie",
    "bearer",
)
_PASS = re.compile(r"pass(?:word|wd|phrase|code)?s?")
_LAST_WORD = re.compile(r"([a-z0-9]{1,20})[_\-. ]?$")
_SECRET_KEYS = words(
    "api access secret private encryption signing master account storage subscription "
    "license service function functions deploy webhook application app admin client "
    "consumer hmac shared auth ssh rsa aes sharedaccess secretaccess accountkey"
)
_PLAIN_KEYS = words("primary foreign public sort cache partition idempotency")
_SECRET_TOKENS = words(
    "access refresh auth id session security api bot csrf xsrf oauth oauth2 bearer vault "
    "service secret personalaccess csrfmiddleware private deploy job registration github "
    "gitlab slack discord telegram hf huggingface npm pypi docker cloudflare replicate"
)
_PLAIN_TOKENS = words(
    "max min next page continuation eos bos pad stop special first last per num"
)
_QUERY = re.compile(r"[?&]([\w.~%\[\]-]{1,64})=([^&#\s\"'`<>]*+)")
_QUERY_NAMES = words("sig signature hmac sid jwt pass sessionid")
_QUERY_MAYBE = words("code session ticket otp state")
_SUFFIX = (
    r"(?:[_-]?(?:value|hash|base64|b64|base|pem|raw|text|plain|encrypted|[0-9]{1,3}))?"
)
_NAME_TAIL = re.compile(_SUFFIX + r"(?:\[\])?$")
_AFTER_NAME = re.compile(
    _SUFFIX + r"(?![A-Za-z0-9_]|-[A-Za-z0-9])"
    r"(?P<close>(?:\\{0,3}[\"'`]|[*\])]){0,4})"
    r"(?P<say>(?:[ \t]{1,2}(?:provided|supplied|given|used|received|sent|value|was|is)"
    r"(?![A-Za-z0-9_])){0,3})"
    r"(?P<sep>[ \t]{0,4}(?::=|=>|==?|%3d|:|%3a)[ \t*]{0,4}|,[ \t]{0,2}|>|[ \t]{1,4})"
    r"(?:[burf]{1,2}(?=[\"']))?(?P<open>\\{0,3}[\"'`])?",
    re.IGNORECASE | re.ASCII,
)
_BARE = re.compile(
    r"(?:[^\s\"'`<,;&]|<(?!/)|[,;&](?!\s|$|[\"'\[{(]?[A-Za-z_][\w.-]{0,40}"
    r"(?: \w{1,20})?[\"']?[ ]?[=:]))*+"
)
_QUOTED = {mark: re.compile(rf"(?:[^{mark}\\\n]|\\.)*+") for mark in "\"'`"}
_ESCAPED = {mark: re.compile(rf"[^{mark}\n]*+") for mark in "\"'`"}
_LINE = re.compile(r"[^\r\n\"'`]*+")
_WHOLE_LINE = re.compile(r"[^\r\n]*+")
_IN_LIST = re.compile(r"[^\[\]{}]*+")
_FLAG = re.compile(r"--[\w-]{0,40}$")
_TAG = re.compile(r"<[\w:.-]{0,40}$")
_SCHEME = re.compile(
    r"(?P<many>digest|oauth|hawk|aws4-hmac-sha256|sharedkey(?:lite)?)[ \t]+"
    r"|(?:bearer|basic|token|apikey|api-key|key|negotiate|ntlm|dpop|splunk|bot)[ \t]+",
    re.IGNORECASE,
)

# --- judging a value --------------------------------------------------------------
_NOTHING = words(
    "null none nil true false undefined string str text bytes integer int number boolean "
    "bool object array any optional required secretstr redacted hidden masked unset "
    "missing invalid incorrect expired failed empty unknown denied"
)
_PROSE = words(
    "must should cannot could would your this that with from have does will were than "
    "they then when policy reset change changed rules length field minimum contains "
    "enter please forgot mismatch wrong correct verified valid rejected accepted "
    "contact check ensure make never always token tokens header scheme format"
)
_WORD_ALONE = re.compile(r"([A-Za-z]+)(?:[^A-Za-z0-9]*$|[\[|(])")
_REFERENCE = re.compile(
    r"\$[{(]|\{\w*\}|--\w|<[\w -]+>?$|os\.environ|os\.getenv|process\.env|\*+$|\.{3}|%[s(]"
)
_PHRASE = re.compile(
    r"[^A-Za-z0-9]*(?:(?:[A-Za-z]{1,15}[0-9]{0,2}|[0-9]{1,6}(?:[A-Za-z]{1,2}[0-9]{0,3})?)"
    r"(?:[^A-Za-z0-9]++|$))+"
)
_HUMPS = re.compile(r"[A-Z]?[a-z]{2,}(?:[A-Z][a-z]+)+")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


def named_secrets(text: str, lower: str) -> Iterator[Span]:
    """The places of values with a telling name, in no order.

    Args:
        text: The text.
        lower: The same text in lower case, character by character.
    """
    yield from _query_values(text)
    yield from _named(text, lower)


def _query_values(text: str) -> Iterator[Span]:
    for found in _QUERY.finditer(text):
        start = found.start(2)
        value = found[2].rstrip(_TAIL_MARKS)
        if len(value) >= _MIN_VALUE and is_secret_query(found[1], value):
            yield start, start + len(value)


def is_secret_query(name: str, value: str) -> bool:
    """Whether `name=value` in a URL's query is to be hidden."""
    lower = unquote(name).lower()
    if name_kind(lower) or lower.rpartition("-")[2] in _QUERY_NAMES:
        return True
    return lower in _QUERY_MAYBE and is_secret_like(value, 8)


def name_kind(name: str) -> str:
    """How telling a name is: `strong`, `token`, `key`, ..., or empty when it is not.

    The name must end with the telling word: `db_password` does, `password_policy`
    and `max_tokens` do not.
    """
    lower = name.lower()
    for root in _ROOTS:
        at = lower.rfind(root)
        if at < 0:
            continue
        kind, end = _classify(name, lower, root, at)
        if kind and _NAME_TAIL.match(lower, end):
            return kind
    return ""


def _classify(text: str, lower: str, root: str, at: int) -> tuple[str, int]:
    """The kind of the name that has `root` at `at`, and where the name ends."""
    end = at + len(root)
    if root in {"key", "token"}:
        return _prefixed_kind(text, lower, root, at), end
    if root == "pass":
        end = end_of(_PASS, lower, at)
        if end - at > len(root) + 1:
            return "strong", end
        return ("pass" if _begins_word(text, at) else ""), end
    if root == "auth" and lower.startswith("authorization", at):
        return "authorization", at + 13
    if root in {"auth", "bearer"}:
        kind = "token" if root == "auth" else root
        return (kind if _begins_word(text, at) else ""), end
    end += lower.startswith("s", end)
    return ("cookie" if root == "cookie" else "strong"), end


def _prefixed_kind(text: str, lower: str, root: str, at: int) -> str:
    before = _LAST_WORD.search(lower, max(0, at - 21), at)
    word = "" if before is None else before[1]
    if root == "token":
        if word in _PLAIN_TOKENS:
            return ""
        return "strong" if word in _SECRET_TOKENS else "token"
    if word in _SECRET_KEYS or word.endswith(("api", "secret", "access")):
        return "strong"
    return "key" if _begins_word(text, at) and word not in _PLAIN_KEYS else ""


def _begins_word(text: str, at: int) -> bool:
    if at == 0 or not text[at - 1].isalnum():
        return True
    return text[at].isupper() and not text[at - 1].isupper()


def _named(text: str, lower: str) -> Iterator[Span]:
    for root in _ROOTS:
        at = lower.find(root)
        while at >= 0:
            done = at + len(root)
            kind, end = _classify(text, lower, root, at)
            span = _value_of(text, kind, at, end) if kind else None
            if span is not None:
                yield span
                done = max(done, span[1])
            at = lower.find(root, done)


def _value_of(text: str, kind: str, at: int, name_end: int) -> Span | None:
    """The value that belongs to the name at `at`, when it is to be hidden."""
    found = _AFTER_NAME.match(text, name_end)
    how = "" if found is None else _relation(text, at, kind, found)
    if found is None or not how:
        return None
    start, mark = found.end(), found["open"]
    if mark:
        values = _ESCAPED if len(mark) > 1 else _QUOTED
        pattern = values[mark[-1]]
    elif text.startswith("[", start) and not text.startswith(PLACEHOLDER, start):
        start, pattern = start + 1, _IN_LIST
    elif kind == "authorization" and (scheme := _SCHEME.match(text, start)):
        start = scheme.end()
        pattern = _WHOLE_LINE if scheme["many"] else _BARE
    else:
        pattern = _LINE if kind == "cookie" and how == "named" else _BARE
    head = text[start : end_of(pattern, text, start, start + _HEAD + 1)]
    value = head if mark else head.rstrip(_TAIL_MARKS)
    if not _is_secret(kind, how, value, quoted=bool(mark)):
        return None
    end = end_of(pattern, text, start)
    marks = "\\" if mark else _TAIL_MARKS
    return start, start + len(text[start:end].rstrip(marks))


def _relation(text: str, at: int, kind: str, found: re.Match[str]) -> str:
    """How name and value are joined: `set`, `named`, `said`, `beside`, or not."""
    sep = found["sep"].strip(" \t*").lower()
    if sep == ",":
        # A pair of a header's name and value; not the list of a schema's field names.
        header = kind in {"authorization", "cookie"} or "-" in text[max(0, at - 6) : at]
        return "named" if header and found["close"] and found["open"] else ""
    if sep == ">":
        return "set" if _TAG.search(text, max(0, at - 42), at) else ""
    if not sep:
        if _FLAG.search(text, max(0, at - 42), at):
            return "set"
        return "said" if found["say"].endswith(("is", "was")) else "beside"
    return "named" if sep in {":", "%3a"} else "set"


# --- judging a value --------------------------------------------------------------
def is_secret_like(value: str, least: int) -> bool:
    """Whether `value` has `least` characters and reads neither as words nor numbers."""
    head = value[:_HEAD]
    if len(value) < least or _MASK_HEAD in head or not any(map(str.isalpha, head)):
        return False
    return not (_PHRASE.fullmatch(head) or _HUMPS.fullmatch(head))


def _is_secret(kind: str, how: str, value: str, *, quoted: bool) -> bool:
    if len(value) < _MIN_VALUE or _is_harmless(value, how, quoted=quoted):
        return False
    if kind == "cookie" and how == "named":
        return "=" in value
    if kind in {"strong", "authorization"}:
        return how in {"set", "named"} or _is_said_secret(value, how)
    if kind == "bearer" and how == "beside":
        return _has_both(value)
    if how == "set":
        return _is_set_secret(kind, value)
    if kind == "key":
        return is_secret_like(value, 12) and not _UUID.fullmatch(value)
    return is_secret_like(value, 8) or (how == "named" and _is_mixed(value))


def _has_both(value: str) -> bool:
    return any(map(str.isdigit, value)) and any(map(str.isalpha, value))


def _is_mixed(value: str) -> bool:
    """`hunter2`; not `oauth2`, `sha256`, `gpt-4`."""
    return len(value) >= 7 and value.isalnum() and _has_both(value)


def _is_said_secret(value: str, how: str) -> bool:
    """`password is v`, `password v`."""
    return is_secret_like(value, 8) or (how == "said" and any(map(str.isdigit, value)))


def _is_set_secret(kind: str, value: str) -> bool:
    """`token=v`, `key=v`, `pass=v`."""
    if value.isdigit():
        return len(value) >= 10
    if kind == "key":
        single = value.isalnum() and len(value) >= 8
        return (single or is_secret_like(value, 8)) and not _UUID.fullmatch(value)
    return value.isalnum() or not _PHRASE.fullmatch(value[:_HEAD])


def _is_harmless(value: str, how: str, *, quoted: bool) -> bool:
    """A placeholder, a type, "none", or the next words of a sentence."""
    if _REFERENCE.match(value) or (value[0] == "{" and not quoted):
        return True
    word = _WORD_ALONE.match(value)
    if word is None:
        return False
    found = word[1].lower()
    return found in _NOTHING or (not quoted and how != "set" and found in _PROSE)
