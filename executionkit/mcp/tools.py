"""The reasoning patterns as MCP tools: what the server offers when nobody says else."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from executionkit.errors import ErrorCode, ToolProcessorError
from executionkit.mcp._demo_tools import demo_tools
from executionkit.patterns import consensus, react_loop
from executionkit.provider import Provider
from executionkit.tools.registry import ToolRegistry, create_registry
from executionkit.types import Tool

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider
    from executionkit.types import TokenUsage

__all__ = (
    "ProviderFactory",
    "Reasoning",
    "provider_from_environment",
    "reasoning_registry",
)

ProviderFactory: TypeAlias = "Callable[[], LLMProvider | None]"
"""Makes the provider; gives None as long as there is none."""

_URL: Final = "EXECUTIONKIT_BASE_URL"
_MODEL: Final = "EXECUTIONKIT_MODEL"
_KEY: Final = "EXECUTIONKIT_API_KEY"
_CONSENSUS: Final = "consensus"
_REACT_LOOP: Final = "react_loop"


def provider_from_environment() -> Provider | None:
    """The provider that the environment describes; None when it does not say enough.

    Reads `EXECUTIONKIT_BASE_URL`, `EXECUTIONKIT_MODEL` and `EXECUTIONKIT_API_KEY`; the
    last may be missing.
    """
    url, model = os.environ.get(_URL), os.environ.get(_MODEL)
    if not url or not model:
        return None
    return Provider(url, model, os.environ.get(_KEY, ""))


class Reasoning:
    """The tools, and the provider that they share.

    Args:
        factory: Makes the provider, at the first call that needs it; asked again as
            long as it gives None. None = from the environment.
    """

    def __init__(self, factory: ProviderFactory | None = None) -> None:
        self._factory = factory or provider_from_environment
        self._provider: LLMProvider | None = None

    def provider(self) -> LLMProvider:
        """The provider.

        Raises:
            ToolProcessorError: When there is none.
        """
        if self._provider is None:
            self._provider = self._factory()
        if self._provider is None:
            msg = f"No model is configured: set {_URL} and {_MODEL} (and {_KEY})"
            raise ToolProcessorError(msg, ErrorCode.TOOL_VALIDATION_ERROR)
        return self._provider

    async def close(self) -> None:
        """Let go of the provider's connections."""
        close = getattr(self._provider, "aclose", None)
        if close is not None:
            done = close()
            if inspect.isawaitable(done):
                await done

    async def consensus(
        self,
        prompt: str,
        n: int = 3,
        strategy: str = "majority",
        temperature: float | None = None,
    ) -> str:
        """Ask several times; the answer that wins, and how sure it is."""
        provider = self.provider()
        options: dict[str, Any] = {"num_samples": n, "strategy": strategy}
        if temperature is not None:
            options["temperature"] = temperature
        try:
            found = await consensus(provider, prompt, **options)
        except Exception as exc:  # noqa: BLE001 - its text may hold secrets
            raise _failed(_CONSENSUS, exc) from None
        facts = found.metadata
        return "\n".join(
            (
                str(found.value),
                "",
                f"agreement_ratio: {facts.get('agreement_ratio')}",
                f"unique_responses: {facts.get('unique_responses')}",
                _cost(found.cost),
            )
        )

    async def react_loop(self, prompt: str, max_rounds: int = 5) -> str:
        """Let the model call the demo tools until it answers."""
        provider = self.provider()
        try:
            found = await react_loop(
                provider, prompt, demo_tools(), max_rounds=max_rounds
            )
        except Exception as exc:  # noqa: BLE001 - its text may hold secrets
            raise _failed(_REACT_LOOP, exc) from None
        made = found.metadata.get("tool_calls_made")
        count = made if isinstance(made, int) else len(made or ())
        return "\n".join(
            (
                str(found.value),
                "",
                f"rounds: {found.metadata.get('rounds')}",
                f"tool_calls_made: {count}",
                _cost(found.cost),
            )
        )


def _failed(name: str, exc: Exception) -> ToolProcessorError:
    # The text of an error may hold what a server sent; its type is safe to show.
    return ToolProcessorError(f"{name} failed: {type(exc).__name__}")


def _cost(spent: TokenUsage) -> str:
    return (
        f"cost: input_tokens={spent.input_tokens} "
        f"output_tokens={spent.output_tokens} llm_calls={spent.llm_calls}"
    )


_PROMPT: Final = {"type": "string", "minLength": 1, "description": "The question."}


def _schema(**properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"prompt": _PROMPT, **properties},
        "required": ["prompt"],
        "additionalProperties": False,
    }


def reasoning_registry(reasoning: Reasoning) -> ToolRegistry:
    """A registry of the tools `consensus` and `react_loop`."""
    return create_registry(
        Tool(
            _CONSENSUS,
            "Ask a model several times at once; the answer that most samples give.",
            _schema(
                n={
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 9,
                    "default": 3,
                    "description": "How often the model is asked.",
                },
                strategy={
                    "type": "string",
                    "enum": ["majority", "unanimous"],
                    "default": "majority",
                },
                temperature={"type": "number", "minimum": 0, "maximum": 2},
            ),
            reasoning.consensus,
            None,
        ),
        Tool(
            _REACT_LOOP,
            "Let a model use a calculator and an echo tool until it answers.",
            _schema(
                max_rounds={
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 8,
                    "default": 5,
                    "description": "Replies of the model, the answer among them.",
                },
            ),
            reasoning.react_loop,
            None,
        ),
    )
