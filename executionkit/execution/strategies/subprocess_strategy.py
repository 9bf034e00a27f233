"""Tools in worker processes."""

from __future__ import annotations

from executionkit.tools.strategies import IsolatedStrategy, SubprocessStrategy

__all__ = ("IsolatedStrategy", "SubprocessStrategy")
