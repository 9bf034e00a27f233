"""Tools for testing code that uses this library: fakes with the real contracts."""

from __future__ import annotations

from executionkit.testing.batches import BatchAnswer, ScriptedBatchClient
from executionkit.testing.clock import FakeClock, settle
from executionkit.testing.http import (
    Gate,
    ReceivedRequest,
    Reply,
    ScriptedServer,
    drip,
    json_reply,
    no_reply,
    raw_reply,
    reset_reply,
    sse_reply,
)
from executionkit.testing.provider import (
    Request,
    ScriptedProvider,
    tool_call_reply,
)

__all__ = (
    "BatchAnswer",
    "FakeClock",
    "Gate",
    "ReceivedRequest",
    "Reply",
    "Request",
    "ScriptedBatchClient",
    "ScriptedProvider",
    "ScriptedServer",
    "drip",
    "json_reply",
    "no_reply",
    "raw_reply",
    "reset_reply",
    "settle",
    "sse_reply",
    "tool_call_reply",
)
