"""A JSON Schema validator without dependencies, for a part of JSON Schema.

What it accepts to check, it checks exactly as the full validators do. A keyword that
is not in its tables is never skipped: `unsupported` names it, and the schema then
fails closed.

Checked: `type`, `enum`, `const`, `$ref` inside of the schema, `allOf`, `anyOf`,
`oneOf`, `not`; `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`,
`multipleOf`; `minLength`, `maxLength`, `pattern`, `format`; `items`, `prefixItems`,
`minItems`, `maxItems`, `uniqueItems`; `properties`, `patternProperties`,
`additionalProperties`, `propertyNames`, `required`, `minProperties`, `maxProperties`.
Annotations (`title`, a `format` that the standard does not name, ...) and keywords that
start with `x-` say nothing about validity and are passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from executionkit.engine._schema.base import BackendValidator, RefusingValidator
from executionkit.engine._schema.keywords import (
    ANNOTATIONS,
    KEYWORDS,
    Check,
    MalformedError,
    Path,
    UnsupportedError,
    steps_of,
)
from executionkit.engine._schema.pattern import Pattern, compile_pattern
from executionkit.engine._schema.problems import (
    MAX_PROBLEMS,
    Failure,
    SchemaError,
    Step,
    pointer,
)
from executionkit.engine._schema.regex import PatternError
from executionkit.engine._schema.walk import (
    Dialect,
    Schema,
    pointer_steps,
    resolve_pointer,
)

__all__ = ("SubsetSchema", "make_subset")

_DIALECTS: Final = frozenset({"2020-12", "2019-09", "7", "6"})
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})

Where = tuple[Step, ...]


class SubsetSchema:
    """A schema compiled for the subset.

    Args:
        schema: The schema, its references already checked.
        dialect: How to read it.

    Raises:
        SchemaError: When the schema is malformed.
    """

    def __init__(self, schema: Schema, dialect: Dialect) -> None:
        compiler = _Compiler(schema, dialect)
        if dialect.name in _DIALECTS:
            self._check = compiler.compile(schema, ())
        else:
            self._check = _refuse
            compiler.unsupported.append(f"`$schema` of draft {dialect.name}")
        self.unsupported: tuple[str, ...] = tuple(dict.fromkeys(compiler.unsupported))
        """What the schema uses and the subset cannot check, each with its place."""

    def failures(self, value: Any) -> list[Failure]:
        """What is wrong with a plain value; empty = valid."""
        found: list[Failure] = []
        self._check(value, None, found)
        return found


def make_subset(schema: Schema, dialect: Dialect) -> BackendValidator:
    """The validator that needs no package.

    Raises:
        SchemaError: When the schema is malformed.
    """
    compiled = SubsetSchema(schema, dialect)
    if compiled.unsupported:
        return RefusingValidator("subset", compiled.unsupported)
    return BackendValidator("subset", compiled.failures)


def _accept(_value: Any, _path: Path, _found: list[Failure]) -> None:
    return


def _refuse(value: Any, path: Path, found: list[Failure]) -> None:
    found.append(Failure(steps_of(path), "false", None, value))


class _Compiler:
    """Turns a schema into one function per subschema."""

    def __init__(self, root: Schema, dialect: Dialect) -> None:
        self.unsupported: list[str] = []
        self._root = root
        self._dialect = dialect
        self._targets: dict[str, list[Check]] = {}

    def compile(self, schema: Any, where: Where) -> Check:
        if isinstance(schema, bool):
            return _accept if schema else _refuse
        if not isinstance(schema, dict):
            msg = "must be a schema: an object, true or false"
            raise SchemaError(msg, pointer(where))
        if self._dialect.ref_stands_alone and "$ref" in schema:
            return self._reference(schema["$ref"], (*where, "$ref"))
        return _all(self._checks(schema, where))

    def _checks(self, schema: dict[str, Any], where: Where) -> list[Check]:
        makers: dict[Callable[..., Check | None], str] = {}
        checks: list[Check] = []
        for keyword, limit in schema.items():
            try:
                if keyword in KEYWORDS:
                    check = KEYWORDS[keyword](limit)
                elif keyword not in _STRUCTURES:
                    self._pass_over(keyword, limit, where)
                    continue
                elif makers.setdefault(_STRUCTURES[keyword], keyword) != keyword:
                    continue  # checked together with a keyword before it
                else:
                    check = _STRUCTURES[keyword](self, schema, where)
            except MalformedError as exc:
                raise SchemaError(str(exc), pointer((*where, keyword))) from exc
            except UnsupportedError as exc:
                self._cannot(keyword, where, str(exc))
                continue
            if check is not None:
                checks.append(check)
        return checks

    def _pass_over(self, keyword: str, limit: Any, where: Where) -> None:
        if keyword in ANNOTATIONS:
            if not isinstance(limit, ANNOTATIONS[keyword]):
                msg = "has a value of the wrong type for this annotation"
                raise MalformedError(msg)
        elif keyword in _DEFINITIONS:
            if not isinstance(limit, dict):
                msg = "must be an object of schemas"
                raise MalformedError(msg)
        elif keyword in {"$id", "$schema"}:
            if where:
                self._cannot(keyword, where)
            elif not isinstance(limit, str):
                msg = "must be text"
                raise MalformedError(msg)
        elif not keyword.startswith("x-"):
            self._cannot(keyword, where)

    def _cannot(self, keyword: str, where: Where, why: str = "") -> None:
        shown = f"`{pointer((*where, keyword))}`"
        self.unsupported.append(f"{shown} ({why})" if why else shown)

    def _reference(self, reference: Any, where: Where) -> Check:
        if not isinstance(reference, str):
            msg = "must be text"
            raise SchemaError(msg, pointer(where))
        try:
            target = resolve_pointer(self._root, reference)
        except LookupError:
            self._cannot("$ref", where[:-1])
            return _accept
        holder = self._targets.get(reference)
        if holder is None:
            # The holder is known before its check is, so a schema may contain itself.
            holder = self._targets[reference] = []
            holder.append(self.compile(target, pointer_steps(reference)))
        checks = holder

        def check(value: Any, path: Path, found: list[Failure]) -> None:
            checks[0](value, path, found)

        return check

    def list_of(self, limit: Any, where: Where) -> list[Check]:
        if not isinstance(limit, list) or not limit:
            msg = "must be a list of one or more schemas"
            raise SchemaError(msg, pointer(where))
        return [self.compile(item, (*where, at)) for at, item in enumerate(limit)]

    def map_of(self, limit: Any, where: Where) -> dict[str, Check]:
        if not isinstance(limit, dict):
            msg = "must be an object of schemas"
            raise SchemaError(msg, pointer(where))
        return {
            name: self.compile(item, (*where, name)) for name, item in limit.items()
        }

    def ref(self, schema: dict[str, Any], where: Where) -> Check:
        return self._reference(schema["$ref"], (*where, "$ref"))

    def all_of(self, schema: dict[str, Any], where: Where) -> Check:
        return _all(self.list_of(schema["allOf"], (*where, "allOf")))

    def any_of(self, schema: dict[str, Any], where: Where) -> Check:
        return _any_of(self.list_of(schema["anyOf"], (*where, "anyOf")))

    def one_of(self, schema: dict[str, Any], where: Where) -> Check:
        return _one_of(self.list_of(schema["oneOf"], (*where, "oneOf")))

    def negation(self, schema: dict[str, Any], where: Where) -> Check:
        return _not(self.compile(schema["not"], (*where, "not")))

    def property_names(self, schema: dict[str, Any], where: Where) -> Check:
        place = (*where, "propertyNames")
        return _property_names(self.compile(schema["propertyNames"], place))

    def items(self, schema: dict[str, Any], where: Where) -> Check:
        first: list[Check] = []
        if "prefixItems" in schema:
            if self._dialect.name != "2020-12":
                msg = f"not a keyword of {self._dialect.name}"
                raise UnsupportedError(msg)
            first = self.list_of(schema["prefixItems"], (*where, "prefixItems"))
        rest = schema.get("items", True)
        if isinstance(rest, list) and self._dialect.name != "2020-12":
            msg = "a list of schemas"
            raise UnsupportedError(msg)
        return _items(first, self.compile(rest, (*where, "items")))

    def members(self, schema: dict[str, Any], where: Where) -> Check:
        named = self.map_of(schema.get("properties", {}), (*where, "properties"))
        place = (*where, "patternProperties")
        matched = self.map_of(schema.get("patternProperties", {}), place)
        try:
            patterns = [(compile_pattern(key), matched[key]) for key in matched]
        except PatternError as exc:
            raise UnsupportedError(str(exc)) from exc
        extra = schema.get("additionalProperties", True)
        others = self.compile(extra, (*where, "additionalProperties"))
        return _members(named, patterns, _unexpected if extra is False else others)


def _property_names(inner: Check) -> Check:
    def check(value: Any, path: Path, found: list[Failure]) -> None:
        if not isinstance(value, dict):
            return
        for name in value:
            failures: list[Failure] = []
            inner(name, None, failures)
            if failures:
                found.append(Failure(steps_of(path), "propertyNames", name, value))

    return check


def _all(checks: list[Check]) -> Check:
    if len(checks) <= 1:
        return checks[0] if checks else _accept
    fixed = tuple(checks)

    def check(value: Any, path: Path, found: list[Failure]) -> None:
        for part in fixed:
            part(value, path, found)

    return check


def _branches(checks: list[Check], value: Any, path: Path) -> list[list[Failure]]:
    branches: list[list[Failure]] = []
    for check in checks:
        inner: list[Failure] = []
        check(value, path, inner)
        branches.append(inner)
    return branches


def _any_of(checks: list[Check]) -> Check:
    def check(value: Any, path: Path, found: list[Failure]) -> None:
        branches: list[list[Failure]] = []
        for part in checks:
            inner: list[Failure] = []
            part(value, path, inner)
            if not inner:
                return
            branches.append(inner)
        found.append(Failure(steps_of(path), "anyOf", value=value, branches=branches))

    return check


def _one_of(checks: list[Check]) -> Check:
    def check(value: Any, path: Path, found: list[Failure]) -> None:
        branches = _branches(checks, value, path)
        if sum(1 for branch in branches if not branch) != 1:
            found.append(
                Failure(steps_of(path), "oneOf", value=value, branches=branches)
            )

    return check


def _not(inner: Check) -> Check:
    def check(value: Any, path: Path, found: list[Failure]) -> None:
        failures: list[Failure] = []
        inner(value, path, failures)
        if not failures:
            found.append(Failure(steps_of(path), "not", None, value))

    return check


def _items(first: list[Check], rest: Check) -> Check:
    count = len(first)

    def check(value: Any, path: Path, found: list[Failure]) -> None:
        if not isinstance(value, list):
            return
        for index, item in enumerate(value):
            (first[index] if index < count else rest)(item, (path, index), found)
            if len(found) >= MAX_PROBLEMS:
                return

    return check


def _unexpected(value: Any, path: Path, found: list[Failure]) -> None:
    steps = steps_of(path)
    name = steps.pop()
    found.append(Failure(steps, "additionalProperties", name, value))


def _members(
    named: dict[str, Check], patterns: list[tuple[Pattern, Check]], others: Check
) -> Check:
    def check(value: Any, path: Path, found: list[Failure]) -> None:
        if not isinstance(value, dict):
            return
        for key, item in value.items():
            inside = (path, key)
            own = named.get(key)
            known = own is not None
            if own is not None:
                own(item, inside, found)
            for pattern, part in patterns:
                if pattern.search(key):
                    known = True
                    part(item, inside, found)
            if not known:
                others(item, inside, found)
            if len(found) >= MAX_PROBLEMS:
                return

    return check


_STRUCTURES: Final[dict[str, Callable[[_Compiler, dict[str, Any], Where], Check]]] = {
    "$ref": _Compiler.ref,
    "additionalProperties": _Compiler.members,
    "allOf": _Compiler.all_of,
    "anyOf": _Compiler.any_of,
    "items": _Compiler.items,
    "not": _Compiler.negation,
    "oneOf": _Compiler.one_of,
    "patternProperties": _Compiler.members,
    "prefixItems": _Compiler.items,
    "properties": _Compiler.members,
    "propertyNames": _Compiler.property_names,
}
"""Keyword -> what makes its check; keywords with one maker are checked together."""
