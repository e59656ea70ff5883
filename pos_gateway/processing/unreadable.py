"""A message that cannot be read, of an order that the ledger knows: the ledger's order counts.

The order's POS may have it. So what this worker cannot read ends no order, and says nothing of one
that goes on by another message.
"""

from dataclasses import replace

from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import Claim, Ended, Key, LeasedElsewhere
from pos_gateway.processing import decision
from pos_gateway.processing.decision import Decision, MessageContext
from pos_gateway.processing.delivery import LOOK_AGAIN_AFTER, leased_elsewhere
from pos_gateway.runtime.vault import CannotOpen


class UnreadableMessages:
    """Decides about such messages. Safe from green threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def decide(
        self, key: Key, reason: Reason, came: Message, dead: Message, context: MessageContext
    ) -> Decision | None:
        """What follows from the message; None: the ledger does not know the order.

        Args:
            key: the order.
            reason: why the message cannot be read.
            came: the message, to come again if the order is leased elsewhere.
            dead: its dead letter.
            context: what it says besides its body.

        Raises:
            LedgerUnavailable: the database is away; nothing was claimed.
        """
        if not self._ledger.knows(key):
            return None
        claim = self._ledger.claim(key, send=False)
        match claim:
            case Ended():
                return Decision(claim.outcome, messages=[dead])
            case LeasedElsewhere():
                return Decision(leased_elsewhere(), messages=[came.delayed(LOOK_AGAIN_AFTER)])
        with self._ledger.attempting(claim):
            return self._decided(claim, reason, came, dead, context)

    def _decided(
        self, claim: Claim, reason: Reason, came: Message, dead: Message, context: MessageContext
    ) -> Decision:
        order = self._order(claim.key)
        if order is None:
            return replace(decision.on_unreadable(claim, reason, context), messages=[dead])
        if order.source not in came.body:  # it goes on by its own message
            return decision.on_released(claim, Outcome(Kind.FAILED, reason), [dead], context)
        again = wire.submit_message(
            order.order_id,
            order.source,
            routing_key=context.routing_key,
            # Known as the gateway's own, it may be as long as it is.
            headers={wire.ATTEMPTS: context.tries + 1, wire.RESOLVE: claim.history.may_be_there},
        ).delayed(LOOK_AGAIN_AFTER)
        outcome = Outcome(Kind.RETRY, reason)
        return decision.on_released(claim, outcome, [again.following(context.trace)], context)

    def _order(self, key: Key) -> Order | None:
        """The ledger's order; None: this worker cannot read that either."""
        try:
            text = self._ledger.order(key)
            return None if text is None else Order.parse_json(text)
        except (CannotOpen, InvalidOrder):
            return None
