"""A worker's lease: while it beats, what it has claimed is its own.

A lease never compares two machines' clocks. Its holder counts its seconds from before it wrote
the beat; others count from when they first saw it; so the holder knows of its end before anybody
else may act on it, whatever happens to the time of day. A worker whose lease has run out (paused,
suspended, starved, cut off from the database) goes on under a new id, and what it claimed under the
old one it may not send any more. So does one whose clock disagrees with the time of day: the clock
may have stood still while the machine did.
"""

import os
import socket
from collections.abc import Iterable
from math import inf
from typing import NamedTuple
from uuid import uuid4

from pos_gateway.runtime.clock import STEP, SYSTEM_CLOCK, Clock

#: Seconds of a green worker's lease, and between its beats.
LEASE, BEAT = 8.0, 2.0
#: Seconds by which a lease is over for its holder before it is for others: what may pass between
#: the holder's last look at it and the byte that it then sends.
MARGIN = 2.0
#: Lengths of a lease without a beat after which its worker counts as dead, and not as paused.
DEAD = 3


class Beat(NamedTuple):
    """A renewal of a lease that is about to be written."""

    lease_id: str
    #: The holder's clock, from which it counts.
    at: float
    #: Unix time at which that clock read zero, by the time of day.
    zero: float


#: A lease as it is in the database: its id, how often it has beaten, its length in seconds, and what
#: its worker's clock showed at the last beat (None: that worker's release does not say).
LeaseRow = tuple[str, int, float, float | None]


class Lease:
    """This worker's lease. Safe from green threads.

    Args:
        seconds: how long without a beat until others take over. A synchronous worker, which has
            nobody to beat for it during an exchange, needs the longest exchange's.
    """

    def __init__(self, seconds: float = LEASE, clock: Clock = SYSTEM_CLOCK) -> None:
        self.seconds = seconds
        self._clock = clock
        self._worker = _new_id()
        self._number = 1
        #: Before all times until a beat for the present id is durable: nobody has a claim under it.
        self._until = -inf
        self._beaten = Beat(self.id, -inf, 0.0)

    @property
    def id(self) -> str:
        """What is claimed under it at present."""
        return f"{self._worker}-{self._number}"

    @property
    def ids(self) -> list[str]:
        """All that it has had, the present one last."""
        return [f"{self._worker}-{number}" for number in range(1, self._number + 1)]

    def clock(self) -> float:
        """What this worker's clock shows."""
        return self._clock.monotonic()

    def is_ours(self, owner: str) -> bool:
        """Whether it is an id of this worker's, the present one or one that is over."""
        return _worker_of(owner) == self._worker

    def beating(self) -> Beat:
        """The beat to write: for the present id, or for a new one if that is over."""
        if self._until > -inf and self._is_over():
            self.end()
        now = self._clock.monotonic()
        return Beat(self.id, now, self._clock.now().timestamp() - now)

    def beaten(self, beat: Beat) -> None:
        """The beat is durable.

        One that was durable only when the lease had run out renews nothing: others may have seen
        its end.
        """
        is_first = self._until == -inf
        if beat.lease_id == self.id and (is_first or not self._is_over()):
            self._beaten, self._until = beat, beat.at + self.seconds - MARGIN

    def end(self) -> None:
        """Nothing that was claimed under the present id is this worker's any more."""
        self._number, self._until = self._number + 1, -inf

    def holds(self, owner: str) -> bool:
        """Whether what was claimed under this id is still this worker's, and nobody else's."""
        return owner == self.id and not self._is_over()

    @property
    def is_due(self) -> bool:
        """Whether it is time to beat."""
        return self._clock.monotonic() >= self._beaten.at + BEAT or self._is_over()

    def _is_over(self) -> bool:
        """Whether it has run out, or may have while this worker's clock stood still."""
        now = self._clock.monotonic()
        if now >= self._until:
            return True
        return abs(self._clock.now().timestamp() - now - self._beaten.zero) >= STEP


class _Seen(NamedTuple):
    """A lease as it was at the last look."""

    beat: int
    seconds: float
    #: When that beat was first seen, on one's own clock.
    since: float
    #: What its worker's clock showed at that beat.
    clock: float | None


class Others:
    """What this worker has seen of the leases of others."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        #: The leases of each worker, in the order in which it had them.
        self._of: dict[str, list[str]] = {}
        self._asked = -inf

    def look(self, rows: Iterable[LeaseRow], asked: float) -> None:
        """Take in all leases there are.

        Args:
            rows: the leases.
            asked: when the database was asked for them, on this worker's clock: a worker that was
                paused since knows nothing of the time in between.
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
        """The database was away for so long, and nobody could have beaten."""
        self._seen = {
            i: seen._replace(since=seen.since + seconds) for i, seen in self._seen.items()
        }

    def know(self, lease_ids: Iterable[str]) -> bool:
        """Whether the last look says of each of these if it is over: not if it may be by now."""
        now = self._clock.monotonic()
        return all(
            (seen := self._seen.get(lease_id)) is not None
            and (now - seen.since < seen.seconds or self.is_over(lease_id))
            for lease_id in lease_ids
        )

    def is_over(self, lease_id: str) -> bool:
        """Whether what was claimed under this id may be taken over.

        One that is not there was given back, if ``look`` was called after the claim was read: it
        may be younger than an earlier look.
        """
        return self._silent_for(lease_id, 1)

    def may_have_died(self, lease_id: str) -> bool:
        """Whether its holder, if it is over, neither gave it back nor goes on under a later one.

        One that does was held up, or cut off from the database.
        """
        return lease_id in self._seen and lease_id == self._of[_worker_of(lease_id)][-1]

    def has_died(self, lease_id: str) -> bool:
        """Whether nothing was heard of its holder for so long that it counts as dead for good."""
        return self.may_have_died(lease_id) and self._silent_for(lease_id, DEAD)

    def clock_of(self, lease_id: str) -> float | None:
        """What its worker's clock has shown since, at the least; None: not known."""
        leases = self._of.get(_worker_of(lease_id))
        return self._seen[leases[-1]].clock if leases else None

    def has_gone(self, lease_id: str) -> bool:
        """Whether its worker goes on under no lease at all."""
        return all(self.is_over(each) for each in self._of.get(_worker_of(lease_id), ()))

    def long_over(self, times: float) -> list[str]:
        """Leases that have been over for so many times their length: their rows can go."""
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
