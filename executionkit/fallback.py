"""A provider made of providers: the next one answers when one cannot.

```python
provider = FallbackProvider([main, spare], breakers=BreakerConfig())
result = await consensus(provider, prompt)
```

| what a provider does | what happens |
|---|---|
| 429 (`RateLimitError`) | the next one, at once; it rests for `retry_after` |
| 408, 409, 5xx (`ProviderError`) | the next one |
| no connection, a time limit, a broken or senseless answer | the next one |
| its own circuit, bulkhead or limiter refuses | the next one |
| a reply that `max_tokens` cut off | with `on_truncated`: the next one |
| 400, 401, 403, 404, ... (`PermanentError`) | raised |
| the model refuses to answer | that is an answer |
| budget, deadline, approval | raised, whatever `on` says |
| a mistake of its code (`TypeError`, ...) | raised |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from executionkit._arguments import check_provider, shown
from executionkit._fallback import (
    Asking,
    FallbackStream,
    HedgeOptions,
    Member,
    ProviderStatus,
    Rules,
)
from executionkit.engine._checks import check_int
from executionkit.engine.breaker import BreakerConfig
from executionkit.engine.retry import RetryBudget
from executionkit.errors import (
    BulkheadFullError,
    ProviderError,
    RateLimitError,
    ToolCircuitOpenError,
    ToolRateLimitedError,
)
from executionkit.patterns._call import known_secrets

if TYPE_CHECKING:
    from executionkit._clock import Clock
    from executionkit._llm import LLMProvider, LLMResponse, StreamEvent

__all__ = (
    "DEFAULT_FALLBACK",
    "FallbackOn",
    "FallbackProvider",
    "FallbackStream",
    "HedgeOptions",
    "ProviderStatus",
)

DEFAULT_FALLBACK: Final[tuple[type[BaseException], ...]] = (
    RateLimitError,
    ProviderError,
    BulkheadFullError,
    ToolCircuitOpenError,
    ToolRateLimitedError,
)
"""The failures after which the next provider is asked."""

FallbackOn: TypeAlias = "type[BaseException] | tuple[type[BaseException], ...] | Callable[[Exception], bool]"
"""Exception types, or a predicate over the failure."""


class FallbackProvider:
    """Asks its providers in order, until one answers.

    Each is asked once in a round; retries of a pattern or step make further rounds, and
    all rounds share `max_attempts`. One whose circuit is open, or that said how long it
    wants to be left alone, is passed over at once; one that gave no time of its own
    with its 429 comes last. The response says in `answered_by` who gave it, and in
    `besides` what the other requests have cost, which every pattern counts; the
    metadata of a pattern's result have `answered_by` too, with the number of replies of
    each provider. The call is bound by the deadline of the context.

    Streams change the provider only before their first text or event, and are never
    hedged. A request with `tools` goes to the providers that can call tools. All
    options are handed on as they are.

    A pattern's `max_cost` is checked before each call, not before each provider that
    is asked in it: the count of calls can pass its limit by what one call sends.

    Args:
        providers: In order. A mapping gives them names; else they are called by their
            `model`, or by their class.
        on: Which failures let the next one answer: types, or a predicate. Budget,
            deadline, approval and cancellation never do.
        breakers: One circuit for each of them. None = none.
        max_attempts: Requests sent per call at most, over all rounds that retries
            around it make; those that the providers make themselves are included, as
            far as their errors tell. None = one for each provider, and one more for
            each retry around it.
        hedge: None = no second request while the first one runs.
        on_truncated: Whether a reply that the token limit cut off is no answer. When
            nobody does better, the first such reply is returned.
        name: For messages.
        clock: None = the clock of the current context.

    Raises:
        TypeError, ValueError: When a setting cannot be used.
    """

    def __init__(
        self,
        providers: Sequence[LLMProvider] | Mapping[str, LLMProvider],
        *,
        on: FallbackOn = DEFAULT_FALLBACK,
        breakers: BreakerConfig | None = None,
        max_attempts: int | None = None,
        hedge: HedgeOptions | None = None,
        on_truncated: bool = False,
        name: str = "fallback",
        clock: Clock | None = None,
    ) -> None:
        if max_attempts is not None:
            check_int("max_attempts", max_attempts, 1)
        _check_kind("breakers", breakers, BreakerConfig)
        _check_kind("hedge", hedge, HedgeOptions)
        members = [
            Member(label, provider, breakers, hedge, clock)
            for label, provider in _named(providers)
        ]
        secrets = [text for one in members for text in known_secrets(one.provider)]
        self._members = members
        self._callers = [member for member in members if member.can_call_tools]
        self._rules = Rules(
            members,
            _checked_on(on),
            max_attempts=max_attempts,
            on_truncated=on_truncated,
            hedges=None
            if hedge is None
            else RetryBudget(hedge.max_share, float(hedge.burst)),
            name=name,
            secrets=tuple(dict.fromkeys(secrets)),
            clock=clock,
        )
        for method in ("stream", "stream_events"):
            if not any(_can(member, method) for member in members):
                # What asks whether it can stream is told the truth.
                setattr(self, method, None)

    @property
    def name(self) -> str:
        """For messages."""
        return self._rules.name

    @property
    def providers(self) -> Mapping[str, LLMProvider]:
        """The providers by name, in order."""
        return {member.name: member.provider for member in self._members}

    @property
    def supports_tools(self) -> bool:
        """Whether one of them can call tools."""
        return bool(self._callers)

    @property
    def supports_response_format(self) -> bool:
        """Whether the server of each holds a reply to a JSON Schema."""
        name = "supports_response_format"
        return all(getattr(one.provider, name, False) is True for one in self._members)

    @property
    def default_max_tokens(self) -> int | None:
        """The largest of them; None when one of them has none."""
        found: list[int] = []
        for member in self._members:
            value = getattr(member.provider, "default_max_tokens", None)
            if type(value) is not int:
                return None
            found.append(value)
        return max(found)

    @property
    def known_secrets(self) -> tuple[str, ...]:
        """Texts that must never be shown."""
        return self._rules.secrets

    def __repr__(self) -> str:
        names = ", ".join(member.name for member in self._members)
        return f"{type(self).__name__}({names})"

    def status(self) -> tuple[ProviderStatus, ...]:
        """What is known of each provider right now, in order."""
        now = self._rules.clock.monotonic()
        return tuple(member.status(now) for member in self._members)

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: Any = None,
        max_tokens: Any = None,
        tools: Sequence[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> LLMResponse:
        """The first answer.

        Raises:
            AllProvidersFailedError: Nobody answered; `failures` says why, and
                `attempts` how many requests were sent. Whoever retries it asks them
                again, within `max_attempts`; not when one of them has retried by
                itself.
            LLMError: A failure that `on` does not name, or that of the only provider.
            DeadlineExceededError: The context's deadline leaves no time.
        """
        options = _given(kwargs, temperature, max_tokens, tools)
        members = self._callers if tools else self._members
        return await Asking(self._rules, members, messages, options).answer()

    def stream(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: Any = None,
        max_tokens: Any = None,
        tools: Sequence[dict[str, Any]] | None = None,
        usage_sink: list[LLMResponse] | None = None,
        **kwargs: Any,
    ) -> FallbackStream[str]:
        """The texts of the first one that gives any; called without await.

        Raises:
            LLMError: While iterating; see `complete`.
        """
        options = _given(kwargs, temperature, max_tokens, tools)
        return self._stream("stream", messages, options, usage_sink)

    def stream_events(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: Any = None,
        max_tokens: Any = None,
        tools: Sequence[dict[str, Any]] | None = None,
        usage_sink: list[LLMResponse] | None = None,
        **kwargs: Any,
    ) -> FallbackStream[StreamEvent]:
        """The events of the first one that gives any; otherwise as `stream`."""
        options = _given(kwargs, temperature, max_tokens, tools)
        return self._stream("stream_events", messages, options, usage_sink)

    def _stream(
        self,
        method: str,
        messages: Sequence[dict[str, Any]],
        options: dict[str, Any],
        usage_sink: list[LLMResponse] | None,
    ) -> FallbackStream[Any]:
        members = self._callers if options.get("tools") else self._members
        able = [member for member in members if _can(member, method)]
        asking = Asking(self._rules, able, messages, options)
        return FallbackStream(asking, method, messages, options, usage_sink)

    async def aclose(self) -> None:
        """Close each provider that can be closed; the first failure is raised last."""
        failures: list[Exception] = []
        for provider in {
            id(one.provider): one.provider for one in self._members
        }.values():
            close = getattr(provider, "aclose", None)
            if close is None:
                continue
            try:
                await close()
            except Exception as exc:  # noqa: BLE001 - the others are closed all the same
                failures.append(exc)
        if failures:
            raise failures[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()


def _can(member: Member, method: str) -> bool:
    return callable(getattr(member.provider, method, None))


def _given(
    options: dict[str, Any], temperature: Any, max_tokens: Any, tools: Any
) -> dict[str, Any]:
    """The options that were given, and no others."""
    if temperature is not None:
        options["temperature"] = temperature
    if max_tokens is not None:
        options["max_tokens"] = max_tokens
    if tools is not None:
        options["tools"] = tools
    return options


def _check_kind(name: str, value: object, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        msg = f"`{name}` must be a {kind.__name__} or None, got {shown(value)}"
        raise TypeError(msg)


def _named(providers: Any) -> list[tuple[str, Any]]:
    """Names and providers, each name once."""
    if isinstance(providers, Mapping):
        given = [(str(name), provider) for name, provider in providers.items()]
    elif isinstance(providers, Iterable) and not isinstance(providers, (str, bytes)):
        given = [(_name_of(provider), provider) for provider in providers]
    else:
        msg = (
            "`providers` must be a list of providers, or a mapping from names to them, "
            f"got {shown(providers)}"
        )
        raise TypeError(msg)
    if not given:
        msg = "`providers` must hold at least one provider"
        raise ValueError(msg)
    taken: dict[str, Any] = {}
    for name, provider in given:
        check_provider(provider)
        unique, number = name, 1
        while unique in taken:
            number += 1
            unique = f"{name}#{number}"
        taken[unique] = provider
    return list(taken.items())


def _name_of(provider: object) -> str:
    if isinstance(provider, FallbackProvider):
        return provider.name
    model = getattr(provider, "model", None)
    return model if isinstance(model, str) and model else type(provider).__name__


def _checked_on(on: Any) -> Any:
    if callable(on) and not isinstance(on, type):
        return on
    kinds = (on,) if isinstance(on, type) else on
    if isinstance(kinds, Iterable) and not isinstance(kinds, (str, bytes)):
        kinds = tuple(kinds)
        if all(isinstance(x, type) and issubclass(x, BaseException) for x in kinds):
            return kinds
    msg = f"`on` must be exception types or a predicate, got {shown(on)}"
    raise TypeError(msg)
