"""A quick yes for arguments of plain types, so that the validator is seldom asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

from executionkit.engine._schema.base import RefusingValidator
from executionkit.engine.schema import compile_schema

__all__ = ("quick_check",)

_ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples"})
_TOP: Final = _ANNOTATIONS | {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
}
_TYPES: Final[Mapping[str, frozenset[type]]] = {
    "string": frozenset({str}),
    "integer": frozenset({int}),
    "number": frozenset({int, float}),
    "boolean": frozenset({bool}),
    "null": frozenset({type(None)}),
}
_ANY: Final[frozenset[type]] = frozenset({str, int, float, bool, type(None)})
_NEVER: Final[frozenset[type]] = frozenset()
# Integers above this, and floats, need a second look; see `values.is_plain`.
_MOST: Final = 2**63

_Rule = Any
"""A type (`float` stands for any number), a set of types, or type -> values."""


def quick_check(
    schema: Mapping[str, Any],
) -> Callable[[Mapping[str, Any]], bool] | None:
    """A function that says True for arguments that are certainly valid.

    False means: ask the validator. It knows plain properties (text, numbers, booleans,
    null, unions and enumerations of them, anything) with `required` and
    `additionalProperties`; where the schema says more of a property, the answer is
    False as soon as it is there.

    Args:
        schema: A schema that compiles.

    Returns:
        None when the schema is of another kind, so that asking is no use.
    """
    properties = schema.get("properties", {})
    required = schema.get("required", ())
    is_flat = (
        set(schema) <= _TOP
        and schema.get("type") == "object"
        and isinstance(properties, Mapping)
        and isinstance(schema.get("additionalProperties", True), bool)
        and isinstance(required, (list, tuple))
        and set(required) <= set(properties)
    )
    if not is_flat:
        return None
    rules = {name: _rule_of(item) for name, item in properties.items()}
    if properties and all(rule == _NEVER for rule in rules.values()):
        return None
    known = "$defs" not in schema and all(map(_is_known, properties.values()))
    if not known and _is_refused(schema):
        return None
    return _checker(rules, tuple(required))


def _is_known(schema: Any) -> bool:
    """Whether nothing of a property, or of a branch of it, is for the validator alone."""
    branches = schema.get("anyOf") if isinstance(schema, Mapping) else None
    if isinstance(branches, (list, tuple)):
        return all(map(_is_known, branches))
    return bool(_rule_of(schema) != _NEVER)


def _is_refused(schema: Mapping[str, Any]) -> bool:
    # The subset knows least; what it can check, the others can.
    return isinstance(compile_schema(schema, backend="subset"), RefusingValidator)


def _rule_of(schema: Any) -> _Rule:
    """What the values of a property must be; `_NEVER` when only the validator knows."""
    if schema is True:
        return _ANY
    if not isinstance(schema, Mapping):
        return _NEVER
    said = set(schema) - _ANNOTATIONS
    if not said:
        return _ANY
    if said == {"type"}:
        return _simplest(_types_of(schema["type"]))
    if said == {"anyOf"}:
        return _simplest(_union(schema["anyOf"]))
    if said <= {"type", "enum", "const"} and not {"enum", "const"} <= said:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        types: frozenset[type] = _ANY
        if "type" in schema:
            types = _types_of(schema["type"])
        return _values(values, types)
    return _NEVER


def _types_of(said: Any) -> frozenset[type]:
    names = said if isinstance(said, (list, tuple)) else [said]
    return frozenset().union(*(_TYPES.get(name, _NEVER) for name in names))


def _union(branches: Any) -> frozenset[type]:
    rules = [_rule_of(branch) for branch in branches]
    found: set[type] = set()
    for rule in rules:
        if rule is float:
            found |= _TYPES["number"]
        elif isinstance(rule, type):
            found.add(rule)
        elif not isinstance(rule, dict):
            found |= rule
    return frozenset(found)


def _simplest(types: frozenset[type]) -> _Rule:
    if types == _TYPES["number"]:
        return float
    return next(iter(types)) if len(types) == 1 else types


def _values(values: Any, types: frozenset[type]) -> _Rule:
    """Type -> the values allowed; `1` and `true` are equal to Python, not to JSON."""
    found: dict[type, frozenset[Any]] = {}
    for kind in (str, int, bool, type(None)):
        of_kind = frozenset(item for item in values if type(item) is kind)
        if of_kind and kind in types:
            found[kind] = of_kind
    return found or _NEVER


def _fits(value: Any, rule: _Rule) -> bool:
    """Whether `value`, whose type is not `rule` itself, certainly fits."""
    kind = type(value)
    if isinstance(rule, dict):
        values = rule.get(kind)
        return values is not None and value in values
    if isinstance(rule, type):
        return rule is float and kind is int and -_MOST < value < _MOST
    if kind not in rule:
        return False
    if kind is float:
        return isfinite(value)
    return kind is not int or -_MOST < value < _MOST


def _checker(  # noqa: C901 - two nested functions would be slower
    rules: dict[str, _Rule], needed: tuple[str, ...]
) -> Callable[[Mapping[str, Any]], bool]:
    # Written for speed: this runs on every call.
    count = len(rules)
    least, most = -_MOST, _MOST

    def check(arguments: Mapping[str, Any]) -> bool:  # noqa: C901 - as above
        try:
            for name, value in arguments.items():
                rule = rules[name]
                if type(value) is rule:
                    if rule is str:
                        continue
                    if rule is int:
                        if value > most or value < least:
                            return False
                    elif rule is float and value - value != 0:  # NaN, infinity
                        return False
                elif not _fits(value, rule):
                    return False
        except KeyError:  # an unknown name
            return False
        if len(arguments) != count:  # all names are known, so some are left out
            for name in needed:
                if name not in arguments:
                    return False
        return True

    return check
