"""Putting a streamed reply together: events out as pieces come in, the whole at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, NoReturn

from executionkit._llm import LLMResponse, ReasoningDelta, TextDelta, UsageUpdate
from executionkit._wire.failures import Failure, excerpt, failure_in, to_stream_error
from executionkit._wire.loading import load_reply
from executionkit.errors import StreamError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executionkit._llm import StreamEvent
    from executionkit.types import JsonValue

__all__ = ("UNFINISHED", "Assembler")

UNFINISHED: Final = "incomplete"
"""The finish reason of a partial reply."""


class Assembler(ABC):
    """Puts one streamed reply together.

    Texts are collected in lists and joined once: a stream of any length is linear.

    Args:
        secrets: Texts that must not appear in an error.
    """

    __slots__ = (
        "_reasoning",
        "_response",
        "_secrets",
        "_text",
        "_usage",
        "complete",
        "ended",
        "id",
        "model",
        "started",
    )

    def __init__(self, *, secrets: Sequence[str] = ()) -> None:
        self.complete: bool = False
        """Nothing more will come: stop reading, even if the socket stays open."""
        self.ended: bool = False
        """The model has finished; only usage may still come."""
        self.started: bool = False
        """Something of the answer has come."""
        self.id: str | None = None
        self.model: str | None = None
        self._secrets = secrets
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._usage: dict[str, Any] | None = None
        self._response: LLMResponse | None = None

    @abstractmethod
    def feed(self, event: str, data: str) -> Sequence[StreamEvent]:
        """Take one server-sent event.

        Args:
            event: Its name, when it has one.
            data: Its data.

        Raises:
            LLMError: When it reports an error, or cannot be read.
        """

    @abstractmethod
    def _parse(self, payload: JsonValue) -> LLMResponse:
        """Read a whole answer."""

    @abstractmethod
    def _assemble(self) -> LLMResponse:
        """Build the whole reply of what has come."""

    def whole(self, payload: JsonValue) -> Sequence[StreamEvent]:
        """Take a whole answer that came in place of a stream.

        Raises:
            LLMError: When it reports an error, or is not what the API promises.
        """
        response = self._response = self._parse(payload)
        self.started = self.ended = self.complete = True
        events: list[StreamEvent] = []
        if response.reasoning:
            events.append(ReasoningDelta(response.reasoning))
        if response.content:
            events.append(TextDelta(response.content))
        if response.usage:
            events.append(UsageUpdate(response.usage))
        return events

    def finish(self) -> LLMResponse:
        """The whole reply, once the stream is over.

        Raises:
            StreamError: When it ended before the reply was complete.
            BadResponseError: When there is nothing in it that can be used.
        """
        if self._response is None:
            if not self.complete and not self.ended:
                msg = (
                    "incomplete stream: the server closed it without a finish reason "
                    "or an end mark"
                )
                raise StreamError(msg, partial_text=self.partial_text())
            self._response = self._assemble()
        return self._response

    def partial_text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    def partial(self) -> LLMResponse:
        """What is known now: the whole reply, or a part marked `"incomplete"`."""
        if self._response is not None:
            return self._response
        return LLMResponse(
            self.partial_text(),
            finish_reason=UNFINISHED,
            usage=self._usage or {},
            reasoning="".join(self._reasoning) or None,
            model=self.model,
            id=self.id,
            notes=("the stream was not read to its end",),
        )

    def _read(self, event: str, data: str) -> dict[str, Any]:
        try:
            chunk = load_reply(data)
        except ValueError:
            chunk = None
        if type(chunk) is not dict or event == "error" or "error" in chunk:
            self._check(event, data, chunk)
        return chunk  # type: ignore[no-any-return]

    def _check(self, event: str, data: str, chunk: object) -> None:
        failure = failure_in(chunk)
        if failure is None and event == "error":
            failure = Failure(data)
        if failure is not None:
            self._fail(failure)
        if not isinstance(chunk, dict):
            shown = excerpt(data, secrets=self._secrets)
            msg = f"the stream sent a non-JSON event (an object is expected): {shown}"
            raise StreamError(msg, partial_text=self.partial_text())

    def _fail(self, failure: Failure) -> NoReturn:
        raise to_stream_error(
            failure,
            partial_text=self.partial_text(),
            started=self.started,
            secrets=self._secrets,
        )

    def _add_text(self, text: str, events: list[StreamEvent]) -> None:
        if text:
            self.started = True
        self._text.append(text)
        events.append(TextDelta(text))

    def _add_reasoning(self, text: object, events: list[StreamEvent]) -> None:
        if isinstance(text, str) and text:
            self.started = True
            self._reasoning.append(text)
            events.append(ReasoningDelta(text))
