"""What the gateway uses of py-amqp beyond its documentation."""

import inspect
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from struct import pack
from typing import Any

import amqp
import pytest
from amqp import serialization, spec
from amqp.exceptions import RecoverableConnectionError
from amqp.method_framing import frame_handler, frame_writer
from amqp.serialization import dumps
from amqp.transport import SSLTransport, TCPTransport

from pos_gateway.broker import amqp_internals as subject
from pos_gateway.broker.amqp_internals import BufferedChannel, BufferedConnection
from pos_gateway.broker.frames import Incoming, Outgoing, content
from pos_gateway.broker.message import Message
from testkit.patience import PATIENCE

#: What is overridden, with the parameters that the library calls it with.
OVERRIDDEN: dict[type, dict[str, list[str]]] = {
    amqp.Channel: {
        "basic_ack": ["delivery_tag", "multiple", "argsig"],
    },
    amqp.Connection: {
        "connect": ["callback"],
        "collect": [],
        "blocking_read": ["timeout"],
        "drain_events": ["timeout"],
    },
}
#: What is called, likewise.
CALLED: dict[Any, dict[str, list[str]]] = {
    amqp.Connection: {
        "on_inbound_method": ["channel_id", "method_sig", "payload", "content"],
        "send_method": ["sig", "format", "args", "content", "wait", "callback", "returns_tuple"],
    },
    amqp.Channel: {
        "_on_basic_deliver": [
            *("consumer_tag", "delivery_tag", "redelivered", "exchange", "routing_key", "msg")
        ],
    },
    TCPTransport: {"read_frame": ["unpack"], "write": ["s"], "having_timeout": ["timeout"]},
    SSLTransport: {"_write": ["s"]},
    serialization: {"dumps": ["format", "values"]},
}


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (owner, name, parameters)
        for each in (OVERRIDDEN, CALLED)
        for owner, names in each.items()
        for name, parameters in names.items()
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_library_has_it_with_these_parameters(
    owner: Any, name: str, parameters: list[str]
) -> None:
    found = inspect.signature(getattr(owner, name)).parameters
    assert [each for each in found if each != "self"] == parameters


class Peer:
    """The other end of a connection that has been made."""

    def __init__(self, connection_class: type[BufferedConnection]) -> None:
        ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(PATIENCE)
        self.connection = connection_class()
        transport = TCPTransport("there")
        transport.sock, transport.connected, transport._read_buffer = ours, True, b""
        transport._setup_transport()
        self.connection._transport = transport
        self.connection.frame_writer = frame_writer(self.connection, transport)
        self.frames: list[Any] = []
        self.connection.on_inbound_frame = lambda frame: self.frames.append(frame) or True

    def read(self) -> bytes:
        return self.theirs.recv(65536)


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer(BufferedConnection)
    yield peer
    peer.connection.collect()
    peer.theirs.close()


def frame(payload: bytes, kind: int = 1) -> bytes:
    return pack(">BHI", kind, 7, len(payload)) + payload + b"\xce"


def connected(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> BufferedConnection:
    """The connection after ``connect``, of which the library's part is done."""
    monkeypatch.setattr(amqp.Connection, "connect", lambda _self, _callback=None: None)
    peer.connection.connect()
    return peer.connection


def test_a_transport_reads_and_writes_with_what_is_replaced(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connected(peer, monkeypatch)
    transport = connection.transport
    assert isinstance(transport._quick_recv, Incoming)
    assert isinstance(transport._write, Outgoing)
    peer.theirs.sendall(frame(b"a") + frame(b"b"))
    assert transport.read_frame() == (1, 7, b"a")  # the library's own
    assert connection._incoming is not None
    assert connection._incoming.frame() == (1, 7, b"b")
    connection.write_later(b"1")
    transport.write(b"2")
    assert peer.read() == b"12"


def test_a_tls_transport_has_both_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ``_write`` stays: it does what TLS needs."""
    transport = SSLTransport("there")
    transport.sock = type("Socket", (), {"read": lambda *_: b"", "write": lambda _, s: len(s)})()
    transport._quick_recv = transport.sock.read
    connection = BufferedConnection()
    connection._transport = transport
    monkeypatch.setattr(amqp.Connection, "connect", lambda _self, _callback=None: None)
    connection.connect()
    assert isinstance(transport._quick_recv, Incoming)
    transport.write(b"x")


def test_a_connection_that_was_lost_does_not_connect_again(peer: Peer) -> None:
    """The library's ``transport`` would."""
    peer.connection.collect()
    peer.connection.connect = lambda: pytest.fail("it connects again")
    with pytest.raises(RecoverableConnectionError):
        peer.connection.blocking_read(1)


def test_what_was_sent_counts_for_the_heartbeats(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connected(peer, monkeypatch)
    connection.heartbeat = 1
    connection.heartbeat_tick()
    connection.last_heartbeat_sent = 0.0
    connection.write_later(frame(b"ack"))
    sent: list[None] = []
    connection.send_heartbeat = lambda: sent.append(None)
    connection.heartbeat_tick()
    assert not sent


def a_channel(connection: Any) -> BufferedChannel:
    channel = BufferedChannel.__new__(BufferedChannel)
    channel.connection, channel.channel_id, channel.is_closing = connection, 7, False
    return channel


#: Properties of a message, and its body, which stays as it is, whatever encoding it claims.
MESSAGES: list[tuple[dict[str, Any], bytes]] = [
    ({"content_type": "application/json", "content_encoding": "utf-8"}, b"\xff"),
    ({}, b""),
    ({"application_headers": {"task": "t", "x-attempts": 2, "x-resolve": False}}, b"12"),
    ({"application_headers": {"x-death": [{"count": 1}]}, "priority": 3, "type": "t"}, b"1"),
]


def deliveries() -> bytes:
    """Messages of MESSAGES, one as ``frames.content`` writes it, and between two of them another method."""
    stream = b""
    for tag, (properties, body) in enumerate(MESSAGES):
        said = amqp.Message(body, **properties)._serialize_properties()
        head = pack(">HHQ", 60, 0, len(body)) + said
        stream += delivered(tag) + frame(head, 2) + (frame(body, 3) if body else b"")
        stream += frame(pack(">HH", 60, 80) + dumps("Lb", (tag, False)))
    headers = {"task": "t", "id": "\N{SLICE OF PIZZA}"}
    stream += delivered(9) + content(7, "o1", headers, b"{}", 5, 131_072)
    return stream + delivered(10) + content(7, "o2", headers, b"in more frames", 5, 16)


def delivered(tag: int) -> bytes:
    said = ("me", tag, tag % 2 == 1, "orders", "orders.canary")
    return frame(pack(">HH", 60, 60) + dumps("sLbss", said))


def reached(kinds: tuple[Any, Any], pieces: list[bytes]) -> list[Any]:
    """What reaches a consumer and the channel's other listener, by these classes."""
    connection = kinds[0]()
    ours, theirs = socket.socketpair()
    transport = TCPTransport("there")
    transport.sock, transport.connected, transport._read_buffer = ours, True, b""
    transport._setup_transport()
    connection._transport, connection.channels = transport, {}
    channel = kinds[1](connection, channel_id=7)
    connection.on_inbound_frame = frame_handler(connection, connection.on_inbound_method)
    if kinds[0] is BufferedConnection:
        connection._incoming = transport._quick_recv = Incoming(transport._quick_recv)
        connection._is_plain = True
    came: list[Any] = []
    channel.callbacks["me"] = lambda message: came.append(
        (message.delivery_info, message.properties, message.body)
    )
    channel._callbacks = {**channel._callbacks, spec.Basic.Ack: lambda *said: came.append(said)}
    with ours, theirs:
        for piece in pieces:
            theirs.sendall(piece)
            with suppress(TimeoutError):
                while True:
                    connection.drain_events(timeout=0.001)
    return came


@pytest.mark.parametrize("size", [None, 1, 7, 8, 60, 100, 150, 333])
def test_a_delivery_reaches_its_consumer_as_from_the_library(size: int | None) -> None:
    """However the network cuts it up."""
    stream = deliveries()
    step = size or len(stream)
    pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
    if size == 1:  # not all of it, one by one
        pieces = [*pieces[:200], b"".join(pieces[200:])]
    theirs = reached((amqp.Connection, _Undecoded), [stream])
    ours = reached((BufferedConnection, BufferedChannel), pieces)
    assert ours == theirs
    assert len(ours) == 2 * len(MESSAGES) + 2
    assert ours[0][2] == b"\xff"


class _Undecoded(amqp.Channel):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, auto_decode=False, **options)


@pytest.mark.parametrize("timeout", [0, 0.001])
def test_what_does_not_come_in_time_ends_no_connection(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, timeout: float
) -> None:
    """Celery's own loop waits elsewhere, and reads with no time at all."""
    connection = connected(peer, monkeypatch)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout)
    assert connection.transport.connected
    assert connection.transport.sock.gettimeout() is None
    peer.theirs.sendall(frame(b"a"))
    connection.drain_events(timeout)
    peer.theirs.close()
    with pytest.raises(OSError, match="closed"):
        connection.drain_events(timeout)
    assert not connection.transport.connected


def test_a_connection_waits_only_between_frames(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception thrown into the wait then loses nothing."""
    connection = connected(peer, monkeypatch)
    assert connection._incoming is not None
    pieces, waited = [frame(b"a")[:5], frame(b"a")[5:]], list[bool]()

    def recv(_most: int) -> bytes:
        waited.append(connection.waits)
        return pieces.pop(0)

    connection._incoming._recv = recv  # type: ignore[method-assign]
    connection.on_inbound_frame = lambda _frame: waited.append(connection.waits) or True
    connection.drain_events()
    assert waited == [True, False, False]


def test_a_delivery_on_a_closing_channel_is_ignored_as_by_the_library() -> None:
    channel = BufferedChannel(_Connecting(), channel_id=7)
    channel.callbacks["me"] = lambda _message: pytest.fail("it came")
    channel.is_closing = True
    channel.take(delivered(1)[7:-1], pack(">HHQH", 60, 0, 1, 0), b"1")


class _Connecting:
    """A connection, as far as a channel's constructor asks."""

    def __init__(self) -> None:
        self.channels: dict[int, Any] = {}
        self.confirm_publish = False

    def _claim_channel_id(self, _number: int) -> None:
        """Any will do."""


def test_bodies_are_decoded_unless_a_channel_says_otherwise() -> None:
    assert inspect.signature(amqp.Channel).parameters["auto_decode"].default is True
    assert BufferedChannel(_Connecting(), channel_id=7).auto_decode is False


@pytest.mark.parametrize("multiple", [False, True])
def test_an_acknowledgement_is_written_as_by_the_library(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, multiple: bool
) -> None:
    connection = connected(peer, monkeypatch)
    channel = a_channel(connection)
    channel.basic_ack(5, multiple)
    theirs = peer.read()
    later: list[Callable[[], None]] = []
    connection.later = later.append
    channel.basic_ack(5, multiple)
    [write] = later
    write()
    assert peer.read() == theirs


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"headers": {}},
        {"headers": {"task": "ü", "id": "", "lang": "py", "x-reason": "r" * 300}},
        {"headers": {"task": "t", "x-attempts": 3, "x-resolve": True}},
        {"headers": {b"\xff": "a foreign message's name"}},
        {"headers": {"n" * 250: "", "ü" * 100: ""}},
        {"message_id": ""},
        {"message_id": "m" * 128},
        {"body": b""},
        {"body": b"b" * 999},
        {"body": b"b" * 1000},
        {"body": b"b" * 2001},
        {"delay": 5},
    ],
    ids=str,
)
def test_a_message_is_written_as_by_the_library(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    """Every byte, also of more than a frame."""
    connection = connected(peer, monkeypatch)
    connection.client_properties, connection.frame_max = {}, 1008
    channel = a_channel(connection)
    message = replace(Message("orders", "key", b"{}", "m", headers={"id": "m"}), **changed)
    theirs = amqp.Message(
        message.body,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=2,
        message_id=message.message_id,
        timestamp=1_800_000_000,
        application_headers=dict(message.headers),
    )
    amqp.Channel.basic_publish(channel, theirs, *message.route(), mandatory=True)
    connection.transport.write(b"|")
    written, sent = peer.read().partition(b"|")[0], connection.bytes_sent
    for many in (1, 3):
        subject.write_messages(connection, 7, [message] * many, 1_800_000_000)
        assert peer.read() == written * many
    assert connection.bytes_sent == 5 * sent, "for the heartbeats"


def test_many_messages_are_written_in_few_pieces(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, also beside messages that the library writes."""
    connection = connected(peer, monkeypatch)
    connection.client_properties, connection.frame_max = {}, 131_072
    written: list[bytes] = []
    connection.transport._write = lambda data: written.append(bytes(data))
    plain = Message("orders", "key", bytes(1000), "m")
    messages = [replace(plain, message_id=f"<{number}>") for number in range(250)]
    messages[100] = replace(messages[100], headers={"x-attempts": 3})
    subject.write_messages(connection, 7, messages, 1)
    assert 1 < len(written) < 8
    assert max(map(len, written)) < 1.1 * subject.MAX_BUFFERED
    ids = re.findall(rb"<\d+>", b"".join(written))
    assert ids == [f"<{number}>".encode() for number in range(250)]


def test_nothing_is_written_on_a_connection_that_was_lost(peer: Peer) -> None:
    peer.connection.collect()
    with pytest.raises(RecoverableConnectionError):
        subject.write_messages(peer.connection, 7, [Message("orders", "key", b"{}", "m")], 1)


def test_a_frame_is_read_and_handled(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connected(peer, monkeypatch)
    peer.theirs.sendall(frame(b"a"))
    subject.handle_frame(connection, connection.transport)
    assert peer.frames == [(1, 7, b"a")]


def test_goodbye_is_what_the_library_says_on_closing(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connected(peer, monkeypatch)
    connection.channel_id = 0
    subject.say_goodbye(connection)
    ours = peer.read()
    monkeypatch.setattr(connection, "wait", lambda *_arguments, **_options: None)
    connection.close(200, "goodbye")
    assert peer.read() == ours


def test_properties_are_read_with_what_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = serialization.PROPERTY_CLASSES[spec.Basic.CLASS_ID]
    monkeypatch.setitem(serialization.PROPERTY_CLASSES, spec.Basic.CLASS_ID, theirs)
    message = amqp.Message(b"", message_id="m", application_headers={"a": 1})
    written = message._serialize_properties()
    seen = []

    def wrap(read: Callable[..., Any]) -> Callable[..., Any]:
        def reader(buffer: bytes, offset: int) -> Any:
            seen.append(read(buffer, offset))
            return {"message_id": "other"}, len(buffer)

        return reader

    subject.read_properties_with(wrap)
    arrived = amqp.Message()
    arrived.inbound_header(pack(">HHQ", spec.Basic.CLASS_ID, 0, 0) + written, 0)
    assert arrived.properties == {"message_id": "other"}
    [(properties, _)] = seen
    assert properties == {"message_id": "m", "application_headers": {"a": 1}}


def test_frames_of_another_channel_are_no_part_of_a_delivery() -> None:
    other = [each.replace(b"\0\7", b"\0\x08", 1) for each in (b"\2\0\7", b"\3\0\7")]
    header, body = (
        kind + pack(">I", len(payload)) + payload + b"\xce"
        for kind, payload in zip(other, (pack(">HHQH", 60, 0, 2, 0), b"{}"), strict=True)
    )
    method = delivered(1)
    incoming = Incoming(lambda _: method + header + body)
    incoming.fill()
    assert incoming.message() is None
    assert [incoming.frame()[:2] for _ in range(3)] == [(1, 7), (2, 8), (3, 8)]  # type: ignore[index]
