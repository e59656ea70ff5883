"""Buffered reads, complete writes: no byte is lost or doubled, however the socket splits them."""

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pos_gateway.broker.frames import Incoming, send_all
from testkit.patience import PATIENCE


@given(st.lists(st.binary(min_size=1, max_size=50)), st.lists(st.integers(1, 20), min_size=1))
def test_reads_return_the_bytes_that_arrived(pieces: list[bytes], sizes: list[int]) -> None:
    coming = iter(pieces)
    read = Incoming(lambda _most: next(coming, b""))
    got = b""
    turn = 0
    while piece := read(sizes[turn % len(sizes)]):
        assert len(piece) <= sizes[turn % len(sizes)]
        got += piece
        turn += 1
    assert got == b"".join(pieces)


def test_a_read_that_times_out_loses_nothing() -> None:
    def coming() -> Iterator[bytes]:
        yield b"abc"
        yield b""

    replies = coming()
    late = iter([False, True, False])

    def recv(_most: int) -> bytes:
        if next(late):
            raise TimeoutError
        return next(replies)

    read = Incoming(recv)
    assert read(2) == b"ab"
    assert read(2) == b"c"
    with pytest.raises(TimeoutError):
        read(2)
    assert read(2) == b""


def test_the_socket_is_not_read_while_the_buffer_has_bytes() -> None:
    asked: list[int] = []

    def recv(most: int) -> bytes:
        asked.append(most)
        return b"x" * 10

    read = Incoming(recv)
    assert [len(read(n)) for n in (7, 3, 100_000)] == [7, 3, 10]
    assert asked == [65536, 100_000]


def test_a_partial_write_is_continued() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        ours.settimeout(PATIENCE)
        data = bytes(range(256)) * 1024
        received = bytearray()

        class Slow:
            """The peer reads the buffered bytes whenever the rest is written."""

            def send(self, piece: bytes) -> int:
                return ours.send(piece)

            def sendall(self, rest: memoryview) -> None:
                while rest:
                    received.extend(theirs.recv(65536))
                    rest = rest[ours.send(rest) :]

        send_all(Slow(), data)
        ours.shutdown(socket.SHUT_WR)
        while more := theirs.recv(65536):
            received.extend(more)
        assert bytes(received) == data
