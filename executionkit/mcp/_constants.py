"""Names and numbers of the Model Context Protocol."""

from __future__ import annotations

from typing import Final

__all__ = (
    "BATCH_VERSION",
    "HEADER_MISMATCH",
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "LATEST_LEGACY",
    "LEGACY_VERSIONS",
    "LOG_LEVELS",
    "META_CAPABILITIES",
    "META_CLIENT",
    "META_LOG_LEVEL",
    "META_SERVER",
    "META_SUBSCRIPTION",
    "META_VERSION",
    "METHOD_NOT_FOUND",
    "MISSING_CAPABILITY",
    "MODERN_VERSIONS",
    "PARSE_ERROR",
    "RESOURCE_NOT_FOUND",
    "SERVER_BUSY",
    "UNSUPPORTED_VERSION",
)

LEGACY_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions that begin with `initialize`, the oldest first."""

LATEST_LEGACY: Final = LEGACY_VERSIONS[-1]
"""What is offered to a client that asks for an unknown version."""

MODERN_VERSIONS: Final = ("2026-07-28",)
"""Versions without a handshake: every request says who asks."""

BATCH_VERSION: Final = "2025-03-26"
"""The only version in which several messages may come as one JSON array."""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
SERVER_BUSY: Final = -32000
RESOURCE_NOT_FOUND: Final = -32002
"""Before 2026-07-28; from then on it is `INVALID_PARAMS`."""

HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022

META_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
META_CLIENT: Final = "io.modelcontextprotocol/clientInfo"
META_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
META_LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
META_SERVER: Final = "io.modelcontextprotocol/serverInfo"
META_SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"

LOG_LEVELS: Final = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)
"""The least severe first."""
