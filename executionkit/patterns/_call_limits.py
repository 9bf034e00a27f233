"""How many tool calls a run may make."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from executionkit.calls import ToolCall

__all__ = ("CallLimits",)


class CallLimits:
    """How many tool calls a run may make; counts as calls are let through.

    A call that is let through counts, also when it then turns out to be invalid.

    Args:
        per_round: Calls of one reply.
        total: Calls of the run. None = no limit.
        per_tool: Calls of the run by tool name.

    Raises:
        ValueError: When a limit is no whole number of at least 0.
    """

    __slots__ = ("_left", "_per_round", "_per_tool")

    def __init__(
        self,
        per_round: int,
        total: int | None,
        per_tool: Mapping[str, int] | None,
    ) -> None:
        self._per_round = per_round
        self._left = total
        self._per_tool = dict(per_tool or {})
        named = {f"tool_call_limits[{k!r}]": v for k, v in self._per_tool.items()}
        if total is not None:
            named["max_tool_calls"] = total
        for name, value in named.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                msg = f"{name} must be >= 0, got {value!r}"
                raise ValueError(msg)

    def check_names(self, offered: Collection[str]) -> None:
        """Refuse a limit for a tool that is not on offer: a slip would be no limit.

        Raises:
            ValueError: Naming it and the tools on offer.
        """
        for name in self._per_tool:
            if name not in offered:
                known = ", ".join(sorted(offered)) or "none"
                msg = f"`tool_call_limits` names {name!r}, which is not on offer ({known})"
                raise ValueError(msg)

    def refuse(self, call: ToolCall, position: int, requested: int) -> str | None:
        """Why `call` may not run, in words for the model; None lets it through."""
        if position >= self._per_round:
            return (
                f"Not run: {requested} tool calls were requested in one reply and "
                f"the limit is {self._per_round}. Retry with fewer calls."
            )
        if self._left is not None and self._left <= 0:
            return "Not run: the limit of tool calls for this run is reached."
        if self._per_tool.get(call.name, 1) <= 0:
            return f"Not run: the limit of calls to '{call.name}' is reached."
        if self._left is not None:
            self._left -= 1
        if call.name in self._per_tool:
            self._per_tool[call.name] -= 1
        return None
