"""Calls, problems with calls, results, and the text that a model reads."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit.calls import (
    CallProblem,
    ErrorInfo,
    ReturnOrder,
    ToolCall,
    ToolResult,
    ToolRunner,
    new_id,
    render_result,
)
from executionkit.errors import (
    ErrorCategory,
    ErrorCode,
    RateLimitError,
    ToolTimeoutError,
    ToolValidationError,
)
from executionkit.testing import FakeClock


class TestIds:
    def test_an_id_is_the_text_of_a_random_uuid(self) -> None:
        for _ in range(200):
            text = new_id()
            parsed = uuid.UUID(text)
            assert str(parsed) == text
            assert parsed.version == 4
            assert parsed.variant == uuid.RFC_4122

    def test_ids_do_not_repeat(self) -> None:
        assert len({new_id() for _ in range(1000)}) == 1000


class TestToolCall:
    def test_the_first_three_arguments_are_positional(self) -> None:
        call = ToolCall("c1", "search", {"q": "x"})
        assert (call.id, call.name, call.arguments) == ("c1", "search", {"q": "x"})
        assert (call.namespace, call.idempotency_key) == ("default", None)

    @pytest.mark.req("calls.tool-is-an-alias")
    def test_tool_is_another_spelling_of_name(self) -> None:
        call = ToolCall(tool="search")
        assert call.name == call.tool == "search"
        assert ToolCall("i", "search") == ToolCall("i", tool="search")
        assert ToolCall("i", "search", tool="search").name == "search"

    @pytest.mark.req("calls.tool-is-an-alias")
    def test_two_names_that_differ_are_refused(self) -> None:
        with pytest.raises(ValueError, match="`name` is 'a' but `tool` is 'b'"):
            ToolCall("i", "a", tool="b")

    def test_a_call_without_a_name_is_refused(self) -> None:
        with pytest.raises(ValueError, match="`name` of a tool call is empty"):
            ToolCall("i")

    @pytest.mark.req("TC-14")
    def test_a_missing_id_is_made_once(self) -> None:
        call = ToolCall(None, "t")
        assert str(uuid.UUID(call.id)) == call.id
        assert ToolCall(None, "t").id != call.id

    def test_its_arguments_work_as_keywords_and_are_read_only(self) -> None:
        given = {"a": [1]}
        call = ToolCall("i", "t", given)
        given["a"].append(2)
        assert dict(**call.arguments) == {"a": [1]}
        with pytest.raises(TypeError):
            call.arguments["a"].append(2)
        with pytest.raises(TypeError):
            call.arguments["b"] = 1  # type: ignore[index]

    def test_it_shows_as_a_call(self) -> None:
        assert str(ToolCall("i", "t")) == "ToolCall(t)"
        call = ToolCall("i", "t", {"a": 1, "b": "x"})
        assert str(call) == "ToolCall(t, a=1, b='x')"


class TestCallProblem:
    @pytest.mark.req("TC-02")
    def test_it_tells_the_model_what_was_wrong_with_a_piece_of_the_text(self) -> None:
        raw = '{"path": "' + "x" * 1000
        problem = CallProblem(
            call_id="c2",
            name="write",
            message="unterminated string",
            raw=raw,
            position=9,
        )
        text = problem.to_observation()
        assert "Tool 'write' was not run: unterminated string at character 9." in text
        assert "(1010 characters)" in text
        assert raw[:800] in text
        assert raw[:801] not in text
        assert problem.length == 1010
        assert problem.code is ErrorCode.TOOL_ARGUMENT_ERROR

    def test_a_length_that_is_known_already_is_kept(self) -> None:
        problem = CallProblem(call_id="c", name="t", message="m", raw="x", length=5000)
        assert problem.length == 5000

    def test_without_text_or_position_it_says_neither(self) -> None:
        text = CallProblem(
            call_id="c", name="t", message="no such tool"
        ).to_observation()
        assert "Received" not in text
        assert "at character" not in text


class Strange(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class TestErrorInfo:
    @pytest.mark.req("calls.classified-by-type")
    @pytest.mark.parametrize(
        ("error", "code", "retryable"),
        [
            (TimeoutError("late"), "TOOL_TIMEOUT", True),
            (ConnectionResetError("reset"), "TOOL_CONNECTION_FAILED", True),
            (ValueError("bad"), "TOOL_EXECUTION_FAILED", True),
            (KeyError("rate limit not found"), "TOOL_EXECUTION_FAILED", True),
            (asyncio.CancelledError(), "TOOL_CANCELLED", False),
            (ToolTimeoutError("t", 1.0), "TOOL_TIMEOUT", True),
            (ToolValidationError("t", "x"), "TOOL_VALIDATION_ERROR", False),
            (RateLimitError("x", retry_after=0.5), "LLM_RATE_LIMITED", True),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_an_exception_is_classified_by_its_type_never_by_its_text(
        self, error: BaseException, code: str, retryable: bool
    ) -> None:
        info = ErrorInfo.from_exception(error)
        assert info.code == code
        assert info.retryable is retryable

    def test_a_foreign_exception_is_named(self) -> None:
        info = ErrorInfo.from_exception(ValueError())
        assert info.message == "ValueError"
        assert info.details == {"type": "ValueError"}
        assert ErrorInfo.from_exception(Strange()).message == "Strange"

    def test_an_error_of_ours_keeps_its_details_and_its_wait(self) -> None:
        info = ErrorInfo.from_exception(ToolTimeoutError("t", 1.0, 2))
        assert info.details == {"tool_name": "t", "timeout": 1.0, "attempts": 2}
        limited = ErrorInfo.from_exception(RateLimitError("x", retry_after=0.5))
        assert limited.retry_after_ms == 500
        assert limited.details == {}
        assert (
            ErrorInfo.from_exception(RateLimitError(retry_after=-1)).retry_after_ms == 0
        )

    @pytest.mark.parametrize("code", ErrorCode)
    def test_a_code_brings_its_category_and_verdict(self, code: ErrorCode) -> None:
        info = ErrorInfo.from_code(code, "m", {"a": [1]})
        assert info.to_dict() == {
            "code": code.value,
            "category": info.category.value,
            "message": "m",
            "retryable": info.retryable,
            "retry_after_ms": None,
            "details": {"a": [1]},
        }
        assert json.dumps(info.to_dict())

    def test_a_negative_wait_is_refused(self) -> None:
        with pytest.raises(ValueError, match="`retry_after_ms` must be >= 0, got -1"):
            ErrorInfo(
                ErrorCode.TOOL_TIMEOUT, ErrorCategory.TIMEOUT, "m", retry_after_ms=-1
            )


class TestToolResult:
    @pytest.mark.req("calls.error-and-info-agree")
    def test_an_error_text_brings_an_info(self) -> None:
        result = ToolResult("t", error="broken")
        assert result.error_info == ErrorInfo.from_code(
            ErrorCode.TOOL_EXECUTION_FAILED, "broken"
        )
        assert not result.is_success
        assert result.error_code is ErrorCode.TOOL_EXECUTION_FAILED
        assert result.error_category is ErrorCategory.EXECUTION

    @pytest.mark.req("calls.error-and-info-agree")
    def test_an_info_brings_an_error_text(self) -> None:
        info = ErrorInfo.from_code(ErrorCode.TOOL_NOT_FOUND, "no such tool")
        result = ToolResult("t", error_info=info)
        assert result.error == "no such tool"
        assert result.retryable is False
        assert result.retry_after_ms is None

    @pytest.mark.req("calls.error-and-info-agree")
    def test_an_empty_error_text_is_still_an_error(self) -> None:
        result = ToolResult("t", error="")
        assert not result.is_success
        assert result.error_info is not None

    def test_a_success_has_neither(self) -> None:
        result = ToolResult("t", 1)
        assert result.is_success
        assert result.error_info is None
        assert result.error_code is None
        assert result.error_category is None
        assert result.retry_after_ms is None
        assert result.retryable

    def test_a_result_without_a_tool_is_refused(self) -> None:
        with pytest.raises(ValueError, match="`tool` of a result is empty"):
            ToolResult("")

    @pytest.mark.req("values.deeply-read-only", "D-33")
    def test_a_result_that_is_shared_cannot_be_changed(self) -> None:
        value = {"rows": [1]}
        result = ToolResult("t", value)
        value["rows"].append(2)
        assert result.result == {"rows": [1]}
        with pytest.raises(TypeError):
            result.result["rows"].append(2)

    async def test_a_failure_is_made_from_an_exception(
        self, fake_clock: FakeClock
    ) -> None:
        error = ToolTimeoutError("t", 1.0)
        result = ToolResult.failure(
            ToolCall("c1", "t"), error, attempts=2, duration=1.5
        )
        assert result.call_id == "c1"
        assert result.exception is error
        assert result.attempts == 2
        assert result.error_code is ErrorCode.TOOL_TIMEOUT
        assert result.start_time == fake_clock.wall()
        assert result.end_time == result.start_time + 1.5

    def test_a_failure_is_made_from_an_info(self) -> None:
        info = ErrorInfo.from_code(ErrorCode.TOOL_CIRCUIT_OPEN, "open")
        result = ToolResult.failure(
            ToolCall("c", "t"), info, start_time=5.0, attempts=0
        )
        assert result.error_info is info
        assert result.exception is None
        assert (result.start_time, result.attempts) == (5.0, 0)

    def test_it_can_be_written_as_json(self) -> None:
        result = ToolResult(
            "t",
            {"a": (1, [2])},
            call_id="c",
            start_time=1.0,
            end_time=2.0,
            duration=1.0,
        )
        data = json.loads(json.dumps(result.to_dict()))
        assert data == {
            "call_id": "c",
            "tool": "t",
            "result": {"a": [1, [2]]},
            "error": None,
            "success": True,
            "start_time": "1970-01-01T00:00:01+00:00",
            "end_time": "1970-01-01T00:00:02+00:00",
            "duration": 1.0,
            "attempts": 1,
            "cached": False,
            "is_partial": False,
            "stream_id": None,
            "machine": "",
            "pid": 0,
            "warnings": [],
        }
        failed = ToolResult("t", error="x").to_dict()
        assert failed["success"] is False
        assert failed["start_time"] is None
        assert failed["error_info"]["code"] == "TOOL_EXECUTION_FAILED"

    def test_it_shows_in_one_line(self) -> None:
        assert str(ToolResult("t")) == "ToolResult(t, success, duration=0.000s)"
        assert str(ToolResult("t", error="x")) == (
            "ToolResult(t, error: x, duration=0.000s)"
        )

    def test_a_model_reads_the_error_or_the_result(self) -> None:
        assert ToolResult("t", error="x").to_observation() == "x"
        assert ToolResult("t", {"a": 1}).to_observation() == '{"a": 1}'

    @pytest.mark.req("values.pickle", "D-33")
    def test_it_survives_an_exception_that_cannot_be_pickled(self) -> None:
        class Local(Exception):
            pass

        result = ToolResult("t", error="x", exception=Local("x"))
        for twin in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
            assert twin == result
            assert twin.exception is None
        kept = pickle.loads(pickle.dumps(ToolResult("t", exception=ValueError("v"))))
        assert repr(kept.exception) == "ValueError('v')"


class TestRenderResult:
    @pytest.mark.req("TC-19")
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("22 C", "22 C"),
            ("", ""),
            (None, ""),
            ([{"type": "text", "text": "22 C"}], "22 C"),
            ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
            ([{"type": "output_text", "text": "a"}], "a"),
            ([{"type": "image", "data": "x"}], '[{"type": "image", "data": "x"}]'),
            ([{"type": "text"}], '[{"type": "text"}]'),
            ([], "[]"),
            ({}, "{}"),
            ({"a": [1, None, True]}, '{"a": [1, null, true]}'),
            (MappingProxyType({"a": MappingProxyType({"b": 1})}), '{"a": {"b": 1}}'),
            ((1, 2), "[1, 2]"),
            (3, "3"),
            (2**70, str(2**70)),
            (0.5, "0.5"),
            (False, "false"),
            ("Ærø", "Ærø"),
            ({"k": "Ærø"}, '{"k": "Ærø"}'),
        ],
        ids=repr,
    )
    def test_a_value_becomes_the_text_a_model_should_read(
        self, value: Any, text: str
    ) -> None:
        assert render_result(value) == text
        assert ToolResult("t", value).to_observation() == text

    @pytest.mark.req("TX-15")
    @pytest.mark.parametrize(
        "value",
        [
            dict,
            len,
            pytest.param(object(), id="object"),
            {1, 2},
            float("nan"),
            {"a": float("inf")},
            {"a": b"x"},
        ],
        ids=repr,
    )
    def test_what_is_not_json_is_a_type_error(self, value: Any) -> None:
        with pytest.raises(TypeError):
            render_result(value)

    @pytest.mark.req("TX-15")
    def test_a_cycle_and_endless_nesting_are_type_errors(self) -> None:
        cycle: list[Any] = []
        cycle.append(cycle)
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        for value in (cycle, deep):
            with pytest.raises(TypeError, match="a list cannot be written as JSON"):
                render_result(value)

    def test_the_message_names_the_type_and_the_remedy(self) -> None:
        with pytest.raises(TypeError, match=r"a set cannot be written.*return text"):
            render_result({"a": {1}})

    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False)
            | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=10,
        ).filter(lambda v: isinstance(v, (dict, int, float)))
    )
    def test_json_can_be_read_back(self, value: Any) -> None:
        try:
            text = render_result(value)
        except TypeError:
            assert "inf" in repr(value)
        else:
            assert json.loads(text) == value


def test_the_orders_have_the_documented_names() -> None:
    assert ReturnOrder("completion") is ReturnOrder.COMPLETION
    assert ReturnOrder("submission") is ReturnOrder.SUBMISSION
    with pytest.raises(ValueError, match="`return_order` must be"):
        ReturnOrder("random")


def test_a_runner_is_whatever_has_its_two_methods() -> None:
    class Runner:
        async def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
            return []

        async def run_calls(self, calls: Sequence[ToolCall]) -> Sequence[ToolResult]:
            return [ToolResult(call.name, call_id=call.id) for call in calls]

    assert isinstance(Runner(), ToolRunner)
    assert not isinstance(object(), ToolRunner)
