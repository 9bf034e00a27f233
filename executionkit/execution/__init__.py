"""Import paths that the document of the tool runtime uses; the code is in `tools`."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
