"""Spans of OpenTelemetry, when it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple, Protocol

from executionkit._redact import redact, redact_exception_text
from executionkit.context import get_current_context
from executionkit.errors import ExecutionKitError

__all__ = (
    "LLM_CALL_SPAN_NAME",
    "NO_SPAN",
    "TOOL_SPAN_NAME",
    "Linking",
    "Span",
    "SpanScope",
    "linking",
    "llm_span",
    "names_provider",
    "nobody_records",
    "record_llm_span_attributes",
    "tool_span",
)

LLM_CALL_SPAN_NAME: Final = "llm.call"
"""The name of the span of one model call."""

TOOL_SPAN_NAME: Final = "execute_tool"
"""The first word of the name of the span of one tool call; the tool's name follows."""

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


class Linking(NamedTuple):
    """How spans find each other."""

    context: Any
    """The module `opentelemetry.context`."""

    trace: Any
    """The module `opentelemetry.trace`."""

    propagator: Any
    """Reads and writes W3C Trace Context."""


@lru_cache(maxsize=1)
def linking() -> Linking | None:
    """What is needed to link spans; None without OpenTelemetry."""
    try:
        w3c = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        return Linking(
            importlib.import_module("opentelemetry.context"),
            importlib.import_module("opentelemetry.trace"),
            w3c.TraceContextTextMapPropagator(),
        )
    except Exception:  # noqa: BLE001 - a missing or broken package means: no links
        return None


def _parent() -> Any:
    """The parent of a new span: the current one, else the caller's in the context."""
    links, context = linking(), get_current_context()
    if links is None or context is None or context.traceparent is None:
        return None  # OpenTelemetry looks for the current one by itself
    if links.trace.get_current_span().get_span_context().is_valid:
        return None
    carrier = {"traceparent": context.traceparent}
    if context.tracestate:
        carrier["tracestate"] = context.tracestate
    return links.propagator.extract(carrier)


class SpanScope:
    """A span that lasts as long as a `with` block and ends exactly once.

    It is not the current span: a generator that is left in the middle, or closed
    from another task, leaves nothing behind in anybody's context. Coroutines may make
    it so with `make_current` and `restore`.

    Args:
        name: The span's name.
        attributes: Facts known at the start.
        is_client: Whether it asks somebody else.
    """

    __slots__ = ("_attributes", "_before", "_is_client", "_name", "_span")

    def __init__(
        self,
        name: str,
        attributes: Mapping[str, Any],
        *,
        is_client: bool = False,
    ) -> None:
        self._name = name
        self._attributes = attributes
        self._is_client = is_client
        self._before: Any = None
        self._span: Span | None = None

    @property
    def span_id(self) -> str | None:
        """Its id, 16 hex digits; None when it is not recorded."""
        span: Any = self._span
        with contextlib.suppress(Exception):  # a span never changes the run
            if span is not None and span.is_recording():
                return f"{span.get_span_context().span_id:016x}"
        return None

    def __enter__(self) -> Span | None:
        trace = _opentelemetry()
        if trace is not None:
            with contextlib.suppress(Exception):  # a span never changes the run
                tracer = trace.get_tracer(_TRACER_NAME)
                options: dict[str, Any] = {"attributes": self._attributes}
                parent = _parent()
                if parent is not None:
                    options["context"] = parent
                links = linking()
                if self._is_client and links is not None:
                    options["kind"] = links.trace.SpanKind.CLIENT
                self._span = tracer.start_span(self._name, **options)
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

    def make_current(self) -> None:
        """What the running task does from now on is inside of it."""
        links = linking()
        if self._span is None or links is None:
            return
        with contextlib.suppress(Exception):  # a span never changes the run
            before = links.context.get_current()
            links.context.attach(links.trace.set_span_in_context(self._span, before))
            self._before = before

    def restore(self) -> None:
        """What was current before is so again."""
        links, before = linking(), self._before
        if before is None or links is None:
            return
        self._before = None
        with contextlib.suppress(Exception):  # a span never changes the run
            # Not `detach`: that complains where a task is left by another way.
            links.context.attach(before)

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Attach facts."""
        span: Any = self._span
        if span is not None:
            with contextlib.suppress(Exception):  # a span never changes the run
                span.set_attributes(attributes)

    def tell(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Add something that happened, at this time."""
        span: Any = self._span
        if span is not None:
            with contextlib.suppress(Exception):  # a span never changes the run
                span.add_event(name, attributes)

    def fail(self, error_type: str, text: str = "") -> None:
        """End it as failed, where there is no exception."""
        span, self._span = self._span, None
        if span is not None:
            with contextlib.suppress(Exception):  # a span never changes the run
                try:
                    span.set_attribute("error.type", error_type)
                    span.set_status(_opentelemetry().StatusCode.ERROR, redact(text))
                finally:
                    span.end()


def _set_outcome(span: Span, exc: BaseException | None) -> None:
    codes = _opentelemetry().StatusCode
    # A consumer that stops reading closes the generator: that is no failure.
    if exc is None or isinstance(exc, GeneratorExit):
        span.set_status(codes.OK)
        return
    span.set_attribute("error.type", type(exc).__qualname__)
    if isinstance(exc, ExecutionKitError):
        span.set_attribute("executionkit.error.code", exc.code.value)
    text = redact_exception_text(exc)
    if isinstance(exc, asyncio.CancelledError):
        text = "cancelled"
    span.set_status(codes.ERROR, text)


@lru_cache(maxsize=128)
def _model_attributes(model: str) -> Mapping[str, str | float]:
    # One model is called over and over; looking for secrets costs more than a span.
    return MappingProxyType({"llm.model": redact(model)})


def llm_span(model: str) -> SpanScope:
    """A span of one request to a model, for `with`; gives None without OpenTelemetry.

    Its status becomes ERROR, with the redacted text, when the block raises.
    """
    return SpanScope(LLM_CALL_SPAN_NAME, _model_attributes(model), is_client=True)


def tool_span(tool: str, call_id: str) -> SpanScope:
    """A span of one tool call, for `with`; gives None without OpenTelemetry.

    Its name is `execute_tool {tool}`. Its parent is the span that is current where the
    call was made. Its status becomes ERROR, with the redacted text, when the block
    raises.
    """
    if nobody_records():
        return NO_SPAN
    name = redact(tool)
    return SpanScope(
        f"{TOOL_SPAN_NAME} {name}",
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": redact(call_id),
            "tool.name": name,
            "tool.call_id": redact(call_id),
        },
    )


def nobody_records() -> bool:
    """Whether no SDK is set up. A span would cost more than many a tool then."""
    trace = _opentelemetry()
    try:
        # Asked again and again, the official way costs more than all the rest: it
        # looks into the environment each time.
        if trace is None:
            return True
        if getattr(trace, "_TRACER_PROVIDER", trace) is None:
            return not names_provider("OTEL_PYTHON_TRACER_PROVIDER")
        return type(trace.get_tracer_provider()) is trace.ProxyTracerProvider
    except Exception:  # noqa: BLE001 - a span never changes the run
        return False


@lru_cache(maxsize=4)
def names_provider(variable: str) -> bool:
    """Whether the environment names a provider, to be loaded when it is needed."""
    return variable in os.environ


class _NoSpan(SpanScope):
    """A scope without a span; one serves all calls."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_exc: object) -> None:
        return None


NO_SPAN: Final = _NoSpan(TOOL_SPAN_NAME, {})


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
