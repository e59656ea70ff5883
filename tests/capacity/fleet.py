"""A planned fleet in virtual time: real admission in each pod, its core, its window, one queue."""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from pos_gateway.admission.admission import Admission, AdmissionVerdict
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import AdmissionLimits, Terms
from pos_gateway.domain.outcome import CallResult
from pos_gateway.worker.capacity import Plan

#: Seconds that are measured, the warm-up before, and the interval between two checks of the time.
END, WARM_UP, TICK = 40.0, 15.0, 0.02
#: Seconds until a parked order is back.
PARKED = 5.0
#: Merchants that are slow.
SLOW = 200
#: Share by which a merchant's reply time differs from its mean at most.
SPREAD = 0.2


@dataclass(eq=False)
class Order:
    merchant: str
    arrived: float
    #: When its exchange began.
    started: float | None = None


@dataclass(eq=False)
class Pod:
    admission: Admission[Order]
    prefetch: int
    held: int = 0
    #: When its core has finished its current work.
    free_at: float = 0.0
    #: Completed calls.
    over: set[Call[Order]] = field(default_factory=set)


class Fleet:
    """Orders arrive at random at the peak's rate, and pods take them in turn.

    Args:
        plan: the plan.
        pods: how many there are.
        slots: of each pod.
        merchant_limit: the busiest merchant's.
        end: seconds after which it ends.
    """

    def __init__(
        self, plan: Plan, *, pods: int, slots: int, merchant_limit: int, end: float = END
    ) -> None:
        self._end_at = end
        self._demand = plan.demand
        self._work = plan.pod.cpu_ms / 1000 / 2
        self._random = Random(8)
        self._queue: deque[Order] = deque()
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = count()
        self._busiest_limit = merchant_limit
        prefetch = plan.prefetch * slots // plan.slots
        limits = AdmissionLimits(slots=slots, max_blocked=prefetch // 2)
        self._pods = deque(Pod(Admission(limits, self._terms), prefetch) for _ in range(pods))
        self.orders: list[Order] = []

    def run(self) -> "Fleet":
        self._at(0.0, self._arrive)
        self._at(0.0, self._tick)
        while self._agenda[0][0] < self._end_at:
            now, _, do, arguments = heapq.heappop(self._agenda)
            do(now, *arguments)
        return self

    def late(self, of: str = "") -> float:
        """Share of the orders that waited for more than a second, of the merchants of this name."""
        seen = [
            (each.started or self._end_at) - each.arrived
            for each in self.orders
            if WARM_UP <= each.arrived < self._end_at - 2 and each.merchant.startswith(of)
        ]
        assert len(seen) > 200
        return sum(seconds > 1 for seconds in seen) / len(seen)

    def _terms(self, merchant: str) -> Terms:
        return Terms(self._busiest_limit if merchant == "busiest" else 10)

    def _at(self, at: float, do: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._agenda, (at, next(self._number), do, arguments))

    def _arrive(self, now: float) -> None:
        order = Order(self._whose(), now)
        self.orders.append(order)
        self._put(now, order)
        self._at(now + self._random.expovariate(self._demand.at_peak), self._arrive)

    def _whose(self) -> str:
        demand, chance = self._demand, self._random.random()
        if chance < demand.slow:
            return f"slow-{self._random.randrange(SLOW)}"
        if chance < demand.slow + demand.busiest:
            return "busiest"
        return f"healthy-{self._random.randrange(demand.merchants)}"

    def _put(self, now: float, order: Order) -> None:
        self._queue.append(order)
        self._feed(now)

    def _feed(self, now: float) -> None:
        """Messages go round the pods whose windows have room."""
        while self._queue and (pod := self._next_pod()) is not None:
            pod.held += 1
            self._after_work(now, pod, self._offer, self._queue.popleft())

    def _next_pod(self) -> Pod | None:
        for _ in range(len(self._pods)):
            self._pods.rotate(-1)
            if self._pods[-1].held < self._pods[-1].prefetch:
                return self._pods[-1]
        return None

    def _after_work(self, now: float, pod: Pod, do: Callable[..., None], *arguments: Any) -> None:
        """One task after the other, on its core."""
        pod.free_at = max(now, pod.free_at) + self._work
        self._at(pod.free_at, do, pod, *arguments)

    def _offer(self, now: float, pod: Pod, order: Order) -> None:
        match pod.admission.offer(order.merchant, order, now):
            case Call() as call:
                self._start(now, pod, call)
            case AdmissionVerdict.PARK:
                self._park(now, pod, order)
            case _:
                self._dispatch(now, pod)

    def _park(self, now: float, pod: Pod, order: Order) -> None:
        pod.held -= 1
        self._at(now + PARKED, self._put, order)
        self._feed(now)

    def _start(self, now: float, pod: Pod, call: Call[Order]) -> None:
        pod.admission.began(call, now)
        order = call.ticket
        order.started = now
        mean = (
            self._demand.slow_latency if order.merchant.startswith("slow") else self._demand.latency
        )
        takes = mean * self._random.uniform(1 - SPREAD, 1 + SPREAD)
        self._at(now + takes, self._reply, pod, call)

    def _reply(self, now: float, pod: Pod, call: Call[Order]) -> None:
        if call not in pod.over:
            self._after_work(now, pod, self._end, call, CallResult.ANSWERED)

    def _end(self, now: float, pod: Pod, call: Call[Order], contact: CallResult) -> None:
        if call in pod.over:
            return
        pod.over.add(call)
        pod.admission.release(call, now, contact)
        pod.held -= 1
        self._dispatch(now, pod)
        self._feed(now)

    def _dispatch(self, now: float, pod: Pod) -> None:
        while (call := pod.admission.next_start(now)) is not None:
            self._start(now, pod, call)
        for call in pod.admission.to_cut_short():
            self._at(now, self._end, pod, call, CallResult.TIMED_OUT)

    def _tick(self, now: float) -> None:
        for pod in self._pods:
            pod.admission.tick(now)
            self._dispatch(now, pod)
            for order in pod.admission.overdue(now):
                self._park(now, pod, order)
        self._at(now + TICK, self._tick)
