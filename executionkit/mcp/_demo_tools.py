"""Tools without side effects, for the `react_loop` tool of the MCP server."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any, Final

from executionkit.types import Tool

__all__ = ("calculate", "demo_tools", "echo")

_MAX_CHARS: Final = 500
_MAX_BITS: Final = 4096
_SECONDS: Final = 5.0

_UNARY: Final[dict[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def calculate(expression: str) -> str:
    """The value of an arithmetic expression; integers stay exact.

    Args:
        expression: Numbers, `+ - * / // % **` and parentheses.

    Raises:
        ValueError: When it is something else, or its value is too large.
    """
    if len(expression) > _MAX_CHARS:
        msg = f"the expression is longer than {_MAX_CHARS} characters"
        raise ValueError(msg)
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        value = _value(tree.body)
    except (SyntaxError, RecursionError, MemoryError) as exc:
        msg = f"this is no arithmetic expression: {expression!r}"
        raise ValueError(msg) from exc
    except ZeroDivisionError as exc:
        msg = "division by zero"
        raise ValueError(msg) from exc
    except OverflowError as exc:
        msg = "the value is too large"
        raise ValueError(msg) from exc
    return str(value)


def _value(node: ast.expr) -> int | float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _checked(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _checked(_UNARY[type(node.op)](_value(node.operand)))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            _check_power(left, right)
        return _checked(_BINARY[type(node.op)](left, right))
    msg = "only numbers, + - * / // % ** and parentheses can be used"
    raise ValueError(msg)


def _check_power(base: float, exponent: float) -> None:
    whole = isinstance(base, int) and isinstance(exponent, int) and exponent > 0
    if whole and int(base).bit_length() * exponent > _MAX_BITS:
        msg = "the value is too large"
        raise ValueError(msg)


def _checked(value: Any) -> int | float:
    if type(value) is int and value.bit_length() <= _MAX_BITS:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    msg = "the value is too large, or no real number"
    raise ValueError(msg)


def echo(text: str) -> str:
    """`text` again."""
    return text


def demo_tools() -> list[Tool]:
    """The two tools."""

    async def calculator(expression: str) -> str:
        return calculate(expression)

    async def repeat(text: str) -> str:
        return echo(text)

    return [
        Tool(
            "calculator",
            "Compute an arithmetic expression.",
            _parameters("expression", "Such as (2 + 3) * 4."),
            calculator,
            _SECONDS,
        ),
        Tool("echo", "Give a text back.", _parameters("text", ""), repeat, _SECONDS),
    ]


def _parameters(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "string"}
    if description:
        schema["description"] = description
    return {
        "type": "object",
        "properties": {name: schema},
        "required": [name],
        "additionalProperties": False,
    }
