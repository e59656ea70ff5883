"""Admission's limits: this process's, and a merchant's terms."""

from dataclasses import dataclass

#: Fraction of the slots forbidden to heavy merchants.
RESERVE = 0.04
#: Seconds for which an order, or a bundle, waits in the worker at most: RabbitMQ closes a channel with a message
#: unacknowledged for half an hour (``consumer_timeout``), and a parked order is a new message.
LONGEST_HERE = 600.0


@dataclass(frozen=True, slots=True)
class QuotaTerms:
    """Limits of a POS for all merchants on a quota; None: not stated."""

    #: Names the app or credential, with a blank; or the only merchant's id, without.
    key: str
    #: Requests in any second.
    per_second: float | None = None
    #: Requests in a longer time, and the seconds.
    sustained: tuple[int, float] | None = None
    #: Orders in flight.
    at_once: int | None = None
    #: Requests of an order.
    requests: int = 1
    #: Of an app: refusals for the whole app pause the quota.
    is_app: bool = False


def names_quota(key: str) -> bool:
    """Whether the key is of several merchants' quota: an id of a merchant has no blank."""
    return " " in key


@dataclass(frozen=True, slots=True)
class Terms:
    """A merchant's terms."""

    #: Concurrency limit; 0 starts no order.
    limit: int
    #: Merchants of one provider are likely to fall silent together; None: no provider.
    provider: str | None = None
    #: A hanging call may be ended early when the slot is needed.
    may_be_cut_short: bool = True
    #: In a fleet, the limit is for all workers together.
    is_shared: bool = True
    #: Limits of requests, perhaps shared by several merchants.
    quotas: tuple[QuotaTerms, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The limits of this process."""

    #: Orders in flight at once.
    slots: int = 200
    #: CPU for this process, in cores.
    cores: float = 1.0
    #: Seconds before which no call is late, and no call makes a stranger (never answered) silent.
    slow_after: float = 3.0
    #: Minimum of waiting orders granted to a light merchant for want of a slot only, and the maximum of a merchant
    #: with a record here who takes no orders.
    max_waiting: int = 20
    #: Maximum seconds that an order waits here for a merchant who takes no orders.
    local_wait_timeout: float = 5.0
    #: Waiting orders of all merchants together: ``room.py`` divides them. Beyond, merchants that lack only a slot may
    #: have max_waiting (light) or 1 (heavy).
    max_blocked: int = 1000
    #: Bytes of memory for the large orders in this process: ``room.py`` divides these, too.
    max_bytes: int = 128 * 2**20
    #: Bounds of a parked order's delay in seconds; the upper bound is how late a backlog may notice the merchant's
    #: recovery.
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
        """Slots forbidden to heavy merchants."""
        return int(self.slots * RESERVE)

    @property
    def silent_budget(self) -> int:
        """Slots for the calls of all silent merchants together: a sixteenth, one at least."""
        return max(1, self.slots // 16)
