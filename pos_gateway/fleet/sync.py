"""A pod's report and Redis's answer, together a sync; and the fleet's timing."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

#: Maximum merchants in a sync: no sync may block Redis for long.
MAX_ASKS = 500
#: Permits, calls and limits above this are invalid.
MAX_PERMITS = 10**9


@dataclass(frozen=True, slots=True)
class SyncTiming:
    """The fleet's timing in seconds, the same in all pods of a fleet."""

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

    @property
    def trust(self) -> float:
        """Seconds that a pod relies on its allotments after it last reached Redis.

        Below the lease by enough for two clocks that drift.
        """
        return self.lease * 2 / 3


@dataclass(frozen=True, slots=True)
class Ask:
    """A merchant's permits in this pod, held and wanted."""

    merchant_id: str
    #: The allotment, against which the pod may start calls now.
    permits: int
    #: Calls in flight; above ``permits`` after an allotment was lowered.
    in_flight: int
    #: Permits for all orders in flight or waiting.
    wanted: int
    #: The merchant's concurrency limit, as known to this pod. The lowest of all pods counts.
    limit: int


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to an ask."""

    #: The pod's permits from now on: at least the ask's.
    permits: int
    #: The pod's due. Below ``permits``: other pods lack permits, and this pod releases the rest.
    #: Above: the pod gets more as soon as other pods release permits.
    target: int
    #: Some pod lacks permits: all pods ask again at every beat.
    contended: bool


@dataclass(frozen=True, slots=True)
class Report:
    """A pod's report to Redis. Harmless if sent twice, or if the answer is lost."""

    asks: Sequence[Ask] = ()
    #: Merchants with a breaker opened here, each with seconds from now.
    openings: Mapping[str, float] = field(default_factory=dict)
    #: Merchants with a breaker closed here.
    closings: Collection[str] = ()
    #: The pod holds only the permits in ``asks``: Redis drops the pod's earlier record.
    anew: bool = False
    #: The pod leaves; calls in flight count until their end, or for a lease.
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Redis's answer to a report."""

    #: In the order of the asks.
    grants: Sequence[Grant]
    #: Merchants of this pod for which another pod lacks permits.
    contended: Sequence[str]
    #: Merchants with a breaker opened elsewhere, each with seconds from now.
    opened: Mapping[str, float]
    #: Merchants with a breaker closed elsewhere.
    closed: Sequence[str]
    #: Seconds without grants: pods may hold permits unknown to Redis.
    settling: float
    #: Redis has lost its data: this pod still holds its permits, and reports all of them again.
    forgotten: bool
    #: Number of pods, roughly.
    pods: int
