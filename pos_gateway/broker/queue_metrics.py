"""Queue lengths, polled on a separate connection.

The consumer's and the publisher's connections have one reader each; a request from elsewhere
would read their frames.
"""

import threading
from contextlib import suppress

import structlog
from amqp.exceptions import ChannelError
from kombu import Connection

from pos_gateway.broker.connection import AnsweredConnection
from pos_gateway.broker.session import CONNECT_TIMEOUT, CONNECTION_ERRORS
from pos_gateway.broker.topology import ORDERS_KEY, QUEUES

log = structlog.get_logger(__name__)

#: Seconds between polls.
LOOK = 10.0
#: Seconds for which stopping waits for the broker's close-ok.
_GRACE = 1.0


class QueueMetrics:
    """Ready messages in each of the gateway's queues, polled on a thread.

    Logs an unreachable broker at debug only: the publisher and the consumer report outages.
    """

    def __init__(self, broker_url: str) -> None:
        self._broker_url = broker_url
        #: Counts at the last poll, without queues that could not be asked.
        self.ready: dict[str, int] = {}
        #: Consumers of the queue ``orders`` at the last poll; None: the broker did not say.
        self.consumers: int | None = None
        self._connection: Connection | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start polling. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="depths", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop; waits at most a second for the broker. Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_GRACE)

    def look(self) -> None:
        """Poll each queue's length."""
        try:
            self.ready, self.consumers = self._asked()
        except Exception as error:  # noqa: BLE001  (no error here may affect an order)
            log.debug("queue_metrics.unknown", error=str(error))
            self.ready, self.consumers = {}, None
            self._drop()

    def _asked(self) -> tuple[dict[str, int], int | None]:
        if self._connection is None:
            self._connection = AnsweredConnection(
                self._broker_url, heartbeat=0, connect_timeout=CONNECT_TIMEOUT
            )
            self._connection.ensure_connection(max_retries=max(0, len(self._connection.alt) - 1))
        ready, consumers = {}, {}
        for queue in QUEUES:
            # For a missing queue the broker closes the channel.
            with suppress(ChannelError), self._connection.channel() as channel:
                state = channel.queue_declare(queue.name, passive=True)
                ready[queue.name] = state.message_count
                consumers[queue.name] = state.consumer_count
        return ready, consumers.get(ORDERS_KEY)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.collect(socket_timeout=1)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.look()
            self._stopping.wait(LOOK)
        if self._connection is not None:
            with suppress(*CONNECTION_ERRORS):
                self._connection.release()  # properly closed: the broker logs no lost client
