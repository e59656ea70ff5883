"""How long the queues are: looked at now and then, on a connection of its own.

The consumer's connection has one reader, and so has the publisher's; whoever asked a question there
would read what is theirs.
"""

import threading
from contextlib import suppress

import structlog
from amqp.exceptions import ChannelError
from kombu import Connection

from pos_gateway.broker.connection import AnsweredConnection
from pos_gateway.broker.link import CONNECTION_ERRORS
from pos_gateway.broker.publisher import CONNECT_TIMEOUT
from pos_gateway.broker.topology import QUEUES

log = structlog.get_logger(__name__)

#: Seconds between two looks.
LOOK = 10.0
#: Seconds that stopping waits for the broker to say goodbye.
_GRACE = 1.0


class Depths:
    """Messages that are ready in each of the gateway's queues, looked at on a thread.

    It is silent about a broker that cannot be asked: others say so.
    """

    def __init__(self, broker_url: str) -> None:
        self._broker_url = broker_url
        #: As they were at the last look; nothing of a queue that could not be asked for.
        self.ready: dict[str, int] = {}
        self._connection: Connection | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="depths", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End; a broker that does not answer is not waited for. Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_GRACE)

    def look(self) -> None:
        """Ask for each queue's length."""
        try:
            self.ready = self._asked()
        except Exception as error:  # noqa: BLE001  (whatever it is, no order is to hear of it)
            log.debug("depths.unknown", error=str(error))
            self.ready = {}
            self._drop()

    def _asked(self) -> dict[str, int]:
        if self._connection is None:
            self._connection = AnsweredConnection(
                self._broker_url, heartbeat=0, connect_timeout=CONNECT_TIMEOUT
            )
            self._connection.ensure_connection(max_retries=max(0, len(self._connection.alt) - 1))
        ready = {}
        for queue in QUEUES:
            # Of a queue that is not there the broker says so by closing the channel.
            with suppress(ChannelError), self._connection.channel() as channel:
                ready[queue.name] = channel.queue_declare(queue.name, passive=True).message_count
        return ready

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
                self._connection.release()  # with a goodbye: the broker logs no lost client
