"""The redactor: what must go, what must stay, and how long it may take.

The fake secrets are put together at run time, so that no scanner of secrets takes
this file for a leak.
"""

from __future__ import annotations

import base64
import json
import pickle
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings, strategies as st

from executionkit._redact import (
    PLACEHOLDER,
    TRUNCATED,
    redact,
    redact_exception_text,
    redact_headers,
    redact_url,
    redact_value,
)
from executionkit.types import TokenUsage

MIX = "a1B2" * 8
SHORT = "a1B2c3D4"
HEX = "0123456789abcdef" * 2
BASIC = base64.b64encode(b"user:hunter2pw").decode()
BEGIN, END = "-----BEGIN ", "-----END "
KEY = "PRIVATE KEY-----"

# name -> (text, what must be gone from it)
SECRETS: dict[str, tuple[str, str]] = {
    # the probes that leaked elsewhere
    "basic-auth": (f"Authorization: Basic {BASIC}", BASIC),
    "x-api-key": (f"x-api-key: {SHORT}", SHORT),
    "json-api-key": ('{"api_key": "abcdwxyz"}', "abcdwxyz"),
    "password-colon": ("password: hunter2", "hunter2"),
    "api-key-provided": (f"Incorrect API key provided: {SHORT}.", SHORT),
    "token-colon": (f"token: {SHORT}", SHORT),
    "token-colon-short": ("token: hunter2", "hunter2"),
    "aws-access-key": ("found AKIA" + "IOSFODNN7EXAMPLE here", "IOSFODNN7EXAMPLE"),
    "aws-secret": (f"aws_secret_access_key={MIX}/+ab", MIX),
    "client-secret": ("client_secret=abcdefgh", "abcdefgh"),
    "hugging-face": ("hf_" + MIX, MIX),
    "github-fine-grained": ("github_pat_" + MIX, MIX),
    "gitlab": ("glpat-" + MIX, MIX),
    "xai": ("xai-" + MIX, MIX),
    "jwt": ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0." + MIX, MIX),
    "url-userinfo": ("at postgres://u:p@h/db", "u:p"),
    "pem": (f"{BEGIN}RSA {KEY}\nMIIE{MIX}\n{END}RSA {KEY} x", MIX),
    # documented shapes
    "github-classic": ("ghp_abcd", "ghp_abcd"),
    "github-any-case": ("GHP_abcd", "GHP_abcd"),
    "google-api": ("AIza" + "SyABCDEFG", "SyABCDEFG"),
    "slack-token": ("xoxb-" + "123456789012-ab", "123456789012"),
    "groq": ("gsk_" + "abcd", "gsk_abcd"),
    "openai": ("sk-" + MIX, MIX),
    "openai-letters": ("sk-" + "abcdefgh", "abcdefgh"),
    "openai-project": ("sk-proj-" + MIX, MIX),
    "anthropic": ("sk-ant-" + "api03-" + MIX, MIX),
    "sk-underscore": ("sk_" + MIX, MIX),
    "token-set": ("token=abcd", "abcd"),
    "auth-set": ("auth=abcd", "abcd"),
    "query-key": ("GET /v1?key=customer&x=1", "customer"),
    "query-token": ("GET /v1?a=b&access_token=abcd", "=abcd"),
    "bearer": ("sent Bearer abc123 to it", "abc123"),
    "bearer-header": ("Authorization: Bearer abcdefgh", "abcdefgh"),
    "secret-beside": (f"secret {SHORT}", SHORT),
    # other services
    "stripe": ("sk_live_" + MIX, MIX),
    "stripe-webhook": ("whsec_" + MIX, MIX),
    "twilio": ("SK" + HEX, HEX),
    "sendgrid": ("SG." + MIX[:22] + "." + MIX, MIX),
    "npm": ("npm_" + MIX, MIX),
    "pypi": ("pypi-" + MIX, MIX),
    "docker": ("dckr_pat_" + MIX, MIX),
    "databricks": ("dapi" + HEX, HEX),
    "digital-ocean": ("dop_v1_" + HEX * 2, HEX),
    "shopify": ("shpat_" + HEX, HEX),
    "telegram": ("bot 123456789:AA" + "F" + MIX, MIX),
    "age": ("AGE-SECRET-KEY-1" + "QPZRY9X8" * 7, "QPZRY9X8"),
    "azure-storage": (f"AccountKey={MIX}==;EndpointSuffix=core", MIX),
    "azure-storage-bare": (f"key is {'a1' * 43}==", "a1a1a1"),
    "azure-client": ("abc8Q~" + MIX, MIX),
    "azure-subscription": (f"Ocp-Apim-Subscription-Key: {HEX}", HEX),
    "azure-sas": ("https://x.blob/y?sv=2020&sig=abc%2Bdef%3D&se=1", "abc%2Bdef"),
    "google-oauth": ("ya29." + MIX, MIX),
    "google-refresh": ("1//0" + MIX, MIX),
    "google-client": ("GOCSPX-" + MIX, MIX),
    "google-header": ("x-goog-api-key: abcdefgh", "abcdefgh"),
    "google-service-account": (
        '{"private_key": "' + f"{BEGIN}{KEY}\\nMIIE{MIX}\\n{END}{KEY}\\n" + '"}',
        MIX,
    ),
    "replicate": ("r8_" + MIX, MIX),
    "vault": ("hvs." + MIX, MIX),
    "mailgun": ("key-" + HEX, HEX),
    "mailchimp": (HEX + "-us12", HEX),
    "airtable": ("pat" + "a1B2c3D4e5F6g7." + HEX * 2, HEX),
    "terraform": ("a1B2c3D4e5F6g7.atlasv1." + MIX * 2, MIX),
    "slack-webhook": (f"https://hooks.slack.com/services/T0/B0/{SHORT}", SHORT),
    "discord-webhook": (f"https://discord.com/api/webhooks/1/{SHORT}", SHORT),
    "aws-session": (f"aws_session_token={MIX}", MIX),
    "aws-signed-url": ("https://s3/x?X-Amz-Signature=abcdef0123&a=1", "abcdef0123"),
    "aws-signed-header": (
        "Authorization: AWS4-HMAC-SHA256 Credential=AKIAX/1, Signature=abcdef01",
        "abcdef01",
    ),
    "digest": ('Authorization: Digest username="bob", response="beef01"', "beef01"),
    # where they stand
    "cookie": ("Cookie: sid=abc; theme=dark", "sid=abc"),
    "set-cookie": ("Set-Cookie: session=abcdef123; Path=/", "abcdef123"),
    "basic-bare": (f"sent Basic {BASIC}", BASIC),
    "proxy": ("Proxy-Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    "flag": ("cli --password hunter2 --verbose", "hunter2"),
    "curl": ("curl -u bob:hunter2 https://h", "hunter2"),
    "xml": ("<password>hunter2</password>", "hunter2"),
    "header-pair": ("(b'authorization', b'Bearer abc.def')", "abc.def"),
    "api-key-pair": ("('x-api-key', 'abcdwxyz')", "abcdwxyz"),
    "repr": ("{'password': 'two words'}", "two words"),
    "escaped-json": (r"{\"api_key\": \"abcdwxyz\"}", "abcdwxyz"),
    "open-quote": ('{"api_key": "abcdwxyz and then', "abcdwxyz"),
    "json-list": ('"passwords": ["hunter2", "abcdefg"]', "abcdefg"),
    "connection": ("Server=x;User Id=sa;Password=hunter2;Encrypt=true", "hunter2"),
    "environment": ("export OPENAI_API_KEY=abcdefgh", "abcdefgh"),
    "camel": ('"clientSecret":"abcdefgh"', "abcdefgh"),
    "camel-set": ("dbPassword=hunter2", "hunter2"),
    "markdown": ("**Password:** hunter2", "hunter2"),
    "sentence": ("the password is hunter2!", "hunter2"),
    "redis": ("redis://:p4ss@h:6379/0", "p4ss"),
    "slash-in-password": ("postgres://u:p/w@h/db", "p/w"),
    "at-in-password": ("postgres://u:p@w@h/db", "p@w"),
    "url-in-url": ("https://h/login?next=https://u:p4ss@h2/", "p4ss"),
    "url-in-json": (r'"url":"https:\/\/u:p4ss@h\/x"', "p4ss"),
    "percent-encoded": ("q=api_key%3Dabcdefgh", "abcdefgh"),
    "cut-off-pem": (f"{BEGIN}OPENSSH {KEY}\nb3Bl{MIX}", MIX),
    "pem-with-quotes": (f'"{BEGIN}{KEY}"\n "MIIE{MIX}"\n "{END}{KEY}"', MIX),
    "name-in-one-word": ("myapikey=abcdefgh", "abcdefgh"),
    "weak-camel-name": ("sessionKey: a1b2c3d4e5f6", "a1b2c3d4e5f6"),
    "long-number": ("token=1234567890123", "1234567890123"),
    "placeholder-in-front": (f"password: {PLACEHOLDER}hunter2", "hunter2"),
}

HARMLESS = [
    "token limit exceeded",
    "secret santa",
    "sk-learn",
    "key:customer_id",
    "auth:failed",
    "max_tokens: 4096",
    "bearer of bad news",
    "password reset",
    "550e8400-e29b-41d4-a716-446655440000",
    "request id 550e8400-e29b-41d4-a716-446655440000",
    "commit 5d41402abc4b2a76b9719d911017c592",
    "The token count was 12345 tokens",
    "token budget: 4000",
    "token: Hello",
    "key: value",
    '"key": "customer_id"',
    "primary_key: user_id_2024",
    "cache key: user_42_profile",
    "sorted(items, key=len)",
    "key=lambda x: x",
    "monkey: banana12345678",
    "keyboard: qwerty12345",
    "author: John12345678",
    "passed: 12 failed: 3",
    "compass=north1234",
    "secretary: Jane",
    "session expired",
    "API key missing",
    "api key not found",
    "Authorization: required",
    "authorization failed for user bob",
    "basic authentication is required",
    'WWW-Authenticate: Bearer realm="x"',
    "Bearer token missing",
    "cookie: chocolate",
    "password: null",
    "password must contain 8 characters",
    '"password": "string"',
    "api_key: Optional[str] = None",
    "api_key=${OPENAI_API_KEY}",
    '"required": ["api_key", "city"]',
    "next_page_token: abc",
    "eos_token=</s>",
    "tokenizer: cl100k_base",
    "finish_reason=length",
    "https://example.com/a?page=2&sort=asc",
    "/callback?code=404&state=ok",
    "https://medium.com/@user/post",
    "git@github.com:org/repo.git",
    "ssh://git@github.com/org/repo",
    "http://localhost:8080/v1/chat/completions",
    "http://[::1]:8080/@x",
    "http://[::1]/@x",
    "token=4096",
    "password: must be at least 8 long",
    "request key: 550e8400-e29b-41d4-a716-446655440000",
    "hf_hub_download",
    "npm_config_registry",
    "sk_buff alloc",
    "task-based, risk-averse, sk-image",
    "SK hynix",
    f"sha512-{'a1' * 43}==",
    f"{BEGIN}CERTIFICATE-----",
    "model: gpt-4o-mini-2024-07-18",
    "auth: oauth2",
    "password: abc",
    "2024-01-02T03:04:05Z",
]


@pytest.mark.req("D-22", "redact.shapes")
@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_gone_from_the_text(name: str) -> None:
    text, secret = SECRETS[name]
    shown = redact(text)
    assert secret not in shown
    assert PLACEHOLDER in shown
    assert redact(shown) == shown


@pytest.mark.req("D-22", "redact.harmless")
@pytest.mark.parametrize("text", HARMLESS)
def test_words_that_only_look_like_secrets_stay(text: str) -> None:
    assert redact(text) is text


@pytest.mark.req("D-22")
def test_what_stands_around_a_secret_stays() -> None:
    text = f"call 7 failed: x-api-key: {SHORT}, retry later; see https://h/help"
    shown = f"call 7 failed: x-api-key: {PLACEHOLDER}, retry later; see https://h/help"
    assert redact(text) == shown
    url = f"https://{PLACEHOLDER}@h:1/v1?a=b&key={PLACEHOLDER}#top"
    assert redact("https://u:p4ss@h:1/v1?a=b&key=abcd#top") == url


@pytest.mark.req("redact.known-values")
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda value: value, id="as it is"),
        pytest.param(lambda value: quote(value, safe=""), id="url-encoded"),
        pytest.param(lambda value: quote(value, safe="").lower(), id="url, lower"),
        pytest.param(lambda value: json.dumps(value), id="json"),
        pytest.param(lambda value: json.dumps({"a": [value]}), id="inside of json"),
        pytest.param(repr, id="repr"),
        pytest.param(lambda value: repr(value.encode()), id="repr of bytes"),
        pytest.param(
            lambda value: base64.b64encode(value.encode()).decode(), id="base64"
        ),
        *(
            pytest.param(
                lambda value, n=n: base64.b64encode(
                    f"{'u' * n}:{value}:x".encode()
                ).decode(),
                id=f"base64 after {n + 1} characters",
            )
            for n in range(3)
        ),
        pytest.param(
            lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
            id="base64 for urls",
        ),
    ],
)
def test_a_known_value_goes_in_every_spelling(write: Any) -> None:
    value = 'plain/value+with "odd" marks? and ~ more'
    written = write(value)
    shown = redact(f"before <{written}> after", secrets=[value])
    assert shown.startswith("before <")
    assert shown.endswith("> after")
    assert PLACEHOLDER in shown
    assert "value" not in shown
    assert not any(written[i : i + 12] in shown for i in range(len(written) - 12))


@pytest.mark.req("D-41", "redact.known-values")
def test_a_key_with_a_line_end_goes_with_and_without_it() -> None:
    key = "plainkeyvalue\n"
    for text in ("Bearer plainkeyvalue", f"b'Bearer {key!r}'", f"[{key}]"):
        assert "plainkeyvalue" not in redact(text, secrets=[key])


@pytest.mark.req("redact.known-values")
def test_known_values_that_are_too_short_or_empty_are_ignored() -> None:
    assert redact("a abc", secrets=["", "a", "abc", " abc "]) == "a abc"


@pytest.mark.req("redact.known-values")
def test_one_text_is_one_known_value() -> None:
    assert redact("is wxyz there", secrets="wxyz") == f"is {PLACEHOLDER} there"
    assert redact("is wxyz there", secrets=iter(["wxyz"])) == f"is {PLACEHOLDER} there"


@pytest.mark.req("redact.known-values", "redact.idempotent")
@pytest.mark.parametrize("value", ["ACTED", "REDACTED", PLACEHOLDER, "]abc[", "[RED"])
def test_a_known_value_never_takes_the_placeholder_apart(value: str) -> None:
    text = f"{PLACEHOLDER} {value} {PLACEHOLDER}{value}"
    shown = redact(text, secrets=[value])
    assert shown == redact(shown, secrets=[value])
    assert not shown.replace(PLACEHOLDER, "").strip()


@pytest.mark.req("redact.known-values")
@given(st.text(min_size=4).filter(lambda s: len(s.strip()) >= 4), st.text(), st.text())
def test_no_known_value_survives(value: str, before: str, after: str) -> None:
    shown = redact(before + value + after, secrets=[value])
    assert value not in shown.replace(PLACEHOLDER, "\0\0\0\0")


PIECES = [
    *(text for text, _ in SECRETS.values()),
    *HARMLESS,
    *("password", "token", "key", "secret", "auth", "=", ":", "'", '"', "\\", "["),
    *("]", "{", "}", ",", ";", "&", "?", "://", "@", "--", "<", ">", "cookie", "is"),
    *(" ", "\n", PLACEHOLDER, SHORT, "hunter2", "sk-", "eyJ", "bearer ", "basic "),
]


@pytest.mark.req("redact.idempotent")
@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8))
def test_redacting_twice_changes_nothing_more(pieces: list[str]) -> None:
    once = redact("".join(pieces))
    assert redact(once) == once


@pytest.mark.req("redact.idempotent")
@settings(deadline=None)
@given(st.text())
def test_any_text_is_accepted(text: str) -> None:
    redact(text)
    redact_url(text)
    redact(text + "\u0130password: hunter2")


def test_places_agree_when_lower_case_is_longer() -> None:
    assert redact("\u0130\u0130 password: hunter2.") == (
        f"\u0130\u0130 password: {PLACEHOLDER}."
    )


UNITS = [
    *("a", "1", "-", "=", "==", "&", "?", '"', "\\", "<", " \t", "\u0130", "\ud800"),
    *("key", "key:", "key=", "key: ", "key: [", "key key_", "auth:", "pass", "pwd="),
    *("token:a-", "token=a,", "token=,b=", "token: ", "key:a1b2c3d4e5f6 "),
    *("password", "password:", "password is ", 'password="', 'password="\\'),
    *("secret:'", "bearer ", "bearer a1", "cookie: a", "authorization: bearer "),
    *("authorization: digest a", "basic a", "basic aaaaaaaa", "--password ", "a,a="),
    *("sk-", "sk-learn-", "xsk-", "xai-", "xai-a", "hf_a", "eyJ", "eyJ.", "SK", "AC"),
    *("://", "://a:b", "://a:b@", "://u:p/", "?a=", "?aaaaaaaa", " -u a:", "1:AA"),
    *(f"{BEGIN}{KEY}", f"{BEGIN}{KEY}a\n", f"{END}A-----", "-END ", PLACEHOLDER),
    *("aa8Q~", "-us", "pat", "<password>", "hooks.slack.com/", "api_key%3D"),
]


@pytest.mark.req("redact.linear")
@pytest.mark.timeout(10)  # a quadratic rule would take minutes
@pytest.mark.parametrize("unit", UNITS)
def test_hostile_text_takes_linear_time(unit: str) -> None:
    redact(unit * (200_000 // len(unit)))


@pytest.mark.req("redact.linear")
@pytest.mark.timeout(20)
def test_a_megabyte_of_everything_takes_linear_time() -> None:
    text = "\n".join([*HARMLESS, *(text for text, _ in SECRETS.values()), *UNITS])
    shown = redact(text * (1_000_000 // len(text)), secrets=["known-value", MIX])
    assert MIX not in shown


@pytest.mark.req("redact.linear")
@pytest.mark.timeout(10)
def test_many_open_key_blocks_before_one_end_take_linear_time() -> None:
    text = f"{BEGIN}{KEY}!" * 40_000 + f"{END}{KEY}"
    assert redact(text).startswith(PLACEHOLDER)


class TestUrls:
    @pytest.mark.req("D-23", "redact.urls")
    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("https://h/v1", "https://h/v1"),
            ("https://u:p@h/v1", f"https://{PLACEHOLDER}@h/v1"),
            ("https://tok@h", f"https://{PLACEHOLDER}@h"),
            ("u:p@h/x", f"{PLACEHOLDER}@h/x"),
            ("https://h/?key=a&x=1", f"https://h/?key={PLACEHOLDER}&x=1"),
            ("https://h/?x=1&API%5FKEY=ab", f"https://h/?x=1&API%5FKEY={PLACEHOLDER}"),
            ("https://h/?sig=a%2B#f", f"https://h/?sig={PLACEHOLDER}#f"),
            ("https://h/#access_token=a", f"https://h/#access_token={PLACEHOLDER}"),
            ("https://h/?key=", "https://h/?key="),
            ("https://h/?page=2;token=x", f"https://h/?page=2;token={PLACEHOLDER}"),
            ("https://h:8080/?api-version=2024-10-21", None),
            ("https://[::1]:80/?max_tokens=5", None),
            (f"https://api.telegram.org/bot123456789:AA{MIX}/x", "bot"),
        ],
    )
    def test_credentials_go_and_the_rest_stays(
        self, url: str, shown: str | None
    ) -> None:
        if shown == "bot":
            assert MIX not in redact_url(url)
        else:
            assert redact_url(url) == (url if shown is None else shown)

    @pytest.mark.req("redact.urls")
    def test_known_values_go_from_the_path(self) -> None:
        assert redact_url("https://h/wxyz/a", secrets=["wxyz"]) == (
            f"https://h/{PLACEHOLDER}/a"
        )


class TestHeaders:
    @pytest.mark.req("OB-05", "redact.headers")
    @pytest.mark.parametrize(
        "name",
        [
            *("Authorization", "authorization", "Proxy-Authorization", "Cookie"),
            *("Set-Cookie", "x-api-key", "X-API-Key", "api-key", "x-goog-api-key"),
            *("X-Auth-Token", "X-Amz-Security-Token", "Ocp-Apim-Subscription-Key"),
            *("PRIVATE-TOKEN", "X-Client-Secret", "DD-API-KEY"),
        ],
    )
    def test_a_credential_goes_whatever_it_looks_like(self, name: str) -> None:
        assert redact_headers({name: "abc"}) == {name: PLACEHOLDER}

    @pytest.mark.req("redact.headers")
    def test_other_headers_stay(self) -> None:
        headers = {
            "Content-Type": "application/json",
            "anthropic-ratelimit-tokens-remaining": "4096",
            "Idempotency-Key": "550e8400-e29b-41d4-a716-446655440000",
            "X-Request-ID": "abc",
        }
        assert redact_headers(headers) == headers

    @pytest.mark.req("redact.headers")
    def test_secrets_in_names_and_values_of_other_headers_go(self) -> None:
        shown = redact_headers({"X-Url": "https://u:p@h", "sk-" + MIX: "a"})
        assert shown == {"X-Url": f"https://{PLACEHOLDER}@h", PLACEHOLDER: "a"}


class TestExceptions:
    @pytest.mark.req("D-23", "D-41", "OB-04")
    def test_its_text_is_redacted(self) -> None:
        error = ValueError("Invalid header value b'Bearer plainkey\\n'")
        assert "plainkey" not in redact_exception_text(error, secrets=["plainkey\n"])
        error = ValueError("GET https://u:p4ss@h/v1?key=abcd failed")
        assert redact_exception_text(error) == (
            f"GET https://{PLACEHOLDER}@h/v1?key={PLACEHOLDER} failed"
        )

    def test_an_empty_text_becomes_the_name_of_the_type(self) -> None:
        assert redact_exception_text(TimeoutError()) == "TimeoutError"

    def test_a_text_that_cannot_be_made_becomes_the_name_of_the_type(self) -> None:
        class Odd(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        assert redact_exception_text(Odd()) == "Odd"


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Login:
    user: str
    password: str
    note: str = field(default="x", repr=False)


class TestStructures:
    @pytest.mark.req("OB-05", "redact.values")
    def test_secrets_go_by_name_and_by_pattern(self) -> None:
        data = {
            "api_key": "abc",
            "headers": {"Authorization": "Bearer x", "Accept": "text/plain"},
            "metadata": MappingProxyType({"token": "abc", "user": "bob"}),
            "arguments": {"cmd": "use sk-" + MIX, "n": 3},
            "pairs": [("Cookie", "a"), ("Accept", "b")],
            "har": [{"name": "X-Api-Key", "value": "a"}, {"name": "A", "value": "b"}],
            "credentials": {"user": "bob", "blob": ["abc"]},
            "body": b"password=hunter2",
            "sk-" + MIX: 1,
        }
        assert redact_value(data) == {
            "api_key": PLACEHOLDER,
            "headers": {"Authorization": PLACEHOLDER, "Accept": "text/plain"},
            "metadata": {"token": PLACEHOLDER, "user": "bob"},
            "arguments": {"cmd": f"use {PLACEHOLDER}", "n": 3},
            "pairs": [("Cookie", PLACEHOLDER), ("Accept", "b")],
            "har": [
                {"name": "X-Api-Key", "value": PLACEHOLDER},
                {"name": "A", "value": "b"},
            ],
            "credentials": {"user": PLACEHOLDER, "blob": [PLACEHOLDER]},
            "body": f"password={PLACEHOLDER}".encode(),
            PLACEHOLDER: 1,
        }

    @pytest.mark.req("redact.values")
    def test_what_is_no_secret_stays_what_it_is(self) -> None:
        kept: dict[str, Any] = {
            "cost": TokenUsage(1, 2, 3),
            "max_tokens": 4096,
            "token_count": 5,
            "secrets": 3,
            "password": None,
            "has_token": True,
            "ratio": 0.5,
            "price": Decimal("1.5"),
            "colour": Colour.RED,
            "at": datetime(2024, 1, 2, tzinfo=UTC),
            "key": "customer_id",
            "schema": {"password": {"type": "string", "description": "yours"}},
            "logprobs": [{"token": "Hello", "logprob": -0.1}],
            "names": ("a", "b", "c"),
            "list": ["a", {"b": [1]}],
        }
        shown = redact_value(kept)
        assert shown == kept
        assert shown["cost"] is kept["cost"]
        assert shown["colour"] is Colour.RED

    @pytest.mark.req("redact.values")
    def test_the_copy_is_plain_and_new(self) -> None:
        inner: list[Any] = [1]
        data = MappingProxyType({"a": inner, "s": frozenset({"x"})})
        shown = redact_value(data)
        assert type(shown) is dict
        assert shown == {"a": [1], "s": ["x"]}
        assert shown["a"] is not inner
        pickle.dumps(shown)

    @pytest.mark.req("redact.values")
    def test_objects_become_plain_data(self) -> None:
        class Odd:
            def __repr__(self) -> str:
                raise RuntimeError

        class Open:
            def __repr__(self) -> str:
                return "Open(password='hunter2')"

        shown = redact_value(
            [Login("bob", "hunter2"), Open(), Odd(), ValueError("pwd=hunter2")]
        )
        assert shown == [
            {"user": "bob", "password": PLACEHOLDER},
            f"Open(password='{PLACEHOLDER}')",
            "<Odd>",
            f"ValueError: pwd={PLACEHOLDER}",
        ]

    @pytest.mark.req("redact.values")
    def test_a_pin_goes_and_a_count_stays(self) -> None:
        assert redact_value({"password": 123456, "token": 12}) == {
            "password": PLACEHOLDER,
            "token": 12,
        }

    @pytest.mark.req("redact.bounded")
    def test_depth_is_bounded_even_in_a_ring(self) -> None:
        ring: list[Any] = ["a"]
        ring.append(ring)
        shown = redact_value(ring, max_depth=3)
        assert shown == ["a", ["a", ["a", TRUNCATED]]]
        twice: list[Any] = []
        twice.extend([twice, twice])
        redact_value(twice, max_items=1000)

    @pytest.mark.req("redact.bounded")
    def test_size_is_bounded(self) -> None:
        assert redact_value(list(range(10_000)), max_items=4) == [0, 1, 2, TRUNCATED]
        many = {str(n): n for n in range(10_000)}
        shown = redact_value({"a": many}, max_items=4)
        assert shown == {"a": {"0": 0, "1": 1, TRUNCATED: TRUNCATED}}

    @pytest.mark.req("redact.values")
    def test_keys_that_look_alike_afterwards_are_all_kept(self) -> None:
        shown = redact_value({"ghp_" + "aaaa": 1, "ghp_" + "bbbb": 2})
        assert list(shown.values()) == [1, 2]
        assert all(PLACEHOLDER in key for key in shown)

    @pytest.mark.req("redact.values")
    @settings(deadline=None)
    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False)
            | st.text(),
            lambda inner: (
                st.lists(inner) | st.dictionaries(st.text() | st.just("token"), inner)
            ),
            max_leaves=20,
        )
    )
    def test_any_json_is_accepted_and_done_once(self, data: Any) -> None:
        once = redact_value(data)
        assert redact_value(once) == once

    @pytest.mark.req("redact.known-values")
    def test_known_values_go_from_inside(self) -> None:
        assert redact_value({"a": ["is wxyz"]}, secrets=["wxyz"]) == {
            "a": [f"is {PLACEHOLDER}"]
        }
