"""Publishing that is known to have worked: persistent, ``mandatory``, confirmed.

One connection, used for publishing only (an alarm at the broker blocks publishing connections,
and consuming must go on). Callers write under a lock and wait each for their own confirm, so
many of them share a round trip. Safe from threads, from green threads, and after a fork.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from pos_gateway.broker import topology
from pos_gateway.broker.connection import AnsweredConnection
from pos_gateway.broker.link import (
    CONNECTION_ERRORS,
    HEARTBEAT,
    AmqpLink,
    Confirm,
    Link,
    MemoryLink,
)
from pos_gateway.broker.message import Message
from pos_gateway.domain.errors import (
    BatchCutShort,
    BrokerUnavailable,
    PublishError,
    PublishRefused,
    Unroutable,
)
from pos_gateway.runtime.green import in_turns
from pos_gateway.runtime.urls import mask_url

#: Seconds to wait for a TCP connection and the AMQP handshake.
CONNECT_TIMEOUT = 5.0
#: Messages of a batch that are written in a row, before other green threads have their turns: two
#: milliseconds' worth. Eight at a time, a worker under full load was thousands of events behind.
IN_A_ROW = 50
#: Seconds without a confirm after which a patient caller hears of it, and after which it publishes
#: again on a connection that lives. Rarely: a queue without a quorum gets every copy in the end, and
#: each copy of a retry is tried again by itself until its order's ``deliver_by``.
CONFIRM_SLOW, REPUBLISH_AFTER = 60.0, 300.0
#: Seconds between attempts while the broker is away, doubling up to the second.
RECONNECT_AFTER = (0.2, 5.0)


class Publisher:
    """Publishes messages on a connection of its own, made at the first message.

    Args:
        broker_url: where the broker is; the nodes of a cluster with ``;`` between them.
        declare: declare the gateway's exchanges and queues on connecting. A user without the
            right to configure says False and has an operator declare them.
    """

    def __init__(self, broker_url: str, *, declare: bool = True) -> None:
        self._broker_url = broker_url
        self._declare = declare
        self._closed = threading.Event()
        self._link: Link | None = None
        self._pid = os.getpid()
        self._lock = threading.RLock()

    def publish(
        self,
        message: Message,
        *,
        timeout: float = 10.0,
        on_slow: Callable[[PublishError], None] = lambda _: None,
    ) -> None:
        """Return once the broker has stored the message in a queue.

        A connection that turns out to be dead is replaced once, and the message sent again
        (receivers deduplicate by ``message_id``).

        Args:
            message: what to publish.
            timeout: seconds to wait for the confirm.
            on_slow: hears of it now and then while it waits for that.

        Raises:
            BrokerUnavailable: not reachable, or no confirm in time; it may or may not be stored.
            PublishRefused: the broker said no.
            Unroutable: no queue takes it.
        """
        deadline = time.monotonic() + timeout
        sent = self._send(message)
        try:
            self._await_on(sent, deadline, on_slow)
        except BrokerUnavailable:
            if sent.is_first or time.monotonic() >= deadline:
                raise
            self._await_on(self._send(message), deadline, on_slow)

    def publish_batch(
        self,
        messages: Sequence[Message],
        *,
        on_sent: Callable[[], None] = lambda: None,
        on_trouble: Callable[[PublishError], None],
        timeout: float = 60.0,
    ) -> int:
        """Publish in this order on one connection; how many from the front the broker has stored.

        Fewer than all: it refused the next one, or no queue takes it (``on_trouble`` hears which),
        and the next batch declares the topology anew. Of those behind it any may be stored.

        One caller at a time has an order among its batches. A refusal, and only that, replaces the
        connection, and whoever else waits on it with it: such a caller has a publisher of its own.

        Args:
            messages: what to publish; each is sent at most once.
            on_sent: called once all are written, before the first confirm is waited for.
            on_trouble: hears of the first that was refused.
            timeout: seconds until the last confirm.

        Raises:
            BatchCutShort: no connection, it was lost, or a confirm did not come in time.
        """
        deadline = time.monotonic() + timeout
        confirms = self._send_all(messages)
        on_sent()
        for stored, confirm in enumerate(confirms):
            try:
                self._await(confirm, deadline)
            except BrokerUnavailable as error:
                raise BatchCutShort(stored, str(error)) from error
            except PublishError as error:
                on_trouble(error)
                self._drop_link()
                return stored
        if len(confirms) < len(messages):  # of the others nothing was written
            raise BatchCutShort(len(confirms), "the connection to the broker was lost")
        return len(messages)

    def publish_patiently(
        self,
        message: Message,
        *,
        on_trouble: Callable[[PublishError], None],
        patience: float = inf,
    ) -> None:
        """Publish, whatever it takes; ``on_trouble`` hears of every try that failed.

        For messages without which an order would be lost: while the broker is away, blocked by
        an alarm or missing a queue (it is declared again), the caller waits.

        Raises:
            BrokerUnavailable: the publisher was closed meanwhile, or ``patience`` (seconds) is
                at its end.
        """
        pause, longest = RECONNECT_AFTER
        until = time.monotonic() + patience
        while True:
            try:
                timeout = min(REPUBLISH_AFTER, patience)
                self.publish(message, timeout=timeout, on_slow=on_trouble)
                return
            except PublishError as error:
                if self._closed.is_set():
                    raise BrokerUnavailable("this publisher is closed") from error
                if time.monotonic() >= until:
                    raise BrokerUnavailable(f"not stored within {patience:g} s") from error
                on_trouble(error)
                if isinstance(error, Unroutable):
                    self._drop_link()  # the next one declares the topology anew
            self._closed.wait(pause)
            pause = min(longest, pause * 2)

    def connect(self) -> None:
        """Connect and declare now rather than at the first message. Raises as ``publish``."""
        self._mind_forks()
        with self._lock:
            self._connected()

    def close(self) -> None:
        """Close the connection; whoever still waits gets BrokerUnavailable. Idempotent."""
        self._mind_forks()
        self._closed.set()
        self._drop_link()

    def _drop_link(self, only: Link | None = None) -> None:
        """Give up the connection there is; or this one, unless it was replaced already."""
        with self._lock:
            if only is not None and self._link is not only:
                return
            link, self._link = self._link, None
            if link is not None:
                link.close()

    def _send_all(self, messages: Sequence[Message]) -> list[Confirm]:
        """Write as many as the connection takes, nothing of others' in between."""
        self._mind_forks()
        confirms: list[Confirm] = []
        with self._lock:
            try:
                link, _ = self._connected()
            except PublishError as error:
                raise BatchCutShort(0, str(error)) from error
            try:
                with link.together():
                    for message in in_turns(messages, IN_A_ROW):  # others do not get the lock
                        confirms.append(self._write(link, message))
                        if confirms[-1].error is not None:
                            break  # one that follows could come before it
            except CONNECTION_ERRORS as error:
                link.fail(error)
            except BaseException as error:
                link.fail(error)  # as in ``_write``
                raise
        return confirms

    def _send(self, message: Message) -> "_Sent":
        """Write the message."""
        self._mind_forks()
        with self._lock:
            link, is_first = self._connected()
            return _Sent(link, self._write(link, message), is_first)

    def _mind_forks(self) -> None:
        if self._pid != os.getpid():
            # Forked: the parent's socket is not ours to write to, its lock not ours to wait for.
            self._pid, self._lock, self._link = os.getpid(), threading.RLock(), None

    def _write(self, link: Link, message: Message) -> Confirm:
        """Write under the lock; what cannot be written is settled with the reason."""
        confirm = Confirm(message)
        try:
            link.send(confirm)
        except CONNECTION_ERRORS as error:
            link.fail(error)
            confirm.settle(BrokerUnavailable(f"the message could not be written: {error}"))
        except BaseException as error:
            # Half a frame may have left: nobody may write after it on this connection.
            link.fail(error)
            raise
        return confirm

    def _await_on(
        self, sent: "_Sent", deadline: float, on_slow: Callable[[PublishError], None]
    ) -> None:
        """Wait for a message's confirm; after a refusal the next one has another connection.

        A channel whose first message came while a cluster had no leader for the queue is refused
        each further one for ever, also once there is a leader (RabbitMQ 3.10).
        """
        try:
            self._await(sent.confirm, deadline, on_slow)
        except PublishRefused:
            self._drop_link(sent.link)
            raise

    def _await(
        self,
        confirm: Confirm,
        deadline: float,
        on_slow: Callable[[PublishError], None] = lambda _: None,
    ) -> None:
        while not confirm.wait(min(CONFIRM_SLOW, deadline - time.monotonic())):
            why = "no confirm came in time; the message may or may not be stored"
            error = BrokerUnavailable(why)
            if time.monotonic() >= deadline:
                raise error
            on_slow(error)
        if confirm.error is not None:
            raise confirm.error

    def _connected(self) -> tuple[Link, bool]:
        if self._closed.is_set():
            raise BrokerUnavailable("this publisher is closed")
        if self._link is not None and self._link.alive:
            return self._link, False
        connection = AnsweredConnection(
            self._broker_url, heartbeat=HEARTBEAT, connect_timeout=CONNECT_TIMEOUT
        )
        link: Link
        try:
            connection.ensure_connection(max_retries=max(0, len(connection.alt) - 1))
            if self._declare:
                topology.declare(connection)
            if connection.transport.driver_type == "amqp":
                link = AmqpLink(connection, self._lock)
            else:
                link = MemoryLink(connection)
        except CONNECTION_ERRORS as error:
            connection.collect(socket_timeout=1)
            raise BrokerUnavailable(
                f"cannot reach the broker at {mask_url(self._broker_url)}: {error}"
            ) from error
        self._link = link
        return link, True


class _Sent(NamedTuple):
    """A message that was written, or could not be."""

    link: Link
    confirm: Confirm
    #: Whether the connection was made for it.
    is_first: bool
