"""The parts of the MCP server."""

from __future__ import annotations

__all__ = ()
