"""Delivers one order, from start to finish. Read this file first.

An order arrives on the queue (``worker/``), admission lets it start (``admission/``), a green
thread runs ``Delivery.submit``, and ``attempt/decision.py`` decides what follows from the
Outcome: an event, a retry, or a dead letter. The ledger (``ledger/``) records each step at the POS
before it is taken, so that the next attempt knows of it, whatever happens here.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import inf

from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.protocol import Adapter, Guarantee
from pos_gateway.adapters.replies import after_refusal
from pos_gateway.attempt.call import LEASED_ELSEWHERE, Caller, UnderClaim
from pos_gateway.attempt.poison import POISONOUS, PoisonIsolation
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
from pos_gateway.transport.deadline import CancelToken
from pos_gateway.transport.exchange import Send

#: Why an order in doubt is for an operator, and its cancel request waits for one.
MOVED = Reason("moved", "the merchant's adapter, base_url or pos was changed since it was sent")
#: Seconds before its ``deliver_by`` by which an order expires early. It waits by another clock than
#: the time of day, which may be slewed meanwhile.
EARLY = 1.0
#: Seconds for which a POS is relied on to keep a key. Square's retention is not documented, most keep
#: a key for 24 h, and the shortest documented is 15 min (docs.nuvei.com, "Idempotency support").
KEY_KEPT_FOR = 600.0
#: Seconds until the retry of an order that is leased elsewhere, or waits for its turn alone.
LOOK_AGAIN_AFTER = 2.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt's outcome, and the record of the attempt under a claim.

    Without a claim nothing was sent. ``ended`` is then the order's earlier terminal state, if any.
    """

    outcome: Outcome
    under: UnderClaim | None = None
    ended: Ended | None = None
    #: Whether the POS was called.
    called: bool = False
    #: The order with the deadline that an operator has extended: nothing was done for this one.
    newer: Order | None = None


class Delivery:
    """Delivers orders to their merchants. Safe for any number of green threads at once."""

    def __init__(
        self,
        *,
        directory: Directory,
        adapters: dict[str, Adapter],
        caller: Caller,
        ledger: Ledger,
        isolation: PoisonIsolation | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._directory = directory
        self._adapters = adapters
        self._caller = caller
        self._ledger = ledger
        self._isolation = isolation or PoisonIsolation()
        self._clock = clock

    def submit(
        self, order: Order, cancel_token: CancelToken | None = None, *, expired: bool = False
    ) -> Attempt:
        """Attempt once to deliver the order to its merchant's POS; every failure is an Outcome.

        Args:
            order: what to deliver.
            cancel_token: the attempt's part of the merchant's time limit; can end it early.
            expired: it expired while waiting, or cannot start in time, and needs no slot.

        Raises:
            SQLAlchemyError, LedgerUnavailable: the database is unavailable; nothing was claimed.
            Unfinished: a bug of ours, or the database is unavailable, after the claim.
        """
        late = expired or self._left(order) <= 0
        # An expired order needs none: it ends also while its record or catalog cannot be read.
        merchant, problem = None, None
        if not expired:
            merchant, problem = self._merchant(order.merchant_id, late=late)
        if merchant is not None and merchant.paused and not late:
            return Attempt(Outcome(Kind.RETRY, Reason.of("paused", "the merchant is paused")))
        send = not late and problem is None
        with self._isolation.turn() as turn:
            claim = turn.claim(partial(self._claim, order, merchant, send))
            if not isinstance(claim, Claim):
                return _without_claim(claim)
            with UnderClaim(self._ledger, claim) as under:
                if (newer := self._newer(claim, order)) is not None:
                    return Attempt(leased_elsewhere(), under, newer=newer)
                late = late or self._left(order) <= 0  # the database may have been away for seconds
                if late and (expired or not claim.history.may_be_there):
                    return Attempt(self._too_late(claim, self._left(order)), under)
                # After order.in_doubt an operator may have taken over: it is only looked up.
                late = late or (
                    claim.history.may_be_there and claim.history.last_event == Kind.IN_DOUBT
                )
                return self._attempt(order, merchant, problem, under, cancel_token, late=late)

    def failed(self, order: Order, outcome: Outcome) -> Attempt:
        """Claim an order whose attempt failed without a claim: the ledger's state of it counts.

        Raises: as ``submit``.
        """
        claim = self._claim(order, None, send=False, unless_suspect=False)
        if not isinstance(claim, Claim):
            return _without_claim(claim)
        return Attempt(outcome, UnderClaim(self._ledger, claim))

    def _claim(
        self, order: Order, merchant: Merchant | None, send: bool, unless_suspect: bool
    ) -> ClaimResult:
        return self._ledger.claim(
            Key(order.merchant_id, order.order_id),
            send=send,
            deliver_by=order.deliver_by.timestamp(),
            order=order.source,
            endpoint=None if merchant is None else self._endpoint(merchant),
            unless_suspect=unless_suspect,
        )

    def _attempt(
        self,
        order: Order,
        merchant: Merchant | None,
        problem: Reason | None,
        under: UnderClaim,
        cancel_token: CancelToken | None,
        *,
        late: bool,
    ) -> Attempt:
        """Attempt a claimed order; one that is late is only looked up."""
        history = under.claim.history
        if history.possible_deaths >= POISONOUS:
            return Attempt(_poison(history), under)
        if merchant is None or problem is not None:
            return Attempt(Outcome(Kind.FAILED, problem), under)
        adapter = self._adapters[merchant.adapter]
        if history.may_be_there and has_moved(history, merchant, adapter):
            return Attempt(Outcome(Kind.IN_DOUBT, MOVED, for_operator=True), under)
        converse = partial(self._create, order, merchant, under, late=late)
        left = inf if late else order.deliver_by.timestamp() - self._clock.now().timestamp()
        token = cancel_token or CancelToken()
        outcome = self._caller.call(merchant, under, converse, cancel_token=token, left=left)
        return Attempt(self._for_whom(outcome, merchant), under, called=True)

    def _create(
        self, order: Order, merchant: Merchant, under: UnderClaim, send: Send, *, late: bool
    ) -> Outcome:
        """Send the order, never twice: one in doubt is looked up, sent with its key, or left."""
        adapter, history = self._adapters[merchant.adapter], under.claim.history
        order = order.in_ledger(
            history.known_since or self._clock.now().timestamp(), history.deliver_by
        )
        if history.in_doubt and adapter.guarantee is Guarantee.BLIND:
            return Outcome(Kind.IN_DOUBT, Reason.of("blind", "this POS cannot be asked"))
        is_queryable = adapter.guarantee is Guarantee.QUERYABLE
        # While a cancel request is open it is not sent, and a key learns nothing.
        is_asked = is_queryable or history.cancelling or self._may_forget(history)
        ask_first = history.in_doubt and is_asked
        if history.pending or ask_first or late:
            known = self._ask(order, merchant, history, send, late=late)
            if known is not None:
                return known
        if history.cancelling:  # each failing send would renew the doubt
            return Outcome(Kind.RETRY, Reason.of("cancelling", "a cancel request for it is open"))
        if not under.claim.sending and not under.record(self._endpoint(merchant)):
            return leased_elsewhere()
        failpoints.reach("sending.committed")
        outcome = adapter.submit(order, merchant, send)
        is_refused = outcome.kind is Kind.REJECTED and not outcome.not_found
        if is_refused and history.in_doubt and not ask_first:
            # An earlier attempt may have created it: a POS may refuse before it checks the key.
            known = after_refusal(lambda: adapter.look_up(order, merchant, send))
            outcome = known or replace(outcome, not_found=True)
        limit = self._caller.time_limit(merchant)
        if outcome.not_found and unsettled_for(history, limit, adapter) > 0:
            # It may still create the order of an earlier attempt.
            why = "the POS refuses it, does not know it, and may be about to make it"
            reason, wait = Reason.of("unsettled", why), _longest_reply(adapter, limit)
            return Outcome(Kind.IN_DOUBT, reason, look_again=wait, contact=CallResult.ANSWERED)
        return outcome

    def _ask(
        self, order: Order, merchant: Merchant, history: AttemptHistory, send: Send, *, late: bool
    ) -> Outcome | None:
        """Look up an order that the POS may have; None: it has not, and the order may be sent."""
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
        """The outcome of an expired order: with its last attempt's reason, for which it has waited."""
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
        the future has another clock's time.
        """
        known_for = inf if history.known_for is None else history.known_for
        return known_for < 0 or max(known_for, history.settled) > KEY_KEPT_FOR

    def _newer(self, claim: Claim, order: Order) -> Order | None:
        """The order with a deadline that an operator extended after its message; else None.

        However much time the message's own leaves: it would expire the order on a failure.
        """
        if claim.history.deliver_by is None:
            return None
        until, now = from_unix(claim.history.deliver_by), self._clock.now()
        # As Unix times, as in the ledger: equal ones may differ as datetimes.
        if until.timestamp() <= max(order.deliver_by.timestamp(), now.timestamp()):
            return None
        return order.until(until)

    def _endpoint(self, merchant: Merchant) -> str:
        return endpoint(merchant, self._adapters.get(merchant.adapter))

    def _left(self, order: Order) -> float:
        """Seconds until its ``deliver_by``."""
        return (order.deliver_by - self._clock.now()).total_seconds()

    def _for_whom(self, outcome: Outcome, merchant: Merchant) -> Outcome:
        """An order in doubt at a POS without look-ups is for an operator."""
        is_blind = self._adapters[merchant.adapter].guarantee is Guarantee.BLIND
        in_doubt = outcome.kind is Kind.IN_DOUBT
        return replace(outcome, for_operator=True) if is_blind and in_doubt else outcome

    def _merchant(self, merchant_id: str, *, late: bool) -> tuple[Merchant | None, Reason | None]:
        """The merchant, and why its configuration prevents any delivery."""
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


def unsettled_for(history: AttemptHistory, time_limit: float, adapter: Adapter) -> float:
    """For how many seconds the POS could still create the order of an earlier attempt.

    These are seconds after the claim. A look-up before they are over may miss an order that is
    about to be created. An order that was pending has all of them from then on.
    """
    longest = _longest_reply(adapter, time_limit)
    if history.in_doubt:
        return max(0.0, longest - history.settled)
    return longest if history.pending else 0.0


def _longest_reply(adapter: Adapter, time_limit: float) -> float:
    return adapter.limits.longest_reply or time_limit


def has_moved(history: AttemptHistory, merchant: Merchant, adapter: Adapter) -> bool:
    """Whether the order may be at another POS than the one that the merchant's record names now.

    That one does not know the order: its look-up would be believed, and the key is new to it.
    """
    # The fingerprint with all of ``pos`` is in rows of the release before this one.
    return history.endpoint not in (None, endpoint(merchant, adapter), merchant.endpoint)


def leased_elsewhere() -> Outcome:
    """The outcome of an order that is leased elsewhere: nothing was done."""
    return Outcome(Kind.RETRY, LEASED_ELSEWHERE, look_again=LOOK_AGAIN_AFTER)


def _without_claim(found: Ended | LeasedElsewhere | Suspected) -> Attempt:
    """The attempt of an order that could not be claimed: it has ended, or is tried again."""
    if isinstance(found, Ended):
        return Attempt(found.outcome, ended=found)
    return Attempt(unclaimed(found))


def unclaimed(found: LeasedElsewhere | Suspected) -> Outcome:
    """The outcome of an attempt that could not claim a row: nothing was done."""
    return suspect() if isinstance(found, Suspected) else leased_elsewhere()


def suspect() -> Outcome:
    """The outcome of a suspect while another suspect runs alone: nothing was done."""
    reason = Reason.of("suspect", "workers died while it was in flight; it starts alone")
    return Outcome(Kind.RETRY, reason, look_again=LOOK_AGAIN_AFTER)


def poison(history: AttemptHistory) -> Reason | None:
    """Why a poison order is not sent any more; None: the workers may only be paused, not dead."""
    if history.deaths < POISONOUS:
        return None
    return Reason.of("poison", f"{history.deaths} workers died while it was in flight")


def _poison(history: AttemptHistory) -> Outcome:
    """The outcome of a poison order."""
    reason = poison(history)
    if reason is None:
        return suspect()
    if history.may_be_there:  # the look-up may be what they died of
        return Outcome(Kind.IN_DOUBT, reason, for_operator=True)
    return Outcome(Kind.FAILED, reason)


def why_late(left: float, last: Reason | None) -> str:
    """Why there is no further attempt, ``left`` seconds before ``deliver_by``, and why none did it before.

    Args:
        left: the seconds; negative after it.
        last: the last attempt's reason.
    """
    is_early = left > EARLY
    why = (
        "the merchant's POS is not called before deliver_by"
        if is_early
        else "deliver_by has passed"
    )
    return why if last is None else f"{why}; its last attempt: {last.message or last.code}"
