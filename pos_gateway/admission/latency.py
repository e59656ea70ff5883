"""Latency estimates (EWMA), and when a call exceeds them."""

from dataclasses import dataclass

#: A call is an outlier when it exceeds the mean by DEVIATIONS, as TCP decides when to retransmit
#: (RFC 6298), and by at least PART of the mean, and SECONDS.
DEVIATIONS, PART, SECONDS = 4, 0.25, 0.05
#: The deviation that is assumed after one answer, as a part of it.
FIRST_DEVIATION = 0.125


@dataclass(slots=True, eq=False)
class LatencyEstimate:
    """Running mean and deviation of answer times, in seconds."""

    #: The mean answer time; None before the first answer.
    mean: float | None = None
    #: The mean absolute deviation.
    deviation: float = 0.0
    #: Answers measured.
    answers: int = 0

    def is_now(self, seconds: float) -> None:
        """Start anew from one answer's time."""
        self.mean, self.deviation, self.answers = seconds, FIRST_DEVIATION * seconds, 1

    def learn(self, seconds: float, weight: float) -> None:
        """Add an answer's time; ``weight`` is its part beside all those before it."""
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
