"""What goes into a batch and what comes back, whatever the service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable

from executionkit._arguments import shown
from executionkit._llm import LLMResponse
from executionkit.types import TokenUsage, freeze, freeze_mapping, sealed

__all__ = (
    "BatchClient",
    "BatchCounts",
    "BatchItem",
    "BatchItemStatus",
    "BatchLimits",
    "BatchLine",
    "BatchRequest",
    "BatchResult",
    "BatchState",
    "BatchStatus",
)

_RESERVED = frozenset({"messages", "stream", "custom_id"})


@sealed
@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One request of a batch.

    Raises:
        TypeError: For a field of a wrong kind.
        ValueError: For an option that a batch cannot have.
    """

    custom_id: str
    """What its result is found by; unique in the batch."""

    prompt: str | Sequence[Mapping[str, Any]]
    """The user's text, or messages in OpenAI's chat form."""

    params: Mapping[str, Any] = field(default_factory=freeze_mapping)
    """`model`, `temperature`, `max_tokens`, `tools`, and any other option of the API,
    as for `Provider.complete`. What is not there is the client's default."""

    def __post_init__(self) -> None:
        given: Any = self
        if not isinstance(given.custom_id, str):
            msg = f"`custom_id` must be a str, got {shown(self.custom_id)}"
            raise TypeError(msg)
        if not isinstance(given.params, Mapping):
            msg = f"`params` must be a mapping of options, got {shown(self.params)}"
            raise TypeError(msg)
        wrong = sorted(_RESERVED & self.params.keys())
        if wrong:
            msg = (
                f"`params` of the request {self.custom_id!r} must not have "
                f"`{wrong[0]}`: {_INSTEAD[wrong[0]]}"
            )
            raise ValueError(msg)
        prompt = given.prompt
        if not isinstance(prompt, str):
            if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
                msg = (
                    "`prompt` must be a text or a list of messages, got "
                    f"{shown(prompt)}"
                )
                raise TypeError(msg)
            object.__setattr__(self, "prompt", freeze(prompt))
        object.__setattr__(self, "params", freeze_mapping(self.params))

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """The prompt as messages."""
        if isinstance(self.prompt, str):
            return [{"role": "user", "content": self.prompt}]
        return list(self.prompt)


_INSTEAD = {
    "messages": "pass them as `prompt`",
    "stream": "answers of a batch come whole",
    "custom_id": "pass it as the first argument",
}


class BatchStatus(StrEnum):
    """How far a batch is, in one vocabulary for all services."""

    IN_PROGRESS = "in_progress"
    """Being checked, worked on, or written out."""

    CANCELING = "canceling"
    """Asked to end early; what was begun is still finished."""

    ENDED = "ended"
    """Over: completed, canceled or expired. The results can be fetched."""

    FAILED = "failed"
    """Refused as a whole by the service's check; there are no results."""


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """How many requests of a batch are where; a service may not tell all of them."""

    total: int = 0
    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0

    @property
    def done(self) -> int:
        """Those that are over, one way or another."""
        return max(0, self.total - self.processing)


@sealed
@dataclass(frozen=True, slots=True)
class BatchState:
    """A batch as the service tells it."""

    id: str
    status: BatchStatus
    counts: BatchCounts = field(default_factory=BatchCounts)

    _: KW_ONLY

    said: str = ""
    """The service's own word for the status."""

    created_at: float | None = None
    """Wall-clock seconds since 1970-01-01 UTC; None = not told."""

    expires_at: float | None = None
    """When what is not done by then expires."""

    problems: tuple[str, ...] = ()
    """Why it failed, in the service's words, without secrets."""

    raw: Mapping[str, Any] = field(default_factory=freeze_mapping, repr=False)
    """The service's object."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "raw", freeze_mapping(self.raw))

    @property
    def is_over(self) -> bool:
        """Whether it will not change any more."""
        return self.status in {BatchStatus.ENDED, BatchStatus.FAILED}


class BatchItemStatus(StrEnum):
    """What became of one request."""

    SUCCEEDED = "succeeded"
    ERRORED = "errored"
    """Refused, failed, or answered with something that cannot be read."""

    CANCELED = "canceled"
    EXPIRED = "expired"
    MISSING = "missing"
    """The results do not mention it."""


@sealed
@dataclass(frozen=True, slots=True)
class BatchItem:
    """What became of one request."""

    custom_id: str
    status: BatchItemStatus
    response: LLMResponse | None = None
    """The answer; None unless it succeeded."""

    cost: TokenUsage = field(default_factory=TokenUsage)
    """What it cost; services take nothing for requests that were not answered."""

    _: KW_ONLY

    error: str = ""
    """Why there is no answer, without secrets; empty when there is one."""

    error_type: str = ""
    """The service's word for the error; `malformed_result` and `malformed_message` when
    what it wrote cannot be read."""

    @property
    def ok(self) -> bool:
        """Whether there is an answer."""
        return self.status is BatchItemStatus.SUCCEEDED

    @property
    def text(self) -> str | None:
        """The text of the answer; None without one."""
        return None if self.response is None else self.response.content


@sealed
@dataclass(frozen=True, slots=True)
class BatchResult:
    """What came of a batch: one item for each request, in the order of the requests."""

    batch_id: str
    items: tuple[BatchItem, ...] = ()
    cost: TokenUsage = field(default_factory=TokenUsage)
    """Tokens and calls of all answers, those that belong to no request included."""

    _: KW_ONLY

    problems: tuple[str, ...] = ()
    """What was wrong with the results: lines that cannot be read, ids that occur twice
    or that nobody asked for."""

    state: BatchState | None = None
    """The batch when its results were read."""

    _places: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = {item.custom_id: place for place, item in enumerate(self.items)}
        object.__setattr__(self, "_places", freeze_mapping(places))

    @property
    def ok(self) -> bool:
        """Whether every request has an answer."""
        return all(item.ok for item in self.items)

    @property
    def failed(self) -> tuple[BatchItem, ...]:
        """The items without an answer."""
        return tuple(item for item in self.items if not item.ok)

    @property
    def texts(self) -> dict[str, str]:
        """Id -> text of each answer."""
        return {item.custom_id: item.text or "" for item in self.items if item.ok}

    def __getitem__(self, custom_id: str) -> BatchItem:
        """The item of a request.

        Raises:
            KeyError: When there is none of that id.
        """
        return self.items[self._places[custom_id]]


@sealed
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What a service takes in one batch."""

    max_requests: int
    max_bytes: int
    """Of the whole upload."""

    max_id_chars: int
    id_characters: str | None = None
    """The characters of a `custom_id`, as a character class of a regular expression;
    None = any."""


BatchLine: TypeAlias = "BatchItem | str"
"""One result as it is read: an item, or the description of a line that cannot be."""


@runtime_checkable
class BatchClient(Protocol):
    """A service that works on batches.

    Every method fails with an `LLMError`; a `PermanentError` with the `status` 404 in its
    metadata means that the service does not know the batch (yet).
    """

    @property
    def limits(self) -> BatchLimits:
        """What is refused before anything is uploaded."""
        ...

    @property
    def finds_by_key(self) -> bool:
        """Whether `find` knows a batch by its key, and not only by its looks."""
        ...

    def encode(self, request: BatchRequest) -> bytes:
        """The request as the service takes it: one line of JSON.

        Raises:
            TypeError, ValueError: When it cannot be sent.
        """
        ...

    async def create(self, lines: Sequence[bytes], *, key: str) -> BatchState:
        """Upload encoded requests and start a batch.

        Args:
            lines: What `encode` gave.
            key: A name for this batch, kept by the service where it can.
        """
        ...

    async def retrieve(self, batch_id: str) -> BatchState:
        """The batch as it is now."""
        ...

    async def cancel(self, batch_id: str) -> BatchState:
        """Ask for an early end. What was done by then is kept, and paid for."""
        ...

    async def find(
        self, *, key: str, requests: int, since: float
    ) -> tuple[BatchState, ...]:
        """Batches that may come of a `create` whose answer got lost.

        Args:
            key: That of `create`.
            requests: How many it had.
            since: When it was called, in wall-clock seconds.
        """
        ...

    def results(
        self, state: BatchState, requests: Mapping[str, BatchRequest]
    ) -> AsyncIterator[BatchLine]:
        """The results of a batch that has ended, in any order.

        Args:
            state: The batch.
            requests: Id -> request, of those that are known.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        ...
