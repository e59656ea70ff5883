"""Fills a queue, far faster than a worker empties it: one connection, confirms not waited for."""

import time
from collections.abc import Sequence
from contextlib import suppress

from amqp.basic_message import Message as AmqpMessage
from kombu import Connection, Queue

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message

#: Messages on their way without a confirm; more would only pile up in the broker.
_UNCONFIRMED = 1000


class QueueNotFilledError(RuntimeError):
    """Raised when the queue does not hold what was put into it."""


class Confirms:
    """Publishes on a connection without waiting for each confirm, and knows how many are open."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._channel = connection.default_channel
        self._sent = self._confirmed = 0
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(self._on_ack)

    def publish(self, message: Message) -> None:
        """Publish a message; waits only while too many are unconfirmed."""
        while self._open >= _UNCONFIRMED:
            self._connection.drain_events(timeout=30)
        self._channel.basic_publish(_amqp(message), message.exchange, message.routing_key)
        self._sent += 1

    def read(self, seconds: float) -> None:
        """Take in confirms that come within this time; returns with the first."""
        with suppress(TimeoutError):
            self._connection.drain_events(timeout=seconds)

    def settle(self, timeout: float) -> None:
        """Return once everything is confirmed. Raises TimeoutError if no confirm comes in time."""
        while self._open:
            self._connection.drain_events(timeout=timeout)

    @property
    def _open(self) -> int:
        return self._sent - self._confirmed

    def _on_ack(self, tag: int, _multiple: bool) -> None:
        self._confirmed = max(self._confirmed, tag)  # one queue confirms in the order of arrival


def declare(broker_url: str) -> None:
    """Declare the gateway's queues."""
    with Connection(broker_url) as connection:
        topology.declare(connection)


def put(broker_url: str, messages: Sequence[Message]) -> float:
    """Declare the gateway's queues and put the messages into them; the seconds until all are stored.

    Workers may take them meanwhile.
    """
    with Connection(broker_url) as connection:
        topology.declare(connection)
        confirms = Confirms(connection)
        began = time.perf_counter()
        for message in messages:
            confirms.publish(message)
        confirms.settle(timeout=30)
        return time.perf_counter() - began


def fill(broker_url: str, messages: Sequence[Message], *, patience: float = 120.0) -> float:
    """Put the messages into the gateway's queues; messages a second, once all are stored.

    ``patience`` is the longest, in seconds, that the broker may take to count them.

    Raises:
        QueueNotFilledError: the queue of orders does not hold as many messages.
    """
    seconds = put(broker_url, messages)
    held = _settled_depth(broker_url, topology.orders_queue, len(messages), patience)
    if held != len(messages):
        raise QueueNotFilledError(f"{len(messages)} orders were published; the queue holds {held}")
    return len(messages) / seconds


def depth(connection: Connection, queue: Queue) -> int:
    """Messages that wait in the queue."""
    _, messages, _ = connection.default_channel.queue_declare(queue.name, passive=True)
    return int(messages)


def consumers(connection: Connection, queue: Queue) -> int:
    """Workers that take messages from the queue."""
    return int(connection.default_channel.queue_declare(queue.name, passive=True)[2])


def _settled_depth(broker_url: str, queue: Queue, wanted: int, patience: float) -> int:
    """The depth once it is as wanted, or after some patience."""
    deadline = time.monotonic() + patience
    with Connection(broker_url) as connection:
        while (held := depth(connection, queue)) != wanted and time.monotonic() < deadline:
            time.sleep(0.05)
    return held


def _amqp(message: Message) -> AmqpMessage:
    return AmqpMessage(
        message.body,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=2,
        message_id=message.message_id,
        timestamp=int(time.time()),  # as a backend's client
        application_headers=dict(message.headers),
    )
