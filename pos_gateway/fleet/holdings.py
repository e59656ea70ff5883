"""All that this pod holds, and what it tells admission.

Green threads switch only where they block, and nothing here does: between reading what a
merchant's orders want and allotting permits, no order starts. In particular nothing is logged here.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from pos_gateway.fleet.admitting import Admitting
from pos_gateway.fleet.holding import Holding
from pos_gateway.fleet.sync import Ask, Grant


class Holdings:
    """Merchants that have orders here, or permits. Those that have neither are forgotten."""

    def __init__(self, admission: Admitting, *, idle: float) -> None:
        self._admission = admission
        self._idle = idle
        self._by_id: dict[str, Holding] = {}
        #: Merchants to be asked for at every pulse, and at every beat.
        self.hungry: set[str] = set()
        self.contended: set[str] = set()
        #: Merchants whose calls are to be watched as they end.
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
        """Of all merchants together."""
        return sum(holding.permits for holding in self._by_id.values())

    def some(self, number: int) -> list[str]:
        """The next so many merchants, round and round."""
        if self._position >= len(self._by_id):
            self._position = 0
        start, self._position = self._position, self._position + number
        return list(islice(self._by_id, start, start + number))

    def look(self, merchant_id: str, now: float, *, forced: bool = False) -> Ask | None:
        """What Redis is to be told of a merchant; None: nothing new.

        Permits that are not needed, or not agreed any more, are taken from admission here: before
        Redis can hear of it and give them to others.
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
        """Tell admission again what it is allotted: it may have forgotten, too. Whether it has any."""
        holding = self._by_id.get(merchant_id)
        if holding is None or not holding.permits:
            return False
        self._admission.allot(merchant_id, holding.permits)
        return True

    def settle(self, asks: Sequence[Ask], grants: Sequence[Grant]) -> tuple[bool, list[str]]:
        """Redis has heard these asks. Whether orders may start; of which merchants to tell more."""
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
        """Nothing is held any more; what is under way goes on, and counts as held."""
        for holding in self._by_id.values():
            self._allot(holding, 0)
        self.forgotten()

    def forgotten(self) -> None:
        """Redis has nothing on record; what is held is held."""
        for holding in self._by_id.values():
            holding.forgotten()
        for group in (self.hungry, self.contended, self.draining):
            group.clear()

    def set_free(self, merchants: Iterable[str], now: float) -> None:
        """Each merchant's limit is this pod's alone, until it is revoked."""
        for merchant_id in list(merchants):
            holding = self._by_id.get(merchant_id)
            if holding is None:
                holding = self._by_id[merchant_id] = Holding(merchant_id, now)
            holding.permits = 0
            self._admission.allot(merchant_id, None)

    def forget_idle(self, merchants: Iterable[str], now: float) -> None:
        """While set free: forget those that had no orders for long."""
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
            (self.hungry, holding.is_hungry),
            (self.contended, holding.contended),
            (self.draining, holding.is_draining),
        ):
            if belongs:
                group.add(holding.merchant_id)
            else:
                group.discard(holding.merchant_id)

    def _forget(self, holding: Holding) -> None:
        del self._by_id[holding.merchant_id]
        for group in (self.hungry, self.contended, self.draining):
            group.discard(holding.merchant_id)
