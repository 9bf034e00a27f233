"""In a worker: from the pickle of a tool to its functions."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import pickle  # nosec B403 - the parent's own
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ("BY_NAME", "IMPORTS_MAIN", "MAIN_TWIN", "find", "load", "stand_in_for_main")

MAIN_TWIN: Final = "__mp_main__"
"""What the main script is called in a worker, as in `multiprocessing`: it must not
take itself for the main script."""

IMPORTS_MAIN: Final = "EXECUTIONKIT_WORKER_IMPORTS_MAIN"
"""In the environment while the main script is imported."""

BY_NAME: Final = "name:"


def find(module: str, qualname: str, attribute: str) -> Any:
    """What is called `module.qualname.attribute`."""
    thing: Any = importlib.import_module(module)
    for part in (*qualname.split("."), attribute):
        thing = getattr(thing, part)
    return thing


class _Files:
    """Finds modules that the parent has and that no path leads to."""

    # No `importlib.abc.MetaPathFinder`: that module takes longer to import than all else.

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = dict(files)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the protocol's
        target: ModuleType | None = None,  # noqa: ARG002 - the protocol's
    ) -> importlib.machinery.ModuleSpec | None:
        file = self.files.get(fullname)
        if file is not None:
            return importlib.util.spec_from_file_location(fullname, file)
        if any(name.startswith(f"{fullname}.") for name in self.files):
            return importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        return None


def load(payload: bytes, files: Mapping[str, str]) -> Any:
    """(function, its streaming form or None) of a tool.

    Args:
        payload: The pickle of both.
        files: Where modules are that may not be found by name.

    Raises:
        Exception: Whatever importing the tool's module raises.
    """
    if files:
        finder = next(
            (item for item in sys.meta_path if isinstance(item, _Files)), None
        )
        if finder is None:
            sys.meta_path.append(finder := _Files({}))
        finder.files.update(files)
    return pickle.loads(payload)  # noqa: S301 # nosec B301 - the parent's own


class _Main(ModuleType):
    """Stands where the main script is, and imports it when something of it is needed."""

    def __init__(self, where: str) -> None:
        super().__init__("__main__")
        self.__dict__["_where"] = where

    def __getattr__(self, name: str) -> Any:
        where = self.__dict__.pop("_where", None)
        if where is None or name.startswith("__"):
            if where is not None:
                self.__dict__["_where"] = where
            msg = f"the main script has no {name!r}"
            raise AttributeError(msg)
        self.__dict__.update(_main_script(where))
        return getattr(self, name)


def _main_script(where: str) -> dict[str, Any]:
    import runpy

    os.environ[IMPORTS_MAIN] = "1"
    try:
        if where.startswith(BY_NAME):
            name = where.removeprefix(BY_NAME)
            return runpy.run_module(name, run_name=MAIN_TWIN, alter_sys=True)
        return runpy.run_path(where, run_name=MAIN_TWIN)
    finally:
        del os.environ[IMPORTS_MAIN]


def stand_in_for_main(where: str) -> None:
    """Let pickles of things in the main script find them.

    Args:
        where: Its path, or `name:` and its dotted name; empty = it has none.
    """
    if where:
        sys.modules["__main__"] = sys.modules[MAIN_TWIN] = _Main(where)
