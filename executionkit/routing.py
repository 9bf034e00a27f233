"""Which provider answers: rules that are asked in order, and a fallback.

```python
router = Router(
    rules=[RouteRule("long", big, lambda prompt, context: len(prompt) > 4000)],
    fallback=small,
)
result = await router.run(consensus, prompt, num_samples=3)
```
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from executionkit._arguments import (
    check_callable,
    check_prompt,
    check_provider,
    shown,
)
from executionkit.patterns.base import calling_user
from executionkit.types import freeze_mapping, sealed

if TYPE_CHECKING:
    from executionkit._llm import LLMProvider

__all__ = ("Predicate", "RouteRule", "Router")

_T = TypeVar("_T")

Predicate: TypeAlias = Callable[
    [str, Mapping[str, Any]], "bool | Coroutine[Any, Any, bool] | Awaitable[bool]"
]
"""`(prompt, context) -> bool`, sync or async; the context is read-only."""


@sealed
@dataclass(frozen=True, slots=True)
class RouteRule:
    """A provider, and when it is the right one.

    Raises:
        TypeError: For a field of a wrong kind.
    """

    name: str
    """For messages, and to tell rules apart."""

    provider: LLMProvider
    predicate: Predicate
    """Only a true answer takes the rule."""

    metadata: Mapping[str, Any] = field(default_factory=freeze_mapping)

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str):
            msg = f"`name` of a rule must be a str, got {shown(name)}"
            raise TypeError(msg)
        check_provider(self.provider)
        hint = "pass a function `(prompt, context) -> bool`"
        check_callable(f"predicate of rule {name!r}", self.predicate, hint=hint)
        object.__setattr__(self, "metadata", freeze_mapping(self.metadata))


class Router:
    """Picks the provider of the first rule that matches, else the fallback.

    Args:
        rules: Asked in this order, one after another, up to the first match.
        fallback: The provider when no rule matches.

    Raises:
        TypeError: When something in `rules` is no `RouteRule`, or `fallback` is no
            provider.
    """

    def __init__(self, *, rules: Iterable[RouteRule], fallback: LLMProvider) -> None:
        given: tuple[Any, ...] = tuple(rules)
        for rule in given:
            if not isinstance(rule, RouteRule):
                msg = f"`rules` must hold RouteRule values, got {shown(rule)}"
                raise TypeError(msg)
        check_provider(fallback)
        self._rules: tuple[RouteRule, ...] = given
        self._fallback = fallback

    @property
    def rules(self) -> tuple[RouteRule, ...]:
        """The rules, in order."""
        return self._rules

    @property
    def fallback(self) -> LLMProvider:
        """The provider when no rule matches."""
        return self._fallback

    def select(self, /, prompt: str, **context: Any) -> LLMProvider:
        """The provider for a prompt.

        Args:
            prompt: The prompt.
            **context: Facts for the predicates.

        Raises:
            EvaluatorError: When a predicate raises; the message names its rule.
            TypeError: When a predicate turns out to be async; `match` asks those.
        """
        check_prompt("prompt", prompt)
        facts = freeze_mapping(context)
        for rule in self._rules:
            with _asking(rule):
                verdict = rule.predicate(prompt, facts)
            if inspect.isawaitable(verdict):
                _drop(verdict)
                msg = (
                    f"the predicate of rule {rule.name!r} is async; use `await "
                    "router.match(prompt, context)` or `await router.run(...)`"
                )
                raise TypeError(msg)
            if _yes(rule, verdict):
                return rule.provider
        return self._fallback

    async def match(
        self, prompt: str, context: Mapping[str, Any] | None = None
    ) -> RouteRule | None:
        """The first rule that matches; None = the fallback. Awaits async predicates.

        Args:
            prompt: The prompt.
            context: Facts for the predicates.

        Raises:
            EvaluatorError: When a predicate raises; the message names its rule.
        """
        check_prompt("prompt", prompt)
        facts = freeze_mapping(context)
        for rule in self._rules:
            with _asking(rule):
                verdict: Any = rule.predicate(prompt, facts)
                if inspect.isawaitable(verdict):
                    verdict = await verdict
            if _yes(rule, verdict):
                return rule
        return None

    async def run(
        self,
        /,
        pattern: Callable[..., Awaitable[_T]],
        prompt: str,
        *,
        context: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> _T:
        """Run a pattern over the provider that the rules pick.

        Args:
            pattern: `consensus`, `structured`, ..., or a function
                `(provider, prompt, **kwargs)`.
            prompt: The prompt.
            context: Facts for the predicates only; a key `prompt` is left out.
            **kwargs: For the pattern only.

        Raises:
            EvaluatorError: When a predicate raises; the message names its rule.
            TypeError: For an argument of the wrong kind.
            Exception: What the pattern raises.
        """
        check_callable("pattern", pattern, hint="for example `consensus`, not called")
        given: object = context
        if given is not None and not isinstance(given, Mapping):
            msg = f"`context` must be a mapping or None, got {shown(given)}"
            raise TypeError(msg)
        facts = {k: v for k, v in (context or {}).items() if k != "prompt"}
        rule = await self.match(prompt, facts)
        provider = self._fallback if rule is None else rule.provider
        return await pattern(provider, prompt, **kwargs)


def _asking(rule: RouteRule) -> Any:
    return calling_user(f"predicate of rule {rule.name!r}")


def _yes(rule: RouteRule, verdict: Any) -> bool:
    with _asking(rule):
        return bool(verdict)


def _drop(verdict: Any) -> None:
    """Leave nothing behind that would be reported as never awaited."""
    if isinstance(verdict, Coroutine):
        verdict.close()
    elif isinstance(verdict, asyncio.Future):
        verdict.cancel()
