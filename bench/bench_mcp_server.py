"""Cost of serving a call over standard streams, against a server of the SDK.

Run: `python -m bench.bench_mcp_server`. Both servers run the same function in a process
of their own, and the same few lines ask them: one call after the other, and 32 at once.
The sides run in turns, and the median of the rounds is taken.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median
from typing import Any, Self

ROUNDS = 7
CALLS = 300
AT_ONCE = 32
TARGET = 1.0

OURS = """
import asyncio
from executionkit.mcp import serve

async def add(a: int, b: int) -> int:
    "Add."
    return a + b

asyncio.run(serve([add]))
"""
SDK = """
from mcp.server import MCPServer

app = MCPServer("bench")

@app.tool()
async def add(a: int, b: int) -> int:
    "Add."
    return a + b

app.run()
"""


class Server:
    """A server in a process, and the shortest client there is."""

    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        }
        self._send("initialize", hello, 0)
        self.stdin.flush()
        self.stdout.readline()
        self._send("notifications/initialized", {})

    def _send(self, method: str, params: dict[str, Any], number: int = -1) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if number >= 0:
            message["id"] = number
        self.stdin.write(json.dumps(message).encode() + b"\n")

    def seconds(self, at_once: int) -> float:
        """Seconds for a call, `at_once` under way all the time."""
        params = {"name": "add", "arguments": {"a": 1, "b": 2}}
        sent = received = 0
        began = time.perf_counter()
        while received < CALLS:
            while sent < CALLS and sent - received < at_once:
                sent += 1
                self._send("tools/call", params, sent)
            self.stdin.flush()
            answer = json.loads(self.stdout.readline())
            assert answer["result"]["content"][0]["text"] == "3", answer
            received += 1
        return (time.perf_counter() - began) / CALLS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stdin.close()
        self.process.wait(10)
        self.stdout.close()


def rows() -> list[dict[str, Any]]:
    """All measurements: name, ours, limit (seconds), ratio, target, met."""
    found = []
    with Server(OURS) as ours, Server(SDK) as bare:
        for at_once in (1, AT_ONCE):
            pairs = [
                (ours.seconds(at_once), bare.seconds(at_once)) for _ in range(ROUNDS)
            ][1:]
            left, right = (median(side) for side in zip(*pairs, strict=True))
            ratio = left / right
            found.append(
                {
                    "name": f"MCP server, {at_once} at once",
                    "ours": left,
                    "limit": right,
                    "ratio": ratio,
                    "target": TARGET,
                    "met": ratio <= TARGET,
                }
            )
    return found


def main() -> None:
    for row in rows():
        print(
            f"{row['name']:30} ours {row['ours'] * 1e6:8.0f} us  SDK "
            f"{row['limit'] * 1e6:8.0f} us  ratio {row['ratio']:5.2f}  "
            f"target <= {row['target']:4.2f}  {'ok' if row['met'] else 'MISSED'}"
        )


if __name__ == "__main__":
    main()
