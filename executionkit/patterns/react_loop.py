"""The tool loop: think, act, observe, until the model answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal

from executionkit._arguments import (
    check_budget,
    check_callable,
    check_messages,
    check_prompt,
    check_provider,
    check_retry,
    check_trace,
    shown,
)
from executionkit._constants import DEFAULT_MAX_CONCURRENCY, DEFAULT_MAX_TOKENS
from executionkit.calls import ToolRunner
from executionkit.engine.messages import user_message
from executionkit.patterns._call_limits import CallLimits
from executionkit.patterns._history import HistoryWindow, Summarizer
from executionkit.patterns._mend import mend_history
from executionkit.patterns._progress import ProgressWatch
from executionkit.patterns._react_run import Model, ReactRun, tool_names
from executionkit.patterns._tool_desk import ToolDesk
from executionkit.patterns._tool_list import ToolListRunner
from executionkit.patterns.base import (
    Asker,
    check_max_tokens,
    check_options,
    check_positive,
    check_temperature,
    raise_unless_tools,
    spending,
)
from executionkit.types import CheckpointCallback, PatternResult, TokenUsage, Tool

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider, Omit
    from executionkit.approval import ApprovalGate
    from executionkit.engine.retry import RetryConfig
    from executionkit.journal import Journal
    from executionkit.observability import TraceCallback
    from executionkit.patterns._generators import ProgressCallback

__all__ = ("react_loop",)


async def react_loop(
    provider: LLMProvider,
    prompt: str | None = None,
    tools: Iterable[Tool] | ToolRunner = (),
    *,
    messages: Iterable[Mapping[str, Any]] | None = None,
    max_rounds: int = 8,
    max_observation_chars: int = 12000,
    tool_timeout: float | None = None,
    max_tool_calls_per_round: int = 32,
    max_tool_calls: int | None = None,
    tool_call_limits: Mapping[str, int] | None = None,
    max_tool_concurrency: int = DEFAULT_MAX_CONCURRENCY,
    max_repeated_rounds: int | None = 4,
    tool_mode: Literal["native", "json"] = "native",
    temperature: float | Omit | None = 0.3,
    max_tokens: int | Omit | None = DEFAULT_MAX_TOKENS,
    max_cost: TokenUsage | None = None,
    retry: RetryConfig | None = None,
    max_history_messages: int | None = None,
    trace: TraceCallback | None = None,
    approval_gate: ApprovalGate | None = None,
    redact_trace_args: bool = True,
    on_checkpoint: CheckpointCallback | None = None,
    on_progress: ProgressCallback | None = None,
    summarizer: Summarizer | None = None,
    transcript: list[dict[str, Any]] | None = None,
    journal: Journal | None = None,
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
            Calls without results and results without calls are put right.
        max_rounds: Model replies at most, the final answer among them.
        max_observation_chars: Characters of one observation; longer ones keep head
            and tail, and say so.
        tool_timeout: Seconds per tool call, instead of each tool's own. For a
            `ToolRunner` it includes waiting there.
        max_tool_calls_per_round: Calls of one reply that are run; the model is told
            about the rest.
        max_tool_calls: Calls of the whole run. None = no limit.
        tool_call_limits: Calls of the whole run by tool name.
        max_tool_concurrency: Calls of one round in flight at once.
        max_repeated_rounds: Equal rounds (or cycles of up to four) in a row after
            which the run ends for lack of progress. None = never.
        tool_mode: `"native"`, or `"json"` for servers and templates without native
            tool calls: the tools are offered as a JSON Schema for the reply.
        temperature: Sampling temperature. None = the provider's default, `OMIT` = not
            sent.
        max_tokens: Output tokens per reply. None and `OMIT` as above.
        max_cost: Budget of the run: a `TokenUsage`, or a `CostLimit` (money).
        retry: How to retry model calls. None = `DEFAULT_RETRY`.
        max_history_messages: Messages sent at most. System messages, the latest
            question and the newest block are always sent.
        trace: Receives trace events.
        approval_gate: Asked before each valid call. A no becomes an observation;
            silence does too, unless the gate's policy is `"raise"`.
        redact_trace_args: Hide argument values in trace events.
        on_checkpoint: Called after each round with its index and state.
        on_progress: Called with each value that a generator tool yields (for a list
            of tools); the model sees the last one only.
        summarizer: Sums up messages that are not sent any more.
        transcript: A list of yours that always holds the well-formed conversation,
            also when the run fails or is cancelled.
        journal: Keeps replies, results, approvals and summaries, so that a run that
            broke off goes on where it was. A tool that had begun is run again when it
            is `idempotent` or only reads. Callbacks are called again.
        **options: Passed to the provider (`tool_choice`, `seed`, `stop`, ...). A
            `tool_choice` that forces calls holds until the first one was made.

    Returns:
        The final answer. Metadata: `rounds`, `tool_calls_made` (the names of all calls
        that the model asked for, run or not), `rejected_tool_calls` (how many were
        over a limit of calls; unknown tools, wrong arguments and refused approvals
        are not among them), `truncated_responses`, `truncated_observations`,
        `messages_trimmed`, `summarized`, `termination_reason` (a
        `TerminationReason`), `messages` (the whole conversation), `tool_results`
        (complete, in order; `exception` of each is what the tool raised, of which the
        model sees the type only), `tools_offered`, `tools_never_called` (offered, but no
        call came: the server or its template may not support them),
        `history_repairs`, `over_budget`, and `refusal` when the model refused; with a
        journal `replayed` (what came from it) and `replayed_cost` (a part of the cost).

    Raises:
        TypeError: When the provider cannot call tools, an argument is of the wrong
            kind, or an option looks misspelt.
        ValueError: For arguments out of range, and malformed `messages`.
        MaxIterationsError: When `max_rounds` is reached; with cost and metadata.
        NoProgressError: When rounds repeat; a `MaxIterationsError`.
        ApprovalTimeoutError: When nobody answered a gate whose policy is `"raise"`.
        BudgetExhaustedError: When the budget has no room for the next call.
        DeadlineExceededError: When the deadline of the current context has passed.
        LLMError: When a model call fails for good.
        InDoubtError: When tool calls had begun as an earlier run broke off, and may not
            be repeated.
        JournalMismatchError: When the journal is that of another program.

    Warns:
        UserWarning: When the token limit cut a reply off.
    """
    if tool_mode not in {"native", "json"}:
        msg = f'tool_mode must be "native" or "json", got {tool_mode!r}'
        raise ValueError(msg)
    check_provider(provider)
    if tool_mode == "native":
        raise_unless_tools(provider)
    check_options(react_loop, options)
    check_positive(
        max_rounds=max_rounds,
        max_tool_calls_per_round=max_tool_calls_per_round,
        max_observation_chars=max_observation_chars,
        max_tool_concurrency=max_tool_concurrency,
        max_history_messages=_or(max_history_messages, 1),
    )
    check_max_tokens(max_tokens)
    check_temperature(temperature)
    check_budget("max_cost", max_cost)
    check_retry("retry", retry)
    check_trace(trace)
    _check_more(max_repeated_rounds, tool_timeout, approval_gate)
    _check_callables(on_checkpoint, summarizer)
    _check_transcript(transcript)
    _check_limits(tool_call_limits)
    limits = CallLimits(max_tool_calls_per_round, max_tool_calls, tool_call_limits)
    settings = {"temperature": temperature, "max_tokens": max_tokens, **options}
    asker = Asker(provider, max_cost, retry, trace, settings, journal, "react_loop")
    if asker.record is not None:
        summarizer = asker.record.summed_up(summarizer)
    history, repairs = _start(prompt, messages)
    runner = _runner(tools, tool_timeout, on_progress, asker.secrets)
    schemas = [dict(item) for item in await runner.tool_schemas()]
    offered = tool_names(schemas)
    limits.check_names(offered)
    if transcript is not None:
        transcript[:] = history
        history = transcript
    desk = ToolDesk(
        runner,
        offered,
        limits,
        gate=approval_gate,
        trace=trace,
        redact_arguments=redact_trace_args,
        secrets=asker.secrets,
        concurrency=max_tool_concurrency,
        timeout=tool_timeout,
        record=asker.record,
    )
    run = ReactRun(
        Model(asker, schemas, json_mode=tool_mode == "json"),
        history,
        window=HistoryWindow(max_history_messages, summarizer, asker, history),
        desk=desk,
        watch=ProgressWatch(max_repeated_rounds),
        observation_chars=max_observation_chars,
        on_checkpoint=on_checkpoint,
        repairs=repairs,
    )
    async with spending(
        asker.tracker, metadata=run.facts, pattern="react_loop", trace=trace
    ):
        return await run.run(max_rounds)


def _or(value: int | None, instead: int) -> int:
    return instead if value is None else value


def _check_more(
    max_repeated_rounds: int | None,
    tool_timeout: float | None,
    approval_gate: object,
) -> None:
    repeats = _or(max_repeated_rounds, 2)
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 2:
        msg = f"max_repeated_rounds must be >= 2 or None, got {max_repeated_rounds!r}"
        raise ValueError(msg)
    seconds: object = tool_timeout
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float, NoneType)):
        msg = f"`tool_timeout` must be a number of seconds, got {shown(seconds)}"
        raise TypeError(msg)
    if seconds is not None and not seconds > 0:
        msg = f"tool_timeout must be > 0 seconds, got {tool_timeout}"
        raise ValueError(msg)
    if approval_gate is not None and not hasattr(approval_gate, "request"):
        msg = (
            "`approval_gate` must be an ApprovalGate, got "
            f"{type(approval_gate).__name__}"
        )
        raise TypeError(msg)


def _check_limits(limits: object) -> None:
    if limits is not None and not isinstance(limits, Mapping):
        msg = (
            "`tool_call_limits` must map names of tools to numbers of calls, got "
            f"{shown(limits)}; to limit all calls together use `max_tool_calls`"
        )
        raise TypeError(msg)


def _check_callables(on_checkpoint: object, summarizer: object) -> None:
    if on_checkpoint is not None:
        hint = "pass a function `(index, state)`"
        check_callable("on_checkpoint", on_checkpoint, hint=hint)
    if summarizer is not None:
        hint = "pass an async function `(messages)`"
        check_callable("summarizer", summarizer, hint=hint)


def _check_transcript(transcript: object) -> None:
    if transcript is not None and not isinstance(transcript, list):
        msg = f"`transcript` must be a list, which is then filled; got {shown(transcript)}"
        raise TypeError(msg)


def _runner(
    tools: Iterable[Tool] | ToolRunner,
    timeout: float | None,
    on_progress: ProgressCallback | None,
    secrets: tuple[str, ...],
) -> ToolRunner:
    if not isinstance(tools, ToolRunner):
        return ToolListRunner(
            tools, timeout=timeout, on_progress=on_progress, secrets=secrets
        )
    if on_progress is not None:
        msg = "`on_progress` needs a list of tools; a ToolRunner reports its own way"
        raise ValueError(msg)
    return tools


def _start(
    prompt: str | None, messages: Iterable[Mapping[str, Any]] | None
) -> tuple[list[dict[str, Any]], int]:
    if prompt is not None and messages is not None:
        msg = "react_loop takes `prompt` or `messages`, not both"
        raise ValueError(msg)
    if messages is None:
        if prompt is None:
            msg = "react_loop requires either prompt or messages"
            raise ValueError(msg)
        check_prompt("prompt", prompt)
        return [user_message(prompt)], 0
    check_messages("messages", messages)
    history, repairs = mend_history(messages)
    if not history:
        msg = "`messages` must be a non-empty list of messages"
        raise ValueError(msg)
    return history, repairs
