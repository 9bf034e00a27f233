"""`Provider`: any endpoint that speaks OpenAI's chat completions.

Also the home of what a provider is (`LLMProvider` and the protocols on top of it) and
of what comes back (`LLMResponse`); the errors are re-exported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self

from executionkit._constants import DEFAULT_MAX_TOKENS
from executionkit._endpoint import (
    Endpoint,
    EventStream,
    Options,
    ProviderBase,
    TextStream,
    check_defaults,
    checked_headers,
    checked_key,
    environment_settings,
    make_endpoint,
    refuse_streaming,
)
from executionkit._llm import (
    OMIT,
    LLMProvider,
    LLMResponse,
    Omit,
    ReasoningDelta,
    StreamEnd,
    StreamEvent,
    StreamingProvider,
    TextDelta,
    ToolCallDelta,
    ToolCallingProvider,
    UsageUpdate,
    usage_of,
)
from executionkit._redact import redact, redact_url
from executionkit._wire.common import encode_body
from executionkit._wire.failures import failure_of_response, to_error
from executionkit._wire.openai import chat_body, parse_completion
from executionkit._wire.openai_stream import ChatAssembler
from executionkit._wire.retry_hints import parse_retry_after
from executionkit.calls import ToolCall
from executionkit.errors import (
    BadResponseError,
    BudgetExhaustedError,
    ConsensusFailedError,
    ExecutionKitError,
    LLMError,
    MaxIterationsError,
    PatternError,
    PermanentError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    StreamError,
)
from executionkit.types import sealed

if TYPE_CHECKING:
    from executionkit._http import HttpTransport

__all__ = (
    "OMIT",
    "BadResponseError",
    "BudgetExhaustedError",
    "ConsensusFailedError",
    "EventStream",
    "ExecutionKitError",
    "LLMError",
    "LLMProvider",
    "LLMResponse",
    "MaxIterationsError",
    "Omit",
    "PatternError",
    "PermanentError",
    "Provider",
    "ProviderConnectionError",
    "ProviderError",
    "ProviderTimeoutError",
    "RateLimitError",
    "ReasoningDelta",
    "StreamEnd",
    "StreamError",
    "StreamEvent",
    "StreamingProvider",
    "TextDelta",
    "TextStream",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallingProvider",
    "UsageUpdate",
    "usage_of",
)

_PATH: Final = "/chat/completions"
_DEFAULT_RETRY_AFTER: Final = 1.0
_ENVIRONMENT: Final = {
    "base_url": "EXECUTIONKIT_BASE_URL",
    "model": "EXECUTIONKIT_MODEL",
    "api_key": "EXECUTIONKIT_API_KEY",
}


@sealed
@dataclass(frozen=True, slots=True, repr=False)
class Provider(ProviderBase):
    """A model behind an endpoint that speaks OpenAI's chat completions.

    One object may be used from any number of tasks, event loops and threads: each loop
    has connections of its own, which end with the loop, with `aclose()`, or with
    `async with`. A provider that was closed opens new ones when it is used again.

    A call is sent once; retrying is the business of the patterns and of `with_retry`.
    Its time limits are `timeout` and the deadline of the current context, whichever
    comes first.

    Any option that the API knows can be given to a call by its own name (`tool_choice`,
    `response_format`, `seed`, `stop`, ...) and wins over everything that is sent
    otherwise; with the value `OMIT` it is not sent at all. `max_completion_tokens`
    takes the place of `max_tokens`.

    Raises:
        TypeError, ValueError: When a setting cannot be used.
    """

    base_url: str
    """Where the API is, e.g. `https://api.openai.com/v1`. A query stays in place
    (`...?api-version=2024-06-01`)."""

    model: str
    """The model's name."""

    api_key: str = ""
    """Sent as a bearer token; empty = not sent. Blanks around it are dropped."""

    default_temperature: float | None = 0.7
    """Used when a call gives none. None = not sent, for models that refuse it."""

    default_max_tokens: int | None = DEFAULT_MAX_TOKENS
    """Used when a call gives none. None = not sent."""

    timeout: float | None = 120.0
    """Seconds from the request to the last byte of the answer, streamed ones included.
    None = no limit."""

    _: KW_ONLY

    idle_timeout: float | None = None
    """The longest silence inside an answer, seconds. None = no limit of its own."""

    connect_timeout: float | None = 10.0
    """Seconds to open a connection. None = no limit of its own."""

    transport: HttpTransport | str | None = None
    """`"aiohttp"`, `"httpx2"`, `"httpx"`, `"stdlib"`, or a transport, which its owner
    closes. None = the best one that is installed."""

    headers: Mapping[str, str] | None = None
    """Sent with every request; they win over those of the provider."""

    max_connections: int = 1000
    """Requests in flight at once, per event loop; more wait for their turn."""

    supports_response_format: bool = False
    """Whether the server holds a reply to the JSON Schema of a `response_format`. Then
    `structured` and the judge of `refine_loop` send one."""

    supports_tools: Literal[True] = field(default=True, init=False, compare=False)
    """The mark of a `ToolCallingProvider`."""

    _endpoint: Endpoint = field(init=False, compare=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "api_key", checked_key(self.base_url, self.model, self.api_key))
        check_defaults(self.default_temperature, self.default_max_tokens)
        headers = checked_headers(self.headers)
        put(self, "headers", headers)
        options = Options(
            timeout=self.timeout,
            idle_timeout=self.idle_timeout,
            connect_timeout=self.connect_timeout,
            transport=self.transport,
            headers=headers,
            max_connections=self.max_connections,
        )
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        put(self, "_endpoint", make_endpoint(self.base_url, _PATH, key, options))

    @classmethod
    def from_env(
        cls, *, environ: Mapping[str, str] | None = None, **settings: Any
    ) -> Self:
        """The provider that the environment describes.

        Reads `EXECUTIONKIT_BASE_URL`, `EXECUTIONKIT_MODEL` and, if set,
        `EXECUTIONKIT_API_KEY`.

        Args:
            environ: Where to look. None = the environment of the process.
            settings: Any other setting; they win.

        Raises:
            ValueError: Naming the variables that are missing.
        """
        may_miss = {"api_key", *settings}
        found: dict[str, Any] = environment_settings(_ENVIRONMENT, may_miss, environ)
        return cls(**{**found, **settings})

    def __repr__(self) -> str:
        key = "***" if self.api_key else ""
        return (
            f"{type(self).__name__}(base_url={redact_url(self.base_url)!r}, "
            f"model={self.model!r}, api_key={key!r})"
        )

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: float | Omit | None = None,
        max_tokens: int | Omit | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> LLMResponse:
        """Answer `messages` once.

        Args:
            messages: In OpenAI's chat form.
            temperature: None = the provider's default, `OMIT` = not sent.
            max_tokens: None = the provider's default, `OMIT` = not sent.
            tools: In OpenAI's function form; not sent when empty.
            kwargs: Any other option of the API.

        Raises:
            LLMError: When there is no usable answer; see `executionkit.errors`.
            DeadlineExceededError: The context's deadline leaves no time.
            TypeError: When the request holds something that is not JSON.
            ValueError: The same for NaN and infinity.
        """
        refuse_streaming(kwargs)
        body = self._body(messages, temperature, max_tokens, tools, kwargs)
        return await self._ask(body, parse_completion)

    def stream(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: float | Omit | None = None,
        max_tokens: int | Omit | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        usage_sink: list[LLMResponse] | None = None,
        **kwargs: Any,
    ) -> TextStream:
        """Yield the answer's text while it is made; called without await.

        The request is sent when the first piece is asked for. Use the stream in
        `async with`, or close it, when it may not be read to its end.

        Args:
            messages: See `complete`.
            temperature: See `complete`.
            max_tokens: See `complete`.
            tools: See `complete`.
            usage_sink: Gets the whole response when the stream is complete; nothing
                when it fails or is closed early (`partial_response()` knows more).
            kwargs: Any other option of the API.

        Raises:
            LLMError: While iterating: the stream failed or ended early; `partial_text`
                has the text until then.
        """
        body = self._stream_body(messages, temperature, max_tokens, tools, kwargs)
        assembler = ChatAssembler(secrets=self._endpoint.secrets)
        return TextStream(
            self._endpoint, body, assembler, usage_sink, model=self.model, provider=self
        )

    def stream_events(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        temperature: float | Omit | None = None,
        max_tokens: int | Omit | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        usage_sink: list[LLMResponse] | None = None,
        **kwargs: Any,
    ) -> EventStream:
        """Yield the answer as typed events: text, reasoning, tool calls, usage, end.

        The last event is `StreamEnd` with the whole response. Otherwise as `stream`.
        """
        body = self._stream_body(messages, temperature, max_tokens, tools, kwargs)
        assembler = ChatAssembler(secrets=self._endpoint.secrets)
        return EventStream(
            self._endpoint, body, assembler, usage_sink, model=self.model, provider=self
        )

    def _body(
        self,
        messages: Sequence[dict[str, Any]],
        temperature: float | Omit | None,
        max_tokens: int | Omit | None,
        tools: Sequence[dict[str, Any]] | None,
        options: Mapping[str, Any],
    ) -> bytes:
        return encode_body(
            chat_body(
                self.model,
                messages,
                temperature=(
                    self.default_temperature if temperature is None else temperature
                ),
                max_tokens=self.default_max_tokens
                if max_tokens is None
                else max_tokens,
                tools=tools,
                options=options,
            )
        )

    def _stream_body(
        self,
        messages: Sequence[dict[str, Any]],
        temperature: float | Omit | None,
        max_tokens: int | Omit | None,
        tools: Sequence[dict[str, Any]] | None,
        options: Mapping[str, Any],
    ) -> bytes:
        wanted = {"stream": True, "stream_options": {"include_usage": True}, **options}
        return self._body(messages, temperature, max_tokens, tools, wanted)


def _classify_http_error(  # pyright: ignore[reportUnusedFunction] - an older name
    status: int,
    raw: bytes | str | Mapping[str, Any],
    retry_after: float | None = None,
    *,
    cause: BaseException | None = None,
    secrets: Sequence[str] = (),
) -> NoReturn:
    """Raise the error that an HTTP status and an error body stand for.

    Args:
        status: The status.
        raw: The body, or its JSON object.
        retry_after: Seconds the server asks to wait. None = it did not say.
        cause: What to chain.
        secrets: Texts that must not appear in the message.
    """
    body = json.dumps(dict(raw)) if isinstance(raw, Mapping) else raw
    data = body.encode("utf-8", "replace") if isinstance(body, str) else body
    failure = failure_of_response(status, {}, data)
    if retry_after is not None:
        failure = replace(failure, retry_after=retry_after)
    raise to_error(failure, secrets=secrets) from cause


def _parse_retry_after(  # pyright: ignore[reportUnusedFunction] - an older name
    header: str | None, default: float = _DEFAULT_RETRY_AFTER
) -> float:
    """Seconds of a `Retry-After` header, at least 0; `default` when it says nothing."""
    seconds = None if header is None else parse_retry_after(header)
    return default if seconds is None else max(0.0, seconds)


def _redact_sensitive(  # pyright: ignore[reportUnusedFunction] - an older name
    text: str,
) -> str:
    return redact(text)
