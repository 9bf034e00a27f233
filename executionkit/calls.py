"""What a tool call is, what comes back, and who runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from types import NoneType
from typing import Any, NoReturn, Protocol, runtime_checkable

from executionkit._clock import get_clock
from executionkit._constants import MAX_PROBLEM_CHARS
from executionkit._error_base import portable
from executionkit._error_codes import ErrorCategory, ErrorCode
from executionkit._error_info import ErrorInfo
from executionkit._frozen import freeze, freeze_mapping, sealed, thaw
from executionkit._ids import new_id
from executionkit._keys import idempotency_key
from executionkit._render import render_result

__all__ = (
    "CallProblem",
    "ErrorInfo",
    "ReturnOrder",
    "ToolCall",
    "ToolResult",
    "ToolRunner",
    "make_result",
    "new_id",
    "render_result",
)


def _check_kinds(name: object, arguments: object) -> None:
    if type(arguments) is dict and type(name) is str:
        return
    if not isinstance(name, str):
        msg = f"`name` of a tool call must be a text, got {name!r:.60}"
        raise TypeError(msg)
    if arguments is not None and not isinstance(arguments, Mapping):
        msg = f"`arguments` of a tool call must be a dict, got {arguments!r:.60}"
        raise TypeError(msg)


class ReturnOrder(StrEnum):
    """The order in which results of a batch come back."""

    COMPLETION = "completion"
    """As they finish."""

    SUBMISSION = "submission"
    """As the calls were given."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        msg = f"`return_order` must be 'completion' or 'submission', got {value!r:.80}"
        raise ValueError(msg)


@sealed
@dataclass(frozen=True, slots=True, init=False)
class ToolCall:
    """A request to run one tool.

    Args:
        id: The call's id; pairs the result with the call. None = a new one.
        name: The tool's name; `namespace.name` when it lives in a namespace.
        arguments: The arguments, kept deeply read-only.
        tool: Another spelling of `name`.
        namespace: The namespace when `name` does not say it.
        idempotency_key: Two calls with one key are one effect.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    namespace: str
    idempotency_key: str | None

    def __init__(
        self,
        id: str | None = None,  # noqa: A002 - the wire's own word
        name: str = "",
        arguments: Mapping[str, Any] | None = None,
        *,
        tool: str = "",
        namespace: str = "default",
        idempotency_key: str | None = None,
    ) -> None:
        chosen = name or tool
        if not chosen:
            msg = "`name` of a tool call is empty; give the tool's name"
            raise ValueError(msg)
        if name and tool and name != tool:
            msg = f"`name` is {name!r} but `tool` is {tool!r}; give one of them"
            raise ValueError(msg)
        _check_kinds(chosen, arguments)
        put = object.__setattr__
        put(self, "id", new_id() if id is None else id)
        put(self, "name", chosen)
        put(self, "arguments", freeze_mapping(arguments))
        put(self, "namespace", namespace)
        put(self, "idempotency_key", idempotency_key)

    @property
    def tool(self) -> str:
        """Another spelling of `name`."""
        return self.name

    def get_idempotency_key(self) -> str | None:
        """SHA-256 of name, namespace and arguments, 64 hex digits; the id is left out.

        None when an argument has no canonical form.
        """
        return idempotency_key(self)

    def to_dict(self) -> dict[str, Any]:
        """The call as JSON-like data; `ToolCall.from_dict` is the way back."""
        return {
            "id": self.id,
            "tool": self.name,
            "namespace": self.namespace,
            "arguments": thaw(self.arguments),
            "idempotency_key": self.idempotency_key,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ToolCall:
        """The call that `to_dict` wrote; other keys are left alone."""
        return cls(
            data.get("id"),
            data.get("name") or data.get("tool") or "",
            data.get("arguments"),
            namespace=data.get("namespace") or "default",
            idempotency_key=data.get("idempotency_key"),
        )

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        return f"ToolCall({self.name}{', ' if shown else ''}{shown})"


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class CallProblem:
    """A tool call that the model made and that cannot be run as it stands.

    It is never run with guessed arguments; the model is told instead.
    """

    call_id: str
    """The call's own id, so that the answer can be paired with it."""

    name: str
    """The tool's name as the model wrote it; empty when it wrote none."""

    message: str
    """Why it cannot be run, in words for the model."""

    raw: str = ""
    """The unreadable text, at most 800 characters of it."""

    length: int = 0
    """The full length of that text in characters."""

    position: int | None = None
    """Where reading failed, in characters from the start."""

    index: int = 0
    """The place among the calls of the same reply, from 0."""

    code: ErrorCode = ErrorCode.TOOL_ARGUMENT_ERROR

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", max(self.length, len(self.raw)))
        object.__setattr__(self, "raw", self.raw[:MAX_PROBLEM_CHARS])

    def to_observation(self) -> str:
        """The text that tells the model what was wrong with its call."""
        where = "" if self.position is None else f" at character {self.position}"
        shown = f" Received ({self.length} characters): {self.raw}" if self.raw else ""
        return (
            f"Tool '{self.name}' was not run: {self.message}{where}.{shown} "
            "Call it again with a complete JSON object as arguments."
        )


@sealed
@dataclass(frozen=True, slots=True)
class ToolResult:
    """What one tool call came to: a result, or an error.

    `error` and `error_info` go together: each is derived from the other when only one
    is given. `start_time` and `end_time` are wall-clock seconds since 1970-01-01 UTC; 0.0 when
    the call never started.
    """

    tool: str
    result: Any = None
    error: str | None = None
    call_id: str | None = None
    error_info: ErrorInfo | None = None
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """What the tool really raised. Left out of a pickle that it would break."""

    start_time: float = 0.0
    end_time: float = 0.0
    duration: float = 0.0
    """Seconds on the monotonic clock."""

    attempts: int = 1
    """How often the tool was started; 0 = never."""

    cached: bool = False
    is_partial: bool = False
    stream_id: str | None = None
    machine: str = ""
    pid: int = 0
    warnings: tuple[str, ...] = ()
    """What the runtime mended or guards warned of, in words."""

    def __post_init__(self) -> None:
        if not self.tool:
            msg = "`tool` of a result is empty; give the tool's name"
            raise ValueError(msg)
        if self.error is None and self.error_info is not None:
            object.__setattr__(self, "error", self.error_info.message)
        elif self.error is not None and self.error_info is None:
            code = ErrorCode.TOOL_EXECUTION_FAILED
            info = ErrorInfo.from_code(code, self.error)
            object.__setattr__(self, "error_info", info)
        object.__setattr__(self, "result", freeze(self.result))

    def __getstate__(self) -> list[Any]:
        state = [getattr(self, item.name) for item in fields(self)]
        return [portable(v) if isinstance(v, BaseException) else v for v in state]

    @property
    def is_success(self) -> bool:
        """True when there is no error."""
        return self.error is None

    @property
    def error_code(self) -> ErrorCode | None:
        return None if self.error_info is None else self.error_info.code

    @property
    def error_category(self) -> ErrorCategory | None:
        return None if self.error_info is None else self.error_info.category

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later; True when there is no error."""
        return self.error_info is None or self.error_info.retryable

    @property
    def retry_after_ms(self) -> int | None:
        return None if self.error_info is None else self.error_info.retry_after_ms

    @classmethod
    def failure(
        cls,
        call: ToolCall,
        error: BaseException | ErrorInfo,
        *,
        attempts: int = 1,
        start_time: float | None = None,
        duration: float = 0.0,
    ) -> ToolResult:
        """The failed result of `call`."""
        raised = None if isinstance(error, ErrorInfo) else error
        info = (
            error if isinstance(error, ErrorInfo) else ErrorInfo.from_exception(error)
        )
        began = get_clock().wall() if start_time is None else start_time
        return cls(
            tool=call.name,
            error=info.message,
            call_id=call.id,
            error_info=info,
            exception=raised,
            start_time=began,
            end_time=began + duration,
            duration=duration,
            attempts=attempts,
        )

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-like data (times in ISO 8601, UTC)."""
        data: dict[str, Any] = {
            "call_id": self.call_id,
            "tool": self.tool,
            "result": thaw(self.result),
            "error": self.error,
            "success": self.is_success,
            "start_time": _iso(self.start_time),
            "end_time": _iso(self.end_time),
            "duration": self.duration,
            "attempts": self.attempts,
            "cached": self.cached,
            "is_partial": self.is_partial,
            "stream_id": self.stream_id,
            "machine": self.machine,
            "pid": self.pid,
            "warnings": list(self.warnings),
        }
        if self.error_info is not None:
            data["error_info"] = self.error_info.to_dict()
        return data

    def to_observation(self) -> str:
        """The text a model should read: the result as text, or the error."""
        if self.error is not None:
            return self.error
        return render_result(self.result)

    def __str__(self) -> str:
        state = "success" if self.error is None else f"error: {self.error}"
        return f"ToolResult({self.tool}, {state}, duration={self.duration:.3f}s)"


class _Draft:
    """A `ToolResult` in the making: the same slots, and open.

    Filling it and giving it its real class costs a tenth of the frozen constructor,
    which has to go through `object.__setattr__` for each of its fields.
    """

    __slots__ = tuple(item.name for item in fields(ToolResult))


_ATOMS = frozenset({str, int, float, bool, NoneType})


def make_result(  # noqa: PLR0913, PLR0917 - the fields of a result
    call: ToolCall,
    value: Any,
    start_time: float = 0.0,
    duration: float = 0.0,
    attempts: int = 1,
    cached: bool = False,  # noqa: FBT001, FBT002 - names cost time here
    machine: str = "",
    pid: int = 0,
    warnings: tuple[str, ...] = (),
) -> ToolResult:
    """The successful result of `call`; the same as the constructor, and quicker."""
    draft: Any = _Draft()
    draft.tool = call.name
    draft.result = value if type(value) in _ATOMS else freeze(value)
    draft.error = None
    draft.call_id = call.id
    draft.error_info = None
    draft.exception = None
    draft.start_time = start_time
    draft.end_time = start_time + duration
    draft.duration = duration
    draft.attempts = attempts
    draft.cached = cached
    draft.is_partial = False
    draft.stream_id = None
    draft.machine = machine
    draft.pid = pid
    draft.warnings = warnings
    draft.__class__ = ToolResult
    return draft  # type: ignore[no-any-return]


def _iso(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None


@runtime_checkable
class ToolRunner(Protocol):
    """Runs tool calls: what `react_loop` needs, and all it knows of tools.

    A plain list of `Tool` is adapted to a minimal runner; the tool runtime's
    processor is a full one.
    """

    async def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        """The tools on offer, each in OpenAI's function format."""
        ...

    async def run_calls(self, calls: Sequence[ToolCall]) -> Sequence[ToolResult]:
        """Run `calls` and return one result each, in the order of the calls.

        Failures are results. Only the caller's own cancellation, and errors that a
        policy says must stop the run, are raised.
        """
        ...
