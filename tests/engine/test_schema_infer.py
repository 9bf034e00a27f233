"""Schemas from signatures and types, and the way back from JSON to Python."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import json
import pathlib
import pickle
import sys
import typing
import uuid
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
    Set as AbstractSet,
)
from dataclasses import InitVar, dataclass, field
from enum import Enum, IntEnum, StrEnum
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    LiteralString,
    NamedTuple,
    NewType,
    NotRequired,
    Required,
    TypedDict,
    TypeVar,
)

import pytest
import typing_extensions
from hypothesis import given, settings, strategies as st

from executionkit.engine.schema import SchemaError, SchemaProblem, compile_schema
from executionkit.engine.schema_infer import (
    SchemaValueError,
    parser_from_callable,
    schema_for_type,
    schema_from_callable,
)

if TYPE_CHECKING:
    from fractions import Fraction

    import executionkit

T = TypeVar("T")
Bounded = TypeVar("Bounded", bound=int)
Either = TypeVar("Either", int, str)
UserId = NewType("UserId", int)


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(Enum):
    A = "a"
    ONE = 1
    NOTHING = None


class Odd(Enum):
    A = (1, 2)


@dataclass
class Point:
    x: float
    y: float = 0.0


@dataclass
class Tree:
    """A tree of numbers.

    Args:
        value: The number
            at this place.
        children: What is below.
    """

    value: int
    children: list[Tree] = field(default_factory=list)


@dataclass
class Left:
    right: Right | None = None


@dataclass
class Right:
    left: Left | None = None


@dataclass(kw_only=True)
class Settings:
    """Settings.

    Attributes:
        name: Who it is.
    """

    kind: ClassVar[str] = "k"
    name: str
    color: Color = Color.RED
    tags: set[str] = field(default_factory=set)
    made: str = field(init=False, default="x")
    limit: int = field(default=3, metadata={"description": "How many."})
    later: list[int] = field(default_factory=lambda: [1, 2])


@dataclass
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            msg = "`number` must be > 0"
            raise ValueError(msg)


@dataclass
class Box(Generic[T]):
    item: T


@dataclass
class WithInit:
    a: InitVar[int]


class Movie(TypedDict):
    """A film.

    Attributes:
        title: Its name.
    """

    title: str
    year: NotRequired[int]


class Partial(TypedDict, total=False):
    a: Required[int]
    b: Point


class Child(Movie, total=False):
    stars: int


class Pair(NamedTuple):
    left: int
    right: str = "r"


def schema_of(tp: Any) -> dict[str, Any]:
    schema, _ = schema_for_type(tp)
    compile_schema(schema)
    return schema


def parsed(tp: Any, value: Any) -> Any:
    _, parse = schema_for_type(tp)
    return parse(value)


def parameters(function: Any, **options: Any) -> dict[str, Any]:
    schema, _ = schema_from_callable(function, **options)
    compile_schema(schema)
    assert schema["type"] == "object"
    return schema


SCALARS: list[tuple[Any, dict[str, Any]]] = [
    (str, {"type": "string"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (None, {"type": "null"}),
    (type(None), {"type": "null"}),
    (Any, {}),
    (object, {}),
    (LiteralString, {"type": "string"}),
    (UserId, {"type": "integer"}),
    (Bounded, {"type": "integer"}),
    (T, {}),
    (Either, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    (Literal[1, "a", None, True], {"enum": [1, "a", None, True]}),  # noqa: PYI061
    (Literal[Color.RED, 3], {"enum": ["red", 3]}),
    (Color, {"type": "string", "enum": ["red", "blue"]}),
    (Level, {"type": "integer", "enum": [1, 2]}),
    (Mixed, {"enum": ["a", 1, None]}),
    (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    (
        typing.Optional[str],  # noqa: UP045 - the older spelling
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
    ),
    (
        typing.Union[int, str],  # noqa: UP007 - the older spelling
        {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    ),
    (int | Any, {}),
    (str | UserId | int, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
    (str | LiteralString, {"type": "string"}),
    (list, {"type": "array"}),
    (list[int], {"type": "array", "items": {"type": "integer"}}),
    (typing.List[int], {"type": "array", "items": {"type": "integer"}}),  # noqa: UP006
    (Sequence[int], {"type": "array", "items": {"type": "integer"}}),
    (MutableSequence[int], {"type": "array", "items": {"type": "integer"}}),
    (Iterable[int], {"type": "array", "items": {"type": "integer"}}),
    (Collection[Any], {"type": "array"}),
    (tuple, {"type": "array"}),
    (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
    (
        tuple[int, Any],
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}, True],
            "minItems": 2,
            "maxItems": 2,
        },
    ),
    (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
    (frozenset, {"type": "array", "uniqueItems": True}),
    (AbstractSet[Any], {"type": "array", "uniqueItems": True}),
    (dict, {"type": "object"}),
    (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
    (Mapping[str, Any], {"type": "object"}),
    (MutableMapping[str, Any], {"type": "object"}),
    (
        dict[Color, int],
        {
            "type": "object",
            "propertyNames": {"type": "string", "enum": ["red", "blue"]},
            "additionalProperties": {"type": "integer"},
        },
    ),
    (
        dt.datetime,
        {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string"}]},
    ),
    (dt.date, {"type": "string", "format": "date"}),
    (
        dt.time,
        {"anyOf": [{"type": "string", "format": "time"}, {"type": "string"}]},
    ),
    (uuid.UUID, {"type": "string", "format": "uuid"}),
    (pathlib.Path, {"type": "string", "format": "path"}),
    (pathlib.PurePosixPath, {"type": "string", "format": "path"}),
    (
        decimal.Decimal,
        {"anyOf": [{"type": "number"}, {"type": "string", "format": "decimal"}]},
    ),
    (Annotated[int, "a count"], {"type": "integer", "description": "a count"}),
    (
        Annotated[int, {"minimum": 1, "maximum": 9}, "n"],
        {"type": "integer", "minimum": 1, "maximum": 9, "description": "n"},
    ),
    (Annotated[str, object(), 3], {"type": "string"}),
    (
        Annotated[str, typing_extensions.Doc("words")],
        {"type": "string", "description": "words"},
    ),
    (
        list[Annotated[int, {"minimum": 1}]],
        {"type": "array", "items": {"type": "integer", "minimum": 1}},
    ),
    (Final[int], {"type": "integer"}),
    (
        Point,
        {
            "type": "object",
            "properties": {
                "x": {"type": "number"},
                "y": {"type": "number", "default": 0.0},
            },
            "required": ["x"],
            "additionalProperties": False,
        },
    ),
    (
        Movie,
        {
            "description": "A film.",
            "type": "object",
            "properties": {
                "title": {"type": "string", "description": "Its name."},
                "year": {"type": "integer"},
            },
            "required": ["title"],
            "additionalProperties": False,
        },
    ),
    (
        Pair,
        {
            "type": "object",
            "properties": {
                "left": {"type": "integer"},
                "right": {"type": "string", "default": "r"},
            },
            "required": ["left"],
            "additionalProperties": False,
        },
    ),
    (
        Box[int],
        {
            "type": "object",
            "properties": {"item": {"type": "integer"}},
            "required": ["item"],
            "additionalProperties": False,
        },
    ),
    (
        Box,
        {
            "type": "object",
            "properties": {"item": {}},
            "required": ["item"],
            "additionalProperties": False,
        },
    ),
]


@pytest.mark.req("schema.from-type")
@pytest.mark.parametrize(("tp", "schema"), SCALARS, ids=lambda item: str(item)[:40])
def test_a_type_has_its_schema(tp: Any, schema: dict[str, Any]) -> None:
    # As text, because Python's equality takes 1 for true.
    assert json.dumps(schema_of(tp)) == json.dumps(schema)


NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)

VALUES: list[tuple[Any, Any, Any]] = [
    (str, "a", "a"),
    (int, 3.0, 3),
    (int, 2**70, 2**70),
    (float, 3, 3.0),
    (None, None, None),
    (Any, {"a": [1]}, {"a": [1]}),
    (Literal[1, True], True, True),
    (Literal[1, True], 1.0, 1),
    (Literal[Color.RED], "red", Color.RED),
    (Color, "blue", Color.BLUE),
    (Level, 2.0, Level.HIGH),
    (Mixed, None, Mixed.NOTHING),
    (int | None, None, None),
    (int | float, 3, 3),
    (int | float, 3.0, 3.0),
    (float | int, 3, 3),
    (bool | int, True, True),
    (str | dt.date, "2024-05-01", "2024-05-01"),
    (dt.date | str, "2024-05-01", dt.date(2024, 5, 1)),
    (dt.date | str, "tomorrow", "tomorrow"),
    (list[int], [1.0, 2], [1, 2]),
    (Sequence[Color], ["red"], [Color.RED]),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[float, ...], [1, 2], (1.0, 2.0)),
    (set[int], [1, 2], {1, 2}),
    (AbstractSet[int], [1], frozenset({1})),
    (dict[str, Level], {"a": 1}, {"a": Level.LOW}),
    (dict[Color, int], {"red": 1}, {Color.RED: 1}),
    (dt.datetime, "2024-05-01T12:00:00Z", NOON),
    (dt.datetime, "2024-05-01T12:00:00", NOON.replace(tzinfo=None)),
    (dt.time, "07:30", dt.time(7, 30)),
    (dt.datetime, "2024-05-01T12:00:00+00:00", NOON),
    (dt.date, "2024-05-01", dt.date(2024, 5, 1)),
    (dt.time, "12:30:00", dt.time(12, 30)),
    (uuid.UUID, str(uuid.UUID(int=7)), uuid.UUID(int=7)),
    (pathlib.PurePosixPath, "/a/b", pathlib.PurePosixPath("/a/b")),
    (decimal.Decimal, "1.10", decimal.Decimal("1.10")),
    (decimal.Decimal, 0.1, decimal.Decimal("0.1")),
    (decimal.Decimal, 2**70, decimal.Decimal(2**70)),
    (Point, {"x": 1}, Point(1.0)),
    (Settings, {"name": "n", "color": "blue"}, Settings(name="n", color=Color.BLUE)),
    (Tree, {"value": 1, "children": [{"value": 2}]}, Tree(1, [Tree(2)])),
    (Left, {"right": {"left": {}}}, Left(Right(Left()))),
    (Movie, {"title": "t", "year": 2000.0}, {"title": "t", "year": 2000}),
    (Partial, {"a": 1, "b": {"x": 1}}, {"a": 1, "b": Point(1.0)}),
    (Child, {"title": "t", "stars": 5}, {"title": "t", "stars": 5}),
    (Pair, {"left": 1}, Pair(1, "r")),
    (Box[Point], {"item": {"x": 2}}, Box(Point(2.0))),
    (Box[Box[int]], {"item": {"item": 2}}, Box(Box(2))),
    (Point | Pair, {"left": 1}, Pair(1)),
    (Annotated[int, "words"] | str, 3, 3),
    (UserId, 3, 3),
]


@pytest.mark.req("schema.from-type")
@pytest.mark.parametrize(
    ("tp", "value", "made"), VALUES, ids=lambda item: str(item)[:40]
)
def test_a_value_is_made_from_json(tp: Any, value: Any, made: Any) -> None:
    result = parsed(tp, value)
    assert result == made
    assert type(result) is type(made)


def test_a_union_parses_again_and_again() -> None:
    _, parse = schema_for_type(list[int | dt.date])
    assert parse([1, "2024-05-01", 2]) == [1, dt.date(2024, 5, 1), 2]


REFUSED: list[tuple[Any, Any, str]] = [
    (int, "42", "expected type integer, got string"),
    (int, True, "expected type integer, got boolean"),
    (str, 42, "expected type string, got integer"),
    (float, 10**400, "is too great for a float"),
    (list[int], [1, "2"], "`[1]`: expected type integer, got string"),
    (Point, {}, "Missing required argument `x`"),
    (Point, {"x": 1, "z": 2}, "Unexpected argument `z`"),
    (Point, [1, 2], "expected type object, got array"),
    (Settings, {"name": "n", "made": "y"}, "Unexpected argument `made`"),
    (Tree, {"value": 1, "children": [{}]}, "`children[0]`: Missing required"),
    (Positive, {"number": 0}, "is refused by Positive: `number` must be > 0"),
    (list[Positive], [{"number": 1}, {"number": -1}], "`[1]`: is refused by Positive"),
    (Movie, {"year": 1}, "Missing required argument `title`"),
    (Color, "green", 'must be one of: "red", "blue"'),
    (dt.datetime, "yesterday", "is not an ISO 8601 date and time"),
    (dt.datetime, "2024-05-01", "is not an ISO 8601 date and time"),
    (list[dt.date], ["2024-05-01", "2024-13-01"], "`[1]`: must be a date"),
    (dt.time, "25:00", "is not an ISO 8601 time"),
    (uuid.UUID, "x", "must be a UUID"),
    (decimal.Decimal, "1,5", "is not a decimal number"),
    (decimal.Decimal, "NaN", "is not a decimal number"),
    (decimal.Decimal, "Infinity", "is not a decimal number"),
    (decimal.Decimal, True, "expected type number or string, got boolean"),
    (dict[Color, int], {"green": 1}, "the name `green` is not allowed"),
    (tuple[int, str], [1], "must have at least 2 items, has 1"),
    (set[int], [1, 1.0], "must not have two equal items"),
    (dt.date | int, "x", "must be a date"),
    (Any, float("nan"), "is not a JSON number"),
    (Left, {"right": {"left": {"right": 3}}}, "`right.left.right`: expected type"),
]


@pytest.mark.req("schema.from-type")
@pytest.mark.parametrize(
    ("tp", "value", "text"), REFUSED, ids=lambda item: str(item)[:40]
)
def test_a_value_that_does_not_fit_is_refused_with_problems(
    tp: Any, value: Any, text: str
) -> None:
    with pytest.raises(SchemaValueError) as caught:
        parsed(tp, value)
    assert caught.value.problems
    assert all(isinstance(one, SchemaProblem) for one in caught.value.problems)
    assert text in str(caught.value)


@pytest.mark.req("JX-17")
@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (list[Point], []),
        (int, 0),
        (bool, False),
        (str, ""),
        (Partial | Left, {}),
        (dict, {}),
    ],
)
def test_an_empty_answer_is_an_answer(tp: Any, value: Any) -> None:
    made = parsed(tp, value)
    assert made == value or made == Left()
    assert made is not None


class Slotted:
    pass


NO_FORM: list[tuple[Any, str]] = [
    (bytes, "`bytes`, which JSON cannot carry"),
    (list[bytes], "an item of"),
    (bytearray, "JSON cannot carry"),
    (complex, "has no form in JSON"),
    (dt.timedelta, "has no form in JSON"),
    (Callable[[], int], "has no form in JSON"),
    (Slotted, "`Slotted`, which has no form in JSON"),
    (Odd, "`Odd`, which has no form in JSON"),
    (Literal[b"a"], "has no form in JSON"),
    (dict[int, str], "whose keys are `int`"),
    ("Point", "the name 'Point', not resolved"),
    (list["Point"], "not resolved"),
    (WithInit, "`WithInit.a` is an `InitVar`"),
    (type[int], "has no form in JSON"),
    (Annotated[int, {"minimum": {1}}], "is annotated with something that"),
    (3, "has no form in JSON"),
    ([int], "has no form in JSON"),
]


@pytest.mark.req("schema.from-type")
@pytest.mark.parametrize(("tp", "text"), NO_FORM, ids=lambda item: str(item)[:40])
def test_a_type_without_a_form_in_json_is_refused(tp: Any, text: str) -> None:
    with pytest.raises(SchemaError) as caught:
        schema_for_type(tp)
    assert text in str(caught.value)


@pytest.mark.req("schema.from-type")
def test_a_type_that_contains_itself_goes_to_the_definitions() -> None:
    schema = schema_of(Tree)
    assert schema["type"] == "object"
    assert schema["properties"]["value"]["description"] == "The number at this place."
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert set(schema["$defs"]) == {"Tree"}
    listed = schema_of(list[Tree])
    assert listed["items"] == {"$ref": "#/$defs/Tree"}
    left = schema_of(Left)
    assert left["type"] == "object"
    assert "Left" in left["$defs"]


@pytest.mark.req("schema.from-type")
def test_a_type_that_is_used_once_stands_where_it_is_used() -> None:
    assert "$defs" not in schema_of(list[Point])
    twice = schema_of(tuple[Point, Point])
    assert twice["prefixItems"] == [{"$ref": "#/$defs/Point"}] * 2
    assert set(twice["$defs"]) == {"Point"}


@pytest.mark.req("schema.from-type")
def test_metadata_that_is_not_hashable_may_stand_anywhere() -> None:
    counted = Annotated[int, {"minimum": 1}]
    boxed = Box[counted]
    schema = schema_of(tuple[boxed, boxed])
    (definition,) = schema["$defs"].values()
    assert definition["properties"]["item"] == {"type": "integer", "minimum": 1}
    assert parsed(dict[str, counted], {"a": 1}) == {"a": 1}


@pytest.mark.req("schema.from-type")
def test_two_types_of_one_name_keep_apart() -> None:
    def make(kind: type) -> Any:
        @dataclass
        class Same:
            a: Any

        Same.__annotations__["a"] = kind
        return Same

    first, second = make(int), make(str)
    schema = schema_of(tuple[first, second, first, second])  # type: ignore[valid-type]
    assert [part["$ref"] for part in schema["prefixItems"]] == [
        "#/$defs/Same",
        "#/$defs/Same2",
        "#/$defs/Same",
        "#/$defs/Same2",
    ]
    kinds = [schema["$defs"][name]["properties"]["a"] for name in ("Same", "Same2")]
    assert kinds == [{"type": "integer"}, {"type": "string"}]


@pytest.mark.req("schema.from-type")
def test_a_dataclass_shows_defaults_and_words() -> None:
    properties = schema_of(Settings)["properties"]
    assert properties == {
        "name": {"type": "string", "description": "Who it is."},
        "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "tags": {
            "type": "array",
            "items": {"type": "string"},
            "uniqueItems": True,
            "default": [],
        },
        "limit": {"type": "integer", "description": "How many.", "default": 3},
        "later": {"type": "array", "items": {"type": "integer"}},
    }
    assert schema_of(Settings)["required"] == ["name"]


@pytest.mark.req("schema.from-type")
def test_totality_and_qualifiers_say_what_is_required() -> None:
    assert schema_of(Partial)["required"] == ["a"]
    assert schema_of(Child)["required"] == ["title"]
    assert set(schema_of(Child)["properties"]) == {"title", "year", "stars"}
    either = typing_extensions.TypedDict(
        "either", {"a": typing_extensions.ReadOnly[int], "b-c": NotRequired[str]}
    )
    schema = schema_of(either)
    assert schema["required"] == ["a"]
    assert set(schema["properties"]) == {"a", "b-c"}


def test_unresolved_annotations_of_a_class_are_refused() -> None:
    @dataclass
    class Hidden:
        part: Fraction

    with pytest.raises(SchemaError, match="cannot be resolved"):
        schema_for_type(Hidden)


def test_an_error_of_a_value_survives_pickling() -> None:
    error: SchemaValueError = pickle.loads(
        pickle.dumps(
            SchemaValueError([SchemaProblem("/a", "m"), SchemaProblem("", "n")])
        )
    )
    assert str(error) == "`a`: m; n"


def test_a_type_alias_stands_for_its_type() -> None:
    ids = typing_extensions.TypeAliasType("ids", list[int])
    many = typing_extensions.TypeAliasType("many", list[T], type_params=(T,))
    assert schema_of(ids) == {"type": "array", "items": {"type": "integer"}}
    assert schema_of(many[int]) == schema_of(ids)
    assert set(schema_of(tuple[ids, ids])["$defs"]) == {"ids"}
    assert parsed(many[Color], ["red"]) == [Color.RED]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="`type` statements")
def test_a_type_alias_may_contain_itself() -> None:
    names: dict[str, Any] = {}
    exec("type Json = None | int | list[Json]\ntype Pairs[A] = list[A]", names)
    schema = schema_of(names["Json"])
    assert "$defs" in schema
    assert parsed(names["Json"], [1, [None]]) == [1, [None]]
    with pytest.raises(SchemaValueError):
        parsed(names["Json"], [1, ["x"]])
    assert schema_of(names["Pairs"][int])["items"] == {"type": "integer"}


class TestConstraints:
    def test_annotated_types_become_keywords(self) -> None:
        pytest.importorskip("annotated_types")
        from annotated_types import (
            Ge,
            Gt,
            Interval,
            Le,
            Len,
            Lt,
            MaxLen,
            MinLen,
            MultipleOf,
        )

        assert schema_of(Annotated[int, Gt(1), Le(5), MultipleOf(2)]) == {
            "type": "integer",
            "exclusiveMinimum": 1,
            "maximum": 5,
            "multipleOf": 2,
        }
        assert schema_of(Annotated[float, Interval(ge=0, lt=1)]) == {
            "type": "number",
            "minimum": 0,
            "exclusiveMaximum": 1,
        }
        assert schema_of(Annotated[int, Ge(0), Lt(3)])["exclusiveMaximum"] == 3
        assert schema_of(Annotated[str, MinLen(1), MaxLen(3)]) == {
            "type": "string",
            "minLength": 1,
            "maxLength": 3,
        }
        assert schema_of(Annotated[list[int], Len(1, 2)])["maxItems"] == 2
        assert schema_of(Annotated[dict[str, int], Len(1)])["minProperties"] == 1
        with pytest.raises(SchemaError, match="is annotated with something"):
            schema_for_type(Annotated[dt.date, Gt(dt.date(2020, 1, 1))])

    def test_pydantic_fields_become_keywords(self) -> None:
        pydantic = pytest.importorskip("pydantic")
        limited = Annotated[int, pydantic.Field(gt=1, description="d")]
        assert schema_of(limited) == {
            "type": "integer",
            "exclusiveMinimum": 1,
            "description": "d",
        }
        named = Annotated[str, pydantic.Field(pattern="^a", min_length=2)]
        assert schema_of(named) == {"type": "string", "pattern": "^a", "minLength": 2}


class TestModels:
    @pytest.fixture
    def models(self) -> Any:
        pydantic = pytest.importorskip("pydantic")
        names: dict[str, Any] = {
            "BaseModel": pydantic.BaseModel,
            "Field": pydantic.Field,
            "date": dt.date,
            "validator": pydantic.field_validator,
        }
        code = """
class Part(BaseModel):
    day: date
    n: int = Field(gt=0)
    @validator("n")
    @classmethod
    def even(cls, n):
        if n % 2:
            raise ValueError("must be even")
        return n
class Whole(BaseModel):
    '''A whole.'''
    name: str
    part: Part
    others: list["Whole"] = []
"""
        exec(code, names)
        names["Part"].model_rebuild(_types_namespace=names)
        names["Whole"].model_rebuild(_types_namespace=names)
        return names

    @pytest.mark.req("schema.models")
    def test_a_model_has_its_own_schema(self, models: Any) -> None:
        schema = schema_of(models["Part"])
        assert schema["type"] == "object"
        assert schema["properties"]["day"]["format"] == "date"
        assert schema["properties"]["n"]["exclusiveMinimum"] == 0

    @pytest.mark.req("schema.models")
    def test_a_model_that_contains_itself_keeps_its_name(self, models: Any) -> None:
        schema = schema_of(models["Whole"])
        assert schema["type"] == "object"
        assert schema["properties"]["others"]["items"] == {"$ref": "#/$defs/Whole"}
        assert set(schema["$defs"]) <= {"Whole", "Part"}

    @pytest.mark.req("schema.models")
    def test_models_and_dataclasses_share_definitions(self, models: Any) -> None:
        whole, part = models["Whole"], models["Part"]
        schema = schema_of(tuple[part, whole, part, whole, Point])  # type: ignore[valid-type]
        assert set(schema["$defs"]) == {"Part", "Whole"}

    @pytest.mark.req("schema.models")
    def test_a_model_makes_its_values(self, models: Any) -> None:
        value = {"name": "w", "part": {"day": "2024-05-01", "n": 2}}
        model = models["Whole"]
        (made,) = parsed(list[model], [value])  # type: ignore[valid-type]
        assert isinstance(made, models["Whole"])
        assert made.part.day == dt.date(2024, 5, 1)

    @pytest.mark.req("schema.models")
    def test_what_a_model_refuses_is_a_problem_with_its_place(
        self, models: Any
    ) -> None:
        model = models["Whole"]
        value = {"name": "w", "part": {"day": "2024-05-01", "n": 3}}
        with pytest.raises(SchemaValueError) as caught:
            parsed(list[model], [value])  # type: ignore[valid-type]
        assert [problem.path for problem in caught.value.problems] == ["/0/part/n"]
        assert "must be even" in str(caught.value)

    @pytest.mark.req("schema.models")
    def test_text_is_not_taken_for_a_number(self, models: Any) -> None:
        with pytest.raises(SchemaValueError, match="expected type integer"):
            parsed(models["Part"], {"day": "2024-05-01", "n": "2"})

    @pytest.mark.req("schema.models")
    def test_a_model_may_be_a_default(self, models: Any) -> None:
        part = models["Part"](day=dt.date(2024, 5, 1), n=2)

        def run(part: Any = part) -> None: ...

        schema = parameters(run)
        assert schema["properties"]["part"]["default"] == {"day": "2024-05-01", "n": 2}

    @pytest.mark.req("schema.models")
    def test_a_closed_model_stays_closed(self) -> None:
        pydantic = pytest.importorskip("pydantic")
        closed = pydantic.ConfigDict(extra="forbid")
        model = pydantic.create_model("Model", __config__=closed, a=(int, ...))
        assert schema_of(list[model])["items"]["additionalProperties"] is False  # type: ignore[valid-type]

    @pytest.mark.req("schema.models")
    def test_a_model_without_a_schema_is_refused(self) -> None:
        pydantic = pytest.importorskip("pydantic")
        model = pydantic.create_model("Model", run=(Callable[[int], int], ...))
        with pytest.raises(SchemaError, match="`Model` is a model without a schema"):
            schema_for_type(model)

    def test_anything_with_the_methods_of_a_model_is_one(self) -> None:
        class Model:
            @classmethod
            def model_json_schema(cls) -> dict[str, Any]:
                return {"type": "integer"}

            @classmethod
            def model_validate(cls, value: Any) -> Any:
                return value

            @classmethod
            def model_validate_json(cls, text: str) -> Any:
                if text == "3":
                    raise ValueError("not three")
                return ("model", text)

        assert parsed(Model, 4) == ("model", "4")
        with pytest.raises(SchemaValueError, match="not three"):
            parsed(Model, 3)


class ExecutionContext:
    """Looks like the library's own."""


ExecutionContext.__module__ = "executionkit.context"


class Service:
    """A service."""

    def method(self, a: int) -> None:
        """Does it.

        Args:
            a: A number.
        """

    @classmethod
    def on_class(cls, a: int) -> None: ...

    @staticmethod
    def static(a: int) -> None: ...

    def __call__(self, a: str) -> None:
        """Calls it."""


@pytest.mark.req("schema.from-signature")
class TestSchemaFromCallable:
    def test_defaults_decide_what_is_required(self) -> None:
        def run(
            a: int,
            b: str | None,
            c: float = 1.5,
            *,
            d: Literal["x", "y"] = "x",
            e: Color = Color.BLUE,
            f: str | None = None,
        ) -> None: ...

        schema = parameters(run)
        assert schema == {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "b": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "c": {"type": "number", "default": 1.5},
                "d": {"type": "string", "enum": ["x", "y"], "default": "x"},
                "e": {"type": "string", "enum": ["red", "blue"], "default": "blue"},
                "f": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            },
            "required": ["a", "b"],
            "additionalProperties": False,
        }

    def test_a_function_without_parameters_takes_nothing(self) -> None:
        def run() -> None: ...

        schema = parameters(run)
        assert schema == {
            "type": "object",
            "properties": {},
            "additionalProperties": False,
        }
        assert compile_schema(schema).validate({}) == []
        assert compile_schema(schema).validate({"a": 1}) != []

    def test_a_parameter_without_annotation_takes_anything(self) -> None:
        def run(a, b=3):  # type: ignore[no-untyped-def]
            ...

        assert parameters(run)["properties"] == {"a": {}, "b": {"default": 3}}

    def test_kwargs_open_the_object(self) -> None:
        def anything(a: int, **rest: Any) -> None: ...
        def bare(**rest) -> None: ...  # type: ignore[no-untyped-def]
        def numbers(**rest: int) -> None: ...

        assert parameters(anything)["additionalProperties"] is True
        assert parameters(anything)["required"] == ["a"]
        assert parameters(bare)["additionalProperties"] is True
        assert parameters(numbers)["additionalProperties"] == {"type": "integer"}

    @pytest.mark.parametrize("name", ["args", "numbers"])
    def test_args_are_refused(self, name: str) -> None:
        def first(a: int, *args: int) -> None: ...
        def second(*numbers: int, b: int = 1) -> None: ...

        function = first if name == "args" else second
        with pytest.raises(SchemaError, match=rf"parameter `\*{name}.*by position"):
            schema_from_callable(function)

    def test_positional_only_parameters_are_refused(self) -> None:
        def run(a: int, /, b: int) -> None: ...

        with pytest.raises(SchemaError, match=r"parameter `a: .*by position"):
            schema_from_callable(run)

    def test_receivers_are_left_out(self) -> None:
        only_a = {"a": {"type": "integer"}}
        described = {"a": {"type": "integer", "description": "A number."}}
        assert parameters(Service.method)["properties"] == described
        assert parameters(Service().method)["properties"] == described
        assert parameters(Service.on_class)["properties"] == only_a
        assert parameters(Service.static)["properties"] == only_a
        assert parameters(Service.__dict__["on_class"].__func__)["properties"] == only_a

        def positional(self: Any, /, a: int) -> None: ...
        def late(a: int, self: int) -> None: ...

        assert parameters(positional)["properties"] == only_a
        assert set(parameters(late)["properties"]) == {"a", "self"}

    def test_objects_classes_and_partials_can_be_called_too(self) -> None:
        schema, words = schema_from_callable(Service())
        assert schema["properties"] == {"a": {"type": "string"}}
        assert words == "Calls it."
        schema, words = schema_from_callable(Point)
        assert schema["required"] == ["x"]
        assert words == "" or words.startswith("Point(")

        def run(a: int, b: str, c: float = 1.0) -> None:
            """Runs."""

        schema, words = schema_from_callable(functools.partial(run, 3))
        assert schema["required"] == ["b"]
        assert words == "Runs."
        schema, _ = schema_from_callable(functools.partial(run, b="x"))
        assert schema["required"] == ["a"]
        assert schema["properties"]["b"] == {"type": "string", "default": "x"}

    def test_a_decorated_function_shows_what_it_wraps(self) -> None:
        def run(a: Point) -> None:
            """Runs."""

        @functools.wraps(run)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return run(*args, **kwargs)

        schema, words = schema_from_callable(wrapper)
        assert schema["properties"]["a"]["type"] == "object"
        assert words == "Runs."

    def test_async_functions_and_generators_are_functions(self) -> None:
        async def run(a: int) -> None: ...
        async def stream(a: int) -> Any:
            yield a

        assert parameters(run) == parameters(stream)

    def test_the_context_is_left_out(self) -> None:
        def run(
            a: int,
            context: ExecutionContext,
            maybe: ExecutionContext | None = None,
            noted: Annotated[ExecutionContext, "x"] | None = None,
        ) -> None: ...

        assert set(parameters(run)["properties"]) == {"a"}

        class Foreign:
            pass

        Foreign.__name__ = "ExecutionContext"

        def other(a: Foreign) -> None: ...

        other.__annotations__["a"] = Foreign
        with pytest.raises(SchemaError, match="no form in JSON"):
            schema_from_callable(other)

    def test_a_context_that_is_imported_for_typing_only_is_left_out(self) -> None:
        def run(
            a: int, context: executionkit.ExecutionContext | None = None
        ) -> None: ...
        def mapped(a: dict[str, ExecutionContextLike]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        assert set(parameters(run)["properties"]) == {"a"}
        with pytest.raises(SchemaError, match="cannot be resolved"):
            schema_from_callable(mapped)

    def test_more_types_can_be_injected(self) -> None:
        def run(a: int, service: Service, other: Service | None = None) -> None: ...

        with pytest.raises(SchemaError, match="parameter `service` of"):
            schema_from_callable(run)
        schema = parameters(run, injected=(Service,))
        assert set(schema["properties"]) == {"a"}
        parse = parser_from_callable(run, injected=(Service,))
        assert parse is not None
        assert parse({"a": 1.0}) == {"a": 1}

    def test_one_bad_annotation_harms_only_its_parameter(self) -> None:
        def run(a: int) -> Fraction: ...  # type: ignore[empty-body]
        def bad(a: int, b: Fraction) -> None: ...

        assert parameters(run)["properties"] == {"a": {"type": "integer"}}
        with pytest.raises(SchemaError) as caught:
            schema_from_callable(bad)
        text = str(caught.value)
        assert "parameter `b`" in text
        assert "`Fraction` cannot be resolved" in text
        assert "TYPE_CHECKING" in text

    def test_names_of_the_enclosing_function_are_found(self) -> None:
        @dataclass
        class Inner:
            n: int

        def run(a: Inner) -> Any:
            return Inner

        assert parameters(run)["properties"]["a"]["required"] == ["n"]

    def test_a_name_that_is_not_bound_yet_is_unresolved(self) -> None:
        def run(a: int, b: Later) -> Any:  # type: ignore[valid-type]
            return Later

        with pytest.raises(SchemaError, match="`Later` cannot be resolved"):
            schema_from_callable(run)
        Later = int
        assert parameters(run)["properties"]["b"] == {"type": "integer"}

    def test_errors_name_the_parameter_and_the_function(self) -> None:
        def run(data: bytes) -> None: ...

        with pytest.raises(
            SchemaError, match=r"parameter `data` of `.*run` is `bytes`"
        ):
            schema_from_callable(run)

    @pytest.mark.parametrize("function", [print, len, object(), dict])
    def test_what_has_no_usable_signature_is_refused(self, function: Any) -> None:
        with pytest.raises(SchemaError):
            schema_from_callable(function)

    def test_defaults_are_shown_in_their_json_form(self) -> None:
        def run(
            a: Point = Point(1.0),  # noqa: B008
            b: tuple[int, ...] = (1, 2),
            c: frozenset[str] = frozenset({"b", "a"}),
            d: pathlib.PurePosixPath = pathlib.PurePosixPath("/x"),  # noqa: B008
            e: dt.date = dt.date(2024, 5, 1),
            f: decimal.Decimal = decimal.Decimal("1.5"),
            g: uuid.UUID = uuid.UUID(int=0),  # noqa: B008
            h: Pair = Pair(1),  # noqa: B008
            i: dict[str, list[Color]] = {"k": [Color.RED]},  # noqa: B006
            j: Any = object(),  # noqa: B008
            k: Any = float("nan"),
        ) -> None: ...

        properties = parameters(run)["properties"]
        shown = {
            name: part.get("default", "no default") for name, part in properties.items()
        }
        assert shown == {
            "a": {"x": 1.0, "y": 0.0},
            "b": [1, 2],
            "c": ["a", "b"],
            "d": "/x",
            "e": "2024-05-01",
            "f": "1.5",
            "g": "00000000-0000-0000-0000-000000000000",
            "h": {"left": 1, "right": "r"},
            "i": {"k": ["red"]},
            "j": "no default",
            "k": "no default",
        }
        assert "required" not in parameters(run)

    def test_shared_types_are_defined_once(self) -> None:
        def run(a: Tree, b: Point, c: Point | None = None) -> None: ...

        schema = parameters(run)
        assert set(schema["$defs"]) == {"Tree", "Point"}
        assert schema["properties"]["b"] == {"$ref": "#/$defs/Point"}
        check = compile_schema(schema)
        assert check.validate({"a": {"value": 1}, "b": {"x": 1}, "c": None}) == []
        assert check.validate({"a": {"value": 1}, "b": {"x": "1"}}) != []

    def test_the_schema_is_fresh_each_time(self) -> None:
        def run(a: list[int]) -> None: ...

        first = parameters(run)
        first["properties"]["a"]["items"]["type"] = "string"
        assert parameters(run)["properties"]["a"]["items"] == {"type": "integer"}
        assert schema_of(int) == {"type": "integer"}
        schema_of(int)["type"] = "changed"
        assert schema_of(int) == {"type": "integer"}


@pytest.mark.req("schema.from-signature")
class TestParserFromCallable:
    def test_arguments_become_what_the_annotations_say(self) -> None:
        def run(
            when: dt.date, where: Point, tags: set[str], n: int = 1, **rest: Any
        ) -> None: ...

        parse = parser_from_callable(run)
        assert parse is not None
        assert parse(
            {"when": "2024-05-01", "where": {"x": 1}, "tags": ["a"], "more": [1]}
        ) == {
            "when": dt.date(2024, 5, 1),
            "where": Point(1.0),
            "tags": {"a"},
            "more": [1],
        }

    def test_what_a_type_refuses_is_a_problem_of_its_parameter(self) -> None:
        def run(when: dt.date) -> None: ...

        parse = parser_from_callable(run)
        assert parse is not None
        with pytest.raises(SchemaValueError) as caught:
            parse({"when": "today"})
        assert str(caught.value) == "`when`: is not an ISO 8601 date"

    def test_a_choice_that_was_not_checked_is_refused_here(self) -> None:
        def run(color: Color, mode: Literal["a"]) -> None: ...

        parse = parser_from_callable(run)
        assert parse is not None
        with pytest.raises(SchemaValueError, match="`color`: is no Color"):
            parse({"color": "green"})
        with pytest.raises(SchemaValueError, match="`mode`: is no Literal"):
            parse({"mode": "b"})

    def test_plain_parameters_need_no_parser(self) -> None:
        def plain(a: str, b: bool, c: Any = None, d: str = "x") -> None: ...
        def untyped(a, b) -> None: ...  # type: ignore[no-untyped-def]

        assert parser_from_callable(plain) is None
        assert parser_from_callable(untyped) is None

    def test_arguments_that_are_plain_already_are_passed_on(self) -> None:
        from executionkit.types import freeze_mapping

        def run(count: int, text: str | None = None) -> None: ...

        parse = parser_from_callable(run)
        assert parse is not None
        given = {"count": 1}
        assert parse(given) is given
        made = parse(freeze_mapping(given))
        assert made == given
        assert type(made) is dict

    def test_frozen_arguments_become_free_ones(self) -> None:
        from executionkit.types import freeze_mapping

        def run(items: list[Any], n: int) -> None: ...

        parse = parser_from_callable(run)
        assert parse is not None
        made = parse(freeze_mapping({"items": [[1]], "n": 1}))
        made["items"][0].append(2)
        assert made == {"items": [[1, 2]], "n": 1}


@dataclass
class Sample:
    number: int
    text: str | None
    color: Color
    points: list[Point]
    levels: dict[str, Level]
    pair: tuple[int, str]


@pytest.mark.req("schema.from-type")
@settings(deadline=None)
@given(
    st.builds(
        Sample,
        number=st.integers(),
        text=st.none() | st.text(),
        color=st.sampled_from(Color),
        points=st.lists(
            st.builds(
                Point,
                st.floats(allow_nan=False, allow_infinity=False),
                st.floats(allow_nan=False, allow_infinity=False),
            ),
            max_size=2,
        ),
        levels=st.dictionaries(st.text(max_size=3), st.sampled_from(Level), max_size=2),
        pair=st.tuples(st.integers(), st.text(max_size=3)),
    )
)
def test_what_is_written_as_json_comes_back(sample: Sample) -> None:
    from dataclasses import asdict

    text = json.dumps(asdict(sample))
    assert parsed(Sample, json.loads(text)) == sample


def pay(amount: decimal.Decimal | uuid.UUID) -> None: ...


@pytest.mark.req("schema.from-type")
def test_a_union_whose_types_all_refuse_says_why() -> None:
    parse = parser_from_callable(pay)
    assert parse is not None
    assert parse({"amount": "1.50"}) == {"amount": decimal.Decimal("1.50")}
    with pytest.raises(SchemaValueError, match="decimal"):
        parse({"amount": "abc"})
