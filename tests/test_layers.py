"""The shape of the package: who may import whom, how long code may be, who reads time.

The tables come first; the tests read them.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import executionkit

if TYPE_CHECKING:
    from collections.abc import Iterator

# A name is a module, or a folder with all that is in it. A module imports lower ranks,
# or its own folder.
RANKS: dict[str, int] = {
    "_clock": 0,
    "_constants": 0,
    "_error_codes": 0,
    "_frozen": 0,
    "_ids": 0,
    "types": 0,
    "_error_base": 1,
    "_error_info": 1,
    "_approval_errors": 1,
    "_journal_errors": 1,
    "_keys": 1,
    "_llm": 1,
    "_redact": 1,
    "_render": 1,
    "_tool_errors": 1,
    "calls": 1,
    "context": 1,
    "errors": 1,
    "_sqlite": 2,
    "_threads": 2,
    "engine": 2,
    "_http": 3,
    "_json_tools": 3,
    "_wire": 3,
    "backends": 3,
    "_arguments": 3,
    "_usage": 2,
    "cost": 3,
    "observability": 3,
    "_endpoint": 4,
    "_local": 4,
    "anthropic": 4,
    "_approval": 4,
    "_journal": 4,
    "approval": 4,
    "journal": 4,
    "local": 4,
    "provider": 4,
    "patterns": 5,
    "tools": 5,
    "_mock": 6,
    "_batches": 6,
    "batches": 6,
    "compose": 6,
    "execution": 6,
    "models": 6,
    "evals": 6,
    "_evals": 6,
    "_fallback": 6,
    "fallback": 6,
    "_workflow": 6,
    "planning": 6,
    "routing": 6,
    "workflow": 6,
    "_sync": 7,
    "kit": 7,
    "": 8,
    "__main__": 9,
    "cli": 9,
    "mcp": 9,
    "testing": 9,
    "viewer": 9,
}

# Inside ranks 0 and 1 a module may import what stands before it.
GROUND: tuple[str, ...] = (
    "_constants",
    "_clock",
    "_error_codes",
    "_frozen",
    "_ids",
    "types",
    "_error_base",
    "_error_info",
    "_tool_errors",
    "_approval_errors",
    "_journal_errors",
    "errors",
    "_redact",
    "_render",
    "_keys",
    "calls",
    "_llm",
    "context",
)

# Who else may import a neighbour of the same rank: (importer, imported).
NEIGHBOURS: frozenset[tuple[str, str]] = frozenset(
    {
        ("__main__", "cli"),
        ("approval", "_approval"),
        ("anthropic", "_endpoint"),
        ("batches", "_batches"),
        ("anthropic", "provider"),
        ("cli", "mcp"),
        ("cli", "viewer"),
        ("evals", "_evals"),
        ("fallback", "_fallback"),
        ("journal", "_journal"),
        ("local", "_endpoint"),
        ("local", "_local"),
        ("local", "provider"),
        ("planning", "_workflow"),
        ("provider", "_endpoint"),
        ("workflow", "_workflow"),
    }
)

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60
"""Without the docstring."""

# Path in the package -> why it may be longer.
LONG_MODULES: dict[str, str] = {
    "__init__.py": "the public names twice: for their loading, and for type checkers",
}
# "path:function" -> why it may be longer.
LONG_FUNCTIONS: dict[str, str] = {
    "tools/processor.py:__init__": "30 settings, each handed on once",
    "patterns/react_loop.py:react_loop": "30 lines of parameters, each handed on once",
}

# Names that read time, sleep or draw chance, and who may use them with what reason.
TIME_AND_CHANCE = frozenset(
    {
        "time",
        "random",
        "asyncio.sleep",
        "asyncio.timeout",
        "asyncio.timeout_at",
        "datetime.date.today",
        "datetime.datetime.now",
        "datetime.datetime.today",
        "datetime.datetime.utcnow",
    }
)
READS_TIME: dict[str, str] = {
    "_clock.py": "the one place",
    "testing/clock.py": "the fake of the one place",
}
PRINTS: dict[str, str] = {}

# Modules that reach outside of the process; the engine has none of them.
OUTSIDE = frozenset(
    {
        "asyncio.subprocess",
        "http",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "threading",
        "urllib",
    }
)

PACKAGE = Path(executionkit.__file__).parent
ROOT = "executionkit"


@dataclass(frozen=True)
class Module:
    path: str
    """Relative to the package, with slashes."""

    dotted: str
    """Relative to the package; empty for its root."""

    tree: ast.Module
    lines: int

    @property
    def top(self) -> str:
        return self.dotted.partition(".")[0]

    @property
    def package(self) -> str:
        """The dotted name that one leading dot of an import stands for."""
        parts = f"{ROOT}.{self.dotted}".rstrip(".").split(".")
        return ".".join(parts if self.path.endswith("__init__.py") else parts[:-1])


@cache
def modules() -> tuple[Module, ...]:
    found: list[Module] = []
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        relative = file.relative_to(PACKAGE)
        parts = [part for part in relative.with_suffix("").parts if part != "__init__"]
        found.append(
            Module(
                relative.as_posix(),
                ".".join(parts),
                ast.parse(text, str(file)),
                text.count("\n"),
            )
        )
    return tuple(found)


every_module = pytest.mark.parametrize(
    "module", [pytest.param(module, id=module.path) for module in modules()]
)


def _for_typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    }


def walk_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below `if TYPE_CHECKING:` (its `else` runs)."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and _for_typing_only(node):
            todo.extend(node.orelse)
        else:
            todo.extend(ast.iter_child_nodes(node))


def _import_from(module: Module, node: ast.ImportFrom) -> Iterator[str]:
    base = node.module or ""
    if node.level:
        parts = module.package.split(".")
        kept = parts[: len(parts) - node.level + 1]
        base = ".".join([*kept, base] if base else kept)
    for alias in node.names:
        yield f"{base}.{alias.name}"


def _import_by_text(node: ast.Call) -> Iterator[str]:
    called = ast.unparse(node.func).rpartition(".")[2]
    if called in {"import_module", "__import__", "require"} and node.args:
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value


def imports_of(module: Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import that can run, lazy ones included."""
    for node in walk_run_time(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for name in _import_from(module, node):
                yield node.lineno, name
        elif isinstance(node, ast.Call):
            for name in _import_by_text(node):
                yield node.lineno, name


def target_of(dotted: str) -> str | None:
    """The top-level module or folder of ours that an import means; None = not ours."""
    root, _, rest = dotted.partition(".")
    if root != ROOT:
        return None
    top = rest.partition(".")[0]
    return top if top in RANKS else ""


def may_import(importer: str, imported: str) -> bool:
    if importer == imported:
        return True
    if importer in GROUND and imported in GROUND:
        return GROUND.index(imported) < GROUND.index(importer)
    if RANKS[imported] < RANKS[importer]:
        return True
    return (importer, imported) in NEIGHBOURS


@pytest.mark.req("house.layers")
def test_every_module_has_a_rank_and_every_rank_a_module_or_a_plan() -> None:
    without = {module.path for module in modules() if module.top not in RANKS}
    assert not without, f"give these a rank in RANKS: {sorted(without)}"
    assert all(name in RANKS for pair in NEIGHBOURS for name in pair)
    ground = {name for name, rank in RANKS.items() if rank <= 1}
    assert ground == set(GROUND)


@pytest.mark.req("house.layers")
@every_module
def test_a_module_imports_only_what_is_below_it(module: Module) -> None:
    upward = [
        f"{module.path}:{line} imports {name}"
        for line, name in imports_of(module)
        if (target := target_of(name)) is not None
        and module.top in RANKS
        and not may_import(module.top, target)
    ]
    assert not upward, "\n".join(upward)


@pytest.mark.req("house.zero-dependencies")
@every_module
def test_a_foreign_package_is_imported_only_where_it_is_needed(module: Module) -> None:
    lazy = {
        line
        for function in ast.walk(module.tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if (line := getattr(node, "lineno", None)) is not None
    }
    foreign = [
        f"{module.path}:{line} imports {name} at import time"
        for line, name in imports_of(module)
        if line not in lazy
        and name.partition(".")[0] not in sys.stdlib_module_names | {ROOT}
    ]
    assert not foreign, "\n".join(foreign)


@pytest.mark.req("house.pure-engine")
@every_module
def test_the_engine_reaches_nothing_outside_of_the_process(module: Module) -> None:
    if module.top != "engine":
        return
    outside = [
        f"{module.path}:{line} imports {name}"
        for line, name in imports_of(module)
        if any(name == banned or name.startswith(f"{banned}.") for banned in OUTSIDE)
    ]
    assert not outside, "\n".join(outside)


@pytest.mark.req("house.size")
@every_module
def test_a_module_is_short_enough_to_read(module: Module) -> None:
    if module.path in LONG_MODULES:
        assert module.lines > MAX_MODULE_LINES, "no exception is needed any more"
        return
    assert module.lines <= MAX_MODULE_LINES


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


@pytest.mark.req("house.size")
@every_module
def test_a_function_is_short_enough_to_read(module: Module) -> None:
    long = [
        f"{module.path}:{node.name} has {_code_lines(node)} lines"
        for node in ast.walk(module.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and _code_lines(node) > MAX_FUNCTION_LINES
        and f"{module.path}:{node.name}" not in LONG_FUNCTIONS
    ]
    assert not long, "\n".join(long)


def _full_names(module: Module) -> dict[str, str]:
    """What each name bound by an import stands for, in dots."""
    names: dict[str, str] = {}
    for node in walk_run_time(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                shown = alias.asname or alias.name.partition(".")[0]
                names[shown] = alias.name if alias.asname else shown
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def uses_of(module: Module) -> Iterator[tuple[int, str]]:
    """(line, full dotted name) of each attribute or name that an import brought."""
    names = _full_names(module)
    for node in walk_run_time(module.tree):
        if isinstance(node, (ast.Attribute, ast.Name)):
            head, dot, rest = ast.unparse(node).partition(".")
            if head in names:
                yield node.lineno, f"{names[head]}{dot}{rest}"


@pytest.mark.req("house.one-clock")
@every_module
def test_only_the_clock_reads_time_sleeps_or_draws_chance(module: Module) -> None:
    found = [
        f"{module.path}:{line} uses {name}"
        for line, name in (*imports_of(module), *uses_of(module))
        if name in TIME_AND_CHANCE or name.partition(".")[0] in TIME_AND_CHANCE
    ]
    if module.path in READS_TIME:
        assert found, "no exception is needed any more"
        return
    assert not found, "\n".join(found)


@pytest.mark.req("house.no-eval")
@every_module
def test_nothing_is_evaluated_and_nothing_printed(module: Module) -> None:
    banned = {"eval", "exec", "compile", "breakpoint"}
    if module.path not in PRINTS:
        banned.add("print")
    called = [
        f"{module.path}:{node.lineno} calls {node.func.id}"
        for node in walk_run_time(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in banned
    ]
    assert not called, "\n".join(called)


def _module(source: str, path: str = "types.py") -> Module:
    dotted = path.removesuffix(".py").removesuffix("__init__").strip("/")
    return Module(path, dotted.replace("/", "."), ast.parse(source), 1)


@pytest.mark.parametrize(
    ("path", "source", "names"),
    [
        ("types.py", "import executionkit.kit", ["executionkit.kit"]),
        ("types.py", "from executionkit import kit", ["executionkit.kit"]),
        ("types.py", "from . import kit", ["executionkit.kit"]),
        ("engine/retry.py", "from ..kit import Kit", ["executionkit.kit.Kit"]),
        ("engine/retry.py", "from .a import b", ["executionkit.engine.a.b"]),
        ("engine/__init__.py", "from .a import b", ["executionkit.engine.a.b"]),
        ("types.py", "def f():\n from executionkit import Kit", ["executionkit.Kit"]),
        (
            "types.py",
            "importlib.import_module('executionkit.kit')",
            ["executionkit.kit"],
        ),
        ("types.py", "if TYPE_CHECKING:\n import executionkit.kit", []),
        ("types.py", "if TYPE_CHECKING:\n pass\nelse:\n import a", ["a"]),
    ],
)
def test_the_walk_sees_every_way_to_import(
    path: str, source: str, names: list[str]
) -> None:
    assert [name for _, name in imports_of(_module(source, path))] == names


def test_the_rule_tells_up_from_down() -> None:
    assert may_import("kit", "patterns")
    assert may_import("patterns", "patterns")
    assert may_import("anthropic", "provider")
    assert may_import("calls", "errors")
    assert not may_import("errors", "calls")
    assert not may_import("patterns", "tools")
    assert not may_import("provider", "anthropic")
    assert not may_import("engine", "")
    assert not may_import("", "mcp")
    assert target_of("executionkit.Kit") == ""
    assert target_of("executionkit.kit.Kit") == "kit"
    assert target_of("json") is None


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import asyncio\nasyncio.sleep(1)", "asyncio.sleep"),
        ("import asyncio as a\na.sleep(1)", "asyncio.sleep"),
        ("from asyncio import sleep\nsleep(1)", "asyncio.sleep"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("import time as t\nt.monotonic()", "time.monotonic"),
    ],
)
def test_the_walk_sees_every_way_to_read_time(source: str, name: str) -> None:
    assert name in [used for _, used in uses_of(_module(source))]


def test_a_docstring_does_not_make_a_function_long() -> None:
    function = ast.parse(
        'def f():\n    """One\n\n    Two.\n    """\n    return 1'
    ).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert _code_lines(function) == 2


@pytest.mark.req("house.security")
def test_no_finding_of_the_security_linter_is_hushed_up_as_a_whole() -> None:
    project = Path(__file__).parent.parent / "pyproject.toml"
    settings = tomllib.loads(project.read_text(encoding="utf-8"))
    assert settings["tool"]["bandit"] == {"skips": ["B101", "B310", "B311"]}
    wanted = settings["project"]["optional-dependencies"]["dev"]
    assert any(name.startswith("bandit[toml]") for name in wanted)
    bare = [
        f"{file}:{number}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if "nosec" in line and not re.search(r"# nosec B[0-9]{3} - \w", line)
    ]
    assert not bare, f"say which finding, and why it is none: {bare}"
