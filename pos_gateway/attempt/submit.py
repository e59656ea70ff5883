"""Submits one order to the merchant's POS, never twice.

The ledger records each changing request before the first byte, for the next attempt to know.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from math import inf

from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.adapters.adapted import summary
from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.protocol import Adapter
from pos_gateway.attempt import decision
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.call import Caller
from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.doubt import (
    MOVED,
    crashed,
    has_moved,
    leased_elsewhere,
    poisoned,
    unclaimed,
    why_late,
)
from pos_gateway.attempt.poison import POISONOUS
from pos_gateway.attempt.steps import Walk
from pos_gateway.domain.errors import NotLoaded, UnknownMerchant
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.domain.step_progress import StepProgress
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import (
    Claim,
    ClaimResult,
    Ended,
    Key,
    LeasedElsewhere,
    Suspected,
)
from pos_gateway.merchants.directory import Directory
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock, from_unix
from pos_gateway.runtime.vault import CannotOpen
from pos_gateway.transport.exchange import Send


@dataclass(kw_only=True, eq=False)
class Submit:
    """Submits orders to their merchants' POSes. Safe for any number of green threads at once."""

    directory: Directory
    adapters: dict[str, Adapter]
    caller: Caller
    ledger: Ledger
    clock: Clock = SYSTEM_CLOCK

    def claim(self, attempt: Attempt[Order]) -> Outcome | None:
        """Claim the order; the outcome, unless the POS is to be called.

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
        found = self._claim(attempt, send=not late and problem is None)
        if not isinstance(found, Claim):
            return _without_claim(found)
        return self._unsent(attempt, late, problem)

    def _unsent(
        self, attempt: Attempt[Order], late: bool, problem: Reason | None
    ) -> Outcome | None:
        """The outcome of a claimed order without a call on the POS; None: the POS is called."""
        order, merchant, claim = attempt.content, attempt.merchant, attempt.claims[0]
        history, may_be_there = claim.history, claim.history.may_be_there
        if history.deliver_by is not None:
            attempt.newer = self._newer(order, from_unix(history.deliver_by))
        if attempt.newer is not None:
            return leased_elsewhere()
        late = late or self._left(order) <= 0  # the database may have been away for seconds
        if late and (attempt.expired or not may_be_there):
            return self._too_late(claim, self._left(order))
        # After order.in_doubt an operator may have taken over: the order is only looked up.
        attempt.late = late or (may_be_there and history.last_event == Kind.IN_DOUBT)
        if history.possible_deaths >= POISONOUS:
            return poisoned(history)
        if merchant is None or problem is not None:
            return Outcome(Kind.FAILED, problem)
        adapter = self.adapters[merchant.adapter]
        if may_be_there and has_moved(history, merchant, adapter):
            return Outcome(Kind.IN_DOUBT, MOVED, for_operator=True)
        return None

    def crashed(self, attempt: Attempt[Order], error: Exception) -> Outcome:
        """The outcome of an attempt after an exception.

        An order failing without a claim is claimed: the state in the ledger counts.

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
        return decision.on_submission(attempt, self.clock.now())

    def repeats(self, attempt: Attempt[Order]) -> bool:
        """Whether the event of an order that has ended before is published again."""
        return attempt.ended is not None

    def _claim(
        self, attempt: Attempt[Order], *, send: bool, unless_suspect: bool = True
    ) -> ClaimResult:
        order, merchant, where, adapted = attempt.content, attempt.merchant, None, None
        if merchant is not None:
            adapter = self.adapters.get(merchant.adapter)
            where = endpoint(merchant, adapter)
            find = getattr(adapter, "adapted", None)
            if send and find is not None:
                # Before the first byte: the order may be accepted by a callback.
                adapted = summary(find, order, merchant)
        return self.caller.claim(
            attempt,
            Key(order.merchant_id, order.order_id),
            send=send,
            deliver_by=order.deliver_by.timestamp(),
            order=order.source,
            endpoint=where,
            adapted=adapted,
            unless_suspect=unless_suspect,
        )

    def call(self, attempt: Attempt[Order]) -> Outcome:
        """Have the POS make a claimed order, or only look up a late one."""
        merchant = attempt.merchant
        assert merchant is not None  # noqa: S101  (``claim`` found the merchant)
        now, deliver_by = self.clock.now(), attempt.content.deliver_by
        left = inf if attempt.late else deliver_by.timestamp() - now.timestamp()
        because = None
        if attempt.claims[0].history.facts is not None:
            try:
                because = self._progress(attempt)
            except CannotOpen as error:  # a worker elsewhere may have the key
                return Outcome(Kind.RETRY, Reason.of("secret_key", f"the order is {error}"))
        attempt.called = True
        converse = partial(self._take_steps, attempt, merchant, because)
        outcome = self.caller.call(merchant, attempt, converse, left=left)
        # An order in doubt within a step without a look-up is for an operator.
        is_blind = attempt.step is not None and attempt.step.look_up is None
        in_doubt = outcome.kind is Kind.IN_DOUBT
        return replace(outcome, for_operator=True) if is_blind and in_doubt else outcome

    def _progress(self, attempt: Attempt[Order]) -> Outcome | None:
        """Read the facts of the steps that are done; the order's outcome, if they are being undone."""
        key, history = attempt.claims[0].key, attempt.claims[0].history
        progress = StepProgress.parse(self.ledger.progress(key, history), history.reopened)
        attempt.facts = dict(progress.facts)
        return progress.because

    def _take_steps(
        self, attempt: Attempt[Order], merchant: Merchant, because: Outcome | None, send: Send
    ) -> Outcome:
        history = attempt.claims[0].history
        order = attempt.content.in_ledger(
            history.known_since or self.clock.now().timestamp(),
            history.deliver_by,
            known_as=history.external_id,
        )
        adapter = self.adapters[merchant.adapter]
        walk = Walk(attempt, order, merchant, adapter, self.caller, send)
        return walk.forward(because, partial(self._expired, attempt))

    def _expired(self, attempt: Attempt[Order]) -> Outcome | None:
        """The outcome of an order without time left, or left to an operator; else None."""
        left = self._left(attempt.content)
        if left > 0 and not attempt.late:
            return None
        last = self.ledger.last_reason(attempt.claims[0])
        if left > 0:
            return Outcome(Kind.IN_DOUBT, last, for_operator=True)
        return Outcome(Kind.EXPIRED, _why_late(left, last))

    def _too_late(self, claim: Claim, left: float) -> Outcome:
        """The outcome of an expired order: with the last attempt's reason, the cause of the wait."""
        last, history = self.ledger.last_reason(claim), claim.history
        if not history.may_be_there:
            return Outcome(Kind.EXPIRED, _why_late(left, last))
        if history.is_between_steps:
            return Outcome(Kind.RETRY, last or Reason.of("expired", "it is undone next"))
        why = f"{why_late(left, last)}; the POS may have the order"
        return Outcome(Kind.IN_DOUBT, Reason.of("expired_in_doubt", why))

    def _newer(self, order: Order, until: datetime) -> Order | None:
        """The order with the ledger's deadline, if an operator has set a later deadline since the message.

        However much time the message's own deadline leaves: a failure would expire the order by the old deadline.
        """
        now = self.clock.now()
        # As Unix times, as in the ledger: equal times may differ as datetimes.
        if until.timestamp() <= max(order.deliver_by.timestamp(), now.timestamp()):
            return None
        return order.until(until)

    def _left(self, order: Order) -> float:
        """Seconds until ``deliver_by``."""
        return (order.deliver_by - self.clock.now()).total_seconds()

    def _merchant(self, merchant_id: str, *, late: bool) -> tuple[Merchant | None, Reason | None]:
        """The merchant, and why the configuration prevents any delivery."""
        try:
            merchant = self.directory.get(merchant_id)
        except UnknownMerchant as error:
            return None, Reason.of("unknown_merchant", error)
        except (SQLAlchemyError, NotLoaded) as error:
            if not late:
                raise
            return None, Reason.of("database", error)
        known = merchant.adapter in self.adapters
        return merchant, None if known else Reason.of("unknown_adapter", merchant.adapter)


def _why_late(left: float, last: Reason | None) -> Reason:
    """The reason of an order that expires, with the last attempt's code."""
    return Reason.of("expired" if last is None else last.code, why_late(left, last))


def _without_claim(found: Ended | LeasedElsewhere | Suspected) -> Outcome:
    """The outcome of an order that could not be claimed: the earlier end, or a retry."""
    return found.outcome if isinstance(found, Ended) else unclaimed(found)
