"""Starts admitted orders on the crew's green threads.

Orders begin here, never on the crew's green threads: a finishing green thread still counts against the
pool, and spawning from there into a full pool would wait for the spawner.

Celery's task tracing is left out: tracing would acknowledge the order of a killed green thread, obey
callbacks and revocations from the wire, and cost a tenth.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import time
from typing import Any

import gevent
import structlog
from gevent.event import Event
from gevent.pool import Group

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.admission.admission import Admission, AdmissionVerdict
from pos_gateway.admission.breaker import BreakerState
from pos_gateway.admission.health import FLEET, TIME, Transition
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import AdmissionLimits, Terms, names_quota
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker.message import Message
from pos_gateway.broker.topology import CANARY_KEY, ORDERS_KEY
from pos_gateway.domain.errors import BrokerUnavailable
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import CallResult
from pos_gateway.fleet.coordinator import Coordinator
from pos_gateway.ledger.states import Action
from pos_gateway.runtime.clock import RunningClock, StepWatch
from pos_gateway.telemetry import metrics
from pos_gateway.worker.crash import end_worker
from pos_gateway.worker.crew import MAX_IDLE
from pos_gateway.worker.in_flight import OrdersInFlight
from pos_gateway.worker.large import LargeRequests
from pos_gateway.worker.loop_load import LoopLoad
from pos_gateway.worker.parking import Parking
from pos_gateway.worker.quotas import quotas_of
from pos_gateway.worker.request import OrderRequest, RequestState
from pos_gateway.worker.retries import Retries
from pos_gateway.worker.waiting_bundles import ReturnedBundle

log = structlog.get_logger(__name__)

#: The lane of orders without a merchant: never sent, and under no merchant's limit.
NO_MERCHANT = ""
#: Green threads for requests without a slot: expired orders, perhaps hundreds in the same second, and
#: cancel requests of orders that may never have been sent.
SLOTLESS = 16
#: Requests without a slot that may wait for CPU in the worker; more are parked.
SLOTLESS_WAITING = 256
#: Seconds between checks for overdue orders; and between readings of the clock
#: while no order is in flight or waits here.
TICK, REST = 0.1, 1.0
#: Overdue orders parked in a row, and the seconds that orders in flight then get. When merchants
#: stop together, all of their orders become overdue together.
BATCH_SIZE, BATCH_PAUSE = 8, 0.005
#: Retries may take a quarter of ``max_blocked``, by this divisor.
KEPT = 4
#: Seconds between checks of the time of day, and of idle connections.
TIME_OF_DAY = 0.5


class Dispatcher:
    """Takes requests from the consumer, and starts, parks or requeues them.

    Args:
        gate: delivers orders.
        pool: Celery's green pool; the pool grows by one green thread per slot, for orders with
            an outcome to commit, and by ``SLOTLESS``.
        limits: admission's limits.
        dead_letter: dead-letters a message, with a reason code and a sentence.
    """

    def __init__(
        self,
        *,
        gate: Gateway,
        pool: Any,
        limits: AdmissionLimits,
        dead_letter: Callable[[Any, str, str], None],
    ) -> None:
        self._gate = gate
        self._pool = pool
        #: Admission's clock: a stall of this process does not count against merchants.
        self._clock = RunningClock(2 * TICK)
        #: Read by other components, changed only here.
        self.admission: Admission[OrderRequest] = Admission(
            limits,
            self._terms_of,
            announce=self._announce,
            on_short=self._ask_fleet,
            in_fleet=gate.permits is not None,
        )
        self._fleet: Coordinator | None = None
        if gate.permits is not None:
            self._fleet = Coordinator(
                gate.permits, self.admission, on_change=self.wake_up, clock=gate.clock
            )
            gate.before_stop(self._fleet.stop)
        self._parking = Parking(gate, self.admission, dead_letter, self._clock.now)
        self._large = LargeRequests(self.admission, self._parking, self._park)
        self._retries = Retries(limits.max_blocked // KEPT)
        self._in_flight = OrdersInFlight(
            gate.spine,
            self.admission,
            self._retries,
            pool=pool,
            now=self._clock.now,
            wake=self.wake_up,
            ended=self._ended,
        )
        #: The latest ``placed_at`` delivered by each queue. Retries have routing keys of their own,
        #: and unparked orders are older than their neighbours.
        self._latest = {ORDERS_KEY: 0.0, CANARY_KEY: 0.0}
        #: Requests without a slot that wait for a green thread, each with whether the order has expired; and the
        #: number of slotless requests on a green thread.
        self._slotless: deque[tuple[OrderRequest, bool]] = deque()
        self._without_slot = 0
        self._concluding = Group()
        #: Connections lost so far.
        self._lost = 0
        self._wake = Event()
        #: No order is here: the next order ends ``_run``'s rest.
        self._rests = False
        self._ticker: gevent.Greenlet | None = None
        self._load = LoopLoad(gevent.get_hub().loop, self._turned, limits.cores)
        self._closed = False
        #: Requests and bundles that arrived while nothing could start.
        self._late: list[OrderRequest] = []
        self._late_bundles: list[ReturnedBundle] = []
        gate.directory.listen(self._merchant_loaded)

    def start(self) -> bool:
        """Start; False after the first time."""
        if self._ticker is not None:
            return False
        self._pool.grow(self.admission.limits.slots + SLOTLESS + MAX_IDLE)
        if self._fleet is not None:
            self._fleet.start()
        self._load.start()
        self._ticker = gevent.spawn(self._run)
        self._ticker.link_exception(lambda ticker: end_worker(ticker.exception))
        return True

    def close(self) -> None:
        """Stop starting orders. Arrivals are kept for ``requeue_waiting``."""
        self._closed = True
        self._load.stop()
        self.admission.turned(0.0, 0.0)  # no turn is seen any more
        self._in_flight.close()
        self._retries.close()

    def requeue_waiting(self, timeout: float) -> None:
        """Requeue waiting orders; orders in flight go on.

        Only after consuming has stopped, else the broker redelivers the orders at once. Orders being
        parked have ``timeout`` seconds to be stored.
        """
        for request in (*self._drop_waiting(), *self._late, *self._large.drop()):
            request.requeue()
        for back in self._late_bundles:
            back.requeue()
        self._late.clear()
        self._late_bundles.clear()
        self._parking.requeue_waiting(timeout)

    def show(self) -> None:
        """Set the dispatcher's gauges."""
        metrics.storing.set(self.uncommitted)
        metrics.waiting.labels("retry").set(len(self._retries))
        metrics.waiting.labels("bundle").set(self._parking.waiting_orders)
        metrics.queue_messages.clear()
        metrics.queue_age.clear()
        for queue, messages in self._gate.queue_metrics.ready.items():
            metrics.queue_messages.labels(queue).set(messages)
            latest = self._latest.get(queue)
            if latest is not None and (latest or not messages):
                age = max(0.0, time() - latest) if messages else 0.0
                metrics.queue_age.labels(queue).set(age)

    def now(self) -> float:
        """The time by admission's clock."""
        return self._clock.now()

    @property
    def healthy_waits(self) -> list[int]:
        """Orders of healthy merchants by how long they waited for their first attempt: see ``OrdersInFlight``."""
        return self._in_flight.healthy_waits

    @property
    def waiting(self) -> dict[str, int]:
        """Waiting orders in this worker, by kind."""
        blocked = self.admission.blocked
        return {
            "merchant": blocked,
            "slot": self.admission.waiting - blocked,
            "retry": len(self._retries),
            "bundle": self._parking.waiting_orders,
        }

    @property
    def uncommitted(self) -> int:
        """Orders with a released slot and an outcome not durable yet."""
        return self._in_flight.uncommitted

    @property
    def in_flight(self) -> int:
        """Orders on a green thread."""
        return len(self._in_flight)

    def requeue_in_flight(self) -> None:
        """Kill the green threads in flight; their orders are requeued. Does not block."""
        self._in_flight.kill()

    def join(self, timeout: float) -> None:
        """Wait until all finished orders are acknowledged or requeued."""
        self._concluding.join(timeout)

    def connection_lost(self) -> None:
        """Drop waiting orders: the broker redelivers them.

        Orders in flight go on and keep their claims; the redelivered message makes their retry.
        """
        self._lost += 1
        joined = self._in_flight.connection_lost()
        for request in (*self._drop_waiting(), *joined, *self._large.drop()):
            request.enter(RequestState.REQUEUED)  # Celery keeps unended requests
        for request in self._late:
            request.count_no_more()
        self._late.clear()
        self._late_bundles.clear()
        self._parking.forget()

    def take_back(self, back: ReturnedBundle) -> None:
        """Take in a delivered bundle. Never blocks."""
        if self._closed or self._ticker is None:
            if self._closed:  # only requeued
                back.bundle.pieces, back.message.body = (), b""
            self._late_bundles.append(back)
            return
        if self._rests:  # from now on the clock is read often, for a stall would count
            self._wake.set()
        self._gate.directory.want(back.bundle.merchant_id)
        self._parking.take_back(back)

    def offer(self, request: OrderRequest) -> None:
        """Take in a request. Never blocks."""
        if self._rests:  # from now on the clock is read often, for a stall would count
            self._wake.set()
        if self._closed or self._ticker is None or not self._may_start:
            self._come_late(request)
            return
        if request.size and request.on_over is None and not self._has_room_for(request):
            return
        if self._in_flight.joins(request):
            return
        placed_at, queue = request.placed_at, request.routing_key
        if placed_at is not None and self._latest.get(queue, placed_at) < placed_at:
            self._latest[queue] = min(placed_at, time())
        named = request.merchant_id != NO_MERCHANT
        if named and not self._gate.directory.want(request.merchant_id):
            self.admission.forget_terms(request.merchant_id)
        now, left = self._clock.now(), self._seconds_left(request)
        # A cancel request waits for no merchant before the POS may have the order.
        may_wait = request.action is Action.SUBMIT or request.needs_pos
        match self.admission.offer(
            request.merchant_id,
            request,
            now,
            now + left,
            may_wait=may_wait,
            is_look_up=request.raw.look_up,
        ):
            case Call() as call:
                self._in_flight.begin(request, call)
            case AdmissionVerdict.PARK if not may_wait:
                self._do_without_slot(request, expired=False)
            case AdmissionVerdict.WAIT:
                request.enter(RequestState.WAITING)
                self._dispatch()
            case AdmissionVerdict.PARK:
                self._park_soon(request)
            case AdmissionVerdict.EXPIRE:
                self._expire(request)

    def _come_late(self, request: OrderRequest) -> None:
        """Keep a request until orders may start, or until ``requeue_waiting``."""
        if request.size and self._closed:  # only requeued, and a whole window may arrive
            request.drop_body()
        elif request.size and request.on_over is None:
            self._large.count_briefly(request)
        self._late.append(request)

    def _has_room_for(self, request: OrderRequest) -> bool:
        """Count a large request until the end; or turn the request away: then False."""
        may_park = request.merchant_id != NO_MERCHANT and self._seconds_left(request) > 0
        has_room = self._large.take(request, may_park=may_park)
        if not has_room:
            self._gate.directory.want(request.merchant_id)  # a known merchant has more room
            self._large.turn_away(request)
        return has_room

    def _run(self) -> None:
        time_of_day, look_again = StepWatch(self._gate.clock), 0.0
        bundles, self._late_bundles = self._late_bundles, []
        for back in bundles:
            self.take_back(back)
        while True:
            if self._wait() or self._has_waiting or self._clock.now() >= self._next_at:
                self._see_to_waiting()
            if self._clock.now() >= look_again:
                look_again = self._clock.now() + TIME_OF_DAY
                self._gate.transport.close_expired()
                if step := time_of_day.stepped():
                    # Waiting orders keep their deadlines; arrivals go by the new time.
                    log.warning("clock.stepped", seconds=round(step, 3))

    @property
    def _next_at(self) -> float:
        """When time alone changes something next."""
        next_at = min(self.admission.next_at, self._retries.next_at)
        if self._slotless and self._without_slot < SLOTLESS:
            next_at = min(next_at, self._clock.now() + self.admission.cpu.wait_without_slot)
        return next_at

    @property
    def _has_waiting(self) -> bool:
        """Whether an order waits here, or is parked."""
        admitted = self.admission.waiting or self.admission.has_expired
        here = admitted or self._retries or self._late or self._slotless or self._large.aside
        return bool(here or self.admission.parked_count.total or self._parking.waiting_orders)

    def _wait(self) -> bool:
        """Wait for a change, or until the clock must be read again; returns whether there is a change."""
        self._rests = not (self.in_flight or self._has_waiting)
        seconds = max(0.0, self._next_at - self._clock.now())
        self._clock.rest(REST if self._rests else 0.0)
        is_woken: bool = self._wake.wait(min(REST if self._rests else TICK, seconds))
        self._rests = False
        self._wake.clear()
        return is_woken

    def _turned(self, busy: float, passed: float) -> None:
        self.admission.turned(busy, passed, self._clock.now())

    def _see_to_waiting(self) -> None:
        """Start, park or expire waiting orders."""
        for request in self._retries.due(self._clock.now()):
            self.offer(request)
        if self._late and not self._closed:
            late, self._late = self._late, []
            for request in late:  # arrivals while nothing could start
                request.count_no_more()
                self.offer(request)
        self._large.requeue()
        self._dispatch()
        overdue = self.admission.overdue(self._clock.now(), BATCH_SIZE)
        for request in overdue:
            self._park_soon(request)
        if len(overdue) >= BATCH_SIZE:
            self._wake.set()
            gevent.sleep(BATCH_PAUSE)

    def _dispatch(self) -> None:
        """Start orders, expire orders, and cut calls short for their slots."""
        self.admission.tick(self._clock.now())  # also while nothing may start
        while (
            self._may_start and (call := self.admission.next_start(self._clock.now())) is not None
        ):
            if self._in_flight.joins(call.ticket):  # a duplicate, and both waited
                self.admission.release(call, self._clock.now(), CallResult.NONE)
            else:
                self._in_flight.begin(call.ticket, call)
        for request in self.admission.expired():
            self._expire(request)
        self._begin_slotless()
        for call in self.admission.to_cut_short():
            metrics.cut_short.inc()
            call.ticket.attempt.context.cancel()

    @property
    def is_full(self) -> bool:
        """Whether no message may be read before some of the bytes here have left for the broker."""
        return self._large.is_full

    @property
    def _may_start(self) -> bool:
        """Whether orders may start: not while a paused worker's permits may be leased elsewhere."""
        return not self._closed and (
            self._fleet is None or self._fleet.may_start(self._gate.clock.monotonic())
        )

    def _expire(self, request: OrderRequest) -> None:
        """Commit the order as expired, without a slot."""
        if self._in_flight.joins(request):  # a copy is in flight, and decides for both
            return
        self._do_without_slot(request, expired=True)

    def _do_without_slot(self, request: OrderRequest, *, expired: bool) -> None:
        """Start a request without a slot, once a green thread is free, and CPU."""
        lacks_cpu = self.admission.cpu.wait_without_slot > 0
        if lacks_cpu and len(self._slotless) >= SLOTLESS_WAITING and request.merchant_id:
            self._park(request)
            return
        if not expired or request.state is not RequestState.WAITING:
            request.enter(RequestState.WAITING)
        self._slotless.append((request, expired))
        self._begin_slotless()

    def _begin_slotless(self) -> None:
        """Start requests without a slot: a few at once, and while CPU is scarce a single request in a turn."""
        while (
            self._slotless
            and self._without_slot < SLOTLESS
            and not self._closed
            and not self.admission.cpu.wait_without_slot
        ):
            request, expired = self._slotless.popleft()
            if not self._in_flight.joins(request):  # a copy has started meanwhile
                self._without_slot += 1
                self.admission.cpu.started_without_slot()
                self._in_flight.begin(request, expired=expired)

    def _drop_waiting(self) -> list[OrderRequest]:
        """Remove and return all waiting requests."""
        slotless = [request for request, _ in self._slotless]
        self._slotless.clear()
        return self.admission.drop_waiting() + self._retries.drop() + slotless

    def _ended(self, request: OrderRequest, joined: list[OrderRequest]) -> None:
        """Settle the message of an ended attempt, and the joined requests. Never blocks."""
        if request.attempt.expired or not request.attempt.may_call:
            self._without_slot -= 1
            if self._slotless:
                self._wake.set()
        if not joined and request.state is RequestState.ACKNOWLEDGED:
            return
        copies = [each for each in joined if each.shares_outcome_of(request)]
        others = [each for each in joined if each not in copies]
        if request.again is not None and not (self._closed or request.is_stale):
            self._keep(request.again, [request, *copies])
            if others:
                self._concluding.spawn(self._offer_again, others, self._lost)
        elif request.state is RequestState.ARRIVED and not request.is_stale:
            self._concluding.spawn(self._offer_again, [request, *joined], self._lost)
        else:
            self._concluding.spawn(self._conclude, request, copies, others, self._lost)

    def _keep(self, again: Message, requests: list[OrderRequest]) -> None:
        """Have the requests wait for the retry, copies too.

        After a lost connection a copy is the order's only message.
        """
        for request in requests:
            request.enter(RequestState.RETRY_WAITING)
            self._retries.keep(request, again, self._clock.now())

    def _conclude(
        self,
        request: OrderRequest,
        copies: list[OrderRequest],
        others: list[OrderRequest],
        lost: int,
    ) -> None:
        """Acknowledge or requeue a request with the copies, and take in the other joined requests."""
        match request.state:
            case RequestState.ACKNOWLEDGED:
                is_over = True
            case RequestState.COMMITTED:  # the green thread was killed just then
                request.acknowledge()
                is_over = True
            case _:
                # The green thread was killed, the process is stopping, the connection was lost, or
                # a different worker has taken over the order: requeue.
                request.requeue()
                is_over = self._publish_retry(request, copies, lost)
        for each in copies if is_over else ():
            each.acknowledge()
        self._offer_again(others if is_over else copies + others, lost)

    def _publish_retry(self, request: OrderRequest, copies: list[OrderRequest], lost: int) -> bool:
        """Publish a stale delivery's retry; True if stored: then the copies can be acknowledged.

        The copies are the redelivered message. Offered again at once, the copies would skip the backoff,
        and a ``Retry-After``.
        """
        is_redelivered = copies and request.is_stale and lost == self._lost
        if request.again is None or not is_redelivered or self._closed:
            return False
        with suppress(BrokerUnavailable):  # this process is stopping
            self._gate.store([request.again])
            return True
        return False

    def _offer_again(self, requests: list[OrderRequest], lost: int) -> None:
        """Take in joined requests without a shared outcome, or a request for a slot."""
        for request in requests:
            if self._closed:
                request.requeue()
            elif lost != self._lost:  # the broker redelivers the message
                request.enter(RequestState.REQUEUED)
            else:
                if request.state is RequestState.JOINED:
                    request.start_over()
                self.offer(request)

    def _park_soon(self, request: OrderRequest) -> None:
        if self._in_flight.joins(request):  # a copy is in flight: parking would only duplicate it
            return
        # An order without a merchant is invalid, and needs no slot; a bundle must name a merchant.
        if request.merchant_id == NO_MERCHANT or self._seconds_left(request) <= 0:
            self._expire(request)
        else:
            self._park(request)

    def _park(self, request: OrderRequest) -> None:
        request.enter(RequestState.PARKING)
        request.count_no_more()  # from here on parking counts the bytes
        self._parking.park(request.merchant_id, request.as_parked(), request)

    @staticmethod
    def _seconds_left(request: OrderRequest) -> float:
        return inf if request.deliver_by is None else request.deliver_by - time()

    def _terms_of(self, merchant_id: str) -> Terms | None:
        """None: not loaded yet; the orders wait until ``_merchant_loaded`` is called."""
        if merchant_id == NO_MERCHANT:
            return Terms(self.admission.limits.slots, is_shared=False)
        if not self._gate.directory.is_fresh(merchant_id):
            return None
        return self._terms(self._gate.directory.peek(merchant_id))

    def _merchant_loaded(self, merchant_id: str, merchant: Merchant | None) -> None:
        self.admission.set_terms(merchant_id, self._terms(merchant))
        self._ask_fleet(merchant_id)
        self._wake.set()

    def _terms(self, merchant: Merchant | None) -> Terms:
        default = self._gate.settings.merchant_concurrency
        if merchant is None:
            return Terms(default)  # unknown: let it start, and be dead-lettered
        limit = 0 if merchant.paused else merchant.max_concurrency or default
        adapter = self._gate.adapters.get(merchant.adapter)
        if adapter is None:
            return Terms(limit, merchant.provider)
        return Terms(
            adapter.limits.at_once(limit),
            merchant.provider,
            may_be_cut_short=adapter.guarantee is not Guarantee.BLIND,
            quotas=quotas_of(merchant, adapter.limits),
        )

    def _ask_fleet(self, merchant_id: str) -> None:
        if self._fleet is not None:
            self._fleet.short(merchant_id)

    def wake_up(self) -> None:
        """Look soon whether waiting orders may start."""
        self._wake.set()

    def _announce(self, transition: Transition) -> None:
        _log_transition(transition)
        if self._fleet is None or transition.why in (FLEET, TIME):
            return
        if transition.state is BreakerState.OPEN:
            self._fleet.breaker_opened(transition.merchant_id, transition.seconds)
        elif transition.state is BreakerState.CLOSED:
            self._fleet.breaker_closed(transition.merchant_id)


def _log_transition(transition: Transition) -> None:
    if names_quota(transition.merchant_id):
        seconds = round(transition.seconds, 3)
        log.warning("quota.paused", key=transition.merchant_id, seconds=seconds)
        return
    metrics.breaker_transitions.labels(transition.state).inc()
    # An operator on call wants to see breakers open and close.
    log.log(
        logging.INFO if transition.state is BreakerState.HALF_OPEN else logging.WARNING,
        f"breaker.{_ANNOUNCED[transition.state]}",
        merchant_id=transition.merchant_id,
        why=transition.why,
        seconds=round(transition.seconds, 3),
    )


_ANNOUNCED = {
    BreakerState.OPEN: "opened",
    BreakerState.HALF_OPEN: "half_opened",
    BreakerState.CLOSED: "closed",
}
