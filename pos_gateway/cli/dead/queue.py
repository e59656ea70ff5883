"""Looking through the queue ``orders.dead`` without taking anything from it.

Messages are received and not acknowledged, and go back in the end. All of them are received,
however few are wanted: what RabbitMQ gets back it puts behind what it got back before, so that
looking at the first ten only would leave the queue in another order.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from amqp import spec
from amqp.exceptions import NotFound
from kombu import Connection

from pos_gateway.broker import topology
from pos_gateway.broker.link import CONNECTION_ERRORS
from pos_gateway.broker.publisher import CONNECT_TIMEOUT
from pos_gateway.cli.dead.letter import Letter
from pos_gateway.errors import BrokerUnavailable
from pos_gateway.worker.properties import tolerate_bad_properties

#: Messages that are looked through; those behind them are not seen.
MOST = 20_000
#: Seconds without a message after which somebody else must have them.
_PATIENCE = 2.0
#: Messages that go back at once. RabbitMQ keeps the order of no more than 32, and falls behind,
#: and out of order, if it gets many such groups without having had the time for them.
_TOGETHER, _GROUPS = 32, 16
#: How often it is asked whether it has them.
_TRIES = 200


class DeadLetters:
    """The letters, in their order, while entered.

    Raises:
        BrokerUnavailable: the broker cannot be reached, or is gone.
    """

    def __init__(self, broker_url: str) -> None:
        self._connection = Connection(broker_url, connect_timeout=CONNECT_TIMEOUT)
        self._received: deque[Letter] = deque()
        self._come = 0
        self._consumer: Any = None
        #: What has been received and not acknowledged, in its order.
        self._held: dict[int, None] = {}
        #: Messages there were at the beginning. What comes later is not looked at: an order that
        #: is replayed and fails again would else be replayed without end.
        self.ready = 0

    def __enter__(self) -> Self:
        tolerate_bad_properties()  # it has whatever anybody has ever published
        try:
            self._connection.ensure_connection(max_retries=max(0, len(self._connection.alt) - 1))
            self._channel = self._connection.channel()
            try:
                self.ready = self._count()
            except NotFound:
                self.ready = 0  # no worker has declared it yet
        except CONNECTION_ERRORS as error:
            self._connection.collect(socket_timeout=1)
            raise BrokerUnavailable(
                f"cannot reach the broker at {self._connection.as_uri()}: {error}"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # If the broker is gone it has them back, though in another order.
        with suppress(*CONNECTION_ERRORS):
            self._give_back()
        self._connection.collect(socket_timeout=1)

    def __iter__(self) -> Iterator[Letter]:
        wanted = min(self.ready, MOST)
        if not wanted:
            return
        self._consumer = self._connection.Consumer(
            [topology.dead_queue],
            channel=self._channel,
            accept=None,
            on_message=self._receive,
            auto_declare=False,
            prefetch_count=wanted,
        )
        try:
            self._consumer.consume()
            while self._next_is_here():
                yield self._received.popleft()
        except CONNECTION_ERRORS as error:
            raise BrokerUnavailable(f"the broker is gone: {error}") from error

    def acknowledge(self, letter: Letter) -> None:
        """Remove it from the queue."""
        self._channel.basic_ack(letter.tag)
        del self._held[letter.tag]

    def _receive(self, message: Any) -> None:
        self._come += 1
        self._held[message.delivery_tag] = None
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

    def _give_back(self) -> None:
        if self._consumer is None:
            return
        while self._next_is_here():
            self._received.clear()
        self._consumer.cancel()
        tags, before = list(self._held), self._count()
        for start in range(0, len(tags), _TOGETHER):
            together = tags[start : start + _TOGETHER]
            self._channel.send_method(spec.Basic.Nack, "Lbb", (together[-1], True, True))
            if start // _TOGETHER % _GROUPS == _GROUPS - 1:
                self._wait_for(before + start + len(together))
        self._wait_for(before + len(tags))

    def _wait_for(self, count: int) -> None:
        """Until so many are there again, or somebody else has some of them."""
        for _ in range(_TRIES):
            if self._count() >= count:
                return

    def _count(self) -> int:
        return int(self._channel.queue_declare(topology.DEAD_KEY, passive=True).message_count)
