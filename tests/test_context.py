"""The context of a request: its fields, its time, its way through headers and tasks."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import pickle
import re
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit._clock import use_clock
from executionkit.context import (
    ContextHeader,
    ContextKey,
    ExecutionContext,
    execution_scope,
    get_current_context,
    remaining_deadline,
    set_current_context,
)
from executionkit.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UUID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
)
VISIBLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")

any_text = st.text(st.characters(), min_size=1, max_size=40)


def headers_of(context: ExecutionContext) -> dict[str, str]:
    headers = context.to_headers()
    for name, value in headers.items():
        assert type(name) is str
        assert type(value) is str
        assert VISIBLE.fullmatch(value), (name, value)
    return headers


@pytest.mark.req("context.fields")
class TestFields:
    def test_a_context_needs_nothing(self) -> None:
        context = ExecutionContext()
        assert UUID.fullmatch(context.request_id)
        assert context.request_id != ExecutionContext().request_id
        for name in ("correlation_id", "user_id", "tenant_id", "traceparent"):
            assert getattr(context, name) is None
        for name in ("tracestate", "span_id", "deadline", "budget"):
            assert getattr(context, name) is None
        assert context.metadata == {}
        assert context.created_at.tzinfo is UTC

    def test_the_documented_example_works(self) -> None:
        context = ExecutionContext(
            request_id="req-12345",
            user_id="user-alice",
            tenant_id="acme-corp",
            traceparent=TRACE,
            budget=100.0,
        )
        assert context.budget == 100.0
        assert context.user_id == "user-alice"

    @pytest.mark.parametrize(
        ("fields", "error", "says"),
        [
            ({"user": "x"}, TypeError, "user"),
            ({"user_id": 5}, TypeError, "`user_id`"),
            ({"request_id": None}, TypeError, "`request_id`"),
            ({"request_id": ""}, ValueError, "`request_id`"),
            ({"budget": -1}, ValueError, "`budget`"),
            ({"budget": float("nan")}, ValueError, "`budget`"),
            ({"budget": float("inf")}, ValueError, "`budget`"),
            ({"budget": 10**400}, ValueError, "`budget`"),
            ({"budget": True}, TypeError, "`budget`"),
            ({"budget": "5"}, TypeError, "`budget`"),
            ({"deadline": 5}, TypeError, "`deadline`"),
            ({"deadline": datetime(2030, 1, 1)}, ValueError, "time zone"),  # noqa: DTZ001
            ({"created_at": None}, TypeError, "`created_at`"),
            ({"metadata": [1]}, TypeError, "`metadata`"),
            ({"traceparent": "a-b-c-d"}, ValueError, "`traceparent`"),
            ({"tracestate": "no"}, ValueError, "`tracestate`"),
        ],
    )
    @pytest.mark.req("T-28")
    def test_wrong_fields_are_refused(
        self, fields: dict[str, Any], error: type[Exception], says: str
    ) -> None:
        with pytest.raises(error, match=says):
            ExecutionContext(**fields)

    @pytest.mark.req("T-28")
    def test_nothing_of_it_can_be_changed(self) -> None:
        notes: list[str] = ["a"]
        context = ExecutionContext(metadata={"notes": notes})
        notes.append("b")
        assert context.metadata == {"notes": ["a"]}
        with pytest.raises(TypeError):
            context.metadata["notes"].append("c")
        with pytest.raises(FrozenInstanceError):
            context.user_id = "x"  # type: ignore[misc]
        with pytest.raises(FrozenInstanceError):
            context._due = 1.0  # type: ignore[misc]
        hash(context)

    def test_copies_carry_one_change(self) -> None:
        context = ExecutionContext(user_id="u", metadata={"a": 1}, budget=5)
        assert context.with_span("child-span-id").span_id == "child-span-id"
        assert context.with_span("s").request_id == context.request_id
        assert context.with_budget(50.0).budget == 50.0
        assert context.with_budget(None).budget is None
        changed = context.with_metadata(operation="search", a=2)
        assert changed.metadata == {"a": 2, "operation": "search"}
        assert context.metadata == {"a": 1}
        assert changed.created_at == context.created_at

    @pytest.mark.req("T-28")
    def test_copies_are_checked_too(self) -> None:
        with pytest.raises(ValueError, match="`budget`"):
            ExecutionContext().with_budget(-5)
        with pytest.raises(TypeError, match="`span_id`"):
            ExecutionContext().with_span(5)  # type: ignore[arg-type]


@pytest.mark.req("context.deadline")
class TestTime:
    def test_remaining_and_elapsed_time_follow_the_clock(self) -> None:
        clock = FakeClock()
        with clock.installed():
            context = ExecutionContext.with_deadline(30, user_id="bob")
            assert context.user_id == "bob"
            assert context.remaining_time == 30.0
            assert not context.is_expired
            clock._now += 12.5
            assert context.remaining_time == 17.5
            assert context.elapsed_time == 12.5
            clock._now += 20
            assert context.remaining_time == 0.0
            assert context.is_expired

    def test_without_a_deadline_nothing_expires(self) -> None:
        context = ExecutionContext()
        assert context.remaining_time is None
        assert not context.is_expired

    def test_a_deadline_now_or_before_has_expired(self) -> None:
        for seconds in (0, -5):
            context = ExecutionContext.with_deadline(seconds)
            assert context.is_expired
            assert context.remaining_time == 0.0

    def test_any_time_zone_means_the_same_moment(self) -> None:
        clock = FakeClock()
        with clock.installed():
            there = timezone(timedelta(hours=5))
            deadline = datetime.fromtimestamp(clock.wall() + 9, there)
            assert ExecutionContext(deadline=deadline).remaining_time == 9.0

    @pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e300])
    def test_no_finite_deadline_is_refused(self, seconds: float) -> None:
        with pytest.raises(ValueError, match="`seconds`"):
            ExecutionContext.with_deadline(seconds)

    def test_two_deadlines_are_refused(self) -> None:
        with pytest.raises(TypeError, match="not both"):
            ExecutionContext.with_deadline(5, deadline=None)
        with pytest.raises(TypeError, match="`seconds`"):
            ExecutionContext.with_deadline("5")  # type: ignore[arg-type]

    def test_with_timeout_is_the_same(self) -> None:
        with FakeClock().installed():
            assert ExecutionContext.with_timeout(5).remaining_time == 5.0

    @pytest.mark.req("context.wall-clock-steps")
    def test_setting_the_wall_clock_moves_no_deadline(self) -> None:
        clock = FakeClock()
        with clock.installed():
            context = ExecutionContext.with_deadline(30)
            clock._offset += 3600
            copies = (context, context.with_budget(1), context.child(timeout=9999))
            assert [one.remaining_time for one in copies] == [30.0, 30.0, 30.0]
            assert context.with_span("x").elapsed_time == 0.0

    @pytest.mark.req("context.child")
    def test_a_child_has_a_span_of_its_own_and_never_more_time(self) -> None:
        with FakeClock().installed():
            context = ExecutionContext.with_deadline(30, traceparent=TRACE)
            child = context.child()
            assert child.request_id == context.request_id
            assert re.fullmatch("[0-9a-f]{16}", child.span_id or "")
            assert child.traceparent == f"{TRACE[:36]}{child.span_id}-01"
            assert child.span_id != context.child().span_id
            assert child.remaining_time == 30.0
            assert context.child(timeout=5).remaining_time == 5.0
            assert context.child(timeout=60).remaining_time == 30.0
            assert ExecutionContext().child(timeout=5).remaining_time == 5.0
            assert context.child("my span").span_id == "my span"
            assert context.child("my span").traceparent == TRACE


@pytest.mark.req("context.pickle")
class TestCopies:
    def test_it_survives_pickling_with_its_deadline(self) -> None:
        clock = FakeClock()
        with clock.installed():
            context = ExecutionContext.with_deadline(
                30, traceparent=TRACE, metadata={"a": [1]}
            )
            data = pickle.dumps(context)
        # Another process: the same wall time, another monotonic clock.
        with FakeClock(5.0, wall=clock.wall() + 10).installed():
            twin = pickle.loads(data)
            assert twin == context
            assert hash(twin) == hash(context)
            assert twin.remaining_time == 20.0
            assert copy.deepcopy(twin).remaining_time == 20.0


@pytest.mark.req("context.headers")
class TestHeaders:
    def test_the_documented_headers_are_written(self) -> None:
        with FakeClock().installed():
            context = ExecutionContext.with_deadline(
                30,
                request_id="req-12345",
                user_id="user-alice",
                tenant_id="acme-corp",
                traceparent=TRACE,
            )
            assert headers_of(context) == {
                "X-Request-ID": "req-12345",
                "X-User-ID": "user-alice",
                "X-Tenant-ID": "acme-corp",
                "traceparent": TRACE,
                "X-Deadline-Seconds": "30",
            }

    def test_everything_that_is_sent_comes_back(self) -> None:
        with FakeClock().installed():
            context = ExecutionContext.with_deadline(
                29.25,
                correlation_id="c",
                user_id="u",
                tenant_id="t",
                traceparent=TRACE,
                tracestate="a=1,b=2",
                span_id="not sent",
                budget=0.5,
                metadata={"not": "sent"},
            )
            twin = ExecutionContext.from_headers(headers_of(context))
            expected = context.with_metadata()
            assert twin.to_dict() == {
                key: value
                for key, value in expected.to_dict().items()
                if key not in {"span_id", "metadata"}
            }

    @given(any_text, any_text, any_text)
    @settings(deadline=None)
    def test_ids_of_any_text_survive_the_way(self, a: str, b: str, c: str) -> None:
        context = ExecutionContext(request_id=a, user_id=b, tenant_id=c)
        twin = ExecutionContext.from_headers(headers_of(context))
        assert (twin.request_id, twin.user_id, twin.tenant_id) == (a, b, c)

    @pytest.mark.req("T-28")
    def test_a_line_end_never_gets_into_a_header(self) -> None:
        context = ExecutionContext(request_id="a\r\nX-Evil: 1", user_id="\u2028é€")
        headers = headers_of(context)
        assert headers["X-Request-ID"] == "a%0D%0AX-Evil: 1"

    @pytest.mark.req("T-28")
    @pytest.mark.parametrize("change", [str.lower, str.upper, str.title])
    def test_names_are_read_in_any_case(self, change: Any) -> None:
        context = ExecutionContext.from_headers(
            {
                change(header.value): "5" if "-" in header else TRACE
                for header in ContextHeader
                if header != ContextHeader.TRACESTATE
            }
        )
        assert context.tenant_id == "5"
        assert context.traceparent == TRACE
        assert context.budget == 5.0
        assert context.deadline is not None

    @pytest.mark.req("T-28")
    @pytest.mark.parametrize(
        ("remaining", "text"),
        [(0.9, "0.9"), (0.0004, "0.001"), (0, "0"), (-3, "0"), (29.9999, "29.999")],
    )
    def test_remaining_seconds_keep_their_fraction(
        self, remaining: float, text: str
    ) -> None:
        with FakeClock().installed():
            context = ExecutionContext.with_deadline(remaining)
            assert headers_of(context)["X-Deadline-Seconds"] == text
            twin = ExecutionContext.from_headers({"X-Deadline-Seconds": text})
            assert twin.is_expired == (remaining <= 0)

    @pytest.mark.req("T-28", "context.hostile-headers")
    @pytest.mark.parametrize(
        ("name", "value", "field"),
        [
            ("X-Deadline-Seconds", "inf", "deadline"),
            ("X-Deadline-Seconds", "nan", "deadline"),
            ("X-Deadline-Seconds", "1e300", "deadline"),
            ("X-Deadline-Seconds", "1e9999", "deadline"),
            ("X-Deadline-Seconds", "9" * 5000, "deadline"),
            ("X-Deadline-Seconds", "soon", "deadline"),
            ("X-Deadline-Seconds", "\uff11\uff12", "deadline"),
            ("X-Deadline-Seconds", "1_0", "deadline"),
            ("X-Deadline-Seconds", "", "deadline"),
            ("X-Deadline-Seconds", None, "deadline"),
            ("X-Deadline-Seconds", float("inf"), "deadline"),
            ("X-Deadline-Seconds", float("nan"), "deadline"),
            ("X-Budget", "-1", "budget"),
            ("X-Budget", "inf", "budget"),
            ("X-Budget", "nan", "budget"),
            pytest.param("X-Budget", 10**6000, "budget", id="huge int"),
            ("X-Budget", ["5"], "budget"),
            ("traceparent", "a-b-c-d", "traceparent"),
            ("traceparent", TRACE.upper(), "traceparent"),
            ("traceparent", "x" * 100_000, "traceparent"),
            ("traceparent", 7, "traceparent"),
            ("X-User-ID", "u" * 100_000, "user_id"),
            ("X-User-ID", "", "user_id"),
            ("X-User-ID", " \r\n ", "user_id"),
            ("X-User-ID", object(), "user_id"),
        ],
    )
    def test_what_cannot_be_read_is_left_out(
        self, name: str, value: Any, field: str
    ) -> None:
        context = ExecutionContext.from_headers({name: value, "X-Tenant-ID": "t"})
        assert getattr(context, field) is None
        assert context.tenant_id == "t"

    @pytest.mark.req("context.hostile-headers")
    def test_a_deadline_in_the_past_has_expired(self) -> None:
        for text in ("-5", "-1e18", "-9e300"):
            assert ExecutionContext.from_headers(
                {"X-Deadline-Seconds": text}
            ).is_expired

    @pytest.mark.req("context.hostile-headers")
    def test_raw_control_characters_are_dropped(self) -> None:
        context = ExecutionContext.from_headers({"X-User-ID": "a\r\nX-Evil:\x00 1\x85"})
        assert context.user_id == "aX-Evil: 1"

    @pytest.mark.req("context.hostile-headers")
    @pytest.mark.parametrize(
        ("sent", "read"),
        [
            ("100%", "100%"),
            ("%zz", "%zz"),
            ("%FF", "\ufffd"),
            (b"bytes", "bytes"),
            (5, "5"),
            ("caf\xe9", "caf\xe9"),
            ("caf%C3%A9", "caf\xe9"),
        ],
    )
    def test_odd_values_of_other_senders_are_read_as_text(
        self, sent: Any, read: str
    ) -> None:
        context = ExecutionContext.from_headers({"X-User-ID": sent})
        assert context.user_id == read
        headers_of(context)

    @pytest.mark.req("context.hostile-headers")
    @settings(deadline=None)
    @given(
        st.dictionaries(
            st.sampled_from([header.value for header in ContextHeader]) | st.text(),
            st.text() | st.binary() | st.none() | st.floats() | st.integers(),
        )
    )
    def test_no_headers_make_it_fail(self, headers: dict[str, Any]) -> None:
        context = ExecutionContext.from_headers(headers)
        headers_of(context)
        assert context.to_dict()["request_id"]

    @pytest.mark.req("context.hostile-headers")
    @pytest.mark.parametrize("headers", [None, 5, "text", [1], [("a",)], {5: 5}])
    def test_things_that_are_no_headers_count_as_none(self, headers: Any) -> None:
        assert ExecutionContext.from_headers(headers).user_id is None

    def test_pairs_are_read_and_the_first_of_two_counts(self) -> None:
        pairs: Any = [(b"x-user-id", b"a"), ["X-User-ID", "b"]]
        assert ExecutionContext.from_headers(pairs).user_id == "a"

    def test_given_fields_win_over_headers(self) -> None:
        context = ExecutionContext.from_headers(
            {"X-User-ID": "a", "X-Budget": "5"}, user_id="b", span_id="s"
        )
        assert (context.user_id, context.span_id, context.budget) == ("b", "s", 5.0)
        with pytest.raises(TypeError, match="unknown"):
            ExecutionContext.from_headers({}, unknown=1)  # type: ignore[call-arg]


@pytest.mark.req("context.w3c")
class TestTraceContext:
    @pytest.mark.parametrize(
        "value",
        [
            TRACE,
            TRACE[:-2] + "ff",
            "01" + TRACE[2:],
            "cc" + TRACE[2:] + "-what-the-future-brings",
            "cc" + TRACE[2:] + "-",
        ],
    )
    def test_valid_parents_are_taken(self, value: str) -> None:
        assert ExecutionContext(traceparent=value).traceparent == value
        context = ExecutionContext.from_headers({"traceparent": f" {value} "})
        assert context.traceparent == value

    @pytest.mark.parametrize(
        "value",
        [
            "",
            TRACE.upper(),
            "ff" + TRACE[2:],
            TRACE + "-x",
            TRACE + "x",
            TRACE[:-1],
            TRACE.replace("-", "_"),
            TRACE.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
            TRACE.replace("b7ad6b7169203331", "0" * 16),
            "cc" + TRACE[2:] + ".x",
            TRACE + "\n",
            "0g" + TRACE[2:],
            "\u0660\u0660" + TRACE[2:],
        ],
    )
    def test_invalid_parents_are_refused_or_ignored(self, value: str) -> None:
        with pytest.raises(ValueError, match="`traceparent`"):
            ExecutionContext(traceparent=value)
        if value.strip() != TRACE:
            context = ExecutionContext.from_headers({"traceparent": value})
            assert context.traceparent is None

    def test_a_future_version_is_sent_on_as_the_one_we_speak(self) -> None:
        context = ExecutionContext(traceparent="cc" + TRACE[2:-2] + "f1-more")
        assert headers_of(context)["traceparent"] == TRACE

    @pytest.mark.parametrize(
        "value",
        [
            "a=1",
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
            "a=1 , b=2",
            "a=1,,b=2",
            "0a@b=x y",
            "a/*-_=!~",
            ",".join(f"k{n}=v" for n in range(32)),
            f"{'a' * 256}={'v' * 256}",
        ],
    )
    def test_valid_states_are_taken(self, value: str) -> None:
        assert ExecutionContext(tracestate=value).tracestate == value
        headers = {"traceparent": TRACE, "tracestate": value}
        context = ExecutionContext.from_headers(headers)
        assert context.tracestate == value
        assert headers_of(context)["tracestate"] == value

    @pytest.mark.parametrize(
        "value",
        [
            "a",
            "a=",
            "A=1",
            "a=1,a=2",
            "a=1=2",
            "a b=1",
            "a=\u00e9",
            "a=\t1",
            "=1",
            "a@0b=1",
            ",".join(f"k{n}=v" for n in range(33)),
            f"{'a' * 257}=v",
            f"a={'v' * 257}",
        ],
    )
    def test_invalid_states_are_refused_or_ignored(self, value: str) -> None:
        with pytest.raises(ValueError, match="`tracestate`"):
            ExecutionContext(tracestate=value)
        headers = {"traceparent": TRACE, "tracestate": value}
        context = ExecutionContext.from_headers(headers)
        assert context.traceparent == TRACE
        if value != "a=\t1":  # the tab is dropped like any control character
            assert context.tracestate is None

    def test_a_state_without_a_valid_parent_is_ignored_and_not_sent(self) -> None:
        headers = {"traceparent": "bad", "tracestate": "a=1"}
        assert ExecutionContext.from_headers(headers).tracestate is None
        assert "tracestate" not in headers_of(ExecutionContext(tracestate="a=1"))


@pytest.mark.req("context.to-dict")
class TestDict:
    def test_only_what_is_set_is_in_it(self) -> None:
        assert ExecutionContext(request_id="r").to_dict() == {"request_id": "r"}

    def test_everything_that_is_set_is_in_it(self) -> None:
        clock = FakeClock(wall=1_700_000_000.0)
        with clock.installed():
            context = ExecutionContext.with_deadline(
                30, request_id="r", budget=0, metadata={"a": [1]}, span_id="s"
            )
            clock._now += 0.5
            data = context.to_dict()
        assert data == {
            "request_id": "r",
            "span_id": "s",
            "deadline": "2023-11-14T22:13:50+00:00",
            "remaining_time": 29.5,
            "budget": 0.0,
            "metadata": {"a": [1]},
        }
        data["metadata"]["a"].append(2)
        assert context.metadata == {"a": [1]}
        assert set(data) <= set(ContextKey)


@pytest.mark.req("context.scope")
class TestScope:
    def test_there_is_no_context_outside_of_a_scope(self) -> None:
        assert get_current_context() is None
        assert remaining_deadline() is None

    def test_scopes_nest_and_restore(self) -> None:
        outer, inner = ExecutionContext(), ExecutionContext()
        with execution_scope(outer) as given:
            assert given is outer
            with execution_scope(inner):
                assert get_current_context() is inner
                with execution_scope(None):
                    assert get_current_context() is None
                with execution_scope(inner), execution_scope(inner):
                    pass
                assert get_current_context() is inner
            assert get_current_context() is outer
        assert get_current_context() is None

    def test_a_scope_is_left_on_an_error_too(self) -> None:
        with pytest.raises(KeyError), execution_scope(ExecutionContext()):
            raise KeyError
        assert get_current_context() is None

    async def test_it_works_with_async_with(self) -> None:
        context = ExecutionContext()
        async with execution_scope(context) as given:
            assert given is context
            await asyncio.sleep(0)
            assert get_current_context() is context
        assert get_current_context() is None

    def test_setting_it_inside_ends_with_the_scope(self) -> None:
        other = ExecutionContext()
        with execution_scope(ExecutionContext()):
            set_current_context(other)
            assert get_current_context() is other
        assert get_current_context() is None

    def test_the_token_brings_the_old_one_back(self) -> None:
        context = ExecutionContext()
        token = set_current_context(context)
        assert get_current_context() is context
        inner = set_current_context(None)
        assert get_current_context() is None
        inner.var.reset(inner)
        assert get_current_context() is context
        token.var.reset(token)
        assert get_current_context() is None

    async def test_concurrent_tasks_see_only_their_own(self) -> None:
        meet = asyncio.Barrier(20)

        async def work(n: int) -> tuple[str | None, str | None]:
            async with execution_scope(ExecutionContext(user_id=f"u{n}")):
                await meet.wait()
                here = get_current_context()
                below = await asyncio.create_task(user_of_current())
                await meet.wait()
                return (here.user_id if here else None), below

        async with asyncio.timeout(5):
            seen = await asyncio.gather(*(work(n) for n in range(20)))
        assert seen == [(f"u{n}", f"u{n}") for n in range(20)]
        assert get_current_context() is None

    @pytest.mark.req("T-28")
    async def test_one_scope_object_serves_two_tasks_at_once(self) -> None:
        scope = execution_scope(ExecutionContext(user_id="u"))
        meet = asyncio.Barrier(2)

        async def work() -> tuple[str | None, str | None]:
            async with scope:
                await meet.wait()
                inside = await user_of_current()
                await meet.wait()
            return inside, await user_of_current()

        async with asyncio.timeout(5):
            seen = await asyncio.gather(*(work() for _ in range(2)))
        assert seen == [("u", None)] * 2

    def test_scopes_that_end_out_of_order_leave_nothing_behind(self) -> None:
        first, second = ExecutionContext(), ExecutionContext()
        one, two = execution_scope(first), execution_scope(second)
        one.__enter__()
        two.__enter__()
        one.__exit__(None, None, None)
        assert get_current_context() is second
        two.__exit__(None, None, None)
        assert get_current_context() is None

    async def test_a_generator_closed_in_another_task_disturbs_nothing(self) -> None:
        async def items() -> AsyncIterator[int]:
            async with execution_scope(ExecutionContext()):
                yield 1
                yield 2

        running = items()

        async def start() -> int:
            return await anext(running)

        async with asyncio.timeout(5):
            assert await asyncio.create_task(start()) == 1
            mine = ExecutionContext()
            with execution_scope(mine):
                await running.aclose()  # type: ignore[attr-defined]
                assert get_current_context() is mine

    def test_a_copied_context_of_a_thread_sees_it(self) -> None:
        with execution_scope(ExecutionContext(user_id="u")):
            copied = contextvars.copy_context()
        found = copied.run(get_current_context)
        assert found is not None
        assert found.user_id == "u"

    @pytest.mark.req("context.deadline")
    def test_the_remaining_deadline_is_that_of_the_current_context(self) -> None:
        clock = FakeClock()
        with use_clock(clock), execution_scope(ExecutionContext.with_deadline(5)):
            assert remaining_deadline() == 5.0
            clock._now += 7
            assert remaining_deadline() == 0.0
            with execution_scope(ExecutionContext()):
                assert remaining_deadline() is None


async def user_of_current() -> str | None:
    context = get_current_context()
    return None if context is None else context.user_id
