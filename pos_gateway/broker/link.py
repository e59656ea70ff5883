"""A connection's life, from connecting to the first error.

A link never recovers: the end fails every waiting caller, and the publisher makes a new link.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol

from amqp import Message as AmqpMessage
from amqp.exceptions import NotFound, RecoverableConnectionError
from kombu import Connection

from pos_gateway.broker.amqp_internals import handle_frame, say_goodbye, write_messages
from pos_gateway.broker.message import Message
from pos_gateway.broker.session import CONNECTION_ERRORS, HEARTBEAT
from pos_gateway.domain.errors import BrokerUnavailable, PublishError, PublishRefused, Unroutable
from pos_gateway.runtime.green import cooperatively

#: Seconds without progress after which the reader checks the heartbeat and a write fails.
READ_TIMEOUT = HEARTBEAT / 4
#: Messages of a batch written before yielding to other green threads: two milliseconds' worth. With
#: eight, a worker under full load fell thousands of events behind.
YIELD_EVERY = 50


class Confirms:
    """Messages written together, and the broker's reply to each.

    Args:
        messages: the messages to publish.
        call: gets each message with its error on the thread that settles the message; None: a caller waits.
    """

    __slots__ = (
        *("_call", "_counter", "_latch", "_unsettled"),
        *("errors", "first", "messages", "written_at"),
    )

    def __init__(
        self,
        messages: Sequence[Message],
        call: Callable[[Message, PublishError | None], None] | None = None,
    ) -> None:
        self.messages = messages
        #: The first message's delivery tag; the later messages' tags follow.
        self.first, self.written_at = 0, 0.0
        #: By a message's number.
        self.errors: dict[int, PublishError] = {}
        self._call = call
        self._unsettled = set(range(len(messages)))
        self._counter = count(1)  # atomic: the reader and a writer may settle messages at once
        self._latch = threading.Lock()  # the cheapest one-shot event
        if messages:
            self._latch.acquire()

    def settle(self, number: int, error: PublishError | None = None) -> None:
        """Note the broker's reply to a message, or the lack of any. Only the first call counts."""
        try:
            self._unsettled.remove(number)
        except KeyError:
            return
        if error is not None:
            self.errors.setdefault(number, error)
        if self._call is not None:
            self._call(self.messages[number], self.errors.get(number))
        if next(self._counter) == len(self.messages):
            self._latch.release()

    def fail(self, error: PublishError) -> None:
        """Settle all messages without a reply."""
        for number in range(len(self.messages)):
            self.settle(number, error)

    def wait(self, seconds: float) -> bool:
        """Wait until all messages are settled; False after ``seconds``."""
        return self._latch.acquire(timeout=max(0.0, seconds))

    @property
    def stored(self) -> int:
        """The number of stored messages from the front."""
        missing = {*self._unsettled, *self.errors}
        return min(missing, default=len(self.messages))


class Link(Protocol):
    """A connection, as the publisher sees the connection. ``send`` is called under the write lock."""

    alive: bool
    #: Whether an exchange was missing: an administrator has deleted the exchange, and more perhaps.
    lacks_exchange: bool

    def send(self, confirms: Confirms) -> None: ...
    def fail(self, error: BaseException) -> None: ...
    def close(self) -> None: ...


class AmqpLink:
    """A RabbitMQ connection in confirm mode; a reader thread (or green thread) settles confirms.

    Ends without a message's confirm for ``confirm_timeout`` seconds, too, unless an alarm lasts: after an alarm the
    broker stores the messages of each connection.
    """

    def __init__(
        self, connection: Connection, write_lock: threading.RLock, confirm_timeout: float
    ) -> None:
        self.alive = True
        self.lacks_exchange = False
        #: Why the broker has stopped reading from us: a memory or disk alarm; None: no alarm.
        self.blocked: str | None = None
        self._connection = connection
        #: Kept, since asking a closed connection would reconnect.
        self._amqp: Any = connection.connection
        self._transport = self._amqp.transport
        self._write_lock = write_lock
        self._confirm_timeout = confirm_timeout
        #: By delivery tag, the oldest first.
        self._waiting: dict[int, Confirms] = {}
        self._tag = 0
        self._channel = connection.channel()
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        self._amqp.on_blocked = self._on_blocked
        self._amqp.on_unblocked = self._on_unblocked
        # One time limit for both directions: the reader needs no time limit, and a write into a
        # full socket (the broker has stopped reading) ends.
        self._transport.sock.settimeout(READ_TIMEOUT)
        threading.Thread(target=self._read, name="confirms", daemon=True).start()

    def send(self, confirms: Confirms) -> None:
        if self.blocked is not None:
            # The broker has stopped reading: more would only fill the socket.
            confirms.fail(BrokerUnavailable(f"the broker takes no messages: {self.blocked}"))
            return
        channel = self._channel.channel_id
        if channel is None:  # closed by the broker; the reader is about to fail the link
            raise RecoverableConnectionError("connection already closed")
        confirms.first, number = self._tag + 1, len(confirms.messages)
        confirms.written_at = time.monotonic()
        self._tag += number
        self._waiting |= dict.fromkeys(range(confirms.first, confirms.first + number), confirms)
        # Not Channel.basic_publish, which first reads from the socket ("are we blocked?"): the only
        # reader is the reader thread.
        messages = cooperatively(confirms.messages, YIELD_EVERY)  # keeps the lock
        write_messages(self._amqp, channel, messages, int(time.time()))

    def fail(self, error: BaseException) -> None:
        """Drop this connection and fail the waiting callers. Idempotent."""
        self.alive = False
        self.lacks_exchange |= isinstance(error, NotFound)
        waiting, self._waiting = self._waiting, {}
        for tag, confirms in waiting.items():
            lost = BrokerUnavailable(f"the connection to the broker was lost: {error}")
            confirms.settle(tag - confirms.first, lost)
        with contextlib.suppress(Exception):
            # The reader may be closing the connection now (on the broker's close-ok), and gevent lets only one
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
                        oldest = next(iter(self._waiting.values()), None)
                    is_due = oldest and ticked - oldest.written_at >= self._confirm_timeout
                    if is_due and self.blocked is None:
                        raise TimeoutError(f"no confirm for {self._confirm_timeout:g} s")
        except Exception as error:  # noqa: BLE001
            # Any error (the library's attributes turn None when closed during a read): a link
            # without a reader must not look alive.
            if self.alive:
                with self._write_lock:
                    self.fail(error)

    def _settle(self, tag: int, multiple: bool, error: PublishError | None = None) -> None:
        tags = [tag]
        if multiple:  # tags only grow; senders add some meanwhile
            tags = [each for each in list(self._waiting) if each <= tag]
        for each in tags:
            confirms = self._waiting.pop(each, None)
            if confirms is not None:
                confirms.settle(each - confirms.first, error)

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._settle(tag, multiple)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self._settle(tag, multiple, PublishRefused("the broker refused the message (nack)"))

    def _on_blocked(self, reason: str) -> None:
        self.blocked = reason

    def _on_unblocked(self) -> None:
        for confirms in list(self._waiting.values()):
            confirms.written_at = time.monotonic()  # unread by the broker until now
        self.blocked = None

    def _on_return(self, error: Exception, exchange: str, key: str, message: AmqpMessage) -> None:
        # basic.return precedes the same message's confirm, which settles it.
        returned = (message.properties.get("message_id"), exchange, key)
        for tag, confirms in list(self._waiting.items()):
            sent = confirms.messages[tag - confirms.first]
            if (sent.message_id, *sent.route()) == returned:
                confirms.errors[tag - confirms.first] = Unroutable(
                    f"no queue takes messages of exchange {exchange!r} with key {key!r}"
                )


class MemoryLink:
    """kombu's in-memory broker in this process (the demo): stored when published."""

    def __init__(self, connection: Connection) -> None:
        self.alive = True
        self.lacks_exchange = False
        self._connection = connection
        self._channel = connection.channel()

    def send(self, confirms: Confirms) -> None:
        for number, message in enumerate(confirms.messages):
            if message.delay:
                timer = threading.Timer(message.delay, self._deliver, (message,))
                timer.daemon = True
                timer.start()
            else:
                self._deliver(message)
            confirms.settle(number)

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
