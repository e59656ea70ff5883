"""A bystander: has the broker delay messages that are no orders, and takes them when they are back.

A retry waits in the broker. Beside merchants that are all well, the bystander shows how much of what
an attack does to healthy orders is the broker's work, where it shares a core with everything else.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kombu import Connection, Exchange, Queue
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    declare_native_delayed_delivery_exchanges_and_queues,
)

from loadtests.bench.waiting import InvalidRunError
from loadtests.bench.worker import child
from pos_gateway.broker.message import Message

_QUEUE = Queue(
    "bystander",
    Exchange("bystander", type="topic"),
    routing_key="bystander",
    queue_arguments={"x-queue-type": "quorum"},
)
#: Seconds that a message is delayed, and bytes of it: about a retried order's.
_DELAY, _SIZE = 2, 600


@contextmanager
def bystander(broker_url: str, rate: float) -> Iterator[None]:
    """Publish messages at a rate while the block lasts, by a process of its own.

    Raises:
        InvalidRunError: it ended before the block did.
    """
    with child([sys.executable, "-m", __name__, broker_url, rate]) as process:
        yield
        if process.poll() is not None:
            raise InvalidRunError("the bystander ended before the run")


def stand_by(broker_url: str, rate: float) -> None:
    """Have messages delayed and take them, until a signal ends it."""
    with Connection(broker_url) as connection:
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
        queue = _QUEUE(connection.default_channel)
        queue.declare()
        bind_queue_to_native_delayed_delivery_exchange(connection, queue)
        message = Message("", "bystander", b"x" * _SIZE, "").delayed(_DELAY)
        exchange, routing_key = message.route()
        producer = connection.Producer()
        with connection.Consumer([queue], on_message=_take, prefetch_count=100):
            began, sent = time.monotonic(), 0
            while True:
                while sent < rate * (time.monotonic() - began):
                    producer.publish(
                        message.body, exchange=exchange, routing_key=routing_key, delivery_mode=2
                    )
                    sent += 1
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.005)


def _take(message: Any) -> None:
    message.ack()


if __name__ == "__main__":
    stand_by(sys.argv[1], float(sys.argv[2]))
