"""Fresh ids."""

from __future__ import annotations

import os

__all__ = ("new_id",)


def new_id() -> str:
    """A fresh unique id (the text of a random UUID, version 4)."""
    # By hand: the module `uuid` costs more import time than the rest of this one.
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return (
        f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}"
        f"-{variant}{digits[17:20]}-{digits[20:]}"
    )
