"""Discards dead letters, but none that may still be needed: an open order may have no other message."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pos_gateway.administration.refusal import Refusal
from pos_gateway.broker.bundle import PARKED_ORDERS, Bundle
from pos_gateway.broker.dead_letter import DeadLetter, NotReplayable
from pos_gateway.domain.order import CancelRequest
from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.states import Action, Key, State
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock

_OPEN = "have letters of orders that have not ended discarded, too (--open)"
_RESOLVE = f"ask the merchant, then resolve it (pos-gateway orders resolve); or {_OPEN}"
_REPLAY = f"a replay has it end (pos-gateway dlq replay); or {_OPEN}"
_UNREAD_BUNDLE = (
    "the parked orders in it have not ended, and cannot be read here; the release that parked them can "
    f"(its pos-gateway dlq replay); or {_OPEN}"
)


@dataclass(frozen=True, slots=True)
class Discard:
    """Discards letters one by one, also those of open orders if ``even_open``."""

    ledger: OrderAdmin
    acknowledge: Callable[[DeadLetter], None]
    operator: str
    even_open: bool
    #: Begins the audit's details.
    note: str = ""
    clock: Clock = SYSTEM_CLOCK

    def discard(self, letter: DeadLetter) -> Refusal | None:
        """Discard a letter; returns why it was refused, or None."""
        why_not = self.why_not(letter)
        if why_not is None:
            # First: better audited and not removed than removed without an audit.
            details = f"{self.note}{letter.code}: {letter.reason}"
            key = key_of(letter)
            self.ledger.note(key, operator=self.operator, what="dead.discard", details=details)
            self.acknowledge(letter)
        return why_not

    def why_not(self, letter: DeadLetter) -> Refusal | None:
        """Why ``discard`` refuses the letter now, or None."""
        if self.even_open:
            return None
        why_not = _why_needed(letter, key_of(letter), self.ledger, self.clock.now())
        return None if why_not is None else Refusal(why_not, why_not.lstrip("0123456789 "))


def key_of(letter: DeadLetter) -> Key:
    """The key of the letter's order."""
    return Key(letter.merchant_id or "", letter.order_id or letter.id)


def _why_needed(letter: DeadLetter, key: Key, ledger: OrderAdmin, now: datetime) -> str | None:
    """Why the letter may still be needed: its order has not ended."""
    try:
        content = letter.content()
    except NotReplayable:
        # Any other one can never end an order, and the ledger's order goes on without it.
        return _UNREAD_BUNDLE if letter.headers.get("task") == PARKED_ORDERS else None
    if isinstance(content, Bundle):
        return f"{content.orders} parked orders in it have not ended; {_REPLAY}"
    if not isinstance(content, CancelRequest):
        return _why_open(letter, key, "order", ledger, now)
    of_request = Key(key.merchant_id, key.order_id, Action.CANCEL)
    if content.deliver_by <= now:
        return _why_expired_is_needed(of_request, ledger)
    return _why_open(letter, of_request, "cancel request", ledger, now)


def _why_open(
    letter: DeadLetter, key: Key, what: str, ledger: OrderAdmin, now: datetime
) -> str | None:
    row = ledger.one(key)
    if row is None:
        # With a reason a worker has ended it, and its row is pruned by now.
        unknown = f"the ledger does not know this {what}, which has had no event; {_REPLAY}"
        return None if letter.has_event else unknown
    if row.state.is_final or (row.state is State.NEW and _is_being_cancelled(key, ledger, now)):
        return None  # the latter ends with its cancel request
    is_for_operator = row.is_in_doubt and row.last_event == Kind.IN_DOUBT
    remedy = _RESOLVE if is_for_operator else _REPLAY
    return f"this {what} has not ended: it is {row.state.value}; {remedy}"


def _why_expired_is_needed(key: Key, ledger: OrderAdmin) -> str | None:
    """Why a cancel request past its deadline, which replay refuses, may still be needed."""
    request = ledger.one(key)
    if request is None or request.state.is_final:
        return None
    return (
        f"this cancel request has not ended: it is {request.state.value}; asking again ends it "
        f"(pos-gateway cancel); or {_OPEN}"
    )


def _is_being_cancelled(key: Key, ledger: OrderAdmin, now: datetime) -> bool:
    """Whether this is an order, and a cancel request for it is open and still to be tried."""
    if key.action is Action.CANCEL:
        return False
    request = ledger.one(Key(key.merchant_id, key.order_id, Action.CANCEL))
    if request is None or request.state.is_final:
        return False
    return (request.deliver_by or 0.0) > now.timestamp()
