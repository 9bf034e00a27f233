"""Every test of this folder that takes `transport` runs on every backend."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from executionkit._http import HttpTransport, open_transport

BACKENDS = ("stdlib", "aiohttp", "httpx2", "httpx")

CERTIFICATE = Path(__file__).with_name("localhost.pem")
"""A self-signed certificate for 127.0.0.1, with its key; of no use elsewhere."""

Open: TypeAlias = Callable[..., HttpTransport]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("EXECUTIONKIT_HTTP", raising=False)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a backend."""
    name: str = request.param
    if name != "stdlib":
        pytest.importorskip(name)
    return name


@pytest.fixture
async def open_one(backend: str) -> AsyncIterator[Open]:
    """Opens transports of the backend, and closes them at the end."""
    opened: list[HttpTransport] = []

    def make(**options: Any) -> HttpTransport:
        opened.append(open_transport(backend, **options))
        return opened[-1]

    yield make
    for each in opened:
        await each.aclose()


@pytest.fixture
def transport(open_one: Open) -> HttpTransport:
    """A transport of the backend."""
    return open_one()


@pytest.fixture
def server_tls() -> ssl.SSLContext:
    """What a server needs to be `https://127.0.0.1`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


@pytest.fixture
def client_tls() -> ssl.SSLContext:
    """What a client needs to trust it."""
    return ssl.create_default_context(cafile=str(CERTIFICATE))
