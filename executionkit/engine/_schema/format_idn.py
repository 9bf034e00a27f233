"""The labels of internationalised host names (RFC 5890 to 5892)."""

from __future__ import annotations

import unicodedata
from typing import Final

__all__ = ("is_idn_label",)

_MAX_LABEL: Final = 63
_ACE: Final = "xn--"

# RFC 5892, section 2.6 (F): what the categories alone would get wrong.
_VALID: Final = frozenset("\u00df\u03c2\u06fd\u06fe\u0f0b\u3007")
_INVALID: Final = frozenset(
    "\u0640\u07fa\u302e\u302f\u3031\u3032\u3033\u3034\u3035\u303b"
)
_LETTERS: Final = frozenset({"Ll", "Lo", "Lm", "Mn", "Mc", "Nd"})
_MARKS: Final = frozenset({"Mn", "Mc", "Me"})
_VIRAMA: Final = 9
_ARABIC: Final = range(0x660, 0x66A)
_EXTENDED_ARABIC: Final = range(0x6F0, 0x6FA)


def is_idn_label(label: str) -> bool:
    """Whether a label is an A-label or a U-label."""
    if label[:4].lower() == _ACE:
        return _is_a_label(label)
    return _is_u_label(label)


def _is_a_label(label: str) -> bool:
    if not label.isascii() or len(label) > _MAX_LABEL:
        return False
    try:
        decoded = label[4:].encode("ascii").decode("punycode")
    except ValueError:  # UnicodeError is one
        return False
    return not decoded.isascii() and _is_u_label(decoded)


def _is_u_label(label: str) -> bool:
    # Shorter than its A-label at least by the prefix, so the bound comes first.
    if not 0 < len(label) <= _MAX_LABEL or label[2:4] == "--":
        return False
    if "-" in {label[0], label[-1]} or unicodedata.category(label[0]) in _MARKS:
        return False
    if unicodedata.normalize("NFC", label) != label:
        return False
    if not all(_is_allowed(label, at) for at in range(len(label))):
        return False
    return len(_ACE) + len(label.encode("punycode")) <= _MAX_LABEL


def _is_allowed(label: str, at: int) -> bool:
    character = label[at]
    code = ord(character)
    if code < 0x80:
        return character == "-" or character.isalnum()
    rule = _CONTEXT.get(character)
    if rule is not None:
        return rule(label, at)
    if code in _ARABIC:
        return not any(ord(other) in _EXTENDED_ARABIC for other in label)
    if code in _EXTENDED_ARABIC:
        return not any(ord(other) in _ARABIC for other in label)
    if character in _VALID:
        return True
    if character in _INVALID or 0x1100 <= code <= 0x11FF or 0xA960 <= code <= 0xA97F:
        return False
    if 0xD7B0 <= code <= 0xD7FF:  # old Hangul letters, as the two before
        return False
    return unicodedata.category(character) in _LETTERS and _is_stable(character)


def _is_stable(character: str) -> bool:
    """RFC 5892, section 2.2 (B): what folding changes is not allowed."""
    folded = unicodedata.normalize("NFKC", character).casefold()
    return unicodedata.normalize("NFKC", folded) == character


def _before(label: str, at: int) -> str:
    return label[at - 1] if at else ""


def _after_virama(label: str, at: int) -> bool:
    return at > 0 and unicodedata.combining(label[at - 1]) == _VIRAMA


def _between_l(label: str, at: int) -> bool:
    return _before(label, at) == "l" and label[at + 1 : at + 2] == "l"


def _before_greek(label: str, at: int) -> bool:
    return _is_of("GREEK", label[at + 1 : at + 2])


def _after_hebrew(label: str, at: int) -> bool:
    return _is_of("HEBREW", _before(label, at))


def _with_japanese(label: str, _at: int) -> bool:
    return any(
        _is_of(script, character)
        for character in label
        if character != "\u30fb"
        for script in ("HIRAGANA", "KATAKANA", "CJK UNIFIED")
    )


def _is_of(script: str, character: str) -> bool:
    return bool(character) and unicodedata.name(character, "").startswith(script)


# RFC 5892, appendix A.
_CONTEXT: Final = {
    "\u00b7": _between_l,
    "\u0375": _before_greek,
    "\u05f3": _after_hebrew,
    "\u05f4": _after_hebrew,
    "\u200c": _after_virama,
    "\u200d": _after_virama,
    "\u30fb": _with_japanese,
}
