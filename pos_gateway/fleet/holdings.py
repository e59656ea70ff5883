"""All permits held by this pod, and the allotments set in admission.

Nothing here blocks or logs, so green threads do not switch: no order starts between reading a
merchant's demand and allotting permits.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.lane import Demand
from pos_gateway.fleet.sync import Ask, Grant


@dataclass(slots=True)
class Holding:
    """One merchant's permits in this pod, and Redis's record of them.

    ``permits`` is admission's last allotment.
    """

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


class Holdings:
    """Merchants with orders or permits here. Merchants with neither are forgotten."""

    def __init__(self, admission: Admission[Any], *, idle: float) -> None:
        self._admission = admission
        self._idle = idle
        self._by_id: dict[str, Holding] = {}
        #: Merchants to ask for at every pulse, and at every beat.
        self.lacking: set[str] = set()
        self.contended: set[str] = set()
        #: Merchants whose ending calls are reported.
        self.draining: set[str] = set()
        self._position = 0

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def merchants(self) -> Collection[str]:
        """The ids."""
        return self._by_id.keys()

    @property
    def permits(self) -> int:
        """All merchants' permits together."""
        return sum(holding.permits for holding in self._by_id.values())

    def some(self, number: int) -> list[str]:
        """The next ``number`` merchants, round robin."""
        if self._position >= len(self._by_id):
            self._position = 0
        start, self._position = self._position, self._position + number
        return list(islice(self._by_id, start, start + number))

    def look(self, merchant_id: str, now: float, *, forced: bool = False) -> Ask | None:
        """The ask to report for a merchant; None: nothing new.

        Permits that are unused, or above the limit, are taken from admission here, before Redis can
        grant them to other pods.
        """
        holding = self._by_id.get(merchant_id)
        if holding is None:
            holding = self._by_id[merchant_id] = Holding(merchant_id, now)
        demand = self._admission.demand(merchant_id)
        kept = holding.observe(demand, now, self._idle)
        if kept < holding.permits:
            self._allot(holding, kept)
        ask = holding.ask(demand)
        if holding.is_over(ask) and not forced:
            self._forget(holding)
            return None
        return ask if forced or holding.is_news(ask) else None

    def affirm(self, merchant_id: str) -> bool:
        """Repeat the allotment to admission, which may have forgotten it; whether there is any."""
        holding = self._by_id.get(merchant_id)
        if holding is None or not holding.permits:
            return False
        self._admission.allot(merchant_id, holding.permits)
        return True

    def settle(self, asks: Sequence[Ask], grants: Sequence[Grant]) -> tuple[bool, list[str]]:
        """Apply the grants; returns whether orders may start, and merchants to report again."""
        more: list[str] = []
        raised = False
        for ask, grant in zip(asks, grants, strict=True):
            holding = self._by_id[ask.merchant_id]
            permits = holding.settle(ask, grant)
            raised = raised or permits > holding.permits
            if permits != holding.permits:
                self._allot(holding, permits)
            if permits < grant.permits:
                more.append(ask.merchant_id)
            self._classify(holding)
        return raised, more

    def revoke(self) -> None:
        """Drop all permits; calls in flight go on, and count as held."""
        for holding in self._by_id.values():
            self._allot(holding, 0)
        self.forgotten()

    def forgotten(self) -> None:
        """Redis has lost its records; the permits stay."""
        for holding in self._by_id.values():
            holding.forgotten()
        for group in (self.lacking, self.contended, self.draining):
            group.clear()

    def set_free(self, merchants: Iterable[str], now: float) -> None:
        """Give each merchant the full limit in this pod, until ``revoke``."""
        for merchant_id in list(merchants):
            holding = self._by_id.get(merchant_id)
            if holding is None:
                holding = self._by_id[merchant_id] = Holding(merchant_id, now)
            holding.permits = 0
            self._admission.allot(merchant_id, None)

    def forget_idle(self, merchants: Iterable[str], now: float) -> None:
        """After ``set_free``: forget merchants without orders for long."""
        for merchant_id in merchants:
            holding = self._by_id[merchant_id]
            was_idle = not holding.peak and now - holding.since >= self._idle
            holding.observe(self._admission.demand(merchant_id), now, self._idle)
            if was_idle and not holding.peak:
                self._allot(holding, 0)
                self._forget(holding)

    def _allot(self, holding: Holding, permits: int) -> None:
        holding.permits = permits
        self._admission.allot(holding.merchant_id, permits)
        self._classify(holding)

    def _classify(self, holding: Holding) -> None:
        for group, belongs in (
            (self.lacking, holding.lacks_permits),
            (self.contended, holding.contended),
            (self.draining, holding.is_draining),
        ):
            if belongs:
                group.add(holding.merchant_id)
            else:
                group.discard(holding.merchant_id)

    def _forget(self, holding: Holding) -> None:
        del self._by_id[holding.merchant_id]
        for group in (self.lacking, self.contended, self.draining):
            group.discard(holding.merchant_id)
