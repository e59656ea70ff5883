"""What admission keeps to: the limits of this process, and what is agreed with a merchant."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """What is agreed with a merchant."""

    #: Its orders under way at once; 0 holds them back.
    limit: int
    #: Whose share of the slots it draws on; None: it stands alone.
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
    #: Share of the slots that the merchants of one provider may hold together.
    provider_share: float = 0.5
    #: Share of the slots that all slow merchants may hold together.
    slow_share: float = 0.25
    #: Seconds after which a call is slow for any merchant.
    slow_after: float = 3.0
    #: Orders that a merchant may have waiting here in any case if they lack a slot only, and at
    #: most while it does not answer.
    max_waiting: int = 20
    #: Seconds that an order of a merchant that does not answer waits here at most.
    max_wait: float = 5.0
    #: Orders that may wait here, those aside that lack a slot only: a merchant may have as many as are
    #: left of it.
    max_blocked: int = 1000
    #: Bounds of a parked order's delay in seconds; the upper one is how late a merchant's
    #: recovery may be noticed by its backlog.
    shortest_park: float = 1.0
    longest_park: float = 30.0

    def __post_init__(self) -> None:
        for name in (
            *("slots", "provider_share", "slow_share", "slow_after"),
            *("max_waiting", "max_wait", "max_blocked", "shortest_park"),
        ):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}: must be greater than 0 (got {value!r})")
        for name in ("provider_share", "slow_share"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name}: must be at most 1 (got {getattr(self, name)!r})")
        if not self.longest_park >= self.shortest_park:
            raise ValueError(
                f"longest_park: must be at least shortest_park (got {self.longest_park!r})"
            )

    @property
    def reserve(self) -> int:
        """Slots that are to be free while many calls are suspect: a twentieth, one at least."""
        return max(1, self.slots // 20)

    def shares(self) -> tuple[int, int]:
        """Slots that the slow may hold together, and those that one provider's may; one at least.

        The latter only while any of them answers: else there is little to tell them from the slow.
        """
        slow, provider = self.slow_share, self.provider_share
        return max(1, int(self.slots * slow)), max(1, int(self.slots * provider))
