"""All merchants' lanes."""

from collections.abc import Iterator
from typing import Generic

from pos_gateway.admission.bulkhead import UNASKED
from pos_gateway.admission.lane import Lane, Provider, Ticket

#: Merchants that have a lane before the idle ones are dropped: twice the ten thousand that a pod is
#: expected to know.
LANES = 20_000


class Lanes(Generic[Ticket]):
    """Lanes by their merchants' ids. Merchants in a fleet begin without an allotment."""

    def __init__(self, *, in_fleet: bool) -> None:
        self._in_fleet = in_fleet
        self._lanes: dict[str, Lane[Ticket]] = {}
        #: Lanes at which idle ones are looked for.
        self._full = LANES
        self._providers: dict[str, Provider] = {}

    def __iter__(self) -> Iterator[Lane[Ticket]]:
        return iter(self._lanes.values())

    def get(self, merchant_id: str) -> Lane[Ticket] | None:
        """The merchant's lane; None if nothing is known of it."""
        return self._lanes.get(merchant_id)

    def add(self, merchant_id: str, now: float) -> Lane[Ticket]:
        """A new merchant's lane."""
        if len(self._lanes) >= self._full:
            self._forget_idle(now)
        lane = self._lanes[merchant_id] = Lane(merchant_id, behind_at=now)
        if self._in_fleet:
            lane.bulkhead.allotment = UNASKED
        return lane

    def provider(self, name: str | None) -> Provider | None:
        """The state that a provider's merchants share; None for a merchant without one."""
        if name is None:
            return None
        if name not in self._providers:
            self._providers[name] = Provider()
        return self._providers[name]

    def by(self, few: int) -> Iterator[list[Lane[Ticket]]]:
        """A snapshot of all lanes, ``few`` at a time."""
        lanes = list(self._lanes.values())
        for start in range(0, len(lanes), few):
            yield lanes[start : start + few]

    def _forget_idle(self, now: float) -> None:
        """Drop the idle lanes: a constant cost per newcomer, however many lanes are in use."""
        lanes = self._lanes.items()
        # An open breaker is kept, however many merchants come.
        self._lanes = {key: lane for key, lane in lanes if not lane.is_forgettable(now)}
        # Where few are idle, the next look waits for as many newcomers as there are lanes.
        self._full = max(LANES, 2 * len(self._lanes))
