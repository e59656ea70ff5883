"""Elects the event pipeline's leader: a worker, under its lease, in a growing epoch.

Leadership is a row, not a database lock: a paused worker would keep its connection and the
lock, and stall the pipeline. A leader whose lease is over is replaced, and its writes under the old
epoch change nothing.

A replaced leader may publish its last batch once more. This is harmless: a leader starts right
after a position up to which all events are stored, and goes up position by position. So even while
two leaders publish, each position stored for the first time is the next.
"""

from math import inf

import structlog

from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.events.outbox import Outbox, Term
from pos_gateway.ledger.lease import PeerLeases
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock

log = structlog.get_logger(__name__)

#: Seconds between reads of the leader's row.
LOOK = 1.0
#: Seconds until the next read while the lease's first beat is not durable: at a worker's start.
UNLEASED = 0.05
#: Reads skipped by a leader after stepping down.
_LEFT_OUT = 3


class Leadership:
    """Whether this worker leads. For a single caller at a time, and a single pipeline per lease.

    Args:
        outbox: has the leader's row.
        ledger: renews this worker's lease, and notifies the leader unless this worker leads.
    """

    def __init__(self, outbox: Outbox, ledger: Ledger, clock: Clock = SYSTEM_CLOCK) -> None:
        self._outbox = outbox
        self._ledger = ledger
        self._clock = clock
        self._peers = PeerLeases(clock)
        self._term: Term | None = None
        self._look_at = -inf
        #: Seconds between two reads of the row, while this worker does not lead.
        self.read_every = LOOK
        self._away_since: float | None = None
        self._said: str | None = None
        #: The highest assigned position seen by this worker, under any leader.
        self.seen = 0

    def term(self) -> Term | None:
        """This worker's term as leader; None: another worker leads, or may lead.

        Reads the row at most every ``LOOK`` seconds, and sooner while waiting for the lease.

        Raises:
            LedgerUnavailable: the database is away.
        """
        if self._term is not None and self._ledger.lease.holds(self._term.leader or ""):
            return self._term
        self.go_on(None)
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._look_at, self.read_every = now + LOOK, LOOK
            self.go_on(self._looked(now))
        return self._term

    @property
    def leads(self) -> bool:
        """Whether this worker led at the last ``term``. Safe from threads."""
        return self._term is not None

    def go_on(self, term: Term | None) -> None:
        """Continue with this term; None: the term is over."""
        self._term, self._ledger.notifies = term, term is None

    def step_down(self) -> None:
        """Resign, and leave other workers the first try.

        Raises:
            LedgerUnavailable: the database is away; this worker has stopped leading anyway.
        """
        term = self._term
        self.go_on(None)
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
        if self._away_since is not None:  # no worker could beat meanwhile
            self._peers.excuse(now - self._away_since)
            self._away_since = None
        self.seen = max(self.seen, found.assigned)
        self._peers.look(leases, asked=now)
        lease = self._ledger.lease
        if not lease.holds(lease.id):  # other workers would not see the lease's end
            if lease.is_pending:
                self.read_every = UNLEASED
                self._look_at = now + UNLEASED
            return None
        term = None
        # Also a row taken by this worker before, with a lost answer: a read may not be durable.
        if found.leader is None or lease.is_ours(found.leader) or self._peers.is_over(found.leader):
            term = self._outbox.take(lease.id, found.epoch)
        self._say("events.standing_by" if term is None else "events.leading")
        return term

    def _say(self, what: str) -> None:
        """Log each change once."""
        if what != self._said:
            self._said = what
            log.info(what)
