"""A server that is both batch services, with their states, and with faults on order."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

from executionkit._clock import SystemClock
from executionkit.testing import ScriptedServer
from executionkit.testing.http import ReceivedRequest, Reply, json_reply, reset_reply

KEY = "key-very-secret-1234"
Answer: TypeAlias = "dict[str, Any] | str"


class SkippingClock(SystemClock):
    """A clock on which sleeping takes no time, beside real sockets."""

    def __init__(self) -> None:
        self.skipped = 0.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped

    def wall(self) -> float:
        return super().wall() + self.skipped

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.skipped += max(0.0, seconds)
        await super().sleep(0)


@dataclass
class Batch:
    id: str
    requests: list[dict[str, Any]]
    created_at: float
    metadata: dict[str, str] = field(default_factory=dict)
    looks: int = 0
    canceled: bool = False
    file_id: str = ""
    outcome: list[tuple[dict[str, Any], Any]] | None = None


def echo(custom_id: str, text: str) -> Answer:
    """The default answer: the question."""
    return text


class Services:
    """Both services. What `answer` gives for a request is its answer: a text, or
    `{"errored" | "expired" | "canceled" | "absent" | "raw": ...}`."""

    def __init__(self, answer: Callable[[str, str], Answer] = echo) -> None:
        self.answer = answer
        self.clock = SkippingClock()
        self.looks_needed = 2
        self.batches: dict[str, Batch] = {}
        self.files: dict[str, bytes] = {}
        self.deleted: list[str] = []
        self.reorder: Callable[[list[str]], list[str]] = lambda lines: lines[::-1]
        self.usage = {"input_tokens": 10, "output_tokens": 3}
        self.faults: list[tuple[str, Callable[[Reply], Reply]]] = []
        self.log: list[str] = []
        self.server = ScriptedServer(self.decide)
        self.absolute_results = True
        self.looked = asyncio.Event()
        """Set when somebody looks at a batch."""

    # Faults.

    def fail(self, where: str, reply: Reply, *, times: int = 1) -> None:
        """The next request that matches `METHOD path` gets `reply`; nothing is done."""

        def instead(_done: Reply) -> Reply:
            return reply

        self.faults += [(where, instead)] * times

    def lose(self, where: str) -> None:
        """The next request that matches is carried out, and the answer is lost."""
        self.faults.append((f"!{where}", lambda _done: reset_reply()))

    def change(self, where: str, how: Callable[[Reply], Reply]) -> None:
        """The answer of the next request that matches is changed."""
        self.faults.append((f"!{where}", how))

    def decide(self, request: ReceivedRequest) -> Reply:
        parts = urlsplit(request.path)
        line = f"{request.method} {parts.path}"
        self.log.append(line)
        for place, (where, how) in enumerate(self.faults):
            if re.fullmatch(where.removeprefix("!"), line):
                del self.faults[place]
                done = self.route(request) if where.startswith("!") else Reply()
                return how(done)
        return self.route(request)

    def route(self, request: ReceivedRequest) -> Reply:
        path = urlsplit(request.path).path
        if path.startswith("/v1/messages/batches"):
            return self.anthropic(request, path.removeprefix("/v1/messages/batches"))
        if path.startswith(("/v1/files", "/v1/batches")):
            return self.openai(request, path.removeprefix("/v1"))
        return json_reply({"error": {"message": f"no route {path}"}}, status=404)

    # Both.

    def begin(self, prefix: str, requests: list[dict[str, Any]], **more: Any) -> Batch:
        made = Batch(
            f"{prefix}_{len(self.batches) + 1}", requests, self.clock.wall(), **more
        )
        self.batches[made.id] = made
        return made

    def look(self, batch: Batch) -> bool:
        """Whether it is over, after one more look."""
        batch.looks += 1
        self.looked.set()
        if batch.outcome is None and batch.looks >= self.looks_needed:
            self.finish(batch)
        return batch.outcome is not None

    def finish(self, batch: Batch) -> None:
        batch.outcome = []
        for request in batch.requests:
            body = request.get("params") or request["body"]
            text = body["messages"][-1]["content"]
            batch.outcome.append((request, self.answer(request["custom_id"], text)))

    @staticmethod
    def kind(answer: Any) -> str:
        return "succeeded" if isinstance(answer, str) else next(iter(answer))

    def counts(self, batch: Batch) -> dict[str, int]:
        kinds = [self.kind(answer) for _, answer in batch.outcome or ()]
        found = {
            name: kinds.count(name)
            for name in ("succeeded", "errored", "canceled", "expired")
        }
        return {"processing": len(batch.requests) - sum(found.values()), **found}

    # Anthropic.

    def anthropic(self, request: ReceivedRequest, rest: str) -> Reply:
        if request.headers.get("x-api-key") != KEY:
            return _anthropic_error(
                401, "authentication_error", f"wrong key {request.headers}"
            )
        if request.headers.get("anthropic-version") != "2023-06-01":
            return _anthropic_error(400, "invalid_request_error", "version missing")
        if request.method == "POST" and rest == "":
            return self.anthropic_create(request)
        if rest == "":
            return self.anthropic_list(request)
        _, name, *more = rest.split("/")
        batch = self.batches.get(name)
        if batch is None:
            return _anthropic_error(404, "not_found_error", "no such batch")
        if request.method == "POST" and more == ["cancel"]:
            batch.canceled = True
            if batch.outcome is not None:
                return _anthropic_error(400, "invalid_request_error", "it has ended")
            return json_reply(self.anthropic_object(batch))
        if more == ["results"]:
            if batch.outcome is None:
                return _anthropic_error(404, "not_found_error", "no results yet")
            lines = [self.anthropic_line(one, given) for one, given in batch.outcome]
            return self.jsonl(lines)
        self.look(batch)
        return json_reply(self.anthropic_object(batch))

    def anthropic_create(self, request: ReceivedRequest) -> Reply:
        assert request.headers["content-type"] == "application/json"
        given: Any = request.json()
        ids = [one["custom_id"] for one in given["requests"]]
        good = all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", one) for one in ids)
        if not ids or len(set(ids)) < len(ids) or not good:
            return _anthropic_error(400, "invalid_request_error", "bad custom_id")
        for one in given["requests"]:
            missing = {"model", "max_tokens", "messages"} - one["params"].keys()
            assert not missing, missing
        batch = self.begin("msgbatch", given["requests"])
        return json_reply(self.anthropic_object(batch))

    def anthropic_list(self, request: ReceivedRequest) -> Reply:
        own = [one for one in self.batches.values() if "params" in one.requests[0]]
        made = [self.anthropic_object(one) for one in own]
        return json_reply(_page(made[::-1], request, "after_id"))

    def anthropic_object(self, batch: Batch) -> dict[str, Any]:
        over = batch.outcome is not None
        status = "ended" if over else "canceling" if batch.canceled else "in_progress"
        path = f"/v1/messages/batches/{batch.id}/results"
        url = f"{self.server.url}{path}" if self.absolute_results else path
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": status,
            "request_counts": self.counts(batch),
            "created_at": _rfc3339(batch.created_at),
            "expires_at": _rfc3339(batch.created_at + 86400),
            "ended_at": _rfc3339(self.clock.wall()) if over else None,
            "archived_at": None,
            "cancel_initiated_at": None,
            "results_url": url if over else None,
        }

    def anthropic_line(self, request: dict[str, Any], answer: Any) -> str | None:
        kind = self.kind(answer)
        if kind == "raw":
            return str(answer["raw"])
        if kind == "absent":
            return None
        result: dict[str, Any] = {"type": kind}
        if kind == "succeeded":
            result["message"] = {
                "id": f"msg_{request['custom_id']}",
                "type": "message",
                "role": "assistant",
                "model": request["params"]["model"],
                "content": [{"type": "text", "text": answer}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": self.usage,
            }
        elif kind == "errored":
            error = {"type": "invalid_request_error", "message": answer["errored"]}
            result["error"] = {"type": "error", "error": error}
        line = {"custom_id": request["custom_id"], "result": result}
        return json.dumps(line, ensure_ascii=False)

    def jsonl(self, lines: list[str | None]) -> Reply:
        kept = self.reorder([line for line in lines if line is not None])
        body = "".join(f"{line}\n" for line in kept).encode()
        kind = {"content-type": "application/x-jsonl"}
        pieces = [body[at : at + 50] for at in range(0, len(body), 50)]
        return Reply(200, kind, pieces, framing="chunked")

    # OpenAI.

    def openai(self, request: ReceivedRequest, path: str) -> Reply:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return _openai_error(401, "invalid_api_key", f"wrong key {request.headers}")
        where = (request.method, *path.strip("/").split("/"))
        match where:
            case ("POST", "files"):
                return self.upload(request)
            case ("DELETE", "files", name):
                self.deleted.append(name)
                return json_reply({"id": name, "object": "file", "deleted": True})
            case ("GET", "files", name, "content") if name in self.files:
                body = self.files[name]
                pieces = [body[at : at + 50] for at in range(0, len(body), 50)]
                return Reply(200, {}, pieces, framing="chunked")
            case ("POST", "batches"):
                return self.openai_create(request)
            case ("GET", "batches"):
                own = [one for one in self.batches.values() if one.file_id]
                made = [self.openai_object(one) for one in own]
                return json_reply(_page(made[::-1], request, "after"))
            case ("GET", "batches", name) if name in self.batches:
                self.look(self.batches[name])
                return json_reply(self.openai_object(self.batches[name]))
            case ("POST", "batches", name, "cancel") if name in self.batches:
                self.batches[name].canceled = True
                return json_reply(self.openai_object(self.batches[name]))
            case _:
                pass
        return _openai_error(404, "not_found", f"no {path}")

    def upload(self, request: ReceivedRequest) -> Reply:
        kind = request.headers["content-type"]
        head, _, mark = kind.partition("; boundary=")
        assert head == "multipart/form-data"
        assert request.body.endswith(f"\r\n--{mark}--\r\n".encode())
        parts = request.body.split(f"--{mark}".encode())[1:-1]
        fields: dict[str, bytes] = {}
        for part in parts:
            about, _, body = part.partition(b"\r\n\r\n")
            found = re.search(rb'name="(\w+)"', about)
            assert found
            fields[found[1].decode()] = body.removesuffix(b"\r\n")
        assert fields["purpose"] == b"batch"
        name = f"file-{len(self.files) + 1}"
        self.files[name] = fields["file"]
        made = {"id": name, "object": "file", "bytes": len(fields["file"])}
        return json_reply({**made, "purpose": "batch", "filename": "requests.jsonl"})

    def openai_create(self, request: ReceivedRequest) -> Reply:
        given: Any = request.json()
        if given["input_file_id"] not in self.files:
            return _openai_error(400, "invalid_file", "no such file")
        assert given["endpoint"] == "/v1/chat/completions"
        assert given["completion_window"] == "24h"
        text = self.files[given["input_file_id"]].decode()
        requests = [json.loads(line) for line in text.splitlines()]
        for one in requests:
            assert (one["method"], one["url"]) == ("POST", given["endpoint"])
            assert one["body"]["model"]
        batch = self.begin("batch", requests, metadata=given.get("metadata") or {})
        batch.file_id = given["input_file_id"]
        return json_reply(self.openai_object(batch))

    def openai_object(self, batch: Batch) -> dict[str, Any]:
        over = batch.outcome is not None
        counts = self.counts(batch)
        status = "completed" if over else "in_progress"
        if batch.canceled:
            status = "cancelled" if over else "cancelling"
        elif counts["expired"]:
            status = "expired"
        files: dict[str, str | None] = {"output": None, "error": None}
        if over:
            files = self.openai_files(batch)
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "errors": None,
            "input_file_id": batch.file_id,
            "completion_window": "24h",
            "status": status,
            "output_file_id": files["output"],
            "error_file_id": files["error"],
            "created_at": int(batch.created_at),
            "expires_at": int(batch.created_at) + 86400,
            "metadata": batch.metadata,
            "request_counts": {
                "total": len(batch.requests),
                "completed": counts["succeeded"],
                "failed": counts["errored"],
            },
        }

    def openai_files(self, batch: Batch) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for name, good in (("output", True), ("error", False)):
            lines = [
                line
                for one, given in batch.outcome or ()
                if (self.kind(given) in {"succeeded", "raw"}) is good
                and (line := self.openai_line(one, given)) is not None
            ]
            found[name] = f"file-{batch.id}-{name}" if lines else None
            text = "".join(f"{line}\n" for line in self.reorder(lines))
            self.files[f"file-{batch.id}-{name}"] = text.encode()
        return found

    def openai_line(self, request: dict[str, Any], answer: Any) -> str | None:
        kind = self.kind(answer)
        if kind == "raw":
            return str(answer["raw"])
        if kind == "absent":
            return None
        error: dict[str, Any] | None = None
        status, body = 200, {}
        if kind == "succeeded":
            body = {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "model": request["body"]["model"],
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": answer},
                        "finish_reason": "stop",
                    }
                ],
                "usage": {
                    "prompt_tokens": self.usage["input_tokens"],
                    "completion_tokens": self.usage["output_tokens"],
                    "total_tokens": sum(self.usage.values()),
                },
            }
        elif kind == "errored":
            status = 400
            body = {
                "error": {
                    "message": answer["errored"],
                    "type": "invalid_request_error",
                    "param": None,
                    "code": None,
                }
            }
        else:
            code = {"expired": "batch_expired", "canceled": "batch_cancelled"}[kind]
            error = {"code": code, "message": "not executed"}
        response = {"status_code": status, "request_id": "req_1", "body": body}
        line = {
            "id": "batch_req_1",
            "custom_id": request["custom_id"],
            "response": None if error else response,
            "error": error,
        }
        return json.dumps(line, ensure_ascii=False)


def _rfc3339(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _page(
    made: list[dict[str, Any]], request: ReceivedRequest, after: str
) -> dict[str, Any]:
    query = parse_qs(urlsplit(request.path).query)
    limit = int(query.get("limit", ["20"])[0])
    if after in query:
        ids = [one["id"] for one in made]
        made = made[ids.index(query[after][0]) + 1 :]
    page = made[:limit]
    return {
        "object": "list",
        "data": page,
        "has_more": len(made) > limit,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _anthropic_error(status: int, kind: str, text: str) -> Reply:
    error = {"type": "error", "error": {"type": kind, "message": text}}
    return json_reply(error, status=status)


def _openai_error(status: int, code: str, text: str) -> Reply:
    error = {"message": text, "type": "invalid_request_error", "code": code}
    return json_reply({"error": error}, status=status)
