"""Exchanges and queues of the gateway. Changing an argument of a queue needs a new queue.

Every queue of orders and events is a quorum queue, and RabbitMQ's defaults are stated explicitly:
``x-delivery-limit`` is unlimited before 4.0 and 20 from then on, and past it a message is dropped
unless a dead-letter exchange is declared; dead-lettering itself is at most once unless
``at-least-once`` is asked for, which needs ``reject-publish``.
"""

from typing import Any

from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed
from kombu import Connection, Exchange, Queue
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    declare_native_delayed_delivery_exchanges_and_queues,
)

from pos_gateway.domain.errors import PublishRefused

#: How often a message may be redelivered (killed workers, lost connections) before it is
#: dead-lettered. Every message in a killed worker's window counts one, so this is far above the
#: number of restarts in a bad night.
DELIVERY_LIMIT = 100
#: Likewise for messages that wait for an operator or the backend, which may be requeued any number
#: of times. No value means "unlimited" in both 3.10 and 4.x.
NO_LIMIT = 1_000_000_000

DEAD_KEY = "orders.dead"
CANARY_KEY = "orders.canary"
ORDERS_KEY = "orders"

orders_exchange = Exchange("orders", type="topic", durable=True)
events_exchange = Exchange("order-events", type="topic", durable=True)


def _orders_queue(name: str, **consuming: Any) -> Queue:
    arguments: dict[str, Any] = {
        "x-queue-type": "quorum",
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-dead-letter-exchange": orders_exchange.name,
        "x-dead-letter-routing-key": DEAD_KEY,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    return Queue(name, orders_exchange, routing_key=name, queue_arguments=arguments, **consuming)


orders_queue = _orders_queue(ORDERS_KEY)
canary_queue = _orders_queue(CANARY_KEY)
#: The same queue as consumed by stable workers: they get what no canary worker can take, all of it
#: if there is none. A canary that is removed, or dies, leaves no order behind.
canary_standby = _orders_queue(CANARY_KEY, consumer_arguments={"x-priority": -1})


def _keeping_queue(name: str, exchange: Exchange, routing_key: str) -> Queue:
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": NO_LIMIT}
    return Queue(name, exchange, routing_key=routing_key, queue_arguments=arguments)


dead_queue = _keeping_queue(DEAD_KEY, orders_exchange, DEAD_KEY)
events_queue = _keeping_queue("order-events", events_exchange, "#")

QUEUES = (orders_queue, canary_queue, dead_queue, events_queue)

#: The canary splits: see ``splits.py``. Keeps the last megabyte.
splits_stream = Queue(
    "orders.canary.split",
    queue_arguments={
        "x-queue-type": "stream",
        "x-max-length-bytes": 1_000_000,
        "x-stream-max-segment-size-bytes": 500_000,
    },
)
#: A mutex for changing the splits: an exclusive queue belongs to one connection.
splits_turn = Queue("orders.canary.split.turn", exclusive=True, auto_delete=True)


#: Queues of this module, two of which come and go, and one for each power of two of a delay's seconds.
_QUEUES_NEEDED = len(QUEUES) + 2 + 28


def declare(connection: Connection) -> str | None:
    """Declare everything. Idempotent.

    Returns:
        RabbitMQ's words if the splits stream has no leader: RabbitMQ 3.10 can leave it so after a
        crash, until it is restarted, and orders must not wait for that. Else None.

    Raises:
        PublishRefused: a queue of that name exists with other arguments, or the vhost allows no more queues.
    """
    for queue in QUEUES:
        _declare(connection, queue)
    try:
        _declare(connection, splits_stream)
    except NotFound as error:
        return str(error.reply_text)
    return None


def declare_delays(connection: Connection) -> None:
    """Declare the delay queues (native delayed delivery), and bind the orders' to them. Idempotent."""
    declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
    for queue in (orders_queue, canary_queue):
        bind_queue_to_native_delayed_delivery_exchange(connection, queue)


def _declare(connection: Connection, queue: Queue) -> None:
    channel = connection.channel()
    try:
        queue.bind(channel).declare()
    except PreconditionFailed as error:
        if "limit" in error.reply_text:
            raise PublishRefused(
                f"the vhost allows too few queues: {_QUEUES_NEEDED} are needed, 28 of them for delays"
                f" ({error.reply_text})"
            ) from error
        raise PublishRefused(
            f"queue {queue.name!r} exists with other arguments than this version needs; "
            f"drain and delete it, or use another vhost ({error.reply_text})"
        ) from error
    except AccessRefused as error:
        raise PublishRefused(
            f"this broker user may not declare {queue.name!r} ({error.reply_text})"
        ) from error
    channel.close()
