"""What tools raise that is no `Exception`."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from executionkit.errors import ToolExecutionError

__all__ = ("odd_failure",)

_PASSES: Final = (Exception, asyncio.CancelledError, KeyboardInterrupt, SystemExit)


def odd_failure(exc: BaseException, tool_name: str) -> BaseException | None:
    """What to raise in the place of what a tool raised; None = that itself.

    `KeyboardInterrupt` and `SystemExit` end the program, a cancellation is looked at
    elsewhere; anything else that is no `Exception`, as a `GeneratorExit`, is a failure
    of this tool, and no matter of other calls.
    """
    if isinstance(exc, _PASSES):
        return None
    if isinstance(exc, BaseExceptionGroup):
        exits: Any = exc.subgroup((KeyboardInterrupt, SystemExit))
        while isinstance(exits, BaseExceptionGroup):
            exits = exits.exceptions[0]
        if exits is not None:
            return exits  # type: ignore[no-any-return]
    return ToolExecutionError(tool_name, exc)
