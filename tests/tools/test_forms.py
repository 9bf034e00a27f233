"""What can be a tool, what its schema says, how it is called, and what is refused."""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, TypedDict

import pytest

from executionkit.context import ExecutionContext
from executionkit.errors import (
    ToolExecutionError,
    ToolRegistrationError,
    ToolValidationError,
)
from executionkit.tools.registry import Kind, ToolRecord, ToolRegistry, create_registry
from executionkit.types import Tool


def record_of(tool: object, name: str | None = "t", **more: Any) -> ToolRecord:
    return ToolRegistry().add(tool, name, **more)


async def called(record: ToolRecord, /, **arguments: Any) -> Any:
    """What the tool gives, as the call path would call it; a list for a stream."""
    prepared: dict[str, Any] = arguments
    assert record.validator.validate(arguments) == []
    if record.accepts is not None and record.accepts(arguments):
        assert record.validator.validate(arguments) == []
    if record.parse is not None:
        prepared = record.parse(arguments)
    made = record.tool.execute(**prepared)
    if record.kind is Kind.ASYNC:
        return await made
    if record.kind is Kind.ASYNC_STREAM:
        return [item async for item in made]
    return list(made) if record.kind is Kind.SYNC_STREAM else made


class AsyncClass:
    """Adds.

    More words.
    """

    async def execute(self, a: int, b: int = 2) -> int:
        """Not these.

        Args:
            a: The first one.
        """
        return a + b


class SyncClass:
    def execute(self, a: int, b: int = 2) -> int:
        """Adds."""
        return a + b


class InnerClass:
    async def _aexecute(self, a: int, b: int = 2) -> int:
        return a + b

    def execute(self, a: int, b: int = 2) -> int:
        raise AssertionError


class SyncInnerClass:
    def _aexecute(self) -> int:
        raise AssertionError

    def execute(self, a: int, b: int = 2) -> int:
        return a + b


class CallClass:
    async def __call__(self, a: int, b: int = 2) -> int:
        return a + b


class StaticClass:
    @staticmethod
    async def execute(a: int, b: int = 2) -> int:
        return a + b


class ClassMethodClass:
    @classmethod
    def execute(cls, a: int, b: int = 2) -> int:
        return a + b


class OddSelfClass:
    async def execute(this, a: int, b: int = 2) -> int:  # pyright: ignore[reportSelfClsParameterName]
        return a + b


class HeirClass(AsyncClass):
    pass


def sync_function(a: int, b: int = 2) -> int:
    return a + b


async def async_function(a: int, b: int = 2) -> int:
    return a + b


@functools.wraps(async_function)
async def wrapped(*args: Any, **kwargs: Any) -> int:
    return await async_function(*args, **kwargs)


def add3(a: int, b: int = 2, *, c: int) -> int:
    return a + b + c


ASYNC: list[Any] = [
    *(AsyncClass, AsyncClass(), InnerClass, InnerClass(), CallClass, CallClass()),
    *(StaticClass, StaticClass(), OddSelfClass, HeirClass, HeirClass()),
    *(async_function, AsyncClass().execute, functools.partial(async_function), wrapped),
    SimpleNamespace(execute=async_function),
]
SYNC: list[Any] = [
    *(SyncClass, SyncClass(), SyncInnerClass, ClassMethodClass, ClassMethodClass()),
    *(sync_function, SyncClass().execute, functools.partial(sync_function)),
    functools.partial(functools.partial(sync_function)),
]


@pytest.mark.req("tools.forms", "T-30")
@pytest.mark.parametrize(
    ("tool", "kind"),
    [*((tool, Kind.ASYNC) for tool in ASYNC), *((tool, Kind.SYNC) for tool in SYNC)],
)
async def test_each_form_is_called_with_what_its_signature_says(
    tool: Any, kind: Kind
) -> None:
    record = record_of(tool)
    assert record.kind is kind
    assert record.source is tool
    schema = record.tool.parameters
    assert {name: item["type"] for name, item in schema["properties"].items()} == {
        "a": "integer",
        "b": "integer",
    }
    assert schema["properties"]["b"]["default"] == 2
    assert schema["required"] == ["a"]
    assert schema["additionalProperties"] is False
    assert await called(record, a=1) == 3
    assert await called(record, a=1, b=5) == 6
    assert record.accepts is not None
    assert record.accepts({"a": 1})
    assert not record.accepts({"a": True})
    assert (
        inspect.iscoroutinefunction(record.tool.execute)
        or kind is Kind.SYNC
        or (inspect.iscoroutinefunction(type(record.tool.execute).__call__))
    )


@pytest.mark.req("tools.forms")
@pytest.mark.parametrize(
    ("tool", "name"),
    [
        (AsyncClass, "AsyncClass"),
        (AsyncClass(), "AsyncClass"),
        (async_function, "async_function"),
        (functools.partial(async_function), "async_function"),
        (AsyncClass().execute, "execute"),
        (Tool("own", "", {}, async_function), "own"),
        (Tool("web.own", "", {}, async_function), "web.own"),
        (Tool("own", "", {}, async_function, namespace="web"), "web.own"),
    ],
)
def test_a_tool_has_a_name_of_its_own(tool: Any, name: str) -> None:
    assert record_of(tool, None).full_name == name


@pytest.mark.req("tools.forms")
def test_the_words_are_those_of_the_class_else_of_the_method() -> None:
    record = record_of(AsyncClass)
    assert record.tool.description == "Adds.\n\nMore words."
    words = record.tool.parameters["properties"]["a"]["description"]
    assert words == "The first one."
    assert record_of(SyncClass).tool.description == "Adds."
    assert record_of(SyncClass, description="Mine.").tool.description == "Mine."


@pytest.mark.req("tools.forms")
async def test_what_a_partial_has_already_is_shown_to_no_model() -> None:
    class Client:
        secret = "hush"

    def ask(client: Client, question: str, key: str = "", n: int = 1) -> str:
        """Ask.

        Args:
            question: What to ask.
        """
        return f"{client.secret} {question} {key} {n}"

    record = record_of(functools.partial(ask, client=Client(), key="sk-1"))
    assert set(record.tool.parameters["properties"]) == {"question", "n"}
    assert "sk-1" not in str(record.tool.parameters)
    assert record.tool.description == "Ask."
    words = record.tool.parameters["properties"]["question"]["description"]
    assert words == "What to ask."
    assert await called(record, question="x") == "hush x sk-1 1"
    given: dict[str, Any] = {"properties": {"question": {}}}
    more = record_of(functools.partial(ask, client=Client()), parameters=given)
    assert await called(more, question="x") == "hush x  1"


@pytest.mark.req("tools.forms")
async def test_a_class_is_made_anew_for_each_call() -> None:
    made: list[object] = []

    class Counter:
        def __init__(self) -> None:
            made.append(self)

        async def execute(self) -> int:
            return len(made)

    record = record_of(Counter)
    assert made == []
    assert [await called(record), await called(record)] == [1, 2]


@pytest.mark.req("tools.forms")
async def test_a_constructor_that_fails_is_a_setup_error_of_the_call() -> None:
    class Broken:
        def __init__(self) -> None:
            msg = "no database"
            raise ConnectionError(msg)

        async def execute(self) -> None: ...

    with pytest.raises(ToolExecutionError, match=r"^Setup error: no database$") as got:
        await called(record_of(Broken))
    assert isinstance(got.value.original_error, ConnectionError)
    assert got.value.details["tool_name"] == "t"


@pytest.mark.req("tools.forms")
async def test_arguments_may_have_any_name() -> None:
    class Odd:
        async def execute(self, /, **arguments: Any) -> dict[str, Any]:
            return arguments

    given = {"self": 1, "name": 2, "cls": 3, "function": 4}
    assert await record_of(Odd).tool.execute(**given) == given


@pytest.mark.req("tools.forms")
def test_what_runs_a_class_can_be_sent_to_another_process() -> None:
    execute = pickle.loads(pickle.dumps(record_of(SyncClass).tool.execute))
    assert execute(a=1) == 3


# --- streams ---


class Streaming:
    supports_streaming = True

    async def execute(self, n: int) -> list[int]:
        return list(range(n))

    async def stream_execute(self, n: int) -> AsyncIterator[int]:
        for item in range(n):
            yield item


class OnlyStream:
    async def stream_execute(self, n: int) -> AsyncIterator[int]:
        for item in range(n):
            yield item


class NotPromised:
    async def execute(self, n: int) -> int:
        return n

    async def stream_execute(self, n: int) -> AsyncIterator[int]:
        yield n


async def async_generator(n: int) -> AsyncIterator[int]:
    for item in range(n):
        yield item


def generator(n: int) -> Iterator[int]:
    yield from range(n)


class GeneratorMethod:
    def execute(self, n: int) -> Iterator[int]:
        yield from range(n)


@pytest.mark.req("tools.forms")
@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        (async_generator, Kind.ASYNC_STREAM),
        (OnlyStream, Kind.ASYNC_STREAM),
        (OnlyStream(), Kind.ASYNC_STREAM),
        (generator, Kind.SYNC_STREAM),
        (GeneratorMethod, Kind.SYNC_STREAM),
        (functools.partial(generator), Kind.SYNC_STREAM),
        (Tool("x", "", {"type": "object"}, generator), Kind.SYNC_STREAM),
    ],
)
async def test_generators_stream(tool: Any, kind: Kind) -> None:
    record = record_of(tool)
    assert record.kind is kind
    assert record.tool.streaming
    assert record.stream is None
    assert await called(record, n=3) == [0, 1, 2]


@pytest.mark.req("tools.forms")
@pytest.mark.parametrize("tool", [Streaming, Streaming()])
async def test_a_class_may_stream_beside_execute(tool: Any) -> None:
    record = record_of(tool)
    assert record.kind is Kind.ASYNC
    assert record.tool.streaming
    assert record.stream is not None
    assert [item async for item in record.stream(n=2)] == [0, 1]
    assert await called(record, n=2) == [0, 1]
    assert record_of(NotPromised).stream is None


@pytest.mark.req("tools.forms")
async def test_a_stream_that_is_left_is_closed_inside_too() -> None:
    closed: list[bool] = []

    class Source:
        async def stream_execute(self) -> AsyncIterator[int]:
            try:
                yield 1
                yield 2
            finally:
                closed.append(True)

    items = record_of(Source).tool.execute()
    assert await anext(items) == 1
    await items.aclose()
    assert closed == [True]


# --- types ---


@dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict, total=False):
    deep: bool


@pytest.mark.req("tools.forms", "T-30")
async def test_arguments_become_what_the_annotations_say() -> None:
    async def typed(
        day: date,
        point: Point,
        mode: Literal["a", "b"] = "a",
        note: Annotated[str | None, "Words."] = None,
        options: Options | None = None,
    ) -> tuple[Any, ...]:
        return day, point, mode, note, options

    record = record_of(typed)
    schema = record.tool.parameters
    assert schema["required"] == ["day", "point"]
    assert schema["properties"]["mode"]["enum"] == ["a", "b"]
    assert schema["properties"]["note"]["description"] == "Words."
    made = await called(record, day="2024-01-02", point={"x": 1})
    assert made == (date(2024, 1, 2), Point(1), "a", None, None)


@pytest.mark.req("tools.context-parameters")
@pytest.mark.parametrize("optional", [True, False])
def test_the_context_is_no_argument(optional: bool) -> None:
    async def needs(a: int, context: ExecutionContext) -> int:
        return a

    async def takes(a: int, context: ExecutionContext | None = None) -> int:
        return a

    function = takes if optional else needs
    for record in (
        record_of(function),
        record_of(function, parameters={"properties": {"a": {"type": "integer"}}}),
        record_of(Tool("x", "", {"properties": {"a": {}}}, function)),
        record_of(type("Made", (), {"execute": staticmethod(function)})),
    ):
        assert record.context_parameters == ("context",)
        assert set(record.tool.parameters["properties"]) == {"a"}


# --- tools as they are ---


@pytest.mark.req("tools.forms")
async def test_a_tool_value_is_kept_as_it_is() -> None:
    tool = Tool(
        "x",
        "words",
        {"type": "object", "properties": {"day": {"type": "string"}}},
        lambda day="": day,
        3.0,
        side_effects="read",
        rate_limit=(3, 1.0),
    )
    record = record_of(tool, None)
    assert record.tool is tool
    assert record.parse is None
    renamed = record_of(tool, "web.y", timeout=None)
    assert renamed.tool.timeout is None
    assert (renamed.tool.name, renamed.tool.namespace) == ("y", "web")
    assert renamed.tool.rate_limit == (3, 1.0)
    assert tool.name == "x"


# --- inner models ---


@pytest.mark.req("tools.models")
@pytest.mark.parametrize("by_object", [True, False])
async def test_models_check_and_convert_both_ways(by_object: bool) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Search:
        class Arguments(pydantic.BaseModel):  # type: ignore[misc,name-defined,unused-ignore]
            model_config: ClassVar[dict[str, Any]] = {"str_strip_whitespace": True}
            query: str
            limit: int = 10

        class Result(pydantic.BaseModel):  # type: ignore[misc,name-defined,unused-ignore]
            found: list[str]

        async def execute(self, query: str, limit: int) -> dict[str, Any]:
            return {"found": [query] * limit} if limit else {"lost": query}

    record = record_of(Search() if by_object else Search)
    assert set(record.tool.parameters["properties"]) == {"query", "limit"}
    assert record.tool.parameters["required"] == ["query"]
    assert await called(record, query=" x ", limit=2) == {"found": ["x", "x"]}
    assert len((await called(record, query="x", other=1))["found"]) == 10
    with pytest.raises(ToolValidationError, match="found") as caught:
        await called(record, query="x", limit=0)
    assert caught.value.details["validation_type"] == "result"
    assert record.metadata is not None
    assert record.metadata.result_schema is not None
    assert set(record.metadata.result_schema["properties"]) == {"found"}


@pytest.mark.req("tools.models")
async def test_a_method_may_take_the_model_whole() -> None:
    class Search:
        @dataclass
        class Arguments:
            query: str
            limit: int = 10

        async def execute(self, arguments: Arguments) -> str:
            return f"{arguments.query}{arguments.limit}"

    record = record_of(Search)
    assert set(record.tool.parameters["properties"]) == {"query", "limit"}
    assert await called(record, query="x") == "x10"


@pytest.mark.req("tools.models")
async def test_a_function_may_take_a_pydantic_model() -> None:
    pydantic = pytest.importorskip("pydantic")
    item: Any = pydantic.create_model("Item", n=(int, ...))

    async def count(item: Any) -> int:
        return int(item.n)

    count.__annotations__["item"] = item
    record = record_of(count)
    assert await called(record, item={"n": 3}) == 3


@pytest.mark.req("tools.models", "registry.validation")
def test_a_model_that_the_method_does_not_take_is_refused() -> None:
    class Search:
        @dataclass
        class Arguments:
            query: str

        async def execute(self, text: str) -> str:
            return text

    with pytest.raises(ToolRegistrationError, match="query"):
        record_of(Search)


# --- tools of chain libraries ---


class Chain:
    name = "chain_search"
    description = "Finds."
    args: ClassVar[dict[str, Any]] = {
        "query": {"type": "string"},
        "limit": {"type": "integer", "default": 3},
    }

    def __call__(self, text: str) -> str:
        raise AssertionError


class AsyncChain(Chain):
    async def ainvoke(self, data: Mapping[str, Any], config: Any = None) -> Any:
        return dict(data)

    def invoke(self, data: Mapping[str, Any]) -> Any:
        raise AssertionError


class SyncChain(Chain):
    def invoke(self, data: Mapping[str, Any]) -> Any:
        return dict(data)


class RunChain(Chain):
    async def _arun(self, query: str, limit: int = 3) -> Any:
        return {"query": query}


@pytest.mark.req("tools.forms")
@pytest.mark.parametrize(
    ("make", "kind"),
    [(AsyncChain, Kind.ASYNC), (SyncChain, Kind.SYNC), (RunChain, Kind.ASYNC)],
)
async def test_a_tool_of_a_chain_library_is_known_by_what_it_has(
    make: Callable[[], Any], kind: Kind
) -> None:
    record = record_of(make(), None)
    assert (record.name, record.tool.description) == ("chain_search", "Finds.")
    assert record.kind is kind
    assert record.tool.parameters["required"] == ["query"]
    assert await called(record, query="x") == {"query": "x"}
    assert record.metadata is not None
    assert record.metadata.source == "langchain"


@pytest.mark.req("tools.forms")
async def test_a_chain_tool_says_its_schema_by_a_model_or_as_it_is() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Args", query=(str, ...))
    for schema in (model, model.model_json_schema()):
        tool = AsyncChain()
        tool.args_schema = schema  # type: ignore[attr-defined]
        record = record_of(tool)
        assert record.tool.parameters["required"] == ["query"]
        assert await called(record, query="x") == {"query": "x"}


# --- what is refused ---


class NoEntry:
    pass


class NeedsMore:
    def __init__(self, url: str) -> None: ...

    async def execute(self) -> None: ...


class FalsePromise:
    supports_streaming = True

    async def execute(self) -> None: ...


class NoStream:
    supports_streaming = True

    async def execute(self) -> None: ...

    async def stream_execute(self) -> None: ...


class TakesMany:
    async def execute(self, *values: int) -> None: ...


class BadType:
    async def execute(self, data: bytes) -> None: ...


async def takes_a(a: int) -> None: ...


closed = {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.req("registry.validation", "T-30")
@pytest.mark.parametrize(
    ("tool", "more", "said"),
    [
        (NoEntry, {}, "execute"),
        (NoEntry(), {}, "execute"),
        (5, {}, "execute"),
        (None, {}, "execute"),
        ("tool", {}, "execute"),
        (NeedsMore, {}, "url"),
        (FalsePromise, {}, "stream_execute"),
        (NoStream, {}, "async generator"),
        (TakesMany, {}, "position"),
        (BadType, {}, "bytes"),
        (AsyncClass.execute, {}, "method"),
        (takes_a, {"parameters": []}, "JSON Schema"),
        (takes_a, {"parameters": {"type": "array"}}, "object"),
        (takes_a, {"parameters": {"type": "object", "properties": []}}, "object"),
        (takes_a, {"parameters": {"properties": {"b": {}}}}, "does not take"),
        (takes_a, {"parameters": closed}, "needs a"),
        (takes_a, {"parameters": {"properties": {"a": {"type": "x"}}}}, "Schema"),
        (Tool("x", "", {"properties": {"b": {}}}, takes_a), {}, "does not take"),
        (Tool("x", "", {"required": 5}, takes_a), {}, "Schema"),
    ],
)
def test_what_could_not_be_called_is_refused_at_once(
    tool: Any, more: dict[str, Any], said: str
) -> None:
    registry = create_registry()
    with pytest.raises(ToolRegistrationError, match=said):
        registry.add(tool, "t", **more)
    assert registry.records() == ()


@pytest.mark.req("registry.validation")
def test_what_was_called_instead_of_given_is_told_apart() -> None:
    with pytest.raises(ToolRegistrationError, match="parentheses"):
        record_of(async_function(a=1))
    with pytest.raises(ToolRegistrationError, match="parentheses"):
        record_of(generator(3))
