"""How the workers of a pool are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("PoolOptions",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """How workers are kept."""

    size: int = 4
    """Workers at most."""

    start_seconds: float = 5.0
    """How long a worker may take to start, and to import a tool."""

    grace: float = 1.0
    """Seconds from SIGTERM to SIGKILL."""

    max_calls: int | None = None
    """Calls after which a worker is replaced; None = never."""

    max_bytes: int | None = None
    """Resident memory above which a worker is replaced; None = never."""

    is_warm: bool = False
    """Whether all workers are started when the first one is needed."""

    fence: str = ""
    """What a sandbox allows, as JSON; empty = there is none."""

    env: Mapping[str, str] | None = None
    """The workers' environment; None = this process's."""
