"""The commands as a command line, and what is the same for all of them."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import io
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from executionkit.cli._commands import COMMANDS, GROUPS, Command
from executionkit.cli._console import ConfigError, Console, Exit, UsageError
from executionkit.cli._job import Job, run_stoppable
from executionkit.errors import ExecutionKitError, MissingExtraError

if TYPE_CHECKING:
    from executionkit.cli._options import Option

__all__ = ("build", "run")

_HELP: Final = "Calls to language models and to tools, made reliable."
_EPILOG: Final = (
    "Exit codes: 0 done, 1 the result is a failure, 2 called in a wrong way, "
    "3 no provider is configured or a package is missing, 130 Ctrl-C."
)


def run(arguments: list[str], *, is_program: bool = True) -> int:
    """Run the command line; the exit code.

    Args:
        arguments: What stands after the program's name.
        is_program: Whether the process is there for this alone, and may be ended.
    """
    _open_streams()
    try:
        build(is_program=is_program)(arguments, prog_name="executionkit")
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(bool(exc.code))
    else:
        code = Exit.OK
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _forget_stdout()
        code = code or Exit.READER_GONE
    return int(code)


def _open_streams() -> None:
    """Streams that were closed lead nowhere, and all speak UTF-8."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream: Any = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            errors = "backslashreplace" if name == "stderr" else "strict"
            stream.reconfigure(encoding="utf-8", errors=errors)


def build(*, is_program: bool = True) -> Any:
    """The application, a `typer.Typer`; see `run`."""
    import typer

    settings: dict[str, Any] = {
        "no_args_is_help": True,
        "rich_markup_mode": None,
        "pretty_exceptions_enable": False,
        "add_completion": False,
    }
    app = typer.Typer(help=_HELP, epilog=_EPILOG, **settings)
    app.callback()(_callback(typer))
    places = {"": app}
    for name, text in GROUPS.items():
        places[name] = typer.Typer(help=text, **settings)
        app.add_typer(places[name], name=name)
    for command in COMMANDS:
        place = places[command.group]
        place.command(command.name, help=command.help)(
            _function(command, typer, is_program=is_program)
        )
    return app


def _callback(typer: Any) -> Callable[..., None]:
    def show(wanted: bool) -> None:  # noqa: FBT001 - the shape of a callback
        if wanted:
            from executionkit import __version__

            sys.stdout.write(f"{__version__}\n")
            raise typer.Exit

    def callback(**_values: Any) -> None:
        """Nothing; `--version` has its own function."""

    about: dict[str, Any] = {"callback": show, "is_eager": True}
    info = typer.Option(default=False, help="Show the version.", **about)
    return _signed(callback, {"version": (bool, info)}, _HELP)


def _signed(
    function: Callable[..., None], parameters: Mapping[str, tuple[Any, Any]], doc: str
) -> Callable[..., None]:
    """`function` with the signature that typer reads."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    made: Any = function
    made.__signature__ = inspect.Signature(
        [
            inspect.Parameter(name, keyword, default=default, annotation=kind)
            for name, (kind, default) in parameters.items()
        ]
    )
    made.__annotations__ = {name: kind for name, (kind, _) in parameters.items()}
    made.__doc__ = doc
    return function


def _function(command: Command, typer: Any, *, is_program: bool) -> Callable[..., None]:
    def call(**values: Any) -> None:
        code = execute(command, values, is_program=is_program)
        if code:
            raise typer.Exit(code)

    parameters = {
        item.name: (item.kind, _info(item, typer)) for item in command.options
    }
    return _signed(call, parameters, command.help)


def _info(item: Option, typer: Any) -> Any:
    about: dict[str, Any] = {"help": item.help, "metavar": item.metavar}
    if not item.flags:
        return typer.Argument(item.default, show_default=False, **about)
    shown = item.default is not None and item.kind is not bool
    return typer.Option(
        item.default, *item.flags, min=item.least, show_default=shown, **about
    )


def execute(
    command: Command, values: Mapping[str, Any], *, is_program: bool = True
) -> int:
    """Run one command; every failure becomes a line and a code."""
    console = Console(quiet=bool(values.get("quiet")))
    if values.get("verbose"):
        _log()
    job = Job(values, console, is_program=is_program)
    try:
        return int(run_stoppable(job, _start(command)))
    except BrokenPipeError:
        return Exit.READER_GONE
    except (UsageError, ConfigError, MissingExtraError) as exc:
        usage = isinstance(exc, UsageError)
        return _fail(job, exc, Exit.USAGE if usage else Exit.CONFIG)
    except ExecutionKitError as exc:
        bad = isinstance(exc, (TypeError, ValueError))
        return _fail(job, exc, Exit.USAGE if bad else Exit.FAILED)
    except (TypeError, ValueError) as exc:
        return _fail(job, exc, Exit.USAGE)
    except (OSError, asyncio.CancelledError) as exc:
        return _fail(job, exc, Exit.FAILED)


def _start(command: Command) -> Callable[[Job], Any]:
    def start(job: Job) -> Any:
        module = importlib.import_module(f"executionkit.cli.{command.module}")
        return getattr(module, command.function)(job)

    return start


def _fail(job: Job, exc: BaseException, code: Exit) -> int:
    """Say what went wrong, and what it cost."""
    name = type(exc).__name__
    text = str(exc) or name
    if code is Exit.FAILED:
        text = f"{name}: {text}"
    spent = exc.cost if isinstance(exc, ExecutionKitError) else job.meter.usage()
    if spent.llm_calls:
        text += f" ({job.meter.words(spent)})"
    job.console.error(f"executionkit: {text}")
    if job.wants_json and code is not Exit.USAGE:
        error: dict[str, Any] = {"type": name, "message": str(exc)}
        if isinstance(exc, ExecutionKitError):
            error |= {"code": str(exc.code), "retryable": exc.retryable}
            error["metadata"] = dict(exc.metadata)
        with suppress(BrokenPipeError):
            found = {"error": job.console.clean(error), "cost": job.meter.json(spent)}
            job.console.json(found)
    return code


def _log() -> None:
    import logging

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("executionkit")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)


def _forget_stdout() -> None:
    """Nobody reads: what is still in the buffer must not be written at exit."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
