"""Latency estimates (EWMA), when a call exceeds an estimate, and whether a merchant is silent."""

from dataclasses import dataclass
from math import inf

from pos_gateway.domain.outcome import CallResult

#: A call is an outlier when it exceeds the mean by DEVIATIONS, as TCP decides when to retransmit
#: (RFC 6298), and by at least PART of the mean, and SECONDS.
DEVIATIONS, PART, SECONDS = 4, 0.25, 0.05
#: The assumed deviation after a single answer, as a part of the answer's time.
FIRST_DEVIATION = 0.125
#: EWMA weight of the newest answer.
NEWEST = 0.2
#: A merchant is silent when a call takes UNUSUAL times the mean answer time, and LEAST seconds.
UNUSUAL, LEAST = 5.0, 0.5
#: A call is late, and counts against the merchant, after this multiple of the mean.
LATE = 3.0


@dataclass(slots=True, eq=False)
class LatencyEstimate:
    """Running mean and deviation of answer times in seconds, of a merchant or of all merchants' first answers."""

    #: The mean answer time; None before the first answer.
    mean: float | None = None
    #: The mean absolute deviation.
    deviation: float = 0.0
    #: Answers measured.
    answers: int = 0
    #: Of a merchant: a call took too long, and no call has been answered since.
    silent: bool = False

    def is_now(self, seconds: float) -> None:
        """Start anew from a single answer's time."""
        self.mean, self.deviation, self.answers = seconds, FIRST_DEVIATION * seconds, 1

    def learn(self, seconds: float, weight: float) -> None:
        """Add an answer's time; ``weight`` is the answer's part beside all earlier answers."""
        if self.mean is None:
            self.is_now(seconds)
            return
        error = seconds - self.mean
        self.deviation += weight * (abs(error) - self.deviation)
        self.mean += weight * error
        self.answers += 1

    def exceeded_after(self, longest: float) -> float:
        """Seconds after which a call is an outlier; ``longest`` before the first answer."""
        if self.mean is None:
            return longest
        return self.mean + max(DEVIATIONS * self.deviation, PART * self.mean, SECONDS)

    def silent_after(self, unknown: float) -> float:
        """Seconds after which a call makes the merchant silent; ``unknown`` before the first answer."""
        return unknown if self.mean is None else max(LEAST, UNUSUAL * self.mean)

    def late_after(self, longest: float) -> float:
        """Seconds after which a call is late: long by any measure, and unusual for the merchant.

        A merchant who is always slow is not late.
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
