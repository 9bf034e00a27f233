"""One verdict and one wording, whichever validator is installed."""

from __future__ import annotations

import sys
import threading
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.engine.schema import (
    MAX_PROBLEMS,
    SchemaError,
    SchemaProblem,
    Validator,
    compile_schema,
)
from executionkit.errors import MissingExtraError
from executionkit.types import freeze, freeze_mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

FULL = ("jsonschema-rs", "jsonschema")
ALL = (*FULL, "subset")
MODULES = {"jsonschema-rs": "jsonschema_rs", "jsonschema": "jsonschema"}

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_6 = "http://json-schema.org/draft-06/schema#"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def compiled(schema: Any, backend: str) -> Validator:
    if backend in MODULES:
        pytest.importorskip(MODULES[backend])
    validator = compile_schema(schema, backend=backend)
    assert validator.backend == backend
    return validator


def texts(schema: Any, value: Any, backend: str) -> list[str]:
    return sorted(str(found) for found in compiled(schema, backend).validate(value))


every_backend = pytest.mark.parametrize("backend", ALL)
full_backends = pytest.mark.parametrize("backend", FULL)

TREE = {
    "type": "object",
    "properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}},
    "additionalProperties": False,
}
LIST = {
    "$ref": "#/$defs/list",
    "$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}},
}
TUPLE = {"prefixItems": [{"type": "integer"}, {"type": "string"}]}
PAIR = {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}

# (schema, value, valid): what every backend checks.
ROWS: list[tuple[Any, Any, bool]] = [
    (True, None, True),
    (False, None, False),
    ({}, {"a": [1, None]}, True),
    # type
    ({"type": "string"}, "a", True),
    ({"type": "string"}, 1, False),
    ({"type": "integer"}, 3, True),
    ({"type": "integer"}, 3.0, True),
    ({"type": "integer"}, 1e300, True),
    ({"type": "integer"}, 3.5, False),
    ({"type": "integer"}, True, False),
    ({"type": "integer"}, "3", False),
    ({"type": "number"}, 3, True),
    ({"type": "number"}, 3.5, True),
    ({"type": "number"}, False, False),
    ({"type": "number"}, "1", False),
    ({"type": "boolean"}, True, True),
    ({"type": "boolean"}, 0, False),
    ({"type": "null"}, None, True),
    ({"type": "null"}, 0, False),
    ({"type": "null"}, "", False),
    ({"type": "array"}, [], True),
    ({"type": "array"}, {}, False),
    ({"type": "object"}, {}, True),
    ({"type": "object"}, [], False),
    ({"type": ["string", "null"]}, None, True),
    ({"type": ["string", "null"]}, "a", True),
    ({"type": ["string", "null"]}, 1, False),
    ({"type": ["integer", "string"]}, 2.0, True),
    ({"type": ["integer", "string"]}, 2.5, False),
    ({"type": ["number", "integer"]}, 2.5, True),
    # enum, const
    ({"enum": ["a", 1]}, "a", True),
    ({"enum": ["a", 1]}, 1.0, True),
    ({"enum": ["a", 1]}, True, False),
    ({"enum": ["a", 1]}, "b", False),
    ({"enum": [False]}, 0, False),
    ({"enum": [0]}, False, False),
    ({"enum": [0]}, -0.0, True),
    ({"enum": [None]}, None, True),
    ({"enum": []}, 1, False),
    ({"enum": [[1], {"a": True}]}, [1.0], True),
    ({"enum": [[1], {"a": True}]}, [True], False),
    ({"enum": [[1], {"a": True}]}, {"a": True}, True),
    ({"enum": [[1], {"a": True}]}, {"a": 1}, False),
    ({"const": "x"}, "x", True),
    ({"const": "x"}, "y", False),
    ({"const": None}, None, True),
    ({"const": None}, False, False),
    ({"const": {"a": 1, "b": [2]}}, {"b": [2.0], "a": 1}, True),
    ({"const": {"a": 1}}, {"a": 1, "b": 2}, False),
    ({"const": []}, {}, False),
    ({"const": ""}, None, False),
    # numbers
    ({"minimum": 3}, 3, True),
    ({"minimum": 3}, 2.999, False),
    ({"minimum": 3}, "2", True),
    ({"minimum": 1}, True, True),
    ({"maximum": 3}, 3.0, True),
    ({"maximum": 3}, 4, False),
    ({"exclusiveMinimum": 3}, 3, False),
    ({"exclusiveMinimum": 3}, 3.5, True),
    ({"exclusiveMaximum": 3}, 3, False),
    ({"exclusiveMaximum": 3}, 2, True),
    ({"multipleOf": 3}, 9, True),
    ({"multipleOf": 3}, 10, False),
    ({"multipleOf": 3}, "10", True),
    ({"multipleOf": 0.1}, 0.3, True),
    ({"multipleOf": 0.01}, 19.99, True),
    ({"multipleOf": 0.01}, 19.999, False),
    ({"multipleOf": 0.5}, 1e308, True),
    ({"multipleOf": 0.123}, 1e22, False),
    ({"multipleOf": 1e-8}, 12391239123, True),
    ({"multipleOf": 1.5}, 4.5, True),
    ({"multipleOf": 1.5}, 4, False),
    ({"multipleOf": 2}, -4, True),
    ({"multipleOf": 2}, 0, True),
    # text
    ({"minLength": 2}, "ab", True),
    ({"minLength": 2}, "a", False),
    ({"minLength": 2.0}, "a", False),
    ({"minLength": 2}, 1, True),
    ({"maxLength": 1}, "\U0001f600", True),
    ({"maxLength": 1}, "e\u0301", False),
    ({"maxLength": 0}, "", True),
    ({"pattern": "^a+$"}, "aaa", True),
    ({"pattern": "^a+$"}, "aab", False),
    ({"pattern": "b"}, "abc", True),
    ({"pattern": "b"}, 3, True),
    ({"pattern": "^a$"}, "a\n", False),
    ({"pattern": r"^\d$"}, "\u0663", False),
    ({"pattern": r"^\w+$"}, "\u00e9", False),
    # arrays
    ({"items": {"type": "integer"}}, [1, 2], True),
    ({"items": {"type": "integer"}}, [1, "2"], False),
    ({"items": {"type": "integer"}}, {"0": "x"}, True),
    ({"items": False}, [], True),
    ({"items": False}, [1], False),
    ({"items": True}, [1, "a"], True),
    (TUPLE, [1, "a", None], True),
    (TUPLE, [1], True),
    (TUPLE, ["a", 1], False),
    ({**TUPLE, "items": False}, [1, "a"], True),
    ({**TUPLE, "items": False}, [1, "a", 2], False),
    ({**TUPLE, "items": {"type": "null"}}, [1, "a", None], True),
    ({**TUPLE, "items": {"type": "null"}}, [1, "a", 0], False),
    ({"minItems": 1}, [], False),
    ({"minItems": 1}, [0], True),
    ({"minItems": 1}, "", True),
    ({"maxItems": 1}, [1, 2], False),
    ({"maxItems": 1}, [1], True),
    ({"uniqueItems": True}, [1, 2, 1.0], False),
    ({"uniqueItems": True}, [1, True, "1", None, 0, False], True),
    ({"uniqueItems": True}, [[1], [True]], True),
    ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], False),
    ({"uniqueItems": True}, [[], {}], True),
    ({"uniqueItems": True}, ["a", "a"], False),
    ({"uniqueItems": False}, [1, 1], True),
    # objects
    ({"required": ["a", "b"]}, {"a": 1}, False),
    ({"required": ["a", "b"]}, {"a": None, "b": None}, True),
    ({"required": ["a"]}, [], True),
    ({"required": []}, {}, True),
    (PAIR, {"a": 1, "b": "x", "c": []}, True),
    (PAIR, {"a": "1"}, False),
    (PAIR, {}, True),
    (PAIR, [1], True),
    ({"properties": {"a": True, "b": False}}, {"a": 1}, True),
    ({"properties": {"a": True, "b": False}}, {"b": 1}, False),
    ({**PAIR, "additionalProperties": False}, {"a": 1, "c": 1}, False),
    ({**PAIR, "additionalProperties": False}, {"a": 1}, True),
    ({"additionalProperties": False}, {"a": 1}, False),
    ({"additionalProperties": False}, {}, True),
    ({**PAIR, "additionalProperties": {"type": "null"}}, {"c": None}, True),
    ({**PAIR, "additionalProperties": {"type": "null"}}, {"c": 0}, False),
    ({"additionalProperties": True}, {"c": 0}, True),
    ({"patternProperties": {"^x": {"type": "integer"}}}, {"x1": 1, "y": "a"}, True),
    ({"patternProperties": {"^x": {"type": "integer"}}}, {"x1": "1"}, False),
    (
        {"patternProperties": {"^x": True}, "additionalProperties": False},
        {"x1": 1},
        True,
    ),
    (
        {"patternProperties": {"^x": True}, "additionalProperties": False},
        {"y": 1},
        False,
    ),
    (
        {"properties": {"x1": True}, "patternProperties": {"^x": {"type": "null"}}},
        {"x1": 1},
        False,
    ),
    (
        {"patternProperties": {"^a": {"minimum": 5}, "^[a]": {"maximum": 7}}},
        {"ab": 3},
        False,
    ),
    (
        {"patternProperties": {"^a": {"minimum": 5}, "^[a]": {"maximum": 7}}},
        {"ab": 8},
        False,
    ),
    ({"propertyNames": {"maxLength": 1}}, {"a": 1}, True),
    ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, False),
    ({"propertyNames": {"maxLength": 1}}, ["ab"], True),
    ({"propertyNames": False}, {}, True),
    ({"propertyNames": False}, {"a": 1}, False),
    ({"minProperties": 1}, {}, False),
    ({"minProperties": 1}, {"a": 1}, True),
    ({"maxProperties": 1}, {"a": 1, "b": 2}, False),
    ({"maxProperties": 1}, [1, 2], True),
    # combinations
    ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, 2, True),
    ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, 4, False),
    ({"allOf": [True]}, 4, True),
    ({"anyOf": [{"type": "null"}, {"minimum": 3}]}, 3, True),
    ({"anyOf": [{"type": "null"}, {"minimum": 3}]}, None, True),
    ({"anyOf": [{"type": "null"}, {"minimum": 3}]}, 2, False),
    ({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, 4, True),
    ({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, 6, False),
    ({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, 5, False),
    ({"not": {"type": "string"}}, 1, True),
    ({"not": {"type": "string"}}, "a", False),
    ({"not": True}, 1, False),
    ({"not": {}}, 1, False),
    # references
    (TREE, {"n": 1, "next": {"next": {"n": 2}}}, True),
    (TREE, {"n": 1, "next": {"next": {"n": "2"}}}, False),
    (TREE, {"next": {"x": 1}}, False),
    (LIST, [[], [[]]], True),
    (LIST, [[], [[1]]], False),
    (
        {"$ref": "#/$defs/a", "minimum": 5, "$defs": {"a": {"type": "integer"}}},
        3,
        False,
    ),
    ({"$ref": "#/$defs/a", "minimum": 5, "$defs": {"a": {"type": "integer"}}}, 6, True),
    ({"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": {"type": "null"}}}, 1, False),
    ({"$ref": "#/$defs/a~01b", "$defs": {"a~1b": {"type": "null"}}}, 1, False),
    ({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "null"}}}, 1, False),
    ({"anyOf": [{"type": "null"}, True], "$defs": {}}, 1, True),
    ({"$ref": "#/anyOf/0", "anyOf": [{"type": "null"}, True]}, 1, False),
    ({"$ref": "#/components/x", "components": {"x": {"minimum": 3}}}, 4, True),
    # annotations
    ({"title": "t", "description": "d", "default": 1, "examples": [1]}, "a", True),
    ({"deprecated": True, "readOnly": True, "writeOnly": True}, "a", True),
    ({"$comment": "c", "format": "email"}, "no address", False),
    ({"format": "date-time", "type": "string"}, "yesterday", False),
    ({"format": "e-mail"}, "no address", True),
    ({"format": "email"}, 5, True),
    ({"contentEncoding": "base64", "contentMediaType": "image/png"}, "%%", True),
    ({"type": "string", "nullable": True}, None, False),
    ({"x-order": 3, "discriminator": {"propertyName": "k"}}, 1, True),
    ({"$id": "https://example.com/s", "type": "string"}, 1, False),
    # older dialects
    ({"$schema": DRAFT_7, "type": "string"}, "a", True),
    ({"$schema": DRAFT_7, "format": "ipv4"}, "x", False),
    ({"$schema": DRAFT_7, "contentEncoding": "base64"}, "%%%", True),
    (
        {
            "$schema": DRAFT_7,
            "$ref": "#/definitions/a",
            "minimum": 5,
            "definitions": {"a": {"type": "integer"}},
        },
        3,
        True,
    ),
    ({"$schema": DRAFT_6, "exclusiveMinimum": 3}, 3, False),
    ({"$schema": DRAFT_2019, "type": "integer", "minimum": 2}, 1, False),
    ({"$schema": DRAFT_2020, "type": "integer", "minimum": 2}, 2, True),
    ({"$schema": DRAFT_2020 + "#", "type": "integer"}, "a", False),
    ({"$schema": "https://json-schema.org/draft-07/schema", "type": "null"}, 1, False),
    ({"$schema": "", "type": "null"}, 1, False),
]
# The components row uses an unknown keyword, which the subset refuses.
COMMON = [
    row for row in ROWS if not (isinstance(row[0], dict) and "components" in row[0])
]

# (schema, value, valid): what only the full validators check.
FULL_ROWS: list[tuple[Any, Any, bool]] = [
    ({"$ref": "#/components/x", "components": {"x": {"minimum": 3}}}, 4, True),
    ({"$ref": "#/components/x", "components": {"x": {"minimum": 3}}}, 2, False),
    ({"if": {"type": "string"}, "then": {"minLength": 2}}, "a", False),
    ({"if": {"type": "string"}, "then": {"minLength": 2}}, 1, True),
    ({"if": {"type": "string"}, "else": False}, 1, False),
    ({"contains": {"type": "integer"}}, ["a"], False),
    ({"contains": {"type": "integer"}}, ["a", 1], True),
    ({"contains": {"const": 1}, "minContains": 2}, [1], False),
    ({"contains": {"const": 1}, "minContains": 0}, [], True),
    ({"contains": {"const": 1}, "maxContains": 1}, [1, 1], False),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, False),
    ({"dependentRequired": {"a": ["b"]}}, {"b": 1}, True),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, False),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1, "b": 2}, True),
    ({**PAIR, "unevaluatedProperties": False}, {"a": 1, "c": 2}, False),
    ({"allOf": [PAIR], "unevaluatedProperties": False}, {"a": 1}, True),
    ({"prefixItems": [True], "unevaluatedItems": False}, [1, 2], False),
    ({"prefixItems": [True], "unevaluatedItems": False}, [1], True),
    (
        {"$anchor": "top", "properties": {"a": {"$ref": "#top"}}, "maxProperties": 1},
        {"a": {"a": 1, "b": 2}},
        False,
    ),
    (
        {"$dynamicRef": "#x", "$defs": {"a": {"$dynamicAnchor": "x", "type": "null"}}},
        1,
        False,
    ),
    (
        {
            "$id": "https://example.com/root",
            "$ref": "item",
            "$defs": {"i": {"$id": "item", "type": "integer"}},
        },
        "a",
        False,
    ),
    (
        {
            "$id": "https://example.com/s",
            "properties": {"a": {"$ref": "https://example.com/s#/$defs/n"}},
            "$defs": {"n": {"type": "null"}},
        },
        {"a": 1},
        False,
    ),
    ({"$ref": DRAFT_2020}, {"type": "strin"}, False),
    ({"$ref": DRAFT_2020}, {"type": "string"}, True),
    ({"unknown": 1, "type": "string"}, "a", True),
    ({"$schema": DRAFT_7, "items": [{"type": "string"}]}, [1], False),
    ({"$schema": DRAFT_7, "items": [True], "additionalItems": False}, [1, 2], False),
    ({"$schema": DRAFT_7, "dependencies": {"a": ["b"]}}, {"a": 1}, False),
    ({"$schema": DRAFT_7, "dependencies": {"a": {"required": ["b"]}}}, {"a": 1}, False),
    ({"$schema": DRAFT_7, "prefixItems": [{"type": "string"}]}, [1], True),
    ({"$schema": DRAFT_2019, "items": [{"type": "string"}]}, [1], False),
    ({"$schema": DRAFT_4, "type": "integer"}, 3.0, False),
    ({"$schema": DRAFT_4, "type": "integer"}, 3, True),
    ({"$schema": DRAFT_4, "minimum": 3, "exclusiveMinimum": True}, 3, False),
    ({"$schema": DRAFT_4, "maximum": 3, "exclusiveMaximum": True}, 3, False),
    ({"$schema": DRAFT_4, "minimum": 3}, 3, True),
]


def test_the_tables_are_as_large_as_promised() -> None:
    assert len(COMMON) > 150
    assert len(FULL_ROWS) > 30


@pytest.mark.req("D-04", "D-05", "schema.full", "schema.agreement")
@every_backend
@pytest.mark.parametrize(("schema", "value", "valid"), COMMON)
def test_all_backends_give_the_verdict_of_the_table(
    schema: Any, value: Any, valid: bool, backend: str
) -> None:
    problems = compiled(schema, backend).validate(value)
    assert (not problems) is valid, [str(problem) for problem in problems]


@pytest.mark.req("schema.full", "schema.agreement")
@full_backends
@pytest.mark.parametrize(("schema", "value", "valid"), FULL_ROWS)
def test_full_backends_check_all_of_json_schema(
    schema: Any, value: Any, valid: bool, backend: str
) -> None:
    problems = compiled(schema, backend).validate(value)
    assert (not problems) is valid, [str(problem) for problem in problems]


@pytest.mark.req("D-05")
@pytest.mark.parametrize(("schema", "value", "valid"), FULL_ROWS)
def test_the_subset_refuses_what_it_cannot_check(
    schema: Any, value: Any, valid: bool
) -> None:
    values: list[Any] = [value, None, {}]
    for anything in values:
        (problem,) = compiled(schema, "subset").validate(anything)
        assert problem.path == ""
        assert "pip install 'executionkit[jsonschema]'" in str(problem)


# What a model reads, by (schema, value): equal words from every backend.
WORDS: list[tuple[Any, Any, list[str]]] = [
    ({"required": ["city", "day"]}, {"day": 1}, ["Missing required argument `city`"]),
    (
        {"properties": {}, "additionalProperties": False},
        {"x": 1, "y": 2},
        ["Unexpected argument `x`", "Unexpected argument `y`"],
    ),
    (
        {"additionalProperties": False},
        {"x": 1},
        ["Unexpected argument `x`"],
    ),
    (
        {"properties": {"city": {"type": "string"}}},
        {"city": 1},
        ["`city`: expected type string, got integer"],
    ),
    ({"type": ["string", "null"]}, 1.5, ["expected type null or string, got number"]),
    ({"type": "integer"}, True, ["expected type integer, got boolean"]),
    ({"type": "integer"}, [], ["expected type integer, got array"]),
    ({"type": "integer"}, {}, ["expected type integer, got object"]),
    ({"type": "integer"}, None, ["expected type integer, got null"]),
    ({"type": "array"}, "a", ["expected type array, got string"]),
    (
        {"properties": {"a": {"items": {"required": ["x"]}}}},
        {"a": [{}]},
        ["`a[0]`: Missing required argument `x`"],
    ),
    (
        {"properties": {"a": {"items": {"minimum": 3}}}},
        {"a": [4, 1]},
        ["`a[1]`: must be at least 3"],
    ),
    ({"maximum": 3}, 4, ["must be at most 3"]),
    ({"exclusiveMinimum": 3}, 3, ["must be greater than 3"]),
    ({"exclusiveMaximum": 3.5}, 4, ["must be less than 3.5"]),
    ({"multipleOf": 0.5}, 0.3, ["must be a multiple of 0.5"]),
    ({"minLength": 2}, "a", ["must have at least 2 characters, has 1"]),
    ({"maxLength": 1.0}, "ab", ["must have at most 1 character, has 2"]),
    ({"minItems": 1}, [], ["must have at least 1 item, has 0"]),
    ({"maxItems": 0}, [1], ["must have at most 0 items, has 1"]),
    ({"minProperties": 1}, {}, ["must have at least 1 member, has 0"]),
    ({"maxProperties": 0}, {"a": 1}, ["must have at most 0 members, has 1"]),
    ({"uniqueItems": True}, [1, 1], ["must not have two equal items"]),
    ({"pattern": r"^\d$"}, "a", ['must match the pattern "^\\\\d$"']),
    ({"const": "a"}, 1, ['must be "a"']),
    ({"enum": ["a", None, 1]}, 2, ['must be one of: "a", null, 1']),
    (
        {"enum": list(range(50))},
        -1,
        ["must be one of: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 38 more"],
    ),
    ({"not": {"const": 1}}, 1, ["must not fit the schema of `not`"]),
    ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, ["the name `ab` is not allowed"]),
    ({"properties": {"a": False}}, {"a": 1}, ["`a`: is not allowed here"]),
    (False, 1, ["is not allowed here"]),
    ({"items": False}, [1], ["`[0]`: is not allowed here"]),
    (
        {"anyOf": [{"type": "string"}, {"type": ["null", "integer"]}]},
        [],
        ["expected type integer or null or string, got array"],
    ),
    # an optional model: what is wrong inside of it, not "fits none"
    (
        {"anyOf": [{"type": "object", "required": ["x"]}, {"type": "null"}]},
        {},
        ["Missing required argument `x`"],
    ),
    (
        {"anyOf": [{"type": "object", "properties": {"a": {"type": "null"}}}, False]},
        {"a": [1]},
        ["`a`: expected type null, got array"],
    ),
    (
        {
            "anyOf": [
                {"properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}},
                {"properties": {"kind": {"const": "b"}, "n": {"type": "integer"}}},
            ]
        },
        {"kind": "b", "n": "x"},
        [
            'fits no schema of `anyOf`: (1) `kind`: must be "a"; '
            "(2) `n`: expected type integer, got string"
        ],
    ),
    (
        {"anyOf": [{"items": {"type": "null"}}, {"items": {"type": "string"}}]},
        [1],
        [
            "fits no schema of `anyOf`: (1) `[0]`: expected type null, got integer; "
            "(2) `[0]`: expected type string, got integer"
        ],
    ),
    (
        {"oneOf": [{"minimum": 3}, {"multipleOf": 2}]},
        1,
        [
            "fits no schema of `oneOf`: (1) must be at least 3; "
            "(2) must be a multiple of 2"
        ],
    ),
    (
        {"oneOf": [True, {}]},
        1,
        ["must fit exactly one schema of `oneOf`, fits several"],
    ),
    ({"$schema": DRAFT_7, "exclusiveMinimum": 3}, 3, ["must be greater than 3"]),
]


@pytest.mark.req("schema.one-wording")
@every_backend
@pytest.mark.parametrize(("schema", "value", "words"), WORDS)
def test_all_backends_use_the_same_words(
    schema: Any, value: Any, words: list[str], backend: str
) -> None:
    assert texts(schema, value, backend) == words


@pytest.mark.req("schema.one-wording")
@full_backends
def test_rarer_keywords_keep_the_words_of_the_backend(backend: str) -> None:
    (text,) = texts({"contains": {"type": "null"}}, [1], backend)
    assert "schema" in text
    (text,) = texts({"contains": {"type": "null"}}, [1] * 1000, backend)
    assert len(text) <= 300
    assert "Missing required argument `b`" in texts(
        {"dependentRequired": {"a": ["b"]}}, {"a": 1}, backend
    )
    assert "must be greater than 3" in texts(
        {"$schema": DRAFT_4, "minimum": 3, "exclusiveMinimum": True}, 3, backend
    )


@pytest.mark.req("D-26")
@every_backend
def test_problems_are_few_and_short(backend: str) -> None:
    many = compiled({"items": {"type": "string"}}, backend).validate([1] * 5000)
    assert len(many) == MAX_PROBLEMS
    many = compiled({"additionalProperties": {"type": "null"}}, backend).validate(
        {str(number): number for number in range(5000)}
    )
    assert len(many) == MAX_PROBLEMS
    many = compiled({"additionalProperties": False}, backend).validate(
        {str(number): number for number in range(5000)}
    )
    assert len(many) == MAX_PROBLEMS
    many = compiled({"required": [str(n) for n in range(50)]}, backend).validate({})
    assert len(many) == MAX_PROBLEMS
    optional = {"anyOf": [{"required": ["a", "b", "c"]}, {"type": "null"}]}
    many = compiled({"items": optional}, backend).validate([{}] * 15)
    assert len(many) == MAX_PROBLEMS
    long_name = "x" * 300_000
    for schema, value in (
        ({"additionalProperties": False}, {long_name: 1}),
        ({"additionalProperties": {"type": "null"}}, {long_name: 1}),
        ({"maxLength": 3}, long_name),
        ({"enum": [long_name]}, 1),
        ({"const": long_name}, 1),
        ({"required": [long_name]}, {}),
        ({"not": {"type": "string"}}, long_name),
        ({"anyOf": [{"enum": [long_name]}] * 30}, 1),
    ):
        for problem in compiled(schema, backend).validate(value):
            assert len(problem.message) <= 300
            assert len(problem.path) <= 300
            assert len(str(problem)) <= 610


@pytest.mark.req("schema.one-wording")
def test_a_problem_shows_its_place_and_survives_hostile_names() -> None:
    assert str(SchemaProblem("", "m")) == "m"
    assert str(SchemaProblem("/a~1b/0/c~0d", "m")) == "`a/b[0].c~d`: m"
    assert str(SchemaProblem("/0", "m")) == "`[0]`: m"
    problem = SchemaProblem("/\ud800", "\udfff")
    assert str(problem).encode() == b"`\\ud800`: \\udfff"
    assert SchemaProblem("/a", "m") == SchemaProblem("/a", "m")
    assert len({SchemaProblem("/a", "m"), SchemaProblem("/a", "m")}) == 1


HUGE = [2**53 + 1, 2**63, 2**63 + 1, -(2**63) - 1, 2**64 + 1, 2**70, 10**300 + 1]


@pytest.mark.req("schema.exact-integers")
@every_backend
@pytest.mark.parametrize("number", HUGE)
def test_integers_are_exact_at_any_size(number: int, backend: str) -> None:
    assert compiled({"type": "integer"}, backend).validate(number) == []
    assert compiled({"const": number}, backend).validate(number) == []
    assert compiled({"const": number}, backend).validate(number + 1)
    assert compiled({"enum": [number]}, backend).validate(number - 1)
    assert compiled({"minimum": number}, backend).validate(number) == []
    assert compiled({"minimum": number}, backend).validate(number - 1)
    assert compiled({"maximum": number}, backend).validate(number + 1)
    assert compiled({"exclusiveMaximum": number}, backend).validate(number)
    factor = abs(number)
    assert compiled({"multipleOf": factor}, backend).validate(number * 3) == []
    assert compiled({"multipleOf": factor}, backend).validate(number * 3 + 1)
    pair = [number, number + 1]
    assert compiled({"uniqueItems": True}, backend).validate(pair) == []


@pytest.mark.req("schema.exact-integers")
@every_backend
def test_integers_and_floats_compare_exactly(backend: str) -> None:
    assert compiled({"const": 2**53 + 1}, backend).validate(2.0**53)
    assert compiled({"maximum": 2.0**53}, backend).validate(2**53 + 1)
    assert compiled({"maximum": 2.0**60}, backend).validate(2**60 + 1)
    assert compiled({"multipleOf": 2**70}, backend).validate(2.0**71) == []
    assert compiled({"uniqueItems": True}, backend).validate([2**53 + 1, 2.0**53]) == []


NO_JSON: list[Any] = [
    float("nan"),
    float("inf"),
    -float("inf"),
    b"x",
    {1, 2},
    object(),
    1j,
    10**4300,
    -(10**5000),
    {1: 2},
    {b"a": 1},
]


@pytest.mark.req("schema.only-json")
@every_backend
@pytest.mark.parametrize("value", NO_JSON, ids=lambda value: type(value).__name__)
def test_what_is_no_json_is_a_problem_whatever_the_schema(
    value: Any, backend: str
) -> None:
    for schema in (True, {}, {"type": ["number", "null", "array", "object"]}):
        (problem,) = compiled(schema, backend).validate(value)
        assert problem.path == ""
        (problem,) = compiled(schema, backend).validate({"a": [0, value]})
        assert problem.path == "/a/1"


@pytest.mark.req("schema.only-json")
@every_backend
def test_near_relatives_of_json_count_as_json(backend: str) -> None:
    from collections import OrderedDict
    from enum import Enum, IntEnum, StrEnum

    class Color(StrEnum):
        RED = "red"

    class Level(IntEnum):
        LOW = 1

    class Plain(Enum):
        A = "a"

    class Text(str):
        __slots__ = ()

    class Real(float):
        __slots__ = ()

    schema = {
        "properties": {
            "t": {"type": "array", "items": {"type": "integer"}},
            "m": {"type": "object", "required": ["k"]},
            "s": {"enum": ["red", "x"]},
            "i": {"const": 1},
            "f": {"type": "number"},
            "red": {"type": "null"},
        },
        "additionalProperties": False,
    }
    check = compiled(schema, backend).validate
    assert check({"t": (1, 2)}) == []
    assert check({"t": (1, "2")}) == [
        SchemaProblem("/t/1", "expected type integer, got string")
    ]
    assert check({"m": MappingProxyType({"k": 1})}) == []
    assert check({"m": OrderedDict(k=1)}) == []
    assert check(OrderedDict(m=OrderedDict())) != []
    assert check({"s": Color.RED, "i": Level.LOW, "f": Real(1.5)}) == []
    assert check({"s": Text("x")}) == []
    assert check({"s": Text("y")}) != []
    assert check({Color.RED: None}) == []
    assert check({"s": Plain.A}) != []
    assert check({"f": Real("nan")}) != []


@pytest.mark.req("schema.only-json")
@every_backend
def test_frozen_values_and_schemas_are_checked_like_plain_ones(backend: str) -> None:
    schema = {"properties": {"a": {"items": {"type": "integer"}}}, "required": ["a"]}
    for spelling in (schema, freeze(schema), freeze_mapping(schema)):
        check = compiled(spelling, backend).validate
        for wrap in (freeze, freeze_mapping, dict):
            assert check(wrap({"a": [1, 2]})) == []
            assert check(wrap({"a": [1, "x"]})) != []
            assert check(wrap({"b": 1})) != []


@pytest.mark.req("schema.only-json")
@every_backend
def test_lone_surrogates_are_text_of_one_character(backend: str) -> None:
    check = compiled({"maxLength": 2, "type": "string"}, backend).validate
    assert check("a\ud800") == []
    assert check("a\ud800\udc00") != []
    assert compiled({"const": "\ud800"}, backend).validate("\ud800") == []
    assert compiled({"const": "\ud800"}, backend).validate("\ud801") != []
    unique = compiled({"uniqueItems": True}, backend).validate
    assert unique(["\ud800", "\ud801", {"\udfff": 1}]) == []
    assert unique(["\ud800", "\ud800"]) != []
    inside = compiled({"additionalProperties": {"type": "null"}}, backend)
    (problem,) = inside.validate({"\ud800": 1})
    str(problem).encode()


@pytest.mark.req("schema.one-wording")
@every_backend
@pytest.mark.parametrize("name", ["0", "01", "+1", "-1", "1e3", "a/b", "~0"])
def test_names_that_look_like_an_index_keep_their_place(
    name: str, backend: str
) -> None:
    check = compiled({"additionalProperties": {"type": "null"}}, backend).validate
    (problem,) = check({name: 1})
    assert problem.path == "/" + name.replace("~", "~0").replace("/", "~1")


@every_backend
def test_an_empty_name_is_a_name(backend: str) -> None:
    inner = {"properties": {"a": {"type": "null"}, "b": {"items": {"minimum": 3}}}}
    check = compiled({"additionalProperties": inner}, backend).validate
    assert check({"": {"a": None}}) == []
    (problem,) = check({"": {"a": "x"}})
    assert problem.message == "expected type null, got string"
    (problem,) = check({"": {"b": [3, 2]}})
    assert problem.message == "must be at least 3"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.req("schema.bounded")
@every_backend
def test_deep_values_are_a_problem_and_never_an_exception(backend: str) -> None:
    check = compiled({"items": {"$ref": "#"}, "type": "array"}, backend).validate
    assert check(nested(60)) == []
    for depth in (511, 512, 600, 5_000, 50_000):
        problems = check(nested(depth))
        assert depth < 512 or len(problems) == 1
        if depth > 600:
            assert "deep" in problems[0].message
    loop: list[Any] = []
    loop.append(loop)
    assert len(check(loop)) == 1
    both: dict[str, Any] = {}
    both["a"] = both["b"] = both
    assert len(check(both)) == 1


@pytest.mark.req("schema.bounded")
@every_backend
def test_a_shallow_stack_is_a_problem_and_never_an_exception(backend: str) -> None:
    check = compiled({"items": {"$ref": "#"}, "type": "array"}, backend).validate

    def deeper(levels: int) -> list[SchemaProblem]:
        return deeper(levels - 1) if levels else check(nested(300))

    frames = 0
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        frames += 1
    problems = deeper(sys.getrecursionlimit() - frames - 150)
    assert all("deep" in problem.message for problem in problems)


# (schema, part of the message, path): schemas that no backend takes.
BAD_SCHEMAS: list[tuple[Any, str]] = [
    ({"type": "strin"}, "/type"),
    ({"type": []}, "/type"),
    ({"type": ["string", "string"]}, "/type"),
    ({"type": 3}, "/type"),
    ({"minLength": -1}, "/minLength"),
    ({"minLength": 1.5}, "/minLength"),
    ({"minLength": True}, "/minLength"),
    ({"minItems": "1"}, "/minItems"),
    ({"minimum": "1"}, "/minimum"),
    ({"minimum": True}, "/minimum"),
    ({"multipleOf": 0}, "/multipleOf"),
    ({"multipleOf": -1}, "/multipleOf"),
    ({"multipleOf": "1"}, "/multipleOf"),
    ({"required": "a"}, "/required"),
    ({"required": ["a", "a"]}, "/required"),
    ({"required": [1]}, "/required"),
    ({"enum": 1}, "/enum"),
    ({"uniqueItems": 1}, "/uniqueItems"),
    ({"pattern": 1}, "/pattern"),
    ({"anyOf": []}, "/anyOf"),
    ({"anyOf": {}}, "/anyOf"),
    ({"allOf": [1]}, "/allOf/0"),
    ({"not": 1}, "/not"),
    ({"items": [True]}, "/items"),
    ({"prefixItems": []}, "/prefixItems"),
    ({"properties": []}, "/properties"),
    ({"properties": {"a": 1}}, "/properties/a"),
    ({"properties": {"a/b": {"type": 1}}}, "/properties/a~1b/type"),
    ({"patternProperties": {"a": None}}, "/patternProperties/a"),
    ({"additionalProperties": 1}, "/additionalProperties"),
    ({"propertyNames": 1}, "/propertyNames"),
    ({"title": 1}, "/title"),
    ({"examples": 1}, "/examples"),
    ({"deprecated": "yes"}, "/deprecated"),
    ({"$defs": 1}, "/$defs"),
    ({"$ref": 1}, "/$ref"),
    ({"$id": 1}, "/$id"),
]


@pytest.mark.req("schema.bad-schemas")
@every_backend
@pytest.mark.parametrize(("schema", "path"), BAD_SCHEMAS)
def test_a_malformed_schema_is_an_error_that_says_where(
    schema: Any, path: str, backend: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        compiled(schema, backend)
    assert caught.value.path.startswith(path)
    assert path in str(caught.value)


REMOTE = [
    "http://127.0.0.1:9/x.json",
    "https://example.com/schema",
    "file:///etc/passwd",
    "other.json",
    "other.json#/definitions/a",
    "urn:example:thing",
]


@pytest.mark.req("schema.never-fetched")
@every_backend
@pytest.mark.parametrize("reference", REMOTE)
def test_a_remote_reference_is_refused_and_never_fetched(
    reference: str, backend: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        compiled({"properties": {"a": {"$ref": reference}}}, backend)
    text = str(caught.value)
    assert reference in text
    assert "never fetched" in text
    assert "#/$defs/NAME" in text
    assert caught.value.path == "/properties/a/$ref"


@pytest.mark.req("schema.never-fetched")
@full_backends
@pytest.mark.parametrize("reference", REMOTE)
def test_a_remote_reference_is_refused_next_to_inner_ids_too(
    reference: str, backend: str
) -> None:
    schema = {
        "properties": {"a": {"$ref": reference}},
        "$defs": {"b": {"$id": "https://example.com/b", "type": "string"}},
    }
    with pytest.raises(SchemaError):
        compiled(schema, backend)


@pytest.mark.req("schema.never-fetched")
def test_a_server_is_never_asked_for_a_schema() -> None:
    import http.server

    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/s"
        inner = {"b": {"$id": "https://example.com/b"}}
        for backend in ALL:
            for schema in ({"$ref": url}, {"$ref": url, "$defs": inner}):
                if backend == "subset" and "$defs" in schema:
                    continue
                with pytest.raises(SchemaError):
                    compiled(schema, backend)
            with pytest.raises(SchemaError):
                compiled({"$schema": url}, backend)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
    assert asked == []


@pytest.mark.req("schema.bad-schemas")
@every_backend
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/nothing"},
        {"$ref": "#/anyOf/1", "anyOf": [True]},
        {"$ref": "#/anyOf/01", "anyOf": [True, True]},
        {"$ref": "#/anyOf/x", "anyOf": [True, True]},
        {"$ref": "#/title/x", "title": "t"},
        {"$ref": "#/$defs/%zz", "$defs": {"%zz": True}},
        {"properties": {"a": {"items": {"$ref": "#/nothing"}}}},
    ],
)
def test_a_reference_to_nothing_is_an_error(schema: Any, backend: str) -> None:
    with pytest.raises(SchemaError, match="points to nothing"):
        compiled(schema, backend)


@pytest.mark.req("schema.bad-schemas")
@every_backend
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {
            "properties": {"x": {"$ref": "#/$defs/a"}},
            "$defs": {
                "a": {"allOf": [{"$ref": "#/$defs/b"}]},
                "b": {"not": {"$ref": "#/$defs/a"}},
            },
        },
        {
            "$schema": DRAFT_7,
            "oneOf": [{"$ref": "#/definitions/a"}],
            "definitions": {"a": {"$ref": "#"}},
        },
    ],
)
def test_a_schema_that_is_its_own_meaning_is_an_error(
    schema: Any, backend: str
) -> None:
    with pytest.raises(SchemaError, match="comes back to its own schema"):
        compiled(schema, backend)


@pytest.mark.req("schema.bad-schemas")
@every_backend
def test_a_keyword_beside_ref_is_no_circle_where_it_does_not_count(
    backend: str,
) -> None:
    schema = {
        "$schema": DRAFT_7,
        "properties": {"a": {"$ref": "#/definitions/b", "allOf": [{"$ref": "#"}]}},
        "definitions": {"b": {"type": "integer"}},
    }
    assert compiled(schema, backend).validate({"a": 1}) == []


@pytest.mark.req("schema.bad-schemas")
@every_backend
@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "http://json-schema.org/draft-03/schema#"},
        {"$schema": "https://example.com/my-dialect"},
        {"$schema": 3},
    ],
)
def test_an_unknown_dialect_is_an_error(schema: Any, backend: str) -> None:
    with pytest.raises(SchemaError) as caught:
        compiled(schema, backend)
    assert caught.value.path == "/$schema"


@pytest.mark.req("schema.bad-schemas")
@pytest.mark.parametrize("schema", [None, [], "string", 3, [{}]])
def test_what_is_no_schema_at_all_is_an_error(schema: Any) -> None:
    with pytest.raises(SchemaError, match="a schema is an object"):
        compile_schema(schema)


@pytest.mark.req("schema.bad-schemas", "schema.only-json")
def test_a_schema_that_is_no_json_is_an_error() -> None:
    with pytest.raises(SchemaError) as caught:
        compile_schema({"enum": [1, {2}]})
    assert caught.value.path == "/enum/1"
    with pytest.raises(SchemaError):
        compile_schema({"minimum": float("nan")})
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"items": deep}
    with pytest.raises(SchemaError, match="deep"):
        compile_schema(deep)


@pytest.mark.req("schema.bounded")
@every_backend
def test_a_deep_schema_works_or_says_that_it_is_too_deep(backend: str) -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(60):
        deep = {"items": deep}
    assert compiled(deep, backend).validate(nested(59)) == []
    for _ in range(5):
        for _ in range(90):
            deep = {"items": deep}
        try:
            check = compiled(deep, backend).validate
        except SchemaError as exc:
            text = str(exc)
            assert "deep" in text or "ecursion" in text
        else:
            assert check([]) == []


@pytest.mark.req("schema.bounded")
def test_a_stack_that_is_full_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    from executionkit.engine import schema as module

    def full(*_: Any) -> Any:
        raise RecursionError

    validator = compiled({"title": "full stack"}, "subset")
    monkeypatch.setattr(validator, "_find", full)
    (problem,) = validator.validate(1)
    assert problem.message == "is nested too deeply to be checked"
    monkeypatch.setattr(module, "check_references", full)
    with pytest.raises(SchemaError, match="the schema is nested too deeply"):
        compile_schema({"title": "full stack, not kept"})


@pytest.mark.req("schema.bad-schemas")
def test_any_refusal_of_the_package_is_a_schema_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = pytest.importorskip("jsonschema_rs")
    real = package.Draft202012Validator

    def refuse(schema: Any, **options: Any) -> Any:
        if "title" in schema:
            raise ValueError("Recursion limit reached")
        return real(schema, **options)

    monkeypatch.setattr(package, "Draft202012Validator", refuse)
    with pytest.raises(SchemaError, match="Recursion limit reached"):
        compile_schema({"title": "refused"}, backend="jsonschema-rs")


def test_a_schema_error_is_a_value_error_and_survives_pickling() -> None:
    import pickle

    error: SchemaError = pickle.loads(pickle.dumps(SchemaError("m", "/a")))
    assert issubclass(SchemaError, ValueError)
    assert (error.message, error.path) == ("m", "/a")
    assert str(error) == "`/a` of the schema: m"
    assert str(SchemaError("m")) == "m"


@pytest.mark.req("schema.compiled-once")
@every_backend
def test_a_schema_is_compiled_once(backend: str) -> None:
    schema = {"type": "string", "minLength": 7}
    first = compiled(schema, backend)
    assert compiled({"type": "string", "minLength": 7}, backend) is first
    assert compiled(freeze_mapping(schema), backend) is first
    assert compiled({"minLength": 7, "type": "string"}, backend) is not first


@pytest.mark.req("schema.compiled-once")
@every_backend
def test_the_cache_tells_true_from_one(backend: str) -> None:
    assert compiled({"const": True}, backend).validate(True) == []
    assert compiled({"const": 1}, backend).validate(True) != []
    assert compiled({"const": 1}, backend).validate(1) == []
    assert compiled({"const": True}, backend).validate(1) != []


@pytest.mark.req("schema.compiled-once")
@every_backend
def test_changing_a_schema_later_changes_nothing(backend: str) -> None:
    schema: dict[str, Any] = {"properties": {"a": {"type": "string"}}}
    validator = compiled(schema, backend)
    schema["properties"]["a"]["type"] = "integer"
    assert validator.validate({"a": "x"}) == []
    assert compiled(schema, backend).validate({"a": "x"}) != []


@pytest.mark.req("schema.compiled-once")
def test_kept_schemas_are_bounded() -> None:
    from executionkit.engine import schema as module

    for number in range(600):
        compile_schema({"const": number}, backend="subset")
    info = module._compile.cache_info()
    assert info.currsize <= 512


@every_backend
def test_validation_leaves_the_schema_of_the_caller_alone(backend: str) -> None:
    schema = {
        "$schema": DRAFT_7,
        "contentEncoding": "base64",
        "additionalProperties": False,
        "patternProperties": {r"^\d": False},
    }
    before = repr(schema)
    compiled(schema, backend).validate({"1": 1})
    assert repr(schema) == before


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def hidden(*names: str) -> None:
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)

    from executionkit.engine import schema as module

    module._compile.cache_clear()
    yield hidden
    module._compile.cache_clear()


@pytest.mark.req("schema.backend-order")
def test_the_best_backend_that_is_installed_is_taken(hide: Any) -> None:
    pytest.importorskip("jsonschema_rs")
    pytest.importorskip("jsonschema")
    schema = {"type": "string"}
    assert compile_schema(schema).backend == "jsonschema-rs"
    hide("jsonschema_rs")
    assert compile_schema({"type": "integer"}).backend == "jsonschema"
    hide("jsonschema")
    assert compile_schema({"type": "null"}).backend == "subset"


@pytest.mark.req("schema.backend-order", "schema.exact-integers")
@pytest.mark.parametrize("takes_options", [True, False])
def test_a_package_that_is_too_old_to_be_exact_is_not_taken(
    takes_options: bool, hide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Old:
        def __init__(self, _schema: Any, **options: Any) -> None:
            if options and not takes_options:
                raise TypeError("unexpected keyword argument")

        def is_valid(self, _value: Any) -> bool:
            return True

    hide("jsonschema")
    package = SimpleNamespace(Draft202012Validator=Old)
    monkeypatch.setitem(sys.modules, "jsonschema_rs", package)
    assert compile_schema({"type": "array"}).backend == "subset"
    with pytest.raises(MissingExtraError, match="too old; run: pip install -U"):
        compile_schema({"type": "array"}, backend="jsonschema-rs")


@pytest.mark.req("schema.backend-order")
def test_a_backend_that_is_asked_for_must_be_there(hide: Any) -> None:
    hide("jsonschema_rs", "jsonschema")
    for backend in FULL:
        with pytest.raises(MissingExtraError) as caught:
            compile_schema({"type": "boolean"}, backend=backend)
        assert "pip install 'executionkit[jsonschema]'" in str(caught.value)
    with pytest.raises(ValueError, match="jsonschema-rs, jsonschema, subset"):
        compile_schema({}, backend="fastjsonschema")


@pytest.mark.req("D-04", "schema.bounded")
@every_backend
def test_a_fault_of_the_validator_is_a_problem_and_no_exception(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_value: Any) -> Any:
        raise ZeroDivisionError("inside")

    validator = compiled({"title": "broken"}, backend)
    monkeypatch.setattr(validator, "_find", broken)
    if backend == "jsonschema-rs":
        monkeypatch.setattr(validator, "_is_valid", lambda _: False)
    (problem,) = validator.validate(1)
    assert problem.message == "could not be checked: ZeroDivisionError in the validator"


def test_a_validator_shows_what_it_is() -> None:
    assert "subset" in repr(compile_schema({}, backend="subset"))
