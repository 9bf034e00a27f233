"""The rule of tags: which groups of tools may be called."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from executionkit.tools._guard_values import BaseGuard, EnforcementLevel, GuardResult

if TYPE_CHECKING:
    from executionkit.calls import ToolCall
    from executionkit.tools._record import ToolRecord

__all__ = ("TagGuard",)

_PASS = GuardResult.allow()


class TagGuard(BaseGuard):
    """Lets tools be called by their tags.

    Args:
        allow: A tool needs one of these. Empty = any tool will do.
        deny: A tool with one of these is blocked, whatever `allow` says.
        enforcement: Whether a no blocks or only warns.

    Raises:
        TypeError: When `allow` or `deny` is one text instead of several.
    """

    name = "tags"

    def __init__(
        self,
        allow: Collection[str] = (),
        deny: Collection[str] = (),
        *,
        enforcement: EnforcementLevel = EnforcementLevel.BLOCK,
    ) -> None:
        super().__init__(enforcement=enforcement)
        for parameter, value in (("allow", allow), ("deny", deny)):
            if isinstance(value, str):
                msg = f"`{parameter}` must hold tags, got the text {value!r}: put it in a list"
                raise TypeError(msg)
        self.allow: frozenset[str] = frozenset(allow)
        """Tags of which a tool needs one; empty = any tool will do."""
        self.deny: frozenset[str] = frozenset(deny)
        """Tags that block a tool."""

    def check(self, _call: ToolCall, record: ToolRecord, /) -> GuardResult:
        tags = record.tool.tags
        refused = tags & self.deny
        if refused:
            return GuardResult.block(f"tools tagged {sorted(refused)} are not allowed")
        if self.allow and tags.isdisjoint(self.allow):
            return GuardResult.block(
                f"only tools tagged {sorted(self.allow)} are allowed here"
            )
        return _PASS
