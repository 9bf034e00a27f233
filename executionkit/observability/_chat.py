"""The span and the metrics of one model call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from executionkit._clock import get_clock
from executionkit._redact import redact
from executionkit._usage import response_usage
from executionkit.observability._genai import (
    message_attributes,
    reply_attributes,
    request_attributes,
    response_attributes,
)
from executionkit.observability._meters import (
    measure_run,
    measure_tokens,
    nobody_measures,
    track_in_flight,
)
from executionkit.observability._scope import current_scope, nobody_watches
from executionkit.observability._spans import (
    LLM_CALL_SPAN_NAME,
    NO_SPAN,
    Span,
    SpanScope,
    nobody_records,
    record_llm_span_attributes,
)

__all__ = ("ChatSpan", "RequestSpan")

# What metrics are divided by: few values each.
_DIMENSIONS = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
    "server.address",
    "server.port",
)


class ChatSpan:
    """One model call, retries included, as OpenTelemetry sees it.

    Args:
        provider: Is asked.
        messages: What it is asked.
        options: What it is asked with.
        secrets: Texts that must not be shown.
    """

    __slots__ = ("_began", "_facts", "_response", "_secrets", "attempts", "span")

    def __init__(
        self,
        provider: object,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        secrets: Iterable[str] = (),
    ) -> None:
        self.span: SpanScope = NO_SPAN
        self.attempts: int = 0
        self._began: float | None = None
        self._facts: dict[str, Any] | None = None
        self._response: Any = None
        self._secrets = secrets
        records = not nobody_records()
        if not records and nobody_measures():
            return
        self._facts = facts = request_attributes(provider, options)
        if records:
            name = f"chat {facts.get('gen_ai.request.model', '')}".rstrip()
            given = {**facts, **message_attributes(messages, secrets)}
            self.span = SpanScope(name, given, is_client=True)

    def begin(self, *, streams: bool) -> None:
        """The call begins."""
        if self._facts is None:
            return
        self._began = get_clock().monotonic()
        track_in_flight("chat", 1)
        if self.span is not NO_SPAN:
            self.span.__enter__()
            if streams:
                self.span.set({"gen_ai.request.stream": True})

    def answered(self, response: Any) -> None:
        """It was answered, or a part of the answer is known."""
        self._response = response

    def end(self, exc: BaseException | None) -> None:
        """It is over: well, or with `exc`."""
        began, self._began = self._began, None
        if began is None or self._facts is None:
            return
        took = get_clock().monotonic() - began
        dimensions = self._tell_answer()
        self.span.__exit__(None if exc is None else type(exc), exc, None)
        track_in_flight("chat", -1)
        failed = exc is not None and not isinstance(exc, GeneratorExit)
        error = type(exc).__qualname__ if failed else None
        measure_run("chat", took, dimensions, error)

    def _tell_answer(self) -> dict[str, Any]:
        facts = dict(self._facts or {})
        response, self._response = self._response, None
        if response is not None:
            said = response_attributes(response)
            facts.update(said)
            self.span.set({**said, **reply_attributes(response, self._secrets)})
        self.span.set({"executionkit.attempts": self.attempts})
        dimensions = {name: facts[name] for name in _DIMENSIONS if name in facts}
        if response is not None:
            usage = response_usage(response)
            measure_tokens("input", usage.input_tokens, dimensions)
            measure_tokens("output", usage.output_tokens, dimensions)
        return dimensions


class RequestSpan(SpanScope):
    """One request to a model, for `with`: an attempt of a call, or all of it.

    A request that no pattern has made has no `ChatSpan` around it: then this one has
    its attributes, and is measured.

    Args:
        model: The model's name.
        provider: Who sends it.
    """

    __slots__ = ("_dimensions", "_is_whole", "_response", "_sent")

    def __init__(self, model: str, provider: object = None) -> None:
        facts: dict[str, Any] = {"llm.model": redact(model)}
        scope = current_scope()
        self._is_whole = not (scope is not None and scope.is_call)
        self._is_whole = self._is_whole and not nobody_watches()
        self._dimensions: dict[str, Any] = {}
        self._response: Any = None
        self._sent = 0.0
        if self._is_whole:
            asked = request_attributes(provider, {"model": model})
            self._dimensions = {n: asked[n] for n in _DIMENSIONS if n in asked}
            facts.update(asked)
        super().__init__(LLM_CALL_SPAN_NAME, facts, is_client=True)

    def __enter__(self) -> Span | None:
        if self._is_whole:
            self._sent = get_clock().monotonic()
            track_in_flight("chat", 1)
        return super().__enter__()

    def answered(self, response: Any) -> None:
        """The answer, or what has come of it."""
        self._response = response

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        response, self._response = self._response, None
        if response is not None and (self._span is not None or self._is_whole):
            self._tell(response)
        super().__exit__(kind, exc, traceback)
        if self._is_whole:
            self._is_whole = False
            track_in_flight("chat", -1)
            failed = exc is not None and not isinstance(exc, GeneratorExit)
            took = get_clock().monotonic() - self._sent
            error = type(exc).__qualname__ if failed else None
            measure_run("chat", took, self._dimensions, error)

    def _tell(self, response: Any) -> None:
        usage = response_usage(response)
        model = str(self._attributes["llm.model"])
        record_llm_span_attributes(
            self._span, model, usage.input_tokens, usage.output_tokens
        )
        if self._is_whole:
            self.set(response_attributes(response))
            measure_tokens("input", usage.input_tokens, self._dimensions)
            measure_tokens("output", usage.output_tokens, self._dimensions)
