"""Where tools run."""

from __future__ import annotations

from executionkit.tools.strategies import (
    ExecutionStrategy,
    InProcessStrategy,
    IsolatedStrategy,
    SubprocessStrategy,
)

__all__ = (
    "ExecutionStrategy",
    "InProcessStrategy",
    "IsolatedStrategy",
    "SubprocessStrategy",
)
