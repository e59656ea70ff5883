"""The real admission in virtual time, with a queue, a window and parking around it.

A worker reads a number of orders a second from the queue while its window has room; orders that may
not start are parked in bundles, and failed ones are retried. Merchants are groups that behave
alike.
"""

import heapq
from bisect import bisect
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import ceil, inf
from random import Random
from typing import Any

from pos_gateway.admission import breaker, parking
from pos_gateway.admission.admission import Admission, AdmissionVerdict
from pos_gateway.admission.cpu import TURN
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import AdmissionLimits, Terms
from pos_gateway.domain.outcome import CallResult
from tests.admission.adversaries import core
from tests.admission.adversaries.core import (
    END,
    EXPIRED,
    READ,
    READS,
    START,
    Core,
)

#: Messages that a worker reads in a second, and holds for each slot; seconds to end a call early.
SIFT, WINDOW, ENDING = 2500.0, 10, 0.001
#: Seconds between two checks of the time; orders of a bundle, and seconds that it is open.
TICK, BUNDLE, OPEN, OPEN_LATER = 0.1, 64, 0.2, 2.0
#: Seconds from one stall of the loop to the next.
STALLS = 2.0
#: Orders that are told of at once without a slot.
SLOTLESS, SLOTLESS_WAITING = 16, 256

Kind = tuple[str, bool]
Seconds = Callable[[Random, float], float]
Answer = tuple[CallResult, float | None]


def about(seconds: float, spread: float = 0.2) -> Seconds:
    """A reply that takes this long, give or take ``spread``."""
    return lambda random, _now: seconds * random.uniform(1 - spread, 1 + spread)


def hangs_until(end: float, after: Seconds) -> Seconds:
    """A reply that comes after that time, to each call."""
    return lambda random, now: max(0.0, end - now) + after(random, now)


def hangs_from(start: float, before: Seconds) -> Seconds:
    """A reply that never comes, from then on."""
    return lambda random, now: 1e9 if now > start else before(random, now)


@dataclass(frozen=True)
class Group:
    """Merchants that behave alike."""

    name: str
    merchants: int
    reply: Seconds
    limit: int = 10
    #: Orders a second of all of them; or else how many each has at any time, or at first if each comes but once.
    rate: float = 0.0
    backlog: int = 0
    comes_once: bool = False
    #: When each has an order more, all at once.
    burst_at: float | None = None
    start: float = 0.0
    #: Seconds over which its backlog comes.
    over: float = 0.2
    timeout: float = 10.0
    provider: str | None = None
    #: Or the number of providers that its merchants are spread over.
    providers: int = 0
    #: Seconds from an order's arrival to its deadline.
    lasts: float = inf
    #: A look-up's reply, if it takes another time than ``reply``.
    look_up: Seconds | None = None
    #: The result of an answered call, by the merchant's orders in flight.
    answer: Callable[[int], Answer] = lambda _in_flight: (CallResult.ANSWERED, None)


@dataclass(eq=False, slots=True)
class Order:
    merchant: str
    group: Group
    came: float
    #: When it was offered for the first time.
    offered: float | None = None
    #: Its merchant had answered before by then.
    is_known: bool = False
    attempts: int = 0
    #: Since when its POS may have it; None: it has not.
    doubt_since: float | None = None

    def deadline(self, now: float) -> float:
        """When it expires; one in doubt is looked up after that, too."""
        until = self.came + self.group.lasts
        return inf if self.doubt_since is not None and until <= now else until


@dataclass
class Seen:
    """What a group got, after the warm-up except for ``first``."""

    #: Seconds that orders waited for their first start, from their first offer and from the queue.
    waited: list[float] = field(default_factory=list)
    queued: list[float] = field(default_factory=list)
    #: Seconds until each merchant's first start.
    first: dict[str, float] = field(default_factory=dict)
    #: When orders started.
    starts: list[float] = field(default_factory=list)
    #: Slots that they hold now.
    in_flight: int = 0
    #: Slots that they held on average.
    held: float = 0.0
    came: int = 0
    answered: int = 0
    failed: int = 0
    cut_short: int = 0
    parked: int = 0
    expired: int = 0
    #: Orders in doubt that were not looked up yet, and seconds that others were in doubt before that.
    in_doubt: set[Order] = field(default_factory=set)
    doubts: list[float] = field(default_factory=list)

    def p99(self) -> float:
        """Seconds under which 99 of 100 orders waited for a slot."""
        return sorted(self.waited)[int(len(self.waited) * 0.99)] if self.waited else 0.0

    def most_at_once(self) -> int:
        """The most orders that started within a tenth of a second."""
        ends = (bisect(self.starts, at + 0.1) for at in self.starts)
        return max((end - place for place, end in enumerate(ends)), default=0)


class Driver:
    """One worker and its merchants.

    Args:
        groups: its merchants.
        seconds: how long the run is measured.
        warm_up: seconds that are not measured.
        slots: the worker's.
        seed: of all that is random.
        cores: the worker's speed, as a part of a core; by default its work takes no time.
        stall: seconds for which the loop does something else now and then.
        every: seconds from one of those to the next; 0: in each turn.
        events_from: when it begins to publish more events than it ever will.
    """

    def __init__(
        self,
        *groups: Group,
        seconds: float = 30.0,
        warm_up: float = 12.0,
        slots: int = 200,
        seed: int = 1,
        cores: float = inf,
        stall: float = 0.0,
        every: float = STALLS,
        events_from: float = inf,
    ) -> None:
        self._random = breaker.random = parking.random = Random(seed)  # type: ignore[assignment]
        self._groups = {f"{each.name}-{n}": each for each in groups for n in range(each.merchants)}
        self._seconds, self._warm_up, self._window = seconds, warm_up, WINDOW * slots
        #: Seconds that are measured.
        self.measured = seconds - warm_up
        self.admission: Admission[Order] = Admission(
            AdmissionLimits(slots=slots, cores=min(1.0, cores), max_blocked=self._window // 2),
            lambda merchant: Terms(self._groups[merchant].limit, self._provider_of(merchant)),
        )
        self._core = Core(cores, self._turned) if cores < inf else None
        self._stall_seconds, self._every, self._events_from = stall, max(TURN, every), events_from
        #: Pieces of events' batches that are hydrated or published.
        self.pieces = 0
        self.seen = {each.name: Seen() for each in groups}
        #: The holders of the slots, at every check of the time.
        self.slots: list[tuple[float, dict[str, int]]] = []
        self._now = 0.0
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = count()
        #: Messages in the queue: orders, and bundles that are back.
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._held, self._is_reading = 0, False
        #: By merchant, and whether they are look-ups, as all that follows.
        self._open: dict[Kind, list[Order]] = {}
        #: Messages whose orders are in those.
        self._gathered: Counter[Kind] = Counter()
        #: Bundles that are back and at hand until more may wait.
        self._at_hand: dict[Kind, deque[list[Order]]] = {}
        self._bundles_at_hand = 0
        #: Orders that need no slot, and wait to be told of.
        self._slotless: deque[Order] = deque()
        self._is_telling = False
        #: When the time is checked next, beside each tick.
        self._look_due = 0.0
        self._over: set[Call[Order]] = set()
        self._calls: Counter[str] = Counter()
        #: Merchants that have answered.
        self._known: set[str] = set()

    def run(self) -> "Driver":
        for merchant, group in self._groups.items():
            for _ in range(group.backlog):
                at = group.start + self._random.uniform(0, group.over)
                self._at(at, self._publish, Order(merchant, group, at))
            if group.burst_at is not None:
                self._at(group.burst_at, self._publish, Order(merchant, group, group.burst_at))
            if group.rate:
                self._at(group.start + self._pause(group), self._come, merchant, group)
        self._at(0.0, self._tick)
        self._at(self._every, self._stall)
        self._at(self._events_from, self._publish_events)
        while self._agenda[0][0] < self._seconds:
            at, _, do, arguments = heapq.heappop(self._agenda)
            counts = max(0.0, at - max(self._now, self._warm_up))
            for seen in self.seen.values():
                seen.held += seen.in_flight * counts / self.measured
            is_outside = do in (self._come, self._publish)
            self._now = at if self._core is None or is_outside else self._core.comes_to(at)
            do(*arguments)
        return self

    def _provider_of(self, merchant: str) -> str | None:
        group = self._groups[merchant]
        name, _, number = merchant.rpartition("-")
        return f"{name}-{int(number) % group.providers}" if group.providers else group.provider

    @property
    def cut_short(self) -> int:
        """Calls that were cut short, of all merchants."""
        return sum(each.cut_short for each in self.seen.values())

    def longest_doubt(self, name: str) -> float:
        """The most seconds for which an order was in doubt, or still is, without a look-up."""
        seen = self.seen[name]
        still = (self._now - (order.doubt_since or 0.0) for order in seen.in_doubt)
        return max([*seen.doubts, *still], default=0.0)

    def never_started(self, name: str) -> int:
        """Merchants of a group that never had a slot."""
        group = next(each for each in self._groups.values() if each.name == name)
        return group.merchants - len(self.seen[name].first)

    def _at(self, at: float, do: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._agenda, (at, next(self._number), do, arguments))

    def _come(self, merchant: str, group: Group) -> None:
        self._publish(Order(merchant, group, self._now))
        self._at(self._now + self._pause(group), self._come, merchant, group)

    def _pause(self, group: Group) -> float:
        return self._random.expovariate(group.rate / group.merchants)

    def _publish(self, order: Order) -> None:
        self.seen[order.group.name].came += not order.attempts
        self._enqueue(self._offer, order)

    def _enqueue(self, do: Callable[..., None], *arguments: Any) -> None:
        self._queue.append((do, arguments))
        self._read_soon()

    def _read_soon(self) -> None:
        if self._queue and not self._is_reading and self._held < self._window:
            self._is_reading = True
            self._at(self._now + 1 / SIFT if self._core is None else self._then, self._read)

    def _turned(self, busy: float, passed: float, now: float) -> None:
        """A turn begins; more may lie in the queue than the last one has read."""
        if len(self._queue) >= READS and self._held < self._window:
            self.admission.cpu.reads_on()
        self.admission.turned(busy, passed, now)

    def _read(self) -> None:
        self._is_reading = False
        for _ in range(READS if self._core is not None else 1):
            if self._queue and self._held < self._window:
                do, arguments = self._queue.popleft()
                self._spend(READ)
                do(*arguments)
        self._dispatch()
        self._read_soon()

    def _offer(self, order: Order) -> None:
        self._held += 1
        if order.offered is None:
            order.offered, order.is_known = self._now, order.merchant in self._known
        match self.admission.offer(
            order.merchant,
            order,
            self._now,
            order.deadline(self._now),
            is_look_up=order.doubt_since is not None,
        ):
            case Call() as call:
                self._start(call)
            case AdmissionVerdict.PARK:
                self._park(order)
            case AdmissionVerdict.EXPIRE:
                self._expire(order)

    def _expire(self, order: Order) -> None:
        """It needs no slot, and waits for a green thread."""
        if self._core is None:
            self._expired(order)
            return
        if self.admission.cpu.wait_without_slot and len(self._slotless) >= SLOTLESS_WAITING:
            self._park(order)
            return
        self._slotless.append(order)
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._slotless and not self._is_telling:
            self._is_telling = True
            self._at(self._now + self.admission.cpu.wait_without_slot, self._tell)

    def _tell(self) -> None:
        """Tell of orders that expired, a few at once."""
        self._is_telling = False
        for _ in range(min(SLOTLESS, len(self._slotless))):
            if self.admission.cpu.wait_without_slot:
                break
            self.admission.cpu.started_without_slot()
            self._spend(EXPIRED)
            self._expired(self._slotless.popleft())
        self._tell_soon()
        self._read_soon()

    def _expired(self, order: Order) -> None:
        """One in doubt comes back for a look-up."""
        self._held -= 1
        self.seen[order.group.name].expired += order.doubt_since is None
        if order.doubt_since is not None:
            self._at(self._now + 1.0, self._publish, order)

    @property
    def _then(self) -> float:
        """When what is being done will be done."""
        return self._now if self._core is None else max(self._now, self._core.free_at)

    def _spend(self, seconds: float) -> None:
        if self._core is not None:
            self._core.spend(seconds, self._now)

    def _start(self, call: Call[Order]) -> None:
        self._spend(START)
        self.admission.began(call, self._now)
        order, group = call.ticket, call.ticket.group
        seen, waited = self.seen[group.name], self._now - (order.offered or 0.0)
        seen.in_flight += 1
        self._calls[order.merchant] += 1
        seen.first.setdefault(order.merchant, waited)
        if self._now >= self._warm_up:
            seen.starts.append(self._now)
        if self._now >= self._warm_up and not order.attempts and order.is_known:
            seen.waited.append(waited)
            if order.came >= self._warm_up:
                seen.queued.append(self._then - order.came)
        reply = group.reply
        if order in seen.in_doubt:
            seen.in_doubt.remove(order)
            seen.doubts.append(self._now - (order.doubt_since or 0.0))
        if order.doubt_since is not None:
            reply = group.look_up or reply
        takes, timeout = reply(self._random, self._now), group.timeout * call.time_limit_share
        if takes < timeout:
            self._at(
                self._then + takes, self._end, call, *group.answer(self._calls[order.merchant])
            )
        else:
            self._at(self._then + timeout, self._end, call, CallResult.TIMED_OUT, None)

    def _end(self, call: Call[Order], contact: CallResult, retry_after: float | None) -> None:
        if call in self._over:
            return
        self._over.add(call)
        self._spend(END)
        order, group = call.ticket, call.ticket.group
        seen = self.seen[group.name]
        seen.in_flight -= 1
        self._calls[order.merchant] -= 1
        self._held -= 1
        self.admission.release(call, self._now, contact, retry_after)
        if contact is not CallResult.ANSWERED:
            order.attempts += 1
            seen.failed += 1
            if contact is CallResult.TIMED_OUT and group.lasts < inf and order.doubt_since is None:
                order.doubt_since = self._now
                seen.in_doubt.add(order)
            pause = min(60, 2**order.attempts) * self._random.uniform(0.8, 1.2)
            self._at(self._now + pause, self._publish, order)
        else:
            seen.answered += 1
            self._known.add(order.merchant)
            if group.backlog and not group.comes_once:
                self._publish(Order(order.merchant, group, self._now))
        self._dispatch()
        self._read_soon()

    def _dispatch(self) -> None:
        self.admission.tick(self._now)
        while (call := self.admission.next_start(self._now)) is not None:
            self._start(call)
        for order in self.admission.expired():
            self._expire(order)
        self._look_at(self.admission.next_at)
        for call in self.admission.to_cut_short():
            self.seen[call.ticket.group.name].cut_short += 1
            self._at(self._now + ENDING, self._end, call, CallResult.TIMED_OUT, None)

    def _look_at(self, at: float) -> None:
        """Check again then, if no check is due before."""
        if at < self._now + TICK and not self._now < self._look_due <= at:
            self._look_due = at
            self._at(at, self._dispatch)

    def _tick(self) -> None:
        self.slots.append((self._now, self.admission.slots))
        self._dispatch()
        for order in self.admission.overdue(self._now):
            self._park(order)
        self._at(self._now + TICK, self._tick)

    def _publish_events(self) -> None:
        """A piece of a batch, and the next one after a turn of the loop."""
        self._spend(core.EVENTS)
        is_hydrating = self.pieces % (2 * core.PIECES) < core.PIECES
        self.pieces += 1
        pause = self.admission.cpu.pause() if is_hydrating else 0.0
        self._at(self._then + max(TURN, pause), self._publish_events)

    def _stall(self) -> None:
        self._spend(self._stall_seconds)
        self._at(self._now + self._every, self._stall)

    def _park(self, order: Order) -> None:
        """It waits in an open bundle for others of its merchant."""
        self.seen[order.group.name].parked += 1
        self._gather((order.merchant, order.doubt_since is not None), [order])

    def _gather(self, kind: Kind, orders: list[Order]) -> None:
        """A message's orders join an open bundle."""
        bundle = self._open.get(kind)
        if bundle is not None and len(bundle) + len(orders) > BUNDLE:
            self._close(kind, bundle)
            bundle = None
        if bundle is None:
            bundle = self._open[kind] = []
            is_soon = self.admission.returns_soon(kind[0], self._now)
            at = self._now + (OPEN if is_soon else OPEN_LATER)
            self._at(at, self._close, kind, bundle)
        bundle.extend(orders)
        self._gathered[kind] += 1
        if len(bundle) >= BUNDLE:
            self._close(kind, bundle)
        while self._gathered.total() > self._window // 4:
            self._close(*next(iter(self._open.items())))

    def _close(self, kind: Kind, bundle: list[Order]) -> None:
        if self._open.get(kind) is bundle:
            del self._open[kind]
            self._held -= self._gathered.pop(kind)
            self._delay(kind, bundle)
            self._read_soon()

    def _delay(self, kind: Kind, bundle: list[Order], *, is_whole: bool = False) -> None:
        (merchant, look_ups), few = kind, len(bundle) <= BUNDLE // 2
        self._spend(core.BUNDLE + (0.0 if is_whole else core.PARKED * len(bundle)))
        left = min(order.deadline(self._now) for order in bundle) - self._now
        delay = self.admission.park_delay(
            merchant, self._now, few=few, look_ups=look_ups, left=left
        )
        at = self._now + max(1, ceil(delay))
        self.admission.parked_count.add(merchant, len(bundle), at)
        self._at(at, self._enqueue, self._take_back, kind, bundle)

    def _take_back(self, kind: Kind, bundle: list[Order]) -> None:
        (merchant, look_ups), kept, number = kind, self._at_hand.get(kind, deque()), 0
        is_late = any(order.came + order.group.lasts <= self._now for order in bundle)
        is_late &= not look_ups
        may_probe = not is_late or self.admission.cpu.takes_expired(len(bundle))
        if not kept:
            number = self.admission.unpark(
                merchant, len(bundle), self._now, look_ups=look_ups, may_probe=may_probe
            )
        if not number and not is_late and self._bundles_at_hand < self._window // 8:
            orders = sum(map(len, kept))
            wait = self.admission.look_again(merchant, orders, self._now, look_ups=look_ups)
            if wait is not None:
                if not kept:
                    self._at_hand[kind] = kept
                    self._at(self._now + wait, self._look, kind)
                kept.append(bundle)
                self._bundles_at_hand += 1
                self._held += 1
                return
        self._unpark(kind, bundle, number)

    def _look(self, kind: Kind) -> None:
        (merchant, look_ups), kept = kind, self._at_hand[kind]
        number = self.admission.unpark(merchant, len(kept[0]), self._now, look_ups=look_ups)
        again = self.admission.look_again(merchant, 0, self._now, look_ups=look_ups)
        if number or again is None:
            self._bundles_at_hand -= 1
            self._held -= 1
            self._unpark(kind, kept.popleft(), number)
        if kept:
            self._at(self._now + (again or 0.0), self._look, kind)

    def _unpark(self, kind: Kind, bundle: list[Order], number: int) -> None:
        late = [order for order in bundle if order.deadline(self._now) <= self._now]
        rest = [order for order in bundle if order.deadline(self._now) > self._now]
        if late and not number and not self.admission.cpu.takes_expired(len(bundle)):
            self._delay(kind, bundle, is_whole=True)
            return
        if late and self.admission.cpu.takes_expired(len(late)):
            self.admission.cpu.took_expired(len(late))
        else:
            rest, late = rest + late, []
        for order in (*late, *rest[:number]):
            self._spend(core.PARKED)
            self._enqueue(self._offer, order)
        staying = rest[number:]
        if self._core is not None and staying and len(staying) <= BUNDLE // 2:
            self._held += 1
            self._gather(kind, staying)
        elif staying:
            self._delay(kind, staying)
