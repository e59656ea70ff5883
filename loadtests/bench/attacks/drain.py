"""How fast a backlog goes, from the merchants' timeline: pairs of a moment and orders made then."""

from collections.abc import Sequence
from dataclasses import dataclass

Timeline = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Recovery:
    """A backlog's drain, once its merchant replies again."""

    #: Seconds until enough had come in a stretch of time; None: it was watched in vain.
    seconds: float | None
    #: Orders a second from then on, or (in vain) those of the best stretch.
    rate: float
    watched: float

    @classmethod
    def of(
        cls, made: Timeline, moment: float, since: float | None, width: float, now: float
    ) -> "Recovery":
        """The drain of a merchant that recovered at ``moment`` and is at its rate ``since`` then."""
        watched = now - moment
        if since is None:
            return cls(None, busiest(made, width) / width, watched)
        # Not beyond the last order: a backlog that is drained has no rate.
        end = min(now, made[-1][0])
        if end <= since:
            return cls(since - moment, busiest(made, width) / width, watched)
        return cls(since - moment, made_between(made, since, end) / (end - since), watched)


def full_since(made: Timeline, start: float, width: float, wanted: float) -> float | None:
    """When so many orders had been made within ``width`` seconds for the first time.

    At the earliest after as many seconds from ``start``, since the stretch lies behind it. None:
    never.
    """
    for end, in_stretch in _stretches(made, width):
        if in_stretch >= wanted:
            return max(end, start + width)
    return None


def busiest(made: Timeline, width: float) -> int:
    """The most orders that were made within so many seconds."""
    return max((number for _, number in _stretches(made, width)), default=0)


def made_between(made: Timeline, start: float, end: float) -> int:
    """Orders made after ``start``, up to ``end``."""
    return sum(number for at, number in made if start < at <= end)


def _stretches(made: Timeline, width: float) -> list[tuple[float, int]]:
    """At each moment: how many orders were made in the ``width`` seconds up to it."""
    stretches, first, total = [], 0, 0
    for at, number in made:
        total += number
        while made[first][0] <= at - width:
            total -= made[first][1]
            first += 1
        stretches.append((at, total))
    return stretches
