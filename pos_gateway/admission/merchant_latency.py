"""One merchant's latency estimate, and whether it is silent."""

from dataclasses import dataclass
from math import inf

from pos_gateway.admission.latency import LatencyEstimate
from pos_gateway.domain.outcome import CallResult

#: EWMA weight of the newest answer.
NEWEST = 0.2
#: A merchant is silent when a call takes UNUSUAL times its mean answer time, and LEAST seconds.
UNUSUAL, LEAST = 5.0, 0.5
#: A call is late, which counts against its merchant, after this multiple of the mean.
LATE = 3.0


@dataclass(slots=True, eq=False)
class MerchantLatency(LatencyEstimate):
    """One merchant's latency estimate. Times are seconds."""

    #: A call took too long, and none has been answered since.
    silent: bool = False

    def silent_after(self, unknown: float) -> float:
        """Seconds after which a call makes it silent; ``unknown`` before its first answer."""
        return unknown if self.mean is None else max(LEAST, UNUSUAL * self.mean)

    def late_after(self, longest: float) -> float:
        """Seconds after which a call is late: long by any measure, and unusual for the merchant.

        A merchant that is always slow is not late.
        """
        return inf if self.mean is None else max(longest, LATE * self.mean)

    def came_back(self, seconds: float, contact: CallResult, *, late: bool) -> None:
        """A call has finished after ``seconds``."""
        if contact in (CallResult.ANSWERED, CallResult.OVERLOADED):
            self.silent = False
        elif contact is CallResult.TIMED_OUT:
            self.silent = True
        if contact is CallResult.ANSWERED and not late:
            self.learn(seconds, NEWEST)
