"""A share of the slots that some merchants hold together: those of one provider, or the slow ones."""

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pos_gateway.admission.lane import Lane


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
    #: Merchants whose turn came while it was full, in that order.
    blocked: "deque[Lane[Any]]" = field(default_factory=deque)
    #: When its last answer came.
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

    def answered(self, now: float) -> None:
        """One of its merchants has answered."""
        self._answered_at = now
        self.silent = False

    def out_too_long(self, started: float) -> None:
        """A call of then is slow, and has not come back."""
        self.silent = self.silent or self._answered_at < started
