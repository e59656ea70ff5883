"""Frames come as they were sent, however the network cuts them up."""

from collections.abc import Callable, Iterator
from struct import pack
from typing import Any

import pytest
from amqp.exceptions import RecoverableConnectionError, UnexpectedFrame
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from amqp.transport import TCPTransport
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pos_gateway.broker.frames import Incoming, Outgoing, acknowledgement, delivery
from pos_gateway.broker.kombu_internals import AmqpConnection


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

    def shutdown(self, _how: int) -> None:
        """Not asked for here."""

    def close(self) -> None:
        """Not asked for here."""


def reading(socket: Socket) -> tuple[AmqpConnection, list[Any]]:
    """A connection that has been made, and the frames that it has read."""
    connection, came = AmqpConnection(), []
    transport = TCPTransport("there")
    transport.sock, transport.connected, transport._read_buffer = socket, True, b""
    connection._transport = transport
    connection._incoming = transport._quick_recv = Incoming(socket.recv)
    connection._is_plain = True
    connection.on_inbound_frame = lambda frame: came.append(frame) or True
    return connection, came


SHORT = st.text(max_size=60)


@given(st.tuples(SHORT, st.integers(0, 2**64 - 1), st.booleans(), SHORT, SHORT))
def test_a_delivery_is_read_as_the_library_writes_it(said: tuple[Any, ...]) -> None:
    assert delivery(pack(">HH", 60, 60) + dumps("sLbss", said)) == said


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


def test_frames_of_an_abandoned_connection_are_ignored() -> None:
    connection, came = reading(Socket([sent(1, b"a") + sent(1, b"b")]))
    connection.blocking_read(1)
    connection.collect()
    connection.connect = lambda: pytest.fail("it connects again")
    with pytest.raises(RecoverableConnectionError):
        connection.blocking_read(1)
    assert len(came) == 1


class Calls:
    """What was written, and what is to be called later."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.later: list[Callable[[], None]] = []

    def connection(self) -> tuple[AmqpConnection, Any]:
        """A connection that has been made, on which one acknowledges together, and a channel."""
        connection, _ = reading(Socket([]))
        connection._outgoing = connection._transport._write = Outgoing(self._write)
        connection.later = self.later.append
        connection.frame_writer = frame_writer(connection, connection._transport)
        connection.channels = {}
        channel = AmqpConnection.Channel.__new__(AmqpConnection.Channel)
        channel.connection, channel.channel_id = connection, 7
        return connection, channel

    def _write(self, data: bytes | memoryview) -> None:
        self.written.append(bytes(data))


@given(st.integers(1, 65535), st.integers(1, 2**64 - 1), st.booleans())
def test_an_acknowledgement_is_what_the_library_writes(
    number: int, tag: int, multiple: bool
) -> None:
    calls = Calls()
    connection, channel = calls.connection()
    channel.channel_id, connection.later = number, None
    channel.basic_ack(tag, multiple)
    assert calls.written == [acknowledgement(number, tag, multiple=multiple)]


def test_acknowledgements_that_come_together_are_one_write() -> None:
    calls = Calls()
    _, channel = calls.connection()
    for tag in (1, 2, 3):
        channel.basic_ack(tag)
    assert calls.written == []
    [write] = calls.later
    write()
    assert calls.written == [b"".join(acknowledgement(7, tag, multiple=False) for tag in (1, 2, 3))]
    channel.basic_ack(4)
    assert len(calls.later) == 2  # the next ones are not forgotten


def test_nothing_overtakes_an_acknowledgement() -> None:
    calls = Calls()
    connection, channel = calls.connection()
    channel.basic_ack(1)
    connection.frame_writer(8, 0, None, None, None)  # a heartbeat
    [written] = calls.written
    assert written.startswith(acknowledgement(7, 1, multiple=False))
    assert len(written) > len(acknowledgement(7, 1, multiple=False))
    calls.later[0]()
    assert len(calls.written) == 1


def test_acknowledgements_on_a_connection_that_was_given_up_go_nowhere() -> None:
    calls = Calls()
    connection, channel = calls.connection()
    channel.basic_ack(1)
    connection.collect()
    calls.later[0]()
    assert calls.written == []
    channel.connection = None
    with pytest.raises(RecoverableConnectionError):
        channel.basic_ack(2)


def test_one_who_cannot_write_acknowledgements_says_so_and_gives_the_connection_up() -> None:
    calls = Calls()
    connection, channel = calls.connection()

    def fails(_data: bytes | memoryview) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    connection._outgoing = connection._transport._write = Outgoing(fails)
    channel.basic_ack(1)
    with capture_logs() as said:
        calls.later[0]()
    assert [each["event"] for each in said] == ["acknowledgements.not_written"]
    with pytest.raises(RecoverableConnectionError):
        connection.blocking_read(1)


def test_nothing_is_written_behind_what_may_be_half_a_frame() -> None:
    """A write that takes too long, or whose green thread is killed, may have left half of one."""
    written = []

    def half(data: bytes | memoryview) -> None:
        written.append(bytes(data))
        if len(written) == 2:
            raise TimeoutError("timed out")

    outgoing = Outgoing(half)
    outgoing(b"whole")
    with pytest.raises(TimeoutError):
        outgoing(b"half")
    with pytest.raises(BrokenPipeError):
        outgoing(b"its rest?")
    assert written == [b"whole", b"half"]
