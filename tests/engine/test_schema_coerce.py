"""Arguments are decoded where nothing else can be meant, and never guessed."""

from __future__ import annotations

import json
import pickle
import sys
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit.engine.schema import compile_schema
from executionkit.engine.schema_coerce import (
    ArgumentsError,
    admitted_types,
    coerce_arguments,
    decode_arguments,
    narrow_schema,
)
from executionkit.types import freeze_mapping


def coerce_one(text: Any, schema: Any) -> Any:
    coerced, notes = coerce_arguments({"x": text}, {"properties": {"x": schema}})
    assert len(notes) == (type(coerced["x"]) is not type(text))
    return coerced["x"]


class TestDecodeArguments:
    @pytest.mark.req("TC-01")
    @pytest.mark.parametrize("raw", ["", None, " ", "\n\t ", {}, "{}", " {} "])
    def test_nothing_means_no_arguments(self, raw: Any) -> None:
        assert decode_arguments(raw) == {}

    @pytest.mark.req("TC-01")
    def test_an_object_is_taken_as_it_is(self) -> None:
        assert decode_arguments('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
        assert decode_arguments('\ufeff{"a": 1}') == {"a": 1}
        given = {"a": [1]}
        decoded = decode_arguments(given)
        assert decoded == given
        assert decoded is not given
        assert decode_arguments(MappingProxyType({"a": 1})) == {"a": 1}

    @pytest.mark.req("TC-08")
    def test_an_object_that_is_encoded_twice_is_decoded_twice(self) -> None:
        assert decode_arguments('"{\\"city\\": \\"Oslo\\"}"') == {"city": "Oslo"}
        text = json.dumps({"city": '{"not": "this"}'})
        for _ in range(4):
            text = json.dumps(text)
        assert decode_arguments(text) == {"city": '{"not": "this"}'}

    @pytest.mark.req("TC-08")
    def test_decoding_ends(self) -> None:
        text = json.dumps({"city": "Oslo"})
        for _ in range(5):
            text = json.dumps(text)
        with pytest.raises(ArgumentsError, match="got a JSON string"):
            decode_arguments(text)

    @pytest.mark.req("TC-03")
    @pytest.mark.parametrize(
        ("raw", "position"),
        [
            ('{"scope": "tmp",, }', 16),
            ('{"path": "/srv/a.txt", "body": "half a sen', 31),
            ("{", 1),
            ("{'a': 1}", 1),
            ("not json", 0),
            ('{"a": 1} x', 9),
            ('{"a": 1}{"b": 2}', 8),
            ('{"a": NaN}', None),
            ('{"a": Infinity}', None),
            ('{"a": 1e999}', None),
            ('{"a": ' + "9" * 5000 + "}", None),
            ("[" * 600 + "]" * 600, None),
            ("[" * 100_000, None),
            ('{"a":' * 100_000, None),
            ('"{"', None),
            ('"{broken}"', None),
        ],
    )
    def test_broken_text_is_an_error_and_never_no_arguments(
        self, raw: str, position: int | None
    ) -> None:
        with pytest.raises(ArgumentsError) as caught:
            decode_arguments(raw)
        error = caught.value
        assert error.position == position
        assert error.length == len(raw)
        assert error.raw == raw[:800]
        assert "were not valid JSON" in error.message
        assert not error.message.endswith((" at", " starting"))
        assert len(error.message) < 300

    @pytest.mark.req("TC-03")
    @pytest.mark.parametrize(
        ("raw", "kind"),
        [
            ("[]", "array"),
            ("[1]", "array"),
            ("null", "null"),
            ("42", "integer"),
            ("1.5", "number"),
            ("true", "boolean"),
            ('""', "string"),
            ('"text"', None),
            ('"[]"', "array"),
            ('"\\"42\\""', "integer"),
        ],
    )
    def test_what_is_no_object_is_an_error(self, raw: str, kind: str | None) -> None:
        if kind is None or raw == '""':
            with pytest.raises(ArgumentsError):
                decode_arguments(raw)
            return
        with pytest.raises(ArgumentsError, match=f"got a JSON {kind}"):
            decode_arguments(raw)

    @pytest.mark.req("TC-03")
    @pytest.mark.parametrize("raw", [3, [], [("a", 1)], b"{}", True, {1: 2}, object()])
    def test_what_is_neither_text_nor_a_mapping_is_an_error(self, raw: Any) -> None:
        with pytest.raises(ArgumentsError):
            decode_arguments(raw)

    @pytest.mark.req("schema.exact-integers")
    def test_integers_stay_exact(self) -> None:
        for number in (2**53 + 1, 2**63 + 1, -(2**70)):
            assert decode_arguments(f'{{"n": {number}}}') == {"n": number}

    def test_with_a_schema_fields_are_decoded_too(self) -> None:
        schema = {"properties": {"ids": {"type": "array"}}}
        assert decode_arguments('{"ids": "[1]"}', schema=schema) == {"ids": [1]}
        assert decode_arguments('{"ids": "[1]"}') == {"ids": "[1]"}

    def test_the_error_survives_pickling(self) -> None:
        error = ArgumentsError("m", "x" * 1000, 3)
        again: ArgumentsError = pickle.loads(pickle.dumps(error))
        assert (again.message, again.raw, again.position, again.length) == (
            "m",
            "x" * 800,
            3,
            1000,
        )
        assert str(again) == "m"
        assert issubclass(ArgumentsError, ValueError)

    def test_a_shallow_stack_is_an_error_and_never_a_recursion_error(self) -> None:
        text = '{"a": ' + "[" * 120 + "]" * 120 + "}"

        def deeper(levels: int) -> Any:
            return deeper(levels - 1) if levels else decode_arguments(text)

        frames = 0
        frame: Any = sys._getframe()
        while frame is not None:
            frame = frame.f_back
            frames += 1
        room = sys.getrecursionlimit() - frames
        assert deeper(room - 400) == json.loads(text)
        with pytest.raises(ArgumentsError, match="deep"):
            deeper(room - 70)

    def test_no_room_to_look_at_a_value_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from executionkit.engine import schema_coerce

        def full(_value: Any) -> bool:
            raise RecursionError

        monkeypatch.setattr(schema_coerce, "is_plain", full)
        with pytest.raises(ArgumentsError, match="nested too deeply"):
            decode_arguments("{}")

    @pytest.mark.req("TC-03")
    @given(st.text(max_size=30) | st.text('{}[]":,0a \\ntru', max_size=30))
    def test_any_text_is_an_object_or_an_error(self, raw: str) -> None:
        try:
            decoded = decode_arguments(raw)
        except ArgumentsError:
            return
        assert isinstance(decoded, dict)
        if not decoded:
            assert not raw.strip() or "{" in raw

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        st.integers(0, 4),
    )
    def test_what_is_encoded_comes_back(self, value: Any, times: int) -> None:
        text = json.dumps({"x": value})
        for _ in range(times):
            text = json.dumps(text)
        assert decode_arguments(text) == {"x": value}


class TestCoerceArguments:
    @pytest.mark.req("TC-10")
    @pytest.mark.parametrize("text", ['{"a": 1}', "42", "true", "null", "[1]", '"x"'])
    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "string"},
            {"type": ["string", "null"]},
            {"type": ["integer", "string"]},
            {"anyOf": [{"type": "object"}, {"type": "string"}]},
            {"oneOf": [{"type": "array"}, {}]},
            {"enum": ["42", 42]},
            {},
            True,
            {"description": "anything"},
            {"$ref": "#/$defs/missing"},
            {"allOf": [{"minLength": 1}]},
            {"not": {"type": "integer"}},
        ],
    )
    def test_text_stays_text_where_text_is_admitted(
        self, text: str, schema: Any
    ) -> None:
        assert coerce_one(text, schema) == text

    @pytest.mark.req("schema.one-decoding")
    @pytest.mark.parametrize(
        ("text", "schema", "value"),
        [
            ("[1, 2]", {"type": "array"}, [1, 2]),
            (' {"a": "1"} ', {"type": "object"}, {"a": "1"}),
            ("[]", {"type": ["array", "null"]}, []),
            ("{}", {"type": ["array", "object"]}, {}),
            ("42", {"type": "integer"}, 42),
            ("-7", {"type": "integer"}, -7),
            ("9007199254740993", {"type": "integer"}, 9007199254740993),
            ("42", {"type": "number"}, 42),
            ("1.5", {"type": "number"}, 1.5),
            ("-0.25", {"type": "number"}, -0.25),
            ("true", {"type": "boolean"}, True),
            ("false", {"type": ["boolean", "null"]}, False),
            ("null", {"type": ["integer", "null"]}, None),
            ("2", {"enum": [1, 2, 3]}, 2),
            ("2", {"const": 2}, 2),
            ("[1]", {"anyOf": [{"type": "array"}, {"type": "null"}]}, [1]),
            ("[1]", {"allOf": [{"type": ["array", "string"]}, {"type": "array"}]}, [1]),
        ],
    )
    def test_a_field_that_was_encoded_once_too_often_is_decoded(
        self, text: str, schema: Any, value: Any
    ) -> None:
        decoded = coerce_one(text, schema)
        assert decoded == value
        assert type(decoded) is type(value)

    @pytest.mark.req("schema.one-decoding")
    @pytest.mark.parametrize(
        ("text", "schema"),
        [
            *(
                (text, {"type": "integer"})
                for text in (
                    *("042", "+1", "1e3", " 42", "42 ", "4.0", "3.5", "-0", "--1", ""),
                    *("0x10", "1_000", "forty", "\u0664\u0662", "NaN", "true", "[1]"),
                )
            ),
            *(
                (text, {"type": "number"})
                for text in ("1.50", ".5", "1.", "1e3", "1E3", "Infinity", "NaN", "1,5")
            ),
            *(
                (text, {"type": "boolean"})
                for text in ("True", "FALSE", "yes", "1", "0", " true", "null")
            ),
            *(
                (text, {"type": "array"})
                for text in (
                    "[1",
                    "1, 2",
                    "a",
                    "{}",
                    "[1] x",
                    "[NaN]",
                    "(1,)",
                    "[" * 99,
                )
            ),
            ('"[1]"', {"type": "array"}),
            ("[]", {"type": "object"}),
            ("None", {"type": "null"}),
            ("3.0", {"type": ["integer", "null"]}),
            ("[1]", False),
        ],
    )
    def test_anything_less_certain_stays_text(self, text: str, schema: Any) -> None:
        assert coerce_one(text, schema) == text

    @pytest.mark.req("schema.one-decoding")
    def test_each_decoded_field_is_reported(self) -> None:
        schema = {
            "properties": {
                "ids": {"type": "array", "items": {"type": "integer"}},
                "name": {"type": "string"},
                "deep": {"properties": {"n": {"type": "integer"}}},
            }
        }
        arguments = {"ids": "[1]", "name": "[1]", "deep": {"n": "3"}, "other": "[2]"}
        coerced, notes = coerce_arguments(arguments, schema)
        assert coerced == {
            "ids": [1],
            "name": "[1]",
            "deep": {"n": 3},
            "other": "[2]",
        }
        assert notes == (
            "`ids`: was text that holds a JSON array, and was decoded",
            "`deep.n`: was text that holds a JSON integer, and was decoded",
        )
        assert arguments["ids"] == "[1]"

    @pytest.mark.req("schema.one-decoding")
    def test_decoding_follows_references_items_and_alternatives(self) -> None:
        schema = {
            "properties": {
                "one": {"$ref": "#/$defs/point"},
                "many": {"type": "array", "items": {"$ref": "#/$defs/point"}},
                "maybe": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
            },
            "additionalProperties": {"type": "integer"},
            "$defs": {
                "point": {"type": "object", "properties": {"x": {"type": "number"}}}
            },
        }
        arguments = {
            "one": '{"x": "1.5"}',
            "many": [{"x": "2"}, '{"x": 3}'],
            "maybe": {"x": "4"},
            "extra": "5",
        }
        coerced, notes = coerce_arguments(arguments, schema)
        assert coerced == {
            "one": {"x": 1.5},
            "many": [{"x": 2}, {"x": 3}],
            "maybe": {"x": 4},
            "extra": 5,
        }
        assert len(notes) == 6

    def test_frozen_arguments_are_read(self) -> None:
        schema = freeze_mapping({"properties": {"a": {"items": {"type": "integer"}}}})
        frozen = freeze_mapping({"a": ["1", 2], "b": {"c": 1}})
        assert coerce_arguments(frozen, schema)[0] == {"a": [1, 2], "b": {"c": 1}}

    def test_odd_schemas_change_nothing(self) -> None:
        odd: list[Any] = [
            {
                "properties": {"x": {"$ref": "#/$defs/a"}},
                "$defs": {"a": {"$ref": "#/$defs/a"}},
            },
            {"properties": {"x": {"type": 3, "enum": 4, "anyOf": 5, "allOf": 6}}},
            {"properties": {"x": {"anyOf": []}}},
            {"properties": {"x": {"$ref": 3}}},
        ]
        for schema in odd:
            coerced, notes = coerce_arguments({"x": "[1]", "y": {"z": "1"}}, schema)
            assert coerced == {"x": "[1]", "y": {"z": "1"}}
            assert notes == ()

    def test_deep_arguments_are_left_as_they_are(self) -> None:
        schema = {"additionalProperties": {"$ref": "#"}, "type": ["object", "integer"]}
        value: Any = "1"
        for _ in range(200):
            value = {"a": value}
        assert coerce_arguments(value, schema) == (value, ())

    @pytest.mark.req("TC-10", "schema.one-decoding")
    @given(
        st.dictionaries(
            st.sampled_from(["s", "i", "n", "b", "a", "o", "any"]),
            st.none()
            | st.booleans()
            | st.integers()
            | st.text(max_size=4)
            | st.lists(st.integers(), max_size=2)
            | st.sampled_from(["1", "[1]", '{"a":1}', "true", "null", "1.5"]),
        )
    )
    def test_valid_arguments_never_change(self, arguments: dict[str, Any]) -> None:
        schema = {
            "properties": {
                "s": {"type": "string"},
                "i": {"type": "integer"},
                "n": {"type": ["number", "null"]},
                "b": {"type": "boolean"},
                "a": {"type": "array"},
                "o": {"type": "object"},
            },
        }
        coerced, notes = coerce_arguments(arguments, schema)
        if not compile_schema(schema, backend="subset").validate(arguments):
            assert coerced == arguments
            assert notes == ()
        for name, value in coerced.items():
            if value != arguments[name] or type(value) is not type(arguments[name]):
                assert isinstance(arguments[name], str)
                assert json.loads(arguments[name]) == value


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "number"}, {"number", "integer"}),
        ({"type": "integer"}, {"integer"}),
        ({"const": 1.5}, {"number", "integer"}),
        ({"enum": ["a", None]}, {"string", "null"}),
        ({"type": "string", "enum": [1]}, set()),
        (False, set()),
        ({"anyOf": [{"type": "null"}, False]}, {"null"}),
        ({"allOf": [{"type": ["null", "array"]}, {"type": "array"}]}, {"array"}),
        (
            {"$ref": "#"},
            {"array", "boolean", "integer", "null", "number", "object", "string"},
        ),
    ],
)
def test_admitted_types_leave_out_what_is_certainly_refused(
    schema: Any, types: set[str]
) -> None:
    assert admitted_types(schema, schema) == types


def test_a_schema_is_narrowed_to_the_alternative_of_a_type() -> None:
    point = {"type": "object", "title": "point"}
    root = {"$defs": {"p": point}}
    maybe = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/p"}]}
    assert narrow_schema(maybe, root, "object") == point
    both = {"oneOf": [point, {"type": "object"}]}
    assert narrow_schema(both, root, "object") == both
    assert narrow_schema(True, root, "object") is True
    loop = {"$defs": {"p": {"$ref": "#/$defs/p"}}}
    assert narrow_schema({"$ref": "#/$defs/p"}, loop, "object")
