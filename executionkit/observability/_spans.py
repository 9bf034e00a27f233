"""Spans of OpenTelemetry, when it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType, TracebackType
from typing import Any, Final, Protocol

from executionkit._redact import redact, redact_exception_text

__all__ = (
    "LLM_CALL_SPAN_NAME",
    "TOOL_SPAN_NAME",
    "Span",
    "SpanScope",
    "llm_span",
    "nobody_records",
    "record_llm_span_attributes",
    "tool_span",
)

LLM_CALL_SPAN_NAME: Final = "llm.call"
"""The name of the span of one model call."""

TOOL_SPAN_NAME: Final = "execute_tool"
"""The name of the span of one tool call."""

_TRACER_NAME: Final = "executionkit"


class Span(Protocol):
    """What is used of a span of OpenTelemetry."""

    def is_recording(self) -> bool:
        """Whether attributes are kept at all."""
        ...

    def set_attribute(self, key: str, value: str | float) -> None:
        """Attach one fact."""
        ...

    def set_status(self, status: Any, description: str | None = None) -> None:
        """Say how it ended."""
        ...

    def end(self) -> None:
        """Say that it ended."""
        ...


@lru_cache(maxsize=1)
def _opentelemetry() -> Any:
    # `opentelemetry` itself may be a bare folder that some other package left behind.
    try:
        return importlib.import_module("opentelemetry.trace")
    except Exception:  # noqa: BLE001 - a missing or broken package means: no spans
        return None


class SpanScope:
    """A span that lasts as long as a `with` block and ends exactly once.

    It is never the current span: a generator that is left in the middle, or closed
    from another task, leaves nothing behind in anybody's context.

    Args:
        name: The span's name.
        attributes: Facts known at the start.
    """

    __slots__ = ("_attributes", "_name", "_span")

    def __init__(self, name: str, attributes: Mapping[str, str | float]) -> None:
        self._name = name
        self._attributes = attributes
        self._span: Span | None = None

    def __enter__(self) -> Span | None:
        trace = _opentelemetry()
        if trace is not None:
            with contextlib.suppress(Exception):  # a span never changes the run
                tracer = trace.get_tracer(_TRACER_NAME)
                self._span = tracer.start_span(self._name, attributes=self._attributes)
        return self._span

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        span, self._span = self._span, None
        if span is None:
            return
        with contextlib.suppress(Exception):  # a span never changes the run
            try:
                _set_outcome(span, exc)
            finally:
                span.end()


def _set_outcome(span: Span, exc: BaseException | None) -> None:
    codes = _opentelemetry().StatusCode
    # A consumer that stops reading closes the generator: that is no failure.
    if exc is None or isinstance(exc, GeneratorExit):
        span.set_status(codes.OK)
        return
    span.set_attribute("error.type", type(exc).__qualname__)
    text = redact_exception_text(exc)
    if isinstance(exc, asyncio.CancelledError):
        text = "cancelled"
    span.set_status(codes.ERROR, text)


@lru_cache(maxsize=128)
def _model_attributes(model: str) -> Mapping[str, str | float]:
    # One model is called over and over; looking for secrets costs more than a span.
    return MappingProxyType({"llm.model": redact(model)})


def llm_span(model: str) -> SpanScope:
    """A span of one model call, for `with`; gives None without OpenTelemetry.

    Its status becomes ERROR, with the redacted text, when the block raises.
    """
    return SpanScope(LLM_CALL_SPAN_NAME, _model_attributes(model))


def tool_span(tool: str, call_id: str) -> SpanScope:
    """A span of one tool call, for `with`; gives None without OpenTelemetry.

    Its parent is the span that is current where the call was made. Its status becomes
    ERROR, with the redacted text, when the block raises.
    """
    if nobody_records():
        return _NO_SPAN
    return SpanScope(TOOL_SPAN_NAME, {"tool.name": tool, "tool.call_id": call_id})


def nobody_records() -> bool:
    """Whether no SDK is set up. A span would cost more than many a tool then."""
    trace = _opentelemetry()
    try:
        return trace is None or (
            type(trace.get_tracer_provider()) is trace.ProxyTracerProvider
        )
    except Exception:  # noqa: BLE001 - a span never changes the run
        return False


class _NoSpan(SpanScope):
    """A scope without a span; one serves all calls."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_exc: object) -> None:
        return None


_NO_SPAN: Final = _NoSpan(TOOL_SPAN_NAME, {})


def record_llm_span_attributes(
    span: Span | None,
    model: str,
    input_tokens: int,
    output_tokens: int,
    cost_usd: float | None = None,
) -> None:
    """Attach what a model call used to its span; nothing for None.

    Args:
        span: What `llm_span` gave.
        model: The model's name.
        input_tokens: Tokens sent.
        output_tokens: Tokens made.
        cost_usd: The price in US dollars, when it is known.
    """
    if span is None:
        return
    with contextlib.suppress(Exception):  # a span never changes the run
        if not span.is_recording():
            return
        span.set_attribute("llm.model", redact(model))
        span.set_attribute("llm.input_tokens", input_tokens)
        span.set_attribute("llm.output_tokens", output_tokens)
        if cost_usd is not None:
            span.set_attribute("cost_usd", cost_usd)
