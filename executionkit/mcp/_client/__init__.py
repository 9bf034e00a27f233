"""The parts of `executionkit.mcp.client`."""

from __future__ import annotations

__all__ = ()
