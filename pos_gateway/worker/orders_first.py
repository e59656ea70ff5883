"""Polls of POSes beside orders: admission decides."""

from collections.abc import Callable

from pos_gateway.admission.breaker import BreakerState
from pos_gateway.attempt.poller import Precedence
from pos_gateway.domain.outcome import CallResult
from pos_gateway.worker.dispatcher import Dispatcher


class OrdersFirst(Precedence):
    """Polls yield to the orders of a dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher, self._admission = dispatcher, dispatcher.admission

    def pause(self) -> float:
        return self._admission.cpu.pause()

    def is_down(self, merchant_id: str) -> bool:
        status = self._admission.merchant(merchant_id)
        return status is not None and status.breaker is not BreakerState.CLOSED

    def begin(self, merchant_id: str) -> Callable[[], None] | None:
        quotas = self._admission.poll(merchant_id, self._dispatcher.now())
        if quotas is None:
            return None

        def end() -> None:
            self._admission.polled(quotas, self._dispatcher.now())
            self._dispatcher.wake_up()

        return end

    def refused(self, merchant_id: str, contact: CallResult, retry_after: float | None) -> None:
        now = self._dispatcher.now()
        self._admission.poll_refused(merchant_id, now, contact, retry_after)
