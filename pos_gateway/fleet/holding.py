"""What this pod holds of one merchant's permits, and what Redis knows of it."""

from dataclasses import dataclass, replace

from pos_gateway.fleet.admitting import Demand
from pos_gateway.fleet.sync import Ask, Grant


@dataclass(slots=True)
class Holding:
    """One merchant's. ``permits`` is what admission was allotted last."""

    merchant_id: str
    #: Since when ``peak`` is measured: seconds of the monotonic clock.
    since: float
    permits: int = 0
    #: What Redis has on record for this pod; None: nothing.
    told: Ask | None = None
    #: What Redis wants this pod to hold.
    target: int = 0
    contended: bool = False
    #: The most orders that were here at once, under way or waiting.
    peak: int = 0

    def observe(self, demand: Demand, now: float, idle: float) -> int:
        """How many permits are to be kept, in view of what is wanted."""
        orders = demand.in_flight + demand.waiting
        self.peak = max(self.peak, orders)
        kept = min(self.permits, demand.limit)
        if now - self.since >= idle:
            kept = min(kept, self.peak)
            self.peak, self.since = orders, now
        return kept

    def ask(self, demand: Demand) -> Ask:
        """What is to be told."""
        return Ask(
            merchant_id=self.merchant_id,
            permits=self.permits,
            in_flight=demand.in_flight,
            wish=min(demand.limit, demand.in_flight + demand.waiting),
            limit=demand.limit,
        )

    def is_news(self, ask: Ask) -> bool:
        """Whether Redis is to hear of it now: for what is used less, a beat or more is soon enough."""
        told = self.told
        if told is None:
            return bool(ask.permits or ask.in_flight or ask.wish)
        return (
            ask.permits != told.permits
            or ask.limit != told.limit
            or ask.wish > max(told.wish, ask.permits)
            or (told.in_flight > ask.permits and ask.in_flight != told.in_flight)
        )

    def is_over(self, ask: Ask) -> bool:
        """Whether there is nothing to remember."""
        return not (self.told or ask.permits or ask.in_flight or ask.wish)

    def settle(self, ask: Ask, grant: Grant) -> int:
        """Redis has heard the ask and granted this; how many permits this pod has from now on."""
        self.target, self.contended = grant.target, grant.contended
        told = replace(ask, permits=grant.permits)
        self.told = told if told.permits or told.in_flight or told.wish else None
        return min(grant.permits, grant.target)

    def forgotten(self) -> None:
        """Redis has nothing on record."""
        self.told, self.contended, self.target = None, False, 0

    @property
    def is_hungry(self) -> bool:
        """It is owed permits, or has orders and not a single permit."""
        return self.told is not None and (
            self.target > self.permits or (not self.permits and self.told.wish > 0)
        )

    @property
    def is_draining(self) -> bool:
        """Redis counts calls that are over its permits: it is to hear of each that ends."""
        return self.told is not None and self.told.in_flight > self.permits
