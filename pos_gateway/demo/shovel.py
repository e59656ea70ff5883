"""A shovel: moves orders' messages from the server's in-memory broker to the worker's.

kombu's in-memory broker lives in one process, and server and worker are two: the worker's is patched
by gevent, the server's must not be. A message is a line of JSON.
"""

import json
from collections.abc import Callable
from typing import Any

from kombu import Connection
from kombu.common import eventloop

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message

#: Seconds between two looks into the queues.
_POLL = 0.01


def consume(write: Callable[[str], object]) -> None:
    """Consume this process's orders, canary or not, for ever; ``write`` gets each message's line."""

    def on_message(message: Any) -> None:
        body = message.body
        line = {
            "routing_key": message.delivery_info["routing_key"],
            "body": body if isinstance(body, str) else body.decode(),
            "message_id": message.properties["message_id"],
            "headers": message.headers,
        }
        write(json.dumps(line) + "\n")

    queues = (topology.orders_queue, topology.canary_queue)
    with (
        Connection("memory://", transport_options={"polling_interval": _POLL}) as connection,
        connection.Consumer(queues, on_message=on_message, no_ack=True, accept=None),
    ):
        for _ in eventloop(connection, timeout=1, ignore_timeouts=True):
            pass


def message_in(line: bytes) -> Message:
    """The message, to be published in this process."""
    said = json.loads(line)
    body = said.pop("body").encode()
    return Message(exchange=topology.orders_exchange.name, body=body, **said)
