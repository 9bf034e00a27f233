"""What options there are, as data; `_app` makes a command line of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

__all__ = (
    "ALWAYS",
    "BUDGET",
    "JSON",
    "OUTPUT",
    "PROMPT",
    "PROVIDER",
    "SAMPLING",
    "TOOLS",
    "Command",
    "Option",
    "ProviderKind",
    "argument",
    "flag",
    "option",
)


class ProviderKind(StrEnum):
    """The providers that a command can use."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    LOCAL = "local"
    MOCK = "mock"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command, or, without flags, one argument."""

    name: str
    """Under which the command finds its value."""

    kind: Any
    """Its type, as in a signature."""

    default: Any
    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    least: float | None = None
    """The smallest number that is allowed."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command; its module is loaded when it runs."""

    name: str
    module: str
    function: str
    help: str
    options: tuple[Option, ...]
    group: str = ""


def option(
    name: str,
    kind: Any,
    default: Any,
    text: str,
    *flags: str,
    metavar: str | None = None,
    least: float | None = None,
) -> Option:
    """An option with flags."""
    return Option(name, kind, default, text, flags, metavar, least)


def flag(name: str, text: str, *flags: str) -> Option:
    """An option that is on or off."""
    return Option(name, bool, False, text, flags)  # noqa: FBT003 - its default


def argument(name: str, metavar: str, text: str, *, needed: bool = False) -> Option:
    """An argument that is a text."""
    kind: Any = str if needed else str | None
    return Option(name, kind, ... if needed else None, text, (), metavar)


JSON: Final = flag("json", "Write JSON.", "--json")

ALWAYS: Final = (
    flag("quiet", "No notes, no progress.", "--quiet", "-q"),
    flag("verbose", "Log lines of the library.", "--verbose", "-v"),
)

PROMPT: Final = argument(
    "prompt", "PROMPT", "What to ask; `-` or nothing = read standard input."
)

OUTPUT: Final = option(
    "output",
    str | None,
    None,
    "Write there, not to standard output.",
    "--output",
    "-o",
    metavar="FILE",
)

PROVIDER: Final = (
    option(
        "provider",
        ProviderKind | None,
        None,
        "Who answers. Left out: what EXECUTIONKIT_PROVIDER or the other variables say.",
        "--provider",
    ),
    option(
        "model",
        str | None,
        None,
        "The model's name; for `local` a GGUF file.",
        "--model",
        "-m",
        metavar="NAME",
    ),
    option(
        "base_url", str | None, None, "Where the API is.", "--base-url", metavar="URL"
    ),
    option(
        "replies",
        str | None,
        None,
        "What `mock` answers: JSON lines. Without it, the prompt comes back.",
        "--replies",
        metavar="FILE",
    ),
)

SAMPLING: Final = (
    option(
        "temperature",
        float | None,
        None,
        "Sampling temperature.",
        "--temperature",
        least=0,
    ),
    option(
        "max_tokens",
        int | None,
        None,
        "Tokens of one reply at most.",
        "--max-tokens",
        metavar="N",
        least=1,
    ),
)

BUDGET: Final = (
    option(
        "max_calls",
        int,
        0,
        "Model calls of the whole run at most; 0 = no limit.",
        "--max-calls",
        metavar="N",
        least=0,
    ),
    option(
        "max_output_tokens",
        int,
        0,
        "Output tokens of the whole run at most; 0 = no limit.",
        "--max-output-tokens",
        metavar="N",
        least=0,
    ),
    option(
        "prices",
        str | None,
        None,
        "Money for a million tokens in, and out; then costs are told in money too.",
        "--prices",
        metavar="IN,OUT",
    ),
    option(
        "max_money",
        float | None,
        None,
        "Money of the whole run at most; needs --prices.",
        "--max-money",
        least=0,
    ),
    option(
        "retries",
        int,
        3,
        "Retries of a failed call.",
        "--retries",
        metavar="N",
        least=0,
    ),
    option(
        "timeout",
        float | None,
        None,
        "Seconds for the whole run; 0 = no limit.",
        "--timeout",
        metavar="SECONDS",
        least=0,
    ),
)

TOOLS: Final = option(
    "tools",
    str | None,
    None,
    "A registry, a processor, a list of tools, or a function that gives one.",
    "--tools",
    metavar="MODULE[:NAME]",
)
