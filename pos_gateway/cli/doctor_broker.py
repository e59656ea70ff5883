"""``pos-gateway doctor``: the broker, its exchanges and queues."""

from collections.abc import Iterator

from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed
from kombu import Connection, Exchange, Queue

from pos_gateway.broker import topology
from pos_gateway.broker.connection import AnsweredConnection
from pos_gateway.broker.session import CONNECT_TIMEOUT, CONNECTION_ERRORS, HEARTBEAT
from pos_gateway.broker.unreachable import said_and_remedy
from pos_gateway.cli.findings import CheckResult, fail, ok, warn
from pos_gateway.domain.errors import PublishRefused
from pos_gateway.runtime.urls import mask_url
from pos_gateway.settings import Settings

#: Earlier versions have no at-least-once dead-lettering for quorum queues.
_OLDEST = (3, 10)
#: What makes queues that are missing.
_DECLARES = "a worker, or pos-gateway declare, makes it; its broker user needs configure for that"


def check_broker(settings: Settings) -> Iterator[CheckResult]:
    """Connects as a worker does, and inspects each queue without taking a message."""
    if settings.broker_url.startswith("memory:"):
        yield warn("broker: in memory, of one process only", "set POS_GATEWAY_BROKER_URL")
        return
    connection = AnsweredConnection(
        settings.broker_url, heartbeat=HEARTBEAT, connect_timeout=CONNECT_TIMEOUT
    )
    shown = mask_url(settings.broker_url)
    try:
        connection.ensure_connection(max_retries=max(0, len(connection.alt) - 1))
        yield _version(connection, shown)
        for exchange in (topology.orders_exchange, topology.events_exchange):
            yield from _exchange(connection, exchange)
        for queue in (*topology.QUEUES, topology.splits_stream):
            yield _queue(connection, queue, settings)
        yield _delays(connection)
    except CONNECTION_ERRORS as error:
        why, remedy = said_and_remedy(str(error))
        yield fail(f"broker: {shown} cannot be used: {why}", remedy)
    finally:
        connection.collect(socket_timeout=1)


def _version(connection: Connection, shown: str) -> CheckResult:
    properties = connection.connection.server_properties
    product, version = str(properties.get("product", "?")), str(properties.get("version", "0"))
    parts = version.split(".")
    number = tuple(int(part) for part in parts[:2] if part.isdigit())
    what = f"broker: {product} {version} at {shown}"
    if product != "RabbitMQ" or number < _OLDEST:
        return fail(what, "RabbitMQ 3.10 or later is needed (quorum queues)")
    return ok(what)


def _exchange(connection: Connection, exchange: Exchange) -> Iterator[CheckResult]:
    with connection.channel() as channel:
        try:
            exchange.bind(channel).declare(passive=True)
        except (NotFound, AccessRefused):  # one that is not there is made with its queues
            return
    with connection.channel() as channel:
        try:
            exchange.bind(channel).declare()  # as for a queue
        except PreconditionFailed as error:
            yield fail(
                f"exchange {exchange.name}: is another program's ({error.reply_text})",
                "use another vhost, or delete it",
            )
        except AccessRefused:
            pass


def _queue(connection: Connection, queue: Queue, settings: Settings) -> CheckResult:
    what = f"queue {queue.name}"
    with connection.channel() as channel:
        try:
            state = channel.queue_declare(queue.name, passive=True)
        except NotFound as error:
            if topology.has_no_leader(error):
                return fail(
                    f"{what}: no node leads it ({error.reply_text})",
                    "start that node, or restart it if it runs",
                )
            return warn(f"{what}: not there yet", _DECLARES)
    with connection.channel() as channel:
        try:
            # It exists, so this creates nothing: the broker compares type and arguments.
            queue.bind(channel).queue_declare()
        except PreconditionFailed as error:
            return fail(
                f"{what}: has another type or other arguments ({error.reply_text})",
                "drain and delete it, or use another vhost",
            )
        except AccessRefused:  # a worker needs it no more than this
            what = f"{what} (this user may not declare it: its arguments are not compared)"
    what = f"{what}: {state.message_count} messages ready, {state.consumer_count} consumers"
    counts = state.message_count, state.consumer_count
    is_events = queue is topology.events_queue
    return _events(what, *counts, settings) if is_events else _orders(what, queue, *counts)


def _delays(connection: Connection) -> CheckResult:
    try:
        topology.require_delays(connection)
    except PublishRefused:
        return warn("queues for delays: not all there yet", _DECLARES)
    return ok("queues for delays")


def _events(what: str, messages: int, consumers: int, settings: Settings) -> CheckResult:
    if not settings.events_to_broker and (messages or consumers):
        return warn(
            f"{what}, and no event comes there: POS_GATEWAY_EVENTS_TO_BROKER is false",
            "unset it, or read events over HTTP (docs/http.md) and purge the queue",
        )
    if messages and not consumers:
        return warn(
            f"{what}: RabbitMQ keeps these until its disk is full",
            "start the backend's consumer; POS_GATEWAY_EVENTS_TO_BROKER=false if all events are "
            "read over HTTP",
        )
    return ok(what)


def _orders(what: str, queue: Queue, messages: int, consumers: int) -> CheckResult:
    if not messages:
        return ok(what)
    match queue.name:
        case topology.DEAD_KEY:
            return warn(what, "these were dead-lettered: pos-gateway dlq list")
        case topology.ORDERS_KEY | topology.CANARY_KEY if not consumers:
            return warn(what, "no worker delivers these: pos-gateway worker")
        case _:
            return ok(what)
