"""Admission: which orders may start now.

An order starts when the merchant is under its concurrency and rate limits, its breaker admits the order, and the
scheduler has a slot for the merchant: see ``scheduler.py``. ``health.py`` judges merchants by their calls.

Orders that cannot start wait here, a merchant's earliest deadline first; a probe is the order that came first. A
merchant may have a bounded number waiting; further orders are parked in the broker until about their turn, and leave
room in the prefetch window that all merchants share.

Every operation costs the logarithm of the orders in flight or waiting; a probe, the logarithm of the merchant's. Not
thread-safe: one thread, or the green threads of one process, which switch only where they block, and nothing here
blocks.
"""

import sys
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import chain
from math import inf
from typing import Generic

from pos_gateway.admission import pacing
from pos_gateway.admission.agenda import Agenda
from pos_gateway.admission.backlog import Backlog
from pos_gateway.admission.breaker import LONGEST_OPEN, BreakerState
from pos_gateway.admission.cpu import TURN, Cpu
from pos_gateway.admission.health import FLEET, Health, Transition
from pos_gateway.admission.lane import Call, Demand, Lane, Ticket
from pos_gateway.admission.lanes import LANES, Lanes
from pos_gateway.admission.latency import SECONDS
from pos_gateway.admission.limits import AdmissionLimits, Terms, names_quota
from pos_gateway.admission.parking import ParkedCount, ParkingQueue, look_again
from pos_gateway.admission.quota import Quota
from pos_gateway.admission.room import WaitBudget
from pos_gateway.admission.scheduler import Scheduler
from pos_gateway.admission.symptoms import MerchantStatus, Symptoms
from pos_gateway.admission.trouble import is_in_trouble
from pos_gateway.domain.outcome import CallResult

#: Seconds of a quota's pause without a ``Retry-After``.
ASKED = 1.0


class AdmissionVerdict(Enum):
    """The verdict on an offered order that does not start."""

    WAIT = "wait"
    PARK = "park"
    EXPIRE = "expire"


class Admission(Generic[Ticket]):
    """Decides which orders start. Times are seconds of a monotonic clock.

    Args:
        limits: limits of this process.
        terms_of: a merchant's terms, at the merchant's first order; None: not loaded yet, and orders wait until
            ``set_terms``.
        announce: called with every breaker's transition.
        on_short: called with a merchant whose order lacks only an allotment.
        in_fleet: merchants need an allotment (``allot``) to start anything.
    """

    def __init__(
        self,
        limits: AdmissionLimits,
        terms_of: Callable[[str], Terms | None],
        *,
        announce: Callable[[Transition], None] = lambda _transition: None,
        on_short: Callable[[str], None] = lambda _merchant_id: None,
        in_fleet: bool = False,
    ) -> None:
        self.limits = limits
        self._terms_of = terms_of
        self._on_short = on_short
        self._announce = announce
        #: The latest time passed in.
        self._now = 0.0
        #: Answers received by then are handled: calls are judged as of that time.
        self._heard = inf
        self._lanes: Lanes[Ticket] = Lanes(in_fleet=in_fleet)
        self._agenda, self._judging = Agenda(), Agenda()
        #: Orders parked by this worker.
        self.parked_count = ParkedCount()
        #: The loop's time, and the merchants that yield while time is scarce.
        self.cpu = Cpu(limits.cores)
        self._scheduler: Scheduler[Ticket] = Scheduler(limits, self.cpu, self.parked_count)
        self._health: Health[Ticket] = Health(
            limits,
            self._judging,
            self.parked_count,
            announce=announce,
            unusual=self._scheduler.became_unusual,
            revived=self._scheduler.revived,
            changed=self._changed,
        )
        self._backlog: Backlog[Ticket] = Backlog(self._agenda, self._changed)
        self._room: WaitBudget[Ticket] = WaitBudget(limits, self.cpu, self.parked_count)

    def offer(
        self,
        merchant_id: str,
        ticket: Ticket,
        now: float,
        deadline: float = inf,
        *,
        may_wait: bool = True,
        is_look_up: bool = False,
    ) -> Call[Ticket] | AdmissionVerdict:
        """Offer an order; an order that may not wait is to be parked instead.

        A look-up is an order that the POS may have: new orders never take all starts from look-ups.

        Returns:
            Call: started, holds a slot until ``release``.
            WAIT: comes out of ``next_start``, ``expired``, ``overdue`` or ``drop_waiting``.
            PARK: park the order for ``park_delay``.
            EXPIRE: cannot start before its deadline.
        """
        self.tick(now)
        lane = self._lane(merchant_id)
        self._scheduler.arrived(lane)
        if lane.is_quiet(now):
            self._health.forget(lane)
        if deadline <= max(now, lane.breaker.until):
            return AdmissionVerdict.EXPIRE
        if lane.quotas and not lane.waiting:
            lane.lacks = None
            lane.lacks = self._lacking(lane) if lane.has_room else None
        if not lane.waiting and lane.has_room:
            if self._scheduler.may_start_at_once(lane, now):
                return self._start(lane, ticket, is_look_up=is_look_up)
        else:
            self._scheduler.judge(lane, now)
        lane.offered(now)
        if not may_wait or self._room.is_spent(lane, now, look_ups=is_look_up):
            self._scheduler.update(lane, now)  # time may have made the merchant light, or heavy
            if not lane.waiting:
                lane.lacks = None
            return AdmissionVerdict.PARK
        self._backlog.put(lane, ticket, now, deadline, is_look_up=is_look_up)
        self._changed(lane)
        return AdmissionVerdict.WAIT

    def takes(self, merchant_id: str, size: int, *, look_ups: bool = False) -> bool:
        """Count a large order of ``size`` bytes of memory, until ``left``; False: park the order."""
        return self._room.takes(self._lane(merchant_id), size, look_ups=look_ups)

    def left(self, merchant_id: str, size: int, *, look_ups: bool = False) -> None:
        """A large order that ``takes`` has counted has left this process."""
        self._room.left(merchant_id, size, look_ups=look_ups)

    def next_start(self, now: float) -> Call[Ticket] | None:
        """Start the next waiting order that may start; None: no order may."""
        self.tick(now)
        lane = self._scheduler.next(now) if self._room.waiting else None
        while lane is not None and lane.quotas and self._lacking(lane) is not None:
            self._changed(lane, has_slot=True)
            lane = self._scheduler.next(now)
        first = lane.first(now) if lane is not None else None
        if lane is None or first is None:
            return None
        return self._start(lane, lane.take(first), is_look_up=first.is_look_up)

    def began(self, call: Call[Ticket], now: float) -> None:
        """A started order's exchange begins, and from now on counts for the merchant's health. Once at most.

        Until then the order holds a slot, but is no outlier: the claim may wait for the database.
        """
        self._health.began(call, now)

    def answered(
        self,
        call: Call[Ticket],
        now: float,
        contact: CallResult = CallResult.ANSWERED,
        retry_after: float | None = None,
    ) -> None:
        """An order's call is over; ``release`` frees the slot later. Once at most.

        Args:
            call: the started call.
            now: the time.
            contact: the call's result; NONE says nothing about the merchant.
            retry_after: the merchant's ``Retry-After`` in seconds, if any.
        """
        self._judge(call, now, contact, retry_after)
        self._changed(call.lane)

    def release(
        self,
        call: Call[Ticket],
        now: float,
        contact: CallResult = CallResult.ANSWERED,
        retry_after: float | None = None,
    ) -> None:
        """Release a started order's slot. Exactly once per order.

        The arguments are as of ``answered``, a call of which is not required before.
        """
        if not call.done:
            self._judge(call, now, contact, retry_after)
        if call.cut_short:
            self._health.released(call)
        call.lane.bulkhead.leave()
        for quota in call.quotas:
            quota.ended(call.lane)
            self._serve(quota)
        del call.ticket  # a judgement may still be due, and keeps the call
        self._scheduler.released(call, now)
        self._changed(call.lane)

    def poll(self, merchant_id: str, now: float) -> tuple[Quota[Lane[Ticket]], ...] | None:
        """Begin a request of a poll, to be ended by ``polled``. None: the poll yields to orders.

        A poll needs the merchant's quotas, and no slot.
        """
        self.tick(now)
        lane = self._lane(merchant_id)
        if not lane.known:
            return None
        if not all(each.takes_poll(now) for each in lane.quotas):
            for quota in lane.quotas:
                if quota.poll_waits(now):
                    self._on_short(quota.terms.key)
            return None
        for quota in lane.quotas:
            quota.poll_began(now)
            if quota.is_short:
                self._on_short(quota.terms.key)
        return lane.quotas

    def polled(self, quotas: tuple[Quota[Lane[Ticket]], ...], now: float) -> None:
        """End a request of a poll. Exactly once per request."""
        self.tick(now)
        for quota in quotas:
            quota.poll_ended()
            self._serve(quota)

    def poll_refused(
        self, merchant_id: str, now: float, contact: CallResult, retry_after: float | None
    ) -> None:
        """Pause the shared quotas that a poll used up, as an order's call does.

        The merchant's health is left alone: a list may have a limit of its own.
        """
        self.tick(now)
        if (lane := self._lanes.get(merchant_id)) is not None:
            self._judge_quotas(lane.quotas, now, contact, retry_after)

    def note_error(self, call: Call[Ticket], code: str, now: float) -> None:
        """Note why a call failed, for operators: no decision depends on the note."""
        call.lane.noted().error = code, now

    def note_unsent(self, call: Call[Ticket], code: str, now: float) -> None:
        """Note an order unsent for want of something at the gateway, as a valid credential.

        No decision depends on the note.
        """
        evidence = call.lane.noted()
        evidence.error, evidence.unsent_at = (code, now), now

    def turned(self, busy: float, passed: float, now: float = inf) -> None:
        """A turn of the caller's loop begins, after a turn of some seconds.

        This turn handles the answers that arrived during the last turn: the delay counts against no call.

        Args:
            busy: seconds in which the loop did not wait.
            passed: all seconds of the last turn.
            now: the time; inf: calls are judged as of each moment.
        """
        self.cpu.turned(busy, passed)
        # A shorter delay makes no call an outlier.
        self._heard = now - busy if busy > SECONDS else inf

    def tick(self, now: float) -> None:
        """Advance the time: merchants fall silent, breakers half-open, waiting orders expire."""
        self._now = now
        if self._agenda.due_at <= now:
            self._agenda.run(now)
        heard = min(now, self._heard)
        if self._judging.due_at <= heard:
            self._judging.run(heard)
        if self.parked_count.bundles:
            self.parked_count.pass_time(now)

    @property
    def next_at(self) -> float:
        """When time alone changes something next; then ``tick`` is due."""
        # The time of a judgement may have come without a turn.
        judging_at = max(self._now + TURN, self._judging.next_at)
        return min(judging_at, self._agenda.next_at, self._scheduler.next_at(self._now))

    def to_cut_short(self) -> list[Call[Ticket]]:
        """Calls to end early, since queued merchants lack slots. Each is returned once.

        The caller may let the call go on. A call for each queued light merchant or stranger, and one call at a time
        for heavy merchants while silent merchants hold more than a quarter of the slots.
        """
        line = self._scheduler
        heavy = int(line.silence_is_costly(self._now))
        return self._health.to_cut_short(
            line.light_in_line, line.strangers_in_line, heavy, self._now
        )

    def expired(self) -> list[Ticket]:
        """Remove and return orders that expired while waiting, or will before a start is possible."""
        return self._backlog.expired()

    @property
    def has_expired(self) -> bool:
        """Whether ``expired`` has an order to return."""
        return self._backlog.has_expired

    def overdue(self, now: float, most: int = sys.maxsize) -> list[Ticket]:
        """Remove and return orders that waited too long for their merchant, to be parked.

        After as many as ``most``, more may be left.
        """
        until = now - self.limits.local_wait_timeout
        return self._backlog.overdue(until, now, self._room.may_stay, most)

    def drop_waiting(self) -> list[Ticket]:
        """Remove and return all waiting orders (lost connection). Orders in flight stay."""
        dropped = [ticket for lane in self._lanes.values() for ticket in lane.take_all()]
        for lane in self._lanes.values():
            self._changed(lane)
        return dropped + self._backlog.drop()

    # Merchants' terms, and the fleet

    def set_terms(self, merchant_id: str, terms: Terms) -> None:
        """Set a merchant's terms. Orders in flight go on."""
        lane = self._lanes.get(merchant_id)
        if lane is None:
            return
        lane.agree(terms, self._lanes.provider(terms.provider))
        before = lane.quotas
        self._lanes.share(lane, terms.quotas, self._now)
        self._changed(lane)
        for quota in {*before, *lane.quotas}:
            self._pause(quota, self._now)

    def forget_terms(self, merchant_id: str) -> None:
        """A merchant's terms may be outdated: nothing starts until ``set_terms``."""
        lane = self._lanes.get(merchant_id)
        if lane is not None and lane.known:
            lane.known = False
            self._changed(lane)

    def allot(self, merchant_id: str, permits: int | None) -> None:
        """Set this process's allotment of a merchant's concurrency limit, or of the quota with that key.

        None: the fleet sets no limit. Orders in flight go on.
        """
        lane, quota = self._lanes.get(merchant_id), self._lanes.quotas.get(merchant_id)
        part = 1.0 if quota is None or permits is None else max(0, permits) / quota.permits
        if lane is not None:
            lane.bulkhead.agree(lane.bulkhead.concurrency_limit, permits)
            part = lane.bulkhead.part
        if quota is not None:
            quota.allot(min(1.0, part), self._now)
            self._pause(quota, self._now)
        if lane is not None:
            self._changed(lane)

    def demand(self, merchant_id: str) -> Demand:
        """The demand in this process for a merchant, or for a quota. A merchant's own quota may want more.

        Orders in flight count while the merchant's terms are loaded anew, under the limit known before.
        """
        lane, quota = self._lanes.get(merchant_id), self._lanes.quotas.get(merchant_id)
        limit = in_flight = waiting = 0
        if lane is not None:
            limit, in_flight = lane.bulkhead.concurrency_limit, lane.bulkhead.in_flight
            waiting = lane.waiting if lane.known else 0
        elif quota is not None:
            limit, in_flight = quota.permits, quota.in_flight
        if quota is not None and limit:
            waiting = max(waiting, quota.wanted(self._now))
        return Demand(limit, in_flight, waiting)

    def open_breaker(self, merchant_id: str, seconds: float) -> None:
        """Open a merchant's breaker for ``seconds``, or pause the quota with that key, as a different worker did."""
        if names_quota(merchant_id):
            if (quota := self._lanes.quotas.get(merchant_id)) is not None:
                self._pause(quota, self._now + seconds)
            return
        lane = self._lane(merchant_id)
        if not lane.breaker.is_open:
            self._health.open(lane, self._now, FLEET, seconds)
            self._changed(lane)

    def close_breaker(self, merchant_id: str) -> None:
        """Close a merchant's breaker, as a different worker did."""
        lane = self._lanes.get(merchant_id)
        if lane is not None and not lane.breaker.is_closed:
            self._health.close(lane, FLEET)
            self._changed(lane)

    # Parked orders

    def returns_soon(self, merchant_id: str, now: float) -> bool:
        """Whether orders parked now return soon: the merchant answers, and is quick or need not yield to the reader."""
        lane = self._lane(merchant_id)
        is_quick = lane.usual < pacing.SHORTEST
        return self._room.state(lane, now).answers and (is_quick or not self.cpu.is_behind)

    def park_delay(
        self,
        merchant_id: str,
        now: float,
        *,
        few: bool = False,
        look_ups: bool = False,
        left: float = inf,
    ) -> float:
        """Seconds until orders parked now return; ``few`` orders return together with more.

        The first order expires in ``left`` seconds.
        """
        lane = self._lane(merchant_id)
        state = self._room.state(lane, now, look_ups=look_ups)
        return _parking(lane, look_ups).delay(state, few=few, left=left)

    def unpark(
        self,
        merchant_id: str,
        orders: int,
        now: float,
        *,
        look_ups: bool = False,
        may_probe: bool = True,
    ) -> int:
        """How many of the returned orders to unpark to the queue now.

        Args:
            merchant_id: the orders' merchant.
            orders: how many have returned.
            now: the time.
            look_ups: the orders are look-ups.
            may_probe: one order may be unparked to see whether a silent merchant answers.
        """
        self.tick(now)
        lane = self._lane(merchant_id)
        lane.behind_at = now
        state = self._room.state(lane, now, look_ups=look_ups)
        number = _parking(lane, look_ups).unpark(orders, state, may_probe=may_probe)
        if number:
            self._room.unparked.add(number, now)
        return number

    def look_again(
        self, merchant_id: str, orders_at_hand: int, now: float, *, look_ups: bool = False
    ) -> float | None:
        """Seconds until a bundle waiting in the worker is checked again; None: park the bundle.

        Args:
            merchant_id: the bundle's merchant.
            orders_at_hand: how many of the merchant's orders wait in bundles already.
            now: the time.
            look_ups: the orders are look-ups.
        """
        state = self._room.state(self._lane(merchant_id), now, look_ups=look_ups)
        return look_again(orders_at_hand, state)

    # Observability

    @property
    def waiting(self) -> int:
        """Waiting orders."""
        return self._room.waiting

    @property
    def bytes(self) -> int:
        """Bytes of memory of the large orders here."""
        return self._room.bytes

    @property
    def blocked(self) -> int:
        """Waiting orders whose merchant is in trouble."""
        return self._room.blocked

    @property
    def in_flight(self) -> int:
        """Slots in use."""
        return self._scheduler.in_flight

    @property
    def slots(self) -> dict[str, int]:
        """Slots: free, and held by each class of merchants."""
        return self._scheduler.slots()

    def merchant(self, merchant_id: str) -> MerchantStatus | None:
        """A merchant's status; None: nothing is known of the merchant."""
        lane = self._lanes.get(merchant_id)
        return lane.standing(self.parked_count.of(merchant_id), self._now) if lane else None

    def symptoms(self, merchant_id: str, now: float) -> Symptoms | None:
        """A merchant's status, and the facts behind the status; None: nothing is known of the merchant."""
        lane = self._lanes.get(merchant_id)
        return lane.symptoms(self.parked_count.of(merchant_id), now) if lane else None

    def merchants(self) -> Iterator[MerchantStatus]:
        """The status of every merchant with orders here, with parked orders, or in trouble."""
        return chain.from_iterable(self.merchants_by(LANES))

    def merchants_by(self, few: int) -> Iterator[list[MerchantStatus]]:
        """As ``merchants``, ``few`` at a time, so that the caller can yield in between."""
        parked = self.parked_count.of
        for lanes in self._lanes.by(few):
            yield [
                lane.standing(parked(lane.merchant_id), self._now)
                for lane in lanes
                if not lane.is_idle or lane.is_troubled or parked(lane.merchant_id)
            ]

    def in_trouble_by(self, few: int) -> Iterator[list[MerchantStatus]]:
        """The status of the merchants in trouble, of ``few`` merchants at a time."""
        parked, closed = self.parked_count.of, BreakerState.CLOSED
        for lanes in self._lanes.by(few):
            # Most merchants are idle, and distinguished by no more than this.
            busy = (
                lane
                for lane in lanes
                if lane.waiting
                or lane.bulkhead.in_flight
                or lane.breaker.state is not closed
                or parked(lane.merchant_id)
                or lane.is_unsent(self._now)
            )
            statuses = (lane.standing(parked(lane.merchant_id), self._now) for lane in busy)
            yield [each for each in statuses if each.merchant_id and is_in_trouble(each)]

    # Bookkeeping

    def _judge(
        self, call: Call[Ticket], now: float, contact: CallResult, retry_after: float | None
    ) -> None:
        if call.quotas or contact is CallResult.APP_OVERLOADED:
            contact = self._judge_quotas(call.quotas, now, contact, retry_after)
        call.done = contact is CallResult.NONE  # the duration says nothing then either
        self.tick(now)
        call.done = True
        self._health.came_back(call, now, contact, retry_after, max(0.0, now - self._heard))

    def _judge_quotas(
        self,
        quotas: tuple[Quota[Lane[Ticket]], ...],
        now: float,
        contact: CallResult,
        retry_after: float | None,
    ) -> CallResult:
        """Pause the quotas that the POS calls used up; returns the result that counts for the merchant."""
        is_app = contact is CallResult.APP_OVERLOADED
        if not is_app and (contact is not CallResult.OVERLOADED or retry_after is None):
            return contact
        seconds = min(ASKED if retry_after is None else retry_after, LONGEST_OPEN)
        used_up = [each for each in quotas if each.terms.is_app is is_app and each.members > 1]
        for quota in used_up:
            self._announce(Transition(quota.terms.key, BreakerState.OPEN, seconds, "asked"))
            self._pause(quota, now + seconds)
        if not is_app:
            return contact
        return CallResult.NONE if used_up else CallResult.OVERLOADED

    def _start(self, lane: Lane[Ticket], ticket: Ticket, *, is_look_up: bool) -> Call[Ticket]:
        now = self._now
        call = Call(lane, ticket, now, well_for=now - lane.held_at, is_look_up=is_look_up)
        if not lane.breaker.is_closed:
            if lane.may_be_cut_short:  # else each early end leaves an order to an operator
                call.time_limit_share = lane.breaker.time_limit_share
            call.probe = lane.breaker.begin_probe()
        call.lowered = lane.bulkhead.enter()
        self._scheduler.started(call, now)
        call.quotas = lane.quotas
        for quota in lane.quotas:
            quota.started(lane, now)
            self._look_at(quota)
        self._changed(lane)
        return call

    def _queue(self, lane: Lane[Ticket], *, has_slot: bool) -> None:
        """Take a turn at each quota if nothing else is lacking but a slot, or queue at the first that refuses.

        A silent merchant, who may lack a slot for long, queues with a slot only.
        """
        lane.lacks = None
        may_start = lane.waiting > 0 and lane.has_room
        if may_start and lane.is_silent and not has_slot:
            may_start = any(each.has(lane) for each in lane.quotas)
        if may_start:
            lane.lacks = self._lacking(lane)
        for quota in lane.quotas:
            if quota is lane.lacks:
                quota.queue(lane, self._now)
                if quota.is_short:
                    self._on_short(quota.terms.key)
                self._look_at(quota)
            elif may_start and lane.lacks is None:
                quota.give(lane, self._now)
            elif quota.leave(lane):
                self._agenda.add(self._now, self._serve, quota)

    def _lacking(self, lane: Lane[Ticket]) -> Quota[Lane[Ticket]] | None:
        """The first quota that refuses an order of the merchant now."""
        return next((each for each in lane.quotas if not each.takes(lane, self._now)), None)

    def _serve(self, quota: Quota[Lane[Ticket]], _now: float = 0.0) -> None:
        """Give turns to the merchants queued at a quota."""
        while (lane := quota.next(self._now)) is not None:
            self._changed(lane)
        self._look_at(quota)

    def _look_at(self, quota: Quota[Lane[Ticket]]) -> None:
        """Serve the quota again when time alone gives or ends a turn."""
        at = quota.next_at(self._now)
        if at < inf and (at < quota.look_at or quota.look_at <= self._now):
            quota.look_at = at
            self._agenda.add(at, self._serve, quota)

    def _pause(self, quota: Quota[Lane[Ticket]], until: float) -> None:
        """Start nothing of a quota until then; turns are given anew."""
        for lane in quota.pause(until):
            self._changed(lane)
        self._serve(quota)

    def _changed(self, lane: Lane[Ticket], *, has_slot: bool = False) -> None:
        """Update everything that depends on a changed lane."""
        if lane.quotas:
            self._queue(lane, has_slot=has_slot)
        if lane.waiting:
            if lane.breaker.is_open:
                self._backlog.expire_before(lane, lane.breaker.until)
            if lane.known and lane.bulkhead.is_short:
                self._on_short(lane.merchant_id)
        if lane.waiting or lane.counted_waiting:
            self._room.update(lane)
        self._scheduler.update(lane, self._now)

    def _lane(self, merchant_id: str) -> Lane[Ticket]:
        lane = self._lanes.get(merchant_id)
        if lane is None:
            lane = self._lanes.add(merchant_id, self._now)
            terms = self._terms_of(merchant_id)
            if terms is not None:
                self.set_terms(merchant_id, terms)
        return lane


def _parking(lane: Lane[Ticket], look_ups: bool) -> ParkingQueue:
    """The parking queue of a merchant's look-ups, or of the new orders."""
    return lane.look_ups.parking if look_ups else lane.parking
