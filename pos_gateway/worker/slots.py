"""The slots of a worker's attempts: when each slot is freed, and whether the worker makes the retry."""

from collections.abc import Callable

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.lane import Call
from pos_gateway.attempt.attempt import Slot
from pos_gateway.attempt.decision import Decision
from pos_gateway.domain.outcome import MENDED_HERE, CallResult, Outcome
from pos_gateway.ledger.payloads import readable_code
from pos_gateway.worker.request import OrderRequest
from pos_gateway.worker.retries import Retries


class Slots:
    """The parts of a worker to tell of slots. Safe for green threads: nothing here blocks.

    ``now`` is admission's clock; ``wake`` wakes the dispatcher.
    """

    def __init__(
        self,
        admission: Admission[OrderRequest],
        retries: Retries,
        *,
        now: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self.admission = admission
        self.retries = retries
        self.now = now
        self.wake = wake
        #: Orders with a free slot and an outcome that is not durable yet.
        self.uncommitted = 0


class AdmittedSlot(Slot):
    """The slot of an attempt; or no slot, for an attempt that needs no slot."""

    __slots__ = ("_is_counted", "_is_kept", "_request", "_slots", "again", "call")

    def __init__(
        self, slots: Slots, request: OrderRequest, call: Call[OrderRequest] | None
    ) -> None:
        self._slots, self._request = slots, request
        #: The call with the slot; None: no slot is needed, or the slot is free.
        self.call = call
        self.again = None
        self._is_counted = self._is_kept = False

    def began(self) -> None:
        if self.call is not None:
            self._slots.admission.began(self.call, self._slots.now())

    def answered(self, decision: Decision) -> None:
        slots, request, outcome = self._slots, self._request, decision.outcome
        request.decide(decision)
        # At most ``slots`` outcomes may be uncommitted without a slot: an outage of database or broker
        # stops the worker from starting more orders.
        if slots.uncommitted < slots.admission.limits.slots:
            self._is_counted = True
            slots.uncommitted += 1
            self.free(outcome)
        elif self.call is not None:
            slots.admission.answered(self.call, slots.now(), outcome.contact, outcome.retry_after)
        if decision.messages and slots.retries.takes(request, decision):  # most orders end
            self._is_kept = True
            slots.retries.coming += 1
        # A stale delivery's message is redelivered and makes the retry. Publishing a second message
        # would double the messages with each lost connection.
        if self._is_kept or request.is_stale:
            self.again = decision.again

    def stored(self) -> None:
        self._slots.uncommitted -= self._is_counted
        self._slots.retries.coming -= self._is_kept
        self._is_counted = self._is_kept = False

    def free(self, outcome: Outcome | None = None) -> None:
        call, self.call = self.call, None
        if call is None:
            return
        admission, now = self._slots.admission, self._slots.now()
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
            self._slots.wake()
