"""Takes an order's steps at its POS, none twice, and undoes the steps.

Each step, and each undo, is durable before its first changing request: the next attempt goes on there. A doubt within a
step is resolved by the guarantee of this step, never by the guarantee of an earlier step. An order refused
or expired between two steps is undone, the last step first. An order with a single step has no step in its
row: the state SENDING says enough.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.protocol import Adapter, Guarantee
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import after_refusal
from pos_gateway.adapters.steps import COVERED, Step, steps_of
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.call import Caller
from pos_gateway.attempt.doubt import (
    CANCEL_IN_DOUBT,
    KEY_KEPT_FOR,
    LOOK_AGAIN_AFTER,
    leased_elsewhere,
    longest_reply,
    unsettled_for,
)
from pos_gateway.domain.errors import InvalidFacts, LedgerUnavailable
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import CallResult, Kind, Outcome, Reason
from pos_gateway.domain.step_progress import StepProgress
from pos_gateway.ledger.states import NOT_UNDONE, AttemptHistory, Claim, Ended, StepMark
from pos_gateway.runtime import failpoints
from pos_gateway.transport.errors import NotSent, NoValidReply, TransportError
from pos_gateway.transport.exchange import Reply, Request, Send

#: Of a step no earlier attempt has tried.
_UNTRIED = AttemptHistory()


class Walk:
    """One attempt's walk through the steps of an order at its POS. For one thread.

    Args:
        attempt: the walk records steps under the first claim, and writes ``step`` and ``facts``.
        order: the order as the POS gets it.
        merchant: the order's merchant.
        adapter: the merchant's adapter.
        caller: records, and knows time limits.
        send: sends requests within the attempt's call.
    """

    def __init__(
        self,
        attempt: Attempt[Any],
        order: Order,
        merchant: Merchant,
        adapter: Adapter,
        caller: Caller,
        send: Send,
    ) -> None:
        self._attempt = attempt
        self._order = order
        self._merchant = merchant
        self._adapter = adapter
        self._caller = caller
        self._send = send
        self._steps = steps_of(adapter)
        self._known_as: str | None = None

    # Forward

    def forward(self, because: Outcome | None, expired: Callable[[], Outcome | None]) -> Outcome:
        """Take the remaining steps, or go on undoing; the order's outcome.

        Args:
            because: the order's outcome after the undo, for an order in an undo.
            expired: returns the outcome of an order without time, or left to an operator; else None.
        """
        history, place = self._attempt.claims[0].history, 0
        if history.step is not None:
            known = place_of(history.step, self._steps)
            if known is None:
                return unknown_step(history)
            if history.step.is_undo:
                return self._back(known, because or Outcome(Kind.FAILED), _alone(history))
            history, place = _alone(history), known
        for number in range(place, len(self._steps)):
            outcome = self._take(number, history, expired)
            if len(self._steps) > 1:  # kept facts and reasons have no secret
                outcome = self._caller.redacted(self._merchant, outcome)
            if outcome.facts is not None:
                self._attempt.facts |= outcome.facts
            self._known_as = outcome.external_id or self._known_as
            if outcome.kind is not Kind.ACCEPTED or number + 1 == len(self._steps):
                break
            failpoints.reach("step.done")
            history = _UNTRIED
        if outcome.kind in _ENDED:
            # Refused with facts: the step stands at the POS, and not as agreed.
            stands = outcome.facts and outcome.kind in (Kind.REJECTED, Kind.FAILED)
            standing = number if stands else number - 1
            if standing >= 0:
                return self._back(standing, outcome, _UNTRIED)
        elif number and outcome.external_id is None:
            known_as = self._known_as or self._attempt.claims[0].history.external_id
            outcome = replace(outcome, external_id=known_as)
        return outcome

    def _take(
        self, number: int, history: AttemptHistory, expired: Callable[[], Outcome | None]
    ) -> Outcome:
        """Take a step, never twice: a step in doubt is looked up, sent with its key, or left."""
        step, known = self._steps[number], None
        if step.look_up is None and history.may_be_there:
            why = Reason.of("blind", "this POS cannot be asked")
            return Outcome(Kind.IN_DOUBT, why, for_operator=True)
        if number and not history.in_doubt:
            known = expired()
            # Two simultaneous requests to undo a step may both take effect.
            if known is not None and self._attempt.claims[0].history.cancelling:
                known = _CANCELLING
        # While a cancel request is open the order is not sent, and a key learns nothing.
        is_queryable = step.guarantee is Guarantee.QUERYABLE
        ask_first = history.in_doubt and (
            is_queryable or history.cancelling or _may_forget(history)
        )
        if known is None and (history.pending or ask_first or self._attempt.late):
            known = self._ask(step, history, expired)
        if known is None and history.cancelling:  # each failing send would renew the doubt
            known = _CANCELLING
        if known is None and not number:
            known = self._record(number)
        return known or self._run(number, history, was_asked=ask_first)

    def _run(self, number: int, history: AttemptHistory, *, was_asked: bool) -> Outcome:
        """Take a step.

        Args:
            number: the step's number; the first is durable.
            history: the step's earlier attempts.
            was_asked: the POS does not have the step: a refusal needs no look-up.
        """
        step, attempt = self._steps[number], self._attempt
        attempt.changed = False
        try:
            if number:
                outcome = self._run_later(number)
            else:
                failpoints.reach("sending.committed")
                attempt.step = step
                outcome = step.run(self._order, self._merchant, attempt.facts, self._send)
        except NotSent as error:
            # The POS has changed something: an unsent request proves nothing.
            if attempt.changed:
                raise NoValidReply(error.code, error) from error
            raise
        # A first step that fails in doubt is in doubt; a later step's failure undoes the steps before.
        is_first = step is self._steps[0]
        ends = (Kind.REJECTED,) if is_first else (Kind.REJECTED, Kind.FAILED)
        is_refused = outcome.kind in ends and not outcome.not_found
        if is_refused and history.in_doubt and not was_asked:
            # An earlier attempt may have taken the step: a POS may refuse before checking the key.
            known = after_refusal(partial(self._look_up, step))
            outcome = known or replace(outcome, not_found=True)
        if outcome.kind is Kind.PENDING and history.in_doubt and not (is_first or was_asked):
            # A key's first reply may be repeated, whatever the POS has decided since.
            outcome = after_refusal(partial(self._look_up, step)) or outcome
        if outcome.not_found and self._unsettled_for(history) > 0:
            # The POS may still do as an earlier attempt has asked.
            why = "the POS refuses it, does not know it, and may be about to make it"
            wait = longest_reply(self._adapter, self._caller.time_limit(self._merchant))
            return _unsettled(why, wait)
        return outcome

    def _run_later(self, number: int) -> Outcome:
        """Run a step after the first, which becomes durable before its first changing request.

        A worker that ends earlier, during a look-up, leaves nothing of this step in doubt. Until then the step before
        may be in doubt.

        Raises:
            TransportError: of a request; NotSent, of a look-up.
        """
        attempt, step = self._attempt, self._steps[number]
        send = Send(partial(self._recording, number, None))
        try:
            outcome = step.run(self._order, self._merchant, attempt.facts, send)
        except _NotRecorded as error:
            return error.outcome
        except TransportError as error:
            if attempt.step is step:
                raise
            not_recorded = self._reached(number, Kind.RETRY)
            if not_recorded is not None:
                return not_recorded
            if isinstance(error, NoValidReply):
                raise NotSent(error.code, error) from error
            raise
        return self._reached(number, outcome.kind) or outcome

    def _reached(self, number: int, kind: Kind) -> Outcome | None:
        """Record an open step, for the next attempt to go on there; None: nothing is to be said."""
        mark = self._attempt.claims[0].history.step
        is_there = mark is not None and mark.name == self._steps[number].name
        if kind in (Kind.PENDING, Kind.IN_DOUBT) or (kind is Kind.RETRY and not is_there):
            return self._record(number)
        return None

    def _ask(
        self, step: Step, history: AttemptHistory, expired: Callable[[], Outcome | None]
    ) -> Outcome | None:
        """Look up a step in doubt or late; None: the POS does not have the step; the step may be sent."""
        known = self._look_up(step)
        if known is not None:
            return known
        wait = self._unsettled_for(history)
        if wait > 0:
            why = "the POS does not know it, and may not have had the time"
            return replace(_unsettled(why, wait), not_found=True)
        if self._attempt.late and step is self._steps[0]:
            return Outcome(Kind.EXPIRED, Reason.of("expired", "the POS does not have it"))
        return expired()  # earlier steps are undone for want of time, and for no other reason

    def _back(self, place: int, because: Outcome, history: AttemptHistory) -> Outcome:
        """Undo the steps from ``place`` to the first; ``because`` once no step is left at the POS."""
        attempt = self._attempt
        for number in range(place, -1, -1):
            if self._steps[number].undo is COVERED:
                continue
            if history is _UNTRIED:
                not_recorded = self._record(number, because)
                if not_recorded is not None:
                    return not_recorded
                failpoints.reach("undo.recorded")
            outcome = self._undo(number, history, because)
            if outcome.kind in (Kind.RETRY, Kind.IN_DOUBT, Kind.PENDING):
                return outcome
            if outcome.kind is not Kind.CANCELLED and not never_there(outcome):
                return self._not_undone(number, outcome, because)
            if outcome.kind is Kind.CANCELLED and outcome.reason is not None:
                because = _with(because, outcome.reason)
            history = _UNTRIED
        claim = attempt.claims[0]
        nothing = replace(claim.history, pending=False, doubt_since=None)
        attempt.claims[0] = claim._replace(history=nothing)
        return because

    # Cancel

    def cancel(self, submission: Claim | Ended, otherwise: Outcome | None) -> Outcome:
        """Undo the order for a cancel request, which the attempt has claimed.

        Args:
            submission: the order's row.
            otherwise: the outcome if the request is late, and nothing is undone.
        """
        standing = self._standing(submission) if len(self._steps) > 1 else 0
        if isinstance(standing, Outcome):
            return standing
        request = self._attempt.claims[0].history
        place = standing if request.step is None else place_of(request.step, self._steps)
        if place is None:
            return unknown_step(request)
        last = standing
        if isinstance(submission, Claim) and submission.history.in_doubt and request.in_doubt:
            # A look-up of the step in doubt cannot tell "never taken" from "undone by this request".
            last = max(last, place_of(submission.history.step, self._steps) or 0)
        if place > standing:  # the POS has nothing more of the step, and no facts
            place, request = standing, _UNTRIED
        # Earlier attempts have undone the steps above, covered steps aside.
        is_begun = any(each.undo is not COVERED for each in self._steps[place + 1 : last + 1])
        outcome = Outcome(Kind.CANCELLED, contact=CallResult.ANSWERED)
        if is_begun:
            otherwise = None
        for number in range(place, -1, -1):
            if self._steps[number].undo is COVERED:
                continue
            try:
                outcome = self._undo(number, request, _BY_REQUEST, otherwise)
            except NotSent:
                if self._attempt.changed:  # half undone
                    self._begun()
                raise
            if never_there(outcome) and (number or is_begun):
                outcome = Outcome(Kind.CANCELLED, contact=CallResult.ANSWERED)
            if outcome.kind is not Kind.CANCELLED:
                is_refused = outcome.kind in (Kind.REJECTED, Kind.FAILED)
                if not (is_begun and is_refused):
                    return outcome
                return replace(self._not_undone(number, outcome), kind=Kind.FAILED)
            is_begun, request, otherwise = True, _UNTRIED, None
            self._begun()
        return outcome

    def _begun(self) -> None:
        """Keep the request in doubt until its end: the order may not go on, undone in part."""
        claim = self._attempt.claims[0]
        since = claim.history.doubt_since or self._caller.now()
        history = replace(claim.history, doubt_since=since)
        self._attempt.claims[0] = claim._replace(history=history)

    def _standing(self, submission: Claim | Ended) -> int | Outcome:
        """The number of the last step at the POS, or -1; or the outcome of a request that waits."""
        history, last = submission.history, len(self._steps) - 1
        place = place_of(history.step, self._steps)
        if place is None:
            return unknown_step(history)
        if history.step is not None and history.step.is_undo:
            return Outcome(Kind.RETRY, Reason.of("undoing", "it is being undone already"))
        if isinstance(submission, Claim):
            is_known = place > 0 and not history.in_doubt
            numbers = range(place, place + 1)
            return place - 1 if is_known else self._looked_up(numbers, history)
        # An order accepted by a release without steps has no facts.
        known = last if self._attempt.facts else self._looked_up(range(last + 1), history)
        return known if isinstance(known, Outcome) else max(0, known)

    def _looked_up(self, numbers: range, history: AttemptHistory) -> int | Outcome:
        """The number of the last of the steps at the POS; the step's facts are kept."""
        for number in numbers:
            if self._steps[number].look_up is None:  # of an accepted order: taken
                continue
            known = self._look_up(self._steps[number])
            self._attempt.facts |= (known and known.facts) or {}
            if known is None or known.kind is Kind.CANCELLED:
                wait = self._unsettled_for(_alone(history)) if known is None else 0.0
                why = "the POS does not know it, and may be about to make it"
                unsettled = replace(_unsettled(why, wait), kind=Kind.RETRY, not_found=True)
                return unsettled if wait > 0 else number - 1
            if known.kind in (Kind.RETRY, Kind.IN_DOUBT):
                return replace(known, kind=Kind.RETRY)
        return numbers[-1]

    # Both

    def _undo(
        self,
        number: int,
        history: AttemptHistory,
        because: Outcome,
        otherwise: Outcome | None = None,
    ) -> Outcome:
        """Undo a step. An undo in doubt is looked up until the POS has had time, then sent again.

        Args:
            number: the step's number.
            history: the undo's earlier attempts.
            because: why the order is undone.
            otherwise: the outcome of a late attempt, which only looks the step up, and goes on with
                an undo found half done.
        """
        attempt = self._attempt
        step = attempt.step = self._steps[number]
        if step.undo is None or step.undo is COVERED:
            return Outcome(Kind.REJECTED, Reason.of("final", f"{step.name} cannot be undone"))
        outcome = otherwise or _CANNOT_SAY
        wait = self._unsettled_for(history)
        if attempt.late and otherwise is not None:
            if step.look_up is None:
                return _CANNOT_SAY
            known = self._look_up(step)
            if not _is_half_done(known):
                return _undone(known, wait, otherwise)
        # While an earlier request may be at work, a second would only renew the doubt.
        if not (wait > 0 and step.look_up is not None):
            send = Send(partial(self._recording, number, because))
            outcome = step.undo(self._order, self._merchant, attempt.facts, send)
            is_refused = outcome.kind is Kind.REJECTED and not never_there(outcome)
            if not is_refused or not history.in_doubt:
                return outcome
        # The POS may have undone the step before, and refuse a second time.
        if step.look_up is None:
            return _CANNOT_SAY
        return _undone(self._look_up(step), wait, outcome)

    def _recording(self, number: int, because: Outcome | None, request: Request) -> Reply:
        """Send the request; a changing request only once the step, or with ``because`` its undo, is durable.

        An adapter may look the order up first: while look-ups fail, the POS cannot have changed anything.

        Raises:
            _NotRecorded: nothing may be sent.
        """
        if request.changes:
            not_recorded = self._record(number, because)
            if not_recorded is not None:
                raise _NotRecorded(not_recorded)
            if because is None:
                failpoints.reach("sending.committed")
            self._attempt.step = self._steps[number]  # until now an earlier step may be in doubt
        return self._send(request)

    def _record(self, number: int, because: Outcome | None = None) -> Outcome | None:
        """Make a step, or with ``because`` its undo, durable before the first byte.

        Returns None, or the outcome if nothing may be sent. Earlier steps are certain from then on; until
        then the steps sent by this attempt are in doubt.
        """
        attempt, claim = self._attempt, self._attempt.claims[0]
        mark, progress = None, None
        if len(self._steps) > 1 and (number or because is not None):
            reopened = claim.history.reopened
            mark = StepMark(reopened, self._steps[number].name, is_undo=because is not None)
            try:
                if because is not _BY_REQUEST:  # a request finds the facts in the order's row
                    progress = StepProgress(attempt.facts, because).to_json(reopened)
            except InvalidFacts as error:  # the adapter's mistake: each attempt repeats the mistake
                return Outcome(Kind.IN_DOUBT, Reason.of("facts", error), for_operator=True)
        if claim.sending and claim.history.step == mark:
            return None
        where = None if because is _BY_REQUEST else endpoint(self._merchant, self._adapter)
        try:
            sending = self._caller.ledger.sending(
                claim, where, step=mark, progress=progress, external_id=self._known_as
            )
        except LedgerUnavailable as error:
            if mark is None or not attempt.sent:
                raise
            return Outcome(Kind.IN_DOUBT, Reason.of("database", error))
        if sending is not None:
            attempt.claims[0] = sending
            if mark is not None:  # of this step no byte has left
                attempt.sent = False
            if sending.sending:
                return None
        if attempt.claims[0].history.cancelling:
            return _CANCELLING
        in_doubt = mark is not None and attempt.sent
        return replace(leased_elsewhere(), kind=Kind.IN_DOUBT if in_doubt else Kind.RETRY)

    def _not_undone(self, number: int, outcome: Outcome, because: Outcome | None = None) -> Outcome:
        """The outcome, for an operator, of an order with a step left at the POS."""
        order = self._attempt.claims[-1].history
        known_as = self._known_as or self._order.external_id or order.external_id or "it"
        said = outcome.reason or Reason("refused", "the POS refuses")
        step = self._steps[number].name
        why = f"the POS has {known_as}, of which {step} is not undone: {said.message or said.code}"
        if because is not None and because.reason is not None:
            why = f"{because.reason.code}: {because.reason.message}; {why}"
        reason = Reason.of(NOT_UNDONE, why)
        return Outcome(Kind.IN_DOUBT, reason, contact=CallResult.ANSWERED, for_operator=True)

    def _look_up(self, step: Step) -> Outcome | None:
        assert step.look_up is not None  # noqa: S101  (a blind step is not asked for)
        return step.look_up(self._order, self._merchant, self._attempt.facts, self._send)

    def _unsettled_for(self, history: AttemptHistory) -> float:
        """Seconds for which an earlier request may be in progress still."""
        return unsettled_for(history, self._caller.time_limit(self._merchant), self._adapter)


class _NotRecorded(NotSent):
    """A step, or its undo, is not durable, and was not sent."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("fenced", "another worker has it")
        #: The outcome of the attempt, of an order that goes forward.
        self.outcome = outcome


def _alone(history: AttemptHistory) -> AttemptHistory:
    """The history of the named step alone: the row is pending for the steps before."""
    return history if history.step is None else replace(history, pending=False)


def place_of(mark: StepMark | None, steps: tuple[Step, ...]) -> int | None:
    """The number of the ledger's step; None: the adapter does not have the step."""
    if mark is None:
        return 0
    return next((n for n, step in enumerate(steps) if step.name == mark.name), None)


def unknown_step(history: AttemptHistory) -> Outcome:
    """The outcome of an order in an unknown step: nothing is done."""
    why = f"a different release left it in the step {history.step and history.step.name}"
    return Outcome(Kind.RETRY, Reason.of("unknown_step", why), look_again=LOOK_AGAIN_AFTER)


def never_there(outcome: Outcome) -> bool:
    """Whether the POS says that the order is unknown."""
    code = outcome.reason.code if outcome.reason is not None else None
    return outcome.kind is Kind.REJECTED and code == Rejection.UNKNOWN_ORDER


#: The outcomes after which no further step is taken.
_ENDED = (Kind.REJECTED, Kind.FAILED, Kind.EXPIRED, Kind.CANCELLED)
_CANCELLING = Outcome(Kind.RETRY, Reason("cancelling", "a cancel request for it is open"))
#: Why an order is undone for a cancel request: the request's own row has the reason.
_BY_REQUEST = Outcome(Kind.CANCELLED)
#: Of an undo in doubt, where the POS cannot be asked.
_CANNOT_SAY = Outcome(Kind.EXPIRED, CANCEL_IN_DOUBT)


def _is_half_done(known: Outcome | None) -> bool:
    """Whether a look-up finds that the POS has given up a step, with a part of the step left."""
    return known is not None and known.kind is Kind.REJECTED and bool(known.facts)


def _undone(known: Outcome | None, wait: float, otherwise: Outcome) -> Outcome:
    """The outcome of an undo in doubt, by a look-up; ``otherwise``: the step stands at the POS.

    The POS may still undo the step for ``wait`` seconds.
    """
    if known is None:
        return rejected(Rejection.UNKNOWN_ORDER, "the POS does not know the order")
    is_not_made = known.kind is Kind.REJECTED and not known.facts
    if known.kind is Kind.CANCELLED or is_not_made:
        return replace(known, kind=Kind.CANCELLED, reason=None)  # as without the doubt
    if known.kind in (Kind.IN_DOUBT, Kind.RETRY):
        return known
    return (
        _unsettled("the POS has it, and may be about to cancel it", wait) if wait > 0 else otherwise
    )


def _unsettled(why: str, wait: float) -> Outcome:
    """The outcome while an earlier request may be at work for ``wait`` seconds."""
    reason = Reason.of("unsettled", why)
    return Outcome(Kind.IN_DOUBT, reason, look_again=wait, contact=CallResult.ANSWERED)


def _with(because: Outcome, left: Reason) -> Outcome:
    """The outcome of an undone order, with the reason for any part left by the undo."""
    reason = because.reason or Reason(because.kind, because.kind)
    return replace(because, reason=Reason.of(reason.code, f"{reason.message}; {left.message}"))


def _may_forget(history: AttemptHistory) -> bool:
    """Whether the POS may have forgotten the key since the first attempt.

    ``doubt_since`` is the last attempt's; the first was not before the order's row. A row from
    the future has a different clock's time.
    """
    known_for = inf if history.known_for is None else history.known_for
    return known_for < 0 or max(known_for, history.settled) > KEY_KEPT_FOR
