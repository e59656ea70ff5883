"""Fills a queue, far faster than a worker empties it: one connection, confirms not waited for."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from amqp.basic_message import Message as AmqpMessage
from kombu import Connection, Queue

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message

#: Messages on their way without a confirm; more would only pile up in the broker.
_UNCONFIRMED = 1000


class QueueNotFilledError(RuntimeError):
    """Raised when the queue does not hold what was put into it."""


@dataclass(frozen=True, slots=True)
class Filling:
    """What was put into a queue, and how fast."""

    messages: int
    seconds: float

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds


def fill(broker_url: str, messages: Sequence[Message], *, patience: float = 30.0) -> Filling:
    """Declare the gateway's queues and put the messages into them; returns once all are stored.

    ``patience`` is the longest, in seconds, that the broker may take to count them.

    Raises:
        QueueNotFilledError: the queue of orders does not hold as many messages.
    """
    with Connection(broker_url) as connection:
        topology.declare(connection)
        channel = connection.default_channel
        confirmed = 0

        def on_ack(tag: int, _multiple: bool) -> None:
            nonlocal confirmed
            confirmed = max(confirmed, tag)  # one queue confirms in the order of arrival

        channel.confirm_select()
        channel.events["basic_ack"].add(on_ack)
        began = time.perf_counter()
        for sent, message in enumerate(messages):
            while sent - confirmed >= _UNCONFIRMED:
                connection.drain_events(timeout=30)
            channel.basic_publish(_amqp(message), message.exchange, message.routing_key)
        while confirmed < len(messages):
            connection.drain_events(timeout=30)
        seconds = time.perf_counter() - began
    held = _settled_depth(broker_url, topology.orders_queue, len(messages), patience)
    if held != len(messages):
        raise QueueNotFilledError(f"{len(messages)} orders were published; the queue holds {held}")
    return Filling(len(messages), seconds)


def depth(connection: Connection, queue: Queue) -> int:
    """Messages that wait in the queue."""
    _, messages, _ = connection.default_channel.queue_declare(queue.name, passive=True)
    return int(messages)


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
        application_headers=dict(message.headers),
    )
