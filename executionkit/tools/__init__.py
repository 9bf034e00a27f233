"""The tool runtime: what a model said goes in, results come out.

Its names are importable from `executionkit`; the modules here group them.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
