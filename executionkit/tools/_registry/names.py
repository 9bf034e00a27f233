"""Names of tools: namespaces, and the names that providers allow."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from executionkit.errors import ToolRegistrationError

__all__ = (
    "DEFAULT_NAMESPACE",
    "MAX_NAME",
    "decode_wire",
    "full_name",
    "split_name",
    "wire_name",
)

DEFAULT_NAMESPACE: Final = "default"
"""The namespace of a tool that names none."""

MAX_NAME: Final = 256
"""Characters of a name, and of a namespace, at most."""

_MAX_WIRE: Final = 64
_DIGEST: Final = 13
_LEGAL: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_HASHED: Final = re.compile(r".*___[0-9a-f]{13}\Z", re.DOTALL)
_ODD: Final = re.compile(r"[^A-Za-z0-9-]+")
_UNFIT: Final = re.compile(r"[\s\x00-\x1f\x7f]")


def full_name(name: str, namespace: str) -> str:
    """`namespace.name`; the bare name in the default namespace."""
    return name if namespace == DEFAULT_NAMESPACE else f"{namespace}.{name}"


def split_name(name: Any, namespace: Any) -> tuple[str, str]:
    """(name, namespace) of a tool that is to be registered.

    A name with a dot is split at the first one, unless a namespace is given.

    Raises:
        ToolRegistrationError: When a tool cannot have such a name.
    """
    for what, text in (("name", name), ("namespace", namespace)):
        if not isinstance(text, str):
            msg = f"`{what}` of a tool must be a str, got {type(text).__name__}"
            raise ToolRegistrationError(msg)
        _check(what, text)
    if namespace == DEFAULT_NAMESPACE and "." in name:
        namespace, _, name = name.partition(".")
        if namespace == DEFAULT_NAMESPACE and "." in name:
            msg = (
                f"`{namespace}.{name}` has a dot in its name, which no tool of the "
                "default namespace has; leave `default.` out"
            )
            raise ToolRegistrationError(msg)
    return name, namespace


def _check(what: str, text: str) -> None:
    parts = text.split(".")
    if not all(parts):
        why = "is empty, or has an empty part beside a dot"
    elif _UNFIT.search(text):
        why = "has white space or control characters"
    elif "<" in text or ">" in text:
        why = "has `<` or `>`; a lambda or a nested class needs `name=...`"
    elif len(text) > MAX_NAME:
        why = f"is longer than {MAX_NAME} characters"
    else:
        return
    msg = f"`{what}` of a tool {why}: {text[:80]!r}; give another with `{what}=...`"
    raise ToolRegistrationError(msg)


def wire_name(full: str) -> str:
    """The name under which a provider knows the tool: letters, digits, `_`, `-`, <= 64.

    A dot becomes `__` (`web.fetch` is `web__fetch`). A name that is too long, has other
    characters, or could be taken for another one so, becomes what is left of it and a
    hash: no two tools share one (52 bits of SHA-256), whatever else is registered.
    """
    if "." not in full:
        if "__" not in full and _LEGAL.match(full):
            return full
        return _hashed(full)
    parts = full.split(".")
    plain = not any(
        "__" in part or part[:1] == "_" or part[-1:] == "_" for part in parts
    )
    joined = "__".join(parts)
    return joined if plain and _LEGAL.match(joined) else _hashed(full)


def _hashed(full: str) -> str:
    digest = hashlib.sha256(full.encode("utf-8", "surrogatepass")).hexdigest()
    kept = _ODD.sub("_", full)[: _MAX_WIRE - _DIGEST - 3].strip("_") or "tool"
    return f"{kept}___{digest[:_DIGEST]}"


def decode_wire(wire: str) -> str | None:
    """The full name behind a wire name; None when it has a hash: only a table knows."""
    return None if _HASHED.match(wire) else wire.replace("__", ".")
