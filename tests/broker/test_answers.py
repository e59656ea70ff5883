"""Frames come as they were sent, however the network cuts them up."""

from collections.abc import Iterator
from struct import pack
from typing import Any

import pytest
from amqp.exceptions import UnexpectedFrame
from amqp.transport import TCPTransport
from hypothesis import given
from hypothesis import strategies as st

from pos_gateway.broker.answers import _Answered, _Frames


def sent(kind: int, payload: bytes, end: int = 0xCE) -> bytes:
    return pack(">BHI", kind, 7, len(payload)) + payload + bytes([end])


class Socket:
    """Has these pieces to receive; None: nothing has come in time."""

    def __init__(self, pieces: list[bytes | None]) -> None:
        self._pieces: Iterator[bytes | None] = iter(pieces)
        self.timeouts_set = 0

    def recv(self, _most: int) -> bytes:
        piece = next(self._pieces, b"")
        if piece is None:
            raise TimeoutError
        return piece

    def gettimeout(self) -> None:
        return None

    def settimeout(self, _seconds: float | None) -> None:
        self.timeouts_set += 1


def reading(socket: Socket) -> tuple[_Answered, list[Any]]:
    """A connection that has been made, and the frames that it has read."""
    connection, came = _Answered(), []
    transport = TCPTransport("there")
    transport.sock, transport.connected, transport._read_buffer = socket, True, b""
    connection._transport = transport
    connection._frames = transport._quick_recv = _Frames(socket.recv)
    connection.on_inbound_frame = lambda frame: came.append(frame) or True
    return connection, came


FRAMES = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=20)), max_size=6)


@given(FRAMES, st.lists(st.tuples(st.integers(1, 30), st.booleans())))
def test_every_frame_comes_once_and_in_its_order(
    frames: list[tuple[int, bytes]], cuts: list[tuple[int, bool]]
) -> None:
    stream = b"".join(sent(*frame) for frame in frames)
    pieces: list[bytes | None] = []
    for size, is_late in cuts:
        pieces += [None] * is_late + [stream[:size]] * bool(stream)
        stream = stream[size:]
    connection, came = reading(Socket([*pieces, *([stream] if stream else [])]))
    while True:
        try:
            connection.blocking_read(1)
        except TimeoutError:
            continue
        except OSError:
            break  # there is no more
    assert came == [(kind, 7, payload) for kind, payload in frames]


def test_what_has_come_already_is_read_without_the_socket() -> None:
    socket = Socket([sent(1, b"a") + sent(2, b"") + sent(3, b"ccc"), None])
    connection, came = reading(socket)
    connection.blocking_read(1)
    before = socket.timeouts_set
    connection.blocking_read(1)
    connection.blocking_read(1)
    assert [payload for _, _, payload in came] == [b"a", b"", b"ccc"]
    assert socket.timeouts_set == before


def test_what_does_not_end_as_a_frame_is_the_librarys_to_refuse() -> None:
    connection, came = reading(Socket([sent(1, b"a") + sent(1, b"b", end=0xCD)]))
    connection.blocking_read(1)
    with pytest.raises(UnexpectedFrame):
        connection.blocking_read(1)
    assert len(came) == 1
