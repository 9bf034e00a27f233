"""Seeing what happens: trace events and where they go, spans of OpenTelemetry.

A sink only watches: whatever it does, the run goes on as without it. Secrets are
hidden in front of every sink. Nothing is set up here; without the package
`opentelemetry` the spans cost nothing.
"""

from __future__ import annotations

from executionkit.observability._chat import ChatSpan, RequestSpan
from executionkit.observability._events import TraceCallback, TraceEvent, emit_trace
from executionkit.observability._genai import captures_content, shown
from executionkit.observability._logs import JsonLogFormatter, LoggingTraceSink
from executionkit.observability._meters import (
    count_cache,
    count_retry,
    measure_run,
    nobody_measures,
    track_in_flight,
)
from executionkit.observability._names import model_name, provider_name
from executionkit.observability._prometheus import PrometheusMetrics
from executionkit.observability._runs import PatternTrace, watched
from executionkit.observability._scope import (
    Scope,
    current_scope,
    error_name,
    nobody_watches,
    note_replay,
    note_wait,
    tell_wait,
)
from executionkit.observability._sinks import JsonlTraceSink, MemoryTraceSink
from executionkit.observability._spans import (
    LLM_CALL_SPAN_NAME,
    NO_SPAN,
    TOOL_SPAN_NAME,
    Span,
    SpanScope,
    llm_span,
    nobody_records,
    record_llm_span_attributes,
    tool_span,
)
from executionkit.observability._tee import TeeTraceSink
from executionkit.observability._tools import ToolSpan, refused_span
from executionkit.observability._wire import carried_context, trace_headers

__all__ = (
    "LLM_CALL_SPAN_NAME",
    "NO_SPAN",
    "TOOL_SPAN_NAME",
    "ChatSpan",
    "JsonLogFormatter",
    "JsonlTraceSink",
    "LoggingTraceSink",
    "MemoryTraceSink",
    "PatternTrace",
    "PrometheusMetrics",
    "RequestSpan",
    "Scope",
    "Span",
    "SpanScope",
    "TeeTraceSink",
    "ToolSpan",
    "TraceCallback",
    "TraceEvent",
    "captures_content",
    "carried_context",
    "count_cache",
    "count_retry",
    "current_scope",
    "emit_trace",
    "error_name",
    "llm_span",
    "measure_run",
    "model_name",
    "nobody_measures",
    "nobody_records",
    "nobody_watches",
    "note_replay",
    "note_wait",
    "provider_name",
    "record_llm_span_attributes",
    "refused_span",
    "shown",
    "tell_wait",
    "tool_span",
    "trace_headers",
    "track_in_flight",
    "watched",
)
