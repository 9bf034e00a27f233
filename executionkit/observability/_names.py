"""What models and providers are called in traces and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

__all__ = ("model_name", "provider_name", "server_of")

# Values of `gen_ai.provider.name` in the GenAI semantic conventions, by the end of the
# host's name.
_HOSTS: Final = (
    ("openai.azure.com", "azure.ai.openai"),
    ("inference.ai.azure.com", "azure.ai.inference"),
    ("openai.com", "openai"),
    ("anthropic.com", "anthropic"),
    ("generativelanguage.googleapis.com", "gcp.gemini"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai"),
    ("amazonaws.com", "aws.bedrock"),
    ("cohere.com", "cohere"),
    ("cohere.ai", "cohere"),
    ("mistral.ai", "mistral_ai"),
    ("groq.com", "groq"),
    ("deepseek.com", "deepseek"),
    ("perplexity.ai", "perplexity"),
    ("x.ai", "x_ai"),
    ("ibm.com", "ibm.watsonx.ai"),
)
# Providers that speak a dialect, to whatever server.
_DIALECTS: Final = {"Provider": "openai", "AnthropicProvider": "anthropic"}


def model_name(provider: object, options: Mapping[str, Any]) -> str | None:
    """The model that is asked: by name in the call, else the provider's own."""
    name: object = options.get("model")
    if name is None:
        name = _attribute(provider, "model")
    return name if isinstance(name, str) and name else None


def provider_name(provider: object) -> str:
    """Who answers, as `gen_ai.provider.name`; the name of the class when unknown."""
    kind = type(provider).__name__
    url = _attribute(provider, "base_url")
    known = _by_host(url) if isinstance(url, str) else None
    return known or _DIALECTS.get(kind, kind)


def server_of(provider: object) -> tuple[str, int] | None:
    """Host and port of the provider's server; None when it has none."""
    url = _attribute(provider, "base_url")
    return _server(url) if isinstance(url, str) else None


def _attribute(provider: object, name: str) -> object:
    try:
        return getattr(provider, name, None)
    except Exception:  # noqa: BLE001 - a property of a user's own class
        return None


@lru_cache(maxsize=128)
def _by_host(url: str) -> str | None:
    server = _server(url)
    if server is None:
        return None
    for end, name in _HOSTS:
        if server[0] == end or server[0].endswith(f".{end}"):
            return name
    return None


@lru_cache(maxsize=128)
def _server(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname:
        return None
    return parts.hostname, port or (80 if parts.scheme == "http" else 443)
