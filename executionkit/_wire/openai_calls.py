"""Which tool call a streamed piece belongs to, for all that servers do there."""

from __future__ import annotations

import json
from typing import Any, Final

from executionkit._llm import ToolCallDelta
from executionkit.engine.json_extraction import loads_json

__all__ = ("CallPieces",)

_MAX_CHECKS: Final = 8
"""Looks at the arguments so far, per call: more of them would not be linear."""


class _Call:
    """One tool call while its pieces come in."""

    __slots__ = ("checks", "custom", "id", "name", "opened", "pieces", "place")

    def __init__(self, place: int) -> None:
        self.place = place
        self.id: str | None = None
        self.name = ""
        self.pieces: list[str] = []
        self.opened = False
        self.custom = False
        self.checks = _MAX_CHECKS

    def add_name(self, name: object) -> str | None:
        # Some servers repeat the whole name with every piece, some cut it up.
        if isinstance(name, str) and name and name != self.name and not self.opened:
            self.name += name
            return name
        return None

    def add_arguments(self, piece: object) -> str:
        if isinstance(piece, dict):
            piece = json.dumps(piece)
        if not isinstance(piece, str):
            return ""
        self.opened = True
        if piece:
            self.pieces.append(piece)
        return piece

    def is_whole(self, piece: object) -> bool:
        """Whether its arguments are a whole object, so that `piece` cannot belong."""
        if not (isinstance(piece, str) and piece.startswith("{") and self.pieces):
            return False
        if self.custom or not self.checks or not self.pieces[-1].rstrip().endswith("}"):
            return False
        self.checks -= 1
        try:
            return isinstance(loads_json("".join(self.pieces)), dict)
        except ValueError:
            return False

    def to_wire(self) -> dict[str, Any]:
        text = "".join(self.pieces)
        if self.custom:
            return {"id": self.id, "custom": {"name": self.name, "input": text}}
        return {"id": self.id, "function": {"name": self.name, "arguments": text}}


class CallPieces:
    """The tool calls of one reply, from their pieces, in order of appearance."""

    __slots__ = ("_by_id", "_by_index", "_calls")

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[object, _Call] = {}
        self._by_id: dict[str, _Call] = {}

    def to_wire(self) -> list[dict[str, Any]]:
        """The calls as they would stand in a whole answer."""
        return [call.to_wire() for call in self._calls]

    def add(self, piece: dict[str, Any]) -> ToolCallDelta:
        """Take one entry of `delta.tool_calls`."""
        function = piece.get("function")
        custom = piece.get("custom") if function is None else None
        source = function if isinstance(function, dict) else custom
        source = source if isinstance(source, dict) else {}
        text = source.get("arguments" if custom is None else "input")
        given = piece.get("id")
        call_id = given if isinstance(given, str) and given else None
        name = source.get("name")
        call = self._find(piece.get("index"), call_id, name, text)
        call.custom = call.custom or custom is not None
        fresh_id = call_id if call.id is None else None
        if fresh_id is not None:
            call.id = fresh_id
            self._by_id[fresh_id] = call
        if call.is_whole(text) and text == "".join(call.pieces):
            text = None  # some servers close with all of the arguments once more
        added = call.add_name(name)
        return ToolCallDelta(call.place, fresh_id, added, call.add_arguments(text))

    def _find(
        self, index: object, call_id: str | None, name: object, text: object
    ) -> _Call:
        if isinstance(index, (int, str)):
            call = self._by_index.get(index)
            if call is None or self._is_next(call, call_id, name, text):
                call = self._by_index[index] = self._new()
            return call
        call = self._by_id.get(call_id) if call_id is not None else None
        if call is None:
            call = self._calls[-1] if self._calls else None
        if call is None or self._is_next(call, call_id, name, text):
            call = self._new()
        return call

    def _is_next(
        self, call: _Call, call_id: str | None, name: object, text: object
    ) -> bool:
        """Whether a piece begins another call than the one that its place names."""
        if not name:
            return False
        if call_id is not None and call.id is not None:
            return call_id != call.id
        if call.opened and name != call.name:
            return True
        return call.is_whole(text) and text != "".join(call.pieces)

    def _new(self) -> _Call:
        call = _Call(len(self._calls))
        self._calls.append(call)
        return call
