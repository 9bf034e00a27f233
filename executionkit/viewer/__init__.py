"""Traces for people: one HTML page with a timeline, and the numbers of a run.

executionkit trace view run.jsonl       # or: python -m executionkit.viewer run.jsonl
executionkit trace summary run.jsonl
"""

from __future__ import annotations

from executionkit.viewer._page import (
    TracePage,
    is_trace_page,
    render_trace,
    write_trace_page,
)
from executionkit.viewer._summary import TraceGroup, TraceSummary, summarize_trace

__all__ = (
    "TraceGroup",
    "TracePage",
    "TraceSummary",
    "is_trace_page",
    "render_trace",
    "summarize_trace",
    "write_trace_page",
)
