"""Secrets that are known by their shape: `ghp_...`, a JWT, a key block, a URL's user.

Every rule finds a literal first and then matches once from there, with possessive
or bounded repetition: the time is linear in the text's length.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Final, TypeAlias

__all__ = (
    "PLACEHOLDER",
    "Span",
    "end_of",
    "shaped_secrets",
    "userinfo_length",
    "words",
)

PLACEHOLDER: Final = "[REDACTED]"
"""What stands in the place of a secret."""

Span: TypeAlias = tuple[int, int]
"""Start and end of a secret in a text."""

_HEAD = 64  # characters of a run that are looked at to judge it
_FAR = 2**62  # no limit to where a match may end
_LONG_VALUE = 32_768  # characters of a key block, or of a Basic header, at most
_DIGIT_FROM = 16  # prefixes that ask for so long a body also ask for a digit in it


def words(text: str) -> frozenset[str]:
    """The set of the words in `text`."""
    return frozenset(text.split())


_URL_SAFE = re.compile(r"[A-Za-z0-9_-]*+")
_DOTTED = re.compile(r"[A-Za-z0-9_.~/+=-]*+")
_ALNUM = re.compile(r"[A-Za-z0-9]*+")
_HEX = re.compile(r"[0-9a-fA-F]*+")
_BASE64 = re.compile(r"[A-Za-z0-9+/=]*+")

# (case matters, characters of the body, fewest of them, prefixes). From 16 on the
# body must hold a digit, so that long names that start alike stay.
_PREFIXES: tuple[tuple[bool, re.Pattern[str], int, str], ...] = (
    (False, _URL_SAFE, 4, "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ gsk_ sk-ant- sk-proj-"),
    (False, _URL_SAFE, 8, "aiza xoxa- xoxb- xoxc- xoxd- xoxe- xoxo- xoxp- xoxr- xoxs-"),
    (True, _URL_SAFE, 4, "sk_live_ sk_test_ rk_live_ rk_test_ dckr_pat_ dckr_oat_"),
    (
        True,
        _URL_SAFE,
        8,
        "glpat- gldt- glrt- glptt- glcbt- glsoat- whsec_ GOCSPX- xapp-",
    ),
    (True, _URL_SAFE, 8, "lsv2_pt_ lsv2_sk_ pscale_tkn_ pscale_pw_ glsa_ glc_ CFPAT-"),
    (True, _URL_SAFE, 8, "AGE-SECRET-KEY-1 sntrys_ sntryu_ PMAK- NRAK-"),
    (True, _URL_SAFE, 16, "nvapi- figd_ hvs. hvb. hvr. sq0atp- sq0csp- ATATT3 ATCTT3"),
    (True, _URL_SAFE, 16, "1//0 pypi- tvly- sb_secret_ pplx- xai- csk- pcsk_ dp.pt."),
    (True, _ALNUM, 16, "hf_ r8_ npm_ nfp_ rnd_ ntn_ lin_api_ fw_ e2b_ secret_ fm2_"),
    (True, _ALNUM, 16, "LTAI AKID pul- sbp_ pnu_ bkua_ tfp_ dop_v1_ doo_v1_ dor_v1_"),
    (True, _ALNUM, 16, "rubygems_ shpat_ shpca_ shppa_ shpss_"),
    (True, _ALNUM, 12, "AKIA ASIA ABIA ACCA"),
    (True, _ALNUM, 32, "dapi"),
    (True, _HEX, 32, "SK AC key-"),
    (True, _DOTTED, 15, "eyJ SG. ya29. dt0c01. ops_eyJ"),
    (True, _DOTTED, 8, "hooks.slack.com/ hooks.zapier.com/ webhook.office.com/"),
    (True, _DOTTED, 8, "discord.com/api/webhooks/ discordapp.com/api/webhooks/"),
)


def _by_mark() -> dict[str, list[tuple[str, bool, re.Pattern[str], int]]]:
    """The prefixes by the mark they end with, so that most texts need few searches."""
    table: dict[str, list[tuple[str, bool, re.Pattern[str], int]]] = {}
    for cased, body, least, prefixes in _PREFIXES:
        for prefix in prefixes.split():
            mark = prefix[-1] if prefix[-1] in "_-./" else ""
            table.setdefault(mark, []).append((prefix, cased, body, least))
    return table


_TABLE = _by_mark()
# A literal that must be there -> the shape: for secrets without a telling prefix.
_SHAPES: dict[str, re.Pattern[str]] = {
    # Telegram, Azure's client secrets and storage keys, Mailchimp, Airtable, Terraform
    ":AA": re.compile(r"(?<![0-9])([0-9]{6,12}:AA[A-Za-z0-9_-]{30,}+)"),
    "Q~": re.compile(r"(?<![\w~.-])([\w~.-]{3}[0-9]Q~[\w~.-]{20,}+)"),
    "==": re.compile(r"(?<![\w+/])(?<!sha512-)([A-Za-z0-9+/]{86}==)"),
    "-us": re.compile(r"(?<![0-9A-Za-z])([0-9a-f]{32}-us[0-9]{1,2})\b"),
    "pat": re.compile(r"(?<![0-9A-Za-z])(pat[A-Za-z0-9]{14}\.[0-9a-f]{64})"),
    ".atlasv1.": re.compile(r"(?<!\w)([A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}+)"),
    # curl -u user:password
    "-u": re.compile(r"(?<=\s)(?:-u|--user)[ =]?[\"']?[\w.@+-]{1,64}:([^\s\"']{4,}+)"),
}
# What follows `sk-` or `sk_` in words that are no keys.
_SK_WORDS = words(
    "learn image video hynix telecom innovation dist tools build buff filter alloc free "
    "prot family state wait error common reuseport socket latn"
)
_SK_WORD = re.compile(r"([a-z]+)[0-9]?(?:[-_][a-z]+)*+$", re.IGNORECASE)
_PEM = re.compile(r"-{4,5} ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}")
_PEM_BODY = re.compile(r"(?:[A-Za-z0-9+/=\s\\:,.]|-(?!---))*+")
_PEM_END = re.compile(r"-{4,5} ?END [A-Z0-9 ]{0,60}-{4,5}")
_URL_REST = re.compile(r"[^\s\"'`<>]*+")


def shaped_secrets(text: str, lower: str) -> Iterator[Span]:
    """The places of secrets that are known by their shape, in no order.

    Args:
        text: The text.
        lower: The same text in lower case, character by character.
    """
    yield from _prefixed(text, lower)
    yield from _sk_keys(text, lower)
    yield from _basic(text, lower)
    yield from _without_prefix(text)
    yield from _pem_blocks(text)
    yield from _userinfo(text)


def end_of(pattern: re.Pattern[str], text: str, start: int, limit: int = _FAR) -> int:
    """Where a match of `pattern` that begins at `start` ends; `start` without one."""
    found = pattern.match(text, start, limit)
    return start if found is None else found.end()


def _hits(text: str, literal: str) -> Iterator[int]:
    """Where `literal` begins a word of `text`."""
    at = text.find(literal)
    while at >= 0:
        if at == 0 or not text[at - 1].isalnum():
            yield at
        at = text.find(literal, at + len(literal))


def _prefixed(text: str, lower: str) -> Iterator[Span]:
    rows = [row for mark, found in _TABLE.items() if mark in text for row in found]
    for prefix, cased, body, least in rows:
        done = 0
        for at in _hits(text if cased else lower, prefix):
            start = at + len(prefix)
            # Judged by its head alone: a rejected run must not be read again and again.
            end = end_of(body, text, start, start + _HEAD)
            if at < done or end - start < least:
                continue
            if least < _DIGIT_FROM or any(map(str.isdigit, text[start:end])):
                done = end_of(_URL_SAFE, text, end_of(body, text, start))
                yield at, done


def _sk_keys(text: str, lower: str) -> Iterator[Span]:
    for prefix in ("sk-", "sk_"):
        done = 0
        for at in _hits(lower, prefix):
            end = end_of(_URL_SAFE, text, at + 3, at + 3 + _HEAD)
            word = _SK_WORD.match(text, at + 3, end)
            harmless = word is not None and word[1].lower() in _SK_WORDS
            if at >= done and end - at - 3 >= 4 and not harmless:
                done = end_of(_URL_SAFE, text, end)
                yield at, done


def _basic(text: str, lower: str) -> Iterator[Span]:
    for at in _hits(lower, "basic "):
        start = at + 6
        end = end_of(_BASE64, text, start)
        if 8 <= end - start <= _LONG_VALUE and _is_basic(text[start:end]):
            yield start, end


def _is_basic(value: str) -> bool:
    try:
        return b":" in base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return False


def _without_prefix(text: str) -> Iterator[Span]:
    for literal, shape in _SHAPES.items():
        if literal in text:
            for found in shape.finditer(text):
                yield found.span(1)


def _pem_blocks(text: str) -> Iterator[Span]:
    if "PRIVATE KEY" not in text:
        return
    done = 0
    closing: Span | None = (0, 0)  # the next end mark; None = there is none any more
    for found in _PEM.finditer(text):
        body = found.end()
        if found.start() < done:
            continue
        if closing is not None and closing[0] < body:
            mark = _PEM_END.search(text, body)
            closing = None if mark is None else mark.span()
        done = end_of(_PEM_BODY, text, body)
        if closing is not None and closing[0] - body < _LONG_VALUE:
            done = max(done, closing[1])
        yield found.start(), done


def _userinfo(text: str) -> Iterator[Span]:
    for mark in ("://", ":\\/\\/"):
        token_end = 0
        at = text.find(mark)
        while at >= 0:
            start = at + len(mark)
            if start >= token_end:
                token_end = end_of(_URL_REST, text, start)
            at = text.find(mark, start)
            piece = text[start : min(token_end, at if at >= 0 else token_end)]
            length = userinfo_length(piece)
            if length and piece[:length] != "git":
                yield start, start + length


def userinfo_length(piece: str) -> int:
    """Characters before the `@` of what follows `://`; 0 when there are none."""
    authority = re.split(r"[/?#\\]", piece, maxsplit=1)[0]
    if "@" in authority:
        return authority.rfind("@")
    port = authority.rpartition(":")[2]
    # `user:pa/ss@host`: a port is a number, so this is a password with a slash.
    if ":" in authority and not authority.startswith("[") and not port.isdigit():
        return max(0, piece.rfind("@"))
    return 0
