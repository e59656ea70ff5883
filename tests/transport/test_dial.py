"""Connecting: one budget for all of a name's addresses, and errors of this machine."""

import errno
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.transport import dial
from pos_gateway.transport.dial import Dialer
from pos_gateway.transport.errors import NotSent
from pos_gateway.transport.guard import Guard
from pos_gateway.transport.resolver import Resolver

FILES = Path("/proc/self/fd")

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
            until = time.monotonic() + 0.6
            connected = dialer(HOLES[0], "127.0.0.1").dial(
                "pos.example", port, plain=True, until=until
            )
            assert connected.getpeername() == ("127.0.0.1", port)
            connected.close()


def test_all_addresses_together_have_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    given: list[float] = []

    def times_out(_family: Any, _address: Any, until: float) -> Any:
        nonlocal now
        given.append(until - now)
        now = until
        raise TimeoutError

    monkeypatch.setattr(dial, "_connected", times_out)
    monkeypatch.setattr(dial.time, "monotonic", lambda: now)
    with pytest.raises(NotSent):
        dialer(*HOLES).dial("pos.example", 443, plain=False, until=103.0)
    assert given == pytest.approx([1.0, 1.0, 1.0])
    with pytest.raises(NotSent):
        dialer(*HOLES).dial("pos.example", 443, plain=False, until=1000.0)
    assert sum(given) == pytest.approx(3.0 + dial.CONNECT_BUDGET)


def test_a_local_resource_error_does_not_count_against_the_merchant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacks(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(dial, "_connected", lacks)
    with pytest.raises(NotSent) as caught:
        dialer("127.0.0.1").dial("pos.example", 443, plain=False, until=time.monotonic() + 3.0)
    assert caught.value.code == "local"


def test_a_refusal_is_of_its_own_class_and_leaves_nothing_open() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as gone:
        port = gone.getsockname()[1]
    before = {*FILES.iterdir()}
    with pytest.raises(NotSent, match="refused"):
        dialer("127.0.0.1").dial("pos.example", port, plain=True, until=time.monotonic() + 3.0)
    assert {*FILES.iterdir()} <= before
