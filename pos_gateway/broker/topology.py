"""Exchanges and queues of the gateway. Changing an argument of a queue needs a new queue.

Every queue of orders and events is a quorum queue, and RabbitMQ's defaults are stated explicitly:
``x-delivery-limit`` is unlimited before 4.0 and 20 from then on, and beyond the limit a message is dropped
unless a dead-letter exchange is declared; dead-lettering itself is at most once unless
``at-least-once`` is asked for, and ``reject-publish`` with ``at-least-once``.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed
from kombu import Connection, Exchange, Queue
from kombu.transport.native_delayed_delivery import (
    CELERY_DELAYED_DELIVERY_EXCHANGE,
    MAX_NUMBER_OF_BITS_TO_USE,
    bind_queue_to_native_delayed_delivery_exchange,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from pos_gateway.domain.errors import PublishRefused

#: Maximum redeliveries of a message (killed workers, lost connections) before dead-lettering. Every message in a
#: killed worker's window counts one, so the limit is far above the number of restarts in a bad night.
DELIVERY_LIMIT = 100
#: Likewise for messages waiting for an operator or the backend, which may be requeued any number of times. No value
#: means "unlimited" in both 3.10 and 4.x.
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
#: The canary queue as consumed by stable workers: they get the messages that no canary worker can take, all messages
#: if there is no canary worker. A removed or dead canary leaves no order behind.
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


#: A queue for each power of two of a delay's seconds, each with an exchange of the same name.
_DELAY_QUEUES = tuple(level_name(level) for level in range(MAX_NUMBER_OF_BITS_TO_USE))
#: Queues of this module, two of them temporary, and queues for delays.
_QUEUES_NEEDED = len(QUEUES) + 2 + len(_DELAY_QUEUES)


def declare(connection: Connection) -> str | None:
    """Declare everything but the delay queues, or check their presence, as ``declare_queues``. Idempotent.

    Returns:
        RabbitMQ's words if the splits stream has no leader: RabbitMQ 3.10 can leave the stream so after a crash, until
        a restart, and orders must not wait for a restart. Else None.

    Raises:
        PublishRefused: as ``declare_queues``.
    """
    declare_queues(connection, *QUEUES)
    try:
        declare_queues(connection, splits_stream)
    except NotFound as error:
        return str(error.reply_text)
    return None


def declare_queues(connection: Connection, *queues: Queue) -> None:
    """Declare queues with exchanges and bindings; for a user without the right, check their presence.

    Looking for a queue or an exchange needs no right; arguments and bindings cannot be checked.

    Raises:
        PublishRefused: a queue exists with different arguments, the vhost allows no more queues, or a queue is missing
            that this user may not declare.
    """
    try:
        for queue in queues:
            _declare(connection, queue)
    except AccessRefused:
        exchanges = [each.exchange.name for each in queues if each.exchange.name]  # not the default
        _require(connection, [each.name for each in queues], exchanges)


def declare_delays(connection: Connection) -> None:
    """Declare the delay queues (native delayed delivery), and bind the orders' queues. Idempotent.

    For a user who may not, and with the errors, as ``declare_queues``.
    """
    try:
        _declare_delays(connection)
    except AccessRefused:
        require_delays(connection)


def require_delays(connection: Connection) -> None:
    """Check the presence of the delay queues. Raises PublishRefused: a queue is missing."""
    _require(connection, _DELAY_QUEUES, [*_DELAY_QUEUES, CELERY_DELAYED_DELIVERY_EXCHANGE])


def declare_all(connection: Connection) -> None:
    """Declare everything, bindings and delay queues too, as a user who may. Idempotent.

    Raises:
        PublishRefused: a queue exists with different arguments, or the vhost allows no more.
        AccessRefused: this user may not.
    """
    for queue in (*QUEUES, splits_stream):
        _declare(connection, queue)
    _declare_delays(connection)


def _declare(connection: Connection, queue: Queue) -> None:
    with _in_words(f"queue {queue.name!r}"):
        channel = connection.channel()
        queue.bind(channel).declare()
        channel.close()


def _declare_delays(connection: Connection) -> None:
    if connection.transport.driver_type != "amqp":
        return  # the in-memory broker has timers
    with _in_words("a delay queue"):
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
        for queue in (orders_queue, canary_queue):
            bind_queue_to_native_delayed_delivery_exchange(connection, queue)


@contextmanager
def _in_words(what: str) -> Iterator[None]:
    try:
        yield
    except PreconditionFailed as error:
        if "limit" in error.reply_text:
            raise PublishRefused(
                f"the vhost allows too few queues: {_QUEUES_NEEDED} are needed,"
                f" {len(_DELAY_QUEUES)} of them for delays ({error.reply_text})"
            ) from error
        raise PublishRefused(
            f"{what} exists with other arguments than this version needs; "
            f"drain and delete it, or use another vhost ({error.reply_text})"
        ) from error


def _require(connection: Connection, queues: Sequence[str], exchanges: Sequence[str]) -> None:
    try:
        channel = connection.channel()
        for name in queues:
            channel.queue_declare(name, passive=True)
        for name in exchanges:
            channel.exchange_declare(name, "topic", passive=True)
        channel.close()
    except NotFound as error:
        if has_no_leader(error):
            raise
        missing = error.reply_text.removeprefix("NOT_FOUND - ")
        raise PublishRefused(
            f"{missing}, and this broker user may not declare it: "
            "run pos-gateway declare as a user who has configure"
        ) from error


def has_no_leader(error: NotFound) -> bool:
    """Whether the queue not found exists, without a leader node."""
    return "down or inaccessible" in error.reply_text
