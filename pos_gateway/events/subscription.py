"""A copy of every event from now on; beside the backend's queue."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from kombu import Connection, Consumer, Queue

from pos_gateway.broker import topology
from pos_gateway.broker.connection import AnsweredConnection
from pos_gateway.broker.link import READ_TIMEOUT
from pos_gateway.broker.publisher import RECONNECT_AFTER
from pos_gateway.broker.session import CONNECT_TIMEOUT, CONNECTION_ERRORS, HEARTBEAT
from pos_gateway.broker.unreachable import with_right
from pos_gateway.domain.errors import BrokerUnavailable
from pos_gateway.runtime.urls import mask_url

#: Events buffered by the broker for a blocked terminal; older events are dropped.
_LENGTH = 10_000


class Subscription:
    """The bodies of events published during the iteration.

    The queue is exclusive, since RabbitMQ 4 forbids other transient queues, and is deleted with the
    connection. After a lost connection, events are missing until a new queue is bound, and
    ``notice`` is called. ``earlier``, called once the first queue is bound, returns the events to
    come first.
    """

    def __init__(
        self,
        broker_url: str,
        keys: Sequence[str],
        *,
        notice: Callable[[str], None],
        earlier: Callable[[], Iterable[bytes]] = tuple,
    ) -> None:
        self._url = broker_url
        self._keys = keys
        self._notice = notice
        self._earlier = earlier

    def __iter__(self) -> Iterator[bytes]:
        listened = False
        pause, longest = RECONNECT_AFTER
        while True:
            connection = AnsweredConnection(
                self._url, heartbeat=HEARTBEAT, connect_timeout=CONNECT_TIMEOUT
            )
            try:
                connection.ensure_connection(max_retries=max(0, len(connection.alt) - 1))
                received = self._listen(connection)
                self._notice("listening again" if listened else "listening; Ctrl-C ends")
                if not listened:
                    yield from self._earlier()
                listened, pause = True, RECONNECT_AFTER[0]
                yield from _bodies(connection, received)
            except CONNECTION_ERRORS as error:
                if not listened:
                    raise BrokerUnavailable(
                        f"cannot follow the events at {mask_url(self._url)}: {with_right(error)}"
                    ) from error
                if pause == RECONNECT_AFTER[0]:
                    self._notice(f"the broker is gone, events may be missed: {error}")
            finally:
                connection.collect(socket_timeout=1)
            time.sleep(pause)
            pause = min(longest, pause * 2)

    def _listen(self, connection: Connection) -> deque[bytes]:
        """A deque that receives the events' bodies from now on."""
        received: deque[bytes] = deque()
        channel = connection.channel()
        topology.declare_queues(connection, topology.events_queue)
        queue = Queue(
            durable=False,
            exclusive=True,
            auto_delete=True,
            queue_arguments={"x-max-length": _LENGTH, "x-overflow": "drop-head"},
        ).bind(channel)
        queue.queue_declare()
        for key in self._keys:
            queue.bind_to(topology.events_exchange.name, key)
        consumer = Consumer(
            channel,
            [queue],
            no_ack=True,
            auto_declare=False,
            on_message=lambda message: received.append(message.body),
        )
        consumer.consume()
        return received


def _bodies(connection: Connection, received: deque[bytes]) -> Iterator[bytes]:
    ticked = time.monotonic()
    while True:
        while received:
            yield received.popleft()
        with contextlib.suppress(TimeoutError):  # nothing came: check the heartbeat
            connection.drain_events(timeout=READ_TIMEOUT)
        if time.monotonic() - ticked >= READ_TIMEOUT:
            ticked = time.monotonic()
            connection.heartbeat_check()
