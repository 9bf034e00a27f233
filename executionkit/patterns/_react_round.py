"""One round of a tool loop: read the reply's calls, and word their results."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from executionkit.calls import (
    CallProblem,
    ToolCall,
    ToolResult,
    new_id,
    render_result,
)
from executionkit.engine.messages import assistant_tool_calls_message, tool_message
from executionkit.errors import BadResponseError
from executionkit.types import thaw

if TYPE_CHECKING:
    from executionkit._llm import LLMResponse
    from executionkit.approval import ApprovalRequest

__all__ = ("CANCELLED", "Round", "cap_text", "observation", "read_calls", "thoughts_of")

CANCELLED: Final = "Tool call was cancelled before it finished."

_NOTICE: Final = "\n[... cut here; {length} characters in all ...]\n"
_SUFFIX: Final = "\n[truncated]"
_UNNAMED: Final = "unknown"
_MAX_NAME: Final = 64
_WIRE_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_BAD_NAME_CHARS: Final = re.compile(r"[^a-zA-Z0-9_-]")
_THINKING: Final = frozenset({"thinking", "redacted_thinking"})


def cap_text(text: str, limit: int) -> tuple[str, bool]:
    """`text` within `limit` characters, and whether it had to be cut.

    Head and tail are kept, with a notice of the original length between them. When
    there is no room for the notice, the head alone is kept.
    """
    if len(text) <= limit:
        return text, False
    notice = _NOTICE.format(length=len(text))
    room = limit - len(notice) - len(_SUFFIX)
    if room < len(notice):
        if limit <= len(_SUFFIX):
            return text[:limit], True
        return text[: limit - len(_SUFFIX)] + _SUFFIX, True
    tail = room // 3
    return text[: room - tail] + notice + text[len(text) - tail :] + _SUFFIX, True


def read_calls(response: LLMResponse) -> list[ToolCall | CallProblem]:
    """The calls and the unreadable calls of a reply, in the model's order.

    Every id is present and unique; a repeated id is renamed from its second use on.

    Raises:
        BadResponseError: When a provider of one's own gives calls of another type.
    """
    for call in response.tool_calls:
        given: object = call
        if not isinstance(given, ToolCall):
            msg = f"`tool_calls` must hold `ToolCall`s, got {type(given).__name__}"
            raise BadResponseError(msg)
    if not response.problems:
        return _unique_ids(response.tool_calls)
    size = len(response.tool_calls) + len(response.problems)
    slots: list[ToolCall | CallProblem | None] = [None] * size
    overflow: list[ToolCall | CallProblem] = []
    for problem in response.problems:
        if 0 <= problem.index < size and slots[problem.index] is None:
            slots[problem.index] = problem
        else:
            overflow.append(problem)
    rest = iter([*response.tool_calls, *overflow])
    return _unique_ids([next(rest) if slot is None else slot for slot in slots])


def _unique_ids(
    calls: Sequence[ToolCall | CallProblem],
) -> list[ToolCall | CallProblem]:
    taken = {_id_of(call) for call in calls}
    seen: set[str] = set()
    numbers: dict[str, int] = {}
    fixed: list[ToolCall | CallProblem] = []
    for call in calls:
        old = call.call_id if isinstance(call, CallProblem) else call.id
        fresh = _id_of(call) or new_id()
        if fresh in seen:
            base, number = fresh, numbers.get(fresh, 2)
            while (fresh := f"{base}-{number}") in taken or fresh in seen:
                number += 1
            numbers[base] = number + 1
        seen.add(fresh)
        fixed.append(call if fresh == old else _renamed(call, fresh))
    return fixed


def _id_of(call: ToolCall | CallProblem) -> str:
    given: object = call.call_id if isinstance(call, CallProblem) else call.id
    return given if isinstance(given, str) else str(given)


def _renamed(call: ToolCall | CallProblem, fresh: str) -> ToolCall | CallProblem:
    if isinstance(call, ToolCall):
        return ToolCall(
            fresh,
            call.name,
            call.arguments,
            namespace=call.namespace,
            idempotency_key=call.idempotency_key,
        )
    return CallProblem(
        call_id=fresh,
        name=call.name,
        message=call.message,
        raw=call.raw,
        length=call.length,
        position=call.position,
        index=call.index,
        code=call.code,
    )


def thoughts_of(response: LLMResponse) -> list[dict[str, Any]]:
    """The thinking blocks of a reply, which Anthropic wants back with its calls."""
    return [thaw(part) for part in response.parts if part.get("type") in _THINKING]


@dataclass(slots=True)
class Round:
    """What happened to the calls of one reply, in the model's order."""

    content: str
    calls: list[ToolCall | CallProblem]
    results: list[ToolResult | None]
    thoughts: list[dict[str, Any]] = field(default_factory=list)
    """Thinking blocks of the reply."""

    truncated: int = 0
    """Observations that were cut."""

    rejected: int = 0
    """Calls that were over a limit."""

    changed: dict[int, ToolCall] = field(default_factory=dict)
    """What was run instead of a call, by place: whoever approved it changed it."""

    parked: list[ApprovalRequest] = field(default_factory=list)
    """Questions whose answers come later."""

    rendered: dict[int, str] = field(default_factory=dict)
    """Observations that were made on the way, by place; all, after `messages`."""

    def messages(self, limit: int, offered: Collection[str]) -> list[dict[str, Any]]:
        """The block for the history: the calls, then one answer each.

        A call whose result is missing is answered with "cancelled", so the block is
        always complete.

        Args:
            limit: Characters of one observation.
            offered: The names of the tools on offer.
        """
        self.truncated = 0
        texts = self._texts()
        calls = [_sendable(call, offered) for call in self.calls]
        block = [assistant_tool_calls_message(self.content, calls)]
        if self.thoughts:
            block[0]["thinking_blocks"] = self.thoughts
        for call, text in zip(calls, texts, strict=True):
            shown, cut = cap_text(text, limit)
            self.truncated += cut
            block.append(tool_message(call.id, shown))
        return block

    def _texts(self) -> list[str]:
        """The whole observations."""
        rendered = self.rendered
        for index, result in enumerate(self.results):
            if index not in rendered:
                text = CANCELLED if result is None else observation(result)
                rendered[index] = text
        return [rendered[index] for index in range(len(self.results))]

    def signature(self) -> list[tuple[str, Mapping[str, Any], str]]:
        """(tool, arguments, result) of every call, for the progress watch."""
        return [
            (
                call.name,
                call.arguments if isinstance(call, ToolCall) else {"": call.raw},
                text,
            )
            for call, text in zip(self.calls, self._texts(), strict=True)
        ]


def _sendable(call: ToolCall | CallProblem, offered: Collection[str]) -> ToolCall:
    """The call as it can be sent back to a server that checks names and arguments.

    What the model wrote as arguments cannot be sent when it is not JSON: an empty
    object stands for it. The name of a tool that does not exist may hold characters
    that servers refuse. The answer to the call tells the model what it did.
    """
    if isinstance(call, CallProblem):
        return ToolCall(call.call_id, _wire_name(call.name, offered), {})
    name = _wire_name(call.name, offered)
    return call if name == call.name else ToolCall(call.id, name, call.arguments)


def _wire_name(name: str, offered: Collection[str]) -> str:
    if name in offered or _WIRE_NAME.fullmatch(name):
        return name
    return _BAD_NAME_CHARS.sub("_", name[:_MAX_NAME]) or _UNNAMED


def observation(result: ToolResult) -> str:
    """What the model reads about a result; never raises."""
    if result.error is not None:
        return result.error
    try:
        return render_result(result.result)
    except (TypeError, ValueError, RecursionError) as exc:
        kind = type(result.result).__name__
        return (
            f"Tool '{result.tool}' returned {kind}, which cannot be written as JSON: "
            f"{exc}"
        )
