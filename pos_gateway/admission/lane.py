"""One merchant's lane: its bulkhead (the limit), those under way, and those that wait."""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Ticket = TypeVar("Ticket")

#: Seconds that a call is taken to last before the first one has returned.
UNKNOWN_DURATION = 1.0
#: Weight of the newest reply in the running mean of replies' durations.
NEWEST = 0.2


@dataclass(slots=True)
class Waiting(Generic[Ticket]):
    """An order that waits, and since when."""

    ticket: Ticket
    since: float


@dataclass(slots=True)
class Lane(Generic[Ticket]):
    """A merchant that has orders under way or waiting."""

    #: None while the merchant's record is being loaded; 0 while it is paused.
    limit: int | None
    in_flight: int = 0
    waiting: deque[Waiting[Ticket]] = field(default_factory=deque)
    #: Running mean of its calls' durations in seconds.
    duration: float = UNKNOWN_DURATION
    #: When the order that was parked last is expected to have its turn.
    parked_until: float = 0.0

    @property
    def has_room(self) -> bool:
        return self.limit is not None and self.in_flight < self.limit

    @property
    def is_full(self) -> bool:
        """It is at its limit. A lane whose limit is not known yet has no room, but is not full."""
        return self.limit is not None and self.in_flight >= self.limit

    @property
    def is_idle(self) -> bool:
        return not self.in_flight and not self.waiting

    @property
    def turn(self) -> float:
        """Seconds between two of its orders' turns, at full use of its limit."""
        return self.duration / max(1, self.limit or 1)

    def replied(self, seconds: float) -> None:
        """A call has returned after so many seconds."""
        self.duration += NEWEST * (seconds - self.duration)
