"""Resolves an order in doubt by the merchant's answer: the POS has it, or not."""

from datetime import datetime
from typing import Any

from pos_gateway.broker import wire
from pos_gateway.broker.publisher import Publisher
from pos_gateway.client import home_of
from pos_gateway.domain.errors import AdminError, PublishError
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import RESOLVED, Kind, Reason
from pos_gateway.domain.split import Split
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding
from pos_gateway.ledger.states import Entry, State
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock, shown
from pos_gateway.runtime.vault import CannotOpen

#: The reason in the ledger and the event; it also marks a decision of this command.
_THERE = Reason(RESOLVED, "an operator says that the POS has it")
_NOT_THERE = Reason(RESOLVED, "an operator says that the POS does not have it")


class Resolution:
    """Writes the decision and its event, then queues the order.

    Repeated, it writes only an audit row, and queues the order: a decision that was read, and whose
    own commit nothing has confirmed, is confirmed by a commit after it.
    """

    def __init__(
        self,
        ledger: OrderAdmin,
        publisher: Publisher,
        operator: str,
        split: Split,
        clock: Clock = SYSTEM_CLOCK,
        *,
        since: datetime | None = None,
        note: str = "",
        reason: str | None = None,
    ) -> None:
        self._ledger = ledger
        self._publisher = publisher
        self._operator = operator
        self._split = split
        self._since = since
        self._note = note
        self._reason = reason
        self._now = clock.now()

    def require_possible(
        self, order: OrderStanding, until: datetime | None, *, there: bool
    ) -> None:
        """Raises AdminError if the decision, ``accepted`` or ``not_sent``, would be refused now."""
        if there:
            _require_doubt(order)
            return
        _require_final_doubt(order)
        if not _is_unwanted(order):
            self._to_send(order, until)

    def accepted(self, order: OrderStanding, external_id: str | None) -> str:
        if _is_resolved(order, State.ACCEPTED):
            if external_id not in (None, order.external_id):
                known = "none" if order.external_id is None else repr(order.external_id)
                raise AdminError(
                    f"order {order.order_id!r} is accepted already, with the external id {known}; "
                    f"{external_id!r} was not written"
                )
            self._note_again(order, "accepted")
        else:
            _require_doubt(order)
            if order.is_being_undone and not order.is_left(self._now.timestamp()):
                raise AdminError(STILL_UNDONE, kind=STILL_UNDONE)
            self._require_as_seen(order)
            if external_id is not None:
                self._require_unknown(order, external_id)
            entry = _entry(order, State.ACCEPTED, self._now, _THERE, external_id)
            details = f"external id {external_id}" if external_id else ""
            self._write(order, entry, "accepted", details=details)
        return "is accepted; the event is recorded"

    def not_sent(self, order: OrderStanding, until: datetime | None) -> str:
        if _is_unwanted(order):
            return self._cancelled(order)
        to_send = self._to_send(order, until)
        if _is_resolved(order, State.EXPIRED):
            if until is not None:
                raise AdminError(
                    f"order {order.order_id!r} has expired already, and its letter is in orders.dead. "
                    "To send it all the same, replay it with new time (pos-gateway dlq replay ID --for 30m)"
                )
            self._note_again(order, "not_sent")
            return self._end_late(order, to_send)
        late = to_send.expired(self._now)
        is_decided = _is_resolved(order, State.NEW)
        if not is_decided:
            _require_final_doubt(order)
            self._require_as_seen(order)
        if not is_decided or until is not None:
            state = State.EXPIRED if late else State.NEW
            entry = _entry(order, state, self._now, _NOT_THERE)
            given = f"deliver_by {to_send.deliver_by.isoformat()}"
            # Its next events are of a new generation, a second order.in_doubt included.
            also: dict[str, Any] = {"reopen": not (late or is_decided)}
            if until is not None:
                also |= {"order_json": to_send.source, "deliver_by": until.timestamp()}
            self._write(order, entry, "not_sent", details=given, **also)
            if late:
                return self._end_late(order, to_send)
        else:
            self._note_again(order, "not_sent")
        home = home_of(order.merchant_id, self._split)
        text = to_send.source
        self._publish(
            wire.submit_message(order.order_id, text, routing_key=home, headers=wire.ONE_OF_OURS)
        )
        return "was not sent, and is on the queue again"

    def _to_send(self, order: OrderStanding, until: datetime | None) -> Order:
        try:
            order_json = self._ledger.order_json(order.key)
        except CannotOpen as error:
            raise AdminError(f"the order itself, which is to be sent, is {error}") from None
        if order_json is None:
            raise AdminError("the order itself is not kept: only a cancel request for it came")
        return Order.parse_json(order_json).until(until)

    def _cancelled(self, order: OrderStanding) -> str:
        """If sent again, the order would reach the POS before its cancel request is retried.

        After steps at its POS, it would take the steps a second time, or find the ones that were undone.
        """
        is_asked = order.cancellation is not None
        why = "as a cancel request asks" if is_asked else "since its POS keeps its id"
        is_so = is_asked or _is_resolved(order, State.CANCELLED)
        if order.state is not State.CANCELLED or not is_so:
            _require_final_doubt(order)
            self._require_as_seen(order)
            entry = _entry(order, State.CANCELLED, self._now, _NOT_THERE)
            details = "a cancel request is open" if is_asked else "it was made at its POS"
            self._write(order, entry, "not_sent", details=details)
        else:
            self._note_again(order, "not_sent")
        return f"is not sent again, and is cancelled, {why}; the event is recorded"

    def _end_late(self, order: OrderStanding, expired: Order) -> str:
        message = wire.submit_message(order.order_id, expired.source, routing_key="")
        dead = wire.dead_letter(message, code=_NOT_THERE.code, reason=_NOT_THERE.message)
        self._publish(dead)
        return (
            f"was not sent and has expired ({expired.deliver_by.isoformat()}); the event is "
            "recorded. To send it all the same, replay it with new time (pos-gateway dlq replay ID --for 30m)"
        )

    def _require_as_seen(self, order: OrderStanding) -> None:
        """The merchant's answer is true only of earlier attempts."""
        last = shown(order.updated_at)
        if self._since is not None and last != shown(self._since.timestamp()):
            raise AdminError(
                f"something has happened to order {order.order_id!r} of merchant "
                f"{order.merchant_id!r} since then: SINCE is {last} now; ask the merchant again"
            )

    def _require_unknown(self, order: OrderStanding, external_id: str) -> None:
        """Callbacks and cancel requests would be about either order."""
        other = self._ledger.known_as(external_id, order.key)
        if other is not None:
            raise AdminError(
                f"{external_id!r} is the external id of order {other!r} of merchant {order.merchant_id!r} already; "
                f"ask the merchant for the id of order {order.order_id!r}, or give none",
                kind="the external id is another order's already; ask the merchant for this order's, or give none",
            )

    def _write(
        self, order: OrderStanding, entry: Entry, decision: str, *, details: str, **also: Any
    ) -> None:
        self._ledger.change(
            order,
            entry,
            operator=self._operator,
            what=f"orders.resolve.{decision}",
            details=f"{self._note}{details}",
            reason=self._reason,
            **also,
        )

    def _note_again(self, order: OrderStanding, decision: str) -> None:
        what = f"orders.resolve.{decision}"
        self._ledger.note(
            order.key,
            operator=self._operator,
            what=what,
            details=f"{self._note}again",
            reason=self._reason,
        )

    def _publish(self, message: Any) -> None:
        try:
            self._publisher.publish(message)
        except PublishError as error:
            raise AdminError(
                f"the decision is written, and the order not on its queue yet: {error}; repeat the "
                "same decision"
            ) from error


#: Why an order is not accepted while workers undo it.
STILL_UNDONE = "workers are undoing it at its POS: it ends as undone, or is left to you an hour after its deliver_by"


def _require_doubt(order: OrderStanding) -> None:
    if order.is_leased:
        raise AdminError(
            f"a worker ({order.owner}) has order {order.order_id!r} of merchant "
            f"{order.merchant_id!r} at this moment, or died with it; try again in a minute",
            kind="a worker has it at this moment, or died with it; try again in a minute",
        )
    if not order.is_in_doubt:
        raise AdminError(
            f"order {order.order_id!r} of merchant {order.merchant_id!r} is not in doubt: it is "
            f"{order.state.value}",
            kind=f"it is not in doubt: it is {order.state.value}",
        )


def _require_final_doubt(order: OrderStanding) -> None:
    """Before order.in_doubt a worker may send it again, even after the merchant was asked."""
    _require_doubt(order)
    if order.last_event != Kind.IN_DOUBT:
        raise AdminError(
            f"order {order.order_id!r} of merchant {order.merchant_id!r} is not left to you yet: a "
            "worker that gets its message still finds out, and may send it again. Once "
            "order.in_doubt was published, ask the merchant again. If that does not come, its "
            f"message may be in the dead letters: replay it (pos-gateway dlq replay {order.order_id}). If it "
            "is not there, have the backend submit it again (pos-gateway enqueue --again FILE)",
            kind="it is not left to you yet: order.in_doubt was not published",
        )


def _is_unwanted(order: OrderStanding) -> bool:
    """Whether the order is not sent again: it has a cancel request, open or ended, or was made at its POS."""
    if _is_resolved(order, State.NEW):  # by a command that was interrupted
        return False
    return _is_resolved(order, State.CANCELLED) or order.cancellation is not None or order.was_made


def is_resolved(order: OrderStanding) -> bool:
    """Whether the order is as a resolution has left it; the event or message may be missing."""
    return order.reason_code == _THERE.code and not order.is_in_doubt


def _is_resolved(order: OrderStanding, state: State) -> bool:
    """Whether this command decided so before; it may have been interrupted afterwards."""
    return order.state is state and order.reason_code == _NOT_THERE.code


def _entry(
    order: OrderStanding,
    state: State,
    now: datetime,
    reason: Reason,
    external_id: str | None = None,
) -> Entry:
    ends = state.is_final
    event = dehydrated(order.key, Kind(state.value), reopened=order.reopened) if ends else None
    return Entry(
        state,
        now.timestamp(),
        order.attempts,
        reason=reason,
        external_id=external_id or order.external_id,
        event=event,
    )
