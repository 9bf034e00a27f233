"""The name of this machine."""

from __future__ import annotations

import os
from functools import cache

__all__ = ("machine_name",)


@cache
def machine_name() -> str:
    """The name of this machine, looked up once."""
    uname = getattr(os, "uname", None)  # missing on Windows
    if uname is not None:
        return str(uname().nodename)
    import platform  # slow to import

    return platform.node()
