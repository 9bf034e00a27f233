"""JSON Schema: check values against it, make it from signatures, decode by it.

The full validators (`jsonschema-rs`, else `jsonschema`) check all of JSON Schema
2020-12, and 2019-09, 7, 6 and 4 when `$schema` says so. Without them the subset of
`schema_subset` is checked, and a schema that uses more accepts nothing. In all three:

- `format` is asserted: a text that lacks a format of the standard (`date-time`,
  `email`, `uri`, ...) is a problem. A format of another name is an annotation and
  asks nothing, as the standard has it; a value that is no text has every format.
- Nothing is ever fetched; a reference that leaves the schema is a `SchemaError`.
- Integers are exact at any size, booleans are no numbers, `3.0` is an integer.
- Word boundaries, back references and property escapes in `pattern` are checked by
  `jsonschema-rs` alone, look-around also by `jsonschema`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Protocol

from executionkit.engine._schema.problems import (
    MAX_PROBLEMS,
    SchemaError,
    SchemaProblem,
    pointer,
)
from executionkit.engine._schema.values import NotJsonError, to_plain
from executionkit.engine._schema.walk import (
    Dialect,
    Schema,
    check_references,
    dialect_of,
)
from executionkit.errors import MissingExtraError

__all__ = (
    "MAX_PROBLEMS",
    "SchemaError",
    "SchemaProblem",
    "Validator",
    "compile_schema",
)

_MAX_KEPT: Final = 512

# Where users find them, and what a traceback says.
for _public in (SchemaError, SchemaProblem):
    _public.__module__ = __name__


class Validator(Protocol):
    """A compiled schema. Keep it: compiling costs a thousand times a validation."""

    @property
    def backend(self) -> str:
        """`"jsonschema-rs"`, `"jsonschema"` or `"subset"`."""
        ...

    def validate(self, value: Any) -> list[SchemaProblem]:
        """What is wrong with `value`, at most `MAX_PROBLEMS` things; empty = valid."""
        ...


_BACKENDS: Final = ("jsonschema-rs", "jsonschema", "subset")
"""The best one first."""


def compile_schema(
    schema: Mapping[str, Any] | bool,  # noqa: FBT001 - a schema may be true or false
    *,
    backend: str | None = None,
) -> Validator:
    """The validator for a schema; the last 512 are kept, by the schema's content.

    Args:
        schema: A JSON Schema. Changing it later changes nothing here.
        backend: `"jsonschema-rs"`, `"jsonschema"` or `"subset"`; None = the first of
            them that is installed.

    Raises:
        SchemaError: When the schema is malformed, is no JSON, or needs to be fetched.
        MissingExtraError: When the `backend` asked for is not installed.
        ValueError: When there is no such backend.
    """
    if backend is not None and backend not in _BACKENDS:
        msg = f"`backend` must be one of {', '.join(_BACKENDS)}, got {backend!r}"
        raise ValueError(msg)
    text = _text(schema)
    if backend is not None:
        return _compile(text, backend)
    for name in _BACKENDS:
        try:
            return _compile(text, name)
        except MissingExtraError:
            continue
    raise AssertionError  # pragma: no cover - the subset needs nothing


def _text(schema: object) -> str:
    if not isinstance(schema, (Mapping, bool)):
        msg = f"a schema is an object, true or false, got {type(schema).__name__}"
        raise SchemaError(msg)
    try:
        return json.dumps(to_plain(schema))
    except NotJsonError as exc:
        raise SchemaError(exc.message, pointer(exc.steps)) from None


@lru_cache(maxsize=_MAX_KEPT)
def _compile(text: str, backend: str) -> Validator:
    # The text is the key because Python's own equality takes `1` for `true`.
    try:
        schema: Schema = json.loads(text)
        dialect = dialect_of(schema)
        check_references(schema, dialect)
        return _maker(backend)(schema, dialect)
    except RecursionError:
        msg = "the schema is nested too deeply"
        raise SchemaError(msg) from None


def _maker(backend: str) -> Callable[[Schema, Dialect], Validator]:
    # Imported when needed: most programs use one of them.
    if backend == "jsonschema-rs":
        from executionkit.engine._schema.rust import make_rust

        return make_rust
    if backend == "jsonschema":
        from executionkit.engine._schema.pure import make_pure

        return make_pure
    from executionkit.engine.schema_subset import make_subset

    return make_subset
