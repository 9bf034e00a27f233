# ruff: noqa: PTH110, PTH123
"""A server written by hand, for what no honest server does: `python fake_server.py`.

It speaks 2025-11-25 over standard input and output. The name of a tool says how it
behaves. `FAKE_LOG` names a file that gets each message that came; `FAKE_MODE` may be
`deaf` (ignores the end of its input and SIGTERM), `mute` (never answers), `exit` (ends
at once), `chatty` (prints other things first), `greeting` (prints a secret to stderr),
`endless` (its pages of tools have no end).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

MODE = os.environ.get("FAKE_MODE", "")
LOG = os.environ.get("FAKE_LOG", "")
OBJECT = {"type": "object"}
ROWS = {
    "type": "object",
    "properties": {"rows": {"type": "integer"}},
    "required": ["rows"],
}
READ = {"readOnlyHint": True}
extra: list[dict[str, object]] = []


def tool(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "description": name, "inputSchema": OBJECT, **more}


PAGES = [
    [
        tool("echo", annotations=READ),
        tool("meta"),
        tool("die"),
        tool("die_reading", annotations=READ),
        tool("die_once", annotations=READ),
        tool("hang"),
        tool("beat"),
    ],
    [
        tool("late"),
        tool("garbage"),
        tool("unknown_block"),
        tool("data_only", outputSchema=ROWS),
        tool("error_with_data"),
        tool("error_of_schema", outputSchema=ROWS),
        tool("text_of_schema", outputSchema=ROWS),
    ],
    [
        tool("extra_fields", outputSchema=ROWS),
        tool("refuse"),
        tool("code_32000"),
        tool("grow"),
        tool("shrink"),
        tool("malformed"),
        tool("huge"),
        tool("stderr"),
        tool("bad schema", inputSchema={"type": "object", "properties": 7}),
        tool(
            "worse",
            inputSchema={
                "type": "object",
                "properties": {"a": {"$ref": "http://other.test/schema"}},
            },
        ),
    ],
]


def send(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def text(value: str, **more: object) -> dict[str, object]:
    return {"content": [{"type": "text", "text": value}], **more}


def progress(token: object, done: float, total: float | None = None) -> None:
    params: dict[str, object] = {"progressToken": token, "progress": done}
    if total is not None:
        params["total"] = total
    send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


def changed() -> None:
    send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})


RESULTS = {
    "unknown_block": {
        "content": [
            {"type": "text", "text": "see"},
            {"type": "video", "url": "x://y", "n": 1},
        ]
    },
    "data_only": {"structuredContent": {"rows": 3}},
    "error_with_data": text(
        "db refused", isError=True, structuredContent={"trace": "T1"}
    ),
    "error_of_schema": text("no table", isError=True),
    "text_of_schema": text("three rows were found"),
    "extra_fields": {
        **text('{"rows": 3, "more": 1}', surprise=1),
        "structuredContent": {"rows": 3, "more": 1},
    },
    "malformed": {"content": "not a list"},
}


def call(number: object, params: dict[str, object]) -> None:
    name = params["name"]
    arguments: dict[str, object] = params.get("arguments") or {}  # type: ignore[assignment]
    meta: dict[str, object] = params.get("_meta") or {}  # type: ignore[assignment]
    token = meta.get("progressToken")
    result: object = text(json.dumps(arguments))
    if name in RESULTS:
        result = RESULTS[str(name)]
    elif name == "meta":
        result = text(json.dumps(meta))
    elif name in {"die", "die_reading"} or (
        name == "die_once" and not os.path.exists(str(arguments["mark"]))
    ):
        if name == "die_once":
            open(str(arguments["mark"]), "w").close()
        sys.stderr.write("last words, api_key=sk-abcdefghijklmnop1234567890\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "hang":
        return
    elif name == "beat":
        for step in range(int(str(arguments["beats"]))):
            time.sleep(float(str(arguments["every"])))
            progress(token, step + 1, 10)
    elif name == "garbage":
        sys.stdout.write("Traceback: not a message\n{}\n[1]\n\n")
    elif name in {"refuse", "code_32000"}:
        code = -32602 if name == "refuse" else -32000
        send(
            {
                "jsonrpc": "2.0",
                "id": number,
                "error": {"code": code, "message": "I will not", "data": {"why": 1}},
            }
        )
        return
    elif name == "grow":
        extra.append(tool(str(arguments["name"])))
        changed()
    elif name == "shrink":
        PAGES[1].clear()
        changed()
    elif name == "huge":
        result = text("x" * int(str(arguments["size"])))
    elif name == "stderr":
        sys.stderr.write("y" * 100_000 + "the end")
        sys.stderr.flush()
    send({"jsonrpc": "2.0", "id": number, "result": result})
    if name == "late":
        progress(token, 99)
        progress("nobody's", 1)


def listed(params: dict[str, object]) -> dict[str, object]:
    if MODE == "endless":
        return {"tools": [tool("echo")], "nextCursor": "again"}
    page = int(str(params.get("cursor") or 0))
    found: dict[str, object] = {"tools": PAGES[page]}
    if page + 1 < len(PAGES):
        found["nextCursor"] = str(page + 1)
    else:
        found["tools"] = [*PAGES[page], *extra]
    return found


def answer(message: dict[str, object]) -> None:
    number, method = message.get("id"), message.get("method")
    params: dict[str, object] = message.get("params") or {}  # type: ignore[assignment]
    if number is None or MODE == "mute":
        return
    if method == "initialize":
        result: dict[str, object] = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "fake", "version": "1"},
        }
    elif method == "tools/list":
        result = listed(params)
    elif method == "tools/call":
        call(number, params)
        return
    else:
        send(
            {
                "jsonrpc": "2.0",
                "id": number,
                "error": {"code": -32601, "message": "unknown"},
            }
        )
        return
    send({"jsonrpc": "2.0", "id": number, "result": result})


def main() -> None:
    if MODE == "exit":
        sys.stderr.write("no configuration\n")
        sys.exit(4)
    if MODE == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MODE == "chatty":
        print("Welcome to the server, version 1")
    if LOG:
        with open(LOG, "a") as log:
            log.write(json.dumps({"pid": os.getpid()}) + "\n")
    for line in sys.stdin:
        if LOG:
            with open(LOG, "a") as log:
                log.write(line)
        answer(json.loads(line))
    while MODE == "deaf":
        time.sleep(1)


if __name__ == "__main__":
    main()
