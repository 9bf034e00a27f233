"""Tools in this process."""

from __future__ import annotations

from executionkit.tools.strategies import InProcessStrategy

__all__ = ("InProcessStrategy",)
