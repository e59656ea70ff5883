"""Admission's limits: this process's, and a merchant's terms."""

from dataclasses import dataclass

#: Fraction of the slots that heavy merchants never take.
RESERVE = 0.04


@dataclass(frozen=True, slots=True)
class QuotaTerms:
    """Limits of a POS for all merchants that share the quota; None: not stated."""

    #: Names the app or credential, with a blank; or the only merchant's id, without.
    key: str
    #: Requests in any second.
    per_second: float | None = None
    #: Requests in a longer time, and the seconds.
    sustained: tuple[int, float] | None = None
    #: Orders in flight.
    at_once: int | None = None
    #: Requests that an order takes.
    requests: int = 1
    #: Of an app: refusals for the whole app pause the quota.
    is_app: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """A merchant's terms."""

    #: Its concurrency limit; 0 starts none of its orders.
    limit: int
    #: Merchants of one provider are likely to fall silent together; None: it has none.
    provider: str | None = None
    #: A call that hangs may be ended early when its slot is needed.
    may_be_cut_short: bool = True
    #: In a fleet, the limit is for all workers together.
    is_shared: bool = True
    #: Limits of requests, perhaps shared with other merchants.
    quotas: tuple[QuotaTerms, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The limits of this process."""

    #: Orders in flight at once.
    slots: int = 200
    #: CPU that this process may use, in cores.
    cores: float = 1.0
    #: Seconds before which no call is late, and none makes a stranger (never answered) silent.
    slow_after: float = 3.0
    #: Waiting orders that a light merchant may have in any case if they lack only a slot, and that
    #: any merchant whose record is here may have at most while it takes no orders.
    max_waiting: int = 20
    #: Seconds that an order of a merchant that takes none waits here at most.
    local_wait_timeout: float = 5.0
    #: Waiting orders of all merchants together: ``room.py`` divides them. Beyond that, merchants
    #: that lack only a slot may have max_waiting (a light one) or 1 (a heavy one).
    max_blocked: int = 1000
    #: Bytes of memory that the large orders in this process may take: ``room.py`` divides them, too.
    max_bytes: int = 128 * 2**20
    #: Bounds of a parked order's delay in seconds; the upper one is how late a backlog may notice
    #: its merchant's recovery.
    park_delay_min: float = 1.0
    park_delay_max: float = 30.0

    def __post_init__(self) -> None:
        for name in (
            "slots",
            "cores",
            "slow_after",
            "max_waiting",
            "local_wait_timeout",
            "max_blocked",
            "max_bytes",
            "park_delay_min",
        ):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}: must be greater than 0 (got {value!r})")
        if not self.park_delay_max >= self.park_delay_min:
            raise ValueError(
                f"park_delay_max: must be at least park_delay_min (got {self.park_delay_max!r})"
            )

    @property
    def reserve(self) -> int:
        """Slots that no heavy merchant takes."""
        return int(self.slots * RESERVE)

    @property
    def silent_budget(self) -> int:
        """Slots for the calls of all silent merchants together: a sixteenth, one at least."""
        return max(1, self.slots // 16)
