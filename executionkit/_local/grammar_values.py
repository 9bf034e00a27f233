"""The single values of a grammar: strings, numbers, choices; and schemas put together.

See `grammar` for what is kept and why.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from executionkit.types import JsonObject

__all__ = (
    "BOUNDS",
    "INT_MAX",
    "INT_MIN",
    "MAX_COUNT",
    "OF_ARRAY",
    "OF_OBJECT",
    "OF_STRING",
    "GrammarError",
    "check_range",
    "ends",
    "guess_type",
    "is_count",
    "is_exact",
    "is_names",
    "is_safe_pattern",
    "merge",
    "pick_options",
    "refusal",
)

INT_MIN: Final = -(2**53 - 1)
INT_MAX: Final = 2**53 - 1
MAX_COUNT: Final = 10_000
BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
OF_STRING: Final = ("minLength", "maxLength", "pattern", "format")
OF_ARRAY: Final = ("items", "prefixItems", "minItems", "maxItems", "additionalItems")
OF_OBJECT: Final = (
    *("properties", "required", "additionalProperties"),
    *("minProperties", "maxProperties"),
)
# Regular expressions that read the same in every dialect: no look-around, no back
# references, no word boundaries, no nested classes.
_SAFE_PATTERN: Final = re.compile(
    r"\^?(?:"
    r"\\[dwsDWSntr.\-+*?()\[\]{}|^$/\\]"
    r"|\[\^?(?:\\[dwsntr.\-\[\]^/\\]|[^\[\]\\&~^])+\]"
    r"|[^\\\[\](){}^$*+?|]"
    r"|\((?:\?:|(?!\?))"
    r"|[)*+?|]"
    r"|\{\d{1,3}(?:,\d{0,3})?\}"
    r")*\$?"
)
_MARKS: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|[()|]")
_TIGHTER: Final = (
    (("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    (("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
)
_ONE_OF_A_KIND: Final = (
    *("anyOf", "oneOf", "enum", "const", "pattern", "format", "multipleOf"),
    *("items", "prefixItems", "additionalProperties"),
)


class GrammarError(ValueError):
    """A schema that no reply can be held to."""


def refusal(path: str, why: str) -> GrammarError:
    """The error that says where and why."""
    return GrammarError(f"JSON schema at {path}: {why}")


def is_exact(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that the engine reads exactly: no exponents, 64 bits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if isinstance(value, int):
        return INT_MIN <= value <= INT_MAX
    return math.isfinite(value) and "e" not in repr(value)


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a length that the engine can keep."""
    return type(value) is int and 0 <= value <= MAX_COUNT


def is_names(value: object) -> TypeGuard[list[str]]:
    """Whether it is a list of texts."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def is_safe_pattern(pattern: object) -> TypeGuard[str]:
    """Whether a regular expression means the same to the engine as to everyone."""
    if not isinstance(pattern, str) or not _SAFE_PATTERN.fullmatch(pattern):
        return False
    depth = 0
    for mark in _MARKS.findall(pattern):
        depth += {"(": 1, ")": -1}.get(mark, 0)
        if mark == "|" and not depth:
            return False  # `^a|b$` anchors each side of it for itself
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def guess_type(schema: Mapping[str, Any]) -> str | None:
    """The type that the keywords speak of, when no type is given."""
    for kind, keys in (
        ("object", (*OF_OBJECT, "patternProperties")),
        ("array", OF_ARRAY),
        ("string", OF_STRING),
        ("number", (*BOUNDS, "multipleOf")),
    ):
        if any(key in schema for key in keys):
            return kind
    return None


def pick_options(
    schema: Mapping[str, Any], kinds: Sequence[str], path: str
) -> dict[str, Any]:
    """The values of `const` or `enum` that have one of the types."""
    options = [schema["const"]] if "const" in schema else schema["enum"]
    if not isinstance(options, list) or not options:
        raise refusal(path, "`enum` must be a non-empty array")
    if kinds:
        options = [item for item in options if _is_of_type(item, kinds)]
    if not options:
        raise refusal(path, "no value of `enum` has the right type")
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError):
        raise refusal(path, "`enum` holds a value that is not JSON") from None
    return {"const": options[0]} if len(options) == 1 else {"enum": options}


def _is_of_type(value: object, kinds: Sequence[str]) -> bool:
    if value is None:
        return "null" in kinds
    if isinstance(value, bool):
        return "boolean" in kinds
    if isinstance(value, (int, float)):
        whole = isinstance(value, int) or value.is_integer()
        return "number" in kinds or ("integer" in kinds and whole)
    if isinstance(value, str):
        return "string" in kinds
    return ("array" if isinstance(value, list) else "object") in kinds


def check_range(built: Mapping[str, Any], path: str) -> None:
    """Refuse a range with no number in it: the engine would ignore it."""
    low = max(built.get("minimum", -math.inf), built.get("exclusiveMinimum", -math.inf))
    high = min(built.get("maximum", math.inf), built.get("exclusiveMaximum", math.inf))
    open_low = built.get("exclusiveMinimum", -math.inf) == low
    open_high = built.get("exclusiveMaximum", math.inf) == high
    empty = low > high or (low == high and (open_low or open_high))
    step = built.get("multipleOf", 1 if built["type"] == "integer" else None)
    if not empty and step is not None and math.isfinite(low) and math.isfinite(high):
        first = math.ceil(low / step) * step
        first += step if open_low and first == low else 0
        empty = first > high or (open_high and first == high)
    if empty:
        raise refusal(path, "no number is within the bounds")


def merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that asks for both, as far as a grammar can tell."""
    merged = {**one, **other}
    ours, theirs = one.get("properties"), other.get("properties")
    if isinstance(ours, dict) and isinstance(theirs, dict):
        merged["properties"] = {**ours, **theirs}
    ours, theirs = one.get("required"), other.get("required")
    if is_names(ours) and is_names(theirs):
        merged["required"] = [*ours, *theirs]
    for keys, pick in _TIGHTER:
        for key in keys:
            low, high = one.get(key), other.get(key)
            if is_exact(low) and is_exact(high):
                merged[key] = pick(low, high)
    if "type" in one and "type" in other:
        merged["type"] = _common_types(one["type"], other["type"])
    for key in _ONE_OF_A_KIND:
        if key in one and key in other and one[key] != other[key]:
            merged[f"allOf/{key}"] = True  # unknown, hence named as left out
    return merged


def _common_types(one: object, other: object) -> list[Any]:
    ours = one if isinstance(one, list) else [one]
    theirs = other if isinstance(other, list) else [other]
    common = [kind for kind in ours if kind in theirs]
    both = {*map(str, ours), *map(str, theirs)}
    if "integer" not in common and both >= {"integer", "number"}:
        common.append("integer")
    return common


def ends(built: JsonObject, ending: set[str]) -> bool:
    """Whether some value of a rebuilt schema is finite.

    Args:
        built: The schema.
        ending: Names of the definitions that are known to have a finite value.
    """
    if "$ref" in built:
        return str(built["$ref"]).rsplit("/", 1)[-1] in ending
    if "anyOf" in built:
        return any(ends(branch, ending) for branch in built["anyOf"])
    if built.get("type") == "object":
        needed = [built["properties"][key] for key in built["required"]]
        return all(ends(item, ending) for item in needed)
    if built.get("type") == "array":
        first = built.get("prefixItems", [])
        if not all(ends(item, ending) for item in first):
            return False
        least = built.get("minItems", 0)
        return least <= len(first) or ends(built.get("items", {}), ending)
    return True
