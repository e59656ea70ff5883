"""All permits held by this pod, and the allotments set in admission.

Nothing here blocks or logs, so green threads do not switch: no order starts between reading a
merchant's demand and allotting permits.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Protocol

from pos_gateway.admission.lane import Demand
from pos_gateway.fleet.holding import Holding
from pos_gateway.fleet.sync import Ask, Grant


class Admitting(Protocol):
    """Admission, as called by the coordinator. Must not block; may call ``short``."""

    def demand(self, merchant_id: str) -> Demand:
        """The present demand; zeros for an unknown merchant."""
        ...

    def allot(self, merchant_id: str, permits: int | None) -> None:
        """Set the merchant's allotment; None: the merchant's own concurrency limit.

        Calls in flight go on. Without an allotment, a merchant has 0 permits.
        """
        ...

    def open_breaker(self, merchant_id: str, seconds: float) -> None:
        """A breaker for the merchant opened in another pod; stays open for ``seconds``."""
        ...

    def close_breaker(self, merchant_id: str) -> None:
        """A breaker for the merchant closed in another pod."""
        ...


class Holdings:
    """Merchants with orders or permits here. Merchants with neither are forgotten."""

    def __init__(self, admission: Admitting, *, idle: float) -> None:
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
