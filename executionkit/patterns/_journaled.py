"""What of one run of a pattern is on record: its model calls and summaries."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from executionkit._redact import redact
from executionkit.errors import ExecutionKitError
from executionkit.journal import Effect, Journal, Outcome
from executionkit.observability import model_name
from executionkit.types import TokenUsage

if TYPE_CHECKING:
    from executionkit._llm import LLMResponse
    from executionkit.patterns._asker import Asker
    from executionkit.patterns._call import ModelCall
    from executionkit.patterns._history import Summarizer

__all__ = ("Recorded", "never", "recorded", "request_of")

_SHOWN_CHARS: Final = 120
_LOOKED_AT: Final = 4_000


def never(_failure: Exception) -> bool:
    """No failure stands: it ends the run, and the next run tries again."""
    return False


def recorded(journal: object, kind: str) -> Recorded:
    """The record of one run of a pattern.

    Raises:
        TypeError: When `journal` is none.
    """
    if not isinstance(journal, Journal):
        msg = (
            f"`journal` must be a Journal or None, got {type(journal).__name__}; for "
            "example `Journal.open(path, run=...)`"
        )
        raise TypeError(msg)
    return Recorded(journal.enter(kind))


class Recorded:
    """One run of a pattern, as a part of a journal.

    Args:
        journal: A scope of the run's own.
    """

    __slots__ = ("_numbers", "cost", "journal", "replayed")

    def __init__(self, journal: Journal) -> None:
        self.journal: Journal = journal
        self._numbers: dict[str, int] = {}
        self.replayed: int = 0
        """Effects whose outcome came from the journal."""

        self.cost: TokenUsage = TokenUsage()
        """What these had cost; it is a part of the cost of the run."""

    def next(self, kind: str) -> str:
        """The place of the next effect of its kind, where one comes after the other."""
        number = self._numbers.get(kind, 0)
        self._numbers[kind] = number + 1
        return f"{kind}:{number}"

    async def perform(
        self, effect: Effect, do: Callable[[], Awaitable[Any]]
    ) -> Outcome:
        """Look an effect up, or do it; see `Journal.perform`."""
        outcome = await self.journal.perform(effect, do)
        if outcome.is_replayed:
            self.replayed += 1
            self.cost += outcome.cost
        return outcome

    async def ask(
        self,
        asker: Asker,
        call: ModelCall,
        messages: Sequence[dict[str, Any]],
        options: dict[str, Any],
        place: str,
        keeps: Callable[[Exception], bool] | None,
    ) -> LLMResponse:
        """The reply on record, or that of the model; see `Asker.ask`."""
        own: TokenUsage | None = None

        async def do() -> Any:
            nonlocal own
            own = TokenUsage()
            response = await call.run(asker.retry)
            own = call.cost_of(response)
            return Outcome(response, own)

        model = model_name(asker.provider, options)
        effect = _model_call(place, model, messages, options, keeps or never)
        try:
            outcome = await self.perform(effect, do)
        except ExecutionKitError as exc:
            if own is None:  # it has failed in an earlier run
                asker.tracker.add_usage(TokenUsage(llm_calls=exc.attempts))
                exc.cost = asker.tracker.to_usage()
            raise
        # What earlier runs have spent on it is a part of the cost of this run.
        asker.tracker.add_usage(outcome.cost - (own or TokenUsage()))
        reply: LLMResponse = outcome.value
        if outcome.is_replayed:
            await call.replayed(reply)
        if outcome.is_replayed and (name := reply.answered_by) is not None:
            answers = asker.tracker.answered_by
            answers[name] = answers.get(name, 0) + 1
        return reply

    def summed_up(self, summarizer: Summarizer | None) -> Summarizer | None:
        """A summarizer whose texts are on record: later requests depend on them."""
        if summarizer is None:
            return None

        async def summarize(messages: list[dict[str, Any]]) -> Any:
            async def do() -> Any:
                text: Any = summarizer(messages)
                return await text if inspect.isawaitable(text) else text

            effect = Effect(
                place=self.next("summary"),
                kind="summary",
                asked=request_of(messages, {}),
                words=f"of {len(messages)} messages",
                is_repeatable=True,
                keeps=never,
            )
            return (await self.perform(effect, do)).value

        return summarize

    def facts(self) -> dict[str, Any]:
        """For the metadata of the run."""
        return {"replayed": self.replayed, "replayed_cost": self.cost}


def _model_call(
    place: str,
    model: str | None,
    messages: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    keeps: Callable[[Exception], bool],
) -> Effect:
    """A model call, for `Recorded.perform`. An unanswered one is made again."""
    last = messages[-1].get("content") if messages else ""
    # Hidden before it is cut: half a secret looks like none.
    text = redact(last[:_LOOKED_AT]) if isinstance(last, str) else ""
    who = f"{model}: " if model else ""
    return Effect(
        place=place,
        kind="model",
        asked={"model": model, **request_of(messages, options)},
        words=f"{who}{len(messages)} messages, the last: {text[:_SHOWN_CHARS]}",
        is_repeatable=True,
        keeps=keeps,
    )


def request_of(
    messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> dict[str, Any]:
    """All that decides what a model answers.

    Ids of calls are made anew where a model gives none: here they are numbers, in the
    order in which they appear.
    """
    numbers: dict[Any, int] = {}

    def number(call_id: Any) -> int:
        return numbers.setdefault(str(call_id), len(numbers))

    plain: list[dict[str, Any]] = []
    for message in messages:
        copy = dict(message)
        calls = copy.get("tool_calls")
        if isinstance(calls, (list, tuple)):
            copy["tool_calls"] = [
                {**call, "id": number(call.get("id"))}
                if isinstance(call, Mapping)
                else call
                for call in calls
            ]
        if "tool_call_id" in copy:
            copy["tool_call_id"] = number(copy["tool_call_id"])
        plain.append(copy)
    return {"messages": plain, "options": dict(options)}
