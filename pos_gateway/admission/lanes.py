"""All merchants' lanes."""

from collections.abc import Iterator

from pos_gateway.admission.bulkhead import UNASKED
from pos_gateway.admission.lane import Lane, Provider, Ticket
from pos_gateway.admission.limits import QuotaTerms
from pos_gateway.admission.quota import Quota

#: Lanes before idle lanes are dropped: twice the ten thousand merchants that a pod is expected to know.
LANES = 20_000


class Lanes(dict[str, Lane[Ticket]]):
    """Lanes by their merchants' ids. Merchants in a fleet begin without an allotment."""

    def __init__(self, *, in_fleet: bool) -> None:
        super().__init__()
        self._in_fleet = in_fleet
        #: Number of lanes at which idle lanes are dropped.
        self._full = LANES
        self._providers: dict[str, Provider] = {}
        #: By key.
        self.quotas: dict[str, Quota[Lane[Ticket]]] = {}

    def add(self, merchant_id: str, now: float) -> Lane[Ticket]:
        """A new merchant's lane."""
        if len(self) >= self._full:
            self._forget_idle(now)
        lane = self[merchant_id] = Lane(merchant_id, behind_at=now)
        if self._in_fleet:
            lane.bulkhead.agree(0, UNASKED)
        return lane

    def provider(self, name: str | None) -> Provider | None:
        """The state shared by a provider's merchants; None for a merchant without a provider."""
        if name is None:
            return None
        if name not in self._providers:
            self._providers[name] = Provider()
        return self._providers[name]

    def share(self, lane: Lane[Ticket], terms: tuple[QuotaTerms, ...], now: float) -> None:
        """Let the merchant share the quotas with these terms, and no further quotas."""
        present, lane.quotas = lane.quotas, tuple(self._quota(each, now) for each in terms)
        lane.lacks = None
        for quota in set(present).difference(lane.quotas):
            quota.remove(lane)
        for quota in set(lane.quotas).difference(present):
            quota.add(lane)
        for quota in lane.quotas:
            if quota.terms.key == lane.merchant_id:
                quota.allot(lane.bulkhead.part, now)

    def _quota(self, terms: QuotaTerms, now: float) -> Quota[Lane[Ticket]]:
        quota = self.quotas.get(terms.key)
        if quota is None:
            quota = self.quotas[terms.key] = Quota(terms, 0.0 if self._in_fleet else 1.0, now)
        quota.agree(terms, now)
        return quota

    def by(self, few: int) -> Iterator[list[Lane[Ticket]]]:
        """A snapshot of all lanes, ``few`` at a time."""
        lanes = list(self.values())
        for start in range(0, len(lanes), few):
            yield lanes[start : start + few]

    def _forget_idle(self, now: float) -> None:
        """Drop the idle lanes: a constant cost per newcomer, however many lanes are in use."""
        # An open breaker is kept, however many merchants come.
        for merchant_id in [key for key, lane in self.items() if lane.is_forgettable(now)]:
            self.share(self.pop(merchant_id), (), now)
        for key in [
            key for key, each in self.quotas.items() if not each.members and each.is_idle(now)
        ]:
            del self.quotas[key]
        # Where few are idle, the next look waits for as many newcomers as there are lanes.
        self._full = max(LANES, 2 * len(self))
