"""A real process, its standard streams, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from tests.mcp.server_help import call, modern, request

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 25.0
TOOLS = ("--tools", "tests.mcp.stdio_tools")


class Process:
    """The server in a process; every wait has a limit."""

    def __init__(self, *arguments: str, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "executionkit.mcp", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.errors = bytearray()
        self.seen: list[bytes] = []
        stderr = self.process.stderr
        self.threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(
                target=lambda: self.errors.extend(stderr.read()), daemon=True
            ),
        ]

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS)
        for thread in self.threads:
            thread.join(SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()

    def _read(self) -> None:
        for line in self.stdout:
            self.lines.put(line)
        self.lines.put(b"")

    def send(self, *messages: object) -> None:
        for one in messages:
            self.stdin.write(json.dumps(one).encode() + b"\n")
        self.stdin.flush()

    def receive(self) -> Any:
        line = self.lines.get(timeout=SECONDS)
        assert line, f"the server ended: {self.errors.decode()}"
        self.seen.append(line)
        return json.loads(line)

    def ask(self, message: dict[str, Any]) -> Any:
        self.send(message)
        while (answer := self.receive()).get("id") != message["id"]:
            pass
        return answer

    def initialize(self) -> Any:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        answer = self.ask(request("hello", "initialize", params))
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer["result"]

    def wait(self) -> float:
        """Wait for the end; how long it took."""
        begun = time.monotonic()
        self.process.wait(SECONDS)
        return time.monotonic() - begun


@pytest.fixture
def server() -> Iterator[Process]:
    with Process(*TOOLS) as process:
        process.initialize()
        yield process


@pytest.mark.req("mcp.server.stdio")
def test_the_server_of_the_document_runs_from_the_command_line() -> None:
    with Process() as process:
        hello = process.initialize()
        assert hello["capabilities"] == {"tools": {}}
        listed = process.ask(request(1, "tools/list"))["result"]["tools"]
        assert [tool["name"] for tool in listed] == ["consensus", "react_loop"]
        assert "result" in process.ask(modern(2, "server/discover"))
        process.stdin.close()
        process.wait()
        assert process.process.returncode == 0
        assert process.errors == b""


@pytest.mark.req("mcp.server.stdout", "SP-09")
def test_what_tools_and_their_children_print_is_not_in_the_protocol(
    server: Process,
) -> None:
    answer = server.ask(call(1, "noisy"))
    assert answer["result"]["content"][0]["text"] == "quiet"
    answer = server.ask(call(2, "child"))
    assert answer["result"]["content"][0]["text"] == "read"
    for line in server.seen:
        assert json.loads(line)["jsonrpc"] == "2.0"
    server.stdin.close()
    server.wait()
    server.threads[1].join(SECONDS)
    for text in (
        b"printed",
        b"written\n",
        b"written to the desc",
        b"from a child",
        b"0",
    ):
        assert text in server.errors


@pytest.mark.req("mcp.server.unkillable", "T-R-34")
def test_one_line_does_not_end_the_process(server: Process) -> None:
    for line in (b"[" * 100_000, b"\xff\xfe", b'{"id":' + b"1" * 5000, b"\x00", b"{}"):
        server.stdin.write(line + b"\n")
    server.stdin.flush()
    assert server.ask(request("alive", "ping"))["result"] == {}
    assert len([one for one in server.seen if b'"error"' in one]) == 5


@pytest.mark.req("mcp.server.stdio")
def test_a_large_result_and_many_calls_come_through(server: Process) -> None:
    answer = server.ask(call(1, "big", size=5_000_000))
    assert len(answer["result"]["content"][0]["text"]) == 5_000_000
    server.send(*(call(number, "big", size=number) for number in range(2, 302)))
    found = {(one := server.receive())["id"]: one for _ in range(300)}
    for number in range(2, 302):
        assert len(found[number]["result"]["content"][0]["text"]) == number


@pytest.mark.req("mcp.server.end")
@pytest.mark.parametrize(
    ("how", "busy"),
    [
        ("eof", "idle"),
        ("eof", "stubborn"),
        ("term", "wait"),
        ("term", "asleep"),
        ("int", "stubborn"),
    ],
)
def test_the_process_ends_in_time_whatever_runs(
    how: str, busy: str, tmp_path: Path
) -> None:
    with Process(*TOOLS) as server:
        server.initialize()
        mark = tmp_path / "mark"
        if busy != "idle":
            arguments = {"path": str(mark)} if busy == "wait" else {}
            server.send(call(1, busy, **arguments))
        assert server.ask(request(2, "ping"))["result"] == {}
        if how == "eof":
            server.stdin.close()
        else:
            server.process.send_signal(
                signal.SIGTERM if how == "term" else signal.SIGINT
            )
        server.wait()
        assert server.process.returncode == 0
        if busy == "wait":
            assert mark.read_text(encoding="utf-8") == "cancelled"


@pytest.mark.req("mcp.server.end")
def test_a_closed_output_ends_the_process() -> None:
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "executionkit.mcp", *TOOLS],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=write,
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    os.close(read)
    assert process.stdin is not None
    process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    process.stdin.flush()
    assert process.wait(SECONDS) == 0
    process.stdin.close()


@pytest.mark.req("mcp.server.stdio")
def test_a_file_is_served_as_a_pipe_is(tmp_path: Path) -> None:
    given = tmp_path / "in"
    given.write_text(json.dumps(request(1, "ping")), encoding="utf-8")  # no line's end
    with given.open("rb") as stdin:
        done = subprocess.run(
            [sys.executable, "-m", "executionkit.mcp"],
            cwd=ROOT,
            stdin=stdin,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    assert json.loads(done.stdout) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.req("mcp.server.command", "mcp.server.end")
def test_http_is_served_from_the_command_line_until_a_signal() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "executionkit.mcp", *TOOLS, "--http", "127.0.0.1:0"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stderr is not None
    with process.stderr:
        url = process.stderr.readline().split()[-1]
        hello = request(1, "initialize", {"protocolVersion": "2025-11-25"})
        asked = urllib.request.Request(
            url,
            json.dumps(hello).encode(),
            {"Content-Type": "application/json", "Accept": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
            assert json.load(answer)["result"]["protocolVersion"] == "2025-11-25"
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
        assert process.stderr.read() == ""


@pytest.mark.req("mcp.server.command")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tools", "no_such_module"), "no_such_module"),
        (("--tools", "tests.mcp.stdio_tools:nothing"), "nothing"),
        (("--tools", "tests.mcp.stdio_tools:os"), "module"),
        (("--http", "nowhere"), "HOST:PORT"),
        (("--http", "0.0.0.0:0"), "allowed_hosts"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(
    arguments: tuple[str, ...], words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "executionkit.mcp", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
