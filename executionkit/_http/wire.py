"""HTTP/1.1 as a client reads it: response heads and body framing. Pure, no I/O.

Strict where leniency would let one response run into the next: both a length and
chunks, two different lengths, malformed chunk sizes, folded or nameless headers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from executionkit._http.failures import WireError

__all__ = (
    "MAX_HEAD_BYTES",
    "ChunkedBody",
    "Framing",
    "Head",
    "OpenBody",
    "SizedBody",
    "find_head_end",
    "parse_head",
)

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of a response's status line and headers together."""

_MAX_CHUNK_LINE = 4096
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?")
_HEADER = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\x00]*)")
_CHUNK_LINE = re.compile(rb"([0-9a-fA-F]{1,16})[ \t]*(?:;[^\n]*)?\r?\n")
_LENGTH = re.compile(r"[0-9]{1,18}")


class Framing(Protocol):
    """Knows where a body ends."""

    complete: bool
    """Whether the body has ended."""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Split `data` into the payload in it and what cannot be used yet.

        After the end of the body the second part belongs to something else.

        Raises:
            WireError: The framing is broken.
        """
        ...

    def end(self) -> None:
        """Say that the connection has ended.

        Raises:
            WireError: The body had not.
        """
        ...


class SizedBody:
    """A body of a length known beforehand."""

    __slots__ = ("_left", "complete")

    def __init__(self, length: int) -> None:
        self._left = length
        self.complete = length == 0

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        left = self._left
        if len(data) < left:
            self._left = left - len(data)
            return data, b""
        self._left = 0
        self.complete = True
        return (data, b"") if len(data) == left else (data[:left], data[left:])

    def end(self) -> None:
        if not self.complete:
            msg = f"the connection ended {self._left} bytes before the body did"
            raise WireError(msg)


class OpenBody:
    """A body that lasts until the connection ends."""

    __slots__ = ("complete",)

    def __init__(self) -> None:
        self.complete = False

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        return data, b""

    def end(self) -> None:
        self.complete = True


class ChunkedBody:
    """A body in chunks, each with its length in front."""

    __slots__ = ("_left", "_trailer", "_trailer_bytes", "complete")

    def __init__(self) -> None:
        self._left = 0  # of the chunk being read, its two closing bytes included
        self._trailer = False
        self._trailer_bytes = 0
        self.complete = False

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        payload: list[bytes] = []
        at = 0
        while not self.complete:
            if self._left:
                step = self._chunk(data, at, payload)
            elif self._trailer:
                step = self._trailer_line(data, at)
            else:
                step = self._size_line(data, at)
            if not step:
                break
            at += step
        return payload[0] if len(payload) == 1 else b"".join(payload), data[at:]

    def end(self) -> None:
        if not self.complete:
            msg = "the connection ended before the last chunk of the body"
            raise WireError(msg)

    def _size_line(self, data: bytes, at: int) -> int:
        match = _CHUNK_LINE.match(data, at)
        if match is None:
            self._check_open_line(data, at)
            return 0
        size = int(match.group(1), 16)
        self._trailer = size == 0
        self._left = size + 2 if size else 0
        return match.end() - at

    def _chunk(self, data: bytes, at: int, payload: list[bytes]) -> int:
        inside = min(self._left - 2, len(data) - at)
        if inside > 0:
            payload.append(data[at : at + inside])
            self._left -= inside
            return inside
        if data.startswith(b"\r\n", at):
            self._left = 0
            return 2
        if len(data) - at >= 2 or data[at : at + 1] not in {b"", b"\r"}:
            msg = "a chunk of the body is longer than it said"
            raise WireError(msg)
        return 0

    def _trailer_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at)
        if end < 0:
            self._check_open_line(data, at)
            return 0
        length = end + 1 - at
        self._trailer_bytes += length
        if self._trailer_bytes > MAX_HEAD_BYTES:
            msg = "the headers after the last chunk are too long"
            raise WireError(msg)
        self.complete = data[at:end].rstrip(b"\r") == b""
        return length

    def _check_open_line(self, data: bytes, at: int) -> None:
        if len(data) - at > _MAX_CHUNK_LINE or data.find(b"\n", at) >= 0:
            msg = "a chunk of the body does not start with its length"
            raise WireError(msg)


@dataclass(slots=True, eq=False)
class Head:
    """The head of a response."""

    status: int
    headers: dict[str, str]
    """Names in lower case; repeated headers joined with a comma."""

    framing: Framing
    keep_alive: bool
    """Whether the connection can serve another request after the body."""


def find_head_end(data: bytes) -> int:
    """The index behind the blank line that ends the head; -1 when it is not there.

    Raises:
        WireError: The head is too long, or this is not HTTP.
    """
    match = _BLANK_LINE.search(data, 0, MAX_HEAD_BYTES)
    if match is not None:
        return match.end()
    if len(data) >= MAX_HEAD_BYTES:
        msg = f"the head of the response is longer than {MAX_HEAD_BYTES} bytes"
        raise WireError(msg)
    if not b"HTTP/1.".startswith(data[:7]):
        msg = "the server does not answer in HTTP/1"
        raise WireError(msg)
    return -1


def parse_head(head: bytes, method: str) -> Head:
    """Read a status line and headers.

    Args:
        head: With the blank line at its end.
        method: Of the request; `HEAD` has no body.

    Raises:
        WireError: They are malformed.
    """
    first, *lines = head.decode("latin-1").split("\n")
    match = _STATUS_LINE.fullmatch(first.rstrip("\r"))
    if match is None:
        msg = "the response does not start with an HTTP/1 status line"
        raise WireError(msg)
    status = int(match.group(2))
    headers = _parse_headers(lines)
    options = headers.get("connection", "").lower()
    keep = "close" not in options if match.group(1) == "1" else "keep-alive" in options
    bodyless = method == "HEAD" or status < 200 or status in {204, 304}
    framing = SizedBody(0) if bodyless else _framing(headers)
    if isinstance(framing, OpenBody):
        keep = False
    return Head(status, headers, framing, keep)


def _parse_headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        text = line.rstrip("\r \t")
        if not text:
            continue
        match = _HEADER.fullmatch(text)
        if match is None:
            msg = "a header of the response is malformed"
            raise WireError(msg)
        name, value = match.groups()
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _framing(headers: dict[str, str]) -> Framing:
    coding = headers.get("transfer-encoding")
    length = headers.get("content-length")
    if coding is not None:
        if coding.strip().lower() != "chunked" or length is not None:
            msg = "the response's `transfer-encoding` is not `chunked` alone"
            raise WireError(msg)
        return ChunkedBody()
    if length is None:
        return OpenBody()
    said = {part.strip() for part in length.split(",")}
    value = said.pop()
    if said or _LENGTH.fullmatch(value) is None:
        msg = "the response's `content-length` is not one number"
        raise WireError(msg)
    return SizedBody(int(value))
