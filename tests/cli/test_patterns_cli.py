"""`consensus`, `structured`, `refine`, `react`, `demo`."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

MOCK = ("--provider", "mock")


def data(done: Any) -> Any:
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.req("cli.stdin")
@pytest.mark.parametrize("given", [("-",), ()])
def test_the_prompt_comes_from_standard_input(
    invoke: Callable[..., Any], given: tuple[str, ...]
) -> None:
    done = invoke("consensus", *given, *MOCK, stdin="two\nlines\n")
    assert (done.exit_code, done.stdout) == (0, "two\nlines\n")
    assert "score 1.00; 5 calls, 10 tokens in, 10 tokens out" in done.stderr


@pytest.mark.req("cli.patterns")
def test_the_winner_of_a_vote_is_printed(
    invoke: Callable[..., Any], write: Any
) -> None:
    write("say.jsonl", ["42", "42", "7"])
    arguments = ("consensus", "x", *MOCK, "--replies", "say.jsonl", "-n", "3")
    assert invoke(*arguments).stdout == "42\n"
    found = data(invoke(*arguments, "--json", "--prices", "1,1000000"))
    assert found["value"] == "42"
    assert found["score"] == pytest.approx(2 / 3)
    assert found["cost"] == {
        "llm_calls": 3,
        "input_tokens": 0,
        "output_tokens": 3,
        "money": 3.0,
    }


@pytest.mark.req("cli.exit-codes", "cli.json")
def test_a_failed_result_has_code_1_and_json_all_the_same(
    invoke: Callable[..., Any], write: Any
) -> None:
    write("say.jsonl", ["a", "b"])
    done = invoke(
        *("consensus", "x", *MOCK, "--replies", "say.jsonl"),
        *("--strategy", "unanimous", "--json"),
    )
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"]["type"] == "ConsensusFailedError"
    assert json.loads(done.stdout)["cost"]["llm_calls"] == 5
    assert done.stderr.startswith("executionkit: ConsensusFailedError: ")


@pytest.mark.req("cli.patterns")
def test_a_budget_and_the_retries_hold(invoke: Callable[..., Any], write: Any) -> None:
    done = invoke("consensus", "x", *MOCK, "--max-calls", "2", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["cost"]["llm_calls"] == 2
    write("say.jsonl", [{"error": "rate_limit"}, "fine"])
    again = ("consensus", "x", *MOCK, "-n", "1", "--replies", "say.jsonl")
    assert invoke(*again, "--retries", "0").exit_code == 1
    assert data(invoke(*again, "--json"))["cost"]["llm_calls"] == 2


@pytest.mark.req("cli.patterns")
def test_the_time_of_a_run_is_limited(invoke: Callable[..., Any], write: Any) -> None:
    write("say.jsonl", [{"content": "late", "delay": 60}])
    done = invoke(
        *("consensus", "x", *MOCK, "--replies", "say.jsonl", "--timeout", "0.05"),
    )
    assert done.exit_code == 1
    assert "DeadlineExceededError" in done.stderr


@pytest.mark.req("cli.patterns")
def test_structured_prints_what_fits_the_schema(
    invoke: Callable[..., Any], write: Any, folder: Path
) -> None:
    schema = {"type": "object", "required": ["city"]}
    (folder / "schema.json").write_text(json.dumps(schema))
    write("say.jsonl", ['{"town": 1}', 'Sure: {"city": "Oslo",}'])
    arguments = (
        *("structured", "x", *MOCK, "--replies", "say.jsonl"),
        *("--schema", "schema.json"),
    )
    assert data(invoke(*arguments)) == {"city": "Oslo"}
    assert data(invoke(*arguments, "--json"))["cost"]["llm_calls"] == 2
    assert invoke(*arguments, "--repairs", "0").exit_code == 1
    (folder / "schema.json").write_text('{"type": "nothing"}')
    assert invoke(*arguments).exit_code == 2


@pytest.mark.req("cli.patterns")
def test_refine_prints_the_best_draft(invoke: Callable[..., Any], write: Any) -> None:
    write("say.jsonl", ["poor", "3", "good", "10"])
    done = invoke("refine", "x", *MOCK, "--replies", "say.jsonl")
    assert done.stdout == "good\n"
    assert "score 1.00; 4 calls" in done.stderr
    assert "the judge failed" not in done.stderr
    write("say.jsonl", ["poor", "no rating at all"])
    done = invoke("refine", "x", *MOCK, "--replies", "say.jsonl", "--quiet")
    assert (done.exit_code, done.stdout) == (0, "poor\n")
    assert "the judge failed, the best draft stands: " in done.stderr


@pytest.mark.req("cli.patterns")
def test_react_calls_the_tools_of_a_module(
    invoke: Callable[..., Any], write: Any
) -> None:
    call = {"name": "add", "arguments": {"a": 2, "b": 40}}
    write("say.jsonl", [{"tool_calls": [call]}, "It is 42."])
    found = data(
        invoke(
            *("react", "2 + 40?", *MOCK, "--replies", "say.jsonl"),
            *("--tools", "cli_tools:registry", "--json"),
        )
    )
    assert found["value"] == "It is 42."
    told = [item for item in found["metadata"]["messages"] if item["role"] == "tool"]
    assert [item["content"] for item in told] == ["42"]


@pytest.mark.req("cli.demo")
def test_the_tour_runs_without_a_model(invoke: Callable[..., Any]) -> None:
    done = invoke("demo", *MOCK)
    assert done.exit_code == 0
    for words in ("6 x negative", "quantity=3", "Tool:    42", "a script"):
        assert words in done.stdout
    found = json.loads(invoke("demo", *MOCK, "--json").stdout)
    assert found["cost"]["llm_calls"] == 19


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Knows one key; says what it was asked."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": asked["model"]}
        self._send(200, {"choices": [{"message": message, "finish_reason": "stop"}]})

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == "Bearer good-key"
        self._send(200 if known and self.path == "/v1/models" else 401, {})

    def _send(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join(5)


@pytest.mark.req("cli.provider")
def test_the_provider_comes_from_options_or_the_environment(
    program: Any, url: str
) -> None:
    settings = {"EXECUTIONKIT_BASE_URL": url, "EXECUTIONKIT_MODEL": "by-variable"}
    done = program.run("consensus", "x", "-n", "1", **settings)
    assert (done.returncode, done.stdout) == (0, "by-variable\n")
    done = program.run("consensus", "x", "-n", "1", "-m", "by-option", **settings)
    assert done.stdout == "by-option\n"
    done = program.run("consensus", "x", "-n", "1", EXECUTIONKIT_PROVIDER="mock")
    assert done.stdout == "x\n"
    done = program.run("consensus", "x", EXECUTIONKIT_PROVIDER="oracle")
    assert done.returncode == 3
    assert "oracle" in done.stderr


@pytest.mark.req("cli.doctor")
def test_the_doctor_looks_at_the_endpoint(program: Any, url: str) -> None:
    settings = {"EXECUTIONKIT_BASE_URL": url, "EXECUTIONKIT_MODEL": "m"}

    def look(key: str, *more: str) -> tuple[int, dict[str, Any]]:
        done = program.run(
            "doctor", "--json", *more, **settings, EXECUTIONKIT_API_KEY=key
        )
        assert key not in done.stdout + done.stderr
        rows = json.loads(done.stdout)["findings"]
        return done.returncode, {row["name"]: row for row in rows}

    code, found = look("good-key")
    assert (code, found["endpoint"]["state"]) == (0, "ok")
    assert found["EXECUTIONKIT_API_KEY"]["detail"] == "set"
    assert found["ANTHROPIC_API_KEY"]["detail"] == "not set"
    assert "typer" in found["cli"]["detail"]
    code, found = look("wrong-key")
    assert (code, found["endpoint"]["state"]) == (3, "error")
    assert found["endpoint"]["remedy"] == "check the key"
    code, found = look("wrong-key", "--offline")
    assert (code, found["endpoint"]["state"]) == (0, "info")


class _LetsNobodyIn(socketserver.StreamRequestHandler):
    """A server of Redis that refuses whoever logs in, and repeats the password."""

    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"-ERR AUTH 's3cret' without any password configured\r\n")
        self.wfile.write(b"-ERR no\r\n" * 3)
        self.rfile.read()


@pytest.mark.req("cli.doctor", "redis.secrets")
def test_the_doctor_looks_at_shared_state(program: Any) -> None:
    def look(url: str, *more: str) -> tuple[int, dict[str, Any]]:
        arguments = ("doctor", "--json", "--provider", "mock", *more)
        done = program.run(*arguments, EXECUTIONKIT_STATE_URL=url)
        assert "s3cret" not in done.stdout + done.stderr
        rows = json.loads(done.stdout)["findings"]
        found = [row for row in rows if row["area"] == "shared state"]
        return done.returncode, found[0] if found else {}

    nobody = "redis://user:s3cret@127.0.0.1:1"
    code, found = look(nobody)
    assert (code, found["state"]) == (3, "error")
    assert "redis://127.0.0.1:1/0 cannot be reached" in found["detail"]
    assert look(nobody, "--offline")[1]["state"] == "info"
    assert look("memory://")[1]["state"] == "ok"
    assert look("redis://:s3cret@h:x")[0] == 3
    with socketserver.TCPServer(("127.0.0.1", 0), _LetsNobodyIn) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        code, found = look(f"redis://:s3cret@127.0.0.1:{server.server_address[1]}")
        thread.join(10)
    assert (code, found["state"]) == (3, "error")
    assert "credentials are wrong" in found["detail"]
    assert "password" in found["remedy"]
    assert look("") == (0, {})


@pytest.mark.req("cli.doctor")
def test_the_doctor_says_what_is_missing(invoke: Callable[..., Any]) -> None:
    done = invoke("doctor")
    assert done.exit_code == 3
    assert "no provider is configured" in done.stdout
    done = invoke("doctor", "--provider", "openai", "--model", "m")
    assert done.exit_code == 3
    assert "EXECUTIONKIT_BASE_URL" in done.stdout
    assert invoke("doctor", "--provider", "mock").exit_code == 0
