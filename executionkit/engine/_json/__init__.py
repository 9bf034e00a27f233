"""The parts of `json_extraction`.

`strict` reads and never fails in an unexpected way. `strings` and `repair` read what is
almost JSON. `marks` knows where JSON may begin, `rank` what a value is worth, `choice`
keeps the best one, and `scan` walks through a text.
"""

from __future__ import annotations

__all__ = ()
