"""Hydrates a long backlog from the back, in workers that do not lead.

The leader works from the front, uses helpers' events and never waits for a helper: a helper that
dies costs only the time of its own chunk.
"""

from collections.abc import Callable
from math import inf

from pos_gateway.events.hydration import YIELD_EVERY, weight
from pos_gateway.events.leadership import LOOK
from pos_gateway.events.outbox import BACK, Outbox, Row
from pos_gateway.ledger.lease import Lease, PeerLeases
from pos_gateway.runtime import failpoints
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.green import cooperatively

#: Number of events without a position above which the leader gets help.
HELP = 1000
#: Events in a chunk.
CHUNK = 200


class Helping:
    """Hydrates chunks from the back under this worker's lease. For a single caller at a time.

    Args:
        outbox: the events; not shared.
        lease: returns this worker's present lease, renewed by the ledger.
        seal: hydrates a row into the sealed text to store; None: left to the leader. Does not
            raise.
        chunk: events in a chunk.
        behind: number of events without a position above which the leader gets help.
    """

    def __init__(
        self,
        outbox: Outbox,
        lease: Callable[[], Lease],
        *,
        seal: Callable[[Row], str | None],
        clock: Clock = SYSTEM_CLOCK,
        chunk: int = CHUNK,
        behind: int = HELP,
    ) -> None:
        self._outbox = outbox
        self._lease = lease
        self._seal = seal
        #: Returns the minimum seconds between two pieces of a chunk.
        self.pause: Callable[[], float] = float
        self._clock = clock
        self._chunk = chunk
        self._behind = behind
        self._peers = PeerLeases(clock)
        self._alive: list[str] = []
        #: First row of the last chunk: rows behind are hydrated or leased, and skipped.
        self._below = BACK
        self._look_at = -inf

    def step(self) -> int:
        """Hydrate a chunk, if any; returns the number of events.

        Raises:
            LedgerUnavailable: the database is away; call again.
        """
        helper = self._lease().id
        # This worker's lease counts as live, even before its first beat: its other helpers use it.
        alive = [*self._look(), helper]
        rows = self._chunk_below(helper, alive)
        if not rows and self._below < BACK:  # there may be more at the back by now
            self._below = BACK
            rows = self._chunk_below(helper, alive)
        if rows:
            self._below = rows[-1].id
            failpoints.reach("events.leased")
            pieces = cooperatively(rows, YIELD_EVERY, weight, self.pause)
            bodies = ((row.id, self._seal(row)) for row in pieces)
            self._outbox.write((row_id, body) for row_id, body in bodies if body is not None)
        return len(rows)

    def _chunk_below(self, helper: str, alive: list[str]) -> list[Row]:
        return self._outbox.chunk(
            helper, alive, below=self._below, most=self._chunk, behind=self._behind
        )

    def _look(self) -> list[str]:
        """The live leases, as of the last second."""
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK
            leases = self._outbox.leases()
            self._peers.look(leases, asked=now)
            self._alive = [each[0] for each in leases if not self._peers.is_over(each[0])]
        return self._alive
