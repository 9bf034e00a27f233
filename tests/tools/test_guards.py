"""The chain of guards and its layer: order, repairs, failures, refunds, dry runs."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from executionkit.calls import ToolCall
from executionkit.context import ExecutionContext, execution_scope
from executionkit.engine._attempts import NEVER_RETRIED
from executionkit.engine.breaker import BreakerConfig, CircuitBreaker
from executionkit.engine.retry import RetryConfig, with_retry
from executionkit.engine.schema import compile_schema
from executionkit.errors import (
    ErrorCategory,
    ErrorCode,
    ToolBlockedError,
    ToolTimeoutError,
)
from executionkit.tools._record import Kind, ToolRecord
from executionkit.tools.guard_rules import BudgetGuard, RunawayGuard, SensitiveDataGuard
from executionkit.tools.guards import (
    BaseGuard,
    EnforcementLevel,
    GuardChain,
    GuardResult,
    GuardVerdict,
)
from executionkit.tools.middleware import ToolRequest
from executionkit.tools.middleware.guards import GuardLayer
from executionkit.types import Tool

if TYPE_CHECKING:
    from executionkit.tools.guards import Guard

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"q": {}, "n": {}}}
KEY = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"


def record(name: str = "web", **facts: Any) -> ToolRecord:
    tool = Tool(name, "", facts.pop("schema", SCHEMA), lambda **_: None, **facts)
    return ToolRecord(tool, kind=Kind.SYNC, validator=compile_schema(SCHEMA))


def call(id_: str = "c1", name: str = "web", **arguments: Any) -> ToolCall:
    return ToolCall(id_, name, arguments, idempotency_key="k")


WEB = record()


class Says(BaseGuard):
    """A guard that gives what it was given, and keeps what it was asked."""

    def __init__(
        self, answer: Any, name: str = "says", level: EnforcementLevel | str = "block"
    ) -> None:
        super().__init__(enforcement=EnforcementLevel(level))
        self.name = name
        self.answer = answer
        self.asked: list[Any] = []
        self.refunds = 0

    def _give(self, what: Any) -> Any:
        self.asked.append(what)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer(what) if callable(self.answer) else self.answer

    def check(self, call: ToolCall, record: ToolRecord, /) -> Any:
        return self._give(call)

    def refund(self, call: ToolCall, record: ToolRecord) -> None:
        self.refunds += 1


class SaysAfter(Says):
    def check(self, call: ToolCall, record: ToolRecord, /) -> Any:
        return GuardResult.allow()

    def check_output(self, call: ToolCall, record: ToolRecord, value: Any, /) -> Any:
        return self._give(value)


def later(answer: Any) -> Any:
    async def give(_what: Any) -> Any:
        await asyncio.sleep(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer(_what) if callable(answer) else answer

    return give


ALLOW = GuardResult.allow()
BLOCK = GuardResult.block("no")


def both(answer: Any) -> list[Any]:
    """The same answer at once, and as an awaitable."""
    return [answer, later(answer)]


class TestResult:
    def test_allow_is_always_the_same_object(self) -> None:
        assert GuardResult.allow() is GuardResult.allow()
        assert GuardResult.allow().verdict is GuardVerdict.ALLOW

    def test_results_are_frozen_deeply_and_picklable(self) -> None:
        made = GuardResult.repair(
            "why", arguments={"a": [1]}, output=None, details={"x": 1}
        )
        assert pickle.loads(pickle.dumps(made)) == made
        assert made.repaired_output is None
        with pytest.raises(AttributeError):
            made.reason = "x"  # type: ignore[misc]
        assert made.repaired_arguments is not None
        with pytest.raises(TypeError):
            made.repaired_arguments["a"].append(2)
        assert GuardResult.block("x").repaired_output is ...
        with pytest.raises(ValueError, match="perhaps"):
            GuardResult("perhaps")  # type: ignore[arg-type]


class TestChain:
    @pytest.mark.req("guards.chain")
    @pytest.mark.parametrize("no", both(BLOCK))
    async def test_the_first_block_ends_it(self, no: Any) -> None:
        first, second, third = Says(ALLOW), Says(no, "nay"), Says(ALLOW)
        chain = GuardChain([first, second, third])
        found = await chain.check_all_async(call(), WEB)
        assert found.blocked
        assert (found.guard, found.reason) == ("nay", "no")
        assert (len(first.asked), len(third.asked)) == (1, 0)

    @pytest.mark.req("guards.chain")
    @pytest.mark.parametrize("step", [0, 1])
    async def test_repairs_feed_the_guards_behind(self, step: int) -> None:
        repairs = both(
            lambda c: GuardResult.repair("more", arguments={"n": c.arguments["n"] + 1})
        )
        last = Says(ALLOW)
        chain = GuardChain([Says(repairs[step], "a"), Says(repairs[step], "b"), last])
        found = await chain.check_all_async(call(n=1), WEB)
        assert found.verdict is GuardVerdict.REPAIR
        assert found.call.arguments == {"n": 3}
        assert last.asked == [found.call]
        assert (found.call.id, found.call.idempotency_key) == ("c1", "k")
        assert found.warnings == ("a: more", "b: more")

    @pytest.mark.req("guards.chain")
    async def test_warnings_are_collected_in_order(self) -> None:
        chain = GuardChain(
            [Says(GuardResult.warn("x"), "a"), Says(later(GuardResult.warn("y")), "b")]
        )
        found = await chain.check_all_async(call(), WEB)
        assert found.verdict is GuardVerdict.WARN
        assert found.warnings == ("a: x", "b: y")
        assert not found.blocked

    @pytest.mark.req("guards.chain")
    def test_without_awaitables_it_works_at_once(self) -> None:
        chain = GuardChain([Says(ALLOW), SaysAfter(GuardResult.repair(output=2))])
        assert chain.check_all(call(), WEB).verdict is GuardVerdict.ALLOW
        found = chain.check_output_all(call(), WEB, 1)
        assert (found.verdict, found.value) == (GuardVerdict.REPAIR, 2)
        waits = GuardChain([Says(later(ALLOW)), SaysAfter(later(ALLOW))])
        with pytest.raises(TypeError, match="check_all_async"):
            waits.check_all(call(), WEB)
        with pytest.raises(TypeError, match="check_output_all_async"):
            waits.check_output_all(call(), WEB, 1)

    @pytest.mark.req("guards.chain")
    async def test_an_output_may_be_repaired_to_none(self) -> None:
        chain = GuardChain([SaysAfter(later(GuardResult.repair(output=None)))])
        found = await chain.check_output_all_async(call(), WEB, "x")
        assert found.verdict is GuardVerdict.REPAIR
        assert found.value is None

    def test_a_guard_may_have_one_check_only(self) -> None:
        class Before:
            name = "before"

            def check(self, call: ToolCall, record: ToolRecord) -> GuardResult:
                return BLOCK

        class After:
            name = "after"

            def check_output(
                self, call: ToolCall, record: ToolRecord, value: Any
            ) -> GuardResult:
                return BLOCK

        chain = GuardChain([After(), Before()])
        assert chain.check_all(call(), WEB).guard == "before"
        assert chain.check_output_all(call(), WEB, 1).guard == "after"

    @pytest.mark.parametrize(
        ("guard", "words"),
        [
            (BudgetGuard, "class"),
            (object(), "name"),
            (type("Empty", (), {"name": "x"})(), "check"),
        ],
    )
    def test_what_is_no_guard_is_refused(self, guard: Any, words: str) -> None:
        with pytest.raises(TypeError, match=words):
            GuardChain([guard])

    @pytest.mark.req("guards.chain")
    @pytest.mark.parametrize(
        ("own", "of_chain"), [("warn", "block"), ("block", "warn")]
    )
    async def test_the_lower_level_turns_blocks_into_warnings(
        self, own: str, of_chain: str
    ) -> None:
        last = Says(ALLOW)
        guards = [Says(BLOCK, "a", own), Says(later(ValueError("x")), "b", own), last]
        chain = GuardChain(guards, enforcement=EnforcementLevel(of_chain))
        found = await chain.check_all_async(call(), WEB)
        assert found.verdict is GuardVerdict.WARN
        assert found.warnings[0] == "a: no"
        assert found.warnings[1].startswith("b: the guard failed with ValueError")
        assert len(last.asked) == 1

    @pytest.mark.req("guards.chain")
    def test_a_chain_in_a_chain_stands_for_its_guards(self) -> None:
        soft = GuardChain([Says(BLOCK, "a")], enforcement=EnforcementLevel.WARN)
        hard = GuardChain([SaysAfter(BLOCK, "b"), Says(BLOCK, "c")])
        both_of_them = GuardChain([soft, hard])
        found = both_of_them.check_all(call(), WEB)
        assert (found.guard, found.warnings) == ("c", ("a: no",))
        assert both_of_them.check_output_all(call(), WEB, 1).guard == "b"
        for level, blocked in (("warn", False), ("off", False), ("block", True)):
            outer = GuardChain([hard], enforcement=EnforcementLevel(level))
            assert outer.check_all(call(), WEB).blocked is blocked

    def test_a_guard_that_is_off_is_not_asked(self) -> None:
        off = Says(BLOCK, level="off")
        assert not GuardChain([off]).check_all(call(), WEB).blocked
        on = Says(BLOCK)
        chain = GuardChain([on], enforcement=EnforcementLevel.OFF)
        assert not chain.check_all(call(), WEB).blocked
        assert off.asked == on.asked == []


class TestFailClosed:
    @pytest.mark.req("guards.fail-closed")
    @pytest.mark.parametrize("answer", both(RuntimeError(f"key {KEY}")))
    async def test_a_guard_that_raises_blocks_and_says_nothing(
        self, answer: Any
    ) -> None:
        for guard in (Says(answer, "bad"), SaysAfter(answer, "bad")):
            layer = GuardLayer([guard])
            request = ToolRequest(call(), WEB, None)
            with pytest.raises(ToolBlockedError) as caught:
                await layer(request, returns("x"))
            text = f"{caught.value} {caught.value.details}"
            assert "'bad'" in text
            assert "RuntimeError" in text
            assert KEY not in text
            assert caught.value.__cause__ is None

    @pytest.mark.req("guards.fail-closed")
    @pytest.mark.parametrize(
        "answer", [None, True, "allow", later(None), later(later(ALLOW))]
    )
    async def test_what_is_no_verdict_blocks(self, answer: Any) -> None:
        if answer is not None and not callable(answer):
            given: Any = lambda _what: answer  # noqa: E731
        else:
            given = answer
        for guard in (Says(given), SaysAfter(given)):
            with pytest.raises(ToolBlockedError, match=r"GuardResult|failed"):
                await GuardLayer([guard])(ToolRequest(call(), WEB, None), returns("x"))

    @pytest.mark.req("guards.fail-closed")
    @pytest.mark.parametrize(
        "bad", [GuardResult.repair(output=1), GuardResult(GuardVerdict.REPAIR)]
    )
    def test_a_repair_without_anything_repaired_blocks(self, bad: GuardResult) -> None:
        assert GuardChain([Says(bad)]).check_all(call(), WEB).blocked
        after = SaysAfter(GuardResult.repair(arguments={}))
        assert GuardChain([after]).check_output_all(call(), WEB, 1).blocked

    @pytest.mark.req("guards.fail-closed")
    async def test_a_cancellation_passes_untouched_and_gives_back(self) -> None:
        counted = Says(ALLOW, "counted")
        forever = asyncio.Event()

        async def wait(_what: Any) -> GuardResult:
            await forever.wait()
            return ALLOW

        layer = GuardLayer([counted, Says(wait), Says(ALLOW)])
        task = asyncio.ensure_future(layer(ToolRequest(call(), WEB, None), returns(1)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert counted.refunds == 1


def returns(value: Any) -> Any:
    async def nxt(request: ToolRequest) -> Any:
        request.attempts += 1
        request.started = True
        if isinstance(value, BaseException):
            raise value
        return value(request) if callable(value) else value

    return nxt


class TestLayer:
    @pytest.mark.req("guards.layer")
    def test_what_allows_costs_no_awaitable(self) -> None:
        layer = GuardLayer([Says(ALLOW), SaysAfter(ALLOW)])
        request = ToolRequest(call(), WEB, None)
        value = object()
        assert layer.enter(request) is None
        assert layer.finish(request, value) is value
        assert request.warnings is None
        assert request.state is None
        assert layer.name == "guards"

    @pytest.mark.req("guards.layer")
    @pytest.mark.parametrize("step", [0, 1])
    async def test_a_repaired_call_takes_the_place_of_the_old(self, step: int) -> None:
        repair = both(GuardResult.repair("why", arguments={"q": "new"}))[step]
        layer = GuardLayer([Says(repair, "fix")])
        request = ToolRequest(call(q="old"), WEB, None)
        request.arguments = {"q": "old"}
        value = await layer(request, returns(lambda r: dict(r.call.arguments)))
        assert value == {"q": "new"}
        assert (request.call.id, request.warnings) == ("c1", ["fix: why"])
        assert vars(request).get("arguments") is None

    @pytest.mark.req("guards.layer")
    @pytest.mark.parametrize("step", [0, 1])
    async def test_finish_gives_the_repaired_value(self, step: int) -> None:
        layer = GuardLayer([SaysAfter(both(GuardResult.repair(output="new"))[step])])
        request = ToolRequest(call(), WEB, None)
        found: Any = layer.finish(request, "old")
        assert asyncio.iscoroutine(found) is bool(step)
        assert (await found if step else found) == "new"

    @pytest.mark.req("guards.layer", "OB-05")
    @pytest.mark.parametrize("step", [0, 1])
    @pytest.mark.parametrize("kind", [Says, SaysAfter])
    async def test_a_block_is_an_error_without_secrets(
        self, kind: type[Says], step: int
    ) -> None:
        no = GuardResult.block(f"found {KEY}", {"api_key": KEY, "place": "q"})
        request = ToolRequest(call(), record(namespace="net"), None)
        with pytest.raises(ToolBlockedError) as caught:
            await GuardLayer([kind(both(no)[step], "nay")])(request, returns("x"))
        error = caught.value
        assert (error.tool_name, error.guard) == ("net.web", "nay")
        assert error.stage == ("output" if kind is SaysAfter else "call")
        assert error.code is ErrorCode.TOOL_BLOCKED
        assert error.category is ErrorCategory.POLICY
        assert not error.retryable
        assert error.details["place"] == "q"
        assert KEY not in f"{error!r} {error} {error.to_dict()}"
        assert request.attempts == (1 if kind is SaysAfter else 0)
        assert pickle.loads(pickle.dumps(error)).guard == "nay"

    @pytest.mark.req("guards.layer", "OB-05")
    def test_a_warning_has_no_secrets(self) -> None:
        request = ToolRequest(call(), WEB, None)
        GuardLayer([Says(GuardResult.warn(f"saw {KEY}"), "w")]).enter(request)
        assert request.warnings is not None
        assert KEY not in request.warnings[0]
        assert request.warnings[0].startswith("w: saw ")

    @pytest.mark.req("guards.layer")
    async def test_it_is_not_retried_and_opens_no_breaker(self) -> None:
        assert ErrorCode.TOOL_BLOCKED in NEVER_RETRIED
        breaker = CircuitBreaker(BreakerConfig(failure_threshold=1))
        tries = 0

        async def once() -> None:
            nonlocal tries
            tries += 1
            raise ToolBlockedError("web", "nay", "no")

        with pytest.raises(ToolBlockedError):
            await with_retry(
                lambda: breaker.run(once),
                RetryConfig(3, 0.0, retryable=(Exception,)),
            )
        assert tries == 1
        assert breaker.snapshot().failure_count == 0


class TestRefund:
    @pytest.mark.req("guards.refund")
    @pytest.mark.parametrize("no", both(BLOCK))
    async def test_a_block_gives_back_what_was_counted_before(self, no: Any) -> None:
        budget = BudgetGuard(max_calls=1)
        layer = GuardLayer([budget, Says(no)])
        for _ in range(3):
            with pytest.raises(ToolBlockedError, match="'says'"):
                await layer(ToolRequest(call(), WEB, None), returns(1))
        assert budget.usage["calls"] == 0

    @pytest.mark.req("guards.refund")
    async def test_a_call_that_never_started_is_given_back_others_are_not(self) -> None:
        budget = BudgetGuard(max_calls=5, max_cost=10.0, per_tool={"web": 5})
        layer = GuardLayer([budget])

        async def refused(_request: ToolRequest) -> Any:
            raise ToolTimeoutError("web", 1.0)

        priced = record(cost=2.0)
        with pytest.raises(ToolTimeoutError):
            await layer(ToolRequest(call(), priced, None), refused)
        assert budget.usage == {"calls": 0, "turn": 0, "cost": 0.0, "tools": {"web": 0}}
        with pytest.raises(ToolTimeoutError):
            await layer(
                ToolRequest(call(), priced, None), returns(ToolTimeoutError("web", 1.0))
            )
        cached = ToolRequest(call(), priced, None)
        cached.cached = True
        layer.enter(cached)
        layer.leave(cached, None)
        assert budget.usage == {"calls": 2, "turn": 2, "cost": 4.0, "tools": {"web": 2}}

    @pytest.mark.req("guards.refund")
    async def test_what_was_not_counted_is_not_given_back(self) -> None:
        budget = BudgetGuard(max_calls=1, enforcement=EnforcementLevel.WARN)
        layer = GuardLayer([budget])
        await layer(ToolRequest(call(), WEB, None), returns(1))
        over = ToolRequest(call(), WEB, None)

        async def refused(_request: ToolRequest) -> Any:
            raise ToolTimeoutError("web", 1.0)

        with pytest.raises(ToolTimeoutError):
            await layer(over, refused)
        assert over.warnings is not None
        assert "limit reached" in over.warnings[0]
        assert budget.usage["calls"] == 1

    @pytest.mark.req("guards.refund")
    def test_a_refund_that_fails_does_not_replace_the_error(self) -> None:
        class Bad(Says):
            def refund(self, call: ToolCall, record: ToolRecord) -> None:
                raise RuntimeError(KEY)

            def check_error(self, call: ToolCall, record: ToolRecord, e: Any) -> None:
                raise LookupError(KEY)

        request = ToolRequest(call(), WEB, None)
        GuardLayer([Bad(ALLOW, "bad")]).leave(request, ValueError("x"))
        assert request.warnings == [
            "bad: `refund` failed with RuntimeError",
            "bad: `check_error` failed with LookupError",
        ]


class TestPeek:
    @pytest.mark.req("guards.peek")
    async def test_all_guards_are_heard_and_nothing_is_counted(self) -> None:
        budget = BudgetGuard(max_calls=1, per_tool={"web": 1}, max_cost=5.0)
        runaway = RunawayGuard(max_repeats=1)
        repair = GuardResult.repair("r", arguments={"n": 2})
        last = Says(later(ALLOW), "last")
        guards: list[Guard | BaseGuard] = [
            budget,
            Says(BLOCK, "nay"),
            Says(repair, "fix"),
            Says(ValueError("x"), "bad"),
            Says(BLOCK, "soft", "warn"),
            runaway,
            last,
        ]
        layer = GuardLayer(GuardChain(guards))
        await layer.peek(call(n=1), record(cost=4.0))
        found = await layer.peek(call(n=1), record(cost=4.0))
        verdicts = {name: result.verdict.value for name, result in found}
        assert verdicts == {
            "budget": "allow",
            "nay": "block",
            "fix": "repair",
            "bad": "block",
            "soft": "warn",
            "runaway": "allow",
            "last": "allow",
        }
        assert last.asked[-1].arguments == {"n": 2}
        assert budget.usage["calls"] == 0
        budget.check(call(), record(cost=4.0))
        assert dict(await layer.peek(call(), WEB))["budget"].verdict == "block"
        assert budget.usage["calls"] == 1


class TestDefault:
    async def test_the_default_chain_lets_honest_calls_pass(self) -> None:
        layer = GuardLayer(GuardChain.create_default())
        request = ToolRequest(call(q="weather in Paris", n=3), WEB, None)
        assert await layer(request, returns({"sun": True})) == {"sun": True}
        assert request.warnings is None

    async def test_the_default_chain_has_fresh_state_and_known_rules(self) -> None:
        one, two = GuardChain.create_default(), GuardChain.create_default()
        names = [guard.name for guard in one.guards]
        assert names.index("sensitive_data") < names.index("output_size")
        assert not set(map(id, one.guards)) & set(map(id, two.guards))
        for bad in (call(url="x"), call(q="https://127.1/")):
            assert (await one.check_all_async(bad, WEB)).blocked
        found = one.check_output_all(call(), WEB, {"api_key": KEY})
        assert KEY not in str(found.value)
        with execution_scope(ExecutionContext(budget=1.0)):
            assert not one.check_all(call(), record(cost=1.0)).blocked
            assert one.check_all(call(), record(cost=1.0)).guard == "budget"

    @pytest.mark.req("OB-05")
    def test_secrets_are_hidden_before_an_output_is_cut(self) -> None:
        filler = "word " * 60_000
        text = f"{filler} {KEY} {filler}"
        found = GuardChain.create_default().check_output_all(call(), WEB, text)
        assert len(found.value) <= 256 * 1024
        assert SensitiveDataGuard().check_output(call(), WEB, found.value) is ALLOW
