"""Histories: put right when they come in, cut to what may be sent."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, strategies as st

from executionkit.errors import EvaluatorError, MaxIterationsError
from executionkit.patterns import react_loop
from executionkit.patterns._history import HistoryWindow, split_blocks
from executionkit.patterns._mend import UNANSWERED, mend_history
from executionkit.patterns.base import Asker
from executionkit.testing import ScriptedProvider, tool_call_reply
from executionkit.types import TokenUsage, Tool, freeze

Checker = Callable[[Sequence[Any]], None]
Message = dict[str, Any]


def user(text: str = "?") -> Message:
    return {"role": "user", "content": text}


def system(text: str = "Be brief.") -> Message:
    return {"role": "system", "content": text}


def answer(text: str = "ok") -> Message:
    return {"role": "assistant", "content": text}


def call(call_id: Any, arguments: Any = "{}", name: str = "t") -> Message:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def asked(*ids: Any) -> Message:
    calls = [call(item) for item in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: Any, text: Any = "r") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


@pytest.mark.req("history.mended")
class TestMending:
    def test_a_well_formed_history_stays_as_it_is(self, strictly: Checker) -> None:
        history = [
            system(),
            user(),
            asked("a", "b"),
            result("a"),
            result("b"),
            answer(),
            user(),
            asked("a"),
            result("a"),
        ]
        mended, repairs = mend_history(history)
        assert (mended, repairs) == (history, 0)
        strictly(mended)

    def test_it_is_a_deep_copy(self) -> None:
        history = [user(), asked("a"), result("a")]
        before = copy.deepcopy(history)
        mended, _ = mend_history(history)
        mended[1]["tool_calls"][0]["function"]["name"] = "changed"
        mended[0]["content"] = "changed"
        assert history == before

    @pytest.mark.req("TX-12")
    def test_a_result_without_its_call_is_dropped(self, strictly: Checker) -> None:
        """TX-12: the call was trimmed away."""
        history = [result("gone"), user(), asked("a"), result("a"), result("a")]
        mended, repairs = mend_history(history)
        assert mended == [user(), asked("a"), result("a")]
        assert repairs == 2
        strictly(mended)

    @pytest.mark.req("TX-12")
    def test_a_call_without_its_result_gets_one(self, strictly: Checker) -> None:
        """TX-12, the other direction."""
        history = [user(), asked("a", "b"), result("b"), user("go on")]
        mended, repairs = mend_history(history)
        assert mended == [
            user(),
            asked("a", "b"),
            result("b"),
            result("a", UNANSWERED),
            user("go on"),
        ]
        assert repairs == 1
        strictly(mended)
        assert mend_history([user(), asked("a")])[1] == 1

    @pytest.mark.req("TC-13")
    def test_an_id_that_comes_again_belongs_to_its_own_turn(self) -> None:
        """TC-13."""
        turn = [asked("search:0"), result("search:0", "r")]
        history = [user(), *turn, *turn, *turn]
        assert mend_history(history) == (history, 0)

    @pytest.mark.req("TC-12", "TC-14")
    @pytest.mark.parametrize(
        "ids",
        [
            ("a", "a"),
            (None, None),
            ("", None),
            ("a", "a-2", "a"),
            (7, 7),
            (None, "a", None),
        ],
    )
    def test_ids_that_are_missing_or_double_are_made(
        self, ids: tuple[Any, ...], strictly: Checker
    ) -> None:
        """TC-12, TC-14: calls and results are paired in order."""
        results = [result(item, f"r{n}") for n, item in enumerate(ids)]
        mended, repairs = mend_history([user(), asked(*ids), *results])
        strictly(mended)
        sent = [item["id"] for item in mended[1]["tool_calls"]]
        assert [m["tool_call_id"] for m in mended[2:]] == sent
        assert [m["content"] for m in mended[2:]] == [m["content"] for m in results]
        assert repairs >= 1
        for old, new in zip(ids, sent, strict=True):
            if isinstance(old, str) and old and ids.count(old) == 1:
                assert new == old

    @pytest.mark.req("TC-07")
    @pytest.mark.parametrize("arguments", ["", None, {}, {"n": 1}])
    def test_arguments_are_sent_as_a_json_text(
        self, arguments: Any, strictly: Checker
    ) -> None:
        """TC-07: the caller's own message is not changed."""
        message = {**asked(), "tool_calls": [call("a", arguments)]}
        mended, _ = mend_history([user(), message, result("a")])
        strictly(mended)
        assert message["tool_calls"][0]["function"]["arguments"] == arguments

    @pytest.mark.req("TC-18", "TC-19")
    def test_missing_content_becomes_what_servers_accept(
        self, strictly: Checker
    ) -> None:
        """TC-18, TC-19."""
        bare_calls = {"role": "assistant", "tool_calls": [call("a")]}
        bare_result = {"role": "tool", "tool_call_id": "a"}
        empty = {"role": "assistant", "content": None, "refusal": None}
        history = [
            user(),
            bare_calls,
            bare_result,
            empty,
            user(),
            {"role": "assistant"},
        ]
        mended, _ = mend_history(history)
        strictly(mended)
        assert mended[1]["content"] is None
        assert mended[2]["content"] == ""
        assert mended[3]["content"] == ""

    @pytest.mark.parametrize("calls", [None, []])
    def test_no_calls_are_left_out(self, calls: Any, strictly: Checker) -> None:
        mended, repairs = mend_history([user(), {**answer("x"), "tool_calls": calls}])
        assert mended == [user(), answer("x")]
        assert repairs == 0
        strictly(mended)

    def test_a_refusal_is_something(self) -> None:
        message = {"role": "assistant", "content": None, "refusal": "no"}
        assert mend_history([user(), message]) == ([user(), message], 0)

    def test_read_only_and_lazy_histories_will_do(self) -> None:
        history = [user(), asked("a"), result("a")]
        frozen: Any = freeze(history)
        assert mend_history(frozen) == (history, 0)
        assert mend_history(item for item in history) == (history, 0)
        proxies: list[Mapping[str, Any]] = [MappingProxyType(m) for m in history]
        assert mend_history(proxies) == (history, 0)
        json.dumps(mend_history(frozen)[0])

    @pytest.mark.parametrize(
        ("history", "kind", "match"),
        [
            ("text", TypeError, "list of messages, got 'text'"),
            ({"role": "user"}, TypeError, "list of messages, got {'role'"),
            ([user(), "hello"], TypeError, r"messages\[1\]` must be a message.*str"),
            ([None], TypeError, r"messages\[0\]` must be a message.*None"),
            ([{"content": "x"}], ValueError, r"messages\[0\] must have a `role`"),
            ([{"role": 3}], ValueError, r"messages\[0\] must have a `role`, got 3"),
            (
                [{"role": "user"}],
                ValueError,
                r"messages\[0\] \(user\) has no `content`",
            ),
            (
                [{"role": "system", "content": None}],
                ValueError,
                r"\(system\) has no `content`",
            ),
            (
                [user(), {**answer(), "tool_calls": {"id": "a"}}],
                ValueError,
                r"messages\[1\].tool_calls must be a list, got dict",
            ),
            (
                [user(), {**answer(), "tool_calls": [{"id": "a"}]}],
                ValueError,
                r"messages\[1\].tool_calls\[0\] must be an object with a `function`",
            ),
            (
                [user(), {**answer(), "tool_calls": [call("a"), call("b", name="")]}],
                ValueError,
                r"tool_calls\[1\]",
            ),
        ],
    )
    async def test_what_is_no_history_is_named(
        self, history: Any, kind: type[Exception], match: str
    ) -> None:
        provider = ScriptedProvider(["x"])
        with pytest.raises(kind, match=match):
            await react_loop(provider, messages=history)
        assert provider.requests == []

    async def test_the_loop_tells_how_much_it_put_right(self) -> None:
        history = [user(), asked("a"), result("b")]
        made = await react_loop(ScriptedProvider(["x"]), messages=history)
        assert made.metadata["history_repairs"] == 2


IDS = st.sampled_from([None, "", "a", "b", "a-2", 3])
MESSAGES = st.one_of(
    st.builds(user),
    st.builds(system),
    st.builds(answer),
    st.lists(IDS, max_size=3).map(lambda ids: asked(*ids)),
    IDS.map(result),
)


@given(st.lists(MESSAGES, min_size=1, max_size=12))
def test_whatever_comes_in_is_well_formed_after(history: list[Message]) -> None:
    check = _checker()
    mended, repairs = mend_history(history)
    if mended:
        check(mended)
    again, none = mend_history(mended)
    assert (again, none) == (mended, 0)
    assert repairs >= 0


def _checker() -> Checker:
    # A fixture cannot be used together with `given`.
    def check(messages: Sequence[Any]) -> None:
        waiting: list[str] = []
        for message in messages:
            if message["role"] == "tool":
                waiting.remove(message["tool_call_id"])
                continue
            assert not waiting
            waiting = [item["id"] for item in message.get("tool_calls", ())]
            assert len(set(waiting)) == len(waiting)
            assert all(waiting)
        assert not waiting

    return check


def window(
    limit: int | None, history: list[Message], summarizer: Any = None
) -> HistoryWindow:
    asker = Asker(ScriptedProvider([]), None, None, None, {})
    return HistoryWindow(limit, summarizer, asker, history)


def rounds(count: int, calls: int = 1) -> list[Message]:
    made: list[Message] = []
    for number in range(count):
        ids = [f"{number}.{place}" for place in range(calls)]
        made += [asked(*ids), *(result(item) for item in ids)]
    return made


@pytest.mark.req("D-25")
class TestTheWindow:
    """D-25: trimming dropped the question, the system message, the newest calls."""

    async def test_without_a_limit_all_is_sent(self) -> None:
        history = [user(), *rounds(20)]
        assert await window(None, history).select(history) == history
        assert await window(41, history).select(history) == history

    async def test_the_newest_block_is_sent_even_when_it_is_too_long(self) -> None:
        history = [user(), *rounds(1, calls=3)]
        assert await window(4, history).select(history) == history
        longer = [user(), *rounds(2, calls=3)]
        assert await window(4, longer).select(longer) == [user(), *longer[5:]]
        assert await window(1, longer).select(longer) == [user(), *longer[5:]]

    async def test_the_current_question_is_sent(self) -> None:
        history = [user("old"), *rounds(1), answer(), user("new"), *rounds(2)]
        sent = await window(4, history).select(history)
        assert sent == [user("new"), *history[-2:]]

    async def test_what_fits_is_sent_from_the_newest_backwards(self) -> None:
        history = [system(), user("q"), *rounds(5)]
        sent = await window(7, history).select(history)
        assert sent == [system(), user("q"), *history[-4:]]
        sent = await window(6, history).select(history)
        assert sent == [system(), user("q"), *history[-4:]]
        assert len(await window(5, history).select(history)) == 4

    async def test_system_messages_are_always_sent(self) -> None:
        late = {"role": "developer", "content": "New rules."}
        history = [system(), user("a"), answer(), late, user("b"), *rounds(3)]
        sent = await window(2, history).select(history)
        assert sent == [system(), late, user("b"), *history[-2:]]

    async def test_what_the_loop_says_is_not_the_question(
        self, strictly: Checker
    ) -> None:
        half = '<tool_call>{"name": "t"'
        provider = ScriptedProvider(
            [tool_call_reply(("t", {"n": 1})), half, half, half, "x"]
        )
        await react_loop(provider, "the question", [noop()], max_history_messages=3)
        last = provider.requests[-1].messages
        assert last[0] == user("the question")
        assert "not complete" in last[-1]["content"]
        strictly(last)

    async def test_results_in_the_form_of_anthropic_belong_to_their_calls(self) -> None:
        use = {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}
        got = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}
        history = [user("q"), use, got, use, got]
        assert split_blocks(history) == [[user("q")], [use, got], [use, got]]
        assert await window(3, history).select(history) == [user("q"), use, got]

    async def test_the_loop_counts_trimmed_rounds_and_keeps_everything(
        self, strictly: Checker
    ) -> None:
        replies = [tool_call_reply(("t", {"n": n})) for n in range(4)]
        provider = ScriptedProvider([*replies, "x"])
        made = await react_loop(provider, "q", [noop()], max_history_messages=5)
        assert made.metadata["messages_trimmed"] == 2
        assert len(made.metadata["messages"]) == 10
        for request in provider.requests:
            strictly(request.messages)
            assert request.messages[0] == user("q")
            assert len(request.messages) <= 5

    async def test_three_parallel_calls_and_a_small_window_do_not_go_in_circles(
        self,
    ) -> None:
        """D-25: a deterministic model repeated its calls, 24 tool executions."""
        ran: list[int] = []

        async def execute(n: int) -> int:
            ran.append(n)
            return n

        def model(request: Any) -> Any:
            if any(m["role"] == "tool" for m in request.messages):
                return "done"
            return tool_call_reply(*(("t", {"n": n}) for n in range(3)))

        tool = Tool("t", "", {"type": "object"}, execute)
        made = await react_loop(
            ScriptedProvider(model), "q", [tool], max_history_messages=4
        )
        assert (made.value, ran) == ("done", [0, 1, 2])

    @given(
        st.lists(st.integers(1, 4), max_size=8),
        st.integers(0, 2),
        st.integers(1, 12),
        st.booleans(),
    )
    def test_any_window_is_well_formed_and_holds_what_matters(
        self, sizes: list[int], systems: int, limit: int, more: bool
    ) -> None:
        history = [system() for _ in range(systems)] + [user("old"), answer()]
        history += [user("new")]
        blocks = [rounds(1, calls=size) for size in sizes]
        for block in blocks:
            history += block
        if more:
            history.append(answer("nudge"))
        coroutine = window(limit, history).select(history)
        with pytest.raises(StopIteration) as done:
            coroutine.send(None)
        sent: list[Message] = done.value.value
        _checker()(sent)
        newest = split_blocks(history)[-1]
        assert sent[:systems] == history[:systems]
        assert user("new") in sent
        assert sent[-len(newest) :] == newest
        least = systems + 1 + (len(newest) if newest[0] != user("new") else 0)
        assert len(sent) <= max(limit, least)
        order = {id(message): place for place, message in enumerate(history)}
        places = [order[id(message)] for message in sent]
        assert places == sorted(places)


def noop() -> Tool:
    async def execute(n: int) -> int:
        return n

    return Tool("t", "", {"type": "object"}, execute)


@pytest.mark.req("history.summary")
class TestTheSummary:
    async def test_each_message_is_summed_up_once(self, strictly: Checker) -> None:
        """D-25: the window was one too long, the whole prefix was summed up again."""
        batches: list[list[Message]] = []

        async def sum_up(messages: list[Message]) -> str:
            batches.append(messages)
            return f"summary {len(batches)}"

        replies = [tool_call_reply(("t", {"n": n})) for n in range(6)]
        provider = ScriptedProvider([*replies, "x"])
        made = await react_loop(
            provider,
            "q",
            [noop()],
            max_history_messages=6,
            summarizer=sum_up,
        )
        for request in provider.requests:
            assert len(request.messages) <= 6
            strictly(request.messages)
        assert made.metadata["summarized"] == made.metadata["messages_trimmed"] == 4
        prefix = "Summary of earlier conversation: "
        last = provider.requests[-1].messages
        assert last[0] == user("q")
        assert last[1] == {"role": "system", "content": f"{prefix}summary 4"}
        assert [len(batch) for batch in batches] == [2, 3, 3, 3]
        assert batches[1][0]["content"] == f"{prefix}summary 1"
        given = [m for batch in batches for m in batch if m["role"] == "tool"]
        assert [m["content"] for m in given] == ["0", "1", "2", "3"]

    async def test_it_stands_behind_the_system_messages(self) -> None:
        async def sum_up(_messages: list[Message]) -> str:
            return "short"

        history = [system(), user("old"), answer(), user("new"), *rounds(2)]
        sent = await window(5, history, sum_up).select(history)
        assert [m["content"] for m in sent[:3]] == [
            "Be brief.",
            "Summary of earlier conversation: short",
            "new",
        ]
        later = [user("old"), answer(), user("new"), *rounds(2)]
        sent = await window(4, later, sum_up).select(later)
        assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool"]

    async def test_what_it_costs_is_counted(self) -> None:
        async def sum_up(_messages: list[Message]) -> tuple[str, TokenUsage]:
            return "short", TokenUsage(100, 10, 1)

        replies = [tool_call_reply(("t", {"n": n})) for n in range(2)]
        made = await react_loop(
            ScriptedProvider([*replies, "x"]),
            "q",
            [noop()],
            max_history_messages=4,
            summarizer=sum_up,
        )
        assert made.cost == TokenUsage(100, 10, 4)

    async def test_it_gets_copies(self) -> None:
        async def vandal(messages: list[Message]) -> str:
            for message in messages:
                message.clear()
            return "gone"

        replies = [tool_call_reply(("t", {"n": n})) for n in range(3)]
        made = await react_loop(
            ScriptedProvider([*replies, "x"]),
            "q",
            [noop()],
            max_history_messages=4,
            summarizer=vandal,
        )
        assert all(made.metadata["messages"])

    @pytest.mark.parametrize("answer", [None, 3, ("text", 3), ("a", "b", "c")])
    async def test_a_wrong_answer_is_an_error_with_the_cost(self, answer: Any) -> None:
        async def odd(_messages: list[Message]) -> Any:
            return answer

        replies = [tool_call_reply(("t", {"n": n})) for n in range(3)]
        words = "a summarizer must return a text, or a text and a TokenUsage, got "
        with pytest.raises(EvaluatorError, match=words) as caught:
            await react_loop(
                ScriptedProvider(replies),
                "q",
                [noop()],
                max_history_messages=3,
                summarizer=odd,
            )
        assert caught.value.cost.llm_calls == 2
        assert caught.value.metadata["rounds"] == 2

    async def test_errors_of_the_library_pass(self) -> None:
        async def broken(_messages: list[Message]) -> str:
            msg = "too long"
            raise MaxIterationsError(msg)

        replies = [tool_call_reply(("t", {"n": n})) for n in range(3)]
        with pytest.raises(MaxIterationsError, match="too long"):
            await react_loop(
                ScriptedProvider(replies),
                "q",
                [noop()],
                max_history_messages=3,
                summarizer=broken,
            )
