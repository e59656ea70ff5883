"""Looking through the queue ``orders.dead`` without taking anything from it.

Messages are received and not acknowledged, and go back when the channel is closed. It is one
consumer that gets them, and all of them, however few are wanted: only then does RabbitMQ put them
back as they were. What it gets back otherwise it keeps in any order, or behind what it got back
before.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from amqp.exceptions import NotFound
from kombu import Connection

from pos_gateway.broker import topology
from pos_gateway.broker.link import CONNECTION_ERRORS
from pos_gateway.broker.publisher import CONNECT_TIMEOUT
from pos_gateway.cli.dead.letter import Letter
from pos_gateway.errors import BrokerUnavailable
from pos_gateway.urls import mask_url
from pos_gateway.worker.properties import tolerate_bad_properties

#: Messages that are looked through; those behind them are not seen.
MOST = 20_000
#: Seconds without a message after which somebody else must have them, and for which the broker may
#: take to have all back.
_PATIENCE = 2.0


class DeadLetters:
    """The letters, in their order, while entered.

    Raises:
        BrokerUnavailable: the broker cannot be reached, or is gone.
    """

    def __init__(self, broker_url: str) -> None:
        self._shown = mask_url(broker_url)
        self._connection = Connection(broker_url, connect_timeout=CONNECT_TIMEOUT)
        self._received: deque[Letter] = deque()
        self._come = self._removed = 0
        #: Messages there were at the beginning. What comes later is not looked at: an order that
        #: is replayed and fails again would else be replayed without end.
        self.ready = 0

    def __enter__(self) -> Self:
        tolerate_bad_properties()  # it has whatever anybody has ever published
        try:
            self._connection.ensure_connection(max_retries=max(0, len(self._connection.alt) - 1))
            with suppress(NotFound):  # no worker has declared it yet
                self.ready = self._count()
            self._channel = self._connection.channel()
        except CONNECTION_ERRORS as error:
            self._connection.collect(socket_timeout=1)
            raise BrokerUnavailable(f"cannot reach the broker at {self._shown}: {error}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(*CONNECTION_ERRORS):  # if the broker is gone it has them back already
            while self._come and self._next_is_here():
                self._received.clear()
            self._channel.close()
            until = time.monotonic() + _PATIENCE
            while self._count() < self.ready - self._removed and time.monotonic() < until:
                pass  # whoever looks next is to see all of them
        self._connection.collect(socket_timeout=1)

    def __iter__(self) -> Iterator[Letter]:
        if not self.ready:
            return
        consumer = self._connection.Consumer(
            [topology.dead_queue],
            channel=self._channel,
            accept=None,
            on_message=self._receive,
            auto_declare=False,
            prefetch_count=min(self.ready, MOST),
        )
        try:
            consumer.consume()
            while self._next_is_here():
                yield self._received.popleft()
        except CONNECTION_ERRORS as error:
            raise BrokerUnavailable(f"the broker is gone: {error}") from error

    def acknowledge(self, letter: Letter) -> None:
        """Remove it from the queue."""
        self._channel.basic_ack(letter.tag)
        self._removed += 1

    def _receive(self, message: Any) -> None:
        self._come += 1
        self._received.append(Letter.of(message))

    def _next_is_here(self) -> bool:
        """Wait for the next one; False when all have come."""
        while not self._received:
            if self._come >= min(self.ready, MOST):
                return False
            try:
                self._connection.drain_events(timeout=_PATIENCE)
            except TimeoutError:
                return False
        return True

    def _count(self) -> int:
        with self._connection.channel() as channel:
            return int(channel.queue_declare(topology.DEAD_KEY, passive=True).message_count)
