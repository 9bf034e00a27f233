"""Streamed replies that come as a list of events: put together, then read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from executionkit._llm import TRUNCATED_REASONS
from executionkit._wire.common import RawCall, text_of_parts
from executionkit._wire.openai_calls import CallPieces
from executionkit.tools.parsing.result import Reading

__all__ = ("is_stream", "read_stream")

_ANTHROPIC: Final = frozenset(
    {
        "content_block_delta",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_start",
        "message_stop",
        "ping",
    }
)
_RESPONSE: Final = "response."
_LOOKED_AT: Final = 3


def _is_chat_chunk(event: Mapping[str, Any]) -> bool:
    if event.get("object") == "chat.completion.chunk":
        return True
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, (list, tuple)) and choices else None
    return isinstance(first, Mapping) and "delta" in first


def _kind(event: object) -> str:
    if type(event) is not dict and not isinstance(event, Mapping):
        return ""
    kind = event.get("type")
    if isinstance(kind, str):
        if kind in _ANTHROPIC:
            return "anthropic"
        if kind.startswith(_RESPONSE):
            return "responses"
    return "chat" if _is_chat_chunk(event) else ""


def _is_delta(piece: object) -> bool:
    """Whether it is an entry of `delta.tool_calls`."""
    return (
        (type(piece) is dict or isinstance(piece, Mapping))
        and isinstance(piece.get("index"), int)
        and isinstance(piece.get("function"), Mapping)
    )


def _are_deltas(items: Sequence[Any]) -> bool:
    if not _is_delta(items[0]) or not all(map(_is_delta, items)):
        return False
    places = [item["index"] for item in items]
    return len(set(places)) < len(places)


def is_stream(items: Sequence[Any]) -> bool:
    """Whether a list holds the events of one streamed reply."""
    if not items:
        return False
    return any(map(_kind, items[:_LOOKED_AT])) or _are_deltas(items)


def read_stream(items: Sequence[Any]) -> tuple[Reading, str]:
    """The calls of a streamed reply, and its text."""
    kind = next(filter(None, map(_kind, items[:_LOOKED_AT])), "deltas")
    events = [item for item in items if isinstance(item, Mapping)]
    if kind == "anthropic":
        return _read_messages(events)
    if kind == "responses":
        return _read_responses(events)
    if kind == "chat":
        return _read_chat(events)
    pieces = CallPieces()
    for item in events:
        pieces.add(dict(item))
    return Reading(list(_calls_of(pieces))), ""


def _calls_of(pieces: CallPieces) -> list[RawCall]:
    found: list[RawCall] = []
    for call in pieces.to_wire():
        custom = call.get("custom")
        if custom is None:
            function = call["function"]
            found.append(RawCall(call["id"], function["name"], function["arguments"]))
        else:
            found.append(
                RawCall(call["id"], custom["name"], {"input": custom["input"]})
            )
    return found


def _cut_off(entries: list[RawCall], *, ended: bool) -> None:
    """Mark a last call without arguments when the end of the stream never came."""
    if not ended and entries and entries[-1].arguments in ("", None):
        entries[-1] = entries[-1]._replace(incomplete=True)


def _read_chat(events: Sequence[Mapping[str, Any]]) -> tuple[Reading, str]:
    pieces = CallPieces()
    texts: list[str] = []
    finish: object = None
    for event in events:
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, (list, tuple)) and choices else None
        if not isinstance(choice, Mapping) or choice.get("index"):
            continue  # only the first sample is read
        finish = choice.get("finish_reason") or finish
        delta = choice.get("delta")
        delta = choice.get("message") if delta is None else delta
        if not isinstance(delta, Mapping):
            continue
        texts.append(text_of_parts(delta.get("content")))
        older = delta.get("function_call")
        given = delta.get("tool_calls")
        if given is None and isinstance(older, Mapping):
            given = [{"index": "function_call", "function": older}]
        for piece in given if isinstance(given, (list, tuple)) else ():
            if isinstance(piece, Mapping):
                pieces.add(dict(piece))
    entries = _calls_of(pieces)
    _cut_off(entries, ended=bool(finish))
    truncated = isinstance(finish, str) and finish in TRUNCATED_REASONS
    return Reading(list(entries), truncated), "".join(texts)


class _Parts:
    """What is being streamed, by place: how it began, and the pieces of its input."""

    __slots__ = ("by_place", "order")

    def __init__(self) -> None:
        self.order: list[_Part] = []
        self.by_place: dict[object, _Part] = {}

    def open(self, place: object, start: Mapping[str, Any]) -> None:
        part = _Part(start)
        self.order.append(part)
        if isinstance(place, (int, str)):
            self.by_place[place] = part

    def find(self, place: object) -> _Part | None:
        if isinstance(place, (int, str)):
            return self.by_place.get(place)
        return self.order[-1] if self.order else None


class _Part:
    __slots__ = ("done", "pieces", "start")

    def __init__(self, start: Mapping[str, Any]) -> None:
        self.start: Mapping[str, Any] = start
        self.pieces: list[str] = []
        self.done: bool = False

    def to_call(self, id_key: str, input_key: str) -> RawCall:
        text = "".join(self.pieces)
        given = text or self.start.get(input_key)
        return RawCall(
            self.start.get(id_key) or self.start.get("id"),
            self.start.get("name"),
            given,
            incomplete=not self.done and not given,
        )


def _read_messages(events: Sequence[Mapping[str, Any]]) -> tuple[Reading, str]:
    parts = _Parts()
    texts: list[str] = []
    truncated = False
    for event in events:
        kind = event.get("type")
        place = event.get("index")
        if kind == "content_block_start":
            block = event.get("content_block")
            if isinstance(block, Mapping):
                parts.open(place, block)
                texts.append(text_of_parts(block.get("text")))
        elif kind == "content_block_delta":
            _take_delta(event.get("delta"), parts.find(place), texts)
        elif kind == "content_block_stop":
            part = parts.find(place)
            if part is not None:
                part.done = True
        elif kind == "message_delta":
            delta = event.get("delta")
            reason = delta.get("stop_reason") if isinstance(delta, Mapping) else None
            truncated = isinstance(reason, str) and reason in TRUNCATED_REASONS
    entries = [
        part.to_call("id", "input")
        for part in parts.order
        if part.start.get("type") == "tool_use"
    ]
    return Reading(list(entries), truncated), "".join(texts)


def _take_delta(delta: object, part: _Part | None, texts: list[str]) -> None:
    if not isinstance(delta, Mapping):
        return
    piece = delta.get("partial_json")
    if isinstance(piece, str) and part is not None:
        part.pieces.append(piece)
    elif isinstance(delta.get("text"), str):
        texts.append(delta["text"])


_PIECES: Final = (
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
)


def _take_item(parts: _Parts, kind: str, event: Mapping[str, Any]) -> None:
    """Take an event about one item of a streamed response."""
    place = event.get("output_index", event.get("item_id"))
    item = event.get("item")
    part = parts.find(place)
    if kind in _PIECES:
        if part is not None and isinstance(event.get("delta"), str):
            part.pieces.append(event["delta"])
    elif not isinstance(item, Mapping):
        return
    elif kind == "response.output_item.added" or part is None:
        parts.open(place, item)
    if kind == "response.output_item.done" and isinstance(item, Mapping):
        part = part or parts.order[-1]
        part.start, part.pieces, part.done = item, [], True


def _read_responses(events: Sequence[Mapping[str, Any]]) -> tuple[Reading, str]:
    parts = _Parts()
    texts: list[str] = []
    truncated = False
    for event in events:
        kind = event.get("type")
        if kind == "response.output_text.delta":
            texts.append(text_of_parts(event.get("delta")))
        elif kind == "response.incomplete":
            truncated = True
        elif isinstance(kind, str):
            _take_item(parts, kind, event)
    entries: list[RawCall] = []
    for part in parts.order:
        if part.start.get("type") == "function_call":
            entries.append(part.to_call("call_id", "arguments"))
        elif part.start.get("type") == "custom_tool_call":
            call = part.to_call("call_id", "input")
            entries.append(call._replace(arguments={"input": call.arguments}))
    return Reading(list(entries), truncated), "".join(texts)
