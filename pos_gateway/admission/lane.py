"""One merchant's lane: its bulkhead (the limit), those under way, and those that wait."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from pos_gateway.admission.parking import Line
from pos_gateway.admission.share import Share

Ticket = TypeVar("Ticket")

#: Seconds that a call is taken to last before the first one has returned.
UNKNOWN_DURATION = 1.0
#: Weight of the newest reply in the running mean of replies' durations.
NEWEST = 0.2
#: A call is slow for a merchant that answers, as a rule, so many times quicker.
UNUSUAL = 10.0
#: Seconds under which no call is slow, however quick its merchant is as a rule.
NEVER_SLOW = 0.5
#: Quick replies in a row after which a slow merchant counts as healthy again.
QUICK_REPLIES = 3
#: Seconds without a call after which a slow merchant gets the benefit of the doubt.
QUIET = 60.0


class Queued(Enum):
    """Where a lane stands in line, beside the shares that it may be blocked by."""

    NOWHERE = "nowhere"
    TURNS = "turns"


@dataclass(slots=True)
class Waiting(Generic[Ticket]):
    """An order that waits, and since when."""

    ticket: Ticket
    since: float


@dataclass(slots=True, eq=False)
class Lane(Generic[Ticket]):
    """A merchant that has, or had, orders under way or waiting."""

    merchant_id: str
    #: None while the merchant's record is being loaded; 0 while it is paused.
    limit: int | None
    provider: Share | None
    in_flight: int = 0
    waiting: deque[Waiting[Ticket]] = field(default_factory=deque)
    slow: bool = False
    #: Running mean of its calls' durations in seconds; None before the first reply.
    mean: float | None = None
    quick_replies: int = 0
    #: A call has been out for too long, and none has been answered since.
    silent: bool = False
    #: When its last call ended, whether or not it replied.
    last_call: float = 0.0
    #: The turns of its orders that are parked.
    line: Line = field(default_factory=Line)
    queued: Queued | Share = Queued.NOWHERE
    #: The share that has room again and gave this lane its turn.
    woken_by: Share | None = None

    @property
    def has_room(self) -> bool:
        return self.limit is not None and self.in_flight < self.limit

    @property
    def is_full(self) -> bool:
        """It is at its limit. A lane whose limit is not known yet has no room, but is not full."""
        return self.limit is not None and self.in_flight >= self.limit

    @property
    def is_troubled(self) -> bool:
        """Its orders wait for the merchant itself, not for somebody else's."""
        return self.slow or self.is_full

    @property
    def is_idle(self) -> bool:
        return not self.in_flight and not self.waiting

    def is_quiet(self, now: float) -> bool:
        """Nothing has been heard of it for so long that what is remembered says little."""
        return self.is_idle and now - self.last_call > QUIET

    @property
    def turn(self) -> float:
        """Seconds between two of its orders' turns, at full use of its limit."""
        return (UNKNOWN_DURATION if self.mean is None else self.mean) / max(1, self.limit or 1)

    def slow_after(self, longest: float) -> float:
        """Seconds after which a call is slow: long by any measure, or very unlike this merchant.

        The second matters when a hundred merchants stop answering together: until their calls
        are known to be slow they take slots like everybody else's.
        """
        if self.mean is None:
            return longest
        return min(longest, max(NEVER_SLOW, UNUSUAL * self.mean))

    def replied(self, seconds: float) -> None:
        """A call has returned after so many seconds."""
        self.mean = seconds if self.mean is None else self.mean + NEWEST * (seconds - self.mean)


@dataclass(slots=True, eq=False)
class Call(Generic[Ticket]):
    """An order under way: it holds a slot until it is released."""

    lane: Lane[Ticket]
    started: float
    #: What it was counted in when it started; its merchant may have moved since.
    provider: Share | None
    done: bool = False
