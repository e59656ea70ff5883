"""The truth: what arrived, how often, when, and what was made of it."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from loadtests.merchants.levels import BUCKETS, Level
from loadtests.merchants.profiles import Profile

#: Statuses and traces kept of one order; ``requests`` goes on counting.
STATUSES_KEPT = TRACES_KEPT = 16


@dataclass(slots=True)
class Order:
    """One order of one merchant, by the key under which it was sent."""

    first_at: float
    first_monotonic: float
    last_at: float = 0.0
    last_monotonic: float = 0.0
    requests: int = 0
    creates: int = 0
    external_id: int = 0
    cancelled: bool = False
    decided_at: float = 0.0
    statuses: list[str] = field(default_factory=list)
    #: The header ``traceparent`` of each POST that had one.
    traces: list[str] = field(default_factory=list)
    body: bytes | None = None

    def state(self) -> str:
        """The status that the merchant's API shows."""
        if self.cancelled:
            return "cancelled"
        return "accepted" if time.monotonic() >= self.decided_at else "pending"


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
class Merchant:
    """A merchant: how it behaves, and what has come to it."""

    id: str
    group: str
    profile: Profile
    chance: Random
    counts: Counts = field(default_factory=Counts)
    orders: dict[str, Order] = field(default_factory=dict)

    def made(self, order_id: str) -> Order | None:
        """The order, if the merchant has made it."""
        order = self.orders.get(order_id)
        return order if order is not None and order.creates else None


class Records:
    """Everything that happened since the start or the last reset."""

    def __init__(self, *, keep_bodies: bool = False) -> None:
        #: Called after every change, while somebody waits for one.
        self.on_change: Callable[[], None] | None = None
        self._keep_bodies = keep_bodies
        self.reset()

    def reset(self) -> None:
        """Forget everything; what is still under way ends uncounted."""
        self.merchants: dict[str, Merchant] = {}
        self.totals = Counts()
        self.profiles: dict[str, Counts] = defaultdict(Counts)
        #: Orders made, by group and by bucket of the wall clock.
        self.timeline: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        #: Requests in flight, by group.
        self.levels: dict[str, Level] = defaultdict(Level)
        self.malformed = 0
        self._made = 0

    def arrived(self, merchant: Merchant, order_id: str, body: bytes) -> Order:
        """A POST of an order has come in."""
        now, monotonic = time.time(), time.monotonic()
        order = merchant.orders.get(order_id)
        if order is None:
            order = merchant.orders[order_id] = Order(now, monotonic)
        order.last_at, order.last_monotonic = now, monotonic
        order.requests += 1
        if self._keep_bodies:
            order.body = body
        return order

    def made(self, merchant: Merchant, order: Order, pending: float) -> int:
        """The merchant has made the order and decides on it ``pending`` seconds after its POST.

        Returns the id that the merchant gives it.
        """
        self._made += 1
        order.creates += 1
        order.external_id = self._made
        order.cancelled = False
        order.decided_at = order.last_monotonic + pending if pending else 0.0
        self.timeline[merchant.group][int(time.time() * BUCKETS)] += 1
        return order.external_id

    def changed(self) -> None:
        """Let those look who wait for something."""
        if self.on_change is not None:
            self.on_change()

    def orders(self, merchant_id: str | None = None) -> Iterator[tuple[str, str, Order]]:
        """Every order, or one merchant's, as merchant id, order id, order."""
        for merchant in self.merchants.values():
            if merchant_id in (None, merchant.id):
                for order_id, order in merchant.orders.items():
                    yield merchant.id, order_id, order
