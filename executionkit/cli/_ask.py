"""What commands that ask a model share: prompts, files, the provider, the budget."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from executionkit.cli._console import ConfigError, UsageError
from executionkit.cli._options import ProviderKind

if TYPE_CHECKING:
    from executionkit.cli._job import Job
    from executionkit.cost import Prices
    from executionkit.types import TokenUsage

__all__ = (
    "Watched",
    "asking",
    "budget_of",
    "call_options",
    "choose_kind",
    "make_provider",
    "prices_of",
    "provider_of",
    "read_json",
    "read_prompt",
    "read_text",
)

_GRACE_SECONDS: Final = 0.5

_HOW: Final = (
    "no provider is configured: give --provider local or --provider mock, or set "
    "EXECUTIONKIT_BASE_URL and EXECUTIONKIT_MODEL, or ANTHROPIC_API_KEY and "
    "ANTHROPIC_MODEL; `executionkit doctor` says what is there"
)


def read_text(name: str | None) -> str:
    """The text of a file; `-` and None mean standard input.

    Raises:
        UsageError: When it cannot be read.
    """
    if name is None or name == "-":
        try:
            return sys.stdin.read().removeprefix("\ufeff")
        except UnicodeDecodeError as exc:
            msg = f"standard input is no UTF-8: {exc}"
            raise UsageError(msg) from exc
    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        msg = f"`{name}` cannot be read: {exc}"
        raise UsageError(msg) from exc


def read_prompt(job: Job) -> str:
    """The prompt that was given, or standard input.

    Raises:
        UsageError: When it is empty.
    """
    given: str | None = job["prompt"]
    if given is None or given == "-":
        if sys.stdin.isatty():
            job.console.note("reading the prompt from standard input; Ctrl-D ends it")
        given = read_text(None).removesuffix("\n")
    if not given.strip():
        msg = "the prompt is empty; give one, or write it to standard input"
        raise UsageError(msg)
    return given


def read_json(name: str) -> Any:
    """The JSON of a file.

    Raises:
        UsageError: When it cannot be read, or is none.
    """
    try:
        return json.loads(read_text(name))
    except (ValueError, RecursionError) as exc:
        msg = f"`{name}` is no JSON: {exc}"
        raise UsageError(msg) from exc


def choose_kind(
    given: ProviderKind | None,
    base_url: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> ProviderKind | None:
    """Which provider is meant: by the option, else by the environment.

    Raises:
        ConfigError: When `EXECUTIONKIT_PROVIDER` names none.
    """
    found = os.environ if environ is None else environ
    if given is not None:
        return given
    named = found.get("EXECUTIONKIT_PROVIDER", "").strip().lower()
    if named:
        try:
            return ProviderKind(named)
        except ValueError:
            kinds = ", ".join(ProviderKind)
            msg = f"EXECUTIONKIT_PROVIDER is {named!r}; it must be one of {kinds}"
            raise ConfigError(msg) from None
    if base_url or found.get("EXECUTIONKIT_BASE_URL", "").strip():
        return ProviderKind.OPENAI
    if any(
        found.get(name, "").strip() for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_MODEL")
    ):
        return ProviderKind.ANTHROPIC
    if any(
        found.get(name, "").strip()
        for name in ("EXECUTIONKIT_API_KEY", "EXECUTIONKIT_MODEL")
    ):
        return ProviderKind.OPENAI  # which then says what else it needs
    return None


def make_provider(
    kind: ProviderKind | None,
    model: str | None = None,
    base_url: str | None = None,
    replies: str | None = None,
) -> Any:
    """The provider.

    Raises:
        ConfigError: When there is none, or a setting is missing or cannot be used.
        UsageError: When the file of replies cannot be used.
    """
    if kind is None:
        raise ConfigError(_HOW)
    given = {"model": model, "base_url": base_url}
    settings: dict[str, Any] = {
        name: value for name, value in given.items() if value is not None
    }
    if kind is ProviderKind.MOCK:
        from executionkit.cli._replay import ReplayProvider, read_replies

        return ReplayProvider([] if replies is None else read_replies(replies))
    try:
        if kind is ProviderKind.LOCAL:
            from executionkit.local import LocalProvider

            return LocalProvider(model)
        if kind is ProviderKind.ANTHROPIC:
            from executionkit.anthropic import AnthropicProvider

            return AnthropicProvider.from_env(**settings)
        from executionkit.provider import Provider

        return Provider.from_env(**settings)
    except (TypeError, ValueError) as exc:
        msg = f"the provider `{kind}` cannot be used: {exc}"
        raise ConfigError(msg) from exc


def prices_of(job: Job) -> Prices | None:
    """What `--prices` says.

    Raises:
        UsageError: When it cannot be read.
    """
    from executionkit.cost import Prices

    if job["prices"] is None:
        return None
    try:
        sent, made = [float(part) for part in job["prices"].split(",")]
        return Prices(input=sent, output=made)
    except (TypeError, ValueError) as exc:
        msg = f"`--prices` must be two numbers, as in 0.15,0.6: {job['prices']!r}"
        raise UsageError(msg) from exc


def budget_of(job: Job) -> TokenUsage | None:
    """The budget that the options describe.

    Raises:
        UsageError: When the prices cannot be read, or are missing.
    """
    from executionkit.cost import CostLimit

    job.meter.prices = prices_of(job)
    if job["max_money"] is not None and job.meter.prices is None:
        msg = "`--max-money` needs `--prices IN,OUT`"
        raise UsageError(msg)
    limits = (job["max_calls"], job["max_output_tokens"])
    if not any(limits) and job["max_money"] is None:
        return None
    return CostLimit(
        output_tokens=job["max_output_tokens"],
        llm_calls=job["max_calls"],
        money=job["max_money"],
        prices=job.meter.prices,
    )


def call_options(job: Job) -> dict[str, Any]:
    """The arguments that every pattern takes."""
    from executionkit.engine.retry import RetryConfig

    found: dict[str, Any] = {
        "max_cost": budget_of(job),
        "retry": RetryConfig(max_retries=job["retries"]),
        "trace": job.meter.trace,
    }
    for name in ("temperature", "max_tokens"):
        if job[name] is not None:
            found[name] = job[name]
    return found


def provider_of(job: Job) -> Any:
    """The provider that the options and the environment describe."""
    kind = choose_kind(job["provider"], job["base_url"])
    provider = make_provider(kind, job["model"], job["base_url"], job["replies"])
    secrets = getattr(provider, "known_secrets", ())
    job.console.secrets = tuple(secrets) if isinstance(secrets, tuple) else ()
    return provider


class Watched:
    """A provider whose calls are counted, those in flight and those that fail too.

    Args:
        provider: What answers.
        job: Is told what was spent.
    """

    def __init__(self, provider: Any, job: Job) -> None:
        from executionkit.cost import CostTracker

        self._provider = provider
        self._tracker = CostTracker()
        job.meter.spent = self._tracker.to_usage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def complete(self, messages: Any, **options: Any) -> Any:
        """See `LLMProvider`."""
        self._tracker.reserve_call()
        response = await self._provider.complete(messages, **options)
        self._tracker.record_without_call(response)
        return response

    async def __aenter__(self) -> Self:
        await self._provider.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._provider.__aexit__(*exc)


@asynccontextmanager
async def asking(job: Job, provider: Any) -> AsyncGenerator[Any]:
    """The provider, ready, under the time limit of the run.

    Raises:
        DeadlineExceededError: When that has passed.
    """
    from executionkit._clock import get_clock
    from executionkit.context import ExecutionContext, execution_scope
    from executionkit.errors import DeadlineExceededError

    seconds: float | None = job["timeout"]
    async with provider:
        if not seconds:
            yield provider
            return
        # The deadline lets a pattern end with what it has; the limit is for the rest.
        limit = get_clock().timeout(seconds + _GRACE_SECONDS)
        try:
            async with limit:
                with execution_scope(ExecutionContext.with_deadline(seconds)):
                    yield provider
        except TimeoutError as exc:
            msg = f"the run took longer than {seconds:g} s (--timeout)"
            raise DeadlineExceededError(msg, cost=job.meter.usage()) from exc
