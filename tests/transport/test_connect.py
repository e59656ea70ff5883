"""Connecting: one budget for all of a name's addresses, and the reuse of idle connections."""

import errno
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from pos_gateway.transport import connect
from pos_gateway.transport.connect import IDLE, LONGEST_IDLE, Dialer, TrackedHTTPConnection
from pos_gateway.transport.errors import NotSent
from pos_gateway.transport.guard import Guard
from pos_gateway.transport.resolver import Resolver

HOLES = [f"127.0.1.{n}" for n in range(1, 4)]


def dialer(*addresses: str) -> Dialer:
    found = tuple((socket.AF_INET, address) for address in addresses)
    return Dialer(Guard(allow_all=True), Resolver(lambda _host: found))


@contextmanager
def black_holes(port: int) -> Iterator[None]:
    """Listeners whose queues are full: they drop every further handshake."""
    sockets = []
    for address in HOLES:
        hole = socket.socket()
        hole.bind((address, port))
        hole.listen(0)
        sockets.append(hole)
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex((address, port))
            sockets.append(filler)
    yield
    for each in sockets:
        each.close()


def test_a_dead_address_leaves_time_for_the_next_one() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as live:
        port = live.getsockname()[1]
        with black_holes(port):
            dial = dialer(HOLES[0], "127.0.0.1").dial
            connection = dial("pos.example", port, plain=True, timeout=0.6)
            assert connection.getpeername() == ("127.0.0.1", port)
            connection.close()


def test_all_addresses_together_have_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def times_out(_family: Any, _address: Any, timeout: float) -> socket.socket:
        given.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(connect, "_connect", times_out)
    monkeypatch.setattr(connect.time, "monotonic", lambda: 100.0 + sum(given))
    with pytest.raises(NotSent):
        dialer(*HOLES).dial("pos.example", 443, plain=False, timeout=3.0)
    assert sum(given) == pytest.approx(3.0)
    assert len(given) == 3


def test_a_local_resource_error_does_not_count_against_the_merchant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacks(*_: Any) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(connect, "_connect", lacks)
    with pytest.raises(NotSent) as caught:
        dialer("127.0.0.1").dial("pos.example", 443, plain=False, timeout=3.0)
    assert caught.value.code == "local"


@pytest.mark.parametrize(
    ("kept", "seconds"), [(None, IDLE), (30.0, 29.0), (3600.0, LONGEST_IDLE - 1), (1.0, 0.0)]
)
def test_an_idle_connection_is_closed_before_its_peer_closes_it(
    monkeypatch: pytest.MonkeyPatch, kept: float | None, seconds: float
) -> None:
    now = 100.0
    monkeypatch.setattr(connect.time, "monotonic", lambda: now)
    ours, theirs = socket.socketpair()
    connection = TrackedHTTPConnection("pos.example", dial=dialer().dial)
    connection.sock = ours
    assert not connection.is_connected  # it was never idle
    connection.rest(kept)
    now += seconds
    assert connection.is_connected
    now += 0.1
    assert not connection.is_connected
    connection.close()
    theirs.close()


def test_an_idle_connection_with_unread_bytes_is_not_reused() -> None:
    ours, theirs = socket.socketpair()
    connection = TrackedHTTPConnection("pos.example", dial=dialer().dial)
    connection.sock = ours
    connection.rest(None)
    assert connection.is_connected
    theirs.send(b"H")
    assert not connection.is_connected
    connection.close()
    theirs.close()
