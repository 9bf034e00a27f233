"""Signs in a text that JSON may begin here, and tags around what does not count."""

from __future__ import annotations

import re
import sys
from typing import Final

from executionkit.engine._json.strings import QUOTED, QUOTES

__all__ = (
    "BROKEN",
    "JSON_AHEAD",
    "LOOSE_BROKEN",
    "LOOSE_OPENER",
    "OPENER",
    "reasoning_tag",
)

_QUOTES: Final = "".join(sorted(QUOTES))
_ATOM: Final = "-?[0-9]|-?Infinity|NaN|true|false|null|None|True|False"
_WORD: Final = r'"[^"\\\n{}\[\]]{0,60}+"'
_HALF: Final = r'"[\w $-]{1,60}+'
_COMMENT: Final = r"//|/\*|\#[ #!]"
_PYTHON: Final = "None|True|False"

# Each alternative begins with one plain character: the search skips by those.
_FENCE: Final = r"```json[\w-]*+\s*+[\[{]|~~~json[\w-]*+\s*+[\[{]"

OPENER: Final = re.compile(
    rf"\{{(?=\s*+[{_QUOTES}}},])|\[(?=\s*+(?:[{_QUOTES}\[{{\],]|{_ATOM}))|{_FENCE}"
)
"""A bracket that opens JSON, or what was meant to be; the match ends with it."""

LOOSE_OPENER: Final = re.compile(
    rf"\{{(?!\{{)(?=\s*+(?:[{_QUOTES}}},]|{_COMMENT}|\\\"|[\w$-]{{1,100}}+\s*+:"
    r"|[A-Za-z][\w ()-]*+\"))"
    rf"|\[(?=\s*+(?:[{_QUOTES}\[{{\],]|{_ATOM}|[+.][.0-9]|{_COMMENT}|\\\"))"
    rf"|{_FENCE}"
)
"""A bracket that opens something which can perhaps be mended."""


_VALUE: Final = r"(?:[\[{\"]|-?[0-9]|(?:true|false|null)\b)"

JSON_AHEAD: Final = re.compile(rf"[,}}:]|{_VALUE}")
"""What follows a value inside of JSON, be it broken or not."""


def _broken(key: str) -> re.Pattern[str]:
    value = _VALUE
    member = rf"\{{\s*+(?:{key}\s*+:|{_WORD}\s*+{value}|{_HALF}:\s*+{value}|,)"
    item = rf"(?:{QUOTED}|-?[0-9][0-9.eE+-]*+|true|false|null|{_PYTHON})"
    return re.compile(
        rf"{member}|\[[\s\[]*+(?:{member}|{item}\s*+(?:[,}}:]|{value})"
        rf"|{_HALF},\s*+{value}|,)"
    )


BROKEN: Final = _broken(QUOTED)
"""A container that was certainly meant to be JSON: it has a key, or an item."""

LOOSE_BROKEN: Final = _broken(rf"(?:{QUOTED}|[A-Za-z_$][\w$-]{{0,99}}+\"?)")
"""The same, with keys that are not, or only half, in quotes."""

_TAG: Final = re.compile(
    r"<(?<!`<)(?P<close>/?)(?:think(?:ing)?|thoughts?|reasoning|scratchpad)\b[^<>\n]{0,99}>",
    re.IGNORECASE,
)


def reasoning_tag(
    text: str, start: int, stop: int = sys.maxsize
) -> re.Match[str] | None:
    """The next tag around text that a model writes to itself; its `close` is `/` or "".

    A tag in backticks is only spoken of.
    """
    first = text.find("<", start, stop)
    return None if first < 0 else _TAG.search(text, first, stop)
