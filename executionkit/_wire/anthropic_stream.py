"""Anthropic's streamed messages, put together block by block."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from executionkit._llm import ToolCallDelta, UsageUpdate
from executionkit._wire.anthropic_reply import (
    answer_text,
    parse_message,
    reply_of,
)
from executionkit._wire.assembly import Assembler
from executionkit._wire.loading import load_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executionkit._llm import LLMResponse, StreamEvent
    from executionkit._wire.anthropic_request import AnswerTool
    from executionkit.types import JsonValue

__all__ = ("MessageAssembler",)

# The kind of delta -> the kind of block that it belongs to.
_BLOCK_OF_DELTA: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
    "input_json_delta": "tool_use",
}


class _Block:
    """One content block while its pieces come in."""

    __slots__ = ("is_answer", "pieces", "place", "signature", "start")

    def __init__(self, start: dict[str, Any], place: int, *, is_answer: bool) -> None:
        self.start = start
        self.place = place  # which call of the reply it is; -1 = none
        self.is_answer = is_answer
        self.pieces: list[str] = []
        self.signature: list[str] = []

    @property
    def kind(self) -> str:
        kind = self.start.get("type")
        return kind if isinstance(kind, str) else ""

    def input(self) -> object:
        """The input of a call, parsed once; a text when it is no JSON object."""
        if not self.pieces:
            return self.start.get("input")
        text = "".join(self.pieces)
        try:
            parsed = load_reply(text)
        except ValueError:
            return text
        return parsed if isinstance(parsed, dict) else text

    def to_wire(self) -> dict[str, Any]:
        """The block as it would stand in a whole answer."""
        block = dict(self.start)
        if self.kind in {"text", "thinking"}:
            first = block.get(self.kind)
            block[self.kind] = (first if isinstance(first, str) else "") + "".join(
                self.pieces
            )
        elif self.kind == "tool_use" or self.pieces:
            block["input"] = self.input()
        if self.signature:
            block["signature"] = "".join(self.signature)
        return block


class MessageAssembler(Assembler):
    """Assembles one streamed message.

    Args:
        answer: The tool whose input is the text of the answer, when one was offered.
        secrets: Texts that must not appear in an error.
    """

    __slots__ = ("_answer", "_blocks", "_by_index", "_calls", "_details", "_stop")

    def __init__(
        self, *, answer: AnswerTool | None = None, secrets: Sequence[str] = ()
    ) -> None:
        super().__init__(secrets=secrets)
        self._answer = answer
        self._blocks: list[_Block] = []
        self._by_index: dict[int, _Block] = {}
        self._calls = 0
        self._stop: object = None
        self._details: object = None

    def feed(self, event: str, data: str) -> Sequence[StreamEvent]:
        chunk = self._read(event, data)
        events: list[StreamEvent] = []
        kind = chunk.get("type", event)
        if kind == "content_block_delta":
            self._take_delta(chunk, events)
        elif kind == "content_block_start":
            block = chunk.get("content_block")
            if isinstance(block, dict):
                self._open(block, chunk.get("index"), events)
        elif kind == "content_block_stop":
            self._close(chunk, events)
        elif kind == "message_start":
            message = chunk.get("message")
            if isinstance(message, dict):
                self._take_head(message, events)
        elif kind == "message_delta":
            self._take_end(chunk, events)
        elif kind == "message_stop":
            self.complete = True
        return events

    def _take_head(self, message: dict[str, Any], events: list[StreamEvent]) -> None:
        reply_id, model = message.get("id"), message.get("model")
        self.id = reply_id if isinstance(reply_id, str) else None
        self.model = model if isinstance(model, str) else None
        self._merge_usage(message.get("usage"), events)

    def _merge_usage(self, usage: object, events: list[StreamEvent]) -> None:
        """Counts are running totals; what a later event leaves out stays as it was."""
        if isinstance(usage, dict):
            said = {key: value for key, value in usage.items() if value is not None}
            self._usage = {**(self._usage or {}), **said}
            events.append(UsageUpdate(self._usage))

    def _open(
        self, start: dict[str, Any], index: object, events: list[StreamEvent]
    ) -> _Block:
        is_call = start.get("type") == "tool_use"
        name = start.get("name")
        is_answer = is_call and self._answer is not None and name == self._answer.name
        place = self._calls if is_call and not is_answer else -1
        block = _Block(start, place, is_answer=is_answer)
        self._blocks.append(block)
        if isinstance(index, int):
            self._by_index[index] = block
        if place >= 0:
            self._calls += 1
            self.started = True
            given = start.get("input")
            text = json.dumps(given) if given and isinstance(given, dict) else ""
            call_id = start.get("id")
            events.append(
                ToolCallDelta(
                    place,
                    call_id if isinstance(call_id, str) else None,
                    name if isinstance(name, str) else None,
                    text,
                )
            )
        elif isinstance(start.get("text"), str) and start["text"]:
            self._add_text(start["text"], events)
        self._add_reasoning(start.get("thinking"), events)
        return block

    def _find(
        self, chunk: dict[str, Any], kind: str, events: list[StreamEvent]
    ) -> _Block:
        index = chunk.get("index")
        block = self._by_index.get(index) if isinstance(index, int) else None
        if block is None and not isinstance(index, int) and self._blocks:
            block = self._blocks[-1]
        if block is None:
            block = self._open({"type": kind}, index, events)
        return block

    def _take_delta(self, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        delta = chunk.get("delta")
        kind = delta.get("type") if isinstance(delta, dict) else None
        of = _BLOCK_OF_DELTA.get(kind) if isinstance(kind, str) else None
        if not isinstance(delta, dict) or of is None:
            return  # citations and kinds to come
        block = self._find(chunk, of, events)
        if kind == "text_delta" and isinstance(delta.get("text"), str):
            block.pieces.append(delta["text"])
            self._add_text(delta["text"], events)
        elif kind == "input_json_delta" and isinstance(delta.get("partial_json"), str):
            self._take_input(block, delta["partial_json"], events)
        elif kind == "thinking_delta" and isinstance(delta.get("thinking"), str):
            block.pieces.append(delta["thinking"])
            self._add_reasoning(delta["thinking"], events)
        elif kind == "signature_delta" and isinstance(delta.get("signature"), str):
            block.signature.append(delta["signature"])

    def _take_input(self, block: _Block, text: str, events: list[StreamEvent]) -> None:
        if not text:
            return
        block.pieces.append(text)
        if block.place >= 0:
            events.append(ToolCallDelta(block.place, None, None, text))
        elif block.is_answer and self._answer and not self._answer.wrapped:
            self._add_text(text, events)

    def _close(self, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        index = chunk.get("index")
        block = self._by_index.get(index) if isinstance(index, int) else None
        if block is None or not block.is_answer or self._answer is None:
            return
        if self._answer.wrapped or not block.pieces:
            given = block.input()
            self._add_text(answer_text(given, wrapped=self._answer.wrapped), events)

    def _take_end(self, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        delta = chunk.get("delta")
        if isinstance(delta, dict):
            reason = delta.get("stop_reason")
            if isinstance(reason, str) and reason:
                self._stop, self.ended = reason, True
            self._details = delta.get("stop_details", self._details)
        self._merge_usage(chunk.get("usage"), events)

    def _parse(self, payload: JsonValue) -> LLMResponse:
        return parse_message(payload, self._secrets, answer=self._answer)

    def _assemble(self) -> LLMResponse:
        message = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [block.to_wire() for block in self._blocks],
            "stop_reason": self._stop,
            "stop_details": self._details,
            "usage": self._usage,
        }
        last = self._blocks[-1] if self._blocks else None
        return reply_of(
            message,
            answer=self._answer,
            text=self.partial_text(),
            cut_off=last is None or not last.pieces,
            secrets=self._secrets,
        )
