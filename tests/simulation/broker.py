"""A broker with its guarantees: stored once confirmed, delivered at least once, never early."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Any

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message
from pos_gateway.domain.errors import BrokerUnavailable
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.threads import Event

#: Unacknowledged messages of a worker at most.
PREFETCH = 8


@dataclass
class Stored:
    message: Message
    number: int
    redelivered: bool = False

    def __str__(self) -> str:
        kind = self.message.headers["task"].rpartition("_")[0].rpartition(".")[2]
        return f"#{self.number} {kind} {self.message.message_id}{' again' * self.redelivered}"


class Broker:
    """The queue of orders, and the dead letters."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.process = Process("broker")
        self.ready: list[Stored] = []
        self.something_ready = Event(scheduler)
        self.dead: list[Message] = []
        self.channels: list[Channel] = []
        #: When delayed messages are delivered.
        self.held_back: list[float] = []
        self.away_until = -inf
        self._count = count(1)

    @property
    def is_away(self) -> bool:
        return self.scheduler.time < self.away_until

    @property
    def unacknowledged(self) -> int:
        return sum(len(channel.unacknowledged) for channel in self.channels)

    @property
    def is_empty(self) -> bool:
        return not (self.ready or self.held_back or self.unacknowledged)

    def store(self, message: Message) -> None:
        """Store a message durably."""
        if message.routing_key == topology.DEAD_KEY:
            self.dead.append(message)
        elif message.delay:
            due = self.scheduler.time + message.delay
            self.held_back.append(due)
            self.scheduler.spawn(self.process, "delay", lambda: self._hold_back(message, due))
        else:
            self.put(Stored(message, next(self._count)))

    def put(self, stored: Stored) -> None:
        self.ready.append(stored)
        self.something_ready.set()

    def cut(self, process: Process) -> None:
        """Close the process's connection: its unacknowledged messages are redelivered."""
        for channel in [each for each in self.channels if each.process is process]:
            channel.close()

    def go_away(self, seconds: float) -> None:
        """Unreachable for this long."""
        self.away_until = self.scheduler.time + seconds
        for channel in list(self.channels):
            channel.close()

    def _hold_back(self, message: Message, due: float) -> None:
        self.scheduler.sleep(due - self.scheduler.time)
        self.held_back.remove(due)
        self.put(Stored(message, next(self._count)))


class Channel:
    """A consumer's channel; each new connection has a new one."""

    def __init__(self, broker: Broker, process: Process) -> None:
        self._broker, self.process = broker, process
        self.is_open = True
        #: Consuming was cancelled; taken messages are still acknowledged.
        self.is_draining = False
        self.unacknowledged: list[Stored] = []
        broker.channels.append(self)

    def take(self) -> Stored | None:
        """The next message; None when the connection is lost, or consuming was cancelled."""
        broker = self._broker
        while self.is_open and not self.is_draining:
            if broker.ready and len(self.unacknowledged) < PREFETCH:
                at = 0 if broker.scheduler.random.random() < 0.8 else -1
                stored = broker.ready.pop(at)
                self.unacknowledged.append(stored)
                return stored
            broker.something_ready.clear()
            broker.something_ready.wait(0.25 if broker.ready else inf)
        return None

    def acknowledge(self, stored: Stored) -> None:
        """Without effect on a lost connection: the message is redelivered."""
        if stored in self.unacknowledged:
            self.unacknowledged.remove(stored)

    def requeue(self, stored: Stored) -> None:
        if stored in self.unacknowledged:
            self.unacknowledged.remove(stored)
            stored.redelivered = True
            self._broker.put(stored)

    def drain(self) -> None:
        self.is_draining = True
        self._broker.something_ready.set()

    def close(self) -> None:
        self.is_open = False
        self._broker.channels.remove(self)
        for stored in list(self.unacknowledged):
            self.unacknowledged.remove(stored)
            self._broker.put(Stored(stored.message, stored.number, redelivered=True))
        self._broker.something_ready.set()


class Publisher:
    """A publisher of a worker or a command, with the guarantees of ``broker/publisher.py``.

    Args:
        loses_confirm: called after a message is stored; whether its confirm is lost.
    """

    def __init__(self, broker: Broker, loses_confirm: Callable[[], bool]) -> None:
        self._broker = broker
        self._loses_confirm = loses_confirm

    def publish(self, message: Message) -> None:
        self.publish_persistently(message, on_trouble=lambda _error: None, timeout=0.0)

    def publish_persistently(
        self, message: Message, *, on_trouble: Callable[[Any], None], timeout: float = inf
    ) -> None:
        scheduler = self._broker.scheduler
        until = scheduler.time + timeout
        while True:
            scheduler.point("publish", message.routing_key)
            if not self._broker.is_away:
                self._broker.store(message)
                if not self._loses_confirm():
                    scheduler.point("publish.stored")
                    return
                scheduler.say("CONFIRM lost")
            if scheduler.time >= until:
                raise BrokerUnavailable(f"not stored within {timeout:g} s")
            scheduler.sleep(scheduler.random.uniform(0.1, 3))
