"""Bursts in virtual time: the real admission, in workers that share a queue and park in bundles.

Around admission it behaves as ``worker/dispatcher.py``, ``worker/parking.py`` and
``worker/waiting_bundles.py`` do.
"""

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pos_gateway.admission.admission import Admission, AdmissionVerdict
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import AdmissionLimits, Terms
from pos_gateway.broker.bundle import MAX_ORDERS
from pos_gateway.domain.outcome import CallResult
from pos_gateway.worker.parking import OPEN_FOR, OPEN_FOR_LATER

SLOTS, WINDOW = 200, 2000
#: Messages that a worker reads a second, and orders that it starts: the limits of its CPU.
SIFT, STARTED = 2500.0, 2000.0
#: Seconds between a worker's checks for orders that waited too long.
TICK = 0.1
#: Seconds until a call times out, and until its order is redelivered.
TIMEOUT, RETRY = 10.0, 5.0


@dataclass(frozen=True)
class Merchant:
    """A merchant, and the orders that are published for it at once."""

    name: str
    #: Seconds that its POS takes for the n-th order to arrive, at this time; ``TIMEOUT`` or more is
    #: never.
    reply: Callable[[int, float], float]
    limit: int
    orders: int
    #: When they are published.
    at: float = 0.0
    #: Each completed order is followed by another.
    endless: bool = False
    #: Seconds until a worker has its record, from its first order there.
    record: float = 0.0


@dataclass
class Seen:
    """What a merchant received, and what its orders cost."""

    began: int = 0
    done: int = 0
    in_flight: int = 0
    #: When the last of its orders was completed.
    last: float = 0.0
    #: Seconds with none in flight although it had orders somewhere, and since when.
    idle: float = 0.0
    idle_since: float | None = None
    #: Orders parked, each as often as it was; bundles that were redelivered.
    parked: int = 0
    looks: int = 0


@dataclass(eq=False)
class Worker:
    """One worker: its window, its open bundles and those at hand, and its CPU."""

    admission: Admission[str]
    unacknowledged: int = 0
    is_reading: bool = False
    #: When its CPU has finished its current work.
    free_at: float = 0.0
    #: Orders in a merchant's open bundle, and the messages that they came in.
    open: dict[str, list[int]] = field(default_factory=dict)
    #: The messages in all of these.
    gathered: int = 0
    at_hand: dict[str, deque[int]] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    #: When it checks the time next, beside each tick.
    look_due: float = 0.0


class Bursts:
    """The workers that deliver the merchants' orders.

    Args:
        merchants: the merchants.
        workers: how many share the queue; each has its share of every limit.
        sift: messages that each reads a second.
    """

    def __init__(self, *merchants: Merchant, workers: int = 1, sift: float = SIFT) -> None:
        random.seed(1)
        self.now = 0.0
        self.seen = {each.name: Seen() for each in merchants}
        self._merchants = {each.name: each for each in merchants}
        self._sift = sift
        self._queue: deque[tuple[str, int]] = deque()
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = itertools.count()
        limits = AdmissionLimits(slots=SLOTS, max_blocked=WINDOW // 2)
        self._workers = [Worker(Admission(limits, lambda _: None)) for _ in range(workers)]
        for at in {each.at for each in merchants}:
            those = [each for each in merchants if each.at == at]
            published = [(each.name, 1) for each in those for _ in range(each.orders)]
            random.shuffle(published)
            self._at(at, self._publish, *published)
        for worker in self._workers:
            self._at(TICK, self._tick, worker)

    def run(self, name: str, most: float = math.inf) -> Seen:
        """Run until as many of the merchant's orders are completed as it had, or until then."""
        seen, orders = self.seen[name], self._merchants[name].orders
        while seen.done < orders and self._agenda[0][0] < most:
            self.now, _, do, arguments = heapq.heappop(self._agenda)
            do(*arguments)
        return seen

    @property
    def unacknowledged(self) -> int:
        """Messages in the fullest window."""
        return max(worker.unacknowledged for worker in self._workers)

    def _at(self, at: float, do: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._agenda, (at, next(self._number), do, arguments))

    def _publish(self, *messages: tuple[str, int]) -> None:
        self._queue.extend(messages)
        for worker in self._workers:
            self._read_on(worker)

    def _read_on(self, worker: Worker) -> None:
        if not worker.is_reading and self._queue and worker.unacknowledged < WINDOW:
            worker.is_reading = True
            self._at(self.now + 1 / self._sift, self._read, worker)

    def _read(self, worker: Worker) -> None:
        worker.is_reading = False
        if self._queue:
            name, orders = self._queue.popleft()
            worker.unacknowledged += 1
            if name not in worker.known:
                worker.known.add(name)
                self._at(self.now + self._merchants[name].record, self._load, worker, name)
            self._offer(worker, name) if orders == 1 else self._take_back(worker, name, orders)
            self._dispatch(worker)
        self._read_on(worker)

    def _offer(self, worker: Worker, name: str) -> None:
        match worker.admission.offer(name, name, self.now):
            case Call() as call:
                self._start(worker, call)
            case AdmissionVerdict.PARK:
                self._gather(worker, name, 1)

    def _load(self, worker: Worker, name: str) -> None:
        limit, workers = self._merchants[name].limit, len(self._workers)
        part = limit // workers + (self._workers.index(worker) < limit % workers)
        worker.admission.set_terms(name, Terms(part))
        self._dispatch(worker)

    def _dispatch(self, worker: Worker) -> None:
        while (call := worker.admission.next_start(self.now)) is not None:
            self._start(worker, call)
        if (at := worker.admission.next_at) < self.now + TICK and not (
            self.now < worker.look_due <= at
        ):
            worker.look_due = at
            self._at(at, self._look_at_the_time, worker)

    def _look_at_the_time(self, worker: Worker) -> None:
        worker.admission.tick(self.now)
        self._dispatch(worker)

    def _start(self, worker: Worker, call: Call[str]) -> None:
        worker.free_at = max(worker.free_at, self.now) + 1 / STARTED
        self._at(worker.free_at, self._begin, worker, call)

    def _begin(self, worker: Worker, call: Call[str]) -> None:
        worker.admission.began(call, self.now)
        seen = self.seen[call.ticket]
        if seen.idle_since is not None:
            seen.idle, seen.idle_since = seen.idle + self.now - seen.idle_since, None
        seen.in_flight, seen.began = seen.in_flight + 1, seen.began + 1
        seconds = self._merchants[call.ticket].reply(seen.began, self.now)
        most = TIMEOUT * call.time_limit_share
        self._at(self.now + min(seconds, most), self._end, worker, call, seconds < most)

    def _end(self, worker: Worker, call: Call[str], has_answered: bool) -> None:
        name, seen = call.ticket, self.seen[call.ticket]
        seen.in_flight, seen.done, seen.last = (
            seen.in_flight - 1,
            seen.done + has_answered,
            self.now,
        )
        if not seen.in_flight:
            seen.idle_since = self.now
        contact = CallResult.ANSWERED if has_answered else CallResult.TIMED_OUT
        worker.admission.release(call, self.now, contact)
        if not has_answered:
            self._at(self.now + RETRY, self._publish, (name, 1))
        elif self._merchants[name].endless:
            self._publish((name, 1))
        self._acknowledge(worker, 1)

    def _acknowledge(self, worker: Worker, messages: int) -> None:
        worker.unacknowledged -= messages
        self._dispatch(worker)
        self._read_on(worker)

    def _tick(self, worker: Worker) -> None:
        self._dispatch(worker)
        for name in worker.admission.overdue(self.now):
            self._gather(worker, name, 1)
        self._at(self.now + TICK, self._tick, worker)

    def _take_back(self, worker: Worker, name: str, orders: int) -> None:
        self.seen[name].looks += 1
        admission, kept = worker.admission, worker.at_hand.get(name, deque())
        number = 0 if kept else admission.unpark(name, orders, self.now)
        if not number:
            wait = admission.look_again(name, sum(kept), self.now)
            if wait is not None and sum(map(len, worker.at_hand.values())) < WINDOW // 8:
                if not kept:
                    worker.at_hand[name] = kept
                    self._at(self.now + wait, self._look, worker, name)
                kept.append(orders)
                return
        self._settle(worker, name, orders, number)

    def _look(self, worker: Worker, name: str) -> None:
        kept = worker.at_hand[name]
        number = worker.admission.unpark(name, kept[0], self.now)
        again = worker.admission.look_again(name, 0, self.now)
        if number or again is None:
            self._settle(worker, name, kept.popleft(), number)
        if kept:
            self._at(self.now + (again or 0.0), self._look, worker, name)

    def _settle(self, worker: Worker, name: str, orders: int, number: int) -> None:
        if not number and 2 * orders <= MAX_ORDERS:
            self._gather(worker, name, orders)
            return
        self._publish(*[(name, 1)] * number)
        if orders > number:
            self._park(worker, name, orders - number)
        self._acknowledge(worker, 1)

    def _gather(self, worker: Worker, name: str, orders: int) -> None:
        if name in worker.open and worker.open[name][0] + orders > MAX_ORDERS:
            self._close(worker, name, worker.open[name])
        if name not in worker.open:
            worker.open[name] = [0, 0]
            is_soon = worker.admission.returns_soon(name, self.now)
            until = self.now + (OPEN_FOR if is_soon else OPEN_FOR_LATER)
            self._at(until, self._close, worker, name, worker.open[name])
        worker.open[name][0] += orders
        worker.open[name][1] += 1
        worker.gathered += 1
        if worker.open[name][0] >= MAX_ORDERS:
            self._close(worker, name, worker.open[name])
        elif worker.gathered > WINDOW // 4:
            oldest = next(iter(worker.open))
            self._close(worker, oldest, worker.open[oldest])

    def _close(self, worker: Worker, name: str, bundle: list[int]) -> None:
        if worker.open.get(name) is bundle:
            del worker.open[name]
            worker.gathered -= bundle[1]
            self._park(worker, name, bundle[0])
            self._acknowledge(worker, bundle[1])

    def _park(self, worker: Worker, name: str, orders: int) -> None:
        self.seen[name].parked += orders
        few = 2 * orders <= MAX_ORDERS
        due = self.now + max(1, math.ceil(worker.admission.park_delay(name, self.now, few=few)))
        worker.admission.parked_count.add(name, orders, due)
        self._at(due, self._publish, (name, orders))
