"""Admission: who may start now.

An order starts when a slot is free, its merchant is under its limit, its provider is under its
share of the slots, and, if its merchant is slow, the slow ones together are under theirs.

Orders that cannot start wait here, merchant by merchant in turn. A merchant in trouble may hold
only so many; its further orders are parked in the broker until about their turn, so that they do
not fill the window through which everybody's orders come.

Every operation costs the same whatever is known or waiting (the clock of slow calls: the
logarithm of the calls under way). Not safe from threads: one thread, or the green threads of one
process, which switch only where they block, and nothing here blocks.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import count
from typing import Generic

from pos_gateway.admission.lane import (
    QUICK_REPLIES,
    Call,
    Lane,
    Queued,
    Ticket,
    Waiting,
)
from pos_gateway.admission.limits import Limits, Terms
from pos_gateway.admission.parked_count import ParkedCount
from pos_gateway.admission.parking import QUICKEST, Place, Standing
from pos_gateway.admission.share import Share

#: Merchants of whom something is remembered (their replies' durations) before the idle ones are
#: forgotten: twice the ten thousand that a pod is expected to know.
LANES = 20_000


class Verdict(Enum):
    """What becomes of an order that is offered and does not start."""

    WAIT = "wait"
    PARK = "park"


class Admission(Generic[Ticket]):
    """Decides which orders start. Times are seconds of one clock that never jumps.

    Args:
        limits: what to keep to.
        terms_of: what is agreed with a merchant, when its first order comes; None if that is not
            known yet: its orders wait until ``set_terms`` says.
    """

    def __init__(self, limits: Limits, terms_of: Callable[[str], Terms | None]) -> None:
        self.limits = limits
        self._terms_of = terms_of
        self._lanes: dict[str, Lane[Ticket]] = {}
        self._providers: dict[str, Share] = {}
        self._slow = limits.share(limits.slow_share)
        #: Merchants that have an order waiting and room for it, in the order of their turn.
        self._turns: deque[Lane[Ticket]] = deque()
        #: Every order that began to wait, oldest first; those that started since are skipped.
        self._by_age: deque[tuple[Lane[Ticket], Waiting[Ticket]]] = deque()
        #: Merchants whose orders waited for their record, perhaps more than it allows.
        self._crowded: list[Lane[Ticket]] = []
        #: When each call under way becomes slow; those that returned since are skipped.
        self._slow_at: list[tuple[float, int, Call[Ticket]]] = []
        self._number = count()
        #: Orders that this worker has parked.
        self.parked_count = ParkedCount()
        self.in_flight = 0
        self.waiting = 0
        #: Those of ``waiting`` whose merchant is in trouble.
        self.blocked = 0

    def offer(self, merchant_id: str, ticket: Ticket, now: float) -> Call[Ticket] | Verdict:
        """Take an order in.

        Returns:
            A call: it has started and holds its slot until ``release``. WAIT: it will come out
            of ``next_start``, ``overdue`` or ``drop_waiting``. PARK: it is the caller's again,
            to be handed back to the broker until ``place`` says.
        """
        lane = self._lane(merchant_id)
        if lane.slow and lane.is_quiet(now):
            self._set_slow(lane, False)
        if not lane.waiting and not self._turns and self._slot_is_free and self._may_start(lane):
            return self._start(lane, now)
        if self._is_too_much(lane):
            return Verdict.PARK
        waiting = Waiting(ticket, now)
        lane.waiting.append(waiting)
        self._by_age.append((lane, waiting))
        self._count_waiting(lane, 1)
        self._queue(lane)
        return Verdict.WAIT

    def next_start(self, now: float) -> tuple[Ticket, Call[Ticket]] | None:
        """The next waiting order that may start, and its call; None if there is none."""
        while self._turns and self._slot_is_free:
            lane = self._turns.popleft()
            if lane.queued is not Queued.TURNS:
                continue
            lane.queued = Queued.NOWHERE
            woken_by, lane.woken_by = lane.woken_by, None
            started = None
            if lane.waiting and self._may_start(lane):
                ticket = lane.waiting.popleft().ticket
                self._count_waiting(lane, -1)
                started = ticket, self._start(lane, now)
            self._queue(lane)
            if woken_by is not None:
                self._wake(woken_by)  # it may have room for another one yet
            if started is not None:
                return started
        return None

    def release(self, call: Call[Ticket], now: float, *, answered: bool | None = True) -> None:
        """An order that was started is done. Exactly once for each.

        Args:
            call: what starting returned.
            now: the time.
            answered: whether its merchant answered; None if it was not called, so that the time
                it took says nothing about it.
        """
        call.done = True
        lane = call.lane
        self._change(lane, lambda: self._move(call, -1))
        lane.last_call = now
        if answered is not None:
            lane.silent = lane.silent and not answered
            seconds = now - call.started
            slow = seconds >= lane.slow_after(self.limits.slow_after)
            lane.replied(seconds)
            lane.quick_replies = 0 if slow else lane.quick_replies + 1
            if slow:
                self._set_slow(lane, True)
            elif lane.slow and lane.quick_replies >= QUICK_REPLIES:
                self._set_slow(lane, False)
        self._queue(lane)
        if call.provider is not None:
            self._wake(call.provider)
        self._wake(self._slow)

    def tick(self, now: float) -> None:
        """Let time pass: merchants with a call that has been out for too long are slow from now."""
        while self._slow_at and self._slow_at[0][0] <= now:
            call = heapq.heappop(self._slow_at)[2]
            if not call.done:
                call.lane.quick_replies = 0
                call.lane.silent = True
                self._set_slow(call.lane, True)
        self.parked_count.pass_time(now)

    def set_terms(self, merchant_id: str, terms: Terms) -> None:
        """This is now agreed with a merchant. Orders under way go on."""
        lane = self._lanes.get(merchant_id)
        if lane is None:
            return
        provider = self._provider(terms.provider)

        def agree() -> None:
            lane.limit, lane.provider = terms.limit, provider

        self._change(lane, agree)
        self._queue(lane)
        if len(lane.waiting) > self.limits.max_waiting:
            self._crowded.append(lane)

    def place(self, merchant_id: str, orders: int, now: float, *, few: bool = False) -> Place:
        """Where so many orders stand that are parked now; ``few`` of them are to meet others."""
        lane = self._lane(merchant_id)
        return lane.line.place(orders, self._standing(lane, now), few=few)

    def let_out(self, merchant_id: str, orders: int, now: float, *, reserved: bool) -> int:
        """How many of so many parked orders that are back may come to the queue now.

        Args:
            merchant_id: whose orders they are.
            orders: how many are back.
            now: the time.
            reserved: whether the place that they had was kept for them.
        """
        lane = self._lane(merchant_id)
        return lane.line.let_out(orders, self._standing(lane, now), reserved=reserved)

    def count_parked(self, merchant_id: str, orders: int, due: float) -> None:
        """So many orders are in the broker until then."""
        self.parked_count.add(merchant_id, orders, due)

    def parked(self, merchant_id: str) -> int:
        """How many of a merchant's orders this worker has parked that are not due yet."""
        return self.parked_count.of(merchant_id)

    def overdue(self, now: float) -> Iterator[tuple[str, Ticket]]:
        """Orders that have waited too long for their merchant; they are the caller's, to park.

        And those that came while it was not known how many of its orders may wait, if that was
        more: a window full of them would hold up everybody for as long as one may wait.
        """
        while self._crowded:
            lane = self._crowded.pop()
            while len(lane.waiting) > self.limits.max_waiting and self._is_too_much(lane):
                newest = lane.waiting.pop()
                self._count_waiting(lane, -1)
                yield lane.merchant_id, newest.ticket
        until = now - self.limits.max_wait
        again: list[tuple[Lane[Ticket], Waiting[Ticket]]] = []
        while self._by_age and self._by_age[0][1].since <= until:
            lane, waiting = self._by_age.popleft()
            if not lane.waiting or lane.waiting[0] is not waiting:
                continue  # it has started, or was dropped, since
            if self._may_start(lane):
                # It waits for a slot, not for its merchant: parking would only delay it.
                again.append((lane, waiting))
                continue
            lane.waiting.popleft()
            self._count_waiting(lane, -1)
            yield lane.merchant_id, waiting.ticket
        self._by_age.extendleft(reversed(again))

    def lanes(self) -> Iterator[tuple[str, int, int]]:
        """Every merchant that has orders here: its id, how many under way, how many waiting."""
        for lane in self._lanes.values():
            if not lane.is_idle:
                yield lane.merchant_id, lane.in_flight, len(lane.waiting)

    def drop_waiting(self) -> list[Ticket]:
        """Let go of everything that waits (the connection it came by is gone). Those under way stay."""
        dropped = [waiting.ticket for lane in self._lanes.values() for waiting in lane.waiting]
        for lane in self._lanes.values():
            lane.waiting.clear()
            lane.queued, lane.woken_by = Queued.NOWHERE, None
        for share in (self._slow, *self._providers.values()):
            share.blocked.clear()
            share.waiting = 0
        self._turns.clear()
        self._by_age.clear()
        self._crowded.clear()
        self.waiting = self.blocked = 0
        return dropped

    @property
    def _most_of_one(self) -> int:
        """Orders of one provider that may wait here while it is at its share."""
        return self.limits.max_blocked // 2

    @property
    def _slot_is_free(self) -> bool:
        return self.in_flight < self.limits.slots

    def _may_start(self, lane: Lane[Ticket]) -> bool:
        """Whether only a slot is missing."""
        return lane.has_room and self._full_share(lane) is None

    def _full_share(self, lane: Lane[Ticket]) -> Share | None:
        """The share that keeps the merchant from starting; None: none does."""
        if lane.provider is not None and lane.provider.is_full:
            return lane.provider
        return self._slow if lane.slow and self._slow.is_full else None

    def _is_too_much(self, lane: Lane[Ticket]) -> bool:
        """Whether no more orders of this merchant may wait here.

        Those whose turn comes soon are better off here than away and back.
        """
        provider = lane.provider
        if provider is not None and provider.is_full and provider.waiting >= self._most_of_one:
            return True
        if not lane.is_troubled or self._may_start(lane):
            return False
        if self.blocked >= self.limits.max_blocked:
            return True
        if len(lane.waiting) < self.limits.max_waiting:
            return False
        return len(lane.waiting) * lane.turn > self.limits.max_wait / 2

    def _standing(self, lane: Lane[Ticket], now: float) -> Standing:
        limits = self.limits
        turn = max(lane.turn, QUICKEST)
        room = max(limits.max_waiting, int(limits.max_wait / 2 / turn))
        return Standing(
            now=now,
            answers=lane.limit != 0 and not lane.silent,
            may_be_called=lane.limit != 0,
            turn=turn,
            waiting=len(lane.waiting),
            capacity=room if self.blocked < limits.max_blocked else 0,
            shortest=limits.shortest_park,
            longest=limits.longest_park,
        )

    def _start(self, lane: Lane[Ticket], now: float) -> Call[Ticket]:
        call = Call(lane, now, lane.provider)
        self._change(lane, lambda: self._move(call, 1))
        slow_at = now + lane.slow_after(self.limits.slow_after)
        heapq.heappush(self._slow_at, (slow_at, next(self._number), call))
        return call

    def _move(self, call: Call[Ticket], by: int) -> None:
        call.lane.in_flight += by
        self.in_flight += by
        if call.provider is not None:
            call.provider.in_flight += by
        if call.lane.slow:
            self._slow.in_flight += by

    def _set_slow(self, lane: Lane[Ticket], slow: bool) -> None:
        if lane.slow is slow:
            return

        def turn() -> None:
            lane.slow = slow
            self._slow.in_flight += lane.in_flight if slow else -lane.in_flight

        self._change(lane, turn)
        if not slow:
            self._requeue(lane)
            self._wake(self._slow)

    def _change(self, lane: Lane[Ticket], change: Callable[[], None]) -> None:
        """Do something that may bring the lane into trouble or out of it, and keep the counts."""
        was_troubled, provider, number = lane.is_troubled, lane.provider, len(lane.waiting)
        change()
        self.blocked += number * (lane.is_troubled - was_troubled)
        if lane.provider is not provider:
            for share, by in ((provider, -number), (lane.provider, number)):
                if share is not None:
                    share.waiting += by

    def _count_waiting(self, lane: Lane[Ticket], by: int) -> None:
        self.waiting += by
        self.blocked += by * lane.is_troubled
        if lane.provider is not None:
            lane.provider.waiting += by

    def _queue(self, lane: Lane[Ticket]) -> None:
        """Give the lane a turn, or a place among those that wait for a share to have room."""
        if lane.queued is Queued.NOWHERE and lane.waiting and lane.has_room:
            full = self._full_share(lane)
            if full is None:
                lane.queued = Queued.TURNS
                self._turns.append(lane)
            else:
                lane.queued = full
                full.blocked.append(lane)
        elif isinstance(lane.queued, Share) and self._full_share(lane) is not lane.queued:
            self._requeue(lane)  # what it waited for is not what keeps it any more

    def _requeue(self, lane: Lane[Ticket]) -> None:
        if isinstance(lane.queued, Share):
            lane.queued = Queued.TURNS  # its place among the blocked is skipped from now on
            self._turns.append(lane)

    def _wake(self, share: Share) -> None:
        """A share has room: whoever has waited for it longest has a turn."""
        while share.blocked and not share.is_full:
            lane = share.blocked.popleft()
            if lane.queued is share:
                lane.queued, lane.woken_by = Queued.TURNS, share
                self._turns.append(lane)
                return

    def _lane(self, merchant_id: str) -> Lane[Ticket]:
        lane = self._lanes.get(merchant_id)
        if lane is None:
            if len(self._lanes) >= LANES:
                # Once in so many newcomers, so that each of them pays a constant part of it.
                self._lanes = {key: lane for key, lane in self._lanes.items() if not lane.is_idle}
            terms = self._terms_of(merchant_id)
            lane = self._lanes[merchant_id] = Lane(
                merchant_id,
                terms.limit if terms else None,
                self._provider(terms.provider) if terms else None,
            )
        return lane

    def _provider(self, name: str | None) -> Share | None:
        if name is None:
            return None
        if name not in self._providers:
            self._providers[name] = self.limits.share(self.limits.provider_share)
        return self._providers[name]
