"""The error tree: codes, categories, messages, and the way through a pickle."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import executionkit
from executionkit import errors
from executionkit.calls import ErrorInfo
from executionkit.errors import (
    ERROR_CODE_TO_CATEGORY,
    NON_RETRYABLE_CATEGORIES,
    RETRYABLE_CATEGORIES,
    BadResponseError,
    BulkheadFullError,
    BulkheadLimitType,
    ErrorCategory,
    ErrorCode,
    ExecutionKitError,
    LLMError,
    MCPConnectionError,
    MCPError,
    MCPTimeoutError,
    MissingExtraError,
    ParserError,
    PatternError,
    PermanentError,
    ProviderError,
    RateLimitError,
    StreamError,
    ToolCircuitOpenError,
    ToolExecutionError,
    ToolIdempotencyError,
    ToolNotFoundError,
    ToolProcessorError,
    ToolRateLimitedError,
    ToolReentrantError,
    ToolTimeoutError,
    ToolValidationError,
    get_category_for_code,
    is_retryable_category,
    require,
)
from executionkit.mcp._server.exchange import InputRequiredError
from executionkit.tools.strategies import RemoteToolError, SerializationError
from executionkit.types import TokenUsage

# How to make those that want more than a message.
MAKERS: dict[str, Callable[[], ExecutionKitError]] = {
    "BulkheadFullError": lambda: BulkheadFullError("t", "ns", limit=3, timeout=0.5),
    "MCPConnectionError": lambda: MCPConnectionError("s", "gone"),
    "MCPError": lambda: MCPError("s", "bad", {"a": 1}),
    "MCPTimeoutError": lambda: MCPTimeoutError("s", "tools/call", 5.0),
    "ParserError": lambda: ParserError("bad", "xml", "<tool>"),
    "RateLimitError": lambda: RateLimitError("m", retry_after=7.5),
    "InputRequiredError": lambda: InputRequiredError({"a": {"b": 1}}, "state"),
    "RemoteToolError": lambda: RemoteToolError("t", "lib.OddError", "x"),
    "SerializationError": lambda: SerializationError("t", "result", "a lock"),
    "StreamError": lambda: StreamError("m", partial_text="half"),
    "ToolCircuitOpenError": lambda: ToolCircuitOpenError("t", 5, 30.0),
    "ToolExecutionError": lambda: ToolExecutionError("t", ValueError("x")),
    "ToolIdempotencyError": lambda: ToolIdempotencyError("t", "k", "conflict", "is"),
    "ToolReentrantError": lambda: ToolReentrantError("t"),
    "ToolNotFoundError": lambda: ToolNotFoundError("t", available_tools=["tt"]),
    "ToolRateLimitedError": lambda: ToolRateLimitedError("t", 1.5, 10, 60.0),
    "ToolTimeoutError": lambda: ToolTimeoutError("t", 2.0, 3),
    "ToolValidationError": lambda: ToolValidationError("t", ["`a` is missing"]),
}


def tree() -> list[type[ExecutionKitError]]:
    for info in pkgutil.walk_packages(executionkit.__path__, "executionkit."):
        if not info.name.endswith(".__main__"):
            try:
                importlib.import_module(info.name)
            except Exception:
                continue  # test_exports.py fails on it, or knows the extra that it needs

    def below(cls: type[ExecutionKitError]) -> Iterator[type[ExecutionKitError]]:
        if cls.__module__.startswith("executionkit"):
            yield cls
            for child in cls.__subclasses__():
                yield from below(child)

    return sorted(set(below(ExecutionKitError)), key=lambda cls: cls.__name__)


def make(cls: type[ExecutionKitError]) -> ExecutionKitError:
    maker = MAKERS.get(cls.__name__)
    return maker() if maker is not None else cls("what happened")


every_error = pytest.mark.parametrize("cls", tree())


class TestTree:
    @pytest.mark.req("errors.one-tree")
    @every_error
    def test_every_error_has_a_code_with_a_category(
        self, cls: type[ExecutionKitError]
    ) -> None:
        error = make(cls)
        assert isinstance(error.code, ErrorCode)
        assert error.category is ERROR_CODE_TO_CATEGORY[error.code]
        assert error.retryable is (error.category in RETRYABLE_CATEGORIES)
        assert error.cost == TokenUsage()
        assert error.metadata == {} or isinstance(error.metadata, dict)
        assert error.attempts >= 0
        assert error.retries_exhausted is False
        assert error.message == str(error)
        assert str(error)

    @pytest.mark.req("errors.pickle")
    @every_error
    @pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
    def test_every_error_survives_pickling_with_all_it_carries(
        self, cls: type[ExecutionKitError], protocol: int
    ) -> None:
        error = make(cls)
        error.cost = TokenUsage(1, 2, 3)
        error.metadata = {"partial": ["a"]}
        error.attempts = 4
        error.retries_exhausted = True
        error.retry_after = 2.5
        error.add_note("a note")
        twin = pickle.loads(pickle.dumps(error, protocol))
        assert type(twin) is cls
        assert str(twin) == str(error)
        assert twin.code is error.code
        assert twin.cost == TokenUsage(1, 2, 3)
        assert twin.metadata == {"partial": ["a"]}
        assert twin.attempts == 4
        assert twin.retries_exhausted is True
        assert twin.retry_after == 2.5
        assert twin.__notes__ == ["a note"]
        assert vars(twin).keys() == vars(error).keys()

    @pytest.mark.req("errors.pickle", "D-28")
    @every_error
    def test_every_error_can_be_copied(self, cls: type[ExecutionKitError]) -> None:
        error = make(cls)
        for twin in (copy.copy(error), copy.deepcopy(error)):
            assert type(twin) is cls
            assert str(twin) == str(error)
        shallow = copy.copy(error)
        shallow.cost = TokenUsage(9, 9, 9)
        assert error.cost == TokenUsage()

    @pytest.mark.req("errors.pickle", "D-28")
    def test_an_error_of_a_user_with_its_own_arguments_survives_too(self) -> None:
        error = OwnError("where", "why")
        error.cost = TokenUsage(1)
        for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(twin) is OwnError
            assert (twin.place, str(twin), twin.cost.input_tokens) == (
                "where",
                "why at where",
                1,
            )

    def test_every_error_is_importable_from_one_module(self) -> None:
        modules = ("executionkit.errors", "executionkit._error", "executionkit._tool")
        ours = {c.__name__ for c in tree() if c.__module__.startswith(modules)}
        assert ours <= set(errors.__all__)
        assert ours <= set((errors.__doc__ or "").replace("`-", "").split())

    def test_the_drawing_shows_the_real_tree(self) -> None:
        drawing = (errors.__doc__ or "").split("```text")[1].split("```")[0]
        parents: dict[int, str] = {}
        for line in drawing.strip().splitlines():
            name = line.lstrip(" |-`").split()[0]
            depth = len(line) - len(line.lstrip(" |-`"))
            parents[depth] = name
            if depth:
                base = max(d for d in parents if d < depth)
                assert getattr(errors, parents[base]) in getattr(errors, name).__bases__
            parents = {d: n for d, n in parents.items() if d <= depth}

    def test_model_pattern_and_tool_errors_have_their_branches(self) -> None:
        assert issubclass(ProviderError, LLMError)
        assert issubclass(RateLimitError, LLMError)
        assert not issubclass(RateLimitError, ProviderError)
        assert not issubclass(PermanentError, ProviderError)
        assert issubclass(ToolTimeoutError, ToolProcessorError)
        assert not issubclass(ToolProcessorError, (LLMError, PatternError))


class OwnError(PatternError):
    """What a user may write: other arguments than ours."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{why} at {place}")
        self.place = place


class TestCodes:
    @pytest.mark.req("errors.codes")
    def test_the_value_of_a_code_is_its_name(self) -> None:
        for code in ErrorCode:
            assert code.value == code.name

    @pytest.mark.req("errors.codes")
    def test_every_code_has_a_category_and_every_category_a_verdict(self) -> None:
        assert set(ERROR_CODE_TO_CATEGORY) == set(ErrorCode)
        assert set(ErrorCategory) == RETRYABLE_CATEGORIES | NON_RETRYABLE_CATEGORIES
        assert not RETRYABLE_CATEGORIES & NON_RETRYABLE_CATEGORIES

    @pytest.mark.req("errors.codes")
    @pytest.mark.parametrize(
        ("category", "retryable", "codes"),
        [
            ("rate_limit", True, "TOOL_RATE_LIMITED"),
            ("circuit_open", True, "TOOL_CIRCUIT_OPEN"),
            ("bulkhead_full", True, "BULKHEAD_FULL RESOURCE_EXHAUSTED"),
            ("timeout", True, "TOOL_TIMEOUT MCP_TIMEOUT"),
            ("execution", True, "TOOL_EXECUTION_FAILED MCP_SERVER_ERROR"),
            (
                "connection",
                True,
                "TOOL_CONNECTION_FAILED MCP_CONNECTION_FAILED MCP_TRANSPORT_ERROR "
                "STATE_STORE_FAILED",
            ),
            (
                "validation",
                False,
                "TOOL_VALIDATION_ERROR TOOL_ARGUMENT_ERROR TOOL_RESULT_ERROR "
                "PARSER_ERROR PARSER_INVALID_FORMAT TOOL_IDEMPOTENCY_CONFLICT "
                "TOOL_REENTRANT",
            ),
            ("not_found", False, "TOOL_NOT_FOUND"),
            ("cancelled", False, "TOOL_CANCELLED"),
            ("policy", False, "TOOL_BLOCKED"),
            ("configuration", False, "TOOL_REGISTRATION_FAILED CONFIGURATION_ERROR"),
        ],
    )
    def test_the_tool_codes_have_the_documented_categories(
        self, category: str, retryable: bool, codes: str
    ) -> None:
        for name in codes.split():
            assert get_category_for_code(ErrorCode(name)) == category
        assert is_retryable_category(ErrorCategory(category)) is retryable

    def test_the_table_cannot_be_changed(self) -> None:
        with pytest.raises(TypeError):
            ERROR_CODE_TO_CATEGORY[ErrorCode.LLM_ERROR] = ErrorCategory.TIMEOUT  # type: ignore[index]

    def test_a_plain_error_of_ours_is_not_tried_again(self) -> None:
        assert not ExecutionKitError("x").retryable
        assert not PatternError("x").retryable


class TestModelSide:
    def test_an_error_carries_cost_and_metadata(self) -> None:
        facts = {"partial": 1}
        error = PermanentError("no", cost=TokenUsage(1, 2, 3), metadata=facts)
        facts["partial"] = 2
        assert error.cost == TokenUsage(1, 2, 3)
        assert error.metadata == {"partial": 1}

    def test_a_rate_limit_waits_one_second_unless_told_otherwise(self) -> None:
        assert RateLimitError("x").retry_after == 1.0
        assert RateLimitError("x", retry_after=0.25).retry_after == 0.25
        assert RateLimitError("x", retry_after_known=False).retry_after_known is False

    def test_a_stream_error_keeps_the_text_so_far(self) -> None:
        assert StreamError("x", partial_text="half").partial_text == "half"

    def test_a_bad_response_is_tried_again_once_at_most(self) -> None:
        assert BadResponseError.retry_limit == 1
        assert ProviderError.retry_limit is None


class TestToolSide:
    def test_it_tells_all_as_json_like_data(self) -> None:
        error = ToolProcessorError(
            "m", ErrorCode.TOOL_TIMEOUT, {"a": 1}, ValueError("x"), 1500.4
        )
        assert error.to_dict() == {
            "error": "ToolProcessorError",
            "code": "TOOL_TIMEOUT",
            "category": "timeout",
            "message": "m",
            "retryable": True,
            "retry_after_ms": 1500,
            "details": {"a": 1},
        }
        assert error.retry_after == pytest.approx(1.5004)
        assert ToolProcessorError("m").retry_after_ms is None

    @pytest.mark.parametrize(
        ("error", "message", "details"),
        [
            (
                ToolNotFoundError("get_weathr", "w", ["get_weather", "x"], ["w"]),
                "Tool 'get_weathr' not found in namespace 'w'; "
                "did you mean 'get_weather'?",
                {
                    "tool_name": "get_weathr",
                    "namespace": "w",
                    "available_tools": ["get_weather", "x"],
                    "available_namespaces": ["w"],
                    "suggestions": ["get_weather"],
                },
            ),
            (
                ToolExecutionError("t", KeyError("k"), {"a": 1}),
                "Tool 't' failed: KeyError: 'k'",
                {"tool_name": "t", "a": 1},
            ),
            (
                ToolExecutionError("t"),
                "Tool 't' failed: unknown error",
                {"tool_name": "t"},
            ),
            (
                ToolTimeoutError("t", 2.5, 3),
                "Tool 't' timed out after 2.5s (attempts: 3)",
                {"tool_name": "t", "timeout": 2.5, "attempts": 3},
            ),
            (
                ToolValidationError("t", ["bad"], "result"),
                "Tool 't' result are not valid: ['bad']",
                {"tool_name": "t", "validation_type": "result", "errors": ["bad"]},
            ),
            (
                ParserError("m", "xml", "x" * 201),
                "m",
                {"parser_name": "xml", "input_sample": "x" * 200 + "..."},
            ),
            (
                ToolRateLimitedError("t", 1.5, 10, 60.0),
                "Tool 't' is rate limited (10 per 60.0s); next permit in 1.500s",
                {"tool_name": "t", "limit": 10, "period": 60.0, "retry_after_ms": 1500},
            ),
            (
                ToolCircuitOpenError("t", 5, 30.0),
                "Tool 't' circuit breaker is open (failures: 5) (reset in 30.0s)",
                {
                    "tool_name": "t",
                    "failure_count": 5,
                    "reset_timeout": 30.0,
                    "retry_after_ms": 30000,
                },
            ),
            (
                BulkheadFullError("t", "ns", BulkheadLimitType.GLOBAL, 3, 0.5),
                "Bulkhead full for 't': global limit (3) reached after waiting 0.5s",
                {
                    "tool_name": "t",
                    "namespace": "ns",
                    "limit_type": "global",
                    "limit": 3,
                    "timeout": 0.5,
                },
            ),
            (
                MCPTimeoutError("s", "tools/call", 5.0),
                "MCP server 's': tools/call timed out after 5.0s",
                {
                    "server_name": "s",
                    "reason": "tools/call timed out after 5.0s",
                    "operation": "tools/call",
                    "timeout": 5.0,
                },
            ),
            (
                MCPError("s"),
                "MCP server 's': error",
                {"server_name": "s", "reason": ""},
            ),
        ],
        ids=lambda value: type(value).__name__,
    )
    @pytest.mark.req("errors.tool-details")
    def test_message_and_details_say_what_happened(
        self, error: ToolProcessorError, message: str, details: dict[str, Any]
    ) -> None:
        assert str(error) == message
        assert error.details == details

    def test_at_most_three_close_names_are_suggested(self) -> None:
        error = ToolNotFoundError(
            "tool", available_tools=[f"tool{i}" for i in range(9)]
        )
        assert len(error.details["suggestions"]) == 3

    def test_a_wait_is_known_in_seconds_and_milliseconds(self) -> None:
        error = ToolRateLimitedError("t", 1.5)
        assert (error.retry_after, error.retry_after_ms) == (1.5, 1500)
        assert ToolRateLimitedError("t").retry_after is None
        assert str(ToolRateLimitedError("t", 1.5)) == (
            "Tool 't' is rate limited; next permit in 1.500s"
        )

    def test_the_number_of_attempts_is_kept(self) -> None:
        assert ToolTimeoutError("t", 1.0, attempts=4).attempts == 4

    @pytest.mark.req("errors.pickle")
    def test_an_original_error_that_cannot_be_pickled_is_left_behind(self) -> None:
        for original in (Picky(1, 2), Locked()):
            error = ToolExecutionError("t", original)
            twin = pickle.loads(pickle.dumps(error))
            assert twin.original_error is None
            assert str(twin) == str(error)
            assert error.original_error is original

    def test_an_original_error_without_words_is_named_by_its_type(self) -> None:
        assert str(ToolExecutionError("t", Mute())) == "Tool 't' failed: Mute: Mute"


class Picky(Exception):
    """Pickles, and cannot be read back: it keeps other arguments than it takes."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__("picky")


class Locked(Exception):
    """Cannot be pickled at all."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.function = lambda: None


class Mute(Exception):
    """Fails when asked for its words."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class TestRequire:
    def test_it_imports_what_is_there(self) -> None:
        import json

        assert require("json", extra="x") is json
        assert inspect.ismodule(require("os.path", extra="x"))

    @pytest.mark.req("errors.missing-extra")
    def test_it_says_how_to_install_what_is_not(self) -> None:
        with pytest.raises(MissingExtraError) as caught:
            require("no_such_module_of_ours.part", extra="redis")
        assert str(caught.value) == (
            "`no_such_module_of_ours.part` is not installed; "
            "run: pip install 'executionkit[redis]'"
        )
        assert caught.value.extra == "redis"
        assert isinstance(caught.value, ImportError)
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)

    @pytest.mark.req("errors.missing-extra")
    def test_it_tells_a_missing_package_from_one_that_lacks_its_own(
        self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "half_installed.py").write_text("import not_there_at_all\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(MissingExtraError, match="needs `not_there_at_all`, which"):
            require("half_installed", extra="x")

    def test_an_error_inside_of_a_package_is_not_hidden(
        self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "broken_inside.py").write_text("1 / 0\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ZeroDivisionError):
            require("broken_inside", extra="x")

    def test_a_missing_extra_is_not_tried_again(self) -> None:
        assert not MissingExtraError("x", extra="y").retryable


@pytest.mark.req("retry.final-error")
def test_the_text_counts_requests_when_there_were_several() -> None:
    error = ProviderError("down")
    for attempts, text in ((0, "down"), (1, "down"), (4, "down (requests sent: 4)")):
        error.attempts = attempts
        assert (str(error), error.message) == (text, "down")
    assert str(pickle.loads(pickle.dumps(error))) == "down (requests sent: 4)"
    tool = ToolTimeoutError("slow", 3.0, 4)
    tool.attempts = 4
    assert "requests" not in str(tool)


@pytest.mark.req("errors.tool-details")
def test_a_tool_error_becomes_the_info_of_a_result() -> None:
    error = ToolProcessorError("no", ErrorCode.TOOL_TIMEOUT, {"a": 1}, None, 250)
    info = error.to_error_info()
    assert info == ErrorInfo.from_exception(error)
    assert (info.code, info.message, info.retry_after_ms) == (
        ErrorCode.TOOL_TIMEOUT,
        "no",
        250,
    )
    assert dict(info.details) == {"a": 1}


@pytest.mark.req("retry.final-error")
def test_an_error_without_words_is_called_by_its_type() -> None:
    error = ProviderError()
    assert str(error) == ""
    error.attempts = 2
    assert str(error) == "ProviderError (requests sent: 2)"
