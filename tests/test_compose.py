"""Pipes: one pattern's answer is the next one's prompt, within one budget."""

from __future__ import annotations

import functools
import json
from typing import Any, Self

import pytest

from executionkit._llm import LLMResponse
from executionkit._mock import MockProvider
from executionkit.compose import pipe
from executionkit.cost import collecting_lost_cost
from executionkit.errors import (
    BudgetExhaustedError,
    ExecutionKitError,
    PatternError,
    PermanentError,
    ToolExecutionError,
)
from executionkit.patterns import (
    consensus,
    map_reduce,
    react_loop,
    refine_loop,
    structured,
)
from executionkit.testing import Request, ScriptedProvider
from executionkit.types import PatternResult, TokenUsage

USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
ONE = TokenUsage(10, 2, 1)


def echo(request: Request) -> LLMResponse:
    return LLMResponse(f"<{request.last}>", usage=USAGE)


async def upper(provider: Any, prompt: str) -> PatternResult[str]:
    return PatternResult(prompt.upper(), 0.5, metadata={"own": len(prompt)})


async def asks(provider: Any, prompt: str, **kwargs: Any) -> PatternResult[str]:
    """Makes one call and obeys no budget."""
    await provider.complete([{"role": "user", "content": prompt}])
    return PatternResult(prompt, cost=ONE, metadata={"got": sorted(kwargs)})


@pytest.mark.req("pipe.steps")
class TestTheSteps:
    async def test_each_works_on_the_answer_before(self) -> None:
        provider = ScriptedProvider(echo)
        result = await pipe(provider, "hi", react_loop, upper, react_loop)
        assert result.value == "<<HI>>"
        assert result.cost == TokenUsage(20, 4, 2)
        assert result.metadata["step_count"] == 3
        assert result.metadata["step_costs"] == (ONE, TokenUsage(), ONE)
        assert result.metadata["step_metadata"][1] == {"own": 4}
        assert result.metadata["rounds"] == 1

    async def test_score_and_metadata_are_those_of_the_last(self) -> None:
        result = await pipe(ScriptedProvider(echo), "hi", react_loop, upper)
        assert (result.value, result.score) == ("<HI>", 0.5)
        assert result.metadata["own"] == 4
        assert "rounds" not in result.metadata

    async def test_without_steps_the_prompt_is_the_answer(self) -> None:
        result = await pipe(ScriptedProvider([]), "hi", max_budget=TokenUsage(1, 1, 1))
        assert result == PatternResult("hi")

    @pytest.mark.req("D-28")
    async def test_data_reaches_the_next_step_as_json(self) -> None:
        """D-28: it was the repr of Python."""
        provider = ScriptedProvider(['{"a": [1, null, "\u00e9"]}', "done"])
        await pipe(provider, "make", structured, react_loop)
        asked = provider.requests[1].last
        assert json.loads(asked) == {"a": [1, None, "\u00e9"]}
        assert "\u00e9" in asked

    @pytest.mark.req("D-28")
    async def test_a_step_that_needs_a_list_is_no_step(self) -> None:
        """D-28: a text was taken for its characters, 50 calls."""
        provider = ScriptedProvider(echo)
        with pytest.raises(TypeError, match="single text"):
            await pipe(
                provider,
                "hello world",
                map_reduce,
                map_prompt_template="{item}",
                reduce_prompt_template="{mapped_outputs}",
            )
        assert provider.requests == []

    async def test_plain_functions_and_partials_are_steps(self) -> None:
        def plain(_provider: Any, prompt: str) -> PatternResult[str]:
            return PatternResult(prompt[::-1])

        provider = ScriptedProvider(echo)
        short = functools.partial(consensus, num_samples=2)
        result = await pipe(provider, "ab", plain, short)
        assert result.value == "<ba>"
        assert len(provider.requests) == 2

    @pytest.mark.parametrize("made", ["text", None, LLMResponse("x")])
    async def test_what_is_no_result_is_named_with_the_cost(self, made: Any) -> None:
        async def odd(_provider: Any, _prompt: str) -> Any:
            return made

        with pytest.raises(
            PatternError, match=r"step 2 \(.*odd\) must return"
        ) as caught:
            await pipe(ScriptedProvider(echo), "hi", react_loop, odd)
        assert caught.value.cost == ONE
        assert caught.value.metadata["step_costs"] == (ONE,)


@pytest.mark.req("pipe.arguments")
class TestSharedArguments:
    async def test_each_step_gets_what_it_takes(self) -> None:
        seen: dict[str, Any] = {}

        async def picky(
            _provider: Any, prompt: str, *, temperature: float = 0.0
        ) -> PatternResult[str]:
            seen["picky"] = temperature
            return PatternResult(prompt)

        async def open_one(
            _provider: Any, prompt: str, **kwargs: Any
        ) -> PatternResult[str]:
            seen["open"] = kwargs
            return PatternResult(prompt)

        provider = ScriptedProvider(echo)
        await pipe(
            provider,
            "hi",
            picky,
            open_one,
            upper,
            consensus,
            num_samples=2,
            temperature=1.0,
        )
        assert seen == {"picky": 1.0, "open": {"num_samples": 2, "temperature": 1.0}}
        assert [item.temperature for item in provider.requests] == [1.0, 1.0]

    async def test_a_parameter_of_one_step_is_no_option_of_the_others(self) -> None:
        provider = ScriptedProvider(echo)
        await pipe(
            provider,
            "hi",
            functools.partial(consensus, temperature=0.1),
            react_loop,
            num_samples=1,
            max_rounds=2,
            seed=7,
        )
        assert [item.options for item in provider.requests] == [{"seed": 7}] * 2

    async def test_names_that_the_pipe_gives_are_not_given_twice(self) -> None:
        async def own(model: Any, text: str, **kwargs: Any) -> PatternResult[str]:
            return PatternResult(f"{text} {sorted(kwargs)}")

        result = await pipe(
            ScriptedProvider([]),
            "hi",
            own,
            text="x",
            model=1,
            n=2,
        )
        assert result.value == "hi ['n']"

    async def test_what_cannot_be_inspected_gets_everything(self) -> None:
        class Opaque:
            __signature__ = "none"

            async def __call__(
                self, _provider: Any, prompt: str, **kwargs: Any
            ) -> PatternResult[str]:
                return PatternResult(f"{prompt} {sorted(kwargs)}")

        result = await pipe(ScriptedProvider([]), "hi", Opaque(), a=1)
        assert result.value == "hi ['a']"


@pytest.mark.req("pipe.budget")
class TestTheBudget:
    async def test_each_step_gets_what_is_left(self) -> None:
        seen: list[TokenUsage] = []

        async def spends(
            _provider: Any, prompt: str, *, max_cost: TokenUsage
        ) -> PatternResult[str]:
            seen.append(max_cost)
            return PatternResult(prompt, cost=TokenUsage(10, 2, 1))

        budget = TokenUsage(input_tokens=25, output_tokens=0, llm_calls=3)
        await pipe(
            ScriptedProvider([]), "x", spends, spends, spends, spends, max_budget=budget
        )
        assert seen == [
            TokenUsage(25, 0, 3),
            TokenUsage(15, 0, 2),
            TokenUsage(5, 0, 1),
            TokenUsage(-1, 0, -1),
        ]

    async def test_a_pattern_refuses_when_nothing_is_left(self) -> None:
        provider = ScriptedProvider(echo)
        budget = TokenUsage(llm_calls=2)
        with pytest.raises(BudgetExhaustedError, match="forwarded from pipe") as caught:
            await pipe(
                provider, "hi", react_loop, react_loop, react_loop, max_budget=budget
            )
        assert len(provider.requests) == 2
        assert caught.value.cost == TokenUsage(20, 4, 2)
        assert caught.value.metadata["step_costs"] == (ONE, ONE)

    @pytest.mark.req("LM-19")
    @pytest.mark.parametrize(
        ("budget", "over"),
        [
            (TokenUsage(llm_calls=2), False),
            (TokenUsage(llm_calls=1), True),
            (TokenUsage(input_tokens=20, output_tokens=4), False),
            (TokenUsage(input_tokens=20, output_tokens=3), True),
        ],
    )
    async def test_a_last_step_that_went_over_is_returned_and_flagged(
        self, budget: TokenUsage, over: bool
    ) -> None:
        """LM-19: the answer is valid and paid for."""

        async def twice(provider: Any, prompt: str) -> PatternResult[str]:
            return PatternResult(prompt, cost=ONE + ONE)

        result = await pipe(ScriptedProvider([]), "hi", twice, max_budget=budget)
        assert result.value == "hi"
        assert result.metadata["over_budget"] is over

    @pytest.mark.req("LM-19")
    async def test_a_step_over_a_budget_of_its_own_stays_flagged(self) -> None:
        result = await pipe(
            ScriptedProvider(echo),
            "hi",
            functools.partial(react_loop, max_cost=TokenUsage(output_tokens=1)),
            max_budget=TokenUsage(output_tokens=50),
        )
        assert result.metadata["over_budget"] is True

    @pytest.mark.req("D-28")
    async def test_a_step_that_knows_no_budget_is_not_begun(self) -> None:
        """D-28: steps without `max_cost` overspent 15/2 silently."""
        provider = ScriptedProvider(echo)
        budget = TokenUsage(llm_calls=2)
        with pytest.raises(
            BudgetExhaustedError, match="Pipe budget exhausted"
        ) as caught:
            await pipe(provider, "hi", asks, asks, asks, asks, max_budget=budget)
        assert len(provider.requests) == 2
        assert caught.value.cost == TokenUsage(20, 4, 2)
        assert caught.value.metadata["budget"] == budget

    async def test_a_step_that_asks_nobody_may_still_come_last(self) -> None:
        async def careful(
            _provider: Any, prompt: str, *, max_cost: TokenUsage | None = None
        ) -> PatternResult[str]:
            return PatternResult(f"{prompt}!")

        provider = ScriptedProvider(echo)
        budget = TokenUsage(llm_calls=1)
        result = await pipe(provider, "hi", react_loop, careful, max_budget=budget)
        assert result.value == "<hi>!"

    async def test_the_smaller_limit_holds(self) -> None:
        seen: list[TokenUsage] = []

        async def step(
            _provider: Any, prompt: str, *, max_cost: TokenUsage | None = None
        ) -> PatternResult[str]:
            assert max_cost is not None
            seen.append(max_cost)
            return PatternResult(prompt)

        await pipe(
            ScriptedProvider([]),
            "x",
            functools.partial(step, max_cost=TokenUsage(50, 7, 5)),
            max_budget=TokenUsage(100, 0, 3),
        )
        bound = functools.partial(step, max_cost=TokenUsage(llm_calls=5))
        await pipe(ScriptedProvider([]), "x", bound)
        assert seen == [TokenUsage(50, 7, 3), TokenUsage(llm_calls=5)]

    async def test_a_senseless_budget_is_refused_first(self) -> None:
        with pytest.raises(ValueError, match="llm_calls"):
            await pipe(ScriptedProvider([]), "x", max_budget=TokenUsage(0, 0, -2))


class OwnError(ExecutionKitError):
    """A user's error that takes arguments of its own."""

    def __init__(self, code_number: int, *, where: str) -> None:
        super().__init__(f"failed with {code_number}")
        self.code_number = code_number
        self.where = where


class NeedyError(ExecutionKitError):
    """A user's error that cannot be made without its arguments."""

    def __new__(cls, *args: Any, needed: str | None = None) -> Self:
        if needed is None:
            msg = "needed is needed"
            raise TypeError(msg)
        return super().__new__(cls, *args)

    def __init__(self, *args: Any, needed: str) -> None:
        super().__init__(*args)
        self.needed = needed


@pytest.mark.req("pipe.errors", "D-28")
class TestErrors:
    async def failing(self, error: BaseException) -> pytest.ExceptionInfo[Any]:
        async def fails(_provider: Any, _prompt: str) -> PatternResult[str]:
            raise error

        with pytest.raises(type(error)) as caught:
            await pipe(ScriptedProvider(echo), "hi", react_loop, fails)
        return caught

    async def test_they_carry_the_cost_of_all_steps(self) -> None:
        provider = ScriptedProvider(
            [
                LLMResponse("a", usage=USAGE),
                LLMResponse("b", usage=USAGE),
                PermanentError("401"),
            ]
        )
        with pytest.raises(PermanentError) as caught:
            await pipe(provider, "hi", react_loop, react_loop, react_loop)
        assert caught.value.cost == TokenUsage(20, 4, 3)
        assert caught.value.metadata["step_costs"] == (ONE, ONE)
        assert caught.value.metadata["rounds"] == 0

    async def test_the_steps_own_error_is_left_alone(self) -> None:
        own = OwnError(7, where="here")
        own.cost = TokenUsage(1, 1, 1)
        own.add_note("a note")
        cause = ValueError("why")
        own.__cause__ = cause
        caught = await self.failing(own)
        twin = caught.value
        assert twin is not own
        assert (twin.code_number, twin.where, str(twin)) == (7, "here", "failed with 7")
        assert twin.cost == TokenUsage(11, 3, 2)
        assert twin.__cause__ is cause
        assert twin.__notes__ == ["a note"]
        assert own.cost == TokenUsage(1, 1, 1)
        assert "step_costs" not in own.metadata
        assert any(entry.name == "fails" for entry in caught.traceback)

    async def test_a_class_that_cannot_be_made_again_is_raised_itself(self) -> None:
        """D-28: a custom subclass was a TypeError."""
        own = NeedyError("x", needed="y")
        caught = await self.failing(own)
        assert caught.value is own
        assert own.cost == ONE

    async def test_what_a_tool_raised_stays_attached(self) -> None:
        class LockedError(Exception):
            def __reduce__(self) -> Any:
                raise TypeError

        inner = LockedError()
        caught = await self.failing(ToolExecutionError("t", inner))
        assert caught.value.original_error is inner

    @pytest.mark.req("D-02")
    async def test_a_group_is_never_raised(self) -> None:
        """D-02: pipe added no step_costs."""

        async def fails(_provider: Any, _prompt: str) -> PatternResult[str]:
            msg = "several"
            raise ExceptionGroup(msg, [OSError("disk"), PermanentError("401")])

        with pytest.raises(PermanentError) as caught:
            await pipe(ScriptedProvider(echo), "hi", react_loop, fails)
        assert caught.value.cost == ONE
        assert any("disk" in note for note in caught.value.__notes__)

        async def fails_otherwise(_provider: Any, _prompt: str) -> PatternResult[str]:
            msg = "several"
            raise ExceptionGroup(msg, [OSError("disk"), ValueError("v")])

        with pytest.raises(OSError, match="disk"):
            await pipe(ScriptedProvider(echo), "hi", fails_otherwise)

    async def test_what_foreign_errors_cannot_carry_is_reported(self) -> None:
        lost: list[TokenUsage] = []
        with collecting_lost_cost(lost.append):
            await self.failing(ZeroDivisionError())
        assert lost == [ONE]

    async def test_the_mock_raises_the_same_error_again_and_again(self) -> None:
        provider = MockProvider(exception=PermanentError("401"))
        for _ in range(2):
            with pytest.raises(PermanentError) as caught:
                await pipe(provider, "hi", refine_loop)
            assert caught.value.cost == TokenUsage(llm_calls=1)
