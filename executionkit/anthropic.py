"""`AnthropicProvider`: Claude models through Anthropic's own Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self

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
from executionkit._llm import LLMResponse, Omit
from executionkit._redact import redact_url
from executionkit._wire.anthropic_reply import parse_message
from executionkit._wire.anthropic_request import AnswerTool, messages_body
from executionkit._wire.anthropic_stream import MessageAssembler
from executionkit._wire.common import encode_body
from executionkit.types import sealed

if TYPE_CHECKING:
    from executionkit._http import HttpTransport

__all__ = ("ANTHROPIC_VERSION", "AnthropicProvider")

ANTHROPIC_VERSION: Final = "2023-06-01"
"""The version of the API that requests ask for."""

_PATH: Final = "/v1/messages"
_ENVIRONMENT: Final = {
    "model": "ANTHROPIC_MODEL",
    "api_key": "ANTHROPIC_API_KEY",
    "base_url": "ANTHROPIC_BASE_URL",
}


@sealed
@dataclass(frozen=True, slots=True, repr=False)
class AnthropicProvider(ProviderBase):
    """A Claude model behind Anthropic's Messages API.

    Calls take messages and tools in OpenAI's form, like those of `Provider`, and
    translate them: system messages, images, tool calls and results, `stop`, `user`,
    `tool_choice`, `parallel_tool_calls`, `max_completion_tokens`. Content blocks and
    tools in Anthropic's own form pass through, with `cache_control`, and so does any
    other option (`thinking`, `top_k`, `metadata`, ...).

    `response_format` with a JSON schema, which the API does not have, becomes a tool
    whose input is the schema and that the model is made to call; its input comes back
    as the text of the answer. With tools of your own beside it, the model must call one
    of them or answer through it. While `thinking` is on nothing can be forced, and the
    model may answer in words.

    Finish reasons are Anthropic's own words (`end_turn`, `max_tokens`, `tool_use`, ...).
    Thinking comes back as `reasoning`; `LLMResponse.to_message()` keeps its signed
    blocks, which the API wants back in a turn with tools.

    For connections, closing, limits and `OMIT` see `Provider`.

    Raises:
        TypeError, ValueError: When a setting cannot be used.
    """

    model: str
    """The model's name."""

    api_key: str = ""
    """Sent as `x-api-key`; empty = not sent. Blanks around it are dropped."""

    _: KW_ONLY

    base_url: str = "https://api.anthropic.com"
    """Where the API is; `/v1/messages` is added, or what is missing of it."""

    default_temperature: float | None = None
    """Used when a call gives none. None = not sent."""

    default_max_tokens: int = DEFAULT_MAX_TOKENS
    """Used when a call gives none; the API demands one."""

    timeout: float | None = 120.0
    """Seconds from the request to the last byte of the answer, streamed ones included.
    None = no limit."""

    idle_timeout: float | None = None
    """The longest silence inside an answer, seconds. None = no limit of its own."""

    connect_timeout: float | None = 10.0
    """Seconds to open a connection. None = no limit of its own."""

    transport: HttpTransport | str | None = None
    """`"aiohttp"`, `"httpx2"`, `"httpx"`, `"stdlib"`, or a transport, which its owner
    closes. None = the best one that is installed."""

    headers: Mapping[str, str] | None = None
    """Sent with every request (`anthropic-beta`, ...); they win."""

    max_connections: int = 1000
    """Requests in flight at once, per event loop; more wait for their turn."""

    supports_tools: Literal[True] = field(default=True, init=False, compare=False)
    """The mark of a `ToolCallingProvider`."""

    _endpoint: Endpoint = field(init=False, compare=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "api_key", checked_key(self.base_url, self.model, self.api_key))
        check_defaults(self.default_temperature, self.default_max_tokens, needed=True)
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
        own = {"anthropic-version": ANTHROPIC_VERSION}
        if self.api_key:
            own["x-api-key"] = self.api_key
        path = _path_for(self.base_url)
        put(self, "_endpoint", make_endpoint(self.base_url, path, own, options))

    @classmethod
    def from_env(
        cls, *, environ: Mapping[str, str] | None = None, **settings: Any
    ) -> Self:
        """The provider that the environment describes.

        Reads `ANTHROPIC_MODEL` and, if set, `ANTHROPIC_API_KEY` and
        `ANTHROPIC_BASE_URL`.

        Args:
            environ: Where to look. None = the environment of the process.
            settings: Any other setting; they win.

        Raises:
            ValueError: When no model is named.
        """
        may_miss = {"api_key", "base_url", *settings}
        found: dict[str, Any] = environment_settings(_ENVIRONMENT, may_miss, environ)
        return cls(**{**found, **settings})

    @property
    def supports_response_format(self) -> Literal[True]:
        """Whether a `response_format` holds the reply to its JSON Schema."""
        return True

    def __repr__(self) -> str:
        key = "***" if self.api_key else ""
        return (
            f"{type(self).__name__}(model={self.model!r}, api_key={key!r}, "
            f"base_url={redact_url(self.base_url)!r})"
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
            messages: In OpenAI's chat form, or with Anthropic's blocks as content.
            temperature: None = the provider's default, `OMIT` = not sent.
            max_tokens: None = the provider's default.
            tools: In OpenAI's function form or Anthropic's; not sent when empty.
            kwargs: Any other option of either API.

        Raises:
            LLMError: When there is no usable answer; see `executionkit.errors`.
            DeadlineExceededError: The context's deadline leaves no time.
            TypeError: When the request holds something that is not JSON, or a message
                that cannot be translated.
            ValueError: The same for single values.
        """
        refuse_streaming(kwargs)
        body, answer = self._body(messages, temperature, max_tokens, tools, kwargs)
        return await self._ask(
            body,
            lambda payload, secrets: parse_message(payload, secrets, answer=answer),
        )

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
        """Yield the answer's text while it is made; see `Provider.stream`."""
        wanted = {"stream": True, **kwargs}
        body, answer = self._body(messages, temperature, max_tokens, tools, wanted)
        assembler = MessageAssembler(answer=answer, secrets=self._endpoint.secrets)
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
        """Yield the answer as typed events; see `Provider.stream_events`."""
        wanted = {"stream": True, **kwargs}
        body, answer = self._body(messages, temperature, max_tokens, tools, wanted)
        assembler = MessageAssembler(answer=answer, secrets=self._endpoint.secrets)
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
    ) -> tuple[bytes, AnswerTool | None]:
        body, answer = messages_body(
            self.model,
            messages,
            temperature=(
                self.default_temperature if temperature is None else temperature
            ),
            max_tokens=self.default_max_tokens if max_tokens is None else max_tokens,
            tools=tools,
            options=options,
        )
        return encode_body(body), answer


def _path_for(base_url: str) -> str:
    path = base_url.partition("?")[0].rstrip("/ ")
    return "/messages" if path.endswith("/v1") else _PATH
