"""What the package offers: every list of public names is true, sorted and described."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import executionkit

if TYPE_CHECKING:
    from types import ModuleType

PACKAGE = Path(executionkit.__file__).parent

# Modules that cannot be imported without an extra: name -> the extra's module.
NEEDS: dict[str, str] = {}

# Names that need no words of their own.
SELF_EXPLAINING = frozenset({"__version__"})


def module_names() -> list[str]:
    names: list[str] = []
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        if parts[-1] != "__main__":
            names.append(".".join(part for part in parts if part != "__init__"))
    return names


def is_public(name: str) -> bool:
    return not any(part.startswith("_") for part in name.split("."))


def load(name: str) -> ModuleType:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    return importlib.import_module(name)


every_module = pytest.mark.parametrize("name", module_names())
public_modules = pytest.mark.parametrize(
    "name", [name for name in module_names() if is_public(name)]
)


def sort_key(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Constants, then classes, then the rest; numbers inside by value."""
    constant = len(name) > 1 and name == name.upper()
    kind = 0 if constant else 1 if name[:1].isupper() else 2
    parts = re.findall(r"\d+|\D+", name)
    return kind, [(int(p), "") if p.isdigit() else (0, p) for p in parts]


def exported(module: ModuleType) -> tuple[str, ...]:
    names: object = module.__all__
    assert isinstance(names, tuple), f"`__all__` of {module.__name__} is not a tuple"
    assert all(isinstance(name, str) for name in names)
    return names


@cache
def constants(module_name: str) -> dict[str, bool]:
    """Names assigned at the top of a module: name -> a string stands below it."""
    source = importlib.import_module(module_name).__file__
    assert source is not None
    body = ast.parse(Path(source).read_text(encoding="utf-8")).body
    found: dict[str, bool] = {}
    for node, after in pairwise([*body, ast.Pass()]):
        text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        for target in targets:
            found[ast.unparse(target)] = text or found.get(ast.unparse(target), False)
    return found


def own_doc(value: object) -> str | None:
    """The words somebody wrote for it: not inherited, not made by `@dataclass`."""
    doc = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
    if not isinstance(doc, str) or not doc.strip():
        return None
    made = isinstance(value, type) and doc.startswith(f"{value.__name__}(")
    return None if made else doc


@pytest.mark.req("house.exports")
@public_modules
def test_a_public_module_lists_its_names(name: str) -> None:
    names = exported(load(name))
    assert len(set(names)) == len(names)


@pytest.mark.req("house.exports")
@every_module
def test_the_list_is_sorted_and_true(name: str) -> None:
    module = load(name)
    if not hasattr(module, "__all__"):
        assert not is_public(name)
        return
    names = exported(module)
    # The root computes its list; every other one is read, and sorted by the linter.
    order = sorted(names) if module is executionkit else sorted(names, key=sort_key)
    assert names == tuple(order)
    missing = [item for item in names if not hasattr(module, item)]
    assert not missing, f"{name} lists names that it does not have: {missing}"


@pytest.mark.req("house.exports")
@public_modules
def test_what_a_public_module_defines_is_listed_or_private(name: str) -> None:
    module = load(name)
    names = exported(module)
    unlisted = [
        key
        for key, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == name
        and not key.startswith("_")
        and key not in names
    ]
    assert not unlisted, f"{name} defines, and does not list: {unlisted}"


@pytest.mark.req("house.docstrings")
@public_modules
def test_every_listed_name_is_described(name: str) -> None:
    module = load(name)
    bare: list[str] = []
    for item in set(exported(module)) - SELF_EXPLAINING:
        value: object = getattr(module, item)
        if inspect.isclass(value) or inspect.isfunction(value):
            described = own_doc(value) is not None
        else:
            described = constants(name).get(item, True)
        if not described:
            bare.append(item)
    assert not bare, f"{name}: no docstring for {sorted(bare)}"


@pytest.mark.req("house.docstrings")
@every_module
def test_every_module_is_described(name: str) -> None:
    assert own_doc(load(name)), f"{name} has no docstring"


@pytest.mark.req("house.exports")
def test_the_root_gives_every_name_it_lists() -> None:
    names = exported(executionkit)
    assert names
    for name in names:
        assert getattr(executionkit, name) is not None
    assert set(names) <= set(dir(executionkit))


@pytest.mark.req("house.exports")
def test_type_checkers_see_the_same_names_from_the_same_places() -> None:
    """The root loads lazily, so it lists its names twice: once for type checkers."""
    tree = ast.parse(Path(executionkit.__file__).read_text(encoding="utf-8"))
    guarded = [node for node in tree.body if isinstance(node, ast.If)]
    seen: dict[str, str] = {}
    for node in guarded:
        assert ast.unparse(node.test) == "TYPE_CHECKING"
        for item in node.body:
            assert isinstance(item, ast.ImportFrom)
            assert item.module
            for alias in item.names:
                assert alias.asname in {None, alias.name}
                seen[alias.name] = item.module
    assert set(seen) == set(executionkit.__all__) - SELF_EXPLAINING
    for name, module in seen.items():
        home = importlib.import_module(module)
        assert getattr(executionkit, name) is getattr(home, name)
        assert name in exported(home)


@pytest.mark.req("house.exports")
def test_the_root_refuses_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = getattr(executionkit, "no_such_name")  # noqa: B009 - mypy knows better


@pytest.mark.req("house.exports")
def test_a_star_import_brings_exactly_the_list() -> None:
    code = (
        "import executionkit as e; n = {}; exec('from executionkit import *', n);"
        "n.pop('__builtins__'); assert set(n) == set(e.__all__), set(n) ^ set(e.__all__)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_sort_key_is_the_linter_s() -> None:
    names = ["A10", "MAX_A", "MAX_B", "Alpha", "MCPError", "T", "a", "thaw"]
    assert names == sorted(names, key=sort_key)
    assert sorted(["Al10", "Al9"], key=sort_key) == ["Al9", "Al10"]


def test_inherited_and_generated_words_do_not_count() -> None:
    from dataclasses import dataclass

    class Parent:
        """Words."""

    class Child(Parent):
        pass

    @dataclass
    class Value:
        a: int

    assert own_doc(Parent) == "Words."
    assert own_doc(Child) is None
    assert own_doc(Value) is None
