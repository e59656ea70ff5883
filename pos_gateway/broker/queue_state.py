"""The ready messages and the consumers of the two queues of orders."""

from dataclasses import dataclass

from kombu import Connection

from pos_gateway.broker import topology
from pos_gateway.broker.connection import AnsweredConnection
from pos_gateway.broker.session import CONNECT_TIMEOUT, CONNECTION_ERRORS
from pos_gateway.domain.errors import BrokerUnavailable
from pos_gateway.runtime.urls import mask_url


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue's counts."""

    queue: str
    #: Ready messages.
    ready: int
    #: Consumers; for the canary's queue the stable workers' standby consumers, too.
    consumers: int


def queue_states(broker_url: str) -> tuple[QueueState, QueueState]:
    """The counts of ``orders`` and of ``orders.canary``. Raises BrokerUnavailable, PublishRefused."""
    connection = AnsweredConnection(broker_url, connect_timeout=CONNECT_TIMEOUT)
    try:
        connection.ensure_connection(max_retries=max(0, len(connection.alt) - 1))
        topology.declare(connection)
        found = [_of(connection, key) for key in (topology.ORDERS_KEY, topology.CANARY_KEY)]
        connection.release()
    except CONNECTION_ERRORS as error:
        raise BrokerUnavailable(
            f"cannot look at the queues at {mask_url(broker_url)}: {error}"
        ) from error
    finally:
        connection.collect(socket_timeout=1)
    return found[0], found[1]


def _of(connection: Connection, queue: str) -> QueueState:
    state = connection.default_channel.queue_declare(queue, passive=True)
    return QueueState(queue, state.message_count, state.consumer_count)
