"""One run of a tool loop: ask the model, run its calls, until it answers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from executionkit._json_tools import offer, parse_offer
from executionkit.calls import CallProblem, ToolCall, ToolResult
from executionkit.engine.messages import assistant_message, user_message
from executionkit.errors import MaxIterationsError, NoProgressError
from executionkit.patterns._react_round import Round, read_calls, thoughts_of
from executionkit.patterns.base import Asker, run_checkpoint
from executionkit.types import (
    CheckpointCallback,
    PatternResult,
    TerminationReason,
    TokenUsage,
    freeze,
    thaw,
)

if TYPE_CHECKING:
    from executionkit._llm import LLMResponse
    from executionkit.patterns._history import HistoryWindow
    from executionkit.patterns._progress import ProgressWatch
    from executionkit.patterns._tool_desk import ToolDesk

__all__ = ("Model", "ReactRun", "tool_names")

_OPEN_ENVELOPE: Final = "<tool_call>"
_CLOSE_ENVELOPE: Final = "</tool_call>"
_INCOMPLETE: Final = (
    "Your last message contains a tool call that is not complete. "
    "Make the call again, complete, or answer without it."
)
_FREE: Final = frozenset({"auto", "none"})


def tool_names(schemas: Sequence[Mapping[str, Any]]) -> dict[str, None]:
    """The names of the tools on offer, in order."""
    names: dict[str, None] = {}
    for schema in schemas:
        function = schema.get("function")
        source = function if isinstance(function, Mapping) else schema
        names[str(source.get("name", ""))] = None
    return names


class Model:
    """How the run asks its model for the next reply.

    Args:
        asker: Asks; its options hold the `tool_choice`.
        schemas: The tools on offer, in OpenAI's function format.
        json_mode: Whether the tools are offered as JSON, for models that know none.
    """

    __slots__ = ("_json_mode", "asker", "schemas")

    def __init__(
        self, asker: Asker, schemas: list[dict[str, Any]], *, json_mode: bool
    ) -> None:
        self.asker = asker
        self.schemas = schemas
        self._json_mode = json_mode
        if not schemas:  # servers refuse a choice of nothing
            asker.options.pop("tool_choice", None)

    async def ask(self, window: list[dict[str, Any]]) -> LLMResponse:
        """One reply, its tool calls read, whichever way the model makes them."""
        if not self.schemas:
            return await self.asker.ask(window)
        options = dict(self.asker.options)
        if not self._json_mode:
            options["tools"] = self.schemas
            return await self.asker.ask(window, options)
        choice = options.pop("tool_choice", None)
        answer = _answer_schema(options.pop("response_format", None))
        messages, wanted = offer(self.schemas, choice, window, answer=answer)
        if wanted is not None:
            options["response_format"] = wanted
        response = await self.asker.ask(messages, options)
        content, calls, problems = parse_offer(response.content, self.schemas)
        return replace(response, content=content, tool_calls=calls, problems=problems)

    def set_free(self) -> None:
        """A forced call was made: a model that must call for ever never answers."""
        choice = self.asker.options.get("tool_choice")
        kind = choice.get("type") if isinstance(choice, Mapping) else choice
        if kind is not None and kind not in _FREE:
            del self.asker.options["tool_choice"]


def _answer_schema(response_format: object) -> Mapping[str, Any] | None:
    """The JSON Schema that a `response_format` asks for; None = it asks for none."""
    if response_format is None:
        return None
    if isinstance(response_format, Mapping):
        inner = response_format.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        if isinstance(schema, Mapping):
            return schema
        if response_format.get("type") == "json_object":
            return {"type": "object"}
        if response_format.get("type") == "text":
            return None
    msg = (
        "`response_format` must have the type 'json_schema', 'json_object' or 'text' "
        f'when `tool_mode` is "json", got {response_format!r}'
    )
    raise ValueError(msg)


class ReactRun:
    """The state of one run.

    Args:
        model: Is asked.
        history: The conversation; grows by whole blocks, so it is always well-formed.
        window: Chooses what of it is sent.
        desk: Runs the calls.
        watch: Notices when nothing new happens.
        observation_chars: Characters of one observation.
        on_checkpoint: Called after each round with calls.
        repairs: How much of the given history had to be put right.
    """

    def __init__(
        self,
        model: Model,
        history: list[dict[str, Any]],
        *,
        window: HistoryWindow,
        desk: ToolDesk,
        watch: ProgressWatch,
        observation_chars: int,
        on_checkpoint: CheckpointCallback | None,
        repairs: int,
    ) -> None:
        self._model = model
        self._asker = model.asker
        self._offered = tool_names(model.schemas)
        self._history = history
        self._window = window
        self._desk = desk
        self._watch = watch
        self._chars = observation_chars
        self._on_checkpoint = on_checkpoint
        self._repairs = repairs
        self._rounds = 0
        self._made: list[str] = []
        self._unreadable = 0
        self._results: list[ToolResult] = []
        self._rejected = self._cut_replies = self._cut_observations = 0
        self._reason: TerminationReason | None = None

    async def run(self, max_rounds: int) -> PatternResult[str]:
        for index in range(max_rounds):
            window = await self._window.select(self._history)
            response = await self._model.ask(window)
            self._rounds = index + 1
            if response.was_truncated:
                self._note_cut()
            calls = read_calls(response)
            if calls:
                work = await self._act(response, calls)
                self._model.set_free()
                await self._checkpoint(index, response)
                if self._watch.add(work.signature()) and index + 1 < max_rounds:
                    self._stop_for_no_progress()
            elif self._is_incomplete(response):
                self._history.append(assistant_message(response.content))
                self._history.append(user_message(_INCOMPLETE))
            else:
                return self._finish(response)
        self._reason = TerminationReason.MAX_ITERATIONS
        msg = (
            f"No final answer after {max_rounds} rounds (`max_rounds`); "
            "the conversation so far is in `metadata['messages']`"
        )
        raise MaxIterationsError(msg)

    async def _act(
        self, response: LLMResponse, calls: list[ToolCall | CallProblem]
    ) -> Round:
        results: list[ToolResult | None] = [None] * len(calls)
        work = Round(response.content, calls, results, thoughts_of(response))
        try:
            await self._desk.run(work)
        finally:
            # Also when cancelled: what was done is on record, the rest is answered.
            self._history.extend(work.messages(self._chars, self._offered))
            self._book(work)
        return work

    def _book(self, work: Round) -> None:
        self._rejected += work.rejected
        self._cut_observations += work.truncated
        self._results.extend(item for item in work.results if item is not None)
        made = [call.name for call in work.calls if isinstance(call, ToolCall)]
        self._made.extend(made)
        self._unreadable += len(work.calls) - len(made)

    async def _checkpoint(self, index: int, response: LLMResponse) -> None:
        if self._on_checkpoint is None:
            return
        state = {
            "round": index,
            "last_response": response.content,
            "tool_calls_made": list(self._made),
            "cost": _cost_dict(self._asker.spent),
            "messages": [thaw(message) for message in self._history],
        }
        await run_checkpoint(self._on_checkpoint, index, state, context="react_loop")

    def _note_cut(self) -> None:
        self._cut_replies += 1
        text = (
            f"The reply of round {self._rounds} was truncated at the token limit; "
            "raise `max_tokens`"
        )
        warnings.warn(text, UserWarning, stacklevel=2)

    def _is_incomplete(self, response: LLMResponse) -> bool:
        """Whether the text holds the beginning of a tool call that never ends."""
        if not self._offered or response.was_truncated:
            return False
        start = response.content.rfind(_OPEN_ENVELOPE)
        return start >= 0 and response.content.find(_CLOSE_ENVELOPE, start) < 0

    def _finish(self, response: LLMResponse) -> PatternResult[str]:
        message = assistant_message(response.content)
        thoughts = thoughts_of(response)
        if thoughts:
            message["thinking_blocks"] = thoughts
        self._history.append(message)
        said = response.content or response.parts or response.refusal is not None
        if response.was_truncated:
            self._reason = TerminationReason.TRUNCATED
        elif not said:
            self._reason = TerminationReason.EMPTY_REPLY
        else:
            self._reason = TerminationReason.NATURAL
        facts = self.facts()
        if response.refusal is not None:
            facts["refusal"] = response.refusal
        return PatternResult(response.content, None, self._asker.spent, facts)

    def _stop_for_no_progress(self) -> None:
        self._reason = TerminationReason.NO_PROGRESS
        msg = (
            f"The same tool calls gave the same results again and again; stopped "
            f"after {self._rounds} rounds (`max_repeated_rounds`)"
        )
        raise NoProgressError(msg)

    def facts(self) -> dict[str, Any]:
        """The metadata of the run so far."""
        offered = len(self._offered)
        called = bool(self._made) or self._unreadable > 0
        return {
            "rounds": self._rounds,
            "tool_calls_made": list(self._made),
            "rejected_tool_calls": self._rejected,
            "truncated_responses": self._cut_replies,
            "truncated_observations": self._cut_observations,
            "messages_trimmed": self._window.trimmed,
            "summarized": self._window.summarized,
            "termination_reason": self._reason,
            "messages": tuple(freeze(message) for message in self._history),
            "tool_results": tuple(self._results),
            "tools_offered": offered,
            "tools_never_called": offered > 0 and not called,
            "history_repairs": self._repairs,
            **self._asker.facts(),
        }


def _cost_dict(usage: TokenUsage) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "llm_calls": usage.llm_calls,
    }
