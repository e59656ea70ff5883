"""Replies that were valid, and were damaged: which of them the gateway accepts.

A few hundred are tried each time, and ``FUZZ=100000 pytest tests/transport/test_reply_fuzz.py
--timeout 3600`` tries that many. A reply that the gateway accepts is parsed once more by ``read``
below, which shares no code with the gateway's parser.
"""

import json
import os
import re
import tracemalloc
from collections.abc import Iterator
from itertools import chain, cycle
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport import endpoint
from pos_gateway.transport.connection import Connection
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import ACKNOWLEDGEMENT, BODY_LIMIT, Reply, Request, Transport
from pos_gateway.transport.guard import Guard
from pos_gateway.transport.parser import HEAD_LIMIT
from testkit.hostile_text import is_shown
from testkit.patience import PATIENCE
from tests.mutations import MUTATIONS, Step, mutated
from tests.orders import an_order

EXAMPLES = int(os.environ.get("FUZZ", "400"))
MERCHANT = Merchant.parse({"id": "m", "base_url": "http://127.0.0.1/api"})
ORDER = Order.parse(an_order("o-1", "m"))
REQUEST = Request("POST", "http://127.0.0.1/api/orders", b"{}")


class FakeSocket:
    """A connection whose peer has sent everything, in pieces of this size; then its end."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def receive(self) -> bytes:
        return next(self._pieces, b"")


class Fed(Connection):
    """Reads what a FakeSocket has."""

    def __init__(self, sock: FakeSocket) -> None:
        self.until = self.idle_until = self._old_at = 0.0
        self._source = sock

    def receive(self) -> bytes:
        return self._source.receive()

    def send(self, data: bytes) -> None: ...
    def is_reusable(self) -> bool:
        return True

    def reset_on_close(self, *, enabled: bool = True) -> None: ...
    def close(self, *, is_complete: bool = False) -> None: ...


class Line:
    """The gateway's transport, and peers that send the given bytes."""

    def __init__(self) -> None:
        self._transport = Transport(guard=Guard(allow_all=True))
        self._transport._dialer = SimpleNamespace(dial=self._connect)  # type: ignore[assignment]
        self._sockets: list[FakeSocket] = []

    def send(self, request: Request, *pieces: Iterator[bytes]) -> Reply:
        self._sockets = [FakeSocket(each) for each in pieces]
        try:
            with mock.patch.object(endpoint, "Connection", Fed):
                return self._transport.send(request, key="m", connections=1, seconds=PATIENCE)
        finally:
            self._transport.close()  # each exchange has a new connection

    def submit(self, replies: list[bytes], size: int) -> Outcome:
        """The outcome of an order with these replies, in pieces of this size."""
        left = iter(replies)

        def send(request: Request) -> Reply:
            return self.send(request, in_pieces(next(left), size))

        return RestAdapter().submit(ORDER, MERCHANT, send)

    def _connect(self, *_: Any, **__: Any) -> FakeSocket:
        return self._sockets.pop(0)


LINE = Line()


def in_pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


HEAD = re.compile(
    rb"HTTP/1\.[0-9] (?P<status>[1-9][0-9]{2})(?: [\t -~\x80-\xff]*)?\r?\n"
    rb"(?P<fields>(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*"
    rb"(?:\r?\n[\t ]+[!-~\x80-\xff][\t -~\x80-\xff]*)*\r?\n)*)\r?\n"
)
CHUNK = re.compile(rb"([0-9a-fA-F]+)[ \t]*(?:;[\t -~\x80-\xff]*)?\r?\n")
TRAILER = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r?\n)*\r?\n")


def read(data: bytes) -> tuple[int, bytes] | None:
    """Status and body, if the bytes begin with one complete final reply of RFC 9112."""
    status = 100
    while 100 <= status < 200 and status != 101:
        head = HEAD.match(data)
        if head is None:
            return None
        status, data = int(head["status"]), data[head.end() :]
    unfolded = re.sub(rb"\r?\n[\t ]+", b" ", head["fields"])
    fields = [line.partition(b":") for line in re.split(rb"\r?\n", unfolded) if line]
    values: dict[bytes, list[bytes]] = {}
    for name, _, value in fields:
        values.setdefault(name.lower(), []).append(value.strip(b" \t"))
    body = _body(data, values)
    codings = b",".join(values.get(b"content-encoding", [])).lower().split(b",")
    encoded = {each.strip(b" \t") for each in codings} - {b"", b"identity", b"none", b"utf-8"}
    if status < 200 or encoded or body is None or len(body) > ACKNOWLEDGEMENT:
        return None
    return status, body


def _body(data: bytes, values: dict[bytes, list[bytes]]) -> bytes | None:
    lengths = values.get(b"content-length", [])
    encodings = values.get(b"transfer-encoding", [])
    if encodings:
        return None if lengths or encodings[0].lower() != b"chunked" else _unchunked(data)
    if not lengths:
        return data
    if len(lengths) > 1 or not re.fullmatch(rb"[0-9]+", lengths[0]):
        return None
    return data[: int(lengths[0])] if int(lengths[0]) <= len(data) else None


def _unchunked(data: bytes) -> bytes | None:
    body = b""
    while chunk := CHUNK.match(data):
        size, data = int(chunk[1], 16), data[chunk.end() :]
        if not size:
            return body if TRAILER.match(data) else None
        if data[size : size + 2] != b"\r\n":
            return None
        body, data = body + data[:size], data[size + 2 :]
    return None


def says_accepted(status: int, body: bytes) -> bool:
    """Whether the reply says exactly this, once, and of no other order."""
    try:
        pairs = json.loads(body.decode(), object_pairs_hook=list)
    except (ValueError, RecursionError):
        return False
    record = dict(pairs)
    once = len(record) == len(pairs)
    ours = record.get("order_id", ORDER.order_id) == ORDER.order_id
    return once and ours and status in (200, 201) and record.get("status") == "accepted"


def reply(status: str, body: bytes, *lines: bytes) -> bytes:
    head = [b"HTTP/1.1 " + status.encode(), *lines, b"Content-Length: %d" % len(body)]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


BODY = b'{"id":"pos-7","status":"accepted","order_id":"o-1"}'
CHUNKED = (
    b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"a\r\n" + BODY[:10] + b"\r\n%x;x=y\r\n" % len(BODY[10:]) + BODY[10:] + b"\r\n0\r\n\r\n"
)
JSON = b"Content-Type: application/json"
ACCEPTING = {
    "length": reply("201 Created", BODY, JSON, b"Connection: keep-alive"),
    "chunks": CHUNKED,
    "no length": b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n" + BODY,
    "interim first": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + reply("200 OK", BODY),
    "folded": reply("200 OK", BODY, b"X: a\r\n b", b"Content-Encoding:"),
    "continue first": b"HTTP/1.1 100 Continue\r\n\r\n" + reply("200 OK", BODY),
    "short": reply("200 OK", b'{"status":"accepted"}'),
}
OTHERS = (
    reply("202 Accepted", b'{"status":"pending"}'),
    reply("422 No", b'{"error":{"code":"out_of_stock","message":"no buns"}}', JSON),
    reply("429 Too Many Requests", b"", b"Retry-After: Wed, 21 Oct 2099 07:28:00 GMT"),
    reply("503 Service Unavailable", b"{}", b"Retry-After: 2.5"),
    reply("302 Found", b"", b"Location: https://10.0.0.1:8443/orders?x=y"),
    reply("404 Not Found", b"<html>"),
    reply("200 OK", b'{"status":"cancelled","n":[1.5,-2e9,{"a":null}]}'),
)
CONFLICT = reply("409 Conflict", b"{}")

BITS = (
    b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\0", b" ", b"\t", b":", b";", b"\x0b", b"\x85", b"\xa0",
    b"+", b"-", b"_", b"0", b"1", b"9" * 20, b"0x", b"\xff", b"\xef\xbb\xbf", b"\xc2\xb2",
    b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"0\r\n\r\n", b"1\r\nx\r\n",
    b"Content-Length: 2", b"Content-Length: +51", b"Content-Length: 51, 51", b"Content-Length:",
    b"Transfer-Encoding: chunked", b"transfer-encoding: Chunked ", b"Transfer-Encoding:\r\n chunked",
    b"Transfer-Encoding: identity", b"Content-Encoding: gzip", b"Content-Encoding: br, gzip",
    b"Content-Type: multipart/mixed; boundary=x", b"Connection: close", b"Keep-Alive: timeout=9",
    b" folded", b"From no one", b"nonsense", b"Retry-After: 99999999999999999999",
    b"Retry-After: Mon, 99 Feb 2026 25:61:61 +9999", b"Location: http://[::1", b"Location: //[x]/",
    b'"status":"accepted",', b'"status":[],', b'"status":{},', b'"order_id":"o-2",', b'"id":7,',
    b"[" * 3000, b'{"a":' * 3000, b"NaN", b"1e999", b"1" * 5000, b'"\\ud800"', b"{}", b"null",
)  # fmt: skip
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.sampled_from(sorted(MUTATIONS)),
        st.integers(0, 400),
        st.integers(1, 20),
        st.sampled_from(BITS) | st.binary(min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=4,
)
REPLIES = st.builds(
    mutated, st.sampled_from((*ACCEPTING.values(), *OTHERS, CONFLICT)), STEPS
) | st.sampled_from((CONFLICT, *ACCEPTING.values()))


@pytest.mark.parametrize("name", ACCEPTING)
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_valid_reply_is_accepted(name: str, size: int) -> None:
    """Otherwise the rest of this file would prove nothing."""
    data = ACCEPTING[name]
    for replies in ([data], [CONFLICT, ACCEPTING["no length"]]):
        assert LINE.submit(replies, size).kind is Kind.ACCEPTED
    understood = read(data)
    assert understood is not None
    assert says_accepted(*understood)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
@given(first=REPLIES, second=REPLIES, size=st.sampled_from([1, 7, 100_000]))
@example(reply("200 OK", b'{"status":[]}'), b"", 7)
@example(reply("202 Accepted", b'{"order_id":"o-2"}'), b"", 7)
@example(b"HTTP/1.1 2_00 OK\r\n\r\n" + BODY, b"", 7)
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked \r\n\r\n" + BODY, b"", 7)
def test_only_a_valid_reply_is_accepted(first: bytes, second: bytes, size: int) -> None:
    try:
        outcome = LINE.submit([first, second], size)
    except NoValidReply as error:
        event(f"no valid reply: {error.code}")
        # There was no wait; and an exception without a line in the table of failures propagates.
        assert error.code not in ("timeout", "network", "tls")
        return
    event(outcome.kind)
    understood = read(first)
    if understood is not None and understood[0] == 409:
        understood = read(second)
    if outcome.kind is Kind.ACCEPTED:
        assert understood is not None
        assert says_accepted(*understood)
    if outcome.kind in (Kind.PENDING, Kind.CANCELLED, Kind.REJECTED):
        assert understood is not None
    if outcome.reason is not None:
        assert is_shown(outcome.reason.code)
        assert is_shown(outcome.reason.message)


OK = b"HTTP/1.1 200 OK\r\n"
IN_CHUNKS = OK + b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "status line": (b"H", b"x"),
    "header": (OK + b"X: ", b"x"),
    "headers": (OK, b"X: y\r\n"),
    "long headers": (OK, b"X: " + b"y" * 50_000 + b"\r\n"),
    "interim replies": (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": (OK + b"\r\n", b"x"),
    "long body": (OK + b"Content-Length: 999999999999\r\n\r\n", b"x"),
    "chunk": (IN_CHUNKS + b"ffffffff\r\n", b"x"),
    "chunk's size": (IN_CHUNKS, b"0"),
    "small chunks": (IN_CHUNKS, b"2\r\nxx\r\n"),
    "trailer": (IN_CHUNKS + b"0\r\n", b"X: y\r\n"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_reply_is_given_up_with_little_memory(name: str) -> None:
    """By the bytes read, and not by the deadline."""
    begin, part = ENDLESS[name]
    part *= max(1, 4096 // len(part))
    tracemalloc.start()
    try:
        with pytest.raises(NoValidReply) as caught:
            LINE.send(REQUEST, chain([begin], cycle([part])))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.code != "timeout"
    # The body, once more while it is joined, and the head.
    assert most <= 3 * (BODY_LIMIT + HEAD_LIMIT)
