"""A connection: what it sends and receives until when, and whether it may be reused."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import trustme

from pos_gateway.transport import connection as subject
from pos_gateway.transport.connection import LONGEST_LIFE, Connection, TLSConnection
from pos_gateway.transport.deadline import TimeIsUp
from testkit.patience import PATIENCE

Pair = tuple[Connection, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = Connection(ours)
    connection.until = time.monotonic() + 30
    yield connection, theirs
    connection.close()
    theirs.close()


def test_what_is_sent_arrives_and_the_end_is_nothing(pair: Pair) -> None:
    connection, theirs = pair
    connection.send(b"abc")
    assert theirs.recv(9) == b"abc"
    theirs.sendall(b"def")
    assert connection.receive() == b"def"
    theirs.close()
    assert connection.receive() == b""


def test_more_than_the_buffer_takes_is_sent_as_it_is_read(pair: Pair) -> None:
    connection, theirs = pair
    data = bytes(range(256)) * 20_000
    received = bytearray()

    def read() -> None:
        while len(received) < len(data):
            received.extend(theirs.recv(65536))

    reader = threading.Thread(target=read)
    reader.start()
    connection.send(data)
    reader.join(PATIENCE)
    assert received == data


def test_its_time_ends_a_wait_to_receive_and_one_to_send(pair: Pair) -> None:
    connection, _ = pair
    connection.until = time.monotonic() + 0.05
    with pytest.raises(TimeIsUp):
        connection.receive()
    with pytest.raises(TimeIsUp):  # at once
        connection.receive()
    with pytest.raises(TimeIsUp):
        connection.send(b"x" * 10_000_000)


def test_an_idle_connection_is_given_up_before_its_peer_closes_it(
    monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    now = 100.0
    monkeypatch.setattr(subject.time, "monotonic", lambda: now)
    connection, _ = pair
    assert not connection.is_reusable()  # it was never idle
    connection.mark_idle(29.0)
    now += 29
    assert connection.is_reusable()
    now += 0.1
    assert not connection.is_reusable()


def test_a_busy_connection_is_replaced_in_time(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    """Its host's name may have other addresses by now."""
    now = time.monotonic()
    began = now
    monkeypatch.setattr(subject.time, "monotonic", lambda: now)
    connection, _ = pair
    connection.mark_idle(60.0)
    while connection.is_reusable():
        now += 1
        connection.mark_idle(60.0)
    assert LONGEST_LIFE - 1 <= now - began <= LONGEST_LIFE + 1


@pytest.mark.parametrize("what", ["bytes", "end", "reset"])
def test_an_idle_connection_to_which_anything_came_is_not_reused(pair: Pair, what: str) -> None:
    connection, theirs = pair
    connection.mark_idle(30.0)
    assert connection.is_reusable()
    if what == "bytes":
        theirs.send(b"H")
    elif what == "end":
        theirs.shutdown(socket.SHUT_WR)
    else:
        theirs.close()
    assert not connection.is_reusable()


class TLSPeer:
    """The server's side of a TLS connection, in a thread."""

    def __init__(self, version: ssl.TLSVersion) -> None:
        ca = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = version
        ca.issue_cert("pos.example").configure_cert(context)
        self.context = ssl.create_default_context()
        ca.configure_trust(self.context)
        self.sock, theirs = socket.socketpair()
        self.sock.setblocking(False)
        self._made: list[Any] = []

        def shake_hands() -> None:
            with suppress(OSError):
                self._made.append(context.wrap_socket(theirs, server_side=True))

        self._thread = threading.Thread(target=shake_hands)
        self._thread.start()

    def connected(self, name: str = "pos.example") -> TLSConnection:
        connection = TLSConnection(self.sock, self.context, name, None)
        connection.until = time.monotonic() + 30
        connection.handshake()
        return connection

    @property
    def theirs(self) -> ssl.SSLSocket:
        self._thread.join(PATIENCE)
        side: ssl.SSLSocket = self._made[0]
        return side


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", VERSIONS)
def test_tls_carries_what_is_sent_and_its_end(version: ssl.TLSVersion) -> None:
    peer = TLSPeer(version)
    connection = peer.connected()
    connection.send(b"abc" * 10_000)
    received = b""
    while len(received) < 30_000:
        received += peer.theirs.recv(65536)
    peer.theirs.sendall(b"x" * 20_000)  # two records
    assert connection.receive() + connection.receive() == b"x" * 20_000
    with suppress(OSError):
        peer.theirs.settimeout(0.2)
        peer.theirs.unwrap()
    assert connection.receive() == b""
    connection.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_end_of_a_tls_connection_without_notice_is_an_error(version: ssl.TLSVersion) -> None:
    peer = TLSPeer(version)
    connection = peer.connected()
    peer.theirs.sendall(b"{")
    peer.theirs.close()
    assert connection.receive() == b"{"
    with pytest.raises(ssl.SSLEOFError):
        connection.receive()
    connection.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_an_idle_tls_connection_is_reused_also_after_its_session_tickets(
    version: ssl.TLSVersion,
) -> None:
    """With TLS 1.3 they come after the handshake, unread."""
    peer = TLSPeer(version)
    connection = peer.connected()
    assert peer.theirs.version() == version.name.replace("_", ".")
    connection.mark_idle(30.0)
    assert connection.is_reusable()
    assert connection.is_reusable()
    peer.theirs.sendall(b"H")
    assert not connection.is_reusable()
    connection.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_an_idle_tls_connection_is_not_reused_after_two_replies_at_once(
    version: ssl.TLSVersion,
) -> None:
    """The second record was received with the first, so the socket has nothing to read."""
    peer = TLSPeer(version)
    connection = peer.connected()
    peer.theirs.sendall(b"reply")
    peer.theirs.sendall(b"surplus")
    assert connection.receive() == b"reply"
    connection.mark_idle(30.0)
    assert not connection.is_reusable()
    connection.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_an_idle_tls_connection_that_its_peer_closed_is_not_reused(version: ssl.TLSVersion) -> None:
    for with_notice in (True, False):
        peer = TLSPeer(version)
        connection = peer.connected()
        connection.mark_idle(30.0)
        peer.theirs.settimeout(0.2)
        with suppress(OSError):
            if with_notice:
                peer.theirs.unwrap()
        peer.theirs.close()
        assert not connection.is_reusable()
        connection.close()


def test_a_certificate_of_another_name_is_refused_and_the_peer_hears_why() -> None:
    peer = TLSPeer(ssl.TLSVersion.TLSv1_3)
    with pytest.raises(ssl.SSLCertVerificationError):
        peer.connected("other.example")
    with pytest.raises(IndexError):
        _ = peer.theirs
