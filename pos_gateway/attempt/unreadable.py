"""A message that cannot be read, of an order that the ledger knows: the ledger's order counts.

The POS may have the order. So no unreadable message ends an order, or says anything of an order that goes on by
a readable one.
"""

from dataclasses import replace
from datetime import datetime

from pos_gateway.attempt import decision
from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.doubt import LOOK_AGAIN_AFTER, leased_elsewhere
from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.json_text import members
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import Claim, Ended, Key, LeasedElsewhere
from pos_gateway.runtime.vault import CannotOpen

#: Bytes of a time in JSON at most: an order's are shorter.
LONGEST_TIME = 64


class UnreadableMessages:
    """Decides about unreadable messages. Safe from green threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def decide(
        self,
        key: Key,
        reason: Reason,
        received: Message,
        dead: Message,
        raw: RawMessage,
        now: datetime,
        span: TraceContext | None,
    ) -> Decision | None:
        """The decision about the message; None: the ledger does not know the order.

        Args:
            key: the order.
            reason: why the message cannot be read.
            received: the message, to come again if the order is leased elsewhere.
            dead: the dead letter.
            raw: the message, with parsed headers.
            now: the time of the decision.
            span: the trace context for the event.

        Raises:
            LedgerUnavailable: the database is away; nothing is claimed any more.
        """
        if not self._ledger.knows(key):
            return None
        claim = self._ledger.claim(key, send=False)
        match claim:
            case Ended():
                return Decision(claim.outcome, messages=[dead])
            case LeasedElsewhere():
                return Decision(leased_elsewhere(), messages=[received.delayed(LOOK_AGAIN_AFTER)])
        try:
            return self._decided(claim, reason, received, dead, raw, now, span)
        except BaseException:  # the database is away for its content, say: the claim serves nothing
            self._ledger.abandon(claim, sent=claim.sending)
            raise

    def _decided(
        self,
        claim: Claim,
        reason: Reason,
        received: Message,
        dead: Message,
        raw: RawMessage,
        now: datetime,
        span: TraceContext | None,
    ) -> Decision:
        try:
            order = self._order(claim.key)
        except CannotOpen as error:
            if (claim.history.deliver_by or 0.0) > now.timestamp():
                why = Reason.of(
                    "secret_key", f"the order is {error}"
                )  # a worker elsewhere may have the key
                later = [received.delayed(LOOK_AGAIN_AFTER)]
                return decision.on_released(claim, Outcome(Kind.RETRY, why), later, now)
            order = None
        if order is None:
            decided = decision.on_unreadable(claim, reason, raw, now, span)
            return replace(decided, messages=[dead])
        if not _is_its_own(order, received.body):  # the order goes on by a readable message
            return decision.on_released(claim, Outcome(Kind.FAILED, reason), [dead], now)
        again = wire.submit_message(
            order.order_id,
            order.source,
            routing_key=raw.home,
            # A message of the gateway's own may be of any length.
            headers={
                wire.ATTEMPTS: raw.tries + 1,
                wire.RESOLVE: claim.history.may_be_there,
                wire.LOOK_UP: claim.history.may_be_there,
            },
        ).delayed(LOOK_AGAIN_AFTER)
        outcome = Outcome(Kind.RETRY, reason)
        return decision.on_released(claim, outcome, [again.following(raw.trace)], now)

    def _order(self, key: Key) -> Order | None:
        """The ledger's order; None: not kept, or unreadable, too. Raises CannotOpen."""
        try:
            text = self._ledger.order(key)
            return None if text is None else Order.parse_json(text)
        except InvalidOrder:
            return None


def _is_its_own(order: Order, body: bytes) -> bool:
    """Whether a message is the order's own: an operator may have extended the deadline since."""
    text = order.source.decode()
    begin, end = next((begin, end) for name, begin, end in members(text) if name == "deliver_by")
    before, after = text[:begin].encode(), text[end:].encode()
    at = body.find(before)
    until = at + len(before) + LONGEST_TIME
    return at >= 0 and 0 <= body.find(after, at + len(before)) <= until
