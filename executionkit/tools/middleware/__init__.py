"""The layers around one tool call, and how they are put together.

A layer is one of two things:

- a `Layer`: two plain functions, `enter` before and `leave` after. The runtime's own
  are of this kind; calling them costs next to nothing.
- a `Middleware`: any `async (request, nxt) -> value`. Slower, and free to do anything.

Inside of the path a failure is an exception and a success is the tool's plain value;
the processor turns either into a `ToolResult` once, at the outer edge.
"""

from __future__ import annotations

from executionkit.tools.middleware._base import (
    DEFAULT_ORDER,
    Layer,
    Middleware,
    Next,
    ToolRequest,
    compose,
)

__all__ = (
    "DEFAULT_ORDER",
    "Layer",
    "Middleware",
    "Next",
    "ToolRequest",
    "compose",
)
