"""What one tool call came to."""

from __future__ import annotations

from executionkit.calls import ToolResult

__all__ = ("ToolResult",)
