"""The validator of the package `jsonschema`, made to agree with `jsonschema-rs`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from executionkit.engine._schema.base import BackendValidator, RefusingValidator
from executionkit.engine._schema.formats import has_format
from executionkit.engine._schema.problems import (
    MAX_PROBLEM_TEXT,
    Failure,
    SchemaError,
    Step,
    pointer,
)
from executionkit.engine._schema.regex import PatternError, parse_pattern, to_python
from executionkit.engine._schema.values import equality_key, exact_ratio
from executionkit.engine._schema.walk import (
    Dialect,
    Schema,
    has_inner_ids,
    reachable_schemas,
    subschemas,
)
from executionkit.errors import require

__all__ = ("make_pure",)

_CLASSES: Final = {
    "2020-12": "Draft202012Validator",
    "2019-09": "Draft201909Validator",
    "7": "Draft7Validator",
    "6": "Draft6Validator",
    "4": "Draft4Validator",
}


def make_pure(schema: Schema, dialect: Dialect) -> BackendValidator:
    """The validator of the package `jsonschema`.

    Raises:
        MissingExtraError: When it is not installed.
        SchemaError: When the schema is malformed.
    """
    package = require("jsonschema", extra="jsonschema")
    registry = require("jsonschema_specifications", extra="jsonschema").REGISTRY
    base = getattr(package, _CLASSES[dialect.name])
    patterns = _Patterns(schema)
    try:
        base.check_schema(schema, format_checker=None)
        if has_inner_ids(schema):
            _check_resolvable(schema, dialect, registry)
    except package.SchemaError as exc:
        steps = [patterns.original(step) for step in exc.absolute_path]
        raise SchemaError(exc.message, pointer(steps)) from None
    if patterns.unsupported:
        return RefusingValidator("jsonschema", patterns.unsupported)
    _spell_out_false(schema)
    extend = package.validators.extend
    own = _own_keywords(package.ValidationError)
    build = extend(base, {name: own[name] for name in own if name in base.VALIDATORS})
    compiled = build(schema, registry=registry)

    def find(value: Any) -> Iterator[Failure]:
        for error in compiled.iter_errors(value):
            yield from _failures(error, patterns)

    return BackendValidator("jsonschema", find)


class _Patterns:
    """Rewrites the patterns of a schema for Python's `re`, in place.

    Args:
        schema: The schema, free to be changed.
    """

    def __init__(self, schema: Schema) -> None:
        self.unsupported: list[str] = []
        """The patterns that cannot be rewritten, each with its place."""

        self._originals: dict[str, str] = {}
        for steps, part in list(reachable_schemas(schema)):
            self._rewrite(part, steps)

    def original(self, text: Any) -> Any:
        """What a rewritten pattern was before; anything else as it is."""
        return self._originals.get(text, text)

    def _rewrite(self, part: dict[str, Any], steps: tuple[Step, ...]) -> None:
        pattern = part.get("pattern")
        if isinstance(pattern, str):
            part["pattern"] = self._translate(pattern, (*steps, "pattern"))
        reference = part.get("$ref")
        if isinstance(reference, str) and "/patternProperties/" in reference:
            # It would lead to a pattern that is written differently now.
            self.unsupported.append(f"`{pointer((*steps, '$ref'))}`")
        keyed = part.get("patternProperties")
        if isinstance(keyed, dict):
            renamed: dict[str, Any] = {}
            for key, inner in keyed.items():
                name = self._translate(key, (*steps, "patternProperties", key))
                while name in renamed:  # two patterns may be one in other words
                    name += "(?:)"
                renamed[name] = inner
            part["patternProperties"] = renamed

    def _translate(self, pattern: str, steps: tuple[Step, ...]) -> str:
        try:
            translated = to_python(parse_pattern(pattern))
            re.compile(translated)
        except (PatternError, re.error) as exc:
            self.unsupported.append(f"`{pointer(steps)}` ({exc})")
            return ""
        self._originals[translated] = pattern
        return translated


# The package loses the place of a value that a schema of just `false` refuses.
_FALSE: Final = {"not": {"$comment": "false"}}
_KEPT_FALSE: Final = frozenset({"additionalItems", "additionalProperties"})


def _spell_out_false(schema: Schema) -> None:
    for _, part in reachable_schemas(schema):
        for way, inner in list(subschemas(part)):
            keyword = str(way[0])
            kept = keyword in _KEPT_FALSE or keyword.startswith("unevaluated")
            if inner is False and not kept:
                holder: Any = part if len(way) == 1 else part[keyword]
                holder[way[-1]] = _FALSE


def _check_resolvable(schema: Any, dialect: Dialect, registry: Any) -> None:
    errors = require("referencing.exceptions", extra="jsonschema")
    rules = require("referencing.jsonschema", extra="jsonschema")
    resource = rules.specification_with(dialect.uri).create_resource(schema)
    todo = [(resource, registry.resolver_with_root(resource))]
    while todo:
        resource, resolver = todo.pop()
        contents: Any = resource.contents
        for keyword in ("$ref", "$dynamicRef"):
            reference = contents.get(keyword) if isinstance(contents, dict) else None
            try:
                if isinstance(reference, str):
                    resolver.lookup(reference)
            except errors.Unresolvable:
                msg = (
                    f"`{reference}` is not in the schema and is never fetched; "
                    'copy it into `$defs` and refer to it as "#/$defs/NAME"'
                )
                raise SchemaError(msg) from None
        todo.extend(
            (inner, resolver.in_subresource(inner)) for inner in resource.subresources()
        )


def _own_keywords(make_error: Callable[[str], Any]) -> dict[str, Any]:
    """Keywords that the package, or an older version of it, checks in another way.

    Which formats it knows depends on the packages that are installed. It divides floats, takes `true` for `1` inside of arrays and objects (before 4.21),
    and does not say which name breaks `propertyNames`.
    """
    checks: dict[str, Callable[[Any, Any], bool]] = {
        "const": lambda limit, value: equality_key(value) == equality_key(limit),
        "enum": lambda limit, value: (
            equality_key(value) in set(map(equality_key, limit))
        ),
        "format": has_format,
        "multipleOf": _is_multiple,
        "uniqueItems": _is_unique,
    }

    def checking(holds: Callable[[Any, Any], bool]) -> Callable[..., Iterator[Any]]:
        def check(_validator: Any, limit: Any, value: Any, _: Any) -> Iterator[Any]:
            if not holds(limit, value):
                yield make_error("")

        return check

    def names(validator: Any, limit: Any, value: Any, _schema: Any) -> Iterator[Any]:
        for name in value if isinstance(value, dict) else ():
            if any(True for _ in validator.descend(name, limit)):
                yield make_error(name)

    return {
        **{keyword: checking(holds) for keyword, holds in checks.items()},
        "propertyNames": names,
    }


def _is_multiple(limit: Any, value: Any) -> bool:
    if type(value) not in (int, float):
        return True
    top, bottom = exact_ratio(limit)
    value_top, value_bottom = exact_ratio(value)
    return (value_top * bottom) % (value_bottom * top) == 0


def _is_unique(limit: Any, value: Any) -> bool:
    if not limit or not isinstance(value, list):
        return True
    return len(set(map(equality_key, value))) == len(value)


def _failures(error: Any, patterns: _Patterns) -> Iterator[Failure]:
    steps: list[Step] = list(error.absolute_path)
    value: Any = error.instance
    limit: Any = error.validator_value
    keyword: str = error.validator or "false"
    names = _names(keyword, limit, value, error.schema)
    if names is not None:
        shown = "required" if keyword.startswith("depend") else keyword
        # There is one error for each missing name; the name is only in its words.
        own = [name for name in names if error.message.startswith(f"{name!r} ")]
        for name in own or names:
            yield Failure(steps, shown, name, value)
        return
    if limit == _FALSE["not"]:
        keyword = "false"
    if keyword == "propertyNames":
        limit = error.message
    if keyword == "pattern":
        limit = patterns.original(limit)
    if keyword in {"minimum", "maximum"}:
        strict = f"exclusive{keyword.capitalize()}"
        if error.schema.get(strict) is True:  # draft 4
            keyword = strict
    text = error.message if len(error.message) <= MAX_PROBLEM_TEXT else ""
    yield Failure(steps, keyword, limit, value, text, _branches(error, patterns))


def _names(keyword: str, limit: Any, value: Any, schema: Any) -> list[str] | None:
    """The members that a failure is about; None for a keyword that is not about any."""
    if keyword == "required":
        return [name for name in limit if name not in value]
    if keyword == "additionalProperties":
        known = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        return [
            name
            for name in value
            if name not in known and not any(re.search(p, name) for p in patterns)
        ]
    if keyword in {"dependentRequired", "dependencies"}:
        return [
            name
            for key, needed in limit.items()
            if key in value and isinstance(needed, list)
            for name in needed
            if name not in value
        ]
    return None


def _branches(error: Any, patterns: _Patterns) -> list[list[Failure]]:
    if error.validator not in {"anyOf", "oneOf"}:
        return []
    if not error.context:
        return [[], []]  # `oneOf`, and more than one of them fits
    branches: list[list[Failure]] = [[] for _ in error.validator_value]
    for inner in error.context:
        branches[inner.schema_path[0]].extend(_failures(inner, patterns))
    return branches
