"""Strict JSON at the speed of the C scanner, made total: a value or a `Failure`.

`json.loads` can fail in four ways (`JSONDecodeError`, `RecursionError`, a plain
`ValueError` for an integer of too many digits, `UnicodeDecodeError`), accepts `NaN`, and
its error keeps the whole text alive. Here all of that is one small value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from json.decoder import JSONDecodeError, JSONDecoder
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from executionkit._constants import MAX_JSON_DEPTH
from executionkit.types import JsonValue

__all__ = (
    "SHORT",
    "SPACE",
    "STRING",
    "TOO_DEEP",
    "Failure",
    "Reading",
    "attempt",
    "attempt_near",
    "count_brackets",
    "loads_json",
    "scan",
    "skip_space",
    "skip_tokens",
    "too_deep",
)

Reading: TypeAlias = tuple[JsonValue, int]
"""A value and the position after it."""

TOO_DEEP: Final = f"nested deeper than {MAX_JSON_DEPTH} levels"

SPACE: Final = re.compile(r"[ \t\n\r]*+")
"""What JSON calls white space."""

STRING: Final = r'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
"""The shape of a string; whether its escapes are valid is not looked at."""

_TOKENS: Final = re.compile(
    rf"(?:[ \t\n\r\[\]{{}},:]*+(?:{STRING}|-?[0-9][0-9.eE+\-]*+"
    r"|true|false|null|NaN|-?Infinity))*+[ \t\n\r\[\]{},:]*+"
)
_BRACKETS: Final = re.compile(rf"[\[{{]++|[\]}}]++|{STRING}")
_START: Final = re.compile(r"\ufeff?[ \t\n\r]*+")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_NARROW: Final = 8
SHORT: Final = 3072
"""Characters up to which counting brackets is cheaper than looking at the value."""

_FIRST_WINDOW: Final = 512
_WINDOW_GROWTH: Final = 8
# No token but a string or a number can be cut by the end of a window and fail further
# than this before it: `-Infinity` is the longest one.
_WINDOW_MARGIN: Final = 16


class Failure(NamedTuple):
    """Why no value could be read."""

    at: int
    """Where reading stopped; -1 when the scanner does not say."""

    reason: str
    cut: bool = False
    """The text ended before the value did."""

    def describe(self, text: str) -> str:
        """The reason and the place, in words; short whatever the text is."""
        if self.at < 0:
            return self.reason
        line = text.count("\n", 0, self.at) + 1
        column = self.at - text.rfind("\n", 0, self.at)
        return f"{self.reason} at line {line} column {column} (character {self.at})"


def _refuse_constant(name: str) -> NoReturn:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


_DECODER: Any = JSONDecoder(parse_constant=_refuse_constant)

scan: Final[Callable[[str, int], Reading]] = _DECODER.scan_once
"""The bare scanner: `(text, start) -> (value, end)`.

Raises `StopIteration` (whose value is a position), `ValueError` or `RecursionError`.
"""


def attempt(text: str, start: int) -> Reading | Failure:
    """Read the value that begins at `start`; what follows it is not looked at."""
    try:
        return scan(text, start)
    except StopIteration as stop:
        return Failure(stop.value, "Expecting value", stop.value >= len(text))
    except JSONDecodeError as error:
        cut = error.pos >= len(text) or error.msg.startswith("Unterminated")
        # Some messages end in " at"; the place is told separately.
        return Failure(
            error.pos, error.msg.removesuffix(" at").removesuffix(" starting"), cut
        )
    except RecursionError:
        return Failure(-1, TOO_DEEP)
    except ValueError as error:
        return Failure(-1, str(error))


def attempt_near(text: str, start: int) -> Reading | Failure:
    """As `attempt`, but a failure costs what was read, not what stands before it.

    `JSONDecodeError` counts the lines of all the text up to its position; with many
    failures that is quadratic. Looking through a window that grows keeps it linear.
    """
    size = _FIRST_WINDOW
    while True:
        window = text[start : start + size]
        outcome = attempt(window, 0)
        if not isinstance(outcome, Failure):
            return outcome[0], start + outcome[1]
        whole = start + len(window) >= len(text)
        near_end = outcome.cut or outcome.at >= size - _WINDOW_MARGIN
        if whole or not near_end:
            at = outcome.at if outcome.at < 0 else start + outcome.at
            return Failure(at, outcome.reason, outcome.cut and whole)
        size *= _WINDOW_GROWTH


def skip_space(text: str, start: int) -> int:
    """The position of the first character from `start` on that is no white space."""
    return SPACE.match(text, start).end()  # type: ignore[union-attr]


def skip_tokens(text: str, start: int) -> tuple[int, bool]:
    """Step over a container that the scanner refuses without saying where.

    Returns:
        The end and True when its closing bracket is found; else the end of the run of
        things that look like JSON, and False.
    """
    size = _FIRST_WINDOW
    while True:
        limit = min(len(text), start + size)
        stop = _TOKENS.match(text, start, limit).end()  # type: ignore[union-attr]
        end = _closing(text, start, stop)
        if end:
            return end, True
        open_string = text.startswith('"', stop)
        if limit == len(text):
            if open_string and text.find('"', stop + 1) < 0 > text.find("\n", stop):
                stop = limit
            return stop, False
        if not open_string and stop <= limit - _WINDOW_MARGIN:
            return stop, False
        size *= _WINDOW_GROWTH


def _closing(text: str, start: int, stop: int) -> int:
    """The end of the container that opens at `start`; 0 when it is not closed."""
    if text.find("]", start, stop) < 0 and text.find("}", start, stop) < 0:
        return 0
    depth = 0
    for found in _BRACKETS.finditer(text, start, stop):
        run = found.group()
        if run[0] in "[{":
            depth += len(run)
        elif run[0] != '"':
            if len(run) >= depth:
                return found.start() + depth
            depth -= len(run)
    return 0


_CONTAINERS: Final = frozenset({dict, list})


def count_brackets(text: str) -> int:
    """Brackets in a text, those in strings too."""
    return len(text.encode("ascii", "ignore").translate(None, _NOT_BRACKETS))


def too_deep(
    value: JsonValue, text: str, start: int, end: int, limit: int = MAX_JSON_DEPTH
) -> bool:
    """Whether containers in `value` are nested deeper than `limit`.

    Looking at every item would cost as much as parsing. So a long value is searched
    along its last branches, turning aside only for as long as that takes no more than
    one step per 1024 characters. That finds what is deep because it was made so; a
    depth hidden behind thousands of other items may pass, bounded by what the
    interpreter's own scanner can nest. Short values are judged exactly, or nearly so.

    Args:
        value: A value that has been parsed.
        text: Where it was found.
        start: The position of its opening bracket.
        end: The position after it.
        limit: Levels allowed; a container without containers is one level.
    """
    size = end - start
    if type(value) is not dict and type(value) is not list:
        return False
    if size <= 2 * limit:  # a level takes two brackets
        return False
    if size <= SHORT and count_brackets(text[start:end]) <= 2 * limit:
        return False
    effort = size // 1024
    todo: list[tuple[Any, int]] = [(value, 1)]
    last = 0
    while todo:
        node, depth = todo.pop()
        if depth > limit:
            return True
        inside: Collection[Any] = node.values() if type(node) is dict else node
        if depth <= last:
            effort -= len(inside)
            if effort < 0:
                return False
        elif len(inside) > _NARROW:
            inside = list(inside)[-max(_NARROW, effort) :]
            effort -= len(inside)
        last = depth
        depth += 1
        todo += [
            (item, depth)
            for item in inside
            if (type(item) is dict or type(item) is list) and (item or depth > limit)
        ]
    return False


def loads_json(
    data: str | bytes | bytearray, *, max_depth: int = MAX_JSON_DEPTH
) -> JsonValue:
    """`json.loads` for data from outside: a value or a `ValueError`, nothing else.

    It differs in this: `NaN` and infinities are refused, a byte order mark at the start
    is skipped, bytes are UTF-8 and nothing else, and the error is small (it does not
    hold the text). Integers are exact; one of more digits than the interpreter converts
    (`sys.get_int_max_str_digits()`) is refused. Of duplicate keys the last one counts.

    Args:
        data: One JSON value, with white space around it.
        max_depth: Containers inside each other that are allowed. The effort to find a
            deeper one is bounded: one that is hidden among thousands of items may pass,
            up to what the interpreter can nest.

    Raises:
        ValueError: When `data` is not such a text.
    """
    text = data if isinstance(data, str) else _decode(data)
    try:
        value, end = scan(text, 0)
    except (StopIteration, ValueError, RecursionError):
        end = -1
        value = None
    if end != len(text):
        value = _read_whole(text)
        end = len(text)
    if end > 2 * max_depth and too_deep(value, text, 0, end, max_depth):
        msg = f"not valid JSON: nested deeper than {max_depth} levels"
        raise ValueError(msg)
    return value


def _read_whole(text: str) -> JsonValue:
    """Read a text that is not simply one value from its first to its last character."""
    outcome = attempt(text, _START.match(text).end())  # type: ignore[union-attr]
    if not isinstance(outcome, Failure):
        end = skip_space(text, outcome[1])
        if end == len(text):
            return outcome[0]
        outcome = Failure(end, "Extra data")
    msg = f"not valid JSON: {outcome.describe(text)}"
    raise ValueError(msg)


def _decode(data: bytes | bytearray) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        at, reason = error.start, error.reason
    msg = f"not valid JSON: byte {at} is not UTF-8 ({reason})"
    raise ValueError(msg)
