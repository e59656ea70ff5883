"""Reads the queue ``orders.dead`` without removing messages.

Messages are received unacknowledged, and requeued when their channel is closed. One consumer
receives all of them, however few are wanted: only then does RabbitMQ requeue them in place.
Otherwise it requeues in any order, or after earlier ones: so where there are more messages than
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
from pos_gateway.broker.session import CONNECT_TIMEOUT, CONNECTION_ERRORS, HEARTBEAT
from pos_gateway.broker.unreachable import unreachable
from pos_gateway.domain.errors import AdminError, BrokerUnavailable

#: Maximum unacknowledged messages of a consumer: AMQP's prefetch count has 16 bits.
WINDOW = 60_000
#: Seconds without a message after which the rest must be another consumer's, and that the broker
#: may take to requeue all.
_TIMEOUT = 10.0


#: Seconds that letters may take to be back in the queue where their order does not matter.
_SOON = 2.0


class Incomplete(AdminError):
    """Raised when fewer letters came than there were."""


class DeadLetterQueue:
    """The letters, in queue order, while entered.

    Args:
        broker_url: the broker's.
        first_window: letters that the first consumer holds at most; each further one holds twice as
            many. For a reader that takes its time, and may end before the last letter: those it
            leaves may change their order, and each acknowledgement waits until the broker has it.
            None: all keep their order, and are read to the end.

    Raises:
        BrokerUnavailable: the broker cannot be reached, or is lost.
        Incomplete: at the end of the iteration, if fewer letters came than there were.
    """

    def __init__(self, broker_url: str, *, first_window: int | None = None) -> None:
        self._broker_url = broker_url
        self._is_in_order = first_window is None
        self._window = first_window
        self._patience = _TIMEOUT if self._is_in_order else _SOON
        self._connection = AnsweredConnection(
            broker_url,
            connect_timeout=CONNECT_TIMEOUT,
            # A reader that keeps the order looks at each letter for a moment.
            heartbeat=0 if self._is_in_order else HEARTBEAT,
        )
        self._alive_until = 0.0
        self._is_closing = False
        self._received: deque[DeadLetter] = deque()
        self._come = self._removed = 0
        #: The channels of letters, in order, and how many unacknowledged letters the last one has.
        self._channels: list[Any] = []
        self._consumer: Any = None
        self._unacknowledged = self._size = 0
        #: Messages at the beginning. Later ones are ignored: an order that is replayed and fails
        #: again would otherwise be replayed without end.
        self.ready = 0
        #: Other consumers at that moment: what they hold is not counted, and does not come.
        self.others = 0

    def __enter__(self) -> Self:
        tolerate_bad_properties(None)  # the queue may hold any foreign message
        try:
            self._connection.ensure_connection(max_retries=max(0, len(self._connection.alt) - 1))
            with suppress(NotFound):  # no worker has declared it yet
                self.ready, self.others = self._counts()
        except CONNECTION_ERRORS as error:
            self._connection.collect(socket_timeout=1)
            raise unreachable(self._broker_url, error) from error
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(*CONNECTION_ERRORS):  # a lost connection has requeued them
            self._is_closing = True
            while self._is_in_order and self._channels and self._next_is_here():
                self._received.clear()
            if self._consumer is not None:
                # The library warns of each message that comes while its channel is being closed.
                self._consumer.cancel()
            for channel in self._channels:
                channel.close()
            until = time.monotonic() + self._patience
            while self._count() < self.ready - self._removed and time.monotonic() < until:
                pass  # the next command must see all of them
        self._connection.collect(socket_timeout=1)

    def __iter__(self) -> Iterator[DeadLetter]:
        try:
            while self._next_is_here():
                self._keep_alive()
                yield self._received.popleft()
        except CONNECTION_ERRORS as error:
            raise BrokerUnavailable(f"the broker is gone: {error}") from error
        if self._come < self.ready:
            raise Incomplete(
                f"only {self._come} of {self.ready} letters came within {self._patience:g} s; the others "
                "may be in the hands of another operator's command: try again"
            )

    def acknowledge(self, letter: DeadLetter) -> None:
        """Remove it from the queue. Raises BrokerUnavailable: it may still be there."""
        try:
            letter.channel.basic_ack(letter.tag)
            if not self._is_in_order:
                # Written to a connection that is lost it raises nothing; a reply comes after it.
                letter.channel.queue_declare(topology.DEAD_KEY, passive=True)
        except CONNECTION_ERRORS as error:
            raise BrokerUnavailable(f"the broker is gone: {error}") from error
        self._removed += 1
        if letter.channel is self._channels[-1]:
            self._unacknowledged -= 1

    def consumers(self) -> int:
        """How many consumers the queue has, this one included. Raises BrokerUnavailable."""
        try:
            with suppress(NotFound), self._connection.channel() as channel:
                declared = channel.queue_declare(topology.DEAD_KEY, passive=True)
                return int(declared.consumer_count)
        except CONNECTION_ERRORS as error:
            raise BrokerUnavailable(f"the broker is gone: {error}") from error
        return 0

    def wait(self, seconds: float) -> None:
        """Wait while the connection is kept alive. Raises BrokerUnavailable."""
        until = time.monotonic() + seconds
        try:
            while (left := until - time.monotonic()) > 0:
                self._keep_alive()
                with suppress(TimeoutError):
                    self._connection.drain_events(timeout=left)
        except CONNECTION_ERRORS as error:
            raise BrokerUnavailable(f"the broker is gone: {error}") from error

    def _keep_alive(self) -> None:
        """Send a heartbeat if one is due, and notice that none comes."""
        now = time.monotonic()
        if not self._is_in_order and now >= self._alive_until:
            self._alive_until = now + HEARTBEAT / 4
            with suppress(
                TimeoutError
            ):  # what the broker has sent meanwhile counts as its sign of life
                self._connection.drain_events(timeout=0.001)
            self._connection.heartbeat_check()

    def _receive(self, message: Any) -> None:
        self._come += 1
        self._unacknowledged += 1
        if not self._is_closing or self._is_in_order:
            self._received.append(DeadLetter.of(message))

    def _next_is_here(self) -> bool:
        """Wait for the next one; False when all have come, or none comes in time."""
        until = time.monotonic() + self._patience
        while not self._received:
            if self._come >= self.ready:
                return False
            if not self._channels or self._unacknowledged >= self._size:
                self._consume()
            try:
                # A heartbeat of the broker's ends it, too.
                self._connection.drain_events(timeout=max(0.001, until - time.monotonic()))
            except TimeoutError:
                return False
            if not self._received and time.monotonic() >= until:
                return False
        return True

    def _consume(self) -> None:
        """Start a consumer, which holds its letters until its channel is closed."""
        if self._consumer is not None:
            self._consumer.cancel()
        self._unacknowledged = 0
        self._size = WINDOW if self._window is None else min(self._window, WINDOW)
        self._window = self._window and 2 * self._window
        self._channels.append(self._connection.channel())
        self._consumer = self._connection.Consumer(
            [topology.dead_queue],
            channel=self._channels[-1],
            accept=None,
            on_message=self._receive,
            auto_declare=False,
            prefetch_count=min(self.ready - self._come, self._size),
        )
        self._consumer.consume()

    def _count(self) -> int:
        return self._counts()[0]

    def _counts(self) -> tuple[int, int]:
        with self._connection.channel() as channel:
            declared = channel.queue_declare(topology.DEAD_KEY, passive=True)
            return int(declared.message_count), int(declared.consumer_count)
