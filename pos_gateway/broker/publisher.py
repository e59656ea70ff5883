"""Confirmed publishing: persistent, ``mandatory``, with publisher confirms.

One connection, used for publishing only (an alarm at the broker blocks publishing connections, and consuming must
continue). Callers write under a lock and each waits for a confirm of the caller's message; many callers share a round
trip. Safe from threads and from green threads.
"""

import threading
import time
from collections.abc import Callable, Sequence
from math import inf

import structlog
from kombu import Connection

from pos_gateway.broker import topology
from pos_gateway.broker.connection import AnsweredConnection
from pos_gateway.broker.link import AmqpLink, Confirms, Link, MemoryLink
from pos_gateway.broker.message import Message
from pos_gateway.broker.session import (
    CONFIRM_TIMEOUT,
    CONNECT_TIMEOUT,
    CONNECTION_ERRORS,
    HEARTBEAT,
)
from pos_gateway.broker.unreachable import unreachable
from pos_gateway.domain.errors import (
    BatchCutShort,
    BrokerUnavailable,
    PublishError,
    PublishRefused,
    Unroutable,
    copy_of,
)

log = structlog.get_logger(__name__)

#: Seconds without a confirm until the call of ``on_slow``.
CONFIRM_SLOW = 60.0
#: Seconds between reconnects while the broker is unreachable: the first, doubling up to the second.
RECONNECT_AFTER = (0.2, 5.0)
_NO_CONFIRM = "no confirm came in time; the message may or may not be stored"


class Publisher:
    """Publishes messages on a connection of the publisher, made at the first message.

    Args:
        broker_url: the broker's; a cluster's nodes with ``;`` between them.
        declare: declare the gateway's exchanges and queues on connecting, or check their presence.
        confirm_timeout: seconds without a message's confirm until the connection ends, and waiting callers republish
            on the next.
    """

    def __init__(
        self, broker_url: str, *, declare: bool = True, confirm_timeout: float = CONFIRM_TIMEOUT
    ) -> None:
        self._broker_url = broker_url
        self._declare = declare
        self._confirm_timeout = confirm_timeout
        self._closed = threading.Event()
        self._link: Link | None = None
        #: The delay queues may be missing: this process begins, or a delayed message was not stored.
        self._may_lack_delays = False
        self._lock = threading.RLock()

    def publish(
        self,
        message: Message,
        *,
        timeout: float = 10.0,
        on_slow: Callable[[PublishError], None] = lambda _: None,
    ) -> None:
        """Return once the broker has stored the message in a queue.

        A dead connection is replaced once, and the message sent again
        (receivers deduplicate by ``message_id``).

        Args:
            message: the message to publish.
            timeout: seconds to wait for the confirm.
            on_slow: called now and then during the wait.

        Raises:
            BrokerUnavailable: unreachable, or no confirm in time; the message may or may not be stored.
            PublishRefused: the broker refused the message.
            Unroutable: no queue takes the message.
        """
        deadline = time.monotonic() + timeout
        link, confirms, is_new = self._send([message])
        try:
            self._await(link, confirms, deadline, on_slow)
        except BrokerUnavailable:
            if is_new or time.monotonic() >= deadline:
                raise
            link, confirms, _ = self._send([message])
            self._await(link, confirms, deadline, on_slow)

    def publish_batch(
        self,
        messages: Sequence[Message],
        *,
        on_sent: Callable[[], None] = lambda: None,
        on_trouble: Callable[[PublishError], None],
        timeout: float = 60.0,
    ) -> int:
        """Publish in this order on one connection; returns how many from the front are stored.

        Fewer than all: the broker refused the next message, or no queue takes the message
        (``on_trouble`` gets the error), and the next batch declares the topology again. Later
        messages may be stored.

        Only batches of one caller at a time are in order. A refusal replaces the
        connection, failing further callers: publish batches on a separate publisher.

        Args:
            messages: the messages to publish; each is sent at most once.
            on_sent: called once all are written, before the first confirm is waited for.
            on_trouble: called with the first refusal.
            timeout: seconds until the last confirm.

        Raises:
            BatchCutShort: no connection, a lost connection, or a missing confirm.
        """
        deadline = time.monotonic() + timeout
        try:
            _, confirms, _ = self._send(messages)
        except PublishError as error:
            raise BatchCutShort(0, str(error)) from error
        on_sent()
        confirms.wait(deadline - time.monotonic())
        stored = confirms.stored
        if stored < len(messages):
            trouble = confirms.errors.get(stored) or BrokerUnavailable(_NO_CONFIRM)
            if isinstance(trouble, BrokerUnavailable):
                raise BatchCutShort(stored, str(trouble)) from trouble
            on_trouble(trouble)
            self._drop_link()
        return stored

    def publish_persistently(
        self,
        message: Message,
        *,
        on_trouble: Callable[[PublishError], None],
        timeout: float = inf,
    ) -> None:
        """Publish, retrying without limit; ``on_trouble`` gets the error of every failed try.

        For messages without which an order would be lost: while the broker is unreachable, blocked
        by an alarm or missing a queue (declared again, delay queues too), the caller waits.

        Raises:
            BrokerUnavailable: the publisher was closed, or ``timeout`` seconds are over.
        """
        pause, longest = RECONNECT_AFTER
        until = time.monotonic() + timeout
        while True:
            try:
                self.publish(message, timeout=timeout, on_slow=on_trouble)
                return
            except PublishError as error:
                if self._closed.is_set():
                    raise BrokerUnavailable("this publisher is closed") from error
                if time.monotonic() >= until:
                    raise BrokerUnavailable(f"not stored within {timeout:g} s") from error
                on_trouble(error)
                self._may_lack_delays |= message.delay > 0
                if isinstance(error, Unroutable):
                    self._drop_link()  # the next try declares the topology again
            self._closed.wait(pause)
            pause = min(longest, pause * 2)

    def start(
        self,
        messages: Sequence[Message],
        on_confirm: Callable[[Message, PublishError | None], None],
    ) -> None:
        """Write messages, and wait for no confirm.

        ``on_confirm`` gets each message once, with the error; None: the message is stored. The caller
        is the thread that reads confirms, or this thread for unwritten messages; ``on_confirm`` must
        neither block nor raise. A message with the error BrokerUnavailable may be stored.
        After a different error call ``renew`` before the next message.

        Raises:
            BrokerUnavailable: there is no connection. ``on_confirm`` was not called.
        """
        self._send(messages, on_confirm)

    def renew(self) -> None:
        """Drop the connection: the next message connects, and declares the topology again."""
        self._drop_link()

    def connect(self, *, delays: bool = False) -> None:
        """Connect and declare now rather than at the first message. Raises as ``publish``.

        Args:
            delays: the delay queues, too.
        """
        with self._lock:
            self._may_lack_delays |= delays
            self._connected()

    def close(self) -> None:
        """Close the connection; waiting callers get BrokerUnavailable. Idempotent."""
        self._closed.set()
        self._drop_link()

    def _drop_link(self, only: Link | None = None) -> None:
        """Close the current connection; with ``only``, if still current."""
        with self._lock:
            if only is not None and self._link is not only:
                return
            link, self._link = self._link, None
            if link is not None:
                link.close()

    def _send(
        self,
        messages: Sequence[Message],
        call: Callable[[Message, PublishError | None], None] | None = None,
    ) -> tuple[Link, Confirms, bool]:
        """Write messages without a gap for further callers; also returns whether the connection is new."""
        with self._lock:
            link, is_new = self._connected()
            confirms, why = Confirms(messages, call), ""
            try:
                link.send(confirms)
            except BaseException as error:
                # Half a frame may have left: nothing more may be written on this connection.
                why = f": {error}"
                link.fail(error)
                if not isinstance(error, CONNECTION_ERRORS):
                    raise
            finally:
                if not link.alive:
                    confirms.fail(BrokerUnavailable(f"the connection to the broker was lost{why}"))
        return link, confirms, is_new

    def _await(
        self,
        link: Link,
        confirms: Confirms,
        deadline: float,
        on_slow: Callable[[PublishError], None],
    ) -> None:
        """Wait for a message's confirm; after a refusal the next message gets a new connection.

        On a channel whose first message came while a cluster had no leader for the queue, every
        later message is refused, even once there is a leader (RabbitMQ 3.10).
        """
        while not confirms.wait(min(CONFIRM_SLOW, deadline - time.monotonic())):
            error = BrokerUnavailable(_NO_CONFIRM)
            if time.monotonic() >= deadline:
                raise error
            on_slow(error)
        if confirms.errors:
            if isinstance(confirms.errors[0], PublishRefused):
                self._drop_link(link)
            raise copy_of(confirms.errors[0])

    def _connected(self) -> tuple[Link, bool]:
        if self._closed.is_set():
            raise BrokerUnavailable("this publisher is closed")
        if self._link is not None:
            if self._link.alive:
                return self._link, False
            self._may_lack_delays |= self._link.lacks_exchange
        connection = AnsweredConnection(
            self._broker_url, heartbeat=HEARTBEAT, connect_timeout=CONNECT_TIMEOUT
        )
        link: Link
        try:
            connection.ensure_connection(max_retries=max(0, len(connection.alt) - 1))
            if self._declare:
                trouble = topology.declare(connection)
                if trouble is not None:
                    log.warning("canary.split_away", error=trouble)
                self._declare_delays(connection)
            if connection.transport.driver_type == "amqp":
                link = AmqpLink(connection, self._lock, self._confirm_timeout)
            else:
                link = MemoryLink(connection)
        except CONNECTION_ERRORS as error:
            connection.collect(socket_timeout=1)
            raise unreachable(self._broker_url, error) from error
        except PublishRefused:
            connection.collect(socket_timeout=1)
            raise
        self._link = link
        return link, True

    def _declare_delays(self, connection: Connection) -> None:
        """Declare the delay queues, if they may be missing, with a hundred requests."""
        if self._may_lack_delays:
            topology.declare_delays(connection)
            self._may_lack_delays = False
