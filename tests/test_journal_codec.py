"""What a journal keeps comes back exactly as it was, or is refused."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings, strategies as st

from executionkit._journal.codec import decode, encode, is_plain
from executionkit._llm import LLMResponse
from executionkit.calls import CallProblem, ErrorInfo, ToolCall, ToolResult
from executionkit.errors import (
    EvaluatorError,
    ExecutionKitError,
    JournalValueError,
    RateLimitError,
    RecordedError,
    ToolExecutionError,
    ToolTimeoutError,
)
from executionkit.types import PatternResult, TokenUsage, freeze

pytestmark = pytest.mark.req("journal.values")

ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
)
KEYS = st.text() | st.just("$") | st.integers() | st.tuples(st.integers())
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner)
        | st.frozensets(st.integers() | st.text())
        | st.sets(st.text())
    ),
    max_leaves=12,
)


def types_in(value: Any) -> Any:
    """The value with the type of each part: `1 == 1.0 == True` are three."""
    if isinstance(value, dict):
        return dict, [(types_in(k), types_in(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [types_in(item) for item in value]
    if isinstance(value, float):
        return float, math.copysign(1, value), value
    return type(value), value


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_json_like_values_come_back_with_their_types_and_order(value: Any) -> None:
    assert types_in(decode(encode(value))) == types_in(value)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_frozen_values_come_back_as_plain_ones(value: Any) -> None:
    assert freeze(decode(encode(freeze(value)))) == freeze(value)


@pytest.mark.parametrize(
    "value",
    [
        float("inf"),
        -0.0,
        10**400,
        {"$": "tuple", "v": [1]},
        {"$": {"$": 1}},
        {1: "a", "1": "b"},
        Decimal("1.10"),
        UUID(int=7),
        date(2026, 1, 2),
        time(1, 2, 3, 4),
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-3))),
        datetime(2026, 1, 2),  # noqa: DTZ001 - this is the point
        TokenUsage(1, 2, 3, cache_read_tokens=4),
        ToolCall("1", "f", {"a": [1, {"b": (2,)}]}, idempotency_key="k"),
        CallProblem(call_id="1", name="f", message="bad", raw="{", position=3),
        PatternResult("x", 0.5, TokenUsage(1), {"messages": ({"role": "user"},)}),
    ],
    ids=repr,
)
def test_other_values_come_back_too(value: Any) -> None:
    again = decode(encode(value))
    assert types_in(again) == types_in(value)
    assert repr(again) == repr(value)


def test_nan_comes_back() -> None:
    assert math.isnan(decode(encode(float("nan"))))


def test_a_reply_comes_back_whole_but_for_what_was_received() -> None:
    reply = LLMResponse(
        "text",
        (ToolCall("1", "f", {"a": 1}),),
        "tool_calls",
        {"prompt_tokens": 3, "nested": {"x": [1]}},
        object(),
        problems=(CallProblem(call_id="2", name="g", message="m"),),
        parts=({"type": "thinking", "thinking": "t"},),
        refusal="no",
        reasoning="r",
        model="m",
        id="i",
        notes=("n",),
        answered_by="b",
        besides=TokenUsage(1, 1, 1),
    )
    again = decode(encode(reply))
    assert again == replace(reply, raw=None)
    assert again.raw is None
    assert type(again.parts) is tuple


def test_a_result_comes_back_with_its_error() -> None:
    call = ToolCall("1", "f", {})
    failure = ToolResult.failure(call, ToolTimeoutError("f", 3.0), duration=1.5)
    again = decode(encode(failure))
    assert again == failure
    assert type(again.exception) is ToolTimeoutError
    assert again.error_info == ErrorInfo.from_exception(ToolTimeoutError("f", 3.0))
    assert decode(encode(ToolResult("f", {"a": (1,)}, warnings=("w",)))) == ToolResult(
        "f", {"a": (1,)}, warnings=("w",)
    )


@dataclass
class Own:
    x: int


class OwnError(Exception):
    """A failure of a user's own."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where = where


class TestWhatCannotBeKept:
    @pytest.mark.parametrize(
        ("value", "where"),
        [
            (object(), "value is a builtins.object"),
            (
                [1, {"a": Own(1)}],
                r"value\[1\]\['a'\] is a tests\.test_journal_codec\.Own",
            ),
            ({Own: 1}, "a key of value"),
            (ToolResult("f", Own(1)), r"value\.result is"),
            (PatternResult(open), r"value\.value is"),
            (OrderedDict(a=1), "collections.OrderedDict"),
            (datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")), "datetime"),
            (1j, "complex"),
            (10**5000, "cannot be kept"),
        ],
        ids=lambda item: item if isinstance(item, str) else type(item).__name__,
    )
    def test_it_is_refused_and_the_place_named(self, value: Any, where: str) -> None:
        with pytest.raises(JournalValueError, match=where):
            encode(value)

    def test_so_is_what_has_no_end(self) -> None:
        value: list[Any] = []
        value.append(value)
        with pytest.raises(JournalValueError, match="nested too deep"):
            encode(value)

    @pytest.mark.parametrize(
        "text", ["", "{", '{"$":"Own","v":1}', '{"$":1}', '{"$":"TokenUsage","v":7}']
    )
    def test_a_text_that_is_none_of_ours_is_refused(self, text: str) -> None:
        with pytest.raises(JournalValueError, match="cannot be read"):
            decode(text)


class TestFailures:
    def test_ours_come_back_with_all_they_carry(self) -> None:
        error = RateLimitError("slow down", retry_after=2.5)
        error.cost = TokenUsage(1, 2, 3)
        error.attempts = 4
        error.retries_exhausted = True
        error.metadata = {"partial": [1, (2,)], "lost": object()}
        error.add_note("a note")
        error.__cause__ = ConnectionResetError(104, "reset")
        again = decode(encode(error))
        assert type(again) is RateLimitError
        assert str(again) == str(error)
        assert (again.cost, again.attempts, again.retry_after) == (
            error.cost,
            4,
            2.5,
        )
        assert again.retries_exhausted is True
        assert again.metadata == {"partial": [1, (2,)]}
        assert again.__notes__ == ["a note"]
        assert type(again.__cause__) is ConnectionResetError
        assert again.__cause__.args == (104, "reset")

    def test_those_of_tools_too(self) -> None:
        error = ToolExecutionError("f", ValueError("x"))
        again = decode(encode(error))
        assert type(again) is ToolExecutionError
        assert again.code is error.code
        assert again.details == error.details

    def test_a_type_of_ones_own_comes_back_when_it_is_loaded(self) -> None:
        again = decode(encode(OwnError("here", "why")))
        assert type(again) is OwnError
        assert (again.where, again.args) == ("here", ("here", "why"))

    @pytest.mark.parametrize(
        "error",
        [
            OwnError("here", object()),  # type: ignore[arg-type]
            type("Unknown", (Exception,), {"__module__": "nowhere"})("x"),
            type("Local", (Exception,), {})("x"),
        ],
        ids=["own type", "unknown module", "local class"],
    )
    def test_any_other_failure_comes_back_in_words(self, error: Exception) -> None:
        again = decode(encode(error))
        assert type(again) is RecordedError
        assert str(again) == str(error)
        assert again.error_type == type(error).__qualname__

    def test_no_code_but_that_of_an_exception_is_ever_reached(self) -> None:
        for name in ("os.system", "builtins.int", "builtins.SystemExit"):
            module, _, kind = name.rpartition(".")
            text = (
                f'{{"$":"error","v":{{"module":"{module}","type":"{kind}",'
                '"text":"t","args":["t"],"state":{}}}'
            )
            assert type(decode(text)) is RecordedError

    def test_a_state_that_cannot_be_kept_is_made_anew(self) -> None:
        error = EvaluatorError("bad")
        error.__dict__["cost"] = object()
        again = decode(encode(error))
        assert again.cost == TokenUsage()
        assert vars(again).keys() >= vars(ExecutionKitError()).keys()


def test_plain_is_what_reads_the_same_in_every_process() -> None:
    assert is_plain({"a": [1, 2.5, None, True, "x", freeze({"b": [1]})]})
    assert is_plain(MappingProxyType({"a": 1}))
    for value in ({1: 2}, {"a": {1, 2}}, [(1,)], b"x", Own(1)):
        assert not is_plain(value)
