"""`tools list|call|run`."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from executionkit.cli._ask import read_text
from executionkit.cli._console import Exit, UsageError, as_json

if TYPE_CHECKING:
    from executionkit.calls import ToolResult
    from executionkit.cli._job import Job
    from executionkit.tools.processor import ToolProcessor

__all__ = ("load_tools", "run_call", "run_list", "run_said")

_Work = Coroutine[Any, Any, int]


def load_tools(job: Job) -> ToolProcessor:
    """The tools at `--tools`; a processor there keeps its layers.

    Raises:
        UsageError: When there are none.
    """
    from executionkit.mcp._server.loading import load_server

    if not job["tools"]:
        msg = "`--tools MODULE[:NAME]` says where the tools are; it is missing"
        raise UsageError(msg)
    try:
        return load_server(job["tools"]).core.tools.processor
    except Exception as exc:
        msg = f"`--tools {job['tools']}` cannot be used: {type(exc).__name__}: {exc}"
        raise UsageError(msg) from exc


def run_list(job: Job) -> int:
    """See the table of commands."""
    records = load_tools(job).registry.listed()
    if job.wants_json:
        job.console.json(
            [
                {
                    "name": item.full_name,
                    "description": item.tool.description,
                    "parameters": item.tool.parameters,
                }
                for item in records
            ]
        )
        return Exit.OK
    for item in records:
        first = (item.tool.description or "").strip().partition("\n")[0]
        job.console.result(f"{item.full_name}\t{first}")
    return Exit.OK


def run_call(job: Job) -> _Work:
    """See the table of commands."""
    tools = load_tools(job)
    given = read_text(None) if job["args"] == "-" else job["args"]
    try:
        arguments = json.loads(given)
    except (ValueError, RecursionError) as exc:
        msg = f"`--args` is no JSON: {exc}"
        raise UsageError(msg) from exc
    if not isinstance(arguments, dict):
        msg = f"`--args` must be a JSON object, got {given[:80]!r}"
        raise UsageError(msg)
    return _call(job, tools, arguments)


async def _call(job: Job, tools: ToolProcessor, arguments: dict[str, Any]) -> int:
    from executionkit.calls import ToolCall

    call = ToolCall("call-1", job["name"], arguments)
    async with tools:
        result = (await tools.execute([call], job["timeout"] or None))[0]
    if job.wants_json:
        job.console.json(result.to_dict())
    elif result.error is None:
        job.console.result(_shown(result))
    else:
        job.console.error(f"executionkit: {result.tool}: {result.error}")
    return Exit.OK if result.error is None else Exit.FAILED


def _shown(result: ToolResult) -> str:
    value = result.result
    return value if isinstance(value, str) else as_json(value)


def run_said(job: Job) -> _Work:
    """See the table of commands."""
    tools = load_tools(job)
    text = read_text(job["said"])
    data: Any = text
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, (dict, list)):
        data = parsed
    return _dry(job, tools, data) if job["dry_run"] else _said(job, tools, data)


async def _said(job: Job, tools: ToolProcessor, data: Any) -> int:
    count = failed = 0
    job.meter.done = lambda: f"{count} results"
    async with tools:
        async for result in tools.astream(data, job["timeout"] or None):
            if result.is_partial:
                continue
            count += 1
            failed += result.error is not None
            if job.wants_json:
                job.console.json(result.to_dict())
            elif result.error is None:
                job.console.result(f"{result.tool}\t{_one_line(_shown(result))}")
            else:
                job.console.error(f"executionkit: {result.tool}: {result.error}")
    if not count:
        job.console.note("no tool call was found")
    return Exit.FAILED if failed else Exit.OK


def _one_line(text: str) -> str:
    return as_json(text) if "\n" in text else text


async def _dry(job: Job, tools: ToolProcessor, data: Any) -> int:
    async with tools:
        found = await tools.dry_run(data)
    for item in found:
        facts = {
            "call_id": item.call_id,
            "tool": item.tool,
            "would_run": item.would_run,
            "problems": [problem.to_dict() for problem in item.problems],
            "warnings": list(item.warnings),
            "wait": item.wait,
            "queue": item.queue,
            "layers": list(item.layers),
        }
        job.console.json(job.console.clean(facts))
    if not found:
        job.console.note("no tool call was found")
    return Exit.OK
