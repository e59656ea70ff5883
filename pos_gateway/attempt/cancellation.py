"""Cancels an order, whenever the cancel request arrives: before the order, in flight, or after.

An order cancelled before it was sent is never sent: its row in the ledger is CANCELLED, which its
message finds later. After that the POS is asked to cancel it, and its reply is the outcome. A
request that arrives while the order is in flight is retried until that is over.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from pos_gateway.adapters.protocol import Adapter, Guarantee
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.attempt.call import Caller, UnderClaim
from pos_gateway.attempt.delivery import (
    MOVED,
    has_moved,
    leased_elsewhere,
    poison,
    suspect,
    unclaimed,
    unsettled_for,
    why_late,
)
from pos_gateway.attempt.poison import POISONOUS, PoisonIsolation, Turn
from pos_gateway.domain.errors import InvalidOrder, UnknownMerchant
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import CallResult, Kind, Outcome, Reason
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import (
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
)
from pos_gateway.merchants.directory import Directory
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock, from_unix
from pos_gateway.runtime.vault import CannotOpen
from pos_gateway.transport.deadline import CancelToken
from pos_gateway.transport.errors import NotSent
from pos_gateway.transport.exchange import Reply, Request, Send

#: Why a cancel request waits for an operator.
BLIND = Reason("blind", "whether the POS has it, an operator has to say first")
#: Why a request ends without the POS's word on it.
CANCEL_IN_DOUBT = Reason(
    "cancel_in_doubt",
    "the POS was asked to cancel it, and has not said whether it did: ask the merchant",
)
#: The outcome of an attempt that may not call the POS, and has to: nothing was done.
NEEDS_POS = Outcome(Kind.RETRY)


@dataclass(frozen=True, slots=True)
class CancelAttempt:
    """The result of an attempt to cancel."""

    outcome: Outcome
    #: On the cancellation; None: it was terminal before, or is leased elsewhere.
    under: UnderClaim | None = None
    #: On the order itself, if that is not terminal: it is committed with the rest.
    submission: UnderClaim | None = None
    #: The order's terminal state, if it had one before.
    ended: Ended | None = None
    #: This cancellation was terminal before.
    over: bool = False
    #: The request with a later one's deadline: nothing was done for this one.
    newer: CancelRequest | None = None
    #: Another attempt has the order, or it waits for its turn: nothing was done.
    waits: bool = False

    @property
    def needs_pos(self) -> bool:
        """Whether the POS may have the order, and was not to be called."""
        return self.outcome is NEEDS_POS

    @property
    def leaves_doubt(self) -> bool:
        """Whether the POS never said whether it has cancelled the order."""
        return self.outcome.reason == CANCEL_IN_DOUBT

    @property
    def republishes_event(self) -> bool:
        """Whether only the order's terminal event can be published again."""
        return self.over or (self.ended is not None and self.ended.state is not State.ACCEPTED)


class Cancellation:
    """Cancels orders. Safe for any number of green threads at once."""

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

    def attempt(
        self,
        request: CancelRequest,
        cancel_token: CancelToken | None = None,
        *,
        expired: bool = False,
        may_call: bool = True,
    ) -> CancelAttempt:
        """Attempt once to cancel; every failure is an Outcome.

        Args:
            request: the order, and the request's deadline.
            cancel_token: the attempt's part of the merchant's time limit; can end it early.
            expired: it expired while waiting, and needs no slot.
            may_call: whether the POS may be called; else ``needs_pos`` says that it has to be.

        Raises:
            SQLAlchemyError, LedgerUnavailable: the database is unavailable; nothing was claimed.
            Unfinished: a bug of ours, or the database is unavailable, after a claim.
        """
        with self._isolation.turn() as turn:
            claim = turn.claim(partial(self._claim, request))
            if isinstance(claim, LeasedElsewhere | Suspected):
                return CancelAttempt(unclaimed(claim))
            if isinstance(claim, Ended):
                return CancelAttempt(claim.outcome, over=True)
            with UnderClaim(self._ledger, claim) as under:
                return self._attempt(
                    request, under, turn, cancel_token, expired=expired, may_call=may_call
                )

    def _claim(self, request: CancelRequest, unless_suspect: bool) -> ClaimResult:
        return self._ledger.claim(
            Key(request.merchant_id, request.order_id, Action.CANCEL),
            send=False,
            deliver_by=request.deliver_by.timestamp(),
            unless_suspect=unless_suspect,
        )

    def _attempt(
        self,
        request: CancelRequest,
        under: UnderClaim,
        turn: Turn,
        cancel_token: CancelToken | None,
        *,
        expired: bool,
        may_call: bool,
    ) -> CancelAttempt:
        """Attempt a claimed request."""
        claim, key = under.claim, Key(request.merchant_id, request.order_id)
        late = expired or self._late_by(request) >= 0
        newer = self._newer(claim, request) if late else None
        if newer is not None:
            return CancelAttempt(leased_elsewhere(), under, newer=newer)
        submission = turn.claim(
            lambda unless_suspect: self._ledger.claim(
                key, send=False, unless_suspect=unless_suspect
            )
        )
        if isinstance(submission, LeasedElsewhere | Suspected):
            # Even if expired: the leasing worker may be dead, and no other message left.
            return CancelAttempt(unclaimed(submission), under, waits=True)
        late = late or self._late_by(request) >= 0  # a claim may take seconds
        over = self._expired(request, claim, expired=expired) if late else None

        def ask() -> Outcome:
            if over is not None or not may_call:
                return over or NEEDS_POS
            return self._ask(key, under, submission, cancel_token, late=late)

        if isinstance(submission, Ended):
            outcome, ended = self._of_ended(key, submission, ask)
            return CancelAttempt(outcome, under, ended=ended)
        with UnderClaim(self._ledger, submission) as order_under:
            outcome = ask() if submission.history.may_be_there else Outcome(Kind.CANCELLED)
            refused = outcome.kind in (Kind.REJECTED, Kind.FAILED)
            if refused and not outcome.for_operator:  # it may cancel it once it has decided
                outcome = replace(outcome, kind=Kind.RETRY)
            return CancelAttempt(outcome, under, order_under)

    def _of_ended(
        self, key: Key, ended: Ended, ask: Callable[[], Outcome]
    ) -> tuple[Outcome, Ended]:
        """The outcome for an order that is terminal, and its state; the POS is asked if it took it."""
        if ended.state is State.CANCELLED:
            return Outcome(Kind.CANCELLED), ended
        if self._ledger.is_cancelled_by_pos(key):  # published; no event follows it
            return Outcome(Kind.CANCELLED), replace(ended, state=State.CANCELLED)
        if ended.state is State.ACCEPTED:
            return ask(), ended
        reason = Reason.of("not_there", f"the order ended as {ended.state}")
        return Outcome(Kind.REJECTED, reason), ended

    def crashed(self, request: CancelRequest, attempt: CancelAttempt) -> CancelAttempt:
        """The attempt, ended by a bug of ours: its message is for an operator.

        An event records that an accepted order was not cancelled. A cancellation in doubt is not
        ended: it is retried.

        Raises:
            LedgerUnavailable: the database is unavailable.
        """
        if attempt.under is None or attempt.under.claim.history.in_doubt:
            return attempt
        key = Key(request.merchant_id, request.order_id)
        ended = next((end for known, end in self._ledger.ends(key) if known == key), None)
        outcome = replace(attempt.outcome, for_operator=True)
        return replace(attempt, outcome=outcome, ended=ended)

    def _newer(self, claim: Claim, request: CancelRequest) -> CancelRequest | None:
        """The request with a later deadline, if the ledger has one that has not passed."""
        until, now = from_unix(claim.history.deliver_by or 0.0), self._clock.now()
        if until.timestamp() <= max(request.deliver_by.timestamp(), now.timestamp()):
            return None
        return request.model_copy(update={"deliver_by": until})

    def _late_by(self, request: CancelRequest) -> float:
        """Seconds since its ``deliver_by``."""
        return self._clock.now().timestamp() - request.deliver_by.timestamp()

    def _expired(self, request: CancelRequest, claim: Claim, *, expired: bool) -> Outcome | None:
        """The outcome of an expired request; None: first the POS is asked whether it cancelled."""
        if not claim.history.in_doubt:
            why = why_late(-self._late_by(request), self._ledger.last_reason(claim))
            return _too_late(why)
        if self._late_by(request) >= RESOLVE_FOR:
            return _unknown()
        if expired:  # without a slot, which a look-up needs
            return Outcome(Kind.IN_DOUBT, Reason.of("expired_in_doubt", "it is looked up next"))
        return None

    def _ask(
        self,
        key: Key,
        under: UnderClaim,
        submission: Claim | Ended,
        cancel_token: CancelToken | None,
        *,
        late: bool = False,
    ) -> Outcome:
        """Cancel an order that the POS has, or may have; late, only look it up."""
        history = under.claim.history
        if history.possible_deaths >= POISONOUS:
            reason = poison(history)
            return Outcome(Kind.FAILED, reason, for_operator=True) if reason else suspect()
        subject = self._subject(key, submission)
        if isinstance(subject, Outcome):
            return subject
        merchant = subject.merchant
        converse = partial(self._converse, under, subject, late)
        token = cancel_token or CancelToken()
        outcome = self._caller.call(merchant, under, converse, cancel_token=token)
        return self._read(outcome, under.claim, submission, subject)

    def _read(
        self, outcome: Outcome, claim: Claim, submission: Claim | Ended, subject: "_Subject"
    ) -> Outcome:
        """The request's outcome, by the POS's."""
        if outcome.kind is Kind.IN_DOUBT and not claim.sending:
            return replace(outcome, kind=Kind.RETRY)  # it was only looked up
        is_open = isinstance(submission, Claim)
        if not _never_there(outcome) or not (is_open or claim.history.in_doubt):
            return outcome
        wait = self._unsettled_for(submission.history, subject) if is_open else 0.0
        if wait > 0:
            return replace(outcome, kind=Kind.RETRY, look_again=wait, not_found=True)
        return Outcome(Kind.CANCELLED, contact=CallResult.ANSWERED)

    def _subject(self, key: Key, submission: Claim | Ended) -> "_Subject | Outcome":
        """What is to be cancelled and where; or, if that is not known, the request's outcome."""
        try:
            merchant = self._directory.get(key.merchant_id)
        except UnknownMerchant as error:
            return Outcome(Kind.FAILED, Reason.of("unknown_merchant", error))
        adapter = self._adapters.get(merchant.adapter)
        if adapter is None:
            return Outcome(Kind.FAILED, Reason.of("unknown_adapter", merchant.adapter))
        history, is_open = submission.history, isinstance(submission, Claim)
        moved = has_moved(history, merchant, adapter)
        is_blind = is_open and history.in_doubt and adapter.guarantee is Guarantee.BLIND
        if moved or is_blind:  # an operator has to say first whether the POS has it
            return Outcome(Kind.RETRY if is_open else Kind.FAILED, MOVED if moved else BLIND)
        kept = self._kept(key)
        if isinstance(kept, Outcome):
            return kept
        known_as = submission.external_id if isinstance(submission, Ended) else None
        order = kept.in_ledger(history.known_since, history.deliver_by, known_as)
        return _Subject(order, merchant, adapter)

    def _converse(self, under: UnderClaim, subject: "_Subject", late: bool, send: Send) -> Outcome:
        """Have the POS cancel the order, and look it up where that leaves a doubt."""
        (order, merchant, adapter), history = subject, under.claim.history
        outcome = _too_late("the POS did not answer in time")
        can_look_up = adapter.guarantee is not Guarantee.BLIND
        wait = self._unsettled_for(history, subject)
        # While an earlier request may be at work, another one would only renew the doubt.
        if not late and not (wait > 0 and can_look_up):
            outcome = adapter.cancel(order, merchant, Send(partial(self._sending, under, send)))
            is_refused = outcome.kind is Kind.REJECTED and not _never_there(outcome)
            if not is_refused or not history.in_doubt:
                return outcome
        # It may have cancelled the order before, and refuse to do so a second time.
        if not can_look_up:
            return _unknown()
        return _standing(adapter.look_up(order, merchant, send), wait, outcome)

    def _unsettled_for(self, history: AttemptHistory, subject: "_Subject") -> float:
        """Seconds for which an earlier request may still be at work."""
        limit = self._caller.time_limit(subject.merchant)
        return unsettled_for(history, limit, subject.adapter)

    @staticmethod
    def _sending(under: UnderClaim, send: Send, request: Request) -> Reply:
        """Send the request; if it changes something, only once SENDING is durable.

        An adapter looks the order up first: while that fails, the POS cannot have cancelled it.
        """
        if request.changes and not under.claim.sending and not under.record():
            raise NotSent("fenced", "another worker has it")
        return send(request)

    def _kept(self, key: Key) -> Order | Outcome:
        """The stored order; or, without it, the request's outcome."""
        try:
            order_json = self._ledger.order(key)
            if order_json is not None:
                return Order.parse_json(order_json)
        except CannotOpen as error:  # another worker may have the key
            return Outcome(Kind.RETRY, Reason.of("secret_key", f"the order is {error}"))
        except InvalidOrder:
            why = "the order that was kept cannot be read"
            return Outcome(Kind.FAILED, Reason.of("invalid_order", why))
        why = "the order is not kept here any more"
        return Outcome(Kind.FAILED, Reason.of("unknown_order", why))


class _Subject(NamedTuple):
    """What is to be cancelled, and where."""

    order: Order
    merchant: Merchant
    adapter: Adapter


def _standing(known: Outcome | None, wait: float, otherwise: Outcome) -> Outcome:
    """What a look-up after a cancellation in doubt says; ``otherwise``: the POS keeps the order.

    It may still cancel it for ``wait`` seconds.
    """
    if known is None:
        return rejected(Rejection.UNKNOWN_ORDER, "the POS does not know the order")
    if known.kind in (Kind.CANCELLED, Kind.IN_DOUBT, Kind.RETRY):
        return known
    if wait > 0:
        reason = Reason.of("unsettled", "the POS has it, and may be about to cancel it")
        return Outcome(Kind.IN_DOUBT, reason, look_again=wait, contact=CallResult.ANSWERED)
    return otherwise


def _never_there(outcome: Outcome) -> bool:
    """Whether the POS says that it does not know the order."""
    code = outcome.reason.code if outcome.reason is not None else None
    return outcome.kind is Kind.REJECTED and code == Rejection.UNKNOWN_ORDER


def _too_late(why: str) -> Outcome:
    return Outcome(Kind.EXPIRED, Reason.of("cancel_expired", why))


def _unknown() -> Outcome:
    return Outcome(Kind.EXPIRED, CANCEL_IN_DOUBT)
