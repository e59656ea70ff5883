"""The orders in flight in a worker: green threads, slots, and joined duplicates.

An order holds a slot during the call; during the outcome's commit, the order holds only a green thread.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from time import time
from typing import Any

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.lane import Call
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.spine import Spine
from pos_gateway.domain.outcome import MENDED_HERE, CallResult, Kind, Outcome
from pos_gateway.ledger.payloads import readable_code
from pos_gateway.ledger.states import Action
from pos_gateway.reports.counters import WAITS
from pos_gateway.runtime import failpoints
from pos_gateway.telemetry import metrics
from pos_gateway.worker.celery_internals import green_threads
from pos_gateway.worker.crew import Crew
from pos_gateway.worker.request import OrderRequest, RequestState
from pos_gateway.worker.retries import Retries

#: The kinds of terminal outcomes.
_ENDS = frozenset({Kind.ACCEPTED, Kind.REJECTED, Kind.CANCELLED, Kind.EXPIRED, Kind.FAILED})


class OrdersInFlight:
    """Attempts requests, each on a green thread. Only ``run`` blocks.

    Args:
        spine: attempts orders.
        admission: gets the slots back, with the calls' results.
        retries: orders in this worker before a retry.
        pool: Celery's green pool.
        now: admission's clock.
        wake: called when a waiting order may have a slot.
        ended: called with a request after the attempt, however that went, and with the joined requests;
            must not block: the caller may be on the hub.
    """

    def __init__(
        self,
        spine: Spine,
        admission: Admission[OrderRequest],
        retries: Retries,
        *,
        pool: Any,
        now: Callable[[], float],
        wake: Callable[[], None],
        ended: Callable[[OrderRequest, list[OrderRequest]], None],
    ) -> None:
        self._spine = spine
        self._pool = pool
        self._ended = ended
        self._crew = Crew(lambda: green_threads(pool), self.run, self._end)
        self._admission = admission
        self._retries = retries
        self._now = now
        self._wake = wake
        self._requests: dict[tuple[str, str, Action], OrderRequest] = {}
        self._joined: dict[tuple[str, str, Action], list[OrderRequest]] = {}
        #: Orders with a free slot and an outcome not durable yet.
        self.uncommitted = 0
        #: First attempts of healthy merchants' orders, by how long they waited: ``WAITS`` has the
        #: upper bounds; the last is for longer waits. A healthy merchant is light, and no
        #: order has waited for the merchant since the order was placed.
        self.healthy_waits = [0] * (len(WAITS) + 1)

    def joins(self, request: OrderRequest) -> bool:
        """Have a duplicate, or an order with a cancel request in flight, wait for the outcome.

        Returns whether the request waits.
        """
        key = request.key
        if key is None or key not in self._requests:
            if key is None or request.action is Action.CANCEL:
                return False
            key = (key[0], key[1], Action.CANCEL)
            if key not in self._requests:
                return False
        request.enter(RequestState.JOINED)
        request.joined_late = self._requests[key].decision is not None
        self._joined.setdefault(key, []).append(request)
        return True

    def begin(
        self,
        request: OrderRequest,
        call: Call[OrderRequest] | None = None,
        *,
        expired: bool = False,
    ) -> None:
        """Have a green thread attempt the request. Without a call: if expired, or not to call the POS."""
        may_call = call is not None or expired
        assert may_call or not request.needs_pos  # noqa: S101  (the order would need the POS again)
        request.call = call
        order, request.order = request.order, None
        request.attempt = Attempt(
            order,
            request.raw,
            request.action,
            expired=expired,
            may_call=may_call,
            time_limit_share=1.0 if call is None else call.time_limit_share,
            on_call=partial(self._call_began, request),
            received=request.received,
        )
        if request.key is not None:
            self._requests[request.key] = request
        request.enter(RequestState.IN_FLIGHT)
        if not expired and request.placed_at is not None and not request.raw.tries:
            # By the backend's clock: a time in the future counts as now.
            wait = max(0.0, time() - request.placed_at)
            metrics.queue_wait.observe(wait)
            if call is not None and call.light is not None and wait <= call.well_for:
                self.healthy_waits[bisect_left(WAITS, wait)] += 1
        self._crew.take(request)

    def run(self, request: OrderRequest) -> None:
        """Attempt once, on the request's green thread; the request's state says what follows.

        Still in flight: a different worker has the order, and the message must be requeued.

        Raises:
            Exception: as ``Spine.attempt``.
        """
        attempt, admission = request.attempt, self._admission
        try:
            decision = self._spine.decide(attempt)
            request.decision, outcome = decision, decision.outcome
            # At most ``slots`` outcomes may be uncommitted without a slot: an outage of database or
            # broker stops the worker from starting more orders.
            is_free = self.uncommitted < admission.limits.slots
            waits_here = bool(decision.messages) and self._retries.takes(request, decision)
            self.uncommitted += is_free
            self._retries.coming += waits_here
            try:
                if is_free:
                    self._free(request, outcome)
                elif (call := request.call) is not None:
                    admission.answered(call, self._now(), outcome.contact, outcome.retry_after)
                # A stale delivery's message is redelivered and makes the retry. Publishing a second
                # message would double the messages with each lost connection.
                again = decision.again if waits_here or request.is_stale else None
                follows = decision if again is None else decision.without_again()
                if not self._spine.commit(attempt, follows):
                    return
                if request.placed_at is not None:
                    for _, entry in decision.entries:
                        if entry.event is not None and entry.event.kind in _ENDS:
                            metrics.order_seconds.observe(max(0.0, time() - request.placed_at))
            finally:
                self.uncommitted -= is_free
                self._retries.coming -= waits_here
        finally:
            self._spine.leave(attempt)
        if decision.needs_pos:
            request.start_over()
        elif again is not None:
            request.again = again  # unacknowledged until then
        else:
            request.enter(RequestState.COMMITTED)
            failpoints.reach("acknowledge.before")
            request.acknowledge()
            failpoints.reach("acknowledged")

    def _end(self, request: OrderRequest) -> None:
        if request.call is not None:
            self._free(request)
        joined: list[OrderRequest] = []
        if request.key is not None:
            del self._requests[request.key]
            joined = self._joined.pop(request.key, joined)
        self._ended(request, joined)
        del request.attempt  # the callback has the request

    def __len__(self) -> int:
        return self._crew.busy

    def close(self) -> None:
        """Let idle green threads end; requests in flight go on."""
        self._crew.dismiss()

    def kill(self) -> None:
        """Kill the green threads; their requests end without an outcome. Does not block."""
        green_threads(self._pool).kill(block=False)

    def connection_lost(self) -> Iterator[OrderRequest]:
        """Mark all requests as stale deliveries; removes and returns the joined requests."""
        for request in self._requests.values():
            request.is_stale = True
        joined, self._joined = self._joined, {}
        return (request for requests in joined.values() for request in requests)

    def _call_began(self, request: OrderRequest) -> None:
        """The call has begun: from here on the attempt waits for the merchant."""
        if request.call is not None:
            self._admission.began(request.call, self._now())

    def _free(self, request: OrderRequest, outcome: Outcome | None = None) -> None:
        """Give the slot back; without an outcome the attempt was ended from outside."""
        call, request.call = request.call, None
        if call is None:
            return
        admission, now = self._admission, self._now()
        if outcome is None:
            admission.release(call, now, CallResult.NONE)
        else:
            reason = outcome.reason
            # An answer's code is the POS's own word.
            if reason is not None and outcome.contact is not CallResult.ANSWERED:
                if reason.code in MENDED_HERE:
                    admission.note_unsent(call, reason.code, now)
                elif outcome.contact is not CallResult.NONE:
                    admission.note_error(call, readable_code(reason), now)
            admission.release(call, now, outcome.contact, outcome.retry_after)
        if admission.waiting:  # usually no order waits for the slot
            self._wake()
