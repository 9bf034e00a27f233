"""What a structured answer has to be, and whether a reply is it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from executionkit.engine._schema.base import RefusingValidator
from executionkit.engine.json_extraction import JsonFinding, find_json
from executionkit.engine.schema import SchemaProblem, Validator, compile_schema
from executionkit.engine.schema_infer import schema_for_type
from executionkit.errors import MissingExtraError
from executionkit.patterns._schema_slips import refuse_shorthand
from executionkit.patterns.base import calling_user
from executionkit.types import thaw

if TYPE_CHECKING:
    from executionkit._llm import LLMResponse

__all__ = ("JsonReader", "Reading", "Target", "Verdict")

Verdict: TypeAlias = "bool | str | None"
"""A validator's answer: None, True or "" accept; False or a text reject."""

_MAX_COMPLAINT: Final = 2000
_MAX_DETAIL: Final = 500
_DATA_WORDS: Final = (
    ("Missing required argument `", "Missing required property `"),
    ("Unexpected argument `", "Unexpected property `"),
)
_WITHHELD: Final = frozenset({"content_filter", "refusal"})


@dataclass(frozen=True, slots=True)
class Target:
    """What the value has to be; made once, before the first request."""

    schema: Mapping[str, Any] | None
    """None = any object or array."""

    check: Validator | None
    build: Callable[[Any], Any] | None
    """From plain JSON to the type that was asked for."""

    words: frozenset[str] = frozenset()
    """The texts of a target that is a choice of texts."""

    @classmethod
    def of(cls, schema: Any) -> Target:
        """The target for a JSON Schema, a type, or None.

        Raises:
            SchemaError: When the schema is malformed or the type has no form in JSON.
            MissingExtraError: When the schema cannot be checked without a package.
        """
        if schema is None:
            return cls(None, None, None)
        build: Callable[[Any], Any] | None = None
        if isinstance(schema, Mapping):
            plain = thaw(dict(schema))
            refuse_shorthand(plain)
        else:
            plain, build = schema_for_type(schema)
        check = compile_schema(plain)
        if isinstance(check, RefusingValidator):  # no reply could pass
            msg = str(check.validate(None)[0])
            raise MissingExtraError(msg, extra="jsonschema")
        return cls(plain, check, build, _choice(plain))

    def problems(self, value: Any) -> str:
        """What is wrong with `value`, in words for the model; empty = nothing."""
        if self.check is None:
            return ""
        return "; ".join([_in_words(item) for item in self.check.validate(value)])

    def fits(self, value: Any) -> bool:
        """Whether the schema allows `value`."""
        return self.check is None or not self.check.validate(value)


def _in_words(problem: SchemaProblem) -> str:
    """A problem of data: there are no arguments here, as the checks of calls say."""
    text = str(problem)
    for said, meant in _DATA_WORDS:
        text = text.replace(said, meant, 1)
    return text


def _choice(schema: Mapping[str, Any]) -> frozenset[str]:
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else ())
    if not isinstance(allowed, list):
        return frozenset()
    return frozenset(item for item in allowed if isinstance(item, str))


@dataclass(frozen=True, slots=True)
class Reading:
    """A reply judged: a value, or what is wrong with it."""

    value: Any = None
    reason: str = ""
    """Empty when it was accepted, else `"no_json"`, `"incomplete_json"`,
    `"ambiguous"`, `"schema_mismatch"`, `"rejected"`, `"truncated"`, `"refused"`."""

    complaint: str = ""
    """The reason in words for the model."""

    repairs: tuple[str, ...] = ()
    """What was changed in the text."""


def _wrong(reason: str, complaint: str) -> Reading:
    if len(complaint) > _MAX_COMPLAINT:
        complaint = f"{complaint[:_MAX_COMPLAINT]}..."
    return Reading(reason=reason, complaint=complaint)


class JsonReader:
    """Reads replies: parse first, repair second, then check.

    Args:
        target: What the value has to be.
        validator: Checks the value further.
        repair: Whether text that is almost JSON may be repaired.
        secrets: Texts that must not appear in errors.
    """

    def __init__(
        self,
        target: Target,
        validator: Callable[[Any], Verdict | Awaitable[Verdict]] | None,
        *,
        repair: bool,
        secrets: tuple[str, ...],
    ) -> None:
        self._target = target
        self._validator = validator
        self._repair = repair
        self._secrets = secrets

    async def read(self, response: LLMResponse, limit: object) -> Reading:
        """Judge a reply that was limited to `limit` tokens.

        Raises:
            EvaluatorError: When the validator, or the target's type, fails.
        """
        finding = self._find(response.content)
        if finding is None or finding.truncated:
            return _unreadable(response, finding, limit)
        if response.was_truncated and _may_go_on(finding, response.content):
            return _cut_off(limit)
        if finding.ambiguous:
            return _wrong(
                "ambiguous",
                f"The reply contains {finding.candidates} different JSON values; it "
                "must contain exactly one",
            )
        problems = self._target.problems(finding.value)
        if problems:
            return _wrong(
                "schema_mismatch", f"The JSON does not match the schema: {problems}"
            )
        return await self._accept(finding)

    def _find(self, text: str) -> JsonFinding | None:
        target = self._target
        scalar = target.schema is not None
        prefer = target.fits if target.check is not None else None
        finding = find_json(text, allow_scalar=scalar, prefer=prefer)
        if not self._repair or not (finding is None or finding.truncated):
            return finding
        mended = find_json(text, repair=True, allow_scalar=scalar, prefer=prefer)
        if mended is not None and not mended.truncated:
            return mended
        word = text.strip()
        if finding is None and word in target.words:
            note = "took the whole reply as a text"
            return JsonFinding(value=word, start=0, end=len(text), repairs=(note,))
        return finding

    async def _accept(self, finding: JsonFinding) -> Reading:
        value = finding.value
        if self._target.build is not None:
            with calling_user("type given as `schema`", secrets=self._secrets):
                value, refusal = _built(self._target.build, value)
            if refusal:
                return _wrong("schema_mismatch", f"The JSON is not valid: {refusal}")
        rejection = await self._ask_validator(value)
        if rejection:
            return _wrong("rejected", rejection)
        return Reading(value, repairs=finding.repairs)

    async def _ask_validator(self, value: Any) -> str:
        if self._validator is None:
            return ""
        with calling_user("validator", secrets=self._secrets):
            verdict: Any = self._validator(value)
            if inspect.isawaitable(verdict):
                verdict = await verdict
            if verdict is None or verdict == "" or verdict == True:  # noqa: E712 - 1 too
                return ""
            if verdict == False:  # noqa: E712 - 0 too
                return "The JSON was rejected by validation"
            return str(verdict) or "The JSON was rejected by validation"


def _built(build: Callable[[Any], Any], value: Any) -> tuple[Any, str]:
    """The value as the type asked for, or why the type refuses it."""
    try:
        return build(value), ""
    except (TypeError, ValueError) as exc:
        return None, str(exc)[:_MAX_DETAIL] or type(exc).__name__


def _unreadable(
    response: LLMResponse, finding: JsonFinding | None, limit: object
) -> Reading:
    if response.refusal is not None or response.finish_reason in _WITHHELD:
        said = response.refusal or f"finish reason {response.finish_reason!r}"
        return _wrong("refused", said[:_MAX_DETAIL])
    if response.was_truncated:
        return _cut_off(limit)
    if finding is not None:
        return _wrong("incomplete_json", "The JSON in the reply is not complete")
    return _wrong("no_json", "The reply contains no valid JSON")


def _cut_off(limit: object) -> Reading:
    at = f"{limit} tokens" if isinstance(limit, int) else "the token limit"
    return _wrong("truncated", f"The reply was truncated at {at}")


def _may_go_on(finding: JsonFinding, text: str) -> bool:
    """Whether more of the text could have changed a value that is complete as it is.

    `12` may be the beginning of `123`.
    """
    is_number = type(finding.value) in {int, float}
    return is_number and not text[finding.end :].strip()
