"""Submits one order to its merchant's POS, never twice.

The ledger records each request that changes something before the first byte, for the next attempt to know.
"""

from dataclasses import replace
from functools import partial
from math import inf

from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.protocol import Adapter, Guarantee
from pos_gateway.adapters.replies import after_refusal
from pos_gateway.attempt import decision
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.call import Caller
from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.doubt import (
    KEY_KEPT_FOR,
    MOVED,
    crashed,
    has_moved,
    leased_elsewhere,
    longest_reply,
    poisoned,
    unclaimed,
    unsettled_for,
    why_late,
)
from pos_gateway.attempt.poison import POISONOUS, Turn
from pos_gateway.domain.errors import NotLoaded, UnknownMerchant
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import CallResult, Kind, Outcome, Reason
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import (
    AttemptHistory,
    Claim,
    ClaimResult,
    Ended,
    Key,
    LeasedElsewhere,
    Suspected,
)
from pos_gateway.merchants.directory import Directory
from pos_gateway.runtime import failpoints
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock, from_unix
from pos_gateway.transport.exchange import Send


class Submit:
    """Submits orders to their merchants' POSes. Safe for any number of green threads at once."""

    def __init__(
        self,
        *,
        directory: Directory,
        adapters: dict[str, Adapter],
        caller: Caller,
        ledger: Ledger,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._directory = directory
        self._adapters = adapters
        self._caller = caller
        self._ledger = ledger
        self._clock = clock

    def claim(self, attempt: Attempt[Order], turn: Turn) -> Outcome | None:
        """Claim the order; the outcome, if its POS is not to be called.

        Raises:
            SQLAlchemyError, LedgerUnavailable: the database is unavailable.
        """
        order = attempt.content
        late = attempt.expired or self._left(order) <= 0
        problem = None
        # An expired order needs no merchant: unreadable records and catalogs keep no order from its end.
        if not attempt.expired:
            attempt.merchant, problem = self._merchant(order.merchant_id, late=late)
        merchant = attempt.merchant
        if merchant is not None and merchant.paused and not late:
            return Outcome(Kind.RETRY, Reason.of("paused", "the merchant is paused"))
        found = turn.claim(partial(self._claim, attempt, not late and problem is None))
        if not isinstance(found, Claim):
            return _without_claim(found)
        return self._unsent(attempt, late, problem)

    def _unsent(
        self, attempt: Attempt[Order], late: bool, problem: Reason | None
    ) -> Outcome | None:
        """The outcome of a claimed order whose POS is not to be called; None: the POS is called."""
        order, merchant, claim = attempt.content, attempt.merchant, attempt.claims[0]
        history = claim.history
        attempt.newer = self._newer(claim, order)
        if attempt.newer is not None:
            return leased_elsewhere()
        late = late or self._left(order) <= 0  # the database may have been away for seconds
        if late and (attempt.expired or not history.may_be_there):
            return self._too_late(claim, self._left(order))
        # After order.in_doubt an operator may have taken over: the order is only looked up.
        attempt.late = late or (history.may_be_there and history.last_event == Kind.IN_DOUBT)
        if history.possible_deaths >= POISONOUS:
            return poisoned(history)
        if merchant is None or problem is not None:
            return Outcome(Kind.FAILED, problem)
        adapter = self._adapters[merchant.adapter]
        if history.may_be_there and has_moved(history, merchant, adapter):
            return Outcome(Kind.IN_DOUBT, MOVED, for_operator=True)
        return None

    def crashed(self, attempt: Attempt[Order], error: Exception) -> Outcome:
        """The outcome of an attempt after an exception.

        An order that fails without a claim is claimed: the state in the ledger counts.

        Raises:
            SQLAlchemyError, LedgerUnavailable: the database is unavailable for the claim.
        """
        outcome = crashed(attempt, error)
        attempt.newer = attempt.ended = None
        if attempt.claims or outcome.kind is not Kind.FAILED:
            return outcome
        attempt.merchant = None
        found = self._claim(attempt, send=False, unless_suspect=False)
        return outcome if isinstance(found, Claim) else _without_claim(found)

    def decide(self, attempt: Attempt[Order]) -> Decision:
        """Decide about the outcome."""
        return decision.on_submission(attempt, self._clock.now())

    def repeats(self, attempt: Attempt[Order]) -> bool:
        """Whether the event of an order that has ended before is published again."""
        return attempt.ended is not None

    def _claim(self, attempt: Attempt[Order], send: bool, unless_suspect: bool) -> ClaimResult:
        order, merchant = attempt.content, attempt.merchant
        return self._caller.claim(
            attempt,
            Key(order.merchant_id, order.order_id),
            send=send,
            deliver_by=order.deliver_by.timestamp(),
            order=order.source,
            endpoint=None if merchant is None else self._endpoint(merchant),
            unless_suspect=unless_suspect,
        )

    def call(self, attempt: Attempt[Order]) -> Outcome:
        """Have the POS make a claimed order, or only look up a late one."""
        merchant = attempt.merchant
        assert merchant is not None  # noqa: S101  (``claim`` found the merchant)
        now, deliver_by = self._clock.now(), attempt.content.deliver_by
        left = inf if attempt.late else deliver_by.timestamp() - now.timestamp()
        attempt.called = True
        converse = partial(self._create, attempt, merchant)
        outcome = self._caller.call(
            merchant, attempt, converse, cancel_token=attempt.token, left=left
        )
        # An order in doubt at a POS without look-ups is for an operator.
        is_blind = self._adapters[merchant.adapter].guarantee is Guarantee.BLIND
        in_doubt = outcome.kind is Kind.IN_DOUBT
        return replace(outcome, for_operator=True) if is_blind and in_doubt else outcome

    def _create(self, attempt: Attempt[Order], merchant: Merchant, send: Send) -> Outcome:
        """Send the order, never twice: an order in doubt is looked up, sent with its key, or left."""
        adapter, claim = self._adapters[merchant.adapter], attempt.claims[0]
        history = claim.history
        order = attempt.content.in_ledger(
            history.known_since or self._clock.now().timestamp(), history.deliver_by
        )
        if history.in_doubt and adapter.guarantee is Guarantee.BLIND:
            return Outcome(Kind.IN_DOUBT, Reason.of("blind", "this POS cannot be asked"))
        is_queryable = adapter.guarantee is Guarantee.QUERYABLE
        # While a cancel request is open the order is not sent, and a key learns nothing.
        is_asked = is_queryable or history.cancelling or self._may_forget(history)
        ask_first = history.in_doubt and is_asked
        if history.pending or ask_first or attempt.late:
            known = self._ask(order, merchant, history, send, late=attempt.late)
            if known is not None:
                return known
        if history.cancelling:  # each failing send would renew the doubt
            return Outcome(Kind.RETRY, Reason.of("cancelling", "a cancel request for it is open"))
        if not claim.sending and not self._caller.record(attempt, self._endpoint(merchant)):
            return leased_elsewhere()
        failpoints.reach("sending.committed")
        outcome = adapter.submit(order, merchant, send)
        is_refused = outcome.kind is Kind.REJECTED and not outcome.not_found
        if is_refused and history.in_doubt and not ask_first:
            # An earlier attempt may have created the order: a POS may refuse before checking the key.
            known = after_refusal(lambda: adapter.look_up(order, merchant, send))
            outcome = known or replace(outcome, not_found=True)
        limit = self._caller.time_limit(merchant)
        if outcome.not_found and unsettled_for(history, limit, adapter) > 0:
            # The POS may still create the order of an earlier attempt.
            why = "the POS refuses it, does not know it, and may be about to make it"
            reason, wait = Reason.of("unsettled", why), longest_reply(adapter, limit)
            return Outcome(Kind.IN_DOUBT, reason, look_again=wait, contact=CallResult.ANSWERED)
        return outcome

    def _ask(
        self, order: Order, merchant: Merchant, history: AttemptHistory, send: Send, *, late: bool
    ) -> Outcome | None:
        """Look up an order that the POS may have; None: the order is not there, and may be sent."""
        adapter = self._adapters[merchant.adapter]
        known = adapter.look_up(order, merchant, send)
        if known is not None:
            return known
        wait = unsettled_for(history, self._caller.time_limit(merchant), adapter)
        if wait > 0:
            why = "the POS does not know it, and may not have had the time"
            reason = Reason.of("unsettled", why)
            return Outcome(
                Kind.IN_DOUBT, reason, look_again=wait, contact=CallResult.ANSWERED, not_found=True
            )
        if late:
            return Outcome(Kind.EXPIRED, Reason.of("expired", "the POS does not have it"))
        return None

    def _too_late(self, claim: Claim, left: float) -> Outcome:
        """The outcome of an expired order: with the last attempt's reason, the cause of the wait."""
        last = self._ledger.last_reason(claim)
        why = why_late(left, last)
        if claim.history.may_be_there:
            reason = Reason.of("expired_in_doubt", f"{why}; the POS may have the order")
            return Outcome(Kind.IN_DOUBT, reason)
        reason = Reason.of("expired", why) if last is None else Reason.of(last.code, why)
        return Outcome(Kind.EXPIRED, reason)

    @staticmethod
    def _may_forget(history: AttemptHistory) -> bool:
        """Whether the POS may have forgotten the key since the first attempt.

        ``doubt_since`` is the last attempt's; the first was not before the order's row. A row from
        the future has a different clock's time.
        """
        known_for = inf if history.known_for is None else history.known_for
        return known_for < 0 or max(known_for, history.settled) > KEY_KEPT_FOR

    def _newer(self, claim: Claim, order: Order) -> Order | None:
        """The order with the later deadline that an operator has set since the message; else None.

        However much time the message's own deadline leaves: a failure would expire the order by that deadline.
        """
        if claim.history.deliver_by is None:
            return None
        until, now = from_unix(claim.history.deliver_by), self._clock.now()
        # As Unix times, as in the ledger: equal times may differ as datetimes.
        if until.timestamp() <= max(order.deliver_by.timestamp(), now.timestamp()):
            return None
        return order.until(until)

    def _endpoint(self, merchant: Merchant) -> str:
        return endpoint(merchant, self._adapters.get(merchant.adapter))

    def _left(self, order: Order) -> float:
        """Seconds until ``deliver_by``."""
        return (order.deliver_by - self._clock.now()).total_seconds()

    def _merchant(self, merchant_id: str, *, late: bool) -> tuple[Merchant | None, Reason | None]:
        """The merchant, and why the configuration prevents any delivery."""
        try:
            merchant = self._directory.get(merchant_id)
        except UnknownMerchant as error:
            return None, Reason.of("unknown_merchant", error)
        except (SQLAlchemyError, NotLoaded) as error:
            if not late:
                raise
            return None, Reason.of("database", error)
        known = merchant.adapter in self._adapters
        return merchant, None if known else Reason.of("unknown_adapter", merchant.adapter)


def _without_claim(found: Ended | LeasedElsewhere | Suspected) -> Outcome:
    """The outcome of an order that could not be claimed: the earlier end, or a retry."""
    return found.outcome if isinstance(found, Ended) else unclaimed(found)
