"""Keys of calls: equal exactly when the calls are, types included."""

from __future__ import annotations

import hashlib
from array import array
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from fractions import Fraction
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from executionkit import _keys
from executionkit._keys import (
    MAX_KEY_TEXT,
    cache_key,
    canonical,
    fingerprint,
    idempotency_key,
    key_prefix,
    scope_of,
)
from executionkit.calls import ToolCall
from executionkit.context import ExecutionContext
from executionkit.types import freeze


class Colour(Enum):
    RED = 1
    BLUE = 2


class Number(IntEnum):
    ONE = 1


class Right(Flag):
    READ = 1
    WRITE = 2


class Named(str):
    __slots__ = ()


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.0, -0.0, 1.0, 2.5, float("inf")])
    | st.text(alphabet='ab",:1~#\\\n\ud83d\ude00😀', max_size=4)
)
ODD = SCALARS | st.sampled_from(
    [
        b"",
        b"a",
        Decimal(1),
        Decimal("1.0"),
        Fraction(1),
        PurePosixPath("a"),
        PureWindowsPath("a"),
        date(2024, 1, 1),
        datetime(2024, 1, 1),  # noqa: DTZ001
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 1, 1, fold=1),  # noqa: DTZ001
        time(1),
        timedelta(1),
        UUID(int=1),
        1j,
        Colour.RED,
        Number.ONE,
        Right.READ | Right.WRITE,
        frozenset({1}),
        frozenset({"a,b"}),
        frozenset({"a", "b"}),
        (),
        (1, "a"),
    ]
)


def values(leaf: st.SearchStrategy[Any], names: st.SearchStrategy[Any]) -> Any:
    return st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)
        ),
        max_leaves=6,
    )


TEXT_NAMES = st.text(alphabet="ab1", max_size=2)
ODD_NAMES = TEXT_NAMES | st.integers(0, 2) | st.none() | st.booleans()
ARGUMENTS = st.dictionaries(
    TEXT_NAMES, values(SCALARS, TEXT_NAMES), max_size=3
) | st.dictionaries(ODD_NAMES, values(ODD, ODD_NAMES), max_size=3)


def typed(value: Any) -> Any:
    """A twin that is `==` exactly when the value is the same, types included."""
    if isinstance(value, dict):
        return ("dict", frozenset((typed(k), typed(v)) for k, v in value.items()))
    if isinstance(value, list):
        return ("list", tuple(map(typed, value)))
    if isinstance(value, tuple):
        return ("tuple", tuple(map(typed, value)))
    if isinstance(value, frozenset):
        return ("set", frozenset(map(typed, value)))
    if isinstance(value, (Enum, datetime)):
        return (type(value).__qualname__, repr(value))
    if isinstance(value, str):
        return ("str", tuple(map(ord, value)))
    return (type(value).__qualname__, repr(value))


@pytest.mark.req("CA-09", "T-12", "cache.typed-keys")
@given(ARGUMENTS, ARGUMENTS)
def test_keys_are_equal_exactly_when_the_arguments_are(one: Any, two: Any) -> None:
    same = typed(one) == typed(two)
    assert (canonical(one) == canonical(two)) is same


@given(ARGUMENTS)
def test_a_key_depends_neither_on_order_nor_on_being_frozen(arguments: Any) -> None:
    turned = dict(reversed(arguments.items()))
    assert canonical(turned) == canonical(arguments) is not None
    assert canonical(freeze(arguments)) == canonical(arguments)


def test_a_key_is_the_same_for_a_dict_and_for_the_arguments_of_a_call() -> None:
    arguments = {"b": [1, {"c": None}], "a": "x"}
    call = ToolCall("1", "t", arguments)
    assert (
        canonical(call.arguments)
        == canonical(arguments)
        == ('{"a":"x","b":[1,{"c":null}]}')
    )


@pytest.mark.req("CA-09")
@pytest.mark.parametrize(
    "group",
    [
        [1, 1.0, True, "1", None, "null", "", [], {}, [1], {"1": 1}],
        [["a,b"], ["a", "b"], ("a", "b"), {"a", "b"}],
        [{"x": None}, {}, {"x": {}}, {"x": "None"}],
        [b"a", "a", PurePosixPath("a"), PureWindowsPath("a")],
        [{1: "a"}, {"1": "a"}, {True: "a"}, {None: "a"}],
        [Decimal("1.0"), Decimal(1), 1, "1.0", Fraction(1)],
        [Colour.RED, 1, "RED", Number.ONE, Right.READ],
        ["😀", "\ud83d\ude00"],
        [0.0, -0.0, 0],
        [float("nan"), "NaN", None],
        [
            datetime(2024, 1, 1, tzinfo=UTC),
            datetime(2024, 1, 1, tzinfo=timezone(timedelta(0), "Z")),
            datetime(2024, 1, 1, tzinfo=ZoneInfo("Europe/London")),
            datetime(2024, 1, 1),  # noqa: DTZ001
            date(2024, 1, 1),
            "2024-01-01T00:00:00",
        ],
    ],
)
def test_what_looks_alike_is_told_apart(group: list[Any]) -> None:
    keys = [canonical({"v": value}) for value in group]
    assert None not in keys
    assert len(set(keys)) == len(group)


class Opaque:
    pass


LOOP: list[Any] = []
LOOP.append(LOOP)
DEEP: Any = []
for _ in range(5000):
    DEEP = [DEEP]


def local_enum() -> Any:
    class Inner(Enum):
        A = 1

    return Inner.A


@pytest.mark.req("T-12", "cache.no-key-no-cache")
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(value, id=str(number))
        for number, value in enumerate(
            [
                Opaque(),
                [Opaque()],
                {"a": {"b": Opaque()}},
                {Opaque(): 1},
                {(1, Opaque()): 1},
                Named("x"),
                LOOP,
                DEEP,
                10**5000,
                (10**5000,),
                local_enum(),
                array("i", [1]),
                memoryview(b"a"),
                Opaque,
                time(1, tzinfo=UTC),
                lambda: 1,
            ]
        )
    ],
)
def test_what_has_no_canonical_form_has_no_key(value: Any) -> None:
    assert canonical({"v": value}) is None
    assert cache_key("t", "1", {"v": value}) is None
    assert fingerprint("t", {"v": value}) is None


@given(st.integers(MAX_KEY_TEXT, 3 * MAX_KEY_TEXT), st.booleans())
def test_long_arguments_are_hashed_and_stay_distinct(size: int, odd: bool) -> None:
    extra: Any = (1,) if odd else [1]
    one = canonical({"v": "x" * size, "e": extra})
    two = canonical({"v": "x" * (size + 1), "e": extra})
    assert one is not None
    assert two is not None
    assert one != two
    assert max(len(one), len(two)) <= MAX_KEY_TEXT
    assert canonical({"v": "x" * size, "e": (1,)}) != canonical(
        {"v": "x" * size, "e": [1]}
    )
    assert canonical({"v": "\ud83d" * size}) is not None


@pytest.mark.req("CA-03")
def test_tool_version_and_caller_are_parts_of_the_key() -> None:
    keys = {
        cache_key(name, version, arguments, scope)
        for name in ("a", "b", 'a"\n"b')
        for version in ("1", "2", "1\n")
        for scope in ("", '["t",null]', '[null,"t"]')
        for arguments in ({}, {"a": 1})
    }
    assert len(keys) == 3 * 3 * 3 * 2
    assert all(key is not None and key.count("\n") == 3 for key in keys)
    assert key_prefix("a", "1") == '"a"\n"1"\n'


@pytest.mark.req("CA-03")
def test_the_scope_is_the_tenant_and_the_user() -> None:
    scopes = {
        scope_of(context)
        for context in (
            None,
            ExecutionContext(tenant_id="a"),
            ExecutionContext(user_id="a"),
            ExecutionContext(tenant_id="a", user_id="b"),
            ExecutionContext(tenant_id='a","b'),
            ExecutionContext(tenant_id="", user_id=None),
        )
    }
    assert len(scopes) == 6
    assert scope_of(ExecutionContext(request_id="r")) == scope_of(None) == ""


@pytest.mark.req("cache.idempotency-hash")
def test_the_hash_of_a_call_is_sha256_of_name_and_arguments() -> None:
    one = ToolCall("1", "search", {"query": "Python", "n": 1})
    two = ToolCall("2", "search", {"n": 1, "query": "Python"})
    expected = hashlib.sha256(b'"search"\n{"n":1,"query":"Python"}').hexdigest()
    assert idempotency_key(one) == idempotency_key(two) == expected
    assert idempotency_key(ToolCall("1", "web.search", one.arguments)) == (
        idempotency_key(ToolCall("1", "search", one.arguments, namespace="web"))
    )
    assert idempotency_key(ToolCall("1", "search", {"v": Opaque()})) is None


def test_equal_sets_have_one_key_however_they_were_built() -> None:
    one: set[int] = set()
    two: set[int] = set()
    for number in (0, 8, 16):  # collisions: the order of insertion shows
        one.add(number)
        two.add(16 - number)
    assert list(one) != list(two)
    assert canonical({"v": one}) == canonical({"v": two})


@given(st.dictionaries(TEXT_NAMES, values(SCALARS, TEXT_NAMES), max_size=3))
def test_the_encoder_without_c_writes_the_same(arguments: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr("json.encoder.c_make_encoder")
        slow = _keys._make_chunks()
    assert "".join(slow(arguments, 0)) == "".join(_keys._chunks(arguments, 0))
