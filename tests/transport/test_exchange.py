"""One exchange: its reply, and how peers that break the protocol are handled."""

import gc
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from types import FrameType, SimpleNamespace

import pytest
import trustme

from pos_gateway.runtime import green
from pos_gateway.transport import endpoint
from pos_gateway.transport.connection import Connection
from pos_gateway.transport.deadline import CallContext
from pos_gateway.transport.errors import Misconfigured, NotSent, NoValidReply
from pos_gateway.transport.exchange import (
    ACKNOWLEDGEMENT,
    BODY_LIMIT,
    Reply,
    Request,
    Transport,
)
from pos_gateway.transport.guard import Guard
from testkit.hostile.peer import Peer, Script, a_reply, answers, hangs, peer, read_request
from testkit.patience import PATIENCE


def exchange(
    seen: Peer,
    transport: Transport | None = None,
    *,
    seconds: float = PATIENCE,
    expects: int = ACKNOWLEDGEMENT,
) -> Reply:
    transport = transport or Transport(guard=Guard(allow_all=True))
    headers = {"Idempotency-Key": "k"}
    request = Request("POST", seen.url(), b'{"a":1}', headers, expects=expects)
    return transport.send(request, key="merchant", connections=2, seconds=seconds)


def test_a_reply_is_returned_with_status_headers_and_body() -> None:
    with peer(answers(a_reply(b"{}", "201 Created", X_Id="7"))) as seen:
        reply = exchange(seen)
    assert (reply.status, reply.headers["x-id"], reply.body) == (201, "7", b"{}")


def test_a_reply_to_head_has_no_body_whatever_its_length() -> None:
    transport = Transport(guard=Guard(allow_all=True))
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
    with peer(answers(head)) as seen:
        for _ in range(2):
            reply = transport.send(Request("HEAD", seen.url()), key="m", connections=1, seconds=5)
            assert (reply.status, reply.body) == (200, b"")
    assert seen.connections == 1


def test_a_connection_is_reused() -> None:
    transport = Transport(guard=Guard(allow_all=True))
    with peer(answers(a_reply())) as seen:
        for _ in range(5):
            exchange(seen, transport)
    assert seen.connections == 1


class Tapped:
    """A socket that keeps what was written to it."""

    def __init__(self, sock: object, writes: list[bytes]) -> None:
        self._sock, self._writes = sock, writes

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)

    def send(self, data: bytes) -> int:
        self._writes.append(bytes(data))
        sent: int = self._sock.send(data)  # type: ignore[attr-defined]
        return sent


def test_head_and_body_leave_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    tapped = lambda sock: Connection(Tapped(sock, writes))  # noqa: E731
    monkeypatch.setattr(endpoint, "Connection", tapped)
    with peer(answers(a_reply())) as seen:
        exchange(seen)
    [write] = writes
    assert write.startswith(b"POST ")
    assert write.endswith(b'\r\n\r\n{"a":1}')


def test_a_body_larger_than_the_socket_buffer_is_sent_completely() -> None:
    body = bytes(range(256)) * 64 * 1024  # 16 MiB: four times what Linux buffers for a socket
    received: list[bytes] = []

    def script(connection: socket.socket) -> None:
        received.append(read_request(connection))
        connection.sendall(a_reply())

    with peer(script) as seen:
        transport = Transport(guard=Guard(allow_all=True))
        request = Request("POST", seen.url(), body)
        assert transport.send(request, key="m", connections=1, seconds=30).status == 200
    assert received[0].partition(b"\r\n\r\n")[2] == body


@pytest.mark.parametrize(
    "script",
    [
        answers(b""),
        lambda connection: connection.close(),
        answers(b"220 mail.example ESMTP\r\n"),
        answers(b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n"),
        answers(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"),
    ],
    ids=["silence", "close", "no HTTP", "no header", "cut"],
)
def test_a_failed_exchange_is_freed_without_the_garbage_collector(script: Script) -> None:
    """At sixty failures a second a collection stopped everything for 100 ms every ten seconds."""
    gc.collect()
    gc.disable()
    try:
        with peer(script) as seen, pytest.raises(NoValidReply):
            exchange(seen, seconds=0.5)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        frames = [each for each in gc.garbage if isinstance(each, FrameType)]
        assert [each.f_code.co_qualname for each in frames] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_reading_a_reply_of_many_chunks_yields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns: list[float] = []
    monkeypatch.setattr(green, "time", SimpleNamespace(sleep=turns.append))
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with peer(answers(head + b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n")) as seen:
        assert exchange(seen).body == b"x" * 1000
    assert turns == [green._TURN] * 5


def in_one_length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


def in_chunks(body: bytes) -> bytes:
    half = len(body) // 2
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (body[:half], body[half:]))
    return b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def until_it_closes(body: bytes) -> bytes:
    return b"Connection: close\r\n\r\n" + body


@pytest.mark.parametrize("framed", [in_one_length, in_chunks, until_it_closes])
def test_the_body_limit_is_exact(
    framed: Callable[[bytes], bytes],
) -> None:
    def script(body: bytes) -> Script:
        def play(connection: socket.socket) -> None:
            read_request(connection)
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + framed(body))

        return play

    with peer(script(b"x" * BODY_LIMIT)) as seen:
        assert len(exchange(seen, expects=BODY_LIMIT).body) == BODY_LIMIT
    with peer(script(b"x" * (BODY_LIMIT + 1))) as seen, pytest.raises(NoValidReply) as caught:
        exchange(seen, expects=BODY_LIMIT)
    assert caught.value.code == "reply_too_long"


def test_the_fence_stops_a_request_on_a_new_and_on_a_reused_connection() -> None:
    """It is called once the connection exists: a slow connect changes nothing."""
    requests: list[bytes] = []
    transport = Transport(guard=Guard(allow_all=True))

    def script(connection: socket.socket) -> None:
        while request := read_request(connection):
            requests.append(request)
            connection.sendall(a_reply())

    def send(seen: Peer, fence: Callable[[], None]) -> Reply:
        request = Request("POST", seen.url(), b"{}")
        return transport.send(request, key="m", connections=1, seconds=5, fence=fence)

    def hold_back() -> None:
        raise NotSent("lease", "another worker has the order")

    with peer(script) as seen:
        with pytest.raises(NotSent, match="another worker"):
            send(seen, hold_back)
        asked: list[int] = []
        assert send(seen, lambda: asked.append(len(requests))).status == 200
        with pytest.raises(NotSent, match="another worker"):
            send(seen, hold_back)
        assert send(seen, lambda: asked.append(len(requests))).status == 200
    assert asked == [0, 1]  # once for each, before its first byte
    assert len(requests) == 2


def test_an_exchange_is_timed_also_if_it_fails() -> None:
    replies = [a_reply(), b""]
    transport = Transport(guard=Guard(allow_all=True))

    def script(connection: socket.socket) -> None:
        while replies and read_request(connection):
            connection.sendall(replies.pop(0))

    def timed(seen: Peer) -> CallContext:
        request, context = Request("POST", seen.url(), b"{}"), CallContext()
        with suppress(NoValidReply):
            transport.send(request, key="m", connections=1, seconds=5, context=context)
        return context

    with peer(script) as seen:
        began = perf_counter()
        first, silent = timed(seen), timed(seen)
        assert first.replied is not None and began < first.replied < perf_counter()
        assert 0.0 < first.connect_seconds < first.replied - began
        assert (silent.replied, silent.connect_seconds) == (None, 0.0)


def test_a_request_whose_time_is_up_when_it_could_leave_does_not_leave() -> None:
    """This machine was held up: sent now, the order would be in doubt for nothing."""
    requests: list[bytes] = []
    transport = Transport(guard=Guard(allow_all=True))

    def script(connection: socket.socket) -> None:
        while request := read_request(connection):
            requests.append(request)
            connection.sendall(a_reply())

    def send(seen: Peer, seconds: float, fence: Callable[[], object]) -> Reply:
        request = Request("POST", seen.url(), b"{}")
        options = {"key": "m", "connections": 1, "seconds": seconds, "fence": fence}
        return ThreadPoolExecutor(1).submit(transport.send, request, **options).result()

    with peer(script) as seen:
        for _ in range(2):  # on a new connection, and on a reused one
            with pytest.raises(NotSent) as caught:
                send(seen, 0.5, lambda: threading.Event().wait(0.55))
            assert caught.value.code == "timeout"
            assert send(seen, 5, lambda: None).status == 200
    assert len(requests) == 2


def test_connections_are_never_shared_between_merchants() -> None:
    transport = Transport(guard=Guard(allow_all=True))
    with peer(answers(a_reply())) as seen:
        for key in ("first", "second"):
            transport.send(Request("GET", seen.url()), key=key, connections=2, seconds=5)
    assert seen.connections == 2


def test_the_least_recently_used_pool_is_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pos_gateway.transport.exchange.ENDPOINTS", 2)
    transport = Transport(guard=Guard(allow_all=True))
    with peer(answers(a_reply())) as seen:
        connections = []
        for key in ("a", "b", "a", "c", "c", "a", "b"):
            transport.send(Request("GET", seen.url()), key=key, connections=2, seconds=5)
            connections.append(seen.connections)
    assert connections == [1, 2, 2, 3, 3, 3, 4]


def test_the_environments_proxies_and_netrc_are_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login stolen password stolen\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none.pem"))
    seen_request: list[bytes] = []

    def script(connection: socket.socket) -> None:
        seen_request.append(read_request(connection))
        connection.sendall(a_reply())

    with peer(script) as seen:
        assert exchange(seen).status == 200
    assert b"authorization" not in seen_request[0].lower()


def test_a_redirect_is_not_followed() -> None:
    with peer(answers(a_reply(b"", "307 Temporary Redirect", Location="/elsewhere"))) as seen:
        assert exchange(seen).status == 307
    assert seen.connections == 1


def test_a_cookie_is_not_kept() -> None:
    requests: list[bytes] = []

    def script(connection: socket.socket) -> None:
        while request := read_request(connection):
            requests.append(request)
            connection.sendall(a_reply(Set_Cookie="session=1"))

    transport = Transport(guard=Guard(allow_all=True))
    with peer(script) as seen:
        exchange(seen, transport)
        exchange(seen, transport)
    assert b"cookie" not in requests[1].lower()


def test_a_refused_connection_is_not_sent() -> None:
    unused = socket.create_server(("127.0.0.1", 0))
    port = unused.getsockname()[1]
    unused.close()
    with pytest.raises(NotSent) as caught:
        exchange(Peer(port))
    assert not isinstance(caught.value, Misconfigured)


def test_a_name_that_does_not_resolve_is_not_sent() -> None:
    with pytest.raises(NotSent, match="cannot resolve"):
        Transport().send(
            Request("GET", "https://no-such-host.invalid/"), key="m", connections=1, seconds=5
        )


def test_a_connect_timeout_is_not_sent() -> None:
    # A listener with a full queue drops every further handshake: a black hole on loopback.
    hole = socket.socket()
    hole.bind(("127.0.0.1", 0))
    hole.listen(0)
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(hole.getsockname())
    with pytest.raises(NotSent):
        exchange(Peer(hole.getsockname()[1]), seconds=0.3)
    for each in (hole, *fillers):
        each.close()


def test_silence_after_the_request_is_in_doubt() -> None:
    with peer(hangs) as seen, pytest.raises(NoValidReply, match=r"within 0\.2 s"):
        exchange(seen, seconds=0.2)


@pytest.mark.parametrize(
    "drip",
    [b"HTTP/1.1 100 Continue\r\n\r\n", b"H", b"X-Header: 1\r\n"],
    ids=["100 Continue", "status line", "headers"],
)
def test_a_dripping_peer_ends_at_the_deadline(drip: bytes) -> None:
    stop = socket.socketpair()

    def script(connection: socket.socket) -> None:
        read_request(connection)
        if drip.startswith(b"X"):
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
        stop[0].settimeout(0.02)
        for _ in range(500):
            connection.sendall(drip)
            try:
                stop[0].recv(1)
                return
            except TimeoutError:
                continue

    with peer(script) as seen, pytest.raises(NoValidReply):
        exchange(seen, seconds=0.3)
    stop[1].send(b"x")


@pytest.mark.parametrize("expects", [None, 1, BODY_LIMIT])
def test_the_expected_size_of_a_reply_is_exact(
    expects: int | None,
) -> None:
    most = ACKNOWLEDGEMENT if expects is None else expects

    def script(connection: socket.socket) -> None:
        while read_request(connection):
            connection.sendall(a_reply(b"x" * sizes.pop(0)))

    sizes = [most, most + 1]
    transport = Transport(guard=Guard(allow_all=True))
    with peer(script) as seen:
        request = Request("GET", seen.url("/"))
        if expects is not None:
            request = Request("GET", seen.url("/"), expects=expects)
        send = partial(transport.send, request, key="m", connections=1, seconds=10)
        assert len(send().body) == most
        with pytest.raises(NoValidReply) as caught:
            send()
    assert caught.value.code == "reply_too_long"


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        a_reply(b"x" * 10, Content_Encoding="gzip"),
        a_reply(b"x" * (ACKNOWLEDGEMENT + 1)),
    ],
    ids=["closed", "cut", "nonsense", "chunks", "encoded", "long"],
)
def test_anything_but_a_complete_valid_reply_is_in_doubt_and_costs_the_connection(
    reply: bytes,
) -> None:
    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(reply)
        connection.shutdown(socket.SHUT_WR)

    transport = Transport(guard=Guard(allow_all=True))
    with peer(script) as seen:
        for _ in range(2):
            with pytest.raises(NoValidReply):
                exchange(seen, transport)
    assert seen.connections == 2


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "10.0.0.1",
        "169.254.169.254",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "100.64.0.1",
        "[fd00::1]",
    ],
)
def test_a_private_address_is_refused_before_anything_is_sent(host: str) -> None:
    with peer(answers(a_reply())) as seen:
        transport = Transport(guard=Guard(ports=frozenset({seen.port})))
        request = Request("POST", seen.url(host=host, scheme="https"), b"{}")
        with pytest.raises(Misconfigured, match="which is not public"):
            transport.send(request, key="m", connections=1, seconds=2)
        assert seen.connections == 0


@pytest.fixture
def authority(tmp_path: Path) -> tuple[trustme.CA, str]:
    """A certificate authority, and the file with its certificate."""
    ca = trustme.CA()
    path = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(path))
    return ca, str(path)


def server_context(ca: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(name).configure_cert(context)
    return context


def over_tls(seen: Peer, ca_file: str | None) -> Reply:
    transport = Transport(guard=Guard(allow_all=True), ca_file=ca_file)
    request = Request("POST", seen.url(scheme="https"), b"{}")
    return transport.send(request, key="m", connections=1, seconds=5)


def test_a_trusted_certificate_is_accepted(authority: tuple[trustme.CA, str]) -> None:
    ca, ca_file = authority
    with peer(answers(a_reply()), tls=server_context(ca, "127.0.0.1")) as seen:
        assert over_tls(seen, ca_file).status == 200


def test_a_certificate_of_an_unknown_authority_or_another_host_is_a_misconfiguration(
    authority: tuple[trustme.CA, str],
) -> None:
    ca, ca_file = authority
    with (
        peer(answers(a_reply()), tls=server_context(ca, "127.0.0.1")) as seen,
        pytest.raises(Misconfigured, match="certificate"),
    ):
        over_tls(seen, None)
    with (
        peer(answers(a_reply()), tls=server_context(ca, "pos.example.com")) as seen,
        pytest.raises(Misconfigured, match="certificate"),
    ):
        over_tls(seen, ca_file)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("starts_to_reply", [False, True])
def test_no_byte_of_a_request_is_sent_after_its_deadline(
    authority: tuple[trustme.CA, str], scheme: str, starts_to_reply: bool
) -> None:
    """Otherwise a POS that reads late gets an order that it said it does not know."""
    ca, ca_file = authority
    is_over, came_to_its_end = threading.Event(), threading.Event()
    received = 0

    def reads_later(connection: socket.socket) -> None:
        nonlocal received
        try:
            if starts_to_reply:
                connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{")
            is_over.wait(PATIENCE)
            while chunk := connection.recv(65536):
                received += len(chunk)
        finally:
            came_to_its_end.set()

    tls = server_context(ca, "127.0.0.1") if scheme == "https" else None
    with peer(reads_later, tls=tls, buffer=4096) as seen:
        transport = Transport(guard=Guard(allow_all=True), ca_file=ca_file)
        request = Request("POST", seen.url(scheme=scheme), b"x" * 32_000)
        with pytest.raises(NoValidReply) as failure:
            transport.send(request, key="m", connections=1, seconds=0.5)
        is_over.set()
        assert came_to_its_end.wait(PATIENCE)
    assert failure.value.code == "timeout"
    assert received < 32_000


@pytest.mark.parametrize("said", [{}, {"Connection": "close"}])
def test_a_connection_is_closed_without_a_reset(said: dict[str, str]) -> None:
    """A POS would log each reset as an error."""
    ended: queue.Queue[bytes | OSError] = queue.Queue()

    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(a_reply(**said))
        try:
            ended.put(connection.recv(1))
        except OSError as error:
            ended.put(error)

    transport = Transport(guard=Guard(allow_all=True))
    with peer(script) as seen:
        exchange(seen, transport)
        transport.close()
        assert ended.get(timeout=PATIENCE) == b""


def test_connections_are_available_leased_or_pending(authority: tuple[trustme.CA, str]) -> None:
    """While the TLS handshake hangs the connection is pending."""
    let_go = threading.Event()
    transport = Transport(guard=Guard(allow_all=True), ca_file=authority[1])
    assert transport.connections == (0, 0, 0)
    with (
        peer(answers(a_reply())) as kept,
        peer(lambda _connection: let_go.wait(PATIENCE)) as silent,
        ThreadPoolExecutor(2) as threads,
    ):
        exchange(kept, transport)
        assert transport.connections == (1, 0, 0)
        for scheme in ("http", "https"):
            request = Request("POST", silent.url(scheme=scheme), b"{}")
            threads.submit(transport.send, request, key=scheme, connections=1, seconds=60)
        until = time.monotonic() + PATIENCE
        while transport.connections != (1, 1, 1):
            assert time.monotonic() < until, transport.connections
        let_go.set()
        threads.shutdown()
        assert transport.connections == (1, 0, 0)
    transport.close()
    assert transport.connections == (0, 0, 0)
