"""The rule that keeps outputs small enough to be read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from executionkit._constants import MAX_JSON_DEPTH
from executionkit.engine._checks import check_int
from executionkit.tools._guard_values import BaseGuard, EnforcementLevel, GuardResult
from executionkit.tools.guard_rules._cutting import (
    cut_bytes,
    cut_json,
    cut_text,
    encode,
    shrink,
    text_size,
)

if TYPE_CHECKING:
    from executionkit.calls import ToolCall
    from executionkit.tools._record import ToolRecord

__all__ = ("MAX_OUTPUT_BYTES", "OnTruncated", "OutputSizeGuard", "TruncationMode")

MAX_OUTPUT_BYTES: Final = 256 * 1024
"""Bytes of an output that are handed out, unless said otherwise."""

OnTruncated: TypeAlias = Callable[["ToolCall", Any], "Awaitable[Any] | object"]
"""Takes the call and its full output; may return a text that says where it is kept."""

_PASS = GuardResult.allow()
_PLAIN: Final = frozenset({bool, float, type(None)})
_LEAST: Final = 256
_MAX_REFERENCE: Final = 120
_TEXT_MARKS: Final = ("{", "[")


class TruncationMode(StrEnum):
    """What happens to an output that is too large."""

    HEAD_TAIL = "head_tail"
    """Its head and its tail are kept, with a notice of what is gone between."""

    WARN = "warn"
    """It passes, and the caller is told."""

    BLOCK = "block"
    """It is not handed out."""


class OutputSizeGuard(BaseGuard):
    """Caps the size of outputs, for every tool the same, at one place.

    The size is that of the text a model would read: UTF-8 of a text, JSON of anything
    else. Texts are cut between characters. Lists and objects that are over a cap of
    their own stay lists and objects, with a notice in the place of what is gone; when
    the whole is still too large it becomes an object `{"truncated", "head", "tail"}`
    whose pieces are texts. So no output turns into broken JSON without saying so.

    Args:
        max_bytes: Of the whole output, notices included; at least 256.
        max_depth: Levels of lists and objects.
        max_items: Members of one list or object. None = no limit.
        max_string: Characters of one text inside of a list or object. None = no limit.
        mode: What happens to what is too large.
        on_truncated: Called with the call and the full output before it is cut, plain
            or async, so that it can be kept. A text it returns (a path, a key) is put
            into the notice. When it raises, the output is blocked.
        enforcement: How far its word goes.

    Raises:
        ValueError: When a limit is too small.
    """

    name = "output_size"

    def __init__(
        self,
        *,
        max_bytes: int = MAX_OUTPUT_BYTES,
        max_depth: int = MAX_JSON_DEPTH,
        max_items: int | None = None,
        max_string: int | None = None,
        mode: TruncationMode = TruncationMode.HEAD_TAIL,
        on_truncated: OnTruncated | None = None,
        enforcement: EnforcementLevel = EnforcementLevel.BLOCK,
    ) -> None:
        super().__init__(enforcement=enforcement)
        self._most = check_int("max_bytes", max_bytes, _LEAST)
        self._depth = check_int("max_depth", max_depth, 1)
        if max_depth > MAX_JSON_DEPTH:
            msg = f"`max_depth` must be <= {MAX_JSON_DEPTH}, got {max_depth}"
            raise ValueError(msg)
        self._items = (
            None if max_items is None else check_int("max_items", max_items, 1)
        )
        self._string = (
            None if max_string is None else check_int("max_string", max_string, 1)
        )
        self._smallest = min(
            self._most, self._items or self._most, self._string or self._most
        )
        self._mode = TruncationMode(mode)
        self._on_truncated = on_truncated

    def check_output(
        self,
        call: ToolCall,
        record: ToolRecord,  # noqa: ARG002 - the interface
        value: Any,
        /,
    ) -> GuardResult | Coroutine[Any, Any, GuardResult]:
        """Measure the output, and cut it where it is too large."""
        kind = type(value)
        if kind in _PLAIN or (kind is str and len(value) * 4 <= self._most):
            return _PASS
        size, cut, changes = self._measure(value)
        if size <= self._most and not changes:
            return _PASS
        reason = self._reason(size, changes)
        details = {"original_bytes": size, "max_bytes": self._most}
        if self._mode is TruncationMode.BLOCK:
            return GuardResult.block(reason, details)
        if self._mode is TruncationMode.WARN:
            return GuardResult.warn(reason, details)
        where = None
        if self._on_truncated is not None:
            where = self._on_truncated(call, value)
            if isinstance(where, Awaitable):
                later = cast("Awaitable[object]", where)
                return self._cut_later(value, cut, size, reason, later)
        return self._cut(value, cut, size, reason, where)

    async def _cut_later(
        self, value: Any, cut: Any, size: int, reason: str, where: Awaitable[object]
    ) -> GuardResult:
        return self._cut(value, cut, size, reason, await where)

    def _measure(self, value: Any) -> tuple[int, Any, int]:
        """Its size, a copy that keeps to the caps of parts, and what those changed."""
        if isinstance(value, str):
            return text_size(value), value, 0
        if isinstance(value, (bytes, bytearray)):
            return len(value), value, 0
        try:
            text = encode(value)
        except RecursionError:  # too deep to be measured: at least what is left of it
            cut, changes = self._shrunk(value)
            return text_size(encode(cut)), cut, changes
        size = text_size(text)
        if size <= self._smallest and text.count("[") + text.count("{") <= self._depth:
            return size, value, 0  # no part of it can be over its cap
        if size > self._most and self._items is None and self._string is None:
            return size, value, 0  # it is cut as a whole
        return size, *self._shrunk(value)

    def _shrunk(self, value: Any) -> tuple[Any, int]:
        return shrink(
            value,
            depth=self._depth,
            items=self._items,
            string=self._string,
        )

    def _cut(
        self, value: Any, cut: Any, size: int, reason: str, where: object
    ) -> GuardResult:
        kept = (
            f"; full copy: {where[:_MAX_REFERENCE]}" if isinstance(where, str) else ""
        )
        note = f"[... cut: {size} bytes, of which {self._most} are shown at most{kept} ...]"
        if isinstance(value, str):
            if value.lstrip()[:1] in _TEXT_MARKS:
                note = note.replace("cut:", "cut, no longer valid JSON:", 1)
            output: Any = cut_text(value, self._most, f"\n{note}\n")
        elif isinstance(value, (bytes, bytearray)):
            output = cut_bytes(bytes(value), self._most, note)
        else:
            output = self._cut_structure(cut, note)
        details = {"original_bytes": size, "max_bytes": self._most}
        return GuardResult.repair(reason, output=output, details=details)

    def _cut_structure(self, cut: Any, note: str) -> Any:
        text = encode(cut)
        if text_size(text) <= self._most:
            return cut
        return cut_json(text, self._most, note)

    def _reason(self, size: int, changes: int) -> str:
        if size > self._most:
            return f"the output has {size} bytes; at most {self._most} are handed out"
        return f"{changes} parts of the output are too deep, too long or too many"
