"""Reads the queue ``orders.dead`` without removing messages.

Messages are received unacknowledged, and requeued when their channel is closed. One consumer receives all messages,
however few are wanted: only then does RabbitMQ requeue in place. Otherwise RabbitMQ requeues in any order, or after
earlier messages. Where there are more messages than a consumer can hold, the next consumer begins when the first is
full, and the channels are closed in the same order. The queue's order is then kept, too, as long as no message is
removed at the same time.
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
#: Seconds without a message after which a different consumer must hold the rest, and that the broker may take to
#: requeue all.
_TIMEOUT = 10.0


#: Seconds for letters to be back in the queue where order does not matter.
_SOON = 2.0


class Incomplete(AdminError):
    """Raised when fewer letters came than there were."""


class DeadLetterQueue:
    """The letters, in queue order, while entered.

    Args:
        broker_url: the broker's.
        first_window: letters that the first consumer holds at most; each further consumer holds twice as many. For a
            slow reader, which may end before the last letter: letters left over may change their order, and each
            acknowledgement waits for the broker. None: all letters keep their order, and are read to the end.

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
            # A reader in order looks at each letter for a moment.
            heartbeat=0 if self._is_in_order else HEARTBEAT,
        )
        self._alive_until = 0.0
        self._is_closing = False
        self._received: deque[DeadLetter] = deque()
        self._come = self._removed = 0
        #: The channels of letters, in order, and the last channel's number of unacknowledged letters.
        self._channels: list[Any] = []
        self._consumer: Any = None
        self._unacknowledged = self._size = 0
        #: Messages at the beginning. Later messages are ignored: a replayed order that fails again would otherwise be
        #: replayed without end.
        self.ready = 0
        #: Further consumers at the beginning: letters held there are not counted, and do not come.
        self.others = 0

    def __enter__(self) -> Self:
        tolerate_bad_properties(None)  # the queue may hold any foreign message
        try:
            self._connection.ensure_connection(max_retries=max(0, len(self._connection.alt) - 1))
            with suppress(NotFound):  # no worker has declared the queue yet
                self.ready, self.others = self._counts()
        except CONNECTION_ERRORS as error:
            self._connection.collect(socket_timeout=1)
            raise unreachable(self._broker_url, error) from error
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(*CONNECTION_ERRORS):  # a lost connection has requeued all
            self._is_closing = True
            while self._is_in_order and self._channels and self._next_is_here():
                self._received.clear()
            if self._consumer is not None:
                # The library warns of each message for a channel that is being closed.
                self._consumer.cancel()
            for channel in self._channels:
                channel.close()
            until = time.monotonic() + self._patience
            while self._count() < self.ready - self._removed and time.monotonic() < until:
                pass  # the next command must see all letters
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
        """Remove a letter from the queue. Raises BrokerUnavailable: the letter may still be there."""
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
        """Send a due heartbeat, and notice the lack of the broker's."""
        now = time.monotonic()
        if not self._is_in_order and now >= self._alive_until:
            self._alive_until = now + HEARTBEAT / 4
            with suppress(
                TimeoutError
            ):  # whatever the broker has sent since counts as a sign of life
                self._connection.drain_events(timeout=0.001)
            self._connection.heartbeat_check()

    def _receive(self, message: Any) -> None:
        self._come += 1
        self._unacknowledged += 1
        if not self._is_closing or self._is_in_order:
            self._received.append(DeadLetter.of(message))

    def _next_is_here(self) -> bool:
        """Wait for the next letter; False when all have come, or no letter comes in time."""
        until = time.monotonic() + self._patience
        while not self._received:
            if self._come >= self.ready:
                return False
            if not self._channels or self._unacknowledged >= self._size:
                self._consume()
            try:
                # A heartbeat from the broker ends the wait, too.
                self._connection.drain_events(timeout=max(0.001, until - time.monotonic()))
            except TimeoutError:
                return False
            if not self._received and time.monotonic() >= until:
                return False
        return True

    def _consume(self) -> None:
        """Start a consumer; the consumer holds letters until the channel is closed."""
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
