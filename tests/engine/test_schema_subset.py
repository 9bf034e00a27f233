"""The subset: exact where it says yes, closed where it cannot say."""

from __future__ import annotations

from typing import Any

import pytest

from executionkit.engine._schema.keywords import ANNOTATIONS, KEYWORDS
from executionkit.engine._schema.walk import DRAFT_2020_12, dialect_of
from executionkit.engine.schema import SchemaError, compile_schema
from executionkit.engine.schema_subset import SubsetSchema

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"


def subset(schema: Any) -> Any:
    return compile_schema(schema, backend="subset")


UNSUPPORTED: list[tuple[Any, str]] = [
    ({"if": {"type": "string"}, "then": False}, "`/if`"),
    ({"contains": {"type": "string"}}, "`/contains`"),
    ({"dependentRequired": {"a": ["b"]}}, "`/dependentRequired`"),
    ({"dependentSchemas": {"a": False}}, "`/dependentSchemas`"),
    ({"unevaluatedProperties": False}, "`/unevaluatedProperties`"),
    ({"unevaluatedItems": False}, "`/unevaluatedItems`"),
    ({"$dynamicRef": "#a"}, "`/$dynamicRef`"),
    ({"$anchor": "a"}, "`/$anchor`"),
    ({"$vocabulary": {}}, "`/$vocabulary`"),
    ({"$ref": "#anchor"}, "`/$ref`"),
    ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "`/$ref`"),
    ({"minContains": 1}, "`/minContains`"),
    ({"divisibleBy": 3}, "`/divisibleBy`"),
    ({"requird": ["a"]}, "`/requird`"),
    ({"properties": {"a": {"typo": 1}}}, "`/properties/a/typo`"),
    ({"items": {"anyOf": [{"then": True}]}}, "`/items/anyOf/0/then`"),
    ({"properties": {"a": {"$id": "b"}}}, "`/properties/a/$id`"),
    ({"items": {"$schema": DRAFT_7}}, "`/items/$schema`"),
    ({"$schema": DRAFT_7, "items": [True]}, "`/items` (a list of schemas)"),
    ({"$schema": DRAFT_7, "prefixItems": [True]}, "`/prefixItems`"),
    ({"$schema": DRAFT_2019, "prefixItems": [True]}, "`/prefixItems`"),
    ({"$schema": "http://json-schema.org/draft-04/schema#"}, "draft 4"),
    ({"pattern": "(?=a)"}, "`/pattern` (look-around"),
    ({"patternProperties": {r"\b": True}}, "`/patternProperties`"),
    ({"$defs": {"a": {"if": True}}, "$ref": "#/$defs/a"}, "`/$defs/a/if`"),
]


@pytest.mark.req("D-05", "schema.fails-closed")
@pytest.mark.parametrize(("schema", "named"), UNSUPPORTED)
def test_a_keyword_that_is_not_checked_accepts_nothing(schema: Any, named: str) -> None:
    check = subset(schema)
    assert check.backend == "subset"
    values: list[Any] = [None, {}, [], "", 0, {"a": 1}, float("nan")]
    for value in values:
        (problem,) = check.validate(value)
        assert problem.path == ""
        assert named in problem.message
        assert "pip install 'executionkit[jsonschema]'" in problem.message


@pytest.mark.req("D-05", "schema.fails-closed")
def test_many_unsupported_keywords_still_leave_room_for_the_remedy() -> None:
    schema = {"properties": {f"field{n}": {"then": True} for n in range(100)}}
    (problem,) = subset(schema).validate({})
    assert "/properties/field0/then" in problem.message
    assert problem.message.endswith("pip install 'executionkit[jsonschema]'")


@pytest.mark.req("schema.fails-closed")
def test_a_definition_that_is_not_used_closes_nothing() -> None:
    check = subset({"type": "string", "$defs": {"a": {"if": True, "type": 1}}})
    assert check.validate("a") == []


@pytest.mark.req("schema.fails-closed")
def test_compiled_subset_lists_what_it_cannot_check() -> None:
    compiled = SubsetSchema({"then": True, "items": {"else": 1}}, DRAFT_2020_12)
    assert compiled.unsupported == ("`/then`", "`/items/else`")
    assert SubsetSchema(True, DRAFT_2020_12).unsupported == ()
    seven: dict[str, Any] = {"$schema": DRAFT_7, "items": [True]}
    assert len(SubsetSchema(seven, dialect_of(seven)).unsupported) == 1


@pytest.mark.req("schema.bounded")
def test_looking_ends_when_enough_is_wrong() -> None:
    members = SubsetSchema({"additionalProperties": {"minimum": 3}}, DRAFT_2020_12)
    assert len(members.failures({str(n): 1 for n in range(5000)})) == 20
    items = SubsetSchema({"items": {"minimum": 3}}, DRAFT_2020_12)
    assert len(items.failures([1] * 5000)) == 20


@pytest.mark.parametrize("keyword", sorted(ANNOTATIONS))
def test_an_annotation_says_nothing_about_validity(keyword: str) -> None:
    samples: list[Any] = ["text", [1], True, {}, 3]
    accepted = [one for one in samples if isinstance(one, ANNOTATIONS[keyword])]
    assert accepted
    for sample in accepted:
        assert subset({keyword: sample}).validate(object) != []
        assert subset({keyword: sample}).validate(3) == []
    for sample in samples:
        if sample not in accepted and not isinstance(sample, bool):
            with pytest.raises(SchemaError):
                subset({keyword: sample})


@pytest.mark.parametrize("keyword", sorted(KEYWORDS))
def test_every_keyword_leaves_other_types_alone(keyword: str) -> None:
    """A keyword for numbers says nothing about text, and so on."""
    limits: dict[str, Any] = {
        "format": "date",
        "pattern": "x",
        "required": ["x"],
        "uniqueItems": True,
    }
    limit = limits.get(keyword, 2)
    if keyword in {"const", "enum", "type"}:
        return
    check = subset({keyword: limit})
    aimed = {
        "imum": (int, float),
        "multipleOf": (int, float),
        "Length": (str,),
        "format": (str,),
        "pattern": (str,),
        "Items": (list,),
        "Properties": (dict,),
        "required": (dict,),
    }
    kinds = next(kinds for part, kinds in aimed.items() if part in keyword)
    values: list[Any] = [None, True, 1, 1.5, "a", [], {}]
    for value in values:
        if type(value) not in kinds:
            assert check.validate(value) == []


def test_unique_items_that_is_off_checks_nothing() -> None:
    assert subset({"uniqueItems": False, "type": "array"}).validate([1, 1]) == []


def test_a_reference_is_compiled_once_and_may_contain_itself() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/t"}, "b": {"$ref": "#/$defs/t"}},
        "$defs": {
            "t": {
                "properties": {"left": {"$ref": "#/$defs/t"}, "v": {"type": "integer"}}
            }
        },
    }
    check = subset(schema)
    assert check.validate({"a": {"left": {"left": {"v": 1}}}, "b": {"v": 2}}) == []
    (problem,) = check.validate({"b": {"left": {"left": {"v": "x"}}}})
    assert problem.path == "/b/left/left/v"


def test_ref_beside_other_keywords_follows_the_dialect() -> None:
    base = {
        "$ref": "#/definitions/a",
        "minimum": 5,
        "definitions": {"a": {"type": "integer"}},
    }
    assert subset({"$schema": DRAFT_7, **base}).validate(3) == []
    assert subset({"$schema": DRAFT_2019, **base}).validate(3) != []
    assert subset(base).validate(3) != []


@pytest.mark.req("D-04")
def test_a_nullable_type_list_and_boolean_schemas_do_not_break_a_tool() -> None:
    schema = {
        "type": "object",
        "properties": {
            "note": {"type": ["string", "null"]},
            "anything": True,
            "count": {"type": "integer"},
        },
        "required": ["note"],
        "additionalProperties": False,
    }
    check = subset(schema)
    assert check.validate({"note": None, "anything": [1], "count": 3.0}) == []
    assert check.validate({"note": "x"}) == []
    assert [str(one) for one in check.validate({"note": 1, "extra": 2})] == [
        "`note`: expected type null or string, got integer",
        "Unexpected argument `extra`",
    ]
