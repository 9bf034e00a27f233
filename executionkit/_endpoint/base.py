"""What both providers are: an endpoint, one question at a time, closed with care."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from math import isfinite
from typing import TYPE_CHECKING, Any, Self

from executionkit._arguments import shown
from executionkit._llm import LLMResponse
from executionkit._wire.common import parse_json
from executionkit._wire.failures import refuse
from executionkit.observability import RequestSpan
from executionkit.types import freeze_mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from executionkit._endpoint.requests import Endpoint
    from executionkit._http import ConnectionCounts
    from executionkit.types import JsonValue

__all__ = (
    "ProviderBase",
    "check_defaults",
    "checked_headers",
    "checked_key",
    "environment_settings",
    "refuse_streaming",
)


def refuse_streaming(options: Mapping[str, Any]) -> None:
    """Refuse `stream=True` where one answer is awaited.

    Raises:
        ValueError: Naming what to call instead.
    """
    if options.get("stream") is True:
        msg = "`complete` cannot be called with `stream=True`; use `stream()` instead"
        raise ValueError(msg)


def checked_headers(headers: object) -> Mapping[str, str]:
    """The headers that were given, read-only; None = none.

    Raises:
        TypeError: When they are no mapping.
    """
    if headers is not None and not isinstance(headers, Mapping):
        msg = f"`headers` must map names to texts, got {shown(headers)}"
        raise TypeError(msg)
    return freeze_mapping(headers)


def checked_key(base_url: object, model: object, api_key: object) -> str:
    """The API key without the blanks around it, when all three can be used.

    Raises:
        TypeError: When one is not a text.
        ValueError: When `model` is empty. What `base_url` is, is checked elsewhere.
    """
    if not isinstance(base_url, str):
        msg = f"`base_url` must be a str, got {shown(base_url)}"
        raise TypeError(msg)
    if not isinstance(model, str):
        msg = f"`model` must be a str, the model's name; got {shown(model)}"
        raise TypeError(msg)
    if not model.strip():
        msg = f"`model` must be the model's name, got {model!r}"
        raise ValueError(msg)
    if not isinstance(api_key, str):  # its value may be secret all the same
        msg = (
            f"`api_key` must be a str, got {type(api_key).__name__}; leave it out for "
            "a server that wants none"
        )
        raise TypeError(msg)
    return api_key.strip()


def check_defaults(
    temperature: object, max_tokens: object, *, needed: bool = False
) -> None:
    """Refuse a default that no request can carry; None = not sent.

    Args:
        temperature: A number.
        max_tokens: An integer of at least 1.
        needed: Whether `max_tokens` must be given.

    Raises:
        TypeError: When one is no number.
        ValueError: When it is not finite, or too small.
    """
    if temperature is not None:
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
            msg = (
                "`default_temperature` must be a number, or None (not sent); got "
                f"{shown(temperature)}"
            )
            raise TypeError(msg)
        if not isfinite(temperature):
            msg = f"`default_temperature` must be finite, got {temperature}"
            raise ValueError(msg)
    if max_tokens is None and not needed:
        return
    if type(max_tokens) is not int:
        words = "an int" if needed else "an int, or None (not sent)"
        msg = f"`default_max_tokens` must be {words}; got {shown(max_tokens)}"
        raise TypeError(msg)
    if max_tokens < 1:
        msg = f"`default_max_tokens` must be >= 1, got {max_tokens}"
        raise ValueError(msg)


def environment_settings(
    variables: Mapping[str, str],
    may_miss: Collection[str],
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The settings of a provider that environment variables hold.

    Args:
        variables: Setting -> variable. Blank ones count as not set.
        may_miss: Settings that need not be there.
        environ: Where to look. None = the environment of the process.

    Raises:
        ValueError: Naming the variables that are missing.
    """
    given = os.environ if environ is None else environ
    found = {
        name: value
        for name, variable in variables.items()
        if (value := given.get(variable, "").strip())
    }
    missing = [
        variable
        for name, variable in variables.items()
        if name not in found and name not in may_miss
    ]
    if missing:
        msg = f"set {' and '.join(f'`{name}`' for name in missing)} in the environment"
        raise ValueError(msg)
    return found


class ProviderBase:
    """The part of a provider that does not depend on the dialect.

    A subclass is a frozen dataclass with the fields `model` and `_endpoint`.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        model: str
        _endpoint: Endpoint

    def __reduce__(self) -> tuple[Any, ...]:
        settings: Any = self
        given = {
            item.name: getattr(self, item.name)
            for item in fields(settings)
            if item.init
        }
        return _rebuild, (type(self), given)

    @property
    def known_secrets(self) -> tuple[str, ...]:
        """Texts that must not appear in errors and traces."""
        return self._endpoint.secrets

    @property
    def connection_counts(self) -> ConnectionCounts:
        """Connections opened and failed, requests sent again: what lies below calls.

        A connection that could not be opened is a `ProviderConnectionError` or a
        `ProviderTimeoutError` of the call, and retried with it; each retry counts here
        once more. Those of a transport that several providers share are counted
        together; a transport or client of your own may not count.
        """
        return self._endpoint.connection_counts

    async def aclose(self) -> None:
        """Close the connections of the running loop; using it again opens new ones."""
        await self._endpoint.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def _ask(
        self, body: bytes, parse: Callable[[JsonValue, Sequence[str]], LLMResponse]
    ) -> LLMResponse:
        """Send `body` and read the answer with `parse(payload, secrets)`."""
        secrets = self._endpoint.secrets
        told = RequestSpan(self.model, self)
        with told:
            answer = await self._endpoint.post(body)
            try:
                response = parse(parse_json(answer, secrets=secrets), secrets)
            except RecursionError:
                response = None  # raised below, without a context of a thousand frames
            if response is None:
                refuse("the answer is nested too deeply")
            told.answered(response)
            return response


def _rebuild(cls: type[Any], given: dict[str, Any]) -> object:
    return cls(**given)
