"""What a bare install promises: `python checks.py [--package-path FOLDER] [NAME ...]`.

Plain Python without any package, so that it can run where only this library is
installed. Each check runs in an interpreter of its own, because it is about what an
import does. `tests/test_bare.py` runs them from the checkout with all other packages
out of sight, continuous integration from the built wheel.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import contextlib
import copyreg
import http.server
import importlib
import importlib.metadata
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

MAX_MODULES = 150
MAX_BYTES = 3_500_000
SECONDS = 60
LOAD_ALL = "import executionkit as e; [getattr(e, name) for name in e.__all__]"

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def interpreter(*arguments: str) -> list[str]:
    """A fresh interpreter that finds the same packages as this one."""
    flags = ["-I", "-B", "-W", "error"] + (["-S"] if sys.flags.no_site else [])
    return [sys.executable, *flags, *arguments]


def fresh(statement: str, *flags: str) -> str:
    """The output of `statement` in a fresh interpreter, which must say nothing else."""
    extra = [entry for entry in sys.path if entry]
    done = subprocess.run(
        interpreter(*flags, "-c", f"import sys; sys.path[:] = {extra!r}; {statement}"),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def modules_after(statement: str) -> list[str]:
    """The modules that `statement` loads in a fresh interpreter."""
    names: list[str] = json.loads(
        fresh(
            f"before = set(sys.modules); {statement}; import json;"
            "print(json.dumps([n for n in sys.modules if n not in before]))"
        )
    )
    return names


def preload(statement: str) -> None:
    """Load what `statement` loads of the standard library: its effects are not ours."""
    for name in modules_after(statement):
        if not name.startswith("executionkit"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def state_of_the_process() -> dict[str, object]:
    """All that an import might touch and should not."""
    known = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    loggers = [item for item in known if isinstance(item, logging.Logger)]
    return {
        "handlers": {
            item.name: str(item.handlers) for item in loggers if item.handlers
        },
        "levels": {item.name: item.level for item in loggers if item.level},
        "filters": {item.name: str(item.filters) for item in loggers if item.filters},
        "warnings": [str(item) for item in warnings.filters],
        "signals": {s: str(signal.getsignal(s)) for s in signal.valid_signals()},
        "threads": threading.active_count(),
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "path": list(sys.path),
        "hooks": [str(sys.excepthook), str(threading.excepthook), str(sys.displayhook)],
        "finders": [str(sys.meta_path), str(sys.path_hooks)],
        "limit": sys.getrecursionlimit(),
        "at exit": atexit._ncallbacks(),
        "streams": [id(sys.stdin), id(sys.stdout), id(sys.stderr)],
    }


def load_everything_public() -> None:
    root = importlib.import_module("executionkit")
    for name in root.__all__:
        getattr(root, name)


@check
def the_import_brings_nothing_foreign_and_little_else() -> None:
    names = modules_after("import executionkit")
    assert len(names) <= MAX_MODULES, f"{len(names)} modules: {names}"
    assert not foreign(names), foreign(names)


@check
def everything_public_is_there_and_brings_nothing_foreign() -> None:
    names = modules_after(LOAD_ALL)
    assert len(names) > len(modules_after("import executionkit"))
    assert not foreign(names), foreign(names)


def foreign(names: list[str]) -> list[str]:
    known = sys.stdlib_module_names | {"executionkit", "__mp_main__"}
    return [name for name in names if name.partition(".")[0] not in known]


@check
def the_import_leaves_the_process_as_it_was() -> None:
    preload(LOAD_ALL)
    before = state_of_the_process()
    load_everything_public()
    after = state_of_the_process()
    changed = {
        key: (before[key], after[key]) for key in before if before[key] != after[key]
    }
    assert not changed, changed


@check
def the_import_opens_nothing_and_starts_nothing() -> None:
    preload(LOAD_ALL)
    seen: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if not watching:
            return
        if event == "open":
            path = str(arguments[0])
            if not path.endswith((".py", ".pyc")) and not Path(path).is_dir():
                seen.append(f"open {path}")
        elif event.startswith(REACHES_OUT):
            seen.append(f"{event} {arguments}")

    sys.addaudithook(watch)
    load_everything_public()
    watching = False
    assert not seen, seen
    assert any(name == "executionkit.errors" for name in sys.modules)


REACHES_OUT = (
    *("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system"),
    *("os.putenv", "os.mkdir", "os.remove", "os.rename", "urllib.", "http.", "ftplib."),
    *("sqlite3.connect", "ctypes.dlopen", "signal.", "_thread.start_new_thread"),
    *("tempfile.", "shutil.", "smtplib.", "fcntl.", "mmap."),
)


@check
def the_import_works_without_docstrings_and_with_all_warnings() -> None:
    assert fresh(f"{LOAD_ALL}; print('loaded')", "-OO").strip() == "loaded"
    assert fresh(f"{LOAD_ALL}; print('loaded')", "-X", "dev").strip() == "loaded"


@check
def one_type_of_the_standard_library_learns_to_pickle_and_no_more() -> None:
    preload(LOAD_ALL)
    before = set(copyreg.dispatch_table)
    load_everything_public()
    assert {kind.__name__ for kind in set(copyreg.dispatch_table) - before} <= {
        "mappingproxy"
    }


@check
def the_installed_files_are_complete_and_small() -> None:
    import executionkit

    folder = Path(executionkit.__file__).parent
    assert (folder / "py.typed").is_file()
    files = [path for path in folder.rglob("*") if path.suffix != ".pyc"]
    size = sum(path.stat().st_size for path in files if path.is_file())
    assert size < MAX_BYTES, f"{size} bytes"
    try:
        about = importlib.metadata.distribution("executionkit")
    except importlib.metadata.PackageNotFoundError:
        return  # not installed: running from the checkout
    assert about.version == executionkit.__version__
    required = [line for line in about.requires or [] if "extra ==" not in line]
    assert not required, required
    names = {str(path) for path in about.files or []}
    assert any(name.endswith("LICENSE") for name in names), names
    assert not any(name.startswith(("tests/", "bench/")) for name in names), names


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SECONDS / 2):
            await main()

    asyncio.run(bounded())


@check
def patterns_work() -> None:
    import executionkit as kit

    async def main() -> None:
        voted = await kit.consensus(
            kit.MockProvider(["42", "42", "7"]), "?", num_samples=3
        )
        assert voted.value == "42", voted
        assert voted.cost.llm_calls == 3, voted
        assert pickle.loads(pickle.dumps(voted)) == voted
        parsed = await kit.structured(kit.MockProvider(['Sure: {"a": [1]}']), "?")
        assert parsed.value == {"a": [1]}, parsed
        assert json.dumps(parsed.value) == '{"a": [1]}'

    run(main)


@check
def tools_are_called_and_their_arguments_checked() -> None:
    import executionkit as kit

    async def add(a: int, b: int) -> int:
        return a + b

    numbers = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    schema = {"type": "object", "properties": numbers, "required": ["a", "b"]}
    tool = kit.Tool("add", "adds", schema, add)

    async def main() -> None:
        provider = kit.MockProvider(
            [
                kit.LLMResponse("", (kit.ToolCall("c1", "add", {"a": 1}),)),
                kit.LLMResponse("", (kit.ToolCall("c2", "add", {"a": 1, "b": 2}),)),
                "three",
            ]
        )
        result = await kit.react_loop(provider, "1 + 2?", [tool])
        assert result.value == "three", result
        told = [m["content"] for m in provider.calls[2].messages if m["role"] == "tool"]
        assert "b" in told[0], told
        assert told[1] == "3", told

    run(main)


class OneAnswer(http.server.BaseHTTPRequestHandler):
    """A model server that always says the same."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "pong"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 1}
        body = json.dumps({"choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextlib.contextmanager
def model_server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), OneAnswer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join(SECONDS)


@check
def a_model_is_reached_through_the_standard_library() -> None:
    import executionkit as kit

    async def main(url: str) -> None:
        async with kit.Provider(url, "m", api_key="k") as provider:
            reply = await provider.complete([{"role": "user", "content": "ping"}])
        assert reply.content == "pong", reply
        assert (reply.input_tokens, reply.output_tokens) == (3, 1), reply

    before = set(sys.modules)
    with model_server() as url:
        run(lambda: main(url))
    used = [name for name in sys.modules if name not in before]
    assert not foreign(used), foreign(used)


@check
def a_missing_extra_says_what_to_install() -> None:
    from executionkit.errors import MissingExtraError, require

    try:
        require("redis", extra="redis")
    except MissingExtraError as exc:
        told = str(exc)
    else:
        told = "this environment is not bare: redis is installed"
    assert "pip install 'executionkit[redis]'" in told, told


def outcome_of(name: str, package_path: str) -> str:
    """The end of the output of one check in its own interpreter; empty when it held."""
    options = ["--one", "--package-path", package_path] if package_path else ["--one"]
    done = subprocess.run(
        interpreter(str(Path(__file__).resolve()), *options, name),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[-3000:]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", action="store_true", help="run it in this process")
    parser.add_argument("--package-path", default="", help="where the package lies")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    names = options.names or list(CHECKS)
    if options.one:
        sys.path[:0] = [options.package_path] if options.package_path else []
        CHECKS[names[0]]()
        return 0
    failed = 0
    for name in names:
        problem = outcome_of(name, options.package_path)
        failed += bool(problem)
        if problem:
            print(f"FAILED {name}\n{problem}")
    print(f"bare install: {len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
