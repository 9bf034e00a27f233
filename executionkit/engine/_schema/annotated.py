"""What stands in `Annotated[...]` and around a field's type, as schema keywords."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NotRequired,
    Required,
    get_args,
    get_origin,
)

from executionkit.engine._schema.problems import SchemaError
from executionkit.engine._schema.values import NotJsonError, to_plain

__all__ = ("keywords_of", "split_annotated", "strip_qualifiers")

# Attribute of a constraint (of `annotated_types`, or of pydantic) -> keyword.
_BOUNDS: Final = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
}
_LENGTHS: Final = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}


def split_annotated(tp: Any) -> tuple[Any, tuple[Any, ...]]:
    """(type, metadata) of an `Annotated[...]`; no metadata for any other type."""
    if get_origin(tp) is Annotated:
        inner, *metadata = get_args(tp)
        return inner, tuple(metadata)
    return tp, ()


def strip_qualifiers(tp: Any) -> tuple[Any, bool | None]:
    """(type, required) without `Required`, `NotRequired`, `ReadOnly`, `Final`.

    `required` is None when the qualifiers do not say.
    """
    required: bool | None = None
    while True:
        origin = get_origin(tp)
        if origin is Required:
            required = True
        elif origin is NotRequired:
            required = False
        elif origin not in {Final, ClassVar} and (
            getattr(origin, "_name", None) != "ReadOnly"
        ):
            return tp, required
        tp = get_args(tp)[0]


def keywords_of(
    metadata: Iterable[Any], schema: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """The keywords that the metadata adds to a schema.

    A text is the description, a mapping is merged, and the constraints of
    `annotated_types` and pydantic's `Field` become what they mean. Anything else is for
    other readers and is passed over.

    Args:
        metadata: What stands behind the type in `Annotated`.
        schema: The schema of the type.
        where: What is annotated, for the error.

    Raises:
        SchemaError: When a keyword's value is no JSON.
    """
    keywords: dict[str, Any] = {}
    for item in metadata:
        if isinstance(item, str):
            keywords["description"] = item
        elif isinstance(item, Mapping):
            keywords.update(item)
        else:
            keywords.update(_constraints(item, schema))
            inner = getattr(item, "metadata", None)
            if isinstance(inner, (list, tuple)):
                keywords.update(keywords_of(inner, schema, where))
    try:
        plain: dict[str, Any] = to_plain(keywords)
    except NotJsonError as exc:
        msg = f"{where} is annotated with something that {exc.message}; use JSON values"
        raise SchemaError(msg) from None
    return plain


def _constraints(item: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("description", "documentation"):
        if isinstance(getattr(item, name, None), str):
            found["description"] = getattr(item, name)
    for name, keyword in _BOUNDS.items():
        limit = getattr(item, name, None)
        if limit is not None:
            found[keyword] = limit
    kind = schema.get("type")
    least, most = _LENGTHS.get(kind, ("", "")) if isinstance(kind, str) else ("", "")
    for name, keyword in (("min_length", least), ("max_length", most)):
        if keyword and getattr(item, name, None) is not None:
            found[keyword] = getattr(item, name)
    if kind == "string" and isinstance(getattr(item, "pattern", None), str):
        found["pattern"] = item.pattern
    return found
