"""The validator of the package `jsonschema-rs`, kept to the rules that all share."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Final

from executionkit.engine._schema.base import BackendValidator
from executionkit.engine._schema.formats import FORMATS
from executionkit.engine._schema.problems import (
    Failure,
    SchemaError,
    SchemaProblem,
    Step,
    pointer,
)
from executionkit.engine._schema.values import is_plain
from executionkit.engine._schema.walk import Dialect, Schema, reachable_schemas
from executionkit.errors import MissingExtraError, require

__all__ = ("make_rust",)


class _RustValidator(BackendValidator):
    __slots__ = ("_is_valid",)

    def __init__(self, compiled: Any) -> None:
        super().__init__("jsonschema-rs", lambda value: _rust_find(compiled, value))
        self._is_valid = compiled.is_valid

    def validate(self, value: Any) -> list[SchemaProblem]:
        """As `BackendValidator.validate`; a valid value costs about a microsecond."""
        if type(value) is MappingProxyType:
            value = dict(value)
        # `is_plain` comes first: the package reads NaN and huge integers as null.
        try:
            if is_plain(value) and self._is_valid(value):
                return []
        except (UnicodeEncodeError, RecursionError):
            pass
        return super().validate(value)


_RUST_CLASSES: Final = {
    "2020-12": "Draft202012Validator",
    "2019-09": "Draft201909Validator",
    "7": "Draft7Validator",
    "6": "Draft6Validator",
    "4": "Draft4Validator",
}
_RUST_LIMITS: Final = {
    "const": "expected_value",
    "enum": "options",
    "format": "format",
    "multipleOf": "multiple_of",
    "pattern": "pattern",
    "required": "property",
    "type": "types",
}


def make_rust(schema: Schema, dialect: Dialect) -> BackendValidator:
    """The validator of the package `jsonschema-rs`.

    Raises:
        MissingExtraError: When it is not installed, or too old.
        SchemaError: When the schema is malformed.
    """
    package = _package()
    for _, part in reachable_schemas(schema):
        # Up to draft 7 the package asserts these; nobody else does.
        part.pop("contentEncoding", None)
        part.pop("contentMediaType", None)
        # Without `properties` it does not say which member it refuses.
        if part.get("additionalProperties") is False:
            part.setdefault("properties", {})
    if isinstance(schema, dict):
        schema.pop("$schema", None)
    build = getattr(package, _RUST_CLASSES[dialect.name])
    options: dict[str, Any] = {
        "validate_formats": True,
        "formats": dict(FORMATS),  # in place of the package's own
        "offline": True,
        "mask": "the value",
    }
    try:
        compiled = build(_encodable(schema), **options)
    except package.ValidationError as exc:
        raise SchemaError(exc.message, pointer(exc.instance_path)) from None
    except (ValueError, package.ReferencingError) as exc:
        raise SchemaError(str(exc)) from None
    return _RustValidator(compiled)


def _package() -> Any:
    """The package, when it is new enough to compare great numbers exactly (0.61).

    Raises:
        MissingExtraError: When it is older, or not installed.
    """
    package = require("jsonschema_rs", extra="jsonschema")
    try:
        probe = package.Draft202012Validator({"maximum": 2.0**60}, offline=True)
        exact = not probe.is_valid(2**60 + 1)
    except (AttributeError, TypeError):
        exact = False
    if not exact:
        msg = (
            "the installed `jsonschema_rs` is too old; "
            "run: pip install -U 'executionkit[jsonschema]'"
        )
        raise MissingExtraError(msg, extra="jsonschema")
    return package


def _rust_find(compiled: Any, value: Any) -> Iterator[Failure]:
    try:
        errors = compiled.iter_errors(value)
    except UnicodeEncodeError:
        value = _encodable(value)
        errors = compiled.iter_errors(value)
    for error in errors:
        yield from _rust_failures(error, value)


def _rust_failures(error: Any, root: Any) -> Iterator[Failure]:
    kind = error.kind
    keyword = "false" if kind.name == "falseSchema" else kind.name
    steps = _steps(error.instance_path, root)
    value = error.instance
    if keyword in {"additionalProperties", "unevaluatedProperties"}:
        for name in kind.unexpected:
            yield Failure(steps, "additionalProperties", name, value)
        return
    branches: list[list[Failure]] = []
    if keyword in {"anyOf", "oneOf"}:
        branches = [
            [found for inner in branch for found in _rust_failures(inner, root)]
            for branch in kind.context
        ]
    if keyword == "propertyNames":
        yield Failure(steps, keyword, kind.error.instance, value)
        return
    limit = getattr(kind, _RUST_LIMITS.get(keyword, "limit"), None)
    yield Failure(steps, keyword, limit, value, error.message, branches)


def _steps(path: list[Step], root: Any) -> list[Step]:
    """The steps of a path as the package reports it.

    It reports a name that looks like an index, such as `"01"`, as a number, and leaves
    out empty names. The first is mended here; behind the second the path stays as it is.
    """
    steps: list[Step] = []
    value: Any = root
    for step in path:
        name = step
        if isinstance(value, dict) and step not in value:
            names = [str(step), *(key for key in value if _reads_as(key, step))]
            name = next((key for key in names if key in value), step)
        steps.append(name)
        try:
            value = value[name]
        except (LookupError, TypeError):
            value = None
    return steps


def _reads_as(name: str, number: Step) -> bool:
    digits = name.removeprefix("+")
    return digits.isascii() and digits.isdigit() and int(digits) == number


_SURROGATES: Final = {code: 0x10F800 - 0xD800 + code for code in range(0xD800, 0xE000)}


def _encodable(value: Any) -> Any:
    """A copy in which lone surrogates, which no UTF-8 can carry, are other characters.

    The 2048 surrogates become the last 2048 code points, which are for private use, so
    lengths and equality stay what they are.
    """
    if isinstance(value, str):
        return value.translate(_SURROGATES)
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    return value
