"""What the gateway uses of py-amqp beyond its documentation; used nowhere else.

- ``transport._quick_recv``, ``_read_buffer``, ``connected``, ``transport._write``: every read and write of a frame. Buffers replace
  these methods: the library reads a frame in three system calls, and a message has three frames.
- ``Connection.channels``, ``bytes_recv``, ``Channel._on_basic_deliver``, ``is_closing``: a delivery is parsed as
  a whole. Receiving a message takes 10 us of CPU instead of 29, with the buffers.
- ``Channel.basic_ack``, ``Connection.bytes_sent``: acknowledgements are written together, 1 us each
  instead of 7, and count for the heartbeats.
- ``Channel.auto_decode``: bodies stay bytes, as a backend wrote them (promise 1).
- ``Connection._transport``, ``blocking_read``, ``drain_events``, ``collect``: a lost connection must not
  reconnect silently during a read (promise 1); a request without a reply ends the connection (promise 5).
- ``Connection.frame_writer``, ``frame_max``, ``serialization.dumps``: publishing without reading from the
  socket first, which the reader thread reads, with frames of our own: 5 us a message instead of 46.
- ``Connection.on_inbound_frame``, ``transport.read_frame``: the reader thread, without two changes of
  the socket's time limit a frame.
- ``Connection.send_method``: closing without awaiting the reply; the reader gets the reply.
- ``transport.to_host_port``: how the library reads ``host``: the name for the broker's certificate.
- ``serialization.PROPERTY_CLASSES``: a message with unreadable properties is dead-lettered; the library
  would raise, and stop the next worker, too (promise 5).
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import amqp
import structlog
from amqp import serialization, spec
from amqp.exceptions import RecoverableConnectionError
from amqp.serialization import dumps
from amqp.transport import TCPTransport, to_host_port

from pos_gateway.broker.frames import (
    PROPERTIES_AT,
    Incoming,
    Outgoing,
    acknowledgement,
    content,
    delivery,
    method,
    send_all,
)
from pos_gateway.broker.frames import properties as properties_in
from pos_gateway.broker.message import Message
from pos_gateway.broker.session import ANSWER

log = structlog.get_logger(__name__)

#: The type of a method frame.
_METHOD = 1
#: Bytes of frames per write.
MAX_BUFFERED = 128 * 1024
#: The AMQP class id of message contents.
_BASIC = 60


class BufferedChannel(amqp.Channel):
    """Keeps bodies as bytes, parses deliveries and builds acknowledgements quickly."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, auto_decode=False, **options)

    def take(self, method: bytes, header: bytes, body: bytes) -> None:
        """Hand over a delivery with complete frames."""
        if self.is_closing:
            return  # as in the library: the broker requeues the delivery
        properties = properties_in(header)
        if properties is None:
            properties, _ = serialization.PROPERTY_CLASSES[_BASIC](header, PROPERTIES_AT)
        self._on_basic_deliver(*delivery(method), amqp.Message(body, **properties))

    def basic_ack(self, delivery_tag: int, multiple: bool = False, argsig: str = "Lb") -> Any:
        """Acknowledge; the frame may be written later (``BufferedConnection.later``)."""
        if self.connection is None:
            raise RecoverableConnectionError("connection already closed")
        if self.connection.later is None:
            return super().basic_ack(delivery_tag, multiple, argsig)
        return self.connection.write_later(
            acknowledgement(self.channel_id, delivery_tag, multiple=multiple)
        )


class BufferedConnection(amqp.Connection):
    """Buffers reads and writes, to save system calls, and never reconnects silently."""

    #: Read and write buffers; None until connected.
    _incoming: Incoming | None = None
    _outgoing: Outgoing | None = None
    #: Without TLS.
    _is_plain = False
    #: Whether the reader waits for bytes, without a part of a frame; never known with TLS.
    waits = False
    #: Calls its argument after a turn of the green threads; None: every write is immediate.
    later: Callable[[Callable[[], None]], object] | None = None

    def __init__(
        self, host: str = "localhost:5672", *args: Any, ssl: Any = False, **others: Any
    ) -> None:
        # An amqps URL comes as True: the library would then check that any authority vouches for the broker's
        # certificate, and not that the certificate is this host's.
        tls = {"server_hostname": to_host_port(host)[0]} if ssl is True else ssl
        super().__init__(host, *args, ssl=tls, **others)

    def connect(self, callback: Any = None) -> Any:
        """Connect, and buffer reads and writes from then on."""
        result = super().connect(callback)
        transport = self.transport
        if not isinstance(transport._quick_recv, Incoming):
            self._incoming = transport._quick_recv = Incoming(transport._quick_recv)
            self._is_plain = isinstance(transport, TCPTransport)
            write = partial(send_all, transport.sock) if self._is_plain else transport._write
            self._outgoing = transport._write = Outgoing(write)
        return result

    def collect(self) -> None:
        """Drop the connection; unread frames are discarded."""
        self._incoming = self._outgoing = None
        super().collect()

    def write_later(self, frame: bytes) -> None:
        """Write a frame with the next ones, or when ``later`` says."""
        self.bytes_sent += 1  # the library's heartbeats check whether anything was sent
        if self._outgoing is not None:
            self._outgoing.kept.append(frame)
            if len(self._outgoing.kept) == 1 and self.later is not None:
                self.later(self._write_kept)

    def _write_kept(self) -> None:
        try:
            if self._transport is not None:
                self._transport.write(b"")
        except OSError as error:
            log.warning("acknowledgements.not_written", error=str(error))
            with suppress(Exception):  # the reader may be closing, too (``Link.fail``)
                self.collect()  # the reader fails, and the broker requeues

    def blocking_read(self, timeout: float | None = None) -> Any:
        """Read a frame, or a whole delivery. Buffered frames need no time limit set on the socket.

        Without a time limit the caller awaits the reply to a request. The library would wait for ever.
        """
        if timeout is None:
            return self._read_answer()
        transport, incoming = self._transport, self._incoming
        if transport is None:  # the library would reconnect silently
            raise RecoverableConnectionError("connection already closed")
        if incoming is not None:
            message = incoming.message()
            # At the time limit, the library keeps the part of a frame read so far.
            is_waited_for = message is None and self._is_plain and incoming.is_empty
            if is_waited_for and not transport._read_buffer:
                self._read_ahead(transport, incoming, timeout)
                message = incoming.message()
            if message is not None:
                self.bytes_recv += 1  # as in the library, for the heartbeats
                channel, *frames = message
                self.channels[channel].take(*frames)
                return True
            frame = incoming.frame()
            if frame is not None:
                return self.on_inbound_frame(frame)
        return super().blocking_read(timeout)

    def _read_answer(self) -> Any:
        try:
            return self.blocking_read(ANSWER)
        except TimeoutError:
            self.collect()
            raise TimeoutError(f"the broker has not answered for {ANSWER:g} s") from None

    def _read_ahead(self, transport: Any, incoming: Incoming, timeout: float) -> None:
        """Wait for bytes, as the library does for each part of a frame."""
        sock = transport.sock
        before = sock.gettimeout()
        sock.settimeout(timeout)
        self.waits = True
        try:
            incoming.fill()
        except TimeoutError:
            raise
        except BlockingIOError:  # a synchronous worker's loop does not wait here
            raise TimeoutError from None
        except OSError:
            transport.connected = False
            raise
        finally:
            self.waits = False
            sock.settimeout(before)


def write_messages(connection: Any, channel: int, messages: Iterable[Message], time: int) -> None:
    """Publish persistent JSON, mandatory, many messages a write; ``time`` is their timestamp.

    Never reads from the socket, as ``Channel.basic_publish`` does.

    Raises:
        OSError, RecoverableConnectionError: any of the messages may have been written.
    """
    frames: list[bytes] = []
    size, most = 0, connection.frame_max
    for message in messages:
        # Without a delay the route is the message's own.
        route = message.route() if message.delay else (message.exchange, message.routing_key)
        said = content(channel, message.message_id, message.headers, message.body, time, most)
        if said is None:
            _write(connection, frames)
            size = 0
            _write_slowly(connection, channel, message, route, time)
            continue
        connection.bytes_sent += 1
        frames += (_publish(channel, *route), said)
        size += len(said)
        if size >= MAX_BUFFERED:
            _write(connection, frames)
            size = 0
    _write(connection, frames)


def _write(connection: Any, frames: list[bytes]) -> None:
    """Write the frames, and empty the list."""
    transport = connection._transport
    if transport is None:
        raise RecoverableConnectionError("connection already closed")
    transport.write(b"".join(frames))
    frames.clear()


def _write_slowly(
    connection: Any, channel: int, message: Message, route: tuple[str, str], time: int
) -> None:
    """Have the library write a message: the library's tables have values of every type."""
    connection.frame_writer(
        _METHOD,
        channel,
        spec.Basic.Publish,
        _arguments(*route),
        amqp.Message(
            message.body,
            content_type="application/json",
            content_encoding="utf-8",
            delivery_mode=2,
            message_id=message.message_id,
            timestamp=time,
            application_headers=dict(message.headers),
        ),
    )


@lru_cache(maxsize=256)
def _publish(channel: int, exchange: str, routing_key: str) -> bytes:
    """The frame with basic.publish, mandatory."""
    return method(channel, spec.Basic.Publish, _arguments(exchange, routing_key))


@lru_cache(maxsize=256)
def _arguments(exchange: str, routing_key: str) -> bytes:
    """The arguments of basic.publish, mandatory."""
    arguments: bytes = dumps("Bssbb", (0, exchange, routing_key, True, False))
    return arguments


def handle_frame(connection: Any, transport: Any) -> None:
    """Read a frame, under the socket's own time limit, and handle it."""
    connection.on_inbound_frame(transport.read_frame())


def say_goodbye(connection: Any) -> None:
    """Ask the broker to close, without awaiting the reply; the broker then logs no lost client."""
    connection.send_method(spec.Connection.Close, "BsBB", (200, "goodbye", 0, 0))


def read_properties_with(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Read message properties with ``wrap``'s result, in the whole process.

    Args:
        wrap: gets the reader in use: of a frame's bytes and an offset; returns the properties and
            the next offset.
    """
    serialization.PROPERTY_CLASSES[_BASIC] = wrap(serialization.PROPERTY_CLASSES[_BASIC])
