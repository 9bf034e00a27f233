"""OpenAI's streamed chat completions, put together piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from executionkit._llm import UsageUpdate
from executionkit._wire.assembly import Assembler
from executionkit._wire.common import text_of_parts
from executionkit._wire.failures import failure_in
from executionkit._wire.openai import parse_completion, reply_of
from executionkit._wire.openai_calls import CallPieces
from executionkit.errors import StreamError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executionkit._llm import LLMResponse, StreamEvent
    from executionkit.types import JsonValue

__all__ = ("ChatAssembler",)

_DONE: Final = "[DONE]"
_OLDER_CALL: Final = "function_call"


class ChatAssembler(Assembler):
    """Assembles one streamed chat completion."""

    __slots__ = ("_calls", "_finish", "_raw", "_refusal")

    def __init__(self, *, secrets: Sequence[str] = ()) -> None:
        super().__init__(secrets=secrets)
        self._calls = CallPieces()
        self._refusal: list[str] = []
        self._finish: object = "stop"
        self._raw: JsonValue = None

    def feed(self, event: str, data: str) -> Sequence[StreamEvent]:
        if data.startswith("[") and data.strip() == _DONE:
            self.complete = True
            return ()
        chunk = self._read(event, data)
        events: list[StreamEvent] = []
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        usage = chunk.get("usage")
        if isinstance(choice, dict):
            self._take_choice(choice, events)
            usage = usage if isinstance(usage, dict) else choice.get("usage")
        elif chunk.get("object") == "error":
            self._check("error", data, chunk)
        if self.id is None:
            self._take_head(chunk)
        if isinstance(usage, dict):
            self._usage, self._raw = usage, chunk
            events.append(UsageUpdate(usage))
        return events

    def _take_head(self, chunk: dict[str, Any]) -> None:
        reply_id, model = chunk.get("id"), chunk.get("model")
        if isinstance(reply_id, str):
            self.id = reply_id
        if isinstance(model, str):
            self.model = model

    def _take_choice(self, choice: dict[str, Any], events: list[StreamEvent]) -> None:
        if choice.get("index"):  # a further sample (`n`); only the first is read
            return
        if "error" in choice:
            failure = failure_in(choice)
            if failure is not None:
                self._fail(failure)
        delta = choice.get("delta")
        if delta is None:
            delta = choice.get("message")
        if isinstance(delta, dict):
            self._take_delta(delta, events)
        elif isinstance(choice.get("text"), str):  # the older completions form
            self._add_text(choice["text"], events)
        if "finish_reason" in choice:
            reason = choice["finish_reason"]
            if isinstance(reason, str) and reason:
                self._finish, self.ended = reason, True
            elif not self.ended:
                self._finish = None

    def _take_delta(self, delta: dict[str, Any], events: list[StreamEvent]) -> None:
        content = delta.get("content")
        if isinstance(content, str):
            self._add_text(content, events)
        elif content is not None:
            self._add_text(text_of_parts(content), events)
        if len(delta) == 1 and content is not None:
            return
        self._add_reasoning(
            delta.get("reasoning_content") or delta.get("reasoning"), events
        )
        refusal = delta.get("refusal")
        if isinstance(refusal, str):
            self._refusal.append(refusal)
        self._take_calls(delta, events)

    def _take_calls(self, delta: dict[str, Any], events: list[StreamEvent]) -> None:
        pieces = delta.get("tool_calls")
        if pieces is None:
            older = delta.get(_OLDER_CALL)
            pieces = [{"index": _OLDER_CALL, "function": older}] if older else []
        for piece in pieces if isinstance(pieces, list) else [pieces]:
            if not isinstance(piece, dict):
                msg = "the stream's tool call payload was not an object"
                raise StreamError(msg, partial_text=self.partial_text())
            self.started = True
            events.append(self._calls.add(piece))

    def _parse(self, payload: JsonValue) -> LLMResponse:
        return parse_completion(payload, self._secrets)

    def _assemble(self) -> LLMResponse:
        message = {
            "content": self.partial_text(),
            "tool_calls": self._calls.to_wire(),
            "refusal": "".join(self._refusal),
            "reasoning_content": "".join(self._reasoning),
        }
        return reply_of(
            message,
            finish=self._finish,
            usage=self._usage,
            payload={"id": self.id, "model": self.model},
            raw=self._raw,
            secrets=self._secrets,
        )
