"""What `FallbackProvider` is made of."""

from __future__ import annotations

from executionkit._fallback.asking import Asking
from executionkit._fallback.members import (
    HedgeOptions,
    Latencies,
    Member,
    ProviderStatus,
)
from executionkit._fallback.rules import Rules
from executionkit._fallback.streams import FallbackStream

__all__ = (
    "Asking",
    "FallbackStream",
    "HedgeOptions",
    "Latencies",
    "Member",
    "ProviderStatus",
    "Rules",
)
