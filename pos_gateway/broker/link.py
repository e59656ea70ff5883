"""One connection's life, from connecting to its first error.

A link never recovers: whoever waits on it hears of its end, and the publisher makes a new one.
"""

import contextlib
import threading
import time
from functools import lru_cache
from typing import Any, Protocol

from amqp import spec
from amqp.basic_message import Message as AmqpMessage
from amqp.exceptions import AMQPError, RecoverableConnectionError
from amqp.serialization import dumps
from kombu import Connection
from kombu.exceptions import OperationalError

from pos_gateway.broker.message import Message
from pos_gateway.domain.errors import BrokerUnavailable, PublishError, PublishRefused, Unroutable

#: Seconds between AMQP heartbeats: a dead peer is noticed after two of them.
HEARTBEAT = 15

#: Seconds without progress after which a read looks after the heartbeat and a write gives up.
PATIENCE = HEARTBEAT / 4

#: What the AMQP library raises when a connection is gone or was never there.
CONNECTION_ERRORS = (OSError, AMQPError, OperationalError)


#: The kind of a frame that has a method in it.
_METHOD = 1


@lru_cache(maxsize=256)
def _arguments(exchange: str, routing_key: str) -> bytes:
    """Those of basic.publish, mandatory."""
    arguments: bytes = dumps("Bssbb", (0, exchange, routing_key, True, False))
    return arguments


class Confirm:
    """One caller's wait for one message. A bare lock is the cheapest one-shot event there is."""

    __slots__ = ("_latch", "_settled", "error", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.error: PublishError | None = None
        self._settled = False
        self._latch = threading.Lock()
        self._latch.acquire()

    def settle(self, error: PublishError | None = None) -> None:
        """The broker has spoken, or never will. What is said first counts."""
        if not self._settled:
            self._settled = True
            self.error = self.error or error
            self._latch.release()

    def wait(self, seconds: float) -> bool:
        """Whether it was settled within so many seconds."""
        return self._latch.acquire(timeout=max(0.0, seconds))


class Link(Protocol):
    """What the publisher needs of a connection. ``send`` is called under the write lock.

    So is ``together``: what is sent meanwhile is written many messages at a time.
    """

    alive: bool

    def send(self, confirm: Confirm) -> None: ...
    def together(self) -> contextlib.AbstractContextManager[None]: ...
    def fail(self, error: BaseException) -> None: ...
    def close(self) -> None: ...


class AmqpLink:
    """A RabbitMQ connection in confirm mode; a reader thread (or green thread) settles confirms."""

    def __init__(self, connection: Connection, write_lock: threading.RLock) -> None:
        self.alive = True
        #: Why the broker does not read from us at present: a memory or disk alarm.
        self.blocked: str | None = None
        self._connection = connection
        #: LeasedElsewhere on to, since asking a closed connection for its parts makes it connect again.
        self._amqp: Any = connection.connection
        self._transport = self._amqp.transport
        self._write_lock = write_lock
        self._waiting: dict[int, Confirm] = {}
        self._tag = 0
        self._channel = connection.channel()
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        self._amqp.on_blocked = self._on_blocked
        self._amqp.on_unblocked = self._on_unblocked
        # One time limit for both directions: the reader need not set and unset its own, and a
        # write into a full socket (a broker that has stopped reading) ends.
        self._transport.sock.settimeout(PATIENCE)
        threading.Thread(target=self._read, name="confirms", daemon=True).start()

    def send(self, confirm: Confirm) -> None:
        if self.blocked is not None:
            # The broker has stopped reading. More would only fill the socket.
            confirm.settle(BrokerUnavailable(f"the broker takes no messages: {self.blocked}"))
            return
        channel = self._channel.channel_id
        if channel is None:  # the broker has closed the connection; the reader is about to say so
            raise RecoverableConnectionError("connection already closed")
        message = confirm.message
        exchange, routing_key = message.route()
        self._tag += 1
        self._waiting[self._tag] = confirm
        # Channel.basic_publish would read from the socket first ("are we blocked?"), but the
        # socket has one reader, and that is the reader thread.
        self._amqp.frame_writer(
            _METHOD,
            channel,
            spec.Basic.Publish,
            _arguments(exchange, routing_key),
            AmqpMessage(
                message.body,
                content_type="application/json",
                content_encoding="utf-8",
                delivery_mode=2,
                message_id=message.message_id,
                timestamp=int(time.time()),
                application_headers=dict(message.headers),
            ),
        )

    def together(self) -> contextlib.AbstractContextManager[None]:
        together: contextlib.AbstractContextManager[None] = self._amqp.together()
        return together

    def fail(self, error: BaseException) -> None:
        """Give up this connection; whoever waits hears of it. Idempotent."""
        self.alive = False
        waiting, self._waiting = self._waiting, {}
        for confirm in waiting.values():
            confirm.settle(BrokerUnavailable(f"the connection to the broker was lost: {error}"))
        with contextlib.suppress(Exception):
            # The reader may be closing it at this moment (the broker's reply to our goodbye), and
            # gevent has nobody wait for a TLS socket's end who is not the first to.
            self._connection.collect(socket_timeout=1)

    def close(self) -> None:
        if self.alive:
            with contextlib.suppress(*CONNECTION_ERRORS):
                # Said, not awaited (the reply is the reader's): the broker logs no lost client.
                self._amqp.send_method(spec.Connection.Close, "BsBB", (200, "goodbye", 0, 0))
        self.fail(ConnectionResetError("closed by this process"))

    def _read(self) -> None:
        ticked = time.monotonic()
        try:
            while self.alive:
                with contextlib.suppress(TimeoutError):  # nothing came: look after the heartbeat
                    self._amqp.on_inbound_frame(self._transport.read_frame())
                if time.monotonic() - ticked >= PATIENCE:
                    ticked = time.monotonic()
                    with self._write_lock:
                        self._amqp.heartbeat_tick()
        except Exception as error:  # noqa: BLE001
            # Whatever it is (the library's attributes turn None when it is closed under the
            # reader's feet): without its reader a link must not pass for alive.
            if self.alive:
                with self._write_lock:
                    self.fail(error)

    def _settle(self, tag: int, multiple: bool, error: PublishError | None = None) -> None:
        tags = [tag]
        if multiple:
            # Tags only grow and a dict keeps its order, so the confirmed ones are at the front.
            tags = []
            for waiting in list(self._waiting):  # others add to it meanwhile
                if waiting > tag:
                    break
                tags.append(waiting)
        for each in tags:
            confirm = self._waiting.pop(each, None)
            if confirm is not None:
                confirm.settle(error)

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._settle(tag, multiple)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self._settle(tag, multiple, PublishRefused("the broker refused the message (nack)"))

    def _on_blocked(self, reason: str) -> None:
        self.blocked = reason

    def _on_unblocked(self) -> None:
        self.blocked = None

    def _on_return(self, error: Exception, exchange: str, key: str, message: AmqpMessage) -> None:
        # A return comes before the confirm of the same message, which then settles it.
        returned = (message.properties.get("message_id"), exchange, key)
        for confirm in list(self._waiting.values()):
            if (confirm.message.message_id, *confirm.message.route()) == returned:
                confirm.error = Unroutable(
                    f"no queue takes messages of exchange {exchange!r} with key {key!r}"
                )


class MemoryLink:
    """kombu's in-memory broker in this process (the demo): stored when published."""

    def __init__(self, connection: Connection) -> None:
        self.alive = True
        self._connection = connection
        self._channel = connection.channel()

    def send(self, confirm: Confirm) -> None:
        message = confirm.message
        if message.delay:
            timer = threading.Timer(message.delay, self._deliver, (message,))
            timer.daemon = True
            timer.start()
        else:
            self._deliver(message)
        confirm.settle()

    def together(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def fail(self, error: BaseException) -> None:
        self.alive = False

    def close(self) -> None:
        self.alive = False

    def _deliver(self, message: Message) -> None:
        prepared = self._channel.prepare_message(
            message.body,
            content_type="application/json",
            content_encoding="utf-8",
            headers=dict(message.headers),
            properties={"delivery_mode": 2, "message_id": message.message_id},
        )
        self._channel.basic_publish(
            prepared, exchange=message.exchange, routing_key=message.routing_key
        )
