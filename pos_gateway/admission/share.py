"""A share of the slots that some merchants hold together: those of one provider, or the slow ones."""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pos_gateway.admission.lane import Lane


@dataclass(slots=True, eq=False)
class Share:
    """At most ``cap`` orders of its merchants may start; those under way before are not cut short."""

    cap: int
    in_flight: int = 0
    #: Orders of its merchants that wait here.
    waiting: int = 0
    #: Merchants whose turn came while it was full, in that order.
    blocked: "deque[Lane[Any]]" = field(default_factory=deque)

    @property
    def is_full(self) -> bool:
        return self.in_flight >= self.cap
