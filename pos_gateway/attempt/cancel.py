"""Cancels an order, whenever the cancel request arrives: before the order, in flight, or after.

An order cancelled before it was sent is never sent: the order's message finds a row in state
CANCELLED in the ledger. Afterwards the POS is asked to cancel the order, and the reply is the outcome. A
request while the order is in flight is retried until the attempt is over.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.steps import NOT_REFUNDED, steps_of
from pos_gateway.attempt import decision
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.call import Caller
from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.doubt import (
    BLIND,
    CANCEL_IN_DOUBT,
    MOVED,
    NEEDS_POS,
    crashed,
    has_moved,
    leased_elsewhere,
    poison,
    suspect,
    unclaimed,
    unsettled_for,
    why_late,
)
from pos_gateway.attempt.poison import POISONOUS
from pos_gateway.attempt.steps import Walk, never_there, place_of
from pos_gateway.domain.errors import InvalidOrder, UnknownMerchant
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import CallResult, Kind, Outcome, Reason
from pos_gateway.domain.step_progress import StepProgress
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import (
    NOT_UNDONE,
    RESOLVE_FOR,
    Action,
    AttemptHistory,
    Claim,
    ClaimResult,
    Ended,
    Key,
    LeasedElsewhere,
    State,
    Suspected,
    is_given_up,
)
from pos_gateway.merchants.directory import Directory
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock, from_unix
from pos_gateway.runtime.vault import CannotOpen
from pos_gateway.transport.exchange import Send


@dataclass(kw_only=True, eq=False)
class Cancel:
    """Cancels orders. Safe for any number of green threads at once."""

    directory: Directory
    adapters: dict[str, Adapter]
    caller: Caller
    ledger: Ledger
    clock: Clock = SYSTEM_CLOCK

    def claim(self, attempt: Attempt[CancelRequest]) -> Outcome | None:
        """Claim the request, then its order; the outcome, unless the POS is to be called.

        Raises:
            SQLAlchemyError, LedgerUnavailable: the database is unavailable.
        """
        request, order = attempt.content, _order(attempt)
        found = self._claim(attempt, replace(order, action=Action.CANCEL))
        if isinstance(found, Ended):
            return found.outcome
        if not isinstance(found, Claim):
            return unclaimed(found)
        late = attempt.expired or self._late_by(request) >= 0
        attempt.newer = self._newer(found, request) if late else None
        if attempt.newer is not None:
            return leased_elsewhere()
        found = self._claim(attempt, order)
        if isinstance(found, LeasedElsewhere | Suspected):
            # Even if expired: the leasing worker may be dead, and this message the last.
            attempt.waits = True
            return unclaimed(found)
        attempt.late = late or self._late_by(request) >= 0  # a claim may take seconds
        return self._uncalled(attempt, found)

    def _claim(self, attempt: Attempt[CancelRequest], key: Key) -> ClaimResult:
        until = attempt.content.deliver_by.timestamp() if key.action is Action.CANCEL else None
        return self.caller.claim(attempt, key, send=False, deliver_by=until, unless_suspect=True)

    def _uncalled(
        self, attempt: Attempt[CancelRequest], submission: Claim | Ended
    ) -> Outcome | None:
        """The outcome of a claimed request without a call on the POS; None: the POS is called."""
        if isinstance(submission, Claim):
            if not submission.history.may_be_there:
                return Outcome(Kind.CANCELLED)
            if self._is_left_undone(submission.history) and not attempt.claims[0].history.in_doubt:
                return Outcome(Kind.FAILED, _NOT_UNDONE)
        elif submission.state is State.CANCELLED:
            return Outcome(Kind.CANCELLED)
        elif self.ledger.is_cancelled_by_pos(_order(attempt)):  # published; no event follows
            attempt.ended = replace(submission, state=State.CANCELLED)
            return Outcome(Kind.CANCELLED)
        elif submission.state is not State.ACCEPTED:
            reason = Reason.of("not_there", f"the order ended as {submission.state}")
            return Outcome(Kind.REJECTED, reason)
        over = self._expired(attempt) if attempt.late else None
        return over or (None if attempt.may_call else NEEDS_POS)

    def _is_left_undone(self, history: AttemptHistory) -> bool:
        """Whether the POS did not undo the order, and no worker tries again."""
        if history.step is None or not history.step.is_undo or history.last_event != Kind.IN_DOUBT:
            return False
        code = None if history.reason is None else history.reason.code
        return is_given_up(code, history.deliver_by, self.clock.now().timestamp())

    def call(self, attempt: Attempt[CancelRequest]) -> Outcome:
        """Cancel an order at a POS that may have the order; late, only look the order up."""
        outcome, order = self._ask(attempt), attempt.claims[1:]
        refused = outcome.kind in (Kind.REJECTED, Kind.FAILED) and not outcome.for_operator
        # The POS may cancel an order after a decision. An order with a first step done waits for the request's end.
        if refused and order and order[0].history.step is None:
            return replace(outcome, kind=Kind.RETRY)
        return outcome

    def crashed(self, attempt: Attempt[CancelRequest], error: Exception) -> Outcome:
        """The outcome of an attempt after an exception.

        After a bug of ours the message is for an operator, and an event records an accepted order as not
        cancelled. A cancellation in doubt does not end: the request is retried.

        Raises:
            LedgerUnavailable: the database is unavailable.
            Exception: the same; nothing was claimed, and the order's state is not known.
        """
        outcome = crashed(attempt, error)
        if not attempt.claims:
            attempt.ended = None  # the event could not be repeated: the request stays open
            if outcome.kind is Kind.FAILED:
                raise error
            return outcome
        if outcome.kind is not Kind.FAILED or attempt.claims[0].history.in_doubt:
            return outcome
        key = _order(attempt)
        attempt.ended = next((end for known, end in self.ledger.ends(key) if known == key), None)
        return replace(outcome, for_operator=True)

    def decide(self, attempt: Attempt[CancelRequest]) -> Decision:
        """Decide about the outcome."""
        return decision.on_cancellation(attempt, self.clock.now())

    def repeats(self, attempt: Attempt[CancelRequest]) -> bool:
        """Whether the order has ended before, not accepted: the event is published again."""
        return attempt.ended is not None and attempt.ended.state is not State.ACCEPTED

    def _newer(self, claim: Claim, request: CancelRequest) -> CancelRequest | None:
        """The request with a later deadline, if the ledger has an unexpired one."""
        until, now = from_unix(claim.history.deliver_by or 0.0), self.clock.now()
        if until.timestamp() <= max(request.deliver_by.timestamp(), now.timestamp()):
            return None
        return request.model_copy(update={"deliver_by": until})

    def _late_by(self, request: CancelRequest) -> float:
        """Seconds since ``deliver_by``."""
        return self.clock.now().timestamp() - request.deliver_by.timestamp()

    def _expired(self, attempt: Attempt[CancelRequest]) -> Outcome | None:
        """The outcome of an expired request; None: the POS is asked about the cancellation first."""
        claim, late_by = attempt.claims[0], self._late_by(attempt.content)
        last = self.ledger.last_reason(claim)
        if not claim.history.in_doubt:
            return _too_late(why_late(-late_by, last))
        if late_by >= RESOLVE_FOR:
            if last is not None and last.code == NOT_REFUNDED:  # half done
                return Outcome(Kind.CANCELLED, last)
            return Outcome(Kind.EXPIRED, CANCEL_IN_DOUBT)
        if attempt.expired:  # without the slot for a look-up
            last = last or Reason.of("expired_in_doubt", "it is looked up next")
            return Outcome(Kind.IN_DOUBT, last)
        return None

    def _ask(self, attempt: Attempt[CancelRequest]) -> Outcome:
        history = attempt.claims[0].history
        if history.possible_deaths >= POISONOUS:
            reason = poison(history)
            return Outcome(Kind.FAILED, reason, for_operator=True) if reason else suspect()
        submission = attempt.claims[1] if attempt.claims[1:] else attempt.ended
        assert submission is not None  # noqa: S101  (``claim`` found the row)
        subject = self._subject(_order(attempt), submission)
        if isinstance(subject, Outcome):
            return subject
        try:
            known = submission.history
            text = self.ledger.progress(_order(attempt), known)
            attempt.facts = dict(StepProgress.parse(text, known.reopened).facts)
        except CannotOpen as error:  # a worker elsewhere may have the key
            return Outcome(Kind.RETRY, Reason.of("secret_key", f"the order is {error}"))
        converse = partial(self._converse, attempt, subject, submission)
        outcome = self.caller.call(subject.merchant, attempt, converse)
        return self._read(outcome, attempt.claims[0], submission, subject)

    def _read(
        self, outcome: Outcome, claim: Claim, submission: Claim | Ended, subject: "_Subject"
    ) -> Outcome:
        """The request's outcome, by the POS's."""
        is_open = isinstance(submission, Claim)
        if outcome.kind in (Kind.IN_DOUBT, Kind.RETRY) and not claim.sending:
            # The order was only looked up. An accepted order that an operator has to judge stands.
            kind = Kind.FAILED if outcome.for_operator and not is_open else Kind.RETRY
            return replace(outcome, kind=kind, for_operator=outcome.for_operator and is_open)
        if not never_there(outcome) or not (is_open or claim.history.in_doubt):
            return outcome
        wait = self._unsettled_for(submission.history, subject) if is_open else 0.0
        if wait > 0:
            return replace(outcome, kind=Kind.RETRY, look_again=wait, not_found=True)
        return Outcome(Kind.CANCELLED, contact=CallResult.ANSWERED)

    def _subject(self, key: Key, submission: Claim | Ended) -> "_Subject | Outcome":
        """The order to cancel, with merchant and adapter; or the request's outcome if either is unknown."""
        try:
            merchant = self.directory.get(key.merchant_id)
        except UnknownMerchant as error:
            return Outcome(Kind.FAILED, Reason.of("unknown_merchant", error))
        adapter = self.adapters.get(merchant.adapter)
        if adapter is None:
            return Outcome(Kind.FAILED, Reason.of("unknown_adapter", merchant.adapter))
        history, is_open = submission.history, isinstance(submission, Claim)
        moved = has_moved(history, merchant, adapter)
        steps = steps_of(adapter)
        place = place_of(history.step, steps) or 0
        is_blind = is_open and history.in_doubt and steps[place].look_up is None
        if moved or is_blind:  # an operator has to say first whether the POS has the order
            return Outcome(Kind.RETRY if is_open else Kind.FAILED, MOVED if moved else BLIND)
        kept = self._kept(key)
        if isinstance(kept, Outcome):
            return kept
        known_as = submission.external_id if isinstance(submission, Ended) else None
        order = kept.in_ledger(
            history.known_since, history.deliver_by, known_as, history.external_id
        )
        return _Subject(order, merchant, adapter)

    def _converse(
        self,
        attempt: Attempt[CancelRequest],
        subject: "_Subject",
        submission: Claim | Ended,
        send: Send,
    ) -> Outcome:
        """Have the POS cancel the order; look the order up if a doubt is left."""
        walk = Walk(attempt, *subject, self.caller, send)
        return walk.cancel(submission, _too_late("the POS did not answer in time"))

    def _unsettled_for(self, history: AttemptHistory, subject: "_Subject") -> float:
        """Seconds for which an earlier request may be in progress still."""
        limit = self.caller.time_limit(subject.merchant)
        return unsettled_for(history, limit, subject.adapter)

    def _kept(self, key: Key) -> Order | Outcome:
        """The stored order; or, without the order, the request's outcome."""
        try:
            order_json = self.ledger.order(key)
            if order_json is not None:
                return Order.parse_json(order_json)
        except CannotOpen as error:  # a worker elsewhere may have the key
            return Outcome(Kind.RETRY, Reason.of("secret_key", f"the order is {error}"))
        except InvalidOrder:
            why = "the order that was kept cannot be read"
            return Outcome(Kind.FAILED, Reason.of("invalid_order", why))
        why = "the order is not kept here any more"
        return Outcome(Kind.FAILED, Reason.of("unknown_order", why))


#: Why an order left to an operator during the undo is not cancelled.
_NOT_UNDONE = Reason(
    NOT_UNDONE, "its POS did not undo the order, and an operator was asked to decide"
)


def _order(attempt: Attempt[CancelRequest]) -> Key:
    return Key(attempt.content.merchant_id, attempt.content.order_id)


class _Subject(NamedTuple):
    """The order to cancel, at its merchant's POS."""

    order: Order
    merchant: Merchant
    adapter: Adapter


def _too_late(why: str) -> Outcome:
    return Outcome(Kind.EXPIRED, Reason.of("cancel_expired", why))
