"""Measures orders' latency and the queues' lag, for the metrics.

A message does not say when it was published; ``placed_at`` stands in, by the backend's clock: what
is in the future by this worker's clock counts as now.
"""

from bisect import bisect_left
from collections.abc import Mapping
from time import time

from pos_gateway.admission.lane import Call
from pos_gateway.attempt.decision import Decision
from pos_gateway.broker.topology import CANARY_KEY, ORDERS_KEY
from pos_gateway.domain.outcome import Kind
from pos_gateway.reports.counters import WAITS
from pos_gateway.telemetry import metrics
from pos_gateway.worker.request import OrderRequest

#: The kinds of terminal outcomes.
_ENDS = frozenset({Kind.ACCEPTED, Kind.REJECTED, Kind.CANCELLED, Kind.EXPIRED, Kind.FAILED})


class Timing:
    """Times orders. Called for every order, so every call is cheap."""

    def __init__(self) -> None:
        #: The latest ``placed_at`` delivered by each queue. Retries have routing keys of their own,
        #: and unparked orders are older than their neighbours.
        self._latest = {ORDERS_KEY: 0.0, CANARY_KEY: 0.0}
        #: First attempts of healthy merchants' orders, by how long they waited: ``WAITS`` has the
        #: upper bounds; the last is for those above. A merchant is healthy if it is light, and had
        #: no order wait for the merchant itself since this one was placed.
        self.healthy_waits = [0] * (len(WAITS) + 1)

    def taken(self, request: OrderRequest) -> None:
        """An order was delivered by its queue."""
        placed_at = request.placed_at
        if placed_at is not None:
            key = request.routing_key
            if self._latest.get(key, placed_at) < placed_at:
                self._latest[key] = min(placed_at, time())

    def started(self, request: OrderRequest, call: Call[OrderRequest] | None) -> None:
        """An order's attempt begins, by this call; not called for one that has expired."""
        if request.placed_at is not None and not request.raw.tries:
            wait = max(0.0, time() - request.placed_at)
            metrics.queue_wait.observe(wait)
            if call is not None and call.light is not None and wait <= call.well_for:
                self.healthy_waits[bisect_left(WAITS, wait)] += 1

    def settled(self, request: OrderRequest, decision: Decision) -> None:
        """An order's outcome is committed."""
        if request.placed_at is None:
            return
        for _, entry in decision.entries:
            if entry.event is not None and entry.event.kind in _ENDS:
                metrics.order_seconds.observe(max(0.0, time() - request.placed_at))

    def show(self, ready: Mapping[str, int]) -> None:
        """Set the gauges of the queues; ``ready`` has their ready messages."""
        metrics.queue_messages.clear()
        metrics.queue_age.clear()
        for queue, messages in ready.items():
            metrics.queue_messages.labels(queue).set(messages)
            latest = self._latest.get(queue)
            if latest:
                age = max(0.0, time() - latest) if messages else 0.0
                metrics.queue_age.labels(queue).set(age)
