"""Admission: an order starts when a slot is free and its merchant is under its limit.

Orders that cannot start wait here, merchant by merchant in turn. A merchant that is at its limit
may hold only so many; its further orders are parked in the broker until about their turn, so
that they do not fill the window through which everybody's orders come.

All operations are O(1), whatever is known or waiting. Not safe from threads: one thread (or
the green threads of one process, which switch only where they block, and nothing here blocks).
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic

from pos_gateway.admission.lane import Lane, Ticket, Waiting

#: Merchants of whom something is remembered (their replies' durations) before the idle ones are
#: forgotten: twice the ten thousand that a pod is expected to know.
LANES = 20_000


class Verdict(Enum):
    """What becomes of an order that is offered."""

    START = "start"
    WAIT = "wait"
    PARK = "park"


@dataclass(frozen=True, slots=True)
class Limits:
    """What admission keeps to."""

    #: Orders under way at once.
    slots: int = 200
    #: Orders that one merchant at its limit may have waiting here.
    max_waiting: int = 20
    #: Seconds that an order of a merchant at its limit waits here at most.
    max_wait: float = 5.0
    #: Orders that all merchants at their limits together may have waiting here.
    max_blocked: int = 1000
    #: Bounds of a parked order's delay in seconds; the upper one is how late a merchant's
    #: recovery may be noticed by its backlog.
    shortest_park: float = 1.0
    longest_park: float = 30.0

    def __post_init__(self) -> None:
        for name in ("slots", "max_waiting", "max_wait", "max_blocked", "shortest_park"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}: must be greater than 0 (got {value!r})")
        if not self.longest_park >= self.shortest_park:
            raise ValueError(
                f"longest_park: must be at least shortest_park (got {self.longest_park!r})"
            )


class Admission(Generic[Ticket]):
    """Decides which orders start.

    Args:
        limits: what to keep to.
        limit_of: a merchant's own limit when its first order comes; None if it is not known
            yet: its orders wait until ``set_limit`` says.
    """

    def __init__(self, limits: Limits, limit_of: Callable[[str], int | None]) -> None:
        self.limits = limits
        self._limit_of = limit_of
        self._lanes: dict[str, Lane[Ticket]] = {}
        #: Merchants that have an order waiting and room for it, in the order of their turn.
        self._turns: deque[str] = deque()
        self._in_turns: set[str] = set()
        #: Every order that began to wait, oldest first; those that started since are skipped.
        self._by_age: deque[tuple[str, Waiting[Ticket]]] = deque()
        self.in_flight = 0
        self.waiting = 0
        #: Those of ``waiting`` whose merchant is at its limit.
        self.blocked = 0

    def offer(self, merchant_id: str, ticket: Ticket, now: float) -> Verdict:
        """Take an order in. START: it has its slot, call ``release`` when it is done.

        WAIT: it will come out of ``next_start``, ``overdue`` or ``drop_waiting``. PARK: it is
        the caller's again, to be handed back to the broker for ``park_delay`` seconds.
        """
        lane = self._lanes.get(merchant_id)
        if lane is None:
            lane = self._new_lane(merchant_id)
        if lane.has_room and not lane.waiting and not self._turns and self._slot_is_free:
            self._take_slot(lane)
            return Verdict.START
        if lane.is_full and self._is_too_much(lane):
            return Verdict.PARK
        self._wait(merchant_id, lane, Waiting(ticket, now))
        return Verdict.WAIT

    def next_start(self) -> tuple[str, Ticket] | None:
        """The next waiting order that may start, which then has its slot; None if there is none."""
        while self._turns and self._slot_is_free:
            merchant_id = self._turns.popleft()
            self._in_turns.discard(merchant_id)
            lane = self._lanes.get(merchant_id)
            if lane is None or not lane.waiting or not lane.has_room:
                continue  # its limit was lowered, or its orders went otherwise
            ticket = lane.waiting.popleft().ticket
            self.waiting -= 1
            self._take_slot(lane)
            self._queue_turn(merchant_id, lane)
            return merchant_id, ticket
        return None

    def release(self, merchant_id: str, seconds: float | None) -> None:
        """An order that was started is done. Exactly once for each.

        Args:
            merchant_id: whose it was.
            seconds: how long its call took; None if there was none.
        """
        lane = self._lanes[merchant_id]
        was_full = lane.is_full
        lane.in_flight -= 1
        self.in_flight -= 1
        if seconds is not None:
            lane.replied(seconds)
        self._fullness_changed(merchant_id, lane, was_full)

    def set_limit(self, merchant_id: str, limit: int) -> None:
        """A merchant's limit is now this; 0 holds its orders back. Those under way go on."""
        lane = self._lanes.get(merchant_id)
        if lane is None or lane.limit == limit:
            return
        was_full = lane.is_full
        lane.limit = limit
        self._fullness_changed(merchant_id, lane, was_full)

    def park_delay(self, merchant_id: str, now: float) -> float:
        """Seconds until about the turn of an order that is parked now.

        Each parked order takes the turn after the one parked before it, so that a backlog comes
        back at the rate that its merchant can take, not all at once. Bounded, and jittered
        where the bound cuts it off.
        """
        limits = self.limits
        lane = self._lanes.get(merchant_id) or self._new_lane(merchant_id)
        soonest = now + max(limits.shortest_park, len(lane.waiting) * lane.turn)
        turn = max(soonest, lane.parked_until + lane.turn)
        if turn - now > limits.longest_park:
            lane.parked_until = now + limits.longest_park
            return random.uniform(limits.longest_park / 2, limits.longest_park)
        lane.parked_until = turn
        return turn - now

    def overdue(self, now: float) -> Iterator[tuple[str, Ticket]]:
        """Orders that have waited too long for their merchant; they are the caller's, to park."""
        until = now - self.limits.max_wait
        again: list[tuple[str, Waiting[Ticket]]] = []
        while self._by_age and self._by_age[0][1].since <= until:
            merchant_id, waiting = self._by_age.popleft()
            lane = self._lanes.get(merchant_id)
            if lane is None or not lane.waiting or lane.waiting[0] is not waiting:
                continue  # it has started, or was dropped, since
            if lane.has_room:
                # It waits for a slot, not for its merchant: parking would only delay it.
                again.append((merchant_id, waiting))
                continue
            lane.waiting.popleft()
            self.waiting -= 1
            self.blocked -= lane.is_full
            yield merchant_id, waiting.ticket
        self._by_age.extendleft(reversed(again))

    def lanes(self) -> Iterator[tuple[str, int, int]]:
        """Every merchant that has orders here: its id, how many under way, how many waiting."""
        for merchant_id, lane in self._lanes.items():
            if not lane.is_idle:
                yield merchant_id, lane.in_flight, len(lane.waiting)

    def drop_waiting(self) -> list[Ticket]:
        """Let go of everything that waits (the connection it came by is gone). Those under way stay."""
        dropped = [waiting.ticket for lane in self._lanes.values() for waiting in lane.waiting]
        for lane in self._lanes.values():
            lane.waiting.clear()
        self._turns.clear()
        self._in_turns.clear()
        self._by_age.clear()
        self.waiting = self.blocked = 0
        return dropped

    @property
    def _slot_is_free(self) -> bool:
        return self.in_flight < self.limits.slots

    def _is_too_much(self, lane: Lane[Ticket]) -> bool:
        """Whether a merchant at its limit holds all it may.

        Those whose turn comes sooner than a parked order could be back are better off here.
        """
        if self.blocked >= self.limits.max_blocked:
            return True
        if len(lane.waiting) < self.limits.max_waiting:
            return False
        return len(lane.waiting) * lane.turn > self.limits.shortest_park

    def _take_slot(self, lane: Lane[Ticket]) -> None:
        lane.in_flight += 1
        self.in_flight += 1
        if lane.is_full:  # it had room a moment ago
            self.blocked += len(lane.waiting)

    def _wait(self, merchant_id: str, lane: Lane[Ticket], waiting: Waiting[Ticket]) -> None:
        lane.waiting.append(waiting)
        self._by_age.append((merchant_id, waiting))
        self.waiting += 1
        if lane.is_full:
            self.blocked += 1
        self._queue_turn(merchant_id, lane)

    def _fullness_changed(self, merchant_id: str, lane: Lane[Ticket], was_full: bool) -> None:
        if was_full and not lane.is_full:
            self.blocked -= len(lane.waiting)
        elif lane.is_full and not was_full:
            self.blocked += len(lane.waiting)
        self._queue_turn(merchant_id, lane)

    def _queue_turn(self, merchant_id: str, lane: Lane[Ticket]) -> None:
        if lane.waiting and lane.has_room and merchant_id not in self._in_turns:
            self._in_turns.add(merchant_id)
            self._turns.append(merchant_id)

    def _new_lane(self, merchant_id: str) -> Lane[Ticket]:
        if len(self._lanes) >= LANES:
            # Once in so many newcomers, so that each of them pays a constant part of it.
            self._lanes = {key: lane for key, lane in self._lanes.items() if not lane.is_idle}
        lane = self._lanes[merchant_id] = Lane(self._limit_of(merchant_id))
        return lane
