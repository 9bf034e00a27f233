"""What a schema finds wrong, in words that a model can act on.

Every backend reports a `Failure`; this module alone turns failures into messages, so
that all backends say the same thing. These words never quote the value; a backend's
own words, kept for the rarer keywords, may.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from executionkit.engine._schema.formats import words_of_format
from executionkit.engine._schema.values import json_type
from executionkit.types import sealed

__all__ = (
    "MAX_PROBLEMS",
    "MAX_PROBLEM_TEXT",
    "Failure",
    "SchemaError",
    "SchemaProblem",
    "Step",
    "join_names",
    "pointer",
    "render_failures",
    "shorten",
)

MAX_PROBLEMS: Final = 20
"""Problems that one validation reports at most."""

MAX_PROBLEM_TEXT: Final = 300
"""Characters of a problem's message, and of its path, that are kept."""

_MAX_NAME: Final = 80
_MAX_LISTED: Final = 12

Step = str | int
"""A key of an object, or an index of an array."""


class SchemaError(ValueError):
    """A schema, or a signature that should become one, cannot be used.

    Args:
        message: What is wrong, and what to do about it.
        path: JSON Pointer to the place in the schema; empty = its root, or unknown.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message, path)
        self.message = message
        self.path = path

    def __str__(self) -> str:
        if self.path:
            return f"`{self.path}` of the schema: {self.message}"
        return self.message


@sealed
@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """One thing that is wrong with a value; `str()` is for the model."""

    path: str
    """JSON Pointer (RFC 6901) to the place in the value; empty = the value itself."""

    message: str
    """What is wrong there, at most `MAX_PROBLEM_TEXT` characters."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", _printable(self.path))
        object.__setattr__(self, "message", _printable(self.message))

    def __str__(self) -> str:
        return f"`{_dotted(self.path)}`: {self.message}" if self.path else self.message


@dataclass(slots=True)
class Failure:
    """One broken keyword, as a backend found it."""

    steps: Sequence[Step]
    """The way to the place in the value."""

    keyword: str
    """The schema keyword that is broken; `false` for the schema that allows nothing."""

    limit: Any = None
    """The keyword's value, or the one name it is about."""

    value: Any = None
    """The value found at that place."""

    text: str = ""
    """The backend's own words, for a keyword that has none here."""

    branches: list[list[Failure]] = field(default_factory=list)
    """What is wrong under each alternative of `anyOf` or `oneOf`."""


def shorten(text: str, limit: int) -> str:
    """`text` cut to `limit` characters; a cut is marked by an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _printable(text: str) -> str:
    # Names come from the model: they may hold lone surrogates, which nothing can send.
    return shorten(text.encode("utf-8", "backslashreplace").decode(), MAX_PROBLEM_TEXT)


def pointer(steps: Iterable[Step]) -> str:
    """The JSON Pointer for a way through objects and arrays (RFC 6901)."""
    return "".join(
        f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps
    )


def _dotted(path: str) -> str:
    shown = ""
    for token in path[1:].split("/"):
        name = token.replace("~1", "/").replace("~0", "~")
        if name.isdecimal():
            shown += f"[{name}]"
        else:
            shown += f".{name}" if shown else name
    return shown


def render_failures(failures: Iterable[Failure]) -> list[SchemaProblem]:
    """The problems to report for `failures`, the first `MAX_PROBLEMS` of them."""
    found = (
        problem
        for failure in islice(failures, MAX_PROBLEMS)
        for problem in _problems(failure)
    )
    return list(dict.fromkeys(islice(found, MAX_PROBLEMS)))


def _problems(failure: Failure) -> Iterable[SchemaProblem]:
    if failure.branches and not _fits_several(failure):
        meant = _meant_branch(failure)
        if meant is not None:
            for inner in meant:
                yield from _problems(inner)
            return
    yield SchemaProblem(pointer(failure.steps), _describe(failure))


def _fits_several(failure: Failure) -> bool:
    return any(not branch for branch in failure.branches)


def _meant_branch(failure: Failure) -> list[Failure] | None:
    """The one alternative that the value was meant for, when there is just one.

    An alternative is out when the value itself, not a part of it, is of another type
    or is not the constant that it asks for.
    """
    depth = len(failure.steps)
    near = [
        branch
        for branch in failure.branches
        if not any(
            len(inner.steps) == depth
            and inner.keyword in {"type", "const", "enum", "false"}
            for inner in branch
        )
    ]
    return near[0] if len(near) == 1 else None


def _describe(failure: Failure) -> str:
    describe = _WORDS.get(failure.keyword)
    if describe is not None:
        return describe(failure)
    return failure.text or f"does not satisfy `{failure.keyword}`"


def _name(value: Any) -> str:
    return f"`{shorten(str(value), _MAX_NAME)}`"


def join_names(values: Sequence[Any]) -> str:
    """JSON values as a short list in words."""
    texts = [
        shorten(json.dumps(value, ensure_ascii=False), _MAX_NAME)
        for value in values[:_MAX_LISTED]
    ]
    more = len(values) - len(texts)
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")


def _number(value: Any) -> str:
    return shorten(json.dumps(value, default=str), _MAX_NAME)


def _expected_type(failure: Failure) -> str:
    limit: Any = failure.limit
    types = [limit] if isinstance(limit, str) else sorted(limit)
    return f"expected type {' or '.join(types)}, got {json_type(failure.value)}"


def _alternatives(failure: Failure) -> str:
    if _fits_several(failure):
        return f"must fit exactly one schema of `{failure.keyword}`, fits several"
    types = _other_types(failure)
    if types is not None:
        shown = " or ".join(sorted(types))
        return f"expected type {shown}, got {json_type(failure.value)}"
    parts = [
        f"({number}) {_at(failure, branch[0])}{_describe(branch[0])}"
        for number, branch in enumerate(failure.branches, 1)
    ]
    return f"fits no schema of `{failure.keyword}`: {'; '.join(parts)}"


def _at(outer: Failure, inner: Failure) -> str:
    inside = pointer(list(inner.steps)[len(outer.steps) :])
    return f"`{_dotted(inside)}`: " if inside else ""


def _other_types(failure: Failure) -> set[str] | None:
    """The allowed types, when the type is all that is wrong with every alternative."""
    types: set[str] = set()
    for branch in failure.branches:
        if len(branch) != 1 or branch[0].keyword != "type":
            return None
        if len(branch[0].steps) != len(failure.steps):
            return None
        limit: Any = branch[0].limit
        types.update([limit] if isinstance(limit, str) else limit)
    return types


def _size(unit: str, bound: str) -> Callable[[Failure], str]:
    def describe(failure: Failure) -> str:
        limit = int(failure.limit)
        units = f"{unit}s" if limit != 1 else unit
        return f"must have at {bound} {limit} {units}, has {len(failure.value)}"

    return describe


def _bound(words: str) -> Callable[[Failure], str]:
    return lambda failure: f"must be {words} {_number(failure.limit)}"


_WORDS: Final[dict[str, Callable[[Failure], str]]] = {
    "required": lambda failure: f"Missing required argument {_name(failure.limit)}",
    "additionalProperties": lambda failure: (
        f"Unexpected argument {_name(failure.limit)}"
    ),
    "type": _expected_type,
    "const": lambda failure: f"must be {join_names([failure.limit])}",
    "enum": lambda failure: f"must be one of: {join_names(failure.limit)}",
    "minimum": _bound("at least"),
    "maximum": _bound("at most"),
    "exclusiveMinimum": _bound("greater than"),
    "exclusiveMaximum": _bound("less than"),
    "multipleOf": _bound("a multiple of"),
    "minLength": _size("character", "least"),
    "maxLength": _size("character", "most"),
    "minItems": _size("item", "least"),
    "maxItems": _size("item", "most"),
    "minProperties": _size("member", "least"),
    "maxProperties": _size("member", "most"),
    "uniqueItems": lambda _: "must not have two equal items",
    "pattern": lambda failure: f"must match the pattern {join_names([failure.limit])}",
    "format": lambda failure: f"must be {words_of_format(failure.limit)}",
    "not": lambda _: "must not fit the schema of `not`",
    "false": lambda _: "is not allowed here",
    "propertyNames": lambda failure: f"the name {_name(failure.limit)} is not allowed",
    "anyOf": _alternatives,
    "oneOf": _alternatives,
}
