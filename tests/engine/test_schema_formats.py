"""`format` is asserted, and means the same with each validator."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from executionkit.engine._schema.formats import FORMATS, has_format
from executionkit.engine.schema import SchemaError, compile_schema
from executionkit.engine.schema_infer import schema_for_type

pytestmark = pytest.mark.req("schema.formats", "D-05")

BACKENDS = ("jsonschema-rs", "jsonschema", "subset")
LONG_LABEL = "a" * 64

# Format -> (texts that have it, texts that have not).
TABLE: dict[str, tuple[list[str], list[str]]] = {
    "date": (
        ["2018-11-13", "2020-02-29", "2000-02-29", "0000-01-01", "9999-12-31"],
        [
            *("", "2018-1-13", "2018-11-13\n", "1900-02-29", "2021-02-29"),
            *("2018-13-01", "2018-00-01", "2018-01-00", "2018-04-31", "20181113"),
            *("\u0662018-11-13", "2018-11-13T00:00:00Z", "+2018-11-13"),
        ],
    ),
    "time": (
        [
            *("20:20:39Z", "20:20:39.5+05:30", "00:00:00z", "23:59:60Z"),
            *("15:59:60-08:00", "00:29:60+00:30", "01:02:03-23:59"),
        ],
        [
            *("20:20:39", "24:00:00Z", "20:60:00Z", "20:20:61Z", "22:59:60Z"),
            *("23:59:60+01:00", "20:20:39.Z", "8:30:06Z", "12:00:00+24:00"),
            *("12:00:00+00:60", "12:00Z", "12:00:00 Z", "12:00:00Z\n"),
        ],
    ),
    "date-time": (
        [
            "2018-11-13T20:20:39+00:00",
            "1985-04-12t23:20:50.52z",
            "1998-12-31T23:59:60Z",
        ],
        [
            *("yesterday", "2018-11-13", "2018-11-13 20:20:39Z", "2018-11-13T20:20:39"),
            *("1990-02-31T15:59:59Z", "2018-11-13T24:00:00Z", "T20:20:39Z"),
        ],
    ),
    "duration": (
        ["P3D", "PT1H30M", "P1Y2M3DT4H5M6S", "P2W", "P1Y", "PT0S", "P1DT1H", "P1M"],
        [
            *("", "P", "PT", "P1", "1D", "P1YT", "P1Y2D", "PT1H2S", "P1W1D", "P1D1Y"),
            *("-P1D", "P1.5D", "PT1D", "p1d"),
        ],
    ),
    "email": (
        [
            *("joe@example.com", "te~st@example.com", "a.b@x", '"joe b"@example.com'),
            *('"a\\"b"@x.y', "a@[127.0.0.1]", "a@[IPv6:::1]", f"{'a' * 64}@x.y"),
        ],
        [
            *("", "a", "@x", "a@", ".a@x", "a.@x", "a..b@x", "a b@x", "a@x..y", "a@-x"),
            *("a@b@c", "a@[1.2.3]", "a@[IPv6:1]", f"{'a' * 65}@x.y", "\u00e9@x.y"),
            *('"a"b"@x', "a@x\n", f"a@{'.'.join(['abcdefgh'] * 30)}"),
        ],
    ),
    "idn-email": (
        ["\uc2e4\ub840@\uc2e4\ub840.\ud14c\uc2a4\ud2b8", "a@x", '"\u00e9 "@x'],
        ["2962", "\ud800@x", "a@\u3164", "@\u00e9", "\u00e9@"],
    ),
    "hostname": (
        [
            *("www.example.com", "a", "1", "xn--4gbwdl.xn--wgbh1c", f"{'a' * 63}.b"),
            "host-name",
            "127.0.0.1",
        ],
        [
            *(
                "",
                ".",
                "-a",
                "a-",
                "a_b",
                "a.",
                ".a",
                "a..b",
                LONG_LABEL,
                "\u00e9",
                "a b",
            ),
            ".".join(["a" * 63] * 4),
            "a\n",
        ],
    ),
    "idn-hostname": (
        [
            *(
                "\uc2e4\ub840.\ud14c\uc2a4\ud2b8",
                "l\u00b7l",
                "\u03b1\u0375\u03b2",
                "a.b",
            ),
            *(
                "\u05d0\u05f3\u05d1",
                "\u30a2\u30fb",
                "\u0628\u0660",
                "\u0915\u094d\u200d",
            ),
            *("xn--ihqwcrb4cv8a8dqg056pqjye", "\u4f8b\u3048\u3002jp", "fa\u00df", "1a"),
        ],
        [
            *(
                "",
                "\u302e\uc2e4",
                "a\u00b7l",
                "\u00b7",
                "\u0375a",
                "a\u05f3",
                "a\u30fb",
            ),
            *(
                "\u0660\u06f0",
                "\u0915\u200d",
                "\u0301a",
                "-\u00e9",
                "\u00e9-",
                "\u0640",
            ),
            *(
                "xn--X",
                "xn--",
                "ab--cd",
                "\u00c9",
                "e\u0301",
                "\u1100",
                "a_b",
                LONG_LABEL,
            ),
            "\u00e9" * 60,
            "\u2488",
            "xn--a\u00e9",
        ],
    ),
    "ipv4": (
        ["0.0.0.0", "255.255.255.255", "1.2.3.4"],
        [
            "",
            "256.1.1.1",
            "1.2.3",
            "1.2.3.4.5",
            "01.2.3.4",
            "0x1.2.3.4",
            "1.2.3.4\n",
            "\u0661.2.3.4",
            "1..2.3",
        ],
    ),
    "ipv6": (
        [
            "::",
            "::1",
            "1::",
            "1:2:3:4:5:6:7:8",
            "::ffff:1.2.3.4",
            "1:2:3:4:5:6:1.2.3.4",
            "1::8",
            "::2:3:4:5:6:7:8",
            "FE80::a",
        ],
        [
            "",
            ":",
            ":1",
            "1:",
            "1:2",
            "12345::",
            "1::2::3",
            ":::",
            "1:2:3:4:5:6:7:8:9",
            "::2:3:4:5:6:7:8:9",
            "1.2.3.4::",
            "1.2.3.4",
            "::1.2.3",
            "::1.2.3.256",
            "fe80::a%1",
            "::g",
            "::1/64",
            "1:2:3:4:5:6:7:1.2.3.4",
            "::1.2.3.4:5",
            "\uff11::",
        ],
    ),
    "uri": (
        [
            "http://foo.bar/?baz=qux#quux",
            "http://u:p@a.b:80/",
            "ftp://[::1]/a",
            "a:",
            "a:b",
            "urn:oasis:names",
            "mailto:a@b.c",
            "http://a?%20",
            "file:///x",
            "http://[v1.a:b]/",
        ],
        [
            "",
            "//a/b",
            "/a",
            "a",
            "\\\\a",
            "http:// a",
            ":a",
            "1:a",
            "http://a b",
            "a:%2",
            "http://[::1",
            "http://[1]",
            "http://a:b",
            "a:<b>",
            "http://a@b@c/",
            "a:#b#c",
            "http://\u00e9",
            "a:\n",
            "http://[::1]x/",
        ],
    ),
    "uri-reference": (
        ["", "/a", "a", "//a/b", "#x", "?y", "a/b:c", "./a:b", "http://a", "?a?b"],
        ["\\a", "#a\\b", "1:b", "a b", ":b", "//a:b", "\u00e9", "%"],
    ),
    "iri": (
        [
            "http://\u0192\u00f8\u00f8.\u00df\u00e5r/?\u2202#\u00fc",
            "a:\U0001f600",
            "a:?\ue000",
        ],
        [
            "",
            "/\u00e9",
            "a:\ue000",
            "a:\ud800",
            "a:\ufdd0",
            "http://a b",
            "a:\x80",
            "a:?\U0010fffd",
        ],
    ),
    "iri-reference": (
        ["/\u00e9", "#\u00fc", "", "//\u00e9/"],
        ["\\\u00e9", "#\u00fc#", "\u00e9:b", "a:\ufdd0", "/\x80"],
    ),
    "uri-template": (
        [
            "",
            "/a/{b}",
            "{+a}{#b}{.c}{/d}{;e}{?f,g}{&h}",
            "{a:3}",
            "{a*}",
            "{a.b_%41}",
            "\u00e9",
            "%20",
        ],
        [
            "{",
            "}",
            "{}",
            "{a",
            "a}",
            "{a b}",
            "{a:0}",
            "{a:10000}",
            "{a,}",
            "{.}",
            "{a..b}",
            "{{a}}",
            "a b",
            "<",
            "%2",
            "{+}",
            '"',
            "{a*:3}",
        ],
    ),
    "uuid": (
        [
            "2eb8aa08-aa98-11ea-b4aa-73b441d16380",
            "2EB8AA08-AA98-11EA-B4AA-73B441D16380",
            "00000000-0000-0000-0000-000000000000",
        ],
        [
            "",
            "2eb8aa08aa9811eab4aa73b441d16380",
            "2eb8aa08-aa98-11ea-b4aa-73b441d1638",
            "2eb8aa08-aa98-11ea-b4aa-73b441d1638g",
            "{2eb8aa08-aa98-11ea-b4aa-73b441d16380}",
        ],
    ),
    "json-pointer": (
        ["", "/", "/a/0", "/a~1b/m~0n", "//", '/\u00e9 "\\', "/-"],
        ["a", "/~", "/a~2", "#", "#/a", " /a", "/~01~"],
    ),
    "relative-json-pointer": (
        ["0", "1", "0#", "1/a", "120/foo/bar", "0+1/a", "0-1#", "0/"],
        ["", "/a", "-1", "+1", "01", "01#", "1a", "0##", "0#/a", "0+0", "0/~", "1+"],
    ),
    "regex": (
        [
            *(
                "",
                "^a*$",
                "(a|b)+?",
                "[^a-z\\]]",
                "a{2,3}",
                "a{2,}",
                "\\bx\\B",
                "(?<n>a)\\k<n>",
            ),
            *(
                "(a)\\1",
                "(?=a)(?!b)(?<=c)(?<!d)",
                "\\p{L}\\u{1f600}\\x41\\cA\\0",
                "[]",
                "[^]",
            ),
            *(
                "[-a]",
                "[a-]",
                "[\\d\\b-]",
                "a||b",
                "\\.",
                "[\\x41-\\u0042]",
                "(?:a)*",
                "\u00e9",
            ),
        ],
        [
            *(
                "^(abc]",
                "(",
                ")",
                "[",
                "[a",
                "[z-a]",
                "*a",
                "a**",
                "+",
                "?",
                "a{2,1}",
                "a{",
                "{",
            ),
            *(
                "}",
                "]",
                "\\",
                "\\Z",
                "\\a",
                "\\1",
                "(?<n>a)(?<n>b)",
                "\\k<n>",
                "(?P<n>a)",
                "(?",
            ),
            *(
                "(?i)a",
                "[\\d-x]",
                "[a-\\d]",
                "^*",
                "\\b+",
                "(?=a)*",
                "\\u{110000}",
                "\\xg",
            ),
        ],
    ),
}
ROWS = [
    (name, text, valid)
    for name, (good, bad) in TABLE.items()
    for valid, texts in ((True, good), (False, bad))
    for text in texts
]


def compiled(schema: Any, backend: str) -> Any:
    if backend != "subset":
        pytest.importorskip(backend.replace("-", "_"))
    return compile_schema(schema, backend=backend)


def test_each_known_format_is_in_the_table() -> None:
    assert set(TABLE) == set(FORMATS)
    assert len(FORMATS) == 19


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_validator_gives_the_verdict_of_the_table(backend: str) -> None:
    wrong = [
        (name, text, valid)
        for name, text, valid in ROWS
        if (not compiled({"format": name}, backend).validate(text)) is not valid
    ]
    assert wrong == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_problem_says_what_is_asked_and_where(backend: str) -> None:
    schema = {"properties": {"on": {"type": "string", "format": "date"}}}
    (problem,) = compiled(schema, backend).validate({"on": "soon"})
    assert str(problem) == "`on`: must be a date such as 2018-11-13 (RFC 3339)"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_format_of_another_name_asks_nothing(backend: str) -> None:
    for name in ("int64", "Date", "password", "", "e-mail"):
        assert compiled({"format": name}, backend).validate("x") == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_is_for_texts_only(name: str, backend: str) -> None:
    values: list[Any] = [None, True, 3, 1.5, [], {}, ["x"]]
    for value in values:
        assert compiled({"format": name}, backend).validate(value) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_format_counts_inside_of_other_keywords(backend: str) -> None:
    ip = {"anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]}
    names = {"propertyNames": {"format": "uuid"}}
    assert compiled(ip, backend).validate("::1") == []
    assert compiled(ip, backend).validate("x")
    assert compiled({"not": {"format": "ipv4"}}, backend).validate("1.2.3.4")
    assert compiled(names, backend).validate({"x": 1})


PIECES = [
    *("a", "Z", "0", "1", "9", "-", ".", ":", "/", "@", "#", "?", "[", "]", "{", "}"),
    *("(", ")", "*", "+", ",", "\\", "%", "%41", "~", "~1", '"', " ", "\n", "T", "P"),
    *("xn--", "::", "2018-11-13", "20:20:39", "\u00e9", "\u0660", "\u00b7", "\u200d"),
    *("\ud800", "\ue000", "\U0010fffd", "\U0001f600", "\x00", "(?<n>", "\\k<n>"),
]
some_text = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.text(max_size=12),
    st.sampled_from([text for _, text, _ in ROWS]),
    st.tuples(st.sampled_from(ROWS), st.sampled_from(PIECES), st.integers(0, 20)).map(
        lambda made: made[0][1][: made[2]] + made[1] + made[0][1][made[2] :]
    ),
)


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(sorted(FORMATS)), some_text)
def test_all_validators_agree_on_any_text(name: str, text: str) -> None:
    found = [
        [str(p) for p in compiled({"format": name}, backend).validate(text)]
        for backend in BACKENDS
    ]
    assert found[0] == found[1] == found[2]
    assert bool(found[2]) is not FORMATS[name](text)


@settings(deadline=None, max_examples=300)
@given(st.datetimes(timezones=st.just(dt.UTC)), st.ip_addresses(), st.uuids())
def test_what_python_writes_has_its_format(when: Any, address: Any, key: Any) -> None:
    assert FORMATS["date-time"](when.isoformat())
    assert FORMATS["date"](when.date().isoformat())
    assert FORMATS[f"ipv{address.version}"](str(address))
    assert FORMATS["uuid"](str(key))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_long_text_is_no_trap(name: str) -> None:
    # Any of these takes minutes when a pattern goes back and forth.
    for piece in (
        "a",
        "a.",
        "a-",
        "(",
        "(?<",
        "[",
        "{a,",
        "a:",
        "%41",
        "1",
        "\\",
        '"a',
    ):
        assert FORMATS[name](piece * 20_000 + "\n") in (True, False)


@pytest.mark.parametrize("tp", [dt.datetime, dt.time])
def test_python_times_may_come_without_an_offset(tp: Any) -> None:
    _, build = schema_for_type(tp)
    assert build("2024-05-01T12:00:00" if tp is dt.datetime else "12:00:00")
    with pytest.raises(ValueError, match="ISO 8601"):
        build("noon")


def test_models_with_times_judge_them_themselves() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Plan", at=(dt.datetime, ...), mail=(dt.time, None))
    schema, build = schema_for_type(model)
    assert build({"at": "2024-05-01T12:00:00", "mail": "07:30"}).mail == dt.time(7, 30)
    assert schema["properties"]["at"]["anyOf"][0]["format"] == "date-time"
    with pytest.raises(ValueError, match="at"):
        build({"at": "noon"})


@pytest.mark.req("schema.formats")
def test_rarer_letters_escapes_and_malformed_names() -> None:
    assert has_format("idn-hostname", "\u06f1\u06f2")  # extended Arabic digits alone
    assert not has_format("idn-hostname", "\u06f1\u0661")  # and not with the others
    assert not has_format("idn-hostname", "a\ud7b0")  # an old Hangul letter
    assert has_format("regex", r"[\cA-\cC]")
    assert not has_format("regex", r"[\cC-\cA]")
    with pytest.raises(SchemaError):
        compile_schema({"format": 5}, backend="subset")
