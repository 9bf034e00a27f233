"""The strict twin admits what the schema admits, with null for what is left out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.engine.schema import SchemaError, compile_schema
from executionkit.engine.schema_infer import schema_for_type, schema_from_callable
from executionkit.engine.schema_strict import drop_strict_nulls, strict_schema
from executionkit.types import freeze_mapping

pytestmark = pytest.mark.req("schema.strict-twin")


@dataclass
class Item:
    name: str
    price: float = 0.0
    tags: list[str] = field(default_factory=list)
    parent: Item | None = None


def order(
    items: list[Item],
    mode: Literal["a", "b"] = "a",
    note: str | None = None,
    gift: Item | None = None,
    limit: int = 3,
) -> None:
    """Orders.

    Args:
        items: What.
        limit: How many.
    """


def objects_of(schema: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo.extend(part)
        elif isinstance(part, dict):
            todo.extend(part.values())
            if isinstance(part.get("properties"), dict):
                found.append(part)
    return found


def test_every_member_is_required_and_no_other_allowed() -> None:
    schema, _ = schema_from_callable(order)
    before = json.dumps(schema)
    strict = strict_schema(schema)
    assert json.dumps(schema) == before
    objects = objects_of(strict)
    assert len(objects) == 2
    for part in objects:
        assert part["required"] == list(part["properties"])
        assert part["additionalProperties"] is False
    properties = strict["properties"]
    assert properties["limit"] == {
        "description": "How many.",
        "anyOf": [{"type": "integer"}, {"type": "null"}],
    }
    assert properties["items"]["type"] == "array"
    assert properties["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert "default" not in json.dumps(strict)
    compile_schema(strict)


def test_a_frozen_schema_has_a_twin_too() -> None:
    schema, _ = schema_from_callable(order)
    assert strict_schema(freeze_mapping(schema)) == strict_schema(schema)


def test_what_only_narrows_is_left_out() -> None:
    schema = {
        "type": "object",
        "title": "t",
        "properties": {
            "a": {"type": "string", "minLength": 2, "format": "email", "default": "x"},
            "b": {"type": "string", "format": "path", "pattern": "^/"},
            "c": {
                "type": ["array", "null"],
                "items": {"const": 1},
                "uniqueItems": True,
            },
            "d": {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
            "e": {"enum": [1, "x"], "description": "either"},
        },
        "required": ["a", "b", "c", "d", "e"],
    }
    assert strict_schema(schema) == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "format": "email"},
            "b": {"type": "string", "pattern": "^/"},
            "c": {"type": ["array", "null"], "items": {"const": 1}},
            "d": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
            "e": {"enum": [1, "x"], "description": "either"},
        },
        "required": ["a", "b", "c", "d", "e"],
        "additionalProperties": False,
    }


REFUSED: list[tuple[Any, str]] = [
    ({"a": {}}, "a value of any type"),
    ({"a": True}, "a value of any type"),
    ({"a": {"type": "array"}}, "an array of anything"),
    ({"a": {"type": "object", "additionalProperties": True}}, "without a fixed name"),
    ({"a": {"type": "object", "additionalProperties": {"type": "null"}}}, "fixed name"),
    ({"a": {"allOf": [{"type": "integer"}]}}, "`allOf`"),
    ({"a": {"type": "object", "patternProperties": {}}}, "`patternProperties`"),
    ({"a": {"type": "array", "prefixItems": [True]}}, "`prefixItems`"),
    ({"a": {"$ref": "#/$defs/none"}}, "leads nowhere"),
    ({"a": {"anyOf": [{"type": "null"}, {}]}}, "a value of any type"),
]


@pytest.mark.parametrize(("properties", "text"), REFUSED)
def test_what_strict_mode_cannot_say_is_an_error_that_says_where(
    properties: Any, text: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        strict_schema({"type": "object", "properties": properties})
    assert text in str(caught.value)
    assert caught.value.path.startswith("/properties/a")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}},
        {"type": "string"},
        {"anyOf": [{"type": "object"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
    ],
)
def test_the_root_must_be_an_object(schema: Any) -> None:
    with pytest.raises(SchemaError, match="the root must be an object"):
        strict_schema(schema)


def test_nulls_go_where_the_schema_did_not_ask_for_them() -> None:
    schema, _ = schema_from_callable(order)
    arguments = {
        "items": [{"name": "n", "price": None, "tags": None, "parent": None}],
        "mode": None,
        "note": None,
        "gift": {
            "name": "g",
            "price": 1,
            "tags": [],
            "parent": {"name": "p", "price": None},
        },
        "limit": None,
    }
    cleaned = drop_strict_nulls(arguments, schema)
    assert cleaned == {
        "items": [{"name": "n", "parent": None}],
        "note": None,
        "gift": {"name": "g", "price": 1, "tags": [], "parent": {"name": "p"}},
    }
    assert compile_schema(schema).validate(cleaned) == []


def test_a_null_that_is_an_error_stays_one() -> None:
    schema = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    assert drop_strict_nulls({"a": None, "b": None}, schema) == {"a": None, "b": None}


def test_odd_schemas_and_deep_values_are_left_alone() -> None:
    loop = {"properties": {"a": {"$ref": "#"}}}
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": deep}
    assert drop_strict_nulls(deep, loop) == deep
    assert drop_strict_nulls({"a": [{"b": None}]}, {"properties": {"a": True}}) == {
        "a": [{"b": None}]
    }


def with_nulls(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """The value as strict mode makes a model write it."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if isinstance(value, list):
        return [with_nulls(item, schema.get("items", {}), root) for item in value]
    if not isinstance(value, dict):
        return value
    for part in schema.get("anyOf", ()):
        if part != {"type": "null"}:
            return with_nulls(value, part, root)
    return {
        name: with_nulls(value[name], part, root) if name in value else None
        for name, part in schema["properties"].items()
    }


items = st.recursive(
    st.fixed_dictionaries(
        {"name": st.text(max_size=3)},
        optional={
            "price": st.integers(),
            "tags": st.lists(st.text(max_size=2), max_size=2),
            "parent": st.none(),
        },
    ),
    lambda inner: st.fixed_dictionaries({"name": st.just("n"), "parent": inner}),
    max_leaves=3,
)


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {"items": st.lists(items, max_size=2)},
        optional={"mode": st.sampled_from("ab"), "note": st.none(), "gift": items},
    )
)
def test_what_fits_the_schema_fits_the_twin_and_comes_back(value: Any) -> None:
    schema, _ = schema_from_callable(order)
    strict = strict_schema(schema)
    assert compile_schema(schema).validate(value) == []
    written = with_nulls(value, schema, schema)
    assert compile_schema(strict).validate(written) == []
    cleaned = drop_strict_nulls(written, schema)
    assert compile_schema(schema).validate(cleaned) == []
    assert {k: v for k, v in cleaned.items() if v is not None} == {
        k: v for k, v in json.loads(json.dumps(cleaned)).items() if v is not None
    }
    assert set(value) <= set(cleaned) | {"note", "gift"}


def test_a_record_type_has_a_twin() -> None:
    schema, parse = schema_for_type(Item)
    strict = strict_schema(schema)
    written = {"name": "n", "price": None, "tags": None, "parent": None}
    assert compile_schema(strict).validate(written) == []
    assert parse(drop_strict_nulls(written, schema)) == Item("n")
