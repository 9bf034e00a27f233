"""The tool loop: think, act, observe, until the model answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from executionkit._constants import DEFAULT_MAX_CONCURRENCY, DEFAULT_MAX_TOKENS
from executionkit._json_tools import offer, parse_offer
from executionkit.calls import ToolCall, ToolResult, ToolRunner
from executionkit.cost import Budget, CostTracker
from executionkit.engine.messages import assistant_message, user_message
from executionkit.errors import MaxIterationsError, NoProgressError
from executionkit.patterns._history import HistoryWindow, Summarizer, mend_history
from executionkit.patterns._progress import ProgressWatch
from executionkit.patterns._react_round import CallLimits, Round, ToolDesk, read_calls
from executionkit.patterns._tool_list import ToolListRunner
from executionkit.patterns.base import (
    check_options,
    check_positive,
    checked_complete,
    raise_unless_tools,
    run_checkpoint,
    spending,
)
from executionkit.types import (
    CheckpointCallback,
    PatternResult,
    TerminationReason,
    TokenUsage,
    Tool,
    freeze,
)

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider, LLMResponse
    from executionkit.approval import ApprovalGate
    from executionkit.engine.retry import RetryConfig
    from executionkit.observability import TraceCallback

__all__ = ("react_loop",)

_OPEN_ENVELOPE = "<tool_call>"
_CLOSE_ENVELOPE = "</tool_call>"
_INCOMPLETE = (
    "Your last message contains a tool call that is not complete. "
    "Make the call again, complete, or answer without it."
)


async def react_loop(
    provider: LLMProvider,
    prompt: str | None = None,
    tools: Sequence[Tool] | ToolRunner = (),
    *,
    messages: Sequence[Mapping[str, Any]] | None = None,
    max_rounds: int = 8,
    max_observation_chars: int = 12000,
    tool_timeout: float | None = None,
    max_tool_calls_per_round: int = 32,
    max_tool_calls: int | None = None,
    tool_call_limits: Mapping[str, int] | None = None,
    max_tool_concurrency: int = DEFAULT_MAX_CONCURRENCY,
    max_repeated_rounds: int | None = 4,
    tool_mode: Literal["native", "json"] = "native",
    temperature: float | None = 0.3,
    max_tokens: int | None = DEFAULT_MAX_TOKENS,
    max_cost: TokenUsage | None = None,
    retry: RetryConfig | None = None,
    max_history_messages: int | None = None,
    trace: TraceCallback | None = None,
    approval_gate: ApprovalGate | None = None,
    redact_trace_args: bool = True,
    on_checkpoint: CheckpointCallback | None = None,
    summarizer: Summarizer | None = None,
    transcript: list[dict[str, Any]] | None = None,
    **options: Any,
) -> PatternResult[str]:
    """Let a model call tools until it answers.

    Every tool call is checked against the tool's full JSON Schema, then approved,
    then run; whatever goes wrong becomes an observation for the model.

    Args:
        provider: A model that can call tools.
        prompt: The question; or give `messages`.
        tools: A list of `Tool`, or any `ToolRunner`.
        messages: A conversation to go on with, instead of `prompt`; never changed.
        max_rounds: Model replies with tool calls at most.
        max_observation_chars: Characters of one observation; longer ones keep head
            and tail.
        tool_timeout: Seconds per tool call, instead of each tool's own (for a list).
        max_tool_calls_per_round: Calls of one reply that are run; the model is told
            about the rest.
        max_tool_calls: Calls of the whole run. None = no limit.
        tool_call_limits: Calls of the whole run by tool name.
        max_tool_concurrency: Calls of one round in flight at once.
        max_repeated_rounds: Equal rounds (or cycles of up to four) in a row after
            which the run ends for lack of progress. None = never.
        tool_mode: `"native"`, or `"json"` for servers and templates without native
            tool calls: the tools are offered as a JSON Schema for the reply.
        temperature: Sampling temperature. None = the provider's default.
        max_tokens: Output tokens per reply. None = the provider's default.
        max_cost: Budget of the run; see `TokenUsage`.
        retry: How to retry model calls. None = `DEFAULT_RETRY`.
        max_history_messages: Messages sent at most. System messages, the latest
            question and the newest block are always sent.
        trace: Receives trace events.
        approval_gate: Asked before each valid call.
        redact_trace_args: Hide argument values in trace events.
        on_checkpoint: Called after each round with its index and state.
        summarizer: Sums up messages that are not sent any more.
        transcript: A list of yours that always holds the well-formed conversation,
            also when the run fails or is cancelled.
        **options: Passed to the provider (`tool_choice`, `seed`, `stop`, ...).

    Returns:
        The final answer. Metadata: `rounds`, `tool_calls_made` (names),
        `rejected_tool_calls`, `truncated_responses`, `truncated_observations`,
        `messages_trimmed`, `summarized`, `termination_reason`, `messages` (the whole
        conversation), `tool_results` (complete, in order), `tools_offered`,
        `tools_never_called` (offered, but no call came: the server or its template
        may not support them), `history_repairs`, `over_budget`.

    Raises:
        TypeError: When the provider cannot call tools, or an option looks misspelt.
        ValueError: For arguments out of range.
        MaxIterationsError: When `max_rounds` is reached; with cost and metadata.
        NoProgressError: When rounds repeat; a `MaxIterationsError`.
        BudgetExhaustedError: When the budget has no room for the next call.
        LLMError: When a model call fails for good.
    """
    if tool_mode not in {"native", "json"}:
        msg = f'tool_mode must be "native" or "json", got {tool_mode!r}'
        raise ValueError(msg)
    if tool_mode == "native":
        raise_unless_tools(provider)
    check_options(react_loop, options)
    check_positive(
        max_rounds=max_rounds,
        max_tool_calls_per_round=max_tool_calls_per_round,
        max_observation_chars=max_observation_chars,
        max_tool_concurrency=max_tool_concurrency,
        max_history_messages=1
        if max_history_messages is None
        else max_history_messages,
        max_tokens=1 if max_tokens is None else max_tokens,
        max_repeated_rounds=2 if max_repeated_rounds is None else max_repeated_rounds,
    )
    if tool_timeout is not None and not tool_timeout > 0:
        msg = f"tool_timeout must be > 0 seconds, got {tool_timeout}"
        raise ValueError(msg)
    history, repairs = _start(prompt, messages)
    runner = tools if isinstance(tools, ToolRunner) else None
    if runner is None:
        runner = ToolListRunner(tools, timeout=tool_timeout)  # type: ignore[arg-type]
    tracker = CostTracker()
    if transcript is not None:
        transcript[:] = history
        history = transcript
    loop = _Loop(
        provider=provider,
        schemas=[dict(item) for item in await runner.tool_schemas()],
        history=history,
        window=HistoryWindow(max_history_messages, summarizer, tracker),
        desk=ToolDesk(
            runner,
            CallLimits(max_tool_calls_per_round, max_tool_calls, tool_call_limits),
            gate=approval_gate,
            trace=trace,
            redact_arguments=redact_trace_args,
            concurrency=max_tool_concurrency,
        ),
        watch=ProgressWatch(max_repeated_rounds),
        tracker=tracker,
        budget=Budget.from_usage(max_cost),
        retry=retry,
        trace=trace,
        json_mode=tool_mode == "json",
        observation_chars=max_observation_chars,
        on_checkpoint=on_checkpoint,
        options={"temperature": temperature, "max_tokens": max_tokens, **options},
        repairs=repairs,
    )
    with spending(tracker, metadata=loop.facts):
        return await loop.run(max_rounds)


def _start(
    prompt: str | None, messages: Sequence[Mapping[str, Any]] | None
) -> tuple[list[dict[str, Any]], int]:
    if prompt is not None and messages is not None:
        msg = "react_loop takes `prompt` or `messages`, not both"
        raise ValueError(msg)
    if messages is None:
        if prompt is None:
            msg = "react_loop requires either prompt or messages"
            raise ValueError(msg)
        return [user_message(prompt)], 0
    if not messages:
        msg = "`messages` must be a non-empty list of messages"
        raise ValueError(msg)
    return mend_history(messages)


class _Loop:
    """The state of one run."""

    def __init__(
        self,
        *,
        provider: LLMProvider,
        schemas: list[dict[str, Any]],
        history: list[dict[str, Any]],
        window: HistoryWindow,
        desk: ToolDesk,
        watch: ProgressWatch,
        tracker: CostTracker,
        budget: Budget,
        retry: RetryConfig | None,
        trace: TraceCallback | None,
        json_mode: bool,
        observation_chars: int,
        on_checkpoint: CheckpointCallback | None,
        options: dict[str, Any],
        repairs: int,
    ) -> None:
        self._provider = provider
        self._schemas = schemas
        self._history = history
        self._window = window
        self._desk = desk
        self._watch = watch
        self._tracker = tracker
        self._budget = budget
        self._retry = retry
        self._trace = trace
        self._json_mode = json_mode
        self._chars = observation_chars
        self._on_checkpoint = on_checkpoint
        self._options = options
        self._repairs = repairs
        self._rounds = 0
        self._last = Round("", [], [])
        self._made: list[str] = []
        self._results: list[ToolResult] = []
        self._rejected = self._cut_replies = self._cut_observations = 0
        self._reason = TerminationReason.MAX_ITERATIONS

    async def run(self, max_rounds: int) -> PatternResult[str]:
        for index in range(max_rounds):
            response = await self._ask()
            self._rounds = index + 1
            self._cut_replies += response.was_truncated
            calls = read_calls(response)
            if calls:
                await self._act(response, calls, index)
                if self._watch.add(self._last.signature()) and index + 1 < max_rounds:
                    self._stop_for_no_progress()
            elif self._is_incomplete(response):
                self._history.append(assistant_message(response.content))
                self._history.append(user_message(_INCOMPLETE))
            else:
                return self._finish(response)
        msg = (
            f"No final answer after {max_rounds} rounds (`max_rounds`); "
            "the conversation so far is in `metadata['messages']`"
        )
        raise MaxIterationsError(msg)

    async def _ask(self) -> LLMResponse:
        window = list(await self._window.select(self._history))
        if not self._json_mode or not self._schemas:
            if self._schemas:
                return await self._complete(window, tools=self._schemas)
            return await self._complete(window)
        choice = self._options.get("tool_choice", "auto")
        offered, response_format = offer(self._schemas, choice, window)
        response = await self._complete(offered, response_format=response_format)
        content, found, problems = parse_offer(response.content, self._schemas)
        return replace(response, content=content, tool_calls=found, problems=problems)

    async def _complete(
        self, window: list[dict[str, Any]], **extra: Any
    ) -> LLMResponse:
        options = {**self._options, **extra}
        if self._json_mode:
            options.pop("tool_choice", None)
        return await checked_complete(
            self._provider,
            window,
            self._tracker,
            self._budget,
            self._retry,
            self._trace,
            **options,
        )

    async def _act(self, response: LLMResponse, calls: list[Any], index: int) -> None:
        work = Round(response.content, calls, [None] * len(calls))
        self._last = work
        try:
            await self._desk.run(work)
        finally:
            self._history.extend(work.messages(self._chars))
            self._book(work)
        if self._on_checkpoint is not None:
            state = {
                "round": index,
                "last_response": response.content,
                "tool_calls_made": list(self._made),
                "cost": _cost_dict(self._tracker.to_usage()),
                "messages": [dict(message) for message in self._history],
            }
            await run_checkpoint(
                self._on_checkpoint, index, state, context="react_loop"
            )

    def _book(self, work: Round) -> None:
        self._rejected += work.rejected
        self._cut_observations += work.truncated
        for call, result in zip(work.calls, work.results, strict=True):
            if result is not None:
                self._results.append(result)
            if isinstance(call, ToolCall):
                self._made.append(call.name)

    def _is_incomplete(self, response: LLMResponse) -> bool:
        """Whether the text holds the beginning of a tool call that never ends."""
        if not self._schemas or response.was_truncated:
            return False
        start = response.content.rfind(_OPEN_ENVELOPE)
        return start >= 0 and response.content.find(_CLOSE_ENVELOPE, start) < 0

    def _finish(self, response: LLMResponse) -> PatternResult[str]:
        self._history.append(assistant_message(response.content))
        if response.was_truncated:
            self._reason = TerminationReason.TRUNCATED
        elif not response.content and response.finish_reason == "tool_calls":
            self._reason = TerminationReason.EMPTY_REPLY
        else:
            self._reason = TerminationReason.NATURAL
        facts = self.facts()
        if response.refusal is not None:
            facts["refusal"] = response.refusal
        return PatternResult(response.content, None, self._tracker.to_usage(), facts)

    def _stop_for_no_progress(self) -> None:
        self._reason = TerminationReason.NO_PROGRESS
        msg = (
            f"The same tool calls gave the same results again and again; stopped "
            f"after {self._rounds} rounds (`max_repeated_rounds`)"
        )
        raise NoProgressError(msg)

    def facts(self) -> dict[str, Any]:
        """The metadata of the run so far."""
        offered = len(self._schemas)
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
            "tools_never_called": offered > 0 and not self._made,
            "history_repairs": self._repairs,
            "over_budget": self._tracker.over(self._budget),
        }


def _cost_dict(usage: TokenUsage) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "llm_calls": usage.llm_calls,
    }
