"""The fleet's timing. All pods of a fleet must use the same."""

from dataclasses import dataclass, fields
from math import isfinite


@dataclass(frozen=True, slots=True)
class SyncTiming:
    """Seconds."""

    #: A pod that is silent for so long counts as dead: its permits are free.
    lease: float = 10.0
    #: Between two syncs of a pod without news: it learns that other pods lack permits.
    beat: float = 0.5
    #: Between two syncs of a pod that is owed permits, or has none and waiting orders.
    pulse: float = 0.1
    #: Between two attempts to join, while Redis is away.
    retry: float = 2.0
    #: How long changes are collected into one sync.
    batch: float = 0.005
    #: How long a pod keeps a permit where there are fewer than pods that want one.
    turn: float = 0.5
    #: Permits unused for so long are released.
    idle: float = 10.0
    #: Before an empty Redis grants its first permits. Pods that held permits when it lost its
    #: data report by then; if one does, it takes a lease.
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
        """How long a pod relies on its allotments after it last reached Redis.

        Less than the lease, by enough for two clocks that drift.
        """
        return self.lease * 2 / 3
