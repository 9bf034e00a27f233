"""The server that a command line describes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from executionkit.mcp.server import MCPServer
from executionkit.tools.decorators import get_default_registry
from executionkit.tools.processor import ToolProcessor
from executionkit.tools.registry import ToolRegistry

__all__ = ("load_server",)

_NAMES: Final = ("server", "processor", "registry", "tools")


def load_server(tools: str | None, name: str | None = None) -> MCPServer:
    """The server of the tools at `module` or `module:name`.

    A module alone means what it calls `server`, `processor`, `registry` or `tools`,
    else what it put into the default registry.

    Args:
        tools: Where the tools are. None = the reasoning patterns.
        name: What the server says it is called. None = as it is.

    Raises:
        ImportError: When there is no such module.
        AttributeError: When it has no such name.
        TypeError: When what is there is none of these.
        ToolRegistrationError: When one of the tools is none.
    """
    if tools is None:
        return MCPServer(name=name or "executionkit")
    module_name, _, attribute = tools.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = importlib.import_module(module_name)
    if attribute:
        found: Any = module
        for part in attribute.split("."):
            found = getattr(found, part)
    else:
        found = _in_module(module)
    return _as_server(found, tools, name)


def _in_module(module: Any) -> Any:
    for name in _NAMES:
        found = getattr(module, name, None)
        if isinstance(found, (MCPServer, ToolProcessor, ToolRegistry, list, tuple)):
            return found
    return get_default_registry()


def _as_server(found: Any, where: str, name: str | None) -> MCPServer:
    known = (MCPServer, ToolProcessor, ToolRegistry, list, tuple)
    if isinstance(found, Callable) and not isinstance(found, known):  # type: ignore[arg-type]
        found = found()
    if isinstance(found, MCPServer):
        return found
    if isinstance(found, (ToolProcessor, ToolRegistry)) or (
        isinstance(found, Iterable) and not isinstance(found, (str, bytes))
    ):
        return MCPServer(tools=found, name=name or "executionkit")
    msg = (
        f"{where!r} is a {type(found).__name__}; it must be a registry, a processor, a "
        "server, a list of tools, or a function that gives one of them"
    )
    raise TypeError(msg)
