"""A merchant's circuit breaker: whether the merchant is called at all.

A closed breaker admits every order. A breaker opens when too many of the last calls failed or were late,
and on an overloaded merchant's ``Retry-After``. After the time the breaker is half-open, and admits a single
probe at a time, with a shorter deadline. Two answered probes in a row close the breaker; a probe without an
answer opens the breaker again for twice as long. A minute without an order closes the breaker, too.
"""

import random
from dataclasses import dataclass
from enum import StrEnum

#: Calls in the window; fewer than the minimum say nothing.
WINDOW, MINIMUM = 20, 5
#: Shares of failed, and of late calls, at which the breaker opens.
FAILURE_RATE, SLOW_RATE = 0.5, 0.8
#: Seconds open at first, doubled each time up to the second number; both with jitter.
FIRST_OPEN, LONGEST_OPEN = 1.0, 30.0
#: Probes in flight at once while half-open, and how many in a row must be answered to close. A single
#: probe at a time: with hundreds of merchants down each probe holds a slot for seconds.
PROBES, PROBES_TO_CLOSE = 1, 2
#: A probe's part of the merchant's time limit, by how often the breaker has opened in a row. The last part is all of
#: the time limit, lest a merchant who has become slow for good be locked out.
TIME_LIMIT_SHARES = (0.5, 0.75, 1.0)

_ALL = (1 << WINDOW) - 1


class BreakerState(StrEnum):
    """The breaker's states."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True, eq=False)
class Breaker:
    """A merchant's breaker. The transitions are ``open``, ``half_open`` and ``close``."""

    state: BreakerState = BreakerState.CLOSED
    #: When an open breaker half-opens; in the past while the breaker is not open.
    until: float = 0.0
    #: Openings since the breaker was last closed.
    openings: int = 0
    #: Probes in flight; each carries the number of the half-open spell that admitted the probe.
    probes: int = 0
    spell: int = 0
    _answered: int = 0
    _calls: int = 0
    #: A bit for each call in the window, the newest lowest.
    _failed: int = 0
    _late: int = 0

    @property
    def is_closed(self) -> bool:
        return self.state is BreakerState.CLOSED

    @property
    def is_open(self) -> bool:
        return self.state is BreakerState.OPEN

    @property
    def lets_through(self) -> bool:
        """Whether an order may start, as far as the breaker is concerned."""
        if self.state is BreakerState.HALF_OPEN:
            return self.probes < PROBES
        return self.state is BreakerState.CLOSED

    @property
    def time_limit_share(self) -> float:
        """A probe's part of the merchant's time limit."""
        return TIME_LIMIT_SHARES[max(0, min(self.openings, len(TIME_LIMIT_SHARES)) - 1)]

    def is_tripped(self, overdue: int) -> bool:
        """Whether too many calls of the window, and ``overdue`` in flight, failed or were late."""
        calls = self._calls + overdue
        if calls < MINIMUM:
            return False
        late = self._late.bit_count() + overdue
        return self._failed.bit_count() >= FAILURE_RATE * calls or late >= SLOW_RATE * calls

    @property
    def calls(self) -> int:
        """Calls in the window, which is frozen unless the breaker is closed."""
        return self._calls

    @property
    def failed(self) -> int:
        """Failed calls in the window."""
        return self._failed.bit_count()

    @property
    def late(self) -> int:
        """Late calls in the window."""
        return self._late.bit_count()

    def record(self, *, failed: bool, late: bool) -> None:
        """Record a finished call."""
        self._calls = min(WINDOW, self._calls + 1)
        self._failed = (self._failed << 1 | failed) & _ALL
        self._late = (self._late << 1 | late) & _ALL

    def forget(self) -> None:
        """Clear the window."""
        self._calls = self._failed = self._late = 0

    def begin_probe(self) -> int:
        """Admit a probe; returns the spell for ``end_probe``."""
        self.probes += 1
        return self.spell

    def end_probe(self, spell: int, *, answered: bool | None) -> bool:
        """Record a finished probe (None: never sent); whether enough in a row were answered.

        A probe of an earlier half-open spell is ignored.
        """
        if spell != self.spell or self.state is not BreakerState.HALF_OPEN:
            return False
        self.probes -= 1
        self._answered += answered is True
        return self._answered >= PROBES_TO_CLOSE

    def open(self, now: float, *, at_least: float = 0.0) -> None:
        """Open for the backoff, or for ``at_least`` seconds if longer."""
        self.openings += 1
        backoff = min(LONGEST_OPEN, FIRST_OPEN * 2 ** min(self.openings - 1, 10))
        seconds = max(backoff * random.uniform(0.75, 1.0), at_least * random.uniform(1.0, 1.05))
        self.open_for(now, seconds)

    def open_for(self, now: float, seconds: float) -> None:
        """Open for ``seconds``; an open breaker stays open until the present end at least."""
        self.state = BreakerState.OPEN
        self.until = max(self.until, now + seconds)

    def half_open(self) -> None:
        """Admit probes."""
        self.state = BreakerState.HALF_OPEN
        self.spell += 1
        self.probes = self._answered = 0

    def close(self) -> None:
        """Admit every order."""
        self.state = BreakerState.CLOSED
        self.until = self.openings = self.probes = 0
        self.forget()
