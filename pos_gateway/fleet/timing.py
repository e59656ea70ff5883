"""The fleet's timing, the same in all pods of a fleet."""

from dataclasses import dataclass, fields
from math import isfinite


@dataclass(frozen=True, slots=True)
class SyncTiming:
    """Seconds."""

    #: Silence after which a pod counts as dead, and its permits as free.
    lease: float = 10.0
    #: Between two syncs of a pod without news; a sync tells the pod of other pods' lack of permits.
    beat: float = 0.5
    #: Between two syncs of a pod that is owed permits, or has waiting orders and no permit.
    pulse: float = 0.1
    #: Between two attempts to join while Redis is away.
    retry: float = 2.0
    #: For collecting changes into a sync.
    batch: float = 0.005
    #: For keeping a permit while more pods want a permit than there are permits.
    turn: float = 0.5
    #: Time without use until permits are released.
    idle: float = 10.0
    #: Before an empty Redis grants its first permits. Pods that held permits when Redis lost its
    #: data report by then; after the first report, this takes a lease.
    settle: float = 2.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            least = 0 if each.name in ("settle", "turn", "batch") else 0.001
            if not (isfinite(value) and value >= least):
                raise ValueError(f"{each.name}: must be at least {least} seconds (got {value!r})")
        if not self.beat * 3 <= self.lease:
            raise ValueError(f"beat: must be at most a third of the lease (got {self.beat!r})")

    @property
    def trust(self) -> float:
        """Seconds that a pod relies on its allotments after it last reached Redis.

        Below the lease by enough for two clocks that drift.
        """
        return self.lease * 2 / 3
