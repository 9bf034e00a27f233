"""`map`: a call for each line of JSON lines."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from executionkit.cli._ask import asking, call_options, provider_of
from executionkit.cli._console import Exit, UsageError, as_json
from executionkit.cli._lines import (
    Done,
    LineError,
    OutputFile,
    count_lines,
    is_same_file,
    prompt_of,
    read_json_line,
    read_lines,
)
from executionkit.errors import (
    BudgetExhaustedError,
    DeadlineExceededError,
    ExecutionKitError,
    MissingExtraError,
    PermanentError,
    RequestTooLargeError,
)

if TYPE_CHECKING:
    from executionkit.cli._job import Job
    from executionkit.cli._progress import Progress

__all__ = ("run_map",)

_HOPELESS: Final = frozenset({401, 402, 404})
_KEY_CHARS: Final = 15
"""Of a hash in hexadecimal: as much as fits into 64 bits."""


@dataclass(frozen=True, slots=True)
class _Item:
    """One line, and what is asked for it."""

    index: int
    key: str
    given: Any
    prompt: str = ""
    problem: str = ""
    row: dict[str, Any] | None = None
    """What a run that was killed had got for it already."""

    @property
    def head(self) -> dict[str, Any]:
        """What its line of output begins with."""
        found: dict[str, Any] = {"index": self.index}
        if isinstance(self.given, dict) and "id" in self.given:
            found["id"] = self.given["id"]
        return found


class _Counts:
    """How far it has come."""

    def __init__(self) -> None:
        self.skipped = self.done = self.failed = 0
        self.ended_by: BaseException | None = None

    def words(self, total: int | None) -> str:
        of = "" if total is None else f" of {total}"
        text = f"{self.done + self.skipped}{of} lines done"
        if self.skipped:
            text += f" ({self.skipped} before)"
        return f"{text}, {self.failed} failed" if self.failed else text


def run_map(job: Job) -> Coroutine[Any, Any, int]:
    """See the table of commands."""
    from executionkit.cli._patterns import checked_schema

    schema = None if job["schema"] is None else checked_schema(job["schema"])
    if job["resume"] and job["output"] is None:
        msg = "`--resume` needs `--output FILE`, the file to go on with"
        raise UsageError(msg)
    if job["retry_errors"] and not job["resume"]:
        msg = "`--retry-errors` needs `--resume`"
        raise UsageError(msg)
    if is_same_file(job["input"], job["output"]):
        msg = "the output file is the input file; write to another one"
        raise UsageError(msg)
    total = count_lines(job["input"])
    options, provider = call_options(job), provider_of(job)
    output = None
    if job["output"] is not None:
        output = OutputFile(
            job["output"],
            resume=job["resume"],
            overwrite=job["overwrite"],
            retry_errors=job["retry_errors"],
        )
    return _Run(job, schema, options, output, total).go(provider)


class _Run:
    """One run of `map`."""

    def __init__(
        self,
        job: Job,
        schema: Any,
        options: dict[str, Any],
        output: OutputFile | None,
        total: int | None,
    ) -> None:
        from executionkit.cost import CostTracker

        self._job = job
        self._schema = schema
        self._options = options
        self._output = output
        self._total = total
        self._counts = _Counts()
        self._tracker = CostTracker()
        self._done = Done() if output is None else output.done
        job.meter.spent = self._tracker.to_usage
        job.meter.done = lambda: self._counts.words(total)

    async def go(self, provider: Any) -> int:
        from executionkit.cli._progress import Progress

        job = self._job
        output = self._output
        write = job.console.result if output is None else output.write
        with (
            output or nullcontext(),
            Progress(job.console, job.meter, self._total) as progress,
        ):
            async with asking(job, provider) as ready:
                await self._ask_all(ready, write, progress)
        return self._end()

    async def _ask_all(
        self, provider: Any, write: Callable[[str], None], progress: Progress
    ) -> None:
        from executionkit.engine.parallel import map_bounded

        counts, waiting = self._counts, _Waiting(self._output)
        is_ordered = not self._job["unordered"]

        def keep(row: dict[str, Any]) -> None:
            write(as_json(row))
            counts.done += 1
            counts.failed += "error" in row
            waiting.written(row["index"])

        async def one(item: _Item) -> dict[str, Any]:
            waiting.asked(item.index)
            row = item.row or await self._ask(provider, item)
            waiting.answered(row, may_wait=is_ordered and item.row is None)
            return row

        outcomes = map_bounded(
            one, self._items(progress), self._job["concurrency"], ordered=is_ordered
        )
        try:
            async with aclosing(outcomes):
                async for _, outcome in outcomes:
                    if isinstance(outcome, BaseException):
                        if not isinstance(outcome, ExecutionKitError):
                            raise outcome  # noqa: TRY301 - after what was paid is kept
                        counts.ended_by = outcome
                        break
                    keep(outcome)
                    progress.show(counts.skipped + counts.done, counts.failed)
        except OSError:
            raise  # nothing more can be written
        except BaseException:
            waiting.keep_all(keep)
            raise
        waiting.keep_all(keep)

    async def _items(self, progress: Progress) -> AsyncGenerator[_Item]:
        index = -1
        lines = read_lines(self._job["input"])
        async with aclosing(lines):
            async for line in lines:
                if not line.strip():
                    continue
                index += 1
                item = _item(index, line, self._job["template"])
                known = self._done.key_of(index)
                if known is None:
                    yield self._with_what_is_known(item)
                    continue
                if known != item.key:
                    msg = (
                        f"line {index + 1} asks for something else than the output file "
                        "was made for; write to another file"
                    )
                    raise UsageError(msg)
                self._counts.skipped += 1
                progress.skip(self._counts.skipped)

    def _with_what_is_known(self, item: _Item) -> _Item:
        aside = {} if self._output is None else self._output.aside
        row = aside.get(item.index)
        if row is None:
            return item
        if row["key"] != item.key:
            del aside[item.index]  # of another question
            return item
        return replace(item, row=row)

    async def _ask(self, provider: Any, item: _Item) -> dict[str, Any]:
        """The line of output for `item`.

        Raises:
            ExecutionKitError: For what would meet every other line as well.
        """
        from executionkit.cost import CostTracker

        tracker = CostTracker()
        found = item.head
        try:
            if item.problem:
                found["error"] = {"type": "LineError", "message": item.problem}
            else:
                found["output"] = await self._reply(provider, item.prompt, tracker)
        except ExecutionKitError as exc:
            if _is_hopeless(exc):
                raise
            found["error"] = self._job.console.clean(
                {
                    "type": type(exc).__name__,
                    "code": str(exc.code),
                    "message": str(exc),
                    "retryable": exc.retryable,
                }
            )
        found["cost"] = self._job.meter.json(tracker.to_usage())
        found["key"] = item.key
        return found

    async def _reply(self, provider: Any, prompt: str, own: Any) -> Any:
        from executionkit.patterns._call import checked_complete

        options = dict(self._options)
        budget, retry = options.pop("max_cost"), options.pop("retry")
        del options["trace"]
        before = self._tracker

        async def complete(messages: Any, **more: Any) -> Any:
            return await checked_complete(
                provider, messages, before, budget, retry, **more
            )

        counted = _Counted(provider, complete, own)
        if self._schema is not None:
            from executionkit.engine.retry import RetryConfig
            from executionkit.patterns import structured

            once = RetryConfig(max_retries=0)
            result = await structured(
                counted, prompt, schema=self._schema, retry=once, **options
            )
            return result.value
        response = await counted.complete(
            [{"role": "user", "content": prompt}], **options
        )
        return response.content

    def _end(self) -> int:
        job, counts = self._job, self._counts
        words = f"{counts.words(self._total)}; {job.meter.words()}"
        exc = counts.ended_by
        if job.wants_json and self._output is not None:
            job.console.json(job.console.clean(self._summary()))
        if exc is not None:
            job.console.error(
                f"executionkit: stopped: {type(exc).__name__}: {exc}; {words}"
            )
            return Exit.FAILED
        job.console.note(words)
        return Exit.FAILED if counts.failed else Exit.OK

    def _summary(self) -> dict[str, Any]:
        counts, exc = self._counts, self._counts.ended_by
        found: dict[str, Any] = {
            "total": self._total,
            "done": counts.done + counts.skipped,
            "skipped": counts.skipped,
            "failed": counts.failed,
            "cost": self._job.meter.json(),
        }
        if exc is not None:
            found["error"] = {"type": type(exc).__name__, "message": str(exc)}
        return found


class _Waiting:
    """The lines that were asked for and are not written yet."""

    def __init__(self, output: OutputFile | None) -> None:
        self._output = output
        self._asked: dict[int, None] = {}
        self._rows: dict[int, dict[str, Any]] = {}

    def asked(self, index: int) -> None:
        self._asked[index] = None

    def answered(self, row: dict[str, Any], *, may_wait: bool) -> None:
        """Put a row aside that has to wait for an earlier line: it has been paid."""
        self._rows[row["index"]] = row
        is_first = next(iter(self._asked)) == row["index"]
        if may_wait and not is_first and self._output is not None:
            self._output.put_aside(as_json(row))

    def written(self, index: int) -> None:
        del self._rows[index], self._asked[index]
        if self._output is not None:
            self._output.aside.pop(index, None)
            if not self._rows and not self._output.aside:
                self._output.nothing_waits()

    def keep_all(self, keep: Callable[[dict[str, Any]], None]) -> None:
        """Write the answers that wait for an earlier line."""
        for index in sorted(self._rows):
            keep(self._rows[index])


class _Counted:
    """A provider for one line: its calls count in the run and for the line."""

    def __init__(
        self, provider: Any, complete: Callable[..., Awaitable[Any]], own: Any
    ) -> None:
        self._complete = complete
        self._own = own
        self.supports_tools = getattr(provider, "supports_tools", False)
        native = getattr(provider, "supports_response_format", False)
        self.supports_response_format = native
        self.known_secrets = getattr(provider, "known_secrets", ())

    async def complete(self, messages: Any, **options: Any) -> Any:
        response = await self._complete(messages, **options)
        self._own.record(response)
        return response


def _is_hopeless(exc: ExecutionKitError) -> bool:
    """Whether every other line would fail in the same way."""
    if isinstance(exc, PermanentError):
        return exc.metadata.get("status") in _HOPELESS
    if isinstance(exc, RequestTooLargeError):
        return False
    kinds = (BudgetExhaustedError, DeadlineExceededError, MissingExtraError)
    return isinstance(exc, kinds)


def _item(index: int, line: str, template: str | None) -> _Item:
    given: Any = None
    try:
        given = read_json_line(line)
        prompt = prompt_of(given, line, template)
    except LineError as exc:
        return _Item(index, _key(line), given, problem=str(exc))
    return _Item(index, _key(prompt), given, prompt)


def _key(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:_KEY_CHARS]
