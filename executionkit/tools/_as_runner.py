"""What a processor is to `react_loop`: a `ToolRunner`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from executionkit.calls import ReturnOrder, ToolCall, ToolResult
from executionkit.tools._asked import checked, renamed
from executionkit.tools._runs import RunOptions, run_calls
from executionkit.tools._views import ProcessorViews
from executionkit.tools.export import ToolNames, to_openai

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ("RunnerHalf",)


class RunnerHalf(ProcessorViews):
    """The half of `ToolProcessor` that `react_loop` knows."""

    makes_spans = True
    """Its calls are watched here: nobody else makes spans of them."""

    _names: tuple[int, ToolNames] | None = None

    async def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        """The tools on offer in OpenAI's function format."""
        return to_openai(self.registry)

    def check_call(self, call: ToolCall) -> ToolResult | None:
        """The failed result of a call that could not run; None when it could.

        For who has to ask somebody before: nobody is asked about wrong arguments. Where
        there are guards (or layers of the user's own) only they know: a guard may repair
        what it is asked about.
        """
        if self.options.guards or self.options.middleware:
            return None
        return checked(self._ready().paths, self._meant(call))

    def is_repeatable(self, call: ToolCall) -> bool:
        """Whether running a call twice does no more than once; False when unknown."""
        record = self.registry.find(self._meant(call).name)
        return record is not None and record.tool.is_repeatable

    def _meant(self, call: ToolCall) -> ToolCall:
        return renamed(call, self._wire_names().full_name(call.name))

    async def run_calls(self, calls: Sequence[ToolCall]) -> Sequence[ToolResult]:
        """Run calls as a model named them; results in the order of the calls."""
        meant = [self._meant(call) for call in calls]
        options = RunOptions(order=ReturnOrder.SUBMISSION)
        return await run_calls(self._ready().paths, meant, options)

    def _wire_names(self) -> ToolNames:
        version = self.registry.version
        if self._names is None or self._names[0] != version:
            names = ToolNames.of(self.registry.records())
            self._names = (version, names)
        return self._names[1]
