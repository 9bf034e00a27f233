"""What the official conformance suite asks a server for, offered by ours over HTTP.

`python tests/mcp/conformance_server.py [PORT]`; it says where it is on standard error.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from executionkit.mcp import (
    Exchange,
    MCPServer,
    Prompt,
    PromptArgument,
    ProtocolError,
    Resource,
    current_exchange,
)
from executionkit.mcp.http import run_http
from executionkit.tools.registry import create_registry

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAA"
    "AABJRU5ErkJggg=="
)
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}


def exchange() -> Exchange:
    found = current_exchange()
    assert found is not None
    return found


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def image() -> dict[str, Any]:
    return {"type": "image", "data": PNG, "mimeType": "image/png"}


def embedded(uri: str, value: str, mime: str = "text/plain") -> dict[str, Any]:
    return {
        "type": "resource",
        "resource": {"uri": uri, "mimeType": mime, "text": value},
    }


def form(message: str, **properties: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def sampling(prompt: str, tokens: int) -> dict[str, Any]:
    words = {"role": "user", "content": text(prompt)}
    return {
        "method": "sampling/createMessage",
        "params": {"messages": [words], "maxTokens": tokens},
    }


STRING = {"type": "string"}
ROOTS = {"method": "roots/list", "params": {}}
OK = {"type": "boolean"}


# --- content ---
async def test_simple_text() -> str:
    """Text."""
    return "This is a simple text response for testing."


async def test_image_content() -> Any:
    """An image."""
    return image()


async def test_audio_content() -> Any:
    """A sound."""
    return {"type": "audio", "data": WAV, "mimeType": "audio/wav"}


async def test_embedded_resource() -> Any:
    """A resource."""
    return embedded("test://embedded-resource", "This is an embedded resource content.")


async def test_multiple_content_types() -> Any:
    """Text, an image and a resource."""
    held = json.dumps({"test": "data", "value": 123})
    return [
        text("Multiple content types test:"),
        image(),
        embedded("test://mixed-content-resource", held, "application/json"),
    ]


async def test_error_handling() -> str:
    """Fails."""
    message = "This tool intentionally returns an error for testing"
    raise RuntimeError(message)


# --- saying ---
async def test_tool_with_logging() -> str:
    """Logs three times."""
    say = exchange().log
    say("Tool execution started")
    await asyncio.sleep(0.05)
    say("Tool processing data")
    await asyncio.sleep(0.05)
    say("Tool execution completed")
    return "Tool with logging executed successfully"


async def test_logging_tool() -> str:
    """Logs once."""
    exchange().log("a line")
    return "logged"


async def test_tool_with_progress() -> str:
    """Progress three times."""
    for done in (0, 50, 100):
        exchange().progress(done, 100, f"Completed step {done} of 100")
        await asyncio.sleep(0.05)
    return "done"


async def test_reconnection() -> str:
    """Lets go of its connection, and answers over the next one."""
    exchange().pause_stream()
    await asyncio.sleep(0.2)
    return "Reconnection test completed successfully."


# --- asking, at once ---
async def test_sampling(prompt: str) -> str:
    """Asks the client's model."""
    found = await exchange().sample(prompt, 100)
    return f"LLM response: {found['content'].get('text', '')}"


async def test_elicitation(message: str) -> str:
    """Asks the user."""
    schema = {
        "type": "object",
        "properties": {
            "username": {"type": "string", "description": "User's response"},
            "email": {"type": "string", "description": "User's email address"},
        },
        "required": ["username", "email"],
    }
    found = await exchange().elicit(message, schema)
    return f"User response: {json.dumps(found)}"


async def _filled(schema: dict[str, Any]) -> str:
    whole = {"type": "object", "properties": schema, "required": []}
    found = await exchange().elicit("Please look at these values", whole)
    return (
        f"Elicitation completed: action={found.get('action')}, "
        f"content={json.dumps(found.get('content'))}"
    )


async def test_elicitation_sep1034_defaults() -> str:
    """A form with defaults."""
    states = ["active", "inactive", "pending"]
    return await _filled(
        {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": states, "default": "active"},
            "verified": {"type": "boolean", "default": True},
        }
    )


async def test_elicitation_sep1330_enums() -> str:
    """A form with every kind of choice."""
    plain = ["option1", "option2", "option3"]
    titles = [
        {"const": f"value{number}", "title": f"{word} Option"}
        for number, word in enumerate(("First", "Second", "Third"), 1)
    ]
    choices = [
        {"const": f"value{number}", "title": f"{word} Choice"}
        for number, word in enumerate(("First", "Second", "Third"), 1)
    ]
    return await _filled(
        {
            "untitledSingle": {"type": "string", "enum": plain},
            "titledSingle": {"type": "string", "oneOf": titles},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {
                "type": "array",
                "items": {"type": "string", "enum": plain},
            },
            "titledMulti": {"type": "array", "items": {"anyOf": choices}},
        }
    )


# --- asking, by a result ---
async def test_missing_capability() -> str:
    """Needs the client's model."""
    exchange().require("sampling")
    return "sampling is there"


async def test_streaming_elicitation() -> str:
    """Asks the user, after some progress."""
    exchange().progress(1, 2)
    await exchange().ask({"name": form("Your name?", name=STRING)})
    return "asked"


async def test_input_required_result_elicitation() -> str:
    """Asks for a name."""
    ask = {"user_name": form("What is your name?", name=STRING)}
    found = (await exchange().ask(ask))["user_name"]
    return f"Hello, {found.get('content', {}).get('name')}!"


async def test_input_required_result_sampling() -> str:
    """Asks the model."""
    ask = {"capital_question": sampling("What is the capital of France?", 100)}
    found = (await exchange().ask(ask))["capital_question"]
    return f"The model said: {json.dumps(found.get('content'))}"


async def test_input_required_result_list_roots() -> str:
    """Asks for the roots."""
    found = (await exchange().ask({"client_roots": ROOTS}))["client_roots"]
    return f"Roots: {json.dumps(found.get('roots'))}"


async def test_input_required_result_request_state() -> str:
    """Keeps a state with the client."""
    ask = {"confirm": form("Please confirm", ok=OK)}
    await exchange().ask(ask, state={"step": 1})
    if exchange().state != {"step": 1}:
        message = "the state was lost"
        raise ProtocolError(-32602, message)
    return "state-ok"


async def test_input_required_result_tampered_state() -> str:
    """Keeps a state with the client, which must not change it."""
    await exchange().ask({"confirm": form("Please confirm", ok=OK)}, state="genuine")
    return "confirmed"


async def test_input_required_result_multiple_inputs() -> str:
    """Asks for three things at once."""
    await exchange().ask(
        {
            "user_name": form("What is your name?", name=STRING),
            "greeting": sampling("Generate a greeting", 50),
            "client_roots": ROOTS,
        },
        state={"asked": 3},
    )
    return "all three are there"


async def test_input_required_result_multi_round() -> str:
    """Asks twice, one after the other."""
    here = exchange()
    if here.state is None or here.state["round"] == 1:
        ask = {"step1": form("Step 1: What is your name?", name=STRING)}
        first = await here.ask(ask, state={"round": 1})
        here.answers.clear()
        name = first["step1"].get("content", {}).get("name")
    else:
        name = here.state["name"]
    ask = {"step2": form("Step 2: What is your favorite color?", color=STRING)}
    second = await here.ask(ask, state={"round": 2, "name": name})
    return f"{name} likes {second['step2'].get('content', {}).get('color')}"


async def test_input_required_result_capabilities() -> str:
    """Asks only for what the client can do."""
    able = exchange().peer.capabilities
    wanted: dict[str, Any] = {}
    if "sampling" in able:
        wanted["question"] = sampling("Say hello", 20)
    if "elicitation" in able:
        wanted["name"] = form("Your name?", name=STRING)
    await exchange().ask(wanted)
    return "answered"


async def context_prompt() -> str:
    ask = {"user_context": form("What context should the prompt use?", context=STRING)}
    found = (await exchange().ask(ask))["user_context"]
    return f"Context: {found.get('content', {}).get('context')}"


# --- schemas ---
async def json_schema_2020_12_tool(**_arguments: Any) -> str:
    """Has a schema with everything."""
    return "ok"


SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": STRING, "city": STRING},
        }
    },
    "properties": {
        "name": STRING,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": STRING,
        "email": STRING,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {
        "properties": {"contactMethod": {"const": "phone"}},
        "required": ["contactMethod"],
    },
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


async def test_custom_headers(region: str, count: int = 0) -> str:  # noqa: PT028
    """Mirrors arguments in headers."""
    return f"{region} {count}"


HEADERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
    },
    "required": ["region"],
}


def make_server() -> MCPServer:
    registry = create_registry(
        test_simple_text,
        test_image_content,
        test_audio_content,
        test_embedded_resource,
        test_multiple_content_types,
        test_error_handling,
        test_tool_with_logging,
        test_logging_tool,
        test_tool_with_progress,
        test_reconnection,
        test_sampling,
        test_elicitation,
        test_elicitation_sep1034_defaults,
        test_elicitation_sep1330_enums,
        test_missing_capability,
        test_streaming_elicitation,
        test_input_required_result_elicitation,
        test_input_required_result_sampling,
        test_input_required_result_list_roots,
        test_input_required_result_request_state,
        test_input_required_result_tampered_state,
        test_input_required_result_multiple_inputs,
        test_input_required_result_multi_round,
        test_input_required_result_capabilities,
    )
    registry.add(json_schema_2020_12_tool, parameters=SCHEMA)
    registry.add(test_custom_headers, parameters=HEADERS)
    server = MCPServer(
        tools=registry,
        name="executionkit-conformance",
        resources=[
            Resource(
                uri="test://static-text",
                name="Static text",
                read=lambda: "This is the content of the static text resource.",
                mime_type="text/plain",
            ),
            Resource(
                uri="test://static-binary",
                name="Static binary",
                read=lambda: b"\x89PNG\r\n",
                mime_type="image/png",
            ),
            Resource(uri="test://watched-resource", name="Watched", read=lambda: "now"),
            Resource(
                uri="test://template/{id}/data",
                name="Template",
                mime_type="application/json",
                read=lambda id: {  # noqa: A006
                    "id": id,
                    "templateTest": True,
                    "data": f"Data for ID: {id}",
                },
            ),
        ],
        prompts=[
            Prompt(
                name="test_simple_prompt",
                description="A prompt.",
                render=lambda: "This is a simple prompt for testing.",
            ),
            Prompt(
                name="test_prompt_with_arguments",
                description="A prompt with arguments.",
                arguments=(
                    PromptArgument("arg1", "First test argument"),
                    PromptArgument("arg2", "Second test argument"),
                ),
                render=lambda arg1, arg2: (
                    f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"
                ),
                complete=lambda _name, value: [
                    word
                    for word in ("paris", "park", "party")
                    if word.startswith(value)
                ],
            ),
            Prompt(
                name="test_prompt_with_embedded_resource",
                description="A prompt with a resource.",
                arguments=(PromptArgument("resourceUri", "The resource's URI"),),
                render=lambda resourceUri: [
                    {
                        "role": "user",
                        "content": embedded(
                            resourceUri, "Embedded resource content for testing."
                        ),
                    },
                    {
                        "role": "user",
                        "content": text("Please process the embedded resource above."),
                    },
                ],
            ),
            Prompt(
                name="test_prompt_with_image",
                description="A prompt with an image.",
                render=lambda: [
                    {"role": "user", "content": image()},
                    {
                        "role": "user",
                        "content": text("Please analyze the image above."),
                    },
                ],
            ),
            Prompt(
                name="test_input_required_result_prompt",
                description="A prompt that asks first.",
                render=context_prompt,
            ),
        ],
    )

    async def test_trigger_tool_change() -> str:
        """Changes the list of tools."""
        registry.add(test_simple_text, "dynamic_tool", replace=True)
        return "changed"

    async def test_trigger_prompt_change() -> str:
        """Changes the list of prompts."""
        server.add_prompt(Prompt(name="dynamic_prompt", description="New.", render=str))
        return "changed"

    registry.add(test_trigger_tool_change)
    registry.add(test_trigger_prompt_change)
    return server


async def main() -> None:
    port = sys.argv[1] if len(sys.argv) > 1 else "0"
    async with make_server() as server:
        await run_http(server, f"127.0.0.1:{port}", signals=True)


if __name__ == "__main__":
    asyncio.run(main())
