"""Whether every order is accounted for: one create at its merchant, one event for the backend."""

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from kombu import Connection

from pos_gateway.broker import topology

#: Event types after which nothing more comes of an order.
TERMINAL = frozenset(
    f"order.{word}" for word in ("accepted", "rejected", "cancelled", "expired", "failed")
)


@dataclass(frozen=True, slots=True)
class Accounting:
    """The orders' outcomes. Adds up when all but ``orders`` and ``events`` are 0."""

    orders: int
    events: int
    never_created: int = 0
    created_twice: int = 0
    #: Sent again with the same key; the merchant made one order of it.
    sent_again: int = 0
    without_event: int = 0
    events_too_many: int = 0

    @property
    def adds_up(self) -> bool:
        """One create and one event for every order, and nothing else."""
        return self.events == self.orders and not any(
            (self.never_created, self.created_twice, self.without_event, self.events_too_many)
        )

    def __str__(self) -> str:
        faults = {
            "never created": self.never_created,
            "created twice": self.created_twice,
            "sent again": self.sent_again,
            "without an event": self.without_event,
            "events too many": self.events_too_many,
        }
        found = [f"{number} {fault}" for fault, number in faults.items() if number]
        return f"{self.orders} orders, {self.events} events: {', '.join(found) or 'adds up'}"


def account(
    order_ids: Collection[str],
    at_merchants: Iterable[dict[str, Any]],
    events: Iterable[dict[str, Any]],
) -> Accounting:
    """Compare the orders with the merchants' records and with the events that tell of them.

    Args:
        order_ids: the orders that were to be delivered; others are left out of account.
        at_merchants: ``MerchantsClient.orders()``.
        events: every event, as published.
    """
    wanted = set(order_ids)
    records = {each["order_id"]: each for each in at_merchants if each["order_id"] in wanted}
    created = {order_id for order_id, record in records.items() if record["creates"]}
    told = Counter(
        event["order_id"]
        for event in events
        if event["order_id"] in wanted and event["type"] in TERMINAL
    )
    return Accounting(
        orders=len(wanted),
        events=told.total(),
        never_created=len(wanted - created),
        created_twice=sum(record["creates"] > 1 for record in records.values()),
        sent_again=sum(record["requests"] > 1 for record in records.values()),
        without_event=len(wanted - told.keys()),
        events_too_many=sum(number - 1 for number in told.values()),
    )


def read_events(
    broker_url: str, number: int, *, patience: float = 60.0, linger: float = 0.5
) -> list[dict[str, Any]]:
    """Take events from ``order-events``, until this many have come and no more follow.

    Returns fewer when none has come for ``patience`` seconds; ``linger`` is how long to look for
    events that should not be there.
    """
    events: list[dict[str, Any]] = []
    with Connection(broker_url) as connection:
        channel = connection.default_channel
        channel.basic_consume(
            topology.events_queue.name,
            no_ack=True,
            callback=lambda message: events.append(json.loads(message.body)),
        )
        last, seen = time.monotonic(), 0
        while time.monotonic() - last < (patience if len(events) < number else linger):
            try:
                connection.drain_events(timeout=0.1)
            except TimeoutError:
                continue
            if len(events) > seen:
                last, seen = time.monotonic(), len(events)
    return events
