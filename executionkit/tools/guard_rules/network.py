"""The rule that keeps calls off private networks."""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any, TypeAlias

from executionkit.tools._guard_values import BaseGuard, EnforcementLevel, GuardResult
from executionkit.tools.guard_rules._hosts import (
    Host,
    domain_of,
    is_public,
    matches,
)
from executionkit.tools.guard_rules._urls import Target, nothing_in, targets_in

if TYPE_CHECKING:
    from executionkit.calls import ToolCall
    from executionkit.tools._record import ToolRecord

__all__ = ("NetworkGuard", "NetworkPolicyGuard", "Resolve")

Resolve: TypeAlias = Callable[[str], Awaitable[Iterable[object]]]
"""Host name -> the addresses it has (texts or `ipaddress` objects)."""

_Network: TypeAlias = IPv4Network | IPv6Network
_PASS = GuardResult.allow()


class NetworkGuard(BaseGuard):
    """Blocks calls whose arguments name a private, reserved or forbidden host.

    URLs are found in all texts of the arguments, nested ones and keys too; hosts also
    in arguments whose name says so (`url`, `uri`, `host`, `hostname`, `endpoint`, ...).
    Private are: loopback, link-local, cloud metadata, reserved and documentation
    addresses in every spelling that a resolver takes, names of local networks
    (`localhost`, `*.internal`, names without a dot), names that can be made to lead
    there (`127.0.0.1.nip.io`), and what cannot be read for sure.

    What it cannot see: where a name resolves to (give `resolve`), and where the tool
    is redirected to, or a name that resolves to something else a moment later. A tool
    that follows redirects must check each of them, and connect to the address checked.

    Args:
        schemes: Allowed URL schemes.
        allow_domains: When given, only these hosts. `example.com` = it and what is
            below it, `*.example.com` = only what is below it.
        deny_domains: Never these.
        trusted: Hosts and networks (`10.1.0.0/16`) that count as public.
        allow_userinfo: Whether `user:password@host` may stand in a URL.
        scan_text: Whether URLs inside of longer texts count; False = only texts that
            are a URL as a whole, and arguments whose name says so.
        exempt: Tools (full names) that are not checked.
        resolve: Asked for the addresses of each name; one that is not public, or none
            at all, blocks. The check is asynchronous then.
        enforcement: How far its word goes.

    Raises:
        ValueError: When a scheme or domain cannot be read.
    """

    name = "network"

    def __init__(  # noqa: PLR0913 - options, all by keyword
        self,
        *,
        schemes: Collection[str] = ("https",),
        allow_domains: Collection[str] | None = None,
        deny_domains: Collection[str] = (),
        trusted: Collection[str] = (),
        allow_userinfo: bool = False,
        scan_text: bool = True,
        exempt: Collection[str] = (),
        resolve: Resolve | None = None,
        enforcement: EnforcementLevel = EnforcementLevel.BLOCK,
    ) -> None:
        super().__init__(enforcement=enforcement)
        self._schemes = frozenset(map(_scheme, _listed("schemes", schemes)))
        self._allow = (
            None if allow_domains is None else _domains("allow_domains", allow_domains)
        )
        self._deny = _domains("deny_domains", deny_domains)
        self._networks: tuple[_Network, ...] = tuple(
            network
            for text in _listed("trusted", trusted)
            if (network := _network(text)) is not None
        )
        self._names = _domains(
            "trusted", [text for text in trusted if _network(text) is None]
        )
        self._userinfo = allow_userinfo
        self._scan_text = scan_text
        self._exempt = frozenset(_listed("exempt", exempt))
        self._resolve = resolve

    def check(
        self, call: ToolCall, record: ToolRecord, /
    ) -> GuardResult | Coroutine[Any, Any, GuardResult]:
        """Look at all URLs and hosts in the arguments."""
        if not call.arguments or record.full_name in self._exempt:
            return _PASS
        if nothing_in(call.arguments):
            return _PASS
        names: dict[str, str] = {}
        for target in targets_in(call.arguments, scan_text=self._scan_text):
            problem = self._problem(target)
            if problem:
                return _blocked(target.place, problem)
            if self._resolve is not None and target.host is not None:
                host = target.host
                if host.name and not host.addresses and not self._is_trusted(host):
                    names.setdefault(host.name, target.place)
        return self._resolved(names) if names else _PASS

    async def _resolved(self, names: dict[str, str]) -> GuardResult:
        if self._resolve is None:  # pragma: no cover - not called then
            return _PASS
        for name, place in names.items():
            found = [ip_address(str(item)) for item in await self._resolve(name)]
            if not found:
                return _blocked(place, f"the host {name!r} has no address")
            for address in found:
                if not is_public(address) and not self._is_trusted(
                    Host(str(address), (address,))
                ):
                    text = f"the host {name!r} leads to {address}, which is not public"
                    return _blocked(place, text)
        return _PASS

    def _problem(self, target: Target) -> str:
        if target.scheme and target.scheme not in self._schemes:
            allowed = ", ".join(sorted(self._schemes)) or "none"
            return f"the scheme {target.scheme!r} is not allowed (allowed: {allowed})"
        if target.trick and not (self._userinfo and target.trick == "userinfo"):
            return f"its address has {target.trick} in it, which hides the real host"
        host = target.host
        if host is None:
            return ""
        return self._host_problem(host, target)

    def _host_problem(self, host: Host, target: Target) -> str:
        if host.problem:
            return "" if target.maybe_path else _unsure(host)
        keys = host.texts
        if any(matches(key, domain) for key in keys for domain in self._deny):
            return f"the host {_shown(host)} is on the list of forbidden ones"
        private = not host.public or (
            not host.addresses and not target.maybe_path and "." not in host.name
        )
        if private and not self._is_trusted(host):
            if host.addresses:
                return f"{_shown(host)} is not a public address"
            return f"{_shown(host)} is a name of a local network, or can lead into one"
        if self._allow is not None and not all(
            any(matches(key, domain) for domain in self._allow) for key in keys
        ):
            return f"the host {_shown(host)} is not on the list of allowed ones"
        return ""

    def _is_trusted(self, host: Host) -> bool:
        if not self._names and not self._networks:
            return False
        if host.addresses:
            return all(
                str(address) in self._names
                or any(
                    address.version == network.version and address in network
                    for network in self._networks
                )
                for address in host.addresses
            )
        return any(matches(host.name, domain) for domain in self._names)


NetworkPolicyGuard = NetworkGuard
"""Another name of `NetworkGuard`."""


def _shown(host: Host) -> str:
    return repr(host.name[:100])


def _unsure(host: Host) -> str:
    return f"the host {_shown(host)} cannot be judged: {host.problem}"


def _blocked(place: str, problem: str) -> GuardResult:
    text = f"argument `{place}`: {problem}"
    return GuardResult.block(text, {"argument": place})


# --- reading options ------------------------------------------------------------
def _listed(name: str, values: Collection[str]) -> Collection[str]:
    if isinstance(values, str):
        msg = f"`{name}` must be a list of texts, got the text {values!r}"
        raise ValueError(msg)
    return values


def _scheme(text: str) -> str:
    scheme = text.lower().removesuffix("://").removesuffix(":")
    if not scheme.isascii() or not scheme or not scheme[0].isalpha():
        msg = f"`schemes` has {text!r}, which is no URL scheme such as 'https'"
        raise ValueError(msg)
    return scheme


def _domains(name: str, values: Collection[str]) -> tuple[str, ...]:
    found: list[str] = []
    for text in _listed(name, values):
        below = text.startswith(("*.", "."))
        try:
            domain = domain_of(unicodedata.normalize("NFKC", text).lstrip("*."))
        except ValueError as exc:
            msg = f"`{name}`: {exc}; give a host such as 'example.com'"
            raise ValueError(msg) from None
        found.append(f"*.{domain}" if below else domain)
    return tuple(found)


def _network(text: str) -> _Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None
