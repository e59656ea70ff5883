"""The adversaries of the reply's parser: what each sends, and what follows.

``REPLIES`` are read, ``REFUSED`` are not, each in whole, in pieces, and byte by byte. A reply is
refused where two readers may read it differently (smuggling: two lengths, a length and chunks, line
ends that differ, a folded length), where it is cut, or where it is without end. What a whole peer does
is in ``testkit/hostile/catalogue.py``; damage without a plan is ``test_reply_fuzz.py``'s.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pos_gateway.transport import parser
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.messages import ACKNOWLEDGEMENT, BODY_LIMIT
from pos_gateway.transport.parser import HEAD_LIMIT, IDLE, LONGEST_IDLE, read_reply

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
TWO = b"Content-Length: 2\r\n\r\n{}"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Waits(Exception):
    """The parser waits for more."""


class Read(NamedTuple):
    """A reply, and for how many seconds its connection may be reused."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float

    @property
    def is_kept(self) -> bool:
        return self.seconds > 0


def read(
    data: bytes,
    size: int = 100_000,
    *,
    method: str = "POST",
    expects: int = ACKNOWLEDGEMENT,
    ends: bool = True,
) -> Read:
    """Parse the bytes in pieces of this size, before the connection's end, or without one."""
    pieces = (data[start : start + size] for start in range(0, len(data), size))

    def receive() -> bytes:
        piece = next(pieces, b"")
        if not piece and not ends:
            raise Waits
        return piece

    reply, seconds = read_reply(next(pieces), receive, method, expects)
    return Read(reply.status, reply.headers, reply.body, seconds)


class Is(NamedTuple):
    """What a reply is read as."""

    status: int
    body: bytes
    is_kept: bool
    method: str = "POST"


REPLIES: dict[str, tuple[bytes, Is]] = {
    # Its framing
    "a length": (OK + TWO, Is(200, b"{}", True)),
    "a length of 0": (OK + b"Content-Length: 0\r\n\r\n", Is(200, b"", True)),
    "a length with zeros before it": (OK + b"Content-Length: 0002\r\n\r\n{}", Is(200, b"{}", True)),
    "chunks": (CHUNKED + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", Is(200, b"{}", True)),
    "chunks, their name in capitals": (
        OK + b"Transfer-Encoding: CHUNKED\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        Is(200, b"{}", True),
    ),
    "chunks with extensions, zeros and a trailer": (
        CHUNKED + b"0002 ;a=b\r\n{}\r\n000;x\r\nX: y\r\nContent-Length: 9\r\n\r\n",
        Is(200, b"{}", True),
    ),
    "chunks, and HTTP/1.0": (
        CHUNKED.replace(b"1.1", b"1.0") + b"2\r\n{}\r\n0\r\n\r\n",
        Is(200, b"{}", False),
    ),
    "the connection's end": (OK + b"\r\n{}", Is(200, b"{}", False)),
    "the connection's end, and nothing": (OK + b"\r\n", Is(200, b"", False)),
    # Its head
    "no reason, and no blank before it": (b"HTTP/1.1 200\r\n" + TWO, Is(200, b"{}", True)),
    "no reason": (b"HTTP/1.1 200 \r\n" + TWO, Is(200, b"{}", True)),
    "a reason beyond ASCII": (b"HTTP/1.1 200 \xe9\r\n" + TWO, Is(200, b"{}", True)),
    "a status of its own": (b"HTTP/1.1 999 No\r\n" + TWO, Is(999, b"{}", True)),
    "every line ends with LF alone": (
        b"HTTP/1.1 200 OK\nX: y\nContent-Length: 2\n\n{}",
        Is(200, b"{}", True),
    ),
    "blanks around a value": (OK + b"Content-Length: \t 2 \t\r\n\r\n{}", Is(200, b"{}", True)),
    "a head and no more yet": (OK + b"X:\r\n" + TWO, Is(200, b"{}", True)),
    # The connection after it
    "closes": (OK + b"Connection: close\r\n" + TWO, Is(200, b"{}", False)),
    "closes, on another line": (
        OK + b"Connection: close\r\nConnection: te\r\n" + TWO,
        Is(200, b"{}", False),
    ),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n" + TWO, Is(200, b"{}", False)),
    "HTTP/1.0 that keeps": (
        b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n" + TWO,
        Is(200, b"{}", True),
    ),
    "HTTP/1.0 that says both": (
        b"HTTP/1.0 200 OK\r\nConnection: close\r\nKeep-Alive: timeout=5\r\n" + TWO,
        Is(200, b"{}", False),
    ),
    "HTTP/1.9": (b"HTTP/1.9 200 OK\r\n" + TWO, Is(200, b"{}", True)),
    "another reply behind it": ((OK + TWO) * 2, Is(200, b"{}", False)),
    "another reply behind its chunks": (
        CHUNKED + b"0\r\n\r\n" + OK + TWO,
        Is(200, b"", False),
    ),
    # Without a body
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", Is(204, b"", True)),
    "304": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", Is(304, b"", True)),
    "204 that announces a body": (
        b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n",
        Is(204, b"", False),
    ),
    "204 with a body": (b"HTTP/1.1 204 No Content\r\n\r\n{}", Is(204, b"", False)),
    "to HEAD": (OK + b"Content-Length: 999999999\r\n\r\n", Is(200, b"", True, "HEAD")),
    "to HEAD, of chunks": (CHUNKED, Is(200, b"", True, "HEAD")),
    "to HEAD, with a body": (OK + TWO, Is(200, b"", False, "HEAD")),
    # Before it
    "100": (CONTINUE + OK + TWO, Is(200, b"{}", True)),
    "100 with headers, and again": (
        b"HTTP/1.1 100 Continue\r\nContent-Length: 9\r\nConnection: close\r\n\r\n"
        + CONTINUE
        + OK
        + TWO,
        Is(200, b"{}", True),
    ),
    "102, 103 and 104": (
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        b"HTTP/1.1 104 Upload Resumption Supported\r\n\r\n" + OK + TWO,
        Is(200, b"{}", True),
    ),
    "an interim reply of its own": (b"HTTP/1.1 199 x\n\n" + OK + TWO, Is(200, b"{}", True)),
    # Folded
    "a folded header": (OK + b"X: a\r\n b\r\n" + TWO, Is(200, b"{}", True)),
    "a header folded twice": (OK + b"X:\r\n\ta\r\n  b\r\n" + TWO, Is(200, b"{}", True)),
    "a folded header with LF": (
        b"HTTP/1.1 200 OK\nX: a\n b\nContent-Length: 2\n\n{}",
        Is(200, b"{}", True),
    ),
    "a folded close": (OK + b"Connection:\r\n close\r\n" + TWO, Is(200, b"{}", False)),
    "a folded header of an interim reply": (
        b"HTTP/1.1 103 Hints\r\nLink: </a>,\r\n </b>\r\n\r\n" + OK + TWO,
        Is(200, b"{}", True),
    ),
    # Not encoded
    "identity": (OK + b"Content-Encoding: Identity\r\n" + TWO, Is(200, b"{}", True)),
    "an empty encoding": (OK + b"Content-Encoding:\r\n" + TWO, Is(200, b"{}", True)),
    "a charset": (OK + b"Content-Encoding: UTF-8\r\n" + TWO, Is(200, b"{}", True)),
    "no encoding": (OK + b"Content-Encoding: none\r\n" + TWO, Is(200, b"{}", True)),
    "identity twice": (
        OK + b"Content-Encoding: identity, identity\r\n" + TWO,
        Is(200, b"{}", True),
    ),
    "identity on two lines": (
        OK + b"Content-Encoding: identity\r\nContent-Encoding:\r\n" + TWO,
        Is(200, b"{}", True),
    ),
}

REFUSED: dict[str, tuple[bytes, str]] = {
    # Two readings of its end
    "two lengths": (OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", "invalid_reply"),
    "two lengths, alike": (
        OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        "invalid_reply",
    ),
    "a list of lengths": (OK + b"Content-Length: 2, 2\r\n\r\n{}", "invalid_reply"),
    "a length with a sign": (OK + b"Content-Length: +2\r\n\r\n{}", "invalid_reply"),
    "a negative length": (OK + b"Content-Length: -1\r\n\r\n{}", "invalid_reply"),
    "a hexadecimal length": (OK + b"Content-Length: 0x2\r\n\r\n{}", "invalid_reply"),
    "a length with an underscore": (OK + b"Content-Length: 1_0\r\n\r\n{}", "invalid_reply"),
    "a length in other digits": (OK + b"Content-Length: \xb2\r\n\r\n{}", "invalid_reply"),
    "no length in its header": (OK + b"Content-Length:\r\n\r\n", "invalid_reply"),
    "a length of 19 digits": (OK + b"Content-Length: " + b"1" * 19 + b"\r\n\r\n", "invalid_reply"),
    "a length and chunks": (
        OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "invalid_reply",
    ),
    "chunks and a length": (
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "invalid_reply",
    ),
    "gzip, then chunks": (
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "invalid_reply",
    ),
    "chunks twice": (
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "invalid_reply",
    ),
    "nearly chunked": (OK + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "invalid_reply"),
    "chunked with a vertical tab": (
        OK + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        "invalid_reply",
    ),
    "identity as its transfer": (OK + b"Transfer-Encoding: identity\r\n\r\n{}", "invalid_reply"),
    "204 in chunks": (
        b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "invalid_reply",
    ),
    # Two readings of its head
    "a folded length": (OK + b"Content-Length: 2\r\n 3\r\n\r\n{}", "invalid_reply"),
    "a length on a line of its own": (OK + b"CONTENT-LENGTH:\r\n 2\r\n\r\n{}", "invalid_reply"),
    "a folded line of blanks": (OK + b"X: a\r\n \r\n" + TWO, "invalid_reply"),
    "a folded line that ends with LF": (OK + b"X: a\r\n b\n" + TWO, "invalid_reply"),
    "a folded status line": (b"HTTP/1.1 200 OK\r\n b\r\n" + TWO, "invalid_reply"),
    "NUL in a folded line": (OK + b"X: a\r\n b\0\r\n" + TWO, "invalid_reply"),
    "a folded encoding": (
        OK + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        "invalid_reply",
    ),
    "a blank before the colon": (OK + b"Content-Length : 2\r\n\r\n{}", "invalid_reply"),
    "a blank before the name": (OK + b" Content-Length: 2\r\n\r\n{}", "invalid_reply"),
    "no colon": (OK + b"nonsense\r\n" + TWO, "invalid_reply"),
    "no name": (OK + b": x\r\n" + TWO, "invalid_reply"),
    "a name beyond ASCII": (OK + b"Content-Length\xa0: 9\r\n" + TWO, "invalid_reply"),
    "NUL": (OK + b"X: a\0b\r\n" + TWO, "invalid_reply"),
    "NUL in a name": (OK + b"X\0: b\r\n" + TWO, "invalid_reply"),
    "a control character": (OK + b"X: a\x01b\r\n" + TWO, "invalid_reply"),
    "DEL": (OK + b"X: a\x7fb\r\n" + TWO, "invalid_reply"),
    "a bare CR": (OK + b"X: a\rContent-Length: 9\r\n" + TWO, "invalid_reply"),
    "a bare CR at the line's end": (OK + b"X: a\r\r\n" + TWO, "invalid_reply"),
    "a bare LF between CRLFs": (OK + b"X: a\nContent-Length: 2\r\n\r\n{}", "invalid_reply"),
    "a bare LF before the last line": (OK + b"Content-Length: 2\n\r\n{}", "invalid_reply"),
    "a CRLF among bare LFs": (b"HTTP/1.1 200 OK\nContent-Length: 2\r\n\n{}", "invalid_reply"),
    "an empty line of CRLF among bare LFs": (
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\r\n{}",
        "invalid_reply",
    ),
    # No HTTP
    "a status line of HTTP/2": (b"HTTP/2.0 200 OK\r\n" + TWO, "invalid_reply"),
    "another protocol": (b"RTSP/1.0 200 OK\r\n" + TWO, "invalid_reply"),
    "a greeting": (b"220 mail.example ESMTP\r\n", "invalid_reply"),
    "an empty line first": (b"\r\n" + OK + TWO, "invalid_reply"),
    "small letters": (b"http/1.1 200 OK\r\n" + TWO, "invalid_reply"),
    "a status with an underscore": (b"HTTP/1.1 2_00 OK\r\n" + TWO, "invalid_reply"),
    "a status with a sign": (b"HTTP/1.1 +200 OK\r\n" + TWO, "invalid_reply"),
    "a status of two digits": (b"HTTP/1.1 20 OK\r\n" + TWO, "invalid_reply"),
    "a status of four digits": (b"HTTP/1.1 2000 OK\r\n" + TWO, "invalid_reply"),
    "a status from 0": (b"HTTP/1.1 099 OK\r\n" + TWO, "invalid_reply"),
    "two blanks before the status": (b"HTTP/1.1  200 OK\r\n" + TWO, "invalid_reply"),
    "NUL in the reason": (b"HTTP/1.1 200 O\0K\r\n" + TWO, "invalid_reply"),
    "101": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "invalid_reply"),
    "101, then a reply": (b"HTTP/1.1 101 Switching\r\n\r\n" + OK + TWO, "invalid_reply"),
    "101 behind 100": (CONTINUE + b"HTTP/1.1 101 Switching\r\n\r\n" + OK + TWO, "invalid_reply"),
    "103, and no reply": (b"HTTP/1.1 103 Early Hints\r\n\r\n", "broken_off"),
    # Chunks
    "a chunk with a sign": (CHUNKED + b"+2\r\n{}\r\n0\r\n\r\n", "invalid_reply"),
    "a chunk with 0x": (CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n", "invalid_reply"),
    "a chunk without a size": (CHUNKED + b"\r\n{}\r\n0\r\n\r\n", "invalid_reply"),
    "a chunk whose size is no number": (CHUNKED + b"zz\r\n", "invalid_reply"),
    "a chunk's size in 9 digits": (CHUNKED + b"000000002\r\n{}\r\n0\r\n\r\n", "invalid_reply"),
    "a chunk's line of LF": (CHUNKED + b"2\n{}\r\n0\r\n\r\n", "invalid_reply"),
    "a chunk that ends with LF": (CHUNKED + b"2\r\n{}\n0\r\n\r\n", "invalid_reply"),
    "a chunk that is longer than it says": (CHUNKED + b"2\r\n{}xx0\r\n\r\n", "invalid_reply"),
    "a chunk that is shorter than it says": (CHUNKED + b"3\r\n{}\r\n0\r\n\r\n", "invalid_reply"),
    "NUL in an extension": (CHUNKED + b"2;\0\r\n{}\r\n0\r\n\r\n", "invalid_reply"),
    "a bare CR in an extension": (CHUNKED + b"2;\rx\r\n{}\r\n0\r\n\r\n", "invalid_reply"),
    "a trailer that is no field": (CHUNKED + b"0\r\nnonsense\r\n\r\n", "invalid_reply"),
    "a folded trailer": (CHUNKED + b"0\r\nX: a\r\n b\r\n\r\n", "invalid_reply"),
    "a trailer's line of LF": (CHUNKED + b"0\r\nX: a\n\r\n", "invalid_reply"),
    # Cut
    "nothing after 100": (CONTINUE, "broken_off"),
    "a cut status line": (b"HTTP/1.1 20", "cut"),
    "a cut header": (OK + b"Content-Le", "cut"),
    "a head without its empty line": (OK + b"Content-Length: 0\r\n", "cut"),
    "a head that ends in its last line end": (OK + b"Content-Length: 0\r\n\r", "cut"),
    "a cut body": (OK + b"Content-Length: 9\r\n\r\n{}", "cut"),
    "a body that never begins": (OK + b"Content-Length: 9\r\n\r\n", "cut"),
    "chunks cut in a size": (CHUNKED + b"2", "cut"),
    "chunks cut in a chunk": (CHUNKED + b"2\r\n{", "cut"),
    "chunks cut behind a chunk": (CHUNKED + b"2\r\n{}\r", "cut"),
    "chunks without the last one": (CHUNKED + b"2\r\n{}\r\n", "cut"),
    "chunks without their last line": (CHUNKED + b"2\r\n{}\r\n0\r\n", "cut"),
    # Encoded
    "gzip": (OK + b"Content-Encoding: gzip\r\n" + TWO, "encoding"),
    "identity, gzip": (OK + b"Content-Encoding: identity, gzip\r\n" + TWO, "encoding"),
    "identity, and gzip before it": (
        OK + b"Content-Encoding: gzip\r\nContent-Encoding: identity\r\n" + TWO,
        "encoding",
    ),
    # Too long
    "a length over the limit": (OK + b"Content-Length: 32769\r\n\r\n", "reply_too_long"),
    "a chunk over the limit": (CHUNKED + b"8001\r\n", "reply_too_long"),
    "chunks over the limit": (
        CHUNKED + b"8000\r\n" + b"x" * 0x8000 + b"\r\n1\r\nx\r\n0\r\n\r\n",
        "reply_too_long",
    ),
    "an end over the limit": (OK + b"\r\n" + b"x" * 0x8001, "reply_too_long"),
}


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("name", REPLIES)
def test_a_valid_reply_is_read(name: str, size: int) -> None:
    data, expected = REPLIES[name]
    reply = read(data, size, method=expected.method)
    assert (reply.status, reply.body) == (expected.status, expected.body)
    # Bytes behind it that have not come yet are the connection's to find.
    assert not reply.is_kept or expected.is_kept or size < len(data)
    assert reply.is_kept or not expected.is_kept


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_reply_is_refused(name: str, size: int) -> None:
    data, code = REFUSED[name]
    with pytest.raises(NoValidReply) as caught:
        read(data, size)
    assert caught.value.code == code


@pytest.mark.parametrize("name", [name for name, (_, code) in REFUSED.items() if code != "cut"])
def test_an_invalid_reply_is_refused_before_more_comes(name: str) -> None:
    """A peer that is no POS, and stays, is not waited for."""
    if name in ("nothing after 100", "103, and no reply"):
        return
    with pytest.raises(NoValidReply):
        read(REFUSED[name][0], 7, ends=False)


def test_a_line_is_refused_as_soon_as_it_is_there() -> None:
    for begin in (
        b"220 mail.example\r\n",
        OK + b"nonsense\r\n",
        OK + b"X: y\n",
        CHUNKED + b"zz\r\n",
    ):
        with pytest.raises(NoValidReply):
            read(begin, 1, ends=False)


def test_a_reply_is_not_waited_for_beyond_its_end() -> None:
    for name, (data, expected) in REPLIES.items():
        if "connection's end" not in name and not name.endswith("with a body"):
            assert read(data, 7, method=expected.method, ends=False).status == expected.status


def test_an_error_quotes_nothing_of_the_reply() -> None:
    for data, _ in REFUSED.values():
        with pytest.raises(NoValidReply) as caught:
            read(data)
        assert "{}" not in str(caught.value)
        assert "nonsense" not in str(caught.value)


def test_headers_are_by_name_in_lower_case_and_the_last_of_a_name_counts() -> None:
    said = b"X-Id: 1\r\nx-id:2\r\nY: x\r\nZ: \xe9\t\xa0\r\n"
    assert read(OK + said + TWO).headers == {
        "x-id": "2",
        "y": "x",
        "z": "é\t\xa0",
        "content-length": "2",
    }


def test_a_fold_is_a_blank() -> None:
    said = read(OK + b"X:\r\n\ta\r\n  b\r\nY: c,\r\n d\r\n" + TWO).headers
    assert {name: " ".join(said[name].split()) for name in "xy"} == {"x": "a b", "y": "c, d"}
    assert not any("\r" in value or "\n" in value for value in said.values())


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (b"timeout=5, max=100", 4.0),
        (b"max=100, timeout = 7", 6.0),
        (b"timeout=3600", LONGEST_IDLE - 1),
        (b"timeout=1", 0.0),
        (b"TIMEOUT=0", 0.0),
        (b"max=9", IDLE),
        (b"timeout=-5", IDLE),
        (b"mytimeout=5", IDLE),
        (b"timeout=9999999", IDLE),
        (b"timeout=x", IDLE),
    ],
)
def test_a_connection_is_reused_until_a_second_before_its_peer_closes_it(
    said: bytes, seconds: float
) -> None:
    assert read(OK + b"Keep-Alive: " + said + b"\r\n" + TWO).seconds == seconds


def limits() -> Iterator[tuple[str, Callable[[int], bytes], int]]:
    """Each limit: its name, a reply of that many, and the most."""

    def head(size: int) -> bytes:
        left = size - len(OK) - len(b"Content-Length: 2\r\n\r\n")
        lines = b"".join(b"X: %b\r\n" % (b"x" * 995) for _ in range(left // 1000 - 1))
        return OK + lines + b"Y: %b\r\n" % (b"y" * (left - len(lines) - 5)) + TWO

    yield "a head", head, HEAD_LIMIT
    yield "interim heads", lambda n: CONTINUE + head(n - len(CONTINUE)), HEAD_LIMIT
    yield "interim replies", lambda n: CONTINUE * n + OK + TWO, 100
    yield "headers", lambda n: OK + b"X: y\r\n" * (n - 1) + TWO, 100
    yield "chunks", lambda n: CHUNKED + b"1\r\nx\r\n" * (n - 1) + b"0\r\n\r\n", 2000
    line = parser._LONGEST
    yield "a chunk's line", lambda n: CHUNKED + b"0;" + b"x" * (n - 4) + b"\r\n\r\n", line
    yield "a trailer", lambda n: CHUNKED + b"0\r\nX:" + b"x" * (n - 4) + b"\r\n\r\n", line
    yield "trailers", lambda n: CHUNKED + b"0\r\n" + b"X: y\r\n" * (n - 1) + b"\r\n", 100


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize(("name", "made", "most"), [*limits()], ids=lambda each: str(each)[:12])
def test_a_limit_is_exact(name: str, made: Callable[[int], bytes], most: int, size: int) -> None:
    assert read(made(most), size).status == 200
    with pytest.raises(NoValidReply):
        read(made(most + 1), size)


def test_the_bodys_limit_is_the_requests_but_for_a_refusal() -> None:
    def reply(status: bytes, size: int) -> bytes:
        return b"HTTP/1.1 %b X\r\nContent-Length: %d\r\n\r\n" % (status, size) + b"x" * size

    assert len(read(reply(b"200", BODY_LIMIT), expects=BODY_LIMIT).body) == BODY_LIMIT
    assert len(read(reply(b"400", ACKNOWLEDGEMENT), expects=BODY_LIMIT).body) == ACKNOWLEDGEMENT
    for status, size in ((b"200", BODY_LIMIT + 1), (b"400", ACKNOWLEDGEMENT + 1)):
        with pytest.raises(NoValidReply) as caught:
            read(reply(status, size), expects=BODY_LIMIT)
        assert caught.value.code == "reply_too_long"


@pytest.mark.timeout(60)  # scanned again for each blank, they take half an hour
@pytest.mark.parametrize("end", [b"\0\r\n", b"\r", b"", b"\n"], ids=["NUL", "CR", "cut", "LF"])
def test_a_field_of_blanks_is_scanned_once(end: bytes) -> None:
    """No other green thread runs meanwhile, and no deadline can end it."""
    blanks = b" " * 1_000_000
    assert parser._CRLF.field.fullmatch(b"a:" + blanks + end) is None
    assert parser._CRLF.head.match(OK + b"a:" + blanks + end) is None
    assert parser._CHUNK.match(b"1" + blanks + end) is None


@pytest.mark.timeout(60)  # a look at all of it for each byte takes minutes
def test_a_drip_costs_no_more_than_its_bytes() -> None:
    """Each byte by itself, as a slow peer sends them."""
    head = OK + b"".join(b"X-%d: %b\r\n" % (n, b"x" * 600) for n in range(90)) + TWO
    for data in (head, OK + b"Content-Length: 30000\r\n\r\n" + b"x" * 30_000):
        assert read(data, 1).status == 200


_BODIES = st.binary(max_size=200)
_SIZES = st.integers(1, 300)


@given(_BODIES, st.lists(st.integers(1, 60), max_size=8), _SIZES, st.sampled_from([b"", b"x", OK]))
def test_chunks_however_they_are_cut_are_the_body(
    body: bytes, cuts: list[int], size: int, behind: bytes
) -> None:
    data, left = CHUNKED, body
    for cut in [*cuts, len(body) or 1]:
        part, left = left[:cut], left[cut:]
        if part:
            data += b"%x\r\n" % len(part) + part + b"\r\n"
    reply = read(data + b"0\r\n\r\n" + behind, size)
    assert reply.body == body
    assert reply.is_kept or behind


@given(
    st.dictionaries(
        st.from_regex(r"\Ax-[a-z0-9!#$%&'*+.^_`|~-]{0,10}\Z"),
        st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=20),
        max_size=6,
    ),
    _BODIES,
    _SIZES,
    st.sampled_from([b"\r\n", b"\n"]),
)
def test_a_head_is_read_as_it_was_written(
    headers: dict[str, str], body: bytes, size: int, end: bytes
) -> None:
    said = {**headers, "content-length": str(len(body))}
    lines = [b"HTTP/1.1 200 OK", *(f"{n}:{v}".encode("latin-1") for n, v in said.items()), b"", b""]
    reply = read(end.join(lines) + body, size)
    assert reply.headers == {name: value.strip(" \t") for name, value in said.items()}
    assert (reply.body, reply.is_kept) == (body, True)
