"""Where tools run: in this process, or elsewhere."""

from __future__ import annotations

from executionkit.tools.strategies._base import ExecutionStrategy
from executionkit.tools.strategies.inprocess import InProcessStrategy

__all__ = ("ExecutionStrategy", "InProcessStrategy")
