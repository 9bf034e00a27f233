"""Seeing what happens: trace events and where they go, spans of OpenTelemetry.

A sink only watches: whatever it does, the run goes on as without it. Secrets are
hidden in front of every sink. Nothing is set up here; without the package
`opentelemetry` the spans cost nothing.
"""

from __future__ import annotations

from executionkit.observability._events import TraceCallback, TraceEvent, emit_trace
from executionkit.observability._sinks import JsonlTraceSink, MemoryTraceSink
from executionkit.observability._spans import (
    LLM_CALL_SPAN_NAME,
    TOOL_SPAN_NAME,
    Span,
    SpanScope,
    llm_span,
    nobody_records,
    record_llm_span_attributes,
    tool_span,
)

__all__ = (
    "LLM_CALL_SPAN_NAME",
    "TOOL_SPAN_NAME",
    "JsonlTraceSink",
    "MemoryTraceSink",
    "Span",
    "SpanScope",
    "TraceCallback",
    "TraceEvent",
    "emit_trace",
    "llm_span",
    "nobody_records",
    "record_llm_span_attributes",
    "tool_span",
)
