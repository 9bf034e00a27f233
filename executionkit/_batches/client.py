"""What the clients of both services are: a server, its key, its limits."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from executionkit._arguments import shown
from executionkit._batches.lines import parsed, split_lines
from executionkit._endpoint import (
    Options,
    Site,
    checked_headers,
    checked_key,
    environment_settings,
    make_endpoint,
)
from executionkit._redact import redact_url
from executionkit._wire.common import parse_json
from executionkit._wire.failures import refuse
from executionkit._wire.urls import target_of

if TYPE_CHECKING:
    from executionkit._batches.values import BatchRequest
    from executionkit._http import HttpTransport

__all__ = ("ClientBase", "checked_id", "joined", "transport_settings")

_ID: Final = re.compile(r"[\w.:-]{1,256}", re.ASCII)
_NO_MODEL: Final = "-"


def checked_id(batch_id: object) -> str:
    """The id of a batch or a file as a part of a path.

    Raises:
        TypeError: When it is no text.
        ValueError: When it cannot be one: it would lead to another address.
    """
    if not isinstance(batch_id, str):
        msg = f"`batch_id` must be a str, got {shown(batch_id)}"
        raise TypeError(msg)
    if not _ID.fullmatch(batch_id) or not batch_id.strip("."):
        msg = f"{shown(batch_id)} cannot be the id of a batch"
        raise ValueError(msg)
    return quote(batch_id, safe="")


def known_id(found: Any) -> str:
    """The id of a batch out of the service's object.

    Raises:
        BadResponseError: When it has none that could be asked for.
    """
    if not isinstance(found, Mapping):
        refuse("the answer holds a batch that is no JSON object")
    batch_id = found.get("id")
    if not isinstance(batch_id, str) or not batch_id:
        refuse("the answer has no `id` of a batch")
    try:
        checked_id(batch_id)
    except ValueError as exc:
        refuse(f"the answer has an `id` that cannot be used: {exc}")
    return batch_id


def listed(page: Mapping[str, Any]) -> list[Any]:
    """The batches of a page of the service's list.

    Raises:
        BadResponseError: When it is none. Nobody may conclude that there are none.
    """
    data = page.get("data")
    if not isinstance(data, list):
        refuse("the answer has no list of batches in `data`")
    return data


class ClientBase:
    """A service that is reached over HTTP.

    Args:
        settings: The arguments of the subclass, to make it again from.
        key_header: The headers with the key.
        path: Of the batches, below the base URL.
    """

    def __init__(
        self, settings: dict[str, Any], key_header: Mapping[str, str], path: str
    ) -> None:
        self._settings = settings
        base_url, model = settings["base_url"], settings["model"]
        checked_key(base_url, _NO_MODEL if model is None else model, "")
        self.base_url: str = base_url
        self.model: str | None = model
        options = Options(
            timeout=settings["timeout"],
            idle_timeout=None,
            connect_timeout=settings["connect_timeout"],
            transport=settings["transport"],
            headers=checked_headers(settings["headers"]),
            max_connections=settings["max_connections"],
        )
        self._site = make_endpoint(base_url, path, key_header, options, Site)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={redact_url(self.base_url)!r})"

    @classmethod
    def _from_env(
        cls,
        variables: Mapping[str, str],
        may_miss: set[str],
        environ: Mapping[str, str] | None,
        settings: dict[str, Any],
    ) -> Self:
        made: Any = cls
        found: dict[str, Any] = environment_settings(
            variables, may_miss | settings.keys(), environ
        )
        client: Self = made(**{**found, **settings})
        return client

    @property
    def known_secrets(self) -> tuple[str, ...]:
        """Texts that must not appear in errors and traces."""
        return self._site.secrets

    async def aclose(self) -> None:
        """Close the connections of the running loop; using it again opens new ones."""
        await self._site.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    def _url(self, path: str) -> str:
        return target_of(self.base_url, path).url

    def _json(self, body: bytes) -> dict[str, Any]:
        found = parse_json(body, secrets=self.known_secrets)
        if not isinstance(found, dict):
            refuse("the answer was not a JSON object")
        return found

    def _model_of(self, request: BatchRequest) -> str:
        model: object = request.params.get("model", self.model)
        if isinstance(model, str) and model.strip():
            return model
        msg = (
            f"the request {request.custom_id!r} names no model: put `model` into its "
            "`params`, or give the client one"
        )
        raise ValueError(msg)

    async def _entries(
        self, pieces: AsyncGenerator[bytes], where: str = ""
    ) -> AsyncGenerator[dict[str, Any] | str]:
        """The objects of JSON lines; a text for each line that is none."""
        async with aclosing(split_lines(pieces)) as lines:
            async for number, line in lines:
                found = parsed(number, line, self.known_secrets)
                yield found if isinstance(found, dict) else where + found


def _rebuild(cls: type[Any], settings: dict[str, Any]) -> object:
    return cls(**settings)


def transport_settings(
    *,
    timeout: float | None,
    connect_timeout: float | None,
    transport: HttpTransport | str | None,
    headers: Mapping[str, str] | None,
    max_connections: int,
) -> dict[str, Any]:
    """The settings that both clients have, by their names."""
    return {
        "timeout": timeout,
        "connect_timeout": connect_timeout,
        "transport": transport,
        "headers": headers,
        "max_connections": max_connections,
    }


def joined(lines: Sequence[bytes]) -> bytes:
    """Encoded requests as JSON lines."""
    return b"".join([line + b"\n" for line in lines])
