"""One merchant's orders in doubt: their queue, and their half of its concurrency limit.

New orders arrive for ever at an overloaded merchant, each with a deadline. Beside them, an order in
doubt would never be looked up; before them, a flood of look-ups would start no new order. Each kind
has half of the merchant's slot-time, and all of it while no order of the other kind waits.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from pos_gateway.admission.parking import ParkingQueue
from pos_gateway.admission.usage import Usage

if TYPE_CHECKING:
    from pos_gateway.admission.lane import Waiting

Ticket = TypeVar("Ticket")


@dataclass(slots=True, eq=False)
class LookUps(Generic[Ticket]):
    """Waiting look-ups of one merchant, first in, first out, and the slot-time of all its look-ups.

    No deadline and no clock orders them: an order that was parked comes back among look-ups alone.
    """

    usage: Usage = field(default_factory=Usage)
    parking: ParkingQueue = field(default_factory=ParkingQueue)
    #: Those that wait; done entries of the queue are skipped.
    waiting: int = 0
    queue: "deque[Waiting[Ticket]]" = field(default_factory=deque)

    def first(self) -> "Waiting[Ticket] | None":
        """The look-up whose turn is next."""
        while self.queue and self.queue[0].done:
            self.queue.popleft()
        return self.queue[0] if self.queue else None

    def go_first(self, all_calls: Usage, now: float) -> bool:
        """Whether the next start is a look-up's, of all calls' slot-time with these among them."""
        own, everything = self.usage, all_calls
        held = own.average(now) + own.held
        return 2 * held <= everything.average(now) + everything.held
