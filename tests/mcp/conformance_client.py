"""What the official suite drives: `python -m tests.mcp.conformance_client URL`.

The suite starts a server, then this, and looks at what the client did. The scenario
stands in the environment; the answers to its questions are the plainest there are.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from executionkit.calls import ToolCall
from executionkit.mcp.client import HttpServer, MCPOptions, add_mcp_server
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import ToolRegistry, create_registry
from executionkit.types import thaw

if TYPE_CHECKING:
    from collections.abc import Iterator

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
BACK: Any = "http://localhost:3030/callback"
METADATA_URL = "https://conformance-test.local/client-metadata.json"
SECONDS = 25
SAMPLES: dict[str, Any] = {
    "string": "x",
    "integer": 5,
    "number": 3,
    "boolean": True,
    "object": {},
    "array": [],
}


async def accept_defaults(_context: Any, params: Any) -> Any:
    """Answer what the server asks with the defaults of its form."""
    from mcp.types import ElicitResult

    schema: Any = getattr(params, "requested_schema", None) or {}
    fields: dict[str, Any] = schema.get("properties", {})
    content = {
        key: item["default"] for key, item in fields.items() if "default" in item
    }
    return ElicitResult(action="accept", content=content)


class Storage:
    """Keeps tokens in memory."""

    def __init__(self, client: Any = None) -> None:
        self._tokens: Any = None
        self._client = client

    async def get_tokens(self) -> Any:
        return self._tokens

    async def set_tokens(self, tokens: Any) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> Any:
        return self._client

    async def set_client_info(self, client_info: Any) -> None:
        self._client = client_info


def login(url: str) -> Any:
    """The SDK's login, whose person in front of the browser always says yes."""
    from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
    from mcp.client.auth.extensions.client_credentials import (
        ClientCredentialsOAuthProvider,
        PrivateKeyJWTOAuthProvider,
        SignedJWTParameters,
    )
    from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata

    if SCENARIO == "auth/client-credentials-basic":
        return ClientCredentialsOAuthProvider(
            url, Storage(), CONTEXT["client_id"], CONTEXT["client_secret"]
        )
    if SCENARIO == "auth/client-credentials-jwt":
        signed = SignedJWTParameters(
            issuer=CONTEXT["client_id"],
            subject=CONTEXT["client_id"],
            signing_key=CONTEXT["private_key_pem"],
            signing_algorithm=CONTEXT.get("signing_algorithm", "ES256"),
        )
        return PrivateKeyJWTOAuthProvider(
            url, Storage(), CONTEXT["client_id"], signed.create_assertion_provider()
        )
    answers: list[dict[str, list[str]]] = []

    async def redirect(where: str) -> None:
        import httpx2

        async with httpx2.AsyncClient(follow_redirects=False) as browser:
            response = await browser.get(where)
        answers.append(parse_qs(urlsplit(response.headers["location"]).query))

    async def callback() -> Any:
        said = {key: values[0] for key, values in answers.pop().items()}
        return AuthorizationCodeResult(
            code=said["code"], state=said.get("state"), iss=said.get("iss")
        )

    known = None
    if "client_id" in CONTEXT:
        known = OAuthClientInformationFull(
            redirect_uris=[BACK],
            client_id=CONTEXT["client_id"],
            client_secret=CONTEXT.get("client_secret"),
            token_endpoint_auth_method="client_secret_basic",
        )
    return OAuthClientProvider(
        url,
        OAuthClientMetadata(
            client_name="executionkit",
            redirect_uris=[BACK],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
        ),
        Storage(known),
        redirect,
        callback,
        client_metadata_url=METADATA_URL,
    )


def wanted(registry: ToolRegistry) -> Iterator[tuple[str, dict[str, Any]]]:
    """The calls that the scenario names; else one of each tool."""
    for item in CONTEXT.get("toolCalls", ()):
        # A null where the schema has none is left out: our checks refuse it.
        given = item["arguments"].items()
        yield item["name"], {key: value for key, value in given if value is not None}
    if "toolCalls" in CONTEXT:
        return
    for record in registry.records():
        schema: Any = thaw(record.tool.parameters)
        if record.name == "json_schema_echo":
            sample = registry.resolve("json_schema_2020_12_tool").tool.parameters
            yield record.full_name, {"schema": thaw(sample)}
            continue
        fields: dict[str, Any] = schema.get("properties", {})
        needed: list[str] = schema.get("required", list(fields))
        yield (
            record.full_name,
            {key: SAMPLES.get(fields[key].get("type")) for key in needed},
        )


async def main() -> None:
    url = sys.argv[-1]
    registry = create_registry()
    auth = login(url) if SCENARIO.startswith("auth/") else None
    options = MCPOptions(
        timeout=SECONDS, client={"elicitation_callback": accept_defaults}
    )
    connection = await add_mcp_server(
        registry, HttpServer(url, auth=auth), name="suite", options=options
    )
    async with connection, ToolProcessor(registry, default_timeout=SECONDS) as run:
        for name, why in connection.problems.items():
            print(f"left out: {name}: {why}", file=sys.stderr)
        for name, arguments in wanted(registry):
            [result] = await run.process([ToolCall(None, name, arguments)])
            print(result, file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main())
