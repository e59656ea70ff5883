"""Every way to misuse the HTTP API that we could think of, on a real socket.

What is promised of each: a problem, or a closed connection, soon; nothing is published that was not
answered with 202 or 207; memory stays flat; a client that behaves is served meanwhile. Behind each way a
valid order is sent on the same connection: it is answered in step, or is not read at all.
``docs/reliability.md`` lists the ways.
"""

import hashlib
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import psutil
import pytest
import requests
import trustme
from kombu import Connection
from sqlalchemy import insert, update

from pos_gateway.broker import wire
from pos_gateway.broker.topology import orders_queue
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import events, pipeline
from pos_gateway.domain.order import Order
from pos_gateway.server.uvicorn_internals import HEAD_BYTES
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role, Token
from pos_gateway.tokens.tokens import Tokens
from testkit.servers.process import free_port
from testkit.servers.rabbitmq import RabbitMQ
from tests.mutations import MUTATIONS, mutated
from tests.planting import ROOT
from tests.server.lab import SOON, Server, migrated, order, serving, token_for
from tests.server.raw import Raw, Reply

MEGABYTE = 1024 * 1024
#: Most bytes by which the server may have grown after any way.
GROWTH = 48 * MEGABYTE
#: A customer's name, in every order: it must not be logged.
NAME = "Ludmilla Absonderlich"
#: Seconds between two bytes of a slow client.
BYTE_EVERY = 0.5
#: Published events, and the bytes of each one's notes.
EVENTS, NOTES = 2000, 6000
#: Damaged requests, and what chooses them: others with SEED=.
DAMAGED, SEED = 200, os.environ.get("SEED", "1")


class Judge:
    """Knows which orders were answered, and compares them with what is in the broker's queue."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.taken: list[str] = []
        #: Orders whose clients went away, or were told that their end is unknown.
        self.unknown: set[str] = set()

    def order(self, **others: Any) -> bytes:
        """A new valid order."""
        order_id = f"o-{os.urandom(6).hex()}"
        content = order(order_id, customer={"name": NAME}, **others)
        return json.dumps(content).encode()

    def count(self, reply: Reply | None) -> None:
        """Note an order that was taken."""
        if reply is not None and reply.status == 202:
            self.taken.append(json.loads(reply.body)["order_id"])
        elif reply is not None and reply.status == 207:
            self.taken += [e["order_id"] for e in json.loads(reply.body) if e["status"] == 202]

    def judge(self) -> None:
        """What was taken is in the queue, once for each 202, and a worker can read all of it."""
        published = []
        with Connection(self._url) as connection:
            queue = orders_queue.bind(connection.default_channel)
            while (message := queue.get()) is not None:
                message.ack()
                body = message.body.encode() if isinstance(message.body, str) else message.body
                wire.require_small(body, 256 * 1024)
                arguments, named, _ = wire.decoded(body)
                if message.headers["task"] == "pos_gateway.submit_order":
                    published.append(Order.parse(wire.order_in(arguments, named)).order_id)
        known = [each for each in published if each not in self.unknown]
        assert sorted(known) == sorted(each for each in self.taken if each not in self.unknown)
        self.taken.clear()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("abuse") / "server.log"


@pytest.fixture(scope="module")
def viewer(module_database: str) -> str:
    """A token that may read alone."""
    return token_for(module_database, Role.VIEWER)


@pytest.fixture(scope="module")
def server(module_url: str, module_database: str, viewer: str, log: Path) -> Iterator[Server]:
    publish_events(module_database)
    with serving(module_url, module_database, log) as server:
        yield server


@pytest.fixture(scope="module")
def metrics_url() -> str:
    """Where the small server shows its metrics."""
    return f"http://127.0.0.1:{free_port()}/metrics"


@pytest.fixture(scope="module")
def small(
    module_url: str,
    module_database: str,
    metrics_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """A server that takes little at once."""
    limits = {
        "POS_GATEWAY_HTTP_IN_FLIGHT": "2",
        "POS_GATEWAY_HTTP_CONNECTIONS": "20",
        "POS_GATEWAY_METRICS_PORT": metrics_url.rpartition(":")[2].partition("/")[0],
    }
    log = tmp_path_factory.mktemp("small") / "server.log"
    with serving(module_url, module_database, log, limits) as server:
        yield server


@pytest.fixture(scope="module")
def judge(module_url: str) -> Judge:
    return Judge(module_url)


@pytest.fixture(autouse=True)
def _unharmed(request: pytest.FixtureRequest, server: Server, judge: Judge) -> Iterator[None]:
    """After each way nothing is lost or published by mistake, and others are served."""
    yield
    if server.process.poll() is not None:
        return  # the last test has stopped it
    if request.node.get_closest_marker("parametrize") is None:  # the others' are judged in the end
        judge.judge()
    behaves(server, judge)


def publish_events(database_url: str) -> None:
    """Thousands of events, as if orders had ended long ago."""
    engine = open_database(database_url)
    rows = [
        {"event_id": f"e-{n}", "position": n, "order_id": f"old-{n}", **a_failure()}
        for n in range(1, EVENTS + 1)
    ]
    progress = {"id": 1, "epoch": 1, "assigned": EVENTS, "published": EVENTS}
    with engine.begin() as connection:
        connection.execute(insert(events), rows)
        connection.execute(insert(pipeline).values(progress))
    engine.dispose()


def a_failure() -> dict[str, Any]:
    """An event's columns, but for its ids and position."""
    return {
        "type": "failed",
        "merchant_id": "m1",
        "occurred_at": 1.0,
        "attempts": 1,
        "reason_code": "refused",
        "reason_message": f"not for {NAME}",
        "payload": json.dumps(order(customer={"name": NAME}, notes="x" * NOTES)),
    }


def head(server: Server, *lines: str, target: str = "/v1/orders", method: str = "POST") -> bytes:
    """A request's head, with a token and these lines."""
    first = (
        f"{method} {target} HTTP/1.1",
        "Host: gateway",
        f"Authorization: Bearer {server.token}",
    )
    return "\r\n".join((*first, *lines, "", "")).encode("latin-1")


def posting(
    server: Server,
    body: bytes,
    *lines: str,
    kind: str = "application/json",
    target: str = "/v1/orders",
) -> bytes:
    """A whole request."""
    length = f"Content-Length: {len(body)}"
    return head(server, f"Content-Type: {kind}", length, *lines, target=target) + body


def behaves(server: Server, judge: Judge) -> None:
    """A client that behaves is served."""
    with Raw(server) as client:
        client.send(posting(server, judge.order()))
        reply = client.reply()
        assert reply is not None
        assert reply.status == 202, reply
        judge.count(reply)


@contextmanager
def flat(server: Server, growth: int = GROWTH) -> Iterator[None]:
    """The server's memory is as before, but for what allocators keep."""
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    yield
    assert process.memory_info().rss - before < growth


# Requests that a proxy may understand otherwise than we do.


class Way(NamedTuple):
    """Bytes to send, and the statuses of the replies to them.

    Args:
        goes_on: whether the connection does: the order behind it is taken. Else it must not be read.
    """

    send: bytes
    replies: tuple[int, ...] = (400,)
    goes_on: bool = False


POST = b"POST /v1/orders HTTP/1.1\r\n"
HOST = b"Host: gateway\r\n"
#: With the token and content type; filled in.
AUTH = b"Authorization: Bearer @TOKEN@\r\nContent-Type: application/json\r\n"
#: An order of its own, chunked as it should be; and its length.
CHUNKS = b"@SIZE@\r\n@ORDER@\r\n0\r\n\r\n"
STREAM = b"GET /v1/events HTTP/1.1\r\n" + HOST + AUTH
TE = b"Transfer-Encoding: chunked\r\n"
#: Where an order would be, if the body ended there.
INNER = b"POST /v1/orders HTTP/1.1\r\n" + HOST + AUTH + b"Content-Length: @LENGTH@\r\n\r\n@ORDER@"


def framed(*lines: bytes, body: bytes = b"@ORDER@") -> bytes:
    return POST + HOST + AUTH + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


WAYS = {
    # Lengths.
    "length_negative": Way(framed(b"Content-Length: -1")),
    "length_plus": Way(framed(b"Content-Length: +@LENGTH@")),
    "length_hex": Way(framed(b"Content-Length: 0x10")),
    "length_empty": Way(framed(b"Content-Length: ")),
    "length_float": Way(framed(b"Content-Length: 10.0")),
    "length_list": Way(framed(b"Content-Length: @LENGTH@, @LENGTH@")),
    "length_beyond_64_bits": Way(framed(b"Content-Length: 99999999999999999999999")),
    "length_of_exabytes": Way(framed(b"Content-Length: 9223372036854775807"), (413,)),
    "length_not_ascii": Way(framed("Content-Length: ٣".encode())),
    "length_twice_the_same": Way(framed(*[b"Content-Length: @LENGTH@"] * 2)),
    "length_twice_another": Way(framed(b"Content-Length: 5", b"Content-Length: @LENGTH@")),
    "length_with_a_space_before_the_colon": Way(framed(b"Content-Length : 5")),
    "length_missing": Way(framed(body=b""), (422,), goes_on=True),
    # Transfer codings.
    "coding_behind_length": Way(framed(b"Content-Length: 5", TE[:-2], body=CHUNKS)),
    "coding_before_length": Way(framed(TE[:-2], b"Content-Length: 5", body=CHUNKS)),
    "coding_obfuscated": Way(framed(b"Transfer-Encoding: xchunked", body=CHUNKS), (501,)),
    "coding_with_a_tab": Way(framed(b"Transfer-Encoding:\tchunked", body=CHUNKS), (202,), True),
    "coding_with_a_vertical_tab": Way(framed(b"Transfer-Encoding: \x0bchunked", body=CHUNKS)),
    "coding_in_capitals": Way(framed(b"TRANSFER-ENCODING: CHUNKED", body=CHUNKS), (202,), True),
    "coding_twice": Way(framed(TE[:-2], TE[:-2], body=CHUNKS)),
    "coding_twice_in_one": Way(framed(b"Transfer-Encoding: chunked, chunked", body=CHUNKS)),
    "coding_identity_behind": Way(framed(TE[:-2], b"Transfer-Encoding: identity", body=CHUNKS)),
    "coding_identity_before": Way(
        framed(b"Transfer-Encoding: identity", TE[:-2], body=CHUNKS), (501,)
    ),
    "coding_gzip": Way(framed(b"Transfer-Encoding: gzip, chunked", body=CHUNKS), (501,)),
    "coding_quoted": Way(framed(b'Transfer-Encoding: "chunked"', body=CHUNKS), (501,)),
    "coding_in_a_folded_line": Way(framed(b"Transfer-Encoding:", b" chunked", body=CHUNKS)),
    "coding_in_http_1_0": Way(framed(TE[:-2], body=CHUNKS).replace(b"/1.1", b"/1.0"), (501,)),
    "coding_with_a_space_before_the_colon": Way(framed(b"Transfer-Encoding : chunked", body=CHUNKS)),
    # Chunks.
    "chunk_negative": Way(framed(TE[:-2], body=b"-5\r\nhello\r\n0\r\n\r\n")),
    "chunk_no_number": Way(framed(TE[:-2], body=b"zz\r\nhello\r\n0\r\n\r\n")),
    "chunk_with_0x": Way(framed(TE[:-2], body=b"0x5\r\nhello\r\n0\r\n\r\n")),
    "chunk_too_short": Way(framed(TE[:-2], body=b"2\r\nhello\r\n0\r\n\r\n")),
    "chunk_too_long": Way(framed(TE[:-2], body=b"6\r\nhello\r\n0\r\n\r\n")),
    "chunk_beyond_64_bits": Way(framed(TE[:-2], body=b"f" * 17 + b"\r\nhello\r\n0\r\n\r\n")),
    "chunk_with_a_bare_newline": Way(framed(TE[:-2], body=b"5\nhello\n0\n\n")),
    "chunk_size_and_space": Way(framed(TE[:-2], body=b"5 \r\nhello\r\n0\r\n\r\n")),
    "chunk_empty_size": Way(framed(TE[:-2], body=b"\r\nhello\r\n0\r\n\r\n")),
    "trailer_with_a_length": Way(framed(TE[:-2], body=CHUNKS[:-2] + b"Content-Length: 5\r\n\r\n")),
    "trailers_are_no_headers": Way(
        framed(TE[:-2], body=CHUNKS[:-2] + b"X-Trailer: a\r\nAuthorization: Bearer x\r\n\r\n"),
        (202,),
        goes_on=True,
    ),
    # Lines.
    "line_folded": Way(framed(b"X-Folded: a", b" b", b"Content-Length: 0")),
    "line_bare_newlines": Way(framed(b"Content-Length: 0", body=b"").replace(b"\r", b"")),
    "line_bare_return": Way(framed(b"X-Bare: a\rContent-Length: 0")),
    "line_nul_in_value": Way(framed(b"X-Nul: a\0b")),
    "line_nul_in_name": Way(framed(b"X-N\0l: a")),
    "line_without_colon": Way(framed(b"NoColon")),
    "line_without_name": Way(framed(b": value")),
    "line_space_in_name": Way(framed(b"X Space: a")),
    "line_space_before_headers": Way(POST + b" Host: gateway\r\n" + AUTH + b"\r\n"),
    "line_ends_with_two_returns": Way(framed(b"X-Return: a\r")),
    # Heads.
    "headers_1000": Way(framed(*[b"X-%d: a" % n for n in range(1000)]), (431,)),
    "header_value_too_long": Way(framed(b"X-Long: " + b"a" * HEAD_BYTES), (431,)),
    "header_name_too_long": Way(framed(b"X" * HEAD_BYTES + b": a"), (431,)),
    "url_too_long": Way(b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\n" + HOST + b"\r\n", (431,)),
    "query_too_long": Way(b"GET /?" + b"a=1&" * 10_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", (431,)),
    "host_missing": Way(POST + AUTH + b"Content-Length: 0\r\n\r\n"),
    "host_twice": Way(framed(b"Host: other", b"Content-Length: 0")),
    "host_nonsense": Way(
        b"GET /nowhere HTTP/1.1\r\nHost: [::1\r\n\r\n", (404,), goes_on=True
    ),
    # Targets and methods.
    "target_absolute": Way(
        b"GET http://elsewhere/v1/events HTTP/1.1\r\n" + HOST + AUTH + b"\r\n", (200,), True
    ),
    "target_authority": Way(b"GET gateway:80 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "target_other_scheme": Way(b"GET file:///etc/passwd HTTP/1.1\r\n" + HOST + b"\r\n"),
    "target_not_ascii": Way("GET /é HTTP/1.1\r\n".encode() + HOST + b"\r\n"),
    "target_space": Way(b"GET /v1/ events HTTP/1.1\r\n" + HOST + b"\r\n"),
    "target_empty": Way(b"GET  HTTP/1.1\r\n" + HOST + b"\r\n"),
    "options_asterisk": Way(b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n"),
    "connect": Way(b"CONNECT broker:5672 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "trace": Way(b"TRACE /v1/orders HTTP/1.1\r\n" + HOST + AUTH + b"\r\n", (405,)),
    "method_unknown": Way(b"BREW /v1/orders HTTP/1.1\r\n" + HOST + AUTH + b"\r\n"),
    "method_lower": Way(b"post /v1/orders HTTP/1.1\r\n" + HOST + AUTH + b"\r\n"),
    "method_delete": Way(b"DELETE /v1/orders HTTP/1.1\r\n" + HOST + AUTH + b"\r\n", (405,)),
    "http_0_9": Way(b"GET /v1/events\r\n"),
    "http_1_0": Way(b"GET /healthz HTTP/1.0\r\n\r\n", (200,)),
    "http_3_1": Way(b"GET /healthz HTTP/3.1\r\n" + HOST + b"\r\n"),
    "http_2_preface": Way(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9),
    "tls_hello": Way(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200),
    "upgrade_websocket": Way(
        STREAM + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n\r\n",
        (200,),
        goes_on=True,
    ),
    "upgrade_h2c": Way(
        STREAM + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AA\r\n\r\n",
        (200,),
        goes_on=True,
    ),
    "upgrade_h2c_with_a_body": Way(
        framed(b"Upgrade: h2c", b"Connection: Upgrade", b"Content-Length: @LENGTH@"),
        (202,),
        goes_on=True,
    ),
    "upgrade_h2c_with_chunks": Way(
        framed(
            b"Upgrade: h2c",
            b"Connection: Upgrade",
            b"Transfer-Encoding: chunked",
            body=CHUNKS,
        ),
        (202,),
        goes_on=True,
    ),
    "upgrade_h2c_with_two_framings": Way(
        framed(
            b"Upgrade: h2c",
            b"Connection: Upgrade",
            b"Content-Length: @LENGTH@",
            b"Transfer-Encoding: chunked",
        )
    ),
    "upgrade_with_a_request_as_body": Way(
        STREAM + b"Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: @INNER@\r\n\r\n" + INNER,
        (200,),
        goes_on=True,
    ),
    "newlines_before_a_request": Way(b"\r\n" * 100, (), goes_on=True),
    # Requests behind a body that nothing reads.
    "unread_body_401": Way(
        POST + HOST + b"Content-Length: 0000@INNER@\r\n\r\n" + INNER, (401,), goes_on=True
    ),
    "unread_body_404": Way(
        b"POST /no HTTP/1.1\r\n" + HOST + AUTH + b"Content-Length: @INNER@\r\n\r\n" + INNER,
        (404,),
        goes_on=True,
    ),
    "unread_body_of_get": Way(STREAM + b"Content-Length: @INNER@\r\n\r\n" + INNER, (200,), True),
    "unread_body_405": Way(
        b"PUT /v1/orders HTTP/1.1\r\n" + HOST + AUTH + b"Content-Length: @INNER@\r\n\r\n" + INNER,
        (405,),
    ),
    "unread_body_413": Way(
        framed(b"Content-Length: 104857600", body=INNER), (413,)
    ),
    "unread_body_415": Way(
        POST + HOST + AUTH.replace(b"json", b"pdf") + b"Content-Length: @INNER@\r\n\r\n" + INNER,
        (415,),
    ),
    "expect_and_an_error": Way(
        POST + HOST + b"Expect: 100-continue\r\nContent-Length: 900\r\n\r\n", (401,)
    ),
    "expect_something_else": Way(
        framed(b"Expect: 200-maybe", b"Content-Length: @LENGTH@"), (202,), True
    ),
    # Authorization.
    "authorization_missing": Way(POST + HOST + b"Content-Length: 0\r\n\r\n", (401,), True),
    "authorization_twice": Way(framed(b"Authorization: Bearer x", b"Content-Length: 0", body=b""), (400,), True),
    "authorization_overlong": Way(
        POST + HOST + b"Authorization: Bearer " + b"a" * 5000 + b"\r\nContent-Length: 0\r\n\r\n",
        (401,),
        True,
    ),
    "authorization_basic": Way(
        POST + HOST + b"Authorization: Basic cGd3Og==\r\nContent-Length: 0\r\n\r\n", (401,), True
    ),
    "authorization_two_tokens": Way(
        POST + HOST + b"Authorization: Bearer @TOKEN@, Bearer x\r\nContent-Length: 0\r\n\r\n",
        (401,),
        True,
    ),
    "authorization_not_ascii": Way(
        POST + HOST + b"Authorization: Bearer \xff\xfe\xff\r\nContent-Length: 0\r\n\r\n", (401,), True
    ),
    "authorization_in_the_query": Way(
        b"GET /v1/events?token=@TOKEN@&access_token=@TOKEN@ HTTP/1.1\r\n" + HOST + b"\r\n",
        (401,),
        True,
    ),
    "authorization_in_the_url": Way(
        b"GET http://x:@TOKEN@@gateway/v1/events HTTP/1.1\r\n" + HOST + b"\r\n", (401,), True
    ),
    "authorization_in_a_cookie": Way(
        b"GET /v1/events HTTP/1.1\r\n" + HOST + b"Cookie: token=@TOKEN@\r\n\r\n", (401,), True
    ),
    # Ids and parameters.
    **{
        f"id_{name}": Way(
            b"GET /v1/merchants/m1/orders/" + value + b" HTTP/1.1\r\n" + HOST + AUTH + b"\r\n",
            (status,),
            True,
        )
        for name, value, status in (
            ("with_line_breaks", b"a%0d%0aSet-Cookie:%20a=b", 422),
            ("with_nul", b"a%00b", 422),
            ("overlong", b"a" * 5000, 422),
            ("not_ascii", "é".encode().hex("%").encode().join((b"%", b"")), 422),
            ("not_utf_8", b"%ff%fe", 422),
            ("half_an_escape", b"a%2", 404),
            ("slash", b"a%2Fb", 404),
            ("dot_segments", b"..%2F..%2Fetc%2Fpasswd", 422),
            ("dot_segments_twice_encoded", b"%252e%252e%252f", 422),
            ("plain_dot_segments", b"../../../healthz", 404),
            ("empty", b"", 404),
        )
    },
    **{
        f"query_{name}": Way(
            b"GET /v1/events?" + value + b" HTTP/1.1\r\n" + HOST + AUTH + b"\r\n", (422,), True
        )
        for name, value in (
            ("after_negative", b"after=-1"),
            ("after_huge", b"after=9223372036854775808"),
            ("after_of_5000_digits", b"after=" + b"9" * 5000),
            ("after_float", b"after=1.5"),
            ("after_text", b"after=last"),
            ("after_empty", b"after="),
            ("after_underscore", b"after=1_0"),
            ("after_whole_float", b"after=5.0"),
            ("after_plus", b"after=%2B5"),
            ("after_space", b"after=%205"),
            ("limit_underscore", b"limit=1_0"),
            ("limit_float", b"limit=5.0"),
            ("wait_underscore", b"wait=1_0"),
            ("wait_space", b"wait=%201"),
            ("wait_negative", b"wait=-1"),
            ("wait_inf", b"wait=inf"),
            ("wait_nan", b"wait=NaN"),
            ("wait_1e999", b"wait=1e999"),
            ("wait_hours", b"wait=3600"),
            ("limit_zero", b"limit=0"),
            ("limit_huge", b"limit=1000000"),
            ("limit_empty", b"limit="),
        )
    },
    **{
        f"stream_{name}": Way(
            b"GET /v1/events/stream" + query + b" HTTP/1.1\r\n" + HOST + AUTH + line + b"\r\n",
            (status,),
            True,
        )
        for name, query, line, status in (
            ("after_twice", b"?after=1&after=2", b"", 422),
            ("after_underscore", b"?after=1_0", b"", 422),
            ("after_float", b"?after=5.0", b"", 422),
            ("after_plus", b"?after=%2B5", b"", 422),
            ("after_space", b"?after=%205", b"", 422),
            ("after_empty", b"?after=", b"", 422),
            ("after_digits_of_others", "?after=٣".encode().hex("%").join(("?after=%", "")).encode(), b"", 422),
            ("last_event_id_nonsense", b"", b"Last-Event-ID: nonsense\r\n", 422),
            ("last_event_id_negative", b"", b"Last-Event-ID: -5\r\n", 422),
            ("last_event_id_huge", b"", b"Last-Event-ID: 99999999999999999999\r\n", 422),
            ("last_event_id_blank", b"?after=-1", b"Last-Event-ID: \r\n", 422),
            ("last_event_id_twice", b"", b"Last-Event-ID: 1\r\nLast-Event-ID: 2\r\n", 400),
            ("last_event_id_not_ascii", b"", b"Last-Event-ID: \xb2\r\n", 422),
        )
    },
}  # fmt: skip


def filled(server: Server, judge: Judge, text: bytes) -> bytes:
    """With the token and a new order in it."""
    content = judge.order()
    inner = text.count(b"@INNER@") and len(filled(server, judge, INNER))
    for name, value in {
        "TOKEN": server.token.encode(),
        "SIZE": b"%x" % len(content),
        "LENGTH": b"%d" % len(content),
        "ORDER": content,
        "INNER": b"%d" % inner,
    }.items():
        text = text.replace(f"@{name}@".encode(), value)
    return text


@pytest.mark.parametrize("name", WAYS)
def test_a_request_that_is_wrong(server: Server, judge: Judge, name: str) -> None:
    way = WAYS[name]
    behind = posting(server, judge.order())
    last = head(server, "Connection: close", target="/healthz", method="GET")
    with Raw(server) as client:
        client.send(filled(server, judge, way.send) + behind + last)
        replies = client.replies()
    for reply in replies:
        judge.count(reply)
        assert reply.status < 300 or reply.code, "it is no problem"
    expected = (*way.replies, *((202, 200) if way.goes_on else ()))
    assert tuple(reply.status for reply in replies) == expected, [r.body[:300] for r in replies]


def test_wrong_requests_published_nothing_but_what_was_answered(judge: Judge) -> None:
    judge.judge()


# Bodies.


class Body(NamedTuple):
    """A body, and the status of its reply.

    Args:
        content: itself, or what makes a large one when its test runs, and not at each import.
        kind: its content type.
        lines: more of its head.
    """

    content: bytes | Callable[[], bytes]
    status: int = 422
    kind: str = "application/json"
    lines: tuple[str, ...] = ()

    def made(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else self.content()


def with_field(text: str) -> bytes:
    """An order with an unknown field of this value, which is passed on."""
    return b'{"extra":' + text.encode() + b",@REST@"


def bomb(size: int) -> bytes:
    return zlib.compress(b"[" + b"0," * (size // 2) + b"0]")


BODIES = {
    "empty": Body(b""),
    "blank": Body(b" \n\t" * 100),
    "bom": Body(b"\xef\xbb\xbf@ORDER@"),
    "utf_16": Body('{"order_id": "x"}'.encode("utf-16")),
    "utf_32": Body('{"order_id": "x"}'.encode("utf-32")),
    "not_utf_8": Body(b'{"order_id":"\xff\xfe"}'),
    "overlong_utf_8": Body(b'{"order_id":"\xc0\xaf"}'),
    "lone_surrogate": Body(with_field(r'"\ud800"')),
    "surrogates_in_utf_8": Body(with_field("0").replace(b"0", b'"\xed\xa0\x80"', 1)),
    "nul": Body(b"\0" * 1000),
    "nul_in_id": Body(b'@OPEN@,"order_id":"a\\u0000b"}'),
    "line_break_in_id": Body(b'@OPEN@,"order_id":"a\\r\\nX-Header: b"}'),
    "control_character": Body(b'@OPEN@,"order_id":"a\x01b"}'),
    "deep_lists": Body(b"[" * 100_000, 413),
    "deep_objects": Body(b'{"a":' * 30_000, 413),
    "deep_field": Body(with_field("[" * 5000 + "]" * 5000)),
    "less_deep_field": Body(with_field("[" * 250 + "]" * 250)),
    "empty_objects": Body(with_field("[" + "{}," * 50_000 + "0]"), 413),
    "infinite": Body(with_field("1e999")),
    "minus_infinite": Body(with_field("[-1e999]")),
    "nan": Body(with_field("NaN")),
    "infinity": Body(with_field("Infinity")),
    "digits_5000": Body(with_field("9" * 5000)),
    "digits_4000_of_a_fraction": Body(with_field("0." + "3" * 4000), 202),
    "total_huge": Body(b'@OPEN@,"total":1e300}'),
    "total_of_5000_digits": Body(b'@OPEN@,"total":' + b"9" * 5000 + b"}"),
    "total_negative": Body(b'@OPEN@,"total":-5}'),
    "quantity_true": Body(b'@OPEN@,"items":[{"sku":"s","name":"n","quantity":true,"unit_price":1}]}'),
    "leading_zeros": Body(with_field("007")),
    "comments": Body(b"/* order */ @ORDER@"),
    "trailing_comma": Body(with_field("[1,]")),
    "single_quotes": Body(b"{'order_id': 'x'}"),
    "trailing_garbage": Body(b"@ORDER@}"),
    "two_documents": Body(b"@ORDER@@ORDER@"),
    "cut_short": Body(b'{"order_id": "x", "merch'),
    "list": Body(b"[@ORDER@]"),
    "text": Body(b'"order"'),
    "number": Body(b"0"),
    "null": Body(b"null"),
    "duplicate_keys": Body(b'{"order_id":"first",@REST@', 202),
    "prototype": Body(with_field('{"__proto__":{"a":1},"constructor":{}}'), 202),
    "id_overlong": Body(b'@OPEN@,"order_id":"' + b"a" * 129 + b'"}'),
    "id_with_dot_segments": Body(b'@OPEN@,"order_id":"../../x"}'),
    "id_an_object": Body(b'@OPEN@,"order_id":{"$ne":null}}'),
    "too_large": Body(with_field('"' + "x" * 300_000 + '"'), 413),
    "type_missing": Body(b"@ORDER@", 415, "@NONE@"),
    "type_text": Body(b"@ORDER@", 415, "text/plain"),
    "type_form": Body(b"order=@ORDER@", 415, "application/x-www-form-urlencoded"),
    "type_multipart": Body(b"--x\r\n\r\n@ORDER@\r\n--x--", 415, "multipart/form-data; boundary=x"),
    "type_lines": Body(b"@ORDER@", 415, "application/x-ndjson"),
    "type_list": Body(b"@ORDER@", 415, "text/plain, application/json"),
    "type_twice": Body(b"@ORDER@", 400, lines=("Content-Type: text/plain",)),
    "charset_of_others": Body(b"@ORDER@", 202, "application/json; charset=utf-16"),
    "gzip_bomb": Body(lambda: bomb(64 * MEGABYTE), 415, lines=("Content-Encoding: gzip",)),
    "deflate_bomb": Body(lambda: bomb(64 * MEGABYTE), 415, lines=("Content-Encoding: deflate",)),
    "br": Body(b"@ORDER@", 415, lines=("Content-Encoding: br",)),
    "coding_twice": Body(b"@ORDER@", 400, lines=("Content-Encoding: identity",) * 2),
    "coding_not_named": Body(bomb(MEGABYTE)),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_wrong(server: Server, judge: Judge, name: str) -> None:
    case = BODIES[name]
    content = judge.order()
    body = case.made()
    for found, value in {
        b"@ORDER@": content,
        b"@OPEN@": content[:-1],
        b"@REST@": content[1:],
    }.items():
        body = body.replace(found, value)
    if name == "duplicate_keys":  # the last counts, here and in a worker
        body = body.replace(b'"first"', b'"first","total":1,"total":2')
    request = posting(server, body, *case.lines, kind=case.kind)
    request = request.replace(b"Content-Type: @NONE@\r\n", b"")
    with Raw(server) as client:
        client.send(request)
        reply = client.reply()
    assert reply is not None
    judge.count(reply)
    assert reply.status == case.status, reply.body[:300]
    assert (reply.status < 300) != bool(reply.code)
    assert len(reply.body) < 20_000


BATCHES = {
    "empty_list": Body(b"[]", 400),
    "empty_lines": Body(b"", 400, "application/x-ndjson"),
    "newlines_alone": Body(lambda: b"\n" * 5_000_000, 413, "application/x-ndjson"),
    "blank_lines_between": Body(b"@ORDER@" + b"\n" * 3000 + b"@ORDER@", 207, "application/x-ndjson"),
    "orders_1001": Body(b"{}\n" * 1001, 413, "application/x-ndjson"),
    "orders_1001_in_a_list": Body(b"[" + b"{}," * 1000 + b"{}]", 413),
    "million_objects": Body(lambda: b"[" + b"{}," * 1_000_000 + b"{}]", 413),
    "million_lists": Body(lambda: b"[" + b"[]," * 1_000_000 + b"[]]", 413),
    "million_numbers": Body(lambda: b"[" + b"0," * 1_000_000 + b"0]", 413),
    "million_keys": Body(
        lambda: b"[{" + b",".join(b'"%x":0' % n for n in range(1_000_000)) + b"}]", 413
    ),
    "lines_of_a_megabyte": Body(
        lambda: b"\n".join([b'{"a":"' + b"x" * MEGABYTE + b'"}'] * 10 + [b"@ORDER@"]), 207, "application/x-ndjson"
    ),
    "one_giant_line": Body(lambda: b"x" * 15 * MEGABYTE, 207, "application/x-ndjson"),
    "lines_of_keys": Body(
        lambda: b"\n".join([b"{" + b",".join(b'"%x":0' % n for n in range(25_000)) + b"}"] * 8),
        207,
        "application/x-ndjson",
    ),
    "too_large": Body(lambda: b" " * (16 * MEGABYTE + 1), 413, "application/x-ndjson"),
    "object": Body(b"@ORDER@", 207),
    "nonsense": Body(b"\xff\x00\n\xfe" * 100, 400),
    "lines_as_json": Body(b"null\n{}", 400),
    "list_of_lists": Body(b"[[@ORDER@]]", 207),
    "list_of_numbers": Body(b"[1, null, true]", 207),
    "list_cut_short": Body(b"[@ORDER@,", 400),
    "list_with_nan": Body(b"[NaN]", 400),
    "list_deep": Body(b"[" * 10_000, 400),
    "same_order_twice": Body(b"@ORDER@\n@ORDER@", 207, "application/x-ndjson"),
    "byte_order_mark": Body(b"\xef\xbb\xbf@ORDER@\n", 207, "application/x-ndjson"),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_that_is_wrong(server: Server, judge: Judge, name: str) -> None:
    case = BATCHES[name]
    body = case.made().replace(b"@ORDER@", judge.order())
    with flat(server), Raw(server) as client:
        client.send(posting(server, body, kind=case.kind, target="/v1/orders/batch"))
        reply = client.reply()
    assert reply is not None
    judge.count(reply)
    assert reply.status == case.status, reply.body[:300]
    if reply.status == 207 and case.kind != "application/json":
        lines = [line for line in body.split(b"\n") if line.strip()]
        assert len(json.loads(reply.body)) == len(lines)


def test_wrong_bodies_published_nothing_but_what_was_answered(judge: Judge) -> None:
    judge.judge()


# Many requests on one connection.


def test_500_requests_in_one_packet_are_answered_in_order(server: Server, judge: Judge) -> None:
    bodies = [judge.order() for _ in range(500)]
    with flat(server), Raw(server) as client:
        client.send(b"".join(posting(server, body) for body in bodies))
        for body in bodies:
            reply = client.reply()
            judge.count(reply)
            assert reply is not None
            assert json.loads(reply.body)["order_id"] == json.loads(body)["order_id"]


def test_a_malformed_request_in_the_middle_ends_those_behind_it(
    server: Server, judge: Judge
) -> None:
    """Those before it are answered first: its own problem must not pass for their reply."""
    good = [posting(server, judge.order()) for _ in range(6)]
    with Raw(server) as client:
        client.send(b"".join([*good[:3], b"NONSENSE\r\n\r\n", *good[3:]]))
        replies = client.replies()
    for reply in replies:
        judge.count(reply)
    assert [reply.status for reply in replies] == [202, 202, 202, 400]


def test_a_refused_request_in_the_middle_ends_those_behind_it(server: Server, judge: Judge) -> None:
    good = [posting(server, judge.order()) for _ in range(4)]
    huge = head(server, "Content-Type: application/json", "Content-Length: 99999999")
    with Raw(server) as client:
        client.send(b"".join([*good[:2], huge, *good[2:]]))
        replies = client.replies()
    for reply in replies:
        judge.count(reply)
    assert [reply.status for reply in replies] == [202, 202, 413]


def test_nonsense_behind_a_stream_does_not_get_into_it(server: Server) -> None:
    stream = head(server, target=f"/v1/events/stream?after={EVENTS - 1}", method="GET")
    with Raw(server) as client:
        client.send(stream + b"NONSENSE\r\n\r\n")
        assert client.line() == b"HTTP/1.1 200 OK\r\n"
        while (line := client.line()) != b"id: %d\n" % EVENTS:
            assert line
        client.send(b"NONSENSE\r\n\r\n" * 1000)


def test_thousands_of_requests_wait_on_no_connection(server: Server) -> None:
    with flat(server), Raw(server) as client:
        client.send(head(server, target=f"/v1/events?after={EVENTS}&wait=1", method="GET"))
        client.send(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 4_000)
        replies = [client.reply() for _ in range(4_001)]
    assert {reply and reply.status for reply in replies} == {200}


def test_damaged_requests_publish_nothing_but_what_was_answered(
    server: Server, judge: Judge
) -> None:
    """Any bytes changed, cut, doubled or put elsewhere, in any packets."""
    random = Random(SEED)
    for _ in range(DAMAGED):
        sent = b"".join(
            filled(server, judge, each)
            for each in random.choices((INNER, framed(TE[:-2], body=CHUNKS), STREAM + b"\r\n"), k=3)
        )
        steps = [
            (
                random.choice(tuple(MUTATIONS)),
                random.randrange(len(sent)),
                random.choice((1, 2, 7, 60)),
                random.choice((b"\r\n", b"\0", b" ", b"0\r\n\r\n", b"Content-Length: 3", b"\xff")),
            )
            for _ in range(random.randint(1, 3))
        ]
        sent = mutated(sent, steps)
        cut = random.randrange(len(sent) + 1)
        with Raw(server) as client:
            client.send(sent[:cut])
            client.send(sent[cut:])
            with suppress(OSError):  # the server may have closed it
                client.end()
            for reply in client.replies():
                judge.count(reply)
                assert reply.status < 300 or reply.code


# Clients that go away.


def test_a_client_that_ended_its_side_gets_its_reply(server: Server, judge: Judge) -> None:
    with Raw(server) as client:
        client.send(posting(server, judge.order()))
        client.end()
        [reply] = client.replies()
    judge.count(reply)
    assert reply.status == 202


@pytest.mark.parametrize("behind", ["", "Content-Length: 3"], ids=["whole", "with_half_a_body"])
def test_a_client_that_ends_its_side_amid_a_reply_gets_its_rest(
    server: Server, behind: str
) -> None:
    asking = head(server, *filter(None, [behind]), target="/v1/events?limit=500", method="GET")
    with Raw(server) as client:
        client.send(asking)
        select.select([client.socket], [], [], SOON)
        client.end()
        [reply] = client.replies()
    assert len(json.loads(reply.body)["events"]) > 100


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
def test_a_stream_ends_with_its_clients_side(server: Server, version: bytes) -> None:
    stream = head(server, target=f"/v1/events/stream?after={EVENTS - 1}", method="GET")
    with Raw(server) as client:
        client.send(stream.replace(b"HTTP/1.1", version))
        while client.line() != b"id: %d\n" % EVENTS:
            pass
        client.end()
        while client.line():
            pass


def test_half_a_request_and_the_end_is_no_request(server: Server, judge: Judge) -> None:
    whole = posting(server, judge.order())
    for length in (1, 50, len(whole) - 1):
        with Raw(server) as client:
            client.send(whole[:length])
            client.end()
            assert client.replies() == []


def test_a_reset_in_a_body_publishes_nothing(server: Server, judge: Judge) -> None:
    for _ in range(50):
        client = Raw(server)
        client.send(posting(server, judge.order())[:-1])
        client.reset()


def test_a_reset_behind_an_order_loses_it_or_publishes_it_once(
    server: Server, judge: Judge
) -> None:
    for _ in range(50):
        body = judge.order()
        judge.unknown.add(json.loads(body)["order_id"])
        client = Raw(server)
        client.send(posting(server, body))
        client.reset()


def test_a_long_poll_ends_with_its_client(small: Server, metrics_url: str) -> None:
    """Not when its time is up: a client that polls in a loop would be waited for many times."""
    poll = head(small, target=f"/v1/events?after={EVENTS}&wait=60", method="GET")
    clients = [Raw(small) for _ in range(10)]
    for client in clients:
        client.send(poll)
    for client in clients[:5]:
        client.reset()
    for client in clients[5:]:
        client.socket.close()
    gone = 'pos_gateway_http_requests_total{route="/v1/events",status="499"} 10.0'
    until_true(lambda: gone in requests.get(metrics_url, timeout=SOON).text)


def until_true(is_so: Any) -> None:
    """Look again and again."""
    until = time.monotonic() + SOON
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


# Much of everything.


def endless(server: Server, first: bytes, more: bytes, most: int = 100 * MEGABYTE) -> list[Reply]:
    """The replies to bytes without end."""
    with Raw(server) as client:
        going = client.send(first)
        while going and client.sent < most:
            going = client.send(more)
        return client.replies()


CHUNKED = "Transfer-Encoding: chunked"
JSON = "Content-Type: application/json"
#: What begins a request, what is repeated, and the statuses of its replies, if they get through.
ENDLESS = {
    "header_value": (b"GET / HTTP/1.1\r\nX-Long: ", b"a" * 65536, {431}),
    "header_name": (b"GET / HTTP/1.1\r\nX", b"a" * 65536, {431}),
    "headers": (b"GET / HTTP/1.1\r\n", b"X-Some: a\r\n" * 5000, {431}),
    "url": (b"GET /", b"a" * 65536, {431}),
    "method": (b"", b"G" * 65536, {400}),
    "newlines": (b"", b"\r\n" * 32768, {431}),
    "nul": (b"", b"\0" * 65536, {400}),
    "chunk_size": (b"@CHUNKED@", b"0" * 65536, {400}),
    "chunk_extension": (b"@CHUNKED@5;", b"a" * 65536, {400}),
    "chunks_of_a_byte": (b"@CHUNKED@", b"1\r\n \r\n" * 10_000, {413}),
    "chunks": (b"@CHUNKED@", b"10000\r\n" + b" " * 65536 + b"\r\n", {413}),
    "trailers": (b"@CHUNKED@2\r\n{}\r\n0\r\n", b"X-Some: a\r\n" * 5000, {400}),
    "trailer": (b"@CHUNKED@2\r\n{}\r\n0\r\nX-Long: ", b"a" * 65536, {400}),
    "announced_body": (b"@ANNOUNCED@", b" " * 65536, {413}),
    "body_without_a_token": (b"@ANYONE@", b"a" * 65536, {401}),
    "chunks_without_a_token": (b"@ANYCHUNKS@", b"10000\r\n" + b" " * 65536 + b"\r\n", {401}),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_has_no_end_is_ended(server: Server, name: str) -> None:
    first, more, statuses = ENDLESS[name]
    for each, text in {
        b"@CHUNKED@": head(server, JSON, CHUNKED),
        b"@ANNOUNCED@": head(server, JSON, f"Content-Length: {100 * MEGABYTE}"),
        b"@ANYONE@": POST + HOST + b"Content-Length: 104857600\r\n\r\n",
        b"@ANYCHUNKS@": POST + HOST + TE + b"\r\n",
    }.items():
        first = first.replace(each, text)
    with flat(server):
        replies = endless(server, first, more)
    assert {reply.status for reply in replies} == statuses


def test_a_library_gets_the_413_of_what_it_streams(server: Server) -> None:
    """It writes the whole body before it reads; a reset would hide the reply."""
    with flat(server):
        reply = server.post(
            "/v1/orders",
            data=(b" " * 65536 for _ in range(100)),
            headers={"Content-Type": "application/json"},
        )
    assert (reply.status_code, reply.json()["code"]) == (413, "too_large")


def test_bodies_that_are_announced_reserve_nothing(server: Server, judge: Judge) -> None:
    """Sixteen batches that never come would else be all that the server takes."""
    line = "Content-Type: application/x-ndjson"
    length = f"Content-Length: {16 * MEGABYTE}"
    with ExitStack() as stack, flat(server):
        for _ in range(50):
            client = stack.enter_context(Raw(server))
            client.send(head(server, line, length, target="/v1/orders/batch"))
        behaves(server, judge)


def test_bodies_that_come_slowly_are_bounded_together(server: Server, judge: Judge) -> None:
    line = "Content-Type: application/x-ndjson"
    length = f"Content-Length: {16 * MEGABYTE}"
    statuses: list[int] = []
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    with ExitStack() as stack:
        clients = [stack.enter_context(Raw(server)) for _ in range(8)]
        for client in clients:
            client.send(head(server, line, length, target="/v1/orders/batch"))
            client.send(b"\n" * (15 * MEGABYTE))
        while (
            len(statuses) < 6
        ):  # one token's bodies have half of the bytes: two fit, and may go on
            for each in select.select([client.socket for client in clients], [], [], SOON)[0]:
                [client] = [client for client in clients if client.socket is each]
                reply = client.reply()
                assert reply is not None
                statuses.append(reply.status)
                clients.remove(client)
        assert statuses == [429] * 6
        assert process.memory_info().rss - before < 100 * MEGABYTE
    until_true(lambda: takes(server, judge))


def takes(server: Server, judge: Judge) -> bool:
    reply = server.post("/v1/orders", json.loads(judge.order()))
    if reply.status_code == 202:
        judge.taken.append(reply.json()["order_id"])
    return reply.status_code == 202


# Tokens.


def test_a_revoked_token_is_refused_within_seconds(server: Server, module_database: str) -> None:
    token = token_for(module_database, Role.BACKEND)
    headers = {"Authorization": f"Bearer {token}"}

    def status() -> int:
        return requests.get(server.url + "/v1/events", headers=headers, timeout=SOON).status_code

    until_true(lambda: status() == 200)
    engine = open_database(module_database)
    store = TokenStore(engine)
    newest = max(store.list(), key=lambda each: each.created_at)
    store.revoke(newest.name, operator="test")
    engine.dispose()
    until_true(lambda: status() == 401)


def test_a_revoked_tokens_stream_ends_and_its_poll_is_refused(
    module_url: str, tmp_path: Path
) -> None:
    """Neither gets what is published from then on."""
    database = migrated(f"sqlite:///{tmp_path}/gateway.db")
    publish_events(database)
    engine = open_database(database)
    with serving(module_url, database, tmp_path / "server.log") as server, ExitStack() as stack:
        stream, poll = stack.enter_context(Raw(server)), stack.enter_context(Raw(server))
        target = f"/v1/events/stream?after={EVENTS - 1}"
        stream.send(head(server, "Connection: close", target=target, method="GET"))
        while stream.line() != b"id: %d\n" % EVENTS:
            pass
        poll.send(head(server, target=f"/v1/events?after={EVENTS}&wait=50", method="GET"))
        store = TokenStore(engine)
        [token] = store.list()
        store.revoke(token.name, operator="test")
        until_true(lambda: server.get("/v1/events").status_code == 401)
        last = EVENTS + 1
        with engine.begin() as connection:
            ids = {"event_id": "late", "position": last, "order_id": "late"}
            connection.execute(insert(events).values(ids | a_failure()))
            connection.execute(update(pipeline).values(assigned=last, published=last))
        rest = []
        while line := stream.line():
            rest.append(line)
        assert b": the token is not valid any more\n" in rest
        assert not [line for line in rest if line.startswith(b"id: ")]
        reply = poll.reply()
        assert reply is not None
        assert (reply.status, reply.code) == (401, "unauthorized")
    engine.dispose()


def test_a_viewer_may_neither_submit_nor_cancel(server: Server, viewer: str, judge: Judge) -> None:
    headers = {"Authorization": f"Bearer {viewer}"}
    for path, content in (
        ("/v1/orders", judge.order()),
        ("/v1/orders/batch", judge.order()),
        ("/v1/merchants/m1/orders/o1/cancel", b"{}"),
    ):
        reply = requests.post(
            server.url + path,
            data=content,
            headers={**headers, "Content-Type": "application/json"},
            timeout=SOON,
        )
        assert (reply.status_code, reply.json()["code"]) == (403, "not_allowed")


def test_a_token_is_looked_up_by_its_hash() -> None:
    """So no comparison takes longer the more of a token was guessed."""
    looked_up: list[str] = []

    class Known(dict[str, Token]):
        def get(self, key: str, default: Any = None) -> Any:
            looked_up.append(key)
            return default

    class Store:
        def all_valid(self) -> dict[str, Token]:
            return Known()

    tokens = Tokens(Store())  # type: ignore[arg-type]
    tokens.refresh()
    assert tokens.find("pgw_guess") is None
    assert looked_up == [hashlib.sha256(b"pgw_guess").hexdigest()]


# Streams.


def test_streams_that_are_never_read_weigh_little(server: Server, judge: Judge) -> None:
    """Twelve megabytes of events wait for each of them; half of one is read ahead."""
    stream = head(server, target="/v1/events/stream?after=0", method="GET")
    with ExitStack() as stack, flat(server, 2 * GROWTH):
        for _ in range(40):
            client = stack.enter_context(Raw(server))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.send(stream)
        reader = stack.enter_context(Raw(server))
        reader.send(stream)
        while reader.line() != b"id: %d\n" % EVENTS:
            pass
        behaves(server, judge)


def test_pages_that_are_never_read_are_bounded_together(server: Server, judge: Judge) -> None:
    """Two of each connection. Others' are shorter meanwhile, and then as long as before."""
    target = "/v1/events?limit=1000"

    def count() -> int:
        reply = server.get(target)
        return len(reply.json()["events"]) if reply.status_code == 200 else 0

    page = head(server, target=target, method="GET")
    long = count()
    with ExitStack() as stack, flat(server, 2 * GROWTH):
        while not 0 < count() < long / 10:
            client = stack.enter_context(Raw(server))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.send(page * 2)
        behaves(server, judge)
    until_true(lambda: count() == long)


def test_replies_to_batches_that_are_never_read_are_bounded_together(
    server: Server, judge: Judge
) -> None:
    """A thousand orders of two bytes are answered with a megabyte of problems."""
    batch = posting(server, b"{}\n" * 1000, kind="application/x-ndjson", target="/v1/orders/batch")

    def is_taken() -> bool:
        with Raw(server) as client:
            client.send(batch)
            reply = client.reply()
        assert reply is not None
        assert (reply.status, reply.code) in {(207, ""), (503, "replies_unread")}
        return reply.status == 207

    with ExitStack() as stack, flat(server, 2 * GROWTH):
        while is_taken():
            client = stack.enter_context(Raw(server))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.send(batch * 2)
        behaves(server, judge)


def test_viewers_do_not_stop_others(server: Server, viewer: str) -> None:
    """Their pages are masked beside the event loop, which has other requests to answer."""
    page = head(server, target="/v1/events?limit=1000", method="GET")
    page = page.replace(server.token.encode(), viewer.encode())
    with ExitStack() as stack:
        clients = [stack.enter_context(Raw(server)) for _ in range(8)]
        for client in clients:
            client.send(page)
        for client in clients:
            reply = client.reply()
            assert reply is not None
            assert reply.status == 200
            assert NAME.encode() not in reply.body


def test_a_stream_over_http_1_0_has_no_chunks(server: Server) -> None:
    """It would take their sizes for events; the end of the connection ends it."""
    stream = head(server, target=f"/v1/events/stream?after={EVENTS - 2}", method="GET")
    with Raw(server) as client:
        client.send(stream.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert client.line() == b"HTTP/1.1 200 OK\r\n"
        headers = []
        while (line := client.line().lower()) != b"\r\n":
            headers.append(line)
        assert b"connection: close\r\n" in headers
        assert not [each for each in headers if each.startswith(b"transfer-encoding")]
        assert [client.line() for _ in range(4)] == [
            b"retry: 1000\n", b"id: %d\n" % (EVENTS - 2), b"\n", b"id: %d\n" % (EVENTS - 1)
        ]  # fmt: skip
    with Raw(server) as client:
        client.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        [reply] = client.replies()
    assert json.loads(reply.body) == {"healthy": True}


def test_streams_that_reconnect_in_a_loop_leave_nothing(server: Server) -> None:
    process = psutil.Process(server.process.pid)
    before = len(process.net_connections())
    stream = head(server, f"Last-Event-ID: {EVENTS - 10}", target="/v1/events/stream", method="GET")
    with flat(server):
        for _ in range(300):
            with Raw(server) as client:
                client.send(stream)
                assert client.line() == b"HTTP/1.1 200 OK\r\n"
        until_true(lambda: len(process.net_connections()) <= before)


# Too many.


def test_thousands_of_silent_connections_keep_no_client_out(server: Server, judge: Judge) -> None:
    with ExitStack() as stack, flat(server):
        for _ in range(4500):
            stack.enter_context(Raw(server))
        behaves(server, judge)


def test_a_new_connection_takes_the_place_of_the_longest_idle(small: Server) -> None:
    health = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    with ExitStack() as stack:
        clients = [stack.enter_context(Raw(small)) for _ in range(40)]
        for client in clients[-10:]:
            client.send(health)
            reply = client.reply()
            assert reply is not None
            assert reply.status == 200
        assert clients[0].has_ended()


def test_with_all_connections_busy_a_new_one_is_refused(small: Server) -> None:
    stream = head(small, target="/v1/events/stream", method="GET")
    with ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(Raw(small))
            client.send(stream)
            assert client.line() == b"HTTP/1.1 200 OK\r\n"
        for _ in range(5):
            reply = stack.enter_context(Raw(small)).reply()
            assert reply is not None
            assert (reply.status, reply.code) == (503, "too_many_connections")
            assert int(reply.headers["retry-after"]) >= 1
    until_true(lambda: small.get("/readyz").ok)


def test_more_requests_in_flight_than_allowed_get_a_429(
    small: Server, judge: Judge, rabbitmq: RabbitMQ
) -> None:
    """The broker confirms nothing meanwhile."""
    bodies = [judge.order() for _ in range(10)]
    judge.unknown |= {json.loads(body)["order_id"] for body in bodies}
    with rabbitmq.memory_alarm(), ThreadPoolExecutor(10) as threads:

        def post(body: bytes) -> Reply | None:
            with Raw(small) as client:
                client.send(posting(small, body))
                return client.reply()

        replies = [each for each in threads.map(post, bodies) if each is not None]
    codes = [reply.code for reply in replies]
    assert set(codes) == {"too_many_requests", "broker_unavailable"}
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies)


def test_connections_are_as_many_as_the_system_allows_files() -> None:
    """The soft limit is raised first: it is 1,024 in most systems."""
    code = (
        "import resource; from pos_gateway.server.serving import _allowed as allowed; "
        "limit = lambda *both: resource.setrlimit(resource.RLIMIT_NOFILE, both); "
        "limit(300, 2000); print(allowed(1000)); limit(300, 300); print(allowed(1000))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, timeout=SOON, text=True
    )
    lines = done.stdout.splitlines()  # a warning comes between
    assert (lines[0], lines[-1]) == ("1000", "172")


# The end.


def test_sigterm_ends_requests_and_streams(
    module_url: str, module_database: str, tmp_path: Path, judge: Judge
) -> None:
    serve = serving(module_url, module_database, tmp_path / "server.log")
    with serve as server, ExitStack() as stack:
        stream = stack.enter_context(Raw(server))
        stream.send(head(server, target=f"/v1/events/stream?after={EVENTS}", method="GET"))
        while stream.line() != b"retry: 1000\n":
            pass
        unread = stack.enter_context(Raw(server))
        unread.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.send(head(server, target="/v1/events?limit=1000", method="GET"))
        silent = stack.enter_context(Raw(server))
        partly = stack.enter_context(Raw(server))
        partly.send(posting(server, judge.order())[:100])
        whole = posting(server, judge.order())
        posting_now = stack.enter_context(Raw(server))
        posting_now.send(head(server, JSON, CHUNKED) + b"1\r\n{\r\n")
        assert behaves_on(server, whole, judge)
        server.process.send_signal(signal.SIGTERM)
        rest = []
        while line := stream.line():
            rest.append(line)
        assert b": this server stops; reconnect\n" in rest
        posting_now.send(b"1\r\n}\r\n0\r\n\r\n")
        [reply] = posting_now.replies()
        assert reply.status == 422, "it was in flight"
        assert silent.replies() == partly.replies() == []
        assert server.process.wait(SOON) == 0


def behaves_on(server: Server, request: bytes, judge: Judge) -> bool:
    with Raw(server) as client:
        client.send(request)
        reply = client.reply()
        judge.count(reply)
        return reply is not None and reply.status == 202


def test_a_second_sigterm_ends_it_at_once(
    module_url: str, module_database: str, tmp_path: Path, judge: Judge
) -> None:
    serve = serving(module_url, module_database, tmp_path / "server.log")
    with serve as server, Raw(server) as client:
        client.send(head(server, JSON, CHUNKED) + b"1\r\n{\r\n")
        # By its reply the server has read the one before.
        assert behaves_on(server, posting(server, judge.order()), judge)
        server.process.send_signal(signal.SIGTERM)
        until_true(lambda: refuses(server))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(SOON) == -signal.SIGTERM


def refuses(server: Server) -> bool:
    try:
        Raw(server).socket.close()
    except ConnectionRefusedError:
        return True
    return False


def test_over_tls_the_same_holds(
    module_url: str, module_database: str, tmp_path: Path, judge: Judge
) -> None:
    authority, trusting = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(trusting)
    certificate = authority.issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    certificate.cert_chain_pems[0].write_to_path(str(chain))
    certificate.private_key_pem.write_to_path(str(key))
    arguments = ("--certificate", str(chain), "--key", str(key))
    log = tmp_path / "server.log"
    serve = serving(module_url, module_database, log, None, *arguments, is_ready=False)
    with serve as server:
        with Raw(server) as plain:
            plain.send(posting(server, judge.order()))
            assert plain.has_ended()
        with Raw(server, tls=trusting) as client:
            client.send(posting(server, judge.order()))
            reply = client.reply()
            judge.count(reply)
            assert reply is not None
            assert reply.status == 202
            client.send(framed(b"Content-Length: -1") + posting(server, judge.order()))
            assert [reply.status for reply in client.replies()] == [400]
        with Raw(server, tls=trusting) as client:
            huge = f"Content-Length: {100 * MEGABYTE}"
            client.send(head(server, JSON, huge))
            assert [reply.status for reply in client.replies()] == [413]
        assert server.stop() == 0


# Slow clients: they have sent a byte now and then since the first test.


class Slow(NamedTuple):
    """What a slow client sends at once, then again and again; and the statuses of its replies."""

    first: bytes
    more: bytes
    replies: tuple[int, ...]


SLOW = {
    "silent": Slow(b"", b"", ()),
    "newlines": Slow(b"", b"\r\n", ()),
    "head": Slow(b"GET /v1/events HTTP/1.1\r\n", b"X-A: b\r\n", (408,)),
    "head_a_byte_at_a_time": Slow(b"GET /", b"a", (408,)),
    "body_a_byte_at_a_time": Slow(b"@ANNOUNCED@", b" ", (408,)),
    "body_that_never_comes": Slow(b"@ANNOUNCED@", b"", (408,)),
    "chunks_of_a_byte": Slow(b"@CHUNKED@", b"1\r\n \r\n", (408,)),
    "expect_and_nothing": Slow(b"@EXPECT@", b"", (100, 408)),
    "second_request": Slow(b"@HEALTH@GET /", b"a", (200, 408)),
    "body_of_401": Slow(b"@ANYONE@", b"a", (401,)),
    "body_of_413": Slow(b"@HUGE@", b"a", (413,)),
    "head_behind_a_long_poll": Slow(b"@POLL@GET /", b"a", (200, 408)),
}


@pytest.fixture(scope="module", autouse=True)
def slow_clients(
    module_url: str, module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, list[Reply]]]:
    """The replies of each, once it has ended.

    On a server of their own: another test's clients may take the place of one that is idle.
    """
    log = tmp_path_factory.mktemp("slow") / "server.log"
    with serving(module_url, module_database, log) as server:
        yield from _slow_clients(server)


def _slow_clients(server: Server) -> Iterator[dict[str, list[Reply]]]:
    found: dict[str, list[Reply]] = {}

    def misbehave(name: str, slow: Slow) -> None:
        first = slow.first
        for each, text in {
            b"@ANNOUNCED@": head(server, JSON, "Content-Length: 100"),
            b"@CHUNKED@": head(server, JSON, CHUNKED),
            b"@EXPECT@": head(server, JSON, "Content-Length: 100", "Expect: 100-continue"),
            b"@HEALTH@": b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
            b"@ANYONE@": b"POST /v1/orders HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n",
            b"@HUGE@": head(server, JSON, f"Content-Length: {100 * MEGABYTE}"),
            b"@POLL@": head(server, target=f"/v1/events?after={EVENTS}&wait=12", method="GET"),
        }.items():
            first = first.replace(each, text)
        with Raw(server, seconds=3 * SOON) as client:
            client.send(first)
            sending = threading.Thread(target=keep_sending, args=(client, slow.more), daemon=True)
            sending.start()
            found[name] = client.replies()

    clients = [threading.Thread(target=misbehave, args=each, daemon=True) for each in SLOW.items()]
    for client in clients:
        client.start()
    yield Joined(clients, found)


class Joined(dict[str, list[Reply]]):
    """Waits for the threads before anything is read."""

    def __init__(self, threads: list[threading.Thread], found: dict[str, list[Reply]]) -> None:
        super().__init__()
        self._threads, self._found = threads, found

    def __missing__(self, name: str) -> list[Reply]:
        for thread in self._threads:
            thread.join(SOON)
        return self._found[name]


def keep_sending(client: Raw, data: bytes) -> None:
    try:
        while data and client.send(data):
            time.sleep(BYTE_EVERY)
    except OSError:  # its socket is closed
        return


@pytest.mark.parametrize("name", SLOW)
def test_a_client_that_is_too_slow_is_closed(
    slow_clients: dict[str, list[Reply]], name: str
) -> None:
    assert tuple(reply.status for reply in slow_clients[name]) == SLOW[name].replies


def test_the_documents_list_every_way() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    names = {name for name in globals() if name.startswith("test_")}
    missing = [
        name
        for name in (*names, *WAYS, *BODIES, *BATCHES, *ENDLESS, *SLOW)
        if f"`{name}`" not in page
    ]
    assert missing == []


def test_neither_tokens_nor_customers_are_logged(
    server: Server, slow_clients: dict[str, list[Reply]], log: Path
) -> None:
    """The last test: after all the others."""
    assert server.stop() == 0
    text = log.read_text()
    assert "server.listening" in text
    for secret in (server.token, "pgw_", NAME, NAME.split()[1], "Traceback", "exception"):
        assert secret not in text
