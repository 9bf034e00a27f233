"""The reasoning patterns: async functions over any model provider.

`patterns.react_loop` is the function; the module of the same name is reachable with
`importlib.import_module("executionkit.patterns.react_loop")`.
"""

from __future__ import annotations

from executionkit.patterns.consensus import consensus
from executionkit.patterns.map_reduce import map_reduce
from executionkit.patterns.react_loop import react_loop
from executionkit.patterns.refine_loop import refine_loop
from executionkit.patterns.structured import structured

__all__ = ("consensus", "map_reduce", "react_loop", "refine_loop", "structured")
