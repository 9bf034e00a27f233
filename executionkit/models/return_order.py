"""The order in which results come back."""

from __future__ import annotations

from executionkit.calls import ReturnOrder

__all__ = ("ReturnOrder",)
