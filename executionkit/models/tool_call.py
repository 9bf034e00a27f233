"""A request to run one tool."""

from __future__ import annotations

from executionkit.calls import ToolCall

__all__ = ("ToolCall",)
