"""The quick yes: it is never wrong, and it knows the schemas that tools have."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.engine._schema.quick import quick_check
from executionkit.engine.schema import SchemaError, compile_schema
from executionkit.types import freeze_mapping

pytestmark = pytest.mark.req("schema.quick")

NAMES = ["a", "b", "c", "d"]
TYPES = ["boolean", "integer", "null", "number", "string"]
SCALARS: list[Any] = [
    *("", "x", "y", "\ud800", 0, 1, 2, -1, 10**30, 10**5000, True, False, None),
    *(1.0, 1.5, -0.0, math.nan, math.inf, -math.inf),
]
VALUES: list[Any] = [*SCALARS, [], [1], {}, {"x": 1}, b"x", object(), (1,)]

plain = st.one_of(
    st.just({}),
    st.just(True),
    st.sampled_from(TYPES).map(lambda name: {"type": name}),
    st.lists(st.sampled_from(TYPES), min_size=1, unique=True).map(
        lambda names: {"type": names, "title": "t", "default": None}
    ),
    st.lists(st.sampled_from(SCALARS[:9]), min_size=1, max_size=4).map(
        lambda members: {"enum": members}
    ),
    st.sampled_from(SCALARS[:9]).map(lambda member: {"const": member}),
    st.tuples(st.sampled_from(TYPES), st.sampled_from(["x", 1, True, None, 0])).map(
        lambda pair: {"type": pair[0], "enum": [pair[1]]}
    ),
)
rich = st.sampled_from(
    [
        {"type": "string", "minLength": 2},
        {"type": "integer", "minimum": 1},
        {"type": "string", "pattern": "^x"},
        {"type": "string", "pattern": r"(?=x)\bx"},
        {"type": "string", "format": "email"},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "contains": {"type": "integer"}},
        {"$ref": "#/$defs/x"},
        {"not": {}},
        False,
    ]
)
union = st.lists(plain | rich, min_size=1, max_size=3).map(
    lambda branches: {"anyOf": branches}
)
schemas = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(st.sampled_from(NAMES), plain | rich | union),
    },
    optional={
        "required": st.lists(st.sampled_from(NAMES), unique=True, max_size=3),
        "additionalProperties": st.booleans() | st.just({"type": "string"}),
        "minProperties": st.integers(0, 2),
        "$defs": st.just({"x": {"type": "string"}}),
        "description": st.just("d"),
        "dependentRequired": st.just({"a": ["b"]}),
    },
)
arguments = st.dictionaries(
    st.sampled_from([*NAMES, "e"]), st.sampled_from(VALUES), max_size=4
)


@pytest.mark.parametrize("backend", ["jsonschema-rs", "jsonschema", "subset"])
@given(schema=schemas, value=arguments)
@settings(max_examples=400)
def test_a_quick_yes_is_the_verdict_of_the_validator(
    backend: str, schema: dict[str, Any], value: dict[str, Any]
) -> None:
    if backend != "subset":
        pytest.importorskip(backend.replace("-", "_"))
    try:
        validator = compile_schema(schema, backend=backend)
    except SchemaError:
        return
    check = quick_check(schema)
    if check is None:
        return
    for given_value in (value, freeze_mapping(value)):
        if check(given_value):
            assert validator.validate(given_value) == []


def of(properties: dict[str, Any], **more: Any) -> Any:
    check = quick_check({"type": "object", "properties": properties, **more})
    assert check is not None
    return check


def test_what_tools_are_called_with_most_often_is_known_at_once() -> None:
    check = of(
        {
            "query": {"type": "string", "description": "words"},
            "limit": {"type": "integer", "default": 10},
            "ratio": {"type": "number"},
            "exact": {"type": "boolean"},
            "lang": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "mode": {"enum": ["a", "b"]},
            "any": {},
            "all": True,
        },
        required=["query"],
        additionalProperties=False,
    )
    assert check({"query": "x"})
    full = {"query": "x", "limit": 3, "ratio": 1, "exact": True, "lang": None}
    assert check(freeze_mapping({**full, "mode": "b", "any": 1.5}))
    assert check({**full, "ratio": 0.5})


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, True),
        pytest.param({"type": "integer"}, 10**5000, id="huge"),
        ({"type": "number"}, True),
        ({"type": "number"}, math.nan),
        ({"type": "number"}, math.inf),
        ({"type": ["number", "null"]}, -math.inf),
        ({}, math.nan),
        ({}, [math.nan]),
        ({"enum": [1]}, True),
        ({"enum": [True]}, 1),
        ({"const": 0}, False),
        ({"type": "string"}, b"x"),
        ({"type": "string", "minLength": 1}, "x"),
        ({"type": "string", "enum": [1]}, 1),
    ],
)
def test_what_is_not_certain_is_left_to_the_validator(schema: Any, value: Any) -> None:
    check = quick_check({"type": "object", "properties": {"a": schema, "b": {}}})
    assert check is not None
    assert check({"b": 1})
    assert not check({"a": value})


def test_missing_and_unknown_names_are_left_to_the_validator() -> None:
    check = of({"a": {"type": "string"}, "b": {}}, required=["a"])
    assert not check({})
    assert not check({"b": 1})
    assert not check({"a": "x", "c": 1})
    assert not check({"a": "x", "b": 1, "c": 1})


def test_no_arguments_are_fine_where_none_are_needed() -> None:
    assert of({})({})
    assert of({"a": {"type": "string"}})({})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {}, "minProperties": 1},
        {"properties": {"a": {}}},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": {}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {}, "required": ["a"]},
        {"type": ["object", "null"], "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "$schema": "x"},
        {"type": "object", "properties": {"a": {}, "b": {"contains": {}}}},
        {"type": "object", "properties": {"a": {"anyOf": [{}, {"contains": {}}]}}},
        {"type": "object", "properties": {"a": False}},
    ],
)
def test_a_schema_that_says_more_has_no_quick_check(schema: dict[str, Any]) -> None:
    assert quick_check(schema) is None


@pytest.mark.req("schema.quick")
def test_unions_of_numbers_are_known() -> None:
    check = quick_check(
        {
            "type": "object",
            "properties": {
                "a": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            },
        }
    )
    assert check is not None
    assert check({"a": 1.5})
    assert check({"a": 1})
    assert check({"a": None})
    assert not check({"a": "x"})


@pytest.mark.req("schema.quick")
def test_of_a_union_with_an_enumeration_only_the_types_are_known() -> None:
    check = of({"a": {"anyOf": [{"enum": ["x"]}, {"type": "null"}]}})
    assert check({"a": None})
    assert not check({"a": "x"})
