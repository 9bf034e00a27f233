"""The network guard: what is private in any spelling, what is public, what lists say."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.calls import ToolCall
from executionkit.engine.schema import compile_schema
from executionkit.tools._record import Kind, ToolRecord
from executionkit.tools.guard_rules import NetworkGuard, NetworkPolicyGuard
from executionkit.tools.guard_rules._hosts import is_public, read_host
from executionkit.tools.guards import GuardChain, GuardResult
from executionkit.types import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WEB = ToolRecord(
    Tool("web", "", {"type": "object"}, lambda **_: None),
    kind=Kind.SYNC,
    validator=compile_schema({"type": "object"}),
)
ALLOW = GuardResult.allow()
GUARD = NetworkGuard()


def judge(arguments: dict[str, Any], guard: NetworkGuard = GUARD) -> str:
    """The reason of the block; empty when allowed."""
    found = guard.check(ToolCall("c", "web", arguments), WEB)
    assert isinstance(found, GuardResult)
    return "" if found is ALLOW else found.reason


def everywhere(host: str) -> Iterable[dict[str, Any]]:
    """`host` at each place where it may stand."""
    yield {"url": f"https://{host}/x"}
    yield {"anything": f"https://{host}"}
    yield {"text": f"please fetch https://{host}/a?b=c and tell"}
    yield {"deep": [{"er": [f"HTTPS://{host}:8443/x"]}]}
    yield {f"https://{host}/": 1}
    yield {"baseUrl": f"https:{host}"}
    yield {"target": f"https:///{host}/x"}
    yield {"proxy_uri": f"https:\\\\{host}/"}
    yield {"href": f"//{host}/x"}
    yield {"link": f"https://example.com/?to=https%3A%2F%2F{host}%2F"}


PRIVATE = [
    "127.0.0.1", "2130706433", "0x7f000001", "0x7F.0x0.0x0.0x1", "0177.0.0.1", "127.1",
    "127.0.1", "0", "0.0.0.0", "00000177.1", "017700000001", "0x7f.1", "127.0.0.1.",
    "127.0.0.1..", "localhost", "localhost.", "LOCALHOST", "a.localhost", "x.internal",
    "metadata.google.internal", "printer.local", "nas.lan", "db.corp", "router.home.arpa",
    "intranet", "kubernetes", "api.default.svc", "169.254.169.254", "100.100.100.200",
    "168.63.129.16", "10.0.0.1", "010.0.0.1", "172.16.0.1", "172.31.255.255",
    "192.168.0.1", "192.168.257", "100.64.0.1", "198.18.0.1", "192.0.0.192",
    "203.0.113.9", "224.0.0.1", "255.255.255.255", "127.0.0.1.nip.io", "nip.io",
    "7f000001.nip.io", "10-0-0-1.sslip.io", "foo.localtest.me", "lvh.me",
    "10.0.0.1.example.com", "ip-192-168-0-1.example.com",
    "\uff11\uff12\uff17.0.0.1", "\u2460\u2461\u2466.0.0.1", "127\u30020\u30020\u30021",
    "127\uff0e0\uff0e0\uff0e1", "127\uff610\uff610\uff611", "\u0661\u0662\u0667.0.0.1",
    "1\u200b27.0.0.1", "127.0.0\u00ad.1", "\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3",
    "%31%32%37.0.0.1", "%6cocalhost", "%2531%32%37.0.0.1",
    "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:7f00:0001]",
    "[::127.0.0.1]", "[::ffff:0:127.0.0.1]", "[2002:7f00:1::]", "[2002:c0a8:1::1]",
    "[64:ff9b::127.0.0.1]", "[64:ff9b::a00:1]", "[64:ff9b:1::1]", "[fe80::1]",
    "[fe80::1%25eth0]", "[fe80::1%eth0]", "[fc00::1]", "[fd00:ec2::254]", "[ff02::1]",
    "[2001:db8::1]", "[2001:0:a00:1::]", "[3fff::1]", "[2606:4700::5efe:10.0.0.1]",
    "[100::1]", "256.256.256.256", "1.2.3.4.5", "0x", "999999999999", "1.2.3.0x1ff",
    "fa\u00df.de", "a..b", "-x.com", "exa mple.com",
]  # fmt: skip

PUBLIC = [
    "example.com", "example.com.", "EXAMPLE.com", "api.github.com", "8.8.8.8", "1.1.1.1",
    "134744072", "0x08080808", "8.8.2056", "[2606:4700:4700::1111]", "[::ffff:8.8.8.8]",
    "[64:ff9b::8.8.8.8]", "[2002:808:808::1]", "b\u00fccher.example", "xn--bcher-kva.example",
    "local.example.com", "localhost.example.com", "internal.org", "notnip.io", "a-b.c-d.io",
    "ec2-54-1-2-3.compute.amazonaws.com", "v1.example.com", "08.1", "172.32.0.1", "100.128.0.1",
    "_dmarc.example.com", "11.0.0.1",
]  # fmt: skip


class TestHosts:
    @pytest.mark.req("T-38")
    @pytest.mark.parametrize("host", PRIVATE)
    def test_private_and_unreadable_hosts_are_blocked_everywhere(
        self, host: str
    ) -> None:
        for arguments in everywhere(host):
            if " " in host and "text" in arguments:
                continue
            assert judge(arguments), arguments
        assert judge({"host": host}) or " " in host
        assert judge({"hosts": [f"{host}:80"]}) or " " in host

    @pytest.mark.req("T-38")
    @pytest.mark.parametrize("host", PUBLIC)
    def test_public_hosts_pass_everywhere(self, host: str) -> None:
        for arguments in everywhere(host):
            assert not judge(arguments), arguments
        assert not judge({"hostname": host, "ip": f"{host}:443"})

    @pytest.mark.req("T-38")
    @pytest.mark.parametrize(
        "url",
        [
            "https://example.com@127.0.0.1/",
            "https://example.com:pw@127.0.0.1/",
            "https://127.0.0.1@example.com/",
            "https://127.0.0.1\\@example.com/",
            "https://example.com\\.evil.com/",
            "https://example.com#@127.0.0.1/",
            "https://example.com?@127.0.0.1/",
            "https://example.com%2f@127.0.0.1/",
            "ht\ntps://127.0.0.1/",
            "https:\t//127.0.0.1/",
            " \x00https://127.0.0.1",
            "https://127.0.0.1:80:80/",
            "https://[::1",
            "https://[::1]x/",
            "https://example.com:port/",
            "\uff48ttps://127.0.0.1",
            "https\uff1a\uff0f\uff0f127.0.0.1",
            "1https://127.0.0.1/",
            "-https://127.0.0.1/",
            "_https://127.0.0.1/",
            "https://" + "a" * 2000,
            "https://example.com @127.0.0.1/",
            'https://example.com"@127.0.0.1/',
            "//127.0.0.1/x",
            "\\\\127.0.0.1\\share",
            "127.0.0.1/x",
            "10.0.0.1:8080",
            "localhost:8080/x",
            "[::1]:80",
        ],
    )
    def test_tricks_do_not_hide_a_host(self, url: str) -> None:
        assert judge({"x": url})
        assert judge({"url": url})

    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"q": ""},
            {"q": "Note: the sum is 3.5, e.g. 12:30 h; see section 1.2.3"},
            {"q": "http: no url, https: neither"},
            {"q": "C:\\Users\\x and key:/value"},
            {"path": "//comment here", "other": "/etc/hosts"},
            {"version": "10.0.19041.2965", "release": "127.1"},
            {"q": "Localhost is a word, 10 apples too"},
            {"ip_version": 4, "max_hosts": 5, "url_count": 3, "host_port": 8080},
            {"endpoint": "/v1/users", "uri": "users/list?x=1", "endpoints": ["v1.2/x"]},
            {"hosts": ["a.example.com", "b.example.com:443"], "host": ""},
            {"hosts": "a.example.com, b.example.com"},
            {"q": "(see https://example.com/a). And [b](https://example.org), ok?"},
            {"q": "https://example.com/?mail=a@b.example"},
            {"q": "https://example.com?mail=a@b.example"},
            {"q": b"\x00\x01binary"},
            {"n": 127.1, "m": 2130706433, "flag": True, "none": None},
        ],
    )
    def test_plain_words_numbers_and_paths_pass(
        self, arguments: dict[str, Any]
    ) -> None:
        assert not judge(arguments)

    @pytest.mark.req("T-38")
    @pytest.mark.parametrize(
        "arguments",
        [
            {"host": 2130706433},
            {"host": 127.1},
            {"hosts": [0]},
            {"serverIP": 167772161},
            {"ipAddress": "10.0.0.1"},
            {"imageURLs": ["https://10.0.0.1"]},
            {"hosts": "a.example.com, 10.0.0.1"},
            {"data": b"https://10.0.0.1/"},
            {"endpoint": "2130706433"},
            {"url": "intranet"},
        ],
    )
    def test_the_name_of_an_argument_says_that_it_is_a_host(
        self, arguments: dict[str, Any]
    ) -> None:
        assert judge(arguments)

    def test_the_reason_names_the_place(self) -> None:
        found = GUARD.check(
            ToolCall("c", "web", {"a": {"b": ["x", "https://10.1"]}}), WEB
        )
        assert isinstance(found, GuardResult)
        assert "`a.b[1]`" in found.reason
        assert found.details["argument"] == "a.b[1]"

    def test_arguments_without_end_are_refused(self) -> None:
        deep: Any = "x"
        for _ in range(200):
            deep = [deep]
        chain = GuardChain([GUARD])
        assert chain.check_all(ToolCall("c", "web", {"x": deep}), WEB).blocked


class TestLists:
    @pytest.mark.parametrize(
        "url", ["http://example.com", "ftp://example.com", "gopher://x.example.com/",
                "file:///etc/passwd", "see file:///etc/passwd", "dict://8.8.8.8/"],
    )  # fmt: skip
    def test_only_https_unless_told_otherwise(self, url: str) -> None:
        assert "scheme" in judge({"x": url})
        assert "scheme" in judge({"url": url}) or " " in url
        wide = NetworkGuard(
            schemes=["https", "HTTP", "ftp://", "gopher:", "file", "dict"]
        )
        assert not judge({"x": url}, wide)

    @pytest.mark.parametrize(
        "url", ["data:text/html,x", "javascript:alert(1)", "mailto:a@b.c"]
    )
    def test_a_url_argument_without_slashes_has_a_scheme_too(self, url: str) -> None:
        assert "scheme" in judge({"url": url})

    @pytest.mark.parametrize(
        ("host", "passes"),
        [
            ("example.com", True),
            ("API.Example.com.", True),
            ("badexample.com", False),
            ("example.com.evil.net", False),
            ("sub.only.org", True),
            ("only.org", False),
            ("xonly.org", False),
            ("xn--bcher-kva.example", True),
            ("b\u00fccher.example", True),
            ("8.8.8.8", True),
            ("134744072", True),
            ("9.9.9.9", False),
        ],
    )
    def test_suffixes_end_at_dots(self, host: str, passes: bool) -> None:
        names = ["Example.com", "*.only.org", "b\u00fccher.example", "8.8.8.8"]
        allows = NetworkGuard(allow_domains=names)
        denies = NetworkGuard(deny_domains=names)
        assert (not judge({"url": f"https://{host}/"}, allows)) is passes
        assert (not judge({"url": f"https://{host}/"}, denies)) is not passes

    def test_an_allowed_domain_is_not_thereby_public(self) -> None:
        guard = NetworkGuard(allow_domains=["localhost", "10.0.0.1"])
        assert judge({"url": "https://localhost/"}, guard)
        assert judge({"url": "https://10.0.0.1/"}, guard)
        assert judge({"url": "https://x.org/"}, NetworkGuard(allow_domains=[]))

    def test_trusted_hosts_and_networks_count_as_public(self) -> None:
        guard = NetworkGuard(trusted=["10.1.0.0/16", "db.internal", "::1"])
        for host in ("10.1.2.3", "db.internal", "a.db.internal", "[::1]", "0x0a010001"):
            assert not judge({"url": f"https://{host}/"}, guard)
        # "010.1.0.1" is 8.1.0.1 to some and 10.1.0.1 to others.
        for host in ("10.2.0.1", "x.internal", "[::2]", "010.2.0.1"):
            assert judge({"url": f"https://{host}/"}, guard)
        both = NetworkGuard(trusted=["10.1.0.0/16"], deny_domains=["10.1.0.9"])
        assert "forbidden" in judge({"url": "https://10.1.0.9/"}, both)

    def test_userinfo_can_be_allowed_and_hides_nothing(self) -> None:
        guard = NetworkGuard(allow_userinfo=True)
        assert not judge({"url": "https://u:p@example.com/"}, guard)
        assert judge({"url": "https://example.com@10.0.0.1/"}, guard)
        assert judge({"url": "https://u@example.com\\@x.org/"}, guard)

    def test_texts_and_tools_can_be_left_alone(self) -> None:
        guard = NetworkGuard(scan_text=False)
        assert not judge({"q": "what is http://localhost:3000 ?"}, guard)
        assert judge({"q": "http://localhost:3000 ?"}, guard)
        assert judge({"url": "https://10.0.0.1"}, guard)
        assert not judge({"url": "https://10.0.0.1"}, NetworkGuard(exempt=["web"]))

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"schemes": "https"}, "schemes"),
            ({"schemes": ["1"]}, "schemes"),
            ({"allow_domains": "example.com"}, "allow_domains"),
            ({"deny_domains": ["a b"]}, "deny_domains"),
            ({"trusted": ["..."]}, "trusted"),
            ({"exempt": "web"}, "exempt"),
        ],
    )
    def test_bad_options_are_refused_by_name(
        self, options: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(ValueError, match=words):
            NetworkGuard(**options)

    def test_the_other_name_is_the_same_class(self) -> None:
        assert NetworkPolicyGuard is NetworkGuard
        assert GUARD.name == "network"


class TestResolve:
    async def ask(
        self, arguments: dict[str, Any], **answers: Any
    ) -> tuple[bool, list[str]]:
        asked: list[str] = []

        async def resolve(host: str) -> Any:
            asked.append(host)
            found = answers[host.partition(".")[0]]
            if isinstance(found, Exception):
                raise found
            return found

        chain = GuardChain([NetworkGuard(resolve=resolve, trusted=["10.9.0.0/16"])])
        found = await chain.check_all_async(ToolCall("c", "web", arguments), WEB)
        return found.blocked, asked

    @pytest.mark.req("T-38")
    @pytest.mark.parametrize(
        ("addresses", "blocked"),
        [
            (["8.8.8.8"], False),
            ([IPv4Address("8.8.8.8"), "2606:4700::1"], False),
            (["10.9.1.1"], False),
            (["8.8.8.8", "10.0.0.1"], True),
            (["::ffff:10.0.0.1"], True),
            ([], True),
            (["nonsense"], True),
            (OSError("no such host"), True),
        ],
    )
    async def test_what_a_name_leads_to_is_checked(
        self, addresses: Any, blocked: bool
    ) -> None:
        url = {"url": "https://a.example.com/", "x": "https://a.example.com/2"}
        assert await self.ask(url, a=addresses) == (blocked, ["a.example.com"])

    async def test_addresses_are_not_asked_for_and_no_name_no_waiting(self) -> None:
        assert await self.ask({"url": "https://8.8.8.8/"}) == (False, [])
        guard = NetworkGuard(resolve=lambda _host: 1 / 0)  # type: ignore[arg-type,return-value]
        assert judge({"q": "nothing here"}, guard) == ""


# --- properties -----------------------------------------------------------------
NETWORKS = [
    IPv4Network(text)
    for text in ("0.0.0.0/8", "10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16",
                 "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "224.0.0.0/3")
]  # fmt: skip
private_v4 = st.sampled_from(NETWORKS).flatmap(
    lambda net: st.integers(int(net[0]), int(net[-1])).map(IPv4Address)
)
public_v4 = st.integers(1 << 24, (224 << 24) - 1).map(IPv4Address).filter(is_public)


def _digits(number: int, how: int, zeros: int) -> str:
    if how == 0:
        return str(number)
    if how == 1:
        return f"0x{'0' * zeros}{number:x}"
    return f"0{'0' * zeros}{number:o}"


@st.composite
def spelled(draw: st.DrawFn, addresses: st.SearchStrategy[IPv4Address]) -> str:
    """An IPv4 address in one of the ways that `inet_aton` and clients take."""
    raw = int(draw(addresses))
    count = draw(st.integers(1, 4))
    parts = [(raw >> (24 - 8 * index)) & 255 for index in range(count - 1)]
    parts.append(raw & ((1 << (8 * (5 - count))) - 1))
    text = ".".join(
        _digits(part, draw(st.integers(0, 2)), draw(st.integers(0, 3)))
        for part in parts
    )
    change: list[Callable[[str], str]] = [
        str,
        str.upper,
        lambda t: t + ".",
        lambda t: "".join(chr(ord(c) + 0xFEE0) if "0" <= c <= "9" else c for c in t),
        lambda t: t.replace(".", "\u3002"),
        lambda t: "".join(f"%{ord(c):02X}" for c in t),
        lambda t: t[:1] + "\u200b" + t[1:],
    ]
    return draw(st.sampled_from(change))(text)


@st.composite
def embedded(draw: st.DrawFn, addresses: st.SearchStrategy[IPv4Address]) -> str:
    """An IPv4 address inside of an IPv6 one."""
    raw = int(draw(addresses))
    high, low = raw >> 16, raw & 0xFFFF
    forms = (
        f"::ffff:{IPv4Address(raw)}", f"::ffff:{high:x}:{low:x}", f"::{IPv4Address(raw)}",
        f"2002:{high:x}:{low:x}::1", f"64:ff9b::{IPv4Address(raw)}",
        f"::ffff:0:{high:x}:{low:x}", f"2606:4700::5efe:{high:x}:{low:x}",
    )  # fmt: skip
    text = draw(st.sampled_from(forms))
    return (
        f"[{draw(st.sampled_from([text, IPv6Address(text).exploded, text.upper()]))}]"
    )


@pytest.mark.req("T-38")
@settings(max_examples=300, deadline=None)
@given(st.one_of(spelled(private_v4), embedded(private_v4)), st.integers(0, 20))
def test_private_addresses_are_blocked_however_they_are_spelled(
    host: str, at: int
) -> None:
    places = list(everywhere(host))
    assert judge(places[at % len(places)])
    assert judge({"host": host})


@pytest.mark.req("T-38")
@settings(max_examples=200, deadline=None)
@given(public_v4)
def test_public_addresses_pass(address: IPv4Address) -> None:
    for arguments in everywhere(str(address)):
        assert not judge(arguments)
    assert not judge({"host": int(address)})
    assert not judge({"url": f"https://[::ffff:{address}]:443/"})


@settings(max_examples=200, deadline=None)
@given(
    st.from_regex(r"[a-z][a-z0-9]{0,10}(-[a-z][a-z0-9]{0,5})?", fullmatch=True),
    st.sampled_from(["com", "org", "example", "co.uk"]),
)
def test_public_names_pass(label: str, end: str) -> None:
    for arguments in everywhere(f"{label}.site.{end}"):
        assert not judge(arguments)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_judged_without_failing(text: str) -> None:
    read_host(text)
    for arguments in ({"x": text}, {"url": text}, {"host": text}, {text: "a"}):
        judge(arguments)
        judge({**arguments, "more": f"https://{text}"})
