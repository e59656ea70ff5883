"""How long answers take as a rule, and when that is exceeded."""

from dataclasses import dataclass

#: A call is an outlier when it is out for longer than the mean by so many deviations, as TCP decides
#: when to send again (RFC 6298), and by this part of the mean and so many seconds, at least.
DEVIATIONS, PART, SECONDS = 4, 0.25, 0.05
#: What is taken for the deviation after one answer, as a part of that.
FIRST_DEVIATION = 0.125


@dataclass(slots=True, eq=False)
class LatencyEstimate:
    """Running means. Times are seconds."""

    #: Of the answers' durations; None before the first.
    mean: float | None = None
    #: Of how far they are from it.
    deviation: float = 0.0
    #: How many answers they are of.
    answers: int = 0

    def is_now(self, seconds: float) -> None:
        """Whatever was usual before, an answer takes so long now."""
        self.mean, self.deviation, self.answers = seconds, FIRST_DEVIATION * seconds, 1

    def learn(self, seconds: float, weight: float) -> None:
        """An answer took so long; how much it counts beside all those before it."""
        if self.mean is None:
            self.is_now(seconds)
            return
        error = seconds - self.mean
        self.deviation += weight * (abs(error) - self.deviation)
        self.mean += weight * error
        self.answers += 1

    def exceeded_after(self, longest: float) -> float:
        """When a call is out for longer than is usual; after ``longest`` if nothing is known."""
        if self.mean is None:
            return longest
        return self.mean + max(DEVIATIONS * self.deviation, PART * self.mean, SECONDS)
