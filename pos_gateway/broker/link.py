"""One connection's life, from connecting to its first error.

A link never recovers: its end fails every waiting caller, and the publisher makes a new link.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from amqp import Message as AmqpMessage
from amqp.exceptions import NotFound, RecoverableConnectionError
from kombu import Connection

from pos_gateway.broker.amqp_internals import handle_frame, say_goodbye, write_message
from pos_gateway.broker.message import Message
from pos_gateway.broker.session import CONNECTION_ERRORS, HEARTBEAT
from pos_gateway.domain.errors import BrokerUnavailable, PublishError, PublishRefused, Unroutable

#: Seconds without progress after which the reader checks the heartbeat and a write fails.
READ_TIMEOUT = HEARTBEAT / 4


class Confirm:
    """The broker's reply to one message, for a caller that waits or for a callback.

    Args:
        message: what is published.
        call: called on the thread that settles the confirm; None: a caller waits.
    """

    __slots__ = ("_call", "_latch", "_settled", "error", "message")

    def __init__(
        self, message: Message, call: Callable[[Message, PublishError | None], None] | None = None
    ) -> None:
        self.message = message
        self.error: PublishError | None = None
        self._call, self._settled = call, False
        if call is None:  # a bare lock is the cheapest one-shot event
            self._latch = threading.Lock()
            self._latch.acquire()

    def settle(self, error: PublishError | None = None) -> None:
        """The broker has replied, or never will. Only the first call counts."""
        if self._settled:
            return
        self._settled = True
        self.error = self.error or error
        if self._call is None:
            self._latch.release()
        else:
            self._call(self.message, self.error)

    def wait(self, seconds: float) -> bool:
        """Whether it was settled within ``seconds``."""
        return self._latch.acquire(timeout=max(0.0, seconds))


class Link(Protocol):
    """What the publisher needs of a connection.

    ``send`` and ``together`` are called under the write lock. In ``together``'s block messages
    are written many at a time.
    """

    alive: bool
    #: Whether an exchange was missing: an administrator has deleted it, and others perhaps.
    lacks_exchange: bool

    def send(self, confirm: Confirm) -> None: ...
    def together(self) -> contextlib.AbstractContextManager[None]: ...
    def fail(self, error: BaseException) -> None: ...
    def close(self) -> None: ...


class AmqpLink:
    """A RabbitMQ connection in confirm mode; a reader thread (or green thread) settles confirms."""

    def __init__(self, connection: Connection, write_lock: threading.RLock) -> None:
        self.alive = True
        self.lacks_exchange = False
        #: Why the broker has stopped reading from us: a memory or disk alarm; None: it has not.
        self.blocked: str | None = None
        self._connection = connection
        #: Kept, since asking a closed connection for it would reconnect.
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
        # One time limit for both directions: the reader need not set its own, and a write into a
        # full socket (the broker has stopped reading) ends.
        self._transport.sock.settimeout(READ_TIMEOUT)
        threading.Thread(target=self._read, name="confirms", daemon=True).start()

    def send(self, confirm: Confirm) -> None:
        if self.blocked is not None:
            # The broker has stopped reading: more would only fill the socket.
            confirm.settle(BrokerUnavailable(f"the broker takes no messages: {self.blocked}"))
            return
        channel = self._channel.channel_id
        if channel is None:  # closed by the broker; the reader is about to fail the link
            raise RecoverableConnectionError("connection already closed")
        self._tag += 1
        self._waiting[self._tag] = confirm
        # Not Channel.basic_publish, which first reads from the socket ("are we blocked?"): its only
        # reader is the reader thread.
        write_message(self._amqp, channel, confirm.message, int(time.time()))

    def together(self) -> contextlib.AbstractContextManager[None]:
        together: contextlib.AbstractContextManager[None] = self._amqp.together()
        return together

    def fail(self, error: BaseException) -> None:
        """Drop this connection and fail its waiting callers. Idempotent."""
        self.alive = False
        self.lacks_exchange |= isinstance(error, NotFound)
        waiting, self._waiting = self._waiting, {}
        for confirm in waiting.values():
            confirm.settle(BrokerUnavailable(f"the connection to the broker was lost: {error}"))
        with contextlib.suppress(Exception):
            # The reader may be closing it now (on the broker's close-ok), and gevent lets only one
            # waiter see the end of a TLS socket.
            self._connection.collect(socket_timeout=1)

    def close(self) -> None:
        if self.alive:
            with contextlib.suppress(*CONNECTION_ERRORS):
                # Sent, not awaited (the reader gets the reply): the broker logs no lost client.
                say_goodbye(self._amqp)
        self.fail(ConnectionResetError("closed by this process"))

    def _read(self) -> None:
        ticked = time.monotonic()
        try:
            while self.alive:
                with contextlib.suppress(TimeoutError):  # nothing came: check the heartbeat
                    handle_frame(self._amqp, self._transport)
                if time.monotonic() - ticked >= READ_TIMEOUT:
                    ticked = time.monotonic()
                    with self._write_lock:
                        self._amqp.heartbeat_tick()
        except Exception as error:  # noqa: BLE001
            # Any error (the library's attributes turn None when it is closed during a read): a link
            # without its reader must not look alive.
            if self.alive:
                with self._write_lock:
                    self.fail(error)

    def _settle(self, tag: int, multiple: bool, error: PublishError | None = None) -> None:
        tags = [tag]
        if multiple:  # tags only grow; senders add some meanwhile
            tags = [each for each in list(self._waiting) if each <= tag]
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
        # basic.return precedes the same message's confirm, which settles it.
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
        self.lacks_exchange = False
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
