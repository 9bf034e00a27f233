"""OpenAI's Batch API: a file of requests goes up, files of results come down."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlencode

from executionkit._batches.client import (
    ClientBase,
    checked_id,
    joined,
    known_id,
    listed,
    transport_settings,
)
from executionkit._batches.reading import (
    answered,
    malformed,
    number,
    refused,
    seconds,
    word,
)
from executionkit._batches.values import (
    BatchCounts,
    BatchItem,
    BatchItemStatus,
    BatchLimits,
    BatchLine,
    BatchRequest,
    BatchState,
    BatchStatus,
)
from executionkit._endpoint import checked_key
from executionkit._wire.common import encode_body
from executionkit._wire.failures import (
    excerpt,
    failure_in,
    failure_of_response,
    refuse,
)
from executionkit._wire.openai import chat_body, parse_completion
from executionkit.errors import ExecutionKitError, PermanentError

if TYPE_CHECKING:
    from executionkit._http import HttpTransport

__all__ = ("KEY_NAME", "OpenAIBatchClient")

KEY_NAME: Final = "executionkit_key"
"""Under which a batch's metadata has the key that `find` looks for."""

_LIMITS: Final = BatchLimits(
    max_requests=50_000, max_bytes=200 * 1024 * 1024, max_id_chars=512
)
_STATUSES: Final = {
    "validating": BatchStatus.IN_PROGRESS,
    "in_progress": BatchStatus.IN_PROGRESS,
    "finalizing": BatchStatus.IN_PROGRESS,
    "cancelling": BatchStatus.CANCELING,
    "cancelled": BatchStatus.ENDED,
    "completed": BatchStatus.ENDED,
    "expired": BatchStatus.ENDED,
    "failed": BatchStatus.FAILED,
}
_UNDONE: Final = {
    "batch_expired": BatchItemStatus.EXPIRED,
    "batch_cancelled": BatchItemStatus.CANCELED,
    "batch_canceled": BatchItemStatus.CANCELED,
}
_PARAMS: Final = frozenset({"model", "temperature", "max_tokens", "tools"})
_FILES: Final = (("output_file_id", "output"), ("error_file_id", "errors"))
_ENDPOINT: Final = "/v1/chat/completions"
_WINDOW: Final = "24h"
_ENVIRONMENT: Final = {
    "base_url": "EXECUTIONKIT_BASE_URL",
    "model": "EXECUTIONKIT_MODEL",
    "api_key": "EXECUTIONKIT_API_KEY",
}
_PAGES: Final = 50
_CLOCK_SKEW: Final = 300.0
"""Seconds by which the service's clock may be behind ours."""


class OpenAIBatchClient(ClientBase):
    """OpenAI's Batch API, and servers that speak it, for chat completions.

    Requests of the client itself are sent once; `run_batch` and the functions beside it
    retry what can be retried.

    Args:
        api_key: Sent as a bearer token; empty = not sent.
        model: The model of requests that name none.
        base_url: Where the API is.
        timeout: Seconds for one request; an upload gets one more for each MiB, and
            results may take any time as long as they keep coming. None = no limit.
        connect_timeout: Seconds to open a connection.
        transport: See `Provider`.
        headers: Sent with every request; they win.
        max_connections: Requests in flight at once, per event loop.

    Raises:
        TypeError, ValueError: When a setting cannot be used.
    """

    def __init__(
        self,
        api_key: str = "",
        *,
        model: str | None = None,
        base_url: str = "https://api.openai.com/v1",
        timeout: float | None = 60.0,
        connect_timeout: float | None = 10.0,
        transport: HttpTransport | str | None = None,
        headers: Mapping[str, str] | None = None,
        max_connections: int = 100,
    ) -> None:
        key = checked_key("", "-", api_key)
        shared = transport_settings(
            timeout=timeout,
            connect_timeout=connect_timeout,
            transport=transport,
            headers=headers,
            max_connections=max_connections,
        )
        settings = {"api_key": key, "model": model, "base_url": base_url, **shared}
        own = {"Authorization": f"Bearer {key}"} if key else {}
        super().__init__(settings, own, "/batches")

    @classmethod
    def from_env(
        cls, *, environ: Mapping[str, str] | None = None, **settings: Any
    ) -> Self:
        """The client that the environment describes.

        Reads, if set, `EXECUTIONKIT_BASE_URL`, `EXECUTIONKIT_MODEL` and
        `EXECUTIONKIT_API_KEY`.

        Args:
            environ: Where to look. None = the environment of the process.
            settings: Any other setting; they win.
        """
        return cls._from_env(_ENVIRONMENT, set(_ENVIRONMENT), environ, settings)

    @property
    def limits(self) -> BatchLimits:
        """What is refused before anything is uploaded."""
        return _LIMITS

    @property
    def finds_by_key(self) -> bool:
        """True: the key is in the batch's metadata."""
        return True

    def encode(self, request: BatchRequest) -> bytes:
        """The request as one line of JSON."""
        given = request.params
        body = chat_body(
            self._model_of(request),
            request.messages,
            temperature=given.get("temperature"),
            max_tokens=given.get("max_tokens"),
            tools=given.get("tools"),
            options={name: given[name] for name in given if name not in _PARAMS},
        )
        return encode_body(
            {
                "custom_id": request.custom_id,
                "method": "POST",
                "url": _ENDPOINT,
                "body": body,
            }
        )

    async def create(self, lines: Sequence[bytes], *, key: str) -> BatchState:
        """Upload a file of encoded requests, and start a batch of it.

        A file whose batch was refused is deleted again.
        """
        try:
            file_id = await self._upload(lines)
        except ExecutionKitError as exc:
            exc.metadata["created"] = False
            raise
        body = {
            "input_file_id": file_id,
            "endpoint": _ENDPOINT,
            "completion_window": _WINDOW,
            "metadata": {KEY_NAME: key},
        }
        try:
            answer = await self._site.request(
                "POST", self._site.url, encode_body(body), once=True
            )
        except PermanentError:
            with suppress(ExecutionKitError):
                await self._site.request("DELETE", self._file(file_id))
            raise
        return self._state(self._json(answer))

    async def retrieve(self, batch_id: str) -> BatchState:
        """The batch as it is now."""
        url = self._url(f"/batches/{checked_id(batch_id)}")
        return self._state(self._json(await self._site.request("GET", url)))

    async def cancel(self, batch_id: str) -> BatchState:
        """Ask for an early end; see `BatchClient.cancel`."""
        url = self._url(f"/batches/{checked_id(batch_id)}/cancel")
        return self._state(self._json(await self._site.request("POST", url)))

    async def find(
        self,
        *,
        key: str,
        requests: int,  # noqa: ARG002 - the key says enough
        since: float,
    ) -> tuple[BatchState, ...]:
        """The batches with this key in their metadata."""
        found: list[BatchState] = []
        query = {"limit": "100"}
        oldest = since - _CLOCK_SKEW
        for _ in range(_PAGES):
            mark = "&" if "?" in self._site.url else "?"
            url = f"{self._site.url}{mark}{urlencode(query)}"
            page = self._json(await self._site.request("GET", url))
            states = [self._state(one) for one in listed(page)]
            recent = [one for one in states if (one.created_at or since) >= oldest]
            found += [one for one in recent if _key_of(one) == key]
            if not page.get("has_more") or len(recent) < len(states) or not states:
                break
            query["after"] = states[-1].id
        return tuple(found)

    async def results(
        self,
        state: BatchState,
        requests: Mapping[str, BatchRequest],  # noqa: ARG002 - not needed for reading
    ) -> AsyncGenerator[BatchLine]:
        """The results of a batch that has ended, in any order."""
        for field, name in _FILES:
            file_id = word(state.raw.get(field))
            if not file_id:
                continue
            pieces = self._site.download(self._file(file_id, "/content"))
            async with aclosing(self._entries(pieces, f"file of {name}: ")) as entries:
                async for entry in entries:
                    yield entry if isinstance(entry, str) else self._item(entry)

    async def _upload(self, lines: Sequence[bytes]) -> str:
        if not lines:
            msg = "there are no requests to make a batch of"
            raise ValueError(msg)
        mark = os.urandom(16).hex()
        head = (
            f'--{mark}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n'
            f"batch\r\n--{mark}\r\nContent-Disposition: form-data; "
            'name="file"; filename="requests.jsonl"\r\n'
            "Content-Type: application/jsonl\r\n\r\n"
        )
        body = b"".join([head.encode(), joined(lines), f"\r\n--{mark}--\r\n".encode()])
        kind = f"multipart/form-data; boundary={mark}"
        url = self._url("/files")
        made = self._json(
            await self._site.request("POST", url, body, content_type=kind)
        )
        file_id = word(made.get("id"))
        if not file_id:
            refuse("the answer to the upload has no `id` of a file")
        return file_id

    def _file(self, file_id: str, more: str = "") -> str:
        try:
            return self._url(f"/files/{checked_id(file_id)}{more}")
        except ValueError:
            refuse("the service named a file by an id that is none")

    def _state(self, found: Mapping[str, Any]) -> BatchState:
        batch_id, said = known_id(found), word(found.get("status"))
        if said not in _STATUSES:
            refuse(f"the answer has an unknown `status` {said!r:.80}")
        return BatchState(
            batch_id,
            _STATUSES[said],
            _counts(found.get("request_counts"), said),
            said=said,
            created_at=seconds(found.get("created_at")),
            expires_at=seconds(found.get("expires_at")),
            problems=tuple(_problems(found.get("errors"), self.known_secrets)),
            raw=found,
        )

    def _item(self, entry: Mapping[str, Any]) -> BatchItem:
        custom_id = word(entry.get("custom_id"))
        error, response = entry.get("error"), entry.get("response")
        if isinstance(error, Mapping):
            failure = failure_in({"error": error})
            code = word(error.get("code"))
            status = _UNDONE.get(code, BatchItemStatus.ERRORED)
            return refused(custom_id, status, failure, self.known_secrets)
        if not isinstance(response, Mapping):
            return malformed(custom_id, "its line has neither response nor error")
        status_code, body = response.get("status_code"), response.get("body")
        if type(status_code) is int and not 200 <= status_code < 300:
            try:
                raw = encode_body({"body": body})[len('{"body":') : -1]
            except (TypeError, ValueError):
                raw = b""
            failure = failure_of_response(status_code, {}, raw)
            return refused(
                custom_id, BatchItemStatus.ERRORED, failure, self.known_secrets
            )
        return answered(
            custom_id,
            body,
            lambda payload: parse_completion(payload, self.known_secrets),
        )


def _key_of(state: BatchState) -> str:
    told = state.raw.get("metadata")
    return word(told.get(KEY_NAME)) if isinstance(told, Mapping) else ""


def _counts(told: object, said: str) -> BatchCounts:
    counts = told if isinstance(told, Mapping) else {}
    total, done = number(counts.get("total")), number(counts.get("completed"))
    failed = number(counts.get("failed"))
    rest = max(0, total - done - failed)
    where = {"cancelled": "canceled", "expired": "expired"}.get(said, "processing")
    if said in {"completed", "failed"}:
        rest = 0
    return BatchCounts(total=total, succeeded=done, errored=failed, **{where: rest})


def _problems(told: object, secrets: tuple[str, ...]) -> list[str]:
    data = told.get("data") if isinstance(told, Mapping) else None
    found: list[str] = []
    for one in data if isinstance(data, list) else ():
        if not isinstance(one, Mapping):
            continue
        line = f" (line {one['line']})" if type(one.get("line")) is int else ""
        text = f"{word(one.get('code'))}: {word(one.get('message'))}{line}"
        found.append(excerpt(text.removeprefix(": "), secrets=secrets))
    return found
