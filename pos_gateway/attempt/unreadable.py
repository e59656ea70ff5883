"""A message that cannot be read: the ledger's order with the message's ids counts.

The POS may have the order. So no unreadable message ends an order, or says anything of an order that a readable
message may continue.
"""

from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.attempt import decision
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.call import Caller
from pos_gateway.attempt.content import UnreadMessage
from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.doubt import crashed, unclaimed
from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.json_text import members
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.events.repeating import Repeating
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import Claim, Ended, Key
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.vault import CannotOpen

#: Bytes of a time in JSON at most: an order's are shorter.
LONGEST_TIME = 64


@dataclass(kw_only=True, eq=False)
class Unreadable:
    """Decides about unreadable messages. Safe for any number of green threads at once."""

    caller: Caller
    ledger: Ledger
    repeating: Repeating
    clock: Clock = SYSTEM_CLOCK

    def claim(self, attempt: Attempt[UnreadMessage]) -> Outcome:
        """Claim the order, if the ledger knows one with the message's ids. No POS is called.

        Raises:
            LedgerUnavailable: the database is unavailable.
        """
        message = attempt.content
        failed = Outcome(Kind.FAILED, message.reason)
        if not (message.merchant_id and message.order_id):
            return failed
        key = Key(message.merchant_id, message.order_id)
        if not self.ledger.knows(key):
            return failed
        found = self.caller.claim(attempt, key, send=False)
        if isinstance(found, Ended):
            return found.outcome
        return self._by_order(attempt, found) if isinstance(found, Claim) else unclaimed(found)

    def _by_order(self, attempt: Attempt[UnreadMessage], claim: Claim) -> Outcome:
        """The outcome by the claimed order."""
        reason = attempt.content.reason
        try:
            order = self._order(claim.key)
        except CannotOpen as error:
            if (claim.history.deliver_by or 0.0) > self.clock.now().timestamp():
                # A worker elsewhere may have the key.
                return Outcome(Kind.RETRY, Reason.of("secret_key", f"the order is {error}"))
            order = None
        if order is None:
            return Outcome(Kind.FAILED, reason, for_operator=True)
        if not _is_its_own(order, attempt.content.original.body):
            return Outcome(Kind.FAILED, reason)  # the order goes on by a readable message
        attempt.kept = order.source
        return Outcome(Kind.RETRY, reason)

    def _order(self, key: Key) -> Order | None:
        """The ledger's order; None: not kept, or unreadable, too. Raises CannotOpen."""
        try:
            text = self.ledger.order(key)
            return None if text is None else Order.parse_json(text)
        except InvalidOrder:
            return None

    def call(self, attempt: Attempt[UnreadMessage]) -> Outcome:
        """Never reached: ``claim`` has the outcome."""
        raise NotImplementedError

    def crashed(self, attempt: Attempt[UnreadMessage], error: Exception) -> Outcome:
        """The outcome while the database is away.

        Raises:
            Exception: the same, a bug of ours: an order's state may not be known.
        """
        outcome = crashed(attempt, error)
        if outcome.kind is not Kind.RETRY:
            raise error
        return outcome

    def decide(self, attempt: Attempt[UnreadMessage]) -> Decision:
        """Decide about the outcome; the event of a repeated message is published again."""
        decided = decision.on_unread(attempt, self.clock.now())
        with suppress(SQLAlchemyError):  # a repeated event is not worth waiting for
            for each in decided.event_records:
                if each.entry.event is not None:
                    decided = decided.repeating(self.repeating.event(each.entry.event))
        return decided

    def repeats(self, attempt: Attempt[UnreadMessage]) -> bool:
        """False: the events of an order in the ledger are not this message's."""
        return False


def _is_its_own(order: Order, body: bytes) -> bool:
    """Whether a message is the order's own: an operator may have extended the deadline since."""
    text = order.source.decode()
    begin, end = next((begin, end) for name, begin, end in members(text) if name == "deliver_by")
    before, after = text[:begin].encode(), text[end:].encode()
    at = body.find(before)
    until = at + len(before) + LONGEST_TIME
    return at >= 0 and 0 <= body.find(after, at + len(before)) <= until
