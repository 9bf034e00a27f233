"""Anthropic's Message Batches."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlencode, urlsplit

from executionkit._batches.client import (
    ClientBase,
    checked_id,
    listed,
    transport_settings,
)
from executionkit._batches.messages import MessageBatches, results_url
from executionkit._batches.values import BatchLine, BatchRequest, BatchState
from executionkit._endpoint import checked_key
from executionkit._threads import run_in_thread
from executionkit._wire.common import encode_body
from executionkit.anthropic import ANTHROPIC_VERSION
from executionkit.errors import ProviderError

if TYPE_CHECKING:
    from executionkit._http import HttpTransport

__all__ = ("AnthropicBatchClient",)

_RESULTS: Final = re.compile(r"/batches/([\w.:-]+)/results/?", re.ASCII)
_ENVIRONMENT: Final = {
    "model": "ANTHROPIC_MODEL",
    "api_key": "ANTHROPIC_API_KEY",
    "base_url": "ANTHROPIC_BASE_URL",
}
_PAGES: Final = 50
_CLOCK_SKEW: Final = 300.0
"""Seconds by which the service's clock may be behind ours."""


class AnthropicBatchClient(ClientBase, MessageBatches):
    """Anthropic's Message Batches.

    Requests of the client itself are sent once; `run_batch` and the functions beside it
    retry what can be retried.

    Args:
        api_key: Sent as `x-api-key`, to `base_url` alone.
        model: The model of requests that name none.
        base_url: Where the API is.
        timeout: Seconds for one request; an upload gets one more for each MiB, and
            results may take any time as long as they keep coming. None = no limit.
        connect_timeout: Seconds to open a connection.
        transport: See `AnthropicProvider`.
        headers: Sent with every request; they win.
        max_connections: Requests in flight at once, per event loop.

    Raises:
        TypeError, ValueError: When a setting cannot be used.
    """

    def __init__(
        self,
        api_key: str,
        *,
        model: str | None = None,
        base_url: str = "https://api.anthropic.com",
        timeout: float | None = 60.0,
        connect_timeout: float | None = 10.0,
        transport: HttpTransport | str | None = None,
        headers: Mapping[str, str] | None = None,
        max_connections: int = 100,
    ) -> None:
        key = checked_key("", "-", api_key)
        if not key:
            msg = "`api_key` must not be empty"
            raise ValueError(msg)
        shared = transport_settings(
            timeout=timeout,
            connect_timeout=connect_timeout,
            transport=transport,
            headers=headers,
            max_connections=max_connections,
        )
        settings = {"api_key": key, "model": model, "base_url": base_url, **shared}
        own = {"anthropic-version": ANTHROPIC_VERSION, "x-api-key": key}
        self._path = _path_for(base_url)
        super().__init__(settings, own, self._path)

    @classmethod
    def from_env(
        cls, *, environ: Mapping[str, str] | None = None, **settings: Any
    ) -> Self:
        """The client that the environment describes.

        Reads `ANTHROPIC_API_KEY` and, if set, `ANTHROPIC_MODEL` and
        `ANTHROPIC_BASE_URL`.

        Args:
            environ: Where to look. None = the environment of the process.
            settings: Any other setting; they win.

        Raises:
            ValueError: When there is no key.
        """
        return cls._from_env(_ENVIRONMENT, {"model", "base_url"}, environ, settings)

    async def create_batch(
        self, requests: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Start a batch of `{"custom_id", "params"}` objects.

        Returns:
            The service's object.

        Raises:
            ValueError: When there are none.
            LLMError: When the service does not take them.
        """
        return await self._post_batch([encode_body(one) for one in requests])

    async def get_batch(self, batch_id: str) -> dict[str, Any]:
        """The service's object of a batch.

        Raises:
            LLMError: When the service does not give it.
        """
        url = self._url(f"{self._path}/{checked_id(batch_id)}")
        return self._json(await self._raw("GET", url))

    async def fetch_results(self, url: str) -> list[dict[str, Any]]:
        """All lines of the results.

        Args:
            url: The batch's `results_url`. The key goes to the client's own server
                alone, whatever host it names.

        Raises:
            LLMError: When they cannot be fetched.
            ProviderError: When a line cannot be read; `metadata["results"]` has the
                others.
        """
        found: list[dict[str, Any]] = []
        problems: list[str] = []
        async for entry in self._entries(self._pieces(url)):
            if isinstance(entry, dict):
                found.append(entry)
            else:
                problems.append(entry)
        if problems:
            msg = f"the results of the batch cannot be read whole: {problems[0]}"
            raise ProviderError(msg, metadata={"results": found, "problems": problems})
        return found

    async def create(self, lines: Sequence[bytes], *, key: str) -> BatchState:
        """Start a batch of encoded requests."""
        if _is_own(self, "create_batch"):
            return self._state(await self._post_batch(lines))
        return await MessageBatches.create(self, lines, key=key)

    async def cancel(self, batch_id: str) -> BatchState:
        """Ask for an early end; see `BatchClient.cancel`."""
        url = self._url(f"{self._path}/{checked_id(batch_id)}/cancel")
        return self._state(self._json(await self._raw("POST", url)))

    async def find(
        self,
        *,
        key: str,  # noqa: ARG002 - the service keeps none
        requests: int,
        since: float,
    ) -> tuple[BatchState, ...]:
        """Batches of as many requests that were made since then."""
        found: list[BatchState] = []
        query = {"limit": "100"}
        oldest = since - _CLOCK_SKEW
        for _ in range(_PAGES):
            page = self._json(await self._raw("GET", self._listing(query)))
            states = [self._state(one) for one in listed(page)]
            recent = [one for one in states if (one.created_at or since) >= oldest]
            found += [one for one in recent if one.counts.total == requests]
            if not page.get("has_more") or len(recent) < len(states) or not states:
                break
            query["after_id"] = states[-1].id
        return tuple(found)

    async def results(
        self, state: BatchState, requests: Mapping[str, BatchRequest]
    ) -> AsyncGenerator[BatchLine]:
        """The results of a batch that has ended, in any order."""
        url = results_url(state)
        if not _is_own(self, "fetch_results"):
            for given in await self.fetch_results(url):
                yield self._item(given, requests)
            return
        async with aclosing(self._entries(self._pieces(url))) as entries:
            async for entry in entries:
                yield entry if isinstance(entry, str) else self._item(entry, requests)

    async def _http_raw(self, method: str, url: str, body: bytes | None) -> bytes:
        """Send one request; the body of the answer. All but large results go here."""
        # Only making a batch has a body, and must never happen twice.
        return await self._site.request(method, url, body or b"", once=body is not None)

    async def _raw(self, method: str, url: str, body: bytes | None = None) -> bytes:
        if inspect.iscoroutinefunction(self._http_raw):
            return await self._http_raw(method, url, body)
        blocking: Any = self._http_raw  # somebody's own, which may block
        found: bytes = await run_in_thread(blocking, method, url, body)
        return found

    async def _post_batch(self, lines: Sequence[bytes]) -> dict[str, Any]:
        if not lines:
            msg = "there are no requests to make a batch of"
            raise ValueError(msg)
        body = b'{"requests":[' + b",".join(lines) + b"]}"
        return self._json(await self._raw("POST", self._site.url, body))

    async def _pieces(self, url: str) -> AsyncGenerator[bytes]:
        where = self._own_url(url)
        if _is_own(self, "_http_raw"):
            async with aclosing(self._site.download(where)) as pieces:
                async for piece in pieces:
                    yield piece
        else:
            yield await self._raw("GET", where)

    def _own_url(self, given: str) -> str:
        """The address of results at the client's own server.

        Raises:
            ProviderError: When there is none for it.
        """
        own, parts = urlsplit(self._site.url), urlsplit(given)
        if (parts.scheme, parts.netloc) == (own.scheme, own.netloc):
            return given
        # Another host must not get the key, and a relative address may leave out what
        # stands before the API; both name the batch, and that is enough.
        named = _RESULTS.search(parts.path)
        if named and parts.scheme in {"", "http", "https"}:
            return self._url(f"{self._path}/{checked_id(named[1])}/results")
        msg = f"results cannot be fetched from {given!r:.200}: it is no address of them"
        raise ProviderError(msg)

    def _listing(self, query: Mapping[str, str]) -> str:
        mark = "&" if "?" in self._site.url else "?"
        return f"{self._site.url}{mark}{urlencode(query)}"


def _path_for(base_url: Any) -> str:
    path = base_url.partition("?")[0].rstrip("/ ") if isinstance(base_url, str) else ""
    return "/messages/batches" if path.endswith("/v1") else "/v1/messages/batches"


def _is_own(client: AnthropicBatchClient, name: str) -> bool:
    """Whether a method is this module's, and not a subclass's or a test's."""
    own = getattr(AnthropicBatchClient, name)
    return name not in vars(client) and getattr(type(client), name) is own
