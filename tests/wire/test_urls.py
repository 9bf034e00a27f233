"""Base URLs: what is accepted, what becomes of them, what is never shown."""

from __future__ import annotations

import pytest

from executionkit._wire.urls import target_of

PATH = "/chat/completions"


@pytest.mark.req("D-41")
@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://api.example/v1", "https://api.example/v1/chat/completions"),
        ("https://api.example/v1///", "https://api.example/v1/chat/completions"),
        ("HTTPS://API.example", "https://api.example/chat/completions"),
        (" http://localhost:8000/v1\n", "http://localhost:8000/v1/chat/completions"),
        ("http://[::1]:8080/v1", "http://[::1]:8080/v1/chat/completions"),
        (
            "https://a.example/openai/deployments/d?api-version=2024-06-01",
            "https://a.example/openai/deployments/d/chat/completions?api-version=2024-06-01",
        ),
        (
            "http://h.example/v1/?a=1&b=%20#x",
            "http://h.example/v1/chat/completions?a=1&b=%20",
        ),
        ("http://h.example/zoë", "http://h.example/zo%C3%AB/chat/completions"),
    ],
)
def test_the_path_goes_before_the_query(base: str, url: str) -> None:
    """D-41: an Azure address keeps its query at the end."""
    assert target_of(base, PATH).url == url


@pytest.mark.parametrize(
    ("base", "why"),
    [
        ("file:///etc/passwd", "scheme must be 'http' or 'https'"),
        ("localhost:8000/v1", "scheme must be 'http' or 'https'"),
        ("", "scheme must be 'http' or 'https'"),
        ("http://", "needs a host"),
        ("http://[::1/v1", "needs a host"),
        ("http://h:99999", "needs a host"),
        ("http://h:x", "needs a host"),
        ("http://h /v1", "must not contain spaces"),
        ("http://h/\r\nX: y", "must not contain spaces"),
    ],
)
def test_an_unusable_address_is_refused(base: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        target_of(base, PATH)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_the_offending_scheme_is_named() -> None:
    with pytest.raises(ValueError, match="file://"):
        target_of("file:///etc/passwd", PATH)


@pytest.mark.req("D-23", "OB-04")
def test_name_and_password_become_a_header_and_stay_secret() -> None:
    """D-23: neither the URL nor an error shows them."""
    target = target_of("https://me:pa%20ss@h.example/v1?key=abcd1234", PATH)
    assert target.url == "https://h.example/v1/chat/completions?key=abcd1234"
    assert target.authorization == "Basic bWU6cGEgc3M="
    assert {"pa ss", "abcd1234", "bWU6cGEgc3M="} <= set(target.secrets)
    with pytest.raises(ValueError, match="needs a host") as caught:
        target_of("https://me:hunter22@h:x/v1?key=abcd1234", PATH)
    assert "hunter22" not in str(caught.value)
    assert "abcd1234" not in str(caught.value)


@pytest.mark.req("D-23")
@pytest.mark.parametrize("rest", ["", "/v1", "?x=1", "#x"])
def test_a_password_whose_host_was_forgotten_is_not_shown(rest: str) -> None:
    """D-23: it stands where a port would; the error and what led to it keep it."""
    with pytest.raises(ValueError, match="needs a host") as caught:
        target_of(f"http://me:hunter22{rest}", PATH)
    assert f"'http://me:[REDACTED]{rest}'" in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_a_version_in_the_query_is_no_secret() -> None:
    assert target_of("https://h.example?api-version=2024-06-01", PATH).secrets == ()
