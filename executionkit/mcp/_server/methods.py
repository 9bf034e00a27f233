"""What each method of the protocol does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from executionkit.mcp._constants import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MODERN_VERSIONS,
    RESOURCE_NOT_FOUND,
)
from executionkit.mcp._server.calling import context_of
from executionkit.mcp._server.messages import ProtocolError
from executionkit.mcp._server.offers import Prompt, Resource, outcome, prompt_messages
from executionkit.mcp._server.pages import page
from executionkit.mcp._server.peer import object_of

if TYPE_CHECKING:
    from executionkit.mcp._server.core import Core
    from executionkit.mcp._server.exchange import Exchange
    from executionkit.mcp._server.peer import Peer

__all__ = ("Call", "Method", "find_method", "input_required")

_MAX_VALUES: Final = 100


@dataclass(slots=True)
class Call:
    """One request, as the methods see it."""

    core: Core
    peer: Peer
    params: dict[str, Any]
    headers: Mapping[str, str] | None = None
    exchange: Exchange | None = None
    """The conversation about it; only methods that take time have one."""


Work = Callable[[Call], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Method:
    """How a method is served."""

    run: Work
    slow: bool = False
    """Whether it runs beside others, in a task of its own."""

    legacy: bool = True
    modern: bool = True
    needs: str | None = None
    """What must be offered; None = nothing."""


async def _ping(_call: Call) -> dict[str, Any]:
    return {}


async def _discover(call: Call) -> dict[str, Any]:
    core = call.core
    found: dict[str, Any] = {
        "supportedVersions": list(MODERN_VERSIONS),
        "capabilities": core.capabilities(call.peer),
    }
    if core.instructions is not None:
        found["instructions"] = core.instructions
    return _cacheable(call, found)


def _cacheable(call: Call, result: dict[str, Any]) -> dict[str, Any]:
    if call.peer.modern:
        result["ttlMs"] = round(call.core.options.cache_seconds * 1000)
        result["cacheScope"] = "private"
    return result


def _text_param(params: Mapping[str, Any], key: str) -> str:
    found = params.get(key)
    if not isinstance(found, str):
        raise ProtocolError(INVALID_PARAMS, f"Invalid params: `{key}` must be a text")
    return found


# --- tools ---
async def _tools_list(call: Call) -> dict[str, Any]:
    return _listing(call, "tools", call.core.tools.listed(call.peer.version), "name")


async def _tools_call(call: Call) -> dict[str, Any]:
    params, exchange = call.params, call.exchange
    assert exchange is not None  # noqa: S101 - it is a slow method
    name = _text_param(params, "name")
    arguments = object_of(params, "arguments")
    context = context_of(params.get("_meta"), call.headers)
    result = await call.core.tools.call(name, arguments, exchange, context)
    call.core.check_changes()
    return result


def _listing(call: Call, kind: str, items: Any, key: str) -> dict[str, Any]:
    found, cursor = page(
        items,
        call.params.get("cursor"),
        call.core.options.page_size,
        lambda item: str(item[key]),
    )
    result: dict[str, Any] = {kind: list(found)}
    if cursor is not None:
        result["nextCursor"] = cursor
    return _cacheable(call, result)


# --- resources ---
async def _resources_list(call: Call) -> dict[str, Any]:
    found = [item for item in call.core.resources.all() if not item.is_template]
    return _listing(call, "resources", _described(call, found), "uri")


async def _templates_list(call: Call) -> dict[str, Any]:
    found = [item for item in call.core.resources.all() if item.is_template]
    return _listing(call, "resourceTemplates", _described(call, found), "uriTemplate")


def _described(call: Call, items: Any) -> list[dict[str, Any]]:
    entries = [item.describe() for item in items]
    if call.peer.version < "2025-06-18":
        for entry in entries:
            entry.pop("title", None)
    return entries


def _find_resource(core: Core, peer: Peer, uri: str) -> tuple[Resource, dict[str, str]]:
    exact = core.resources.find(uri)
    if exact is not None and not exact.is_template:
        return exact, {}
    for item in core.resources.all():
        fields = item.match(uri)
        if fields is not None:
            return item, fields
    code = INVALID_PARAMS if peer.modern else RESOURCE_NOT_FOUND
    raise ProtocolError(code, "Resource not found", {"uri": uri})


async def _resources_read(call: Call) -> dict[str, Any]:
    uri = _text_param(call.params, "uri")
    found, fields = _find_resource(call.core, call.peer, uri)
    value = await outcome(found.read(**fields))
    return _cacheable(call, {"contents": [found.contents(uri, value)]})


async def _templates_of(call: Call) -> dict[str, Any]:
    _text_param(call.params, "uri")
    return {}


# --- prompts ---
async def _prompts_list(call: Call) -> dict[str, Any]:
    return _listing(call, "prompts", _described(call, call.core.prompts.all()), "name")


def _find_prompt(core: Core, name: str) -> Prompt:
    found = core.prompts.find(name)
    if found is None:
        raise ProtocolError(INVALID_PARAMS, f"Unknown prompt: {name[:200]}")
    return found


async def _prompts_get(call: Call) -> dict[str, Any]:
    prompt = _find_prompt(call.core, _text_param(call.params, "name"))
    given = object_of(call.params, "arguments")
    known = {item.name for item in prompt.arguments}
    missing = [
        item.name
        for item in prompt.arguments
        if item.required and item.name not in given
    ]
    wrong = [
        key
        for key, value in given.items()
        if key not in known or not isinstance(value, str)
    ]
    if missing or wrong:
        names = ", ".join(f"`{name}`" for name in (*missing, *wrong))
        msg = f"Invalid params: arguments missing, unknown or no text: {names}"
        raise ProtocolError(INVALID_PARAMS, msg)
    value = await outcome(prompt.render(**given))
    result: dict[str, Any] = {"messages": prompt_messages(value)}
    if prompt.description is not None:
        result["description"] = prompt.description
    return result


# --- completion, logging ---
async def _complete(call: Call) -> dict[str, Any]:
    ref = object_of(call.params, "ref")
    argument = object_of(call.params, "argument")
    name, value = _text_param(argument, "name"), _text_param(argument, "value")
    found: Prompt | Resource | None
    if ref.get("type") == "ref/prompt":
        found = _find_prompt(call.core, _text_param(ref, "name"))
    elif ref.get("type") == "ref/resource":
        uri = _text_param(ref, "uri")
        found = call.core.resources.find(uri)
        if found is None:
            found, _ = _find_resource(call.core, call.peer, uri)
    else:
        raise ProtocolError(INVALID_PARAMS, "Invalid params: unknown `ref`")
    values: list[str] = []
    if found.complete is not None:
        values = [str(item) for item in await outcome(found.complete(name, value))]
    return {
        "completion": {
            "values": values[:_MAX_VALUES],
            "total": len(values),
            "hasMore": len(values) > _MAX_VALUES,
        }
    }


def input_required(call: Call, method: str, error: Any) -> dict[str, Any]:
    """The result that asks the client for something first."""
    result: dict[str, Any] = {
        "resultType": "input_required",
        "inputRequests": error.requests,
    }
    if error.state is not None:
        purpose = state_purpose(method, call.params)
        result["requestState"] = call.core.seal(purpose, error.state)
    return result


def state_purpose(method: str, params: Mapping[str, Any]) -> str:
    """What a state is for: it is worth nothing in another request."""
    return f"{method} {params.get('name') or params.get('uri')}"


async def _set_by_session(_call: Call) -> dict[str, Any]:
    raise ProtocolError(METHOD_NOT_FOUND, "Method not found")


_METHODS: Final[dict[str, Method]] = {
    "initialize": Method(_set_by_session, modern=False),
    "ping": Method(_ping, modern=False),
    "server/discover": Method(_discover, legacy=False),
    "tools/list": Method(_tools_list),
    "tools/call": Method(_tools_call, slow=True),
    "logging/setLevel": Method(_set_by_session, modern=False, needs="logging"),
    "resources/list": Method(_resources_list, needs="resources"),
    "resources/templates/list": Method(_templates_list, needs="resources"),
    "resources/read": Method(_resources_read, slow=True, needs="resources"),
    "resources/subscribe": Method(_templates_of, modern=False, needs="resources"),
    "resources/unsubscribe": Method(_templates_of, modern=False, needs="resources"),
    "prompts/list": Method(_prompts_list, needs="prompts"),
    "prompts/get": Method(_prompts_get, slow=True, needs="prompts"),
    "completion/complete": Method(_complete, slow=True, needs="completions"),
    "subscriptions/listen": Method(
        _set_by_session, slow=True, legacy=False, needs="logging"
    ),
}


def find_method(core: Core, peer: Peer, name: str) -> Method:
    """How `name` is served to that client.

    Raises:
        ProtocolError: When it is not.
    """
    method = _METHODS.get(name)
    if method is not None and (method.modern if peer.modern else method.legacy):
        if method.needs is None or method.needs in core.capabilities(peer):
            return method
        if method.needs == "completions" and _had_completion(core, peer):
            return method  # it was there before it had a name
    raise ProtocolError(METHOD_NOT_FOUND, f"Method not found: {name[:200]}")


def _had_completion(core: Core, peer: Peer) -> bool:
    return peer.version == "2024-11-05" and not core.fixed
