"""The gate fails closed: only a clear yes is a yes, and waiting has an end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import gc
import subprocess
import sys
import textwrap
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from executionkit._approval import asking
from executionkit._redact import PLACEHOLDER
from executionkit.approval import ApprovalDecision, ApprovalGate, ApprovalRequest
from executionkit.context import ExecutionContext, execution_scope
from executionkit.errors import (
    ApprovalDeniedError,
    ApprovalTimeoutError,
    DeadlineExceededError,
    ExecutionKitError,
)
from executionkit.testing import FakeClock, settle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

REQUEST = ApprovalRequest("tool_call", "pay", {"arguments": {"amount": 5}})
YES = ApprovalDecision(approved=True)
NO = ApprovalDecision(approved=False, reason="too much")

pytestmark = pytest.mark.req("approval.gate")


def gate_of(callback: Any, **options: Any) -> ApprovalGate:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return ApprovalGate(callback, **options)


async def deny(request: ApprovalRequest) -> ApprovalDecision:
    await asyncio.sleep(0)
    return NO


async def allow(request: ApprovalRequest) -> bool:
    await asyncio.sleep(0)
    return True


@pytest.fixture
def release() -> Generator[threading.Event]:
    """Ends the sync callbacks of a test that block."""
    event = threading.Event()
    yield event
    event.set()


class TestValues:
    @pytest.mark.req("approval.values")
    def test_a_request_is_read_only(self) -> None:
        facts: dict[str, Any] = {"arguments": {"a": [1]}}
        request = ApprovalRequest.create("tool_call", "t", facts)
        facts["arguments"]["a"].append(2)
        assert request == ApprovalRequest("tool_call", "t", {"arguments": {"a": [1]}})
        assert request.metadata == {"arguments": {"a": [1]}}
        assert ApprovalRequest.create("a", "b").metadata == {}
        assert ApprovalRequest("a", "b").metadata == {}

    @pytest.mark.req("D-06", "approval.values")
    @pytest.mark.parametrize("approved", ["deny", 1, 0, None, "True", [], object()])
    def test_a_decision_is_a_clear_yes_or_no(self, approved: Any) -> None:
        with pytest.raises(TypeError, match="`approved`"):
            ApprovalDecision(approved)

    @pytest.mark.req("approval.reasons")
    def test_a_reason_is_short_and_shows_no_secret(self) -> None:
        assert ApprovalDecision(False, "x" * 500).reason == "x" * 500
        cut = ApprovalDecision(False, "x" * 300_000).reason
        assert cut == "x" * 497 + "..."
        reason = "y" * 485 + " password: hunter2hunter2"
        assert "hunter" not in ApprovalDecision(False, reason).reason
        assert ApprovalDecision(True, None).reason == ""  # type: ignore[arg-type]


class TestAnswers:
    @pytest.mark.req("approval.answers")
    async def test_a_decision_comes_back_as_it_was_given(self) -> None:
        assert await ApprovalGate(deny).request(REQUEST) is NO
        assert await ApprovalGate(lambda _: YES).request(REQUEST) is YES
        assert await ApprovalGate(lambda _: True).request(REQUEST) == YES
        decision = await ApprovalGate(lambda _: False).request(REQUEST)
        assert decision == ApprovalDecision(approved=False)
        assert await ApprovalGate(allow, timeout_seconds=5).request(REQUEST) == YES

    @pytest.mark.req("approval.answers")
    async def test_the_callback_gets_the_request(self) -> None:
        seen: list[ApprovalRequest] = []

        def callback(request: ApprovalRequest) -> bool:
            seen.append(request)
            return True

        await ApprovalGate(callback).require(REQUEST)
        assert seen == [REQUEST]

    @pytest.mark.req("D-06", "approval.awaitables")
    @pytest.mark.parametrize("timeout", [None, 5.0])
    async def test_whatever_can_be_awaited_is_awaited(
        self, timeout: float | None
    ) -> None:
        loop = asyncio.get_running_loop()

        @functools.wraps(deny)
        def decorated(*args: Any) -> Any:
            return deny(*args)

        @functools.wraps(deny)
        def eager(*args: Any) -> Any:
            return asyncio.ensure_future(deny(*args))

        def opaque(*args: Any) -> Any:
            return deny(*args)

        class Caller:
            async def __call__(self, request: ApprovalRequest) -> ApprovalDecision:
                return await deny(request)

            async def method(self, request: ApprovalRequest) -> ApprovalDecision:
                return await deny(request)

        class Promise:
            def __await__(self) -> Any:
                return deny(REQUEST).__await__()

        future: asyncio.Future[Any] = loop.create_future()
        future.set_result(NO)
        threaded: concurrent.futures.Future[Any] = concurrent.futures.Future()
        threaded.set_result(NO)

        async def nested(request: ApprovalRequest) -> Awaitable[ApprovalDecision]:
            return deny(request)

        async def keyed(request: ApprovalRequest, *, key: int) -> ApprovalDecision:
            return await deny(request)

        callbacks: dict[str, Callable[..., Any]] = {
            "lambda": lambda request: deny(request),
            "decorated": decorated,
            "decorated, a task": eager,
            "decorated, a task, partial": functools.partial(eager),
            "opaque": opaque,
            "partial": functools.partial(keyed, key=1),
            "object": Caller(),
            "method": Caller().method,
            "future": lambda _: future,
            "future of a thread": lambda _: threaded,
            "awaitable object": lambda _: Promise(),
            "nested": nested,
        }
        async with asyncio.timeout(5):
            for name, callback in callbacks.items():
                gate = ApprovalGate(callback, timeout_seconds=timeout)
                assert await gate.request(REQUEST) is NO, name

    @pytest.mark.req("D-06", "approval.answers")
    @pytest.mark.parametrize("answer", ["deny", "yes", 1, 0, None, [True], object()])
    async def test_any_other_answer_is_a_no_that_says_so(self, answer: Any) -> None:
        async def late(request: ApprovalRequest) -> Any:
            return answer

        for callback in (lambda _: answer, late):
            decision = await ApprovalGate(callback).request(REQUEST)
            assert not decision.approved
            assert type(answer).__name__ in decision.reason

    @pytest.mark.req("approval.require")
    async def test_require_raises_unless_allowed(self) -> None:
        assert await ApprovalGate(allow).require(REQUEST) == YES
        with pytest.raises(ApprovalDeniedError) as caught:
            await ApprovalGate(deny).require(REQUEST)
        for word in ("tool_call", "pay", "too much"):
            assert word in str(caught.value)
        assert isinstance(caught.value, ExecutionKitError)
        assert not caught.value.retryable

    @pytest.mark.req("approval.reasons")
    async def test_messages_are_short_and_show_no_secret(self) -> None:
        key = "sk-" + "a1B2" * 8
        request = ApprovalRequest("tool_call", f"use {key} " + "x" * 10_000)
        gate = ApprovalGate.deny_all(f"because of password: hunter2 {'y' * 10_000}")
        with pytest.raises(ApprovalDeniedError) as caught:
            await gate.require(request)
        text = str(caught.value)
        assert PLACEHOLDER in text
        assert key not in text
        assert "hunter2" not in text
        assert len(text) < 1000

    @pytest.mark.req("approval.ready-made")
    async def test_ready_made_gates_allow_or_deny_all(self) -> None:
        assert (await ApprovalGate.allow_all().request(REQUEST)).approved
        decision = await ApprovalGate.deny_all().request(REQUEST)
        assert decision == ApprovalDecision(approved=False, reason="denied")
        decision = await ApprovalGate.deny_all("closed").request(REQUEST)
        assert decision.reason == "closed"


class TestErrors:
    @pytest.mark.req("D-07", "approval.callback-errors")
    @pytest.mark.parametrize("policy", ["raise", "deny", "approve"])
    @pytest.mark.parametrize("seconds", [None, 5.0])
    @pytest.mark.parametrize("error", [TimeoutError, ValueError, StopIteration])
    async def test_an_error_of_the_callback_is_never_taken_for_silence(
        self, policy: Any, seconds: float | None, error: type[Exception]
    ) -> None:
        async def late(request: ApprovalRequest) -> bool:
            raise error("mine")

        def sync(request: ApprovalRequest) -> bool:
            raise error("mine")

        for callback in (late, sync):
            gate = gate_of(callback, timeout_seconds=seconds, on_timeout=policy)
            expected = RuntimeError if error is StopIteration else error
            with pytest.raises(expected, match=r"mine|raised StopIteration"):
                await gate.request(REQUEST)

    @pytest.mark.req("approval.cancellation")
    @pytest.mark.parametrize("seconds", [None, 5.0])
    async def test_a_cancellation_of_the_callbacks_own_is_a_no(
        self, seconds: float | None
    ) -> None:
        async def callback(request: ApprovalRequest) -> bool:
            raise asyncio.CancelledError

        gate = ApprovalGate(callback, timeout_seconds=seconds)
        decision = await gate.request(REQUEST)
        assert not decision.approved
        assert "cancelled" in decision.reason

    @pytest.mark.req("approval.cancellation")
    @pytest.mark.parametrize("seconds", [None, 500.0])
    async def test_cancelling_the_caller_ends_the_callback_first(
        self, seconds: float | None
    ) -> None:
        asked, ended = asyncio.Event(), asyncio.Event()

        async def callback(request: ApprovalRequest) -> bool:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.set()
            return True

        gate = ApprovalGate(callback, timeout_seconds=seconds)
        task = asyncio.create_task(gate.request(REQUEST))
        async with asyncio.timeout(5):
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert ended.is_set()

    @pytest.mark.req("approval.cancellation")
    async def test_a_blocking_callback_does_not_hold_a_cancelled_caller(
        self, release: threading.Event
    ) -> None:
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()

        def callback(request: ApprovalRequest) -> bool:
            loop.call_soon_threadsafe(asked.set)
            return release.wait(20)

        task = asyncio.create_task(ApprovalGate(callback).request(REQUEST))
        async with asyncio.timeout(5):
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


class TestTime:
    @pytest.mark.req("D-08", "approval.timeout")
    async def test_silence_raises_denies_or_approves(
        self, auto_clock: FakeClock
    ) -> None:
        async def silent(request: ApprovalRequest) -> bool:
            await asyncio.Event().wait()
            return True

        with pytest.raises(ApprovalTimeoutError) as caught:
            await ApprovalGate(silent, timeout_seconds=5).request(REQUEST)
        for word in ("tool_call", "pay", "5s"):
            assert word in str(caught.value)
        with pytest.raises(ApprovalTimeoutError):
            await ApprovalGate(silent, timeout_seconds=5).require(REQUEST)
        gate = ApprovalGate(silent, timeout_seconds=5, on_timeout="deny")
        decision = await gate.request(REQUEST)
        assert not decision.approved
        assert "5s" in decision.reason
        with pytest.raises(ApprovalDeniedError):
            await gate.require(REQUEST)
        gate = gate_of(silent, timeout_seconds=5, on_timeout="approve")
        decision = await gate.request(REQUEST)
        assert decision.approved
        assert "5s" in decision.reason
        assert auto_clock.monotonic() == 1000 + 5 * 5

    @pytest.mark.req("approval.timeout")
    async def test_an_answer_in_time_stops_the_clock(
        self, fake_clock: FakeClock
    ) -> None:
        gate = ApprovalGate(deny, timeout_seconds=5)
        assert await gate.request(REQUEST) is NO
        assert fake_clock.pending == 0

    @pytest.mark.req("D-07", "approval.timeout")
    async def test_a_callback_that_ignores_its_cancellation_is_left_behind(
        self,
    ) -> None:
        clock = FakeClock(auto=True)
        enough = asyncio.Event()

        async def stubborn(request: ApprovalRequest) -> bool:
            while not enough.is_set():
                try:
                    await enough.wait()
                except asyncio.CancelledError:
                    continue
            raise ValueError("too late to matter")

        gate = ApprovalGate(stubborn, timeout_seconds=5, on_timeout="deny", clock=clock)
        async with asyncio.timeout(5):
            decision = await gate.request(REQUEST)
        assert not decision.approved
        assert clock.monotonic() <= 1000 + 5 + 1
        assert len(gate._asker.left_behind) == 1
        unseen: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, facts: unseen.append(facts)
        )
        enough.set()
        await settle()
        assert not gate._asker.left_behind
        gc.collect()
        assert not unseen

    @pytest.mark.req("D-07", "approval.threads")
    async def test_a_blocking_callback_is_out_of_the_way_when_time_is_over(
        self, release: threading.Event
    ) -> None:
        clock = FakeClock()
        asked = threading.Barrier(7)

        def blocking(request: ApprovalRequest) -> bool:
            asked.wait(10)
            return release.wait(20)

        gate = ApprovalGate(
            blocking, timeout_seconds=0.1, on_timeout="deny", clock=clock
        )
        tasks = [asyncio.create_task(gate.request(REQUEST)) for _ in range(6)]
        async with asyncio.timeout(10):
            # The loop's own executor stays free for others.
            await asyncio.to_thread(asked.wait, 10)
            await clock.advance(0.1)
            decisions = await asyncio.gather(*tasks)
            assert await asyncio.to_thread(lambda: 5) == 5
        assert [decision.approved for decision in decisions] == [False] * 6
        assert not release.is_set()

    @pytest.mark.req("D-07", "approval.threads")
    def test_a_hanging_callback_does_not_hold_the_process(self) -> None:
        code = """
            import asyncio, threading, time
            from executionkit import ApprovalGate, ApprovalRequest

            def hang(request):
                time.sleep(600)
                return True

            async def main():
                gate = ApprovalGate(hang, timeout_seconds=0.01, on_timeout="deny")
                decision = await gate.request(ApprovalRequest("a", "b"))
                assert not decision.approved
                assert all(t.daemon for t in threading.enumerate()[1:])

            asyncio.run(main())
            print("end")
        """
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            timeout=25,
            check=False,
        )
        assert done.stdout == "end\n", done.stderr

    @pytest.mark.req("approval.threads")
    async def test_a_coroutine_that_comes_too_late_is_closed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = FakeClock(auto=True)
        in_thread: list[Callable[[], Any]] = []

        async def never(function: Callable[[], Any]) -> None:
            in_thread.append(function)
            await asyncio.Event().wait()

        monkeypatch.setattr(asking, "run_in_thread", never)
        gate = ApprovalGate(
            lambda request: deny(request),
            timeout_seconds=1,
            on_timeout="deny",
            clock=clock,
        )
        assert not (await gate.request(REQUEST)).approved
        late = in_thread[0]()
        assert late.cr_frame is None

    @pytest.mark.req("approval.deadline")
    @pytest.mark.parametrize("policy", ["raise", "deny", "approve"])
    @pytest.mark.parametrize("seconds", [None, 60.0])
    async def test_the_deadline_of_the_request_ends_the_waiting(
        self, auto_clock: FakeClock, policy: Any, seconds: float | None
    ) -> None:
        async def silent(request: ApprovalRequest) -> bool:
            await asyncio.Event().wait()
            return True

        gate = gate_of(silent, timeout_seconds=seconds, on_timeout=policy)
        with execution_scope(ExecutionContext.with_deadline(5)):
            with pytest.raises(DeadlineExceededError, match="pay"):
                await gate.request(REQUEST)
            assert auto_clock.monotonic() == 1005
            with pytest.raises(DeadlineExceededError):
                await gate_of(allow).request(REQUEST)  # nobody is asked any more

    @pytest.mark.req("approval.deadline")
    async def test_a_nearer_timeout_keeps_its_policy(
        self, auto_clock: FakeClock
    ) -> None:
        async def silent(request: ApprovalRequest) -> bool:
            await asyncio.Event().wait()
            return True

        gate = ApprovalGate(silent, timeout_seconds=5, on_timeout="deny")
        with execution_scope(ExecutionContext.with_deadline(60)):
            assert not (await gate.request(REQUEST)).approved
        assert auto_clock.monotonic() == 1005


class TestThreads:
    @pytest.mark.req("approval.threads")
    async def test_a_sync_callback_runs_beside_the_loop_with_the_callers_context(
        self,
    ) -> None:
        name: contextvars.ContextVar[str] = contextvars.ContextVar("name")
        name.set("alice")
        seen: list[Any] = []

        def callback(request: ApprovalRequest) -> bool:
            seen.extend([name.get(), threading.current_thread()])
            return True

        async with asyncio.timeout(5):
            await ApprovalGate(callback).require(REQUEST)
        assert seen[0] == "alice"
        assert seen[1] is not threading.current_thread()
        assert seen[1].daemon

    @pytest.mark.req("approval.threads")
    async def test_an_async_callback_runs_on_the_loop(self) -> None:
        seen: list[threading.Thread] = []

        async def callback(request: ApprovalRequest) -> bool:
            seen.append(threading.current_thread())
            return True

        class Caller:
            async def __call__(self, request: ApprovalRequest) -> bool:
                return await callback(request)

        for one in (callback, functools.partial(callback), functools.partial(Caller())):
            await ApprovalGate(one).require(REQUEST)
        assert seen == [threading.current_thread()] * 3


class TestArguments:
    @pytest.mark.req("D-07", "approval.arguments")
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"on_timeout": "denny"}, "denny"),
            ({"on_timeout": None}, "`on_timeout`"),
            ({"on_timeout": ["deny"]}, "`on_timeout`"),
            ({"timeout_seconds": 0}, "`timeout_seconds`"),
            ({"timeout_seconds": -1}, "`timeout_seconds`"),
            ({"timeout_seconds": float("nan")}, "`timeout_seconds`"),
            ({"timeout_seconds": float("inf")}, "`timeout_seconds`"),
            ({"timeout_seconds": "5"}, "`timeout_seconds`"),
            ({"timeout_seconds": True}, "`timeout_seconds`"),
        ],
    )
    def test_wrong_arguments_are_refused(
        self, options: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(ValueError, match=says):
            ApprovalGate(allow, **options)

    @pytest.mark.req("approval.arguments")
    def test_the_callback_must_be_callable(self) -> None:
        with pytest.raises(TypeError, match="`callback`"):
            ApprovalGate(True)  # type: ignore[arg-type]

    @pytest.mark.req("approval.fail-open-warns")
    def test_failing_open_warns(self) -> None:
        with pytest.warns(UserWarning, match=r"fail-open.*privilege") as caught:
            gate = ApprovalGate(allow, timeout_seconds=5, on_timeout="approve")
        assert caught[0].filename == __file__
        assert gate.on_timeout == "approve"
        assert gate.timeout_seconds == 5
