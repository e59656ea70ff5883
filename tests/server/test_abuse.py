"""Ways to misuse the HTTP API, on a real socket: a clear refusal in bounded time, and nothing else.

``docs/reliability.md`` lists them. After each the same server takes a well-behaved client's order.
"""

import contextlib
import gzip
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from pos_gateway.tokens.token import Role
from tests.server.lab import SOON, Server, order, serving, token_for

#: What a refusal may not take, in seconds: far more than any takes, so that only a hang fails.
BOUND = 30.0
CLOSED = 0


@dataclass(frozen=True)
class Way:
    """Bytes that are sent, and the statuses that may come; ``CLOSED``: the connection ends."""

    name: str
    #: With {token}, {host} and {body} to be filled in; or what makes the bytes of a token.
    sent: bytes | Callable[[str], bytes]
    statuses: tuple[int, ...]


def head(
    method: str = "POST", path: str = "/v1/orders", *lines: str, kind: str = "application/json"
) -> str:
    said = [f"{method} {path} HTTP/1.1", "Host: x", "Authorization: Bearer {token}"]
    return "\r\n".join([*said, *([f"Content-Type: {kind}"] if kind else []), *lines]) + "\r\n"


def post(body: bytes, *lines: str, path: str = "/v1/orders", kind: str = "application/json") -> Any:
    """A whole request with this body."""

    def sent(token: str) -> bytes:
        text = head("POST", path, *lines, f"Content-Length: {len(body)}", kind=kind)
        return text.replace("{token}", token).encode() + b"\r\n" + body

    return sent


def raw(text: str) -> Callable[[str], bytes]:
    return lambda token: text.replace("{token}", token).encode("latin-1")


def get(path: str, *lines: str) -> Callable[[str], bytes]:
    return raw(head("GET", path, *lines, kind="") + "\r\n")


VALID = json.dumps(order("abuse")).encode()
CHUNKED = "Transfer-Encoding: chunked"

WAYS = [
    # The head.
    Way("an empty line and nothing", b"\r\n\r\n\r\nGET", (400, 408, CLOSED)),
    Way("HTTP/0.9", b"GET /\r\n\r\n", (400, 404)),
    Way("HTTP/2's preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400,)),
    Way("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), (400,)),
    Way("a method that is none", b"FROB / HTTP/1.1\r\nHost: x\r\n\r\n", (400,)),
    Way("CONNECT", b"CONNECT pos.example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n", (400,)),
    Way("TRACE", raw(head("TRACE", "/v1/orders", kind="") + "\r\n"), (405,)),
    Way("OPTIONS *", b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", (400, 404, 405)),
    Way("another host's URL", get("http://169.254.169.254/latest"), (404,)),
    Way("a header without a colon", b"GET / HTTP/1.1\r\nHost x\r\n\r\n", (400,)),
    Way("a blank before the colon", b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", (400,)),
    Way("a folded header", b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", (400,)),
    Way("a bare CR", b"GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n", (400,)),
    Way("NUL in a header", b"GET / HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n", (400,)),
    Way("a header of 100 KB", raw(head("GET", "/v1/events", "A: " + "a" * 100_000)), (431,)),
    Way("a name of 100 KB", raw(head("GET", "/v1/events", "a" * 100_000 + ": b")), (400, 431)),
    Way("a URL of 100 KB", get("/" + "a" * 100_000), (400, 431)),
    Way("a thousand headers", get("/v1/events", *["A: b"] * 1000), (431,)),
    Way("an endless head", raw(head("GET", "/v1/events", *["A: b"] * 9000)[:-2]), (431,)),
    Way("Upgrade: websocket", get("/", "Connection: Upgrade", "Upgrade: websocket"), (400,)),
    Way("Upgrade: h2c with a body", post(VALID, "Connection: Upgrade", "Upgrade: h2c"), (400,)),
    # How long the body is.
    Way(
        "a negative length",
        raw(head(lines := "POST", "/v1/orders", "Content-Length: -1") + "\r\n"),
        (400,),
    ),
    Way(
        "a length that is no number",
        raw(head("POST", "/v1/orders", "Content-Length: 1e3") + "\r\n"),
        (400,),
    ),
    Way(
        "a length of 2^64",
        raw(head("POST", "/v1/orders", f"Content-Length: {2**64}") + "\r\n"),
        (400,),
    ),
    Way(
        "two lengths",
        raw(head("POST", "/v1/orders", "Content-Length: 5", "Content-Length: 6") + "\r\nabcde"),
        (400,),
    ),
    Way(
        "two equal lengths",
        raw(head("POST", "/v1/orders", "Content-Length: 5", "Content-Length: 5") + "\r\nabcde"),
        (400,),
    ),
    Way(
        "a length and chunks",
        raw(head("POST", "/v1/orders", "Content-Length: 5", CHUNKED) + "\r\n0\r\n\r\n"),
        (400,),
    ),
    Way(
        "chunks and a length",
        raw(head("POST", "/v1/orders", CHUNKED, "Content-Length: 5") + "\r\n0\r\n\r\n"),
        (400,),
    ),
    Way(
        "chunked twice",
        raw(head("POST", "/v1/orders", CHUNKED, CHUNKED) + "\r\n0\r\n\r\n"),
        (400, 422),
    ),
    Way(
        "xchunked",
        raw(head("POST", "/v1/orders", "Transfer-Encoding: xchunked") + "\r\n0\r\n\r\n"),
        (400,),
    ),
    Way(
        "chunked in between",
        raw(head("POST", "/v1/orders", "Transfer-Encoding: chunked, gzip") + "\r\n0\r\n\r\n"),
        (400,),
    ),
    Way(
        "a chunk's size that is none",
        raw(head("POST", "/v1/orders", CHUNKED) + "\r\nzz\r\n"),
        (400,),
    ),
    Way(
        "a chunk longer than it says",
        raw(head("POST", "/v1/orders", CHUNKED) + "\r\n3\r\nabcdef\r\n0\r\n\r\n"),
        (400,),
    ),
    Way("a chunk of 2^64", raw(head("POST", "/v1/orders", CHUNKED) + f"\r\n{2**64:x}\r\n"), (400,)),
    Way(
        "100 MB announced",
        raw(
            head("POST", "/v1/orders", "Content-Length: 100000000", "Expect: 100-continue") + "\r\n"
        ),
        (413,),
    ),
    Way("no body at all", raw(head("POST", "/v1/orders") + "\r\n"), (422,)),
    # What it is.
    Way("no content type", post(VALID, kind=""), (415,)),
    Way("a form", post(b"order_id=1", kind="application/x-www-form-urlencoded"), (415,)),
    Way("text", post(VALID, kind="text/plain"), (415,)),
    Way("two content types", post(VALID, "Content-Type: text/plain"), (400,)),
    Way("gzip", post(gzip.compress(VALID), "Content-Encoding: gzip"), (415,)),
    Way("a gzip bomb", post(gzip.compress(bytes(10**8)), "Content-Encoding: gzip"), (413, 415)),
    Way("an empty object", post(b"{}"), (422,)),
    Way("a list", post(b"[" + VALID + b"]"), (422,)),
    Way("a text", post(b'"order"'), (422,)),
    Way("null", post(b"null"), (422,)),
    Way("nothing that is JSON", post(b"\xff\xfe{}"), (422,)),
    Way("UTF-16", post(VALID.decode().encode("utf-16")), (422,)),
    Way("a byte order mark", post(b"\xef\xbb\xbf" + VALID), (422,)),
    Way("two documents", post(VALID + VALID), (422,)),
    Way("100,000 brackets", post(b"[" * 100_000), (413, 422)),
    Way("nested objects", post(b'{"a":' * 5000 + b"1" + b"}" * 5000), (422,)),
    Way(
        "a field nested as deep as it goes",
        post(VALID[:-1] + b',"x":' + b"[" * 195 + b"]" * 195 + b"}"),
        (202, 422),
    ),
    Way("50,000 empty objects", post(b"[" + b"{}," * 50_000 + b"{}]"), (413, 422)),
    Way("NaN", post(VALID.replace(b'"total": 500', b'"total": NaN')), (422,)),
    Way("1e999", post(VALID[:-1] + b',"x":1e999}'), (422,)),
    Way("a number of 5,000 digits", post(VALID[:-1] + b',"x":' + b"9" * 5000 + b"}"), (202, 422)),
    Way("a lone surrogate", post(VALID[:-1] + b',"notes":"\\ud800"}'), (422,)),
    Way("an id with a line break", post(json.dumps(order("a\r\nX-Evil: 1")).encode()), (422,)),
    Way("an id with dots", post(json.dumps(order("../../etc/passwd")).encode()), (422,)),
    Way("an id of 10 KB", post(json.dumps(order("a" * 10_000)).encode()), (422,)),
    Way(
        "an order of 300 KB",
        post(json.dumps(order("big", notes=["x" * 100] * 3000)).encode()),
        (413,),
    ),
    Way(
        "a thousand and one items",
        post(json.dumps(order("many", items=order()["items"] * 1001)).encode()),
        (422,),
    ),
    # Batches.
    Way("an empty batch", post(b"[]", path="/v1/orders/batch"), (400,)),
    Way("a batch of an object", post(b"{}", path="/v1/orders/batch"), (207, 400)),
    Way("a batch of 1,001", post(b"[" + b"{}," * 1000 + b"{}]", path="/v1/orders/batch"), (413,)),
    Way("a batch of numbers", post(b"[1,2]", path="/v1/orders/batch"), (207,)),
    Way(
        "a line of 1 MB",
        post(b"x" * 1_000_000 + b"\n{}", path="/v1/orders/batch", kind="application/x-ndjson"),
        (207,),
    ),
    Way(
        "a batch of 17 MB announced",
        raw(head("POST", "/v1/orders/batch", "Content-Length: 17000000") + "\r\n"),
        (413,),
    ),
    # Paths and queries.
    Way("a line break in a path", get("/v1/merchants/m%0d%0aX-Evil:%201/orders/o"), (422,)),
    Way("dots in a path", get("/v1/merchants/../orders/o"), (404, 422)),
    Way("escaped dots in a path", get("/v1/merchants/%2e%2e/orders/o"), (422,)),
    Way("an id that is not ASCII", get("/v1/merchants/m%C3%BC/orders/o"), (422,)),
    Way("a NUL in a path", get("/v1/merchants/m%00/orders/o"), (422,)),
    Way("a path that is not ASCII", b"GET /v1/\xff HTTP/1.1\r\nHost: x\r\n\r\n", (400, 401, 404)),
    Way("a negative position", get("/v1/events?after=-1"), (422,)),
    Way("a position of 2^70", get(f"/v1/events?after={2**70}"), (422,)),
    Way("a position that is none", get("/v1/events/stream?after=now"), (422,)),
    Way("two positions", get("/v1/events/stream?after=1&after=2"), (422,)),
    Way("a Last-Event-ID that is none", get("/v1/events/stream", "Last-Event-ID: '; drop"), (422,)),
    Way("no events at all", get("/v1/events?limit=0"), (422,)),
    Way("a million events", get("/v1/events?limit=1000000"), (422,)),
    Way("to wait for ever", get("/v1/events?wait=inf"), (422,)),
    Way("to wait for NaN", get("/v1/events?wait=nan"), (422,)),
    # Tokens.
    Way("no token", b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n", (401,)),
    Way(
        "another scheme",
        raw("GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Basic YTpi\r\n\r\n"),
        (401,),
    ),
    Way(
        "a token that is none",
        raw("GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n"),
        (401,),
    ),
    Way(
        "a mistyped token",
        raw("GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}x\r\n\r\n"),
        (401,),
    ),
    Way(
        "a token of 10 KB",
        raw(
            "GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
            + "a" * 10_000
            + "\r\n\r\n"
        ),
        (401,),
    ),
    Way("two tokens", get("/v1/events", "Authorization: Bearer {token}"), (400,)),
    Way(
        "a token in the URL",
        raw("GET /v1/events?token={token} HTTP/1.1\r\nHost: x\r\n\r\n"),
        (401,),
    ),
    Way(
        "a wrong token with 1 MB",
        raw(
            "POST /v1/orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer x\r\nContent-Length: 1000000\r\n\r\n"
            + "x" * 1_000_000
        ),
        (401,),
    ),
]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("abuse") / "server.log"


@pytest.fixture(scope="module")
def server(module_url: str, module_database: str, log: Path) -> Iterator[Server]:
    with serving(module_url, module_database, log) as server:
        yield server


def status_of(connection: socket.socket) -> int:
    """The status of the next reply; ``CLOSED`` without one. Reads the whole reply."""
    received = b""
    while b"\r\n\r\n" not in received:
        try:
            more = connection.recv(65536)
        except ConnectionResetError:
            more = b""
        if not more:
            break
        received += more
    if not received:
        return CLOSED
    status = int(received.split(b" ", 2)[1])
    if status == 100:
        return status_of(connection)
    named = dict(
        line.lower().split(b": ", 1) for line in received.split(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    )
    if status >= 400:
        assert named[b"content-type"] == b"application/problem+json", received
        left = int(named[b"content-length"])
        body = received.partition(b"\r\n\r\n")[2]
        while len(body) < left and (more := connection.recv(65536)):
            body += more
        problem = json.loads(body)
        assert problem["status"] == status and problem["detail"], problem
    return status


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_misuse_is_refused_and_harms_no_other(server: Server, way: Way) -> None:
    sent = way.sent(server.token) if callable(way.sent) else way.sent
    with socket.create_connection(server.address, BOUND) as connection:
        sending = threading.Thread(target=send, args=(connection, sent), daemon=True)
        sending.start()
        assert status_of(connection) in way.statuses
    assert server.get("/healthz").status_code == 200


def send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # it was refused before it was read
        connection.sendall(data)


def test_after_all_that_the_server_takes_orders_and_has_kept_every_secret(
    server: Server, log: Path, order_id: str
) -> None:
    secret = order(order_id, customer={"name": "Zaphod Beeblebrox"})
    assert server.post("/v1/orders", secret).status_code == 202
    server.post("/v1/orders", {**secret, "total": "wrong"})
    text = log.read_text()
    assert server.token not in text
    assert "Beeblebrox" not in text
    worse = [
        line for line in text.splitlines() if json.loads(line)["level"] in ("error", "critical")
    ]
    assert worse == []


def test_requests_in_one_packet_are_answered_in_order(server: Server, order_id: str) -> None:
    """One that is refused in the middle does not put the others out of step."""
    requests_ = [
        post(json.dumps(order(f"{order_id}-{n}")).encode())(server.token) for n in range(9)
    ]
    requests_.insert(4, post(b"{}")(server.token))
    with socket.create_connection(server.address, BOUND) as connection:
        connection.sendall(b"".join(requests_))
        with connection.makefile("rb") as replies:
            found = [reply(replies) for _ in range(10)]
    assert [status for status, _ in found] == [*[202] * 4, 422, *[202] * 5]
    taken = [body["order_id"] for status, body in found if status == 202]
    assert taken == [f"{order_id}-{n}" for n in range(9)]


def reply(replies: Any) -> tuple[int, Any]:
    status = int(replies.readline().split()[1])
    length = 0
    while (line := replies.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, json.loads(replies.read(length))


def test_the_body_of_a_refused_request_is_not_taken_for_a_request(server: Server) -> None:
    hidden = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    for kind, token in (("text/plain", server.token), ("application/json", "wrong")):
        with socket.create_connection(server.address, BOUND) as connection:
            connection.sendall(post(hidden, kind=kind)(token))
            assert status_of(connection) in (401, 415)
            connection.sendall(post(b"{}")(server.token))
            assert status_of(connection) == 422


def test_a_body_that_breaks_off_publishes_nothing(server: Server, order_id: str) -> None:
    whole = post(json.dumps(order(order_id)).encode())(server.token)
    with socket.create_connection(server.address, BOUND) as connection:
        connection.sendall(whole[:-10])
        linger = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)  # ends it by RST
    with socket.create_connection(server.address, BOUND) as connection:
        connection.sendall(whole[:-10])
        connection.shutdown(socket.SHUT_WR)
        assert status_of(connection) in (CLOSED, 400, 408)
    assert server.get(f"/v1/merchants/m1/orders/{order_id}").status_code == 404


def test_bodies_without_end_take_no_memory(server: Server) -> None:
    """Ten clients send chunks for as long as they may."""
    process = psutil.Process(server.process.pid)
    assert server.get("/healthz").ok
    before = process.memory_info().rss

    def pour() -> None:
        with socket.create_connection(server.address, BOUND) as connection:
            send(connection, raw(head("POST", "/v1/orders", CHUNKED) + "\r\n")(server.token))
            chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
            for _ in range(200):
                send(connection, chunk)

    pouring = [threading.Thread(target=pour) for _ in range(10)]
    for each in pouring:
        each.start()
    for each in pouring:
        each.join(BOUND)
    assert server.get("/healthz").ok
    assert process.memory_info().rss - before < 64 * 2**20


def test_a_stream_that_is_not_read_takes_little_and_delays_no_other(server: Server) -> None:
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    silent = [socket.create_connection(server.address, BOUND) for _ in range(100)]
    for each in silent:
        each.sendall(get("/v1/events/stream?after=0")(server.token))
    assert server.get("/v1/events?wait=0.1").status_code == 200
    assert process.memory_info().rss - before < 32 * 2**20
    for each in silent:
        each.close()


def test_no_more_requests_and_connections_than_allowed_are_taken(
    module_url: str, module_database: str, tmp_path: Path, order_id: str
) -> None:
    settings = {"POS_GATEWAY_HTTP_IN_FLIGHT": "2", "POS_GATEWAY_HTTP_CONNECTIONS": "20"}
    with serving(module_url, module_database, tmp_path / "log", settings) as server:
        whole = post(json.dumps(order(order_id)).encode())(server.token)
        slow = [socket.create_connection(server.address, BOUND) for _ in range(2)]
        for each in slow:
            each.sendall(whole[:-1])
        until = time.monotonic() + SOON
        while (refused := server.post("/v1/orders", {})).status_code == 422:
            assert time.monotonic() < until  # the two are not read yet
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
        assert refused.headers["retry-after"] == "1"
        slow[0].sendall(whole[-1:])
        assert status_of(slow[0]) == 202
        assert server.post("/v1/orders", order(order_id + "2")).status_code == 202
        many = [socket.create_connection(server.address, BOUND) for _ in range(20)]
        assert 503 in [status_of(each) for each in many[-2:]]
        for each in (*slow, *many):
            each.close()


def test_a_rate_is_a_tokens_own(
    module_url: str, module_database: str, tmp_path: Path, order_id: str
) -> None:
    with serving(
        module_url, module_database, tmp_path / "log", {"POS_GATEWAY_HTTP_RATE": "2"}
    ) as s:
        statuses = [s.post("/v1/orders", order(f"{order_id}-{n}")).status_code for n in range(8)]
        assert statuses[0] == 202 and 429 in statuses
        refused = s.post("/v1/orders/batch", [order(f"{order_id}-{n}") for n in range(90)])
        assert refused.status_code in (207, 429)
        other = token_for(module_database, Role.BACKEND)
        until = time.monotonic() + SOON
        while True:  # tokens are read every two seconds
            taken = requests.get(
                s.url + "/v1/events", headers={"Authorization": f"Bearer {other}"}, timeout=SOON
            )
            if taken.status_code != 401:
                break
            assert time.monotonic() < until
        assert taken.status_code == 200
