"""A native engine made of Python: scripted replies, and threads that can be held."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from executionkit._local.host import ModelInfo

ADDRESS = "http://127.0.0.1:9"
WAIT = 5.0


def _piece(text: str | None = None, finish: str | None = None) -> bytes:
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"id": "r1", "model": "m1", "choices": [choice]}).encode()


def _usage(sent: int = 3, made: int = 2) -> bytes:
    counts = {"prompt_tokens": sent, "completion_tokens": made}
    return json.dumps({"id": "r1", "choices": [], "usage": counts}).encode()


class FakeEngine:
    """Answers each request with the next of its replies, the last one for ever.

    A reply is a list of pieces, or an exception. While `held`, requests wait after
    their first piece.
    """

    def __init__(self, *replies: list[bytes] | Exception) -> None:
        self.replies = list(replies) or [Fake.reply("hello")]
        self.bodies: list[dict[str, Any]] = []
        self.stopped = 0
        self.began = threading.Semaphore(0)
        self.free = threading.Event()
        self.free.set()
        self.busy = 0
        self.most_busy = 0
        self._lock = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        self.free.clear()
        try:
            yield
        finally:
            self.free.set()

    def handle_chat_completions(
        self, body: bytes, callback: Callable[[bytes], bool]
    ) -> None:
        with self._lock:
            self.bodies.append(json.loads(body))
            answer = self.replies[min(len(self.bodies), len(self.replies)) - 1]
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
        try:
            self._answer(answer, callback)
        finally:
            with self._lock:
                self.busy -= 1

    def _answer(
        self, answer: list[bytes] | Exception, callback: Callable[[bytes], bool]
    ) -> None:
        if isinstance(answer, Exception):
            raise answer
        for place, item in enumerate(answer):
            if callback(item):
                self.stopped += 1
                return
            if not place:
                self.began.release()
                self.free.wait(WAIT)


class Fake:
    """What the tests of this folder build their engines from."""

    address = ADDRESS
    engine = FakeEngine

    @staticmethod
    def reply(*texts: str, finish: str = "stop") -> list[bytes]:
        """The pieces of one reply."""
        return [*(_piece(text) for text in texts), _piece(finish=finish), _usage()]

    @staticmethod
    def error(message: str, code: int, kind: str, **more: Any) -> list[bytes]:
        """What the engine says in place of a reply."""
        error = {"message": message, "code": code, "type": kind, **more}
        return [json.dumps({"error": error}).encode()]

    @staticmethod
    def info(*, native_tools: bool = False, parameters: int = 135_000_000) -> ModelInfo:
        return ModelInfo(ADDRESS, native_tools, parameters)


@pytest.fixture
def fake() -> type[Fake]:
    return Fake
