"""Parts of `executionkit.evals`."""

from __future__ import annotations
