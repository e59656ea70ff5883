"""Starts the orders that admission lets start, on the pool's green threads.

Starting is done here, outside the pool's green threads: a finishing one still holds its place
in the pool, and spawning from it into a full pool waits for itself.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic, time
from typing import Any

import gevent
import structlog
from celery.worker.state import task_ready, task_reserved
from gevent.event import Event

from pos_gateway.admission.admission import Admission, Limits, Verdict
from pos_gateway.errors import PublishError
from pos_gateway.merchant import Merchant
from pos_gateway.merchants.directory import Directory
from pos_gateway.telemetry import metrics
from pos_gateway.worker.request import OrderRequest

log = structlog.get_logger(__name__)

#: The lane of orders that will not be sent: no merchant's limit is to hold them back.
NOBODY = ""
#: Seconds between looks at orders that have waited too long, and at the gauges.
TICK = 0.5


class Dispatcher:
    """Takes requests in from the consumer, hands them to the pool or back to the broker.

    Args:
        pool: Celery's green pool; ``limits.slots`` is its size.
        park: publishes the order again with a delay; raises if the broker did not take it.
    """

    def __init__(
        self,
        *,
        pool: Any,
        limits: Limits,
        directory: Directory,
        default_limit: int,
        park: Callable[[OrderRequest, float], None],
    ) -> None:
        self._pool = pool
        self._directory = directory
        self._default_limit = default_limit
        self._park = park
        self._admission: Admission[OrderRequest] = Admission(limits, self._limit_of)
        self._under_way: dict[tuple[str, str], OrderRequest] = {}
        self._joined: dict[tuple[str, str], list[OrderRequest]] = {}
        self._wake = Event()
        self._ticker: gevent.Greenlet | None = None
        self._closed = False
        self._late: list[OrderRequest] = []
        directory.listen(self._merchant_loaded)

    def start(self) -> None:
        """Begin. Idempotent."""
        if self._ticker is None:
            self._ticker = gevent.spawn(self._run)

    def close(self) -> None:
        """Start nothing more. What still arrives is kept for ``hand_back``."""
        self._closed = True

    def hand_back(self) -> None:
        """Give what waits back to the broker; what is under way goes on.

        Called once nothing is consumed any more: the broker would send it straight back.
        """
        for request in self._admission.drop_waiting() + self._late:
            task_ready(request)
            request.reject(requeue=True)
        self._late.clear()

    def connection_lost(self) -> None:
        """Forget what waits: it came by a connection that is gone, and the broker has it back."""
        for request in self._admission.drop_waiting():
            task_ready(request)
        self._joined.clear()

    def offer(self, request: OrderRequest) -> None:
        """Take a request in. Never blocks."""
        if self._closed:
            self._late.append(request)
            return
        key = _key(request)
        self._directory.want(request.merchant_id)
        if key is not None and key in self._under_way:
            # Redelivered (a connection was lost) or submitted twice while it is being sent:
            # this one shares the fate of the one under way.
            self._joined.setdefault(key, []).append(request)
            return
        task_reserved(request)
        lane = NOBODY if self._seconds_left(request) <= 0 else request.merchant_id
        request.lane = lane
        match self._admission.offer(lane, request, monotonic()):
            case Verdict.START:
                self._start(request)
            case Verdict.WAIT:
                self._dispatch()
            case Verdict.PARK:
                self._park_soon(request)

    def _run(self) -> None:
        while True:
            self._wake.wait(TICK)
            self._wake.clear()
            self._dispatch()
            for _, request in self._admission.overdue(monotonic()):
                self._park_soon(request)
            metrics.in_flight.set(self._admission.in_flight)
            metrics.waiting.set(self._admission.waiting)

    def _dispatch(self) -> None:
        while not self._closed:
            admitted = self._admission.next_start()
            if admitted is None:
                return
            self._start(admitted[1])

    def _start(self, request: OrderRequest) -> None:
        key = _key(request)
        if key is not None:
            if key in self._under_way:  # both waited
                self._joined.setdefault(key, []).append(request)
                self._admission.release(request.lane, None)
                return
            self._under_way[key] = request
        # A raw link runs whatever becomes of the green thread, after the pool has let go of it.
        request.spawn(self._pool).rawlink(partial(self._finished, request, monotonic()))

    def _finished(self, request: OrderRequest, started: float, _greenlet: object) -> None:
        self._admission.release(request.lane, monotonic() - started)
        key = _key(request)
        if key is not None:
            del self._under_way[key]
            for joined in self._joined.pop(key, ()):
                if request.settled:
                    joined.acknowledge()
                else:
                    self.offer(joined)
        self._wake.set()

    def _park_soon(self, request: OrderRequest) -> None:
        left = self._seconds_left(request)
        if left <= 0:
            self.offer(request)  # too late by now: it is told so at once, whoever it was for
            return
        delay = self._admission.park_delay(request.merchant_id, monotonic())
        gevent.spawn(self._park_now, request, min(delay, left))

    @staticmethod
    def _seconds_left(request: OrderRequest) -> float:
        return inf if request.deliver_by is None else request.deliver_by - time()

    def _park_now(self, request: OrderRequest, delay: float) -> None:
        try:
            self._park(request, delay)
        except PublishError as error:  # this process is going down
            log.warning("order.not_parked", order_id=request.order_id, error=str(error))
            request.reject(requeue=True)
        else:
            request.acknowledge()
            metrics.parked.inc()
        task_ready(request)

    def _limit_of(self, merchant_id: str) -> int | None:
        """None: not known yet; its orders wait until ``_merchant_loaded`` is called."""
        if merchant_id == NOBODY:
            return self._admission.limits.slots
        if not self._directory.known(merchant_id):
            return None
        return self._limit(self._directory.peek(merchant_id))

    def _merchant_loaded(self, merchant_id: str, merchant: Merchant | None) -> None:
        self._admission.set_limit(merchant_id, self._limit(merchant))
        self._wake.set()

    def _limit(self, merchant: Merchant | None) -> int:
        if merchant is None:
            return self._default_limit  # unknown: let it start, and be set aside
        if merchant.paused:
            return 0
        return merchant.max_concurrency or self._default_limit


def _key(request: OrderRequest) -> tuple[str, str] | None:
    return (request.merchant_id, request.order_id) if request.order_id else None
