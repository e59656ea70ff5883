"""Waiting for a socket on gevent's loop, which may come late."""

import socket
import time
from collections.abc import Iterator

import gevent
import pytest

from pos_gateway.transport import connection as subject
from pos_gateway.transport.connection import READ, SocketWait

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def hold_the_loop_up(until: float) -> None:
    while time.monotonic() <= until:
        pass


@pytest.mark.parametrize("comes", [True, False])
def test_an_answer_that_came_while_the_loop_was_late_is_in_time(
    monkeypatch: pytest.MonkeyPatch, pair: Pair, comes: bool
) -> None:
    monkeypatch.setattr(subject, "green", lambda: True)
    here, there = pair
    wait, until = SocketWait(there.fileno()), time.monotonic() + 0.05

    def be_late() -> None:
        if comes:
            here.send(b"x")
        hold_the_loop_up(until)

    gevent.spawn(be_late)
    assert wait(READ, until) is comes
    wait.close()
