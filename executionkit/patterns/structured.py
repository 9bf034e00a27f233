"""Structured output: JSON out of a model's text, checked, and repaired by asking."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from executionkit._arguments import check_callable, check_prompt
from executionkit._constants import DEFAULT_MAX_TOKENS
from executionkit._redact import redact
from executionkit.engine._checks import check_int
from executionkit.engine.messages import user_message
from executionkit.errors import LLMError, PatternError
from executionkit.patterns._format import (
    json_format,
    refuses_request,
    supports_format,
)
from executionkit.patterns._json_target import JsonReader, Reading, Target, Verdict
from executionkit.patterns.base import (
    Asker,
    check_options,
    check_run,
    spending,
)
from executionkit.types import PatternResult, TokenUsage

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider, LLMResponse, Omit
    from executionkit.engine.retry import RetryConfig
    from executionkit.observability import TraceCallback

__all__ = ("Verdict", "structured")

_T = TypeVar("_T")

_MAX_ECHO: Final = 2000
_MAX_TAIL: Final = 500
_FAILED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "schema_mismatch": "No reply was accepted",
        "rejected": "No JSON passed the validator",
    }
)


@overload
async def structured(
    provider: LLMProvider,
    prompt: str,
    *,
    schema: type[_T],
    validator: Callable[[Any], Verdict | Awaitable[Verdict]] | None = None,
    max_retries: int = 3,
    repair: bool = True,
    native_format: bool | None = None,
    temperature: float | Omit | None = 0.0,
    max_tokens: int | Omit | None = DEFAULT_MAX_TOKENS,
    max_cost: TokenUsage | None = None,
    retry: RetryConfig | None = None,
    trace: TraceCallback | None = None,
    stream: bool = False,
    **options: Any,
) -> PatternResult[_T]: ...


@overload
async def structured(
    provider: LLMProvider,
    prompt: str,
    *,
    schema: object = None,
    validator: Callable[[Any], Verdict | Awaitable[Verdict]] | None = None,
    max_retries: int = 3,
    repair: bool = True,
    native_format: bool | None = None,
    temperature: float | Omit | None = 0.0,
    max_tokens: int | Omit | None = DEFAULT_MAX_TOKENS,
    max_cost: TokenUsage | None = None,
    retry: RetryConfig | None = None,
    trace: TraceCallback | None = None,
    stream: bool = False,
    **options: Any,
) -> PatternResult[Any]: ...


async def structured(
    provider: LLMProvider,
    prompt: str,
    *,
    schema: object = None,
    validator: Callable[[Any], Verdict | Awaitable[Verdict]] | None = None,
    max_retries: int = 3,
    repair: bool = True,
    native_format: bool | None = None,
    temperature: float | Omit | None = 0.0,
    max_tokens: int | Omit | None = DEFAULT_MAX_TOKENS,
    max_cost: TokenUsage | None = None,
    retry: RetryConfig | None = None,
    trace: TraceCallback | None = None,
    stream: bool = False,
    **options: Any,
) -> PatternResult[Any]:
    """Ask for JSON and return it parsed, checked against a schema and a validator.

    The reply is parsed strictly first, and repaired (trailing commas, quotes, Python
    literals, ...) only when that fails; a repair never guesses. Of several values in a
    reply, those that fit the schema count; when there are different ones among them,
    that is an error. Whatever is wrong is told to the model, up to `max_retries`
    times. A reply cut off at the token limit is no wrong JSON: it is asked for once
    more with twice the limit. A refusal is final.

    Args:
        provider: Answers.
        prompt: The task.
        schema: A JSON Schema, a pydantic model, a dataclass, a TypedDict, or a type
            such as `list[int]` or `Literal["yes", "no"]`. None = any object or array.
        validator: Further check of the parsed value; sync or async. Accepts with
            None, True or an empty text, rejects with False or a reason.
        max_retries: Times the model may correct itself. 0 = exactly one request
            (and what `retry` adds).
        repair: Whether text that is almost JSON may be repaired.
        native_format: Whether to send the schema as `response_format`, so that the
            server constrains the reply. None = when the provider says that it
            supports it (`supports_response_format`). If the server then refuses the
            request as such (HTTP 400, 415, 422), it is asked once without.
        temperature: Sampling temperature. None = the provider's default, `OMIT` = not
            sent.
        max_tokens: Output tokens per reply. None and `OMIT` as above.
        max_cost: Budget of the run: a `TokenUsage`, or a `CostLimit` (money).
        retry: How to retry model calls. None = `DEFAULT_RETRY`.
        trace: Receives trace events.
        stream: Not supported; must be False.
        **options: Passed to the provider (`response_format`, `seed`, ...).

    Returns:
        The value: read-only dicts and lists, or an instance of the type given as
        `schema`. Metadata: `parse_attempts`, `repair_attempts`, `validated`,
        `repairs` (what was changed in the text), `native_format`, `over_budget`.

    Raises:
        PatternError: When no reply passed. `metadata["reason"]` says why the last one
            did not: `"no_json"`, `"incomplete_json"`, `"ambiguous"`,
            `"schema_mismatch"`, `"rejected"` (by the validator), `"truncated"`,
            `"refused"`; `metadata["last_response"]` has its first 2000 characters.
        EvaluatorError: When the validator raises.
        BudgetExhaustedError: When the budget has no room for the next call.
        DeadlineExceededError: When the deadline of the current context has passed.
        LLMError: When a model call fails for good.
        SchemaError: When the schema is malformed, before any call.
        MissingExtraError: When the schema cannot be checked without a package that is
            not installed, before any call.
        ValueError: For an argument out of range.
        TypeError: For an argument of the wrong kind, and for an option that is a
            parameter of something else, or looks like a misspelt one.
    """
    if stream:
        msg = "stream=True is not supported by structured(); the whole reply is needed"
        raise ValueError(msg)
    check_int("max_retries", max_retries, 0)
    check_options(structured, options)
    check_run(provider, max_cost, retry, trace, temperature, max_tokens)
    check_prompt("prompt", prompt)
    if validator is not None:
        hint = "pass a function `(value)`; None or True accepts"
        check_callable("validator", validator, hint=hint)
    target = Target.of(schema)
    settings = {"temperature": temperature, "max_tokens": max_tokens, **options}
    asker = Asker(provider, max_cost, retry, trace, settings)
    reader = JsonReader(target, validator, repair=repair, secrets=asker.secrets)
    run = _Run(asker, prompt, target.schema)
    run.use_native_format(native_format)
    async with spending(
        asker.tracker, metadata=run.facts, pattern="structured", trace=trace
    ):
        reading = await run.loop(reader, max_retries)
    facts = {
        **run.counts(),
        "validated": validator is not None or schema is not None,
        "repairs": reading.repairs,
        "native_format": run.is_native,
        **asker.facts(),
    }
    return PatternResult(reading.value, None, asker.spent, facts)


class _Run:
    """The conversation of one run."""

    def __init__(
        self, asker: Asker, prompt: str, schema: Mapping[str, Any] | None
    ) -> None:
        self._asker = asker
        self._schema = schema
        self._task = _first_prompt(prompt, schema)
        self._options = dict(asker.options)
        self._attempts = 0
        self._last = ""
        self._reason = ""
        self.is_native = False

    def use_native_format(self, wanted: bool | None) -> None:  # noqa: FBT001 - the caller's own flag
        """Decide whether the schema goes along as `response_format`."""
        if self._schema is None or "response_format" in self._options:
            return
        able = supports_format(self._asker.provider)
        self.is_native = able if wanted is None else wanted

    def counts(self) -> dict[str, int]:
        return {
            "parse_attempts": self._attempts,
            "repair_attempts": max(0, self._attempts - 1),
        }

    def facts(self) -> dict[str, Any]:
        """What must survive an error."""
        shown = redact(self._last[:_MAX_ECHO], secrets=self._asker.secrets)
        facts: dict[str, Any] = {**self.counts(), "last_response": shown}
        if self._reason:
            facts["reason"] = self._reason
        return facts

    async def loop(self, reader: JsonReader, max_retries: int) -> Reading:
        """Ask until a reply passes.

        Raises:
            PatternError: When none did.
        """
        text = self._task
        enlarged = False
        reading = Reading()
        for _ in range(max_retries + 1):
            try:
                response = await self._ask(text)
            except LLMError as exc:
                if reading.reason != "truncated" or not refuses_request(exc):
                    raise
                # It was the larger limit that the server did not take.
                raise self._failure(reading) from exc
            reading = await reader.read(response, self._limit())
            self._reason = reading.reason
            if not reading.reason:
                return reading
            if reading.reason == "refused":
                break
            if reading.reason != "truncated":
                text = self._repair_prompt(reading.complaint)
            elif enlarged or not self._enlarge():
                break  # the same request would be cut off at the same place
            else:
                enlarged = True
        raise self._failure(reading)

    def _failure(self, reading: Reading) -> PatternError:
        why = redact(reading.complaint, secrets=self._asker.secrets)
        if reading.reason == "refused":
            return PatternError(f"The model refused: {why}")
        if reading.reason == "truncated":
            return PatternError(f"{why}, before its JSON was complete (`max_tokens`)")
        what = _FAILED.get(reading.reason, "JSON parse failed")
        return PatternError(f"{what} after {self._attempts} attempt(s): {why}")

    async def _ask(self, text: str) -> LLMResponse:
        messages = [user_message(text)]
        try:
            response = await self._asker.ask(messages, self._wanted())
        except LLMError as exc:
            if not self.is_native or not refuses_request(exc):
                raise
            self.is_native = False
            response = await self._asker.ask(messages, self._options)
        self._attempts += 1
        self._last = response.content
        return response

    def _wanted(self) -> dict[str, Any]:
        if not self.is_native or self._schema is None:
            return self._options
        return {**self._options, "response_format": json_format("answer", self._schema)}

    def _limit_name(self) -> str:
        named = self._options.get("max_completion_tokens") is not None
        return "max_completion_tokens" if named else "max_tokens"

    def _limit(self) -> Any:
        asked = self._options.get(self._limit_name())
        if asked is not None:
            return asked
        return getattr(self._asker.provider, "default_max_tokens", None)

    def _enlarge(self) -> bool:
        limit = self._limit()
        if type(limit) is not int:
            return False
        self._options[self._limit_name()] = limit * 2
        return True

    def _repair_prompt(self, complaint: str) -> str:
        return (
            f"{self._task}\n\nYour previous reply was not accepted: {complaint}.\n\n"
            f"Previous reply:\n{_excerpt(self._last)}\n\nReturn the corrected JSON only."
        )


def _excerpt(text: str) -> str:
    """Head and tail of a reply: the next request must not carry all of a long one."""
    if len(text) <= _MAX_ECHO:
        return text
    cut = len(text) - _MAX_ECHO
    head, tail = text[: _MAX_ECHO - _MAX_TAIL], text[-_MAX_TAIL:]
    return f"{head}\n[... {cut} characters left out ...]\n{tail}"


def _first_prompt(prompt: str, schema: Mapping[str, Any] | None) -> str:
    if schema is None:
        return (
            f"Return only a valid JSON object or array, with no other text.\n\n{prompt}"
        )
    shape = json.dumps(schema, ensure_ascii=False)
    return (
        "Return only one valid JSON value that matches this JSON Schema, with no "
        f"other text.\n\nSchema: {shape}\n\nTask: {prompt}"
    )
