"""What the two model APIs say on the wire, as pure functions: no I/O, no clock reads.

`common` has what both share (tool calls, JSON, URLs), `failures` maps statuses and
error objects to the error tree, `retry_hints` reads how long a server asks to wait,
`openai*` and `anthropic*` speak the two dialects.
"""

from __future__ import annotations
