"""Signs in a text that JSON may begin here, and tags around what does not count."""

from __future__ import annotations

import re
import sys
from typing import Final

from executionkit.engine._json.strict import STRING
from executionkit.engine._json.strings import QUOTES

__all__ = ("BROKEN_JSON", "LOOSE_OPENER", "OPENER", "reasoning_tag")

_ARRAY_START: Final = r'["\[{\]]|-?[0-9]|true|false|null|NaN|-?Infinity'
_ODD: Final = "".join(sorted(QUOTES - {'"'}))

# Each alternative begins with one plain character: the search skips by those.
_JSON_FENCE: Final = r"```json[\w-]*+\s*+[\[{]|~~~json[\w-]*+\s*+[\[{]"

OPENER: Final = re.compile(
    rf'\{{(?=[ \t\n\r]*+["}}])|\[(?=[ \t\n\r]*+(?:{_ARRAY_START}))|{_JSON_FENCE}'
)
"""A bracket that can open a JSON container; it is the last character of the match."""

LOOSE_OPENER: Final = re.compile(
    rf'\{{(?=\s*+(?:["}}{_ODD}#]|//|/\*|\\"|[\w$-]{{1,100}}+\s*+:|[A-Za-z][\w ()-]*+"))'
    rf"|\[(?=\s*+(?:{_ARRAY_START}|[+.][.0-9]|[{_ODD}]|//|/\*|\\\""
    rf"|None|True|False|TRUE|FALSE|NULL))|{_JSON_FENCE}"
)
"""A bracket that can open a container which `mend` can read."""

BROKEN_JSON: Final = re.compile(
    rf"\{{\s*+{STRING}\s*+:"
    rf"|\[[\s\[]*+(?:(?:{STRING}|-?[0-9][0-9.eE+-]*+|true|false|null)\s*+,"
    rf"|\{{\s*+{STRING}\s*+:)"
)
"""A container whose beginning leaves no doubt that it was meant to be JSON."""

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
