"""Functions around a tool's own: one object per call, and a check of what it gives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from executionkit._error_base import text_of
from executionkit.errors import ToolExecutionError, ToolValidationError
from executionkit.tools._record import Kind

__all__ = ("FreshMethod", "ModelResult", "OneArgument", "wrap")

Finish = Callable[[Any], Any]


class FreshMethod:
    """Makes an object of a class and gives its method: what a class is called by.

    Args:
        cls: The class; made without arguments.
        method: The method's name.
        name: The tool's name, for errors.
    """

    __slots__ = ("_cls", "_method", "_name")

    def __init__(self, cls: type, method: str, name: str) -> None:
        self._cls = cls
        self._method = method
        self._name = name

    def __call__(self) -> Callable[..., Any]:
        """The method of a new object.

        Raises:
            ToolExecutionError: When the constructor raised.
        """
        try:
            made = self._cls()
        except Exception as exc:
            error = ToolExecutionError(self._name, exc, {"stage": "setup"})
            error.args = (f"Setup error: {text_of(exc)}",)
            raise error from exc
        method: Callable[..., Any] = getattr(made, self._method)
        return method


class OneArgument:
    """Gives all arguments as one dict, as `invoke` of chain libraries wants them."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self) -> Callable[..., Any]:
        """A function of keywords."""
        return self._call

    def _call(self, /, **arguments: Any) -> Any:
        return self._function(arguments)


class ModelResult:
    """Checks a tool's value with its `Result` model, and gives it as plain data.

    Args:
        model: A class with `model_validate`.
        name: The tool's name, for errors.
    """

    __slots__ = ("_model", "_name")

    def __init__(self, model: Any, name: str) -> None:
        self._model = model
        self._name = name

    def __call__(self, value: Any) -> Any:
        """The data of `value`.

        Raises:
            ToolValidationError: When it does not fit.
        """
        if not isinstance(value, self._model):
            given = dict(value) if isinstance(value, Mapping) else value
            try:
                value = self._model.model_validate(given)
            except ValueError as exc:
                raise ToolValidationError(
                    self._name, _problems(exc), validation_type="result"
                ) from exc
        return value.model_dump(mode="json")


def _problems(exc: ValueError) -> list[str]:
    errors: Any = getattr(exc, "errors", None)
    if not callable(errors):
        return [text_of(exc)]
    found: Any = errors()
    return [
        f"{'.'.join(str(step) for step in item['loc'])}: {item['msg']}"
        for item in found
    ]


class _Wrapped:
    __slots__ = ("_finish", "_get")

    def __init__(self, get: Callable[[], Any], finish: Finish | None) -> None:
        self._get = get
        self._finish = finish

    def _done(self, value: Any) -> Any:
        return value if self._finish is None else self._finish(value)


class _Async(_Wrapped):
    __slots__ = ()

    async def __call__(self, /, **arguments: Any) -> Any:
        return self._done(await self._get()(**arguments))


class _Sync(_Wrapped):
    __slots__ = ()

    def __call__(self, /, **arguments: Any) -> Any:
        return self._done(self._get()(**arguments))


class _AsyncStream(_Wrapped):
    __slots__ = ()

    async def __call__(self, /, **arguments: Any) -> AsyncIterator[Any]:
        items = self._get()(**arguments)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()


class _SyncStream(_Wrapped):
    __slots__ = ()

    def __call__(self, /, **arguments: Any) -> Iterator[Any]:
        yield from self._get()(**arguments)


_WRAPPERS: Mapping[Kind, type[_Wrapped]] = {
    Kind.ASYNC: _Async,
    Kind.SYNC: _Sync,
    Kind.ASYNC_STREAM: _AsyncStream,
    Kind.SYNC_STREAM: _SyncStream,
}


class _Given:
    """Always the same function."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self) -> Callable[..., Any]:
        return self._function


def wrap(
    kind: Kind,
    get: Callable[[], Callable[..., Any]] | None,
    function: Callable[..., Any],
    finish: Finish | None = None,
) -> Callable[..., Any]:
    """What is called for a tool: `function` itself where nothing is around it.

    Args:
        kind: How it is run; the wrapper is of the same kind.
        get: Gives the function for one call; None = it is `function`.
        function: The function.
        finish: Applied to what comes out; streams are left as they are.
    """
    if get is None and (
        finish is None or kind in (Kind.ASYNC_STREAM, Kind.SYNC_STREAM)
    ):
        return function
    made: Any = _WRAPPERS[kind](get or _Given(function), finish)
    return made  # type: ignore[no-any-return]
