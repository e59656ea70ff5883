"""A worker's lease: while the lease beats, the worker's claims hold.

A lease never compares two machines' clocks. The holder counts from before the beat was written,
other workers from their first look at the beat. The holder sees the lease's end before any
worker may act, whatever happens to the time of day. A worker whose lease has expired (paused,
suspended, starved, cut off from the database) goes on under a new id, and may not send under claims
of the old id. The same holds for a worker whose clock disagrees with the time of day: the clock may
have stood still while the machine did.
"""

import os
import socket
from collections.abc import Iterable
from math import inf
from typing import NamedTuple
from uuid import uuid4

from pos_gateway.runtime.clock import STEP, SYSTEM_CLOCK, Clock

#: Seconds of a lease, and between two beats.
LEASE, BEAT = 8.0, 2.0
#: Seconds by which a lease expires sooner for the holder than for other workers: the time from the
#: holder's last check to the byte sent after the check.
MARGIN = 2.0
#: Lease lengths without a beat after which a worker counts as dead, not as paused.
DEAD = 3


class Beat(NamedTuple):
    """A renewal of a lease, about to be written."""

    lease_id: str
    #: Time of the write on the holder's clock, the lease's start.
    at: float
    #: Unix time at which the holder's clock read zero, by the time of day.
    zero: float


#: A lease's row: id, number of beats, length in seconds, and the worker's clock at the last beat
#: (None: a worker of an earlier release).
LeaseRow = tuple[str, int, float, float | None]


class Lease:
    """A worker's lease. Safe from green threads.

    Args:
        seconds: time without a beat until other workers take over.
    """

    def __init__(self, seconds: float = LEASE, clock: Clock = SYSTEM_CLOCK) -> None:
        self.seconds = seconds
        self._clock = clock
        #: The worker's id, the prefix of its lease ids. No two processes share an id.
        self.worker = _new_id()
        self._number = 1
        #: The present id, under which the worker claims.
        self.id = f"{self.worker}-1"
        #: The beat from which the present id's lease counts: the last durable beat. Before any is
        #: durable, the first beat to be written, which may be durable without an answer.
        self._beat: Beat | None = None
        #: Whether a beat for the present id is durable: before, no claim holds.
        self._is_durable = False

    def clock(self) -> float:
        """This worker's clock."""
        return self._clock.monotonic()

    def is_ours(self, owner: str) -> bool:
        """Whether the id is this worker's, present or past."""
        return _worker_of(owner) == self.worker

    def beating(self) -> Beat:
        """The beat to write, for the present id, or for a new id if the present id has expired.

        Write the beat in any case: other workers count from their first look at the beat.
        """
        if self._beat is not None and self._is_over():
            self.end()
        now = self._clock.monotonic()
        beat = Beat(self.id, now, self._clock.now().timestamp() - now)
        self._beat = self._beat or beat
        return beat

    def beaten(self, beat: Beat) -> None:
        """Renew the lease: the beat is durable.

        A beat that became durable after the lease's end renews nothing: other workers may have seen
        the end.
        """
        if beat.lease_id == self.id and not self._is_over():
            self._beat, self._is_durable = beat, True

    def end(self) -> None:
        """Give up the present id, with all its claims."""
        self._number, self._beat, self._is_durable = self._number + 1, None, False
        self.id = f"{self.worker}-{self._number}"

    def holds(self, owner: str) -> bool:
        """Whether claims under this id still hold."""
        return self._is_durable and owner == self.id and not self._is_over()

    @property
    def is_pending(self) -> bool:
        """Whether no beat for the present id is durable yet."""
        return not self._is_durable

    @property
    def is_due(self) -> bool:
        """Whether a beat is due."""
        beat = self._beat
        if beat is None or self.is_pending:
            return True
        return self._clock.monotonic() >= beat.at + BEAT or self._is_over()

    def _is_over(self) -> bool:
        """Whether the lease has expired, or may have while this worker's clock stood still."""
        beat, now = self._beat, self._clock.monotonic()
        if beat is None or now >= beat.at + self.seconds - MARGIN:
            return True
        return abs(self._clock.now().timestamp() - now - beat.zero) >= STEP


class _Seen(NamedTuple):
    """A lease at the last ``look``."""

    beat: int
    seconds: float
    #: Time of the first look at this beat, on this worker's clock.
    since: float
    #: The peer's clock at this beat.
    clock: float | None


class PeerLeases:
    """Peers' leases, as seen by this worker."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        #: Each worker's leases, oldest first.
        self._of: dict[str, list[str]] = {}
        self._asked = -inf

    def look(self, rows: Iterable[LeaseRow], asked: float) -> None:
        """Take in all leases of the database.

        Args:
            rows: the leases.
            asked: time of the request, on this worker's clock: a worker that was paused since knows
                nothing of the time in between.
        """
        now = self._clock.monotonic()
        self._asked = asked
        before, self._seen, self._of = self._seen, {}, {}
        for lease_id, beat, seconds, clock in rows:
            known = before.get(lease_id)
            since = known.since if known is not None and known.beat == beat else now
            self._seen[lease_id] = _Seen(beat, seconds, since, clock)
            self._of.setdefault(_worker_of(lease_id), []).append(lease_id)
        for of_one in self._of.values():
            of_one.sort(key=_number_of)

    def excuse(self, seconds: float) -> None:
        """Do not count an outage of the database as silence: no worker could beat."""
        self._seen = {
            i: seen._replace(since=seen.since + seconds) for i, seen in self._seen.items()
        }

    def know(self, lease_ids: Iterable[str]) -> bool:
        """Whether the last ``look`` decides which leases are over: no lease has run out since."""
        now = self._clock.monotonic()
        return all(
            (seen := self._seen.get(lease_id)) is not None
            and (now - seen.since < seen.seconds or self.is_over(lease_id))
            for lease_id in lease_ids
        )

    def is_over(self, lease_id: str) -> bool:
        """Whether claims under this id may be taken over.

        A missing lease was released, if ``look`` was called after the claim was read: the lease may
        be younger than an earlier ``look``.
        """
        return self._silent_for(lease_id, 1)

    def may_have_died(self, lease_id: str) -> bool:
        """Whether the holder of an expired lease neither released it nor holds a later lease.

        A holder that goes on was only stalled, or cut off from the database.
        """
        return lease_id in self._seen and lease_id == self._of[_worker_of(lease_id)][-1]

    def has_died(self, lease_id: str) -> bool:
        """Whether the holder has been silent for long enough to count as dead."""
        return self.may_have_died(lease_id) and self._silent_for(lease_id, DEAD)

    def clock_of(self, lease_id: str) -> float | None:
        """The worker's clock at the last known beat; None: unknown."""
        leases = self._of.get(_worker_of(lease_id))
        return self._seen[leases[-1]].clock if leases else None

    def has_gone(self, lease_id: str) -> bool:
        """Whether the worker has no live lease."""
        return all(self.is_over(each) for each in self._of.get(_worker_of(lease_id), ()))

    def long_over(self, times: float) -> list[str]:
        """Leases silent for ``times`` their length: their rows can be removed."""
        return [lease_id for lease_id in self._seen if self._silent_for(lease_id, times)]

    def _silent_for(self, lease_id: str, times: float) -> bool:
        seen = self._seen.get(lease_id)
        return seen is None or self._asked - seen.since >= times * seen.seconds


def _worker_of(lease_id: str) -> str:
    return lease_id.rpartition("-")[0]


def _number_of(lease_id: str) -> int:
    return int(lease_id.rpartition("-")[2])


def _new_id() -> str:
    return f"{socket.gethostname()[:32]}-{os.getpid()}-{uuid4().hex[:12]}"
