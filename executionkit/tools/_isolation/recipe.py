"""How a tool and its calls get into a worker: worked out once per tool."""

from __future__ import annotations

import functools
import pickle  # nosec B403 - for our own child
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from executionkit._error_base import text_of
from executionkit.observability import carried_context
from executionkit.tools._isolation import protocol
from executionkit.tools._isolation.errors import SerializationError
from executionkit.tools._isolation.loading import BY_NAME, MAIN_TWIN, find

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextvars import ContextVar

    from executionkit.tools._isolation.limits import Bounds
    from executionkit.tools._record import ToolRecord
    from executionkit.tools.middleware._base import ToolRequest

__all__ = ("Recipe", "where_main_is")

_REMEDY: Final = (
    "a worker process imports a tool by its name: define its function or class at the "
    "top level of a module, give an object only parts that can be pickled, or run this "
    "tool with InProcessStrategy"
)
_NO_MAIN: Final = (
    "it is defined in an interactive session or a script without a file, which a worker "
    "cannot import; move it to a module"
)
_WRAPPERS: Final = ("execute", "__wrapped__", "func", "fn")


class Recipe:
    """What a worker needs to run one tool.

    Args:
        record: The tool.
        bounds: Limits of the system around each call; None = none.
        variables: Context variables that travel with a call, by import path.
        tell_size: Whether the worker says how much memory it has after each call.
    """

    __slots__ = (
        "_bounds",
        "_key",
        "_payload",
        "_record",
        "_tell_size",
        "_variables",
        "files",
        "name",
    )

    def __init__(
        self,
        record: ToolRecord,
        bounds: Bounds | None = None,
        variables: Mapping[str, ContextVar[Any]] | None = None,
        *,
        tell_size: bool = False,
    ) -> None:
        self._record = record
        self._bounds = bounds
        self._variables = variables or {}
        self._tell_size = tell_size
        self._payload: bytes | None = None
        self._key = 0
        self.name: str = record.full_name
        self.files: dict[str, str] = {}
        """Where the tool's modules are, for a worker whose paths do not lead there."""

    def payload(self) -> bytes:
        """The pickle of the tool's functions, made once.

        Raises:
            SerializationError: When a worker could not load it: why, and what to do.
        """
        if self._payload is None:
            record = self._record
            parts = (record.tool.execute, record.stream)
            try:
                payload = self._pickled(parts)
            except Exception as exc:
                raise SerializationError(
                    self.name, "tool", text_of(exc), _REMEDY
                ) from exc
            if b"__main__" in payload:
                if not where_main_is():
                    raise SerializationError(self.name, "tool", _NO_MAIN)
                # What comes back names the main script as the worker does.
                sys.modules.setdefault(MAIN_TWIN, sys.modules["__main__"])
            self.files = _files_of(record)
            self._payload = payload
        return self._payload

    def _pickled(self, parts: tuple[Any, Any]) -> bytes:
        try:
            return pickle.dumps(parts)
        except Exception:
            # A decorator may have put something else under the function's name.
            found = _by_name(parts[0])
            if found is None or parts[1] is not None:
                raise
            return pickle.dumps((found, None))

    def frame(self, key: int, request: ToolRequest) -> list[Any]:
        """The parts of the frame that makes a worker run `request`.

        Raises:
            SerializationError: When an argument cannot be sent.
        """
        streams = self._record.stream is not None and request.emit is not None
        context = carried_context()
        told: Any = None
        if context is not None or self._variables or self._bounds is not None:
            told = (context, self._values(), self._bounds)
        body = (key, streams, request.arguments or {}, told, self._tell_size)
        try:
            return protocol.pack(protocol.CALL, body)
        except Exception as exc:
            raise SerializationError(self.name, "arguments", text_of(exc)) from exc

    def _values(self) -> dict[str, Any] | None:
        missing = object()
        found = {
            path: value
            for path, variable in self._variables.items()
            if (value := variable.get(missing)) is not missing
        }
        return found or None


class _ByName:
    """Is unpickled as what its name means there."""

    def __init__(self, module: str, qualname: str, attribute: str) -> None:
        self._parts = (module, qualname, attribute)

    def __reduce__(self) -> tuple[Any, ...]:
        return find, self._parts


def _by_name(function: Any) -> _ByName | None:
    """A function whose name means an object around it, by the way through that."""
    module = getattr(function, "__module__", None)
    qualname = getattr(function, "__qualname__", None)
    if not module or not qualname:
        return None
    for attribute in _WRAPPERS:
        try:
            if find(module, qualname, attribute) is function:
                return _ByName(module, qualname, attribute)
        except (ImportError, AttributeError):
            continue
    return None


def _files_of(record: ToolRecord) -> dict[str, str]:
    """The files of the modules that a tool comes from, by the modules' names."""
    files: dict[str, str] = {}
    for thing in (record.source, record.tool.execute, record.stream):
        behind: Any = thing
        while isinstance(behind, functools.partial):
            behind = behind.func
        for item in (behind, getattr(behind, "__self__", None), type(behind)):
            name = getattr(item, "__module__", None)
            file = getattr(sys.modules.get(name or ""), "__file__", None)
            if name and name != "__main__" and file:
                files[name] = str(Path(file).resolve())
    return {
        name: file
        for name, file in files.items()
        if name.partition(".")[0] not in sys.stdlib_module_names
    }


def where_main_is() -> str:
    """How a worker finds the main script; empty = it cannot."""
    main: Any = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name:
        return f"{BY_NAME}{name}"
    file = getattr(main, "__file__", None)
    return str(Path(file).resolve()) if file and Path(file).is_file() else ""
