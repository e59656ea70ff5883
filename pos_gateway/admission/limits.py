"""What admission keeps to: the limits of this process, and what is agreed with a merchant."""

from dataclasses import dataclass

#: Fraction of the slots that heavy merchants never take.
RESERVE = 0.04


@dataclass(frozen=True, slots=True)
class Terms:
    """What is agreed with a merchant."""

    #: Its orders under way at once; 0 holds them back.
    limit: int
    #: Merchants of one provider are likely to fall silent together; None: it stands alone.
    provider: str | None = None
    #: A call that hangs may be ended before its time when others need its slot.
    may_be_cut_short: bool = True
    #: In a fleet, the limit is that of all its workers together.
    is_shared: bool = True
    #: Its orders that may start in a second; None: as many as there are.
    per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What admission keeps to."""

    #: Orders under way at once.
    slots: int = 200
    #: Seconds: a call that is out is late no sooner than this, and makes a merchant that has never
    #: answered silent no sooner.
    slow_after: float = 3.0
    #: Orders that a light merchant may have waiting here in any case if they lack a slot only, and
    #: any merchant whose record is here at most while it takes no orders.
    max_waiting: int = 20
    #: Seconds that an order of a merchant that takes none waits here at most.
    max_wait: float = 5.0
    #: Orders that may wait here, all merchants' together: ``room.py`` shares them out. Of those that
    #: lack a slot only, a light merchant has max_waiting and a heavy one 1 beyond it.
    max_blocked: int = 1000
    #: Bounds of a parked order's delay in seconds; the upper one is how late a merchant's
    #: recovery may be noticed by its backlog.
    shortest_park: float = 1.0
    longest_park: float = 30.0

    def __post_init__(self) -> None:
        for name in (
            "slots",
            "slow_after",
            "max_waiting",
            "max_wait",
            "max_blocked",
            "shortest_park",
        ):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}: must be greater than 0 (got {value!r})")
        if not self.longest_park >= self.shortest_park:
            raise ValueError(
                f"longest_park: must be at least shortest_park (got {self.longest_park!r})"
            )

    @property
    def reserve(self) -> int:
        """Slots that no heavy merchant takes."""
        return int(self.slots * RESERVE)

    @property
    def silent_budget(self) -> int:
        """Slots that all silent merchants together start calls in: a sixteenth, one at least."""
        return max(1, self.slots // 16)
