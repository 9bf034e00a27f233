"""Several addresses of one server: other methods, other paths, bodies of any length."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from executionkit._clock import get_clock
from executionkit._constants import MAX_RESPONSE_BYTES
from executionkit._endpoint.requests import Endpoint
from executionkit._http import HttpRequest, HttpTimeouts
from executionkit._redact import redact_url
from executionkit._wire.failures import failure_of_response, to_error
from executionkit.context import remaining_deadline
from executionkit.errors import ProviderTimeoutError

if TYPE_CHECKING:
    from executionkit._http import HttpStream

__all__ = ("Site",)

_BYTES_PER_SECOND: Final = 1024 * 1024
"""What a connection is trusted to carry: each MiB of a request gives it a second."""


class Site(Endpoint):
    """An endpoint whose requests go to any address of its server.

    The caller sees to it that an address is of the same server: it gets the key.
    """

    __slots__ = ()

    async def request(
        self,
        method: str,
        url: str,
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        once: bool = False,
    ) -> bytes:
        """Send a request; the body of the answer.

        Args:
            method: The HTTP method.
            url: Whole.
            body: What to send; its size extends the time limit.
            content_type: Of the body; not sent without one.
            once: See `HttpRequest`.

        Raises:
            LLMError: Any status but 200-299, or no answer.
            DeadlineExceededError: The context's deadline leaves no time.
        """
        timeouts = self._time_for(len(body))
        asked = HttpRequest(method, url, self._about(content_type, body), body, once)
        response = await self._guard(self._transport().send(asked, timeouts), timeouts)
        if 200 <= response.status < 300:
            return response.body
        failure = failure_of_response(response.status, response.headers, response.body)
        raise to_error(failure, secrets=self.secrets)

    async def download(self, url: str) -> AsyncGenerator[bytes]:
        """The body at an address, in pieces, however long it is.

        The endpoint's `timeout` limits the silence between two pieces.

        Raises:
            LLMError: Any status but 200-299, no answer, or a body that breaks off.
            DeadlineExceededError: The context's deadline leaves no time.
        """
        self._limits()  # refuses when there is no time left
        own = self._timeouts
        timeouts = HttpTimeouts(
            remaining_deadline(), own.connect, own.idle or own.total
        )
        asked = HttpRequest("GET", url, self._about("", b""))
        stream = await self._answer(asked, timeouts)
        try:
            if not 200 <= stream.status < 300:
                said = await self._guard(stream.read(MAX_RESPONSE_BYTES), timeouts)
                failure = failure_of_response(stream.status, stream.headers, said)
                raise to_error(failure, secrets=self.secrets)
            chunks = stream.chunks()
            while piece := await self._guard(anext(chunks, b""), timeouts):
                yield piece
        finally:
            await stream.aclose()

    async def _answer(self, asked: HttpRequest, timeouts: HttpTimeouts) -> HttpStream:
        """The answer once its headers are there, which `timeout` limits."""
        seconds = self._timeouts.total
        scope = get_clock().timeout(seconds)
        try:
            async with scope:
                return await self._guard(
                    self._transport().open_stream(asked, timeouts), timeouts
                )
        except TimeoutError:
            if not scope.expired():
                raise
        msg = (
            f"Transport failure: `{redact_url(asked.url)}`: no answer began within "
            f"{seconds:g} s; raise `timeout` if that is too short"
        )
        raise ProviderTimeoutError(msg, metadata={"limit": "total"})

    def _time_for(self, size: int) -> HttpTimeouts:
        timeouts = self._limits()
        own = self._timeouts.total
        if own is None or size < _BYTES_PER_SECOND:
            return timeouts
        wanted = own + size / _BYTES_PER_SECOND
        left = remaining_deadline()
        return replace(timeouts, total=wanted if left is None else min(left, wanted))

    def _is_deadline(self, timeouts: HttpTimeouts) -> bool:
        left, own = timeouts.total, self._timeouts
        is_download = timeouts.idle != own.idle
        return left is not None and (
            is_download or own.total is None or left < own.total
        )

    def _about(self, content_type: str, body: bytes) -> dict[str, str]:
        kept = {k: v for k, v in self._headers.items() if k.lower() != "content-type"}
        return {**kept, "Content-Type": content_type} if body else kept
