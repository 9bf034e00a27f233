"""Message histories of a tool loop: well-formed, and short enough.

A *block* is an assistant message with tool calls and the tool messages that answer
it, or any other single message. Blocks are kept or dropped as a whole, so that no
call is ever sent without its result, nor a result without its call.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from executionkit.cost import CostTracker
from executionkit.engine.messages import tool_message
from executionkit.patterns.base import calling_user
from executionkit.types import TokenUsage

__all__ = ("HistoryWindow", "Summarizer", "mend_history", "split_blocks")

Message: TypeAlias = dict[str, Any]
Summarizer: TypeAlias = Callable[
    [list[dict[str, Any]]], Awaitable["str | tuple[str, TokenUsage]"]
]
"""Turns dropped messages into a text, or a text and what making it cost."""

UNANSWERED = "No result was recorded for this call."
_SUMMARY_PREFIX = "Summary of earlier conversation: "


def mend_history(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Message], int]:
    """A well-formed copy of a history, and how many repairs it took.

    A tool message without its call is dropped; a call without a result gets one that
    says so. The caller's messages are never changed. Ids are matched with the calls
    that are still open, so an id that is used again in a later turn is fine.
    """
    mended: list[Message] = []
    open_ids: list[str] = []
    repairs = 0
    for message in messages:
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if call_id in open_ids:
                open_ids.remove(call_id)
                mended.append(dict(message))
            else:
                repairs += 1
            continue
        repairs += _answer(open_ids, mended)
        mended.append(dict(message))
        open_ids = [
            call["id"]
            for call in message.get("tool_calls") or ()
            if isinstance(call, Mapping) and isinstance(call.get("id"), str)
        ]
    repairs += _answer(open_ids, mended)
    return mended, repairs


def _answer(open_ids: list[str], mended: list[Message]) -> int:
    mended.extend(tool_message(call_id, UNANSWERED) for call_id in open_ids)
    count = len(open_ids)
    open_ids.clear()
    return count


def split_blocks(messages: Sequence[Message]) -> list[list[Message]]:
    """The blocks of a well-formed history, in order."""
    blocks: list[list[Message]] = []
    for message in messages:
        if message.get("role") == "tool" and blocks:
            blocks[-1].append(message)
        else:
            blocks.append([message])
    return blocks


class HistoryWindow:
    """Chooses what of a history is sent, and sums up what is not.

    System messages at the head, the latest user message and the newest block are
    always sent, even when they alone are more than the limit. The rest is filled
    from the newest block backwards.

    Args:
        limit: Messages to send at most. None = all.
        summarizer: Sums up what is dropped; called once for each message.
        tracker: Counts what the summarizer reports.
    """

    def __init__(
        self,
        limit: int | None,
        summarizer: Summarizer | None,
        tracker: CostTracker,
    ) -> None:
        self._limit = limit
        self._summarizer = summarizer
        self._tracker = tracker
        self._summary: str | None = None
        self._summed: set[int] = set()
        self.trimmed = 0
        """Rounds in which something was dropped."""

        self.summarized = 0
        """Rounds in which a summary was sent."""

    async def select(self, history: list[Message]) -> list[Message]:
        """The messages to send for `history`."""
        if self._limit is None or len(history) <= self._limit:
            return history
        head = _head_length(history)
        blocks = split_blocks(history[head:])
        reserve = 1 if self._summarizer is not None else 0
        kept = _choose(blocks, self._limit - head - reserve)
        dropped = [index for index in range(len(blocks)) if index not in kept]
        if not dropped:
            return history
        self.trimmed += 1
        window = list(history[:head])
        summary = await self._sum_up(blocks, dropped)
        if summary is not None:
            self.summarized += 1
            window.append({"role": "system", "content": _SUMMARY_PREFIX + summary})
        for index in sorted(kept):
            window.extend(blocks[index])
        return window

    async def _sum_up(
        self, blocks: list[list[Message]], dropped: list[int]
    ) -> str | None:
        if self._summarizer is None:
            return None
        fresh = [index for index in dropped if index not in self._summed]
        if not fresh:
            return self._summary
        batch: list[Message] = []
        if self._summary is not None:
            earlier = _SUMMARY_PREFIX + self._summary
            batch.append({"role": "system", "content": earlier})
        for index in fresh:
            batch.extend(blocks[index])
        with calling_user("summarizer"):
            outcome: Any = self._summarizer(batch)
            if inspect.isawaitable(outcome):
                outcome = await outcome
            if isinstance(outcome, tuple):
                outcome, usage = outcome
                self._tracker.add_usage(usage)
            self._summary = str(outcome)
        self._summed.update(fresh)
        return self._summary


def _head_length(history: Sequence[Message]) -> int:
    for index, message in enumerate(history):
        if message.get("role") not in {"system", "developer"}:
            return index
    return len(history)


def _choose(blocks: Sequence[Sequence[Message]], room: int) -> set[int]:
    """Indexes of the blocks to keep within `room` messages."""
    newest = len(blocks) - 1
    kept = {newest} if blocks else set()
    questions = [
        index for index, block in enumerate(blocks) if block[0].get("role") == "user"
    ]
    if questions:
        kept.add(questions[-1])
    room -= sum(len(blocks[index]) for index in kept)
    for index in range(newest, -1, -1):
        if index in kept:
            continue
        if len(blocks[index]) > room:
            break
        room -= len(blocks[index])
        kept.add(index)
    return kept
