"""JSON-RPC: from bytes to messages and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from executionkit._constants import MAX_JSON_DEPTH
from executionkit.mcp._constants import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
)
from executionkit.types import thaw

__all__ = (
    "Id",
    "Incoming",
    "Kind",
    "Message",
    "ProtocolError",
    "decode",
    "encode",
    "failure",
    "notification",
    "read_message",
    "response",
)

Id: TypeAlias = "str | int"
Message: TypeAlias = "dict[str, Any]"


class ProtocolError(Exception):
    """An error of the protocol: the answer to a request is an error, not a result.

    A tool that fails in a way the model should read about raises something else.

    Args:
        code: The number on the wire.
        message: What is wrong, in words.
        data: More about it, JSON-like.
        id: The request that it answers; None = unknown.
    """

    def __init__(
        self,
        code: int,
        message: str,
        data: object = None,
        id: Id | None = None,  # noqa: A002 - the wire's own word
    ) -> None:
        super().__init__(message)
        self.code: int = code
        self.message: str = message
        self.data: object = data
        self.id: Id | None = id


class Kind(Enum):
    """What a message is."""

    REQUEST = 1
    NOTIFICATION = 2
    RESPONSE = 3


class Incoming(NamedTuple):
    """A message that is well-formed as far as JSON-RPC goes."""

    kind: Kind
    id: Id | None
    method: str
    params: dict[str, Any]
    message: dict[str, Any]


def _no_constant(name: str) -> NoReturn:
    msg = f"{name} is no JSON"
    raise ValueError(msg)


_decoder: Final = json.JSONDecoder(parse_constant=_no_constant)


def decode(data: bytes | bytearray) -> Any:
    """The JSON value that `data` holds.

    Raises:
        ProtocolError: When it holds none, or one that is nested too deeply.
    """
    try:
        value = _decoder.decode(data.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        # Invalid UTF-8, invalid JSON, an integer beyond the interpreter's limit.
        raise ProtocolError(PARSE_ERROR, "Parse error: this is no JSON") from exc
    if data.count(b"{") + data.count(b"[") > MAX_JSON_DEPTH and _too_deep(value):
        msg = f"Invalid request: nested deeper than {MAX_JSON_DEPTH} levels"
        raise ProtocolError(INVALID_REQUEST, msg, id=_id_of(value))
    return value


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            item
            for part in level
            for item in (part.values() if isinstance(part, dict) else part)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return False
    return True


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    msg = f"a {type(value).__name__} cannot be written as JSON"
    raise TypeError(msg)


_options: Final[dict[str, Any]] = {
    "allow_nan": False,
    "separators": (",", ":"),
    "default": _plain,
}
_encode_text: Final = json.JSONEncoder(ensure_ascii=False, **_options).encode
_encode_ascii: Final = json.JSONEncoder(ensure_ascii=True, **_options).encode


def encode(message: Any) -> bytes:
    """`message` as one line of JSON in UTF-8, without the line's end.

    A response that cannot be written becomes an error with its id: it is owed.
    """
    try:
        return _write(message)
    except (TypeError, ValueError, RecursionError) as exc:
        told = ProtocolError(
            INTERNAL_ERROR, f"Internal error: {type(exc).__name__} writing the message"
        )
        if isinstance(message, list):
            return b"[" + b",".join(encode(item) for item in message) + b"]"
        if "method" in message:
            return _write(notification(message["method"], {}))
        return _write(failure(message.get("id"), told))


def _write(message: Any) -> bytes:
    try:
        return _encode_text(message).encode("utf-8")
    except UnicodeEncodeError:  # half a surrogate pair
        return _encode_ascii(message).encode("ascii")


def _id_of(message: object) -> Id | None:
    found = message.get("id") if isinstance(message, dict) else None
    return found if type(found) in (str, int) else None


def read_message(message: object) -> Incoming:
    """What a JSON value is as a message.

    Raises:
        ProtocolError: When it is none. Its `id` is that of the message, if it has one.
    """
    if not isinstance(message, dict):
        raise ProtocolError(INVALID_REQUEST, "Invalid request: not an object")
    if "method" not in message and ("result" in message or "error" in message):
        return Incoming(Kind.RESPONSE, _id_of(message), "", {}, message)
    found = _id_of(message)
    if "id" in message and found is None:
        raise ProtocolError(
            INVALID_REQUEST, "Invalid request: `id` must be a text or an integer"
        )
    if message.get("jsonrpc") != "2.0":
        msg = 'Invalid request: `jsonrpc` must be "2.0"'
        raise ProtocolError(INVALID_REQUEST, msg, id=found)
    method = message.get("method")
    if not isinstance(method, str):
        msg = "Invalid request: `method` must be a text"
        raise ProtocolError(INVALID_REQUEST, msg, id=found)
    params = message.get("params")
    if params is None:
        params = {}
    if not isinstance(params, dict):
        if found is None:  # a notification is never answered
            params = {}
        else:
            msg = "Invalid params: `params` must be an object"
            raise ProtocolError(INVALID_PARAMS, msg, id=found)
    kind = Kind.NOTIFICATION if found is None else Kind.REQUEST
    return Incoming(kind, found, method, params, message)


def response(id: Id | None, result: object) -> Message:  # noqa: A002 - the wire's word
    """The answer to a request."""
    return {"jsonrpc": "2.0", "id": id, "result": result}


def failure(id: Id | None, error: ProtocolError) -> Message:  # noqa: A002
    """The answer to a request that is refused."""
    told: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        told["data"] = thaw(error.data)
    return {"jsonrpc": "2.0", "id": id, "error": told}


def notification(method: str, params: Mapping[str, Any] | None = None) -> Message:
    """A message that nobody answers."""
    made: Message = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        made["params"] = dict(params)
    return made
