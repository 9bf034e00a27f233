"""All validators give the same verdict, on schemas and values that nobody thought of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from executionkit.engine.schema import SchemaError, Validator, compile_schema
from executionkit.engine.schema_coerce import admitted_types
from executionkit.types import freeze_mapping

pytest.importorskip("jsonschema_rs")
pytest.importorskip("jsonschema")

pytestmark = pytest.mark.req("schema.agreement")

NAMES = ["a", "b", "c", "ab", "\u00e9", "1"]
TYPES = ["array", "boolean", "integer", "null", "number", "object", "string"]
PATTERNS = [
    "^a",
    "^a$",
    r"\d",
    "^[a-c]+$",
    "a|b",
    "^.$",
    r"^\w*$",
    "[^a]",
    "^(a|b){1,2}$",
]
ATOMS: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 1.0, 1.5, 3.0, -0.0, 0.1, 0.3),
    *(2**53, 2**53 + 1, 2.0**53, 2**63 + 1, 2**70, 1e300, -1e-7),
    *("", "a", "b", "ab", "\u00e9", "\U0001f600", "1", "abc", "a1", "\n", "a\n"),
]
NUMBERS = [atom for atom in ATOMS if type(atom) in (int, float)]

values = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=8,
)
sizes = st.sampled_from([0, 1, 2, 3, 1.0, 2.0])
names = st.lists(st.sampled_from(NAMES), unique=True, max_size=3)


def keywords(inner: st.SearchStrategy[Any], *, full: bool) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    optional: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(TYPES)
        | st.lists(st.sampled_from(TYPES), unique=True, min_size=1, max_size=3),
        "enum": st.lists(values, max_size=4),
        "const": values,
        "minimum": st.sampled_from(NUMBERS),
        "maximum": st.sampled_from(NUMBERS),
        "exclusiveMinimum": st.sampled_from(NUMBERS),
        "exclusiveMaximum": st.sampled_from(NUMBERS),
        "multipleOf": st.sampled_from([1, 2, 0.1, 0.5, 3, 1.5, 2**53, 7, 1e-7]),
        "minLength": sizes,
        "maxLength": sizes,
        "pattern": st.sampled_from(PATTERNS),
        "minItems": sizes,
        "maxItems": sizes,
        "uniqueItems": st.booleans(),
        "items": inner,
        "prefixItems": several,
        "minProperties": sizes,
        "maxProperties": sizes,
        "required": names,
        "properties": named,
        "patternProperties": st.dictionaries(
            st.sampled_from(PATTERNS), inner, max_size=2
        ),
        "additionalProperties": inner,
        "propertyNames": inner,
        "allOf": several,
        "anyOf": several,
        "oneOf": several,
        "not": inner,
        "$ref": st.sampled_from(["#", "#/$defs/x", "#/$defs/y"]),
        "title": st.just("t"),
        "format": st.sampled_from(["email", "regex", "json-pointer", "uri", "x"]),
    }
    if full:
        optional |= {
            "contains": inner,
            "minContains": st.sampled_from([0, 1, 2]),
            "maxContains": st.sampled_from([0, 1, 2]),
            "if": inner,
            "then": inner,
            "else": inner,
            "dependentRequired": st.dictionaries(
                st.sampled_from(NAMES), names, max_size=2
            ),
            "dependentSchemas": named,
            "unevaluatedItems": inner,
            "unevaluatedProperties": inner,
        }

    # A few of the many keywords at a time; most schemas should be satisfiable.
    def pick(chosen: list[str]) -> st.SearchStrategy[Any]:
        return st.fixed_dictionaries({name: optional[name] for name in chosen})

    return st.lists(st.sampled_from(sorted(optional)), unique=True, max_size=4).flatmap(
        pick
    )


def schemas(*, full: bool = False) -> st.SearchStrategy[Any]:
    part = st.recursive(
        st.booleans() | st.sampled_from([{"type": name} for name in TYPES]),
        lambda inner: keywords(inner, full=full),
        max_leaves=6,
    )

    def close(triple: tuple[Any, Any, Any]) -> Any:
        root, x, y = triple
        return {**root, "$defs": {"x": x, "y": y}} if isinstance(root, dict) else root

    return st.tuples(part, part, part).map(close)


def compile_all(schema: Any, backends: tuple[str, ...]) -> list[Validator]:
    """The validators; they agree also on which schemas are refused."""
    built: list[Validator] = []
    refused: list[str] = []
    for backend in backends:
        try:
            built.append(compile_schema(schema, backend=backend))
        except SchemaError:
            refused.append(backend)
    assert len(refused) in (0, len(backends)), refused
    assume(not refused)
    return built


slow = settings(
    deadline=None,
    max_examples=250,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@slow
@given(schemas(), st.lists(values, min_size=1, max_size=5))
def test_the_subset_agrees_with_the_full_validators(
    schema: Any, samples: list[Any]
) -> None:
    rust, pure, subset = compile_all(schema, ("jsonschema-rs", "jsonschema", "subset"))
    for value in samples:
        found = [check.validate(value) for check in (rust, pure, subset)]
        verdicts = {bool(problems) for problems in found}
        assert len(verdicts) == 1, [list(map(str, problems)) for problems in found]
        for problems in found:
            assert len(problems) <= 20
            for problem in problems:
                assert 0 < len(problem.message) <= 300


@slow
@given(schemas(full=True), st.lists(values, min_size=1, max_size=5))
def test_the_full_validators_agree_with_each_other(
    schema: Any, samples: list[Any]
) -> None:
    rust, pure = compile_all(schema, ("jsonschema-rs", "jsonschema"))
    for value in samples:
        found = [check.validate(value) for check in (rust, pure)]
        verdicts = {bool(problems) for problems in found}
        assert len(verdicts) == 1, [list(map(str, problems)) for problems in found]


@slow
@given(schemas(full=True), values)
def test_the_subset_says_yes_only_where_the_full_validators_do(
    schema: Any, value: Any
) -> None:
    rust, subset = compile_all(schema, ("jsonschema-rs", "subset"))
    if not subset.validate(value):
        assert not rust.validate(value)


@settings(deadline=None, max_examples=300)
@given(
    st.one_of(
        st.integers(1, 1000),
        st.sampled_from([0.1, 0.01, 0.5, 1e-5, 3e-7, 0.123, 1.5, 1e-300, 1e22, 2**70]),
        st.floats(1e-9, 1e9),
    ),
    st.one_of(
        st.integers(-(10**30), 10**30),
        st.integers(-1000, 1000).map(lambda n: n / 100),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    st.integers(0, 1000),
)
def test_multiples_are_the_same_numbers_everywhere(
    limit: Any, number: Any, factor: int
) -> None:
    checks = compile_all(
        {"multipleOf": limit}, ("jsonschema-rs", "jsonschema", "subset")
    )
    for value in (number, limit * factor):
        if abs(value) < 1e308:
            assert len({bool(check.validate(value)) for check in checks}) == 1


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(
        ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const"]
    ),
    st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    st.integers() | st.floats(allow_nan=False, allow_infinity=False),
)
def test_numbers_compare_the_same_everywhere(
    keyword: str, limit: Any, number: Any
) -> None:
    checks = compile_all({keyword: limit}, ("jsonschema-rs", "jsonschema", "subset"))
    for value in (number, limit, limit + 1):
        assert len({bool(check.validate(value)) for check in checks}) == 1


@slow
@given(schemas(), values)
def test_frozen_schemas_and_values_change_nothing(schema: Any, value: Any) -> None:
    assume(isinstance(schema, dict))
    (plain,) = compile_all(schema, ("subset",))
    frozen = compile_schema(freeze_mapping(schema), backend="subset")
    wrapped = freeze_mapping({"a": value})
    assert plain.validate({"a": value}) == frozen.validate(wrapped)


@slow
@given(schemas(), values)
def test_types_that_are_not_admitted_are_never_valid(schema: Any, value: Any) -> None:
    """Property: decoding trusts `admitted_types` to leave out only what is invalid."""
    from executionkit.engine._schema.values import json_type

    (check,) = compile_all(schema, ("subset",))
    if not check.validate(value):
        assert json_type(value) in admitted_types(schema, schema)
