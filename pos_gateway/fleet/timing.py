"""How long things take between pods. All pods of a fleet must agree on these."""

from dataclasses import dataclass, fields
from math import isfinite


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    #: A pod that Redis has not heard of for so long is taken for dead: its permits are free.
    lease: float = 10.0
    #: Between two syncs of a pod that has nothing new to tell: it hears that others lack permits.
    beat: float = 0.5
    #: Between two syncs of a pod that is owed permits, or has none and orders waiting.
    pulse: float = 0.1
    #: Between two attempts to join, while Redis is away.
    retry: float = 2.0
    #: How long those changes are collected that go into one sync.
    batch: float = 0.005
    #: A permit goes round, where there are fewer than pods that wish one, after so long.
    turn: float = 0.5
    #: Permits that were not used for so long are given back.
    idle: float = 10.0
    #: Before the first permits are granted by a Redis that is empty. Pods that held permits when
    #: it lost its memory are heard of by then; if one is, it takes a lease.
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

        Less than the lease, by enough for two clocks that do not run alike.
        """
        return self.lease * 2 / 3
