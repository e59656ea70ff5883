"""How many orders may be in the worker, and how many bytes; the rest are parked in the broker.

Merchants share one budget, and each may have as many as are left (the dynamic threshold of shared buffers: Choudhury
and Hahne, 1998): one alone has at most half, and however many there are, some is left for the next. The remainder is
shared by seconds of work. Merchants that take no orders (silent, breaker open, paused, without a permit) have a small
part together.

Bytes are divided by the same rule, and only large orders count: ordinary orders are bounded by number.
"""

from collections import Counter
from math import ceil
from typing import Generic

from pos_gateway.admission.breaker import PROBES_TO_CLOSE
from pos_gateway.admission.bulkhead import UNASKED
from pos_gateway.admission.cpu import Cpu
from pos_gateway.admission.lane import Lane, Ticket
from pos_gateway.admission.limits import AdmissionLimits
from pos_gateway.admission.parking import AHEAD, ParkedCount, ParkingState, Unparked
from pos_gateway.admission.usage import WINDOW

#: Lower bounds of a reply's seconds, also before the first answer, and as a part of the mean: a merchant both quick
#: and slow has a deviation as large as the mean.
QUICKEST, QUICKEST_PART = 0.0005, 0.25
#: Parts of the budget for orders whose merchant does not answer, and for these together with orders of merchants
#: without a record here. The rest is for merchants that can take orders.
STUCK, STUCK_OR_UNKNOWN = 0.25, 0.5
#: Orders returned at a time to a merchant without a record here: the record usually arrives soon.
FOR_A_RECORD = 64
#: Part of the budget left from which a merchant may have all useful seconds of work.
AMPLE = 1 / 3
#: Part of the bytes reserved to the large orders of merchants that take orders. A merchant without a large order here
#: may begin one until then, even an order larger than all the bytes left.
ANSWERING = 0.5
#: Beyond this multiple of the budget, only light merchants' orders may wait here, and for a slot only.
EXCEEDED = 1.25


class WaitBudget(Generic[Ticket]):
    """Counts waiting orders, and says whether there is room for more.

    Args:
        limits: this process's limits.
        cpu: CPU of this process.
        parked: the orders parked by this worker.
    """

    def __init__(self, limits: AdmissionLimits, cpu: Cpu, parked: ParkedCount) -> None:
        self._limits, self._cpu = limits, cpu
        self._parked = parked
        #: Of all merchants: the budget's remainder is promised once.
        self.unparked = Unparked()
        self.waiting = 0
        #: Of ``waiting``: orders whose merchant is in trouble, and orders whose merchant takes no orders.
        self.blocked = 0
        self.stuck = 0
        #: Bytes of the large orders here, waiting or in flight, and of each merchant's look-ups and new orders: each
        #: kind has a separate part.
        self.bytes = 0
        self._bytes_of: Counter[tuple[str, bool]] = Counter()

    def update(self, lane: Lane[Ticket]) -> None:
        """Update the counts for a lane."""
        blocked = lane.waiting if lane.waiting and lane.is_troubled else 0
        stuck = lane.waiting if lane.waiting and not _answers(lane) else 0
        self.waiting += lane.waiting - lane.counted_waiting
        self.blocked += blocked - lane.counted_blocked
        self.stuck += stuck - lane.counted_stuck
        lane.counted_waiting, lane.counted_blocked = lane.waiting, blocked
        lane.counted_stuck = stuck

    def is_spent(self, lane: Lane[Ticket], now: float, *, look_ups: bool = False) -> bool:
        """Whether no more orders of this merchant, or no more look-ups, may wait here."""
        if lane.breaker.until - now > self._limits.local_wait_timeout:
            return True
        room = self._room(lane, _limit(lane), self._left, look_ups=look_ups)
        return lane.waiting_of(look_ups=look_ups) >= room

    def takes(self, lane: Lane[Ticket], size: int, *, look_ups: bool = False) -> bool:
        """Count a large order of ``size`` bytes, until ``left``; False: no room now."""
        key = lane.merchant_id, look_ups
        limit, own = self._limits.max_bytes, self._bytes_of[key]
        is_ample = self.bytes <= ANSWERING * limit
        if not (is_ample and own == 0):
            has_room = own + size <= limit - self.bytes
            if not has_room or not (is_ample or _is_well(lane)):
                return False
        self.bytes += size
        self._bytes_of[key] = own + size
        return True

    def left(self, merchant_id: str, size: int, *, look_ups: bool = False) -> None:
        """A counted large order has left."""
        self.bytes -= size
        key = merchant_id, look_ups
        self._bytes_of[key] -= size
        if not self._bytes_of[key]:
            del self._bytes_of[key]

    def may_stay(self, lane: Lane[Ticket]) -> bool:
        """Whether the orders may go on waiting, however long: the merchant takes orders."""
        return _answers(lane) and lane.bulkhead.limit > 0

    def state(self, lane: Lane[Ticket], now: float, *, look_ups: bool = False) -> ParkingState:
        """The merchant's state, for the parked orders, or for the parked look-ups."""
        limits, breaker = self._limits, lane.breaker
        lacks_cpu = self._cpu.is_contended and lane.yields
        slots = _slots_while_scarce(lane, now) if lacks_cpu else _slots(lane, now)
        left = max(0, self._left - ceil(self.unparked.on_their_way(now)))
        return ParkingState(
            now=now,
            answers=_answers(lane),
            may_be_called=not breaker.is_open and not _is_paused(lane),
            tries=_tries(lane),
            not_before=max(now, breaker.until),
            answered_at=lane.last_answer,
            interval=_interval(lane, slots),
            known_in=0.0 if lacks_cpu else _known_in(lane),
            waiting=lane.waiting_of(look_ups=look_ups),
            room=self._room(lane, slots if lacks_cpu else _limit(lane), left, look_ups=look_ups),
            parked=self._parked.of(lane.merchant_id),
            bundles=self._parked.bundles / limits.cores,
            lacks_cpu=lacks_cpu and self._cpu.is_scarce and self._cpu.is_used_up,
            shortest=limits.park_delay_min,
            longest=limits.park_delay_max,
        )

    @property
    def _left(self) -> int:
        return max(0, self._limits.max_blocked - self.waiting)

    def _room(self, lane: Lane[Ticket], slots: float, left: int, *, look_ups: bool) -> int:
        """How many of the merchant's orders may wait with ``slots``, and half as many look-ups besides.

        ``left``: orders for which the budget has room.
        """
        room = self._room_for_orders(lane, slots, left)
        return ceil(room / 2) if look_ups else room

    def _room_for_orders(self, lane: Lane[Ticket], slots: float, left: int) -> int:
        room = self._part_for_orders(lane, slots, left)
        # Only a waiting order asks for an allotment, or queues at a quota.
        is_next = not lane.bulkhead.in_flight and _is_well(lane)
        may_exceed = self.waiting < EXCEEDED * self._limits.max_blocked
        return 1 if not room and is_next and may_exceed else room

    def _part_for_orders(self, lane: Lane[Ticket], slots: float, left: int) -> int:
        limits = self._limits
        if not _answers(lane):
            part = STUCK if lane.known else STUCK_OR_UNKNOWN
            here = lane.waiting + max(0, int(part * limits.max_blocked) - self.stuck)
            return min(left, here, limits.max_waiting) if lane.known else min(left, here)
        # Seconds are shared, not orders: a quicker merchant may have more orders.
        seconds = AHEAD * min(1.0, left / (AMPLE * limits.max_blocked))
        room = min(left, ceil(slots) + ceil(seconds / _interval(lane, slots)))
        if lane.is_troubled:
            return room
        # The orders wait for slots only: a heavy merchant keeps one here, as a place in the queue.
        if lane.is_light and not lane.yields:
            return max(room, limits.max_waiting)
        return max(room, 1) if self.waiting < EXCEEDED * limits.max_blocked else room


def _answers(lane: Lane[Ticket]) -> bool:
    """Whether the merchant takes orders, as far as is known; not at an allotment of 0."""
    return _is_well(lane) and _limit(lane) > 0


def _is_well(lane: Lane[Ticket]) -> bool:
    """Whether the merchant takes orders, as far as is known. A waiting order asks for the allotment."""
    here = lane.bulkhead.here
    return lane.known and lane.breaker.is_closed and not lane.latency.silent and here > 0


def _is_paused(lane: Lane[Ticket]) -> bool:
    return lane.known and not lane.bulkhead.concurrency_limit


def _tries(lane: Lane[Ticket]) -> int:
    """How many orders to unpark to see whether the merchant takes any."""
    if not lane.known:
        return FOR_A_RECORD
    return 1 if lane.breaker.is_closed else PROBES_TO_CLOSE


def _interval(lane: Lane[Ticket], slots: float) -> float:
    """Seconds between two turns of the merchant's orders at best, with ``slots``.

    A low estimate: a slow reply raises mean and deviation alike, and a quick reply lowers the estimate. A stranger's
    reply is believed to be quick, but for want of CPU: orders would return each second, and find no room.
    """
    latency, bulkhead = lane.latency, lane.bulkhead
    reply = QUICKEST if slots >= 1 else lane.usual
    if latency.mean is not None:
        reply = max(QUICKEST, latency.mean - latency.deviation, QUICKEST_PART * latency.mean)
    interval = reply / slots if slots > 0 else reply
    if not lane.quotas or bulkhead.allotment == UNASKED:
        return interval
    return max(interval, *(quota.interval for quota in lane.quotas))


def _slots(lane: Lane[Ticket], now: float) -> float:
    """The merchant's slots from now on: the limit, but for a heavy merchant short of slots twice the use at most."""
    limit = _limit(lane)
    if lane.latency.mean is None or lane.queue is None or lane.is_light:
        return limit
    return max(1.0, min(limit, 2 * lane.usage.average(now)))


def _slots_while_scarce(lane: Lane[Ticket], now: float) -> float:
    """As ``_slots``, of a merchant that lacks CPU: one order in ``WINDOW`` seconds at least."""
    used = max(2 * lane.usage.average(now), lane.usual / WINDOW)
    return min(_limit(lane), used)


def _known_in(lane: Lane[Ticket]) -> float:
    """Seconds until there are more answers than may be in flight.

    The first answers may include connecting, and say little of later answers.
    """
    latency, bulkhead = lane.latency, lane.bulkhead
    missing = max(0, bulkhead.limit + 1 - latency.answers)
    return missing * (latency.mean or 0.0) / max(1, bulkhead.in_flight)


def _limit(lane: Lane[Ticket]) -> int:
    """The merchant's orders in flight at best: the whole limit, until the fleet allots a part."""
    bulkhead = lane.bulkhead
    return bulkhead.here if bulkhead.allotment == UNASKED else bulkhead.limit
