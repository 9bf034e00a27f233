"""What JSON is, among the values of Python."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit._constants import MAX_JSON_DEPTH
from executionkit.engine._schema.values import (
    NotJsonError,
    equality_key,
    exact_ratio,
    is_plain,
    json_type,
    to_plain,
)
from executionkit.types import freeze, thaw

pytestmark = pytest.mark.req("schema.only-json")

plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(plain_values)
def test_json_is_plain_and_its_copy_is_equal(value: Any) -> None:
    assert is_plain(value)
    assert to_plain(value) == value
    frozen = freeze(value)
    assert is_plain(frozen)
    copy = to_plain(frozen)
    assert copy == value
    assert thaw(copy) == copy


@given(plain_values, plain_values)
def test_keys_are_equal_just_when_json_is(one: Any, other: Any) -> None:
    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, bool) or isinstance(b, bool):
            return a is b
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(map(equal, a, b))
        if isinstance(a, dict) and isinstance(b, dict):
            return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
        return (type(a) in (int, float) and type(b) in (int, float) and a == b) or (
            type(a) is type(b) and a == b
        )

    assert (equality_key(one) == equality_key(other)) is equal(one, other)
    assert equality_key(one) == equality_key(to_plain(one))
    hash(equality_key(one))


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_ratio_is_the_number(value: float) -> None:
    top, bottom = exact_ratio(value)
    assert bottom > 0
    if isinstance(value, int) or value.is_integer():
        assert (top, bottom) == (int(value), 1)
    else:
        assert float(Fraction(top, bottom)) == value


def test_a_ratio_is_what_is_written() -> None:
    assert exact_ratio(0.1) == (1, 10)
    assert exact_ratio(2**70) == (2**70, 1)
    assert exact_ratio(-2.5) == (-5, 2)
    assert exact_ratio(1e22) == (10**22, 1)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "null"),
        (True, "boolean"),
        ("", "string"),
        (1, "integer"),
        (1.0, "integer"),
        (1.5, "number"),
        ({}, "object"),
        ([], "array"),
        ((), "array"),
    ],
)
def test_types_have_their_names(value: Any, name: str) -> None:
    assert json_type(value) == name


@pytest.mark.parametrize(
    ("value", "steps"),
    [
        (math.nan, ()),
        ([1, math.inf], (1,)),
        ({"a": {"b": b""}}, ("a", "b")),
        ({"a": [{1: 2}]}, ("a", 0)),
        ((1, object()), (1,)),
        ([10**4300], (0,)),
    ],
)
def test_what_is_no_json_says_where(value: Any, steps: tuple[Any, ...]) -> None:
    assert not is_plain(value)
    with pytest.raises(NotJsonError) as caught:
        to_plain(value)
    assert caught.value.steps == steps
    assert str(caught.value) == caught.value.message


def test_the_greatest_integers_are_json() -> None:
    for number in (10**4300 - 1, -(10**4300) + 1):
        assert is_plain(number)
        assert to_plain(number) == number
        assert len(str(abs(number))) == 4300


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def test_depth_is_limited_where_it_is_said() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        assert is_plain(nested(MAX_JSON_DEPTH))
        assert to_plain(nested(MAX_JSON_DEPTH)) == nested(MAX_JSON_DEPTH)
        assert not is_plain(nested(MAX_JSON_DEPTH + 1))
        with pytest.raises(NotJsonError, match=f"deeper than {MAX_JSON_DEPTH} levels"):
            to_plain(nested(MAX_JSON_DEPTH + 1))
    finally:
        sys.setrecursionlimit(before)
    with pytest.raises(NotJsonError, match="nested"):
        to_plain(nested(5000))
