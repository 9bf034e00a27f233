"""JSON Schema to a grammar: only what the engine keeps, everything else is named."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit._local.grammar import GrammarError, constrain
from executionkit._local.grammar_values import is_safe_pattern

HEAD = "%llguidance {}\nstart: %json "
BIG = 2**53 - 1


def built(schema: Any) -> dict[str, Any]:
    """The schema inside of the grammar."""
    grammar = constrain(schema).grammar
    assert grammar.startswith(HEAD)
    whole: dict[str, Any] = json.loads(grammar.removeprefix(HEAD))
    style = whole.pop("x-guidance")
    assert style["whitespace_flexible"] is False
    return whole


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@pytest.mark.req("local.grammar")
class TestWhatIsKept:
    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "string", "minLength": 1, "maxLength": 5},
            {"type": "string", "pattern": "^[A-Z]{2}-\\d+$"},
            {"type": "string", "format": "date"},
            {"type": "number", "minimum": 0, "exclusiveMaximum": 1.5},
            {"type": "integer", "minimum": 1, "maximum": 9, "multipleOf": 2},
            {"type": "boolean"},
            {"type": "null"},
            {"enum": ["a", 1, None, [1], {"b": True}]},
            {"const": {"a": [1]}},
            {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
            {"type": "array", "prefixItems": [{"type": "null"}], "items": {}},
            closed(a={"type": "boolean"}, b=closed()),
            {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        ],
        ids=str,
    )
    def test_a_known_schema_goes_through_as_it_is(self, schema: dict[str, Any]) -> None:
        assert built(schema) == schema
        assert constrain(schema).notes == ()

    def test_words_about_the_schema_are_dropped_without_a_note(self) -> None:
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "T",
            "type": "boolean",
            "description": "d",
            "default": True,
            "examples": [True],
            "x-own": 1,
        }
        assert built(schema) == {"type": "boolean"}
        assert constrain(schema).notes == ()

    def test_an_open_integer_gets_the_bounds_of_json(self) -> None:
        assert built({"type": "integer"}) == {
            "type": "integer",
            "minimum": -BIG,
            "maximum": BIG,
        }

    def test_an_object_with_named_properties_gets_no_others(self) -> None:
        made = built({"type": "object", "properties": {"a": {"type": "null"}}})
        assert made["additionalProperties"] is False
        assert made["required"] == []

    def test_an_object_that_says_so_stays_open(self) -> None:
        schema = {
            "type": "object",
            "properties": {"a": {"type": "null"}},
            "additionalProperties": {"type": "boolean"},
        }
        assert built(schema)["additionalProperties"] == {"type": "boolean"}
        assert built({"type": "object"})["additionalProperties"] == {}

    def test_a_required_property_without_a_schema_may_be_anything(self) -> None:
        made = built({"type": "object", "required": ["a"]})
        assert made["properties"] == {"a": {}}

    def test_a_list_of_types_becomes_a_choice(self) -> None:
        made = built({"type": ["string", "null"], "maxLength": 2})
        assert made == {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]}

    def test_nullable_adds_null(self) -> None:
        made = built({"type": "boolean", "nullable": True})
        assert made == {"anyOf": [{"type": "boolean"}, {"type": "null"}]}

    def test_one_of_is_a_choice(self) -> None:
        assert built({"oneOf": [{"type": "null"}, {"type": "boolean"}]}) == {
            "anyOf": [{"type": "null"}, {"type": "boolean"}]
        }

    def test_what_stands_beside_a_choice_holds_for_each_branch(self) -> None:
        schema = {
            "type": "object",
            "properties": {"kind": {"type": "string"}},
            "required": ["kind"],
            "anyOf": [
                {"properties": {"a": {"type": "null"}}, "required": ["a"]},
                {"properties": {"b": {"type": "null"}}},
            ],
        }
        first, second = built(schema)["anyOf"]
        assert list(first["properties"]) == ["kind", "a"]
        assert first["required"] == ["kind", "a"]
        assert list(second["properties"]) == ["kind", "b"]

    def test_all_of_asks_for_everything(self) -> None:
        schema = {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "null"}}},
                {"$ref": "#/$defs/more"},
            ],
            "required": ["a"],
            "$defs": {"more": {"properties": {"b": {"type": "boolean"}}}},
        }
        made = built(schema)
        assert list(made["properties"]) == ["a", "b"]
        assert made["required"] == ["a"]

    def test_the_tighter_of_two_bounds_wins(self) -> None:
        schema = {"allOf": [{"type": "integer", "minimum": 2}, {"minimum": 5}]}
        assert built(schema)["minimum"] == 5

    def test_the_type_is_told_from_the_keywords(self) -> None:
        assert built({"maxLength": 3}) == {"type": "string", "maxLength": 3}
        assert built({"items": {"type": "null"}})["type"] == "array"
        assert built({"required": ["a"]})["type"] == "object"
        assert built({"minimum": 0}) == {"type": "number", "minimum": 0}
        assert built({}) == {}

    def test_a_tuple_of_older_drafts_becomes_prefix_items(self) -> None:
        schema = {
            "type": "array",
            "items": [{"type": "null"}, {"type": "boolean"}],
            "additionalItems": False,
        }
        assert built(schema) == {
            "type": "array",
            "prefixItems": [{"type": "null"}, {"type": "boolean"}],
            "maxItems": 2,
        }

    def test_a_forbidden_property_is_left_out(self) -> None:
        made = built({"type": "object", "properties": {"a": False, "b": True}})
        assert made["properties"] == {"b": {}}

    def test_enum_keeps_the_values_of_the_right_type(self) -> None:
        schema = {"type": ["integer", "null"], "enum": ["a", 1, 1.0, True, None, []]}
        assert built(schema) == {"enum": [1, 1.0, None]}


@pytest.mark.req("local.grammar")
class TestReferences:
    def test_a_recursive_schema_that_can_end_is_kept(self) -> None:
        node = {
            "type": "object",
            "properties": {
                "value": {"type": "null"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
        }
        made = built({"$defs": {"node": node}, "$ref": "#/$defs/node"})
        assert made["$ref"] == "#/$defs/d0"
        inner = made["$defs"]["d0"]["properties"]["next"]["anyOf"][0]
        assert inner == {"$ref": "#/$defs/d0"}

    @pytest.mark.parametrize(
        "schema",
        [
            {"$ref": "#"},
            {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        ],
        ids=str,
    )
    def test_one_that_never_ends_is_refused(self, schema: dict[str, Any]) -> None:
        with pytest.raises(GrammarError, match="ever end"):
            constrain(schema)

    @pytest.mark.parametrize(
        ("pointer", "why"),
        [
            ("https://example.com/x.json", "not inside"),
            ("#/$defs/nothing", "points at nothing"),
            ("#/$defs/list/9", "points at nothing"),
            (7, "not inside"),
        ],
    )
    def test_one_that_leads_nowhere_is_refused(self, pointer: Any, why: str) -> None:
        schema = {"$defs": {"list": []}, **closed(a={"$ref": pointer})}
        with pytest.raises(GrammarError, match=why) as caught:
            constrain(schema)
        assert "#/properties/a" in str(caught.value)

    def test_escaped_names_are_found(self) -> None:
        schema = {"$defs": {"a/b~c": {"type": "null"}}, "$ref": "#/$defs/a~1b~0c"}
        assert built(schema)["$defs"] == {"d0": {"type": "null"}}

    def test_bounds_beside_a_reference_hold_too(self) -> None:
        schema = {
            "$defs": {"n": {"type": "integer"}},
            "$ref": "#/$defs/n",
            "minimum": 4,
        }
        assert built(schema)["minimum"] == 4

    def test_all_of_that_leads_back_to_itself_is_refused(self) -> None:
        with pytest.raises(GrammarError):
            constrain({"allOf": [{"$ref": "#"}]})


@pytest.mark.req("local.grammar-notes")
class TestWhatIsLeftOut:
    @pytest.mark.parametrize(
        ("schema", "note"),
        [
            ({"type": "string", "not": {"const": "a"}}, "`not` at #"),
            ({"type": "string", "pattern": "(?=a)b"}, "`pattern` at #"),
            ({"type": "string", "format": "uri"}, "`format` at #"),
            (
                {"type": "string", "pattern": "^a$", "maxLength": 3},
                "`maxLength` at #",
            ),
            ({"type": "array", "uniqueItems": True}, "`uniqueItems` at #"),
            ({"type": "array", "maxItems": 10**9}, "`maxItems` at #"),
            ({"type": "number", "minimum": 1e-9}, "`minimum` at #"),
            ({"type": "integer", "maximum": 2**70}, "`maximum` at #"),
            ({"type": "object", "propertyNames": {}}, "`propertyNames` at #"),
            ({"type": "object", "patternProperties": {}}, "`patternProperties` at #"),
            (
                {"allOf": [{"pattern": "^a$"}, {"pattern": "^b$"}]},
                "`allOf/pattern` at #",
            ),
        ],
        ids=str,
    )
    def test_it_is_named_and_where(self, schema: dict[str, Any], note: str) -> None:
        assert constrain(schema).notes == (f"{note} is not enforced",)

    def test_the_place_is_a_path(self) -> None:
        notes = constrain(closed(a={"type": "string", "format": "uri"})).notes
        assert notes == ("`format` at #/properties/a is not enforced",)

    def test_pattern_properties_open_the_object(self) -> None:
        schema = {
            "type": "object",
            "patternProperties": {"^x": {}},
            "additionalProperties": False,
        }
        assert built(schema)["additionalProperties"] == {}

    def test_what_is_too_deep_may_be_anything(self) -> None:
        schema: dict[str, Any] = {"type": "null"}
        for _ in range(40):
            schema = closed(a=schema)
        (note,) = constrain(schema).notes
        assert "too deep" in note


@pytest.mark.req("local.grammar-refuses")
class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("schema", "where", "why"),
        [
            (False, "#", "object"),
            ("string", "#", "object"),
            ([], "#", "object"),
            (None, "#", "object"),
            ({"type": "blah"}, "#", "'blah' is not a type"),
            ({"type": []}, "#", "no type"),
            ({"type": 7}, "#", "not a type"),
            (closed(a=False), "#/properties/a", "no value"),
            (closed(a="x"), "#/properties/a", "object"),
            ({"enum": []}, "#", "non-empty"),
            ({"enum": "abc"}, "#", "non-empty"),
            ({"type": "string", "enum": [1]}, "#", "right type"),
            ({"anyOf": []}, "#", "non-empty"),
            ({"anyOf": [False]}, "#/anyOf/0", "no value"),
            ({"allOf": []}, "#", "non-empty"),
            ({"allOf": [3]}, "#/allOf/0", "object"),
            ({"allOf": [{"type": "null"}, {"type": "string"}]}, "#", "no type"),
            ({"type": "integer", "minimum": 5, "maximum": 3}, "#", "bounds"),
            ({"type": "integer", "minimum": 2.1, "maximum": 2.9}, "#", "bounds"),
            (
                {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
                "#",
                "bounds",
            ),
            (
                {"type": "integer", "minimum": 11, "maximum": 19, "multipleOf": 10},
                "#",
                "bounds",
            ),
            (
                {"type": "number", "minimum": 1, "exclusiveMaximum": 1},
                "#",
                "bounds",
            ),
            ({"type": "number", "multipleOf": 0}, "#", "above 0"),
            ({"type": "string", "minLength": 3, "maxLength": 1}, "#", "larger"),
            ({"type": "array", "minItems": 1, "items": False}, "#", "larger"),
            (
                {"type": "object", "required": ["a"], "additionalProperties": False},
                "#",
                "not allowed",
            ),
            ({"type": "object", "properties": []}, "#", "must be an object"),
            ({"type": "object", "required": "ab"}, "#", "names"),
            (
                {"type": "object", "properties": {"a": {"type": "blah"}}},
                "#/properties/a",
                "not a type",
            ),
        ],
        ids=str,
    )
    def test_it_says_where_and_why(self, schema: Any, where: str, why: str) -> None:
        with pytest.raises(GrammarError, match=why) as caught:
            constrain(schema)
        assert f" {where}: " in str(caught.value)

    def test_a_bad_branch_of_a_choice_does_not_matter(self) -> None:
        assert built({"anyOf": [False, {"type": "null"}]}) == {"type": "null"}

    def test_what_is_too_large_is_refused(self) -> None:
        schema = closed(**{f"p{number}": {"type": "null"} for number in range(2000)})
        with pytest.raises(GrammarError, match="more than 1000 parts"):
            constrain(schema)

    def test_what_holds_itself_is_refused(self) -> None:
        schema: dict[str, Any] = {"type": "object"}
        schema["properties"] = {"a": schema}
        with pytest.raises(GrammarError, match="depth"):
            constrain(schema)

    def test_what_is_not_json_is_refused(self) -> None:
        with pytest.raises(GrammarError, match="not JSON"):
            constrain({"enum": [float("nan"), 1]})


@pytest.mark.req("local.grammar")
class TestHowRepliesBegin:
    @pytest.mark.parametrize(
        ("schema", "starts"),
        [
            ({"type": "object"}, ('{"', "{}")),
            ({"type": "array"}, ("[",)),
            ({"type": "string"}, ('"',)),
            ({"anyOf": [{"type": "array"}, {"type": "string"}]}, ("[", '"')),
            ({"anyOf": [{"type": "array"}, {"type": "null"}]}, ()),
            ({}, ()),
        ],
        ids=str,
    )
    def test_it_is_known_where_it_can_be(
        self, schema: dict[str, Any], starts: tuple[str, ...]
    ) -> None:
        assert constrain(schema).starts == starts


@pytest.mark.req("local.grammar")
@pytest.mark.parametrize(
    ("pattern", "safe"),
    [
        ("^[a-z]+$", True),
        ("\\d{3}-\\d{4}", True),
        ("^(foo|bar)+$", True),
        ("^(?:a|b)$", True),
        ('[^"\\\\]*', True),
        ("^a|b$", False),
        ("(?=x)a", False),
        ("(?<!x)a", False),
        ("(a)\\1", False),
        ("\\bword\\b", False),
        ("[[:alpha:]]", False),
        ("\\p{L}", False),
        ("[a", False),
        ("a{1,1000}", False),
        ("*a", False),
        (7, False),
        (None, False),
    ],
)
def test_only_patterns_that_read_alike_everywhere_are_kept(
    pattern: object, safe: bool
) -> None:
    assert is_safe_pattern(pattern) is safe


_NAMES = st.sampled_from(
    [
        *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "not", "items"),
        *("properties", "required", "additionalProperties", "minItems", "maxItems"),
        *("prefixItems", "minimum", "maximum", "multipleOf", "pattern", "format"),
        *("minLength", "maxLength", "nullable", "$defs", "minProperties", "title"),
    ]
)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["string", "integer", "object", "array", "null", "#", "#/$defs/a", "^a$", "a"]
    )
)
_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: (
        st.dictionaries(_NAMES, inner, max_size=4)
        | st.lists(inner, max_size=3)
        | st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(_NAMES, inner)}
        )
    ),
    max_leaves=20,
)


@pytest.mark.req("local.grammar-refuses")
@given(_SCHEMAS)
def test_anything_becomes_a_grammar_or_a_refusal(schema: Any) -> None:
    made, refused = None, ""
    try:
        made = constrain(schema)
    except GrammarError as exc:
        refused = str(exc)
    if made is None:
        assert refused.startswith("JSON schema at #")
    else:
        json.loads(made.grammar.removeprefix(HEAD))
        assert all("enforced" in note for note in made.notes)


@pytest.mark.req("local.grammar-refuses")
def test_a_schema_of_any_depth_is_answered() -> None:
    schema: Any = {}
    for _ in range(sys.getrecursionlimit() * 2):
        schema = {"anyOf": [schema]}
    with pytest.raises(GrammarError):
        constrain(schema)
