"""How quickly one merchant answers, and whether it does."""

from dataclasses import dataclass
from math import inf

from pos_gateway.admission.latency import LatencyEstimate
from pos_gateway.domain.outcome import CallResult

#: Weight of the newest answer in what is usual for the merchant.
NEWEST = 0.2
#: A merchant is silent when a call is out for so many times as long as its answers usually take,
#: and for so many seconds at least.
UNUSUAL, LEAST = 5.0, 0.5
#: A call is late, which counts against its merchant, after so many times the usual.
LATE = 3.0


@dataclass(slots=True, eq=False)
class Pace(LatencyEstimate):
    """One merchant's. Times are seconds."""

    #: A call was out for too long, and none has been answered since.
    silent: bool = False

    def silent_after(self, unknown: float) -> float:
        """When a call is out for too long; ``unknown`` for a merchant that has never answered."""
        return unknown if self.mean is None else max(LEAST, UNUSUAL * self.mean)

    def late_after(self, longest: float) -> float:
        """When a call counts against its merchant: long by any measure, and unusual.

        A merchant that always takes its time is no worse than it was.
        """
        return inf if self.mean is None else max(longest, LATE * self.mean)

    def came_back(self, seconds: float, contact: CallResult, *, late: bool) -> None:
        """A call has come back after so long."""
        if contact in (CallResult.ANSWERED, CallResult.OVERLOADED):
            self.silent = False
        elif contact is CallResult.TIMED_OUT:
            self.silent = True
        if contact is CallResult.ANSWERED and not late:
            self.learn(seconds, NEWEST)
