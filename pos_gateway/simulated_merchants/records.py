"""The truth: what arrived, how often, when, and what was made of it."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pos_gateway.simulated_merchants.feed import Feed, FeedEntry
from pos_gateway.simulated_merchants.lateness import Lateness
from pos_gateway.simulated_merchants.levels import Level, Timeline
from pos_gateway.simulated_merchants.orders import NEAR, ReceivedOrder, ReceivedOrders
from pos_gateway.simulated_merchants.profiles import Profile

#: Statuses and traces kept of one order; ``requests`` goes on counting.
STATUSES_KEPT = TRACES_KEPT = 16


@dataclass(slots=True, eq=False)
class Counts:
    """Sums over some requests."""

    requests: int = 0  # POSTs of orders
    creates: int = 0  # orders made
    lookups: int = 0
    cancels: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    statuses: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def arrived(self) -> None:
        """A request has come in."""
        self.in_flight += 1
        if self.in_flight > self.max_in_flight:
            self.max_in_flight = self.in_flight

    def ended(self, status: str) -> None:
        """A request has been answered or given up."""
        self.in_flight -= 1
        self.statuses[status] += 1

    def as_json(self) -> dict[str, Any]:
        """The sums by name."""
        return {name: getattr(self, name) for name in Counts.__slots__}


@dataclass(slots=True, eq=False)
class SimulatedMerchant:
    """A merchant: how it behaves, and what has come to it."""

    id: str
    group: str
    profile: Profile
    chance: Random
    counts: Counts = field(default_factory=Counts)
    #: How many have come to it.
    orders: int = 0


class Records:
    """Everything that happened since the start or the last reset."""

    def __init__(self, *, keep_bodies: bool = False, near: int = NEAR) -> None:
        #: Called after every change, while a request waits for one.
        self.on_change: Callable[[], None] | None = None
        self._keep_bodies = keep_bodies
        self._near = near
        self.orders = ReceivedOrders(near)
        self.reset()

    def reset(self) -> None:
        """Forget everything; requests still in flight end uncounted."""
        self.orders.close()
        self.orders = ReceivedOrders(self._near)
        self.merchants: dict[str, SimulatedMerchant] = {}
        self.totals = Counts()
        self.profiles: dict[str, Counts] = defaultdict(Counts)
        #: Orders made, by group and by bucket of the wall clock.
        self.timeline: dict[str, Timeline] = defaultdict(Timeline)
        #: Requests in flight, by group.
        self.levels: dict[str, Level] = defaultdict(Level)
        self.feed = Feed()
        self.lateness = Lateness()
        self.malformed = 0
        self._made = 0

    def arrived(self, merchant: SimulatedMerchant, order_id: str, body: bytes) -> ReceivedOrder:
        """A POST of an order has come in."""
        now, monotonic = time.time(), time.monotonic()
        order = self.orders.find(merchant.id, order_id)
        if order is None:
            order = ReceivedOrder(now, monotonic)
            self.orders.add(merchant.id, order_id, order)
            merchant.orders += 1
            self.feed.tell(FeedEntry(merchant.id, order_id, 0, now))
        order.last_at, order.last_monotonic = now, monotonic
        order.requests += 1
        if self._keep_bodies:
            order.body = body
        return order

    def made(
        self, merchant: SimulatedMerchant, order_id: str, order: ReceivedOrder, pending: float
    ) -> int:
        """The merchant has made the order and decides on it ``pending`` seconds after its POST.

        Returns the id that the merchant gives it.
        """
        self._made += 1
        order.creates += 1
        order.external_id = self._made
        order.cancelled = False
        order.decided_at = order.last_monotonic + pending if pending else 0.0
        now = time.time()
        self.timeline[merchant.group].change(now, 1)
        self.feed.tell(FeedEntry(merchant.id, order_id, order.creates, now))
        return order.external_id

    def changed(self) -> None:
        """Let those look who wait for something."""
        if self.on_change is not None:
            self.on_change()
