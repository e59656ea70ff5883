"""Who leads the event pipeline: one worker, under its lease, in an epoch that only grows.

The leader is a row, and not a lock of the database's: a lock is held as long as its connection is
open, and a worker that is paused keeps that open and holds everybody up. Who leads under a lease
that is over is replaced, and what it writes under its epoch changes nothing any more.

It may publish once more what it had in its hands. That does no harm. Whoever publishes begins right
behind a position up to which all is stored, and goes up from there one by one; so whatever two of
them publish at once, each position that is stored for the first time is the next one.
"""

from collections.abc import Callable
from math import inf

import structlog

from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.events.outbox import Outbox, Term
from pos_gateway.ledger.lease import Lease, Others
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock

log = structlog.get_logger(__name__)

#: Seconds between two looks at who leads.
LOOK = 1.0
#: Looks for which a leader that has stepped down leaves it to others.
_LEFT_OUT = 3


class Leadership:
    """Whether this worker leads. For one caller at a time, and one pipeline a lease.

    Args:
        outbox: where the row is.
        lease: this worker's lease at present, which somebody else beats for.
    """

    def __init__(
        self, outbox: Outbox, lease: Callable[[], Lease], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._outbox = outbox
        self._lease = lease
        self._clock = clock
        self._others = Others(clock)
        self._term: Term | None = None
        self._look_at = -inf
        self._away_since: float | None = None
        self._said: str | None = None
        #: The highest position that this worker has seen given, by whichever leader.
        self.seen = 0

    def term(self) -> Term | None:
        """The term in which this worker leads; None: it does not, or cannot be sure that it does.

        Looks at most every ``LOOK`` seconds.

        Raises:
            LedgerUnavailable: the database is away.
        """
        if self._term is not None and self._lease().holds(self._term.leader or ""):
            return self._term
        self._term, now = None, self._clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK
            self._term = self._looked(now)
        return self._term

    @property
    def leads(self) -> bool:
        """Whether this worker led when it last looked. Safe from threads."""
        return self._term is not None

    def go_on(self, term: Term | None) -> None:
        """The term has come so far; None: it is over."""
        self._term = term

    def step_down(self) -> None:
        """Lead no more, and let the others try first.

        Raises:
            LedgerUnavailable: the database is away; this worker does not lead all the same.
        """
        term, self._term = self._term, None
        self._look_at = self._clock.monotonic() + _LEFT_OUT * LOOK
        if term is not None:
            self._say("events.stepped_down")
            self._outbox.resign(term)

    def _looked(self, now: float) -> Term | None:
        try:
            found, leases = self._outbox.look()
        except LedgerUnavailable:
            if self._away_since is None:
                self._away_since = now
            raise
        if self._away_since is not None:  # nobody could beat meanwhile
            self._others.excuse(now - self._away_since)
            self._away_since = None
        self.seen = max(self.seen, found.assigned)
        self._others.look(leases, asked=now)
        lease = self._lease()
        if not lease.holds(lease.id):  # others would not see that it is over
            return None
        term = None
        # Also if it was taken before, and the answer was lost: what is only read may not be durable.
        if (
            found.leader is None
            or lease.is_ours(found.leader)
            or self._others.is_over(found.leader)
        ):
            term = self._outbox.take(lease.id, found.epoch)
        self._say("events.standing_by" if term is None else "events.leading")
        return term

    def _say(self, what: str) -> None:
        """Once, until it is otherwise."""
        if what != self._said:
            self._said = what
            log.info(what)
