"""Reads the queue ``orders.dead`` without removing messages.

Messages are received unacknowledged, and requeued when their channel is closed. One consumer
receives all of them, however few are wanted: only then does RabbitMQ requeue them in place.
Otherwise it requeues in any order, or behind earlier ones: so where there are more messages than
one consumer can hold, the next consumer begins when it holds them, and their channels are closed in
that order. That keeps the order, too, as long as no message is removed meanwhile.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Self

from amqp.exceptions import NotFound

from pos_gateway.broker import topology
from pos_gateway.broker.connection import AnsweredConnection
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.broker.properties import tolerate_bad_properties
from pos_gateway.broker.session import CONNECT_TIMEOUT, CONNECTION_ERRORS
from pos_gateway.domain.errors import AdminError, BrokerUnavailable
from pos_gateway.runtime.urls import mask_url

#: Maximum unacknowledged messages of a consumer: AMQP's prefetch count has 16 bits.
WINDOW = 60_000
#: Seconds without a message after which the rest must be another consumer's, and that the broker
#: may take to requeue all.
_TIMEOUT = 10.0


class DeadLetterQueue:
    """The letters, in queue order, while entered.

    Raises:
        BrokerUnavailable: the broker cannot be reached, or is lost.
        AdminError: at the end of the iteration, if fewer letters came than there were.
    """

    def __init__(self, broker_url: str) -> None:
        self._shown = mask_url(broker_url)
        self._connection = AnsweredConnection(broker_url, connect_timeout=CONNECT_TIMEOUT)
        self._received: deque[DeadLetter] = deque()
        self._come = self._removed = 0
        #: The channels of letters, in order, and how many unacknowledged letters the last one has.
        self._channels: list[Any] = []
        self._consumer: Any = None
        self._unacknowledged = 0
        #: Messages at the beginning. Later ones are ignored: an order that is replayed and fails
        #: again would otherwise be replayed without end.
        self.ready = 0

    def __enter__(self) -> Self:
        tolerate_bad_properties(None)  # the queue may hold any foreign message
        try:
            self._connection.ensure_connection(max_retries=max(0, len(self._connection.alt) - 1))
            with suppress(NotFound):  # no worker has declared it yet
                self.ready = self._count()
        except CONNECTION_ERRORS as error:
            self._connection.collect(socket_timeout=1)
            raise BrokerUnavailable(f"cannot reach the broker at {self._shown}: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(*CONNECTION_ERRORS):  # a lost connection has requeued them
            while self._channels and self._next_is_here():
                self._received.clear()
            for channel in self._channels:
                channel.close()
            until = time.monotonic() + _TIMEOUT
            while self._count() < self.ready - self._removed and time.monotonic() < until:
                pass  # the next command must see all of them
        self._connection.collect(socket_timeout=1)

    def __iter__(self) -> Iterator[DeadLetter]:
        try:
            while self._next_is_here():
                yield self._received.popleft()
        except CONNECTION_ERRORS as error:
            raise BrokerUnavailable(f"the broker is gone: {error}") from error
        if self._come < self.ready:
            raise AdminError(
                f"only {self._come} of {self.ready} letters came within {_TIMEOUT:g} s; the others "
                "may be in the hands of another pos-gateway dlq: run it again"
            )

    def acknowledge(self, letter: DeadLetter) -> None:
        """Remove it from the queue."""
        letter.channel.basic_ack(letter.tag)
        self._removed += 1
        if letter.channel is self._channels[-1]:
            self._unacknowledged -= 1

    def _receive(self, message: Any) -> None:
        self._come += 1
        self._unacknowledged += 1
        self._received.append(DeadLetter.of(message))

    def _next_is_here(self) -> bool:
        """Wait for the next one; False when all have come, or none comes in time."""
        while not self._received:
            if self._come >= self.ready:
                return False
            if not self._channels or self._unacknowledged >= WINDOW:
                self._consume()
            try:
                self._connection.drain_events(timeout=_TIMEOUT)
            except TimeoutError:
                return False
        return True

    def _consume(self) -> None:
        """Start a consumer, which holds its letters until its channel is closed."""
        if self._consumer is not None:
            self._consumer.cancel()
        self._unacknowledged = 0
        self._channels.append(self._connection.channel())
        self._consumer = self._connection.Consumer(
            [topology.dead_queue],
            channel=self._channels[-1],
            accept=None,
            on_message=self._receive,
            auto_declare=False,
            prefetch_count=min(self.ready - self._come, WINDOW),
        )
        self._consumer.consume()

    def _count(self) -> int:
        with self._connection.channel() as channel:
            return int(channel.queue_declare(topology.DEAD_KEY, passive=True).message_count)
