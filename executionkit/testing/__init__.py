"""Tools for testing code that uses this library: fakes with the real contracts."""

from __future__ import annotations

from executionkit.testing.clock import FakeClock, settle

__all__ = ("FakeClock", "settle")
