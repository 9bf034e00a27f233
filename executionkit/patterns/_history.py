"""What of a tool loop's history is sent: short enough, and always well-formed.

A *block* is an assistant message with tool calls and the messages that answer it, or
any other single message. Blocks are kept or dropped as a whole, so that no call is
ever sent without its result, nor a result without its call.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from executionkit.patterns.base import Asker, calling_user
from executionkit.types import TokenUsage, thaw

__all__ = ("HistoryWindow", "Summarizer", "split_blocks")

Message: TypeAlias = dict[str, Any]
Summarizer: TypeAlias = Callable[
    [list[dict[str, Any]]], Awaitable["str | tuple[str, TokenUsage]"]
]
"""Turns dropped messages into a text, or a text and what making it cost."""

_SUMMARY_PREFIX: Final = "Summary of earlier conversation: "
_INSTRUCTS: Final = frozenset({"system", "developer"})


def split_blocks(messages: Sequence[Message]) -> list[list[Message]]:
    """The blocks of a well-formed history, in order."""
    blocks: list[list[Message]] = []
    for message in messages:
        if blocks and (message.get("role") == "tool" or _holds_results(message)):
            blocks[-1].append(message)
        else:
            blocks.append([message])
    return blocks


def _holds_results(message: Message) -> bool:
    """Whether a user message is the answer to calls, as Anthropic writes it."""
    content = message.get("content")
    return (
        message.get("role") == "user"
        and isinstance(content, list)
        and any(
            isinstance(part, Mapping) and part.get("type") == "tool_result"
            for part in content
        )
    )


class HistoryWindow:
    """Chooses what of a history is sent, and sums up what is not.

    The summary is a system message right after the ones at the head, or after the
    first message where there are none.

    System messages, the latest question and the newest block are always sent, even
    when they alone are more than the limit. The rest is filled from the newest block
    backwards.

    Args:
        limit: Messages to send at most. None = all.
        summarizer: Sums up what is dropped; called once for each message.
        asker: Its tracker counts what the summarizer reports.
        history: The history at the start of the run: the latest user message in it is
            the question.
    """

    def __init__(
        self,
        limit: int | None,
        summarizer: Summarizer | None,
        asker: Asker,
        history: Sequence[Message],
    ) -> None:
        self._limit = limit
        self._summarizer = summarizer
        self._asker = asker
        asked = [item for item in history if _is_question(item)]
        # What the loop itself says to the model in between is no question.
        self._question = asked[-1] if asked else None
        self._summary: str | None = None
        self._summed: set[int] = set()
        self.trimmed = 0
        """Rounds in which something was dropped."""

        self.summarized = 0
        """Rounds in which a summary was sent."""

    async def select(self, history: Sequence[Message]) -> list[Message]:
        """The messages to send for `history`, which only grows from call to call."""
        if self._limit is None or len(history) <= self._limit:
            return list(history)
        head = _head_length(history)
        blocks = split_blocks(history[head:])
        reserve = 1 if self._summarizer is not None else 0
        kept = self._choose(blocks, self._limit - head - reserve)
        dropped = [index for index in range(len(blocks)) if index not in kept]
        if not dropped:
            return list(history)
        self.trimmed += 1
        chosen = sorted(kept)
        window = list(history[:head])
        summary = await self._sum_up(blocks, dropped)
        if summary is not None:
            self.summarized += 1
            if not head and chosen[0] == 0:  # after the message that opens it all
                window.extend(blocks[chosen.pop(0)])
            window.append({"role": "system", "content": _SUMMARY_PREFIX + summary})
        for index in chosen:
            window.extend(blocks[index])
        return window

    def _choose(self, blocks: Sequence[Sequence[Message]], room: int) -> set[int]:
        """Indexes of the blocks to keep within `room` messages."""
        newest = len(blocks) - 1
        kept = {
            index
            for index, block in enumerate(blocks)
            if index == newest
            or block[0] is self._question
            or block[0].get("role") in _INSTRUCTS
        }
        room -= sum(len(blocks[index]) for index in kept)
        for index in range(newest, -1, -1):
            if index in kept:
                continue
            if len(blocks[index]) > room:
                break
            room -= len(blocks[index])
            kept.add(index)
        return kept

    async def _sum_up(
        self, blocks: Sequence[Sequence[Message]], dropped: Sequence[int]
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
            batch.extend(thaw(message) for message in blocks[index])
        self._summary = await self._ask(self._summarizer, batch)
        self._summed.update(fresh)
        return self._summary

    async def _ask(self, summarizer: Summarizer, batch: list[Message]) -> str:
        with calling_user("summarizer", secrets=self._asker.secrets):
            outcome: Any = summarizer(batch)
            if inspect.isawaitable(outcome):
                outcome = await outcome
            text, usage = _text_and_usage(outcome)
            self._asker.tracker.add_usage(usage)
            return text


def _text_and_usage(outcome: Any) -> tuple[str, TokenUsage]:
    """What a summarizer returned, checked before anything is booked."""
    text, usage = outcome, TokenUsage()
    if isinstance(outcome, tuple) and len(outcome) == 2:
        text, usage = outcome
    if isinstance(text, str) and isinstance(usage, TokenUsage):
        return text, usage
    got = type(outcome).__name__
    if isinstance(outcome, tuple):
        got = f"({', '.join(type(item).__name__ for item in outcome)})"
    msg = f"a summarizer must return a text, or a text and a TokenUsage, got {got}"
    raise TypeError(msg)


def _is_question(message: Message) -> bool:
    return message.get("role") == "user" and not _holds_results(message)


def _head_length(history: Sequence[Message]) -> int:
    for index, message in enumerate(history):
        if message.get("role") not in _INSTRUCTS:
            return index
    return len(history)
