"""One processor for programs that need no more: over the default registry."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from executionkit.tools.processor import ToolProcessor

if TYPE_CHECKING:
    from executionkit.calls import ToolResult

__all__ = ("get_default_processor", "process", "process_text")


@cache
def get_default_processor() -> ToolProcessor:
    """The processor of the process, made when it is first asked for; no layers on."""
    return ToolProcessor()


async def process(
    data: object,
    timeout: float | None = None,
    use_cache: bool = True,  # noqa: FBT001, FBT002 - the order of `ToolProcessor.process`
    request_id: str | None = None,
) -> list[ToolResult]:
    """`ToolProcessor.process` of the default processor."""
    return await get_default_processor().process(data, timeout, use_cache, request_id)


async def process_text(
    text: str,
    timeout: float | None = None,
    use_cache: bool = True,  # noqa: FBT001, FBT002 - as above
    request_id: str | None = None,
) -> list[ToolResult]:
    """`process` for a text."""
    return await process(text, timeout, use_cache, request_id)
