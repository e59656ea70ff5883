"""One merchant's permits in this pod, and Redis's record of them."""

from dataclasses import dataclass, replace

from pos_gateway.admission.lane import Demand
from pos_gateway.fleet.sync import Ask, Grant


@dataclass(slots=True)
class Holding:
    """``permits`` is admission's last allotment."""

    merchant_id: str
    #: Start of measuring ``peak``, in seconds of the monotonic clock.
    since: float
    permits: int = 0
    #: Redis's record for this pod; None: Redis has no record.
    reported: Ask | None = None
    #: Permits that Redis wants this pod to hold.
    target: int = 0
    contended: bool = False
    #: The highest number of orders in flight and waiting.
    peak: int = 0

    def observe(self, demand: Demand, now: float, idle: float) -> int:
        """Number of permits to keep, given the demand."""
        orders = demand.in_flight + demand.waiting
        self.peak = max(self.peak, orders)
        kept = min(self.permits, demand.limit)
        if now - self.since >= idle:
            kept = min(kept, self.peak)
            self.peak, self.since = orders, now
        return kept

    def ask(self, demand: Demand) -> Ask:
        """The ask to report."""
        return Ask(
            merchant_id=self.merchant_id,
            permits=self.permits,
            in_flight=demand.in_flight,
            wanted=min(demand.limit, demand.in_flight + demand.waiting),
            limit=demand.limit,
        )

    def is_news(self, ask: Ask) -> bool:
        """Whether to report now: lower use can wait for a beat or more."""
        reported = self.reported
        if reported is None:
            return bool(ask.permits or ask.in_flight or ask.wanted)
        return (
            ask.permits != reported.permits
            or ask.limit != reported.limit
            or ask.wanted > max(reported.wanted, ask.permits)
            or (reported.in_flight > ask.permits and ask.in_flight != reported.in_flight)
        )

    def is_over(self, ask: Ask) -> bool:
        """Whether the holding can be forgotten."""
        return not (self.reported or ask.permits or ask.in_flight or ask.wanted)

    def settle(self, ask: Ask, grant: Grant) -> int:
        """Apply the grant of an ask; returns the pod's permits from now on."""
        self.target, self.contended = grant.target, grant.contended
        reported = replace(ask, permits=grant.permits)
        self.reported = (
            reported if reported.permits or reported.in_flight or reported.wanted else None
        )
        return min(grant.permits, grant.target)

    def forgotten(self) -> None:
        """Redis has lost the record."""
        self.reported, self.contended, self.target = None, False, 0

    @property
    def lacks_permits(self) -> bool:
        """Whether the pod is owed permits, or has orders and not a single permit."""
        return self.reported is not None and (
            self.target > self.permits or (not self.permits and self.reported.wanted > 0)
        )

    @property
    def is_draining(self) -> bool:
        """Whether Redis counts calls above the permits: the end of each call is reported."""
        return self.reported is not None and self.reported.in_flight > self.permits
