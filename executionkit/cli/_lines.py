"""Reading and writing JSON lines of any length of file, in bounded memory."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from array import array
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import IO, Any, Final, Self

from executionkit.cli._console import UsageError, as_json

__all__ = (
    "Done",
    "LineError",
    "OutputFile",
    "count_lines",
    "is_same_file",
    "prompt_of",
    "read_json_line",
    "read_lines",
)

_FIELD: Final = re.compile(r"\{(\w+)\}")
_BLOCK: Final = 1 << 16
_KEY_BITS: Final = 60


class Done:
    """Which lines are done, and what was asked for them: 8 bytes for each."""

    def __init__(self) -> None:
        self._keys = array("Q")

    def add(self, index: int, key: str) -> None:
        """Line `index` (from 0) is done; `key` stands for what was asked."""
        missing = index + 1 - len(self._keys)
        if missing > 0:
            self._keys.frombytes(bytes(8 * missing))
        # 0 stands for "not done"; keys have 60 bits.
        self._keys[index] = int(key, 16) + 1

    def key_of(self, index: int) -> str | None:
        """What was asked for line `index`; None = it is not done."""
        kept = self._keys[index] if index < len(self._keys) else 0
        return None if kept == 0 else f"{kept - 1:015x}"


def count_lines(name: str | None) -> int | None:
    """Lines of a file that hold something; None = nobody knows (standard input).

    Raises:
        UsageError: When it cannot be read.
    """
    if name is None or name == "-":
        return None
    try:
        with Path(name).open("rb") as file:
            if not Path(name).is_file():
                return None  # a pipe with a name
            return sum(1 for line in file if line.strip())
    except OSError as exc:
        msg = f"`{name}` cannot be read: {exc}"
        raise UsageError(msg) from exc


def is_same_file(one: str | None, other: str | None) -> bool:
    """Whether both names mean one file, by whatever links."""
    if not (one and other):
        return False
    if Path(one).resolve() == Path(other).resolve():
        return True
    try:
        return Path(one).samefile(other)
    except OSError:  # one of them is not there
        return False


async def read_lines(name: str | None) -> AsyncGenerator[str]:
    """The lines of a file, or of standard input as they come.

    A byte order mark at the start is no part of them.

    Raises:
        UsageError: When it is no UTF-8.
    """
    is_first = True
    async for line in _lines(name):
        yield line.removeprefix("\ufeff") if is_first else line
        is_first = False


async def _lines(name: str | None) -> AsyncGenerator[str]:
    from executionkit._threads import run_in_thread

    if name is not None and name != "-":
        with Path(name).open("rb") as file:  # noqa: ASYNC230 - lines of a local file
            for line in file:
                yield _text(line)
        return
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError, io.UnsupportedOperation):  # not a real stream
        for text in sys.stdin:
            yield text
        return
    rest = b""
    # Past the buffer of `sys.stdin`: a thread that holds its lock would keep the
    # process from ending.
    while block := await run_in_thread(os.read, descriptor, _BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield _text(line)
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as exc:
        msg = f"the input is no UTF-8: {exc}"
        raise UsageError(msg) from exc


def _lock(file: IO[Any]) -> None:
    """Hold `file` until it is closed, also by the end of the process.

    Raises:
        UsageError: When another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # not on this system
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        msg = f"another process is writing to `{file.name}`; each line would be paid twice"
        raise UsageError(msg) from exc
    except OSError:  # not on this file system
        return


class OutputFile:
    """The file that results go to; each line is there before the next call ends.

    Args:
        name: Where.
        resume: Whether to go on with what is there.
        overwrite: Whether to replace what is there.
        retry_errors: Whether lines with an error count as not done.

    Raises:
        UsageError: When the file is there and neither is wanted, or it cannot be used.
    """

    def __init__(
        self, name: str, *, resume: bool, overwrite: bool, retry_errors: bool
    ) -> None:
        self._path = Path(name)
        self._file: IO[str] | None = None
        self.done = Done()
        self._size: int | None = None
        self._seen = 0
        self._aside = _Aside(self._path, keep=resume, with_errors=not retry_errors)
        try:
            if self._path.is_dir():
                msg = f"`{name}` is a folder, not a file"
                raise UsageError(msg)
            there = self._path.exists() and self._path.stat().st_size > 0
            if there and self._path.is_file():
                with self._path.open("rb") as file:
                    _lock(file)  # somebody else may be at it
            if there and resume:
                if retry_errors:
                    self._drop_errors()
                self._size = self._read()
                self._seen = self._path.stat().st_size
            elif (
                not (resume or overwrite)
                and (there or self._aside.is_there)
                and self._path.is_file()
            ):
                msg = (
                    f"`{name}` is there already; give --resume to go on with it, or "
                    "--overwrite to replace it"
                )
                raise UsageError(msg)
            elif not self._path.parent.is_dir():
                msg = f"the folder of `{name}` is not there"
                raise UsageError(msg)
        except OSError as exc:
            msg = f"`{name}` cannot be used: {exc}"
            raise UsageError(msg) from exc

    def _drop_errors(self) -> None:
        """Leave only the lines that have an output."""
        rest = self._path.with_name(self._path.name + ".part")
        with self._path.open("rb") as old, rest.open("wb") as new:
            for number, line in enumerate(old, 1):
                if line.endswith(b"\n") and "error" not in self._row(number, line):
                    new.write(line)
            new.flush()
            os.fsync(new.fileno())
        rest.replace(self._path)

    def _read(self) -> int:
        """Note what is done; the size of the lines that are whole."""
        size = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break  # the process ended in the middle of it
                size += len(line)
                row = self._row(number, line)
                self.done.add(row["index"], row["key"])
        return size

    def _row(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            row: Any = json.loads(line)
            if row["index"] >= 0 and int(row["key"], 16) >> _KEY_BITS == 0:
                return dict(row)
            problem: object = "the key or the index is out of range"
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            problem = repr(exc)
        msg = (
            f"line {number} of `{self._path}` was not written by `map` ({problem}); "
            "write to another file"
        )
        raise UsageError(msg)

    def __enter__(self) -> Self:
        self._file = self._path.open("a", encoding="utf-8", newline="\n")
        try:
            _lock(self._file)
            self._cut()
            if self._path.is_file():
                self._aside.open(self.done)
        except BaseException:
            self._file.close()
            raise
        return self

    def _cut(self) -> None:
        """Leave what is to be kept, and nothing else."""
        if self._size is not None and self._path.stat().st_size != self._seen:
            msg = f"`{self._path}` has changed since it was read; run again"
            raise UsageError(msg)
        if self._path.is_file():
            os.truncate(self._path, self._size or 0)

    def __exit__(self, *_exc: object) -> None:
        self._aside.close()
        if self._file is not None:
            self._file.close()

    def write(self, text: str) -> None:
        """A line; with the operating system when this returns."""
        if self._file is not None:
            self._file.write(text + "\n")
            self._file.flush()

    @property
    def aside(self) -> dict[int, dict[str, Any]]:
        """Lines that a killed run had put aside; take out what is written or useless."""
        return self._aside.rows

    def put_aside(self, text: str) -> None:
        """Keep a line that waits for an earlier one, should the process be killed."""
        self._aside.write(text)

    def nothing_waits(self) -> None:
        """All that was put aside is written."""
        self._aside.clear()


class _Aside:
    """A file beside the output, with the lines that wait for an earlier one.

    It is there only while a run is at work, and after one that was killed.
    """

    def __init__(self, output: Path, *, keep: bool, with_errors: bool) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self._path = Path(f"{output}.map-waiting")
        self._keep = keep
        self._with_errors = with_errors
        self._file: IO[str] | None = None
        self._is_open = self._is_empty = False

    @property
    def is_there(self) -> bool:
        return self._path.is_file() and self._path.stat().st_size > 0

    def open(self, done: Done) -> None:
        """Read what an earlier run has left and `done` has not."""
        self._is_open = True
        if not self._path.is_file():
            return
        if not self._keep:
            self._path.unlink()
            return
        with self._path.open("rb") as file:
            for line in file:
                row = _row_of(line)
                if row is None or done.key_of(row["index"]) is not None:
                    continue
                if self._with_errors or "error" not in row:
                    self.rows[row["index"]] = row

    def write(self, text: str) -> None:
        if not self._is_open:  # the output is no file that could be gone on with
            return
        if self._file is None:
            # On a line of its own, should the last run have ended within one.
            self._file = self._path.open("a", encoding="utf-8", newline="\n")
            if self.is_there:
                self._file.write("\n")
        self._file.write(text + "\n")
        self._file.flush()
        self._is_empty = False

    def clear(self) -> None:
        if self._file is not None and not self._is_empty:
            self._file.truncate(0)
            self._is_empty = True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._is_open and not self.rows and (self._file is None or self._is_empty):
            self._path.unlink(missing_ok=True)


def _row_of(line: bytes) -> dict[str, Any] | None:
    try:
        row: Any = json.loads(line)
        if row["index"] >= 0 and int(row["key"], 16) >> _KEY_BITS == 0:
            return dict(row)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # the process ended in the middle of it
    return None


class LineError(Exception):
    """A line of which no prompt can be made."""


def read_json_line(line: str) -> Any:
    """The value of a line.

    Raises:
        LineError: When it is no JSON.
    """
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as exc:
        msg = f"the line is no JSON: {exc}"
        raise LineError(msg) from exc


def prompt_of(given: Any, line: str, template: str | None) -> str:
    """The prompt that a line stands for.

    Args:
        given: The line's value.
        line: As it was written.
        template: With `{field}` and `{line}`; None = the field `prompt`, or a text.

    Raises:
        LineError: When there is none.
    """
    if template is None:
        found = given.get("prompt") if isinstance(given, dict) else given
        if isinstance(found, str) and found.strip():
            return found
        msg = "the line is no text and has no field `prompt`; give --prompt TEMPLATE"
        raise LineError(msg)

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if isinstance(given, dict) and name in given:
            value = given[name]
        elif name == "line":
            value = given if isinstance(given, str) else line.strip()
        else:
            msg = f"the line has no field `{name}`, which the template asks for"
            raise LineError(msg)
        return value if isinstance(value, str) else as_json(value)

    return _FIELD.sub(fill, template)
