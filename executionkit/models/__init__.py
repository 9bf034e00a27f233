"""Import paths that the document of the tool runtime uses; the code is in `calls`."""

from __future__ import annotations

from executionkit.calls import ReturnOrder, ToolCall, ToolResult

__all__ = ("ReturnOrder", "ToolCall", "ToolResult")
