"""One merchant's circuit breaker: whether it is called at all.

Closed, it lets every order through. It opens at once when too many of the last calls failed or
came back late, and when the merchant asks to be left alone. After that time it is half open and
lets one order at a time through, with less patience; two in a row that are answered close it,
one that is not opens it again for twice as long.
"""

import random
from dataclasses import dataclass
from enum import StrEnum

#: Calls that are looked back at; fewer than the minimum say nothing.
WINDOW, MINIMUM = 20, 5
#: Shares of them that may fail, or come back late, before the breaker opens.
FAILURE_RATE, SLOW_RATE = 0.5, 0.8
#: Seconds that it stays open at first, doubled each time up to the second; both with jitter.
FIRST_OPEN, LONGEST_OPEN = 1.0, 30.0
#: Orders that are let through at once while it is half open, and how many of them in a row must
#: be answered. One, since with hundreds of merchants down each probe holds a slot for seconds.
PROBES, PROBES_TO_CLOSE = 1, 2
#: A probe's part of the merchant's time limit, by how often the breaker has opened in a row. In
#: the end it is all of it: a merchant that has become slow for good is not to be locked out.
PATIENCE = (0.5, 0.75, 1.0)

_ALL = (1 << WINDOW) - 1


class State(StrEnum):
    """The breaker's states."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True, eq=False)
class Breaker:
    """A merchant's breaker. Its transitions are ``open``, ``half_open`` and ``close``."""

    state: State = State.CLOSED
    #: Until when it is open.
    until: float = 0.0
    #: How often it has opened since it was last closed.
    openings: int = 0
    #: Probes under way; each carries the number of the half-open spell that let it through.
    probes: int = 0
    spell: int = 0
    _answered: int = 0
    _calls: int = 0
    #: One bit for each call looked back at, the newest lowest.
    _failed: int = 0
    _late: int = 0

    @property
    def is_closed(self) -> bool:
        return self.state is State.CLOSED

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    @property
    def lets_through(self) -> bool:
        """Whether an order may start, as far as the breaker is concerned."""
        if self.state is State.HALF_OPEN:
            return self.probes < PROBES
        return self.state is State.CLOSED

    @property
    def patience(self) -> float:
        """The part of the merchant's time limit that the next call is given."""
        if self.state is State.CLOSED:
            return 1.0
        return PATIENCE[max(0, min(self.openings, len(PATIENCE)) - 1)]

    def is_tripped(self, overdue: int) -> bool:
        """Whether too many of the last calls were bad, with those that are out for too long."""
        calls = self._calls + overdue
        if calls < MINIMUM:
            return False
        late = self._late.bit_count() + overdue
        return self._failed.bit_count() >= FAILURE_RATE * calls or late >= SLOW_RATE * calls

    def record(self, *, failed: bool, late: bool) -> None:
        """A call has come back."""
        self._calls = min(WINDOW, self._calls + 1)
        self._failed = (self._failed << 1 | failed) & _ALL
        self._late = (self._late << 1 | late) & _ALL

    def forget(self) -> None:
        """What the last calls were like says nothing any more."""
        self._calls = self._failed = self._late = 0

    def begin_probe(self) -> int:
        """An order is let through; what its ``end_probe`` is to be called with."""
        self.probes += 1
        return self.spell

    def end_probe(self, spell: int, *, answered: bool | None) -> bool:
        """A probe is back (None: it was never sent). Whether enough in a row were answered.

        One of an earlier half-open spell says nothing about this one.
        """
        if spell != self.spell or self.state is not State.HALF_OPEN:
            return False
        self.probes -= 1
        self._answered += answered is True
        return self._answered >= PROBES_TO_CLOSE

    def open(self, now: float, *, at_least: float = 0.0) -> None:
        """Let nothing through for a while, ``at_least`` as many seconds."""
        self.openings += 1
        backoff = min(LONGEST_OPEN, FIRST_OPEN * 2 ** min(self.openings - 1, 10))
        seconds = max(backoff * random.uniform(0.75, 1.0), at_least * random.uniform(1.0, 1.05))
        self.open_for(now, seconds)

    def open_for(self, now: float, seconds: float) -> None:
        """Let nothing through for so many seconds, or longer if it was to be open for longer."""
        if self.state is State.OPEN:
            seconds = max(seconds, self.until - now)
        self.state = State.OPEN
        self.until = now + seconds

    def half_open(self) -> None:
        """Let probes through."""
        self.state = State.HALF_OPEN
        self.spell += 1
        self.probes = self._answered = 0

    def close(self) -> None:
        """Let everything through."""
        self.state = State.CLOSED
        self.openings = self.probes = 0
        self.forget()
