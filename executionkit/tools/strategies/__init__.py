"""Where tools run: in this process, or elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from executionkit.tools.strategies._base import ExecutionStrategy
from executionkit.tools.strategies.inprocess import InProcessStrategy

if TYPE_CHECKING:
    from executionkit.tools.strategies.subprocess import (
        IsolatedStrategy,
        RemoteToolError,
        RemoteTraceback,
        Sandbox,
        SerializationError,
        SubprocessStrategy,
        ToolLimits,
        WorkerCrashedError,
        WorkerStartError,
    )

__all__ = (
    "ExecutionStrategy",
    "InProcessStrategy",
    "IsolatedStrategy",
    "RemoteToolError",
    "RemoteTraceback",
    "Sandbox",
    "SerializationError",
    "SubprocessStrategy",
    "ToolLimits",
    "WorkerCrashedError",
    "WorkerStartError",
)


def __getattr__(name: str) -> Any:
    # Most programs run their tools in this process, and need none of this.
    if name in __all__:
        from executionkit.tools.strategies import subprocess

        return getattr(subprocess, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
