"""The parts of the schema modules: reading schemas, checking values, reading types.

`problems` has the values and words that all share, `values` tells what JSON is, `walk`
knows where a schema's parts are. `rust`, `pure` and `keywords` (with `pattern` and
`regex`) check values; `shapes`, `types`, `fields`, `annotated`, `defs` and `docstring`
make schemas out of Python.
"""

from __future__ import annotations

__all__ = ()
