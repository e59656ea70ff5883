"""One merchant's connections: which are kept, which are reused, and what they remember of TLS."""

import queue
import socket
import ssl
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from pos_gateway.transport import endpoint as subject
from pos_gateway.transport.errors import Misconfigured, NotSent, NoValidReply
from pos_gateway.transport.exchange import Reply, Request, Transport
from pos_gateway.transport.guard import Guard
from pos_gateway.transport.parser import IDLE
from pos_gateway.transport.resolver import Resolver
from testkit.hostile.peer import Peer, a_reply, answers, peer, read_request
from testkit.patience import PATIENCE

OPEN = Guard(allow_all=True)


def send(
    transport: Transport, seen: Peer, scheme: str = "http", connections: int = 2, **options: Any
) -> Reply:
    request = Request("POST", seen.url(scheme=scheme), b"{}")
    return transport.send(request, key="m", connections=connections, seconds=PATIENCE, **options)


def at_once(transport: Transport, seen: Peer, number: int, connections: int) -> None:
    threads = [
        threading.Thread(target=send, args=(transport, seen, "http", connections))
        for _ in range(number)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)


def test_as_many_connections_are_kept_as_the_merchant_may_have_and_more_are_made() -> None:
    transport = Transport(guard=OPEN)
    together = threading.Barrier(5, timeout=PATIENCE)

    def script(connection: socket.socket) -> None:
        while read_request(connection):
            together.wait()
            connection.sendall(a_reply())

    with peer(script) as seen:
        at_once(transport, seen, 5, connections=3)
        assert seen.connections == 5
        assert transport.connections == (3, 0, 0)
        at_once(transport, seen, 5, connections=3)
        assert seen.connections == 7
    transport.close()
    assert transport.connections == (0, 0, 0)


def test_the_connection_used_last_comes_first() -> None:
    """So that the others may reach their end, and are not all kept alive by a few exchanges."""
    transport = Transport(guard=OPEN)
    both, asked = threading.Barrier(2, timeout=PATIENCE), queue.Queue[int]()

    def script(connection: socket.socket) -> None:
        me = seen.connections
        read_request(connection)
        both.wait()
        connection.sendall(a_reply())
        while read_request(connection):
            asked.put(me)
            connection.sendall(a_reply())

    with peer(script) as seen:
        at_once(transport, seen, 2, connections=2)
        for _ in range(3):
            send(transport, seen)
    assert len({asked.get(timeout=PATIENCE) for _ in range(3)}) == 1


def test_connections_that_were_closed_are_passed_over_for_a_live_one() -> None:
    transport = Transport(guard=OPEN)
    both, closed = threading.Barrier(2, timeout=PATIENCE), threading.Event()
    numbers = iter(range(9))

    def script(connection: socket.socket) -> None:
        number = next(numbers)
        read_request(connection)
        both.wait()
        connection.sendall(a_reply())
        if number == 0:
            connection.close()
            closed.set()
        while read_request(connection):
            connection.sendall(a_reply())

    with peer(script) as seen:
        at_once(transport, seen, 2, connections=2)
        assert closed.wait(PATIENCE)
        for _ in range(2):
            assert send(transport, seen).status == 200
        assert seen.connections == 2


def test_what_comes_after_a_reply_reaches_no_later_exchange() -> None:
    """Also where it comes later than the reply did."""
    transport = Transport(guard=OPEN)
    sent = threading.Event()

    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(a_reply(b"first"))
        connection.sendall(a_reply(b"unasked"))
        sent.set()
        read_request(connection)

    with peer(script) as seen:
        for number in (1, 2):
            assert send(transport, seen).body == b"first"
            assert sent.wait(PATIENCE)
            sent.clear()
            assert seen.connections == number


def test_a_connection_closed_as_the_request_left_is_in_doubt_and_not_asked_again() -> None:
    """Nothing tells it from a POS that took the order and crashed."""
    transport = Transport(guard=OPEN)
    requests: list[bytes] = []

    def script(connection: socket.socket) -> None:
        requests.append(read_request(connection))
        connection.sendall(a_reply())
        requests.append(read_request(connection))

    with peer(script) as seen:
        send(transport, seen)
        with pytest.raises(NoValidReply) as caught:
            send(transport, seen)
        assert caught.value.code == "broken_off"
        assert len(requests) == 2
        assert seen.connections == 1


def test_an_exchange_that_ends_after_the_transport_was_closed_leaves_nothing_open() -> None:
    transport = Transport(guard=OPEN)
    asked, may_answer, ended = threading.Event(), threading.Event(), threading.Event()

    def script(connection: socket.socket) -> None:
        read_request(connection)
        asked.set()
        may_answer.wait(PATIENCE)
        connection.sendall(a_reply())
        assert connection.recv(1) == b""
        ended.set()

    with peer(script) as seen:
        thread = threading.Thread(target=send, args=(transport, seen))
        thread.start()
        assert asked.wait(PATIENCE)
        transport.close()
        may_answer.set()
        thread.join(PATIENCE)
        assert ended.wait(PATIENCE)


# TLS


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


def serving(ca: trustme.CA, version: ssl.TLSVersion, *, wants_ours: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = context.maximum_version = version
    ca.issue_cert("127.0.0.1").configure_cert(context)
    if wants_ours:
        ca.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        context.session_id_context = b"pos"  # type: ignore[attr-defined]
    return context


def identity(ca: trustme.CA, chain: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(authority=ca.cert_pem.bytes().decode(), chain=chain)


class Resuming:
    """Answers once on each connection, and keeps whether its session was resumed."""

    def __init__(self) -> None:
        self.resumed: list[bool | None] = []
        self.certificates: list[Any] = []

    def __call__(self, connection: Any) -> None:
        read_request(connection)
        self.resumed.append(connection.session_reused)
        self.certificates.append(connection.getpeercert())
        connection.sendall(a_reply(Connection="close"))


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_tls_session_is_resumed_by_the_merchants_next_connection(
    ca: trustme.CA, version: ssl.TLSVersion
) -> None:
    transport, resuming, ours = Transport(guard=OPEN), Resuming(), identity(ca)
    with peer(resuming, tls=serving(ca, version)) as seen:
        for _ in range(3):
            send(transport, seen, "https", identity=ours)
        other = Request("GET", seen.url(scheme="https"))
        transport.send(other, key="another", connections=2, seconds=PATIENCE, identity=ours)
    assert resuming.resumed == [False, True, True, False]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_peer_is_verified_again_after_an_hour(ca: trustme.CA, version: ssl.TLSVersion) -> None:
    """From the last time that it was: a session that is resumed again and again ends as well."""
    transport, resuming, ours = Transport(guard=OPEN), Resuming(), identity(ca)
    with peer(resuming, tls=serving(ca, version)) as seen:
        for passed in (0.6, 0.5, 0.1, 0.0):
            send(transport, seen, "https", identity=ours)
            [endpoint] = transport._endpoints.values()
            endpoint._session_until -= passed * subject.RESUMED
    assert resuming.resumed == [False, True, False, True]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_peer_that_forgot_a_session_is_agreed_with_anew(
    ca: trustme.CA, version: ssl.TLSVersion
) -> None:
    transport, ours = Transport(guard=OPEN), identity(ca)
    resuming = Resuming()
    with peer(resuming, tls=serving(ca, version)) as seen:
        send(transport, seen, "https", identity=ours)
        port = seen.port
    restarted = Resuming()
    with peer(restarted, tls=serving(ca, version)) as seen:
        moved = Transport(guard=OPEN)
        [endpoint] = transport._endpoints.values()
        endpoint._port = seen.port  # the same POS, after a restart: its keys are new
        assert port != seen.port
        moved._endpoints["m", "https", f"127.0.0.1:{seen.port}", 2] = endpoint
        assert send(moved, seen, "https", identity=ours).status == 200
    assert restarted.resumed == [False]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_certificate_is_shown_and_a_resumed_session_has_it(
    ca: trustme.CA, version: ssl.TLSVersion
) -> None:
    chain = ca.issue_cert("gateway.example").private_key_and_cert_chain_pem.bytes().decode()
    transport, resuming = Transport(guard=OPEN), Resuming()
    ours = identity(ca, chain)
    with peer(resuming, tls=serving(ca, version, wants_ours=True)) as seen:
        for _ in range(2):
            send(transport, seen, "https", identity=ours)
        with pytest.raises(Misconfigured) as caught:
            Transport(guard=OPEN).send(
                Request("POST", seen.url(scheme="https"), b"{}"),
                key="m",
                connections=1,
                seconds=PATIENCE,
                identity=identity(ca),
            )
    assert caught.value.code == "tls"
    assert all(resuming.certificates)


def test_the_name_is_sent_and_an_address_is_not(ca: trustme.CA) -> None:
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    here = Resolver(lambda _host: ((socket.AF_INET, "127.0.0.1"),))
    transport = Transport(guard=OPEN, resolver=here)
    with peer(answers(a_reply()), tls=context) as seen:
        for host in ("localhost", "LOCALHOST", "localhost.", "127.0.0.1"):
            request = Request("GET", seen.url(scheme="https", host=host))
            options: Any = {"connections": 1, "seconds": 10, "identity": identity(ca)}
            assert transport.send(request, key=host, **options).status == 200
    assert names == ["localhost", "localhost", "localhost", None]


@pytest.mark.parametrize("name", ["x" * 64, ".example", "a..b", "\u00df" * 64, "a\0b"])
def test_a_host_with_an_impossible_name_is_refused_before_anything_is_sent(name: str) -> None:
    with pytest.raises(NotSent):
        Transport(guard=OPEN).send(
            Request("GET", f"https://{name}/"), key="m", connections=1, seconds=5
        )


def used_once(transport: Transport, seen: Peer, *keys: str) -> None:
    for key in keys:
        request = Request("POST", seen.url(), b"{}")
        transport.send(request, key=key, connections=2, seconds=PATIENCE)


def test_idle_connections_of_all_merchants_are_bounded_and_the_oldest_is_closed_first() -> None:
    transport, ended = Transport(guard=OPEN, idle=3), queue.Queue[int]()
    numbers = iter(range(99))

    def script(connection: socket.socket) -> None:
        number = next(numbers)
        while read_request(connection):
            connection.sendall(a_reply())
        ended.put(number)

    with peer(script) as seen:
        used_once(transport, seen, "a", "b", "c", "a", "d")
        assert ended.get(timeout=PATIENCE) == 1
        used_once(transport, seen, "e")
        assert transport.connections == (3, 0, 0)
        assert ended.get(timeout=PATIENCE) == 2
        used_once(transport, seen, "a", "d", "e")
        assert seen.connections == 5
    transport.close()
    assert transport.connections == (0, 0, 0)


def test_a_connection_past_its_time_is_closed_though_its_merchant_has_no_other_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport, ended = Transport(guard=OPEN), threading.Semaphore(0)

    def script(connection: socket.socket) -> None:
        while read_request(connection):
            connection.sendall(a_reply())
        ended.release()

    with peer(script) as seen:
        used_once(transport, seen, "a", "b")
        transport.close_expired()
        assert transport.connections == (2, 0, 0)
        later = time.monotonic() + IDLE + 1
        monkeypatch.setattr(
            subject, "time", SimpleNamespace(**vars(time) | {"monotonic": lambda: later})
        )
        transport.close_expired()
        assert transport.connections == (0, 0, 0)
        assert all(ended.acquire(timeout=PATIENCE) for _ in range(2))
        monkeypatch.undo()
        used_once(transport, seen, "a")
        assert seen.connections == 3
    transport.close()
