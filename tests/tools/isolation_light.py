"""Tools whose module is imported at once, for tests that start many workers."""

from __future__ import annotations

import time


def light_nap(seconds: float) -> None:
    time.sleep(seconds)


def light_echo(text: str) -> str:
    return text
