"""Who gets how much of the CPU that healthy orders leave, counted in orders."""

from dataclasses import dataclass

from loadtests.bench.small_core.core import Core

#: The part of the slots that merchants with a backlog have, while others have no work.
_SLOTS = 0.96


@dataclass(frozen=True, slots=True)
class Alone:
    """An adversary with the worker for itself: no healthy merchant has an order."""

    #: Orders a second.
    rate: float
    #: The worker's CPU, as a part of a whole core; and the part of the slots that the merchants held.
    cpu: float
    slots: float

    def used(self, core: Core) -> float:
        """The part of the quota that was used, or of the slots, whichever is more: 1 leaves no work undone."""
        return max(self.cpu / core.part, self.slots / _SLOTS)

    def could(self, core: Core, healthy: float) -> float:
        """Orders a second that are possible beside healthy orders.

        An order costs the CPU that it took alone, and healthy orders leave the quota less what the worker
        used for them. No more than alone: slots, merchants or the orders' own rate may be the limit.

        Args:
            core: the quota.
            healthy: the worker's CPU for the healthy orders undisturbed, as a part of a whole core.
        """
        left = max(0.0, core.part - healthy)
        return self.rate * min(1.0, left / self.cpu) if self.cpu else 0.0


def share(beside: float, could: float) -> float:
    """The part of what was possible that others got; nothing was possible: all of that."""
    return beside / could if could else 1.0
