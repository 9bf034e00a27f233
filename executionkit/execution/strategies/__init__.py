"""Where tools run."""

from __future__ import annotations

from executionkit.tools.strategies import ExecutionStrategy, InProcessStrategy

__all__ = ("ExecutionStrategy", "InProcessStrategy")
