"""A key never leaves: not in an error, not in what hangs on it, not in a log."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from executionkit._http.httpx import HttpxTransport
from executionkit.anthropic import AnthropicProvider
from executionkit.errors import ExecutionKitError
from executionkit.provider import Provider
from executionkit.testing.http import (
    Reply,
    ScriptedServer,
    json_reply,
    raw_reply,
    reset_reply,
    sse_reply,
)

KEY = "tops3cret-value-17"
QUERY = "qu3ry-secret-42"
PASSWORD = "hunter22-pass"
SECRETS = (KEY, QUERY, PASSWORD)
USER = [{"role": "user", "content": "hi"}]
ECHO = " ".join(SECRETS)


def everything(error: BaseException | None) -> Iterator[str]:
    """All texts that can be reached from an error, as a logger or a debugger shows them."""
    todo: list[Any] = [error]
    seen: set[int] = set()
    while todo:
        item = todo.pop()
        if item is None or id(item) in seen:
            continue
        seen.add(id(item))
        yield str(item)
        yield repr(item)
        if isinstance(item, BaseException):
            yield from getattr(item, "__notes__", ())
            todo += [item.__cause__, item.__context__, *item.args, *vars(item).values()]
        elif isinstance(item, dict):
            todo += [*item, *item.values()]
        elif isinstance(item, (list, tuple)):
            todo += item


REPLIES: dict[str, Reply] = {
    "400": json_reply(
        {"error": {"message": ECHO, "type": ECHO, "code": KEY}}, status=400
    ),
    "401": json_reply({"error": f"key {KEY} is wrong"}, status=401),
    "429": json_reply({"detail": ECHO}, status=429, headers={"x-request-id": KEY}),
    "500-html": Reply(500, {}, f"<title>{ECHO}</title>".encode()),
    "500-html-body": Reply(500, {}, f"<p>{'x' * 480}{ECHO}</p>".encode()),
    "redirect": Reply(
        302, {"location": f"http://h.example/{KEY}?k={QUERY}"}, ECHO.encode()
    ),
    "200-error": json_reply({"error": {"message": ECHO}}),
    "200-text": Reply(200, {}, ECHO.encode()),
    "200-cut": Reply(200, {}, json.dumps({"choices": ECHO}).encode()[:-2]),
    "200-shape": json_reply({"choices": [ECHO]}),
    "200-name": json_reply({"choices": [{"message": {"tool_calls": [ECHO]}}]}),
    "stream-error": sse_reply([{"error": {"message": ECHO}}]),
    "stream-junk": sse_reply([ECHO]),
    "stream-late": sse_reply(
        [{"choices": [{"delta": {"content": "a"}}]}, {"error": {"message": ECHO}}]
    ),
    "reset": reset_reply(),
    "no-http": raw_reply(f"{KEY} {QUERY}\r\n\r\n".encode()),
    "cut": Reply(200, {"Content-Length": "9999"}, b'{"a', ending="cut"),
}


async def failures(provider: Provider | AnthropicProvider) -> list[ExecutionKitError]:
    found: list[ExecutionKitError] = []
    try:
        await provider.complete(USER)
    except ExecutionKitError as exc:
        found.append(exc)
    try:
        async for _ in provider.stream(USER):
            pass
    except ExecutionKitError as exc:
        found.append(exc)
    await provider.aclose()
    return found


@pytest.mark.req("OB-04", "D-22", "D-23", "D-41")
@pytest.mark.parametrize("transport", ["aiohttp", "httpx2", "httpx", "stdlib"])
@pytest.mark.parametrize("name", REPLIES)
async def test_no_failure_shows_a_secret(
    name: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    """OB-04: the server echoes every secret; nothing that is kept or logged has one."""
    if transport != "stdlib":
        pytest.importorskip(transport)
    caplog.set_level(logging.DEBUG)
    async with ScriptedServer(REPLIES[name]) as server:
        base = server.url.replace("http://", f"http://me:{PASSWORD}@") + f"?key={QUERY}"
        for provider in (
            Provider(base, "m", KEY, transport=transport),
            AnthropicProvider("m", KEY, base_url=base, transport=transport),
        ):
            async with asyncio.timeout(10):
                found = await failures(provider)
            assert found, name
            for error in found:
                shown = "\n".join(everything(error))
                shown += "".join(traceback.format_exception(error))
                for secret in SECRETS:
                    assert secret not in shown
            for secret in SECRETS:
                assert secret not in repr(provider) + str(provider)
    for record in caplog.records:
        logged = f"{record.getMessage()} {record.args} {record.exc_text}"
        for secret in SECRETS:
            assert secret not in logged, record


@pytest.mark.req("OB-04")
async def test_a_key_in_an_own_header_is_a_secret_too() -> None:
    reply = json_reply({"error": f"bad key {KEY}"}, status=401)
    async with ScriptedServer(reply) as server:
        provider = Provider(
            server.url, "m", headers={"api-key": KEY, "x-team": "red-team"}
        )
        for error in await failures(provider):
            assert KEY not in "".join(everything(error))


@pytest.mark.req("OB-04")
def test_what_must_not_be_shown_is_known_by_its_value() -> None:
    base = f"http://me:{PASSWORD}@h.example?key={QUERY}"
    for provider in (
        Provider(base, "m", KEY),
        AnthropicProvider("m", KEY, base_url=base),
        Provider(base, "m", headers={"X-Goog-Api-Key": KEY}),
    ):
        assert set(SECRETS) <= set(provider._endpoint.secrets)


@pytest.mark.req("OB-04")
@pytest.mark.parametrize("library", ["httpx2", "httpx"])
async def test_a_client_of_the_users_own_logs_no_query_of_ours(
    library: str, caplog: pytest.LogCaptureFixture
) -> None:
    """OB-04: and what it logs of other requests is left as it is."""
    module = pytest.importorskip(library)
    caplog.set_level(logging.DEBUG)
    reply = json_reply({"error": "no"}, status=400, headers={"x-echo": KEY})
    async with ScriptedServer(reply) as server, module.AsyncClient() as client:
        transport = HttpxTransport(
            module, max_connections=9, max_response_bytes=9999, client=client
        )
        base = f"{server.url}?key={QUERY}"
        assert await failures(Provider(base, "m", KEY, transport=transport))
        assert "chat/completions" in caplog.text
        assert KEY not in caplog.text
        assert QUERY not in caplog.text
        caplog.clear()
        await client.get(f"{server.url}/own?key={QUERY}")
    assert f"/own?key={QUERY}" in caplog.text
    assert f"b'x-echo', b'{KEY}'" in caplog.text
