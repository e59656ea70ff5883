"""Schedules slots by slot-time, not by orders.

A merchant is *light* while the merchant's projected average of slots, with the calls in flight and one
more, is less than a fair share: the slots, divided by the merchants with work. A merchant with a backlog
is light below half of the share, as is any merchant while strangers queue. This leaves room for light
merchants whatever the rest do. All others are *heavy*, and leave as many slots free as light merchants
need; *silent* merchants, who may not answer, share a small budget.

While CPU is scarce, merchants *yield* if they use half of a fair share or more, or have not kept up with
their orders for a while: they start as ``cpu.py`` allows. Slow merchants also yield while messages lie unread.
"""

from itertools import chain
from math import expm1, inf, log, sqrt
from typing import Any, Generic

from pos_gateway.admission.arrivals import Arrivals
from pos_gateway.admission.cpu import TURN, Cpu
from pos_gateway.admission.lane import Call, Lane, MerchantQueue, Provider, Ticket
from pos_gateway.admission.limits import AdmissionLimits
from pos_gateway.admission.pacing import Pacing
from pos_gateway.admission.parking import ParkedCount
from pos_gateway.admission.usage import WINDOW, Usage

#: Standard deviations beyond the mean number of light calls that heavy merchants leave free: calls
#: arrive at random, and their number strays by the square root (square-root staffing).
DEVIATIONS = 2.0
#: A light merchant at fraction f of its light threshold leaves free min(1, GRADE x f) of the
#: reserve.
GRADE = 2.0
#: Calls are cut short for heavy merchants once silent merchants hold more than 1/COSTLY of the slots.
COSTLY = 4
#: The part of the fair share below which a merchant is light, without and with several waiting orders.
#: By chance a merchant who uses half of a share exceeds the share now and then, and the order need not
#: stand behind backlogs (as a sparse flow's packet in FQ-CoDel, RFC 8290).
LIGHT, LIGHT_WITH_BACKLOG = 1.0, 0.5
#: Seconds with several orders here from which a merchant is behind, and for which the merchant counts as behind. While
#: CPU is scarce, a merchant that keeps up may have several orders at once, each waiting for a turn of the loop.
BEHIND_AFTER, BEHIND_FOR = 1.5, 5.0


class Scheduler(Generic[Ticket]):
    """Counts the slots, and queues the merchants that lack a slot.

    Merchants held back by their own limits (see ``Lane.has_room``) are not queued, lest they hide the
    rest. Call ``update`` after each change of a lane. Decisions cost the logarithm of the queues.

    Args:
        limits: this process's limits.
        cpu: this process's CPU.
        parked: the orders parked by this worker.
    """

    def __init__(self, limits: AdmissionLimits, cpu: Cpu, parked: ParkedCount) -> None:
        self._cpu, self._parked = cpu, parked
        self._slots, self._reserve = limits.slots, limits.reserve
        self._budget = limits.silent_budget
        self._light: MerchantQueue[Ticket] = MerchantQueue()
        self._strangers: MerchantQueue[Ticket] = MerchantQueue()
        self._heavy: MerchantQueue[Ticket] = MerchantQueue()
        self._paced: MerchantQueue[Ticket] = MerchantQueue()
        self._early: MerchantQueue[Ticket] = MerchantQueue()
        self._silent: MerchantQueue[Ticket] = MerchantQueue()
        self._queues = (
            self._light,
            self._strangers,
            self._heavy,
            self._paced,
            self._early,
            self._silent,
        )
        #: Slots held by light calls, and by all further calls. ``silent``: slots of silent merchants, as
        #: of each lane's last update; light calls of silent merchants are in ``light``, too.
        self.light = Usage()
        self.heavy = 0
        self.silent = 0
        #: Callable merchants with work.
        self.working = 0
        self._pacing = Pacing(limits.slots)
        #: Since messages lie unread.
        self._arrivals = Arrivals()
        #: When a merchant with few of the orders was judged last.
        self._few_at = -inf
        #: The last start of a yielding merchant was a stranger's.
        self._stranger_started = False

    @property
    def in_flight(self) -> int:
        """Held slots."""
        return self.light.held + self.heavy

    @property
    def light_in_line(self) -> int:
        """Light merchants short of a slot only."""
        return self._light.size

    @property
    def strangers_in_line(self) -> int:
        """Strangers short of a slot only."""
        return self._strangers.size

    def arrived(self, lane: Lane[Ticket]) -> None:
        """An order of the merchant has been read."""
        if self._cpu.is_behind:
            self._arrivals.add(lane.merchant_id)
        elif self._arrivals.total:
            self._arrivals.forget()

    def judge(self, lane: Lane[Ticket], now: float) -> float:
        """Judge whether the merchant is light; returns projected usage by threshold."""
        part = 1.0
        if lane.latency.mean is not None and not lane.is_silent:
            light = LIGHT if self._keeps_up(lane) else LIGHT_WITH_BACKLOG
            part = lane.projected(now) * max(1, self.working) / (light * self._slots)
        lane.crowded_since = min(lane.crowded_since, now) if lane.is_crowded else inf
        has_parked = self._parked.total > 0 and self._parked.of(lane.merchant_id)
        if has_parked or now - lane.crowded_since >= BEHIND_AFTER:
            lane.behind_at = now
        lane.is_light = part < 1
        lane.yields = self._cpu.is_scarce and (GRADE * part >= 1 or self._was_behind(lane, now))
        lane.yields |= self._cpu.is_behind and lane.is_paced
        if lane.light_held and not lane.is_light:
            # The calls are not light either: no slots are kept free for them.
            self.light.add(-lane.light_held, now)
            self.heavy += lane.light_held
            lane.light_held, lane.light_spell = 0, lane.light_spell + 1
        return part

    def has_slot(self, lane: Lane[Ticket], now: float) -> bool:
        """Whether there is a slot for a further order of the merchant."""
        free = self._slots - self.in_flight
        part = self.judge(lane, now)
        if self._cpu.wait if lane.yields else self._cpu.is_turn_over:
            return False
        if lane.is_light:
            return free > int(self._reserve * min(1.0, GRADE * part))
        if lane.is_silent and self.silent >= self._budget:
            return False
        if lane.is_early:
            # The first call shows how fast the merchant is; several at once start only while slots abound.
            return 2 * free > self._slots and self._has_heavy_slot(free, 0, now)
        if lane.is_paced and not self._pacing.lets_start(now):
            return False
        more = self._reserve // 2 if lane.is_stranger else 0
        return self._has_heavy_slot(free, more, now)

    def may_start_at_once(self, lane: Lane[Ticket], now: float) -> bool:
        """Whether a newcomer may start without queueing.

        A light merchant needs a slot; for any other merchant no queue may have a merchant, either.
        """
        if not self.has_slot(lane, now):
            return False
        if not lane.is_light or lane.yields:
            return not any(queue.size for queue in self._queues)
        return not (self._light.size and self._cpu.is_scarce)

    def next(self, now: float) -> Lane[Ticket] | None:
        """The merchant whose next order starts now; None if no slot is free for any merchant."""
        if self.in_flight >= self._slots:
            return None
        for queue in self._queues:
            if queue.size:
                self._put_right(queue, now)
        light, strangers = ([head] if (head := each.head()) else [] for each in self._queues[:2])
        others = [head for queue in self._queues[2:] if (head := queue.head())]
        others.sort(key=_key_of)
        # While CPU is scarce, strangers and heavy merchants start in turn.
        is_others_turn = self._stranger_started and self._cpu.is_scarce
        line = (light, others, strangers) if is_others_turn else (light, strangers, others)
        heads = chain.from_iterable(line)
        return next((lane for _, _, lane in heads if self.has_slot(lane, now)), None)

    def next_at(self, now: float) -> float:
        """When pacing or CPU lets a queued merchant start; inf if no merchant waits for either."""
        if self._light.size and self._cpu.is_turn_over:
            return now + TURN
        if self._cpu.wait and any(queue.size for queue in self._queues[1:]):
            return now + self._cpu.wait
        return (
            self._pacing.next_at if self._paced.size and not self._pacing.lets_start(now) else inf
        )

    def silence_is_costly(self, now: float) -> bool:
        """Whether heavy merchants lack slots, and silent merchants hold more than a quarter of all slots."""
        lack_slots = self._heavy.size > 0 or (self._paced.size > 0 and self._pacing.lets_start(now))
        return lack_slots and not self._cpu.wait and self.silent > self._slots // COSTLY

    def started(self, call: Call[Ticket], now: float) -> None:
        """A call holds a slot."""
        lane = call.lane
        lane.usage.add(1, now)
        if call.is_look_up:
            lane.look_ups.usage.add(1, now)
        if lane.is_light:
            call.light, lane.light_held = lane.light_spell, lane.light_held + 1
            self.light.add(1, now)
        else:
            self.heavy += 1
            if lane.is_paced:
                self._pacing.started(lane.latency.mean or 0.0, now)
        if lane.yields:
            self._cpu.started()
            self._stranger_started = lane.latency.mean is None
        elif lane.is_light and not self._was_behind(lane, now):
            self._cpu.kept_up()
        if lane.queue is not None:  # the place was for this call: the merchant queues anew
            lane.queue.remove(lane)

    def released(self, call: Call[Ticket], now: float) -> None:
        """A call holds a slot no more."""
        call.lane.usage.add(-1, now)
        if call.is_look_up:
            call.lane.look_ups.usage.add(-1, now)
        if call.is_light:
            call.lane.light_held -= 1
            self.light.add(-1, now)
        else:
            self.heavy -= 1

    def became_unusual(self, call: Call[Ticket], now: float) -> None:
        """A call is an outlier, and does not count as light any more."""
        if call.is_light:
            call.light = None
            call.lane.light_held -= 1
            self.light.add(-1, now)
            self.heavy += 1
        self.update(call.lane, now)

    def revived(self, provider: Provider, silent: float, now: float) -> list[Lane[Ticket]]:
        """A provider answers again after ``silent`` seconds; returns the provider's queued merchants, who have changed.

        Queued merchants are charged as if they had held a fair share during the silence: time in which a
        merchant could not be called is no credit, else hundreds return as light at once.
        """
        share = self._slots / max(1, self.working) * -expm1(-silent / WINDOW)
        lanes = [lane for queue in self._queues for lane in queue if lane.provider is provider]
        for lane in lanes:
            lane.usage.raise_to(share, now)
        return lanes

    def update(self, lane: Lane[Ticket], now: float) -> None:
        """The lane has changed: count the lane anew, and move the lane to the right queue, if any."""
        if lane.is_working is not lane.counted_working:
            lane.counted_working = not lane.counted_working
            self.working += 1 if lane.counted_working else -1
        silent = lane.usage.held if lane.usage.held and lane.is_silent else 0
        self.silent += silent - lane.counted_silent
        lane.counted_silent = silent
        if lane.waiting and lane.has_room:
            self._move(lane, self._queue_of(lane, now), now)
        elif lane.queue is not None:
            lane.queue.remove(lane)

    def slots(self) -> dict[str, int]:
        """How many slots are free, and how many are held by light, heavy and silent merchants' calls.

        Light calls of a silent merchant are shown as light until the merchant is judged anew.
        """
        silent = min(self.silent, self.heavy)
        free = max(0, self._slots - self.in_flight)
        return {
            "free": free,
            "light": self.light.held,
            "heavy": self.heavy - silent,
            "silent": silent,
        }

    def _keeps_up(self, lane: Lane[Ticket]) -> bool:
        """Whether the merchant has no backlog, and no stranger queues, who would wait for the merchant."""
        return lane.waiting <= 1 and not self._strangers.size

    def _was_behind(self, lane: Lane[Ticket], now: float) -> bool:
        """Whether the merchant did not keep up a short time before now, or before messages lay unread.

        A merchant with few of the orders read since then keeps up; then merchants with more do not.
        """
        unread_for = self._cpu.unread_for
        if unread_for and (are_few := self._arrivals.are_few(lane.merchant_id)) is not None:
            if are_few:
                self._few_at, unread_for = now, 0.0
            elif now - self._few_at < BEHIND_FOR:
                return True
        return now - unread_for - lane.behind_at < BEHIND_FOR

    def _need(self, now: float) -> float:
        """Slots left free by heavy merchants for light merchants, with a margin for chance."""
        light = self.light
        mean = max(light.average(now), light.held + self._light.size)
        return self._reserve + mean + DEVIATIONS * sqrt(mean)

    def _has_heavy_slot(self, free: int, more: int, now: float) -> bool:
        if self.heavy < self._slots - self._need(now) + more:
            return True
        return free > self._reserve and self.heavy == 0  # in a small pod, too

    def _queue_of(self, lane: Lane[Ticket], now: float) -> MerchantQueue[Ticket]:
        self.judge(lane, now)
        if lane.is_silent:
            return self._silent
        if lane.latency.mean is None:
            return self._early if lane.usage.held else self._strangers
        if lane.is_light and not lane.yields:
            return self._light
        return self._paced if lane.is_paced else self._heavy

    def _put_right(self, queue: MerchantQueue[Ticket], now: float) -> None:
        """Move lanes off the head that belong elsewhere: time, work and providers change a lane's queue."""
        while (head := queue.head()) is not None:
            own = self._queue_of(head[2], now)
            if own is queue:
                return
            self._move(head[2], own, now)

    def _move(self, lane: Lane[Ticket], queue: MerchantQueue[Ticket], now: float) -> None:
        """Move the lane to this queue; a lane in this queue keeps the place."""
        present: MerchantQueue[Any] | None = lane.queue
        if present is queue:
            return
        if present is not None:
            present.remove(lane)
        queue.add(lane, self._key(lane, now))

    def _key(self, lane: Lane[Ticket], now: float) -> float:
        """Sort key: less usage comes first, and a longer wait; usage is halved in 3.5 s.

        Of quick merchants that yield, the one with the least work comes first: who fell behind by chance would else
        stay behind, among hundreds with backlogs. A half-open merchant's probe does not wait for its backlog's turn.
        """
        if lane.is_stranger:
            return now
        if lane.yields and not lane.is_paced and lane.breaker.is_closed:
            orders = lane.waiting + self._parked.of(lane.merchant_id)
            used = orders * lane.usual / WINDOW
        elif lane.is_light or lane.usage.held:
            used = lane.projected(now)
        else:  # the next call of a heavy merchant does not count, else a returning slow merchant would wait long
            used = lane.usage.average(now)
        return log(max(1e-9, used)) + now / WINDOW


def _key_of(head: tuple[float, int, Lane[Any]]) -> float:
    return head[0]
