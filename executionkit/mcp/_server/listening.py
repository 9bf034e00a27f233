"""Notifications that a client of 2026-07-28 has asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from executionkit.mcp._constants import INVALID_PARAMS, META_SUBSCRIPTION
from executionkit.mcp._server.messages import Id, ProtocolError, notification

if TYPE_CHECKING:
    from executionkit.mcp._server.peer import Outlet

__all__ = ("Subscription",)

_MAX_URIS: Final = 1000


class Subscription:
    """What one `subscriptions/listen` request wants to hear.

    Raises:
        ProtocolError: When the request says nothing that can be understood.
    """

    def __init__(
        self,
        outlet: Outlet,
        request_id: Id,
        params: Mapping[str, Any],
        capabilities: Mapping[str, Any],
    ) -> None:
        wanted = params.get("notifications")
        if not isinstance(wanted, Mapping):
            msg = "Invalid params: `notifications` must be an object"
            raise ProtocolError(INVALID_PARAMS, msg)
        self._outlet = outlet
        self._id = request_id
        self._kinds = {
            kind
            for kind in ("tools", "prompts", "resources")
            if wanted.get(f"{kind}ListChanged") is True and kind in capabilities
        }
        uris = wanted.get("resourceSubscriptions")
        self._uris = (
            {uri for uri in uris[:_MAX_URIS] if isinstance(uri, str)}
            if isinstance(uris, list) and "resources" in capabilities
            else set[str]()
        )

    def begin(self) -> None:
        """Tell what of it will be told."""
        agreed: dict[str, Any] = {f"{kind}ListChanged": True for kind in self._kinds}
        if self._uris:
            agreed["resourceSubscriptions"] = sorted(self._uris)
        self._say("notifications/subscriptions/acknowledged", notifications=agreed)

    def list_changed(self, kind: str) -> None:
        """A list is not what it was."""
        if kind in self._kinds:
            self._say(f"notifications/{kind}/list_changed")

    def resource_updated(self, uri: str) -> None:
        """A resource is not what it was."""
        if uri in self._uris:
            self._say("notifications/resources/updated", uri=uri)

    def result(self) -> dict[str, Any]:
        """The answer, when the server ends."""
        return {"_meta": {META_SUBSCRIPTION: self._id}}

    def _say(self, method: str, **params: Any) -> None:
        params["_meta"] = {META_SUBSCRIPTION: self._id}
        self._outlet.put(notification(method, params))
