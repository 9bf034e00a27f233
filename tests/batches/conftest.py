"""Both services on one real server, and a clock that does not wait."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeAlias

import pytest

from executionkit import AnthropicBatchClient, OpenAIBatchClient
from executionkit._clock import use_clock
from tests.batches.services import KEY, Services, SkippingClock

Make: TypeAlias = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("EXECUTIONKIT_HTTP", raising=False)


@pytest.fixture
def clock() -> Iterator[SkippingClock]:
    clock = SkippingClock()
    with use_clock(clock):
        yield clock


@pytest.fixture
async def services(clock: SkippingClock) -> AsyncIterator[Services]:
    services = Services()
    services.clock = clock
    async with services.server:
        yield services


@pytest.fixture
async def make(services: Services) -> AsyncIterator[Make]:
    """Makes clients of the server, and closes them."""
    made: list[Any] = []

    def make(service: str, **settings: Any) -> Any:
        url = services.server.url
        given: dict[str, Any] = {"model": "m", "base_url": url, **settings}
        if service == "openai":
            given["base_url"] += "/v1"
        kind = AnthropicBatchClient if service == "anthropic" else OpenAIBatchClient
        client: Any = kind(KEY, **given)
        made.append(client)
        return client

    yield make
    for client in made:
        await client.aclose()


@pytest.fixture(params=["anthropic", "openai"])
def service(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(make: Make, service: str) -> Any:
    return make(service)
