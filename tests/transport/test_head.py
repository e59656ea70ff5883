"""The request head: valid HTTP, and no injected line."""

import http.client
import io
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pos_gateway import __version__
from pos_gateway.transport.errors import Misconfigured
from pos_gateway.transport.head import head as made_head
from pos_gateway.transport.head import host_header

VALUES = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=20)
FIELDS = st.dictionaries(st.from_regex(r"\A[A-Za-z][A-Za-z0-9-]{0,10}\Z"), VALUES, max_size=5)


EVERY = (
    b"Host: h\r\n",
    b"User-Agent: pos-gateway/%b\r\n" % __version__.encode(),
    b"Accept: application/json\r\n",
    b"Accept-Encoding: identity\r\n",
)


def head(method: str, target: str, fields: Mapping[str, str], body: bytes | None = None) -> bytes:
    """The head, without the lines that every request has."""
    said = made_head(method, target, "h", fields, body)
    for line in EVERY:
        said = said.replace(line, b"", 1)
    return said


@given(FIELDS)
def test_a_head_is_parsed_as_written(fields: dict[str, str]) -> None:
    lines = io.BytesIO(head("GET", "/orders", fields))
    assert lines.readline() == b"GET /orders HTTP/1.1\r\n"
    said = [
        line.decode("latin-1").removesuffix("\r\n").split(": ", 1) for line in lines.readlines()
    ]
    last = {name.lower(): [name, value] for name, value in fields.items()}
    assert said == [*last.values(), [""]]


@given(st.text(max_size=5), st.text(max_size=5))
def test_a_field_is_one_line_or_is_not_sent(name: str, value: str) -> None:
    try:
        said = head("GET", "/", {f"X{name}": f"{value}y"})
    except Misconfigured as error:
        assert error.code == "header"
        return
    assert said.count(b"\n") == said.count(b"\r") == 3
    assert said.isascii() or f"{value}y".encode("latin-1") in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X", "a\r\nX-Other: 1"),
        ("X", "a\nb"),
        ("X", "a\rb"),
        ("X", "a\0b"),
        ("X", "😀"),
        ("X\r\nY", "a"),
        ("X Y", "a"),
        ("", "a"),
        ("ü", "a"),
    ],
)
def test_an_invalid_field_is_not_sent_and_its_value_not_reported(name: str, value: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        head("GET", "/", {name: f"{value} of a secret"})
    assert caught.value.code == "header"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "target"),
    [("GET /x HTTP/1.1\r\nX: y", "/"), ("", "/"), ("GET", "/a b"), ("GET", "/a\r\n"), ("GET", "")],
)
def test_an_invalid_request_is_not_sent(method: str, target: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        head(method, target, {})
    assert caught.value.code == "url"


@pytest.mark.parametrize(
    ("name", "port", "scheme", "said"),
    [
        ("pos.example", 443, "https", "pos.example"),
        ("pos.example", 80, "http", "pos.example"),
        ("pos.example", 80, "https", "pos.example:80"),
        ("127.0.0.1", 8080, "http", "127.0.0.1:8080"),
        ("::1", 443, "https", "[::1]"),
        ("::1", 8443, "https", "[::1]:8443"),
        ("fe80::1%eth0", 443, "https", "[fe80::1]"),
        ("bücher.example", 443, "https", "xn--bcher-kva.example"),
    ],
)
def test_the_host_field_is_the_librarys(name: str, port: int, scheme: str, said: str) -> None:
    assert host_header(name, port, scheme) == said
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    connection = kind(name, port)
    written: list[bytes] = []
    connection.send = written.append  # type: ignore[method-assign, assignment]
    connection.putrequest("GET", "/")
    connection.endheaders()
    assert f"\r\nHost: {said}\r\n".encode() in written[0]


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("POST", b"{}", "2"),
        ("POST", b"", "0"),
        ("POST", None, "0"),
        ("GET", None, None),
        ("DELETE", None, None),
        ("GET", b"x", "1"),
    ],
)
def test_content_length_is_sent_wherever_a_body_is_expected(
    method: str, body: bytes | None, length: str | None
) -> None:
    for fields in ({}, {"content-length": "99"}):
        said = head(method, "/", fields, body).lower()
        line = b"" if length is None else b"content-length: %b\r\n" % length.encode()
        assert said.count(b"content-length") == (1 if length or fields else 0)
        assert line in said


def test_a_requests_own_header_replaces_one_of_every_request_whatever_its_case() -> None:
    said = made_head("GET", "/", "100%", {"accept": "b", "X%s": "1", "x%S": "%s%d"}, None)
    host, agent, _, encoding = EVERY
    fields = host.replace(b"h\r", b"100%\r") + agent + b"accept: b\r\n" + encoding
    assert said == b"GET / HTTP/1.1\r\n" + fields + b"x%S: %s%d\r\n\r\n"


@pytest.mark.parametrize("name", ["h\r\nX: 1", "a b\0", "h\n"])
def test_an_invalid_host_is_not_sent(name: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        made_head("GET", "/", name, {}, None)
    assert caught.value.code == "header"
