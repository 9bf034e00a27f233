"""Seeing what happens: trace events and where they go, spans of OpenTelemetry.

A sink only watches: whatever it does, the run goes on as without it. Secrets are
hidden in front of every sink. Nothing is set up here; without the package
`opentelemetry` the spans cost nothing.
"""

from __future__ import annotations

from executionkit.observability._events import TraceCallback, TraceEvent, emit_trace
from executionkit.observability._names import (
    model_name,
    provider_name,
    server_of,
)
from executionkit.observability._scope import (
    Scope,
    current_scope,
    error_name,
    new_span_id,
    note_wait,
)
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
    "Scope",
    "Span",
    "SpanScope",
    "TraceCallback",
    "TraceEvent",
    "current_scope",
    "emit_trace",
    "error_name",
    "llm_span",
    "model_name",
    "new_span_id",
    "nobody_records",
    "note_wait",
    "provider_name",
    "record_llm_span_attributes",
    "server_of",
    "tool_span",
)
