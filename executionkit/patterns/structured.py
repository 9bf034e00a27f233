"""Structured output: JSON out of a model's text, checked, and repaired by asking."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from executionkit._constants import DEFAULT_MAX_TOKENS
from executionkit.cost import Budget, CostTracker
from executionkit.engine.json_extraction import JsonFinding, find_json
from executionkit.engine.messages import user_message
from executionkit.engine.schema import Validator, compile_schema
from executionkit.engine.schema_infer import schema_for_type
from executionkit.errors import PatternError, PermanentError
from executionkit.patterns.base import (
    calling_user,
    check_options,
    check_positive,
    checked_complete,
    spending,
)
from executionkit.types import PatternResult, TokenUsage, thaw

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider, LLMResponse
    from executionkit.engine.retry import RetryConfig
    from executionkit.observability import TraceCallback

__all__ = ("Verdict", "structured")

Verdict: TypeAlias = "bool | str | None"
"""A validator's answer: None, True or "" accept; False or a text reject."""

_MAX_ECHO = 2000
_FORMAT_REFUSED = frozenset({400, 415, 422})


async def structured(
    provider: LLMProvider,
    prompt: str,
    *,
    schema: Mapping[str, Any] | type[Any] | None = None,
    validator: Callable[[Any], Verdict | Awaitable[Verdict]] | None = None,
    max_retries: int = 3,
    repair: bool = True,
    native_format: bool | None = None,
    temperature: float | None = 0.0,
    max_tokens: int | None = DEFAULT_MAX_TOKENS,
    max_cost: TokenUsage | None = None,
    retry: RetryConfig | None = None,
    trace: TraceCallback | None = None,
    stream: bool = False,
    **options: Any,
) -> PatternResult[Any]:
    """Ask for JSON and return it parsed, checked against a schema and a validator.

    The reply is parsed strictly first, and repaired (trailing commas, quotes, Python
    literals, ...) only when that fails. A reply with several different answers is an
    error, not a guess. Whatever is wrong is told to the model, up to `max_retries`
    times; a reply cut off at the token limit is asked for once more with twice the
    limit.

    Args:
        provider: Answers.
        prompt: The task.
        schema: A JSON Schema, a pydantic model, a dataclass, a TypedDict, or a type
            such as `list[int]`. None = any object or array.
        validator: Further check of the parsed value; sync or async. Accepts with
            None, True or an empty text, rejects with False or a reason.
        max_retries: Times the model may correct itself.
        repair: Whether text that is almost JSON may be repaired.
        native_format: Whether to send the schema as `response_format`, so that the
            server constrains the reply. None = when the provider says that it
            supports it (`supports_response_format`); if the server then refuses the
            format, it is asked once without.
        temperature: Sampling temperature. None = the provider's default.
        max_tokens: Output tokens per reply. None = the provider's default.
        max_cost: Budget of the run; see `TokenUsage`.
        retry: How to retry model calls. None = `DEFAULT_RETRY`.
        trace: Receives trace events.
        stream: Not supported; must be False.
        **options: Passed to the provider (`response_format`, `seed`, ...).

    Returns:
        The value: read-only dicts and lists, or an instance of the type given as
        `schema`. Metadata: `parse_attempts`, `repair_attempts`, `validated`,
        `repairs` (what was changed in the text), `native_format`, `over_budget`.

    Raises:
        PatternError: When no reply passed, the reply was cut off, or the model
            refused; with cost, and the last reply in `metadata["last_response"]`.
        EvaluatorError: When the validator raises.
        LLMError: When a model call fails for good.
    """
    if stream:
        msg = "stream=True is not supported by structured(); the whole reply is needed"
        raise ValueError(msg)
    if isinstance(max_retries, bool) or max_retries < 0:
        msg = f"max_retries must be >= 0, got {max_retries!r}"
        raise ValueError(msg)
    check_options(structured, options)
    check_positive(max_tokens=1 if max_tokens is None else max_tokens)
    target = _Target.of(schema)
    tracker = CostTracker()
    run = _Run(
        provider,
        prompt,
        target,
        validator,
        repair,
        tracker,
        Budget.from_usage(max_cost),
        retry,
        trace,
        {"temperature": temperature, "max_tokens": max_tokens, **options},
    )
    run.use_native_format(native_format)
    with spending(tracker, metadata=run.facts):
        return await run.loop(max_retries)


@dataclass(frozen=True, slots=True)
class _Target:
    """What the value has to be."""

    schema: Mapping[str, Any] | None
    check: Validator | None
    build: Callable[[Any], Any] | None

    @classmethod
    def of(cls, schema: Mapping[str, Any] | type[Any] | None) -> _Target:
        if schema is None:
            return cls(None, None, None)
        if isinstance(schema, Mapping):
            plain = thaw(schema if isinstance(schema, dict) else dict(schema))
            return cls(plain, compile_schema(plain), None)
        plain, build = schema_for_type(schema)
        return cls(plain, compile_schema(plain), build)

    def problems(self, value: Any) -> str:
        """What is wrong with `value`, in words for the model; empty = nothing."""
        if self.check is None:
            return ""
        found = self.check.validate(value)
        return "; ".join(str(problem) for problem in found)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A reply judged: a value, or what to tell the model."""

    value: Any = None
    complaint: str = ""
    repairs: tuple[str, ...] = ()
    truncated: bool = False


class _Run:
    """The state of one run."""

    def __init__(
        self,
        provider: LLMProvider,
        prompt: str,
        target: _Target,
        validator: Callable[[Any], Verdict | Awaitable[Verdict]] | None,
        repair: bool,  # noqa: FBT001 - one of many fields
        tracker: CostTracker,
        budget: Budget,
        retry: RetryConfig | None,
        trace: TraceCallback | None,
        options: dict[str, Any],
    ) -> None:
        self._provider = provider
        self._prompt = prompt
        self._target = target
        self._validator = validator
        self._repair = repair
        self._tracker = tracker
        self._budget = budget
        self._retry = retry
        self._trace = trace
        self._options = options
        self._attempts = 0
        self._last = ""
        self._native = False

    def use_native_format(self, wanted: bool | None) -> None:  # noqa: FBT001 - the caller's own flag
        """Decide whether the schema goes along as `response_format`."""
        able = getattr(self._provider, "supports_response_format", False) is True
        if self._target.schema is None or "response_format" in self._options:
            return
        self._native = able if wanted is None else wanted

    def facts(self) -> dict[str, Any]:
        return {
            "parse_attempts": self._attempts,
            "repair_attempts": max(0, self._attempts - 1),
            "last_response": self._last[:_MAX_ECHO],
        }

    async def loop(self, max_retries: int) -> PatternResult[Any]:
        text = self._first_prompt()
        enlarged = False
        complaint = ""
        for _ in range(max_retries + 1):
            response = await self._ask(text)
            outcome = await self._judge(response)
            if not outcome.complaint:
                return self._result(outcome)
            complaint = outcome.complaint
            if outcome.truncated:
                # The same request would be cut off at the same place.
                if enlarged or not self._enlarge():
                    break
                enlarged = True
                text = self._first_prompt()
            else:
                text = self._repair_prompt(complaint)
        msg = f"JSON parse failed after {self._attempts} attempt(s): {complaint}"
        raise PatternError(msg)

    async def _ask(self, text: str) -> LLMResponse:
        options = dict(self._options)
        if self._native:
            options["response_format"] = self._response_format()
        try:
            return await self._complete(text, options)
        except PermanentError as exc:
            if not self._native or exc.metadata.get("status") not in _FORMAT_REFUSED:
                raise
            self._native = False
            return await self._complete(text, dict(self._options))

    async def _complete(self, text: str, options: dict[str, Any]) -> LLMResponse:
        response = await checked_complete(
            self._provider,
            [user_message(text)],
            self._tracker,
            self._budget,
            self._retry,
            self._trace,
            **options,
        )
        self._attempts += 1
        self._last = response.content
        return response

    def _response_format(self) -> dict[str, Any]:
        named = {"name": "answer", "schema": self._target.schema}
        return {"type": "json_schema", "json_schema": named}

    async def _judge(self, response: LLMResponse) -> _Outcome:
        if response.refusal is not None and not response.content:
            msg = f"The model refused: {response.refusal[:500]}"
            raise PatternError(msg, metadata={"refusal": response.refusal})
        finding = self._find(response.content)
        cut_off = response.was_truncated and (finding is None or finding.truncated)
        if cut_off:
            limit = self._options.get("max_tokens")
            at = "the token limit" if limit is None else f"{limit} tokens"
            complaint = f"The reply was truncated at {at}"
            return _Outcome(complaint=complaint, truncated=True)
        if finding is None:
            return _Outcome(complaint="The reply contains no valid JSON")
        if finding.truncated:
            return _Outcome(complaint="The JSON in the reply is not complete")
        return await self._judge_finding(finding)

    def _find(self, text: str) -> JsonFinding | None:
        scalar = self._target.schema is not None
        finding = find_json(text, allow_scalar=scalar)
        if finding is None or finding.truncated:
            mended = find_json(text, repair=True, allow_scalar=scalar)
            if self._repair and mended is not None and not mended.truncated:
                return mended
        return finding

    async def _judge_finding(self, finding: JsonFinding) -> _Outcome:
        if finding.ambiguous:
            return _Outcome(
                complaint=(
                    f"The reply contains {finding.candidates} different JSON values; "
                    "it must contain exactly one"
                )
            )
        value = finding.value
        problems = self._target.problems(value)
        if problems:
            return _Outcome(complaint=f"The JSON does not match the schema: {problems}")
        if self._target.build is not None:
            try:
                value = self._target.build(value)
            except (TypeError, ValueError) as exc:
                return _Outcome(complaint=f"The JSON is not valid: {str(exc)[:500]}")
        rejection = await self._ask_validator(value)
        return _Outcome(value, rejection, finding.repairs)

    async def _ask_validator(self, value: Any) -> str:
        if self._validator is None:
            return ""
        with calling_user("validator"):
            verdict: Any = self._validator(value)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        if verdict is None or verdict is True or verdict == "":
            return ""
        if verdict is False:
            return "The JSON was rejected by validation"
        return str(verdict)[:_MAX_ECHO]

    def _enlarge(self) -> bool:
        limit = self._options.get("max_tokens")
        if not isinstance(limit, int):
            return False
        self._options["max_tokens"] = limit * 2
        return True

    def _first_prompt(self) -> str:
        if self._target.schema is None:
            return (
                "Return only a valid JSON object or array, with no other text.\n\n"
                f"{self._prompt}"
            )
        shape = json.dumps(self._target.schema, ensure_ascii=False)
        return (
            "Return only one valid JSON value that matches this JSON Schema, with no "
            f"other text.\n\nSchema: {shape}\n\nTask: {self._prompt}"
        )

    def _repair_prompt(self, complaint: str) -> str:
        echo = self._last[:_MAX_ECHO]
        if len(self._last) > _MAX_ECHO:
            echo += f"\n[... {len(self._last) - _MAX_ECHO} more characters]"
        return (
            f"{self._first_prompt()}\n\nYour previous reply was not accepted: "
            f"{complaint}.\n\nPrevious reply:\n{echo}\n\nReturn the corrected JSON only."
        )

    def _result(self, outcome: _Outcome) -> PatternResult[Any]:
        facts = {
            "parse_attempts": self._attempts,
            "repair_attempts": self._attempts - 1,
            "validated": self._validator is not None or self._target.check is not None,
            "repairs": outcome.repairs,
            "native_format": self._native,
            "over_budget": self._tracker.over(self._budget),
        }
        return PatternResult(outcome.value, None, self._tracker.to_usage(), facts)
