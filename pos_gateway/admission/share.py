"""A share of the slots that some merchants hold together: those of one provider, or the slow ones."""

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from pos_gateway.admission.parking import Line

if TYPE_CHECKING:
    from pos_gateway.admission.lane import Lane

#: Seconds that a call is taken to last before the first one has been answered.
UNKNOWN_DURATION = 1.0
#: Weight of the newest answer in the running mean of their durations.
NEWEST = 0.05


@dataclass(slots=True, eq=False)
class Share:
    """So many orders of its merchants may start at most; those under way before go on."""

    cap: int
    #: The same while it is silent.
    cap_of_silent: int
    #: A call is out for too long, and none of its merchants has answered since that started.
    silent: bool = False
    in_flight: int = 0
    #: Merchants that it has given a turn, which they have not had yet.
    promised: int = 0
    #: Orders of its merchants that wait here.
    waiting: int = 0
    #: Merchants whose turn came while it was full, in that order.
    blocked: "deque[Lane[Any]]" = field(default_factory=deque)
    #: The turns of their orders that are parked because too many wait for the share.
    line: Line = field(default_factory=Line)
    #: Running mean of its answers' durations in seconds, and when the last one came.
    _mean: float = UNKNOWN_DURATION
    _answered_at: float = -inf

    @property
    def is_full(self) -> bool:
        return self.in_flight >= self.cap_now

    @property
    def has_room_to_promise(self) -> bool:
        return self.in_flight + self.promised < self.cap_now

    @property
    def cap_now(self) -> int:
        """So many may start as things are."""
        return self.cap_of_silent if self.silent else self.cap

    @property
    def turn(self) -> float:
        """Seconds between two of its orders' turns, at full use of the share."""
        return self._mean / self.cap

    def answered(self, seconds: float, now: float) -> None:
        """One of its merchants has answered after so long."""
        self._mean += NEWEST * (seconds - self._mean)
        self._answered_at = now
        self.silent = False

    def out_too_long(self, started: float) -> None:
        """A call of then is slow, and has not come back."""
        self.silent = self.silent or self._answered_at < started
