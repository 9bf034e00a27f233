"""The parts of `executionkit.journal`."""

from __future__ import annotations
